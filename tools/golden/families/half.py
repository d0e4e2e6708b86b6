"""Half precision and the wide complex numbers in every function, many of them a case; and half precision in large sums, whose
inputs come from a seed."""

import jax
import jax.numpy as jnp
from jax import lax

from families.edges import ACTIVATIONS, COMPLEX, UNARY
from golden import DTYPES, Family, uniform, values

family = Family("half")

# Of the others the derivative is piecewise zero, or the domain another one.
EACH = [op for op in UNARY if op not in "isfinite isnan isinf logical_not real imag conj arccosh sign floor ceil round trunc".split()]
SPECIAL = "lgamma digamma erf_inv".split()


def each(names):
    """Each of the functions, of the same numbers."""
    table = UNARY | ACTIVATIONS
    return lambda x: [table[name](x) for name in names]


for dtype in ("bf16", "f16"):
    tol = {"bf16": 2e-2, "f16": 3e-3}[dtype]
    for group, names in {"unary": [op for op in EACH if op not in SPECIAL], "activations": list(ACTIVATIONS)}.items():
        x = uniform(3, 8, lo=0.15, hi=0.9, dtype=dtype)
        family.case(
            f"{group}_{dtype}", each(names), x, op="each", params={"ops": names}, batch=[(0,), (2,)], tol=tol, grad_tol=8 * tol
        )
names = [op for op in COMPLEX if op not in "isfinite isnan isinf logical_not sign abs real imag".split()]
x = uniform(3, 4, lo=0.15, hi=0.9, dtype="c128")
family.case("unary_c128", each(names), x, op="each", params={"ops": names}, batch=[(0,), (2,)], tol=1e-9, grad_tol=1e-8)

PAIRS = "add subtract multiply divide remainder fmod power arctan2 maximum minimum logaddexp".split()
for dtype in ("bf16", "f16"):
    tol = {"bf16": 2e-2, "f16": 3e-3}[dtype]
    family.case(
        f"pairs_{dtype}",
        lambda x, y: [getattr(jnp, name)(x, y) for name in PAIRS],
        uniform(3, 8, lo=0.3, hi=2.0, dtype=dtype),
        uniform(3, 8, lo=0.3, hi=2.0, dtype=dtype),
        op="each",
        params={"ops": PAIRS},
        batch=[(0, 0), (None, 2)],
        tol=tol,
        grad_tol=8 * tol,
    )

ROWS = "sum prod mean var std logsumexp softmax log_softmax max min cumsum cumprod cumlogsumexp sort norm".split()


def row_functions():
    table = {name: getattr(jnp, name) for name in "sum prod mean var std max min cumsum cumprod sort".split()}
    table |= {name: getattr(jax.nn, name) for name in "logsumexp softmax log_softmax".split()}
    table["norm"] = jnp.linalg.norm
    table["cumlogsumexp"] = lambda x, axis: lax.cumlogsumexp(x, axis)
    return table


for dtype in ("bf16", "f16"):
    tol = {"bf16": 2e-2, "f16": 3e-3}[dtype]
    family.case(
        f"rows_{dtype}",
        lambda x: [row_functions()[name](x, axis=1) for name in ROWS],
        uniform(3, 8, lo=0.3, hi=2.0, dtype=dtype),
        op="rows",
        params={"ops": ROWS},
        batch=[(0,), (2,)],
        tol=tol,
        grad_tol=8 * tol,
    )

# 120,000 numbers of about a hundredth: added in half precision most of them would be lost.
SIZE = 120_000


def large(dtype):
    def fn(key):
        x = (jax.random.uniform(key, (SIZE,)) * 0.02).astype(DTYPES[dtype])
        rows = x.reshape(4, -1)
        near_one = (jax.random.uniform(key, (1000,)) * 0.008 + 1).astype(DTYPES[dtype])
        sample = lambda y: y.reshape(-1)[:: max(y.size // 16, 1)]
        return [
            jnp.sum(x),
            jnp.sum(rows, 1),
            jnp.sum(rows.T, 0),
            jnp.mean(x) * 64,
            jnp.var(x) * 4096,
            jnp.std(x) * 64,
            jnp.linalg.norm(x * 16),
            jnp.linalg.norm(x, 1),
            jax.nn.logsumexp(rows, 1),
            sample(jax.nn.softmax(rows, 1)) * 16384,
            sample(jax.nn.log_softmax(rows, 1)),
            jnp.prod(near_one),
            jnp.dot(x, jnp.ones_like(x)),
            rows @ jnp.ones_like(rows).T,
            jnp.einsum("ij,ij->i", rows, jnp.ones_like(rows)),
            sample(jax.grad(lambda x: jnp.prod(x).astype(jnp.float32))(near_one)),
            sample(jax.grad(lambda x: jax.nn.logsumexp(x).astype(jnp.float32))(x.reshape(8, -1)[0])) * 16384,
            sample(jax.grad(lambda x: jnp.var(x).astype(jnp.float32))(x)) * 2**20,
        ]

    return fn


for dtype in ("bf16", "f16"):
    key = values([7, 11], "u32")
    family.case(f"large_{dtype}", large(dtype), key, op="large", params={"dtype": dtype}, grad=False, batch=False)
    family.cases[f"large_{dtype}"].tol = {"bf16": 1.6e-2, "f16": 2e-3}[dtype]
