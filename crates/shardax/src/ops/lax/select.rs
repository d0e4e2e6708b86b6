//! Elementwise selection.

use crate::core::array::Array;
use crate::core::program::trace::bind1;
use crate::dtype::DType;
use crate::error::err;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::binary::Select;
use crate::ops::primitive::clamp::Clamp;

/// Selects `on_true` where `pred` is true, otherwise `on_false`. Both must have the same dtype, and the same shape unless they are
/// scalars.
///
/// [`where_`](crate::numpy::where_) also promotes and broadcasts.
///
/// ```
/// # use shardax::prelude::*;
/// let y = lax::select(&array([true, false]), &array([1, 2]), &array([3, 4]));
/// assert_eq!(y.to_vec::<i32>()?, [1, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn select(pred: impl ArrayLike, on_true: impl ArrayLike, on_false: impl ArrayLike) -> Array {
    let (pred, on_true, on_false) = (&pred.into_array(), &on_true.into_array(), &on_false.into_array());
    Select.apply(pred, on_false, on_true)
}

/// Selects, elementwise, the case with index `which`: a boolean array selects between two, an integer array between any
/// number. Indices out of range are clamped.
///
/// ```
/// # use shardax::prelude::*;
/// let y = lax::select_n(&array([2, 0]), &[array([1, 2]), array([3, 4]), array([5, 6])]);
/// assert_eq!(y.to_vec::<i32>()?, [5, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn select_n(which: impl ArrayLike, cases: &[Array]) -> Array {
    let which = &which.into_array();
    let Some((first, rest)) = cases.split_first() else {
        return Array::from_result(
            Err(err!(Type, "select_n() must have at least one case").help("pass at least one array to choose from")),
            which,
        );
    };
    match which.dtype() {
        DType::Bool if rest.len() <= 1 => rest.iter().fold(first.clone(), |a, b| Select.apply(which, &a, b)),
        dtype if dtype.is_integer() => (1..)
            .zip(rest)
            .fold(first.clone(), |chosen, (n, case)| Select.apply(&which.greater_equal(n), &chosen, case)),
        dtype => {
            let count = cases.len();
            let e = err!(
                Type,
                "select_n() predicate must be boolean, for at most 2 cases, or integers, got {dtype} for {count} cases"
            )
            .help("convert it with `astype(DType::I32)`");
            Array::from_result(Err(e), first)
        }
    }
}

/// Clamps `x` to the interval from `min` to `max`. Each bound is a scalar or has the shape of `x`. If `min` is larger than `max`, the
/// result is `max`.
///
/// The gradient with respect to `x` is 0 at the bounds and beyond them.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::clamp(0, &array([-5, 1, 9]), 4).to_vec::<i32>()?, [0, 1, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn clamp(min: impl ArrayLike, x: impl ArrayLike, max: impl ArrayLike) -> Array {
    let x = &x.into_array();
    let [min, max] = [min.into_array(), max.into_array()]
        .map(|bound| if bound.weak_type() { bound.astype(x.dtype()) } else { bound });
    bind1(Clamp, &[min, x.clone(), max])
}
