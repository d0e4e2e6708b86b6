//! `pmap` over processes.

use crate::*;

fn own(n: usize) -> f32 {
    (process_index() * n) as f32
}

/// JAX: `testBasic`.
#[test]
fn psum_spans_all_processes() {
    everywhere(|| {
        let d = each();
        let x = (arange(0..d as i32).astype(DType::F32) + own(d)).reshape([d, 1]);
        let f = pmap(|x: Array| x.clone() - psum(x, "i")).axis_name("i");
        let y = f.call(&x)?;
        let total = (device_count() * (device_count() - 1) / 2) as f32;
        assert_eq!(y.to_vec::<f32>()?, (0..d).map(|i| own(d) + i as f32 - total).collect::<Vec<_>>());
        assert!(y.sharding()?.as_named().is_some());
        Ok(())
    });
}

/// JAX: `test_pmap_with_float0`.
#[test]
fn float0_across_processes() {
    everywhere(|| {
        let d = each();
        let zeros = Array::from_bytes(&vec![0; d], DType::Float0, &[d])?;
        let y = pmap(|x: Array| x).call(&zeros)?;
        assert_eq!((y.dtype(), y.shape()), (DType::Bool, &[d][..]));
        assert_eq!(y.to_vec::<bool>()?, vec![false; d]);
        Ok(())
    });
}

/// Processes exchange each kind of float8 as it is: the same bits arrive as if they were moved as integers.
#[test]
fn float8_across_processes() {
    everywhere(|| {
        let devices = each();
        fn moved(x: Array) -> (Array, Array, Array) {
            let gathered = all_gather(x.clone(), "i", 0);
            (gathered.clone(), ppermute(x, "i", [(0, 1), (1, 0)]), all_to_all(gathered, "i", 0, 0))
        }
        let moved = pmap(moved).axis_name("i");
        let bits = (arange(0..devices as i32 * 4) * 5 + 40 * process_index() as i32) % 120;
        let bits = bits.astype(DType::U8).reshape([devices, 4]);
        let expected = moved.call(&bits)?;
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.to_string().starts_with("float8")) {
            let result = moved.call(&lax::bitcast_convert_type(&bits, dtype))?;
            assert_eq!(result.0.to_bytes()?, expected.0.to_bytes()?, "all_gather of {dtype}");
            assert_eq!(result.1.to_bytes()?, expected.1.to_bytes()?, "ppermute of {dtype}");
            assert_eq!(result.2.to_bytes()?, expected.2.to_bytes()?, "all_to_all of {dtype}");
        }
        Ok(())
    });
}

/// JAX: `test_replicated_output_sharding_multi_process`.
#[test]
fn replicated_result_is_over_the_local_mesh() {
    everywhere(|| {
        let y = pmap(|x: Array| psum(x, "i")).axis_name("i").out_axes(None).call(&ones(each()))?;
        assert_eq!(y.item::<f32>()?, device_count() as f32);
        assert!(y.is_fully_replicated() && y.is_fully_addressable());
        let sharding = y.sharding()?;
        let named = sharding.as_named().unwrap();
        assert_eq!((named.spec(), named.mesh().devices()), (&P![], &local_devices()?[..]));
        Ok(())
    });
}

/// JAX: `testShardedArrayIndexing`.
#[test]
fn entry_of_a_local_pmap_result() {
    everywhere(|| {
        let d = each();
        let y = pmap(|x: Array| x * 2).call(&(arange(0..d as i32) + process_index() as i32))?;
        assert_eq!(y.get(0).item::<i32>()?, 2 * process_index() as i32);
        assert_eq!(y.get(d as i32 - 1).item::<i32>()?, 2 * (process_index() + d - 1) as i32);
        Ok(())
    });
}

/// Groups that span processes: the even and the odd devices.
///
/// JAX: `test_psum_axis_index_groups`.
#[test]
fn psum_over_groups_across_processes() {
    everywhere(|| {
        let (n, d) = (device_count(), each());
        let groups: Vec<Vec<usize>> = [0, 1].map(|odd| (odd..n).step_by(2).collect()).to_vec();
        let x = arange(0..d as i32) + (process_index() * d) as i32;
        let y = pmap(move |x: Array| psum(x, axis_index_groups("i", groups.clone()))).axis_name("i").call(&x)?;
        fn sum(odd: usize, n: usize) -> i32 {
            (odd..n).step_by(2).sum::<usize>() as i32
        }
        let first = process_index() * d;
        assert_eq!(y.to_vec::<i32>()?, (first..first + d).map(|i| sum(i % 2, n)).collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn pmap_takes_and_returns_host_local_arrays() {
    everywhere(|| {
        let d = each();
        let x = ones([d, 3]) * (process_index() + 1) as f32;
        let step = pmap(|x: Array, y: Array| (pmean(x.clone(), "i") + y.clone(), axis_index("i"), y))
            .axis_name("i")
            .in_axes((0, None))
            .out_axes((0, 0, None));
        let (y, index, same) = step.call((&x, array([10.0f32, 20.0, 30.0])))?;
        let mean = (process_count() + 1) as f32 / 2.0;
        assert_eq!((y.shape(), y.is_fully_addressable()), (&[d, 3][..], true));
        assert_eq!(y.to_vec::<f32>()?[..3], [mean + 10.0, mean + 20.0, mean + 30.0]);
        let first = (process_index() * d) as i32;
        assert_eq!(index.to_vec::<i32>()?, (first..first + d as i32).collect::<Vec<_>>());
        assert_eq!(same.to_vec::<f32>()?, [10.0, 20.0, 30.0]);
        assert_eq!(y.sharding()?.devices(), local_devices()?);
        // The result can be passed again, without a copy and without compiling.
        let _ = step.call((&y, array([0.0f32; 3])))?;
        let zeros = array([0.0f32; 3]);
        let (again, counts) = shardax::count(|| step.call((&y, &zeros)));
        let _ = again?;
        assert_eq!((counts.traces, counts.compilations), (0, 0));
        // Global arrays are taken as they are, along any axis, and plain numbers for all.
        let global = counted(device_count())?;
        let z = pmap(|x: Array, y: Array| x + y).in_axes((0, None)).call((&global, 0.5f32))?;
        assert_eq!(z.shape(), [d]);
        assert_eq!(z.to_vec::<f32>()?[0], (process_index() * d) as f32 + 0.5);
        let columns = ones([2, d]) * process_index() as f32;
        let w = pmap(|x: Array| psum(x, "i")).axis_name("i").in_axes(1).out_axes(1).call(&columns)?;
        assert_eq!(w.shape(), [2, d]);
        let sum = (0..process_count()).sum::<usize>() * d;
        assert_eq!(w.to_vec::<f32>()?, vec![sum as f32; 2 * d]);
        // A map over devices of this process does not involve other processes.
        let single = pmap(|x: Array| psum(x, "i")).axis_name("i").devices(local_devices()?).call(&ones(d))?;
        assert_eq!(single.to_vec::<f32>()?, vec![d as f32; d]);
        Ok(())
    });
}

#[test]
fn pmap_over_processes_rejects_unsupported_arguments() {
    everywhere(|| {
        let d = each();
        fails(pmap(|x: Array| x).call(&ones([d + 1, 2])), &[&format!("over this process's {d} devices")]);
        fails(
            jit(|x: Array| pmap(|x: Array| x * 2).call(&x)).call(&ones(d)),
            &["takes each process's own arrays", "pmap(grad(f))"],
        );
        Ok(())
    });
}

#[test]
fn pmap_donates() {
    everywhere(|| {
        let d = each();
        let f = pmap(|x: Array| x + 1).donate_argnums([0]);
        let x = f.call(&ones([d, 4]))?;
        let y = f.call(&x)?;
        assert!(x.is_deleted());
        assert_eq!(y.to_vec::<f32>()?, vec![3.0; 4 * d]);
        Ok(())
    });
}

#[test]
fn compiled_ahead_of_time_pmap_takes_global_arrays() {
    everywhere(|| {
        let f = pmap(|x: Array| psum(x, "i")).axis_name("i");
        let compiled = f.lower(shape_dtype_struct([device_count()], DType::F32))?.compile()?;
        fails(compiled.call(&ones(each())), &["Argument types differ", "host_local_array_to_global_array"]);
        let mesh = make_mesh([("i", device_count())])?;
        let global = shardax::multihost::host_local_array_to_global_array(&ones(each()), &mesh, P!["i"])?;
        let y = compiled.call(&global)?;
        let local = shardax::multihost::global_array_to_host_local_array(&y, &mesh, P!["i"])?;
        assert_eq!(local.to_vec::<f32>()?, vec![device_count() as f32; each()]);
        Ok(())
    });
}
