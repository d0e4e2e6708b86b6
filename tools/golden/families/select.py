"""Choosing between values: where, select, clamp, clip."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import Family, bools, integers, normal, values

family = Family("select")
x, y = normal(2, 3), normal(2, 3)

EACH = [(0, 0, 0), (0, None, None), (None, 1, None), (None, None, 2), (None, 0, 1)]
family.case("select_f32", lax.select, bools(2, 3), x, y, op="select", batch=EACH)
family.case("select_f32_scalar_predicate", lax.select, bools(), x, y, op="select", batch=EACH[:3])
family.case("select_i32", lax.select, bools(4), integers(4), integers(4), op="select")
family.case("select_bool", lax.select, bools(4), bools(4), bools(4), op="select")
family.case("select_c64", lax.select, bools(3), normal(3, dtype="c64"), normal(3, dtype="c64"), op="select", batch=False)
family.case("select_bf16", lax.select, bools(3), normal(3, dtype="bf16"), normal(3, dtype="bf16"), op="select", batch=False)
family.case("select_n_f32", lax.select_n, integers(2, 3, lo=0, hi=3), x, y, normal(2, 3), op="select_n")
family.case(
    "where_f32_broadcast",
    jnp.where,
    bools(3),
    normal(2, 1),
    normal(),
    op="where",
    batch=[(0, 0, 0), (None, None, 0), (1, None, None)],
)
family.case("where_f32_empty", jnp.where, bools(0, 3), normal(0, 3), normal(3), op="where", batch=False)
family.case(
    "where_f32_plain", lambda p, x: jnp.where(p, x, 0), bools(4), normal(4), op="where", params={"otherwise": 0}, batch=False
)
family.case("where_i32_f32", jnp.where, bools(4), integers(4), normal(4), op="where", batch=False)
family.case(
    "where_f32_double_where",
    lambda x: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0),
    values([-1.0, 0.0, 2.0]),
    op="where",
    doc="where(x > 0, log(where(x > 0, x, 1)), 0): the gradient is finite",
    batch=False,
)
family.case(
    "where_f32_nan_leak",
    lambda x: jnp.where(x > 0, jnp.log(x), 0.0),
    values([-1.0, 0.0, 2.0]),
    op="where",
    doc="where(x > 0, log(x), 0): zero times infinity makes the gradient at 0 NaN",
    batch=False,
)

scalar = lambda v: values(v)  # noqa: E731
# JAX itself cannot differentiate with respect to a scalar bound of an array.
family.case(
    "clamp_f32_scalar_bounds",
    lax.clamp,
    scalar(-0.5),
    x,
    scalar(0.5),
    op="clamp",
    wrt=[1],
    batch=[(None, 0, None), (0, 0, 0), (0, None, None)],
)
family.case("clamp_f32_array_bounds", lax.clamp, values([[-1, -0.5, 0]] * 2), x, values([[1, 0.5, 0.1]] * 2), op="clamp")
family.case(
    "clamp_f32_at_bounds", lax.clamp, scalar(-1), values([-2, -1, 0, 1, 2, np.nan]), scalar(1), op="clamp", wrt=[1], batch=False
)
family.case("clamp_f32_crossed", lax.clamp, scalar(1), values([-2.0, 0.0, 2.0]), scalar(-1), op="clamp", wrt=[1], batch=False)
family.case("clamp_i32", lax.clamp, values(-3, "i32"), integers(6), values(4, "i32"), op="clamp", batch=False)
family.case("clip_f32", lambda x: jnp.clip(x, -0.5, 0.5), x, op="clip", params={"min": -0.5, "max": 0.5})
family.case(
    "clip_f32_at_bounds",
    lambda x: jnp.clip(x, -1, 1),
    values([-2, -1, 0, 1, 2]),
    op="clip",
    params={"min": -1, "max": 1},
    batch=False,
)
family.case("clip_f32_min_only", lambda x: jnp.clip(x, min=0), x, op="clip", params={"min": 0}, batch=False)
