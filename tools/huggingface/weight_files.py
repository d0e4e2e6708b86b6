"""Makes files of weights that the tests of `shardax_models` read: PyTorch's, and kernels as GPTQ, AWQ and gpt-oss store them, with
their numbers. The kernels are packed here by the formats' definitions, and unpacked by the formulas that `transformers` uses.

    .venv/huggingface/bin/python tools/huggingface/weight_files.py
"""

import collections
import pathlib
import pickle
import zipfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"


def pytorch():
    out = GOLDEN / "pytorch"
    out.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator)
    whole = random(4, 6)
    tensors = {
        "plain": random(2, 3),
        "transposed": random(3, 2).T,
        "part": whole[1:3, 2:5],
        "column": whole[:, 1],
        "shared": whole,
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "half": random(5).to(torch.float16),
        "brain": random(5).to(torch.bfloat16),
        "integers": torch.arange(-2, 3),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "parameter": torch.nn.Parameter(random(2)),
    }
    everything = {**tensors, "nested": collections.OrderedDict(weight=random(1, 2)), "epoch": 3, "name": "x", "on": True}
    torch.save(everything, out / "tensors.pt")
    # The format before PyTorch 1.6.
    torch.save(everything, out / "older.bin", _use_new_zipfile_serialization=False)
    loaded = torch.load(out / "tensors.pt", weights_only=True)
    loaded["nested.weight"] = loaded.pop("nested")["weight"]
    save_file({k: v.detach().clone().contiguous() for k, v in loaded.items() if isinstance(v, torch.Tensor)}, out / "tensors.safetensors")
    # A model as older repositories have it.
    torch.save(load_file(GOLDEN / "qwen2/model.safetensors"), out / "pytorch_model.bin")
    (out / "config.json").write_text((GOLDEN / "qwen2/config.json").read_text())

    class Call:
        def __reduce__(self):
            return (print, ("this must never be printed",))

    with zipfile.ZipFile(out / "call.pt", "w") as archive:
        archive.writestr("call/data.pkl", pickle.dumps({"weight": Call()}, protocol=2))


def pack(integers, bits=4):
    """Integers along the first dimension, eight or four to an int32."""
    per_word = 32 // bits
    words = integers.astype(np.uint32).reshape(-1, per_word, *integers.shape[1:])
    shifts = (np.arange(per_word, dtype=np.uint32) * bits).reshape(1, -1, *[1] * (integers.ndim - 1))
    return torch.from_numpy((words << shifts).sum(1).astype(np.uint32).view(np.int32))


def gptq(rng, inputs, outputs, group, bits=4, ordered=True):
    integers = rng.integers(0, 2**bits, (inputs, outputs))
    zeros = rng.integers(1, 2**bits, (inputs // group, outputs))
    scales = (rng.standard_normal((inputs // group, outputs)) * 0.1).astype(np.float16)
    group_of = np.arange(inputs) // group
    if not ordered:
        group_of = rng.permutation(group_of)
    weight = scales.astype(np.float32)[group_of] * (integers - zeros[group_of])
    arrays = {
        "qweight": pack(integers, bits),
        "qzeros": pack((zeros - 1).T, bits).T.contiguous(),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(group_of.astype(np.int32)),
    }
    return arrays, torch.from_numpy(weight.T.astype(np.float32).copy())


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(rng, inputs, outputs, group):
    integers = rng.integers(0, 16, (inputs, outputs))
    zeros = rng.integers(0, 16, (inputs // group, outputs))
    scales = (rng.standard_normal((inputs // group, outputs)) * 0.1).astype(np.float16)
    ordered = lambda x: x.reshape(x.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(x.shape)
    weight = scales.astype(np.float32).repeat(group, 0) * (integers - zeros.repeat(group, 0))
    arrays = {
        "qweight": pack(ordered(integers).T).T.contiguous(),
        "qzeros": pack(ordered(zeros).T).T.contiguous(),
        "scales": torch.from_numpy(scales),
    }
    return arrays, torch.from_numpy(weight.T.astype(np.float32).copy())


def mxfp4(rng, experts, outputs, inputs):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.from_numpy(rng.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(110, 140, (experts, outputs, inputs // 32), dtype=np.uint8))
    weight = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {"blocks": blocks, "scales": scales}, weight.contiguous()


def kernels():
    out = GOLDEN / "quantized"
    out.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    cases = {
        "gptq": gptq(rng, 64, 16, 32),
        "gptq_order": gptq(rng, 64, 16, 16, ordered=False),
        "gptq8": gptq(rng, 32, 8, 32, bits=8),
        "awq": awq(rng, 64, 16, 32),
    }
    for name, (arrays, weight) in cases.items():
        save_file({**{f"layer.{key}": value for key, value in arrays.items()}, "expected": weight}, out / f"{name}.safetensors")
    arrays, weight = mxfp4(rng, 2, 8, 64)
    save_file({**{f"experts.up_{key}": value for key, value in arrays.items()}, "expected": weight}, out / "mxfp4.safetensors")


def gpt_oss():
    """A tiny gpt-oss whose experts are in four bits, as it is published, and its logits with the same experts widened."""
    import json
    import shutil

    import transformers
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(3)
    config = transformers.GptOssConfig(
        vocab_size=33, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4, max_position_embeddings=32, bos_token_id=0,
        eos_token_id=1, pad_token_id=2,
    )
    config._attn_implementation = "eager"
    model = transformers.GptOssForCausalLM(config).eval()
    experts = model.model.layers[0].mlp.experts
    packed = {}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, outputs in (("gate_up_proj", 64), ("down_proj", 32)):
            blocks = torch.randint(0, 256, (4, outputs, 1, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (4, outputs, 1), dtype=torch.uint8)
            getattr(experts, name).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            packed[f"model.layers.0.mlp.experts.{name}_blocks"] = blocks
            packed[f"model.layers.0.mlp.experts.{name}_scales"] = scales
        tokens = torch.randint(0, 33, (2, 9))
        logits = model(tokens).logits
    out = GOLDEN / "gpt_oss_mxfp4"
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    wide = {key for key in packed for key in [key.removesuffix("_blocks")]}
    rest = {key: value for key, value in load_file(out / "model.safetensors").items() if key not in wide}
    save_file({**rest, **packed}, out / "model.safetensors", {"format": "pt"})
    fields = json.loads((out / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    save_file({"input_ids": tokens.to(torch.int32), "logits": logits.contiguous()}, out / "case.safetensors")


if __name__ == "__main__":
    pytorch()
    kernels()
    gpt_oss()
