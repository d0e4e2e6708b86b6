"""Random programs with JAX's answers, for `crates/shardax/tests/fuzz.rs`. See README.md."""

import argparse
import collections
import copy
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax

jax.config.update("jax_platforms", "cpu")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import golden  # noqa: E402
import numpy as np  # noqa: E402
import operations  # noqa: E402
import programs  # noqa: E402
import shrink  # noqa: E402

# Programs that JAX compiles together, which costs less than one by one.
TOGETHER = 12
TRIALS = 3


def answer(group, rng):
    """Sets the answers of these programs; returns those that JAX has some for."""
    batch = []
    for p in group:
        try:
            with jax.enable_x64(p.x64):
                f = programs.stage(p, rng)
                args = programs.all_arguments(p)
                if p.mode not in ("pmap", "shard_map"):
                    jax.eval_shape(f, args, programs.noises(p, rng, 0))
            batch.append((p, f, args))
        except Exception as error:
            reject(p, error)
    if not batch:
        return []
    try:
        with jax.enable_x64(batch[0][0].x64):
            both = jax.jit(lambda args, noise: [f(a, n) for (_, f, _), a, n in zip(batch, args, noise)])
            trials = []
            for trial in range(TRIALS):
                found = both([a for *_, a in batch], [programs.noises(p, rng, trial) for p, *_ in batch])
                trials.append([[np.asarray(x) for x in outs] for outs in found])
    except Exception as error:
        if len(batch) == 1:
            reject(batch[0][0], error)
            return []
        half = len(batch) // 2
        return answer([p for p, *_ in batch[:half]], rng) + answer([p for p, *_ in batch[half:]], rng)
    good = []
    for k, (p, *_) in enumerate(batch):
        try:
            programs.judge(p, [outs[k] for outs in trials])
            good.append(p)
        except programs.Rejected as error:
            reject(p, error)
    return good


rejections = collections.Counter()


def reject(p, error):
    reason = str(error).split("\n")[0][:70] if isinstance(error, programs.Rejected) else type(error).__name__
    rejections[reason] += 1
    if os.environ.get("FUZZ_VERBOSE") and not isinstance(error, programs.Rejected):
        print(p.mode, [o.name for o, _ in p.steps], str(error)[:300], file=sys.stderr)


def generate(count, seed, out, mode=None):
    table = operations.table()
    waiting = collections.defaultdict(list)
    tensors, meta, modes = {}, {}, collections.Counter()
    start = time.perf_counter()
    index = 0
    while len(meta) < count:
        rng = np.random.default_rng([seed, index])
        index += 1
        try:
            p = programs.Builder(rng, table, mode == "nested").program(mode)
        except programs.Rejected as error:
            rejections[str(error)] += 1
            continue
        several = p.mode in ("pmap", "shard_map")
        kind = (p.x64, several)
        waiting[kind].append(p)
        left = count - len(meta)
        if len(waiting[kind]) < (1 if several else min(TOGETHER, left)):
            continue
        for p in answer(waiting.pop(kind), rng):
            if len(meta) == count:
                break
            name = f"{p.mode}_{len(meta):05}"
            found, meta[name] = programs.record(p, name)
            tensors.update({f"{name}/{key}": x for key, x in found.items()})
            modes[p.mode] += 1
        if index % 96 == 0:
            jax.clear_caches()
    out.write_bytes(golden.encode(tensors, meta))
    seconds = time.perf_counter() - start
    print(f"{out}: {count} programs of {index}, {out.stat().st_size / 1024:.0f} KiB, {seconds:.0f} s; {dict(modes)}")
    print("left out:", dict(rejections.most_common(12)))


def reduce(path, names, out):
    """Writes parts of the named programs of a file, with JAX's answers."""
    cases, meta = golden.read(path)
    table = operations.table()
    tensors, found = {}, {}
    for name in names:
        rng = np.random.default_rng(0)
        try:
            parts = list(shrink.parts(shrink.load(meta[name], cases[name], table)))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        # Two draws of what the mode adds: one may not show the difference.
        for p, size in [*parts, *parts]:
            p = copy.copy(p)
            if answer([p], rng):
                key = f"{name}_part{len(found):05}"
                made, found[key] = programs.record(p, key)
                found[key] |= {"of": name, "size": size}
                tensors.update({f"{key}/{what}": x for what, x in made.items()})
        jax.clear_caches()
    out.write_bytes(golden.encode(tensors, found))
    print(f"{out}: {len(found)} parts of {len(names)} programs")


def merge(paths, without, out):
    """One file of several, but for programs named `file:program`; programs are numbered again."""
    tensors, meta = {}, {}
    for path in paths:
        cases, entries = golden.read(path)
        for name, entry in entries.items():
            if f"{path.stem}:{name}" in without:
                continue
            if os.environ.get("FUZZ_VERBOSE"):
                print(f"{path.stem}:{name} {entry['op']}_{len(meta):05}")
            fresh = f"{entry['op']}_{len(meta):05}"
            meta[fresh] = entry
            tensors.update({f"{fresh}/{key}": x for key, x in cases[name].items()})
    out.write_bytes(golden.encode(tensors, meta))
    print(f"{out}: {len(meta)} programs, {out.stat().st_size / 1024:.0f} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=["explicit", "nested"], help="make only programs of this mode, or with nested transformations")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--reduce", type=Path, metavar="FILE", help="write parts of this file's programs that are named")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="write the programs of these files as one")
    parser.add_argument("--without", nargs="+", default=[], metavar="FILE:PROGRAM", help="programs that --merge leaves out")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.reduce:
        reduce(options.reduce, options.names, options.out)
    elif options.merge:
        merge(options.merge, options.without, options.out)
    else:
        generate(options.count, options.seed, options.out, options.mode)


if __name__ == "__main__":
    main()
