//! Sparse matrices in compressed sparse row (CSR) format.

use std::fmt;

use super::bcoo::{BCOO, column_arrays};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::numpy::stack;
use crate::ops::operators::ArrayLike;
use crate::shape::IntoSizes;

/// A sparse matrix in compressed sparse row (CSR) format. Row `i` has the elements `indptr[i]..indptr[i + 1]`, and
/// `indices` contains their columns. You can use it if you read entire rows; otherwise [`BCOO`] supports more
/// operations.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::BCSR;
/// let m = BCSR::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
/// assert_eq!(m.indptr.to_vec::<i32>()?, [0, 1, 3]);
/// assert_eq!(m.matmul(ones(3)).to_vec::<f32>()?, [2.0, 5.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, shardax_macros::Tree)]
pub struct BCSR {
    /// The stored elements, row by row.
    pub data: Array,
    /// The column of each stored element.
    pub indices: Array,
    /// The position of the first element of each row, followed by the number of elements.
    pub indptr: Array,
    #[tree(static)]
    shape: Vec<usize>,
}

impl BCSR {
    /// Creates a sparse matrix from its parts. `data` and `indices` must have the shape `[nse]`, and `indptr` the shape
    /// `[rows + 1]`.
    ///
    /// # Errors
    /// Returns an error if the shapes do not match, or if the indices are not integers.
    #[track_caller]
    pub fn new(
        data: impl ArrayLike,
        indices: impl ArrayLike,
        indptr: impl ArrayLike,
        shape: impl IntoSizes,
    ) -> Result<BCSR> {
        let matrix = BCSR {
            data: data.into_array(),
            indices: indices.into_array(),
            indptr: indptr.into_array(),
            shape: shape.into_sizes(),
        };
        matrix.check().at_caller()?;
        Ok(matrix)
    }

    /// Stores the nonzero elements of a matrix. [`BCOO::fromdense`] explains `nse`.
    ///
    /// # Errors
    /// Returns an error if `x` is not a matrix, or if `nse` is `None` and `x` is traced, because the number of
    /// stored elements must be known.
    #[track_caller]
    pub fn fromdense(x: impl ArrayLike, nse: impl Into<Option<usize>>) -> Result<BCSR> {
        BCSR::from_bcoo(&BCOO::fromdense(x, nse)?)
    }

    /// Converts a matrix from coordinate format. The elements of a row keep their order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::{BCOO, BCSR};
    /// let m = BCOO::new(array([1.0f32, 2.0]), array([[1, 0], [0, 1]]), [2, 2])?;
    /// assert_eq!(BCSR::from_bcoo(&m)?.indices.to_vec::<i32>()?, [1, 0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the sparse array is not a matrix of scalars.
    #[track_caller]
    pub fn from_bcoo(m: &BCOO) -> Result<BCSR> {
        at_caller(|| {
            m.check()?;
            if m.ndim() != 2 || m.n_dense() != 0 {
                return Err(err!(Value, "BCSR::from_bcoo takes a matrix of two sparse dimensions, got {m:?}")
                    .help("pass a matrix, both of whose dimensions are sparse"));
            }
            let m = m.sort_indices()?;
            let columns = column_arrays(&m.indices);
            let starts = lax::iota(DType::I32, &[m.shape()[0] + 1], 0).astype(m.indices.dtype());
            let indptr = columns[0].searchsorted(starts).astype(m.indices.dtype());
            Ok(BCSR { data: m.data.clone(), indices: columns[1].clone(), indptr, shape: m.shape().to_vec() })
        })
        .at_caller()
    }

    /// Converts the matrix to coordinate format.
    ///
    /// # Errors
    /// Returns an error if the shapes of the parts do not match each other.
    #[track_caller]
    pub fn to_bcoo(&self) -> Result<BCOO> {
        at_caller(|| {
            self.check()?;
            let positions = lax::iota(DType::I32, &[self.nse()], 0).astype(self.indptr.dtype());
            // An element belongs to the last row that starts at or before it. Elements after the last row are padding, and
            // the search returns a row that is out of range for them.
            let starts = lax::slice_in_dim(&self.indptr, 1, self.shape[0] + 1, 0);
            let rows = starts.searchsorted_right(positions).astype(self.indices.dtype());
            BCOO::new(&self.data, stack(&[rows, self.indices.clone()], 1), &self.shape)
        })
        .at_caller()
    }

    /// Converts to a dense matrix. Elements whose indices are out of range are dropped.
    #[track_caller]
    pub fn todense(&self) -> Array {
        Array::from_result(self.to_bcoo().map(|m| m.todense()), &self.data)
    }

    /// Multiplies by a dense vector or matrix. The result is dense. See [`BCOO::matmul`].
    #[track_caller]
    pub fn matmul(&self, x: impl ArrayLike) -> Array {
        Array::from_result(self.to_bcoo().map(|m| m.matmul(x)), &self.data)
    }

    /// Returns the shape of the matrix.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Returns the number of stored elements.
    pub fn nse(&self) -> usize {
        self.indices.size()
    }

    fn check(&self) -> Result<()> {
        let parts = [&self.data, &self.indices, &self.indptr];
        parts.iter().try_for_each(|part| part.check())?;
        let [data, indices, indptr] = parts;
        let fits = self.shape.len() == 2
            && indices.ndim() == 1
            && data.shape() == indices.shape()
            && indptr.ndim() == 1
            && indptr.size().checked_sub(1) == Some(self.shape[0])
            && indices.dtype().is_integer()
            && indptr.dtype().is_integer();
        if fits {
            return Ok(());
        }
        let [data, indices, indptr] = parts.map(Array::type_name);
        Err(err!(
            Value,
            "a sparse matrix of shape {:?} got incompatible data {data}, indices {indices} and indptr {indptr}",
            self.shape
        )
        .help(
            "pass the shape of a matrix, a vector of data, a vector of integer columns, and a vector of the integer starts of all rows followed by the number of elements",
        ))
    }
}

impl fmt::Debug for BCSR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BCSR({}{:?}, nse={})", self.dtype(), self.shape, self.nse())
    }
}
