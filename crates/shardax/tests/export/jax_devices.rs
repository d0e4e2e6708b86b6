//! Functions that JAX exported, on several devices.

use shardax::config;
use shardax::export::{Exported, export};
use shardax::prelude::*;

use super::jax::{exported, for_each_version, values_of};
use crate::common::quick::setup;
use crate::same;

/// Returns the little-endian number at this position of a file.
fn word_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Files of JAX before 0.10.1 contain shardings only in their programs. The test removes the tables of shardings from a later file.
#[test]
fn shardings_of_older_files() -> Result<()> {
    setup();
    let mut bytes = std::fs::read(exported("sharded.jax")).expect("the artifact");
    let root = word_at(&bytes, 0);
    let fields = root - word_at(&bytes, root);
    for field in [20, 21, 24, 25] {
        let slot = fields + 4 + 2 * field;
        bytes[slot..slot + 2].fill(0);
    }
    let [old, new] = [&bytes, &std::fs::read(exported("sharded.jax")).expect("the artifact")]
        .map(|bytes| Exported::<(Array, Array), Array>::deserialize(bytes));
    let args = (ones([8, 4]), ones([4, 6]));
    let (old, new) = (old?.call(args.clone())?, new?.call(args)?);
    assert_eq!(
        old.sharding()?.as_named().map(|s| s.spec().clone()),
        new.sharding()?.as_named().map(|s| s.spec().clone())
    );
    assert_eq!(old.global_shards()?.len(), 8);
    same(&old, &new);
    Ok(())
}

/// A program with a mesh runs on any devices, in any order, if their number is the same: on the devices of the context mesh, or of
/// its arguments.
#[test]
fn programs_run_on_the_requested_devices() -> Result<()> {
    setup();
    let read = Exported::<(Array, Array), Array>::load(exported("sharded.jax"))?;
    let (x, w) = (random::normal(random::key(0), [8, 4]), random::normal(random::key(1), [4, 6]));
    let want = read.call((&x, &w))?;
    let devices: Vec<_> = devices()?.into_iter().rev().collect();
    let mesh = Mesh::new(devices.clone(), [("data", 4), ("model", 2)])?;
    let other_mesh = Mesh::new(devices, [("rows", 8)])?;
    // The context mesh decides, if there is one, and otherwise the devices of the first argument.
    {
        let _mesh = set_mesh(&mesh)?;
        let got = read.call((&x, &w))?;
        assert_eq!(got.sharding()?.as_named().map(|s| s.mesh().clone()), Some(mesh.clone()));
        same(&got, &want);
    }
    for placed in [NamedSharding::new(&mesh, P!["data"]), NamedSharding::new(&other_mesh, P!["rows"])] {
        let got = read.call((device_put(&x, &placed)?, &w))?;
        assert_eq!(got.sharding()?.devices().first(), mesh.devices().first());
        same(&got, &want);
    }
    let single = Exported::<(Array,), Array>::load(exported("alone.jax"))?;
    let x = device_put(&arange(0..4).astype(DType::F32), &mesh.devices()[1].clone())?;
    let got = single.call(&x)?;
    assert_eq!(got.to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0]);
    assert_eq!(got.sharding()?.devices(), x.sharding()?.devices());
    Ok(())
}

/// Functions for eight devices, by shardings and by `shard_map`, return JAX's numbers.
#[test]
fn functions_that_jax_exported_for_many_devices() -> Result<()> {
    for_each_version(functions_for_many_devices_of)
}

fn functions_for_many_devices_of(version: &str) -> Result<()> {
    setup();
    let v = values_of(version);
    for name in ["sharded", "mapped"] {
        let read = Exported::<(Array, Array), Array>::load(exported(&format!("{version}{name}.safetensors")))?;
        let raw = Exported::<(Array, Array), Array>::load(exported(&format!("{version}{name}.jax")))?;
        let [x, w, want, slope] = ["in00", "in01", "out00", "slope01"].map(|kind| v[&format!("{name}.{kind}")].clone());
        for f in [&read, &raw] {
            assert_eq!(f.device_count(), 8);
            let got = f.call((&x, &w))?;
            assert!(allclose(&got, &want, 1e-5, 1e-6)?);
            assert_eq!(got.sharding()?.devices().len(), 8);
            fn loss(w: Array, x: &Array, f: &Exported<(Array, Array), Array>) -> Result<Array> {
                Ok(f.call((x, w))?.sum(..))
            }
            assert!(allclose(jit(grad(|w: Array| loss(w, &x, f))).call(&w)?, &slope, 1e-5, 1e-5)?);
        }
    }
    Ok(())
}

/// If a program with kernels is called with split arrays, a warning says that they are gathered.
#[test]
fn kernels_of_programs_on_split_arrays_warn() -> Result<()> {
    use std::sync::{Arc, Mutex};
    setup();
    let output = Arc::new(Mutex::new(String::new()));
    let log = output.clone();
    config::set_warning_hook(move |text| log.lock().expect("the log").push_str(text));
    let x = random::normal(random::key(0), [8, 4, 4]);
    let mesh = make_mesh([("data", 8)])?;
    let f = export(|x: Array| linalg::qr(x).1.abs(), &x)?;
    let want = f.call(&x)?;
    assert!(!output.lock().expect("the log").contains("kernels"));
    let got = f.call(device_put(&x, &NamedSharding::new(&mesh, P!["data"]))?)?;
    assert!(allclose(got, want, 1e-5, 1e-5)?);
    let text = output.lock().expect("the log").clone();
    assert!(text.contains("kernels Qr") && text.contains("shard_map") && text.contains("jax_devices.rs"), "{text}");
    Ok(())
}
