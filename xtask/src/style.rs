//! Style checks of pages, rustdoc and comments: openings of summary lines, and vocabulary.
//!
//! `cargo xtask style crates/shardax-nn` lists the faults of a folder.

use std::collections::BTreeMap;
use std::path::Path;

use crate::read;
use crate::tests::sources;

/// Openings that a summary line must not have: it should name the thing or say what it does.
const OPENINGS: [&str; 5] = ["what", "how", "whether", "the same", "so many"];

/// Words to avoid, with replacements.
const WORDS: [(&str, &str); 32] = [
    ("anew", "again"),
    ("devices that are not there", "hardware you do not have"),
    ("engine", "XLA, the plugin, or the runtime"),
    ("engines", "plugins, or versions of XLA"),
    ("give way", "are weakly typed"),
    ("gives way", "is weakly typed"),
    ("goes on where", "resumes where"),
    ("hand out", "return"),
    ("hands out", "returns"),
    ("how the house stands", "source layout"),
    ("in truth", "eagerly, or really"),
    ("keeper", "cache, or owner"),
    ("keepers", "caches, or owners"),
    ("knot", "cycle"),
    ("knots", "cycles"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("mends", "fixes"),
    ("of the house", "of the source"),
    ("quicker", "faster"),
    ("refuse", "reject"),
    ("refused", "rejected"),
    ("refuses", "rejects"),
    ("settled", "weak type stripped"),
    ("so many experts", "`num_experts` experts"),
    ("spanning", "multi-process"),
    ("staged", "traced, lowered or compiled"),
    ("staging", "tracing, lowering or compiling"),
    ("start it again", "rerun"),
    ("sum of parts", "partial sum"),
    ("sums of parts", "partial sums"),
    ("what is left", "remainder"),
];

/// The faults of pages and sources.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    Ok(pages(root)?.into_iter().chain(source_faults(root)?.into_values().flatten()).collect())
}

/// Prints the faults in the sources of the folders `names`, or of all folders.
pub fn list(root: &Path, names: &[&str]) -> Result<(), String> {
    for (folder, found) in source_faults(root)? {
        if names.is_empty() || names.contains(&folder.as_str()) {
            found.iter().for_each(|fault| println!("{fault}"));
            println!("{folder}: {}", found.len());
        }
    }
    Ok(())
}

fn pages(root: &Path) -> Result<Vec<String>, String> {
    let mut paths: Vec<_> = crate::links::pages(root)?.into_keys().collect();
    // The changelog describes earlier versions in their own words.
    paths.retain(|path| path != Path::new("CHANGELOG.md"));
    let mut faults = Vec::new();
    for path in paths {
        let text = read(&root.join(&path))?;
        words(text.lines().enumerate(), &path.display().to_string(), &mut faults);
    }
    Ok(faults)
}

/// The faults in sources by folder: a crate, or a folder at the root such as `examples`.
fn source_faults(root: &Path) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut folders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources(root)? {
        let inside = path.strip_prefix(root).unwrap_or(&path);
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        let depth = if parts[0] == "crates" { 2 } else { 1 };
        let faults = folders.entry(parts[..depth].join("/")).or_default();
        let (text, name) = (read(&path)?, inside.display().to_string());
        for (mark, comment) in comments(&text) {
            if mark != "//" {
                summary(&comment, &name, faults);
            }
            words(comment.into_iter(), &name, faults);
        }
    }
    Ok(folders)
}

/// The comments of a source with their mark: lines without it, with line numbers.
fn comments(text: &str) -> Vec<(&str, Vec<(usize, &str)>)> {
    let (mut out, mut mark) = (Vec::<(&str, Vec<_>)>::new(), None);
    for (i, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let found = ["///", "//!", "//"].into_iter().find(|m| line.starts_with(m) && !line.starts_with("////"));
        if let Some(m) = found {
            if found != mark {
                out.push((m, Vec::new()));
            }
            out.last_mut().expect("pushed").1.push((i, line[m.len()..].trim_start()));
        }
        mark = found;
    }
    out
}

fn summary(comment: &[(usize, &str)], name: &str, faults: &mut Vec<String>) {
    let Some((at, first)) = comment.first() else { return };
    let lower = first.to_lowercase();
    let opens =
        |opening: &str| lower.strip_prefix(opening).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    if let Some(opening) = OPENINGS.into_iter().find(|opening| opens(opening)) {
        faults.push(format!("{name}:{}: the summary opens with {opening:?}: name the thing, or what it does", at + 1));
    }
}

/// Finds words to avoid in lines of prose; programs and `code` are skipped.
fn words<'a>(lines: impl Iterator<Item = (usize, &'a str)>, name: &str, faults: &mut Vec<String>) {
    let mut program = false;
    for (at, line) in lines {
        if line.trim_start().starts_with("```") {
            program = !program;
            continue;
        }
        if program {
            continue;
        }
        let prose: Vec<&str> = line.split('`').step_by(2).collect();
        let prose = prose.join("`").to_lowercase();
        for (word, instead) in WORDS.iter().filter(|(word, _)| contains(&prose, word)) {
            faults.push(format!("{name}:{}: {word:?}: write {instead}", at + 1));
        }
    }
}

/// Returns true if `text` contains `word` as a whole word.
fn contains(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let ends = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        ends(text[..at].chars().next_back()) && ends(text[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        for (mark, comment) in comments(text) {
            if mark != "//" {
                summary(&comment, "f", &mut out);
            }
            words(comment.into_iter(), "f", &mut out);
        }
        out
    }

    #[test]
    fn summaries_name_the_thing() {
        let text =
            "/// What it is.\n///\n/// How it is not a summary.\nfn a() {}\n//! The same, otherwise.\n/// Whatever.\n";
        let found = faults(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("f:1:") && found[1].starts_with("f:5:"), "{found:?}");
    }

    #[test]
    fn private_words_are_found_in_prose_alone() {
        let found = faults(
            "/// Mended, recommended, `mended`.\n/// ```\n/// // refused\n/// ```\n/// It gives\n/// way.\n\n// What refuses.\n",
        );
        assert_eq!(found, ["f:1: \"mended\": write fixed", "f:8: \"refuses\": write rejects"]);
    }
}
