//! Gradients through `shard_map`, `pmap` and collectives, with types that track varying axes and without.

use shardax::prelude::*;

use crate::common::quick::{one_of, setup};

fn close(a: &Array, b: &Array) -> Result<()> {
    assert!(allclose(a, b, 1e-5, 1e-6)?, "{a}\nis not\n{b}");
    Ok(())
}

fn ramp(shape: impl IntoShape) -> Array {
    let x = arange(0..16).astype(DType::F32) / 10.0 + 0.1;
    x.reshape(shape)
}

/// Outside of the map, gradients do not depend on the check: they equal the gradients of the same function on one
/// device.
#[test]
fn outer_gradients() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let (x, w) = (ramp([8, 2]), ramp(16).reshape([8, 2]).sum(0));
    for check in [true, false] {
        fn loss(x: Array, w: Array, check: bool) -> Result<Array> {
            let mesh = make_mesh([("i", 8)])?;
            shard_map(|x: Array, w: Array| psum((x * &w).sin().sum(..) + w.sum(..), "i"), &mesh)
                .in_specs((P!["i"], P![]))
                .out_specs(P![])
                .check_vma(check)
                .call((x, w))
        }
        fn plain(x: Array, w: Array) -> Array {
            (x * &w).sin().sum(..) + w.sum(..) * 8
        }
        let (v, g) =
            value_and_grad(|x: Array, w: Array| loss(x, w, check)).argnums((Arg::<0>, Arg::<1>)).call((&x, &w))?;
        let (pv, pg) = value_and_grad(plain).argnums((Arg::<0>, Arg::<1>)).call((&x, &w))?;
        close(&v, &pv)?;
        close(&g.0, &pg.0)?;
        close(&g.1, &pg.1)?;
        // Second order, forward over reverse.
        fn hvp(f: &dyn Fn(Array) -> Result<Array>, w: &Array) -> Result<Array> {
            Ok(jvp(|w: Array| grad(|w: Array| f(w)).call(w), w, ones_like(w))?.1)
        }
        close(&hvp(&|w| loss(x.clone(), w, check), &w)?, &hvp(&|w| Ok(plain(x.clone(), w)), &w)?)?;
        fn twice(f: &dyn Fn(Array) -> Result<Array>, w: &Array) -> Result<Array> {
            grad(|w: Array| -> Result<Array> { Ok(grad(|w: Array| f(w)).call(w)?.square().sum(..)) }).call(w)
        }
        close(&twice(&|w| loss(x.clone(), w, check), &w)?, &twice(&|w| Ok(plain(x.clone(), w)), &w)?)?;
    }
    let _ = mesh;
    Ok(())
}

/// Inside of the map they do: with the check, psum's gradient is 2x, and the gradient of a replicated argument is
/// summed.
#[test]
fn inner_gradients() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let x = ramp([8, 2]);
    // Without the check, the transpose of `psum` is another `psum` over the eight devices.
    for (check, factor) in [(true, 2.0), (false, 16.0)] {
        let g = shard_map(grad(|x: Array| psum((&x * &x).sum(..), "i")), &mesh)
            .in_specs(P!["i"])
            .out_specs(P!["i"])
            .check_vma(check)
            .call(&x)?;
        close(&g, &(&x * factor))?;
    }
    let w = array([1.0f32, 2.0]);
    fn local(w: Array, x: Array) -> Array {
        (w * x).sum(..)
    }
    let summed = shard_map(grad(local), &mesh).in_specs((P![], P!["i"])).out_specs(P![]).call((&w, &x))?;
    close(&summed, &x.sum(0))?;
    let apart =
        shard_map(move |w: Array, x: Array| -> Result<Array> { Ok(grad(local).call((w, x))?.expand_dims(0)) }, &mesh)
            .in_specs((P![], P!["i"]))
            .out_specs(P!["i"])
            .check_vma(false)
            .call((&w, &x))?;
    close(&apart, &x)?;
    Ok(())
}

/// `pmap` under `grad`, `vmap` and `jit`, and each collective's gradient against a numerical one.
#[test]
fn collectives_under_grad() -> Result<()> {
    setup();
    let x = ramp([8, 2]);
    type F = fn(Array) -> Array;
    let bodies: [(&str, F); 9] = [
        ("psum", |x| psum(x.sin(), "i") * &x),
        ("pmean", |x| pmean(x.sin(), "i") * &x),
        ("pmax", |x| pmax(x.sin(), "i") * &x),
        ("pmin", |x| pmin(x.sin(), "i") * &x),
        ("all_gather", |x| (all_gather(x.sin(), "i", 0) * &x).sum(0)),
        ("psum_scatter", |x| {
            let y = x.broadcast_to([8, 2]).sin() * arange(0..8).expand_dims(1);
            psum_scatter(y, "i", 0) * &x
        }),
        ("all_to_all", |x| {
            let y = x.broadcast_to([8, 2]).sin() * arange(0..8).expand_dims(1);
            all_to_all(y, "i", 0, 0).sum(0) * &x
        }),
        ("ppermute", |x| ppermute(x.sin(), "i", (0..8).map(|i| (i, (i + 1) % 8)).collect::<Vec<_>>()) * &x),
        ("axis_index", |x| &x * axis_index("i") * &x),
    ];
    // The tests of collectives compare the gradients of the others.
    for (name, body) in bodies.into_iter().step_by(one_of(3)) {
        let mapped = move |x: Array| -> Result<Array> { Ok(pmap(body).axis_name("i").call(x)?.square().sum(..)) };
        let as_vmap = move |x: Array| -> Result<Array> { Ok(vmap(body).axis_name("i").call(x)?.square().sum(..)) };
        let (v, g) = value_and_grad(mapped).call(&x)?;
        let (vv, vg) = value_and_grad(as_vmap).call(&x)?;
        assert!(allclose(&v, &vv, 1e-5, 1e-6)?, "{name}: {v} and {vv}");
        assert!(allclose(&g, &vg, 1e-5, 1e-6)?, "{name}:\n{g}\nis not\n{vg}");
        // Numerically, along one direction.
        let d = (&x * 7.0).cos();
        let step = 1e-2f32;
        let up = mapped(&x + &d * step)?.to_f64()?;
        let down = mapped(&x - &d * step)?.to_f64()?;
        let numeric = (up - down) / (2.0 * step as f64);
        let exact = (g * &d).sum(..).to_f64()?;
        assert!((numeric - exact).abs() < 2e-2 * exact.abs().max(1.0), "{name}: {numeric} and {exact}");
        let (_, t) = jvp(mapped, &x, &d)?;
        assert!((t.to_f64()? - exact).abs() < 1e-3 * exact.abs().max(1.0), "{name}: jvp {t} and {exact}");
        // Mapped once more, and compiled.
        let stacked = stack(&[x.clone(), &x * 2.0], 0);
        let combined = jit(vmap(mapped)).call(&stacked)?;
        assert!((combined.to_f64_vec()?[0] - v.to_f64()?).abs() < 1e-3 * v.to_f64()?.abs(), "{name}: under vmap");
    }
    Ok(())
}

/// The gradient of a small operand that is broadcast against a large one is summed to its size before it is sent.
#[test]
fn gradients_of_broadcast_operands_are_sent_small() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let f = shard_map(|w: Array, x: Array| psum((x * w).square().sum(..), "i"), &mesh);
    let f = f.in_specs((P![], P!["i"])).out_specs(P![]);
    let step = jit(grad(move |w: Array, x: Array| f.call((w, x))));
    let (w, x) = (random::normal(&random::key(0), [4]), random::normal(&random::key(1), [64, 4]));
    let compiled = step.lower((&w, &x))?.compile()?;
    assert_eq!(compiled.collectives()?.bytes(), 4 * 4, "{}", compiled.collectives()?);
    let want = x.square().sum(0) * &w * 2;
    assert!(allclose(compiled.call((&w, &x))?, want, 1e-5, 1e-5)?);
    Ok(())
}

/// The results of a custom rule must vary over the same axes as the values that they replace. An additional sum is an
/// error.
#[test]
fn custom_rules_must_vary_like_their_function() -> Result<()> {
    use shardax::control_flow::{custom_jvp, custom_vjp};
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let (w, x) = (ones([2]), ramp([8, 2]));
    let slope = |summed: bool, cast: bool| {
        let f = custom_vjp(|w: Array, x: Array| w * x.sum(0)).defvjp(
            |w: Array, x: Array| (&w * x.sum(0), (w, x)),
            move |(w, x): (Array, Array), g: Array| {
                let dw = &g * x.sum(0);
                (if summed { psum(dw, "i") } else { dw }, (g * w).expand_dims(0) * ones_like(&x))
            },
        );
        let loss = move |w: Array, x: Array| -> Result<Array> {
            let w = if cast { pcast(w, "i") } else { w };
            Ok(psum(f.call((w, x))?.sum(..), "i"))
        };
        grad(|w: Array| shard_map(&loss, &mesh).in_specs((P![], P!["i"])).out_specs(P![]).call((w, x.clone()))).call(&w)
    };
    let want = x.sum(0);
    close(&slope(true, false)?, &want)?;
    close(&slope(false, true)?, &want)?;
    let error = slope(true, true).expect_err("a sum too many");
    assert!(error.message().contains("manual axes {i} do not match"), "{error}");
    // Zeros of a value that varies do.
    let none =
        custom_vjp(|x: Array| x.square()).defvjp(|x: Array| (x.square(), x), |x: Array, _: Array| (zeros_like(&x),));
    let loss = |x: Array| -> Result<Array> { Ok(psum(none.call(x)?.sum(..), "i")) };
    let result = grad(|x: Array| shard_map(&loss, &mesh).in_specs(P!["i"]).out_specs(P![]).call(x)).call(&x)?;
    close(&result, &zeros_like(&x))?;
    // A tangent that varies, of a value that does not.
    let f = custom_jvp(|w: Array| w * 2).defjvp(|(w,): (Array,), (t,): (Array,)| (w * 2, pcast(t * 2, "i")));
    let loss = |w: Array| -> Result<Array> { Ok(psum(f.call(w)?.sum(..), "i")) };
    let error = grad(|w: Array| shard_map(&loss, &mesh).in_specs(P![]).out_specs(P![]).call(w)).call(&w);
    let error = error.expect_err("a tangent that varies");
    assert!(error.message().contains("manual axes {i} do not match"), "{error}");
    Ok(())
}

/// A function linearized at a value that does not vary takes no tangent that does, nor its transpose a cotangent.
#[test]
fn linear_maps_take_values_that_vary_as_their_point() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    fn double(w: Array) -> Array {
        w * 2
    }
    fn forward(w: Array) -> Result<Array> {
        linearize(double, &w)?.1.call(pcast(w, "i"))
    }
    fn back(w: Array) -> Result<Array> {
        Ok(vjp(double, &w)?.1.call(pcast(w, "i"))?.0)
    }
    for result in [
        shard_map(forward, &mesh).in_specs(P![]).out_specs(P!["i"]).call(ones([2])),
        shard_map(back, &mesh).in_specs(P![]).out_specs(P!["i"]).call(ones([2])),
    ] {
        let error = result.expect_err("it varies").to_string();
        assert!(error.contains("does not vary over {i}"), "{error}");
    }
    // As an operation does, it takes one that varies less.
    fn less(w: Array) -> Result<Array> {
        linearize(double, pcast(w.clone(), "i"))?.1.call(w)
    }
    let out = shard_map(less, &mesh).in_specs(P![]).out_specs(P!["i"]).call(ones([2]))?;
    assert_eq!(out.to_vec::<f32>()?, [2.0; 16]);
    Ok(())
}
