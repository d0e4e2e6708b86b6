//! Parts of matrices: diagonals and triangles.

use super::options::options;
use super::{to_strong_type, where_};
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::constants::band;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::{AxisNumber, normalize_axis};

/// The row-major index of the first element of a diagonal of an `n` by `m` matrix, and the length of the diagonal.
fn diagonal_of(n: usize, m: usize, offset: i32) -> (usize, usize) {
    let k = offset.unsigned_abs() as usize;
    if offset >= 0 { (k.min(m), n.min(m.saturating_sub(k))) } else { (k.min(n) * m, m.min(n.saturating_sub(k))) }
}

impl Array {
    /// The diagonal of the last two dimensions, as the last dimension.
    pub(crate) fn last_diagonal(&self, offset: i32) -> Array {
        let (lead, [n, m]) = match self.shape() {
            [lead @ .., n, m] => (lead, [*n, *m]),
            _ => return self.clone(),
        };
        let (start, len) = diagonal_of(n, m, offset);
        // Neighbors on a diagonal are one row and one column apart, so the diagonal is a strided slice of the flat matrix.
        let flat = lax::reshape(self, &[lead, &[n * m]].concat());
        let axis = lead.len();
        let mut starts = vec![0; axis + 1];
        let mut limits = flat.shape().to_vec();
        let mut strides = vec![1; axis + 1];
        starts[axis] = if len == 0 { 0 } else { start };
        limits[axis] = if len == 0 { 0 } else { start + (len - 1) * (m + 1) + 1 };
        strides[axis] = m + 1;
        lax::slice(&flat, &starts, &limits, Some(&strides))
    }

    /// Returns the diagonal `offset` entries above the main diagonal, of the matrices in the dimensions `axis1` and
    /// `axis2`. It is the last dimension of the result.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2], [3, 4]]).diagonal(0, 0, 1).to_vec::<i32>()?, [1, 4]);
    /// assert_eq!(ones([2, 3, 4]).diagonal(1, 0, 2).shape(), [3, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// The result carries an error for fewer than two dimensions, or equal axes.
    #[track_caller]
    pub fn diagonal(&self, offset: i32, axis1: impl AxisNumber, axis2: impl AxisNumber) -> Array {
        let (axis1, axis2) = (axis1.axis_number(), axis2.axis_number());
        let result = self.check().and_then(|()| {
            let (a, b) = (normalize_axis(axis1 as isize, self.ndim())?, normalize_axis(axis2 as isize, self.ndim())?);
            if a == b {
                return Err(err!(
                    Value,
                    "axis1 and axis2 cannot be the same: diagonal of {} got {axis1} and {axis2}",
                    self.type_name()
                )
                .help("pass the two different dimensions of the matrices"));
            }
            let order: Vec<usize> = (0..self.ndim()).filter(|&d| d != a && d != b).chain([a, b]).collect();
            Ok(at_caller(|| lax::transpose(self, &order).last_diagonal(offset)))
        });
        Array::from_result(result, self)
    }

    /// Returns the sum of the main diagonal of the first two dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2], [3, 4]]).trace().item::<i32>()?, 5);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn trace(&self) -> Array {
        at_caller(|| {
            let diagonal = self.diagonal(0, 0, 1);
            if diagonal.error().is_some() { diagonal } else { diagonal.sum(-1) }
        })
    }

    /// Returns the lower triangle of the last two dimensions, up to the diagonal `k`; zeros above it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2], [3, 4]]).tril(0).to_vec::<i32>()?, [1, 0, 3, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn tril(&self, k: i32) -> Array {
        at_caller(|| self.triangle("tril", k, |x, y| x.less_equal(y)))
    }

    /// Returns the upper triangle of the last two dimensions, from the diagonal `k` on; zeros below it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2], [3, 4]]).triu(0).to_vec::<i32>()?, [1, 2, 0, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn triu(&self, k: i32) -> Array {
        at_caller(|| self.triangle("triu", k, |x, y| x.greater_equal(y)))
    }

    fn triangle<F>(&self, name: &'static str, k: i32, keep: F) -> Array
    where
        F: Fn(&Array, Array) -> Array + Send + Sync + 'static,
    {
        let result = self.check().and_then(|()| {
            if self.ndim() < 2 {
                return Err(err!(Value, "{name} needs at least two dimensions, got {}", self.type_name())
                    .help("convert it to a matrix with `reshape` or `expand_dims`"));
            }
            // A program outside of `jit` has no unreduced results.
            if self.aval().sharding().is_some_and(|typed| !typed.unreduced().is_empty()) {
                return Ok(where_(band(self.shape(), k, keep), self, zero_for(self)));
            }
            composite1(name, k, std::slice::from_ref(self), move |k, args| {
                let x = &args[0];
                Ok(vec![where_(band(x.shape(), *k, &keep), x, zero_for(x))])
            })
        });
        Array::from_result(result, self)
    }
}

options! {
    /// Options of [`trace`](trace()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::TraceOptions;
    /// let x = arange(0..8).reshape([2, 2, 2]);
    /// assert_eq!(TraceOptions::new().offset(1).axes(1, 2).trace(&x).to_vec::<i32>()?, [1, 5]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    TraceOptions {
        /// The diagonal: above the main diagonal if positive, below it if negative. Default 0.
        offset: i32 = 0, |offset: i32| offset;
        /// The dimensions of the matrices. Default 0 and 1.
        matrix: (i32, i32) = (0, 1), |matrix: (i32, i32)| matrix;
        /// The dtype of the sum. Default: the dtype of [`Array::sum`].
        dtype: Option<DType> = None, |dtype: impl Into<Option<DType>>| dtype.into();
    }
}

impl TraceOptions {
    /// Sets the dimensions of the matrices. Default 0 and 1.
    pub fn axes(self, axis1: impl AxisNumber, axis2: impl AxisNumber) -> Self {
        let (axis1, axis2) = (axis1.axis_number(), axis2.axis_number());
        self.matrix((axis1, axis2))
    }

    /// See [`trace`](trace()).
    #[track_caller]
    pub fn trace(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        at_caller(|| {
            let diagonal = x.diagonal(self.offset, self.matrix.0, self.matrix.1);
            if diagonal.error().is_some() {
                return diagonal;
            }
            match self.dtype {
                Some(dtype) => diagonal.sum(super::over(-1).dtype(dtype)),
                None => diagonal.sum(-1),
            }
        })
    }
}

/// Returns a matrix with a vector on its diagonal `k`, or the diagonal `k` of a matrix.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(diag(&array([1, 2]), 0).to_vec::<i32>()?, [1, 0, 0, 2]);
/// assert_eq!(diag(&array([[1, 2], [3, 4]]), 1).to_vec::<i32>()?, [2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn diag(x: impl ArrayLike, k: i32) -> Array {
    let x = &x.into_array();
    at_caller(|| match x.ndim() {
        1 => vector_on_diagonal(x, k),
        2 => x.diagonal(k, 0, 1),
        _ => {
            let e = err!(Value, "diag input must be 1d or 2d, got {}", x.type_name())
                .help("for a batch of matrices, use `diagonal(k, -2, -1)`");
            Array::from_result(Err(e), x)
        }
    })
}

fn vector_on_diagonal(x: &Array, k: i32) -> Array {
    let (n, shift) = (x.size() + k.unsigned_abs() as usize, k.unsigned_abs() as i64);
    // A size that overflows must be reported before the array is padded to this length.
    if let Err(e) = Aval::new(x.dtype(), [n, n].as_slice()).byte_size() {
        return Array::from_result(Err(e.context("diag")), x);
    }
    let zero = Array::literal(Scalar::Int(0), x.dtype(), x.weak_type());
    // Element i is in row i of a diagonal above the main diagonal, and in column i of a diagonal below it.
    let padded = lax::pad(x, &to_strong_type(&zero, x.dtype()), &[(0, shift, 0)]);
    let spread = lax::broadcast_in_dim(&padded, &[n, n], &[if k >= 0 { 0 } else { 1 }]);
    let zero = zero_for(&spread);
    where_(band(&[n, n], k, Array::equal), spread, zero)
}

/// Returns the zero that replaces elements of `x` in [`where_`]. Next to an unreduced array, each device needs a zero.
fn zero_for(x: &Array) -> Array {
    let aval = x.aval();
    if aval.sharding().is_some_and(|typed| !typed.unreduced().is_empty()) {
        Array::zeros_of(&aval)
    } else {
        Array::literal(Scalar::Int(0), x.dtype(), x.weak_type())
    }
}

macro_rules! matrix_functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $t:ty),*);)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike, $($arg: $t),*) -> Array {
            let x = &x.into_array();
            x.$name($($arg),*)
        }
    )*};
}

matrix_functions! {
    /// Returns a diagonal of two dimensions; see [`Array::diagonal`].
    diagonal(offset: i32, axis1: i32, axis2: i32);
    /// Sums a diagonal; see [`Array::trace`].
    trace();
    /// Returns the lower triangle of matrices; see [`Array::tril`].
    tril(k: i32);
    /// Returns the upper triangle of matrices; see [`Array::triu`].
    triu(k: i32);
}

/// Replaces the dimensions `a` and `b` > `a` by their diagonal, which is in the position of `a`.
pub(crate) fn merge_dims(x: &Array, a: usize, b: usize) -> Result<Array> {
    let order: Vec<usize> = (0..x.ndim()).filter(|&d| d != a && d != b).chain([a, b]).collect();
    let diagonal = lax::transpose(x, &order).last_diagonal(0);
    diagonal.check()?;
    Ok(diagonal.moveaxis(-1, a as i32))
}
