//! Restores trees from checkpoints, entirely or in part, on any devices and in any sharding.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use shardax::array::HostBuffer;
use shardax::dtype::{Category, Scalar};
use shardax::error::{Error, ErrorKind, Result};
use shardax::multihost::process_allgather;
use shardax::prefix::{IntoPrefix, Prefix};
use shardax::prelude::*;
use shardax::tree::{Flat, TreeDef};
use shardax::{ShardingLike, process_count};
use shardax_nn::{Filter, is_mode};

use super::fault::Fault;
use super::format::{Entry, Manifest, number_of, number_text};
use super::parallel::map_parallel;
use super::read::{Files, RequestedSlice};
use crate::data::file::room;

/// Options of a restore; see [`Checkpoint::restore_with`](super::Checkpoint::restore_with).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::checkpoint::{self, Checkpoint, RestoreOptions};
/// # shardax::config::set_num_cpu_devices(8).ok();
/// # let folder = std::env::temp_dir().join(format!("shardax-doc-restore-{}", std::process::id()));
/// checkpoint::save(&folder, &(ones([8, 2]), zeros([3])))?;
/// let saved = Checkpoint::open(&folder)?;
///
/// // Split over eight devices, given only types.
/// let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
/// let like = (shape_dtype_struct([8, 2], DType::F32), shape_dtype_struct([3], DType::F32));
/// let (w, _) = saved.restore_with(&like, &RestoreOptions::new().shardings((&rows, None)))?;
/// assert_eq!(w.addressable_data(0)?.shape(), [1, 2]);
///
/// // Only the first array, into another tree.
/// let w = saved.restore_with(&like.0, &RestoreOptions::new().below("[0]"))?;
/// assert_eq!(w.to_vec::<f32>()?, [1.0; 16]);
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    shardings: Option<Prefix<Option<ShardingLike>>>,
    filter: Option<Filter>,
    below: String,
    allow_missing: bool,
    allow_extra: bool,
    numbers: Numbers,
}

/// Handling of the tree's plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Numbers {
    #[default]
    Same,
    Keep,
    Restore,
}

impl RestoreOptions {
    /// Creates options that restore the entire tree, with the shardings and dtypes of the tree to restore into.
    pub fn new() -> Self {
        RestoreOptions::default()
    }

    /// Sets the arrays' shardings: one, or a tree of them, as for [`device_put`]. `None` keeps the sharding of the
    /// array to restore into, which is the default. Arrays that are only types are restored on the default device, so
    /// you should pass shardings for them if one device cannot hold them.
    pub fn shardings(mut self, shardings: impl IntoPrefix<Option<ShardingLike>>) -> Self {
        self.shardings = Some(shardings.into_prefix());
        self
    }

    /// Restores only the arrays that match; the others keep their values. You can use it to start from a model that was
    /// trained before, with a new head.
    pub fn filter(mut self, filter: impl Into<Filter>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// Restores the part of the saved tree at this key path. For example, you can restore the `.params` of a training
    /// state without its optimizer state.
    pub fn below(mut self, path: impl Into<String>) -> Self {
        self.below = path.into();
        self
    }

    /// Sets whether arrays missing from the checkpoint keep their values. By default they are an error that names them.
    pub fn allow_missing(mut self, allow: bool) -> Self {
        self.allow_missing = allow;
        self
    }

    /// Sets whether the checkpoint can have additional arrays. By default they are an error that names them, except
    /// with [`filter`](RestoreOptions::filter).
    pub fn allow_extra(mut self, allow: bool) -> Self {
        self.allow_extra = allow;
        self
    }

    /// Keeps the tree's plain numbers, such as an optimizer's learning rate. By default it is an error if they differ
    /// from the saved ones, because a run that resumes with other numbers should not do so by accident.
    pub fn keep_numbers(mut self) -> Self {
        self.numbers = Numbers::Keep;
        self
    }

    /// Sets the tree's plain numbers to the saved ones.
    pub fn restore_numbers(mut self) -> Self {
        self.numbers = Numbers::Restore;
        self
    }
}

/// Restores a tree with the structure of `like`.
pub(super) fn restore<T: Tree>(
    folder: &Path,
    manifest: &Manifest,
    like: &T,
    options: &RestoreOptions,
) -> Result<T, Fault> {
    let mut flat = Flat::of(like);
    // No process may start a computation with others until all have read.
    let read = read_all(folder, manifest, &mut flat, options);
    let converts = agreed("read the checkpoint", read)?;
    for (at, dtype, weak) in converts {
        let array = &flat.leaves[at];
        let sharding = array.sharding()?;
        let (converted, committed) = (array.astype(dtype).with_weak_type(weak), array.committed());
        converted.check()?;
        flat.leaves[at] = if committed { device_put(&converted, sharding)? } else { converted };
    }
    Ok(flat.build()?)
}

fn other_number(folder: &Path, path: &str, saved: &str, tree: &str) -> Error {
    let message =
        format!("the number `{path}` was saved as {saved} in {}, but the tree's type {tree}", folder.display());
    Error::new(ErrorKind::Type, message).help(
        "declare the field with the type that it had when it was saved, or keep the tree's number with \
         `RestoreOptions::keep_numbers`",
    )
}

/// Restores the selected arrays into their places; returns those to be converted to another dtype.
fn read_all(
    folder: &Path,
    manifest: &Manifest,
    flat: &mut Flat,
    options: &RestoreOptions,
) -> Result<Vec<(usize, DType, bool)>, Fault> {
    let places = match &options.shardings {
        Some(prefix) => prefix.resolve(&flat.def, "restore shardings")?,
        None => vec![None; flat.leaves.len()],
    };
    let chosen = choose(folder, manifest, flat, options)?;
    flat.def = numbers(folder, manifest, &flat.def, options)?;
    // Shardings are resolved on this thread: a mesh in context is thread-local.
    let work = chosen.into_iter().map(|(index, entry)| {
        let like = &flat.leaves[index];
        let entry = as_keys(entry, like);
        let place =
            place(like, places[index].as_ref()).map_err(|e| e.context(format!("restoring `{}`", entry.path)))?;
        let dtype = check(folder, &entry, like)?;
        Ok((index, entry, dtype, place))
    });
    let work = work.collect::<Result<Vec<_>>>()?;
    let arrays = map_parallel(
        work,
        || Files::new(folder, manifest),
        |files, (index, entry, dtype, place)| {
            Ok::<_, Fault>((index, read(files, &entry, dtype, place)?.with_weak_type(entry.weak)))
        },
    )?;
    let mut converts = Vec::new();
    for (index, array) in arrays {
        let like = &flat.leaves[index];
        if array.dtype() != like.dtype() {
            converts.push((index, like.dtype(), like.weak_type()));
        }
        flat.leaves[index] = array;
    }
    Ok(converts)
}

/// Selects the leaves to restore, each with its saved entry.
fn choose<'a>(
    folder: &Path,
    manifest: &'a Manifest,
    flat: &Flat,
    options: &RestoreOptions,
) -> Result<Vec<(usize, &'a Entry)>> {
    let entries: BTreeMap<&str, &Entry> = manifest.arrays.iter().map(|entry| (entry.path.as_str(), entry)).collect();
    let (mut chosen, mut missing, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, (info, leaf)) in flat.def.leaf_infos().into_iter().zip(&flat.leaves).enumerate() {
        let path = format!("{}{}", options.below, info.path);
        let is_selected = options.filter.as_ref().is_none_or(|filter| filter.matches(&info, leaf));
        match entries.get(path.as_str()) {
            Some(entry) if is_selected => chosen.push((index, *entry)),
            None if is_selected && !options.allow_missing => missing.push(path.clone()),
            _ => {}
        }
        known.insert(path);
    }
    // With a filter, saved arrays that the tree does not have are expected.
    let extra: Vec<String> = if options.allow_extra || options.filter.is_some() {
        Vec::new()
    } else {
        let saved = manifest.arrays.iter().map(|entry| &entry.path);
        saved.filter(|path| is_below(path, &options.below) && !known.contains(*path)).cloned().collect()
    };
    if missing.is_empty() && extra.is_empty() { Ok(chosen) } else { Err(different_tree(folder, &missing, &extra)) }
}

/// Returns true if the key path is below this prefix. `.params` is not a prefix of `.params_ema`.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The error of a tree whose arrays are not the saved ones.
fn different_tree(folder: &Path, missing: &[String], extra: &[String]) -> Error {
    let mut differences = Vec::new();
    if !missing.is_empty() {
        differences.push(format!("the checkpoint has no {}", listed(missing)));
    }
    if !extra.is_empty() {
        differences.push(format!("the tree has no {}, which the checkpoint has", listed(extra)));
    }
    let message = format!("the tree is not the one that was saved in {}: {}", folder.display(), differences.join("; "));
    Error::new(ErrorKind::Type, message).help(
        "pass a tree of the same structure; to restore a part of it, use `allow_missing`, `allow_extra`, `filter` or \
         `below` of `RestoreOptions`",
    )
}

/// Lists a few of these key paths, and their number.
fn listed(paths: &[String]) -> String {
    const MAX_LISTED: usize = 5;
    let listed: Vec<String> = paths.iter().take(MAX_LISTED).map(|path| format!("`{path}`")).collect();
    match paths.len().saturating_sub(MAX_LISTED) {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}

/// The structure with its plain numbers set according to the options.
fn numbers(folder: &Path, manifest: &Manifest, def: &TreeDef, options: &RestoreOptions) -> Result<TreeDef> {
    if options.numbers == Numbers::Keep {
        return Ok(def.clone());
    }
    let saved: BTreeMap<&str, &str> =
        manifest.numbers.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let mut numbers: Vec<Scalar> = Vec::new();
    for (path, number) in def.numbers() {
        let text = saved.get(format!("{}{path}", options.below).as_str()).copied();
        match (text, options.numbers) {
            // Numbers that were not saved are kept. So is the mode, because a model that was saved in training may be
            // restored for evaluation.
            (None, _) => numbers.push(number),
            _ if is_mode(&path) => numbers.push(number),
            (Some(text), Numbers::Same) if text != number_text(&number) => {
                let message =
                    format!("the number `{path}` is {number:?}, but was saved as {text} in {}", folder.display());
                return Err(Error::new(ErrorKind::Value, message).help(
                    "plain numbers are part of a tree's structure: `RestoreOptions::keep_numbers` keeps the tree's \
                     numbers, `restore_numbers` restores the saved ones",
                ));
            }
            (Some(text), _) => match number_of(text, &number) {
                Some(saved) => numbers.push(saved),
                None => return Err(other_number(folder, &path, text, &format!("is the type of {number:?}"))),
            },
        }
    }
    def.with_numbers(numbers).map_err(|error| {
        error.context(format!("restoring {}", folder.display())).help(
            "declare the field with the type that it had when it was saved, or keep the tree's number with \
             `RestoreOptions::keep_numbers`",
        )
    })
}

/// The sharding to restore an array to; `None` is the default device, uncommitted.
fn place(like: &Array, to: Option<&ShardingLike>) -> Result<Option<Sharding>> {
    if let Some(to) = to {
        return to.resolve("restore").map(Some);
    }
    if like.is_deleted() || like.is_traced() || like.error().is_some() {
        like.check()?;
        let message =
            format!("an array of type {}, whose devices are not known, was passed to restore into", like.type_name());
        return Err(Error::new(ErrorKind::Value, message).help("pass arrays, or their types and `shardings`"));
    }
    match (like.sharding(), like.aval().sharding()) {
        (Ok(sharding), _) if like.committed() => Ok(Some(sharding)),
        // A type that includes its sharding, over the context mesh.
        (Err(_), Some(typed)) if get_abstract_mesh().as_ref() == Some(typed.mesh()) => {
            ShardingLike::from(typed).resolve("restore").map(Some)
        }
        _ => Ok(None),
    }
}

/// Converts an entry of words to an entry of random keys, if the tree has keys there. Both have the same bytes. Keys
/// are stored as words by versions without a dtype for keys, and if they were created by [`random::PRNGKey`].
fn as_keys<'a>(entry: &'a Entry, like: &Array) -> Cow<'a, Entry> {
    let is_words = DType::from_name(&entry.dtype) == Some(DType::U32)
        && entry.shape.split_last() == Some((&2, like.shape()))
        && entry.parts.iter().all(|part| part.shape.last() == Some(&2));
    if !(like.dtype().is_key() && is_words) {
        return Cow::Borrowed(entry);
    }
    let mut keys = Entry { dtype: DType::Key.to_string(), ..entry.clone() };
    keys.shape.pop();
    for part in &mut keys.parts {
        part.shape.pop();
        part.start.pop();
    }
    Cow::Owned(keys)
}

/// Returns the saved dtype. Fails if converting it to the dtype of `like` would lose more than precision.
fn check(folder: &Path, entry: &Entry, like: &Array) -> Result<DType> {
    let saved = DType::from_name(&entry.dtype).unwrap_or(like.dtype());
    let is_same_shape = entry.shape == like.shape();
    if is_same_shape && (saved == like.dtype() || is_convertible(saved, like.dtype())) {
        return Ok(saved);
    }
    let (path, shape) = (&entry.path, &entry.shape);
    let difference = format!(
        "`{path}` was saved as {saved}{shape:?} in {}, but the tree has {}",
        folder.display(),
        like.type_name()
    );
    if !is_same_shape {
        let help = "create the model with the shapes that it had when it was saved";
        return Err(Error::new(ErrorKind::Value, difference).help(help));
    }
    let message = format!("{difference}: values could be lost");
    Err(Error::new(ErrorKind::Type, message).help("restore it as it was saved, and convert it with `astype`"))
}

/// Returns true if converting loses at most precision: within floating-point or complex numbers, or to wider integers.
fn is_convertible(from: DType, to: DType) -> bool {
    match (from.category(), to.category()) {
        (Category::Float, Category::Float) | (Category::Complex, Category::Complex) => true,
        (Category::Signed | Category::Unsigned, Category::Signed) | (Category::Unsigned, Category::Unsigned) => {
            to.byte_size() > from.byte_size()
        }
        _ => false,
    }
}

/// Reads one array; each device reads its slice. The host holds this process's slices of a few arrays at a time. CPU
/// devices use that memory for the array, without a copy.
fn read(files: &mut Files<'_>, entry: &Entry, dtype: DType, to: Option<Sharding>) -> Result<Array, Fault> {
    let context = format!("restoring `{}`", entry.path);
    // The slices to read, and the index of a slice for each device. Replicas share one.
    let mut slices: Vec<RequestedSlice> = Vec::new();
    let mut slice_of_device: Vec<(Option<Device>, usize)> = Vec::new();
    match &to {
        None => slice_of_device.push((None, request(&mut slices, vec![0; entry.shape.len()], entry.shape.clone()))),
        Some(sharding) => {
            let map = sharding.devices_indices_map(&entry.shape).map_err(|e| e.context(&context))?;
            for (device, index) in map.into_iter().filter(|(device, _)| device.is_addressable()) {
                let start = index.iter().map(|range| range.start).collect();
                let shape = index.iter().map(|range| range.len()).collect();
                slice_of_device.push((Some(device), request(&mut slices, start, shape)));
            }
        }
    }
    // Memory is allocated once all sizes are known to fit.
    let sizes: Vec<usize> =
        slices.iter().map(|slice| slice.shape.iter().product::<usize>() * dtype.byte_size()).collect();
    room(sizes.iter().map(|size| *size as u64).fold(0, u64::saturating_add))
        .map_err(|error| Error::new(ErrorKind::Runtime, error.to_string()).context(&context))?;
    for (slice, size) in slices.iter_mut().zip(sizes) {
        slice.bytes = HostBuffer::zeroed(size);
    }
    files.read(entry, dtype.byte_size(), &mut slices)?;
    let slices: Vec<(Vec<usize>, Arc<HostBuffer>)> =
        slices.into_iter().map(|slice| (slice.shape, Arc::new(slice.bytes))).collect();
    let mut shards = Vec::with_capacity(slice_of_device.len());
    for (device, index) in &slice_of_device {
        let (shape, bytes) = &slices[*index];
        let shard = match device {
            // Small buffers are faster to copy, and empty ones cannot be shared.
            None if bytes.len() < MIN_SHARED_BYTES => Array::from_bytes(bytes, dtype, shape),
            Some(device) if bytes.len() < MIN_SHARED_BYTES => Array::from_bytes_on(bytes, dtype, shape, device),
            device => Array::from_host_buffer(bytes.clone(), dtype, shape, device.as_ref()),
        };
        shards.push(shard.map_err(|e| e.context(&context))?);
    }
    match to {
        Some(sharding) => {
            Ok(make_array_from_single_device_arrays(&entry.shape, sharding, &shards)
                .map_err(|e| e.context(&context))?)
        }
        None => shards.pop().ok_or_else(|| {
            let message = format!("internal error: no device restored `{}`; please report this", entry.path);
            Error::new(ErrorKind::Runtime, message).into()
        }),
    }
}

/// Returns the index of the slice with this start, which is added if it is new.
fn request(slices: &mut Vec<RequestedSlice>, start: Vec<usize>, shape: Vec<usize>) -> usize {
    slices.iter().position(|slice| slice.start == start).unwrap_or_else(|| {
        slices.push(RequestedSlice { start, shape, bytes: HostBuffer::zeroed(0) });
        slices.len() - 1
    })
}

/// The size from which an array uses the memory that it was read into, instead of a copy.
const MIN_SHARED_BYTES: usize = 4096;

/// Agrees on the outcome over all processes: an error if any has one, and a fault only if all may fall back to another
/// checkpoint.
pub(super) fn agreed<T>(what: &str, outcome: Result<T, Fault>) -> Result<T, Fault> {
    if process_count() == 1 {
        return outcome;
    }
    let code = match &outcome {
        Ok(_) => 0,
        Err(Fault::Damaged(_)) => 1,
        Err(Fault::Other(_)) => 2,
    };
    let codes = process_allgather(&array(code))?.to_vec::<i32>()?;
    let worst = codes.iter().copied().max().unwrap_or(0);
    let error = match outcome {
        Ok(value) if worst == 0 => return Ok(value),
        Ok(_) => {
            let failed: Vec<usize> = (0..codes.len()).filter(|&rank| codes[rank] > 0).collect();
            let message = format!("processes {failed:?} could not {what}");
            Error::new(ErrorKind::Runtime, message).help("the errors of those processes state the reason")
        }
        Err(fault) => fault.into(),
    };
    Err(if worst == 1 { Fault::Damaged(error) } else { Fault::Other(error) })
}
