"""Writes the reference values that `cargo test` compares with. See README.md."""

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax

jax.config.update("jax_platforms", "cpu")

import golden  # noqa: E402  (after the platform is chosen)

# A family is a file; `promotion` has a format of its own.
FAMILIES = sorted(path.stem for path in (Path(__file__).parent / "families").glob("*.py"))
FAMILIES = [name for name in FAMILIES if name not in ("__init__", "promotion")]
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates" / "shardax" / "tests" / "golden"


def index_lines(name, tensors, meta):
    """One line a case, for people: name, op, parameters, argument and result types, what there is beside the values."""
    yield f"[{name}.safetensors]"
    for case, entry in meta.items():

        def types(kind, count):
            found = []
            for i in range(count):
                x = tensors[f"{case}/{kind}/{i}"]
                found.append(f"{golden.short(x.dtype)}[{','.join(map(str, x.shape))}]")
            return " ".join(found)

        also = [mode for mode in ("vjp", "jvp") if any(key.startswith(f"{case}/{mode}/") for key in tensors)]
        also += [
            f"{key.removesuffix('_in_axes')}{entry[key]}".replace("None", "null") for key in entry if key.endswith("_in_axes")
        ]
        params = json.dumps(entry["params"], separators=(",", ":")) if "params" in entry else ""
        parts = [case, entry["op"] + params, f"{types('in', entry['ins'])} -> {types('out', entry['outs'])}", " ".join(also)]
        yield " | ".join(part.rstrip() for part in parts) + (f" | {entry['doc']}" if "doc" in entry else "")
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder for the files")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file would change")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"default: all of {' '.join(FAMILIES)} promotion")
    options = parser.parse_args()
    unknown = set(options.families) - {*FAMILIES, "promotion"}
    if unknown:
        parser.error(f"no family named {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)

    changed = []

    def deliver(file, data):
        path = options.out / file
        if not path.exists() or path.read_bytes() != data:
            changed.append(file)
            if not options.check:
                path.write_bytes(data)

    names = options.families or [*FAMILIES, "promotion"]
    index = []
    for name in names:
        start = time.perf_counter()
        if name == "promotion":
            from families import promotion

            data = promotion.encode()
            deliver("promotion.json", data)
            count = 1
        else:
            family = importlib.import_module(f"families.{name}").family
            tensors, meta = family.compute()
            data = golden.encode(tensors, meta)
            deliver(f"{name}.safetensors", data)
            count = len(meta)
        print(f"{name:10} {count:4} cases {len(data) / 1024:8.1f} KiB  {time.perf_counter() - start:6.1f} s", flush=True)
    for name in FAMILIES:
        cases, meta = golden.read(options.out / f"{name}.safetensors")
        tensors = {f"{case}/{key}": x for case, found in cases.items() for key, x in found.items()}
        index += index_lines(name, tensors, meta)
    deliver("index.txt", "\n".join(index).encode())
    if options.check and changed:
        sys.exit("these files would change: " + ", ".join(changed))


if __name__ == "__main__":
    main()
