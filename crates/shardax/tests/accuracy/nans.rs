//! NaN in any operand is NaN in the result.

use shardax::prelude::*;
use shardax::scipy::stats::*;

use super::functions::{FUNCTIONS, Function};
use super::quick::{one_of, setup};

macro_rules! distributions {
    ($($path:ident::$function:ident($($argument:literal),+);)+) => {
        /// Distributions, and arguments inside of their support.
        const DISTRIBUTIONS: &[(&str, &[f32], Function)] = &[$((
            concat!(stringify!($path), "::", stringify!($function)),
            &[$($argument),+],
            |operands| distributions!(@call operands, $path::$function, [$($argument),+]),
        )),+];
    };
    (@call $operands:ident, $path:ident::$function:ident, [$a:literal, $b:literal]) => {
        $path::$function(&$operands[0], &$operands[1])
    };
    (@call $operands:ident, $path:ident::$function:ident, [$a:literal, $b:literal, $c:literal]) => {
        $path::$function(&$operands[0], &$operands[1], &$operands[2])
    };
    (@call $operands:ident, $path:ident::$function:ident, [$a:literal, $b:literal, $c:literal, $d:literal]) => {
        $path::$function(&$operands[0], &$operands[1], &$operands[2], &$operands[3])
    };
    (@call $operands:ident, $path:ident::$function:ident, [$a:literal, $b:literal, $c:literal, $d:literal, $e:literal]) => {
        $path::$function(&$operands[0], &$operands[1], &$operands[2], &$operands[3], &$operands[4])
    };
}

distributions! {
    bernoulli::logpmf(1.0, 0.3, 0.0);
    bernoulli::pmf(1.0, 0.3, 0.0);
    bernoulli::cdf(1.0, 0.3);
    bernoulli::ppf(0.4, 0.3);
    beta::logpdf(0.4, 2.0, 3.0, 0.0, 1.0);
    beta::pdf(0.4, 2.0, 3.0, 0.0, 1.0);
    beta::cdf(0.4, 2.0, 3.0, 0.0, 1.0);
    beta::logcdf(0.4, 2.0, 3.0, 0.0, 1.0);
    beta::sf(0.4, 2.0, 3.0, 0.0, 1.0);
    beta::logsf(0.4, 2.0, 3.0, 0.0, 1.0);
    betabinom::logpmf(2.0, 5.0, 2.0, 3.0, 0.0);
    betabinom::pmf(2.0, 5.0, 2.0, 3.0, 0.0);
    binom::logpmf(2.0, 5.0, 0.3, 0.0);
    binom::pmf(2.0, 5.0, 0.3, 0.0);
    cauchy::logpdf(0.4, 0.0, 1.0);
    cauchy::pdf(0.4, 0.0, 1.0);
    cauchy::cdf(0.4, 0.0, 1.0);
    cauchy::logcdf(0.4, 0.0, 1.0);
    cauchy::sf(0.4, 0.0, 1.0);
    cauchy::logsf(0.4, 0.0, 1.0);
    cauchy::ppf(0.4, 0.0, 1.0);
    cauchy::isf(0.4, 0.0, 1.0);
    chi2::logpdf(0.4, 3.0, 0.0, 1.0);
    chi2::pdf(0.4, 3.0, 0.0, 1.0);
    chi2::cdf(0.4, 3.0, 0.0, 1.0);
    chi2::logcdf(0.4, 3.0, 0.0, 1.0);
    chi2::sf(0.4, 3.0, 0.0, 1.0);
    chi2::logsf(0.4, 3.0, 0.0, 1.0);
    expon::logpdf(0.4, 0.0, 1.0);
    expon::pdf(0.4, 0.0, 1.0);
    expon::cdf(0.4, 0.0, 1.0);
    expon::logcdf(0.4, 0.0, 1.0);
    expon::sf(0.4, 0.0, 1.0);
    expon::logsf(0.4, 0.0, 1.0);
    expon::ppf(0.4, 0.0, 1.0);
    gamma::logpdf(0.4, 2.0, 0.0, 1.0);
    gamma::pdf(0.4, 2.0, 0.0, 1.0);
    gamma::cdf(0.4, 2.0, 0.0, 1.0);
    gamma::logcdf(0.4, 2.0, 0.0, 1.0);
    gamma::sf(0.4, 2.0, 0.0, 1.0);
    gamma::logsf(0.4, 2.0, 0.0, 1.0);
    gennorm::logpdf(0.4, 1.5);
    gennorm::pdf(0.4, 1.5);
    gennorm::cdf(0.4, 1.5);
    geom::logpmf(2.0, 0.3, 0.0);
    geom::pmf(2.0, 0.3, 0.0);
    gumbel_l::logpdf(0.4, 0.0, 1.0);
    gumbel_l::pdf(0.4, 0.0, 1.0);
    gumbel_l::cdf(0.4, 0.0, 1.0);
    gumbel_l::logcdf(0.4, 0.0, 1.0);
    gumbel_l::sf(0.4, 0.0, 1.0);
    gumbel_l::logsf(0.4, 0.0, 1.0);
    gumbel_l::ppf(0.4, 0.0, 1.0);
    gumbel_r::logpdf(0.4, 0.0, 1.0);
    gumbel_r::pdf(0.4, 0.0, 1.0);
    gumbel_r::cdf(0.4, 0.0, 1.0);
    gumbel_r::logcdf(0.4, 0.0, 1.0);
    gumbel_r::sf(0.4, 0.0, 1.0);
    gumbel_r::logsf(0.4, 0.0, 1.0);
    gumbel_r::ppf(0.4, 0.0, 1.0);
    laplace::logpdf(0.4, 0.0, 1.0);
    laplace::pdf(0.4, 0.0, 1.0);
    laplace::cdf(0.4, 0.0, 1.0);
    logistic::logpdf(0.4, 0.0, 1.0);
    logistic::pdf(0.4, 0.0, 1.0);
    logistic::cdf(0.4, 0.0, 1.0);
    logistic::sf(0.4, 0.0, 1.0);
    logistic::ppf(0.4, 0.0, 1.0);
    logistic::isf(0.4, 0.0, 1.0);
    nbinom::logpmf(2.0, 5.0, 0.3, 0.0);
    nbinom::pmf(2.0, 5.0, 0.3, 0.0);
    norm::logpdf(0.4, 0.0, 1.0);
    norm::pdf(0.4, 0.0, 1.0);
    norm::cdf(0.4, 0.0, 1.0);
    norm::logcdf(0.4, 0.0, 1.0);
    norm::sf(0.4, 0.0, 1.0);
    norm::logsf(0.4, 0.0, 1.0);
    norm::ppf(0.4, 0.0, 1.0);
    norm::isf(0.4, 0.0, 1.0);
    pareto::logpdf(2.0, 3.0, 0.0, 1.0);
    pareto::pdf(2.0, 3.0, 0.0, 1.0);
    pareto::cdf(2.0, 3.0, 0.0, 1.0);
    pareto::logcdf(2.0, 3.0, 0.0, 1.0);
    pareto::sf(2.0, 3.0, 0.0, 1.0);
    pareto::logsf(2.0, 3.0, 0.0, 1.0);
    pareto::ppf(0.4, 3.0, 0.0, 1.0);
    poisson::logpmf(2.0, 3.0, 0.0);
    poisson::pmf(2.0, 3.0, 0.0);
    poisson::cdf(2.0, 3.0, 0.0);
    poisson::entropy(3.0, 0.0);
    t::logpdf(0.4, 3.0, 0.0, 1.0);
    t::pdf(0.4, 3.0, 0.0, 1.0);
    truncnorm::logpdf(0.4, -1.0, 2.0, 0.0, 1.0);
    truncnorm::pdf(0.4, -1.0, 2.0, 0.0, 1.0);
    truncnorm::logcdf(0.4, -1.0, 2.0, 0.0, 1.0);
    truncnorm::cdf(0.4, -1.0, 2.0, 0.0, 1.0);
    truncnorm::logsf(0.4, -1.0, 2.0, 0.0, 1.0);
    truncnorm::sf(0.4, -1.0, 2.0, 0.0, 1.0);
    uniform::logpdf(0.4, 0.0, 1.0);
    uniform::pdf(0.4, 0.0, 1.0);
    uniform::cdf(0.4, 0.0, 1.0);
    uniform::ppf(0.4, 0.0, 1.0);
    vonmises::logpdf(0.4, 2.0);
    vonmises::pdf(0.4, 2.0);
    wrapcauchy::logpdf(0.4, 0.3);
    wrapcauchy::pdf(0.4, 0.3);
}

/// Rows of arguments: first the arguments themselves, then each with NaN in place of one of them.
fn arguments_with_nan(arguments: &[f32]) -> Vec<Array> {
    fn column(operand: usize, arguments: &[f32]) -> Array {
        let rows = (0..=arguments.len()).map(|row| if row == operand + 1 { f32::NAN } else { arguments[operand] });
        array(rows.collect::<Vec<_>>())
    }
    (0..arguments.len()).map(|operand: usize| column(operand, arguments)).collect()
}

/// Appends the names of operands in which NaN is lost.
fn find_lost(name: &str, arguments: &[f32], f: Function, lost: &mut Vec<String>) {
    let result = f(&arguments_with_nan(arguments)).to_f64_vec().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(result[0].is_finite(), "{name}{arguments:?} is {}", result[0]);
    for (operand, value) in result[1..].iter().enumerate() {
        if !value.is_nan() {
            lost.push(format!("{name}: operand {operand} is NaN, and the result {value}"));
        }
    }
}

#[test]
fn distributions_keep_nan() {
    setup();
    let mut lost = Vec::new();
    for (name, arguments, f) in DISTRIBUTIONS.iter().step_by(one_of(6)) {
        find_lost(name, arguments, *f, &mut lost);
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn functions_of_numbers_keep_nan() {
    setup();
    let mut lost = Vec::new();
    let functions = FUNCTIONS.iter().filter(|(name, ..)| !name.contains('.'));
    for (name, operands, f) in functions.step_by(one_of(6)) {
        let arguments: &[f32] = match (*name, operands) {
            ("arccosh" | "multigammaln", _) => &[2.5],
            (_, 1) => &[0.5],
            (_, 2) => &[2.5, 0.5],
            _ => &[2.5, 0.5, 0.5],
        };
        find_lost(name, arguments, *f, &mut lost);
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}
