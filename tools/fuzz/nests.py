"""Steps that transform a smaller random program: derivatives, loops, branches, batches, custom rules."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import programs
from golden import TOLERANCE, short
from jax import lax

# Kinds that differentiate their body: it takes floating point numbers, and its results are such numbers too.
DERIVATIVES = "grad jvp linearize vjp jacfwd jacrev hessian jacfwd_jacrev jacrev_jacfwd custom_jvp custom_vjp".split()
KINDS = [*DERIVATIVES, *"vmap checkpoint jit stop_gradient scan while fori cond switch map".split()]
POLICIES = "nothing_saveable everything_saveable dots_saveable dots_with_no_batch_dims_saveable".split()
MAX_DEPTH = 3
MAX_COUNT = 4


def is_float(dtype):
    return short(dtype) in TOLERANCE


def pattern(shape, dtype):
    """Weights of elements."""
    size = int(np.prod(shape))
    return jnp.asarray((np.arange(size) % 5 - 1.5).reshape(shape) / 2).astype(dtype)


def fit(y, like):
    """A value of the type of `like` that depends on both."""
    if y.shape == like.shape and y.dtype == like.dtype:
        return y
    if like.dtype == bool:
        return like ^ (y != 0).any()
    if is_float(like.dtype):
        return like / 2 + jnp.sin(y.astype(like.dtype)).sum()
    return like + (y != 0).sum().astype(like.dtype)


def weighted(outs, dtype):
    return sum(((x.astype(dtype) * pattern(x.shape, dtype)).sum() for x in outs), jnp.zeros((), dtype))


def positive(x):
    """The number of positive elements."""
    return (x > 0).sum().astype(jnp.int32)


class Body:
    """A program without a mode."""

    def __init__(self, program):
        self.program = program

    def call(self, xs, noise):
        made = self.program.values(xs, noise)
        return [made[i] for i in self.program.results]

    def record(self):
        p = self.program
        counts = [p.owner.count(s) for s in range(len(p.steps))]
        return {"ins": len(p.inputs), "steps": [o.step(ids) for o, ids in p.steps], "counts": counts, "results": p.results}


class Nest:
    """One such step. Operands are the arguments, then what each body captures."""

    family, elementwise, tol, exact, grad, inputs = "nest", False, None, False, True, ()

    def __init__(self, op, options, bodies, x64):
        self.op = self.name = op
        self.options = options
        self.bodies = bodies
        self.x64 = x64

    @property
    def params(self):
        options = self.options | ({"x64": True} if self.x64 else {})
        return options | {"bodies": [body.record() for body in self.bodies]}

    def step(self, operands):
        return [self.family, self.op, operands, {"params": self.params}]

    def call(self, *operands, noise=None):
        return [jnp.asarray(x) for x in getattr(self, "call_" + self.op)(list(operands), noise)]

    def split(self, operands):
        """The arguments, and what each body captures."""
        rest = operands[self.options["args"] :]
        captured = []
        for n in self.options["captures"]:
            captured.append(rest[:n])
            rest = rest[n:]
        return operands[: self.options["args"]], captured

    def function(self, operands, noise, k=0):
        """The arguments, and a body as a function of a list."""
        args, captured = self.split(operands)
        return args, lambda xs: self.bodies[k].call([*xs, *captured[k]], noise)

    def by(self, operands, noise):
        """What a derivative is by, and a function of it."""
        args, f = self.function(operands, noise)
        wrt = self.options["wrt"]

        def g(*chosen):
            xs = list(args)
            for i, x in zip(wrt, chosen):
                xs[i] = x
            return f(xs)

        return [args[i] for i in wrt], g

    def call_grad(self, operands, noise):
        xs, g = self.by(operands, noise)
        return jax.grad(lambda xs: weighted(g(*xs), self.accumulator()))(xs)

    def accumulator(self):
        return jnp.float64 if self.x64 else jnp.float32

    def call_jvp(self, operands, noise):
        xs, g = self.by(operands, noise)
        outs, tangents = jax.jvp(g, xs, [x / 2 for x in xs])
        return outs + tangents

    def call_linearize(self, operands, noise):
        xs, g = self.by(operands, noise)
        outs, linear = jax.linearize(g, *xs)
        return outs + linear(*[x / 2 for x in xs]) + linear(*[pattern(x.shape, x.dtype) for x in xs])

    def call_vjp(self, operands, noise):
        xs, g = self.by(operands, noise)
        outs, pull = jax.vjp(g, *xs)
        return [*pull(outs), *pull([pattern(y.shape, y.dtype) for y in outs])]

    def jacobian(self, operands, noise, derivative):
        xs, g = self.by(operands, noise)
        return [derivative(lambda x: g(x, *xs[1:])[0])(xs[0])]

    def call_jacfwd(self, operands, noise):
        return self.jacobian(operands, noise, jax.jacfwd)

    def call_jacrev(self, operands, noise):
        return self.jacobian(operands, noise, jax.jacrev)

    def call_hessian(self, operands, noise):
        return self.jacobian(operands, noise, jax.hessian)

    def call_jacfwd_jacrev(self, operands, noise):
        return self.jacobian(operands, noise, lambda f: jax.jacfwd(jax.jacrev(f)))

    def call_jacrev_jacfwd(self, operands, noise):
        return self.jacobian(operands, noise, lambda f: jax.jacrev(jax.jacfwd(f)))

    def ruled(self, operands, noise):
        """The operands that a custom rule takes, and the body as a function of them; others are captured."""
        chosen = [i for i, x in enumerate(operands) if is_float(x.dtype)]

        def f(*floats):
            xs = list(operands)
            for i, x in zip(chosen, floats):
                xs[i] = x
            args, g = self.function(xs, noise)
            return g(args)

        return [operands[i] for i in chosen], f

    def call_custom_jvp(self, operands, noise):
        floats, f = self.ruled(operands, noise)

        def rule(primals, tangents):
            outs, tangents = jax.jvp(f, primals, tangents)
            return outs, [t * 2 for t in tangents]

        g = jax.custom_jvp(f)
        g.defjvp(rule)
        return g(*floats)

    def call_custom_vjp(self, operands, noise):
        floats, f = self.ruled(operands, noise)
        g = jax.custom_vjp(f)
        g.defvjp(lambda *xs: (f(*xs), xs), lambda xs, cts: tuple(3 * x for x in jax.vjp(f, *xs)[1](cts)))
        return g(*floats)

    def call_vmap(self, operands, noise):
        args, f = self.function(operands, noise)
        return jax.vmap(lambda xs: f(xs), in_axes=(self.options["in_axes"],), out_axes=self.options["out_axes"])(args)

    def call_checkpoint(self, operands, noise):
        args, f = self.function(operands, noise)
        policy = self.options["policy"]
        policy = getattr(jax.checkpoint_policies, policy) if policy else None
        return jax.checkpoint(f, policy=policy, prevent_cse=self.options["prevent_cse"])(args)

    def call_jit(self, operands, noise):
        args, f = self.function(operands, noise)
        return jax.jit(f)(args)

    def call_stop_gradient(self, operands, noise):
        args, f = self.function(operands, noise)
        outs = f(args)
        return [y * lax.stop_gradient(y) if is_float(y.dtype) else lax.stop_gradient(y) for y in outs]

    def call_scan(self, operands, noise):
        args, f = self.function(operands, noise)
        k, options = self.options["carries"], self.options

        def step(carry, xs):
            outs = f([*carry, *xs])
            return [fit(y, c) for y, c in zip(outs[:k], carry)], outs[k:]

        carry, ys = lax.scan(
            step, args[:k], args[k:], length=options["length"], reverse=options["reverse"], unroll=options["unroll"]
        )
        return carry + ys

    def count(self, args):
        n = self.options["count"]
        return positive(args[0]) % MAX_COUNT if n is None else n

    def call_while(self, operands, noise):
        args, f = self.function(operands, noise)
        n = self.count(args)

        def step(state):
            i, carry = state
            return i + 1, [fit(y, c) for y, c in zip(f(carry), carry)]

        return lax.while_loop(lambda state: state[0] < n, step, (jnp.int32(0), args))[1]

    def call_fori(self, operands, noise):
        args, f = self.function(operands, noise)
        step = lambda i, carry: [fit(y, c) for y, c in zip(f([i.astype(jnp.int32), *carry]), carry)]  # noqa: E731
        return lax.fori_loop(self.options["start"], self.count(args), step, args)

    def branches(self, operands, noise):
        args = self.split(operands)[0]
        fs = [self.function(operands, noise, k)[1] for k in range(len(self.bodies))]
        first = jax.eval_shape(fs[0], args)

        def branch(f):
            def fitted(xs):
                outs = f(xs)
                return [fit(outs[min(k, len(outs) - 1)], jnp.ones(like.shape, like.dtype)) for k, like in enumerate(first)]

            return fitted

        return args, [branch(f) for f in fs]

    def call_cond(self, operands, noise):
        args, fs = self.branches(operands, noise)
        return lax.cond(positive(args[0]) % 2 == 1, *fs, args)

    def call_switch(self, operands, noise):
        args, fs = self.branches(operands, noise)
        return lax.switch(positive(args[0]) % 5 - 1, fs, args)

    def call_map(self, operands, noise):
        args, f = self.function(operands, noise)
        return lax.map(f, args, batch_size=self.options["batch_size"])


def struct(shape, dtype):
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def grow(builder):
    """Appends a nest to the builder's program; False where it does not fit."""
    rng, p = builder.rng, builder.p
    kind = str(rng.choice(KINDS))
    differentiates = kind in DERIVATIVES
    wanted = int(rng.integers(1, 4))
    ids, fresh = [], []
    for _ in range(wanted):
        fits = [i for i, a in enumerate(p.avals) if is_float(a.dtype) or (not differentiates and short(a.dtype) in ("i32", "bool"))]
        late = [i for i in fits if p.owner[i] is not None]
        if fits and rng.random() < 0.75:
            ids.append(int(rng.choice(late if late and rng.random() < 0.7 else fits)))
        else:
            shape = [builder.size() for _ in range(int(rng.integers(0, 4)))]
            dtype = builder.dtype(np.zeros((), np.float32 if differentiates or rng.random() < 0.8 else np.int32))
            ids.append(len(p.avals) + len(fresh))
            fresh.append(builder.draw.draw(tuple(shape), dtype))
    avals = p.avals + [struct(x.shape, x.dtype) for x in fresh]
    types = [avals[i] for i in ids]
    if any(np.issubdtype(t.dtype, np.complexfloating) for t in types):
        return False
    options = arrange(kind, types, rng)
    if options is None:
        return False
    inner, options = options
    bodies, captures = [], []
    for _ in range({"cond": 2, "switch": 3}.get(kind, 1)):
        made = body(builder, inner, differentiates or p.diff, options.get("results", 1 + int(rng.integers(2))))
        if made is None:
            return False
        bodies.append(Body(made))
        captures.append(made.inputs[len(inner) :])
    if kind.startswith("custom") and not all(is_float(x.dtype) for x in [*types, *sum(captures, [])]):
        # A rule that captures is rejected where the function is traced before it is differentiated.
        return False
    if kind == "vmap":
        outs = [bodies[0].program.avals[i] for i in bodies[0].program.results]
        options["out_axes"] = [int(rng.integers(-len(y.shape) - 1, len(y.shape) + 1)) for y in outs]
    if kind == "scan":
        options["carries"] = min(options["carries"], len(bodies[0].program.results))
    options.pop("results", None)
    options |= {"args": len(ids), "captures": [len(c) for c in captures]}
    for captured in captures:
        ids += range(len(p.avals) + len(fresh), len(p.avals) + len(fresh) + len(captured))
        fresh += captured
    return builder.add(Nest(kind, options, bodies, p.x64), ids, fresh)


def arrange(kind, types, rng):
    """The types of the body's arguments, and the options; None where the arguments do not suit."""
    if kind in DERIVATIVES:
        wrt = sorted(int(i) for i in rng.choice(len(types), int(rng.integers(1, len(types) + 1)), replace=False))
        return types, {"wrt": wrt}
    if kind == "checkpoint":
        return types, {"policy": str(rng.choice(POLICIES)) if rng.random() < 0.6 else None, "prevent_cse": bool(rng.integers(2))}
    if kind in ("while", "fori"):
        count = int(rng.integers(0, MAX_COUNT)) if rng.random() < 0.6 else None
        options = {"count": count, "results": len(types)}
        if kind == "fori":
            return [struct((), np.int32), *types], options | {"start": int(rng.integers(-1, 2))}
        return types, options
    if kind == "scan":
        carries = int(rng.integers(1, len(types) + 1))
        xs = types[carries:]
        sizes = {t.shape[:1] for t in xs}
        if len(sizes) > 1 or () in sizes:
            return None
        options = {"carries": carries, "reverse": bool(rng.integers(2)), "unroll": int(rng.choice([1, 1, 2, 3]))}
        options |= {"length": None if xs else int(rng.integers(0, 4)), "results": carries + int(rng.integers(0, 2))}
        return types[:carries] + [struct(t.shape[1:], t.dtype) for t in xs], options
    if kind == "map":
        sizes = {t.shape[:1] for t in types}
        if len(sizes) > 1 or () in sizes or (0,) in sizes:
            return None
        return [struct(t.shape[1:], t.dtype) for t in types], {"batch_size": [None, 1, 2, 3][int(rng.integers(4))]}
    if kind == "vmap":
        axes = [int(rng.integers(-len(t.shape), len(t.shape))) if t.shape else None for t in types]
        size = next((t.shape[a] for t, a in zip(types, axes) if a is not None), None)
        axes = [a if a is not None and t.shape[a] == size and rng.random() < 0.85 else None for t, a in zip(types, axes)]
        if all(a is None for a in axes) or size == 0:
            return None
        inner = [struct(np.delete(t.shape, a) if a is not None else t.shape, t.dtype) for t, a in zip(types, axes)]
        return [struct([int(n) for n in t.shape], t.dtype) for t in inner], {"in_axes": axes}
    return types, {}


def body(builder, types, differentiates, count):
    """A smaller program of arguments of these types; its further inputs are captured."""
    inner = copy.copy(builder)
    inner.depth = builder.depth + 1
    inner.mode = "jit"
    p = copy.copy(builder.p)
    p.mode, p.inputs, p.steps = "jit", [np.zeros(t.shape, t.dtype) for t in types], []
    p.avals, p.owner, p.diff = list(types), [None] * len(types), differentiates
    inner.p = p
    try:
        inner.fill(int(builder.rng.integers(1, 5)))
    except Exception:
        return None
    made = [i for i, o in enumerate(p.owner) if o is not None and (not differentiates or is_float(p.avals[i].dtype))]
    made = [i for i in made if not np.issubdtype(p.avals[i].dtype, np.complexfloating)]
    if not made:
        return None
    p.results = made[-count:]
    return p


def load(op, params, x64, step):
    """The nest of a record; `step` loads an operation from a recorded step."""
    bodies = []
    for record in params["bodies"]:
        p = programs.Program("jit")
        p.inputs = [None] * record["ins"]
        p.steps = [(step(*saved), saved[2]) for saved in record["steps"]]
        p.owner = [None] * record["ins"] + [s for s, n in enumerate(record["counts"]) for _ in range(n)]
        p.results = record["results"]
        bodies.append(Body(p))
    options = {key: value for key, value in params.items() if key not in ("bodies", "x64")}
    return Nest(op, options, bodies, x64)
