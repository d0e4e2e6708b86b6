//! The tests of the workspace: functions marked `#[test]`, and documentation examples that must not compile.

use std::path::{Path, PathBuf};

use crate::read;

/// A test: its file, such as `shardax/errors/spmd`, and its name.
pub type Test = (String, String);

/// The sorted Rust sources below these folders.
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
    below(root, &["crates", "examples", "bench", "xtask"])
}

/// The tests of all sources below `crates` and `examples`.
pub fn find(root: &Path) -> Result<Vec<Test>, String> {
    let mut tests = Vec::new();
    for path in below(root, &["crates", "examples"])? {
        let inside = path.strip_prefix(root).unwrap_or(&path);
        scan(&read(&path)?, &place(inside), &mut tests);
    }
    Ok(tests)
}

/// The sorted files of a folder with this extension.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == extension));
    paths.sort();
    Ok(paths)
}

fn list(folder: &Path, out: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                list(&path, out)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    Ok(())
}

/// Shortens `crates/shardax/tests/errors/spmd.rs` to `shardax/errors/spmd`.
fn place(path: &Path) -> String {
    let parts: Vec<String> = path.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    let names = parts.iter().filter(|p| !matches!(p.as_str(), "crates" | "tests" | "src" | "main"));
    names.cloned().collect::<Vec<_>>().join("/")
}

fn scan(text: &str, place: &str, found: &mut Vec<Test>) {
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        if (line.trim() == "#[test]" || line.trim() == "/// ```compile_fail")
            && let Some(name) = lines[i + 1..].iter().find_map(|l| function(l))
        {
            found.push((place.to_owned(), name.to_owned()));
        }
    }
}

/// The name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) ")).unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn marked_functions_are_tests() {
        let text = "#[test]\n#[ignore]\nfn a() {}\nfn b() {}\n/// ```compile_fail\n/// ```\npub fn c() {}\n";
        let mut tests = Vec::new();
        scan(text, "f", &mut tests);
        assert_eq!(tests, [("f".to_owned(), "a".to_owned()), ("f".to_owned(), "c".to_owned())]);
    }

    #[test]
    fn files_have_short_names() {
        assert_eq!(place(Path::new("crates/shardax/tests/errors/spmd.rs")), "shardax/errors/spmd");
    }
}
