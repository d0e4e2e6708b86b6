"""Rows of bench/src with PyTorch, for bench/compare.sh --torch: the same models, batches and optimizers.

Run alone: python bench/torch_bench.py [--filter NAME] [--json FILE] [--compile]; BENCH_DEVICE=cuda selects a GPU.
"""

import argparse
import json
import os
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

BUDGET_S, WARM_UP, MIN_RUNS = float(os.environ.get("BENCH_SECONDS", 3)), 3, 3
DEVICE = os.environ.get("BENCH_DEVICE", "cpu")
torch.set_default_device(DEVICE)
# Matmuls by TF32, as XLA's on GPUs.
torch.set_float32_matmul_precision("high" if DEVICE == "cuda" else "highest")
COMPILED = False

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


def training(model, optimizer, x, labels, clip=None):
    """A step that leaves its loss behind."""
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
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    return training(model, optimizer, torch.rand(512, 784), torch.randint(10, (512,)))


def images(model, count, optimizer):
    """Channels last, in which PyTorch's convolutions are fastest on CPU."""
    model = model.to(memory_format=torch.channels_last)
    x = torch.rand(count, 3, 32, 32).to(memory_format=torch.channels_last)
    return training(model, optimizer(model.parameters()), x, torch.randint(10, (count,)))


def cnn_step_1():
    return images(Cnn(), 128, lambda parameters: torch.optim.Adam(parameters, 1e-3, foreach=True))


def resnet18_step_1():
    return images(ResNet(), 32, lambda parameters: torch.optim.SGD(parameters, 0.1, foreach=True))


def gpt_step_1():
    model = Gpt()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 1e-3, foreach=True)
    tokens = torch.randint(256, (8, 256))
    return training(model, optimizer, tokens, tokens.roll(-1, 1), clip=1.0)


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
    for _ in range(WARM_UP):
        call()
    begin, times = time.perf_counter(), []
    while len(times) < MIN_RUNS or time.perf_counter() - begin < BUDGET_S:
        start = now()
        call()
        times.append((now() - start) * 1e6)
    return {"median_us": statistics.median(times), "min_us": min(times), "runs": len(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", metavar="NAME", default="", help="only the row NAME, or rows whose name contains it")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--compile", action="store_true", help="compile the models with torch.compile")
    options = parser.parse_args()
    global COMPILED
    COMPILED = options.compile
    torch.manual_seed(0)
    results = []
    rows = ROWS if DEVICE == "cpu" and options.filter not in ON_ACCELERATORS else ROWS | ON_ACCELERATORS
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
