"""Linear algebra."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import DTYPES, Family, normal

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

    def make(rng):
        a = 0.3 * rng.standard_normal(shape)
        if dtype == "c64":
            a = a + 0.3j * rng.standard_normal(shape)
        return (a + np.diag([1.0, -1.5, 2.0])).astype(DTYPES[dtype])

    return make


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

# Derivatives and vmap, with leading dimensions and complex numbers.


def full(name, fn, *inputs, **options):
    family.case(name, fn, *inputs, **({"tol": 5e-5, "grad_tol": 5e-4, "batch": [(0,) * len(inputs)]} | options))


def well_conditioned(*shape, dtype="f32"):
    """Far from singular, with rows out of order so that there is something to exchange."""

    def make(rng):
        a = 0.3 * rng.standard_normal(shape)
        if dtype in ("c64", "c128"):
            a = a + 0.3j * rng.standard_normal(shape)
        return (a + np.roll(2 * np.eye(*shape[-2:]), 1, axis=-2)).astype(DTYPES[dtype])

    return make


DECOMPOSED = {"f32": {}, "f64": {"tol": 1e-11, "grad_tol": 1e-10}, "c64": {}}

for dtype, tols in DECOMPOSED.items():
    once = tols | ({} if dtype == "f32" else {"batch": False})
    full(f"cholesky_{dtype}_grad", lax.linalg.cholesky, positive_definite(3, 3, dtype=dtype), op="cholesky", batch=False, **tols)
    for left, transpose, conjugate in ((True, False, False), (True, True, True), (False, True, False), (False, False, True)):
        params = {"left_side": left, "lower": transpose, "transpose_a": transpose, "conjugate_a": conjugate}
        full(
            f"triangular_solve_{dtype}_grad" + "".join(f"_{key.split('_')[0]}" for key, value in params.items() if value),
            lambda a, b, params=params: lax.linalg.triangular_solve(a, b, **params),
            triangular(3, 3, dtype=dtype),
            normal(*((3, 2) if left else (2, 3)), dtype=dtype),
            op="triangular_solve",
            params=params,
            batch=[(None, 0), (None, 2)] + [(0, 0), (2, None)] * (dtype == "f64"),
            **tols,
        )
    full(
        f"solve_{dtype}_grad", jnp.linalg.solve, well_conditioned(3, 3, dtype=dtype), normal(3, 2, dtype=dtype), op="solve",
        batch=[(0, 0), (None, 0), (0, None)], **tols,
    )
    full(f"inv_{dtype}_grad", jnp.linalg.inv, well_conditioned(4, 4, dtype=dtype), op="inv", batch=False, **tols)
    for n in (1, 2, 3, 5):
        full(f"det_{dtype}_{n}", jnp.linalg.det, well_conditioned(n, n, dtype=dtype), op="det", **once)
    full(f"slogdet_{dtype}", lambda x: tuple(jnp.linalg.slogdet(x)), well_conditioned(4, 4, dtype=dtype), op="slogdet", **once)
    for shape in ((4, 4), (5, 3), (3, 5)) + ((1, 1), (2, 3, 3)) * (dtype == "f32"):
        label = "x".join(map(str, shape))
        matrix = well_conditioned(*shape, dtype=dtype)
        full(f"lu_{dtype}_{label}", lambda x: tuple(lax.linalg.lu(x)), matrix, op="lu", **once)
        full(f"qr_{dtype}_{label}", lambda x: tuple(jnp.linalg.qr(x)), matrix, op="qr", **once)
        full(
            f"qr_{dtype}_{label}_complete",
            lambda x: tuple(jnp.linalg.qr(x, mode="complete")),
            matrix,
            op="qr",
            params={"mode": "complete"},
            grad=shape[-2] <= shape[-1],
            batch=False,
            **tols,
        )

    def projections(x):
        """v diag(w^2) v^H of the eigenvalues w and eigenvectors v"""
        w, v = jnp.linalg.eigh(x)
        return (v * (w * w)[..., None, :].astype(x.dtype)) @ v.conj().swapaxes(-1, -2)

    full(f"eigvalsh_{dtype}", jnp.linalg.eigvalsh, positive_definite(4, 4, dtype=dtype), op="eigvalsh", **once)
    full(f"eigh_projections_{dtype}", projections, positive_definite(3, 3, dtype=dtype), op="eigh_projections", batch=False,
         **(tols | ({} if dtype == "f64" else {"tol": 2e-4})))
    for n in (-2, 0, 5) if dtype == "f32" else ():
        full(
            f"matrix_power_{dtype}_{n}",
            lambda x, n=n: jnp.linalg.matrix_power(x, n),
            well_conditioned(3, 3, dtype=dtype),
            op="matrix_power",
            params={"n": n},
            batch=False,
            **tols,
        )


def second(name, fn, make):
    """The gradient of a sum of sines: its own derivatives are second ones."""
    full(f"{name}_f64_gradient", jax.grad(lambda x: sum(jnp.sin(y).sum() for y in jax.tree.leaves(fn(x)))), make,
         op=f"gradient_of_{name}", doc="gradient of the sum of sines of all results", tol=1e-11, grad_tol=1e-9)


second("cholesky", lax.linalg.cholesky, positive_definite(3, 3, dtype="f64"))
second("inv", jnp.linalg.inv, well_conditioned(3, 3, dtype="f64"))
second("det", jnp.linalg.det, well_conditioned(4, 4, dtype="f64"))
second("qr", lambda x: tuple(jnp.linalg.qr(x)), well_conditioned(4, 3, dtype="f64"))
second("lu", lambda x: lax.linalg.lu(x)[0], well_conditioned(3, 3, dtype="f64"))
second("slogdet", lambda x: jnp.linalg.slogdet(x)[1], well_conditioned(3, 3, dtype="f64"))
second("eigvalsh", jnp.linalg.eigvalsh, positive_definite(3, 3, dtype="f64"))

full("solve_f32_vector", jnp.linalg.solve, well_conditioned(3, 3), normal(3), op="solve")
full("solve_f32_stack_vector", jnp.linalg.solve, well_conditioned(2, 3, 3), normal(3), op="solve", batch=False)
full("solve_f32_broadcast", jnp.linalg.solve, well_conditioned(2, 1, 3, 3), normal(4, 3, 2), op="solve", batch=False)
full("lu_f32_70x90", lambda x: tuple(lax.linalg.lu(x)), normal(70, 90), op="lu", grad=False, batch=False, tol=2e-3)
full("lu_f64_130", lambda x: tuple(lax.linalg.lu(x)), normal(130, 130, dtype="f64"), op="lu", grad=False, batch=False, tol=1e-9)
full("qr_f64_70x50", lambda x: tuple(jnp.linalg.qr(x)), normal(70, 50, dtype="f64"), op="qr", grad=False, batch=False, tol=1e-10)
full(
    "lu_f32_singular", lambda x: tuple(lax.linalg.lu(x)), lambda rng: np.array([[0, 1, 2], [0, 0, 3], [0, 0, 4]], np.float32),
    op="lu", grad=False, batch=False,
)
full(
    "slogdet_f32_singular", lambda x: tuple(jnp.linalg.slogdet(x)), lambda rng: np.array([[1, 2], [2, 4]], np.float32),
    op="slogdet", grad=False, batch=False,
)
full(
    "det_f32_singular", jnp.linalg.det,
    lambda rng: np.array([[1, 2, 0, 0], [0, 1, 3, 0], [1, 3, 3, 0], [2, 0, 1, 0]], np.float32), op="det", batch=False,
    doc="of rank n - 1: its gradient is the cofactors",
)
for n in (0, 1):
    for op, fn in {
        "cholesky": lax.linalg.cholesky,
        "inv": jnp.linalg.inv,
        "det": jnp.linalg.det,
        "slogdet": lambda x: tuple(jnp.linalg.slogdet(x)),
        "qr": lambda x: tuple(jnp.linalg.qr(x)),
        "eigvalsh": jnp.linalg.eigvalsh,
    }.items():
        full(f"{op}_f32_empty_{n}" if n == 0 else f"{op}_f32_one", fn, lambda rng, n=n: np.full((n, n), 4, np.float32), op=op,
             grad=False, batch=False)
full("det_i32", jnp.linalg.det, lambda rng: np.array([[1, 2], [3, 4]], np.int32), op="det")
full("matrix_power_i32", lambda x: jnp.linalg.matrix_power(x, 5), lambda rng: np.array([[1, 2], [3, 4]], np.int32),
     op="matrix_power", params={"n": 5}, tol=0)
for order in (None, "fro", 0, 0.5, 1, -1, 2, 3, np.inf, -np.inf):
    for axis in (-1, (0, 1), (2, 0), None):
        label = {None: "default", np.inf: "inf", -np.inf: "-inf"}.get(order, str(order))
        pair = isinstance(axis, tuple)
        if (pair and order in (0, 0.5, 3)) or (axis == -1 and order == "fro") or (axis is None and order is not None):
            continue
        for dtype in ("f32", "c64"):
            for keepdims in (False, True) if dtype == "f32" and order in (None, 1) else (False,):
                params = {"ord": label, "axis": axis if not pair else list(axis)} | ({"keepdims": True} if keepdims else {})
                name = f"norm_{dtype}_{label}_" + ("all" if axis is None else str(axis).replace(" ", ""))
                full(
                    name + "_keepdims" * keepdims,
                    lambda x, o=order, axis=axis, keepdims=keepdims: jnp.linalg.norm(x, o, axis=axis, keepdims=keepdims),
                    normal(2, 4, 3, dtype=dtype),
                    op="norm",
                    params=params,
                    grad=not keepdims and order != 0,
                    batch=[(1,)] if not keepdims and dtype == "f32" and order in (None, 1) else False,
                )

for shape, axis, dtype in (((2, 3), -1, "f32"), ((5, 3), -1, "f32"), ((2, 3, 4, 6), 1, "f32"), ((3, 0), -1, "f32"), ((4, 4), -1, "c64")):
    full(
        f"orthogonal_{dtype}_{'x'.join(map(str, shape))}",
        lambda key, shape=shape, axis=axis, dtype=dtype: jax.nn.initializers.orthogonal(0.5, axis)(key, shape, DTYPES[dtype]),
        lambda rng: np.array([0, 42], np.uint32),
        op="initializers.orthogonal",
        params={"scale": 0.5, "shape": list(shape), "axis": axis, "dtype": dtype},
        tol=2e-6,
    )
