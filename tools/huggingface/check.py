"""Loads what `shardax_models` saved by `transformers` and `peft`, and compares logits.

    SAVED=/tmp/saved cargo test -p shardax-models saved_folders -- --ignored
    .venv/huggingface/bin/python tools/huggingface/check.py /tmp/saved
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

GOLDEN = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"


# What no result depends on, and tables of sines and distances that transformers computes, which `shardax_models` does not save.
UNUSED = ("pooler.", "embed_positions.weight", "num_batches_tracked", "relative_position_index", "text_model.embeddings.position_ids",
          "text_model.embeddings.token_type_ids")
# Classes that have these results instead of logits.
RESULTS = ("logits", "pred_masks", "logits_per_image", "logits_per_audio", "last_hidden_state", "predicted_depth", "heatmaps")
# The other implementation of attention has other scores of distances in this class.
SDPA = ("falcon_alibi",)
# transformers 5.24 needs gates of experts that return their input, which published files do not have.
WITHOUT_UNUSED_GATES = ("longcat_flash",)


def inputs_of(case, number):
    """The inputs of a case, with the channels of images first, and with all patches of a masked model visible."""
    names = ("input_ids", "attention_mask", "token_type_ids", "bbox", "global_attention_mask", "decoder_input_ids", "input_values",
             "input_features", "is_longer")
    given = {name: case[name] for name in names if name in case}
    images = next((name for name in (f"pixel_values{number}", "pixel_values") if name in case), None)
    if images:
        given["pixel_values"] = case[images].permute(0, 3, 1, 2)
    return given


def patches_of(images, size):
    """The patches of images that SigLIP 2 reads, and their places."""
    batch, channels, height, width = images.shape
    rows, columns = height // size, width // size
    patches = images.reshape(batch, channels, rows, size, columns, size).permute(0, 2, 4, 3, 5, 1).reshape(batch, rows * columns, -1)
    return {"pixel_values": patches, "spatial_shapes": torch.tensor([[rows, columns]] * batch),
            "pixel_attention_mask": torch.ones(batch, rows * columns, dtype=torch.int64)}


def error_of(model, case, number):
    """The largest difference of the results."""
    given = inputs_of(case, number)
    if model.config.model_type == "siglip2":
        given |= patches_of(given["pixel_values"], model.config.vision_config.patch_size)
    if model.config.model_type == "vit_mae":
        model.config.mask_ratio = 0.0
        size = given["pixel_values"].shape
        count = (size[2] // model.config.patch_size) * (size[3] // model.config.patch_size)
        given["noise"] = torch.arange(float(count)).repeat(size[0], 1)
    if model.config.model_type == "sam":
        given |= {"input_points": case["points"], "input_labels": case["labels"], "input_boxes": case["boxes"], "input_masks": case["masks"][:, None]}
        case["logits"] = case["masks_all"]
    if model.config.model_type == "wav2vec2-bert":
        given["input_features"] = given.pop("input_values")
    with torch.no_grad():
        output = model.eval()(**given)
    name = next(name for name in RESULTS if name in output)
    expected = next(case[key] for key in (f"{name}{number}", f"logits{number}") if key in case)
    result = output[name]
    if result.shape != expected.shape and result.dim() == 4:
        # The channels, classes or joints come last here.
        result = result.permute(0, 2, 3, 1)
    return (result.reshape(expected.shape) - expected).abs().max().item()


def loaded(folder, attention):
    """Loads a folder, which must have all arrays of the class and no others."""
    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    kind = getattr(transformers, name)
    model, info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation=attention)
    missing = [key for key in info["missing_keys"] if not any(part in key for part in UNUSED)]
    assert not (missing or info["unexpected_keys"] or info["mismatched_keys"]), (folder.name, info)
    if not any(module.__class__.__name__ == "TrOCRSinusoidalPositionalEmbedding" for module in model.modules()):
        return model
    # transformers 5.24 leaves the sines of these positions without memory when it loads a model.
    fresh = kind(model.config)
    fresh.load_state_dict(model.state_dict())
    return fresh


def main():
    differing = []
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        if folder.name in WITHOUT_UNUSED_GATES or sys.argv[2:] and folder.name not in sys.argv[2:]:
            continue
        case = load_file(GOLDEN / folder.name / "case.safetensors")
        if folder.name == "adapter":
            # Slow to import.
            import peft

            base = transformers.LlamaForCausalLM.from_pretrained(GOLDEN / "llama")
            model = peft.PeftModel.from_pretrained(base, folder)
        else:
            model = loaded(folder, "sdpa" if folder.name in SDPA else "eager")
        # Images of several sizes.
        numbers = [f"_{number}" for number in range(9) if f"pixel_values_{number}" in case]
        # CLIPSeg also has an image without a number, which describes the others.
        has_numbers = numbers and ("pixel_values" not in case or f"logits{numbers[0]}" in case)
        error = max(error_of(model, case, number) for number in (numbers if has_numbers else [""]))
        print(f"{folder.name}: {error:.1e}", flush=True)
        if not error < 1e-5 * max(1.0, *(value.abs().max().item() for key, value in case.items() if key.startswith("logits"))):
            differing.append(folder.name)
    assert not differing, differing


if __name__ == "__main__":
    main()
