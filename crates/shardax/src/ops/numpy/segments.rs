//! Reductions of segments: entries of an array that have one number.

use super::{filled, made, where_};
use crate::core::array::Array;
use crate::dtype::Scalar;
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::Reducer;

/// Entries of `data` along its first dimension, and the segment of each.
fn segments(name: &str, data: &Array, ids: &Array, count: usize) -> Result<Array> {
    ids.check()?;
    if !ids.dtype().is_integer() || ids.ndim() != 1 || data.shape().first() != ids.shape().first() {
        return Err(err!(
            Value,
            "{name} needs a segment for each entry of {}, integers of one dimension, got {}",
            data.type_name(),
            ids.type_name()
        )
        .help("give as many integers as the first dimension has entries"));
    }
    // Numbers beyond the segments are dropped, negative ones too.
    Ok(where_(ids.less(0), count.min(i32::MAX as usize) as i32, ids))
}

fn start(data: &Array, count: usize, value: Scalar) -> Array {
    filled(&[&[count], &data.shape()[1..]].concat(), value, data.dtype())
}

/// The sums of the entries of `data` (along its first dimension) in each of `num_segments` segments; of none 0. Numbers
/// of segments that are not there are dropped.
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
    let (data, segment_ids) = (&data.into_array(), &segment_ids.into_array());
    made(data, || {
        let ids = segments("segment_sum", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Scalar::Int(0)).at(&ids).add(data))
    })
}

/// The products of each segment; of none 1. See [`segment_sum`].
#[track_caller]
pub fn segment_prod(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&data.into_array(), &segment_ids.into_array());
    made(data, || {
        let ids = segments("segment_prod", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Scalar::Int(1)).at(&ids).multiply(data))
    })
}

/// The largest of each segment; of none the smallest number there is. See [`segment_sum`].
#[track_caller]
pub fn segment_max(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&data.into_array(), &segment_ids.into_array());
    made(data, || {
        let ids = segments("segment_max", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Reducer::Max.identity(data.dtype())).at(&ids).max(data))
    })
}

/// The smallest of each segment; of none the largest number there is. See [`segment_sum`].
#[track_caller]
pub fn segment_min(data: impl ArrayLike, segment_ids: impl ArrayLike, num_segments: usize) -> Array {
    let (data, segment_ids) = (&data.into_array(), &segment_ids.into_array());
    made(data, || {
        let ids = segments("segment_min", data, segment_ids, num_segments)?;
        Ok(start(data, num_segments, Reducer::Min.identity(data.dtype())).at(&ids).min(data))
    })
}
