"""Smaller programs that may differ as a given one does: parts of it, with JAX's answers.

Every run of one to three steps that follow one another, with what comes into it as inputs, in the same mode; the last of
them alone as result; and of what is differentiated one input at a time. The Rust side runs them and shows the smallest
that still differs.
"""

import itertools

import explicit
import jax
import nests
import numpy as np
import operations
import programs

MOST_STEPS = 3


def load(meta, tensors, table):
    """The program of a record, with the inputs that one device, or one element of the batch, sees."""
    p = programs.Program(meta["op"])
    p.x64 = meta.get("x64", False)
    p.mesh = meta.get("mesh", {"i": programs.DEVICES})
    p.diff = "wrt" in meta
    p.wrt = meta.get("wrt", [])
    p.check_vma, p.jit = meta.get("check_vma", True), meta.get("jit", True)
    p.results = meta["results"]
    for i in range(meta["ins"]):
        x = tensors[f"in/{i}"]
        if meta.get("axes") and meta["axes"][i] is not None:
            x = np.take(x, 0, meta["axes"][i])
        for d, names in enumerate(meta["specs"][i]) if "specs" in meta and p.mode != "explicit" else []:
            parts = int(np.prod([p.mesh[a] for a in names]))
            x = np.split(x, parts, d)[0] if parts > 1 else x
        p.inputs.append(x)
    by_name = {(family, o.name): o for family, found in table.items() for o in found}

    def step(family, op, operands, rest):
        if family == "nest":
            return nests.load(op, rest["params"], p.x64, step)
        if op == "reshard":
            return explicit.Reshard(rest["params"]["spec"])
        if family == "spmd":
            return operations.collective_of(op, rest["params"])
        return by_name[family, rest.get("name", op)]

    p.steps = [(step(*saved), saved[2]) for saved in meta["steps"]]
    counts = meta.get("counts", [1] * len(p.steps))
    p.owner = [None] * len(p.inputs) + [s for s, n in enumerate(counts) for _ in range(n)]
    if p.mode == "explicit":
        types = [explicit.typed(x.shape, x.dtype, dims) for x, dims in zip(p.inputs, meta["specs"])]
        p.avals = explicit.types(lambda *xs: p.values(xs, None), types)
    return p


def values_of(p):
    """Each value on the first device, for the inputs of parts."""
    with jax.enable_x64(p.x64):
        if p.mode not in ("pmap", "shard_map"):
            return [np.asarray(x) for x in p.values(p.inputs, None)]
        mesh = programs.device_mesh(p.mesh)
        P = jax.sharding.PartitionSpec

        def body(*xs):
            return [jax.numpy.expand_dims(y, 0) for y in p.values(xs, None)]

        every = P(tuple(p.mesh))
        f = jax.shard_map(body, mesh=mesh, in_specs=(P(),) * len(p.inputs), out_specs=every, check_vma=False)
        return [np.asarray(x)[0] for x in jax.jit(f)(*p.inputs)]


def parts(p):
    """Smaller programs, with how large each is."""
    made = values_of(p)
    n = len(p.inputs)
    first = [n + sum(p.owner.count(t) for t in range(s)) for s in range(len(p.steps) + 1)]
    spans = [(a, a + k) for k in range(1, MOST_STEPS + 1) for a in range(len(p.steps) - k + 1)]
    for a, b in [*spans, (0, len(p.steps))]:
        inside = range(first[a], first[b])
        outside = sorted({i for _, ids in p.steps[a:b] for i in ids if i not in inside})
        number = {i: k for k, i in enumerate([*outside, *inside])}
        q = programs.Program(p.mode)
        q.x64, q.mesh, q.check_vma, q.jit = p.x64, p.mesh, p.check_vma, p.jit
        q.inputs = [made[i] for i in outside]
        q.steps = [(o, [number[i] for i in ids]) for o, ids in p.steps[a:b]]
        q.owner = [None] * len(outside) + [p.owner[i] - a for i in inside]
        q.avals = [p.avals[i] if p.avals else jax.ShapeDtypeStruct(made[i].shape, made[i].dtype) for i in [*outside, *inside]]
        last = [number[i] for i in range(first[b - 1], first[b])]
        results = [i for i in last if not p.diff or programs.is_float(q.avals[i].dtype)]
        wrt = [i for i, x in enumerate(q.inputs) if programs.is_float(x.dtype)]
        if not results or (p.diff and not wrt) or not q.inputs:
            continue
        choices = [[i] for i in wrt] if p.diff and len(wrt) > 1 else [wrt]
        for result, chosen in itertools.product(results, choices):
            r = programs.Program(p.mode)
            r.__dict__.update(q.__dict__)
            r.results, r.diff, r.wrt = [result], p.diff, chosen if p.diff else []
            yield r, (b - a) * 1000 + sum(x.size for x in q.inputs)
