"""The cases of `shardax-bench --growth` in JAX: `jax_growth.py CASE SIZE` prints the cost of each phase as JSON."""

import gc
import json
import os
import sys
import time

CASE, SIZE = sys.argv[1], int(sys.argv[2])
DEVICES = SIZE if CASE == "devices" else 8 if CASE == "mapped_arrays" else 1
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
sys.setrecursionlimit(100_000)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

phases = {}
row = jax.ShapeDtypeStruct((4,), jnp.float32)


def timed(phase, f):
    start = time.process_time()
    result = f()
    phases[phase] = (time.process_time() - start) * 1e3
    return result


def repeat(phase, times, f):
    least = float("inf")
    for _ in range(times):
        start = time.process_time()
        f()
        least = min(least, time.process_time() - start)
    phases[phase] = least * 1e3


def ready(x):
    return jax.block_until_ready(x)


def program(f, *args):
    timed("trace", lambda: jax.make_jaxpr(f)(*args))
    f = jax.jit(f)
    lowered = timed("lower", lambda: f.lower(*args))
    timed("compile", lowered.compile)
    ready(f(*args))
    repeat("call", 5, lambda: ready(f(*args)))


def leaves():
    def step(parameters, gradients, first, second):
        updated = ([], [], [])
        for p, g, m, v in zip(parameters, gradients, first, second):
            m = m * 0.9 + g * 0.1
            v = v * 0.999 + g * g * 0.001
            updated[0].append(p - (m / (jnp.sqrt(v) + 1e-8) + p * 0.01) * 1e-3)
            updated[1].append(m)
            updated[2].append(v)
        return updated

    program(step, *[[jnp.ones(4) for _ in range(SIZE)] for _ in range(4)])


def arguments():
    f, xs = jax.jit(lambda xs: xs[0] + 1.0), [jnp.ones(4)] * SIZE
    timed("lower", lambda: f.lower([row] * SIZE))
    ready(f(xs))
    repeat("call", 5, lambda: ready(f(xs)))


def chain(x):
    for _ in range(SIZE):
        x = jnp.sin(x)
    return x


def summed_chain(x):
    return chain(x).sum()


def operations():
    timed("trace", lambda: jax.make_jaxpr(chain)(row))
    timed("gradient", lambda: jax.make_jaxpr(jax.grad(summed_chain))(row))
    timed("batch", lambda: jax.make_jaxpr(jax.vmap(chain))(jax.ShapeDtypeStruct((8, 4), jnp.float32)))
    timed("lower", lambda: jax.jit(chain).lower(row))


def compiled_operations():
    lowered = jax.jit(chain).lower(row)
    timed("function", lowered.compile)
    lowered = jax.jit(jax.grad(summed_chain)).lower(row)
    timed("gradient", lowered.compile)


def eager_gradient():
    f, x = jax.grad(summed_chain), jnp.ones(4)
    timed("first call", lambda: ready(f(x)))
    repeat("call", 3, lambda: ready(f(x)))


def eager_operations():
    x = jnp.ones(4)
    jnp.sin(x)
    timed("calls", lambda: ready(chain(x)))


def captures():
    captured = [jnp.ones(4) * i for i in range(SIZE)]

    def f(x):
        for c in captured:
            x = x + c
        return x

    program(f, jnp.ones(4))


def carries():
    def f(xs):
        return lax.scan(lambda xs, x: ([y * 2.0 + x for y in xs], None), xs, jnp.ones(3))[0]

    xs = [row] * SIZE
    timed("trace", lambda: jax.make_jaxpr(f)(xs))
    timed("gradient", lambda: jax.make_jaxpr(jax.grad(lambda xs: sum(x.sum() for x in f(xs))))(xs))
    timed("lower", lambda: jax.jit(f).lower(xs))


def branches():
    def f(index, x):
        return lax.switch(index, [lambda x, i=i: jnp.sin(x) * float(i) for i in range(SIZE)], x)

    index = jax.ShapeDtypeStruct((), jnp.int32)
    timed("trace", lambda: jax.make_jaxpr(f)(index, row))
    timed("gradient", lambda: jax.make_jaxpr(jax.grad(lambda x, index: f(index, x).sum()))(row, index))
    timed("lower", lambda: jax.jit(f).lower(index, row))


def constant_bytes():
    captured = jnp.ones(SIZE // 4)
    program(lambda x: (captured * x).sum(), jnp.ones(()))


def nested_cond():
    def nested(depth, x):
        if depth == 0:
            return jnp.sin(x)
        return lax.cond(x.sum() > 0, lambda x: nested(depth - 1, jnp.sin(x)), lambda x: x * 2.0, x)

    timed("trace", lambda: jax.make_jaxpr(lambda x: nested(SIZE, x))(row))
    timed("gradient", lambda: jax.make_jaxpr(jax.grad(lambda x: nested(SIZE, x).sum()))(row))

    def of_flag(flag, x):
        return lax.cond(flag, lambda x: nested(SIZE - 1, x), lambda x: x, x)

    flag, rows = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((8, 4), jnp.float32)
    if SIZE <= 12:
        timed("batch", lambda: jax.make_jaxpr(jax.vmap(of_flag, in_axes=(None, 0)))(flag, rows))


def nested_scan():
    def nested(depth, x):
        if depth == 0:
            return jnp.sin(x)
        return lax.scan(lambda x, y: (nested(depth - 1, x + y), None), x, jnp.ones(2))[0]

    timed("trace", lambda: jax.make_jaxpr(lambda x: nested(SIZE, x))(row))
    timed("gradient", lambda: jax.make_jaxpr(jax.grad(lambda x: nested(SIZE, x).sum()))(row))
    rows = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    timed("batch", lambda: jax.make_jaxpr(jax.vmap(lambda x: nested(SIZE, x)))(rows))


def nested_jit():
    f = jax.jit(jnp.sin)
    for _ in range(1, SIZE):
        f = jax.jit(lambda x, inner=f: inner(x) + inner(x + 1.0))
    timed("trace", lambda: jax.make_jaxpr(lambda x: f(x))(row))
    lowered = timed("lower", lambda: jax.jit(lambda x: f(x)).lower(row))
    phases["characters"] = len(lowered.as_text())


def nested_vmap():
    f = lambda x: jnp.sin(x) * 2.0  # noqa: E731
    for _ in range(SIZE):
        f = jax.vmap(f)
    x = jax.ShapeDtypeStruct((2,) * SIZE, jnp.float32)
    timed("trace", lambda: jax.make_jaxpr(f)(x))
    timed("lower", lambda: jax.jit(f).lower(x))


def nested_checkpoint():
    f = jnp.sin
    for _ in range(SIZE):
        f = jax.checkpoint(lambda x, inner=f: inner(jnp.sin(x)))
    timed("gradient", lambda: jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(row))


def derivatives():
    f = lambda x: jnp.tanh(jnp.sin(x) * jnp.exp(x))  # noqa: E731
    for _ in range(SIZE):
        f = jax.grad(f)
    x = jax.ShapeDtypeStruct((), jnp.float32)
    timed("trace", lambda: jax.make_jaxpr(f)(x))
    lowered = jax.jit(f).lower(x)
    timed("compile", lowered.compile)


def twice(f, x):
    timed("first call", lambda: ready(f(x)))
    repeat("call", 3, lambda: ready(f(x)))


def jacobian():
    twice(jax.jit(jax.jacrev(lambda x: jnp.sin(x) * x.sum())), jnp.ones(SIZE))


def hessian():
    twice(jax.jit(jax.hessian(lambda x: (jnp.sin(x) * x.sum()).sum())), jnp.ones(SIZE))


def shapes():
    f = jax.jit(lambda x: jnp.sin(x) + 1.0)
    xs = [np.ones(size, np.float32) for size in range(1, SIZE + 1)]
    timed("calls", lambda: [ready(f(x)) for x in xs])


def functions():
    x = jnp.ones(4)
    timed("calls", lambda: [ready(jax.jit(lambda x, c=float(i): jnp.sin(x) + c)(x)) for i in range(SIZE)])


def calls():
    f, x = jax.jit(lambda x: x * 2.0 + 1.0), jnp.ones(4)
    f(x)

    def run():
        for _ in range(SIZE):
            f(x)

    timed("calls", run)


def devices():
    mesh = jax.make_mesh((SIZE,), ("x",))
    x = jax.device_put(jnp.ones((SIZE, 4)), NamedSharding(mesh, PartitionSpec("x")))
    f = jax.pmap(lambda x: x * 2.0 + 100.0)
    timed("first call", lambda: ready(f(x)))
    repeat("call", 20, lambda: ready(f(x)))


def mapped_arrays():
    mesh = jax.make_mesh((8,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    xs = jax.device_put([jnp.ones((8, 4)) for _ in range(SIZE)], sharding)
    f = jax.pmap(lambda xs: [x + 1.0 for x in xs])
    timed("first call", lambda: ready(f(xs)))
    repeat("call", 5, lambda: ready(f(xs)))


def alive():
    made = timed("make", lambda: [jax.device_put(np.full(1, i, np.float32)) for i in range(SIZE)])
    timed("list", lambda: len(jax.live_arrays()))

    def drop():
        made.clear()
        gc.collect()

    timed("drop", drop)


def rank():
    f = jax.jit(lambda x: x.T + x.sum(0))
    shape = (2,) + (1,) * (SIZE - 1)
    lowered = timed("lower", lambda: f.lower(jax.ShapeDtypeStruct(shape, jnp.float32)))
    timed("compile", lowered.compile)


def printed():
    x = ready(jnp.arange(SIZE, dtype=jnp.float32))
    repeat("print", 3, lambda: len(str(x)))


def to_host():
    repeats = [ready(jnp.ones(SIZE, jnp.uint8)) for _ in range(3)]
    repeat("to_vec", 3, lambda: np.array(repeats[0]))
    repeat("to_bytes", 3, lambda: np.asarray(repeats[0]).tobytes())


def pieces():
    twice(lambda x: jnp.split(x, SIZE), ready(jnp.arange(4 * SIZE, dtype=jnp.float32)))


def powers():
    twice(lambda x: [x**i for i in range(SIZE)], jnp.ones(4))


def error_characters():
    xs = [jnp.ones(4)] * SIZE
    xs[SIZE // 2] = jnp.ones(3)
    try:
        jax.vmap(lambda xs: xs)(xs)
    except ValueError as error:
        phases["characters"] = len(str(error))


globals()[CASE]()
print(json.dumps(phases))
