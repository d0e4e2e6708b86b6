//! The pages: every row with what shows it.

use std::fmt::Write as _;

use crate::rows::{Case, Section, SpecRow};
use crate::tests::Found;

/// A page, and how many of its rows a test shows.
pub struct Page {
    pub text: String,
    pub rows: usize,
    pub proved: usize,
}

pub const NOTE: &str = "Written by `cargo xtask docs`; do not edit.";

/// The page of what shardax is asked to do.
pub fn spec(sections: &[Section<SpecRow>], found: &Found) -> Result<Page, String> {
    let rows = sections.iter().map(|s| s.rows.len()).sum();
    if let Some(odd) = found.rows.keys().find(|n| !(1..=rows).contains(*n)) {
        return Err(format!("{} names row {odd}, but there are {rows}", found.rows[odd].join(", ")));
    }
    let mut body = String::new();
    for section in sections {
        let _ =
            write!(body, "\n## {}\n\n| row | kind | what | state | shown by |\n|--:|---|---|---|---|\n", section.title);
        for row in &section.rows {
            let places = found.rows.get(&row.number).map(Vec::as_slice).unwrap_or_default();
            let state = if places.is_empty() { "open" } else { "proved" };
            let places: Vec<String> = places.iter().map(|p| format!("`{p}`")).collect();
            let _ =
                writeln!(body, "| {} | {} | {} | {state} | {} |", row.number, row.kind, row.text, places.join(", "));
        }
    }
    let proved = found.rows.len();
    let text = format!(
        "# What shardax is asked to do\n\n{NOTE} The rows are those of [spec-rows.txt](spec-rows.txt); a row is proved \
         when a test carries its number, as `// SPEC 62`.\n\n{proved} of {rows} rows are proved.\n{body}"
    );
    Ok(Page { text, rows, proved })
}

/// The page of JAX's own cases.
pub fn scorecard(sections: &[Section<Case>], found: &Found) -> Page {
    let (mut rows, mut proved) = (0, 0);
    let mut body = String::new();
    for section in sections {
        let _ = write!(
            body,
            "\n## {}\n\n| source | case | what it shows | state | test |\n|---|---|---|---|---|\n",
            section.title
        );
        for case in &section.rows {
            let test = test_of(case, found);
            rows += 1;
            proved += test.is_some() as usize;
            let state = if test.is_some() { "proved" } else { "open" };
            let test = test.map(|(place, name)| format!("`{place}: {name}`")).unwrap_or_default();
            let _ = writeln!(body, "| {} | {} | {} | {state} | {test} |", case.source, case.name, case.text);
        }
    }
    let text = format!(
        "# JAX's own cases\n\n{NOTE} Each row is a case of JAX's tests of `pmap` (P), `shard_map` (S) or several \
         processes (M), written anew for shardax under the same name in snake case: [scorecard-rows.txt](scorecard-rows.txt) \
         says what each shows. `†`: upstream runs it on GPU or TPU alone.\n\n{proved} of {rows} cases are there.\n{body}"
    );
    Page { text, rows, proved }
}

/// The test of the same name; cases of several processes are looked for among tests of those alone.
fn test_of<'a>(case: &Case, found: &'a Found) -> Option<&'a (String, String)> {
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let wanted = plain(&case.name);
    let several = |place: &str| place.contains("process") || place.contains("distributed");
    found.tests.iter().find(|(place, name)| plain(name) == wanted && several(place) == case.source.starts_with("M:"))
}
