"""Writes the calls of cuDNN's attention that JAX makes, as facts of one line each; no GPU is needed.

    python tools/golden/cudnn.py > crates/shardax/tests/golden/cudnn.txt

A line has the case, the target, the operands (the argument or the result that each comes from), their types, the results'
types, both layouts, and the configuration without spaces, separated by tabs.
"""

import os
import re

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo

# The checks of cuDNN's version and of the GPU ask a device, and there is none.
fused_attention_stablehlo.check_cudnn_version = lambda: 91000
fused_attention_stablehlo.check_compute_capability = lambda capability: capability in ("8.0", "9.0")

B, T, N, H = 2, 256, 4, 64

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "local_window_size": (31, 0)},
    "gqa": {"is_causal": True},
    "bias": {},
    "seqlens": {},
    "f16": {},
    "mask": {},
}


def functions(name):
    """The function of the case, its gradient, and their arguments."""
    dtype = jnp.float16 if name == "f16" else jnp.bfloat16
    of = lambda *shape, dtype=dtype: jax.ShapeDtypeStruct(shape, dtype)
    key = of(B, T, 2 if name == "gqa" else N, H)
    extra = {
        "bias": {"bias": of(1, N, T, T)},
        "mask": {"mask": of(1, 1, T, T, dtype=jnp.bool_)},
        "seqlens": {n: of(B, dtype=jnp.int32) for n in ("query_seq_lengths", "key_value_seq_lengths")},
    }.get(name, {})

    def attend(q, k, v, *rest):
        given = dict(zip(extra, rest))
        return jax.nn.dot_product_attention(q, k, v, **given, **CASES[name], implementation="cudnn")

    n = 4 if name == "bias" else 3

    def gradient(ct, *x):
        return jax.vjp(lambda *y: attend(*y, *x[n:]), *x[:n])[1](ct)

    x = [of(B, T, N, H), key, key, *extra.values()]
    return {"forward": (attend, x), "backward": (gradient, [of(B, T, N, H), *x])}


def facts(text):
    """The lines of the calls in a text in generic form."""
    made = {}

    def source(value):
        """The argument or the call's result that a value is made of."""
        while value in made and made[value][0] != "stablehlo.custom_call":
            if not made[value][1]:
                return made[value][0]
            value = made[value][1][0]
        base = value.split("#")[0]
        return f"{made[base][2]}{value[len(base):]}" if base in made else f"argument{arguments.index(value)}"

    arguments = max((re.findall(r"%\w+(?=:)", line) for line in text.splitlines() if "^bb0(" in line), key=len)
    for line in text.splitlines():
        op = re.search(r'(%\w+)(?::\d+)? = "([\w.]+)"\((.*?)\)', line)
        if not op:
            continue
        name, kind, operands = op[1], op[2], re.findall(r"%[\w#]+", op[3])
        call = re.search(r'call_target_name = "(.*?)"', line)
        made[name] = (kind, operands, call and call[1])
        if call:
            config = re.search(r'backend_config = "(.*?)", ', line)[1].replace("\\22", '"').replace(" ", "")
            layouts = [re.search(rf"{side}_layouts = \[(.*?)\](?:, |}}>)", line)[1] for side in ("operand", "result")]
            types = re.search(r"\}> : \((.*?)\) -> (.*?)$", line)
            yield call[1], " ".join(map(source, operands)), types[1], types[2].strip("()"), *layouts, config


if __name__ == "__main__":
    for name in CASES:
        for what, (fn, x) in functions(name).items():
            lowered = jax.jit(fn).trace(*x).lower(lowering_platforms=("cuda",))
            text = lowered.compiler_ir().operation.get_asm(print_generic_op_form=True, enable_debug_info=False)
            for fact in facts(text):
                print(f"{name}_{what}", *fact, sep="\t")
