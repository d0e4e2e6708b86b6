//! The book: checks chapters, links, paths and settings, and builds it with mdBook.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::links;
use crate::read;

const DOCS: &str = "docs";
/// The crate whose documentation tests run the programs of the pages.
const PROGRAMS: &str = "examples/book/src/lib.rs";
/// The command that installs mdBook.
const INSTALL: &str = "cargo install mdbook --version 0.5.4 --locked --no-default-features";

/// Checks the pages, and builds the book unless `links_only`.
pub fn run(root: &Path, links_only: bool) -> Result<(), String> {
    let pages = links::pages(root)?;
    let mut faults = links::broken(root, &pages, Path::new(DOCS));
    // The changelog names files and settings of earlier versions.
    let current = pages.iter().filter(|(path, _)| *path != Path::new("CHANGELOG.md"));
    faults.extend(links::missing_paths(root, current.clone()));
    faults.extend(unknown_settings(root, current.map(|(path, _)| path))?);

    let summary = Path::new(DOCS).join("SUMMARY.md");
    let chapters = pages.get(&summary).ok_or("docs/SUMMARY.md is missing")?;
    let programs = read(&root.join(PROGRAMS))?;
    for (path, page) in &pages {
        let inside = path.strip_prefix(DOCS).ok().filter(|_| *path != summary);
        if inside.is_some_and(|inside| !chapters.links.iter().any(|link| Path::new(link) == inside)) {
            faults.push(format!("{}: not a chapter of docs/SUMMARY.md", path.display()));
        }
        if !page.programs.is_empty() && !programs.contains(&format!("\"../../../{}\"", path.display())) {
            faults.push(format!("{}: its programs are not run: add it to {PROGRAMS}", path.display()));
        }
        faults.extend(
            page.programs
                .iter()
                .filter_map(|program| incomplete(program))
                .map(|fault| format!("{}: {fault}", path.display())),
        );
    }
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    let links: usize = pages.values().map(|page| page.links.len()).sum();
    println!("{} pages, {links} links", pages.len());
    if links_only { Ok(()) } else { build(root) }
}

/// Returns the problem of a program that would not compile after a reader copies it. GitHub shows the lines that
/// rustdoc hides.
fn incomplete(program: &str) -> Option<String> {
    let is_hidden = |line: &&str| line.trim_start().starts_with("# ");
    let has_main = program.contains("fn main(") || program.contains("mod names_");
    match program.lines().find(is_hidden) {
        Some(line) => Some(format!("the program line {line:?} is not Rust: write it without \"# \"")),
        None if !has_main => {
            Some(format!("a program has no `fn main`: {:?}", program.lines().next().unwrap_or_default()))
        }
        None => None,
    }
}

/// Returns the settings (`SHARDAX_…`) on a page that no source file reads.
fn unknown_settings<'a>(root: &Path, pages: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<String>, String> {
    let mut sources = String::new();
    for path in crate::tests::sources(root)? {
        sources += &read(&path)?;
    }
    sources += &read(&root.join("bench/compare.sh"))?;
    let mut unknown = Vec::new();
    for page in pages {
        let text = read(&root.join(page))?;
        for (at, _) in text.match_indices("SHARDAX_") {
            let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let name = text[at..].split(|c| !is_part(c)).next().unwrap_or_default();
            // Rust sources contain a setting as a quoted name, and scripts as `${NAME`.
            if !sources.contains(&format!("\"{name}\"")) && !sources.contains(&format!("${{{name}")) {
                unknown.push(format!("{}: {name}: no source reads it", page.display()));
            }
        }
    }
    Ok(unknown)
}

fn build(root: &Path) -> Result<(), String> {
    let status = Command::new("mdbook").arg("build").arg(root.join(DOCS)).status();
    let status = status.map_err(|e| format!("mdbook: {e}. Install it: {INSTALL}"))?;
    if status.success() { Ok(()) } else { Err(format!("mdbook: {status}")) }
}
