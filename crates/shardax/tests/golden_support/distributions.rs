//! Distributions with parameters.

use shardax::prelude::*;

use super::{Case, Fun, many};

pub fn function(case: &Case) -> Option<Fun> {
    // Parameters of the case; arrays among the inputs replace numbers.
    let shape: Vec<usize> = case.ints("shape").into_iter().map(|i| i as usize).collect();
    let dtype = case.dtype("dtype").unwrap_or(DType::F32);
    fn number(name: &str, case: &Case) -> f64 {
        case.param(name).as_f64().unwrap_or(f64::NAN)
    }
    let (p, d, loc, scale) =
        (number("p", case), number("d", case) as usize, number("loc", case), number("scale", case));
    macro_rules! drawn {
        (|$k:ident, $p:ident, $s:ident| $draw:expr) => {
            many(move |xs| {
                let ($k, $p, $s) = (&xs[0], &xs[1..], shape.clone());
                Ok(vec![$draw])
            })
        };
    }
    match case.op.as_str() {
        "gamma" => drawn!(|k, p, s| random::gamma_dtype(k, &p[0], s, dtype)),
        "loggamma" => drawn!(|k, p, s| random::loggamma_dtype(k, &p[0], s, dtype)),
        "gamma_vmapped" => many(|xs| {
            let per_key = vmap(|k: Array, a: Array| random::gamma(k, a, [2]));
            Ok(vec![per_key.call((random::split(&xs[0], 3), xs[1].clone()))?])
        }),
        "beta" => drawn!(|k, p, s| random::beta_dtype(k, &p[0], &p[1], s, dtype)),
        "chisquare" => drawn!(|k, p, s| random::chisquare_dtype(k, &p[0], s, dtype)),
        "gamma_approximate" => drawn!(|k, p, s| random::gamma_approximate_dtype(k, &p[0], s, dtype)),
        "loggamma_approximate" => drawn!(|k, p, s| random::loggamma_approximate_dtype(k, &p[0], s, dtype)),
        "chisquare_approximate" => drawn!(|k, p, s| random::chisquare_approximate_dtype(k, &p[0], s, dtype)),
        "beta_approximate" => drawn!(|k, p, s| random::beta_approximate_dtype(k, &p[0], &p[1], s, dtype)),
        "poisson_approximate" => {
            let dtype = case.dtype("dtype").unwrap_or(DType::I32);
            drawn!(|k, p, s| random::poisson_approximate_dtype(k, &p[0], s, dtype))
        }
        "t" => drawn!(|k, p, s| random::t_dtype(k, &p[0], s, dtype)),
        "f" => drawn!(|k, p, s| random::f_dtype(k, &p[0], &p[1], s, dtype)),
        "dirichlet" => drawn!(|k, p, s| random::dirichlet_dtype(k, &p[0], s, dtype)),
        "generalized_normal" => drawn!(|k, _p, s| random::generalized_normal_dtype(k, p, s, dtype)),
        "ball" => drawn!(|k, _p, s| random::ball_dtype(k, d, p, s, dtype)),
        "lognormal" => drawn!(|k, p, s| random::lognormal_dtype(k, &p[0], s, dtype)),
        "pareto" => drawn!(|k, p, s| random::pareto_dtype(k, &p[0], s, dtype)),
        "rayleigh" => drawn!(|k, p, s| random::rayleigh_dtype(k, &p[0], s, dtype)),
        "weibull_min" => drawn!(|k, p, s| random::weibull_min_dtype(k, &p[0], &p[1], s, dtype)),
        "triangular" => drawn!(|k, p, s| random::triangular_dtype(k, &p[0], &p[1], &p[2], s, dtype)),
        "wald" => drawn!(|k, p, s| random::wald_dtype(k, &p[0], s, dtype)),
        "maxwell" => drawn!(|k, _p, s| random::maxwell_dtype(k, s, dtype)),
        "double_sided_maxwell" => drawn!(|k, _p, s| random::double_sided_maxwell_dtype(k, loc, scale, s, dtype)),
        "multivariate_normal" => drawn!(|k, p, s| random::multivariate_normal(k, &p[0], &p[1], s)),
        "poisson" => drawn!(|k, p, s| random::poisson_dtype(k, &p[0], s, DType::I32)),
        "geometric" => drawn!(|k, p, s| random::geometric_dtype(k, &p[0], s, DType::I32)),
        "binomial" => drawn!(|k, p, s| random::binomial_dtype(k, &p[0], &p[1], s, dtype)),
        _ => None,
    }
}
