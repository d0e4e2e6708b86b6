//! Ranks, modes and standard errors of samples.

use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::constants::integer;
use crate::ops::lax;
use crate::ops::numpy::{IntoAxis, IntoReduction, filled, ones_dtype, promote_dtypes, to_inexact, where_, with_axis};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::shape::Shape;

/// The rank of equal elements in [`rankdata`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankMethod {
    /// The mean of the ranks that the elements would have if they differed.
    #[default]
    Average,
    /// The smallest rank that the elements would have if they differed.
    Min,
    /// The largest rank that the elements would have if they differed.
    Max,
    /// Like `Min`, but the next larger element has the next rank.
    Dense,
    /// Equal elements have different ranks, in the order in which they occur.
    Ordinal,
}

/// JAX's names.
impl NamedOption for RankMethod {
    const KIND: &'static str = "method";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("average", RankMethod::Average),
        ("min", RankMethod::Min),
        ("max", RankMethod::Max),
        ("dense", RankMethod::Dense),
        ("ordinal", RankMethod::Ordinal),
    ];
}

/// Returns the ranks of the elements along `axis` (`..`: of the flat array), starting at 1, in float32. If a row
/// contains NaN, all its ranks are NaN.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::stats::{RankMethod, rankdata};
/// let x = array([0, 2, 3, 2]);
/// assert_eq!(rankdata(&x, RankMethod::Average, ..).to_vec::<f32>()?, [1.0, 2.5, 4.0, 2.5]);
/// assert_eq!(rankdata(&x, RankMethod::Dense, 0).to_vec::<f32>()?, [1.0, 2.0, 3.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rankdata(a: impl ArrayLike, method: impl IntoChoice<RankMethod>, axis: impl IntoAxis) -> Array {
    let (a, method) = (a.into_array(), method.into_choice());
    or_failed(&a, || {
        let method = method.value("rankdata")?;
        let (x, axis) = with_axis(&a, axis)?;
        composite1("rankdata", (method, axis), &[x], |&(method, axis), args| {
            let x = args[0].moveaxis(axis as i32, -1);
            Ok(vec![ranks(&x, method).moveaxis(-1, axis as i32)])
        })
    })
}

fn ranks(x: &Array, method: RankMethod) -> Array {
    let order = x.argsort(-1);
    let Runs { start, end, number } = Runs::of(&x.take_along_axis(&order, -1));
    let rank = match method {
        RankMethod::Average => (&start + end + 1).astype(DType::F32) * 0.5,
        RankMethod::Min => (start + 1).astype(DType::F32),
        RankMethod::Max => end.astype(DType::F32),
        RankMethod::Dense => number.astype(DType::F32),
        RankMethod::Ordinal => lax::iota(DType::F32, x.shape(), x.ndim() - 1) + 1,
    };
    let rank = rank.take_along_axis(order.argsort(-1), -1);
    let undefined = x.not_equal(x).any(-1).expand_dims(-1);
    where_(undefined, f64::NAN, rank)
}

/// Runs of equal elements along the last axis of a sorted array. For each element: the start and the (exclusive) end of its run, and the
/// number of the run, starting at 1.
struct Runs {
    start: Array,
    end: Array,
    number: Array,
}

impl Runs {
    fn of(sorted: &Array) -> Runs {
        let (shape, last) = (sorted.shape(), sorted.ndim() - 1);
        let n = shape[last];
        // The start and the end of a run are added.
        let dtype = DType::for_indices(&[n.saturating_mul(2)]);
        let place = lax::iota(dtype, shape, last);
        let (before, after) =
            (lax::slice_in_dim(sorted, 0, n.max(1) - 1, last), lax::slice_in_dim(sorted, n.min(1), n, last));
        // NaN equals NaN here, as in `unique`.
        let changes = before.not_equal(&after) & !(before.not_equal(&before) & after.not_equal(&after));
        let mut edge: Shape = shape.into();
        edge[last] = n.min(1);
        let edge = filled(&edge, crate::dtype::Scalar::Int(1), DType::Bool);
        let begins = lax::concatenate(&[edge.clone(), changes.clone()], last);
        let ends = lax::concatenate(&[changes, edge], last);
        let start = where_(&begins, &place, 0).cummax(last as i32);
        let end =
            where_(ends, place + 1, integer(n as i128, dtype)).flip(last as i32).cummin(last as i32).flip(last as i32);
        Runs { start, end, number: begins.astype(dtype).cumsum(last as i32) }
    }
}

/// The result of [`mode`].
#[derive(Clone, Debug, shardax_macros::Tree)]
pub struct ModeResult {
    /// The most frequent elements; if several are equally frequent, the smallest.
    pub mode: Array,
    /// The counts of the most frequent elements, int32.
    pub count: Array,
}

/// Returns the most frequent elements along `axis` (`..`: of the flat array), and their counts. All NaN count as the
/// same element. Without elements, the mode is NaN with count 0, in float32.
///
/// ```
/// # use shardax::prelude::*;
/// let found = shardax::scipy::stats::mode(array([[1, 3, 3], [2, 2, 1]]), 1)?;
/// assert_eq!((found.mode.to_vec::<i32>()?, found.count.to_vec::<i32>()?), (vec![3, 2], vec![2, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for an axis out of bounds.
#[track_caller]
pub fn mode(a: impl ArrayLike, axis: impl IntoAxis) -> Result<ModeResult> {
    let a = a.into_array();
    let mut outputs = at_caller(|| {
        a.check()?;
        let a = if a.ndim() == 0 { a.reshape([1]) } else { a.clone() };
        let (x, axis) = with_axis(&a, axis)?;
        composite("mode", axis, 2, &[x], |&axis, args| {
            let x = args[0].moveaxis(axis as i32, -1);
            let lead = &x.shape()[..x.ndim() - 1];
            if x.shape()[x.ndim() - 1] == 0 {
                return Ok([f64::NAN, 0.0].map(|v| filled(lead, crate::dtype::Scalar::float(v), DType::F32)).to_vec());
            }
            let sorted = x.sort(-1);
            let runs = Runs::of(&sorted);
            let dtype = DType::for_indices(&x.shape()[x.ndim() - 1..]);
            let count = runs.end - runs.start;
            let most_frequent = count.argmax(-1).expand_dims(-1);
            Ok(vec![sorted.take_along_axis(most_frequent, -1).squeeze(-1), count.max(-1).astype(dtype)])
        })
    })?;
    let (count, mode) = (outputs.pop(), outputs.pop());
    match (mode, count) {
        (Some(mode), Some(count)) => Ok(ModeResult { mode, count }),
        _ => crate::error::bail!(Runtime, "internal error: mode did not return two results; please report this"),
    }
}

/// Returns the standard error of the mean over `axes`: the standard deviation divided by the square root of the number
/// of elements. `ddof` is subtracted from the number of elements in the standard deviation. You can exclude elements
/// with a mask ([`over`](crate::numpy::over)).
///
/// ```
/// # use shardax::prelude::*;
/// let error = shardax::scipy::stats::sem(array([1.0f32, 2.0, 3.0, 4.0]), 0, 1);
/// assert!((error.item::<f32>()? - 0.645497).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sem(a: impl ArrayLike, axes: impl IntoReduction, ddof: usize) -> Array {
    let (a, over) = (a.into_array(), axes.into_reduction());
    or_failed(&a, || {
        let x = promote_dtypes(&[&a], to_inexact)?.swap_remove(0);
        let count = ones_dtype(x.shape(), DType::F32).sum(over.clone());
        Ok(x.std_ddof(over, ddof) / count.sqrt().astype(x.dtype().real()))
    })
}
