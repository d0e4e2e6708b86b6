//! Reductions, cumulative reductions and softmax.

use shardax::lax::{self, CumulativeOptions};
use shardax::nn;
use shardax::prelude::*;

use super::{Case, Fun, one, two};

pub fn function(case: &Case) -> Option<Fun> {
    match (case.op.as_str(), case.name.as_str()) {
        (_, "sum_f32_where") => two(|x, m| where_(m, x, 0).sum(0)),
        (_, "mean_f32_where") => two(|x, m| x.mean(over(..).mask(m))),
        (_, "cumsum_f32_flat") => one(|x| x.cumsum(..)),
        ("argmax" | "argmin", _) => arg_extreme(case),
        ("reduce", _) => one(|x| lax::reduce(x, 0.0, |a, b| &a + &b + &a * &b, [0, 2])),
        ("softmax" | "log_softmax", _) => softmax(case),
        (op, _) if op.starts_with("cum") => cumulative(case),
        _ => reduction(case),
    }
}

macro_rules! reductions {
    ($case:expr, $axes:expr; $($name:literal $plain:ident $kept:ident)*) => {
        match ($case.op.as_str(), $case.flag("keepdims")) {
            $(
                ($name, false) => one(move |x| match &$axes {
                    None => x.$plain(..),
                    Some(axes) => x.$plain(axes.as_slice()),
                }),
                ($name, true) => one(move |x| match &$axes {
                    None => x.$kept(..),
                    Some(axes) => x.$kept(axes.as_slice()),
                }),
            )*
            _ => None,
        }
    };
}

fn reduction(case: &Case) -> Option<Fun> {
    let axes = (!case.param("axes").is_null()).then(|| case.axes("axes"));
    if let Some(ddof) = case.param("ddof").as_u64() {
        let (ddof, axes) = (ddof as usize, axes?);
        return match case.op.as_str() {
            "var" => one(move |x| x.var_ddof(axes.as_slice(), ddof)),
            _ => one(move |x| x.std_ddof(axes.as_slice(), ddof)),
        };
    }
    reductions! { case, axes;
        "sum" sum sum_keepdims
        "prod" prod prod_keepdims
        "max" max max_keepdims
        "min" min min_keepdims
        "mean" mean mean_keepdims
        "var" var var_keepdims
        "std" std std_keepdims
        "logsumexp" logsumexp logsumexp_keepdims
        "any" any any_keepdims
        "all" all all_keepdims
    }
}

fn arg_extreme(case: &Case) -> Option<Fun> {
    let (max, keep) = (case.op == "argmax", case.flag("keepdims"));
    let axis = case.param("axis").as_i64().map(|a| a as i32);
    one(move |x| {
        let result = match axis {
            None if max => x.argmax(..),
            None => x.argmin(..),
            Some(a) if max => x.argmax(a),
            Some(a) => x.argmin(a),
        };
        if keep { result.expand_dims(axis.expect("an axis to keep")) } else { result }
    })
}

fn cumulative(case: &Case) -> Option<Fun> {
    let (axis, reverse) = (case.int("axis") as usize, case.flag("reverse"));
    let f = match case.op.as_str() {
        "cumsum" => |options: CumulativeOptions, x: &Array, axis| options.cumsum(x, axis),
        "cumprod" => |options: CumulativeOptions, x: &Array, axis| options.cumprod(x, axis),
        "cummax" => |options: CumulativeOptions, x: &Array, axis| options.cummax(x, axis),
        "cummin" => |options: CumulativeOptions, x: &Array, axis| options.cummin(x, axis),
        "cumlogsumexp" => |options: CumulativeOptions, x: &Array, axis| options.cumlogsumexp(x, axis),
        _ => return None,
    };
    // Booleans are counted by the function of NumPy alone.
    let bools = case.host("in/0")?.dtype == DType::Bool;
    one(move |x| if bools { x.cumsum(axis as i32) } else { f(CumulativeOptions::new().reverse(reverse), x, axis) })
}

fn softmax(case: &Case) -> Option<Fun> {
    let log = case.op == "log_softmax";
    let axes = match case.param("axis").as_i64() {
        Some(axis) => vec![axis as i32],
        None => case.axes("axis"),
    };
    one(move |x| if log { nn::log_softmax(x, axes.as_slice()) } else { nn::softmax(x, axes.as_slice()) })
}
