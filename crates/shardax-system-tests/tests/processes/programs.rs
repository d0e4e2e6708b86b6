//! `jit` and `shard_map` over the devices of several processes.

use shardax::pure_callback;

use crate::*;

/// JAX: `test_all_to_all_shard_map`.
#[test]
fn all_to_all_across_processes() {
    everywhere(|| {
        let (mesh, n) = (line()?, device_count());
        let x = make_array_from_callback([n, n], DType::F32, &NamedSharding::new(&mesh, P!["x"]), |index| {
            Ok((arange(0..n as i32) + (index[0].start * n) as i32).astype(DType::F32).reshape([1, n]))
        })?;
        let f =
            shard_map(|x: Array| all_to_all(x.reshape([n, 1]), "x", 0, 1), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
        let y = read(&f.call(&x)?.reshape([n, n]))?;
        let transposed: Vec<f32> = (0..n).flat_map(|i| (0..n).map(move |j| (j * n + i) as f32)).collect();
        assert_eq!(y, transposed);
        Ok(())
    });
}

/// JAX rejects; here what a function captures is one more argument.
///
/// JAX: `test_closed_over_global_array_error`.
#[test]
fn captured_global_array() {
    everywhere(|| {
        let x = counted(device_count())?;
        let captured = x.clone();
        let y = jit(move |y: Array| y + &captured).call(&x)?;
        assert_eq!(read(&y)?, (0..device_count()).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
        Ok(())
    });
}

/// JAX: `test_numpy_input_error_with_non_trivial_sharding`.
#[test]
fn host_data_for_a_split_argument_is_an_error() {
    everywhere(|| {
        let (mesh, n) = (line()?, device_count());
        let (split, whole) = (NamedSharding::new(&mesh, P!["x"]), NamedSharding::new(&mesh, P![]));
        let f = jit(|x: Array| x * 2).in_shardings(&split);
        fails(f.call(&ones(n)), &["Passing non-trivial shardings", "make_array_from_process_local_data"]);
        let y = jit(|x: Array| x * 2).in_shardings(&whole).call(&ones(n))?;
        assert_eq!(y.to_vec::<f32>()?, vec![2.0; n]);
        Ok(())
    });
}

/// JAX: `testLocalInputsWithJaxArray`.
#[test]
fn local_to_global_to_local() {
    everywhere(|| {
        use shardax::multihost::*;
        let (mesh, d) = (grid()?, each());
        let local = (arange(0..(4 * d) as i32) + 100 * process_index() as i32).reshape([2 * d, 2]);
        let spec = P![("p", "d")];
        let global = host_local_array_to_global_array(&local, &mesh, &spec)?;
        let out = jit(|x: Array| x).out_shardings(&NamedSharding::new(&mesh, spec.clone())).call(&global)?;
        let back = global_array_to_host_local_array(&out, &mesh, &spec)?;
        assert_eq!((back.shape(), back.to_vec::<i32>()?), (local.shape(), local.to_vec::<i32>()?));
        Ok(())
    });
}

#[test]
fn an_entry_is_sent_to_all_processes() {
    everywhere(|| {
        let x = counted(4 * device_count())?;
        assert_eq!(x.get(0).item::<f32>()?, 0.0);
        let last = 4 * device_count() - 1;
        assert_eq!(x.get(last as i32).item::<f32>()?, last as f32);
        let compiled = jit(|x: Array| x.get(0)).lower(&x)?.compile()?;
        let report = compiled.collectives()?;
        assert!(report.count() >= 1, "{report}");
        assert!(report.iter().all(|c| c.participants == device_count()), "{report}");
        assert!(compiled.as_text()?.contains("all-"), "{}", compiled.as_text()?);
        // Without communication: the part that is here.
        assert_eq!(x.addressable_data(0)?.get(0).item::<f32>()?, (4 * process_index() * each()) as f32);
        Ok(())
    });
}

#[test]
fn meshes_may_leave_processes_out() {
    everywhere(|| {
        let last = process_count() - 1;
        let some: Vec<Device> = devices()?.into_iter().filter(|d| d.process_index() != last).collect();
        let n = some.len();
        let mesh = Mesh::new(some, [("x", n)])?;
        let sharding = NamedSharding::new(&mesh, P!["x"]);
        let sum = jit(|x: Array| x.sum(..));
        if process_index() == last {
            // It has no part, and says so.
            let x = make_array_from_callback([n], DType::F32, &sharding, |_| unreachable!())?;
            fails(sum.call(&x), &["none of the devices of", &format!("belong to process {last}")]);
            return Ok(());
        }
        let x = make_array_from_callback([n], DType::F32, &sharding, |index| Ok(ones(1) * index[0].start as f32))?;
        assert_eq!(sum.call(&x)?.item::<f32>()?, (n * (n - 1) / 2) as f32);
        let f = shard_map(|x: Array| psum(x, "x"), &mesh).in_specs(P!["x"]).out_specs(P![]);
        assert_eq!(f.call(&x)?.to_vec::<f32>()?, [(n * (n - 1) / 2) as f32]);
        Ok(())
    });
}

#[test]
fn programs_of_this_process_alone() {
    everywhere(|| {
        // Each process does something else, as often as it likes.
        let x = arange(0..4 + process_index() as i32);
        for _ in 0..=process_index() {
            let n = 4 + process_index() as i32;
            assert_eq!((&x * 2).sum(..).item::<i32>()?, n * (n - 1));
        }
        let mesh = Mesh::new(local_devices()?, [("i", each())])?;
        let f = shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i"]).out_specs(P![]);
        assert_eq!(f.call(&ones(each()))?.to_vec::<f32>()?, [each() as f32]);
        Ok(())
    });
}

#[test]
fn donation_and_gradients() {
    everywhere(|| {
        let mesh = line()?;
        let (split, whole) = (NamedSharding::new(&mesh, P!["x"]), NamedSharding::new(&mesh, P![]));
        let n = device_count();
        let batch = counted(8 * n)?.reshape([8 * n, 1]) / (8 * n) as f32;
        let batch = device_put(&batch, &split)?;
        fn loss(w: Array, x: Array) -> Array {
            ((x.clone() * w - (x * 3.0)) * 1.0).square().mean(..)
        }
        let step = jit(move |w: Array, x: Array| -> Result<(Array, Array)> {
            let (value, grad) = value_and_grad(loss).call((&w, x))?;
            Ok((w - grad * 2.0, value))
        })
        .donate_argnums([0]);
        let mut w = device_put(&zeros(1), &whole)?;
        let mut losses = Vec::new();
        for _ in 0..20 {
            let (next, value) = step.call((&w, &batch))?;
            // The memory of the weights is reused, in every process.
            assert!(w.is_deleted());
            w = next;
            losses.push(value.item::<f32>()?);
        }
        assert!(losses[19] < losses[0] * 1e-3, "{losses:?}");
        assert!((w.to_vec::<f32>()?[0] - 3.0).abs() < 0.1);
        shardax::multihost::assert_equal(&w, "every process has learned the same")?;
        Ok(())
    });
}

#[test]
fn programs_are_found_on_disk() {
    everywhere(|| {
        let x = counted(device_count())?;
        fn f(x: Array) -> Array {
            x.cos().sum(..) * 77.0
        }
        let before = jit(f).call(&x)?.item::<f32>()?;
        shardax::runtime::clear_caches();
        assert_eq!(jit(f).call(&x)?.item::<f32>()?, before);
        let files = std::fs::read_dir(folder().join("cache"))
            .map_err(|e| shardax::Error::new(shardax::ErrorKind::Runtime, e.to_string()))?;
        assert!(files.count() > 0);
        Ok(())
    });
}

/// `SHARDAX_TEST_STRESS_LAUNCHES` says how many.
#[test]
fn many_launches_keep_their_order() {
    everywhere(|| {
        let count = std::env::var("SHARDAX_TEST_STRESS_LAUNCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
        let mesh = line()?;
        fn add(x: Array) -> Array {
            x.clone() + (psum(x.clone(), "x") - psum(x, "x")) + 1.0
        }
        let f = jit(shard_map(add, &mesh).in_specs(P!["x"]).out_specs(P!["x"])).donate_argnums([0]);
        let g = jit(|x: Array| x.clone() - x.min(..));
        let mut x = counted(device_count())?;
        let mut added = 0.0;
        // No process waits for the previous programs.
        for i in 0..count {
            (x, added) = match i % 7 {
                6 => (g.call(&x)?, 0.0),
                _ => (f.call(&x)?, added + 1.0),
            };
        }
        assert_eq!(read(&x)?, (0..device_count()).map(|i| i as f32 + added).collect::<Vec<_>>());
        Ok(())
    });
}

/// Another program, shape or constant on one process, and other values: errors on all, and all go on.
#[test]
fn processes_that_do_not_agree_are_reported() {
    everywhere(|| {
        let (x, odd) = (counted(4 * device_count())?, process_index() == 1);
        let reduction = move |x: Array| if odd { x.max(..) } else { x.sum(..) };
        fails(jit(reduction).call(&x), &["compiles another program than this one as `lambda` (float32["]);
        fn smallest(x: Array) -> Array {
            x.min(..)
        }
        fn largest(x: Array) -> Array {
            x.max(..)
        }
        // Programs of different names, then equal programs with different constants, then different shapes.
        let named = if odd { jit(smallest).call(&x) } else { jit(largest).call(&x) };
        fails(named, &["process ", " is at the compilation of `", "where this one is at the compilation of `"]);
        let constant = process_index() as f32;
        fails(jit(move |x: Array| x.sum(..) + constant).call(&x), &["constants computed from `process_index()`"]);
        let y = make_array_from_callback(
            [(2 + 2 * usize::from(odd)) * device_count()],
            DType::F32,
            &x.sharding()?,
            |index| Ok(ones(index[0].len())),
        )?;
        fails(
            jit(|x: Array| x.tanh().sum(..)).call(&y),
            &["process ", "where this one is at the compilation of `lambda` (float32["],
        );
        // After the errors the processes still agree.
        assert_eq!(jit(|x: Array| x.sum(..) * 0.0).call(&x)?.item::<f32>()?, 0.0);
        Ok(())
    });
}

#[test]
fn functions_of_the_host_run_in_each_process() {
    everywhere(|| {
        let double = pure_callback(
            |args, results| results[0].write(args[0].values::<f32>()?.map(|x| x * 2.0)),
            shape_dtype_struct([2], DType::F32),
        );
        let f = shard_map(move |x: Array| -> Result<Array> { Ok(psum(double.call(x)?, "x")) }, &line()?)
            .in_specs(P!["x"])
            .out_specs(P![]);
        let x = counted(2 * device_count())?;
        let n = device_count() as f32;
        assert_eq!(jit(f).call(&x)?.to_vec::<f32>()?, [2.0 * n * (n - 1.0), 2.0 * n * n]);
        Ok(())
    });
}
