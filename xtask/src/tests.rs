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

    /// The sources of the targets of a package that its manifest excludes from unit tests.
    fn sources_without_unit_tests(package: &Path) -> Result<Vec<PathBuf>, String> {
        let manifest = read(&package.join("Cargo.toml"))?;
        let value = |section: &str, key: &str| {
            let line = section.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|text| text.trim_matches('"').to_owned())
        };
        let mut sources = Vec::new();
        for section in manifest.split("\n[").filter(|section| section.contains("\ntest = false")) {
            let is_library = section.starts_with("lib]");
            let root = package.join(value(section, "path").unwrap_or("src/lib.rs".to_owned()));
            // The modules of a program are its own only where the package has no library.
            match root.parent() {
                Some(folder) if is_library || !package.join("src/lib.rs").exists() => list(folder, &mut sources)?,
                _ => sources.push(root),
            }
        }
        Ok(sources)
    }

    /// The modules of a package that its program `tests/units` compiles: files, and folders that begin with `mod.rs`.
    fn modules_of_units(package: &Path) -> Vec<PathBuf> {
        let text = read(&package.join("tests/units/main.rs")).unwrap_or_default();
        let paths = text.lines().filter_map(|line| line.strip_prefix("#[path = \"../../")?.strip_suffix("\"]"));
        paths.map(|path| package.join(path.strip_suffix("/mod.rs").unwrap_or(path))).collect()
    }

    #[test]
    fn targets_without_unit_tests_have_none() {
        let root = crate::root();
        let manifest = read(&root.join("Cargo.toml")).expect("the manifest of the workspace");
        let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("members");
        let (mut count, mut elsewhere) = (0, 0);
        for member in members.split(',').map(|name| root.join(name.trim().trim_matches('"'))) {
            let modules = modules_of_units(&member);
            for source in sources_without_unit_tests(&member).expect("sources") {
                let has_tests = read(&source).expect("a source").lines().any(|line| line.trim() == "#[test]");
                let is_elsewhere = modules.iter().any(|module| source.starts_with(module));
                assert!(!has_tests || is_elsewhere, "tests in {} never run", source.display());
                (count, elsewhere) = (count + 1, elsewhere + usize::from(has_tests));
            }
        }
        assert!(count > 10 && elsewhere > 2, "{count} sources, {elsewhere} with tests");
    }

    #[test]
    fn files_have_short_names() {
        assert_eq!(place(Path::new("crates/shardax/tests/errors/spmd.rs")), "shardax/errors/spmd");
    }
}
