"""Makes tiny models with random weights by `transformers`, which saves them, and what they compute: the files that the
tests of `shardax_train::huggingface` read.

    python3 -m venv .venv/huggingface
    .venv/huggingface/bin/pip install -r tools/huggingface/requirements.txt
    .venv/huggingface/bin/python tools/huggingface/generate.py
"""

import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parents[2] / "crates/shardax-train/tests/golden/huggingface"
# What the tests do not read of a configuration only takes room.
KEPT = {
    "model_type", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "layer_norm_epsilon", "activation_function",
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "tie_word_embeddings", "hidden_act",
    "image_size", "patch_size", "num_channels", "layer_norm_eps", "qkv_bias", "id2label", "max_position_embeddings",
    "type_vocab_size",
}  # fmt: skip


def save(name, model, inputs, max_shard_size="5GB", **more):
    """The model, the arguments it is given, and its logits."""
    model.eval()
    # Norms and biases are ones and zeros at first, which would hide that they are mistaken for one another.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        logits = model(**inputs, **more).logits
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key in KEPT}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if "pixel_values" in inputs:
        inputs = {"pixel_values": inputs["pixel_values"].permute(0, 2, 3, 1)}
    arrays = {key: value.to(torch.int32) if value.dtype == torch.int64 else value for key, value in inputs.items()}
    save_file({**{key: value.contiguous() for key, value in arrays.items()}, "logits": logits}, folder / "case.safetensors")


def tokens(*shape, vocabulary):
    return {"input_ids": torch.randint(0, vocabulary, shape)}


def main():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    gpt2 = transformers.GPT2Config(vocab_size=33, n_positions=12, n_embd=16, n_layer=2, n_head=4)
    save("gpt2", transformers.GPT2LMHeadModel(gpt2), tokens(2, 7, vocabulary=33))
    llama = transformers.LlamaConfig(vocab_size=33, num_key_value_heads=2, max_position_embeddings=32, rope_theta=500.0, **sizes)
    # In several files with an index.
    save("llama", transformers.LlamaForCausalLM(llama), tokens(2, 9, vocabulary=33), max_shard_size="10KB")
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 = transformers.LlamaConfig(
        vocab_size=33,
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=True,
        tie_word_embeddings=True,
        max_position_embeddings=32,
        rope_scaling={**scaling, "original_max_position_embeddings": 8},
        **{**sizes, "num_hidden_layers": 1},
    )
    save("llama3", transformers.LlamaForCausalLM(llama3), tokens(1, 16, vocabulary=33))
    labels = {i: str(i) for i in range(5)}
    vit = transformers.ViTConfig(image_size=8, patch_size=4, id2label=labels, label2id={v: k for k, v in labels.items()}, **sizes)
    save("vit", transformers.ViTForImageClassification(vit), {"pixel_values": torch.randn(2, 3, 8, 8)})
    bert = transformers.BertConfig(vocab_size=33, max_position_embeddings=12, **sizes)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    kinds = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0]])
    inputs = {**tokens(2, 7, vocabulary=33), "attention_mask": mask, "token_type_ids": kinds}
    save("bert", transformers.BertForMaskedLM(bert), inputs)
    print(sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file()), "bytes")


if __name__ == "__main__":
    main()
