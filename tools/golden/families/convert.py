"""astype between all pairs of dtypes, and bit casts. One case a source dtype: result i has dtype params.targets[i]."""

import warnings

import numpy as np
from jax import lax

from golden import DTYPES, SIXTY_FOUR, Family, normal, values

# astype from complex to real drops the imaginary part, with a warning.
warnings.filterwarnings("ignore", message="Casting from complex to real")

family = Family("convert")
NAN, INF = np.nan, np.inf
FLOATS = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, 127.6, 128.0, -129.0, 255.9, 256.0, 300.7, 65504.0, INF, -INF, NAN]
WIDE = [70000.0, -70000.0, 2147483648.0, -2147483904.0, 4294967296.0, 1e19, -1e19, 16777217.0, 3.3895314e38]
SOURCES = {
    "bool": [False, True],
    "u8": [0, 1, 127, 128, 255],
    "u16": [0, 1, 255, 256, 32768, 65535],
    "u32": [0, 1, 255, 65536, 16777217, 2147483648, 4294967295],
    "u64": [0, 1, 2**24 + 1, 2**53 + 1, 2**63, 2**64 - 1],
    "i8": [-128, -1, 0, 1, 127],
    "i16": [-32768, -129, -1, 0, 1, 128, 257, 32767],
    "i32": [-2147483648, -65537, -129, -1, 0, 1, 256, 16777217, 2147483647],
    "i64": [-(2**63), -(2**31) - 1, -1, 0, 1, 2**32 + 5, 2**53 + 1, 2**63 - 1],
    "f16": FLOATS,
    "bf16": FLOATS + WIDE,
    "f32": FLOATS + WIDE + [1e-5, 1e-7, 65519.0, 65520.0, 1.00390625, 1.01171875],
    "f64": FLOATS + WIDE + [1e300, 1e-300, 0.1, 9007199254740993.0],
    "c64": [0, 1 + 2j, -1.5 - 0.5j, 2j, 300.7 + 1j],
    "c128": [0, 1 + 2j, -1.5 - 0.5j, 0.1j],
}
for source, data in SOURCES.items():
    x = values(data, source)
    for x64 in (False, True):
        if source in SIXTY_FOUR and not x64:
            continue
        targets = [t for t in DTYPES if (t in SIXTY_FOUR) == x64 or source in SIXTY_FOUR]
        family.case(
            f"convert_{source}" + ("_x64" if x64 and source not in SIXTY_FOUR else ""),
            lambda x, targets=targets: [x.astype(DTYPES[t]) for t in targets],
            x,
            op="convert",
            params={"targets": targets},
            grad=False,
            batch=False,
            tol=0,
            x64=x64,
        )
for source, target in [
    ("f32", "bf16"),
    ("bf16", "f32"),
    ("f16", "f32"),
    ("f32", "f64"),
    ("f32", "c64"),
    ("c64", "f32"),
    ("f32", "i32"),
]:
    family.case(
        f"convert_{source}_to_{target}_grad",
        lambda x, target=target: x.astype(DTYPES[target]),
        normal(2, 3, dtype=source),
        op="convert",
        params={"targets": [target]},
        batch=[(1,)],
        x64=target in SIXTY_FOUR,
    )
for source, target, shape in [
    ("f32", "i32", (3,)),
    ("i32", "f32", (3,)),
    ("f32", "u8", (2,)),
    ("u8", "u32", (2, 4)),
    ("bf16", "u16", (3,)),
    ("f32", "bf16", (2,)),
    ("f16", "i8", (2,)),
]:
    family.case(
        f"bitcast_{source}_to_{target}",
        lambda x, target=target: lax.bitcast_convert_type(x, DTYPES[target]),
        normal(*shape, dtype=source, scale=3.0)
        if source[0] in "fb"
        else values(np.arange(np.prod(shape)).reshape(shape) * 37 + 1, source),
        op="bitcast_convert_type",
        params={"target": target},
        grad=False,
        batch=[(0,)],
        tol=0,
    )
