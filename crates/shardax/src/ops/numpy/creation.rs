//! Ranges and the identity matrix. `ops::constants` has constants.

use std::ops::Range;

use super::convert;
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::default_dtype;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, err};
use crate::ops::constants::eye_offset_dtype;
pub(crate) use crate::ops::constants::filled;
use crate::ops::constants::{constant_array, scalar_bytes};
pub use crate::ops::constants::{
    eye_offset, full, full_dtype, full_like, full_sharded, ones, ones_dtype, ones_like, zeros, zeros_dtype, zeros_like,
};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// Rounds to the nearest number of a dtype.
fn nearest(value: f64, dtype: DType) -> Scalar {
    Scalar::read(dtype, &scalar_bytes(Scalar::float(value), dtype))
}

/// A number in a range for [`arange`]: an element of an array, or a `usize` or `isize`, for which the array is int32 (int64
/// after [`enable_x64`](crate::config::enable_x64)).
#[diagnostic::on_unimplemented(
    message = "a range of `{Self}` is not a range of numbers that are elements of arrays",
    note = "ranges of integers and of floating point numbers are: `0..n`, `0.0..1.0`"
)]
pub trait RangeNumber: Copy {
    /// The dtype of the array.
    #[doc(hidden)]
    fn dtype() -> DType;
    /// The number, rounded if float64 cannot represent it.
    #[doc(hidden)]
    fn number(self) -> f64;
}

macro_rules! range_numbers {
    ($($t:ty => $dtype:expr, |$v:ident| $number:expr;)*) => {$(
        impl RangeNumber for $t {
            fn dtype() -> DType {
                $dtype
            }
            fn number(self) -> f64 {
                let $v = self;
                $number
            }
        }

        impl IntoRange for $t {
            fn into_range(self) -> NumberRange {
                NumberRange { start: 0.0, end: self.number(), dtype: <$t>::dtype() }
            }
        }
    )*};
}

range_numbers! {
    bool => DType::Bool, |v| f64::from(u8::from(v));
    i8 => DType::I8, |v| v.into();
    i16 => DType::I16, |v| v.into();
    i32 => DType::I32, |v| v.into();
    i64 => DType::I64, |v| v as f64;
    u8 => DType::U8, |v| v.into();
    u16 => DType::U16, |v| v.into();
    u32 => DType::U32, |v| v.into();
    u64 => DType::U64, |v| v as f64;
    half::f16 => DType::F16, |v| v.into();
    half::bf16 => DType::Bf16, |v| v.into();
    f32 => DType::F32, |v| v.into();
    f64 => DType::F64, |v| v;
    usize => default_dtype::index(), |v| v as f64;
    isize => default_dtype::index(), |v| v as f64;
}

/// The range of numbers for [`arange`].
#[derive(Clone, Copy, Debug)]
pub struct NumberRange {
    start: f64,
    end: f64,
    dtype: DType,
}

/// An argument of [`arange`]: a range, or only its end as in `jnp.arange(n)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of numbers",
    note = "write `arange(0..n)`, or `arange(n)` for the same; `arange_step` has a step"
)]
pub trait IntoRange {
    /// Returns the range.
    fn into_range(self) -> NumberRange;
}

impl<T: RangeNumber> IntoRange for Range<T> {
    fn into_range(self) -> NumberRange {
        NumberRange { start: self.start.number(), end: self.end.number(), dtype: T::dtype() }
    }
}

/// Returns the numbers of a range, in the dtype of the range. An `f64` range results in weakly typed numbers, like
/// [`array`](crate::array()).
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(arange(2..5).to_vec::<i32>()?, [2, 3, 4]);
/// let n: usize = 3;
/// assert_eq!(arange(0..n).to_vec::<i32>()?, [0, 1, 2]);
/// assert_eq!(arange(n).to_vec::<i32>()?, [0, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The dtype must be able to represent all of the numbers.
#[track_caller]
pub fn arange(range: impl IntoRange) -> Array {
    arange_step(range, 1.0)
}

/// Returns the numbers `start, start + step, …` before `end`, in the dtype of the range.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(arange_step(0..10, 3.0).to_vec::<i32>()?, [0, 3, 6, 9]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn arange_step(range: impl IntoRange, step: impl Into<f64>) -> Array {
    let step = step.into();
    let NumberRange { start, end, dtype } = range.into_range();
    let n = match check_range(start, end, dtype).and_then(|()| range_length(start, end, step)) {
        Ok(n) => n,
        Err(e) => return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), dtype, false)),
    };
    constant_array(
        &Aval::for_host(dtype, [n].as_slice()),
        |bytes, n| {
            // The same operations as in the program, so that the values are equal: each is rounded to the dtype, except that integers
            // are computed in float64.
            let (start, step) = (rounded(start, dtype), rounded(step, dtype));
            for i in 0..n {
                let offset = rounded(step * rounded(i as f64, dtype), dtype);
                Scalar::float(start + offset).write(dtype, bytes);
            }
        },
        || {
            let params = (dtype, n, start.to_bits(), step.to_bits());
            composite1("arange", params, &[], |&(dtype, n, start, step), _| {
                let (start, step) = (f64::from_bits(start), f64::from_bits(step));
                let is_exact = dtype.is_float() || dtype.is_integer() && step == 1.0;
                let line_dtype = if is_exact { dtype } else { DType::F64 };
                let [first, factor] = [start, step]
                    .map(|value| Array::literal(nearest(value, line_dtype), line_dtype, line_dtype.is_wide()));
                let index = convert(&lax::iota(line_dtype, &[n], 0), line_dtype, line_dtype.is_wide());
                let line = first + if step == 1.0 { index } else { factor * index };
                Ok(vec![if is_exact { line } else { line.astype(dtype) }])
            })
        },
    )
}

/// Fails for integers that the dtype cannot represent. float64 must represent them too, because they are computed in it.
fn check_range(start: f64, end: f64, dtype: DType) -> Result<(), Error> {
    let largest = if dtype.bits() <= 32 { f64::from(u32::MAX) } else { (1u64 << 53) as f64 };
    let largest = if dtype == DType::I32 { f64::from(i32::MAX) + 1.0 } else { largest };
    if !dtype.is_integer() || start.abs() <= largest && end.abs() <= largest {
        return Ok(());
    }
    Err(err!(Value, "arange cannot make {start}..{end} of dtype {dtype}: the numbers do not fit")
        .help("use a range of `i64`, within 2^53, or of `f64`"))
}

/// The number of values `start, start + step, …` before `end`, or `usize::MAX` if a `usize` cannot represent it.
fn range_length(start: f64, end: f64, step: f64) -> Result<usize, Error> {
    if step == 0.0 || !step.is_finite() {
        return Err(err!(Value, "arange needs a step that is not 0, got {step}")
            .help("pass a step other than 0, or use `full` for a constant array"));
    }
    if start.is_nan() || end.is_nan() {
        return Err(err!(Value, "arange cannot convert float NaN to integer: its range is {start}..{end}")
            .help("pass a start and an end that are not NaN"));
    }
    Ok(((end - start) / step).ceil().max(0.0) as usize)
}

/// Returns `n` evenly spaced float32 numbers from `start` to `end`, including both.
#[track_caller]
pub(super) fn linspace_of_numbers(start: f64, end: f64, n: usize) -> Array {
    let (steps, dtype) = (n.saturating_sub(1).max(1) as f64, default_dtype::float());
    constant_array(
        &Aval::new(dtype, [n].as_slice()),
        |bytes, n| {
            for i in 0..n {
                let value = if i + 1 == n && n > 1 { end } else { start + (end - start) * i as f64 / steps };
                Scalar::float(value).write(dtype, bytes);
            }
        },
        || {
            composite1("linspace", (dtype, n, start.to_bits(), end.to_bits()), &[], |&(dtype, n, start, end), _| {
                let [start, end] =
                    [start, end].map(|bits| Array::literal(nearest(f64::from_bits(bits), dtype), dtype, false));
                if n < 2 {
                    return Ok(vec![start.broadcast_in_dim(&[n], &[])]);
                }
                let part = lax::iota(dtype, &[n - 1], 0) / (n - 1) as f64;
                let inner = start * (1.0 - &part) + &end * part;
                Ok(vec![lax::concatenate(&[inner, end.broadcast_in_dim(&[1], &[])], 0)])
            })
        },
    )
}

/// Returns the identity matrix, in float32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(eye(2).to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eye(n: usize) -> Array {
    let dtype = default_dtype::float();
    constant_array(
        &Aval::new(dtype, [n, n].as_slice()),
        |bytes, count| (0..count).for_each(|i| Scalar::Int((i % (n + 1) == 0).into()).write(dtype, bytes)),
        || {
            composite1("eye", (n, dtype), &[], |&(n, dtype), _| {
                Ok(vec![convert(&eye_offset_dtype(n, n, 0, DType::F32), dtype, false)])
            })
        },
    )
}

// NumPy's other names. As in JAX, an array with arbitrary values has zeros.
pub use eye as identity;
pub use zeros as empty;
pub use zeros_like as empty_like;

/// Returns the operand as an array: a plain number becomes a weakly typed scalar, an array is unchanged. Host data
/// becomes an array by [`array`](crate::array()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::asarray;
/// assert_eq!(asarray(2.0).ndim(), 0);
/// ```
pub fn asarray(x: impl ArrayLike) -> Array {
    x.into_array()
}

/// Rounds a number to a float dtype; integers are computed in float64.
fn rounded(value: f64, dtype: DType) -> f64 {
    if dtype.is_float() { nearest(value, dtype).to_f64() } else { value }
}
