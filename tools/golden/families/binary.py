"""Elementwise functions of two arguments, with the broadcasting of NumPy."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import DTYPES, Family, bools, integers, normal, uniform, values

family = Family("binary")
NAN, INF = np.nan, np.inf

FLOAT = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "rem": lax.rem,
    "atan2": jnp.arctan2,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "floor_divide": jnp.floor_divide,
    "mod": jnp.remainder,
    "pow": jnp.power,
}
COMPARE = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
BITS = {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}
SHIFTS = {
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
}
SPECIAL = [-INF, -2.5, -1.0, -0.0, 0.0, 1.0, 2.5, INF, NAN]
LEFT = values([x for x in SPECIAL for _ in SPECIAL])
RIGHT = values(SPECIAL * len(SPECIAL))
BOTH_FIRST_AND_SECOND = [(0, 0), (2, None), (None, 1), (1, 2)]


def operand(op, *shape, dtype="f32"):
    return uniform(*shape, lo=0.3, hi=3.0, dtype=dtype) if op == "pow" else normal(*shape, dtype=dtype, scale=2.0)


for op, fn in FLOAT.items():
    family.case(f"{op}_f32", fn, operand(op, 2, 3), operand(op, 2, 3), op=op, batch=BOTH_FIRST_AND_SECOND)
    family.case(f"{op}_f32_edge", fn, LEFT, RIGHT, op=op, grad=False, batch=False)
for op in ("add", "sub", "mul", "div", "max", "pow", "rem"):
    for dtype in ("bf16", "f16"):
        family.case(f"{op}_{dtype}", FLOAT[op], operand(op, 4, dtype=dtype), operand(op, 4, dtype=dtype), op=op, batch=False)
for op in ("add", "mul", "div", "pow", "atan2", "rem"):
    family.case(f"{op}_f64", FLOAT[op], operand(op, 3, dtype="f64"), operand(op, 3, dtype="f64"), op=op, batch=False)
for op in ("add", "sub", "mul", "div", "pow"):
    c64 = normal(3, dtype="c64")
    family.case(f"{op}_c64", FLOAT[op], c64, c64, op=op, batch=False, tol=1e-4, grad_tol=1e-4)

# Broadcasting.
SHAPES = {
    "row": ((2, 3), (3,)),
    "column": ((2, 3), (2, 1)),
    "outer": ((3, 1), (4,)),
    "scalar_right": ((2, 3), ()),
    "scalar_left": ((), (2, 3)),
    "scalars": ((), ()),
    "empty": ((0, 3), (3,)),
    "one_to_empty": ((1, 3), (0, 3)),
    "rank_4": ((2, 1, 3, 1), (4, 1, 2)),
}
for op in ("add", "mul", "div", "max", "pow", "sub"):
    for label, (a, b) in SHAPES.items():
        if op in ("add", "mul") or label in ("row", "outer", "scalar_left"):
            batch = [(0, 0), (0, None), (None, len(b))] if op in ("add", "mul") else False
            family.case(f"{op}_f32_{label}", FLOAT[op], operand(op, *a), operand(op, *b), op=op, batch=batch)
family.case("add_i32_f32", jnp.add, integers(2, 3), normal(3), op="add", batch=False)
family.case("mul_bf16_f32", jnp.multiply, normal(3, dtype="bf16"), normal(2, 3), op="mul", batch=False)
family.case("add_f32_c64", jnp.add, normal(3), normal(3, dtype="c64"), op="add", batch=False)
family.case("mul_c64_f32", jnp.multiply, normal(3, dtype="c64"), normal(3), op="mul", batch=False)

# Plain numbers are weakly typed.
for label, scalar in {"int": 2, "float": 2.5, "negative": -3}.items():
    for dtype in ("bf16", "f32", "i32", "u8"):
        if dtype == "u8" and label != "int":
            continue
        for op in ("mul", "add"):
            family.case(
                f"{op}_{dtype}_plain_{label}",
                lambda x, op=op, scalar=scalar: FLOAT[op](x, scalar),
                integers(3, lo=0, hi=9, dtype=dtype),
                op=op,
                params={"right": scalar},
                batch=False,
            )
family.case("div_i32_plain_int", lambda x: x / 2, integers(4), op="div", params={"right": 2}, batch=False)
family.case("mul_bool_plain_int", lambda x: x * 2, bools(4), op="mul", params={"right": 2}, batch=False)
family.case("mul_bool_plain_float", lambda x: x * 2.5, bools(4), op="mul", params={"right": 2.5}, batch=False)

# Ties: half of the gradient to each side.
ties = (values([1.0, 2.0, 3.0, -0.0]), values([1.0, 3.0, 2.0, 0.0]))
family.case("max_f32_ties", jnp.maximum, *ties, op="max", batch=False)
family.case("min_f32_ties", jnp.minimum, *ties, op="min", batch=False)
family.case("pow_f32_zero_base", jnp.power, values([0.0, 0.0, 0.0]), values([0.0, 1.0, 2.0]), op="pow", batch=False)
family.case("pow_f32_i32", jnp.power, normal(4), values([0, 1, 2, -3], "i32"), op="pow", batch=False)
family.case("pow_i32", jnp.power, values([2, -3, 0, 5, 1], "i32"), values([5, 3, 0, 2, 9], "i32"), op="pow", batch=False)
for n in (-3, -1, 0, 1, 2, 3, 5):
    params = {"n": n}
    fn = lambda x, n=n: lax.integer_pow(x, n)  # noqa: E731
    label = str(n).replace("-", "minus_")
    family.case(f"integer_pow_f32_{label}", fn, uniform(4, lo=0.5, hi=2.0), op="integer_pow", params=params, batch=False)
family.case(
    "integer_pow_f32_2_at_zero",
    lambda x: lax.integer_pow(x, 2),
    values([0.0, -1.5]),
    op="integer_pow",
    params={"n": 2},
    batch=False,
)
family.case("integer_pow_i32_3", lambda x: lax.integer_pow(x, 3), integers(4), op="integer_pow", params={"n": 3}, batch=False)
family.case("pow_f32_plain_2", lambda x: x**2, normal(3), op="pow", params={"right": 2}, batch=False)
family.case("pow_f32_plain_half", lambda x: x**0.5, uniform(3, lo=0.5, hi=2.0), op="pow", params={"right": 0.5}, batch=False)
family.case("nextafter_f32", lax.nextafter, LEFT, RIGHT, op="nextafter", grad=False, batch=False, tol=0)

# Integers. `div` and `rem` cut towards zero; `floor_divide` and `mod` go down; `true_divide` makes floats.
for dtype in ("i8", "i32", "u8", "u32", "i64"):
    info = np.iinfo(DTYPES[dtype])
    ends = [info.min, info.max, 7, 2, 0, 1] + ([-7, -2, -1] if info.min < 0 else [])
    pairs = np.array([(a, b) for a in ends for b in ends], object)
    a, b = values(pairs[:, 0].astype(DTYPES[dtype]), dtype), values(pairs[:, 1].astype(DTYPES[dtype]), dtype)
    ops = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": lax.div, "rem": lax.rem}
    ops |= {"max": jnp.maximum, "min": jnp.minimum, "floor_divide": jnp.floor_divide, "mod": jnp.remainder}
    ops |= BITS | (COMPARE if dtype in ("i32", "u8") else {})
    if dtype in ("i64", "u32"):
        ops = {op: ops[op] for op in ("add", "mul", "div", "rem", "floor_divide", "mod")}
    for op, fn in ops.items():
        family.case(f"{op}_{dtype}", fn, a, b, op=op, batch=False)
family.case("true_divide_i32", jnp.divide, integers(6), integers(6, lo=1), op="div", batch=False)

for dtype in ("i8", "i32", "u8", "u32"):
    info = np.iinfo(DTYPES[dtype])
    bits = info.bits
    pairs = [(a, s) for a in (info.min, info.max, 5, info.max // 3) for s in (0, 1, bits - 1, bits, bits + 1)]
    if info.min < 0:
        pairs += [(-5, 1), (5, -1), (-5, -1)]
    for op, fn in SHIFTS.items():
        family.case(
            f"{op}_{dtype}", fn, values([a for a, _ in pairs], dtype), values([s for _, s in pairs], dtype), op=op, batch=False
        )
for op, fn in BITS.items():
    family.case(f"{op}_bool", fn, values([0, 0, 1, 1], "bool"), values([0, 1, 0, 1], "bool"), op=op, batch=False)
family.case("and_i32_row", jnp.bitwise_and, integers(2, 3), integers(3), op="and")
for op in ("add", "mul", "max", "min"):
    family.case(f"{op}_bool", FLOAT[op], values([0, 0, 1, 1], "bool"), values([0, 1, 0, 1], "bool"), op=op, batch=False)

for op, fn in COMPARE.items():
    family.case(f"{op}_f32", fn, LEFT, RIGHT, op=op, batch=False)
    family.case(f"{op}_f32_outer", fn, integers(3, 1, dtype="f32", lo=-1, hi=2), integers(2, dtype="f32", lo=-1, hi=2), op=op)
    family.case(f"{op}_bool", fn, values([0, 0, 1, 1], "bool"), values([0, 1, 0, 1], "bool"), op=op, batch=False)
for op in ("eq", "ne"):
    points = values([1 + 2j, 1 - 2j, 0, complex(NAN, 0)], "c64")
    family.case(f"{op}_c64", COMPARE[op], points, values([1 + 2j, 1 + 2j, 0, complex(NAN, 0)], "c64"), op=op, batch=False)
family.case("complex_f32", lax.complex, normal(3), normal(3), op="complex")
