//! Coordinates of arrays: grids, and indices of diagonals and triangles.

use std::ops::Range;

use super::options::options;
use super::{RangeNumber, arange, checked_or_failed, where_};
use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::err;
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, IntoArrays};
use crate::ops::primitive::gather::wide;
use crate::shape::IntoSizes;

/// The order of the dimensions of a grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indexing {
    /// Cartesian: the first vector is along the second dimension, the second vector along the first.
    #[default]
    Xy,
    /// Matrix: vector `i` is along dimension `i`.
    Ij,
}

/// JAX's names.
impl NamedOption for Indexing {
    const KIND: &'static str = "indexing";
    const NAMES: &'static [(&'static str, Self)] = &[("xy", Indexing::Xy), ("ij", Indexing::Ij)];
}

options! {
    /// Options of [`meshgrid`](meshgrid()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::MeshgridOptions;
    /// let (x, y) = (arange(0..2), arange(0..3));
    /// let grid = MeshgridOptions::new().indexing("ij").meshgrid([&x, &y]);
    /// assert_eq!(grid[0].to_vec::<i32>()?, [0, 0, 0, 1, 1, 1]);
    /// let open = MeshgridOptions::new().sparse(true).meshgrid([&x, &y]);
    /// assert_eq!((open[0].shape(), open[1].shape()), (&[1, 2][..], &[3, 1][..]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    MeshgridOptions {
        /// The order of the dimensions. Default [`Indexing::Xy`].
        indexing: Choice<Indexing> = Choice::default(), |indexing: impl IntoChoice<Indexing>| indexing.into_choice();
        /// If true, each result has size 1 in all dimensions except the dimension of its vector. Default `false`.
        sparse: bool = false, |sparse: bool| sparse;
    }
}

impl MeshgridOptions {
    /// See [`meshgrid`](meshgrid()).
    #[track_caller]
    pub fn meshgrid<Form>(&self, vectors: impl IntoArrays<Form>) -> Vec<Array> {
        let vectors = vectors.into_arrays();
        at_caller(|| {
            let indexing = match self.indexing.value("meshgrid") {
                Ok(indexing) => indexing,
                Err(e) => return vectors.iter().map(|v| Array::from_result(Err(e.clone()), v)).collect(),
            };
            let exchanged = indexing == Indexing::Xy && vectors.len() > 1;
            let mut dims: Vec<usize> = (0..vectors.len()).collect();
            if exchanged {
                dims.swap(0, 1);
            }
            let shape: Vec<usize> = dims.iter().map(|&dim| vectors[dim].size()).collect();
            let grids = vectors.iter().zip(dims).map(|(v, dim)| {
                let mut sparse_shape = vec![1; vectors.len()];
                sparse_shape[dim] = v.size();
                let shape = if self.sparse { &sparse_shape } else { &shape };
                match v.ndim() {
                    0 | 1 => lax::broadcast_in_dim(&v.ravel(), shape, &[dim]),
                    _ => {
                        let e = err!(Value, "Arguments to meshgrid must be 1D, got {}", v.type_name())
                            .help("pass the coordinates along each dimension as a vector");
                        Array::from_result(Err(e), v)
                    }
                }
            });
            grids.collect()
        })
    }
}

/// Returns coordinate grids. For vectors `x` and `y`, the results have shape `[y.len(), x.len()]`; the first has the values of `x` along each
/// row, the second the values of `y` along each column. More vectors add dimensions at the end. [`MeshgridOptions`] has the order of
/// matrices and sparse grids.
///
/// ```
/// # use shardax::prelude::*;
/// let grids = meshgrid([array([1, 2, 3]), array([10, 20])]);
/// assert_eq!(grids[0].to_vec::<i32>()?, [1, 2, 3, 1, 2, 3]);
/// assert_eq!(grids[1].to_vec::<i32>()?, [10, 10, 10, 20, 20, 20]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn meshgrid<Form>(vectors: impl IntoArrays<Form>) -> Vec<Array> {
    MeshgridOptions::new().meshgrid(vectors)
}

/// Returns the coordinates of a grid of ranges, with the type of the ranges. Index `i` of dimension 0 has the
/// coordinates along axis `i`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::mgrid;
/// assert_eq!(mgrid([0..2, 5..7]).to_vec::<i32>()?, [0, 0, 1, 1, 5, 6, 5, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn mgrid<T: RangeNumber>(ranges: impl IntoIterator<Item = Range<T>>) -> Array {
    at_caller(|| super::stack(grid(ranges, false), 0))
}

/// Returns the coordinates of a grid of ranges as sparse arrays: each has size 1 in all dimensions except its own.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::ogrid;
/// let open = ogrid([0..2, 5..8]);
/// assert_eq!((open[0].shape(), open[1].shape()), (&[2, 1][..], &[1, 3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ogrid<T: RangeNumber>(ranges: impl IntoIterator<Item = Range<T>>) -> Vec<Array> {
    at_caller(|| grid(ranges, true))
}

fn grid<T: RangeNumber>(ranges: impl IntoIterator<Item = Range<T>>, sparse: bool) -> Vec<Array> {
    let lines: Vec<Array> = ranges.into_iter().map(|range| arange(range)).collect();
    MeshgridOptions::new().indexing(Indexing::Ij).sparse(sparse).meshgrid(lines)
}

/// Returns the coordinates of the elements of an array of this shape: int32 of shape `[shape.len(), ..shape]`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::indices;
/// assert_eq!(indices([2, 2]).to_vec::<i32>()?, [0, 0, 1, 1, 0, 1, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn indices(shape: impl IntoSizes) -> Array {
    let shape = &shape.into_sizes()[..];
    at_caller(|| match shape {
        [] => super::zeros_dtype([0], DType::I32),
        _ => super::stack((0..shape.len()).map(|d| lax::iota(DType::for_indices(shape), shape, d)), 0),
    })
}

/// Calls `f` with the coordinates of the elements of an array of this shape, one array for each dimension.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::fromfunction;
/// let table = fromfunction(|at| &at[0] * 10 + &at[1], [2, 2]);
/// assert_eq!(table.to_vec::<i32>()?, [0, 1, 10, 11]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fromfunction<R>(f: impl FnOnce(&[Array]) -> R, shape: impl IntoSizes) -> R {
    let shape = &shape.into_sizes()[..];
    let places: Vec<Array> =
        at_caller(|| (0..shape.len()).map(|d| lax::iota(DType::for_indices(shape), shape, d)).collect());
    f(&places)
}

/// Reshapes vectors of indices to arrays that broadcast together: vector `i` is along dimension `i`. A boolean vector stands for the
/// indices at which it is true, so the call waits for its values.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::ix_;
/// let at = ix_([array([0, 2]), array([1])]);
/// let x = arange(0..9).reshape([3, 3]);
/// assert_eq!(x.get((&at[0], &at[1])).to_vec::<i32>()?, [1, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ix_<Form>(vectors: impl IntoArrays<Form>) -> Vec<Array> {
    let vectors = vectors.into_arrays();
    at_caller(|| {
        let places = vectors.iter().map(|v| match v.dtype() {
            DType::Bool => super::flatnonzero(v, None),
            // As in NumPy, so that an empty list of any dtype is a list of indices.
            _ if v.size() == 0 => v.astype(DType::I32),
            _ => v.clone(),
        });
        MeshgridOptions::new().indexing(Indexing::Ij).sparse(true).meshgrid(places.collect::<Vec<_>>())
    })
}

/// Returns the indices of the diagonal of an array of equal sizes, one array for each dimension.
///
/// ```
/// # use shardax::prelude::*;
/// let indices = diag_indices_from(ones([3, 3]));
/// assert_eq!(indices[0].to_vec::<i32>()?, [0, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for fewer than two dimensions, or sizes that differ.
#[track_caller]
pub fn diag_indices_from(x: impl ArrayLike) -> Vec<Array> {
    let x = &x.into_array();
    let line = checked_or_failed(x, || {
        let n = x.shape().first().copied().unwrap_or(0);
        if x.ndim() < 2 || x.shape().iter().any(|&m| m != n) {
            return Err(err!(
                Value,
                "All dimensions of input must be of equal length, at least two, got {}",
                x.type_name()
            )
            .help("use `diag_indices(n)` for the diagonal of an n × n part"));
        }
        Ok(lax::iota(DType::I32, &[n], 0))
    });
    vec![line; x.ndim().max(1)]
}

/// Returns the rows and columns of the entries on and below the diagonal `k` of a matrix.
///
/// ```
/// # use shardax::prelude::*;
/// let (rows, columns) = tril_indices_from(ones([2, 2]), 0);
/// assert_eq!((rows.to_vec::<i32>()?, columns.to_vec::<i32>()?), (vec![0, 1, 1], vec![0, 0, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tril_indices_from(x: impl ArrayLike, k: i32) -> (Array, Array) {
    triangle(&x.into_array(), |i, j| j - i <= i64::from(k))
}

/// Returns the rows and columns of the entries on and above the diagonal `k` of a matrix.
///
/// ```
/// # use shardax::prelude::*;
/// let (rows, columns) = triu_indices_from(ones([2, 2]), 0);
/// assert_eq!((rows.to_vec::<i32>()?, columns.to_vec::<i32>()?), (vec![0, 0, 1], vec![0, 1, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn triu_indices_from(x: impl ArrayLike, k: i32) -> (Array, Array) {
    triangle(&x.into_array(), |i, j| j - i >= i64::from(k))
}

#[track_caller]
fn triangle(x: &Array, chosen: impl Fn(i64, i64) -> bool) -> (Array, Array) {
    at_caller(|| match x.shape() {
        &[n, m] if x.error().is_none() => super::grids::entries(n, m, chosen),
        _ => {
            let error = x.check().err().unwrap_or_else(|| {
                err!(Value, "the indices of a triangle need a matrix, got {}", x.type_name())
                    .help("pass an array of two dimensions")
            });
            let failed = Array::from_result(Err(error), x);
            (failed.clone(), failed)
        }
    })
}

/// The treatment of coordinates out of range by [`ravel_multi_index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexMode {
    /// Coordinates wrap around.
    Wrap,
    /// Coordinates are clipped to the range.
    #[default]
    Clip,
}

/// JAX's names.
impl NamedOption for IndexMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] = &[("wrap", IndexMode::Wrap), ("clip", IndexMode::Clip)];
}

/// Converts coordinates in an array of this shape to indices into the flat array. `places` has one integer array for each dimension.
/// JAX's mode "raise" does not exist, because this function does not read values.
///
/// You must pass one array for each dimension.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{IndexMode, ravel_multi_index};
/// let flat = ravel_multi_index([array([1, 0]), array([2, 9])], [2, 3], IndexMode::Clip);
/// assert_eq!(flat.to_vec::<i32>()?, [5, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ravel_multi_index<Form>(
    places: impl IntoArrays<Form>,
    shape: impl IntoSizes,
    mode: impl IntoChoice<IndexMode>,
) -> Array {
    let (places, shape, mode) = (places.into_arrays(), &shape.into_sizes()[..], mode.into_choice());
    let none = Array::literal(Scalar::Int(0), DType::I32, false);
    checked_or_failed(places.first().unwrap_or(&none), || {
        let mode = mode.value("ravel_multi_index")?;
        if places.len() != shape.len() {
            return Err(err!(
                Value,
                "ravel_multi_index got {} arrays of coordinates for a shape of {} dimensions",
                places.len(),
                shape.len()
            )
            .help("pass one array of coordinates for each dimension"));
        }
        // Flat indices are int32, so the number of elements must fit.
        let total = shape.iter().try_fold(1i32, |n, &d| n.checked_mul(i32::try_from(d).ok()?));
        if let Some(odd) = places.iter().find(|place| !place.dtype().is_integer()) {
            return Err(err!(Type, "ravel_multi_index needs integers, got {}", odd.type_name())
                .help("convert them with `astype(DType::I32)`"));
        }
        if total.is_none() {
            return Err(err!(
                Value,
                "ravel_multi_index: the flat indices of an array of shape {shape:?} do not fit int32"
            )
            .help("pass a shape of at most 2147483647 elements"));
        }
        Ok(places.iter().zip(shape).fold(none.clone(), |flat, (place, &n)| {
            // A narrow dtype may not represent the size.
            let (place, n) = (wide(place, &[n]), n as i32);
            let place = match mode {
                IndexMode::Wrap => super::remainder(place, n.max(1)),
                IndexMode::Clip => place.clip(0, (n - 1).max(0)),
            };
            flat * n + place.astype(DType::I32)
        }))
    })
}

/// Selects the element of `choices[i]` where `x` is `i`; the arrays broadcast. `mode` treats numbers out of range.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{IndexMode, choose};
/// let y = choose(array([1, 0, 5]), [array([1, 2, 3]), array([10, 20, 30])], IndexMode::Clip);
/// assert_eq!(y.to_vec::<i32>()?, [10, 2, 30]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn choose<Form>(x: impl ArrayLike, choices: impl IntoArrays<Form>, mode: impl IntoChoice<IndexMode>) -> Array {
    let (x, choices, mode) = (x.into_array(), choices.into_arrays(), mode.into_choice());
    checked_or_failed(&x, || {
        let mode = mode.value("choose")?;
        let Some(last_choice) = choices.last() else {
            return Err(err!(Value, "choose needs at least one array of choices")
                .help("pass one array for each number that the indices contain"));
        };
        if !x.dtype().is_integer() {
            return Err(err!(Value, "`a` array must be integer typed, got {}", x.type_name())
                .help("convert it with `astype(DType::I32)`"));
        }
        let (x, n) = (wide(&x, &[choices.len()]), choices.len() as i32);
        let x = match mode {
            IndexMode::Wrap => super::remainder(&x, n),
            IndexMode::Clip => x.clip(0, n - 1),
        };
        // Indices broadcast with the choices, even if there is only one.
        let last_choice = where_(x.greater_equal(0), last_choice, last_choice);
        let other_choices = choices.iter().enumerate().rev().skip(1);
        Ok(other_choices.fold(last_choice, |otherwise, (i, choice)| where_(x.equal(i), choice, otherwise)))
    })
}
