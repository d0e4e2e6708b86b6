"""Contractions: dot_general, dot, matmul, einsum."""

import jax.numpy as jnp
from jax import lax

from golden import DTYPES, Family, integers, normal, small, values

family = Family("dot")
ALL = [(0, 0), (None, 0), (1, None), (2, 1)]

GENERAL = {
    "vector_vector": ((3,), (3,), ((0,), (0,)), ((), ())),
    "matrix_vector": ((2, 3), (3,), ((1,), (0,)), ((), ())),
    "matrix_matrix": ((2, 3), (3, 4), ((1,), (0,)), ((), ())),
    "transposed": ((3, 2), (4, 3), ((0,), (1,)), ((), ())),
    "outer": ((2, 3), (4,), ((), ()), ((), ())),
    "two_contracted": ((2, 3, 4), (4, 5, 3), ((1, 2), (2, 0)), ((), ())),
    "batch": ((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
    "batch_last": ((3, 4, 2), (4, 2, 5), ((1,), (0,)), ((2,), (1,))),
    "two_batch": ((2, 3, 4, 5), (3, 5, 2), ((3,), (1,)), ((0, 1), (2, 0))),
    "batch_only": ((2, 3), (2, 3), ((), ()), ((0, 1), (0, 1))),
    "empty_contracted": ((2, 0), (0, 3), ((1,), (0,)), ((), ())),
    "empty_result": ((0, 3), (3, 2), ((1,), (0,)), ((), ())),
}
for label, (a, b, contract, batch) in GENERAL.items():
    variants = [(0, 0), (len(a), None), (None, 0), (1, len(b))] if "empty" not in label else False
    family.case(
        f"dot_general_f32_{label}",
        lambda x, y, c=contract, b=batch: lax.dot_general(x, y, (c, b)),
        normal(*a),
        normal(*b),
        op="dot_general",
        params={"contracting": contract, "batch": batch},
        batch=variants,
    )
for dtype, preferred in [
    ("bf16", None),
    ("bf16", "f32"),
    ("f16", None),
    ("f16", "f32"),
    ("f64", None),
    ("c64", None),
    ("i32", None),
    ("i8", None),
    ("i8", "i32"),
    ("u8", "u32"),
]:
    x, y = (
        (integers(2, 5, lo=0, hi=50, dtype=dtype), integers(5, 3, lo=0, hi=50, dtype=dtype))
        if dtype[0] in "iu"
        else (normal(2, 5, dtype=dtype), normal(5, 3, dtype=dtype))
    )
    family.case(
        f"dot_general_{dtype}" + (f"_to_{preferred}" if preferred else ""),
        lambda x, y, p=preferred: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=p and DTYPES[p]),
        x,
        y,
        op="dot_general",
        params={"contracting": [[1], [0]], "batch": [[], []], "preferred": preferred},
        batch=False,
        tol=2e-2 if dtype in ("bf16", "f16") else None,
        grad_tol=4e-2 if dtype in ("bf16", "f16") else None,
    )

MATMUL = [
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((2, 3, 2, 2), (2, 3, 2, 1)),
    ((3,), (2, 3, 4)),
    ((2, 2, 3), (3,)),
]
for a, b in MATMUL:
    label = "_".join("x".join(map(str, s)) for s in (a, b))
    batch = [(0, 0), (None, 0), (len(a), None)] if len(a) + len(b) in (3, 4, 5) else False
    family.case(f"matmul_f32_{label}", jnp.matmul, normal(*a), normal(*b), op="matmul", batch=batch)
DOT = [
    ((), ()),
    ((), (2, 3)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((2, 2, 3), (3,)),
    ((2, 2, 3), (4, 3, 2)),
    ((3,), (2, 3, 2)),
]
for a, b in DOT:
    label = "_".join("x".join(map(str, s)) or "scalar" for s in (a, b))
    family.case(f"dot_f32_{label}", jnp.dot, normal(*a), normal(*b), op="dot", batch=False)
family.case("matmul_bf16_f32", jnp.matmul, normal(2, 3, dtype="bf16"), normal(3, 2), op="matmul", batch=False, tol=1e-4)
family.case("matmul_i32_f32", jnp.matmul, integers(2, 3), normal(3, 2), op="matmul", batch=False)
family.case(
    "matmul_bool",
    jnp.matmul,
    small(2, 3, lo=0, hi=2, dtype="bool"),
    small(3, 2, lo=0, hi=2, dtype="bool"),
    op="matmul",
    batch=False,
)
family.case(
    "tensordot_f32_2",
    lambda x, y: jnp.tensordot(x, y, 2),
    normal(2, 3, 4),
    normal(3, 4, 2),
    op="tensordot",
    params={"axes": 2},
    batch=False,
)
family.case("outer_f32", jnp.outer, normal(3), normal(2), op="outer", batch=False)
family.case("vdot_f32", jnp.vdot, normal(2, 3), normal(2, 3), op="vdot", batch=False)
family.case("inner_f32", jnp.inner, normal(2, 3), normal(4, 3), op="inner", batch=False)

EINSUM = {
    "matmul": ("ij,jk->ik", (2, 3), (3, 4)),
    "implicit": ("ij,jk", (2, 3), (3, 4)),
    "batch_matmul": ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    "transpose": ("ij->ji", (2, 3)),
    "trace": ("ii", (3, 3)),
    "diagonal": ("ii->i", (3, 3)),
    "sum_all": ("ij->", (2, 3)),
    "sum_rows": ("ij->i", (2, 3)),
    "outer": ("i,j->ij", (2,), (3,)),
    "hadamard": ("ij,ij->ij", (2, 3), (2, 3)),
    "chain": ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    "ellipsis": ("...ij,...jk->...ik", (2, 1, 2, 3), (2, 3, 2)),
    "attention_scores": ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 2, 2, 4)),
    "attention_values": ("bhqk,bkhd->bqhd", (2, 2, 3, 2), (2, 2, 2, 4)),
    "bilinear": ("bi,ijk,bj->bk", (2, 3), (3, 2, 4), (2, 2)),
}
for label, (spec, *shapes) in EINSUM.items():
    family.case(
        f"einsum_f32_{label}",
        lambda *xs, spec=spec: jnp.einsum(spec, *xs),
        *(normal(*shape) for shape in shapes),
        op="einsum",
        params={"spec": spec},
        batch=[(0,) * len(shapes)] if label in ("matmul", "trace", "attention_scores") else False,
        tol=3e-5,
        grad_tol=3e-5,
    )

# The dtype to accumulate in, of every product.
for dtype, wide in (("bf16", "f32"), ("f16", "f32"), ("i8", "i32")):
    matrix = small(3, 4, dtype=dtype) if dtype == "i8" else normal(3, 4, dtype=dtype)
    other = small(4, 2, dtype=dtype) if dtype == "i8" else normal(4, 2, dtype=dtype)
    for op, fn, x, y, params in (
        ("dot", jnp.dot, matrix, other, {}),
        ("matmul", jnp.matmul, matrix, other, {}),
        ("tensordot", lambda x, y, **o: jnp.tensordot(x, y, 1, **o), matrix, other, {"axes": 1}),
        ("vdot", jnp.vdot, matrix, matrix, {}),
        ("inner", jnp.inner, matrix, matrix, {}),
        ("einsum", lambda x, y, **o: jnp.einsum("ij,jk->ki", x, y, **o), matrix, other, {"spec": "ij,jk->ki"}),
    ):
        family.case(
            f"{op}_{dtype}_accumulated",
            lambda x, y, fn=fn, wide=wide: fn(x, y, precision="highest", preferred_element_type=wide and DTYPES[wide]),
            x,
            y,
            op=op,
            params={**params, "preferred": wide, "precision": "highest"},
            batch=False,
        )

# Returned in less than the operands have, or in another kind of dtype.
for dtype, preferred in [("f64", "f32"), ("f32", "bf16"), ("f32", "i32"), ("i8", "u32")]:
    x, y = (
        (integers(2, 5, lo=-9, hi=50, dtype=dtype), integers(5, 3, lo=-9, hi=50, dtype=dtype))
        if dtype[0] in "iu"
        else (normal(2, 5, dtype=dtype), normal(5, 3, dtype=dtype))
    )
    family.case(
        f"dot_general_{dtype}_as_{preferred}",
        lambda x, y, p=preferred: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=DTYPES[p]),
        x,
        y,
        op="dot_general",
        params={"contracting": [[1], [0]], "batch": [[], []], "preferred": preferred},
        batch=False,
        tol=2e-2 if preferred == "bf16" else 1e-6,
        grad_tol=2e-2 if preferred == "bf16" else 1e-6,
    )


def ragged(contracting, batch, ragged, group):
    """The dimension numbers of `ragged_dot_general`."""
    return lax.RaggedDotDimensionNumbers((contracting, batch), [ragged], group)


grouped = ((2,), (2,)), ((0,), (1,))
for name, numbers, shapes, sizes in [
    ("rows", (*grouped, 1, [0]), [(2, 3, 2), (2, 2, 2, 2)], [[1, 2], [2, 1]]),
    ("rows_of_a_part", (*grouped, 1, [0]), [(2, 3, 2), (2, 2, 2, 2)], [1, 1]),
    ("contracted", (((1,), (1,)), ((0,), (0,)), 1, []), [(2, 3, 2), (2, 3, 2)], [[2, 1, 0], [0, 1, 1]]),
    ("batch", (((1,), (1,)), ((0,), (0,)), 0, []), [(2, 3, 2), (2, 3, 2)], [1, 1]),
    ("sizes_by_row", (((2,), (1,)), ((), ()), 1, [0]), [(2, 3, 2), (2, 2, 1)], [[1, 2], [3, 0]]),
    ("second_contracted", (((1, 0), (1, 0)), ((), ()), 0, []), [(2, 3, 2), (2, 3, 2)], [[1, 0], [0, 1], [1, 1]]),
]:
    contracting, batch, dimension, group = numbers
    family.case(
        f"ragged_dot_general_f32_{name}",
        lambda x, y, n, numbers=numbers: lax.ragged_dot_general(x, y, n, ragged(*numbers)),
        normal(*shapes[0]),
        normal(*shapes[1]),
        values(sizes, "i32"),
        op="ragged_dot_general",
        params={"contracting": contracting, "batch": batch, "ragged": dimension, "group": group},
        wrt=(0, 1),
        # JAX has the derivatives of products whose rows are in groups only.
        grad="rows" in name,
        batch=False,
    )
