"""Functions between JAX and shardax, both ways, in one file of safetensors (`shardax::export`).

    exchange.save(jax.export.export(jax.jit(f))(*args), "f.safetensors")   # then `Exported::load` in Rust
    f = exchange.load("g.safetensors")                                     # what Rust's `Exported::save` wrote

Programs whose arguments and results are tuples, lists, dictionaries and None, for one device or for those of one mesh. Functions with
open sizes that shardax wrote are made for the sizes of each call. The
text of a program is made and read by parts of JAX that are not public: `requirements.txt` says of which version.
"""

import dataclasses
import hashlib
import json
import math
import re
import struct

import jax
import jax.export
import ml_dtypes  # noqa: F401  (NumPy knows bfloat16 then)
import numpy as np
from jax._src.interpreters import mlir
from jax._src.export import _export
from jax._src.lib.mlir import ir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

KEY, VERSION, OPEN_VERSION = "shardax.export", 1, 2


def save(exported, path, vjp_order=0):
    """Writes a function of `jax.export` to a file."""
    tensors = {}
    function = _written(exported, "", vjp_order, tensors)
    _write(path, {"version": VERSION, "sha256": _digest(function, tensors), "function": function}, tensors)


def load(path):
    """The function in a file: of its arguments' leaves in order, to the list of its results' leaves."""
    said, tensors = _read(path)
    function = said["function"]
    if said["version"] not in (VERSION, OPEN_VERSION) or said["sha256"] != _digest(function, tensors):
        raise ValueError(f"{path}: not what was written, or of another version")
    return _function(function, "", tensors)


def _digest(function, tensors):
    digest = hashlib.sha256(_json(function).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name][2])
    return digest.hexdigest()


def _json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _written(exported, prefix, vjp_order, tensors):
    if not all(jax.export.is_symbolic_dim(n) is False for aval in exported.in_avals for n in aval.shape):
        raise ValueError(f"{exported.fun_name}: sizes are symbols; save export.export(jax.jit(exported.call))(*arguments_of_one_size)")
    if exported.ordered_effects or exported.unordered_effects:
        raise ValueError(f"{exported.fun_name}: only functions without effects")
    with mlir.make_ir_context():
        module = ir.Module.parse(exported.mlir_module())
        if exported.uses_global_constants or "jax.uses_shape_polymorphism = true" in exported.mlir_module():
            module = mlir.refine_polymorphic_shapes(module)  # symbols within become the numbers that it is exported for
        text = _flat_groups(module.operation.get_asm(enable_debug_info=False)).encode()
    for platform in exported.platforms:
        tensors[f"{prefix}stablehlo.{platform}"] = ("U8", [len(text)], text)
    mesh = _mesh(exported, text.decode())
    spec = lambda sharding: sharding and mesh and [[a] if isinstance(a, str) else list(a or ()) for a in sharding.spec]
    inexact = [jax.dtypes.issubdtype(a.dtype, np.inexact) or a.dtype == jax.numpy.bfloat16 for a in exported.in_avals]
    # Its programs take and give random keys as their words.
    is_key = lambda a: jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key)
    typed = lambda a: ("uint32", [*a.shape, 2]) if is_key(a) else (str(a.dtype), list(a.shape))
    aval = lambda a: {"dtype": typed(a)[0], "shape": typed(a)[1], "weak_type": False}
    arguments, keywords = jax.tree.unflatten(exported.in_tree, [None] * len(exported.in_avals)), {}
    if len(arguments) == 2 and isinstance(arguments[1], dict):
        arguments, keywords = arguments
    if keywords:
        raise ValueError(f"{exported.fun_name}: arguments by name have no place in Rust: {sorted(keywords)}")
    vjp = None
    if vjp_order > 0:
        if not all(inexact):
            raise ValueError(f"{exported.fun_name}: the derivative of a function of integers is not written")
        vjp = _written(exported.vjp(), f"{prefix}vjp.", vjp_order - 1, tensors)
    return {
        "name": exported.fun_name,
        "in_avals": [aval(a) for a in exported.in_avals],
        "kept": list(exported.module_kept_var_idx),
        "out_avals": [aval(a) for a in exported.out_avals],
        "in_specs": [spec(exported._in_named_shardings[i]) for i in exported.module_kept_var_idx],
        "out_specs": [spec(s) for s in exported._out_named_shardings],
        "mesh": mesh,
        "in_tree": _steps(exported.in_tree, arguments=True),
        "out_tree": _steps(exported.out_tree),
        "in_paths": _paths(exported.in_tree, arguments=True),
        "out_paths": _paths(exported.out_tree),
        "platforms": sorted(exported.platforms),
        "captures": [],
        "vjp": vjp,
    } | _types(exported, mesh)


def _flat_groups(text):
    """The text with groups of devices as lists, where they are axes of a mesh: older StableHLO has no such groups."""
    axes = lambda mesh: {name: int(size) for name, size in re.findall(r'"(.*?)"=(\d+)', mesh)}
    meshes = {name: axes(mesh) for name, mesh in re.findall(r"sdy\.mesh @(\w+) = <\[(.*?)\]>", text)}

    def groups(found):
        sizes, within = meshes[found[1]], re.findall(r'name = "(.*?)"', found[2])
        names = list(sizes)
        across = [name for name in names if name not in within]
        devices = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
        devices = devices.transpose([names.index(name) for name in across + within])
        devices = devices.reshape(-1, math.prod(sizes[name] for name in within))
        return f"dense<{devices.tolist()}> : tensor<{devices.shape[0]}x{devices.shape[1]}xi64>"

    return re.sub(r"#stablehlo\.replica_group_mesh_axes<mesh = @(\w+), axes = \[(.*?)\]>", groups, text)


def _types(exported, mesh):
    """The types of the mesh's axes, where one is explicit."""
    avals = [*exported.in_avals, *exported.out_avals]
    types = {a.sharding.mesh.axis_types for a in avals if mesh and a.sharding.mesh.axis_names}
    if len(types) > 1:
        raise ValueError(f"{exported.fun_name}: only functions over one mesh: {types}")
    return {"axis_types": [t.name for t in types.pop()]} if types else {}


def _mesh(exported, text):
    """The axes of the one mesh that it is for, as its text names them; none for one device."""
    if exported.nr_devices == 1:
        return []
    meshes = re.findall(r"sdy\.mesh @\w+ = <\[(.*?)\]>", text)
    meshes = list(dict.fromkeys(meshes))  # a `shard_map` names its mesh again for the groups of its collectives
    axes = [[[name, int(size)] for name, size in re.findall(r'"(.*?)"=(\d+)', mesh)] for mesh in meshes]
    if len(axes) != 1 or np.prod([size for _, size in axes[0]]) != exported.nr_devices:
        raise ValueError(f"{exported.fun_name}: only functions over one mesh, without an order of devices: {meshes}")
    return axes[0]


def _tree(tree, arguments):
    tree = jax.tree.unflatten(tree, range(tree.num_leaves))
    return tree[0] if arguments else tree  # what is given by name comes behind


def _steps(tree, arguments=False):
    def steps(node):
        if node is None:
            return ["none"]
        if type(node) is dict:
            return [{"map": sorted(node)}, *(s for key in sorted(node) for s in steps(node[key]))]
        if type(node) in (tuple, list):
            return [{type(node).__name__: len(node)}, *(s for child in node for s in steps(child))]
        if type(node) is int:
            return ["array"]
        raise ValueError(f"{type(node).__name__} has no place in Rust: use dictionaries, tuples and lists")

    return steps(_tree(tree, arguments))


def _paths(tree, arguments=False):
    def paths(node, path):
        if type(node) is dict:
            return [p for key in sorted(node) for p in paths(node[key], f"{path}[{json.dumps(key)}]")]
        if type(node) in (tuple, list):
            return [p for i, child in enumerate(node) for p in paths(child, f"{path}[{i}]")]
        return [] if node is None else [path]

    return paths(_tree(tree, arguments), "")


def _function(said, prefix, tensors):
    if "symbols" not in said:
        return _sized(said, prefix, tensors)
    made = {}

    def call(*leaves):
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        if shapes not in made:
            made[shapes] = _sized(*_at(said, prefix, tensors, _solved(said, shapes)))
        return made[shapes](*leaves)

    return call


def _size(text, values):
    """The value of a sum of products, such as `2*b + 1`."""
    terms = re.findall(r"([+-]?) *([\w*]+)", text)
    factor = lambda f: int(f) if f.isdigit() else values[f]
    return sum((-1 if sign == "-" else 1) * math.prod(map(factor, term.split("*"))) for sign, term in terms)


def _solved(said, shapes):
    """The values of the symbols for arguments of these shapes."""
    bounds = {name: (low, high) for name, low, high in said["symbols"]}
    pairs = [pair for sizes, shape in zip(said["in_sizes"], shapes) for pair in zip(sizes, shape)]
    values, before = {}, None
    while len(values) != before:
        before = len(values)
        for text, size in pairs:
            factors = [set(term.split("*")) for _, term in re.findall(r"([+-]?) *([\w*]+)", text)]
            open_ = {f for all in factors for f in all if not f.isdigit() and f not in values}
            if len(open_) == 1:
                (name,) = open_
                offset, one, two = (_size(text, values | {name: n}) for n in (0, 1, 2))
                if one != offset and two - one == one - offset:
                    values[name] = (size - offset) // (one - offset)
    wrong = [f"{text} is {size}" for text, size in pairs if set(values) != set(bounds) or _size(text, values) != size]
    wrong += [f"{name} is {n}" for name, n in values.items() if not bounds[name][0] <= n <= bounds[name][1]]
    if wrong or any(len(a) != len(b) for a, b in zip(said["in_sizes"], shapes)):
        raise ValueError(f"{said['name']} takes {said['in_sizes']} for {bounds}, and was called with {shapes}: {', '.join(wrong)}")
    return values


def _at(said, prefix, tensors, values):
    """The function for these values of its symbols."""

    def number(found):
        dtype, expression = found[1].split(" ", 1) if " " in found[1] and "float" in found[1] else (None, found[1])
        if dtype is None:
            return str(_size(expression, values))
        value = 1 / _size(expression[2:], values) if expression.startswith("1/") else _size(expression, values)
        return f"{float(np.dtype(dtype).type(value)):.17e}"

    sized = lambda avals, sizes: [a | {"shape": [_size(n, values) for n in s]} for a, s in zip(avals, sizes)]
    made = {k: v for k, v in said.items() if k not in ("symbols", "in_sizes", "out_sizes")}
    made |= {"in_avals": sized(said["in_avals"], said["in_sizes"]), "out_avals": sized(said["out_avals"], said["out_sizes"])}
    tensors = dict(tensors)
    for platform in said["platforms"]:
        name = f"{prefix}stablehlo.{platform}"
        text = re.sub(r"\$\(([^)]*)\)", number, bytes(tensors[name][2]).decode())
        tensors[name] = ("U8", [len(text)], text.encode())
    if said["vjp"] is not None:
        made["vjp"], _, tensors = _at(said["vjp"], f"{prefix}vjp.", tensors, values)
    return made, prefix, tensors


def _sized(said, prefix, tensors):
    if any(a["dtype"].startswith("key<") for a in said["in_avals"] + said["out_avals"]):
        raise ValueError(f"{said['name']}: random keys are uint64 in its program; export a function of their `random::key_data`")
    avals = lambda avals: tuple(jax.core.ShapedArray(a["shape"], a["dtype"]) for a in avals)
    names, sizes = zip(*said["mesh"]) if said["mesh"] else ((), ())
    types = [getattr(AxisType, name) for name in said.get("axis_types", ["Auto"] * len(names))]
    mesh = AbstractMesh(sizes, names, axis_types=tuple(types))
    # One device, or no word of how: as the caller has it.
    named = lambda specs: tuple(s if s is None or not names else NamedSharding(mesh, PartitionSpec(*map(tuple, s))) for s in specs)
    captures = [_array(tensors[f"{prefix}captures.{i}"], a["dtype"]) for i, a in enumerate(said["captures"])]
    texts = {p: bytes(tensors[f"{prefix}stablehlo.{p}"][2]).decode() for p in said["platforms"]}
    with mlir.make_ir_context():
        module = _export._module_to_bytecode(ir.Module.parse(next(iter(texts.values()))))
    ins, outs = named(said["in_specs"]), named(said["out_specs"])
    # Over explicit axes the types contain the shardings of arrays.
    typed = lambda a, s: a.update(sharding=s) if s is not None and AxisType.Explicit in types else a
    in_avals = tuple(map(typed, avals(said["captures"] + [said["in_avals"][i] for i in said["kept"]]), ins))
    out_avals = tuple(map(typed, avals(said["out_avals"]), outs))
    # A field that JAX had until 0.10.
    is_field = any(field.name == "_has_named_shardings" for field in dataclasses.fields(jax.export.Exported))
    earlier_fields = {"_has_named_shardings": True} if is_field else {}
    exported = jax.export.Exported(
        **earlier_fields, fun_name=said["name"], in_tree=jax.tree.structure((tuple(in_avals), {})), in_avals=in_avals,
        out_tree=jax.tree.structure(list(said["out_avals"]), is_leaf=lambda x: isinstance(x, dict)), out_avals=out_avals,
        _in_named_shardings=ins, _out_named_shardings=outs,
        in_shardings_hlo=(None,) * len(ins), out_shardings_hlo=(None,) * len(outs),
        nr_devices=int(np.prod(sizes, dtype=int)), platforms=(next(iter(texts)),), ordered_effects=(), unordered_effects=(), disabled_safety_checks=(),
        mlir_module_serialized=module, calling_convention_version=jax.export.maximum_supported_calling_convention_version,
        module_kept_var_idx=tuple(range(len(in_avals))), uses_global_constants=False, _get_vjp=None)
    call = lambda *leaves: exported.call(*captures, *(leaves[i] for i in said["kept"]))
    if said["vjp"] is None:
        return call
    back = _sized(said["vjp"], f"{prefix}vjp.", tensors)
    inexact = lambda avals: [i for i, a in enumerate(avals) if "float" in a["dtype"] or "complex" in a["dtype"]]
    moving, results = inexact(said["in_avals"]), inexact(said["out_avals"])

    def backward(leaves, cotangents):
        of = dict(zip(moving, back(*leaves, *(cotangents[i] for i in results))))
        return tuple(of[i] if i in of else np.zeros(x.shape, jax.dtypes.float0) for i, x in enumerate(leaves))

    function = jax.custom_vjp(call)
    function.defvjp(lambda *leaves: (call(*leaves), leaves), backward)
    return function


def _array(tensor, dtype):
    return np.frombuffer(tensor[2], dtype).reshape(tensor[1][:-1] if dtype.startswith("complex") else tensor[1])


def _write(path, said, tensors):
    header, at = {"__metadata__": {KEY: _json(said)}}, 0
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name in sorted(tensors):
            file.write(tensors[name][2])


def _read(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    said = json.loads(header.pop("__metadata__")[KEY])
    return said, {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in header.items()}
