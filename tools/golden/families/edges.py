"""Every function at the edges: NaN, infinities, zeros of both signs, denormals, the largest numbers, ties, nothing at all.

`op` is shardax's name of the function. Values, gradients and tangents."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from golden import DTYPES, Family, values

family = Family("edges")
NAN, INF = np.nan, np.inf

REAL = [NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 1.2e-38, 1e-20, -1e-20, 0.25, -0.25, 0.5, -0.5, 1, -1, 1.5, 2, -2, 2.5]
REAL += [3, -3, 6, -6, 10, -10, 20.5, -20.5, 50, -50, 88.8, -88.8, 100, -100, 1e10, -1e10, 1e20, -1e20, 3.4e38, -3.4e38]
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, INF, -INF, NAN, -2.0]
PLANE = [complex(a, b) for a in PARTS for b in PARTS]
SMALL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 3.0, 1e-40, 3.4e38, -3.4e38]
PAIRS = [[a for a in SMALL for _ in SMALL], [b for _ in SMALL for b in SMALL]]

UNARY = {name: getattr(jnp, name) for name in (
    "negative abs sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan arcsin arccos arctan sinh cosh"
    " tanh arcsinh arccosh arctanh floor ceil round trunc isfinite isnan isinf logical_not real imag conj"
).split()}
UNARY |= {name: getattr(lax, name) for name in "rsqrt logistic erf erfc erf_inv lgamma digamma".split()}
COMPLEX = (
    "negative abs sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan arcsin arccos arctan sinh cosh tanh"
    " arcsinh arccosh arctanh isfinite isnan isinf logical_not real imag conj rsqrt logistic"
).split()
ACTIVATIONS = {name: getattr(jax.nn, name) for name in (
    "relu relu6 gelu silu sigmoid log_sigmoid softplus soft_sign hard_tanh hard_sigmoid selu mish elu celu leaky_relu"
).split()}
ACTIVATIONS["gelu_exact"] = lambda x: jax.nn.gelu(x, approximate=False)
LOOSE = dict(lgamma=1e-4, digamma=1e-4, erf_inv=1e-4, erfc=1e-4, tan=1e-4, arccosh=1e-4, arctanh=1e-4)


for op, fn in (UNARY | ACTIVATIONS).items():
    tol = LOOSE.get(op)
    # The slope of a cubic root overflows at denormals, and what 0 times infinity is depends on the order of factors.
    points = [x for x in REAL if not (op == "cbrt" and 0 < abs(x) < 1e-30 or op == "gelu_exact" and 3e38 < abs(x) < INF)]
    family.case(f"{op}_f32", fn, values(points), op=op, batch=False, tol=tol, grad_tol=tol)
for op in COMPLEX:
    # The slope of a square at infinity is infinite here, and NaN in JAX.
    family.case(f"{op}_c64", UNARY[op], values(PLANE, "c64"), op=op, grad=op != "square", batch=False, tol=1e-4, grad_tol=1e-4)

BINARY = {name: getattr(jnp, name) for name in (
    "add subtract multiply divide floor_divide remainder fmod power arctan2 maximum minimum logaddexp nextafter"
    " equal not_equal less less_equal greater greater_equal"
).split()}
for op, fn in BINARY.items():
    # The tangent of a quotient by the largest numbers is 0 here, and NaN in JAX, which squares them.
    grad = {"nextafter": False, "divide": "rev"}.get(op, True)
    family.case(f"{op}_f32", fn, values(PAIRS[0]), values(PAIRS[1]), op=op, grad=grad, batch=False)
for op in "add subtract multiply divide power".split():
    x, y = [a for a in PLANE[::4] for _ in PLANE[::4]], [b for _ in PLANE[::4] for b in PLANE[::4]]
    family.case(f"{op}_c64", BINARY[op], values(x, "c64"), values(y, "c64"), op=op, batch=False, grad=False, tol=1e-4)
for n in (-2, 0, 1, 2, 3):
    family.case(
        f"integer_pow_f32_{n}".replace("-", "m"),
        lambda x, n=n: lax.integer_pow(x, n),
        values(REAL),
        op="integer_pow",
        params={"n": n},
        batch=False,
    )
family.case("clip_f32", lambda x: jnp.clip(x, -1.0, 2.0), values(REAL), op="clip", batch=False)
family.case("clamp_f32", lambda x: lax.clamp(-1.0, x, 2.0), values(REAL), op="clamp", batch=False)
family.case("where_f32", lambda x, y: jnp.where(x > y, x, y), values(PAIRS[0]), values(PAIRS[1]), op="where_", batch=False)
LESS = [x for x in REAL if not 3e38 < abs(x) < INF]  # Tenfold it is infinite.
family.case("around_f32", lambda x: jnp.round(x, 1), values(LESS), op="around", grad=False, batch=False)

ROWS = [
    [NAN, 1, 2, 3],
    [INF, 1, 2, INF],
    [INF, -INF, 0, 1],
    [-INF, -INF, -INF, -INF],
    [-INF, 0, 1, -INF],
    [0, -0.0, 0, -0.0],
    [-0.0, 0, -0.0, 0],
    [1, 1, 1, 1],
    [2, 5, 5, 5],
    [3.4e38, 3.4e38, -3.4e38, 1],
    [1e-40, 0, 1e-40, -1e-40],
    [0, 0, 3, 4],
    [0, 7, 3, 4],
    [NAN, NAN, INF, -INF],
    [1000, 1001, -1000, 0],
    [-5, 0.5, -5, 3],
]
ROW_FUNCTIONS = {name: getattr(jnp, name) for name in "sum prod max min mean var std argmax argmin any all cumsum cumprod".split()}
ROW_FUNCTIONS |= {name: getattr(jax.nn, name) for name in "logsumexp softmax log_softmax".split()}
ROW_FUNCTIONS |= {name: lambda x, axis, f=getattr(lax, name): f(x, axis=axis) for name in "cummax cummin cumlogsumexp".split()}
ROW_FUNCTIONS |= {name: getattr(jnp, name) for name in "sort argsort".split()}
ROW_FUNCTIONS["cumlogsumexp_reverse"] = lambda x, axis: lax.cumlogsumexp(x, axis=axis, reverse=True)
for p in (None, 1, 2, 3, 0.5, 0, INF, -INF):
    ROW_FUNCTIONS[f"norm_{p}".lower()] = lambda x, axis, p=p: jnp.linalg.norm(x, ord=p, axis=axis)
for op, fn in ROW_FUNCTIONS.items():
    grad = not (op.startswith("arg") or op in ("any", "all"))
    # The order of factors decides what overflows.
    rows = [r for r in ROWS if "prod" not in op or 3.4e38 not in r]
    family.case(f"{op}_f32", lambda x, fn=fn: fn(x, axis=1), values(rows), op=f"rows {op}", grad=grad, batch=False)
    if op.startswith(("sort", "max", "min", "arg")):
        continue
    if not (op.startswith("norm") and "inf" in op):
        # The modes of JAX do not agree on the slope of what is not a number.
        some = grad and op not in ("var", "std")
        family.case(f"{op}_f32_empty", lambda x, fn=fn: fn(x, axis=1), values(np.ones((2, 0))), op=f"rows {op}", grad=some, batch=False)
    family.case(
        f"{op}_f32_none", lambda x, fn=fn: fn(x, axis=1), values(np.ones((0, 3))), op=f"rows {op}", grad=grad, batch=False
    )
for op in ("var", "std"):
    for ddof in (1, 4, 100):
        family.case(
            f"{op}_f32_ddof_{ddof}",
            lambda x, ddof=ddof, f=getattr(jnp, op): f(x, axis=1, ddof=ddof),
            values(ROWS[5:12]),
            op=f"rows {op}_ddof",
            params={"ddof": ddof},
            grad=ddof == 1,
            batch=False,
        )

# Integers.
INTEGER_PAIRS = "add subtract multiply floor_divide remainder fmod maximum minimum".split()
INTEGER_PAIRS += "left_shift right_shift bitwise_and bitwise_or bitwise_xor power divide equal less".split()
for dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
    info = np.iinfo(DTYPES[dtype])
    points = sorted({info.min, info.min + 1, -1 if info.min else 9, 0, 1, 2, 5, 7, info.bits, info.max - 1, info.max})
    x = np.repeat(np.array(points, DTYPES[dtype]), len(points))
    y = np.tile(np.array(points, DTYPES[dtype]), len(points))
    for op in INTEGER_PAIRS:
        if op == "power":
            # Negative exponents of integers are not defined.
            y = np.where(y < 0, 3, y).astype(DTYPES[dtype]) if info.min else y
        x64 = dtype in ("i64", "u64")
        family.case(f"{op}_{dtype}", getattr(jnp, op), values(x, dtype), values(y, dtype), op=op, batch=False, x64=x64)
    one = "negative abs sign square bitwise_not population_count clz floor ceil round trunc isnan isinf isfinite reciprocal".split()
    for op in one:
        fn = getattr(lax, op) if op in ("population_count", "clz") else getattr(jnp, op)
        family.case(f"{op}_{dtype}", fn, values(points, dtype), op=op, batch=False)
    for op in "sum prod max min mean var any all argmax argmin cumsum cumprod sort".split():
        if op.startswith("arg") and dtype.endswith("64"):
            continue  # Indices have 32 bits, as without JAX's 64-bit mode.
        fn = getattr(jnp, op)
        rows = values(np.resize(np.array(points, DTYPES[dtype]), (2, 6)), dtype)
        family.case(f"{op}_{dtype}", lambda x, fn=fn: fn(x, axis=1), rows, op=f"rows {op}", batch=False)
    for to in ("i8", "u8", "i32", "u32", "f16", "bf16", "f32", "bool"):
        family.case(
            f"astype_{to}_{dtype}",
            lambda x, to=to: x.astype(DTYPES[to]),
            values(points, dtype),
            op="astype",
            params={"dtype": to},
            batch=False,
        )
for to in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "bool"):
    family.case(
        f"astype_{to}_f32",
        lambda x, to=to: x.astype(DTYPES[to]),
        values(REAL),
        op="astype",
        params={"dtype": to},
        batch=False,
        x64=to in ("i64", "u64"),
    )

# Indices out of bounds.
family.case("get_outside", lambda x: x[jnp.array([-5, 3, 1, -1])], values([1.0, 2, 3]), op="get", params={"at": [-5, 3, 1, -1]}, grad="rev", batch=False)
for mode in ("clip", "fill", "wrap"):
    if mode != "wrap":
        family.case(
            f"take_{mode}",
            lambda x, mode=mode: jnp.take(x, jnp.array([-5, -1, 0, 3, 7]), axis=0, mode=mode),
            values([1.0, 2, 3]),
            op="take",
            params={"at": [-5, -1, 0, 3, 7], "mode": mode},
            batch=False,
        )
for kind in ("add", "multiply", "max", "min", "set"):
    for name, x, y in (
        ("nan", [NAN, 1, NAN, 4], [1.0, 2, 3]),
        ("ties", [1.0, 2, 3, 4], [2.0, 3, 3]),
        ("nan_update", [1.0, 2, 3, 4], [NAN, 3, 3]),
    ):
        if kind == "multiply" and name != "nan":
            continue
        family.case(
            f"at_{kind}_{name}",
            lambda x, y, kind=kind: getattr(x.at[jnp.array([1, 2, 3] if kind == "multiply" else [1, 2, 2])], kind)(
                y, **({"unique_indices": True} if kind == "multiply" else {})
            ),
            values(x),
            values(y),
            op="at",
            params={"kind": kind},
            # Forward mode has NaN for what was not written to.
            grad="rev" if kind == "multiply" else True,
            batch=False,
        )

# Windows over nothing, and padding.
for size in (0, 1, 5):
    family.case(
        f"max_pool_same_{size}",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 1), (1, 2, 1), "SAME"),
        values(np.arange(2 * size).reshape(2, size, 1)),
        op="max_pool",
        batch=False,
    )
    family.case(
        f"conv_same_{size}",
        lambda x, k: lax.conv_general_dilated(x, k, (2,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")),
        values(np.arange(2 * size).reshape(2, size, 1)),
        values(np.ones((3, 1, 2))),
        op="conv",
        batch=False,
    )

# Decompositions of matrices that have none.
for name, m in {
    "inf": [[INF, 0], [0, 1]],
    "nan": [[1, NAN], [NAN, 1]],
    "minus_inf": [[1, -INF], [-INF, 1]],
    "zero": [[0, 0], [0, 0]],
    "large": [[1e20, 0], [0, 1]],
}.items():
    family.case(f"eigvalsh_{name}", jnp.linalg.eigvalsh, values(m), op="eigvalsh", grad=False, batch=False)
    for op in ("cholesky", "det") if name in ("zero", "large") else ():
        family.case(f"{op}_{name}", getattr(jnp.linalg, op), values(m), op=op, grad=False, batch=False)
