//! Elementwise functions of one array.

use shardax::{lax, numpy as np};

use super::{Case, Fun, one};

pub fn function(case: &Case) -> Option<Fun> {
    // The names are JAX's.
    match case.op.as_str() {
        "neg" => one(|x| np::negative(x)),
        "abs" => one(|x| np::abs(x)),
        "sign" => one(|x| np::sign(x)),
        "floor" => one(|x| np::floor(x)),
        "ceil" => one(|x| np::ceil(x)),
        "round" => match case.param("decimals").as_i64() {
            Some(decimals) => one(move |x| np::around(x, decimals as i32)),
            None => one(|x| np::round(x)),
        },
        "exp" => one(|x| np::exp(x)),
        "exp2" => one(|x| np::exp2(x)),
        "expm1" => one(|x| np::expm1(x)),
        "log" => one(|x| np::log(x)),
        "log1p" => one(|x| np::log1p(x)),
        "sqrt" => one(|x| np::sqrt(x)),
        "rsqrt" => one(|x| np::rsqrt(x)),
        "cbrt" => one(|x| np::cbrt(x)),
        "sin" => one(|x| np::sin(x)),
        "cos" => one(|x| np::cos(x)),
        "tan" => one(|x| np::tan(x)),
        "asin" => one(|x| np::arcsin(x)),
        "acos" => one(|x| np::arccos(x)),
        "atan" => one(|x| np::arctan(x)),
        "sinh" => one(|x| np::sinh(x)),
        "cosh" => one(|x| np::cosh(x)),
        "tanh" => one(|x| np::tanh(x)),
        "asinh" => one(|x| np::arcsinh(x)),
        "acosh" => one(|x| np::arccosh(x)),
        "atanh" => one(|x| np::arctanh(x)),
        "logistic" => one(|x| np::logistic(x)),
        "erf" => one(|x| np::erf(x)),
        "erfc" => one(|x| np::erfc(x)),
        "erf_inv" => one(|x| np::erf_inv(x)),
        "lgamma" => one(|x| np::lgamma(x)),
        "digamma" => one(|x| np::digamma(x)),
        "square" => one(|x| np::square(x)),
        "reciprocal" => one(|x| np::reciprocal(x)),
        "is_finite" => one(|x| np::isfinite(x)),
        "real" => one(|x| np::real(x)),
        "imag" => one(|x| np::imag(x)),
        "conj" => one(|x| np::conj(x)),
        "not" => one(|x| np::bitwise_not(x)),
        "reduce_precision" => {
            let bits = case.ints("bits");
            one(move |x| lax::reduce_precision(x, bits[0] as u32, bits[1] as u32))
        }
        "population_count" => one(|x| np::population_count(x)),
        "clz" => one(|x| np::clz(x)),
        _ => None,
    }
}
