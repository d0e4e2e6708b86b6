//! `device_put` and its options, shards of this process and of all processes, arrays created from parts.

#[path = "../common/mod.rs"]
mod common;
mod default_device;
mod formats;
mod layouts;
mod memory;
mod parts;

use std::collections::BTreeMap;

use common::setup;
use common::values::{ints, spec};
use shardax::prelude::*;
use shardax::sharding::DimSpec;
use shardax::{Error, ErrorKind, ShardingLike};

/// Split over eight devices, and whole on each.
fn shardings() -> Result<(NamedSharding, NamedSharding)> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    Ok((NamedSharding::new(&mesh, P!["x"]), NamedSharding::new(&mesh, P![])))
}

#[track_caller]
fn fails<T>(result: Result<T>, kind: ErrorKind, says: &[&str]) -> Error {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    for words in says {
        assert!(error.to_string().contains(words), "{words:?} is not in: {error}");
    }
    assert_eq!(error.location().map(|l| l.file()), Some(std::panic::Location::caller().file()), "{error}");
    assert!(error.help_text().is_some(), "{error}");
    error
}

/// Returns true if both arrays are in the same memory: deleting one deletes the other.
fn is_same_memory(a: Array, b: &Array) -> Result<bool> {
    assert!(!a.is_deleted() && !b.is_deleted());
    a.delete()?;
    Ok(b.is_deleted())
}

#[test]
fn to_a_device_a_sharding_a_spec_or_nowhere() -> Result<()> {
    let (split, _) = shardings()?;
    let all_devices = devices()?;
    let x = arange(0..16);
    assert!(!x.committed());
    let moved = device_put(&x, &all_devices[3])?;
    assert_eq!((moved.devices()?, moved.committed()), (all_devices[3..4].to_vec(), true));
    assert_eq!(spec(&device_put(&x, &split)?)?, P!["x"]);
    assert_eq!(spec(&device_put(&x, Sharding::from(&split))?)?, P!["x"]);
    assert_eq!(device_put(&x, SingleDeviceSharding::new(&all_devices[1]))?.devices()?, all_devices[1..2]);
    fails(device_put(&x, P!["x"]), ErrorKind::Value, &["device_put requires a non-empty mesh", "P('x',)"]);
    let _mesh = set_mesh(split.mesh());
    assert_eq!(spec(&device_put(&x, P!["x"])?)?, P!["x"]);

    // Without a destination, a placed array keeps its devices, and an uncommitted array uses the default device.
    assert!(!device_put(&x, None)?.committed());
    assert_eq!(device_put(&moved, None)?.devices()?, all_devices[3..4]);
    let number = device_put(&Array::from(7), None)?;
    assert_eq!((number.devices()?, number.committed(), number.item::<i32>()?), (all_devices[..1].to_vec(), false, 7));
    assert!(device_put(&Array::from(7), &all_devices[0])?.committed());
    Ok(())
}

#[test]
fn device_put_does_not_copy_arrays_in_place() -> Result<()> {
    let (split, whole) = shardings()?;
    let all_devices = devices()?;
    let x = device_put(&arange(0..16), &split)?;
    assert!(is_same_memory(device_put(&x, &split)?, &x)?);
    // Also where the array was not committed, and where another sharding means the same.
    let x = arange(0..16);
    let y = device_put(&x, &all_devices[0])?;
    assert!(!x.committed() && y.committed());
    assert!(is_same_memory(y, &x)?);
    let x = device_put(&arange(0..16), &split)?;
    assert!(is_same_memory(device_put(&x, &NamedSharding::new(split.mesh(), P![("x",)]))?, &x)?);
    // One device's copy of a replicated array.
    let x = device_put(&arange(0..16), &whole)?;
    assert!(is_same_memory(device_put(&x, &all_devices[5])?, &x)?);
    // Another layout is another array.
    let x = device_put(&arange(0..16), &split)?;
    assert!(!is_same_memory(device_put(&x, &whole)?, &x)?);
    Ok(())
}

/// A module whose fields are named in prefixes.
#[derive(Clone, Tree)]
struct Dense {
    w: Array,
    b: Option<Array>,
}

/// Reads the bytes of arrays.
fn read(tree: &[Array]) -> Result<Vec<Vec<u8>>> {
    tree.iter().map(Array::to_bytes).collect::<Result<Vec<_>>>()
}

/// Narrow types are packed on devices, so that on CPU too they are copied to the host.
#[test]
fn copies_to_the_host_begin_before_they_are_read() -> Result<()> {
    let (split, whole) = shardings()?;
    let tree: Vec<Array> = (0..20).map(|i| ((arange(0..64) + i) % 8).astype(DType::I4)).collect();
    let want: Vec<Vec<u8>> = (0..20).map(|i| (0..64).map(|j| (j + i) % 8).collect()).collect();
    let placed = device_put(&tree, &split)?;
    assert_eq!((read(&tree)?, read(&placed)?), (want.clone(), want.clone()));
    assert_eq!(read(&device_put(&placed, &whole)?)?, want);
    assert_eq!(read(&device_get(&placed)?)?, want);
    for x in placed.iter().chain(&placed) {
        x.copy_to_host_async()?;
    }
    assert_eq!(read(&placed)?, want);
    array(2.5f32).copy_to_host_async()?;
    let x = &placed[3];
    x.copy_to_host_async()?;
    x.delete()?;
    fails(x.copy_to_host_async(), ErrorKind::Deleted, &["Array has been deleted with shape=int4[64]"]);
    let inside = jit(|x: Array| x.copy_to_host_async().map(|()| x)).call(ones(3));
    fails(inside, ErrorKind::Type, &["the value of a traced array of type float32[3] is not known"]);
    Ok(())
}

fn assert_message(error: Error, words: &str) {
    assert!(error.to_string().contains(words), "{words:?} is not in: {error}")
}

#[test]
fn trees_of_shardings() -> Result<()> {
    let (split, whole) = shardings()?;
    let all_devices = devices()?;
    fn tree() -> (Array, Vec<Array>, i32) {
        (arange(0..8), vec![arange(0..16), ones(24)], 3)
    }
    let (a, list, number) = device_put(&tree(), (&split, &whole, None))?;
    assert_eq!((spec(&a)?, spec(&list[0])?, spec(&list[1])?, number), (P!["x"], P![], P![], 3));
    // Destinations of different kinds in nested lists. `None` does not move a part.
    let (a, list, _) = device_put(&tree(), (&all_devices[2], vec![Some(ShardingLike::from(&split)), None], None))?;
    assert_eq!((a.devices()?, spec(&list[0])?, list[1].committed()), (all_devices[2..3].to_vec(), P!["x"], false));

    let batch = BTreeMap::from([("image".to_owned(), ones([8, 4])), ("label".to_owned(), arange(0..8))]);
    let placed = device_put(&batch, BTreeMap::from([("label", &split), ("image", &whole)]))?;
    assert_eq!((spec(&placed["image"])?, spec(&placed["label"])?), (P![], P!["x"]));
    let dense = Dense { w: ones([8, 2]), b: Some(zeros(2)) };
    let placed = device_put(&dense, BTreeMap::from([("w", &split), ("b", &whole)]))?;
    assert_eq!((spec(&placed.w)?, placed.b.map(|b| spec(&b)).transpose()?), (P!["x"], Some(P![])));
    let placed = device_put(&Dense { b: None, ..dense.clone() }, BTreeMap::from([("w", &split), ("b", &whole)]))?;
    assert!(placed.b.is_none());

    let error = fails(
        device_put(&tree(), (&split, vec![&whole; 3], None)),
        ErrorKind::Value,
        &["device_put device tree prefix error: device_put device[1] has 3 entries", "2 children"],
    );
    assert_message(error, "one entry for each part");
    fails(device_put(&arange(0..8), (&split, &split)), ErrorKind::Value, &["no children (it is an array)"]);
    fails(
        device_put(&batch, BTreeMap::from([("image", &split)])),
        ErrorKind::Value,
        &["device_put device has the entries [\"image\"]", "2 children"],
    );
    fails(
        device_put(&batch, BTreeMap::from([("image", &split), ("labels", &split)])),
        ErrorKind::Value,
        &["has no entry [\"label\"]"],
    );
    // A leaf that does not fit is named.
    fails(
        device_put(&(arange(0..8), vec![arange(0..8), arange(0..9)]), &split),
        ErrorKind::Indivisible,
        &["device_put of value[1][1], of type int32[9]", "array axis 0 is partitioned 8 times"],
    );
    fails(device_put(&array(1.0f32), &split), ErrorKind::Value, &["only valid for values of rank at least 1"]);
    Ok(())
}

#[test]
fn the_shardings_of_a_compiled_function_place_its_arguments() -> Result<()> {
    let (split, _) = shardings()?;
    let f = jit(|x: Array, (y, n): (Array, i32)| x + y * n).in_shardings((&split, None));
    let args = (arange(0..8), (arange(0..8), 2));
    let compiled = f.lower(args.clone())?.compile()?;
    let (x, (y, n)) = device_put(&args, &compiled.input_shardings())?;
    assert_eq!((spec(&x)?, spec(&y)?, n), (P!["x"], P![], 2));
    let out = compiled.call((x, (y, n)))?;
    assert_eq!(ints(&device_put(&out, &compiled.output_shardings())?), [0, 3, 6, 9, 12, 15, 18, 21]);
    Ok(())
}

#[test]
fn donated_arrays_are_given_away() -> Result<()> {
    let (split, whole) = shardings()?;
    let all_devices = devices()?;
    let donate = PutOptions::new().donate(true);
    let targets =
        || -> [Sharding; 4] { [(&split).into(), (&whole).into(), (&all_devices[0]).into(), (&all_devices[1]).into()] };
    for from in targets() {
        for to in targets() {
            let x = device_put(&arange(0..16), &from)?;
            let y = donate.device_put(&x, &to)?;
            assert_eq!((y.sharding()?, ints(&y)), (to.clone(), (0..16).collect()), "{from} to {to}");
            assert!(x.is_deleted() && !y.is_deleted(), "{from} to {to}");
            let says: &[_] = &["Array has been deleted with shape=int32[16]", "donated to `device_put`"];
            fails(x.to_vec::<i32>(), ErrorKind::Deleted, says);
            fails(jit(|x: Array| x + 1).call(&x), ErrorKind::Deleted, says);
            fails(device_put(&x, &to), ErrorKind::Deleted, says);
            fails((&x + 1).to_vec::<i32>(), ErrorKind::Deleted, says);
            assert_eq!(ints(&(y + 1))[15], 16);
        }
    }
    // What another array shares stays with it.
    let x = device_put(&arange(0..16), &whole)?;
    let on_one = device_put(&x, &all_devices[4])?;
    let y = donate.device_put(&x, &split)?;
    assert!(x.is_deleted());
    assert_eq!((ints(&on_one), ints(&y)), ((0..16).collect(), (0..16).collect()));

    // Of a tree everything or nothing.
    let (good, bad) = (arange(0..8), arange(0..9));
    fails(donate.device_put(&(good.clone(), bad.clone()), &split), ErrorKind::Indivisible, &["value[1]"]);
    assert!(!good.is_deleted() && !bad.is_deleted());
    let (a, b) = donate.device_put(&(good.clone(), good.clone()), (&split, &whole))?;
    assert_eq!((ints(&a), ints(&b), good.is_deleted()), ((0..8).collect(), (0..8).collect(), true));
    // A plain number has no memory that could be donated.
    assert_eq!(donate.device_put(&Array::from(3), &whole)?.item::<i32>()?, 3);
    Ok(())
}

/// A compiled function must not take an array whose memory went on into another.
#[test]
fn an_array_that_was_taken_over_is_rejected_on_the_hot_path() -> Result<()> {
    let (split, _) = shardings()?;
    let f = jit(|x: Array| x + 1);
    let x = device_put(&arange(0..8), &split)?;
    let _ = f.call(&x)?;
    let _ = f.call(&x)?;
    let y = PutOptions::new().donate(true).device_put(&x, &split)?;
    fails(f.call(&x), ErrorKind::Deleted, &["donated to `device_put`"]);
    assert_eq!(ints(&f.call(&y)?)[7], 8);
    Ok(())
}

#[test]
fn memory_is_shared_only_where_it_may_be() -> Result<()> {
    let (split, whole) = shardings()?;
    let all_devices = devices()?;
    let copy = PutOptions::new().may_alias(false);
    for to in [Sharding::from(&split), (&whole).into(), (&all_devices[0]).into()] {
        let x = device_put(&arange(0..16), &to)?;
        let y = copy.device_put(&x, &to)?;
        assert_eq!((y.sharding()?, y.committed()), (to.clone(), true));
        assert!(!is_same_memory(x, &y)?, "{to}");
        assert_eq!(ints(&y), (0..16).collect::<Vec<_>>());
        let x = device_put(&arange(0..16), &to)?;
        assert!(is_same_memory(PutOptions::new().may_alias(true).device_put(&x, &to)?, &x)?, "{to}");
    }
    // Part by part: what one device has whole already.
    let x = device_put(&arange(0..16), &all_devices[2])?;
    assert!(!is_same_memory(copy.device_put(&x, &whole)?, &x)?);
    // A copy is committed as its original is.
    let x = ones(4);
    let y = copy.device_put(&x, None)?;
    assert!(!y.committed() && !is_same_memory(x, &y)?);
    fails(
        PutOptions::new().donate(true).may_alias(true).device_put(&y, &split),
        ErrorKind::Value,
        &["may_alias and donate cannot be true at the same time"],
    );
    Ok(())
}

#[test]
fn inside_a_compiled_function_nothing_is_moved() -> Result<()> {
    let (split, _) = shardings()?;
    let s = split.clone();
    let y = jit(move |x: Array| -> Result<Array> { Ok(device_put(&(x * 2), &s)? + 1) }).call(arange(0..8))?;
    assert_eq!(ints(&y), [1, 3, 5, 7, 9, 11, 13, 15]);
    // An impossible request is an error.
    let s = split.clone();
    let wrong = jit(move |x: Array| device_put(&x, (&s, &s))).call(arange(0..8));
    fails(wrong, ErrorKind::Value, &["device_put device tree prefix error"]);
    let s = split.clone();
    let wrong = jit(move |x: Array| device_put(&x, &s));
    fails(wrong.call(arange(0..9)), ErrorKind::Indivisible, &["the dimension size is 9"]);
    fails(wrong.call(array(1)), ErrorKind::Value, &["only valid for values of rank at least 1"]);
    // Where each device has its own block there is nowhere to put it.
    let (mesh, device) = (split.mesh().clone(), devices()?[1].clone());
    let says: &[_] = &["device_put with explicit device not allowed within shard_map", "CpuDevice(id=1)"];
    let place = move |x: Array| device_put(&x, &device);
    let mapped = shard_map(place.clone(), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    fails(mapped.call(arange(0..8)), ErrorKind::Value, says);
    fails(jit(mapped).call(arange(0..8)), ErrorKind::Value, says);
    fails(pmap(place.clone()).call(arange(0..8)), ErrorKind::Value, says);
    assert_eq!(ints(&vmap(place).call(arange(0..8))?)[7], 7);
    assert_eq!(ints(&pmap(|x: Array| device_put(&x, None)).call(arange(0..8))?)[7], 7);
    Ok(())
}

/// As in JAX: a device that a compiled function names inside is not where its values go.
#[test]
fn a_device_inside_a_compiled_function_is_no_more_than_a_wish() -> Result<()> {
    setup();
    let devices = devices()?;
    let (first, second) = (devices[0].clone(), devices[1].clone());
    let moved = move |x: Array| -> Result<Array> { Ok(device_put(&x, &second)? * 2) };
    let f = jit(moved);
    fn on(x: &Array) -> Result<(usize, bool)> {
        Ok((x.devices()?[0].id(), x.committed()))
    }
    let x = ones(4);
    assert_eq!(on(&f.call(&x)?)?, (0, false));
    assert_eq!(on(&f.call(device_put(&x, &first)?)?)?, (0, true));
    assert_eq!(on(&f.call(device_put(&x, &devices[1])?)?)?, (1, true));
    Ok(())
}

#[test]
fn waiting_for_values_references_and_trees() -> Result<()> {
    setup();
    let x = ones(4) * 2;
    block_until_ready(&x)?;
    block_until_ready(&(x.clone(), vec![ones(2)]))?;
    let y: Array = block_until_ready(x.clone())?;
    let borrowed: &Array = block_until_ready(&y)?;
    assert!(borrowed.is_ready()?);
    x.delete()?;
    fails(block_until_ready(&x), ErrorKind::Deleted, &["Array has been deleted"]);
    Ok(())
}

#[test]
fn which_axes_are_manual() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 4), ("y", 2)])?.auto();
    assert!(manual_axes().is_empty());
    fn names() -> Vec<String> {
        manual_axes().iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
    }
    let shapes = std::cell::RefCell::new(Vec::new());
    let look = |x: Array| {
        shapes.borrow_mut().push(names());
        x
    };
    let _ = jit(shard_map(look, &mesh).axis_names(["y"]).in_specs(P!["y"]).out_specs(P!["y"])).call(ones(8))?;
    let _ = shard_map(look, &mesh).in_specs(P!["y"]).out_specs(P!["y"]).call(ones(8))?;
    let _ = pmap(look).axis_name("i").call(ones([8, 1]))?;
    let _ = vmap(look).axis_name("i").call(ones([8, 1]))?;
    assert_eq!(shapes.take(), [vec!["y"], vec!["x", "y"], vec!["i"], vec![]]);
    assert!(manual_axes().is_empty());
    Ok(())
}

#[test]
fn shards_here_and_everywhere() -> Result<()> {
    let (split, whole) = shardings()?;
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    for sharding in [split.clone(), whole, NamedSharding::new(&mesh, P![None, "i"]), NamedSharding::new(&mesh, P!["j"])]
    {
        let x = device_put(&arange(0..64).reshape([8, 8]), &sharding)?;
        let (here, all) = (x.addressable_shards()?, x.global_shards()?);
        assert_eq!((here.len(), all.len(), x.devices()?.len()), (8, 8, 8));
        for (i, (a, b)) in here.iter().zip(&all).enumerate() {
            assert_eq!((&a.device, &a.index, a.replica_id), (&b.device, &b.index, b.replica_id));
            assert_eq!(a.device, x.devices()?[i]);
            let data = b.data.as_ref().expect("one process has all parts");
            assert_eq!(ints(data), ints(&a.data));
            assert_eq!(ints(data), ints(&x.addressable_data(i)?));
            assert_eq!((data.devices()?, data.committed()), (vec![a.device.clone()], true));
            let first = a.index[0].start * 8 + a.index[1].start;
            assert_eq!(ints(data)[0], first as i32);
        }
        let mut indices: Vec<_> = here.iter().map(|s| (s.index.clone(), s.replica_id)).collect();
        indices.sort_by_key(|(index, id)| (index[0].start, index[1].start, *id));
        indices.dedup();
        assert_eq!(indices.len(), 8, "each copy of a part has a number of its own");
    }
    let x = device_put(&arange(0..8), &split)?;
    fails(x.addressable_data(8), ErrorKind::Index, &["shard 8 is out of range: the array has 8 addressable shards"]);
    // A number, and an array that nothing was said of, are on the default device.
    assert_eq!(ones(3).global_shards()?.len(), 1);
    assert_eq!(Array::from(2).addressable_shards()?[0].device, devices()?[0]);
    Ok(())
}

/// Returns if an array is fully addressable, fully replicated, and committed.
fn placement_of(x: &Array) -> (bool, bool, bool) {
    (x.is_fully_addressable(), x.is_fully_replicated(), x.committed())
}

#[test]
fn placement_properties_of_arrays() -> Result<()> {
    let (split, whole) = shardings()?;
    let on_one = ones([8, 2]);
    let (rows, copies) = (device_put(&on_one, &split)?, device_put(&on_one, &whole)?);
    assert_eq!(placement_of(&on_one), (true, true, false));
    assert_eq!(placement_of(&rows), (true, false, true));
    assert_eq!(placement_of(&copies), (true, true, true));
    assert_eq!(placement_of(&(&rows + 1)), (true, false, true));
    assert_eq!(placement_of(&(&on_one + 1)), (true, true, false));
    // Replicated over an axis of one device is whole, whatever its spec says.
    let over_one = NamedSharding::new(&make_mesh([("x", 1)])?.auto(), P!["x"]);
    assert!(device_put(&on_one, &over_one)?.is_fully_replicated());
    Ok(())
}

#[test]
fn devices_of_shardings() -> Result<()> {
    let (split, whole) = shardings()?;
    let all_devices = devices()?;
    let moved = Sharding::from(&all_devices[3]);
    for sharding in [Sharding::from(&split), (&whole).into()] {
        assert_eq!((sharding.num_devices(), sharding.addressable_devices()), (8, all_devices.clone()));
        assert!(sharding.is_fully_addressable());
    }
    assert_eq!((moved.num_devices(), moved.addressable_devices()), (1, vec![all_devices[3].clone()]));
    assert_eq!(split.mesh().local_devices(), all_devices);
    assert!(!split.mesh().is_multi_process() && all_devices.iter().all(Device::is_addressable));
    let x = device_put(&ones([8, 3]), &whole)?;
    assert_eq!((x.nbytes(), Array::from(1).nbytes(), ones([8, 0]).nbytes()), (96, 4, 0));
    x.block_until_ready()?;
    assert!(x.is_ready()?);
    Ok(())
}

fn unconstrained_error(what: &str) -> String {
    format!("Unconstrained dims are not allowed when passed to {what}")
}

/// Only constraints can leave a dimension to the compiler, because every array has a sharding.
#[test]
fn unconstrained_dimensions_are_for_constraints() -> Result<()> {
    let (split, _) = shardings()?;
    let open = NamedSharding::new(split.mesh(), P![DimSpec::Unconstrained]);
    let x = arange(0..8);
    fails(device_put(&x, &open), ErrorKind::Value, &[&unconstrained_error("device_put"), "P(UNCONSTRAINED,)"]);
    fails(
        jit(|x: Array| x).in_shardings(&open).call(&x),
        ErrorKind::Value,
        &[&unconstrained_error("jit in_shardings")],
    );
    fails(
        jit(|x: Array| x).out_shardings(&open).call(&x),
        ErrorKind::Value,
        &[&unconstrained_error("jit out_shardings")],
    );
    let result = make_array_from_callback([8], DType::I32, &open, |_| Ok(arange(0..8)));
    fails(result, ErrorKind::Value, &[&unconstrained_error("make_array_from_callback")]);
    let result = make_array_from_single_device_arrays([8], &open, std::slice::from_ref(&x));
    fails(result, ErrorKind::Value, &[&unconstrained_error("make_array_from_single_device_arrays")]);
    fails(
        Array::from_slice_on(&[0; 8], &[8], &open),
        ErrorKind::Value,
        &[&unconstrained_error("an array of host data")],
    );
    // The constraint keeps the sharding that the compiler chooses.
    let f = jit(move |x: Array| with_sharding_constraint(x * 2, &open));
    assert_eq!(ints(&f.call(device_put(&x, &split)?)?)[7], 14);
    Ok(())
}

#[test]
fn deleting_twice_is_deleting_once() -> Result<()> {
    let (split, _) = shardings()?;
    let x = device_put(&arange(0..8), &split)?;
    let clone = x.clone();
    x.delete()?;
    x.delete()?;
    clone.delete()?;
    assert!(x.is_deleted() && clone.is_deleted());
    let says: &[_] = &["Array has been deleted with shape=int32[8]", "by a call of `delete`"];
    fails(x.to_vec::<i32>(), ErrorKind::Deleted, says);
    fails(x.sharding(), ErrorKind::Deleted, says);
    fails(x.devices(), ErrorKind::Deleted, says);
    fails(x.addressable_shards(), ErrorKind::Deleted, says);
    fails(x.global_shards(), ErrorKind::Deleted, says);
    fails(x.addressable_data(0), ErrorKind::Deleted, says);
    fails(x.copy(), ErrorKind::Deleted, says);
    // Its type is still known.
    assert_eq!((x.shape(), x.type_name()), (&[8][..], "int32[8]".to_owned()));
    // A plain number has nothing to delete.
    let number = Array::from(1);
    number.delete()?;
    assert!(!number.is_deleted());
    Ok(())
}

#[test]
fn donated_arrays_that_are_moved() -> Result<()> {
    let mesh = make_mesh([("i", 8)])?.auto();
    let rows = NamedSharding::new(&mesh, P!["i"]);
    let f = jit(|x: Array| x + 1).in_shardings(&rows).out_shardings(&rows).donate_argnums([0]);
    let host = arange(0..1024).astype(DType::F32);
    assert_eq!(f.call(&host)?.get(5).item::<f32>()?, 6.0);
    // The copy was donated, and shares its memory with the original, which is therefore deleted.
    assert!(host.is_deleted());
    // But not memory that another array shares.
    let host = arange(0..1024).astype(DType::F32);
    let shares = device_put(&host, &devices()?[0])?;
    let _ = f.call(&host)?;
    assert!(host.is_deleted() && !shares.is_deleted());
    assert_eq!(shares.get(7).item::<f32>()?, 7.0);
    Ok(())
}

/// Outside of `jit` a transformation places values where `device_put` says.
#[test]
fn inside_of_transformations_outside_of_jit_values_are_placed() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let split = NamedSharding::new(&mesh, P!["i"]);
    let x = arange(0..8).astype(DType::F32);
    let place = |x: Array| device_put(&(x * 2), &split);
    let (y, tangent) = jvp(place, &x, ones_like(&x))?;
    let (z, pull_back) = vjp(place, &x)?;
    for (what, y) in [("jvp", y), ("its tangent", tangent), ("vjp", z)] {
        assert_eq!(y.sharding()?, split.clone().into(), "{what}");
    }
    assert_eq!(pull_back.call(ones([8]))?.0.to_vec::<f32>()?, [2.0; 8]);
    let rows = vmap(place).call(stack(&[x.clone(), x.clone()], 0))?;
    assert_eq!((rows.sharding()?.devices().len(), rows.committed()), (8, true));
    let loss = |x: Array| Ok(place(x)?.square().sum(..));
    assert_eq!(grad(loss).call(&x)?.sharding()?.devices().len(), 8);
    // On one device, also of an argument that is committed to another.
    let third = devices()?[3].clone();
    fn on_third(x: Array, third: &Device) -> Result<Array> {
        device_put(&(x * 2), third)
    }
    for x in [x.clone(), device_put(&x, &devices()?[0])?] {
        assert_eq!(vjp(|x: Array| on_third(x, &third), &x)?.0.sharding()?.devices(), std::slice::from_ref(&third));
    }
    Ok(())
}
