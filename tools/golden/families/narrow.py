"""Elements of 8 bits and fewer: conversions, operations, and products of scaled numbers."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax._src.cudnn import scaled_matmul_stablehlo as scaled

from golden import DTYPES, NARROW, Family, integers, normal, values

family = Family("narrow")
ALL = DTYPES | NARROW
FLOATS = [name for name in NARROW if name.startswith("f")]
INTEGERS = ["i4", "u4", "i2", "u2"]


def codes(name):
    bits = (ml_dtypes.finfo if name in FLOATS else ml_dtypes.iinfo)(NARROW[name]).bits
    found = np.arange(2**bits).astype(np.uint8).view(NARROW[name])
    # XLA for CPUs makes NaN of float8_e8m0fnu infinite.
    return found[:-1] if name == "f8_e8m0fnu" else found


def between(name):
    """Every number, numbers halfway between two, their neighbors, and numbers that are too large."""
    numbers = np.unique(codes(name).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    half = (numbers[1:] + numbers[:-1]) / 2
    points = [numbers, half, np.nextafter(half, np.float32(np.inf)), np.nextafter(half, np.float32(-np.inf))]
    if name != "f8_e8m0fnu":
        points.append(numbers[-1] * np.array([1.03, 1.0625, 1.07, 1.5, 2.0, 1e30], np.float32))
        points.append(np.array([np.inf, -np.inf] + ([] if name == "f4_e2m1fn" else [np.nan]), np.float32))
    return np.concatenate(points).astype(np.float32)


def case(name, fn, *inputs, op=None, params=None, tol=0, **options):
    family.case(name, fn, *inputs, op=op or name, params=params, grad=options.pop("grad", False), batch=False, tol=tol, **options)


for name in FLOATS:
    case(f"convert_f32_to_{name}", lambda x, name=name: x.astype(NARROW[name]), values(between(name)), op="convert", params={"targets": [name]})
for name in NARROW:
    # To float8_e8m0fnu there is no 0, and to 2 bits only what fits.
    targets = [t for t in ["f32", "bf16", "f16", "i8", "i32", "u8", "bool", "f8_e4m3fn", "f8_e5m2", "i4"] if t != name]
    finite = codes(name)
    wide = finite.astype(np.float64)
    finite = finite[np.isfinite(wide) & (np.abs(wide) < 100) & ((wide >= 0) | (name != "f8_e8m0fnu"))]
    case(f"convert_{name}", lambda x, targets=targets: [x.astype(ALL[t]) for t in targets], values(finite, name), op="convert", params={"targets": targets})
for name in [name for name in FLOATS if name.startswith("f8")]:
    case(f"bitcast_{name}_to_u8", lambda x: lax.bitcast_convert_type(x, jnp.uint8), values(codes(name), name), op="bitcast_convert_type", params={"target": "u8"})

SMALL = {"i2": [[-2, -1, 1, 0], [1, 0, 0, -2]], "u2": [[3, 1, 0, 2], [2, 2, 1, 0]], "u4": [[15, 1, 6, 2], [7, 3, 0, 9]]}
SIGNED = [[1.5, -0.5, 2.0, 3.0], [-1.0, 0.5, -4.0, 0.0]]
OPERATIONS = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": jnp.maximum,
    "less": lambda x, y: x < y,
    "equal": lambda x, y: x == y,
    "concatenate": lambda x, y: jnp.concatenate([x, y]),
    "where": lambda x, y: jnp.where(x > y, x, y),
    "transpose": lambda x, y: x.T,
    "max": lambda x, y: x.max(),
    "min_0": lambda x, y: x.min(0),
    "sort": lambda x, y: jnp.sort(x, -1),
    "cumsum": lambda x, y: jnp.cumsum(x, 0),
    "get": lambda x, y: x[1, jnp.array([3, 0])],
    "at_set": lambda x, y: x.at[0].set(y[1]),
    "plus_one": lambda x, y: x + 1,
    "dot_t": lambda x, y: x @ y.T,
    "negative": lambda x, y: -x,
}
REAL = {
    "divide": lambda x, y: x / (y * y + 1),
    "sum": lambda x, y: x.sum(),
    "mean": lambda x, y: x.mean(0),
    "abs": lambda x, y: abs(x),
    "exp": lambda x, y: jnp.exp(x),
    "tanh": lambda x, y: jnp.tanh(x),
    "sqrt": lambda x, y: jnp.sqrt(x * x),
    "floor": lambda x, y: jnp.floor(x),
    "isnan": lambda x, y: jnp.isnan(x),
}
for name in ["f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e4m3b11fnuz", "f8_e3m4", "f4_e2m1fn", *INTEGERS]:
    x = np.array(SMALL.get(name, SIGNED if name in FLOATS else [[-8, 3, 7, 1], [0, 5, -1, 2]]))
    y = x[::-1, ::-1]
    fns = OPERATIONS | (REAL if name in FLOATS else {})
    if name in ("i2", "u2"):
        # Operations that XLA for CPUs does not compile.
        fns = {op: fn for op, fn in fns.items() if op not in ("dot_t", "concatenate", "sort")}
    case(
        f"operations_{name}",
        lambda x, y, fns=tuple(fns.values()): [fn(x, y) for fn in fns],
        values(x, name),
        values(y, name),
        op="operations",
        params={"functions": list(fns)},
    )

for left, right, to in [("f8_e4m3fn", "f8_e4m3fn", "f32"), ("f8_e4m3fn", "f8_e5m2", "f32"), ("f8_e5m2", "f8_e4m3fn", "bf16"), ("i8", "i8", "i32"), ("u8", "u8", "u32")]:
    case_of = normal if left[0] == "f" else integers
    bounds = {"scale": 2.0} if left[0] == "f" else {"lo": 0 if left[0] == "u" else -128, "hi": 128}
    case(
        f"dot_{left}_{right}_to_{to}",
        lambda x, y, to=to: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=ALL[to]),
        case_of(3, 8, dtype=left, **bounds),
        case_of(8, 5, dtype=right, **bounds),
        op="dot",
        params={"to": to},
        tol={"f32": 1e-6, "bf16": 1e-2}.get(to, 0),
    )


def scaled_matmul(a, b, a_scales, b_scales, preferred_element_type=jnp.float32):
    """scaled_matmul as its documentation has it: JAX lowers it for GPUs alone."""
    a, b, a_scales, b_scales = (x.astype(jnp.float32) for x in (a, b, a_scales, b_scales))
    a = a * jnp.repeat(a_scales, a.shape[-1] // a_scales.shape[-1], axis=-1)
    b = b * jnp.repeat(b_scales, b.shape[-1] // b_scales.shape[-1], axis=-1)
    return jnp.einsum("BMK,BNK->BMN", a, b).astype(preferred_element_type)


scaled.scaled_matmul_wrapper = scaled_matmul
for data, scale, size in [("f8_e4m3fn", "f8_e8m0fnu", 32), ("f4_e2m1fn", "f8_e4m3fn", 16)]:
    powers = lambda shape: (lambda rng: 2.0 ** rng.integers(-3, 4, shape))  # noqa: E731
    narrow = lambda make, name: (lambda rng: make(rng).astype(NARROW[name]))  # noqa: E731
    case(
        f"scaled_matmul_{data}",
        scaled_matmul,
        normal(2, 3, 2 * size, dtype=data, scale=2.0),
        normal(2, 5, 2 * size, dtype=data, scale=2.0),
        narrow(powers((2, 3, 2)), scale),
        narrow(powers((2, 5, 2)), scale),
        op="scaled_matmul",
        tol=1e-5,
    )
for mode in ["mxfp8", "nvfp4"]:
    for dtype in ["f32", "bf16"]:
        configs = [jax.nn.get_scaled_dot_general_config(mode) for _ in range(3)]
        case(
            f"scaled_dot_general_{mode}_{dtype}",
            lambda x, y, configs=configs, dtype=dtype: jax.nn.scaled_dot_general(
                x, y, (((2,), (0,)), ((), ())), preferred_element_type=ALL[dtype], configs=configs
            ),
            normal(4, 16, 64, dtype=dtype),
            normal(64, 32, dtype=dtype),
            op="scaled_dot_general",
            params={"mode": mode, "to": dtype},
            grad="rev",
            # A number next to the boundary of two float8 may be rounded to either.
            tol=1e-5 if dtype == "f32" else 3e-2,
            grad_tol=1e-4 if dtype == "f32" else 5e-2,
        )

