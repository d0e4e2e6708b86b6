//! Restores trees from checkpoints: on any devices, in any sharding, whole or in part.

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
use super::parallel::each;
use super::read::{Files, Wanted};
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
    /// Creates options that restore the whole tree as it is given.
    pub fn new() -> Self {
        RestoreOptions::default()
    }

    /// Sets the arrays' shardings: one, or a tree of them, as [`device_put`] takes them. `None` keeps the given array's
    /// sharding, as the default does. Arrays that are given as types only go to the default device.
    pub fn shardings(mut self, shardings: impl IntoPrefix<Option<ShardingLike>>) -> Self {
        self.shardings = Some(shardings.into_prefix());
        self
    }

    /// Restores only the arrays that match; the others keep their given values.
    pub fn filter(mut self, filter: impl Into<Filter>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// Restores the part of the saved tree at this key path, such as `.params` of a training state.
    pub fn below(mut self, path: impl Into<String>) -> Self {
        self.below = path.into();
        self
    }

    /// Sets whether arrays missing from the checkpoint keep their given values, instead of an error that names them.
    pub fn allow_missing(mut self, allow: bool) -> Self {
        self.allow_missing = allow;
        self
    }

    /// Sets whether the checkpoint may have additional arrays, instead of an error that names them. With
    /// [`filter`](RestoreOptions::filter) it always may.
    pub fn allow_extra(mut self, allow: bool) -> Self {
        self.allow_extra = allow;
        self
    }

    /// Keeps the tree's plain numbers, such as an optimizer's learning rate, as they are given. By default it is an
    /// error if they differ from the saved ones.
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

/// Restores a tree like the given one.
pub(super) fn restore<T: Tree>(
    folder: &Path,
    manifest: &Manifest,
    like: &T,
    options: &RestoreOptions,
) -> Result<T, Fault> {
    let mut flat = Flat::of(like);
    // No process may start a computation with others until all have read.
    let read = read_all(folder, manifest, &mut flat, options);
    let converts = agreed(read)?;
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
    let what = format!("the number `{path}` was saved as {saved} in {}, and the tree's type {tree}", folder.display());
    Error::new(ErrorKind::Type, what)
        .help("give the field the type that it had, or keep the tree's number: `RestoreOptions::keep_numbers`")
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
    let work = chosen.into_iter().map(|(at, entry)| {
        let like = &flat.leaves[at];
        let entry = as_keys(entry, like);
        let place = place(like, places[at].as_ref()).map_err(|e| e.context(format!("restoring `{}`", entry.path)))?;
        let dtype = check(folder, &entry, like)?;
        Ok((at, entry, dtype, place))
    });
    let work = work.collect::<Result<Vec<_>>>()?;
    let leaf = |files: &mut Files<'_>, (at, entry, dtype, place): (usize, Cow<'_, Entry>, DType, Option<Sharding>)| {
        Ok::<_, Fault>((at, read(files, &entry, dtype, place)?.with_weak_type(entry.weak)))
    };
    let mut converts = Vec::new();
    for (at, array) in each(work, || Files::new(folder, manifest), leaf)? {
        let like = &flat.leaves[at];
        if array.dtype() != like.dtype() {
            converts.push((at, like.dtype(), like.weak_type()));
        }
        flat.leaves[at] = array;
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
    for (at, (info, leaf)) in flat.def.leaf_infos().into_iter().zip(&flat.leaves).enumerate() {
        let path = format!("{}{}", options.below, info.path);
        let meant = options.filter.as_ref().is_none_or(|filter| filter.matches(&info, leaf));
        match entries.get(path.as_str()) {
            Some(entry) if meant => chosen.push((at, *entry)),
            None if meant && !options.allow_missing => missing.push(path.clone()),
            _ => {}
        }
        known.insert(path);
    }
    let below = |path: &str| {
        // `.params` is not a prefix of `.params_ema`.
        path.strip_prefix(&options.below)
            .is_some_and(|rest| options.below.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let inside = |entry: &&Entry| below(&entry.path) && !known.contains(&entry.path);
    let extra: Vec<String> = match options.allow_extra || options.filter.is_some() {
        true => Vec::new(),
        false => manifest.arrays.iter().filter(inside).map(|entry| entry.path.clone()).collect(),
    };
    if missing.is_empty() && extra.is_empty() {
        return Ok(chosen);
    }
    let mut what = Vec::new();
    if !missing.is_empty() {
        what.push(format!("the checkpoint has no {}", listed(&missing)));
    }
    if !extra.is_empty() {
        what.push(format!("the tree has no {}, which the checkpoint has", listed(&extra)));
    }
    let message = format!("the tree is not the one that was saved in {}: {}", folder.display(), what.join("; "));
    Err(Error::new(ErrorKind::Type, message).help(
        "give a tree of the same structure; to restore what there is of it, use `allow_missing` or `allow_extra` of \
         `RestoreOptions`, a `filter`, or `below` for a part of what was saved",
    ))
}

/// Lists a few of these key paths, and their number.
fn listed(paths: &[String]) -> String {
    const MOST: usize = 5;
    let some: Vec<String> = paths.iter().take(MOST).map(|path| format!("`{path}`")).collect();
    let rest = paths.len().saturating_sub(MOST);
    match rest {
        0 => some.join(", "),
        _ => format!("{} and {rest} more", some.join(", ")),
    }
}

/// The structure with its plain numbers set according to the options.
fn numbers(folder: &Path, manifest: &Manifest, def: &TreeDef, options: &RestoreOptions) -> Result<TreeDef> {
    if options.numbers == Numbers::Keep {
        return Ok(def.clone());
    }
    let saved: BTreeMap<&str, &str> =
        manifest.numbers.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let mut new: Vec<Scalar> = Vec::new();
    for (path, own) in def.numbers() {
        let text = saved.get(format!("{}{path}", options.below).as_str()).copied();
        let read = text.and_then(|text| number_of(text, &own));
        match (text, options.numbers) {
            // Numbers that were not saved stay as given. So does the mode: a model saved in training may be restored
            // for evaluation.
            (None, _) => new.push(own),
            _ if is_mode(&path) => new.push(own),
            (Some(text), Numbers::Same) if text != number_text(&own) => {
                let what = format!("the number `{path}` is {own:?}, and was saved as {text} in {}", folder.display());
                return Err(Error::new(ErrorKind::Value, what).help(
                    "a plain number is part of a tree's structure: `RestoreOptions::keep_numbers` keeps the tree's, \
                     `restore_numbers` takes those that were saved",
                ));
            }
            (Some(text), _) => match read {
                Some(read) => new.push(read),
                None => return Err(other_number(folder, &path, text, &format!("is that of {own:?}"))),
            },
        }
    }
    def.with_numbers(new).map_err(|error| {
        error
            .context(format!("restoring {}", folder.display()))
            .help("give the field the type that it had, or keep the tree's number: `RestoreOptions::keep_numbers`")
    })
}

/// The sharding to restore an array to; `None` is the default device, uncommitted.
fn place(like: &Array, to: Option<&ShardingLike>) -> Result<Option<Sharding>> {
    if let Some(to) = to {
        return to.resolve("restore").map(Some);
    }
    if like.is_deleted() || like.is_traced() || like.error().is_some() {
        like.check()?;
        let what =
            format!("an array of type {}, whose place is not known, was given to restore into", like.type_name());
        return Err(Error::new(ErrorKind::Value, what).help("give arrays, or their types and `shardings`"));
    }
    match (like.sharding(), like.aval().sharding()) {
        (Ok(sharding), _) if like.committed() => Ok(Some(sharding)),
        // A type that says its sharding, over the context mesh.
        (Err(_), Some(typed)) if get_abstract_mesh().as_ref() == Some(typed.mesh()) => {
            ShardingLike::from(typed).resolve("restore").map(Some)
        }
        _ => Ok(None),
    }
}

/// The words of random keys, where the tree has keys, as keys: their bytes are the same. Keys were words when they had no
/// dtype of their own, and still are if they are made by [`random::PRNGKey`].
fn as_keys<'a>(entry: &'a Entry, like: &Array) -> Cow<'a, Entry> {
    let of_words = |shape: &[usize]| shape.last() == Some(&2);
    let is_words = DType::of_name(&entry.dtype) == Some(DType::U32)
        && entry.shape.split_last() == Some((&2, like.shape()))
        && entry.parts.iter().all(|part| of_words(&part.shape));
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

/// Returns the saved dtype. Fails if converting it to the given one would lose more than precision.
fn check(folder: &Path, entry: &Entry, like: &Array) -> Result<DType> {
    let saved = DType::of_name(&entry.dtype).unwrap_or(like.dtype());
    let has = || format!("`{}` was saved as {saved}{:?} in {}", entry.path, entry.shape, folder.display());
    if entry.shape != like.shape() {
        let what = format!("{}, and the tree has {}", has(), like.type_name());
        return Err(Error::new(ErrorKind::Value, what).help("make the model as it was when it was saved"));
    }
    let (from, to) = (saved.category(), like.dtype().category());
    let integer = |category| matches!(category, Category::Signed | Category::Unsigned);
    let wider = like.dtype().byte_size() > saved.byte_size() && (to == Category::Signed || from == to);
    let converts =
        from == to && matches!(from, Category::Float | Category::Complex) || integer(from) && integer(to) && wider;
    if saved == like.dtype() || converts {
        return Ok(saved);
    }
    let what = format!("{}, and the tree has {}: values could be lost", has(), like.type_name());
    Err(Error::new(ErrorKind::Type, what).help("restore it as it was saved, and convert it with `astype`"))
}

/// Reads one array, each device its slice. The host holds this process's slices of a few arrays at a time; CPU devices
/// use that memory as the array's without a copy.
fn read(files: &mut Files<'_>, entry: &Entry, dtype: DType, to: Option<Sharding>) -> Result<Array, Fault> {
    let context = |e: Error| e.context(format!("restoring `{}`", entry.path));
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut want = |start: Vec<usize>, shape: Vec<usize>| match wanted.iter().position(|w| w.start == start) {
        Some(at) => at,
        None => {
            // Allocated once all sizes are known to fit.
            wanted.push(Wanted { start, shape, bytes: HostBuffer::zeroed(0) });
            wanted.len() - 1
        }
    };
    let mut own: Vec<(Option<Device>, usize)> = Vec::new();
    match &to {
        None => own.push((None, want(vec![0; entry.shape.len()], entry.shape.clone()))),
        Some(sharding) => {
            let map = sharding.devices_indices_map(&entry.shape).map_err(context)?;
            for (device, index) in map.into_iter().filter(|(device, _)| device.is_addressable()) {
                let at = want(index.iter().map(|r| r.start).collect(), index.iter().map(|r| r.len()).collect());
                own.push((Some(device), at));
            }
        }
    }
    let size = |wanted: &Wanted| wanted.shape.iter().product::<usize>() * dtype.byte_size();
    let all = wanted.iter().map(|wanted| size(wanted) as u64).fold(0, u64::saturating_add);
    room(all).map_err(|error| context(Error::new(ErrorKind::Runtime, error.to_string())))?;
    for wanted in &mut wanted {
        wanted.bytes = HostBuffer::zeroed(size(wanted));
    }
    files.read(entry, dtype.byte_size(), &mut wanted)?;
    let read: Vec<(Vec<usize>, Arc<HostBuffer>)> =
        wanted.into_iter().map(|wanted| (wanted.shape, Arc::new(wanted.bytes))).collect();
    let part = |(device, at): &(Option<Device>, usize)| {
        let (shape, bytes) = &read[*at];
        match device {
            // Small buffers are faster to copy, and empty ones cannot be shared.
            None if bytes.len() < SMALL => Array::from_bytes(bytes, dtype, shape),
            Some(device) if bytes.len() < SMALL => Array::from_bytes_on(bytes, dtype, shape, device),
            device => Array::from_host_buffer(bytes.clone(), dtype, shape, device.as_ref()),
        }
    };
    let mut parts = own.iter().map(part).collect::<Result<Vec<_>>>().map_err(context)?;
    match (to, parts.pop()) {
        (None, Some(whole)) => Ok(whole),
        (Some(sharding), last) => {
            parts.extend(last);
            Ok(make_array_from_single_device_arrays(&entry.shape, sharding, &parts).map_err(context)?)
        }
        (None, None) => Err(Error::new(ErrorKind::Runtime, format!("no device has `{}`", entry.path)).into()),
    }
}

/// The size in bytes below which memory is copied.
const SMALL: usize = 4096;

/// Agrees on the outcome over all processes: an error if any has one, and a fault only if all may fall back to another
/// checkpoint.
pub(super) fn agreed<T>(own: Result<T, Fault>) -> Result<T, Fault> {
    if process_count() == 1 {
        return own;
    }
    let code = match &own {
        Ok(_) => 0,
        Err(Fault::Damaged(_)) => 1,
        Err(Fault::Other(_)) => 2,
    };
    let all = process_allgather(&array(code))?.to_vec::<i32>()?;
    let worst = all.iter().copied().max().unwrap_or(0);
    let whole = |error: Error| if worst == 1 { Fault::Damaged(error) } else { Fault::Other(error) };
    match own {
        Ok(value) if worst == 0 => Ok(value),
        Ok(_) => {
            let who: Vec<usize> = (0..all.len()).filter(|&rank| all[rank] > 0).collect();
            let what = format!("processes {who:?} could not read the checkpoint");
            Err(whole(Error::new(ErrorKind::Runtime, what).help("they have the error that says why")))
        }
        Err(fault) => Err(whole(fault.into())),
    }
}
