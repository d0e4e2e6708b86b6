"""The case registry: what a case is, how its values are computed with JAX, and how a family of cases is written."""

import inspect
import json
import struct
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

# Short names, as shardax and StableHLO spell dtypes.
DTYPES = {
    "bool": np.dtype(np.bool_),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
# Elements of 8 bits and fewer are written as bytes, with the name of their dtype.
NARROW = {
    "i2": np.dtype(ml_dtypes.int2),
    "i4": np.dtype(ml_dtypes.int4),
    "u2": np.dtype(ml_dtypes.uint2),
    "u4": np.dtype(ml_dtypes.uint4),
    "f4_e2m1fn": np.dtype(ml_dtypes.float4_e2m1fn),
    "f8_e3m4": np.dtype(ml_dtypes.float8_e3m4),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "f8_e4m3b11fnuz": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}
SHORT = {dtype: short for short, dtype in (DTYPES | NARROW).items()}
SIXTY_FOUR = {"u64", "i64", "f64", "c128"}
COMPLEX = {"c64": "f32", "c128": "f64"}

# |got - want| <= tol * (1 + |want|)
TOLERANCE = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-5, "c64": 1e-5, "f64": 1e-12, "c128": 1e-12}

BATCH = 3


def short(dtype):
    return SHORT[np.dtype(dtype)]


def is_inexact(dtype):
    return short(dtype) in TOLERANCE


# Inputs. Each returns a function of the case's own random generator, so that adding a case changes no other.


def cast(values, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype((DTYPES | NARROW)[dtype])


def normal(*shape, dtype="f32", scale=1.0):
    def make(rng):
        values = rng.standard_normal(shape) * scale
        if dtype in COMPLEX:
            values = values + 1j * rng.standard_normal(shape) * scale
        return cast(values, dtype)

    return make


def uniform(*shape, lo=0.0, hi=1.0, dtype="f32"):
    def make(rng):
        values = rng.uniform(lo, hi, shape)
        if dtype in COMPLEX:
            values = values + 1j * rng.uniform(lo, hi, shape)
        return cast(values, dtype)

    return make


def integers(*shape, lo=-9, hi=10, dtype="i32"):
    return lambda rng: cast(rng.integers(lo, hi, shape), dtype)


def small(*shape, lo=-2, hi=3, dtype="f32"):
    """Floats with integer values: sums and products of them are exact, and ties are many."""
    return integers(*shape, lo=lo, hi=hi, dtype=dtype)


def bools(*shape):
    return lambda rng: rng.integers(0, 2, shape).astype(bool)


def values(data, dtype="f32"):
    array = cast(data, dtype)
    return lambda rng: array


class Case:
    def __init__(self, name, fn, inputs, *, op, params, doc, grad, wrt, batch, tol, grad_tol, x64):
        self.name = name
        self.fn = fn
        self.op = op
        self.params = params
        self.doc = doc
        self.grad = grad
        self.wrt = wrt
        self.batch = batch
        self.tol = tol
        self.grad_tol = grad_tol
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.inputs = [np.asarray(make(self.rng) if callable(make) else make) for make in inputs]
        self.x64 = x64 or any(short(x.dtype) in SIXTY_FOUR for x in self.inputs)

    def compute(self):
        with jax.enable_x64(self.x64):
            return self._compute()

    def _flat(self, *args):
        return jax.tree.leaves(self.fn(*args))

    def _compute(self):
        tensors = {f"in/{i}": x for i, x in enumerate(self.inputs)}
        outputs = [np.asarray(x) for x in jax.jit(self._flat)(*self.inputs)]
        tensors.update({f"out/{i}": x for i, x in enumerate(outputs)})
        meta = {"op": self.op}
        if self.params:
            meta["params"] = self.params
        if self.doc:
            meta["doc"] = self.doc
        meta["ins"], meta["outs"] = len(self.inputs), len(outputs)
        if self.x64:
            meta["x64"] = True
        meta["tol"] = self._tolerance(outputs) if self.tol is None else self.tol
        self._derivatives(tensors, meta, outputs)
        self._batches(tensors, meta)
        pairs = sorted(key for key, x in tensors.items() if short(x.dtype) in COMPLEX)
        if pairs:
            meta["complex"] = pairs
        narrow = {key: short(x.dtype) for key, x in tensors.items() if short(x.dtype) in NARROW}
        if narrow:
            meta["narrow"] = narrow
        return tensors, meta

    def _tolerance(self, arrays):
        return max((TOLERANCE.get(short(x.dtype), 0) for x in [*self.inputs, *arrays] if is_inexact(x.dtype)), default=0)

    def _random_like(self, x):
        noise = self.rng.standard_normal(x.shape)
        if short(x.dtype) in COMPLEX:
            noise = noise + 1j * self.rng.standard_normal(x.shape)
        return np.asarray(noise).astype(x.dtype)

    def _derivatives(self, tensors, meta, outputs):
        argnums = [i for i, x in enumerate(self.inputs) if is_inexact(x.dtype) and (self.wrt is None or i in self.wrt)]
        outnums = [i for i, x in enumerate(outputs) if is_inexact(x.dtype)]
        if not self.grad or not argnums or not outnums:
            return
        meta["argnums_float"], meta["outs_float"] = argnums, outnums
        if self.grad_tol is not None:
            meta["grad_tol"] = self.grad_tol

        def differentiable(*floats):
            args = list(self.inputs)
            for i, x in zip(argnums, floats):
                args[i] = x
            flat = self._flat(*args)
            return [flat[i] for i in outnums]

        primals = [jnp.asarray(self.inputs[i]) for i in argnums]
        if self.grad in (True, "rev"):
            cotangents = [self._random_like(outputs[i]) for i in outnums]
            tensors.update({f"ct/{i}": x for i, x in zip(outnums, cotangents)})
            pulled = jax.jit(lambda p, ct: jax.vjp(differentiable, *p)[1](ct))(primals, [jnp.asarray(x) for x in cotangents])
            tensors.update({f"vjp/{i}": np.asarray(x) for i, x in zip(argnums, pulled)})
        if self.grad in (True, "fwd"):
            tangents = [self._random_like(self.inputs[i]) for i in argnums]
            tensors.update({f"tan/{i}": x for i, x in zip(argnums, tangents)})
            pushed = jax.jit(lambda p, t: jax.jvp(differentiable, tuple(p), tuple(t))[1])(
                primals, [jnp.asarray(x) for x in tangents]
            )
            tensors.update({f"jvp/{i}": np.asarray(x) for i, x in zip(outnums, pushed)})

    def _batches(self, tensors, meta):
        if not self.batch or not self.inputs:
            return
        variants = self.batch
        if variants is True:
            count = len(self.inputs)
            variants = [(0,) * count]
            if count > 1:
                variants.append((self.inputs[0].ndim,) + (None,) * (count - 1))
        for v, in_axes in enumerate(variants):
            prefix = "batch" if v == 0 else f"batch{v}"
            args = []
            for i, (x, axis) in enumerate(zip(self.inputs, in_axes, strict=True)):
                if axis is not None:
                    x = np.stack([self._variation(x, k) for k in range(BATCH)], axis)
                    tensors[f"{prefix}/in/{i}"] = x
                args.append(x)
            meta[f"{prefix}_in_axes"] = list(in_axes)
            outputs = jax.jit(jax.vmap(self._flat, in_axes))(*args)
            tensors.update({f"{prefix}/out/{i}": np.asarray(x) for i, x in enumerate(outputs)})

    def _variation(self, x, k):
        """Another value of the same kind as x: a shuffle of it, so that it stays in the function's domain."""
        if k == 0:
            return x
        if x.ndim:
            return self.rng.permutation(x.reshape(-1)).reshape(x.shape)
        if x.dtype == bool:
            return np.logical_xor(x, k % 2 == 1)
        if is_inexact(x.dtype):
            return (x * (1 - 0.25 * k)).astype(x.dtype)
        return np.maximum(x.astype(np.int64) - k, 0).astype(x.dtype) if x >= 0 else x


class Family:
    """The cases of one file."""

    def __init__(self, name):
        self.name = name
        self.cases = {}

    def case(
        self,
        name,
        fn,
        *inputs,
        op=None,
        params=None,
        doc=None,
        grad=True,
        wrt=None,
        batch=True,
        tol=None,
        grad_tol=None,
        x64=False,
    ):
        """Registers a case.

        inputs: arrays, or functions of a random generator that make them.
        op, params, doc: what a test needs to know to call the same thing; doc is the function in words or formulas.
        grad: True (vjp and jvp), "fwd" (jvp only), "rev" (vjp only), False.
        wrt: the inputs to differentiate with respect to; None stands for all of float or complex dtype.
        batch: True (all inputs at axis 0; and the first one alone at its last axis), a list of in_axes, or False.
        tol, grad_tol: None stands for the default of the coarsest dtype, 0 for equality of every bit.
        """
        if name in self.cases:
            raise ValueError(f"{self.name}: two cases are named {name}")
        if doc is None and fn.__doc__ and fn.__module__.startswith("families."):
            doc = " ".join(inspect.getdoc(fn).split())
        self.cases[name] = Case(
            name,
            fn,
            inputs,
            op=op or name,
            params=params,
            doc=doc,
            grad=grad,
            wrt=wrt,
            batch=batch,
            tol=tol,
            grad_tol=grad_tol,
            x64=x64,
        )

    def compute(self):
        tensors, meta = {}, {}
        for name, case in self.cases.items():
            try:
                found, meta[name] = case.compute()
            except Exception as error:
                error.add_note(f"in case {self.name}/{name}")
                raise
            tensors.update({f"{name}/{key}": x for key, x in found.items()})
        return tensors, meta


def encode(tensors, meta):
    """The bytes of a safetensors file. The library's own writer orders the metadata at random; this one is deterministic."""
    header = {"__metadata__": {name: json.dumps(entry, separators=(",", ":")) for name, entry in meta.items()}}
    body = []
    offset = 0
    plain = {}
    for key, x in tensors.items():
        dtype = short(x.dtype)
        if dtype in COMPLEX:
            x = np.stack([x.real, x.imag], -1)
            dtype = COMPLEX[dtype]
        elif dtype in NARROW:
            x, dtype = x.view(np.uint8), "u8"
        plain[key] = (dtype, x)
    for key, (dtype, x) in sorted(plain.items(), key=lambda item: (-item[1][1].dtype.itemsize, item[0])):
        data = np.ascontiguousarray(x).tobytes()
        header[key] = {"dtype": dtype.upper(), "shape": list(x.shape), "data_offsets": [offset, offset + len(data)]}
        body.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(body)


def read(path):
    """The cases of a file: tensors and metadata by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    meta = {name: json.loads(text) for name, text in header.pop("__metadata__").items()}
    body = data[8 + length :]
    cases = {name: {} for name in meta}
    wide = {narrow.lower(): name for name, narrow in COMPLEX.items()}
    for key, entry in header.items():
        name, what = key.split("/", 1)
        dtype = entry["dtype"].lower()
        start, end = entry["data_offsets"]
        x = np.frombuffer(body[start:end], DTYPES[dtype]).reshape(entry["shape"])
        if what in meta[name].get("complex", ()):
            # Not by a sum, which makes NaN of an infinite part.
            x = np.ascontiguousarray(x).view(DTYPES[wide[dtype]])[..., 0]
        if what in meta[name].get("narrow", ()):
            x = x.view(NARROW[meta[name]["narrow"][what]])
        cases[name][what] = x
    return cases, meta
