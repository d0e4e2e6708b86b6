//! `pmap` of trees, with options, and inside and around other transformations. `JAX:` names the case of JAX's tests
//! that a test follows.

use std::collections::BTreeMap;

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, noise, numbers, ramp};

/// JAX: `testMean`.
#[test]
fn pmap_subtracts_the_mean_over_devices() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    close(&pmap(|x: Array| &x - pmean(x.clone(), "i")).axis_name("i").call(&x)?, &(&x - x.mean(0)));
    Ok(())
}

/// JAX: `testVmapOf`.
#[test]
fn vmap_of_pmap_over_another_axis() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    close(&vmap(pmap(|x: Array| x)).in_axes(1).call(&x)?, &x.t());
    Ok(())
}

/// JAX: `testComplexPsum`.
#[test]
fn psum_of_complex_numbers() -> Result<()> {
    setup();
    let x = complex(ramp([8, 4]), noise([8, 4]));
    let y = pmap(|x: Array| &x - psum(x.clone(), "i")).axis_name("i").call(&x)?;
    assert_eq!(y.dtype(), DType::Complex64);
    close(&real(&y), &real(&(&x - x.sum(0))));
    close(&imag(&y), &imag(&(&x - x.sum(0))));
    Ok(())
}

/// JAX: `testPartiallyMapped`.
#[test]
fn unmapped_argument_on_all_devices() -> Result<()> {
    setup();
    let y = ramp([8, 4]);
    let f = pmap(|x: Array, _: Array| x).in_axes((None, 0)).call((3.0f32, &y))?;
    assert_eq!(numbers(&f), [3.0; 8]);
    assert_eq!(f.sharding()?.spec()?.len(), 1);
    let g = pmap(|x: Array, y: Array| x - psum(y, "i")).axis_name("i").in_axes((None, 0)).call((3.0f32, &y))?;
    close(&g, &(-y.sum_keepdims(0) + 3).broadcast_to([8, 4]));
    Ok(())
}

/// JAX: `testJvpAndPartialEval`.
#[test]
fn linearized_pmap_pushes_tangents() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    fn f(x: Array) -> Result<Array> {
        pmap(|x: Array| x.sin()).axis_name("i").call(x)
    }
    let (_, push) = linearize(f, &x)?;
    close(&push.call(ones_like(&x))?, &x.cos());
    Ok(())
}

/// JAX: `testGradOfJvp`.
#[test]
fn reverse_over_forward_mode_of_pmap() -> Result<()> {
    setup();
    fn f(x: Array) -> Result<Array> {
        pmap(|x: Array| x.sin()).call(x)
    }
    fn g(x: Array) -> Result<Array> {
        Ok(jvp(f, &x, ones_like(&x))?.1.sum(..))
    }
    let x = noise([8, 3]);
    close(&grad(g).call(&x)?, &-x.sin());
    Ok(())
}

/// JAX: `testTwoArgsGrad`.
#[test]
fn gradients_of_two_arguments_through_psum() -> Result<()> {
    setup();
    fn f(x: Array, y: Array) -> Array {
        psum(&y * x.sin() * 3, "i") * y
    }
    fn mapped(x: Array, y: Array) -> Result<Array> {
        Ok(pmap(f).axis_name("i").call((x, y))?.sum(..))
    }
    fn plain(x: Array, y: Array) -> Result<Array> {
        Ok(vmap(f).axis_name("i").call((x, y))?.sum(..))
    }
    let (x, y) = (noise([8, 3]), noise([8, 3]) + 0.5);
    let argnums = (Arg::<0>, Arg::<1>);
    let (a, b) = (grad(mapped).argnums(argnums).call((&x, &y))?, grad(plain).argnums(argnums).call((&x, &y))?);
    close(&a.0, &b.0);
    close(&a.1, &b.1);
    Ok(())
}

/// JAX: `testArrayReshape`.
#[test]
fn pmap_result_reshaped_across_devices() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = pmap(|x: Array| x + 1).call(&x)?;
    close(&y.reshape([4, 8]), &(x + 1).reshape([4, 8]));
    Ok(())
}

/// JAX: `testPmapConstantDevices`.
#[test]
fn constant_result_on_reordered_devices() -> Result<()> {
    setup();
    let mut few = devices()?[..7].to_vec();
    few.rotate_left(3);
    let y = pmap(|_: Array| Array::from(3)).devices(few.clone()).call(arange(0..7))?;
    assert_eq!(y.to_vec::<i32>()?, [3; 7]);
    assert_eq!(y.devices()?, few);
    assert_eq!(pmap(|_: Array| Array::from(3)).call(arange(0..9)).err().map(|e| e.kind()), Some(ErrorKind::Value));
    Ok(())
}

/// Results that are constants, arguments passed through, captured arrays, or nothing at all.
#[test]
fn results_that_nothing_was_computed_for() -> Result<()> {
    setup();
    let w = noise(3);
    let f = pmap(|x: Array| (Array::from(2.5f32), x, w.clone(), ()));
    let (a, b, c, ()) = f.call(ramp([8, 2]))?;
    assert_eq!(numbers(&a), [2.5; 8]);
    close(&b, &ramp([8, 2]));
    close(&c, &w.broadcast_to([8, 3]));
    let (a, c) = pmap(|_: Array| (Array::from(2.5f32), w.clone())).out_axes(None).call(ramp([8, 2]))?;
    assert_eq!((a.shape(), c.shape()), (&[0usize; 0][..], &[3][..]));
    pmap(|_: Array| ()).call(ramp([8, 2]))?;
    assert_eq!(pmap(|x: Array| (None::<Array>, Some(x))).call(ramp(8))?.1.map(|x| x.size()), Some(8));
    Ok(())
}

/// JAX: `testIssue1065`.
#[test]
fn pmap_inside_a_compiled_loop() -> Result<()> {
    setup();
    fn exchange(s: Array) -> Result<Array> {
        pmap(jit(|s: Array| s)).axis_name("x").call(s)
    }
    let evolve = jit(move |s: Array| fori_loop(0, 1, |_, s: Array| exchange(s), s));
    close(&evolve.call(ramp(8))?, &ramp(8));
    Ok(())
}

/// JAX: `testManyArgs`.
#[test]
fn pmap_of_hundreds_of_arrays() -> Result<()> {
    setup();
    let args: Vec<Array> = (0..200).map(|i| ones(8) * i).collect();
    let sum = pmap(|xs: Vec<Array>| xs.into_iter().reduce(|a, b| a + b).unwrap_or_else(|| zeros(())));
    assert_eq!(sum.call(args)?.to_f64_vec()?, [19900.0; 8]);
    let eight = pmap(|a: Array, b: Array, c: Array, d: Array, e: Array, f: Array, g: Array, h: Array| {
        a + b + c + d + e + f + g + h
    });
    let x = ramp(8);
    close(&eight.in_axes((0, 0, 0, None, 0, 0, 0, 0)).call((&x, &x, &x, 1.0, &x, &x, &x, &x))?, &(x * 7 + 1));
    Ok(())
}

/// JAX: `testPostProcessMap2`.
#[test]
fn batched_matmuls_with_rows_over_devices() -> Result<()> {
    setup();
    let (x, y) = (noise([80, 50]), noise([10, 50, 1]));
    let matrix = x.clone();
    let product = move |y: Array| -> Result<Array> {
        fn rows(z: Array, y: &Array) -> Result<Array> {
            vmap(|row: Array| row.dot(y)).call(z)
        }
        Ok(pmap(|z: Array| rows(z, &y)).call(matrix.reshape([8, 10, 50]))?.reshape([80, 1]))
    };
    close(&vmap(product).call(&y)?, &einsum("ij,njk->nik", &[&x, &y]));
    Ok(())
}

/// `vmap`, `scan` and `pmap` in each other, with a value of the outermost captured by the innermost.
///
/// JAX: `testPmapMapVmapCombinations`.
#[test]
fn loops_batches_and_devices_nested() -> Result<()> {
    setup();
    let (x, y) = (noise([40, 5]), noise([5, 5]));
    fn rows(z: Array, y: Array) -> Result<Array> {
        Ok(scan(|(), row: Array| ((), row.dot(&y)), (), z)?.1)
    }
    fn parallel(y: Array, x: &Array) -> Result<Array> {
        let x = x.reshape([8, 5, 5]);
        Ok(pmap(|z: Array| rows(z, y.clone())).call(x)?.reshape(40))
    }
    let want = y.dot(x.t());
    close(&vmap(|y: Array| parallel(y, &x)).call(&y)?, &want);
    close(&scan(|(), y: Array| -> Result<((), Array)> { Ok(((), parallel(y, &x)?)) }, (), y.clone())?.1, &want);
    close(&jit(vmap(|y: Array| rows(x.clone(), y))).call(&y)?, &want);
    Ok(())
}

/// JAX: `testPsumZeroCotangents`.
#[test]
fn second_derivative_with_a_zero_cotangent() -> Result<()> {
    setup();
    type P = (Array, Array);
    fn loss(p: P, meta: Array) -> Array {
        meta * p.1 * p.0
    }
    fn inner(meta: Array, p: P) -> Result<Array> {
        let (net, _) = psum(grad(loss).call((p.clone(), meta))?, "i");
        Ok(&p.1 * (&p.0 + net))
    }
    fn outer(p: P) -> Result<Array> {
        grad(inner).call((4.0, p))
    }
    let y = pmap(outer).axis_name("i").call((array([2.0f32]), array([3.0f32])))?;
    assert_eq!(numbers(&y), [9.0]);
    fn total(p: P) -> Result<Array> {
        Ok(pmap(outer).axis_name("i").call(p)?.sum(..))
    }
    let twice = grad(total).call((array([2.0f32]), array([3.0f32])))?;
    assert_eq!((numbers(&twice.0), numbers(&twice.1)), (vec![0.0], vec![6.0]));
    Ok(())
}

/// JAX: `testArgAllReduce`.
#[test]
fn every_reduction_along_every_axis() -> Result<()> {
    setup();
    let x = noise([3, 8, 2]);
    for axis in [1, -2] {
        fn f(g: fn(Array) -> Array, axis: i32, x: &Array) -> Result<Array> {
            pmap(g).in_axes(axis).out_axes(None).axis_name("i").call(x)
        }
        close(&f(|x| psum(x, "i"), axis, &x)?, &x.sum(1));
        close(&f(|x| pmean(x, "i"), axis, &x)?, &x.mean(1));
        close(&f(|x| pmax(x, "i"), axis, &x)?, &x.max(1));
        close(&f(|x| pmin(x, "i"), axis, &x)?, &x.min(1));
    }
    Ok(())
}

/// JAX: `test_num_replicas_with_switch`.
#[test]
fn pmaps_as_branches_of_switch() -> Result<()> {
    setup();
    let f =
        |x: Array| cond(true, |x: Array| pmap(|x: Array| x * 2).call(x), |x: Array| pmap(|x: Array| x * 3).call(x), x);
    close(&f(ramp([8, 2]))?, &(ramp([8, 2]) * 2));
    close(&jit(f).call(ramp([8, 2]))?, &(ramp([8, 2]) * 2));
    Ok(())
}

/// JAX: `test_pmap_error_on_non_hashable_static_argument`.
#[test]
fn array_as_static_argument_is_an_error() {
    setup();
    let f = pmap(|x: Array, _: Array| x + 3).static_broadcasted_argnums([1]);
    let error = f.call((ramp(8), ramp(1))).err().expect("an array is not a static argument");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("Non-hashable static arguments are not supported"), "{error}");
}

/// JAX: `test_axis_env_length`.
#[test]
fn no_axis_name_stays_bound() -> Result<()> {
    setup();
    fn f(x: Array) -> Result<Array> {
        Ok(pmap(|x: Array| x).call(stack(&[x], 0))?.get(0))
    }
    assert_eq!(numbers(&grad(f).call(3.0)?), [1.0]);
    Ok(())
}

/// JAX: `testCompositionWithJitTwice`.
#[test]
fn pmap_inside_two_jits() -> Result<()> {
    setup();
    let f = jit(|x: Array| {
        let y = &x * 2;
        let g = jit(move |z: Array| pmap(|x: Array| x.expand_dims(0) * &y).call(z));
        g.call(x)
    });
    assert_eq!(f.call(ones([1, 1]))?.shape(), [1, 1, 1]);
    Ok(())
}

/// JAX: `testCollectivesWithVmap2`.
#[test]
fn collectives_over_two_axes_in_any_nesting() -> Result<()> {
    setup();
    let x = noise([4, 2, 8, 8]);
    for collective in [|x: Array| psum(x, ("i", "j")), |x: Array| pmean(x, ("j", "i")), |x: Array| pmax(x, ("i", "j"))]
    {
        let f = move |x: Array, y: Array| &x + collective(x.dot(y));
        let by_vmap = vmap(vmap(f).axis_name("j")).axis_name("i").call((&x, &x))?;
        close(&pmap(vmap(f).axis_name("j")).axis_name("i").call((&x, &x))?, &by_vmap);
        close(&vmap(pmap(f).axis_name("j")).axis_name("i").call((&x, &x))?, &by_vmap);
    }
    Ok(())
}

/// JAX: `testPPermuteWithVmap`.
#[test]
fn ppermute_beside_a_vmap_axis() -> Result<()> {
    setup();
    fn f(x: Array, y: Array) -> Array {
        &x + ppermute(x.dot(y), "i", [(0, 1), (1, 0)])
    }
    let x = noise([2, 2, 8, 8]);
    close(&vmap(pmap(f)).axis_name("i").call((&x, &x))?, &pmap(vmap(f)).axis_name("i").call((&x, &x))?);
    Ok(())
}

/// Axes for parts of arguments, nested as these are.
#[test]
fn axes_of_trees() -> Result<()> {
    setup();
    type Dict = BTreeMap<String, Array>;
    let dict: Dict = [("a".to_owned(), ramp([8, 2])), ("b".to_owned(), ramp(3))].into();
    let f = pmap(|x: (Array, (Array, Dict)), y: Vec<Array>| {
        let (a, (b, c)) = x;
        assert_eq!((a.shape(), b.shape(), y[0].shape(), y[1].shape()), (&[2][..], &[3][..], &[][..], &[2][..]));
        (a + &c["a"] + &y[1], vec![b * &c["b"], y[0].clone()])
    })
    .in_axes(((0, (1, [Some(0), None])), [Some(-1), None]))
    .out_axes((-1, vec![0, 0]));
    let (a, rest) = f.call(((ramp([8, 2]), (ramp([3, 8]), dict)), vec![ramp(8), ramp(2)]))?;
    close(&a, &(ramp([8, 2]) * 2 + ramp(2)).t());
    close(&rest[0], &(ramp([3, 8]).t() * ramp(3)));
    close(&rest[1], &ramp(8));
    Ok(())
}

/// JAX: `testPmapAllAxesGrad`.
#[test]
fn gradients_for_all_kinds_of_axes() -> Result<()> {
    setup();
    fn body(x: Array, y: Array, z: Array) -> Array {
        (x + y).sin() * z
    }
    for (axes, out) in [((0, 0, 0), 0), ((2, 1, 0), 1), ((-1, -2, -3), -1), ((1, 0, 2), 2)] {
        fn at_axis(x: Array, axis: i32) -> Array {
            x.moveaxis(0, axis)
        }
        let args =
            (at_axis(noise([8, 3, 4]), axes.0), at_axis(noise([8, 3, 1]), axes.1), at_axis(noise([8, 1, 4]), axes.2));
        // The gradients of `pmap` must equal the gradients of `vmap` over the same axes.
        fn devices(x: Array, y: Array, z: Array, axes: &(i32, i32, i32), out: i32) -> Result<Array> {
            Ok(pmap(body).in_axes(*axes).out_axes(out).call((x, y, z))?.square().sum(..))
        }
        fn for_axis(x: Array, y: Array, z: Array, axes: &(i32, i32, i32), out: i32) -> Result<Array> {
            Ok(vmap(body).in_axes(*axes).out_axes(out).call((x, y, z))?.square().sum(..))
        }
        let argnums = (Arg::<0>, Arg::<1>, Arg::<2>);
        let (a, b) = (
            grad(|x: Array, y: Array, z: Array| devices(x, y, z, &axes, out)).argnums(argnums).call(args.clone())?,
            grad(|x: Array, y: Array, z: Array| for_axis(x, y, z, &axes, out)).argnums(argnums).call(args)?,
        );
        close(&a.0, &b.0);
        close(&a.1, &b.1);
        close(&a.2, &b.2);
    }
    Ok(())
}

/// A gradient with respect to a value that the mapped function captures.
///
/// JAX: `testPmapPostProcess`.
#[test]
fn gradient_of_captures_of_pmap() -> Result<()> {
    setup();
    let (x, y) = (noise([5, 7]), noise([5, 8, 7]));
    fn with_pmap(x: Array, y: Array) -> Result<Array> {
        Ok(pmap(|y: Array| (&x + y).sin()).in_axes(1).out_axes(2).call(y)?.sum(..))
    }
    fn with_vmap(x: Array, y: Array) -> Result<Array> {
        Ok(vmap(|y: Array| (&x + y).sin()).in_axes(1).out_axes(2).call(y)?.sum(..))
    }
    close(&grad(with_pmap).call((&x, &y))?, &grad(with_vmap).call((&x, &y))?);
    close(&jit(grad(with_pmap)).call((&x, &y))?, &grad(with_vmap).call((&x, &y))?);
    Ok(())
}

/// JAX: `test_jnp_stack`.
#[test]
fn rows_of_a_pmap_result_stacked() -> Result<()> {
    setup();
    let z = pmap(|x: Array| (&x + &x).reshape(())).call(arange(0..8))?;
    let rows: Vec<Array> = (0..8).map(|i| z.get(i)).collect();
    assert_eq!(stack(&rows, 0).to_vec::<i32>()?, (arange(0..8) * 2).to_vec::<i32>()?);
    Ok(())
}

/// JAX: `test_float0_dtype_output`.
#[test]
fn pmap_returns_float0() -> Result<()> {
    setup();
    let y = pmap(|_: Array| Array::from_bytes(&[0], DType::Float0, &[])).call(ones(8))?;
    assert_eq!((y.dtype(), y.shape()), (DType::Float0, &[8][..]));
    Ok(())
}

/// JAX: `test_lower_with_flattened_args`.
#[test]
fn pmap_lowers_an_empty_tree() -> Result<()> {
    setup();
    pmap(|x: (Array, ())| x.0.get(0)).lower((ramp([8, 3]), ()))?.compile()?;
    Ok(())
}

/// Every transformation inside and around `pmap`.
#[test]
fn compositions() -> Result<()> {
    setup();
    let x = noise([8, 4]);
    fn total(x: Array) -> Array {
        (&x * &x * &x).sum(..)
    }
    let want = x.square() * 3;
    close(&pmap(grad(total)).call(&x)?, &want);
    close(&pmap(jit(grad(total))).call(&x)?, &want);
    close(&jit(pmap(grad(total))).call(&x)?, &want);
    close(&pmap(vmap(grad(|x: Array| x.square() * x))).call(&x)?, &want);
    fn summed(x: Array) -> Result<Array> {
        Ok(pmap(total).call(x)?.sum(..))
    }
    close(&grad(summed).call(&x)?, &want);
    close(&jit(grad(jit(summed))).call(&x)?, &want);
    close(&jvp(pmap_cube, &x, ones_like(&x))?.1, &want);
    let (_, back) = vjp(pmap_cube, &x)?;
    close(&back.call(ones_like(&x))?.0, &want);
    let stacked = stack(&[x.clone(), &x * 2], 0);
    close(&vmap(grad(summed)).call(&stacked)?, &(stacked.square() * 3));
    close(&pmap(|x: Array| jacfwd(|x: Array| x.sin()).call(x)).call(&x)?.sum(2), &x.cos());
    close(&pmap(|x: Array| hessian(total).call(x)).call(&x)?.sum(2), &(&x * 6));
    Ok(())
}

fn pmap_cube(x: Array) -> Result<Array> {
    pmap(|x: Array| &x * &x * &x).call(x)
}

/// Loops and choices around collectives, in `pmap` and in `vmap` the same.
#[test]
fn collectives_in_control_flow() -> Result<()> {
    setup();
    let scanned =
        |x: Array| -> Result<Array> { Ok(scan(|c: Array, y: Array| (psum(&c * &y, "i") + y, c), x.sum(..), x)?.0) };
    fn looped(x: Array) -> Result<Array> {
        while_loop(|c: Array| pmax(c.sum(..), "i").less(50), |c| &c + pmean(c.clone(), "i") + 1, x)
    }
    fn counted(x: Array) -> Result<Array> {
        fori_loop(0, 3, |_, c: Array| ppermute(c, "i", [(0, 1), (1, 2), (2, 0)]), x)
    }
    fn chosen(x: Array) -> Result<Array> {
        cond(psum(x.sum(..), "i").greater(0), |x: Array| &x - pmean(x.clone(), "i"), |x: Array| x * axis_index("i"), x)
    }
    fn switched(x: Array) -> Result<Array> {
        let branches = (|x: Array| psum(x, "i"), |x: Array| pmax(x, "i"), |x: Array| all_gather(x, "i", 0).sum(0));
        switch(psum(Array::from(1), "i") % 3, branches, x)
    }
    let x = noise([8, 3]);
    close(&pmap(scanned).axis_name("i").call(&x)?, &vmap(scanned).axis_name("i").call(&x)?);
    close(&pmap(looped).axis_name("i").call(&x)?, &vmap(looped).axis_name("i").call(&x)?);
    close(&pmap(counted).axis_name("i").call(&x)?, &vmap(counted).axis_name("i").call(&x)?);
    close(&pmap(chosen).axis_name("i").call(&x)?, &vmap(chosen).axis_name("i").call(&x)?);
    close(&pmap(switched).axis_name("i").call(&x)?, &vmap(switched).axis_name("i").call(&x)?);
    Ok(())
}

/// Devices in any order; the mapped axis need not use all.
#[test]
fn orders_of_devices() -> Result<()> {
    setup();
    let mut order = devices()?;
    order.reverse();
    order.swap(1, 5);
    let f = pmap(|x: Array| (psum(&x * axis_index("i"), "i"), axis_index("i"), ppermute(x, "i", [(0, 1)])));
    let f = f.axis_name("i").devices(order.clone());
    let (a, b, c) = f.call(arange(1..9))?;
    assert_eq!((a.to_vec::<i32>()?, b.to_vec::<i32>()?), (vec![168; 8], (0..8).collect()));
    assert_eq!(c.to_vec::<i32>()?, [0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(b.devices()?, order);
    // Chained with another order: the values stay.
    let back = pmap(|x: Array| x * 2).call(&b)?;
    assert_eq!(back.to_vec::<i32>()?, [0, 2, 4, 6, 8, 10, 12, 14]);
    assert_eq!(f.call(arange(0..3))?.1.devices()?, order[..3]);
    Ok(())
}

/// Functions are traced and compiled once for each kind of arguments.
///
/// JAX: `test_grad_of_pmap_compilation_caching`.
#[test]
fn gradient_of_pmap_is_compiled_once() -> Result<()> {
    setup();
    use std::sync::atomic::{AtomicUsize, Ordering};
    static TRACES: AtomicUsize = AtomicUsize::new(0);
    fn f(x: Array) -> Array {
        TRACES.fetch_add(1, Ordering::SeqCst);
        x.sin()
    }
    fn count() -> usize {
        TRACES.swap(0, Ordering::SeqCst)
    }
    let x = noise([8, 2]);
    // A fresh `pmap` of a known function with the same options does not trace it again.
    for _ in 0..3 {
        let _ = pmap(f).axis_name("i").call(&x)?;
    }
    assert_eq!(count(), 1);
    let _ = pmap(f).axis_name("i").call(noise([8, 3]))?;
    let _ = pmap(f).axis_name("j").call(&x)?;
    let _ = pmap(f).axis_name("i").in_axes(0).out_axes(1).call(&x)?;
    let _ = pmap(f).axis_name("i").call(noise([4, 2]))?;
    assert_eq!(count(), 4);
    // The sharded result is a new kind of argument, so it is traced once more; after that there are no new traces.
    let y = pmap(f).axis_name("i").call(&x)?;
    let g = pmap(f).axis_name("i");
    let _ = g.call(&y)?;
    assert!(count() <= 1);
    let _ = g.call(g.call(&y)?)?;
    assert_eq!(count(), 0);
    let step = jit(grad(|x: Array| -> Result<Array> { Ok(pmap(f).call(x)?.sum(..)) }));
    let _ = step.call(&x)?;
    count();
    let _ = step.call(&x * 2)?;
    assert_eq!(count(), 0);
    let sharded = jit(shard_map(f, &make_mesh([("i", 8)])?).in_specs(P!["i"]).out_specs(P!["i"]));
    let _ = sharded.call(&x)?;
    let _ = sharded.call(&x)?;
    assert_eq!(count(), 1);
    Ok(())
}

/// Donated arguments: their memory is reused where it can be, and the array is gone.
#[test]
fn donation() -> Result<()> {
    setup();
    let f = pmap(|x: Array, y: Array| (x + 1, y * 2)).donate_argnums([0]);
    let (x, y) = (pmap(|x: Array| x).call(ramp([8, 2]))?, ramp([8, 2]));
    let (a, b) = f.call((&x, &y))?;
    assert!(x.is_deleted() && !y.is_deleted());
    // In a loop each result is the next argument.
    let (mut a, mut b) = (a, b);
    for _ in 0..3 {
        (a, b) = f.call((a, b))?;
    }
    close(&a, &(ramp([8, 2]) + 4));
    close(&b, &(ramp([8, 2]) * 16));
    // Two threads may not both donate it.
    let x = pmap(|x: Array| x).call(ramp([8, 2]))?;
    let g = pmap(|x: Array| x + 1).donate_argnums([0]);
    let done: Vec<Result<Array>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|_| s.spawn(|| g.call(&x))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    let (ok, gone): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
    assert_eq!(ok.len(), 1);
    assert!(gone.into_iter().all(|e| e.err().map(|e| e.kind()) == Some(ErrorKind::Deleted)));
    close(&ok.into_iter().next().expect("one")?, &(ramp([8, 2]) + 1));
    Ok(())
}
