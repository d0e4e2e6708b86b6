"""Makes the GGUF files that the tests of `shardax_models` read, by llama.cpp's Python package: random blocks of every type with their
numbers, and the tiny models of `crates/shardax-models/tests/golden` in llama.cpp's names and order of rows.

    .venv/huggingface/bin/python tools/huggingface/gguf_files.py          # all of them
    .venv/huggingface/bin/python tools/huggingface/gguf_files.py olmo2    # some of ARCHITECTURES
"""

import json
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"
OUT = GOLDEN / "gguf"
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"]


def finite_halves(rng, count):
    """Bytes of float16 numbers that are not NaN, of all magnitudes."""
    halves = rng.standard_normal(count).astype(np.float16) * np.float16(2.0) ** rng.integers(-12, 6, count).astype(np.float16)
    return halves.view(np.uint8).reshape(count, 2)


# Where a block has numbers in float16.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2]}
HALVES |= {"Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}


def random_blocks():
    """Two rows of 256 elements of each type, in all bit patterns, and the numbers that they are."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(OUT / "blocks.gguf", "blocks")
    numbers = {}
    for name in TYPES:
        kind = Type[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (2 * 256 // elements, size), dtype=np.uint8)
        for offset in HALVES[name]:
            blocks[:, offset : offset + 2] = finite_halves(rng, len(blocks))
        if name == "MXFP4":
            # The exponents of numbers that float32 has.
            blocks[:, 0] = rng.integers(0, 250, len(blocks))
        rows = blocks.reshape(2, -1)
        writer.add_tensor(name, rows, raw_dtype=kind)
        numbers[name] = gguf.quants.dequantize(rows, kind).astype(np.float32)
    for name, array in [("F32", rng.standard_normal((2, 3)).astype(np.float32)), ("F16", rng.standard_normal((2, 3)).astype(np.float16))]:
        writer.add_tensor(name, array)
        numbers[name] = array.astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(numbers, OUT / "blocks.safetensors")


def permute(rows, heads):
    """llama.cpp's order of the rows of queries and keys."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi": gguf.MODEL_ARCH.PHI2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "arcee": gguf.MODEL_ARCH.ARCEE,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "qwen3vl": gguf.MODEL_ARCH.QWEN3VL,
    # With experts in 4 bits, as published.
    "gpt_oss_mxfp4": gguf.MODEL_ARCH.GPT_OSS,
}
# The part for texts of a model of text and images.
FOLDERS = {"qwen3vl": "qwen3"}
# llama.cpp converts these architectures like Llama, with another order of the rows of queries and keys.
PERMUTED = ["llama", "arcee", "granite", "smollm3"]


# The names of a layer's experts, and of their gates, last layers and first layers.
EXPERTS = {"mixtral": ("block_sparse_moe", ["w1", "w2", "w3"]), "qwen2_moe": ("mlp", ["gate_proj", "down_proj", "up_proj"])}


def metadata(writer, name, config):
    """The architecture's metadata."""
    size = lambda new, old=None: config.get(new, config.get(old))
    heads = size("num_attention_heads", "n_head")
    writer.add_block_count(size("num_hidden_layers", "n_layer"))
    writer.add_context_length(size("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(size("hidden_size", "n_embd"))
    writer.add_feed_forward_length(config.get("intermediate_size") or 4 * size("hidden_size", "n_embd"))
    writer.add_head_count(heads)
    if name == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_vocab_size(config["vocab_size"])
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters", {})
    if name == "gemma3":
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
        writer.add_sliding_window_pattern(2)
    else:
        rope = rope.get("full_attention", rope)
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if name in ("phi", "cohere", "starcoder2"):
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if name in ("phi", "glm4"):
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.5))))
    if name == "glm4":
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if name not in ("phi", "cohere", "starcoder2", "glm4"):
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_dimension_count(head_dim)
    if "head_dim" in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if name == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if name == "cohere":
        writer.add_logit_scale(config["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if name == "qwen2_moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if name.startswith("gpt_oss"):
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if name in ("mixtral", "gpt_oss", "gpt_oss_mxfp4"):
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("sliding_window") and name in ("mistral", "gemma2", "gemma3", "phi3", "gpt_oss", "gpt_oss_mxfp4", "olmo3", "exaone4"):
        writer.add_sliding_window(config["sliding_window"])
    if name == "qwen3vl":
        writer.add_rope_dimension_sections([1, 2, 1, 0])
        writer.add_num_deepstack_layers(3)
    if name in ("olmo3", "exaone4"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def mxfp4(blocks, scales):
    """The blocks of llama.cpp: a scale, and then 16 bytes with the elements 0 to 15 in their low bits and 16 to 31 in their high bits. The
    bytes of transformers have neighboring elements."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    packed = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], -1)
    return np.ascontiguousarray(packed.reshape(*packed.shape[:-2], -1))


def model(name):
    """One of the tiny models in float32."""
    folder = GOLDEN / FOLDERS.get(name, name)
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[architecture])
    metadata(writer, name, config)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(architecture, layers)
    for file in sorted(folder.glob("model*.safetensors")):
        arrays = load_file(file)
        for layer in range(layers if name in EXPERTS else 0):
            # The experts of a layer in one array.
            block, parts = EXPERTS[name]
            for old, new in zip(parts, ["gate", "down", "up"]):
                expert = f"model.layers.{layer}.{block}.experts.{{}}.{old}.weight"
                stacked = np.stack([arrays.pop(expert.format(i)) for i in range(config.get("num_local_experts") or config["num_experts"])])
                writer.add_tensor(f"blk.{layer}.ffn_{new}_exps.weight", stacked)
        for layer in range(layers if name == "gpt_oss_mxfp4" else 0):
            block = f"model.layers.{layer}.mlp.experts"
            joined, down = [[arrays.pop(f"{block}.{part}_proj_{kind}") for kind in ("blocks", "scales")] for part in ("gate_up", "down")]
            parts = {"gate": [array[:, ::2] for array in joined], "up": [array[:, 1::2] for array in joined], "down": down}
            for part, pair in parts.items():
                writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", mxfp4(*pair), raw_dtype=Type.MXFP4)
        for layer in range(layers if name.startswith("gpt_oss") else 0):
            for kind in ("weight", "bias") if name == "gpt_oss" else ["bias"]:
                ending = "" if kind == "weight" else "_bias"
                joined, down = [arrays.pop(f"model.layers.{layer}.mlp.experts.{part}_proj{ending}") for part in ("gate_up", "down")]
                parts = {"gate": joined[..., ::2], "up": joined[..., 1::2], "down": down}
                for part, array in parts.items():
                    array = array.swapaxes(-1, -2) if kind == "weight" else array
                    writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.{kind}", np.ascontiguousarray(array))
        for key, array in arrays.items():
            if key.endswith("sinks"):
                key += ".weight"
            if gguf.MODEL_ARCH_NAMES[architecture] in PERMUTED:
                heads = config["num_attention_heads"] if "q_proj" in key else config["num_key_value_heads"]
                array = permute(array, heads) if "q_proj" in key or "k_proj" in key else array
            if name.startswith("gemma") and key.endswith("norm.weight"):
                array = array + 1
            if name == "gpt2" and key.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and key.endswith("weight"):
                array = array.T
            new = names.get_name(key, try_suffixes=(".weight", ".bias"))
            assert new, key
            writer.add_tensor(new, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    OUT.mkdir(exist_ok=True)
    if not sys.argv[1:]:
        random_blocks()
    for name in sys.argv[1:] or ARCHITECTURES:
        model(name)


if __name__ == "__main__":
    main()
