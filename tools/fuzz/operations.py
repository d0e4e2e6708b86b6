"""The operations that random programs are made of: those of the golden cases, each with the parameters that a case has.

One table serves the golden values and the random programs: in Python the functions of `tools/golden/families`, in Rust
`crates/shardax/tests/golden_support`, which finds the same function by family, name, op, parameters and doc.
"""

import importlib
import json

import jax
import numpy as np
from jax import lax

FAMILIES = {
    "unary": 22,
    "binary": 16,
    "reduce": 14,
    "shape": 12,
    "nn": 7,
    "select": 5,
    "index": 6,
    "dot": 6,
    "sort": 4,
    "convert": 3,
    "conv": 3,
    "window": 3,
    "control": 5,
    "transform": 2,
    "linalg": 2,
    "random": 3,
}

# Results follow from the inputs without rounding: errors of what comes before pass through, none are added.
EXACT_FAMILIES = {"select", "shape", "index", "sort", "convert"}
EXACT = set(
    "neg abs sign floor ceil round max min eq ne lt le gt ge argmax argmin any all cummax cummin relu relu6 hard_tanh leaky_relu"
    " one_hot max_pool real imag conj is_finite".split()
)
# JAX has positions of 64 bits in its 64-bit mode, shardax of 32 always; random keys are made from seeds of 32 bits.
NARROW_ONLY = {"argmax", "argmin", "argsort", "top_k", "searchsorted", "bincount", "median", "one_hot", "accuracy", "axis_index", "fori_loop"}
# Operations on complex numbers, of the families that compare elsewhere: shardax orders no complex numbers, JAX does, by their
# real parts first.
COMPLEX_FAMILIES = {"unary", "dot", "shape", "convert", "linalg", "spmd"}
COMPLEX_OPS = set("add sub mul div pow eq ne integer_pow sum prod mean var std cumsum cumprod select where at_add at_set take getitem".split())
# The golden case tells the function by its values, or it draws nothing from its operands.
LEFT_OUT = {"key", "clone"}


class Operation:
    """A function with its parameters, and operands that suit it."""

    def __init__(self, family, case):
        self.family = family
        self.name = case.name
        self.op = case.op
        self.params = case.params
        self.doc = case.doc
        self.fn = case.fn
        self.inputs = case.inputs
        self.x64 = case.x64
        self.grad = case.grad is True
        self.tol = case.tol
        self.exact = family in EXACT_FAMILIES or case.op in EXACT
        self.elementwise = family in ("unary", "binary", "nn") and case.op not in ("glu", "one_hot", "accuracy")
        self.elementwise |= case.op in ("where", "select", "clip", "clamp")

    def call(self, *operands):
        return jax.tree.leaves(self.fn(*operands))

    def step(self, operands):
        """The step as the file has it: `[family, op, operands, the rest]`."""
        rest = {"name": self.name}
        if self.params:
            rest["params"] = self.params
        if self.doc and self.family in ("index", "random"):
            rest["doc"] = self.doc
        return [self.family, self.op, operands, rest]


def orders_complex(operation, avals):
    """True if complex numbers would be ordered."""
    if not any(np.issubdtype(a.dtype, np.complexfloating) for a in avals):
        return False
    if operation.name in ("where_f32_double_where", "where_f32_nan_leak"):
        return True
    taken = operation.family in COMPLEX_FAMILIES and operation.op not in ("round", "sign", "pmax", "pmin")
    return not taken and operation.op not in COMPLEX_OPS


def differs(operation, avals, results):
    """True if shardax differs on purpose: an error where there is nothing to take, sums in other dtypes."""
    halves = any(np.dtype(a.dtype).itemsize == 2 and not np.issubdtype(a.dtype, np.integer) for a in avals)
    if operation.op == "reduce_window" and (operation.params or {}).get("kind") == "sum":
        return halves
    kinds = {(a.dtype.kind, a.dtype.itemsize) for a in avals if a.dtype.kind in "iu"}
    if not jax.config.jax_enable_x64 and ("u", 4) in kinds and any(kind == "i" for kind, _ in kinds):
        return True  # i64, which JAX has in its 64-bit mode alone
    if operation.op == "rem" and operation.family == "binary":
        return avals[0].shape != avals[1].shape  # lax's functions repeat scalars alone
    if operation.op == "broadcast_in_dim" and not operation.params.get("dims", True):
        return len(avals[0].shape) > 0
    if operation.op in ("sum", "prod", "cumsum", "cumprod") and jax.config.jax_enable_x64:
        return avals[0].dtype.kind in "iu" and avals[0].dtype.itemsize < 8  # summed in 32 bits
    if operation.name == "getitem_f32_integer":
        return avals[0].shape[0] < 2  # a plain index beyond the end is an error here
    taken = operation.op in ("take", "take_along_axis", "getitem", "gather", "at_get")
    return taken and avals[0].size == 0 and any(r.size for r in results)


class Collective:
    """A collective over mesh axes, with its parameters."""

    family, elementwise, tol, x64, inputs = "spmd", False, None, False, ()

    def __init__(self, op, fn, params):
        self.op = self.name = op
        self.params = params
        self.fn = fn
        self.grad = op not in ("pmax", "pmin", "axis_index")
        self.exact = op in ("pmax", "pmin", "all_gather", "all_gather_tiled", "ppermute", "all_to_all_tiled", "axis_index")

    def call(self, *operands):
        return [self.fn(*operands)]

    def step(self, operands):
        return [self.family, self.op, operands, {"params": self.params}]


COLLECTIVES = (
    "psum pmean pmax pmin axis_index all_gather all_gather_tiled psum_scatter_tiled ppermute all_to_all_tiled".split()
)


def collective(rng, axes, x):
    """A collective for a value of this shape over some of the axes (a dict of sizes), or None."""
    names = list(axes)
    chosen = [str(n) for n in rng.permutation(names)[: rng.integers(1, len(names) + 1)]]
    axis = chosen[0] if len(chosen) == 1 else tuple(n for n in names if n in chosen)
    size = int(np.prod([axes[n] for n in chosen]))
    rank = len(x.shape)
    dim = int(rng.integers(0, rank)) if rank else 0
    op = str(rng.choice(COLLECTIVES))
    params = {"axis": axis}
    if op in ("all_gather", "all_gather_tiled", "psum_scatter_tiled"):
        params["dim"] = dim
    if op == "all_to_all_tiled":
        params |= {"split": dim, "concat": (dim + 1) % max(rank, 1)}
    if op == "ppermute":
        order = rng.permutation(size)
        params["perm"] = [(int(i), int(j)) for i, j in enumerate(order)][: int(rng.integers(1, size + 1))]
    needed = {"all_gather_tiled": 1, "psum_scatter_tiled": 1, "all_to_all_tiled": 2}.get(op, 0)
    split = op in ("psum_scatter_tiled", "all_to_all_tiled")
    if op == "psum_scatter_tiled" and x.dtype == bool:
        return None
    if rank < needed or (split and x.shape[dim] % size) or (op == "ppermute" and not isinstance(axis, str)):
        return None
    return collective_of(op, params)


def keep_nan(extreme, x, axis):
    """XLA's extremes lose NaN on the CPU, shardax's do not."""
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return extreme
    lost = lax.psum(jax.numpy.isnan(x).astype(np.int32), axis) > 0
    return jax.numpy.where(lost, np.asarray(np.nan, x.dtype), extreme)


def collective_of(op, params):
    """The collective with these parameters."""
    axis, dim = params["axis"], params.get("dim")
    axis = axis if isinstance(axis, str) else tuple(axis)
    functions = {
        "psum": lambda x: lax.psum(x, axis),
        "pmean": lambda x: lax.pmean(x, axis),
        "pmax": lambda x: keep_nan(lax.pmax(x, axis), x, axis),
        "pmin": lambda x: keep_nan(lax.pmin(x, axis), x, axis),
        "axis_index": lambda x: lax.axis_index(axis),
        "all_gather": lambda x: lax.all_gather(x, axis, axis=dim),
        "all_gather_tiled": lambda x: lax.all_gather(x, axis, axis=dim, tiled=True),
        "psum_scatter_tiled": lambda x: lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, axis, [tuple(p) for p in params["perm"]]),
        "all_to_all_tiled": lambda x: lax.all_to_all(x, axis, params["split"], params["concat"], tiled=True),
    }
    return Collective(op, functions[op], params)


def table():
    """The operations of each family; of cases alike in all but their values, one."""
    found = {}
    for name in FAMILIES:
        family = importlib.import_module(f"families.{name}").family
        kept = {}
        for case in family.cases.values():
            # Results of these say nothing without a case of their own: no operands, or other layers' functions.
            if case.op in LEFT_OUT or (not case.inputs and name != "random") or not supported(name, case):
                continue
            # Cases of control flow and transformations are identified by their names.
            by_name = case.name if name in ("control", "transform") else None
            key = (case.op, json.dumps(case.params), case.doc, by_name, name_matters(name, case))
            if key not in kept or (case.grad is True and kept[key].grad is not True):
                kept[key] = case
        found[name] = [Operation(name, case) for case in kept.values()]
    return found


def name_matters(family, case):
    return case.name if (family, case.name) in NAMED else None


NAMED = {
    ("reduce", "sum_f32_where"),
    ("reduce", "mean_f32_where"),
    ("reduce", "cumsum_f32_flat"),
    ("select", "where_f32_plain"),
    ("select", "where_f32_double_where"),
    ("select", "where_f32_nan_leak"),
}


IN_CORE = set(
    "relu relu6 gelu_tanh gelu_erf silu elu selu celu leaky_relu softplus soft_sign sigmoid log_sigmoid hard_tanh hard_sigmoid"
    " mish glu one_hot accuracy".split()
)


def supported(family, case):
    if family == "sort" and case.op in ("one_hot", "median", "searchsorted"):
        return False  # the table has them for sizes like the golden cases' alone, or for sorted numbers
    if case.name == "at_set_f32_plain":
        return False  # a static index beyond the bounds is an error
    if case.name == "round_f32_decimals":
        return False  # what is too large to be scaled stays, JAX has infinity
    if family == "nn":
        return case.op in IN_CORE
    if family == "linalg":
        return all(x.shape[-1:] < (5,) for x in case.inputs) and "orthogonal" not in case.op
    if family == "random":
        return case.inputs and "permutation(key, 3000)" not in (case.doc or "") and "[1001]" not in (case.doc or "")
    return True
