//! Loading the arrays of a model from files.

use std::collections::BTreeSet;

use shardax::sharding::{DimSpec, Sharding};
use shardax_nn::prelude::*;

use super::layout::{Raw, splits};
use super::save::input_dims;
use super::{Config, KeyMap, Layout, Weights};
use crate::error::value_error;
use crate::quantized::Groups;

/// Loads the arrays of a model from files.
///
/// `like` determines the shapes and dtypes; it can be the result of `eval_shape`, because its values are not used. `keys`
/// maps key paths to the names in the files, and `rules` determines the shardings. Arrays of the files that the model
/// does not have are ignored. Only one array at a time is in the memory of the host.
///
/// # Errors
/// Returns an error if `keys` has no name for an array, if the files have no array with that name, or if the array has
/// another shape, or integers where the model has floating-point numbers.
#[track_caller]
pub fn load<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let location = std::panic::Location::caller();
    let model = located(weights, like, keys, rules).and_then(|places| read_all(like, &places));
    model.map_err(|error| error.at(location))
}

/// Loads a model. Returns an error if the files have an array that the model does not have.
pub(super) fn all_of<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let places = located(weights, like, keys, rules)?;
    check_left(weights, keys, &places)?;
    read_all(like, &places)
}

/// Returns an error if the files have an array that none of these places uses.
pub(super) fn check_left(weights: &Weights, keys: &KeyMap, places: &[Place<'_>]) -> Result<()> {
    let used: BTreeSet<String> = places.iter().flat_map(|place| names_of(&place.name, &place.like)).collect();
    let mut unused: Vec<&str> = weights.names().filter(|name| !used.contains(*name) && !keys.ignores(name)).collect();
    // Some files contain a copy of tied weights, which is only allowed if it is equal.
    for (copy, name) in &keys.tied {
        let index = unused.iter().position(|unused| unused == copy);
        if let (Some(index), Some(name)) = (index, keys.in_files(weights, name)) {
            let (tied, original) = (weights.read(copy)?, weights.read(&name)?);
            if !are_equal(tied, original)? {
                let message = format!(
                    "the arrays {copy:?} and {name:?} of {} differ, but config.json says that they are tied",
                    weights.path().display()
                );
                let help = "set \"tie_word_embeddings\" to false in config.json if the model has both arrays";
                return Err(value_error(message, help));
            }
            unused.remove(index);
        }
    }
    match unused[..] {
        [] => Ok(()),
        [first, ..] => {
            let message = format!(
                "{} has {} arrays that the model of config.json does not have, such as {first:?}{}",
                weights.path().display(),
                unused.len(),
                layers_for(weights, first)
            );
            let help =
                "check that `config.json` belongs to the files, or call `load` with a `KeyMap` to load only a part";
            Err(value_error(message, help))
        }
    }
}

/// Returns `true` if two arrays have the same numbers, which can have different dtypes.
fn are_equal(first: Raw, second: Raw) -> Result<bool> {
    if first.dtype == second.dtype {
        return Ok(first.shape == second.shape && first.bytes == second.bytes);
    }
    fn values(raw: Raw) -> Result<Vec<f32>> {
        raw.to_array(None)?.astype(DType::F32).to_vec()
    }
    Ok(first.shape == second.shape && values(first)? == values(second)?)
}

/// Returns the numbers of layers in the configuration, for a message about an array with this name, or an empty text if the name
/// has no number.
fn layers_for(weights: &Weights, name: &str) -> String {
    let has_number = name.split('.').any(|part| part.parse::<usize>().is_ok());
    weights.config().filter(|_| has_number).map(Config::fields_of_layers).unwrap_or_default()
}

/// An array of a model, and the array of the files that contains it.
pub(crate) struct Place<'a> {
    weights: &'a Weights,
    /// The key path in the model.
    pub path: String,
    /// An array with the shape and dtype in the model.
    pub like: Array,
    name: String,
    layout: Layout,
    to: Option<NamedSharding>,
}

/// Finds all arrays of a model in the files.
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
            let message = format!("the `KeyMap` has no array name for `{path}`");
            return Err(value_error(message, "add an entry for this key path to the `KeyMap`"));
        };
        let Some((name, layout)) = keys.located(weights, &name, layout) else {
            let layers = layers_for(weights, &name);
            let message =
                format!("{} has no array {name:?}, which contains `{path}`{layers}", weights.path().display());
            let help = match name.ends_with("lm_head.weight") {
                true => "set \"tie_word_embeddings\" to true in config.json if the token table is also the last layer",
                false => "check that the files contain this model; `Weights::names` lists their arrays",
            };
            return Err(value_error(message, help));
        };
        places.push(Place { weights, path, like: leaf, name, layout, to });
    }
    Ok(places)
}

/// Reads all arrays of a model.
fn read_all<M: Tree>(like: &M, places: &[Place<'_>]) -> Result<M> {
    let arrays: Vec<Array> = places.iter().map(Place::array).collect::<Result<_>>()?;
    tree::unflatten(&tree::structure(like), &arrays)
}

impl Place<'_> {
    /// Reads a quantized array without dequantizing it. Also returns whether the model stores the inputs before the
    /// outputs. Returns `None` if the array is not quantized, or if the layout cannot be expressed by rows.
    pub fn groups(&self) -> Result<Option<(Groups, bool)>> {
        if let Some(name) = self.name.strip_suffix("[#]") {
            return Ok(self.weights.groups(name)?.and_then(|groups| stacked_rows(&groups, self.layout)));
        }
        if self.name.contains('+') {
            return Ok(None);
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

    /// Returns the number of matrices in the array, which is the number of experts in a layer of experts.
    pub fn matrices(&self) -> usize {
        if self.name.contains('#') { self.like.shape().first().copied().unwrap_or(1) } else { 1 }
    }

    /// Reads the array.
    pub fn array(&self) -> Result<Array> {
        read_array(
            self.weights,
            (&self.path, &self.like),
            (&self.name, self.layout),
            self.to.clone().map(Sharding::from),
        )
    }

    /// Derives the shardings of a quantized matrix, of its values and of its scales, from the model's sharding of inputs and
    /// outputs.
    ///
    /// Dimensions that are not divisible by the number of devices are replicated.
    pub fn sharding_of_groups(&self, is_transposed: bool, [rows, groups]: [usize; 2]) -> Result<Option<[Sharding; 2]>> {
        let Some(sharding) = &self.to else { return Ok(None) };
        let (mesh, spec) = (sharding.mesh(), sharding.spec());
        let inputs = input_dims(&self.path, self.like.ndim());
        let mut dims = spec.dims().to_vec();
        dims.resize(dims.len().max(inputs + 1).max(2), DimSpec::default());
        let [mut of_rows, mut of_groups] = match is_transposed {
            // The rows of all experts are one dimension, so that each device has all rows of some experts.
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

/// Selects the rows of a matrix for a layout. Also returns whether the model stores the inputs before the outputs.
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

/// Selects the rows for a layout from all experts. The files store `[experts, outputs, inputs]`, the model
/// `[experts, inputs, outputs]`.
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

/// Returns the names of the arrays in the files for an array of a model. A name with a `#` stands for several arrays, and
/// names whose rows are joined have a `+` between them.
fn names_of(name: &str, like: &Array) -> Vec<String> {
    let name = name.trim_end_matches("[#]");
    if name.contains('#') {
        (0..like.shape().first().copied().unwrap_or(0)).map(|entry| name.replace('#', &entry.to_string())).collect()
    } else {
        name.split('+').map(str::to_owned).collect()
    }
}

/// Reads the arrays with a name and converts them to the layout of the model. Returns the dtypes in the files, and `None`
/// as the values if the layout does not fit.
fn laid_out(weights: &Weights, name: &str, layout: Layout, like: &Array) -> Result<(Vec<DType>, Option<Raw>)> {
    if !name.contains('#') {
        let parts = names_of(name, like).iter().map(|name| weights.read(name)).collect::<Result<Vec<_>>>()?;
        let dtypes = parts.iter().map(|part| part.dtype).collect();
        return Ok((dtypes, Raw::with_joined_rows(parts).and_then(|raw| raw.read_as(layout))));
    }
    let mut entries = Vec::new();
    for name in names_of(name, like) {
        entries.push(weights.read(&name)?);
    }
    if name.ends_with("[#]") {
        entries = entries.into_iter().flat_map(Raw::entries).collect();
    }
    let dtypes = entries.iter().map(|entry| entry.dtype).collect();
    let laid: Option<Vec<Raw>> = entries.into_iter().map(|entry| entry.read_as(layout)).collect();
    Ok((dtypes, laid.and_then(Raw::stacked)))
}

/// Returns the error for an array of the files whose shape does not fit the array of a model.
fn unfit(weights: &Weights, names: &[String], layout: Layout, (path, expected): (&str, &[usize])) -> Error {
    let shape_of = |name: &String| weights.shape(name).unwrap_or_default();
    // If one of several arrays differs from the first one, it is the cause.
    let first = names.first().map(shape_of);
    let Some(name) = names.iter().find(|name| Some(shape_of(name)) != first).or(names.first()) else {
        return value_error(format!("`{path}` of {expected:?} has no arrays in the files"), "use a larger size");
    };
    let (file, shape) = (weights.file_of(name).display(), shape_of(name));
    let sizes: Vec<usize> = expected.iter().copied().filter(|size| !shape.contains(size)).collect();
    let fields = weights.config().map(|config| config.fields_of_sizes(&sizes)).unwrap_or_default();
    let message = format!(
        "the array {name:?} of {file} has the shape {shape:?}, which with the layout {layout:?} does not fit `{path}` of {expected:?}{fields}"
    );
    value_error(message, "check that `config.json` belongs to the files")
}

/// Reads the array for a key path from the array with a name.
fn read_array(
    weights: &Weights,
    (path, like): (&str, &Array),
    (name, layout): (&str, Layout),
    to: Option<Sharding>,
) -> Result<Array> {
    let (dtypes, laid) = laid_out(weights, name, layout, like)?;
    let names = names_of(name, like);
    let integers = dtypes.iter().zip(&names).find(|(dtype, _)| like.dtype().is_float() && !dtype.is_float());
    if let Some((dtype, name)) = integers {
        let file = weights.file_of(name).display();
        let message = format!("the array {name:?} of {file} has the dtype {dtype}, but `{path}` is {}", like.dtype());
        let help = "save the model as F32, F16 or BF16, because this quantization is not supported";
        return Err(value_error(message, help));
    }
    if let Some((dtype, other)) = dtypes.iter().zip(&names).find(|(dtype, _)| **dtype != dtypes[0]) {
        let [first, other] = [(&names[0], &dtypes[0]), (other, dtype)]
            .map(|(name, dtype)| format!("{name:?} of {} has the dtype {dtype}", weights.file_of(name).display()));
        let message = format!("the array {first}, but the array {other}, and both are parts of `{path}`");
        return Err(value_error(message, "save all of these arrays with one dtype"));
    }
    let Some(laid) = laid.filter(|laid| splits(like.shape(), &laid.shape)) else {
        return Err(unfit(weights, &names, layout, (path, like.shape())));
    };
    let array = laid.reshaped(like.shape()).to_array(to).map_err(|error| error.context(format_args!("`{path}`")))?;
    Ok(array.astype(like.dtype()))
}
