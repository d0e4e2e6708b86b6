"""Runs the rows of shardax and of its JAX peer in turn and prints them side by side. Called by bench/compare.sh.

The machine's speed drifts, so the two never run far apart: for every row, shardax, JAX, shardax, JAX, … for ROUNDS
rounds. A figure is the median over the rounds of each round's median.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata

import jax_bench

ROW_TIMEOUT_S = 600


def run(command, name):
    """The result of one row, or None where the command fails or has no such row."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "row.json")
        arguments = [*command, "--json", path, "--filter", name]
        try:
            done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ROW_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"{name}: no result after {ROW_TIMEOUT_S} s from {shlex.join(command)}", file=sys.stderr)
            return None
        if done.returncode == 0 and os.path.exists(path):
            found = find(load(path), name)
            if found is not None:
                return found
        print(f"{name}: no result from {shlex.join(command)} (exit status {done.returncode})", file=sys.stderr)
        print(done.stdout.decode(errors="replace")[-2000:], file=sys.stderr)
        return None


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def rows_of(command):
    """The names of the rows that a command has."""
    done = subprocess.run([*command, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return set(done.stdout.split())


def find(results, name):
    return next((result for result in results if result["name"] == name), None)


def of_rounds(collected, what):
    """The median over the rounds; None where one has none."""
    values = [found and found.get(what) for found in collected]
    return None if None in values or not values else statistics.median(values)


def measure(names, commands, rounds):
    """Three tables, name → what each command has, or None: median times in µs, the most memory in MiB, first losses."""
    table, memory, losses = {}, {}, {}
    known = [set(names), set(names), *map(rows_of, commands[2:])]
    for name in names:
        medians = [[] for _ in commands]
        for _ in range(rounds):
            for command, rows, collected in zip(commands, known, medians):
                # Rows that failed once are not tried again.
                if None not in collected and name in rows:
                    collected.append(run(command, name))
        table[name] = [of_rounds(collected, "median_us") for collected in medians]
        memory[name] = [of_rounds(collected, "peak_mib") for collected in medians]
        losses[name] = [of_rounds(collected, "first_loss") for collected in medians]
        print("  ".join([f"{name:24}", *map(show, table[name])]), file=sys.stderr, flush=True)
    return table, memory, losses


def apart(losses, sides):
    """The rows whose first losses are not ours: the sides do not do the same work there."""
    for name, (ours, *others) in losses.items():
        for side, theirs in zip(sides[1:], others):
            if ours is not None and theirs is not None and not abs(ours - theirs) <= 1e-3 * abs(theirs):
                yield f"{name}: the first loss is {ours:.6g}, {side}'s {theirs:.6g}"


def show(value):
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.2f}"
    if value < 1000:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def ratio(ours, theirs):
    return "–" if ours is None or theirs is None or ours == 0 else f"{theirs / ours:.2f}×"


def geometric_mean(table):
    ratios = [theirs / ours for ours, theirs, *_ in table.values() if ours and theirs]
    return statistics.geometric_mean(ratios) if ratios else None


def beside_jax(table, memory):
    """The rows of a table that compares with JAX: times, their ratio, memory."""
    yield "name", "shardax µs", "JAX µs", "JAX / shardax", "shardax MiB", "JAX MiB"
    for name, (ours, theirs, *_) in table.items():
        yield name, show(ours), show(theirs), ratio(ours, theirs), *map(whole, memory[name][:2])


def beside_others(table, memory, sides):
    """The rows of a table that compares with the other libraries, if one of them has the row: times with their ratio to ours, memory."""
    yield "name", "shardax µs", *[f"{side} µs" for side in sides[2:]], *[f"{side} MiB" for side in [sides[0], *sides[2:]]]
    for name, (ours, _, *others) in table.items():
        if any(others):
            times = ["–" if time is None else f"{show(time)} ({ratio(ours, time)})" for time in others]
            ours_mib, _, *mib = memory[name]
            yield name, show(ours), *times, *map(whole, [ours_mib, *mib])


def whole(mib):
    return "–" if mib is None else f"{mib:,.0f}"


def plain(rows):
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *rest = (text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths)))
        yield "  ".join([first, *rest])


def markdown(rows):
    titles, *rows = rows
    yield "| " + " | ".join(titles) + " |"
    yield "|:--|" + "--:|" * (len(titles) - 1)
    for name, *rest in rows:
        yield "| " + " | ".join([f"`{name}`", *rest]) + " |"


def machine():
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            processor = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), processor)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor}, {cores} cores"


def versions(torch):
    """The versions of packages; `torch` is the command that runs PyTorch's rows, if there is one."""
    found = []
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint"):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            pass
    if torch:
        ask = "from importlib.metadata import version; print(version('torch'))"
        done = subprocess.run([shlex.split(torch)[0], "-c", ask], stdout=subprocess.PIPE, text=True, check=False)
        found += [f"torch {done.stdout.strip()}"] if done.returncode == 0 else []
    return ", ".join(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rust", metavar="COMMAND", help="what runs shardax's rows")
    parser.add_argument("--side", metavar="NAME=COMMAND", action="append", default=[], help="what runs another side's rows")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", 3)), help="default: $ROUNDS, or 3")
    parser.add_argument("--filter", metavar="NAME", default="", help=jax_bench.FILTER)
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/benchmarks.md")
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")
    parser.add_argument("--join", nargs=2, metavar=("SHARDAX", "JAX"), help="join two result files, and run nothing")
    options = parser.parse_args()

    names = jax_bench.chosen(jax_bench.NAMES, options.filter)
    if not names:
        parser.error(f"no row's name contains {options.filter!r}")
    if options.rounds < 1:
        parser.error("at least one round is needed")
    sides = ["shardax", "JAX"]
    if options.join:
        files = [load(path) for path in options.join]
        of_files = lambda what: {name: [of_rounds([find(file, name)], what) for file in files] for name in names}
        table, memory, losses = map(of_files, ("median_us", "peak_mib", "first_loss"))
    elif options.rust:
        peer = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "jax_bench.py")]
        others = [side.split("=", 1) for side in options.side]
        sides += [name for name, _ in others]
        commands = [shlex.split(options.rust), peer, *[shlex.split(command) for _, command in others]]
        table, memory, losses = measure(names, commands, options.rounds)
    else:
        parser.error("either --rust or --join is needed")

    if options.json:
        of = lambda values, what: {f"{side.lower()}_{what}": value for side, value in zip(sides, values)}
        tables = {"us": table, "peak_mib": memory, "first_loss": losses}
        rows = [{"name": name, **{key: x for what, found in tables.items() for key, x in of(found[name], what).items()}} for name in names]
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")

    if options.markdown:
        rounds = "" if options.join else f" Medians of {options.rounds} interleaved rounds, µs."
        torch = next((command for name, command in (side.split("=", 1) for side in options.side) if name == "PyTorch"), None)
        print(f"{datetime.date.today()}: {machine()}; {versions(torch)}.{rounds}\n")
    form = markdown if options.markdown else plain
    print("\n".join(form(beside_jax(table, memory))))
    if len(sides) > 2:
        print("\n" + "\n".join(form(beside_others(table, memory, sides))))
    mean = geometric_mean(table)
    if mean is not None:
        print(f"\nGeometric mean of JAX / shardax: {mean:.2f}× (above 1: shardax is faster).")
    wrong = list(apart(losses, sides))
    if any(None in pair[:2] for pair in table.values()):
        wrong.append("Some rows have no result on one side.")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
