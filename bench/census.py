"""The rows of `shardax-bench --census FOLDER` in JAX, and the report.

    census.py FOLDER             measures the rows of FOLDER/shardax.tsv that FOLDER/jax.tsv does not have yet
    census.py FOLDER --report    prints the rows that take more than 1.2 of JAX's time, and the geometric mean
"""

import math
import os
import sys
import time

LINES = [64, 1 << 15, 25_000_000]
MATRICES = [8, 181, 5000]
PRODUCTS = [8, 128, 1024]
SQUARES = [4, 48, 256]
BATCHES = [(4, 3), (500, 8), (2500, 16)]
IMAGES = [(1, 8, 4), (8, 16, 16), (32, 64, 64)]
SEQUENCES = [(1, 4, 8), (4, 64, 64), (8, 512, 256)]
SIZES = ["tiny", "cached", "large"]


def arrays(kind, size):
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)

    def centred(*shape):
        return jnp.asarray(random.uniform(-1, 1, shape).astype(np.float32))

    def definite(*shape):
        x = centred(*shape)
        return x @ jnp.swapaxes(x, -1, -2) + jnp.eye(shape[-1])

    n, side, product, square = LINES[size], MATRICES[size], PRODUCTS[size], SQUARES[size]
    count, small = BATCHES[size]
    images, pixels, channels = IMAGES[size]
    sequences, length, features = SEQUENCES[size]
    return {
        "Line": lambda: [centred(n)],
        "Positive": lambda: [centred(n) * 0.9 + 1.0],
        "Lines": lambda: [centred(n), centred(n)],
        "Integers": lambda: [(abs(centred(n)) * 1000).astype(jnp.int32)],
        "Matrix": lambda: [centred(side, side)],
        "Product": lambda: [centred(product, product), centred(product, product)],
        "Product16": lambda: [centred(product, product).astype(jnp.bfloat16) for _ in range(2)],
        "Product8": lambda: [(centred(product, product) * 100).astype(jnp.int8) for _ in range(2)],
        "Square": lambda: [centred(square, square)],
        "Definite": lambda: [definite(square, square)],
        "System": lambda: [centred(square, square), centred(square)],
        "Batch": lambda: [centred(count, small, small)],
        "DefiniteBatch": lambda: [definite(count, small, small)],
        "Images": lambda: [centred(images, pixels, pixels, channels), centred(3, 3, channels, channels) * 0.1],
        "Sequences": lambda: [centred(sequences, length, features), centred(features, features) * 0.1],
        "Key": lambda: [jax.random.key(0)],
    }[kind]()


def clock():
    return time.process_time() if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter()


def measure(expression, kind, way, size):
    import jax
    import jax.image
    import jax.numpy as jnp
    import jax.scipy.linalg
    import jax.scipy.special

    jax.config.update("jax_enable_x64", way == "f64")
    operands = arrays(kind, size)
    if way in ("bf16", "f64"):
        operands = [x.astype(jnp.bfloat16 if way == "bf16" else jnp.float64) for x in operands]
    jax.block_until_ready(operands)
    function = eval(f"lambda x, y=None: {expression}", {"jax": jax, "jnp": jnp})
    if way == "gradient":
        loss = lambda *operands: jnp.square(function(*operands)).sum()  # noqa: E731
        f = jax.jit(jax.grad(loss, tuple(range(len(operands)))))
    else:
        f = function if way == "eager" else jax.jit(function)
    start = clock()
    jax.block_until_ready(f(*operands))
    first = clock() - start
    times = []
    begin = clock()
    while (spent := clock() - begin) < 0.1 and len(times) < 3000 or len(times) < 3 and spent < 2:
        start = clock()
        jax.block_until_ready(f(*operands))
        times.append(clock() - start)
    times.sort()
    return f"{times[len(times) // 2] * 1e6:.2f}\t{first * 1e6:.0f}"


def read(path):
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return {tuple(line[:4]): line[4:] for line in lines}


def run(folder):
    path = os.path.join(folder, "jax.tsv")
    measured = read(path)
    with open(path, "a") as file:
        for row, times in read(os.path.join(folder, "shardax.tsv")).items():
            if row in measured or times[0].startswith("error"):
                continue
            try:
                found = measure(*row[:3], SIZES.index(row[3]))
            except Exception as error:
                found = "error: " + " ".join(str(error).split())[:200]
            print(*row, found, sep="\t", file=file, flush=True)
            print(*row, found, sep="\t", file=sys.stderr)


def report(folder):
    ours, theirs = (read(os.path.join(folder, name)) for name in ["shardax.tsv", "jax.tsv"])
    ratios = []
    for row, times in ours.items():
        peer = theirs.get(row)
        # Functions of integers have no gradient.
        if peer is None or "error" in times[0] and "gradient" in row:
            continue
        if "error" in times[0] or "error" in peer[0]:
            print("not compared:", *row, times[0][:100] if "error" in times[0] else peer[0][:100])
            continue
        ratios.append((float(times[0]) / float(peer[0]), row, float(times[0]), float(peer[0])))
    ratios.sort(reverse=True)
    print("| way | size | rows | time / JAX's, geometric mean | above 1.2 |\n|---|---|--:|--:|--:|")
    groups = {}
    for ratio, row, _, _ in ratios:
        groups.setdefault(row[2:], []).append(ratio)
    for (way, size), group in sorted(groups.items()):
        print(f"| {way} | {size} | {len(group)} | {mean(group):.2f} | {sum(ratio > 1.2 for ratio in group)} |")
    everything = [ratio for ratio, *_ in ratios]
    print(f"| all | | {len(everything)} | {mean(everything):.2f} | {sum(ratio > 1.2 for ratio in everything)} |")
    print("\n| row | way | size | µs | JAX | ratio |\n|---|---|---|--:|--:|--:|")
    for ratio, (expression, kind, way, size), mine, peer in ratios:
        if ratio > 1.2:
            print(f"| `{expression}` ({kind}) | {way} | {size} | {mine:.1f} | {peer:.1f} | {ratio:.2f} |")


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


if __name__ == "__main__":
    (report if "--report" in sys.argv else run)(sys.argv[1])
