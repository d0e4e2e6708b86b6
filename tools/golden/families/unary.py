"""Elementwise functions of one argument."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import DTYPES, Family, bools, integers, normal, uniform, values

family = Family("unary")

ANY = (-3.0, 3.0)
POSITIVE = (0.2, 4.0)
UNIT = (-0.9, 0.9)
EDGES = [
    -np.inf,
    -100.0,
    -2.5,
    -2.0,
    -1.5,
    -1.0,
    -0.5,
    -0.25,
    -0.0,
    0.0,
    0.25,
    0.5,
    1.0,
    1.5,
    2.0,
    2.5,
    3.5,
    100.0,
    np.inf,
    np.nan,
]

FLOAT = {
    "neg": (lax.neg, ANY),
    "abs": (lax.abs, ANY),
    "sign": (lax.sign, ANY),
    "floor": (lax.floor, ANY),
    "ceil": (lax.ceil, ANY),
    "round": (jnp.round, ANY),
    "exp": (lax.exp, ANY),
    "exp2": (lax.exp2, ANY),
    "expm1": (lax.expm1, ANY),
    "log": (lax.log, POSITIVE),
    "log1p": (lax.log1p, (-0.8, 3.0)),
    "sqrt": (lax.sqrt, POSITIVE),
    "rsqrt": (lax.rsqrt, POSITIVE),
    "cbrt": (lax.cbrt, POSITIVE),
    "sin": (lax.sin, ANY),
    "cos": (lax.cos, ANY),
    "tan": (lax.tan, (-1.2, 1.2)),
    "asin": (lax.asin, UNIT),
    "acos": (lax.acos, UNIT),
    "atan": (lax.atan, ANY),
    "sinh": (lax.sinh, ANY),
    "cosh": (lax.cosh, ANY),
    "tanh": (lax.tanh, ANY),
    "asinh": (lax.asinh, ANY),
    "acosh": (lax.acosh, (1.1, 4.0)),
    "atanh": (lax.atanh, UNIT),
    "logistic": (lax.logistic, ANY),
    "erf": (lax.erf, ANY),
    "erfc": (lax.erfc, ANY),
    "erf_inv": (lax.erf_inv, UNIT),
    "lgamma": (lax.lgamma, POSITIVE),
    "digamma": (lax.digamma, POSITIVE),
    "square": (lax.square, ANY),
    "reciprocal": (lax.reciprocal, POSITIVE),
    "is_finite": (lax.is_finite, ANY),
}
HALF = "neg abs sign floor round exp log log1p expm1 sqrt rsqrt cbrt sin cos tan tanh logistic erf erf_inv lgamma square".split()
DOUBLE = (
    "neg floor round exp expm1 log log1p sqrt rsqrt cbrt sin cos tan asin atan sinh tanh asinh atanh logistic erf erfc erf_inv"
    " lgamma digamma square is_finite"
).split()
COMPLEX = (
    "neg abs sign exp expm1 log log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh logistic square"
    " reciprocal"
).split()

# Power series and polynomial fits differ between builds by a few units in the last place.
LOOSE = {"lgamma": 1e-4, "digamma": 1e-4, "erf_inv": 1e-4, "erfc": 1e-4, "tan": 1e-4, "acosh": 1e-4, "atanh": 1e-4}

for op, (fn, (lo, hi)) in FLOAT.items():
    tol = LOOSE.get(op)
    family.case(f"{op}_f32", fn, uniform(2, 3, lo=lo, hi=hi), op=op, batch=[(1,)], tol=tol, grad_tol=tol)
    family.case(f"{op}_f32_edge", fn, values(EDGES), op=op, grad=False, batch=False, tol=tol)
for op in HALF:
    fn, (lo, hi) = FLOAT[op]
    for dtype in ("bf16", "f16"):
        family.case(f"{op}_{dtype}", fn, uniform(5, lo=lo, hi=hi, dtype=dtype), op=op, batch=False, tol=2e-2, grad_tol=4e-2)
for op in DOUBLE:
    fn, (lo, hi) = FLOAT[op]
    tol = 1e-10 if op in LOOSE else None
    family.case(f"{op}_f64", fn, uniform(4, lo=lo, hi=hi, dtype="f64"), op=op, batch=False, tol=tol, grad_tol=tol)
for op in COMPLEX:
    family.case(f"{op}_c64", FLOAT[op][0], normal(2, 2, dtype="c64"), op=op, batch=False, tol=1e-4, grad_tol=1e-4)
for op in ("neg", "exp", "tanh", "floor"):
    fn = FLOAT[op][0]
    family.case(f"{op}_f32_scalar", fn, uniform(lo=-2.0, hi=2.0), op=op)
    family.case(f"{op}_f32_empty", fn, normal(0, 3), op=op, batch=[(2,)])
for op in ("real", "imag", "conj"):
    fn = getattr(lax, op)
    family.case(f"{op}_c64", fn, normal(2, 2, dtype="c64"), op=op, batch=[(1,)])
    family.case(f"{op}_c128", fn, normal(3, dtype="c128"), op=op, batch=False)
family.case("conj_f32", jnp.conj, normal(3), op="conj", batch=False)
family.case("is_finite_bf16", lax.is_finite, values(EDGES, "bf16"), op="is_finite", grad=False, batch=False)

# Derivatives where the function has a kink or a pole.
KINKS = {
    "abs": [-1.0, -0.0, 0.0, 1.0],
    "sign": [-1.0, 0.0, 1.0],
    "sqrt": [0.0, 1.0],
    "rsqrt": [0.0, 1.0],
    "log": [0.0, 1.0],
    "tanh": [-30.0, 0.0, 30.0],
    "logistic": [-100.0, 0.0, 100.0],
    "cbrt": [0.0, -8.0],
    "floor": [1.0, 1.5],
    "asin": [-1.0, 1.0],
}
for op, points in KINKS.items():
    family.case(f"{op}_f32_kink", FLOAT[op][0], values(points), op=op, batch=False)

# Integers.
for dtype in ("i8", "i32", "u8", "u32"):
    info = np.iinfo(DTYPES[dtype])
    edges = values([info.min, info.min + 1, info.max // 2, info.max, 0, 1, 5], dtype)
    ops = {"neg": lax.neg, "abs": lax.abs, "sign": lax.sign, "square": lax.square, "not": lax.bitwise_not}
    ops |= {"population_count": lax.population_count, "clz": lax.clz}
    for op, fn in ops.items():
        if op == "abs" and dtype.startswith("u"):
            continue
        family.case(f"{op}_{dtype}", fn, edges, op=op, batch=False)
family.case("not_bool", lax.bitwise_not, bools(4), op="not", batch=[(0,)])
family.case("neg_i64", lax.neg, values([-(2**63), 2**63 - 1, 0], "i64"), op="neg", batch=False)
family.case(
    "population_count_u64", lax.population_count, values([0, 2**64 - 1, 2**40 + 1], "u64"), op="population_count", batch=False
)
family.case("clz_u16", lax.clz, values([0, 1, 255, 65535], "u16"), op="clz", batch=False)
family.case("round_i32", jnp.round, integers(3), op="round", batch=False)

family.case(
    "round_f32_decimals", lambda x: jnp.round(x, 2), uniform(4, lo=-3.0, hi=3.0), op="round", params={"decimals": 2}, batch=False
)

for label, x, bits in [("f32", normal(6), [8, 7]), ("small", values([1e6, -1e6, 1e-6, 0.3]), [4, 3])]:
    family.case(
        f"reduce_precision_{label}",
        lambda x, bits=bits: lax.reduce_precision(x, *bits),
        x,
        op="reduce_precision",
        params={"bits": bits},
        tol=0,
        grad_tol=0,
        batch=label == "f32",
    )
