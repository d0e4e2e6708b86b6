"""JAX's type promotion, as plain JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from golden import DTYPES, SIXTY_FOUR, short

WEAK = {"i*": "i", "f*": "f", "c*": "c"}


def struct(name, x64):
    if name in WEAK:
        dtype = WEAK[name] + ({"i": "64", "f": "64", "c": "128"} if x64 else {"i": "32", "f": "32", "c": "64"})[WEAK[name]]
        return jax.ShapeDtypeStruct((2,), DTYPES[dtype], weak_type=True)
    return jax.ShapeDtypeStruct((2,), DTYPES[name])


def result(fn, *names, x64):
    found = jax.eval_shape(fn, *(struct(name, x64) for name in names))
    return [short(found.dtype), bool(found.weak_type)]


FUNCTIONS = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "cumsum": jnp.cumsum,
    "mean": jnp.mean,
    "var": jnp.var,
    "max": jnp.max,
    "argmax": jnp.argmax,
    "exp": jnp.exp,
    "sqrt": jnp.sqrt,
    "abs": jnp.abs,
    "square": jnp.square,
    "negative": jnp.negative,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
    "logsumexp": jax.nn.logsumexp,
}
BINARY = {
    "divide": jnp.divide,
    "floor_divide": jnp.floor_divide,
    "power": jnp.power,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "maximum": jnp.maximum,
    "matmul": jnp.matmul,
    "arctan2": jnp.arctan2,
}


def table(x64):
    types = [name for name in DTYPES if x64 or name not in SIXTY_FOUR] + list(WEAK)
    # JAX casts the lowest float, from which a maximum starts, to integer types.
    with jax.enable_x64(x64), np.errstate(invalid="ignore"):
        pairs = {a: {b: result(lambda x, y: jnp.where(True, x, y), a, b, x64=x64) for b in types} for a in types}
        functions = {}
        for name, fn in [*FUNCTIONS.items(), *BINARY.items()]:
            functions[name] = {}
            for a in types:
                try:
                    functions[name][a] = result(fn, *([a] if name in FUNCTIONS else [a, a]), x64=x64)
                except (TypeError, ValueError):
                    functions[name][a] = None
    return {"types": types, "pairs": pairs, "functions": functions}


def lines(value, depth):
    """JSON with one line for each entry of the third level, so that a change is readable."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(item, depth - 1)}" for key, item in value.items()) + "\n}"


def encode():
    content = {
        "about": (
            "[dtype, weak] of a result. pairs[a][b]: promotion of a with b. functions[f][a]: f of an array of a, of two for those"
            " of two arguments; null where JAX refuses. i*, f*, c* are weak types (plain numbers). x64 and x32: jax_enable_x64 on and"
            " off."
        ),
        "x64": table(True),
        "x32": table(False),
    }
    return (lines(content, 3) + "\n").encode()
