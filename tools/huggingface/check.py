"""Loads what `shardax_models` saved by `transformers` and `peft`, and compares logits.

    SAVED=/tmp/saved cargo test -p shardax-models saved_folders -- --ignored
    .venv/huggingface/bin/python tools/huggingface/check.py /tmp/saved
"""

import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"


def logits_of(model, case):
    given = {key: case[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in case}
    if "pixel_values" in case:
        given = {"pixel_values": case["pixel_values"].permute(0, 3, 1, 2)}
    with torch.no_grad():
        return model.eval()(**given).logits


def main():
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        case = load_file(GOLDEN / folder.name / "case.safetensors")
        if folder.name == "adapter":
            base = transformers.LlamaForCausalLM.from_pretrained(GOLDEN / "llama")
            model = peft.PeftModel.from_pretrained(base, folder)
        else:
            [name] = json.loads((folder / "config.json").read_text())["architectures"]
            kind = getattr(transformers, name)
            model, info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        error = (logits_of(model, case) - case["logits"]).abs().max().item()
        print(f"{folder.name}: {error:.1e}")
        assert error < 1e-5, folder


if __name__ == "__main__":
    main()
