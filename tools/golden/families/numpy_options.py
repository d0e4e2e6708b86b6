"""Functions of NumPy with their options: padding, sequences, sets, grids, windows, polynomials, parts of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
from golden import Family, bools, integers, normal, small, uniform, values
from jax import lax

family = Family("numpy_options")
NAN, INF = np.nan, np.inf
ODD = values([[3, NAN, -0.0, 0.0, -INF], [INF, 1, NAN, -1, 1]])


def case(op, fn, *inputs, name=None, **options):
    """A case of a function; those of one function with other options are functions of their own here."""
    family.case(f"{op}_{name or 'f32'}", fn, *inputs, op=op, **options)


def curvature(fn):
    """The gradient of sum(sin(fn)), so that derivatives of the case are second derivatives."""
    return jax.grad(lambda x: jnp.sum(jnp.sin(fn(x))))


# Padding.
W = ((2, 1), (0, 4))
for mode in ("edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "minimum", "mean", "median"):
    fn = lambda x, mode=mode: jnp.pad(x, W, mode=mode)
    case(f"pad_{mode}", fn, normal(3, 4))
    # The mean of halves rounds; in half precision statistics are rounded once.
    case(f"pad_{mode}", fn, integers(3, 4), name="i32", batch=False)
    case(f"pad_{mode}", fn, normal(3, 4, dtype="bf16"), name="bf16", batch=False, grad=False)
case("pad_reflect_odd", lambda x: jnp.pad(x, ((5, 1), (0, 9)), mode="reflect", reflect_type="odd"), normal(3, 4))
case("pad_symmetric_odd", lambda x: jnp.pad(x, ((5, 1), (0, 9)), mode="symmetric", reflect_type="odd"), normal(3, 4))
case("pad_reflect_one", lambda x: jnp.pad(x, 2, mode="reflect", reflect_type="odd"), normal(1))
case("pad_stat_length", lambda x: jnp.pad(x, 2, mode="mean", stat_length=((1, 2), (3, 9))), normal(3, 4))
case("pad_end_values", lambda x, v: jnp.pad(x, ((2, 3), (1, 2)), mode="linear_ramp", end_values=((1, -2), (3, 4))), normal(3, 4), normal())
case("pad_constant_pair", lambda x, v: jnp.pad(x, 1, constant_values=v), normal(2, 3), normal(2))
case("pad_constant_pairs", lambda x, v: jnp.pad(x, ((1, 2), (2, 0)), constant_values=v), normal(2, 3), normal(2, 2))
case("pad_constant_traced", lambda x, v: jnp.pad(x, 1, constant_values=v), normal(2, 3), normal())

# Sequences.
case("linspace_arrays", lambda a, b: jnp.linspace(a, b, 5), normal(3), normal(2, 1))
case("linspace_axis", lambda a, b: jnp.linspace(a, b, 4, axis=-1), normal(3), normal())
case("linspace_open", lambda a, b: jnp.linspace(a, b, 4, endpoint=False), normal(3), normal(3))
case("linspace_one", lambda a, b: jnp.linspace(a, b, 1), normal(3), normal(3), wrt=[0])
case("linspace_i32", lambda a, b: jnp.linspace(a, b, 7, dtype=np.int32), values(-3.5), values(9.0))
case("linspace_bf16", lambda a, b: jnp.linspace(a, b, 9, dtype=jnp.bfloat16), values(0.0), values(3.0), grad=False)
case("linspace_ints", lambda a, b: jnp.linspace(a, b, 4), values(0, "i32"), values(5, "i32"))
case("linspace_c64", lambda a, b: jnp.linspace(a, b, 4), normal(2, dtype="c64"), normal(2, dtype="c64"))
case("logspace_base", lambda a, b: jnp.logspace(a, b, 4, base=2.0), uniform(3), uniform(3))
case("logspace_open", lambda a, b: jnp.logspace(a, b, 3, endpoint=False, axis=1), uniform(3), uniform(3))
case("geomspace_arrays", lambda a, b: jnp.geomspace(a, b, 4, axis=-1), uniform(3, lo=1, hi=2), uniform(3, lo=4, hi=9), grad_tol=1e-4)

# Repeating, rolling, moving.
COUNTS = values([2, 0, 3], "i32")
case("repeat_counts", lambda x: jnp.repeat(x, np.array([2, 0, 3]), axis=1), normal(2, 3))
case("repeat_total", lambda x, n: jnp.repeat(x, n, axis=0, total_repeat_length=7), normal(3, 2), COUNTS)
case("repeat_cut", lambda x, n: jnp.repeat(x, n, total_repeat_length=4), normal(3), COUNTS)
case("repeat_scalar", lambda x, n: jnp.repeat(x, n, axis=0, total_repeat_length=5), normal(3), values(2, "i32"), batch=[(0, None)])
case("roll_traced", lambda x, n: jnp.roll(x, n, axis=1), normal(3, 4), values(-5, "i32"))
case("roll_flat", lambda x, n: jnp.roll(x, n), normal(3, 4), values(7, "i32"))
case("roll_axes", lambda x, n: jnp.roll(x, n, axis=(0, 1)), normal(3, 4), values([1, -2], "i32"))
case("roll_static", lambda x: jnp.roll(x, (1, -6, 2), axis=(0, 1, 0)), normal(3, 4))
case("roll_shared", lambda x, n: jnp.roll(x, n, axis=(0, -1)), integers(3, 4), values([2], "u8"), name="i32")
case("moveaxis_two", lambda x: jnp.moveaxis(x, (0, -1), (1, 0)), normal(2, 3, 4))
case("collapse", lambda x: lax.collapse(x, 1, 3), normal(2, 3, 4, 2))
case("collapse_last", lambda x: lax.collapse(x, -2), normal(2, 3, 4))
case("rollaxis", lambda x: jnp.rollaxis(x, 2, 1), normal(2, 3, 4))
for k in (-1, 1, 2, 4):
    case("rot90", lambda x, k=k: jnp.rot90(x, k, (1, 2)), normal(2, 3, 4), name=f"k{k}".replace("-", "m"), params={"k": k})

# Truth and numbers.
case("nan_to_num_values", lambda x: jnp.nan_to_num(x, nan=2.5, posinf=7, neginf=-8), ODD)
case("nan_to_num_traced", lambda x, n: jnp.nan_to_num(x, nan=n), ODD, normal())
case("nan_to_num_c64", lambda x: jnp.nan_to_num(x, nan=1.0, posinf=2.0), values([complex(NAN, INF), 1 + 2j], "c64"), batch=False)
case("array_equal_nan", lambda x, y: jnp.array_equal(x, y, equal_nan=True), ODD, ODD, grad=False)
case("array_equiv", jnp.array_equiv, small(1, 4, lo=1, hi=2), small(3, 4, lo=1, hi=2), grad=False, batch=False)
for op in ("isposinf", "isneginf", "signbit", "isreal", "iscomplex"):
    case(op, getattr(jnp, op), ODD, grad=False)
case("iscomplex", jnp.iscomplex, values([1 + 0j, 2j], "c64"), name="c64", grad=False)
case("signbit", jnp.signbit, integers(5), name="i32", grad=False)
case("signbit", jnp.signbit, values([-0.0, 0.0, -1.0, 1.0], "bf16"), name="bf16", grad=False)

# Elementwise.
PAIR = (values([1.0, NAN, NAN, -2.0, 0.0, INF]), values([2.0, 3.0, NAN, NAN, -0.0, 5.0]))
for op in ("fmax", "fmin"):
    case(op, getattr(jnp, op), *PAIR)
    case(op, getattr(jnp, op), integers(4), normal(4), name="mixed", batch=False)
case("divmod", jnp.divmod, normal(5, scale=9), uniform(5, lo=0.5, hi=3), grad=False)
case("divmod", jnp.divmod, integers(6), values([3, -3, 2, -2, 5, -5], "i32"), name="i32")
case("float_power", jnp.float_power, uniform(4, lo=0.5, hi=3), normal(4))
case("float_power", jnp.float_power, values([2, 3], "i32"), values([-1, 2], "i32"), name="i32")
case("heaviside", jnp.heaviside, values([-1.5, 0.0, 2.0, NAN]), normal(4))
case("sinc", jnp.sinc, values([0.0, 0.5, -1.25, 3.0, 0.1]))
case("sinc_second", curvature(jnp.sinc), values([0.0, 0.5, -1.25]), grad_tol=1e-4, tol=1e-4)
case("sinc", jnp.sinc, values([0, 1], "i32"), name="i32", tol=1e-6)
case("logaddexp2", jnp.logaddexp2, values([1.0, -3.0, 500.0, -INF]), values([2.0, 9.0, 499.0, 1.0]))
for op in ("degrees", "radians", "fabs", "positive", "rint"):
    case(op, getattr(jnp, op), values([-1.5, 0.5, 2.5, 100.0]))
for op in ("degrees", "fabs", "rint"):
    case(op, getattr(jnp, op), integers(4), name="i32", tol=1e-5)
case("angle", jnp.angle, normal(4, dtype="c64"), name="c64")
case("angle", jnp.angle, values([-1.0, 2.0]), grad=False)
case("copysign", jnp.copysign, values([1.0, -2.0, 3.0, 0.0]), values([-1.0, 2.0, -0.0, NAN]))
case("modf", jnp.modf, values([1.5, -2.25, 0.0, 7.0]))
TINY = values([0.0, 1.0, -0.75, 8.0, INF, NAN, 1e-30, 3e38, 123.456])
case("frexp", jnp.frexp, TINY, grad=False)
case("frexp", jnp.frexp, values([0.3, -6.0, 1e-4], "f16"), name="f16", grad=False)
case("frexp", jnp.frexp, values([0.3, 1e-300, -1e300], "f64"), name="f64", grad=False)
case("ldexp", jnp.ldexp, values([0.5, 3.0, -1.0, 1e-38, INF, 0.0]), values([4, -1, 100, 60, 1, 9], "i32"))
case("gcd", jnp.gcd, values([12, 0, -8, 0, 17], "i32"), values([18, 5, 12, 0, 5], "i32"))
case("lcm", jnp.lcm, values([4, 0, -6, 7], "i32"), values([6, 5, 4, 7], "i32"))

# Statistics.
case("histogram_range", lambda x: jnp.histogram(x, 5, range=(-1.0, 1.5)), normal(40), grad=False, batch=[(0,)])
case("histogram_weights", lambda x, w: jnp.histogram(x, 4, weights=w), normal(20), normal(20), wrt=[1])
case("histogram_density", lambda x: jnp.histogram(x, 4, density=True), normal(20), grad=False)
case("histogram_edges", lambda x, e: jnp.histogram(x, e), normal(20), values([-2.0, -0.5, 0.1, 1.0]), grad=False, batch=[(0, None), (1, None)])
case("histogram_bin_edges", lambda x: jnp.histogram_bin_edges(x, 3), normal(9), grad=False)
case("cov_columns", lambda x: jnp.cov(x, rowvar=False, bias=True), normal(5, 3), grad_tol=1e-4)
case("cov_y", lambda x, y: jnp.cov(x, y, ddof=0), normal(2, 6), normal(6), grad_tol=1e-4)
case("cov_weights", lambda x, f, a: jnp.cov(x, fweights=f, aweights=a), normal(2, 4), values([1, 3, 2, 1], "i32"), uniform(4, lo=0.5, hi=2), wrt=[0], batch=False, grad_tol=1e-4)
case("cov_fweights", lambda x, f: jnp.cov(x, fweights=f), normal(2, 4, dtype="c64"), values([1, 3, 2, 1], "i32"), name="c64", batch=False, grad_tol=1e-4)
case("corrcoef", jnp.corrcoef, normal(3, 8), grad_tol=1e-4)
case("corrcoef", jnp.corrcoef, normal(2, 8, dtype="c64"), name="c64", grad_tol=1e-4, batch=False)
case("trace_offset", lambda x: jnp.trace(x, offset=1, axis1=1, axis2=2), normal(2, 3, 4))
case("trace_dtype", lambda x: jnp.trace(x, offset=-1, dtype=np.float32), integers(3, 3), name="i32")
for op in ("cumulative_sum", "cumulative_prod"):
    fn = getattr(jnp, op)
    case(op, lambda x, fn=fn: fn(x, axis=1, include_initial=True), uniform(2, 3, lo=0.5, hi=2))
    case(op, lambda x, fn=fn: fn(x, axis=1, include_initial=True), integers(2, 3, lo=1, hi=4, dtype="i8"), name="i8", batch=False)
    case(op, lambda x, fn=fn: fn(x, axis=1, include_initial=True), bools(2, 3), name="bool", batch=False)
for op in ("nancumsum", "nancumprod"):
    case(op, lambda x, op=op: getattr(jnp, op)(x, axis=1), values([[1, NAN, 3], [NAN, 2, 0.5]]))
for op in ("nanargmax", "nanargmin"):
    case(op, lambda x, op=op: getattr(jnp, op)(x, axis=1), values([[1, NAN, 3], [NAN, NAN, NAN], [NAN, 2, 0.5]]), grad=False)
case("logsumexp_b", lambda x, b: jax.nn.logsumexp(x, axis=1, b=b), normal(3, 4), uniform(3, 4, lo=-0.2, hi=2), grad_tol=1e-4)
case("logsumexp_sign", lambda x, b: jax.nn.logsumexp(x, axis=0, b=b, return_sign=True), normal(3, 4), normal(3, 4), grad_tol=1e-3, tol=1e-4)
case("logsumexp_where", lambda x, m: jax.nn.logsumexp(x, axis=1, where=m), normal(3, 4), bools(3, 4), wrt=[0])

# Sets, sizes.
X = integers(3, 4, lo=0, hi=6)
case("nonzero_fill", lambda x: jnp.nonzero(x, size=14, fill_value=-7), integers(3, 4, lo=0, hi=2), name="i32")
case("nonzero_fills", lambda x: jnp.nonzero(x, size=14, fill_value=(-7, 9)), bools(3, 4), name="bool")
case("flatnonzero_fill", lambda x: jnp.flatnonzero(x, size=14, fill_value=99), bools(3, 4), name="bool")
case("argwhere_fill", lambda x: jnp.argwhere(x, size=14, fill_value=-1), bools(3, 4), name="bool")
case("unique_fill", lambda x: jnp.unique(x, size=14, fill_value=-1), X, name="i32")
case("unique_fill", lambda x: jnp.unique(x, size=14, fill_value=-1), ODD, grad=False)
case("unique_all", lambda x: tuple(jnp.unique_all(x, size=5)), X, name="i32")
case("unique_all", lambda x: tuple(jnp.unique_all(x, size=12)), X, name="long")
case("unique_all", lambda x: tuple(jnp.unique_all(x, size=9)), ODD, grad=False)
case("unique_rows", lambda x: jnp.unique(x, True, True, True, axis=0, size=4), integers(5, 2, lo=0, hi=2), name="i32")
case("unique_columns", lambda x: jnp.unique(x, axis=1, size=3, fill_value=0), integers(2, 5, lo=0, hi=2), name="i32")
case("unique_nan", lambda x: jnp.unique(x, equal_nan=False, size=9), ODD, grad=False)
case("lexsort", lambda a, b: jnp.lexsort((a, b)), integers(9, lo=0, hi=3), integers(9, lo=0, hi=3), name="i32")
case("union1d", lambda a, b: jnp.union1d(a, b, size=9), integers(4, lo=0, hi=5), integers(5, lo=0, hi=9), name="i32")
case("compress", lambda c, x: jnp.compress(c, x, axis=1, size=3, fill_value=-5), bools(4), normal(2, 4))
case("extract", lambda c, x: jnp.extract(c, x, size=6), bools(2, 4), normal(2, 4))

# Grids.
for label, options in {"xy": {}, "ij": {"indexing": "ij"}, "sparse": {"sparse": True}, "sparse_ij": {"sparse": True, "indexing": "ij"}}.items():
    case(f"meshgrid_{label}", lambda a, b, c, o=options: jnp.meshgrid(a, b, c, **o), normal(2), integers(3), normal(4))
case("mgrid", lambda x: x + jnp.mgrid[0:2, 5:8], normal(2, 2, 3), batch=False)
case("ogrid", lambda x: [x * a for a in jnp.ogrid[0:2, 5:8]], normal(2, 3), batch=False)
case("indices", lambda x: x + jnp.indices((2, 3)), normal(2, 2, 3), batch=False)
case("ix_", lambda a, b: jnp.ix_(a, b), integers(2), integers(3), name="i32")
case("ravel_multi_clip", lambda a, b: jnp.ravel_multi_index((a, b), (3, 4), mode="clip"), integers(6), integers(6), name="i32")
case("ravel_multi_wrap", lambda a, b: jnp.ravel_multi_index((a, b), (3, 4), mode="wrap"), integers(6), integers(6), name="i32")
case("choose_clip", lambda a, x, y: jnp.choose(a, [x, y], mode="clip"), integers(3, lo=-1, hi=4), normal(2, 3), normal(3))
case("choose_wrap", lambda a, x, y: jnp.choose(a, [x, y], mode="wrap"), integers(3, lo=-1, hi=4), normal(2, 3), normal(3))
case("triangles_from", lambda x: [x[jnp.tril_indices_from(x, 1)], x[jnp.triu_indices_from(x, -1)]], normal(3, 4), batch=False)
case("diag_indices_from", lambda x: x[jnp.diag_indices_from(x)], normal(3, 3, 3), batch=False)

# Parts.
case("block", lambda a, b, c, d: jnp.block([[a, b], [c, d]]), normal(2, 2), normal(2, 3), normal(3), normal(2))
case("block_cubes", lambda a, b: jnp.block([[a, b], [b, a]]), normal(2, 2, 2), normal(2, 2, 2))
case("broadcast_arrays", lambda a, b: jnp.broadcast_arrays(a, b), normal(3, 1), integers(4))
case("array_split", lambda x: jnp.array_split(x, 3, axis=1), normal(2, 8))
case("delete", lambda x: jnp.delete(x, np.array([0, -1, 0]), axis=1), normal(2, 4))
case("delete_flat", lambda x: jnp.delete(x, 3), normal(2, 4))
case("insert", lambda x, v: jnp.insert(x, np.array([0, 3, -1]), v, axis=1), normal(2, 4), normal(2, 3))
case("insert_one", lambda x, v: jnp.insert(x, 1, v, axis=0), normal(3, 4), normal(4))
case("insert_flat", lambda x, v: jnp.insert(x, 5, v), normal(2, 4), normal(3))
case("select", lambda c, d, x, y: jnp.select([c, d], [x, y], 7), bools(4), bools(4), normal(2, 4), normal(4))
case("resize", lambda x: jnp.resize(x, (3, 5)), normal(2, 2))
case("fill_diagonal", lambda x, v: jnp.fill_diagonal(x, v, inplace=False), normal(3, 4), normal(2))
case("put_along_axis", lambda x, i, v: jnp.put_along_axis(x, i, v, axis=1, inplace=False), normal(2, 4), values([[1, 3], [0, -1]], "i32"), normal(2, 2))
case("diagflat", lambda x: jnp.diagflat(x, -1), normal(2, 2))

# Windows.
for op in ("hanning", "hamming", "blackman", "bartlett"):
    for m in (1, 7):
        case(op, lambda x, op=op, m=m: x * getattr(jnp, op)(m), normal(m), name=str(m), params={"m": m}, batch=False)
case("kaiser", lambda b: jnp.kaiser(7, b), values(8.6), batch=False, grad_tol=1e-4)

# Polynomials and convolutions.
case("polyval", jnp.polyval, normal(4), normal(3))
case("polyval_long", jnp.polyval, normal(40), uniform(3, lo=-1, hi=1), grad_tol=1e-4, batch=[(0, None)])
case("polyval", jnp.polyval, integers(3), integers(4), name="i32")
case("polyval_second", curvature(lambda x: jnp.polyval(np.array([1.0, -2, 0.5, 3], np.float32), x)), normal(3), grad_tol=1e-4)
case("polyadd", jnp.polyadd, normal(2), normal(4))
case("polysub", jnp.polysub, normal(4), normal(2))
case("polymul", jnp.polymul, normal(3), normal(4))
case("polydiv", jnp.polydiv, normal(5), uniform(3, lo=1, hi=2), grad_tol=1e-3, tol=1e-4)
case("polyder", lambda p: jnp.polyder(p, 2), normal(5))
case("polyint", lambda p, k: jnp.polyint(p, 2, k), normal(3), normal(2))
case("vander", lambda x: jnp.vander(x, 4), uniform(3, lo=0.5, hi=2), batch=False)
for mode in ("full", "same", "valid"):
    for op in ("convolve", "correlate"):
        fn = lambda x, y, op=op, mode=mode: getattr(jnp, op)(x, y, mode=mode)
        case(f"{op}_{mode}", fn, normal(7), normal(4))
        case(f"{op}_{mode}", fn, normal(3, dtype="c64"), normal(6, dtype="c64"), name="c64", batch=False)
case("gradient", lambda x, h: jnp.gradient(x, h, axis=1), normal(2, 5), values(0.5))
case("ediff1d", lambda x: jnp.ediff1d(x, to_end=np.float32(9), to_begin=np.array([1, 2], np.float32)), normal(2, 3))
case("unwrap", jnp.unwrap, normal(2, 8, scale=5))
case("unwrap_period", lambda x: jnp.unwrap(x, period=6, axis=0), integers(8), name="i32")
case("vecdot", jnp.vecdot, normal(2, 1, 3, dtype="c64"), normal(4, 3, dtype="c64"), name="c64")
case("matvec", jnp.matvec, normal(2, 3, 4), normal(4))
case("vecmat", jnp.vecmat, normal(2, 3, dtype="c64"), normal(2, 3, 4, dtype="c64"), name="c64")

# Neural networks.
for op in ("hard_silu", "sparse_plus", "sparse_sigmoid", "squareplus"):
    case(op, getattr(jax.nn, op), normal(9, scale=2))
    case(op, getattr(jax.nn, op), normal(5, dtype="bf16"), name="bf16", batch=False)
case("squareplus_second", curvature(jax.nn.squareplus), normal(4), grad_tol=1e-4)
case("log1mexp", jax.nn.log1mexp, values([1e-6, 0.1, 0.69, 0.7, 3.0, 50.0]), grad_tol=1e-4)
case("standardize", jax.nn.standardize, normal(3, 6), grad_tol=1e-4)
case("standardize_given", lambda x, m, v: jax.nn.standardize(x, axis=0, mean=m, variance=v, epsilon=0.1), normal(3, 4), normal(4), uniform(4, lo=1, hi=2))
case("logmeanexp", lambda x: jax.nn.logmeanexp(x, axis=1), normal(3, 4))
case("logmeanexp_where", lambda x, m: jax.nn.logmeanexp(x, axis=1, where=m, keepdims=True), normal(3, 4), values([[1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]], "bool"), wrt=[0])
MASK = values([[1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]], "bool")
for op in ("softmax", "log_softmax"):
    case(f"{op}_where", lambda x, m, op=op: getattr(jax.nn, op)(x, axis=1, where=m), normal(3, 4), MASK, wrt=[0], grad=op == "softmax")
case("log_softmax_where", lambda x, m: jax.nn.log_softmax(x, axis=1, where=m), normal(2, 3), values([[1, 0, 1], [0, 1, 1]], "bool"), name="some", wrt=[0])

# Functions of functions, and ragged products.
MATVEC = "(n,m),(m)->(n)"
case("vectorize", lambda m, v: jnp.vectorize(jnp.matmul, signature=MATVEC)(m, v), normal(4, 1, 2, 3), normal(5, 3))
case("vectorize_scalars", lambda x, y: jnp.vectorize(lambda x, y: jnp.sin(x) * y)(x, y), normal(3, 1), normal(2))
case("apply_along_axis", lambda x: jnp.apply_along_axis(lambda v: jnp.stack([v.sum(), v[0]]), 1, x), normal(2, 3, 4))
case("ragged_dot", lax.ragged_dot, normal(7, 3), normal(3, 3, 4), values([2, 0, 4], "i32"), batch=False)
case("ragged_dot", lambda x, y, n: lax.ragged_dot(x, y, n, preferred_element_type=np.float32), normal(7, 3, dtype="bf16"), normal(3, 3, 4, dtype="bf16"), values([2, 0, 5], "i32"), name="bf16", batch=False)

# Random numbers.
KEY = values([0, 42], "u32")
multinomial = lambda key, n, p: jax.random.multinomial(jax.random.wrap_key_data(key), n, p)
case("multinomial", multinomial, KEY, values([100.0, 7.0]), uniform(2, 5), grad=False, batch=False)
case("multinomial", multinomial, KEY, values(50, "i32"), values([0.2, 0.0, 0.5, 0.3]), name="i32", grad=False, batch=False)
for shape in ((3, 2, 4), (4, 3, 2, 2), (1, 2, 3, 2, 5)):
    fn = lambda key, shape=shape: jax.nn.initializers.delta_orthogonal(0.5)(jax.random.wrap_key_data(key), shape)
    case("delta_orthogonal", fn, KEY, name="x".join(map(str, shape)), params={"shape": shape}, batch=False, tol=1e-5)

# Polynomials by their coefficients, the constant one first; both extremes at once.
case("polynomial", lambda x, a, b, c: lax.polynomial(x, [a, b, c]), normal(3, 4), normal(3, 4), normal(), normal(3, 4))
case("polynomial", lambda x: lax.polynomial(x, [1.0, -2.0, 0.5, 3.0]), normal(5), name="plain")
case("polynomial", lambda x: lax.polynomial(x, [1, -2, 5]), integers(5), name="i32")
case("polynomial_curvature", curvature(lambda x: lax.polynomial(x, [1.0, -2.0, 0.5, 3.0])), normal(5))
case("minmax", lambda x: jnp.minmax(x, axis=1), normal(3, 4))
case("minmax", lambda x: jnp.minmax(x), values([3, NAN, 1]), name="nan", grad=False)
case("minmax", lambda x: jnp.minmax(x, axis=0, initial=2), integers(3, 4), name="initial")
