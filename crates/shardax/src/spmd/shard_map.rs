//! `shard_map` and `smap`.

use std::hash::Hash;
use std::marker::PhantomData;

use super::local_shards::{Manual, OutSpecs, trace_local_shards};
use crate::core::function::{Function, IntoArgs, identity_of};
use crate::core::prefix::{Axes, IntoPrefix, Specs};
use crate::core::program::Aval;
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::error::{Error, Result, err};
use crate::interpret::flat::{FlatFn, avals_of, flat_fn};
use crate::ops::shard_map::ShardMap;
use crate::runtime::aot::Lowered;
use crate::runtime::implicit_jit;
use crate::shape::{AxisName, AxisSet, IntoAxisNames, normalize_axis};
use crate::sharding::axis_env;
use crate::sharding::context::{IntoMesh, MeshArg};
use crate::sharding::typed::entry;
use crate::sharding::{AxisType, DimSpec, Mesh, NamedSharding, PartitionSpec, Typed, get_abstract_mesh};

/// A function that each device runs on its local shards; see [`shard_map`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct ShardMapped<F, Args> {
    f: F,
    options: Options,
    args: PhantomData<fn(Args)>,
}

#[derive(Hash)]
struct Options {
    mesh: MeshArg,
    axis_names: Option<Vec<AxisName>>,
    in_specs: Option<Specs>,
    out_specs: Option<Specs>,
    check_vma: bool,
}

/// Runs `f` on every device of `mesh`, each on its shard of the arguments. Pass `None` to use the context mesh, or an
/// [`AbstractMesh`](crate::AbstractMesh) to use the mesh of the arguments.
///
/// Use it to write the communication yourself, because you know a better schedule than the compiler's or need a
/// collective that it would not choose. Otherwise prefer [`jit`](crate::jit()) with sharded arguments, where the compiler
/// inserts the communication. You should compile the mapped function too, because without `jit` a function that captures
/// values is traced again in every call.
///
/// A dimension that a spec names is divided by the size of its axes; shards keep the rank. Results are joined according
/// to `out_specs`. If a spec does not name an axis, all devices along this axis must return the same value. This is
/// checked during tracing, unless you disable it with [`check_vma(false)`](ShardMapped::check_vma).
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 4), ("j", 2)])?;
/// let total = shard_map(|x: Array| psum(x.sum(..), ("i", "j")), &mesh).in_specs(P!["i", "j"]).out_specs(P![]);
/// assert_eq!(jit(total).call(arange(0..64).reshape([8, 8]))?.item::<i32>()?, 2016);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Calling the mapped function returns an error if a dimension does not divide evenly over the axes of its spec, if a result varies
/// over an axis that its spec omits, if a spec names an unknown axis, or if `f` fails.
pub fn shard_map<Args: Tree, F: Function<Args>>(f: F, mesh: impl IntoMesh) -> ShardMapped<F, Args> {
    let mesh = mesh.into_mesh();
    let options = Options { mesh, axis_names: None, in_specs: None, out_specs: None, check_vma: true };
    ShardMapped { f, options, args: PhantomData }
}

impl<F, Args> ShardMapped<F, Args> {
    /// Sets the spec of each argument, or of parts of an argument. The spec splits the argument over the mesh.
    pub fn in_specs(mut self, specs: impl IntoPrefix<PartitionSpec>) -> Self {
        self.options.in_specs = Some(specs.into_prefix());
        self
    }

    /// Sets the spec of each result, or of parts of a result. The spec joins the local results.
    pub fn out_specs(mut self, specs: impl IntoPrefix<PartitionSpec>) -> Self {
        self.options.out_specs = Some(specs.into_prefix());
        self
    }

    /// Sets the manual axes. By default, all axes become manual that are not manual already. The compiler partitions the
    /// body over the other axes.
    pub fn axis_names(mut self, names: impl IntoAxisNames) -> Self {
        self.options.axis_names = Some(names.into_axis_names().to_vec());
        self
    }

    /// Sets whether types track the axes that values vary over (the default). If they do, a result that can differ
    /// between devices must not be declared replicated by `out_specs`, and gradients of replicated arguments are sums
    /// over the devices.
    pub fn check_vma(mut self, check: bool) -> Self {
        self.options.check_vma = check;
        self
    }
}

impl<F: Function<Args>, Args: Tree> ShardMapped<F, Args> {
    /// Traces and lowers the function for arguments of these types, as its [`jit`](crate::jit()) would.
    ///
    /// # Errors
    /// Returns an error if the mesh axes do not divide an argument, or if the function fails while it is traced.
    #[track_caller]
    pub fn lower<A: IntoArgs<Args>>(&self, args: A) -> Result<Lowered<Args, F::Output>> {
        crate::transform::jit::lower(self, args.into_args(), "shard_map")
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for ShardMapped<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(&self.options, self.f.identity())
    }

    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let (key, f) = ((self.f.identity(), &self.options), flat_fn(&self.f));
        implicit_jit::run_shared("shard_map", key, &flat, &|flat| self.options.map(flat, &f))?.build()
    }
}

impl Options {
    fn map(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        let in_specs = match &self.in_specs {
            Some(specs) => specs.resolve(&flat.def, "shard_map in_specs")?,
            None => self.specs_from_types(flat)?.ok_or_else(|| missing_specs("in_specs"))?,
        };
        let out_specs = self.out_specs.as_ref().ok_or_else(|| missing_specs("out_specs"))?;
        self.map_with(flat, f, in_specs, &|def, _| out_specs.resolve(def, "shard_map out_specs"))
    }

    /// Returns the specs that the types of the arguments contain, or `None` if a manual axis is not of type `Explicit`.
    fn specs_from_types(&self, flat: &Flat) -> Result<Option<Vec<PartitionSpec>>> {
        let (mesh, manual) = self.resolve_mesh()?;
        let context = get_abstract_mesh().filter(|context| context.axes() == mesh.axes());
        let types = context.as_ref().unwrap_or(mesh.abstract_mesh());
        if manual.iter().any(|name| types.axis_type(*name) != Some(AxisType::Explicit)) {
            return Ok(None);
        }
        let mut specs = Vec::new();
        for (i, aval) in avals_of(flat)?.iter().enumerate() {
            specs.push(match aval.sharding() {
                Some(typed) => {
                    check_partial(&manual, typed, aval, &|| flat.def.path(i))?;
                    manual_part(typed, &manual)
                }
                None => PartitionSpec::default(),
            });
        }
        Ok(Some(specs))
    }

    /// Applies the mapped function in the current trace. `out_specs` computes the spec of each result from the structure and
    /// ranks of the results, which are known only after tracing.
    fn map_with(
        &self,
        flat: &Flat,
        f: FlatFn<'_>,
        in_specs: Vec<PartitionSpec>,
        out_specs: OutSpecs<'_>,
    ) -> Result<Flat> {
        // Check the specs first, so that the body is only traced for shards that exist.
        let (mesh, manual) = self.resolve_mesh()?;
        in_specs.iter().try_for_each(|spec| check_manual(spec, &manual, &mesh, "in_specs"))?;
        let blocks = avals_of(flat)?
            .iter()
            .zip(&in_specs)
            .enumerate()
            .map(|(i, (aval, spec))| check_in_spec(&mesh, &manual, spec, aval, &|| flat.def.path(i), self.check_vma))
            .collect::<Result<Vec<_>>>()?;
        let manual_axes = Manual { mesh: &mesh, axes: &manual, checked: self.check_vma };
        let mapped = trace_local_shards(manual_axes, flat, &blocks, in_specs, f, &|def, ranks| {
            let specs = out_specs(def, ranks)?;
            specs.iter().try_for_each(|spec| check_manual(spec, &manual, &mesh, "out_specs"))?;
            Ok(specs)
        })?;
        if self.check_vma {
            mapped.map.check_outputs(&mapped.out_def)?;
        }
        mapped.apply(flat)
    }

    /// Returns the mesh and the axes that become manual.
    fn resolve_mesh(&self) -> Result<(Mesh, Vec<AxisName>)> {
        let outer = axis_env::manual();
        let mesh = self.mesh.resolve()?;
        if mesh.axes().is_empty() {
            return Err(err!(Value, "shard_map requires a non-empty mesh, got {mesh}")
                .help("make a mesh with at least one axis: `make_mesh([(\"i\", 8)])`"));
        }
        if let Some((context, _)) = &outer
            && mesh != *context
        {
            return Err(err!(Value, "The context mesh {context} should match the mesh passed to shard_map {mesh}")
                .help("inside of a shard_map, pass `None` for the mesh to use the context mesh"));
        }
        // An axis is manual in one `shard_map` only, so axes that are manual already are left out.
        let outer_manual = outer.map(|(_, names)| names).unwrap_or_default();
        let manual: Vec<AxisName> = match &self.axis_names {
            Some(names) => names.clone(),
            None => mesh.axis_names().filter(|n| !outer_manual.contains(*n)).collect(),
        };
        if let Some(bad) = manual.iter().find(|n| mesh.axis_size(**n).is_none()) {
            return Err(err!(
                Value,
                "shard_map axis_names {manual:?} must be a subset of the axes of the mesh {mesh}: {bad:?} is not one of them"
            ).help("name axes of the mesh, or remove `axis_names` to map over all axes"));
        }
        if let Some(bad) = manual.iter().find(|n| outer_manual.contains(**n)) {
            return Err(err!(Value, "the axis {bad:?} is manual already: an enclosing shard_map or pmap maps over it")
                .help("name only axes that no enclosing shard_map or pmap maps over"));
        }
        if manual.is_empty() {
            return Err(err!(
                Value,
                "every axis of the mesh {mesh} is manual already: there is none left for this shard_map"
            )
            .help("let the outer shard_map map over some axes only, with `axis_names`"));
        }
        Ok((mesh, manual))
    }
}

/// The error for a `shard_map` without specs.
fn missing_specs(what: &str) -> Error {
    err!(
        Type,
        "shard_map needs {what}: it must be a pytree of `PartitionSpec` instances, but it was `None` when the mesh axes are of type AxisType::Auto"
    )
    .help(format!("call `.{what}(P![…])` on it, with one spec for each argument or result"))
}

/// Fails if a spec names axes that are not manual.
fn check_manual(spec: &PartitionSpec, manual: &[AxisName], mesh: &Mesh, what: &str) -> Result<()> {
    NamedSharding::try_new(mesh, spec.clone())?;
    let partial = !spec.unreduced_axes().is_empty() || !spec.reduced_axes().is_empty();
    if partial && !mesh.axis_names().all(|name| manual.contains(&name)) {
        return Err(err!(
            NotImplemented,
            "unreduced and reduced axes can only be in {what} where shard_map is over all axes of the mesh, got {spec} and the manual axes {manual:?} of {mesh}"
        )
        .help("leave axis_names out, or sum with `psum` inside and `reshard` outside"));
    }
    match spec.all_axes().find(|n| !manual.contains(n)) {
        None => Ok(()),
        Some(name) => Err(err!(
            Value,
            "shard_map {what} {spec} refers to {name:?}, but a spec must refer to an axis marked as manual ({manual:?})"
        )
        .help("add the axis to axis_names, or leave its splitting to the compiler")),
    }
}

/// A function mapped over one axis of the context mesh; see [`smap`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Smapped<F, Args> {
    inner: ShardMapped<F, Args>,
    axes: SmapAxes,
}

#[derive(Hash)]
struct SmapAxes {
    in_axes: Option<Axes>,
    out_axes: Option<Axes>,
    axis: AxisName,
}

/// Runs `f` over one axis of the context mesh, each device on its shard: [`shard_map`] with axes instead of specs.
///
/// Shards keep the rank. You can nest calls; each maps over one axis of the mesh.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let _mesh = set_mesh(&make_mesh([("i", 8)])?)?;
/// let f = smap(|x: Array| psum(x, "i"), "i").in_axes(0).out_axes(None);
/// assert_eq!(f.call(device_put(&arange(0..8), P!["i"])?)?.to_vec::<i32>()?, [28]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn smap<Args: Tree, F: Function<Args>>(f: F, axis_name: impl Into<AxisName>) -> Smapped<F, Args> {
    let axis = axis_name.into();
    Smapped { inner: shard_map(f, None).axis_names(axis), axes: SmapAxes { in_axes: None, out_axes: None, axis } }
}

impl<F, Args> Smapped<F, Args> {
    /// Sets the split dimension of each argument, or of parts of an argument. `None` passes the entire argument to every
    /// device.
    pub fn in_axes(mut self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.axes.in_axes = Some(axes.into_prefix());
        self
    }

    /// Sets the dimension along which each result is joined. Use `None` for a result that is equal on all devices.
    pub fn out_axes(mut self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.axes.out_axes = Some(axes.into_prefix());
        self
    }
}

impl<F: Function<Args>, Args: Tree> Smapped<F, Args> {
    /// Traces and lowers the function for arguments of these types, as its [`jit`](crate::jit()) would.
    ///
    /// # Errors
    /// Returns an error if the mesh axes do not divide an argument, or if the function fails while it is traced.
    #[track_caller]
    pub fn lower<A: IntoArgs<Args>>(&self, args: A) -> Result<Lowered<Args, F::Output>> {
        crate::transform::jit::lower(self, args.into_args(), "smap")
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Smapped<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(&self.axes, self.inner.f.identity())
    }

    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let (key, f) = ((self.inner.f.identity(), &self.axes), flat_fn(&self.inner.f));
        implicit_jit::run_shared("smap", key, &flat, &|flat| self.axes.map(&self.inner.options, flat, &f))?.build()
    }
}

impl SmapAxes {
    fn map(&self, inner: &Options, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        let ranks: Vec<usize> = flat.leaves.iter().map(|leaf| leaf.ndim()).collect();
        let out_axes = self.required(&self.out_axes, "out_axes")?;
        let in_specs = self.specs(self.required(&self.in_axes, "in_axes")?, &flat.def, &ranks, "in_axes")?;
        inner.map_with(flat, f, in_specs, &|def, ranks| self.specs(out_axes, def, ranks, "out_axes"))
    }

    /// Returns the axes that the user set, or an error if there are none.
    fn required<'a>(&self, axes: &'a Option<Axes>, what: &str) -> Result<&'a Axes> {
        axes.as_ref().ok_or_else(|| {
            err!(
                Type,
                "smap needs {what}: the axis {:?} is an Auto axis, whose arguments have no sharding in their types",
                self.axis
            )
            .help(format!("call `.{what}(…)` on it"))
        })
    }

    /// Converts axes to specs for values of these ranks.
    fn specs(&self, axes: &Axes, def: &TreeDef, ranks: &[usize], what: &str) -> Result<Vec<PartitionSpec>> {
        let mut specs = Vec::with_capacity(ranks.len());
        for (axis, &rank) in axes.resolve(def, &format!("smap {what}"))?.into_iter().zip(ranks) {
            let spec = PartitionSpec::default();
            let Some(axis) = axis else {
                specs.push(spec);
                continue;
            };
            let d = normalize_axis(axis as isize, rank).map_err(|e| e.context(format!("smap {what}")))?;
            specs.push(spec.insert(d, &[self.axis]));
        }
        Ok(specs)
    }
}

/// Returns the part of a type's sharding that is over the manual axes.
fn manual_part(typed: &Typed, manual: &[AxisName]) -> PartitionSpec {
    let dims = typed.dims().iter();
    let dims = dims.map(|dim| entry(dim.axes().iter().copied().filter(|name| manual.contains(name))));
    PartitionSpec::new(dims).trimmed().with_partial_of(&typed.spec())
}

/// Fails for unreduced or reduced values unless all axes of the mesh are manual.
fn check_partial(manual: &[AxisName], typed: &Typed, aval: &Aval, path: &dyn Fn() -> String) -> Result<()> {
    if typed.is_partial() && !typed.mesh().axis_names().all(|name| manual.contains(&name)) {
        return Err(err!(
            NotImplemented,
            "shard_map over the axes {manual:?} of argument{} of type {aval}: unreduced and reduced arguments are only supported where it is over all axes",
            path()
        )
        .help("leave axis_names out, or sum unreduced arguments, and drop `reduced`, with `reshard(x, P![..])` first"));
    }
    Ok(())
}

/// Fails if the spec of an argument differs from the spec in its type.
fn check_type(manual: &[AxisName], spec: &PartitionSpec, aval: &Aval, path: &dyn Fn() -> String) -> Result<()> {
    let Some(typed) = aval.sharding() else {
        let partial = !spec.unreduced_axes().is_empty() || !spec.reduced_axes().is_empty();
        return if partial { Err(differs(spec, &PartitionSpec::default(), aval, path)) } else { Ok(()) };
    };
    check_partial(manual, typed, aval, path)?;
    // Manual axes must divide a dimension before all other axes, because a block is divided further by the other axes.
    if typed.dims().iter().any(|dim| has_manual_after_other(dim, manual)) {
        return Err(err!(
            Value,
            "shard_map of argument{} of type {aval}: Invalid spec, a dimension is split over the manual axes {manual:?} after others",
            path()
        )
        .help("let the outer axes be manual too, or change the order with `reshard(x, spec)`"));
    }
    let type_spec = manual_part(typed, manual);
    let explicit: PartitionSpec =
        PartitionSpec::new(spec.dims().iter().map(|e| {
            entry(e.axes().iter().copied().filter(|n| typed.mesh().axis_type(*n) == Some(AxisType::Explicit)))
        }));
    let sets = spec.unreduced_axes().iter().chain(spec.reduced_axes().iter());
    let explicit = explicit.trimmed().with_partial_of(spec);
    if type_spec != explicit || sets.into_iter().any(|name| typed.mesh().axis_type(name) != Some(AxisType::Explicit)) {
        return Err(differs(spec, &type_spec, aval, path));
    }
    Ok(())
}

/// Returns `true` if a manual axis divides a dimension after an axis that is not manual.
fn has_manual_after_other(dim: &DimSpec, manual: &[AxisName]) -> bool {
    dim.axes().iter().skip_while(|n| manual.contains(n)).any(|n| manual.contains(n))
}

/// The error for an argument whose type contains another spec than the user passed.
fn differs(spec: &PartitionSpec, type_spec: &PartitionSpec, aval: &Aval, path: &dyn Fn() -> String) -> Error {
    err!(
        Value,
        "in_specs passed to shard_map: {spec} does not match the specs of the input: {type_spec}, of argument{} of type {aval}",
        path()
    )
    .help("remove `in_specs`, or use `reshard(x, spec)` on the argument first")
}

/// Returns the block of an argument, or the error in its spec.
fn check_in_spec(
    mesh: &Mesh,
    manual: &[AxisName],
    spec: &PartitionSpec,
    aval: &Aval,
    path: &dyn Fn() -> String,
    checked: bool,
) -> Result<Aval> {
    if spec.len() > aval.rank() {
        return Err(err!(
            Value,
            "shard_map applied to a function was given an in_specs entry which is too long to be compatible with the corresponding argument: {spec} has {} entries, but argument{} of type {aval} has rank {}",
            spec.len(),
            path(),
            aval.rank()
        )
        .help(if aval.rank() == 0 { "a scalar can only have the spec P![]" } else { "shorten the spec" }));
    }
    // Shards have equal shapes, so every dimension must be divisible.
    for (d, &n) in aval.shape.iter().enumerate() {
        let parts = mesh.axes_size(spec.axes(d))?;
        if n % parts != 0 {
            return Err(err!(
                Value,
                "shard_map applied to a function was given argument{} of type {aval} with in_specs {spec}, but axis {d} of size {n} is not evenly divisible by the corresponding mesh axis sizes: {:?} of total size {parts}",
                path(),
                spec.axes(d)
            )
            .help(format!("make axis {d} a multiple of {parts}")));
        }
    }
    check_type(manual, spec, aval, path)?;
    ShardMap::shard_aval(mesh, manual, spec, aval, checked)
}

/// Fails if the unreduced and reduced axes of a result differ from its spec. The spec can declare a varying result
/// unreduced.
fn check_out_sets(block: &Aval, spec: &PartitionSpec, path: &dyn Fn() -> String) -> Result<()> {
    let empty = AxisSet::default();
    let (unreduced, reduced) = block.sharding().map_or((&empty, &empty), |typed| (typed.unreduced(), typed.reduced()));
    let addends = spec.unreduced_axes();
    let kind = block.sharding().filter(|_| !unreduced.is_empty()).map_or(spec.kind(), Typed::kind);
    if kind == spec.kind()
        && unreduced.is_subset(addends)
        && addends.is_subset(&unreduced.union(&block.vma))
        && reduced == spec.reduced_axes()
    {
        return Ok(());
    }
    Err(err!(
        Value,
        "out_specs passed to shard_map should be equal to the unreduced and reduced axes of the output: got {spec} for output{} of type {block}",
        path()
    )
    .help("name these axes in the spec, or sum the output with `psum` or cast it with `pcast_to` inside"))
}

impl ShardMap {
    /// Fails if a result can vary over an axis that its spec does not name.
    fn check_outputs(&self, def: &TreeDef) -> Result<()> {
        // All outputs are checked, so that one error lists every problem.
        let mut problems = Vec::new();
        for (i, (block, spec)) in self.body.out_avals().iter().zip(&self.out_specs).enumerate() {
            let mapped_axes: AxisSet = self.axes().collect();
            let named: AxisSet = spec.all_axes().chain(spec.unreduced_axes().iter()).collect();
            let extra: AxisSet = block.vma.iter().filter(|n| mapped_axes.contains(*n) && !named.contains(*n)).collect();
            if !extra.is_empty() {
                let path = def.path(i);
                problems
                    .push(format!("  * output{path} of type {block} has the spec {spec}, but may vary over {extra}"));
            }
            check_out_sets(block, spec, &|| def.path(i))?;
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(err!(
            Value,
            "shard_map applied to a function was given out_specs which require replication which can't be statically inferred given the mesh: {}\n{}",
            self.mesh,
            problems.join("\n")
        )
        .help("reduce the output over these axes (psum, pmean, …), name them in out_specs, or, if you know that it is the same on all devices, turn the check off with check_vma(false)"))
    }
}
