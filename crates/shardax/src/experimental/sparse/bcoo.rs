//! The coordinate format, and conversions from and to dense arrays.

use std::fmt;

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::index::IndexItem;
use crate::ops::lax;
use crate::ops::numpy::options::options;
use crate::ops::numpy::{NonzeroOptions, count_nonzero, filled, iinfo, size_or_count, stack, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::shape::IntoSizes;

/// A sparse array in coordinate format: the stored elements and their indices.
///
/// An array of shape `[sparse dimensions..., dense dimensions...]` stores its elements in `data`, of shape
/// `[nse, dense dimensions...]`, and the integer indices of each element in `indices`, of shape `[nse, n_sparse]`. Elements
/// with the same indices are added, and elements with an index out of range are padding.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::BCOO;
/// let m = BCOO::new(array([1.0f32, 3.0]), array([[0, 0], [1, 2]]), [2, 3])?;
/// assert_eq!(format!("{m:?}"), "BCOO(float32[2, 3], nse=2)");
/// assert_eq!(m.todense().to_vec::<f32>()?, [1.0, 0.0, 0.0, 0.0, 0.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, shardax_macros::Tree)]
pub struct BCOO {
    /// The stored elements.
    pub data: Array,
    /// The indices of the stored elements, one row for each element.
    pub indices: Array,
    #[tree(static)]
    pub(super) shape: Vec<usize>,
}

options! {
    /// Options of [`BCOO::fromdense`].
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::FromdenseOptions;
    /// let rows = FromdenseOptions::new().n_dense(1).fromdense(array([[0, 0], [1, 2], [0, 3]]), None)?;
    /// assert_eq!(rows.data.to_vec::<i32>()?, [1, 2, 0, 3]);
    /// assert_eq!(rows.indices.to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    FromdenseOptions {
        /// The number of last dimensions that are stored densely: if one element along them is nonzero, all are stored.
        /// Default 0.
        n_dense: usize = 0, |n_dense: usize| n_dense;
        /// The dtype of the indices. Default int32.
        index_dtype: DType = DType::I32, |index_dtype: DType| index_dtype;
    }
}

impl FromdenseOptions {
    /// Calls [`BCOO::fromdense`] with these options.
    ///
    /// # Errors
    /// Returns an error if `nse` is `None` and the array is traced, because the number of stored elements must be
    /// known.
    #[track_caller]
    pub fn fromdense(&self, x: impl ArrayLike, nse: impl Into<Option<usize>>) -> Result<BCOO> {
        let (x, nse) = (x.into_array(), nse.into());
        at_caller(|| self.store_nonzero(&x, nse)).at_caller()
    }

    fn store_nonzero(&self, x: &Array, nse: Option<usize>) -> Result<BCOO> {
        x.check()?;
        if self.n_dense > x.ndim() {
            return Err(err!(Value, "fromdense n_dense={} is larger than the rank of {}", self.n_dense, x.type_name())
                .help("`n_dense` counts the last dimensions that are stored densely; choose at most the rank"));
        }
        if !self.index_dtype.is_integer() {
            return Err(err!(Type, "fromdense index_dtype must be an integer dtype, got {}", self.index_dtype)
                .help("choose an integer dtype for the indices"));
        }
        let n_sparse = x.ndim() - self.n_dense;
        let dense: Vec<i32> = (n_sparse as i32..x.ndim() as i32).collect();
        let mask = x.not_equal(0).any(dense.as_slice());
        let nse = size_or_count("fromdense", nse, || count_nonzero(&mask, ..))?;
        let params = (nse, self.index_dtype);
        let parts = composite("bcoo_fromdense", params, 2, &[x.clone(), mask], |&(nse, index_dtype), args| {
            let (x, mask) = (&args[0], &args[1]);
            let indices = match mask.ndim() {
                0 => filled(&[nse, 0], Scalar::Int(0), index_dtype),
                _ => {
                    let options = NonzeroOptions::new().fill_value(bounds(mask.shape(), DType::I32));
                    stack(&options.nonzero(mask, nse), 1).astype(index_dtype)
                }
            };
            // Elements after the nonzero ones are padding, whose data are 0.
            let is_stored = lax::iota(DType::I32, &[nse], 0).less(count_nonzero(mask, ..));
            let is_stored = per_element(&is_stored, 1 + x.ndim() - mask.ndim());
            Ok(vec![where_(is_stored, extract(&indices, x), 0), indices])
        })?;
        BCOO::from_parts(parts, x.shape().to_vec())
    }
}

impl BCOO {
    /// Makes a sparse array from its parts; see [`BCOO`] for their shapes.
    ///
    /// # Errors
    /// Returns an error for indices that are not a matrix of integers, and for data whose shape does not fit.
    #[track_caller]
    pub fn new(data: impl ArrayLike, indices: impl ArrayLike, shape: impl IntoSizes) -> Result<BCOO> {
        let array = BCOO { data: data.into_array(), indices: indices.into_array(), shape: shape.into_sizes() };
        array.check().at_caller()?;
        Ok(array)
    }

    /// Stores the nonzero elements of an array.
    ///
    /// If you pass an `nse`, the result has exactly that many elements: missing ones are padded with zeros whose indices are
    /// out of range, and excess ones are dropped. With `None` the nonzero elements are counted, which waits for their
    /// values. [`FromdenseOptions`] has dense dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([0, 5, 0, 7]), 3)?;
    /// assert_eq!(m.data.to_vec::<i32>()?, [5, 7, 0]);
    /// assert_eq!(m.indices.to_vec::<i32>()?, [1, 3, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// You must pass an `nse` inside of `jit`, `vmap` and `grad`, because values are unknown there.
    ///
    /// # Errors
    /// Returns an error if `x` failed, or if `nse` is `None` while `x` is traced.
    #[track_caller]
    pub fn fromdense(x: impl ArrayLike, nse: impl Into<Option<usize>>) -> Result<BCOO> {
        FromdenseOptions::new().fromdense(x, nse)
    }

    /// Converts to a dense array of the dtype of `data`. Elements out of range are dropped.
    #[track_caller]
    pub fn todense(&self) -> Array {
        or_failed(&self.data, || {
            self.check()?;
            composite1("bcoo_todense", self.shape.clone(), &[self.data.clone(), self.indices.clone()], |shape, args| {
                let zeros = filled(shape, Scalar::Int(0), args[0].dtype());
                Ok(vec![match columns(&args[1]) {
                    index if index.is_empty() => zeros + args[0].sum(0),
                    index => zeros.at(index).add(&args[0]),
                }])
            })
        })
    }

    /// Returns the shape of the array.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Returns the dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Returns the number of stored elements.
    pub fn nse(&self) -> usize {
        self.indices.shape().first().copied().unwrap_or(0)
    }

    /// Returns the number of dimensions with indices.
    pub fn n_sparse(&self) -> usize {
        self.indices.shape().last().copied().unwrap_or(0)
    }

    /// Returns the number of dimensions that are stored densely.
    pub fn n_dense(&self) -> usize {
        self.data.ndim().saturating_sub(1)
    }

    /// Checks that data and indices fit the shape.
    pub(super) fn check(&self) -> Result<()> {
        self.data.check()?;
        self.indices.check()?;
        let (data, indices, shape) = (&self.data, &self.indices, &self.shape);
        // A gradient of a sparse array has no indices, which is the most likely mistake, so it is reported first.
        if indices.dtype() == DType::Float0 {
            return Err(err!(
                Type,
                "the indices of this sparse array have dtype float0, so it is a gradient that `grad` computed"
            )
            .help("differentiate with `sparse::grad` instead, because its gradients keep the argument's indices"));
        }
        if let Some(n) = shape.iter().find(|&&n| n > i32::MAX as usize) {
            return Err(err!(Value, "a sparse array of shape {shape:?}: {n} elements along a dimension are too many")
                .help("a dimension can have at most 2147483647 elements"));
        }
        if indices.ndim() != 2 || !indices.dtype().is_integer() || indices.shape()[1] > shape.len() {
            return Err(err!(Value, "a sparse array of shape {shape:?} cannot have indices {}", indices.type_name())
                .help("pass integers of shape [nse, n_sparse], one row for each stored element"));
        }
        let expected: Vec<usize> = [&indices.shape()[..1], &shape[indices.shape()[1]..]].concat();
        if data.shape() != expected {
            return Err(err!(
                Value,
                "a sparse array of shape {shape:?} got incompatible data {} and indices {}",
                data.type_name(),
                indices.type_name()
            )
            .help(format!("pass data of shape {expected:?}")));
        }
        Ok(())
    }

    /// Makes a sparse array from the two results of an operation, its data and its indices.
    pub(super) fn from_parts(parts: Vec<Array>, shape: Vec<usize>) -> Result<BCOO> {
        parts.iter().try_for_each(Array::check)?;
        match <[Array; 2]>::try_from(parts) {
            Ok([data, indices]) => Ok(BCOO { data, indices, shape }),
            Err(parts) => Err(err!(
                Runtime,
                "internal error: a sparse array got {} parts instead of two; please report this",
                parts.len()
            )),
        }
    }

    /// Replaces the data by data of the same shape, and keeps the indices.
    pub(super) fn with_data(&self, data: Array) -> BCOO {
        BCOO { data, ..self.clone() }
    }
}

impl fmt::Debug for BCOO {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BCOO({}{:?}, nse={}", self.dtype(), self.shape, self.nse())?;
        match self.n_dense() {
            0 => f.write_str(")"),
            n => write!(f, ", n_dense={n})"),
        }
    }
}

/// Returns the columns of a matrix of indices as an index into an array.
pub(super) fn columns(indices: &Array) -> Vec<IndexItem> {
    column_arrays(indices).into_iter().map(IndexItem::Array).collect()
}

/// Returns the columns of a matrix of indices.
pub(super) fn column_arrays(indices: &Array) -> Vec<Array> {
    (0..indices.shape()[1]).map(|i| lax::slice_in_dim(indices, i, i + 1, 1).ravel()).collect()
}

/// Returns the sizes of dimensions as a vector, which is also the row of indices of a padding element.
pub(super) fn bounds(sizes: &[usize], dtype: DType) -> Array {
    // `filled` makes constants of the program, which a composite can use.
    let bounds = match sizes {
        [] => filled(&[0], Scalar::Int(0), dtype),
        _ => {
            let sizes = sizes.iter().map(|&n| filled(&[1], Scalar::Int(n as i128), dtype));
            lax::concatenate(&sizes.collect::<Vec<_>>(), 0)
        }
    };
    match sizes.iter().find(|&&n| iinfo(dtype).is_ok_and(|info| n as i128 > info.max)) {
        Some(n) => {
            let e = err!(Value, "indices of dtype {dtype} cannot count the {n} elements of a dimension")
                .help("convert the indices to a larger integer dtype, for example int32");
            Array::from_result(Err(e), &bounds)
        }
        None => bounds,
    }
}

/// Reshapes a vector with one entry for each stored element to this rank, so that it broadcasts against data.
pub(super) fn per_element(x: &Array, rank: usize) -> Array {
    let mut shape = vec![1; rank.max(1)];
    shape[0] = x.size();
    lax::reshape(x, &shape)
}

/// Returns the elements of an array at these indices, and 0 where indices are out of range.
pub(super) fn extract(indices: &Array, x: &Array) -> Array {
    match columns(indices) {
        index if index.is_empty() => {
            let shape = [&indices.shape()[..1], x.shape()].concat();
            x.broadcast_to(shape.as_slice())
        }
        index => x.at(index).fill_value(0).get(),
    }
}
