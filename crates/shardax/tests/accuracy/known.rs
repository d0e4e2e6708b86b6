//! Errors that are known.

const CANCELS: &str = "terms cancel, as in JAX";
const DIVISION: &str = "XLA computes a / b / c as a / (b c), which overflows or underflows in float32";

/// Names of functions, the orders of their derivatives, and the reasons.
const KNOWN: &[(&str, &[usize], &str)] = &[
    ("divide", &[1, 2], DIVISION),
    ("xlogy", &[2], DIVISION),
    ("xlog1py", &[2], DIVISION),
    ("rel_entr", &[2], DIVISION),
    ("kl_div", &[2], DIVISION),
    ("pow", &[2], "x^(y - 2) overflows where y (y - 1) x^(y - 2) does not, for y below 1e-20"),
    ("float_power", &[2], "as pow"),
    ("gammainc", &[1, 2], CANCELS),
    ("gammaincc", &[0, 1, 2], CANCELS),
    ("cauchy.logpdf", &[2], CANCELS),
    ("cauchy.logcdf", &[0, 1, 2], CANCELS),
    ("cauchy.logsf", &[0, 1, 2], CANCELS),
    ("cauchy.ppf", &[0, 2], CANCELS),
    ("cauchy.isf", &[0, 2], CANCELS),
    ("logistic.ppf", &[2], CANCELS),
    ("logistic.isf", &[2], CANCELS),
    ("expon.logcdf", &[0, 1, 2], CANCELS),
    ("gumbel_r.logpdf", &[1], CANCELS),
    ("gumbel_r.pdf", &[1], CANCELS),
    ("gumbel_r.cdf", &[2], CANCELS),
    ("gumbel_r.sf", &[0, 2], CANCELS),
    ("gumbel_r.logsf", &[0, 1, 2], CANCELS),
    ("gumbel_r.ppf", &[2], CANCELS),
    ("gumbel_l.logpdf", &[1], CANCELS),
    ("gumbel_l.pdf", &[1], CANCELS),
    ("gumbel_l.cdf", &[1, 2], CANCELS),
    ("gumbel_l.logcdf", &[0, 1, 2], CANCELS),
    ("gumbel_l.sf", &[2], CANCELS),
    ("gamma.logpdf", &[0, 1, 2], CANCELS),
    ("gamma.pdf", &[0, 1, 2], CANCELS),
    ("chi2.logpdf", &[1, 2], CANCELS),
    ("t.logpdf", &[0, 1, 2], CANCELS),
    ("pareto.cdf", &[0], CANCELS),
    ("pareto.logcdf", &[0, 1, 2], CANCELS),
    ("pareto.ppf", &[1, 2], CANCELS),
    ("wrapcauchy.logpdf", &[0, 1, 2], CANCELS),
    ("poisson.logpmf", &[1, 2], CANCELS),
    ("poisson.pmf", &[0, 1, 2], CANCELS),
    ("geom.logpmf", &[1], CANCELS),
    ("bernoulli.logpmf", &[2], CANCELS),
    ("binom_10.logpmf", &[0, 1, 2], CANCELS),
    ("beta_1.logpdf", &[2], CANCELS),
    ("truncnorm_3_4.logcdf", &[0, 1, 2], CANCELS),
    ("truncnorm_3_4.cdf", &[0], CANCELS),
    ("truncnorm_3_4.logsf", &[0, 1, 2], CANCELS),
    ("truncnorm_3_4.sf", &[0], CANCELS),
    ("truncnorm_-30_-20.logcdf", &[1, 2], CANCELS),
    ("truncnorm_-30_-20.cdf", &[1, 2], CANCELS),
    // Next to the bound, whose logarithm of the mass has few digits in float32.
    ("truncnorm_-30_-20.logsf", &[1, 2], CANCELS),
];

pub fn is_known(name: &str, order: usize) -> bool {
    KNOWN.iter().any(|(known, orders, _)| *known == name && orders.contains(&order))
}
