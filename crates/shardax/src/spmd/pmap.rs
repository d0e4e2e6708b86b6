//! `pmap`, which is `jit` of `shard_map` over a mesh of one axis. The mapped axis is removed inside of the function.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use super::lint::{Values, same_draws, unreduced_gradients, unreduced_results};
use super::local_shards::{Manual, trace_local_shards};
use super::pmap_hosts::Hosts;
use super::pmap_mesh::Choice;
use crate::compiler_options::CompilerOptions;
use crate::core::argnums::check_argnums;
use crate::core::array::Array;
use crate::core::function::{Function, IntoArgnums, IntoArgs, function_name, identity_of};
use crate::core::prefix::{Axes, IntoPrefix, Prefix, mapped_size};
use crate::core::program::Aval;
use crate::core::program::trace::{check_usable, is_tracing};
use crate::core::tree::{self, Flat, Tree, TreeDef};
use crate::dependence::recorded;
use crate::error::{AtCaller, Result, err};
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, types_of};
use crate::ops::shard_map::ShardMap;
use crate::runtime::aot::lower::LowerOptions;
use crate::runtime::aot::{Lowered, LoweredFn};
use crate::runtime::dispatch::{self, Cache};
use crate::runtime::implicit_jit::{self, is_jit_disabled};
use crate::shape::AxisName;
use crate::sharding::context::{adopting, with_abstract_mesh};
use crate::sharding::{Device, Mesh, NamedSharding, PartitionSpec, Sharding, axis_env};
use crate::source;

/// The name of the mapped axis if the user did not name it.
const DEFAULT_AXIS: &str = "unnamed axis of pmap";

/// A function mapped over devices; see [`pmap`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Pmap<F, Args> {
    f: F,
    options: Options,
    cache: OnceLock<Arc<Cache>>,
    /// The processes, if several take part. The first call sets them.
    hosts: OnceLock<Option<Hosts>>,
    args: PhantomData<fn(Args)>,
}

#[derive(Clone, Hash)]
struct Options {
    name: &'static str,
    axis_name: AxisName,
    in_axes: Axes,
    out_axes: Axes,
    devices: Option<Vec<Device>>,
    backend: Option<String>,
    axis_size: Option<usize>,
    donate_argnums: Vec<i32>,
    static_argnums: Vec<i32>,
    check_replication: bool,
}

/// Runs `f` on many devices at once, each on one slice of the arguments: slice `i` along axis 0 goes to device `i`.
///
/// It is the shortest way to data parallelism. If your mesh has several axes, or arrays should stay where they are, use
/// [`shard_map`](crate::shard_map), or [`jit`](crate::jit()) with sharded arguments.
///
/// The mapped axis is as long as the number of devices used. Inside, you can use [`psum`](crate::psum) and the other
/// collectives over the axis that [`axis_name`](Pmap::axis_name) names.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array, y: Array| x * 2 + y).in_axes((0, None));
/// let out = f.call((arange(0..8).reshape([8, 1]), 100.0))?;
/// assert_eq!(out.shape(), [8, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The function is compiled for each combination of argument types, like a [`jit`](crate::jit()). An argument that is not
/// distributed yet is split and copied to the devices in every call, so you should keep the state of a loop distributed.
///
/// # Errors
/// Calling the mapped function returns an error if the mapped axes differ in size, if there are more slices than devices, if no
/// argument is mapped, or if `f` fails.
pub fn pmap<Args: Tree, F: Function<Args>>(f: F) -> Pmap<F, Args> {
    Pmap {
        f,
        options: Options {
            name: function_name::<F>(),
            axis_name: AxisName::new(DEFAULT_AXIS),
            in_axes: Prefix::Leaf(Some(0)),
            out_axes: Prefix::Leaf(Some(0)),
            devices: None,
            backend: None,
            axis_size: None,
            donate_argnums: Vec::new(),
            static_argnums: Vec::new(),
            check_replication: true,
        },
        cache: OnceLock::new(),
        hosts: OnceLock::new(),
        args: PhantomData,
    }
}

impl<F, Args> Pmap<F, Args> {
    /// Returns the mapped function.
    pub fn wrapped(&self) -> &F {
        &self.f
    }

    /// Changes the options. The caches are cleared, because they belong to the old options.
    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self.cache = OnceLock::new();
        self.hosts = OnceLock::new();
        self
    }

    /// Names the mapped axis, so that `f` can use collectives over the devices.
    pub fn axis_name(self, name: impl Into<AxisName>) -> Self {
        self.with(|o| o.axis_name = name.into())
    }

    /// Sets the mapped axis of each argument, or of parts of an argument. `None` passes the entire value to every device.
    pub fn in_axes(self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.with(|o| o.in_axes = axes.into_prefix())
    }

    /// Sets the mapped axis of each result, or of parts of a result. Use `None` for a result that is equal on all devices;
    /// it is returned once, replicated. If it can differ between devices, the call fails.
    pub fn out_axes(self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.with(|o| o.out_axes = axes.into_prefix())
    }

    /// Sets the devices to use, in this order. By default, the first devices are used.
    pub fn devices(self, devices: impl Into<Vec<Device>>) -> Self {
        let devices = devices.into();
        self.with(|o| o.devices = Some(devices))
    }

    /// Sets the platform that the program was written for: `cpu`, `cuda` (or `gpu`) or `tpu`. A process uses one platform,
    /// which you choose with `SHARDAX_PLATFORM`, so this method only checks the platform: calls on another platform fail.
    pub fn backend(self, platform: &str) -> Self {
        self.with(|o| o.backend = Some(platform.to_lowercase()))
    }

    /// Sets the size of the mapped axis, which must match the arguments.
    pub fn axis_size(self, size: usize) -> Self {
        self.with(|o| o.axis_size = Some(size))
    }

    /// Sets the arguments whose memory the result can reuse, by position (negative numbers count from the last). You cannot
    /// use them afterwards. The warnings are the warnings of [`Jit::donate_argnums`](crate::Jit::donate_argnums).
    pub fn donate_argnums(self, argnums: impl IntoArgnums) -> Self {
        let argnums = argnums.into_argnums();
        self.with(|o| o.donate_argnums = argnums)
    }

    /// Declares arguments as static, by position (negative numbers count from the last). They are part of the compiled
    /// program, so the function is traced again for each new value.
    ///
    /// The types of the arguments decide whether they are static: plain numbers and [`Static`](crate::Static) values are.
    /// This method only checks that the arguments contain nothing else.
    pub fn static_broadcasted_argnums(self, argnums: impl IntoArgnums) -> Self {
        let argnums = argnums.into_argnums();
        self.with(|o| o.static_argnums = argnums)
    }

    /// Sets whether `out_axes(None)` requires a result that is provably equal on all devices (the default). Without the
    /// check, the value of the first device is returned.
    pub fn check_replication(self, check: bool) -> Self {
        self.with(|o| o.check_replication = check)
    }
}

impl<F: Function<Args>, Args: Tree> Pmap<F, Args> {
    /// Traces and lowers the function for arguments of these types. You can pass
    /// [`shape_dtype_struct`](crate::shape_dtype_struct)s instead of arrays.
    ///
    /// # Errors
    /// Returns an error if the arguments cannot be mapped over the devices, or if the function fails while it is
    /// traced.
    #[track_caller]
    pub fn lower<A: IntoArgs<Args>>(&self, args: A) -> Result<Lowered<Args, F::Output>> {
        let _line = source::enter();
        let flat = Flat::from_arguments(&args.into_args());
        self.options.lower(&flat, &flat_fn(&self.f)).and_then(Lowered::new).at_caller()
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Pmap<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(&self.options, self.f.identity())
    }

    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let f = flat_fn(&self.f);
        let hosts = self.options.hosts(&self.hosts)?;
        if is_tracing() {
            return self.options.inside(hosts, &flat, &f)?.build();
        }
        if is_jit_disabled() {
            return implicit_jit::run("pmap", &flat, &|flat| self.options.map_leaves(flat, &f))?.build();
        }
        let cache = self.options.cache(&self.cache, self.f.identity());
        if let Some(hosts) = hosts {
            return self.options.call_on_hosts(hosts, cache, &flat, &f);
        }
        cache.call(self.options.name, &flat, &|flat| self.options.lower(flat, &f)?.load())
    }
}

/// The mesh, mapped dimensions and specs of the arguments.
struct Mapping {
    mesh: Mesh,
    /// The mapped dimension of each leaf.
    dims: Vec<Option<usize>>,
    in_specs: Vec<PartitionSpec>,
}

impl Options {
    fn spec(&self, dim: Option<usize>) -> PartitionSpec {
        match dim {
            Some(d) => PartitionSpec::default().insert(d, &[self.axis_name]),
            None => PartitionSpec::default(),
        }
    }

    /// Checks the static arguments, and returns `true` for each donated leaf.
    fn check_argnums(&self, def: &TreeDef) -> Result<Vec<bool>> {
        check_argnums(def, (&self.static_argnums, "static_broadcasted_argnums"), &self.donate_argnums)
    }

    fn cache<'a>(&self, cache: &'a OnceLock<Arc<Cache>>, identity: Option<u64>) -> &'a Arc<Cache> {
        cache.get_or_init(|| dispatch::shared(identity, ("pmap", self)))
    }

    /// Returns the processes, if several take part. `cache` is set by the first call.
    fn hosts<'a>(&self, cache: &'a OnceLock<Option<Hosts>>) -> Result<Option<&'a Hosts>> {
        if let Some(hosts) = cache.get() {
            return Ok(hosts.as_ref());
        }
        let hosts = Hosts::of(self.devices.as_deref(), &|size| {
            let (devices, backend) = (self.devices.as_deref(), self.backend.as_deref());
            Choice { size: Some(size), axis_size: None, axis: self.axis_name, devices, backend }.mesh(&String::new)
        })?;
        Ok(cache.get_or_init(|| hosts).as_ref())
    }

    /// Calls the function on the slices of all processes' devices. This process passes only the slices of its devices.
    fn call_on_hosts<T: Tree>(&self, hosts: &Hosts, cache: &Cache, flat: &Flat, f: FlatFn<'_>) -> Result<T> {
        let donated = self.check_argnums(&flat.def)?;
        let avals = types_of(flat)?;
        let dims = self.in_axes.dims(&flat.def, &avals, "pmap")?;
        let entered = hosts.enter(self.axis_name, flat, &avals, &dims)?;
        let entry = cache.find(self.name, &entered, &|flat| self.lower(flat, f)?.load())?;
        let leaves = entry.callable.call(&entered)?;
        hosts.donate(self.name, &donated, flat, &entered)?;
        let leaves = leaves.iter().map(|leaf| hosts.leave(leaf)).collect::<Result<_>>()?;
        tree::rebuild(&entry.callable.convention.out_def, leaves)
    }

    fn mapping(&self, flat: &Flat, avals: &[Aval]) -> Result<Mapping> {
        let dims = self.in_axes.dims(&flat.def, avals, "pmap")?;
        let mesh = Choice {
            size: mapped_size(&flat.def, avals, &dims, None, "pmap")?,
            axis_size: self.axis_size,
            axis: self.axis_name,
            devices: self.devices.as_deref(),
            backend: self.backend.as_deref(),
        }
        .mesh(&|| {
            let first_mapped = dims.iter().position(Option::is_some).unwrap_or(0);
            let (d, path) = (dims[first_mapped].unwrap_or(0), &flat.def.paths()[first_mapped]);
            format!("axis {d} of argument{path} of type {}", avals[first_mapped])
        })?;
        let in_specs = dims.iter().map(|d| self.spec(*d)).collect();
        Ok(Mapping { mesh, dims, in_specs })
    }

    /// Compiles the function as `jit` does, with shardings derived from the axes.
    fn lower(&self, flat: &Flat, f: FlatFn<'_>) -> Result<LoweredFn> {
        let donated = self.check_argnums(&flat.def)?;
        let mapping = self.mapping(flat, &types_of(flat)?)?;
        let lowered = self.lower_on(flat, f, &mapping, donated)?;
        if self.check_replication {
            same_draws(&flat.def, |leaf| lowered.convention.kept.contains(&leaf) && mapping.dims[leaf].is_none());
        }
        Ok(lowered)
    }

    fn lower_on(&self, flat: &Flat, f: FlatFn<'_>, mapping: &Mapping, donated: Vec<bool>) -> Result<LoweredFn> {
        let replicated = Sharding::Named(NamedSharding::new(&mapping.mesh, PartitionSpec::default()));
        let in_shardings = mapping.in_specs.iter().map(|spec| NamedSharding::new(&mapping.mesh, spec.clone()));
        let options = LowerOptions {
            function: self.name,
            program: format!("pmap_{}", self.name),
            donated,
            keep_unused: false,
            compiler_options: CompilerOptions::default(),
            in_shardings: in_shardings.map(|sharding| Some(sharding.into()).into()).collect(),
            captured: Some(replicated.clone()),
            // A result of the body without a mapped axis is equal on all devices, so it is replicated.
            out_shardings: &|_, program| {
                let shardings = program.out_shardings().into_iter();
                Ok(shardings.map(|named| Some(named.map_or_else(|| replicated.clone(), Into::into)).into()).collect())
            },
            traces: None,
            inner: None,
        };
        options.lower(flat, &|flat| self.map(flat, mapping, f))
    }

    /// Applies the mapped function inside another one.
    fn inside(&self, hosts: Option<&Hosts>, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        hosts.map_or(Ok(()), Hosts::check_outermost)?;
        self.check_argnums(&flat.def)?;
        self.map_leaves(flat, f)
    }

    fn map_leaves(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        self.map(flat, &self.mapping(flat, &avals_of(flat)?)?, f)
    }

    /// Applies the mapped function in the current trace: computes the types of the slices, traces the body on them, checks
    /// for missing reductions, and binds the traced body.
    fn map(&self, flat: &Flat, Mapping { mesh, dims, in_specs }: &Mapping, f: FlatFn<'_>) -> Result<Flat> {
        if let Some((outer, _)) = axis_env::manual() {
            return Err(err!(Value, "The context mesh {outer} should match the mesh passed to shard_map {mesh}: a pmap cannot run inside a pmap or shard_map")
                .help("map over a mesh of several axes with one shard_map, or use vmap for the inner function"));
        }
        let manual = [self.axis_name];
        let mut blocks = Vec::with_capacity(flat.leaves.len());
        for (leaf, spec) in flat.leaves.iter().zip(in_specs) {
            // An argument can be on any mesh, but the body sees its slices on this mesh.
            blocks.push(ShardMap::shard_aval(mesh, &manual, spec, &leaf.aval().with_sharding(None), false)?);
        }

        // In the body the mapped dimensions have size 1, so they are squeezed out; results get them back.
        let (in_blocks, out_blocks, out_dims) = (RefCell::default(), RefCell::default(), RefCell::default());
        let body = |args: &Flat| {
            let leaves = args.leaves.iter().zip(dims);
            let leaves = leaves.map(|(x, dim)| dim.map_or_else(|| x.clone(), |d| x.squeeze(d as i32))).collect();
            let args = Flat { leaves, def: args.def.clone() };
            in_blocks.replace(args.leaves.iter().map(Array::aval).collect::<Vec<_>>());
            let mut out = f(&args)?;
            out.leaves.iter().try_for_each(check_usable)?;
            let out_avals: Vec<Aval> = out.leaves.iter().map(Array::aval).collect();
            let mapped_dims = self.out_axes.out_dims(&out.def, &out_avals, "pmap")?;
            for (y, d) in out.leaves.iter_mut().zip(&mapped_dims) {
                *y = d.map_or_else(|| y.clone(), |d| y.expand_dims(d as i32));
            }
            out_blocks.replace(out_avals);
            out_dims.replace(mapped_dims);
            Ok(out)
        };
        let manual_axes = Manual { mesh, axes: &manual, checked: false };
        // Values that the body captures can be on any mesh too; they are replicated on every device.
        let (mapped, dependence) = recorded(|| {
            adopting(|| {
                trace_local_shards(manual_axes, flat, &blocks, in_specs.clone(), &body, &|_: &TreeDef, _: &[usize]| {
                    Ok(out_dims.borrow().iter().map(|d| self.spec(*d)).collect())
                })
            })
        });
        let mapped = mapped?;
        if self.check_replication {
            unreduced_results(self.axis_name, &mapped, &out_dims.borrow())?;
            if dependence.gradients {
                let args = Values { def: &flat.def, avals: &in_blocks.borrow() };
                let outs = Values { def: &mapped.out_def, avals: &out_blocks.borrow() };
                let is_named = self.axis_name != AxisName::new(DEFAULT_AXIS);
                unreduced_gradients(self.axis_name, is_named, &args, &outs, &mapped.map.body)?;
            }
        }
        // If no argument has a typed sharding, results must not have a type over the context mesh either.
        if flat.leaves.iter().any(|leaf| leaf.aval().sharding().is_some()) {
            mapped.apply(flat)
        } else {
            with_abstract_mesh(None, || mapped.apply(flat))
        }
    }
}
