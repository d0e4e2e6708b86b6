//! Elementwise primitives of one operand. Each primitive is an entry of the table below, with all its rules.

use smallvec::{SmallVec, smallvec};

use super::binary::IntegerPow;
use super::elementwise_rules::{self, Accepts};
use super::special;
use super::special::scaled_error::{ERF_INV_SLOPE, GAUSSIAN};
use super::special::slopes::{ASIN_SLOPE, ASINH_SLOPE, ATAN_SLOPE, ATANH_SLOPE, LOGISTIC_SLOPE, TANH_SLOPE};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::select::where_;

/// The derivative of an operation.
enum Derivative {
    /// Piecewise constant, without a tangent.
    Zero,
    /// A factor of the tangent, computed from the operand and the result.
    Factor(fn(&Array, &Array) -> Array),
    /// The transpose of a linear operation.
    Linear(fn(&Array) -> Array),
    /// The result's tangent, computed from the operand, the result and the operand's tangent.
    Tangent(fn(&Array, &Array, &Array) -> Array),
    /// The tangent for complex numbers; for real numbers the operation is piecewise constant.
    ComplexTangent(fn(&Array, &Array, &Array) -> Array),
}

use Derivative::{ComplexTangent, Factor, Linear, Tangent, Zero};

/// The definition of an operation: its name, its StableHLO or CHLO operation, the accepted and returned dtypes, and its
/// derivative.
pub(crate) struct Def {
    name: &'static str,
    op: &'static str,
    accepts: Accepts,
    result: fn(DType) -> DType,
    derivative: Derivative,
}

/// An elementwise primitive of one operand.
#[derive(Clone, Copy)]
pub(crate) struct Unary(&'static Def);

impl PartialEq for Unary {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Unary {}

impl std::hash::Hash for Unary {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl std::fmt::Debug for Unary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Unary {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }

    /// Returns the StableHLO or CHLO operation.
    pub(crate) fn operation(self) -> &'static str {
        self.0.op
    }
}

impl Primitive for Unary {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        self.0.accepts.check(self.0.name, args[0].dtype)?;
        let dtype = (self.0.result)(args[0].dtype);
        Ok(smallvec![Aval { dtype, weak: args[0].weak && dtype != DType::Bool, ..args[0].clone() }])
    }

    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        if self.name() == "neg" { rule.keep_partial() } else { rule.keep_reduced() }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op(self.0.op, args, "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let y = self.apply(&args[0]);
        let tangent = tangents[0].as_ref().and_then(|t| match &self.0.derivative {
            Zero => None,
            Factor(f) => Some(t * f(&args[0], &y)),
            Linear(_) => Some(self.apply(t)),
            ComplexTangent(_) if !args[0].dtype().is_complex() => None,
            Tangent(f) | ComplexTangent(f) => Some(f(&args[0], &y, t)),
        });
        Ok((smallvec![y], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        match &self.0.derivative {
            Linear(transpose) => Ok(vec![cts[0].as_ref().map(transpose)]),
            _ => Err(crate::error::err!(NotImplemented, "'{}' is not linear and has no transpose", self.0.name)),
        }
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0]))
    }
}

fn same_dtype(dtype: DType) -> DType {
    dtype
}

macro_rules! unary {
    ($($ident:ident $name:literal $op:literal $accepts:ident $result:expr, $derivative:expr;)*) => {$(
        pub(crate) static $ident: Unary = Unary(&Def {
            name: $name,
            op: $op,
            accepts: Accepts::$accepts,
            result: $result,
            derivative: $derivative,
        });
    )*};
}

unary! {
    NEG "neg" "stablehlo.negate" Number same_dtype, Linear(|ct| -ct);
    SIGN "sign" "stablehlo.sign" Signed same_dtype, ComplexTangent(|x, y, t| {
        // The sign is a point on the unit circle, so only the part of t perpendicular to it matters. The sign has no
        // slope at 0.
        let size = ABS.apply(x);
        let size = where_(size.equal(0), 1, size);
        let turn = IMAG.apply(&(CONJ.apply(y) * t)) / size;
        crate::ops::lax::complex(&(-IMAG.apply(y) * &turn), &(REAL.apply(y) * &turn))
    });
    FLOOR "floor" "stablehlo.floor" Float same_dtype, Zero;
    CEIL "ceil" "stablehlo.ceil" Float same_dtype, Zero;
    ROUND "round" "stablehlo.round_nearest_even" Float same_dtype, Zero;
    IS_FINITE "is_finite" "stablehlo.is_finite" Float |_| DType::Bool, Zero;
    EXP "exp" "stablehlo.exponential" Inexact same_dtype, Factor(|_, y| y.clone());
    EXPM1 "expm1" "stablehlo.exponential_minus_one" Inexact same_dtype, Factor(|x, _| EXP.apply(x));
    LOG "log" "stablehlo.log" Inexact same_dtype, Tangent(|x, _, t| t / x);
    LOG1P "log1p" "stablehlo.log_plus_one" Inexact same_dtype, Tangent(|x, _, t| t / (x + 1));
    SQRT "sqrt" "stablehlo.sqrt" Inexact same_dtype, Factor(|_, y| 0.5 / y);
    RSQRT "rsqrt" "stablehlo.rsqrt" Inexact same_dtype, Factor(|x, y| -0.5 * y / x);
    CBRT "cbrt" "stablehlo.cbrt" Float same_dtype, Factor(|_, y| IntegerPow(-2).apply(y) * (1.0 / 3.0));
    SIN "sin" "stablehlo.sine" Inexact same_dtype, Factor(|x, _| COS.apply(x));
    COS "cos" "stablehlo.cosine" Inexact same_dtype, Factor(|x, _| -SIN.apply(x));
    TAN "tan" "stablehlo.tan" Inexact same_dtype, Factor(|_, y| y * y + 1);
    TANH "tanh" "stablehlo.tanh" Inexact same_dtype, Factor(|x, _| TANH_SLOPE.apply(std::slice::from_ref(x)));
    LOGISTIC "logistic" "stablehlo.logistic" Inexact same_dtype, Factor(|x, _| LOGISTIC_SLOPE.apply(std::slice::from_ref(x)));
    ASIN "asin" "chlo.asin" Inexact same_dtype, Factor(|x, _| ASIN_SLOPE.apply(std::slice::from_ref(x)));
    ACOS "acos" "chlo.acos" Inexact same_dtype, Factor(|x, _| -ASIN_SLOPE.apply(std::slice::from_ref(x)));
    ATAN "atan" "chlo.atan" Inexact same_dtype, Tangent(|x, _, t| if x.dtype().is_complex() { t / (x * x + 1) } else { t * ATAN_SLOPE.apply(std::slice::from_ref(x)) });
    SINH "sinh" "chlo.sinh" Inexact same_dtype, Factor(|x, _| COSH.apply(x));
    COSH "cosh" "chlo.cosh" Inexact same_dtype, Factor(|x, _| SINH.apply(x));
    ASINH "asinh" "chlo.asinh" Inexact same_dtype, Factor(|x, _| ASINH_SLOPE.apply(std::slice::from_ref(x)));
    // For complex numbers with a negative real part, the root of the product is on another branch.
    ACOSH "acosh" "chlo.acosh" Inexact same_dtype, Factor(|x, _| RSQRT.apply(&(x - 1)) * RSQRT.apply(&(x + 1)));
    ATANH "atanh" "chlo.atanh" Inexact same_dtype, Tangent(|x, _, t| if x.dtype().is_complex() { t / ((1 - x) * (1 + x)) } else { t * ATANH_SLOPE.apply(std::slice::from_ref(x)) });
    ERF "erf" "chlo.erf" Float same_dtype,
        Factor(|x, _| std::f64::consts::FRAC_2_SQRT_PI * GAUSSIAN.apply(std::slice::from_ref(x)));
    ERFC "erfc" "chlo.erfc" Float same_dtype,
        Factor(|x, _| -std::f64::consts::FRAC_2_SQRT_PI * GAUSSIAN.apply(std::slice::from_ref(x)));
    ERF_INV "erf_inv" "chlo.erf_inv" Float same_dtype,
        Factor(|x, _| ERF_INV_SLOPE.apply(std::slice::from_ref(x)));
    // Normal numbers are JAX's up to the last places, so that a platform must compute this one by the same polynomials.
    ERF_INV_OF_XLA "erf_inv_of_xla" "chlo.erf_inv" Float same_dtype,
        Factor(|_, y| (1.0 / std::f64::consts::FRAC_2_SQRT_PI) * EXP.apply(&(y * y)));
    LGAMMA "lgamma" "chlo.lgamma" Float same_dtype, Factor(|x, _| DIGAMMA.apply(x));
    DIGAMMA "digamma" "chlo.digamma" Float same_dtype, Factor(|x, _| crate::ops::lax::polygamma(1, x));
    BESSEL_I1E "bessel_i1e" "chlo.bessel_i1e" Float same_dtype, Factor(special::bessel_i1e_slope);
    ABS "abs" "stablehlo.abs" Signed DType::real, Tangent(|x, y, t| {
        if !x.dtype().is_complex() {
            // The slope at 0 is +1, as in JAX.
            return where_(x.greater_equal(0), t, -t);
        }
        // The part of t in the direction of x, or 0 at 0. Divides before multiplying, because products of large numbers
        // overflow.
        let size = where_(y.equal(0), 1, y);
        let direction = crate::ops::lax::complex(&(REAL.apply(x) / &size), &(-IMAG.apply(x) / &size));
        REAL.apply(&(t * direction))
    });
    NOT "not" "stablehlo.not" Bits same_dtype, Zero;
    POPULATION_COUNT "population_count" "stablehlo.popcnt" Integer same_dtype, Zero;
    CLZ "clz" "stablehlo.count_leading_zeros" Integer same_dtype, Zero;
    REAL "real" "stablehlo.real" Complex DType::real, Linear(|ct| crate::ops::lax::complex(ct, &zeros_like(ct)));
    // Cotangents pair with tangents as real numbers, without conjugation.
    IMAG "imag" "stablehlo.imag" Complex DType::real, Linear(|ct| crate::ops::lax::complex(&zeros_like(ct), &-ct));
    CONJ "conj" "chlo.conj" Complex same_dtype, Linear(|ct| CONJ.apply(ct));
}

fn zeros_like(x: &Array) -> Array {
    Array::zeros_of(&x.aval())
}

/// Returns the real part. Real numbers are returned unchanged.
#[track_caller]
pub(crate) fn real(x: &Array) -> Array {
    if x.dtype().is_complex() { REAL.apply(x) } else { x.clone() }
}

/// Returns the complex conjugate. Real numbers are returned unchanged.
#[track_caller]
pub(crate) fn conj(x: &Array) -> Array {
    if x.dtype().is_complex() { CONJ.apply(x) } else { x.clone() }
}
