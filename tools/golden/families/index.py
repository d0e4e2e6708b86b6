"""Reading and writing at computed positions: take, gather, scatter, `at[]`."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import Family, bools, integers, normal, uniform, values

family = Family("index")


def i32(*data):
    return values(data[0] if len(data) == 1 else data, "i32")


BOTH = [(0, None), (None, 0), (0, 0), (2, 1)]

# take. Out of bounds: "fill" gives NaN (the lowest value for signed integers, the highest for unsigned), and negative
# positions count from the end; "clip" clamps, negative ones to 0; "wrap" takes the remainder.
for mode in ("fill", "clip", "wrap"):
    family.case(
        f"take_f32_mode_{mode}",
        lambda x, i, m=mode: jnp.take(x, i, axis=0, mode=m),
        normal(4, 3),
        i32(0, 3, -1, 4, -5, 9),
        op="take",
        params={"axis": 0, "mode": mode},
        batch=False,
    )
family.case(
    "take_i32_fill",
    lambda x, i: jnp.take(x, i, mode="fill"),
    integers(4),
    i32(0, 9),
    op="take",
    params={"axis": None, "mode": "fill"},
    batch=False,
)
family.case(
    "take_u8_fill",
    lambda x, i: jnp.take(x, i, mode="fill"),
    integers(4, lo=0, hi=200, dtype="u8"),
    i32(0, 9),
    op="take",
    params={"axis": None, "mode": "fill"},
    batch=False,
)
family.case(
    "take_bool_fill",
    lambda x, i: jnp.take(x, i, mode="fill"),
    values([0, 1, 0], "bool"),
    i32(1, 9),
    op="take",
    params={"axis": None, "mode": "fill"},
    batch=False,
)
family.case(
    "take_f32_axis_0", lambda x, i: jnp.take(x, i, axis=0), normal(4, 3), i32(2, 0, 2), op="take", params={"axis": 0}, batch=BOTH
)
family.case(
    "take_f32_axis_1_2d",
    lambda x, i: jnp.take(x, i, axis=1),
    normal(2, 4),
    i32([[0, 1], [3, 3]]),
    op="take",
    params={"axis": 1},
    batch=BOTH,
)
family.case("take_f32_flat", lambda x, i: jnp.take(x, i), normal(2, 3), i32(5, 0), op="take", params={"axis": None})
family.case("take_f32_scalar_index", lambda x, i: jnp.take(x, i, axis=1), normal(2, 3), i32(1), op="take", params={"axis": 1})
family.case(
    "take_f32_no_indices",
    lambda x, i: jnp.take(x, i, axis=0),
    normal(2, 3),
    values([], "i32"),
    op="take",
    params={"axis": 0},
    batch=False,
)
family.case(
    "take_along_axis_f32",
    lambda x, i: jnp.take_along_axis(x, i, axis=1),
    normal(2, 4),
    i32([[0, 3, 3], [2, 1, 0]]),
    op="take_along_axis",
    params={"axis": 1},
)
family.case(
    "take_along_axis_f32_last",
    lambda x, i: jnp.take_along_axis(x, i[..., None], axis=-1),
    normal(3, 4),
    i32(0, 3, 1),
    op="take_along_axis",
    doc="take_along_axis(x, i[..., None], -1): the logit of each label",
)

# Indexing with arrays. Negative positions count from the end; beyond the bounds they are clamped.
family.case("getitem_rows", lambda x, i: x[i], normal(4, 3), i32(0, -1, 2), op="getitem", doc="x[i]", batch=BOTH)
family.case(
    "getitem_rows_out_of_bounds",
    lambda x, i: x[i],
    normal(4, 2),
    i32(7, -9, 3),
    op="getitem",
    doc="x[i]; JAX's vjp drops the cotangents of clamped positions, against its own jvp",
    grad="fwd",
    batch=False,
)
family.case("getitem_columns", lambda x, i: x[:, i], normal(2, 4), i32([3, 0, 3]), op="getitem", doc="x[:, i]", batch=BOTH)
family.case(
    "getitem_points",
    lambda x, i, j: x[i, j],
    normal(3, 4),
    i32(0, 2, 2),
    i32(1, 3, 3),
    op="getitem",
    doc="x[i, j]",
    batch=[(0, 0, 0), (None, 0, None), (1, None, None)],
)
family.case(
    "getitem_outer",
    lambda x, i, j: x[i[:, None], j],
    normal(3, 4),
    i32(0, 2),
    i32(1, 3, 0),
    op="getitem",
    doc="x[i[:, None], j]",
    batch=False,
)
family.case("getitem_scalar", lambda x, i: x[i], normal(4, 3), i32(2), op="getitem", doc="x[i]", batch=BOTH[:3])
family.case(
    "getitem_mixed", lambda x, i: x[i, ..., 1:], normal(3, 2, 4), i32(2, 0), op="getitem", doc="x[i, ..., 1:]", batch=False
)
family.case(
    "getitem_split_arrays",
    lambda x, i, j: x[i, :, j],
    normal(3, 2, 4),
    i32(0, 2),
    i32(1, 3),
    op="getitem",
    doc="x[i, :, j]: the axis of the arrays comes first",
    batch=False,
)

# The raw gather and scatter.
ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
family.case(
    "gather_rows",
    lambda x, i: lax.gather(x, i, ROWS, (1, 3), mode="clip"),
    normal(4, 3),
    i32([[0], [3], [9]]),
    op="gather",
    params={"offset_dims": [1], "collapsed_slice_dims": [0], "start_index_map": [0], "slice_sizes": [1, 3], "mode": "clip"},
    batch=BOTH,
)
BLOCKS = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0, 1))
family.case(
    "gather_blocks",
    lambda x, i: lax.gather(x, i, BLOCKS, (2, 2), mode="clip"),
    normal(4, 5),
    i32([[0, 1], [2, 3], [3, 4]]),
    op="gather",
    params={"offset_dims": [1, 2], "collapsed_slice_dims": [], "start_index_map": [0, 1], "slice_sizes": [2, 2], "mode": "clip"},
    batch=BOTH,
)

# at[]. Beyond the bounds nothing is written; negative positions count from the end; one position may come twice
# (but for `set`, where the winner is not defined).
I = i32(0, 2, 2, -1)  # noqa: E741
DISTINCT = i32(3, 0, -2)
UPDATES = [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0), (1, None, 1)]
# JAX can differentiate `multiply` for distinct positions only.
for method in ("add", "multiply", "min", "max"):
    family.case(
        f"at_{method}_f32_rows",
        lambda x, i, u, m=method: getattr(x.at[i], m)(u, unique_indices=m == "multiply"),
        normal(4, 3),
        DISTINCT if method == "multiply" else I,
        normal(3 if method == "multiply" else 4, 3),
        op=f"at_{method}",
        doc=f"x.at[i].{method}(u)",
        batch=UPDATES,
    )
family.case(
    "at_set_f32_rows",
    lambda x, i, u: x.at[i].set(u),
    normal(4, 3),
    DISTINCT,
    normal(3, 3),
    op="at_set",
    doc="x.at[i].set(u)",
    batch=UPDATES,
)
family.case(
    "at_set_f32_broadcast",
    lambda x, i, u: x.at[i].set(u),
    normal(4, 3),
    DISTINCT,
    normal(),
    op="at_set",
    doc="x.at[i].set(u), u a scalar",
)
family.case(
    "at_set_f32_scalar",
    lambda x, i, u: x.at[i].set(u),
    normal(5),
    i32(2),
    normal(),
    op="at_set",
    doc="x.at[i].set(u)",
    batch=UPDATES[:4],
)
family.case("at_set_f32_plain", lambda x: x.at[1, 2].set(7), normal(3, 4), op="at_set", doc="x.at[1, 2].set(7)")
family.case(
    "at_set_f32_slice", lambda x, u: x.at[1:3, ::2].set(u), normal(4, 4), normal(2, 2), op="at_set", doc="x.at[1:3, ::2].set(u)"
)
family.case(
    "at_add_f32_points",
    lambda x, i, j, u: x.at[i, j].add(u),
    normal(3, 4),
    i32(0, 2, 0),
    i32(1, 3, 1),
    normal(3),
    op="at_add",
    doc="x.at[i, j].add(u)",
    batch=[(0, 0, 0, 0), (0, None, None, None), (None, None, 0, None)],
)
family.case(
    "at_add_f32_columns",
    lambda x, i, u: x.at[:, i].add(u),
    normal(2, 4),
    i32(3, 1, 3),
    normal(2, 3),
    op="at_add",
    doc="x.at[:, i].add(u)",
)
family.case(
    "at_add_f32_out_of_bounds",
    lambda x, i, u: x.at[i].add(u),
    normal(4),
    i32(9, 1, -9),
    normal(3),
    op="at_add",
    doc="x.at[i].add(u): out of bounds is dropped",
    batch=False,
)
family.case(
    "at_set_f32_out_of_bounds",
    lambda x, i, u: x.at[i].set(u),
    normal(4),
    i32(9, 1, -9),
    normal(3),
    op="at_set",
    doc="x.at[i].set(u): out of bounds is dropped",
    batch=False,
)
family.case(
    "at_set_f32_clip",
    lambda x, i, u: x.at[i].set(u, mode="clip"),
    normal(4),
    i32(9, 1, -9),
    normal(3),
    op="at_set",
    doc='x.at[i].set(u, mode="clip")',
    params={"mode": "clip"},
    batch=False,
)
family.case(
    "at_add_i32", lambda x, i, u: x.at[i].add(u), integers(4), I, integers(4), op="at_add", doc="x.at[i].add(u)", batch=False
)
family.case(
    "at_add_bf16",
    lambda x, i, u: x.at[i].add(u),
    normal(4, dtype="bf16"),
    I,
    normal(4, dtype="bf16"),
    op="at_add",
    doc="x.at[i].add(u)",
    batch=False,
    tol=2e-2,
    grad_tol=2e-2,
)
family.case(
    "at_set_bool", lambda x, i, u: x.at[i].set(u), bools(4), DISTINCT, bools(3), op="at_set", doc="x.at[i].set(u)", batch=False
)
family.case(
    "at_get_f32_fill",
    lambda x, i: x.at[i].get(mode="fill", fill_value=-1),
    normal(4),
    i32(1, 7, -1),
    op="at_get",
    doc='x.at[i].get(mode="fill", fill_value=-1)',
    params={"mode": "fill", "fill_value": -1},
    batch=False,
)
family.case(
    "segment_sum_f32",
    lambda u, i: jnp.zeros((3, 2)).at[i].add(u),
    normal(5, 2),
    i32(0, 2, 2, 0, 2),
    op="at_add",
    doc="zeros([3, 2]).at[i].add(u)",
    batch=[(0, 0), (0, None), (None, 0)],
)
family.case(
    "bincount_i32", lambda i: jnp.bincount(i, length=5), i32(0, 1, 1, 3, 9), op="bincount", params={"length": 5}, batch=False
)
REPEATED, DISTINCT = [2, 0, 2, 9], [2, 0, 1, 9]
for op in ("divide", "power"):
    x, v = uniform(4, lo=0.5, hi=2), uniform(4, lo=1, hi=2)
    family.case(
        f"at_{op}_twice",
        lambda x, v, op=op: getattr(x.at[np.array(REPEATED)], op)(v),
        x,
        v,
        op=f"at_{op}",
        params={"places": REPEATED},
        batch=False,
        grad=False,
        tol=3e-5,
    )
    family.case(
        f"at_{op}_f32",
        lambda x, v, op=op: getattr(x.at[np.array(DISTINCT)], op)(v, unique_indices=True),
        x,
        v,
        op=f"at_{op}",
        params={"places": DISTINCT, "unique": True},
        batch=False,
        tol=3e-5,
        grad_tol=3e-4,
    )
family.case(
    "at_apply_f32", lambda x: x.at[np.array([2, 0])].apply(jnp.sin), normal(4), op="at_apply", grad=False, batch=False, tol=3e-5
)
