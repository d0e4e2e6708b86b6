"""Makes tiny models of images, and encoders with decoders, by `transformers`: the other files that the tests of
`shardax_models` read (see `generate.py`).

    .venv/huggingface/bin/python tools/huggingface/towers.py          # all of them
    .venv/huggingface/bin/python tools/huggingface/towers.py clip     # one of CASES
"""

import json
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from generate import OUT, SIZES, VOCABULARY, randomize


def written(name, model, arrays):
    """Saves a model and arrays; images have their channels last."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    if model is not None:
        model.save_pretrained(folder)
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").unlink(missing_ok=True)
    images = {key: value.permute(0, 2, 3, 1) for key, value in arrays.items() if key.startswith("pixel_values")}
    arrays = {key: value.to(torch.int32) if value.dtype == torch.int64 else value for key, value in {**arrays, **images}.items()}
    save_file({key: value.contiguous() for key, value in arrays.items()}, folder / "case.safetensors")


def clip(name="clip", end=31, kind="CLIP"):
    """With the end of texts at 2, CLIP's class takes the features of the largest token, otherwise those of the first end."""
    t = transformers
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "eos_token_id": end, "bos_token_id": 0, **SIZES}
    vision = {"image_size": 8, "patch_size": 4, **SIZES, "hidden_size": 24}
    config = getattr(t, f"{kind}Config")(text_config=text, vision_config=vision, projection_dim=10)
    model = getattr(t, f"{kind}Model")(config)
    randomize(model)
    tokens = torch.randint(3, 31, (3, 7))
    tokens[0, 6], tokens[1, 4], tokens[1, 6], tokens[2, 2] = 31, 31, 32, 31
    if kind != "CLIP":
        tokens[tokens == 31] = end
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        output = model(input_ids=tokens, pixel_values=images)
    names = ["logits_per_image", "text_embeds", "image_embeds"]
    written(name, model, {"input_ids": tokens, "pixel_values": images, **{name: output[name] for name in names}})


CLIPSEG = {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "eos_token_id": 31, "bos_token_id": 0, **SIZES},
           "vision_config": {"image_size": 16, "patch_size": 4, **SIZES, "hidden_size": 24, "num_hidden_layers": 3}, "projection_dim": 10,
           "extract_layers": [0, 2], "reduce_dim": 8, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 20}


def clipseg(name, **options):
    """With a text or an image for each image, whose size is the configuration's or another one."""
    model = transformers.CLIPSegForImageSegmentation(transformers.CLIPSegConfig(**{**CLIPSEG, **options}))
    randomize(model)
    for parameter in model.decoder.transposed_convolution.parameters():
        parameter.data.mul_(0.5)
    tokens, described = torch.randint(3, 31, (2, 7)), torch.randn(2, 3, 16, 16)
    tokens[0, 6], tokens[1, 4] = 31, 31
    arrays = {"input_ids": tokens, "pixel_values": described}
    for number, size in enumerate([16, 24]):
        images = torch.randn(2, 3, size, size)
        with torch.no_grad():
            arrays |= {f"pixel_values_{number}": images, f"logits_{number}": model(input_ids=tokens, pixel_values=images).logits,
                       f"logits_image_{number}": model(pixel_values=images, conditional_pixel_values=described).logits}
    written(name, model, arrays)


OWL = {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 12, **SIZES},
       "vision_config": {"image_size": 8, "patch_size": 4, **SIZES, "hidden_size": 24}, "projection_dim": 16}


def owl(name, kind):
    """With three texts for each image, one of them padding, and with an image of another size, for which positions are interpolated."""
    model = getattr(transformers, f"{kind}ForObjectDetection")
    model = model(model.config_class(**OWL))
    randomize(model)
    tokens = torch.randint(3, 31, (6, 5))
    tokens[0, 3], tokens[4, 2] = 32, 32
    tokens[2] = 0
    arrays = {"input_ids": tokens[:3], "input_ids_0": tokens.reshape(2, 3, 5)}
    for number, shape in enumerate([(8, 8), (13, 8)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            for suffix, texts in [("", tokens[:3].repeat(2, 1)), ("_each", tokens)]:
                output = model(input_ids=texts, pixel_values=images, interpolate_pos_encoding=number == 1)
                arrays[f"logits{suffix}_{number}"] = output.logits
        arrays[f"pixel_values_{number}"] = images
        arrays[f"boxes_{number}"] = output.pred_boxes
        if output.get("objectness_logits") is not None:
            arrays[f"objectness_{number}"] = output.objectness_logits
    written(name, model, arrays)


CHINESE = {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "type_vocab_size": 2, "pad_token_id": 1, **SIZES},
           "vision_config": {"image_size": 8, "patch_size": 4, **SIZES, "hidden_size": 24}, "projection_dim": 10}


ALT = {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "pad_token_id": 1, "project_dim": 14, **SIZES},
       "vision_config": CHINESE["vision_config"], "projection_dim": 10}


def chinese_clip(name="chinese_clip", kind="ChineseCLIP", config=CHINESE):
    """With padding."""
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config))
    randomize(model)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]])
    tokens, images = torch.randint(3, VOCABULARY, (3, 7)), torch.randn(2, 3, 8, 8)
    if kind == "AltCLIP":
        # Positions of padding are not counted.
        tokens = tokens.where(mask.bool(), 1)
    with torch.no_grad():
        output = model(input_ids=tokens, pixel_values=images, attention_mask=mask)
    names = ["logits_per_image", "text_embeds", "image_embeds"]
    written(name, model, {"input_ids": tokens, "attention_mask": mask, "pixel_values": images, **{name: output[name] for name in names}})


CLAP = {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "pad_token_id": 1, "layer_norm_eps": 1e-5, **SIZES},
        "audio_config": {"num_mel_bins": 8, "spec_size": 16, "window_size": 3, "patch_size": 2, "patch_stride": [2, 2], "depths": [2, 1],
                         "num_attention_heads": [2, 4], "patch_embeds_hidden_size": 8, "hidden_size": 16}, "projection_dim": 10}


def clap(name, **options):
    """With padding, and sounds that are shorter than the model's length. With fusion, the second sound has three more parts."""
    model = transformers.ClapModel(transformers.ClapConfig(**{**CLAP, "audio_config": {**CLAP["audio_config"], **options}}))
    randomize(model)
    norms(model)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]])
    tokens = torch.randint(3, VOCABULARY, (3, 7)).where(mask.bool(), 1)
    sounds = torch.randn(2, 4 if model.config.audio_config.enable_fusion else 1, 29, 8)
    is_longer = torch.tensor([[False], [True]])
    with torch.no_grad():
        output = model(input_ids=tokens, input_features=sounds, attention_mask=mask, is_longer=is_longer)
    names = ["logits_per_audio", "text_embeds", "audio_embeds"]
    written(name, model, {"input_ids": tokens, "attention_mask": mask, "input_features": sounds, "is_longer": is_longer.int(),
                          **{name: output[name] for name in names}})


def dinov2(name="dinov2", kind="Dinov2ForImageClassification", **options):
    """With images of the size of the configuration, and of another one, for which positions are interpolated."""
    t = transformers
    sizes = {key: value for key, value in SIZES.items() if key != "intermediate_size" or kind.startswith("DINOv3")}
    labels = {i: str(i) for i in range(5)}
    config = getattr(t, kind.split("For")[0].removesuffix("Model") + "Config")
    config = config(image_size=12, patch_size=4, id2label=labels, label2id={v: k for k, v in labels.items()}, **sizes, **options)
    model = getattr(t, kind)(config)
    randomize(model)
    arrays = {}
    for number, shape in enumerate([(12, 12), (16, 8)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            output = model(images)
        arrays[f"pixel_values_{number}"] = images
        arrays[f"logits_{number}"] = output.logits if "logits" in output else output.last_hidden_state
    written(name, model, arrays)


def deit(name, kind, **options):
    """With a class token and others, for images of one size."""
    labels = {i: str(i) for i in range(5)}
    config = getattr(transformers, kind.split("For")[0].removesuffix("Model") + "Config")
    config = config(image_size=8, patch_size=4, id2label=labels, label2id={v: k for k, v in labels.items()}, **SIZES, **options)
    model = getattr(transformers, kind)(config)
    randomize(model)
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        output = model(images)
    written(name, model, {"pixel_values": images, "logits": output.logits if "logits" in output else output.last_hidden_state})


def norms(model):
    """Sets the means and variances of norms to random numbers."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn_like(buffer) * 0.3)
        if name.endswith("running_var"):
            buffer.copy_(torch.rand_like(buffer) + 0.5)


def mae(name, kind):
    """With all patches visible, in their order."""
    model = getattr(transformers, kind)
    model = model(model.config_class(image_size=8, patch_size=4, mask_ratio=0.0, decoder_num_hidden_layers=1, decoder_hidden_size=8,
                                     decoder_num_attention_heads=2, decoder_intermediate_size=12, **SIZES))
    randomize(model)
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        output = (model.vit if hasattr(model, "vit") else model)(images, noise=torch.arange(4.0).repeat(2, 1))
    written(name, model, {"pixel_values": images, "logits": output.last_hidden_state})


def yolos(name, kind, shapes=((8, 12), (16, 9)), **options):
    """With images of the size of the configuration, and of another one."""
    model = getattr(transformers, kind)
    model = model(model.config_class(**{**YOLOS, "num_labels": 5, **options}))
    randomize(model)
    arrays = {}
    for number, shape in enumerate(shapes):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            output = model(images)
        arrays[f"pixel_values_{number}"] = images
        arrays[f"logits_{number}"] = output.logits if "logits" in output else output.last_hidden_state
        if "pred_boxes" in output:
            arrays[f"boxes_{number}"] = output.pred_boxes
    written(name, model, arrays)


DETR = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "num_queries": 3}
DETR_IMAGES = {"model_type": "resnet", "embedding_size": 6, "hidden_sizes": [8, 16], "depths": [1, 2], "out_features": ["stage2"]}


def detr(name, kind, **options):
    """With images of two sizes."""
    config = {"use_timm_backbone": False, "backbone": None, "backbone_config": DETR_IMAGES, "num_labels": 5, **DETR, **options}
    model = getattr(transformers, f"{kind}ForObjectDetection")(getattr(transformers, f"{kind}Config")(**config))
    randomize(model)
    frozen(model)
    arrays = {}
    for number, shape in enumerate([(32, 32), (48, 40)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            output = model(images)
        arrays |= {f"pixel_values_{number}": images, f"logits_{number}": output.logits, f"boxes_{number}": output.pred_boxes}
    written(name, model, arrays)


DEFORMABLE = {**DETR, "d_model": 32, "encoder_layers": 1, "decoder_attention_heads": 4, "num_feature_levels": 3, "encoder_n_points": 2, "decoder_n_points": 3,
              "two_stage_num_proposals": 3}
DEFORMABLE_IMAGES = {**DETR_IMAGES, "out_features": ["stage1", "stage2"]}


def deformable_detr(name, **options):
    """With a level that no stage of the image has."""
    detr(name, "DeformableDetr", backbone_config=DEFORMABLE_IMAGES, **{**DEFORMABLE, **options})


RT_DETR_IMAGES = {"model_type": "rt_detr_resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16], "depths": [1, 2, 1], "out_indices": [2, 3]}
RT_DETR = {"encoder_hidden_dim": 16, "encoder_in_channels": [12, 16], "feat_strides": [8, 16], "encoder_ffn_dim": 24, "encoder_attention_heads": 4,
           "encode_proj_layers": [1], "d_model": 16, "num_queries": 5, "decoder_in_channels": [16, 16], "decoder_ffn_dim": 20, "num_feature_levels": 2,
           "decoder_n_points": 3, "decoder_layers": 2, "decoder_attention_heads": 4}


def rt_detr(name, kind, images=None, **options):
    """With images of two sizes."""
    config = {"backbone_config": {**RT_DETR_IMAGES, **(images or {})}, "num_labels": 5, **RT_DETR, **options}
    model = getattr(transformers, f"{kind}ForObjectDetection")(getattr(transformers, f"{kind}Config")(**config))
    randomize(model)
    frozen(model)
    for parameter_name, parameter in model.named_parameters():
        # So that features depend on the image.
        if parameter.dim() == 4:
            parameter.data.mul_(1.5 / (parameter.std() * parameter[0].numel() ** 0.5))
        # Places that depend on the queries, and differences between the scores of places, so that the chosen ones do not depend on rounding.
        if "sampling_offsets" in parameter_name or "attention_weights" in parameter_name:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
        if "enc_score_head.weight" in parameter_name or "enc_output.0" in parameter_name or "bbox" in parameter_name:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
        if "enc_score_head.weight" in parameter_name:
            parameter.data.mul_(100)
    arrays = {}
    for number, shape in enumerate([(64, 64), (96, 64)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            output = model(images)
        arrays |= {f"pixel_values_{number}": images, f"logits_{number}": output.logits, f"boxes_{number}": output.pred_boxes}
    written(name, model, arrays)


def frozen(model):
    """Sets the numbers of norms that training does not change."""
    norms(model)
    for name, buffer in model.named_buffers():
        if name.endswith("normalization.weight"):
            buffer.copy_(torch.rand_like(buffer) + 0.7)
        if name.endswith("normalization.bias"):
            buffer.copy_(torch.randn_like(buffer) * 0.3)


def sam():
    """Masks for points, for boxes, for all kinds of prompts, and without prompts."""
    model = transformers.SamModel(transformers.SamConfig(**SAM))
    randomize(model)
    random_tables(model)
    images, masks = torch.randn(2, 3, 40, 40), torch.randn(2, 1, 20, 20)
    points, labels = torch.rand(2, 3, 4, 2) * 40, torch.tensor([1, 0, 1, -10]).repeat(2, 3, 1)
    boxes = torch.rand(2, 3, 4) * 40
    arrays = {"pixel_values": images, "points": points, "labels": labels, "boxes": boxes, "masks": masks[:, 0]}
    with torch.no_grad():
        arrays["image"] = model.get_image_embeddings(images).permute(0, 2, 3, 1)
        for name, given in [("points", {"input_points": points, "input_labels": labels}),
                            ("boxes", {"input_boxes": boxes, "multimask_output": False}),
                            ("all", {"input_points": points, "input_labels": labels, "input_boxes": boxes, "input_masks": masks}),
                            ("none", {})]:
            output = model(images, **given)
            arrays |= {f"masks_{name}": output.pred_masks, f"scores_{name}": output.iou_scores}
    written("sam", model, arrays)


SAM = {
    "vision_config": {"hidden_size": 16, "output_channels": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 40, "patch_size": 8,
                      "mlp_dim": 24, "window_size": 3, "global_attn_indexes": [1], "num_pos_feats": 4},
    "prompt_encoder_config": {"hidden_size": 8, "image_size": 40, "patch_size": 8, "mask_input_channels": 8},
    "mask_decoder_config": {"hidden_size": 8, "mlp_dim": 12, "num_attention_heads": 2, "iou_head_hidden_dim": 10},
}


def random_tables(model):
    """Sets SAM's tables and last layers to random numbers, because they are zeros or small at first."""
    if not isinstance(model, transformers.SamModel):
        return
    for name, parameter in model.named_parameters():
        if "rel_pos" in name or "pos_embed" in name or "upscale" in name or "iou_prediction" in name or "hypernetworks" in name:
            parameter.data.copy_(torch.randn_like(parameter) * 0.5)
    waves = model.shared_image_embedding.positional_embedding
    waves.data.copy_(torch.randn_like(waves))
    model.prompt_encoder.shared_embedding.positional_embedding = waves


def vitpose(name, **options):
    """The heat maps of joints, with the joints last."""
    t = transformers
    config = t.VitPoseConfig(backbone_config=t.VitPoseBackboneConfig(**VITPOSE), num_labels=5, **options)
    model = t.VitPoseForPoseEstimation(config)
    randomize(model)
    norms(model)
    for parameter in model.head.parameters():
        if parameter.dim() == 4:
            parameter.data.mul_(1.5 / (parameter.std() * parameter[0].numel() ** 0.5))
    images = torch.randn(2, 3, 16, 15)
    with torch.no_grad():
        written(name, model, {"pixel_values": images, "logits": model(images).heatmaps.permute(0, 2, 3, 1)})


YOLOS = {**SIZES, "num_hidden_layers": 3, "image_size": [8, 12], "patch_size": 4, "num_detection_tokens": 3}
VITPOSE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2, "image_size": [16, 15], "patch_size": [8, 5],
           "out_indices": [2]}


def staged(name, kind, size=16, **options):
    """A model whose stages have different sizes, with images of two sizes."""
    labels = {i: str(i) for i in range(5)}
    config = getattr(transformers, kind).config_class
    model = getattr(transformers, kind)(config(id2label=labels, label2id={v: k for k, v in labels.items()}, **options))
    randomize(model)
    if kind.startswith(("MobileNet", "EfficientNet", "MobileViT")):
        # So that the features of many convolutions depend on the image.
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("bn.weight", "batchnorm.weight", "norm.weight")):
                # EfficientNet's class starts with scales near zero.
                parameter.data.abs_().add_(0.7)
            if parameter.dim() == 4:
                parameter.data.mul_(1.5 / (parameter.std() * parameter[0].numel() ** 0.5))
    norms(model)
    if hasattr(model, "classifier"):
        model.classifier.weight.data.mul_(20) if hasattr(model.classifier, "weight") else model.classifier[1].weight.data.mul_(20)
    arrays = {}
    for number, (rows, columns) in enumerate([(size, size), (size + 6, size + 3)]):
        if number and options.get("use_absolute_embeddings"):
            break
        images = torch.randn(2, 3, rows, columns)
        with torch.no_grad():
            output = model(images)
        if "logits" in output:
            # The classes of pixels come before their rows.
            arrays[f"logits_{number}"] = output.logits.permute(0, 2, 3, 1) if output.logits.dim() == 4 else output.logits
        else:
            x = output.last_hidden_state
            # Swin returns the rows and columns as one dimension.
            rows = -(-rows // options.get("patch_size", 1) // 2)
            arrays[f"logits_{number}"] = x.permute(0, 2, 3, 1) if x.dim() == 4 else x.unflatten(1, (rows, -1))
        arrays[f"pixel_values_{number}"] = images
    written(name, model, arrays)


LEVIT = {"image_size": 64, "patch_size": 16, "kernel_size": 3, "stride": 2, "padding": 1, "hidden_sizes": [8, 12, 16], "num_attention_heads": [2, 3, 4],
         "depths": [1, 1, 2], "key_dim": [4, 4, 4], "mlp_ratio": [2, 2, 2], "attention_ratio": [2, 2, 1]}


def levit(name, kind, **options):
    """With images of the size of the configuration, which four convolutions halve."""
    labels = {i: str(i) for i in range(5)}
    config = transformers.LevitConfig(**{**LEVIT, **options}, id2label=labels, label2id={v: k for k, v in labels.items()})
    model = getattr(transformers, kind)(config)
    randomize(model)
    norms(model)
    images = torch.randn(2, 3, config.image_size, config.image_size)
    with torch.no_grad():
        output = model(images)
    written(name, model, {"pixel_values_0": images, "logits_0": output.logits if "logits" in output else output.last_hidden_state})


PVT = {"image_size": 32, "num_encoder_blocks": 2, "hidden_sizes": [4, 8], "depths": [1, 2], "sequence_reduction_ratios": [2, 1],
       "num_attention_heads": [2, 4], "patch_sizes": [4, 2], "strides": [4, 2], "mlp_ratios": [2, 3]}


GROUNDING = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_n_points": 2, "decoder_n_points": 2, "num_feature_levels": 3, "num_queries": 5, "max_text_len": 16}
GROUNDING_IMAGES = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 3, "out_indices": [1, 2]}
GROUNDING_TEXTS = {**SIZES, "vocab_size": 1030, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 16}


def grounding(name, kind, **options):
    """With two descriptions of objects for each image, of which the second is shorter, and images of two sizes."""
    t = transformers
    config = getattr(t, f"{kind}Config")(backbone_config=t.SwinConfig(**GROUNDING_IMAGES), text_config=t.BertConfig(**GROUNDING_TEXTS),
                                         **{**GROUNDING, **options})
    model = getattr(t, f"{kind}ForObjectDetection")(config)
    randomize(model)
    # A phrase of two words, a dot, and another phrase.
    tokens = torch.tensor([[101, 7, 8, 1012, 9, 10, 11, 1012, 102], [101, 7, 1012, 12, 1012, 102, 0, 0, 0]])
    mask = (tokens != 0).long()
    arrays = {"input_ids": tokens, "attention_mask": mask}
    for number, shape in enumerate([(16, 16), (24, 12)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            output = model(pixel_values=images, input_ids=tokens, attention_mask=mask)
        # The class adds places for texts of the largest length.
        logits = output.logits[..., :9]
        arrays |= {f"pixel_values_{number}": images, f"logits_{number}": logits, f"boxes_{number}": output.pred_boxes}
    written(name, model, arrays)


def first_pyramid(name, kind, **options):
    """With images of the size of the configuration, and of another one with as many patches."""
    labels = {i: str(i) for i in range(5)}
    config = transformers.PvtConfig(**{**PVT, **options}, id2label=labels, label2id={v: k for k, v in labels.items()}, num_labels=5)
    model = getattr(transformers, kind)(config)
    randomize(model)
    arrays = {}
    for number, shape in enumerate([(32, 32), (64, 16)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            output = model(images)
        arrays |= {f"pixel_values_{number}": images, f"logits_{number}": output.logits if "logits" in output else output.last_hidden_state}
    written(name, model, arrays)


def greedy(model, inputs, start, length):
    """The likeliest tokens after the first one."""
    tokens = torch.full((len(next(iter(inputs.values()))), 1), start)
    for _ in range(length):
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=tokens).logits
        tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens[:, 1:]


LED = {"vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
       "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_encoder_position_embeddings": 24,
       "max_decoder_position_embeddings": 16, "attention_window": [4, 6]}


def led():
    """With padding, and a token that sees all tokens."""
    model = transformers.LEDForConditionalGeneration(transformers.LEDConfig(**LED))
    randomize(model)
    model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias) * 0.5)
    mask = torch.tensor([[1] * 11, [1] * 8 + [0] * 3])
    tokens, everywhere = torch.randint(3, VOCABULARY, (2, 11)), torch.tensor([[1, 0, 0, 0, 0, 1] + [0] * 5] * 2)
    inputs = {"input_ids": tokens, "attention_mask": mask, "global_attention_mask": everywhere, "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 6))}
    with torch.no_grad():
        logits = model(**inputs).logits
        near = model(**{**inputs, "global_attention_mask": None}).logits
    written("led", model, {**inputs, "logits": logits, "logits_near": near})


def languages():
    """A model with the adapter of one language, and the file of another language with other letters."""
    model = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**{**WAVES, "do_stable_layer_norm": True, "adapter_attn_dim": 5}))
    randomize(model)
    samples = torch.randn(2, 400)
    arrays = {"input_values": samples, "attention_mask": torch.ones(2, 400, dtype=torch.int32)}
    with torch.no_grad():
        arrays["logits"] = model(samples).logits
    written("wav2vec2_languages", model, arrays)
    adapter = {key: value for key, value in model._get_adapters().items()}
    adapter["lm_head.weight"], adapter["lm_head.bias"] = torch.zeros(7, 16), torch.zeros(7)
    adapter = {key: value + torch.randn_like(value) * 0.5 for key, value in adapter.items()}
    folder = OUT / "wav2vec2_languages"
    save_file({key: value.contiguous() for key, value in adapter.items()}, folder / "adapter.fra.safetensors")
    model = transformers.Wav2Vec2ForCTC.from_pretrained(folder)
    model.load_adapter("fra")
    with torch.no_grad():
        arrays["logits_fra"] = model.eval()(samples).logits
    save_file({key: value.contiguous() for key, value in arrays.items()}, folder / "case.safetensors")


def pair(name, kind, **options):
    """An encoder of texts with a decoder that has positions of its own."""
    t = transformers
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2}
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 24}
    tokens = {"decoder_start_token_id": 3, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    model = getattr(t, f"{kind}Config")(vocab_size=VOCABULARY, **sizes, **{**tokens, **options})
    class_name = {"Marian": "MarianMTModel"}.get(kind, f"{kind}ForConditionalGeneration")
    model = getattr(t, class_name)(model)
    randomize(model)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    inputs = {"input_ids": torch.randint(4, VOCABULARY, (2, 9)).where(mask.bool(), model.config.pad_token_id), "attention_mask": mask}
    targets = torch.randint(4, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    written(name, model, {**inputs, "decoder_input_ids": targets, "logits": logits, "generated": greedy(model, inputs, 3, 6)})


FSMT = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 20, "max_position_embeddings": 24, "decoder_start_token_id": 3, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        "langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}


def fsmt(name, **options):
    """With separate vocabularies or a common one."""
    model = transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**{**FSMT, **options}))
    sines = {key: value.clone() for key, value in model.state_dict().items() if "embed_positions" in key}
    randomize(model)
    model.load_state_dict(sines, strict=False)
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    inputs = {"input_ids": torch.randint(4, 30, (2, 9)).where(mask.bool(), 1), "attention_mask": mask}
    targets = torch.randint(4, VOCABULARY, (2, 7))
    # With a cache, the class does not mask later tokens of several targets.
    uncached = {**inputs, "use_cache": False}
    with torch.no_grad():
        logits = model(**uncached, decoder_input_ids=targets).logits
    written(name, model, {**inputs, "decoder_input_ids": targets, "logits": logits, "generated": greedy(model, uncached, 3, 6)})


SPEECH = {"vocab_size": VOCABULARY, **{key: value for key, value in FSMT.items() if key.startswith(("d_", "enc", "dec", "pad", "bos", "eos"))},
          "max_source_positions": 30, "max_target_positions": 20, "conv_kernel_sizes": [5, 3], "conv_channels": 12, "input_feat_per_channel": 6}


def speech(name, **options):
    """With padding in the features of sound."""
    model = transformers.Speech2TextForConditionalGeneration(transformers.Speech2TextConfig(**{**SPEECH, **options}))
    randomize(model)
    mask = torch.tensor([[1] * 19, [1] * 13 + [0] * 6])
    inputs = {"input_features": torch.randn(2, 19, 6), "attention_mask": mask}
    targets = torch.randint(4, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    written(name, model, {"input_values": inputs["input_features"], "attention_mask": mask, "decoder_input_ids": targets, "logits": logits,
                          "generated": greedy(model, inputs, 3, 6)})


TROCR = {"vocab_size": VOCABULARY, "d_model": 12, "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 20,
         "max_position_embeddings": 24, "pad_token_id": 1, "cross_attention_hidden_size": 16}


def trocr(name, kind="ViT", **decoder):
    """The decoder of TrOCR with an encoder of images."""
    t = transformers
    encoder = getattr(t, f"{kind}Config")(image_size=8, patch_size=4, **SIZES)
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, t.TrOCRConfig(**{**TROCR, **decoder}))
    model = t.VisionEncoderDecoderModel(config)
    randomize(model)
    images, targets = torch.randn(2, 3, 8, 8), torch.randint(4, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(images, decoder_input_ids=targets).logits
    tokens = greedy(model, {"pixel_values": images}, 3, 6)
    written(name, model, {"pixel_values": images, "decoder_input_ids": targets, "logits": logits, "generated": tokens})


BLIP = {"text_config": {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "bos_token_id": 3, "sep_token_id": 1, "pad_token_id": 0, **SIZES},
        "vision_config": {"image_size": 8, "patch_size": 4, **SIZES, "hidden_size": 24}}


def blip(name):
    """The class that writes captions."""
    model = transformers.BlipForConditionalGeneration(transformers.BlipConfig(**BLIP))
    randomize(model)
    images, targets = torch.randn(2, 3, 8, 8), torch.randint(4, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(images, input_ids=targets).logits
        tokens = torch.full((2, 1), 3)
        for _ in range(6):
            tokens = torch.cat([tokens, model(images, input_ids=tokens).logits[:, -1:].argmax(-1)], 1)
    written(name, model, {"pixel_values": images, "decoder_input_ids": targets, "logits": logits, "generated": tokens[:, 1:]})


def blip_answers(name):
    """The class that answers questions, of which one is padded."""
    # Answers attend to questions by layers for the features of images.
    config = {**BLIP, "vision_config": {**BLIP["vision_config"], "hidden_size": 16}}
    model = transformers.BlipForQuestionAnswering(transformers.BlipConfig(**config))
    randomize(model)
    images, questions, answers = torch.randn(2, 3, 8, 8), torch.randint(4, VOCABULARY, (2, 6)), torch.randint(4, VOCABULARY, (2, 5))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.no_grad():
        image = model.vision_model(images).last_hidden_state
        question = model.text_encoder(input_ids=questions, attention_mask=mask, encoder_hidden_states=image).last_hidden_state
        logits = model.text_decoder(input_ids=answers, encoder_hidden_states=question, encoder_attention_mask=mask).logits
        tokens = model.generate(questions, images, max_new_tokens=6, do_sample=False)
    written(name, model, {"pixel_values": images, "input_ids": questions, "attention_mask": mask, "decoder_input_ids": answers, "logits": logits,
                          "generated": tokens[:, 1:]})


def blip_matches(name):
    """The class that compares images with texts, of which one is padded."""
    model = transformers.BlipForImageTextRetrieval(transformers.BlipConfig(**BLIP, image_text_hidden_size=10))
    randomize(model)
    images, tokens = torch.randn(2, 3, 8, 8), torch.randint(4, VOCABULARY, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.no_grad():
        logits, similarities = (model(tokens, images, use_itm_head=is_match, attention_mask=mask).itm_score for is_match in [True, False])
    written(name, model, {"pixel_values": images, "input_ids": tokens, "attention_mask": mask, "logits": logits, "similarities": similarities})


FLORENCE = {
    "vision_config": {"embed_dim": [8, 12], "depths": [1, 2], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
                      "patch_prenorm": [False, True], "num_heads": [2, 4], "num_groups": [4, 2], "window_size": 3, "projection_dim": 16,
                      "max_temporal_embeddings": 4, "max_position_embeddings": 8},
    "text_config": {"model_type": "bart", "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 32},
    "image_token_id": 30,
}


def florence(name):
    """With images whose windows are not full, and prompts with padding."""
    model = transformers.Florence2ForConditionalGeneration(transformers.Florence2Config(**FLORENCE))
    randomize(model)
    images, targets = torch.randn(2, 3, 24, 20), torch.randint(4, 29, (2, 7))
    # The mean and nine places, whose rows and columns are a quarter and then half of the image's.
    tokens = torch.cat([torch.full((2, 10), 30), torch.randint(4, 29, (2, 4))], 1)
    mask = torch.tensor([[1] * 14, [1] * 12 + [0] * 2])
    inputs = {"pixel_values": images, "input_ids": tokens.where(mask.bool(), 1), "attention_mask": mask}
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    alone = {"pixel_values": images, "input_ids": tokens, "attention_mask": torch.ones_like(mask)}
    written(name, model, {**inputs, "decoder_input_ids": targets, "logits": logits, "prompts": tokens, "generated": greedy(model, alone, 2, 6)})


DONUT = {"image_size": [32, 24], "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 3}


def donut(name, **decoder):
    """The decoder of mBART with an encoder of pages."""
    t = transformers
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 20,
             "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "max_position_embeddings": 24, "scale_embedding": True}
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(t.DonutSwinConfig(**DONUT), t.MBartConfig(**{**sizes, **decoder}))
    model = t.VisionEncoderDecoderModel(config)
    randomize(model)
    images, targets = torch.randn(2, 3, 32, 24), torch.randint(4, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(images, decoder_input_ids=targets).logits
    tokens = greedy(model, {"pixel_values": images}, 3, 6)
    written(name, model, {"pixel_values": images, "decoder_input_ids": targets, "logits": logits, "generated": tokens})


def siglip(name="siglip", kind="Siglip", **vision):
    t = transformers
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 12, **SIZES, "projection_size": 16}
    vision = {"image_size": 8, "patch_size": 4, **SIZES, **vision}
    config = getattr(t, f"{kind}Config")(text_config=text, vision_config=vision)
    model = getattr(t, f"{kind}Model")(config)
    randomize(model)
    tokens, images = torch.randint(3, 31, (3, 12)), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        output = model(input_ids=tokens, pixel_values=images)
    names = ["logits_per_image", "text_embeds", "image_embeds"]
    written(name, model, {"input_ids": tokens, "pixel_values": images, **{name: output[name] for name in names}})


def siglip2():
    """With images of the grid of the configuration, and of others, for which positions are interpolated."""
    t = transformers
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 12, **SIZES, "projection_size": 16}
    model = t.Siglip2Model(t.Siglip2Config(text_config=text, vision_config={"num_patches": 9, "patch_size": 4, **SIZES}))
    randomize(model)
    tokens = torch.randint(3, 31, (3, 12))
    arrays = {"input_ids": tokens}
    for number, (rows, columns) in enumerate([(3, 3), (5, 2), (1, 7)]):
        images = torch.randn(2, 3, 4 * rows, 4 * columns)
        patches = images.reshape(2, 3, rows, 4, columns, 4).permute(0, 2, 4, 3, 5, 1).reshape(2, rows * columns, -1)
        shapes, mask = torch.tensor([[rows, columns]] * 2), torch.ones(2, rows * columns, dtype=torch.int64)
        with torch.no_grad():
            output = model(input_ids=tokens, pixel_values=patches, spatial_shapes=shapes, pixel_attention_mask=mask)
        suffix = f"_{number}" if number else ""
        arrays |= {f"pixel_values{suffix}": images, f"image_embeds{suffix}": output.image_embeds,
                   f"logits_per_image{suffix}": output.logits_per_image, "text_embeds": output.text_embeds}
    written("siglip2", model, arrays)


def longt5(name, attention, **options):
    """With texts of more blocks than the padded one has."""
    t = transformers
    sizes = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "local_radius": 3, "global_block_size": 4}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
    config = t.LongT5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, encoder_attention_type=attention, **sizes, **buckets, **options)
    model = t.LongT5ForConditionalGeneration(config)
    randomize(model)
    mask = torch.tensor([[1] * 14, [1] * 6 + [0] * 8])
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (2, 14)), "attention_mask": mask}
    targets = torch.randint(3, VOCABULARY, (2, 12))
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    written(name, model, {**inputs, "decoder_input_ids": targets, "logits": logits, "generated": greedy(model, inputs, 0, 6)})


def t5(name="t5", tied=True, kind="T5", **options):
    t = transformers
    sizes = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    # Few buckets, so that texts reach the last one.
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
    config = getattr(t, f"{kind}Config")(vocab_size=VOCABULARY, decoder_start_token_id=0, tie_word_embeddings=tied, **sizes, **buckets, **options)
    model = getattr(t, f"{kind}ForConditionalGeneration")(config)
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 16) * 0.3)
    randomize(model)
    mask = torch.tensor([[1] * 14, [1] * 5 + [0] * 9])
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (2, 14)), "attention_mask": mask}
    targets = torch.randint(3, VOCABULARY, (2, 12))
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    arrays = {**inputs, "decoder_input_ids": targets, "logits": logits, "generated": greedy(model, inputs, 0, 6)}
    written(name, model, arrays)
    if not tied:
        # As published configurations have it: the class always writes that weights are tied.
        path = OUT / name / "config.json"
        fields = json.loads(path.read_text())
        fields = {key: value for key, value in fields.items() if key != "scale_decoder_outputs"}
        path.write_text(json.dumps({**fields, "tie_word_embeddings": False}, indent=2) + "\n")
    again = getattr(t, f"{kind}ForConditionalGeneration").from_pretrained(OUT / name).eval()
    with torch.no_grad():
        error = (again(**inputs, decoder_input_ids=targets).logits - logits).abs().max().item()
    assert error < 1e-5, (name, error)


def whisper(name="whisper", **options):
    t = transformers
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 2}
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    tokens = {"decoder_start_token_id": 3, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1}
    model = t.WhisperForConditionalGeneration(t.WhisperConfig(vocab_size=VOCABULARY, **sizes, **tokens, **options))
    randomize(model)
    inputs = {"input_features": torch.randn(2, 8, 20)}
    targets = torch.randint(3, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    written(name, model, {**inputs, "decoder_input_ids": targets, "logits": logits, "generated": greedy(model, inputs, 3, 6)})


WAVES = {**SIZES, "vocab_size": VOCABULARY, "conv_dim": [6, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_conv_pos_embeddings": 6,
         "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 10}


def sound(name, kind, is_masked=True, **options):
    """An encoder of samples."""
    model = getattr(transformers, kind)
    model = model(model.config_class(**{**WAVES, **options, "num_labels": 3}))
    randomize(model)
    norms(model)
    for name_of_array, array in model.named_parameters():
        # Otherwise these are all equal, or too small to matter.
        if "gru_rel_pos" in name_of_array or "rel_attn_embed" in name_of_array or "adapter_layer" in name_of_array:
            array.data.add_(torch.randn_like(array) * 0.5)
    if kind == "SEWForSequenceClassification":
        # Otherwise its logits are near zero.
        model.classifier.weight.data.mul_(40)
    mask = torch.tensor([[1] * 400, [1] * 250 + [0] * 150]) if is_masked else torch.ones(2, 400, dtype=torch.int64)
    samples = torch.randn(2, 400) * mask
    with torch.no_grad():
        output = model(samples, attention_mask=mask)
    logits = output.logits if "logits" in output else output.last_hidden_state
    written(name, model, {"input_values": samples, "attention_mask": mask, "logits": logits})


MOONSHINE = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 24, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 3,
             "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}


def moonshine(name, **options):
    """With sounds of different lengths."""
    model = transformers.MoonshineForConditionalGeneration(transformers.MoonshineConfig(**{**MOONSHINE, **options}))
    randomize(model)
    for parameter in model.model.encoder.parameters():
        # So that features of frames depend on the samples.
        if parameter.dim() == 3:
            parameter.data.mul_(1.5 / (parameter.std() * parameter[0].numel() ** 0.5))
    mask = torch.tensor([[1] * 4000, [1] * 2600 + [0] * 1400])
    inputs = {"input_values": torch.randn(2, 4000) * mask, "attention_mask": mask}
    targets = torch.randint(4, VOCABULARY, (2, 7))
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    written(name, model, {**inputs, "decoder_input_ids": targets, "logits": logits, "generated": greedy(model, inputs, 1, 6)})


FRAMES = {**SIZES, "vocab_size": VOCABULARY, "feature_projection_input_dim": 6, "classifier_proj_size": 10, "conv_depthwise_kernel_size": 5,
          "left_max_position_embeddings": 4, "right_max_position_embeddings": 2}


def frames(name, kind, **options):
    """An encoder of features of sound, with padding."""
    model = getattr(transformers, kind)
    model = model(model.config_class(**{**FRAMES, **options, "num_labels": 3}))
    randomize(model)
    mask = torch.tensor([[1] * 11, [1] * 7 + [0] * 4])
    features = torch.randn(2, 11, 6)
    with torch.no_grad():
        output = model(features, attention_mask=mask)
    logits = output.logits if "logits" in output else output.last_hidden_state
    written(name, model, {"input_values": features, "attention_mask": mask, "logits": logits})


AST = {**SIZES, "patch_size": 4, "frequency_stride": 3, "time_stride": 2, "max_length": 20, "num_mel_bins": 9}


def spectrogram(name, kind, **options):
    """An encoder of spectrograms."""
    model = getattr(transformers, kind)
    model = model(model.config_class(**AST, **options, num_labels=3))
    randomize(model)
    values = torch.randn(2, 20, 9)
    with torch.no_grad():
        output = model(values)
    written(name, model, {"input_values": values, "logits": output.logits if "logits" in output else output.last_hidden_state})


def mel():
    """The features of a second of sound, every tenth frame; `tests/huggingface/pairs.rs` makes the same sound."""
    i = np.arange(16000.0)
    sound = 0.4 * np.sin(0.05 * i) + 0.2 * np.sin(2e-5 * i * i)
    arrays = {}
    for count in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=count, chunk_length=2)
        features = extractor(sound.astype(np.float32), sampling_rate=16000, return_tensors="pt").input_features
        arrays[f"features_{count}"] = features[:, :, ::10]
    written("mel", None, arrays)


DEPTH_ENCODER = {name: value for name, value in SIZES.items() if name != "intermediate_size"} | {
    "image_size": 16, "patch_size": 4, "num_hidden_layers": 4, "reshape_hidden_states": False}
DEPTH = {"patch_size": 4, "reassemble_hidden_size": 16, "neck_hidden_sizes": [5, 6, 8, 10], "fusion_hidden_size": 6, "head_hidden_size": 7}


def depth(name, encoder, **options):
    """The depth of the pixels of two images."""
    t = transformers
    config = t.DepthAnythingConfig(backbone_config=t.Dinov2Config(**DEPTH_ENCODER, **encoder), **DEPTH, **options)
    depths(name, t.DepthAnythingForDepthEstimation(config), [(16, 16), (20, 12)])


def glpn(name, **options):
    """The depth of the pixels of images of two sizes."""
    model = transformers.GLPNForDepthEstimation(transformers.GLPNConfig(**{**SEGFORMER, "decoder_hidden_size": 6, **options}))
    randomize(model)
    norms(model)
    for parameter in [*model.decoder.parameters(), *model.head.parameters()]:
        if parameter.dim() == 4:
            parameter.data.mul_(1.5 / (parameter.std() * parameter[0].numel() ** 0.5))
    arrays = {}
    for number, shape in enumerate([(32, 32), (48, 16)]):
        images = torch.randn(2, 3, *shape)
        with torch.no_grad():
            arrays |= {f"pixel_values_{number}": images, f"logits_{number}": model(images).predicted_depth}
    written(name, model, arrays)


DPT = {"neck_hidden_sizes": [5, 6, 8, 10], "fusion_hidden_size": 6, "neck_ignore_stages": []}
DPT_ENCODER = {**SIZES, "image_size": 16, "patch_size": 4, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}


def dpt(name, encoder=None, shapes=((16, 16), (12, 12), (24, 24)), **options):
    """With an encoder of its own, which reads only squares, or with DINOv2."""
    t = transformers
    encoder = {"backbone_config": t.Dinov2Config(**DEPTH_ENCODER, **encoder)} if encoder else DPT_ENCODER
    depths(name, t.DPTForDepthEstimation(t.DPTConfig(**encoder, **DPT, **options)), shapes)


BIT = {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "num_groups": 4, "embedding_dynamic_padding": True, "global_padding": "same",
       "layer_type": "bottleneck", "out_features": ["stage1", "stage2", "stage3"], "depths": [1, 1, 2]}


def hybrid(name, **options):
    """With convolutions before the encoder, of which two stages are read too."""
    t = transformers
    encoder = {**DPT_ENCODER, "image_size": 32, "patch_size": 16, "backbone_featmap_shape": [1, 24, 2, 2]}
    options = {"neck_hidden_sizes": [8, 16, 8, 10], "reassemble_factors": [1, 1, 1, 0.5], "neck_ignore_stages": [0, 1], **options}
    config = t.DPTConfig(**encoder, **{**DPT, **options}, is_hybrid=True, backbone_config=t.BitConfig(**BIT))
    depths(name, t.DPTForDepthEstimation(config), [(32, 32)])


def prompted(name, **options):
    """The depth of the pixels of two images, also with known depths."""
    t = transformers
    config = t.PromptDepthAnythingConfig(backbone_config=t.Dinov2Config(**DEPTH_ENCODER, out_indices=[1, 2, 3, 4]), **DEPTH, **options)
    depths(name, t.PromptDepthAnythingForDepthEstimation(config), [(16, 16), (20, 12)], [(8, 8), (5, 7)])


def depths(name, model, shapes, known=()):
    """Saves a model of depths and the depths of images of these shapes."""
    randomize(model)
    norms(model)
    for parameter in [*model.neck.parameters(), *model.head.parameters()]:
        if parameter.dim() == 4:
            parameter.data.mul_(1.5 / (parameter.std() * parameter[0].numel() ** 0.5))
    # Otherwise many relative depths are zero.
    last = model.head.conv3 if hasattr(model.head, "conv3") else model.head.head[4]
    last.bias.data.add_(1.5 if getattr(model.config, "depth_estimation_type", "relative") == "relative" else 0.0)
    arrays = {}
    for number, (rows, columns) in enumerate(shapes):
        images = torch.randn(2, 3, rows, columns)
        with torch.no_grad():
            arrays |= {f"pixel_values_{number}": images, f"logits_{number}": model(images).predicted_depth}
            if known:
                known_depths = torch.rand(2, 1, *known[number]) * 3
                arrays |= {f"depths_{number}": known_depths[:, 0], f"logits_depths_{number}": model(images, prompt_depth=known_depths).predicted_depth}
    written(name, model, arrays)


MOBILE = {"depth_multiplier": 0.05, "min_depth": 4}
EFFICIENT = {"width_coefficient": 0.01, "depth_divisor": 2, "hidden_dim": 12, "in_channels": [32, 16, 400], "out_channels": [16, 400, 600],
             "kernel_sizes": [3, 5, 3], "strides": [1, 2, 2], "num_block_repeats": [1, 1, 1], "expand_ratios": [1, 3, 2],
             "depth_coefficient": 1.1, "depthwise_padding": [4]}
MOBILEVIT = {"neck_hidden_sizes": [4, 6, 8, 8, 10, 12, 14], "hidden_sizes": [8, 12, 12], "num_attention_heads": 4, "mlp_ratio": 1.5, "expand_ratio": 2.0}
SEGFORMER = {"num_encoder_blocks": 2, "hidden_sizes": [4, 8], "depths": [1, 2], "sr_ratios": [2, 1], "num_attention_heads": [2, 4],
             "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 3]}
CASES = {
    "clip": clip,
    "clip_largest": lambda: clip("clip_largest", end=2),
    # The number that means something else in CLIP's class.
    "metaclip_2": lambda: clip("metaclip_2", end=2, kind="MetaClip2"),
    "chinese_clip": chinese_clip,
    "altclip": lambda: chinese_clip("altclip", "AltCLIP", ALT),
    "clap": lambda: clap("clap"),
    "clap_fused": lambda: clap("clap_fused", enable_fusion=True, qkv_bias=False),
    "clipseg": lambda: clipseg("clipseg"),
    "clipseg_pixels": lambda: clipseg("clipseg_pixels", use_complex_transposed_convolution=True, conditional_layer=1),
    "dinov2": dinov2,
    "dinov2_model": lambda: dinov2("dinov2_model", "Dinov2Model", use_swiglu_ffn=True, qkv_bias=False),
    "dinov2_registers": lambda: dinov2("dinov2_registers", "Dinov2WithRegistersForImageClassification", num_register_tokens=3),
    "dinov3": lambda: dinov2("dinov3", "DINOv3ViTModel", num_register_tokens=3),
    # As the largest published model.
    "dinov3_gated": lambda: dinov2("dinov3_gated", "DINOv3ViTModel", num_register_tokens=2, use_gated_mlp=True, hidden_act="silu", query_bias=False, value_bias=False),
    "deit": lambda: deit("deit", "DeiTForImageClassification"),
    "deit_teacher": lambda: deit("deit_teacher", "DeiTForImageClassificationWithTeacher"),
    "vit_msn": lambda: deit("vit_msn", "ViTMSNForImageClassification"),
    # The options of the published model, and the other ones.
    "beit": lambda: deit("beit", "BeitForImageClassification", use_relative_position_bias=True),
    "beit_model": lambda: deit("beit_model", "BeitModel", use_absolute_position_embeddings=True, use_shared_relative_position_bias=True,
                               use_mean_pooling=False, use_mask_token=True, layer_scale_init_value=0.0),
    "data2vec_vision": lambda: deit("data2vec_vision", "Data2VecVisionForImageClassification", use_relative_position_bias=True,
                                    use_shared_relative_position_bias=True, use_mean_pooling=False),
    # With three convolutions in each block, or two.
    "resnet": lambda: staged("resnet", "ResNetForImageClassification", size=32, embedding_size=6, hidden_sizes=[8, 16], depths=[1, 2],
                             hidden_act="gelu", downsample_in_bottleneck=True),
    "resnet_model": lambda: staged("resnet_model", "ResNetModel", size=32, embedding_size=6, hidden_sizes=[6, 10], depths=[2, 1],
                                   layer_type="basic", downsample_in_first_stage=True),
    # Without and with factors of features, which have another rounding of sizes in the first block.
    "regnet": lambda: staged("regnet", "RegNetForImageClassification", size=32, embedding_size=6, hidden_sizes=[8, 16], depths=[1, 2],
                             groups_width=4, hidden_act="gelu"),
    "regnet_model": lambda: staged("regnet_model", "RegNetModel", size=32, embedding_size=6, hidden_sizes=[6, 10], depths=[2, 1],
                                   groups_width=8, layer_type="x", downsample_in_first_stage=False),
    "poolformer": lambda: staged("poolformer", "PoolFormerForImageClassification", size=24, hidden_sizes=[6, 10], depths=[1, 2], num_encoder_blocks=2,
                                 patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], mlp_ratio=1.7, layer_scale_init_value=0.5),
    "poolformer_model": lambda: staged("poolformer_model", "PoolFormerModel", hidden_sizes=[6, 10], depths=[1, 1], num_encoder_blocks=2,
                                       patch_sizes=[3, 2], strides=[2, 2], padding=[0, 1], pool_size=5, use_layer_scale=False),
    "convnext": lambda: staged("convnext", "ConvNextForImageClassification", hidden_sizes=[6, 10], depths=[1, 2], num_stages=2,
                               layer_scale_init_value=0.5),
    "convnext_model": lambda: staged("convnext_model", "ConvNextModel", hidden_sizes=[6, 10], depths=[1, 1], num_stages=2,
                                     layer_scale_init_value=0.0),
    "convnextv2": lambda: staged("convnextv2", "ConvNextV2ForImageClassification", hidden_sizes=[6, 10], depths=[1, 2], num_stages=2),
    "segformer": lambda: staged("segformer", "SegformerForImageClassification", size=32, **SEGFORMER, reshape_last_stage=False),
    "pvt_v2": lambda: staged("pvt_v2", "PvtV2ForImageClassification", size=32, **SEGFORMER),
    "pvt_v2_model": lambda: staged("pvt_v2_model", "PvtV2Model", size=32, **SEGFORMER, qkv_bias=False),
    "levit": lambda: levit("levit", "LevitForImageClassificationWithTeacher"),
    "levit_model": lambda: levit("levit_model", "LevitModel", image_size=80),
    "pvt": lambda: first_pyramid("pvt", "PvtForImageClassification"),
    "pvt_model": lambda: first_pyramid("pvt_model", "PvtModel", qkv_bias=False, hidden_act="relu"),
    "segformer_pixels": lambda: staged("segformer_pixels", "SegformerForSemanticSegmentation", size=32, **SEGFORMER, decoder_hidden_size=6),
    # Images whose patches do not fill all windows, and windows of the size of an image.
    "swin": lambda: staged("swin", "SwinForImageClassification", size=16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2],
                           num_heads=[2, 4], window_size=3),
    "swin_model": lambda: staged("swin_model", "SwinModel", size=16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2],
                                 num_heads=[2, 2], window_size=4, qkv_bias=False, use_absolute_embeddings=True, mlp_ratio=2.5),
    # With a stage that has a single window, windows of another size in training, and scores of images that are moved.
    "swinv2": lambda: staged("swinv2", "Swinv2ForImageClassification", size=16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2],
                             num_heads=[2, 4], window_size=5, pretrained_window_sizes=[7, 0]),
    "mobilenet_v1": lambda: staged("mobilenet_v1", "MobileNetV1ForImageClassification", size=32, **MOBILE),
    "mobilenet_v2": lambda: staged("mobilenet_v2", "MobileNetV2ForImageClassification", size=32, **MOBILE, depth_divisible_by=4, expand_ratio=2,
                                   finegrained_output=False, first_layer_is_expansion=False, hidden_act="relu"),
    # Convolutions that skip pixels.
    "mobilenet_v2_model": lambda: staged("mobilenet_v2_model", "MobileNetV2Model", size=32, **MOBILE, depth_divisible_by=4, expand_ratio=3,
                                         finegrained_output=False, output_stride=8, tf_padding=False),
    "efficientnet": lambda: staged("efficientnet", "EfficientNetForImageClassification", size=32, **EFFICIENT),
    "efficientnet_model": lambda: staged("efficientnet_model", "EfficientNetModel", size=32, **{**EFFICIENT, "hidden_act": "gelu", "depthwise_padding": []}),
    "depth_anything": lambda: depth("depth_anything", {"out_features": ["stage1", "stage2", "stage3", "stage4"]}),
    "depth_anything_metric": lambda: depth("depth_anything_metric", {"out_indices": [0, 1, 3, 4], "apply_layernorm": False},
                                           depth_estimation_type="metric", max_depth=20, reassemble_factors=[3, 1, 0.5, 1], head_in_index=2),
    # Images whose stages have other sizes than twice the next one.
    "dpt": lambda: dpt("dpt"),
    "dpt_norms": lambda: dpt("dpt_norms", use_batch_norm_in_fusion_residual=True, readout_type="ignore", head_in_index=2),
    "dpt_dinov2": lambda: dpt("dpt_dinov2", {"out_indices": [1, 2, 3, 4]}, ((16, 16), (20, 12)), hidden_act="relu"),
    "dpt_hybrid": lambda: hybrid("dpt_hybrid"),
    "prompt_depth_anything": lambda: prompted("prompt_depth_anything"),
    "bit": lambda: staged("bit", "BitForImageClassification", size=32, **{**BIT, "layer_type": "preactivation", "global_padding": None,
                          "embedding_dynamic_padding": False, "out_features": None}),
    # Convolutions that skip places, and images that are padded to a multiple of each stride.
    "bit_model": lambda: staged("bit_model", "BitModel", size=32, **{**BIT, "output_stride": 8, "hidden_act": "gelu"}),
    "glpn": lambda: glpn("glpn"),
    # The head reads joined stages before the last one.
    "glpn_inner": lambda: glpn("glpn_inner", head_in_index=0, decoder_hidden_size=8),
    "vit_mae": lambda: mae("vit_mae", "ViTMAEModel"),
    "vit_mae_pretraining": lambda: mae("vit_mae_pretraining", "ViTMAEForPreTraining"),
    "yolos": lambda: yolos("yolos", "YolosForObjectDetection"),
    # As the smallest published model, whose patches do not fill its images.
    "yolos_rest": lambda: yolos("yolos_rest", "YolosForObjectDetection", image_size=[10, 13], use_mid_position_embeddings=False, qkv_bias=False),
    "yolos_model": lambda: yolos("yolos_model", "YolosModel"),
    "detr": lambda: detr("detr", "Detr"),
    "conditional_detr": lambda: detr("conditional_detr", "ConditionalDetr"),
    "deformable_detr": lambda: deformable_detr("deformable_detr", num_feature_levels=4),
    "deformable_detr_refined": lambda: deformable_detr("deformable_detr_refined", with_box_refine=True),
    "deformable_detr_proposals": lambda: deformable_detr("deformable_detr_proposals", with_box_refine=True, two_stage=True, num_feature_levels=2),
    "grounding_dino": lambda: grounding("grounding_dino", "GroundingDino"),
    # With layers for the boxes of each block.
    "grounding_dino_boxes": lambda: grounding("grounding_dino_boxes", "GroundingDino", decoder_bbox_embed_share=False),
    "mm_grounding_dino": lambda: grounding("mm_grounding_dino", "MMGroundingDino"),
    "table_transformer": lambda: detr("table_transformer", "TableTransformer", activation_function="gelu"),
    "rt_detr": lambda: rt_detr("rt_detr", "RTDetr"),
    "rt_detr_basic": lambda: rt_detr("rt_detr_basic", "RTDetr", {"layer_type": "basic", "downsample_in_bottleneck": True}, hidden_expansion=0.5,
                                     normalize_before=True, num_denoising=0, eval_size=640),
    "rt_detr_v2": lambda: rt_detr("rt_detr_v2", "RTDetrV2", decoder_n_levels=2, decoder_offset_scale=0.7, freeze_backbone_batch_norms=False),
    "sam": sam,
    "longt5": lambda: longt5("longt5", "transient-global", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "longt5_local": lambda: longt5("longt5_local", "local"),
    "blip": lambda: blip("blip"),
    "blip_answers": lambda: blip_answers("blip_answers"),
    "blip_matches": lambda: blip_matches("blip_matches"),
    "florence2": lambda: florence("florence2"),
    # Patches that do not fill an image, whose rows and columns are scaled.
    "mobilevit": lambda: staged("mobilevit", "MobileViTForImageClassification", size=64, **MOBILEVIT),
    "mobilevit_model": lambda: staged("mobilevit_model", "MobileViTModel", size=66, **{**MOBILEVIT, "qkv_bias": False, "expand_ratio": 1.7}),
    "vitpose": lambda: vitpose("vitpose"),
    "owlvit": lambda: owl("owlvit", "OwlViT"),
    "owlv2": lambda: owl("owlv2", "Owlv2"),
    "ijepa": lambda: deit("ijepa", "IJepaModel"),
    "t5": t5,
    "t5_gated": lambda: t5("t5_gated", tied=False, feed_forward_proj="gated-gelu"),
    "mt5": lambda: t5("mt5", tied=False, kind="MT5"),
    "umt5": lambda: t5("umt5", tied=False, kind="UMT5"),
    "bart": lambda: pair("bart", "Bart", scale_embedding=True),
    "mbart": lambda: pair("mbart", "MBart"),
    "led": led,
    "wav2vec2_languages": languages,
    "blenderbot": lambda: pair("blenderbot", "Blenderbot", scale_embedding=True),
    "blenderbot_small": lambda: pair("blenderbot_small", "BlenderbotSmall", scale_embedding=True),
    "plbart": lambda: pair("plbart", "PLBart"),
    "mvp": lambda: pair("mvp", "Mvp"),
    "marian": lambda: pair("marian", "Marian", pad_token_id=32, decoder_start_token_id=32, scale_embedding=True, activation_function="swish"),
    "pegasus": lambda: pair("pegasus", "Pegasus", scale_embedding=True),
    "m2m_100": lambda: pair("m2m_100", "M2M100", scale_embedding=True),
    "fsmt": lambda: fsmt("fsmt", src_vocab_size=30),
    "fsmt_tied": lambda: fsmt("fsmt_tied", tie_word_embeddings=True, scale_embedding=False, activation_function="gelu"),
    "speech_to_text": lambda: speech("speech_to_text"),
    "trocr": lambda: trocr("trocr"),
    # As the largest published model, and as the smallest one.
    "trocr_sines": lambda: trocr("trocr_sines", use_learned_position_embeddings=False, layernorm_embedding=False, scale_embedding=True),
    "trocr_small": lambda: trocr("trocr_small", "DeiT", cross_attention_hidden_size=None, activation_function="relu", tie_word_embeddings=False),
    "donut": lambda: donut("donut"),
    # With another number of features than the encoder has.
    "donut_small": lambda: donut("donut_small", d_model=12, scale_embedding=False, activation_function="relu", tie_word_embeddings=False),
    "donut_classes": lambda: staged("donut_classes", "DonutSwinForImageClassification", size=16, **{**DONUT, "image_size": 16}),
    "siglip": siglip,
    "siglip2": siglip2,
    "whisper": whisper,
    # With a head of which a part is rotated, and with biases.
    "moonshine": lambda: moonshine("moonshine"),
    "moonshine_biases": lambda: moonshine("moonshine_biases", hidden_size=32, encoder_num_attention_heads=4, decoder_num_attention_heads=4, attention_bias=True, tie_word_embeddings=False, pad_head_dim_to_multiple_of=8,
                                          rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}),
    "mel": mel,
    "spectrogram": lambda: spectrogram("spectrogram", "ASTForAudioClassification"),
    "spectrogram_model": lambda: spectrogram("spectrogram_model", "ASTModel", qkv_bias=False, hidden_act="relu", layer_norm_eps=0.01),
    # With norms of frames or of features, and kernels of even and odd size.
    "wav2vec2": lambda: sound("wav2vec2", "Wav2Vec2ForCTC", feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True),
    "wav2vec2_classes": lambda: sound("wav2vec2_classes", "Wav2Vec2ForSequenceClassification", num_conv_pos_embeddings=5, hidden_act="relu"),
    "wav2vec2_model": lambda: sound("wav2vec2_model", "Wav2Vec2Model", mask_time_prob=0.0, is_masked=False),
    "hubert": lambda: sound("hubert", "HubertForCTC", is_masked=False, feat_proj_layer_norm=False),
    # Distances of which the largest share a group, and norms of inputs or of sums.
    "wavlm": lambda: sound("wavlm", "WavLMForCTC", feat_extract_norm="layer", do_stable_layer_norm=True, num_buckets=16, max_bucket_distance=12),
    "wavlm_model": lambda: sound("wavlm_model", "WavLMModel", num_buckets=16, max_bucket_distance=12),
    "wavlm_classes": lambda: sound("wavlm_classes", "WavLMForSequenceClassification"),
    # As MMS has it.
    "wav2vec2_adapters": lambda: sound("wav2vec2_adapters", "Wav2Vec2ForCTC", feat_extract_norm="layer", do_stable_layer_norm=True, adapter_attn_dim=6),
    "unispeech": lambda: sound("unispeech", "UniSpeechForCTC"),
    "unispeech_sat": lambda: sound("unispeech_sat", "UniSpeechSatForCTC", mask_time_prob=0.0),
    "data2vec_audio": lambda: sound("data2vec_audio", "Data2VecAudioForCTC", num_conv_pos_embeddings=3, conv_pos_kernel_size=5),
    "wav2vec2_conformer": lambda: sound("wav2vec2_conformer", "Wav2Vec2ConformerForCTC", conv_depthwise_kernel_size=5),
    "wav2vec2_conformer_rotary": lambda: sound("wav2vec2_conformer_rotary", "Wav2Vec2ConformerModel", conv_depthwise_kernel_size=3,
                                               position_embeddings_type="rotary", hidden_act="swish", feat_extract_norm="layer"),
    "wav2vec2_bert": lambda: frames("wav2vec2_bert", "Wav2Vec2BertForCTC"),
    "wav2vec2_bert_adapter": lambda: frames("wav2vec2_bert_adapter", "Wav2Vec2BertForCTC", add_adapter=True, num_adapter_layers=2, output_hidden_size=12,
                                            adapter_act="gelu"),
    "wav2vec2_bert_model": lambda: frames("wav2vec2_bert_model", "Wav2Vec2BertModel", mask_time_prob=0.0),
    "wav2vec2_bert_classes": lambda: frames("wav2vec2_bert_classes", "Wav2Vec2BertForSequenceClassification", position_embeddings_type="relative"),
    # Numbers of frames that groups do not fill.
    "sew": lambda: sound("sew", "SEWForCTC"),
    "sew_classes": lambda: sound("sew_classes", "SEWForSequenceClassification", squeeze_factor=3, feat_extract_norm="layer", num_conv_pos_embeddings=5),
    "sew_model": lambda: sound("sew_model", "SEWModel", conv_dim=[6, 16], mask_time_prob=0.0),
    "hubert_model": lambda: sound("hubert_model", "HubertModel", feat_extract_norm="layer", do_stable_layer_norm=True),
}


def main():
    for name, make in CASES.items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            torch.manual_seed(4)
            make()
            print(name, flush=True)


if __name__ == "__main__":
    main()
