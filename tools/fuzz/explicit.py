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


def loses_axis(operation, avals, results):
    """Whether JAX drops an axis from a type without a word, which shardax refuses: a bitcast of a split last dimension."""
    drops = operation.op == "bitcast_convert_type" and len(results[0].shape) < len(avals[0].shape)
    return drops and bool(dims_of(avals[0])[-1])


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
