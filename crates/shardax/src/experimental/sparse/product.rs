//! Products of sparse and dense arrays.

use super::bcoo::{BCOO, column_arrays, per_element};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::Scalar;
use crate::error::{Result, err};
use crate::ops::index::IndexItem;
use crate::ops::lax;
use crate::ops::numpy::{filled, promote_dtypes};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// An operand of a product: a sparse or a dense array.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A sparse array.
    Sparse(BCOO),
    /// A dense array.
    Dense(Array),
}

macro_rules! operand_from {
    ($($kind:ident $type:ty)*) => {$(
        impl From<$type> for Operand {
            fn from(x: $type) -> Operand {
                Operand::$kind(x)
            }
        }

        impl From<&$type> for Operand {
            fn from(x: &$type) -> Operand {
                Operand::$kind(x.clone())
            }
        }
    )*};
}

operand_from!(Sparse BCOO Dense Array);

impl Operand {
    fn shape(&self) -> &[usize] {
        match self {
            Operand::Sparse(m) => m.shape(),
            Operand::Dense(x) => x.shape(),
        }
    }

    /// Returns an array of the operand's dtype, which can carry an error.
    fn like(&self) -> &Array {
        match self {
            Operand::Sparse(m) => &m.data,
            Operand::Dense(x) => x,
        }
    }
}

impl BCOO {
    /// Multiplies by a dense vector or matrix `x` (`self @ x`); the result is dense. See [`matmul`](matmul()) for a sparse
    /// array on the right.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
    /// assert_eq!(m.matmul(ones([3, 2])).to_vec::<f32>()?, [2.0, 2.0, 5.0, 5.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// The result carries an error if the shapes do not fit.
    #[track_caller]
    pub fn matmul(&self, x: impl ArrayLike) -> Array {
        matmul(self, x.into_array())
    }
}

/// Computes the matrix product `a @ b` of a sparse and a dense array. The operand on the right must be a vector or a
/// matrix, and the result is dense.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{self, BCOO};
/// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
/// assert_eq!(sparse::matmul(ones(2), &m).to_vec::<f32>()?, [1.0, 2.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The result carries an error if the shapes do not fit, or if both operands are sparse. You can differentiate it with
/// respect to the elements of both operands.
#[track_caller]
pub fn matmul(a: impl Into<Operand>, b: impl Into<Operand>) -> Array {
    let (a, b) = (a.into(), b.into());
    or_failed(a.like(), || {
        match (a.shape().len(), b.shape().len()) {
        (left, right @ (1 | 2)) if left > 0 => contract_operands(&a, &b, (&[left - 1], &[right.saturating_sub(2)])),
        _ => Err(err!(Value, "matmul with a sparse array got incompatible shapes {:?} and {:?}", a.shape(), b.shape())
            .help(
                "the right operand must be a vector or a matrix, and neither can be a scalar; for other contractions use \
                 `bcoo_dot_general`",
            )),
    }
    })
}

/// Contracts these dimensions of a sparse and a dense array. The result is dense, and the remaining dimensions of `lhs`
/// come first.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{BCOO, bcoo_dot_general};
/// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
/// let all = bcoo_dot_general(&m, ones([3, 2]), (&[0, 1], &[1, 0]));
/// assert_eq!(all.item::<f32>()?, 7.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The result carries an error if the sizes differ, if a contracted dimension of the sparse array is dense, or if both
/// operands are sparse.
#[track_caller]
pub fn bcoo_dot_general(lhs: impl Into<Operand>, rhs: impl Into<Operand>, contract: (&[usize], &[usize])) -> Array {
    let (lhs, rhs) = (lhs.into(), rhs.into());
    or_failed(lhs.like(), || contract_operands(&lhs, &rhs, contract))
}

/// Returns the sizes of these dimensions, or `None` if one does not exist or is named twice.
fn distinct_sizes(x: &Operand, dims: &[usize]) -> Option<Vec<usize>> {
    let are_distinct = dims.iter().enumerate().all(|(i, d)| !dims[..i].contains(d));
    dims.iter().map(|&d| x.shape().get(d).copied()).collect::<Option<_>>().filter(|_| are_distinct)
}

fn contract_operands(lhs: &Operand, rhs: &Operand, (left, right): (&[usize], &[usize])) -> Result<Array> {
    lhs.like().check()?;
    rhs.like().check()?;
    let left_sizes = distinct_sizes(lhs, left);
    if left_sizes.is_none() || left_sizes != distinct_sizes(rhs, right) {
        return Err(err!(
            Type,
            "the contraction over dimensions {left:?} of shape {:?} and {right:?} of shape {:?}: contracting dimensions must \
             have the same sizes",
            lhs.shape(),
            rhs.shape()
        )
        .help("name the same number of dimensions of both operands, each once and with equal sizes"));
    }
    match (lhs, rhs) {
        (Operand::Dense(x), Operand::Dense(y)) => Ok(lax::dot_general(x, y, (left, right), (&[], &[]), None)),
        (Operand::Sparse(m), Operand::Dense(x)) => product(m, x, left, right),
        (Operand::Dense(x), Operand::Sparse(m)) => {
            // `product` puts the remaining dimensions of the dense operand last, but here it is the left operand.
            let product = product(m, x, right, left)?;
            let sparse_dims = m.ndim() - right.len();
            let order: Vec<usize> = (sparse_dims..product.ndim()).chain(0..sparse_dims).collect();
            Ok(lax::transpose(&product, &order))
        }
        (Operand::Sparse(_), Operand::Sparse(_)) => {
            Err(err!(NotImplemented, "the product of two sparse arrays is not supported")
                .help("convert one of them with `todense`, preferably the smaller"))
        }
    }
}

/// The shape of the sparse array, then the contracted dimensions of the sparse and of the dense array.
type Params = (Vec<usize>, Vec<usize>, Vec<usize>);

/// Contracts a sparse and a dense array: each stored element multiplies the entry of `x` at its contracted indices, and
/// products with the same remaining indices are added.
fn product(m: &BCOO, x: &Array, m_dims: &[usize], x_dims: &[usize]) -> Result<Array> {
    m.check()?;
    if let Some(d) = m_dims.iter().find(|&&d| d >= m.n_sparse()) {
        return Err(err!(NotImplemented, "the contraction over the dense dimension {d} of {m:?} is not supported")
            .help("store the dimension sparsely: call `fromdense` with a smaller `n_dense`"));
    }
    let operands = promote_dtypes(&[&m.data, x], |dtype| dtype)?;
    let args = [&operands[..], std::slice::from_ref(&m.indices)].concat();
    let params: Params = (m.shape.clone(), m_dims.to_vec(), x_dims.to_vec());
    composite1("bcoo_dot_general", params, &args, |(shape, m_dims, x_dims), args| {
        let (data, x, columns) = (&args[0], &args[1], column_arrays(&args[2]));
        let free_x_dims: Vec<usize> = (0..x.ndim()).filter(|d| !x_dims.contains(d)).collect();
        let x = lax::transpose(x, &[&x_dims[..], &free_x_dims].concat());
        let rows = if m_dims.is_empty() {
            lax::reshape(&x, &[&[1], x.shape()].concat())
        } else {
            x.at(index_by(&columns, m_dims)).fill_value(0).get()
        };
        // Both factors get the shape [nse, dense dimensions of m..., free dimensions of x...].
        let dense = data.ndim() - 1;
        let elements = with_trailing_dims(data, data.ndim() + free_x_dims.len());
        let rows = lax::reshape(&rows, &[&rows.shape()[..1], &vec![1; dense], &rows.shape()[1..]].concat());
        let products = elements * &rows;
        let free_m_dims: Vec<usize> = (0..columns.len()).filter(|d| !m_dims.contains(d)).collect();
        if free_m_dims.is_empty() {
            return Ok(vec![products.sum(0).astype(data.dtype())]);
        }
        let sizes = free_m_dims.iter().map(|&d| shape[d]).chain(products.shape()[1..].iter().copied());
        let zeros = filled(&sizes.collect::<Vec<_>>(), Scalar::Int(0), data.dtype());
        Ok(vec![zeros.at(index_by(&columns, &free_m_dims)).add(products)])
    })
}

/// Returns the columns of these dimensions as an index.
fn index_by(columns: &[Array], dims: &[usize]) -> Vec<IndexItem> {
    dims.iter().map(|&d| IndexItem::Array(columns[d].clone())).collect()
}

/// Appends dimensions of size 1 to data, up to this rank.
fn with_trailing_dims(data: &Array, rank: usize) -> Array {
    if data.ndim() == 1 {
        return per_element(data, rank);
    }
    let mut shape = data.shape().to_vec();
    shape.resize(rank, 1);
    lax::reshape(data, &shape)
}
