//! Elementwise functions of one array.

use super::divide;
use crate::core::array::Array;
use crate::dtype::{Category, DType};
use crate::error::err;
use crate::ops::constants::zeros_like;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::ops::primitive::unary::{self, Unary};
use crate::ops::promotion::{convert, to_inexact, to_strong_type};
use crate::ops::select::where_;
use crate::source;

/// The logarithm to the base whose natural logarithm is `of_base`. The parts of complex numbers are computed separately.
#[track_caller]
fn log_to_base(x: &Array, of_base: f64) -> Array {
    let y = log(x);
    if !y.dtype().is_complex() {
        return y / of_base;
    }
    lax::complex(&(real(&y) / of_base), &(imag(&y) / of_base))
}

/// The complex numbers whose parts are `f` of the parts of `x`. A part that cannot be computed has the type of `x`, so that `f`
/// would not end.
#[track_caller]
pub(crate) fn of_both_parts(x: &Array, f: impl Fn(&Array) -> Array) -> Array {
    let parts = [real(x), imag(x)];
    match parts.iter().find(|part| part.dtype().is_complex()) {
        Some(failed) => failed.clone(),
        None => lax::complex(&f(&parts[0]), &f(&parts[1])),
    }
}

#[track_caller]
fn float_op(op: Unary, x: &Array) -> Array {
    op.apply(&convert(x, to_inexact(x.dtype()), x.weak_type()))
}

/// Applies a function of several operations, which is one program outside of a trace.
#[track_caller]
fn as_one_program(name: &'static str, x: &Array, function: impl Fn(&Array) -> Array + Send + Sync + 'static) -> Array {
    let result = composite1(name, (), std::slice::from_ref(x), move |(), args| Ok(vec![function(&args[0])]));
    Array::from_result(result, x)
}

/// The square of complex numbers. The difference of the squares of the parts would lose digits if the parts are close, and
/// would overflow if they are large.
fn complex_square(x: &Array) -> Array {
    let (real, imaginary) = (lax::real(x), lax::imag(x));
    lax::complex((&real - &imaginary) * (&real + &imaginary), real * imaginary * 2)
}

macro_rules! unary_functions {
    ($(#[doc = $summary:literal] $(#[$more:meta])* $name:ident => $op:expr;)*) => {
        $(
            #[doc = $summary]
            $(#[$more])*
            #[track_caller]
            pub fn $name(x: impl ArrayLike) -> Array {
                let _line = source::enter();
                $op(&x.into_array())
            }
        )*

        impl Array {
            $(
                #[doc = $summary]
                #[track_caller]
                pub fn $name(&self) -> Array {
                    $name(self)
                }
            )*
        }
    };
}

macro_rules! floating {
    ($op:ident) => {
        |x: &Array| float_op(unary::$op, x)
    };
}

unary_functions! {
    /// `-x`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(negative(array([1, -2])).to_vec::<i32>()?, [-1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    negative => |x: &Array| unary::NEG.apply(x);
    /// The absolute value; of a complex number its length.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(abs(array([1, -2])).to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    abs => |x: &Array| if x.dtype().category() <= Category::Unsigned { x.clone() } else { unary::ABS.apply(x) };
    /// -1, 0 or 1; of a complex number its direction.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(sign(array([-2.5f32, 0.0, 3.0])).to_vec::<f32>()?, [-1.0, 0.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    sign => |x: &Array| match x.dtype().category() {
        Category::Unsigned => x.not_equal(0).astype(x.dtype()),
        _ => unary::SIGN.apply(x),
    };
    /// `x * x`; booleans count as int32.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(square(array([2, -3])).to_vec::<i32>()?, [4, 9]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    square => |x: &Array| match x.dtype() {
        DType::Bool => square(&x.astype(DType::I32)),
        dtype if dtype.is_complex() => as_one_program("square", x, complex_square),
        _ => x * x,
    };
    /// `1 / x`, floating point.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(reciprocal(array([2, 4])).to_vec::<f32>()?, [0.5, 0.25]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    reciprocal => |x: &Array| as_one_program("reciprocal", x, |x| divide(1, convert(x, to_inexact(x.dtype()), x.weak_type())));
    /// e to the power `x`. Integers are converted to float32, as in all functions whose results are not integers.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(exp(array([0, 1])).to_vec::<f32>()?, [1.0, std::f32::consts::E]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    exp => floating!(EXP);
    /// 2 to the power `x`.
    exp2 => |x: &Array| as_one_program("exp2", x, |x| {
        exp(&(convert(x, to_inexact(x.dtype()), x.weak_type()) * std::f64::consts::LN_2))
    });
    /// `exp(x) - 1`, accurate near 0.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert!((expm1(1e-7f32).item::<f32>()? - 1e-7).abs() < 1e-13);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    expm1 => floating!(EXPM1);
    /// The natural logarithm.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(log(1.0f32).item::<f32>()?, 0.0);
    /// assert!(log(-1.0f32).item::<f32>()?.is_nan());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    log => floating!(LOG);
    /// The logarithm to base 2.
    log2 => |x: &Array| as_one_program("log2", x, |x| {
        convert(&log_to_base(x, std::f64::consts::LN_2), to_inexact(x.dtype()), x.weak_type())
    });
    /// The logarithm to base 10.
    log10 => |x: &Array| as_one_program("log10", x, |x| strip_weak_type(log_to_base(x, std::f64::consts::LN_10)));
    /// `log(1 + x)`, accurate near 0.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert!((log1p(1e-7f32).item::<f32>()? - 1e-7).abs() < 1e-13);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    log1p => floating!(LOG1P);
    /// The square root.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(sqrt(array([4.0f32, 9.0])).to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    sqrt => floating!(SQRT);
    /// `1 / sqrt(x)`.
    rsqrt => floating!(RSQRT);
    /// The cube root.
    cbrt => floating!(CBRT);
    /// Sine of radians.
    sin => floating!(SIN);
    /// Cosine of radians.
    cos => floating!(COS);
    /// Tangent of radians.
    tan => floating!(TAN);
    /// Inverse sine, in radians.
    arcsin => floating!(ASIN);
    /// Inverse cosine, in radians.
    arccos => floating!(ACOS);
    /// Inverse tangent, in radians.
    arctan => floating!(ATAN);
    /// Hyperbolic sine.
    sinh => floating!(SINH);
    /// Hyperbolic cosine.
    cosh => floating!(COSH);
    /// Hyperbolic tangent.
    tanh => floating!(TANH);
    /// Inverse hyperbolic sine.
    arcsinh => floating!(ASINH);
    /// Inverse hyperbolic cosine.
    arccosh => floating!(ACOSH);
    /// Inverse hyperbolic tangent.
    arctanh => floating!(ATANH);
    /// The logistic function, `1 / (1 + exp(-x))`.
    logistic => floating!(LOGISTIC);
    /// The error function.
    erf => floating!(ERF);
    /// `1 - erf(x)`, accurate for large `x`.
    erfc => floating!(ERFC);
    /// The inverse of the error function.
    erf_inv => floating!(ERF_INV);
    /// The logarithm of the absolute value of the gamma function.
    lgamma => floating!(LGAMMA);
    /// The derivative of `lgamma`.
    digamma => floating!(DIGAMMA);
    /// The largest integer not above `x`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(floor(array([1.5f32, -1.5])).to_vec::<f32>()?, [1.0, -2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    floor => |x: &Array| if x.dtype().category() <= Category::Signed { x.clone() } else { float_op(unary::FLOOR, x) };
    /// The smallest integer not below `x`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ceil(array([1.5f32, -1.5])).to_vec::<f32>()?, [2.0, -1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ceil => |x: &Array| if x.dtype().category() <= Category::Signed { x.clone() } else { float_op(unary::CEIL, x) };
    /// The nearest integer; halves go to the even one.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(round(array([0.5f32, 1.5, -2.7])).to_vec::<f32>()?, [0.0, 2.0, -3.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    round => |x: &Array| match x.dtype().category() {
        Category::Unsigned | Category::Signed => x.clone(),
        Category::Complex => of_both_parts(x, |part| round(part)),
        _ => unary::ROUND.apply(x),
    };
    /// Rounds towards zero.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(trunc(array([1.7f32, -1.7])).to_vec::<f32>()?, [1.0, -1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    trunc => lax::trunc;
    /// Marks elements that are neither infinite nor NaN.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1.0f32, f32::INFINITY, f32::NAN]);
    /// assert_eq!(isfinite(x).to_vec::<bool>()?, [true, false, false]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    isfinite => |x: &Array| match x.dtype().category() {
        Category::Float => unary::IS_FINITE.apply(x),
        Category::Complex => unary::IS_FINITE.apply(&real(x)) & unary::IS_FINITE.apply(&imag(x)),
        _ => x.equal(x),
    };
    /// Marks elements that are NaN.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1.0f32, f32::INFINITY, f32::NAN]);
    /// assert_eq!(isnan(x).to_vec::<bool>()?, [false, false, true]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    isnan => |x: &Array| x.not_equal(x);
    /// Marks elements that are infinite.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1.0f32, f32::INFINITY, f32::NAN]);
    /// assert_eq!(isinf(x).to_vec::<bool>()?, [false, true, false]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    isinf => |x: &Array| match x.dtype().category() {
        Category::Float => abs(x).equal(f64::INFINITY),
        Category::Complex => abs(&real(x)).equal(f64::INFINITY) | abs(&imag(x)).equal(f64::INFINITY),
        _ => x.not_equal(x),
    };
    /// Inverts each bit, or boolean.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(bitwise_not(array([0, 5])).to_vec::<i32>()?, [-1, -6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    bitwise_not => |x: &Array| unary::NOT.apply(x);
    /// Marks elements that are zero or false.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(logical_not(array([0, 5])).to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    logical_not => |x: &Array| if x.dtype() == DType::Bool { unary::NOT.apply(x) } else { x.equal(0) };
    /// The number of bits set.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(population_count(array([0, 5, -1])).to_vec::<i32>()?, [0, 2, 32]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    population_count => |x: &Array| unary::POPULATION_COUNT.apply(x);
    /// The number of leading zero bits.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(clz(array([1, 256])).to_vec::<i32>()?, [31, 23]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    clz => |x: &Array| unary::CLZ.apply(x);
    /// The real part.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let z = complex(array([3.0f32]), array([4.0f32]));
    /// assert_eq!((real(&z).item::<f32>()?, imag(&z).item::<f32>()?), (3.0, 4.0));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    real => unary::real;
    /// The imaginary part; 0 of real numbers.
    imag => |x: &Array| if x.dtype().is_complex() { unary::IMAG.apply(x) } else { zeros_like(x) };
    /// The complex conjugate.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let z = complex(array([3.0f32]), array([4.0f32]));
    /// assert_eq!(imag(conj(z)).item::<f32>()?, -4.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    conj => unary::conj;
}

/// Rounds `x` to this many decimals; negative ones round to tens, hundreds and so on. Halves go to the even neighbour.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(around(&array([1.25f32, -0.754]), 1).to_vec::<f32>()?, [1.2, -0.8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn around(x: impl ArrayLike, decimals: i32) -> Array {
    let x = &x.into_array();
    // Beyond the digits that the dtype has there is nothing to round.
    let digits = match x.dtype().real() {
        DType::F64 => 308,
        DType::F16 => 4,
        _ => 38,
    };
    if decimals == 0 || decimals > digits || (decimals > 0 && !x.dtype().is_inexact()) {
        return if decimals > digits && x.dtype().is_inexact() { stop_gradient(x.clone()) } else { round(x) };
    }
    if !x.dtype().is_inexact() {
        let e = err!(
            NotImplemented,
            "around of integers supports no negative decimals, got {} and {decimals}",
            x.type_name()
        )
        .help("convert it with `astype(DType::F32)`");
        return Array::from_result(Err(e), x);
    }
    if x.dtype().is_complex() {
        return of_both_parts(x, |part| around(part, decimals));
    }
    if decimals < -digits {
        return where_(isfinite(x), x * 0, x);
    }
    // Half precision has too few digits for the factor.
    let wide = if x.dtype().bits() < 32 { x.astype(DType::F32) } else { x.clone() };
    let factor = 10f64.powi(decimals.abs());
    let rounded = if decimals > 0 {
        let scaled = &wide * factor;
        // Numbers too large to be scaled have no decimals. Their slope is 0, as for other numbers.
        where_(isfinite(&scaled), round(&scaled) / factor, stop_gradient(wide))
    } else {
        round(&(wide / factor)) * factor
    };
    convert(&rounded, x.dtype(), x.weak_type())
}

/// Strips the weak type of the array.
#[track_caller]
pub(crate) fn strip_weak_type(x: Array) -> Array {
    to_strong_type(&x, x.dtype())
}
