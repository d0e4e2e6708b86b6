"""The rows of bench/src/processes.rs in JAX, with gloo. Started by mpirun beside them: bench/processes.sh.

    jax_processes.py PORT [ROW,ROW…]
"""

import os
import sys
import time

RANK, SIZE = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
DEVICES = int(os.environ.get("SHARDAX_NUM_CPU_DEVICES", "1"))
NAMES = sys.argv[2].split(",") if len(sys.argv) > 2 else []
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["JAX_PLATFORMS"] = "cpu"
for name in [name for name in os.environ if "proxy" in name.lower()]:
    del os.environ[name]

import jax  # noqa: E402
import jax_bench  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", SIZE, RANK, cluster_detection_method="deactivate")


def report(name, times):
    if RANK == 0:
        median, runs = np.median(times), len(times)
        print(f"{name:20} {SIZE} × {DEVICES} {median:12.1f} µs  (min {min(times):.1f}, {runs} runs)", flush=True)


def measure(name, runs, call):
    for _ in range(min(3, runs)):
        jax.block_until_ready(call())
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append((time.perf_counter() - start) * 1e6)
    report(name, times)


ALL = jax.devices()
if "SHARDAX_TEST_BENCH_BEGAN" in os.environ:
    report("mp_start", [(time.time() - float(os.environ["SHARDAX_TEST_BENCH_BEGAN"])) * 1e6])
mesh = Mesh(np.array(ALL), ("i",))
rows = NamedSharding(mesh, P("i"))


def split(n, f):
    """A function of `n` numbers of each device, and these."""
    x = jax.make_array_from_process_local_data(rows, np.ones([n * DEVICES], np.float32))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)), x


def exchange(name, n, runs, f):
    f, x = split(n, f)
    measure(name, runs, lambda: f(x))


def rewrap(name):
    f = jax.pmap(lambda x: x * 2.0)
    x = f(np.ones([DEVICES, 4], np.float32))
    measure(name, 500, lambda: f(x))


def local(n, axis_name, value, *, replicated=False):
    """This process's part of what `jax_bench.on_devices` gives, which `pmap` takes."""
    here = Mesh(np.array(jax.local_devices()), (axis_name,))
    part = lambda x: x if replicated else x[RANK * DEVICES : (RANK + 1) * DEVICES]
    return jax.device_put(jax.tree.map(part, value), NamedSharding(here, P() if replicated else P(axis_name)))


def training_step(name, training):
    jax_bench.on_devices = local
    measure(name, 20, training(len(ALL)))


def compile_cnn(name):
    jax_bench.on_devices = local
    training = jax_bench.cnn_training(len(ALL))
    every = Mesh(np.array(ALL), ("batch",))

    def whole(x):
        return jax.make_array_from_process_local_data(NamedSharding(every, P()), np.asarray(x))

    def parts(x):
        return jax.make_array_from_process_local_data(NamedSharding(every, P("batch")), np.asarray(x))

    state, batch = jax.tree.map(whole, training.state), jax.tree.map(parts, training.batch)
    times = []
    for _ in range(4):
        lowered = training.pmapped().lower(state, *batch)
        start = time.perf_counter()
        lowered.compile()
        times.append((time.perf_counter() - start) * 1e6)
    report(name, times[1:])


def scale(name):
    f, x = split(4, lambda x: x * 2.0)
    means = []
    for _ in range(4):
        begin = time.thread_time()
        for _ in range(20_000):
            jax.block_until_ready(f(x))
        means.append((time.thread_time() - begin) / 20_000 * 1e6)
    report(name, means[1:])


ROWS = {
    "mp_psum_4": lambda name: exchange(name, 4, 500, lambda x: lax.psum(x, "i")),
    "mp_psum_16mib": lambda name: exchange(name, 4 << 20, 20, lambda x: lax.psum(x, "i")),
    "mp_all_gather_1mib": lambda name: exchange(
        name, 256 << 10, 20, lambda x: lax.all_gather(x, "i", tiled=True).sum(keepdims=True)
    ),
    "mp_all_to_all_1mib": lambda name: exchange(
        name, 256 << 10, 20, lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True)
    ),
    "mp_pmap_rewrap": rewrap,
    "mp_shard_map_local": lambda name: exchange(name, 4, 500, lambda x: x * 2.0),
    "mp_cnn_step": lambda name: training_step(name, jax_bench.cnn_step),
    "mp_mlp_step": lambda name: training_step(name, jax_bench.mlp_step),
    "mp_compile_cnn": compile_cnn,
    "mp_scale": scale,
}

for name, row in ROWS.items():
    if not NAMES or name in NAMES:
        row(name)
