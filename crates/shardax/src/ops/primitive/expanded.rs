//! Elementwise functions whose derivative differs from the derivative of their expression at ties, infinities or NaN.
//! They are lowered to simpler operations; each is an entry of the table below.

use smallvec::{SmallVec, smallvec};

use super::binary::{ADD, Compare, MAX, MIN, MUL, SUB, Select};
use super::elementwise_rules::{self, Accepts};
use super::reduce::accumulator;
use super::unary::{ABS, EXP, IMAG, LOG1P, LOGISTIC, NEG, REAL};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::Scalar;
use crate::error::Result;
use crate::ops::elementwise::fmod;
use crate::ops::lax;
use crate::ops::select::where_;

pub(crate) struct Def {
    pub(super) name: &'static str,
    pub(super) accepts: Accepts,
    pub(super) body: fn(&[Array]) -> Array,
    /// The result's tangent from the operands, the result, the index of an operand, and its tangent.
    pub(super) tangent: fn(&[Array], &Array, usize, &Array) -> Array,
}

/// An elementwise function of operands of one dtype.
#[derive(Clone, Copy)]
pub(crate) struct Expanded(pub(super) &'static Def);

impl PartialEq for Expanded {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Expanded {}

impl std::hash::Hash for Expanded {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl std::fmt::Debug for Expanded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Expanded {
    #[track_caller]
    pub fn apply(self, args: &[Array]) -> Array {
        bind1(self, args)
    }
}

impl Primitive for Expanded {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let dtype = elementwise_rules::dtype_of(self.0.name, self.0.accepts, args)?;
        Ok(smallvec![Aval { dtype, ..elementwise_rules::shape_of(self.0.name, args)? }])
    }

    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| Ok(vec![(self.0.body)(args)]))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.apply(args);
        // Slopes of special functions are differences of large terms. Half precision would have no digits left.
        let wide = if self.0.accepts == Accepts::Float { accumulator(out.dtype()) } else { out.dtype() };
        let is_narrow = wide != out.dtype();
        let widened: Vec<Array>;
        let (args, y) = if is_narrow {
            widened = args.iter().map(|x| x.astype(wide)).collect();
            (&widened[..], self.apply(&widened))
        } else {
            (args, out.clone())
        };
        let term = |(i, t): (usize, &Option<Array>)| t.as_ref().map(|t| (self.0.tangent)(args, &y, i, &t.astype(wide)));
        let tangent = tangents.iter().enumerate().filter_map(term).reduce(|a, b| a + b);
        let tangent = tangent.map(|t| if is_narrow { t.astype(out.dtype()) } else { t });
        let tangent = tangent.map(|t| if t.shape() == out.shape() { t } else { t.broadcast_to(out.shape()) });
        Ok((smallvec![out], vec![tangent]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(args))
    }
}

macro_rules! expanded {
    ($($ident:ident $name:literal $accepts:ident, $body:expr, $tangent:expr;)*) => {$(
        pub(crate) static $ident: $crate::ops::primitive::expanded::Expanded =
            $crate::ops::primitive::expanded::Expanded(&$crate::ops::primitive::expanded::Def {
                name: $name,
                accepts: $crate::ops::primitive::elementwise_rules::Accepts::$accepts,
                body: $body,
                tangent: $tangent,
            });
    )*};
}

pub(super) use expanded;

fn zero(like: &Array) -> Array {
    Array::literal(Scalar::Int(0), like.dtype(), false)
}

/// Replaces elements whose real part is infinite with zero.
fn zero_if_infinite(x: &Array) -> Array {
    let part = if x.dtype().is_complex() { REAL.apply(x) } else { x.clone() };
    let infinity = Array::literal(Scalar::float(f64::INFINITY), part.dtype(), false);
    Select.apply(&Compare::Eq.apply(&part, &infinity), x, &zero(x))
}

/// Factors out the number with the larger real part; the imaginary part is an angle within ±π.
fn complex_logaddexp(x: &Array, y: &Array) -> Array {
    let (a, b) = (REAL.apply(x), REAL.apply(y));
    let tie = Compare::Gt.apply(&IMAG.apply(x), &IMAG.apply(y));
    let is_first_larger = Select.apply(&Compare::Eq.apply(&a, &b), &Compare::Gt.apply(&a, &b), &tie);
    let larger = Select.apply(&is_first_larger, y, x);
    let gap = (x + y) - &larger * 2;
    let sum = ADD.apply(&larger, &LOG1P.apply(&EXP.apply(&gap)));
    let turn = 2.0 * std::f64::consts::PI;
    let angle = fmod(IMAG.apply(&sum) + std::f64::consts::PI, turn);
    let angle = where_(angle.less(0), &angle + turn, &angle) - std::f64::consts::PI;
    lax::complex(&REAL.apply(&sum), &angle)
}

expanded! {
    // Its slope is 0 at 0, and at NaN.
    RELU "relu" Real,
        |x| Select.apply(&Compare::Le.apply(&x[0], &zero(&x[0])), &x[0], &zero(&x[0])),
        |x, _, _, t| Select.apply(&Compare::Gt.apply(&x[0], &zero(&x[0])), &zero(t), t);
    // log(eˣ + eʸ), without overflow.
    LOGADDEXP "logaddexp" Inexact,
        |a| {
            if a[0].dtype().is_complex() {
                return complex_logaddexp(&a[0], &a[1]);
            }
            let gap = SUB.apply(&a[0], &a[1]);
            let larger = MAX.apply(&a[0], &a[1]);
            let sum = ADD.apply(&larger, &LOG1P.apply(&EXP.apply(&NEG.apply(&ABS.apply(&gap)))));
            // Equal infinities have no gap; with NaN the sum is NaN.
            Select.apply(&Compare::Ne.apply(&gap, &gap), &sum, &ADD.apply(&a[0], &a[1]))
        },
        |a, out, i, t| {
            if !a[i].dtype().is_complex() {
                // A difference of exponents, since the sum rounds a small one away. An infinite operand has the entire share.
                let infinity = Array::literal(Scalar::float(f64::INFINITY), a[i].dtype(), false);
                let is_infinite = Compare::Eq.apply(&MIN.apply(&a[i], out), &infinity);
                let gap = Select.apply(&is_infinite, &SUB.apply(&a[i], &a[1 - i]), &infinity);
                return MUL.apply(t, &LOGISTIC.apply(&gap));
            }
            MUL.apply(t, &EXP.apply(&SUB.apply(&zero_if_infinite(&a[i]), &zero_if_infinite(out))))
        };
}
