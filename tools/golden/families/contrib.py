"""Ten steps of the optimizers of optax.contrib, as `optimizers`, and Optax's further losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib, losses

from families.optimizers import SMALL, ten
from golden import DTYPES, Family, integers, normal, uniform, values

family = Family("contrib")


def case(name, make, *, state=True, tol=2e-4):
    run = ten(make, SMALL, DTYPES["f32"], state, False, 0)
    params = {"state": state, "large": False, "dtype": "f32", "nan": False}
    family.case(name, run, values(0, "i32"), params=params, grad=False, batch=False, tol=tol)


case("acprop", lambda: contrib.acprop(0.1), state=False)
case("ademamix", lambda: contrib.ademamix(0.1), state=False)
case("simplified_ademamix", lambda: contrib.simplified_ademamix(0.1))
case("adopt", lambda: contrib.adopt(0.1))
case("adopt_nesterov", lambda: contrib.adopt(0.1, nesterov=True, use_clipping=False, eps=1e-2), state=False)
case("madgrad", lambda: contrib.madgrad(0.1))
case("cocob", lambda: contrib.cocob())
case("dadapt_adamw", lambda: contrib.dadapt_adamw(1.0, weight_decay=0.1, estim_lr0=1e-2))
case("prodigy", lambda: contrib.prodigy(1.0, weight_decay=0.1, estim_lr0=1e-2))
case("prodigy_safeguard", lambda: contrib.prodigy(1.0, safeguard_warmup=True, estim_lr0=1e-2), state=False)
case("dog", lambda: contrib.dog())
case("dog_distance", lambda: contrib.dog(init_step=("distance", 0.5)), state=False)
case("dog_learning_rate", lambda: contrib.dog(init_step=("learning_rate", 0.01)), state=False)
case("dowg", lambda: contrib.dowg())
case("mechanize", lambda: contrib.mechanize(optax.sgd(1.0), s_init=1e-2))
case("optimistic_adam", lambda: optax.optimistic_adam_v2(0.1), state=False)
# The signs of singular vectors are arbitrary, and with them those of the state. A new projection with an old state depends on them.
case("galore", lambda: contrib.galore(0.1, rank=3, scale=0.5), state=False)
case("galore_sign", lambda: contrib.galore(0.1, rank=3, update_proj_gap=4, base_optimizer=optax.scale_by_sign()), state=False)


def bowl(x):
    """a loss whose least value is 0.5"""
    return 0.5 + jnp.sum(jnp.array([1.0, 4.0, 0.25, 2.0], x.dtype) * x**2)


def descended(optimizer, steps, update):
    """the parameters after each step"""

    def step(carry, _):
        x, state = carry
        value, grads = jax.value_and_grad(bowl)(x)
        updates, state = update(optimizer, grads, state, x, value)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    return lambda x: jax.lax.scan(step, (x, optimizer.init(x)), None, length=steps)[1]


by_value = lambda t, grads, state, x, value: t.update(grads, state, x, value=value)
by_function = lambda t, grads, state, x, value: t.update(grads, state, x, obj_fn=bowl)
for name, make, more in (
    ("momo", contrib.momo, {"learning_rate": 0.3}),
    ("momo_adam", contrib.momo_adam, {"learning_rate": 0.3}),
):
    adaptive = {"weight_decay": 0.1, "lower_bound": 0.1, "adapt_lower_bound": True}
    family.case(name, descended(make(**more), 10, by_value), normal(4), grad=False, batch=False, tol=2e-5)
    family.case(f"{name}_adaptive", descended(make(**more, **adaptive), 10, by_value), normal(4), grad=False, batch=False, tol=2e-5)
family.case("sophia", descended(contrib.sophia(0.1, update_interval=3, gamma=0.3), 8, by_function), normal(4), grad=False, batch=False, tol=2e-5)


def split(x):
    """the real and imaginary parts after each of five steps of Adam with constant gradients"""
    optimizer, grads = contrib.split_real_and_imaginary(optax.adam(0.1)), jax.lax.complex(x[1], x[0])
    params = jax.lax.complex(x[0], x[1])

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), jnp.stack([params.real, params.imag])

    return jax.lax.scan(step, (params, optimizer.init(params)), None, length=5)[1]


family.case("split_real_and_imaginary", split, normal(2, 4), grad=False, batch=False, tol=1e-5)

# Linear algebra.
positive = lambda x: x @ x.T + jnp.eye(x.shape[0])
family.case("power_iteration", lambda x: optax.power_iteration(positive(x)), normal(5, 5), grad=False, batch=False, tol=1e-4)
for p in (2, 4):
    root = lambda x, p=p: optax.matrix_inverse_pth_root(positive(x), p)[0]
    family.case(f"matrix_inverse_pth_root_{p}", root, normal(5, 5), op="matrix_inverse_pth_root", params={"p": p}, grad=False, batch=False, tol=1e-4)
family.case("nnls", lambda a, b: optax.nnls(a, b, 50), normal(7, 4), normal(7), grad=False, batch=False, tol=1e-4)
family.case("nnls_matrix", lambda a, b: optax.nnls(a, b, 50), normal(4, 6), normal(4, 3), op="nnls", grad=False, batch=False, tol=1e-4)


def plateaus(losses_):
    """the scale and the count after each loss: factor 0.5, patience 2, cooldown 2, means of 2 losses, at least 0.2"""
    t = contrib.reduce_on_plateau(factor=0.5, patience=2, cooldown=2, accumulation_size=2, min_scale=0.2)

    def step(state, value):
        updates, state = t.update(jnp.ones(2), state, value=value)
        return state, (updates[0], state.plateau_count)

    return jax.lax.scan(step, t.init(jnp.ones(2)), losses_)[1]


family.case("reduce_on_plateau", plateaus, values([3, 2, 2, 2] + [2.0] * 24), grad=False, batch=False)
for variant in ("sps", "sps+"):
    t = optax.polyak_sgd(f_min=1.0, max_learning_rate=0.75, variant=variant)
    fn = lambda g, v, t=t: t.update(g, t.init(g), value=v)[0]
    for name, value in (("high", 3.0), ("low", 0.5)):
        family.case(f"polyak_{variant}_{name}", fn, normal(4), values(value), op="polyak", params={"clamp": variant == "sps+"}, grad=False, batch=False)

# Losses.
more = dict(batch=False, wrt=[0], tol=2e-5, grad_tol=2e-5)
hot = lambda *shape: lambda rng: np.eye(shape[-1], dtype=np.float32)[rng.integers(0, shape[-1], shape[:-1])]
family.case("dice_loss", losses.dice_loss, normal(2, 4, 5, 3), hot(2, 4, 5, 3), **more)
fn = lambda x, y: losses.dice_loss(x, y, smooth=0.5, alpha=0.3, beta=0.7, ignore_background=True, class_weights=jnp.array([1.0, 2.0, 3.0]))
family.case("dice_loss_options", fn, normal(2, 6, 3), hot(2, 6, 3), **more)
family.case("binary_dice_loss", losses.binary_dice_loss, normal(2, 4, 5), integers(2, 4, 5, lo=0, hi=2, dtype="f32"), **more)
family.case("multiclass_generalized_dice_loss", losses.multiclass_generalized_dice_loss, normal(2, 6, 3), hot(2, 6, 3), **more)
labels = integers(5, lo=0, hi=4)
for name in ("multiclass_hinge_loss", "multiclass_perceptron_loss", "multiclass_sparsemax_loss"):
    family.case(name, getattr(losses, name), normal(5, 4), labels, **more)
family.case("sparsemax_loss", losses.sparsemax_loss, normal(6, scale=2.0), integers(6, lo=0, hi=2), **more)
ranking = lambda x, y: losses.ranking_softmax_loss(x, y, reduce_fn=None)
family.case("ranking_softmax_loss", ranking, normal(3, 5), uniform(3, 5, hi=2), **more)
masked = lambda x, y, m: losses.ranking_softmax_loss(x, y, where=m > 0, reduce_fn=None)
family.case("ranking_softmax_loss_masked", masked, normal(2, 4), uniform(2, 4, hi=2), values([[1, 1, 0, 1], [1, 0, 0, 1]]), **more)
family.case("triplet_margin_loss", losses.triplet_margin_loss, normal(4, 3), normal(4, 3), normal(4, 3), **{**more, "wrt": None})

fenchel_young = losses.make_fenchel_young_loss(jax.scipy.special.logsumexp)
family.case("fenchel_young", fenchel_young, normal(2, 3, 5), uniform(2, 3, 5), batch=False, tol=2e-5, grad_tol=2e-5)

# Schedules.
for shape in ("linear", "cosine"):
    more = {"pct_final": 0.9} if shape == "linear" else {}
    fn = getattr(optax, f"{shape}_onecycle_schedule")(10, 2.0, pct_start=0.4, div_factor=10.0, final_div_factor=100.0, **more)
    family.case(f"schedule_{shape}_onecycle", lambda fn=fn: jnp.stack([jnp.asarray(fn(i)) for i in range(13)]), op=f"{shape}_onecycle", grad=False, batch=False, tol=1e-6)
