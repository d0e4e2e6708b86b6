"""Eigenvalues and Schur forms, minimization, interpolation, polynomials and Taylor series.

Eigenvalues have no order and eigenvectors no phase, so cases sort them by `real + 0.37 imag` and turn the largest element of
each vector to a positive real one. Decompositions are compared by what they must give together."""

import jax
import jax.numpy as jnp
import jax.scipy as scipy
import numpy as np
from jax.experimental.jet import jet
from jax.scipy import linalg as la
from jax.scipy.interpolate import RegularGridInterpolator
from jax.scipy.spatial.transform import Rotation, Slerp
from jax.scipy.ndimage import map_coordinates
from jax.scipy.optimize import minimize

from golden import Family, integers, normal, uniform, values

family = Family("science")


def order(w):
    return jnp.argsort(jnp.real(w) + 0.37 * jnp.imag(w))


def ordered(w):
    return w[order(w)]


def eigvals(a):
    """the eigenvalues, sorted"""
    return ordered(jnp.linalg.eigvals(a))


def eig(a):
    """the sorted eigenvalues, and their vectors with a positive largest element"""
    w, v = jnp.linalg.eig(a)
    largest = jnp.take_along_axis(v, jnp.argmax(jnp.abs(v), 0)[None], 0)
    return ordered(w), (v * jnp.conj(largest) / jnp.abs(largest))[:, order(w)]


family.case("eigvals_f64", eigvals, normal(5, 5, dtype="f64"), op="eigvals", tol=1e-9, grad_tol=2e-8, batch=[(0,)])
family.case("eigvals_c128", eigvals, normal(4, 4, dtype="c128"), op="eigvals", grad=False, batch=False, tol=1e-9)
for name, a in (("rotation", [[0, -1], [1, 0]]), ("permutation", [[0, 0, 1], [1, 0, 0], [0, 1, 0]])):
    family.case(f"eigvals_{name}", eigvals, values(a), op="eigvals", grad=False, batch=False, tol=1e-5)
for dtype, tol in (("f32", 2e-4), ("c128", 1e-9)):
    family.case(f"eig_{dtype}", eig, normal(4, 4, dtype=dtype), op="eig", grad=False, batch=False, tol=tol)


def schur(a, output):
    t, z = la.schur(a, output=output)
    back = z @ t @ jnp.conj(z.T)
    w = jnp.diagonal(t) if output == "complex" else jnp.linalg.eigvals(t)
    return back, z @ jnp.conj(z.T), jnp.tril(t, -1 if output == "complex" else -2), ordered(w)


for output in ("real", "complex"):
    fn = lambda a, output=output: schur(a, output)
    family.case(f"schur_{output}", fn, normal(6, 6, dtype="f64"), op="schur", params={"output": output}, grad=False, batch=False, tol=1e-9, doc="z t zᴴ, z zᴴ, what is below the diagonal or the blocks, the sorted eigenvalues")


def hessenberg(a):
    """q h qᴴ, q qᴴ, and what is below the subdiagonal"""
    h, q = la.hessenberg(a, calc_q=True)
    return q @ h @ q.T, q @ q.T, jnp.tril(h, -2)


family.case("hessenberg", hessenberg, normal(5, 5, dtype="f64"), grad=False, batch=False, tol=1e-11)


def csf(a):
    """z t zᴴ and the lower triangle of the complex form of the real one"""
    t, z = la.rsf2csf(*la.schur(a))
    return z @ t @ jnp.conj(z.T), jnp.tril(t, -1)


family.case("rsf2csf", csf, normal(5, 5, dtype="f64"), grad=False, batch=False, tol=1e-9)
family.case("sqrtm_general", lambda a: la.sqrtm(a), values([[4, 1, 0], [0, 3, -1], [1, 0, 2]], "f64"), op="sqrtm_general", grad=False, batch=False, tol=1e-9)
family.case("funm", lambda a: la.funm(a, jnp.exp), normal(4, 4, dtype="f64"), grad=False, batch=False, tol=1e-8)
family.case("solve_sylvester", la.solve_sylvester, normal(3, 3, dtype="f64"), normal(2, 2, dtype="f64"), normal(3, 2, dtype="f64"), grad=False, batch=False, tol=1e-8)
family.case("expm_frechet", la.expm_frechet, normal(3, 3), normal(3, 3), grad=False, batch=False, tol=1e-4)


def multiply(a, c):
    """the product of both results, which has no signs"""
    cq, r = la.qr_multiply(a, c)
    return cq @ r


family.case("qr_multiply", multiply, normal(4, 3), normal(2, 4), grad=False, batch=False, tol=2e-5)


# Minimization.
def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def found(x0):
    """the point, the value, and whether it was found, of Rosenbrock's function, in whose valley JAX's line search gives up"""
    r = minimize(rosenbrock, x0, method="BFGS", tol=1e-6)
    return r.x, r.fun, r.success


family.case("minimize", found, values([-1.2, 1.0, 0.5], "f64"), grad=False, batch=False, tol=1e-5)
bowl = lambda a, b: minimize(lambda x: 0.5 * x @ (a @ a.T + jnp.eye(4)) @ x - b @ x, jnp.zeros(4, a.dtype), method="BFGS").x
family.case("minimize_bowl", bowl, normal(4, 4), normal(4), grad=False, batch=False, tol=1e-3)

# Images.
at = [values([-1.7, -0.5, 0.0, 0.4, 1.5, 2.6, 3.2, 5.5]), values([0.2, -2.4, 1.5, 3.9, 0.5, 4.4, 2.0, -0.6])]
for mode in ("constant", "nearest", "mirror", "reflect", "wrap"):
    for rank in (0, 1):
        fn = lambda x, i, j, mode=mode, rank=rank: map_coordinates(x, [i, j], rank, mode=mode, cval=2.5)
        family.case(f"map_coordinates_{mode}_{rank}", fn, normal(4, 5), *at, op="map_coordinates", params={"mode": mode, "order": rank}, batch=[(0, None, None), (None, 0, 0)] if mode == "reflect" else False, grad=rank == 1, tol=2e-5, grad_tol=2e-5)
fn = lambda x, i: map_coordinates(x, [i], 1, mode="nearest")
family.case("map_coordinates_int", fn, integers(5), values([0.5, 1.5, 2.3, 9.0]), op="map_coordinates_int", batch=False, grad=False, tol=0)

# Grids.
grid = (np.array([0.0, 1.0, 2.5, 4.0], np.float32), np.array([-1.0, 0.0, 3.0], np.float32))
points = values([[0.5, 0.5], [4.0, 3.0], [0.0, -1.0], [2.5, 2.9], [5.0, 0.0], [-1.0, -2.0]])
for method in ("linear", "nearest"):
    for fill in (np.nan, 7.0, None):
        fn = lambda v, x, method=method, fill=fill: RegularGridInterpolator(grid, v, method=method, fill_value=fill, bounds_error=False)(x)
        name = f"grid_{method}_{'none' if fill is None else 'nan' if fill != fill else 'seven'}"
        family.case(name, fn, normal(4, 3), points, op="grid", params={"method": method, "fill": None if fill is None or fill != fill else fill, "extrapolate": fill is None}, grad=fill == 7.0, batch=False, tol=2e-5, grad_tol=2e-5)
fn = lambda v, x: RegularGridInterpolator(grid, v, fill_value=None, bounds_error=False)(x)
family.case("grid_vectors", fn, normal(4, 3, 2), points, op="grid", params={"method": "linear", "fill": None, "extrapolate": True}, batch=False, grad=False, tol=2e-5)
family.case("vq", lambda x, c: scipy.cluster.vq.vq(x, c), normal(6, 3), normal(4, 3), grad=False, batch=False, tol=1e-5)
family.case("vq_numbers", lambda x, c: scipy.cluster.vq.vq(x, c), normal(6), normal(4), op="vq", grad=False, batch=False, tol=1e-5)

# Rotations.
turned = dict(batch=False, tol=1e-5, grad_tol=1e-4)
family.case("rotation_matrix", lambda q: Rotation.from_quat(q).as_matrix(), normal(5, 4), **turned)
family.case("rotation_from_matrix", lambda q: Rotation.from_matrix(Rotation.from_quat(q).as_matrix()).as_quat(canonical=True), normal(9, 4), batch=False, grad=False, tol=1e-5)
family.case("rotation_vector", lambda q: Rotation.from_quat(q).as_rotvec(), normal(5, 4), **turned)
family.case("rotation_of_vector", lambda v: Rotation.from_rotvec(v).as_quat(), normal(5, 3, scale=2.0), **turned)
family.case("rotation_mrp", lambda q: Rotation.from_mrp(Rotation.from_quat(q).as_mrp()).as_quat(), normal(5, 4), **turned)
family.case("rotation_product", lambda p, q: (Rotation.from_quat(p) * Rotation.from_quat(q).inv()).as_quat(), normal(5, 4), normal(5, 4), **turned)
family.case("rotation_apply", lambda q, v: Rotation.from_quat(q).apply(v), normal(4), normal(5, 3), **turned)
family.case("rotation_magnitude", lambda q: Rotation.from_quat(q).magnitude(), normal(5, 4), **turned)
family.case("rotation_mean", lambda q, w: Rotation.from_quat(q).mean(w).as_matrix(), normal(5, 4), uniform(5, lo=0.5, hi=2), batch=False, grad=False, tol=1e-5)
for seq in ("xyz", "zxy", "ZYX", "XZY", "zxz", "YXY"):
    both = lambda a, seq=seq: (Rotation.from_euler(seq, a).as_quat(), Rotation.from_euler(seq, a).as_euler(seq))
    family.case(f"rotation_euler_{'fixed' if seq.islower() else 'turning'}_{seq.lower()}", both, uniform(6, 3, lo=0.1, hi=1.4), op="rotation_euler", params={"seq": seq}, batch=False, grad=False, tol=1e-5)
# Rotations at which the angles are not unique.
locked = values([[0.3, np.pi / 2, 0.5], [0.3, -np.pi / 2, 0.5]])
for seq in ("xyz", "ZYX"):
    fn = lambda a, seq=seq: Rotation.from_euler(seq, Rotation.from_euler(seq, a).as_euler(seq)).as_matrix()
    family.case(f"rotation_locked_{'fixed' if seq.islower() else 'turning'}", fn, locked, op="rotation_locked", params={"seq": seq}, batch=False, grad=False, tol=1e-3)
slerp = lambda q, t: Slerp.init(jnp.array([0.0, 1.0, 2.5, 4.0]), Rotation.from_quat(q))(t).as_matrix()
family.case("slerp", slerp, normal(4, 4), values([0.0, 0.25, 1.0, 1.9, 3.0, 4.0]), batch=False, grad=False, tol=2e-5)

# Polynomials.
family.case("polyfit", lambda x, y: jnp.polyfit(x, y, 2), normal(7), normal(7), tol=1e-3, grad_tol=2e-2, batch=[(0, 0)])
family.case("polyfit_f64", lambda x, y: jnp.polyfit(x, y, 3), normal(8, dtype="f64"), normal(8, 2, dtype="f64"), op="polyfit3", tol=1e-8, grad_tol=1e-6, batch=False)
family.case("polyfit_w", lambda x, y, w: jnp.polyfit(x, y, 2, w=w), normal(7, dtype="f64"), normal(7, dtype="f64"), uniform(7, lo=0.5, hi=2, dtype="f64"), grad=False, batch=False, tol=1e-8)
family.case("roots", lambda p: ordered(jnp.roots(p, strip_zeros=False)), values([2.0, -3.0, 1.0, 5.0, -0.5], "f64"), grad=False, batch=False, tol=1e-9)
family.case("poly", jnp.poly, normal(4), tol=2e-5, batch=False, grad_tol=2e-5)
family.case("poly_matrix", jnp.poly, normal(3, 3, dtype="f64"), op="poly", grad=False, batch=False, tol=1e-9)


# Series.
def taylor(x, y, dx, dy):
    """sin(x y) + exp(x) along a curve with first derivatives dx, dy and second ones dy, dx, third ones 0"""
    zero = jnp.zeros_like(x)
    value, series = jet(lambda x, y: jnp.sin(x * y) + jnp.exp(x), (x, y), ((dx, dy, zero), (dy, dx, zero)))
    return value, *series


family.case("jet", taylor, normal(3, dtype="f64"), normal(3, dtype="f64"), normal(3, dtype="f64"), normal(3, dtype="f64"), batch=False, tol=1e-10, grad_tol=1e-9)

# NumPy's.
NAN = np.nan
holes = values([[1.0, NAN, 3.0, -2.0], [NAN, NAN, 5.0, 0.5], [NAN, NAN, NAN, NAN]])
family.case("nanquantile", lambda x: jnp.nanquantile(x, jnp.array([0.0, 0.3, 1.0]), axis=1), holes, grad=False, batch=[(0,)])
family.case("nanquantile_slopes", lambda x: jnp.nanquantile(x, 0.4, axis=0), values([[1.0, 2.0], [NAN, -3.0], [5.0, 0.5]]), op="nanquantile_slopes", batch=False)
family.case("nanmedian", jnp.nanmedian, values([1.0, NAN, 4.0, 2.0]), grad=False, batch=False)
family.case("nanpercentile", lambda x: jnp.nanpercentile(x, 25.0, axis=1), holes, grad=False, batch=False)
family.case("partition", lambda x: (jnp.partition(x, 3, axis=1)[:, 3], jnp.sort(jnp.partition(x, 3, axis=1)[:, :3], 1)), normal(2, 7), grad=False, batch=False)
family.case("argpartition", lambda x: jnp.argpartition(x, 2)[2], normal(6), grad=False, batch=False)
family.case("sort_complex", jnp.sort_complex, normal(5), grad=False, batch=False)
family.case("piecewise", lambda x: jnp.piecewise(x, [x < 0, x > -0.5], [lambda x: -x, jnp.sin, lambda x: 2 * x]), normal(8), batch=False)
family.case("piecewise_zero", lambda x: jnp.piecewise(x, [x < 0], [jnp.exp]), normal(8), batch=False)
for bits in ("big", "little"):
    family.case(f"packbits_{bits}", lambda x, bits=bits: jnp.packbits(x, axis=-1, bitorder=bits), integers(2, 11, lo=0, hi=2), op="packbits", params={"order": bits}, batch=False)
    family.case(f"unpackbits_{bits}", lambda x, bits=bits: jnp.unpackbits(x, axis=-1, bitorder=bits), integers(2, 3, lo=0, hi=256, dtype="u8"), op="unpackbits", params={"order": bits}, batch=False)
family.case("multi_dot", lambda a, b, c, d: jnp.linalg.multi_dot([a, b, c, d]), normal(2, 5), normal(5, 3), normal(3, 4), normal(4), batch=False, tol=3e-5, grad_tol=3e-5)
family.case("cond", lambda x: (jnp.linalg.cond(x), jnp.linalg.cond(x, "fro"), jnp.linalg.cond(x, 1)), normal(2, 3, 3), grad=False, batch=False, tol=1e-3)
family.case("tensorinv", lambda x: jnp.linalg.tensorinv(x, 2), normal(2, 3, 6), grad=False, batch=False, tol=1e-3)
family.case("tensorsolve", jnp.linalg.tensorsolve, normal(2, 3, 6), normal(2, 3), batch=False, tol=1e-3, grad_tol=1e-2)
