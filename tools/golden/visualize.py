"""Writes what JAX draws of shardings, for `cargo test` to compare with.

Only pictures that fit in 80 columns: JAX (0.10.2, with rich) leaves the names of the devices out of wider ones.
Needs the package `rich` in addition to requirements.txt.
"""

import contextlib
import io
import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.debug import visualize_sharding
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

OUT = Path(__file__).resolve().parents[2] / "crates" / "shardax" / "tests" / "snapshots" / "visualize_jax.txt"
CASES = [
    ((8,), P("i"), (8,)),
    ((8,), P(), (8,)),
    ((8,), P("i"), (8000,)),
    ((4, 2), P("j"), (8,)),
    ((4, 2), P(("i", "j")), (16,)),
    ((4, 2), P(("j", "i")), (16,)),
    ((1,), P("i"), (3,)),
    ((8,), P("i"), (8, 8)),
    ((8,), P("i"), (1024, 16)),
    ((4, 2), P("i", "j"), (8, 16)),
    ((4, 2), P("j", "i"), (8, 16)),
    ((4, 2), P("i"), (8, 16)),
    ((4, 2), P(None, "j"), (8, 16)),
    ((4, 2), P(), (8, 16)),
    ((2, 4), P("i", "j"), (4, 4)),
    ((2, 4), P("j", "i"), (1024, 16)),
    ((2, 2), P("i", "j"), (6, 4)),
    ((1,), P("i"), (8, 8)),
    ((4, 2), P("j", None), (8, 30)),
    ((8,), P(), (8, 1000)),
]


def picture(sizes, spec, shape):
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    sharding = NamedSharding(Mesh(devices, ("i", "j")[: len(sizes)]), spec)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        visualize_sharding(shape, sharding)
    lines = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join(lines)


texts = []
for sizes, spec, shape in CASES:
    entries = ", ".join(repr(e) for e in spec)
    texts.append(f"{list(sizes)} ({entries}) {list(shape)}\n{picture(sizes, spec, shape)}\n")
OUT.write_text("\n".join(texts))
