//! Licences of all crates that are built in, checked against the list in `deny.toml`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::read;

/// Fails with the crates whose licence is not in the list.
pub fn run(root: &Path) -> Result<(), String> {
    let allowed = allowed(&read(&root.join("deny.toml"))?)?;
    let args = "tree --workspace --locked --all-features --target all --edges normal,build,dev --prefix none --format";
    let mut tree = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let tree = tree.args(args.split(' ')).arg("{p}|{l}").current_dir(root).output().map_err(|e| e.to_string())?;
    if !tree.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&tree.stderr)));
    }
    let text = String::from_utf8_lossy(&tree.stdout);
    // Cargo marks crates that it has already listed.
    let lines = text.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty());
    let crates: BTreeSet<&str> = lines.collect();
    let rejected: Vec<String> = crates
        .iter()
        .filter_map(|line| line.split_once('|'))
        .filter(|(_, licence)| !is_allowed(licence, &allowed))
        .map(|(name, licence)| format!("{name}: {licence:?} is not among the licences of deny.toml"))
        .collect();
    if !rejected.is_empty() {
        return Err(rejected.join("\n"));
    }
    println!("deny.toml allows the licences of all {} crates", crates.len());
    Ok(())
}

/// The list `allow` of `deny.toml`.
fn allowed(text: &str) -> Result<BTreeSet<String>, String> {
    let (_, list) = text.split_once("\nallow = [").ok_or("deny.toml has no list `allow`")?;
    let (list, _) = list.split_once(']').ok_or("the list `allow` of deny.toml has no end")?;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Returns true if a licence expression is allowed: one side of `OR` (or `/`), both sides of `AND`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.trim();
    if let Some((left, right)) = split_at_operator(expression, " OR ").or_else(|| split_at_operator(expression, "/")) {
        is_allowed(left, allowed) || is_allowed(right, allowed)
    } else if let Some((left, right)) = split_at_operator(expression, " AND ") {
        is_allowed(left, allowed) && is_allowed(right, allowed)
    } else if let Some(inner) = expression.strip_prefix('(').and_then(|e| e.strip_suffix(')')) {
        is_allowed(inner, allowed)
    } else {
        allowed.contains(expression)
    }
}

/// Splits an expression at the first operator that is not inside parentheses.
fn split_at_operator<'a>(expression: &'a str, operator: &str) -> Option<(&'a str, &'a str)> {
    let mut depth = 0;
    for (i, c) in expression.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 && expression[i..].starts_with(operator) {
            return Some((&expression[..i], &expression[i + operator.len()..]));
        }
    }
    None
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn expressions() {
        let allowed = allowed("[licenses]\nallow = [\"MIT\", \"Zlib\", \"Apache-2.0 WITH LLVM-exception\"]\n").unwrap();
        for yes in
            ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Zlib", "Apache-2.0 WITH LLVM-exception"]
        {
            assert!(is_allowed(yes, &allowed), "{yes}");
        }
        for no in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-3.0", "Apache-2.0", "MIT-0"] {
            assert!(!is_allowed(no, &allowed), "{no}");
        }
    }
}
