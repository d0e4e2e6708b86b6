"""Functions without a family of their own: singular values, matrices of SciPy, largest elements along any axis, places of arrays."""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from golden import Family, integers, normal, small, uniform, values
from jax import lax

family = Family("various")


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

case("top_k", lambda x: lax.top_k(x, 2, axis=0), normal(4, 3), name="axis_0", params={"k": 2, "axis": 0}, tol=0, batch=[(0,)])
case("top_k", lambda x: lax.top_k(x, 2, axis=1), integers(2, 3, 2), name="axis_1", params={"k": 2, "axis": 1}, tol=0, batch=False)
case("approx_max_k", lambda x: lax.approx_max_k(x, 2, reduction_dimension=0), normal(4, 3), params={"k": 2, "axis": 0}, tol=0, batch=False)
case("approx_min_k", lambda x: lax.approx_min_k(x, 2), normal(2, 4), params={"k": 2, "axis": -1}, tol=0, batch=False)
case("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), normal(6), params={"bits": [8, 7]}, tol=0, grad_tol=0)
case("reduce_precision", lambda x: lax.reduce_precision(x, 4, 3), values([1e6, -1e6, 1e-6, 0.3]), name="small", params={"bits": [4, 3]}, tol=0, grad_tol=0, batch=False)
for label, options in {
    "plain": dict(filter_shape=(2, 3), window_strides=(1, 2), padding="VALID"),
    "same": dict(filter_shape=(3, 2), window_strides=(2, 1), padding="SAME"),
}.items():
    case(
        "conv_general_dilated_patches",
        lambda x, o=options: lax.conv_general_dilated_patches(x, **o),
        normal(2, 3, 5, 4),
        name=label,
        params={"filter": options["filter_shape"], "strides": options["window_strides"], "padding": options["padding"]},
        batch=[(0,)] if label == "plain" else False,
    )
places = np.array([2, 0, 2, 9], np.int32)
apart = np.array([2, 0, 1, 9], np.int32)
for op in ("divide", "power"):
    x, v = uniform(4, lo=0.5, hi=2), uniform(4, lo=1, hi=2)
    twice = lambda x, v, op=op: getattr(x.at[places], op)(v)
    once = lambda x, v, op=op: getattr(x.at[apart], op)(v, unique_indices=True)
    case(f"at_{op}", twice, x, v, params={"places": places.tolist()}, name="twice", batch=False, grad=False)
    case(f"at_{op}", once, x, v, params={"places": apart.tolist(), "unique": True}, batch=False)
case("at_apply", lambda x: x.at[np.array([2, 0])].apply(jnp.sin), normal(4), grad=False, batch=False)
case("map_batch_size", lambda x: lax.map(lambda x: jnp.sin(x).sum(), x, batch_size=3), normal(7, 2), batch=[(0,)])
case("fori_unroll", lambda x: lax.fori_loop(0, 5, lambda i, x: x * 1.5 + i, x, unroll=2), normal(3), batch=False)
case(
    "one_hot",
    lambda x: jax.nn.one_hot(x, 3, dtype=jnp.bfloat16, axis=0),
    integers(2, 4, lo=-1, hi=4),
    params={"axis": 0, "dtype": "bf16", "k": 3},
    batch=[(1,)],
    tol=0,
)
case("reduce", lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b + a * b, (0, 2)), normal(3, 2, 3), batch=[(1,)], tol=1e-4)
case(
    "reduce_window",
    lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (2, 3), (1, 2), "SAME"),
    normal(4, 5),
    grad=False,
    batch=[(0,)],
)
