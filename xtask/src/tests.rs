//! What the workspace's sources and pages say about themselves: tests, and the comments that name rows.
//!
//! A test is a function marked `#[test]`, one whose documentation is a program that must not compile, or a program of a
//! page of `docs`. A comment names rows as `// SPEC 62, 82`, before a program of a page as `<!-- SPEC 62 -->`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::read;

/// What was found in the sources.
#[derive(Default)]
pub struct Found {
    /// The places that show each row.
    pub rows: BTreeMap<usize, Vec<String>>,
    /// The functions that are tests: where, and their names.
    pub tests: Vec<(String, String)>,
}

/// The sources below these folders, in order, and the pages beside them.
fn below(root: &Path, folders: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for folder in folders {
        list(&root.join(folder), &mut files)?;
    }
    files.sort();
    Ok(files)
}

/// The Rust sources of the workspace.
pub fn sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = below(root, &["crates", "examples", "bench", "xtask"])?;
    files.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    Ok(files)
}

/// Reads all sources below `crates` and `examples`, and the pages of `docs`.
pub fn find(root: &Path) -> Result<Found, String> {
    let files = below(root, &["crates", "examples", "docs"])?;
    let mut found = Found::default();
    for path in files {
        let inside = path.strip_prefix(root).unwrap_or(&path);
        match path.extension().is_some_and(|e| e == "md") {
            true => scan_page(&read(&path)?, &inside.to_string_lossy(), &mut found),
            false => scan(&read(&path)?, &place(inside), &mut found),
        }
    }
    for places in found.rows.values_mut() {
        places.sort();
        places.dedup();
    }
    Ok(found)
}

/// The files of a folder that end so, in order.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    found.retain(|path| path.extension().is_some_and(|e| e == extension));
    found.sort();
    Ok(found)
}

fn list(folder: &Path, out: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                list(&path, out)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            out.push(path);
        }
    }
    Ok(())
}

/// `crates/shardax/tests/errors/spmd.rs` as `shardax/errors/spmd`.
fn place(path: &Path) -> String {
    let parts: Vec<String> = path.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    let kept = parts.iter().filter(|p| !matches!(p.as_str(), "crates" | "tests" | "src" | "main"));
    kept.cloned().collect::<Vec<_>>().join("/")
}

/// A page, whose programs are run by `cargo test`.
fn scan_page(text: &str, place: &str, found: &mut Found) {
    let (mut heading, mut rows) = ("", Vec::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim();
        } else if let Some((_, comment)) = line.split_once("<!--") {
            rows = numbers(comment);
        } else if line.starts_with("```rust") {
            for number in rows.drain(..) {
                found.rows.entry(number).or_default().push(format!("{place}: {heading}"));
            }
        }
    }
}

fn scan(text: &str, place: &str, found: &mut Found) {
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        if (line.trim() == "#[test]" || line.trim() == "/// ```compile_fail")
            && let Some(name) = lines[i + 1..].iter().find_map(|l| function(l))
        {
            found.tests.push((place.to_owned(), name.to_owned()));
        }
        let Some((_, comment)) = line.split_once("//") else { continue };
        for number in numbers(comment) {
            let shown = match comment.starts_with('!') {
                true => place.to_owned(),
                false => format!("{place}: {}", subject(&lines, i)),
            };
            found.rows.entry(number).or_default().push(shown);
        }
    }
}

/// The name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) ")).unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// What the comment at line `at` is about: the function or the row of a table that follows it, else the function that
/// it stands in.
fn subject(lines: &[&str], at: usize) -> String {
    let is_code = |l: &&str| !l.is_empty() && !l.starts_with("//") && !l.starts_with("#[");
    let mut code = lines[at + 1..].iter().map(|l| l.trim()).filter(is_code).take(2);
    let (first, second) = (code.next().unwrap_or(""), code.next().unwrap_or(""));
    if let Some(name) = function(first) {
        return name.to_owned();
    }
    let literal = |l: &str| l.split('"').nth(1).map(str::to_owned);
    if first.contains(".row(")
        && let Some(name) = literal(first).or_else(|| literal(second))
    {
        return name;
    }
    lines[..at].iter().rev().find_map(|l| function(l)).unwrap_or_default().to_owned()
}

/// The rows that a comment names: `SPEC 3`, `SPEC 3, 4 5`, `SPEC 3-5`.
fn numbers(comment: &str) -> Vec<usize> {
    let mut out = Vec::new();
    for part in comment.split("SPEC ").skip(1) {
        let list: String = part.chars().take_while(|c| c.is_ascii_digit() || ", -–".contains(*c)).collect();
        for item in list.split([',', ' ']).filter(|s| !s.is_empty()) {
            let mut ends = item.split(['-', '–']).filter_map(|n| n.parse::<usize>().ok());
            if let Some(first) = ends.next() {
                out.extend(first..=ends.next().unwrap_or(first));
            }
        }
    }
    out
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn comments_name_rows() {
        assert_eq!(numbers(" SPEC 3"), [3]);
        assert_eq!(numbers("/ text. SPEC 3, 4 and SPEC 7-9: more 5"), [3, 4, 7, 8, 9]);
        assert_eq!(numbers(" SPEC 51–53, 73"), [51, 52, 53, 73]);
        assert!(numbers(" a SPECIAL 3").is_empty());
    }

    #[test]
    fn comments_belong_to_what_follows() {
        let text = "fn a() {\n    // SPEC 1\n    x();\n}\n// SPEC 2\n#[test]\nfn b() {\n    // SPEC 3\n    t.row(\n \"c: d\",\n);\n}\n";
        let mut found = Found::default();
        scan(text, "f", &mut found);
        assert_eq!(found.rows[&1], ["f: a"]);
        assert_eq!(found.rows[&2], ["f: b"]);
        assert_eq!(found.rows[&3], ["f: c: d"]);
        assert_eq!(found.tests, [("f".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn programs_of_pages_are_tests() {
        let text =
            "# Page\n## Part\n<!-- SPEC 4 -->\n```text\n```\n```rust\n# fn main() {}\n```\n<!-- SPEC 5 -->\nend\n";
        let mut found = Found::default();
        scan_page(text, "docs/page.md", &mut found);
        assert_eq!(found.rows.into_iter().collect::<Vec<_>>(), [(4, vec!["docs/page.md: Part".to_owned()])]);
    }
}
