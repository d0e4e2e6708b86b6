//! Shape manipulation: reshape, transpose, broadcast, join and split.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::program::trace::bind1;
use crate::core::sharding_like::ShardingLike;
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, IntoArrays};
use crate::ops::primitive::shape_ops::{BroadcastInDim, Reshape};
use crate::shape::{AxisNumber, IntoAxes, IntoShape, Shape, normalize_axes, normalize_axis, size};
use crate::sharding::Typed;
use crate::source;

impl Array {
    /// Reshapes the elements, in row-major order. You can pass -1 for one dimension, which then follows from the others.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(arange(0..6).reshape([2, -1]).shape(), [2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoShape) -> Array {
        match self.check().and_then(|()| resolve(&shape.into_dims(), self.shape())) {
            Ok(shape) => lax::reshape(self, &shape),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Like [`reshape`](Self::reshape), with the sharding in the type of the result. Use it where the operand's sharding determines no
    /// sharding of the result, or another one than you need.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("x", 2), ("y", 4)])?;
    /// let _mesh = set_mesh(&mesh)?;
    /// let x = reshard(ones([6, 8]), P![None, "y"]);
    /// assert_eq!(x.reshape_sharded([48], P!["x"]).type_name(), "float32[48@x]");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn reshape_sharded(&self, shape: impl IntoShape, sharding: impl Into<ShardingLike>) -> Array {
        let result = self.check().and_then(|()| resolve(&shape.into_dims(), self.shape())).and_then(|shape| {
            let out = sharding.into().out_sharding("out_sharding", &shape, &[self])?;
            Ok(bind1(Reshape { shape, out: out.map(Arc::new) }, std::slice::from_ref(self)))
        });
        Array::from_result(result, self)
    }

    /// Like [`broadcast_to`](Self::broadcast_to), with the sharding in the type of the result.
    #[track_caller]
    pub fn broadcast_to_sharded(&self, shape: impl IntoShape, sharding: impl Into<ShardingLike>) -> Array {
        let shape: Shape = shape.into_dims().iter().map(|&d| d.max(0) as usize).collect();
        if shape.len() < self.ndim() {
            return self.broadcast_to(&shape);
        }
        let result = self.check().and_then(|()| {
            let out = sharding.into().out_sharding("out_sharding", &shape, &[self])?;
            let dims = (shape.len() - self.ndim()..shape.len()).collect();
            Ok(bind1(BroadcastInDim { shape, dims, out: out.map(Arc::new) }, std::slice::from_ref(self)))
        });
        Array::from_result(result, self)
    }

    /// Returns all elements in one dimension.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([2, 3]).ravel().shape(), [6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn ravel(&self) -> Array {
        lax::reshape(self, &[self.size()])
    }

    /// Returns all elements in one dimension, like [`ravel`](Array::ravel).
    #[track_caller]
    pub fn flatten(&self) -> Array {
        self.ravel()
    }

    /// Merges the dimensions from `axis` on: `[N, H, W, C]` from 1 becomes `[N, H*W*C]`. If `axis` is the rank, a dimension of size 1 is
    /// added.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([8, 4, 4, 3]).flatten_from(1).shape(), [8, 48]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn flatten_from(&self, axis: impl AxisNumber) -> Array {
        let axis = axis.axis_number();
        let rank = self.ndim();
        let places = if axis < 0 { rank } else { rank + 1 };
        match self.check().and_then(|()| normalize_axis(axis as isize, places)) {
            Ok(axis) => {
                let mut shape: Shape = self.shape()[..axis].into();
                shape.push(size(&self.shape()[axis..]));
                lax::reshape(self, &shape)
            }
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Permutes the dimensions: `x.transpose([1, 0])`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([2, 3, 4]).transpose([2, 0, 1]).shape(), [4, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn transpose(&self, permutation: impl IntoAxes) -> Array {
        let Some(permutation) = permutation.into_axes() else { return self.t() };
        let normalized: Result<SmallVec<[usize; 4]>> =
            self.check().and_then(|()| permutation.iter().map(|&a| normalize_axis(a as isize, self.ndim())).collect());
        match normalized {
            Ok(p) => lax::transpose(self, &p),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Reverses the dimensions; transposes a matrix.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2, 3], [4, 5, 6]]).t().to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn t(&self) -> Array {
        lax::transpose(self, &(0..self.ndim()).rev().collect::<SmallVec<[usize; 4]>>())
    }

    /// Exchanges the last two dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([5, 2, 3]).mt().shape(), [5, 3, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn mt(&self) -> Array {
        self.swapaxes(-1, -2)
    }

    /// Exchanges two dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([2, 3, 4]).swapaxes(0, -1).shape(), [4, 3, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn swapaxes(&self, a: impl AxisNumber, b: impl AxisNumber) -> Array {
        let (a, b) = (a.axis_number(), b.axis_number());
        self.permuted(|rank| {
            let (a, b) = (normalize_axis(a as isize, rank)?, normalize_axis(b as isize, rank)?);
            let mut order: SmallVec<[usize; 4]> = (0..rank).collect();
            order.swap(a, b);
            Ok(order)
        })
    }

    /// Moves one or several dimensions from `from` to `to`. The other dimensions keep their order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([2, 3, 4]).moveaxis(0, -1).shape(), [3, 4, 2]);
    /// assert_eq!(ones([2, 3, 4, 5]).moveaxis([0, 1], [-1, -2]).shape(), [4, 5, 3, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn moveaxis(&self, from: impl IntoAxes, to: impl IntoAxes) -> Array {
        self.permuted(|rank| {
            let (from, to) = (axes_or_all(from, rank)?, axes_or_all(to, rank)?);
            let repeats = [&from, &to].into_iter().any(|axes| (1..axes.len()).any(|i| axes[..i].contains(&axes[i])));
            if from.len() != to.len() || repeats {
                return Err(err!(Value, "Inconsistent number of elements: moveaxis from {from:?} to {to:?}")
                    .help("pass each dimension once, and one new position for each"));
            }
            let mut order: SmallVec<[usize; 4]> = (0..rank).filter(|d| !from.contains(d)).collect();
            let mut moves: SmallVec<[(usize, usize); 4]> = to.into_iter().zip(from).collect();
            moves.sort_unstable();
            moves.into_iter().for_each(|(to, from)| order.insert(to, from));
            Ok(order)
        })
    }

    #[track_caller]
    fn permuted(&self, order: impl FnOnce(usize) -> Result<SmallVec<[usize; 4]>>) -> Array {
        match self.check().and_then(|()| order(self.ndim())) {
            Ok(order) => lax::transpose(self, &order),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Removes the dimensions at `axes`, which must have size 1; `..` removes all dimensions of size 1.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([1, 3, 1]).squeeze(0).shape(), [3, 1]);
    /// assert_eq!(ones([1, 3, 1]).squeeze(..).shape(), [3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn squeeze(&self, axes: impl IntoAxes) -> Array {
        let _line = source::enter();
        let result = self.check().and_then(|()| {
            let axes = match axes.into_axes() {
                None => (0..self.ndim()).filter(|&d| self.shape()[d] == 1).collect(),
                Some(axes) => normalize_axes(axes.as_slice(), self.ndim())?,
            };
            if axes.iter().any(|&a| self.shape()[a] != 1) {
                return Err(err!(
                    Value,
                    "cannot select an axis to squeeze out which has size not equal to one, got shape={:?} and dimensions={:?}",
                    self.shape(),
                    axes.as_slice()
                ).help("only dimensions of size 1 can be removed; index or reduce the others"));
            }
            let dims: Vec<Option<usize>> = (0..self.ndim()).filter(|d| !axes.contains(d)).map(Some).collect();
            Ok(lax::with_dims(self, &dims))
        });
        Array::from_result(result, self)
    }

    /// Inserts dimensions of size 1 at `axes` of the result.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([3]).expand_dims([0, -1]).shape(), [1, 3, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn expand_dims(&self, axes: impl IntoAxes) -> Array {
        let _line = source::enter();
        let result = self.check().and_then(|()| {
            let axes = axes.into_axes().unwrap_or_default();
            let axes = normalize_axes(axes.as_slice(), self.ndim() + axes.len())?;
            let mut dims: Vec<Option<usize>> = (0..self.ndim()).map(Some).collect();
            axes.iter().for_each(|&a| dims.insert(a, None));
            Ok(lax::with_dims(self, &dims))
        });
        Array::from_result(result, self)
    }

    /// Broadcasts to a shape by NumPy's rules.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2]).broadcast_to([2, 2]).to_vec::<i32>()?, [1, 2, 1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Array {
        let _line = source::enter();
        let result = self.check().and_then(|()| {
            let dims = shape.into_dims();
            let target: Shape = dims.iter().map(|&d| d.max(0) as usize).collect();
            let rank = self.ndim();
            let fits = target.len() >= rank
                && dims.iter().all(|d| *d >= 0)
                && self.shape().iter().zip(&target[target.len() - rank..]).all(|(&n, &m)| n == m || n == 1);
            if !fits {
                return Err(err!(
                    Value,
                    "Incompatible shapes for broadcasting: {:?} and requested shape {:?}",
                    self.shape(),
                    dims.as_slice()
                )
                .help("from the last dimension backwards, sizes must be equal, or 1 in the array"));
            }
            let leading = target.len() - rank;
            Ok(lax::broadcast_in_dim(self, &target, &(leading..target.len()).collect::<SmallVec<[usize; 4]>>()))
        });
        Array::from_result(result, self)
    }

    /// Broadcasts so that dimension `i` becomes dimension `dims[i]` of `shape`.
    #[track_caller]
    pub(crate) fn broadcast_in_dim(&self, shape: &[usize], dims: &[usize]) -> Array {
        lax::broadcast_in_dim(self, shape, dims)
    }

    /// Broadcasts to `shape` with this sharding; dimension `i` becomes dimension `dims[i]`.
    #[track_caller]
    pub(crate) fn broadcast_in_dim_as(&self, shape: &[usize], dims: SmallVec<[usize; 4]>, out: Typed) -> Array {
        let out = Some(Arc::new(out));
        bind1(BroadcastInDim { shape: shape.into(), dims, out }, std::slice::from_ref(self))
    }

    /// Splits along `axis` into a number of arrays of equal size, or before each of several places. Negative places count
    /// from the end.
    ///
    /// [`split_n`](Array::split_n) destructures parts of equal size.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let parts = arange(0..6).split(3, 0)?;
    /// assert_eq!(parts[1].to_vec::<i32>()?, [2, 3]);
    /// let parts = arange(0..6).split([1, 4], 0)?;
    /// assert_eq!(parts[1].to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array failed, if `axis` is out of bounds, or if its size is not a multiple of the number of
    /// parts.
    #[track_caller]
    pub fn split(&self, sections: impl IntoSections, axis: impl AxisNumber) -> Result<Vec<Array>> {
        let axis = axis.axis_number();
        match sections.into_sections() {
            Sections::Parts(parts) => self.split_evenly(parts, axis),
            Sections::Places(places) => {
                let size = self.axis_size_or_zero(axis);
                self.split_at(&places.iter().map(|&place| from_start(place, size)).collect::<Vec<_>>(), axis)
            }
        }
    }

    /// Splits along `axis` into arrays of equal size, and destructures them.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let [gate, value] = arange(0..6).split_n(0)?;
    /// assert_eq!((gate.to_vec::<i32>()?, value.to_vec::<i32>()?), (vec![0, 1, 2], vec![3, 4, 5]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array failed, if `axis` is out of bounds, or if its size is not a multiple of `N`.
    #[track_caller]
    pub fn split_n<const N: usize>(&self, axis: impl AxisNumber) -> Result<[Array; N]> {
        let parts = self.split_evenly(N, axis.axis_number())?;
        Ok(<[Array; N]>::try_from(parts).expect("a split into N parts has N parts"))
    }

    #[track_caller]
    fn split_evenly(&self, parts: usize, axis: i32) -> Result<Vec<Array>> {
        let _line = source::enter();
        self.check()?;
        let axis = normalize_axis(axis as isize, self.ndim()).at_caller()?;
        let n = self.shape()[axis];
        // An empty axis cannot be split into a huge number of parts.
        if parts == 0 || !n.is_multiple_of(parts) || (n == 0 && parts > 1 << 16) {
            let wrong = err!(
                Value,
                "array split does not result in an equal division: axis {axis} of size {n} into {parts} parts"
            );
            return Err(wrong.help("pass a number of parts that divides the size of the axis")).at_caller();
        }
        let step = n / parts;
        Ok((0..parts).map(|i| lax::slice_in_dim(self, i * step, (i + 1) * step, axis)).collect())
    }

    /// Returns the size of an axis, or 0 if there is no such axis, which the operation on it reports.
    pub(crate) fn axis_size_or_zero(&self, axis: i32) -> usize {
        normalize_axis(axis as isize, self.ndim()).map_or(0, |axis| self.shape()[axis])
    }
}

/// Converts a place that can be negative to a distance from the start of an axis.
pub(crate) fn from_start(place: i64, size: usize) -> usize {
    let from_front = if place < 0 { place.saturating_add(size as i64).max(0) } else { place };
    usize::try_from(from_front).unwrap_or(usize::MAX)
}

/// A number of parts, or the places between them: see [`Array::split`].
#[derive(Clone, Debug)]
pub enum Sections {
    /// A number of parts.
    Parts(usize),
    /// Places where parts begin; negative places count from the end.
    Places(Vec<i64>),
}

/// Sections of an axis: a number of parts, or a list of the places where parts begin.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how to split an axis",
    label = "neither a number of parts nor a list of places",
    note = "a number of parts, or the places where parts begin: `x.split(2, 0)`, `x.split([2, 5], -1)`"
)]
pub trait IntoSections {
    /// The sections as they were passed.
    fn into_sections(self) -> Sections;
}

macro_rules! into_sections {
    ($($t:ty)*) => {$(
        impl IntoSections for $t {
            fn into_sections(self) -> Sections {
                // A negative number is no number of parts, as 0 is not.
                Sections::Parts(usize::try_from(self).unwrap_or(0))
            }
        }
        impl<const N: usize> IntoSections for [$t; N] {
            fn into_sections(self) -> Sections {
                self.as_slice().into_sections()
            }
        }
        impl<const N: usize> IntoSections for &[$t; N] {
            fn into_sections(self) -> Sections {
                self.as_slice().into_sections()
            }
        }
        impl IntoSections for &[$t] {
            fn into_sections(self) -> Sections {
                Sections::Places(self.iter().map(|&place| i64::try_from(place).unwrap_or(i64::MAX)).collect())
            }
        }
        impl IntoSections for Vec<$t> {
            fn into_sections(self) -> Sections {
                self.as_slice().into_sections()
            }
        }
        impl IntoSections for &Vec<$t> {
            fn into_sections(self) -> Sections {
                self.as_slice().into_sections()
            }
        }
    )*};
}

into_sections!(i32 i64 usize);

impl Array {
    /// Splits along `axis` before each of `places`. A place beyond the end, or before the previous place, results in an empty part.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let parts = arange(0..6).split_at(&[1, 4], 0)?;
    /// assert_eq!(parts[1].to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array failed, or if `axis` is out of bounds.
    #[track_caller]
    pub fn split_at(&self, places: &[usize], axis: impl AxisNumber) -> Result<Vec<Array>> {
        let axis = axis.axis_number();
        let _line = source::enter();
        self.check()?;
        let axis = normalize_axis(axis as isize, self.ndim()).at_caller()?;
        let n = self.shape()[axis];
        let starts = std::iter::once(0).chain(places.iter().copied());
        let ends = places.iter().copied().chain(std::iter::once(n));
        Ok(starts
            .zip(ends)
            .map(|(start, end)| (start.min(n), end.min(n)))
            .map(|(start, end)| lax::slice_in_dim(self, start, end.max(start), axis))
            .collect())
    }
}

/// Resolves the -1 in a requested shape.
fn resolve(dims: &[i64], from: &[usize]) -> Result<Shape> {
    if dims.contains(&i64::MAX) {
        return Err(err!(
            Type,
            "cannot reshape array of shape {from:?} into shape {dims:?}: a size is larger than any array"
        )
        .help("write -1 for the remaining size, not `usize::MAX`; to combine it with a `usize`, write a tuple such as `(n, -1)`"));
    }
    let known_size = dims.iter().filter(|d| **d >= 0).fold(1, |n: i64, &d| n.saturating_mul(d));
    let unknown = dims.iter().filter(|d| **d < 0).count();
    if unknown == 0 {
        return Ok(dims.iter().map(|&d| d as usize).collect());
    }
    let total = size(from) as i64;
    if unknown > 1 || dims.iter().any(|d| *d < -1) || known_size == 0 || total % known_size != 0 {
        return Err(err!(Type, "cannot reshape array of shape {from:?} (size {total}) into shape {dims:?}")
            .help("one dimension may be -1, and the others must divide the number of elements"));
    }
    Ok(dims.iter().map(|&d| if d < 0 { (total / known_size) as usize } else { d as usize }).collect())
}

/// Concatenates the arrays along `axis`, promoted to one dtype.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(concatenate([array([1, 2]), array([3])], 0).to_vec::<i32>()?, [1, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error without arrays, or if other dimensions differ.
#[track_caller]
pub fn concatenate<Form>(arrays: impl IntoArrays<Form>, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let arrays = &arrays.into_arrays();
    join(arrays, |args| {
        if args[0].ndim() == 0 {
            return Err(err!(Value, "Zero-dimensional arrays cannot be concatenated.")
                .help("join scalars with `stack` instead"));
        }
        let axis = normalize_axis(axis as isize, args[0].ndim())?;
        Ok(lax::concatenate(args, axis))
    })
}

/// Stacks arrays of one shape along a new dimension at `axis`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(stack([array([1, 2]), array([3, 4])], 1).to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn stack<Form>(arrays: impl IntoArrays<Form>, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let arrays = &arrays.into_arrays();
    join(arrays, |args| {
        if let Some(odd) = args.iter().find(|a| a.shape() != args[0].shape()) {
            return Err(err!(
                Value,
                "All input arrays must have the same shape: stack got {} and {}",
                args[0].type_name(),
                odd.type_name()
            )
            .help("use `concatenate` for arrays that differ in the size of one dimension"));
        }
        let axis = normalize_axis(axis as isize, args[0].ndim() + 1)?;
        let expanded: Vec<Array> = args.iter().map(|a| a.expand_dims(axis as i32)).collect();
        Ok(lax::concatenate(&expanded, axis))
    })
}

#[track_caller]
fn join(arrays: &[Array], f: impl FnOnce(&[Array]) -> Result<Array>) -> Array {
    let _line = source::enter();
    let Some(first_array) = arrays.first() else {
        let like = Array::literal(crate::dtype::Scalar::Int(0), crate::dtype::DType::F32, false);
        return Array::from_result(
            Err(err!(Value, "Need at least one array to concatenate.")
                .help("start with an empty array of the expected shape, such as `zeros([0, n])`")),
            &like,
        );
    };
    // Promotes only: concatenated arrays are not broadcast against each other.
    let result = super::promote_args_of("concatenate", &arrays.iter().collect::<Vec<_>>()).and_then(|args| f(&args));
    Array::from_result(result, first_array)
}

macro_rules! shape_functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $t:ty),*);)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike, $($arg: $t),*) -> Array {
            x.into_array().$name($($arg),*)
        }
    )*};
}

shape_functions! {
    /// Changes the shape; see [`Array::reshape`].
    reshape(shape: impl IntoShape);
    /// Broadcasts to a shape; see [`Array::broadcast_to`].
    broadcast_to(shape: impl IntoShape);
    /// Permutes the dimensions; see [`Array::transpose`].
    transpose(permutation: &[i32]);
    /// Exchanges two dimensions; see [`Array::swapaxes`].
    swapaxes(a: i32, b: i32);
    /// Moves dimensions to other positions; see [`Array::moveaxis`].
    moveaxis(from: impl IntoAxes, to: impl IntoAxes);
    /// Removes dimensions of size 1; see [`Array::squeeze`].
    squeeze(axes: impl IntoAxes);
    /// Inserts dimensions of size 1; see [`Array::expand_dims`].
    expand_dims(axes: impl IntoAxes);
    /// Flattens to a vector; see [`Array::ravel`].
    ravel();
    /// Exchanges the last two dimensions; see [`Array::mt`].
    mt();
}

// The array API's name.
pub use mt as matrix_transpose;

/// Returns the axes counted from the first dimension; `..` is all axes.
fn axes_or_all(axes: impl IntoAxes, rank: usize) -> Result<SmallVec<[usize; 4]>> {
    match axes.into_axes() {
        None => Ok((0..rank).collect()),
        Some(axes) => axes.iter().map(|&axis| normalize_axis(axis as isize, rank)).collect(),
    }
}
