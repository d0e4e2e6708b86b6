"""The benchmark rows of `shardax-bench`, done by JAX, Flax and Optax: the peer that shardax is measured against.

    python bench/jax_bench.py --json out.json [--filter NAME]

writes `[{"name", "median_us", "min_us", "runs", "peak_mib", "first_loss"}]`, as the Rust binary does. What each row does, and the rules that
make the two sides comparable, stand in bench/README.md; change a row there, here and in the Rust binary together.
"""

import argparse
import gc
import itertools
import json
import logging
import os
import queue
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

DEVICES = 8
FILTER = "only the row NAME, or rows whose name contains it where none is called so"
BUDGET_S = float(os.environ.get("BENCH_SECONDS", 3))  # wall time that one row may spend in timed calls
MAX_RUNS = 3000
MIN_RUNS = 3

ROWS = {}
# Those whose calls are training steps, and return their losses.
STEPS = set()
# Rows that hold the clock themselves.
OWN_CLOCK = {}


def own_clock(run):
    """Registers a row that is given an empty folder, and returns median, minimum and count."""
    OWN_CLOCK[run.__name__] = lambda: in_folder(run)
    return run


def row(name, **parameters):
    """Registers a row. The function sets the work up and returns the callable to time, which must wait for its result."""

    def register(setup):
        ROWS[name] = (setup, parameters)
        return setup

    return register


def training_row(name, **parameters):
    """Measures a training, whose calls return their losses."""
    STEPS.add(name)
    return row(name, **parameters)


WARM_UP = 3

# `cuda` for the rows on GPUs.
PLATFORM = os.environ.get("JAX_PLATFORMS", "cpu")

# With BENCH_CLOCK=cpu the CPU time of all threads, which other processes hardly change.
now = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


def measure(call, warm_up=WARM_UP):
    """Median and minimum time of `call` in µs. Garbage collection stays off while the clock runs, as in `timeit`."""
    for _ in range(warm_up):
        call()
    gc.collect()
    gc.disable()
    try:
        times = []
        deadline = time.perf_counter() + BUDGET_S
        while len(times) < MAX_RUNS:
            start = now()
            call()
            times.append((now() - start) * 1e6)
            if time.perf_counter() > deadline and len(times) >= MIN_RUNS:
                break
    finally:
        gc.enable()
    return statistics.median(times), min(times), len(times)


def start_jax():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import jax

    jax.config.update("jax_platforms", PLATFORM)
    jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax


def waiting(function, *arguments):
    """A call of `function` that waits for all of its results: latency, not throughput."""
    import jax

    return lambda: jax.block_until_ready(function(*arguments))


def on_devices(n, axis_name, value, *, replicated=False):
    """`value` placed ahead of time: split along axis 0 over the first n devices, or copied to all of them."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[:n]), (axis_name,))
    return jax.device_put(value, NamedSharding(mesh, P() if replicated else P(axis_name)))


# Dispatch


@row("jit_tiny")
def jit_tiny():
    import jax
    import jax.numpy as jnp

    return waiting(jax.jit(lambda x: x * 2 + 1), jnp.arange(4, dtype=jnp.float32))


@row("jit_64_args")
def jit_64_args():
    import jax
    import jax.numpy as jnp

    arguments = [jnp.full((4,), i, jnp.float32) for i in range(64)]
    return waiting(jax.jit(lambda *xs: tuple(x + 1 for x in xs)), *arguments)


@row("args_10k_dispatch")
def args_10k_dispatch():
    import jax
    import jax.numpy as jnp

    arguments = [jnp.full((4,), i, jnp.float32) for i in range(10_000)]
    return waiting(jax.jit(lambda xs: xs[0] + 1, keep_unused=True), arguments)


def scale(x):
    return x * 2 + 100


def rows_of_four():
    import numpy as np

    return on_devices(DEVICES, "i", np.arange(DEVICES * 4, dtype=np.float32).reshape(DEVICES, 4))


@row("pmap_scale_8")
def pmap_scale_8():
    import jax

    return waiting(jax.pmap(scale, axis_name="i"), rows_of_four())


@row("pmap_psum_8")
def pmap_psum_8():
    import jax

    def scale_and_sum(x):
        scaled = x * 2
        total = jax.lax.psum(scaled.sum(), "i")
        return scaled, total

    return waiting(jax.pmap(scale_and_sum, axis_name="i"), rows_of_four())


@row("shard_map_scale_8")
def shard_map_scale_8():
    import jax
    from jax.sharding import PartitionSpec as P

    x = rows_of_four()
    return waiting(jax.jit(jax.shard_map(scale, mesh=x.sharding.mesh, in_specs=P("i"), out_specs=P("i"))), x)


@row("psum_16mib_8")
def psum_16mib_8():
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    x = on_devices(DEVICES, "i", np.ones((DEVICES, 4 << 20), np.float32))
    total = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=x.sharding.mesh, in_specs=P("i"), out_specs=P())
    return waiting(jax.jit(total), x)


# Arithmetic on one device


def uniform(shape, seed=0):
    import jax.numpy as jnp
    import numpy as np

    return jnp.asarray(np.random.default_rng(seed).random(shape, np.float32) * 2 - 1)


@row("matmul_2048")
def matmul_2048():
    import jax
    import jax.numpy as jnp

    return waiting(jax.jit(jnp.matmul), uniform((2048, 2048), 0), uniform((2048, 2048), 1))


@row("fused_elementwise_16m")
def fused_elementwise_16m():
    import jax
    import jax.numpy as jnp

    return waiting(jax.jit(lambda a: jnp.tanh(a) * a + jnp.exp(-a * a)), uniform((16 << 20,)))


@row("reduce_axis0_16m")
def reduce_axis0_16m():
    import jax

    return waiting(jax.jit(lambda a: a.sum(axis=0)), uniform((4096, 4096)))


@row("matmul_f64_1024")
def matmul_f64_1024():
    import jax
    import jax.numpy as jnp
    import numpy as np

    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(uniform((1024, 1024), seed), np.float64)) for seed in range(2)]
        product = jax.jit(jnp.matmul).lower(*wide).compile()
    return waiting(product, *wide)


def weights(rows, name):
    @row(f"weights_{name}_{rows}")
    def _():
        import jax
        import jax.numpy as jnp

        dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}[name]
        x, w = uniform((rows, 4096), 0), uniform((4096, 8192), 1)
        w = (w * 127 if name == "int8" else w).astype(dtype)
        if name == "bf16":
            return waiting(jax.jit(lambda x, w: x.astype(dtype) @ w), x, w)
        return waiting(jax.jit(lambda x, w: x @ w.astype(jnp.float32)), x, w)


for rows in (1, 8):
    for name in ("f32", "bf16", "int8"):
        weights(rows, name)


@row("batched_matmul")
def batched_matmul():
    import jax
    import jax.numpy as jnp

    return waiting(jax.jit(jnp.matmul), uniform((64, 128, 64), 0), uniform((64, 64, 128), 1))


def slope(f, *shape):
    import jax

    return waiting(jax.jit(jax.grad(lambda x: (f(x) ** 2).sum())), uniform(shape))


@row("softmax_grad")
def softmax_grad():
    import jax

    return slope(jax.nn.softmax, 2048, 1024)


@row("layernorm_grad")
def layernorm_grad():
    return slope(lambda x: (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-6) ** 0.5, 2048, 1024)


@row("embedding_grad")
def embedding_grad():
    import jax
    import jax.numpy as jnp

    rows = jnp.arange(4096) * 7919 % 32768
    return waiting(jax.jit(jax.grad(lambda table, rows: (table[rows] ** 2).sum())), uniform((32768, 256)), rows)


@row("scan_1000")
def scan_1000():
    import jax
    import jax.numpy as jnp

    def run(w, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(w @ x), None), x, None, 1000)[0]

    return waiting(jax.jit(run), uniform((64, 64), 0), uniform((64,), 1))


@row("conv_3x3_fwd", kernel=3)
@row("conv_3x3_grad", kernel=3, gradient=True)
@row("conv_1x1_fwd", kernel=1)
@row("conv_1x1_grad", kernel=1, gradient=True)
@row("conv_strided_fwd", kernel=3, stride=2)
@row("conv_strided_grad", kernel=3, stride=2, gradient=True)
@row("conv_depthwise_fwd", kernel=3, groups=64)
@row("conv_depthwise_grad", kernel=3, groups=64, gradient=True)
def conv(kernel, stride=1, groups=1, gradient=False):
    import jax

    def f(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    x, w = uniform((32, 32, 32, 64), 0), uniform((kernel, kernel, 64 // groups, 64), 1)
    return waiting(jax.jit(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)) if gradient else f), x, w)


# Single operations


def operation(name, *shapes):
    """Registers the row of a function of arrays of these shapes."""

    def register(f):
        def setup():
            import jax

            return waiting(jax.jit(f), *(uniform(shape, seed) for seed, shape in enumerate(shapes)))

        ROWS[name] = (setup, {})
        return f

    return register


LONG = (16 << 20,)
IMAGES = (32, 32, 32, 64)


@operation("cumsum_16m", LONG)
def cumsum(x):
    return x.cumsum(0)


@operation("sort_16m", LONG)
def sort(x):
    return x.sort()


@operation("argsort_16m", LONG)
def argsort(x):
    return x.argsort()


@operation("top_k_16m", LONG)
def top_k(x):
    import jax

    return jax.lax.top_k(x, 64)[0]


@row("normal_16m")
def normal():
    import jax

    return waiting(jax.jit(lambda key: jax.random.normal(key, LONG)), jax.random.key(0))


def rows_1m():
    import jax.numpy as jnp

    # The product wraps around on both sides.
    return jnp.arange(1 << 20) * 7919 % (1 << 18)


@row("gather_1m")
def gather():
    import jax

    return waiting(jax.jit(lambda table, rows: table[rows]), uniform((1 << 18, 16)), rows_1m())


@row("scatter_add_1m")
def scatter_add():
    import jax

    f = jax.jit(lambda table, rows, x: table.at[rows].add(x))
    return waiting(f, uniform((1 << 18, 16)), rows_1m(), uniform((1 << 20, 16), 1))


@operation("einsum_scores", (8, 16, 256, 64), (8, 16, 256, 64))
def einsum_scores(q, k):
    import jax.numpy as jnp

    return jnp.einsum("bhqd,bhkd->bhqk", q, k)


@operation("fft_1m", (1 << 20,))
def fft(x):
    import jax.numpy as jnp

    return jnp.abs(jnp.fft.fft(x))


@operation("dct_1m", (1024, 1024))
def dct(x):
    import jax

    return jax.scipy.fft.dct(x)


def definite(x):
    import jax.numpy as jnp

    return x @ x.T / 512 + jnp.eye(512)


@operation("cholesky_512", (512, 512))
def cholesky(x):
    import jax.numpy as jnp

    return jnp.linalg.cholesky(definite(x))


@operation("qr_512", (512, 512))
def qr(x):
    import jax.numpy as jnp

    return jnp.linalg.qr(x)[1]


@operation("svd_512", (512, 512))
def svd(x):
    import jax.numpy as jnp

    return jnp.linalg.svd(x)[1]


@operation("eigh_512", (512, 512))
def eigh(x):
    import jax.numpy as jnp

    return jnp.linalg.eigh(definite(x))[0]


@row("bcoo_matmul")
def bcoo_matmul():
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    dense = uniform((4096, 4096))
    a = sparse.BCOO.fromdense(jnp.where(jnp.abs(dense) < 0.01, dense, 0))
    return waiting(jax.jit(lambda a, x: a @ x), a, uniform((4096, 64), 1))


@operation("max_pool_grad", IMAGES)
def max_pool_grad(x):
    import jax
    from flax import nnx

    return jax.grad(lambda x: (nnx.max_pool(x, (2, 2), (2, 2)) ** 2).sum())(x)


@operation("avg_pool_3x3", IMAGES)
def avg_pool(x):
    from flax import nnx

    return nnx.avg_pool(x, (3, 3), (1, 1), "SAME")


@row("conv_grouped", groups=4)
@row("conv_dilated", dilation=2)
@row("conv_transposed", transposed=True)
def other_conv(groups=1, dilation=1, transposed=False):
    import jax

    numbers = ("NHWC", "HWIO", "NHWC")

    def f(x, w):
        if transposed:
            return jax.lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=numbers)
        options = {"rhs_dilation": (dilation, dilation), "dimension_numbers": numbers, "feature_group_count": groups}
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", **options)

    return waiting(jax.jit(f), uniform(IMAGES), uniform((3, 3, 64 // groups, 64), 1))


# Training steps


def make_cnn():
    from flax import nnx

    class Cnn(nnx.Module):
        def __init__(self, rngs):
            self.conv1 = nnx.Conv(3, 32, kernel_size=(3, 3), rngs=rngs)
            self.conv2 = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
            self.dense = nnx.Linear(64 * 8 * 8, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.max_pool(nnx.relu(self.conv1(x)), window_shape=(2, 2), strides=(2, 2))
            x = nnx.max_pool(nnx.relu(self.conv2(x)), window_shape=(2, 2), strides=(2, 2))
            return self.dense(x.reshape(x.shape[0], -1))

    return Cnn(nnx.Rngs(0))


def make_mlp():
    from flax import nnx

    class Mlp(nnx.Module):
        def __init__(self, rngs):
            self.layer1 = nnx.Linear(784, 1024, rngs=rngs)
            self.layer2 = nnx.Linear(1024, 1024, rngs=rngs)
            self.layer3 = nnx.Linear(1024, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.layer1(x))
            x = nnx.relu(self.layer2(x))
            return self.layer3(x)

    return Mlp(nnx.Rngs(0))


class Training:
    """A data-parallel training step over n devices: the state replicated and donated, the batch split along axis 0."""

    def __init__(self, n, model, optimizer, batch, features):
        import jax
        import numpy as np
        from flax import nnx

        self.n = n
        self.optimizer = optimizer
        self.graph, params = nnx.split(model)
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        print(f"  {count} parameters", file=sys.stderr)
        self.state = on_devices(n, "batch", (params, optimizer.init(params)), replicated=True)
        x = jax.random.uniform(jax.random.key(0), (n, batch // n, *features))
        y = (np.arange(batch) % 10).astype(np.int32).reshape(n, batch // n)
        self.batch = on_devices(n, "batch", (x, y))

    def pmapped(self):
        """A fresh `pmap` of a fresh function, so that no trace or executable of an earlier one is reused."""
        import jax
        import jax.numpy as jnp
        import optax
        from flax import nnx

        def step(state, x, y):
            params, optimizer_state = state

            def loss_of(params):
                logits = nnx.merge(self.graph, params)(x)
                loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
                return loss, (logits.argmax(-1) == y).astype(jnp.float32).mean()

            (loss, accuracy), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
            grads = jax.lax.pmean(grads, "batch")
            loss, accuracy = jax.lax.pmean((loss, accuracy), "batch")
            updates, optimizer_state = self.optimizer.update(grads, optimizer_state, params)
            return (optax.apply_updates(params, updates), optimizer_state), loss, accuracy

        return jax.pmap(
            step,
            axis_name="batch",
            in_axes=(None, 0, 0),
            out_axes=None,
            donate_argnums=(0,),
            devices=jax.devices()[: self.n],
        )

    def stepping(self):
        import jax

        step = self.pmapped()

        def call():
            self.state, loss, accuracy = step(self.state, *self.batch)
            jax.block_until_ready((self.state, loss, accuracy))
            return loss

        return call


def cnn_training(n):
    import optax

    return Training(n, make_cnn(), optax.adam(1e-3), 128, (32, 32, 3))


@training_row("cnn_step_1", n=1)
@training_row("cnn_step_2", n=2)
@training_row("cnn_step_8", n=8)
def cnn_step(n):
    return cnn_training(n).stepping()


@training_row("mlp_step_1", n=1)
@training_row("mlp_step_8", n=8)
def mlp_step(n):
    import optax

    return Training(n, make_mlp(), optax.sgd(0.1), 512, (784,)).stepping()


def make_resnet():
    from flax import nnx

    class ConvNorm(nnx.Module):
        def __init__(self, start, end, size, stride, rngs):
            init = nnx.initializers.he_normal()
            options = {"strides": stride, "padding": size // 2, "use_bias": False, "kernel_init": init}
            self.conv = nnx.Conv(start, end, (size, size), rngs=rngs, **options)
            self.norm = nnx.BatchNorm(end, momentum=0.9, use_running_average=False, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.conv(x))

    class Block(nnx.Module):
        def __init__(self, start, end, stride, rngs):
            self.first = ConvNorm(start, end, 3, stride, rngs)
            self.second = ConvNorm(end, end, 3, 1, rngs)
            self.shortcut = ConvNorm(start, end, 1, stride, rngs) if start != end else lambda x: x

        def __call__(self, x):
            return nnx.relu(self.second(nnx.relu(self.first(x))) + self.shortcut(x))

    class ResNet(nnx.Module):
        def __init__(self, rngs):
            self.stem = ConvNorm(3, 64, 3, 1, rngs)
            stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
            sizes = [size for start, end, stride in stages for size in ((start, end, stride), (end, end, 1))]
            self.blocks = nnx.List([Block(*size, rngs) for size in sizes])
            self.dense = nnx.Linear(512, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.stem(x))
            for block in self.blocks:
                x = block(x)
            return self.dense(x.mean((1, 2)))

    return ResNet(nnx.Rngs(0))


@training_row("resnet18_step_1")
def resnet18_step_1():
    import jax
    import numpy as np
    import optax
    from flax import nnx

    graph, params, rest = nnx.split(make_resnet(), nnx.Param, ...)
    optimizer = optax.sgd(0.1)
    state = (params, rest, optimizer.init(params))
    x = jax.random.uniform(jax.random.key(0), (32, 32, 32, 3))
    y = (np.arange(32) % 10).astype(np.int32)

    def step(state, x, y):
        params, rest, optimizer_state = state

        def loss_of(params):
            model = nnx.merge(graph, params, jax.tree.map(lambda x: x, rest))
            loss = optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
            return loss, nnx.split(model, nnx.Param, ...)[2]

        (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), rest, optimizer_state), loss

    step = jax.jit(step, donate_argnums=(0,))

    def call():
        nonlocal state
        state, loss = step(state, x, y)
        jax.block_until_ready((state, loss))
        return loss

    return call


def make_block():
    """The class of the GPT's blocks."""
    from flax import nnx

    features = Gpt.FEATURES

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attention_norm = nnx.LayerNorm(features, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(Gpt.HEADS, features, decode=False, rngs=rngs)
            self.mlp_norm = nnx.LayerNorm(features, rngs=rngs)
            self.up = nnx.Linear(features, 4 * features, rngs=rngs)
            self.down = nnx.Linear(4 * features, features, rngs=rngs)

        def __call__(self, x, mask=None, decode=False):
            x = x + self.attention(self.attention_norm(x), mask=mask, decode=decode)
            return x + self.down(nnx.gelu(self.up(self.mlp_norm(x))))

    return Block


class Gpt:
    """The GPT of bench/src/gpt.rs in Flax, its optimizer, and its batch."""

    FEATURES, VOCABULARY, HEADS, LAYERS, ROWS, LENGTH = 256, 256, 8, 6, 8, 256

    def __init__(self):
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax
        from flax import nnx

        features, length = self.FEATURES, self.LENGTH
        Block = make_block()

        class Model(nnx.Module):
            def __init__(self, rngs):
                self.tokens = nnx.Embed(Gpt.VOCABULARY, features, rngs=rngs)
                self.positions = nnx.Embed(length, features, rngs=rngs)
                self.blocks = nnx.List([Block(rngs) for _ in range(Gpt.LAYERS)])
                self.norm = nnx.LayerNorm(features, rngs=rngs)
                self.head = nnx.Linear(features, Gpt.VOCABULARY, rngs=rngs)

            def __call__(self, tokens):
                x = self.tokens(tokens) + self.positions(jnp.arange(length))
                mask = nnx.make_causal_mask(tokens)
                for block in self.blocks:
                    x = block(x, mask)
                return self.head(self.norm(x))

            def next(self, token, position):
                x = self.tokens(token) + self.positions(position)
                for block in self.blocks:
                    x = block(x, decode=True)
                return self.head(self.norm(x)).argmax(-1).astype(jnp.int32)

        self.model = Model(nnx.Rngs(0))
        self.graph, self.params = nnx.split(self.model)
        matrices = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(),
            optax.add_decayed_weights(0.1, matrices),
            optax.scale_by_learning_rate(1e-3),
        )
        self.state = (self.params, self.optimizer.init(self.params))
        rows, columns = np.mgrid[: self.ROWS, : self.LENGTH + 1]
        tokens = ((rows * 31 + columns * 7) % self.VOCABULARY).astype(np.int32)
        self.batch = tokens[:, :-1], tokens[:, 1:]

    def step(self, state, x, y, reduce=lambda x: x):
        import jax
        import optax
        from flax import nnx

        params, optimizer_state = state

        def loss_of(params):
            logits = nnx.merge(self.graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, grads = reduce(jax.value_and_grad(loss_of)(params))
        updates, optimizer_state = self.optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss

    def stepping(self, step, state, batch):
        import jax

        def call():
            nonlocal state
            state, loss = step(state, *batch)
            jax.block_until_ready((state, loss))
            return loss

        return call

    def mapped(self):
        """A fresh `pmap` over eight devices."""
        import jax

        def step(state, x, y):
            return self.step(state, x, y, lambda both: jax.lax.pmean(both, "batch"))

        return jax.pmap(step, axis_name="batch", in_axes=(None, 0, 0), out_axes=None, donate_argnums=(0,))

    def mapped_arguments(self):
        batch = tuple(x.reshape(DEVICES, self.ROWS // DEVICES, self.LENGTH) for x in self.batch)
        return on_devices(DEVICES, "batch", self.state, replicated=True), on_devices(DEVICES, "batch", batch)

    def split(self):
        """Parameters and batch split over four devices, heads and hidden features over two."""
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "model"))

        def spec(path, x):
            name = jax.tree_util.keystr(path)
            if x.ndim < 2:
                return P()
            if "['query']" in name or "['key']" in name or "['value']" in name:
                return P("fsdp", "model") if "kernel" in name else P("model")
            if "['out']" in name:
                return P("model", None, "fsdp")
            if "['up']" in name:
                return P("fsdp", "model")
            if "['down']" in name:
                return P("model", "fsdp")
            return P("fsdp") if "['head']" in name else P(None, "fsdp")

        place = lambda path, x: jax.device_put(x, NamedSharding(mesh, spec(path, x)))
        state = jax.tree_util.tree_map_with_path(place, self.state)
        return state, jax.device_put(self.batch, NamedSharding(mesh, P("fsdp")))


@training_row("gpt_step_1")
def gpt_step_1():
    import jax

    gpt = Gpt()
    return gpt.stepping(jax.jit(gpt.step, donate_argnums=(0,)), gpt.state, gpt.batch)


@training_row("gpt_pmap_8")
def gpt_pmap_8():
    gpt = Gpt()
    return gpt.stepping(gpt.mapped(), *gpt.mapped_arguments())


@training_row("gpt_fsdp_tp_8")
def gpt_fsdp_tp_8():
    import jax

    gpt = Gpt()
    state, batch = gpt.split()
    shardings = jax.tree.map(lambda x: x.sharding, state), None
    return gpt.stepping(jax.jit(gpt.step, donate_argnums=(0,), out_shardings=shardings), state, batch)


def causal_attention(q, k, v):
    import jax

    on_gpu = PLATFORM in ("cuda", "gpu")
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if on_gpu else "xla")


@row("attention_bf16")
def attention_bf16():
    import jax
    import jax.numpy as jnp

    def loss(q, k, v):
        return jnp.square(causal_attention(q, k, v).astype(jnp.float32)).sum()

    arrays = [uniform((4, 2048, 16, 64), seed).astype(jnp.bfloat16) for seed in range(3)]
    return waiting(jax.jit(jax.grad(loss, argnums=(0, 1, 2))), *arrays)


@training_row("gpt2_step_bf16")
def gpt2_step_bf16():
    """The GPT of bench/src/accelerators.rs in Flax."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    vocabulary, length, features, heads, layers, rows = 50304, 1024, 768, 12, 12, 8

    # Embeddings compute in the dtype that their parameters were made in, if no other is given.
    class Block(nnx.Module):
        def __init__(self, options):
            self.attention_norm = nnx.LayerNorm(features, **options)
            attention = lambda q, k, v, **_: causal_attention(q, k, v)
            self.attention = nnx.MultiHeadAttention(heads, features, decode=False, attention_fn=attention, **options)
            self.mlp_norm = nnx.LayerNorm(features, **options)
            self.up = nnx.Linear(features, 4 * features, **options)
            self.down = nnx.Linear(4 * features, features, **options)

        def __call__(self, x):
            x = x + self.attention(self.attention_norm(x))
            return x + self.down(nnx.gelu(self.up(self.mlp_norm(x))))

    class Model(nnx.Module):
        def __init__(self, options):
            self.tokens = nnx.Embed(vocabulary, features, **options)
            self.positions = nnx.Embed(length, features, **options)
            self.blocks = nnx.List([Block(options) for _ in range(layers)])
            self.norm = nnx.LayerNorm(features, **options)
            self.head = nnx.Linear(features, vocabulary, **options)

        def __call__(self, tokens):
            x = self.tokens(tokens) + self.positions(jnp.arange(length))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    graph, params = nnx.split(Model({"dtype": jnp.bfloat16, "rngs": nnx.Rngs(0)}))
    optimizer = optax.adamw(1e-3)
    state = (params, optimizer.init(params))
    places = np.mgrid[:rows, : length + 1]
    tokens = jnp.asarray((places[0] * 31 + places[1] * 7) % vocabulary, jnp.int32)

    def step(state, x, y):
        params, optimizer_state = state

        def loss_of(params):
            logits = nnx.merge(graph, jax.tree.map(lambda p: p.astype(jnp.bfloat16), params))(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss

    step = jax.jit(step, donate_argnums=(0,))

    def call():
        nonlocal state
        state, loss = step(state, tokens[:, :-1], tokens[:, 1:])
        jax.block_until_ready((state, loss))
        return loss

    return call


@row("gpt_decode_8")
def gpt_decode_8():
    return gpt_decode(8)


@row("gpt_decode")
def gpt_decode(batch=1):
    import jax
    import jax.numpy as jnp
    from flax import nnx

    model = Gpt().model
    for block in model.blocks:
        block.attention.init_cache((batch, Gpt.LENGTH, Gpt.FEATURES))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def generate(params, rest, first):
        def step(carry, position):
            rest, token = carry
            model = nnx.merge(graph, params, rest)
            token = model.next(token, position)
            return (nnx.split(model, nnx.Param, ...)[2], token), token

        return jax.lax.scan(step, (rest, first), jnp.arange(Gpt.LENGTH - 1))[1]

    return waiting(jax.jit(generate), params, rest, jnp.zeros((batch, 1), jnp.int32))


# Before the first step


@row("gpt_trace_lower")
def gpt_trace_lower():
    gpt = Gpt()
    state, batch = gpt.mapped_arguments()
    return lambda: gpt.mapped().lower(state, *batch)


@row("cnn_trace_lower")
def cnn_trace_lower():
    training = cnn_training(8)
    return lambda: training.pmapped().lower(training.state, *training.batch)


def summary(times):
    times = times[1:]  # the first one warms caches
    return statistics.median(times), min(times), len(times)


def cnn_compile():
    """Times only the compilation; what is compiled is traced and lowered afresh, because a `Lowered` keeps its result."""
    start_jax()
    training = cnn_training(8)
    times = []
    deadline = time.perf_counter() + BUDGET_S
    while len(times) < 1 + MIN_RUNS or time.perf_counter() < deadline:
        lowered = training.pmapped().lower(training.state, *training.batch)
        start = now()
        lowered.compile()
        times.append((now() - start) * 1e6)
    return summary(times)


def gpt_compile():
    start_jax()
    gpt, times = Gpt(), []
    state, batch = gpt.mapped_arguments()
    while len(times) < 1 + MIN_RUNS:
        lowered = gpt.mapped().lower(state, *batch)
        start = now()
        lowered.compile()
        times.append((now() - start) * 1e6)
    return summary(times)


DEEP = 48


def loss_of_stack(x, remat=False):
    """The loss of a loop over 48 blocks, and their parameters; with `remat` the backward pass computes each block again."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    mask = nnx.make_causal_mask(jnp.ones((1, Gpt.LENGTH)))
    graph, params = nnx.split(nnx.vmap(make_block())(nnx.Rngs(0).fork(split=DEEP)))

    def loss(params):
        one = lambda x, params: (nnx.merge(graph, params)(x, mask), None)
        one = jax.checkpoint(one, prevent_cse=False) if remat else one
        return (jax.lax.scan(one, x, params)[0] ** 2).mean()

    return loss, params


@row("memory_blocks")
@row("memory_blocks_remat", remat=True)
def memory_blocks(remat=False):
    import jax
    import jax.numpy as jnp

    loss, params = loss_of_stack(jnp.ones((1, Gpt.LENGTH, Gpt.FEATURES)), remat)
    return waiting(jax.jit(jax.grad(loss)), params)


@row("memory_update")
@row("memory_update_donated", donated=True)
def memory_update(donated=False):
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda w, slope: w - slope * 0.1, donate_argnums=(0,) if donated else ())
    w, slope = jnp.ones(64 << 20), jnp.ones(64 << 20)

    def call():
        nonlocal w
        w = jax.block_until_ready(step(w, slope))

    return call


def compile_48_layers(scanned=False):
    jax = start_jax()
    import jax.numpy as jnp
    from flax import nnx

    x = jnp.ones((1, Gpt.LENGTH, Gpt.FEATURES))
    if scanned:
        loss, params = loss_of_stack(x)
    else:
        deep, mask, Block = DEEP, nnx.make_causal_mask(jnp.ones((1, Gpt.LENGTH))), make_block()
        graph, params = nnx.split(nnx.List([Block(nnx.Rngs(i)) for i in range(deep)]))

        def loss(params):
            y = x
            for block in nnx.merge(graph, params):
                y = block(y, mask)
            return (y**2).mean()

    times = []
    for _ in range(1 + 1):
        lowered = jax.jit(lambda params: jax.grad(loss)(params)).lower(params)
        start = now()
        lowered.compile()
        times.append((now() - start) * 1e6)
    return summary(times)


# Parts around a training: Orbax, and NumPy on a thread


MIB = 1 << 20
ARRAYS = 16


def saved_bytes():
    """The amount that is saved: `BENCH_MIB` (1024)."""
    return max(int(os.environ.get("BENCH_MIB", 1024)), ARRAYS) * MIB


def saved_tree(seed=0):
    """Random numbers, split over all devices."""
    import jax
    import jax.numpy as jnp

    shape = (saved_bytes() // ARRAYS // 4096, 1024)
    arrays = [jax.random.bits(jax.random.key(seed + i), shape, jnp.uint32) for i in range(ARRAYS)]
    return jax.block_until_ready([on_devices(DEVICES, "x", x) for x in arrays])


def measure_parts(once, least=MIN_RUNS):
    """Calls `once`, which returns a time in µs, at least so often, and until the budget is spent."""
    times = []
    deadline = time.perf_counter() + BUDGET_S
    while len(times) < least or (time.perf_counter() < deadline and len(times) < MAX_RUNS):
        times.append(once())
    return statistics.median(times), min(times), len(times)


def timed(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def in_folder(run):
    """Runs with an empty folder."""
    start_jax()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        return run(folder)


@own_clock
def checkpoint_save(folder):
    import orbax.checkpoint as ocp

    tree, path = saved_tree(), os.path.join(folder, "x")
    checkpointer = ocp.StandardCheckpointer()

    def once():
        def save():
            checkpointer.save(path, tree)
            checkpointer.wait_until_finished()

        took = timed(save)
        shutil.rmtree(path)
        return took

    return measure_parts(once)


@own_clock
def checkpoint_restore(folder):
    import jax
    import orbax.checkpoint as ocp

    tree, path = saved_tree(), os.path.join(folder, "x")
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(path, tree)
    checkpointer.wait_until_finished()
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
    return measure_parts(lambda: timed(lambda: jax.block_until_ready(checkpointer.restore(path, like))))


def orbax_manager(folder):
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=True)
    return ocp.CheckpointManager(folder, options=options), lambda tree: ocp.args.StandardSave(tree)


@own_clock
def checkpoint_stall(folder):
    tree = saved_tree()
    manager, save = orbax_manager(folder)
    steps = iter(range(1, MAX_RUNS))

    def once():
        took = timed(lambda: manager.save(next(steps), args=save(tree)))
        manager.wait_until_finished()
        return took

    return measure_parts(once)


@own_clock
def step_while_saving(folder):
    import jax
    import jax.numpy as jnp

    tree = saved_tree()
    manager, save = orbax_manager(folder)
    following = jax.jit(lambda x: x + 1)
    x, step = jnp.zeros(1024), 0

    def once():
        nonlocal x, step
        if step % 50 == 0:
            manager.save(step, args=save(tree))
        step += 1
        start = time.perf_counter()
        x = jax.block_until_ready(following(x))
        time.sleep(0.02)
        return (time.perf_counter() - start) * 1e6

    result = measure_parts(once, 150)
    manager.close()
    return result


def write_file(path, chunk):
    with open(path, "wb", buffering=0) as file:
        for _ in range(saved_bytes() // len(chunk)):
            file.write(chunk)
        os.fsync(file.fileno())


@own_clock
def disk_write(folder):
    chunk, path = os.urandom(4 * MIB), os.path.join(folder, "x")
    return measure_parts(lambda: timed(lambda: write_file(path, chunk)))


@own_clock
def disk_read(folder):
    path, into = os.path.join(folder, "x"), bytearray(4 * MIB)
    write_file(path, os.urandom(4 * MIB))

    def read():
        with open(path, "rb", buffering=0) as file:
            while file.readinto(into):
                pass

    return measure_parts(lambda: timed(read))


@own_clock
def data_prefetch(folder):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    path = os.path.join(folder, "text")
    write_file(path, os.urandom(4 * MIB))
    text = np.memmap(path, np.uint8, "r")
    order = np.random.default_rng(0).permutation(len(text) // 4096)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    batches = queue.Queue(4)

    def read():
        for batch in itertools.count():
            chosen = order.take(range(batch * 256, batch * 256 + 256), mode="wrap")
            windows = np.stack([text[i * 4096 : (i + 1) * 4096] for i in chosen]).astype(np.int32)
            batches.put(jax.device_put(windows, rows))

    threading.Thread(target=read, daemon=True).start()

    def step():
        batches.get()
        time.sleep(0.02)

    return measure(step)


@own_clock
def init_sharded(folder):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    side = (saved_bytes() // ARRAYS // 4096, 1024)
    keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(ARRAYS)]
    init = jax.jit(lambda: [jax.random.normal(key, side) for key in keys], out_shardings=rows).lower().compile()
    memory = init.memory_analysis()
    held = memory.output_size_in_bytes // MIB, memory.temp_size_in_bytes // MIB
    print("  of {} MiB a device holds {} of results and {} beside them".format(saved_bytes() // MIB, *held), file=sys.stderr)
    return measure(lambda: jax.block_until_ready(init()))


def first_result(what="result"):
    """From spawning a process to the line that it prints: imports, 8 devices, and `child`."""
    times = []
    for _ in range(1 + MIN_RUNS):
        start = time.perf_counter()
        with subprocess.Popen([sys.executable, __file__, "--child", what], stdout=subprocess.PIPE) as process:
            line = process.stdout.readline()
            times.append((time.perf_counter() - start) * 1e6)
        if process.returncode != 0 or not line:
            raise RuntimeError("the child process failed")
    return summary(times)


def child(what):
    """A GPT's first step, or `pmap` of `scale` on host values."""
    jax = start_jax()
    import numpy as np

    if what == "step":
        gpt = Gpt()
        _, loss = jax.jit(gpt.step, donate_argnums=(0,))(gpt.state, *gpt.batch)
        print(float(loss), flush=True)
        return

    x = np.arange(DEVICES * 4, dtype=np.float32).reshape(DEVICES, 4)
    print(np.asarray(jax.pmap(scale, axis_name="i")(x)).tolist(), flush=True)


# Those of shardax that find compiled programs on disk stand beside JAX as it comes, which
# compiles.
OWN_CLOCK.update(
    cnn_compile=cnn_compile,
    cnn_compile_warm=cnn_compile,
    gpt_compile=gpt_compile,
    first_result=first_result,
    first_result_warm=first_result,
    compile_48_layers=compile_48_layers,
    compile_48_layers_scanned=lambda: compile_48_layers(scanned=True),
    second_start_gpt=lambda: first_result("step"),
)

NAMES = [
    "jit_tiny",
    "jit_64_args",
    "args_10k_dispatch",
    "pmap_scale_8",
    "pmap_psum_8",
    "shard_map_scale_8",
    "psum_16mib_8",
    "matmul_2048",
    "fused_elementwise_16m",
    "reduce_axis0_16m",
    "matmul_f64_1024",
    "batched_matmul",
    *(f"weights_{dtype}_{rows}" for rows in (1, 8) for dtype in ("f32", "bf16", "int8")),
    "softmax_grad",
    "layernorm_grad",
    "embedding_grad",
    "scan_1000",
    *(f"conv_{kind}_{what}" for kind in ("3x3", "1x1", "strided", "depthwise") for what in ("fwd", "grad")),
    "cumsum_16m",
    "sort_16m",
    "argsort_16m",
    "top_k_16m",
    "normal_16m",
    "gather_1m",
    "scatter_add_1m",
    "einsum_scores",
    "fft_1m",
    "dct_1m",
    "cholesky_512",
    "qr_512",
    "svd_512",
    "eigh_512",
    "bcoo_matmul",
    "max_pool_grad",
    "avg_pool_3x3",
    "conv_grouped",
    "conv_dilated",
    "conv_transposed",
    "cnn_step_1",
    "cnn_step_2",
    "cnn_step_8",
    "mlp_step_1",
    "mlp_step_8",
    "resnet18_step_1",
    "gpt_step_1",
    "gpt_pmap_8",
    "gpt_fsdp_tp_8",
    "gpt_trace_lower",
    "gpt_compile",
    "gpt_decode",
    "gpt_decode_8",
    "compile_48_layers",
    "compile_48_layers_scanned",
    "memory_blocks",
    "memory_blocks_remat",
    "memory_update",
    "memory_update_donated",
    "cnn_trace_lower",
    "cnn_compile",
    "cnn_compile_warm",
    "checkpoint_save",
    "checkpoint_restore",
    "checkpoint_stall",
    "step_while_saving",
    "disk_write",
    "disk_read",
    "data_prefetch",
    "init_sharded",
    "first_result",
    "first_result_warm",
    "second_start_gpt",
]


def chosen(names, wanted):
    """The row of this name, or those whose names contain it where none is called so."""
    return [wanted] if wanted in names else [name for name in names if wanted in name]


# Rows of a size for GPUs and TPUs, which run on CPU only if they are named.
ON_ACCELERATORS = ["attention_bf16", "gpt2_step_bf16"]


def main():
    parser = argparse.ArgumentParser(description="The benchmark rows, done by JAX.")
    parser.add_argument("--json", metavar="FILE", help="where the results go (default: standard output)")
    parser.add_argument("--filter", metavar="NAME", default="", help=FILTER)
    parser.add_argument("--list", action="store_true", help="print the row names and stop")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()

    on_cpu = PLATFORM == "cpu" and options.filter not in ON_ACCELERATORS
    names = chosen(NAMES if on_cpu else NAMES + ON_ACCELERATORS, options.filter)
    if options.list:
        print("\n".join(names))
        return
    if options.child:
        child(options.child)
        return
    if not names:
        parser.error(f"no row's name contains {options.filter!r}")

    results = []
    for name in names:
        losses = {}
        if name in OWN_CLOCK:
            median, least, runs = OWN_CLOCK[name]()
        else:
            start_jax()
            setup, parameters = ROWS[name]
            call, warm_up = setup(**parameters), WARM_UP
            if name in STEPS:
                losses, warm_up = {"first_loss": float(call().ravel()[0])}, WARM_UP - 1
            median, least, runs = measure(call, warm_up)
        print(f"{name:24} {median:12.1f} µs  (min {least:.1f}, {runs} runs)", file=sys.stderr)
        # The most memory so far, here or in a process that a row spawned: that of the row where it is the only one.
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
        results.append({"name": name, "median_us": median, "min_us": least, "runs": runs, "peak_mib": peak, **losses})

    text = json.dumps(results, indent=1) + "\n"
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
