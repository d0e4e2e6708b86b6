//! Writing the arrays of a model as `transformers` reads them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use shardax_nn::prelude::*;

use super::layout::Raw;
use super::{KeyMap, Layout};
use crate::error::{io_error, value_error};

/// Arrays by the names of a file.
pub(super) type Named = BTreeMap<String, Raw>;

/// The arrays of a model as a file has them.
pub(super) fn arrays<M: Tree>(model: &M, keys: &KeyMap) -> Result<Named> {
    // The parts of each array of the file, by its name and, of a name with a `#`, its entry.
    let mut parts: BTreeMap<(String, usize), Vec<(Layout, Raw)>> = BTreeMap::new();
    for (path, leaf) in tree::leaves_with_path(model) {
        let path = path.strip_prefix('.').unwrap_or(&path);
        let Some((name, layout)) = keys.find(path) else {
            let message = format!("no rule says which array of a file `{path}` is");
            return Err(value_error(message, "save models without caches, and of the kind of their `Config`"));
        };
        let raw = Raw::of(&leaf)?;
        let entries = if name.contains('#') { raw.entries() } else { vec![raw] };
        for (entry, raw) in entries.into_iter().enumerate() {
            let shape = flat_shape(path, &raw.shape, layout);
            let Some(written) = raw.reshaped(&shape).written_as(layout) else {
                let message = format!("`{path}`, {shape:?}, cannot be laid out as {layout:?}");
                return Err(value_error(message, "look whether the `Config` is that of the model"));
            };
            parts.entry((keys.written(&name), entry)).or_default().push((layout, written));
        }
    }
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

/// The error of parts of one array that do not make one.
fn do_not_fit(name: &str) -> shardax::Error {
    value_error(format!("the parts of {name:?} do not fit together"), "save a model of one structure")
}

/// The shape of an array whose heads of attention are joined.
pub(super) fn flat_shape(path: &str, shape: &[usize], layout: Layout) -> Vec<usize> {
    match layout {
        Layout::Convolution => shape.to_vec(),
        _ if path.ends_with(".bias") => vec![shape.iter().product()],
        _ if path.ends_with(".kernel") && shape.len() == 3 => {
            let inputs = input_dims(path, shape.len());
            vec![shape[..inputs].iter().product(), shape[inputs..].iter().product()]
        }
        _ => shape.to_vec(),
    }
}

/// The number of dimensions of a kernel's input: all but the last for the layer that joins heads.
pub(crate) fn input_dims(path: &str, rank: usize) -> usize {
    if path.ends_with("out.kernel") { rank.saturating_sub(1) } else { 1.min(rank) }
}

/// Writes a folder with these arrays in one file, and a text beside them.
pub(super) fn write(folder: &Path, arrays: &Named, file: &str, (beside, text): (&str, &str)) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| io_error("make the folder", folder, &error))?;
    fn view<'a>(name: &'a str, raw: &'a Raw) -> Result<(&'a str, TensorView<'a>)> {
        let dtype = dtype_of(raw.dtype).ok_or_else(|| {
            value_error(
                format!("{name:?} has elements {}, which the format does not have", raw.dtype),
                "convert them first",
            )
        })?;
        let view = TensorView::new(dtype, raw.shape.clone(), &raw.bytes)
            .map_err(|error| value_error(format!("{name:?} cannot be written: {error}"), "save concrete arrays"))?;
        Ok((name, view))
    }
    let views: Vec<_> = arrays.iter().map(|(name, raw)| view(name, raw)).collect::<Result<_>>()?;
    // `transformers` rejects files that do not say so.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = folder.join(file);
    let bytes = safetensors::serialize(views, Some(about)).map_err(|error| {
        value_error(format!("{} cannot be written: {error}", path.display()), "save concrete arrays")
    })?;
    fs::write(&path, bytes).map_err(|error| io_error("write", &path, &error))?;
    let path = folder.join(beside);
    fs::write(&path, text).map_err(|error| io_error("write", &path, &error))
}

/// The dtype as the format has it.
fn dtype_of(dtype: DType) -> Option<Dtype> {
    let (ty, _) = dtype.stored();
    (DType::from_safetensors(ty) == Some(dtype)).then_some(ty)
}
