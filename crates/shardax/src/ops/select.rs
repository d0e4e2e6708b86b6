//! Selection by a condition: NumPy's `where`, which the rules of primitives use too.

use super::operators::ArrayLike;
use super::primitive::binary::Select;
use super::primitive::reshard::sharded_alike;
use super::promotion::{broadcast_any_ranks, promote_dtypes};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::source;

/// Chooses elements from `x` where `condition` is true, and otherwise from `y`. The three arrays broadcast together, and `x` and
/// `y` are promoted to one dtype.
///
/// Both `x` and `y` are computed for all elements. If the derivative of the value that is not selected is infinite or NaN,
/// the gradient is NaN. Therefore you should also replace the argument of such a function, here by 1:
///
/// ```
/// # use shardax::prelude::*;
/// let root = |x: Array| where_(x.greater(0), where_(x.greater(0), &x, 1).sqrt(), 0).sum(..);
/// assert_eq!(grad(root).call(array([4.0f32, 0.0]))?.to_vec::<f32>()?, [0.25, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([-1, 2, -3]);
/// assert_eq!(where_(x.greater(0), &x, 0).to_vec::<i32>()?, [0, 2, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn where_(condition: impl ArrayLike, x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let _line = source::enter();
    let (condition, x, y) = (condition.into_array(), x.into_array(), y.into_array());
    let result = condition.check().and_then(|()| promote_dtypes(&[&x, &y], |dtype| dtype)).and_then(|args| {
        let args = broadcast_any_ranks("where", &args)?;
        let condition = if condition.dtype() == DType::Bool { condition.clone() } else { condition.not_equal(0) };
        let mut operands = broadcast_any_ranks("where", &[condition.clone(), args[0].clone(), args[1].clone()])?;
        if operands.iter().zip([&condition, &x, &y]).any(|(grown, x)| grown.shape() != x.shape()) {
            operands = sharded_alike(&operands);
        }
        Ok(Select.apply(&operands[0], &operands[2], &operands[1]))
    });
    Array::from_result(result, if x.ndim() >= y.ndim() { &x } else { &y })
}
