"""Half precision: every layer and loss in bfloat16 and float16, at sizes at which sums in 16 bits fail.

The inputs are made from a scalar offset, so that the files stay small. Element i of an array with salt s is
((7919 i + 101 (s + offset)) mod 251 - 125) / 64 + shift: exact in both dtypes for a shift of 0 to 2. Results are six
elements of each array (one every size / 6); gradients are those of sum(y²) in float32.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from golden import DTYPES, Family, values

family = Family("nn_half")


def numbers(shape, salt, dtype, shift=0):
    size = 1
    for n in shape:
        size *= n
    i = jnp.arange(size, dtype=jnp.int32)
    return (((i * 7919 + salt * 101) % 251 - 125) / 64 + shift).astype(dtype).reshape(shape)


def some(x):
    n = min(6, x.size)
    return jnp.take(x.ravel(), jnp.arange(n) * (x.size // n))


def objective(fn):
    """The value, and the gradients with respect to all arguments."""

    def run(*args):
        y = fn(*args)
        grads = jax.grad(lambda *args: jnp.sum(fn(*args).astype(jnp.float32) ** 2), argnums=tuple(range(len(args))))(*args)
        return [some(y), *[some(g) for g in grads]]

    return run


def case(name, fn, shapes, doc, shifts=(), gradients=True, dtypes=("bf16", "f16"), tol=None):
    """shapes: of the arguments, with salts 0, 1, …; each of the half dtype."""
    for dtype in dtypes:

        def run(offset, dtype=dtype):
            args = [
                numbers(shape, i + offset, DTYPES[dtype], shifts[i] if i < len(shifts) else 0) for i, shape in enumerate(shapes)
            ]
            return objective(fn)(*args) if gradients else [some(y) for y in jax.tree.leaves(fn(*args))]

        family.case(
            f"{name}_{dtype}",
            run,
            values(0, "i32"),
            op=name,
            params={"dtype": dtype},
            doc=doc,
            grad=False,
            batch=False,
            tol=(tol or {"bf16": 2e-2, "f16": 4e-3})[dtype],
        )


def conv(x, kernel, bias):
    layer = nnx.Conv(256, 4, (3, 3), rngs=nnx.Rngs(0), dtype=x.dtype, param_dtype=x.dtype)
    layer.kernel[...], layer.bias[...] = kernel, bias
    return layer(x / 64)


def norm(make, names):
    def run(x, *params):
        layer = make(x.dtype)
        for name, value in zip(names, params):
            getattr(layer, name)[...] = value
        return layer(x)

    return run


WIDE = 8192
case(
    "linear",
    lambda x, k, b: jnp.dot(x / 64, k) + b,
    [(4, 4096), (4096, 8), (8,)],
    "x / 64 by Linear(4096, 8), all of the half dtype",
    # The gradient of the bias is a sum of four, each rounded to a sixteenth.
    tol={"bf16": 5e-2, "f16": 6e-3},
)
case("conv", conv, [(2, 6, 6, 256), (3, 3, 256, 4), (4,)], "x / 64 by Conv(256, 4, (3, 3)), all of the half dtype")
case(
    "layer_norm",
    norm(lambda d: nnx.LayerNorm(WIDE, rngs=nnx.Rngs(0), param_dtype=d), ("scale", "bias")),
    [(2, WIDE), (WIDE,), (WIDE,)],
    "LayerNorm(8192), x with shift 2",
    (2,),
)
case(
    "rms_norm",
    norm(lambda d: nnx.RMSNorm(WIDE, rngs=nnx.Rngs(0), param_dtype=d), ("scale",)),
    [(2, WIDE), (WIDE,)],
    "RMSNorm(8192), x with shift 2",
    (2,),
)
case(
    "group_norm",
    norm(lambda d: nnx.GroupNorm(64, num_groups=4, rngs=nnx.Rngs(0), param_dtype=d), ("scale", "bias")),
    [(2, 16, 16, 64), (64,), (64,)],
    "GroupNorm(64, 4), x with shift 2",
    (2,),
)


def batch_norm(x, scale, bias):
    layer = nnx.BatchNorm(4, momentum=0.9, rngs=nnx.Rngs(0), param_dtype=x.dtype)
    layer.scale[...], layer.bias[...] = scale, bias
    y = layer(x, use_running_average=False)
    return y, layer.mean[...], layer.var[...], layer(x, use_running_average=True)


case(
    "batch_norm",
    batch_norm,
    [(WIDE, 4), (4,), (4,)],
    "BatchNorm(4, momentum=0.9), x with shift 2: training, new mean, new variance, evaluation",
    (2,),
    gradients=False,
)
case(
    "embed",
    lambda table: table[jnp.arange(4096) % 7],
    [(7, 4)],
    "4096 rows of Embed(7, 4), whose gradient adds up 585 or 586 of each",
)
case("attend", lambda x, table: jnp.dot(x / 64, table.T), [(3, 4096), (5, 4096)], "x / 64 by Embed(5, 4096).attend")
case(
    "dot_product_attention",
    nnx.dot_product_attention,
    [(1, 4, 2, 64), (1, 2048, 2, 64), (1, 2048, 2, 64)],
    "2048 keys; JAX has none in float16 on CPUs",
    dtypes=("bf16",),
)
case("dropout", lambda x: nnx.Dropout(0.3)(x, rngs=jax.random.key(3)), [(4096,)], "Dropout(0.3) with key(3)")

case("softmax_cross_entropy", lambda x: optax.softmax_cross_entropy(x, jax.nn.one_hot(jnp.arange(2), WIDE, dtype=x.dtype)), [(2, WIDE)], "labels 0 and 1 of 8192, one-hot")
case(
    "softmax_cross_entropy_with_integer_labels",
    lambda x: optax.softmax_cross_entropy_with_integer_labels(x, jnp.arange(2)),
    [(2, WIDE)],
    "labels 0 and 1 of 8192",
)
case(
    "safe_softmax_cross_entropy",
    lambda x: optax.losses.safe_softmax_cross_entropy(x, jax.nn.one_hot(jnp.arange(2), WIDE, dtype=x.dtype)),
    [(2, WIDE)],
    "labels 0 and 1 of 8192, one-hot",
)
case("sigmoid_binary_cross_entropy", lambda x, y: optax.sigmoid_binary_cross_entropy(x, y).mean(), [(WIDE,), (WIDE,)], "mean of 8192")
case("squared_error", lambda x, y: optax.squared_error(x, y).mean(), [(WIDE,), (WIDE,)], "mean of 8192")
case("l2_loss", lambda x, y: optax.l2_loss(x, y).mean(), [(WIDE,), (WIDE,)], "mean of 8192")
case("huber_loss", lambda x, y: optax.huber_loss(x, y, delta=1.0).mean(), [(WIDE,), (WIDE,)], "mean of 8192, delta 1")
case("log_cosh", lambda x, y: optax.log_cosh(x, y).mean(), [(WIDE,), (WIDE,)], "mean of 8192")
case("cosine_similarity", optax.cosine_similarity, [(2, WIDE), (2, WIDE)], "of 8192 elements, the targets with shift 1", (0, 1))
case("smooth_labels", lambda x: optax.smooth_labels(x, 0.1).sum(-1), [(2, WIDE)], "alpha 0.1, summed over 8192 classes, shift 1", (1,))
case("kl_divergence", lambda x, y: optax.kl_divergence(x, y / 4096), [(2, WIDE), (2, WIDE)], "targets of shift 2, / 4096", (0, 2))
case(
    "generalized_kl_divergence",
    lambda x, y: optax.losses.generalized_kl_divergence(x, y / 4096),
    [(2, WIDE), (2, WIDE)],
    "targets of shift 2, / 4096",
    (0, 2),
)
case("hinge_loss", lambda x, y: optax.losses.hinge_loss(x, y).mean(), [(WIDE,), (WIDE,)], "mean of 8192")
case("global_norm", lambda x: optax.global_norm([x, x[:1]]), [(256, 1024)], "of [256, 1024] and its first row")
case("perceptron_loss", lambda x, y: optax.losses.perceptron_loss(x, y).mean(), [(WIDE,), (WIDE,)], "mean of 8192")
case(
    "poly_loss_cross_entropy",
    lambda x: optax.losses.poly_loss_cross_entropy(x, jax.nn.one_hot(jnp.arange(2), WIDE, dtype=x.dtype), epsilon=2.0),
    [(2, WIDE)],
    "labels 0 and 1 of 8192, one-hot, epsilon 2",
)
case(
    "sigmoid_focal_loss",
    lambda x: optax.losses.sigmoid_focal_loss(x, (jnp.arange(WIDE) % 2).astype(x.dtype), alpha=0.25).mean(),
    [(WIDE,)],
    "mean of 8192, labels 0 and 1 in turn, alpha 0.25",
)
case(
    "kl_divergence_with_log_targets",
    lambda x, y: optax.losses.kl_divergence_with_log_targets(x, y - 8),
    [(2, WIDE), (2, WIDE)],
    "targets less 8",
)
case("cosine_distance", optax.losses.cosine_distance, [(2, WIDE), (2, WIDE)], "of 8192 elements, the targets with shift 1", (0, 1))
case("ntxent", lambda x: optax.losses.ntxent(x, jnp.arange(6) % 3, 0.5), [(6, WIDE)], "six vectors of three classes, temperature 0.5")
case(
    "ctc_loss",
    lambda x: optax.ctc_loss(x, jnp.zeros((2, 64), x.dtype), jnp.arange(16).reshape(2, 8) % 5 + 1, jnp.zeros((2, 8), x.dtype)),
    [(2, 64, 6)],
    "64 steps of six classes, eight labels",
    # Sums of logarithms around 100, each rounded, along 64 steps.
    tol={"bf16": 0.1, "f16": 2e-2},
)
