//! Arrays over the devices of several processes.

use crate::*;

#[test]
fn every_process_sees_all_devices() {
    everywhere(|| {
        let (all, own) = (devices()?, local_devices()?);
        assert_eq!((all.len(), own.len()), (device_count(), local_device_count()));
        assert_eq!(all.iter().map(Device::id).collect::<Vec<_>>(), (0..device_count()).collect::<Vec<_>>());
        // Process by process.
        let first = process_index() * each();
        assert_eq!(own, all[first..first + each()]);
        assert!(own.iter().all(|d| d.is_addressable() && d.process_index() == process_index()));
        assert!(shardax::distributed::is_initialized());

        // Each host has as many shards of a global array as devices.
        let x = counted(2 * device_count())?;
        assert_eq!(x.shape(), [2 * device_count()]);
        assert!(!x.is_fully_addressable());
        let shards = x.addressable_shards()?;
        assert_eq!(shards.len(), each());
        for (shard, device) in shards.iter().zip(&own) {
            assert_eq!(shard.device, *device);
            assert_eq!(shard.data.to_vec::<f32>()?, [2.0 * device.id() as f32, 2.0 * device.id() as f32 + 1.0]);
        }
        let elsewhere = x.global_shards()?.iter().filter(|shard| shard.data.is_none()).count();
        assert_eq!(elsewhere, device_count() - each());
        let local = arange(0..4);
        assert!(local.is_fully_addressable() && local.devices()? == own[..1]);
        fails(shardax::distributed::initialize(), &["should only be called once"]);
        Ok(())
    });
}

/// Whose index, copy and shape of shards are what each of five specs says.
///
/// JAX: `test_array_2d_shard`.
#[test]
fn index_copy_and_shape_of_shards() {
    everywhere(|| {
        let mesh = grid()?;
        let (p, d) = (process_count(), each());
        let shape = [4 * p, 2 * d];
        for (spec, parts) in [
            (P!["p", "d"], (p, d)),
            (P!["d", "p"], (d, p)),
            (P![("p", "d")], (p * d, 1)),
            (P!["p"], (p, 1)),
            (P![], (1, 1)),
        ] {
            let shape = [shape[0] * d, shape[1] * p];
            let sharding = NamedSharding::new(&mesh, spec.clone());
            // The elements state their global row and column.
            let x = make_array_from_callback(shape, DType::I32, &sharding, |index| {
                let rows: Vec<i32> =
                    index[0].clone().flat_map(|r| index[1].clone().map(move |c| (r * 1000 + c) as i32)).collect();
                Array::from_slice(&rows, &[index[0].len(), index[1].len()])
            })?;
            let part = [shape[0] / parts.0, shape[1] / parts.1];
            let replicas = device_count() / (parts.0 * parts.1);
            let shards = x.global_shards()?;
            for shard in x.addressable_shards()? {
                assert_eq!(shard.data.shape(), part, "{spec}");
                let first = (shard.index[0].start * 1000 + shard.index[1].start) as i32;
                assert_eq!(shard.data.get((0, 0)).item::<i32>()?, first, "{spec}");
                assert!(shard.replica_id < replicas);
                // Replicas are numbered in the order of the devices.
                let before =
                    shards.iter().take_while(|s| s.device != shard.device).filter(|s| s.index == shard.index).count();
                assert_eq!(shard.replica_id, before, "{spec}");
            }
        }
        Ok(())
    });
}

/// JAX: `test_multi_process_to_py`.
#[test]
fn only_replicated_arrays_are_read() {
    everywhere(|| {
        let x = counted(2 * device_count())?;
        fails(
            x.to_vec::<f32>(),
            &["Fetching value for `Array` that spans non-addressable", "process_allgather", "addressable_shards"],
        );
        fails(x.get(0).item::<f64>(), &["float64"]);
        assert_eq!(read(&x)?[..3], [0.0, 1.0, 2.0]);
        // What every process has whole can be read.
        let replicated = device_put(&arange(0..4), &NamedSharding::new(&line()?, P![]))?;
        assert!(replicated.is_fully_replicated() && !replicated.is_fully_addressable());
        assert_eq!(replicated.to_vec::<i32>()?, [0, 1, 2, 3]);
        Ok(())
    });
}

/// JAX: `test_multi_process_repr`.
#[test]
fn global_arrays_print_shape_and_dtype() {
    everywhere(|| {
        let x = counted(2 * device_count())?;
        let shape = format!("Array(shape=[{}], dtype=float32)", 2 * device_count());
        assert_eq!((format!("{x:?}"), format!("{x}")), (shape.clone(), shape));
        let replicated = device_put(&arange(0..3), &NamedSharding::new(&line()?, P![]))?;
        assert_eq!(format!("{replicated:?}"), "Array([0 1 2], dtype=int32)");
        Ok(())
    });
}

/// JAX: `test_device_put_python_scalar_different_error`.
#[test]
fn device_put_of_different_scalars_is_an_error() {
    everywhere(|| {
        let replicated = NamedSharding::new(&line()?, P![]);
        let rank = Array::from(process_index() as i32);
        fails(device_put(&rank, &replicated), &["int32[] passed to device_put is not the same on each process"]);
        assert_eq!(device_put(&Array::from(7), &replicated)?.item::<i32>()?, 7);
        Ok(())
    });
}

#[test]
fn layouts_over_processes_are_rejected() {
    everywhere(|| {
        let split = NamedSharding::new(&line()?, P!["x"]);
        let x = make_array_from_callback([8, 3], DType::F32, &split, |index| Ok(zeros([index[0].len(), 3])))?;
        let columns = shardax::Format::new(shardax::Layout::new([1, 0]), &split);
        let says = ["layouts of arrays over devices of several processes are not supported"];
        fails(device_put(&x, &columns), &says);
        fails(jit(|x: Array| x * 2.0).out_shardings(&columns).call(&x), &says);
        fails(jit(|x: Array| x.t()).out_shardings(shardax::Format::from(shardax::Layout::AUTO)).call(&x), &says);
        // This process's own devices have them.
        let format = shardax::Format::new(shardax::Layout::new([1, 0]), &local_devices()?[0]);
        let y = device_put(&ones([2, 3]), &format)?;
        assert_eq!((y.format()?, y.to_vec::<f32>()?), (format, vec![1.0; 6]));
        Ok(())
    });
}

/// JAX: `test_device_put_committed_array_error`.
#[test]
fn local_array_to_a_global_sharding_is_an_error() {
    everywhere(|| {
        let local = device_put(&arange(0..8), &local_devices()?[0])?;
        let split = NamedSharding::new(&line()?, P!["x"]);
        fails(device_put(&local, &split), &["represents addressable devices", "make_array_from_process_local_data"]);
        Ok(())
    });
}

#[test]
fn process_local_data_is_stitched() {
    everywhere(|| {
        // Each process has its share of the data set.
        let local_batch = 2 * each();
        let offset = process_index() * local_batch;
        let local = arange(offset as i32..(offset + local_batch) as i32).astype(DType::F32).reshape([local_batch, 1]);
        let sharding = NamedSharding::new(&line()?, P!["x"]);
        let batch = make_array_from_process_local_data(&sharding, &local)?;
        assert_eq!(batch.shape(), [process_count() * local_batch, 1]);
        assert!(!batch.is_fully_addressable());
        assert_eq!(read(&batch)?, (0..2 * device_count()).map(|i| i as f32).collect::<Vec<_>>());
        // A mean of the whole is one of all processes' data.
        let mean = jit(|x: Array| x.mean(..)).call(&batch)?;
        assert_eq!(mean.item::<f32>()?, (2 * device_count() - 1) as f32 / 2.0);
        Ok(())
    });
}

#[test]
fn local_data_of_another_shape_is_an_error_there_alone() {
    everywhere(|| {
        let sharding = NamedSharding::new(&line()?, P!["x"]);
        let global_shape = [Some(4 * device_count()), None];
        let odd = process_index() == process_count() - 1;
        let rows = 4 * each() - usize::from(odd);
        let result = make_array_from_process_local_data_of_shape(&sharding, &ones([rows, 3]), global_shape);
        assert_eq!(result.is_err(), odd);
        if odd {
            fails(
                result,
                &["Invalid host data", "In dimension 0", &format!("Process addresses {} elements", 4 * each())],
            );
        }
        Ok(())
    });
}

#[test]
fn shapes_follow_from_shardings() {
    everywhere(|| {
        let (p, d, mesh) = (process_count(), each(), grid()?);
        fn stitch(spec: PartitionSpec, shape: [usize; 2], mesh: &Mesh) -> Result<Array> {
            make_array_from_process_local_data(NamedSharding::new(mesh, spec), &ones(shape))
        }
        let s = 4 * d;
        assert_eq!(stitch(P!["p", "d"], [s, s], &mesh)?.shape(), [p * s, s]);
        assert_eq!(stitch(P!["d", "p"], [s, s], &mesh)?.shape(), [s, p * s]);
        assert_eq!(stitch(P![], [s, s], &mesh)?.shape(), [s, s]);
        assert_eq!(stitch(P![("p", "d")], [s, s], &mesh)?.shape(), [p * s, s]);
        // All of a dimension may be given: each process takes its own.
        let sharding = NamedSharding::new(&mesh, P!["p"]);
        let values = arange(0..(2 * p) as i32);
        let x = make_array_from_process_local_data_of_shape(&sharding, &values, [Some(2 * p)])?;
        let rank = 2 * process_index() as i32;
        assert_eq!(x.addressable_data(0)?.to_vec::<i32>()?, [rank, rank + 1]);
        // Processes whose parts overlap in some other way say nothing of the whole.
        if d == 2 {
            let mut order = devices()?;
            order.swap(1, 2);
            order.swap(0, 1);
            order.rotate_left(1);
            let mixed = Mesh::new(order[..4].to_vec(), [("a", 2), ("b", 2)])?;
            let spread = NamedSharding::new(&mixed, P!["a", "b"]);
            if process_index() < 2 {
                let result = make_array_from_process_local_data(&spread, &ones([4, 4]));
                assert!(result.is_ok() || result.is_err_and(|e| e.to_string().contains("non-uniform sharding")));
            }
        }
        Ok(())
    });
}

#[test]
fn arrays_come_from_callbacks_and_parts() {
    everywhere(|| {
        let sharding = NamedSharding::new(&line()?, P!["x"]);
        let parts: Vec<Array> =
            local_devices()?.iter().map(|d| device_put(&array([d.id() as f32]), d)).collect::<Result<_>>()?;
        let x = make_array_from_single_device_arrays([device_count()], &sharding, &parts)?;
        assert_eq!(read(&x)?, (0..device_count()).map(|i| i as f32).collect::<Vec<_>>());
        let more = [parts.clone(), parts].concat();
        fails(
            make_array_from_single_device_arrays([device_count()], &sharding, &more),
            &[&format!("Expected {} per-device arrays", each())],
        );
        Ok(())
    });
}

#[test]
fn arrays_are_resharded() {
    everywhere(|| {
        let (mesh, n) = (grid()?, device_count());
        let x = counted(n * n)?;
        let rows = NamedSharding::new(&mesh, P![("p", "d")]);
        let over_hosts = NamedSharding::new(&mesh, P!["p"]);
        let replicated = NamedSharding::new(&mesh, P![]);
        let y = device_put(&device_put(&x, &over_hosts)?, &replicated)?;
        let expected: Vec<f32> = (0..n * n).map(|i| i as f32).collect();
        assert_eq!(y.to_vec::<f32>()?, expected);
        // And split again, without a word to the others.
        assert_eq!(read(&device_put(&y, &rows)?)?, expected);
        // Each part is on a separate device.
        let local = device_put(&y, &local_devices()?[0])?;
        assert_eq!(local.to_vec::<f32>()?, expected);
        let mut order = devices()?;
        order.reverse();
        let other_sharding = NamedSharding::new(&Mesh::new(order, [("x", n)])?, P!["x"]);
        fails(device_put(&x, &other_sharding), &["should have the same set of devices"]);
        Ok(())
    });
}
