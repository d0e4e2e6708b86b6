"""Optax: ten steps, as in `optimizers`, of optimizers that wrap others or the loss (lookahead, conditions, scales, line searches),
of optimizers of matrices and of earlier steps; and projections."""

import functools

import jax
import jax.numpy as jnp
import optax
from flax.training.dynamic_scale import DynamicScale
from optax import contrib

from families.optimizers import LARGE, SALT, SMALL, numbers, some, ten
from golden import DTYPES, Family, normal, values

family = Family("optim_wrappers")


def case(name, make, doc, *, large=False, state=True, nan=False, tol=None, dtypes=("f32", "bf16")):
    for dtype in dtypes:
        family.case(
            f"{name}_{dtype}",
            ten(make, LARGE if large else SMALL, DTYPES[dtype], state, nan, 0),
            values(0, "i32"),
            op=name,
            params={"state": state, "large": large, "dtype": dtype, "nan": nan},
            doc=doc,
            grad=False,
            batch=False,
            tol=tol.get(dtype) if tol else None,
        )


case("muon", lambda: contrib.muon(0.1), "contrib.muon(0.1)", state=False, tol={"f32": 1e-4, "bf16": 4e-2})
case(
    "sam",
    lambda: contrib.sam(optax.sgd(0.1, momentum=0.9), optax.chain(contrib.normalize(), optax.sgd(0.5))),
    "contrib.sam(sgd(0.1, momentum=0.9), chain(normalize(), sgd(0.5)))",
)
case(
    "lbfgs",
    lambda: optax.lbfgs(0.01, memory_size=4, linesearch=None),
    "lbfgs(0.01, memory_size=4, linesearch=None)",
    # It has one over products that nearly cancel.
    state=False,
    tol={"f32": 1e-4, "bf16": 4e-2},
)
case("optimistic_gradient_descent", lambda: optax.optimistic_gradient_descent(0.1), "optimistic_gradient_descent(0.1)")
case("rprop", lambda: optax.rprop(0.1), "rprop(0.1)")

# Transformations that are applied at some steps, or that look at what passes.
case(
    "conditionally_transform",
    lambda: optax.chain(optax.transforms.conditionally_transform(optax.trace(0.9), lambda step: step % 3 != 1), optax.sgd(0.1)),
    "chain(conditionally_transform(trace(0.9), step % 3 != 1), sgd(0.1))",
)
case(
    "conditionally_mask",
    lambda: optax.transforms.conditionally_mask(optax.sgd(0.1, momentum=0.9), lambda step: step % 3 != 1),
    "conditionally_mask(sgd(0.1, momentum=0.9), step % 3 != 1)",
    state=False,
)
case("flatten", lambda: optax.flatten(optax.adam(0.1)), "flatten(adam(0.1))")
case(
    "monitor",
    lambda: optax.chain(
        optax.snapshot("norm", optax.global_norm),
        optax.sgd(0.1),
        optax.snapshot("largest", lambda u: optax.tree.max(jax.tree.map(jnp.abs, u))),
    ),
    "chain(snapshot(norm), sgd(0.1), snapshot(largest))",
)
case(
    "skip_not_finite",
    lambda: optax.MultiSteps(optax.sgd(0.1), 3, should_skip_update_fn=optax.skip_not_finite),
    "MultiSteps(sgd(0.1), 3, should_skip_update_fn=skip_not_finite)",
    nan=True,
)
case(
    "skip_large_updates",
    lambda: optax.MultiSteps(
        optax.sgd(0.1), 2, should_skip_update_fn=functools.partial(optax.skip_large_updates, max_squared_norm=75.0)
    ),
    "MultiSteps(sgd(0.1), 2, should_skip_update_fn=skip_large_updates(75))",
)


def looking(reset, dtype):
    """lookahead(adam(0.1), 3, 0.5): the fast parameters of each step, then the slow ones."""

    def run(offset):
        def tree(step):
            return {k: numbers(shape, step, SALT[k] + offset, dtype) for k, shape in SMALL.items()}

        optimizer = optax.lookahead(optax.adam(0.1), 3, 0.5, reset_state=reset)

        def step(carry, i):
            params, state = carry
            updates, state = optimizer.update(tree(i), state, params)
            params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
            return (params, state), jax.tree.map(some, params)

        params = optax.LookaheadParams.init_synced(tree(100))
        carry = (params, optimizer.init(params))
        if not reset:
            _, path = jax.lax.scan(step, carry, jnp.arange(10, dtype=jnp.int32))
            return jax.tree.leaves(path)
        # A state that is reset changes its dtype in Optax.
        found = []
        for i in range(10):
            carry, seen = step(carry, jnp.int32(i))
            found.append(seen)
        return jax.tree.leaves(jax.tree.map(lambda *x: jnp.stack(x), *found))

    return run


for name, reset in (("lookahead", False), ("lookahead_reset", True)):
    for dtype in ("f32", "bf16"):
        family.case(
            f"{name}_{dtype}",
            looking(reset, DTYPES[dtype]),
            values(0, "i32"),
            op=name,
            params={"dtype": dtype},
            grad=False,
            batch=False,
        )


def followed(dtype):
    """Ten steps of sgd(0.1); `incremental_update` by 0.1 and `periodic_update` every 3 steps of two copies."""

    def run(offset):
        def tree(step):
            return {k: numbers(shape, step, SALT[k] + offset, dtype) for k, shape in SMALL.items()}

        def step(carry, i):
            params, slow, copied = carry
            params = optax.apply_updates(params, jax.tree.map(lambda g: -0.1 * g, tree(i)))
            slow = optax.incremental_update(params, slow, 0.1)
            copied = optax.periodic_update(params, copied, i, 3)
            return (params, slow, copied), [some(x) for x in jax.tree.leaves((slow, copied))]

        return jax.lax.scan(step, (tree(100), tree(50), tree(60)), jnp.arange(10, dtype=jnp.int32))[1]

    return run


for dtype in ("f32", "bf16"):
    family.case(
        f"followed_{dtype}",
        followed(DTYPES[dtype]),
        values(0, "i32"),
        op="followed",
        params={"dtype": dtype},
        grad=False,
        batch=False,
    )


def scaled(offset):
    """Ten steps of adam(0.1) in float16 whose loss has a DynamicScale of 2^17 that grows after 3 steps, and is left out where infinite."""
    tx = optax.adam(0.1)

    def step(carry, i):
        params, state, scale = carry
        x = numbers((8, 6), i, offset, jnp.float16)

        def loss(p):
            y = p["w"].astype(jnp.float16) * x + p["b"].astype(jnp.float16)
            return jnp.mean(y * y)

        scale, finite, value, grads = scale.value_and_grad(loss)(params)
        updates, after = tx.update(grads, state, params)
        new = (optax.apply_updates(params, updates), after)
        params, state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, (params, state))
        return (params, state, scale), (value, scale.scale, scale.fin_steps, finite, some(params["b"]), some(params["w"]))

    params = {k: numbers(shape, 100, SALT[k] + offset, jnp.float32) for k, shape in SMALL.items()}
    scale = DynamicScale(growth_interval=3, scale=jnp.float32(2**17), fin_steps=jnp.int32(0))
    return jax.lax.scan(step, (params, tx.init(params), scale), jnp.arange(10, dtype=jnp.int32))[1]


# Its gradients are sums in float16.
family.case("dynamic_scale", scaled, values(0, "i32"), grad=False, batch=False, tol=4e-3)


def searched(offset):
    """lbfgs() with its zoom line search on a sum of Rosenbrock's function of b and of cosines and squares of w."""
    params = {k: numbers(shape, 100, SALT[k] + offset, jnp.float32) for k, shape in SMALL.items()}

    def value_fn(p):
        b, w = p["b"], p["w"]
        valley = jnp.sum(2.0 * (b[1:] - b[:-1] ** 2) ** 2 + (1 - b[:-1]) ** 2)
        return valley + jnp.sum(0.5 * w**2 + jnp.cos(w + 1))

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(value_fn)

    def step(carry, _):
        params, state = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = solver.update(grad, state, params, value=value, grad=grad, value_fn=value_fn)
        params = optax.apply_updates(params, updates)
        search = state[-1]
        return (params, state), (some(params["b"]), some(params["w"]), value, search.learning_rate, search.info.num_linesearch_steps)

    _, path = jax.lax.scan(step, (params, solver.init(params)), None, length=10)
    return path


family.case("lbfgs_linesearch", searched, values(0, "i32"), grad=False, batch=False, tol=2e-3)

PROJECTIONS = {
    "non_negative": lambda x: optax.projections.projection_non_negative(x),
    # Their bounds are trees.
    "box": lambda x: [optax.projections.projection_box(leaf, -0.5, 0.75) for leaf in x],
    "hypercube": lambda x: [optax.projections.projection_hypercube(leaf, 0.75) for leaf in x],
    "simplex": lambda x: optax.projections.projection_simplex(x, 1.5),
    "l1_sphere": lambda x: optax.projections.projection_l1_sphere(x, 1.5),
    "l1_ball": lambda x: optax.projections.projection_l1_ball(x, 1.5),
    "l2_sphere": lambda x: optax.projections.projection_l2_sphere(x, 1.5),
    "l2_ball": lambda x: optax.projections.projection_l2_ball(x, 1.5),
    "linf_ball": lambda x: optax.projections.projection_linf_ball(x, 0.5),
    "vector": lambda x: optax.projections.projection_vector(x, [jnp.arange(4.0) - 1, jnp.ones((2, 3))]),
    "hyperplane": lambda x: optax.projections.projection_hyperplane(x, [jnp.arange(4.0) - 1, jnp.ones((2, 3))], 0.5),
    "halfspace": lambda x: optax.projections.projection_halfspace(x, [jnp.arange(4.0) - 1, jnp.ones((2, 3))], -3.0),
}
for name, project in PROJECTIONS.items():
    family.case(
        f"projection_{name}",
        lambda x, y, project=project: project([x, y]),
        normal(4),
        normal(2, 3),
        op="projection",
        params={"name": name},
        batch=False,
        tol=2e-5,
        grad_tol=1e-4,
    )
