"""The rows of `shardax-bench --census FOLDER` in PyTorch, where a counterpart exists.

    census_torch.py FOLDER [SIZE]    measures the rows of FOLDER/shardax.tsv (of this size) that FOLDER/torch.tsv does not have yet

PyTorch runs each operation by itself in all ways.
"""

import os
import sys

import torch
from torch import linalg, nn, special  # noqa: F401 (expressions read them)
from torch.nn import functional as F  # noqa: N812

from census import BATCHES, IMAGES, LINES, MATRICES, PRODUCTS, SEQUENCES, SIZES, SQUARES, clock, read

SAME = (
    "abs sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh exp exp2 expm1 square sign floor ceil trunc sinc signbit isnan "
    "isfinite isinf negative log log2 log10 log1p sqrt reciprocal nan_to_num"
)
"""Functions of one array with the same name in NumPy and PyTorch."""

EXPRESSIONS = {
    **{f"jnp.{name}(x)": f"torch.{name}(x)" for name in SAME.split()},
    **{f"jax.nn.{name}(x)": f"F.{name}(x)" for name in ["relu", "silu", "softplus", "selu", "relu6", "gelu"]},
    **{f"jax.scipy.special.{name}(x)": f"special.{name}(x)" for name in "erf erfc erfinv expit i0 i0e i1 ndtr log_ndtr digamma entr gammaln".split()},
    "jnp.rint(x)": "torch.round(x)",
    "jnp.degrees(x)": "torch.rad2deg(x)",
    "jnp.radians(x)": "torch.deg2rad(x)",
    "jax.nn.sigmoid(x)": "torch.sigmoid(x)",
    "jax.nn.log_sigmoid(x)": "F.logsigmoid(x)",
    "jax.nn.soft_sign(x)": "F.softsign(x)",
    "jax.nn.hard_tanh(x)": "F.hardtanh(x)",
    "jax.nn.gelu(x)": "F.gelu(x, approximate='tanh')",
    "jax.nn.softmax(x)": "x.softmax(-1)",
    "jax.nn.softmax(x, 0)": "x.softmax(0)",
    "jax.nn.log_softmax(x)": "x.log_softmax(-1)",
    "jnp.clip(x, -0.5, 0.5)": "x.clip(-0.5, 0.5)",
    "x ** 3": "x ** 3",
    "x + y": "x + y",
    "x * y": "x * y",
    "x / y": "x / y",
    "jnp.abs(x) ** y": "x.abs() ** y",
    "jnp.arctan2(x, y)": "torch.arctan2(x, y)",
    "jnp.maximum(x, y)": "torch.maximum(x, y)",
    "jnp.logaddexp(x, y)": "torch.logaddexp(x, y)",
    "jnp.hypot(x, y)": "torch.hypot(x, y)",
    "jnp.where(x < y, x, y)": "torch.where(x < y, x, y)",
    "jnp.remainder(x, y)": "torch.remainder(x, y)",
    "jnp.floor_divide(x, y)": "torch.floor_divide(x, y)",
    "jnp.dot(x, y)": "x.dot(y)",
    "jnp.sum(x)": "x.sum()",
    "jnp.max(x)": "x.amax()",
    "jnp.argmax(x)": "x.argmax()",
    "jnp.cumsum(x)": "x.cumsum(-1)",
    "jnp.sum(x, 0)": "x.sum(0)",
    "jnp.sum(x, 1)": "x.sum(1)",
    "jnp.mean(x, 0)": "x.mean(0)",
    "jnp.var(x, 0)": "x.var(0, correction=0)",
    "jnp.var(x, 1)": "x.var(1, correction=0)",
    "jnp.std(x)": "x.std(correction=0)",
    "jnp.max(x, 0)": "x.amax(0)",
    "jnp.max(x, 1)": "x.amax(1)",
    "jnp.min(x, 1)": "x.amin(1)",
    "jnp.prod(x, 1)": "x.prod(1)",
    "jnp.argmax(x, 0)": "x.argmax(0)",
    "jnp.argmin(x, 1)": "x.argmin(1)",
    "jnp.any(x > 0.5, 1)": "(x > 0.5).any(1)",
    "jax.nn.logsumexp(x, 1)": "x.logsumexp(1)",
    "jnp.cumsum(x, 0)": "x.cumsum(0)",
    "jnp.cumsum(x, 1)": "x.cumsum(1)",
    "jnp.cumprod(x, 0)": "x.cumprod(0)",
    "jax.lax.cummax(x, 0)": "x.cummax(0)[0]",
    "jax.lax.cumlogsumexp(x, 0)": "x.logcumsumexp(0)",
    "jnp.sort(x)": "x.sort(-1)[0]",
    "jnp.argsort(x)": "torch.argsort(x, dim=-1, stable=True)",
    "jnp.flip(x)": "x.flip(-1)",
    "jnp.roll(x, 5)": "x.roll(5)",
    "jnp.diff(x)": "x.diff()",
    "jnp.histogram(x, 20)[0]": "torch.histc(x, 20)",
    "jnp.bincount(x, length=1000)": "torch.bincount(x, minlength=1000)",
    "x // 7": "x // 7",
    "x % 7": "x % 7",
    "jax.nn.one_hot(x[:32], 1000)": "F.one_hot(x[:32].long(), 1000).float()",
    "x.T + 0": "x.T.contiguous()",
    "jnp.sort(x, 0)": "x.sort(0)[0]",
    "jnp.sort(x, 1)": "x.sort(1)[0]",
    "jnp.argsort(x, 0)": "torch.argsort(x, dim=0, stable=True)",
    "jnp.argsort(x, 1)": "torch.argsort(x, dim=1, stable=True)",
    "jax.lax.top_k(x, 5)[0]": "x.topk(5)[0]",
    "jnp.concatenate([x, x], 1)": "torch.cat([x, x], 1)",
    "jnp.tril(x)": "x.tril()",
    "jnp.repeat(x, 2, 0)": "x.repeat_interleave(2, 0)",
    "jnp.tile(x, (1, 2))": "x.tile(1, 2)",
    "x[::2, ::2]": "x[::2, ::2].contiguous()",
    "x @ y": "x @ y",
    "x.T @ y": "x.T @ y",
    "x @ y.T": "x @ y.T",
    "x @ y[0]": "x @ y[0]",
    "x @ x": "x @ x",
    "jnp.kron(x[:8, :8], y[:32, :32])": "torch.kron(x[:8, :8], y[:32, :32])",
    "jnp.matmul(x, y, preferred_element_type=jnp.int32)": "torch._int_mm(x, y)",
    "jnp.matmul(x.T, y, preferred_element_type=jnp.int32)": "torch._int_mm(x.T, y)",
    "jnp.matmul(x, y.T, preferred_element_type=jnp.int32)": "torch._int_mm(x, y.T)",
    "jnp.fft.fft(x)": "torch.fft.fft(x)",
    "jnp.fft.rfft(x)": "torch.fft.rfft(x)",
    "jnp.linalg.det(x)": "linalg.det(x)",
    "jnp.linalg.inv(x)": "linalg.inv(x)",
    "jnp.linalg.pinv(x)": "linalg.pinv(x)",
    "jnp.linalg.qr(x)[0]": "linalg.qr(x)[0]",
    "jnp.linalg.svd(x)[0]": "linalg.svd(x)[0]",
    "jnp.linalg.slogdet(x)[1]": "linalg.slogdet(x)[1]",
    "jax.scipy.linalg.expm(x)": "linalg.matrix_exp(x)",
    "jnp.linalg.cholesky(x)": "linalg.cholesky(x)",
    "jnp.linalg.eigh(x)[1]": "linalg.eigh(x)[1]",
    "jnp.linalg.solve(x, y)": "linalg.solve(x, y)",
    "jax.lax.conv_general_dilated(x, y, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))": "convolution(x, y, 1)",
    "jax.lax.conv_general_dilated(x, y, (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))": "convolution(x, y, 2)",
    "jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')": "F.max_pool2d(x.permute(0, 3, 1, 2), 2)",
    "jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), 'SAME') / 9": "F.avg_pool2d(x.permute(0, 3, 1, 2), 3, 1, 1)",
    "jax.nn.standardize(x, (0, 1, 2))": "F.batch_norm(x.permute(0, 3, 1, 2), None, None, training=True)",
    "jax.image.resize(x, (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), 'bilinear')": (
        "F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode='bilinear')"
    ),
    "jnp.mean(x, (1, 2))": "x.mean((1, 2))",
    "jnp.transpose(x, (0, 3, 1, 2)) + 0": "x.permute(0, 3, 1, 2).contiguous()",
    "jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))": "F.pad(x, (0, 0, 1, 1, 1, 1))",
    "jax.nn.standardize(x)": "F.layer_norm(x, x.shape[-1:])",
    "x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)": "F.rms_norm(x, x.shape[-1:], eps=1e-6)",
    "jax.nn.gelu(x @ y)": "F.gelu(x @ y, approximate='tanh')",
    "jax.nn.silu(x @ y) * (x @ y.T)": "F.silu(x @ y) * (x @ y.T)",
    "jnp.einsum('bld,bmd->blm', x, x)": "torch.einsum('bld,bmd->blm', x, x)",
    "jax.nn.dot_product_attention(*3 * (x.reshape(*x.shape[:2], 4, -1),), is_causal=True)": (
        "F.scaled_dot_product_attention(*3 * (x.reshape(*x.shape[:2], 4, -1).transpose(1, 2),), is_causal=True)"
    ),
    "-jnp.mean(jax.nn.log_softmax(x @ y)[..., 0])": (
        "F.cross_entropy((x @ y).flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.long))"
    ),
    "y[(jnp.abs(x[..., 0]) * 4).astype(int)]": "y[(x[..., 0].abs() * 4).long()]",
    "jax.ops.segment_sum(x[0], (jnp.abs(x[0, :, 0]) * 4).astype(int), 4)": (
        "torch.zeros(4, x.shape[-1], dtype=x.dtype).index_add(0, (x[0, :, 0].abs() * 4).long(), x[0])"
    ),
    "jnp.abs(x[:, :, None] - y).sum(-1)": "torch.cdist(x, y, p=1)",
    "jax.lax.scan(lambda h, x: 2 * (jnp.tanh(x + h @ y),), 0 * x[:, 0], jnp.swapaxes(x, 0, 1))[1]": "recurrent(x, y)",
    "jax.random.uniform(x, (1 << 20,))": "torch.rand(1 << 20)",
    "jax.random.normal(x, (1 << 20,))": "torch.randn(1 << 20)",
    "jax.random.permutation(x, 1 << 20)": "torch.randperm(1 << 20)",
}
"""PyTorch's expression of each row. Rows that it has no function for are missing."""


def convolution(x, y, stride):
    images = F.pad(x.permute(0, 3, 1, 2), (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))
    return F.conv2d(images, y.permute(3, 2, 0, 1), stride=stride)


def recurrent(x, y):
    state, states = 0 * x[:, 0], []
    for step in x.unbind(1):
        state = torch.tanh(step + state @ y)
        states.append(state)
    return torch.stack(states)


def arrays(kind, size, dtype):
    generator = torch.Generator().manual_seed(0)

    def centred(*shape):
        return torch.rand(shape, generator=generator) * 2 - 1

    def definite(*shape):
        x = centred(*shape)
        return x @ x.mT + torch.eye(shape[-1])

    n, side, product, square = LINES[size], MATRICES[size], PRODUCTS[size], SQUARES[size]
    count, small = BATCHES[size]
    images, pixels, channels = IMAGES[size]
    sequences, length, features = SEQUENCES[size]
    operands = {
        "Line": lambda: [centred(n)],
        "Positive": lambda: [centred(n) * 0.9 + 1.0],
        "Lines": lambda: [centred(n), centred(n)],
        "Integers": lambda: [(centred(n).abs() * 1000).int()],
        "Matrix": lambda: [centred(side, side)],
        "Product": lambda: [centred(product, product) for _ in range(2)],
        "Product16": lambda: [centred(product, product).bfloat16() for _ in range(2)],
        "Product8": lambda: [(centred(product, product) * 100).to(torch.int8) for _ in range(2)],
        "Square": lambda: [centred(square, square)],
        "Definite": lambda: [definite(square, square)],
        "System": lambda: [centred(square, square), centred(square)],
        "Batch": lambda: [centred(count, small, small)],
        "DefiniteBatch": lambda: [definite(count, small, small)],
        "Images": lambda: [centred(images, pixels, pixels, channels), centred(3, 3, channels, channels) * 0.1],
        "Sequences": lambda: [centred(sequences, length, features), centred(features, features) * 0.1],
        "Key": lambda: [torch.zeros(())],
    }[kind]()
    return [x.to(dtype) for x in operands] if dtype else operands


def measure(expression, kind, way, size):
    dtype = {"bf16": torch.bfloat16, "f64": torch.float64}.get(way)
    operands = arrays(kind, size, dtype)
    function = eval(f"lambda x, y=None: {EXPRESSIONS[expression]}", globals())

    def gradient(*operands):
        operands = [x.detach().requires_grad_() for x in operands]
        # An operand that the expression does not read has no gradient.
        return torch.autograd.grad(function(*operands).square().sum(), operands, allow_unused=True)

    call = gradient if way == "gradient" else function
    start = clock()
    call(*operands)
    first = clock() - start
    times, begin = [], clock()
    while (spent := clock() - begin) < 0.1 and len(times) < 3000 or len(times) < 3 and spent < 2:
        start = clock()
        call(*operands)
        times.append(clock() - start)
    times.sort()
    return f"{times[len(times) // 2] * 1e6:.2f}\t{first * 1e6:.0f}"


def run(folder, sizes):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    path = os.path.join(folder, "torch.tsv")
    measured = read(path)
    with open(path, "a") as file:
        for row, times in read(os.path.join(folder, "shardax.tsv")).items():
            if row in measured or times[0].startswith("error") or row[0] not in EXPRESSIONS or row[3] not in sizes:
                continue
            try:
                found = measure(*row[:3], SIZES.index(row[3]))
            except Exception as error:
                found = "error: " + " ".join(str(error).split())[:200]
            print(*row, found, sep="\t", file=file, flush=True)
            print(*row, found, sep="\t", file=sys.stderr)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:] or SIZES)
