"""Compares the table of VHLO's attributes in `export/jax/operation.rs` with MLIR's own.

MLIR has no list of them for Python, but its verifier names one missing attribute of an operation at a time. An operation is
therefore parsed again and again, each time with the attribute that was missing. The names of all operations are in
jaxlib's library.

Prints the differences, and fails if there are any. The order of the attributes in bytecode is alphabetical; the files in
`crates/shardax/tests/exported`, which JAX wrote, check it.
"""

import itertools
import pathlib
import re
import sys

import jaxlib
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

SOURCE = pathlib.Path(__file__).parents[2] / "crates/shardax/src/export/jax/operation.rs"

# The verifier looks at operands, results and regions before attributes, so that an operation needs the right number of each.
MAX_OPERANDS, MAX_RESULTS, MAX_REGIONS = 5, 3, 2

# Operations with attributes that JAX does not write. Reading one is an error that names it.
UNSUPPORTED = {
    "collective_broadcast_v2",
    "collective_reduce_v1",
    "dot_v1",
    "dynamic_conv_v1",
    "dynamic_gather_v1",
    "einsum_v1",
    "infeed_v1",
    "outfeed_v1",
    "recv_v1",
    "recv_v2",
    "send_v1",
    "send_v2",
    "set_dimension_size_v1",
    "torch_index_select_v1",
    "unary_einsum_v1",
}


def table():
    """The attributes of each VHLO operation in the Rust table."""
    text = SOURCE.read_text()
    body = text[text.index("fn names(") : text.index("_ => return None")]
    attributes = {}
    for arm in re.finditer(r'((?:\|?\s*"\w+"\s*)+)=>\s*\{?\s*&\[(.*?)\]', body, re.S):
        names = re.findall(r'"(\w+)"', arm[2])
        attributes.update((operation, names) for operation in re.findall(r'"(\w+)"', arm[1]))
    # Shardy's operations are in the same table, without a version.
    return {operation: names for operation, names in attributes.items() if re.search(r"_v\d+$", operation)}


def operations():
    """The names of all VHLO operations that jaxlib's library contains."""
    folder = pathlib.Path(jaxlib.__file__).parent
    names = set()
    for library in folder.rglob("*.so"):
        found = re.findall(rb"vhlo\.([a-z_0-9]+_v\d+)\b", library.read_bytes())
        names.update(name.decode() for name in found)
    return names


def parse_error(operation, attributes, operands, results, regions):
    """The verifier's message about an operation, or None if it is valid."""
    value = "!vhlo.tensor_v1<2x!vhlo.f32_v1>"
    lines = [f'%a = "test.value"() : () -> {value}'] if operands else []
    properties = ", ".join(f'{name} = #vhlo.string_v1<"a">' for name in attributes)
    region = f'{{ ^bb(%b: {value}): "vhlo.return_v1"() : () -> () }}'
    lines.append(
        f'"vhlo.{operation}"({", ".join(["%a"] * operands)})'
        + (f" <{{{properties}}}>" if attributes else "")
        + (f" ({', '.join([region] * regions)})" if regions else "")
        + f" : ({', '.join([value] * operands)}) -> ({', '.join([value] * results)})"
    )
    try:
        ir.Module.parse("\n".join(lines))
    except Exception as error:  # MLIR's errors have no common type.
        return str(error)
    return None


def attributes_of(operation):
    """The names of the attributes that MLIR requires, or None for a name that is no operation."""
    for counts in itertools.product(*(range(most + 1) for most in (MAX_OPERANDS, MAX_RESULTS, MAX_REGIONS))):
        attributes = []
        while True:
            error = parse_error(operation, attributes, *counts)
            if error is None:
                return attributes
            if "unregistered operation" in error:
                return None
            missing = re.search(r"requires attribute '(\w+)'", error)
            if missing is None:
                break
            attributes.append(missing[1])
        # The number of operands, results or regions was wrong, or a region's contents after all attributes were there.
        if attributes:
            return attributes
    return []


def main():
    ours, differences = table(), []
    with mlir.make_ir_context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        known = {name: attributes_of(name) for name in sorted(operations() | set(ours))}
    for operation, attributes in known.items():
        # Texts in jaxlib's library that are no operations, and operations of a later version.
        if attributes is None:
            continue
        elif operation in UNSUPPORTED and operation not in ours:
            continue
        elif sorted(attributes) != ours.get(operation, []):
            differences.append(f"{operation}: MLIR has {sorted(attributes)}, the table {ours.get(operation)}")
    real = sum(attributes is not None for attributes in known.values())
    print(f"{real} operations of VHLO, {len(ours)} in the table, {len(differences)} differences")
    sys.exit("\n".join(differences) or None)


if __name__ == "__main__":
    main()
