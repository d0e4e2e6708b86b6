"""Rows of bench/src with PyTorch, for bench/compare.sh --torch: the same models, weights, batches and optimizers.

Run alone: python bench/torch_bench.py --inputs FOLDER [--filter NAME] [--json FILE] [--compile], where `shardax-bench --inputs
FOLDER` has written the folder; BENCH_DEVICE=cuda selects a GPU.
"""

import argparse
import json
import os
import resource
import statistics
import time

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

BUDGET_S, WARM_UP, MIN_RUNS = float(os.environ.get("BENCH_SECONDS", 3)), 3, 3
DEVICE = os.environ.get("BENCH_DEVICE", "cpu")
torch.set_default_device(DEVICE)
# Matmuls by TF32, as XLA's on GPUs.
torch.set_float32_matmul_precision("high" if DEVICE == "cuda" else "highest")
COMPILED = False
INPUTS = "."

# With BENCH_CLOCK=cpu the CPU time of all threads, which other processes hardly change.
now = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Cnn(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 10),
        )


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(*[Block(*b) for i, o, s in stages for b in ((i, o, s), (o, o, 1))])
        self.dense = nn.Linear(512, 10)

    def forward(self, x):
        return self.dense(self.blocks(self.stem(x)).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(features, eps=1e-6) for _ in range(2)])
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x):
        b, t, features = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, features // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, features))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, layers=6, features=256, heads=8, length=256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, features), nn.Embedding(length, features)
        self.blocks = nn.Sequential(*[GptBlock(features, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(features, eps=1e-6), nn.Linear(features, vocabulary)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions.weight)))


class Inputs:
    """The weights and the batch of a row, by shardax's key paths."""

    def __init__(self, row):
        self.arrays = load_file(os.path.join(INPUTS, row, "device-00000.safetensors"), device=DEVICE)

    def batch(self, path):
        array = self.arrays[path]
        return array.long() if array.dtype == torch.int32 else array

    def images(self):
        """Channels last, in which PyTorch's convolutions are fastest on CPU."""
        return self.arrays["[1]"].permute(0, 3, 1, 2)

    @torch.no_grad()
    def linear(self, layer, path):
        layer.weight.copy_(self.arrays[f"[0].{path}.kernel"].reshape(-1, layer.out_features).T)
        layer.bias.copy_(self.arrays[f"[0].{path}.bias"].flatten())

    @torch.no_grad()
    def conv(self, layer, path):
        layer.weight.copy_(self.arrays[f"[0].{path}.kernel"].permute(3, 2, 0, 1))
        if layer.bias is not None:
            layer.bias.copy_(self.arrays[f"[0].{path}.bias"])

    @torch.no_grad()
    def embedding(self, layer, path):
        layer.weight.copy_(self.arrays[f"[0].{path}.embedding"])


def training(model, optimizer, x, labels, clip=None):
    """A step that returns its loss."""
    run = torch.compile(model) if COMPILED else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(run(x).flatten(0, -2).float(), labels.flatten())
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.item()

    return step


def mlp_step_1():
    model, inputs = Mlp(), Inputs("mlp_step_1")
    for number, layer in enumerate(list(model)[::2], 1):
        inputs.linear(layer, f"layer{number}")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    return training(model, optimizer, inputs.batch("[1]"), inputs.batch("[2]"))


def cnn_step_1():
    model, inputs = Cnn(), Inputs("cnn_step_1")
    inputs.conv(model[0], "conv1")
    inputs.conv(model[3], "conv2")
    inputs.linear(model[7], "dense")
    # Its inputs are features, rows, columns here; rows, columns, features there.
    with torch.no_grad():
        model[7].weight.copy_(model[7].weight.view(10, 8, 8, 64).permute(0, 3, 1, 2).reshape(10, -1))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=True)
    return training(model, optimizer, inputs.images(), inputs.batch("[2]"))


def resnet18_step_1():
    model, inputs = ResNet(), Inputs("resnet18_step_1")
    inputs.conv(model.stem[0], "stem.conv")
    for i, block in enumerate(model.blocks):
        inputs.conv(block.first, f"blocks[{i}].first.conv")
        inputs.conv(block.second, f"blocks[{i}].second.conv")
        if block.shortcut:
            inputs.conv(block.shortcut[0], f"blocks[{i}].shortcut.conv")
    inputs.linear(model.dense, "dense")
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    return training(model, optimizer, inputs.images(), inputs.batch("[2]"))


def gpt_step_1():
    model, inputs = Gpt(), Inputs("gpt_step_1")
    inputs.embedding(model.tokens, "embed")
    inputs.embedding(model.positions, "positions")
    for i, block in enumerate(model.blocks):
        projections = [f"blocks[{i}].attention.{name}" for name in ("query", "key", "value")]
        with torch.no_grad():
            # [features, heads, features of a head]: the last two are the projection's outputs.
            parts = [inputs.arrays[f"[0].{path}.kernel"].flatten(1).T for path in projections]
            block.qkv.weight.copy_(torch.cat(parts))
            block.qkv.bias.copy_(torch.cat([inputs.arrays[f"[0].{path}.bias"].flatten() for path in projections]))
        inputs.linear(block.out, f"blocks[{i}].attention.out")
        inputs.linear(block.up, f"blocks[{i}].mlp.up")
        inputs.linear(block.down, f"blocks[{i}].mlp.down")
    inputs.linear(model.head, "head")
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 1e-3, foreach=True)
    return training(model, optimizer, inputs.batch("[1][0]"), inputs.batch("[1][1]"), clip=1.0)


def attention_bf16():
    q, k, v = (torch.rand(4, 16, 2048, 64).bfloat16().requires_grad_() for _ in range(3))

    def call():
        loss = F.scaled_dot_product_attention(q, k, v, is_causal=True).float().square().sum()
        torch.autograd.grad(loss, (q, k, v))
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return call


def gpt2_step_bf16():
    model = Gpt(50304, 12, 768, 12, 1024)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-4, fused=DEVICE == "cuda")
    tokens = torch.randint(50304, (8, 1024))
    step = training(model, optimizer, tokens, tokens.roll(-1, 1))

    def call():
        with torch.autocast(DEVICE, torch.bfloat16):
            return step()

    return call


# Rows of a size for GPUs, which run on CPU only if they are named.
ON_ACCELERATORS = {f.__name__: f for f in (attention_bf16, gpt2_step_bf16)}
ROWS = {f.__name__: f for f in (mlp_step_1, cnn_step_1, resnet18_step_1, gpt_step_1)}


def measure(call):
    """The first value that a training step returns is its first loss."""
    first, *_ = [call() for _ in range(WARM_UP)]
    begin, times = time.perf_counter(), []
    while len(times) < MIN_RUNS or time.perf_counter() - begin < BUDGET_S:
        start = now()
        call()
        times.append((now() - start) * 1e6)
    found = {"median_us": statistics.median(times), "min_us": min(times), "runs": len(times)}
    return found if first is None else {**found, "first_loss": first}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", metavar="NAME", default="", help="only the row NAME, or rows whose name contains it")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--inputs", metavar="FOLDER", default=".", help="what `shardax-bench --inputs FOLDER` has written")
    parser.add_argument("--list", action="store_true", help="print the row names and stop")
    parser.add_argument("--compile", action="store_true", help="compile the models with torch.compile")
    options = parser.parse_args()
    global COMPILED, INPUTS
    COMPILED, INPUTS = options.compile, options.inputs
    torch.manual_seed(0)
    results = []
    rows = ROWS if DEVICE == "cpu" and options.filter not in ON_ACCELERATORS else ROWS | ON_ACCELERATORS
    if options.list:
        print("\n".join(rows))
        return
    for name, make in rows.items():
        if name == options.filter or (options.filter not in rows and options.filter in name):
            found = {"name": name, **measure(make())}
            found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            results.append(found)
            print(f"{name:24}{found['median_us']:14,.1f} µs", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
