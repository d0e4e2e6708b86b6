"""JAX's largest errors on the arguments of `functions.py`, in units in the last place of float32 and float64.

Writes `crates/shardax/tests/accuracy/jax.txt`: a line for each function that JAX has, with its dtype and the largest errors of
the function, of its first derivatives and of its second derivatives; `inf` is NaN or an infinite result, and `-` what JAX
does not differentiate.

    python tools/golden/functions_jax.py
    python tools/golden/functions_jax.py tanh pow    # only these, replacing their lines
"""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import jax.scipy.stats as stats
import numpy

from functions import FILE, FUNCTIONS, read

jax.config.update("jax_enable_x64", True)

# The same as in `tests/accuracy/measure.rs`.
MARGIN = 1024.0

# Functions whose name is not JAX's, or that have parameters.
NAMED = {
    "rsqrt": jax.lax.rsqrt,
    "elu": lambda x: jax.nn.elu(x, 1.5),
    "celu": lambda x: jax.nn.celu(x, 1.5),
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "loggamma": special.gammaln,
    "multigammaln": lambda x: special.multigammaln(x, 3),
    "si": lambda x: special.sici(x)[0],
    "ci": lambda x: special.sici(x)[1],
    "fresnel_s": lambda x: special.fresnel(x)[0],
    "fresnel_c": lambda x: special.fresnel(x)[1],
    "pow": jnp.power,
    "entr": special.entr,
    "binom_10.logpmf": lambda k, p: stats.binom.logpmf(k, 10, p),
    "nbinom_10.logpmf": lambda k, p: stats.nbinom.logpmf(k, 10, p),
    "beta_1.logpdf": lambda x, a: stats.beta.logpdf(x, a, 2.5),
} | {f"polygamma{n}": (lambda x, n=n: special.polygamma(n, x)) for n in (1, 2, 3, 4, 20)} | {
    f"expn{n}": (lambda x, n=n: special.expn(n, x)) for n in (0, 1, 2, 3, 7, 50)
}


def of_name(name):
    if name in NAMED:
        return NAMED[name]
    if name.startswith("betainc"):
        a, b = (float(number) for number in name.split("_")[1:])
        return lambda x: special.betainc(jnp.asarray(a, x.dtype), jnp.asarray(b, x.dtype), x)
    if name.startswith("truncnorm"):
        numbers, function = name.rsplit(".", 1)
        a, b = (float(number) for number in numbers.split("_")[1:])
        return lambda x: getattr(stats.truncnorm, function)(x, a, b)
    if "." in name:
        distribution, function = name.split(".")
        return getattr(getattr(stats, distribution, None), function, None)
    for module in (jax.nn, special, jnp):
        if hasattr(module, name):
            return getattr(module, name)
    return None


def units(result, value, info):
    """As `Limits::units`."""
    epsilon, small, large = float(info.eps), float(info.tiny) * MARGIN, float(info.max) / MARGIN
    at_limit = numpy.where(abs(value) > large, result * numpy.sign(value) > large, (abs(value) < small) & (abs(result) < small))
    with numpy.errstate(all="ignore"):
        exponent = numpy.floor(numpy.log2(numpy.maximum(abs(value), float(info.tiny))))
        error = abs(result - value) / (numpy.exp2(exponent) * epsilon)
    error = numpy.where(numpy.isnan(error), numpy.inf, error)
    return numpy.where(at_limit | numpy.isnan(value), 0.0, error)


def errors(function, f, arguments, rows, dtype):
    info = numpy.finfo(dtype)
    rounded = arguments.astype(dtype).astype(numpy.float64)
    normal = (arguments == 0) | ((abs(arguments) >= float(info.tiny) * 2) & (abs(arguments) <= float(info.max)))
    columns = ((rounded == arguments) & normal).all(0)
    args = [jnp.asarray(row[columns], dtype) for row in arguments]
    result = []
    count = len(function.partials)
    for order in range(3):
        worst = 0.0
        for place, operand in enumerate(function.partials if order else (0,)):
            g = f
            for _ in range(order):
                g = jax.grad(lambda *a, g=g, operand=operand: g(*a).sum(), operand)
            row = rows[0 if order == 0 else 1 + (order - 1) * count + place][columns]
            try:
                got = numpy.asarray(jax.jit(g)(*args), numpy.float64)
            except Exception:  # Whatever a function without this derivative raises.
                worst = None
                break
            worst = max(worst, units(got, row, info).max(initial=0.0))
        result.append("-" if worst is None else f"{worst:.3g}")
    return result


# Functions that take JAX more than ten minutes in a dtype, or forever.
ENDLESS = {("zeta", "float64")}


def main():
    tensors = read(FILE)
    path = FILE.parent / "jax.txt"
    names = sys.argv[1:] or list(FUNCTIONS)
    lines = path.read_text().splitlines() if sys.argv[1:] else []
    lines = [line for line in lines if line.split()[0] not in names]
    for name in names:
        f = of_name(name)
        if f is None or f"{name}/x" not in tensors:
            continue
        for dtype in ("float32", "float64"):
            if (name, dtype) in ENDLESS:
                continue
            found = errors(FUNCTIONS[name], f, tensors[f"{name}/x"], tensors[f"{name}/y"], numpy.dtype(dtype))
            lines.append(" ".join([name, dtype, *found]))
            path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    with numpy.errstate(all="ignore"), jax.numpy_dtype_promotion("standard"):
        main()
