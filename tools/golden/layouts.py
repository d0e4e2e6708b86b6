"""Layouts in JAX's lowered programs: crates/shardax/tests/snapshots/jax_layouts.txt.

    python tools/golden/layouts.py
"""

import os
import re
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout, with_layout_constraint
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

OUT = Path(__file__).parents[2] / "crates/shardax/tests/snapshots/jax_layouts.txt"

here = SingleDeviceSharding(jax.devices()[0])
split = NamedSharding(jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2), PartitionSpec("a"))
x = jnp.arange(24.0).reshape(2, 3, 4)
columns, rows = Layout((2, 1, 0)), Layout((0, 1, 2))
auto = Format(Layout.AUTO, here)


def f(x):
    return x + 1


def both(fmt, **options):
    return jax.jit(f, in_shardings=fmt, out_shardings=fmt, **options).lower(x)


def constrained(x):
    return with_layout_constraint(x * 2, columns)


cases = {
    "given": both(Format(columns, here)),
    "default": both(Format(rows, here)),
    "auto": both(auto),
    "auto without a sharding": both(Format(Layout.AUTO)),
    "split": both(Format(columns, split)),
    "tiles": jax.jit(f, in_shardings=Format(Layout((0, 1, 2), ((8, 128), (2, 1))), here)).lower(x),
    "passed": jax.jit(f).lower(jax.device_put(x, Format(columns, here))),
    "passed, sharding given": jax.jit(f, in_shardings=here).lower(jax.device_put(x, Format(columns, here))),
    "donated": both(Format(columns, here), donate_argnums=0),
    "donated, auto": both(auto, donate_argnums=0),
    "constrained": jax.jit(constrained).lower(x),
    "constrained inside": jax.jit(lambda x: constrained(x) + 1).lower(x),
    "constrained by a format": jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, Format(columns, here))).lower(x),
    "constrained, gradient": jax.jit(jax.grad(lambda x: jnp.sum(with_layout_constraint(x, columns) ** 2))).lower(x),
    "constrained, vmap": jax.jit(jax.vmap(lambda x: with_layout_constraint(x, Layout((1, 0))))).lower(x),
}


def summary(text):
    main = next(line for line in text.splitlines() if "@main(" in line)
    args, results = main.split(") -> (")
    mode = lambda part: (re.findall(r'mhlo.layout_mode = "([^"]*)"', part) or ["-"])[0]
    orders = re.findall(r"@LayoutConstraint.*result_layouts = (\[dense<\[[\d, ]*\]> : tensor<\dxindex>\])", text)
    aliased = "tf.aliasing_output" in args
    return f"argument {mode(args)} result {mode(results)} constraints {orders} aliased {aliased}"


OUT.write_text("".join(f"{name}: {summary(lowered.as_text())}\n" for name, lowered in cases.items()))
