"""Kernels of jax.experimental.pallas, with interpret=True."""

import functools
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt
from golden import Family, normal, small, uniform, values

family = Family("pallas")
call = functools.partial(pl.pallas_call, interpret=True)
shape = lambda *sizes, dtype=jnp.float32: jax.ShapeDtypeStruct(sizes, dtype)
dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)


def case(name, fn, *inputs, grad=False, batch=False, **more):
    family.case(name, fn, *inputs, grad=grad, batch=batch, **more)


# Elementwise, with a last block that reaches beyond the array.
def vector_add(x, y):
    def kernel(x, y, o):
        o[...] = x[...] + y[...]

    tile = pl.BlockSpec((16,), lambda i: (i,))
    return call(kernel, shape(50, dtype=x.dtype), grid=(pl.cdiv(50, 16),), in_specs=[tile, tile], out_specs=tile)(x, y)


case("vector_add_f32", vector_add, normal(50), normal(50), op="vector_add", batch=[(0, 0), (None, 1)])
case("vector_add_i32", vector_add, small(50, dtype="i32"), small(50, dtype="i32"), op="vector_add")


# A matrix product with a float32 accumulator in scratch memory, and an epilogue.
def matmul(x, y, b):
    def kernel(x, y, b, o, acc):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        acc[...] += dot(x[...], y[...])

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o[...] = jnp.maximum(acc[...] + b[...], 0).astype(o.dtype)

    (m, k), (_, n) = x.shape, y.shape
    return call(
        kernel,
        shape(m, n, dtype=x.dtype),
        grid=(pl.cdiv(m, 16), pl.cdiv(n, 8), k // 8),
        in_specs=[
            pl.BlockSpec((16, 8), lambda i, j, k: (i, k)),
            pl.BlockSpec((8, 8), lambda i, j, k: (k, j)),
            pl.BlockSpec((8,), lambda i, j, k: (j,)),
        ],
        out_specs=pl.BlockSpec((16, 8), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((16, 8), jnp.float32)],
    )(x, y, b)


case("matmul_f32", matmul, normal(40, 24), normal(24, 20), normal(20), op="matmul", batch=[(0, None, None), (None, 2, 0)])
case("matmul_bf16", matmul, normal(40, 24, dtype="bf16"), normal(24, 20, dtype="bf16"), normal(20, dtype="bf16"), op="matmul")


# Sums over an inner dimension of the grid in the output block that its positions share.
def sum_rows(x):
    def kernel(x, o):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += x[...].sum(1)

    return call(
        kernel,
        shape(24),
        grid=(3, 4),
        in_specs=[pl.BlockSpec((8, 4), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8,), lambda i, j: (i,)),
    )(x)


case("sum_rows", sum_rows, normal(24, 16), batch=[(0,), (2,)])


def softmax(x):
    def kernel(x, o):
        e = jnp.exp(x[...] - x[...].max(-1, keepdims=True))
        o[...] = e / e.sum(-1, keepdims=True)

    rows = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    return call(kernel, shape(*x.shape), grid=(pl.cdiv(x.shape[0], 8),), in_specs=[rows], out_specs=rows)(x)


case("softmax", softmax, normal(20, 12), batch=[(0,)])


# A layer norm with its own derivative; the sums for the parameters' gradients are over the grid.
def layer_norm_kernel(x, w, b, o, mean, rstd):
    mean[...] = x[...].mean(1)
    centred = x[...] - mean[...][:, None]
    rstd[...] = lax.rsqrt((centred * centred).mean(1) + 1e-6)
    o[...] = centred * rstd[...][:, None] * w[...] + b[...]


def layer_norm_backward(x, w, mean, rstd, do, dx, dw, db):
    @pl.when(pl.program_id(0) == 0)
    def _():
        dw[...] = jnp.zeros_like(dw)
        db[...] = jnp.zeros_like(db)

    hat = (x[...] - mean[...][:, None]) * rstd[...][:, None]
    g = do[...] * w[...]
    dx[...] = (g - g.mean(1, keepdims=True) - hat * (g * hat).mean(1, keepdims=True)) * rstd[...][:, None]
    dw[...] += (do[...] * hat).sum(0)
    db[...] += do[...].sum(0)


@jax.custom_vjp
def layer_norm(x, w, b):
    return layer_norm_fwd(x, w, b)[0]


def layer_norm_specs():
    return pl.BlockSpec((8, 12), lambda i: (i, 0)), pl.BlockSpec((12,), lambda i: (0,)), pl.BlockSpec((8,), lambda i: (i,))


def layer_norm_fwd(x, w, b):
    rows, all, one = layer_norm_specs()
    out = [shape(24, 12), shape(24), shape(24)]
    o, mean, rstd = call(layer_norm_kernel, out, grid=(3,), in_specs=[rows, all, all], out_specs=[rows, one, one])(x, w, b)
    return o, (x, w, mean, rstd)


def layer_norm_bwd(residuals, do):
    rows, all, one = layer_norm_specs()
    out = [shape(24, 12), shape(12), shape(12)]
    specs = dict(in_specs=[rows, all, one, one, rows], out_specs=[rows, all, all])
    return tuple(call(layer_norm_backward, out, grid=(3,), **specs)(*residuals, do))


layer_norm.defvjp(layer_norm_fwd, layer_norm_bwd)
case("layer_norm", layer_norm, normal(24, 12), normal(12), normal(12), grad="rev", batch=[(0, None, None)])

# Causal flash attention of one head: 48 positions in blocks of 16, heads of 8.
T, B, D = 48, 16, 8
SCALE = D**-0.5
NEG = -1e30
block = pl.BlockSpec((B, D), lambda i: (i, 0))
whole = pl.BlockSpec((T, D), lambda i: (0, 0))
per_row = pl.BlockSpec((B,), lambda i: (i,))
every_row = pl.BlockSpec((T,), lambda i: (0,))


def scores(q, k, i, j):
    s = dot(q, k.T) * SCALE
    rows = i * B + lax.broadcasted_iota(jnp.int32, (B, B), 0)
    columns = j * B + lax.broadcasted_iota(jnp.int32, (B, B), 1)
    return jnp.where(rows >= columns, s, NEG)


def flash_kernel(q, k, v, o, lse):
    i = pl.program_id(0)
    query = q[...]

    def step(j, carry):
        acc, m, l = carry
        s = scores(query, k[pl.ds(j * B, B), :], i, j)
        m_new = jnp.maximum(m, s.max(1))
        p = jnp.exp(s - m_new[:, None])
        a = jnp.exp(m - m_new)
        return acc * a[:, None] + dot(p, v[pl.ds(j * B, B), :]), m_new, l * a + p.sum(1)

    start = jnp.zeros((B, D), jnp.float32), jnp.full((B,), NEG, jnp.float32), jnp.zeros((B,), jnp.float32)
    acc, m, l = lax.fori_loop(0, i + 1, step, start)
    o[...] = acc / l[:, None]
    lse[...] = m + jnp.log(l)


def flash_dq_kernel(q, k, v, do, lse, delta, dq):
    i = pl.program_id(0)

    def step(j, acc):
        keys = k[pl.ds(j * B, B), :]
        p = jnp.exp(scores(q[...], keys, i, j) - lse[...][:, None])
        dp = dot(do[...], v[pl.ds(j * B, B), :].T)
        return acc + dot(p * (dp - delta[...][:, None]), keys) * SCALE

    dq[...] = lax.fori_loop(0, i + 1, step, jnp.zeros((B, D), jnp.float32))


def flash_dkv_kernel(q, k, v, do, lse, delta, dk, dv):
    j = pl.program_id(0)

    def step(i, carry):
        dk, dv = carry
        at = pl.ds(i * B, B)
        p = jnp.exp(scores(q[at, :], k[...], i, j) - lse[at][:, None])
        dp = dot(do[at, :], v[...].T)
        ds = p * (dp - delta[at][:, None])
        return dk + dot(ds.T, q[at, :]) * SCALE, dv + dot(p.T, do[at, :])

    zero = jnp.zeros((B, D), jnp.float32)
    dk[...], dv[...] = lax.fori_loop(j, T // B, step, (zero, zero))


@jax.custom_vjp
def flash(q, k, v):
    return flash_fwd(q, k, v)[0]


def flash_fwd(q, k, v):
    out = [shape(T, D), shape(T)]
    o, lse = call(flash_kernel, out, grid=(T // B,), in_specs=[block, whole, whole], out_specs=[block, per_row])(q, k, v)
    return o, (q, k, v, o, lse)


def flash_bwd(residuals, do):
    q, k, v, o, lse = residuals
    delta = (o * do).sum(1)
    ins = [block, whole, whole, block, per_row, per_row]
    dq = call(flash_dq_kernel, shape(T, D), grid=(T // B,), in_specs=ins, out_specs=block)(q, k, v, do, lse, delta)
    ins = [whole, block, block, whole, every_row, every_row]
    out = [shape(T, D)] * 2
    dk, dv = call(flash_dkv_kernel, out, grid=(T // B,), in_specs=ins, out_specs=[block, block])(q, k, v, do, lse, delta)
    return dq, dk, dv


flash.defvjp(flash_fwd, flash_bwd)
case("flash_attention", flash, normal(T, D), normal(T, D), normal(T, D), grad="rev", batch=[(0, 0, 0), (0, None, None)])


# Rows in groups, each with its own matrix. A unit of work is a tile of rows and a group that has rows in it.
def ragged_matmul(tiles, groups, offsets, x, w):
    def kernel(tiles, groups, offsets, x, w, o):
        unit = pl.program_id(0)
        tile, group = tiles[unit], groups[unit]

        @pl.when((unit == 0) | (tiles[jnp.maximum(unit - 1, 0)] != tile))
        def _():
            o[...] = jnp.zeros_like(o)

        rows = tile * 8 + lax.broadcasted_iota(jnp.int32, o.shape, 0)
        inside = (rows >= offsets[group]) & (rows < offsets[group + 1])
        o[...] = jnp.where(inside, dot(x[...], w[...]), o[...])

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=tiles.shape,
        in_specs=[
            pl.BlockSpec((8, 6), lambda u, tiles, groups, offsets: (tiles[u], 0)),
            pl.BlockSpec((None, 6, 4), lambda u, tiles, groups, offsets: (groups[u], 0, 0)),
        ],
        out_specs=pl.BlockSpec((8, 4), lambda u, tiles, groups, offsets: (tiles[u], 0)),
    )
    return call(kernel, shape(24, 4), grid_spec=spec)(tiles, groups, offsets, x, w)


work = [values(list, "i32") for list in ([0, 0, 1, 2, 2], [0, 2, 2, 2, 3], [0, 5, 5, 19, 24])]
case("ragged_matmul", ragged_matmul, *work, normal(24, 6), normal(4, 6, 4), batch=[(None, None, None, 0, None), (0, 0, 0, 0, 0)])


# Ranges that reach beyond the end: masked reads and writes, and plain ones, which are moved inside.
def masked(x):
    def kernel(x, o, moved):
        o[...] = jnp.zeros_like(o)
        moved[...] = jnp.zeros_like(moved)

        def step(i, _):
            at = pl.ds(i * 8, 8)
            mask = i * 8 + jnp.arange(8) < 20
            plt.store(o.at[at], 2 * plt.load(x.at[at], mask=mask, other=7.0), mask=mask)
            moved[at] += x[at]

        lax.fori_loop(0, 3, step, None)

    return call(kernel, [shape(20), shape(20)])(x)


case("masked", masked, normal(20), batch=[(0,)])


# Elements that were not written, and those beyond the array.
def uninitialized(x):
    def kernel(x, o, untouched, sums, scratch):
        @pl.when(pl.program_id(0) == 1)
        def _():
            o[...] = x[...]

        sums[...] = x[...].sum()[None]
        scratch[...] = scratch[...] + 1
        untouched[0] = scratch[0]

    tile = pl.BlockSpec((4,), lambda i: (i,))
    out = [shape(10, dtype=x.dtype), shape(6, dtype=x.dtype), shape(3, dtype=x.dtype)]
    specs = dict(in_specs=[tile], out_specs=[tile, pl.BlockSpec((2,), lambda i: (i,)), pl.BlockSpec((1,), lambda i: (i,))])
    return call(kernel, out, grid=(3,), scratch_shapes=[pltpu.VMEM((2,), x.dtype)], **specs)(x)


case("uninitialized_f32", uninitialized, normal(10), op="uninitialized", batch=[(0,)])
case("uninitialized_i32", uninitialized, small(10, dtype="i32"), op="uninitialized")


# A result that starts with an operand, of which two blocks are replaced; the operand stays as it was.
def aliased(x, y):
    def kernel(x, y, o):
        o[...] = o[...] * 10 + x[...] + y[...]

    at = pl.BlockSpec((4,), lambda i: (2 * i,))
    specs = dict(grid=(2,), in_specs=[at, pl.BlockSpec((4,), lambda i: (0,))], out_specs=at)
    return call(kernel, shape(16), input_output_aliases={0: 0}, **specs)(x, y)


case("aliased", aliased, normal(16), normal(4), batch=[(0, 0), (None, 0)])


# Running sums: scratch memory lasts from one position to the next.
def running_sums(x):
    def kernel(x, o, total):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _():
            total[...] = jnp.zeros_like(total)

        o[...] = total[0] + jnp.cumsum(x[...])
        total[...] += x[...].sum()

    row = pl.BlockSpec((None, 4), lambda i, j: (i, j))
    specs = dict(grid=(2, 3), in_specs=[row], out_specs=row, scratch_shapes=[pltpu.VMEM((1,), jnp.float32)])
    return call(kernel, shape(2, 12), **specs)(x)


case("running_sums", running_sums, normal(2, 12), batch=[(1,)])


# Blocks that start anywhere, and overlap, of an array with padding.
def stencil(x):
    def kernel(x, o):
        inside = jnp.where(x[...] == x[...], x[...], 0)
        o[...] = inside[:4] + inside[1:5] + inside[2:]

    at = pl.BlockSpec((pl.Element(6, (1, 1)),), lambda i: (4 * i,))
    return call(kernel, shape(16), grid=(4,), in_specs=[at], out_specs=pl.BlockSpec((4,), lambda i: (i,)))(x)


case("stencil", stencil, normal(16), batch=[(0,)])


# Parts of refs: numbers, ranges, steps, computed indices, integer arrays; a kernel that writes to an input's ref.
def parts(x, at):
    def kernel(x, at, o, rows, picked):
        first = at[0]
        o[...] = jnp.zeros_like(o)
        o[0, 1:3] = x[1, :2]
        o[first] = x[-1]
        o[::2, at[1] + 2] = x[first, ::2]
        o[pl.ds(1, 2), first] += x[pl.ds(first, 2), 0]
        x[2] = x[2] + 1
        rows[...] = x[...][:2] + x[pl.ds(first, 2), :]
        picked[...] = x[at[...]]
        picked[at[1] - 1, at[...]] = at[...].astype(jnp.float32)

    return call(kernel, [shape(4, 4), shape(2, 4), shape(2, 4)])(x, at)


case("parts", parts, normal(4, 4), values([2, 1], "i32"), batch=[(0, None)])


# Loops whose number of steps is known when the kernel runs, conditionals with state, and two kernels' worth of writes.
def collatz(n):
    def kernel(n, o, seen):
        o[...] = jnp.zeros_like(o)
        seen[...] = n[...]

        def step(i):
            at = seen[i]
            lax.cond(at % 2 == 0, lambda: seen.__setitem__(i, at // 2), lambda: seen.__setitem__(i, 3 * at + 1))
            o[i] += 1
            return jnp.where(seen[i] == 1, i + 1, i)

        lax.while_loop(lambda i: i < 5, step, 0)

    return call(kernel, shape(5, dtype=jnp.int32), scratch_shapes=[pltpu.VMEM((5,), jnp.int32)])(n)


case("collatz", collatz, values([6, 2, 11, 3, 7], "i32"))


# The state of a scan in a kernel, and the position within a grid under vmap.
def scanned(x):
    def kernel(x, o):
        def step(carry, row):
            o[...] += row * carry
            return carry + 1, carry

        o[...] = jnp.zeros_like(o)
        _, counts = lax.scan(step, pl.program_id(0).astype(jnp.float32), x[...])
        o[...] += counts.sum()

    specs = dict(grid=(2,), in_specs=[pl.BlockSpec((3, 4), lambda i: (0, i))], out_specs=pl.BlockSpec((4,), lambda i: (i,)))
    return call(kernel, shape(8), **specs)(x)


case("scanned", scanned, normal(3, 8), batch=[(0,), (2,)])
