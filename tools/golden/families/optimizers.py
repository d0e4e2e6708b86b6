"""Optax: ten steps of each optimizer, transformation and wrapper, with float32 and with bfloat16 parameters.

The tree is {b, w}: b[6] and w[8,6], or b[192] and w[256,160] where lengths and means over arrays matter, in which half
precision must not add up. Element i of an array with salt s is ((7919 i + 10007 step + 101 s) mod 251 - 125) / 64, exact
in bfloat16: parameters are at step 100, b with salt 1, w with salt 0; the gradients of the steps 0 to 9 likewise. The only
input is added to the salt, so that the compiler cannot compute all of it.

Results: of b, and of w, six elements (one every size / 6) after each step; then, unless `state` is false, six of each leaf
of the optimizer's state after the last one. A gradient with `nan` is NaN at the steps 3 and 4; one with `batch` has a
leading dimension of so many examples, example e with e added to the step.
"""

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from golden import DTYPES, Family, values

family = Family("optimizers")

SMALL = {"b": (6,), "w": (8, 6)}
LARGE = {"b": (192,), "w": (256, 160)}
SALT = {"b": 1, "w": 0}


def numbers(shape, step, salt, dtype):
    size = 1
    for n in shape:
        size *= n
    i = jnp.arange(size, dtype=jnp.int32)
    return (((i * 7919 + step * 10007 + salt * 101) % 251 - 125) / 64).astype(dtype).reshape(shape)


def some(x):
    n = min(6, x.size)
    return jnp.take(x.ravel(), jnp.arange(n) * (x.size // n))


def ten(make, shapes, dtype, state, nan, batch):
    def run(offset):
        def tree(step):
            return {k: numbers(shape, step, SALT[k] + offset, dtype) for k, shape in shapes.items()}

        def gradients(step):
            if batch:
                return jax.vmap(tree)(step + jnp.arange(batch, dtype=jnp.int32))
            grads = tree(step)
            if nan:
                grads = jax.tree.map(lambda g: jnp.where((step == 3) | (step == 4), jnp.nan, g).astype(g.dtype), grads)
            return grads

        optimizer = make()

        def step(carry, i):
            params, opt_state = carry
            updates, opt_state = optimizer.update(gradients(i), opt_state, params)
            params = optax.apply_updates(params, updates)
            return (params, opt_state), jax.tree.map(some, params)

        params = tree(100)
        carry, path = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(10, dtype=jnp.int32))
        leaves = [some(x) for x in jax.tree.leaves(carry[1])] if state else []
        return [path["b"], path["w"], *leaves]

    return run


def case(name, make, doc, *, large=False, state=True, nan=False, batch=0, dtypes=("f32", "bf16"), tol=None):
    params = {"state": state}
    if large:
        params["large"] = True
    if nan:
        params["nan"] = True
    if batch:
        params["batch"] = batch
    for dtype in dtypes:
        family.case(
            f"{name}_{dtype}",
            ten(make, LARGE if large else SMALL, DTYPES[dtype], state, nan, batch),
            values(0, "i32"),
            op=name,
            params={**params, "dtype": dtype},
            doc=doc,
            grad=False,
            batch=False,
            # States and updates are in float32 here, and in bfloat16 in Optax.
            tol=tol.get(dtype) if tol else {"bf16": 2e-2}.get(dtype),
        )


def chain(*transformations):
    return lambda: optax.chain(*transformations)


case("sgd", lambda: optax.sgd(0.1), "sgd(0.1)")
case("sgd_momentum", lambda: optax.sgd(0.1, momentum=0.9), "sgd(0.1, momentum=0.9)")
case("sgd_nesterov", lambda: optax.sgd(0.1, momentum=0.9, nesterov=True), "sgd(0.1, momentum=0.9, nesterov=True)")
case("adam", lambda: optax.adam(0.1), "adam(0.1)")
case("adam_mu_dtype", lambda: optax.adam(0.1, mu_dtype=jnp.bfloat16), "adam(0.1, mu_dtype=bfloat16)")
case("nadam", lambda: optax.nadam(0.1), "nadam(0.1)")
case("adamw", lambda: optax.adamw(0.1, weight_decay=0.1), "adamw(0.1, weight_decay=0.1)")
case("rmsprop", lambda: optax.rmsprop(0.1), "rmsprop(0.1)")
case("rmsprop_centered", lambda: optax.rmsprop(0.1, centered=True), "rmsprop(0.1, centered=True)", tol={"bf16": 0.1, "f32": 1e-4})
case("rmsprop_momentum", lambda: optax.rmsprop(0.1, momentum=0.5), "rmsprop(0.1, momentum=0.5)")
case("adagrad", lambda: optax.adagrad(0.5), "adagrad(0.5)")
case("adadelta", lambda: optax.adadelta(10.0), "adadelta(10)")
case("adabelief", lambda: optax.adabelief(0.1), "adabelief(0.1)")
case("adamax", lambda: optax.adamax(0.1), "adamax(0.1)")
case("adamaxw", lambda: optax.adamaxw(0.1, weight_decay=0.1), "adamaxw(0.1, weight_decay=0.1)")
case("adan", lambda: optax.adan(0.1, weight_decay=0.1), "adan(0.1, weight_decay=0.1)")
case("amsgrad", lambda: optax.amsgrad(0.1), "amsgrad(0.1)")
case("lion", lambda: optax.lion(0.1), "lion(0.1)")
case("radam", lambda: optax.radam(0.1), "radam(0.1)")
case("yogi", lambda: optax.yogi(0.1), "yogi(0.1)")
case("sign_sgd", lambda: optax.sign_sgd(0.1), "sign_sgd(0.1)")
case("signum", lambda: optax.signum(0.1), "signum(0.1)")
case("sm3", lambda: optax.sm3(0.1), "sm3(0.1)")
case("noisy_sgd", lambda: optax.noisy_sgd(0.1, key=7), "noisy_sgd(0.1, key=7)", state=False)

# Lengths and means over whole arrays.
case("lamb", lambda: optax.lamb(0.1, weight_decay=0.01), "lamb(0.1, weight_decay=0.01)", large=True)
case("lars", lambda: optax.lars(10.0, weight_decay=0.01), "lars(10, weight_decay=0.01)", large=True)
case("fromage", lambda: optax.fromage(0.1), "fromage(0.1)", large=True)
case("novograd", lambda: optax.novograd(10.0), "novograd(10)", large=True, tol={"bf16": 5e-2, "f32": 1e-5})
case("adafactor", lambda: optax.adafactor(0.1), "adafactor(0.1)", large=True)
case("adafactor_small", lambda: optax.adafactor(0.1), "adafactor(0.1)")
case(
    "adafactor_momentum",
    lambda: optax.adafactor(0.1, momentum=0.9, weight_decay_rate=0.01),
    "adafactor(0.1, momentum=0.9, weight_decay_rate=0.01)",
    large=True,
)
case(
    "clip_by_global_norm",
    chain(optax.clip_by_global_norm(50.0), optax.sgd(0.1)),
    "chain(clip_by_global_norm(50), sgd(0.1))",
    large=True,
)
case("clip_by_block_rms", chain(optax.clip_by_block_rms(0.5), optax.sgd(0.1)), "chain(clip_by_block_rms(0.5), sgd(0.1))", large=True)
case(
    "adaptive_grad_clip",
    chain(optax.adaptive_grad_clip(0.5), optax.sgd(0.1)),
    "chain(adaptive_grad_clip(0.5), sgd(0.1))",
    large=True,
)
case(
    "scale_by_param_block_norm",
    chain(optax.scale_by_param_block_norm(), optax.sgd(1e-3)),
    "chain(scale_by_param_block_norm(), sgd(0.001))",
    large=True,
)
case(
    "scale_by_param_block_rms",
    chain(optax.scale_by_param_block_rms(), optax.sgd(0.1)),
    "chain(scale_by_param_block_rms(), sgd(0.1))",
    large=True,
)
case(
    "normalize_by_update_norm",
    chain(optax.normalize_by_update_norm(), optax.sgd(10.0)),
    "chain(normalize_by_update_norm(), sgd(10))",
    large=True,
)
case("clip", chain(optax.clip(0.5), optax.sgd(0.1)), "chain(clip(0.5), sgd(0.1))")
case("add_noise", chain(optax.add_noise(0.1, 0.55, key=3), optax.sgd(0.1)), "chain(add_noise(0.1, 0.55, key=3), sgd(0.1))", state=False)
case("scale_by_trust_ratio", chain(optax.scale_by_trust_ratio(), optax.sgd(0.1)), "chain(scale_by_trust_ratio(), sgd(0.1))", large=True)
case(
    "momentum_in_float32",
    lambda: optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.float32),
    "sgd(0.1, momentum=0.9, accumulator_dtype=float32)",
)
case("centralize", chain(optax.centralize(), optax.sgd(0.1)), "chain(centralize(), sgd(0.1))", large=True)

# Wrappers and small transformations.
case("set_to_zero", lambda: optax.set_to_zero(), "set_to_zero()")
case("keep_params_nonnegative", chain(optax.sgd(0.1), optax.keep_params_nonnegative()), "chain(sgd(0.1), keep_params_nonnegative())")
case("zero_nans", chain(optax.zero_nans(), optax.adam(0.1)), "chain(zero_nans(), adam(0.1))", nan=True)
case("apply_if_finite", lambda: optax.apply_if_finite(optax.adam(0.1), 5), "apply_if_finite(adam(0.1), 5)", nan=True)
case("ema", chain(optax.ema(0.9), optax.sgd(0.1)), "chain(ema(0.9), sgd(0.1))")
case("apply_every", chain(optax.sgd(0.1), optax.apply_every(4)), "chain(sgd(0.1), apply_every(4))")
case(
    "multi_steps",
    lambda: optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 4),
    "MultiSteps(sgd(0.1, momentum=0.9), 4)",
)
case(
    "multi_steps_sum",
    lambda: optax.MultiSteps(optax.sgd(0.1), 3, use_grad_mean=False),
    "MultiSteps(sgd(0.1), 3, use_grad_mean=False)",
)
case(
    "masked",
    lambda: optax.chain(
        optax.masked(optax.add_decayed_weights(0.5), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)), optax.sgd(0.1)
    ),
    "chain(masked(add_decayed_weights(0.5), ndim > 1), sgd(0.1))",
)
case(
    "freeze",
    lambda: optax.chain(optax.sgd(0.1), optax.transforms.freeze({"b": False, "w": True})),
    "chain(sgd(0.1), freeze(w))",
)
case(
    "partition",
    lambda: optax.partition({"fast": optax.adam(0.2), "slow": optax.sgd(0.01)}, {"b": "fast", "w": "slow"}),
    "partition({fast: adam(0.2), slow: sgd(0.01)}, {b: fast, w: slow})",
)
case(
    "selective_transform",
    lambda: optax.transforms.selective_transform(optax.adam(0.1), freeze_mask={"b": True, "w": False}),
    "selective_transform(adam(0.1), freeze b)",
)
case(
    "inject_hyperparams",
    lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
    "inject_hyperparams(sgd)(learning_rate=0.1)",
    state=False,
)
case(
    "inject_hyperparams_schedule",
    lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=optax.linear_schedule(0.2, 0.0, 8)),
    "inject_hyperparams(sgd)(learning_rate=linear_schedule(0.2, 0, 8))",
    state=False,
)
case(
    "adam_schedule",
    lambda: optax.adam(optax.exponential_decay(0.2, 2, 0.5)),
    "adam(exponential_decay(0.2, 2, 0.5))",
)
case(
    "fromage_schedule",
    lambda: optax.fromage(optax.exponential_decay(0.2, 2, 0.5)),
    "fromage(exponential_decay(0.2, 2, 0.5))",
    state=False,
)
case(
    "adamw_schedule",
    lambda: optax.adamw(0.1, weight_decay=optax.linear_schedule(0.5, 0.0, 5)),
    "adamw(0.1, weight_decay=linear_schedule(0.5, 0, 5))",
)
case(
    "dpsgd",
    lambda: contrib.dpsgd(0.1, l2_norm_clip=3.0, noise_multiplier=0.5, seed=7),
    "contrib.dpsgd(0.1, l2_norm_clip=3, noise_multiplier=0.5, seed=7)",
    state=False,
    batch=5,
)
case("schedule_free_sgd", lambda: contrib.schedule_free_sgd(0.1), "contrib.schedule_free_sgd(0.1)", tol={"bf16": 3e-2, "f32": 1e-5})
case(
    "schedule_free_adamw",
    lambda: contrib.schedule_free_adamw(0.1, warmup_steps=3, weight_decay=0.1),
    "contrib.schedule_free_adamw(0.1, warmup_steps=3, weight_decay=0.1)",
    tol={"bf16": 3e-2, "f32": 1e-5},
)
