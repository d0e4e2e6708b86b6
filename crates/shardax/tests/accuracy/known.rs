//! Errors that are known.

const DIVISION: &str = "XLA computes -(x / y) / y as -x / y², whose denominator leaves the range of float32 for y below 1e-19 or above 1e19";
const POWER: &str = "x^(y - 2) overflows where y (y - 1) x^(y - 2) does not, for y below 1e-20";
const ZERO: &str = "the grid has a point next to a zero of the derivative, whose terms are 10,000 times larger or more";

/// Names of functions, the orders of their derivatives, and the reasons.
const KNOWN: &[(&str, &[usize], &str)] = &[
    ("divide", &[1, 2], DIVISION),
    ("pow", &[2], POWER),
    ("float_power", &[2], POWER),
    // 1 / p - 9 / (1 - p) at 0.1.
    ("geom.logpmf", &[1], ZERO),
    ("binom_10.logpmf", &[1], ZERO),
    // With respect to 10,000 degrees of freedom, (z⁴ - 2 z² - 1) / 4 k², of terms z² / 2 k.
    ("t.logpdf", &[1, 2], ZERO),
    // With respect to shapes a below 0.01.
    ("gamma.pdf", &[2], "p (l'² + l'') of l = log(p) is p (1 / a² - 1 / a²) and smaller terms"),
    // With respect to the scale s, (z - 1) / s - (a - 1) / s - 1 / s, for shapes a of 1e-6.
    ("gamma.logpdf_scaled", &[1, 2], ZERO),
    ("pareto.logpdf_scaled", &[2], DIVISION),
    // n / p - k / (1 - p) at k (1 / p - 1).
    ("nbinom.logpmf", &[1], ZERO),
    // With respect to c, 4 (c cos(3 x) - sin²(x)) at c and x of 1e-10, of terms 2.
    ("wrapcauchy.logpdf", &[2], ZERO),
    // h (z - h) of the hazard h, where z is 20.001 and h is 20.05.
    (
        "truncnorm_-30_-20.logcdf",
        &[2],
        "the hazard of a tail is its argument and 1 / 20: a difference loses 9 of 24 bits",
    ),
    // h (h + (a - 1) / x - (b - 1) / (1 - x)) of the hazard h.
    (
        "beta.logsf",
        &[2],
        "the hazard of a tail is next to the slope of the log density: a difference loses 12 of 24 bits",
    ),
    // With respect to the mean, at the mean.
    ("poisson.cdf", &[2], ZERO),
    // Next to a bound, where l = log(sf) has slopes of 1e4 and -1e8.
    ("truncnorm_3_4.logsf", &[2], "sf (l'' + l'²) loses 17 of 24 bits"),
];

pub fn is_known(name: &str, order: usize) -> bool {
    KNOWN.iter().any(|(known, orders, _)| *known == name && orders.contains(&order))
}
