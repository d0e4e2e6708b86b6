//! Mistakes with loops, choices and custom derivatives.

use shardax::ErrorKind::{Index, Type, Value};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    // The message names the leaf of a carry or a branch whose types differ.
    t.row("cond: predicate", Type, &["Pred must be a scalar", "bool[2]"], || {
        at!(cond(array([true, false]), |x: Array| x, |x| -x, ones(2)))
    });
    t.row(
        "cond: result types",
        Type,
        &["cond branches must have equal output types", "float32[2]", "float32[]"],
        || at!(cond(true, |x: Array| x, |x: Array| x.sum(..), ones(2))),
    );
    t.row("cond: result structures", Type, &["same pytree structure"], || {
        at!(cond(true, |x: Array| vec![x], |x: Array| vec![x.clone(), x], ones(2)))
    });
    t.row(
        "cond: results that vary over different axes",
        Type,
        &[
            "cond branches must have equal output types",
            "true_fun has type float32[4]{V:i}",
            "the manual axis types do not match",
            "pcast(..., ('j',), to='varying')",
            "of true_fun",
        ],
        || {
            let mesh = make_mesh([("i", 2), ("j", 2)])?;
            let f = |x: Array, y: Array| {
                fn swap((x, y): (Array, Array)) -> (Array, Array) {
                    (y, x)
                }
                at!(cond(true, |both: (Array, Array)| both, swap, (x, y)))
            };
            shard_map(f, &mesh).in_specs((P!["i"], P!["j"])).out_specs(P![("i", "j")]).call((ones(8), ones(8)))
        },
    );
    t.row(
        "switch: results that vary over different axes",
        Type,
        &["of branch 1 has type float32[]", "pcast(.., \"i\")"],
        || {
            let mesh = make_mesh([("i", 2)])?;
            let f = |x: Array| at!(switch(0, (|x: Array| x.sum(..), |_: Array| ones(())), x));
            shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P![]).call(ones(8))
        },
    );
    t.row("cond: inside a branch", Value, &["incompatible shapes"], || {
        cond(true, |x: Array| at!(x + ones(3)), |x: Array| x, ones(2))
    });
    t.row("switch: index", Type, &["Index type must be an integer", "float32"], || {
        at!(switch(1.0f32, (|x: Array| x, |x: Array| -x), ones(2)))
    });
    t.row("switch: index shape", Type, &["Branch index must be scalar"], || {
        at!(switch(arange(0..2), (|x: Array| x, |x: Array| -x), ones(2)))
    });
    t.row("switch: no branches", Value, &["Empty branch sequence"], || {
        at!(switch(0, Vec::<fn(Array) -> Array>::new(), ones(2)))
    });
    t.row("scan: lengths", Value, &["scan got values with different leading axis sizes: 2, 3"], || {
        at!(scan(|c: Array, (x, y): (Array, Array)| (c + x + y, ()), 0.0f32, (ones(2), ones(3))))
    });
    t.row("scan: scalar", Value, &["no leading axis to scan over"], || {
        at!(scan(|c: Array, x: Array| (c + x, ()), 0.0f32, 1.0f32))
    });
    t.row("scan: carry shape", Type, &["scan body function carry", "float32[2]", "float32[2,2]"], || {
        at!(scan(|c: Array, x: Array| (c.broadcast_to([2, 2]), x), ones(2), ones(3)))
    });
    t.row("scan: carry dtype", Type, &["scan body function carry", "dtypes do not match"], || {
        at!(scan(|c: Array, x: Array| (c.astype(DType::I32), x), ones(2), ones(3)))
    });
    t.row("scan: inside the body", Value, &["incompatible shapes"], || {
        scan(|c: Array, x: Array| (at!(c + ones(3)), x), ones(2), ones(3))
    });
    t.row("scan: unroll 0", Value, &["unroll must be at least 1"], || {
        let options = ScanOptions::new().unroll(0);
        at!(options.scan(|c: Array, x: Array| (c + x, ()), 0.0f32, ones(3)))
    });
    t.row("scan: length", Value, &["`length` argument of 4 which disagrees with leading axis sizes [3]"], || {
        let options = ScanOptions::new().length(4);
        at!(options.scan(|c: Array, x: Array| (c + x, ()), 0.0f32, ones(3)))
    });
    t.row("while_loop: condition", Type, &["cond_fun must return a boolean scalar", "float32[2]"], || {
        at!(while_loop(|x: Array| x, |x: Array| x, ones(2)))
    });
    t.row("while_loop: carry", Type, &["while_loop body function carry"], || {
        at!(while_loop(|x: Array| x.sum(..).less(9), |x: Array| x.sum(..), ones(2)))
    });
    t.row("while_loop: reverse mode", Value, &["Reverse-mode differentiation does not work for"], || {
        let f = |x: Array| at!(while_loop(|x: Array| x.less(100), |x| x * 3, x));
        grad(f).call(1.0f32)
    });
    t.row("fori_loop: bounds", Type, &["bounds must be integer scalars"], || {
        at!(fori_loop(0, 2.5f32, |_, x: Array| x, ones(2)))
    });
    t.row("associative_scan: sizes", Value, &["same size along axis 0"], || {
        fn add(a: (Array, Array), b: (Array, Array)) -> (Array, Array) {
            (a.0 + b.0, a.1 + b.1)
        }
        at!(associative_scan(add, (ones(2), ones(3))))
    });
    t.row("associative_scan: axis", Index, &["axis 1 is out of bounds"], || {
        at!(AssociativeScanOptions::new().axis(1).associative_scan(|a: Array, b: Array| a + b, ones(2)))
    });
    t.row("custom_jvp: tangent shape", Type, &["Custom JVP rule", "float32[2]", "float32[]"], || {
        let f = custom_jvp(|x: Array| x.sin()).defjvp(|(x,): (Array,), (dx,): (Array,)| (x.sin(), dx.sum(..)));
        at!(jvp(move |x: Array| f.call(x), ones(2), ones(2)))
    });
    t.row(
        "custom_vjp: forward mode",
        Type,
        &["can't apply forward-mode differentiation (jvp) to a custom_vjp function"],
        || {
            let f =
                custom_vjp(|x: Array| x.sin()).defvjp(|x: Array| (x.sin(), x), |x: Array, ct: Array| (ct * x.cos(),));
            let g = move |x: Array| at!(f.call(x));
            jvp(g, ones(2), ones(2))
        },
    )
    // A function that is traced may have no use for the tangents.
    .at_once_only();
    t.row("custom_vjp: cotangent shape", Type, &["Custom VJP", "float32[2]"], || {
        let f = custom_vjp(|x: Array| x.sin()).defvjp(|x: Array| (x.sin(), ()), |(), ct: Array| (ct.sum(..),));
        at!(grad(move |x: Array| -> Result<Array> { Ok(f.call(x)?.sum(..)) }).call(ones(2)))
    });
}
