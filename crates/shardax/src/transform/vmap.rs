//! `vmap`: turns a function of one example into a function of a batch.

use std::hash::Hash;
use std::marker::PhantomData;

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::function::{Function, identity_of};
use crate::core::prefix::{Axes, IntoPrefix, Prefix, mapped_size};
use crate::core::primitive::BatchAxis;
use crate::core::program::Aval;
use crate::core::tree::{Flat, Tree};
use crate::error::{Result, err};
use crate::interpret::batching::{batch_eval, bound};
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, trace_flat};
use crate::ops::state::check_unwritten;
use crate::runtime::implicit_jit;
use crate::scope;
use crate::shape::{AxisName, IntoAxisNames, normalize_axis};
use crate::sharding::DimSpec;
use crate::sharding::axis_env::{with_axes, with_spmd};

/// A vectorized function; see [`vmap`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Vmap<F, Args> {
    f: F,
    options: Options,
    args: PhantomData<fn(Args)>,
}

#[derive(Hash)]
struct Options {
    in_axes: Axes,
    out_axes: Axes,
    axis_name: Option<AxisName>,
    axis_size: Option<usize>,
    spmd_axis_name: SmallVec<[AxisName; 2]>,
}

/// Maps `f` over an axis of its arguments: over axis 0 of each, unless [`in_axes`](Vmap::in_axes) specifies another.
///
/// Write `f` for one example, and `vmap` turns its operations into operations on the batch, so that a product of a vector
/// becomes a product of a matrix. All entries are computed at once. If their intermediate values need too much memory,
/// use [`lax::map`](crate::lax::map), which computes one entry or a few at a time.
///
/// ```
/// # use shardax::prelude::*;
/// let dots = vmap(|x: Array, y: Array| x.dot(y)).in_axes((0, None));
/// let rows = dots.call((array([[1.0f32, 2.0], [3.0, 4.0]]), array([10.0f32, 1.0])))?;
/// assert_eq!(rows.to_vec::<f32>()?, [12.0, 34.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Calling the mapped function returns an error if the mapped axes differ in size, if no argument is mapped, or if `f` fails or
/// calls an operation that cannot be mapped, such as an ordered callback.
pub fn vmap<Args: Tree, F: Function<Args>>(f: F) -> Vmap<F, Args> {
    Vmap {
        f,
        options: Options {
            in_axes: Prefix::Leaf(Some(0)),
            out_axes: Prefix::Leaf(Some(0)),
            axis_name: None,
            axis_size: None,
            spmd_axis_name: SmallVec::new(),
        },
        args: PhantomData,
    }
}

impl<F, Args> Vmap<F, Args> {
    /// Sets the mapped axis of each argument, or of parts of it; `None` means not mapped.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = vmap(|w: Array, x: Array| w.dot(&x)).in_axes((None, 1)); // one `w` for all columns of `x`
    /// assert_eq!(f.call((array([1, 10]), array([[1, 2, 3], [4, 5, 6]])))?.to_vec::<i32>()?, [41, 52, 63]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn in_axes(mut self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.options.in_axes = axes.into_prefix();
        self
    }

    /// Sets the mapped axis of each result, or of parts of it; `None` for results that do not depend on it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = vmap(|x: Array| stack(&[x.clone(), x * 10], 0)).out_axes(1);
    /// assert_eq!(f.call(array([1, 2, 3]))?.shape(), [2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn out_axes(mut self, axes: impl IntoPrefix<Option<i32>>) -> Self {
        self.options.out_axes = axes.into_prefix();
        self
    }

    /// Names the axis, so that `f` can use collectives such as [`psum`](crate::psum) over the entries.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = vmap(|x: Array| &x - pmean(x.clone(), "i")).axis_name("i");
    /// assert_eq!(f.call(array([1.0f32, 2.0, 3.0]))?.to_vec::<f32>()?, [-1.0, 0.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn axis_name(mut self, name: impl Into<AxisName>) -> Self {
        self.options.axis_name = Some(name.into());
        self
    }

    /// Sets the size of the axis, if no argument has one.
    pub fn axis_size(mut self, size: usize) -> Self {
        self.options.axis_size = Some(size);
        self
    }

    /// Sets the mesh axis, or axes, that the mapped axis is sharded over in inner `shard_map`s and sharding
    /// constraints.
    pub fn spmd_axis_name(mut self, names: impl IntoAxisNames) -> Self {
        self.options.spmd_axis_name = names.into_axis_names();
        self
    }
}

/// Fails if a value that is not mapped is split over mesh axes that the mapped dimensions are split over.
fn check_free(aval: &Aval, entry: &DimSpec) -> Result<()> {
    match aval.sharding().and_then(|typed| typed.split_axes().find(|name| entry.axes().contains(name))) {
        None => Ok(()),
        Some(name) => Err(err!(
            Value,
            "vmap maps over a dimension that is sharded over {name:?}, and a value of type {aval} that is not mapped is too"
        )
        .help("gather that value first with `reshard(x, spec)`, or map over it as well")),
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Vmap<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(&self.options, self.f.identity())
    }

    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let (key, f) = ((self.f.identity(), &self.options), flat_fn(&self.f));
        implicit_jit::run_shared("vmap", key, &flat, &|flat| self.options.map(flat, &f))?.build()
    }
}

impl Options {
    /// The mesh axes of type `Explicit` that the mapped dimensions are split over.
    fn mapped_entry(&self, avals: &[Aval], dims: &[Option<usize>]) -> Result<DimSpec> {
        let mut mapped = avals.iter().zip(dims).filter_map(|(a, d)| Some((a, a.sharding()?.dims()[(*d)?].clone())));
        let Some((first, entry)) = mapped.next() else { return Ok(DimSpec::None) };
        if let Some((other, _)) = mapped.find(|(_, other_entry)| *other_entry != entry) {
            return Err(err!(
                Value,
                "Mapped away dimension of inputs passed to vmap should be sharded the same. Got inconsistent axis specs: {first} and {other}"
            )
            .help("reshard the mapped dimensions to one sharding with `reshard(x, spec)`"));
        }
        let spmd: DimSpec = crate::sharding::typed::entry(self.spmd_axis_name.iter().copied());
        if entry != DimSpec::None && spmd != DimSpec::None && spmd != entry {
            return Err(err!(
                Value,
                "vmap spmd_axis_name {:?} must be what the mapped dimension of {first} is sharded over",
                self.spmd_axis_name
            )
            .help("leave `spmd_axis_name` out: the types say it"));
        }
        for (aval, _) in avals.iter().zip(dims).filter(|(_, d)| d.is_none()) {
            check_free(aval, &entry)?;
        }
        Ok(entry)
    }

    fn map(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
        let avals = avals_of(flat)?;
        let dims = self.in_axes.dims(&flat.def, &avals, "vmap")?;
        let size = mapped_size(&flat.def, &avals, &dims, self.axis_size, "vmap")?;
        let Some(size) = size else {
            return Err(err!(Value, "vmap must have at least one non-None value in in_axes, or an axis_size")
                .help("call `.axis_size(n)` when no argument is mapped"));
        };
        let explicit = self.mapped_entry(&avals, &dims)?;
        let mapped = avals.iter().zip(&dims).filter(|(_, dim)| dim.is_some());
        let mesh = mapped.filter_map(|(aval, _)| aval.sharding()).next().map(|typed| typed.mesh().clone());
        let axis = BatchAxis { size, name: self.axis_name, spmd_names: self.spmd_axis_name.clone(), explicit, mesh };

        // Traces the function for one entry of the batch, and evaluates the trace on all entries.
        let inner: Vec<_> = avals
            .iter()
            .zip(&dims)
            .map(|(aval, dim)| dim.map_or_else(|| aval.clone(), |d| aval.without_dim(d)))
            .collect();
        let (traced, out_def) =
            with_spmd(&axis.spmd_names, || with_axes(bound(&axis), || trace_flat(&flat.def, &inner, f)))?;
        check_unwritten(&traced.program, "vmap")?;
        for captured in &traced.captures {
            check_free(&captured.aval(), &axis.explicit)?;
        }
        let args: Vec<Array> = traced.captures.iter().chain(&flat.leaves).cloned().collect();
        let all_dims: Vec<_> = std::iter::repeat_n(None, traced.captures.len()).chain(dims).collect();
        let (outs, out_dims) = scope::transform("vmap", || batch_eval(&traced.program, &axis, &args, &all_dims))?;

        let out_axes = self.out_axes.resolve(&out_def, "vmap out_axes")?;
        let leaves = outs
            .into_iter()
            .zip(out_dims)
            .zip(out_axes)
            .map(|((out, dim), want)| match (want, dim) {
                (None, None) => Ok(out),
                (None, Some(_)) => Err(err!(
                    Value,
                    "at vmap out_axes, got axis spec None but output was batched on axis {}",
                    dim.unwrap_or(0)
                )
                .help(
                    "choose an axis for the output, or reduce it over the mapped axis with a collective (`axis_name`)",
                )),
                (Some(want), dim) => {
                    let rank = out.ndim() + dim.is_none() as usize;
                    let to = normalize_axis(want as isize, rank).map_err(|e| e.context("vmap out_axes"))?;
                    Ok(axis.moved(&out, dim, to))
                }
            })
            .collect::<Result<_>>()?;
        Ok(Flat { leaves, def: out_def })
    }
}
