"""Makes tiny models with random weights by `transformers`, which saves them, and their logits and greedy continuations: the
files that the tests of `shardax_models` read.

    python3 -m venv .venv/huggingface
    .venv/huggingface/bin/pip install -r tools/huggingface/requirements.txt
    .venv/huggingface/bin/python tools/huggingface/generate.py          # all of them
    .venv/huggingface/bin/python tools/huggingface/generate.py olmo2    # one of FAMILIES or ENCODERS
"""

import json
import pathlib
import re
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.generation import logits_process

OUT = pathlib.Path(__file__).parents[2] / "crates/shardax-models/tests/golden"
VOCABULARY = 33
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
WITHOUT_HEADS = {name: size for name, size in SIZES.items() if name != "num_attention_heads"}
# Pad, start and end tokens are outside of the default vocabulary of some models.
DECODER = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **SIZES}


# Types whose convolutions read padding, so that each prompt is continued alone.
READS_PADDING = ["recurrent_gemma", "zamba2"]
# Types that see the keys with the largest scores, which are equal for equal tokens. PyTorch does not say which of equal scores it chooses.
CHOOSES_KEYS = ["doge"]


def randomize(model):
    """Adds noise: norms and biases start as ones and zeros, which would hide that they are mistaken for one another."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Tables of sines are no weights.
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        # The factors of Gemma 4's layers, and the numbers that routers add to scores before they choose experts. Some classes
        # have these as parameters without gradients.
        frozen = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]
        for name, buffer in [*model.named_buffers(), *frozen]:
            if name.endswith(("layer_scalar", "e_score_correction_bias", "expert_bias")):
                buffer.add_(torch.randn_like(buffer) * 0.3)


def save(name, model, inputs, more=None, **options):
    """Saves the model, its inputs, its logits, and `more` arrays."""
    with torch.no_grad():
        output = model(**inputs)
    logits = output.logits if "logits" in output else output.last_hidden_state
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "pixel_values" in inputs:
        inputs = {"pixel_values": inputs["pixel_values"].permute(0, 2, 3, 1)}
    arrays = {**inputs, **(more or {}), "logits": logits}
    arrays = {key: value.to(torch.int32) if value.dtype == torch.int64 else value for key, value in arrays.items()}
    save_file({key: value.contiguous() for key, value in arrays.items()}, folder / "case.safetensors")


def decoder(name, kind, config, length=9, **options):
    """Saves a decoder, with two prompts of different lengths and their greedy continuations."""
    # Falcon's eager attention adds the biases of positions twice.
    config._attn_implementation = "sdpa" if getattr(config, "alibi", False) else "eager"
    model = kind(config)
    randomize(model)
    prompts = torch.randint(3, VOCABULARY, (2, 4))
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    greedy = dict(max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=2)
    with torch.no_grad():
        if config.model_type in READS_PADDING:
            rows = [model.generate(prompt[seen == 1][None], **greedy)[:, -5:] for prompt, seen in zip(prompts, mask)]
            generated = torch.cat(rows)
        else:
            generated = model.generate(prompts, attention_mask=mask, **greedy)[:, 4:]
    more = {"prompts": prompts, "lengths": mask.sum(1), "generated": generated}
    tokens = torch.randint(0, VOCABULARY, (2, length))
    if config.model_type in CHOOSES_KEYS:
        tokens = torch.stack([torch.randperm(VOCABULARY)[:length] for _ in range(2)])
    save(name, model, {"input_ids": tokens}, more, **options)


def decoders():
    t = transformers
    gpt2 = t.GPT2Config(vocab_size=VOCABULARY, n_positions=12, n_embd=16, n_layer=2, n_head=4)
    decoder("gpt2", t.GPT2LMHeadModel, gpt2, length=7)
    llama = t.LlamaConfig(num_key_value_heads=2, rope_theta=500.0, **DECODER)
    # In several files with an index.
    decoder("llama", t.LlamaForCausalLM, llama, max_shard_size="10KB")
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 = t.LlamaConfig(
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_scaling={**scaling, "original_max_position_embeddings": 8},
        **{**DECODER, "num_hidden_layers": 1},
    )
    decoder("llama3", t.LlamaForCausalLM, llama3, length=16)
    mistral = t.MistralConfig(num_key_value_heads=2, sliding_window=4, **DECODER)
    decoder("mistral", t.MistralForCausalLM, mistral)
    qwen2 = t.Qwen2Config(num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1, **DECODER)
    decoder("qwen2", t.Qwen2ForCausalLM, qwen2)
    qwen3 = t.Qwen3Config(num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, **DECODER)
    decoder("qwen3", t.Qwen3ForCausalLM, qwen3)
    gemma = {"num_key_value_heads": 2, "head_dim": 8, **DECODER}
    decoder("gemma", t.GemmaForCausalLM, t.GemmaConfig(**gemma))
    gemma2 = t.Gemma2Config(sliding_window=4, query_pre_attn_scalar=6, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, **gemma)
    decoder("gemma2", t.Gemma2ForCausalLM, gemma2)
    gemma3 = t.Gemma3TextConfig(
        sliding_window=4,
        query_pre_attn_scalar=6,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        },
        **gemma,
    )
    decoder("gemma3", t.Gemma3ForCausalLM, gemma3)
    phi = t.PhiConfig(**{**DECODER, "num_attention_heads": 2, "partial_rotary_factor": 0.5})
    decoder("phi", t.PhiForCausalLM, phi)
    phi3 = t.Phi3Config(num_key_value_heads=2, sliding_window=4, **DECODER)
    decoder("phi3", t.Phi3ForCausalLM, phi3)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 500.0}
FACTORS = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 3.0, 7.0]}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 8, "rope_theta": 500.0, **FACTORS}
SMALL_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1}
GPT = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 1}
KV = {"num_key_value_heads": 2}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
# With few heads, the scores of several positions would be zero, and PyTorch does not say which of equal scores it chooses.
INDEXER = {"q_lora_rank": 6, "index_topk": 4, "index_head_dim": 8, "index_n_heads": 16}
ATTENTION = ["full_attention", "full_attention"]
# Of layers that are absent, which the class checks.
MAMBA = {"mamba_n_heads": 4}
MINISTRAL = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
             "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
SPACE = {"hidden_size": 16, "num_hidden_layers": 2, "conv_kernel": 3}
SMALL_SPACE = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_chunk_size": 4}
FALCON = {"lm_head_multiplier": 0.5, "embedding_multiplier": 3.0, "mlp_multipliers": [0.7, 1.3], "key_multiplier": 1.7,
          "attention_out_multiplier": 1.2, "attention_in_multiplier": 0.8, "ssm_multipliers": [0.9, 1.1, 1.3, 0.7, 1.5],
          "ssm_in_multiplier": 1.4, "ssm_out_multiplier": 0.6}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.0}
LAYERED = {**KV, "head_dim": 8, "num_hidden_layers": 4, "sliding_window": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 4,
           "layer_types": ["sliding_attention", "full_attention"] * 2}

# The folder, the class, and fields in addition to the fields of DECODER.
SMALL_NEMOTRON = {**KV, "head_dim": 8, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
                  "ssm_state_size": 6, "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "n_routed_experts": 4,
                  "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 10, "routed_scaling_factor": 1.5}
FAMILIES = [
    ("gpt2_layer_scales", "GPT2", {**GPT, "n_positions": 12, "scale_attn_by_inverse_layer_idx": True}),
    ("gpt2_unscaled", "GPT2", {**GPT, "n_positions": 12, "scale_attn_weights": False, "reorder_and_upcast_attn": True}),
    ("bitnet", "BitNet", {**KV, "hidden_act": "relu2"}),
    ("kolibri1", "Kolibri1", {**KV, **SMALL_EXPERTS, "num_experts": 6, "head_dim": 8, "sliding_window": 4, "shared_expert_intermediate_size": 10,
                              "layer_types": ["sliding_attention", "full_attention"]}),
    ("lara_mini", "LaraMini", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "shared_expert_intermediate_size": 10, "sliding_window": 4,
                               "num_hidden_layers": 3, "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
                               "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5}),
    ("apertus1p5", "Apertus1p5Text", {**KV, "dtype": "float32", "output_vocab_size": 30}),
    ("gpt_neox_japanese", "GPTNeoXJapanese", {"hidden_size": 32, "intermediate_multiple_size": 2}),
    ("bert_generation", "BertGeneration", {"is_decoder": True}),
    ("cohere_compass", "CohereCompassText", {**KV, "logit_scale": 0.25, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
                                             "hidden_size": 32,
                                             "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 1, 1]},
                                                                 "full_attention": None}}),
    ("linear", "Llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    ("dynamic", "Llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 6}),
    ("yarn", "Llama", {"rope_scaling": YARN, "max_position_embeddings": 32}),
    ("longrope", "Phi3", {**KV, "partial_rotary_factor": 0.75, "head_dim": 8, "rope_scaling": LONGROPE, "original_max_position_embeddings": 6,
                          "hidden_size": 32}),
    ("arcee", "Arcee", KV),
    ("seed_oss", "SeedOss", {**KV, "head_dim": 8, "attention_out_bias": True}),
    ("helium", "Helium", {**KV, "head_dim": 4}),
    ("ernie4_5", "Ernie4_5", {**KV, "head_dim": 8, "use_bias": True}),
    ("granite", "Granite", {**KV, **GRANITE}),
    ("smollm3", "SmolLM3", {**KV, "no_rope_layer_interval": 2}),
    ("olmo", "Olmo", KV),
    ("olmo2", "Olmo2", KV),
    ("olmo3", "Olmo3", {**KV, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "rope_scaling": YARN}),
    ("cohere", "Cohere", {**KV, "logit_scale": 0.25}),
    ("cohere2", "Cohere2", {**KV, "logit_scale": 0.25, "sliding_window": 4, "sliding_window_pattern": 2}),
    ("stablelm", "StableLm", {**KV, "hidden_size": 32, "use_qkv_bias": True}),
    ("stablelm_parallel", "StableLm", {**KV, "hidden_size": 32, "use_parallel_residual": True}),
    ("starcoder2", "Starcoder2", {**KV, "sliding_window": 4}),
    ("glm", "Glm", {**KV, "head_dim": 8}),
    ("glm4", "Glm4", {**KV, "head_dim": 8}),
    ("gptj", "GPTJ", {**GPT, "rotary_dim": 2}),
    ("gpt_neox", "GPTNeoX", {"hidden_size": 32}),
    ("gpt_neox_sequential", "GPTNeoX", {"hidden_size": 32, "use_parallel_residual": False}),
    ("falcon", "Falcon", {}),
    ("falcon_new", "Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("falcon_sequential", "Falcon", {"multi_query": False, "parallel_attn": False}),
    ("mixtral", "Mixtral", {**KV, "num_local_experts": 4}),
    ("qwen2_moe", "Qwen2Moe", {**KV, **SMALL_EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 20}),
    ("qwen3_moe", "Qwen3Moe", {**KV, **SMALL_EXPERTS, "num_experts": 6, "head_dim": 8, "mlp_only_layers": [0], "norm_topk_prob": True}),
    ("olmoe", "Olmoe", {**KV, "num_experts": 6, "num_experts_per_tok": 3}),
    ("glm4_moe", "Glm4Moe", {**KV, **SMALL_EXPERTS, **GROUPS, "head_dim": 8, "use_qk_norm": True, "routed_scaling_factor": 1.5,
                             "attention_bias": True}),
    ("granitemoe", "GraniteMoe", {**KV, **GRANITE, "num_local_experts": 4}),
    ("gpt_oss", "GptOss", {**KV, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    ("deepseek_v3", "DeepseekV3", {**SMALL_EXPERTS, **GROUPS, "num_key_value_heads": 4, "q_lora_rank": 6, "kv_lora_rank": 8,
                                   "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
                                   "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    # Queries see four positions.
    ("deepseek_v32", "DeepseekV32", {**SMALL_EXPERTS, **GROUPS, **LATENT, **INDEXER, "first_k_dense_replace": 1,
                                     "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    ("glm_moe_dsa", "GlmMoeDsa", {**SMALL_EXPERTS, **GROUPS, **LATENT, **INDEXER, "n_group": 1, "topk_group": 1, "n_routed_experts": 4}),
    # The last layer sees the positions of the layer before it.
    ("glm_moe_dsa_shared", "GlmMoeDsa", {**SMALL_EXPERTS, **GROUPS, **LATENT, **INDEXER, "n_group": 1, "topk_group": 1, "n_routed_experts": 4,
                                         "num_hidden_layers": 3, "indexer_types": ["full", "full", "shared"]}),
    ("deepseek_v2", "DeepseekV2", {**SMALL_EXPERTS, **GROUPS, **LATENT, "topk_method": "group_limited_greedy", "q_lora_rank": 6,
                                   "rms_norm_eps": 0.01, "routed_scaling_factor": 1.5,
                                   "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    ("deepseek_v2_greedy", "DeepseekV2", {**SMALL_EXPERTS, **LATENT, "n_routed_experts": 6, "n_shared_experts": 1,
                                          "first_k_dense_replace": 1, "q_lora_rank": None, "mlp_bias": True, "attention_bias": True}),
    ("opt", "OPT", {"ffn_dim": 24, "word_embed_proj_dim": 16}),
    ("opt_plain", "OPT", {"ffn_dim": 24, "enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False}),
    # Its tokens and the last layer have other features than the blocks, and sums are normalized.
    ("opt_sums", "OPT", {"ffn_dim": 24, "word_embed_proj_dim": 12, "do_layer_norm_before": False}),
    ("falcon_alibi", "Falcon", {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True, "hidden_size": 24,
                                "num_attention_heads": 6}),
    ("cohere_norms", "Cohere", {**KV, "logit_scale": 0.25, "use_qk_norm": True}),
    ("stablelm_norms", "StableLm", {**KV, "hidden_size": 32, "use_parallel_residual": True, "qk_layernorm": True}),
    ("mpt_bounds", "Mpt", {"d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 32, "attn_config": {"clip_qkv": 0.3}}),
    ("olmoe_bounds", "Olmoe", {**KV, "num_experts": 6, "num_experts_per_tok": 3, "clip_qkv": 0.3}),
    ("codegen", "CodeGen", {**GPT, "rotary_dim": 2}),
    ("openai", "OpenAIGPT", {**GPT, "n_positions": 12}),
    ("persimmon", "Persimmon", {"hidden_size": 32}),
    ("biogpt", "BioGpt", {}),
    # The class sets the sines of the padding token's number to zero.
    ("xglm", "XGLM", {"d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 4, "pad_token_id": 1}),
    ("apertus", "Apertus", {**KV, "dtype": "float32"}),
    ("ministral3", "Ministral3", {**KV, "head_dim": 8, "rope_parameters": {**MINISTRAL, "original_max_position_embeddings": 3}}),
    ("exaone_moe", "ExaoneMoe", {**KV, **SMALL_EXPERTS, "num_experts": 6, "sliding_window": 4, "head_dim": 8,
                                 "layer_types": ["sliding_attention", "full_attention"], "first_k_dense_replace": 1}),
    ("hunyuan_v1_moe", "HunYuanMoEV1", {**KV, "head_dim": 8, "num_experts": 4, "moe_topk": 2}),
    ("solar_open", "SolarOpen", {**KV, **SMALL_EXPERTS, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "head_dim": 8,
                                 "routed_scaling_factor": 1.5}),
    ("sarvam_moe", "SarvamMoE", {**KV, **SMALL_EXPERTS, **GROUPS, "head_dim": 8}),
    ("sarvam_mla", "SarvamMLA", {**SMALL_EXPERTS, **GROUPS, **LATENT, "q_lora_rank": None}),
    ("granite4", "GraniteMoeHybrid", {**KV, **GRANITE, **MAMBA, "num_local_experts": 0, "shared_intermediate_size": 20, "layer_types": ATTENTION,
                                      "position_embedding_type": "rope"}),
    ("granite4_experts", "GraniteMoeHybrid", {**KV, **GRANITE, **MAMBA, "num_local_experts": 4, "shared_intermediate_size": 20,
                                              "layer_types": ATTENTION}),
    # Groups of heads, biases of projections, and a chunk that is shorter than the text.
    ("mamba2", "Mamba2", {**SPACE, "num_heads": 4, "head_dim": 8, "state_size": 6, "n_groups": 2, "use_bias": True, "chunk_size": 4}),
    ("bamba", "Bamba", {**KV, **SMALL_SPACE, "attn_layer_indices": [1], "tie_word_embeddings": True, "mamba_conv_bias": False}),
    ("granite4_hybrid", "GraniteMoeHybrid", {**KV, **GRANITE, **SMALL_SPACE, "num_local_experts": 4, "shared_intermediate_size": 20,
                                             "layer_types": ["linear_attention", "full_attention"]}),
    ("nemotron_h", "NemotronH", SMALL_NEMOTRON),
    ("falcon_h1", "FalconH1", {**KV, **SMALL_SPACE, **FALCON, "mamba_d_ssm": 24, "mamba_d_head": 6}),
    # The norm of the state space.
    ("falcon_h1_norm", "FalconH1", {**KV, **SMALL_SPACE, "mamba_d_ssm": 32, "mamba_rms_norm": True, "projectors_bias": True}),
    ("mamba", "Mamba", {**SPACE, "state_size": 6, "use_bias": True, "time_step_rank": 3}),
    ("falcon_mamba", "FalconMamba", {**SPACE, "state_size": 6, "use_conv_bias": False}),
    ("jamba", "Jamba", {**KV, "mamba_d_state": 6, "mamba_d_conv": 3, "mamba_dt_rank": 3, "attn_layer_period": 2, "attn_layer_offset": 1,
                        "num_experts": 4, "expert_layer_offset": 0}),
    ("qwen3_5", "Qwen3_5Text", {**KV, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                                "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5}),
    ("qwen3_next", "Qwen3Next", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "shared_expert_intermediate_size": 10,
                                 "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                                 "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5}),
    ("qwen3_5_moe", "Qwen3_5MoeText", {**KV, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                                       "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5, "num_experts": 4,
                                       "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10}),
    # One layer without experts, and decay for each channel in layers with linear attention.
    ("kimi_linear", "KimiLinear", {**SMALL_EXPERTS, **LATENT, "num_hidden_layers": 3, "num_local_experts": 8, "n_group": 4, "topk_group": 2,
                                   "linear_head_dim": 6, "linear_num_heads": 3, "linear_conv_kernel_dim": 3,
                                   "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    # Values have fewer features than keys, and layers with a window have more key heads, and sinks.
    ("mimo_v2_flash", "MiMoV2Flash", {**SMALL_EXPERTS, "num_key_value_heads": 1, "head_dim": 12, "v_head_dim": 6, "n_routed_experts": 8,
                                      "n_group": 4, "topk_group": 2, "sliding_window": 4, "num_hidden_layers": 3}),
    # Rates of writing up to 2, and different places of norms.
    ("olmo_hybrid", "OlmoHybrid", {**KV, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                                   "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 3}),
    # transformers divides the channels of queries, keys and values into three arrays of other sizes.
    ("olmo_hybrid_split", "OlmoHybrid", {**KV, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                                         "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 5}),
    ("olmo_hybrid_plain", "OlmoHybrid", {"rope_parameters": {"rope_theta": None}, "linear_allow_neg_eigval": False, "linear_key_head_dim": 4,
                                         "linear_value_head_dim": 4, "attention_bias": True}),
    ("lfm2_moe", "Lfm2Moe", {**KV, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "moe_intermediate_size": 12, "num_experts": 4,
                             "num_experts_per_tok": 2, "routed_scaling_factor": 1.5}),
    ("lfm2", "Lfm2", {**KV, "layer_types": ["conv", "full_attention"], "conv_bias": True, "block_multiple_of": 4}),
    # The second layer has experts and no rotary positions, and the first one chunks of 4 positions.
    ("llama4", "Llama4Text", {**KV, "head_dim": 8, "intermediate_size_mlp": 20, "num_local_experts": 4, "num_experts_per_tok": 2,
                              "attention_chunk_size": 4, "no_rope_layers": [1, 0], "interleave_moe_layer_step": 2, "floor_scale": 3,
                              "attn_scale": 0.3, "layer_types": ["chunked_attention", "full_attention"]}),
    ("internlm3", "InternLM3", {**KV, "head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    ("ministral", "Ministral", {**KV, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    ("cwm", "Cwm", {**KV, "head_dim": 8, "sliding_window": 4}),
    ("hunyuan_v1_dense", "HunYuanDenseV1", {**KV, "head_dim": 8, "attention_bias": True}),
    ("exaone", "Exaone", {**KV, "head_dim": 8}),
    ("nemotron", "Nemotron", {**KV, "head_dim": 8, "attention_bias": True}),
    ("jais2", "Jais2", {**KV, "head_dim": 8}),
    ("exaone4", "Exaone4", {**KV, "sliding_window": 4, "sliding_window_pattern": 2}),
    ("hyperclovax", "HyperCLOVAX", {**KV, **GRANITE, "head_dim": 8}),
    ("vaultgemma", "VaultGemma", {**KV, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 6}),
    ("gpt_bigcode", "GPTBigCode", GPT),
    ("gpt_bigcode_heads", "GPTBigCode", {**GPT, "multi_query": False}),
    ("gpt_neo", "GPTNeo", {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "window_size": 4, "attention_types": [[["global", "local"], 1]]}),
    ("dots1", "Dots1", {**KV, **SMALL_EXPERTS, **GROUPS, "head_dim": 8, "routed_scaling_factor": 1.5, "norm_topk_prob": True, "max_window_layers": 1,
                        "sliding_window": 4}),
    ("minimax_m2", "MiniMaxM2", {**KV, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4}),
    ("flex_olmo", "FlexOlmo", {**KV, "num_experts": 6, "num_experts_per_tok": 3}),
    ("granitemoeshared", "GraniteMoeShared", {**KV, **GRANITE, "num_local_experts": 4, "shared_intermediate_size": 20}),
    ("ernie4_5_moe", "Ernie4_5_Moe", {**KV, "moe_intermediate_size": 12, "moe_num_experts": 6, "moe_k": 2}),
    ("glm4_moe_lite", "Glm4MoeLite", {**SMALL_EXPERTS, **LATENT, "n_routed_experts": 6, "q_lora_rank": 6}),
    ("youtu", "Youtu", {**LATENT, "q_lora_rank": 6}),
    # Six heads, no power of 2.
    ("bloom", "Bloom", {"hidden_size": 24, "n_layer": 2, "n_head": 6}),
    ("mpt", "Mpt", {"d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 32, "attn_config": {"softmax_scale": 0.3}}),
    ("phimoe", "Phimoe", {**KV, "num_local_experts": 4, "router_jitter_noise": 0.3, "attention_bias": True, "lm_head_bias": True,
                          "rope_scaling": {**LONGROPE, "original_max_position_embeddings": 32, "short_factor": [1.0, 1.5],
                                           "long_factor": [1.0, 3.0], "short_mscale": 1.2, "long_mscale": 1.2}}),
    ("nanochat", "NanoChat", {**KV, "num_attention_heads": 2, "num_key_value_heads": 1}),
    ("minicpm3", "MiniCPM3", {**LATENT, "q_lora_rank": 6, "scale_emb": 3, "dim_model_base": 8}),
    ("flint", "Flint", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "shared_expert_intermediate_size": 10, "mlp_only_layers": [0],
                        "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    ("mellum", "Mellum", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "mlp_layer_types": ["dense", "sparse"], "sliding_window": 4,
                          "layer_types": ["sliding_attention", "full_attention"],
                          "rope_parameters": {"full_attention": {**YARN}, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}),
    ("hy_v3", "HYV3", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4}),
    ("mistral4", "Mistral4", {**SMALL_EXPERTS, **LATENT, **GROUPS, "q_lora_rank": 6, "routed_scaling_factor": 1.5,
                              "rope_parameters": {**MINISTRAL, "original_max_position_embeddings": 3}}),
    ("granite_swa", "GraniteSWA", {**KV, **GRANITE, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"],
                                   "layer_rope_theta": [0, 100.0]}),
    ("granitemoe_swa", "GraniteMoeSWA", {**KV, **GRANITE, "num_local_experts": 4, "shared_intermediate_size": 20, "sliding_window": 4,
                                         "layer_types": ["full_attention", "sliding_attention"], "layer_rope_theta": [500.0, 100.0]}),
    ("afmoe", "Afmoe", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "sliding_window": 4, "route_scale": 1.5, "mup_enabled": True,
                        "layer_types": ["sliding_attention", "full_attention"]}),
    ("cohere2_moe", "Cohere2Moe", {**KV, "head_dim": 8, "logit_scale": 0.25, "num_experts": 4, "sliding_window": 4, "num_shared_experts": 2,
                                   "layer_types": ["sliding_attention", "full_attention"]}),
    ("axk1", "AXK1", {**SMALL_EXPERTS, **LATENT, **GROUPS, "q_lora_rank": 6, "mlp_layer_types": ["dense", "sparse"]}),
    # The last two layers use the keys of earlier layers of their type.
    ("gemma3n", "Gemma3nText", {**LAYERED, "intermediate_size": [24, 24, 20, 20], "activation_sparsity_pattern": [0.8, 0.0, 0.0, 0.6],
                                "altup_num_inputs": 3, "altup_active_idx": 1, "laurel_rank": 4, "vocab_size_per_layer_input": 28}),
    ("gemma4", "Gemma4Text", {**LAYERED, "use_double_wide_mlp": True, "global_head_dim": 12, "vocab_size_per_layer_input": VOCABULARY}),
    # Keys are values in layers without a window, and experts are next to the MLPs.
    ("gemma4_experts", "Gemma4Text", {**KV, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
                                      "hidden_size_per_layer_input": 0, "global_head_dim": 12, "attention_k_eq_v": True,
                                      "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                                      "moe_intermediate_size": 12, "final_logit_softcapping": 3.0}),
    ("laguna", "Laguna", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "shared_expert_intermediate_size": 10, "sliding_window": 4,
                          "layer_types": ["full_attention", "sliding_attention"], "num_attention_heads_per_layer": [2, 4],
                          "moe_routed_scaling_factor": 1.5}),
    ("laguna_features", "Laguna", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_experts": 4, "shared_expert_intermediate_size": 10,
                                   "gating": "per-element", "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    ("lfm3", "Lfm3", {**KV, "head_dim": 8, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"],
                      "sliding_window": 4, "conv_bias": True, "conv_L_cache": 3}),
    ("dbrx", "Dbrx", {"d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.3, "rope_theta": 10000.0},
                      "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2}}),
    ("dbrx_plain", "Dbrx", {"d_model": 16, "n_heads": 4, "n_layers": 1, "max_seq_len": 32, "attn_config": {"rope_theta": 500.0, "clip_qkv": 8.0},
                            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                            "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 3, "moe_top_k": 2, "moe_normalize_expert_weights": None,
                                           "ffn_act_fn": {"name": "gelu"}}}),
    ("recurrent_gemma", "RecurrentGemma", {"num_key_value_heads": 1, "lru_width": 24, "conv1d_width": 3, "attention_window_size": 4,
                                           "block_types": ["recurrent", "attention"], "logits_soft_cap": 3.0}),
    ("minimax", "MiniMax", {**KV, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 4, "num_hidden_layers": 3,
                            "layer_types": ["linear_attention", "full_attention", "linear_attention"], "full_attn_alpha_factor": 1.5, "full_attn_beta_factor": 0.7,
                            "linear_attn_alpha_factor": 1.3, "linear_attn_beta_factor": 0.8, "mlp_alpha_factor": 1.7, "mlp_beta_factor": 0.9}),
    ("bailing_hybrid", "BailingHybrid", {**SMALL_EXPERTS, **LATENT, "num_hidden_layers": 3, "num_local_experts": 8, "n_group": 4, "topk_group": 2,
                                         "head_dim": 6, "short_conv_kernel_size": 3, "first_k_dense_replace": 1, "q_lora_rank": 6,
                                         "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    # Rates without a bound, and queries without a latent.
    ("bailing_hybrid_plain", "BailingHybrid", {**SMALL_EXPERTS, **LATENT, "num_local_experts": 4, "n_group": 1, "topk_group": 1, "head_dim": 6,
                                               "kda_safe_gate": False, "first_k_dense_replace": 0, "layer_group_size": 2}),
    ("longcat_flash", "LongcatFlash", {**LATENT, "head_dim": 4, "num_layers": 2, "ffn_hidden_size": 24, "q_lora_rank": 6, "moe_topk": 3, "n_routed_experts": 4,
                                       "zero_expert_num": 3, "expert_ffn_hidden_size": 12, "routed_scaling_factor": 1.5}),
    ("beam", "Beam", {**KV, **SMALL_EXPERTS, "head_dim": 8, "num_hidden_layers": 3, "num_experts": 8, "n_group": 4, "topk_group": 2,
                      "sliding_window": 4, "final_logit_softcapping": 3.0, "mlp_layer_types": ["dense", "sparse", "sparse"],
                      "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    ("diffllama", "DiffLlama", {**KV, "head_dim": 8, "attention_bias": True}),
    ("diffllama_heads", "DiffLlama", {"num_key_value_heads": 4}),
    ("doge", "Doge", KV),
    # Queries see four positions.
    ("doge_sparse", "Doge", {**KV, "keep_window_size": 4, "attention_bias": True, "mlp_bias": True}),
    ("axk2", "AXK2", {**SMALL_EXPERTS, **LATENT, **INDEXER, "n_routed_experts": 4, "gated_norm_rank": 3, "mlp_layer_types": ["dense", "sparse"]}),
    # Two shared blocks, of which the first one is in two layers.
    ("zamba2", "Zamba2", {"num_hidden_layers": 5, "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
                          "num_mem_blocks": 2, "use_shared_attention_adapter": True, "adapter_rank": 3, "use_mem_rope": True, "mamba_d_state": 6,
                          "mamba_d_conv": 3, "mamba_ngroups": 2, "n_mamba_heads": 4, "chunk_size": 4, "use_long_context": False}),
    ("zamba2_plain", "Zamba2", {"num_hidden_layers": 2, "layers_block_type": ["hybrid", "linear_attention"], "adapter_rank": 3, "mamba_d_state": 6,
                                "n_mamba_heads": 4, "chunk_size": 4, "add_bias_linear": True, "tie_word_embeddings": False}),
    ("modernbert_decoder", "ModernBertDecoder", {"num_hidden_layers": 3, "local_attention": 8, "global_attn_every_n_layers": 2, "mlp_bias": True}),
]


def sizes_of(kind):
    """The sizes of the tiny models, without the names that a class does not have."""
    other = {
        "GPT2": DECODER,
        "GPTJ": DECODER,
        "GPTBigCode": DECODER,
        "CodeGen": DECODER,
        "OpenAIGPT": DECODER,
        "GPTNeoXJapanese": ["intermediate_size"],
        "GPTNeo": SIZES,
        "Falcon": ["intermediate_size"],
        "OPT": ["intermediate_size"],
        "Bloom": ["intermediate_size", "num_hidden_layers", "num_attention_heads"],
        "Mpt": SIZES,
        "Mamba": SIZES,
        "FalconMamba": SIZES,
        "Mamba2": SIZES,
        "NemotronH": ["num_hidden_layers"],
        "XGLM": SIZES,
        "Dbrx": [*SIZES, "max_position_embeddings"],
        "LongcatFlash": ["intermediate_size", "num_hidden_layers"],
    }.get(kind, [])
    return {key: value for key, value in DECODER.items() if key not in other}


def families(names):
    for name, kind, fields in FAMILIES:
        if names and name not in names:
            continue
        torch.manual_seed(1)
        config = getattr(transformers, f"{kind}Config")(**{**sizes_of(kind), **fields})
        # Some configurations are of a class with another name.
        class_name = {"Llama4Text": "Llama4", "Qwen3_5Text": "Qwen3_5", "Qwen3_5MoeText": "Qwen3_5Moe", "Gemma3nText": "Gemma3n", "Gemma4Text": "Gemma4",
                      "CohereCompassText": "CohereCompass"}.get(kind, kind)
        model = getattr(transformers, f"{class_name}ForCausalLM", transformers.AutoModelForCausalLM.from_config)
        decoder(name, model, config, max_shard_size="10GB")
        if kind == "LongcatFlash":
            without_unused_gates(OUT / name, fields["n_routed_experts"])


def without_unused_gates(folder, experts):
    """Removes the gates of experts that return their input, which published files do not have."""
    arrays = load_file(folder / "model.safetensors")
    used = {key: value for key, value in arrays.items() if int((re.findall(r"experts\.(\d+)\.", key) or [0])[0]) < experts}
    save_file(used, folder / "model.safetensors", metadata={"format": "pt"})


TEXT = {**DECODER, **KV, "rope_theta": 5000.0}
IMAGES = {"image_token_id": 30, "video_token_id": 31, "vision_start_token_id": 28, "vision_end_token_id": 29}
MROPE = {"type": "mrope", "mrope_section": [2, 1, 1]}
OLDER = {**IMAGES, **TEXT, "hidden_size": 32, "rope_scaling": MROPE, "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 2}
SMALL_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
TOWER = {"depth": 1, "hidden_size": 16, "num_heads": 2}
TOWER_SIZES = {name: size for name, size in SMALL_TOWER.items() if not name.endswith("_size") or name in SIZES}
SIGLIP = {"model_type": "siglip_vision_model", **SMALL_TOWER}
SAM = {"hidden_size": 16, "output_channels": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64, "patch_size": 16,
       "mlp_dim": 16, "window_size": 2, "global_attn_indexes": [0]}
SOUND = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
HEARING = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_mel_bins": 8}
QFORMER = {**SMALL_TOWER, "encoder_hidden_size": 16, "vocab_size": 8, "max_position_embeddings": 8}
GLM = {**TEXT, "rope_scaling": {"type": "default", "mrope_section": [1, 1, 0]}}
GLM_TOWER = {"depth": 1, "hidden_size": 16, "num_heads": 2, "image_size": 8, "patch_size": 4, "out_hidden_size": 16, "intermediate_size": 16}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_key_head_dim": 6, "linear_value_head_dim": 5, "head_dim": 16}
# The fields of `config.json` as published files have them.
TEXTS = {
    "molmo2": {"image_patch_id": 30, "text_config": {**TEXT, "head_dim": 8, "additional_vocab_size": 3},
               "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
                                 "image_size": [8, 8]},
               "adapter_config": {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16,
                                  "vision_feature_layer": [-1]}},
    "emu3": {"text_config": {**TEXT, "model_type": "emu3_text_model"}, "vocabulary_map": {"<image>": 30},
             "vq_config": {"codebook_size": 8, "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "attn_resolutions": []}},
    "phi4_multimodal": {**TEXT, "vision_config": {**SMALL_TOWER, "crop_size": 8}, "audio_config": {"hidden_size": 16, "intermediate_size": 16, "num_blocks": 1,
                        "num_attention_heads": 2, "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "input_size": 8,
                        "nemo_conv_channels": 16, "conv_glu_type": "swish"}},
    "qwen2_vl": {**OLDER, "tie_word_embeddings": True, "vision_config": {**TOWER, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 1}},
    "qwen2_5_vl": {**OLDER, "vision_config": {**TOWER, "out_hidden_size": 32, "intermediate_size": 16, "fullatt_block_indexes": [0]}},
    "qwen3_vl": {**IMAGES, "tie_word_embeddings": True,
                 "text_config": {**TEXT, "head_dim": 8, "rope_scaling": {**MROPE, "mrope_interleaved": True, "type": "default"}},
                 "vision_config": {**TOWER, "out_hidden_size": 16, "intermediate_size": 16, "deepstack_visual_indexes": [],
                                   "num_position_embeddings": 16}},
    "qwen3_vl_moe": {**IMAGES,
                     "text_config": {**TEXT, **SMALL_EXPERTS, "num_experts": 4, "head_dim": 8,
                                     "rope_scaling": {**MROPE, "mrope_interleaved": True, "type": "default"}},
                     "vision_config": {**TOWER, "out_hidden_size": 16, "intermediate_size": 16, "deepstack_visual_indexes": [],
                                       "num_position_embeddings": 16}},
    "llava_next": {"image_grid_pinpoints": [[8, 8]], "image_token_index": 30, "text_config": {**TEXT, "model_type": "mistral"},
                   "vision_config": {"model_type": "clip_vision_model", **SMALL_TOWER}},
    "llava_onevision": {"image_grid_pinpoints": [[8, 8]], "image_token_index": 30, "video_token_index": 31,
                        "text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": {"model_type": "siglip_vision_model", **SMALL_TOWER}},
    "internvl": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "qwen2"},
                 "vision_config": {"model_type": "internvl_vision", **SMALL_TOWER}},
    "aya_vision": {"image_token_index": 30, "text_config": {**TEXT, "model_type": "cohere2", "layer_types": ATTENTION},
                   "vision_config": {"model_type": "siglip_vision_model", **SMALL_TOWER}},
    "smolvlm": {"image_token_id": 30, "scale_factor": 1, "text_config": {**TEXT, "model_type": "llama"},
                "vision_config": {"model_type": "smolvlm_vision", **SMALL_TOWER}},
    "cohere2_vision": {"image_token_id": 30, "alignment_intermediate_size": 16, "downsample_factor": 1,
                       "text_config": {**TEXT, "model_type": "cohere2", "layer_types": ATTENTION},
                       "vision_config": {"model_type": "siglip_vision_model", **SMALL_TOWER}},
    "lfm2_vl": {"image_token_id": 30, "projector_hidden_size": 16, "downsample_factor": 1,
                "text_config": {**TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
                "vision_config": {"model_type": "siglip2_vision_model", "num_patches": 4,
                                  **{name: size for name, size in SMALL_TOWER.items() if name != "image_size"}}},
    "llava_next_video": {"image_grid_pinpoints": [[8, 8]], "image_token_index": 30, "video_token_index": 31,
                         "text_config": {**TEXT, "model_type": "llama"}, "vision_config": {"model_type": "clip_vision_model", **SMALL_TOWER}},
    "vipllava": {"image_token_index": 30, "vision_feature_layers": [-1], "text_config": {**TEXT, "model_type": "llama"},
                 "vision_config": {"model_type": "clip_vision_model", **SMALL_TOWER}},
    "exaone4_5": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "exaone4", "layer_types": ATTENTION},
                  "vision_config": {**TOWER, "num_key_value_heads": 1, "out_hidden_size": 16, "intermediate_size": 16, "fullatt_block_indexes": [0]}},
    "lighton_ocr": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 8},
                    "vision_config": {"model_type": "pixtral", **SMALL_TOWER, "head_dim": 8}},
    "got_ocr2": {"image_token_index": 30, "text_config": {**TEXT, "model_type": "qwen2"},
                 "vision_config": {"hidden_size": 16, "output_channels": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64,
                                   "patch_size": 16, "mlp_dim": 16, "window_size": 2, "global_attn_indexes": [0]}},
    "idefics2": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "mistral", "sliding_window": 4},
                 "vision_config": {"model_type": "idefics2_vision", **SMALL_TOWER},
                 "perceiver_config": {"hidden_size": 16, "resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2,
                                      "resampler_head_dim": 8, "num_key_value_heads": 1}},
    "video_llava": {"image_token_index": 30, "video_token_index": 31, "text_config": {**TEXT, "model_type": "llama"},
                    "vision_config": {"model_type": "clip_vision_model", **SMALL_TOWER}},
    "ovis2": {"image_token_id": 30, "visual_indicator_token_ids": [28, 29], "hidden_size": 16, "vocab_size": VOCABULARY,
              "text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": {**SMALL_TOWER, "vocab_size": 8, "num_visual_indicator_tokens": 2}},
    "video_llama_3": {"image_token_id": 30, "video_token_id": 31, "text_config": {**TEXT, "model_type": "qwen2"},
                      "vision_config": {**{name: size for name, size in SMALL_TOWER.items() if name != "image_size"}}},
    "deepseek_vl": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "llama"},
                    "vision_config": {"model_type": "siglip_vision_model", **SMALL_TOWER}},
    "gemma4_images": {"model_type": "gemma4", "image_token_id": 30, "audio_token_id": 31, "video_token_id": 29, "boi_token_id": 28, "eoi_token_id": 28,
                      "boa_token_id": 28, "eoa_token_index": 28, "audio_config": None,
                      "text_config": {**DECODER, **LAYERED, "model_type": "gemma4_text", "num_hidden_layers": 2, "num_kv_shared_layers": 0,
                                      "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 12,
                                      "final_logit_softcapping": 3.0, "vocab_size_per_layer_input": VOCABULARY},
                      "vision_config": {"model_type": "gemma4_vision", "head_dim": 8, "num_key_value_heads": 2, "position_embedding_size": 8,
                                        **{name: size for name, size in SMALL_TOWER.items() if name != "image_size"}}},
    # Keys are values in layers without a window.
    "gemma4_unified": {"image_token_id": 30, "audio_token_id": 31, "video_token_id": 29, "boi_token_id": 28, "eoi_token_id": 28,
                       "boa_token_id": 28, "eoa_token_index": 28,
                       "text_config": {**TEXT, "model_type": "gemma4_unified_text", "head_dim": 8, "sliding_window": 4,
                                       "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 12, "attention_k_eq_v": True,
                                       "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0},
                       "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 16, "patch_size": 4, "mm_posemb_size": 8, "output_proj_dims": 16}},
    "mistral4_images": {"model_type": "mistral3", "image_token_index": 30, "spatial_merge_size": 1,
                 "text_config": {**DECODER, **SMALL_EXPERTS, **LATENT, "model_type": "mistral4", "n_routed_experts": 4, "q_lora_rank": 6},
                 "vision_config": {"model_type": "pixtral", **SMALL_TOWER, "head_dim": 8}},
    "paligemma": {"image_token_index": 30, "projection_dim": 16, "vision_config": {**SIGLIP, "projection_dim": 16},
                  "text_config": {**TEXT, "model_type": "gemma2", "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 6,
                                  "final_logit_softcapping": 3.0}},
    "shieldgemma2": {"image_token_index": 30, "mm_tokens_per_image": 4, "vision_config": SIGLIP, "yes_token_index": 5, "no_token_index": 6,
                     "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4,
                                     "layer_types": ["sliding_attention", "full_attention"]}},
    "janus": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "llama"},
              "vision_config": {"model_type": "janus_vision_model", **SMALL_TOWER, "projection_dim": 16},
              "vq_config": {"model_type": "janus_vqgan", "embed_dim": 4, "num_embeddings": 8, "base_channels": 32, "channel_multiplier": [1],
                            "num_res_blocks": 1, "projection_dim": 16, "image_token_embed_dim": 16}},
    "deepseek_vl_hybrid": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "llama"}, "vision_config": SIGLIP,
                           "high_res_vision_config": {"model_type": "sam_vision_model", **SAM}},
    "hyperclovax_vision_v2": {"image_token_id": 30, "video_token_id": 31,
                              "text_config": {**TEXT, **GRANITE, "model_type": "hyperclovax", "head_dim": 8},
                              "vision_config": {"model_type": "qwen2_5_vl_vision", **TOWER, "out_hidden_size": 16, "intermediate_size": 16,
                                                "fullatt_block_indexes": [0]}},
    "kimi_k25": {"image_token_id": 30, "projection_hidden_size": 16,
                 "text_config": {**DECODER, **SMALL_EXPERTS, **GROUPS, **LATENT, "model_type": "kimi_k2", "q_lora_rank": 6, "n_routed_experts": 4,
                                 "n_group": 2, "topk_group": 1},
                 "vision_config": {**TOWER_SIZES, "patch_size": 4, "init_pos_emb_height": 4, "init_pos_emb_width": 4}},
    "lfm3_vl": {"image_token_id": 30, "projector_hidden_size": 16, "downsample_factor": 1,
                "text_config": {**TEXT, "model_type": "lfm3", "head_dim": 8, "layer_types": ["conv", "full_attention"], "sliding_window": 4},
                "vision_config": {**TOWER_SIZES, "patch_size": 4, "num_patches": 4}},
    "minicpmv4_6": {"image_token_id": 30, "video_token_id": 31, "text_config": {**TEXT, **LINEAR, "model_type": "qwen3_5_text"},
                    "vision_config": SMALL_TOWER},
    "minicpmv4_7": {"image_token_id": 30, "video_token_id": 31, "text_config": {**TEXT, **LINEAR, "model_type": "qwen3_5_text"},
                    "vision_config": SMALL_TOWER},
    "minicpm_ocr": {"image_token_id": 30, "video_token_id": 31, "text_config": {**TEXT, **LINEAR, "model_type": "qwen3_5_text"},
                    "vision_config": SMALL_TOWER},
    "pp_chart2table": {"image_token_index": 30, "text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": SAM},
    "qianfan_ocr": {"image_token_id": 30, "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 8},
                    "vision_config": {"model_type": "qianfan_ocr_vision", **SMALL_TOWER}},
    "fuyu": {**DECODER, "hidden_size": 32, "image_size": 8, "patch_size": 2,
             "text_config": {**DECODER, "hidden_size": 32, "model_type": "persimmon"}},
    "glm4v": {**IMAGES, "text_config": {**GLM, "model_type": "glm4v_text"}, "vision_config": GLM_TOWER},
    "glm46v": {**IMAGES, "text_config": {**GLM, "model_type": "glm4v_text", "partial_rotary_factor": 0.5,
                                           "rope_scaling": {"type": "default", "mrope_section": [1, 0, 0]}},
               "vision_config": {"model_type": "glm4v_vision", **GLM_TOWER}},
    "glmga": {**IMAGES, "text_config": {**GLM, "model_type": "glm4v_text"}, "vision_config": {"model_type": "glm4v_vision", **GLM_TOWER}},
    "glm4v_moe": {**IMAGES, "vision_config": GLM_TOWER,
                  "text_config": {**GLM, **SMALL_EXPERTS, **GROUPS, "model_type": "glm4v_moe_text", "n_routed_experts": 4, "n_group": 2,
                                  "topk_group": 1, "rope_scaling": {"type": "default", "mrope_section": [1, 0, 0]}}},
    "glm_ocr": {**IMAGES, "text_config": {**GLM, "model_type": "glm_ocr_text", "head_dim": 8, "rope_scaling": {**MROPE, "type": "default"}}, "vision_config": GLM_TOWER},
    "paddleocr_vl": {**IMAGES, "vision_config": SMALL_TOWER, **TEXT, "use_bias": True, "head_dim": 8, "rope_scaling": {**MROPE, "type": "default"}},
    "granite_docling": {"image_token_id": 30, "text_config": {**TEXT, **GRANITE, "model_type": "granite_docling_text"},
                        "vision_config": {**SMALL_TOWER, "out_hidden_size": 16, "scale_factor": 2, "deepstack_visual_indexes": [],
                                          "use_fine_route": False}},
    "hunyuan_vl": {"image_token_id": 30, **TEXT, "head_dim": 8, "vision_config": SMALL_TOWER,
                   "rope_scaling": {"type": "xdrope", "alpha": 10.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                    "mscale_all_dim": 1.0, "xdrope_section": [1, 1, 1, 1]}},
    "cosmos3_omni": {**IMAGES, "text_config": {**TEXT, "model_type": "qwen3_vl_text", "head_dim": 8,
                                               "rope_scaling": {**MROPE, "mrope_interleaved": True, "type": "default"}},
                     "vision_config": {**TOWER, "out_hidden_size": 16, "intermediate_size": 16, "deepstack_visual_indexes": [],
                                       "num_position_embeddings": 16}},
    "qwen2_5_omni": {"model_type": "qwen2_5_omni_thinker", "image_token_index": 30,
                     "text_config": {**TEXT, "model_type": "qwen2_5_omni_text", "rope_scaling": {"mrope_section": [1, 1, 0], "type": "default"}},
                     "vision_config": {**TOWER, "out_hidden_size": 16, "intermediate_size": 16, "fullatt_block_indexes": [0]},
                     "audio_config": {**SOUND, "output_dim": 16}},
    "qwen3_omni_moe_thinker": {"text_config": {**TEXT, **SMALL_EXPERTS, "model_type": "qwen3_omni_moe_text", "num_experts": 4, "head_dim": 8,
                                               "rope_scaling": {**MROPE, "mrope_interleaved": True, "type": "default"}},
                               "vision_config": {**TOWER, "out_hidden_size": 16, "intermediate_size": 16, "deepstack_visual_indexes": [],
                                                 "num_position_embeddings": 16},
                               "audio_config": {**SOUND, "output_dim": 16, "downsample_hidden_size": 4}},
    "aria": {"image_token_index": 30, "projector_patch_to_query_dict": {"4": 2},
             "text_config": {**TEXT, "model_type": "aria_text", "intermediate_size": 12, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2},
             "vision_config": {"model_type": "idefics3_vision", **SMALL_TOWER}},
    "cosmos3_edge": {**IMAGES, "text_config": {**TEXT, "head_dim": 8, "mlp_bias": True, "attention_bias": True,
                                               "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}},
                     "vision_config": {**TOWER_SIZES, "patch_size": 4, "num_patches": 4}, "projector_hidden_size": 16},
    "deepseek_ocr2": {"image_token_id": 30, "text_config": {**TEXT, **SMALL_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 2,
                                                            "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.5},
                      "vision_config": {"sam_config": {**SAM, "downsample_channels": [4, 16]},
                                        "encoder_config": {**TOWER_SIZES, "num_key_value_heads": 1}}},
    # The first layer has more heads, and the bounds differ between layers.
    "step3p7": {"image_token_id": 30,
                "text_config": {**TEXT, **SMALL_EXPERTS, "head_dim": 8, "n_routed_experts": 4, "share_expert_dim": 10, "sliding_window": 4,
                                "num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                                "num_sliding_attention_heads": 2, "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_router_scaling_factor": 1.5,
                                "swiglu_limits": [None, 0.2, 0.0], "swiglu_limits_shared": [0.3, 0.0, 0.1],
                                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
                                                    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}},
                "vision_config": SMALL_TOWER},
    # The names of published files, and entries of lists for a layer that is not read.
    "step3p7_older": {"model_type": "step3p7", "image_token_id": 30,
                      "text_config": {**{key: size for key, size in DECODER.items()}, "model_type": "step3p5", "num_hidden_layers": 3,
                                      "head_dim": 8, "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2,
                                      "moe_intermediate_size": 12, "share_expert_dims": 10, "sliding_window": 4, "moe_layers_enum": "1,2",
                                      "num_nextn_predict_layers": 1, "moe_router_scaling_factor": 1.5,
                                      "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
                                      "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 2,
                                                                  "num_attention_groups": 2, "head_dim": 8},
                                      "swiglu_limits": [0.0, 0.0, 0.2, 0.3], "swiglu_limits_shared": [0.0, 0.1, 0.0, 0.4],
                                      "rope_theta": [500.0, 100.0, 100.0, 100.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
                                      "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                       "original_max_position_embeddings": 8}},
                      "vision_config": SMALL_TOWER},
    "instructblip": {"num_query_tokens": 2, "image_token_index": 30,
                     "text_config": {**{key: size for key, size in DECODER.items() if key != "intermediate_size"}, "model_type": "opt", "ffn_dim": 24,
                                     "word_embed_proj_dim": 16},
                     "vision_config": SMALL_TOWER, "qformer_config": {**QFORMER}},
    "instructblipvideo": {"num_query_tokens": 2, "video_token_index": 30,
                          "text_config": {**TEXT, "model_type": "llama"}, "vision_config": SMALL_TOWER, "qformer_config": {**QFORMER}},
    "blip_2": {"model_type": "blip-2", "num_query_tokens": 2, "image_token_index": 30, "image_text_hidden_size": 16,
               "text_config": {**{key: size for key, size in DECODER.items() if key != "intermediate_size"}, "model_type": "opt", "ffn_dim": 24,
                               "word_embed_proj_dim": 16},
               "vision_config": SMALL_TOWER, "qformer_config": {**QFORMER}},
    "granite4_vision": {"image_token_index": 30, "image_grid_pinpoints": [[8, 8]], "deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2",
                        "text_config": {**TEXT, **GRANITE, "model_type": "granite"}, "vision_config": {**SIGLIP, "hidden_size": 128},
                        "qformer_config": {**QFORMER, "hidden_size": 128, "encoder_hidden_size": 128, "model_type": "blip_2_qformer"}},
    # transformers needs another package for the images of these types, so only the text is made.
    "fast_vlm": {"image_token_index": 30, "text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": {"model_type": "timm_wrapper"}},
    "perception_lm": {"image_token_id": 30, "vision_use_cls_token": False, "text_config": {**TEXT, "model_type": "llama"},
                      "vision_config": {"model_type": "timm_wrapper"}},
    "ernie4_5_vl_moe": {**IMAGES, "image_start_token_id": 28, "image_end_token_id": 29, "video_start_token_id": 28, "video_end_token_id": 29,
                        "text_config": {**TEXT, "hidden_size": 32, "moe_intermediate_size": [12, 6], "moe_num_experts": 4, "moe_k": 2,
                                        "rope_parameters": {"rope_theta": 5000.0, "mrope_section": [1, 1, 2]}},
                        "vision_config": {**TOWER, "intermediate_size": 16, "patch_size": 4}},
    "nemotron_h_omni": {"image_token_id": 30, "projector_hidden_size": 16, "vision_hidden_size": 16,
                        "text_config": {**{k: v for k, v in DECODER.items() if k != "num_hidden_layers"}, **SMALL_NEMOTRON, "model_type": "nemotron_h"},
                        "vision_config": {"model_type": "radio", **SMALL_TOWER, "video_temporal_patch_size": 2}, "audio_config": None},
    # Half of the layers attend to images.
    "mllama": {"image_token_index": 32, "text_config": {**TEXT, "num_hidden_layers": 4, "cross_attention_layers": [1, 2],
                                                        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                                                                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8}},
               "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
                                 "image_size": 8, "patch_size": 4, "vision_output_dim": 32, "max_num_tiles": 1,
                                 "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]]}},
    **{kind: {"audio_token_index": 30, "text_config": {**TEXT, "model_type": text}, "audio_config": {**SOUND, **sizes}}
       for kind, text, sizes in [("qwen2_audio", "qwen2", {"num_mel_bins": 8, "max_source_positions": 10})]},
    **{kind: {"audio_token_id": 30, "text_config": {**TEXT, **fields, "model_type": text}, "audio_config": {**HEARING, **sizes}}
       for kind, text, fields, sizes in [
           # The other fields have other defaults than in the class of the text.
           ("voxtral", "llama", {"head_dim": 8, "rms_norm_eps": 0.001}, {"intermediate_size": 64}),
           ("audioflamingo3", "qwen2", {}, {}),
           ("musicflamingo", "qwen2", {}, {"model_type": "audioflamingo3_encoder"}),
           ("glmasr", "llama", {"rms_norm_eps": 0.001, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}, {"intermediate_size": 64}),
           ("moss_transcribe_diarize", "qwen3", {"head_dim": 8}, {"max_source_positions": 10}),
       ]},
    "qwen3_asr": {"audio_token_id": 30, "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 8},
                  "audio_config": {**SOUND, "num_mel_bins": 8, "output_dim": 16, "downsample_hidden_size": 4}},
    "fun_asr_nano": {"audio_token_id": 30, "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 8},
                     "audio_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                                      "num_timestamp_prediction_layers": 1, "num_mel_bins": 4},
                     "adaptor_config": {"hidden_size": 16, "intermediate_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1,
                                        "projector_hidden_size": 16}},
    "vibevoice_asr": {"audio_token_id": 30, "text_config": {**TEXT, "model_type": "qwen2"},
                      **{f"{part}_tokenizer_encoder_config": {"hidden_size": 4, "num_filters": 2, "depths": [1, 1], "downsampling_ratios": [2]}
                         for part in ["semantic", "acoustic"]}},
    **{kind: {"audio_token_index": 30, "text_config": {**TEXT, **GRANITE, "model_type": "granite"}, "window_size": 4, "downsample_rate": 2,
              "encoder_config": {"input_dim": 8, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "output_dim": 4, "context_size": 4,
                                 "max_pos_emb": 8, "feedforward_mult": 1, "dim_head": 8},
              "projector_config": {**QFORMER, "model_type": "blip_2_qformer"}}
       for kind in ["granite_speech", "granite_speech_plus"]},
    "hunyuan_alpha": {**TEXT, "model_type": "hunyuan_v1_dense", "head_dim": 8,
                      "rope_scaling": {"type": "dynamic", "alpha": 10.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                       "mscale_all_dim": 1.0}},
}


# The starts of names of arrays for images and sounds.
IMAGE_ARRAYS = re.compile(r"^(model\.)?(embed_tokens_extend\.\w+|vision|visual|vit\.|image|audio|aligner|projector|connector|vqmodel|generation|merger|mlp_AR|mlp1|high_res|"
                          r"qformer|query_tokens|language_projection|resampler|layerwise|spatial|mm_projector|multi_modal_projector|embed_vision|embed_audio|blocks|patch_embed|pos_embed|"
                          r"encoder|adaptor|acoustic|semantic|(language_model\\.)?layers\\.[12]\\.cross)")


def remove_images(folder):
    """Removes the arrays of images except for the smallest one of each part, because the decoder ignores them."""
    path = folder / "model.safetensors"
    arrays = load_file(path)
    smallest = {}
    for name, array in sorted(arrays.items(), key=lambda item: item[1].numel()):
        if found := IMAGE_ARRAYS.match(name):
            smallest.setdefault(found.group(), name)
    kept = {name: array for name, array in arrays.items() if not IMAGE_ARRAYS.match(name) or name in smallest.values()}
    save_file(kept, path, {"format": "pt"})


def only_text(name, fields, text):
    """Saves the decoder of a model of text and images with the names that it has there."""
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model)
    save(name, model, {"input_ids": torch.randint(0, 28, (2, 9))})
    arrays = load_file(OUT / name / "model.safetensors")
    arrays = {re.sub(r"^model\.", "model.language_model.", key): array for key, array in arrays.items()}
    save_file({**arrays, "model.multi_modal_projector.linear_1.bias": torch.ones(2)}, OUT / name / "model.safetensors", {"format": "pt"})
    (OUT / name / "config.json").write_text(text)


def class_of_texts(config, is_wrapper):
    """The class that writes texts about images or sound, or only texts."""
    classes = [transformers.AutoModelForImageTextToText, transformers.AutoModelForSpeechSeq2Seq, transformers.AutoModelForSeq2SeqLM]
    kinds = [kind for kind in classes if type(config) in kind._model_mapping]
    return [*kinds, transformers.AutoModelForCausalLM][0 if is_wrapper else -1]


def texts(names):
    """Saves models of text and images with the logits of a text, and configurations that transformers writes otherwise."""
    for name, fields in TEXTS.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        text = json.dumps({"model_type": name, **fields}, indent=2) + "\n"
        (folder / "config.json").write_text(text)
        if fields.get("vision_config", {}).get("model_type") == "timm_wrapper":
            only_text(name, fields["text_config"], text)
            continue
        config = transformers.AutoConfig.from_pretrained(folder)
        config._attn_implementation = "eager"
        is_wrapper = "vision_config" in fields or "text_config" in fields
        model = class_of_texts(config, is_wrapper).from_config(config)
        randomize(model)
        inputs = {"input_ids": torch.randint(0, 28, (2, 9))}
        if name in ("blip_2", "instructblip", "instructblipvideo"):
            # The entire model needs an image.
            model.forward = model.language_model.forward
        save(name, model, inputs)
        (folder / "config.json").write_text(text)
        if is_wrapper:
            remove_images(folder)
        if name == "shieldgemma2":
            # The class returns only the logits of two tokens.
            case = load_file(folder / "case.safetensors")
            with torch.no_grad():
                features = model.model(input_ids=case["input_ids"].long()).last_hidden_state
                logits = features @ model.get_input_embeddings().weight.T
            save_file({**case, "logits": logits.contiguous()}, folder / "case.safetensors")
        if name == "qwen2_5_omni":
            # As a part of the entire model.
            (folder / "config.json").write_text(json.dumps({"model_type": name, "thinker_config": fields}, indent=2) + "\n")
            arrays = load_file(folder / "model.safetensors")
            arrays = {f"thinker.{key}": array for key, array in arrays.items()}
            save_file({**arrays, "talker.model.norm.weight": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})


ENCODER = {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "pad_token_id": 1, "num_labels": 3}
DISTILLED = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4}
# Four layers of two groups of two blocks.
SHARED = {"embedding_size": 6, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
DISTANCES = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1}
# Every position sees a token that is no padding.
MODERN = {**SIZES, "num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 8, "pad_token_id": 1}
MOBILE = {**SIZES, "embedding_size": 6, "intra_bottleneck_size": 8, "num_feedforward_networks": 3}
# The folder, the class, and the sizes.
ENCODERS = [
    ("luke", "LukeForMaskedLM", {**ENCODER, **SIZES, "entity_vocab_size": 5, "entity_emb_size": 4}),
    ("modernbert", "ModernBertForMaskedLM", {**MODERN, "norm_bias": True}),
    ("modernbert_model", "ModernBertModel", MODERN),
    ("modernbert_classes", "ModernBertForSequenceClassification", {**MODERN, "classifier_pooling": "mean", "classifier_bias": True}),
    ("modernbert_tokens", "ModernBertForTokenClassification", {**MODERN, "attention_bias": True, "mlp_bias": True}),
    ("eurobert", "EuroBertForMaskedLM", {**SIZES, **KV}),
    ("mistral_not_causal", "MistralForCausalLM", {**SIZES, **KV, "is_causal": False, "sliding_window": 3}),
    ("gemma3_encoder", "Gemma3TextModel", {**SIZES, **KV, "head_dim": 8, "use_bidirectional_attention": True, "sliding_window": 4,
                                           "query_pre_attn_scalar": 6, "layer_types": ["sliding_attention", "full_attention"]}),
    ("bert_model", "BertModel", SIZES),
    ("bert_classes", "BertForSequenceClassification", SIZES),
    ("bert_tokens", "BertForTokenClassification", SIZES),
    ("roberta", "RobertaForMaskedLM", SIZES),
    ("roberta_classes", "RobertaForSequenceClassification", SIZES),
    ("xlm_roberta_tokens", "XLMRobertaForTokenClassification", SIZES),
    ("distilbert", "DistilBertForMaskedLM", DISTILLED),
    ("camembert", "CamembertForMaskedLM", {**SIZES, "hidden_act": "relu"}),
    ("mpnet", "MPNetForMaskedLM", SIZES),
    ("mpnet_model", "MPNetModel", SIZES),
    ("mpnet_classes", "MPNetForSequenceClassification", SIZES),
    ("albert", "AlbertForMaskedLM", {**SIZES, **SHARED}),
    ("albert_classes", "AlbertForSequenceClassification", {**SIZES, "embedding_size": 6, "num_hidden_layers": 3}),
    ("convbert", "ConvBertForMaskedLM", {**SIZES, "embedding_size": 6, "conv_kernel_size": 3}),
    ("convbert_model", "ConvBertModel", {**SIZES, "embedding_size": 16, "conv_kernel_size": 5, "head_ratio": 4, "hidden_act": "relu"}),
    ("convbert_classes", "ConvBertForSequenceClassification", {**SIZES, "embedding_size": 6, "hidden_act": "relu"}),
    ("electra", "ElectraForMaskedLM", {**SIZES, "embedding_size": 6}),
    ("electra_replaced", "ElectraForPreTraining", {**SIZES, "embedding_size": 16}),
    ("electra_classes", "ElectraForSequenceClassification", {**SIZES, "embedding_size": 6}),
    ("nomic_bert", "NomicBertForMaskedLM", {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    ("nomic_bert_model", "NomicBertModel", SIZES),
    ("gte", "GteForSequenceClassification", {**SIZES, "type_vocab_size": 0}),
    ("gte_model", "GteModel", SIZES),
    ("deberta_v2", "DebertaV2ForMaskedLM", {**SIZES, **DISTANCES}),
    ("deberta_v2_classes", "DebertaV2ForSequenceClassification", {**SIZES, **DISTANCES, "position_buckets": 4, "share_att_key": True,
                                                                 "norm_rel_ebd": "layer_norm", "position_biased_input": False}),
    ("deberta_v2_tokens", "DebertaV2ForTokenClassification", {**SIZES, **DISTANCES, "conv_kernel_size": 3, "conv_act": "gelu",
                                                             "embedding_size": 6}),
    ("distilbert_classes", "DistilBertForSequenceClassification", DISTILLED),
    ("ernie", "ErnieForMaskedLM", {**SIZES, "use_task_id": True}),
    ("ernie_classes", "ErnieForSequenceClassification", SIZES),
    ("data2vec", "Data2VecTextForMaskedLM", SIZES),
    ("roformer", "RoFormerForMaskedLM", {**SIZES, "embedding_size": 6}),
    ("roformer_classes", "RoFormerForSequenceClassification", SIZES),
    ("jina_v3", "JinaEmbeddingsV3Model", SIZES),
    ("jina_v3_masked", "JinaEmbeddingsV3ForMaskedLM", SIZES),
    ("deberta", "DebertaForMaskedLM", {**SIZES, **DISTANCES}),
    ("deberta_classes", "DebertaForSequenceClassification", {**SIZES, "relative_attention": True, "pos_att_type": "c2p|p2c",
                                                             "max_relative_positions": 5, "position_biased_input": False}),
    ("esm", "EsmForMaskedLM", {**SIZES, "position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32}),
    ("esm_absolute", "EsmForTokenClassification", {**SIZES, "position_embedding_type": "absolute", "emb_layer_norm_before": True}),
    ("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", SIZES),
    ("megatron_bert", "MegatronBertForMaskedLM", {**SIZES, "hidden_act": "relu"}),
    ("megatron_bert_classes", "MegatronBertForSequenceClassification", SIZES),
    ("xlm_roberta_xl", "XLMRobertaXLForMaskedLM", SIZES),
    # Tokens that see four, eight or all tokens.
    ("longformer", "LongformerForMaskedLM", {**SIZES, "attention_window": [4, 8]}),
    ("longformer_classes", "LongformerForSequenceClassification", {**SIZES, "attention_window": 4}),
    ("layoutlm", "LayoutLMForMaskedLM", {**SIZES, "max_2d_position_embeddings": 16}),
    ("layoutlm_classes", "LayoutLMForTokenClassification", {**SIZES, "max_2d_position_embeddings": 16}),
    ("big_bird", "BigBirdForMaskedLM", {**SIZES, "block_size": 4, "num_random_blocks": 1}),
    ("fnet", "FNetForMaskedLM", WITHOUT_HEADS),
    ("fnet_classes", "FNetForSequenceClassification", WITHOUT_HEADS),
    ("fnet_tokens", "FNetForTokenClassification", WITHOUT_HEADS),
    ("big_bird_classes", "BigBirdForSequenceClassification", {**SIZES, "attention_type": "original_full"}),
    ("mobilebert", "MobileBertForMaskedLM", MOBILE),
    # With larger weights, because logits near 0 would equal other logits.
    ("mobilebert_classes", "MobileBertForSequenceClassification", {**MOBILE, "num_feedforward_networks": 1, "initializer_range": 0.3}),
    ("mobilebert_tokens", "MobileBertForTokenClassification", {**MOBILE, "hidden_act": "gelu"}),
    ("mobilebert_model", "MobileBertModel", MOBILE),
    ("rembert", "RemBertForMaskedLM", {**SIZES, "input_embedding_size": 6, "output_embedding_size": 10}),
    ("rembert_classes", "RemBertForSequenceClassification", {**SIZES, "input_embedding_size": 16, "output_embedding_size": 10}),
]


def without_mask(model):
    """Lets a model ignore masks."""
    forward = model.forward
    model.forward = lambda attention_mask=None, **inputs: forward(**inputs)


def encoder_families(names):
    for name, kind, sizes in ENCODERS:
        if names and name not in names:
            continue
        torch.manual_seed(2)
        model = getattr(transformers, kind)
        model = model(model.config_class(**{**ENCODER, **sizes}))
        randomize(model)
        if kind == "LukeForMaskedLM":
            # The class does not tie them, but published files have equal ones.
            model.lm_head.decoder.weight.data.copy_(model.luke.embeddings.word_embeddings.weight.data)
        # Both are read as decoders, whose texts have no padding here.
        length = 7 if name in ("eurobert", "mistral_not_causal") else 4
        mask = torch.tensor([[1] * 7, [1] * length + [0] * (7 - length)])
        tokens = torch.randint(3, VOCABULARY, (2, 7)).where(mask.bool(), 1)
        inputs = {"input_ids": tokens, "attention_mask": mask}
        if kind.startswith("LayoutLM"):
            # The left and upper edges of words, and their sizes.
            edges, sizes = torch.randint(0, 8, (2, 7, 2)), torch.randint(0, 8, (2, 7, 2))
            inputs["bbox"] = torch.cat([edges, edges + sizes], 2)
        if kind.startswith("FNet"):
            # The class has no masks: padding takes part.
            without_mask(model)
        if name == "longformer":
            inputs["global_attention_mask"] = torch.tensor([[0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
        save(name, model, inputs)
    for name, source in [("sentence", "bert_model"), ("sentence_modern", "modernbert_model"), ("sentence_gemma", "gemma3_encoder")]:
        if not names or name in names:
            sentence_encoder(OUT / source, OUT / name)
    cross_encoders(names)
    # Only the folder of the sentence encoder is read.
    shutil.rmtree(OUT / "gemma3_encoder", ignore_errors=True)
    if not names or "sentence_last" in names:
        sentence_decoder(OUT / "sentence_last")


# The folder, the class, the sizes, and the fields that sentence-transformers adds with the activation function.
CROSS_ENCODERS = [
    ("cross_encoder", "BertForSequenceClassification", {**ENCODER, **SIZES, "num_labels": 1}, {}, torch.sigmoid),
    ("cross_encoder_plain", "ModernBertForSequenceClassification", {**ENCODER, **MODERN, "num_labels": 1},
     {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}}, torch.nn.Identity()),
    ("cross_encoder_decoder", "Qwen3ForSequenceClassification", {**DECODER, **KV, "head_dim": 8, "num_labels": 1, "pad_token_id": 1},
     {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}, torch.tanh),
]


def cross_encoders(names):
    """Saves models that score pairs of texts, with logits and scores."""
    for name, kind, sizes, more, function in CROSS_ENCODERS:
        if names and name not in names:
            continue
        torch.manual_seed(6)
        model = getattr(transformers, kind)
        model = model(model.config_class(**sizes))
        randomize(model)
        getattr(model, "classifier", getattr(model, "score", None)).weight.data.mul_(10)
        mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
        tokens = torch.randint(3, VOCABULARY, (2, 7)).where(mask.bool(), 1)
        inputs = {"input_ids": tokens, "attention_mask": mask}
        with torch.no_grad():
            scores = function(model(**inputs).logits)
        save(name, model, inputs, {"scores": scores})
        path = OUT / name / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}, indent=2) + "\n")


def sentence_encoder(source, folder):
    """Saves the folder of a sentence encoder as sentence-transformers lays it out, with means of tokens of unit length."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    kinds = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(kinds, indent=2))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps({**pooling, "pooling_mode_max_tokens": False}))
    case = load_file(source / "case.safetensors")
    weights = case["attention_mask"].unsqueeze(-1).float()
    means = (case["logits"] * weights).sum(1) / weights.sum(1)
    save_file({**case, "logits": torch.nn.functional.normalize(means).contiguous()}, folder / "case.safetensors")


def sentence_decoder(folder):
    """Saves a sentence encoder of a decoder, with the last tokens and weighted means of tokens, and a linear layer."""
    torch.manual_seed(3)
    config = transformers.Qwen3Config(num_key_value_heads=2, head_dim=8, **DECODER)
    config.architectures = ["Qwen3ForCausalLM"]
    model = transformers.Qwen3Model(config)
    randomize(model)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    tokens = torch.randint(3, VOCABULARY, (2, 7)).where(mask.bool(), 1)
    with torch.no_grad():
        x = model(tokens, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1) * torch.arange(1.0, 8.0).reshape(1, 7, 1)
    pooled = torch.cat([(x * weights).sum(1) / weights.sum(1), x[torch.arange(2), mask.sum(1) - 1]], 1)
    layer = torch.nn.Linear(32, 5)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    kinds = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(kinds, indent=2))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_lasttoken": True, "pooling_mode_weightedmean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps({**pooling, "pooling_mode_mean_tokens": False}))
    (folder / "2_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 5, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "2_Dense/config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": layer.weight.data, "linear.bias": layer.bias.data}, folder / "2_Dense/model.safetensors")
    with torch.no_grad():
        logits = torch.tanh(layer(pooled)).contiguous()
    arrays = {"input_ids": tokens.to(torch.int32), "attention_mask": mask.to(torch.int32), "logits": logits}
    save_file(arrays, folder / "case.safetensors")


def encoders():
    t = transformers
    labels = {i: str(i) for i in range(5)}
    vit = t.ViTConfig(image_size=8, patch_size=4, id2label=labels, label2id={v: k for k, v in labels.items()}, **SIZES)
    vit = t.ViTForImageClassification(vit)
    randomize(vit)
    save("vit", vit, {"pixel_values": torch.randn(2, 3, 8, 8)})
    bert = t.BertForMaskedLM(t.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=12, **SIZES))
    randomize(bert)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    kinds = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0]])
    save("bert", bert, {"input_ids": torch.randint(0, VOCABULARY, (2, 7)), "attention_mask": mask, "token_type_ids": kinds})


def sampling():
    """Saves logits, and which of them top-k and top-p keep."""
    logits = torch.randn(4, VOCABULARY) * 3
    kept = {
        "top_k": logits_process.TopKLogitsWarper(5),
        "top_p": logits_process.TopPLogitsWarper(0.7),
    }
    kept = {name: torch.isfinite(rule(None, logits)) for name, rule in kept.items()}
    save_file({"logits": logits, **kept}, OUT / "sampling.safetensors")


def adapter(to="adapter", **options):
    """Saves an adapter of the model `llama` by `peft`, and the logits of both."""
    # Slow to import.
    import peft

    model = transformers.LlamaForCausalLM.from_pretrained(OUT / "llama")
    rules = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "o_proj", "up_proj"], task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(model, rules).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    model.peft_config["default"].base_model_name_or_path = "llama"
    folder = OUT / to
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    tokens = torch.randint(0, VOCABULARY, (2, 9))
    with torch.no_grad():
        logits = model(tokens).logits
    save_file({"input_ids": tokens.to(torch.int32), "logits": logits}, folder / "case.safetensors")


# Ranks and factors of some layers.
PATTERNS = {"rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 1}, "alpha_pattern": {"o_proj": 5}}


def long_texts():
    """Adds texts of different lengths to models whose positions depend on the length, which become longer than the original length.
    Each text is generated alone, because transformers uses the length of the longest text for all texts of a batch."""
    for name in ["longrope", "dynamic"]:
        # With these prompts of longrope, tokens differ if a short text has the positions of a longer one, or if a cache is kept.
        torch.manual_seed(28)
        folder = OUT / name
        prompts = [torch.randint(3, VOCABULARY, (1, length)) for length in [9, 4, 2, 6]]
        rows = []
        for prompt in prompts:
            # A new model, because dynamic positions remember the length of the last text.
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=2)
            rows.append(written[:, prompt.shape[1]:])
        padded = torch.cat([torch.nn.functional.pad(prompt, (9 - prompt.shape[1], 0)) for prompt in prompts])
        arrays = {"long_prompts": padded, "long_lengths": torch.tensor([prompt.shape[1] for prompt in prompts]), "long_generated": torch.cat(rows)}
        case = load_file(folder / "case.safetensors")
        save_file({**case, **{key: value.to(torch.int32) for key, value in arrays.items()}}, folder / "case.safetensors")


def main():
    if sys.argv[1:] == ["long_texts"]:
        return long_texts()
    if sys.argv[1:] == ["adapter_patterns"]:
        torch.manual_seed(3)
        return adapter("adapter_patterns", **PATTERNS)
    if sys.argv[1:]:
        families(sys.argv[1:])
        texts(sys.argv[1:])
        return encoder_families(sys.argv[1:])
    torch.manual_seed(0)
    decoders()
    encoders()
    sampling()
    adapter()
    families([])
    texts([])
    encoder_families([])
    torch.manual_seed(3)
    adapter("adapter_patterns", **PATTERNS)
    long_texts()
    print(sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file()), "bytes")


if __name__ == "__main__":
    main()
