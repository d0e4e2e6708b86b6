"""Results of transformations: grad, jacobians, hessians, custom rules. `doc` gives each function as a formula."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from golden import Family, normal, uniform, values

family = Family("transform")


def case(name, fn, *inputs, grad=False, batch=False, **options):
    family.case(name, fn, *inputs, grad=grad, batch=batch, **options)


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def mlp(w, b, x):
    return jnp.tanh(x @ w + b)


x3, w, b, rows = normal(3), normal(3, 2), normal(2), normal(4, 3)
family.case(
    "rosenbrock",
    rosenbrock,
    uniform(4, lo=-1, hi=1),
    doc="sum(100 (x[1:] - x[:-1]^2)^2 + (1 - x[:-1])^2)",
    tol=1e-4,
    grad_tol=1e-4,
)
case(
    "hessian_rosenbrock",
    jax.hessian(rosenbrock),
    uniform(4, lo=-1, hi=1),
    doc="hessian (jacfwd of jacrev) of rosenbrock",
    batch=[(0,)],
    tol=1e-4,
)
case(
    "hessian_jacrev_jacrev",
    jax.jacrev(jax.jacrev(rosenbrock)),
    uniform(3, lo=-1, hi=1),
    doc="jacrev of jacrev of rosenbrock",
    tol=1e-4,
)
case(
    "hessian_jacfwd_jacfwd",
    jax.jacfwd(jax.jacfwd(rosenbrock)),
    uniform(3, lo=-1, hi=1),
    doc="jacfwd of jacfwd of rosenbrock",
    tol=1e-4,
)
case(
    "hessian_jacrev_jacfwd",
    jax.jacrev(jax.jacfwd(rosenbrock)),
    uniform(3, lo=-1, hi=1),
    doc="jacrev of jacfwd of rosenbrock",
    tol=1e-4,
)
case("hessian_softmax_loss", jax.hessian(lambda z: jax.nn.logsumexp(z) - z[1]), x3, doc="hessian of logsumexp(z) - z[1]")
case(
    "hessian_two_arguments",
    jax.hessian(lambda x, y: (x * jnp.sin(y)).sum() * y.prod(), argnums=(0, 1)),
    normal(2),
    normal(2),
    doc="hessian of sum(x sin(y)) prod(y) with respect to (x, y): xx, xy, yx, yy",
)
case("jacfwd_mlp", jax.jacfwd(mlp, argnums=(0, 1)), w, b, normal(3), doc="jacfwd of tanh(x w + b) with respect to w and b")
case("jacrev_mlp", jax.jacrev(mlp, argnums=(0, 1)), w, b, normal(3), doc="jacrev of tanh(x w + b) with respect to w and b")
case(
    "hvp_forward_over_reverse",
    lambda x, v: jax.jvp(jax.grad(rosenbrock), (x,), (v,))[1],
    uniform(4, lo=-1, hi=1),
    normal(4),
    doc="jvp of grad of rosenbrock at x along v",
    batch=[(0, 0), (None, 0)],
    tol=1e-4,
)
case(
    "hvp_reverse_over_reverse",
    lambda x, v: jax.grad(lambda x: jax.grad(rosenbrock)(x) @ v)(x),
    uniform(4, lo=-1, hi=1),
    normal(4),
    doc="grad of (grad rosenbrock . v)",
    tol=1e-4,
)
case(
    "hvp_reverse_over_forward",
    lambda x, v: jax.grad(lambda x: jax.jvp(rosenbrock, (x,), (v,))[1])(x),
    uniform(4, lo=-1, hi=1),
    normal(4),
    doc="grad of the jvp of rosenbrock along v",
    tol=1e-4,
)


def derivatives(f, count):
    def all_of_them(x):
        found, g = [], f
        for _ in range(count):
            g = jax.grad(g)
            found.append(g(x))
        return found

    return all_of_them


for name, f, point in [
    ("tanh", jnp.tanh, 0.7),
    ("sin", jnp.sin, 0.3),
    ("x_to_5", lambda x: x**5, 1.3),
    ("log", jnp.log, 1.7),
    ("logistic", jax.nn.sigmoid, -0.4),
    ("sqrt", jnp.sqrt, 2.0),
    ("reciprocal", lambda x: 1 / x, 1.5),
    ("x_to_x", lambda x: x**x, 1.4),
    ("erf", lax.erf, 0.5),
    ("atan2", lambda x: jnp.arctan2(x, 2 * x * x), 0.8),
]:
    case(f"grads_of_{name}", derivatives(f, 4), values(point), doc="the first four derivatives", batch=[(0,)], tol=1e-4)

case(
    "grad_argnums",
    jax.grad(lambda w, b, x: (mlp(w, b, x) ** 2).sum(), argnums=(2, 0)),
    w,
    b,
    rows,
    doc="grad of sum(tanh(x w + b)^2) with respect to (x, w)",
)
case(
    "value_and_grad_has_aux",
    jax.value_and_grad(lambda w, x: ((x @ w).sum(), (x @ w).max()), has_aux=True),
    w,
    rows,
    doc="value_and_grad(has_aux) of (sum(x w), aux max(x w)): value, aux, gradient",
)
case(
    "per_example_gradients",
    jax.vmap(jax.grad(lambda w, b, x: (mlp(w, b, x) ** 2).sum(), argnums=(0, 1)), (None, None, 0)),
    w,
    b,
    rows,
    doc="vmap over rows of x of grad of sum(tanh(x w + b)^2) with respect to w and b",
)
case(
    "grad_of_vmap",
    jax.grad(lambda x: jax.vmap(lambda r: jnp.sin(r) @ r)(x).sum()),
    rows,
    doc="grad of sum over rows r of sin(r) . r",
)
case(
    "vmap_of_vmap",
    jax.vmap(jax.vmap(lambda x, y: x * y + 1, (None, 0)), (0, None)),
    x3,
    normal(2),
    doc="vmap((0, None)) of vmap((None, 0)) of x y + 1",
)
case(
    "vmap_out_axes",
    jax.vmap(lambda x: (x, x * 2), in_axes=1, out_axes=(1, -1)),
    normal(2, 3),
    doc="vmap(in_axes=1, out_axes=(1, -1)) of (x, 2 x)",
)
case(
    "linearize",
    lambda x, v: jax.linearize(lambda x: jnp.sin(x) * x.sum(), x)[1](v),
    x3,
    normal(3),
    doc="linearize of sin(x) sum(x) at x, applied to v",
)
case(
    "linear_transpose",
    lambda v: jax.linear_transpose(lambda x: 2 * x[::-1] + x.sum(), jnp.zeros(3))(v),
    x3,
    doc="transpose of x -> 2 reverse(x) + sum(x), applied to v",
)
case("stop_gradient", jax.grad(lambda x: (x * lax.stop_gradient(x)).sum()), x3, doc="grad of sum(x stop_gradient(x)) = x")
case(
    "straight_through",
    jax.grad(lambda x: ((x + lax.stop_gradient(jnp.round(x) - x)) ** 2).sum()),
    normal(3, scale=3.0),
    doc="grad of sum((x + stop_gradient(round(x) - x))^2) = 2 round(x)",
)
case(
    "checkpoint",
    jax.value_and_grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())),
    x3,
    doc="value_and_grad of checkpoint of sum(sin(sin(x)))",
)
case(
    "grad_abs_complex_square",
    jax.grad(lambda z: jnp.abs(z) ** 2),
    values(3 + 4j, "c64"),
    doc="grad of |z|^2: JAX gives the conjugate, 2 conj(z)",
)
case(
    "grad_holomorphic",
    jax.grad(lambda z: jnp.sin(z) * z, holomorphic=True),
    values(0.5 + 0.25j, "c64"),
    doc="grad(holomorphic) of sin(z) z",
)
case("grad_real_of_complex", jax.grad(lambda z: (z**3).real), values(0.5 + 0.25j, "c64"), doc="grad of Re(z^3)")
case("grad_through_complex", jax.grad(lambda x: jnp.abs(jnp.exp(1j * x) + x).sum()), x3, doc="grad of sum |exp(i x) + x|, x real")
case(
    "grad_of_gradient_descent",
    jax.grad(lambda lr, x: rosenbrock(x - lr * jax.grad(rosenbrock)(x)), argnums=(0, 1)),
    values(1e-3),
    uniform(3, lo=-1, hi=1),
    doc="grad with respect to (lr, x) of rosenbrock(x - lr grad rosenbrock(x))",
    tol=1e-3,
)

# Rules of the user's own. Each differs from the true derivative, so that a test sees whose rule ran.


@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)


tripled.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 3 * jnp.cos(primals[0]) * tangents[0]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def scaled(f, x):
    return f(x)


scaled.defjvp(lambda f, primals, tangents: (f(primals[0]), 10 * tangents[0]))


@jax.custom_jvp
def log1pexp(x):
    return jnp.log(1 + jnp.exp(x))


log1pexp.defjvp(lambda primals, tangents: (log1pexp(primals[0]), (1 - 1 / (1 + jnp.exp(primals[0]))) * tangents[0]))


@jax.custom_vjp
def doubled(x, y):
    return jnp.sin(x) * y


doubled.defvjp(
    lambda x, y: (doubled(x, y), (jnp.cos(x), jnp.sin(x), y)), lambda saved, ct: (2 * saved[0] * ct * saved[2], 5 * saved[1] * ct)
)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def clip_gradient(lo, hi, x):
    return x


clip_gradient.defvjp(lambda lo, hi, x: (x, None), lambda lo, hi, saved, ct: (jnp.clip(ct, lo, hi),))


def fixed_point(f, a, guess):
    return lax.while_loop(lambda s: jnp.abs(s[0] - s[1]) > 1e-6, lambda s: (s[1], f(a, s[1])), (guess, f(a, guess)))[1]


@jax.custom_vjp
def babylonian(a):
    return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a)


babylonian.defvjp(lambda a: (babylonian(a), babylonian(a)), lambda root, ct: (ct / (2 * root),))

family.case("custom_jvp", tripled, x3, doc="sin(x) with jvp 3 cos(x) t", batch=[(0,)])
case(
    "custom_jvp_grad_of_grad",
    derivatives(lambda x: tripled(x), 3),
    values(0.6),
    doc="three derivatives of sin(x) with jvp 3 cos(x) t (the rule itself is differentiated)",
    batch=[(0,)],
)
family.case("custom_jvp_nondiff", lambda x: scaled(jnp.exp, x), x3, doc="exp(x) with jvp 10 t", batch=[(0,)])
family.case(
    "custom_jvp_log1pexp",
    log1pexp,
    values([0.0, 1.0, 100.0]),
    doc="log(1 + exp(x)) with jvp (1 - 1 / (1 + exp(x))) t: finite gradient at 100",
    batch=False,
)
family.case(
    "custom_vjp",
    doubled,
    x3,
    normal(3),
    doc="sin(x) y with vjp (2 cos(x) y ct, 5 sin(x) ct)",
    grad="rev",
    batch=[(0, 0), (0, None), (None, 1)],
)
case(
    "custom_vjp_vmap_of_grad",
    jax.vmap(jax.grad(lambda x, y: doubled(x, y).sum(), argnums=(0, 1)), (0, None)),
    normal(2, 3),
    x3,
    doc="vmap over rows of x of grad of the above with respect to x and y",
)
case(
    "custom_vjp_grad_of_grad", derivatives(lambda x: doubled(x, x), 2), values(0.6), doc="two derivatives of the above at (x, x)"
)
family.case(
    "custom_vjp_clip_gradient",
    lambda x: clip_gradient(-0.5, 0.5, x),
    x3,
    doc="x with vjp clip(ct, -0.5, 0.5)",
    grad="rev",
    batch=False,
)
family.case(
    "custom_vjp_fixed_point",
    babylonian,
    values(2.0),
    doc="sqrt(a) by while_loop with vjp ct / (2 sqrt(a))",
    grad="rev",
    batch=[(0,)],
)
case(
    "custom_vjp_in_scan",
    jax.grad(lambda x: lax.scan(lambda c, v: (doubled(c, v), None), x[0], x)[0]),
    x3,
    doc="grad of scan(carry = x[0], x): carry' = sin(carry) x with custom_vjp's rule",
)
