"""The cases of `shardax-bench --growth` in JAX: `jax_growth.py CASE SIZE` prints the cost of each phase as JSON."""

import gc
import json
import os
import resource
import sys
import time

CASE, SIZE = sys.argv[1], int(sys.argv[2])
DEVICES = {"devices": SIZE, "mapped_arrays": 8, "meshes": 8, "mesh_axes": 1 << SIZE if CASE == "mesh_axes" else 1}.get(CASE, 1)
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


def donated():
    f = jax.jit(lambda xs: [x * 2.0 for x in xs], donate_argnums=0)
    lowered = timed("lower", lambda: f.lower([row] * SIZE))
    timed("compile", lowered.compile)
    xs = ready(f([jnp.ones(4) * i for i in range(SIZE)]))

    def call():
        nonlocal xs
        xs = ready(f(xs))

    repeat("call", 5, call)


def added_arguments():
    f = jax.jit(lambda xs: sum(xs, start=jnp.zeros(4)))
    timed("compile", f.lower([row] * SIZE).compile)
    xs = [jnp.ones(4)] * SIZE
    ready(f(xs))
    repeat("call", 5, lambda: ready(f(xs)))


def results():
    @jax.jit
    def f(x):
        all = []
        for _ in range(SIZE):
            all.append(jnp.cos(x))
            x = jnp.sin(x)
        return all

    timed("compile", f.lower(row).compile)
    x = jnp.ones(4)
    ready(f(x))
    repeat("call", 5, lambda: ready(f(x)))


def exported():
    from jax import export

    f = timed("export", lambda: export.export(jax.jit(chain))(row))
    data = timed("serialize", f.serialize)
    timed("deserialize", lambda: export.deserialize(data))


def constants():
    def f(x):
        for i in range(SIZE):
            x = x * np.array([i, 1, 2, 3], np.float32) + 1.0
        return x

    timed("trace", lambda: jax.make_jaxpr(f)(row))
    lowered = timed("lower", lambda: jax.jit(f).lower(row))
    timed("compile", lowered.compile)


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
    program = timed("trace", lambda: jax.make_jaxpr(chain)(row))
    timed("print", lambda: len(str(program)))
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


def in_scan(inner):
    return lambda x: lax.scan(lambda x, y: (inner(x + y), None), x, jnp.ones(2))[0]


def in_while(inner):
    return lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, inner(jnp.sin(c[1]))), (0, x))[1]


def in_cond(inner):
    return lambda x: lax.cond(x.sum() > 0, lambda x: inner(jnp.sin(x)), lambda x: x * 2.0, x)


def in_checkpoint(inner):
    return jax.checkpoint(lambda x: inner(jnp.sin(x)))


def in_vmap(inner):
    return lambda x: jax.vmap(inner)(jnp.stack([x, x * 2.0])).sum(0)


def in_custom(inner):
    f = jax.custom_vjp(inner)
    f.defvjp(lambda x: (inner(x), x), lambda x, ct: (ct * jnp.cos(x),))
    return f


def in_jit(inner):
    f = jax.jit(inner)
    return lambda x: f(x) + f(x + 1.0)


KINDS = {
    "scan": in_scan,
    "cond": in_cond,
    "checkpoint": in_checkpoint,
    "vmap": in_vmap,
    "custom_vjp": in_custom,
    "jit": in_jit,
}
rows = jax.ShapeDtypeStruct((8, 4), jnp.float32)


def nested(around, depth):
    f = jnp.sin
    for i in range(depth):
        f = around[i % len(around)](f)
    return f


def gradient_of(f):
    return jax.grad(lambda x: f(x).sum())


def trace_nested(f):
    timed("trace", lambda: jax.make_jaxpr(f)(row))


def trace_gradient(f, phase="gradient"):
    timed(phase, lambda: jax.make_jaxpr(gradient_of(f))(row))


def trace_batch(f):
    timed("batch", lambda: jax.make_jaxpr(jax.vmap(f))(rows))


def nested_cond():
    f = nested([in_cond], SIZE)
    trace_nested(f)
    trace_gradient(f)
    inner = nested([in_cond], SIZE - 1)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    if SIZE <= 12:
        batched = jax.vmap(lambda flag, x: lax.cond(flag, inner, lambda x: x, x), in_axes=(None, 0))
        timed("batch", lambda: jax.make_jaxpr(batched)(flag, rows))


def nested_scan():
    f = nested([in_scan], SIZE)
    trace_nested(f)
    trace_gradient(f)
    trace_batch(f)


def nested_while():
    f = nested([in_while], SIZE)
    trace_nested(f)
    timed("forward mode", lambda: jax.make_jaxpr(lambda x: jax.jvp(f, (x,), (x,)))(row))
    trace_batch(f)


def nested_jit():
    f = nested([in_jit], SIZE)
    trace_nested(f)
    trace_gradient(f)
    trace_batch(f)
    lowered = timed("lower", lambda: jax.jit(lambda x: f(x)).lower(row))
    phases["characters"] = len(lowered.as_text())
    phases["characters of the gradient"] = len(jax.jit(gradient_of(f)).lower(row).as_text())


def nested_custom():
    trace_gradient(nested([in_custom], SIZE))


def nested_pairs():
    names = list(KINDS)
    for i, outer in enumerate(names):
        for inner in names[i + 1 :]:
            trace_gradient(nested([KINDS[outer], KINDS[inner]], SIZE), f"{outer}, {inner}")


def nested_kinds():
    f = nested(list(KINDS.values()), SIZE)
    trace_nested(f)
    trace_gradient(f)
    trace_batch(nested([in_scan, in_cond, in_checkpoint, in_vmap, in_while, in_jit], SIZE))
    timed("lower", lambda: jax.jit(f).lower(row))


def nested_vmap():
    f = lambda x: jnp.sin(x) * 2.0  # noqa: E731
    for _ in range(SIZE):
        f = jax.vmap(f)
    x = jax.ShapeDtypeStruct((2,) * SIZE, jnp.float32)
    timed("trace", lambda: jax.make_jaxpr(f)(x))
    timed("lower", lambda: jax.jit(f).lower(x))


def nested_checkpoint():
    trace_gradient(nested([in_checkpoint], SIZE))


def derivatives():
    f = lambda x: jnp.tanh(jnp.sin(x) * jnp.exp(x))  # noqa: E731
    for _ in range(SIZE):
        f = jax.grad(f)
    g = lambda x: jnp.tanh(jnp.sin(x) * jnp.exp(x))  # noqa: E731
    for _ in range(SIZE):
        g = lambda x, inner=g: jax.jvp(inner, (x,), (jnp.ones(()),))[1]  # noqa: E731
    x = jax.ShapeDtypeStruct((), jnp.float32)
    timed("forward mode", lambda: jax.make_jaxpr(g)(x))
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
    f = jax.pmap(lambda x: x * 2.0 + 100.0, axis_name="x")
    timed("first call", lambda: ready(f(x)))
    repeat("call", 20, lambda: ready(f(x)))


def mapped_arrays():
    mesh = jax.make_mesh((8,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    xs = jax.device_put([jnp.ones((8, 4)) for _ in range(SIZE)], sharding)
    f = jax.pmap(lambda xs: [x + 1.0 for x in xs], axis_name="x")
    timed("first call", lambda: ready(f(xs)))
    repeat("call", 5, lambda: ready(f(xs)))


def meshes():
    all = timed("make", lambda: [jax.make_mesh((8,), (f"x{i}",), (jax.sharding.AxisType.Auto,)) for i in range(SIZE)])
    f = jax.jit(lambda x: x * 2.0 + 1.0)

    def run():
        for i, mesh in enumerate(all):
            ready(f(jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec(f"x{i}")))))

    timed("calls", run)


def mesh_axes():
    names = tuple(f"x{i}" for i in range(SIZE))
    auto = (jax.sharding.AxisType.Auto,) * SIZE
    mesh = timed("make", lambda: jax.make_mesh((2,) * SIZE, names, auto))
    x = jax.device_put(jnp.ones((2,) * SIZE), NamedSharding(mesh, PartitionSpec(*names)))
    f = jax.jit(lambda x: (x * 2.0).sum() + x)
    lowered = timed("lower", lambda: f.lower(x))
    timed("compile", lowered.compile)
    ready(f(x))
    repeat("call", 3, lambda: ready(f(x)))


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


def elements():
    x, f = ready(jnp.arange(SIZE, dtype=jnp.float32)), jax.jit(lambda a, x: (a * x).sum())
    ready(f(x, 2.0))
    repeat("sum", 3, lambda: ready(f(x, 2.0)))
    shuffled, sort = ready(jnp.sin(x * 7919.0)), jax.jit(jnp.sort)
    if SIZE <= 10_000_000:
        ready(sort(shuffled))
        timed("sort", lambda: ready(sort(shuffled)))


def printed():
    x = ready(jnp.arange(SIZE, dtype=jnp.float32))
    repeat("print", 3, lambda: len(str(x)))


def to_host():
    repeats = [ready(jnp.ones(SIZE, jnp.uint8)) for _ in range(3)]
    repeat("to_vec", 3, lambda: np.array(repeats[0]))
    repeat("to_bytes", 3, lambda: np.asarray(repeats[0]).tobytes())


def pieces():
    twice(lambda x: jnp.split(x, SIZE), ready(jnp.arange(4 * SIZE, dtype=jnp.float32)))


def stacked():
    xs = [jnp.ones(4) * i for i in range(SIZE)]
    timed("first call", lambda: ready(jnp.stack(xs)))
    repeat("call", 3, lambda: ready(jnp.stack(xs)))


def updates():
    def update():
        x = jnp.zeros(SIZE)
        for i in range(SIZE):
            x = x.at[i].set(1.0)
        return ready(x)

    timed("first call", update)
    repeat("call", 3, update)


def einsum_operands():
    letters = "abcdefghijklmnopqrstuvwxyz"
    spec = ",".join(letters[i : i + 2] for i in range(SIZE)) + "->a" + letters[SIZE]
    xs = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * SIZE
    timed("trace", lambda: jax.make_jaxpr(lambda xs: jnp.einsum(spec, *xs))(xs))


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
phases["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps(phases))
