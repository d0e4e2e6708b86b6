//! Features of dependencies, which Cargo enables for all packages that it builds together.

use std::collections::BTreeMap;
use std::process::Command;

/// The dependencies that Cargo builds with `options`, with their features.
fn features(options: &[&str]) -> BTreeMap<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(crate::root())
        .args([
            "tree",
            "--locked",
            "--edges",
            "normal,build,dev",
            "--prefix",
            "none",
            "--no-dedupe",
            "--format",
            "{p}|{f}",
        ])
        .args(options)
        .output()
        .expect("Cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.split_once('|'))
        .map(|(package, features)| (package.to_owned(), features.to_owned()))
        .collect()
}

// Cargo builds a dependency again if it has other features, and everything that depends on it: `shardax` too.
#[test]
fn default_members_enable_the_features_of_the_workspace() {
    let workspace = features(&["--workspace"]);
    let others: Vec<String> = features(&[])
        .into_iter()
        .filter(|(package, features)| workspace.get(package).is_some_and(|all| all != features))
        .map(|(package, features)| {
            format!("{package} has {features:?}, and {:?} in the workspace", workspace[&package])
        })
        .collect();
    assert!(others.is_empty(), "enable these features in examples/book/Cargo.toml:\n{}", others.join("\n"));
}
