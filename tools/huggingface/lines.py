"""Counts the lines of code of each family of decoders: of the functions that only its configuration and its names need.

    python3 tools/huggingface/lines.py
"""

import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2] / "crates/shardax-models/src/huggingface/decoders"
# Functions of a file that several families call are not a part of any of them.
FUNCTION = re.compile(r"^(?:pub(?:\(\w+\))? )?fn (\w+)", re.M)


def functions(path):
    """The lines of each function of a file, without its comments, and the functions that it calls."""
    text = path.read_text()
    found = {}
    for start in FUNCTION.finditer(text):
        end = text.index("\n}\n", start.start()) + 2
        body = text[start.start() : end]
        lines = [line for line in body.splitlines() if line.strip() and not line.strip().startswith("//")]
        found[start.group(1)] = (len(lines), set(re.findall(r"\b(\w+)\(", body)) - {start.group(1)}, body)
    return found


def entries(files):
    """The function of each model type: the one of the table of families, or the arm of its `match`."""
    table = (ROOT / "mod.rs").read_text()
    for kinds, module, name in re.findall(r"\(\s*&\[([^\]]*)\],\s*(\w+)::(\w+),?\s*\)", table):
        for kind in re.findall(r'"([^"]+)"', kinds):
            body = files[module][name][2]
            arms = re.findall(r'((?:"[^"]+"(?: \| )?)+) => (\w+)\(fields', body)
            arms += [("", target) for target in re.findall(r"_ => (\w+)\(fields", body)]
            reads = [(names, target) for names, target in arms if "-> Read" in files[module].get(target, (0, 0, ""))[2]]
            arm = next((target for names, target in reads if f'"{kind}"' in names or not names), None)
            yield kind, module, arm or name


def main():
    files = {path.stem: functions(path) for path in ROOT.glob("*.rs")}
    families = collections.defaultdict(list)
    for kind, module, name in entries(files):
        families[module, name].append(kind)
    callers = collections.Counter(call for file in files.values() for _, calls, _ in file.values() for call in calls)
    rows = []
    for (module, name), kinds in families.items():
        lines, calls, _ = files[module][name]
        own = [files[module][call][0] for call in calls if call in files[module] and callers[call] == 1]
        rows.append((", ".join(f"`{kind}`" for kind in kinds), lines + sum(own)))
    print("| `model_type` | lines |\n|---|--:|")
    for kinds, lines in sorted(rows):
        print(f"| {kinds} | {lines} |")
    print(f"\n{sum(lines for _, lines in rows)} lines of {sum(len(kinds) for kinds in families.values())} types.")


if __name__ == "__main__":
    main()
