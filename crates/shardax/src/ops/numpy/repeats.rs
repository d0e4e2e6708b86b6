//! Repeating arrays and their elements.

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
use crate::sharding::DimSpec;

/// Repeats `x` `reps[i]` times along dimension `i`; the shorter of shape and `reps` is extended with leading ones.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(tile(&array([1, 2]), &[2]).to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tile(x: impl ArrayLike, reps: &[usize]) -> Array {
    let x = &x.into_array();
    let rank = reps.len().max(x.ndim());
    let of = |own: &[usize], i: usize| if i + own.len() < rank { 1 } else { own[i + own.len() - rank] };
    let (mut before, mut between, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..rank {
        let (n, r) = (of(x.shape(), i), of(reps, i));
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

/// Fails where a dimension that is split is repeated: the parts of one device would go to others. `sizes` are the repeats and
/// the size of each dimension.
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
        /// The size of the result along the axis, which `jit` needs to know: fewer elements are followed by the last one,
        /// more are cut off. Default: the sum of the counts, whose values are waited for.
        total_repeat_length: Option<usize> = None, |length: impl Into<Option<usize>>| length.into();
    }
}

impl RepeatOptions {
    /// See [`repeat`](repeat()).
    #[track_caller]
    pub fn repeat(&self, x: impl ArrayLike, repeats: impl ArrayLike, axis: impl IntoAxis) -> Array {
        let (x, repeats) = (&x.into_array(), repeats.into_array());
        at_caller(|| {
            let made = with_axis(x, axis).and_then(|(x, axis)| match (&repeats.0, self.total_repeat_length) {
                (Repr::Literal(count), None) => each(&x, count.value.to_i128(), axis),
                _ => self.counted(&x, &repeats, axis),
            });
            Array::from_result(made, x)
        })
    }

    /// Each element as often as its own count says.
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
                .help("give one count, or one for each element of the axis"));
        }
        let counts = repeats.astype(DType::I32).broadcast_to([n]);
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
            // The element in which each place lies: as many as end before it.
            let ends = args[1].cumsum(0);
            let at = ends.searchsorted_right(lax::iota(DType::I32, &[total], 0)).minimum(n - 1);
            Ok(vec![args[0].take_mode(at, axis as i32, GatherScatterMode::PromiseInBounds)])
        })
    }
}

/// Every element as often.
fn each(x: &Array, count: i128, axis: usize) -> Result<Array> {
    let Ok(repeats) = usize::try_from(count) else {
        return Err(
            err!(Value, "repeats may not contain negative values, got {count}").help("pass a count of 0 or more")
        );
    };
    Ok(lax::repeat_each(x, repeats, axis))
}

/// Repeats each element along `axis`; `..` repeats those of the flat array. `repeats` is one count, or an array with one
/// for each element; inside of `jit` such an array needs [`RepeatOptions::total_repeat_length`].
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
