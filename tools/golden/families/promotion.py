"""JAX's type promotion, as plain JSON."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from golden import DTYPES, NARROW, SIXTY_FOUR, short

WEAK = {"i*": "i", "f*": "f", "c*": "c"}


def struct(name, x64, shape):
    if name in WEAK:
        dtype = WEAK[name] + ({"i": "64", "f": "64", "c": "128"} if x64 else {"i": "32", "f": "32", "c": "64"})[WEAK[name]]
        return jax.ShapeDtypeStruct(shape, DTYPES[dtype], weak_type=True)
    return jax.ShapeDtypeStruct(shape, (DTYPES | NARROW)[name])


def result(fn, *names, x64, shape=(2,)):
    """The types of the results; one pair alone for one result, nothing where JAX rejects."""
    try:
        found = jax.eval_shape(fn, *(struct(name, x64, shape) for name in names))
    except (TypeError, ValueError, NotImplementedError, OverflowError):
        return None
    types = [[short(leaf.dtype), bool(leaf.weak_type)] for leaf in jax.tree.leaves(found)]
    return types[0] if len(types) == 1 else types


def gelu_exact(x):
    return jax.nn.gelu(x, approximate=False)


NAMES_OF_JNP = """
    sum prod cumsum cumprod mean var std max min argmax argmin all any
    negative abs sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan arcsin arccos arctan
    sinh cosh tanh arcsinh arccosh arctanh floor ceil round trunc isfinite isnan isinf bitwise_not logical_not real imag
    conj zeros_like ones_like sort argsort ravel
"""
FUNCTIONS = {
    **{name: getattr(jnp, name) for name in NAMES_OF_JNP.split()},
    "population_count": jax.lax.population_count,
    "clz": jax.lax.clz,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "erf_inv": jax.scipy.special.erfinv,
    "lgamma": jax.scipy.special.gammaln,
    "digamma": jax.scipy.special.digamma,
    "logistic": jax.scipy.special.expit,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "gelu": jax.nn.gelu,
    "gelu_exact": gelu_exact,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "log_sigmoid": jax.nn.log_sigmoid,
    "softplus": jax.nn.softplus,
    "soft_sign": jax.nn.soft_sign,
    "hard_tanh": jax.nn.hard_tanh,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "selu": jax.nn.selu,
    "mish": jax.nn.mish,
    "elu": jax.nn.elu,
    "celu": jax.nn.celu,
    "leaky_relu": jax.nn.leaky_relu,
    "glu": jax.nn.glu,
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": jax.nn.logsumexp,
    "clip": lambda x: jnp.clip(x, 0, 1),
    "clip_float": lambda x: jnp.clip(x, 0.5, 1.5),
    "lax_clamp": lambda x: jax.lax.clamp(jnp.asarray(0, x.dtype), x, jnp.asarray(1, x.dtype)),
    "lax_cumsum": jax.lax.cumsum,
    "lax_cummax": jax.lax.cummax,
    "lax_cumlogsumexp": jax.lax.cumlogsumexp,
    "top_k": lambda x: jax.lax.top_k(x, 1),
    "around_1": lambda x: jnp.round(x, 1),
    "around_minus_1": lambda x: jnp.round(x, -1),
    "flip": jnp.flip,
    "roll": lambda x: jnp.roll(x, 1),
    "reshape": lambda x: jnp.reshape(x, (2, 1)),
    "transpose": lambda x: jnp.transpose(x),
    "broadcast_to": lambda x: jnp.broadcast_to(x, (3, 2)),
    "squeeze": lambda x: jnp.squeeze(jnp.expand_dims(x, 0)),
    "take": lambda x: jnp.take(x, jnp.array([0])),
    "get": lambda x: x[0],
    "get_slice": lambda x: x[:1],
    "get_array": lambda x: x[jnp.array([0, 1])],
    "at_set": lambda x: x.at[0].set(1),
    "at_add": lambda x: x.at[0].add(1),
    "at_get_fill": lambda x: x.at[jnp.array([5])].get(mode="fill", fill_value=0),
    "take_along_axis": lambda x: jnp.take_along_axis(x, jnp.array([0]), 0),
    "dynamic_slice": lambda x: jax.lax.dynamic_slice(x, (0,), (1,)),
    "dynamic_update_slice": lambda x: jax.lax.dynamic_update_slice(x, x[:1], (0,)),
    "dynamic_index_in_dim": lambda x: jax.lax.dynamic_index_in_dim(x, 0),
    "pad": lambda x: jnp.pad(x, 1),
    "pad_edge": lambda x: jnp.pad(x, 1, mode="edge"),
    "tile": lambda x: jnp.tile(x, 2),
    "repeat": lambda x: jnp.repeat(x, 2),
    "diag": jnp.diag,
    "split": lambda x: jnp.split(x, 2),
    "concatenate": lambda x: jnp.concatenate([x, x]),
    "stack": lambda x: jnp.stack([x, x]),
    "full_like": lambda x: jnp.full_like(x, 1),
    "one_hot": lambda x: jax.nn.one_hot(x, 2),
    "lax_rev": lambda x: jax.lax.rev(x, (0,)),
    "lax_sort": jax.lax.sort,
    "plus_int": lambda x: x + 1,
    "plus_float": lambda x: x + 1.5,
    "int_pow": lambda x: x**2,
    "float_pow": lambda x: x**0.5,
    "quarter_to_the": lambda x: jnp.power(0.25, x),
    "two_to_the": lambda x: jnp.power(2, x),
    "where_int": lambda x: jnp.where(True, x, 0),
    "lax_reduce_window_max": lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2,), (1,), "VALID"),
    "scan_sum": lambda x: jax.lax.scan(lambda c, v: (c + v, c), x[0], x),
    "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c, x),
    "cond": lambda x: jax.lax.cond(True, lambda v: v, lambda v: v, x),
    "stop_gradient": jax.lax.stop_gradient,
}
BINARY = {
    **{
        name: getattr(jnp, name)
        for name in """
            add subtract multiply divide floor_divide remainder fmod power maximum minimum arctan2 logaddexp nextafter
            bitwise_and bitwise_or bitwise_xor left_shift right_shift equal less dot matmul inner outer vdot
            searchsorted
        """.split()
    },
    "where": lambda x, y: jnp.where(True, x, y),
    "concatenate_two": lambda x, y: jnp.concatenate([x, y]),
    "at_set_array": lambda x, y: x.at[:].set(y),
    "clip_array": lambda x, y: jnp.clip(x, y, y),
}
MATRIX = {
    "det": jnp.linalg.det,
    "slogdet": jnp.linalg.slogdet,
    "cholesky": jnp.linalg.cholesky,
    "qr": jnp.linalg.qr,
    "eigh": jnp.linalg.eigh,
    "inv": jnp.linalg.inv,
    "norm": jnp.linalg.norm,
    "matrix_power": lambda x: jnp.linalg.matrix_power(x, 2),
    "solve": lambda x: jnp.linalg.solve(x, x),
    "trace": jnp.trace,
    "tril": jnp.tril,
    "diagonal": jnp.diagonal,
    "einsum": lambda x: jnp.einsum("ij,jk->ik", x, x),
    "max_pool": lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2, 2), (1, 1), "VALID"),
}
KEY = jax.random.PRNGKey(0)
# A random function's dtype argument.
RANDOM = {
    "bits_dtype": lambda d: jax.random.bits(KEY, (2,), d),
    "uniform_dtype": lambda d: jax.random.uniform(KEY, (2,), d),
    "normal_dtype": lambda d: jax.random.normal(KEY, (2,), d),
    "truncated_normal_dtype": lambda d: jax.random.truncated_normal(KEY, -1, 1, (2,), d),
    "gumbel_dtype": lambda d: jax.random.gumbel(KEY, (2,), d),
    "exponential_dtype": lambda d: jax.random.exponential(KEY, (2,), d),
    "laplace_dtype": lambda d: jax.random.laplace(KEY, (2,), d),
    "logistic_dtype": lambda d: jax.random.logistic(KEY, (2,), d),
    "cauchy_dtype": lambda d: jax.random.cauchy(KEY, (2,), d),
    "rademacher_dtype": lambda d: jax.random.rademacher(KEY, (2,), d),
    "randint_dtype": lambda d: jax.random.randint(KEY, (2,), 0, 5, d),
    "orthogonal_dtype": lambda d: jax.random.orthogonal(KEY, 2, (), d),
}


def table(x64):
    types = [name for name in DTYPES if x64 or name not in SIXTY_FOUR] + list(WEAK)
    # JAX casts the lowest float, from which a maximum starts, to integer types.
    with jax.enable_x64(x64), np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_two = {
            name: {a: {b: result(fn, a, b, x64=x64) for b in types} for a in types} for name, fn in BINARY.items()
        }
        functions = {name: {a: result(fn, a, x64=x64) for a in types} for name, fn in FUNCTIONS.items()}
        for name, fn in MATRIX.items():
            functions[name] = {a: result(fn, a, x64=x64, shape=(2, 2)) for a in types}
        strong = [name for name in types if name not in WEAK]
        random = {name: {a: result(lambda: fn(DTYPES[a]), x64=x64) for a in strong} for name, fn in RANDOM.items()}
    return {"types": types, "functions": functions, "matrices": [*MATRIX], "functions_of_two": of_two, "random": random}


def narrow():
    with jax.enable_x64(True):
        return {a: {b: result(jnp.add, a, b, x64=True) for b in [*DTYPES, *WEAK, *NARROW]} for a in NARROW}


def lines(value, depth):
    """JSON with one line for each entry of the last level, so that a change is readable."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(item, depth - 1)}" for key, item in value.items()) + "\n}"


def encode():
    content = {
        "about": (
            "[dtype, weak] of a result, a list of them for several. functions[f][a]: f of an array of a. functions_of_two[f][a][b]: f"
            " of arrays of a and b. random[f][a]: f with the dtype argument a. null where JAX rejects. i*, f*, c* are weak types (plain"
            " numbers). x64 and x32: jax_enable_x64 on and off. narrow[a][b]: the sum of elements of 8 bits and fewer and others."
        ),
        "x64": table(True),
        "x32": table(False),
        "narrow": narrow(),
    }
    return (lines(content, 3) + "\n").encode()
