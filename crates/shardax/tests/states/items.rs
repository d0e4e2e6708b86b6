//! Cases that were wrong once.

use super::*;
use shardax::lax::DotOptions;

/// Addends over `x`, whose sums are `16`.
fn addends() -> Array {
    let a = device_put(&ones([4, 16]), P![None, "x"]).unwrap();
    let b = device_put(&ones([16, 4]), P!["x", None]).unwrap();
    DotOptions::new().out_sharding(P![None, None].unreduced(["x"])).matmul(&a, &b)
}

fn total(x: Array) -> Vec<f32> {
    host(&reshard(x, P![]))
}

#[test]
fn unreduced_in_scans() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let u = addends();
    assert_eq!(type_of(&u), "float32[4,4]{U:x}");
    fn through(u: Array) -> Result<Array> {
        shardax::scan(|c: Array, x: Array| Ok((c, x)), array(0.0f32), u).map(|(_, ys)| ys)
    }
    assert_eq!(total(through(u.clone())?), [16.0; 16]);
    assert_eq!(total(jit(through).call(&u)?), [16.0; 16]);
    {
        let _eager = disable_jit();
        assert_eq!(total(jit(through).call(&u)?), [16.0; 16]);
    }
    fn carried(u: Array) -> Result<Array> {
        shardax::scan_n(|c: Array| Ok((c.clone(), c)), u, 2).map(|(_, ys)| ys)
    }
    assert_eq!(total(carried(u.clone())?), [16.0; 32]);
    assert_eq!(total(jit(carried).call(&u)?), [16.0; 32]);
    Ok(())
}

#[test]
fn unreduced_indexed() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let u = addends();
    assert_eq!(total(u.get(2)), [16.0; 4]);
    assert_eq!(total(u.get((1..3, ..))), [16.0; 8]);
    assert_eq!(total(u.get(s![..;-1, 1])), [16.0; 4]);
    assert_eq!(total(u.get(&array([0, 3]))), [16.0; 8]);
    assert_eq!(total(u.get(&array(3))), [16.0; 4]);
    assert_eq!(total(roll(&u, 1, 0)), [16.0; 16]);
    assert_eq!(total(u.at(0).set(u.get(1))), [16.0; 16]);
    assert_eq!(total(u.at(&array([0, 1])).set(u.get(2..4))), [16.0; 16]);
    assert_eq!(total(checkpoint(|u: Array| u.get(2)).call(&u)?), [16.0; 4]);
    let w = device_put(&ones([4, 4]), P![].reduced(["x"]))?;
    let x = device_put(&ones([8, 4]), P!["x", None])?;
    let g = grad(|w: Array, x: Array| x.matmul(w).sum(..)).call((&w, &x))?;
    assert_eq!(total(g.get(0)), total(jit(|g: Array| g.get(0)).call(&g)?));
    Ok(())
}

/// Sums of half precision are computed in float32, and the conversions keep the addends.
#[test]
fn unreduced_in_half_precision() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    for dtype in [DType::Bf16, DType::F16] {
        let a = device_put(&ones_dtype([4, 16], dtype), P![None, "x"])?;
        let b = device_put(&ones_dtype([16, 4], dtype), P!["x", None])?;
        let u = DotOptions::new().out_sharding(P![None, None].unreduced(["x"])).matmul(&a, &b);
        let total = |x: Array| total(x.astype(DType::F32));
        assert_eq!(total(u.clone()), [16.0; 16]);
        assert_eq!(total(u.sum(1)), [64.0; 4]);
        assert_eq!(total(jit(|u: Array| u.sum(..)).call(&u)?), [256.0]);
        assert_eq!(total(u.cumsum(0).get(3)), [64.0; 4]);
        assert_eq!(total(u.get((.., NewAxis)).broadcast_to([4, 2, 4]).sum(1)), [32.0; 16]);

        // Gradients of parameters that are reduced over the axis that splits the batch.
        fn on(x: &Array) -> Result<Array> {
            device_put(x, P![].reduced(["x"]))
        }
        let (kernel, bias) = (on(&ones_dtype([4, 4], dtype))?, on(&ones_dtype([4, 1], dtype))?);
        let x = device_put(&ones_dtype([8, 4], dtype), P!["x", None])?;
        fn of_kernel(kernel: Array, x: Array) -> Array {
            x.matmul(kernel).astype(DType::F32).sum(..)
        }
        fn of_bias(bias: Array) -> Array {
            bias.broadcast_to([4, 3]).astype(DType::F32).sum(..)
        }
        assert_eq!(total(grad(of_kernel).call((&kernel, &x))?), [8.0; 16]);
        assert_eq!(total(jit(grad(of_kernel)).call((&kernel, &x))?), [8.0; 16]);
        assert_eq!(total(grad(of_bias).call(&bias)?), [3.0; 4]);
        assert_eq!(total(jit(grad(of_bias)).call(&bias)?), [3.0; 4]);
    }
    Ok(())
}

#[test]
fn constructed_unreduced() -> Result<()> {
    let (mesh, _guard) = mesh([("x", 2), ("y", 4)]);
    for spec in [P![].unreduced(["x"]), P!["y"].unreduced(["x"]), P![].unreduced(["x", "y"])] {
        let on = NamedSharding::new(&mesh, spec.clone());
        let ones = [1.0f32; 8];
        assert_eq!(total(Array::from_slice_on(&ones, &[8], &on)?), ones, "{spec}");
    }
    Ok(())
}

#[test]
fn axes_of_size_one_stay() -> Result<()> {
    let (_, _guard) = mesh([("data", 1), ("tensor", 4)]);
    let x = device_put(&ones([1, 8]), P!["data", None])?;
    assert_eq!(type_of(&x), "float32[1@data,8]");
    assert_eq!(type_of(&expand_dims(&x, 0)), "float32[1,1@data,8]");
    assert_eq!(type_of(&expand_dims(&x, 1)), "float32[1@data,1,8]");
    assert_eq!(type_of(&x.get((.., NewAxis, ..))), "float32[1@data,1,8]");
    assert_eq!(type_of(&squeeze(&expand_dims(&x, 0), 0)), "float32[1@data,8]");
    assert_eq!(type_of(&x.reshape([1, 2, 4])), "float32[1@data,2,4]");
    assert_eq!(type_of(&x.sum_keepdims(1)), "float32[1@data,1]");
    assert_eq!(type_of(&tile(&x, &[1, 2])), "float32[1@data,16]");
    assert_eq!(type_of(&repeat(&x, 2, 1)), "float32[1@data,16]");
    assert_eq!(type_of(&stack([&x, &x], 0)), "float32[2,1@data,8]");
    assert_eq!(type_of(&stack([&x, &x], 1)), "float32[1@data,2,8]");
    let labels = device_put(&array([3]), P!["data"])?;
    assert_eq!(type_of(&shardax::nn::one_hot(&labels, 5)), "float32[1@data,5]");
    let curvature = hessian(|row: Array| row.square().sum(..));
    assert_eq!(type_of(&jit(vmap(curvature)).call(&x)?), "float32[1@data,8,8]");
    // A carry that is reshaped and back.
    fn step(c: Array) -> Result<(Array, ())> {
        Ok((c.reshape([1, 2, 4]).reshape([1, 8]) + 1.0, ()))
    }
    let (end, ()) = jit(move |x: Array| shardax::scan_n(step, x, 3)).call(&x)?;
    assert_eq!((type_of(&end).as_str(), host(&end)), ("float32[1@data,8]", vec![4.0; 8]));
    Ok(())
}

#[test]
fn empty_values_of_split_arrays() -> Result<()> {
    let (_, _guard) = mesh([("data", 4)]);
    let x = device_put(&ones([4, 2]), P!["data", None])?;
    let e = x.get((.., 0..0));
    assert_eq!(type_of(&e), "float32[4@data,0]");
    assert_eq!(type_of(&(&e + 1)), "float32[4@data,0]");
    assert_eq!(host(&e.sum(1)), [0.0; 4]);
    assert_eq!(host(&concatenate(&[e.clone(), x.clone()], 1)), [1.0; 8]);
    assert_eq!(host(&e.matmul(ones([0, 2]))), [0.0; 8]);
    assert_eq!(type_of(&reshard(e.clone(), P![])), "float32[4,0]");
    assert_eq!(type_of(&jit(|e: Array| e * 2).call(&e)?), "float32[4@data,0]");
    Ok(())
}

#[test]
fn rules_use_the_mesh_of_their_operands() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit; 2])?;
    let x = device_put(&array([[1.0f32; 4]; 4]), &NamedSharding::new(&mesh, P!["x"]))?;
    fn f(x: Array) -> Array {
        x.get((.., &array([0, 0, 3]))).sum(..)
    }
    let g = jit(grad(f)).call(&x)?;
    assert_eq!(host(&g), [2.0, 0.0, 0.0, 1.0].repeat(4));
    Ok(())
}

/// Bases of Jacobians, and zeros at which loops start to add cotangents, are unreduced or reduced like the values.
#[test]
fn jacobians_of_reduced_values_equal_plain_ones() -> Result<()> {
    fn product(x: Array) -> Array {
        (x.get(0) * &x + 1).square().sum(..)
    }
    fn recurrence(x: Array) -> Result<Array> {
        fn step(c: Array, v: Array) -> (Array, Array) {
            let c = c * v + 1;
            (c.clone(), c)
        }
        Ok(shardax::scan(step, x.get(0), x)?.1.square().sum(..))
    }
    fn power(x: Array) -> Result<Array> {
        let body = |(i, c): (Array, Array)| (i + 1, c * &x);
        Ok(while_loop(|(i, _): (Array, Array)| i.less(3), body, (array(0), x.clone()))?.1.sum(..))
    }
    fn derivatives(x: &Array) -> Result<[Array; 8]> {
        Ok([
            jacfwd(product).call(x)?,
            jacrev(product).call(x)?,
            hessian(product).call(x)?,
            jacfwd(recurrence).call(x)?,
            jacrev(recurrence).call(x)?,
            hessian(recurrence).call(x)?,
            jacfwd(power).call(x)?,
            jacfwd(jacfwd(power)).call(x)?,
        ])
    }
    setup();
    let x = array([1.0f32, -2.0, 0.5]);
    let want = derivatives(&x)?.map(|y| host(&y));
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let reduced = device_put(&x, P![None].reduced(["x"]))?;
    for (i, (y, want)) in derivatives(&reduced)?.into_iter().zip(want).enumerate() {
        assert_eq!(total(y), want, "{i}");
    }
    Ok(())
}

#[test]
fn axis_index_over_no_axes() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let f = shard_map(|x: Array| x + axis_index(()), None).out_specs(P!["x"]);
    let x = device_put(&arange(0..8), P!["x"])?;
    assert_eq!(f.call(&x)?.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(jit(f).call(&x)?.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5, 6, 7]);
    Ok(())
}

#[test]
fn starts_that_their_dtype_cannot_compare_with_a_dimension() -> Result<()> {
    setup();
    let x = zeros_dtype([300], DType::I32);
    let start = array([100i8]).get(0);
    fn f(x: Array, start: Array) -> (Array, Array) {
        let x = lax::dynamic_update_slice(&x, &array([7]), std::slice::from_ref(&start));
        (lax::dynamic_slice(&x, &[start], &[1]), x)
    }
    for (y, x) in [f(x.clone(), start.clone()), jit(f).call((&x, &start))?] {
        assert_eq!((y.to_vec::<i32>()?, x.get(100).item::<i32>()?), (vec![7], 7));
    }
    Ok(())
}

#[test]
fn constants_of_a_mesh_without_context() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit; 2])?;
    let on = NamedSharding::new(&mesh, P!["x"]);
    for x in [full_sharded([8], array(1.0f32), &on), jit(move || full_sharded([8], array(1.0f32), &on)).call(())?] {
        assert_eq!((host(&x), type_of(&x)), (vec![1.0; 8], "float32[8@x]".to_owned()));
    }
    Ok(())
}

#[test]
fn addends_captured_by_loops_and_branches() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let u = addends();
    fn by_while(u: Array) -> Result<Array> {
        let start = (array(0), reshard(zeros([4, 4]), P![].unreduced(["x"])));
        fn more((i, _): (Array, Array)) -> Result<Array> {
            Ok(i.less(3))
        }
        let add = move |(i, sum): (Array, Array)| Ok((i + 1, sum + &u));
        while_loop(more, add, start).map(|(_, sum)| sum)
    }
    assert_eq!(total(by_while(u.clone())?), [48.0; 16]);
    assert_eq!(total(jit(by_while).call(&u)?), [48.0; 16]);
    fn by_scan(u: Array) -> Result<Array> {
        let start = reshard(zeros([4, 4]), P![].unreduced(["x"]));
        let add = move |sum: Array| Ok((sum + &u, ()));
        shardax::scan_n(add, start, 3).map(|(sum, ())| sum)
    }
    assert_eq!(total(by_scan(u.clone())?), [48.0; 16]);
    assert_eq!(total(jit(by_scan).call(&u)?), [48.0; 16]);
    fn by_cond(u: Array) -> Result<Array> {
        cond(array(true), |u: Array| Ok(&u + &u), |u: Array| Ok(u), u)
    }
    assert_eq!(total(by_cond(u.clone())?), [32.0; 16]);
    assert_eq!(total(jit(by_cond).call(&u)?), [32.0; 16]);
    Ok(())
}

#[test]
fn addends_go_to_devices_in_another_order() -> Result<()> {
    let (_, guard) = mesh([("x", 2), ("y", 4)]);
    let u = addends();
    drop(guard);
    let mut other = devices()?;
    other.reverse();
    let other = Mesh::new(other, [("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit; 2])?;
    let moved = device_put(&u, &NamedSharding::new(&other, P![].unreduced(["x"])))?;
    let _guard = set_mesh(&other)?;
    assert_eq!(total(moved), [16.0; 16]);
    Ok(())
}

#[test]
fn refs_are_written_by_many_threads() -> Result<()> {
    setup();
    let (sum, last) = (new_ref(0.0f32)?, new_ref(zeros([2]))?);
    let step = jit(|x: Array| -> Result<Array> {
        last.add(&x)?;
        Ok(x)
    });
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            for _ in 0..100 {
                sum.add(1.0)?;
                last.at(0).add(1.0)?;
                let _ = step.call(array([0.0f32, 1.0]))?;
                fori_loop(0, 2, |_, ()| last.at(1).add(1.0), ())?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    assert_eq!(sum.get().item::<f32>()?, 800.0);
    assert_eq!(last.get().to_vec::<f32>()?, [800.0, 2400.0]);
    Ok(())
}

/// Functions that write the same refs in another order do not wait for each other, and lose no write.
#[test]
fn refs_are_written_by_threads_in_every_order() -> Result<()> {
    setup();
    let (a, b) = (new_ref(0.0f32)?, new_ref(zeros([4]))?);
    let forth = jit(|x: Array| a.add(&x).and_then(|()| b.at(1..3).add(b.get().get(0) * 0 + &x)));
    let back = jit(|x: Array| b.at(1..3).add(&x).and_then(|()| a.add(a.get() * 0 + &x)));
    fn swapped(x: f32, b: &shardax::Ref) -> Result<()> {
        // The exchanged value is added again, so that none is lost.
        let old = b.at(3).swap(x);
        b.at(0).add(old)
    }
    std::thread::scope(|scope| {
        let work = |i: usize| -> Result<()> {
            for _ in 0..50 {
                match i % 4 {
                    0 => forth.call(1.0f32)?,
                    1 => back.call(1.0f32)?,
                    2 => swapped(1.0, &b)?,
                    _ => scan_n(|()| a.add(1.0).and_then(|()| b.at(1..3).add(1.0)).map(|()| ((), ())), (), 1)
                        .map(drop)?,
                }
                assert!(b.get().to_vec::<f32>()?.iter().all(|x| *x >= 0.0));
            }
            Ok(())
        };
        let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || work(i))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    assert_eq!(a.get().item::<f32>()?, 300.0);
    assert_eq!(b.get().to_vec::<f32>()?, [99.0, 300.0, 300.0, 1.0]);
    Ok(())
}

#[test]
fn refs_store_their_values_in_separate_memory() -> Result<()> {
    setup();
    let x = array([1.0f32, 2.0]);
    let r = new_ref(&x)?;
    x.delete()?;
    assert_eq!(r.get().to_vec::<f32>()?, [1.0, 2.0]);
    r.get().delete()?;
    let y = array([3.0f32, 4.0]);
    r.set(&y)?;
    y.delete()?;
    let _ = jit(|x: Array| x + 1).donate_argnums(0).call(r.get())?;
    assert_eq!(r.get().to_vec::<f32>()?, [3.0, 4.0]);
    Ok(())
}

/// JAX 0.12 accepts these operations, and the types are JAX's.
#[test]
fn differences_and_triangles_of_unreduced_values_stay_unreduced() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let numbers: Vec<f32> = (0..16).map(|i| (i * 7 % 11) as f32).collect();
    let x = Array::from_slice(&numbers, &[4, 4])?;
    let u = reshard(device_put(&x, P![])?, P![].unreduced(["x"])) + addends();
    let x = x + 16;
    type Function = fn(Array) -> Array;
    let functions: [(Function, &str); 5] = [
        (|x| &x - roll(&x, 1, 0), "float32[4,4]{U:x}"),
        (|x| diff(x, 1, 0), "float32[3,4]{U:x}"),
        (|x| x.tril(0), "float32[4,4]{U:x}"),
        (|x| x.triu(1), "float32[4,4]{U:x}"),
        (|x| x.trace(), "float32[]{U:x}"),
    ];
    for (f, ty) in functions {
        let want = host(&f(x.clone()).reshape([f(x.clone()).size()]));
        for y in [f(u.clone()), jit(move |u: Array| f(u)).call(&u)?] {
            assert_eq!((type_of(&y).as_str(), total(y)), (ty, want.clone()));
        }
        // Cotangents of unreduced values are reduced.
        let loss = move |x: Array| reshard(f(x), P![]).square().sum(..);
        let (slope, expected) = (jit(grad(loss)).call(&u)?, jit(grad(move |x: Array| f(x).square().sum(..))).call(&x)?);
        assert_eq!((type_of(&slope).as_str(), total(slope)), ("float32[4,4]{R:x}", host(&expected)), "{ty}");
    }
    Ok(())
}

/// JAX: `jax.grad(lambda x: (3 * jax.device_put(x, other) ** 2).sum())(jnp.arange(4.))` is [0, 6, 12, 18].
#[test]
fn gradients_go_through_device_put_to_other_devices() -> Result<()> {
    setup();
    let x = device_put(&arange(0..4).astype(DType::F32), &devices()?[0])?;
    let mut reversed = devices()?;
    reversed.reverse();
    let reversed = Mesh::new(reversed, [("x", 8)])?.auto();
    let targets: [Sharding; 3] = [
        devices()?[1].clone().into(),
        NamedSharding::new(&reversed, P![]).into(),
        NamedSharding::new(&make_mesh([("x", 4), ("y", 2)])?.auto(), P!["x"]).into(),
    ];
    for to in targets {
        let f = |x: Array| -> Result<Array> { Ok((device_put(&x, &to)?.square() * 3).sum(..)) };
        let slope = [0.0, 6.0, 12.0, 18.0];
        let g = grad(f).call(&x)?;
        fn is_at(y: &Array, to: &Sharding) -> bool {
            y.sharding().is_ok_and(|s| s.is_equivalent_to(to, y.ndim()))
        }
        fn is_at_argument(y: &Array, x: &Array) -> bool {
            is_at(y, &x.sharding().unwrap())
        }
        assert_eq!(host(&g), slope, "{to:?}");
        assert!(is_at_argument(&g, &x), "{to:?}: {:?}", g.sharding()?);
        let (value, g) = value_and_grad(f).call(&x)?;
        assert_eq!((value.item::<f32>()?, host(&g)), (42.0, slope.to_vec()));
        assert!(value.sharding()?.devices() == to.devices() && is_at_argument(&g, &x));
        assert_eq!(host(&hessian(f).call(&x)?), host(&(eye(4) * 6.0f32)));

        let f = |x: Array| -> Result<Array> { Ok(device_put(&x, &to)?.square() * 3) };
        let (y, back) = vjp(f, &x)?;
        assert!(is_at(&y, &to), "{to:?}: {:?}", y.sharding()?);
        for ct in [ones(4), ones_like(&y)] {
            let (ct,) = back.call(ct)?;
            assert_eq!(host(&ct), slope, "{to:?}");
            assert!(is_at_argument(&ct, &x), "{to:?}: {:?}", ct.sharding()?);
        }
        let (y, t) = jvp(f, &x, ones(4))?;
        assert_eq!((host(&y), host(&t)), (vec![0.0, 3.0, 12.0, 27.0], slope.to_vec()));
        assert!(is_at(&y, &to) && is_at(&t, &to));
        let (_, push) = linearize(f, &x)?;
        for t in [ones(4), ones_like(&x)] {
            let t = push.call(t)?;
            assert!(host(&t) == slope && is_at(&t, &to), "{to:?}: {:?}", t.sharding()?);
        }
        let y = vmap(f).call(device_put(&x.reshape([1, 4]), &devices()?[0])?)?;
        assert!(host(&y) == [0.0, 3.0, 12.0, 27.0] && y.sharding()?.devices() == to.devices());
        assert!(is_at_argument(&jacrev(f).call(&x)?.get(0), &x));

        // Parameters on both sets of devices, as in a pipeline.
        let w = device_put(&full(4, 2.0f32), &to)?;
        let f = |x: Array, w: Array| -> Result<Array> { Ok((device_put(&x.sin(), &to)? * w).sum(..)) };
        let (value, (dx, dw)) = value_and_grad(f).argnums((Arg::<0>, Arg::<1>)).call((&x, &w))?;
        assert!(value.sharding()?.devices() == to.devices() && is_at_argument(&dx, &x) && is_at(&dw, &to));
        assert_eq!((host(&dx), host(&dw)), (host(&(x.cos() * 2.0f32)), host(&x.sin())));
        fn there_and_back(x: Array, to: &Sharding) -> Result<Array> {
            let y = device_put(
                &(device_put(&x.sin(), to)? * 2.0f32),
                &x.sharding().or(devices().map(|d| d[0].clone().into()))?,
            )?;
            Ok((y * x).sum(..))
        }
        let g = grad(|x: Array| there_and_back(x, &to)).call(&x)?;
        assert_eq!(host(&g), host(&((x.sin() + x.cos() * &x) * 2.0f32)));
        assert!(is_at_argument(&g, &x));
    }
    Ok(())
}

/// Functions with rules run on several sets of devices. JAX 0.12 runs `checkpoint` and `custom_jvp` like this too, but rejects the
/// gradient of `checkpoint`.
#[test]
fn functions_with_rules_move_values_to_other_devices() -> Result<()> {
    setup();
    let (first, second) = (devices()?[0].clone(), devices()?[1].clone());
    let x = device_put(&arange(0..4).astype(DType::F32), &first)?;
    fn to_second(x: &Array) -> Result<Array> {
        device_put(x, &devices()?[1])
    }
    fn cube(x: Array) -> Result<Array> {
        let y = to_second(&x.sin())?;
        Ok(&y * &y * y)
    }
    fn total(y: Array) -> Array {
        y.sum(..)
    }
    #[track_caller]
    fn check(result: &Array, expected: &Array, device: &Device) -> Result<()> {
        assert!(
            allclose(device_put(result, device)?, device_put(expected, device)?, 1e-5, 1e-6)?,
            "{result} {expected}"
        );
        assert_eq!(result.sharding()?.devices(), std::slice::from_ref(device));
        Ok(())
    }
    let (value, slope) = (cube(x.clone())?, x.sin().square() * x.cos() * 3.0f32);
    let recomputed = checkpoint(cube);
    check(&recomputed.call(&x)?, &value, &second)?;
    check(&grad(|x: Array| recomputed.call(x).map(total)).call(&x)?, &slope, &first)?;
    let (y, t) = jvp(|x: Array| recomputed.call(x), &x, ones(4))?;
    check(&y, &value, &second)?;
    check(&t, &slope, &second)?;
    check(&vmap(|x: Array| recomputed.call(x)).call(x.reshape([1, 4]))?.get(0), &value, &second)?;
    let curves = hessian(|x: Array| recomputed.call(x).map(total)).call(&x)?;
    check(&curves, &hessian(|x: Array| cube(x).map(total)).call(&x)?, &first)?;

    // The tangent is not the function's, so that the rule can be told from it.
    let with_rule = custom_jvp(cube)
        .defjvp(|(x,): (Array,), (t,): (Array,)| Ok::<_, shardax::Error>((cube(x)?, to_second(&(t * 2))?)));
    check(&with_rule.call(&x)?, &value, &second)?;
    check(&grad(|x: Array| with_rule.call(x).map(total)).call(&x)?, &full(4, 2.0f32), &first)?;
    check(&vmap(|x: Array| with_rule.call(x)).call(x.reshape([1, 4]))?.get(0), &value, &second)
}

/// Results that no equation computes stay where they are.
#[test]
fn arguments_are_returned_from_transformations_over_several_devices() -> Result<()> {
    setup();
    let [first, second] = [0, 1].map(|i| devices().unwrap()[i].clone());
    let (x, w) = (device_put(&ones(2), &first)?, device_put(&ones(3), &second)?);
    fn f(x: Array, w: Array, second: &Device) -> Result<(Array, Array, Array, Array)> {
        Ok((device_put(&x, second)?, x, w, array(2.0f32)))
    }
    let ((moved, x, w, number), _) = jvp(|x: Array, w: Array| f(x, w, &second), (&x, &w), (ones(2), ones(3)))?;
    fn device_of(y: &Array) -> Vec<Device> {
        y.sharding().unwrap().devices().to_vec()
    }
    assert_eq!([&moved, &x, &w].map(device_of), [&second, &first, &second].map(|d| vec![d.clone()]));
    assert_eq!((host(&moved), number.item::<f32>()?), (vec![1.0; 2], 2.0));
    // Operands that are on different devices are an error, which names both.
    let mixed =
        |x: Array, w: Array| -> Result<Array> { Ok((device_put(&x, &second)?.sum(..) * w * x.sum(..)).sum(..)) };
    let error = grad(mixed).call((&x, &w)).unwrap_err().to_string();
    assert!(
        error.contains("Received incompatible devices") && error.contains("[0]") && error.contains("[1]"),
        "{error}"
    );
    Ok(())
}

/// Results of operations have shardings under a mesh with `Explicit` axes, the refs that they are written to may have none.
#[test]
fn refs_without_shardings_are_written_under_a_mesh() -> Result<()> {
    setup();
    let before = new_ref(array([1, 2]))?;
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    // Refs from before the mesh, refs without shardings, and a sharded ref.
    let (count, rows, split) = (new_ref(0)?, new_ref(zeros([4, 8]))?, new_ref(device_put(&zeros([4, 8]), P!["x"])?)?);
    let step = |x: Array| -> Result<Array> {
        count.add(1)?;
        before.add(array([1, 1]))?;
        before.at(0).set(before.at(1).get())?;
        rows.at(&count.get()).set(&x)?;
        split.set(reshard(ones([4, 8]), P!["x"]))?;
        let (_, sums) = shardax::scan_n(
            |c: Array| {
                count.add(1)?;
                before.add(&c)?;
                Ok((c, count.get()))
            },
            array(1),
            2,
        )?;
        Ok(sums)
    };
    assert_eq!(step(ones(8))?.to_vec::<i32>()?, [2, 3]);
    assert_eq!((count.get().item::<i32>()?, before.get().to_vec::<i32>()?), (3, vec![5, 5]));
    assert_eq!(jit(step).call(full(8, 2.0f32))?.to_vec::<i32>()?, [5, 6]);
    assert_eq!((count.get().item::<i32>()?, before.get().to_vec::<i32>()?), (6, vec![8, 8]));
    assert_eq!((host(&rows.get().sum(1)), total(split.get().sum(..))), (vec![0.0, 8.0, 0.0, 16.0], vec![32.0]));
    fn inside(x: Array) -> Result<Array> {
        let r = new_ref(&x)?;
        r.add(&x)?;
        r.at(0).set(zeros(8))?;
        Ok(r.get())
    }
    for y in [inside(ones([4, 8]))?, jit(inside).call(ones([4, 8]))?] {
        assert_eq!(host(&y.sum(1)), [0.0, 16.0, 16.0, 16.0]);
    }
    Ok(())
}

/// JAX 0.12 rejects vectors on a diagonal, and returns replicated matrices.
#[test]
fn diagonals_of_unreduced_values_stay_unreduced() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let u = addends();
    fn matrix(n: usize) -> Result<Vec<f32>> {
        diagflat(full(n, 16.0f32), 0).to_vec::<f32>()
    }
    type Function = fn(Array) -> Array;
    let functions: [(Function, usize); 3] =
        [(|u| diag(u.get(0), 0), 4), (|u| diagflat(u, 0), 16), (|u| diag(u.diagonal(0, 0, 1), 0), 4)];
    for (f, n) in functions {
        for y in [f(u.clone()), jit(move |u: Array| f(u)).call(&u)?] {
            assert_eq!((type_of(&y), total(y)), (format!("float32[{n},{n}]{{U:x}}"), matrix(n)?));
        }
    }
    Ok(())
}

/// JAX joins the parts with a sum. Here a sum is never implicit.
#[test]
fn insertions_into_unreduced_values_are_unreduced_or_errors() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let u = addends();
    for y in [insert(&u, 1, u.get(0), 0), jit(|u: Array| insert(&u, 1, u.get(0), 0)).call(&u)?] {
        assert_eq!((type_of(&y).as_str(), total(y)), ("float32[5,4]{U:x}", vec![16.0; 20]));
    }
    let error = insert(&u, 1, 1.0, 0).check().unwrap_err();
    assert!(error.message().contains("concatenate: operands must have the same sharding"), "{error}");
    let ones = reshard(ones([1, 4]), P![].unreduced(["x"]));
    assert_eq!(total(insert(&u, 1, ones, 0))[..8], [16.0, 16.0, 16.0, 16.0, 1.0, 1.0, 1.0, 1.0]);
    Ok(())
}

/// JAX 0.12 has the types, but fills each device: sums of unreduced ones are 2, of unreduced twos 4, and of a stack of unreduced values
/// twice the values.
#[test]
fn arrays_like_another_have_its_sharding() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let x = zeros([4, 4]);
    for (spec, ty) in [
        (P!["x", None], "float32[4@x,4]"),
        (P![].unreduced(["x"]), "float32[4,4]{U:x}"),
        (P!["y", None].unreduced(["x"]), "float32[4@y,4]{U:x}"),
        (P![].reduced(["x"]), "float32[4,4]{R:x}"),
    ] {
        let x = reshard(x.clone(), spec);
        type Function = fn(Array) -> Array;
        let functions: [(Function, f32); 4] = [
            (|x| zeros_like(x), 0.0),
            (|x| ones_like(x), 1.0),
            (|x| full_like(x, 2.0), 2.0),
            (|x| full_like(x, array(3)), 3.0),
        ];
        for (f, value) in functions {
            for y in [f(x.clone()), jit(move |x: Array| f(x)).call(&x)?] {
                assert_eq!((type_of(&y).as_str(), total(y)), (ty, vec![value; 16]));
            }
        }
    }
    let u = addends();
    for y in [stack([&u, &u], 0), jit(|u: Array| stack([&u, &u], 0)).call(&u)?] {
        assert_eq!((type_of(&y).as_str(), total(y)), ("float32[2,4,4]{U:x}", vec![16.0; 32]));
    }
    // Inside of a map over one of the axes, and of vmap.
    let x2 = reshard(x.clone(), P!["x", "y"]);
    fn body(x: Array) -> Array {
        &x + full_like(&x, 2.0)
    }
    let mapped = shard_map(body, None).axis_names(["x"]).in_specs(P!["x", None]).out_specs(P!["x", None]);
    assert_eq!(total(jit(mapped).call(&x2)?), [2.0; 16]);
    assert_eq!(total(jit(vmap(body)).call(&x2)?), [2.0; 16]);
    // An array keeps its own sharding.
    let rows = full_like(reshard(x, P!["x", None]), arange(0..4));
    assert_eq!(type_of(&rows), "float32[4,4]");
    Ok(())
}

#[test]
fn errors_name_rejected_shardings() -> Result<()> {
    let (_, guard) = mesh([("x", 2), ("y", 4)]);
    #[track_caller]
    fn fails<T>(result: Result<T>, text: &str) {
        let error = result.err().expect("an error").to_string();
        assert!(error.contains(text) && error.contains("items.rs"), "{text:?} is not in {error}");
    }
    let a = device_put(&ones([4, 3, 2]), P!["x"])?;
    let b = device_put(&ones([4, 2, 3]), P!["y"])?;
    fails(a.matmul(&b).check(), "batch dimensions need to have consistent sharding");
    let flat = device_put(&ones([4, 8]), P!["x", "y"])?;
    fails(flat.cumsum(..).check(), "cumsum: dimension 0 must not be sharded");
    drop(guard);
    fn over(count: usize) -> Result<Array> {
        let mesh = Mesh::new(devices()?[..count].to_vec(), [("x", count)])?.auto();
        device_put(&ones([4]), &NamedSharding::new(&mesh, P!["x"]))
    }
    let f = shardax::export::export(|x: Array| x * 2, over(2)?)?;
    fails(f.call(over(4)?), "was exported for 2 devices, but an argument is on 4");
    let x = device_put(&ones([4]), &devices()?[3])?;
    fails(f.call(x), "was exported for 2 devices, but an argument is on 1");
    Ok(())
}

/// XLA's verifier rejected two concatenations of negative pads with one element on each device.
#[test]
fn negative_pads_of_single_elements() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    let x = device_put(&arange(0..8).astype(DType::F32), &NamedSharding::new(&mesh, P!["x"]))?;
    let (tail, head): (Vec<f32>, Vec<f32>) = ((1..8).map(|i| i as f32).collect(), (0..7).map(|i| i as f32).collect());
    for (a, b) in [rotations(x.clone()), jit(rotations).call(&x)?] {
        assert_eq!(
            (host(&a), host(&b)),
            ([tail.clone(), head.clone()].concat(), [head.clone(), tail.clone()].concat())
        );
    }
    Ok(())
}

fn rotations(x: Array) -> (Array, Array) {
    let zero = array(0.0f32);
    let (tail, head) = (lax::pad(&x, &zero, &[(-1, 0, 0)]), lax::pad(&x, &zero, &[(0, -1, 0)]));
    (concatenate(&[tail.clone(), head.clone()], 0), concatenate(&[head, tail], 0))
}

/// JAX 0.12 returns bfloat16 with `where` too.
#[test]
fn masked_logmeanexp_keeps_the_dtype() -> Result<()> {
    setup();
    let x = arange(0..8).astype(DType::Bf16);
    let mask = x.greater(3);
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        let y = shardax::nn::logmeanexp(x.astype(dtype), over(..).mask(&mask));
        assert_eq!(y.dtype(), dtype);
        // log((e⁴ + e⁵ + e⁶ + e⁷) / 4)
        assert!((y.to_f64()? - 6.053_895_2).abs() < 0.05, "{y}");
    }
    Ok(())
}

/// Functions of both parts of complex numbers did not end if a part could not be computed.
#[test]
fn complex_numbers_whose_parts_fail() -> Result<()> {
    let (_, _guard) = mesh([("x", 2), ("y", 4)]);
    let u = device_put(&ones_dtype([4], DType::Complex64), P![].unreduced(["x"]))?;
    for rejected in [isinf(&u), isfinite(&u), round(&u), around(&u, 1), around(&u, -1), nan_to_num(&u), log10(&u)] {
        let error = rejected.check().expect_err("a sharding error").to_string();
        assert!(error.contains("unreduced operands are not supported"), "{error}");
    }
    Ok(())
}
