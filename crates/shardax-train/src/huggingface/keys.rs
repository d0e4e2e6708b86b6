//! Which array of a model is which of a file, and how it lies there.

use shardax::error::{Error, ErrorKind};
use shardax::sharding::Sharding;
use shardax_nn::prelude::*;

use super::Weights;
use crate::data::HostArray;

/// How an array lies in a file, beside how it lies in a model. Dimensions that the model splits or joins, such as
/// those of the heads of attention, need no mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same.
    Same,
    /// The last dimension first: PyTorch's `Linear` has `[out, in]`.
    Transposed,
    /// PyTorch's convolutions have `[out, in, spatial dimensions]`.
    Convolution,
    /// One of `of` equal parts of the last dimension: queries, keys and values in one matrix.
    Part {
        /// Which of them, counted from 0.
        index: usize,
        /// How many there are.
        of: usize,
    },
}

/// Which array of a model is which of a file: pairs of a key path and a name, in which `*` stands for the same number.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::huggingface::{KeyMap, Layout, Weights, load};
/// # let path = std::env::temp_dir().join(format!("shardax-doc-keys-{}", std::process::id()));
/// # let header = br#"{"layer.0.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
/// # let length = (header.len() as u64).to_le_bytes();
/// # let file = [&length[..], header, &1.0f32.to_le_bytes(), &2.0f32.to_le_bytes()].concat();
/// # std::fs::write(&path, file).expect("a file");
/// let keys = KeyMap::new().array("[*].kernel", "layer.*.weight", Layout::Transposed);
/// let like = vec![Linear::builder(2, 1).use_bias(false).build(&mut Rngs::new(0))];
/// let layers = load(&Weights::open(&path)?, &like, &keys, &Rules::default())?;
/// assert_eq!(layers[0].kernel.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyMap {
    rules: Vec<(String, String, Layout)>,
    prefix: String,
    aliases: Vec<(String, String)>,
}

impl KeyMap {
    /// No arrays yet.
    pub fn new() -> Self {
        KeyMap::default()
    }

    /// All names may have this in front.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// Names that end with `ending` may end with `other`.
    pub fn alias(mut self, ending: &str, other: &str) -> Self {
        self.aliases.push((ending.to_owned(), other.to_owned()));
        self
    }

    /// The array at this key path has this name.
    pub fn array(mut self, path: impl Into<String>, name: impl Into<String>, layout: Layout) -> Self {
        self.rules.push((path.into(), name.into(), layout));
        self
    }

    /// A layer whose kernel PyTorch has transposed, and its bias.
    pub fn linear(self, path: &str, name: &str) -> Self {
        self.weights(path, name, Layout::Transposed)
    }

    /// A convolution, and its bias.
    pub fn conv(self, path: &str, name: &str) -> Self {
        self.weights(path, name, Layout::Convolution)
    }

    /// A layer with a kernel and a bias, of which the kernel lies so.
    pub fn weights(self, path: &str, name: &str, layout: Layout) -> Self {
        let bias = match layout {
            Layout::Part { .. } => layout,
            _ => Layout::Same,
        };
        self.array(format!("{path}.kernel"), format!("{name}.weight"), layout).array(
            format!("{path}.bias"),
            format!("{name}.bias"),
            bias,
        )
    }

    /// A norm with its scale and its bias.
    pub fn norm(self, path: &str, name: &str) -> Self {
        self.array(format!("{path}.scale"), format!("{name}.weight"), Layout::Same).array(
            format!("{path}.bias"),
            format!("{name}.bias"),
            Layout::Same,
        )
    }

    /// The name, and the layout, of the array at this key path.
    fn find(&self, path: &str) -> Option<(String, Layout)> {
        self.rules.iter().find_map(|(pattern, name, layout)| match pattern.split_once('*') {
            None => (pattern == path).then(|| (name.clone(), *layout)),
            Some((before, after)) => {
                let number = path.strip_prefix(before)?.strip_suffix(after)?;
                let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
                is_number.then(|| (name.replacen('*', number, 1), *layout))
            }
        })
    }

    /// The name as these files have it.
    fn in_files(&self, weights: &Weights, name: &str) -> Option<String> {
        let other =
            |(ending, other): &(String, String)| Some(format!("{}{other}", name.strip_suffix(ending.as_str())?));
        let names = std::iter::once(name.to_owned()).chain(self.aliases.iter().filter_map(other));
        names.flat_map(|name| [format!("{}{name}", self.prefix), name]).find(|name| weights.contains(name))
    }
}

/// A model like this one, whose values may be mere types (`eval_shape`), with its arrays read from files. They get the
/// dtypes of `like`, and lie as the rules say; of one array at a time all is in the host's memory. Arrays of the files
/// that the model has not are left out.
///
/// Fails when no rule of `keys` is for an array, when the files have not the one it names, and when that has another
/// shape; the message names both.
#[track_caller]
pub fn load<M: Tree>(weights: &Weights, like: &M, keys: &KeyMap, rules: &Rules) -> Result<M> {
    let location = std::panic::Location::caller();
    let read = || {
        let shardings = tree::leaves_with_path(like);
        let infos = tree::structure(like).leaf_infos();
        let leaves = shardings.iter().zip(infos).map(|((path, leaf), info)| {
            let names = info.axis_names.as_ref().and_then(|names| rules.sharding(names));
            let unnamed = || rules.mesh().map(|mesh| NamedSharding::new(mesh, P![]));
            one(weights, path, leaf, keys, names.or_else(unnamed).map(Sharding::from))
        });
        tree::unflatten(&tree::structure(like), &leaves.collect::<Result<Vec<_>>>()?)
    };
    read().map_err(|error: Error| error.at(location))
}

/// The array at this key path.
fn one(weights: &Weights, path: &str, like: &Array, keys: &KeyMap, to: Option<Sharding>) -> Result<Array> {
    if let Some(error) = like.error() {
        return Err(error.clone());
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let fail = |what: String, help: &str| Err(Error::new(ErrorKind::Value, what).help(help));
    let Some((name, layout)) = keys.find(path) else {
        return fail(format!("no rule says which array of a file `{path}` is"), "add one to the `KeyMap`");
    };
    let Some(name) = keys.in_files(weights, &name) else {
        let what = format!("{} has no array {name:?}, which `{path}` would be", weights.path().display());
        return fail(what, "look whether the files are of such a model: `Weights::names` lists what they have");
    };
    let found = weights.get(&name)?;
    let shape = found.shape().to_vec();
    let laid = match layout {
        Layout::Same => Some(found),
        Layout::Transposed => found.transposed(&(0..shape.len()).rev().collect::<Vec<_>>()),
        Layout::Convolution if shape.len() >= 2 => {
            found.transposed(&(2..shape.len()).chain([1, 0]).collect::<Vec<_>>())
        }
        Layout::Convolution => None,
        Layout::Part { index, of } => found.part(index, of),
    };
    let laid = laid.filter(|laid| splits(like.shape(), laid.shape()));
    let Some(laid) = laid.and_then(|laid| laid.reshaped(like.shape())) else {
        let what = format!(
            "the array {name:?} of {} is {shape:?}, which laid out as {layout:?} does not make `{path}`, {:?}",
            weights.path().display(),
            like.shape()
        );
        return fail(what, "look whether `config.json` belongs to the files");
    };
    let array = match to {
        Some(sharding) => laid.to_array_on(sharding)?,
        None => laid.to_array()?,
    };
    Ok(array.astype(like.dtype()))
}

/// Whether one shape is the other with some dimensions split into several, or the other way round.
fn splits(a: &[usize], b: &[usize]) -> bool {
    let (mut a, mut b) = (a.iter().filter(|d| **d != 1).peekable(), b.iter().filter(|d| **d != 1).peekable());
    loop {
        match (a.next().copied(), b.next().copied()) {
            (None, None) => return true,
            (Some(mut left), Some(mut right)) => {
                while left != right {
                    let (less, more) = if left < right { (&mut left, a.next()) } else { (&mut right, b.next()) };
                    match more.and_then(|more| less.checked_mul(*more)) {
                        Some(product) => *less = product,
                        None => return false,
                    }
                }
            }
            _ => return false,
        }
    }
}

impl HostArray {
    /// The dimensions in this order.
    fn transposed(&self, order: &[usize]) -> Option<HostArray> {
        let size = self.dtype().byte_size();
        let mut strides = vec![size; order.len()];
        for d in (1..order.len()).rev() {
            strides[d - 1] = strides[d] * self.shape()[d];
        }
        let shape: Vec<usize> = order.iter().map(|d| self.shape()[*d]).collect();
        let strides: Vec<usize> = order.iter().map(|d| strides[*d]).collect();
        let mut bytes = Vec::with_capacity(self.bytes().len());
        if !self.bytes().is_empty() {
            gather(self.bytes(), &shape, &strides, size, &mut bytes);
        }
        HostArray::from_bytes(bytes, self.dtype(), &shape).ok()
    }

    /// One of several equal parts of the last dimension.
    fn part(&self, index: usize, of: usize) -> Option<HostArray> {
        let (last, before) = self.shape().split_last()?;
        if of == 0 || index >= of || !last.is_multiple_of(of) {
            return None;
        }
        let part = last / of;
        let (row, size) = (last * self.dtype().byte_size(), part * self.dtype().byte_size());
        let rows = self.bytes().chunks_exact(row.max(1));
        let bytes: Vec<u8> = rows.flat_map(|row| &row[index * size..(index + 1) * size]).copied().collect();
        HostArray::from_bytes(bytes, self.dtype(), &[before, &[part]].concat()).ok()
    }

    /// The same elements in another shape.
    fn reshaped(self, shape: &[usize]) -> Option<HostArray> {
        HostArray::from_bytes(self.bytes().to_vec(), self.dtype(), shape).ok()
    }
}

/// Elements of `size` bytes in row-major order of `shape`, which lie at these strides.
fn gather(bytes: &[u8], shape: &[usize], strides: &[usize], size: usize, out: &mut Vec<u8>) {
    match (shape, strides) {
        ([count, shape @ ..], [stride, strides @ ..]) => {
            for at in 0..*count {
                gather(&bytes[at * stride..], shape, strides, size, out);
            }
        }
        _ => out.extend_from_slice(&bytes[..size]),
    }
}
