"""Distributions with parameters. in/0 is the key's data, u32[2]; with gradients with respect to parameters that JAX has them of."""

import jax
import jax.numpy as jnp
import numpy as np
from golden import DTYPES, Family, uniform, values
from jax import random

family = Family("distributions")


def case(op, fn, *inputs, shape, name="f32", key=42, wrt=None, tol=1e-5, grad_tol=2e-3, **params):
    """Parameters that are arrays are inputs; the others are written down."""
    family.case(
        f"{op}_{name}",
        lambda data, *rest: fn(random.wrap_key_data(data), *rest),
        values([0, key], "u32"),
        *inputs,
        op=op,
        params={"shape": shape, **params},
        grad=bool(wrt),
        wrt=wrt,
        batch=False,
        tol=tol,
        grad_tol=grad_tol,
    )


SHAPE = (3, 4)
wide = uniform(4, lo=0.2, hi=8.0)
for op in ("gamma", "loggamma"):
    fn = getattr(random, op)
    case(op, lambda k, a, fn=fn: fn(k, a, SHAPE), wide, shape=SHAPE, wrt=(1,))
    case(op, lambda k, a, fn=fn: fn(k, a, (6,)), values(0.05), shape=(6,), name="small", key=7, wrt=(1,), tol=3e-5, grad_tol=5e-3)
    case(op, lambda k, a, fn=fn: fn(k, a, (6,)), values(300.0), shape=(6,), name="large", key=7, wrt=(1,))
case(
    "gamma",
    lambda k, a: random.gamma(k, a, (5,), DTYPES["f64"]),
    values(1.5, "f64"),
    shape=(5,),
    name="f64",
    wrt=(1,),
    tol=1e-11,
    grad_tol=1e-8,
    dtype="f64",
)
family.case(
    "gamma_vmapped_keys",
    lambda data, a: jax.vmap(lambda k, a: random.gamma(k, a, (2,)))(random.split(random.wrap_key_data(data), 3), a),
    values([0, 3], "u32"),
    uniform(3, lo=0.5, hi=4),
    op="gamma_vmapped",
    wrt=(1,),
    batch=False,
    tol=1e-5,
    grad_tol=2e-3,
)
case("beta", lambda k, a, b: random.beta(k, a, b, SHAPE), wide, uniform(3, 1, lo=0.5, hi=4), shape=SHAPE, wrt=(1, 2))
case("chisquare", lambda k, d: random.chisquare(k, d, SHAPE), wide, shape=SHAPE, tol=3e-5)
case("t", lambda k, d: random.t(k, d, SHAPE), wide, shape=SHAPE, tol=3e-5)
case("f", lambda k, a, b: random.f(k, a, b, SHAPE), uniform(3, 4, lo=2, hi=9), uniform(3, 4, lo=2, hi=9), shape=SHAPE, tol=5e-5)
case("dirichlet", lambda k, a: random.dirichlet(k, a, (2,)), uniform(2, 3, lo=0.3, hi=4), shape=(2,), wrt=(1,))
case("generalized_normal", lambda k: random.generalized_normal(k, 1.5, SHAPE), shape=SHAPE, p=1.5, tol=3e-5)
case("ball", lambda k: random.ball(k, 3, 1.5, (4,)), shape=(4,), d=3, p=1.5, tol=3e-5)
case("lognormal", lambda k, s: random.lognormal(k, s, SHAPE), wide, shape=SHAPE, wrt=(1,), tol=5e-5, grad_tol=1e-4)
case("pareto", lambda k, b: random.pareto(k, b, SHAPE), wide, shape=SHAPE, wrt=(1,), tol=3e-5, grad_tol=1e-4)
case("rayleigh", lambda k, s: random.rayleigh(k, s, SHAPE), wide, shape=SHAPE, wrt=(1,), grad_tol=1e-4)
case("weibull_min", lambda k, s, c: random.weibull_min(k, s, c, SHAPE), wide, uniform(3, 1, lo=0.5, hi=3), shape=SHAPE, tol=3e-5)
case(
    "triangular",
    lambda k, l, m, r: random.triangular(k, l, m, r, SHAPE),
    values([-1.0, 0, 1, 2]),
    values([0.0, 0.5, 2, 6]),
    values([2.0, 1, 5, 7]),
    shape=SHAPE,
)
case("wald", lambda k, m: random.wald(k, m, SHAPE), wide, shape=SHAPE, tol=2e-4)
case("maxwell", lambda k: random.maxwell(k, SHAPE), shape=SHAPE)
case("double_sided_maxwell", lambda k: random.double_sided_maxwell(k, 0.5, 2.0, SHAPE), shape=SHAPE, loc=0.5, scale=2.0)
case(
    "multivariate_normal",
    lambda k, m, c: random.multivariate_normal(k, m, c, SHAPE),
    values([1.0, -2.0]),
    values([[2.0, 0.5], [0.5, 1.0]]),
    shape=SHAPE,
    wrt=(1, 2),
    grad_tol=1e-4,
)
case("poisson", lambda k, l: random.poisson(k, l, (4, 5)), values([0.0, 0.3, 9.5, 11.0, 300.0]), shape=(4, 5), tol=0)
case("geometric", lambda k, p: random.geometric(k, p, (4, 4)), values([0.05, 0.3, 0.9, 1.0]), shape=(4, 4), tol=0)
case(
    "binomial",
    lambda k, n, p: random.binomial(k, n, p, (3, 6)),
    values([3.0, 10, 100, 1000, 50, -1]),
    values([0.5, 0.1, 0.3, 0.7, 1.0, 0.5]),
    shape=(3, 6),
    tol=0,
)
for dtype in ("bf16", "f16"):
    case(
        "binomial",
        lambda k, n, p: random.binomial(k, n, p, (3, 6)),
        values([3.0, 10, 100, 1000, 50, -1], dtype),
        values([0.5, 0.1, 0.3, 0.7, 1.0, 0.5], dtype),
        shape=(3, 6),
        name=dtype,
        tol=0,
    )
for op in ("gamma", "loggamma", "chisquare"):

    def approximate(k, a, shape=SHAPE, dtype=None, fn=getattr(random, op)):
        return fn(k, a, shape=shape, dtype=dtype, method="approximate")

    case(f"{op}_approximate", approximate, wide, shape=SHAPE, wrt=(1,), tol=3e-5)
    case(f"{op}_approximate", lambda k, a, f=approximate: f(k, a, (6,)), values(0.05), shape=(6,), name="small", wrt=(1,), tol=3e-5)
    case(f"{op}_approximate", lambda k, a, f=approximate: f(k, a, (6,)), values(300.0), shape=(6,), name="large", wrt=(1,), tol=3e-5)
    case(
        f"{op}_approximate",
        lambda k, a, f=approximate: f(k, a, (5,), DTYPES["f64"]),
        values(1.5, "f64"),
        shape=(5,),
        name="f64",
        wrt=(1,),
        tol=1e-11,
        grad_tol=1e-10,
        dtype="f64",
    )
    case(
        f"{op}_approximate",
        lambda k, a, f=approximate: f(k, a, (5,), DTYPES["bf16"]),
        values(1.5, "bf16"),
        shape=(5,),
        name="bf16",
        tol=1e-2,
        dtype="bf16",
    )
case(
    "beta_approximate",
    lambda k, a, b: random.beta(k, a, b, SHAPE, method="approximate"),
    wide,
    uniform(3, 1, lo=0.5, hi=4),
    shape=SHAPE,
    wrt=(1, 2),
    tol=3e-5,
)
MEANS = [0.0, 0.3, 6.9, 7.0, 9.5, 300.0, 1e5]
case(
    "poisson_approximate",
    lambda k, l: random.poisson(k, l, (9, 7), method="approximate"),
    values(MEANS),
    shape=(9, 7),
    tol=0,
)
case(
    "poisson_approximate",
    lambda k, l: random.poisson(k, l, (9, 7), np.int64, method="approximate"),
    values([*MEANS[:-1], 1e12], "f64"),
    shape=(9, 7),
    name="f64",
    tol=0,
    dtype="i64",
)
