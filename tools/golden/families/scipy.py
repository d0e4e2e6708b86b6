"""Solvers, signals, transforms, matrices and further special functions of jax.scipy."""

import jax
import jax.numpy as jnp
import jax.scipy as scipy
import jax.scipy.special as jsp
import jax.scipy.sparse.linalg as solvers
import numpy as np
from golden import Family, integers, normal, uniform, values

family = Family("scipy")
NAN, INF = np.nan, np.inf

# Further special functions.
positive = lambda dtype: uniform(6, lo=0.2, hi=5.0, dtype=dtype)
for op, make, edges in [
    ("expi", positive, [0, -1, -0.25, -20, 1e-6, 0.4, 19, 41, 60, INF, -INF, NAN]),
    ("exp1", positive, [0, 1, 1e-6, 0.999, 1.001, 20, 80, -1, NAN]),
    ("spence", positive, [0, 0.25, 0.5, 1, 1.5, 2, 100, -1, NAN]),
    ("erfcx", lambda d: normal(6, scale=2.0, dtype=d), [-3, 0, 0.5, 5, 8.9, 9.1, 30, 1e4, INF]),
    ("dawsn", lambda d: normal(6, scale=2.0, dtype=d), [0, 1e-3, -0.3, 0.49, 0.51, 5, -9, 100]),
]:
    fn = getattr(jsp, op)
    family.case(f"{op}_f32", fn, make("f32"), op=op, tol=2e-5, grad_tol=1e-4, batch=op == "expi")
    family.case(f"{op}_f64", fn, make("f64"), op=op, tol=1e-10, grad_tol=1e-10, batch=False)
    family.case(f"{op}_edges", fn, values(edges), op=op, tol=2e-5, grad=False, batch=False)
for op, edges in (("sici", [0, -0.0, 1e-4, -2, 3.99, 4.01, -6, 8.5, 50, 1e10, INF, -INF, NAN]), ("fresnel", [0, 1e-3, -0.5, 1.59, 1.6, -2.5, 4, 9, INF, -INF, NAN])):
    fn = getattr(jsp, op)
    family.case(f"{op}_f32", fn, positive("f32"), op=op, tol=2e-5, grad_tol=1e-4, batch=op == "sici")
    family.case(f"{op}_f64", fn, uniform(8, lo=0.2, hi=9.0, dtype="f64"), op=op, tol=1e-10, grad_tol=1e-10, batch=False)
    family.case(f"{op}_edges", fn, values(edges), op=op, tol=3e-5, grad=False, batch=False)
for dtype, v, n_iter in (("f32", 3, 50), ("f64", 0, 30)):
    fn = lambda z, v=v, n_iter=n_iter: jsp.bessel_jn(z, v=v, n_iter=n_iter)
    family.case(f"bessel_jn_{dtype}", fn, uniform(2, 3, lo=0.5, hi=9.0, dtype=dtype), op="bessel_jn", params={"v": v, "n_iter": n_iter}, tol=2e-5 if dtype == "f32" else 1e-11, grad_tol=2e-4 if dtype == "f32" else 1e-10, batch=v == 0)
family.case("bessel_jn_edges", lambda z: jsp.bessel_jn(z, v=2), values([0, -2, 20, INF, NAN]), op="bessel_jn", params={"v": 2, "n_iter": 50}, tol=2e-5, grad=False, batch=False)
family.case("owens_t", jsp.owens_t, normal(6), normal(6, scale=2.0), tol=2e-5, grad_tol=1e-4)
family.case("owens_t_f64", jsp.owens_t, normal(6, dtype="f64"), normal(6, scale=2.0, dtype="f64"), op="owens_t", tol=1e-10, grad_tol=1e-10, batch=False)
family.case("owens_t_edges", jsp.owens_t, values([0, 0, 1, 1, -2, 5, 0, 20, INF, NAN]), values([0, 1, 1, -1, 0.3, 8, -50, 2, 1, 1]), op="owens_t", tol=2e-5, grad=False, batch=False)
family.case("expn", jsp.expn, integers(6, lo=0, hi=5), positive("f32"), grad=False, batch=False, tol=2e-5)
family.case("expn_grid", jsp.expn, values([[0], [1], [2], [7], [50]]), values([0.0, 1e-3, 0.9, 1.0, 1.1, 3.0, 20.0]), op="expn", grad=False, batch=False, tol=2e-5)
family.case("expn_f64", jsp.expn, values([1, 2, 3, 4], "f64"), uniform(4, lo=0.2, hi=4, dtype="f64"), op="expn", wrt=(1,), batch=False, tol=1e-11, grad_tol=1e-10)
for repetition in (False, True):
    fn = lambda n, k, repetition=repetition: jsp.comb(n, k, repetition=repetition)
    family.case(f"comb_{repetition}", fn, values([5, 10, 4, 0, 3, -1, 20]), values([2, 5, 0, 0, 4, 1, 7]), op="comb", params={"repetition": repetition}, grad=False, batch=False, tol=1e-4)
family.case("comb_slope", lambda n, k: jsp.comb(n, k), uniform(4, lo=4, hi=9), uniform(4, lo=0.5, hi=3), op="comb", params={"repetition": False}, tol=2e-5, grad_tol=2e-4, batch=False)
family.case("poch", jsp.poch, positive("f32"), values([0, 1, 2, 3, 0.5, 1.5]), grad=False, batch=False, tol=1e-4)
family.case("loggamma", jsp.loggamma, values([0.5, 1, 5, 30, -0.5, 0]), grad=False, batch=False, tol=2e-5)
for op in ("boxcox", "boxcox1p"):
    family.case(op, getattr(jsp, op), positive("f32"), values([0, 1, 2, -0.5, 0.25, 1e-3]), tol=3e-5, grad_tol=3e-4, batch=False, wrt=(0,))
for n in (0, 2, 3, 12):
    family.case(f"bernoulli_{n}", lambda n=n: jsp.bernoulli(n), op="bernoulli", params={"n": n}, grad=False, batch=False, tol=1e-5)

# Cosine transforms.
for op in ("dct", "idct"):
    for norm in (None, "ortho"):
        fn = lambda x, op=op, norm=norm: getattr(scipy.fft, op)(x, norm=norm)
        more = dict(op=op, tol=2e-5, grad_tol=3e-5)
        family.case(f"{op}_{norm}", fn, normal(3, 7), params={"norm": norm}, batch=norm == "ortho", **more)
        family.case(f"{op}_{norm}_even", fn, normal(8), params={"norm": norm}, batch=False, **more)
    fn = lambda x, op=op: getattr(scipy.fft, op)(x, n=5, axis=0)
    family.case(f"{op}_cut", fn, normal(7, 2), op=op, params={"norm": None, "n": 5, "axis": 0}, batch=False, tol=2e-5)
    fn = lambda x, op=op: getattr(scipy.fft, op)(x, n=9, axis=1)
    family.case(f"{op}_padded", fn, normal(2, 4, 3), op=op, params={"norm": None, "n": 9, "axis": 1}, batch=False, tol=2e-5)
    family.case(f"{op}_f64", lambda x, op=op: getattr(scipy.fft, op)(x), normal(6, dtype="f64"), op=op, params={"norm": None}, batch=False)
    fn = lambda x, op=op: getattr(scipy.fft, op + "n")(x)
    family.case(f"{op}n", fn, normal(3, 4, 5), op=op + "n", params={"norm": None}, batch=False, tol=3e-5)
    family.case(f"{op}n_ortho", lambda x, op=op: getattr(scipy.fft, op + "n")(x, norm="ortho"), normal(4, 5), op=op + "n", params={"norm": "ortho"}, batch=False, tol=2e-5)

# Signals.
signal = scipy.signal
for op in ("convolve", "correlate"):
    for mode in ("full", "same", "valid"):
        fn = lambda x, y, op=op, mode=mode: getattr(signal, op)(x, y, mode=mode)
        more = dict(op=op, params={"mode": mode}, tol=2e-5, grad_tol=2e-5)
        family.case(f"{op}_{mode}", fn, normal(7), normal(4), batch=[(0, 0)] if mode == "same" else False, **more)
        family.case(f"{op}_{mode}_short", fn, normal(3), normal(6), batch=False, grad=False, **more)
        family.case(f"{op}_{mode}_planes", fn, normal(5, 6), normal(3, 2), batch=False, **more)
        fn = lambda x, y, op=op, mode=mode: getattr(signal, op + "2d")(x, y, mode=mode)
        family.case(f"{op}2d_{mode}", fn, normal(5, 6), normal(2, 4), batch=False, **{**more, "op": op + "2d"})
        family.case(f"{op}2d_{mode}_short", fn, normal(2, 3), normal(4, 5), batch=False, grad=False, **{**more, "op": op + "2d"})
        fn = lambda x, y, mode=mode: signal.fftconvolve(x, y, mode=mode)
        if op == "convolve":
            family.case(f"fftconvolve_{mode}", fn, normal(5, 6), normal(2, 4), batch=False, op="fftconvolve", params={"mode": mode, "axes": None}, tol=3e-5)
family.case("convolve_integers", lambda x, y: signal.convolve(x, y), integers(5), integers(3), op="convolve", params={"mode": "full"}, grad=False, batch=False)
family.case("convolve_f64", lambda x, y: signal.convolve(x, y), normal(9, dtype="f64"), normal(5, dtype="f64"), op="convolve", params={"mode": "full"}, batch=False)
family.case("correlate_complex", lambda x, y: signal.correlate(x, y), normal(6, dtype="c64"), normal(3, dtype="c64"), op="correlate", params={"mode": "full"}, batch=False, grad=False, tol=2e-5)
family.case("fftconvolve_rows", lambda x, y: signal.fftconvolve(x, y, axes=1), normal(3, 6), normal(3, 4), op="fftconvolve", params={"mode": "full", "axes": [1]}, batch=False, tol=3e-5)
family.case("fftconvolve_complex", lambda x, y: signal.fftconvolve(x, y), normal(6, dtype="c64"), normal(3, dtype="c64"), op="fftconvolve", params={"mode": "full", "axes": None}, batch=False, grad=False, tol=3e-5)
for name, more in (("constant", {"type": "constant"}), ("linear", {}), ("broken", {"bp": [4, 7]})):
    fn = lambda x, more=more: signal.detrend(x, axis=0, **more)
    family.case(f"detrend_{name}", fn, normal(11, 2), op="detrend", params={"trend": name}, batch=False, tol=3e-5, grad_tol=3e-5)
spectral = [
    ("stft", {}, (2, 40), {"nperseg": 8}),
    ("stft_odd", {}, (37,), {"nperseg": 9, "noverlap": 6, "nfft": 16, "boundary": "odd", "fs": 10.0}),
    ("stft_both", {}, (30, 2), {"nperseg": 6, "return_onesided": False, "axis": 0, "boundary": "even", "detrend": "linear"}),
    ("welch", {}, (2, 50), {"nperseg": 16, "fs": 4.0}),
    ("welch_median", {}, (50,), {"nperseg": 9, "average": "median", "scaling": "spectrum", "detrend": False}),
    ("csd", {}, (40,), {"nperseg": 8}),
    ("csd_median", {}, (3, 40), {"nperseg": 8, "noverlap": 2, "average": "median"}),
]
for name, _, shape, options in spectral:
    op = name.split("_")[0]
    fn = lambda *xs, op=op, options=options: getattr(signal, op)(*xs, **options)
    xs = [normal(*shape)] if op != "csd" else [normal(*shape), normal(*shape[:-1], shape[-1] - 5)]
    family.case(name, fn, *xs, op=op, params=options, batch=[(0,)] if name == "welch_median" else False, tol=3e-5, grad=name in ("welch", "welch_median"), grad_tol=1e-4)
family.case("welch_f64", lambda x: signal.welch(x, nperseg=8), normal(30, dtype="f64"), op="welch", params={"nperseg": 8}, batch=False, grad=False, tol=1e-6)
family.case("stft_complex", lambda x: signal.stft(x, nperseg=8), normal(30, dtype="c64"), op="stft", params={"nperseg": 8}, batch=False, grad=False, tol=3e-5)
family.case("istft", lambda z: signal.istft(z), normal(5, 8, dtype="c64"), op="istft", params={}, batch=False, grad=False, tol=3e-5)
family.case("istft_whole", lambda z: signal.istft(z, nfft=10, nperseg=7, noverlap=5, boundary=False, fs=2.0), normal(6, 9, dtype="c64"), op="istft", params={"nfft": 10, "nperseg": 7, "noverlap": 5, "boundary": False, "fs": 2.0}, batch=False, grad=False, tol=3e-5)
family.case("istft_both", lambda z: signal.istft(z, input_onesided=False), normal(8, 6, dtype="c64"), op="istft", params={"return_onesided": False}, batch=False, grad=False, tol=3e-5)
family.case("trapezoid", lambda y, x: scipy.integrate.trapezoid(y, x, axis=0), normal(5, 3), values([0, 1, 1.5, 3, 4]), batch=False)
family.case("trapezoid_places", lambda y, x: scipy.integrate.trapezoid(y, x, axis=0), normal(5, 3), normal(5, 3), op="trapezoid", batch=False)

# Solvers.
n = 6
rng = np.random.default_rng(7)
square = rng.standard_normal((n, n))
general = square / 4 + np.diag(np.arange(1.0, n + 1))
definite = square @ square.T / 4 + np.diag(np.arange(1.0, n + 1))
for name, matrix in (("cg", definite), ("bicgstab", general), ("gmres", general)):
    for dtype, tol in (("f32", 1e-4), ("f64", 1e-8)):
        fn = lambda a, b, name=name, tol=tol: getattr(solvers, name)(a, b, tol=tol / 100)[0]
        batch = [(None, 0), (0, 0)] if dtype == "f32" else False
        family.case(f"{name}_{dtype}", fn, values(matrix, dtype), normal(n, dtype=dtype), op=name, params={"tol": tol / 100, "jacobi": False}, tol=tol, grad_tol=tol * 10, batch=[(None, 0)] if dtype == "f32" else False)
    jacobi = lambda a, b, name=name: getattr(solvers, name)(lambda x: a @ x, b, tol=1e-6, M=lambda x: x / jnp.diag(a))[0]
    family.case(f"{name}_jacobi", jacobi, values(matrix, "f64"), normal(n, dtype="f64"), op=name, params={"tol": 1e-6, "jacobi": True}, tol=1e-4, grad_tol=1e-3, batch=False)
    slope = jax.grad(lambda a, b, fn=fn: jnp.sum(jnp.sin(fn(a, b))), argnums=1)
    family.case(f"{name}_slopes", slope, values(matrix, "f64"), normal(n, dtype="f64"), op="slopes", params={"of": name, "tol": 1e-10}, tol=1e-7, grad_tol=1e-6, batch=False)
for name in ("bicgstab", "gmres"):
    fn = lambda a, b, name=name: getattr(solvers, name)(a, b, tol=1e-6)[0]
    family.case(f"{name}_c64", fn, values(general + 0.5j * square.T, "c64"), normal(n, dtype="c64"), op=name, params={"tol": 1e-6, "jacobi": False}, tol=1e-3, grad=False, batch=False)
few = lambda a, b: solvers.cg(a, b, tol=0.0, maxiter=2)[0]
family.case("cg_two_steps", few, values(definite, "f64"), normal(n, dtype="f64"), op="cg", params={"tol": 0.0, "jacobi": False, "maxiter": 2}, tol=1e-9, grad=False, batch=False)
restarted = lambda a, b: solvers.gmres(a, b, tol=0.0, maxiter=3, restart=2)[0]
family.case("gmres_restarted", restarted, values(general, "f64"), normal(n, dtype="f64"), op="gmres", params={"tol": 0.0, "jacobi": False, "maxiter": 3, "restart": 2}, tol=1e-7, grad=False, batch=False)


def root(a, b):
    """the x with x^3 + a x = b, by Newton's method"""
    f = lambda x: x**3 + a * x - b
    newton = lambda f, x0: jax.lax.fori_loop(0, 40, lambda _, x: x - f(x) / (3 * x**2 + a), x0)
    return jax.lax.custom_root(f, jnp.ones_like(a * b), newton, lambda g, y: y / g(jnp.ones_like(y)))


family.case("root", root, uniform(4, lo=1, hi=3, dtype="f64"), normal(4, dtype="f64"), tol=1e-10, grad_tol=1e-9, batch=[(0, 0), (None, 0)])
family.case("slopes_root", lambda a, b: jax.grad(lambda b: jnp.sum(root(a, b)))(b), uniform(4, lo=1, hi=3, dtype="f64"), normal(4, dtype="f64"), op="slopes", params={"of": "root"}, tol=1e-9, grad_tol=1e-8, batch=False)

# Equations and matrices.
linalg = scipy.linalg
more = dict(tol=1e-4, grad_tol=1e-3, batch=False)
for assume in ("gen", "sym", "her", "pos"):
    family.case(f"solve_{assume}", lambda a, b, assume=assume: linalg.solve((a + a.T) / 2, b, assume_a=assume), values(definite), normal(n, 2), op="solve", params={"assume_a": assume}, **more)
for trans in (0, 1):
    for lower in (False, True):
        for unit in (False, True):
            fn = lambda a, b, kw=dict(trans=trans, lower=lower, unit_diagonal=unit): linalg.solve_triangular(a, b, **kw)
            family.case(f"solve_triangular_{trans}{lower}{unit}", fn, values(general), normal(n, 2) if unit else normal(n), op="solve_triangular", params={"trans": trans, "lower": lower, "unit_diagonal": unit}, **more)
for trans in (0, 1, 2):
    for dtype in ("f32", "c64"):
        fn = lambda a, b, trans=trans: linalg.lu_solve(linalg.lu_factor(a), b, trans=trans)
        family.case(f"lu_solve_{trans}_{dtype}", fn, values(square + (0.5j * general if dtype == "c64" else 0), dtype), normal(n, 2, dtype=dtype) if trans else normal(n, dtype=dtype), op="lu_solve", params={"trans": trans}, **{**more, "tol": 3e-4, "grad_tol": 3e-3, "grad": dtype == "f32"})
family.case("lu_factor", lambda a: linalg.lu_factor(a), values(square), grad=False, batch=False, tol=1e-4)
for m in (1, 5):
    family.case(f"hilbert_{m}", lambda m=m: linalg.hilbert(m), op="hilbert", params={"n": m}, grad=False, batch=False)
    for scale in (None, "sqrtn", "n"):
        family.case(f"dft_{m}_{scale}", lambda m=m, scale=scale: linalg.dft(m, scale), op="dft", params={"n": m, "scale": scale}, grad=False, batch=False)
family.case("hadamard", lambda: linalg.hadamard(8), op="hadamard", params={"n": 8}, grad=False, batch=False)
family.case("circulant", linalg.circulant, normal(5))
family.case("hankel", linalg.hankel, normal(3), normal(4), batch=False)
family.case("companion", linalg.companion, uniform(5, lo=1, hi=2), batch=False)
family.case("fiedler", linalg.fiedler, normal(4), batch=False)
family.case("leslie", linalg.leslie, uniform(4), uniform(3), batch=False)
for kind in ("symmetric", "lower", "upper"):
    for name in ("pascal", "invpascal"):
        fn = lambda name=name, kind=kind: getattr(linalg, name)(6, kind)
        family.case(f"{name}_{kind}", fn, op=name, params={"n": 6, "kind": kind}, grad=False, batch=False, tol=1e-6)
family.case("invhilbert", lambda: linalg.invhilbert(5), op="invhilbert", params={"n": 5}, grad=False, batch=False, tol=1e-5)
for m in (1, 5):
    for full in (False, True):
        fn = lambda m=m, full=full: linalg.helmert(m, full)
        family.case(f"helmert_{m}{full}", fn, op="helmert", params={"n": m, "full": full}, grad=False, batch=False, tol=1e-6)
for m in (1, 2, 3, 4, 5, 6):
    family.case(f"fiedler_companion_{m}", linalg.fiedler_companion, uniform(m, lo=1, hi=2), op="fiedler_companion", batch=False)
for mode in ("full", "same", "valid"):
    for m, n in ((3, 5), (4, 2)):
        fn = lambda a, n=n, mode=mode: linalg.convolution_matrix(a, n, mode)
        family.case(f"convolution_matrix_{mode}_{m}", fn, normal(m), op="convolution_matrix", params={"n": n, "mode": mode}, batch=False)
# Leading dimensions are batches of vectors.
family.case("toeplitz_batch", linalg.toeplitz, normal(2, 3), normal(4), op="toeplitz", batch=False)
family.case("hankel_batch", linalg.hankel, normal(2, 3), normal(2, 1, 4), op="hankel", batch=False)
family.case("companion_batch", linalg.companion, uniform(2, 4, lo=1, hi=2), op="companion", batch=False)
family.case("fiedler_companion_batch", linalg.fiedler_companion, uniform(2, 4, lo=1, hi=2), op="fiedler_companion", batch=False)
family.case("leslie_batch", linalg.leslie, uniform(2, 4), uniform(2, 3), op="leslie", batch=False)
family.case("convolution_matrix_batch", lambda a: linalg.convolution_matrix(a, 4), normal(2, 3), op="convolution_matrix", params={"n": 4, "mode": "full"}, batch=False)
family.case("eigh_tridiagonal", lambda d, e: linalg.eigh_tridiagonal(d, e, eigvals_only=True), normal(6), normal(5), grad=False, batch=False, tol=1e-4)
for side in ("right", "left"):
    family.case(f"polar_{side}", lambda a, side=side: linalg.polar(a, side=side, method="svd"), values(general), op="polar", params={"side": side}, grad=False, batch=False, tol=1e-4)
