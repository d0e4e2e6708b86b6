"""Lists the reference values that differ between two folders: of two versions of JAX.

    python compare.py crates/shardax/tests/golden /tmp/golden [FAMILY …]

Prints a line for each family, and one for each array with an element beyond the case's tolerance: its largest error, the
element in both, and the first argument there.
"""

import argparse
import json
from pathlib import Path

import golden
import numpy as np


def wide(x):
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def error(old, new):
    """The error of each element, by which it is compared with the tolerance: infinite where one alone is NaN or infinite."""
    with np.errstate(all="ignore"):
        distance = np.abs(old - new) / (1 + np.abs(old))
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    return np.where(same, 0, np.where(np.isfinite(distance), distance, np.inf))


def tolerance(meta, key):
    return meta.get("grad_tol", meta["tol"]) if key.startswith(("vjp", "jvp")) else meta["tol"]


def family(old_path, new_path):
    old, old_meta = golden.read(old_path)
    new, new_meta = golden.read(new_path)
    for case in sorted(set(old) ^ set(new)):
        print(f"  {case}: only in {'the first' if case in old else 'the second'} folder")
    arrays, changed, beyond = 0, 0, []
    for case in sorted(set(old) & set(new)):
        if old_meta[case] != new_meta[case]:
            print(f"  {case}: other parameters or types")
        for key in sorted(set(old[case]) & set(new[case])):
            x, y = (np.asarray(side[case][key]) for side in (old, new))
            arrays += 1
            if (x.dtype, x.shape) != (y.dtype, y.shape):
                print(f"  {case}/{key}: {x.dtype}{list(x.shape)} is {y.dtype}{list(y.shape)}")
            elif x.tobytes() != y.tobytes():
                changed += 1
                errors = error(wide(x), wide(y)).reshape(-1)
                if errors.max(initial=0) > tolerance(old_meta[case], key):
                    at = int(errors.argmax())
                    first = np.asarray(old[case]["in/0"]) if "in/0" in old[case] else x
                    where = f" at {first.flat[at]}" if first.size == x.size else ""
                    beyond.append((errors[at], f"  {case}/{key}{where}: {x.flat[at]} is {y.flat[at]}, error {errors[at]:.2g}"))
    print(f"{old_path.stem}: {len(old)} cases, {arrays} arrays, {changed} in other bits, {len(beyond)} beyond the tolerance")
    for _, line in sorted(beyond, key=lambda one: -one[0]):
        print(line)


def types(old, new, path=""):
    """Differences of `promotion.json`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            types(old.get(key), new.get(key), f"{path}/{key}")
    elif old != new and not path.endswith("about"):
        print(f"promotion{path}: {json.dumps(old)} is {json.dumps(new)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    options = parser.parse_args()
    for path in sorted(options.new.glob("*.safetensors")):
        if not options.families or path.stem in options.families:
            family(options.old / path.name, path)
    if not options.families or "promotion" in options.families:
        types(*(json.loads((folder / "promotion.json").read_text()) for folder in (options.old, options.new)))


if __name__ == "__main__":
    main()
