//! `multihost`: values that go from process to process, and barriers.

use std::time::{Duration, Instant};

use shardax::ErrorKind;
use shardax::distributed::wait_at_barrier;
use shardax::multihost::*;

use crate::*;

/// JAX: `test_process_allgather_stacked`.
#[test]
fn process_allgather_stacks_one_entry_per_process() {
    everywhere(|| {
        let rank = process_index() as i32;
        let (x, scalar, flag) = process_allgather(&(array([rank, rank + 10]), Array::from(rank), array([rank == 1])))?;
        assert_eq!((x.shape(), scalar.shape()), (&[process_count(), 2][..], &[process_count()][..]));
        assert_eq!(x.to_vec::<i32>()?, (0..process_count() as i32).flat_map(|p| [p, p + 10]).collect::<Vec<_>>());
        assert_eq!(scalar.to_vec::<i32>()?, (0..process_count() as i32).collect::<Vec<_>>());
        assert_eq!(flag.to_vec::<bool>()?, (0..process_count()).map(|p| p == 1).collect::<Vec<_>>());
        fails(
            process_allgather(&counted(device_count())?),
            &["process_allgather cannot stack global non-fully-addressable arrays"],
        );
        Ok(())
    });
}

#[test]
fn gathered_one_after_the_other() {
    everywhere(|| {
        let rank = process_index() as f32;
        let x = process_allgather_tiled(&array([[rank, -rank]]))?;
        assert_eq!(x.shape(), [process_count(), 2]);
        assert_eq!(x.to_vec::<f32>()?, (0..process_count()).flat_map(|p| [p as f32, -(p as f32)]).collect::<Vec<_>>());
        assert_eq!(process_allgather_tiled(&Array::from(rank))?.shape(), [process_count()]);
        let expected = process_allgather_tiled(&counted(2 * device_count())?)?;
        assert!(expected.is_fully_addressable());
        assert_eq!(expected.to_vec::<f32>()?, (0..2 * device_count()).map(|i| i as f32).collect::<Vec<_>>());
        Ok(())
    });
}

/// JAX: `test_broadcast_one_to_all`.
#[test]
fn process_0_broadcasts_a_tree() {
    everywhere(|| {
        let rank = process_index();
        let tree = (array([rank as f32, -0.0]), array([rank == 0]), array([rank as u8 + 200]));
        let (x, flag, byte) = broadcast_one_to_all(&tree)?;
        assert_eq!(x.to_vec::<f32>()?.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0, 0x8000_0000]);
        assert_eq!((flag.to_vec::<bool>()?, byte.to_vec::<u8>()?), (vec![true], vec![200]));
        let last = process_count() - 1;
        assert_eq!(broadcast_one_to_all_from(&array([rank as i32]), rank == last)?.to_vec::<i32>()?, [last as i32]);
        fails(broadcast_one_to_all_from(&array([1]), true), &["needs one source"]);
        Ok(())
    });
}

/// JAX: `test_sync_global_devices_error`.
#[test]
fn different_barrier_names_fail_on_all_processes() {
    everywhere(|| {
        sync_global_devices("all here")?;
        let name = format!("a{}", process_index());
        fails(
            sync_global_devices(&name),
            &[&format!("sync_global_devices name mismatch ('{name}')"), "AssertionError"],
        );
        sync_global_devices("and again")
    });
}

/// JAX: `test_host_local_array_to_global_array_same_sharding_array`.
#[test]
fn array_with_the_right_sharding_is_not_copied() {
    everywhere(|| {
        let mesh = grid()?;
        let local_mesh = mesh.local_mesh()?;
        assert_eq!((local_mesh.axis_size("p"), local_mesh.axis_size("d")), (Some(1), Some(each())));
        let local = device_put(&arange(0..2 * each() as i32), &NamedSharding::new(&local_mesh, P![("p", "d")]))?;
        let global = host_local_array_to_global_array(&local, &mesh, P![("p", "d")])?;
        assert_eq!(global.shape(), [2 * device_count()]);
        // The same memory: freed together.
        global.delete()?;
        assert!(local.is_deleted());
        let spec = P!["x"];
        let global = counted(device_count())?;
        let same = host_local_array_to_global_array(&global, &line()?, &spec)?;
        assert_eq!(same.sharding()?, global.sharding()?);
        Ok(())
    });
}

/// JAX: `test_host_local_to_global_locally_replicated`.
#[test]
fn split_over_hosts_and_replicated_within() {
    everywhere(|| {
        let rank = process_index() as f32;
        let global = host_local_array_to_global_array(&array([rank, rank + 0.5]), &grid()?, P!["p"])?;
        assert_eq!(global.shape(), [2 * process_count()]);
        for shard in global.addressable_shards()? {
            assert_eq!(shard.data.to_vec::<f32>()?, [rank, rank + 0.5]);
        }
        assert_eq!(read(&global)?, (0..process_count()).flat_map(|p| [p as f32, p as f32 + 0.5]).collect::<Vec<_>>());
        Ok(())
    });
}

/// JAX: `test_global_array_to_host_local_array`.
#[test]
fn local_part_of_a_global_array() {
    everywhere(|| {
        let mesh = grid()?;
        let x = counted(4 * device_count())?;
        let local = global_array_to_host_local_array(&x, &mesh, P!["p"])?;
        assert_eq!((local.shape(), local.is_fully_addressable()), (&[4 * each()][..], true));
        let first = (process_index() * 4 * each()) as f32;
        assert_eq!(local.get(0).item::<f32>()?, first);
        // And the way back, for trees with a spec for each part.
        let tree = (local, arange(0..3));
        let back = host_local_array_to_global_array(&tree, &mesh, (P!["p"], P![]))?;
        assert_eq!(read(&back.0)?, read(&x)?);
        assert_eq!(back.1.to_vec::<i32>()?, [0, 1, 2]);
        if each() == 2 {
            let mut order = devices()?;
            order.rotate_left(1);
            let odd = Mesh::new(order, [("x", device_count())])?;
            let result = host_local_array_to_global_array(&ones(2), &odd, P!["x"]);
            assert_eq!(result.is_err(), process_index() == 0);
            if process_index() == 0 {
                fails(result, &["must form a contiguous subcube of the global device mesh"]);
            }
        }
        Ok(())
    });
}

/// JAX: `test_host_local_array_to_global_array_none_error`.
#[test]
fn conversion_without_a_spec_is_an_error() {
    everywhere(|| {
        let (mesh, x) = (line()?, ones(device_count()));
        let none: Option<PartitionSpec> = None;
        fails(
            host_local_array_to_global_array(&x, &mesh, none.clone()),
            &["`None` is not a valid input to the pspecs argument"],
        );
        fails(
            global_array_to_host_local_array(&x, &mesh, none),
            &["`None` is not a valid input to the pspecs argument"],
        );
        Ok(())
    });
}

#[test]
fn unequal_trees_are_reported() {
    everywhere(|| {
        assert_equal(&(arange(0..3), Array::from(1.0f32)), "they are equal")?;
        let rank = array([1, i32::from(process_index() == 1)]);
        fails(assert_equal(&(ones(2), rank), "the seeds differ"), &["the seeds differ. Expected: [[1 0]\n [1 1]"]);
        Ok(())
    });
}

/// JAX: `test_one_participant_never_calls_fails`.
#[test]
fn missing_process_ends_the_barrier() {
    everywhere(|| {
        wait_at_barrier("all", Duration::from_secs(30))?;
        if process_index() != 1 {
            let begun = Instant::now();
            let error = wait_at_barrier("all but one", Duration::from_millis(500)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            assert!(begun.elapsed() < Duration::from_secs(5));
            fails(
                Err::<(), _>(error),
                &["DEADLINE_EXCEEDED: Barrier timed out", "missing: processes [1]", "\"all but one\""],
            );
        }
        wait_at_barrier("all", Duration::from_secs(30))
    });
}
