//! Mistakes with `jit`, `vmap`, `grad` and the other transformations, also if they are nested.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::ErrorKind::{Index, Type, Value};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    jits(t);
    vmaps(t);
    gradients(t);
    derivatives(t);
    nested(t);
}

fn jits(t: &mut Table) {
    t.row("jit: inside", Value, &["add got incompatible shapes"], || jit(|x: Array| at!(x + ones(4))).call(ones(3)));
    t.row("jit: inside, unused", Value, &["add got incompatible shapes"], || {
        let f = |x: Array| {
            let _ = at!(&x + ones(4));
            x
        };
        jit(f).call(ones(3))
    });
    t.row("jit: the user's own error", Value, &["incompatible shapes"], || {
        jit(|x: Array| -> Result<Array> { at!(&x + ones(4)).check().map(|()| x) }).call(ones(3))
    });
    t.row("jit: argument that failed", Value, &["incompatible shapes"], || {
        let bad = at!(ones(3) + ones(4));
        jit(|x: Array| x * 2).call(bad)
    });
    t.row("jit: argument that failed, not used", Value, &["incompatible shapes"], || {
        let bad = at!(ones(3) + ones(4));
        jit(|_: Array, y: Array| y).call((bad, ones(2)))
    });
    t.row("jit: failed after it was compiled for a number", Value, &["incompatible shapes"], || {
        let f = jit(|_: Array, y: Array| y * 2);
        let _ = f.call((1.0f32, ones(2)))?;
        let bad = at!(array(1.0f32) * ones(3).reshape([1, 3]) + ones([2, 4])).sum(..);
        f.call((bad, ones(2)))
    });
    t.row(
        "jit: donate_argnums beyond",
        Value,
        &["donate_argnums names argument 1", "only accepts 1 positional argument"],
        || at!(jit(|x: Array| x * 2).donate_argnums([1]).call(ones(3))),
    )
    .at_once_only();
    t.row("jit: static argument that holds an array", Value, &["Non-hashable static arguments", "argument 0"], || {
        at!(jit(|x: Array| x * 2).static_argnums(-1).call(ones(3)))
    });
    t.row(
        "jit: static and donated",
        Value,
        &["static_argnums and donate_argnums cannot intersect. Argument 1"],
        || at!(jit(|x: Array, n: i32| x * n).static_argnums(1).donate_argnums([-1]).call((ones(3), 2))),
    );
    t.row("jit: static_argnums beyond", Value, &["static_argnums names argument -2", "only accepts 1"], || {
        at!(jit(|x: Array| x * 2).static_argnums(-2).call(ones(3)))
    });
    t.row("jit: index after a failure", Value, &["incompatible shapes"], || {
        let f = |x: Array| {
            let bad = at!(x + ones(4));
            // What follows from the failed array must not hide the failure.
            let n = bad.shape()[2];
            bad * n
        };
        jit(f).call(ones(3))
    });
}

fn vmaps(t: &mut Table) {
    // Sizes of the batch that differ, and axes that the arguments do not have.
    t.row(
        "vmap: sizes",
        Value,
        &["vmap got inconsistent sizes for array axes to be mapped", "size 3", "size 4"],
        || at!(vmap(|x: Array, y: Array| x + y).call((ones(3), ones(4)))),
    );
    t.row(
        "vmap: sizes of each argument",
        Value,
        &["argument[0]", "float32[3]", "argument[1][0]", "one axis had size 4: axis 1", "argument[1][1]", "size 5"],
        || {
            let f = vmap(|x: Array, y: (Array, Array)| x + y.0.sum(..) + y.1).in_axes((0, (1, 0)));
            at!(f.call((ones(3), (ones([2, 4]), ones(5)))))
        },
    );
    t.row("vmap: scalar", Value, &["vmap was requested to map its argument[1]", "rank should be at least 1"], || {
        at!(vmap(|x: Array, y: Array| x + y).call((ones(3), 1.0f32)))
    });
    t.row("vmap: in_axes", Index, &["vmap in_axes of argument[0]", "axis 2 is out of bounds"], || {
        at!(vmap(|x: Array| x).in_axes(2).call(ones([2, 3])))
    });
    t.row("vmap: in_axes structure", Value, &["vmap in_axes tree prefix error", "has 3 entries", "2 children"], || {
        at!(vmap(|x: Array, y: Array| x + y).in_axes((0, 0, 0)).call((ones(3), ones(3))))
    });
    t.row("vmap: in_axes deeper structure", Value, &["vmap in_axes[0]", "no children"], || {
        at!(vmap(|x: Array| x).in_axes(((0, 0),)).call(ones(3)))
    });
    t.row("vmap: no mapped argument", Value, &["vmap must have at least one non-None value in in_axes"], || {
        at!(vmap(|x: Array| x).in_axes(None).call(ones(3)))
    });
    t.row("vmap: axis_size", Value, &["vmap", "axis_size 4", "size 3"], || {
        at!(vmap(|x: Array| x).axis_size(4).call(ones(3)))
    });
    t.row(
        "vmap: out_axes None",
        Value,
        &["vmap out_axes, got axis spec None but output was batched on axis 0"],
        || at!(vmap(|x: Array| x).out_axes(None).call(ones(3))),
    );
    t.row("vmap: out_axes", Index, &["vmap out_axes", "axis 1 is out of bounds"], || {
        at!(vmap(|x: Array| x).out_axes(1).call(ones(3)))
    });
    t.row("vmap: out_axes structure", Value, &["vmap out_axes tree prefix error"], || {
        at!(vmap(|x: Array| x).out_axes((0, 0)).call(ones(3)))
    });
    t.row("vmap: inside", Type, &["cannot reshape array of shape (3,)"], || {
        vmap(|x: Array| at!(x.reshape([2, 2]))).call(ones([5, 3]))
    });
    t.row(
        "vmap: collective of another axis",
        shardax::ErrorKind::Name,
        &["unbound axis name: j", "bound here: i"],
        || vmap(|x: Array| at!(psum(x, "j"))).axis_name("i").call(ones(3)),
    );
}

fn gradients(t: &mut Table) {
    // Results that are not scalars, and arguments that are not floating point.
    t.row(
        "grad: vector",
        Value,
        &["Gradient only defined for scalar-output functions. Output had shape: (3,)."],
        || at!(grad(|x: Array| x * 2).call(ones(3))),
    );
    t.row("grad: one element", Value, &["Output had shape: (1,)."], || at!(grad(|x: Array| x * 2).call(ones(1))));
    t.row("grad: several results", Value, &["Gradient only defined for scalar-output functions", "has_aux"], || {
        at!(grad(|x: Array| (x.sum(..), x)).call(ones(3)))
    });
    t.row("grad: aux and vector", Value, &["Output had shape: (3,)."], || {
        at!(grad(|x: Array| (x.clone(), x.sum(..))).has_aux().call(ones(3)))
    });
    t.row("grad: nothing", Value, &["Gradient only defined for scalar-output functions"], || {
        at!(grad(|_: Array| ()).call(ones(3)))
    });
    t.row("grad: integers", Type, &["grad requires real- or complex-valued inputs", "but got int32"], || {
        at!(grad(|x: Array| x.astype(DType::F32).sum(..)).call(arange(0..3)))
    });
    t.row("grad: integer result", Type, &["grad requires real- or complex-valued outputs", "int32"], || {
        at!(grad(|x: Array| x.astype(DType::I32).sum(..)).call(ones(3)))
    });
    t.row("grad: complex result", Type, &["grad requires real-valued outputs", "complex64"], || {
        at!(grad(|x: Array| complex(x, 1.0).sum(..)).call(ones(3)))
    });
    t.row(
        "grad: integers inside a tree",
        Type,
        &["grad requires real- or complex-valued inputs", "argument[0][1]"],
        || at!(grad(|x: (Array, Array)| (x.0 * x.1).sum(..)).call((ones(3), arange(0..3)))),
    );
    t.row("grad: holomorphic of real numbers", Type, &["requires inputs with complex dtype, but got float32"], || {
        at!(grad(|x: Array| x.sum(..)).holomorphic().call(ones(3)))
    });
    t.row(
        "grad: holomorphic with a real result",
        Type,
        &["requires outputs with complex dtype, but got float32"],
        || at!(grad(|x: Array| x.abs().sum(..)).holomorphic().call(complex(ones(3), 1.0))),
    );
    t.row("grad: allow_int and an integer result", Type, &["grad requires real- or complex-valued outputs"], || {
        at!(grad(|x: Array| x.sum(..)).allow_int().call(arange(0..3)))
    });
    t.row("checkpoint: inside", Type, &["dot requires contracting dimensions"], || {
        grad(checkpoint(|x: Array| at!(x.dot(ones(4))))).call(ones(3))
    });
    t.row("grad: inside", Type, &["dot requires contracting dimensions"], || {
        grad(|x: Array| at!(x.dot(ones(4)))).call(ones(3))
    });
}

fn derivatives(t: &mut Table) {
    // Tangents and cotangents of other types than the primals.
    t.row(
        "jvp: tangent shape",
        Type,
        &["primal and tangent arguments do not match", "float32[3]", "float32[4]"],
        || at!(jvp(|x: Array| x * 2, ones(3), ones(4))),
    );
    t.row(
        "jvp: tangent of integers",
        Type,
        &["the tangent of an integer has no effect", "int32[2]", "float32[2]"],
        || at!(jvp(|x: Array| x.sin(), array([1, 2]), ones(2))),
    );
    t.row("jvp: tangent dtype", Type, &["primal and tangent arguments do not match", "int32[3]"], || {
        at!(jvp(|x: Array| x * 2, ones(3), arange(0..3)))
    });
    t.row("jvp: tangent structure", Type, &["trees of different structure"], || {
        at!(jvp(|x: Vec<Array>| x, vec![ones(3)], vec![ones(3), ones(3)]))
    });
    t.row("vjp: cotangent shape", Type, &["float32[3]", "float32[2]"], || {
        let (_, pull_back) = vjp(|x: Array| x * 2, ones(3))?;
        at!(pull_back.call(ones(2)))
    });
    t.row("vjp: cotangent structure", Type, &["trees of different structure"], || {
        let (_, pull_back) = vjp(|x: Array| vec![x], ones(3))?;
        at!(pull_back.call(vec![ones(3), ones(3)]))
    });
    t.row("linearize: tangent shape", Type, &["float32[3]", "float32[2]"], || {
        let (_, f) = linearize(|x: Array| x * 2, ones(3))?;
        at!(f.call(ones(2)))
    });
    t.row("vjp: inside", Value, &["incompatible shapes"], || vjp(|x: Array| at!(x + ones(4)), ones(3)));
    t.row("jacfwd: integers", Type, &["jacfwd requires", "int32"], || at!(jacfwd(|x: Array| x * 2).call(arange(0..3))));
    t.row("jacrev: integers", Type, &["jacrev requires", "int32"], || at!(jacrev(|x: Array| x * 2).call(arange(0..3))));
}

fn nested(t: &mut Table) {
    // The error of an inner function reaches the caller with its own line, whatever is around it.
    t.row("jit of vmap of grad: inside", Type, &["dot requires contracting dimensions"], || {
        jit(vmap(grad(|x: Array| at!(x.dot(ones(4)))))).call(ones([2, 3]))
    });
    t.row("jit of vmap: sizes", Value, &["vmap got inconsistent sizes"], || {
        at!(jit(vmap(|x: Array, y: Array| x + y)).call((ones(3), ones(4))))
    });
    t.row("grad in jit: line of the inner call", Value, &["Gradient only defined for scalar-output functions"], || {
        jit(|x: Array| at!(grad(|x: Array| x * 2).call(x))).call(ones(3))
    });
    t.row("pmap of grad: inside", Type, &["dot requires contracting dimensions"], || {
        pmap(grad(|x: Array| at!(x.dot(ones(4))))).call(ones([8, 3]))
    });
    t.row("scan in grad in jit: inside", Value, &["incompatible shapes"], || {
        fn loss(x: Array) -> Result<Array> {
            let (c, ()) = scan(|c: Array, _: Array| (at!(&c + ones(3)), ()), x, ones(5))?;
            Ok(c.sum(..))
        }
        jit(grad(loss)).call(ones(2))
    });
    t.row(
        "an inner failure that is handled does not stop the outer function",
        Value,
        &["incompatible shapes [4]"],
        || {
            fn f(x: Array) -> Result<()> {
                let caught = jit(|x: Array| x + ones(7)).call(&x).is_err();
                if caught { at!(x + ones(4)).check().map_err(|e| e.context("incompatible shapes [4]")) } else { Ok(()) }
            }
            jit(move |x: Array| -> Result<Array> { f(x.clone()).map(|()| x) }).call(ones(3))
        },
    );
}

/// A panic of the user's function must pass through every transformation unchanged, and leave no state behind.
#[test]
fn panics_of_the_users_own_pass_through() {
    crate::common::quick::setup();
    fn dive(x: Array) -> Array {
        if x.shape() == [3] || x.ndim() == 0 {
            panic!("the user's own");
        }
        x
    }
    let cases: Vec<(&str, Box<dyn Fn() -> Result<()>>)> = vec![
        ("call", Box::new(move || Function::call(&dive, ones(3)).map(drop))),
        ("jit", Box::new(move || jit(dive).call(ones(3)).map(drop))),
        ("vmap", Box::new(move || vmap(dive).axis_name("i").call(ones([2, 3])).map(drop))),
        ("grad", Box::new(move || grad(dive).call(ones(3)).map(drop))),
        ("jvp", Box::new(move || jvp(dive, ones(3), ones(3)).map(drop))),
        ("vjp", Box::new(move || vjp(dive, ones(3)).map(drop))),
        ("pmap", Box::new(move || pmap(dive).axis_name("i").call(ones([8, 3])).map(drop))),
        ("jit of vmap of grad", Box::new(move || jit(vmap(grad(dive))).call(ones([2, 3])).map(drop))),
        ("scan", Box::new(move || scan(|c: Array, x: Array| (dive(x), c), ones(3), ones([2, 3])).map(drop))),
        ("tree::map", Box::new(move || tree::map(dive, vec![ones(3)]).map(drop))),
    ];
    for (name, run) in cases {
        for _ in 0..2 {
            let panic = catch_unwind(AssertUnwindSafe(&run)).expect_err(name);
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"the user's own"), "{name}");
            // No trace, axis or lock is left behind: operations run at once, and names are unbound again.
            assert!(!(ones(3) + 1).is_traced(), "{name}");
            assert!(axis_size("i").is_err(), "{name}");
            assert_eq!(crate::works(), Ok(()), "{name}");
        }
    }
}
