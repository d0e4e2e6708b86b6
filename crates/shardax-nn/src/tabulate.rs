//! A table of a model.

use std::fmt::Write;

use shardax::tree::Flat;

use crate::Module;
use crate::filter::key;
use crate::variable::{Kind, kind};

/// The columns of the table.
const HEADS: [&str; 6] = ["path", "type", "arrays", "kind", "elements", "bytes"];

/// One module's line.
struct Row {
    path: String,
    owner: &'static str,
    kind: &'static str,
    arrays: Vec<String>,
    elements: usize,
    bytes: usize,
}

/// Returns a table of the modules that directly contain arrays. Each line has the key path and type of the module; the names,
/// dtypes, shapes and shardings of its arrays; their kind; and their numbers of elements and bytes. The totals of each kind
/// and of all kinds follow.
///
/// ```
/// use shardax_nn::prelude::*;
/// #[derive(Module, Clone)]
/// struct Mlp { hidden: Linear, out: Linear }
/// let mut rngs = Rngs::new(0);
/// let model = Mlp { hidden: Linear::new(2, 8, &mut rngs), out: Linear::new(8, 1, &mut rngs) };
/// let table = tabulate(&model);
/// assert!(table.contains("hidden  Linear  kernel: float32[2,8], bias: float32[8]"), "{table}");
/// assert!(table.ends_with("Total Parameters: 33 (132 B)\n"), "{table}");
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn tabulate<M: Module>(model: &M) -> String {
    let rows = rows(model);
    let lines: Vec<[String; 6]> = [HEADS.map(str::to_owned)].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let mut out = String::new();
    let widths: [usize; 6] =
        std::array::from_fn(|i| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or_default());
    for line in &lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    let _ = writeln!(out);
    let mut kinds: Vec<&'static str> = rows.iter().map(|row| row.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // With a single kind, its total would equal the total of all.
    if kinds.len() > 1 {
        for kind in kinds {
            let total = total(rows.iter().filter(|row| row.kind == kind));
            let _ = writeln!(out, "Total {kind}: {total}");
        }
    }
    let _ = writeln!(out, "Total Parameters: {}", total(&rows));
    out
}

/// Returns a row for each kind of arrays of each module that directly contains arrays.
fn rows<M: Module>(model: &M) -> Vec<Row> {
    let flat = Flat::of(model);
    let mut rows: Vec<Row> = Vec::new();
    for (leaf, array) in flat.def.leaf_infos().into_iter().zip(&flat.leaves) {
        let path = key(&leaf.path);
        let (path, name) = path.rsplit_once('.').unwrap_or(("", path));
        let (owner, kind) = (leaf.owner.unwrap_or_default(), leaf.kind.unwrap_or(kind::Param::NAME));
        // Leaves are in the order of the tree, so the arrays of a module with the same kind are adjacent.
        let new = !rows.last().is_some_and(|row| row.path == path && row.kind == kind);
        if new {
            rows.push(Row { path: path.to_owned(), owner, kind, arrays: Vec::new(), elements: 0, bytes: 0 });
        }
        let Some(row) = rows.last_mut() else { continue };
        let spec = array.sharding().ok().and_then(|s| s.spec().ok().map(|spec| spec.trimmed()));
        let spec = spec.filter(|spec| !spec.is_empty()).map(|spec| format!(" {spec:?}")).unwrap_or_default();
        row.arrays.push(format!("{name}: {}{spec}", array.type_name()));
        row.elements += array.size();
        row.bytes += array.size() * array.dtype().byte_size();
    }
    rows
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let (owner, kind) = (self.owner.to_owned(), self.kind.to_owned());
        [self.path.clone(), owner, self.arrays.join(", "), kind, grouped(self.elements), bytes(self.bytes)]
    }
}

/// Formats the numbers of elements and bytes of rows.
fn total<'a>(rows: impl IntoIterator<Item = &'a Row>) -> String {
    let sums = rows.into_iter().fold((0, 0), |sums, row| (sums.0 + row.elements, sums.1 + row.bytes));
    format!("{} ({})", grouped(sums.0), bytes(sums.1))
}

/// Formats a number with thousands separators: `60,362`.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}

/// Formats a size, `241.4 KB`, as Flax does.
fn bytes(n: usize) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}
