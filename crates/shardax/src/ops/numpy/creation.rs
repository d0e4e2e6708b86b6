//! Array creation: constants, ranges, identity.

use std::ops::Range;

use super::convert;
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{DType, Element, Scalar};
use crate::error::{Error, err};
pub(crate) use crate::ops::constants::filled;
use crate::ops::constants::{full_of, made, scalar_bytes};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::shape::Shape;
use crate::sharding::AxisType;

/// Types accepted as a shape: `[2, 3]`, a slice, a `Vec`, a number, or `()` for a scalar.
pub trait IntoShape {
    /// Returns the dimensions; -1 stands for one that follows from the others.
    fn into_dims(self) -> smallvec::SmallVec<[i64; 4]>;
}

/// Converts a size; one that does not fit is larger than any array.
fn number<T: TryInto<i64>>(size: T) -> i64 {
    size.try_into().unwrap_or(i64::MAX)
}

macro_rules! into_shape {
    ($($t:ty),*) => {$(
        impl<const N: usize> IntoShape for [$t; N] {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl IntoShape for &[$t] {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl<const N: usize> IntoShape for &[$t; N] {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl IntoShape for &Vec<$t> {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.as_slice().into_dims()
            }
        }
        impl IntoShape for Vec<$t> {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl IntoShape for $t {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                smallvec::smallvec![number(self)]
            }
        }
    )*};
}

into_shape!(usize, i32, i64, isize);

impl IntoShape for () {
    fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
        Default::default()
    }
}

impl IntoShape for &Shape {
    fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
        self.iter().map(|&d| number(d)).collect()
    }
}

impl IntoShape for Shape {
    fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
        (&self).into_dims()
    }
}

/// Converts a shape argument, which must not have negative sizes.
pub(crate) fn shape_of(shape: impl IntoShape) -> Result<Shape, Error> {
    let dims = shape.into_dims();
    if let Some(d) = dims.iter().find(|d| **d < 0) {
        return Err(err!(Value, "a shape must not have negative sizes, got {d} in {:?}", dims.as_slice())
            .help("only `reshape` accepts -1, for the remaining size"));
    }
    Ok(dims.iter().map(|&d| d as usize).collect())
}

/// Rounds to the nearest number of a dtype.
fn nearest(value: f64, dtype: DType) -> Scalar {
    Scalar::read(dtype, &scalar_bytes(Scalar::float(value), dtype))
}

#[track_caller]
fn constant(shape: impl IntoShape, value: Scalar, dtype: DType) -> Array {
    match shape_of(shape) {
        Ok(shape) => filled(&shape, value, dtype),
        Err(e) => Array::from_result(Err(e), &Array::literal(value, dtype, false)),
    }
}

/// A constant array of `value`, broadcast to the shape, in its dtype; weakly typed for a plain number.
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
    super::made(&value, || Ok(value.broadcast_to(&shape_of(shape)?)))
}

/// A constant array of `value`, broadcast to the shape, converted to `dtype` as by [`Array::astype`].
#[track_caller]
pub fn full_dtype(shape: impl IntoShape, value: impl ArrayLike, dtype: DType) -> Array {
    let value = value.into_array();
    super::made(&value, || Ok(value.astype(dtype).broadcast_to(&shape_of(shape)?)))
}

/// Zeros, float32.
#[track_caller]
pub fn zeros(shape: impl IntoShape) -> Array {
    constant(shape, Scalar::Int(0), DType::F32)
}

/// Ones, float32.
#[track_caller]
pub fn ones(shape: impl IntoShape) -> Array {
    constant(shape, Scalar::Int(1), DType::F32)
}

/// `value` everywhere, with the sharding in the type.
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

/// Zeros of a dtype.
#[track_caller]
pub fn zeros_dtype(shape: impl IntoShape, dtype: DType) -> Array {
    constant(shape, Scalar::Int(0), dtype)
}

/// Ones of a dtype.
#[track_caller]
pub fn ones_dtype(shape: impl IntoShape, dtype: DType) -> Array {
    constant(shape, Scalar::Int(1), dtype)
}

/// Zeros of the shape and dtype of `x`.
#[track_caller]
pub fn zeros_like(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    if x.error().is_some() {
        return x.clone();
    }
    full_of(&like(x), Scalar::Int(0)).varying_over(&x.vma())
}

/// Ones of the shape and dtype of `x`.
#[track_caller]
pub fn ones_like(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    if x.error().is_some() {
        return x.clone();
    }
    full_of(&like(x), Scalar::Int(1))
}

/// The type of an array that is made like this one. Where all axes are manual, it is equal on all devices.
fn like(x: &Array) -> Aval {
    let aval = x.aval();
    match aval.sharding().is_some_and(|typed| typed.mesh().is_all(AxisType::Manual)) {
        true => aval.with_sharding(None),
        false => aval,
    }
}

/// A constant array of `value` with the shape and dtype of `x`. A number of another type is converted as by
/// [`Array::astype`].
///
/// Fails for a plain integer that does not fit the dtype.
#[track_caller]
pub fn full_like(x: impl ArrayLike, value: impl ArrayLike) -> Array {
    let x = &x.into_array();
    let value = value.into_array();
    let made = x.check().and_then(|()| value.check()).and_then(|()| value.check_fits(x.dtype()));
    match made {
        Ok(()) => convert(&value, x.dtype(), x.weak_type()).broadcast_to(x.shape()).varying_over(&x.vma()),
        Err(e) => Array::from_result(Err(e), x),
    }
}

/// The numbers of a range, of the range's type; those of an `f64` range are weakly typed (see
/// [`array`](crate::array())).
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(arange(2..5).to_vec::<i32>()?, [2, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn arange<T: Element + Into<f64>>(range: Range<T>) -> Array {
    arange_step(range, 1.0)
}

/// The numbers `start, start + step, …` before `end`, of the range's type.
#[track_caller]
pub fn arange_step<T: Element + Into<f64>>(range: Range<T>, step: f64) -> Array {
    let (start, end): (f64, f64) = (range.start.into(), range.end.into());
    let dtype = T::DTYPE;
    let n = match range_length(start, end, step) {
        Ok(n) => n,
        Err(e) => return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), dtype, false)),
    };
    made(
        &Aval::of_host(dtype, [n].as_slice()),
        |bytes, n| {
            // Computed as in the program: each operation is rounded to the dtype, except that integers are made from
            // float64.
            let round = |v| if dtype.is_float() { nearest(v, dtype).to_f64() } else { v };
            let (start, step) = (round(start), round(step));
            for i in 0..n {
                Scalar::float(start + round(step * round(i as f64))).write(dtype, bytes);
            }
        },
        || {
            let params = (dtype, n, start.to_bits(), step.to_bits());
            composite1("arange", params, &[], |&(dtype, n, start, step), _| {
                let (start, step) = (f64::from_bits(start), f64::from_bits(step));
                let line = |of| {
                    let number = |value| Array::literal(nearest(value, of), of, of.is_wide());
                    let index = convert(&lax::iota(of, &[n], 0), of, of.is_wide());
                    number(start) + if step == 1.0 { index } else { number(step) * index }
                };
                let own = dtype.is_float() || dtype.is_integer() && step == 1.0;
                Ok(vec![if own { line(dtype) } else { line(DType::F64).astype(dtype) }])
            })
        },
    )
}

/// The number of values `start, start + step, …` before `end`; too many for a `usize` are `usize::MAX`.
fn range_length(start: f64, end: f64, step: f64) -> Result<usize, Error> {
    if step == 0.0 || !step.is_finite() {
        return Err(err!(Value, "arange needs a step that is not 0, got {step}").help("use `full_like` for a constant"));
    }
    if start.is_nan() || end.is_nan() {
        return Err(err!(Value, "arange cannot convert float NaN to integer: its range is {start}..{end}")
            .help("give a start and an end that are numbers"));
    }
    Ok(((end - start) / step).ceil().max(0.0) as usize)
}

/// `n` numbers from `start` to `end`, both included, float32.
#[track_caller]
pub(super) fn linspace_of_numbers(start: f64, end: f64, n: usize) -> Array {
    let last = n.saturating_sub(1).max(1) as f64;
    made(
        &Aval::new(DType::F32, [n].as_slice()),
        |bytes, n| {
            for i in 0..n {
                let value = if i + 1 == n && n > 1 { end } else { start + (end - start) * i as f64 / last };
                (value as f32).write(bytes);
            }
        },
        || {
            composite1("linspace", (n, start.to_bits(), end.to_bits()), &[], |&(n, start, end), _| {
                let number = |bits| Array::literal(nearest(f64::from_bits(bits), DType::F32), DType::F32, false);
                let (start, end) = (number(start), number(end));
                if n < 2 {
                    return Ok(vec![start.broadcast_in_dim(&[n], &[])]);
                }
                let part = lax::iota(DType::F32, &[n - 1], 0) / (n - 1) as f64;
                let inner = start * (1.0 - &part) + &end * part;
                Ok(vec![lax::concatenate(&[inner, end.broadcast_in_dim(&[1], &[])], 0)])
            })
        },
    )
}

/// The identity matrix, float32.
#[track_caller]
pub fn eye(n: usize) -> Array {
    made(
        &Aval::new(DType::F32, [n, n].as_slice()),
        |bytes, count| (0..count).for_each(|i| ((i % (n + 1) == 0) as u8 as f32).write(bytes)),
        || composite1("eye", n, &[], |&n, _| Ok(vec![super::eye_offset(n, n, 0)])),
    )
}

// NumPy's other names: an array whose values do not matter is zeros, as in JAX.
pub use eye as identity;
pub use zeros as empty;
pub use zeros_like as empty_like;

/// The operand as an array: a plain number becomes a weakly typed scalar, an array is unchanged. Host data becomes an
/// array by [`array`](crate::array()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::asarray;
/// assert_eq!(asarray(2.0).ndim(), 0);
/// ```
pub fn asarray(x: impl ArrayLike) -> Array {
    x.into_array()
}

impl Array {
    /// Zeros of this type, strongly typed.
    #[track_caller]
    pub(crate) fn zeros_of(aval: &Aval) -> Array {
        full_of(&aval.clone().strip_weak_type(), Scalar::Int(0))
    }
}
