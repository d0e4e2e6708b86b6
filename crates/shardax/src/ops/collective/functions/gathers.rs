//! Collectives that gather, scatter and exchange parts of arrays.

use super::on_leaves;
use crate::core::tree::IntoTree;
use crate::error::err;
use crate::ops::collective::gather::{AllGather, PsumScatter};
use crate::ops::collective::permute::AllToAll;
use crate::shape::{AxisNumber, IntoAxisNames, normalize_axis};

/// Stacks the values of all participants along a new dimension at `dim`.
///
/// Each device then stores all values. If you only need a part of their sum, [`psum_scatter`] sends and stores less.
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
pub fn all_gather<T: IntoTree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T::Tree {
    let dim = dim.axis_number();
    on_leaves(x.into_tree(), axis, "all_gather", |x, axes| {
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
pub fn all_gather_tiled<T: IntoTree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T::Tree {
    let dim = dim.axis_number();
    on_leaves(x.into_tree(), axis, "all_gather", |x, axes| {
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
pub fn all_gather_invariant<T: IntoTree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T::Tree {
    let dim = dim.axis_number();
    on_leaves(x.into_tree(), axis, "all_gather", |x, axes| {
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
pub fn psum_scatter<T: IntoTree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T::Tree {
    let dim = dim.axis_number();
    on_leaves(x.into_tree(), axis, "psum_scatter", |x, axes| {
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
pub fn psum_scatter_tiled<T: IntoTree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T::Tree {
    let dim = dim.axis_number();
    on_leaves(x.into_tree(), axis, "psum_scatter", |x, axes| {
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
pub fn all_to_all<T: IntoTree>(
    x: T,
    axis: impl IntoAxisNames,
    split: impl AxisNumber,
    concat: impl AxisNumber,
) -> T::Tree {
    let (split, concat) = (split.axis_number(), concat.axis_number());
    on_leaves(x.into_tree(), axis, "all_to_all", |x, axes| {
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
pub fn all_to_all_tiled<T: IntoTree>(
    x: T,
    axis: impl IntoAxisNames,
    split: impl AxisNumber,
    concat: impl AxisNumber,
) -> T::Tree {
    let (split, concat) = (split.axis_number(), concat.axis_number());
    on_leaves(x.into_tree(), axis, "all_to_all", |x, axes| {
        axes.even_size("all_to_all")?;
        let split = normalize_axis(split as isize, x.ndim())?;
        let concat = normalize_axis(concat as isize, x.ndim())?;
        Ok(AllToAll { axes: axes.clone(), split, concat }.apply(x))
    })
}
