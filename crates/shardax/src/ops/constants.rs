//! Arrays that only depend on their parameters. They are copied from the host or computed on the devices.

use super::operators::ArrayLike;
use super::primitive::shape_ops::{BroadcastInDim, Iota};
use super::promotion::convert;
use crate::core::array::Array;
use crate::core::array::host::place;
use crate::core::program::Aval;
use crate::core::program::trace::{at_caller, bind1, is_tracing};
use crate::core::sharding_like::ShardingLike;
use crate::default_dtype;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, err};
use crate::memory::reserve_bytes;
use crate::shape::{IntoShape, shape_of};
use crate::sharding::context::explicit_mesh;
use crate::sharding::{AxisType, Typed};
use crate::source;

/// The integer `value` as a scalar constant of `dtype`.
pub(crate) fn integer(value: i128, dtype: DType) -> Array {
    Array::literal(Scalar::Int(value), dtype, false)
}

/// The floating point number `value` as a scalar constant of `dtype`.
pub(crate) fn float(value: f64, dtype: DType) -> Array {
    Array::literal(Scalar::float(value), dtype, false)
}

/// A constant array of `value`, of `dtype`.
#[track_caller]
pub(crate) fn filled(shape: &[usize], value: Scalar, dtype: DType) -> Array {
    full_of(&Aval::new(dtype, shape), value)
}

/// A constant array of `value`, of this type.
#[track_caller]
pub(crate) fn full_of(aval: &Aval, value: Scalar) -> Array {
    if aval.dtype.is_key() && !value.is_zero() {
        let e = err!(Type, "an array of {aval} cannot be filled with the number {value:?}")
            .help("repeat a key with `full` or `full_like`");
        return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), aval.dtype, false));
    }
    let element = scalar_bytes(value, aval.dtype);
    let number = Array::literal(Scalar::read(aval.dtype, &element), aval.dtype, aval.weak);
    if aval.shape.is_empty() {
        return number;
    }
    constant_array(
        aval,
        |bytes, count| (0..count).for_each(|_| bytes.extend_from_slice(&element)),
        || {
            let (shape, out) = (aval.shape.clone(), aval.sharding.clone());
            Ok(bind1(BroadcastInDim { shape, dims: Default::default(), out }, std::slice::from_ref(&number)))
        },
    )
}

/// Gives `array` the sharding of this type. Without one, the array is replicated on the context mesh if types have shardings.
#[track_caller]
pub(crate) fn typed_as(array: Array, aval: &Aval) -> Array {
    match aval.sharding().cloned().or_else(|| Some(Typed::replicated(&explicit_mesh()?, aval.rank()))) {
        Some(typed) => array.sharded(&typed),
        None => array,
    }
}

/// Up to this number of bytes, copying from the host is faster than compiling. Larger arrays would be in memory twice.
const MAX_HOST_BYTES: usize = 64 << 20;

/// Creates an array that only depends on its parameters. A small array is copied from the host; `fill` appends the bytes of this many
/// elements. A large or traced array is the result of `program`. An array that does not fit into memory is an error.
#[track_caller]
pub(crate) fn constant_array(
    aval: &Aval,
    fill: impl FnOnce(&mut Vec<u8>, usize),
    program: impl FnOnce() -> Result<Array, Error>,
) -> Array {
    let _line = source::enter();
    let array = aval
        .byte_size()
        .and_then(|size| if is_tracing() { program() } else { filled_on_host(aval, size, fill, program) });
    Array::from_result(array, &Array::literal(Scalar::Int(0), aval.dtype, aval.weak))
}

/// Fills the array on the host and copies it to the device; a large array is computed by the program instead.
fn filled_on_host(
    aval: &Aval,
    size: usize,
    fill: impl FnOnce(&mut Vec<u8>, usize),
    program: impl FnOnce() -> Result<Array, Error>,
) -> Result<Array, Error> {
    let mut bytes = Vec::new();
    reserve_bytes(&mut bytes, size).map_err(|e| {
        err!(Runtime, "no memory for an array {aval} of {size} bytes: {e}")
            .help("check the shape, or split the array over devices with a sharding")
    })?;
    if size > MAX_HOST_BYTES {
        drop(bytes);
        return program();
    }
    fill(&mut bytes, aval.size());
    Ok(typed_as(place(&bytes, aval.clone())?, aval))
}

pub(crate) fn scalar_bytes(value: Scalar, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    value.write(dtype, &mut bytes);
    bytes
}

#[track_caller]
fn constant(shape: impl IntoShape, value: Scalar, dtype: DType) -> Array {
    match shape_of(shape) {
        Ok(shape) => filled(&shape, value, dtype),
        Err(e) => Array::from_result(Err(e), &Array::literal(value, dtype, false)),
    }
}

/// Creates a constant array of `value`, broadcast to the shape, in its dtype; weakly typed for a plain number.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(full([2], 7).to_vec::<i32>()?, [7, 7]);
/// assert_eq!(full([2, 2], array([1, 2])).to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn full(shape: impl IntoShape, value: impl ArrayLike) -> Array {
    let value = value.into_array();
    at_caller(|| Array::from_result(value.check().and_then(|()| Ok(value.broadcast_to(&shape_of(shape)?))), &value))
}

/// Creates a constant array of `value`, broadcast to the shape, converted to `dtype` as by [`Array::astype`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(full_dtype([2], 1.5, DType::Bf16).type_name(), "bfloat16[2]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn full_dtype(shape: impl IntoShape, value: impl ArrayLike, dtype: DType) -> Array {
    let value = value.into_array();
    at_caller(|| {
        let result = value.check().and_then(|()| Ok(value.astype(dtype).broadcast_to(&shape_of(shape)?)));
        Array::from_result(result, &value)
    })
}

/// Creates zeros, float32 ([float64](crate::config::enable_x64) if that is the default).
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(zeros([2, 3]).type_name(), "float32[2,3]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn zeros(shape: impl IntoShape) -> Array {
    constant(shape, Scalar::Int(0), default_dtype::float())
}

/// Creates ones, float32 ([float64](crate::config::enable_x64) if that is the default).
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(ones([2]).to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ones(shape: impl IntoShape) -> Array {
    constant(shape, Scalar::Int(1), default_dtype::float())
}

/// Creates an array with `value` everywhere, with the sharding in the type.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// assert_eq!(full_sharded([16, 2], array(0.0f32), P!["x"]).type_name(), "float32[16@x,2]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn full_sharded(shape: impl IntoShape, value: impl ArrayLike, sharding: impl Into<ShardingLike>) -> Array {
    let value = value.into_array();
    match shape_of(shape) {
        Ok(shape) => value.broadcast_to_sharded(&shape, sharding),
        Err(e) => Array::from_result(Err(e), &value),
    }
}

/// Creates zeros of a dtype.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(zeros_dtype([2], DType::I8).type_name(), "int8[2]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn zeros_dtype(shape: impl IntoShape, dtype: DType) -> Array {
    constant(shape, Scalar::Int(0), dtype)
}

/// Creates ones of a dtype.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(ones_dtype([2], DType::I8).type_name(), "int8[2]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ones_dtype(shape: impl IntoShape, dtype: DType) -> Array {
    constant(shape, Scalar::Int(1), dtype)
}

/// Creates zeros of the shape and dtype of `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(zeros_like(array([1, 2])).to_vec::<i32>()?, [0, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn zeros_like(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    if x.error().is_some() {
        return x.clone();
    }
    full_of(&like(x), Scalar::Int(0)).varying_over(&x.vma())
}

/// Creates ones of the shape and dtype of `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(ones_like(array([5, 6])).to_vec::<i32>()?, [1, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ones_like(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    if x.error().is_some() {
        return x.clone();
    }
    full_of(&like(x), Scalar::Int(1))
}

/// The type of a new array that is created like this one. If all axes are manual, its value is equal on all devices.
fn like(x: &Array) -> Aval {
    let aval = x.aval();
    if aval.sharding().is_some_and(|typed| typed.mesh().is_all(AxisType::Manual)) {
        aval.with_sharding(None)
    } else {
        aval
    }
}

/// Creates a constant array of `value` with the shape and dtype of `x`. A number of another type is converted as by
/// [`Array::astype`]. If `value` is a number, the result is sharded like `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(full_like(array([5, 6]), 7).to_vec::<i32>()?, [7, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a plain integer that does not fit the dtype.
#[track_caller]
pub fn full_like(x: impl ArrayLike, value: impl ArrayLike) -> Array {
    let x = &x.into_array();
    let value = value.into_array();
    let result = x.check().and_then(|()| value.check()).and_then(|()| value.check_fits(x.dtype()));
    match result {
        Ok(()) => {
            let full = convert(&value, x.dtype(), x.weak_type()).broadcast_to(x.shape()).varying_over(&x.vma());
            match like(x).sharding() {
                Some(typed) if value.ndim() == 0 => full.sharded(typed),
                _ => full,
            }
        }
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// The index along dimension `dim` of each element.
#[track_caller]
pub(crate) fn iota(dtype: DType, shape: &[usize], dim: usize) -> Array {
    bind1(Iota { dtype, shape: shape.into(), dimension: dim, out: None }, &[])
}

/// Creates an identity-like matrix: ones on the diagonal `k` above the main one (below it if negative), else zeros:
/// float32 of shape `[rows, columns]`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(eye_offset(2, 3, 1).to_vec::<f32>()?, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eye_offset(rows: usize, columns: usize, k: i32) -> Array {
    eye_offset_dtype(rows, columns, k, default_dtype::float())
}

/// Like [`eye_offset`], of this dtype.
#[track_caller]
pub(crate) fn eye_offset_dtype(rows: usize, columns: usize, k: i32, dtype: DType) -> Array {
    at_caller(|| convert(&band(&[rows, columns], k, Array::equal), dtype, false))
}

/// Compares, for each element of the last two dimensions, its column with its row + `k`.
pub(crate) fn band(shape: &[usize], k: i32, compare: impl Fn(&Array, Array) -> Array) -> Array {
    let rank = shape.len();
    let [column, row] = [rank - 1, rank - 2].map(|dim| iota(DType::for_indices(shape), shape, dim));
    compare(&column, row + k)
}

impl Array {
    /// Zeros of this type, strongly typed.
    #[track_caller]
    pub(crate) fn zeros_of(aval: &Aval) -> Array {
        full_of(&aval.clone().strip_weak_type(), Scalar::Int(0))
    }
}
