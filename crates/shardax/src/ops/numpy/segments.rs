//! Segment reductions: over the entries of an array with the same segment id.

use super::{checked_or_failed, filled, where_};
use crate::core::array::Array;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::gather::wide;
use crate::ops::primitive::reduce::Reducer;

/// Checks `data` and the segment ids of its entries along the first dimension.
fn segments(name: &str, data: &Array, ids: &Array, count: usize) -> Result<Array> {
    ids.check()?;
    if !ids.dtype().is_integer() || ids.ndim() != 1 || data.shape().first() != ids.shape().first() {
        return Err(err!(
            Value,
            "{name} needs a segment for each entry of {}, integers of one dimension, got {}",
            data.type_name(),
            ids.type_name()
        )
        .help("pass one integer for each entry of the first dimension"));
    }
    // Negative ids are moved out of range too, because they must be dropped and not count from the end. The number of segments
    // may exceed the dtype of the ids.
    let ids = wide(ids, &[count]);
    Ok(where_(ids.less(0), Array::literal(Scalar::Int(count as i128), ids.dtype(), false), ids))
}

fn start(data: &Array, count: usize, value: Scalar) -> Array {
    filled(&[&[count], &data.shape()[1..]].concat(), value, data.dtype())
}

/// Converts booleans to int32, so that sums count them, like [`Array::sum`].
fn counted(data: Array) -> Array {
    if data.dtype() == DType::Bool { data.astype(DType::I32) } else { data }
}

/// Sums the entries of `data` (along its first dimension) in each of `num_segments` segments. The sum of an empty segment is 0. Entries
/// whose segment id is out of range are dropped. Booleans are counted.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::segment_sum;
/// let sums = segment_sum(&array([1, 2, 3]), &array([0, 0, 1]), 3);
/// assert_eq!(sums.to_vec::<i32>()?, [3, 3, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn segment_sum(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&counted(data.into_array()), &segment_ids.into_array());
    checked_or_failed(data, || {
        let ids = segments("segment_sum", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Scalar::Int(0)).at(&ids).add(data))
    })
}

/// Like [`segment_sum`], with the sharding in the type of the result. If it is unreduced over the axes that split the
/// entries, the devices do not communicate.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::segment_sum_sharded;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 4)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let (data, ids) = (reshard(arange(0..8), P!["x"]), reshard(array([0, 0, 1, 1, 1, 2, 2, 3]), P!["x"]));
/// let sums = segment_sum_sharded(&data, &ids, 4, P![].unreduced(["x"]));
/// assert_eq!(sums.type_name(), "int32[4]{U:x}");
/// assert_eq!(reshard(sums, P![]).to_vec::<i32>()?, [1, 9, 11, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn segment_sum_sharded(
    data: impl ArrayLike,
    segment_ids: impl ArrayLike,
    num_segments: usize,
    sharding: impl Into<ShardingLike>,
) -> Array {
    let (data, segment_ids) = (&counted(data.into_array()), &segment_ids.into_array());
    checked_or_failed(data, || {
        let ids = segments("segment_sum", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Scalar::Int(0)).at(&ids).out_sharding(sharding).add(data))
    })
}

/// Returns the product of each segment. It is 1 for an empty segment. See [`segment_sum`].
///
/// ```
/// # use shardax::prelude::*;
/// let y = segment_prod(array([2, 3, 4]), array([0, 0, 1]), 3);
/// assert_eq!(y.to_vec::<i32>()?, [6, 4, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn segment_prod(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&counted(data.into_array()), &segment_ids.into_array());
    checked_or_failed(data, || {
        let ids = segments("segment_prod", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Scalar::Int(1)).at(&ids).multiply(data))
    })
}

/// Returns the maximum of each segment. It is the smallest number of the dtype for an empty segment. See
/// [`segment_sum`].
///
/// ```
/// # use shardax::prelude::*;
/// let y = segment_max(array([2, 3, 4]), array([0, 0, 1]), 2);
/// assert_eq!(y.to_vec::<i32>()?, [3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn segment_max(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&data.into_array(), &segment_ids.into_array());
    checked_or_failed(data, || {
        let ids = segments("segment_max", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Reducer::Max.identity(data.dtype())).at(&ids).max(data))
    })
}

/// Returns the minimum of each segment. It is the largest number of the dtype for an empty segment. See
/// [`segment_sum`].
///
/// ```
/// # use shardax::prelude::*;
/// let y = segment_min(array([2, 3, 4]), array([0, 0, 1]), 2);
/// assert_eq!(y.to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn segment_min(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&data.into_array(), &segment_ids.into_array());
    checked_or_failed(data, || {
        let ids = segments("segment_min", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Reducer::Min.identity(data.dtype())).at(&ids).min(data))
    })
}
