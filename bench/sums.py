"""The rows of `shardax-bench --sums FOLDER` in JAX, and the report.

    sums.py FOLDER             measures the rows of FOLDER/shardax.tsv that FOLDER/jax.tsv does not have yet
    sums.py FOLDER --report    prints errors and times by reduction, and the rows beyond the bounds
"""

import ast
import math
import os
import sys
import time

BOUND = 1e-6


def clock():
    return time.process_time() if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter()


def producers(jax, jnp):
    return {
        "none": lambda x: x,
        "square": jnp.square,
        "exp": jnp.exp,
        "where": lambda x: jnp.where(x > 0.25, x, 0),
        "matmul": lambda x: (x.reshape(-1, 16) @ jnp.full((16, 16), 0.125)).reshape(x.shape),
        "cast": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    }


def reductions(jax, jnp):
    def norm(x, axes):
        return jnp.linalg.norm(x.reshape(-1, x.shape[-1]), axis=None if len(axes) == x.ndim else 1)

    def dot(x, axes):
        return x.reshape(-1) @ x.reshape(-1) if len(axes) == x.ndim else (x * x).sum(axes)

    return {
        "sum": lambda x, axes: x.sum(axes),
        "mean": lambda x, axes: x.mean(axes),
        "var": lambda x, axes: x.var(axes),
        "std": lambda x, axes: x.std(axes),
        "norm": norm,
        "logsumexp": lambda x, axes: jax.scipy.special.logsumexp(x, axes),
        "softmax": lambda x, axes: jax.nn.softmax(x, axes),
        "dot": dot,
    }


def expected(reduction, x, axes):
    """The reduction of `x`, in float64 with NumPy."""
    import numpy as np

    if reduction in ("logsumexp", "softmax"):
        powers = np.exp(x)
        sums = powers.sum(axes, keepdims=reduction == "softmax")
        return np.log(sums) if reduction == "logsumexp" else powers / sums
    if reduction in ("norm", "dot"):
        flat = x.reshape(-1, x.shape[-1]) if reduction == "norm" else x
        axis = (None if len(axes) == x.ndim else 1) if reduction == "norm" else axes
        sums = np.square(flat).sum(axis)
        return np.sqrt(sums) if reduction == "norm" else sums
    return getattr(np, reduction)(x, axes)


def measure(reduction, producer, shape, which):
    import jax
    import jax.numpy as jnp
    import jax.scipy.special
    import numpy as np

    shape = tuple(ast.literal_eval(shape))
    axes = {"all": tuple(range(len(shape))), "first": (0,), "last": (len(shape) - 1,)}[which]
    x = jax.random.uniform(jax.random.key(0), shape)
    produce, reduce = producers(jax, jnp)[producer], reductions(jax, jnp)[reduction]
    f = jax.jit(lambda x: reduce(produce(x), axes))
    result = np.asarray(f(x), np.float64)
    wide = expected(reduction, np.asarray(jax.jit(produce)(x), np.float64), axes)
    error = np.max(np.abs((result - wide) / wide))
    times = []
    begin = clock()
    while (spent := clock() - begin) < 0.05 or len(times) < 3 and spent < 2:
        start = clock()
        jax.block_until_ready(f(x))
        times.append(clock() - start)
    return f"{error:.2e}\t{sorted(times)[len(times) // 2] * 1e6:.0f}"


def read(path):
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return {tuple(line[:4]): (float(line[4]), float(line[5])) for line in lines}


def run(folder):
    path = os.path.join(folder, "jax.tsv")
    measured = read(path)
    with open(path, "a") as file:
        for row in read(os.path.join(folder, "shardax.tsv")):
            if row not in measured:
                found = measure(*row)
                print(*row, found, sep="\t", file=file, flush=True)
                print(*row, found, sep="\t", file=sys.stderr)


def report(folder):
    ours, theirs = (read(os.path.join(folder, name)) for name in ["shardax.tsv", "jax.tsv"])
    rows = {row: (*ours[row], *theirs[row]) for row in ours if row in theirs}
    print("| reduction | rows | largest error | JAX | above 1e-6 | JAX | time / JAX's, geometric mean | above 1.2 |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for reduction in dict.fromkeys(row[0] for row in rows):
        found = [values for row, values in rows.items() if row[0] == reduction]
        error, _, jax_error, _ = (max(values[i] for values in found) for i in range(4))
        ratios = [values[1] / values[3] for values in found]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        above, jax_above = (sum(values[i] > BOUND for values in found) for i in (0, 2))
        slow = sum(ratio > 1.2 for ratio in ratios)
        print(f"| {reduction} | {len(found)} | {error:.1e} | {jax_error:.1e} | {above} | {jax_above} | {mean:.2f} | {slow} |")
    print("\n| row beyond a bound | error | JAX | ms | JAX |\n|---|--:|--:|--:|--:|")
    for row, (error, us, jax_error, jax_us) in sorted(rows.items(), key=lambda item: -item[1][1] / item[1][3]):
        if error > BOUND or us > 1.2 * jax_us:
            print(f"| {' '.join(row)} | {error:.1e} | {jax_error:.1e} | {us / 1e3:.1f} | {jax_us / 1e3:.1f} |")


if __name__ == "__main__":
    (report if "--report" in sys.argv else run)(sys.argv[1])
