"""The rows of bench/src/processes.rs in JAX, with gloo. Started by mpirun beside them: bench/processes.sh."""

import os
import sys
import time

RANK, SIZE = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
DEVICES = int(os.environ.get("SHARDAX_NUM_CPU_DEVICES", "1"))
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["JAX_PLATFORMS"] = "cpu"
for name in [name for name in os.environ if "proxy" in name.lower()]:
    del os.environ[name]

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", SIZE, RANK, cluster_detection_method="deactivate")


def measure(name, runs, call):
    for _ in range(3):
        jax.block_until_ready(call())
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append((time.perf_counter() - start) * 1e6)
    if RANK == 0:
        print(f"{name:20} {SIZE} × {DEVICES} {np.median(times):12.1f} µs  (min {min(times):.1f}, {runs} runs)", flush=True)


mesh = Mesh(np.array(jax.devices()), ("i",))
rows = NamedSharding(mesh, P("i"))


def exchange(name, n, runs, f):
    x = jax.make_array_from_process_local_data(rows, np.ones([n * DEVICES], np.float32))
    f = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False))
    measure(name, runs, lambda: f(x))


exchange("mp_psum_4", 4, 500, lambda x: lax.psum(x, "i"))
exchange("mp_psum_16mib", 4 << 20, 20, lambda x: lax.psum(x, "i"))
exchange("mp_all_gather_1mib", 256 << 10, 20, lambda x: lax.all_gather(x, "i", tiled=True).sum(keepdims=True))
exchange("mp_all_to_all_1mib", 256 << 10, 20, lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True))
f = jax.pmap(lambda x: x * 2.0)
x = f(np.ones([DEVICES, 4], np.float32))
measure("mp_pmap_rewrap", 500, lambda: f(x))
exchange("mp_shard_map_local", 4, 500, lambda x: x * 2.0)
