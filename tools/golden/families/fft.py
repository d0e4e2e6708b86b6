"""Discrete Fourier transforms: every function, sizes, axes, norms, gradients of complex numbers, batches."""

import jax.numpy as jnp
from golden import Family, integers, normal

family = Family("fft")


def case(op, *inputs, name="c64", doc=None, grad=True, batch=True, tol=2e-5, **options):
    fn = getattr(jnp.fft, op)
    family.case(
        f"{op}_{name}",
        lambda x: fn(x, **options),
        *inputs,
        op=op,
        params=options or None,
        grad=grad,
        batch=batch,
        tol=tol,
        grad_tol=tol,
    )


for op in ("fft", "ifft"):
    case(op, normal(2, 5, dtype="c64"), batch=[(0,), (2,)])
    case(op, normal(6), name="f32")
    case(op, integers(4), name="i32", grad=False)
    case(op, normal(4, dtype="c128"), name="c128", tol=1e-12, batch=False)
    case(op, normal(3, 4, dtype="c64"), name="axis_0_padded", axis=0, n=5, batch=False)
    case(op, normal(3, 4, dtype="c64"), name="ortho_cut", n=3, norm="ortho", batch=False)
    case(op, normal(4, dtype="c64"), name="forward", norm="forward", batch=False)
for op in ("rfft", "ihfft"):
    case(op, normal(2, 5), name="odd")
    case(op, normal(6), name="even", batch=False)
    case(op, normal(4, dtype="f64"), name="f64", tol=1e-12, batch=False)
    case(op, integers(4), name="i32", grad=False, batch=False)
    case(op, normal(3, 4), name="axis_0_padded", axis=0, n=6, batch=False)
for op in ("irfft", "hfft"):
    case(op, normal(2, 4, dtype="c64"))
    case(op, normal(3, dtype="c64"), name="odd", n=5, batch=False)
    case(op, normal(3, dtype="c128"), name="c128", tol=1e-12, batch=False)
    case(op, normal(5, 3, dtype="c64"), name="axis_0_cut", axis=0, n=4, batch=False)
case("rfft", normal(5), name="ortho", norm="ortho", batch=False)
case("irfft", normal(3, dtype="c64"), name="ortho", norm="ortho", batch=False)
for op in ("fft2", "ifft2", "fftn", "ifftn"):
    case(op, normal(2, 3, 2, dtype="c64"), batch=[(3,)] if op == "fftn" else False)
    case(op, normal(3, 2, 4, dtype="c64"), name="axes", axes=[2, 0], s=[3, 5], batch=False)
for op in ("rfft2", "rfftn"):
    case(op, normal(2, 3, 4), name="f32", batch=[(1,)] if op == "rfftn" else False)
    case(op, normal(3, 2, 5), name="axes", axes=[2, 0], s=[4, 5], norm="ortho", batch=False)
for op in ("irfft2", "irfftn"):
    case(op, normal(2, 3, 3, dtype="c64"), batch=[(1,)] if op == "irfftn" else False)
    case(op, normal(3, 2, 3, dtype="c64"), name="axes", axes=[0, 2], s=[4, 5], norm="forward", batch=False)
case("fftn", normal(2, 2, 1, 2, 3, dtype="c64"), name="five", batch=False)
case("rfftn", normal(2, 2, 2, 3), name="four", batch=False)
case("irfftn", normal(2, 2, 2, 3, dtype="c64"), name="four", batch=False)
for op in ("fftshift", "ifftshift"):
    case(op, normal(4, 5), name="all", tol=0)
    case(op, normal(4, 5), name="axis_1", axes=[1], tol=0, batch=False)
for op in ("fftfreq", "rfftfreq"):
    for n in (5, 6):
        fn = getattr(jnp.fft, op)
        family.case(f"{op}_{n}", lambda fn=fn, n=n: fn(n, 0.3), op=op, params={"n": n, "d": 0.3}, tol=1e-6)
