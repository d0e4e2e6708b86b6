"""`jax.nn.dot_product_attention` with every option, in three dtypes: results and logsumexps, first derivatives, batches; and
gradients of gradients."""

import types

import jax
import jax.numpy as jnp
from jax._src.nn import functions

from golden import Family, normal

# XLA's CPU compiler rejects the algorithm that JAX asks for float16, whose sums are in float32 anyway.
presets = jax.lax.DotAlgorithmPreset
functions.lax.DotAlgorithmPreset = types.SimpleNamespace(BF16_BF16_F32=presets.BF16_BF16_F32, F16_F16_F32=None)

family = Family("attention")

TOL = {"f32": 5e-5, "bf16": 3e-2, "f16": 4e-3}


def numbers(name, value):
    return jnp.array(value, jnp.int32) if name.endswith("lengths") else value


# Queries, keys, and options; lists are lengths.
CASES = {
    "plain": ((2, 9, 4, 8), (2, 7, 4, 8), {}),
    "causal": ((2, 9, 4, 8), (2, 9, 4, 8), {"is_causal": True}),
    "longer": ((1, 9, 2, 8), (1, 6, 2, 8), {"is_causal": True, "scale": 0.6}),
    "grouped": ((2, 7, 6, 8), (2, 9, 2, 8), {"is_causal": True}),
    "one_key_head": ((2, 5, 4, 8), (2, 6, 1, 8), {}),
    "window": ((2, 9, 2, 8), (2, 9, 2, 8), {"local_window_size": (3, 2)}),
    "window_left": ((2, 9, 2, 8), (2, 9, 2, 8), {"is_causal": True, "local_window_size": (2, 0)}),
    "lengths": ((2, 7, 2, 8), (2, 8, 2, 8), {"query_seq_lengths": [5, 7], "key_value_seq_lengths": [8, 3]}),
    "key_lengths": ((2, 7, 2, 8), (2, 7, 2, 8), {"is_causal": True, "key_value_seq_lengths": [6, 2]}),
}
for name, (q, kv, options) in CASES.items():
    for dtype in TOL:
        given = {name: numbers(name, value) for name, value in options.items()}
        family.case(
            f"{name}_{dtype}",
            lambda q, k, v, given=given: jax.nn.dot_product_attention(q, k, v, **given, return_residual=True),
            normal(*q, dtype=dtype),
            normal(*kv, dtype=dtype),
            normal(*kv, dtype=dtype),
            op="attention",
            params=options,
            batch=False,
            tol=TOL[dtype],
            grad_tol=2 * TOL[dtype],
        )

ADDED = {
    "bias": ((2, 4, 6, 5), (2, 1, 1, 5)),
    "shared_bias": ((1, 1, 6, 5), (1, 4, 6, 5)),
}
for name, (bias, mask) in ADDED.items():
    for dtype in TOL:
        family.case(
            f"{name}_{dtype}",
            lambda q, k, v, bias, mask: jax.nn.dot_product_attention(q, k, v, bias, mask),
            normal(2, 6, 4, 8, dtype=dtype),
            normal(2, 5, 2, 8, dtype=dtype),
            normal(2, 5, 2, 8, dtype=dtype),
            normal(*bias, dtype=dtype),
            lambda rng, mask=mask: rng.integers(0, 4, mask) > 0,
            op="masked",
            batch=[(1, None, 0, None, None), (0, 0, 0, 0, 0), (None, None, None, 2, None)],
            tol=TOL[dtype],
            grad_tol=2 * TOL[dtype],
        )


def second(q, k, v, bias):
    """The gradients of sum(sin(g)), where g are the gradients of sum(y²) with respect to queries, keys, values and bias."""

    def first(*x):
        y = jax.nn.dot_product_attention(*x, is_causal=True).astype(jnp.float32)
        return (y**2).sum()

    def slope(*x):
        return sum(jnp.sin(g.astype(jnp.float32)).sum() for g in jax.grad(first, (0, 1, 2, 3))(*x))

    return jax.grad(slope, (0, 1, 2, 3))(q, k, v, bias)


for dtype in TOL:
    family.case(
        f"second_{dtype}",
        second,
        normal(2, 6, 4, 8, dtype=dtype),
        normal(2, 6, 2, 8, dtype=dtype),
        normal(2, 6, 2, 8, dtype=dtype),
        normal(1, 4, 6, 6, dtype=dtype),
        op="second",
        grad=False,
        batch=False,
        tol=3 * TOL[dtype],
    )
