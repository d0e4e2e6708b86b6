"""Optax: ten steps of the optimizers that look at whole matrices, at a second point, or at steps before; as `optim_ten`."""

import optax
from optax import contrib

from families.optim_ten import LARGE, SMALL, ten
from golden import DTYPES, Family, values

family = Family("optim_more")


def case(name, make, doc, *, large=False, state=True, tol=None):
    for dtype in ("f32", "bf16"):
        family.case(
            f"{name}_{dtype}",
            ten(make, LARGE if large else SMALL, DTYPES[dtype], state, False, 0),
            values(0, "i32"),
            op=name,
            params={"state": state, "large": large, "dtype": dtype},
            doc=doc,
            grad=False,
            batch=False,
            tol=tol.get(dtype) if tol else None,
        )


case("muon", lambda: contrib.muon(0.1), "contrib.muon(0.1)", state=False, tol={"f32": 1e-4, "bf16": 4e-2})
case(
    "sam",
    lambda: contrib.sam(optax.sgd(0.1, momentum=0.9), optax.chain(contrib.normalize(), optax.sgd(0.5))),
    "contrib.sam(sgd(0.1, momentum=0.9), chain(normalize(), sgd(0.5)))",
)
case(
    "lbfgs",
    lambda: optax.lbfgs(0.01, memory_size=4, linesearch=None),
    "lbfgs(0.01, memory_size=4, linesearch=None)",
    # It has one over products that nearly cancel.
    state=False,
    tol={"f32": 1e-4, "bf16": 4e-2},
)
case("optimistic_gradient_descent", lambda: optax.optimistic_gradient_descent(0.1), "optimistic_gradient_descent(0.1)")
case("rprop", lambda: optax.rprop(0.1), "rprop(0.1)")
