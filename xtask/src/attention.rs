//! The table of attention in `docs/kernels.md`: memory and traffic of its implementations, compiled for GPUs and TPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

const OPEN: &str = "<!-- table, written by `cargo xtask attention` -->\n";
const CLOSE: &str = "<!-- end of table -->";

/// Compiles the implementations and writes the table.
pub fn run(root: &Path) -> Result<(), String> {
    let page = root.join("docs/kernels.md");
    let text = crate::read(&page)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("attention");
    // The kernels of JAX for TPUs are exported first, because the test compares other implementations with them.
    for kernel in ["flash", "splash"] {
        let out = crate::fuzz::path(&folder.join(kernel));
        let sizes = ["--batch", "8", "--length", "4096", "--heads", "32", "--depth", "128", "--causal"];
        crate::fuzz::python(root, "tools/export/attention.py", &[&[kernel, &out][..], &sizes[..]].concat())?;
    }
    let out = folder.join("table.md");
    let status = Command::new(env!("CARGO"))
        .args(["test", "--package", "shardax-system-tests", "--test", "accelerators", "--"])
        .args(["--ignored", "--exact", "attention_table", "--nocapture"])
        .env("SHARDAX_TEST_ATTENTION_OUT", &out)
        .envs(crate::accelerators::variables()?)
        .current_dir(root)
        .status()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !status.success() {
        return Err("attention_table failed".to_owned());
    }
    let text = with_table(&text, &crate::read(&out)?)?;
    std::fs::write(&page, text).map_err(|e| format!("{}: {e}", page.display()))
}

/// The page with another table.
fn with_table(page: &str, table: &str) -> Result<String, String> {
    let (before, rest) = page.split_once(OPEN).ok_or("docs/kernels.md has no marker for the table")?;
    let (_, after) = rest.split_once(CLOSE).ok_or("docs/kernels.md: the table has no end marker")?;
    Ok(format!("{before}{OPEN}\n{table}\n{CLOSE}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_takes_the_place_of_the_old_one() {
        let page = format!("a\n\n{OPEN}\n| old |\n\n{CLOSE}\n\nb\n");
        assert_eq!(with_table(&page, "| new |\n"), Ok(format!("a\n\n{OPEN}\n| new |\n\n{CLOSE}\n\nb\n")));
        assert!(with_table("no table", "").is_err_and(|why| why.contains("no marker")));
    }
}
