//! The floors of `src` point down: a file uses its own floor and those below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders from the ground up.
const FLOORS: [&[&str]; 8] = [
    &["base"],
    &["sharding"],
    &["core"],
    &["interpret"],
    &["ops"],
    &["backend"],
    &["runtime"],
    // What users call.
    &["transform", "spmd", "linalg", "random", "nn", "fft", "image", "scipy", "export", "experimental"],
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The module path of each file: `["core", "program", "trace"]`.
fn modules() -> BTreeMap<Vec<String>, PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("the folder can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut files = Vec::new();
    walk(&source(), &mut files);
    fn imports_of(file: PathBuf) -> (Vec<String>, PathBuf) {
        let inside = file.strip_prefix(source()).expect("below src").with_extension("");
        let mut module: Vec<String> = inside.iter().map(|s| s.to_string_lossy().into_owned()).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
            module.pop();
        }
        (module, file)
    }
    files.into_iter().map(imports_of).collect()
}

fn floor(module: &[String]) -> usize {
    let Some(first) = module.first() else { return usize::MAX };
    let floor = FLOORS.iter().position(|floor| floor.contains(&first.as_str()));
    floor.unwrap_or_else(|| panic!("the folder {first} stands on no floor: add it to FLOORS in {}", file!()))
}

/// The code of a file, without comments and tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a source file");
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

/// The paths that begin with `crate` or `super`, with lists in braces written out.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut paths_found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let inside = code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "_:$".contains(c));
            if !inside {
                expand(&code[at..], Vec::new(), &mut paths_found);
            }
        }
    }
    paths_found
}

/// Reads one path, or a tree of paths, and returns the remaining text.
fn expand<'a>(mut text: &'a str, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    loop {
        text = text.trim_start();
        if let Some(mut list) = text.strip_prefix('{') {
            loop {
                list = list.trim_start();
                if let Some(rest) = list.strip_prefix('}') {
                    return rest;
                }
                let remaining = expand(list, path.clone(), found).trim_start();
                // This is not a path, so the text continues as code.
                if remaining.len() == list.len() {
                    return remaining;
                }
                // `as` renames the item.
                let next = if remaining.starts_with("as ") {
                    remaining.find([',', '}']).unwrap_or(remaining.len())
                } else {
                    0
                };
                list = remaining[next..].strip_prefix(',').unwrap_or(&remaining[next..]);
            }
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        path.push(text[..end].to_owned());
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) if rest.starts_with(|c: char| c.is_alphabetic() || c == '{' || c == '_') => text = rest,
            _ => {
                found.push(path);
                return text;
            }
        }
    }
}

/// The arrows from file to file.
fn arrows() -> BTreeSet<(Vec<String>, Vec<String>)> {
    let modules = modules();
    let mut arrows = BTreeSet::new();
    for (module, file) in &modules {
        for path in paths(&code(file)) {
            let up = path.iter().take_while(|s| *s == "super").count();
            let base: Vec<String> = match up {
                0 => Vec::new(),
                n => module[..module.len().saturating_sub(n)].to_vec(),
            };
            let remaining = path.iter().skip(up.max(1)).cloned();
            let mut target: Vec<String> = base.into_iter().chain(remaining).collect();
            // The root re-exports the modules of `base`.
            let of_base: Vec<String> = ["base".to_owned()].into_iter().chain(target.first().cloned()).collect();
            if modules.contains_key(&of_base) {
                target.insert(0, "base".to_owned());
            }
            while !modules.contains_key(&target) {
                target.pop();
            }
            if target != *module {
                arrows.insert((module.clone(), target));
            }
        }
    }
    arrows
}

#[test]
fn arrows_point_down() {
    let arrows = arrows();
    assert!(arrows.len() > 800, "only {} arrows were found", arrows.len());
    let up: Vec<String> = arrows
        .iter()
        .filter(|(from, to)| !from.is_empty() && floor(to) > floor(from))
        .map(|(from, to)| {
            format!("{} uses {}", from.join("::"), if to.is_empty() { "the root".into() } else { to.join("::") })
        })
        .collect();
    assert!(up.is_empty(), "arrows that point up:\n{}\nmove what is used down, or what uses it up", up.join("\n"));
}

/// The file of `core` and `ops` that knows platforms: the definition of their names.
const KNOW_PLATFORMS: [&str; 1] = ["core::lower::platform"];

fn is_below_backend(module: &[String]) -> bool {
    matches!(module.first().map(String::as_str), Some("core" | "ops"))
}

#[test]
fn platforms_are_known_in_backend_alone() {
    let words = ["Platform::", ".on_cpu(", "fn on_cpu(", "\"cpu-kernels\"", "\"decompositions\""];
    let violations: Vec<String> = modules()
        .iter()
        .filter(|(module, _)| is_below_backend(module))
        .filter(|(_, file)| words.iter().any(|word| code(file).contains(word)))
        .map(|(module, _)| module.join("::"))
        .collect();
    assert_eq!(
        violations, KNOW_PLATFORMS,
        "rules for platforms belong to src/backend, and defects to backend/quirks.rs"
    );
}

/// Returns true if a module is in this folder of `ops`.
fn is_in_folder(module: &[String], folder: &str) -> bool {
    module.len() > 1 && module[0] == "ops" && module[1] == folder
}

/// The files of `ops`, outside of the folder `to`, that use it, as `folder::file`.
fn users(arrows: &BTreeSet<(Vec<String>, Vec<String>)>, to: &str) -> BTreeSet<String> {
    let uses = |(a, b): &&(Vec<String>, Vec<String>)| {
        a.len() > 1 && a[0] == "ops" && !is_in_folder(a, to) && is_in_folder(b, to)
    };
    arrows.iter().filter(uses).map(|(a, _)| a[1..].join("::")).collect()
}

/// A thread local with a destructor is gone while later destructors of the thread run, and an access then aborts the
/// process. `base::local` has cells without one.
#[test]
fn thread_locals_with_destructors_are_accessed_by_try_with() {
    let mut panicking = Vec::new();
    for (module, file) in modules() {
        let code = code(&file);
        let locals =
            code.lines().filter_map(|line| line.trim_start().strip_prefix("static ")?.split_once(": RefCell<"));
        for (name, _) in locals {
            let access = format!("{name}.");
            if code.split(&access).skip(1).any(|method| !method.starts_with("try_with")) {
                panicking.push(format!("{}: {name}", module.join("::")));
            }
        }
    }
    assert!(panicking.is_empty(), "use `local::Lasting`, or `try_with` everywhere: {panicking:#?}");
}

#[test]
fn numpy_is_above_the_rest_of_ops() {
    let users = users(&arrows(), "numpy");
    assert!(
        users.is_empty(),
        "files of ops that use ops/numpy, which is above them; use `lax`, `elementwise`, `promotion`, `constants` or \
         `select`: {users:#?}"
    );
}

#[test]
fn few_rules_of_primitives_are_loops() {
    // Loops are functions that trace their bodies, so they are above the primitives: these rules iterate.
    let users: Vec<String> =
        users(&arrows(), "control_flow").into_iter().filter(|user| user.starts_with("primitive")).collect();
    let loops = [
        "primitive::attention::blockwise",
        "primitive::cumulative",
        "primitive::custom_vmap",
        "primitive::lu",
        "primitive::special",
        "primitive::svd",
    ];
    assert_eq!(users, loops, "the primitives whose rules use ops/control_flow");
}

#[test]
fn the_reader_of_paths_sees_lists_and_nesting() {
    let text = "use crate::a::{self, b::{C, d}, E as F};\nlet x = super::g::h(1); $crate::no::yes()";
    let found_paths: Vec<String> = paths(text).iter().map(|p| p.join("::")).collect();
    let want = ["crate::a::self", "crate::a::b::C", "crate::a::b::d", "crate::a::E", "super::g::h"];
    assert_eq!(found_paths, want);
}
