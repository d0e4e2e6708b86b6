//! Exchange of values between processes, and barriers. The names are the same as in JAX's `multihost_utils`.
//!
//! All processes must call these functions, in the same order. You can also call them with one process.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::core::array::{Array, Concrete, transfer};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::program::Aval;
use crate::core::program::trace::check_usable;
use crate::core::tree::{Flat, Tree};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::runtime::reshard;
use crate::sharding::distributed::{preemption, processes, reached};
use crate::sharding::{Device, Mesh, NamedSharding, PartitionSpec, Sharding, devices, process_count, process_index};

/// The name of the mesh axis over processes.
const AXIS: &str = "processes";

/// Stacks the arrays of all processes on a new leading axis with one entry for each process, and returns the stack on
/// every process. Shapes must be equal on all processes.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::multihost::process_allgather;
/// let all = process_allgather(&(array([1, 2]), array(3.0f32)))?;
/// assert_eq!((all.0.shape(), all.1.shape()), (&[process_count(), 2][..], &[process_count()][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for an array over devices of several processes; see [`process_allgather_tiled`].
#[track_caller]
pub fn process_allgather<T: Tree>(tree: &T) -> Result<T> {
    map(tree, &|leaf| gather(leaf, false)).at_caller()
}

/// Concatenates the arrays of all processes along the first axis; scalars are stacked. An array over devices of several
/// processes is gathered entirely.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::multihost::process_allgather_tiled;
/// assert_eq!(process_allgather_tiled(&array([1, 2]))?.shape(), [2 * process_count()]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees of the processes differ in structure, shapes or dtypes, or if a process has failed.
#[track_caller]
pub fn process_allgather_tiled<T: Tree>(tree: &T) -> Result<T> {
    map(tree, &|leaf| gather(leaf, true)).at_caller()
}

/// Returns the tree of process 0 on all processes. The trees must have the same structure, shapes and dtypes.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::multihost::broadcast_one_to_all;
/// let seed = broadcast_one_to_all(&array(process_index() as i32 + 7))?;
/// assert_eq!(seed.item::<i32>()?, 7);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees of the processes differ in structure, shapes or dtypes, or if a process has failed.
#[track_caller]
pub fn broadcast_one_to_all<T: Tree>(tree: &T) -> Result<T> {
    broadcast(tree, process_index() == 0).at_caller()
}

/// Returns, on all processes, the tree of the process that passes `is_source = true`. The trees of the other processes must have
/// the same structure, shapes and dtypes.
///
/// # Errors
/// Returns an error on all processes unless exactly one process passes `true`.
#[track_caller]
pub fn broadcast_one_to_all_from<T: Tree>(tree: &T, is_source: bool) -> Result<T> {
    broadcast(tree, is_source).at_caller()
}

/// Waits until all processes have called this with the same name and their devices have finished earlier work. With one process
/// it waits only for the devices.
///
/// # Errors
/// Returns an error on all processes if the names differ, and if another process does not arrive within the [collective
/// timeout](crate::distributed::set_collective_timeout).
#[track_caller]
pub fn sync_global_devices(name: &str) -> Result<()> {
    let mut crc = flate2::Crc::new();
    crc.update(name.as_bytes());
    let sum = Array::from_slice(&[crc.sum()], &[]).at_caller()?;
    check_equal(&sum, &format!("sync_global_devices name mismatch ('{name}')")).at_caller()
}

/// Waits until all processes have reached the barrier of this name equally often. Returns immediately with one process.
///
/// Processes that [joined](crate::distributed::initialize) wait in their store, without the devices. Hosts of a TPU
/// slice that started without a launcher have no store, so they wait in a sum over their devices, as
/// [`sync_global_devices`] does. This wait has no timeout, and you must call it in order with the other computations.
///
/// # Errors
/// Returns an error of the kind [`DeadlineExceeded`](crate::ErrorKind), which lists the processes that did not arrive
/// in time.
#[track_caller]
pub fn wait_at_barrier(name: &str, timeout: Duration) -> Result<()> {
    let _span = tracing::debug_span!("barrier", name).entered();
    match processes() {
        Some(joined) => joined.barrier(name, timeout).at_caller(),
        None => sync_global_devices(name),
    }
}

/// Returns `true` if the program must save its state and end after this step, because a process has a [notice of
/// preemption](preemption). Call it after each step on all processes, equally often: it returns `true` at the same step
/// on all of them, even if they are at different steps when the notice arrives, and at every later step. `step` is for
/// logs, as in JAX.
///
/// The first call turns signals into notices for the rest of the program, unless something
/// [listens](preemption::listen) already. Before this call, signals end the process, so call `preemption::listen` first
/// in `main` if the first step takes long.
///
/// ```
/// use shardax::distributed::preemption;
/// use shardax::multihost::reached_preemption_sync_point;
///
/// let mut last = 0;
/// for step in 1..=100 {
///     last = step;
///     // … a step …
///     if step == 3 {
///         preemption::notify("an example");
///     }
///     if reached_preemption_sync_point(step)? {
///         // … save the state, then `std::process::exit(preemption::EXIT_STATUS)` …
///         break;
///     }
/// }
/// assert_eq!(last, 3);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// A call takes less than a microsecond. On hosts of a TPU slice that have not joined, it adds a small collective to
/// each step, and the notice takes effect one step later.
///
/// # Errors
/// Returns an error if another process does not respond to the notice within the [collective
/// timeout](crate::distributed::set_collective_timeout).
#[track_caller]
pub fn reached_preemption_sync_point(step: u64) -> Result<bool> {
    static LISTENING: OnceLock<Option<preemption::Listening>> = OnceLock::new();
    if !preemption::is_listening() {
        // The first call installs the handlers. Where the system forbids them, other notices still count.
        LISTENING.get_or_init(|| preemption::listen().ok());
    }
    let reached = if processes().is_none() && process_count() > 1 { reached_over_devices() } else { reached() };
    let reached = reached.at_caller()?;
    if reached {
        tracing::info!(step, reason = preemption::notice(), "preempted");
    }
    Ok(reached)
}

/// Gathers the notices of all processes. The next call reads them, so that the host need not wait for the devices.
fn reached_over_devices() -> Result<bool> {
    // The notices of the previous step. All processes read them in the same call, so that they agree.
    static GATHERED: Mutex<Option<Array>> = Mutex::new(None);
    let notice = Array::from_slice(&[preemption::notice().is_some()], &[1])?;
    let notices = stack_over_processes(&notice.to_bytes()?, Aval::new(DType::Bool, vec![1]))?;
    let notices = Array::from_concrete(replicated(&notices)?);
    let mut gathered = GATHERED.lock().unwrap_or_else(PoisonError::into_inner);
    let previous = gathered.replace(notices);
    previous.map_or(Ok(false), |previous| Ok(previous.to_vec::<bool>()?.contains(&true)))
}

/// Checks that the trees of all processes are equal, for example after each has loaded the same configuration. For an
/// array over devices of several processes, each process compares its first shard.
///
/// ```
/// # use shardax::prelude::*;
/// shardax::multihost::assert_equal(&array([1, 2]), "the sizes differ")?;
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error with `message` on all processes if the trees of two processes differ.
#[track_caller]
pub fn assert_equal<T: Tree>(tree: &T, message: &str) -> Result<()> {
    check_equal(tree, message).at_caller()
}

/// Joins each process's arrays into one global array over `mesh`. If `specs` splits a dimension over axes between
/// processes, the dimension grows by the number of processes. Data already in place is shared; arrays over devices of
/// several processes are returned unchanged.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::multihost::{global_array_to_host_local_array, host_local_array_to_global_array};
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", device_count())])?;
/// let batch = ones([local_device_count() * 2]);
/// let global = host_local_array_to_global_array(&batch, &mesh, P!["x"])?;
/// assert_eq!(global.shape(), [device_count() * 2]);
/// let local = global_array_to_host_local_array(&global, &mesh, P!["x"])?;
/// assert_eq!(local.shape(), batch.shape());
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a spec is `None`, and unless this process's devices are a contiguous part of the mesh.
#[track_caller]
pub fn host_local_array_to_global_array<T: Tree>(
    tree: &T,
    mesh: &Mesh,
    specs: impl IntoPrefix<Option<PartitionSpec>>,
) -> Result<T> {
    let specs = specs.into_prefix();
    converted(tree, mesh, specs, "input pspecs", to_global).at_caller()
}

/// Returns this process's part of each global array, on the process's devices of `mesh`: the inverse of
/// [`host_local_array_to_global_array`]. Arrays on devices of this process only are returned unchanged.
///
/// # Errors
/// Returns an error if a spec is `None`, and unless this process's devices are a contiguous part of the mesh.
#[track_caller]
pub fn global_array_to_host_local_array<T: Tree>(
    tree: &T,
    mesh: &Mesh,
    specs: impl IntoPrefix<Option<PartitionSpec>>,
) -> Result<T> {
    let specs = specs.into_prefix();
    converted(tree, mesh, specs, "output pspecs", to_local).at_caller()
}

/// Converts each leaf of a tree by its spec. `what` names the specs in errors.
fn converted<T: Tree>(
    tree: &T,
    mesh: &Mesh,
    specs: Prefix<Option<PartitionSpec>>,
    what: &str,
    convert: impl Fn(&Array, &View) -> Result<Array>,
) -> Result<T> {
    let mut flat = Flat::of(tree);
    let specs = specs.resolve(&flat.def, what)?;
    for (leaf, spec) in flat.leaves.iter_mut().zip(specs) {
        *leaf = convert(leaf, &View::new(mesh, spec)?)?;
    }
    flat.build()
}

/// A sharding for all processes, and the sharding of this process's part.
pub(crate) struct View {
    global: Sharding,
    local: Sharding,
    spec: PartitionSpec,
}

impl View {
    fn new(mesh: &Mesh, spec: Option<PartitionSpec>) -> Result<View> {
        let spec = spec.ok_or_else(|| {
            err!(Value, "`None` is not a valid input to the pspecs argument. Please use P![] if you wanted to replicate your input.")
                .help("pass a PartitionSpec for each array")
        })?;
        View::of(mesh, &mesh.local_mesh()?, spec)
    }

    pub fn of(mesh: &Mesh, local: &Mesh, spec: PartitionSpec) -> Result<View> {
        let global = Sharding::Named(NamedSharding::try_new(mesh, spec.clone())?);
        let local = Sharding::Named(NamedSharding::try_new(local, spec.clone())?);
        Ok(View { global, local, spec })
    }

    /// Returns the size of a dimension of the global array divided by its size in this process's part.
    fn factor(&self, dim: usize) -> Result<usize> {
        Ok(self.parts(&self.global, dim)? / self.parts(&self.local, dim)?.max(1))
    }

    /// Returns the number of parts that a sharding divides a dimension into.
    fn parts(&self, sharding: &Sharding, dim: usize) -> Result<usize> {
        match sharding.as_named() {
            Some(named) => named.mesh().axes_size(self.spec.axes(dim)),
            None => Ok(1),
        }
    }
}

/// Makes this process's array a part of a global array.
pub(crate) fn to_global(array: &Array, view: &View) -> Result<Array> {
    check_usable(array)?;
    let c = array.concrete()?;
    if !c.sharding.is_fully_addressable() {
        return Ok(array.clone());
    }
    let mut aval = c.aval.clone().strip_weak_type();
    view.local.shard_shape(&aval.shape)?;
    let buffers = reshard::reshard(&c, &view.local)?;
    for (dim, size) in aval.shape.iter_mut().enumerate() {
        *size *= view.factor(dim)?;
    }
    if aval.dtype == DType::Float0 {
        aval.dtype = DType::Bool;
    }
    Ok(Array::from_concrete(Concrete::new(aval, view.global.clone(), true, buffers)))
}

/// Returns this process's part of a global array.
pub(crate) fn to_local(array: &Array, view: &View) -> Result<Array> {
    check_usable(array)?;
    let c = array.concrete()?;
    if c.sharding.is_fully_addressable() {
        return Ok(array.clone());
    }
    let buffers = reshard::reshard(&c, &view.global)?;
    let mut aval = c.aval.clone();
    for (dim, size) in aval.shape.iter_mut().enumerate() {
        *size /= view.factor(dim)?.max(1);
    }
    Ok(Array::from_concrete(Concrete::new(aval, view.local.clone(), true, buffers)))
}

/// Applies `f` to each leaf.
fn map<T: Tree>(tree: &T, f: &dyn Fn(&Array) -> Result<Array>) -> Result<T> {
    let mut flat = Flat::of(tree);
    for leaf in &mut flat.leaves {
        *leaf = f(leaf)?;
    }
    flat.build()
}

/// Stacks or, if `tiled`, concatenates the arrays of all processes, and copies the result to this process.
fn gather(array: &Array, tiled: bool) -> Result<Array> {
    let c = array.concrete()?;
    if c.sharding.is_fully_addressable() {
        let bytes = transfer::to_host(&c)?;
        let mut shape = c.aval.shape.clone();
        if !tiled || shape.is_empty() {
            shape.insert(0, 1);
        }
        let aval = Aval::new(c.aval.dtype, shape);
        return match process_count() {
            1 => Array::from_bytes(&bytes, aval.dtype, &aval.shape),
            _ => host_array(&stack_over_processes(&bytes, aval)?),
        };
    }
    if !tiled {
        return Err(err!(
            Value,
            "process_allgather cannot stack global non-fully-addressable arrays, only concatenate them"
        )
        .help("call `process_allgather_tiled`, which concatenates along the first dimension"));
    }
    host_array(&c)
}

/// Creates an array over all processes, to which each process contributes these bytes of this type.
fn stack_over_processes(bytes: &[u8], mut aval: Aval) -> Result<Concrete> {
    static MESH: OnceLock<Mesh> = OnceLock::new();
    let mesh = match MESH.get() {
        Some(mesh) => mesh,
        None => {
            // Use the first device of each process.
            let mut first_devices: Vec<Device> = devices()?;
            first_devices.dedup_by_key(|device| device.process_index());
            let count = first_devices.len();
            MESH.get_or_init(|| Mesh::new(first_devices, [(AXIS, count)]).expect("devices and an axis of their number"))
        }
    };
    let sharding = NamedSharding::new(mesh, PartitionSpec::default().insert(0, &[AXIS.into()]));
    let local = mesh.local_devices().into_iter().next().map(Sharding::from);
    let local = local.ok_or_else(|| {
        err!(Runtime, "this process has no devices")
            .help("run `shardax-doctor` on this host to find out which devices the plugin sees")
    })?;
    let buffers = transfer::buffers_from_host(bytes, &aval, &local)?;
    aval.shape[0] *= mesh.size();
    Ok(Concrete::new(aval, sharding.into(), true, buffers))
}

/// Copies an entire array that is over several processes to this process.
fn host_array(c: &Concrete) -> Result<Array> {
    let aval = &c.aval;
    let bytes = if transfer::is_here(c) { transfer::to_host(c)? } else { transfer::to_host(&replicated(c)?)? };
    Array::from_bytes(&bytes, aval.dtype, &aval.shape)
}

/// Replicates the array on the devices of its mesh.
fn replicated(c: &Concrete) -> Result<Concrete> {
    let mesh = c.sharding.as_named().map(NamedSharding::mesh);
    let mesh = mesh.ok_or_else(|| {
        err!(Value, "{} is on a device of another process", c.aval)
            .help("pass an array that is sharded over a mesh of devices of all processes")
    })?;
    let sharding = Sharding::Named(NamedSharding::new(mesh, PartitionSpec::default()));
    let buffers = reshard::reshard(c, &sharding)?;
    Ok(Concrete::new(c.aval.clone(), sharding, true, buffers))
}

/// Returns the tree of the process that is the source. The flags are gathered first, so that all processes find the same
/// source or fail together.
fn broadcast<T: Tree>(tree: &T, is_source: bool) -> Result<T> {
    let flags = gather(&Array::from_slice(&[is_source], &[])?, false)?.to_vec::<bool>()?;
    let source = flags.iter().position(|flag| *flag).filter(|_| flags.iter().filter(|flag| **flag).count() == 1);
    let Some(source) = source else {
        return Err(err!(Value, "broadcast_one_to_all needs one source, but the processes passed {flags:?}")
            .help("exactly one process must be the source; by default it is process 0"));
    };
    map(tree, &|leaf| {
        let bytes = gather(leaf, false)?.to_bytes()?;
        let size = bytes.len() / flags.len();
        Array::from_bytes(&bytes[source * size..(source + 1) * size], leaf.dtype(), leaf.shape())
    })
}

/// Fails with `message` if the trees of two processes differ.
fn check_equal<T: Tree>(tree: &T, message: &str) -> Result<()> {
    if process_count() == 1 {
        return Ok(());
    }
    let flat = Flat::of(tree);
    let mut first_difference = None;
    for leaf in &flat.leaves {
        let local = if leaf.is_fully_addressable() { leaf.clone() } else { leaf.addressable_data(0)? };
        let (gathered, bytes) = (gather(&local, false)?, local.to_bytes()?);
        // All leaves are gathered even if the first ones differ, because every process must take part in the same
        // gathers.
        if gathered.to_bytes()?.chunks(bytes.len().max(1)).any(|theirs| theirs != bytes) {
            first_difference.get_or_insert((gathered, local));
        }
    }
    let Some((gathered, local)) = first_difference else { return Ok(()) };
    Err(err!(Value, "{message}. Expected: {gathered}; got: {local}. (AssertionError)")
        .help("every process must pass the same value; the message lists the values of all processes"))
}
