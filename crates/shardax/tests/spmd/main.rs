//! `pmap`, `shard_map` and collectives on eight simulated devices.

mod arguments;
mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod gradients;
mod pmap;
mod pmap_transforms;
mod properties;
mod shard_map;
mod shard_map_results;
mod shard_map_samples;
mod shard_map_transforms;

use common::quick::{one_of, setup};
use common::values::{close, message, noise, numbers, ramp};
use shardax::prelude::*;
use shardax::stages::CompilerOption;
use shardax_alloc as _;

#[test]
fn scale_and_add() -> Result<()> {
    setup();
    let n = device_count();
    let x = arange(0..4 * n as i32).reshape([n, 4]);
    let scale_add = pmap(|x: Array, y: Array| x * 2 + y).in_axes((0, None));
    let out = scale_add.call((&x, 100.0f32))?;
    assert_eq!(out.dtype(), DType::F32);
    assert_eq!(out.shape(), [8, 4]);
    assert_eq!(out.to_f64_vec()?[..3], [100.0, 102.0, 104.0]);

    let scale_sum = pmap(|x: Array| {
        let scaled = x * 2;
        let total = psum(scaled.sum(..), "devices");
        (scaled, total)
    })
    .axis_name("devices");
    let (scaled, total) = scale_sum.call(&x)?;
    assert_eq!(total.to_vec::<i32>()?, [992; 8]);
    assert_eq!(scaled.shape(), [8, 4]);
    println!("{scaled} {total}");
    Ok(())
}

#[test]
fn shard_map_psum() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    let f = jit(shard_map(|x: Array| psum(x, ("i", "j")), &mesh).in_specs(P!["i", "j"]).out_specs(P![]));
    let x = arange(0..64).reshape([8, 8]);
    let x = device_put(&x, &NamedSharding::new(&mesh, P!["i", "j"]))?;
    let y = f.call(&x)?;
    assert_eq!(y.shape(), [2, 4]);
    println!("{y}");
    Ok(())
}

#[test]
fn grads() -> Result<()> {
    setup();
    let g = grad(|x: Array| (&x * &x * &x).sum(..));
    assert_eq!(g.call(array([1.0f32, 2.0]))?.to_vec::<f32>()?, [3.0, 12.0]);
    let gg = grad(|x: Array| -> Result<Array> { Ok(grad(|x: Array| x.sin().sum(..)).call(&x)?.sum(..)) });
    println!("{}", gg.call(array([1.0f32, 2.0]))?);
    let v = vmap(grad(|x: Array| x.tanh())).call(array([0.5f32, 1.0]))?;
    println!("{v}");
    let h = hessian(|x: Array| (&x * &x * &x).sum(..)).call(array([1.0f32, 2.0]))?;
    println!("{h}");
    Ok(())
}

#[derive(Tree, Clone)]
struct Params {
    w: Array,
    b: Array,
}

fn mse(p: Params, x: Array, y: Array) -> Array {
    (x.dot(&p.w) + p.b - y).square().mean(..)
}

fn train_step(p: Params, x: Array, y: Array, lr: Array) -> Result<(Params, Array)> {
    let (loss, grads) = value_and_grad(mse).call((p.clone(), x, y))?;
    let grads = pmean(grads, "batch");
    Ok((tree::map2(|p, g| p - g * &lr, p, grads)?, pmean(loss, "batch")))
}

/// The program of the design: forgetting `pmean` is an error, and with it training converges as on one device.
#[test]
fn data_parallel_training_step() -> Result<()> {
    setup();
    let step = pmap(train_step).axis_name("batch").in_axes((None, 0, 0, None)).out_axes((None, None));
    let x = arange(0..80).astype(DType::F32).reshape([8, 2, 5]) / 80.0;
    let y = (&x * 2.0).sum(2);
    let mut p = Params { w: zeros(5), b: zeros(()) };
    let mut single = p.clone();
    let single_step = jit(train_step_single);
    for _ in 0..5 {
        let (next, loss) = step.call((&p, &x, &y, 0.1f32))?;
        let (next_single, single_loss) = single_step.call((&single, x.reshape([16, 5]), y.reshape(16), 0.1f32))?;
        assert!((loss.item::<f32>()? - single_loss.item::<f32>()?).abs() < 1e-5);
        (p, single) = (next, next_single);
    }
    assert!(allclose(&p.w, &single.w, 1e-5, 1e-6)?);
    assert!(p.w.is_fully_replicated());

    // Without the mean, each device would have other parameters.
    let forgot = pmap(|p: Params, x: Array, y: Array| -> Result<Params> {
        let grads = grad(mse).call((p.clone(), x, y))?;
        tree::map2(|p, g| p - g * 0.1, p, grads)
    })
    .axis_name("batch")
    .in_axes((None, 0, 0))
    .out_axes(None);
    let error = forgot.call((&p, &x, &y)).err().expect("parameters vary").to_string();
    assert!(error.contains("output.w") && error.contains("'batch'"), "{error}");
    Ok(())
}

fn train_step_single(p: Params, x: Array, y: Array, lr: Array) -> Result<(Params, Array)> {
    let (loss, grads) = value_and_grad(mse).call((p.clone(), x, y))?;
    Ok((tree::map2(|p, g| p - g * &lr, p, grads)?, loss))
}

/// Nested maps, one mesh axis at a time, and axes that are left to the compiler.
#[test]
fn partial_manual() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    let x = arange(0..8 * 6).reshape([8, 6]);
    let want = (&x * 2).sum(0);

    let auto = shard_map(|x: Array| psum((x * 2).sum(0), "i"), &mesh).axis_names("i").in_specs(P!["i"]).out_specs(P![]);
    assert_eq!(jit(auto).call(&x)?.to_vec::<i32>()?, want.to_vec::<i32>()?);

    // An inner map of the axis that the outer one leaves to the compiler.
    let nested = shard_map(
        |x: Array| -> Result<Array> {
            assert_eq!(x.shape(), [2, 6]);
            let inner = shard_map(|x: Array| psum(x.sum(0), "j") + axis_index("j") * 0, None)
                .axis_names("j")
                .in_specs(P!["j"])
                .out_specs(P![])
                .check_vma(false);
            Ok(psum(inner.call(x * 2)?, "i"))
        },
        &mesh,
    )
    .axis_names("i")
    .in_specs(P!["i"])
    .out_specs(P![])
    .check_vma(false);
    assert_eq!(jit(nested).call(&x)?.to_vec::<i32>()?, want.to_vec::<i32>()?);

    let index =
        shard_map(|x: Array| x * 0 + axis_index("i"), &mesh).axis_names("i").in_specs(P!["i"]).out_specs(P!["i"]);
    assert_eq!(jit(index).call(arange(0..8))?.to_vec::<i32>()?, [0, 0, 1, 1, 2, 2, 3, 3]);

    let _context = set_mesh(&mesh)?;
    // The same with `smap`, which reads the mesh from the context.
    let total = smap(
        |x: Array| -> Result<Array> {
            smap(
                |x: Array| {
                    assert_eq!(x.shape(), [1, 1, 128]);
                    psum(x, ("i", "j"))
                },
                "j",
            )
            .in_axes(1)
            .out_axes(None)
            .call(x)
        },
        "i",
    )
    .in_axes(0)
    .out_axes(None);
    let y = jit(total).call(ones([4, 2, 128]))?;
    assert_eq!(y.shape(), [1, 1, 128]);
    assert_eq!(y.to_vec::<f32>()?[0], 8.0);
    Ok(())
}

#[test]
fn groups_and_permutations() -> Result<()> {
    setup();
    let x = arange(0..8);
    fn by(f: fn(Array) -> Array, x: &Array) -> Result<Vec<i32>> {
        pmap(f).axis_name("i").call(x).and_then(|y| y.to_vec::<i32>())
    }
    assert_eq!(
        by(|x| psum(x, axis_index_groups("i", [[0, 2, 4, 6], [1, 3, 5, 7]])), &x)?,
        [12, 16, 12, 16, 12, 16, 12, 16]
    );
    assert_eq!(
        by(|x| psum(x, axis_index_groups("i", [vec![0, 1], vec![2, 3, 4, 5, 6, 7]])), &x)?,
        [1, 1, 27, 27, 27, 27, 27, 27]
    );
    assert_eq!(by(|x| pshuffle(x, "i", [1, 2, 3, 4, 5, 6, 7, 0]), &x)?, [1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!(by(|x| pbroadcast(x, "i", 3), &x)?, [3; 8]);
    assert_eq!(by(|x| ppermute(x + 1, "i", [(0, 1), (1, 2)]), &x)?, [0, 1, 2, 0, 0, 0, 0, 0]);
    let swapped = pmap(|x: Array| pswapaxes(x, "i", 0)).axis_name("i").call(arange(0..64).reshape([8, 8]))?;
    assert_eq!(swapped.to_vec::<i32>()?, arange(0..64).reshape([8, 8]).t().to_vec::<i32>()?);
    Ok(())
}

#[test]
fn one_device_runs_collectives() -> Result<()> {
    setup();
    let f = pmap(|x: Array| {
        let gathered = all_gather(psum(&x + axis_index("i"), "i"), "i", 0);
        psum_scatter(gathered, "i", 0) + ppermute(pmax(x, "i"), "i", [(0, 0)])
    })
    .axis_name("i");
    assert_eq!(f.call(array([[1, 2]]))?.to_vec::<i32>()?, [2, 4]);
    Ok(())
}

/// Maxima over a dimension keep NaN, whether one device reduces it, several together, or each its own block.
#[test]
fn maxima_keep_nan() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let mut values: Vec<f32> = (0..64).map(|i| i as f32).collect();
    (values[9], values[60]) = (f32::NAN, f32::NAN);
    let x = Array::from_vec(values, &[8, 8])?;
    let split = device_put(&x, &NamedSharding::new(&mesh, P!["i"]))?;
    fn nans(x: Array) -> Result<Vec<bool>> {
        Ok(x.to_vec::<f32>()?.into_iter().map(f32::is_nan).collect())
    }
    let columns_with_nan = [false, true, false, false, true, false, false, false];
    let rows = [false, true, false, false, false, false, false, true];
    for (i, x) in [&x, &split].into_iter().enumerate() {
        // The option lets XLA's own maximum drop a NaN, and makes it fast.
        let fast = vec![("xla_cpu_enable_fast_min_max", CompilerOption::Bool(true))];
        for options in [Vec::new(), fast].into_iter().skip(i % one_of(2)).step_by(one_of(2)) {
            for f in [|x: Array| x.max(0), |x: Array| x.min(0)] {
                assert_eq!(nans(jit(f).compiler_options(options.clone()).call(x)?)?, columns_with_nan, "{options:?}");
            }
            assert_eq!(nans(jit(|x: Array| x.max(1)).compiler_options(options.clone()).call(x)?)?, rows, "{options:?}");
        }
        // Elementwise as well.
        for f in [|x: Array| shardax::numpy::maximum(x, 5), |x: Array| shardax::numpy::minimum(x, 5)] {
            assert_eq!(nans(jit(f).call(x)?)?, nans(x.clone())?);
        }
        // All rows below a NaN.
        for f in [|x: Array| shardax::lax::cummax(&x, 0), |x: Array| shardax::lax::cummin(&x, 0)] {
            let columns = nans(jit(f).call(x)?.t())?;
            assert_eq!(columns.chunks(8).map(|rows| rows[7]).collect::<Vec<_>>(), columns_with_nan);
        }
    }
    let blocks = shard_map(|x: Array| x.max(1), &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    assert_eq!(nans(blocks.call(&split)?)?, rows);
    Ok(())
}
