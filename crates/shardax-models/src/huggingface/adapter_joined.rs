//! Adapters of layers that files store as one, such as the queries, keys and values of GPT-2 and Phi-3.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::{KeyMap, Layout};
use crate::error::value_error;

/// The layers of a model that the layer `name` of the files consists of: their key paths and their parts.
pub(super) fn parts_of(keys: &KeyMap, name: &str) -> Vec<(String, Layout)> {
    let parts = keys.paths_of(&format!("{name}.weight")).into_iter();
    let parts = parts.filter(|(path, layout)| rows(*layout, 0).is_some() && path.ends_with(".kernel"));
    parts.map(|(path, layout)| (path.trim_end_matches(".kernel").to_owned(), layout)).collect()
}

/// Returns the rows of the joined matrix, which has `total` rows, that belong to a part. Returns `None` for the layout of an
/// entire layer.
fn rows(layout: Layout, total: usize) -> Option<Vec<usize>> {
    match layout {
        Layout::Rows { start, end, .. } => Some((start..end.min(total)).collect()),
        Layout::GroupedRows { groups, start, end } => {
            let width = total / groups.max(1);
            let group = |group: usize| (start..end.min(width)).map(move |row| group * width + row);
            Some((0..groups.min(total)).flat_map(group).collect())
        }
        Layout::Part { index, of } => {
            let width = total / of.max(1);
            Some((index * width..(index + 1) * width).collect())
        }
        _ => None,
    }
}

/// Returns the matrices of one part of a layer: `a`, `[rank, inputs]`, has all parts, and `b`, `[outputs, rank]`, the outputs of one
/// part after the other.
pub(super) fn part(name: &str, layout: Layout, a: &Array, b: &Array) -> Result<LoRA> {
    let total = b.shape().first().copied().unwrap_or(0);
    let rows = rows(layout, total).unwrap_or_default();
    let fits = match layout {
        Layout::Rows { of, .. } => of == total,
        _ => !rows.is_empty(),
    };
    if !fits {
        let message = format!("the adapter of {name:?} has {total} outputs, which do not have the parts {layout:?}");
        return Err(value_error(message, "check that the adapter was trained for this model"));
    }
    let rows: Vec<i32> = rows.into_iter().map(|row| row as i32).collect();
    let mut lora = LoRA::new(1, 1, 1, &mut Rngs::new(0));
    (lora.lora_a, lora.lora_b) = (a.t().into(), b.take(array(rows), 0).t().into());
    Ok(lora)
}
