"""Optax: three updates of a small tree, and learning-rate schedules.

Inputs: w[3,2], b[2], the gradients gw[3,3,2], gb[3,2] (axis 0: the update). Results: w and b after each update, then the
leaves of the optimizer's state after the last one, as jax.tree.leaves orders them: a dict goes by key, so b before w.
"""

import jax
import jax.numpy as jnp
import optax

from golden import Family, normal

family = Family("optim")


def sequence(make):
    def run(w, b, gw, gb):
        optimizer = make()
        params = {"w": w, "b": b}
        state = optimizer.init(params)
        ws, bs = [], []
        for step in range(3):
            updates, state = optimizer.update({"w": gw[step], "b": gb[step]}, state, params)
            params = optax.apply_updates(params, updates)
            ws.append(params["w"])
            bs.append(params["b"])
        return jnp.stack(ws), jnp.stack(bs), *jax.tree.leaves(state)

    return run


OPTIMIZERS = {
    "sgd": (optax.sgd, {"learning_rate": 0.1}),
    "sgd_momentum": (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9}),
    "sgd_nesterov": (optax.sgd, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optax.adam, {"learning_rate": 1e-3}),
    "adam_options": (optax.adam, {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 1e-6, "eps_root": 1e-8}),
    "adam_nesterov": (optax.adam, {"learning_rate": 0.05, "nesterov": True}),
    "adamw": (optax.adamw, {"learning_rate": 0.01, "weight_decay": 0.1}),
    "rmsprop": (optax.rmsprop, {"learning_rate": 0.01}),
    "adagrad": (optax.adagrad, {"learning_rate": 0.1}),
    "lion": (optax.lion, {"learning_rate": 0.01}),
    "lamb": (optax.lamb, {"learning_rate": 0.01}),
}
TREE = (normal(3, 2), normal(2), normal(3, 3, 2), normal(3, 2))


def case(name, make, params, doc=None):
    family.case(name, sequence(make), *TREE, op=name, params=params, doc=doc, grad=False, batch=False)


for name, (make, params) in OPTIMIZERS.items():
    case(name, lambda make=make, params=params: make(**params), params)
case(
    "clip_by_global_norm",
    lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    {"max_norm": 1.0, "learning_rate": 0.1},
    "chain(clip_by_global_norm(1), sgd(0.1))",
)
case(
    "clip",
    lambda: optax.chain(optax.clip(0.5), optax.sgd(0.1)),
    {"max_delta": 0.5, "learning_rate": 0.1},
    "chain(clip(0.5), sgd(0.1))",
)
case(
    "add_decayed_weights",
    lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
    {"weight_decay": 0.1, "learning_rate": 0.1},
    "chain(add_decayed_weights(0.1), sgd(0.1))",
)
case(
    "sgd_schedule",
    lambda: optax.sgd(optax.exponential_decay(0.1, 1, 0.5)),
    {},
    "sgd whose learning rate is exponential_decay(0.1, 1, 0.5): 0.1, 0.05, 0.025",
)
case(
    "multi_steps",
    lambda: optax.MultiSteps(optax.sgd(0.1), 2),
    {"every_k_schedule": 2, "learning_rate": 0.1},
    "MultiSteps(sgd(0.1), 2): updates on the second call, with the mean gradient",
)
family.case("global_norm", lambda w, b: optax.global_norm({"w": w, "b": b}), normal(3, 2), normal(2), batch=False)

SCHEDULES = {
    "constant": (optax.constant_schedule, {"value": 0.1}),
    "exponential_decay": (optax.exponential_decay, {"init_value": 0.1, "transition_steps": 3, "decay_rate": 0.5}),
    "exponential_decay_staircase": (
        optax.exponential_decay,
        {
            "init_value": 0.1,
            "transition_steps": 3,
            "decay_rate": 0.5,
            "staircase": True,
            "transition_begin": 2,
            "end_value": 0.03,
        },
    ),
    "cosine_decay": (optax.cosine_decay_schedule, {"init_value": 0.1, "decay_steps": 8, "alpha": 0.1}),
    "linear": (optax.linear_schedule, {"init_value": 0.1, "end_value": 0.01, "transition_steps": 5, "transition_begin": 2}),
    "polynomial": (optax.polynomial_schedule, {"init_value": 0.1, "end_value": 0.01, "power": 2, "transition_steps": 6}),
    "piecewise_constant": (optax.piecewise_constant_schedule, {"init_value": 0.1, "boundaries_and_scales": {3: 0.5, 6: 0.1}}),
    "warmup_cosine_decay": (
        optax.warmup_cosine_decay_schedule,
        {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 3, "decay_steps": 10, "end_value": 0.01},
    ),
    "warmup_exponential_decay": (
        optax.warmup_exponential_decay_schedule,
        {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 3, "transition_steps": 2, "decay_rate": 0.5},
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
