//! Norms of vectors and matrices.

use smallvec::SmallVec;

use super::{eigvalsh, inexact, svdvals};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::numpy::axes::KeptAxes;
use crate::ops::numpy::{IntoAxes, IntoReduction, conj, maximum, over, real};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::matrix::{adjoint, product};
use crate::ops::primitive::unary::{ABS, SQRT};
use crate::ops::promotion::convert;

/// The order of a norm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum NormOrder {
    /// The square root of the sum of squares: 2 for vectors, Frobenius for matrices.
    #[default]
    Default,
    /// The Frobenius norm of matrices.
    Fro,
    /// The nuclear norm of matrices: the sum of the singular values.
    Nuc,
    /// The `p`-norm. For vectors, the `p`-th root of the sum of `p`-th powers of absolute values; infinity is the
    /// largest, -infinity the smallest absolute value, and 0 counts the elements that are not 0.
    ///
    /// For matrices, 1 is the largest sum of absolute values of a column, and infinity is the largest sum of a row; -1 and
    /// -infinity are the smallest sums of a column and of a row. 2 is the largest and -2 the smallest singular value.
    P(f64),
    /// A text that names no norm. The function that receives it returns an error.
    #[doc(hidden)]
    Unknown(&'static str),
}

/// JAX's names: `"fro"` and `"nuc"`.
impl From<&'static str> for NormOrder {
    fn from(name: &'static str) -> Self {
        match name {
            "fro" => NormOrder::Fro,
            "nuc" => NormOrder::Nuc,
            _ => NormOrder::Unknown(name),
        }
    }
}

impl From<i32> for NormOrder {
    fn from(p: i32) -> Self {
        NormOrder::P(p.into())
    }
}

impl From<f64> for NormOrder {
    fn from(p: f64) -> Self {
        NormOrder::P(p)
    }
}

/// `None` is [`NormOrder::Default`], as in JAX.
impl From<Option<i32>> for NormOrder {
    fn from(p: Option<i32>) -> Self {
        p.map_or(NormOrder::Default, NormOrder::from)
    }
}

/// Computes norms of vectors along one axis, or of matrices along two axes (rows, then columns). `..` selects all axes:
/// of an array of one or two dimensions, or of any array with [`NormOrder::Default`].
///
/// The result is real and has the remaining axes. The norm of zero elements is 0. The gradient of a norm that is 0 is
/// NaN.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::linalg::{NormOrder, norm};
/// let x = array([[3.0f32, 4.0], [6.0, 8.0]]);
/// assert_eq!(norm(&x, 2, -1).to_vec::<f32>()?, [5.0, 10.0]);
/// assert_eq!(norm(&x, f64::INFINITY, 0).to_vec::<f32>()?, [6.0, 8.0]);
/// assert_eq!(norm(&x, 1, ..).item::<f32>()?, 12.0);
/// assert_eq!(norm(&x, 2, over(-1).keepdims(true)).shape(), [2, 1]);
/// assert_eq!(norm(&x, None, ..).item::<f32>()?, 125.0f32.sqrt());
/// assert_eq!(norm(&x, NormOrder::Fro, (0, 1)).item::<f32>()?, 125.0f32.sqrt());
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a wrong number of axes, for orders that are not defined for matrices, and for axes
/// out of bounds.
#[track_caller]
pub fn norm(x: impl ArrayLike, order: impl Into<NormOrder>, axes: impl IntoReduction) -> Array {
    run(x.into_array(), order.into(), axes)
}

/// Like [`norm`], but keeps the reduced axes with size 1.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::norm_keepdims(ones([2, 4]), 2, 1).to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn norm_keepdims(x: impl ArrayLike, order: impl Into<NormOrder>, axes: impl IntoAxes) -> Array {
    run(x.into_array(), order.into(), over(axes).keepdims(true))
}

/// Computes the norms of matrices in the last two dimensions. [`NormOrder::Default`] is the Frobenius norm. See [`norm`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::linalg::{NormOrder, matrix_norm};
/// let x = array([[[3.0f32, 0.0], [0.0, 4.0]]]);
/// assert_eq!(matrix_norm(&x, None).to_vec::<f32>()?, [5.0]);
/// assert_eq!(matrix_norm(&x, NormOrder::Nuc).to_vec::<f32>()?, [7.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for orders that are not defined for matrices.
#[track_caller]
pub fn matrix_norm(x: impl ArrayLike, order: impl Into<NormOrder>) -> Array {
    run(x.into_array(), order.into(), (-2, -1))
}

/// Computes norms of vectors along an axis, or along several axes together; `..` selects all axes, whatever the number of
/// dimensions. [`NormOrder::Default`] is the root of the sum of squares. [`norm`] takes two axes for a matrix.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::linalg::vector_norm;
/// let x = array([[3.0f32, 4.0], [0.0, 12.0]]);
/// assert_eq!(vector_norm(&x, None, ..).item::<f32>()?, 13.0);
/// assert_eq!(vector_norm(&x, 1, (0, 1)).item::<f32>()?, 19.0);
/// assert_eq!(vector_norm(&x, 2, -1).to_vec::<f32>()?, [5.0, 12.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for axes out of bounds, and for orders that are defined for matrices only.
#[track_caller]
pub fn vector_norm(x: impl ArrayLike, order: impl Into<NormOrder>, axes: impl IntoReduction) -> Array {
    let (x, order) = (x.into_array(), order.into());
    or_failed(&x, || {
        let order = match order {
            NormOrder::Default => NormOrder::P(2.0),
            NormOrder::P(_) => order,
            NormOrder::Fro | NormOrder::Nuc | NormOrder::Unknown(_) => {
                return Err(err!(Value, "invalid order {order:?} for the norms of vectors of {}", x.type_name())
                    .help("the order of a vector norm must be a number; `matrix_norm` has this order"));
            }
        };
        let reduction = KeptAxes::new("vector_norm", &x, axes)?;
        let (summed, others): (Vec<usize>, Vec<usize>) = (0..x.ndim()).partition(|axis| reduction.axes.contains(axis));
        let vectors = match *summed {
            [_] => x.transpose([&*others, &summed].concat()),
            _ => x.transpose([&*others, &summed].concat()).reshape(
                others
                    .iter()
                    .map(|&axis| x.shape()[axis])
                    .chain([summed.iter().map(|&axis| x.shape()[axis]).product()])
                    .collect::<Vec<_>>(),
            ),
        };
        Ok(reduction.insert(&x, run(vectors, order, -1), 0))
    })
}

/// The parameters of a norm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Params {
    kind: Kind,
    axes: SmallVec<[i32; 4]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// The square root of the sum of squares.
    Squares,
    Nuclear,
    /// The bits of `p`, because floats have no hash.
    P(u64),
}

#[track_caller]
fn run(x: Array, order: NormOrder, axes: impl IntoReduction) -> Array {
    or_failed(&x, || {
        let operand = inexact(&x)?;
        let reduction = KeptAxes::new("norm", &x, axes)?;
        let axes = &reduction.axes;
        let kind = check(&x, order, axes, reduction.all)?;
        let signed = axes.iter().map(|&a| a as i32).collect();
        let params = Params { kind, axes: signed };
        let out = composite1("norm", params, &[operand], |params, x| {
            // Squares of float16 overflow at 256, so half precision is computed in float32.
            let (dtype, weak) = (x[0].dtype(), x[0].weak_type());
            let compute_dtype = if dtype.byte_size() < 4 { DType::F32 } else { dtype };
            let x = [convert(&x[0], compute_dtype, weak)];
            let norm = match (params.kind, &params.axes[..]) {
                (Kind::P(p), &[rows, columns]) => norm_of_matrices(&x[0], f64::from_bits(p), rows, columns),
                (Kind::P(p), axes) => norm_of_vectors(&x[0], f64::from_bits(p), axes),
                (Kind::Nuclear, &[rows, columns]) => singular_values(&x[0], rows, columns).sum(-1),
                (Kind::Squares | Kind::Nuclear, axes) => root_of_squares(&x[0], axes),
            };
            Ok(vec![if dtype == compute_dtype { norm } else { convert(&norm, dtype, false) }])
        })?;
        Ok(reduction.insert(&x, out, 0))
    })
}

/// Returns an error for invalid orders and axes.
fn check(x: &Array, order: NormOrder, axes: &[usize], all_axes: bool) -> Result<Kind> {
    let operand = x.type_name();
    match (order, axes) {
        (NormOrder::Default, _) if all_axes => Ok(Kind::Squares),
        (_, [a, b]) if a == b => Err(err!(Value, "norm of {operand} got axis {a} twice")
            .help("name the axis of the rows and the axis of the columns")),
        (NormOrder::Default, [_] | [_, _]) | (NormOrder::Fro, [_, _]) => Ok(Kind::Squares),
        (NormOrder::Nuc, [_, _]) => Ok(Kind::Nuclear),
        (NormOrder::P(p), [_]) if !p.is_nan() => Ok(Kind::P(p.to_bits())),
        (NormOrder::P(p), [_, _]) if [1.0, 2.0, f64::INFINITY].contains(&p.abs()) => Ok(Kind::P(p.to_bits())),
        (_, [_] | [_, _]) => Err(err!(Value, "invalid order {order:?} for the norm over axes {axes:?} of {operand}").help(
            "the order of a vector norm must be a number; the order of a matrix norm must be 1, -1, 2, -2, infinity, -infinity, `NormOrder::Fro` or `NormOrder::Nuc`",
        )),
        _ => Err(err!(Value, "improper number of axes for norm of {operand}: {axes:?}")
            .help("name one axis for the norm of vectors, or two axes for the norm of matrices")),
    }
}

fn root_of_squares(x: &Array, axes: &[i32]) -> Array {
    let squares = if x.dtype().is_complex() { real(&(x * conj(x))) } else { x * x };
    SQRT.apply(&squares.sum(axes))
}

fn absolute(x: &Array) -> Array {
    ABS.apply(x)
}

/// Returns the largest or smallest element along an axis. The largest element of an empty axis is 0.
fn extreme(x: &Array, axis: i32, largest: bool) -> Array {
    match (x.shape()[axis as usize], largest) {
        (0, true) => x.sum(axis),
        // As in JAX, the maximum starts with 0. If all elements are 0, it therefore has half of the gradient.
        (_, true) => maximum(x.max(axis), 0),
        (_, false) => x.min(axis),
    }
}

fn norm_of_vectors(x: &Array, p: f64, axes: &[i32]) -> Array {
    let axis = axes.first().copied().unwrap_or_default();
    if p.is_infinite() {
        return extreme(&absolute(x), axis, p > 0.0);
    }
    if p == 2.0 {
        return root_of_squares(x, axes);
    }
    let size = absolute(x);
    if p == 0.0 {
        return x.not_equal(0).astype(size.dtype()).sum(axis);
    }
    if p == 1.0 {
        return size.sum(axis);
    }
    size.pow(p).sum(axis).pow(1.0 / p)
}

/// The matrices of an array with these axes, which become its last two.
fn matrices(x: &Array, rows: i32, columns: i32) -> Array {
    let others = (0..x.ndim() as i32).filter(|&axis| axis != rows && axis != columns);
    x.transpose(others.chain([rows, columns]).collect::<Vec<_>>())
}

fn singular_values(x: &Array, rows: i32, columns: i32) -> Array {
    svdvals(matrices(x, rows, columns))
}

fn norm_of_matrices(x: &Array, p: f64, rows: i32, columns: i32) -> Array {
    if p == 2.0 {
        // The square root of the largest eigenvalue of xᴴ x is as accurate as the largest singular value.
        let x = matrices(x, rows, columns);
        let values = eigvalsh(product(&adjoint(&x), &x));
        return SQRT.apply(&extreme(&values, x.ndim() as i32 - 2, true));
    }
    if p == -2.0 {
        return singular_values(x, rows, columns).min(-1);
    }
    // The sums of columns reduce the axis of the rows.
    let (summed, compared) = if p.abs() == 1.0 { (rows, columns) } else { (columns, rows) };
    let compared_after_sum = if compared > summed { compared - 1 } else { compared };
    extreme(&absolute(x).sum(summed), compared_after_sum, p > 0.0)
}
