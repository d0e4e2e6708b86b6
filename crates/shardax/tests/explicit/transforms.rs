//! Gradients, `vmap`, loops and branches.

use super::*;
use shardax::lax::DotOptions;

#[test]
fn scan() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (carry, xs) = (num(&[8, 8], 0.3, 0.0, P!["x", "y"]), num(&[3, 8, 8], 0.17, 0.0, P![None, "x", None]));
    fn f(carry: Array, xs: Array) -> Result<(Array, Array)> {
        fn step(h: Array, w: Array) -> Result<(Array, Array)> {
            assert_eq!((h.type_name(), w.type_name()), ("float32[8@x,8@y]".into(), "float32[8@x,8]".into()));
            let h = DotOptions::new().out_sharding(P!["x", "y"]).einsum("ij,jk->ik", &[&h, &w]);
            Ok((h.tanh(), h.sum(1)))
        }
        shardax::scan(step, carry, xs)
    }
    let (last, sums) = jit(f).call((&carry, &xs))?;
    assert_eq!((typed(&last), typed(&sums)), ("float32[8@x,8@y]".into(), "float32[3,8@x]".into()));
    fn loss(carry: Array, xs: Array) -> Result<Array> {
        Ok(f(carry, xs)?.0.sum(..))
    }
    let (gc, gx) = jit(grad(loss).argnums((Arg::<0>, Arg::<1>))).call((&carry, &xs))?;
    assert_eq!((typed(&gc), typed(&gx)), (typed(&carry), typed(&xs)));
    let text = jit(f).call((&carry, &num(&[2, 8, 8], 0.1, 0.0, P!["x"]))).unwrap_err().to_string();
    assert!(
        text.contains("0th dimension of all xs should be replicated") && text.contains("float32[2@x,8,8]"),
        "{text}"
    );
    Ok(())
}

#[test]
fn carry_of_another_sharding() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    fn scanned(x: Array) -> Result<(Array, ())> {
        shardax::scan_n(|x: Array| Ok((reshard(x, P!["y", "x"]), ())), x, 3)
    }
    let text = jit(scanned).call(&x).unwrap_err().to_string();
    assert!(
        text.contains("float32[8@x,8@y]")
            && text.contains("float32[8@y,8@x]")
            && text.contains("shardings do not match"),
        "{text}"
    );
    fn looped(x: Array) -> Result<Array> {
        while_loop(|x: Array| x.sum(..).less(10), |x: Array| reshard(x, P!["y", "x"]), x)
    }
    let text = jit(looped).call(&x).unwrap_err().to_string();
    assert!(text.contains("shardings do not match"), "{text}");
}

#[test]
fn cond_lowering_constraint() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let f = jit(|x: Array| cond(x.sum(..).greater(0), |x: Array| -x, |x: Array| x, x));
    let out = f.call(&x)?;
    assert_eq!(typed(&out), "float32[8@x,8@y]");
    assert_eq!(host(&out)[1], -1.0);
    let text = f.lower(&x)?.as_text().to_owned();
    assert_eq!(text_of(&text, "sdy.sharding_constraint"), 5, "{text}");
    let two = jit(|x: Array| cond(x.sum(..).greater(0), |x: Array| reshard(x, P!["y", "x"]), |x: Array| x, x));
    let text = two.call(&x).unwrap_err().to_string();
    assert!(text.contains("float32[8@y,8@x]") && text.contains("float32[8@x,8@y]"), "{text}");
    Ok(())
}

#[test]
fn mul_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    fn f(x: Array) -> Array {
        assert_eq!(x.type_name(), "float32[8@y]");
        &x * &x
    }
    assert_eq!(typed(&jit(vmap(f)).call(&x)?), "float32[8@x,8@y]");
    assert_eq!(typed(&vmap(f).call(&x)?), "float32[8@x,8@y]");
    let g = jit(grad(move |x: Array| Ok(vmap(f).call(x)?.sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8@y]");
    let over = vmap(|x: Array| {
        assert_eq!(x.type_name(), "float32[8@x]");
        x * 2
    });
    assert_eq!(typed(&over.in_axes(1).call(&x)?), "float32[8@y,8@x]");
    // A constant result is split as the mapped dimension is.
    assert_eq!(typed(&vmap(|_: Array| ones(4)).call(&x)?), "float32[8@x,4]");
    Ok(())
}

#[test]
fn dot_general_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (num(&[4, 8, 8], 0.1, 0.0, P!["x", None, "y"]), num(&[4, 8, 8], 0.2, 0.0, P!["x", "y", None]));
    fn f(a: Array, b: Array) -> Array {
        DotOptions::new().out_sharding(P![None, "y"]).einsum("ij,jk->ik", &[&a, &b])
    }
    let out = jit(vmap(f)).call((&a, &b))?;
    assert_eq!(typed(&out), "float32[4@x,8,8@y]");
    assert_eq!(typed(&jit(vmap(f).out_axes(1)).call((&a, &b))?), "float32[8,4@x,8@y]");
    Ok(())
}

#[test]
fn shit_vmap_error_check() {
    let (_, _mesh) = mesh(4);
    let (a, b) = (ramp(&[8, 8], P!["x"]), ramp(&[8, 8], P!["y"]));
    let text = vmap(|a: Array, b: Array| a + b).call((&a, &b)).unwrap_err().to_string();
    assert!(
        text.contains("should be sharded the same. Got inconsistent axis specs: float32[8@x,8] and float32[8@y,8]"),
        "{text}"
    );
    let text = vmap(|a: Array| a).spmd_axis_name("y").call(&a).unwrap_err().to_string();
    assert!(text.contains("spmd_axis_name"), "{text}");
    let text =
        vmap(|a: Array, b: Array| a + b).in_axes((0, None)).call((&a, &ramp(&[8], P!["x"]))).unwrap_err().to_string();
    assert!(text.contains("a value of type float32[8@x] that is not mapped"), "{text}");
}

#[test]
fn cotangents_of_another_type_are_rejected() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let (out, back) = vjp(|x: Array| x.sin(), &x)?;
    let text = back.call(&ramp(&[8, 8], P!["y"])).unwrap_err().to_string();
    assert!(text.contains("float32[8@x,8@y], got float32[8@y,8]"), "{text}");
    assert_eq!(typed(&back.call(&out)?.0), "float32[8@x,8@y]");
    let text = jvp(|x: Array| x.sin(), &x, &ramp(&[8, 8], P!["y"])).unwrap_err().to_string();
    assert!(text.contains("float32[8@x,8@y], got float32[8@y,8]"), "{text}");
    Ok(())
}

#[test]
fn gradients_have_the_types_of_operands_that_join() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (ramp(&[8, 8], P!["x", None]), ramp(&[8, 8], P![None, "y"]));
    let (ga, gb) = jit(grad(|a: Array, b: Array| (a * b).sum(..)).argnums((Arg::<0>, Arg::<1>))).call((&a, &b))?;
    assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
    same(&ga, &host(&b));
    let c = ramp(&[8], P!["y"]);
    let gc = jit(grad(|c: Array, a: Array| (a + c).sin().sum(..))).call((&c, &a))?;
    assert_eq!(typed(&gc), "float32[8@y]");
    Ok(())
}

#[test]
fn sub_custom_jvp() -> Result<()> {
    let (_, _mesh) = mesh(4);
    fn log_sigmoid(x: &Array) -> Array {
        -shardax::nn::softplus(-x)
    }
    let cross =
        move |logits: &Array, labels: &Array| -(labels * log_sigmoid(logits)) - (1.0 - labels) * log_sigmoid(&-logits);
    let loss = move |a: Array, b: Array| {
        let x = &a - b.mean(..);
        let y = &b - a.mean(..);
        cross(&x, &zeros_like(&a)).mean(..) + cross(&y, &ones_like(&b)).mean(..)
    };
    let (a, b) = (num(&[4, 8, 2], 0.3, 0.0, P!["x", None]), num(&[4, 8, 2], 0.7, 1.0, P!["x", None]));
    let (value, g) = jit(value_and_grad(jit(loss))).call((&a, &b))?;
    assert_eq!(typed(&g), "float32[4@x,8,2]");
    let _none = shardax::set_mesh(None)?;
    let [a, b] = [a, b].map(|x| device_put(&x, &devices().unwrap()[0]).unwrap());
    let (want, plain) = value_and_grad(loss).call((&a, &b))?;
    near(value.item::<f32>()?.into(), want.item::<f32>()?.into(), 1e-5);
    same(&g, &host(&plain));
    Ok(())
}

#[test]
fn vmap_grad_cet_dot() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[16, 8, 4], 0.3, 0.0, P!["x"]).astype(DType::Bf16);
    let w = num(&[2, 4, 1], 0.7, 0.0, P![]);
    let f = jit(|x: Array, w: Array| x.astype(DType::F32).matmul(w).sum(..));
    let (dx, dw) = vmap(grad(f).argnums((Arg::<0>, Arg::<1>))).in_axes((None, 0)).call((&x, &w))?;
    assert_eq!((typed(&dx), typed(&dw)), ("bfloat16[2,16@x,8,4]".into(), "float32[2,4,1]".into()));
    let sums = x.astype(DType::F32).sum([0, 1]);
    same(&dw, &[host(&sums), host(&sums)].concat());
    Ok(())
}

#[test]
fn custom_rules_of_another_sharding_are_rejected() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let f = custom_vjp(|x: Array| x.sin())
        .defvjp(|x: Array| (x.sin(), x), |x: Array, ct: Array| (reshard(ct * x.cos(), P!["y", "x"]),));
    let text = jit(grad(move |x: Array| f.call(x).map(|y| y.sum(..)))).call(&x).unwrap_err().to_string();
    assert!(text.contains("Custom VJP bwd rule must produce an output with the same structure and types"), "{text}");
    assert!(text.contains("expected float32[8@x,8@y] but got float32[8@y,8@x]") && text.contains("reshard"), "{text}");
    let f = custom_jvp(|x: Array| x.sin())
        .defjvp(|(x,): (Array,), (t,): (Array,)| (x.sin(), reshard(t * x.cos(), P!["y", "x"])));
    let text = jvp(move |x: Array| f.call(x), &x, &x).unwrap_err().to_string();
    assert!(text.contains("expected float32[8@x,8@y] but got float32[8@y,8@x]"), "{text}");
    Ok(())
}

#[test]
fn custom_rules_of_entries_of_a_split_batch() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 4], 0.3, 0.0, P!["x", "y"]);
    let pushed = custom_jvp(|x: Array| x.sin()).defjvp(|(x,): (Array,), (t,): (Array,)| (x.sin(), t * x.cos() * 2));
    let pulled =
        custom_vjp(|x: Array| x.sin()).defvjp(|x: Array| (x.sin(), x), |x: Array, ct: Array| (ct * x.cos() * 2,));
    let f = vmap(move |x: Array| Ok(pushed.call(&x)? + pulled.call(x)?));
    let g = jit(grad(move |x: Array| f.call(x).map(|y| y.sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,4@y]");
    same(&g, &host(&x).iter().map(|v| 4.0 * v.cos()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn loops_and_branches_of_a_split_batch() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 4], 0.3, 0.0, P!["x", "y"]);
    // A carry that is a number at first.
    let f = |x: Array| {
        let (last, ()) = shardax::scan_n(move |c: Array| Ok((c + x.sum(..), ())), Array::from(0.0f32), 3)?;
        Ok(last)
    };
    let out = jit(vmap(f)).call(&x)?;
    assert_eq!(typed(&out), "float32[8@x]");
    same(&out, &host(&x).chunks(4).map(|row| 3.0 * row.iter().sum::<f32>()).collect::<Vec<_>>());
    fn branched(x: Array) -> Result<Array> {
        cond(x.sum(..).greater(0.0), |x: Array| x.sin(), |x: Array| x * 2, x)
    }
    let out = jit(vmap(branched)).call(&x)?;
    assert_eq!(typed(&out), "float32[8@x,4@y]");
    let g = jit(grad(move |x: Array| vmap(branched).call(x).map(|y| y.sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,4@y]");
    // Branches of another dimension's axes that stay as they are.
    let (c, rest) = (reshard(arange(0..8), P!["x"]), ramp(&[4], P!["y"]));
    fn choose(c: Array, rest: Array) -> Result<Array> {
        cond(c.greater(3), |r: Array| r * 2, |r: Array| r, rest)
    }
    let out = jit(vmap(choose).in_axes((0, None))).call((&c, &rest))?;
    assert_eq!(typed(&out), "float32[8@x,4@y]");
    assert_eq!(host(&out)[28..], [0.0, 2.0, 4.0, 6.0]);
    Ok(())
}
