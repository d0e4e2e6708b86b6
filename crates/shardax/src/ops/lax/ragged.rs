//! Matrix products of groups of rows, where each group has a different matrix.

use super::dot::DotOptions;
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::select::where_;

impl DotOptions {
    /// See [`ragged_dot`](ragged_dot()).
    #[track_caller]
    pub fn ragged_dot(&self, lhs: impl ArrayLike, rhs: impl ArrayLike, group_sizes: impl ArrayLike) -> Array {
        let (lhs, rhs, group_sizes) = (&lhs.into_array(), &rhs.into_array(), &group_sizes.into_array());
        or_failed(lhs, || {
            check(lhs, rhs, group_sizes)?;
            let groups = rhs.shape()[0];
            let rows = lhs.shape()[0];
            // Repeats the rows for each group, with zeros for the rows of other groups, so that one product can sum over the groups.
            let ends = group_sizes.astype(DType::I32).cumsum(0);
            let row = lax::iota(DType::I32, &[groups, rows], 1);
            let starts = (&ends - group_sizes.astype(DType::I32)).expand_dims(1);
            let is_in_group = row.greater_equal(starts) & row.less(ends.expand_dims(1));
            let masked = where_(is_in_group.expand_dims(2), lhs.expand_dims(0), 0);
            Ok(self.dot_general(&masked, rhs, (&[0, 2], &[0, 1]), (&[], &[])))
        })
    }
}

fn check(lhs: &Array, rhs: &Array, group_sizes: &Array) -> Result<()> {
    [lhs, rhs, group_sizes].into_iter().try_for_each(Array::check)?;
    let fits = match (lhs.shape(), rhs.shape(), group_sizes.shape()) {
        ([_, k], [groups, k2, _], [sizes]) => k == k2 && groups == sizes,
        _ => false,
    };
    if !fits {
        return Err(err!(
            Type,
            "ragged_dot requires rows [m, k], matrices [g, k, n] and sizes [g], got {}, {} and {}",
            lhs.type_name(),
            rhs.type_name(),
            group_sizes.type_name()
        )
        .help("pass one matrix for each group of rows, and the number of rows of each group"));
    }
    if group_sizes.dtype().is_integer() {
        Ok(())
    } else {
        Err(err!(Type, "ragged_dot requires integer group_sizes, got {}", group_sizes.type_name())
            .help("convert them with `astype(DType::I32)`"))
    }
}

/// Multiplies each group of consecutive rows of `lhs`, `[m, k]`, by one matrix of `rhs`, `[g, k, n]`: the first
/// `group_sizes[0]` rows by the first matrix, and so on. The result is zero for rows after the last group.
/// [`DotOptions`] has a precision and a dtype.
///
/// ```
/// # use shardax::prelude::*;
/// let (rows, matrices) = (array([[1.0f32], [2.0], [3.0]]), array([[[10.0f32]], [[100.0]]]));
/// let y = lax::ragged_dot(&rows, &matrices, &array([1, 2]));
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 200.0, 300.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit, and sizes that are not integers.
#[track_caller]
pub fn ragged_dot(lhs: impl ArrayLike, rhs: impl ArrayLike, group_sizes: impl ArrayLike) -> Array {
    let (lhs, rhs, group_sizes) = (&lhs.into_array(), &rhs.into_array(), &group_sizes.into_array());
    DotOptions::new().ragged_dot(lhs, rhs, group_sizes)
}
