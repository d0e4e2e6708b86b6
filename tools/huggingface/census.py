"""Counts the model types of transformers that `shardax_models` reads, by kind of class, and lists the others.

    .venv/huggingface/bin/python tools/huggingface/census.py          # counts
    .venv/huggingface/bin/python tools/huggingface/census.py --all    # and the types that are not read
"""

import pathlib
import re
import sys

from transformers.models.auto import modeling_auto as auto

SOURCE = pathlib.Path(__file__).parents[2] / "crates/shardax-models/src"
# The files with types that are read, and the lists or calls that name them.
KNOWN = {
    "huggingface/decoders/mod.rs": [r"const FAMILIES.*?\n\];"],
    "huggingface/decoders/wrapper.rs": [r"const WRAPPERS.*?\n\];"],
    "huggingface/bert_files.rs": [r"const KNOWN.*?\];"],
    "huggingface/poolformer.rs": [r"check_type\([^)]*\)"],
    "huggingface/owl.rs": [r"const KNOWN.*?\];"],
    "huggingface/vit.rs": [r"const KNOWN.*?\];"],
    "huggingface/convnext.rs": [r"const KNOWN.*?\];"],
    "huggingface/resnet.rs": [r"const KNOWN.*?\];"],
    "huggingface/mobilebert.rs": [r"check_type\([^)]*\)"],
    "huggingface/mobilenet.rs": [r"const KNOWN.*?\];"],
    "huggingface/wav2vec_files.rs": [r"const KNOWN.*?\];", r"const SEW.*?;"],
    "huggingface/depth/mod.rs": [r"const KNOWN.*?\];", r"const PROMPT.*?;"],
    "huggingface/bit.rs": [r"check_type\([^)]*\)"],
    "huggingface/glpn.rs": [r"check_type\([^)]*\)"],
    "huggingface/detr.rs": [r"const KNOWN.*?\];"],
    "huggingface/clipseg.rs": [r"check_type\([^)]*\)"],
    "huggingface/mobilevit.rs": [r"check_type\([^)]*\)"],
    "huggingface/rt_detr/files.rs": [r"const KNOWN.*?\];"],
    "encoder_decoder/florence.rs": [r"check_type\([^)]*\)"],
    "huggingface/levit.rs": [r"check_type\([^)]*\)"],
    "huggingface/conditional_detr.rs": [r"const KNOWN.*?\];"],
    "huggingface/clap.rs": [r"check_type\([^)]*\)"],
    "huggingface/deformable_detr.rs": [r"check_type\([^)]*\)"],
    "huggingface/grounding_dino.rs": [r"const KNOWN.*?\];", r"const SCALED.*?;"],
    "huggingface/yolos.rs": [r"check_type\([^)]*\)"],
    "huggingface/spectrogram.rs": [r"check_type\([^)]*\)"],
    "huggingface/segformer.rs": [r"const KNOWN.*?\];", r"const \w*PYRAMID.*?;"],
    "huggingface/swin.rs": [r"const KNOWN.*?\];"],
    "huggingface/deberta.rs": [r'has_type\("[^)]*\)', r"check_type\([^)]*\)"],
    "huggingface/modernbert.rs": [r"check_type\([^)]*\)"],
    "huggingface/clip.rs": [r"let is_meta = .*?;"],
    "huggingface/chinese_clip.rs": [r"const KNOWN.*?\];"],
    "huggingface/siglip.rs": [r"let any_size = .*?;"],
    "encoder_decoder/read.rs": [r"const KNOWN.*?\];"],
}
KINDS = {
    "decoders": ["CAUSAL_LM"],
    "text and images": ["IMAGE_TEXT_TO_TEXT"],
    "encoders of texts": ["MASKED_LM"],
    "encoders of images": ["IMAGE_CLASSIFICATION", "ZERO_SHOT_IMAGE_CLASSIFICATION"],
    "depth of images": ["DEPTH_ESTIMATION"],
    "objects in images": ["OBJECT_DETECTION", "ZERO_SHOT_OBJECT_DETECTION"],
    "encoders of sound": ["CTC", "AUDIO_CLASSIFICATION"],
    "encoders with decoders": ["SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"],
}


def known():
    """The types in the source of the crate."""
    parts = [part for name, patterns in KNOWN.items() for pattern in patterns
             for part in re.findall(pattern, (SOURCE / name).read_text(), re.S)]
    return set(re.findall(r'"([\w-]+)"', " ".join(parts)))


def main():
    read = known()
    print("| kind | types | read |\n|---|--:|--:|")
    refused = {}
    for kind, mappings in KINDS.items():
        types = {name for mapping in mappings for name in getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")}
        refused[kind] = sorted(types - read)
        print(f"| {kind} | {len(types)} | {len(types & read)} |")
    if "--all" in sys.argv:
        for kind, types in refused.items():
            print(f"\n{kind}: {', '.join(types)}")


if __name__ == "__main__":
    main()
