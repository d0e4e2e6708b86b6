"""Sorting and its relatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import Family, bools, integers, normal, small, uniform, values

family = Family("sort")
NAN, INF = np.nan, np.inf
MIXED = values([[3, NAN, -0.0, 0.0, -INF], [INF, 1, NAN, -1, 1]])

for op, fn in {"sort": jnp.sort, "argsort": jnp.argsort}.items():
    for axis in (-1, 0, 1):
        family.case(
            f"{op}_f32_axis_{'last' if axis < 0 else axis}",
            lambda x, fn=fn, axis=axis: fn(x, axis=axis),
            normal(3, 2, 4),
            op=op,
            params={"axis": axis},
            batch=[(0,), (2,)],
        )
    for label, x in {
        "f32_nan": MIXED,
        "f32_ties": small(2, 8, lo=-1, hi=2),
        "i32": integers(2, 6),
        "u8": integers(6, lo=0, hi=256, dtype="u8"),
        "bool": bools(6),
        "bf16": normal(6, dtype="bf16"),
        "f64": normal(6, dtype="f64"),
        "f32_empty": normal(2, 0),
        "f32_one": normal(1),
    }.items():
        family.case(
            f"{op}_{label}",
            lambda x, fn=fn: fn(x),
            x,
            op=op,
            params={"axis": -1},
            batch=False,
            grad="ties" not in label and "nan" not in label,
        )
    family.case(
        f"{op}_f32_descending",
        lambda x, fn=fn: fn(x, descending=True),
        values([[3, NAN, 1, 2, 1, 3]]),
        op=op,
        params={"axis": -1, "descending": True},
        batch=False,
        grad=False,
    )
    family.case(f"{op}_f32_flat", lambda x, fn=fn: fn(x, axis=None), normal(2, 3), op=op, params={"axis": None}, batch=False)

family.case(
    "sort_by_key_f32",
    lambda k, v: lax.sort((k, v), dimension=0, num_keys=1),
    normal(6),
    normal(6),
    op="sort",
    params={"axis": 0, "num_keys": 1},
    batch=[(0, 0), (0, None), (None, 1)],
)
family.case(
    "sort_by_key_i32_stable",
    lambda k, v, w: lax.sort((k, v, w), dimension=1, num_keys=1, is_stable=True),
    integers(2, 8, lo=0, hi=3),
    integers(2, 8),
    normal(2, 8),
    op="sort",
    params={"axis": 1, "num_keys": 1},
)
family.case(
    "sort_by_two_keys",
    lambda a, b, v: lax.sort((a, b, v), dimension=0, num_keys=2),
    small(8, lo=0, hi=3),
    integers(8, lo=0, hi=3),
    values(np.arange(8), "i32"),
    op="sort",
    params={"axis": 0, "num_keys": 2},
    batch=False,
    grad=False,
)
for label, x, k in [
    ("f32", normal(2, 6), 3),
    ("f32_ties", small(2, 8, lo=0, hi=3), 5),
    ("f32_all", normal(5), 5),
    ("f32_zero", normal(5), 0),
    ("i32", integers(7), 2),
    ("bf16", normal(8, dtype="bf16"), 3),
    ("f32_nan", values([1, NAN, 3, -INF, INF, NAN]), 4),
]:
    family.case(
        f"top_k_{label}",
        lambda x, k=k: lax.top_k(x, k),
        x,
        op="top_k",
        params={"k": k},
        batch=[(0,), (1,)] if label == "f32" else False,
        grad=label not in ("f32_ties", "f32_nan"),
    )
for label, x, k, axis, mode in [
    ("f32", normal(4, 6), 3, 0, "largest"),
    ("f32_smallest", normal(3, 6), 2, 0, "smallest"),
    ("f32_ties", small(2, 8, lo=0, hi=3), 5, 1, "smallest"),
    ("i8", values([-128, 0, 127, -128], "i8"), 3, 0, "smallest"),
    ("u8", values([255, 0, 3, 0], "u8"), 4, 0, "smallest"),
    ("f32_nan", values([1, NAN, 3, -INF, INF, NAN]), 5, 0, "smallest"),
]:
    family.case(
        f"top_k_of_{label}",
        lambda x, k=k, axis=axis, mode=mode: jnp.top_k(x, k, axis=axis, mode=mode),
        x,
        op="top_k_of",
        params={"k": k, "axis": axis, "mode": mode},
        batch=[(0,), (1,)] if label == "f32_smallest" else False,
        grad=label in ("f32", "f32_smallest"),
    )
family.case("median_f32", lambda x: jnp.median(x, axis=1), normal(2, 5), op="median", params={"axis": 1}, batch=False)
family.case(
    "searchsorted_f32",
    jnp.searchsorted,
    values([-1, 0, 0, 1, 2]),
    uniform(7, lo=-2, hi=3),
    op="searchsorted",
    batch=False,
    grad=False,
)
family.case(
    "one_hot_argmax",
    lambda x: jax.nn.one_hot(jnp.argmax(x, -1), 4),
    normal(3, 4),
    op="one_hot",
    doc="one_hot(argmax(x, -1), 4)",
    batch=False,
    grad=False,
)
for axis, x, batch in [(0, normal(4, 3), [(0,)]), (1, integers(2, 3, 2), False)]:
    family.case(
        f"top_k_axis_{axis}",
        lambda x, axis=axis: lax.top_k(x, 2, axis=axis),
        x,
        op="top_k",
        params={"k": 2, "axis": axis},
        tol=0,
        grad_tol=3e-4,
        batch=batch,
    )
family.case(
    "approx_max_k_f32",
    lambda x: lax.approx_max_k(x, 2, reduction_dimension=0),
    normal(4, 3),
    op="approx_max_k",
    params={"k": 2, "axis": 0},
    tol=0,
    grad_tol=3e-4,
    batch=False,
)
family.case(
    "approx_min_k_f32",
    lambda x: lax.approx_min_k(x, 2),
    normal(2, 4),
    op="approx_min_k",
    params={"k": 2, "axis": -1},
    tol=0,
    grad_tol=3e-4,
    batch=False,
)
