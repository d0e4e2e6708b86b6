"""True values of functions of one to three numbers, and of their first and second derivatives.

Writes `crates/shardax/tests/accuracy/values.safetensors`, which the test of the same folder compares shardax with:

    python tools/golden/functions.py                 # all functions
    python tools/golden/functions.py tanh pow        # recompute these functions only

Needs mpmath, scipy and JAX. The values have 700 bits or more before they are rounded to float64. Arguments are
float32 numbers where they are in its range, so that one value is the truth of both dtypes. JAX is run on the same
arguments, and its largest errors are stored next to the values.

A function of one number has the rows f, f', f''; a function f(x, y) of two numbers has f, f_x, f_y, f_xx, f_yy, and so on. NaN marks
values that are not compared: arguments outside of the domain, poles and kinks.
"""

import json
import pathlib
import signal
import sys
import time

import mpmath
import numpy
from mpmath import mp, mpf

FILE = pathlib.Path(__file__).parents[2] / "crates/shardax/tests/accuracy/values.safetensors"

BITS = 700
MORE_BITS = 3200
INF = mpf("inf")


def float32s(values):
    """Float64 numbers, which are float32 numbers where that has them."""
    rounded = []
    for value in values:
        size = abs(value)
        rounded.append(float(numpy.float32(value)) if size == 0 or 1.2e-38 < size < 3.4e38 else float(value))
    return sorted(set(rounded))


def spread(low, high, count):
    return list(numpy.geomspace(low, high, count))


# The arguments: kinds of grids of one number, and of the numbers of a pair.

def positive_line():
    return (
        spread(1.3e-38, 3.3e38, 90)
        + spread(1e-3, 1.2e3, 130)
        + spread(1e-300, 1e-38, 12)
        + spread(1e39, 1e300, 12)
        + [1.0, 2.0, 0.5, 88.0, 88.7, 89.5, 91.0, 104.0, 700.0, 709.5, 711.0, 713.0, 746.0]
    )


def line():
    positive = positive_line()
    # Between negative integers, next to them, and next to 0.
    poles = [-n - f for n in (0, 1, 2, 3, 8, 9, 16, 20, 33, 60) for f in (1e-3, 0.02, 0.25, 0.5, 0.9)]
    return float32s(positive + [-x for x in positive] + poles)


def positive():
    return float32s(positive_line() + [1 + s * d for d in spread(1e-7, 0.3, 30) for s in (1, -1)])


def unit():
    near = spread(1.3e-38, 0.49, 110) + spread(1e-300, 1e-39, 12)
    return float32s(near + [1 - x for x in spread(6e-8, 0.49, 60)] + [0.5])


def symmetric_unit():
    near = spread(1.3e-38, 0.49, 80) + spread(1e-300, 1e-39, 8) + [1 - x for x in spread(6e-8, 0.5, 60)]
    return float32s(near + [-x for x in near])


def above_one():
    return float32s([1 + x for x in spread(1.3e-7, 1e3, 120)] + spread(1e3, 3e38, 60) + spread(1e39, 1e300, 12))


def pairs(xs, ys):
    return [(x, y) for x in float32s(xs) for y in float32s(ys)]


WIDE = spread(1e-30, 1e-4, 6) + spread(1e-3, 30, 12) + [88.7, 150.0, 1e3] + spread(1e4, 1e30, 6)
SIGNED = WIDE[::2] + [-x for x in WIDE[1::2]] + [-0.5, 0.5]
SHAPES = spread(1e-6, 1e-2, 4) + [0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.5, 10.0, 30.0, 100.0, 1e3, 1e4]
PROBABILITIES = [1e-30, 1e-10, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.99999]
COUNTS = [0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e4]

FUNCTIONS = {}


class Function:
    def __init__(self, name, grid, f, slopes=None, partials=None, bits=None):
        self.name, self.grid, self.f, self.slopes, self.bits = name, grid, f, slopes, bits
        # The index of the operands that are differentiated.
        self.partials = partials
        FUNCTIONS[name] = self


def one(name, grid, f, slopes=None, **more):
    Function(name, [(x,) for x in grid], f, slopes, partials=(0,), **more)


def two(name, grid, f, slopes=None, partials=(0, 1), **more):
    Function(name, grid, f, slopes, partials=partials, **more)


def within(condition, value):
    """A value of a function where its argument is in the domain."""
    return value() if condition else mpf("nan")


# Elementary functions.
def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def softplus(x):
    return mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x))


def sinc(x):
    return mp.mpf(1) if x == 0 else mp.sinpi(x) / (mp.pi * x)


def sinc_slopes(x, y):
    slope = (mp.cospi(x) - y) / x
    return slope, -mp.pi**2 * y - 2 * slope / x


def gelu(x):
    return x * sigmoid(mp.sqrt(8 / mp.pi) * (x + mpf(0.044715) * x**3))


def sigmoid_slopes(x, y):
    slope = sigmoid(x) * sigmoid(-x)
    return slope, -slope * mp.tanh(x / 2)


def squareplus_slopes(x, y):
    root = mp.sqrt(x * x + 4)
    return y / root, 2 / root**3


def arcsine_slopes(x, y):
    root = mp.sqrt((1 - x) * (1 + x))
    return 1 / root, x / root**3


def erfc(x):
    """Beyond 40 from 0 it is 0 or 2 to all digits of float64, and its slope is 0."""
    return mpf(0) if x > 40 else mpf(2) if x < -40 else mp.erfc(x)


def upper_normal(x):
    return erfc(x / mp.sqrt(2)) / 2


def normal_density(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) if abs(x) < 60 else mpf(0)


def error_slopes(sign):
    return lambda x, y: tuple(
        sign * 2 / mp.sqrt(mp.pi) * factor * mp.exp(-x * x) if abs(x) < 40 else mpf(0) for factor in (1, -2 * x))


def normal_slopes(sign):
    return lambda x, y: (sign * normal_density(x), -sign * x * normal_density(x))


def scaled_erfc(x):
    """`exp(x²) erfc(x)`, by the asymptotic series where it has all bits."""
    if x < -4000:
        return mp.inf
    if x < 50:
        return mp.exp(x * x) * mp.erfc(x)
    term, total = mpf(1), mpf(1)
    for k in range(1, 2000):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
        if abs(term) < mp.eps:
            break
    return total / (x * mp.sqrt(mp.pi))


def log_upper(x):
    """The logarithm of the upper tail of the normal distribution."""
    if x < 0:
        return mp.log1p(-upper_normal(-x))
    return mp.log(scaled_erfc(x / mp.sqrt(2)) / 2) - x * x / 2


def log_upper_slopes(x):
    ratio = normal_density(x) / upper_normal(x) if x < 0 else mp.sqrt(2 / mp.pi) / scaled_erfc(x / mp.sqrt(2))
    return -ratio, -ratio * (ratio - x)


def dawson(x):
    if abs(x) < 50:
        return mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)
    term, total = mpf(1), mpf(1)
    for k in range(1, 2000):
        term *= (2 * k - 1) / (2 * x * x)
        total += term
        if abs(term) < mp.eps:
            break
    return total / (2 * x)


def scaled_bessel(order, x):
    """`exp(-|x|) I(x)`, by the asymptotic series where it has all bits."""
    size = abs(x)
    if size < 3000:
        value = mp.besseli(order, size) * mp.exp(-size)
    else:
        term, value = mpf(1), mpf(1)
        for k in range(1, 2000):
            term *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k * size)
            value += term
            if abs(term) < mp.eps:
                break
        value /= mp.sqrt(2 * mp.pi * size)
    return -value if x < 0 and order % 2 else value


def scaled_bessel_slopes(order):
    def slopes(x, y):
        s = mp.sign(x) if x else 1
        before, value, after = (scaled_bessel(abs(order + d), x) for d in (-1, 0, 1))
        far, beyond = scaled_bessel(abs(order - 2), x), scaled_bessel(order + 2, x)
        rise, curve = (before + after) / 2, (far + 2 * value + beyond) / 4
        return rise - s * value, curve - 2 * s * rise + value
    return slopes


def negative_part(x, alpha, scale=1):
    return scale * x if x > 0 else scale * alpha * mp.expm1(x)


one("exp", line(), mp.exp)
one("exp2", line(), lambda x: mpf(2) ** x)
one("expm1", line(), mp.expm1)
one("log", positive(), mp.log)
one("log2", positive(), lambda x: mp.log(x) / mp.log(2))
one("log10", positive(), lambda x: mp.log(x) / mp.log(10))
one("log1p", [x for x in line() if x > -1] + [-1 + 2.0**-k for k in range(1, 24)], mp.log1p)
one("sqrt", positive(), mp.sqrt)
one("rsqrt", positive(), lambda x: 1 / mp.sqrt(x))
one("cbrt", line(), lambda x: mp.cbrt(x) if x >= 0 else -mp.cbrt(-x))
one("sin", line(), mp.sin)
one("cos", line(), mp.cos)
one("tan", line(), mp.tan)
one("arcsin", symmetric_unit(), mp.asin, arcsine_slopes)
one("arccos", symmetric_unit(), mp.acos, lambda x, y: tuple(-s for s in arcsine_slopes(x, y)))
one("arctan", line(), mp.atan)
one("sinh", line(), mp.sinh)
one("cosh", line(), mp.cosh)
one("tanh", line(), mp.tanh)
one("arcsinh", line(), mp.asinh)
one("arccosh", above_one(), mp.acosh)
one("arctanh", symmetric_unit(), mp.atanh)
one("sinc", line(), sinc, sinc_slopes)
one("reciprocal", line(), lambda x: 1 / x)
one("square", line(), lambda x: x * x)

# Activations.
one("sigmoid", line(), sigmoid, sigmoid_slopes)
one("log_sigmoid", line(), lambda x: -softplus(-x))
one("softplus", line(), softplus)
one("silu", line(), lambda x: x * sigmoid(x))
one("mish", line(), lambda x: x * mp.tanh(softplus(x)))
one("gelu", line(), gelu)
one("gelu_exact", line(), lambda x: x * upper_normal(-x), lambda x, y: (
    upper_normal(-x) + x * normal_density(x), (2 - x * x) * normal_density(x)))
one("soft_sign", line(), lambda x: x / (1 + abs(x)))
one("selu", line(), lambda x: negative_part(x, mpf(1.6732632423543772), mpf(1.0507009873554805)))
one("elu", line(), lambda x: negative_part(x, mpf(1.5)))
one("celu", line(), lambda x: x if x > 0 else mpf(1.5) * mp.expm1(x / mpf(1.5)))
one("squareplus", line(), lambda x: (x + mp.sqrt(x * x + 4)) / 2 if x > 0 else 2 / (mp.sqrt(x * x + 4) - x), squareplus_slopes)
one("log1mexp", positive(), lambda x: mp.log(-mp.expm1(-x)) if x < 1 else mp.log1p(-mp.exp(-x)))
one("leaky_relu", line(), lambda x: x if x > 0 else x * mpf(0.01))
one("hard_silu", [x for x in line() if abs(x) != 3 and x != -1.5], lambda x: x * min(max(x + 3, 0), 6) / 6)
one("sparse_plus", [x for x in line() if abs(x) != 1], lambda x: x if x >= 1 else mpf(0) if x <= -1 else (x + 1) ** 2 / 4)

# Special functions.
one("erf", line(), lambda x: mp.erf(x) if abs(x) < 40 else mp.sign(x), error_slopes(1))
one("erfc", line(), erfc, error_slopes(-1))
one("erfinv", symmetric_unit(), mp.erfinv, lambda x, y: (
    mp.sqrt(mp.pi) / 2 * mp.exp(y * y), mp.pi / 2 * y * mp.exp(2 * y * y)))


def erfc_inverse(y):
    """By Newton's method from SciPy's value."""
    import scipy.special
    x = mpf(float(scipy.special.erfcinv(float(y))))
    for _ in range(7):
        step = (mp.erfc(x) - y) / (-2 / mp.sqrt(mp.pi) * mp.exp(-x * x))
        x -= step / (1 + x * step)
    return x


def quantile(p):
    return -mp.sqrt(2) * erfc_inverse(2 * p)


def quantile_slopes(p, x):
    slope = mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
    return slope, x * slope * slope


one("erfcinv", unit() + [1 + x for x in unit() if 1e-7 < x < 0.99], erfc_inverse, lambda y, x: (
    -mp.sqrt(mp.pi) / 2 * mp.exp(x * x), mp.pi / 2 * x * mp.exp(2 * x * x)))
one("ndtr", line(), lambda x: upper_normal(-x), normal_slopes(1))
one("log_ndtr", line(), lambda x: log_upper(-x), lambda x, y: (-log_upper_slopes(-x)[0], log_upper_slopes(-x)[1]))
one("ndtri", unit(), quantile, quantile_slopes)
one("erfcx", line(), scaled_erfc, lambda x, y: (
    2 * x * y - 2 / mp.sqrt(mp.pi), 2 * y + 2 * x * (2 * x * y - 2 / mp.sqrt(mp.pi))) if mp.isfinite(y) else (-mp.inf, mp.inf))
one("dawsn", line(), dawson, lambda x, y: (1 - 2 * x * y, -2 * y - 2 * x * (1 - 2 * x * y)))
one("gammaln", line(), lambda x: mp.log(abs(mp.gamma(x))) if x < 0 else mp.loggamma(x),
    lambda x, y: (psi(0)(x), psi(1)(x)), bits=300)
one("loggamma", positive(), mp.loggamma, lambda x, y: (mp.psi(0, x), mp.psi(1, x)), bits=300)
one("gamma", [x for x in line() if -200 < x < 800], mp.gamma, lambda x, y: (
    y * mp.psi(0, x), y * (mp.psi(0, x) ** 2 + mp.psi(1, x))), bits=300)
one("factorial", [x for x in line() if 0 < x < 800], lambda x: mp.gamma(x + 1), lambda x, y: (
    y * mp.psi(0, x + 1), y * (mp.psi(0, x + 1) ** 2 + mp.psi(1, x + 1))), bits=300)


def psi(n):
    """Far below 0 by reflection, where mpmath would sum for long; only up to the first hundreds."""
    return lambda x: within(-300 < x, lambda: mp.psi(n, x))


def psi_slopes(n):
    return lambda x, y: (psi(n + 1)(x), psi(n + 2)(x))


for order, name in enumerate(["digamma", "polygamma1", "polygamma2", "polygamma3", "polygamma4"]):
    one(name, line(), psi(order), psi_slopes(order), bits=300)
one("polygamma20", line(), psi(20), psi_slopes(20), bits=300)
one("multigammaln", [x for x in positive() if x > 1], lambda x: (
    mpf(3) / 2 * mp.log(mp.pi) + mp.loggamma(x) + mp.loggamma(x - mpf(1) / 2) + mp.loggamma(x - 1)))
one("logit", [x for x in unit() if x != 0.5], lambda x: mp.log(x / (1 - x)))
one("expit", line(), sigmoid, sigmoid_slopes)
one("entr", positive(), lambda x: -x * mp.log(x))
one("i0e", line(), lambda x: scaled_bessel(0, x), scaled_bessel_slopes(0))
one("i1e", line(), lambda x: scaled_bessel(1, x), scaled_bessel_slopes(1))
one("i0", [x for x in line() if abs(x) < 1e3], lambda x: mp.besseli(0, x), lambda x, y: (
    mp.besseli(1, x), (mp.besseli(0, x) + mp.besseli(2, x)) / 2))
one("i1", [x for x in line() if abs(x) < 1e3], lambda x: mp.besseli(1, x), lambda x, y: (
    (mp.besseli(0, x) + mp.besseli(2, x)) / 2, (3 * mp.besseli(1, x) + mp.besseli(3, x)) / 4))


def exponential_integral(x):
    if x == 0:
        return mpf("nan")
    if abs(x) > 3000:
        return None
    return mp.re(mp.ei(x))


one("expi", line(), exponential_integral, lambda x, y: (mp.exp(x) / x, mp.exp(x) * (x - 1) / (x * x)))
for n in (0, 1, 2, 3, 7, 50):
    one(f"expn{n}", [x for x in positive() if x < 800], lambda x, n=n: mp.expint(n, x) if n else mp.exp(-x) / x,
        lambda x, y, n=n: (-mp.expint(n - 1, x), mp.expint(n - 2, x)))
one("spence", positive(), lambda x: mp.re(mp.polylog(2, 1 - x)) if x < 1e8 else (
    -mp.log(x) ** 2 / 2 - mp.pi**2 / 6 - mp.polylog(2, 1 / (1 - x)) + mp.log(x) ** 2 / 2 - mp.log(x - 1) ** 2 / 2),
    lambda x, y: (mp.log(x) / (1 - x), (1 / x * (1 - x) + mp.log(x)) / (1 - x) ** 2) if x != 1 else (mpf(-1), mpf(1) / 2))
one("si", line(), mp.si, lambda x, y: (mp.sin(x) / x, mp.cos(x) / x - mp.sin(x) / x**2))
one("ci", positive(), mp.ci, lambda x, y: (mp.cos(x) / x, -mp.sin(x) / x - mp.cos(x) / x**2))
one("fresnel_s", line(), mp.fresnels, lambda x, y: (mp.sinpi(x * x / 2), mp.pi * x * mp.cospi(x * x / 2)))
one("fresnel_c", line(), mp.fresnelc, lambda x, y: (mp.cospi(x * x / 2), -mp.pi * x * mp.sinpi(x * x / 2)))


# Functions of two numbers.
def log_beta(a, b):
    return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)


def logaddexp(x, y):
    return max(x, y) + mp.log1p(mp.exp(-abs(x - y)))


def power_of_log(log, l):
    return log if l == 0 else mp.expm1(l * log) / l


def owens_t(h, a):
    if abs(h) > 40 or abs(a) > 1e6:
        return None
    with mp.workprec(150):
        return mp.quad(lambda t: mp.exp(-h * h * (1 + t * t) / 2) / (1 + t * t), [a * step for step in (0, 1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1)]) / (2 * mp.pi)


two("pow", pairs(WIDE, SIGNED), lambda x, y: x**y)
two("float_power", pairs(WIDE[::2], SIGNED[::2]), lambda x, y: x**y)
two("arctan2", pairs(SIGNED, SIGNED), mp.atan2)
two("hypot", pairs(SIGNED, SIGNED), mp.hypot)
two("divide", pairs(SIGNED[::2], SIGNED[::2]), lambda x, y: x / y)
two("logaddexp", pairs(SIGNED, SIGNED), logaddexp)
two("logaddexp2", pairs(SIGNED[::2], SIGNED[::2]), lambda x, y: logaddexp(x * mp.log(2), y * mp.log(2)) / mp.log(2))
two("xlogy", pairs(SIGNED, WIDE), lambda x, y: x * mp.log(y))
two("xlog1py", pairs(SIGNED, WIDE + [-p for p in PROBABILITIES]), lambda x, y: x * mp.log1p(y))
two("rel_entr", pairs(WIDE, WIDE), lambda p, q: p * mp.log(p / q), lambda p, q, y: (
    mp.log(p / q) + 1, -p / q, 1 / p, p / q**2))
two("kl_div", pairs(WIDE, WIDE), lambda p, q: p * mp.log(p / q) - p + q, lambda p, q, y: (
    mp.log(p / q), 1 - p / q, 1 / p, p / q**2))
two("betaln", pairs(SHAPES, SHAPES), log_beta)
two("beta", pairs(SHAPES, SHAPES), lambda a, b: mp.exp(log_beta(a, b)))
two("boxcox", pairs(WIDE, [-3.0, -1.0, -0.01, -1e-8, 1e-8, 0.01, 0.5, 1.0, 2.0, 10.0]), lambda x, l: power_of_log(mp.log(x), l))
two("boxcox1p", pairs(WIDE, [-3.0, -1.0, -0.01, -1e-8, 1e-8, 0.01, 0.5, 1.0, 2.0, 10.0]), lambda x, l: power_of_log(mp.log1p(x), l))
two("comb", pairs([1.0, 2.5, 5.0, 10.0, 30.0, 100.0], [0.5, 1.0, 2.5, 5.0, 9.0]),
    lambda n, k: within(k <= n, lambda: mp.binomial(n, k)))
two("poch", pairs(SHAPES[2:14], [0.5, 1.0, 2.5, 5.0, 9.0]), lambda z, m: mp.rf(z, m))


def log_gamma_density(x, a):
    return (a - 1) * mp.log(x) - x - mp.loggamma(a)


X_OF_SHAPES = spread(1e-30, 1e-3, 5) + spread(1e-2, 1e3, 14) + [87.0, 9.9e3, 1e4, 1.1e4, 2e4]


def lower_gamma(a, x):
    return mp.gammainc(a, 0, x, regularized=True)


def upper_gamma(a, x):
    return mp.gammainc(a, x, mp.inf, regularized=True)


GAMMA_GRID = pairs(SHAPES[:-1], X_OF_SHAPES[:-3])
two("gammainc", GAMMA_GRID, lower_gamma)
two("gammaincc", GAMMA_GRID, upper_gamma)
two("zeta", pairs([1.01, 1.1, 1.5, 2.0, 3.0, 5.5, 10.0, 20.0, 50.0], spread(1e-3, 1e4, 15)), mp.zeta)
two("owens_t", pairs([-3.0, -0.5, 1e-10, 0.01, 0.5, 1.0, 2.0, 5.0, 9.0, 12.0, 30.0],
                     [-2.0, -0.5, 1e-10, 0.01, 0.3, 0.99, 1.0, 1.5, 5.0, 100.0]), owens_t,
    lambda h, a, y: (
        -mp.exp(-h * h / 2) * mp.erf(a * h / mp.sqrt(2)) / (2 * mp.sqrt(2 * mp.pi)),
        mp.exp(-h * h * (1 + a * a) / 2) / (1 + a * a) / (2 * mp.pi), None, None))

def betainc(a, b, x):
    with mp.workprec(min(mp.prec, 420)):
        return mp.betainc(a, b, 0, x, regularized=True)


def beta_density(a, b, x):
    return mp.exp((a - 1) * mp.log(x) + (b - 1) * mp.log1p(-x) - log_beta(a, b))


for a, b in ((0.5, 0.5), (2.0, 3.0), (30.0, 5.0), (1e-3, 10.0), (300.0, 400.0)):
    a, b = float(numpy.float32(a)), float(numpy.float32(b))
    one(f"betainc_{a:.3g}_{b:.3g}", unit()[::2], lambda x, a=a, b=b: betainc(mpf(a), mpf(b), x),
        lambda x, y, a=a, b=b: (
            beta_density(mpf(a), mpf(b), x),
            beta_density(mpf(a), mpf(b), x) * ((mpf(a) - 1) / x - (mpf(b) - 1) / (1 - x))))


# Distributions, with location 0 and scale 1 unless they say otherwise.
def exp_of(f):
    return lambda *args: mp.exp(f(*args))


def log_normal_density(x):
    return -x * x / 2 - mp.log(2 * mp.pi) / 2


one("norm.logpdf", line(), log_normal_density)
one("norm.pdf", line(), normal_density, lambda x, y: (-x * y, (x * x - 1) * y))
one("norm.cdf", line(), lambda x: upper_normal(-x), normal_slopes(1))
one("norm.sf", line(), upper_normal, normal_slopes(-1))
one("norm.logcdf", line(), lambda x: log_upper(-x), lambda x, y: (-log_upper_slopes(-x)[0], log_upper_slopes(-x)[1]))
one("norm.logsf", line(), log_upper, lambda x, y: log_upper_slopes(x))
one("norm.ppf", unit(), quantile, quantile_slopes)
one("norm.isf", unit(), lambda p: -quantile(p), lambda p, x: tuple(-s for s in quantile_slopes(p, -x)))
one("cauchy.logpdf", [x for x in line() if abs(x) != 1], lambda x: -mp.log(mp.pi) - mp.log1p(x * x))
one("cauchy.pdf", line(), lambda x: 1 / (mp.pi * (1 + x * x)))
one("cauchy.cdf", line(), lambda x: mp.atan2(1, -x) / mp.pi, lambda x, y: (
    1 / (mp.pi * (1 + x * x)), -2 * x / (mp.pi * (1 + x * x) ** 2)))
one("cauchy.logcdf", line(), lambda x: mp.log(mp.atan2(1, -x) / mp.pi) if x < 0 else mp.log1p(-mp.atan2(1, x) / mp.pi))
one("cauchy.sf", line(), lambda x: mp.atan2(1, x) / mp.pi, lambda x, y: (
    -1 / (mp.pi * (1 + x * x)), 2 * x / (mp.pi * (1 + x * x) ** 2)))
one("cauchy.logsf", line(), lambda x: mp.log(mp.atan2(1, x) / mp.pi) if x > 0 else mp.log1p(-mp.atan2(1, -x) / mp.pi))
one("cauchy.ppf", [x for x in unit() if x != 0.5], lambda q: -mp.cospi(q) / mp.sinpi(q))
one("cauchy.isf", [x for x in unit() if x != 0.5], lambda q: mp.cospi(q) / mp.sinpi(q))
one("laplace.logpdf", line(), lambda x: -abs(x) - mp.log(2))
one("laplace.pdf", line(), lambda x: mp.exp(-abs(x)) / 2)
one("laplace.cdf", line(), lambda x: mp.exp(x) / 2 if x < 0 else 1 - mp.exp(-x) / 2)
one("logistic.logpdf", line(), lambda x: -softplus(x) - softplus(-x))
one("logistic.pdf", line(), lambda x: mp.exp(-softplus(x) - softplus(-x)))
one("logistic.cdf", line(), sigmoid, sigmoid_slopes)
one("logistic.sf", line(), lambda x: sigmoid(-x), lambda x, y: tuple(-s for s in sigmoid_slopes(x, y)))
one("logistic.ppf", [x for x in unit() if x != 0.5], lambda x: mp.log(x / (1 - x)))
one("logistic.isf", [x for x in unit() if x != 0.5], lambda x: mp.log((1 - x) / x))
one("expon.logpdf", positive(), lambda x: -x)
one("expon.pdf", positive(), lambda x: mp.exp(-x))
one("expon.cdf", positive(), lambda x: -mp.expm1(-x))
one("expon.sf", positive(), lambda x: mp.exp(-x))
one("expon.logcdf", positive(), lambda x: mp.log(-mp.expm1(-x)) if x < 1 else mp.log1p(-mp.exp(-x)))
one("expon.logsf", positive(), lambda x: -x)
one("expon.ppf", unit(), lambda q: -mp.log1p(-q))


def log_gumbel(z):
    return -z - mp.exp(-z)


def gumbel_slopes(z):
    density = mp.exp(log_gumbel(z))
    return density, density * mp.expm1(-z)


one("gumbel_r.logpdf", line(), lambda x: None if x < -4000 else log_gumbel(x))
one("gumbel_r.pdf", line(), lambda x: None if x < -40 else mp.exp(log_gumbel(x)))
one("gumbel_r.cdf", line(), lambda x: None if x < -40 else mp.exp(-mp.exp(-x)), lambda x, y: gumbel_slopes(x))
one("gumbel_r.logcdf", line(), lambda x: None if x < -4000 else -mp.exp(-x))
one("gumbel_r.sf", line(), lambda x: None if x < -40 else -mp.expm1(-mp.exp(-x)),
    lambda x, y: tuple(-s for s in gumbel_slopes(x)))
one("gumbel_r.logsf", line(), lambda x: None if x < -40 else mp.log(-mp.expm1(-mp.exp(-x))) if x > 0 else mp.log1p(-mp.exp(-mp.exp(-x))))
one("gumbel_r.ppf", unit(), lambda q: -mp.log(-mp.log(q)))
one("gumbel_l.logpdf", line(), lambda x: None if x > 4000 else log_gumbel(-x))
one("gumbel_l.pdf", line(), lambda x: None if x > 40 else mp.exp(log_gumbel(-x)))
one("gumbel_l.cdf", line(), lambda x: None if x > 40 else -mp.expm1(-mp.exp(x)),
    lambda x, y: (gumbel_slopes(-x)[0], -gumbel_slopes(-x)[1]))
one("gumbel_l.logcdf", line(), lambda x: None if x > 40 else mp.log(-mp.expm1(-mp.exp(x))) if x < 0 else mp.log1p(-mp.exp(-mp.exp(x))))
one("gumbel_l.sf", line(), lambda x: None if x > 40 else mp.exp(-mp.exp(x)),
    lambda x, y: (-gumbel_slopes(-x)[0], gumbel_slopes(-x)[1]))
one("gumbel_l.logsf", line(), lambda x: None if x > 4000 else -mp.exp(x))
one("gumbel_l.ppf", unit(), lambda q: mp.log(-mp.log1p(-q)))

SHAPE_GRID = pairs(X_OF_SHAPES, SHAPES)
two("gamma.logpdf", SHAPE_GRID, log_gamma_density)
two("gamma.pdf", SHAPE_GRID, exp_of(log_gamma_density))
two("chi2.logpdf", SHAPE_GRID, lambda x, k: (k / 2 - 1) * mp.log(x) - x / 2 - k / 2 * mp.log(2) - mp.loggamma(k / 2))
two("t.logpdf", pairs(SIGNED, SHAPES[3:]), lambda x, k: (
    mp.loggamma((k + 1) / 2) - mp.loggamma(k / 2) - mp.log(k * mp.pi) / 2 - (k + 1) / 2 * mp.log1p(x * x / k)))
two("pareto.logpdf", pairs([1.0001, 1.01, 1.5, 2.0, 5.0, 1e2, 1e10, 1e30], SHAPES), lambda x, b: mp.log(b) - (b + 1) * mp.log(x))
two("pareto.cdf", pairs([1.0001, 1.01, 1.5, 2.0, 5.0, 1e2, 1e10, 1e30], SHAPES), lambda x, b: -mp.expm1(-b * mp.log(x)))
two("pareto.sf", pairs([1.0001, 1.01, 1.5, 2.0, 5.0, 1e2, 1e10, 1e30], SHAPES), lambda x, b: mp.exp(-b * mp.log(x)))
two("pareto.logcdf", pairs([1.0001, 1.01, 1.5, 2.0, 5.0, 1e2, 1e10, 1e30], SHAPES), lambda x, b: mp.log(-mp.expm1(-b * mp.log(x))) if b * mp.log(x) < 1 else mp.log1p(-mp.exp(-b * mp.log(x))))
two("pareto.logsf", pairs([1.0001, 1.01, 1.5, 2.0, 5.0, 1e2, 1e10, 1e30], SHAPES), lambda x, b: -b * mp.log(x))
two("pareto.ppf", pairs(PROBABILITIES, SHAPES[4:]), lambda q, b: mp.exp(-mp.log1p(-q) / b))
two("gennorm.logpdf", pairs(SIGNED, [0.3, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0]), lambda x, b: mp.log(b / 2) - mp.loggamma(1 / b) - abs(x) ** b)
two("vonmises.logpdf", pairs([-3.0, -1.0, -0.1, 1e-10, 1e-3, 0.5, 2.0, 3.1], SHAPES), lambda x, k: (
    k * (mp.cos(x) - 1) - mp.log(2 * mp.pi * mp.besseli(0, k) * mp.exp(-k))))
two("wrapcauchy.logpdf", pairs([1e-10, 1e-3, 0.5, 2.0, 3.1, 6.0], PROBABILITIES), lambda x, c: (
    mp.log1p(-c * c) - mp.log(2 * mp.pi) - mp.log((1 - c) ** 2 + 2 * c * (1 - mp.cos(x)))))
two("poisson.logpmf", pairs(COUNTS, X_OF_SHAPES), lambda k, mu: k * mp.log(mu) - mu - mp.loggamma(k + 1),
    lambda k, mu, y: (k / mu - 1, -k / mu**2), partials=(1,))
two("poisson.pmf", [(k, mu) for k, mu in pairs(COUNTS, X_OF_SHAPES) if (k - mu) ** 2 != k], lambda k, mu: mp.exp(k * mp.log(mu) - mu - mp.loggamma(k + 1)),
    lambda k, mu, y: (y * (k / mu - 1), y * ((k / mu - 1) ** 2 - k / mu**2)), partials=(1,))
two("geom.logpmf", pairs(COUNTS[1:], PROBABILITIES), lambda k, p: mp.log(p) + (k - 1) * mp.log1p(-p), partials=(1,))
two("bernoulli.logpmf", pairs([0.0, 1.0], PROBABILITIES), lambda k, p: mp.log(p) if k else mp.log1p(-p), partials=(1,))
two("binom_10.logpmf", pairs([0.0, 1.0, 5.0, 10.0], PROBABILITIES), lambda k, p: (
    mp.log(mp.binomial(10, k)) + k * mp.log(p) + (10 - k) * mp.log1p(-p)), partials=(1,))
two("nbinom_10.logpmf", pairs(COUNTS, PROBABILITIES), lambda k, p: (
    mp.loggamma(k + 10) - mp.loggamma(10) - mp.loggamma(k + 1) + 10 * mp.log(p) + k * mp.log1p(-p)), partials=(1,))
two("beta_1.logpdf", pairs(PROBABILITIES, SHAPES), lambda x, a: (
    (a - 1) * mp.log(x) + (mpf(2.5) - 1) * mp.log1p(-x) - log_beta(a, mpf(2.5))))


def normal_mass(a, b):
    return upper_normal(a) - upper_normal(b) if a > 0 else upper_normal(-b) - upper_normal(-a)


TRUNCATED = ((-1.0, 2.0), (3.0, 4.0), (-30.0, -20.0))
for a, b in TRUNCATED:
    inside = float32s([a + (b - a) * t for t in [1e-4, 1e-2] + list(numpy.linspace(0.05, 0.95, 40)) + [0.99, 0.9999]])
    one(f"truncnorm_{a:g}_{b:g}.logpdf", inside, lambda x, a=a, b=b: log_normal_density(x) - mp.log(normal_mass(mpf(a), mpf(b))))
    one(f"truncnorm_{a:g}_{b:g}.logcdf", inside, lambda x, a=a, b=b: mp.log(normal_mass(mpf(a), x) / normal_mass(mpf(a), mpf(b))))
    one(f"truncnorm_{a:g}_{b:g}.cdf", inside, lambda x, a=a, b=b: normal_mass(mpf(a), x) / normal_mass(mpf(a), mpf(b)))
    one(f"truncnorm_{a:g}_{b:g}.logsf", inside, lambda x, a=a, b=b: mp.log(normal_mass(x, mpf(b)) / normal_mass(mpf(a), mpf(b))))
    one(f"truncnorm_{a:g}_{b:g}.sf", inside, lambda x, a=a, b=b: normal_mass(x, mpf(b)) / normal_mass(mpf(a), mpf(b)))


# Functions of three numbers, with derivatives with respect to each. The last operands are differentiated.
def triples(xs, ys, zs):
    return [(x, *pair) for x in float32s(xs) for pair in pairs(ys, zs)]


def three(name, grid, f, slopes=None, partials=(0, 1, 2), **more):
    Function(name, grid, f, slopes, partials=partials, **more)


SCALED = triples([-20.5, -3.0, 0.125, 7.0, 1000.0], [-2.0, 0.5, 96.0], [0.0625, 0.8125, 3.0, 500.0, 1e4])


def scaled(name, log_density):
    three(f"{name}_scaled", SCALED, lambda x, loc, scale: log_density((x - loc) / scale) - mp.log(scale))


scaled("norm.logpdf", log_normal_density)
scaled("cauchy.logpdf", lambda z: -mp.log(mp.pi) - mp.log1p(z * z))
scaled("laplace.logpdf", lambda z: -abs(z) - mp.log(2))
scaled("logistic.logpdf", lambda z: -softplus(z) - softplus(-z))
three("gumbel_r.logpdf_scaled", [p for p in SCALED if abs(p[0] - p[1]) < 80 * p[2]], lambda x, loc, scale: (
    log_gumbel((x - loc) / scale) - mp.log(scale)))
three("norm.logcdf_scaled", SCALED, lambda x, loc, scale: log_upper((loc - x) / scale))
three("norm.cdf_scaled", SCALED, lambda x, loc, scale: upper_normal((loc - x) / scale))
three("gamma.logpdf_scaled", triples([2e-5, 0.02, 0.75, 7.0, 300.0], SHAPES[::3], [0.0625, 3.0, 500.0]),
    lambda x, a, scale: log_gamma_density(x / scale, a) - mp.log(scale))
three("pareto.logpdf_scaled", triples([1.25, 7.0, 300.0, 1e10], SHAPES[::3], [1e-6, 0.0625, 1.0]),
    lambda x, b, scale: mp.log(b) - (b + 1) * mp.log(x / scale) - mp.log(scale))
three("t.logpdf_scaled", triples([-20.5, 0.125, 7.0, 1000.0], [0.01, 0.5, 1.5, 5.5, 100.0], [0.0625, 3.0, 500.0]),
    lambda x, k, scale: (mp.loggamma((k + 1) / 2) - mp.loggamma(k / 2) - mp.log(k * mp.pi) / 2
        - (k + 1) / 2 * mp.log1p((x / scale) ** 2 / k) - mp.log(scale)))
three("beta.logpdf", triples([3e-10, 1e-3, 0.125, 0.7, 0.9990234375], SHAPES[::2], SHAPES[1::2]), lambda x, a, b: (
    (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-x) - log_beta(a, b)))
three("betabinom_20.logpmf", triples([0.0, 1.0, 7.0, 20.0], SHAPES[4:12], SHAPES[5:13:2]), lambda k, a, b: (
    mp.log(mp.binomial(20, k)) + log_beta(k + a, 20 - k + b) - log_beta(a, b)), partials=(1, 2))
three("nbinom.logpmf", triples(COUNTS[:9], SHAPES[2:], PROBABILITIES[2::3]), lambda k, n, p: (
    mp.loggamma(k + n) - mp.loggamma(n) - mp.loggamma(k + 1) + n * mp.log(p) + k * mp.log1p(-p)), partials=(1, 2))
three("binom.logpmf", [(k, n, p) for k, n, p in triples(COUNTS, COUNTS[1:], PROBABILITIES[2:]) if k <= n and abs(k - n * p) > 1e-3 * k], lambda k, n, p: (
    mp.log(mp.binomial(n, k)) + k * mp.log(p) + (n - k) * mp.log1p(-p)), partials=(2,))
TRUNCATIONS = [(x, a, b) for x, a, b in triples(
    [-25.5, -7.0, -2.0, -0.375, 0.125, 1.75, 4.5, 12.0], [-30.0, -8.0, -2.5, -0.5, 1.0, 4.0, 11.5], [-25.0, -6.5, -0.25, 0.5, 2.0, 5.0, 14.0])
    if a < x < b]
three("truncnorm.logpdf", TRUNCATIONS, lambda x, a, b: log_normal_density(x) - mp.log(normal_mass(a, b)))
three("truncnorm.logcdf", TRUNCATIONS, lambda x, a, b: mp.log(normal_mass(a, x) / normal_mass(a, b)))
three("truncnorm.cdf", TRUNCATIONS, lambda x, a, b: normal_mass(a, x) / normal_mass(a, b))


def log_of_part(part, rest):
    """The logarithm of a probability, with the digits of the smaller of it and its complement."""
    return mp.log(part) if part < 0.5 else mp.log1p(-rest)


def beta_slopes(a, b, x, y):
    density = beta_density(a, b, x)
    return density, density * ((a - 1) / x - (b - 1) / (1 - x))


def log_slopes(density, rise, log, sign):
    """The slopes of the logarithm of a probability, whose density has a logarithm with this slope."""
    rate = sign * density * mp.exp(-log)
    return rate, rate * (rise - rate)


def log_beta_slopes(sign):
    return lambda a, b, x, y: log_slopes(beta_density(a, b, x), (a - 1) / x - (b - 1) / (1 - x), y, sign)


def log_gamma_slopes(sign):
    def slopes(a, x, y):
        # The rate of the exponential distribution is constant: a difference of rates would be a number of rounded digits.
        if a == 1 and sign < 0:
            return mpf(-1), mpf(0)
        return log_slopes(mp.exp(log_gamma_density(x, a)), (a - 1) / x - 1, y, sign)
    return slopes


BETA_GRID = [(a, b, x) for a, b, x in triples(SHAPES[1:-1:2], SHAPES[:-1:2], [1e-10, 1e-3, 0.0625, 0.3, 0.7, 0.9, 0.9990234375])
    if abs((a - 1) / x - (b - 1) / (1 - x)) > 1e-3 * ((a + 1) / x)]
three("betainc", BETA_GRID, betainc, beta_slopes, partials=(2,))
three("beta.logcdf", BETA_GRID, lambda a, b, x: log_of_part(betainc(a, b, x), betainc(b, a, 1 - x)), log_beta_slopes(1), partials=(2,))
three("beta.logsf", BETA_GRID, lambda a, b, x: log_of_part(betainc(b, a, 1 - x), betainc(a, b, x)), log_beta_slopes(-1), partials=(2,))

# Logarithms of incomplete gamma functions.
two("gamma.logcdf", GAMMA_GRID, lambda a, x: log_of_part(lower_gamma(a, x), upper_gamma(a, x)), log_gamma_slopes(1), partials=(1,))
two("gamma.logsf", GAMMA_GRID, lambda a, x: log_of_part(upper_gamma(a, x), lower_gamma(a, x)), log_gamma_slopes(-1), partials=(1,))
two("gennorm.cdf", pairs([0.3, 0.5, 1.5, 2.0, 5.0], [x for x in SIGNED if abs(x) < 1e3]), lambda b, x: (
    1 - upper_gamma(1 / b, x**b) / 2 if x > 0 else upper_gamma(1 / b, (-x) ** b) / 2), partials=(1,))
two("poisson.cdf", pairs(COUNTS[:9], X_OF_SHAPES[:-3]), lambda k, mu: upper_gamma(k + 1, mu), partials=(1,))


# Derivatives by central differences of so many bits that their error is far below that of float64.

def number(value):
    return mpf("nan") if value is None else mp.re(value)


def differences(f, x):
    """f, f' and f'' at x."""
    for bits in (BITS, MORE_BITS):
        with mp.workprec(bits):
            h = mp.ldexp(min(abs(x), 1) if x else 1, -100)
            low, mid, high = (number(f(at)) for at in (x - h, x, x + h))
            first, second = (high - low) / (2 * h), (high - 2 * mid + low) / (h * h)
            if mp.isnan(first) or mp.isnan(second):
                return mid, first, second
            smallest = mp.ldexp(abs(mid), 140 - bits)
            if (abs(first * h) > smallest and abs(second * h * h) > smallest) or bits == MORE_BITS:
                zero = mp.ldexp(abs(mid), 60 - bits)
                return mid, first if abs(first * h) > zero else mpf(0), second if abs(second * h * h) > zero else mpf(0)


def to_float(value):
    value = number(value)
    return float(value) if not mp.isnan(value) else float("nan")


class TooSlow(Exception):
    pass


def too_slow(*_):
    raise TooSlow


signal.signal(signal.SIGALRM, too_slow)


def attempt(f, *args):
    """The result, or none where mpmath has none within a few seconds."""
    signal.alarm(4)
    try:
        return f(*args)
    except (TooSlow, ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.NoConvergence, TypeError):
        return None
    finally:
        signal.alarm(0)


def rows(function):
    count = len(function.grid)
    height = 1 + 2 * len(function.partials)
    table = numpy.full((height, count), numpy.nan)
    for column, point in enumerate(function.grid):
        args = [mpf(x) for x in point]
        if function.slopes is not None:
            far = any(x and not 1e-40 < abs(x) < 1e40 for x in point)
            with mp.workprec(function.bits or (MORE_BITS if far else BITS)):
                value = attempt(function.f, *args)
                slopes = attempt(function.slopes, *args, value) if value is not None and not mp.isnan(mp.re(value)) else None
            table[0, column] = to_float(value)
            for row, slope in enumerate(slopes or []):
                table[1 + row, column] = to_float(slope)
            continue
        for place, operand in enumerate(function.partials):
            def of_operand(x):
                return function.f(*[x if i == operand else arg for i, arg in enumerate(args)])
            got = attempt(differences, of_operand, args[operand])
            if got is None:
                continue
            table[0, column] = to_float(got[0])
            table[1 + place, column] = to_float(got[1])
            table[1 + len(function.partials) + place, column] = to_float(got[2])
    if function.name.startswith("gammainc"):
        # Sums of mpmath that stop at an absolute precision: smaller differences have no digits.
        table[1:][abs(table[1:]) < 1e-60] = numpy.nan
    return table


def read(path):
    """The float64 tensors of a safetensors file."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    return {
        name: numpy.frombuffer(data[end + entry["data_offsets"][0]:end + entry["data_offsets"][1]]).reshape(entry["shape"])
        for name, entry in header.items() if name != "__metadata__"
    }


def write(path, tensors):
    header, body = {}, b""
    for name in sorted(tensors):
        data = tensors[name].astype("<f8").tobytes()
        header[name] = {"dtype": "F64", "shape": tensors[name].shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def main():
    FILE.parent.mkdir(exist_ok=True)
    names = sys.argv[1:] or list(FUNCTIONS)
    tensors = dict(read(FILE)) if FILE.exists() and sys.argv[1:] else {}
    for name in names:
        function = FUNCTIONS[name]
        start = time.monotonic()
        tensors[f"{name}/x"] = numpy.array(function.grid, dtype=numpy.float64).T.copy()
        tensors[f"{name}/y"] = rows(function)
        print(f"{name}: {len(function.grid)} points, {time.monotonic() - start:.1f} s", flush=True)
        write(FILE, tensors)


if __name__ == "__main__":
    main()
