"""Random programs over mesh axes of type `Explicit`: the shardings of their inputs, and the types that JAX gives."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

SIZES = {"x": 2, "y": 4}


def mesh():
    """The mesh, both of whose axes are explicit."""
    global _mesh
    _mesh = _mesh or jax.make_mesh(tuple(SIZES.values()), tuple(SIZES))
    return _mesh


_mesh = None


def spec(rng, shape):
    """Axes for each dimension that they divide, each axis at most once."""
    dims = [[] for _ in shape]
    if rng.random() < 0.25:
        return dims
    for name in rng.permutation(list(SIZES)):
        fits = [d for d, n in enumerate(shape) if n and n % (SIZES[name] * int(np.prod([SIZES[a] for a in dims[d]]))) == 0]
        if fits and rng.random() < 0.7:
            dims[int(rng.choice(fits))].append(str(name))
    return dims


def partition(dims):
    return P(*[tuple(d) if d else None for d in dims])


def typed(shape, dtype, dims):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh(), partition(dims)))


def dims_of(aval):
    """The axes of each dimension of a type."""
    entries = tuple(aval.sharding.spec) if aval.sharding is not None else ()
    entries += (None,) * (len(aval.shape) - len(entries))
    return [[e] if isinstance(e, str) else list(e or ()) for e in entries]


def differs(operation, avals, results):
    """True if shardax types the operation differently on purpose, or rejects it: where JAX drops an axis without a word or puts
    it on another dimension."""
    dims = [dims_of(aval) for aval in avals]
    params = operation.params
    if operation.op == "bitcast_convert_type":
        return len(results[0].shape) < len(avals[0].shape) and bool(dims[0][-1])
    if operation.op == "conv_general_dilated":
        # Entries go to the result by position.
        return "layout" in params and params["layout"][0] != params["layout"][2]
    if operation.op == "einsum" and len(avals) > 2:
        # Which are multiplied first is free where the work is the same.
        return True
    if operation.op == "einsum" and len(avals) == 2 and "->" in params["spec"] and "." not in params["spec"]:
        # The left operand's entries of batch dimensions are taken, though the right one's may be split.
        (a, b), out = params["spec"].split("->")[0].split(","), params["spec"].split("->")[1]
        return any(dims[0][a.index(x)] != dims[1][b.index(x)] for x in out if x in a and x in b)
    if operation.op == "dot_general":
        return any(dims[0][i] != dims[1][j] for i, j in zip(*params.get("batch", [[], []])))
    # Of an empty result JAX keeps entries of dimensions that were sliced.
    return any(0 in r.shape for r in results)


def types(f, args):
    """The types of the results of `f`, with shardings."""
    with jax.set_mesh(mesh()):
        return jax.tree.leaves(jax.eval_shape(f, *args))


class Reshard:
    """The operation, which leaves values on one device as they are."""

    family, op, name, elementwise, tol, x64, inputs, grad, exact = "spmd", "reshard", "reshard", False, None, False, (), True, True

    def __init__(self, dims):
        self.params = {"spec": dims}

    def call(self, x):
        empty = jax.sharding.get_abstract_mesh().empty
        return [x if empty else jax.sharding.reshard(x, partition(self.params["spec"]))]

    def step(self, operands):
        return [self.family, self.op, operands, {"params": self.params}]
