//! Reading the arrays of a model from files.

use std::collections::BTreeSet;

use shardax::sharding::Sharding;
use shardax_nn::prelude::*;

use super::layout::splits;
use super::{KeyMap, Layout, Weights};
use crate::error::value_error;

/// Reads the arrays of a model from files. `like` gives their types, and need not have values (`eval_shape`); the rules
/// place them. The host holds one array at a time. Other arrays of the files are left out.
///
/// Fails when no rule of `keys` is for an array, when the files do not have the one it names, and when that has another
/// shape, or integers in the place of floating-point numbers; the message names both.
#[track_caller]
pub fn load<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let location = std::panic::Location::caller();
    some_of(weights, like, keys, rules).map(|(model, _)| model).map_err(|error| error.at(location))
}

/// Reads a model, and fails when the files have an array that it does not have.
pub(super) fn all_of<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let (model, used) = some_of(weights, like, keys, rules)?;
    let mut left: Vec<&str> = weights.names().filter(|name| !used.contains(*name) && !keys.ignores(name)).collect();
    for (copy, name) in &keys.tied {
        if let (Some(at), Some(name)) = (left.iter().position(|left| left == copy), keys.in_files(weights, name)) {
            let (one, other) = (weights.read(copy)?, weights.read(&name)?);
            if (one.dtype, one.shape, one.bytes) != (other.dtype, other.shape, other.bytes) {
                let what = format!(
                    "the arrays {copy:?} and {name:?} of {} differ, and config.json says that they are one",
                    weights.path().display()
                );
                return Err(value_error(what, "set \"tie_word_embeddings\" to false if they are two"));
            }
            left.remove(at);
        }
    }
    match left[..] {
        [] => Ok(model),
        [first, ..] => {
            let what = format!(
                "{} has {} arrays that the model of config.json does not have, such as {first:?}",
                weights.path().display(),
                left.len()
            );
            let help = "look whether `config.json` belongs to the files; `load` with a `KeyMap` takes a part of them";
            Err(value_error(what, help))
        }
    }
}

/// The model, and the names of the arrays that it was read from.
fn some_of<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<(M, BTreeSet<String>)> {
    let leaves = tree::leaves_with_path(like);
    let infos = tree::structure(like).leaf_infos();
    let mut used = BTreeSet::new();
    let mut arrays = Vec::with_capacity(leaves.len());
    for ((path, leaf), info) in leaves.iter().zip(infos) {
        if let Some(error) = leaf.error() {
            return Err(error.clone());
        }
        let named = info.axis_names.as_ref().and_then(|names| rules.sharding(names));
        let to = named.or_else(|| rules.mesh().map(|mesh| NamedSharding::new(mesh, P![]))).map(Sharding::from);
        let path = path.strip_prefix('.').unwrap_or(path);
        let Some((name, layout)) = keys.find(path) else {
            let what = format!("no rule says which array of a file `{path}` is");
            return Err(value_error(what, "add one to the `KeyMap`"));
        };
        let Some(name) = keys.in_files(weights, &name) else {
            let what = format!("{} has no array {name:?}, which `{path}` would be", weights.path().display());
            let help = "look whether the files are of such a model: `Weights::names` lists what they have";
            return Err(value_error(what, help));
        };
        arrays.push(one(weights, (path, leaf), (&name, layout), to)?);
        used.insert(name);
    }
    Ok((tree::unflatten(&tree::structure(like), &arrays)?, used))
}

/// The array at this key path, from the one of this name.
fn one(
    weights: &Weights,
    (path, like): (&str, &Array),
    (name, layout): (&str, Layout),
    to: Option<Sharding>,
) -> Result<Array> {
    let found = weights.read(name)?;
    let (shape, dtype, file) = (found.shape.clone(), found.dtype, weights.path().display());
    if like.dtype().is_float() && !dtype.is_float() {
        let what = format!("the array {name:?} of {file} holds {dtype}, and `{path}` is {}", like.dtype());
        return Err(value_error(what, "quantized weights are not read: save the model as F32, F16 or BF16"));
    }
    let laid = found.read_as(layout).filter(|laid| splits(like.shape(), &laid.shape));
    let Some(laid) = laid else {
        let what = format!(
            "the array {name:?} of {file} is {shape:?}, which laid out as {layout:?} does not make `{path}`, {:?}",
            like.shape()
        );
        return Err(value_error(what, "look whether `config.json` belongs to the files"));
    };
    Ok(laid.reshaped(like.shape()).to_array(to)?.astype(like.dtype()))
}
