//! A style check of rustdoc: the openings of summary lines.
//!
//! `cargo xtask style crates/shardax-nn` lists the faults of a folder.

use std::collections::BTreeMap;
use std::path::Path;

use crate::read;
use crate::tests::sources;

/// Openings that a summary line must not have: it should name the thing or say what it does.
const OPENINGS: [&str; 4] = ["what", "how", "whether", "the same"];

/// The faults of all sources.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    Ok(source_faults(root)?.into_values().flatten().collect())
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

/// The faults in sources by folder: a crate, or a folder at the root such as `examples`.
fn source_faults(root: &Path) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut folders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources(root)? {
        let inside = path.strip_prefix(root).unwrap_or(&path);
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        let depth = if parts[0] == "crates" { 2 } else { 1 };
        let faults = folders.entry(parts[..depth].join("/")).or_default();
        let (text, name) = (read(&path)?, inside.display().to_string());
        faults.extend(summaries(&text).filter_map(|(line, summary)| fault(&name, line, summary)));
    }
    Ok(folders)
}

/// The first lines of the doc comments of a source, with their line numbers.
fn summaries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut previous = None;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let line = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark) && !line.starts_with("////"));
        let is_first = mark != previous;
        previous = mark;
        mark.filter(|_| is_first).map(|mark| (i + 1, line[mark.len()..].trim_start()))
    })
}

/// The fault of a summary line, if it has one.
fn fault(file: &str, line: usize, summary: &str) -> Option<String> {
    let lower = summary.to_lowercase();
    let opening = OPENINGS
        .into_iter()
        .find(|opening| lower.strip_prefix(opening).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))?;
    Some(format!("{file}:{line}: the summary opens with {opening:?}: name the thing, or say what it does"))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn summaries_name_the_thing() {
        let text =
            "/// What it is.\n///\n/// How it is not a summary.\nfn a() {}\n//! The same, otherwise.\n/// Whatever.\n";
        let faults: Vec<_> = summaries(text).filter_map(|(line, summary)| fault("f", line, summary)).collect();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("f:1:") && faults[1].starts_with("f:5:"), "{faults:?}");
    }
}
