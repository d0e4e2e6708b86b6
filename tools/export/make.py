"""Writes a directory of crates/shardax/tests/exported for this version of JAX: functions that it exported, and their results for some arguments."""

import collections
import contextlib
import dataclasses
import os
import pathlib

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import exchange
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import export
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec as P

# Bytecode says where each operation was written: file names, without the folders of whoever ran this.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

# Files of earlier versions stay: they must still load.
VERSION = "_".join(jax.__version__.split(".")[:2])
OUT = pathlib.Path(__file__).parents[2] / f"crates/shardax/tests/exported/jax_{VERSION}"
DTYPES = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "bool": "BOOL"}


def mlp(p, x):
    hidden = jax.nn.silu(x @ p["w"] + p["b"])
    return {"y": jax.nn.softmax(hidden), "sum": hidden.sum(), "sorted": jnp.sort(x, 0)}


def steps(x, n):
    def step(carry, i):
        return jax.lax.cond(i % 2 == 0, jnp.sin, jnp.cos, carry) * 1.5, carry.sum()

    return jax.lax.scan(step, x, jnp.arange(n.shape[0]))


def trees(state, unused, n):
    """Tuples, lists, dictionaries and None; bf16, i32 and bool beside f32; an argument that nothing uses."""
    (a, [b, c]), extra = state["pair"], state["none"]
    assert extra is None
    return [a * n.astype(a.dtype), {"half": b * 2, "even": n % 2 == 0}], (jnp.where(c, a, -a).sum(), None, n + 1)


def kernel(compiler_params=None):
    """A kernel of Pallas in tiles, y = x * sigmoid(x), with its derivative as another."""

    def forward(x_ref, o_ref):
        o_ref[...] = x_ref[...] * jax.nn.sigmoid(x_ref[...])

    def backward(x_ref, g_ref, o_ref):
        s = jax.nn.sigmoid(x_ref[...])
        o_ref[...] = g_ref[...] * (s + x_ref[...] * s * (1 - s))

    def call(body, *xs):
        tile = pl.BlockSpec((64, 128), lambda i, j: (i, j))
        grid = (xs[0].shape[0] // 64, xs[0].shape[1] // 128)
        return pl.pallas_call(body, jax.typeof(xs[0]), grid=grid, in_specs=[tile] * len(xs), out_specs=tile,
                              compiler_params=compiler_params)(*xs)

    silu = jax.custom_vjp(lambda x: call(forward, x))
    silu.defvjp(lambda x: (silu(x), x), lambda x, g: (call(backward, x, g),))
    return silu


def kernels():
    """Kernels for devices that are not here: of TPUs, whose calls are stable, and of GPUs by Triton."""
    triton = export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")
    x = jax.ShapeDtypeStruct((128, 256), jnp.float32)
    # Without a GPU, lowering reads its compute capability from the abstract mesh.
    gpu = AbstractMesh((1,), ("device",), abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", 1, "gpu"))
    platforms = {
        "tpu": (None, contextlib.nullcontext()),
        "cuda": (pallas_triton.CompilerParams(num_warps=4, num_stages=1), jax.sharding.use_abstract_mesh(gpu)),
    }
    for platform, (params, device) in platforms.items():
        with device:
            exported = export.export(jax.jit(kernel(params)), platforms=[platform], disabled_checks=[triton])(x)
            (OUT / f"kernel_{platform}.jax").write_bytes(exported.serialize(vjp_order=1))


def net(image, kernel, table, index):
    """Operations with attributes of their own."""
    y = jax.lax.conv_general_dilated(image, kernel, (2, 1), "SAME", rhs_dilation=(1, 2), feature_group_count=2,
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 2, 1), "VALID")
    y = jnp.pad(y, ((0, 0), (1, 0), (0, 2), (0, 0)))[:, ::-1, 1:4:2]
    rows = table[index].at[0].add(1.0)
    rows = jax.lax.dynamic_slice(jnp.cumsum(rows, 0), (index[0], 0), (2, 3))
    noise = jax.random.uniform(jax.random.wrap_key_data(jnp.array([0, 7], jnp.uint32)), (2, 3))
    power = jnp.abs(jnp.fft.rfft(table.reshape(-1)[:8])).sum()
    batched = jnp.einsum("bij,bjk->bik", jnp.stack([rows, rows]), jnp.ones((2, 3, 1)), precision="highest")
    best = jax.lax.fori_loop(0, 3, lambda i, v: v * jnp.exp(-v) + i, jnp.clip(rows, -1, 1))
    constants = jnp.array([[True, False, True], [False, False, True]])
    picked = jnp.where(constants, best, jax.lax.stop_gradient(noise)) + jnp.array([0.5, -2.0, np.inf]).clip(-3, 3)
    return {"y": y.sum((1, 2)), "batched": batched, "picked": picked, "power": power, "order": jnp.argsort(rows[0])}


def operations(x):
    """More operations, and types of elements that only stand within."""
    half, ints = x.astype(jnp.float16), x.astype(jnp.uint32)
    return [
        jnp.round(x) + jnp.sign(x) + jnp.cbrt(x) + jnp.log1p(x * x) + jnp.expm1(x) + jax.nn.sigmoid(x) + jax.lax.tan(x),
        jnp.floor(x) + jnp.ceil(x) + jax.scipy.special.erfinv(x / 10) + jax.scipy.special.gammaln(x * x + 1.5),
        jnp.abs(jnp.fft.fft(x) * (1 + 2j)),
        (half @ half).astype(jnp.float32) + x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
        jax.lax.bitcast_convert_type(x, jnp.int32) >> 3,
        (jnp.clip(ints, 1, 3) + jax.lax.population_count(ints)).astype(jnp.int32),
        jax.lax.reduce_precision(x, 5, 10),
        jax.lax.top_k(x, 2)[0],
        jax.lax.switch(ints[0, 0].astype(int), [jnp.sin, jnp.cos, jnp.tan], x),
        jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.5), (0, x))[1],
        jax.lax.dynamic_update_slice(x, x[:2, :2] * 2, (1, 1)),
        jnp.zeros((4, 4)).at[jnp.array([0, 2]), 1:3].multiply(x[:2, :2], unique_indices=True),
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
        jax.lax.associative_scan(jnp.multiply, x),
        jax.grad(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID").sum())(x),
        jax.lax.conv_transpose(x[None, :, :, None], x[:1, :2].reshape(1, 2, 1, 1), (2, 2), "SAME"),
        jax.lax.exp(jax.lax.optimization_barrier(x), accuracy=jax.lax.AccuracyMode.HIGHEST),
        jax.lax.dot(x, x, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32),
        jax.random.uniform(jax.random.key(0, impl="rbg"), (2,)),
    ]


def small():
    """Twice an array of each type of 8 bits and fewer that `jax.export` has a number for."""
    names = [
        "int4",
        "uint4",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e4m3",
        "float8_e3m4",
        "float8_e8m0fnu",
        "float4_e2m1fn",
    ]
    args = [jnp.ones(2, name) for name in names]
    return export.export(jax.jit(lambda *xs: [x + x for x in xs]))(*args).serialize()


def where(x):
    return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x + 2, cuda=lambda x: x + 3)


def served(p, x):
    """A batch of any size."""
    hidden = jax.nn.silu(x @ p["w"] + p["b"])
    return {"y": jax.nn.softmax(hidden), "mean": hidden.mean(0), "count": jnp.full((2,), x.shape[0])}


def sizes(x, w, n):
    """Operations on sizes that are symbols: b of `x` and `n`, b * c of `w`."""
    b, c = x.shape
    y = jnp.tanh(x @ w.reshape(c, b)).reshape(-1)
    y = y[1:] + jnp.arange(y.shape[0] - 1)
    image = jnp.stack([x, x * 2])[..., None]
    kernel = jnp.ones((3, 2, 1, 2)) * 0.1
    return [
        jnp.concatenate([y, y[::-1]]).sum(),
        jnp.pad(x, ((1, b // 2), (0, c % 3))),
        x.mean(0) + jnp.cumsum(x, 0).max(0),
        jax.random.uniform(jax.random.wrap_key_data(jnp.array([0, 7], jnp.uint32)), (b, 2)),
        jax.lax.fori_loop(0, b, lambda i, a: a.at[i].multiply(i), x),
        jnp.take(x, n % b, axis=0) + jnp.sort(x, 0),
        jax.lax.cond(n[0] > 2, lambda x: x * 2, lambda x: x - 1, x),
        jax.lax.dynamic_slice(x[:, 0], (n[1],), (b - 1,)),
        jax.lax.dynamic_update_slice(x[:, 0], x[:2, 0], (n[1],)),
        jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 1), (1, 1), "SAME"),
        jnp.einsum("bc,dc->bd", x, x, precision="highest"),
        jax.lax.top_k(x, 2)[0],
        jax.lax.top_k(w, w.shape[0])[1],
        jax.lax.scan(lambda carry, row: (carry + row, carry.sum()), x[0], x)[1],
        jnp.where(x > 0, x, jnp.flip(x, 1)).T,
        jnp.repeat(x, 2, axis=0)[: b + 1],
        jnp.cumprod(x.astype(jnp.bfloat16), axis=1).astype(jnp.float32),
        jnp.tril(jnp.ones((b, b))) @ x,
        jnp.argmax(x, 1) + b,
    ]


def decompositions(a, b):
    """JAX's calls of LAPACK on CPU; of vectors whose sign is free, values that do not depend on it."""
    la, spd = jnp.linalg, a @ a.mT + 4 * jnp.eye(4)
    lu, permutation = jax.scipy.linalg.lu_factor(a)
    complex_lower = la.cholesky(spd + 1j * (a - a.mT) / 4)
    u, s, vt = la.svd(b, full_matrices=False)
    q, r = la.qr(b)
    w, v = la.eigh(spd)
    return [
        la.cholesky(spd), la.cholesky(spd, upper=True), jnp.abs(complex_lower), jnp.isnan(la.cholesky(-spd)[0]),
        lu, permutation, la.solve(a, b), la.inv(a), la.det(a),
        jax.scipy.linalg.solve_triangular(spd, b, lower=True, trans=1), jax.scipy.linalg.solve_triangular(spd, b, unit_diagonal=True),
        q @ r, q.mT @ q, jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1)), la.qr(b[..., :2, :], mode="complete")[0].shape[-1] * jnp.ones(1),
        s, (u * s[..., None, :]) @ vt, la.svd(b, compute_uv=False), la.svd(b, full_matrices=True)[0].mT @ la.svd(b)[0],
        w, (v * w[..., None, :]) @ v.mT, la.eigvalsh(spd),
        jax.lax.linalg.tridiagonal_solve(a[0, 0].at[0].set(0), a[0, 1] + 4, a[0, 2].at[-1].set(0), b[0]),
    ]


def random(*shape, seed):
    return jax.random.normal(jax.random.key(seed), shape)


def write(name, function, *args, vjp_order=1, **options):
    """Files of `jax.export` as they are, and the function's results for the arguments: all leaves in order."""
    exported = export.export(jax.jit(function) if not hasattr(function, "lower") else function, **options)(*args)
    (OUT / f"{name}.jax").write_bytes(exported.serialize(vjp_order=vjp_order))
    return leaves_of(name, function, args, vjp_order)


def leaves_of(name, function, args, vjp_order):
    """Arguments, results and gradients, by name."""
    outs = jax.tree.leaves(jax.jit(function)(*args) if not hasattr(function, "lower") else function(*args))
    leaves = {f"in{i:02}": x for i, x in enumerate(jax.tree.leaves(args))}
    leaves |= {f"out{i:02}": x for i, x in enumerate(outs)}
    if vjp_order:
        inexact = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
        leaves_in, tree = jax.tree.flatten(args)
        moving = [i for i, x in enumerate(leaves_in) if inexact(x)]

        def loss(*moved):
            all_in = list(leaves_in)
            for i, x in zip(moving, moved):
                all_in[i] = x
            outs = jax.tree.leaves(function(*jax.tree.unflatten(tree, all_in)))
            return sum(x.astype(jnp.float32).sum() for x in outs if inexact(x))

        slopes = jax.grad(loss, range(len(moving)))(*(leaves_in[i] for i in moving))
        leaves |= {f"slope{i:02}": slope for i, slope in zip(moving, slopes)}
    return {f"{name}.{key}": x for key, x in leaves.items()}


def write_open(name, function, specs, calls, vjp_order=1):
    """A function of symbolic sizes, and what it makes of arguments of several sizes."""
    exported = export.export(jax.jit(function), platforms=["cpu"])(*specs)
    (OUT / f"{name}.jax").write_bytes(exported.serialize(vjp_order=vjp_order))
    values = {}
    for i, args in enumerate(calls):
        values |= leaves_of(f"{name}@{i}", function, args, vjp_order)
    return values


def write_older(name, version, function, *args):
    """A function in the bytecode of an earlier version of StableHLO, whose operations say other things in other places."""
    exported = export.export(jax.jit(function))(*args)
    with mlir.make_ir_context():
        module = hlo.serialize_portable_artifact(ir.Module.parse(exported.mlir_module()), version)
    (OUT / f"{name}.jax").write_bytes(dataclasses.replace(exported, mlir_module_serialized=module).serialize())
    return leaves_of(name, function, args, 0)


def older(x, w):
    """The functions of the earliest version."""
    y = jnp.tanh(x @ w)
    last, rows = jax.lax.scan(lambda c, r: (c * 0.5 + r, c), jnp.zeros(w.shape[1]), y)
    bits = jax.lax.bitcast_convert_type(y, jnp.int32)
    return [
        jax.nn.softmax(y), last, rows, jnp.sort(y, 0), jnp.cumsum(y, 0), jnp.argmax(y, 1), y[jnp.array([1, 0])], bits >> 3,
        y.at[jnp.array([0, 2])].add(1.0), jax.lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y), y.astype(jnp.bfloat16),
        jax.lax.conv_general_dilated(y[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"),
        jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (2, 1), (1, 1), "SAME"), jnp.fft.rfft(y, axis=0).real,
    ]


def explicit():
    """A function over axes of type `Explicit`, whose types have shardings."""

    def f(x, w):
        return jnp.tanh(jnp.dot(x, w, out_sharding=P("x", None))), (x * 2).sum(0)

    mesh = jax.make_mesh((2, 4), ("x", "y"))
    with jax.set_mesh(mesh):
        x, w = (jax.device_put(random(*shape, seed=7), P(*spec)) for shape, spec in [((8, 4), "xy"), ((4, 6), "y")])
        made = export.export(jax.jit(f))(x, w)
        (OUT / "explicit.jax").write_bytes(made.serialize(vjp_order=1))
        exchange.save(made, OUT / "explicit.safetensors", vjp_order=1)


def main():
    OUT.mkdir(exist_ok=True)
    p = {"w": random(3, 2, seed=0), "b": jnp.array([0.5, -0.5])}
    x = random(4, 3, seed=1)
    exchange.save(export.export(jax.jit(mlp), platforms=["cpu"])(p, x), OUT / "mlp.safetensors", vjp_order=1)
    exchange.save(export.export(jax.jit(steps), platforms=["cpu"])(x, jnp.arange(5)), OUT / "steps.safetensors")
    y = mlp(p, x)
    slope = jax.grad(lambda p: mlp(p, x)["y"][:, 0].sum())(p)
    last, sums = steps(x, jnp.arange(5))
    values = {"w": p["w"], "b": p["b"], "x": x, **y,
              "slope.w": slope["w"], "slope.b": slope["b"], "last": last, "sums": sums}

    values |= write("mlp", mlp, p, x)
    state = {"pair": (random(3, seed=2), [random(2, seed=3).astype(jnp.bfloat16), jnp.array([True, False, True])]), "none": None}
    values |= write("trees", trees, state, jnp.ones(5), jnp.arange(3))
    values |= write("net", net, random(1, 6, 6, 4, seed=4), random(3, 3, 2, 4, seed=5), random(5, 3, seed=6), jnp.array([1, 3, 0, 2]))
    values |= write("operations", operations, random(4, 4, seed=9), vjp_order=0)
    values |= write("steps", steps, x, jnp.arange(5))
    values |= write("where", where, jnp.arange(3.0), platforms=["tpu", "cpu"])
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    over = lambda *axes: NamedSharding(mesh, P(*axes))
    args = random(8, 4, seed=7), random(4, 6, seed=8)

    def sharded(x, w):
        return jnp.tanh(jax.lax.with_sharding_constraint(x @ w, over("data", "model")))

    shardings = {"in_shardings": (over("data"), over(None, "model")), "out_shardings": over("data", "model")}
    sharded = jax.jit(sharded, **shardings)
    body = lambda x, w: jax.lax.psum(jnp.sin(x @ w).sum(0), "data")
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("data"), P(None, "model")), out_specs=P("model")))
    values |= write("sharded", sharded, *args)
    values |= write("mapped", mapped, *args)
    line = jax.sharding.Mesh(mesh.devices.reshape(8), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    in_line = NamedSharding(line, P("all"))
    several = lambda x: jnp.sin(jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(x * 2, over("data", "model")) + 1, in_line))
    values |= write("meshes", jax.jit(several, in_shardings=over("data"), out_shardings=in_line), random(8, 8, seed=30), vjp_order=0)
    turned = jax.sharding.Mesh(mesh.devices.reshape(2, 4), mesh.axis_names, axis_types=mesh.axis_types)
    across = lambda x: jnp.sin(jax.lax.with_sharding_constraint(x * 2, NamedSharding(turned, P("data", "model"))) + 1)
    values |= write("turned", jax.jit(across, in_shardings=over("data"), out_shardings=over(None, "model")), random(8, 8, seed=33))
    values |= write_older("older", "0.9.0", older, random(4, 3, seed=31), random(3, 5, seed=32))
    values |= write_older("middle", "0.14.0", older, random(4, 3, seed=31), random(3, 5, seed=32))
    for name, function in [("sharded", sharded), ("mapped", mapped)]:
        exchange.save(export.export(function)(*args), OUT / f"{name}.safetensors", vjp_order=1)
    explicit()
    symbol, = export.symbolic_shape("b")
    struct = lambda shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
    batch = struct((symbol, 3))
    values |= write_open("rows", served, [jax.tree.map(lambda x: struct(x.shape), p), batch],
                         [(p, random(b, 3, seed=11 + b)) for b in [1, 4, 7]])
    b, c = export.symbolic_shape("b, c", constraints=["b >= 2", "c >= 2", "b <= 2*c"])
    values |= write_open("sizes", sizes, [struct((b, c)), struct((b * c,)), struct((b,), jnp.int32)],
                         [(random(b, c, seed=b), random(b * c, seed=c), jnp.arange(b, dtype=jnp.int32)) for b, c in [(3, 4), (5, 3)]],
                         vjp_order=0)
    rows = export.export(jax.jit(lambda x: jnp.tanh(x).reshape(-1, 2).sum(0) + x.shape[0]))
    rows = export.export(jax.jit(rows(jax.ShapeDtypeStruct((symbol, 4), jnp.float32)).call))(random(3, 4, seed=10))
    values |= {"sized.in00": random(3, 4, seed=10), "sized.out00": rows.call(random(3, 4, seed=10))}
    exchange.save(rows, OUT / "sized.safetensors", vjp_order=1)
    (OUT / "sized.jax").write_bytes(rows.serialize())
    values |= write("decompositions", decompositions, random(2, 4, 4, seed=20), random(2, 4, 3, seed=21), vjp_order=0)
    # Parts by name, one device with a mesh, names and types that are seldom.
    pair = collections.namedtuple("Pair", "low high")
    export.register_namedtuple_serialization(pair, serialized_name="Pair")
    ordered = collections.OrderedDict(second=jnp.arange(2.0), first=jnp.ones(3))

    def named(bounds, parts, *, scale):
        return pair(low=bounds.low * scale, high=bounds.high - scale), collections.OrderedDict(z=parts["first"].sum(), a=parts["second"] * 2)

    args = pair(low=jnp.arange(3.0), high=jnp.ones(2)), ordered
    (OUT / "named.jax").write_bytes(export.export(jax.jit(named))(*args, scale=jnp.float32(2)).serialize())
    one = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    alone = lambda x: jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=one, in_specs=P("data"), out_specs=P())(x * 2)
    values |= write("placed", jax.jit(jnp.sin), jax.device_put(jnp.arange(4.0), jax.devices()[0]), vjp_order=0)
    values |= write("alone", jax.jit(alone), jax.device_put(jnp.arange(4.0), NamedSharding(one, P("data"))))
    inner = jax.jit(lambda x: x * np.random.RandomState(0).rand(40, 33).round().astype(bool))
    inner.__wrapped__.__name__ = "σ's function"
    values |= write("seldom", lambda x: [
        jax.lax.exp(x, accuracy=jax.lax.Tolerance(1e-5, 1e-5, 2)),
        *(x.astype(dtype).astype(jnp.float32) for dtype in [jnp.float8_e5m2, jnp.float8_e4m3b11fnuz, jnp.int4, jnp.float8_e4m3]),
        inner(jnp.ones((40, 33))),
        jnp.where(np.ones((1200, 1200), bool), 1, 0).sum(),
    ], x, vjp_order=0)
    kernels()
    keys = export.export(jax.jit(lambda key: (jax.random.normal(key, 2), jax.random.split(key, 3))))(jax.random.key(0))
    (OUT / "keys.jax").write_bytes(keys.serialize())
    with jax.enable_x64(True):
        wide = export.export(jax.jit(where), platforms=["tpu", "cpu"])(jnp.arange(3, dtype=jnp.int32))
        (OUT / "wide.jax").write_bytes(wide.serialize())
    (OUT / "small.jax").write_bytes(small())
    # Programs that Rust rejects.
    @jax.tree_util.register_pytree_node_class
    class Box:
        def __init__(self, *parts):
            self.parts = parts

        def tree_flatten(self):
            return self.parts, None

        @classmethod
        def tree_unflatten(cls, _, parts):
            return cls(*parts)

    export.register_pytree_node_serialization(Box, serialized_name="Box", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None)
    rejected = {
        "custom": (lambda box: box.parts[0] * 2, [Box(jnp.ones(2))], {}),
        "lapack": (jnp.linalg.eigvals, [jnp.eye(2)], {}),
        "keys_rbg": (lambda key: jax.random.normal(key, 2), [jax.random.key(0, impl="rbg")], {}),
    }
    for name, (function, args, keywords) in rejected.items():
        exported = export.export(jax.jit(function))(*args, **keywords)
        (OUT / f"{name}.jax").write_bytes(exported.serialize())
    exchange._write(OUT / "values.safetensors", {},
                    {k: (DTYPES[str(v.dtype)], list(v.shape), np.asarray(v).tobytes()) for k, v in values.items()})


if __name__ == "__main__":
    main()
