//! Functions that repeat arrays or their elements.

use super::indexing::{IntoAxis, with_axis};
use super::options::options;
use crate::core::array::{Array, Repr};
use crate::core::program::Aval;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax::{self, GatherScatterMode};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::promotion::convert_clamped;
use crate::shape::IntoSizes;
use crate::sharding::DimSpec;

/// Repeats `x` `reps[i]` times along dimension `i`. The shorter of shape and `reps` is extended with leading ones.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(tile(&array([1, 2]), 2).to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tile(x: impl ArrayLike, reps: impl IntoSizes) -> Array {
    let (x, reps) = (&x.into_array(), &reps.into_sizes()[..]);
    let rank = reps.len().max(x.ndim());
    // Inserts a dimension for the repeats before each dimension, broadcasts it, then merges the pairs.
    let (mut before, mut between, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..rank {
        let (n, r) = (extended(x.shape(), rank, i), extended(reps, rank, i));
        before.extend([1, n]);
        between.extend([r, n]);
        after.push(usize::saturating_mul(r, n));
    }
    at_caller(|| {
        if let Err(e) = check_tiled(x, &between[between.len() - 2 * x.ndim()..]) {
            return Array::from_result(Err(e), x);
        }
        let spread = lax::broadcast_in_dim(&lax::reshape(x, &before), &between, &(0..2 * rank).collect::<Vec<_>>());
        lax::reshape(&spread, &after)
    })
}

/// Entry `i` of a list that is extended to `rank` entries with leading ones.
fn extended(list: &[usize], rank: usize, i: usize) -> usize {
    if i + list.len() < rank { 1 } else { list[i + list.len() - rank] }
}

/// Fails if a split dimension is repeated, because the parts of one device would have to move to other devices. `sizes` has the repeats
/// and the size of each dimension.
fn check_tiled(x: &Array, sizes: &[usize]) -> Result<()> {
    let Some(typed) = x.aval_ref().and_then(Aval::sharding) else { return Ok(()) };
    match (0..x.ndim()).find(|&d| sizes[2 * d] != 1 && typed.dims()[d] != DimSpec::None) {
        None => Ok(()),
        Some(d) => Err(err!(
            Sharding,
            "tile: dimension {d} of an operand of type {} cannot be sharded where tiling is non-trivial",
            x.type_name()
        )
        .help("gather the dimension first with `reshard(x, spec)`")),
    }
}

options! {
    /// Options of [`repeat`](repeat()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::RepeatOptions;
    /// let f = jit(|x: Array, counts: Array| RepeatOptions::new().total_repeat_length(4).repeat(&x, &counts, 0));
    /// assert_eq!(f.call((array([1, 2]), array([3, 1])))?.to_vec::<i32>()?, [1, 1, 1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    RepeatOptions {
        /// The size of the result along the axis, which you must set inside `jit`. If there are fewer elements, the last one is repeated;
        /// surplus elements are dropped. By default, the call waits for the counts and uses their sum.
        total_repeat_length: Option<usize> = None, |length: impl Into<Option<usize>>| length.into();
    }
}

impl RepeatOptions {
    /// See [`repeat`](repeat()).
    #[track_caller]
    pub fn repeat(&self, x: impl ArrayLike, repeats: impl ArrayLike, axis: impl IntoAxis) -> Array {
        let (x, repeats) = (&x.into_array(), repeats.into_array());
        at_caller(|| {
            let result = with_axis(x, axis).and_then(|(x, axis)| match (&repeats.0, self.total_repeat_length) {
                (Repr::Literal(count), None) => repeat_all(&x, count.value.to_i128(), axis),
                _ => self.counted(&x, &repeats, axis),
            });
            Array::from_result(result, x)
        })
    }

    /// Repeats each element by its count.
    fn counted(&self, x: &Array, repeats: &Array, axis: usize) -> Result<Array> {
        repeats.check()?;
        if !repeats.dtype().is_integer() || repeats.ndim() > 1 {
            return Err(err!(
                Type,
                "repeat needs counts that are integers, one or one for each element, got {}",
                repeats.type_name()
            )
            .help("convert them with `astype(DType::I32)`, and flatten them"));
        }
        let n = x.shape()[axis];
        if !matches!(repeats.size(), 1) && repeats.size() != n {
            return Err(err!(Value, "repeat of axis {axis} of {} got {} counts", x.type_name(), repeats.size())
                .help("pass one count, or one for each element of the axis"));
        }
        let counts = convert_clamped(repeats, DType::I32).broadcast_to([n]);
        let total = match self.total_repeat_length {
            Some(total) => total,
            None if counts.is_traced() => {
                return Err(err!(
                    Type,
                    "When jit-compiling repeat, the total number of repeats must be static. To fix this, either specify a \
                     static value for `repeats`, or pass a static value to `total_repeat_length`."
                )
                .help("call `RepeatOptions::new().total_repeat_length(n).repeat(x, repeats, axis)`"));
            }
            None => {
                let counts = counts.to_vec::<i32>()?;
                if let Some(negative) = counts.iter().find(|count| **count < 0) {
                    return Err(err!(Value, "repeats may not contain negative values, got {negative}")
                        .help("clip the counts to 0 with `repeats.maximum(0)`"));
                }
                counts.iter().map(|&count| count as usize).sum()
            }
        };
        if total == 0 || n == 0 {
            return Ok(if n == 0 { x.clone() } else { lax::slice_in_dim(x, 0, 0, axis) });
        }
        if i32::try_from(total).is_err() {
            return Err(err!(Value, "repeat of {} to {total} elements is too large", x.type_name())
                .help("a dimension may have up to 2147483647 elements"));
        }
        composite1("repeat", (total, axis), &[x.clone(), counts], |&(total, axis), args| {
            let n = args[0].shape()[axis];
            // The index of the element at each position is the number of elements whose repeats end before it.
            let ends = args[1].cumsum(0);
            let index = ends.searchsorted_right(lax::iota(DType::I32, &[total], 0)).minimum(n - 1);
            Ok(vec![args[0].take_mode(index, axis as i32, GatherScatterMode::PromiseInBounds)])
        })
    }
}

/// Repeats every element equally often.
fn repeat_all(x: &Array, count: i128, axis: usize) -> Result<Array> {
    let Ok(repeats) = usize::try_from(count) else {
        return Err(
            err!(Value, "repeats may not contain negative values, got {count}").help("pass a count of 0 or more")
        );
    };
    Ok(lax::repeat_each(x, repeats, axis))
}

/// Repeats each element along `axis`, or of the flat array for `..`. `repeats` is one count, or an array with one count for each
/// element. Inside `jit`, an array also requires [`RepeatOptions::total_repeat_length`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(repeat(&array([1, 2]), 2, ..).to_vec::<i32>()?, [1, 1, 2, 2]);
/// assert_eq!(repeat(&array([1, 2]), array([1, 3]), 0).to_vec::<i32>()?, [1, 2, 2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn repeat(x: impl ArrayLike, repeats: impl ArrayLike, axis: impl IntoAxis) -> Array {
    RepeatOptions::new().repeat(x, repeats, axis)
}
