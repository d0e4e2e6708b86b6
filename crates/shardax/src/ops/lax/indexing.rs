//! Dynamic slices, gathers and scatters, sorting and cumulative reductions.

use super::Dim;
use super::start_indices::IntoStartIndices;
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, bind1};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::constants::integer;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::binary::{ADD, MAX, MIN, Select};
use crate::ops::primitive::cumulative::{Cumulative, CumulativeKind};
use crate::ops::primitive::dynamic_slice::{DynamicSlice, DynamicUpdateSlice};
use crate::ops::primitive::gather::Gather;
use crate::ops::primitive::scatter::Scatter;
use crate::ops::primitive::sort::Sort;
use crate::ops::primitive::top_k::TopK;
use crate::shape::{AxisNumber, IntoSizes, normalize_axis};

pub use crate::ops::primitive::gather::{GatherDimensionNumbers, GatherScatterMode};
pub use crate::ops::primitive::scatter::{ScatterDimensionNumbers, ScatterKind};

/// Converts start indices to scalars of one integer dtype. Negative indices count from the end of their dimension.
#[track_caller]
fn starts(name: &str, x: &Array, starts: &[Array]) -> Result<Vec<Array>> {
    if starts.len() != x.ndim() {
        return Err(err!(
            Type,
            "{name} of {} needs a start index for each dimension, got {}",
            x.type_name(),
            starts.len()
        )
        .help("use `dynamic_slice_in_dim` to slice a single dimension"));
    }
    let dtype = DType::for_indices(x.shape());
    starts.iter().zip(x.shape()).map(|(s, &n)| start(name, s, n, dtype)).collect()
}

/// One start index, of `dtype`, in a dimension of size `n`.
#[track_caller]
fn start(name: &str, start: &Array, n: usize, dtype: DType) -> Result<Array> {
    start.check()?;
    if start.ndim() != 0 || !start.dtype().is_integer() {
        return Err(err!(Type, "{name} start indices must be integer scalars, got {}", start.type_name())
            .help("pass one scalar index for each dimension"));
    }
    if let crate::core::array::Repr::Literal(l) = &start.0 {
        let v = l.value.to_i128();
        let v = if v < 0 { v + n as i128 } else { v };
        return Ok(integer(v.clamp(0, n as i128), dtype));
    }
    // A wide index is clamped in its own dtype, because the result's dtype might not represent it.
    let index_dtype = match start.dtype() {
        wide @ (DType::I64 | DType::U64 | DType::U32) => wide,
        _ => dtype,
    };
    let start = start.astype(index_dtype);
    let size = integer(n as i128, index_dtype);
    let start =
        if index_dtype.is_signed() { Select.apply(&start.less(0), &start, &ADD.apply(&start, &size)) } else { start };
    if index_dtype == dtype {
        return Ok(start);
    }
    let start = MIN.apply(&start, &size);
    Ok(if index_dtype.is_signed() { MAX.apply(&start, &integer(0, index_dtype)) } else { start }.astype(dtype))
}

/// Returns the block of `sizes` that starts at `start_indices`, which are one integer scalar per dimension. Negative
/// indices count from the end. Then indices are clamped such that the block is inside `x`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = arange(0..5);
/// assert_eq!(lax::dynamic_slice(&x, 1, 3).to_vec::<i32>()?, [1, 2, 3]);
/// assert_eq!(lax::dynamic_slice(&x, 9, 3).to_vec::<i32>()?, [2, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if a block is larger than `x`, or the number of indices is not the rank.
#[track_caller]
pub fn dynamic_slice(x: impl ArrayLike, start_indices: impl IntoStartIndices, sizes: impl IntoSizes) -> Array {
    let x = &x.into_array();
    match x.check().and_then(|()| starts("dynamic_slice", x, &start_indices.into_start_indices())) {
        Ok(starts) => {
            let args: Vec<Array> = std::iter::once(x.clone()).chain(starts).collect();
            bind1(DynamicSlice { sizes: sizes.into_sizes().into() }, &args)
        }
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// Writes `update` into `x` at `start_indices`, which are interpreted like the indices of [`dynamic_slice`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = lax::dynamic_update_slice(&zeros([4]), &ones([2]), 1);
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dynamic_update_slice(x: impl ArrayLike, update: impl ArrayLike, start_indices: impl IntoStartIndices) -> Array {
    let (x, update) = (&x.into_array(), &update.into_array());
    let start_indices = start_indices.into_start_indices();
    let checked = x.check().and_then(|()| update.check());
    match checked.and_then(|()| starts("dynamic_update_slice", x, &start_indices)) {
        Ok(starts) => {
            let args: Vec<Array> = [x.clone(), update.clone()].into_iter().chain(starts).collect();
            bind1(DynamicUpdateSlice, &args)
        }
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// Start indices of 0 except along `axis`.
#[track_caller]
fn along(x: &Array, start_index: &Array, axis: i32) -> Result<(usize, Vec<Array>)> {
    x.check()?;
    let axis = normalize_axis(axis as isize, x.ndim())?;
    let zero = integer(0, DType::I32);
    let mut starts = vec![zero; x.ndim()];
    starts[axis] = start_index.clone();
    Ok((axis, starts))
}

/// Like [`dynamic_slice`], along one axis: `size` entries from `start_index`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([1, 2, 3, 4]);
/// assert_eq!(lax::dynamic_slice_in_dim(&x, 1, 2, 0).to_vec::<i32>()?, [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dynamic_slice_in_dim(
    x: impl ArrayLike,
    start_index: impl ArrayLike,
    size: usize,
    axis: impl AxisNumber,
) -> Array {
    let x = &x.into_array();
    let axis = axis.axis_number();
    match along(x, &start_index.into_array(), axis) {
        Ok((axis, starts)) => {
            let mut sizes = x.shape().to_vec();
            sizes[axis] = size;
            dynamic_slice(x, &starts, &sizes)
        }
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// Returns the entry at `index` of `axis`. The axis stays, with size 1; you can remove it with `.squeeze(axis)`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = arange(0..6).reshape([2, 3]);
/// assert_eq!(lax::dynamic_index_in_dim(&x, array(1), 0).shape(), [1, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dynamic_index_in_dim(x: impl ArrayLike, index: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let x = &x.into_array();
    let axis = axis.axis_number();
    dynamic_slice_in_dim(x, index, 1, axis)
}

/// Like [`dynamic_update_slice`], along one axis.
///
/// ```
/// # use shardax::prelude::*;
/// let x = lax::dynamic_update_slice_in_dim(&array([1, 2, 3, 4]), &array([7, 8]), 1, 0);
/// assert_eq!(x.to_vec::<i32>()?, [1, 7, 8, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dynamic_update_slice_in_dim(
    x: impl ArrayLike,
    update: impl ArrayLike,
    start_index: impl ArrayLike,
    axis: impl AxisNumber,
) -> Array {
    let (x, update) = (&x.into_array(), &update.into_array());
    let axis = axis.axis_number();
    match along(x, &start_index.into_array(), axis) {
        Ok((_, starts)) => dynamic_update_slice(x, update, &starts),
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// Replaces the entry at `index` of `axis` by `update`, which either has this axis with size 1 or lacks it.
///
/// ```
/// # use shardax::prelude::*;
/// let x = lax::dynamic_update_index_in_dim(&array([[1, 2], [3, 4]]), &array([7, 8]), 0, 1);
/// assert_eq!(x.to_vec::<i32>()?, [7, 2, 8, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dynamic_update_index_in_dim(
    x: impl ArrayLike,
    update: impl ArrayLike,
    index: impl ArrayLike,
    axis: impl AxisNumber,
) -> Array {
    let (x, update) = (&x.into_array(), &update.into_array());
    let axis = axis.axis_number();
    let update = if update.ndim() == x.ndim() { update.clone() } else { update.expand_dims(axis) };
    dynamic_update_slice_in_dim(x, &update, index, axis)
}

/// Applies XLA's gather: returns a block of `slice_sizes` for each position in `indices` (along its last dimension).
///
/// Outside of the bounds, [`GatherScatterMode::FillOrDrop`] reads NaN for floating point numbers, the lowest signed integer or the
/// highest unsigned integer.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{GatherDimensionNumbers, GatherScatterMode};
/// // Rows 2 and 0 of a matrix: blocks of 1 × 2 whose dimension 1 remains.
/// let numbers = GatherDimensionNumbers {
///     offset_dims: vec![1],
///     collapsed_slice_dims: vec![0],
///     start_index_map: vec![0],
///     ..Default::default()
/// };
/// let x = array([[1, 2], [3, 4], [5, 6]]);
/// let rows = lax::gather(&x, &array([[2], [0]]), numbers, &[1, 2], GatherScatterMode::Clip);
/// assert_eq!(rows.to_vec::<i32>()?, [5, 6, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gather(
    x: impl ArrayLike,
    indices: impl ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: &[usize],
    mode: GatherScatterMode,
) -> Array {
    let (x, indices) = (&x.into_array(), &indices.into_array());
    Gather {
        dims: dimension_numbers,
        slice_sizes: slice_sizes.to_vec(),
        mode,
        fill_value: None,
        unique_indices: false,
        indices_are_sorted: false,
    }
    .apply(x, indices)
}

/// Applies XLA's scatter: returns `x` with a block of `updates` combined in for each position in `indices` (along its
/// last dimension).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{GatherScatterMode, ScatterDimensionNumbers, ScatterKind};
/// // Adds to elements 2 and 0 of a vector.
/// let numbers = ScatterDimensionNumbers {
///     inserted_window_dims: vec![0],
///     scatter_dims_to_operand_dims: vec![0],
///     ..Default::default()
/// };
/// let (x, indices, updates) = (array([1, 2, 3]), array([[2], [0]]), array([10, 20]));
/// let y = lax::scatter(ScatterKind::Add, &x, &indices, &updates, numbers, GatherScatterMode::Clip);
/// assert_eq!(y.to_vec::<i32>()?, [21, 2, 13]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn scatter(
    kind: ScatterKind,
    x: impl ArrayLike,
    indices: impl ArrayLike,
    updates: impl ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    mode: GatherScatterMode,
) -> Array {
    let (x, indices, updates) = (&x.into_array(), &indices.into_array(), &updates.into_array());
    Scatter { kind, dims: dimension_numbers, mode, unique_indices: false, indices_are_sorted: false }
        .apply(x, indices, updates)
}

/// Sorts `operands`, which have the same shape, in ascending order along `dimension`. The first `num_keys` operands are the keys, which
/// determine the order of all operands. The sort is stable.
///
/// Among floats, -0 equals 0 (a single sorted array has -0 first) and NaN comes last.
///
/// ```
/// # use shardax::prelude::*;
/// let sorted = lax::sort(&[array([3, 1, 2]), array([10, 20, 30])], 0, 1)?;
/// assert_eq!(sorted[1].to_vec::<i32>()?, [20, 30, 10]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if there are no operands, if their shapes differ, if `dimension` is out of bounds, or if `num_keys`
/// is not a number of operands.
#[track_caller]
pub fn sort(operands: &[Array], dimension: i32, num_keys: usize) -> Result<Vec<Array>> {
    at_caller(|| {
        let Some(key) = operands.first() else {
            return Err(
                err!(Value, "sort needs at least one array").help("pass the arrays to sort, starting with the keys")
            );
        };
        operands.iter().try_for_each(Array::check)?;
        let dimension = normalize_axis(dimension as isize, key.ndim())?;
        let outs = Sort { operands: operands.len(), dimension, num_keys, is_stable: true }.apply(operands);
        outs.iter().try_for_each(Array::check)?;
        Ok(outs.into_vec())
    })
    .at_caller()
}

/// Sorts `keys` in ascending order along `dimension`, and `values`, which have the same shape, like them. The sort is stable; see
/// [`sort`] for the order.
///
/// ```
/// # use shardax::prelude::*;
/// let (keys, values) = lax::sort_key_val(&array([3, 1, 2]), &array([10, 20, 30]), -1);
/// assert_eq!((keys.to_vec::<i32>()?, values.to_vec::<i32>()?), (vec![1, 2, 3], vec![20, 30, 10]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The results carry an error if the shapes differ, or if `dimension` is out of bounds.
#[track_caller]
pub fn sort_key_val(keys: impl ArrayLike, values: impl ArrayLike, dimension: i32) -> (Array, Array) {
    let (keys, values) = (keys.into_array(), values.into_array());
    match sort(&[keys.clone(), values], dimension, 1) {
        Ok(sorted) => (sorted[0].clone(), sorted[1].clone()),
        Err(e) => {
            let failed = Array::from_result(Err(e), &keys);
            (failed.clone(), failed)
        }
    }
}

/// Returns the `k` largest elements along the last dimension, in descending order, and their indices (int32).
///
/// ```
/// # use shardax::prelude::*;
/// let (values, indices) = lax::top_k(&array([1, 5, 3]), 2);
/// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i32>()?), (vec![5, 3], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if `k` is larger than this dimension.
#[track_caller]
pub fn top_k(x: impl ArrayLike, k: usize) -> (Array, Array) {
    let x = &x.into_array();
    top_k_in(x, k, -1)
}

#[track_caller]
fn top_k_in(x: &Array, k: usize, axis: i32) -> (Array, Array) {
    let values_and_indices = at_caller(|| {
        x.check()?;
        // A scalar is passed on, because the primitive rejects it with the better message.
        let axis = if x.ndim() == 0 { 0 } else { normalize_axis(axis as isize, x.ndim())? as i32 };
        let last_axis = x.ndim() as i32 - 1;
        let moved = if axis == last_axis || last_axis < 0 { x.clone() } else { x.moveaxis(axis, last_axis) };
        let outs = TopK { k }.apply(&moved);
        outs.iter().try_for_each(Array::check)?;
        let [values, indices] =
            [&outs[0], &outs[1]].map(|y| if axis == last_axis { y.clone() } else { y.moveaxis(last_axis, axis) });
        Ok((values, indices))
    });
    values_and_indices.unwrap_or_else(|e| {
        let failed = Array::from_result(Err(e), x);
        (failed.clone(), failed)
    })
}

/// Options of [`top_k`](top_k()) and [`approx_max_k`](approx_max_k()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::TopKOptions;
/// let x = array([[1, 5], [4, 2]]);
/// let (values, indices) = TopKOptions::new().axis(0).top_k(&x, 1);
/// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i32>()?), (vec![4, 5], vec![1, 0]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopKOptions {
    axis: i32,
}

impl Default for TopKOptions {
    fn default() -> Self {
        TopKOptions { axis: -1 }
    }
}

impl TopKOptions {
    /// Creates options for the last dimension.
    pub fn new() -> Self {
        TopKOptions::default()
    }

    /// Sets the axis along which elements are compared; negative axes count from the last. Default: the last axis.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// See [`top_k`](top_k()).
    ///
    /// # Errors
    /// The result also carries an error for an axis that is out of bounds.
    #[track_caller]
    pub fn top_k(&self, x: impl ArrayLike, k: usize) -> (Array, Array) {
        let x = &x.into_array();
        top_k_in(x, k, self.axis)
    }

    /// See [`approx_max_k`](approx_max_k()).
    #[track_caller]
    pub fn approx_max_k(&self, x: impl ArrayLike, k: usize) -> (Array, Array) {
        let x = &x.into_array();
        top_k_in(x, k, self.axis)
    }

    /// See [`approx_min_k`](approx_min_k()).
    #[track_caller]
    pub fn approx_min_k(&self, x: impl ArrayLike, k: usize) -> (Array, Array) {
        let x = &x.into_array();
        let (values, indices) = top_k_in(&-x, k, self.axis);
        (-values, indices)
    }
}

/// Returns the `k` largest elements along the last dimension, and their indices (int32). On accelerators, JAX may miss
/// some elements for speed; this function finds all of them, like [`top_k`](top_k()).
///
/// ```
/// # use shardax::prelude::*;
/// let (values, indices) = lax::approx_max_k(&array([1, 5, 3]), 2);
/// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i32>()?), (vec![5, 3], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn approx_max_k(x: impl ArrayLike, k: usize) -> (Array, Array) {
    let x = &x.into_array();
    TopKOptions::new().approx_max_k(x, k)
}

/// Returns the `k` smallest elements along the last dimension, and their indices; see [`approx_max_k`](approx_max_k()).
///
/// ```
/// # use shardax::prelude::*;
/// let (values, indices) = lax::approx_min_k(&array([1, 5, 3]), 2);
/// assert_eq!((values.to_vec::<i32>()?, indices.to_vec::<i32>()?), (vec![1, 3], vec![0, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn approx_min_k(x: impl ArrayLike, k: usize) -> (Array, Array) {
    let x = &x.into_array();
    TopKOptions::new().approx_min_k(x, k)
}

/// Options of [`cumsum`] and the other cumulative reductions.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::CumulativeOptions;
/// let from_the_end = CumulativeOptions::new().reverse(true);
/// assert_eq!(from_the_end.cumsum(&array([1, 2, 3]), 0).to_vec::<i32>()?, [6, 5, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CumulativeOptions {
    reverse: bool,
}

impl CumulativeOptions {
    /// Returns a forward accumulation.
    pub fn new() -> Self {
        CumulativeOptions::default()
    }

    /// Sets whether to accumulate from the end. Default false.
    pub fn reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    #[track_caller]
    fn run(self, kind: CumulativeKind, x: &Array, axis: impl Dim) -> Array {
        match axis.of(x.ndim()) {
            Ok(axis) => Cumulative { kind, axis, reverse: self.reverse }.apply(x),
            Err(e) => Array::from_result(Err(e), x),
        }
    }
}

macro_rules! cumulative_functions {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(x: impl ArrayLike, axis: impl Dim) -> Array {
                let x = &x.into_array();
                CumulativeOptions::new().$name(x, axis)
            }
        )*

        impl CumulativeOptions {$(
            #[doc = concat!("See [`", stringify!($name), "`](fn@", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(self, x: impl ArrayLike, axis: impl Dim) -> Array {
                let x = &x.into_array();
                self.run(CumulativeKind::$kind, x, axis)
            }
        )*}
    };
}

cumulative_functions! {
    /// The sum of each element and all elements before it along `axis`. [`CumulativeOptions`] can accumulate from the end.
    cumsum => Sum;
    /// The product of each element and all elements before it.
    cumprod => Prod;
    /// The maximum of each element and all elements before it.
    cummax => Max;
    /// The minimum of each element and all elements before it.
    cummin => Min;
    /// The logarithm of the sum of exponentials of each element and all elements before it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let y = lax::cumlogsumexp(&array([0.0f32, 0.0]), 0);
    /// assert!(allclose(y, array([0.0f32, 2f32.ln()]), 1e-6, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    cumlogsumexp => LogSumExp;
}
