"""Linear algebra: values only."""

import itertools

import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import DTYPES, Family

family = Family("linalg")


def positive_definite(*shape, dtype="f32"):
    def make(rng):
        a = rng.standard_normal(shape)
        if dtype == "c64":
            a = a + 1j * rng.standard_normal(shape)
        return (a @ a.conj().swapaxes(-1, -2) + np.eye(shape[-1])).astype(DTYPES[dtype])

    return make


def triangular(*shape, dtype="f32"):
    """A full matrix with a strong diagonal; only one triangle of it is to be read."""
    return lambda rng: (0.3 * rng.standard_normal(shape) + np.diag([1.0, -1.5, 2.0])).astype(DTYPES[dtype])


def case(name, fn, *inputs, **options):
    family.case(name, fn, *inputs, grad=False, batch=False, **({"tol": 5e-5} | options))


case("cholesky_f32", lax.linalg.cholesky, positive_definite(3, 3), op="cholesky")
case("cholesky_f32_batch", lax.linalg.cholesky, positive_definite(2, 3, 3), op="cholesky")
case("cholesky_f64", lax.linalg.cholesky, positive_definite(4, 4, dtype="f64"), op="cholesky", tol=1e-12)
case("cholesky_c64", lax.linalg.cholesky, positive_definite(3, 3, dtype="c64"), op="cholesky")
case(
    "cholesky_f32_not_positive",
    lax.linalg.cholesky,
    lambda rng: np.array([[1, 2], [2, 1]], np.float32),
    op="cholesky",
    doc="not positive definite: all NaN",
)
case(
    "cholesky_f32_not_symmetric",
    lax.linalg.cholesky,
    lambda rng: np.array([[4, 1], [3, 5]], np.float32),
    op="cholesky",
    doc="the mean of the matrix and its transpose is decomposed",
)
for left, lower, transpose, unit in itertools.product((True, False), repeat=4):
    params = {"left_side": left, "lower": lower, "transpose_a": transpose, "unit_diagonal": unit}
    case(
        "triangular_solve_f32" + "".join(f"_{key.split('_')[0]}" for key, value in params.items() if value),
        lambda a, b, params=params: lax.linalg.triangular_solve(a, b, **params),
        triangular(3, 3),
        lambda rng, left=left: rng.standard_normal((3, 2) if left else (2, 3)).astype(np.float32),
        op="triangular_solve",
        params=params,
    )
case(
    "triangular_solve_f32_batch",
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    triangular(2, 3, 3),
    lambda rng: rng.standard_normal((2, 3, 1)).astype(np.float32),
    op="triangular_solve",
    params={"left_side": True, "lower": True},
)
case(
    "solve_f32",
    jnp.linalg.solve,
    positive_definite(3, 3),
    lambda rng: rng.standard_normal((3, 2)).astype(np.float32),
    op="solve",
    tol=1e-4,
)
case("inv_f32", jnp.linalg.inv, positive_definite(3, 3), op="inv", tol=1e-4)
case("det_f32", jnp.linalg.det, positive_definite(3, 3), op="det", tol=1e-4)
for order in (None, 1, 2, np.inf):
    label = {None: "default", np.inf: "inf"}.get(order, order)
    case(
        f"norm_f32_{label}",
        lambda x, o=order: jnp.linalg.norm(x, o, axis=-1),
        lambda rng: rng.standard_normal((2, 3)).astype(np.float32),
        op="norm",
        params={"ord": str(label), "axis": -1},
    )
