"""Sparse arrays and differential equations of jax.experimental."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse
from jax.experimental.sparse import BCOO, BCSR
from golden import Family, integers, normal, small, uniform, values

family = Family("experimental")


def indices(*sizes, nse, seed, beyond=1):
    """Unsorted indices, some of them equal, some out of range."""
    rng = np.random.default_rng(seed)
    return values(np.stack([rng.integers(0, n + beyond, nse) for n in sizes], 1), "i32")


both = lambda m: (m.data, m.indices)

# Conversions: the stored elements of an array with zeros, and back.
for dtype in ("f32", "i32", "f64", "c64"):
    fn = lambda x: both(BCOO.fromdense(x, nse=9))
    family.case(f"fromdense_{dtype}", fn, small(4, 3, dtype=dtype), op="fromdense", params={"nse": 9, "n_dense": 0}, batch=[(0,)] if dtype == "f32" else False)
fn = lambda x: both(BCOO.fromdense(x, nse=2))
family.case("fromdense_cut", fn, values([0, 3, 0, 4, 5]), op="fromdense", params={"nse": 2, "n_dense": 0}, batch=False)
fn = lambda x: both(BCOO.fromdense(x, nse=3, n_dense=1))
family.case("fromdense_rows", fn, values([[0, 0], [1, 0], [0, 0], [2, 3]]), op="fromdense", params={"nse": 3, "n_dense": 1}, batch=False)
fn = lambda x: both(BCOO.fromdense(x, nse=6))
family.case("fromdense_cube", fn, values([[[0, 1], [2, 0]], [[0, 0], [3, 4]]]), op="fromdense", params={"nse": 6, "n_dense": 0}, batch=False)

todense = lambda data, at, shape: BCOO((data, at), shape=shape).todense()
for name, shape, n_dense, dtype in (("vector", (5,), 0, "f32"), ("matrix", (4, 3), 0, "f32"), ("f64", (4, 3), 0, "f64"), ("cube", (3, 2, 4), 0, "f32"), ("rows", (4, 3), 1, "f32"), ("int", (4, 3), 0, "i32")):
    sparse_sizes, dense_sizes = shape[: len(shape) - n_dense], shape[len(shape) - n_dense :]
    data = small(8, *dense_sizes, dtype=dtype, lo=1, hi=9) if dtype == "i32" else normal(8, *dense_sizes, dtype=dtype)
    at = indices(*sparse_sizes, nse=8, seed=len(name))
    more = dict(params={"shape": shape}, batch=[(0, 0), (0, None)] if name == "matrix" else False)
    family.case(f"todense_{name}", lambda d, i, shape=shape: todense(d, i, shape), data, at, op="todense", **more)
    sort = lambda d, i, shape=shape: both(BCOO((d, i), shape=shape).sort_indices())
    family.case(f"sort_indices_{name}", sort, data, at, op="sort_indices", **{**more, "batch": False})
    for nse in (5, 8, 11):
        add = lambda d, i, shape=shape, nse=nse: both(sparse.bcoo_sum_duplicates(BCOO((d, i), shape=shape), nse=nse))
        family.case(f"bcoo_sum_duplicates_{name}_{nse}", add, data, at, op="bcoo_sum_duplicates", **{**more, "params": {"shape": shape, "nse": nse}, "batch": False})
holes = values([1, 0, 2, 0, 3, -1, 4, 5])
drop = lambda d, i: both(BCOO((d, i), shape=(4, 3)).sum_duplicates(nse=8))
family.case("sum_duplicates", drop, holes, indices(4, 3, nse=8, seed=3), params={"shape": (4, 3), "nse": 8}, grad=False, batch=False)
turned = lambda d, i: both(BCOO((d, i), shape=(3, 2, 4)).transpose((2, 0, 1)))
family.case("transpose", turned, normal(8), indices(3, 2, 4, nse=8, seed=4), params={"shape": (3, 2, 4), "axes": (2, 0, 1)}, batch=False)
for axes in ((0,), (1,), (0, 1)):
    fn = lambda d, i, axes=axes: sparse.bcoo_reduce_sum(BCOO((d, i), shape=(4, 3)), axes=axes).todense()
    family.case(f"sum_{len(axes)}{axes[0]}", fn, normal(8), indices(4, 3, nse=8, seed=5, beyond=0), op="sum", params={"shape": (4, 3), "axes": axes}, batch=False)
fn = lambda d, i: sparse.bcoo_reduce_sum(BCOO((d, i), shape=(4, 3, 2)), axes=(0, 2)).todense()
family.case("sum_dense", fn, normal(8, 2), indices(4, 3, nse=8, seed=5, beyond=0), op="sum", params={"shape": (4, 3, 2), "axes": (0, 2)}, batch=False)

# Elementwise.
matrix = indices(4, 3, nse=8, seed=6)
more = dict(params={"shape": (4, 3)}, batch=False)
family.case("multiply_scalar", lambda d, i, x: (BCOO((d, i), shape=(4, 3)) * x).todense(), normal(8), matrix, normal(), op="multiply", **more)
family.case("multiply_dense", lambda d, i, x: (BCOO((d, i), shape=(4, 3)) * x).todense(), normal(8), matrix, normal(4, 3), op="multiply", **more)
family.case("multiply_row", lambda d, i, x: (BCOO((d, i), shape=(4, 3)) * x).todense(), normal(8), matrix, normal(3), op="multiply", **more)
family.case("multiply_column", lambda d, i, x: (BCOO((d, i), shape=(4, 3)) * x).todense(), normal(8), matrix, normal(4, 1), op="multiply", **more)
family.case("negative", lambda d, i: (-BCOO((d, i), shape=(4, 3))).todense(), normal(8), matrix, **more)
family.case("divide", lambda d, i, x: (BCOO((d, i), shape=(4, 3)) / x).todense(), normal(8), matrix, uniform(lo=1, hi=2), **more)
for op in ("add", "subtract"):
    fn = lambda d, i, e, j, op=op: sparse.sparsify(getattr(jnp, op))(BCOO((d, i), shape=(4, 3)), BCOO((e, j), shape=(4, 3))).todense()
    family.case(op, fn, normal(8), matrix, normal(5), indices(4, 3, nse=5, seed=7), **more)

# Products.
for dtype, tol in (("f32", 2e-5), ("f64", 1e-12), ("c64", 2e-5)):
    more = dict(params={"shape": (4, 3)}, tol=tol, grad_tol=tol, grad=dtype != "c64")
    family.case(f"matvec_{dtype}", lambda d, i, x: BCOO((d, i), shape=(4, 3)) @ x, normal(8, dtype=dtype), matrix, normal(3, dtype=dtype), op="product", batch=[(0, 0, 0), (None, None, 0)] if dtype == "f32" else False, **more)
    family.case(f"matmat_{dtype}", lambda d, i, x: BCOO((d, i), shape=(4, 3)) @ x, normal(8, dtype=dtype), matrix, normal(3, 5, dtype=dtype), op="product", batch=[(0, None, 0)] if dtype == "f32" else False, **more)
    family.case(f"vecmat_{dtype}", lambda d, i, x: x @ BCOO((d, i), shape=(4, 3)), normal(8, dtype=dtype), matrix, normal(4, dtype=dtype), op="product_right", batch=False, **more)
    family.case(f"densemat_{dtype}", lambda d, i, x: x @ BCOO((d, i), shape=(4, 3)), normal(8, dtype=dtype), matrix, normal(5, 4, dtype=dtype), op="product_right", batch=[(0, 0, None)] if dtype == "f32" else False, **more)
family.case("matvec_mixed", lambda d, i, x: BCOO((d, i), shape=(4, 3)) @ x, integers(8), matrix, normal(3), op="product", params={"shape": (4, 3)}, batch=False)
cube = indices(3, 2, 4, nse=9, seed=8)
for name, contract in (("one", ((1,), (1,))), ("two", ((2, 0), (0, 2))), ("outer", ((), ()))):
    fn = lambda d, i, x, contract=contract: sparse.bcoo_dot_general(BCOO((d, i), shape=(3, 2, 4)), x, dimension_numbers=(contract, ((), ())))
    family.case(f"bcoo_dot_general_{name}", fn, normal(9), cube, normal(4, 2, 3), op="bcoo_dot_general", params={"shape": (3, 2, 4), "lhs": contract[0], "rhs": contract[1]}, batch=False, tol=2e-5, grad_tol=2e-5)
fn = lambda d, i, x: sparse.bcoo_dot_general(BCOO((d, i), shape=(3, 2, 4)), x, dimension_numbers=(((1,), (1,)), ((), ())))
family.case("bcoo_dot_general_rows", fn, normal(7, 4), indices(3, 2, nse=7, seed=9), normal(5, 2), op="bcoo_dot_general", params={"shape": (3, 2, 4), "lhs": (1,), "rhs": (1,)}, batch=False, grad="fwd", tol=2e-5, grad_tol=2e-5)


def slope(d, i, x):
    """the gradient of sum(sin(m @ x)) with respect to m"""
    m = BCOO((d, i), shape=(4, 3))
    g = sparse.grad(lambda m, x: jnp.sum(jnp.sin(m @ x)))(m, x)
    return both(g)


family.case("sparse_grad", slope, normal(8), matrix, normal(3), params={"shape": (4, 3)}, batch=False)


# Compressed rows.
def compressed(x):
    """data, columns and starts of rows, and their product with the sum of the columns"""
    m = BCSR.fromdense(x, nse=9)
    return m.data, m.indices, m.indptr, m.todense(), m @ jnp.sum(x, 0)


family.case("bcsr", compressed, small(4, 3), params={"nse": 9}, batch=False)

# Differential equations.
from jax.experimental.ode import odeint  # noqa: E402

decay = lambda y, t, rate: -rate * y + jnp.sin(t)
times = values([0.0, 0.4, 1.0, 1.7], "f64")
for dtype, tol in (("f32", 2e-4), ("f64", 1e-6)):
    rtol = {"rtol": 1e-6, "atol": 1e-6} if dtype == "f32" else {}
    fn = lambda y, t, rate, rtol=rtol: odeint(decay, y, t, rate, **rtol)
    more = dict(op="odeint", params=rtol, grad="rev", tol=tol / 10, grad_tol=tol)
    family.case(f"odeint_{dtype}", fn, normal(3, dtype=dtype), values([0.0, 0.4, 1.0, 1.7], dtype), uniform(3, lo=0.5, hi=2, dtype=dtype), batch=[(0, None, 0), (None, None, 0)] if dtype == "f64" else False, **more)
few = lambda y, t, rate: odeint(decay, y, t, rate, mxstep=3)
family.case("odeint_mxstep", few, normal(3, dtype="f64"), times, uniform(3, lo=0.5, hi=2, dtype="f64"), op="odeint", params={"mxstep": 3}, grad=False, batch=False, tol=1e-9)
short = lambda y, t, rate: odeint(decay, y, t, rate, hmax=0.03, rtol=1e-3, atol=1e-3)
family.case("odeint_hmax", short, normal(3, dtype="f64"), times, uniform(3, lo=0.5, hi=2, dtype="f64"), op="odeint", params={"hmax": 0.03, "rtol": 1e-3, "atol": 1e-3}, grad=False, batch=False, tol=1e-9)
loose = lambda y, t, rate: odeint(decay, y, t, rate, rtol=1e-2, atol=1e-2)
family.case("odeint_loose", loose, normal(3, dtype="f64"), times, uniform(3, lo=0.5, hi=2, dtype="f64"), op="odeint", params={"rtol": 1e-2, "atol": 1e-2}, grad="rev", batch=False, tol=1e-9, grad_tol=1e-8)


def lotka_volterra(prey, hunters, t, rates):
    """two populations, a tree, with captured rates"""
    step = lambda y, t: (rates[0] * y[0] - rates[1] * y[0] * y[1], rates[2] * y[0] * y[1] - rates[3] * y[1])
    return odeint(step, (prey, hunters), t, rtol=1e-8, atol=1e-8)


family.case("odeint_tree", lotka_volterra, uniform(2, lo=1, hi=2, dtype="f64"), uniform(2, lo=1, hi=2, dtype="f64"), times, uniform(4, lo=0.5, hi=1, dtype="f64"), grad="rev", batch=False, tol=1e-8, grad_tol=1e-6)
wave = lambda y, t: odeint(lambda y, t: 1j * y * t, y, t, rtol=1e-6, atol=1e-6)
family.case("odeint_c128", wave, normal(3, dtype="c128"), times, op="odeint_complex", grad=False, batch=False, tol=1e-9)
curvature = lambda y, t: jax.grad(lambda y: jnp.sum(jax.grad(lambda y: jnp.sum(odeint(lambda y, t: -y * y, y, t)[-1] ** 2))(y)))(y)
family.case("odeint_curvature", curvature, uniform(2, lo=0.5, hi=1, dtype="f64"), values([0.0, 0.5], "f64"), grad=False, batch=False, tol=1e-6)
