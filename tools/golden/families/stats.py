"""Distributions of scipy.stats: at ordinary points with gradients, second derivatives, wide and half precision, and at their edges."""

import jax
import jax.scipy.stats as stats
import numpy as np
from golden import Family, integers, normal, uniform, values

family = Family("stats")
NAN, INF = np.nan, np.inf

positive = lambda dtype: uniform(6, lo=0.5, hi=4.0, dtype=dtype)
scales = lambda dtype: uniform(6, lo=0.6, hi=2.0, dtype=dtype)
real = lambda dtype: normal(6, dtype=dtype)
probability = lambda dtype: uniform(6, lo=0.05, hi=0.95, dtype=dtype)
counts = lambda dtype: values([0, 1, 2, 3, 4, 5], dtype)
trials = lambda dtype: values([5, 6, 7, 8, 9, 10], dtype)
some = [-1.0, 0.0, 0.5, 1.0, 2.0, INF, -INF, NAN]

# name, functions, the first operand, further parameters, edges of the first operand, parameters at the edges, differentiated
DISTRIBUTIONS = [
    ("bernoulli", "logpmf pmf", counts, [probability, real], [0, 1, 2, -1, 0.5], [0.25, 0.0], (1,)),
    ("bernoulli", "cdf ppf", probability, [probability], [0, 1, 2, -1, 0.5, NAN], [0.25], (1,)),
    ("beta", "logpdf pdf", probability, [positive, positive, lambda d: values([0.0], d), scales], some, [2.0, 3.0, 0.0, 1.0], None),
    ("beta", "cdf logcdf sf logsf", probability, [positive, positive, lambda d: values([0.0], d), scales], some, [2.0, 3.0, 0.0, 1.0], (0, 3, 4)),
    ("betabinom", "logpmf pmf", counts, [trials, positive, positive, lambda d: values([0.0], d)], [0, 1, 5, 6, -1], [5.0, 1.5, 0.5, 0.0], (2, 3)),
    ("binom", "logpmf pmf", counts, [trials, probability, lambda d: values([0.0], d)], [0, 1, 5, 6, -1], [5.0, 0.25, 0.0], (2,)),
    ("cauchy", "logpdf pdf cdf logcdf sf logsf", real, [real, scales], some, [0.5, 2.0], None),
    ("cauchy", "ppf isf", probability, [real, scales], [0.25, 0.5, NAN], [0.5, 2.0], None),
    ("chi2", "logpdf pdf cdf logcdf sf logsf", positive, [positive, lambda d: values([0.25], d), scales], some, [3.0, 0.0, 1.0], None),
    ("expon", "logpdf pdf cdf logcdf sf logsf", positive, [lambda d: values([0.25], d), scales], some, [0.0, 1.0], None),
    ("expon", "ppf", probability, [real, scales], some, [0.5, 2.0], None),
    ("gamma", "logpdf pdf cdf logcdf sf logsf", positive, [positive, lambda d: values([0.25], d), scales], some, [3.0, 0.0, 1.0], None),
    ("gennorm", "logpdf pdf", real, [positive], some, [1.5], None),
    ("gennorm", "cdf", real, [positive], some, [1.5], None),
    ("geom", "logpmf pmf", trials, [probability, lambda d: values([1.0], d)], [0, 1, 2, -1], [0.25, 0.0], (1,)),
    # JAX cannot differentiate these with respect to all: an integer is an operand of `xlogy`.
    ("gumbel_l", "logpdf pdf", real, [real, scales], some, [0.5, 2.0], (0, 1)),
    ("gumbel_l", "cdf logcdf sf logsf", real, [real, scales], some, [0.5, 2.0], None),
    ("gumbel_l", "ppf", probability, [real, scales], some, [0.5, 2.0], (1, 2)),
    ("gumbel_r", "logpdf pdf", real, [real, scales], some, [0.5, 2.0], (0, 1)),
    ("gumbel_r", "cdf logcdf sf logsf", real, [real, scales], some, [0.5, 2.0], None),
    ("gumbel_r", "ppf", probability, [real, scales], some, [0.5, 2.0], (1, 2)),
    ("laplace", "logpdf pdf cdf", real, [real, scales], some, [0.5, 2.0], None),
    ("logistic", "logpdf pdf cdf sf", real, [real, scales], some, [0.5, 2.0], None),
    ("logistic", "ppf isf", probability, [real, scales], some, [0.5, 2.0], None),
    ("nbinom", "logpmf pmf", counts, [positive, probability, lambda d: values([0.0], d)], [0, 1, 5, -1], [2.0, 0.25, 0.0], (1, 2)),
    ("pareto", "logpdf pdf cdf logcdf sf logsf", lambda d: uniform(6, lo=2.5, hi=6, dtype=d), [positive, lambda d: values([0.25], d), scales], [-1.0, 0.5, 1.0, 2.0, INF, NAN], [3.0, 0.0, 1.0], None),
    ("pareto", "ppf", probability, [positive, real, scales], some, [2.0, 0.5, 2.0], None),
    ("poisson", "logpmf pmf", counts, [positive, lambda d: values([0.0], d)], [0, 1, 2.5, -1, 30], [1.5, 0.0], (1,)),
    ("poisson", "cdf", counts, [positive, lambda d: values([0.0], d)], [0, 1, 2.5, -1, 30], [1.5, 0.0], (1,)),
    ("t", "logpdf pdf", real, [positive, real, scales], some, [3.0, 0.5, 2.0], None),
    ("truncnorm", "logpdf pdf cdf logcdf sf logsf", lambda d: uniform(6, lo=-0.5, hi=0.5, dtype=d), [lambda d: values([-1, -2, -3, -1.5, -4, -1], d), lambda d: values([1, 2, 3, 4, 2, 1.5], d), lambda d: values([0.1], d), scales], [-6, -2, -0.5, 0, 0.5, 1, 5, NAN], [-2.0, 3.0, 0.5, 1.0], None),
    ("uniform", "logpdf pdf cdf", probability, [lambda d: values([0.02], d), lambda d: uniform(6, lo=1.0, hi=2.0, dtype=d)], some, [0.25, 1.0], None),
    ("uniform", "ppf", probability, [real, scales], some, [0.5, 2.0], None),
    ("vonmises", "logpdf pdf", real, [positive], some, [1.5], None),
    ("wrapcauchy", "logpdf pdf", probability, [probability], some, [0.5], None),
]

for name, functions, first, parameters, edges, at_edges, wrt in DISTRIBUTIONS:
    for f in functions.split():
        fn = getattr(getattr(stats, name), f)
        op = f"{name}_{f}"
        args = lambda dtype: [first(dtype), *(p(dtype) for p in parameters)]
        density = f.startswith("log") and "pdf" in f or "pmf" in f and f.startswith("log")
        count = 1 + len(parameters)
        options = dict(op=op, wrt=wrt)
        family.case(f"{op}_f32", fn, *args("f32"), tol=3e-5, grad_tol=3e-4, batch=[(0, *(None,) * (count - 1)), (0,) * count] if density else False, **options)
        family.case(f"{op}_f64", fn, *args("f64"), tol=1e-7 if "bet" in name else 1e-10, grad_tol=1e-7, batch=False, grad="rev" if density else False, **options)
        if density and name != "truncnorm":  # JAX has no half precision of it.
            family.case(f"{op}_bf16", fn, *args("bf16"), tol=4e-2, grad=False, batch=False, **options)
        family.case(f"{op}_edges", fn, values(edges), *(values(v) for v in at_edges), tol=3e-5, grad=False, batch=False, **options)

# Bad parameters, several tails, and integers.
for f in ("logpdf", "cdf"):
    family.case(f"truncnorm_{f}_tails", getattr(stats.truncnorm, f), values([11, -11, 0.5, 20, 0, 1]), values([10, -12, 0.6, 19, 2, 1]), values([12, -10, 0.4, 21, 1, 1]), values(0.0), values(1.0), op=f"truncnorm_{f}", tol=1e-4, grad=False, batch=False)
family.case("beta_logpdf_bad", stats.beta.logpdf, values([0.5, 0.5, 0.5, 0.5]), values([-1, 1, 0, 1]), values([1, -1, 1, 1]), values(0.0), values([1, 1, 1, -1]), op="beta_logpdf", grad=False, batch=False)
family.case("poisson_logpmf_integers", stats.poisson.logpmf, integers(3, 1, lo=-1, hi=6), integers(4, lo=1, hi=4), values(1, "i32"), op="poisson_logpmf", grad=False, batch=False)
family.case("gumbel_r_logsf_tails", stats.gumbel_r.logsf, values([-4, -1, 0, 0.3, 0.4, 3, 20, 90]), values(0.0), values(1.0), op="gumbel_r_logsf", tol=2e-5, grad_tol=2e-4, batch=False)
family.case("poisson_entropy", stats.poisson.entropy, values([0, 0.5, 3, 9.9, 10, 50, 99, 101, 1e4]), values(0.0), grad="rev", wrt=(0,), batch=False, tol=3e-5, grad_tol=3e-4)
family.case("poisson_entropy_rows", stats.poisson.entropy, uniform(2, 3, lo=1, hi=30), values([1.0, 2.0, 3.0]), op="poisson_entropy", grad=False, batch=False, tol=3e-5)

# Second derivatives.
for name, first, parameters in [
    ("norm", real, [real, scales]),
    ("gamma", positive, [positive, lambda d: values([0.25], d), scales]),
    ("beta", probability, [positive, positive, lambda d: values([0.0], d), scales]),
    ("t", real, [positive, real, scales]),
    ("cauchy", real, [real, scales]),
    ("vonmises", real, [positive]),
    ("truncnorm", lambda d: uniform(6, lo=-0.5, hi=0.5, dtype=d), [lambda d: values([-1.0], d), lambda d: values([2.0], d), lambda d: values([0.1], d), scales]),
]:
    log = getattr(stats, name).logpdf
    args = [first("f64"), *(p("f64") for p in parameters)]
    slopes = lambda *args, log=log: jax.grad(lambda *a: log(*a).sum(), argnums=(0, len(args) - 1))(*args)
    family.case(f"slopes_{name}_logpdf", slopes, *args, params={"of": f"{name}_logpdf"}, op="slopes", tol=1e-7, grad_tol=1e-6, batch=False)

# Vectors.
simplex = np.array([[0.2, 0.1, 0.6], [0.3, 0.4, 0.3], [0.5, 0.5, 0.1]], np.float32)
# On the simplex a probability's derivative says nothing, where one ends.
family.case("dirichlet_logpdf", stats.dirichlet.logpdf, values(simplex[:, :2]), uniform(3, lo=0.5, hi=3), wrt=(1,), batch=False, tol=3e-5, grad_tol=3e-4)
family.case("dirichlet_logpdf_fewer", stats.dirichlet.logpdf, values(simplex[:2]), uniform(3, lo=0.5, hi=3), op="dirichlet_logpdf", tol=3e-5, grad_tol=3e-4, batch=[(None, 0)])
family.case("dirichlet_pdf_outside", stats.dirichlet.pdf, values(simplex), uniform(3, lo=0.5, hi=3), op="dirichlet_pdf", grad=False, batch=False, tol=3e-5)
family.case("dirichlet_logpdf_f64", stats.dirichlet.logpdf, values(simplex[:2, 0], "f64"), uniform(3, lo=0.5, hi=3, dtype="f64"), op="dirichlet_logpdf", batch=False, tol=1e-10, grad_tol=1e-9)
for f in ("logpmf", "pmf"):
    fn = getattr(stats.multinomial, f)
    family.case(f"multinomial_{f}", fn, values([1, 2, 0, 4], "i32"), values(7, "i32"), values([0.1, 0.2, 0.3, 0.4]), wrt=(2,), batch=[(0, None, None)], tol=3e-5, grad_tol=3e-4)
family.case("multinomial_logpmf_other", stats.multinomial.logpmf, values([1, 2, 0, 4], "i32"), values(6, "i32"), values([0.1, 0.2, 0.3, 0.4]), op="multinomial_logpmf", grad=False, batch=False)
cov = np.array([[2.0, 0.5, 0.25], [0.5, 1.0, -0.25], [0.25, -0.25, 1.5]])
mvn = stats.multivariate_normal
for dtype, tol in (("f32", 3e-5), ("f64", 1e-10)):
    rows = lambda *shape: normal(*shape, 3, dtype=dtype)
    more = dict(op="multivariate_normal_logpdf", tol=tol, grad_tol=tol * 10)
    family.case(f"multivariate_normal_{dtype}", mvn.logpdf, rows(), rows(), values(cov, dtype), batch=[(0, None, None), (0, 0, None)], **more)
    family.case(f"multivariate_normal_{dtype}_rows", mvn.logpdf, rows(2, 4), rows(), values(cov, dtype), batch=False, **more)
    family.case(f"multivariate_normal_{dtype}_many", mvn.logpdf, rows(4, 1), rows(2), values(np.stack([cov, 2 * cov]), dtype), batch=False, **more)
    family.case(f"multivariate_normal_{dtype}_variance", mvn.logpdf, rows(2), rows(), values(2.0, dtype), batch=False, **more)
    family.case(f"multivariate_normal_{dtype}_numbers", mvn.logpdf, normal(4, dtype=dtype), values(0.5, dtype), values(2.0, dtype), batch=False, **more)
family.case("multivariate_normal_pdf", mvn.pdf, normal(5, 3), normal(3), values(cov), grad=False, batch=False, tol=3e-5)

# Samples.
for method in ("average", "min", "max", "dense", "ordinal"):
    fn = lambda x, method=method: stats.rankdata(x, method)
    more = dict(op="rankdata", grad=False, tol=0)
    family.case(f"rankdata_{method}", fn, integers(12, lo=0, hi=5), params={"method": method, "axis": None}, batch=[(0,)], **more)
    fn = lambda x, method=method: stats.rankdata(x, method, axis=0)
    family.case(f"rankdata_{method}_columns", fn, integers(7, 3, lo=0, hi=4), params={"method": method, "axis": 0}, batch=False, **more)
family.case("rankdata_nan", lambda x: stats.rankdata(x, "average", axis=1), values([[3, 1, NAN, 1], [0.0, -0.0, -INF, INF]]), op="rankdata", params={"method": "average", "axis": 1}, grad=False, batch=False, tol=0)
for name, x, axis in [
    ("columns", integers(6, 4, lo=0, hi=3), 0),
    ("rows", integers(6, 4, lo=0, hi=3), -1),
    ("flat", integers(6, 4, lo=0, hi=5), None),
    ("nan", values([[NAN, 1, NAN, 2], [1, 1, NAN, 2], [2, 1, INF, -INF]]), 1),
]:
    family.case(f"mode_{name}", lambda x, axis=axis: tuple(stats.mode(x, axis=axis)), x, op="mode", params={"axis": axis}, grad=False, batch=False, tol=0)
for name, dtype, axis, ddof in [("columns", "f32", 0, 1), ("flat", "f32", None, 0), ("f64", "f64", 1, 1), ("bf16", "bf16", 0, 1)]:
    family.case(f"sem_{name}", lambda x, axis=axis, ddof=ddof: stats.sem(x, axis=axis, ddof=ddof), normal(5, 4, dtype=dtype), op="sem", params={"axis": axis, "ddof": ddof}, batch=False, grad=dtype != "bf16")

# Kernel density estimates.
points = normal(2, 9)
for name, bw, weighted in [("scott", None, False), ("silverman", "silverman", True), ("factor", 0.4, True)]:

    def kde(data, weights, at, bw=bw, weighted=weighted):
        k = stats.gaussian_kde(data, bw, weights if weighted else None)
        return k.evaluate(at), k.logpdf(at), k.covariance, k.neff

    family.case(f"kde_{name}", kde, points, uniform(9, lo=0.5, hi=2), normal(2, 5), op="kde", params={"bandwidth": bw, "weighted": weighted}, tol=5e-5, grad_tol=1e-3, batch=[(None, None, 0)], wrt=(0, 1, 2) if weighted else (0, 2))


def kde_integrals(data, other, mean, cov):
    k, l = stats.gaussian_kde(data), stats.gaussian_kde(other)
    return k.integrate_gaussian(mean, cov), k.integrate_kde(l)


family.case("kde_integrals", kde_integrals, points, normal(2, 4), normal(2), values([[1.0, 0.25], [0.25, 2.0]]), tol=5e-5, grad_tol=1e-3, batch=False)
family.case("kde_box", lambda data, low, high: stats.gaussian_kde(data).integrate_box_1d(low, high), normal(7), values(-0.5), values(1.0), tol=5e-5, grad_tol=1e-3, batch=False)
family.case("kde_resample", lambda data, key: stats.gaussian_kde(data).resample(jax.random.wrap_key_data(key), (4,)), points, values([1, 2], "u32"), tol=1e-4, grad=False, batch=False)
