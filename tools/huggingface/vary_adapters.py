"""Makes adapters of tiny models with unusual options, and the logits that `peft` computes from their files, which `shardax_models` must
compute too, or refuse.

    .venv/huggingface/bin/python tools/huggingface/vary_adapters.py /tmp/adapters
    ADAPTERS=/tmp/adapters cargo test -p shardax-models --test huggingface varied_adapters -- --ignored
"""

import pathlib
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"
LAYERS = ["q_proj", "o_proj", "up_proj"]
# Options of adapters of Llama.
OPTIONS = {
    "plain": {},
    "use_rslora": {"use_rslora": True},
    "use_dora": {"use_dora": True},
    **{f"bias_{kind}": {"bias": kind} for kind in ["all", "lora_only"]},
    "lora_bias": {"lora_bias": True},
    "layers_to_transform": {"layers_to_transform": [1]},
    "all_linear": {"target_modules": "all-linear"},
    "expression": {"target_modules": r".*\.(q|v)_proj"},
    "rank_expression": {"rank_pattern": {r"^model.layers.0.*q_proj": 4}},
    "rank_end": {"rank_pattern": {"0.self_attn.q_proj": 4}},
    "no_alpha": {"alpha_pattern": {"q_proj": 0}},
    "patterns": {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 9}, "use_rslora": True},
    "saved_head": {"modules_to_save": ["lm_head"]},
    "saved_table": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "table": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "tokens": {"trainable_token_indices": [3, 5]},
    **{f"init_{kind}": {"init_lora_weights": kind} for kind in ["gaussian", "pissa", "olora", "eva", "orthogonal", "lora_ga", False]},
    "exclude_modules": {"exclude_modules": ["model.layers.0.self_attn.q_proj"]},
    "layer_replication": {"layer_replication": [[0, 2], [1, 2]]},
    "alora": {"alora_invocation_tokens": [3, 4]},
    "fan_in_fan_out": {"fan_in_fan_out": True},
}
# Layers of other models.
LAYERS_OF = {
    "qwen3": ["embed_tokens"], "gemma2": LAYERS, "mixtral": ["gate", "q_proj"], "deepseek_v3": ["q_a_proj", "kv_b_proj", "o_proj"],
    "bloom": ["query_key_value"], "falcon": ["query_key_value"], "qwen3_next": ["in_proj_qkvz", "q_proj", "out_proj"], "glm4": ["gate_up_proj"],
    "gpt_oss": ["q_proj"], "bitnet": "all-linear", "lara_mini": ["in_proj_qkv", "q_proj"], "kolibri1": ["q_proj", "up_proj"],
}


def load(base):
    return transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / base, dtype=torch.float32)


def save(folder, base, options):
    torch.manual_seed(0)
    model = peft.get_peft_model(load(base), peft.LoraConfig(**{"target_modules": LAYERS, "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 3, **options}))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    tokens = torch.randint(0, 33, (2, 9))
    with torch.no_grad():
        logits = peft.PeftModel.from_pretrained(load(base), folder).eval()(tokens).logits
    save_file({"input_ids": tokens.to(torch.int32), "logits": logits.contiguous()}, folder / "case.safetensors")
    (folder / "base.txt").write_text(base)


def main():
    out = pathlib.Path(sys.argv[1])
    cases = {**{name: ("llama", options) for name, options in OPTIONS.items()},
             **{base: (base, {"target_modules": layers}) for base, layers in LAYERS_OF.items()}}
    for name, (base, options) in cases.items():
        shutil.rmtree(out / name, ignore_errors=True)
        try:
            save(out / name, base, options)
        except Exception as error:
            # The option needs another package or other data.
            shutil.rmtree(out / name, ignore_errors=True)
            print(f"{name}: {error}")


if __name__ == "__main__":
    main()
