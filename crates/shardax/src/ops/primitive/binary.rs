//! Elementwise primitives of two operands. Each primitive is an entry of the table below, with all its rules.

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::{self, Accepts, unspread};
use super::reshard::with_addends;
use super::special::slopes::INVERSE_PART;
use super::unary::LOG;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, comparison};
use crate::core::primitive::{
    BatchAxis, Dims, EagerForm, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::promotion::convert;
use crate::ops::select::where_;
use crate::shape::AxisSet;
use crate::sharding::Typed;

/// A partial derivative.
enum Partial {
    /// Piecewise constant, without a tangent.
    Zero,
    /// A factor of the tangent, computed from both operands and the result.
    Factor(fn(&Array, &Array, &Array) -> Array),
    /// The result's tangent, computed from both operands and the tangent. The operation is linear in this operand, and
    /// the function must be linear in the tangent.
    Tangent(fn(&Array, &Array, &Array) -> Array),
}

use Partial::{Factor, Tangent, Zero};

/// Computes the cotangents of linear operands from the cotangent of the result and the operands.
type Transpose = fn(&Array, &[Operand]) -> Result<[Option<Array>; 2]>;

pub(crate) struct Def {
    name: &'static str,
    op: &'static str,
    accepts: Accepts,
    result: fn(DType) -> DType,
    partials: [Partial; 2],
    transpose: Option<Transpose>,
}

/// An elementwise primitive of two operands of one dtype.
#[derive(Clone, Copy)]
pub(crate) struct Binary(&'static Def);

impl PartialEq for Binary {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Binary {}

impl std::hash::Hash for Binary {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl std::fmt::Debug for Binary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Binary {
    pub fn name(self) -> &'static str {
        self.0.name
    }

    #[track_caller]
    pub fn apply(self, x: &Array, y: &Array) -> Array {
        bind1(self, &[x.clone(), y.clone()])
    }
}

impl Primitive for Binary {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let dtype = elementwise_rules::dtype_of(self.0.name, self.0.accepts, args)?;
        Ok(smallvec![Aval { dtype: (self.0.result)(dtype), ..elementwise_rules::shape_of(self.0.name, args)? }])
    }

    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        match self.name() {
            "add" | "sub" => rule.keep_partial(),
            "mul" => rule.product_partial(),
            "div" if rule.arg(1).unreduced().is_empty() => rule.product_partial(),
            _ => rule.keep_reduced(),
        }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if *self == POLYGAMMA {
            return cx.expand(args, |args| Ok(vec![super::special::polygamma(&args[0], &args[1])]));
        }
        Ok(elementwise_rules::lower_op(cx, self.0.op, args, "", &outs[0]))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (x, y) = (&args[0], &args[1]);
        let out = self.apply(x, y);
        let mut sum: Option<Array> = None;
        for (partial, t) in self.0.partials.iter().zip(tangents) {
            let Some(t) = t else { continue };
            let term = match partial {
                Zero => continue,
                Factor(f) => t * f(x, y, &out),
                Tangent(f) => f(x, y, t),
            };
            sum = Some(match sum {
                Some(s) => s + term,
                None => term,
            });
        }
        // A scalar operand's tangent is a scalar, so it is broadcast to the result's shape.
        let sum = sum.map(|t| if t.shape() == out.shape() { t } else { t.broadcast_to(out.shape()) });
        Ok((smallvec![out], vec![sum]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let transpose = self
            .0
            .transpose
            .ok_or_else(|| err!(NotImplemented, "'{}' is not linear and has no transpose", self.0.name))?;
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        let out = transpose(ct, args)?;
        Ok(out.into_iter().zip(args).map(|(ct, arg)| ct.map(|ct| unspread(ct, &arg.aval()))).collect())
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0], &args[1]))
    }
}

fn same(dtype: DType) -> DType {
    dtype
}

macro_rules! binary {
    ($($ident:ident $name:literal $op:literal $accepts:ident $result:expr, [$lhs:expr, $rhs:expr $(,)?], $transpose:expr;)*) => {$(
        pub(crate) static $ident: Binary = Binary(&Def {
            name: $name,
            op: $op,
            accepts: Accepts::$accepts,
            result: $result,
            partials: [$lhs, $rhs],
            transpose: $transpose,
        });
    )*};
}

fn for_linear(args: &[Operand], i: usize, ct: impl FnOnce() -> Array) -> Option<Array> {
    args[i].is_linear().then(ct)
}

/// Casts a number to reduced over the cotangent's unreduced axes, so that it can multiply the addends.
fn cast_to_reduced(ct: &Array, x: &Array) -> Array {
    match ct.aval_ref().and_then(Aval::sharding).filter(|typed| !typed.unreduced().is_empty()) {
        Some(typed) if x.ndim() == 0 && !x.aval().sharding().is_some_and(Typed::is_partial) => {
            let over = typed.unreduced().clone();
            x.sharded(&Typed::replicated(typed.mesh(), 0).with_partial(AxisSet::default(), over))
        }
        _ => x.clone(),
    }
}

/// Returns the weight of an operand of `max` or `min`: 1 if it is the result, 1/2 if both operands are.
fn chosen(operand: &Array, other: &Array, out: &Array) -> Array {
    let share = where_(other.equal(out), 0.5, 1.0);
    where_(operand.equal(out), share, 0.0).astype(out.dtype())
}

binary! {
    ADD "add" "stablehlo.add" Any same,
        [Tangent(|_, _, t| t.clone()), Tangent(|_, _, t| t.clone())],
        Some(|ct, a| Ok([for_linear(a, 0, || ct.clone()), for_linear(a, 1, || ct.clone())]));
    SUB "sub" "stablehlo.subtract" Number same,
        [Tangent(|_, _, t| t.clone()), Tangent(|_, _, t| -t)],
        Some(|ct, a| Ok([for_linear(a, 0, || ct.clone()), for_linear(a, 1, || -ct)]));
    MUL "mul" "stablehlo.multiply" Any same,
        [Tangent(|_, y, t| t * y), Tangent(|x, _, t| x * t)],
        Some(|ct, a| Ok(match (&a[0], &a[1]) {
            (Operand::Linear(_), Operand::NonLinear(y)) => [Some(ct * cast_to_reduced(ct, y)), None],
            (Operand::NonLinear(x), Operand::Linear(_)) => [None, Some(cast_to_reduced(ct, x) * ct)],
            _ => return Err(err!(NotImplemented, "transpose of a product of two linear values")
                .help("the function is not linear: use `vjp`, or capture one of the two factors")),
        }));
    DIV "div" "stablehlo.divide" Number same,
        [Tangent(|_, y, t| t / y), Factor(|_, y, out| -(out / y))],
        Some(|ct, a| Ok([Some(ct / cast_to_reduced(ct, a[1].value()?)), None]));
    REM "rem" "stablehlo.remainder" Ordered same,
        [Tangent(|_, _, t| t.clone()), Factor(|x, y, _| -crate::ops::lax::trunc(&(x / y)))], None;
    POW "pow" "stablehlo.power" Inexact same,
        [
            Factor(|x, y, _| y * POW.apply(x, &(y - 1))),
            // 0 to the power 0 is 1 with slope 0, not NaN.
            Factor(|x, _, out| out * LOG.apply(&where_(x.equal(0), 1, x).astype(x.dtype()))),
        ], None;
    ATAN2 "atan2" "stablehlo.atan2" Inexact same,
        [
            Factor(|x, y, _| INVERSE_PART.apply(&[y.clone(), x.clone()])),
            Factor(|x, y, _| -INVERSE_PART.apply(&[x.clone(), y.clone()])),
        ], None;
    MAX "max" "stablehlo.maximum" Real same,
        [Factor(chosen), Factor(|x, y, out| chosen(y, x, out))], None;
    MIN "min" "stablehlo.minimum" Real same,
        [Factor(chosen), Factor(|x, y, out| chosen(y, x, out))], None;
    NEXTAFTER "nextafter" "chlo.next_after" Float same, [Zero, Zero], None;
    POLYGAMMA "polygamma" "chlo.polygamma" Float same,
        [Zero, Factor(|n, x, _| POLYGAMMA.apply(&(n + 1), x))], None;
    ZETA "zeta" "chlo.zeta" Float same,
        [Factor(|s, q, _| super::special::zeta_slope(s, q)), Factor(|s, q, _| super::special::zeta_decay(s, q))], None;
    AND "and" "stablehlo.and" Bits same, [Zero, Zero], None;
    OR "or" "stablehlo.or" Bits same, [Zero, Zero], None;
    XOR "xor" "stablehlo.xor" Bits same, [Zero, Zero], None;
    SHIFT_LEFT "shift_left" "stablehlo.shift_left" Integer same, [Zero, Zero], None;
    SHIFT_RIGHT_LOGICAL "shift_right_logical" "stablehlo.shift_right_logical" Integer same, [Zero, Zero], None;
    SHIFT_RIGHT_ARITHMETIC "shift_right_arithmetic" "stablehlo.shift_right_arithmetic" Integer same, [Zero, Zero], None;
    COMPLEX "complex" "stablehlo.complex" Part |d| if d == DType::F64 { DType::Complex128 } else { DType::Complex64 },
        [
            Tangent(|_, y, t| COMPLEX.apply(t, &Array::zeros_of(&y.aval()))),
            Tangent(|x, _, t| COMPLEX.apply(&Array::zeros_of(&x.aval()), t)),
        ],
        Some(|ct, a| Ok([
            for_linear(a, 0, || super::unary::REAL.apply(ct)),
            for_linear(a, 1, || super::unary::IMAG.apply(&-ct)),
        ]));
}

/// Raises `x` to a constant integer power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IntegerPow(pub i32);

impl IntegerPow {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }
}

impl Primitive for IntegerPow {
    fn name(&self) -> &'static str {
        "integer_pow"
    }

    fn print_params(&self) -> String {
        format!("y={}", self.0)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn eager_form(&self, operand: &Aval) -> Option<EagerForm> {
        self.with_exponent_as_operand(operand)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Accepts::Number.check("integer_pow", args[0].dtype)?;
        if self.0 < 0 && !args[0].dtype.is_inexact() {
            return Err(err!(Type, "Integers cannot be raised to negative powers, got {} ** {}", args[0], self.0)
                .help("convert the base to a floating point type with `astype`"));
        }
        Ok(smallvec![args[0].clone()])
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

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        // Repeated squaring, which works for any integer power.
        let out = &outs[0];
        let mut n = self.0.unsigned_abs();
        let mut base = args[0];
        let mut product: Option<Value> = None;
        while n > 0 {
            if n & 1 == 1 {
                product = Some(match product {
                    Some(p) => cx.op("stablehlo.multiply", &[p, base], "", out),
                    None => base,
                });
            }
            n >>= 1;
            if n > 0 {
                base = cx.op("stablehlo.multiply", &[base, base], "", out);
            }
        }
        Ok(vec![match product {
            Some(p) if self.0 > 0 => p,
            _ => {
                let one = cx.constant(crate::dtype::Scalar::Int(1), out);
                product.map_or(one, |p| cx.op("stablehlo.divide", &[one, p], "", out))
            }
        }])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.apply(&args[0]);
        let tangent = tangents[0].as_ref().and_then(|t| match self.0 {
            0 => None,
            1 => Some(t.clone()),
            n => Some(t * (IntegerPow(n.saturating_sub(1)).apply(&args[0]) * n)),
        });
        Ok((smallvec![out], vec![tangent]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0]))
    }
}

/// A comparison with a boolean result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Compare {
    #[track_caller]
    pub fn apply(self, x: &Array, y: &Array) -> Array {
        bind1(self, &[x.clone(), y.clone()])
    }
}

impl Primitive for Compare {
    fn name(&self) -> &'static str {
        match self {
            Compare::Eq => "eq",
            Compare::Ne => "ne",
            Compare::Lt => "lt",
            Compare::Le => "le",
            Compare::Gt => "gt",
            Compare::Ge => "ge",
        }
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        matches!(self, Compare::Eq | Compare::Ne)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let accepts = if matches!(self, Compare::Eq | Compare::Ne) { Accepts::Any } else { Accepts::Real };
        elementwise_rules::dtype_of(self.name(), accepts, args)?;
        Ok(smallvec![elementwise_rules::shape_of(self.name(), args)?.with_dtype(DType::Bool)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.join()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = comparison(&self.name().to_uppercase(), cx.dtype(args[0]));
        Ok(elementwise_rules::lower_op(cx, "stablehlo.compare", args, &attrs, &outs[0]))
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0], &args[1])], vec![None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0], &args[1]))
    }
}

/// Selects elementwise: `select(which, on_false, on_true)`, where `which` is boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Select;

impl Select {
    #[track_caller]
    pub fn apply(self, which: &Array, on_false: &Array, on_true: &Array) -> Array {
        bind1(self, &[which.clone(), on_false.clone(), on_true.clone()])
    }
}

impl Primitive for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if args[0].dtype != DType::Bool {
            return Err(err!(Type, "select must have a boolean predicate, got {}", args[0])
                .help("compare it, as in `x.not_equal(0)`, or use `where_`"));
        }
        let dtype = elementwise_rules::dtype_of("select", Accepts::Any, &args[1..])?;
        let shape = elementwise_rules::shape_of("select", args)?.shape;
        Ok(smallvec![Aval { weak: args[1].weak && args[2].weak, ..Aval::new(dtype, shape) }])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.common(1..3, "select cases")?;
        // If the predicate is sharded and the cases are not, each device already holds all the elements that it selects
        // from.
        if let Ok(joined) = rule.join() {
            return Ok(joined);
        }
        Err(rule.error(
            format_args!("which must be scalar or have the same shardings as cases, got {}", rule.types()),
            "reshard the predicate to the sharding of the cases with `reshard(which, spec)`",
        ))
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial_of(&rule.args()[1..])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        with_addends(cx, args, &outs[0], |cx, args| {
            Ok(elementwise_rules::lower_op(cx, "stablehlo.select", &[args[0], args[2], args[1]], "", &outs[0])[0])
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.apply(&args[0], &args[1], &args[2]);
        // A zero of the operand's type keeps scalars scalars.
        let [x_t, y_t] =
            [1, 2].map(|i| tangents[i].clone().unwrap_or_else(|| Array::zeros_of(&args[i].aval().strip_weak_type())));
        let tangent = match (&tangents[1], &tangents[2]) {
            (None, None) => None,
            _ => Some(self.apply(&args[0], &x_t, &y_t)),
        };
        let tangent = tangent.map(|t| if t.shape() == out.shape() { t } else { t.broadcast_to(out.shape()) });
        Ok((smallvec![out], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None; 3]) };
        let which = args[0].value()?;
        // If the cotangent holds addends, the zero must be an addend too.
        let zero = if ct.aval_ref().and_then(Aval::sharding).is_some_and(Typed::is_partial) {
            Array::zeros_of(&ct.aval())
        } else {
            Array::literal(crate::dtype::Scalar::Int(0), ct.dtype(), false)
        };
        let on_false = args[1].is_linear().then(|| unspread(self.apply(which, ct, &zero), &args[1].aval()));
        let on_true = args[2].is_linear().then(|| unspread(self.apply(which, &zero, ct), &args[2].aval()));
        Ok(vec![None, on_false, on_true])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0], &args[1], &args[2]))
    }
}

/// Converts elements to a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Convert {
    pub dtype: DType,
    pub weak: bool,
}

impl Primitive for Convert {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn print_params(&self) -> String {
        format!("dtype={}{}", self.dtype, if self.weak { " weak" } else { "" })
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![Aval { dtype: self.dtype, weak: self.weak, ..args[0].clone() }])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        // The sum of rounded addends is not the rounded sum, so the operand must be reduced before it is rounded.
        let rounds = self.dtype == DType::Bool || rule.args()[0].dtype.is_inexact() && !self.dtype.is_inexact();
        if rounds { rule.keep_reduced() } else { rule.keep_partial() }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let from = cx.dtype(args[0]);
        let mut v = args[0];
        if from == self.dtype {
            return Ok(vec![v]);
        }
        if self.dtype == DType::Bool {
            let zero = cx.constant(Scalar::Int(0), &cx.aval(v));
            return Compare::Ne.lower(cx, &[v, zero], outs);
        }
        if from.is_complex() && !self.dtype.is_complex() {
            let real = Aval::new(from.real(), outs[0].shape.clone());
            v = cx.op("stablehlo.real", &[v], "", &real);
        }
        Ok(vec![cx.op("stablehlo.convert", &[v], "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(*self, args);
        let stripped = Convert { weak: self.weak && self.dtype.is_wide(), ..*self };
        let differentiable = self.dtype.is_inexact();
        let tangent = tangents[0].as_ref().filter(|_| differentiable).map(|t| bind1(stripped, std::slice::from_ref(t)));
        Ok((smallvec![out], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let to = args[0].aval().strip_weak_type();
        Ok(vec![cts[0].as_ref().map(|ct| convert(ct, to.dtype, to.weak))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| bind1(*self, args))
    }
}
