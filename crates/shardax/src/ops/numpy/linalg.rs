//! Products of vectors, matrices and batches of them.

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::error::{Result, err};
use crate::ops::lax::DotOptions;
use crate::ops::operators::ArrayLike;
use crate::shape::{broadcast_shapes, normalize_axis};
use crate::source;

impl Array {
    /// Computes NumPy's `dot` product: sums over the last axis of `self` and the second to last axis of `other`, or its
    /// only axis if it is a vector. Scalars multiply.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3]).dot(array([4, 5, 6])).item::<i32>()?, 32);
    /// assert_eq!(ones([5, 2, 3]).dot(ones([7, 3, 4])).shape(), [5, 2, 7, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn dot(&self, other: impl ArrayLike) -> Array {
        dot(self, other)
    }

    /// Returns the matrix product, broadcast over leading dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([[1, 2], [3, 4]]);
    /// assert_eq!(x.matmul(array([5, 6])).to_vec::<i32>()?, [17, 39]);
    /// assert_eq!(ones([5, 1, 2, 3]).matmul(ones([7, 3, 4])).shape(), [5, 7, 2, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn matmul(&self, other: impl ArrayLike) -> Array {
        matmul(self, other)
    }
}

/// See [`Array::dot`]; [`DotOptions`] has options.
#[track_caller]
pub fn dot(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    DotOptions::new().dot(x, y)
}

/// See [`Array::matmul`]; [`DotOptions`] has options.
#[track_caller]
pub fn matmul(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    DotOptions::new().matmul(x, y)
}

impl DotOptions {
    /// Calls [`Array::dot`] with these options.
    #[track_caller]
    pub fn dot(&self, x: impl ArrayLike, y: impl ArrayLike) -> Array {
        product("dot", x, y, |x, y| {
            if x.ndim() == 0 || y.ndim() == 0 {
                return Ok(self.returned(x * y));
            }
            let contract = if y.ndim() == 1 { 0 } else { y.ndim() - 2 };
            mismatch("dot", x, y, contract)?;
            Ok(self.dot_general(x, y, (&[x.ndim() - 1], &[contract]), (&[], &[])))
        })
    }

    /// Calls [`Array::matmul`] with these options.
    #[track_caller]
    pub fn matmul(&self, x: impl ArrayLike, y: impl ArrayLike) -> Array {
        product("matmul", x, y, |x, y| {
            if x.ndim() == 0 || y.ndim() == 0 {
                return Err(err!(
                    Value,
                    "matmul needs arrays of at least one dimension, got {} and {}",
                    x.type_name(),
                    y.type_name()
                )
                .help("multiply by a scalar with `*`"));
            }
            let contract = if y.ndim() == 1 { 0 } else { y.ndim() - 2 };
            mismatch("matmul", x, y, contract)?;
            if y.ndim() <= 2 {
                return Ok(self.dot_general(x, y, (&[x.ndim() - 1], &[contract]), (&[], &[])));
            }
            // The leading dimensions are broadcast and become batch dimensions.
            let x_lead = x.ndim().saturating_sub(2);
            let y_lead = y.ndim() - 2;
            let lead = broadcast_shapes(&[&x.shape()[..x_lead], &y.shape()[..y_lead]]).ok_or_else(|| {
                err!(Value, "matmul got incompatible shapes for broadcasting: {} and {}", x.type_name(), y.type_name())
                    .help("the leading dimensions must be equal or 1")
            })?;
            let xs = if x.ndim() == 1 { x.clone() } else { broadcast_leading(x, x_lead, &lead) };
            let ys = broadcast_leading(y, y_lead, &lead);
            let batch: SmallVec<[usize; 4]> = (0..lead.len()).collect();
            if x.ndim() == 1 {
                return Ok(self.dot_general(&ys, &xs, (&[ys.ndim() - 2], &[0]), (&[], &[])));
            }
            Ok(self.dot_general(&xs, &ys, (&[xs.ndim() - 1], &[ys.ndim() - 2]), (&batch, &batch)))
        })
    }

    /// See [`vdot`](vdot()).
    #[track_caller]
    pub fn vdot(&self, x: impl ArrayLike, y: impl ArrayLike) -> Array {
        self.dot(super::conj(&x.into_array()).ravel(), y.into_array().ravel())
    }

    /// See [`inner`](inner()).
    #[track_caller]
    pub fn inner(&self, x: impl ArrayLike, y: impl ArrayLike) -> Array {
        product("inner", x, y, |x, y| {
            if x.ndim() == 0 || y.ndim() == 0 {
                return Ok(self.returned(x * y));
            }
            mismatch("inner", x, y, y.ndim() - 1)?;
            Ok(self.dot_general(x, y, (&[x.ndim() - 1], &[y.ndim() - 1]), (&[], &[])))
        })
    }

    /// See [`tensordot`](tensordot()).
    #[track_caller]
    pub fn tensordot(&self, x: impl ArrayLike, y: impl ArrayLike, axes: impl ContractAxes) -> Array {
        product("tensordot", x, y, |x, y| {
            let [a, b] = axes.contract_axes([x.ndim(), y.ndim()])?;
            Ok(self.dot_general(x, y, (&a, &b), (&[], &[])))
        })
    }
}

#[track_caller]
fn product(name: &str, x: impl ArrayLike, y: impl ArrayLike, f: impl FnOnce(&Array, &Array) -> Result<Array>) -> Array {
    let _line = source::enter();
    let (x, y) = (x.into_array(), y.into_array());
    let result = super::promote_factors(name, &x, &y).and_then(|args| f(&args[0], &args[1]));
    Array::from_result(result, if x.ndim() >= y.ndim() { &x } else { &y })
}

fn mismatch(name: &str, x: &Array, y: &Array, contract: usize) -> Result<()> {
    let (a, b) = (x.shape()[x.ndim() - 1], y.shape()[contract]);
    if a == b {
        return Ok(());
    }
    Err(err!(
        Type,
        "{name} requires contracting dimensions to have equal shapes, got {a} and {b} (operands {} and {})",
        x.type_name(),
        y.type_name()
    )
    .help(
        "the last dimension of the left operand must equal the second to last of the right (the only one of a vector)",
    ))
}

/// Returns the outer product of two vectors.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(outer(array([1, 2]), array([3, 4])).to_vec::<i32>()?, [3, 4, 6, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn outer(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    x.into_array().ravel().expand_dims(1) * y.into_array().ravel().expand_dims(0)
}

/// Returns the dot product of two flattened arrays. The first array is conjugated.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(vdot(array([[1, 2], [3, 4]]), array([[1, 1], [2, 2]])).item::<i32>()?, 17);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn vdot(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    DotOptions::new().vdot(x, y)
}

/// Sums the products over the last dimensions of both arrays. Scalars multiply.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(inner(array([[1, 2], [3, 4]]), array([5, 6])).to_vec::<i32>()?, [17, 39]);
/// assert_eq!(inner(ones([2, 3]), ones([4, 3])).shape(), [2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn inner(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    DotOptions::new().inner(x, y)
}

/// The dimensions over which [`tensordot`] sums: the last `n` of the first array with the first `n` of the second, or a list for each
/// array.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which dimensions are summed",
    label = "not dimensions of two arrays",
    note = "a number of dimensions, or a list for each array: `tensordot(&x, &y, 1)`, `tensordot(&x, &y, ([1], [0]))`"
)]
pub trait ContractAxes {
    /// The dimensions of both, for arrays of these ranks.
    fn contract_axes(self, ranks: [usize; 2]) -> Result<[SmallVec<[usize; 4]>; 2]>;
}

impl ContractAxes for usize {
    fn contract_axes(self, [a, b]: [usize; 2]) -> Result<[SmallVec<[usize; 4]>; 2]> {
        if self > a || self > b {
            return Err(err!(Type, "tensordot over {self} dimensions, of arrays of rank {a} and {b}")
                .help("pass at most as many dimensions as both arrays have"));
        }
        Ok([(a - self..a).collect(), (0..self).collect()])
    }
}

impl<const N: usize> ContractAxes for ([i32; N], [i32; N]) {
    fn contract_axes(self, ranks: [usize; 2]) -> Result<[SmallVec<[usize; 4]>; 2]> {
        let lhs: Result<_> = self.0.iter().map(|&a| normalize_axis(a as isize, ranks[0])).collect();
        let rhs: Result<_> = self.1.iter().map(|&a| normalize_axis(a as isize, ranks[1])).collect();
        Ok([lhs?, rhs?])
    }
}

/// Sums the product over pairs of dimensions. The result has the remaining dimensions of `x`, then the remaining dimensions of `y`.
///
/// ```
/// # use shardax::prelude::*;
/// let (x, y) = (ones([2, 3, 4]), ones([4, 3, 5]));
/// assert_eq!(tensordot(&x, &y, ([2, 1], [0, 1])).shape(), [2, 5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tensordot(x: impl ArrayLike, y: impl ArrayLike, axes: impl ContractAxes) -> Array {
    DotOptions::new().tensordot(x, y, axes)
}

/// Broadcasts the first `rank` dimensions of `x` to `shape`.
fn broadcast_leading(x: &Array, rank: usize, shape: &[usize]) -> Array {
    x.broadcast_to([shape, &x.shape()[rank..]].concat().as_slice())
}
