"""Optax's losses beyond those of `nn`, schedules beyond those of `optim`, streams of keys of Flax NNX, and products in float8."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from golden import Family, integers, normal, values

family = Family("losses")

logits, soft = normal(3, 5, scale=2.0), lambda rng: rng.dirichlet(np.ones(5), 3).astype(np.float32)


def loss(name, fn, *inputs, op=None, params=None, wrt=None, **options):
    family.case(name, fn, *inputs, op=op or name, params=params, wrt=wrt, batch=False, **options)


loss("safe_softmax_cross_entropy", optax.losses.safe_softmax_cross_entropy, logits, soft)
loss(
    "safe_softmax_cross_entropy_infinite",
    optax.losses.safe_softmax_cross_entropy,
    values([[0.5, -np.inf, 1.0], [-np.inf, 2.0, -np.inf]]),
    values([[0.25, 0.0, 0.75], [0.0, 1.0, 0.0]]),
    op="safe_softmax_cross_entropy",
    wrt=[0],
)
loss("poly_loss_cross_entropy", lambda x, y: optax.losses.poly_loss_cross_entropy(x, y, epsilon=2.0), logits, soft)
loss("sigmoid_focal_loss", optax.losses.sigmoid_focal_loss, normal(6, scale=3.0), values([0.0, 1.0, 0.3, 1.0, 0.0, 0.9]), wrt=[0])
loss(
    "sigmoid_focal_loss_alpha",
    lambda x, y: optax.losses.sigmoid_focal_loss(x, y, alpha=0.25, gamma=1.5),
    normal(6, scale=3.0),
    values([0.0, 1.0, 0.3, 1.0, 0.0, 0.9]),
    op="sigmoid_focal_loss",
    params={"alpha": 0.25, "gamma": 1.5},
    wrt=[0],
)
loss("hinge_loss", optax.losses.hinge_loss, normal(5), values([1.0, -1.0, 1.0, -1.0, 1.0]))
loss("perceptron_loss", optax.losses.perceptron_loss, normal(5), values([1.0, -1.0, 1.0, -1.0, 1.0]))
log_probabilities = lambda rng: np.log(rng.dirichlet(np.ones(4), 2)).astype(np.float32)  # noqa: E731
loss("kl_divergence_with_log_targets", optax.losses.kl_divergence_with_log_targets, log_probabilities, log_probabilities)
loss(
    "generalized_kl_divergence",
    optax.losses.generalized_kl_divergence,
    log_probabilities,
    lambda rng: rng.dirichlet(np.ones(4), 2).astype(np.float32) * 1.5,
)
loss(
    "kl_divergence_zero_and_negative",
    optax.kl_divergence,
    log_probabilities,
    values([[0.0, 0.5, 0.5, 0.0], [1.0, -0.25, 0.0, 0.25]]),
    op="kl_divergence",
    wrt=[0],
)
loss("cosine_distance", optax.losses.cosine_distance, normal(2, 4), normal(2, 4))
loss(
    "cosine_similarity_zero",
    optax.cosine_similarity,
    values([[0.0, 0.0], [3.0, 4.0]]),
    values([[1.0, 2.0], [0.0, 0.0]]),
    op="cosine_similarity",
    params={"epsilon": 0.0},
    grad=False,
)
loss(
    "cosine_similarity_epsilon",
    lambda x, y: optax.cosine_similarity(x, y, epsilon=0.5),
    values([[0.0, 0.0], [3.0, 4.0], [0.1, 0.2]]),
    values([[1.0, 2.0], [0.5, 0.25], [0.3, 0.1]]),
    op="cosine_similarity",
    params={"epsilon": 0.5},
)
loss("ntxent", lambda x, y: optax.losses.ntxent(x, y, 0.5), normal(6, 4), values([0, 1, 0, 2, 1, 0], "i32"), params={"temperature": 0.5})
loss(
    "softmax_cross_entropy_with_integer_labels_u8",
    optax.softmax_cross_entropy_with_integer_labels,
    normal(4, 300),
    values([0, 255, 7, 130], "u8"),
    op="softmax_cross_entropy_with_integer_labels",
)
loss(
    "ctc_loss",
    optax.ctc_loss_with_forward_probs,
    normal(2, 7, 5),
    values([[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1]]),
    values([[1, 2, 2], [3, 1, 0]], "i32"),
    values([[0, 0, 0], [0, 0, 1]]),
    wrt=[0],
    tol=1e-5,
    grad_tol=1e-4,
)

SCHEDULES = {
    "warmup_constant": (optax.warmup_constant_schedule, {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 4}),
    "piecewise_interpolate_linear": (
        optax.piecewise_interpolate_schedule,
        {"interpolate_type": "linear", "init_value": 0.1, "boundaries_and_scales": {3: 2.0, 8: 0.1}},
    ),
    "piecewise_interpolate_cosine": (
        optax.piecewise_interpolate_schedule,
        {"interpolate_type": "cosine", "init_value": 0.1, "boundaries_and_scales": {3: 2.0, 8: 0.1}},
    ),
    "linear_onecycle": (optax.linear_onecycle_schedule, {"transition_steps": 10, "peak_value": 0.1}),
    "cosine_onecycle": (optax.cosine_onecycle_schedule, {"transition_steps": 10, "peak_value": 0.1}),
    "exponential_decay_constant": (
        optax.exponential_decay,
        {"init_value": 0.1, "transition_steps": 0, "decay_rate": 0.5},
    ),
    "sgdr": (
        lambda: optax.sgdr_schedule(
            [
                {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 2, "decay_steps": 5, "end_value": 0.01},
                {"init_value": 0.01, "peak_value": 0.05, "warmup_steps": 1, "decay_steps": 9, "end_value": 0.0},
            ]
        ),
        {},
    ),
}
for name, (make, params) in SCHEDULES.items():
    family.case(
        f"schedule_{name}",
        lambda make=make, params=params: jnp.stack([jnp.asarray(make(**params)(step), jnp.float32) for step in range(13)]),
        op=name,
        params=params,
        doc="the values at steps 0 to 12",
    )


def streams():
    """A model of all layers, made in turn with one Rngs(0, dropout=5): the first elements of each kernel, then a dropped out vector."""
    rngs = nnx.Rngs(0, dropout=5)
    kernels = [nnx.Linear(3, 4, rngs=rngs).kernel]
    nnx.LayerNorm(4, rngs=rngs)
    kernels.append(nnx.Linear(4, 4, rngs=rngs).kernel)
    nnx.RMSNorm(4, rngs=rngs)
    kernels.append(nnx.Conv(2, 3, (3, 3), rngs=rngs).kernel)
    nnx.GroupNorm(4, num_groups=2, rngs=rngs)
    kernels.append(nnx.Embed(5, 3, rngs=rngs).embedding)
    nnx.BatchNorm(4, rngs=rngs)
    dropout = nnx.Dropout(0.4, rngs=rngs)
    kernels.append(nnx.Linear(4, 2, rngs=rngs).kernel)
    second = nnx.Dropout(0.4, rngs=rngs)
    x = jnp.ones(12)
    return [k[...].ravel()[:6] for k in kernels] + [dropout(x), dropout(x), second(x)]


def streams_default():
    """A model with one stream: a Dropout between two Linears, made with Rngs(3), moves the weights of the second."""
    rngs = nnx.Rngs(3)
    first = nnx.Linear(3, 4, rngs=rngs)
    dropout = nnx.Dropout(0.5, rngs=rngs)
    second = nnx.Linear(4, 3, rngs=rngs)
    nnx.Dropout(0.5)
    third = nnx.Linear(3, 2, rngs=rngs)
    return [layer.kernel[...] for layer in (first, second, third)] + [dropout(jnp.ones(8))]


family.case("nnx_streams", streams, tol=2e-6)
family.case("nnx_streams_default", streams_default, tol=2e-6)


class Op(linen.Module):
    @linen.compact
    def __call__(self, x, kernel):
        return linen.fp8_ops.Fp8DirectDotGeneralOp(amax_history_length=4)(x, kernel, (((1,), (0,)), ((), ())))


def fp8_dot(x, kernel, *metas):
    """Fp8DotGeneral with these histories and scales, in the order of its fields."""
    names = ["input_amax_history", "kernel_amax_history", "output_grad_amax_history", "input_scale", "kernel_scale", "output_grad_scale"]
    tree = {"_overwrite_with_gradient": {"Fp8DirectDotGeneralOp_0": dict(zip(names, metas))}}
    return Op().apply(tree, x, kernel)


for dtype in ["f32", "bf16"]:
    family.case(
        f"fp8_dot_{dtype}",
        fp8_dot,
        normal(6, 16, dtype=dtype, scale=3.0),
        normal(16, 8, dtype=dtype),
        values([2.0, 7.5, 3.0, 1.0]),
        values([0.0, 0.0, 0.0, 0.0]),
        values([0.5, 0.25, 0.0, 0.0]),
        values([0.02]),
        values([0.5]),
        values([1.0]),
        op="fp8_dot",
        grad="rev",
        batch=False,
        tol=1e-5 if dtype == "f32" else 2e-2,
        grad_tol=1e-4 if dtype == "f32" else 3e-2,
    )
