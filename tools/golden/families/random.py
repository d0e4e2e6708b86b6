"""Random numbers (threefry2x32, partitionable). in/0 is the key's data, u32[2]; keys come back as their data."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from golden import DTYPES, SIXTY_FOUR, Family, normal, values

family = Family("random")
KEYS = (0, 42, 123)


def key_data(seed):
    return values([0, seed], "u32")


def as_data(x):
    return random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def case(name, fn, *inputs, op=None, params=None, doc=None, seeds=KEYS, tol=0, x64=False):
    for seed in seeds:
        family.case(
            f"{name}_key_{seed}",
            lambda data, *rest: as_data(fn(random.wrap_key_data(data), *rest)),
            key_data(seed),
            *inputs,
            op=op or name,
            params=params,
            doc=doc,
            grad=False,
            batch=False,
            tol=tol,
            x64=x64,
        )


SEEDS = [0, 1, 42, 123, 2**31 - 1, -1, -(2**31)]
family.case(
    "key_from_seed",
    lambda: jnp.stack([random.key_data(random.key(s)) for s in SEEDS]),
    op="key",
    params={"seeds": SEEDS},
    doc="one row a seed",
)
SEEDS64 = [*SEEDS, 2**31, 2**32 - 1, 2**32, 2**40 + 7, -(2**40), 2**63 - 1]
family.case(
    "key_from_seed_x64",
    lambda: jnp.stack([random.key_data(random.key(s)) for s in SEEDS64]),
    op="key",
    params={"seeds": SEEDS64},
    doc="one row a seed",
    x64=True,
)

# Plain bits and keys.
for dtype in ("u8", "u16", "u32", "u64"):
    case(
        f"bits_{dtype}",
        lambda k, d=dtype: random.bits(k, (3, 5), DTYPES[d]),
        op="bits",
        params={"shape": [3, 5], "dtype": dtype},
        x64=dtype in SIXTY_FOUR,
    )
case("bits_u32_scalar", lambda k: random.bits(k), op="bits", params={"shape": [], "dtype": "u32"})
case("bits_u32_empty", lambda k: random.bits(k, (0,)), op="bits", params={"shape": [0], "dtype": "u32"}, seeds=(0,))
case("bits_u32_1001", lambda k: random.bits(k, (1001,)), op="bits", params={"shape": [1001], "dtype": "u32"}, seeds=(42,))
for num in (2, 5, (2, 3), 1):
    label = "x".join(map(str, num)) if isinstance(num, tuple) else num
    case(f"split_{label}", lambda k, n=num: random.split(k, n), op="split", params={"num": num})
case("split_twice", lambda k: random.split(random.split(k)[1]), op="split", doc="split(split(key)[1])")
for data in (0, 1, 5, 1000, 2**31 - 1, 2**32 - 1):
    case(f"fold_in_{data}", lambda k, d=data: random.fold_in(k, np.uint32(d)), op="fold_in", params={"data": data})
case("fold_in_traced", lambda k, d: random.fold_in(k, d), values(7, "i32"), op="fold_in")
case(
    "fold_in_then_bits",
    lambda k: random.bits(random.fold_in(k, 5), (4,)),
    op="bits",
    doc="bits(fold_in(key, 5), [4])",
    seeds=(42,),
)
case(
    "normal_vmapped_keys",
    lambda k: jax.vmap(lambda k: random.normal(k, (2,)))(random.split(k, 3)),
    op="normal",
    doc="vmap of normal(key, [2]) over split(key, 3)",
    tol=2e-6,
)
case("clone", random.clone, seeds=(42,))

# Floats.
for dtype in ("f32", "bf16", "f16", "f64"):
    x64 = dtype in SIXTY_FOUR
    for label, (lo, hi) in {"0_1": (0.0, 1.0), "minus_2_3": (-2.0, 3.0)}.items():
        case(
            f"uniform_{dtype}_{label}",
            lambda k, d=dtype, lo=lo, hi=hi: random.uniform(k, (9,), DTYPES[d], lo, hi),
            op="uniform",
            params={"shape": [9], "dtype": dtype, "minval": lo, "maxval": hi},
            x64=x64,
            # Processors differ in whether they round between the product and the sum.
            tol={"f32": 1e-7, "f64": 1e-15, "f16": 1e-3, "bf16": 8e-3}[dtype] if lo else 0,
        )
    tol = {"f32": 2e-6, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-13}[dtype]
    case(
        f"normal_{dtype}",
        lambda k, d=dtype: random.normal(k, (9,), DTYPES[d]),
        op="normal",
        params={"shape": [9], "dtype": dtype},
        tol=tol,
        x64=x64,
    )
    case(
        f"truncated_normal_{dtype}",
        lambda k, d=dtype: random.truncated_normal(k, -2, 2, (6,), DTYPES[d]),
        op="truncated_normal",
        params={"shape": [6], "dtype": dtype, "lower": -2, "upper": 2},
        tol=tol,
        x64=x64,
    )
case("uniform_f32_scalar", lambda k: random.uniform(k), op="uniform", params={"shape": [], "dtype": "f32"})
case(
    "uniform_f32_array_bounds",
    lambda k, lo, hi: random.uniform(k, (2, 3), minval=lo, maxval=hi),
    values([[0.0], [-1.0]]),
    values([1.0, 2.0, 10.0]),
    op="uniform",
    params={"shape": [2, 3], "dtype": "f32"},
    tol=1e-7,
)
case("normal_f32_scalar", lambda k: random.normal(k), op="normal", params={"shape": [], "dtype": "f32"}, tol=2e-6)
case(
    "normal_f32_1001_last",
    lambda k: random.normal(k, (1001,))[-5:],
    op="normal",
    doc="normal(key, [1001])[-5:]",
    tol=2e-6,
    seeds=(42,),
)
case("normal_f32_4x3", lambda k: random.normal(k, (4, 3)), op="normal", params={"shape": [4, 3], "dtype": "f32"}, tol=2e-6)
case("normal_c64", lambda k: random.normal(k, (4,), DTYPES["c64"]), op="normal", params={"shape": [4], "dtype": "c64"}, tol=2e-6)
case(
    "truncated_normal_f32_asymmetric",
    lambda k: random.truncated_normal(k, -0.5, 3, (6,)),
    op="truncated_normal",
    params={"shape": [6], "dtype": "f32", "lower": -0.5, "upper": 3},
    tol=5e-6,
)
case("gumbel_f32", lambda k: random.gumbel(k, (6,)), op="gumbel", params={"shape": [6], "dtype": "f32"}, tol=2e-6)
case("exponential_f32", lambda k: random.exponential(k, (6,)), op="exponential", params={"shape": [6], "dtype": "f32"}, tol=2e-6)
case("laplace_f32", lambda k: random.laplace(k, (6,)), op="laplace", params={"shape": [6], "dtype": "f32"}, tol=2e-6)
case("logistic_f32", lambda k: random.logistic(k, (6,)), op="logistic", params={"shape": [6], "dtype": "f32"}, tol=2e-6)
case("cauchy_f32", lambda k: random.cauchy(k, (6,)), op="cauchy", params={"shape": [6], "dtype": "f32"}, tol=1e-4)
case(
    "rademacher_i32", lambda k: random.rademacher(k, (8,), DTYPES["i32"]), op="rademacher", params={"shape": [8], "dtype": "i32"}
)

# Integers.
for dtype, lo, hi in [
    ("i32", 3, 17),
    ("i32", -100, 100),
    ("i32", 0, 2**31 - 1),
    ("i32", -(2**31), 2**31 - 1),
    ("i32", 5, 5),
    ("i32", 0, 1),
    ("u32", 0, 1000),
    ("u32", 0, 2**32 - 1),
    ("i8", -128, 127),
    ("u8", 0, 255),
    ("u8", 0, 256),
    ("i16", -300, 300),
    ("i64", 0, 2**40),
    ("i64", -5, 5),
]:
    label = f"{lo}_{hi}".replace("-", "minus_")
    case(
        f"randint_{dtype}_{label}",
        # A plain bound must fit an i32.
        lambda k, d=dtype, lo=lo, hi=hi: random.randint(
            k, (8,), *(DTYPES[d].type(v) if d in ("i64", "u32") else v for v in (lo, hi)), DTYPES[d]
        ),
        op="randint",
        params={"shape": [8], "dtype": dtype, "minval": lo, "maxval": hi},
        x64=dtype in SIXTY_FOUR,
    )
case(
    "randint_i32_array_bounds",
    lambda k, lo, hi: random.randint(k, (2, 3), lo, hi),
    values([[0], [-10]], "i32"),
    values([1, 10, 100], "i32"),
    op="randint",
    params={"shape": [2, 3], "dtype": "i32"},
)

# Permutations and choices.
for n in (8, 1, 0, 100):
    case(f"permutation_{n}", lambda k, n=n: random.permutation(k, n), op="permutation", params={"n": n})
case(
    "permutation_3000_first",
    lambda k: random.permutation(k, 3000)[:8],
    op="permutation",
    doc="permutation(key, 3000)[:8]",
    seeds=(42,),
)
case("permutation_array", random.permutation, normal(6), op="permutation")
case("permutation_rows", random.permutation, normal(5, 2), op="permutation", doc="axis 0")
case("permutation_axis_1", lambda k, x: random.permutation(k, x, axis=1), normal(2, 5), op="permutation", params={"axis": 1})
case(
    "permutation_independent",
    lambda k, x: random.permutation(k, x, axis=1, independent=True),
    normal(2, 5),
    op="permutation",
    params={"axis": 1, "independent": True},
)
case("bernoulli_half", lambda k: random.bernoulli(k, shape=(12,)), op="bernoulli", params={"shape": [12], "p": 0.5})
case("bernoulli_0_2", lambda k: random.bernoulli(k, 0.2, (12,)), op="bernoulli", params={"shape": [12], "p": 0.2})
case("bernoulli_array", random.bernoulli, values([0.0, 0.1, 0.5, 0.9, 1.0]), op="bernoulli", doc="p is in/1")
case("categorical", random.categorical, normal(4, 5), op="categorical", doc="logits in/1, axis -1")
case("categorical_axis_0", lambda k, x: random.categorical(k, x, axis=0), normal(4, 5), op="categorical", params={"axis": 0})
case(
    "categorical_shape",
    lambda k, x: random.categorical(k, x, shape=(3, 2)),
    normal(2, 4),
    op="categorical",
    params={"axis": -1, "shape": [3, 2]},
)
case("choice_int", lambda k: random.choice(k, 10, (6,)), op="choice", params={"a": 10, "shape": [6], "replace": True})
case(
    "choice_int_no_replace",
    lambda k: random.choice(k, 10, (6,), replace=False),
    op="choice",
    params={"a": 10, "shape": [6], "replace": False},
)
case("choice_array", lambda k, x: random.choice(k, x, (4,)), normal(5), op="choice", params={"shape": [4], "replace": True})
case(
    "choice_p",
    lambda k, p: random.choice(k, 4, (6,), p=p),
    values([0.1, 0.2, 0.3, 0.4]),
    op="choice",
    params={"a": 4, "shape": [6], "replace": True},
    doc="p is in/1",
)
case(
    "choice_p_no_replace",
    lambda k, p: random.choice(k, 4, (3,), replace=False, p=p),
    values([0.1, 0.2, 0.3, 0.4]),
    op="choice",
    params={"a": 4, "shape": [3], "replace": False},
    doc="p is in/1",
)

# Initializers.
INITIALIZERS = {
    "lecun_normal": jax.nn.initializers.lecun_normal(),
    "lecun_uniform": jax.nn.initializers.lecun_uniform(),
    "he_normal": jax.nn.initializers.he_normal(),
    "he_uniform": jax.nn.initializers.he_uniform(),
    "glorot_uniform": jax.nn.initializers.glorot_uniform(),
    "glorot_normal": jax.nn.initializers.glorot_normal(),
    "normal": jax.nn.initializers.normal(0.02),
    "uniform": jax.nn.initializers.uniform(0.05),
    "truncated_normal": jax.nn.initializers.truncated_normal(0.02),
}
for name, init in INITIALIZERS.items():
    for label, shape in {"dense": (6, 4), "conv": (3, 3, 2, 4)}.items():
        if label == "conv" and name in ("normal", "uniform", "truncated_normal"):
            continue
        case(
            f"{name}_{label}",
            lambda k, i=init, s=shape: i(k, s),
            op=f"initializers.{name}",
            params={"shape": shape},
            tol=2e-6,
            seeds=KEYS if label == "dense" else (42,),
        )
case(
    "lecun_normal_bf16",
    lambda k: jax.nn.initializers.lecun_normal(dtype=DTYPES["bf16"])(k, (6, 4)),
    op="initializers.lecun_normal",
    params={"shape": [6, 4], "dtype": "bf16"},
    tol=1e-2,
    seeds=(42,),
)
case(
    "orthogonal",
    lambda k: jax.nn.initializers.orthogonal()(k, (4, 4)),
    op="initializers.orthogonal",
    params={"shape": [4, 4]},
    tol=1e-4,
    seeds=(42,),
)
