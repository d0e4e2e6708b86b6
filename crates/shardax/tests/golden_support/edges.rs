//! Every function at the edges of its dtypes.

use shardax::lax::{self, GatherScatterMode, Padding, Window};
use shardax::linalg::{self, NormOrder};
use shardax::prelude::*;
use shardax::{nn, numpy as np};

use super::{Case, Fun, many, one, two};

macro_rules! table {
    ($op:expr, $of:ident; $($module:ident: $($name:ident)*;)*) => {
        match $op {
            $($(stringify!($name) => return $of($module::$name),)*)*
            _ => {}
        }
    };
}

fn operand(f: fn(Array) -> Array) -> Option<Fun> {
    one(move |x| f(x.clone()))
}

fn operands(f: fn(Array, Array) -> Array) -> Option<Fun> {
    two(move |x, y| f(x.clone(), y.clone()))
}

pub fn function(case: &Case) -> Option<Fun> {
    if let Some(op) = case.op.strip_prefix("rows ") {
        return rows(case, op);
    }
    named(&case.op).or_else(|| with_parameters(case))
}

/// The function of this name.
pub fn named(op: &str) -> Option<Fun> {
    table! { op, operand;
        np: negative abs sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt sin cos tan arcsin arccos
            arctan sinh cosh tanh arcsinh arccosh arctanh logistic erf erfc erf_inv lgamma digamma floor ceil round trunc
            isfinite isnan isinf bitwise_not logical_not population_count clz real imag conj;
    }
    table! { op, operand;
        nn: relu relu6 gelu gelu_exact silu sigmoid log_sigmoid softplus soft_sign hard_tanh hard_sigmoid selu mish;
        linalg: eigvalsh cholesky det inv;
    }
    table! { op, operands;
        np: add subtract multiply divide floor_divide remainder fmod power arctan2 maximum minimum logaddexp nextafter
            left_shift right_shift bitwise_and bitwise_or bitwise_xor equal not_equal less less_equal greater greater_equal;
    }
    match op {
        "elu" => one(|x| nn::elu(x, 1.0)),
        "celu" => one(|x| nn::celu(x, 1.0)),
        "leaky_relu" => one(|x| nn::leaky_relu(x, 0.01)),
        _ => None,
    }
}

fn with_parameters(case: &Case) -> Option<Fun> {
    // Functions that have a number or an option besides the operands.
    match case.op.as_str() {
        "integer_pow" => {
            let n = case.int("n") as i32;
            one(move |x| np::integer_pow(x, n))
        }
        "clip" => one(|x| np::clip(x, -1, 2)),
        "clamp" => one(|x| lax::clamp(-1, x, 2)),
        "where_" => two(|x, y| where_(x.greater(y), x, y)),
        "around" => one(|x| np::around(x, 1)),
        "astype" => {
            let dtype = case.dtype("dtype")?;
            one(move |x| x.astype(dtype))
        }
        "get" => {
            let indices = places(case);
            one(move |x| x.get(&indices))
        }
        "take" => {
            let (at, mode) = (places(case), mode(case));
            one(move |x| x.take_mode(&at, 0, mode))
        }
        "at" => {
            let kind = case.text("kind").to_owned();
            two(move |x, y| match kind.as_str() {
                "add" => x.at(array([1, 2, 2])).add(y),
                "multiply" => x.at(array([1, 2, 3])).unique_indices().multiply(y),
                "max" => x.at(array([1, 2, 2])).max(y),
                "min" => x.at(array([1, 2, 2])).min(y),
                _ => x.at(array([1, 2, 2])).set(y),
            })
        }
        "max_pool" => {
            one(|x| lax::reduce_window_max(x, Window::new([1, 3, 1]).strides([1, 2, 1]).padding(Padding::Same)))
        }
        "conv" => two(|x, k| nn::conv(x, k, [2], Padding::Same)),
        "slogdet" => many(|x| {
            let (sign, log) = linalg::slogdet(&x[0]);
            Ok(vec![sign, log])
        }),
        "solve" => one(|a| linalg::solve(a, ones([a.shape()[0]]))),
        _ => None,
    }
}

fn places(case: &Case) -> Array {
    let indices: Vec<i32> = case.ints("at").into_iter().map(|i| i as i32).collect();
    Array::from_slice(&indices, &[indices.len()]).expect("places")
}

fn mode(case: &Case) -> GatherScatterMode {
    match case.text("mode") {
        "clip" => GatherScatterMode::Clip,
        _ => GatherScatterMode::FillOrDrop,
    }
}

/// Functions along the last of two axes.
fn rows(case: &Case, op: &str) -> Option<Fun> {
    if let Some(order) = op.strip_prefix("norm_") {
        let order = match order {
            "none" => NormOrder::Default,
            p => NormOrder::P(p.parse().ok()?),
        };
        return one(move |x| linalg::norm(x, order, 1));
    }
    let ddof = case.param("ddof").as_u64().unwrap_or(0) as usize;
    match op {
        "var_ddof" => one(move |x| x.var_ddof(1, ddof)),
        "std_ddof" => one(move |x| x.std_ddof(1, ddof)),
        _ => {
            let op = op.to_owned();
            many(move |xs| Ok(vec![row(&op, &xs[0]).unwrap_or_else(|| panic!("no function {op}"))]))
        }
    }
}

/// The function of this name along the last of two axes.
pub fn row(op: &str, x: &Array) -> Option<Array> {
    // The functions of rows for which special values are compared.
    Some(match op {
        "sum" => x.sum(1),
        "prod" => x.prod(1),
        "max" => x.max(1),
        "min" => x.min(1),
        "mean" => x.mean(1),
        "var" => x.var(1),
        "std" => x.std(1),
        "logsumexp" => x.logsumexp(1),
        "softmax" => nn::softmax(x, 1),
        "log_softmax" => nn::log_softmax(x, 1),
        "any" => x.any(1),
        "all" => x.all(1),
        "argmax" => x.argmax(1),
        "argmin" => x.argmin(1),
        "sort" => x.sort(1),
        "argsort" => x.argsort(1),
        "cumsum" => x.cumsum(1),
        "cumprod" => x.cumprod(1),
        "cummax" => x.cummax(1),
        "cummin" => x.cummin(1),
        "cumlogsumexp" => lax::cumlogsumexp(x, 1),
        "cumlogsumexp_reverse" => lax::CumulativeOptions::new().reverse(true).cumlogsumexp(x, 1),
        _ => return None,
    })
}
