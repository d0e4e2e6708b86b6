"""Reductions, cumulative reductions and softmax. Parameters: axes (null: all of them) or axis, keepdims."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import Family, bools, integers, normal, small, uniform, values

family = Family("reduce")
NAN, INF = np.nan, np.inf

REDUCE = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
    "mean": jnp.mean,
    "var": jnp.var,
    "std": jnp.std,
    "logsumexp": jax.nn.logsumexp,
    "any": jnp.any,
    "all": jnp.all,
}
AXES = {
    "all": (None, False),
    "axis_0": ((0,), False),
    "axis_last": ((-1,), False),
    "axes_0_2": ((0, 2), False),
    "axes_2_1_keepdims": ((2, 1), True),
    "all_keepdims": (None, True),
    "no_axes": ((), False),
}


def reduction(op, axes, keepdims, x, name, *, more=None, **options):
    fn = REDUCE[op]
    more = more or {}
    family.case(
        name,
        lambda x: fn(x, axis=axes, keepdims=keepdims, **more),
        x,
        op=op,
        params={"axes": axes, "keepdims": keepdims, **more},
        **options,
    )


for op in REDUCE:
    x = bools(2, 3, 4) if op in ("any", "all") else normal(2, 3, 4)
    dtype = "bool" if op in ("any", "all") else "f32"
    for label, (axes, keepdims) in AXES.items():
        batch = [(0,), (3,), (1,)] if label in ("axes_0_2", "axis_last") else False
        # The deviation of one element is 0, where the square root has no derivative.
        grad = not (op == "std" and label == "no_axes")
        reduction(op, axes, keepdims, x, f"{op}_{dtype}_{label}", batch=batch, grad=grad, tol=3e-5, grad_tol=3e-5)
for op in ("any", "all"):
    reduction(op, None, False, bools(), f"{op}_bool_scalar", batch=False)
for op in ("sum", "max", "mean", "logsumexp"):
    reduction(op, None, False, normal(), f"{op}_f32_scalar", batch=False)
for op in ("sum", "prod", "mean", "var", "any", "all", "logsumexp"):
    x = bools(0, 3) if op in ("any", "all") else normal(0, 3)
    reduction(op, (0,), False, x, f"{op}_empty", batch=False, grad=op in ("sum", "prod"))
    reduction(op, (1,), False, x, f"{op}_empty_result", batch=False, grad=False)
for op in ("sum", "mean", "max", "prod", "var"):
    for dtype in ("bf16", "f16"):
        x = uniform(40, lo=0.9, hi=1.2, dtype=dtype)
        reduction(op, None, False, x, f"{op}_{dtype}", batch=False, tol=2e-2, grad_tol=4e-2)
for op in ("sum", "mean", "logsumexp"):
    reduction(op, (0,), False, normal(3, 2, dtype="f64"), f"{op}_f64", batch=False)
for op in ("sum", "prod", "mean", "var"):
    reduction(op, (0,), False, normal(3, 2, dtype="c64"), f"{op}_c64", batch=False, tol=1e-4, grad_tol=1e-4)
for dtype in ("i8", "u8", "i32", "bool"):
    for op in ("sum", "prod", "max", "min", "mean", "any"):
        x = bools(2, 5) if dtype == "bool" else integers(2, 5, lo=100, hi=127, dtype=dtype)
        name = f"{op}_{dtype}_axis_1"
        reduction(op, (1,), False, x, name, batch=False)
for op in ("var", "std"):
    reduction(op, (1,), False, normal(2, 4), f"{op}_f32_ddof_1", batch=False, more={"ddof": 1})

TIES = [[2.0, 5.0, 5.0, 5.0], [1.0, 1.0, 0.0, 1.0], [3.0, 3.0, 3.0, 3.0]]
for op in ("max", "min"):
    reduction(op, (1,), False, values(TIES), f"{op}_f32_ties", batch=False)
    reduction(op, (1,), False, values([[1, NAN, 3], [-INF, 1, INF]]), f"{op}_f32_nan", batch=False, grad=False)
reduction("prod", (1,), False, values([[2, 0, 3], [0, 0, 4], [1, 2, 3]]), "prod_f32_zeros", batch=False)
reduction(
    "logsumexp", (1,), False, values([[-INF, -INF], [INF, 1], [1000, 1001]]), "logsumexp_f32_extreme", batch=False, grad=False
)
family.case(
    "sum_f32_where",
    lambda x, m: jnp.sum(x, axis=0, where=m),
    normal(3, 2),
    bools(3, 2),
    op="sum",
    params={"axes": [0]},
    doc="sum over axis 0 of the elements where the mask holds",
)
family.case(
    "mean_f32_where",
    lambda x, m: jnp.mean(x, where=m),
    normal(3, 2),
    values([[1, 0], [1, 1], [0, 0]], "bool"),
    op="mean",
    doc="mean of the elements where the mask holds",
    batch=False,
)

for op, fn in {"argmax": jnp.argmax, "argmin": jnp.argmin}.items():
    for label, (axis, keepdims) in {
        "all": (None, False),
        "axis_0": (0, False),
        "axis_last": (-1, False),
        "axis_1_keepdims": (1, True),
    }.items():
        family.case(
            f"{op}_f32_{label}",
            lambda x, fn=fn, axis=axis, keepdims=keepdims: fn(x, axis=axis, keepdims=keepdims),
            small(2, 3, 4, lo=-3, hi=4),
            op=op,
            params={"axis": axis, "keepdims": keepdims},
            batch=[(0,), (3,)],
        )
    for label, x in {
        "f32_nan": values([[1, NAN, 3, NAN], [INF, 1, INF, 0], [-INF, 1, -INF, 0]]),
        "i32": integers(3, 4, lo=0, hi=3),
        "bool": bools(3, 4),
        "bf16": small(3, 4, dtype="bf16"),
        "u8": integers(3, 4, lo=0, hi=255, dtype="u8"),
    }.items():
        family.case(f"{op}_{label}", lambda x, fn=fn: fn(x, axis=1), x, op=op, params={"axis": 1, "keepdims": False}, batch=False)

CUMULATIVE = {
    "cumsum": lax.cumsum,
    "cumprod": lax.cumprod,
    "cummax": lax.cummax,
    "cummin": lax.cummin,
    "cumlogsumexp": lax.cumlogsumexp,
}
for op, fn in CUMULATIVE.items():
    for axis in (0, 1):
        for reverse in (False, True):
            family.case(
                f"{op}_f32_axis_{axis}" + ("_reverse" if reverse else ""),
                lambda x, fn=fn, axis=axis, reverse=reverse: fn(x, axis=axis, reverse=reverse),
                normal(3, 4),
                op=op,
                params={"axis": axis, "reverse": reverse},
                batch=[(0,), (1,)] if axis == 1 else False,
                tol=3e-5,
                grad_tol=3e-5,
            )
    if op != "cumlogsumexp":
        family.case(
            f"{op}_i32", lambda x, fn=fn: fn(x, axis=0), integers(5), op=op, params={"axis": 0, "reverse": False}, batch=False
        )
    family.case(
        f"{op}_f32_empty",
        lambda x, fn=fn: fn(x, axis=0),
        normal(0, 2),
        op=op,
        params={"axis": 0, "reverse": False},
        batch=False,
        grad=False,
    )
family.case(
    "cumsum_f32_40",
    lambda x: jnp.cumsum(x),
    normal(40),
    op="cumsum",
    params={"axis": 0, "reverse": False},
    batch=False,
    tol=3e-5,
    grad_tol=3e-5,
)
family.case(
    "cumsum_f32_flat",
    lambda x: jnp.cumsum(x),
    normal(2, 3),
    op="cumsum",
    doc="jnp.cumsum without an axis flattens first",
    batch=False,
)
family.case(
    "cumsum_bool", lambda x: jnp.cumsum(x, axis=0), bools(5), op="cumsum", params={"axis": 0, "reverse": False}, batch=False
)

for op, fn in {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}.items():
    for axis in (-1, 0):
        family.case(
            f"{op}_f32_axis_{'last' if axis else 0}",
            lambda x, fn=fn, axis=axis: fn(x, axis=axis),
            normal(2, 4),
            op=op,
            params={"axis": axis},
        )
    family.case(
        f"{op}_f32_axes", lambda x, fn=fn: fn(x, axis=(0, 1)), normal(2, 3, 2), op=op, params={"axis": [0, 1]}, batch=False
    )
    family.case(
        f"{op}_f32_large",
        lambda x, fn=fn: fn(x),
        values([[1000, 1001, -1000], [-INF, 0, 1]]),
        op=op,
        params={"axis": -1},
        batch=False,
        grad=False,
    )
    family.case(
        f"{op}_bf16",
        lambda x, fn=fn: fn(x),
        normal(2, 4, dtype="bf16"),
        op=op,
        params={"axis": -1},
        batch=False,
        tol=3e-2,
        grad_tol=6e-2,
    )
family.case(
    "reduce_f32",
    lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b + a * b, (0, 2)),
    normal(3, 2, 3),
    op="reduce",
    batch=[(1,)],
    tol=1e-4,
    grad_tol=3e-4,
)
