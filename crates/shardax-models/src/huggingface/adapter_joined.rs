//! Adapters of layers that files store as one, such as the queries, keys and values of GPT-2 and Phi-3.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::adapter_save::Matrices;
use super::layout::Raw;
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

/// Returns `true` for the layout of a layer that the files join with other layers.
pub(super) fn is_part(layout: Layout) -> bool {
    matches!(layout, Layout::Part { .. } | Layout::Rows { .. } | Layout::GroupedRows { .. })
}

/// Joins the matrices of layers that the files store as the layer of the array `name`. Outputs without an adapter get zeros.
///
/// The first matrices are joined along the rank, and each second matrix gets the columns that belong to its first one. Layers with
/// equal first matrices share them, so that an adapter which `peft` wrote keeps its rank.
pub(super) fn join(keys: &KeyMap, name: &str, parts: &[(Layout, &LoRA)]) -> Result<Matrices> {
    let does_not_fit = || {
        let message = format!("the adapted parts of the layer {name:?} do not fit together");
        value_error(message, "use layers of one model and one dtype, and pass the configuration of this model")
    };
    let mut firsts: Vec<Raw> = Vec::new();
    // The rows of the joined matrix, and the index of the first matrix, of each second matrix.
    let mut seconds = Vec::new();
    let all_rows = total_rows(keys, name, parts).ok_or_else(does_not_fit)?;
    for (layout, lora) in parts {
        let (first, second) = (Raw::of(&lora.lora_a.t())?, Raw::of(&lora.lora_b.t())?);
        let index = firsts.iter().position(|other| other.shape == first.shape && other.bytes == first.bytes);
        seconds.push((rows(*layout, all_rows).ok_or_else(does_not_fit)?, index.unwrap_or(firsts.len()), second));
        if index.is_none() {
            firsts.push(first);
        }
    }
    let ranks: Vec<usize> = firsts.iter().map(|first| first.shape[0]).collect();
    let rank: usize = ranks.iter().sum();
    let first = Raw::with_joined_rows(firsts).ok_or_else(does_not_fit)?;
    let (dtype, size) = (first.dtype, first.dtype.byte_size());
    let mut bytes = vec![0; all_rows * rank * size];
    for (rows, index, second) in seconds {
        if second.dtype != dtype || second.shape != [rows.len(), ranks[index]] {
            return Err(does_not_fit());
        }
        let column: usize = ranks[..index].iter().sum();
        for (row, values) in rows.into_iter().zip(second.bytes.chunks_exact(ranks[index] * size)) {
            let start = (row * rank + column) * size;
            bytes[start..start + values.len()].copy_from_slice(values);
        }
    }
    Ok(Matrices { first, second: Raw { dtype, shape: vec![all_rows, rank], bytes }, rank })
}

/// Returns the number of rows of the array with this name, from the layouts of all its parts.
fn total_rows(keys: &KeyMap, name: &str, parts: &[(Layout, &LoRA)]) -> Option<usize> {
    let (layout, lora) = parts.first()?;
    match layout {
        Layout::Rows { of, .. } => Some(*of),
        Layout::Part { of, .. } => Some(lora.lora_b.shape().last()? * of),
        Layout::GroupedRows { groups, .. } => {
            let ends = keys.paths_of(name).into_iter().filter_map(|(_, layout)| match layout {
                Layout::GroupedRows { end, .. } => Some(end),
                _ => None,
            });
            Some(groups * ends.max()?)
        }
        _ => None,
    }
}
