//! Elementwise functions of two arrays, or of an array and a plain number.

use shardax::array::ArrayLike;
use shardax::prelude::*;
use shardax::{lax, numpy as np};

use super::{Case, Fun, one, two};

pub fn function(case: &Case) -> Option<Fun> {
    // A plain number on the right is weakly typed.
    match case.param("right") {
        serde_json::Value::Number(n) if n.is_i64() => {
            let n = n.as_i64()?;
            let op = case.op.clone();
            return one(move |x| apply(&op, x, n).expect("an operation with a plain number"));
        }
        serde_json::Value::Number(n) => {
            let n = n.as_f64()?;
            let op = case.op.clone();
            return one(move |x| apply(&op, x, n).expect("an operation with a plain number"));
        }
        _ => {}
    }
    let n = case.param("n").as_i64();
    match case.op.as_str() {
        "integer_pow" => one(move |x| np::integer_pow(x, n.unwrap_or(0) as i32)),
        "atan2" => two(|x, y| np::arctan2(x, y)),
        // The golden cases `div` of integers are `lax.div`, which truncates; `true_divide` and plain numbers divide.
        "div" if case.host("out/0")?.dtype.is_integer() => two(|x, y| lax::div(x, y)),
        "rem" => two(|x, y| lax::rem(x, y)),
        "mod" => two(|x, y| np::remainder(x, y)),
        "max" => two(|x, y| np::maximum(x, y)),
        "min" => two(|x, y| np::minimum(x, y)),
        "floor_divide" => two(|x, y| np::floor_divide(x, y)),
        "eq" => two(|x, y| np::equal(x, y)),
        "ne" => two(|x, y| np::not_equal(x, y)),
        "lt" => two(|x, y| np::less(x, y)),
        "le" => two(|x, y| np::less_equal(x, y)),
        "gt" => two(|x, y| np::greater(x, y)),
        "ge" => two(|x, y| np::greater_equal(x, y)),
        "and" => two(|x, y| np::bitwise_and(x, y)),
        "or" => two(|x, y| np::bitwise_or(x, y)),
        "xor" => two(|x, y| np::bitwise_xor(x, y)),
        "shift_left" => two(|x, y| np::left_shift(x, y)),
        "shift_right_arithmetic" => two(|x, y| lax::shift_right_arithmetic(x, y)),
        "shift_right_logical" => two(|x, y| lax::shift_right_logical(x, y)),
        "nextafter" => two(|x, y| np::nextafter(x, y)),
        "complex" => two(|x, y| np::complex(x, y)),
        op => {
            let op = op.to_owned();
            let _ = apply(&op, &array(1.0f32), 1.0)?;
            two(move |x, y| apply(&op, x, y).expect("an operation"))
        }
    }
}

/// The operations that take plain numbers.
fn apply(op: &str, x: &Array, y: impl ArrayLike) -> Option<Array> {
    Some(match op {
        "add" => x + y,
        "sub" => x - y,
        "mul" => x * y,
        "div" => x / y,
        "pow" => np::power(x, y),
        _ => return None,
    })
}
