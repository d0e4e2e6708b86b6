//! Reading the arrays of a model from files.

use std::collections::BTreeSet;

use shardax::sharding::{DimSpec, Sharding};
use shardax_nn::prelude::*;

use super::layout::{Raw, splits};
use super::save::input_dims;
use super::{KeyMap, Layout, Weights};
use crate::error::value_error;
use crate::quantized::Groups;

/// Reads the arrays of a model from files. `like` gives their types, and need not have values (`eval_shape`); the rules
/// place them. The host holds one array at a time. Other arrays of the files are left out.
///
/// Fails when no rule of `keys` is for an array, when the files do not have the one it names, and when that has another
/// shape, or integers in the place of floating-point numbers; the message names both.
#[track_caller]
pub fn load<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let location = std::panic::Location::caller();
    let model = located(weights, like, keys, rules).and_then(|places| read_all(like, &places));
    model.map_err(|error| error.at(location))
}

/// Reads a model, and fails when the files have an array that it does not have.
pub(super) fn all_of<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let places = located(weights, like, keys, rules)?;
    check_left(weights, keys, &places)?;
    read_all(like, &places)
}

/// Fails when the files have an array that is at none of these places.
pub(super) fn check_left(weights: &Weights, keys: &KeyMap, places: &[Place<'_>]) -> Result<()> {
    let used: BTreeSet<String> = places.iter().flat_map(|place| names_of(&place.name, &place.like)).collect();
    let mut unused: Vec<&str> = weights.names().filter(|name| !used.contains(*name) && !keys.ignores(name)).collect();
    // Some files contain a copy of tied weights, which is only allowed if it is equal.
    for (copy, name) in &keys.tied {
        if let (Some(at), Some(name)) = (unused.iter().position(|unused| unused == copy), keys.in_files(weights, name))
        {
            let (one, other) = (weights.read(copy)?, weights.read(&name)?);
            if (one.dtype, one.shape, one.bytes) != (other.dtype, other.shape, other.bytes) {
                let message = format!(
                    "the arrays {copy:?} and {name:?} of {} differ, and config.json says that they are one",
                    weights.path().display()
                );
                return Err(value_error(message, "set \"tie_word_embeddings\" to false if they are two"));
            }
            unused.remove(at);
        }
    }
    match unused[..] {
        [] => Ok(()),
        [first, ..] => {
            let message = format!(
                "{} has {} arrays that the model of config.json does not have, such as {first:?}",
                weights.path().display(),
                unused.len()
            );
            let help = "look whether `config.json` belongs to the files; `load` with a `KeyMap` takes a part of them";
            Err(value_error(message, help))
        }
    }
}

/// One array of a model, and the array of files that it is read from.
pub(crate) struct Place<'a> {
    weights: &'a Weights,
    /// The key path in the model.
    pub path: String,
    /// The array's type.
    pub like: Array,
    name: String,
    layout: Layout,
    to: Option<NamedSharding>,
}

/// The places of all arrays of a model.
pub(super) fn located<'a, M: Tree>(
    weights: &'a Weights,
    like: &M,
    keys: &KeyMap,
    rules: &Rules,
) -> Result<Vec<Place<'a>>> {
    let infos = tree::structure(like).leaf_infos();
    let mut places = Vec::with_capacity(infos.len());
    for ((path, leaf), info) in tree::leaves_with_path(like).into_iter().zip(infos) {
        if let Some(error) = leaf.error() {
            return Err(error.clone());
        }
        // Arrays without axis names are replicated over the mesh of the rules.
        let named = info.axis_names.as_ref().and_then(|names| rules.sharding(names));
        let to = named.or_else(|| rules.mesh().map(|mesh| NamedSharding::new(mesh, P![])));
        let path = path.strip_prefix('.').unwrap_or(&path).to_owned();
        let Some((name, layout)) = keys.find(&path) else {
            let message = format!("no rule says which array of a file `{path}` is");
            return Err(value_error(message, "add one to the `KeyMap`"));
        };
        let Some((name, layout)) = keys.located(weights, &name, layout) else {
            let message = format!("{} has no array {name:?}, which `{path}` would be", weights.path().display());
            let help = "look whether the files are of such a model: `Weights::names` lists what they have";
            return Err(value_error(message, help));
        };
        places.push(Place { weights, path, like: leaf, name, layout, to });
    }
    Ok(places)
}

/// Reads every array.
fn read_all<M: Tree>(like: &M, places: &[Place<'_>]) -> Result<M> {
    let arrays: Vec<Array> = places.iter().map(Place::array).collect::<Result<_>>()?;
    tree::unflatten(&tree::structure(like), &arrays)
}

impl Place<'_> {
    /// The array in few bits, as rows of inputs, and whether the model has the inputs first; `None` if the file has it in full, and for
    /// layouts that no rows have.
    pub fn groups(&self) -> Result<Option<(Groups, bool)>> {
        if let Some(name) = self.name.strip_suffix("[#]") {
            return Ok(self.weights.groups(name)?.and_then(|groups| stacked_rows(&groups, self.layout)));
        }
        if !self.name.contains('#') {
            return Ok(self.weights.groups(&self.name)?.and_then(|groups| rows(groups, self.layout)));
        }
        // The experts of a layer are several arrays.
        let mut experts = Vec::new();
        for name in names_of(&self.name, &self.like) {
            match self.weights.groups(&name)?.and_then(|groups| rows(groups, self.layout)) {
                Some((groups, true)) => experts.push(groups),
                _ => return Ok(None),
            }
        }
        Ok(Groups::stacked(&experts).map(|groups| (groups, true)))
    }

    /// The number of matrices that the array has: of a layer of experts several.
    pub fn matrices(&self) -> usize {
        if self.name.contains('#') { self.like.shape().first().copied().unwrap_or(1) } else { 1 }
    }

    /// The array.
    pub fn array(&self) -> Result<Array> {
        one(self.weights, (&self.path, &self.like), (&self.name, self.layout), self.to.clone().map(Sharding::from))
    }

    /// The sharding of the rows and the groups of a matrix in few bits, from the model's sharding of outputs and inputs.
    ///
    /// Groups that the devices do not divide are replicated.
    pub fn sharding_of_groups(&self, is_transposed: bool, [rows, groups]: [usize; 2]) -> Result<Option<[Sharding; 2]>> {
        let Some(sharding) = &self.to else { return Ok(None) };
        let (mesh, spec) = (sharding.mesh(), sharding.spec());
        let inputs = input_dims(&self.path, self.like.ndim());
        let mut dims = spec.dims().to_vec();
        dims.resize(dims.len().max(inputs + 1).max(2), DimSpec::default());
        let [mut of_rows, mut of_groups] = match is_transposed {
            // The rows of all experts: a device has all rows of some experts.
            _ if self.name.contains('#') => [dims[0].clone(), DimSpec::None],
            true => [dims[inputs].clone(), dims[0].clone()],
            false => [dims[0].clone(), dims[1].clone()],
        };
        for (dim, size) in [(&mut of_rows, rows), (&mut of_groups, groups)] {
            let parts: usize = dim.axes().iter().filter_map(|axis| mesh.axis_size(*axis)).product();
            if !size.is_multiple_of(parts.max(1)) {
                *dim = DimSpec::None;
            }
        }
        let scales = PartitionSpec::new([of_rows.clone(), of_groups.clone()]);
        let values = PartitionSpec::new([of_rows, of_groups, DimSpec::None]);
        let [values, scales] = [values, scales].map(|spec| NamedSharding::try_new(mesh, spec).map(Sharding::from));
        Ok(Some([values?, scales?]))
    }
}

/// The rows of a matrix that a model has in this layout, and whether the model has the inputs first.
fn rows(groups: Groups, layout: Layout) -> Option<(Groups, bool)> {
    let &[count, _] = groups.shape.as_slice() else { return None };
    match layout {
        Layout::Same => Some((groups, false)),
        Layout::Transposed => Some((groups, true)),
        Layout::Rows { start, end, of } if count == of && start <= end && end <= of => {
            Some((groups.select_rows(&(start..end).collect::<Vec<_>>()), true))
        }
        _ => None,
    }
}

/// The rows of the experts of an array `[experts, inputs, outputs]`, which is stored as `[experts, outputs, inputs]`.
fn stacked_rows(groups: &Groups, layout: Layout) -> Option<(Groups, bool)> {
    let &[experts, outputs, _] = groups.shape.as_slice() else { return None };
    let all = experts.checked_mul(outputs)?;
    let rows: Vec<usize> = match layout {
        Layout::Same => (0..all).collect(),
        Layout::Interleaved { index, of } if of > 0 && outputs.is_multiple_of(of) => (index..all).step_by(of).collect(),
        _ => return None,
    };
    Some((groups.select_rows(&rows), true))
}

/// The names of the arrays of the files that an array of a model is read from: several if the name has a `#`.
fn names_of(name: &str, like: &Array) -> Vec<String> {
    let name = name.trim_end_matches("[#]");
    match name.contains('#') {
        true => {
            (0..like.shape().first().copied().unwrap_or(0)).map(|entry| name.replace('#', &entry.to_string())).collect()
        }
        false => vec![name.to_owned()],
    }
}

/// The dtype of the arrays of this name, and their values in the layout of the model; `None` if they do not fit it.
fn laid_out(weights: &Weights, name: &str, layout: Layout, like: &Array) -> Result<(DType, Option<Raw>)> {
    if !name.contains('#') {
        let raw = weights.read(name)?;
        return Ok((raw.dtype, raw.read_as(layout)));
    }
    let mut entries = Vec::new();
    for name in names_of(name, like) {
        entries.push(weights.read(&name)?);
    }
    if name.ends_with("[#]") {
        entries = entries.into_iter().flat_map(Raw::entries).collect();
    }
    let Some(dtype) = entries.first().map(|entry| entry.dtype) else { return Ok((like.dtype(), None)) };
    let laid: Option<Vec<Raw>> = entries.into_iter().map(|entry| entry.read_as(layout)).collect();
    Ok((dtype, laid.and_then(Raw::stacked)))
}

/// The array at this key path, from the one of this name.
fn one(
    weights: &Weights,
    (path, like): (&str, &Array),
    (name, layout): (&str, Layout),
    to: Option<Sharding>,
) -> Result<Array> {
    let (dtype, laid) = laid_out(weights, name, layout, like)?;
    let file = weights.path().display();
    if like.dtype().is_float() && !dtype.is_float() {
        let message = format!("the array {name:?} of {file} holds {dtype}, and `{path}` is {}", like.dtype());
        return Err(value_error(message, "quantized weights are not read: save the model as F32, F16 or BF16"));
    }
    let Some(laid) = laid.filter(|laid| splits(like.shape(), &laid.shape)) else {
        let names = names_of(name, like);
        let shape = names.first().and_then(|name| weights.shape(name)).unwrap_or_default();
        let message = format!(
            "the array {name:?} of {file} is {shape:?}, which laid out as {layout:?} does not make `{path}`, {:?}",
            like.shape()
        );
        return Err(value_error(message, "look whether `config.json` belongs to the files"));
    };
    let array = laid.reshaped(like.shape()).to_array(to).map_err(|error| error.context(format_args!("`{path}`")))?;
    Ok(array.astype(like.dtype()))
}
