"""JAX's values for the reference cases of shardax-doctor: `python tools/golden/doctor.py` writes them.

The cases, their names and the shapes of their two operands are those of `crates/shardax-cli/src/doctor/reference.rs`.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.scipy.special import digamma, erf, gammaln

# The first elements of each result.
KEPT = 24


def numbers(seed, shape):
    i = np.arange(int(np.prod(shape)))
    return jnp.asarray((((i * 7919 + seed * 104729 + 17) % 1009) / 252.25 - 2).astype(np.float32).reshape(shape))


def conv(x, w, strides=(1, 1), padding="SAME", **options):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


def positive(x):
    return x.T @ x + 2 * jnp.eye(x.shape[1])


def layer_norm(x, scale):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale


def recurrent(x, w):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h.sum()

    return lax.scan(step, jnp.zeros(4), x)[1].sum()


def newton(x):
    return lax.while_loop(lambda c: c[0] < 6, lambda c: (c[0] + 1, (c[1] + 2 / c[1]) / 2), (0, jnp.abs(x) + 1))[1]


V, M = (), (8, 8)
CASES = {
    "exp": ((24,), V, lambda x, y: jnp.exp(x)),
    "log": ((24,), V, lambda x, y: jnp.log(jnp.abs(x) + 0.1)),
    "tanh": ((24,), V, lambda x, y: jnp.tanh(x)),
    "sin": ((24,), V, lambda x, y: jnp.sin(x * 10)),
    "erf": ((24,), V, lambda x, y: erf(x)),
    "lgamma": ((24,), V, lambda x, y: gammaln(jnp.abs(x) + 0.5)),
    "digamma": ((24,), V, lambda x, y: digamma(jnp.abs(x) + 0.5)),
    "pow": ((24,), (24,), lambda x, y: jnp.power(jnp.abs(x) + 0.5, y)),
    "atan2": ((24,), (24,), lambda x, y: jnp.arctan2(x, y)),
    "int_division": ((24,), (24,), lambda x, y: (x * 100).astype(jnp.int32) // ((y * 5).astype(jnp.int32) * 2 + 1)),
    "bits": ((24,), V, lambda x, y: lax.population_count(lax.bitcast_convert_type(x, jnp.uint32))),
    "bfloat16": ((24,), (24,), lambda x, y: x.astype(jnp.bfloat16) * y.astype(jnp.bfloat16) + 1),
    "softmax": ((3, 8), V, lambda x, y: jax.nn.softmax(x, -1)),
    "layer_norm_grad": (M, (8,), lambda x, y: jax.grad(lambda x: jnp.sin(layer_norm(x, y)).sum())(x)),
    "matmul": ((8, 32), (32, 8), lambda x, y: x @ y),
    "matmul_bf16": ((8, 32), (32, 8), lambda x, y: x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)),
    "einsum": ((4, 3, 5), (4, 5, 2), lambda x, y: jnp.einsum("bij,bjk->bik", x, y)),
    "matmul_grad": (M, M, lambda x, y: jax.grad(lambda x: jnp.tanh(x @ y).sum())(x)),
    "conv": ((1, 6, 6, 3), (3, 3, 3, 4), lambda x, w: conv(x, w)),
    "conv_strided": ((1, 7, 7, 3), (3, 3, 3, 4), lambda x, w: conv(x, w, (2, 2), "VALID")),
    "conv_groups": ((1, 6, 6, 4), (3, 3, 2, 4), lambda x, w: conv(x, w, feature_group_count=2, rhs_dilation=(2, 2))),
    "conv_grad": ((1, 6, 6, 3), (3, 3, 3, 4), lambda x, w: jax.grad(lambda w: jnp.tanh(conv(x, w)).sum())(w)),
    "attention": ((1, 5, 2, 4), (1, 5, 2, 4), lambda x, y: jax.nn.dot_product_attention(x, y, y)),
    "attention_grad": (
        (1, 5, 2, 4),
        (1, 5, 2, 4),
        lambda x, y: jax.grad(lambda x: jnp.sin(jax.nn.dot_product_attention(x, y, y)).sum())(x),
    ),
    "sum": ((40, 24), V, lambda x, y: x.sum(0)),
    "max": ((40, 24), V, lambda x, y: x.max(0)),
    "cumsum": ((24,), V, lambda x, y: jnp.cumsum(x)),
    "sort": ((24,), V, lambda x, y: jnp.sort(x)),
    "argsort": ((24,), V, lambda x, y: jnp.argsort(x)),
    "top_k": ((24,), V, lambda x, y: lax.top_k(x, 5)[0]),
    "take": ((10, 4), (6,), lambda x, y: x[(y + 2).astype(jnp.int32)]),
    "scatter_add": ((24,), (24,), lambda x, y: jnp.zeros(4).at[(y + 2).astype(jnp.int32)].add(x)),
    "scan_grad": ((6, 4), (4, 4), lambda x, w: jax.grad(lambda w: recurrent(x, w))(w)),
    "while": ((24,), V, lambda x, y: newton(x)),
    "uniform": (V, V, lambda x, y: random.uniform(random.key(3), (24,))),
    "normal": (V, V, lambda x, y: random.normal(random.key(4), (24,))),
    "permutation": (V, V, lambda x, y: random.permutation(random.key(5), 24)),
    "rfft": ((16,), V, lambda x, y: jnp.abs(jnp.fft.rfft(x))),
    "cholesky": ((12, 4), V, lambda x, y: jnp.linalg.cholesky(positive(x))),
    "solve": (M, (8, 2), lambda x, y: jnp.linalg.solve(positive(x), y)),
    "singular_values": ((8, 5), V, lambda x, y: jnp.linalg.svd(x, compute_uv=False)),
    "eigenvalues": ((12, 4), V, lambda x, y: jnp.linalg.eigvalsh(positive(x))),
    "qr": ((8, 5), V, lambda x, y: jnp.abs(jnp.linalg.qr(x)[1])),
}


def main():
    lines = [f"# Values of JAX {jax.__version__} on CPU, by tools/golden/doctor.py: the first {KEPT} of each case.\n"]
    for name, (a, b, f) in CASES.items():
        out = jax.jit(f)(numbers(0, a), numbers(1, b))
        values = np.asarray(out.astype(jnp.float32)).ravel()[:KEPT]
        lines.append(f"{name} = {' '.join(f'{float(v):.9g}' for v in values)}\n")
    path = Path(__file__).parents[2] / "crates/shardax-cli/src/doctor/reference.txt"
    path.write_text("".join(lines))


if __name__ == "__main__":
    main()
