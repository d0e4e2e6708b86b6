//! Links of the Markdown files: files and headings must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::read;

/// A page: its headings, links and paths.
#[derive(Default)]
pub struct Page {
    /// The anchors of its headings.
    pub anchors: BTreeSet<String>,
    /// The targets of its links and images.
    pub links: Vec<String>,
    /// Inline `code` of its text.
    pub code: Vec<String>,
    /// The programs that `cargo test` can run.
    pub programs: Vec<String>,
}

impl Page {
    pub fn parse(text: &str) -> Page {
        let (mut page, mut heading, mut in_program) = (Page::default(), None::<String>, false);
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    // A second heading with the same words gets the anchor `words-1`.
                    let again = (1..).map(|i| format!("{name}-{i}"));
                    let free = std::iter::once(name.clone()).chain(again).find(|n| !page.anchors.contains(n));
                    page.anchors.extend(free);
                }
                Event::Text(part) | Event::Code(part) if heading.is_some() => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&part));
                }
                Event::Code(code) => page.code.push(code.into_string()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::CodeBlock(pulldown_cmark::CodeBlockKind::Fenced(language))) => {
                    in_program = language.split(',').any(|word| word == "rust");
                    if in_program {
                        page.programs.push(String::new());
                    }
                }
                Event::End(TagEnd::CodeBlock) => in_program = false,
                Event::Text(text) if in_program => {
                    page.programs.last_mut().into_iter().for_each(|program| *program += &text)
                }
                _ => {}
            }
        }
        page
    }
}

/// The anchor of a heading: lower case, hyphens for spaces, without other punctuation.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    letters.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The Markdown files of the workspace by path. Those among sources are left to rustdoc.
pub fn pages(root: &Path) -> Result<BTreeMap<PathBuf, Page>, String> {
    let (mut pages, mut folders) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder)).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let entry = entry.map_err(|e| e.to_string())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if !name.starts_with('.') && !matches!(name.as_str(), "target" | "src") {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                pages.insert(path.clone(), Page::parse(&read(&root.join(path))?));
            }
        }
    }
    Ok(pages)
}

/// The broken links, one line each. Pages of `book` must not link to files outside it, because readers do not have them.
pub fn broken(root: &Path, pages: &BTreeMap<PathBuf, Page>, book: &Path) -> Vec<String> {
    let mut broken = Vec::new();
    for (from, page) in pages {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, name) = link.split_once('#').map_or((link.as_str(), None), |(path, name)| (path, Some(name)));
            let to = if path.is_empty() { from.clone() } else { resolve(from, path) };
            let why = if !root.join(&to).exists() {
                "the file does not exist"
            } else if name.is_some_and(|name| pages.get(&to).is_none_or(|page| !page.anchors.contains(name))) {
                "the heading does not exist"
            } else if from.starts_with(book) && !to.starts_with(book) {
                "it leads out of the book: name the file as `code`"
            } else {
                continue;
            };
            broken.push(format!("{}: ({link}): {why}", from.display()));
        }
    }
    broken
}

/// The paths of the workspace that pages write as `code` and that do not exist.
pub fn missing_paths<'a>(root: &Path, pages: impl Iterator<Item = (&'a PathBuf, &'a Page)>) -> Vec<String> {
    const FOLDERS: [&str; 8] = [".ci", "bench", "crates", "data", "docs", "examples", "tools", "xtask"];
    let mut missing = Vec::new();
    for (from, page) in pages {
        for code in &page.code {
            // Placeholders and commands are not paths.
            let is_path = code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            let is_ours = code.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            if is_path && is_ours && !root.join(code).exists() {
                missing.push(format!("{}: `{code}`: the file does not exist", from.display()));
            }
        }
    }
    missing
}

/// The path that `link` refers to on the page `from`.
fn resolve(from: &Path, link: &str) -> PathBuf {
    let mut path = from.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod unit {
    use super::*;

    fn page(text: &str) -> Page {
        Page::parse(text)
    }

    #[test]
    fn headings_have_names() {
        let page = page("# What `jit` *does*, and why\n\n## Part\n\n## Part\n\n```text\n# no heading\n```\n");
        assert_eq!(page.anchors.into_iter().collect::<Vec<_>>(), ["part", "part-1", "what-jit-does-and-why"]);
        assert!(page.programs.is_empty());
    }

    #[test]
    fn programs_and_links_are_found() {
        let page = page("[a](b.md#c), `[no](link)` and ![p](d.svg) [e]\n\n[e]: f.md\n\n```rust\n// [no](link)\n```\n");
        assert_eq!(page.links, ["b.md#c", "d.svg", "f.md"]);
        assert_eq!(page.code, ["[no](link)"]);
        assert_eq!(page.programs, ["// [no](link)\n"]);
    }

    #[test]
    fn broken_links_are_reported() {
        let root = std::env::temp_dir();
        let pages: BTreeMap<PathBuf, Page> = [
            ("README.md", "[gone](no-such-page.md) [web](https://example.org) [head](#here)\n# Here"),
            ("no-such-book/a.md", "[up](../README.md#here) [b](b.md) [c](#c)"),
        ]
        .map(|(path, text)| (PathBuf::from(path), page(text)))
        .into();
        let faults = broken(&root.join("no-such-root"), &pages, Path::new("no-such-book"));
        assert_eq!(faults.len(), 5, "{faults:?}"); // without files, all but the one to the web
        assert!(faults[0].contains("no-such-page.md") && faults[0].contains("does not exist"), "{faults:?}");
        assert_eq!(resolve(Path::new("docs/a.md"), "../bench/README.md"), Path::new("bench/README.md"));
    }
}
