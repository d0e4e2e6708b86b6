//! The page of names of flax.nnx, Optax, Orbax and CLU: what stands for each, or why nothing does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::pages::NOTE;
use crate::read;
use crate::rows::sections;
use crate::tests::sources;

/// A name, and what stands for it.
struct Row {
    name: String,
    uses: String,
    found: Result<Vec<Item>, String>,
    remark: String,
}

/// A path that can be imported, and a method of it.
struct Item {
    path: String,
    method: Option<String>,
}

/// The page. Fails where a method is nowhere; paths are imported by the program at the page's end.
pub fn page(root: &Path, rows: &str) -> Result<String, String> {
    let sections = sections(rows, row)?;
    let rows = || sections.iter().flat_map(|section| &section.rows);
    let items = || rows().filter_map(|row| row.found.as_ref().ok()).flatten();
    methods_exist(root, items())?;
    let mut body = String::new();
    for section in &sections {
        let _ = write!(body, "\n## {}\n\n| name | use | here |\n|---|---|---|\n", section.title);
        for row in &section.rows {
            let here = match &row.found {
                Ok(items) => items.iter().map(Item::text).collect::<Vec<_>>().join(", "),
                Err(why) => format!("left out: {why}"),
            };
            let remark = if row.remark.is_empty() { String::new() } else { format!(" ({})", row.remark) };
            let _ = writeln!(body, "| `{}` | {} | {here}{remark} |", row.name, row.uses);
        }
    }
    let mut imports: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for item in items() {
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
    let (all, there) = (rows().count(), rows().filter(|row| row.found.is_ok()).count());
    Ok(format!(
        "# Names of JAX, Flax, Optax, Orbax and CLU\n\n{NOTE} The rows are those of [coverage-rows.txt](coverage-rows.txt): every \
         name of `flax.nnx` (0.12.8), `optax` (0.2.8), checkpoints of `orbax` and metrics of `clu` that 39 public \
         codebases use, and others; the use is repositories/files/uses. Of JAX itself it has what a port of training code meets first.\n\n{there} of {all} are there.\n{body}\n## As a program\n\nEach of them can be \
         imported:\n\n```rust\n# #![allow(unused_imports)]\n{program}```\n"
    ))
}

fn row(line: &str) -> Option<Row> {
    let place = |mark: &str| line.find(mark).unwrap_or(usize::MAX);
    let there = place(" = ") < place(" - ");
    let (head, rest) = line.split_once(if there { " = " } else { " - " })?;
    let is_use = |last: &str| last.contains('/') && last.chars().all(|c| c.is_ascii_digit() || c == '/');
    let (name, uses) = head.rsplit_once(' ').filter(|(_, last)| is_use(last)).unwrap_or((head, ""));
    let (items, remark) = match (there, rest.split_once(" (")) {
        (true, Some((items, remark))) => (items, remark.strip_suffix(')')?),
        _ => (rest, ""),
    };
    let item = |text: &str| {
        let (path, method) = text.split_once('#').map_or((text, None), |(path, method)| (path, Some(method)));
        Item { path: path.to_owned(), method: method.map(str::to_owned) }
    };
    let found = if there { Ok(items.split(", ").map(item).collect()) } else { Err(rest.to_owned()) };
    Some(Row { name: name.to_owned(), uses: uses.to_owned(), found, remark: remark.to_owned() })
}

impl Item {
    fn text(&self) -> String {
        match &self.method {
            Some(method) => format!("`{}::{method}`", self.path),
            None => format!("`{}`", self.path),
        }
    }
}

/// Methods cannot be imported: each must be a function in the crate of its type.
fn methods_exist<'a>(root: &Path, items: impl Iterator<Item = &'a Item>) -> Result<(), String> {
    let mut code: BTreeMap<String, String> = BTreeMap::new();
    for path in sources(root)? {
        let inside = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if let Some((krate, _)) = inside.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")) {
            code.entry(krate.replace('-', "_")).or_default().push_str(&read(&path)?);
        }
    }
    for item in items {
        let Some(method) = &item.method else { continue };
        let krate = item.path.split("::").next().unwrap_or_default();
        let text = code.get(krate).map(String::as_str).unwrap_or_default();
        if !["(", "<"].iter().any(|open| text.contains(&format!("fn {method}{open}"))) {
            return Err(format!("coverage-rows.txt: {} has no method {method}", item.path));
        }
    }
    Ok(())
}
