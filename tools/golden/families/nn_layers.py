"""Layers of Flax NNX as they are made with `Rngs(0)`: so the first weights are compared too, but where they are `given`:
then parameter i, in the order of their paths, is made as the inputs are, with the salt after theirs, divided by 8.

The inputs are made as in `nn_half`. A case's results are six elements of each of: the outputs; for cases with gradients, the
gradient of sum(y²) in float32 with respect to x, then to each parameter in the order of their paths. With dtype bf16
input and computation are in bfloat16, and parameters too unless `params` is "f32".
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from families.nn_half import numbers, some
from golden import DTYPES, Family, integers, normal, values

family = Family("nn_layers")

HALF = nnx.initializers.he_uniform()


def case(name, make, shape, *, call=None, doc=None, dtypes=("f32", "bf16"), params=None, gradients=True, given=False, tol=None, xs=1):
    """make(rngs, dtypes) makes the layer; call(layer, *xs) its outputs, an array or a tree whose first leaf is y."""
    call = call or (lambda layer, x: layer(x))
    for dtype in dtypes:
        # Drawing takes longest to compile, and is the same in every case of a layer.
        by_number = given or dtype == "bf16"

        def run(offset, dtype=dtype, by_number=by_number):
            kinds = {"dtype": DTYPES[dtype], "param_dtype": DTYPES[params or dtype]}
            layer = make(nnx.Rngs(0), kinds)
            x = [numbers(shape, i + offset, DTYPES[dtype]) for i in range(xs)]
            graphdef, params_, rest = nnx.split(layer, nnx.Param, ...)
            if by_number:
                for i, (_, p) in enumerate(sorted(nnx.to_flat_state(params_), key=lambda item: ".".join(map(str, item[0])))):
                    p[...] = numbers(p.shape, xs + i + offset, p.dtype) / 8

            def outputs(params_, *x):
                return jax.tree.leaves(call(nnx.merge(graphdef, params_, rest, copy=True), *x))

            found = outputs(params_, *x)
            if gradients:

                def objective(params_, *x):
                    return jnp.sum(outputs(params_, *x)[0].astype(jnp.float32) ** 2)

                of_params, *of_x = jax.grad(objective, argnums=tuple(range(1 + xs)))(params_, *x)
                flat = sorted((".".join(map(str, path)), g[...]) for path, g in nnx.to_flat_state(of_params))
                # A bias of the keys moves all scores of a query alike: its gradient is rounding.
                found = found + of_x + [g for path, g in flat if path != "key.bias"]
            return [some(y) for y in found]

        family.case(
            f"{name}_{dtype}",
            run,
            values(0, "i32"),
            op=name,
            params={"dtype": dtype, "params": params or dtype, "gradients": gradients, "given": by_number},
            doc=doc,
            grad=False,
            batch=False,
            # Gradients are much larger than 1, and sums of half precision.
            tol=(tol or {"f32": 5e-5, "bf16": 0.1})[dtype],
        )


case("linear_general", lambda r, k: nnx.LinearGeneral(8, (2, 3), **k, rngs=r), (4, 8))
case("linear_general_axes", lambda r, k: nnx.LinearGeneral((2, 3), 5, axis=(1, -1), **k, rngs=r), (4, 2, 7, 3), given=True)
case("linear_general_batch", lambda r, k: nnx.LinearGeneral(3, 4, batch_axis={0: 2}, **k, rngs=r), (2, 5, 3))
case("einsum", lambda r, k: nnx.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), **k, rngs=r), (3, 5, 2))
case("einsum_ellipsis", lambda r, k: nnx.Einsum("...d,df->...f", (6, 4), (4,), **k, rngs=r), (2, 3, 6), given=True)

case("linear", lambda r, k: nnx.Linear(8, 5, **k, rngs=r), (4, 8))
case("embed", lambda r, k: nnx.Embed(7, 4, **k, rngs=r), (3, 4), call=lambda layer, x: [layer.attend(x), layer(jnp.arange(12) % 7)], doc="attend, then rows")
case("conv", lambda r, k: nnx.Conv(3, 4, (3, 3), strides=2, **k, rngs=r), (2, 5, 6, 3))
NORMS = {
    "layer_norm": lambda r, k: nnx.LayerNorm(6, **k, rngs=r),
    "rms_norm": lambda r, k: nnx.RMSNorm(6, **k, rngs=r),
    "group_norm": lambda r, k: nnx.GroupNorm(6, num_groups=3, **k, rngs=r),
    "instance_norm": lambda r, k: nnx.InstanceNorm(6, **k, rngs=r),
}
for name, make in NORMS.items():
    # The sum of squares of what was normalized has gradients of rounding alone.
    case(name, make, (2, 4, 5, 6), given=True, gradients=name != "instance_norm")
case(
    "batch_norm",
    lambda r, k: nnx.BatchNorm(6, momentum=0.9, **k, rngs=r),
    (7, 4, 6),
    call=lambda layer, x: [layer(x), layer.mean[...], layer.var[...], layer(x, use_running_average=True)],
    doc="training, the statistics after it, evaluation",
    gradients=False,
    given=True,
)

case("conv_circular", lambda r, k: nnx.Conv(3, 4, 4, padding="CIRCULAR", kernel_dilation=2, **k, rngs=r), (2, 9, 3), given=True)
case("conv_reflect", lambda r, k: nnx.Conv(3, 4, (3, 2), padding="REFLECT", **k, rngs=r), (2, 5, 6, 3), given=True)
case("conv_causal", lambda r, k: nnx.Conv(3, 4, 3, strides=2, padding="CAUSAL", **k, rngs=r), (2, 9, 3), given=True)
case(
    "conv_groups",
    lambda r, k: nnx.Conv(4, 6, (3, 3), feature_group_count=2, padding=[(1, 0), (2, 1)], use_bias=False, **k, rngs=r),
    (2, 3, 5, 5, 4),
    given=True,
)
transposed = functools.partial(nnx.ConvTranspose, 3, 4)
case("conv_transpose", lambda r, k: transposed((3, 3), strides=(2, 2), **k, rngs=r), (2, 5, 5, 3))
case("conv_transpose_valid", lambda r, k: transposed((3, 2), strides=(2, 3), padding="VALID", **k, rngs=r), (2, 4, 5, 3), given=True)
case(
    "conv_transpose_explicit",
    lambda r, k: transposed((3,), strides=(2,), padding=[(2, 1)], kernel_dilation=(2,), **k, rngs=r),
    (2, 6, 3),
    given=True,
)
case("conv_transpose_circular", lambda r, k: transposed((5, 4), strides=(2, 1), padding="CIRCULAR", **k, rngs=r), (2, 4, 3, 3), given=True)
case(
    "conv_transpose_circular_turned",
    lambda r, k: transposed((4, 5), strides=(1, 2), padding="CIRCULAR", transpose_kernel=True, **k, rngs=r),
    (2, 4, 3, 3),
    given=True,
)
case("conv_transpose_turned", lambda r, k: transposed((3, 3), strides=(2, 2), transpose_kernel=True, **k, rngs=r), (2, 4, 4, 3), given=True)

case(
    "dropout_broadcast",
    lambda r, k: nnx.Dropout(0.5, broadcast_dims=(0, -1)),
    (4, 6, 5),
    call=lambda layer, x: layer(x, rngs=jax.random.key(3)),
    doc="Dropout(0.5, broadcast_dims=(0, -1)) with key(3)",
)


# Attention.
def attention(r, k, heads=4, features=16, **options):
    return nnx.MultiHeadAttention(heads, features, decode=False, **options, **k, rngs=r)


case("mha", attention, (2, 5, 16))
case(
    "mha_grouped",
    functools.partial(attention, num_kv_heads=2, qkv_features=32, out_features=12, normalize_qk=True, use_bias=False),
    (2, 5, 16),
    call=lambda layer, x: layer(x, is_causal=True),
    doc="causal",
)
case(
    "mha_cross",
    functools.partial(attention, bias_init=nnx.initializers.normal(0.5), out_kernel_init=HALF),
    (2, 5, 16),
    call=lambda layer, q, k, v: layer(q, k, v, mask=jnp.arange(5) < jnp.array([2, 4])[:, None, None, None]),
    doc="each query sees two keys of the first example, four of the second",
    xs=3,
)
case(
    "mha_dropout",
    functools.partial(attention, dropout_rate=0.4, deterministic=False),
    (2, 5, 16),
    doc="dropout_rate 0.4, by the layer's own stream",
)
case(
    "mha_dropout_each",
    functools.partial(attention, dropout_rate=0.4, broadcast_dropout=False, deterministic=False),
    (2, 5, 16),
    doc="dropout_rate 0.4, by the layer's own stream, other places in each example and head",
    given=True,
)


def decoded(layer, x):
    layer.init_cache(x.shape, x.dtype)
    return [layer(x[:, i : i + 1], decode=True) for i in range(x.shape[1])]


case("mha_decode", attention, (2, 3, 16), call=decoded, gradients=False, doc="three positions, one after the other", given=True)


def next_weights():
    """The kernel of a Linear(2, 3) made after a MultiHeadAttention(4, 16, dropout_rate=0.5, normalize_qk=True) with one Rngs(0)."""
    rngs = nnx.Rngs(0)
    nnx.MultiHeadAttention(4, 16, dropout_rate=0.5, normalize_qk=True, rngs=rngs)
    return nnx.Linear(2, 3, rngs=rngs).kernel[...]


family.case("mha_then_linear", next_weights, tol=2e-6)

ATTENTION = {
    "causal": ((2, 5, 4, 8), (2, 5, 4, 8), {"is_causal": True}),
    "scale": ((2, 3, 4, 8), (2, 5, 4, 8), {"scale": 0.7}),
    "grouped": ((2, 3, 6, 8), (2, 5, 2, 8), {}),
    "grouped_causal": ((2, 5, 6, 8), (2, 5, 3, 8), {"is_causal": True}),
    "window": ((2, 7, 2, 8), (2, 7, 2, 8), {"local_window_size": (2, 1)}),
    "unbatched": ((3, 4, 8), (5, 4, 8), {}),
    "lengths": ((2, 4, 2, 8), (2, 5, 2, 8), {"query_seq_lengths": [3, 4], "key_value_seq_lengths": [5, 2]}),
}
for name, (q, kv, options) in ATTENTION.items():
    for dtype in ("f32", "bf16"):
        lengths = {k: jnp.array(v, jnp.int32) if isinstance(v, list) else v for k, v in options.items()}
        family.case(
            f"attention_{name}_{dtype}",
            lambda q, k, v, o=lengths: jax.nn.dot_product_attention(q, k, v, **o, return_residual=True),
            normal(*q, dtype=dtype),
            normal(*kv, dtype=dtype),
            normal(*kv, dtype=dtype),
            op="attention",
            params=options,
            batch=False,
            grad="rev",
            tol={"f32": 5e-5, "bf16": 2e-2}[dtype],
            grad_tol={"f32": 1e-4, "bf16": 4e-2}[dtype],
        )
for dtype in ("f32", "bf16"):
    family.case(
        f"attention_masked_{dtype}",
        lambda q, k, v, bias, mask: jax.nn.dot_product_attention(q, k, v, bias, mask),
        normal(2, 3, 4, 8, dtype=dtype),
        normal(2, 5, 2, 8, dtype=dtype),
        normal(2, 5, 2, 8, dtype=dtype),
        normal(2, 4, 3, 5, dtype=dtype),
        lambda rng: rng.integers(0, 4, (2, 1, 3, 5)) > 0,
        op="attention_masked",
        batch=False,
        grad="rev",
        tol={"f32": 5e-5, "bf16": 2e-2}[dtype],
        grad_tol={"f32": 1e-4, "bf16": 4e-2}[dtype],
    )
family.case(
    "masks",
    lambda q, k: [
        nnx.make_attention_mask(q, k, dtype=bool),
        nnx.make_attention_mask(q, k, jnp.greater_equal, dtype=bool),
        nnx.make_causal_mask(q, dtype=bool),
        nnx.combine_masks(nnx.make_causal_mask(q), None, nnx.make_attention_mask(q, q), dtype=bool),
    ],
    integers(2, 4, lo=0, hi=3),
    integers(2, 5, lo=0, hi=3),
    grad=False,
    batch=False,
    doc="make_attention_mask by multiply and by greater_equal, make_causal_mask, both combined",
)


def turned(x, positions, speeds):
    angles = positions[..., None, None].astype(jnp.float32) * speeds
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def llama3(speeds, factor=8.0, low=1.0, high=4.0, length=64):
    slow, fast = length / low, length / high
    waves = 2 * math.pi / speeds
    smooth = (length / waves - low) / (high - low)
    between = (1 - smooth) * speeds / factor + smooth * speeds
    return np.where(waves > slow, speeds / factor, np.where(waves < fast, speeds, between))


speeds = 10000.0 ** (-np.arange(0, 16, 2) / 16)
for name, own in {"": speeds, "_linear": speeds / 4.0, "_llama3": llama3(speeds)}.items():
    for dtype in ("f32", "bf16"):
        family.case(
            f"rope{name}_{dtype}",
            lambda x, p, own=own: turned(x, p, own.astype(np.float32)),
            normal(2, 6, 3, 16, dtype=dtype),
            integers(2, 6, lo=0, hi=100),
            op=f"rope{name}",
            batch=False,
            doc="by the formulas of RoFormer and of Llama 3.1: base 10000, depth 16",
        )


# Recurrent layers.
def made(cell, r, k, **options):
    # JAX has no orthogonal matrices of half precision.
    half = {} if k["param_dtype"] == jnp.float32 else {"recurrent_kernel_init": HALF}
    return cell(3, 4, **options, **half, **k, rngs=r)


def recurrent(cell, **options):
    return lambda r, k: nnx.RNN(made(cell, r, k, bias_init=nnx.initializers.normal(0.5)), **options)


CELLS = {"lstm": nnx.LSTMCell, "optimized_lstm": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell, "simple": nnx.SimpleCell}
for name, cell in CELLS.items():
    case(
        name,
        recurrent(cell),
        (2, 6, 3),
        call=lambda layer, x: layer(x, return_carry=True)[::-1],
        doc="RNN over (2, 6, 3): outputs, then what is carried",
        )
case("simple_residual", recurrent(functools.partial(nnx.SimpleCell, residual=True)), (2, 6, 3), given=True)
case(
    "rnn_bf16_params",
    recurrent(nnx.GRUCell),
    (2, 6, 3),
    dtypes=("bf16",),
    params="f32",
    doc="a GRU that computes in bfloat16",
    call=lambda layer, x: layer(x, initial_carry=jnp.zeros((2, 4), jnp.bfloat16)),
    given=True,
)
case("rnn_time_major", recurrent(nnx.GRUCell, time_major=True, unroll=2), (6, 2, 3), given=True)
case("rnn_reverse", recurrent(nnx.GRUCell, reverse=True), (2, 6, 3), given=True)
case("rnn_keep_order", recurrent(nnx.GRUCell, reverse=True, keep_order=True), (2, 6, 3), given=True)


def with_lengths(layer, x):
    carry, y = layer(x, seq_lengths=jnp.array([6, 2]), return_carry=True)
    return y, carry


case("rnn_lengths", recurrent(nnx.LSTMCell), (2, 6, 3), call=with_lengths, doc="lengths 6 and 2", given=True)
case(
    "rnn_lengths_reverse",
    recurrent(nnx.LSTMCell, reverse=True, keep_order=True),
    (2, 6, 3),
    call=with_lengths,
    doc="lengths 6 and 2",
    given=True,
)
case(
    "bidirectional",
    lambda r, k: nnx.Bidirectional(nnx.RNN(made(nnx.GRUCell, r, k)), nnx.RNN(made(nnx.GRUCell, r, k))),
    (2, 6, 3),
    call=with_lengths,
    doc="lengths 6 and 2",
    given=True,
)

# Wrappers.
case(
    "lora",
    lambda r, k: nnx.LoRA(6, 2, 4, base_module=nnx.Linear(6, 4, **k, rngs=r), b_initializer=HALF, **k, rngs=r),
    (5, 6),
    doc="the base is made first",
)
case(
    "lora_linear",
    lambda r, k: nnx.LoRALinear(6, 4, lora_rank=2, lora_dtype=k["dtype"], lora_param_dtype=k["param_dtype"], **k, rngs=r),
    (5, 6),
)
case("weight_norm", lambda r, k: nnx.WeightNorm(nnx.Conv(3, 4, (3, 3), **k, rngs=r), dtype=k["dtype"], rngs=r), (2, 5, 5, 3), tol={"f32": 5e-5, "bf16": 0.2})
case(
    "spectral_norm",
    lambda r, k: nnx.SpectralNorm(nnx.Linear(6, 4, **k, rngs=r), n_steps=2, **k, rngs=r),
    (5, 6),
    call=lambda layer, x: layer(x, update_stats=True),
)


def spectral_stats(layer, x):
    layer(x, update_stats=True)
    stats = layer.batch_stats
    return [stats[("kernel", "u")][...], stats[("kernel", "sigma")][...], layer(x, update_stats=False)]


case(
    "spectral_norm_stats",
    lambda r, k: nnx.SpectralNorm(nnx.Conv(3, 4, (3, 3), **k, rngs=r), **k, rngs=r),
    (2, 5, 5, 3),
    call=spectral_stats,
    gradients=False,
    doc="u and sigma after one call, then what a second gives",
    given=True,
)


def stacked(r, k):
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def make(rngs):
        return nnx.Linear(4, 4, **k, rngs=rngs)

    return make(r)


def through(layers, x):
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def step(layer, x):
        return jnp.tanh(layer(x))

    return step(layers, x)


case("stack", stacked, (2, 4), call=through, doc="three Linear(4, 4) made by vmap with split rngs, tanh after each, by scan")
