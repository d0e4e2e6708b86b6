"""Writes the defaults of the fields of transformers' configuration classes: what a field that is absent from `config.json`
means to `shardax_models`.

    .venv/huggingface/bin/python tools/huggingface/defaults.py
"""

import dataclasses
import json
import pathlib

from transformers import CONFIG_MAPPING

OUT = pathlib.Path(__file__).parents[2] / "crates/shardax-models/src/huggingface/defaults.json"
MODEL_TYPES = """
axk2 bailing_hybrid beam diffllama doge longcat_flash zamba2
pvt_v2 luke molmo2_text apertus1p5_text bert-generation bitnet cohere_compass_text emu3_text_model gpt_neox_japanese kolibri1 lara_mini phi4_multimodal
poolformer fnet longt5 blip blip_text_model blip_vision_model owlvit owlvit_text_model owlvit_vision_model owlv2 owlv2_text_model owlv2_vision_model
wavlm unispeech unispeech-sat data2vec-audio vit_mae yolos vitpose vitpose_backbone dpt big_bird trocr mobilebert detr table-transformer donut-swin sam sam_vision_model sam_prompt_encoder sam_mask_decoder
led mllama_text_model chinese_clip chinese_clip_text_model chinese_clip_vision_model
audio-spectrogram-transformer xglm longformer depth_anything wav2vec2 hubert layoutlm rembert blenderbot-small mobilenet_v1 mobilenet_v2 efficientnet swinv2 cosmos3_edge_text dbrx deepseek_ocr2_text step3p5
blenderbot plbart mvp convnext convnextv2 ernie4_5_vl_moe_text regnet resnet segformer swin
fsmt speech_to_text grounding-dino mm-grounding-dino bit prompt_depth_anything conditional_detr deformable_detr levit clap clap_text_model clap_audio_model moonshine sew glpn pvt altclip altclip_text_model altclip_vision_model
recurrent_gemma minimax wav2vec2-conformer wav2vec2-bert florence2 florence_vision mobilevit convbert clipseg clipseg_text_model clipseg_vision_model rt_detr rt_detr_v2 rt_detr_resnet
kimi_linear mimo_v2_flash olmo_hybrid beit data2vec-vision siglip2 siglip2_text_model siglip2_vision_model metaclip_2 metaclip_2_text_model metaclip_2_vision_model deepseek_v32 dinov3_vit gemma4_unified_text glm_moe_dsa megatron-bert xlm-roberta-xl
aria_text glm4v_moe_text glm4v_text glm_ocr_text granite_docling_text hunyuan_vl_text paddleocr_vl_text qwen2_5_omni_text qwen3_omni_moe_text
eurobert gemma3n_text gemma4_text laguna lfm3
data2vec-text deberta deit dinov2_with_registers ernie esm ijepa jina_embeddings_v3 roberta-prelayernorm roformer vit_msn
bamba falcon_h1 falcon_mamba jamba mamba mamba2 nemotron_h
afmoe axk1 cohere2_moe flint gpt-sw3 granite_swa granitemoe_swa hy_v3 mellum minicpm3 mistral4 modernbert-decoder nanochat phimoe
albert bart camembert deberta-v2 electra gte m2m_100 marian mbart mpnet mt5 nomic_bert pegasus siglip siglip_text_model siglip_vision_model umt5
apertus arcee bert biogpt bloom codegen cwm dots1 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo glm4_moe_lite gpt_bigcode gpt_neo granitemoehybrid granitemoeshared
qwen3_5_moe_text qwen3_vl_moe_text lfm2_moe hunyuan_v1_dense hunyuan_v1_moe hyperclovax internlm3 iquestcoder lfm2 llama4_text jais2 minimax_m2 ministral ministral3 nemotron openai-gpt persimmon qwen3_5_text qwen3_next sarvam_mla
sarvam_moe solar_open vaultgemma youtu clip clip_text_model clip_vision_model cohere cohere2 deepseek_v2 deepseek_v3 dinov2 distilbert ernie4_5 falcon gemma gemma2 gemma3_text glm glm4 glm4_moe
gpt2 gpt_neox gpt_oss gptj granite granitemoe helium llama mistral mixtral modernbert mpt olmo olmo2 olmo3 olmoe opt phi phi3 qwen2
qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe qwen3_vl_text roberta seed_oss smollm3 stablelm starcoder2 t5 vit whisper xlm-roberta
""".split()


def defaults(model_type):
    kind = CONFIG_MAPPING[model_type]
    # Fields of the base class change no result, and the list of classes has a count instead.
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.name in own_names(kind)}
    # JSON has no infinity, the upper limit of time steps of Mamba's layers.
    fields = {name: value for name, value in fields.items() if value is not dataclasses.MISSING and "inf" not in repr(value)}
    if hasattr(kind, "default_theta") and "rope_parameters" in fields:
        # The first class ignores the base outside of the object, and the second one has another default for this field.
        if model_type not in ("mimo_v2_flash", "bailing_hybrid"):
            fields["rope_theta"] = kind.default_theta
        fields["rope_parameters"] = default_rope(kind)
    return fields


def default_rope(kind):
    """The rotary positions of a class that scales them by default, without the base if a field of the file replaces it."""
    rope = kind(rope_theta=123.0).rope_parameters
    if rope and kind.model_type == "mistral4":
        # It is the ratio of two other fields.
        rope.pop("partial_rotary_factor", None)
    if not rope or rope.get("rope_type", "default") == "default":
        return None
    return {name: value for name, value in rope.items() if (name, value) != ("rope_theta", 123.0)}


def own_names(kind):
    """The fields that classes of models declare, without those of the base class of all configurations."""
    classes = [one for one in kind.__mro__ if one.__module__.startswith("transformers.models.")]
    return {name for one in classes for name in one.__dict__.get("__annotations__", {})}


def main():
    lines = [f"{json.dumps(name)}: {json.dumps(defaults(name), sort_keys=True)}" for name in sorted(MODEL_TYPES)]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
