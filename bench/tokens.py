"""Writes GGUF files of random weights in the shapes of published decoders, and measures the tokens a second of llama.cpp with them, and
of transformers with random weights of these shapes.

    pip install gguf llama-cpp-python
    python bench/tokens.py write FOLDER                  # 0.5b and 1b, in bf16, q8_0 and q4_0
    python bench/tokens.py run FOLDER/0.5b-q4_0.gguf --threads 1
    python bench/tokens.py torch 0.5b --dtype bf16 --threads 1      # or f32, or int8 (dynamic quantization)
    cargo run --release -p shardax-bench -- --tokens FOLDER/0.5b-q4_0.gguf

`BENCH_CLOCK=cpu` measures CPU time, as in `shardax-bench`; with one thread other work hardly changes it.
"""

import argparse
import os
import pathlib
import resource
import time

PROMPT, NEW, RUNS = 256, 32, 3
# Layers, features, heads, heads of keys, features in MLPs, and tokens of Qwen2.5-0.5B and Llama-3.2-1B.
SHAPES = {"0.5b": (24, 896, 14, 2, 4864, 151936), "1b": (16, 2048, 32, 8, 8192, 128256)}
TYPES = ["bf16", "q8_0", "q4_0"]
now = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


def write(folder, shape, kind):
    import gguf
    import numpy as np

    layers, features, heads, kv_heads, hidden, vocabulary = SHAPES[shape]
    head_dim = features // heads
    quantized = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}[kind]
    writer = gguf.GGUFWriter(folder / f"{shape}-{kind}.gguf", "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(features)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    generator = np.random.default_rng(0)

    def matrix(name, rows, columns):
        values = generator.standard_normal((rows, columns), dtype=np.float32) * columns**-0.5
        writer.add_tensor(name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)

    def norm(name):
        writer.add_tensor(name, np.ones(features, np.float32))

    matrix("token_embd.weight", vocabulary, features)
    norm("output_norm.weight")
    for layer in range(layers):
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
        matrix(f"blk.{layer}.attn_q.weight", features, features)
        matrix(f"blk.{layer}.attn_k.weight", kv_heads * head_dim, features)
        matrix(f"blk.{layer}.attn_v.weight", kv_heads * head_dim, features)
        matrix(f"blk.{layer}.attn_output.weight", features, features)
        matrix(f"blk.{layer}.ffn_gate.weight", hidden, features)
        matrix(f"blk.{layer}.ffn_up.weight", hidden, features)
        matrix(f"blk.{layer}.ffn_down.weight", features, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(file, threads):
    import llama_cpp

    model = llama_cpp.Llama(str(file), n_ctx=PROMPT + NEW + 1, n_batch=PROMPT, n_threads=threads, n_threads_batch=threads, verbose=False)
    prompt = [7 * i % 1000 + 3 for i in range(PROMPT)]
    best = [0.0, 0.0]
    for _ in range(RUNS):
        model.reset()
        start = now()
        model.eval(prompt)
        token = model.sample(temp=0.0)
        after_prompt = now()
        for _ in range(NEW):
            model.eval([token])
            token = model.sample(temp=0.0)
        best = [max(best[0], PROMPT / (after_prompt - start)), max(best[1], NEW / (now() - after_prompt))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{file.name}\tllama.cpp\t{best[0]:.1f}\t{best[1]:.2f}\t{peak:.0f} MiB")


def run_torch(shape, dtype, threads):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    layers, features, heads, kv_heads, hidden, vocabulary = SHAPES[shape]
    sizes = {"hidden_size": features, "intermediate_size": hidden, "num_hidden_layers": layers, "vocab_size": vocabulary}
    config = LlamaConfig(num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True, **sizes)
    model = LlamaForCausalLM(config).to(torch.bfloat16 if dtype == "bf16" else torch.float32).eval()
    if dtype == "int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    prompt = torch.tensor([[7 * i % 1000 + 3 for i in range(PROMPT)]])
    best = [0.0, 0.0]
    with torch.inference_mode():
        for _ in range(RUNS):
            start = now()
            output = model(prompt, use_cache=True, logits_to_keep=1)
            token = output.logits[:, -1:].argmax(-1)
            after_prompt = now()
            for _ in range(NEW):
                output = model(token, past_key_values=output.past_key_values, use_cache=True)
                token = output.logits[:, -1:].argmax(-1)
            best = [max(best[0], PROMPT / (after_prompt - start)), max(best[1], NEW / (now() - after_prompt))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{shape}-{dtype}\ttorch {torch.__version__}\t{best[0]:.1f}\t{best[1]:.2f}\t{peak:.0f} MiB")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["write", "run", "torch"])
    parser.add_argument("path", type=pathlib.Path, help="a folder to write, a file to run, or a shape for torch")
    parser.add_argument("--dtype", choices=["f32", "bf16", "int8"], default="bf16")
    parser.add_argument("--shape", choices=SHAPES, help="write only this shape")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.action == "run":
        return run(arguments.path, arguments.threads)
    if arguments.action == "torch":
        return run_torch(arguments.path.name, arguments.dtype, arguments.threads)
    arguments.path.mkdir(parents=True, exist_ok=True)
    for shape in [arguments.shape] if arguments.shape else SHAPES:
        for kind in TYPES:
            write(arguments.path, shape, kind)


if __name__ == "__main__":
    main()
