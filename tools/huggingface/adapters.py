"""Makes adapters by `peft` of the tiny models of `generate.py`, and the logits of both.

    .venv/huggingface/bin/python tools/huggingface/adapters.py
"""

import json
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from generate import OUT, VOCABULARY


def adapter(to, model, inputs, **options):
    """Saves an adapter with random matrices, and the logits of the model with it."""
    base = model.config.model_type
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=3, **options)).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    model.peft_config["default"].base_model_name_or_path = base
    folder = OUT / to
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    with torch.no_grad():
        output = model(**inputs)
    logits = next(output[name] for name in ("logits_per_image", "logits_per_audio", "logits") if name in output)
    if "pixel_values" in inputs:
        inputs = {**inputs, "pixel_values": inputs["pixel_values"].permute(0, 2, 3, 1).contiguous()}
    arrays = {key: value.to(torch.int32) if value.dtype == torch.int64 else value for key, value in inputs.items()}
    save_file({**arrays, "logits": logits.contiguous()}, folder / "case.safetensors")


def experts():
    """An adapter of single experts, as `peft` wrote it when they were layers of their own, and the logits of the merged model."""
    folder = OUT / "adapter_experts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    state = load_file(OUT / "mixtral/model.safetensors")
    arrays = {}
    # Expert 2 of the first layer has no matrices.
    for layer, expert in [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]:
        for part in ["w1", "w2", "w3"]:
            name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}"
            out, inputs = state[f"{name}.weight"].shape
            a, b = torch.randn(2, inputs) * 0.3, torch.randn(out, 2) * 0.3
            state[f"{name}.weight"] = state[f"{name}.weight"] + 1.5 * b @ a
            arrays[f"base_model.model.{name}.lora_A.weight"] = a
            arrays[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(arrays, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["w1", "w2", "w3"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about, indent=2) + "\n")
    merged = folder / "merged"
    shutil.copytree(OUT / "mixtral", merged)
    save_file(state, merged / "model.safetensors", metadata={"format": "pt"})
    tokens = torch.randint(0, VOCABULARY, (2, 9))
    model = transformers.MixtralForCausalLM.from_pretrained(merged).eval()
    shutil.rmtree(merged)
    with torch.no_grad():
        logits = model(tokens).logits
    save_file({"input_ids": tokens.to(torch.int32), "logits": logits.contiguous()}, folder / "case.safetensors")


def arrays():
    """Adapters of arrays of experts: of both, and of one."""
    tokens = {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}
    model = transformers.Qwen3MoeForCausalLM.from_pretrained(OUT / "qwen3_moe")
    both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    adapter("adapter_arrays", model, tokens, target_modules=["q_proj"], target_parameters=both, task_type="CAUSAL_LM")
    model = transformers.GptOssForCausalLM.from_pretrained(OUT / "gpt_oss")
    adapter("adapter_arrays_interleaved", model, tokens, target_modules=["v_proj"], target_parameters=both[:1], task_type="CAUSAL_LM")


def all_linear():
    """An adapter of all layers that were linear in earlier versions of transformers, also of experts and their router."""
    torch.manual_seed(9)
    model = transformers.Qwen3MoeForCausalLM.from_pretrained(OUT / "qwen3_moe")
    tokens = {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}
    adapter("adapter_all_linear", model, tokens, target_modules="all-linear", task_type="CAUSAL_LM")


def others():
    """Adapters of models of images, and of encoders with decoders."""
    t = transformers
    adapter("adapter_vit", t.ViTForImageClassification.from_pretrained(OUT / "vit"), {"pixel_values": torch.randn(2, 3, 8, 8)},
            target_modules=["q_proj", "v_proj", "fc1"], modules_to_save=["classifier"])
    texts = {"input_ids": torch.randint(3, VOCABULARY, (2, 9)), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 7))}
    adapter("adapter_t5", t.T5ForConditionalGeneration.from_pretrained(OUT / "t5"), texts, target_modules=["q", "v", "wo"],
            task_type="SEQ_2_SEQ_LM")
    sound = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 7))}
    adapter("adapter_whisper", t.WhisperForConditionalGeneration.from_pretrained(OUT / "whisper"), sound,
            target_modules=["q_proj", "v_proj", "fc1"])
    model = t.CLIPModel.from_pretrained(OUT / "clip")
    tokens = torch.randint(3, 31, (3, 7))
    tokens[:, 5] = 31
    adapter("adapter_clip", model, {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 8, 8)},
            target_modules=["q_proj", "v_proj", "fc2"])


# Adapted layers of other models by the model's folder.
MORE = {
    "recurrent_gemma": ["q_proj", "linear_x", "linear_out", "down_proj"],
    "minimax": ["q_proj", "qkv_proj", "output_gate", "o_proj"],
    "florence2": ["q_proj", "out_proj", "fc1", "qkv", "image_projection"],
    "mobilevit": ["query", "dense"],
    "clipseg": ["q_proj", "out_proj", "fc2", "reduces.0", "film_mul"],
    "rt_detr": ["q_proj", "o_proj", "fc1", "value_proj"],
    "detr": ["q_proj", "o_proj", "fc1"],
    "clap": ["query", "linear1", "reduction", "dense"],
    "levit": ["queries_keys_values.linear", "linear_up.linear"],
    "convbert": ["query", "conv_out_layer", "dense"],
    "wav2vec2_conformer": ["linear_q", "linear_pos", "intermediate_dense"],
    "wav2vec2_bert": ["linear_v", "output_dense"],
    "swin": ["q_proj", "o_proj", "fc1"],
    "segformer": ["v_proj", "o_proj", "fc2"],
    "dinov2": ["k_proj", "o_proj", "fc1"],
}


def more():
    """Adapters of models of many kinds, for the inputs in the folder of the model."""
    for name, targets in MORE.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(8)
        case = load_file(OUT / name / "case.safetensors")
        [class_name] = json.loads((OUT / name / "config.json").read_text())["architectures"]
        suffix = "_0" if "pixel_values_0" in case else ""
        kinds = ["input_ids", "attention_mask", f"pixel_values{suffix}", "input_values", "input_features", "is_longer", "decoder_input_ids"]
        inputs = {kind.removesuffix(suffix): case[kind] for kind in kinds if kind in case}
        inputs = {kind: array.long() if array.dtype == torch.int32 else array for kind, array in inputs.items()}
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].permute(0, 3, 1, 2)
        if class_name.startswith("Wav2Vec2Bert"):
            inputs["input_features"] = inputs.pop("input_values")
        model = getattr(transformers, class_name).from_pretrained(OUT / name, attn_implementation="eager")
        adapter(f"adapter_{name}", model, inputs, target_modules=targets)


def joined():
    """Adapters of layers that files store as one."""
    t = transformers
    for name, kind, source, targets in [("adapter_gpt2", t.GPT2LMHeadModel, "gpt2", ["c_attn", "c_proj"]),
                                        ("adapter_phi3", t.Phi3ForCausalLM, "phi3", ["qkv_proj", "gate_up_proj", "o_proj"]),
                                        ("adapter_gpt_neox", t.GPTNeoXForCausalLM, "gpt_neox", ["query_key_value", "dense_4h_to_h"])]:
        torch.manual_seed(6)
        tokens = {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}
        adapter(name, kind.from_pretrained(OUT / source), tokens, target_modules=targets, fan_in_fan_out=source == "gpt2", task_type="CAUSAL_LM")


def older():
    """An adapter in half precision, in the file that early versions of peft write."""
    torch.manual_seed(7)
    llama = transformers.LlamaForCausalLM.from_pretrained(OUT / "llama")
    tokens = {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}
    adapter("adapter_older", llama, tokens, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    folder = OUT / "adapter_older"
    half = {name: array.half() for name, array in load_file(folder / "adapter_model.safetensors").items()}
    (folder / "adapter_model.safetensors").unlink()
    torch.save(half, folder / "adapter_model.bin")
    about = json.loads((folder / "adapter_config.json").read_text())
    fields = ["base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform",
              "lora_alpha", "lora_dropout", "modules_to_save", "peft_type", "r", "revision", "target_modules", "task_type"]
    (folder / "adapter_config.json").write_text(json.dumps({name: about[name] for name in fields}, indent=2) + "\n")
    llama = transformers.LlamaForCausalLM.from_pretrained(OUT / "llama")
    with torch.no_grad():
        logits = peft.PeftModel.from_pretrained(llama, folder).eval()(**tokens).logits
    save_file({"input_ids": tokens["input_ids"].to(torch.int32), "logits": logits.contiguous()}, folder / "case.safetensors")


def main():
    if sys.argv[1:] == ["joined"]:
        return joined()
    if sys.argv[1:2] == ["more"]:
        return more()
    if sys.argv[1:] == ["older"]:
        return older()
    if sys.argv[1:] == ["all_linear"]:
        return all_linear()
    torch.manual_seed(5)
    t = transformers
    tokens = {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}
    llama = t.LlamaForCausalLM.from_pretrained(OUT / "llama")
    targets = ["q_proj", "o_proj", "up_proj"]
    adapter("adapter_dora", llama, tokens, target_modules=targets, use_dora=True, task_type="CAUSAL_LM")
    llama = t.LlamaForCausalLM.from_pretrained(OUT / "llama")
    saved = {"modules_to_save": ["lm_head", "input_layernorm"]}
    adapter("adapter_saved", llama, tokens, target_modules=targets, task_type="CAUSAL_LM", **saved)
    bert = t.BertForSequenceClassification.from_pretrained(OUT / "bert_classes")
    adapter("adapter_bert", bert, tokens, target_modules=["query", "dense"], task_type="SEQ_CLS")
    experts()
    arrays()
    others()
    more()
    joined()
    older()
    all_linear()


if __name__ == "__main__":
    main()
