"""Rows of bench/src with PyTorch, for bench/compare.sh --torch: the same models, batches and optimizers, on CPU.

Run alone: python bench/torch_bench.py [--filter NAME] [--json FILE]
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

BUDGET_S, WARM_UP, MIN_RUNS = 3, 3, 3

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


LAYERS, FEATURES, HEADS, LENGTH, VOCABULARY = 6, 256, 8, 256, 256


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(FEATURES, eps=1e-6) for _ in range(2)])
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES)
        self.out = nn.Linear(FEATURES, FEATURES)
        self.up, self.down = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, HEADS, FEATURES // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, FEATURES))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, FEATURES), nn.Embedding(LENGTH, FEATURES)
        self.blocks = nn.Sequential(*[GptBlock() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(FEATURES, eps=1e-6), nn.Linear(FEATURES, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions.weight)))


def training(model, optimizer, x, labels, clip=None):
    """A step that leaves its loss behind."""

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x).flatten(0, -2), labels.flatten())
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
    tokens = torch.randint(VOCABULARY, (8, LENGTH))
    return training(model, optimizer, tokens, tokens.roll(-1, 1), clip=1.0)


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
    options = parser.parse_args()
    torch.manual_seed(0)
    results = []
    for name, make in ROWS.items():
        if name == options.filter or (options.filter not in ROWS and options.filter in name):
            found = {"name": name, **measure(make())}
            found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            results.append(found)
            print(f"{name:24}{found['median_us']:14,.1f} µs", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
