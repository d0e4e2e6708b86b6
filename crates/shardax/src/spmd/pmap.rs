//! `pmap`: `jit` of `shard_map` over a mesh of one axis, with the mapped axis squeezed out and put back.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock};

use smallvec::SmallVec;

use super::lint::{Values, unreduced_gradients};
use super::shard_map::ShardMap;
use crate::array::Array;
use crate::error::{AtCaller, Result, err};
use crate::function::{Function, IntoArgnums, IntoArgs};
use crate::prefix::{Axes, IntoPrefix, Prefix};
use crate::program::trace::{Known, Traced, bind, check_usable, is_tracing, trace_known};
use crate::program::{Aval, Program};
use crate::runtime::Device;
use crate::runtime::load::{Effort, Request};
use crate::runtime::placement::{Place, check_split, known_outputs};
use crate::shape::{AxisName, normalize_axis};
use crate::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding};
use crate::source;
use crate::stages::{Lowered, Staged};
use crate::transform::dispatch::{self, Cache};
use crate::transform::grad::gradients_taken;
use crate::transform::jit::{Pruned, check_argnums, function_name};
use crate::transform::staged::{self, FlatFn, avals_of, flat_fn, is_jit_disabled, trace_flat, types_of};
use crate::tree::{Flat, Tree, TreeDef};

/// The name of the mapped axis when none is given.
const DEFAULT_AXIS: &str = "_internal_pmap_axis_name";

/// A function mapped over devices; see [`pmap`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Pmap<F, Args> {
    f: F,
    options: Options,
    cache: OnceLock<Arc<Cache>>,
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
/// As many devices are used as the mapped axis is long. Inside, [`psum`](crate::psum) and the other collectives work
/// over the axis that [`axis_name`](Pmap::axis_name) names.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array, y: Array| x * 2 + y).in_axes((0, None));
/// let out = f.call((arange(0..8).reshape([8, 1]), 100.0))?;
/// assert_eq!(out.shape(), [8, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
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
        args: PhantomData,
    }
}

impl<F, Args> Pmap<F, Args> {
    /// The function that is mapped.
    pub fn wrapped(&self) -> &F {
        &self.f
    }

    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self.cache = OnceLock::new();
        self
    }

    /// Names the mapped axis, for collectives.
    pub fn axis_name(self, name: impl Into<AxisName>) -> Self {
        self.with(|o| o.axis_name = name.into())
    }

    /// The mapped axis of each argument, or of parts of it; `None` gives the whole value to every device.
    pub fn in_axes(self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.with(|o| o.in_axes = axes.into_prefix())
    }

    /// Where the mapped axis goes in each result, or part of it. `None` is for results that are equal on all
    /// devices: they come back once, replicated. A result that may differ is an error.
    pub fn out_axes(self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.with(|o| o.out_axes = axes.into_prefix())
    }

    /// The devices to use, in this order; by default the first ones.
    pub fn devices(self, devices: impl Into<Vec<Device>>) -> Self {
        let devices = devices.into();
        self.with(|o| o.devices = Some(devices))
    }

    /// The platform whose devices to use: `cpu`, `cuda` (or `gpu`) or `tpu`. A process works with one platform, the one
    /// that `SHARDAX_PLATFORM` names, so this checks that it is the one that the program was written for; calls on
    /// another are errors.
    pub fn backend(self, platform: &str) -> Self {
        self.with(|o| o.backend = Some(platform.to_lowercase()))
    }

    /// The size of the mapped axis; it must be that of the arguments.
    pub fn axis_size(self, size: usize) -> Self {
        self.with(|o| o.axis_size = Some(size))
    }

    /// The arguments, by position (negative from the last), whose memory the result may take over. They cannot be used
    /// afterwards. Warnings as of [`Jit::donate_argnums`](crate::Jit::donate_argnums).
    pub fn donate_argnums(self, argnums: impl IntoArgnums) -> Self {
        let argnums = argnums.into_argnums();
        self.with(|o| o.donate_argnums = argnums)
    }

    /// The arguments, by position (negative from the last), that are part of the compiled program, which is made anew
    /// for each of their values.
    ///
    /// What is static is said by types: plain numbers and [`Static`](crate::Static) values are. This checks that these
    /// arguments hold nothing else.
    pub fn static_broadcasted_argnums(self, argnums: impl IntoArgnums) -> Self {
        let argnums = argnums.into_argnums();
        self.with(|o| o.static_argnums = argnums)
    }

    /// Whether `out_axes(None)` requires that the result is known to be equal on all devices (the default).
    /// Without the check the first device's value is returned.
    pub fn check_replication(self, check: bool) -> Self {
        self.with(|o| o.check_replication = check)
    }
}

impl<F: Function<Args>, Args: Tree> Pmap<F, Args> {
    /// Traces and lowers the function for arguments of these types, which
    /// [`shape_dtype_struct`](crate::shape_dtype_struct) can stand for.
    #[track_caller]
    pub fn lower<A: IntoArgs<Args>>(&self, args: A) -> Result<Lowered<Args, F::Output>> {
        let _line = source::enter();
        let flat = Flat::of(&args.into_args());
        self.options.stage(&flat, &flat_fn(&self.f)).and_then(Lowered::new).at_caller()
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Pmap<F, Args> {
    type Output = F::Output;

    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::of(&args);
        let f = flat_fn(&self.f);
        if is_tracing() {
            self.options.check_argnums(&flat.def)?;
            return self.options.map(&flat, &f)?.build();
        }
        if is_jit_disabled() {
            return staged::run("pmap", &flat, &|flat| self.options.map(flat, &f))?.build();
        }
        let cache = self.cache.get_or_init(|| dispatch::shared::<F>(("pmap", &self.options)));
        cache.call(&flat, &|flat| self.options.stage(flat, &f)?.built())
    }
}

/// The arguments' part in the mapping.
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

    /// Which leaves are donated.
    fn check_argnums(&self, def: &TreeDef) -> Result<Vec<bool>> {
        check_argnums(def, (&self.static_argnums, "static_broadcasted_argnums"), &self.donate_argnums)
    }

    fn mapping(&self, flat: &Flat, avals: &[Aval]) -> Result<Mapping> {
        let axes = self.in_axes.resolve(&flat.def, "pmap in_axes")?;
        let paths = || flat.def.paths();
        let dims: Vec<Option<usize>> = axes
            .iter()
            .zip(avals)
            .enumerate()
            .map(|(i, (axis, aval))| match axis {
                None => Ok(None),
                Some(_) if aval.rank() == 0 => Err(err!(
                    Value,
                    "pmap was requested to map its argument{} along axis {}, which implies that its rank should be at least 1, but is only 0 (its shape is ())",
                    paths()[i],
                    axis.unwrap_or(0)
                )
                .help("use in_axes None for arguments that every device gets whole")),
                Some(a) => normalize_axis(*a as isize, aval.rank())
                    .map(Some)
                    .map_err(|e| e.context(format!("pmap in_axes of argument{}", paths()[i]))),
            })
            .collect::<Result<_>>()?;
        let sizes: Vec<(usize, usize)> =
            dims.iter().zip(avals).enumerate().filter_map(|(i, (d, a))| d.map(|d| (i, a.shape[d]))).collect();
        let Some(&(first, size)) = sizes.first() else {
            return Err(err!(Value, "pmap requires at least one argument with a mapped axis.")
                .help("to give every device the same value, use `device_put(x, &NamedSharding::new(&mesh, P![]))`, or map an extra argument such as `arange(0..n)`"));
        };
        if let Some(&(odd, other)) = sizes.iter().find(|(_, s)| *s != size) {
            let describe = |i: usize| format!("argument{} of type {}", paths()[i], avals[i]);
            return Err(err!(
                Value,
                "pmap got inconsistent sizes for array axes to be mapped: {} has size {size}, but {} has size {other}",
                describe(first),
                describe(odd)
            ).help("give all mapped arguments one slice for each device, and in_axes None to those that every device gets whole"));
        }
        if let Some(want) = self.axis_size
            && want != size
        {
            return Err(err!(Value, "Specified axis_size {want} doesn't match received axis_size {size}.")
                .help("leave axis_size out: it follows from the arguments"));
        }
        if let Some(backend) = &self.backend {
            check_backend(backend)?;
        }
        let candidates = match &self.devices {
            Some(d) if d.is_empty() => {
                return Err(err!(Value, "'devices' argument to pmap must be non-empty, or None.")
                    .help("leave `devices` out to use the first ones"));
            }
            Some(d) => d.clone(),
            None => crate::runtime::devices()?,
        };
        if size == 0 || size > candidates.len() {
            let what = format!("argument{} of type {}", paths()[first], avals[first]);
            return Err(err!(
                Value,
                "pmap maps axis {} of {what}, of size {size}, over devices, but there are {} devices: compiling computation requires {size} logical devices (the batch size {size} must be divisible by num_devices, with a leading axis of one slice for each device)",
                dims[first].unwrap_or(0),
                candidates.len()
            )
            .help(format!(
                "reshape it so that the mapped axis has one slice for each device: for a batch of b examples, `x.reshape([n, b / n, …])` with n at most {}",
                candidates.len()
            )));
        }
        let mesh = mesh_of(&candidates[..size], self.axis_name)?;
        let in_specs = dims.iter().map(|d| self.spec(*d)).collect();
        Ok(Mapping { mesh, dims, in_specs })
    }

    /// Applies the mapped function in the trace in effect.
    fn map(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        let avals = avals_of(flat)?;
        let Mapping { mesh, dims, in_specs } = self.mapping(flat, &avals)?;
        if let Some((outer, _)) = crate::program::axis_env::manual() {
            return Err(err!(Value, "The context mesh {outer} should match the mesh passed to shard_map {mesh}: a pmap cannot run inside a pmap or shard_map")
                .help("map over a mesh of several axes with one shard_map, or use vmap for the inner one"));
        }
        let blocks: Vec<Aval> = avals
            .iter()
            .zip(&in_specs)
            .map(|(aval, spec)| ShardMap::block(&mesh, spec, aval, false))
            .collect::<Result<_>>()?;

        // The body: the mapped dimensions, now of size 1, are squeezed out; results get theirs.
        let mut out_def = TreeDef::default();
        let mut out_dims = Vec::new();
        let (mut in_blocks, mut out_blocks) = (Vec::new(), Vec::new());
        let gradients = gradients_taken();
        let mut call = ShardMap {
            mesh: mesh.clone(),
            manual: vec![self.axis_name],
            in_specs: in_specs.clone(),
            out_specs: Vec::new(),
            checked: false,
            body: Program::default(),
        };
        let known = Known::Blocks(flat.leaves.to_vec(), Box::new(call.clone()));
        let Traced { program: body, captures } = ShardMap::bind_axes(&mesh, &[self.axis_name], false, || {
            trace_known(known, &blocks, |args| {
                let squeezed: Vec<Array> = args
                    .iter()
                    .zip(&dims)
                    .map(|(x, d)| if let Some(d) = d { x.squeeze(*d as i32) } else { x.clone() })
                    .collect();
                in_blocks = squeezed.iter().map(Array::aval).collect();
                let out = f(&Flat { leaves: squeezed.into(), def: flat.def.clone() })?;
                out_def = out.def;
                out_blocks = out.leaves.iter().map(Array::aval).collect();
                let axes = self.out_axes.resolve(&out_def, "pmap out_axes")?;
                out.leaves
                    .iter()
                    .zip(&axes)
                    .map(|(y, axis)| {
                        check_usable(y)?;
                        let Some(a) = axis else {
                            out_dims.push(None);
                            return Ok(y.clone());
                        };
                        let d = normalize_axis(*a as isize, y.ndim() + 1).map_err(|e| e.context("pmap out_axes"))?;
                        out_dims.push(Some(d));
                        Ok(y.expand_dims(d as i32))
                    })
                    .collect()
            })
        })?;
        call.in_specs = std::iter::repeat_n(PartitionSpec::default(), captures.len()).chain(in_specs).collect();
        call.out_specs = out_dims.iter().map(|d| self.spec(*d)).collect();
        call.body = body;
        if self.check_replication {
            self.check_outputs(&call, &out_dims, &out_def)?;
            if gradients_taken() > gradients && self.axis_name != AxisName::new(DEFAULT_AXIS) {
                let args = Values { def: &flat.def, avals: &in_blocks };
                let outs = Values { def: &out_def, avals: &out_blocks };
                unreduced_gradients(self.axis_name, &args, &outs, &call.body)?;
            }
        }
        let args: Vec<Array> = captures.iter().chain(&flat.leaves).cloned().collect();
        let leaves: SmallVec<[Array; 8]> = bind(Arc::new(call), &args).into_iter().collect();
        leaves.iter().try_for_each(check_usable)?;
        Ok(Flat { leaves, def: out_def })
    }

    /// Fails where a result without a mapped axis may differ from device to device.
    fn check_outputs(&self, call: &ShardMap, out_dims: &[Option<usize>], def: &TreeDef) -> Result<()> {
        if out_dims.iter().all(Option::is_some) {
            return Ok(());
        }
        for ((dim, set), path) in out_dims.iter().zip(call.varying(&call.body, 0)?).zip(def.paths()) {
            if dim.is_none() && !set.is_empty() {
                let axis = self.axis_name;
                return Err(err!(
                    Value,
                    "pmap out_axes is None for output{path}, but its value may vary over the mapped axis {axis:?}: the devices would hold different values of one array"
                )
                .help(format!(
                    "reduce it first (`pmean(x, {axis:?})`; of a training step, the gradients), return one value for each device with out_axes 0, or take the first device's with `.check_replication(false)`"
                )));
            }
        }
        Ok(())
    }

    /// Traces the mapped function and decides where it runs.
    fn stage(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Staged> {
        let donated = self.check_argnums(&flat.def)?;
        let in_avals = types_of(flat)?;
        let Mapping { mesh, in_specs, .. } = self.mapping(flat, &in_avals)?;
        let in_shardings: Vec<Sharding> =
            in_specs.iter().map(|s| NamedSharding::new(&mesh, s.clone()).into()).collect();
        for (i, (leaf, want)) in flat.leaves.iter().zip(&in_shardings).enumerate() {
            if let Some(have) = leaf.concrete_ref().filter(|c| c.committed) {
                let name = || format!("argument{} of {} with shape {}", flat.def.paths()[i], self.name, have.aval);
                check_split(&have.sharding, want, &have.aval, &name)?;
            }
        }
        let (traced, out_def) = trace_flat(&flat.def, &in_avals, &|flat| self.map(flat, f))?;
        let pruned = Pruned::new(&traced, false)?;
        let place = Place::Mesh(mesh.clone());
        let captured = pruned.captures.iter().map(|_| place.replicated());
        let in_shardings = captured.chain(pruned.kept.iter().map(|&i| in_shardings[i].clone())).collect();
        // An output that is an argument passed through, or a constant, is not a result of shard_map.
        let out_shardings = known_outputs(&pruned.program)
            .into_iter()
            .map(|s| Some(s.unwrap_or_else(|| NamedSharding::new(&mesh, PartitionSpec::default()))))
            .collect();
        let request = Request {
            name: format!("pmap_{}", self.name),
            donated: pruned.donated(&donated),
            program: pruned.program,
            place,
            in_shardings,
            out_shardings,
            effort: Effort::Full,
        };
        let Pruned { captures, kept, .. } = pruned;
        let in_def = flat.def.clone();
        Ok(Staged { request, captures, kept, in_def, in_avals, donated, out_def, committed: true })
    }
}

/// Fails when the process works with another platform.
fn check_backend(asked: &str) -> Result<()> {
    let have = crate::runtime::client()?.platform_name.as_str();
    if asked == have || (asked == "gpu" && matches!(have, "cuda" | "rocm")) {
        return Ok(());
    }
    Err(err!(Value, "Unknown backend {asked}. Available backends are [{have:?}]").help(format!(
        "a process works with one platform: set SHARDAX_PLATFORM={asked} (or call `config::set_platform`) before it uses a device, or leave `backend` out"
    )))
}

/// The mesh of one axis over these devices; equal ones are one object, so that shardings compare at once.
fn mesh_of(devices: &[Device], axis: AxisName) -> Result<Mesh> {
    type Meshes = Mutex<HashMap<(Vec<usize>, AxisName), Mesh>>;
    static MESHES: OnceLock<Meshes> = OnceLock::new();
    let ids = devices.iter().map(Device::id).collect();
    let mut meshes = MESHES.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
    if let Some(mesh) = meshes.get(&(Vec::clone(&ids), axis)) {
        return Ok(mesh.clone());
    }
    let mesh = Mesh::new(devices.to_vec(), [(axis, devices.len())])?;
    meshes.insert((ids, axis), mesh.clone());
    Ok(mesh)
}
