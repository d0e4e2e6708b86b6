//! Collectives over one or more named axes, on arrays and trees. They fail if no enclosing `pmap`, `vmap` or
//! `shard_map` binds the name.

use super::axes::Axes;
use super::gather::{AllGather, PsumScatter};
use super::permute::{AllToAll, AxisIndex, Ppermute};
use super::reduce::{AllReduce, CastTo, Pcast};
use crate::core::array::{Array, Repr};
use crate::core::program::trace::{bind1, record_error};
use crate::core::tree::{self, Tree};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::primitive::reduce::Reducer;
use crate::ops::promotion::{convert, to_inexact};
use crate::shape::{AxisNumber, IntoAxisNames, normalize_axis};
use crate::sharding::{AxisType, axis_env};
use crate::source;

/// Applies a collective to every leaf. If it fails, the leaves carry the error.
#[track_caller]
fn on_leaves<T: Tree>(x: T, axis: impl IntoAxisNames, name: &str, f: impl Fn(&Array, &Axes) -> Result<Array>) -> T {
    let location = std::panic::Location::caller();
    let _line = source::enter_at(location);
    let groups = axis.groups();
    let axes = Axes::bound(&axis.into_axis_names(), name)
        .and_then(|axes| axes.with_groups(groups))
        // A cast moves no data, so `no_collectives` allows it.
        .and_then(|axes| if name == "pcast" { Ok(axes) } else { axes.allowed(name) })
        .map_err(|e| e.at(location));
    // A tree without arrays has no leaf to carry the error.
    let _ = axes.as_ref().inspect_err(|e| record_error(e));
    let unchanged = x.clone();
    tree::map(
        |leaf: Array| {
            let result = axes.clone().and_then(|axes| {
                leaf.check()?;
                f(&leaf, &axes)
            });
            Array::from_result(result.map_err(|e| e.at(location)), &leaf)
        },
        x,
    )
    .unwrap_or(unchanged)
}

/// Looks up axes that must not be split into groups.
fn ungrouped_axes(axis: impl IntoAxisNames, name: &str) -> Result<Axes> {
    let groups = axis.groups();
    let axes = Axes::bound(&axis.into_axis_names(), name)?.with_groups(groups)?;
    axes.no_groups(name)?;
    Ok(axes)
}

/// Returns `true` if tracing knows the value, so that all participants have the same value.
fn is_constant(x: &Array) -> bool {
    matches!(x.0, Repr::Literal(_) | Repr::Concrete(_))
}

/// Sums over all participants of the axis; every participant receives the sum. Booleans are counted as int32.
///
/// ```text
/// device   0  1  2  3  4  5  6  7
/// x        0  1  2  3  4  5  6  7
/// psum    28 28 28 28 28 28 28 28
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let total = pmap(|x: Array| psum(x, "i")).axis_name("i").call(arange(0..8))?;
/// assert_eq!(total.to_vec::<i32>()?, [28; 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn psum<T: Tree>(x: T, axis: impl IntoAxisNames) -> T {
    on_leaves(x, axis, "psum", |x, axes| Ok(sum(x, axes)))
}

#[track_caller]
fn sum(x: &Array, axes: &Axes) -> Array {
    let x = if x.dtype() == DType::Bool { x.astype(DType::I32) } else { x.clone() };
    // A constant needs no communication if all groups have one size.
    if is_constant(&x) && axes.size != 0 {
        return x * axes.size;
    }
    AllReduce { reducer: Reducer::Sum, axes: axes.clone() }.apply(&x)
}

/// Averages over all participants of the axis; every participant receives the mean. Integers and booleans become
/// float32.
///
/// ```text
/// device    0    1    2    3
/// x         1    2    3    6
/// pmean   3.0  3.0  3.0  3.0
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mean = pmap(|x: Array| pmean(x, "i")).axis_name("i").call(array([1, 2, 3, 6]))?;
/// assert_eq!(mean.to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pmean<T: Tree>(x: T, axis: impl IntoAxisNames) -> T {
    on_leaves(x, axis, "pmean", |x, axes| {
        let x = convert(x, to_inexact(x.dtype()), x.weak_type());
        let count = match axes.size {
            0 => sum(&Array::literal(Scalar::Int(1), x.dtype(), false), axes),
            n => Array::literal(Scalar::Int(n as i128), x.dtype(), true),
        };
        Ok(sum(&x, axes) / count)
    })
}

/// Computes the elementwise maximum over all participants of the axis.
///
/// ```text
/// device       0       1
/// x       [1, 8]  [5, 2]
/// pmax    [5, 8]  [5, 8]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let most = pmap(|x: Array| pmax(x, "i")).axis_name("i").call(array([[1, 8], [5, 2]]))?;
/// assert_eq!(most.to_vec::<i32>()?, [5, 8, 5, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pmax<T: Tree>(x: T, axis: impl IntoAxisNames) -> T {
    on_leaves(x, axis, "pmax", |x, axes| Ok(extreme(x, axes, Reducer::Max)))
}

/// Computes the elementwise minimum over all participants of the axis.
///
/// ```text
/// device       0       1
/// x       [1, 8]  [5, 2]
/// pmin    [1, 2]  [1, 2]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let least = pmap(|x: Array| pmin(x, "i")).axis_name("i").call(array([[1, 8], [5, 2]]))?;
/// assert_eq!(least.to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pmin<T: Tree>(x: T, axis: impl IntoAxisNames) -> T {
    on_leaves(x, axis, "pmin", |x, axes| Ok(extreme(x, axes, Reducer::Min)))
}

#[track_caller]
fn extreme(x: &Array, axes: &Axes, reducer: Reducer) -> Array {
    if is_constant(x) {
        return x.clone();
    }
    AllReduce { reducer, axes: axes.clone() }.apply(x)
}

/// Stacks the values of all participants along a new dimension at `dim`.
///
/// ```text
/// device            0       1
/// x                 0       1
/// all_gather   [0, 1]  [0, 1]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// let f = vmap(|x: Array| all_gather(x, "i", 0)).axis_name("i");
/// assert_eq!(f.call(arange(0..2))?.to_vec::<i32>()?, [0, 1, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn all_gather<T: Tree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T {
    let dim = dim.axis_number();
    on_leaves(x, axis, "all_gather", |x, axes| {
        axes.even_size("all_gather")?;
        let dim = normalize_axis(dim as isize, x.ndim() + 1)?;
        Ok(AllGather { axes: axes.clone(), dim, invariant: false }.apply(&x.expand_dims(dim as i32)))
    })
}

/// Concatenates the values of all participants along the existing dimension `dim`.
///
/// ```text
/// device                        0             1
/// x                        [1, 2]        [3, 4]
/// all_gather_tiled   [1, 2, 3, 4]  [1, 2, 3, 4]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let all = pmap(|x: Array| all_gather_tiled(x, "i", 0)).axis_name("i").call(array([[1, 2], [3, 4]]))?;
/// assert_eq!(all.shape(), [2, 4]);
/// assert_eq!(all.to_vec::<i32>()?, [1, 2, 3, 4, 1, 2, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn all_gather_tiled<T: Tree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T {
    let dim = dim.axis_number();
    on_leaves(x, axis, "all_gather", |x, axes| {
        axes.even_size("all_gather")?;
        let dim = normalize_axis(dim as isize, x.ndim())?;
        Ok(AllGather { axes: axes.clone(), dim, invariant: false }.apply(x))
    })
}

/// Like [`all_gather_tiled`], but the result is typed as equal on all participants (JAX's `to='invarying'`), so that a
/// `shard_map` that checks varying axes can return it as replicated.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 2)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let f = shard_map(|x: Array| all_gather_invariant(x, "i", 0), None).in_specs(P!["i"]).out_specs(P![]);
/// assert_eq!(f.call(array([1, 2, 3, 4]))?.to_vec::<i32>()?, [1, 2, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn all_gather_invariant<T: Tree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T {
    let dim = dim.axis_number();
    on_leaves(x, axis, "all_gather", |x, axes| {
        let size = axes.even_size("all_gather")?;
        let dim = normalize_axis(dim as isize, x.ndim())?;
        Ok(AllGather { axes: axes.clone(), dim, invariant: size > 0 }.apply(x))
    })
}

/// Sums over all participants and scatters the sum: participant `i` receives slice `i` along `dim`. The size of `dim`
/// must equal the number of participants, and the result lacks `dim`.
///
/// ```text
/// device              0       1
/// x              [1, 2]  [3, 4]
/// psum_scatter        4       6
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// let f = vmap(|x: Array| psum_scatter(x, "i", 0)).axis_name("i");
/// assert_eq!(f.call(array([[1, 2], [3, 4]]))?.to_vec::<i32>()?, [4, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn psum_scatter<T: Tree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T {
    let dim = dim.axis_number();
    on_leaves(x, axis, "psum_scatter", |x, axes| {
        axes.even_size("psum_scatter")?;
        let dim = normalize_axis(dim as isize, x.ndim())?;
        if x.shape()[dim] != axes.size {
            return Err(err!(
                Value,
                "reduce_scatter operand scatter dimension size {} must match shard count {}",
                x.shape()[dim],
                axes.size
            )
            .help("use psum_scatter_tiled for dimensions that are a multiple of it"));
        }
        Ok(PsumScatter { axes: axes.clone(), dim }.apply(x).squeeze(dim as i32))
    })
}

/// Sums over all participants and scatters the sum: each participant receives its part along `dim`. The number of
/// participants must divide the size of `dim`.
///
/// ```text
/// device                           0             1
/// x                     [1, 2, 3, 4]  [5, 6, 7, 8]
/// psum_scatter_tiled          [6, 8]      [10, 12]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| psum_scatter_tiled(x, "i", 0)).axis_name("i");
/// let parts = f.call(array([[1, 2, 3, 4], [5, 6, 7, 8]]))?;
/// assert_eq!(parts.shape(), [2, 2]);
/// assert_eq!(parts.to_vec::<i32>()?, [6, 8, 10, 12]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn psum_scatter_tiled<T: Tree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T {
    let dim = dim.axis_number();
    on_leaves(x, axis, "psum_scatter", |x, axes| {
        axes.even_size("psum_scatter")?;
        let dim = normalize_axis(dim as isize, x.ndim())?;
        Ok(PsumScatter { axes: axes.clone(), dim }.apply(x))
    })
}

/// Sends slice `i` along `split` to participant `i`, which stacks the slices it receives at `concat`. The size of
/// `split` must equal the number of participants, and the result lacks `split`.
///
/// ```text
/// device            0       1
/// x            [1, 2]  [3, 4]
/// all_to_all   [1, 3]  [2, 4]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// let transpose = vmap(|x: Array| all_to_all(x, "i", 0, 0)).axis_name("i");
/// assert_eq!(transpose.call(array([[1, 2], [3, 4]]))?.to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn all_to_all<T: Tree>(x: T, axis: impl IntoAxisNames, split: impl AxisNumber, concat: impl AxisNumber) -> T {
    let (split, concat) = (split.axis_number(), concat.axis_number());
    on_leaves(x, axis, "all_to_all", |x, axes| {
        axes.even_size("all_to_all")?;
        let split = normalize_axis(split as isize, x.ndim())?;
        let concat = normalize_axis(concat as isize, x.ndim())?;
        if x.shape()[split] != axes.size {
            return Err(err!(
                Value,
                "all_to_all requires the size of the mapped axis axis_name to equal x.shape[split_axis], but they are {} and {} respectively",
                axes.size,
                x.shape()[split]
            ).help("use all_to_all_tiled for dimensions that are a multiple of it"));
        }
        // The split dimension now has size 1 and becomes the dimension along which the parts are joined.
        let x = x.moveaxis(split as i32, concat as i32);
        Ok(AllToAll { axes: axes.clone(), split: concat, concat }.apply(&x))
    })
}

/// Sends part `i` along `split` to participant `i`, which concatenates the parts it receives along `concat`. The number
/// of participants must divide the size of `split`.
///
/// ```text
/// device                         0             1
/// x                   [1, 2, 3, 4]  [5, 6, 7, 8]
/// all_to_all_tiled    [1, 2, 5, 6]  [3, 4, 7, 8]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| all_to_all_tiled(x, "i", 0, 0)).axis_name("i");
/// let y = f.call(array([[1, 2, 3, 4], [5, 6, 7, 8]]))?;
/// assert_eq!(y.to_vec::<i32>()?, [1, 2, 5, 6, 3, 4, 7, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn all_to_all_tiled<T: Tree>(x: T, axis: impl IntoAxisNames, split: impl AxisNumber, concat: impl AxisNumber) -> T {
    let (split, concat) = (split.axis_number(), concat.axis_number());
    on_leaves(x, axis, "all_to_all", |x, axes| {
        axes.even_size("all_to_all")?;
        let split = normalize_axis(split as isize, x.ndim())?;
        let concat = normalize_axis(concat as isize, x.ndim())?;
        Ok(AllToAll { axes: axes.clone(), split, concat }.apply(x))
    })
}

/// A source and a target: a pair of indices or a reference to a pair.
pub trait SourceTarget {
    /// Returns the pair of source and target.
    fn source_target(self) -> (usize, usize);
}

impl SourceTarget for (usize, usize) {
    fn source_target(self) -> (usize, usize) {
        self
    }
}

impl SourceTarget for &(usize, usize) {
    fn source_target(self) -> (usize, usize) {
        *self
    }
}

/// Sends each participant's value from the first index of a pair to the second. Participants that receive no value get
/// zeros.
///
/// ```text
/// device      0   1   2   3   4   5   6   7
/// x          10  11  12  13  14  15  16  17
/// ppermute    0  10  11  12  13  14  15  16
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let ahead = pmap(|x: Array| ppermute(x, "i", (0..7).zip(1..8))).axis_name("i");
/// assert_eq!(ahead.call(arange(10..18))?.to_vec::<i32>()?, [0, 10, 11, 12, 13, 14, 15, 16]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn ppermute<T: Tree>(x: T, axis: impl IntoAxisNames, perm: impl IntoIterator<Item = impl SourceTarget>) -> T {
    let perm: Vec<(usize, usize)> = perm.into_iter().map(SourceTarget::source_target).collect();
    on_leaves(x, axis, "ppermute", |x, axes| {
        axes.no_groups("ppermute")?;
        let (sources, targets): (Vec<usize>, Vec<usize>) = perm.iter().copied().unzip();
        if !are_unique(sources) || !are_unique(targets) {
            return Err(err!(Value, "ppermute sources and destinations must be unique, got {perm:?}")
                .help("each participant sends to at most one, and receives from at most one"));
        }
        if let Some(p) = perm.iter().find(|p| p.0 >= axes.size || p.1 >= axes.size) {
            return Err(err!(
                Value,
                "ppermute pair {p:?} is out of range: the axes {:?} have {} participants",
                axes.names,
                axes.size
            )
            .help("indices run from 0 to the number of participants"));
        }
        Ok(Ppermute { axes: axes.clone(), perm: perm.clone() }.apply(x))
    })
}

fn are_unique(mut numbers: Vec<usize>) -> bool {
    numbers.sort_unstable();
    numbers.windows(2).all(|w| w[0] != w[1])
}

/// Sends each participant's value `shift` positions ahead in a ring. Negative shifts send it back.
///
/// ```text
/// device           0  1  2  3  4  5  6  7
/// x                0  1  2  3  4  5  6  7
/// pshift by 1      7  0  1  2  3  4  5  6
/// pshift by -2     2  3  4  5  6  7  0  1
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let round = pmap(|x: Array| (pshift(x.clone(), "i", 1), pshift(x, "i", -2))).axis_name("i");
/// let (next, back) = round.call(arange(0..8))?;
/// assert_eq!(next.to_vec::<i32>()?, [7, 0, 1, 2, 3, 4, 5, 6]);
/// assert_eq!(back.to_vec::<i32>()?, [2, 3, 4, 5, 6, 7, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pshift<T: Tree>(x: T, axis: impl IntoAxisNames, shift: i32) -> T {
    on_leaves(x, axis, "pshift", |x, axes| {
        axes.no_groups("pshift")?;
        let perm = (0..axes.size).map(|source| {
            let target = (source as i128 + i128::from(shift)).rem_euclid(axes.size as i128);
            (source, target as usize)
        });
        Ok(Ppermute { axes: axes.clone(), perm: perm.collect() }.apply(x))
    })
}

/// Permutes values: participant `i` receives the value of participant `perm[i]`, where `perm` must be a permutation of
/// all indices.
///
/// ```text
/// device                     0   1   2
/// x                         10  11  12
/// pshuffle by [2, 0, 1]     12  10  11
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| pshuffle(x, "i", [2, 0, 1])).axis_name("i");
/// assert_eq!(f.call(array([10, 11, 12]))?.to_vec::<i32>()?, [12, 10, 11]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pshuffle<T: Tree>(x: T, axis: impl IntoAxisNames, perm: impl AsRef<[usize]>) -> T {
    let perm = perm.as_ref();
    on_leaves(x, axis, "pshuffle", |x, axes| {
        axes.no_groups("pshuffle")?;
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..axes.size) {
            return Err(err!(Value, "`perm` does not represent a permutation: {perm:?}")
                .help(format!("it must hold each of the {} indices once", axes.size)));
        }
        let perm = perm.iter().enumerate().map(|(to, &from)| (from, to)).collect();
        Ok(Ppermute { axes: axes.clone(), perm }.apply(x))
    })
}

/// Exchanges the mapped axis with dimension `dim`, which must have the same size: [`all_to_all`] that splits and stacks
/// at the same dimension.
///
/// ```text
/// device            0       1
/// x            [1, 2]  [3, 4]
/// pswapaxes    [1, 3]  [2, 4]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| pswapaxes(x, "i", 0)).axis_name("i");
/// assert_eq!(f.call(array([[1, 2], [3, 4]]))?.to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pswapaxes<T: Tree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T {
    let dim = dim.axis_number();
    all_to_all(x, axis, dim, dim)
}

/// Broadcasts the value of participant `source` to all participants.
///
/// ```text
/// device               0   1   2
/// x                   10  11  12
/// pbroadcast from 1   11  11  11
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| pbroadcast(x, "i", 1)).axis_name("i");
/// assert_eq!(f.call(array([10, 11, 12]))?.to_vec::<i32>()?, [11, 11, 11]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pbroadcast<T: Tree>(x: T, axis: impl IntoAxisNames, source: usize) -> T {
    on_leaves(x, axis, "pbroadcast", |x, axes| {
        let size = axes.even_size("pbroadcast")?;
        if source >= size {
            return Err(err!(
                Value,
                "pbroadcast source {source} is out of range: the axes {:?} have {size} participants",
                axes.names
            )
            .help("indices run from 0 to the number of participants"));
        }
        // A gather preserves the bits of every dtype; a masked sum would lose -0.0.
        let gathered = AllGather { axes: axes.clone(), dim: 0, invariant: true }.apply(&x.expand_dims(0));
        Ok(crate::ops::lax::slice_in_dim(&gathered, source, source + 1, 0).squeeze(0))
    })
}

/// Returns this participant's index along the axis, as int32. Over several axes the first is the major one; over none
/// the index is 0.
///
/// ```text
/// device        0   1   2
/// x            10  10  10
/// axis_index    0   1   2
/// sum          10  11  12
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| x + axis_index("i")).axis_name("i");
/// assert_eq!(f.call(array([10, 10, 10]))?.to_vec::<i32>()?, [10, 11, 12]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn axis_index(axis: impl IntoAxisNames) -> Array {
    let _line = source::enter();
    let zero = Array::literal(Scalar::Int(0), DType::I32, false);
    let index = ungrouped_axes(axis, "axis_index").map(|axes| match axes.names.is_empty() {
        true => zero.clone(),
        false => bind1(AxisIndex { axes }, &[]),
    });
    Array::from_result(index, &zero)
}

/// Returns the number of participants of the axis.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| Ok(x * axis_size("i")?)).axis_name("i");
/// assert_eq!(f.call(array([1, 2, 3]))?.to_vec::<i32>()?, [3, 6, 9]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn axis_size(axis: impl IntoAxisNames) -> Result<usize> {
    ungrouped_axes(axis, "axis_size").map(|axes| axes.size).at_caller()
}

/// Casts a value that is equal on all participants to one that can vary over these axes. The cast needs no
/// communication.
///
/// Fails if the value already varies over one of the axes.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 2)])?;
/// let _mesh = set_mesh(&mesh)?;
/// // A loop carry of zeros is equal on all devices, and its body makes it vary.
/// let f = shard_map(|x: Array| fori_loop(0, 3, move |_, sum: Array| sum + &x, pcast(zeros([2]), "i")), None);
/// assert_eq!(f.in_specs(P!["i"]).out_specs(P!["i"]).call(array([1.0f32; 4]))?.to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pcast<T: Tree>(x: T, axis: impl IntoAxisNames) -> T {
    pcast_to(x, axis, CastTo::Varying)
}

/// Casts a value to a state over these axes. A value that is equal on all participants becomes varying or reduced, a
/// reduced value becomes varying, and a varying value becomes unreduced (the addends of a sum). The cast needs no
/// communication.
///
/// To cast to unreduced or reduced, the axes must be of type [`Explicit`](crate::AxisType::Explicit) outside of the
/// `shard_map`, and the `shard_map` must be over all axes of its mesh. The cotangent of a reduced value is unreduced,
/// and the cotangent of an unreduced value is reduced.
///
/// Other casts fail.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// use shardax::lax::{CastTo, pcast_to};
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let f = shard_map(|x: Array| {
///     let sums = pcast_to(x.sum(0), "x", CastTo::Unreduced);
///     assert_eq!(sums.type_name(), "float32[4]{U:x}");
///     psum(sums, "x")
/// }, None);
/// let x = device_put(&ones([16, 4]), P!["x"])?;
/// assert_eq!(f.out_specs(P![]).call(x)?.to_vec::<f32>()?, [16.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pcast_to<T: Tree>(x: T, axis: impl IntoAxisNames, to: CastTo) -> T {
    on_leaves(x, axis, "pcast", |x, axes| {
        axes.no_groups("pcast")?;
        if !axes.checked {
            return Ok(x.clone());
        }
        // The cast is one operation over all axes, so each of them must support it.
        let aval = x.aval();
        for name in axes.names.iter().copied() {
            let state = match aval.sharding() {
                _ if aval.vma.contains(name) => "varying",
                Some(typed) if typed.unreduced().contains(name) => "unreduced",
                Some(typed) if typed.reduced().contains(name) => "reduced",
                _ => "invarying",
            };
            let is_supported = matches!(
                (state, to),
                ("invarying", CastTo::Varying | CastTo::Reduced)
                    | ("reduced", CastTo::Varying)
                    | ("varying", CastTo::Unreduced)
            );
            if !is_supported {
                let to = format!("{to:?}").to_lowercase();
                let help = match state == to {
                    true => format!("leave the cast out: the value is {to} already"),
                    false if state == "unreduced" => "sum it with `psum`".to_owned(),
                    false => "a varying value becomes unreduced, and one that is equal on all participants varying or reduced".to_owned(),
                };
                return Err(err!(
                    Value,
                    "Unsupported pcast from={state}, to='{to}', over {name:?}, of a value of type {aval}"
                )
                .help(help));
            }
        }
        if to != CastTo::Varying {
            explicit_outside(axes)?;
        }
        Ok(Pcast { axes: axes.names.clone(), to }.apply(x))
    })
}

/// Returns an error if the types outside of the `shard_map` cannot record unreduced and reduced axes.
fn explicit_outside(axes: &Axes) -> Result<()> {
    let Some((mesh, manual)) = axis_env::manual() else { return Ok(()) };
    let explicit = axes.names.iter().all(|name| mesh.abstract_mesh().axis_type(*name) == Some(AxisType::Explicit));
    if explicit && mesh.axis_names().all(|name| manual.contains(name)) {
        return Ok(());
    }
    Err(err!(
        NotImplemented,
        "pcast to unreduced or reduced over {:?}: the axes must be of type Explicit outside of a shard_map over all axes of the mesh {mesh}",
        axes.names
    )
    .help("make the axes Explicit: `mesh.explicit()`, and leave axis_names out"))
}
