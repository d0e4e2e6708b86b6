"""Singular values and what they give (pseudoinverses, ranks, least squares), and the matrices of jax.scipy.linalg."""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax

from golden import Family, normal, values

family = Family("matrices")


def case(op, fn, *inputs, name="f32", params=None, tol=3e-5, grad_tol=3e-4, **options):
    family.case(f"{op}_{name}", fn, *inputs, op=op, params=params, tol=tol, grad_tol=grad_tol, **options)


def weighted(x):
    """u diag(1, 2, …) vᴴ, which does not depend on the signs of columns."""
    u, _, vh = jnp.linalg.svd(x, full_matrices=False)
    return (u * jnp.arange(1, u.shape[-1] + 1).astype(x.dtype)) @ vh


def whole(x):
    """u uᴴ, v vᴴ and the product of all three, of the full matrices."""
    u, s, vh = jnp.linalg.svd(x, full_matrices=True)
    k = s.shape[-1]
    return jnp.abs(u @ jnp.conj(u.mT)), jnp.abs(vh @ jnp.conj(vh.mT)), (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]


for label, shape in {"square": (3, 3), "tall": (5, 3), "wide": (2, 4)}.items():
    for dtype in ("f32", "c64"):
        batch = [(0,), (2,)] if (label, dtype) == ("tall", "f32") else False
        case("svdvals", lambda x: jnp.linalg.svd(x, compute_uv=False), normal(*shape, dtype=dtype), name=f"{dtype}_{label}", batch=batch)
        case("svd_weighted", weighted, normal(*shape, dtype=dtype), name=f"{dtype}_{label}", batch=False, tol=1e-4, grad_tol=2e-3)
case("svdvals", lambda x: jnp.linalg.svd(x, compute_uv=False), normal(2, 3, 3, dtype="f64"), name="f64", tol=1e-11, grad_tol=1e-10, batch=False)
case("svdvals", lambda x: jnp.linalg.svd(x, compute_uv=False), values([[1, 2], [2, 4], [0, 0]]), name="singular", grad=False, batch=False)
case("svdvals", lambda x: jnp.linalg.svd(x, compute_uv=False), np.zeros((3, 2), np.float32), name="zeros", grad=False, batch=False)
case("svdvals", lambda x: jnp.linalg.svd(x, compute_uv=False), normal(3, 3, scale=1e-25), name="tiny", grad=False, batch=False)
case("svd_full", whole, normal(4, 2), name="tall", grad=False, batch=False, tol=1e-4)
case("svd_full", whole, values([[1, 2, 3], [2, 4, 6], [1, 1, 1]]), name="singular", grad=False, batch=False, tol=1e-4)
case("pinv", jnp.linalg.pinv, normal(4, 3), tol=1e-4, grad_tol=2e-3)
case("pinv", jnp.linalg.pinv, values([[1, 2], [2, 4], [3, 6]]), name="singular", batch=False, tol=1e-4, grad_tol=2e-3)
case("pinv", jnp.linalg.pinv, normal(2, 3, dtype="c64"), name="c64", batch=False, tol=1e-4, grad_tol=2e-3)
case("matrix_rank", jnp.linalg.matrix_rank, values([[[1, 2], [2, 4]], [[1, 0], [0, 3]]]), grad=False, batch=False)
solved = lambda a, b: tuple(jnp.linalg.lstsq(a, b))
case("lstsq", lambda a, b: solved(a, b)[:3], normal(5, 3), normal(5, 2), batch=False, grad=False, tol=1e-4)
case("lstsq", lambda a, b: solved(a, b)[:3], values([[1, 2], [2, 4], [1, 2]]), normal(3), name="singular", batch=False, grad=False, tol=1e-4)

lower = values([[2.0, 0, 0], [0.5, 1.5, 0], [-1, 0.3, 1]])
case("cho_solve", lambda l, b: jsl.cho_solve((l, True), b), lower, normal(3, 2), batch=False, grad_tol=1e-3)
case("cho_solve", lambda l, b: jsl.cho_solve((l, True), b), lower, normal(3), name="vector", batch=False, grad_tol=1e-3)
case("block_diag", lambda *xs: jsl.block_diag(*xs), normal(2, 3), normal(2), normal(), batch=False, tol=0)
case("toeplitz", jsl.toeplitz, normal(3), normal(4), batch=False, tol=0)
case("toeplitz_symmetric", jsl.toeplitz, normal(3), batch=False, tol=0)
case("expm", jsl.expm, normal(3, 3), tol=1e-4, grad_tol=2e-3, batch=[(0,)])
case("expm", jsl.expm, normal(3, 3, scale=6.0), name="large", tol=2e-3, grad=False, batch=False)
case("expm", jsl.expm, normal(2, 2, dtype="f64"), name="f64", tol=1e-10, grad_tol=1e-9, batch=False)

solve = lambda dl, d, du, b: lax.linalg.tridiagonal_solve(dl, d, du, b)
diagonals = values([[9.0, 1, -1, 0.5], [0, 1, 2, 3]]), values([[4.0, 5, 3, 4], [8, 9, 10, 7]]), values([[1.0, 0.5, -1, 7], [1, 2, 3, 9]])
case("tridiagonal_solve", solve, *diagonals, normal(2, 4, 2), batch=[(0, 0, 0, 0)])
# Without an exchange of rows the first pivot is 0, and the third one has no digits.
pivots = values([0.0, 1, 1, 3]), values([0.0, 2, 1e-6, 1]), values([1.0, 1, 2, 0])
case("tridiagonal_solve", solve, *pivots, normal(4, 2), name="pivots", batch=False)
case("tridiagonal_solve", solve, *(normal(5, dtype="f64") for _ in range(3)), normal(5, 1, dtype="f64"), name="f64", batch=False, tol=1e-9, grad_tol=1e-8)
case("tridiagonal_solve", solve, *(normal(5, dtype="c64") for _ in range(3)), normal(5, 2, dtype="c64"), name="c64", batch=False, tol=1e-4, grad_tol=2e-3)


def hermitian(x, lower):
    """The form of LAPACK of x + xᴴ."""
    return tuple(lax.linalg.tridiagonal(x + jnp.conj(x.mT), lower=lower))


for dtype in ("f32", "c64", "f64"):
    for lower in (True, False):
        case(
            "tridiagonal",
            lambda x, lower=lower: hermitian(x, lower),
            normal(4, 4, dtype=dtype),
            params={"lower": lower},
            name=f"{dtype}_{'lower' if lower else 'upper'}",
            grad=False,
            batch=[(0,)] if dtype == "f32" else False,
            tol=1e-10 if dtype == "f64" else 1e-4,
        )
