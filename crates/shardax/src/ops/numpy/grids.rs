//! Indices of triangles and diagonals of matrices, and cross and Kronecker products.

use super::{checked_or_failed, promote_args_of, to_inexact, to_strong_type};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::reshard::sharded_alike;
use crate::ops::primitive::special::slopes::HYPOT;
use crate::rank_promotion;

/// The rows and columns of the entries of an `n` × `m` matrix for which `chosen(row, column)` is true, int32.
#[track_caller]
pub(super) fn entries(n: usize, m: usize, chosen: impl Fn(i64, i64) -> bool) -> (Array, Array) {
    at_caller(|| {
        list_entries(n, m, chosen).unwrap_or_else(|e| {
            let failed = Array::from_result(Err(e), &super::zeros_dtype([0], DType::I32));
            (failed.clone(), failed)
        })
    })
}

fn list_entries(n: usize, m: usize, chosen: impl Fn(i64, i64) -> bool) -> Result<(Array, Array)> {
    if n.checked_mul(m).is_none_or(|size| size > i32::MAX as usize) {
        return Err(err!(Value, "a matrix of {n} by {m} entries is too large to list its entries")
            .help("use `tril`, `triu` or a comparison of two `iota`s inside the program"));
    }
    let entries = (0..n).flat_map(|i| (0..m).map(move |j| (i as i32, j as i32)));
    let (rows, columns): (Vec<i32>, Vec<i32>) = entries.filter(|&(i, j)| chosen(i.into(), j.into())).unzip();
    let count = rows.len();
    Ok((Array::from_vec(rows, &[count])?, Array::from_vec(columns, &[count])?))
}

/// Returns the rows and columns of the entries of an `n` × `n` matrix on and below the diagonal, or up to the `k`-th
/// above it.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::tril_indices;
/// let (rows, columns) = tril_indices(2, 0);
/// assert_eq!((rows.to_vec::<i32>()?, columns.to_vec::<i32>()?), (vec![0, 1, 1], vec![0, 0, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tril_indices(n: usize, k: i32) -> (Array, Array) {
    entries(n, n, |i, j| j - i <= i64::from(k))
}

/// Returns the rows and columns of the entries of an `n` × `n` matrix on and above the diagonal, or from the `k`-th
/// above it on.
///
/// ```
/// # use shardax::prelude::*;
/// let (rows, columns) = triu_indices(2, 0);
/// assert_eq!((rows.to_vec::<i32>()?, columns.to_vec::<i32>()?), (vec![0, 0, 1], vec![0, 1, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn triu_indices(n: usize, k: i32) -> (Array, Array) {
    entries(n, n, |i, j| j - i >= i64::from(k))
}

/// Returns the rows and columns of the entries of an `n` × `n` matrix that a mask marks. `mask_fn` receives a matrix of ones and `k`,
/// and returns a matrix of the same shape that is zero in the entries to leave out, as [`triu`](crate::numpy::triu) does.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::mask_indices;
/// let (rows, columns) = mask_indices(3, |ones, k| ones.triu(k), 1);
/// assert_eq!((rows.to_vec::<i32>()?, columns.to_vec::<i32>()?), (vec![0, 0, 1], vec![1, 2, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The results carry an error if the mask is not a matrix, or if its values are not known in a traced function.
#[track_caller]
pub fn mask_indices(n: usize, mask_fn: impl Fn(Array, i32) -> Array, k: i32) -> (Array, Array) {
    at_caller(|| {
        let mask = mask_fn(super::ones_dtype([n, n], DType::F32), k);
        match &super::nonzero(&mask, None)[..] {
            [rows, columns] => (rows.clone(), columns.clone()),
            indices => {
                let error = err!(Value, "mask_indices needs a mask [n, n], got {}", mask.type_name())
                    .help("return a matrix of the shape of the argument");
                // A mask that carries an error has one result with this error.
                let error = indices.first().and_then(|index| index.check().err()).unwrap_or(error);
                let failed = Array::from_error(error, &mask);
                (failed.clone(), failed)
            }
        }
    })
}

/// Returns the rows and columns of the diagonal of an `n` × `n` matrix.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1, 2], [3, 4]]);
/// assert_eq!(x.get(diag_indices(2)).to_vec::<i32>()?, [1, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn diag_indices(n: usize) -> (Array, Array) {
    at_caller(|| {
        let line = lax::iota(DType::for_indices(&[n]), &[n], 0);
        (line.clone(), line)
    })
}

/// Creates an `n` × `m` matrix of ones on and below the diagonal, or up to the `k`-th above it; float32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(tri(2, 3, 1).to_vec::<f32>()?, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tri(n: usize, m: usize, k: i32) -> Array {
    at_caller(|| super::tril(&super::ones_dtype([n, m], DType::F32), k))
}

/// Returns the cross product of three-dimensional vectors, in the last dimension; broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::cross;
/// assert_eq!(cross(array([1, 0, 0]), array([0, 1, 0])).to_vec::<i32>()?, [0, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cross(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let _ranks = rank_promotion::allow();
        let args = super::promote_args("cross", &[&x, &y])?;
        if args[0].shape().last() != Some(&3) || x.shape().last() != Some(&3) || y.shape().last() != Some(&3) {
            return Err(err!(
                Value,
                "cross needs vectors of 3 numbers in the last dimension, got {} and {}",
                x.type_name(),
                y.type_name()
            )
            .help("move the dimension of the vectors to the end with `moveaxis`"));
        }
        composite1("cross", (), &args, |(), args| {
            let (x, y) = (&args[0], &args[1]);
            Ok(vec![x.roll(-1, -1) * y.roll(-2, -1) - x.roll(-2, -1) * y.roll(-1, -1)])
        })
    })
}

/// Returns the Kronecker product: each element of `x` is replaced by the element times `y`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::kron;
/// assert_eq!(kron(array([1, 10]), array([1, 2])).to_vec::<i32>()?, [1, 2, 10, 20]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn kron(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = promote_args_of("kron", &[&x, &y])?;
        composite1("kron", (), &args, |(), args| {
            let rank = args[0].ndim().max(args[1].ndim());
            let [n, m] = [&args[0], &args[1]].map(|x| [vec![1; rank - x.ndim()], x.shape().to_vec()].concat());
            // Alternates the dimensions of both operands, so that the merged pairs are the blocks.
            let x_shape: Vec<usize> = n.iter().flat_map(|&d| [d, 1]).collect();
            let y_shape: Vec<usize> = m.iter().flat_map(|&d| [1, d]).collect();
            let product = lax::reshape(&args[0], &x_shape) * lax::reshape(&args[1], &y_shape);
            let shape: Vec<usize> = n.iter().zip(&m).map(|(a, b)| a * b).collect();
            Ok(vec![lax::reshape(&product, &shape)])
        })
    })
}

/// Returns the hypotenuse `sqrt(x² + y²)`, computed without overflow. Floating point; broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// let lengths = hypot(array([3.0f32, 5.0]), array([4.0f32, 12.0]));
/// assert!(allclose(lengths, array([5.0f32, 13.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn hypot(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = super::promote_args("hypot", &[&x, &y])?;
        let args: Vec<Array> = args.iter().map(|a| to_strong_type(a, to_inexact(a.dtype()))).collect();
        if args[0].dtype().is_complex() {
            return Err(err!(Type, "hypot does not accept {}", args[0].type_name())
                .help("compute the absolute values first, with `x.abs()`"));
        }
        let args = sharded_alike(&super::broadcast_args("hypot", &args)?);
        Ok(HYPOT.apply(&args))
    })
}
