//! Arrays created from parts on their devices, and stacks of parts.

use shardax::prelude::*;

use super::*;

/// A callback that returns the same part for every index.
fn constant_part(n: i32) -> impl Fn(&shardax::sharding::Index) -> Result<Array> {
    move |_: &shardax::sharding::Index| Ok(arange(0..n))
}

#[test]
fn callbacks_give_parts() -> Result<()> {
    let (split, whole) = shardings()?;
    let x = make_array_from_callback([5], DType::I32, &whole, constant_part(5))?;
    assert_eq!((ints(&x), x.is_fully_replicated(), x.committed()), ((0..5).collect(), true, true));
    let empty = make_array_from_callback([0, 3], DType::F32, &split, |_| Ok(zeros([0, 3])))?;
    assert_eq!(empty.shape(), [0, 3]);
    fails(
        make_array_from_callback([8], DType::I32, &split, constant_part(3)),
        ErrorKind::Value,
        &["Expected shard shape [1] doesn't match the single device array shape [3]", "int32[8]", "P('x',)", "[0..1]"],
    );
    fails(
        make_array_from_callback([8], DType::I32, &split, |_| Ok(ones(1))),
        ErrorKind::Type,
        &["must match the dtype of the addressable shards", "dtype=int32", "dtype=float32"],
    );
    let indivisible = make_array_from_callback([9], DType::I32, &split, constant_part(1));
    fails(indivisible, ErrorKind::Indivisible, &["partitioned 8 times, but the dimension size is 9"]);
    // What the callback could not do, at the line where it could not.
    let line = line!() + 1;
    let error = make_array_from_callback([8], DType::I32, &split, |_| Ok(ones(3) + ones(4))).err().expect("shapes");
    assert_eq!(error.location().map(|l| l.line()), Some(line));
    Ok(())
}

#[test]
fn parts_make_an_array() -> Result<()> {
    let (split, _) = shardings()?;
    let all_devices = devices()?;
    let part = |d: usize, x: Array| device_put(&x, &all_devices[d]);
    let parts = || (0..8).map(|d| part(d, array([d as i32]))).collect::<Result<Vec<_>>>();
    let make = |parts: &[Array]| make_array_from_single_device_arrays([8], &split, parts);

    // In any order, and without a copy.
    let mut mixed = parts()?;
    mixed.reverse();
    mixed.swap(1, 5);
    let x = make(&mixed)?;
    assert_eq!((ints(&x), x.committed()), ((0..8).collect(), true));
    assert!(is_same_memory(x, &mixed[3])?);

    let with = |d: usize, x: Array| -> Result<Vec<Array>> {
        let mut list = parts()?;
        list[d] = x;
        Ok(list)
    };
    let eight = "Expected 8 per-device arrays (this is how many devices are addressable by the sharding";
    fails(make(&parts()?[1..]), ErrorKind::Value, &[eight, "but got 7"]);
    fails(make(&[]), ErrorKind::Value, &[eight, "but got 0"]);
    fails(
        make(&with(0, part(1, array([5]))?)?),
        ErrorKind::Value,
        &["from distinct devices, but got device IDs [1, 1, 2, 3, 4, 5, 6, 7]"],
    );
    fails(
        make(&with(3, device_put(&arange(0..8), &split)?)?),
        ErrorKind::Value,
        &["must have one shard each", "int32[8] had 8 shards"],
    );
    let shape = "Expected shard shape [1] doesn't match the single device array shape [2]";
    fails(make(&with(7, part(7, arange(0..2))?)?), ErrorKind::Value, &[shape]);
    fails(
        make_array_from_single_device_arrays([16], &split, &parts()?),
        ErrorKind::Value,
        &["Expected shard shape [2] doesn't match the single device array shape [1]", "int32[16]"],
    );
    fails(
        make(&with(7, part(7, ones(1))?)?),
        ErrorKind::Type,
        &["must have matching dtypes. Got float32, expected int32"],
    );
    let few = NamedSharding::new(&make_mesh([("x", 4)])?.auto(), P!["x"]);
    fails(
        make_array_from_single_device_arrays([4], &few, &parts()?[2..6]),
        ErrorKind::Value,
        &["Sharding contains devices [0, 1] that are not present", "contain devices [4, 5] that are not present"],
    );
    fails(
        make_array_from_single_device_arrays([9], &split, &parts()?),
        ErrorKind::Indivisible,
        &["the dimension size is 9"],
    );
    let gone = part(2, array([2]))?;
    gone.delete()?;
    fails(make(&with(2, gone)?), ErrorKind::Deleted, &["Array has been deleted"]);
    Ok(())
}

#[test]
fn the_part_of_one_process_is_the_whole() -> Result<()> {
    let (split, whole) = shardings()?;
    let x = arange(0..16);
    let result = make_array_from_process_local_data(&split, &x)?;
    assert_eq!(
        (result.shape(), spec(&result)?, result.committed(), ints(&result)),
        (&[16][..], P!["x"], true, ints(&x))
    );
    assert_eq!(make_array_from_process_local_data(&whole, &arange(0..5))?.shape(), [5]);
    fn of_shape(shape: &[Option<usize>], split: &NamedSharding, x: &Array) -> Result<Array> {
        make_array_from_process_local_data_of_shape(split, x, shape)
    }
    assert_eq!(of_shape(&[Some(16)], &split, &x)?.shape(), [16]);
    assert_eq!(of_shape(&[None], &split, &x)?.shape(), [16]);
    let wrong = "the global shape must be unset or equal to the shape of the local data";
    fails(of_shape(&[Some(32)], &split, &x), ErrorKind::Value, &[wrong, "Got the global shape [32]", "int32[16]"]);
    fails(of_shape(&[Some(8)], &split, &x), ErrorKind::Value, &[wrong, "[8]"]);
    fails(of_shape(&[None, Some(1)], &split, &x), ErrorKind::Value, &[wrong, "[None, 1]"]);
    fails(of_shape(&[], &split, &x), ErrorKind::Value, &[wrong, "[]"]);
    fails(make_array_from_process_local_data(&split, &arange(0..5)), ErrorKind::Indivisible, &["size is 5"]);
    Ok(())
}

#[test]
fn stacks_for_devices_are_n_times_the_memory_one_copy_on_each() -> Result<()> {
    setup();
    let all_devices = devices()?;
    let x = arange(0..3);
    let copies = device_put_replicated(&x, &all_devices)?;
    assert_eq!((copies.shape(), copies.size()), (&[8, 3][..], 8 * x.size()));
    let rows: Vec<Array> =
        (0..8).map(|d| device_put(&arange(d..d + 3), &all_devices[7 - d as usize])).collect::<Result<_>>()?;
    let stacked = device_put_sharded(&rows, &all_devices)?;
    for (d, (copy, row)) in copies.addressable_shards()?.iter().zip(stacked.addressable_shards()?).enumerate() {
        assert_eq!((&copy.device, &row.device), (&all_devices[d], &all_devices[d]));
        assert_eq!((copy.data.shape(), ints(&copy.data)), (&[1, 3][..], vec![0, 1, 2]));
        assert_eq!(ints(&row.data), (d as i32..d as i32 + 3).collect::<Vec<_>>());
    }
    // The fix: replicated without the axis is one logical array, of the size that it had.
    let replicated = device_put(&x, &NamedSharding::new(&make_mesh([("x", 8)])?.auto(), P![]))?;
    assert_eq!((replicated.shape(), replicated.is_fully_replicated()), (&[3][..], true));

    fails(device_put_sharded(&rows[..3], &all_devices), ErrorKind::Value, &["got 3 values for 8 devices"]);
    fails(device_put_sharded::<Array>(&[], &[]), ErrorKind::Value, &["got 0 values"]);
    fails(device_put_replicated(&x, &[]), ErrorKind::Value, &["must be a non-empty sequence"]);
    let mixed = [(arange(0..3), ones(2)), (arange(0..3), ones(3))];
    fails(
        device_put_sharded(&mixed, &all_devices[..2]),
        ErrorKind::Value,
        &["must have consistent shape and dtype", "value[1] is float32[2] for device 0 and float32[3] for device 1"],
    );
    fails(
        device_put_sharded(&[ones(2), arange(0..2)], &all_devices[..2]),
        ErrorKind::Value,
        &["float32[2]", "int32[2]"],
    );
    fails(unreplicate(&array(1.0f32)), ErrorKind::Index, &[]);
    Ok(())
}

#[test]
fn host_data_is_stacked_on_the_host_device_data_on_its_devices() -> Result<()> {
    let (split, whole) = shardings()?;
    let all_devices = devices()?;
    // The rows of the host are one slice, whose parts are copied to the devices.
    let rows: Vec<Vec<i32>> = (0..8).map(|i| (i * 3..i * 3 + 3).collect()).collect();
    let x = Array::from_slice_on(&rows.concat(), &[8, 3], &split)?;
    assert_eq!((spec(&x)?, x.committed()), (P!["x"], true));
    for (row, shard) in rows.iter().zip(x.addressable_shards()?) {
        assert_eq!(*row, ints(&shard.data));
    }
    assert_eq!(Array::from_slice_on(&[1, 2], &[2], &all_devices[6])?.devices()?, all_devices[6..7]);
    assert!(Array::from_slice_on(&[1, 2], &[2], &whole)?.is_fully_replicated());
    fails(Array::from_slice_on(&[0; 9], &[9], &split), ErrorKind::Indivisible, &["the dimension size is 9"]);
    fails(Array::from_slice_on(&[0; 9], &[8], &split), ErrorKind::Value, &["has 8 elements, but 9 were given"]);

    // Arrays on a device are stacked there, and split arrays stay split, so nothing moves.
    let parts = (0..4).map(|i| device_put(&arange(i..i + 3), &all_devices[5])).collect::<Result<Vec<_>>>()?;
    let stacked = stack(&parts, 0);
    assert_eq!((stacked.devices()?, ints(&stacked)[3..6].to_vec()), (all_devices[5..6].to_vec(), vec![1, 2, 3]));
    let parts = (0..2).map(|i| device_put(&arange(i..i + 8), &split)).collect::<Result<Vec<_>>>()?;
    let stacked = stack(&parts, 0);
    assert_eq!((spec(&stacked)?, stacked.committed()), (P![None, "x"], true));
    assert_eq!(ints(&stacked.addressable_data(2)?), [2, 3]);
    let compiled = jit(|a: Array, b: Array| stack(&[a, b], 0)).lower((&parts[0], &parts[1]))?.compile()?;
    assert!(compiled.collectives()?.is_empty());
    Ok(())
}

#[test]
fn that_entries_are_equal_is_not_known_to_the_array() -> Result<()> {
    let (split, whole) = shardings()?;
    let communicates =
        |x: &Array| -> Result<bool> { Ok(!jit(|x: Array| x.get(0)).lower(x)?.compile()?.collectives()?.is_empty()) };
    // The same values everywhere, in two layouts: one says so, the other does not.
    let copies = device_put_replicated(&ones(5), &devices()?)?;
    let rows = copies.addressable_shards()?.iter().map(|s| s.data.to_vec::<f32>()).collect::<Result<Vec<_>>>()?;
    assert!(rows.iter().all(|row| *row == rows[0]));
    assert!(!copies.is_fully_replicated() && communicates(&copies)?);
    let replicated = device_put(&ones([8, 5]), &whole)?;
    assert!(replicated.is_fully_replicated() && !communicates(&replicated)?);
    // Nor is it found out: a pmap that returns equal values returns one for each device.
    let sums = pmap(|x: Array| psum(x, "x")).axis_name("x").call(arange(0..8))?;
    assert_eq!((ints(&sums), spec(&sums)?, sums.is_fully_replicated()), (vec![28; 8], P!["x"], false));
    assert!(communicates(&device_put(&sums, &split)?)?);
    Ok(())
}

#[test]
fn unreplicating_by_an_index_communicates_and_unreplicate_does_not() -> Result<()> {
    shardings()?;
    let state = (ones([5, 2]), vec![arange(0..5), array(3)]);
    let stacked = replicate(&state)?;
    // tree::map → get → a slice of the whole array → the devices have to be sent what the first one has.
    let by_index = jit(|(a, list): (Array, Vec<Array>)| tree::map(|x| x.get(0), (a, list)));
    let lowered = by_index.lower(stacked.clone())?;
    assert!(lowered.program().to_string().contains("slice"), "{}", lowered.program());
    assert!(!lowered.as_text().contains("all_reduce") && !lowered.as_text().contains("all_gather"));
    let compiled = lowered.compile()?;
    assert!(!compiled.collectives()?.is_empty(), "{}", compiled.as_text()?);
    let (a, list) = compiled.call(stacked.clone())?;
    assert_eq!((a.devices()?.len(), list[0].devices()?.len()), (8, 8));

    let (b, others) = unreplicate(&stacked)?;
    assert_eq!((b.to_vec::<f32>()?, ints(&others[0])), (a.to_vec::<f32>()?, ints(&list[0])));
    for x in [&b, &others[0], &others[1]] {
        assert_eq!(x.devices()?, devices()?[..1], "the first device has it already");
    }
    Ok(())
}
