"""Public names of JAX, Flax and Optax: lists them, compares two versions, and counts their counterparts in shardax.

    python tools/golden/names.py list names.json              # of the installed versions
    python tools/golden/names.py compare old.json new.json    # new and removed names, and new arguments
    python tools/golden/names.py count names.json             # the table of docs/conformance.md

A name has a counterpart if the sources define a public item of this name, or if a row of docs/where-is-x.txt has it.
"""

import importlib
import inspect
import json
import re
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODULES = """
jax jax.numpy jax.numpy.linalg jax.numpy.fft jax.lax jax.lax.linalg jax.nn jax.nn.initializers jax.random jax.image jax.ops
jax.scipy.special jax.scipy.linalg jax.scipy.stats jax.scipy.signal jax.scipy.ndimage jax.scipy.fft jax.scipy.optimize
jax.scipy.interpolate jax.scipy.integrate jax.scipy.cluster.vq jax.scipy.sparse.linalg jax.sharding jax.tree jax.export
jax.profiler jax.distributed jax.debug jax.dlpack jax.ffi jax.stages jax.ref jax.experimental.pallas
jax.experimental.multihost_utils jax.custom_batching jax.custom_derivatives flax.nnx optax optax.losses optax.schedules
""".split()


def names_of(module):
    """The public names of a module, with the parameters of functions."""
    names = {}
    for name in dir(module):
        # Names that end in `_p` are primitives, which are no interface for users.
        if name.startswith("_") or name.endswith("_p"):
            continue
        try:
            value = getattr(module, name)
        except AttributeError:  # a removed name, for which the module has a message
            continue
        if inspect.ismodule(value):
            continue
        try:
            names[name] = list(inspect.signature(value).parameters)
        except (TypeError, ValueError):
            names[name] = None
    return names


def list_names(path):
    warnings.simplefilter("ignore")
    found = {module: names_of(importlib.import_module(module)) for module in MODULES}
    Path(path).write_text(json.dumps(found))
    print(f"{sum(map(len, found.values()))} names in {len(found)} modules")


def compare(old_path, new_path):
    old, new = (json.loads(Path(path).read_text()) for path in (old_path, new_path))
    for module in new:
        before, after = old.get(module, {}), new[module]
        for name in sorted(after.keys() - before.keys()):
            print(f"new      {module}.{name}")
        for name in sorted(before.keys() - after.keys()):
            print(f"removed  {module}.{name}")
        for name in sorted(before.keys() & after.keys()):
            arguments = set(after[name] or []) - set(before[name] or [])
            if arguments and before[name]:
                print(f"argument {module}.{name}({', '.join(sorted(arguments))})")


def plain(name):
    return name.lower().replace("_", "")


def items():
    """The names of public items, and of functions that macros define, which are lines such as `sin,` or `sin => ...`."""
    text = "".join(path.read_text() for path in sorted(ROOT.glob("crates/shardax*/src/**/*.rs")))
    found = re.findall(r"pub (?:const )?(?:unsafe )?(?:fn|struct|enum|trait|type|mod|const|static) (\w+)", text)
    found += re.findall(r"^\s+(\w+)\b[^\n]{0,40}[;,]$", text, re.MULTILINE) + re.findall(r"^\s+(\w+) => \|", text, re.MULTILINE)
    return {plain(name) for name in found}


def rows():
    """Maps each word on the left of a row to the sign of the row: `=` and `~` for counterparts, `-` for a reason."""
    signs = {}
    for line in (ROOT / "docs/where-is-x.txt").read_text().splitlines():
        sign = re.search(r" ([=~-]) ", line)
        if sign and not line.startswith(("#", "[")):
            for word in re.findall(r"\w+", line[: sign.start()]):
                signs.setdefault(word, sign[1])
    return signs


def count(path):
    ours, signs = items(), rows()
    print("| module | names | item of this name | row with a counterpart | row with a reason | neither |")
    print("|---|--:|--:|--:|--:|--:|")
    total = [0] * 5
    for module, names in json.loads(Path(path).read_text()).items():
        by_row = [signs.get(name) for name in names]
        has_item = [plain(name) in ours for name in names]
        rowed = sum(sign in ("=", "~") for sign in by_row)
        reasons = sum(sign == "-" and not item for sign, item in zip(by_row, has_item))
        named = sum(sign not in ("=", "~") and item for sign, item in zip(by_row, has_item))
        numbers = [len(names), named, rowed, reasons, len(names) - named - rowed - reasons]
        total = [a + b for a, b in zip(total, numbers)]
        print(f"| `{module}` | " + " | ".join(map(str, numbers)) + " |")
    print("| all | " + " | ".join(map(str, total)) + " |")


if __name__ == "__main__":
    commands = {"list": list_names, "compare": compare, "count": count}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
