//! The layer below `numpy`: operations close to the primitives, on arrays of one dtype and fitting shapes.

pub(crate) mod conv;
mod dot;
mod indexing;
pub mod linalg;
mod patches;
mod reduce;
pub(crate) mod reduce_window;
mod select;

pub use super::control_flow::{associative_scan, cond, fori_loop, map, scan, switch, while_loop};

use smallvec::SmallVec;

pub use conv::*;
pub use dot::*;
pub use indexing::*;
pub use linalg::{Triangular, cholesky, triangular_solve};
pub use patches::conv_general_dilated_patches;
pub use reduce::{reduce, reduce_window};
pub use reduce_window::{Window, reduce_window_max, reduce_window_min, reduce_window_sum};
pub use select::*;

pub use crate::precision::Precision;

use super::numpy::IntoShape;
use super::primitive::binary::{COMPLEX, DIV, REM, SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL};
use super::primitive::bitcast::BitcastConvert;
use super::primitive::optimization_barrier::OptimizationBarrier;
use super::primitive::reduce::{Reduce, Reducer};
use super::primitive::reduce_precision::ReducePrecision;
use super::primitive::shape_ops::{BroadcastInDim, Iota, Reshape, Transpose};
use super::primitive::slices::{Concatenate, Pad, Reverse, Slice};
use super::primitive::unary::{CEIL, DIGAMMA, FLOOR};
use crate::core::array::Array;
use crate::core::program::trace::bind1;
use crate::core::tree::{Flat, Tree};
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::shape::normalize_axis;
use crate::source;

/// An optimization barrier: the compiler computes all of these values before it uses any, and merges none with equal
/// values elsewhere.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array, y: Array| lax::optimization_barrier((x.sin(), y)));
/// assert_eq!(f.call((0.0f32, 1.0f32))?.0.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn optimization_barrier<T: Tree>(x: T) -> T {
    let _line = source::enter();
    let flat = Flat::of(&x);
    let leaves = OptimizationBarrier::apply(&flat.leaves).into_vec().into();
    Flat { leaves, def: flat.def }.build().unwrap_or(x)
}

#[track_caller]
pub(crate) fn transpose(x: &Array, permutation: &[usize]) -> Array {
    if permutation.iter().copied().eq(0..x.ndim()) {
        return x.clone();
    }
    bind1(Transpose { permutation: permutation.into() }, std::slice::from_ref(x))
}

#[track_caller]
pub(crate) fn reshape(x: &Array, shape: &[usize]) -> Array {
    if x.shape() == shape {
        return x.clone();
    }
    bind1(Reshape { shape: shape.into(), out: None }, std::slice::from_ref(x))
}

/// Broadcasts `x` to `shape`: dimension `i` of `x` becomes dimension `dims[i]`, of the same size unless it was 1.
///
/// ```
/// # use shardax::prelude::*;
/// let x = lax::broadcast_in_dim(&array([1, 2]), &[2, 3], &[0]);
/// assert_eq!(x.to_vec::<i32>()?, [1, 1, 1, 2, 2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn broadcast_in_dim(x: &Array, shape: &[usize], dims: &[usize]) -> Array {
    if x.shape() == shape && dims.iter().copied().eq(0..x.ndim()) {
        return x.clone();
    }
    bind1(BroadcastInDim { shape: shape.into(), dims: dims.into(), out: None }, std::slice::from_ref(x))
}

#[track_caller]
pub(crate) fn reduce_with(x: &Array, reducer: Reducer, axes: &[usize]) -> Array {
    let mut axes: SmallVec<[usize; 4]> = axes.into();
    axes.sort_unstable();
    Reduce { reducer, axes, out: None }.apply(x)
}

#[track_caller]
pub(crate) fn reduce_sum(x: &Array, axes: &[usize]) -> Array {
    reduce_with(x, Reducer::Sum, axes)
}

/// A dimension index: from the front, or, as a negative `i32`, from the end.
pub trait Dim: Copy {
    /// Returns the index from the front. Fails for a negative one before the first of `rank`.
    fn of(self, rank: usize) -> Result<usize>;
}

impl Dim for usize {
    fn of(self, _rank: usize) -> Result<usize> {
        Ok(self)
    }
}

impl Dim for i32 {
    fn of(self, rank: usize) -> Result<usize> {
        if self >= 0 { Ok(self as usize) } else { normalize_axis(self as isize, rank) }
    }
}

/// Slices elements `start..limit` along one dimension.
#[track_caller]
pub fn slice_in_dim(x: &Array, start: usize, limit: usize, dim: impl Dim) -> Array {
    let dim = match dim.of(x.ndim()) {
        Ok(dim) if dim < x.ndim() => dim,
        Err(e) => return Array::from_result(Err(e), x),
        Ok(dim) => {
            let e = err!(Index, "slice_in_dim dimension {dim} is out of bounds for {}", x.type_name())
                .help("dimensions are counted from 0");
            return Array::from_result(Err(e), x);
        }
    };
    let mut s: SmallVec<[usize; 4]> = SmallVec::from_elem(0, x.ndim());
    let mut l: SmallVec<[usize; 4]> = x.shape().into();
    (s[dim], l[dim]) = (start, limit);
    slice(x, &s, &l, None)
}

/// Slices the elements `start..limit`, in steps of `strides` (1 by default), in each dimension.
///
/// Fails if a bound is outside the array.
#[track_caller]
pub fn slice(x: &Array, start: &[usize], limit: &[usize], strides: Option<&[usize]>) -> Array {
    let strides = strides.map(Into::into).unwrap_or_else(|| SmallVec::from_elem(1, x.ndim()));
    bind1(Slice { start: start.into(), limit: limit.into(), strides }, std::slice::from_ref(x))
}

/// Concatenates arrays of one dtype along a dimension.
#[track_caller]
pub fn concatenate(arrays: &[Array], dim: impl Dim) -> Array {
    let first = arrays.first();
    match (dim.of(first.map_or(0, Array::ndim)), first) {
        (Err(e), Some(first)) => Array::from_result(Err(e), first),
        (dim, _) => bind1(Concatenate { dimension: dim.unwrap_or_default() }, arrays),
    }
}

/// Reverses the elements along `dims`.
#[track_caller]
pub fn rev(x: &Array, dims: &[impl Dim]) -> Array {
    match dims.iter().map(|d| d.of(x.ndim())).collect() {
        Ok(dims) => bind1(Reverse { dims }, std::slice::from_ref(x)),
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// Pads each dimension by `(low, high, interior)` elements of `value`; negative edges cut.
#[track_caller]
pub fn pad(x: &Array, value: &Array, config: &[(i64, i64, i64)]) -> Array {
    bind1(Pad { config: config.into() }, &[x.clone(), value.clone()])
}

#[track_caller]
pub(crate) fn iota(dtype: DType, shape: &[usize], dim: usize) -> Array {
    bind1(Iota { dtype, shape: shape.into(), dimension: dim, out: None }, &[])
}

/// The index along dimension `dim` of each element of an array of `shape`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::broadcasted_iota(DType::I32, [2, 2], 1).to_vec::<i32>()?, [0, 1, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn broadcasted_iota(dtype: DType, shape: impl IntoShape, dim: impl Dim) -> Array {
    let dims = shape.into_dims();
    let dim = match dim.of(dims.len()) {
        Ok(dim) => dim,
        Err(e) => return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), dtype, false)),
    };
    if let Some(d) = dims.iter().find(|d| **d < 0) {
        let e = err!(Value, "a shape must not have negative sizes, got {d} in {:?}", dims.as_slice())
            .help("give the size of each dimension");
        return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), dtype, false));
    }
    iota(dtype, &dims.iter().map(|&d| d as usize).collect::<SmallVec<[usize; 4]>>(), dim)
}

/// Rounds each element to the precision of a float with this many bits of exponent and mantissa; the dtype
/// is unchanged. Values out of range become infinite.
///
/// Fails for dtypes that are not floating point, and for more bits than float64 has.
///
/// ```
/// # use shardax::prelude::*;
/// // As bfloat16 has it.
/// assert_eq!(lax::reduce_precision(&array([1.001f32, 3.14159]), 8, 7).to_vec::<f32>()?, [1.0, 3.140625]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reduce_precision(x: &Array, exponent_bits: u32, mantissa_bits: u32) -> Array {
    ReducePrecision { exponent_bits, mantissa_bits }.apply(x)
}

/// Rounds towards zero.
#[track_caller]
pub(crate) fn trunc(x: &Array) -> Array {
    if x.dtype().category() < Category::Float {
        return x.clone();
    }
    if x.dtype().is_complex() {
        let e = err!(Type, "trunc does not accept dtype {}: complex numbers have no order", x.dtype())
            .help("take `real(..)` or `imag(..)` first");
        return Array::from_result(Err(e), x);
    }
    super::numpy::where_(x.less(0), CEIL.apply(x), FLOOR.apply(x))
}

#[track_caller]
pub(crate) fn complex(re: &Array, im: &Array) -> Array {
    COMPLEX.apply(re, im)
}

/// Reinterprets the bits of `x` as `dtype`. A narrower type adds a last dimension; a wider one removes the last
/// dimension, whose size must be the quotient of the widths.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::bitcast_convert_type(&array([1.0f32]), DType::U32).to_vec::<u32>()?, [0x3F80_0000]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn bitcast_convert_type(x: &Array, dtype: DType) -> Array {
    BitcastConvert { dtype }.apply(x)
}

/// Division; truncates towards zero for integers, as the primitive does.
#[track_caller]
pub fn div(x: &Array, y: &Array) -> Array {
    DIV.apply(x, y)
}

/// The remainder of [`div`], with the sign of `x`; for an integer divided by 0 it is `x`.
#[track_caller]
pub fn rem(x: &Array, y: &Array) -> Array {
    REM.apply(x, y)
}

/// `x >> y`, filling with the sign bit whether the type is signed or not.
#[track_caller]
pub fn shift_right_arithmetic(x: &Array, y: &Array) -> Array {
    SHIFT_RIGHT_ARITHMETIC.apply(x, y)
}

/// `x >> y`, filling with zeros whether the type is signed or not.
#[track_caller]
pub fn shift_right_logical(x: &Array, y: &Array) -> Array {
    SHIFT_RIGHT_LOGICAL.apply(x, y)
}

/// The `n`-th derivative of the digamma function.
#[track_caller]
pub(crate) fn polygamma(n: i32, x: &Array) -> Array {
    if n == 0 {
        return DIGAMMA.apply(x);
    }
    let order = super::numpy::filled(x.shape(), Scalar::Int(n as i128), x.dtype());
    super::primitive::binary::POLYGAMMA.apply(&order, x)
}
