//! Saving the arrays of a model with the names and layouts of `transformers`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use shardax_nn::prelude::*;

use super::layout::Raw;
use super::{KeyMap, Layout};
use crate::error::{io_error, value_error};

/// The arrays of a file, by name.
pub(super) type Named = BTreeMap<String, Raw>;

/// Converts the arrays of a model to the arrays of a file.
pub(super) fn arrays<M: Tree>(model: &M, keys: &KeyMap) -> Result<Named> {
    // An array of the file can consist of several arrays of the model. First collect the parts of each array, by its name
    // and, if the name has a `#`, the number of the entry.
    let mut parts: BTreeMap<(String, usize), Vec<(Layout, Raw)>> = BTreeMap::new();
    for (path, leaf) in tree::leaves_with_path(model) {
        let path = path.strip_prefix('.').unwrap_or(&path);
        let Some((name, layout)) = keys.find(path) else {
            let message = format!("the model has `{path}`, which has no array name for files");
            return Err(value_error(
                message,
                "save a model without caches, with the `Config` that it was created from",
            ));
        };
        let raw = Raw::of(&leaf)?;
        let entries = if name.contains('#') { raw.entries() } else { vec![raw] };
        for (entry, raw) in entries.into_iter().enumerate() {
            let shape = flat_shape(path, &raw.shape, layout);
            let Some(written) = raw.reshaped(&shape).written_as(layout) else {
                let message = format!("`{path}`, {shape:?}, cannot be laid out as {layout:?}");
                return Err(value_error(message, "pass the `Config` from which you created the model"));
            };
            parts.entry((keys.written(&name), entry)).or_default().push((layout, written));
        }
    }
    // Then join the parts, and stack the entries of arrays that contain all experts.
    let mut named = Named::new();
    let mut stacks: BTreeMap<String, Vec<Raw>> = BTreeMap::new();
    for ((name, entry), parts) in parts {
        let raw = Raw::joined(parts).ok_or_else(|| do_not_fit(&name))?;
        match name.strip_suffix("[#]") {
            Some(name) => stacks.entry(name.to_owned()).or_default().push(raw),
            None => drop(named.insert(name.replace('#', &entry.to_string()), raw)),
        }
    }
    for (name, entries) in stacks {
        let raw = Raw::stacked(entries).ok_or_else(|| do_not_fit(&name))?;
        named.insert(name, raw);
    }
    Ok(named)
}

/// Returns the error for parts of an array that do not fit together.
fn do_not_fit(name: &str) -> shardax::Error {
    let help = "save a model whose layers have equal shapes, with the `Config` that it was created from";
    value_error(format!("the parts of {name:?} do not fit together"), help)
}

/// Returns the shape of an array in files, where attention heads and their features are one dimension.
pub(super) fn flat_shape(path: &str, shape: &[usize], layout: Layout) -> Vec<usize> {
    match layout {
        Layout::Convolution | Layout::JoinedMatrices { .. } => shape.to_vec(),
        _ if path.ends_with(".bias") => vec![shape.iter().product()],
        // The kernel of a convolution over patches, which the file has as a linear layer of whole patches.
        Layout::Transposed if path.ends_with("patches.conv.kernel") => {
            let outputs = shape.last().copied().unwrap_or(1);
            vec![shape.iter().product::<usize>().checked_div(outputs).unwrap_or(0), outputs]
        }
        _ if path.ends_with(".kernel") && shape.len() == 3 => {
            let inputs = input_dims(path, shape.len());
            vec![shape[..inputs].iter().product(), shape[inputs..].iter().product()]
        }
        _ => shape.to_vec(),
    }
}

/// Returns the number of input dimensions of a kernel. The layers that join heads have several: the last layer of attention, the layer
/// that computes the weights of a convolution of tokens, and the layer that computes scores from values.
pub(crate) fn input_dims(path: &str, rank: usize) -> usize {
    let joining_layers = ["out.kernel", "conv.weights.kernel", "value_scores.steps.kernel"];
    if joining_layers.iter().any(|end| path.ends_with(end)) { rank.saturating_sub(1) } else { 1.min(rank) }
}

/// Writes a folder with the arrays in one file and the configuration in another.
pub(super) fn write(folder: &Path, arrays: &Named, file: &str, (config_file, text): (&str, &str)) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| io_error("make the folder", folder, &error))?;
    fn view<'a>(name: &'a str, raw: &'a Raw) -> Result<(&'a str, TensorView<'a>)> {
        let dtype = dtype_of(raw.dtype).ok_or_else(|| {
            value_error(
                format!("{name:?} has the dtype {}, which safetensors does not support", raw.dtype),
                "convert the array to F32, F16 or BF16 with `astype` before you save it",
            )
        })?;
        let view = TensorView::new(dtype, raw.shape.clone(), &raw.bytes).map_err(|error| {
            value_error(
                format!("{name:?} cannot be written: {error}"),
                "save the model outside of `jit`, because traced arrays have no values",
            )
        })?;
        Ok((name, view))
    }
    let views: Vec<_> = arrays.iter().map(|(name, raw)| view(name, raw)).collect::<Result<_>>()?;
    // `transformers` rejects files without this metadata.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = folder.join(file);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(|error| {
        value_error(
            format!("{} cannot be written: {error}", path.display()),
            "save the model outside of `jit`, because traced arrays have no values",
        )
    })?;
    fs::write(&path, bytes).map_err(|error| io_error("write", &path, &error))?;
    let path = folder.join(config_file);
    fs::write(&path, text).map_err(|error| io_error("write", &path, &error))
}

/// Returns the safetensors dtype, if the format supports it.
fn dtype_of(dtype: DType) -> Option<Dtype> {
    let (ty, _) = dtype.stored();
    (DType::from_safetensors(ty) == Some(dtype)).then_some(ty)
}
