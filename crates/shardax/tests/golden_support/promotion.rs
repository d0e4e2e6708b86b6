//! Type promotion, from `promotion.json`.
//!
//! JAX has two modes. shardax has one: arrays keep the dtype that they were made with, 64 bits included, as with
//! `jax_enable_x64`; plain numbers, and results without a dtype of their own, have 32 bits, as without it. So pairs of arrays
//! are compared with the table of the 64-bit mode, and so is all that has operands of 64 bits; a weak result, having the
//! width of a plain number, is narrowed. What has a plain number, and functions of one array, are compared with the
//! 32-bit mode.

use std::cell::RefCell;

use serde_json::Value;
use shardax::prelude::*;
use shardax::{nn, numpy as np};

use super::{dtype, golden_dir};

/// A dtype and whether it is weak.
type Type = (DType, bool);

const WEAK: [(&str, DType); 3] = [("i*", DType::I32), ("f*", DType::F32), ("c*", DType::Complex64)];

/// What differs deliberately: the result of a function of this type, and the reason.
fn different(function: &str, operand: &str) -> Option<(Option<Type>, &'static str)> {
    let ordered = ["argmax", "max", "maximum", "relu", "softmax"];
    match function {
        _ if ordered.contains(&function) && operand.starts_with('c') => Some((None, "complex numbers have no order")),
        "argmax" if operand.ends_with("64") => Some((Some((DType::I32, false)), "indices have 32 bits")),
        "sigmoid" if operand == "i*" => Some((Some((DType::F32, true)), "integers are converted, as by exp")),
        "sigmoid" if ["i64", "u64"].contains(&operand) => {
            Some((Some((DType::F64, false)), "integers are converted, as by exp"))
        }
        "sigmoid" if operand == "bool" || operand.starts_with(['i', 'u']) => {
            Some((Some((DType::F32, false)), "integers are converted, as by exp"))
        }
        _ => None,
    }
}

/// An array of two elements of this type.
fn operand(name: &str) -> Array {
    match WEAK.iter().find(|(weak, _)| *weak == name) {
        Some((_, DType::I32)) => Array::from(1).broadcast_to([2]),
        Some((_, DType::F32)) => Array::from(1.0).broadcast_to([2]),
        Some(_) => np::complex(1.0, 0.0).broadcast_to([2]),
        None => ones_dtype([2], dtype(name)),
    }
}

fn apply(function: &str, x: &Array) -> Option<Array> {
    Some(match function {
        "sum" => x.sum(..),
        "prod" => x.prod(..),
        "mean" => x.mean(..),
        "var" => x.var(..),
        "max" => x.max(..),
        "argmax" => x.argmax(0),
        "exp" => x.exp(),
        "sqrt" => x.sqrt(),
        "abs" => x.abs(),
        "square" => x.square(),
        "negative" => -x,
        "logsumexp" => x.logsumexp(..),
        "cumsum" => x.cumsum(0),
        "relu" => nn::relu(x),
        "sigmoid" => nn::sigmoid(x),
        "softmax" => nn::softmax(x, -1),
        "divide" => x / x,
        "floor_divide" => np::floor_divide(x, x),
        "power" => np::power(x, x),
        "add" => x + x,
        "subtract" => x - x,
        "maximum" => x.maximum(x),
        "matmul" => x.matmul(x),
        "arctan2" => np::arctan2(x, x),
        _ => return None,
    })
}

/// The type of a result; nothing where it is refused. Nothing is computed.
fn type_of(f: impl Fn() -> Array) -> Option<Type> {
    let found = RefCell::new(None);
    let traced = jit(|x: Array| {
        let y = f();
        *found.borrow_mut() = Some((y.dtype(), y.weak_type()));
        (x, y)
    });
    // The trace is what is wanted: an unused result is not computed.
    let made = vjp::<(Array,), _>(|x: Array| -> Result<Array> { traced.call(x).map(|(x, _)| x) }, 1.0f32);
    made.ok().and_then(|_| found.into_inner())
}

pub fn check() {
    let text = std::fs::read_to_string(golden_dir().join("promotion.json")).expect("promotion.json");
    let tables: Value = serde_json::from_str(&text).expect("promotion.json");
    let types: Vec<&str> = tables["x64"]["types"].as_array().expect("types").iter().filter_map(Value::as_str).collect();
    let in_x32 = |name: &str| tables["x32"]["functions"]["add"].get(name).is_some();
    let wanted = |entry: &Value| -> Option<Type> {
        let (name, weak) = (entry[0].as_str()?, entry[1].as_bool()?);
        let narrow = |d| match d {
            DType::I64 => DType::I32,
            DType::F64 => DType::F32,
            DType::Complex128 => DType::Complex64,
            d => d,
        };
        Some(if weak { (narrow(dtype(name)), true) } else { (dtype(name), false) })
    };
    let mut failures = Vec::new();
    let mut compare = |what: String, got: Option<Type>, want: Option<Type>| {
        if got != want {
            failures.push(format!("{what}: got {got:?}, want {want:?}"));
        }
    };
    for a in &types {
        for b in &types {
            let plain = a.ends_with('*') || b.ends_with('*');
            let table = if plain && in_x32(a) && in_x32(b) { "x32" } else { "x64" };
            let got = type_of(|| np::where_(true, operand(a), operand(b)));
            compare(format!("{a} with {b}"), got, wanted(&tables[table]["pairs"][a][b]));
        }
        let table = if in_x32(a) { "x32" } else { "x64" };
        for (f, results) in tables[table]["functions"].as_object().expect("functions") {
            if apply(f, &Array::from(1.0).broadcast_to([2])).is_none() {
                continue;
            }
            let got = type_of(|| apply(f, &operand(a)).expect("a function"));
            let want = different(f, a).map_or_else(|| wanted(&results[a]), |(want, _)| want);
            compare(format!("{f} of {a}"), got, want);
        }
    }
    assert!(failures.is_empty(), "{} failures in promotion:\n{}", failures.len(), failures.join("\n"));
}
