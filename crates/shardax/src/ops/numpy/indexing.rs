//! Taking, sorting, accumulating and rolling elements.

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::ops::index::from_front;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::cumulative::{Cumulative, CumulativeKind};
use crate::ops::primitive::gather::{GatherScatterMode, take_along, wide};
use crate::ops::primitive::search_sorted::SearchSorted;
use crate::ops::primitive::sort::Sort;
use crate::shape::{AxisNumber, broadcast_shapes, normalize_axis};

/// One axis, or `..` for the array as one flat dimension.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an axis",
    label = "not an axis",
    note = "write a number, such as `0` or `-1`, or `..` for the flat array"
)]
pub trait IntoAxis {
    /// The axis as it was passed; `None` for the flat array.
    fn into_axis(self) -> Option<i32>;
}

impl<A: AxisNumber> IntoAxis for A {
    fn into_axis(self) -> Option<i32> {
        Some(self.axis_number())
    }
}

impl IntoAxis for std::ops::RangeFull {
    fn into_axis(self) -> Option<i32> {
        None
    }
}

/// Returns the array and the axis. Without an axis, the array is flattened.
pub(crate) fn with_axis(x: &Array, axis: impl IntoAxis) -> Result<(Array, usize)> {
    x.check()?;
    match axis.into_axis() {
        Some(axis) => Ok((x.clone(), normalize_axis(axis as isize, x.ndim())?)),
        None => {
            let flat = x.ravel();
            flat.check().map_err(|e| e.context("an operation along all elements in one dimension (`..`)"))?;
            Ok((flat, 0))
        }
    }
}

impl Array {
    #[track_caller]
    fn along(&self, axis: impl IntoAxis, f: impl FnOnce(&Array, usize) -> Array) -> Array {
        match with_axis(self, axis) {
            Ok((x, axis)) => at_caller(|| f(&x, axis)),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Returns the entries at `indices` (integers of any shape) along `axis`; `..` is the flat array. Negative indices
    /// count from the end. As in JAX, entries out of bounds are NaN, or the extreme number of an integer dtype.
    ///
    /// The result's shape is the array's, with the axis replaced by the shape of the indices.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = arange(0..6).reshape([2, 3]);
    /// assert_eq!(x.take([2, 0], 1).to_vec::<i32>()?, [2, 0, 5, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn take(&self, indices: impl crate::ops::index::IntoIndexItem, axis: impl IntoAxis) -> Array {
        self.take_mode(indices, axis, GatherScatterMode::FillOrDrop)
    }

    /// Like [`take`](Self::take), with another mode for indices out of bounds. With [`GatherScatterMode::Clip`], negative indices are
    /// out of bounds too and are clipped to 0.
    #[track_caller]
    pub fn take_mode(
        &self,
        indices: impl crate::ops::index::IntoIndexItem,
        axis: impl IntoAxis,
        mode: GatherScatterMode,
    ) -> Array {
        use crate::ops::index::{IndexItem, Slice};
        self.along(axis, |x, axis| {
            let mut items = vec![IndexItem::Slice(Slice::FULL); axis];
            items.push(match indices.into_index_item() {
                IndexItem::At(i) => {
                    let dtype = DType::for_indices(&[i.unsigned_abs() as usize]);
                    IndexItem::Array(Array::literal(Scalar::Int(i as i128), dtype, false))
                }
                other => other,
            });
            // Clipped indices do not count from the end.
            if let (Some(IndexItem::Array(i)), GatherScatterMode::Clip) = (items.last_mut(), mode)
                && i.dtype().is_signed()
            {
                *i = i.maximum(0);
            }
            x.at(items).mode(mode).get()
        })
    }

    /// Selects one entry along `axis` for each index: `out[i, j] = x[indices[i, j], j]` for axis 0. The other dimensions broadcast
    /// together. Negative indices count from the end. Entries out of bounds are NaN, or the extreme number of an integer dtype.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([[1, 2, 3], [4, 5, 6]]);
    /// assert_eq!(x.take_along_axis(&array([[2], [0]]), 1).to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn take_along_axis(&self, indices: impl ArrayLike, axis: impl IntoAxis) -> Array {
        let indices = &indices.into_array();
        or_failed(self, || {
            let (x, axis) = with_axis(self, axis)?;
            indices.check()?;
            if !indices.dtype().is_integer() {
                return Err(err!(Type, "take_along_axis indices must be of integer type, got {}", indices.type_name())
                    .help("convert them with `astype(DType::I32)`"));
            }
            if indices.ndim() != x.ndim() {
                return Err(err!(
                    Value,
                    "indices and arr must have the same number of dimensions; {} vs. {}",
                    indices.type_name(),
                    x.type_name()
                )
                .help("add dimensions to the indices with `expand_dims`"));
            }
            let n = x.shape()[axis];
            // All dimensions broadcast except the axis, along which the result has the size of the indices.
            let (mut x_shape, mut index_shape) = (x.shape().to_vec(), indices.shape().to_vec());
            let k = std::mem::replace(&mut index_shape[axis], 1);
            x_shape[axis] = 1;
            let Some(mut shape) = broadcast_shapes(&[&x_shape, &index_shape]) else {
                bail!(
                    Value,
                    "take_along_axis got incompatible shapes for broadcasting: {} and indices {}",
                    x.type_name(),
                    indices.type_name()
                );
            };
            shape[axis] = k;
            if n == 0 && !shape.contains(&0) {
                return Err(err!(Index, "cannot take from axis {axis} with size 0 of {}", x.type_name())
                    .help("pass an array with at least one entry along the axis"));
            }
            composite1("take_along_axis", (shape, axis), &[x, indices.clone()], |(shape, axis), args| {
                let n = args[0].shape()[*axis];
                let indices = from_front(&args[1].broadcast_to(shape), n);
                let mut shape = shape.clone();
                shape[*axis] = n;
                let x = args[0].broadcast_to(&shape);
                Ok(vec![take_along(&x, &indices, *axis, GatherScatterMode::FillOrDrop, false)])
            })
        })
    }

    /// Sorts the elements in ascending order along `axis` (`..`: of the flat array). Stable; NaN comes last.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[3, 1, 2]]).sort(-1).to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: impl IntoAxis) -> Array {
        self.along(axis, |x, dimension| {
            let sort = Sort { operands: 1, dimension, num_keys: 1, is_stable: true };
            crate::core::program::trace::first(sort.apply(std::slice::from_ref(x)))
        })
    }

    /// Returns the indices, int32, that sort the elements in ascending order along `axis`. Equal elements keep their
    /// order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([3, 1, 2]).argsort(0).to_vec::<i32>()?, [1, 2, 0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn argsort(&self, axis: impl IntoAxis) -> Array {
        self.ordered(axis, false)
    }

    /// Sorts the elements in descending order along `axis` (`..`: of the flat array); NaN comes first.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([2, 3, 1]).sort_descending(0).to_vec::<i32>()?, [3, 2, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn sort_descending(&self, axis: impl IntoAxis) -> Array {
        self.along(axis, |x, dimension| lax::rev(&x.sort(dimension as i32), &[dimension]))
    }

    /// Returns the indices, int32, that sort the elements in descending order along `axis`. Equal elements keep their
    /// order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([2, 3, 1]).argsort_descending(0).to_vec::<i32>()?, [1, 0, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn argsort_descending(&self, axis: impl IntoAxis) -> Array {
        self.ordered(axis, true)
    }

    /// The indices that sort the elements.
    #[track_caller]
    fn ordered(&self, axis: impl IntoAxis, descending: bool) -> Array {
        or_failed(self, || {
            let (x, axis) = with_axis(self, axis)?;
            let x = crate::ops::primitive::stop_gradient::stop_gradient(x);
            composite1("argsort", (axis, descending), &[x], |&(dimension, descending), args| {
                // Reversing before and after an ascending sort keeps the order of equal elements.
                let dims: &[usize] = if descending { &[dimension] } else { &[] };
                let index_dtype = DType::for_indices(&args[0].shape()[dimension..=dimension]);
                let indices = lax::iota(index_dtype, args[0].shape(), dimension);
                let indices = reversed(&indices, dims).sharded_as(&args[0].aval());
                let sort = Sort { operands: 2, dimension, num_keys: 1, is_stable: true };
                Ok(vec![reversed(&sort.apply(&[reversed(&args[0], dims), indices])[1], dims)])
            })
        })
    }

    /// Returns the cumulative sum along `axis` (`..`: of the flat array). Booleans are counted.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3]).cumsum(0).to_vec::<i32>()?, [1, 3, 6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: impl IntoAxis) -> Array {
        self.accumulate(axis, CumulativeKind::Sum)
    }

    /// Returns the cumulative product along `axis`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([2, 3, 4]).cumprod(0).to_vec::<i32>()?, [2, 6, 24]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn cumprod(&self, axis: impl IntoAxis) -> Array {
        self.accumulate(axis, CumulativeKind::Prod)
    }

    /// Returns the cumulative maximum along `axis`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([2, 1, 4]).cummax(0).to_vec::<i32>()?, [2, 2, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn cummax(&self, axis: impl IntoAxis) -> Array {
        self.along(axis, |x, axis| lax::cummax(x, axis))
    }

    /// Returns the cumulative minimum along `axis`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([2, 1, 4]).cummin(0).to_vec::<i32>()?, [2, 1, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn cummin(&self, axis: impl IntoAxis) -> Array {
        self.along(axis, |x, axis| lax::cummin(x, axis))
    }

    #[track_caller]
    fn accumulate(&self, axis: impl IntoAxis, kind: CumulativeKind) -> Array {
        self.along(axis, |x, axis| {
            let counts = DType::for_indices(&x.shape()[axis..=axis]);
            let dtype = if x.dtype() == DType::Bool { counts } else { x.dtype() };
            let x = super::to_strong_type(x, dtype);
            Cumulative { kind, axis, reverse: false }.apply(&x)
        })
    }

    /// Reverses the elements along `axis` (`..`: along all).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3]).flip(0).to_vec::<i32>()?, [3, 2, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn flip(&self, axes: impl super::IntoAxes) -> Array {
        match self.check().and_then(|()| super::normalize_axes(axes, self.ndim())) {
            Ok(axes) if axes.is_empty() => self.clone(),
            Ok(axes) => lax::rev(self, &axes),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Shifts the elements by `shift` positions along `axis`; elements beyond the end reappear at the start. `..` shifts the flat array
    /// and keeps the shape. The shift is a number, one number for each axis, or an array, which can be traced.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3, 4]).roll(1, 0).to_vec::<i32>()?, [4, 1, 2, 3]);
    /// assert_eq!(array([[1, 2], [3, 4]]).roll((1, -1), (0, 1)).to_vec::<i32>()?, [4, 3, 2, 1]);
    /// let f = jit(|x: Array, by: Array| x.roll(by, [0, 1]));
    /// assert_eq!(f.call((array([[1, 2], [3, 4]]), array([1, 1])))?.to_vec::<i32>()?, [4, 3, 2, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shift: impl IntoShift, axis: impl super::IntoAxes) -> Array {
        or_failed(self, || {
            self.check()?;
            let shift = shift.into_shift();
            let Some(axes) = axis.into_axes() else {
                return Ok(lax::reshape(&rolled(&self.ravel(), &shift, &[0])?, self.shape()));
            };
            let axes: Vec<usize> =
                axes.iter().map(|&axis| normalize_axis(axis as isize, self.ndim())).collect::<Result<_>>()?;
            rolled(self, &shift, &axes)
        })
    }

    /// Finds the first index at which each of `values` can be inserted into this ascending array such that it stays
    /// sorted. The index, int32, is the number of smaller elements. NaN sorts last.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 2, 5]).searchsorted(array([2, 3])).to_vec::<i32>()?, [1, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// The result carries an error unless the array has one dimension.
    #[track_caller]
    pub fn searchsorted(&self, values: impl ArrayLike) -> Array {
        let () = ();
        self.bisect("searchsorted", values, false)
    }

    /// Finds the last index at which each of `values` can be inserted (NumPy's `side="right"`): the number of elements that are less or
    /// equal.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 2, 5]).searchsorted_right(2).item::<i32>()?, 3);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn searchsorted_right(&self, values: impl ArrayLike) -> Array {
        self.bisect("searchsorted_right", values, true)
    }

    #[track_caller]
    fn bisect(&self, name: &'static str, values: impl ArrayLike, right: bool) -> Array {
        let values = values.into_array();
        or_failed(&values, || {
            let args = super::promote_args_of(name, &[self, &values])?;
            let (sorted, values) = (&args[0], &args[1]);
            if sorted.ndim() != 1 {
                return Err(err!(Value, "{name} needs a sorted array of one dimension, got {}", sorted.type_name())
                    .help("map over several sorted rows with `vmap`"));
            }
            Ok(SearchSorted { counts_equal: right }.apply(sorted, values))
        })
    }
}

/// Shifts of [`Array::roll`]: a number, several, or an array of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shift",
    label = "neither a number nor numbers",
    note = "an integer, a list of integers for several axes, or an array of them: `x.roll(1, 0)`, `x.roll([1, -2], [0, 1])`"
)]
pub trait IntoShift {
    /// The shifts as they were passed.
    fn into_shift(self) -> Shift;
}

/// Shifts whose values are known, or an array of them.
#[derive(Clone, Debug)]
pub enum Shift {
    /// A shift for all axes, or one for each.
    Known(Vec<i64>),
    /// An array of integers, which can be traced: a scalar, or one for each axis.
    Array(Array),
}

macro_rules! into_shift {
    ($($t:ty)*) => {$(
        impl IntoShift for $t {
            fn into_shift(self) -> Shift {
                Shift::Known(vec![i64::from(self)])
            }
        }
        impl<const N: usize> IntoShift for [$t; N] {
            fn into_shift(self) -> Shift {
                self.as_slice().into_shift()
            }
        }
        impl IntoShift for &[$t] {
            fn into_shift(self) -> Shift {
                Shift::Known(self.iter().copied().map(i64::from).collect())
            }
        }
        impl IntoShift for Vec<$t> {
            fn into_shift(self) -> Shift {
                self.as_slice().into_shift()
            }
        }
        impl IntoShift for &Vec<$t> {
            fn into_shift(self) -> Shift {
                self.as_slice().into_shift()
            }
        }
    )*};
}

into_shift!(i32 i64);

macro_rules! tuple_shifts {
    ($($t:ty)*) => {$(
        impl IntoShift for ($t, $t) {
            fn into_shift(self) -> Shift {
                [self.0, self.1].into_shift()
            }
        }
        impl IntoShift for ($t, $t, $t) {
            fn into_shift(self) -> Shift {
                [self.0, self.1, self.2].into_shift()
            }
        }
    )*};
}

tuple_shifts!(i32 i64);

impl IntoShift for Array {
    fn into_shift(self) -> Shift {
        match &self.0 {
            crate::core::array::Repr::Literal(l) if self.dtype().is_integer() => {
                Shift::Known(vec![i64::try_from(l.value.to_i128()).unwrap_or(i64::MAX)])
            }
            _ => Shift::Array(self),
        }
    }
}

impl IntoShift for &Array {
    fn into_shift(self) -> Shift {
        self.clone().into_shift()
    }
}

/// Shifts along several axes, one after the other. A single shift applies to all axes, and several shifts to a single axis add up.
fn rolled(x: &Array, shift: &Shift, axes: &[usize]) -> Result<Array> {
    match shift {
        // A known shift is a concatenation of two slices.
        Shift::Known(shifts) => {
            let mut cuts = Vec::new();
            for i in 0..roll_count(x, shifts.len(), axes)? {
                let (axis, by) = (axes[broadcast_index(axes.len(), i)], shifts[broadcast_index(shifts.len(), i)]);
                let n = x.shape()[axis];
                let cut = if n == 0 { 0 } else { (-i128::from(by)).rem_euclid(n as i128) as usize };
                if cut != 0 {
                    cuts.push((cut, axis));
                }
            }
            if cuts.is_empty() {
                return Ok(x.clone());
            }
            composite1("roll", cuts, std::slice::from_ref(x), |cuts, args| {
                Ok(vec![cuts.iter().fold(args[0].clone(), |x, &(cut, axis)| {
                    let n = x.shape()[axis];
                    let parts = [lax::slice_in_dim(&x, cut, n, axis), lax::slice_in_dim(&x, 0, cut, axis)];
                    lax::concatenate(&parts, axis)
                })])
            })
        }
        Shift::Array(by) => {
            by.check()?;
            if !by.dtype().is_integer() || by.ndim() > 1 {
                return Err(err!(
                    Value,
                    "'shift' and 'axis' arguments to roll must be scalars or 1D arrays, got {}",
                    by.type_name()
                )
                .help("pass integers: one shift, or one for each axis"));
            }
            let count = roll_count(x, by.size(), axes)?;
            composite1("roll", (axes.to_vec(), count), &[x.clone(), by.clone()], |(axes, count), args| {
                let by = args[1].ravel();
                let mut x = args[0].clone();
                for i in 0..*count {
                    let (axis, index) = (axes[broadcast_index(axes.len(), i)], broadcast_index(by.size(), i));
                    let n = x.shape()[axis];
                    if n == 0 {
                        continue;
                    }
                    // The remainder is taken in the shift's dtype, which may exceed the dtype of positions.
                    let by = wide(&by.get(index as i32), &[n]);
                    let start = -super::remainder(by, n) + n;
                    let doubled = lax::concatenate(&[x.clone(), x], axis);
                    x = lax::dynamic_slice_in_dim(&doubled, start, n, axis as i32);
                }
                Ok(vec![x])
            })
        }
    }
}

/// Returns the index into a list. A list with a single entry applies to all dimensions.
fn broadcast_index(len: usize, i: usize) -> usize {
    if len == 1 { 0 } else { i }
}

macro_rules! axis_functions {
    ($($name:ident)*) => {$(
        #[doc = concat!("See [`Array::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
            x.into_array().$name(axis)
        }
    )*};
}

axis_functions!(sort argsort cumsum cumprod);

/// Takes the entries at these indices; see [`Array::take`].
#[track_caller]
pub fn take(x: impl ArrayLike, indices: impl crate::ops::index::IntoIndexItem, axis: impl IntoAxis) -> Array {
    x.into_array().take(indices, axis)
}

/// Takes one entry for each index along an axis; see [`Array::take_along_axis`].
#[track_caller]
pub fn take_along_axis(x: impl ArrayLike, indices: impl ArrayLike, axis: impl IntoAxis) -> Array {
    x.into_array().take_along_axis(indices, axis)
}

/// Reverses the order of entries; see [`Array::flip`].
#[track_caller]
pub fn flip(x: impl ArrayLike, axes: impl super::IntoAxes) -> Array {
    x.into_array().flip(axes)
}

/// Shifts entries, and moves entries from the end to the start; see [`Array::roll`].
#[track_caller]
pub fn roll(x: impl ArrayLike, shift: impl IntoShift, axis: impl super::IntoAxes) -> Array {
    x.into_array().roll(shift, axis)
}

/// Finds the positions at which values belong in a sorted array; see [`Array::searchsorted`].
#[track_caller]
pub fn searchsorted(sorted: impl ArrayLike, values: impl ArrayLike) -> Array {
    sorted.into_array().searchsorted(values)
}

/// Returns the number of rolls for `count` shifts, which broadcast against the axes.
fn roll_count(x: &Array, count: usize, axes: &[usize]) -> Result<usize> {
    if count == 1 || axes.len() == 1 || count == axes.len() {
        Ok(count.max(axes.len()))
    } else {
        Err(err!(Value, "roll of {} got {count} shifts for {} axes", x.type_name(), axes.len())
            .help("pass one shift, or one for each axis"))
    }
}

/// Reverses `x` along `dims`, without an operation if there are none.
fn reversed(x: &Array, dims: &[usize]) -> Array {
    if dims.is_empty() { x.clone() } else { lax::rev(x, dims) }
}
