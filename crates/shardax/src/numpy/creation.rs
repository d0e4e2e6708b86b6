//! Making arrays: constants, ranges, identity.

use std::ops::Range;

use super::convert;
use crate::array::{Array, Operand};
use crate::dtype::{DType, Element, Scalar};
use crate::error::err;
use crate::program::Aval;
use crate::program::trace::is_tracing;
use crate::shape::Shape;
use crate::source;

/// What a shape may be written as: `[2, 3]`, a slice, a `Vec`, a number, or `()` for a scalar.
pub trait IntoShape {
    /// The dimensions; -1 stands for one that follows from the others.
    fn into_dims(self) -> smallvec::SmallVec<[i64; 4]>;
}

macro_rules! into_shape {
    ($($t:ty),*) => {$(
        impl<const N: usize> IntoShape for [$t; N] {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| d as i64).collect()
            }
        }
        impl IntoShape for &[$t] {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| d as i64).collect()
            }
        }
        impl<const N: usize> IntoShape for &[$t; N] {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| d as i64).collect()
            }
        }
        impl IntoShape for Vec<$t> {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                self.iter().map(|&d| d as i64).collect()
            }
        }
        impl IntoShape for $t {
            fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
                smallvec::smallvec![self as i64]
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
        self.iter().map(|&d| d as i64).collect()
    }
}

impl IntoShape for Shape {
    fn into_dims(self) -> smallvec::SmallVec<[i64; 4]> {
        (&self).into_dims()
    }
}

/// The shape that is written, which must not have negative sizes.
pub(crate) fn shape_of(shape: impl IntoShape) -> Result<Shape, crate::Error> {
    let dims = shape.into_dims();
    if let Some(d) = dims.iter().find(|d| **d < 0) {
        return Err(err!(Value, "a shape must not have negative sizes, got {d} in {:?}", dims.as_slice())
            .help("-1 stands for \"what is left\" in `reshape` alone"));
    }
    Ok(dims.iter().map(|&d| d as usize).collect())
}

/// Every element `value`, of `dtype`.
#[track_caller]
pub(crate) fn full(shape: &[usize], value: Scalar, dtype: DType) -> Array {
    if shape.is_empty() {
        return Array::literal(Scalar::read(dtype, &scalar_bytes(value, dtype)), dtype, false);
    }
    if is_tracing() {
        return Array::literal(value, dtype, false).broadcast_in_dim(shape, &[]);
    }
    // Outside of a trace a copy from the host is quicker than a compilation.
    let element = scalar_bytes(value, dtype);
    from_host(shape, dtype, |bytes, count| (0..count).for_each(|_| bytes.extend_from_slice(&element)))
}

/// An array of the bytes that `fill` appends, for so many elements. One that memory cannot hold is an error.
#[track_caller]
fn from_host(shape: &[usize], dtype: DType, fill: impl FnOnce(&mut Vec<u8>, usize)) -> Array {
    let _line = source::enter();
    let aval = Aval::new(dtype, shape);
    let made = aval.byte_size().and_then(|size| {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|e| {
            err!(Runtime, "no memory for an array {aval}: {e}")
                .help("check the shape, or make the array in parts with a sharding")
        })?;
        fill(&mut bytes, aval.size());
        Array::from_bytes(&bytes, dtype, shape)
    });
    Array::from_result(made, &Array::literal(Scalar::Int(0), dtype, false))
}

fn scalar_bytes(value: Scalar, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    value.write(dtype, &mut bytes);
    bytes
}

#[track_caller]
fn constant(shape: impl IntoShape, value: Scalar, dtype: DType) -> Array {
    match shape_of(shape) {
        Ok(shape) => full(&shape, value, dtype),
        Err(e) => Array::from_result(Err(e), &Array::literal(value, dtype, false)),
    }
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
pub fn zeros_like(x: &Array) -> Array {
    if x.error().is_some() {
        return x.clone();
    }
    full(x.shape(), Scalar::Int(0), x.dtype())
}

/// Ones of the shape and dtype of `x`.
#[track_caller]
pub fn ones_like(x: &Array) -> Array {
    if x.error().is_some() {
        return x.clone();
    }
    full(x.shape(), Scalar::Int(1), x.dtype())
}

/// `value` of the shape and dtype of `x`.
#[track_caller]
pub fn full_like(x: &Array, value: impl Operand) -> Array {
    convert(&value.into_array(), x.dtype(), false).broadcast_to(x.shape())
}

/// The integers of a range, of the range's type.
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
    let like = Array::literal(Scalar::Int(0), T::DTYPE, false);
    if step == 0.0 || !step.is_finite() {
        return Array::from_result(
            Err(err!(Value, "arange needs a step that is not 0, got {step}").help("use `full` for a constant")),
            &like,
        );
    }
    let n = ((end - start) / step).ceil().max(0.0) as usize;
    from_host(&[n], T::DTYPE, |bytes, n| {
        for i in 0..n {
            Scalar::float(start + i as f64 * step).write(T::DTYPE, bytes);
        }
    })
}

/// `n` numbers from `start` to `end`, both included, float32.
#[track_caller]
pub fn linspace(start: f64, end: f64, n: usize) -> Array {
    let last = n.saturating_sub(1).max(1) as f64;
    from_host(&[n], DType::F32, |bytes, n| {
        for i in 0..n {
            let value = if i + 1 == n && n > 1 { end } else { start + (end - start) * i as f64 / last };
            (value as f32).write(bytes);
        }
    })
}

/// The identity matrix, float32.
#[track_caller]
pub fn eye(n: usize) -> Array {
    from_host(&[n, n], DType::F32, |bytes, count| {
        (0..count).for_each(|i| ((i % (n + 1) == 0) as u8 as f32).write(bytes));
    })
}
