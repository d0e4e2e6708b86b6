"""Makes tiny models whose `config.json` differs from the default of its class by one field or two, which `shardax_models` must
compute as `transformers` does, or refuse.

    .venv/huggingface/bin/python tools/huggingface/vary.py /tmp/varied              # all types of TYPES
    .venv/huggingface/bin/python tools/huggingface/vary.py /tmp/varied llama phi3
    VARIED=/tmp/varied cargo test -p shardax-models --test huggingface varied_models -- --ignored
"""

import inspect
import json
import pathlib
import random
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModel, AutoModelForAudioClassification, AutoModelForCausalLM, AutoModelForCTC, AutoModelForDepthEstimation, AutoModelForImageClassification, AutoModelForMaskedLM, AutoModelForObjectDetection,
                          AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, AutoModelForZeroShotImageClassification)

from defaults import defaults
from towers import ALT, AST, BIT, BLIP, CHINESE, CLAP, CLIPSEG, FLORENCE, DEFORMABLE, DEFORMABLE_IMAGES, FRAMES, LEVIT, MOBILEVIT, RT_DETR, RT_DETR_IMAGES, DEPTH, DEPTH_ENCODER, DETR, DETR_IMAGES, DONUT, GROUNDING, GROUNDING_IMAGES, GROUNDING_TEXTS, DPT, DPT_ENCODER, LED, MOONSHINE, OWL, PVT, SAM, SEGFORMER, TROCR, VITPOSE, WAVES, YOLOS, random_tables
from generate import DISTANCES, DISTILLED, FAMILIES, DECODER, GPT, KV, MODERN, SIZES, TEXTS as PUBLISHED, VOCABULARY, class_of_texts, randomize, sizes_of

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TYPES = {
    "llama": KV,
    "mistral": KV,
    "qwen2": KV,
    "qwen3": KV,
    "gemma": {**KV, "head_dim": 8},
    "gemma2": {**KV, "head_dim": 8},
    "gemma3_text": {**KV, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
    "phi": {},
    "phi3": KV,
    "gpt2": GPT,
}

TEXTS = {"vocab_size": VOCABULARY, "pad_token_id": 1}
ENCODER = {**TEXTS, "max_position_embeddings": 12, **SIZES}
PAIR = {**TEXTS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 24}
T5 = {**TEXTS, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
      "relative_attention_max_distance": 10}
# Published files of image classes name their labels.
LABELS = {"id2label": {str(i): f"label {i}" for i in range(5)}, "label2id": {f"label {i}": i for i in range(5)}}
IMAGES = {"image_size": 8, "patch_size": 4, **SIZES, **LABELS}
STAGES = {**LABELS, "hidden_sizes": [8, 12], "depths": [1, 2]}
SOUND = {**TEXTS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
         "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16,
         "decoder_start_token_id": 3, "bos_token_id": 0, "eos_token_id": 1}
DINO = {name: value for name, value in IMAGES.items() if name != "intermediate_size"}
# Types that are no decoders, and their classes.
OTHERS = {
    AutoModelForMaskedLM: {
        **{kind: ENCODER for kind in ["bert", "ernie", "roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "megatron-bert", "xlm-roberta-xl", "mpnet",
                                       "roformer", "nomic_bert", "gte", "jina_embeddings_v3"]},
        "distilbert": {**TEXTS, **DISTILLED, "max_position_embeddings": 12},
        "albert": {**ENCODER, "embedding_size": 6},
        "big_bird": ENCODER,
        "convbert": {**ENCODER, "embedding_size": 6, "conv_kernel_size": 3, "architectures": ["ConvBertForMaskedLM"]},
        "fnet": {name: value for name, value in ENCODER.items() if name != "num_attention_heads"},
        "mobilebert": {**ENCODER, "embedding_size": 6, "intra_bottleneck_size": 8, "num_feedforward_networks": 3},
        "longformer": {**ENCODER, "attention_window": 4},
        "layoutlm": {**ENCODER, "max_2d_position_embeddings": 16},
        "rembert": {**ENCODER, "input_embedding_size": 6, "output_embedding_size": 10},
        "electra": {**ENCODER, "embedding_size": 6},
        # Without the class, published files of these types have another head.
        "deberta": {**ENCODER, **DISTANCES, "architectures": ["DebertaForMaskedLM"]},
        "deberta-v2": {**ENCODER, **DISTANCES, "architectures": ["DebertaV2ForMaskedLM"]},
        "esm": {**ENCODER, "position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32},
        "modernbert": {**TEXTS, **MODERN},
    },
    AutoModelForSeq2SeqLM: {
        **{kind: T5 for kind in ["t5", "mt5", "umt5"]},
        "longt5": {**T5, "local_radius": 2, "global_block_size": 2, "encoder_attention_type": "transient-global"},
        **{kind: PAIR for kind in ["bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small", "plbart", "mvp"]},
    },
    transformers.LEDForConditionalGeneration: {"led": LED},
    AutoModelForSpeechSeq2Seq: {"whisper": SOUND, "moonshine": MOONSHINE},
    AutoModelForDepthEstimation: {
        "depth_anything": {**DEPTH, "backbone_config": {"model_type": "dinov2", **DEPTH_ENCODER, "out_indices": [1, 2, 3, 4]}},
        "prompt_depth_anything": {**DEPTH, "backbone_config": {"model_type": "dinov2", **DEPTH_ENCODER, "out_indices": [1, 2, 3, 4]}},
        "dpt": {**DPT_ENCODER, **DPT},
        "glpn": {**SEGFORMER, "decoder_hidden_size": 6},
    },
    AutoModelForObjectDetection: {
        "yolos": {**YOLOS, **LABELS},
        **{kind: {**RT_DETR, **LABELS, "backbone_config": RT_DETR_IMAGES} for kind in ["rt_detr", "rt_detr_v2"]},
        "deformable_detr": {**DEFORMABLE, **LABELS, "use_timm_backbone": False, "backbone_config": DEFORMABLE_IMAGES},
        **{kind: {**DETR, **LABELS, "use_timm_backbone": False, "backbone_config": DETR_IMAGES} for kind in ["detr", "table-transformer", "conditional_detr"]},
    },
    transformers.AutoModelForZeroShotObjectDetection: {
        kind: {**GROUNDING, "backbone_config": {"model_type": "swin", **GROUNDING_IMAGES}, "text_config": {"model_type": "bert", **GROUNDING_TEXTS}}
        for kind in ["grounding-dino", "mm-grounding-dino"]
    },
    AutoModelForAudioClassification: {"audio-spectrogram-transformer": {**AST, **LABELS}},
    AutoModelForCTC: {
        **{kind: WAVES for kind in ["wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "sew"]},
        "wav2vec2-conformer": {**WAVES, "conv_depthwise_kernel_size": 5},
        "wav2vec2-bert": {**FRAMES, "architectures": ["Wav2Vec2BertForCTC"]},
        "data2vec-audio": {**WAVES, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 5},
    },
    AutoModelForImageClassification: {
        **{kind: IMAGES for kind in ["vit", "vit_msn", "beit", "data2vec-vision"]},
        "deit": {**IMAGES, "architectures": ["DeiTForImageClassification"]},
        **{kind: DINO for kind in ["dinov2", "dinov2_with_registers"]},
        **{kind: {**STAGES, "num_stages": 2} for kind in ["convnext", "convnextv2"]},
        "bit": {**LABELS, **BIT, "layer_type": "preactivation", "out_features": None},
        "poolformer": {**STAGES, "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1]},
        "segformer": {**STAGES, **SEGFORMER, "architectures": ["SegformerForImageClassification"]},
        "pvt_v2": {**STAGES, **SEGFORMER, "architectures": ["PvtV2ForImageClassification"]},
        "levit": {**LABELS, **LEVIT},
        "pvt": {**LABELS, **PVT, "architectures": ["PvtForImageClassification"]},
        "mobilevit": {**LABELS, **MOBILEVIT},
        "resnet": {**STAGES, "embedding_size": 6},
        "regnet": {**STAGES, "embedding_size": 6, "groups_width": 4},
        "mobilenet_v1": {**LABELS, "depth_multiplier": 0.05, "min_depth": 4},
        "mobilenet_v2": {**LABELS, "depth_multiplier": 0.05, "min_depth": 4, "depth_divisible_by": 4, "finegrained_output": False},
        "efficientnet": {**LABELS, "width_coefficient": 0.01, "depth_divisor": 2, "hidden_dim": 12, "depth_coefficient": 0.3, "image_size": 32},
        "swinv2": {**LABELS, "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 3,
                   "pretrained_window_sizes": [0, 0]},
        "donut-swin": {**LABELS, **DONUT, "image_size": 16},
        "swin": {**LABELS, "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 3},
    },
    AutoModel: {
        "vit_mae": {**IMAGES, "architectures": ["ViTMAEModel"]},
        "ijepa": {**IMAGES, "architectures": ["IJepaModel"]},
        "dinov3_vit": {**IMAGES, "architectures": ["DINOv3ViTModel"]},
    },
}
# Types of texts and images: the fields of the texts and of the images, which vary too.
TOWERS = {
    kind: {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "eos_token_id": 31, "bos_token_id": 0, **SIZES, **text},
           "vision_config": {"image_size": 8, "patch_size": 4, **SIZES, **vision}}
    for kind, text, vision in [("clip", {}, {}), ("metaclip_2", {}, {}), ("siglip", {"projection_size": 16}, {}),
                               ("siglip2", {"projection_size": 16}, {"num_patches": 4})]
}
OTHERS[transformers.VitPoseForPoseEstimation] = {"vitpose": {**LABELS, "backbone_config": {"model_type": "vitpose_backbone", **VITPOSE}}}
# Models with sound or images whose texts are read: the fields of the text vary.
WRAPPED = ["mllama", "qwen2_audio", "voxtral", "audioflamingo3", "musicflamingo", "glmasr", "moss_transcribe_diarize", "qwen3_asr", "fun_asr_nano",
           "vibevoice_asr", "granite_speech", "granite_speech_plus"]
# Encoders of images with decoders of texts.
TOWERS["donut"] = {"encoder": {"model_type": "donut-swin", **DONUT},
                   "decoder": {"model_type": "mbart", **PAIR, "is_decoder": True, "add_cross_attention": True}}
TOWERS["vision-encoder-decoder"] = {"encoder": {"model_type": "vit", "image_size": 8, "patch_size": 4, **SIZES},
                                    "decoder": {"model_type": "trocr", **TROCR, "is_decoder": True, "add_cross_attention": True}}
TOWERS["sam"] = SAM
TOWERS["blip"] = BLIP
TOWERS["owlvit"] = TOWERS["owlv2"] = {"text_config": {**OWL["text_config"], "eos_token_id": 31}, "vision_config": OWL["vision_config"], "projection_dim": 16}
TOWERS["altclip"] = ALT
TOWERS["clipseg"] = CLIPSEG
TOWERS["florence2"] = FLORENCE
TOWERS["clap"] = {key: value for key, value in CLAP.items() if isinstance(value, dict)}
TOWERS["chinese_clip"] = {key: value for key, value in CHINESE.items() if isinstance(value, dict)}
# The types of parts whose names differ from the names of their fields.
PART_TYPES = {"prompt_encoder_config": "sam_prompt_encoder", "mask_decoder_config": "sam_mask_decoder"}
PARTS_OF_KINDS = {("florence2", "vision_config"): "florence_vision"}
CLASSES = {kind: name for name, kinds in OTHERS.items() for kind in kinds} | {kind: AutoModelForZeroShotImageClassification for kind in TOWERS}
CLASSES["sam"] = transformers.SamModel
CLASSES["clap"] = transformers.ClapModel
CLASSES["clipseg"] = transformers.CLIPSegForImageSegmentation
CLASSES["florence2"] = transformers.Florence2ForConditionalGeneration
CLASSES["blip"] = transformers.BlipForConditionalGeneration
CLASSES["owlvit"] = CLASSES["owlv2"] = transformers.AutoModelForZeroShotObjectDetection
CLASSES["donut"] = CLASSES["vision-encoder-decoder"] = transformers.VisionEncoderDecoderModel

# With two features that are turned the base would have no effect.
WIDER = {"gpt_neox": {"hidden_size": 64}}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
# Rotary positions in the forms of all versions.
ROPES = [
    {"rope_theta": 50.0},
    {"rope_theta": 50},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}, "rope_theta": 70.0},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 6},
    {"rope_scaling": YARN},
    {"rope_scaling": {**YARN, "attention_factor": 0.5}},
    {"rope_scaling": {**YARN, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False}},
    {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 16},
    {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}},
    {"rope_scaling": {"rope_type": "default"}},
    {"rope_scaling": {}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
    {"rope_parameters": {"rope_theta": 30.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}, "rope_theta": 70.0},
    {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 30.0}},
    {"rope_parameters": {"rope_type": "linear", "factor": 3.0}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0, "partial_rotary_factor": 0.5}},
    {"partial_rotary_factor": 0.5},
    {"partial_rotary_factor": 0.5, "head_dim": 8},
    {"rotary_pct": 0.5},
    {"rotary_emb_base": 50},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 30.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 80.0}}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_local_base_freq": 70.0},
    {"rope_local_base_freq": 70.0, "rope_theta": 500.0},
]
# Fields of some classes, with values that the others may read too.
FIELDS = [
    *({"hidden_act": act} for act in ["gelu", "relu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu2", "silu", "laplace", "gelu_10"]),
    *({"hidden_activation": act} for act in ["gelu", "silu"]),
    *({"activation_function": act} for act in ["gelu", "silu", "relu"]),
    *({name: value} for name in ["attention_bias", "mlp_bias", "tie_word_embeddings", "use_bias", "qkv_bias", "use_qkv_bias", "qk_layernorm",
                                 "use_qk_norm", "use_sliding_window", "use_parallel_residual", "parallel_attn", "rope_interleave", "alibi",
                                 "norm_topk_prob", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn",
                                 "attention_out_bias", "use_cache", "is_decoder", "add_cross_attention", "upcast_softmax",
                                 "use_mrope", "bias", "multi_query", "do_layer_norm_before", "use_bidirectional_attention",
                                 "moe_renormalize", "use_rope", "rope_is_neox_style", "use_nope", "no_rope"]
      for value in [True, False]),
    *({name: value} for name in ["sliding_window", "attention_window", "window_size"] for value in [4, None, 0]),
    {"sliding_window": 4, "use_sliding_window": True},
    {"sliding_window": 4, "use_sliding_window": False},
    {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    {"sliding_window": 4, "max_window_layers": 1},
    {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4},
    {"layer_types": ["sliding_attention", "sliding_attention"], "sliding_window": 4},
    {"layer_types": ["full_attention", "full_attention"], "sliding_window": 4},
    {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 4},
    {"sliding_window_pattern": 2, "sliding_window": 4},
    {"_sliding_window_pattern": 2, "sliding_window": 4},
    {"sliding_window_pattern": 1, "sliding_window": 4},
    *({"num_key_value_heads": heads} for heads in [1, 4, None]),
    *({"head_dim": size} for size in [6, 8, None]),
    *({name: 0.02} for name in ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"]),
    *({name: 0.7} for name in ["attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling", "embedding_multiplier",
                               "residual_multiplier", "attention_multiplier", "query_pre_attn_scalar", "clip_qkv", "routed_scaling_factor",
                               "softmax_scale", "embedding_scale", "mup_scale", "initializer_range"]),
    {"attention_dropout": 0.3},
    {"n_inner": 20},
    {"ffn_hidden_size": 20},
    {"num_ln_in_parallel_attn": 2},
    {"num_ln_in_parallel_attn": 1},
    {"norm_type": "layer_norm"},
    {"no_rope_layers": [1, 0]},
    {"no_rope_layers": [0, 1]},
    {"no_rope_layer_interval": 2},
    {"mlp_only_layers": [1]},
    {"decoder_sparse_step": 2},
    {"num_experts_per_tok": 1},
    {"num_experts_per_tok": 3},
    {"first_k_dense_replace": 0},
    {"n_shared_experts": 1},
    {"n_shared_experts": 0},
    {"max_position_embeddings": 8},
    {"position_embedding_type": "relative_key"},
    {"hidden_size": 32, "num_attention_heads": 2},
    *({"feed_forward_proj": name} for name in ["gated-silu", "gelu", "gated-relu", "silu", "gated-gelu_new"]),
    {"pos_att_type": ["c2p"]},
    {"pos_att_type": "p2c"},
    {"position_buckets": 4},
    {"embedding_size": 16},
    {"type_vocab_size": 0},
    {"type_vocab_size": 3},
    {"pad_token_id": 0},
    {"layer_norm_eps": 0.02, "hidden_act": "relu"},
    {"scale_embedding": True},
    {"scale_embedding": False},
    {"legacy": False},
    {"num_decoder_layers": 3},
    {"num_hidden_groups": 2, "num_hidden_layers": 4},
    {"inner_group_num": 2},
]


def fields_of(kind, base):
    """The default configuration with other fields, alone and in pairs."""
    known = defaults(kind)
    generator = random.Random(kind)
    single = [{}, *ROPES, *FIELDS]
    # Fields of the class that no list has, with another value of their type.
    listed = {name for fields in single for name in fields}
    for name, value in known.items():
        if name in listed or name in base or name.endswith("token_id"):
            continue
        if isinstance(value, bool):
            single.append({name: not value})
        elif isinstance(value, float):
            single.append({name: value * 0.5 + 0.1})
        elif isinstance(value, int) and 0 < value < 64:
            single.append({name: value * 2})
    # What the class' code does not mention has no effect in it.
    code = code_of(kind)
    single = [fields for fields in single if not fields or any(name in known or name in code for name in fields)]
    known_alone = [fields for fields in single if all(name in known or name.startswith("rope") for name in fields)]
    pairs = [{**generator.choice(known_alone), **generator.choice(known_alone)} for _ in range(12)] if known_alone else []
    return [{**base, **fields} for fields in [*single, *pairs]]


def code_of(kind):
    """The code of a class, and what all classes read."""
    module = inspect.getmodule(transformers.CONFIG_MAPPING[kind])
    folder = pathlib.Path(module.__file__).parent
    return "".join(path.read_text() for path in folder.glob("*.py")) + "rope_theta rope_scaling rope_parameters partial_rotary_factor sliding_window"


def fields_of_wrapped(kind, base):
    """The fields of a model with sound or images, whose text has other fields."""
    text = base["text_config"]
    varied = [{**base, "text_config": other} for other in fields_of(text.get("model_type", "mllama_text_model"), text)]
    # The decoder's class of other models is not varied here.
    without = [{**base, "text_config": {key: value for key, value in text.items() if key != name}} for name in text]
    tied = [{**base, "tie_word_embeddings": value} for value in [True, False]]
    tied += [{**base, "text_config": {**text, "tie_word_embeddings": value}} for value in [True, False]]
    cross = [{**base, "text_config": {**text, "cross_attention_layers": layers}} for layers in [[], [0], [3], [0, 1, 2, 3], [9], None]]
    return varied + without + tied + (cross if kind == "mllama" else [])


def fields_of_towers(kind, base):
    """The fields of a model of texts and images, where either part has other fields."""
    varied = [base]
    for part, fields in base.items():
        if not isinstance(fields, dict):
            continue
        part_type = PART_TYPES.get(part) or PARTS_OF_KINDS.get((kind, part)) or fields.get("model_type", f"{kind}_{part.removesuffix('_config')}_model")
        varied += [{**base, part: other} for other in fields_of(part_type, fields)]
    if CLASSES[kind] is transformers.VisionEncoderDecoderModel:
        return varied + [{**base, "tie_word_embeddings": True}]
    if kind == "sam":
        return varied + sam_fields(base)
    if kind == "clap":
        audio = [{"enable_fusion": True}, {"enable_fusion": True, "fusion_type": "aff_2d"}, {"enable_fusion": True, "aff_block_r": 2}, {"spec_size": 32},
                 {"num_mel_bins": 16}, {"patch_stride": [1, 1]}, {"patch_size": 4}, {"window_size": 4}, {"window_size": 5}, {"depths": [2]}]
        varied += [{**base, "audio_config": {**base["audio_config"], **fields}} for fields in audio]
        varied += [{**base, "projection_hidden_act": "gelu"}]
    known = {"projection_dim": 10, "logit_scale_init_value": 1.5, "initializer_factor": 0.7, "text_config_dict": None,
             "vision_config_dict": {"hidden_act": "relu"}, "tie_word_embeddings": False, "projection_bias": True}
    return varied + [{**base, name: value} for name, value in known.items()]


def sam_fields(base):
    """Fields of SAM's parts, of which several must change together."""
    vision, prompts, decoder = base.values()
    both = [({"image_size": 24}, {"image_size": 24}), ({"patch_size": 4}, {"patch_size": 4}), ({"image_size": 44}, {"image_size": 44}),
            ({"output_channels": 16, "num_pos_feats": 8}, {"hidden_size": 16}), ({}, {"mask_input_channels": 12}), ({"mlp_dim": None, "mlp_ratio": 1.7}, {}),
            ({"window_size": 0}, {}), ({"window_size": 2}, {}), ({"global_attn_indexes": []}, {}), ({"global_attn_indexes": [0, 1]}, {}),
            ({"global_attn_indexes": [-1]}, {}), ({"global_attn_indexes": [1.0]}, {}), ({"num_attention_heads": 2}, {}), ({"num_channels": 1}, {}),
            ({"scale": 7}, {"image_embedding_size": 3})]
    varied = [{"vision_config": {**vision, **a}, "prompt_encoder_config": {**prompts, **b},
               "mask_decoder_config": {**decoder, "hidden_size": {**prompts, **b}["hidden_size"]}} for a, b in both]
    for fields in [{"attention_downsample_rate": 1}, {"attention_downsample_rate": 4}, {"num_multimask_outputs": 1}, {"num_multimask_outputs": 5},
                   {"iou_head_depth": 2}, {"iou_head_depth": 5}, {"hidden_act": "gelu"}, {"num_attention_heads": 1}, {"num_hidden_layers": 1},
                   {"num_hidden_layers": 3}, {"mlp_dim": 30}, {"layer_norm_eps": 0.1}]:
        varied.append({**base, "mask_decoder_config": {**decoder, **fields}})
    return varied + [{**base, name: value} for name, value in {"initializer_range": 0.5, "tie_word_embeddings": False, "architectures": ["SamModel"]}.items()]


def images_of(config):
    """Random images of the size in a configuration."""
    vision = getattr(config, "vision_config", config)
    encoder = getattr(config, "backbone_config", None) or vision
    if not hasattr(encoder, "image_size"):
        return torch.randn(2, 3, 32, 32)
    if isinstance(encoder.image_size, (list, tuple)):
        return torch.randn(2, 3, *encoder.image_size)
    size = vision.image_size if getattr(vision, "image_size", 224) != 224 else 16
    return torch.randn(2, getattr(vision, "num_channels", 3), size, size)


def inputs_of(kind, config):
    """The inputs of a model for transformers, and those for the test, which has the channels of images last."""
    # The last tokens stand for sound or images in some models.
    texts = {"input_ids": torch.randint(2, 28 if kind in WRAPPED else 31, (2, 9))}
    if CLASSES.get(kind) in (AutoModelForSeq2SeqLM, transformers.LEDForConditionalGeneration):
        texts["decoder_input_ids"] = torch.randint(2, VOCABULARY, (2, 6))
    if CLASSES.get(kind) is AutoModelForAudioClassification:
        inputs = {"input_values": torch.randn(2, config.max_length, config.num_mel_bins)}
        return inputs, inputs
    if CLASSES.get(kind) is AutoModelForCTC:
        if kind == "wav2vec2-bert":
            features = torch.randn(2, 11, config.feature_projection_input_dim)
            return {"input_features": features}, {"input_values": features}
        inputs = {"input_values": torch.randn(2, 400)}
        return inputs, inputs
    if CLASSES.get(kind) is transformers.VisionEncoderDecoderModel:
        images, targets = torch.randn(2, 3, *((8, 8) if kind != "donut" else (32, 24))), torch.randint(4, VOCABULARY, (2, 6))
        return ({"pixel_values": images, "decoder_input_ids": targets},
                {"pixel_values": images.permute(0, 2, 3, 1).contiguous(), "decoder_input_ids": targets})
    if kind == "blip":
        size = config.vision_config.image_size
        images, targets = torch.randn(2, 3, size, size), torch.randint(4, VOCABULARY, (2, 6))
        return ({"pixel_values": images, "input_ids": targets},
                {"pixel_values": images.permute(0, 2, 3, 1).contiguous(), "decoder_input_ids": targets})
    if kind in ("grounding-dino", "mm-grounding-dino"):
        images, tokens = torch.randn(2, 3, 16, 16), texts["input_ids"]
        # The last tokens of phrases.
        tokens[:, 0], tokens[0, 4], tokens[1, 6], tokens[:, 8] = 101, 1012, 1012, 102
        return {**texts, "pixel_values": images}, {**texts, "pixel_values": images.permute(0, 2, 3, 1).contiguous()}
    if kind == "layoutlm":
        return {**texts, "bbox": torch.zeros(2, 9, 4, dtype=torch.int64)}, texts
    if kind == "florence2":
        # The mean and nine places, whose rows and columns are a quarter and then half of the image's.
        images, targets = torch.randn(2, 3, 24, 20), torch.randint(4, 29, (2, 7))
        tokens = torch.cat([torch.full((2, 10), config.image_token_id), torch.randint(4, 29, (2, 4))], 1)
        inputs = {"input_ids": tokens, "decoder_input_ids": targets}
        return {**inputs, "pixel_values": images}, {**inputs, "pixel_values": images.permute(0, 2, 3, 1).contiguous()}
    if kind == "clap":
        audio = config.audio_config
        shape = (2, 4 if audio.enable_fusion else 1, audio.spec_size * audio.spec_size // audio.num_mel_bins - 3, audio.num_mel_bins)
        inputs = {**texts, "input_features": torch.randn(shape), "is_longer": torch.tensor([[0], [1]])}
        return inputs, inputs
    if kind == "moonshine":
        inputs = {"input_values": torch.randn(2, 2000), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 6))}
        return inputs, inputs
    if kind == "whisper":
        inputs = {"input_features": torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions),
                  "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 6))}
        return inputs, {**inputs, "input_features": inputs["input_features"].transpose(1, 2).contiguous()}
    if CLASSES.get(kind) not in (AutoModel, transformers.CLIPSegForImageSegmentation, AutoModelForDepthEstimation, AutoModelForObjectDetection, transformers.VitPoseForPoseEstimation, transformers.SamModel, AutoModelForImageClassification, AutoModelForZeroShotImageClassification,
                                 transformers.AutoModelForZeroShotObjectDetection):
        return texts, texts
    images = images_of(config)
    if kind == "sam":
        size = images.shape[-1]
        points, labels = torch.rand(2, 3, 4, 2) * size, torch.tensor([1, 0, 1, -10]).repeat(2, 3, 1)
        boxes = torch.rand(2, 3, 4) * size
        masks = torch.randn(2, 1, *(4 * (size // config.vision_config.patch_size),) * 2)
        inputs = {"pixel_values": images, "input_points": points, "input_labels": labels, "input_boxes": boxes, "input_masks": masks}
        return inputs, {**inputs, "pixel_values": images.permute(0, 2, 3, 1).contiguous()}
    if kind == "vit_mae":
        # All patches are visible, in their order.
        config.mask_ratio = 0.0
        noise = torch.arange(float((config.image_size // config.patch_size) ** 2)).repeat(2, 1)
        return {"pixel_values": images, "noise": noise}, {"pixel_values": images.permute(0, 2, 3, 1).contiguous()}
    last = {"pixel_values": images.permute(0, 2, 3, 1).contiguous()}
    if kind not in TOWERS:
        return {"pixel_values": images}, last
    if config.text_config.max_position_embeddings != 9 and kind.startswith("siglip"):
        # The last token represents the text.
        texts["input_ids"] = torch.randint(2, 31, (2, config.text_config.max_position_embeddings))
    if config.text_config.eos_token_id is not None:
        texts["input_ids"][0, 5], texts["input_ids"][1, 8] = config.text_config.eos_token_id, config.text_config.eos_token_id
    if kind != "siglip2":
        return {**texts, "pixel_values": images}, {**texts, **last}
    size = config.vision_config.patch_size
    rows = images.shape[2] // size
    patches = images.reshape(2, -1, rows, size, rows, size).permute(0, 2, 4, 3, 5, 1).reshape(2, rows * rows, -1)
    mask = torch.ones(2, rows * rows, dtype=torch.int64)
    shapes = torch.tensor([[rows, rows]] * 2)
    return {**texts, "pixel_values": patches, "spatial_shapes": shapes, "pixel_attention_mask": mask}, {**texts, **last}


def logits_of(output):
    """The logits of a model, or the features of a model without a head."""
    if "pred_masks" in output:
        return torch.cat([output.pred_masks.flatten(), output.iou_scores.flatten()])
    if "encoder_last_hidden_state_text" in output:
        # The class adds places for texts of the largest length.
        return torch.cat([output.logits[..., :9].flatten(), output.pred_boxes.flatten()])
    if "pred_boxes" in output and "text_embeds" in output:
        return torch.cat([output.logits.flatten(), output.pred_boxes.flatten()])
    return next(output[name] for name in ("logits", "logits_per_image", "logits_per_audio", "last_hidden_state", "predicted_depth", "heatmaps") if name in output)


def vary(out, kind, base):
    """Saves what transformers can make of these fields."""
    count = 0
    makes_fields = fields_of_wrapped if kind in WRAPPED else fields_of_towers if kind in TOWERS else fields_of
    all_fields = makes_fields(kind, base)
    for number, fields in enumerate(all_fields):
        folder = out / f"{kind}_{number}"
        folder.mkdir(parents=True)
        model_type = "vision-encoder-decoder" if kind == "donut" else kind
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, **fields}))
        try:
            torch.manual_seed(5)
            config = AutoConfig.from_pretrained(folder)
            # The eager attention of Grounding DINO's texts adds its mask of true and false instead of applying it.
            if "grounding-dino" not in kind:
                config._attn_implementation = "eager"
            class_of_kind = class_of_texts(config, True) if kind in WRAPPED else CLASSES.get(kind, AutoModelForCausalLM)
            model = class_of_kind.from_config(config) if hasattr(class_of_kind, "from_config") else class_of_kind(config)
            randomize(model)
            random_tables(model)
            for module in model.modules():
                if kind == "fsmt" and hasattr(module, "make_weight"):
                    # The positions are not learned.
                    module.make_weight(*module.weight.shape, module.padding_idx)
            for name, buffer in model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer.copy_(torch.rand_like(buffer) + 0.5)
            inputs, arrays = inputs_of(kind, config)
            with torch.no_grad():
                logits = logits_of(model(**inputs))
                logits = logits.permute(0, 2, 3, 1) if kind == "vitpose" else logits
            if not torch.isfinite(logits).all():
                raise ValueError("no numbers")
            raw = (folder / "config.json").read_text()
            model.save_pretrained(folder)
            (folder / "config.json").write_text(raw)
            (folder / "generation_config.json").unlink(missing_ok=True)
            arrays = {key: value.to(torch.int32) if value.dtype == torch.int64 else value for key, value in arrays.items()}
            save_file({**arrays, "logits": logits.contiguous()}, folder / "case.safetensors")
            count += 1
        except Exception as error:
            shutil.rmtree(folder)
            if number == 0:
                print(kind, "default fails:", str(error)[:200])
    print(kind, count)


def main():
    out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    types = {kind: {**DECODER, **fields} if fields is not GPT else fields for kind, fields in TYPES.items()}
    for _, kind, fields in FAMILIES:
        name = getattr(transformers, f"{kind}Config").model_type
        types.setdefault(name, {**sizes_of(kind), **fields, **WIDER.get(name, {})})
    types |= {kind: base for kinds in OTHERS.values() for kind, base in kinds.items()} | TOWERS | {kind: PUBLISHED[kind] for kind in WRAPPED}
    for kind, base in types.items():
        if not wanted or kind in wanted:
            vary(out, kind, base)


if __name__ == "__main__":
    main()
