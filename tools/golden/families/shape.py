"""Moving elements about: reshape, slices, padding, concatenation."""

import jax.numpy as jnp
from jax import lax

from golden import DTYPES, Family, bools, integers, normal, values

family = Family("shape")


def each(rank):
    return [(axis,) for axis in sorted({0, rank})]


def one(name, fn, *shape, params=None, batch=None, x=None, op=None, **options):
    family.case(
        name,
        fn,
        x or normal(*shape),
        op=op or name,
        params=params,
        batch=each(len(shape)) if batch is None else batch,
        **options,
    )


for label, source, target in [
    ("2x6_to_3x4", (2, 6), (3, 4)),
    ("flatten", (2, 3, 2), (-1,)),
    ("split", (6,), (2, -1)),
    ("scalar_to_1x1", (), (1, 1)),
    ("1_to_scalar", (1,), ()),
    ("empty", (0, 3), (3, 0, 2)),
]:
    one(f"reshape_f32_{label}", lambda x, t=target: jnp.reshape(x, t), *source, params={"shape": target}, op="reshape")
one("reshape_bool", lambda x: x.reshape(2, 3), 6, x=bools(6), params={"shape": [2, 3]}, op="reshape", batch=False)
one("ravel_f32", jnp.ravel, 2, 3)
for label, shape, axes in [
    ("2d", (2, 3), (1, 0)),
    ("3d", (2, 3, 4), (2, 0, 1)),
    ("identity", (2, 3), (0, 1)),
    ("scalar", (), ()),
]:
    one(f"transpose_f32_{label}", lambda x, a=axes: jnp.transpose(x, a), *shape, params={"permutation": axes}, op="transpose")
one("swapaxes_f32", lambda x: jnp.swapaxes(x, 0, -1), 2, 3, 4, params={"axis1": 0, "axis2": -1})
one("moveaxis_f32", lambda x: jnp.moveaxis(x, 0, -1), 2, 3, 4, params={"source": 0, "destination": -1})
for label, shape, target, dims in [
    ("leading", (3,), (2, 3), (1,)),
    ("trailing", (2,), (2, 3), (0,)),
    ("expand_one", (2, 1), (2, 4), (0, 1)),
    ("scalar", (), (2, 3), ()),
    ("middle", (2, 3), (2, 4, 3), (0, 2)),
    ("to_empty", (1,), (0, 2), (0,)),
]:
    one(
        f"broadcast_in_dim_f32_{label}",
        lambda x, t=target, d=dims: lax.broadcast_in_dim(x, t, d),
        *shape,
        params={"shape": target, "dims": dims},
        op="broadcast_in_dim",
    )
one("broadcast_to_f32", lambda x: jnp.broadcast_to(x, (4, 2, 3)), 2, 1, params={"shape": [4, 2, 3]})
one("squeeze_f32", lambda x: jnp.squeeze(x), 1, 3, 1, params={"axes": None})
one("squeeze_f32_axes", lambda x: jnp.squeeze(x, (0, -1)), 1, 3, 1, 1, params={"axes": [0, -1]}, op="squeeze")
one("expand_dims_f32", lambda x: jnp.expand_dims(x, (0, -1)), 2, 3, params={"axes": [0, -1]})

for label, shape, start, limit, strides in [
    ("2d", (4, 5), (1, 0), (3, 4), None),
    ("strided", (5, 6), (0, 1), (5, 6), (2, 3)),
    ("empty", (3,), (1,), (1,), None),
    ("whole", (3,), (0,), (3,), None),
]:
    one(
        f"slice_f32_{label}",
        lambda x, a=start, b=limit, s=strides: lax.slice(x, a, b, s),
        *shape,
        params={"start": start, "limit": limit, "strides": strides},
        op="slice",
    )
one(
    "slice_in_dim_f32",
    lambda x: lax.slice_in_dim(x, 1, -1, stride=2, axis=1),
    2,
    6,
    params={"start": 1, "limit": -1, "stride": 2, "axis": 1},
)
for label, index in {
    "negative_step": (slice(None, None, -1),),
    "negative_bounds": (slice(-3, -1),),
    "step_minus_2": (slice(None), slice(4, 0, -2)),
    "integer": (1,),
    "negative_integer": (-1, slice(None), None),
    "ellipsis": (Ellipsis, 0),
    "beyond_the_end": (slice(2, 100),),
}.items():
    one(
        f"getitem_f32_{label}",
        lambda x, i=index: x[i],
        4,
        5,
        doc=f"x[{', '.join(str(i).replace('slice', '').replace('None', '_') for i in index)}]; (a, b, c) is a:b:c, _ is none of them, or a new axis",
        op="getitem",
        batch=[(0,)],
    )

i32 = lambda v: values(v, "i32")  # noqa: E731
for label, start in {"inside": 1, "beyond": 9, "negative": -2, "far_negative": -9}.items():
    family.case(
        f"dynamic_slice_f32_{label}",
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)),
        normal(4, 5),
        i32(start),
        i32(1),
        op="dynamic_slice",
        params={"sizes": [2, 3]},
        batch=[(0, 0, 0), (2, None, None), (None, 0, None), (1, None, 0)] if label == "inside" else False,
    )
    family.case(
        f"dynamic_update_slice_f32_{label}",
        lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)),
        normal(4, 5),
        normal(2, 3),
        i32(start),
        i32(1),
        op="dynamic_update_slice",
        batch=[(0, 0, 0, 0), (2, None, None, None), (None, 0, None, None), (None, None, 0, None), (0, 2, None, None)]
        if label == "inside"
        else False,
    )
family.case(
    "dynamic_slice_i32_u8_index",
    lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
    integers(5),
    values(2, "u8"),
    op="dynamic_slice",
    params={"sizes": [2]},
    batch=False,
)
family.case(
    "dynamic_index_in_dim_f32",
    lambda x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False),
    normal(3, 4),
    i32(2),
    op="dynamic_index_in_dim",
    params={"axis": 1, "keepdims": False},
)
family.case(
    "dynamic_update_index_in_dim_f32",
    lambda x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 0),
    normal(3, 4),
    normal(4),
    i32(2),
    op="dynamic_update_index_in_dim",
    params={"axis": 0},
)

for label, shape, config in [
    ("positive", (2, 3), ((1, 0, 0), (2, 1, 0))),
    ("negative", (3, 4), ((-1, 0, 0), (1, -2, 0))),
    ("interior", (2, 3), ((0, 0, 1), (1, 1, 2))),
    ("interior_negative", (3, 3), ((0, 0, 0), (-1, -2, 2))),
    ("empty", (0, 2), ((1, 1, 0), (0, 0, 0))),
    ("scalar", (), ()),
]:
    family.case(
        f"pad_f32_{label}",
        lambda x, v, c=config: lax.pad(x, v, c),
        normal(*shape),
        values(1.5),
        op="pad",
        params={"config": config},
        batch=[(0, None), (len(shape), 0), (None, 0)] if label in ("positive", "interior_negative") else False,
    )
family.case(
    "pad_i32",
    lambda x, v: lax.pad(x, v, ((1, 2, 1),)),
    integers(3),
    i32(7),
    op="pad",
    params={"config": [[1, 2, 1]]},
    batch=False,
)
for mode in ("edge", "reflect", "wrap"):
    one(
        f"pad_f32_mode_{mode}",
        lambda x, m=mode: jnp.pad(x, ((1, 2), (0, 2)), mode=m),
        3,
        4,
        params={"widths": [[1, 2], [0, 2]], "mode": mode},
        op="pad",
        batch=False,
    )

family.case(
    "concatenate_f32_axis_0",
    lambda *xs: lax.concatenate(xs, 0),
    normal(2, 3),
    normal(1, 3),
    normal(0, 3),
    op="concatenate",
    params={"axis": 0},
    batch=[(0, 0, 0), (2, None, None), (None, 1, 2)],
)
family.case(
    "concatenate_f32_axis_last",
    lambda *xs: jnp.concatenate(xs, -1),
    normal(2, 1),
    normal(2, 3),
    op="concatenate",
    params={"axis": -1},
)
family.case(
    "concatenate_i32_f32",
    lambda *xs: jnp.concatenate(xs),
    integers(2),
    normal(3),
    op="concatenate",
    params={"axis": 0},
    batch=False,
)
family.case("stack_f32_axis_0", lambda *xs: jnp.stack(xs), normal(2, 3), normal(2, 3), op="stack", params={"axis": 0})
family.case(
    "stack_f32_axis_last",
    lambda *xs: jnp.stack(xs, -1),
    normal(2, 3),
    normal(2, 3),
    op="stack",
    params={"axis": -1},
    batch=[(0, None), (None, 2)],
)
family.case(
    "stack_f32_scalars",
    lambda *xs: jnp.stack(xs),
    normal(),
    normal(),
    normal(),
    op="stack",
    params={"axis": 0},
    batch=[(0, None, 0)],
)
one("split_f32_3", lambda x: jnp.split(x, 3, axis=1), 2, 6, params={"sections": 3, "axis": 1}, op="split")
one("split_f32_at", lambda x: jnp.split(x, [1, 4]), 6, params={"indices": [1, 4], "axis": 0}, op="split")

one("rev_f32", lambda x: lax.rev(x, (0, 2)), 2, 3, 2, params={"axes": [0, 2]})
one("flip_f32", lambda x: jnp.flip(x, 1), 2, 3, params={"axis": 1})
one("roll_f32", lambda x: jnp.roll(x, 2, axis=1), 2, 5, params={"shift": 2, "axis": 1})
one("roll_f32_flat", lambda x: jnp.roll(x, -1), 2, 3, params={"shift": -1, "axis": None}, op="roll")
one(
    "roll_f32_axes",
    lambda x: jnp.roll(x, (1, -2), (0, 1)),
    3,
    4,
    params={"shift": [1, -2], "axis": [0, 1]},
    op="roll",
    batch=False,
)
one("tile_f32", lambda x: jnp.tile(x, (2, 1, 3)), 2, 2, params={"reps": [2, 1, 3]})
one("repeat_f32", lambda x: jnp.repeat(x, 3, axis=0), 2, 2, params={"repeats": 3, "axis": 0})
one("tril_f32", jnp.tril, 3, 4)
one("triu_f32_1", lambda x: jnp.triu(x, 1), 3, 4, params={"k": 1}, op="triu")
one("diagonal_f32", jnp.diagonal, 3, 4)
one("diag_f32", jnp.diag, 3)
one("trace_f32", jnp.trace, 3, 3)
family.case("meshgrid_f32", lambda x, y: jnp.meshgrid(x, y), normal(3), normal(2), op="meshgrid", batch=False)

for dtype in ("i32", "f32", "u8", "bf16"):
    for axis in (0, 1):
        family.case(
            f"iota_{dtype}_axis_{axis}",
            lambda dtype=dtype, axis=axis: lax.broadcasted_iota(DTYPES[dtype], (3, 4), axis),
            op="iota",
            params={"dtype": dtype, "shape": [3, 4], "axis": axis},
        )
for label, arguments, dtype in [
    ("0_5", (0, 5), None),
    ("1_8_3", (1, 8, 3), None),
    ("down", (5, 0, -2), None),
    ("f32", (0, 1, 0.25), None),
    ("empty", (3, 3), None),
    ("u8", (3,), "u8"),
]:
    family.case(
        f"arange_{label}",
        lambda a=arguments, d=dtype: jnp.arange(*a, dtype=d and DTYPES[d]),
        op="arange",
        params={"arguments": arguments, "dtype": dtype},
    )
for label, arguments, end in [
    ("5", (0, 1, 5), True),
    ("open", (-1, 1, 4), False),
    ("one", (2, 3, 1), True),
    ("13", (0.1, 0.7, 13), True),
]:
    family.case(
        f"linspace_{label}",
        lambda a=arguments, e=end: jnp.linspace(*a, endpoint=e),
        op="linspace",
        params={"start": arguments[0], "stop": arguments[1], "num": arguments[2], "endpoint": end},
    )
family.case("eye_3_4_1", lambda: jnp.eye(3, 4, 1), op="eye", params={"rows": 3, "columns": 4, "k": 1})
