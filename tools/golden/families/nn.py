"""Activations, losses, layers of Flax NNX and how they draw their weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from golden import Family, integers, normal, uniform, values

family = Family("nn")

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "celu": jax.nn.celu,
    "leaky_relu": jax.nn.leaky_relu,
    "softplus": jax.nn.softplus,
    "soft_sign": jax.nn.soft_sign,
    "sigmoid": jax.nn.sigmoid,
    "log_sigmoid": jax.nn.log_sigmoid,
    "hard_tanh": jax.nn.hard_tanh,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "mish": jax.nn.mish,
}
for op, fn in ACTIVATIONS.items():
    doc = {"gelu_tanh": "gelu(approximate=True), JAX's default", "gelu_erf": "gelu(approximate=False)"}.get(op)
    family.case(f"{op}_f32", fn, normal(2, 3, scale=2.0), op=op, doc=doc, batch=[(1,)], tol=2e-5, grad_tol=2e-5)
    family.case(
        f"{op}_f32_edge", fn, values([-100, -6, -3, -1, -0.0, 0, 1, 3, 6, 100]), op=op, batch=False, tol=2e-5, grad_tol=2e-5
    )
for op in ("relu", "gelu_tanh", "silu", "softplus"):
    family.case(f"{op}_bf16", ACTIVATIONS[op], normal(4, dtype="bf16"), op=op, batch=False, tol=3e-2, grad_tol=6e-2)
family.case("glu_f32", jax.nn.glu, normal(2, 4), op="glu", batch=False)

family.case(
    "one_hot",
    lambda i: jax.nn.one_hot(i, 4),
    values([0, 3, 1, 4, -1], "i32"),
    op="one_hot",
    params={"num_classes": 4, "dtype": "f32"},
    doc="beyond the classes: zeros",
)
family.case(
    "one_hot_axis_0",
    lambda i: jax.nn.one_hot(i, 3, axis=0),
    integers(2, 2, lo=0, hi=3),
    op="one_hot",
    params={"num_classes": 3, "axis": 0, "dtype": "f32"},
    batch=False,
)
family.case(
    "one_hot_bf16",
    lambda i: jax.nn.one_hot(i, 3, dtype=jnp.bfloat16),
    integers(3, lo=0, hi=3),
    op="one_hot",
    params={"num_classes": 3, "dtype": "bf16"},
    batch=False,
)

# Losses.
logits = normal(3, 5, scale=2.0)
labels = integers(3, lo=0, hi=5)
family.case(
    "softmax_cross_entropy",
    optax.softmax_cross_entropy,
    logits,
    lambda rng: np.eye(5, dtype=np.float32)[rng.integers(0, 5, 3)],
    batch=[(0, 0)],
)
family.case(
    "softmax_cross_entropy_soft_labels",
    optax.softmax_cross_entropy,
    logits,
    lambda rng: rng.dirichlet(np.ones(5), 3).astype(np.float32),
    op="softmax_cross_entropy",
    batch=False,
)
family.case(
    "softmax_cross_entropy_with_integer_labels",
    optax.softmax_cross_entropy_with_integer_labels,
    logits,
    labels,
    batch=[(0, 0), (None, 0)],
)
family.case(
    "softmax_cross_entropy_with_integer_labels_large",
    optax.softmax_cross_entropy_with_integer_labels,
    values([[1000, -1000, 0], [-1e30, 0, 1]]),
    values([1, 0], "i32"),
    op="softmax_cross_entropy_with_integer_labels",
    batch=False,
)
family.case(
    "softmax_cross_entropy_with_integer_labels_bf16",
    optax.softmax_cross_entropy_with_integer_labels,
    normal(3, 5, dtype="bf16"),
    labels,
    op="softmax_cross_entropy_with_integer_labels",
    batch=False,
    tol=3e-2,
    grad_tol=6e-2,
)
family.case(
    "sigmoid_binary_cross_entropy",
    optax.sigmoid_binary_cross_entropy,
    normal(4, scale=3.0),
    values([0.0, 1.0, 0.3, 1.0]),
    batch=False,
)
family.case("l2_loss", optax.l2_loss, normal(4), normal(4), doc="0.5 (x - y)^2", batch=False)
family.case("squared_error", optax.squared_error, normal(4), normal(4), batch=False)
family.case("huber_loss", optax.huber_loss, normal(6, scale=2.0), normal(6), batch=False)
family.case("log_cosh", optax.log_cosh, normal(4), normal(4), batch=False)
family.case("smooth_labels", lambda x: optax.smooth_labels(x, 0.1), values(np.eye(3)), params={"alpha": 0.1}, batch=False)
family.case("cosine_similarity", optax.cosine_similarity, normal(2, 4), normal(2, 4), batch=False)
family.case(
    "kl_divergence",
    optax.kl_divergence,
    lambda rng: np.log(rng.dirichlet(np.ones(4), 2)).astype(np.float32),
    lambda rng: rng.dirichlet(np.ones(4), 2).astype(np.float32),
    doc="optax.kl_divergence(log_predictions, targets)",
    batch=False,
)
family.case(
    "accuracy",
    lambda z, y: jnp.mean(jnp.argmax(z, -1) == y),
    normal(8, 3),
    integers(8, lo=0, hi=3),
    doc="mean(argmax(logits, -1) == label)",
    batch=False,
    grad=False,
)
family.case(
    "masked_mean_loss",
    lambda z, y, m: (optax.softmax_cross_entropy_with_integer_labels(z, y) * m).sum() / m.sum(),
    logits,
    labels,
    values([1.0, 0.0, 1.0]),
    doc="sum(softmax_cross_entropy_with_integer_labels * mask) / sum(mask)",
    batch=False,
)


# Layers, their parameters being inputs.
def layer_norm(x, scale, bias):
    """(x - mean) / sqrt(var + 1e-6) * scale + bias over the last axis; var = max(mean(x^2) - mean^2, 0) (Flax's fast variance)."""
    layer = nnx.LayerNorm(4, rngs=nnx.Rngs(0))
    layer.scale.value, layer.bias.value = scale, bias
    return layer(x)


def rms_norm(x, scale):
    """x / sqrt(mean(x^2) + 1e-6) * scale over the last axis."""
    layer = nnx.RMSNorm(4, rngs=nnx.Rngs(0))
    layer.scale.value = scale
    return layer(x)


def group_norm(x, scale, bias):
    """GroupNorm, 2 groups of 2 features, epsilon 1e-6."""
    layer = nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0))
    layer.scale.value, layer.bias.value = scale, bias
    return layer(x)


def batch_norm_train(x, scale, bias, mean, var):
    """BatchNorm(momentum 0.9, epsilon 1e-5) in training over all axes but the last: y, new running mean, new running variance (biased)."""
    layer = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    layer.scale.value, layer.bias.value, layer.mean.value, layer.var.value = scale, bias, mean, var
    y = layer(x, use_running_average=False)
    return y, layer.mean.value, layer.var.value


def batch_norm_eval(x, scale, bias, mean, var):
    """BatchNorm(momentum 0.9, epsilon 1e-5) with its running statistics."""
    layer = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    layer.scale.value, layer.bias.value, layer.mean.value, layer.var.value = scale, bias, mean, var
    return layer(x, use_running_average=True)


positive = uniform(3, lo=0.5, hi=2.0)
family.case("layer_norm", layer_norm, normal(2, 3, 4), normal(4), normal(4), batch=False, tol=5e-5, grad_tol=1e-4)
family.case("rms_norm", rms_norm, normal(2, 3, 4), normal(4), batch=False, tol=5e-5, grad_tol=1e-4)
family.case("group_norm", group_norm, normal(2, 3, 4), normal(4), normal(4), batch=False, tol=5e-5, grad_tol=1e-4)
family.case(
    "batch_norm_train",
    batch_norm_train,
    normal(4, 2, 3),
    normal(3),
    normal(3),
    normal(3),
    positive,
    batch=False,
    tol=5e-5,
    grad_tol=1e-4,
)
family.case(
    "batch_norm_eval",
    batch_norm_eval,
    normal(4, 2, 3),
    normal(3),
    normal(3),
    normal(3),
    positive,
    batch=False,
    tol=5e-5,
    grad_tol=1e-4,
)
family.case(
    "dot_product_attention",
    nnx.dot_product_attention,
    normal(2, 3, 2, 4),
    normal(2, 5, 2, 4),
    normal(2, 5, 2, 4),
    doc="softmax(q k / sqrt(depth)) v; [batch, length, heads, depth]",
    batch=False,
    tol=5e-5,
    grad_tol=1e-4,
)


# Weights of fresh layers, made with Rngs(0): ported programs start from the same ones.
def fresh(name, fn, doc, tol=2e-6):
    family.case(name, fn, doc=doc, op=name, tol=tol)


fresh(
    "nnx_rngs",
    lambda: [
        jax.random.key_data(k)
        for rngs in (nnx.Rngs(0), nnx.Rngs(42))
        for k in (rngs.params(), rngs.params(), rngs.dropout(), rngs.params())
    ],
    "key data of Rngs(s).params(), .params(), .dropout(), .params() in that order, for s = 0 and s = 42",
    0,
)
fresh(
    "nnx_rngs_named",
    lambda: (lambda rngs: [jax.random.key_data(k) for k in (rngs.params(), rngs.dropout(), rngs.dropout(), rngs.other())])(
        nnx.Rngs(1, params=2, dropout=3)
    ),
    "key data of params(), dropout(), dropout(), other() of Rngs(1, params=2, dropout=3)",
    0,
)


def linear_init():
    layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    return layer.kernel.value, layer.bias.value


def conv_init():
    layer = nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0))
    return layer.kernel.value, layer.bias.value


def two_layers_init():
    rngs = nnx.Rngs(7)
    return nnx.Linear(2, 3, rngs=rngs).kernel.value, nnx.Linear(3, 2, rngs=rngs).kernel.value


def cnn_init():
    rngs = nnx.Rngs(0)
    conv1, conv2, dense = nnx.Conv(3, 32, (3, 3), rngs=rngs), nnx.Conv(32, 64, (3, 3), rngs=rngs), nnx.Linear(4096, 10, rngs=rngs)
    kernels = [layer.kernel.value for layer in (conv1, conv2, dense)]
    return [k.reshape(-1)[:8] for k in kernels] + [jnp.stack([k.sum(), (k**2).sum()]) for k in kernels]


fresh("nnx_linear_init", linear_init, "kernel and bias of Linear(3, 4, rngs=Rngs(0))")
fresh("nnx_conv_init", conv_init, "kernel and bias of Conv(2, 3, (3, 3), rngs=Rngs(0))")
fresh("nnx_two_layers_init", two_layers_init, "kernels of Linear(2, 3) and Linear(3, 2) made in turn with one Rngs(7)")
fresh("nnx_embed_init", lambda: nnx.Embed(5, 3, rngs=nnx.Rngs(0)).embedding.value, "embedding of Embed(5, 3, rngs=Rngs(0))")
fresh(
    "nnx_cnn_init",
    cnn_init,
    "Conv(3, 32), Conv(32, 64), Linear(4096, 10) made in turn with one Rngs(0): the first 8 elements of each kernel; then (sum, sum of squares) of each",
    1e-4,
)
family.case(
    "nnx_dropout",
    lambda x: nnx.Dropout(0.4, rngs=nnx.Rngs(dropout=3))(x),
    normal(12),
    op="dropout",
    params={"rate": 0.4},
    doc="Dropout(0.4, rngs=Rngs(dropout=3))(x), not deterministic",
    batch=False,
)
family.case(
    "one_hot_f32",
    lambda x: jax.nn.one_hot(x, 3, dtype=jnp.bfloat16, axis=0),
    integers(2, 4, lo=-1, hi=4),
    op="one_hot",
    params={"axis": 0, "dtype": "bf16", "k": 3},
    batch=[(1,)],
    tol=0,
    grad_tol=3e-4,
)
