"""Exports JAX's attention kernels for TPUs for the shapes of a model, as files that shardax finds by name.

    python attention.py splash OUT --batch 1 --length 4096 --heads 32 --key-heads 8 --depth 128 --causal

writes the kernel and its gradient to the folder OUT, which SHARDAX_ATTENTION_KERNELS then names. The sizes are those of one
device. No TPU is needed. The kernels' parts that give the logsumexp are not public: `tools/golden/requirements.txt` says of which
version of JAX.
"""

import argparse
import math
import pathlib

import jax
import jax.numpy as jnp
from jax import export
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")


def heads_first(x):
    return x.swapaxes(1, 2)


def by_flash(given):
    """Forward and backward of `flash_attention`, for as many key heads as heads, all keys or the causal ones."""
    if given.key_heads != given.heads or given.window is not None:
        raise SystemExit("flash attention takes as many key heads as heads, and no window: choose splash")
    block = min(given.block, given.length, given.keys)
    backward = ["q_major_dkv", "k_major_dkv", "k_dkv", "q_dkv", "k_major_dq", "k_dq", "q_dq"]
    blocks = flash.BlockSizes(
        block_q=block, block_k_major=block, block_k=block, block_b=1, **{f"block_{name}": block for name in backward}
    )
    scale = 1 / math.sqrt(given.depth)

    def forward(q, k, v):
        q, k, v = map(heads_first, (q, k, v))
        o, l, m = flash._flash_attention(q, k, v, None, None, True, given.causal, scale, blocks, False)
        return heads_first(o), m + jnp.log(l)

    def gradient(q, k, v, o, lse, ct):
        q, k, v, o, ct = map(heads_first, (q, k, v, o, ct))
        residuals = (q, k, v, None, None, o, jnp.ones_like(lse), lse)
        dq, dk, dv, _, _ = flash._flash_attention_bwd(False, given.causal, scale, blocks, False, residuals, ct)
        return tuple(map(heads_first, (dq, dk, dv)))

    return forward, gradient


def by_splash(given):
    """Forward and backward of `splash_attention`, with the key heads as a batch if several heads share one."""
    group = given.heads // given.key_heads
    shape = (given.length, given.keys)
    if given.window is not None:
        mask = masks.LocalMask(shape, (given.window, 0), 0)
    else:
        mask = masks.CausalMask(shape) if given.causal else masks.FullMask(shape)
    block = min(given.block, given.length, given.keys)
    names = ["q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute"]
    blocks = splash.BlockSizes(**{f"block_{name}": block for name in names}, use_fused_bwd_kernel=True)
    make = splash.make_splash_mha if group == 1 else splash.make_splash_mqa
    many = masks.MultiHeadMask([mask] * (given.heads if group == 1 else group))
    kernel = make(mask=many, block_sizes=blocks, head_shards=1, q_seq_shards=1)
    own = {name: kernel.kwargs[name] for name in ("mask_value", "is_mqa", "block_sizes", "mask_function")}
    own |= {"residual_checkpoint_name": None, "attn_logits_soft_cap": None, "interpret": False}
    scale = 1 / math.sqrt(given.depth)

    def grouped(x):
        """[batch, positions, heads, depth] as [batch, heads, positions, depth], or with the key heads after the batch."""
        x = heads_first(x)
        return x if group == 1 else x.reshape(x.shape[0], given.key_heads, group, *x.shape[2:])

    def together(x):
        return heads_first(x if group == 1 else x.reshape(x.shape[0], given.heads, *x.shape[3:]))

    def mapped(f):
        return jax.vmap(f) if group == 1 else jax.vmap(jax.vmap(f))

    def forward(q, k, v):
        def one(q, k, v):
            o, (lse,) = splash._splash_attention_forward(
                kernel.fwd_mask_info, q, k, v, None, None, save_residuals=True, **own
            )
            return o, lse

        o, lse = mapped(one)(grouped(q * scale), heads_first(k), heads_first(v))
        return together(o), lse.reshape(lse.shape[0], given.heads, given.length)

    def gradient(q, k, v, o, lse, ct):
        def one(q, k, v, o, lse, ct):
            residuals = (q, k, v, None, None, o, lse, kernel.dq_mask_info, kernel.dkv_mask_info)
            made = splash._splash_attention_bwd(save_residuals=False, res=residuals, do=ct, **own)
            return made[3:6]

        rows = lse if group == 1 else lse.reshape(lse.shape[0], given.key_heads, group, given.length)
        dq, dk, dv = mapped(one)(grouped(q * scale), heads_first(k), heads_first(v), grouped(o), rows, grouped(ct))
        return together(dq) * scale, heads_first(dk), heads_first(dv)

    return forward, gradient


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", choices=["flash", "splash"])
    parser.add_argument("out", type=pathlib.Path)
    for name in ["batch", "length", "heads", "depth"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--key-heads", type=int, help="default: the heads")
    parser.add_argument("--keys", type=int, help="the number of keys; default: the length")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--window", type=int, help="the number of keys before its own that a query sees, causal")
    parser.add_argument("--block", type=int, default=512)
    given = parser.parse_args()
    given.key_heads, given.keys = given.key_heads or given.heads, given.keys or given.length
    forward, gradient = {"flash": by_flash, "splash": by_splash}[given.kernel](given)

    q = jax.ShapeDtypeStruct((given.batch, given.length, given.heads, given.depth), given.dtype)
    k = jax.ShapeDtypeStruct((given.batch, given.keys, given.key_heads, given.depth), given.dtype)
    lse = jax.ShapeDtypeStruct((given.batch, given.heads, given.length), jnp.float32)
    # The name that `attention/files.rs` looks for.
    name = f"attention_{given.dtype}_{'x'.join(map(str, q.shape))}_{'x'.join(map(str, k.shape[1:3]))}"
    name += "_causal" if given.causal or given.window is not None else ""
    name += f"_window{given.window}" if given.window is not None else ""
    given.out.mkdir(parents=True, exist_ok=True)
    for suffix, f, args in [("", forward, (q, k, k)), ("_gradient", gradient, (q, k, k, q, lse, q))]:
        path = given.out / f"{name}{suffix}.jax"
        path.write_bytes(export.export(jax.jit(f), platforms=["tpu"])(*args).serialize())
        print(path, path.stat().st_size)


main()
