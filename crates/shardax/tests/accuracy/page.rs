//! The table of docs/accuracy.md.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::sweep::Worst;
use super::values::folder;

/// A function, and its errors in float32 and float64, of itself and of its first and second derivatives.
pub type Row<'a> = (&'a str, [[Option<Worst>; 3]; 2]);

const BEGIN: &str = "<!-- table, written by SHARDAX_TEST_ACCURACY=write -->";
const END: &str = "<!-- end of table -->";

/// Replaces the table.
pub fn write(rows: &[Row<'_>]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/accuracy.md");
    let text = std::fs::read_to_string(&path).expect("docs/accuracy.md");
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the table");
    let (_, after) = rest.split_once(END).expect("the end of the table");
    let jax = std::fs::read_to_string(folder().join("jax.txt")).expect("JAX's errors");
    let mut table = String::from(
        "| function | `f` f32 | JAX | `f'` f32 | JAX | `f''` f32 | JAX | `f` f64 | JAX | `f'` f64 | JAX | `f''` f64 | JAX |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for (name, dtypes) in rows {
        let _ = write!(table, "| `{name}` |");
        for (dtype, orders) in ["float32", "float64"].iter().zip(dtypes) {
            let head = format!("{name} {dtype} ");
            let line = jax.lines().find_map(|line| line.strip_prefix(&head)).unwrap_or_default();
            let theirs: Vec<&str> = line.split(' ').collect();
            for (order, worst) in orders.iter().enumerate() {
                let ours = worst.as_ref().map_or(String::new(), |worst| short(worst.units));
                let theirs = theirs.get(order).and_then(|text| text.parse().ok()).map_or(String::new(), short);
                let _ = write!(table, " {ours} | {theirs} |");
            }
        }
        table.push('\n');
    }
    std::fs::write(&path, format!("{before}{BEGIN}\n\n{table}\n{END}{after}")).expect("docs/accuracy.md");
}

/// Two digits.
fn short(units: f64) -> String {
    match units {
        units if units.is_infinite() => "∞".to_string(),
        units if units >= 1e4 => format!("{units:.0e}"),
        units if units >= 10.0 => format!("{units:.0}"),
        units => format!("{units:.1}"),
    }
}
