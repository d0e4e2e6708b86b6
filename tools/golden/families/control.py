"""Control flow: scan, while_loop, fori_loop, cond, switch. `doc` gives each function as a formula."""

import jax
import jax.numpy as jnp
from jax import lax

from golden import Family, bools, integers, normal, uniform, values

family = Family("control")


def i32(data):
    return values(data, "i32")


# scan


def scan_sum(c, xs):
    """scan(carry = c, xs): carry' = carry + x, y = carry' * x; returns (carry, ys)."""

    def body(carry, x):
        carry = carry + x
        return carry, carry * x

    return lax.scan(body, c, xs)


def rnn(w, u, h, xs):
    """scan over xs with w, u from outside: h' = tanh(w h + u x), y = h'; returns (h, ys)."""

    def body(h, x):
        h = jnp.tanh(w @ h + u @ x)
        return h, h

    return lax.scan(body, h, xs)


def rnn_reverse(w, u, h, xs):
    """as rnn, with reverse=True."""

    def body(h, x):
        h = jnp.tanh(w @ h + u @ x)
        return h, h

    return lax.scan(body, h, xs, reverse=True)


def scan_two_carries(a, b, xs, ys):
    """scan(carry = (a, b), (xs, ys)): (a', b') = (b, sin(a) * x + y), output (a * b, x - b); returns ((a, b), outputs)."""

    def body(carry, item):
        a, b = carry
        x, y = item
        return (b, jnp.sin(a) * x + y), (a * b, x - b)

    return lax.scan(body, (a, b), (xs, ys))


def scan_counter(x):
    """scan(carry = (0: i32, x), length 4): (n + 1, v * (n + 1)), output v; returns ((n, v), ys)."""

    def body(carry, _):
        n, v = carry
        return (n + 1, v * (n + 1)), v

    return lax.scan(body, (jnp.int32(0), x), None, length=4)


def scan_no_output(c, xs):
    """scan(carry = c, xs): carry' = carry * x + 1, no output; returns carry."""
    return lax.scan(lambda c, x: (c * x + 1, None), c, xs)[0]


def scan_unrolled(c, xs):
    """as scan_sum, with unroll=2."""
    return lax.scan(lambda c, x: (c + x, (c + x) * x), c, xs, unroll=2)


def nested_scan(c, xs):
    """outer scan over the rows of xs; in it a scan over the row: carry' = sin(carry) + x, y = carry' * x. Returns (carry, ys[rows, columns])."""

    def inner(c, x):
        c = jnp.sin(c) + x
        return c, c * x

    def outer(c, row):
        return lax.scan(inner, c, row)

    return lax.scan(outer, c, xs)


def scan_of_cond(c, xs):
    """scan(carry = c, xs): carry' = cond(x > 0, sin(carry) * x, carry - x), y = carry'."""

    def body(c, x):
        c = lax.cond(x > 0, lambda: jnp.sin(c) * x, lambda: c - x)
        return c, c

    return lax.scan(body, c, xs)


RNN = [(0, 0, 0, 0), (None, None, 0, 1), (0, None, None, None), (None, None, None, 2)]
rnn_inputs = (normal(3, 3, scale=0.5), normal(3, 2, scale=0.5), normal(3), normal(4, 2))
family.case("scan_sum", scan_sum, normal(), normal(5), op="scan", batch=[(0, 0), (0, None), (None, 1)])
family.case("scan_rnn", rnn, *rnn_inputs, op="scan", batch=RNN)
family.case("scan_rnn_reverse", rnn_reverse, *rnn_inputs, op="scan", batch=RNN[:2])
family.case(
    "scan_two_carries",
    scan_two_carries,
    normal(2),
    normal(2),
    normal(4),
    normal(4, 2),
    op="scan",
    batch=[(0, 0, 0, 0), (None, 0, None, None), (None, None, 1, 1)],
)
family.case("scan_counter", scan_counter, normal(2), op="scan", batch=[(1,)])
family.case("scan_no_output", scan_no_output, normal(3), normal(4, 3), op="scan")
family.case("scan_unrolled", scan_unrolled, normal(), normal(5), op="scan", batch=False)
family.case("scan_length_1", scan_sum, normal(), normal(1), op="scan", batch=False)
family.case("scan_length_0", scan_sum, normal(2), normal(0, 2), op="scan", batch=False)
family.case("scan_nested", nested_scan, normal(), normal(3, 2), op="scan", batch=[(0, 0), (None, 2)])
family.case("scan_of_cond", scan_of_cond, normal(), normal(5), op="scan", batch=[(0, None), (None, 0)])
family.case("scan_i32", scan_sum, integers(), integers(4), op="scan", batch=False)
family.case(
    "scan_checkpoint",
    lambda w, u, h, xs: lax.scan(jax.checkpoint(lambda h, x: (jnp.tanh(w @ h + u @ x),) * 2), h, xs),
    *rnn_inputs,
    op="scan",
    doc="as scan_rnn, the body checkpointed",
    batch=False,
)
family.case("associative_scan_add", lambda x: lax.associative_scan(jnp.add, x), normal(7, 2), op="associative_scan", batch=False)
family.case(
    "map_square", lambda xs: lax.map(lambda x: x * x.sum(), xs), normal(3, 2), op="map", doc="lax.map of x * sum(x) over the rows"
)


def loss_of_scan(x):
    """f(x) = the last carry of scan(carry = x, [1, 2, 3]): carry' = sin(carry) * k; returns f', f'', f'''."""

    def f(x):
        return lax.scan(lambda c, k: (jnp.sin(c) * k, None), x, jnp.array([1.0, 2.0, 3.0]))[0]

    g = jax.grad(f)
    h = jax.grad(g)
    return g(x), h(x), jax.grad(h)(x)


def hessian_of_scan(x):
    """hessian (jacfwd of jacrev) of sum(ys**2) where ys is from scan(carry = x[0], x): carry' = carry * x + 1, y = carry'."""

    def f(x):
        ys = lax.scan(lambda c, v: ((c * v + 1), c * v + 1), x[0], x)[1]
        return (ys**2).sum()

    return jax.hessian(f)(x)


family.case("grad_of_grad_of_scan", loss_of_scan, normal(), op="scan", grad=False, tol=1e-4)
family.case("hessian_of_scan", hessian_of_scan, normal(3), op="scan", grad=False, tol=1e-4)

# while_loop: forward mode only.


def while_double(x, limit):
    """while max|x| < limit: x = 2 x + 0.1 x^2; returns x."""
    return lax.while_loop(lambda x: jnp.abs(x).max() < limit, lambda x: 2 * x + 0.1 * x * x, x)


def while_count(n, x):
    """while i < n (from i = 0, v = x): v = sin(v) + x, i += 1; returns (i, v)."""
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1]) + x), (jnp.int32(0), x))


def while_collatz(n):
    """number of steps until n = 1: n = n / 2 if even, 3 n + 1 if odd."""

    def body(state):
        n, k = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1

    return lax.while_loop(lambda s: s[0] > 1, body, (n, jnp.int32(0)))[1]


def while_never(x):
    """while false: x + 1."""
    return lax.while_loop(lambda x: False, lambda x: x + 1, x)


family.case(
    "while_double",
    while_double,
    uniform(3, lo=0.2, hi=1.0),
    values(20.0),
    op="while_loop",
    grad="fwd",
    wrt=[0],
    batch=[(0, None), (None, 0), (1, 0)],
)
family.case("while_count", while_count, i32(4), normal(2), op="while_loop", grad="fwd", batch=[(None, 0), (0, None), (0, 1)])
family.case("while_collatz", while_collatz, i32(7), op="while_loop")
family.case("while_never", while_never, normal(2), op="while_loop", grad="fwd", batch=[(1,)])

# fori_loop: with bounds known when traced it is a scan, and reverse mode works.


def fori_static(x):
    """fori_loop(0, 5): v = v * cos(i * 0.5) + x."""
    return lax.fori_loop(0, 5, lambda i, v: v * jnp.cos(i * 0.5) + x, x)


def fori_dynamic(lo, hi, x):
    """fori_loop(lo, hi): v = v * 1.5 + i."""
    return lax.fori_loop(lo, hi, lambda i, v: v * 1.5 + i, x)


def fori_update(x):
    """fori_loop(1, 5): x[i] = x[i] + x[i - 1]."""
    return lax.fori_loop(1, 5, lambda i, v: v.at[i].add(v[i - 1]), x)


family.case("fori_static", fori_static, normal(2), op="fori_loop", batch=[(0,), (1,)])
family.case(
    "fori_dynamic",
    fori_dynamic,
    i32(1),
    i32(5),
    normal(2),
    op="fori_loop",
    grad="fwd",
    batch=[(None, None, 0), (None, 0, None), (0, 0, 0)],
)
family.case("fori_update", fori_update, normal(5), op="fori_loop")
family.case(
    "fori_empty",
    lambda x: lax.fori_loop(3, 3, lambda i, v: v + 1, x),
    normal(2),
    op="fori_loop",
    doc="fori_loop(3, 3): v + 1",
    batch=False,
)

# cond and switch


def cond(p, x, y):
    """cond(p, sin(x) * y, x - y^2)."""
    return lax.cond(p, lambda x, y: jnp.sin(x) * y, lambda x, y: x - y * y, x, y)


def cond_closure(p, x, y):
    """cond(p, x * 2, y) where x and y come from outside; returns (that, its sum)."""
    z = lax.cond(p, lambda: x * 2, lambda: y)
    return z, z.sum()


def cond_tree(p, x, y):
    """cond(p, (x, y), (y, x * y))."""
    return lax.cond(p, lambda: (x, y), lambda: (y, x * y))


CONDS = [(None, 0, 0), (0, None, None), (0, 0, 0), (0, 1, None)]
for label, predicate in {"true": True, "false": False}.items():
    for name, fn in {"cond": cond, "cond_closure": cond_closure, "cond_tree": cond_tree}.items():
        family.case(f"{name}_{label}", fn, values(predicate, "bool"), normal(3), normal(3), op="cond", batch=CONDS)
family.case("cond_i32_predicate", cond, i32(2), normal(2), normal(2), op="cond", batch=False)
family.case(
    "cond_computed_predicate",
    lambda x: lax.cond(x.sum() > 0, jnp.cos, jnp.exp, x),
    normal(3),
    op="cond",
    doc="cond(sum(x) > 0, cos(x), exp(x))",
)


def switch(i, x):
    """switch(i, [sin(x), x^2, -x]); i is clamped to 0..2."""
    return lax.switch(i, [jnp.sin, lambda x: x * x, lambda x: -x], x)


for label, i in {"0": 0, "1": 1, "2": 2, "beyond": 7, "negative": -3}.items():
    family.case(
        f"switch_{label}", switch, i32(i), normal(3), op="switch", batch=[(0, None), (None, 0), (0, 1)] if label == "2" else False
    )


def nested_cond(p, q, x):
    """cond(p, cond(q, sin(x), cos(x)), cond(q, exp(x), x))."""
    return lax.cond(p, lambda: lax.cond(q, jnp.sin, jnp.cos, x), lambda: lax.cond(q, jnp.exp, lambda x: x, x))


family.case("cond_nested", nested_cond, bools(), bools(), normal(2), op="cond", batch=[(0, None, None), (0, 0, 0)])
family.case(
    "grad_of_grad_of_cond",
    lambda p, x: jax.grad(jax.grad(lambda x: lax.cond(p, jnp.sin, lambda x: x**3, x)))(x),
    values(False, "bool"),
    values(1.5),
    op="cond",
    doc="second derivative of cond(p, sin(x), x^3)",
    batch=[(0, None), (0, 0)],
)
family.case(
    "map_batch_size_f32",
    lambda x: lax.map(lambda x: jnp.sin(x).sum(), x, batch_size=3),
    normal(7, 2),
    op="map_batch_size",
    batch=[(0,)],
    tol=3e-5,
    grad_tol=3e-4,
)
family.case(
    "fori_unroll_f32",
    lambda x: lax.fori_loop(0, 5, lambda i, x: x * 1.5 + i, x, unroll=2),
    normal(3),
    op="fori_unroll",
    batch=False,
    tol=3e-5,
    grad_tol=3e-4,
)
