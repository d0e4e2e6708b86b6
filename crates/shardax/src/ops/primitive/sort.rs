//! Sort: orders several arrays by the first ones, the keys, along a dimension.

use smallvec::{SmallVec, smallvec};

use super::binary::{AND, Compare, SHIFT_RIGHT_ARITHMETIC, Select, XOR};
use super::bitcast::BitcastConvert;
use super::gather::{GatherScatterMode, take_along};
use super::reduce::highest;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, bail, err};

/// `sort(x, y, …)`: all operands in ascending order of the first `num_keys`, compared lexicographically.
///
/// Among floats -0 equals 0 (a single sorted array has -0 first) and NaN comes last; complex numbers compare by real,
/// then imaginary part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sort {
    pub operands: usize,
    pub dimension: usize,
    pub num_keys: usize,
    pub is_stable: bool,
}

impl Sort {
    #[track_caller]
    pub fn apply(self, args: &[Array]) -> Outputs {
        bind(std::sync::Arc::new(self), args)
    }
}

/// Canonicalizes a scalar for comparison, so that the total order is the documented one.
fn comparable(cx: &mut Lowering, v: Value) -> Value {
    let scalar = cx.aval(v);
    if !scalar.dtype.is_float() {
        return v;
    }
    let flag = Aval::scalar(DType::Bool);
    let zero = cx.constant(Scalar::Int(0), &scalar);
    let is_zero = compare(cx, "EQ", "FLOAT", v, zero, &flag);
    let plus_zero = cx.op("stablehlo.select", &[is_zero, zero, v], "", &scalar);
    let is_nan = compare(cx, "NE", "FLOAT", v, v, &flag);
    let nan = cx.constant(Scalar::float(f64::NAN), &scalar);
    cx.op("stablehlo.select", &[is_nan, nan, plus_zero], "", &scalar)
}

fn compare(cx: &mut Lowering, direction: &str, kind: &str, x: Value, y: Value, flag: &Aval) -> Value {
    let attrs = format!(
        "comparison_direction = #stablehlo<comparison_direction {direction}>, compare_type = #stablehlo<comparison_type {kind}>"
    );
    cx.op("stablehlo.compare", &[x, y], &attrs, flag)
}

/// Converts floats to integers with the same order, NaN last.
fn ordered_bits(x: &Array) -> Array {
    // float32 has all narrow numbers.
    if x.dtype().is_narrow() {
        return ordered_bits(&x.astype(DType::F32));
    }
    let nan = Array::literal(Scalar::float(f64::NAN), x.dtype(), false);
    let x = Select.apply(&Compare::Ne.apply(x, x), x, &nan);
    let dtype = match x.dtype().bits() {
        16 => DType::I16,
        32 => DType::I32,
        _ => DType::I64,
    };
    flip_negative(&BitcastConvert { dtype }.apply(&x))
}

fn from_ordered_bits(bits: &Array, dtype: DType) -> Array {
    if dtype.is_narrow() {
        return from_ordered_bits(bits, DType::F32).astype(dtype);
    }
    BitcastConvert { dtype }.apply(&flip_negative(bits))
}

/// The magnitude of a negative float decreases as an integer: flips its bits except the sign.
fn flip_negative(bits: &Array) -> Array {
    let [shift, magnitude_bits] = [bits.dtype().bits() as i128 - 1, highest(bits.dtype()).to_i128()]
        .map(|v| Array::literal(Scalar::Int(v), bits.dtype(), false));
    let sign = SHIFT_RIGHT_ARITHMETIC.apply(bits, &shift);
    XOR.apply(bits, &AND.apply(&sign, &magnitude_bits))
}

/// The components that a key is compared by.
fn parts(cx: &mut Lowering, key: Value) -> SmallVec<[Value; 2]> {
    let dtype = cx.dtype(key);
    if !dtype.is_complex() {
        return smallvec![comparable(cx, key)];
    }
    let real = Aval::scalar(dtype.real());
    ["stablehlo.real", "stablehlo.imag"]
        .into_iter()
        .map(|op| {
            let part = cx.op(op, &[key], "", &real);
            comparable(cx, part)
        })
        .collect()
}

/// Compares `x` and `y` at the first key where they differ.
fn before(cx: &mut Lowering, keys: &[(Value, Value)]) -> Result<Value> {
    let flag = Aval::scalar(DType::Bool);
    // A complex key is two keys: its real part, then its imaginary part.
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for &(x, y) in keys {
        let (x, y) = (parts(cx, x), parts(cx, y));
        pairs.extend(x.into_iter().zip(y));
    }
    // From the last key to the first: `x < y`, or `x == y` and the result for the later keys.
    let mut result: Option<Value> = None;
    for (x, y) in pairs.into_iter().rev() {
        let kind = match cx.dtype(x).category() {
            Category::Float | Category::Complex => "TOTALORDER",
            Category::Signed => "SIGNED",
            Category::Unsigned | Category::Bool | Category::Key => "UNSIGNED",
        };
        let less = compare(cx, "LT", kind, x, y, &flag);
        result = Some(match result {
            None => less,
            Some(rest) => {
                let equal = compare(cx, "EQ", kind, x, y, &flag);
                let later = cx.op("stablehlo.and", &[equal, rest], "", &flag);
                cx.op("stablehlo.or", &[less, later], "", &flag)
            }
        });
    }
    result.ok_or_else(|| err!(Value, "sort needs at least one key").help("pass a number of keys of at least 1"))
}

impl Primitive for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn output_count(&self) -> usize {
        self.operands
    }

    fn print_params(&self) -> String {
        format!("dimension={} num_keys={} is_stable={}", self.dimension, self.num_keys, self.is_stable)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if self.num_keys == 0 || self.num_keys > args.len() || self.operands != args.len() {
            return Err(err!(Value, "sort of {} arrays cannot have {} keys", args.len(), self.num_keys)
                .help("use from 1 to as many keys as there are arrays"));
        }
        if self.dimension >= args[0].rank() {
            bail!(Index, "sort dimension {} is out of bounds for {}", self.dimension, args[0]);
        }
        if let Some(other) = args.iter().find(|a| a.shape != args[0].shape) {
            return Err(err!(Type, "sort needs arrays of one shape, got {} and {other}", args[0])
                .help("operands are sorted together, so they must have the same shape"));
        }
        Ok(args.iter().cloned().collect())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.check_unsharded(0, [self.dimension])?;
        for i in 1..rule.args().len() {
            rule.check_unsharded(i, [self.dimension])?;
        }
        rule.join()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if self.operands == 1 && cx.dtype(args[0]).is_float() {
            // Integers compare several times as fast.
            return cx.expand(args, |args| {
                let sorted = self.apply(&[ordered_bits(&args[0])]);
                Ok(vec![from_ordered_bits(&sorted[0], args[0].dtype())])
            });
        }
        let scalars: Vec<Aval> =
            args.iter().flat_map(|&v| [Aval::scalar(cx.dtype(v)), Aval::scalar(cx.dtype(v))]).collect();
        let region = cx.region(&scalars, |cx, values| {
            let keys: Vec<(Value, Value)> = (0..self.num_keys).map(|k| (values[2 * k], values[2 * k + 1])).collect();
            Ok(vec![before(cx, &keys)?])
        })?;
        let attrs = format!("dimension = {} : i64, is_stable = {}", self.dimension, self.is_stable);
        Ok(cx.op_with("stablehlo.sort", args, &attrs, vec![region], outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        // The source index of each element, sorted together.
        let shape = args[0].shape();
        let dtype = DType::for_indices(&shape[self.dimension..=self.dimension]);
        let from = crate::ops::lax::iota(dtype, shape, self.dimension).sharded_as(&args[0].aval());
        let mut operands = args.to_vec();
        operands.push(from);
        let mut outs = Sort { operands: self.operands + 1, ..*self }.apply(&operands);
        let Some(from) = outs.pop() else { bail!(Runtime, "internal error: sort has no operands; please report this") };
        let mode = GatherScatterMode::PromiseInBounds;
        let tangents =
            tangents.iter().map(|t| t.as_ref().map(|t| take_along(t, &from, self.dimension, mode, true))).collect();
        Ok((outs, tangents))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let moved: Vec<Array> = args.iter().zip(dims).map(|(a, d)| axis.moved(a, *d, 0)).collect();
        let outs = Sort { dimension: self.dimension + 1, ..*self }.apply(&moved);
        Ok((outs, vec![Some(0); self.operands]))
    }
}
