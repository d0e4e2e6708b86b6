//! Unreduced and reduced values inside of `shard_map`: their types, the casts between states, collectives and gradients.

use super::*;
use shardax::lax::{CastTo, pcast_to};

fn u(axes: &[&'static str]) -> PartitionSpec {
    P![].unreduced(axes.iter().copied())
}

fn r(axes: &[&'static str]) -> PartitionSpec {
    P![].reduced(axes.iter().copied())
}

/// Runs `f` on each device; its result has this type inside, and `out` is its spec.
fn inside(f: fn(Array) -> Array, x: &Array, want: &'static str, out: PartitionSpec) -> Result<Array> {
    let body = move |x: Array| {
        let y = f(x);
        if y.error().is_none() {
            assert_eq!(y.type_name(), want);
        }
        y
    };
    jit(move |x: Array| shard_map(body, None).out_specs(out.clone()).call(x)).call(x)
}

#[test]
fn states_of_values_inside() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (addends, reduced) = (reshard(ramp(&[8], P![]), u(&["x"])), ramp(&[8], r(&["x"])));
    type Part = fn(Array) -> Array;
    let parts: [(&Array, Part, &str, PartitionSpec, &str); 13] = [
        (&addends, |x| x, "float32[8]{U:x}", u(&["x"]), "float32[8]{U:x}"),
        (&addends, |x| &x + &x, "float32[8]{U:x}", u(&["x"]), "float32[8]{U:x}"),
        (&addends, |x| x.sum(..), "float32[]{U:x}", u(&["x"]), "float32[]{U:x}"),
        (&addends, |x| x.reshape([4, 2]), "float32[4,2]{U:x}", u(&["x"]), "float32[4,2]{U:x}"),
        (&addends, |x| psum(x, "x"), "float32[8]", P![], "float32[8]"),
        (&addends, |x| psum(x, "y"), "float32[8]{U:x}", u(&["x"]), "float32[8]{U:x}"),
        (&addends, |x| pmean(x, "x"), "float32[8]", P![], "float32[8]"),
        (&addends, |x| psum_scatter_tiled(x, "x", 0), "float32[4]{V:x}", P!["x"], "float32[8@x]"),
        (&addends, |x| zeros_like(&x), "float32[8]", P![], "float32[8]"),
        (&reduced, |x| x.sin(), "float32[8]{R:x}", r(&["x"]), "float32[8]{R:x}"),
        // JAX rejects the number here, and accepts it outside.
        (&reduced, |x| x * 2, "float32[8]{R:x}", r(&["x"]), "float32[8]{R:x}"),
        (&reduced, |x| x * axis_index("x"), "float32[8]{V:x}", P!["x"], "float32[16@x]"),
        (&reduced, |x| all_gather(x, "y", 0), "float32[4,8]{V:y, R:x}", P!["y"].reduced(["x"]), "float32[16@y,8]{R:x}"),
    ];
    for (at, (x, part, type_inside, out, want)) in parts.into_iter().enumerate() {
        let y = inside(part, x, type_inside, out).map_err(|e| e.context(format!("part {at}")))?;
        assert_eq!(typed(&y), want, "part {at}");
    }
    let values = |f: fn(Array) -> Array, out: PartitionSpec| -> Result<Vec<f32>> {
        Ok(host(&reshard(jit(move |x: Array| shard_map(f, None).out_specs(out.clone()).call(x)).call(&addends)?, P![])))
    };
    let ramp: Vec<f32> = (0..8).map(|i| i as f32).collect();
    fn times(n: f32, ramp: &[f32]) -> Vec<f32> {
        ramp.iter().map(|v| n * v).collect::<Vec<_>>()
    }
    assert_eq!(values(|x| psum(x, "x"), P![])?, ramp);
    assert_eq!(values(|x| psum_scatter_tiled(x, "x", 0), P!["x"])?, ramp);
    assert_eq!(values(|x| pmean(x, "x"), P![])?, times(0.5, &ramp));
    assert_eq!(values(|x| psum(x, "y"), u(&["x"]))?, times(4.0, &ramp));
    assert_eq!(values(|x| psum(x, ("x", "y")), P![])?, times(4.0, &ramp));
    Ok(())
}

#[test]
fn operations_rejected_inside_manual_maps() {
    let (_, _mesh) = mesh(4);
    let (addends, reduced) = (reshard(ramp(&[8], P![]), u(&["x"])), ramp(&[8], r(&["x"])));
    // The argument, the function, the spec of its result, and the error.
    type Part = fn(Array) -> Array;
    let parts: [(&Array, Part, PartitionSpec, &str); 14] = [
        (
            &addends,
            |x| x,
            P![],
            "should be equal to the unreduced and reduced axes of the output: got P() for output of type float32[8]{U:x}",
        ),
        (&addends, |x| x, P!["x"], "should be equal to the unreduced and reduced axes"),
        (&addends, |x| x * 2, u(&["x"]), "unreduced operands are not supported, got float32[8]{U:x}"),
        (&addends, |x| x.sin(), u(&["x"]), "unreduced operands are not supported"),
        (&addends, |x| pmax(x, "x"), P![], "unreduced operands do not vary, got float32[8]{U:x}"),
        (&addends, |x| all_gather(x, "x", 0), P![], "unreduced operands do not vary"),
        (&addends, |x| &x * axis_index("x"), P!["x"], "unreduced operands do not vary"),
        (&addends, |x| &x + zeros([8]), u(&["x"]), "must be unreduced and reduced over the same axes"),
        (&addends, |x| pcast_to(x, "x", CastTo::Varying), P!["x"], "Unsupported pcast from=unreduced, to='varying'"),
        (&addends, |x| reshard(x, P![]), P![], "sum unreduced values with `psum`"),
        (&reduced, |x| x, P![], "got P() for output of type float32[8]{R:x}"),
        (&reduced, |x| &x * ones([8]), r(&["x"]), "must be unreduced and reduced over the same axes"),
        (&reduced, |_| zeros([8]), r(&["x"]), "got P(reduced={'x'}) for output of type float32[8]"),
        (&reduced, |_| zeros([8]), u(&["x"]), "got P(unreduced={'x'}) for output of type float32[8]"),
    ];
    for (at, (x, part, out, want)) in parts.into_iter().enumerate() {
        let f = shard_map(part, None).out_specs(out);
        let text = jit(move |x: Array| f.call(x)).call(x).map(|y| y.type_name()).unwrap_err().to_string();
        assert!(text.contains(want) && text.contains("help:"), "part {at}: {text}");
    }
}

/// The casts that JAX's `pcast(x, 'x', to=..)` knows, and its words for the others.
#[test]
fn casts_between_states() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let states = [
        ("invarying", ramp(&[8], P![])),
        ("unreduced", reshard(ramp(&[8], P![]), u(&["x"]))),
        ("reduced", ramp(&[8], r(&["x"]))),
        ("varying", ramp(&[16], P!["x"])),
    ];
    for (to, out, known) in [
        (CastTo::Varying, P!["x"], &["invarying", "reduced"][..]),
        (CastTo::Unreduced, u(&["x"]), &["varying"]),
        (CastTo::Reduced, r(&["x"]), &["invarying"]),
    ] {
        for (from, x) in &states {
            let f = shard_map(move |x: Array| pcast_to(x, "x", to), None).out_specs(out.clone());
            let result = jit(move |x: Array| f.call(x)).call(x);
            if known.contains(from) {
                assert!(result.is_ok(), "{from} to {to:?}: {}", result.unwrap_err())
            } else {
                let text = result.unwrap_err().to_string();
                let to = format!("{to:?}").to_lowercase();
                assert!(text.contains(&format!("Unsupported pcast from={from}, to='{to}'")), "{text}");
            }
        }
    }
    // Rounding the addends is different from rounding their sum.
    for (dtype, known) in [(DType::Bf16, true), (DType::Complex64, true), (DType::I32, false), (DType::Bool, false)] {
        let f = move |x: Array| pcast_to(x, "x", CastTo::Unreduced).astype(dtype);
        let result = shard_map(f, None).out_specs(u(&["x"])).call(&states[3].1);
        assert_eq!(result.is_ok(), known, "{dtype}");
        result
            .err()
            .into_iter()
            .for_each(|e| assert!(e.to_string().contains("unreduced operands are not supported"), "{e}"));
    }
    let f = shard_map(|x: Array| pcast_to(x, "x", CastTo::Reduced), None).axis_names("x").out_specs(P![]);
    let text = f.call(&states[0].1).unwrap_err().to_string();
    assert!(text.contains("a shard_map over all axes of the mesh"), "{text}");
    let auto = make_mesh([("x", 2), ("y", 4)])?.auto();
    let _auto = shardax::set_mesh(&auto)?;
    let f = shard_map(|x: Array| pcast_to(x, "x", CastTo::Unreduced), None).in_specs(P!["x"]).out_specs(P![]);
    let text = f.call(ones(8)).unwrap_err().to_string();
    assert!(text.contains("the axes must be of type Explicit outside"), "{text}");
    Ok(())
}

#[test]
fn gradients_of_states() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (addends, reduced) = (reshard(ramp(&[8], P![]), u(&["x"])), ramp(&[8], r(&["x"])));
    type Part = fn(Array) -> Array;
    let parts: [(&Array, Part, PartitionSpec, &str, f32); 5] = [
        (&addends, |x| psum(x, "x"), P![], "float32[8]{R:x}", 3.0),
        (&addends, |x| x, u(&["x"]), "float32[8]{R:x}", 3.0),
        (&addends, |x| psum_scatter_tiled(x, "x", 0), P!["x"], "float32[8]{R:x}", 3.0),
        (&addends, |x| psum(x, "y"), u(&["x"]), "float32[8]{R:x}", 12.0),
        (&reduced, |x| psum(x * (axis_index("x") + 1), "x"), P![], "float32[8]{U:x}", 9.0),
    ];
    for (at, (x, part, out, want, value)) in parts.into_iter().enumerate() {
        let f = move |x: Array| {
            Ok::<_, shardax::Error>((reshard(shard_map(part, None).out_specs(out.clone()).call(x)?, P![]) * 3).sum(..))
        };
        let g = jit(grad(f)).call(x).map_err(|e| e.context(format!("part {at}")))?;
        assert_eq!(typed(&g), want, "part {at}");
        assert_eq!(host(&reshard(g, P![])), [value; 8], "part {at}");
    }
    Ok(())
}

/// Gradients inside of a map with respect to a reduced argument are addends, which a loop adds up: one sum at the end.
#[test]
fn accumulation_inside() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (w, xs) = (num(&[4], 0.3, 0.0, r(&["x"])), num(&[3, 8, 4], 0.1, 0.0, P![None, "x"]));
    fn accumulate(w: Array, xs: Array) -> Result<Array> {
        let start = pcast_to(pcast(zeros([4]), "x"), "x", CastTo::Unreduced);
        let step = move |sum: Array, x: Array| {
            let slope = grad(|w: Array| x.matmul(w).tanh().sum(..)).call(&w)?;
            assert_eq!((slope.type_name(), sum.type_name()), ("float32[4]{U:x}".into(), "float32[4]{U:x}".into()));
            Ok((sum + slope, ()))
        };
        Ok::<_, shardax::Error>(psum(shardax::scan(step, start, xs)?.0, "x"))
    }
    let f = jit(move |w: Array, xs: Array| shard_map(accumulate, None).out_specs(P![]).call((w, xs)));
    let sum = f.call((&w, &xs))?;
    assert_eq!(typed(&sum), "float32[4]");
    let text = f.lower((&w, &xs))?.compile()?.as_text()?;
    assert_eq!(text.matches(" all-reduce(").count(), 1, "{text}");
    fn gradient(w: Array, xs: Array) -> Result<Array> {
        grad(|w: Array| xs.reshape([24, 4]).matmul(w).tanh().sum(..)).call(w)
    }
    let _none = shardax::set_mesh(None)?;
    let [w, xs] = [w, xs].map(|x| device_put(&x, &devices().unwrap()[0]).unwrap());
    same(&sum, &host(&gradient(w, xs)?));
    Ok(())
}

/// The derivative of a function of a value that is split, inside of the `shard_map`.
type Derivative = fn(Array) -> Result<Array>;

#[test]
fn zero_derivatives_vary_like_the_values() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let derivatives: [Derivative; 8] = [
        |x| grad(|_: Array| array(2.0f32)).call(x),
        |x| grad(|x: Array| stop_gradient(x).sum(..)).call(x),
        |x| grad(|x: Array| x.argmax(0).astype(DType::F32)).call(x),
        |x| grad(jit(|x: Array| zeros_like(&x).sum(..))).call(x),
        |x| Ok(vjp(|x: Array| stop_gradient(x), &x)?.1.call(&x)?.0),
        |x| Ok(jvp(|x: Array| stop_gradient(x), &x, &x)?.1),
        |x| jacrev(|x: Array| stop_gradient(x).sum(..)).call(x),
        |x| jacfwd(|x: Array| stop_gradient(x).sum(..) + axis_index("x")).call(x),
    ];
    for (i, derivative) in derivatives.into_iter().enumerate() {
        let body = move |x: Array| {
            let zero = derivative(x)?;
            assert!(zero.type_name().ends_with("{V:x}"), "derivative {i}: {}", zero.type_name());
            Ok::<_, shardax::Error>(zero.sum(..).expand_dims(0))
        };
        let sums = jit(move |x: Array| shard_map(body, None).out_specs(P!["x"]).call(x)).call(ramp(&[8], P!["x"]))?;
        same(&sums, &[0.0, 0.0]);
    }
    Ok(())
}
