"""Random programs: what they are made of, and what JAX makes of them in each mode."""

import warnings

import explicit
import jax
import jax.numpy as jnp
import nests
import numpy as np
from golden import COMPLEX, DTYPES, SIXTY_FOUR, TOLERANCE, short
from jax.sharding import Mesh
from operations import FAMILIES, NARROW_ONLY, collective, differs, orders_complex

warnings.filterwarnings("ignore")
# Writing into narrower dtypes, which JAX is about to reject, and shardax does.
warnings.filterwarnings("error", category=FutureWarning)

DEVICES = 8
MODES = {"eager": 13, "jit": 15, "grad": 18, "jvp": 12, "vmap": 14, "hvp": 9, "pmap": 8, "shard_map": 11}
MESHES = [{"i": 8}, {"i": 4, "j": 2}, {"i": 2, "j": 4}]

# Elements in a value, and in all results of a program.
VALUE_SIZE, RESULT_SIZE = 96, 260
# A result whose error may exceed this much of it says nothing.
WORST = {"f16": 0.1, "bf16": 0.2, "f32": 0.02, "c64": 0.02, "f64": 1e-6, "c128": 1e-6}
EPSILON = {"f16": 2**-11, "bf16": 2**-8, "f32": 2**-24, "c64": 2**-24, "f64": 2**-53, "c128": 2**-53}


class Rejected(Exception):
    """JAX has no answer, or none that could be compared."""


def is_float(dtype):
    return short(dtype) in TOLERANCE


def kind(dtype):
    return "float" if short(dtype) in TOLERANCE and short(dtype) not in COMPLEX else np.dtype(dtype).kind


# Families and operations that add products or many numbers: what overflows depends on the order.
SUMS = set("dot conv linalg window sum mean var std cumsum prod cumprod pmean psum psum_scatter_tiled".split())


def tame(x):
    """The array with numbers whose products and sums do not overflow; infinities and NaN stay."""
    if not is_float(x.dtype) or not x.size:
        return x
    if short(x.dtype) in COMPLEX:
        parts = np.array(x)
        parts.real, parts.imag = tame(np.array(x.real)), tame(np.array(x.imag))
        return parts
    most = {"f16": 50.0, "f64": 1e70}.get(short(x.dtype), 1e9)
    wide = x.astype(np.float64)
    return np.where(np.isfinite(wide) & (np.abs(wide) > most), np.sign(wide) * most, wide).astype(x.dtype)


class Values:
    """Random inputs. A fifth of them has special values: NaN, infinities, denormals, the largest and the smallest."""

    def __init__(self, rng, special=0.2):
        self.rng = rng
        self.special = special

    def draw(self, shape, dtype, like=None):
        rng, name = self.rng, short(dtype)
        if name == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if name not in TOLERANCE:
            info = np.iinfo(dtype)
            if like is not None and like.size and np.abs(like.astype(np.float64)).max() < 20:
                lo, hi = int(like.min()) - 1, int(like.max()) + 2
            elif rng.random() < 0.1:
                lo, hi = info.min, info.max
            else:
                lo, hi = -9, 10
            lo = max(lo, info.min)
            hi = max(min(hi, info.max), lo + 1)
            return rng.integers(lo, hi, shape, dtype=np.int64 if info.min < 0 else np.uint64).astype(dtype)
        parts = [self.floats(shape, name) for _ in range(2 if name in COMPLEX else 1)]
        return (parts[0] + 1j * parts[1] if len(parts) == 2 else parts[0]).astype(dtype)

    def floats(self, shape, name):
        rng = self.rng
        style = rng.random()
        if style < 0.25:
            x = rng.integers(-3, 4, shape).astype(np.float64)  # ties, and exact sums
        elif style < 0.45:
            x = rng.uniform(0.1, 0.9, shape)
        elif style < 0.6:
            x = rng.uniform(0.3, 3.0, shape)
        else:
            x = rng.standard_normal(shape) * rng.choice([1.0, 1.0, 4.0, 30.0])
        real = np.dtype(DTYPES[COMPLEX.get(name, name)])
        if rng.random() < self.special:
            info = jnp.finfo(real)
            tiny, large = float(info.tiny), float(info.max)
            special = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny / 8, -tiny / 2, tiny, large, -large / 2, 1.0, -1.0]
            count = int(rng.integers(1, 5))
            x = np.where(rng.random(shape) < 0.4, rng.choice(rng.choice(special, count), shape), x)
        with np.errstate(over="ignore"):
            return x.astype(real)


class Program:
    """A mode, inputs, steps, and which values are the results."""

    def __init__(self, mode):
        self.mode = mode
        self.inputs = []  # what the body sees: one device's part, one element of the batch
        self.steps = []  # (operation, operands)
        self.avals = []  # of each value: inputs first, results of steps after
        self.owner = []  # the step that made each value, None for inputs
        self.x64 = False

    def values(self, inputs, noise):
        """All values, each step's results disturbed by its noise; None leaves them as they are.

        The noise of the body of a nest is one array of signs for all steps.
        """
        made = [jnp.asarray(x) for x in inputs]
        at = 0
        for operation, operands in self.steps:
            xs = [made[i] for i in operands]
            nested = operation.family == "nest" and noise is not None
            shared = isinstance(noise, jax.Array)
            found = operation.call(*xs, noise=jnp.sign(noise if shared else noise[at])) if nested else operation.call(*xs)
            for x in found:
                if noise is None or operation.exact or not is_float(x.dtype):
                    made.append(x)
                else:
                    made.append(disturb(x, jnp.roll(noise, at) * 2 * EPSILON[short(x.dtype)] if shared else noise[at]))
                at += 1
        return made


def disturb(x, noise):
    n = noise.reshape(-1)[: x.size].reshape(x.shape)
    if jnp.iscomplexobj(x):
        n = n.astype(x.real.dtype)
        return jax.lax.complex(x.real * (1 + n), x.imag * (1 + n))
    return x * (1 + n.astype(jnp.float32 if x.dtype.itemsize < 4 else x.dtype)).astype(x.dtype)


def broadcast(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1]))


class Builder:
    """Makes one random program."""

    def __init__(self, rng, table, nested=False):
        self.rng = rng
        self.table = table
        self.nested = nested
        self.depth = 0
        self.draw = Values(rng, 0.04 if nested else 0.2)

    def program(self, mode=None):
        rng = self.rng
        names = list(MODES)
        weights = np.array([MODES[m] for m in names], float)
        if mode == "nested":
            mode = None
        self.mode = mode or str(rng.choice(names, p=weights / weights.sum()))
        p = Program(self.mode)
        p.x64 = bool(rng.random() < 0.15)
        p.mesh = {"i": DEVICES} if self.mode == "pmap" else MESHES[int(rng.integers(len(MESHES)))]
        several = self.mode in ("pmap", "shard_map", "explicit")
        p.diff = self.mode in ("grad", "jvp", "hvp") or (several and rng.random() < 0.35)
        p.x64 &= self.mode != "explicit"
        if self.mode == "explicit":
            p.mesh = explicit.SIZES
        p.check_vma = bool(rng.random() < 0.7)
        p.jit = bool(rng.random() < 0.6)
        if p.x64:
            self.main = str(rng.choice(["f64", "f64", "f64", "c128", "i64", "u64"]))
        else:
            self.main = str(rng.choice(["f32"] * 9 + ["bf16"] * 2 + ["f16"] * 2 + ["c64", "i32", "i8", "u8", "u32", "i16", "u16", "bool"]))
        if p.diff and self.main not in TOLERANCE:
            self.main = "f64" if p.x64 else "f32"
        self.p = p
        with jax.enable_x64(p.x64):
            self.fill()
            if any(o.family in SUMS or o.op in SUMS for o, _ in p.steps):
                p.inputs = [tame(x) for x in p.inputs]
            if p.diff and any(o.op in ("reduce_window", "max_pool") for o, _ in p.steps):
                # In windows with NaN JAX's gradients go to an element after it, shardax's nowhere.
                p.inputs = [np.where(np.isnan(x), 1, x).astype(x.dtype) if is_float(x.dtype) else x for x in p.inputs]
            if any(o.op == "triangular_solve" for o, _ in p.steps):
                # Where JAX inverts blocks of the matrix, a zero on its diagonal makes NaN of what is infinite.
                p.inputs = [np.where(x == 0, 1, x).astype(x.dtype) if is_float(x.dtype) else x for x in p.inputs]
            self.choose_results()
        self.reject_known(p)
        return p

    def reject_known(self, p):
        """Rejects what is not as in JAX, for a reason that the page on differences gives."""
        for operation, operands in p.steps:
            dtypes = [short(p.avals[i].dtype) for i in operands]
            for inner in getattr(operation, "bodies", []):
                self.reject_known(inner.program)
            if operation.op == "avg_pool" and any(name in ("f16", "bf16") for name in dtypes):
                raise Rejected("an average of half precision")
            if operation.family == "dot" and any(name in COMPLEX for name in dtypes) and (operation.params or {}).get("preferred"):
                raise Rejected("a complex product with a preferred dtype")

    def dtype(self, like):
        """A dtype for a fresh operand where the golden case has `like`."""
        rng = self.rng
        name = short(like.dtype)
        if name in TOLERANCE and name not in COMPLEX:
            if self.nested and rng.random() < 0.1:
                return DTYPES[str(rng.choice(["f32", "bf16", "f16"]))]
            if self.main in TOLERANCE and rng.random() < 0.92:
                return DTYPES[self.main]
            return DTYPES["f64" if self.p.x64 else "f32"]
        if name in COMPLEX:
            return DTYPES["c128" if self.p.x64 else "c64"]
        if name == "bool":
            return DTYPES["bool"]
        if self.main in ("i8", "u8", "i16", "u16", "u32", "i32", "i64", "u64") and rng.random() < 0.7:
            return DTYPES[self.main]
        return like.dtype

    def size(self):
        if self.mode == "explicit":
            return int(self.rng.choice([1, 2, 4, 8], p=[0.1, 0.2, 0.35, 0.35]))
        return int(self.rng.choice([0, 1, 2, 3, 4, 5], p=[0.04, 0.16, 0.25, 0.25, 0.2, 0.1]))

    def fresh(self, shape, dtype, like=None):
        x = self.draw.draw(shape, dtype, like)
        self.p.inputs.append(x)
        return x

    def attempt(self, operation):
        """Operands for the operation: values of the program, or fresh inputs."""
        rng, p = self.rng, self.p
        renamed = {}
        operands, fresh = [], []
        # The shape of the first operand, for those that are taken element by element.
        first = None
        any_rank = operation.elementwise or (operation.family in ("reduce", "sort", "shape") and rng.random() < 0.4)
        for like in operation.inputs:
            fits = [
                i
                for i, a in enumerate(p.avals)
                if kind(a.dtype) == kind(like.dtype)
                and (len(a.shape) == like.ndim or any_rank)
                and (first is None or broadcast(a.shape, first))
            ]
            if operation.op == "select_n" and not operands:
                fits = []  # numbers of cases that there are none of choose what they like
            late = [i for i in fits if p.owner[i] is not None]
            if fits and rng.random() < (0.85 if like.dtype.kind != "u" else 0.0):
                operands.append(int(rng.choice(late if late and rng.random() < 0.8 else fits)))
                if operation.elementwise and first is None:
                    first = p.avals[operands[-1]].shape
                continue
            if first is not None:
                shape = tuple(1 if rng.random() < 0.15 else n for n in first[int(rng.random() < 0.1) :])
                x = self.draw.draw(shape, self.dtype(like), like)
                operands.append(len(p.avals) + len(fresh))
                fresh.append(x)
                continue
            shape = []
            keep = rng.random() < (0.1 if self.mode == "explicit" else 0.4)
            for n in like.shape:
                if n not in renamed:
                    renamed[n] = n if keep else self.size()
                shape.append(renamed[n])
            if operation.family == "random" and like.dtype == np.uint32:
                x = rng.integers(0, 2**32, like.shape, dtype=np.uint32)
            else:
                dtype = like.dtype if operation.family in ("convert", "random") else self.dtype(like)
                x = self.draw.draw(tuple(shape), dtype, like)
            if operation.op == "select_n" and not operands and x.dtype != bool:
                x = np.clip(x, 0, len(operation.inputs) - 2)
            operands.append(len(p.avals) + len(fresh))
            fresh.append(x)
        return operands, fresh

    def fill(self, wanted=None):
        """Steps until there are enough."""
        rng, p = self.rng, self.p
        families = list(FAMILIES)
        weights = np.array([FAMILIES[f] for f in families], float)
        if self.mode in ("pmap", "shard_map"):
            weights[[families.index(f) for f in ("linalg", "transform", "control", "random")]] *= 0.3
        if self.mode == "hvp":
            weights[[families.index(f) for f in ("linalg", "transform", "control")]] *= 0.4
        weights /= weights.sum()
        wanted = wanted or (int(rng.integers(1, 7)) if self.mode != "eager" else int(rng.integers(1, 5)))
        linalg = 0
        for _ in range(60):
            if len(p.steps) >= wanted:
                break
            if self.mode in ("pmap", "shard_map") and p.steps and rng.random() < 0.4:
                i = int(rng.integers(len(p.avals)))
                operation = collective(rng, p.mesh, p.avals[i])
                if operation is None or (p.diff and not operation.grad):
                    continue
                if p.x64 and operation.op in NARROW_ONLY:
                    continue
                self.add(operation, [i], [])
                continue
            if self.mode == "explicit" and p.steps and rng.random() < 0.2:
                i = int(rng.integers(len(p.avals)))
                self.add(explicit.Reshard(explicit.spec(rng, p.avals[i].shape)), [i], [])
                continue
            if self.nested and self.depth < nests.MAX_DEPTH and rng.random() < (0.5 if self.depth == 0 else 0.25):
                nests.grow(self)
                continue
            family = str(rng.choice(families, p=weights))
            operation = self.table[family][int(rng.integers(len(self.table[family])))]
            if (p.diff and not operation.grad and not self.nested) or (p.x64 and operation.op in NARROW_ONLY):
                continue
            if operation.x64 != p.x64 and (operation.x64 or family in ("random", "convert")):
                continue
            # Decompositions take longer to compile than all else together.
            if family == "linalg" and linalg:
                continue
            for _ in range(6):
                operands, fresh = self.attempt(operation)
                if self.add(operation, operands, fresh):
                    linalg += family == "linalg"
                    break
        if not p.steps:
            raise Rejected("no steps")

    def add(self, operation, operands, fresh):
        p = self.p
        if len(p.steps) == 0 and not fresh and operation.inputs:
            return False
        avals = p.avals + [self.type_of(x) for x in fresh]
        if orders_complex(operation, [avals[i] for i in operands]):
            return False
        try:
            if self.mode in ("pmap", "shard_map"):
                results = self.in_mesh(operation, [avals[i] for i in operands])
            elif self.mode == "explicit":
                results = explicit.types(operation.call, [avals[i] for i in operands])
            else:
                results = jax.eval_shape(operation.call, *[avals[i] for i in operands])
        except Exception:
            return False
        if self.mode == "explicit" and explicit.differs(operation, [avals[i] for i in operands], results):
            return False
        if differs(operation, [avals[i] for i in operands], results):
            return False
        if p.diff and not operation.grad and any(is_float(r.dtype) for r in results):
            return False
        if not results or any(r.size > VALUE_SIZE or len(r.shape) > 5 or jax.dtypes.issubdtype(r.dtype, jax.dtypes.extended) for r in results):
            return False
        if len(results) > 4 or any(short(r.dtype) in SIXTY_FOUR for r in results) != p.x64 and not p.x64:
            return False
        # Values are numbered inputs first: a fresh one moves the results that are there already.
        if fresh:
            at, n = len(p.inputs), len(fresh)
            move = lambda i: i if i < at else i + n  # noqa: E731
            before = len(p.avals)
            operands = [i - before + at if i >= before else move(i) for i in operands]
            p.steps = [(o, [move(i) for i in ids]) for o, ids in p.steps]
            p.avals[at:at] = avals[before:]
            p.owner[at:at] = [None] * n
            p.inputs += fresh
        p.steps.append((operation, operands))
        p.avals += results
        p.owner += [len(p.steps) - 1] * len(results)
        return True

    def type_of(self, x):
        if self.mode == "explicit":
            return explicit.typed(x.shape, x.dtype, explicit.spec(self.rng, x.shape))
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    def in_mesh(self, operation, avals):
        mesh = jax.sharding.AbstractMesh(tuple(self.p.mesh.values()), tuple(self.p.mesh))
        spec = jax.sharding.PartitionSpec()
        found = []

        def body(*xs):
            found[:] = jax.eval_shape(operation.call, *xs)
            return xs

        f = jax.shard_map(body, mesh=mesh, in_specs=(spec,) * len(avals), out_specs=(spec,) * len(avals), check_vma=False)
        jax.eval_shape(f, *avals)
        return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in found]

    def choose_results(self):
        p, rng = self.p, self.rng
        ids = [i for i, o in enumerate(p.owner) if o is not None]
        if p.diff:
            # The last values, and what else nothing uses.
            used = {i for _, operands in p.steps for i in operands}
            ids = [i for i in ids if is_float(p.avals[i].dtype) and (i not in used or i == ids[-1])]
            p.wrt = [i for i, x in enumerate(p.inputs) if is_float(x.dtype)]
            if len(p.wrt) > 1 and rng.random() < 0.3:
                p.wrt = sorted(int(i) for i in rng.choice(p.wrt, len(p.wrt) - 1, replace=False))
            if not ids or not p.wrt:
                raise Rejected("nothing to differentiate")
        p.results = ids[-8:]


# JAX's results of a program.


def noises(p, rng, trial):
    """For each step's results as much noise as rounding makes, and more; none in the first trial."""
    out = []
    for aval, owner in zip(p.avals[len(p.inputs) :], p.owner[len(p.inputs) :]):
        operation = p.steps[owner][0]
        if operation.family != "nest" and (not is_float(aval.dtype) or operation.exact):
            out.append(np.zeros(0, np.float32))
            continue
        name = short(aval.dtype)
        size = 2 * EPSILON.get(name, 1.0)
        if operation.tol and operation.tol > TOLERANCE[name] and name in ("f32", "c64"):
            size = operation.tol / 8
        if operation.family == "control":
            # XLA keeps or drops the rounding of values inside to the dtypes of the operands.
            dtypes = [short(p.avals[i].dtype) for i in p.steps[owner][1] if is_float(p.avals[i].dtype)]
            size = max([size, *(2 * EPSILON[dtype] for dtype in dtypes)])
        noise = rng.choice([-1.0, 1.0], VALUE_SIZE) * size * (trial > 0)
        out.append(noise.astype(np.float64 if p.x64 else np.float32))
    return out


def stage(p, rng):
    """The program in its mode: its arguments (also those that the mode adds), and a function of them and of noise."""
    mode = p.mode
    p.extra = {}
    if mode == "vmap":
        p.size = int(rng.choice([1, 2, 3, 3]))
        axes = [int(rng.integers(0, x.ndim + 1)) if rng.random() < 0.75 else None for x in p.inputs]
        if all(a is None for a in axes):
            axes[0] = 0
        p.axes = axes
        p.arguments = [x if a is None else spread(x, a, p.size, rng) for x, a in zip(p.inputs, axes)]
        f = lambda args, noise: jax.vmap(lambda *xs: pick(p, xs, noise), in_axes=tuple(axes))(*args)  # noqa: E731
        return f
    if mode in ("pmap", "shard_map"):
        return stage_mesh(p, rng)
    p.arguments = list(p.inputs)
    if mode == "explicit":
        return stage_explicit(p, rng)
    if mode in ("eager", "jit"):
        return lambda args, noise: pick(p, args, noise)
    if mode == "jvp":
        p.extra["tan"] = {i: gaussian(rng, p.inputs[i]) for i in p.wrt}

        def f(args, noise):
            ins, tans = args[: len(p.inputs)], args[len(p.inputs) :]
            outs, tangents = jax.jvp(lambda *d: pick(p, put(ins, p.wrt, d), noise), [ins[i] for i in p.wrt], list(tans))
            return outs + tangents

        return f
    p.extra["ct"] = {k: weights(rng, p.avals[i]) for k, i in enumerate(p.results)}
    n = len(p.inputs)
    if mode == "grad":
        return lambda args, noise: gradient(p, args[:n], args[n:], noise)
    p.extra["tan"] = {i: gaussian(rng, p.inputs[i]) for i in p.wrt}
    m = n + len(p.extra["ct"])

    def hvp(args, noise):
        slope = lambda *d: gradient(p, put(args[:n], p.wrt, d), args[n:m], noise)  # noqa: E731
        return jax.jvp(slope, [args[i] for i in p.wrt], list(args[m:]))[1]

    return hvp


def pick(p, xs, noise):
    made = p.values(xs, noise)
    return [jnp.asarray(made[i]) for i in p.results]


def put(xs, at, values):
    xs = list(xs)
    for i, v in zip(at, values):
        xs[i] = v
    return xs


def loss(outs, cts):
    """The weighted sum of all results, in f32 or f64."""
    total = 0
    for x, ct in zip(outs, cts):
        total = total + jnp.sum(jnp.real(x.astype(ct.dtype) * ct))
    return total


def gradient(p, ins, cts, noise):
    f = lambda d: loss(pick(p, put(ins, p.wrt, d), noise), cts)  # noqa: E731
    return jax.grad(f)([jnp.asarray(ins[i]) for i in p.wrt])


def weights(rng, aval, shape=None):
    shape = aval.shape if shape is None else shape
    dtype = {"f16": "f32", "bf16": "f32"}.get(short(aval.dtype), short(aval.dtype))
    x = rng.integers(-8, 9, shape) / 4
    if dtype in COMPLEX:
        x = x + 1j * (rng.integers(-8, 9, shape) / 4)
    return np.asarray(x).astype(DTYPES[dtype])


def gaussian(rng, x):
    t = rng.integers(-16, 17, x.shape) / 8
    if short(x.dtype) in COMPLEX:
        t = t + 1j * (rng.integers(-16, 17, x.shape) / 8)
    return np.asarray(t).astype(x.dtype)


def spread(x, axis, size, rng):
    """x along a new axis: itself, then shuffles of itself."""
    rows = [x] + [rng.permutation(x.reshape(-1)).reshape(x.shape) for _ in range(size - 1)]
    return np.stack(rows, axis)


def stage_explicit(p, rng):
    """The answers are those on one device; the types of the results are JAX's over the mesh."""
    n = len(p.inputs)
    f = lambda args, noise: pick(p, args, noise)  # noqa: E731
    types = p.avals[:n]
    if p.diff:
        p.extra["ct"] = {k: weights(rng, p.avals[i]) for k, i in enumerate(p.results)}
        f = lambda args, noise: gradient(p, args[:n], args[n:], noise)  # noqa: E731
        cts = zip(p.extra["ct"].values(), p.results)
        types = types + [explicit.typed(ct.shape, ct.dtype, explicit.dims_of(p.avals[i])) for ct, i in cts]
    p.specs = [explicit.dims_of(t) for t in types]
    p.types = [explicit.dims_of(t) for t in explicit.types(lambda *args: f(args, None), types)]
    return f


def device_mesh(sizes):
    devices = np.array(jax.devices()[:DEVICES])
    return Mesh(devices.reshape(list(sizes.values())), list(sizes))


def stage_mesh(p, rng):
    names = list(p.mesh)
    n = len(p.inputs)
    P = jax.sharding.PartitionSpec
    if p.mode == "pmap":
        p.axes = [0 if rng.random() < 0.75 else None for _ in p.inputs]
        if all(a is None for a in p.axes):
            p.axes[0] = 0
        p.arguments = [x if a is None else spread(x, 0, DEVICES, rng) for x, a in zip(p.inputs, p.axes)]

        def whole(args, noise):
            f = lambda noise, *xs: pick(p, xs, noise)  # noqa: E731
            return jax.pmap(f, axis_name="i", in_axes=(None, *p.axes))(noise, *args)

    else:
        mesh = device_mesh(p.mesh)
        p.specs = []
        p.arguments = []
        for x in p.inputs:
            free = [str(a) for a in rng.permutation(names)]
            spec = [[] for _ in x.shape]
            for d in rng.permutation(x.ndim) if x.ndim else []:
                while free and rng.random() < 0.6:
                    spec[d].append(free.pop())
            p.specs.append(spec)
            y = x
            for d, axes in enumerate(spec):
                k = int(np.prod([p.mesh[a] for a in axes]))
                if k > 1:
                    rows = [y] + [rng.permutation(y.reshape(-1)).reshape(y.shape) for _ in range(k - 1)]
                    y = np.concatenate(rows, d)
            p.arguments.append(y)

        def whole(args, noise):
            # Every device's results, one after another.
            body = lambda xs: [jnp.expand_dims(y, 0) for y in pick(p, xs, noise)]  # noqa: E731
            specs = [P(*[tuple(d) if d else None for d in spec]) for spec in p.specs]
            return jax.shard_map(
                body, mesh=mesh, in_specs=(specs,), out_specs=P(tuple(names)), check_vma=p.check_vma
            )(list(args))

    if not p.diff:
        return whole
    p.extra["ct"] = {k: weights(rng, p.avals[i], (DEVICES, *p.avals[i].shape)) for k, i in enumerate(p.results)}

    def slope(args, noise):
        ins, cts = args[:n], args[n:]
        return jax.grad(lambda d: loss(whole(put(ins, p.wrt, d), noise), cts))([jnp.asarray(ins[i]) for i in p.wrt])

    return slope


def all_arguments(p):
    return p.arguments + [x for key in ("ct", "tan") for x in p.extra.get(key, {}).values()]


def judge(p, answers):
    """The results that can be compared, with their tolerances: what noise of the size of rounding changes, six times."""
    first = answers[0]
    p.answers, p.tols, p.kept = [], [], []
    for k, want in enumerate(first):
        name = short(want.dtype)
        base = TOLERANCE.get(name, 0)
        others = [a[k] for a in answers[1:]]
        if not is_float(want.dtype):
            if all(np.array_equal(want, o) for o in others):
                p.kept.append(k), p.answers.append(want), p.tols.append(0)
            continue
        wide = np.complex128 if name in COMPLEX else np.float64
        w = want.astype(wide)
        finite = np.isfinite(w)
        scale = min(1.0, float(np.abs(w[finite]).max(initial=0.0)))
        worst = 0.0
        for other in others:
            o = other.astype(wide)
            # NaN and infinities must be where they were.
            if not np.array_equal(np.isnan(w), np.isnan(o)) or not np.array_equal(w[~finite & ~np.isnan(w)], o[~finite & ~np.isnan(w)]):
                worst = np.inf
                break
            room = scale + np.abs(w[finite])
            off = np.abs(o[finite] - w[finite])
            worst = max(worst, float(np.max(np.where(off == 0, 0, off / np.where(room == 0, 1e-300, room)), initial=0.0)))
        tol = max(base, 6 * worst)
        if tol <= max(WORST[name], base):
            p.kept.append(k), p.answers.append(want), p.tols.append(float(f"{tol:.1e}"))
    if not p.kept:
        raise Rejected("no stable result")
    if sum(a.size for a in p.answers) > (RESULT_SIZE * 8 if p.mode in ("pmap", "shard_map") else RESULT_SIZE):
        raise Rejected("too large")


def record(p, name):
    """The program and its answers, as a golden file has a case."""
    tensors = {f"in/{i}": x for i, x in enumerate(p.arguments)}
    for key, found in p.extra.items():
        tensors.update({f"{key}/{i}": x for i, x in found.items()})
    tensors.update({f"out/{k}": a for k, a in zip(p.kept, p.answers)})
    meta = {
        "op": p.mode,
        "ins": len(p.arguments),
        "outs": (2 if p.mode == "jvp" else 1) * max(len(p.results), len(p.inputs)),
        "steps": [operation.step(operands) for operation, operands in p.steps],
        "results": p.results,
        "tols": dict(zip(map(str, p.kept), p.tols)),
    }
    # The number of results of each step, if it is not one.
    counts = [p.owner.count(s) for s in range(len(p.steps))]
    if any(c != 1 for c in counts):
        meta["counts"] = counts
    if p.x64:
        meta["x64"] = True
    if p.diff:
        meta["wrt"] = p.wrt
    if p.mode in ("vmap", "pmap"):
        meta["axes"] = p.axes
    if p.mode == "explicit":
        meta |= {"mesh": p.mesh, "specs": p.specs, "types": p.types}
    if p.mode == "shard_map":
        meta |= {"mesh": p.mesh, "specs": p.specs, "check_vma": p.check_vma, "jit": p.jit}
    pairs = sorted(key for key, x in tensors.items() if short(x.dtype) in COMPLEX)
    if pairs:
        meta["complex"] = pairs
    return tensors, meta
