//! Products of sparse and dense arrays.

use super::bcoo::{BCOO, column_arrays, per_element};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
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

    /// An array to carry an error.
    fn like(&self) -> &Array {
        match self {
            Operand::Sparse(m) => &m.data,
            Operand::Dense(x) => x,
        }
    }
}

impl BCOO {
    /// The matrix product with a dense vector or matrix `x` (`self @ x`), dense; see [`matmul`](matmul()) for a sparse
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
    /// The result carries an error for shapes that do not fit.
    #[track_caller]
    pub fn matmul(&self, x: impl ArrayLike) -> Array {
        matmul(self, x.into_array())
    }
}

/// The matrix product `a @ b` of a sparse and a dense array, of up to two dimensions on the right, dense.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{self, BCOO};
/// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
/// assert_eq!(sparse::matmul(ones(2), &m).to_vec::<f32>()?, [1.0, 2.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The result carries an error for shapes that do not fit, and for two sparse arrays. It is differentiable with respect to
/// the elements of both.
#[track_caller]
pub fn matmul(a: impl Into<Operand>, b: impl Into<Operand>) -> Array {
    let (a, b) = (a.into(), b.into());
    let made = at_caller(|| match (a.shape().len(), b.shape().len()) {
        (left, right @ (1 | 2)) if left > 0 => contracted(&a, &b, (&[left - 1], &[right.saturating_sub(2)])),
        _ => Err(err!(Value, "matmul with a sparse array got incompatible shapes {:?} and {:?}", a.shape(), b.shape())
            .help(
                "give a vector or a matrix on the right, and no scalar; `bcoo_dot_general` contracts any dimensions",
            )),
    });
    Array::from_result(made, a.like())
}

/// The contraction over these dimensions of a sparse and a dense array, dense: the remaining dimensions of `lhs` come
/// first.
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
/// The result carries an error for sizes that differ, for dense dimensions of the sparse array, and for two sparse arrays.
#[track_caller]
pub fn bcoo_dot_general(lhs: impl Into<Operand>, rhs: impl Into<Operand>, contract: (&[usize], &[usize])) -> Array {
    let (lhs, rhs) = (lhs.into(), rhs.into());
    let made = at_caller(|| contracted(&lhs, &rhs, contract));
    Array::from_result(made, lhs.like())
}

fn contracted(lhs: &Operand, rhs: &Operand, (left, right): (&[usize], &[usize])) -> Result<Array> {
    lhs.like().check()?;
    rhs.like().check()?;
    let sizes = |x: &Operand, dims: &[usize]| -> Option<Vec<usize>> {
        let once = dims.iter().enumerate().all(|(i, d)| !dims[..i].contains(d));
        dims.iter().map(|&d| x.shape().get(d).copied()).collect::<Option<_>>().filter(|_| once)
    };
    let (have, want) = (sizes(lhs, left), sizes(rhs, right));
    if have.is_none() || have != want {
        return Err(err!(
            Type,
            "the contraction over dimensions {left:?} of shape {:?} and {right:?} of shape {:?}: contracting dimensions must \
             have the same sizes",
            lhs.shape(),
            rhs.shape()
        )
        .help("name as many dimensions of both, each once, of equal sizes; transpose one operand"));
    }
    match (lhs, rhs) {
        (Operand::Dense(x), Operand::Dense(y)) => Ok(lax::dot_general(x, y, (left, right), (&[], &[]), None)),
        (Operand::Sparse(m), Operand::Dense(x)) => product(m, x, left, right),
        (Operand::Dense(x), Operand::Sparse(m)) => {
            // The remaining dimensions of the dense operand come last, and belong first.
            let made = product(m, x, right, left)?;
            let own = m.ndim() - right.len();
            let order: Vec<usize> = (own..made.ndim()).chain(0..own).collect();
            Ok(lax::transpose(&made, &order))
        }
        (Operand::Sparse(_), Operand::Sparse(_)) => {
            Err(err!(NotImplemented, "the product of two sparse arrays is not supported")
                .help("convert the smaller one with `todense`"))
        }
    }
}

/// The dimensions of a product, and the shape of the sparse array.
type Params = (Vec<usize>, Vec<usize>, Vec<usize>);

/// The contraction of a sparse and a dense array: each stored element multiplies the entry of `x` at its contracted
/// indices, and the products with the same remaining indices are added.
fn product(m: &BCOO, x: &Array, of_m: &[usize], of_x: &[usize]) -> Result<Array> {
    m.check()?;
    if let Some(d) = of_m.iter().find(|&&d| d >= m.n_sparse()) {
        return Err(err!(NotImplemented, "the contraction over the dense dimension {d} of {m:?} is not supported")
            .help("store it sparsely: `fromdense` with a smaller `n_dense`"));
    }
    let operands = promote_dtypes(&[&m.data, x], |dtype| dtype)?;
    let args = [&operands[..], std::slice::from_ref(&m.indices)].concat();
    let params: Params = (m.shape.clone(), of_m.to_vec(), of_x.to_vec());
    composite1("bcoo_dot_general", params, &args, |(shape, of_m, of_x), args| {
        let (data, x, columns) = (&args[0], &args[1], column_arrays(&args[2]));
        let items = |dims: &[usize]| dims.iter().map(|&d| IndexItem::Array(columns[d].clone())).collect::<Vec<_>>();
        let free: Vec<usize> = (0..x.ndim()).filter(|d| !of_x.contains(d)).collect();
        let x = lax::transpose(x, &[&of_x[..], &free].concat());
        let rows = match of_m.is_empty() {
            true => lax::reshape(&x, &[&[1], x.shape()].concat()),
            false => x.at(items(of_m)).fill_value(0).get(),
        };
        // [nse, dense dimensions..., dimensions of x...]
        let dense = data.ndim() - 1;
        let wide = per_element_of(data, data.ndim() + free.len());
        let rows = lax::reshape(&rows, &[&rows.shape()[..1], &vec![1; dense], &rows.shape()[1..]].concat());
        let products = wide * &rows;
        let own: Vec<usize> = (0..columns.len()).filter(|d| !of_m.contains(d)).collect();
        if own.is_empty() {
            return Ok(vec![products.sum(0).astype(data.dtype())]);
        }
        let sizes: Vec<usize> = own.iter().map(|&d| shape[d]).chain(products.shape()[1..].iter().copied()).collect();
        Ok(vec![filled(&sizes, Scalar::Int(0), data.dtype()).at(items(&own)).add(products)])
    })
}

/// Data with dimensions of size 1 at the end, up to that rank.
fn per_element_of(data: &Array, rank: usize) -> Array {
    if data.ndim() == 1 {
        return per_element(data, rank);
    }
    let mut shape = data.shape().to_vec();
    shape.resize(rank, 1);
    lax::reshape(data, &shape)
}
