"""Images of other sizes."""

import jax
import jax.numpy as jnp
from golden import Family, integers, normal, uniform, values

family = Family("image")
METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")


def resize(x, shape, method, antialias=True, name="f32", **options):
    label = f"resize_{method}_{name}" + ("" if antialias else "_plain")
    family.case(
        label,
        lambda x: jax.image.resize(x, shape, method, antialias=antialias),
        x,
        op="resize",
        params={"shape": shape, "method": method, "antialias": antialias},
        **options,
    )


for method in METHODS:
    resize(normal(4, 5), [7, 3], method, tol=3e-5, grad_tol=3e-5)
    resize(normal(2, 6, 3, 2), [2, 4, 9, 2], method, name="images", batch=False, tol=3e-5, grad_tol=3e-5)
    resize(uniform(8), [3], method, name="bf16" if method == "nearest" else "down", batch=False, tol=3e-5, grad_tol=3e-5)
    if method != "nearest":
        resize(normal(7, 4), [3, 2], method, antialias=False, batch=False, tol=3e-5, grad_tol=3e-5)
        resize(uniform(6, dtype="bf16"), [4], method, name="bf16", batch=False, tol=2e-2, grad_tol=3e-2)
        resize(integers(4), [6], method, name="i32", batch=False, grad=False, tol=3e-5)
        resize(normal(4, dtype="f64"), [6], method, name="f64", batch=False, tol=1e-9, grad_tol=1e-9)
resize(integers(4), [6], "nearest", name="i32", batch=False, grad=False)
for method in METHODS[1:]:
    for antialias in (True, False):
        family.case(
            f"scale_and_translate_{method}" + ("" if antialias else "_plain"),
            lambda x, s, t, method=method, antialias=antialias: jax.image.scale_and_translate(
                x, (5, 2, 4), (0, 2), s, t, method, antialias=antialias
            ),
            normal(4, 2, 5),
            values([1.3, 0.7]),
            values([-0.4, 0.6]),
            op="scale_and_translate",
            params={"shape": [5, 2, 4], "spatial_dims": [0, 2], "method": method, "antialias": antialias},
            batch=[(0, 0, 0), (None, 0, None)] if antialias and method == "cubic" else False,
            tol=3e-5,
            grad_tol=2e-4,
        )
