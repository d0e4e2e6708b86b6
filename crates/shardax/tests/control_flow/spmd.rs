//! Control flow inside `shard_map`, `pmap` and named `vmap`s.

use shardax::Arg;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, same};

fn values() -> Array {
    arange(0..16).astype(DType::F32).reshape([8, 2]) / 8.0 - 0.9
}

#[test]
fn a_carry_that_varies_must_start_so() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let sums = |start: fn(Array) -> Array| {
        let body = move |x: Array| -> Result<Array> {
            Ok(scan(|c: Array, x: Array| (c + x.sum(..), ()), start(Array::from(0.0)), x.reshape([2, 1]))?.0.reshape(1))
        };
        shard_map(body, &mesh).in_specs(P!["i"]).out_specs(P!["i"])
    };
    let error = sums(|c| c).call(values()).expect_err("an error").to_string();
    for phrase in [
        "scan body function carry input and carry output must have equal types",
        "the input carry has type float32[]~",
        "{V:i}, so the manual axis types do not match",
        "apply `pcast(.., \"i\")` to the initial value of carry",
        "pcast(..., ('i',), to='varying')",
    ] {
        assert!(error.contains(phrase), "{phrase:?} is not in: {error}");
    }
    same(&sums(|c| pcast(c, "i")).call(values())?, &values().sum(1));
    same(&jit(sums(|c| pcast(c, "i"))).call(values())?, &values().sum(1));
    Ok(())
}

/// A loss of a scan whose step communicates: `w` is the same on all devices, `x` is not.
fn mixed(w: Array, x: Array, axis: &str) -> Result<Array> {
    let step = |c: Array, x: Array| {
        let mean = pmean((&c * &w).sin(), axis);
        let c = (c * &w + &x * mean).tanh();
        (c.clone(), c * x)
    };
    let (c, ys) = scan(step, x.sum(..) * 0.1, x)?;
    Ok(psum(c + ys.sum(..), axis))
}

#[test]
fn gradients_of_loops_with_collectives() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let w = array(0.6f32);
    fn sharded(w: Array, x: Array, mesh: &Mesh) -> Result<Array> {
        fn body(w: Array, x: Array) -> Result<Array> {
            mixed(w, x.reshape(2), "i")
        }
        shard_map(body, mesh).in_specs((P![], P!["i"])).out_specs(P![]).call((w, x))
    }
    // The same on one device: the examples of a named vmap.
    fn mapped(w: Array, x: Array) -> Result<Array> {
        fn body(w: Array, x: Array) -> Result<Array> {
            mixed(w, x, "i")
        }
        Ok(vmap(body).in_axes((None, 0)).axis_name("i").call((w, x))?.sum(..) / 8)
    }
    same(&sharded(w.clone(), values(), &mesh)?, &mapped(w.clone(), values())?);
    let argnums = (Arg::<0>, Arg::<1>);
    let (gw, gx) = grad(|w: Array, x: Array| sharded(w, x, &mesh)).argnums(argnums).call((&w, values()))?;
    let (vw, vx) = grad(mapped).argnums(argnums).call((&w, values()))?;
    same(&gw, &vw);
    same(&gx, &vx);
    let (gw, gx) = jit(grad(|w: Array, x: Array| sharded(w, x, &mesh)).argnums(argnums)).call((&w, values()))?;
    same(&gw, &vw);
    same(&gx, &vx);
    let tangent = jvp(|w: Array| sharded(w, values(), &mesh), &w, 1.0f32)?.1;
    same(&tangent, &vw);
    fn twice(w: Array, mesh: &Mesh) -> Result<Array> {
        grad(|w: Array| sharded(w, values(), mesh)).call(w)
    }
    fn twice_mapped(w: Array) -> Result<Array> {
        grad(|w: Array| mapped(w, values())).call(w)
    }
    same(&grad(|w: Array| twice(w, &mesh)).call(&w)?, &grad(twice_mapped).call(&w)?);
    // Inside the body.
    let inner = shard_map(|w: Array, x: Array| grad(|w: Array| mixed(w, x.reshape(2), "i")).call(w), &mesh);
    same(&inner.in_specs((P![], P!["i"])).out_specs(P![]).call((&w, values()))?, &vw);
    Ok(())
}

#[test]
fn each_device_takes_its_branch() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let w = array([0.5f32, -1.5]);
    fn body(w: Array, x: Array) -> Result<Array> {
        fn on_true(w: Array, x: &Array) -> Array {
            (w.sin() * x).sum(..)
        }
        let y = cond(x.sum(..).greater(0), |w: Array| on_true(w, &x), |w| (&w * &w).sum(..) + x.sum(..) * 0, w)?;
        Ok(y.reshape(1))
    }
    let per_device = shard_map(body, &mesh).in_specs((P![], P!["i"])).out_specs(P!["i"]);
    let reference = vmap(body).in_axes((None, 0));
    same(&per_device.call((&w, values()))?, &reference.call((&w, values()))?.reshape(8));
    let sharded = |w: Array, x: Array| -> Result<Array> { Ok(per_device.call((w, x))?.sum(..)) };
    let mapped = |w: Array, x: Array| -> Result<Array> { Ok(reference.call((w, x))?.sum(..)) };
    let argnums = (Arg::<0>, Arg::<1>);
    let (gw, gx) = jit(grad(sharded).argnums(argnums)).call((&w, values()))?;
    let (vw, vx) = grad(mapped).argnums(argnums).call((&w, values()))?;
    same(&gw, &vw);
    same(&gx, &vx);

    // Its result differs from device to device, though neither branch's does.
    fn constant(x: Array) -> Result<Array> {
        cond(x.sum(..).greater(0), |()| ones(2), |()| zeros(2), ())
    }
    let error = shard_map(constant, &mesh).in_specs(P!["i"]).out_specs(P![]).call(values()).err();
    assert!(error.is_some_and(|e| e.to_string().contains("can't be statically inferred")));
    let split = shard_map(constant, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(values())?;
    close(&split.reshape([8, 2]).sum(1), &[0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0].map(|v: f64| v));
    Ok(())
}

#[test]
fn each_device_loops_as_long_as_it_must() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    fn count(x: Array) -> Result<Array> {
        while_loop(|n: Array| n.less(x.sum(..)), |n| n + 1, Array::from(0.0))
    }
    let x = arange(0..8).astype(DType::F32);
    let counts = shard_map(|x: Array| -> Result<Array> { Ok(count(x)?.reshape(1)) }, &mesh);
    close(&counts.in_specs(P!["i"]).out_specs(P!["i"]).call(&x)?, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let error = shard_map(count, &mesh).in_specs(P!["i"]).out_specs(P![]).call(&x).err();
    assert!(error.is_some_and(|e| e.to_string().contains("can't be statically inferred")));
    Ok(())
}

#[test]
fn steps_of_training_in_a_pmap() -> Result<()> {
    setup();
    // Gradient descent over batches, in one compiled loop: the carry starts the same on all devices.
    fn train(w: Array, xs: Array, ys: Array) -> Result<(Array, Array)> {
        fn step(w: Array, (x, y): (Array, Array)) -> Result<(Array, Array)> {
            let loss = |w: Array| ((x.dot(w) - &y).square()).mean(..);
            let (loss, g) = value_and_grad(loss).call(&w)?;
            Ok((w - pmean(g, "batch") * 0.1, pmean(loss, "batch")))
        }
        scan(step, w, (xs, ys))
    }
    let xs = arange(0..240).astype(DType::F32).sin().reshape([8, 5, 3, 2]);
    let ys = xs.sum(3);
    let many = pmap(train).axis_name("batch").in_axes((None, 0, 0)).out_axes((None, None));
    let (w, losses) = many.call((zeros(2), &xs, &ys))?;
    fn layer(w: Array, xs: Array, ys: Array) -> Result<(Array, Array)> {
        fn step(w: Array, (x, y): (Array, Array)) -> Result<(Array, Array)> {
            let (loss, g) = value_and_grad(|w: Array| ((x.dot(w) - &y).square()).mean(..)).call(&w)?;
            Ok((w - g * 0.1, loss))
        }
        scan(step, w, (xs, ys))
    }
    fn merge_devices(a: &Array, rest: &[usize]) -> Array {
        a.swapaxes(0, 1).reshape([&[5, 24], rest].concat())
    }
    let (w1, losses1) = layer(zeros(2), merge_devices(&xs, &[2]), merge_devices(&ys, &[]))?;
    same(&w, &w1);
    same(&losses, &losses1);
    Ok(())
}

/// The last carry and the sums of a recurrent network over `xs`.
fn decaying_sums(w: Array, xs: Array) -> Result<(Array, Array)> {
    fn step(c: Array, x: Array, w: &Array) -> (Array, Array) {
        let c = (c * 0.9 + x * w).tanh();
        (c.clone(), c.sum(1))
    }
    scan(|c: Array, x: Array| step(c, x, &w), zeros([4, 2]), xs)
}

#[test]
fn scans_over_sharded_arrays() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    let (w, xs) = (array([0.5f32, -0.4]), arange(0..64).astype(DType::F32).sin().reshape([8, 4, 2]));
    fn loss(w: Array, xs: Array) -> Result<Array> {
        let (c, ys) = decaying_sums(w, xs)?;
        Ok(c.sum(..) + ys.square().sum(..))
    }
    let (c, ys) = decaying_sums(w.clone(), xs.clone())?;
    let slope = grad(loss).call((&w, &xs))?;
    // Sharded along the batch, along the axis of the scan, along both, and along features.
    for spec in [P![None, "i"], P!["i"], P!["j", "i"], P![None, None, "j"]] {
        let sharded = device_put(&xs, NamedSharding::new(&mesh, spec))?;
        let (got, rows) = decaying_sums(w.clone(), sharded.clone())?;
        same(&got, &c);
        same(&rows, &ys);
        same(&jit(decaying_sums).call((&w, &sharded))?.1, &ys);
        same(&jit(grad(loss)).call((&w, &sharded))?, &slope);
    }
    Ok(())
}
