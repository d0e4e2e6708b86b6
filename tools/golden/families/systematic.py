"""Gaps of the other families, found by going through them: `vmap` of each operation that no case maps over a batch, and
each operation of 16-bit integers, u64, c128 and half precision. A case is named `family.case`, and means what that one does."""

import importlib

import numpy as np
from golden import DTYPES, Case, Family, is_inexact, short

family = Family("systematic")

MAPPED = "unary binary reduce select convert shape index dot sort conv window linalg random".split()
TYPED = "unary binary reduce select".split()
HALVED = "unary binary reduce select dot sort index conv window control nn".split()
# Those of `shardax-nn`.
ABOVE = """accuracy batch_norm cosine_similarity dot_product_attention group_norm huber_loss kl_divergence l2_loss layer_norm
log_cosh masked_mean_loss nnx_ rms_norm sigmoid_binary_cross_entropy smooth_labels softmax_cross_entropy
squared_error""".split()
# Positions have 64 bits in JAX's 64-bit mode, integers are summed in 64; a few functions have no result to compare.
LEFT_OUT = set("argmax argmin argsort sum prod cumsum cumprod meshgrid bincount key clone integer_pow sign round ldexp".split())


def clone(case, name, inputs, batch, x64, grad=False, tol=None):
    found = Case(
        name, case.fn, inputs, op=case.op, params=case.params, doc=case.doc, grad=grad, wrt=case.wrt if grad else None,
        batch=batch, tol=tol, grad_tol=None, x64=x64,
    )  # fmt: skip
    try:
        made = found.compute()
    except Exception:
        return  # JAX has none
    found.compute = lambda: made
    family.cases[name] = found


def converted(x, dtype):
    """The numbers in another dtype: their sizes, so that they stay in the domain of functions of integers."""
    if x.dtype == bool:
        return x
    if short(x.dtype) in ("f32", "i32", "c64"):
        wide = np.abs(x).astype(np.float64)
        if dtype == "c128":
            return (np.real(x) + 0.25j * wide[..., ::-1] if x.ndim else x + 0.25j).astype(np.complex128)
        return (np.round(wide * 7) % 100).astype(DTYPES[dtype])
    return x


for name in MAPPED:
    cases = importlib.import_module(f"families.{name}").family.cases.values()
    done = {case.op for case in cases if case.batch and case.inputs}
    for case in cases:
        if case.op in done or not case.inputs or case.op in ("key", "clone"):
            continue
        done.add(case.op)
        # Shuffles of sorted numbers are none.
        batch = [(None, 0)] if case.op == "searchsorted" else True
        clone(case, f"{name}.{case.name}", case.inputs, batch, case.x64, tol=case.tol)

for name in TYPED:
    cases = importlib.import_module(f"families.{name}").family.cases.values()
    for dtype in ("i16", "u16", "u64", "c128"):
        done = {case.op for case in cases if any(short(x.dtype) == dtype for x in case.inputs)} | LEFT_OUT
        for case in cases:
            kinds = {short(x.dtype) for x in case.inputs}
            fits = kinds & ({"c64"} if dtype == "c128" else {"i32", "f32"}) and not kinds & {"u8", "f16", "bf16", "f64"}
            whole = dtype == "c128" or not any(is_inexact(x.dtype) for x in case.inputs)
            if case.op in done or not fits or not whole or any(x.size > 64 for x in case.inputs):
                continue
            done.add(case.op)
            inputs = [converted(x, dtype) for x in case.inputs]
            clone(case, f"{name}.{case.name}_{dtype}", inputs, case.batch, dtype in ("u64", "c128"), tol=case.tol)

for name in HALVED:
    cases = importlib.import_module(f"families.{name}").family.cases.values()
    for dtype in ("bf16", "f16"):
        done = {case.op for case in cases if any(short(x.dtype) in ("bf16", "f16") for x in case.inputs)}
        for case in cases:
            kinds = {short(x.dtype) for x in case.inputs}
            above = name == "nn" and case.name.startswith(tuple(ABOVE))
            if case.op in done or above or "f32" not in kinds or kinds & {"f64", "c64"}:
                continue
            done.add(case.op)
            inputs = [x.astype(DTYPES[dtype]) if short(x.dtype) == "f32" else x for x in case.inputs]
            clone(case, f"{name}.{case.name}_{dtype}", inputs, case.batch, case.x64, grad=case.grad)
