//! `shard_map` as users call it.

use std::marker::PhantomData;
use std::sync::Arc;

use smallvec::SmallVec;

use super::ShardMap;
use crate::error::{Result, err};
use crate::function::Function;
use crate::prefix::{IntoPrefix, Specs};
use crate::program::trace::{Traced, bind, check_usable};
use crate::sharding::{Mesh, PartitionSpec};
use crate::transform::staged::{self, FlatFn, avals_of, flat_fn, trace_flat};
use crate::tree::{Flat, Tree};

/// A function that each device runs on its blocks; see [`shard_map`].
pub struct ShardMapped<F, Args> {
    f: F,
    mesh: Mesh,
    in_specs: Option<Specs>,
    out_specs: Option<Specs>,
    check_vma: bool,
    args: PhantomData<fn(Args)>,
}

/// Runs `f` on every device of `mesh`, each on its block of the arguments.
///
/// A dimension that a spec names is divided by the size of its axes; blocks keep their rank. Results are joined as
/// `out_specs` say; an axis that a spec does not name promises that all devices along it return the same, which is
/// checked while tracing unless [`check_vma(false)`](ShardMapped::check_vma) says otherwise.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 4), ("j", 2)])?;
/// let total = shard_map(|x: Array| psum(x.sum(..), ("i", "j")), &mesh).in_specs(P!["i", "j"]).out_specs(P![]);
/// assert_eq!(jit(total).call(arange(0..64).reshape([8, 8]))?.item::<i32>()?, 2016);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn shard_map<Args: Tree, F: Function<Args>>(f: F, mesh: &Mesh) -> ShardMapped<F, Args> {
    ShardMapped { f, mesh: mesh.clone(), in_specs: None, out_specs: None, check_vma: true, args: PhantomData }
}

impl<F, Args> ShardMapped<F, Args> {
    /// How each argument, or part of one, is split over the mesh.
    pub fn in_specs(mut self, specs: impl IntoPrefix<PartitionSpec>) -> Self {
        self.in_specs = Some(specs.into_prefix());
        self
    }

    /// How the results of the devices, or parts of them, are joined.
    pub fn out_specs(mut self, specs: impl IntoPrefix<PartitionSpec>) -> Self {
        self.out_specs = Some(specs.into_prefix());
        self
    }

    /// Whether types track which axes values vary over (the default). It makes results that `out_specs` call
    /// replicated an error where they may differ, and gradients of replicated arguments sums over the devices.
    pub fn check_vma(mut self, check: bool) -> Self {
        self.check_vma = check;
        self
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for ShardMapped<F, Args> {
    type Output = F::Output;

    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::of(&args);
        let f = flat_fn(&self.f);
        staged::run("shard_map", &flat, &|flat| self.map(flat, &f))?.build()
    }
}

impl<F, Args> ShardMapped<F, Args> {
    fn map(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        let missing = |what: &str| {
            err!(Type, "shard_map needs {what}")
                .help(format!("call `.{what}(P![…])` on it, with one spec for each argument or result"))
        };
        let in_specs = self.in_specs.as_ref().ok_or_else(|| missing("in_specs"))?;
        let out_specs = self.out_specs.as_ref().ok_or_else(|| missing("out_specs"))?;
        // A spec for a function of one argument may be given bare.
        let in_specs = in_specs.resolve(&flat.def, "shard_map in_specs")?;
        let paths = flat.def.paths();
        let whole = avals_of(flat)?;
        let blocks = whole
            .iter()
            .zip(&in_specs)
            .zip(&paths)
            .map(|((aval, spec), path)| check_in_spec(&self.mesh, spec, aval, path, self.check_vma))
            .collect::<Result<Vec<_>>>()?;
        let (Traced { program, captures }, out_def) =
            ShardMap::bind_axes(&self.mesh, self.check_vma, || trace_flat(&flat.def, &blocks, f))?;
        let call = ShardMap {
            mesh: self.mesh.clone(),
            in_specs: std::iter::repeat_n(PartitionSpec::default(), captures.len()).chain(in_specs).collect(),
            out_specs: out_specs.resolve(&out_def, "shard_map out_specs")?,
            checked: self.check_vma,
            body: program,
        };
        if self.check_vma {
            call.check_outputs(&out_def.paths())?;
        }
        let args: Vec<_> = captures.iter().chain(&flat.leaves).cloned().collect();
        let leaves: SmallVec<[_; 8]> = bind(Arc::new(call), &args).into_iter().collect();
        leaves.iter().try_for_each(check_usable)?;
        Ok(Flat { leaves, def: out_def })
    }
}

/// The block of an argument, or what is wrong with its spec.
fn check_in_spec(
    mesh: &Mesh,
    spec: &PartitionSpec,
    aval: &crate::program::Aval,
    path: &str,
    checked: bool,
) -> Result<crate::program::Aval> {
    if spec.len() > aval.rank() {
        return Err(err!(
            Value,
            "shard_map applied to a function was given an in_specs entry which is too long to be compatible with the corresponding argument: {spec} has {} entries, but argument{path} of type {aval} has rank {}",
            spec.len(),
            aval.rank()
        )
        .help(if aval.rank() == 0 { "a scalar can only have the spec P![]" } else { "shorten the spec" }));
    }
    for (d, &n) in aval.shape.iter().enumerate() {
        let parts = mesh.axes_size(spec.axes(d))?;
        if n % parts != 0 {
            return Err(err!(
                Value,
                "shard_map applied to a function was given argument{path} of type {aval} with in_specs {spec}, but axis {d} of size {n} is not evenly divisible by the corresponding mesh axis sizes: {:?} of total size {parts}",
                spec.axes(d)
            )
            .help(format!("make axis {d} a multiple of {parts}")));
        }
    }
    ShardMap::block(mesh, spec, aval, checked)
}

impl ShardMap {
    /// Fails where a result may vary over an axis that its spec does not name.
    fn check_outputs(&self, paths: &[String]) -> Result<()> {
        let mut bad = Vec::new();
        for ((block, spec), path) in self.body.out_avals().iter().zip(&self.out_specs).zip(paths) {
            let extra = block.vma.minus(&spec.all_axes().collect());
            if !extra.is_empty() {
                bad.push(format!("  * output{path} of type {block} has the spec {spec}, but may vary over {extra}"));
            }
        }
        if bad.is_empty() {
            return Ok(());
        }
        Err(err!(
            Value,
            "shard_map applied to a function was given out_specs which require replication which can't be statically inferred given the mesh: {}\n{}",
            self.mesh,
            bad.join("\n")
        )
        .help("reduce the output over these axes (psum, pmean, …), name them in out_specs, or, if you know that it is the same on all devices, turn the check off with check_vma(false)"))
    }
}
