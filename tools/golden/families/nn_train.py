"""First weights in each dtype, normalization layers, and whole models trained for ten steps: Flax NNX with Optax.

Inputs are made as in `nn_half`, and results are six elements of each array.

A model's results: the loss of each step, its first parameters in the order of their paths, the parameters after ten steps,
and the running statistics after them. It is made with `Rngs(0, dropout=1)`; `ids` are (7919 i + 101 salt) mod 251 mod n.
With `params` its parameters are of that dtype and it computes in `dtype`.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from families.nn_half import numbers, some
from golden import DTYPES, Family, values

family = Family("nn_train")


def ordered(state):
    return [x[...] for _, x in sorted(nnx.to_flat_state(state), key=lambda item: ".".join(map(str, item[0])))]


# JAX has no orthogonal matrices of half precision.
NO_QR = {"recurrent_kernel_init": nnx.initializers.lecun_normal()}


# Every layer that draws, one after the other with one Rngs(0).
def first_weights(dtype):
    def run():
        r, k = nnx.Rngs(0), {"dtype": DTYPES[dtype], "param_dtype": DTYPES[dtype]}
        made = [
            nnx.Linear(3, 4, **k, rngs=r),
            nnx.LinearGeneral(4, (2, 3), **k, rngs=r),
            nnx.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), **k, rngs=r),
            nnx.Conv(2, 3, (3, 3), **k, rngs=r),
            nnx.ConvTranspose(2, 3, (3, 3), **k, rngs=r),
            nnx.Embed(5, 3, **k, rngs=r),
            nnx.MultiHeadAttention(2, 8, decode=False, normalize_qk=True, **k, rngs=r),
            nnx.LSTMCell(3, 4, **NO_QR, **k, rngs=r),
            nnx.OptimizedLSTMCell(3, 4, **NO_QR, **k, rngs=r),
            nnx.GRUCell(3, 4, **NO_QR, **k, rngs=r),
            nnx.SimpleCell(3, 4, **NO_QR, **k, rngs=r),
            nnx.LoRALinear(6, 4, lora_rank=2, lora_dtype=k["dtype"], lora_param_dtype=k["param_dtype"], **k, rngs=r),
            nnx.SpectralNorm(nnx.Linear(6, 4, **k, rngs=r), **k, rngs=r),
            nnx.Linear(4, 2, kernel_init=nnx.initializers.xavier_uniform(), bias_init=nnx.initializers.normal(0.5), **k, rngs=r),
        ]
        return [some(x) for layer in made for x in ordered(nnx.state(layer, nnx.Any(nnx.Param, nnx.BatchStat)))]

    return run


for dtype in ("f32", "bf16", "f16"):
    family.case(f"first_weights_{dtype}", first_weights(dtype), op="first_weights", params={"dtype": dtype}, grad=False, batch=False)


# Whole models.
def ids(shape, salt, n):
    size = 1
    for s in shape:
        size *= s
    return ((jnp.arange(size, dtype=jnp.int32) * 7919 + salt * 101) % 251 % n).reshape(shape)


def trained(make, loss, tx, dtype, params):
    def run(offset):
        model = make(nnx.Rngs(0, dropout=1), {"dtype": DTYPES[dtype], "param_dtype": DTYPES[params]})
        graphdef, first, rest = nnx.split(model, nnx.Param, ...)

        def step(carry, i):
            weights, rest, state = carry

            def objective(weights):
                model = nnx.merge(graphdef, weights, rest, copy=True)
                value = loss(model, i + offset, DTYPES[dtype]).astype(jnp.float32)
                return value, nnx.split(model, nnx.Param, ...)[2]

            (value, rest), grads = jax.value_and_grad(objective, has_aux=True)(weights)
            updates, state = tx.update(grads, state, weights)
            return (optax.apply_updates(weights, updates), rest, state), value

        (last, rest, _), losses = jax.lax.scan(step, (first, rest, tx.init(first)), jnp.arange(10, dtype=jnp.int32))
        stats = nnx.state(nnx.merge(graphdef, last, rest), nnx.BatchStat)
        return [losses, *[some(x) for state in (first, last, stats) for x in ordered(state)]]

    return run


def train(name, make, loss, tx, doc, kinds=(("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16")), tol=None):
    for dtype, params in kinds:
        case = {("f32", "f32"): "f32", ("bf16", "f32"): "bf16_compute", ("bf16", "bf16"): "bf16"}[dtype, params]
        family.case(
            f"{name}_{case}",
            trained(make, loss, tx, dtype, params),
            values(0, "i32"),
            op=name,
            params={"dtype": dtype, "params": params},
            doc=doc,
            grad=False,
            batch=False,
            tol={"f32": 2e-5, "bf16": 2e-2}[dtype] if tol is None else tol[case],
        )


class CharLm(nnx.Module):
    def __init__(self, r, k):
        self.embed = nnx.Embed(11, 8, **k, rngs=r)
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(8, 8, **NO_QR, **k, rngs=r))
        self.dropout = nnx.Dropout(0.2, rngs=r)
        self.head = nnx.Linear(8, 11, **k, rngs=r)

    def __call__(self, x):
        return self.head(self.dropout(self.rnn(self.embed(x))))


def next_token(model, i, dtype):
    tokens = ids((4, 9), i, 11)
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()


train(
    "char_lm",
    CharLm,
    next_token,
    optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 10))),
    "Embed(11, 8), RNN(OptimizedLSTMCell(8, 8)), Dropout(0.2), Linear(8, 11); clip_by_global_norm(0.5), adamw with a schedule",
    kinds=(("f32", "f32"), ("bf16", "bf16")),
)


class Cnn(nnx.Module):
    def __init__(self, r, k):
        self.conv = nnx.Conv(3, 4, (3, 3), use_bias=False, **k, rngs=r)
        self.norm = nnx.BatchNorm(4, momentum=0.9, **k, rngs=r)
        self.second = nnx.Conv(4, 6, (3, 3), strides=2, use_bias=False, **k, rngs=r)
        self.second_norm = nnx.BatchNorm(6, momentum=0.9, **k, rngs=r)
        self.head = nnx.Linear(6, 5, **k, rngs=r)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2))
        return self.head(nnx.relu(self.second_norm(self.second(x))).mean((1, 2)))


def images(model, i, dtype):
    logits = model(numbers((8, 8, 8, 3), i, dtype)).astype(jnp.float32)
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(ids((8,), i, 5), 5), 0.1)).mean()


def kernels(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in jax.tree_util.keystr(path), params)


train(
    "cnn",
    Cnn,
    images,
    optax.chain(
        optax.add_decayed_weights(1e-2, mask=kernels), optax.sgd(optax.cosine_decay_schedule(0.1, 10), momentum=0.9, nesterov=True)
    ),
    "two Conv with BatchNorm and relu, max_pool, Linear; decay of kernels alone, sgd with Nesterov's momentum and a schedule",
    # Gradients of biases are sums in bfloat16 that nearly cancel; momentum is in float32 here, and in bfloat16 in Optax.
    tol={"f32": 2e-5, "bf16_compute": 6e-2, "bf16": 6e-2},
)


class Gpt(nnx.Module):
    def __init__(self, r, k):
        self.tokens = nnx.Embed(11, 8, **k, rngs=r)
        self.positions = nnx.Embed(8, 8, **k, rngs=r)
        self.norm = nnx.LayerNorm(8, **k, rngs=r)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, use_bias=False, **k, rngs=r)
        self.second_norm = nnx.RMSNorm(8, **k, rngs=r)
        self.up = nnx.Linear(8, 16, **k, rngs=r)
        self.down = nnx.Linear(16, 8, **k, rngs=r)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.positions(jnp.arange(8))
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(tokens))
        return self.tokens.attend(x + self.down(nnx.gelu(self.up(self.second_norm(x)))))


train(
    "gpt",
    Gpt,
    next_token,
    # The other numbers would be injected too, and 0.999 in bfloat16 is 1.
    optax.MultiSteps(
        optax.inject_hyperparams(optax.adamw, static_args=("b1", "b2", "eps", "eps_root", "weight_decay"))(3e-3, weight_decay=0.1), 2
    ).gradient_transformation(),
    "Embed, causal MultiHeadAttention, LayerNorm, RMSNorm, gelu, attend; MultiSteps of inject_hyperparams(adamw)(0.003, 0.1), 2",
)
