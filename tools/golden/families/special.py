"""Special functions and the normal distribution: at ordinary points with gradients, at their edges without."""

import jax.numpy as jnp
import jax.scipy.special as jsp
import jax.scipy.stats as stats
import numpy as np
from golden import Family, integers, normal, uniform, values

family = Family("special")
NAN, INF = np.nan, np.inf


def case(op, *inputs, name="f32", fn=None, **options):
    options.setdefault("tol", 2e-5)
    options.setdefault("grad_tol", 1e-4)
    family.case(f"{op}_{name}", fn or getattr(jsp, op), *inputs, op=op, **options)


def family_of(op, make, edges, wide=None, half=False, **options):
    """A function of one operand: float32, where it has digits of its own float64, half precision, and its edges."""
    case(op, make("f32"), **options)
    if wide:
        case(op, make("f64"), name="f64", batch=False, tol=wide, grad_tol=wide, **options)
    if half:
        case(op, make("bf16"), name="bf16", batch=False, tol=1e-2, grad_tol=3e-2, **options)
    case(op, values(edges), name="edges", grad=False, batch=False, **options)


probability = lambda dtype: uniform(6, lo=0.05, hi=0.95, dtype=dtype)
positive = lambda dtype: uniform(6, lo=0.3, hi=6.0, dtype=dtype)
real = lambda dtype: normal(6, scale=2.0, dtype=dtype)

family_of("logit", probability, [0, 1, 2, -1, NAN], half=True)
family_of("expit", real, [0, -100, 100, INF])
family_of("entr", positive, [0, 1, -1, INF, NAN])
family_of("ndtr", real, [-40, -10, -0.5, 0, 0.5, 10, INF, -INF, NAN])
family_of("log_ndtr", real, [-60, -15, -10.5, -9, 3, 4.9, 5.1, 9, -1e10], wide=1e-10)
family_of("ndtri", probability, [0, 1, 1e-30, 1e-6, 0.0099, 0.0101, 0.9995, -1, 2, NAN], wide=1e-10)
family_of("i0", real, [0, 8, 20, 21, -3])
family_of("i0e", real, [0, 8, 19.9, 20.1, 100, -1e4, INF], wide=1e-11, half=True)
family_of("i1", real, [0, 8, 21, -3])
family_of("i1e", real, [0, 1e-9, 8, 20, 100, -1e4])
family_of("gammaln", positive, [0, 1, 2, -0.5, -2, INF])
family_of("digamma", positive, [1, -0.5, 1e5])
family_of("gamma", positive, [0.5, 1, 5, -0.5, -1.5, -1, 0.0, -0.0, 34, 36])
family_of("factorial", positive, [0, 1, 5, -1])
case("gammasgn", values([0.5, -0.5, -1.5, -1, -2, 0.0, -0.0, NAN]), grad=False, batch=False)
for op in ("erf", "erfc", "erfinv"):
    case(op, probability("f32"), batch=False)

case("erfcinv", uniform(6, lo=0.01, hi=1.99), batch=False)
case("erfcinv", values([0, 2, 1, 0.5, 1e-30, 1e-6, 1.9999, -1, 3, NAN]), name="edges", grad=False, batch=False)
case("erfcinv", uniform(6, lo=0.01, hi=1.99, dtype="f64"), name="f64", batch=False, tol=1e-10, grad_tol=1e-9)

for op in ("xlogy", "xlog1py"):
    case(op, positive("f32"), positive("f32"))
    case(op, values([0, 0, 0, 0, 1, 2]), values([0, -1, INF, NAN, 0, -1]), name="edges", grad=False, batch=False)
    case(op, integers(3, 1, lo=0, hi=3), uniform(4, lo=0.5, hi=2), name="mixed", grad=False, batch=False)
for op in ("rel_entr", "kl_div"):
    case(op, probability("f32"), positive("f32"))
    case(op, values([0, 0, 1, -1, 1, 0]), values([1, 0, 0, 1, -1, -1]), name="edges", grad=False, batch=False)

for op in ("gammainc", "gammaincc"):
    case(op, positive("f32"), positive("f32"), tol=3e-5, grad_tol=3e-4)
    case(op, uniform(5, lo=5, hi=40), uniform(5, lo=5, hi=40), name="large", batch=False, grad=op == "gammainc", tol=1e-4, grad_tol=1e-3)
    case(op, positive("f64"), positive("f64"), name="f64", batch=False, tol=1e-11, grad_tol=1e-9)
    case(op, positive("bf16"), positive("bf16"), name="bf16", batch=False, tol=1e-2, grad_tol=3e-2)
    case(op, values([1, 1, 0, 0, 2, -1, 2, 1, 1e3]), values([0, INF, 1, 0, -1, 1, NAN, 200, 1e-3]), name="edges", grad=False, batch=False)
case(
    "sph_harm_y",
    values([0, 1, 1, 2, 5, 5, 4], "i32"),
    values([0, -1, 0, 2, -3, 5, 1], "i32"),
    uniform(7, lo=0.2, hi=2.9),
    uniform(7, lo=0.0, hi=6.2),
    fn=lambda n, m, theta, phi: jsp.sph_harm_y(n, m, theta, phi, n_max=5),
    params={"n_max": 5},
)
case("betainc", positive("f32"), positive("f32"), probability("f32"), wrt=(2,), tol=3e-5, grad_tol=2e-4)
case("betainc", positive("f64"), positive("f64"), probability("f64"), name="f64", wrt=(2,), batch=False, tol=1e-11, grad_tol=1e-10)
case("betainc", positive("bf16"), positive("bf16"), probability("bf16"), name="bf16", grad=False, batch=False, tol=1e-2)
case(
    "betainc",
    values([1, 2, 2, 0, 1, 0, INF, 2, -1, 50]),
    values([1, 3, 3, 1, 0, 0, 1, 2, 1, 60]),
    values([0.3, 0, 1, 0.5, 0.5, 0.5, 0.5, 1.5, 0.5, 0.4]),
    name="edges",
    grad=False,
    batch=False,
    tol=3e-5,
)
case("beta", positive("f32"), positive("f32"), grad_tol=2e-4)
case("betaln", positive("f32"), uniform(6, lo=5, hi=40), grad_tol=2e-4)
case("betaln", positive("f64"), uniform(6, lo=5, hi=40, dtype="f64"), name="f64", batch=False, grad=False, tol=1e-7)  # JAX has nine digits
case("zeta", uniform(6, lo=1.5, hi=6), positive("f32"), grad_tol=3e-4)
case("zeta", uniform(4, lo=1.5, hi=6, dtype="f64"), uniform(4, lo=0.5, hi=4, dtype="f64"), name="f64", batch=False, tol=1e-10, grad_tol=1e-8)
case("polygamma", integers(6, lo=0, hi=4), positive("f32"), tol=1e-4, grad_tol=3e-4)
case("multigammaln", uniform(4, lo=3, hi=9), fn=lambda a: jsp.multigammaln(a, 3), params={"d": 3})

for op in ("logpdf", "pdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf"):
    fn = getattr(stats.norm, op)
    x = probability("f32") if op in ("ppf", "isf") else normal(6)
    case(f"norm_{op}", x, normal(6), uniform(6, lo=0.5, hi=2), fn=fn, batch=[(0, None, 0)] if op == "logpdf" else False, grad=op in ("logpdf", "logcdf", "ppf"), grad_tol=3e-4)
