//! The layer below `numpy`: collectives, and operations close to the primitives, whose operands must have the same dtype and fitting
//! shapes.

pub(crate) mod conv;
mod dot;
mod indexing;
pub mod linalg;
mod mulhi;
mod patches;
mod ragged;
mod random;
mod reduce;
pub(crate) mod reduce_window;
mod scaled_dot;
mod select;
mod start_indices;
mod tridiagonal;

pub use super::collective::{
    CastTo, all_gather, all_gather_invariant, all_to_all, axis_index, axis_size, pbroadcast, pcast, pcast_to, pmax,
    pmean, pmin, ppermute, pshuffle, psum, psum_scatter, pswapaxes, ragged_all_to_all, with_sharding_constraint,
};
pub(crate) use super::constants::iota;
pub use super::constants::{full_dtype as full, full_like};
pub use super::control_flow::{associative_scan, cond, fori_loop, map, scan, switch, while_loop};
pub use super::primitive::stop_gradient::stop_gradient;
// JAX's names of elementwise functions; operands of unlike dtypes are promoted as NumPy's.
pub use super::elementwise::{
    abs, add, arccos as acos, arccosh as acosh, arcsin as asin, arcsinh as asinh, arctan as atan, arctan2 as atan2,
    arctanh as atanh, bitwise_and, bitwise_not, bitwise_or, bitwise_xor, cbrt, ceil, clz, conj, cos, cosh, digamma,
    equal as eq, erf, erf_inv, erfc, exp, exp2, expm1, floor, greater as gt, greater_equal as ge, imag, integer_pow,
    isfinite as is_finite, left_shift as shift_left, less as lt, less_equal as le, lgamma, log, log1p, log2, logistic,
    maximum as max, minimum as min, multiply as mul, negative as neg, nextafter, not_equal as ne, population_count,
    power as pow, real, reciprocal, rsqrt, sign, sin, sinh, sqrt, square, subtract as sub, tan, tanh,
};

use std::sync::Arc;

use smallvec::SmallVec;

pub use conv::*;
pub use dot::*;
pub use indexing::*;
pub use linalg::{Triangular, cholesky, triangular_solve};
pub use mulhi::mulhi;
pub use patches::{conv_general_dilated_local, conv_general_dilated_patches};
pub use ragged::{RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general};
pub use random::*;
pub use reduce::{reduce, reduce_window};
pub use reduce_window::{Window, reduce_window_max, reduce_window_min, reduce_window_sum};
pub use scaled_dot::{ScaledDotOptions, scaled_dot};
pub use select::*;
pub use start_indices::IntoStartIndices;

pub use crate::precision::{DotAlgorithmPreset, Precision};

use super::operators::{ArrayLike, IntoArrays};
use super::primitive::binary::{COMPLEX, DIV, REM, SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL};
use super::primitive::bitcast::BitcastConvert;
use super::primitive::composite::composite1;
use super::primitive::optimization_barrier::OptimizationBarrier;
use super::primitive::reduce::{Reduce, Reducer};
use super::primitive::reduce_precision::ReducePrecision;
use super::primitive::shape_ops::{BroadcastInDim, Reshape, Transpose};
use super::primitive::slices::{Concatenate, Pad, Reverse, Slice};
use super::primitive::special::POLYNOMIAL;
use super::primitive::unary::{CEIL, DIGAMMA, FLOOR};
use super::promotion::promote_args;
use crate::core::array::{Array, Repr};
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, or_failed};
use crate::core::tree::{Flat, IntoTree};
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::shape::{IntoAxes, IntoShape, Shape, normalize_axis};
use crate::sharding::DimSpec;
use crate::source;

/// Converts the elements; see [`Array::astype`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::convert_element_type(array([1.7f32, -1.7]), DType::I32).to_vec::<i32>()?, [1, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn convert_element_type(x: impl ArrayLike, dtype: DType) -> Array {
    x.into_array().astype(dtype)
}

/// Returns the elements with new leading dimensions of these sizes.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::broadcast(&array([1, 2]), &[3]).shape(), [3, 2]);
/// ```
#[track_caller]
pub fn broadcast(x: impl ArrayLike, sizes: &[usize]) -> Array {
    let x = &x.into_array();
    let shape = [sizes, x.shape()].concat();
    broadcast_in_dim(x, &shape, &(sizes.len()..shape.len()).collect::<Vec<_>>())
}

/// Inserts dimensions of size 1 at these positions; see [`Array::expand_dims`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::expand_dims(ones([3]), 0).shape(), [1, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn expand_dims(x: impl ArrayLike, dimensions: impl IntoAxes) -> Array {
    x.into_array().expand_dims(dimensions)
}

/// Removes these dimensions, of size 1; see [`Array::squeeze`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::squeeze(ones([1, 3]), 0).shape(), [3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn squeeze(x: impl ArrayLike, dimensions: impl IntoAxes) -> Array {
    x.into_array().squeeze(dimensions)
}

/// Merges the dimensions from `start` up to, but not including, `stop` into one. Without a `stop`, all dimensions from
/// `start` are merged.
///
/// ```
/// # use shardax::prelude::*;
/// let x = ones([2, 3, 4, 5]);
/// assert_eq!(lax::collapse(&x, 1, 3).shape(), [2, 12, 5]);
/// assert_eq!(lax::collapse(&x, 2, None).shape(), [2, 3, 20]);
/// assert_eq!(lax::collapse(&x, 0, -1).shape(), [24, 5]);
/// ```
///
/// # Errors
/// The result carries an error for dimensions out of range.
#[track_caller]
pub fn collapse(x: impl ArrayLike, start: i32, stop: impl Into<Option<i32>>) -> Array {
    let (x, stop) = (x.into_array(), stop.into());
    let collapsed = x.check().and_then(|()| {
        let rank = x.ndim();
        let (Some(start), Some(stop)) =
            (dim_or_end(start, rank), stop.map_or(Some(rank), |stop| dim_or_end(stop, rank)))
        else {
            return Err(err!(Value, "collapse dimensions {start} to {stop:?} are out of range for {}", x.type_name())
                .help("dimensions count from 0, and negative dimensions from the last"));
        };
        if start > stop {
            return Err(err!(Value, "lo_dim ({start}) must not be after hi_dim ({stop}) of {}", x.type_name())
                .help("pass the first dimension to merge, and the dimension after the last"));
        }
        let merged: usize = x.shape()[start..stop].iter().product();
        let shape = [&x.shape()[..start], &[merged], &x.shape()[stop..]].concat();
        Ok(if start == stop { x.clone() } else { reshape(&x, &shape) })
    });
    Array::from_result(collapsed, &x)
}

/// Returns the entry at this index along one dimension. With `keepdims`, the dimension stays, with size 1.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1, 2], [3, 4]]);
/// assert_eq!(lax::index_in_dim(&x, -1, 1, false).to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn index_in_dim(x: impl ArrayLike, index: i32, dim: impl Dim, keepdims: bool) -> Array {
    let x = &x.into_array();
    let entry = dim.of(x.ndim()).and_then(|dim| {
        x.check()?;
        let n = x.shape().get(dim).copied().unwrap_or(0);
        let position = if index < 0 { i64::from(index) + n as i64 } else { i64::from(index) };
        let position = usize::try_from(position).ok().filter(|position| *position < n).ok_or_else(|| {
            err!(Index, "index {index} is out of bounds of dimension {dim} of {}", x.type_name())
                .help("indices count from 0, and negative indices from the end")
        })?;
        let entry = slice_in_dim(x, position, position + 1, dim);
        Ok(if keepdims { entry } else { entry.squeeze(dim as i32) })
    });
    Array::from_result(entry, x)
}

/// Adds an optimization barrier: the compiler computes all of these values before it uses any of them, and does not
/// merge them with equal values elsewhere.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array, y: Array| lax::optimization_barrier((x.sin(), y)));
/// assert_eq!(f.call((0.0f32, 1.0f32))?.0.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn optimization_barrier<T: IntoTree>(x: T) -> T::Tree {
    let _line = source::enter();
    let x = x.into_tree();
    let flat = Flat::of(&x);
    let leaves = OptimizationBarrier::apply(&flat.leaves).into_vec().into();
    Flat { leaves, def: flat.def }.build().unwrap_or(x)
}

/// Permutes the dimensions.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::transpose(&ones([2, 3, 4]), &[2, 0, 1]).shape(), [4, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn transpose(x: impl ArrayLike, permutation: &[usize]) -> Array {
    let x = &x.into_array();
    if permutation.iter().copied().eq(0..x.ndim()) {
        return x.clone();
    }
    bind1(Transpose { permutation: permutation.into() }, std::slice::from_ref(x))
}

/// Reshapes the elements, in row-major order.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::reshape(&ones([2, 3]), &[3, 2]).shape(), [3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reshape(x: impl ArrayLike, shape: &[usize]) -> Array {
    let x = &x.into_array();
    if x.shape() == shape {
        return x.clone();
    }
    bind1(Reshape { shape: shape.into(), out: None }, std::slice::from_ref(x))
}

/// Reshapes `x` to a sequence of its own dimensions, in order, and new dimensions of size 1 (`None`). Dimensions of size 1 that `dims`
/// omits are removed.
///
/// Unlike in a reshape, a dimension of size 1 keeps the mesh axes over which it is split.
#[track_caller]
pub(crate) fn with_dims(x: &Array, dims: &[Option<usize>]) -> Array {
    if dims.iter().copied().eq((0..x.ndim()).map(Some)) {
        return x.clone();
    }
    let shape: Shape = dims.iter().map(|dim| dim.map_or(1, |d| x.shape()[d])).collect();
    let out = x
        .aval_ref()
        .and_then(Aval::sharding)
        .filter(|typed| (0..x.ndim()).any(|d| x.shape()[d] == 1 && typed.dims()[d] != DimSpec::None))
        .map(|typed| {
            Arc::new(typed.with_dims(dims.iter().map(|dim| dim.map_or(DimSpec::None, |d| typed.dims()[d].clone()))))
        });
    bind1(Reshape { shape, out }, std::slice::from_ref(x))
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
pub fn broadcast_in_dim(x: impl ArrayLike, shape: &[usize], dims: &[usize]) -> Array {
    let x = &x.into_array();
    if x.shape() == shape && dims.iter().copied().eq(0..x.ndim()) {
        return x.clone();
    }
    bind1(BroadcastInDim { shape: shape.into(), dims: dims.into(), out: None }, std::slice::from_ref(x))
}

/// Repeats each element along a dimension, one next to the other.
#[track_caller]
pub(crate) fn repeat_each(x: &Array, repeats: usize, dim: usize) -> Array {
    let mut shape = x.shape_owned();
    shape.insert(dim + 1, repeats);
    let dims: Vec<usize> = (0..shape.len()).filter(|&d| d != dim + 1).collect();
    let spread = broadcast_in_dim(x, &shape, &dims);
    shape.remove(dim + 1);
    shape[dim] = shape[dim].saturating_mul(repeats);
    reshape(&spread, &shape)
}

#[track_caller]
pub(crate) fn reduce_with(x: &Array, reducer: Reducer, axes: &[usize]) -> Array {
    let mut axes: SmallVec<[usize; 4]> = axes.into();
    axes.sort_unstable();
    Reduce { reducer, axes, out: None }.apply(x)
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident => $reducer:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike, axes: &[usize]) -> Array {
            let x = &x.into_array();
            reduce_with(x, Reducer::$reducer, axes)
        }
    )*};
}

reductions! {
    /// The sum over these dimensions, in the dtype of the elements.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([[1, 2], [3, 4]]);
    /// assert_eq!(lax::reduce_sum(&x, &[0]).to_vec::<i32>()?, [4, 6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    reduce_sum => Sum;
    /// The product over these dimensions, in the dtype of the elements.
    reduce_prod => Prod;
    /// The largest element over these dimensions.
    reduce_max => Max;
    /// The smallest element over these dimensions.
    reduce_min => Min;
    /// Logical or bitwise and over these dimensions.
    reduce_and => And;
    /// Logical or bitwise or over these dimensions.
    reduce_or => Or;
}

/// A dimension index. A negative `i32` counts from the last dimension.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the index of a dimension",
    label = "neither a `usize` nor an `i32`",
    note = "a dimension is one `usize`, or an `i32` that counts from the last dimension if it is negative: `cumsum(&x, 0)`, `cumsum(&x, -1)`"
)]
pub trait Dim: Copy {
    /// Returns the index counted from the front. Fails for a negative index before the first of `rank` dimensions.
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
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::slice_in_dim(&array([1, 2, 3, 4]), 1, 3, 0).to_vec::<i32>()?, [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn slice_in_dim(x: impl ArrayLike, start: usize, limit: usize, dim: impl Dim) -> Array {
    let x = &x.into_array();
    let dim = match dim.of(x.ndim()) {
        Ok(dim) if dim < x.ndim() => dim,
        Err(e) => return Array::from_result(Err(e), x),
        Ok(dim) => {
            let e = err!(Index, "slice_in_dim dimension {dim} is out of bounds for {}", x.type_name())
                .help("pass dimensions from 0 to the rank minus 1");
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
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1, 2, 3], [4, 5, 6]]);
/// assert_eq!(lax::slice(&x, &[0, 0], &[2, 3], Some(&[1, 2])).to_vec::<i32>()?, [1, 3, 4, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if a bound is outside the array.
#[track_caller]
pub fn slice(x: impl ArrayLike, start: &[usize], limit: &[usize], strides: Option<&[usize]>) -> Array {
    let x = &x.into_array();
    let strides = strides.map(Into::into).unwrap_or_else(|| SmallVec::from_elem(1, x.ndim()));
    bind1(Slice { start: start.into(), limit: limit.into(), strides }, std::slice::from_ref(x))
}

/// Concatenates arrays of one dtype along a dimension.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::concatenate(&[array([1, 2]), array([3])], 0).to_vec::<i32>()?, [1, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn concatenate(arrays: &[Array], dim: impl Dim) -> Array {
    let like = arrays.first();
    match (dim.of(like.map_or(0, Array::ndim)), like) {
        (Err(e), Some(like)) => Array::from_result(Err(e), like),
        (dim, _) => bind1(Concatenate { dimension: dim.unwrap_or_default() }, arrays),
    }
}

/// Reverses the elements along `dims`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::rev(&array([1, 2, 3]), &[0]).to_vec::<i32>()?, [3, 2, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rev(x: impl ArrayLike, dims: &[impl Dim]) -> Array {
    let x = &x.into_array();
    match dims.iter().map(|d| d.of(x.ndim())).collect() {
        Ok(dims) => bind1(Reverse { dims }, std::slice::from_ref(x)),
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// Pads each dimension with `value`: `(low, high, interior)` elements before, after and between the elements. Negative `low` and
/// `high` remove elements.
///
/// ```
/// # use shardax::prelude::*;
/// let x = lax::pad(&array([1, 2]), &array(0), &[(1, 0, 2)]);
/// assert_eq!(x.to_vec::<i32>()?, [0, 1, 0, 0, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pad(x: impl ArrayLike, value: impl ArrayLike, config: &[(i64, i64, i64)]) -> Array {
    let (x, value) = (&x.into_array(), &value.into_array());
    let addends = x.aval_ref().and_then(Aval::sharding).is_some_and(|typed| !typed.unreduced().is_empty());
    let zero = matches!(&value.0, Repr::Literal(number) if number.value.is_zero());
    if addends && !zero {
        let e = err!(
            Sharding,
            "pad: the padding of unreduced operands must be 0, because each device's would be added, got {} for an operand of type {}",
            value.type_name(),
            x.type_name()
        );
        return Array::from_result(Err(e.help("sum them with `reshard(x, P![..])` first")), x);
    }
    bind1(Pad { config: config.into() }, &[x.clone(), value.clone()])
}

/// Returns the index along dimension `dim` of each element of an array of `shape`.
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
            .help("pass the size of each dimension");
        return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), dtype, false));
    }
    iota(dtype, &dims.iter().map(|&d| d as usize).collect::<SmallVec<[usize; 4]>>(), dim)
}

/// Returns the integers from 0 up to, but not including, `size`, of this dtype. `shardax::lax` has it as `iota`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::iota(DType::U8, 3).to_vec::<u8>()?, [0, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn iota_of_size(dtype: DType, size: usize) -> Array {
    broadcasted_iota(dtype, [size], 0)
}

/// Rounds each element to the precision of a float with this many bits of exponent and mantissa; the dtype is
/// unchanged. Values out of range become infinite.
///
/// ```
/// # use shardax::prelude::*;
/// // As bfloat16 has it.
/// assert_eq!(lax::reduce_precision(&array([1.001f32, 3.14159]), 8, 7).to_vec::<f32>()?, [1.0, 3.140625]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for dtypes that are not floating point, and for more bits than float64 has.
#[track_caller]
pub fn reduce_precision(x: impl ArrayLike, exponent_bits: u32, mantissa_bits: u32) -> Array {
    let x = &x.into_array();
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
            .help("pass the real or imaginary part, which `real(..)` and `imag(..)` return");
        return Array::from_result(Err(e), x);
    }
    let result = composite1("trunc", (), std::slice::from_ref(x), |(), args| {
        let x = &args[0];
        Ok(vec![super::select::where_(x.less(0), CEIL.apply(x), FLOOR.apply(x))])
    });
    Array::from_result(result, x)
}

/// Creates a complex array from a real and an imaginary part.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::complex(&array([3.0f32]), &array([4.0f32])).type_name(), "complex64[1]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn complex(re: impl ArrayLike, im: impl ArrayLike) -> Array {
    let (re, im) = (&re.into_array(), &im.into_array());
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
pub fn bitcast_convert_type(x: impl ArrayLike, dtype: DType) -> Array {
    let x = &x.into_array();
    BitcastConvert { dtype }.apply(x)
}

/// Divides. Integers are truncated towards zero.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::div(&array([7, -7]), &array([2, 2])).to_vec::<i32>()?, [3, -3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn div(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (&x.into_array(), &y.into_array());
    DIV.apply(x, y)
}

/// Returns the remainder of [`div`], with the sign of `x`; for an integer divided by 0 it is `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::rem(&array([7, -7]), &array([2, 2])).to_vec::<i32>()?, [1, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rem(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (&x.into_array(), &y.into_array());
    REM.apply(x, y)
}

/// Evaluates the polynomial `Σ aₖ xᵏ`. The coefficients start with the constant term. Derivatives are evaluated as polynomials of lower
/// degree, so that a derivative of any order needs no more operations than the polynomial.
///
/// ```
/// # use shardax::prelude::*;
/// // 1 + 5x + 2x², and 5 + 4x
/// let f = |x: Array| lax::polynomial(x, [1.0, 5.0, 2.0]);
/// assert_eq!(f(array(3.0f32)).item::<f32>()?, 34.0);
/// assert_eq!(grad(f).call(3.0f32)?.item::<f32>()?, 17.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polynomial<Form>(x: impl ArrayLike, coefficients: impl IntoArrays<Form>) -> Array {
    let x = x.into_array();
    let operands: Vec<Array> = std::iter::once(x.clone()).chain(coefficients.into_arrays()).collect();
    or_failed(&x, || {
        operands.iter().try_for_each(Array::check)?;
        let operands = promote_args("polynomial", &operands.iter().collect::<Vec<_>>())?;
        Ok(match operands.as_slice() {
            [x] => full_like(x, 0),
            [x, constant] => constant.broadcast_to(if x.ndim() > 0 { x.shape() } else { constant.shape() }),
            _ => POLYNOMIAL.apply(&operands),
        })
    })
}

/// Computes `x >> y`, filling with the sign bit whether the type is signed or not.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::shift_right_arithmetic(&array([-8]), &array([1])).to_vec::<i32>()?, [-4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn shift_right_arithmetic(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (&x.into_array(), &y.into_array());
    SHIFT_RIGHT_ARITHMETIC.apply(x, y)
}

/// Computes `x >> y`, filling with zeros whether the type is signed or not.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::shift_right_logical(&array([-8]), &array([1])).to_vec::<i32>()?, [i32::MAX - 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn shift_right_logical(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (&x.into_array(), &y.into_array());
    SHIFT_RIGHT_LOGICAL.apply(x, y)
}

/// The `n`-th derivative of the digamma function.
#[track_caller]
pub(crate) fn polygamma(n: i32, x: &Array) -> Array {
    if n == 0 {
        return DIGAMMA.apply(x);
    }
    let order = super::constants::filled(x.shape(), Scalar::Int(n as i128), x.dtype());
    super::primitive::binary::POLYGAMMA.apply(&order, x)
}

/// Returns `dim` counted from the first dimension, where `rank` is the end, if it is in range.
fn dim_or_end(dim: i32, rank: usize) -> Option<usize> {
    let dim = if dim < 0 { i64::from(dim) + rank as i64 } else { i64::from(dim) };
    usize::try_from(dim).ok().filter(|dim| *dim <= rank)
}
