"""Functions of NumPy that are made of others: truth, stacking, statistics, sets, grids, segments."""

import jax
import jax.numpy as jnp
import numpy as np
from golden import Family, bools, integers, normal, small, uniform, values

family = Family("numpy")
NAN, INF = np.nan, np.inf
ODD = values([[3, NAN, -0.0, 0.0, -INF], [INF, 1, NAN, -1, 1]])
ALL_NAN = values([[NAN, NAN, NAN], [1, NAN, -2]])


def case(op, fn, *inputs, name=None, **options):
    family.case(f"{op}_{name or 'f32'}", fn, *inputs, op=op, **options)


for op in ("logical_and", "logical_or", "logical_xor"):
    fn = getattr(jnp, op)
    case(op, fn, small(3, 4), small(4), grad=False)
    case(op, fn, ODD, integers(5, lo=-1, hi=2), name="mixed", batch=False, grad=False)
    case(op, fn, bools(6), integers(6, lo=0, hi=2, dtype="u8"), name="bool_u8", batch=False, grad=False)

CLOSE = values([1.0, 1.0, 1.0, INF, INF, -INF, NAN, 0.0, 1e-9, 100.0])
NEAR = values([1.0, 1.00002, 1.000001, INF, -INF, -INF, NAN, 1e-9, 0.0, 100.0009])
close = lambda x, y: jnp.isclose(x, y, rtol=1e-5, atol=1e-8)
case("isclose", close, CLOSE, NEAR, grad=False)
case("isclose", close, integers(5, lo=0, hi=3), integers(5, lo=0, hi=3), name="i32", grad=False)
case("isclose", close, normal(4, dtype="bf16"), normal(4, dtype="bf16"), name="bf16", grad=False)
case("array_equal", jnp.array_equal, small(3, lo=0, hi=1), small(3, lo=0, hi=1), grad=False)
case("array_equal", jnp.array_equal, normal(3), normal(3), name="unlike", grad=False)
case("array_equal", jnp.array_equal, normal(3), normal(4), name="shapes", batch=False, grad=False)
for label, axes in {"all": None, "axis_0": (0,), "axis_last": (-1,)}.items():
    case("count_nonzero", lambda x, axes=axes: jnp.count_nonzero(x, axis=axes), ODD, name=label, params={"axes": axes}, grad=False)
case("nan_to_num", jnp.nan_to_num, ODD)
case("nan_to_num", jnp.nan_to_num, values([NAN, INF, -INF, 2], "bf16"), name="bf16", batch=False)
case("nan_to_num", jnp.nan_to_num, values([NAN, INF, -INF, 2], "f16"), name="f16", batch=False)
case("nan_to_num", jnp.nan_to_num, integers(4), name="i32", batch=False)
case("isin", jnp.isin, integers(3, 4, lo=0, hi=9), integers(3, lo=0, hi=9), name="i32", batch=[(0, None)])
case("isin", jnp.isin, ODD, values([NAN, 1, -INF, 0]), batch=False, grad=False)

for op in ("atleast_1d", "atleast_2d", "atleast_3d"):
    for label, shape in {"scalar": (), "vector": (3,), "matrix": (2, 3), "cube": (2, 2, 2)}.items():
        case(op, getattr(jnp, op), normal(*shape), name=label, batch=[(0,)])
for op in ("hstack", "vstack", "dstack", "column_stack"):
    fn = getattr(jnp, op)
    case(op, lambda x, y, fn=fn: fn([x, y]), normal(3), normal(3), name="vectors")
    case(op, lambda x, y, fn=fn: fn([x, y]), normal(2, 3), normal(2, 3), name="matrices")
    case(op, lambda x, y, fn=fn: fn([x, y]), integers(3), normal(3), name="mixed", batch=False)
case("append", jnp.append, normal(2, 3), normal(4), name="flat", params={"axis": None})
case("append", lambda x, y: jnp.append(x, y, axis=1), normal(2, 3), normal(2, 1), name="axis_1", params={"axis": 1})

for label, axes in {"all": None, "axis_0": (0,), "axes_0_2": (0, 2)}.items():
    case(
        "average",
        lambda x, w, axes=axes: jnp.average(x, weights=w, axis=axes),
        normal(2, 3, 4),
        uniform(2, 3, 4, lo=0.5, hi=2.0),
        name=label,
        params={"axes": axes},
        grad_tol=1e-4,
    )
    case("ptp", lambda x, axes=axes: jnp.ptp(x, axis=axes), normal(2, 3, 4), name=label, params={"axes": axes})
    for q in (0.0, 0.25, 0.5, 0.9, 1.0):
        case(
            "quantile",
            lambda x, q=q, axes=axes: jnp.quantile(x, q, axis=axes),
            normal(2, 3, 4),
            name=f"{label}_{q}",
            params={"axes": axes, "q": q},
            tol=1e-5,
        )
    case("median", lambda x, axes=axes: jnp.median(x, axis=axes), normal(2, 3, 4), name=label, params={"axes": axes}, tol=1e-5)
case("median", lambda x: jnp.median(x, axis=1), ODD, name="odd", params={"axes": [1]}, batch=False, grad=False)
case("median", lambda x: jnp.median(x, axis=0), integers(5, 2), name="i32", params={"axes": [0]}, batch=False)
case("median", lambda x: jnp.median(x, axis=0), normal(5, 2, dtype="bf16"), name="bf16", params={"axes": [0]}, batch=False)
case("quantile_of", lambda x, q: jnp.quantile(x, q, axis=0), normal(7, 3), values([0.1, 0.5, 0.75, 1.0]), tol=1e-5, wrt=[0])
case("percentile", lambda x: jnp.percentile(x, 30.0, axis=0), normal(7, 3), params={"axes": [0], "q": 30.0}, tol=1e-5)

for op in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"):
    fn = getattr(jnp, op)
    for label, axes in {"all": None, "axis_1": (1,)}.items():
        case(op, lambda x, fn=fn, axes=axes: fn(x, axis=axes), values([[3, NAN, 1], [2, 5, NAN]]), name=label, params={"axes": axes}, grad_tol=1e-4, tol=1e-5)
    case(op, lambda x, fn=fn: fn(x, axis=1), ALL_NAN, name="all_nan", params={"axes": [1]}, batch=False, grad=False)
    case(op, lambda x, fn=fn: fn(x, axis=1), integers(2, 3, lo=0, hi=4), name="i32", params={"axes": [1]}, batch=False, tol=1e-5)

case("bincount", lambda x: jnp.bincount(x, length=6), integers(12, lo=-2, hi=9), name="i32", params={"length": 6})
for bins in (1, 5):
    case("histogram", lambda x, bins=bins: jnp.histogram(x, bins=bins), uniform(30), name=f"bins_{bins}", params={"bins": bins}, grad=False)
case("histogram", lambda x: jnp.histogram(x, bins=4), values([2.0, 2.0, 2.0]), name="alike", params={"bins": 4}, batch=False, grad=False)
case("digitize", jnp.digitize, uniform(9, lo=-2, hi=2), values([-1.0, 0.0, 0.5, 1.0]), batch=[(0, None)], grad=False)
case("searchsorted_right", lambda a, v: jnp.searchsorted(a, v, side="right"), values([1.0, 2.0, 2.0, 2.0, 5.0, NAN]), values([0.0, 1.0, 2.0, 5.0, 6.0, NAN]), batch=[(None, 0)], grad=False)
for n in (1, 2, 5):
    case("diff", lambda x, n=n: jnp.diff(x, n=n, axis=1), normal(2, 4), name=f"n_{n}", params={"n": n, "axis": 1}, batch=n < 5, grad=n < 5)
case("diff", lambda x: jnp.diff(x), bools(5), name="bool", params={"n": 1, "axis": -1}, batch=False)
case("diff", lambda x: jnp.diff(x, axis=0), integers(5, 2, dtype="u8"), name="u8", params={"n": 1, "axis": 0}, batch=False)
case("trapezoid", lambda y: jnp.trapezoid(y, dx=0.5, axis=0), normal(4, 3), params={"dx": 0.5, "axis": 0})
case("interp", jnp.interp, uniform(9, lo=-1, hi=4), values([0.0, 1.0, 1.0, 3.0]), normal(4), batch=[(0, None, None)], wrt=[0, 2])
case("interp", jnp.interp, uniform(3, lo=-1, hi=4), values([0.5]), normal(1), name="one_point", batch=False, grad=False)
case("cov", jnp.cov, normal(3, 6), tol=1e-5, grad_tol=1e-4)
case("cov", jnp.cov, normal(6), name="vector", tol=1e-5, grad_tol=1e-4)

SPARSE = values([[0, 2, 0, 1], [3, 0, 0, NAN]])
case("flatnonzero", lambda x: jnp.flatnonzero(x, size=3), SPARSE, name="less", params={"size": 3}, grad=False)
case("flatnonzero", lambda x: jnp.flatnonzero(x, size=7), SPARSE, name="more", params={"size": 7}, grad=False)
case("nonzero", lambda x: jnp.nonzero(x, size=6), SPARSE, params={"size": 6}, grad=False)
case("argwhere", lambda x: jnp.argwhere(x, size=6), SPARSE, params={"size": 6}, grad=False)
case("unravel_index", lambda i: jnp.unravel_index(i, (2, 3, 4)), integers(8, lo=0, hi=24), name="i32", params={"shape": [2, 3, 4]})
case("unravel_index", lambda i: jnp.unravel_index(i, (2, 3)), values([-1, -7, 5, 6, 99], "i32"), name="outside", params={"shape": [2, 3]}, batch=False)
case("unique", lambda x: jnp.unique(x, size=4), integers(9, lo=0, hi=5), name="i32", params={"size": 4})
case("unique", lambda x: jnp.unique(x, size=8), ODD, params={"size": 8}, batch=False, grad=False)

case("cross", jnp.cross, normal(4, 3), normal(3))
case("kron", jnp.kron, normal(2, 3), normal(2, 2))
case("kron", jnp.kron, normal(3), normal(2, 2), name="ranks")
case("hypot", jnp.hypot, values([3.0, 1e30, 0.0, INF, NAN, -1.0]), values([4.0, 1e30, 0.0, NAN, 1.0, 2.0]), batch=False, grad=False, tol=1e-6)
case("hypot", jnp.hypot, normal(6), normal(6), name="normal", tol=1e-6, grad_tol=1e-5)

IDS = values([0, 2, -1, 2, 7, 0, 1], "i32")
for op in ("segment_sum", "segment_prod", "segment_max", "segment_min"):
    fn = getattr(jax.ops, op)
    batch = [(0, None), (None, 0)]
    case(op, lambda x, i, fn=fn: fn(x, i, num_segments=5), normal(7, 2), IDS, params={"n": 5}, batch=batch, grad=op != "segment_prod")
    case(op, lambda x, i, fn=fn: fn(x, i, num_segments=5), integers(7, lo=1, hi=5), IDS, name="i32", params={"n": 5}, batch=False)
    case(op, lambda x, i, fn=fn: fn(x, i, num_segments=5), normal(7, dtype="bf16"), IDS, name="bf16", params={"n": 5}, batch=False, grad=False)

for dtype in ("f32", "i32"):
    case("full", lambda x: jnp.full((2, 3), x), normal(3) if dtype == "f32" else integers(3), name=dtype, batch=False)
case("full_dtype", lambda x: jnp.full((2, 3), x, jnp.int8), normal(3), grad=False)
family.case("tril_indices", lambda: jnp.tril_indices(4, 1), params={"n": 4, "k": 1}, batch=False, grad=False)
family.case("triu_indices", lambda: jnp.triu_indices(4, -1), params={"n": 4, "k": -1}, batch=False, grad=False)
family.case("diag_indices", lambda: jnp.diag_indices(3), params={"n": 3}, batch=False, grad=False)
family.case("tri", lambda: jnp.tri(3, 4, 1), params={"n": 3, "m": 4, "k": 1}, batch=False, grad=False)
family.case("logspace", lambda: jnp.logspace(-1.0, 2.0, 7), params={"n": 7}, tol=1e-5, batch=False, grad=False)
family.case("geomspace", lambda: jnp.geomspace(0.5, 64.0, 8), params={"n": 8}, tol=1e-5, batch=False, grad=False)
