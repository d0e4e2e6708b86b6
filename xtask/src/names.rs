//! `docs/where-is-x.md`: names of JAX, Flax, Optax, Orbax and CLU with their counterparts, from `docs/where-is-x.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::read;
use crate::tests::sources;

/// A heading with its rows.
struct Section {
    title: String,
    rows: Vec<Row>,
}

/// A name with its counterparts, or the reason why there is none.
struct Row {
    name: String,
    found: Result<Vec<Item>, String>,
    /// The counterpart lacks an option that programs use, which the remark names.
    partly: bool,
    remark: String,
}

/// A path to import, optionally with a method, and the options that it has.
struct Item {
    path: String,
    method: Option<String>,
    options: Vec<String>,
}

/// Renders the page. Fails if a method does not exist. The program at the end of the page imports every path.
pub fn page(root: &Path, rows: &str) -> Result<String, String> {
    let sections = sections(rows)?;
    let items: Vec<&Item> =
        sections.iter().flat_map(|section| &section.rows).filter_map(|row| row.found.as_ref().ok()).flatten().collect();
    methods_exist(root, items.iter().copied())?;
    // The page has one table per section.
    let mut body = String::new();
    for section in &sections {
        let _ = write!(body, "\n## {}\n\n| name | here |\n|---|---|\n", section.title);
        for row in &section.rows {
            let counterpart = match &row.found {
                Ok(items) => items.iter().map(Item::text).collect::<Vec<_>>().join(", "),
                Err(why) => format!("no counterpart: {why}"),
            };
            let remark = match (row.partly, row.remark.as_str()) {
                (true, missing) => format!("; missing: {missing}"),
                (false, "") => String::new(),
                (false, remark) => format!(" ({remark})"),
            };
            let _ = writeln!(body, "| `{}` | {counterpart}{remark} |", row.name);
        }
    }
    let mut imports: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for item in items {
        if let Some((module, name)) = item.path.rsplit_once("::") {
            let names = imports.entry(module).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let mut program = String::new();
    for (at, (module, names)) in imports.iter().enumerate() {
        let _ = writeln!(program, "mod names_{at} {{\n    use {module}::{{");
        for name in names {
            let _ = writeln!(program, "        {name},");
        }
        let _ = writeln!(program, "    }};\n}}");
    }
    Ok(format!(
        "{HEAD}{body}\n## As a program\n\nThis program imports every path above; `cargo test` compiles it.\n\n\
         <details>\n<summary>The program</summary>\n\n\
         ```rust\n#![allow(unused_imports)]\n{program}```\n\n</details>\n"
    ))
}

const HEAD: &str = "# Where is X?

Look up a name of JAX, Flax NNX, Optax, Orbax or CLU and find its counterpart in shardax. Most names are in a prelude:
`use shardax::prelude::*;` for arrays and transformations, `use shardax_nn::prelude::*;` for these, layers and optimizers.

Written by `cargo xtask docs` from [where-is-x.txt](where-is-x.txt); do not edit.
";

/// Parses the list: section titles are in brackets, comments begin with `#`.
fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut out: Vec<Section> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            out.push(Section { title: title.to_owned(), rows: Vec::new() });
            continue;
        }
        let parsed = row(line).ok_or_else(|| format!("where-is-x.txt: line {}: cannot parse {line:?}", i + 1))?;
        let section = out.last_mut().ok_or_else(|| format!("where-is-x.txt: line {}: no section yet", i + 1))?;
        section.rows.push(parsed);
    }
    Ok(out)
}

fn row(line: &str) -> Option<Row> {
    let mark = [" = ", " ~ ", " - "].into_iter().min_by_key(|mark| line.find(mark).unwrap_or(usize::MAX))?;
    let (there, partly) = (mark != " - ", mark == " ~ ");
    let (head, rest) = line.split_once(mark)?;
    // Counts of uses in public code, such as 7/23/35, are not shown on the page.
    let name = head.rsplit_once(' ').filter(|(_, last)| is_count_of_uses(last)).map_or(head, |(name, _)| name);
    let (items, remark) = match (there, rest.split_once(" (")) {
        (true, Some((items, remark))) => (items, remark.strip_suffix(')')?),
        _ => (rest, ""),
    };
    let counterparts = if there { Ok(items.split(", ").map(Item::parse).collect()) } else { Err(rest.to_owned()) };
    // A partial counterpart must say what is missing.
    (!partly || !remark.is_empty()).then(|| Row {
        name: name.to_owned(),
        found: counterparts,
        partly,
        remark: remark.to_owned(),
    })
}

fn is_count_of_uses(text: &str) -> bool {
    text.contains('/') && text.chars().all(|c| c.is_ascii_digit() || c == '/')
}

impl Item {
    /// Parses an item such as `shardax::jit#lower[static_argnums|donate_argnums]`.
    fn parse(text: &str) -> Item {
        let (text, options) = text.strip_suffix(']').and_then(|text| text.split_once('[')).unwrap_or((text, ""));
        let (path, method) = text.split_once('#').map_or((text, None), |(path, method)| (path, Some(method)));
        let options = options.split('|').filter(|option| !option.is_empty()).map(str::to_owned).collect();
        Item { path: path.to_owned(), method: method.map(str::to_owned), options }
    }

    fn text(&self) -> String {
        let name = match &self.method {
            Some(method) => format!("`{}::{method}`", self.path),
            None => format!("`{}`", self.path),
        };
        let options: Vec<String> = self.options.iter().map(|option| format!("`{option}`")).collect();
        if options.is_empty() { name } else { format!("{name} with {}", options.join(", ")) }
    }
}

/// Fails if a method is not a function in the crate of its type, or an option neither a function nor a field there. They
/// cannot be imported, so the program skips them.
/// Returns true if the sources of a crate define a function of this name.
fn has_function(sources: &str, name: &str) -> bool {
    ["(", "<"].iter().any(|open| sources.contains(&format!("fn {name}{open}")))
}

fn methods_exist<'a>(root: &Path, items: impl Iterator<Item = &'a Item>) -> Result<(), String> {
    let mut code: BTreeMap<String, String> = BTreeMap::new();
    for path in sources(root)? {
        let inside = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if let Some((krate, _)) = inside.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")) {
            code.entry(krate.replace('-', "_")).or_default().push_str(&read(&path)?);
        }
    }
    for item in items {
        let krate = item.path.split("::").next().unwrap_or_default();
        let text = code.get(krate).map(String::as_str).unwrap_or_default();
        // An option is a field, or the setter that `options!` declares.
        let wrong_method = item.method.iter().find(|method| !has_function(text, method));
        let mut options = item.options.iter();
        let wrong_option =
            options.find(|option| !has_function(text, option) && !text.contains(&format!(" {option}: ")));
        if let Some(name) = wrong_method.or(wrong_option) {
            return Err(format!("where-is-x.txt: {} has no {name}", item.path));
        }
    }
    Ok(())
}
