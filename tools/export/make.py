"""Writes crates/shardax/tests/exported: functions that JAX exported, and what JAX makes of some arguments."""

import pathlib

import exchange
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

OUT = pathlib.Path(__file__).parents[2] / "crates/shardax/tests/exported"


def mlp(p, x):
    hidden = jax.nn.silu(x @ p["w"] + p["b"])
    return {"y": jax.nn.softmax(hidden), "sum": hidden.sum(), "sorted": jnp.sort(x, 0)}


def steps(x, n):
    def step(carry, i):
        return jax.lax.cond(i % 2 == 0, jnp.sin, jnp.cos, carry) * 1.5, carry.sum()

    return jax.lax.scan(step, x, jnp.arange(n.shape[0]))


def main():
    OUT.mkdir(exist_ok=True)
    p = {"w": jax.random.normal(jax.random.key(0), (3, 2)), "b": jnp.array([0.5, -0.5])}
    x = jax.random.normal(jax.random.key(1), (4, 3))
    exchange.save(export.export(jax.jit(mlp), platforms=["cpu"])(p, x), OUT / "mlp.safetensors", vjp_order=1)
    exchange.save(export.export(jax.jit(steps), platforms=["cpu"])(x, jnp.arange(5)), OUT / "steps.safetensors")
    y = mlp(p, x)
    slope = jax.grad(lambda p: mlp(p, x)["y"][:, 0].sum())(p)
    last, sums = steps(x, jnp.arange(5))
    values = {"w": p["w"], "b": p["b"], "x": x, **y,
              "slope.w": slope["w"], "slope.b": slope["b"], "last": last, "sums": sums}
    exchange._write(OUT / "values.safetensors", {},
                    {k: ("F32", list(v.shape), np.asarray(v).tobytes()) for k, v in values.items()})


if __name__ == "__main__":
    main()
