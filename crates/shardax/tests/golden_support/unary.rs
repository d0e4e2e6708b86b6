//! Elementwise functions of one array.

use shardax::numpy as np;

use super::{Case, Fun, one};

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "neg" => one(np::negative),
        "abs" => one(np::abs),
        "sign" => one(np::sign),
        "floor" => one(np::floor),
        "ceil" => one(np::ceil),
        "round" => match case.param("decimals").as_i64() {
            Some(decimals) => one(move |x| np::around(x, decimals as i32)),
            None => one(np::round),
        },
        "exp" => one(np::exp),
        "exp2" => one(np::exp2),
        "expm1" => one(np::expm1),
        "log" => one(np::log),
        "log1p" => one(np::log1p),
        "sqrt" => one(np::sqrt),
        "rsqrt" => one(np::rsqrt),
        "cbrt" => one(np::cbrt),
        "sin" => one(np::sin),
        "cos" => one(np::cos),
        "tan" => one(np::tan),
        "asin" => one(np::arcsin),
        "acos" => one(np::arccos),
        "atan" => one(np::arctan),
        "sinh" => one(np::sinh),
        "cosh" => one(np::cosh),
        "tanh" => one(np::tanh),
        "asinh" => one(np::arcsinh),
        "acosh" => one(np::arccosh),
        "atanh" => one(np::arctanh),
        "logistic" => one(np::logistic),
        "erf" => one(np::erf),
        "erfc" => one(np::erfc),
        "erf_inv" => one(np::erf_inv),
        "lgamma" => one(np::lgamma),
        "digamma" => one(np::digamma),
        "square" => one(np::square),
        "reciprocal" => one(np::reciprocal),
        "is_finite" => one(np::isfinite),
        "real" => one(np::real),
        "imag" => one(np::imag),
        "conj" => one(np::conj),
        "not" => one(np::bitwise_not),
        "population_count" => one(np::population_count),
        "clz" => one(np::clz),
        _ => None,
    }
}
