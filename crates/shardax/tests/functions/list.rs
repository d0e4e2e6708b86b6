//! The public functions on arrays, read from the sources: `numpy::sum`, `Array::sum`, `At::set`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The folders or files whose functions compute, by their name or their path, and the name that they have here.
const MODULES: [(&str, &str); 17] = [
    ("numpy", "numpy"),
    ("ops/elementwise", "numpy"),
    ("ops/constants", "numpy"),
    ("select", "numpy"),
    ("lax", "lax"),
    ("linalg", "linalg"),
    ("nn", "nn"),
    ("random", "random"),
    ("control_flow", "control_flow"),
    ("collective", "spmd"),
    ("spmd", "spmd"),
    ("array", "array"),
    ("index", "array"),
    ("fft", "fft"),
    ("image", "image"),
    ("special", "special"),
    ("norm", "norm"),
];

/// The types whose methods compute.
const TYPES: [&str; 6] = ["Array", "At", "Over", "Pool", "Initializer", "ScanOptions"];

pub fn public_functions() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    for path in sources(&src) {
        let inside = path.strip_prefix(&src).unwrap_or(&path).with_extension("");
        let by_name = || inside.iter().find_map(|part| MODULES.iter().find(|(of, _)| part == *of));
        let by_path = MODULES.iter().find(|(of, _)| of.contains('/') && inside.starts_with(of));
        let module = by_path.or_else(by_name);
        // Methods that exist for their compile error.
        if let Some((_, module)) = module.filter(|_| !inside.iter().any(|part| part == "hints")) {
            let text = std::fs::read_to_string(&path).expect("a source");
            files.push((*module, text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()));
        }
    }
    // A macro may be of another file.
    let mut macros = Macros::new();
    files.iter().for_each(|(_, text)| collect_macros(&lines_of(text), &mut macros));
    let mut out = BTreeSet::new();
    files.iter().for_each(|(module, text)| scan(&lines_of(text), module, &macros, &mut out));
    out
}

/// The types whose methods, and the functions, that a call of each macro declares.
type Macros<'a> = BTreeMap<&'a str, Vec<Option<&'a str>>>;

/// Without comments: programs in those declare nothing.
fn lines_of(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect()
}

fn collect_macros<'a>(lines: &[&'a str], macros: &mut Macros<'a>) {
    for i in 0..lines.len() {
        if let Some(name) = lines[i].strip_prefix("macro_rules! ") {
            let name = name.split([' ', '{']).next().unwrap_or_default();
            let declared = declared(block_from(lines, i)).into_iter().filter(|(f, _)| f.starts_with('$'));
            macros.insert(name, declared.map(|(_, owner)| owner).collect());
        }
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The names that the reference cases' functions call: `a::name`, `.name` and `name(`.
pub fn called_by_golden_cases() -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden_support")) {
        let text = std::fs::read_to_string(&path).expect("a source");
        for line in text.lines().map(|line| line.split("//").next().unwrap_or_default()) {
            let mut remaining = line;
            while let Some(start) = remaining.find(is_name_char) {
                let before = remaining[..start].chars().next_back();
                let word: String = remaining[start..].chars().take_while(|c| is_name_char(*c)).collect();
                let after = remaining[start + word.len()..].chars().next();
                if matches!(before, Some(':' | '.')) || after == Some('(') {
                    out.insert(word.clone());
                }
                remaining = &remaining[start + word.len()..];
                // The next word depends on the words before it.
                if remaining.is_empty() {
                    break;
                }
            }
        }
    }
    out
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => out.extend(sources(&path)),
            false if path.extension().is_some_and(|e| e == "rs") => out.push(path),
            false => {}
        }
    }
    out
}

/// Adds the functions that a source declares, by itself or through macros.
fn scan<'a>(lines: &[&'a str], module: &str, others: &Macros<'a>, out: &mut BTreeSet<String>) {
    let mut macros = others.clone();
    collect_macros(lines, &mut macros);
    let mut i = 0;
    while i < lines.len() {
        let block = block_from(lines, i);
        let head = lines[i];
        let called = head.split_once('!').filter(|(name, _)| macros.contains_key(name));
        if let Some((name, _)) = called {
            for function in entries(block) {
                for owner in &macros[name] {
                    add(&function, *owner, module, out);
                }
            }
        } else if !head.starts_with("macro_rules! ") {
            for (function, owner) in declared(block) {
                add(function, owner, module, out);
            }
        }
        i += block.len();
    }
}

fn add(function: &str, owner: Option<&str>, module: &str, out: &mut BTreeSet<String>) {
    match owner {
        None => out.insert(format!("{module}::{function}")),
        Some(owner) if TYPES.contains(&owner) => out.insert(format!("{owner}::{function}")),
        Some(_) => false,
    };
}

/// The lines of the item that begins at a line: up to its closing bracket, which stands where it does.
fn block_from<'a, 'b>(lines: &'a [&'b str], start: usize) -> &'a [&'b str] {
    let first = lines[start];
    if !first.ends_with(['{', '(']) || first.starts_with([' ', '#']) {
        return &lines[start..start + 1];
    }
    let end =
        lines[start..].iter().skip(1).position(|line| line.starts_with(['}', ')']) && !line.ends_with(['{', '(']));
    &lines[start..end.map_or(lines.len(), |end| start + end + 2)]
}

/// The public functions of an item, and the type whose methods they are.
fn declared<'a>(block: &[&'a str]) -> Vec<(&'a str, Option<&'a str>)> {
    let mut owner: Option<(&str, usize)> = None;
    let mut out = Vec::new();
    for line in block {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim_start();
        if owner.is_some_and(|(_, at)| indent <= at && text.starts_with('}')) {
            owner = None;
        }
        if text.starts_with("impl") && !text.contains(" for ") {
            let remaining = text.trim_start_matches("impl").trim_start();
            let remaining = if remaining.starts_with('<') {
                remaining.split_once("> ").map_or("", |(_, remaining)| remaining)
            } else {
                remaining
            };
            owner = Some((remaining.split(['<', ' ', '{']).next().unwrap_or_default(), indent));
        }
        if let Some(name) = text.strip_prefix("pub fn ") {
            out.push((name.split(['(', '<']).next().unwrap_or_default(), owner.map(|(owner, _)| owner)));
        }
    }
    out
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The names that begin the entries of a macro's call, which end with `;`; all words, where there is no `;`.
fn entries(block: &[&str]) -> Vec<String> {
    let text = block.join("\n");
    let inside = text.split_once(['{', '(']).map_or("", |(_, rest)| rest);
    let inside = inside.trim_end().trim_end_matches(';').trim_end_matches(['}', ')']);
    let mut out = Vec::new();
    let mut depth = 0i32;
    let mut at_start = true;
    let plain = !inside.contains(';');
    for token in inside.split_inclusive(|c: char| !is_word_char(c)) {
        let name: String = token.chars().filter(|c| is_word_char(*c)).collect();
        if !name.is_empty() && at_start && depth == 0 {
            out.push(name.clone());
        }
        let end = token.chars().last().filter(|c| !is_word_char(*c));
        match end {
            Some('{' | '(' | '[') => {
                depth += 1;
                at_start = false;
            }
            Some('}' | ')' | ']') => depth -= 1,
            Some(';') if depth == 0 => at_start = true,
            Some(c) if !c.is_whitespace() => at_start = false,
            _ => {}
        }
        at_start |= plain;
    }
    // Arguments of a macro's entries that are not names: `None`, `false`.
    out.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()) && !matches!(name.as_str(), "true" | "false"));
    out
}
