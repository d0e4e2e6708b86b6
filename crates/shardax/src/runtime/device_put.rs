//! `device_put`: moving arrays to devices.

use std::sync::Arc;

use super::{layouts, reshard};
use crate::core::array::{Array, Concrete, Repr, TreeOrRef, transfer};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::program::trace::{bind1, check_usable, runs_at_once};
use crate::core::sharding_like::ShardingLike;
use crate::core::tree::Flat;
use crate::error::{AtCaller, Result, err};
use crate::ops::collective::ShardingConstraint;
use crate::ops::primitive::device_put::DevicePut;
use crate::shape::AxisName;
use crate::sharding::axis_env;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{NamedSharding, Sharding, Space, UnreducedKind};
use crate::source;
use crate::transfer_guard::{self, Direction};

/// Moves every array of a tree, or of a reference to one, to a device or a sharding. You can also pass a tree of devices or shardings, with one
/// for each part of the value, or for parts of parts. The results are committed. All copies start before the function
/// waits for any of them.
///
/// Arrays and shards that are already in place keep their memory. A [`PartitionSpec`](crate::PartitionSpec) alone is
/// over the context mesh. `None` leaves a part where it is, committed or not. [`PutOptions`] control aliasing and
/// donation.
///
/// A sharding with a [memory kind](crate::NamedSharding::with_memory_kind), or a [`Space`], moves values between device
/// memory and host memory.
///
/// A [`Format`](crate::Format) also sets the layout in memory. Without one, an array keeps its layout if it is not
/// resharded, and has the default layout if it is. Inside a compiled function layouts are ignored.
///
/// `grad`, `vjp`, `jvp` and `vmap` outside of `jit` run as one program. Inside them the sharding acts like
/// [`with_sharding_constraint`](crate::with_sharding_constraint), and the program runs on the devices of the sharding.
/// If committed arguments or other shardings have other devices, a program runs on each set of devices, and the values
/// move between them. The gradient of a committed argument is on the devices of this argument.
///
/// Inside a compiled function, a value moves to another memory if you request one, and does not move otherwise, because
/// the compiler decides where values are. Use [`with_sharding_constraint`](crate::with_sharding_constraint) to guide
/// this choice. XLA can only compute with values in device memory, so values on the host must be moved back before they
/// are used.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let (split, whole) = (NamedSharding::new(&mesh, P!["x"]), NamedSharding::new(&mesh, P![]));
/// let x = device_put(&arange(0..16), &split)?;
/// assert_eq!(x.addressable_shards()?[3].data.to_vec::<i32>()?, [6, 7]);
///
/// // A tree of two: the batch is split, all of the parameters are replicated.
/// let (params, batch) = ((ones([4, 2]), zeros(2)), ones([32, 4]));
/// let (params, batch) = device_put(&(params, batch), (&whole, &split))?;
/// assert!(params.1.is_fully_replicated());
/// assert_eq!(batch.addressable_data(0)?.shape(), [4, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a tree of shardings does not match the tree of the value (the error contains the key path), and
/// if a sharding does not fit a shape. Rust numbers without an array are an error too, because they are on no device; numbers
/// next to arrays stay Rust numbers. Always returns an error inside `shard_map` and `pmap`, because each device has its own
/// shard there.
#[track_caller]
pub fn device_put<T: TreeOrRef<Kind>, Kind>(tree: T, to: impl IntoPrefix<Option<ShardingLike>>) -> Result<T::Owned> {
    PutOptions::new().device_put(tree, to)
}

/// Options of [`device_put`] for aliasing and donation.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let split = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
/// let x = ones([8, 1024]);
/// let y = PutOptions::new().donate(true).device_put(&x, &split)?;
/// assert!(x.is_deleted() && !y.is_deleted());
///
/// let copy = PutOptions::new().may_alias(false).device_put(&y, &split)?;
/// y.delete()?;
/// assert_eq!(copy.sum(..).item::<f32>()?, 8192.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    donate: bool,
    may_alias: Option<bool>,
}

impl PutOptions {
    /// Returns a transfer that donates nothing, and whose results can share memory of the arrays.
    pub fn new() -> Self {
        PutOptions::default()
    }

    /// Donates the arrays. Shards already in place are reused. The memory of the other shards is freed as soon as they
    /// are copied, unless another array shares it. You cannot use the arrays afterwards, on any platform. If anything
    /// fails, nothing is donated.
    pub fn donate(mut self, donate: bool) -> Self {
        self.donate = donate;
        self
    }

    /// Sets whether results can share the memory of arrays already in place (the default). `false` copies them.
    pub fn may_alias(mut self, may_alias: bool) -> Self {
        self.may_alias = Some(may_alias);
        self
    }

    /// See [`device_put`](device_put()).
    ///
    /// # Errors
    /// Also returns an error if both `donate` and `may_alias` are set.
    #[track_caller]
    pub fn device_put<T: TreeOrRef<Kind>, Kind>(
        self,
        tree: T,
        to: impl IntoPrefix<Option<ShardingLike>>,
    ) -> Result<T::Owned> {
        let _line = source::enter();
        let flat = tree.flat();
        self.put_all(&flat, &to.into_prefix()).and_then(|flat| flat.build()).at_caller()
    }

    fn put_all(self, flat: &Flat, to: &Prefix<Option<ShardingLike>>) -> Result<Flat> {
        if self.donate && self.may_alias == Some(true) {
            return Err(err!(Value, "may_alias and donate cannot be true at the same time.")
                .help("remove one of the two options, because a donated array cannot share its memory"));
        }
        if let (true, Some(number)) = (flat.leaves.is_empty(), flat.def.plain_number()) {
            return Err(err!(Type, "device_put of the Rust number {number:?}, which is static and is on no device")
                .help(format!("put an array: `device_put(array({number:?}), …)`")));
        }
        let targets = to.resolve(&flat.def, "device_put device")?;
        let targets = flat.leaves.iter().zip(&targets).map(|(leaf, target)| Target::of(leaf, target.as_ref()));
        let targets = targets.collect::<Result<Vec<Target>>>()?;
        // Starts all transfers before waiting for any, so that they overlap.
        for (leaf, target) in flat.leaves.iter().zip(&targets) {
            if let (Some(c), Target::At(to)) = (leaf.concrete_ref(), target) {
                reshard::begin(c, &kept_layout(&c.sharding, to))?;
            }
        }
        let mut out = flat.clone();
        for (i, (leaf, target)) in out.leaves.iter_mut().zip(&targets).enumerate() {
            let moved = match target {
                Target::Space(space) => check_usable(leaf).map(|()| DevicePut::to(space.kind()).apply(leaf)),
                Target::At(to) => self.put(leaf, Some(to)),
                Target::Stays => self.put(leaf, None),
            };
            *leaf = moved.map_err(|e| match flat.def.paths().swap_remove(i) {
                root if root.is_empty() || leaf.error().is_some() => e,
                path => e.context(format!("device_put of value{path}, of type {}", leaf.aval())),
            })?;
        }
        if self.donate {
            for array in flat.leaves.iter().filter_map(Array::concrete_ref) {
                array.mark_taken("device_put");
                array.free_own_memory()?;
            }
        }
        Ok(out)
    }

    fn put(self, array: &Array, to: Option<&Sharding>) -> Result<Array> {
        if array.is_traced() {
            check_usable(array)?;
            check_inside(array, to)?;
            let typed = to.and_then(Sharding::as_named).and_then(|named| named.typed(array.ndim()));
            let is_typed = typed.is_some();
            let array = &typed.map_or_else(|| array.clone(), |typed| array.sharded(&typed));
            return Ok(match to.and_then(|to| Some((to.kind()?, to))) {
                Some((kind, to)) => DevicePut { kind, sharding: Some(to.in_layout(None)) }.apply(array),
                None if is_typed => array.clone(),
                // A transformation outside of `jit` is one program, and this operation becomes a part of it.
                None => match to.filter(|_| runs_at_once()) {
                    Some(to) => bind1(ShardingConstraint::new(to.in_layout(None)), std::slice::from_ref(array)),
                    None => array.clone(),
                },
            });
        }
        let c = array.concrete_explicitly()?;
        let (sharding, committed) = match to {
            Some(to) => (kept_layout(&c.sharding, to), true),
            None => (c.sharding.clone(), c.committed),
        };
        let sharding = &sharding;
        // A program adds up unreduced addends, or creates them.
        if let Some(named) = sharding.as_named().filter(|_| c.sharding.unreduced() != sharding.unreduced()) {
            let spec = named.spec().clone().unreduced::<AxisName>([]).unreduced_kind(UnreducedKind::Sum);
            let x = match c.sharding.unreduced() {
                Some(_) => array.clone(),
                None => self.put(array, Some(&NamedSharding::new(named.mesh(), spec).into()))?,
            };
            named.check_rank(x.ndim())?;
            let Some(typed) = named.typed(x.ndim()) else { return Ok(x) };
            let out = x.sharded(&typed);
            return out.check().map(|()| out);
        }
        layouts::check(sharding, &c.aval.shape)?;
        sharding.check_constrained("device_put")?;
        sharding.check_attached()?;
        let same = c.committed == committed && c.sharding == *sharding;
        if same && !self.donate && self.may_alias != Some(false) {
            return Ok(Array(Repr::Concrete(c)));
        }
        transfer_guard::check(Direction::DeviceToDevice, true, &c.aval)?;
        reshard::check_same(&c, sharding)?;
        let mut buffers = reshard::reshard(&c, sharding)?;
        if self.may_alias == Some(false) && sharding.layout().is_some() {
            buffers = reshard::copied(&Concrete::new(c.aval.clone(), sharding.clone(), committed, buffers))?;
        } else if self.may_alias == Some(false) {
            for buffer in &mut buffers {
                if c.buffers.iter().any(|b| Arc::ptr_eq(b, buffer)) {
                    *buffer = transfer::copy(buffer, sharding.kind())?;
                }
            }
        }
        Ok(Array::from_concrete(Concrete::new(c.aval.clone(), sharding.clone(), committed, buffers)))
    }
}

/// The sharding of an array that is committed.
pub(crate) fn committed_sharding(array: &Array) -> Option<Sharding> {
    array.concrete_ref().filter(|c| c.committed).map(|c| c.sharding.clone())
}

/// Moves a cotangent to the devices of its argument, if the argument is committed to others.
pub(crate) fn return_to(argument: Option<&Sharding>, cotangent: &mut Array) -> Result<()> {
    let (Some(to), Some(c)) = (argument, cotangent.concrete_ref()) else { return Ok(()) };
    if c.sharding.devices() != to.devices() {
        *cotangent = PutOptions::new().put(cotangent, Some(to))?;
    }
    Ok(())
}

/// The destination of a value.
enum Target {
    Stays,
    At(Sharding),
    /// A traced value moves to another memory, wherever it is now.
    Space(Space),
}

impl Target {
    fn of(leaf: &Array, to: Option<&ShardingLike>) -> Result<Target> {
        let sharding = match to {
            Some(ShardingLike::Space(space)) if leaf.is_traced() => return Ok(Target::Space(*space)),
            Some(ShardingLike::Space(Space::Device)) => Some(leaf.concrete()?.sharding.in_memory(None)),
            Some(ShardingLike::Space(space)) => {
                Some(leaf.concrete()?.sharding.in_memory(Some(space.kind())).in_layout(None))
            }
            Some(ShardingLike::Format(format)) => format.placed("device_put")?,
            Some(like) => Some(like.resolve("device_put")?),
            None => None,
        };
        Ok(sharding.map_or(Target::Stays, Target::At))
    }
}

/// The target of an array. It keeps the array's layout, unless another layout is requested or the array is split
/// differently.
fn kept_layout(have: &Sharding, to: &Sharding) -> Sharding {
    let both_single = matches!((have, to), (Sharding::Single(_), Sharding::Single(_)));
    match to.layout() {
        // Host memory has one layout.
        None if !MemoryKind::is_default(to.kind()) => to.clone(),
        None if both_single || have.in_layout(None) == *to => to.in_layout(have.layout()),
        _ => layouts::canonical(to),
    }
}

/// Checks a request inside a traced function, although it is not executed.
fn check_inside(array: &Array, to: Option<&Sharding>) -> Result<()> {
    let Some(to) = to else { return Ok(()) };
    if axis_env::manual().is_some() {
        return Err(err!(
            Value,
            "device_put with explicit device not allowed within shard_map-decorated functions, but got {to}: inside shard_map and pmap each device has its own shard"
        )
        .help("place the arguments or the results, outside of the function; inside, collectives such as `ppermute` move shards"));
    }
    to.check_memory()?;
    to.shard_shape(array.shape()).map(|_| ())
}
