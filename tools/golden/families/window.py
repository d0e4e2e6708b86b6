"""reduce_window and pooling, channels last."""

import numpy as np
from flax import nnx
from jax import lax

from golden import Family, integers, normal, small, values

family = Family("window")
KINDS = {"max": (-np.inf, lax.max), "min": (np.inf, lax.min), "sum": (0.0, lax.add)}


def window(name, kind, shape, dims, strides, padding, *, x=None, base=None, dilation=None, initial=None, **options):
    first, fn = KINDS[kind]
    initial = first if initial is None else initial
    params = {
        "kind": kind,
        "window": dims,
        "strides": strides,
        "padding": padding,
        "base_dilation": base,
        "window_dilation": dilation,
    }
    options = {"batch": False} | options
    family.case(
        name,
        lambda x: lax.reduce_window(x, initial, fn, dims, strides, padding, base_dilation=base, window_dilation=dilation),
        normal(*shape) if x is None else x,
        op="reduce_window",
        params={key: value for key, value in params.items() if value is not None},
        **options,
    )


X = (2, 4, 6, 2)
TWO = (1, 2, 2, 1)
THREE = (1, 3, 3, 1)
for kind in KINDS:
    window(f"{kind}_pool_2x2_stride_2", kind, X, TWO, TWO, "VALID", batch=[(0,), (4,), (2,)])
    window(f"{kind}_pool_3x3_stride_1_same", kind, X, THREE, (1, 1, 1, 1), "SAME", batch=[(0,)])
    window(f"{kind}_pool_3x3_stride_2_same", kind, (1, 5, 6, 1), THREE, TWO, "SAME")
    window(f"{kind}_pool_3x3_stride_2_valid", kind, (1, 6, 6, 1), THREE, TWO, "VALID")
    window(f"{kind}_pool_2x2_remainder", kind, (1, 5, 5, 2), TWO, TWO, "VALID")
    window(f"{kind}_pool_2x2_remainder_same", kind, (1, 5, 5, 2), TWO, TWO, "SAME")
    window(f"{kind}_pool_explicit_padding", kind, (1, 3, 4, 1), TWO, TWO, ((0, 0), (1, 0), (0, 2), (0, 0)))
    window(f"{kind}_pool_stride_beyond_window", kind, (1, 7, 7, 1), TWO, THREE, "VALID")
    window(f"{kind}_pool_1d", kind, (2, 6, 2), (1, 3, 1), (1, 2, 1), "VALID")
    window(f"{kind}_pool_3d", kind, (1, 4, 4, 2, 1), (1, 2, 2, 2, 1), (1, 2, 2, 2, 1), "VALID")
for kind in ("max", "sum"):
    window(f"{kind}_window_dilation", kind, (7,), (3,), (1,), "VALID", dilation=(2,), grad=kind == "sum")
    window(f"{kind}_base_dilation", kind, (4,), (3,), (1,), "VALID", base=(2,), grad=False)
    window(f"{kind}_all_axes", kind, (3, 4), (2, 3), (1, 1), "VALID", batch=[(0,), (2,)])
    window(f"{kind}_pool_bf16", kind, (1, 4, 4, 1), TWO, TWO, "VALID", x=normal(1, 4, 4, 1, dtype="bf16"))
# Ties: the first element of the window, in row-major order, takes all of the gradient.
window("max_pool_ties", "max", (), TWO, TWO, "VALID", x=small(1, 6, 6, 1, lo=0, hi=2))
window("max_pool_ties_overlapping", "max", (), THREE, (1, 1, 1, 1), "SAME", x=small(1, 5, 5, 1, lo=0, hi=2))
window("max_pool_all_equal", "max", (), TWO, TWO, "VALID", x=values(np.zeros((1, 4, 4, 1))))
window("min_pool_ties", "min", (), TWO, TWO, "VALID", x=small(1, 6, 6, 1, lo=0, hi=2))
window("max_pool_nan", "max", (), (2,), (2,), "VALID", x=values([1, np.nan, np.nan, 2, 3, -np.inf]), grad=False)
window("max_pool_i32", "max", (), (2,), (1,), "SAME", x=integers(6), initial=np.int32(-(2**31)))
window("sum_pool_i32", "sum", (), (2,), (1,), "SAME", x=integers(6), initial=np.int32(0))

for label, shape, options in [
    ("2x2_stride_2", X, {"strides": (2, 2)}),
    ("3x3_same", X, {"strides": (1, 1), "padding": "SAME"}),
    ("3x3_same_no_pad_count", X, {"strides": (1, 1), "padding": "SAME", "count_include_pad": False}),
    ("default_stride", X, {}),
]:
    size = (3, 3) if "3x3" in label else (2, 2)
    family.case(
        f"avg_pool_{label}",
        lambda x, size=size, options=options: nnx.avg_pool(x, size, **options),
        normal(*shape),
        op="avg_pool",
        params={"window": size, **options},
        batch=[(0,)] if label == "2x2_stride_2" else False,
    )
family.case(
    "max_pool_flax_default_stride",
    lambda x: nnx.max_pool(x, (2, 2)),
    normal(1, 4, 4, 2),
    op="max_pool",
    params={"window": [2, 2]},
    doc="Flax: strides default to 1, padding to VALID",
    batch=False,
)
family.case(
    "max_pool_no_batch",
    lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
    normal(4, 4, 2),
    op="max_pool",
    params={"window": [2, 2], "strides": [2, 2]},
    doc="Flax accepts an input without batch axis",
    batch=False,
)
family.case(
    "reduce_window_f32",
    lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (2, 3), (1, 2), "SAME"),
    normal(4, 5),
    op="reduce_window",
    grad=False,
    batch=[(0,)],
    tol=3e-5,
)
