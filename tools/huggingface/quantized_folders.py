"""Makes tiny folders with quantized kernels, as published ones store them, and the logits of transformers with the same kernels
dequantized. It needs the packages bitsandbytes and compressed-tensors.

    .venv/huggingface/bin/python tools/huggingface/quantized_folders.py
"""

import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"
SIZES = {"vocab_size": 33, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
LINEAR = ("_proj.weight",)


def folder_of(name, model, method, convert, extra=None):
    """Saves a model whose linear layers `convert` replaces by other arrays, and the logits with the kernels that they stand for.

    `convert` returns the arrays, by the ending of their names, and the kernel."""
    model.eval()
    arrays, dense = {}, {}
    for key, value in model.state_dict().items():
        if key.endswith(LINEAR):
            parts, kernel = convert(value.float())
            arrays.update({key.removesuffix(".weight") + ending: part.contiguous() for ending, part in parts.items()})
            dense[key] = kernel.float()
        elif key != "lm_head.weight" or not model.config.tie_word_embeddings:
            arrays[key] = value.contiguous()
    arrays.update(extra or {})
    model.load_state_dict({**model.state_dict(), **dense})
    out = GOLDEN / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    tokens = torch.randint(0, 33, (2, 9))
    with torch.no_grad():
        logits = model(tokens).logits
    fields = {**model.config.to_dict(), "architectures": [type(model).__name__], "quantization_config": method}
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    save_file(arrays, out / "model.safetensors", {"format": "pt"})
    save_file({"input_ids": tokens.to(torch.int32), "logits": logits.contiguous()}, out / "case.safetensors")
    return out, tokens, logits


def check(out, tokens, logits, tolerance=1e-4, **options):
    """Compares with the model that transformers loads from the folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, **options).eval()
    with torch.no_grad():
        difference = (model(tokens).logits.float() - logits).abs().max().item()
    print(f"{out.name}: transformers differs by {difference:.1e}")
    assert difference < tolerance


def llama(**fields):
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **fields}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def fp8_blocks(kernel, block):
    rows, columns = block
    padded = torch.nn.functional.pad(kernel, (0, -kernel.shape[1] % columns, 0, -kernel.shape[0] % rows))
    tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scale = tiles.abs().amax((1, 3), keepdim=True) / 448
    stored = (tiles / scale).to(torch.float8_e4m3fn)
    cut = lambda x: x.reshape(padded.shape)[: kernel.shape[0], : kernel.shape[1]]
    return cut(stored), scale[:, 0, :, 0], cut(stored.float() * scale)


def fp8():
    """The files of DeepSeek-V3 and of Qwen's FP8 models."""
    # transformers dequantizes only kernels that have whole blocks, unlike DeepSeek's code.
    for block in [(16, 16), (12, 20)]:
        def convert(kernel):
            stored, scale, dense = fp8_blocks(kernel, block)
            return {".weight": stored, ".weight_scale_inv": scale}, dense

        method = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block}
        made = folder_of("llama_fp8", llama(), method, convert)
        if block == (16, 16):
            check(*made, quantization_config=transformers.FineGrainedFP8Config(weight_block_size=block, dequantize=True))

    def convert_static(kernel):
        scale = kernel.abs().max() / 448
        stored = (kernel / scale).to(torch.float8_e4m3fn)
        return {".weight": stored, ".weight_scale_inv": scale, ".activation_scale": torch.tensor(0.1)}, stored.float() * scale

    method = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    folder_of("llama_fp8_static", llama(), method, convert_static)


def compressed(name, weights, form, convert, extra=None):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    method = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
              "config_groups": {"group_0": group}, "global_compression_ratio": None, "kv_cache_scheme": None}
    return folder_of(name, llama(), method, convert, extra)


def compressed_tensors():
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    options = {"quantization_config": transformers.CompressedTensorsConfig(run_compressed=False)}

    def channel(kernel):
        scale = kernel.abs().amax(1, keepdim=True) / 448
        stored = (kernel / scale).to(torch.float8_e4m3fn)
        return {".weight": stored, ".weight_scale": scale}, stored.float() * scale

    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    made = compressed("llama_ct_fp8", weights, "float-quantized", channel, {"model.layers.0.self_attn.k_scale": torch.tensor([1.0])})
    check(*made, **options)

    def integers(kernel):
        scale = kernel.abs().amax(1, keepdim=True) / 127
        stored = (kernel / scale).round().to(torch.int8)
        return {".weight": stored, ".weight_scale": scale}, stored.float() * scale

    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
    made = compressed("llama_ct_int8", weights, "int-quantized", integers)
    check(*made, **options)

    def packed(symmetric):
        def convert(kernel):
            groups = kernel.reshape(kernel.shape[0], -1, 16)
            low, high = groups.amin(-1), groups.amax(-1)
            scale = groups.abs().amax(-1) / 7 if symmetric else (high - low) / 15
            zero = torch.zeros_like(scale) if symmetric else (-8 - low / scale).round().clamp(-8, 7)
            stored = (groups / scale[..., None] + zero[..., None]).round().clamp(-8, 7)
            dense = ((stored - zero[..., None]) * scale[..., None]).reshape(kernel.shape)
            parts = {".weight_packed": pack_to_int32(stored.reshape(kernel.shape).to(torch.int8), 4), ".weight_scale": scale,
                     ".weight_shape": torch.tensor(kernel.shape)}
            if not symmetric:
                parts[".weight_zero_point"] = pack_to_int32(zero.to(torch.int8), 4, packed_dim=0)
            return parts, dense

        return convert

    for name, symmetric in [("llama_ct_w4", True), ("llama_ct_w4_zeros", False)]:
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": symmetric, "dynamic": False, "actorder": None}
        made = compressed(name, weights, "pack-quantized", packed(symmetric))
        check(*made, **options)

    def nvfp4(kernel):
        levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        overall = 448 * 6 / kernel.abs().max()
        groups = kernel.reshape(kernel.shape[0], -1, 16)
        scale = (groups.abs().amax(-1) / 6 * overall).to(torch.float8_e4m3fn)
        factors = (scale.float() / overall)[..., None]
        index = ((groups / factors).abs()[..., None] - levels).abs().argmin(-1)
        dense = (levels[index] * groups.sign() * factors).reshape(kernel.shape)
        index = (index + 8 * (groups < 0)).reshape(kernel.shape[0], -1, 2)
        stored = (index[..., 0] + 16 * index[..., 1]).to(torch.uint8)
        return {".weight_packed": stored, ".weight_scale": scale, ".weight_global_scale": overall.reshape(1)}, dense

    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": False}
    made = compressed("llama_ct_nvfp4", weights, "nvfp4-pack-quantized", nvfp4)
    # transformers dequantizes this format in bfloat16.
    check(*made, tolerance=0.03, **options)


def bitsandbytes():
    import bitsandbytes as bnb

    for name, kind, nested in [("llama_nf4", "nf4", True), ("llama_fp4", "fp4", False)]:
        def convert(kernel):
            stored, state = bnb.functional.quantize_4bit(kernel, blocksize=64, quant_type=kind, compress_statistics=nested)
            parts = {".weight": stored, **{f".weight.{key}": value for key, value in state.as_dict(packed=True).items()}}
            return parts, bnb.functional.dequantize_4bit(stored, state)

        method = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True, "load_in_8bit": False,
                  "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": kind,
                  "bnb_4bit_use_double_quant": nested, "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None}
        check(*folder_of(name, llama(), method, convert))

    def convert(kernel):
        largest = kernel.abs().amax(1)
        stored = (kernel * 127 / largest[:, None]).round().to(torch.int8)
        return {".weight": stored, ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}, stored * largest[:, None] / 127

    method = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0}
    # Inputs are rounded to 8 bits too.
    check(*folder_of("llama_bnb8", llama(), method, convert), tolerance=0.1)


def bitnet():
    def ternary(kernel):
        mean = kernel.abs().mean()
        return (kernel / mean).round().clamp(-1, 1), mean

    def convert(kernel):
        values, mean = ternary(kernel)
        bits = (values + 1).to(torch.uint8).reshape(4, -1, kernel.shape[1])
        return {".weight": sum(bits[i] << (2 * i) for i in range(4)), ".weight_scale": mean.reshape(1)}, values * mean

    def model():
        torch.manual_seed(7)
        made = transformers.BitNetForCausalLM(transformers.BitNetConfig(**SIZES, hidden_act="relu2", tie_word_embeddings=True))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return made

    method = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
    folder_of("bitnet_packed", model(), method, convert)
    folder_of("bitnet_online", model(), {**method, "quantization_mode": "online"}, lambda kernel: ({".weight": kernel.clone()}, ternary(kernel)[0] * ternary(kernel)[1]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    fp8()
    compressed_tensors()
    bitsandbytes()
    bitnet()
