//! Elementwise functions of two arrays: arithmetic, comparison.

use super::one_array::*;
use crate::core::array::{Array, Repr};
use crate::dtype::{Category, DType, Scalar, promote};
use crate::error::{Result, err};
use crate::ops::constants::ones_like;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::binary::{self, Binary, Compare, IntegerPow};
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::expanded::LOGADDEXP;
use crate::ops::primitive::reduce::accumulator;
use crate::ops::primitive::reshard::sharded_alike;
use crate::ops::promotion::{convert, promote_args_to, promote_two_to, to_inexact};
use crate::ops::select::where_;
use crate::source;

#[track_caller]
fn binary_op(op: Binary, x: impl ArrayLike, y: impl ArrayLike) -> Array {
    apply_promoted(op.name(), x, y, |d| d, |x, y| op.apply(x, y))
}

#[track_caller]
fn apply_promoted(
    name: &str,
    x: impl ArrayLike,
    y: impl ArrayLike,
    adjust: impl Fn(DType) -> DType,
    apply: impl FnOnce(&Array, &Array) -> Array,
) -> Array {
    let _line = source::enter();
    let (x, y) = (x.into_array(), y.into_array());
    match promote_two_to(name, [&x, &y], adjust) {
        Ok([x, y]) => apply(&x, &y),
        Err(e) => Array::from_result(Err(e), if x.ndim() >= y.ndim() { &x } else { &y }),
    }
}

macro_rules! binary_functions {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike, y: impl ArrayLike) -> Array {
            binary_op(binary::$op, x, y)
        }
    )*};
}

binary_functions! {
    /// `x + y`, broadcast and promoted.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(add(array([1, 2]), 10).to_vec::<i32>()?, [11, 12]);
    /// assert_eq!((array([1, 2]) + 10).to_vec::<i32>()?, [11, 12]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    add => ADD;
    /// `x * y`, broadcast and promoted.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(multiply(array([1, 2]), 0.5).to_vec::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    multiply => MUL;
    /// The larger of each pair; NaN if either is.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(maximum(array([1, 5]), 3).to_vec::<i32>()?, [3, 5]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    maximum => MAX;
    /// The smaller of each pair; NaN if either is.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(minimum(array([1, 5]), 3).to_vec::<i32>()?, [1, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    minimum => MIN;
    /// Bits set in both. Integers and booleans.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(bitwise_and(array([5, 6]), 3).to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    bitwise_and => AND;
    /// Bits set in either operand. Integers and booleans.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(bitwise_or(array([5, 6]), 3).to_vec::<i32>()?, [7, 7]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    bitwise_or => OR;
    /// Bits set in exactly one operand. Integers and booleans.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(bitwise_xor(array([5, 6]), 3).to_vec::<i32>()?, [6, 5]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    bitwise_xor => XOR;
}

/// Computes `x << y`. Integers; booleans count as int32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(left_shift(array([1, 3]), 2).to_vec::<i32>()?, [4, 12]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn left_shift(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    apply_promoted(binary::SHIFT_LEFT.name(), x, y, counted, |x, y| binary::SHIFT_LEFT.apply(x, y))
}

/// Computes `x - y`, broadcast and promoted.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(subtract(array([1, 2]), 10).to_vec::<i32>()?, [-9, -8]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for booleans, as in NumPy.
#[track_caller]
pub fn subtract(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    binary_op(binary::SUB, x, y)
}

/// Computes `x / y`, always floating point: integers become float32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(divide(array([1, 3]), 2).to_vec::<f32>()?, [0.5, 1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn divide(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    apply_promoted("div", x, y, to_inexact, |x, y| binary::DIV.apply(x, y))
}

/// Computes `x >> y`, keeping the sign of signed integers. Booleans count as int32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(right_shift(array([8, -8]), 1).to_vec::<i32>()?, [4, -4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn right_shift(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    apply_promoted("right_shift", x, y, counted, |x, y| match x.dtype().category() {
        Category::Unsigned => binary::SHIFT_RIGHT_LOGICAL.apply(x, y),
        _ => binary::SHIFT_RIGHT_ARITHMETIC.apply(x, y),
    })
}

/// Returns the largest integer not above `x / y`. For integers divided by 0 the result is meaningless: -2 (-1 for 0 by
/// 0), as in JAX, or the largest number of an unsigned type.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(floor_divide(array([7, -7]), 2).to_vec::<i32>()?, [3, -4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn floor_divide(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    divmod("floor_divide", x, y, |x, y| {
        let quotient = binary::DIV.apply(x, y);
        match x.dtype().category() {
            Category::Float => {
                let remainder = binary::REM.apply(x, y);
                // Without the remainder the division is exact up to rounding; infinity by 0 stays infinite.
                let exact = binary::DIV.apply(&where_(y.equal(0), x, x - &remainder), y);
                round(&where_(crosses(&remainder, y), &exact - 1, &exact))
            }
            Category::Signed => {
                let low = binary::REM.apply(x, y).not_equal(0) & sign(x).not_equal(sign(y));
                where_(low, &quotient - 1, &quotient)
            }
            _ => quotient,
        }
    })
}

/// Computes `x - y * floor(x / y)`: the remainder with the sign of `y`, like Python's `%`. For an integer divided by 0
/// it is 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(remainder(array([7, -7]), 3).to_vec::<i32>()?, [1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn remainder(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    divmod("remainder", x, y, |x, y| {
        let y = divisor(y);
        let remainder = binary::REM.apply(x, &y);
        match x.dtype().category() {
            Category::Unsigned => remainder,
            _ => where_(crosses(&remainder, &y), &remainder + &y, &remainder),
        }
    })
}

/// Marks truncated remainders with the opposite sign of `y`.
fn crosses(rest: &Array, y: &Array) -> Array {
    rest.not_equal(0) & (rest.less(0) ^ y.less(0))
}

/// Promotes for `floor_divide` and `remainder`: booleans count as int32, complex numbers are an error. Outside of `jit`, the
/// function is one program.
#[track_caller]
fn divmod<F>(name: &'static str, x: impl ArrayLike, y: impl ArrayLike, apply: F) -> Array
where
    F: Fn(&Array, &Array) -> Array + Send + Sync + 'static,
{
    let (x, y) = (x.into_array(), y.into_array());
    for operand in [&x, &y] {
        if operand.dtype().is_complex() {
            let e = err!(Type, "{name} does not support complex-valued inputs, got {}", operand.type_name())
                .help("take `real(..)` or `imag(..)` first");
            return Array::from_result(Err(e), &x);
        }
    }
    apply_promoted(name, &x, &y, counted, |x, y| {
        let args = sharded_alike(&[x.clone(), y.clone()]);
        let result = composite1(name, (), &args, move |(), args| Ok(vec![apply(&args[0], &args[1])]));
        Array::from_result(result, &args[0])
    })
}

/// The dtype of arithmetic in which booleans count as int32.
fn counted(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::I32 } else { dtype }
}

/// Returns the remainder with the sign of `x`, like Rust's `%`. For an integer divided by 0 it is 0; booleans count as
/// int32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(fmod(array([7, -7]), 3).to_vec::<i32>()?, [1, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fmod(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    apply_promoted(binary::REM.name(), x, y, counted, |x, y| binary::REM.apply(x, &divisor(y)))
}

/// The divisor of an integer remainder: 1 in place of 0.
fn divisor(y: &Array) -> Array {
    if y.dtype().is_integer() { where_(y.equal(0), 1, y) } else { y.clone() }
}

/// Raises `x` to the power `y`. A plain integer exponent multiplies; booleans count as int32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(power(array([2, 3]), 2).to_vec::<i32>()?, [4, 9]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn power(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let _line = source::enter();
    let (x, y) = (x.into_array(), y.into_array());
    if let Repr::Literal(l) = &y.0
        && let Scalar::Int(n) = l.value
        && let Ok(n) = i32::try_from(n)
    {
        return integer_pow(&convert(&x, counted(x.dtype()), x.weak_type()), n);
    }
    let common = match promote((x.dtype(), x.weak_type()), (y.dtype(), y.weak_type())) {
        Ok((common, _)) => common,
        Err(e) => return Array::from_result(Err(e), &x),
    };
    if !common.is_inexact() {
        return Array::from_result(integer_power(&x, &y), &x);
    }
    // Not promoted, as in JAX: a plain base takes no width from an integer exponent, but is no longer plain.
    let x = if y.dtype().is_integer() { convert(&x, x.dtype(), x.weak_type() && y.weak_type()) } else { x };
    apply_promoted("pow", x, y, to_inexact, |x, y| binary::POW.apply(x, y))
}

/// An integer array to the power of an integer array, by squaring. As in JAX only the exponent's last six bits count:
/// with more, all but powers of 0 and 1 overflow. Results for negative exponents are meaningless.
fn integer_power(x: &Array, y: &Array) -> Result<Array> {
    let args = promote_args_to("pow", &[x, y], counted)?;
    let (mut base, mut exponent) = (strip_weak_type(args[0].clone()), strip_weak_type(args[1].clone()));
    let mut result = where_(base.equal(0) & exponent.not_equal(0), 0, ones_like(&(&base + &exponent)));
    for _ in 0..6 {
        result = where_((&exponent & 1).equal(1), &result * &base, &result);
        exponent =
            binary::SHIFT_RIGHT_LOGICAL.apply(&exponent, &Array::literal(Scalar::Int(1), exponent.dtype(), false));
        base = &base * &base;
    }
    Ok(result)
}

/// Raises `x` to a constant integer power, elementwise. The result has the dtype of `x`; a negative power of integers is an error.
#[track_caller]
pub fn integer_pow(x: impl ArrayLike, n: i32) -> Array {
    let x = &x.into_array();
    IntegerPow(n).apply(x)
}

/// Returns the angle of the point `(x, y)` (`y` first), in radians.
///
/// ```
/// # use shardax::prelude::*;
/// let angles = arctan2(array([1.0f32, -1.0]), 0.0);
/// assert!(allclose(degrees(angles), array([90.0f32, -90.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn arctan2(y: impl ArrayLike, x: impl ArrayLike) -> Array {
    apply_promoted("atan2", y, x, to_inexact, |y, x| binary::ATAN2.apply(y, x))
}

macro_rules! comparisons {
    ($(#[doc = $summary:literal] $(#[$more:meta])* $name:ident => $op:ident;)*) => {
        $(
            #[doc = $summary]
            $(#[$more])*
            #[track_caller]
            pub fn $name(x: impl ArrayLike, y: impl ArrayLike) -> Array {
                apply_promoted(stringify!($name), x, y, |d| d, |x, y| Compare::$op.apply(x, y))
            }
        )*

        impl Array {
            $(
                #[doc = $summary]
                #[track_caller]
                pub fn $name(&self, other: impl ArrayLike) -> Array {
                    $name(self, other)
                }
            )*
        }
    };
}

comparisons! {
    /// `x == y` elementwise, as booleans.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(equal(array([1, 2]), array([1, 3])).to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    equal => Eq;
    /// `x != y` elementwise, as booleans.
    not_equal => Ne;
    /// `x < y` elementwise, as booleans.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(less(array([1, 2]), 2).to_vec::<bool>()?, [true, false]);
    /// assert_eq!(array([1, 2]).less(2).to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    less => Lt;
    /// `x <= y` elementwise, as booleans.
    less_equal => Le;
    /// `x > y` elementwise, as booleans.
    greater => Gt;
    /// `x >= y` elementwise, as booleans.
    greater_equal => Ge;
}

/// A bound of [`clip`]: an array, a number, or `None` for no bound.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a bound",
    label = "not an array, a number or `None`",
    note = "a bound that may be absent is an `Option<f64>`"
)]
pub trait IntoBound {
    /// Returns the bound, or `None` if there is none.
    fn into_bound(self) -> Option<Array>;
}

impl<T: ArrayLike> IntoBound for T {
    fn into_bound(self) -> Option<Array> {
        Some(self.into_array())
    }
}

// The only `Option` that is a bound, so that the type of a bare `None` is known.
impl IntoBound for Option<f64> {
    fn into_bound(self) -> Option<Array> {
        self.map(ArrayLike::into_array)
    }
}

/// Clamps `x` to between `min` and `max`. A bound that is `None` is absent.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(clip(array([-5, 1, 9]), 0, 4).to_vec::<i32>()?, [0, 1, 4]);
/// assert_eq!(clip(array([-5, 1, 9]), None, 4).to_vec::<i32>()?, [-5, 1, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn clip(x: impl ArrayLike, min: impl IntoBound, max: impl IntoBound) -> Array {
    let x = x.into_array();
    let x = match min.into_bound() {
        Some(min) => maximum(x, min),
        None => x,
    };
    match max.into_bound() {
        Some(max) => minimum(x, max),
        None => x,
    }
}

/// Returns `true` if all elements differ by at most `atol + rtol * |y|`. Waits for the values.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(allclose(array([1.0f32, 1e-9]), array([1.0f32, 0.0]), 1e-5, 1e-8)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not broadcast together, if an array failed, or if one is traced and therefore has
/// no values. Inside of `jit`, use [`isclose`](crate::numpy::isclose) instead.
#[track_caller]
pub fn allclose(x: impl ArrayLike, y: impl ArrayLike, rtol: f64, atol: f64) -> Result<bool> {
    let _line = source::enter();
    let (x, y) = (x.into_array(), y.into_array());
    let close = abs(&subtract(&x, &y)).less_equal(atol + rtol * abs(&y)) | x.equal(&y);
    close.all(..).item::<bool>()
}

/// Computes `log(exp(x) + exp(y))`, without overflow.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((logaddexp(array(1000.0f32), 1000.0).item::<f32>()? - 1000.6931).abs() < 1e-3);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logaddexp(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let sum = apply_promoted("logaddexp", x, y, to_inexact, |x, y| LOGADDEXP.apply(&[x.clone(), y.clone()]));
    if sum.dtype().is_complex() { strip_weak_type(sum) } else { sum }
}

/// Returns the next representable number after `x` towards `y`. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nextafter(1.0f32, 2.0f32).item::<f32>()?, 1.0 + f32::EPSILON);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nextafter(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    apply_promoted("nextafter", x, y, to_inexact, |x, y| binary::NEXTAFTER.apply(x, y))
}

/// Creates a complex array from a real and an imaginary part; half precision is widened to float32.
///
/// ```
/// # use shardax::prelude::*;
/// let z = complex(array([3.0f32]), array([4.0f32]));
/// assert_eq!((z.type_name(), z.abs().item::<f32>()?), ("complex64[1]".into(), 5.0));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn complex(re: impl ArrayLike, im: impl ArrayLike) -> Array {
    apply_promoted("complex", re, im, |dtype| accumulator(to_inexact(dtype)), |re, im| lax::complex(re, im))
}

impl Array {
    /// Converts the elements to `dtype`. Floats to integers truncate and saturate, NaN becomes 0; complex to real drops
    /// the imaginary part.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1.7f32, -2.3]).astype(DType::I32);
    /// assert_eq!(x.to_vec::<i32>()?, [1, -2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn astype(&self, dtype: DType) -> Array {
        if dtype == DType::Float0 {
            let e = err!(Type, "an array of type {} cannot be converted to float0", self.type_name()).help(
                "float0 is the type of gradients of values that are not differentiable; use `DType::Bool` instead",
            );
            return Array::from_result(Err(e), self);
        }
        convert(self, dtype, false)
    }

    /// Returns the elements to the power `y`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([2, 3]).pow(3).to_vec::<i32>()?, [8, 27]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn pow(&self, y: impl ArrayLike) -> Array {
        power(self, y)
    }

    /// Returns the larger of each pair.
    #[track_caller]
    pub fn maximum(&self, other: impl ArrayLike) -> Array {
        maximum(self, other)
    }

    /// Returns the smaller of each pair.
    #[track_caller]
    pub fn minimum(&self, other: impl ArrayLike) -> Array {
        minimum(self, other)
    }

    /// Clamps the elements to between `min` and `max`. A bound that is `None` is absent.
    #[track_caller]
    pub fn clip(&self, min: impl IntoBound, max: impl IntoBound) -> Array {
        clip(self, min, max)
    }
}
