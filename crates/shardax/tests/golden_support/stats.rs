//! Distributions, ranks and density estimates of `scipy::stats`.

use shardax::prelude::*;
use shardax::scipy::stats::{self, Bandwidth, RankMethod};

use super::{Case, Fun, many, one};

/// The functions of one distribution and number of operands.
macro_rules! functions {
    ($op:expr; $($module:ident: $($f:ident)+ / $n:tt;)*) => {
        match $op {
            $($(concat!(stringify!($module), "_", stringify!($f)) => Some(functions!($module $f $n)),)+)*
            _ => None,
        }
    };
    ($module:ident $f:ident 2) => { |xs: &[Array]| stats::$module::$f(&xs[0], &xs[1]) };
    ($module:ident $f:ident 3) => { |xs: &[Array]| stats::$module::$f(&xs[0], &xs[1], &xs[2]) };
    ($module:ident $f:ident 4) => { |xs: &[Array]| stats::$module::$f(&xs[0], &xs[1], &xs[2], &xs[3]) };
    ($module:ident $f:ident 5) => { |xs: &[Array]| stats::$module::$f(&xs[0], &xs[1], &xs[2], &xs[3], &xs[4]) };
}

type Distribution = fn(&[Array]) -> Array;

fn distribution(op: &str) -> Option<Distribution> {
    // The number after the slash is the number of operands.
    functions! { op;
        bernoulli: logpmf pmf / 3;
        bernoulli: cdf ppf / 2;
        beta: logpdf pdf cdf logcdf sf logsf / 5;
        betabinom: logpmf pmf / 5;
        binom: logpmf pmf / 4;
        cauchy: logpdf pdf cdf logcdf sf logsf ppf isf / 3;
        chi2: logpdf pdf cdf logcdf sf logsf / 4;
        dirichlet: logpdf pdf / 2;
        expon: logpdf pdf cdf logcdf sf logsf ppf / 3;
        gamma: logpdf pdf cdf logcdf sf logsf / 4;
        gennorm: logpdf pdf cdf / 2;
        geom: logpmf pmf / 3;
        gumbel_l: logpdf pdf cdf logcdf sf logsf ppf / 3;
        gumbel_r: logpdf pdf cdf logcdf sf logsf ppf / 3;
        laplace: logpdf pdf cdf / 3;
        logistic: logpdf pdf cdf sf ppf isf / 3;
        multinomial: logpmf pmf / 3;
        multivariate_normal: logpdf pdf / 3;
        nbinom: logpmf pmf / 4;
        norm: logpdf / 3;
        pareto: logpdf pdf cdf logcdf sf logsf ppf / 4;
        poisson: logpmf pmf cdf / 3;
        poisson: entropy / 2;
        t: logpdf pdf / 4;
        truncnorm: logpdf pdf cdf logcdf sf logsf / 5;
        uniform: logpdf pdf cdf ppf / 3;
        vonmises: logpdf pdf / 2;
        wrapcauchy: logpdf pdf / 2;
    }
}

pub fn function(case: &Case) -> Option<Fun> {
    if let Some(f) = distribution(&case.op) {
        return many(move |xs| Ok(vec![f(xs)]));
    }
    match case.op.as_str() {
        // The gradients with respect to the first and the last operand.
        "slopes" => {
            let f = distribution(case.text("of"))?;
            many(move |xs| {
                let (last, middle) = (xs.len() - 1, xs.to_vec());
                let sum = move |x: Array, y: Array| {
                    let mut shape = middle.clone();
                    (shape[0], shape[last]) = (x, y);
                    f(&shape).sum(..)
                };
                let (x, y) = grad(sum).argnums((Arg::<0>, Arg::<1>)).call((&xs[0], &xs[last]))?;
                Ok(vec![x, y])
            })
        }
        "rankdata" => {
            let method = match case.text("method") {
                "average" => RankMethod::Average,
                "min" => RankMethod::Min,
                "max" => RankMethod::Max,
                "dense" => RankMethod::Dense,
                _ => RankMethod::Ordinal,
            };
            match case.param("axis").as_i64() {
                Some(axis) => one(move |x| stats::rankdata(x, method, axis as i32)),
                None => one(move |x| stats::rankdata(x, method, ..)),
            }
        }
        "mode" => {
            let axis = case.param("axis").as_i64();
            many(move |xs| {
                let result = match axis {
                    Some(axis) => stats::mode(&xs[0], axis as i32)?,
                    None => stats::mode(&xs[0], ..)?,
                };
                Ok(vec![result.mode, result.count])
            })
        }
        "sem" => {
            let ddof = case.int("ddof") as usize;
            match case.param("axis").as_i64() {
                Some(axis) => one(move |x| stats::sem(x, axis as i32, ddof)),
                None => one(move |x| stats::sem(x, .., ddof)),
            }
        }
        "kde" => {
            let (weighted, bandwidth) = (case.flag("weighted"), case.param("bandwidth").clone());
            many(move |xs| {
                let bandwidth = match (bandwidth.as_str(), bandwidth.as_f64()) {
                    (Some(_), _) => Bandwidth::Silverman,
                    (_, Some(factor)) => factor.into(),
                    _ => Bandwidth::Scott,
                };
                let k = stats::gaussian_kde(&xs[0], bandwidth, weighted.then_some(&xs[1]))?;
                Ok(vec![k.pdf(&xs[2]), k.logpdf(&xs[2]), k.covariance, k.neff])
            })
        }
        "kde_integrals" => many(|xs| {
            let k = stats::gaussian_kde(&xs[0], Bandwidth::Scott, None)?;
            let other_kde = stats::gaussian_kde(&xs[1], Bandwidth::Scott, None)?;
            Ok(vec![k.integrate_gaussian(&xs[2], &xs[3]), k.integrate_kde(&other_kde)])
        }),
        "kde_box" => many(|xs| {
            let k = stats::gaussian_kde(&xs[0], Bandwidth::Scott, None)?;
            Ok(vec![k.integrate_box_1d(&xs[1], &xs[2])])
        }),
        "kde_resample" => many(|xs| {
            let k = stats::gaussian_kde(&xs[0], Bandwidth::Scott, None)?;
            Ok(vec![k.resample(&xs[1], [4])])
        }),
        _ => None,
    }
}
