"""Convolutions. Layouts are written lhs, rhs, out; channels last unless the case says otherwise."""

import jax.numpy as jnp
from jax import lax

from golden import DTYPES, Family, integers, normal

family = Family("conv")
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
EACH = [(0, 0), (0, None), (None, 0), (1, None), (None, 4), (4, 2)]


def conv(
    name,
    lhs,
    rhs,
    *,
    dtype="f32",
    strides=None,
    padding="SAME",
    lhs_dilation=None,
    rhs_dilation=None,
    groups=1,
    batch_groups=1,
    layout=None,
    preferred=None,
    **options,
):
    rank = len(lhs) - 2
    layout = layout or LAYOUTS[rank]
    strides = strides or (1,) * rank
    make = normal if dtype[0] in "bfc" else integers
    params = {
        "layout": layout,
        "strides": strides,
        "padding": padding,
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
        "feature_group_count": groups,
        "batch_group_count": batch_groups,
        "preferred": preferred,
    }
    options = {"batch": False, "tol": 5e-5, "grad_tol": 5e-5} | options
    if dtype in ("bf16", "f16"):
        options |= {"tol": 3e-2, "grad_tol": 6e-2}
    if make is integers:
        options["tol"] = 0
    family.case(
        name,
        lambda x, k: lax.conv_general_dilated(
            x,
            k,
            strides,
            padding,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            dimension_numbers=layout,
            feature_group_count=groups,
            batch_group_count=batch_groups,
            preferred_element_type=preferred and DTYPES[preferred],
        ),
        make(*lhs, dtype=dtype),
        make(*rhs, dtype=dtype),
        op="conv_general_dilated",
        params={key: value for key, value in params.items() if value not in (None, 1)},
        **options,
    )


X, K = (2, 5, 4, 2), (3, 3, 2, 3)
conv("conv_2d_same", X, K, batch=EACH)
conv("conv_2d_valid", X, K, padding="VALID")
conv("conv_2d_same_stride_2", X, K, strides=(2, 2))
conv("conv_2d_same_even_kernel", (1, 5, 4, 2), (2, 4, 2, 2))
conv("conv_2d_valid_stride_2_1", X, K, strides=(2, 1), padding="VALID")
conv("conv_2d_explicit_padding", X, K, padding=((2, 1), (0, 3)))
conv("conv_2d_negative_padding", X, K, padding=((-1, 0), (1, -1)))
conv("conv_2d_lhs_dilation", (1, 3, 3, 2), K, lhs_dilation=(2, 2), padding=((1, 2), (2, 1)))
conv("conv_2d_rhs_dilation", X, (2, 2, 2, 3), rhs_dilation=(2, 2))
conv(
    "conv_2d_stride_and_dilations",
    (1, 6, 5, 1),
    (2, 2, 1, 2),
    strides=(2, 1),
    lhs_dilation=(1, 2),
    rhs_dilation=(2, 1),
    padding=((1, 1), (0, 1)),
)
conv("conv_2d_stride_with_remainder", (1, 6, 7, 1), (3, 3, 1, 1), strides=(2, 3), padding="VALID")
conv("conv_2d_groups", (2, 4, 4, 4), (3, 3, 2, 6), groups=2, batch=EACH)
conv("conv_2d_depthwise", (2, 4, 4, 3), (3, 3, 1, 6), groups=3, batch=[(0, None), (None, 0), (0, 0)])
conv("conv_2d_batch_groups", (4, 4, 4, 2), (3, 3, 2, 4), batch_groups=2)
conv("conv_2d_1x1", X, (1, 1, 2, 3))
conv("conv_2d_nchw_oihw", (2, 2, 5, 4), (3, 2, 3, 3), layout=("NCHW", "OIHW", "NCHW"), batch=[(0, 0), (0, None), (None, 0)])
conv("conv_2d_hwcn", (5, 4, 2, 2), (3, 3, 2, 3), layout=("HWCN", "HWIO", "HWCN"))
conv("conv_2d_nhwc_to_nchw", X, (3, 2, 3, 3), layout=("NHWC", "OIHW", "NCHW"))
conv("conv_1d_same", (2, 6, 2), (3, 2, 3), batch=[(0, 0), (1, None), (None, 3)])
conv("conv_1d_valid_stride_2", (2, 7, 2), (3, 2, 3), strides=(2,), padding="VALID")
conv("conv_1d_causal", (1, 6, 2), (3, 2, 2), padding=((4, 0),), rhs_dilation=(2,))
conv("conv_3d_same", (1, 3, 4, 3, 2), (2, 3, 2, 2, 2))
conv("conv_3d_valid_stride_2", (1, 4, 5, 3, 1), (2, 2, 2, 1, 2), strides=(2, 2, 1), padding="VALID")
conv("conv_0d", (2, 3), (3, 4), layout=("NC", "IO", "NC"))
conv("conv_2d_bf16", (1, 4, 4, 2), (3, 3, 2, 2), dtype="bf16")
conv("conv_2d_bf16_to_f32", (1, 4, 4, 2), (3, 3, 2, 2), dtype="bf16", preferred="f32", grad=False)
conv("conv_2d_f16", (1, 4, 4, 2), (3, 3, 2, 2), dtype="f16")
conv("conv_2d_f64", (1, 4, 4, 2), (3, 3, 2, 2), dtype="f64", tol=1e-12, grad_tol=1e-12)
conv("conv_2d_c64", (1, 4, 4, 1), (2, 2, 1, 2), dtype="c64")
conv("conv_2d_i32", (1, 4, 4, 2), (3, 3, 2, 2), dtype="i32")
conv("conv_2d_empty_batch", (0, 4, 4, 2), K, grad=False)

for label, strides, padding in [
    ("same_stride_2", (2, 2), "SAME"),
    ("valid_stride_2", (2, 2), "VALID"),
    ("same_stride_1", (1, 1), "SAME"),
]:
    family.case(
        f"conv_transpose_2d_{label}",
        lambda x, k, s=strides, p=padding: lax.conv_transpose(x, k, s, p),
        normal(1, 3, 4, 2),
        normal(3, 3, 2, 3),
        op="conv_transpose",
        params={"strides": strides, "padding": padding},
        batch=False,
        tol=5e-5,
        grad_tol=5e-5,
    )
family.case("convolve_1d_full", jnp.convolve, normal(5), normal(3), op="convolve", params={"mode": "full"}, batch=False)
for label, options in {
    "plain": dict(filter_shape=(2, 3), window_strides=(1, 2), padding="VALID"),
    "same": dict(filter_shape=(3, 2), window_strides=(2, 1), padding="SAME"),
}.items():
    family.case(
        f"conv_general_dilated_patches_{label}",
        lambda x, o=options: lax.conv_general_dilated_patches(x, **o),
        normal(2, 3, 5, 4),
        op="conv_general_dilated_patches",
        params={"filter": options["filter_shape"], "strides": options["window_strides"], "padding": options["padding"]},
        batch=[(0,)] if label == "plain" else False,
        tol=3e-5,
        grad_tol=3e-4,
    )
