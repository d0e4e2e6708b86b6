//! Names of tests on pages, and the counts in `docs/testing.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::tests::Test;

const OPEN: &str = "<!-- counts, written by `cargo xtask docs` -->\n";
const CLOSE: &str = "<!-- end of counts -->";

/// Renders `docs/testing.md` with current counts.
pub fn page(root: &Path, text: &str, found: &[Test]) -> Result<String, String> {
    let (before, rest) = text.split_once(OPEN).ok_or("docs/testing.md has no place for counts")?;
    let (_, after) = rest.split_once(CLOSE).ok_or("docs/testing.md: the counts have no end")?;
    Ok(format!("{before}{OPEN}{}{CLOSE}{after}", counts(root, found)?))
}

/// The names of missing tests on a page, one line each.
pub fn unknown_tests(page: &str, text: &str, found: &[Test]) -> Vec<String> {
    let unknown = named(text).filter(|(place, name)| !found.iter().any(|(p, n)| p == place && n == name));
    unknown.map(|(place, name)| format!("{page}: the test `{place}: {name}` does not exist")).collect()
}

/// The tests that a page names, such as `` `shardax/golden: promotion` ``.
fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let spans = text.split('`').skip(1).step_by(2);
    spans
        .filter_map(|span| span.split_once(": "))
        .filter(|(place, name)| place.contains('/') && !place.contains(char::is_whitespace) && !name.contains(' '))
}

fn row(cells: Vec<String>) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn counts(root: &Path, found: &[Test]) -> Result<String, String> {
    let mut text = String::from("\n| crate | tests |\n|---|--:|\n");
    let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, _) in found {
        *crates.entry(place.split('/').next().unwrap_or(place)).or_default() += 1;
    }
    for (name, n) in &crates {
        let _ = writeln!(text, "| `{name}` | {n} |");
    }
    let tests = root.join("crates/shardax/tests");
    let (mut families, mut cases) = (0, 0);
    for path in crate::tests::files(&tests.join("golden"), "safetensors")? {
        families += 1;
        cases += names(&path)?.len();
    }
    let _ = writeln!(text, "\n{cases} reference cases in {families} families. Random programs by mode:\n");
    let mut modes: BTreeMap<String, usize> = BTreeMap::new();
    for name in names(&tests.join("fuzz/programs.safetensors"))? {
        let mode = name.rsplit_once('_').map_or(name.as_str(), |(mode, _)| mode);
        *modes.entry(mode.to_owned()).or_default() += 1;
    }
    // One column for each mode, and one for their sum.
    text += &row(modes.keys().cloned().chain(["all".to_owned()]).collect());
    text += &row(vec!["--:".to_owned(); modes.len() + 1]);
    let total: usize = modes.values().sum();
    text += &row(modes.values().chain([&total]).map(usize::to_string).collect());
    Ok(text + "\n")
}

/// The cases of a file of reference values: the keys of its `__metadata__`.
fn names(path: &Path) -> Result<Vec<String>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let length =
        u64::from_le_bytes(bytes.get(..8).and_then(|b| b.try_into().ok()).ok_or_else(|| not_reference_values(path))?)
            as usize;
    let header =
        String::from_utf8_lossy(bytes.get(8..8 + length).ok_or_else(|| not_reference_values(path))?).into_owned();
    let (_, metadata) = header.split_once("\"__metadata__\":{").ok_or_else(|| not_reference_values(path))?;
    // Keys and values alternate.
    let (mut strings, mut rest) = (Vec::new(), metadata);
    while let Some(text) = rest.trim_start_matches([',', ':', ' ']).strip_prefix('"') {
        let mut escaped = false;
        let end = text.find(|c| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let end = end.ok_or_else(|| not_reference_values(path))?;
        strings.push(text[..end].to_owned());
        rest = &text[end + 1..];
    }
    Ok(strings.into_iter().step_by(2).collect())
}

fn not_reference_values(path: &Path) -> String {
    format!("{}: not a file of reference values", path.display())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn pages_name_tests() {
        let text = "By `shardax/golden: promotion` and `a: b`, `x/y: two words`; `shardax-nn/golden: nn`.";
        let pairs: Vec<_> = named(text).collect();
        assert_eq!(pairs, [("shardax/golden", "promotion"), ("shardax-nn/golden", "nn")]);
    }
}
