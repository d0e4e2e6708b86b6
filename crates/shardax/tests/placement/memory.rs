//! Memory kinds: the memory of its devices that stores an array.

use shardax::{ErrorKind, Memory};

use super::*;

const KINDS: [&str; 3] = ["device", "pinned_host", "unpinned_host"];

#[test]
fn devices_list_their_memories() -> Result<()> {
    setup();
    for device in local_devices()? {
        let memories = device.addressable_memories()?;
        assert_eq!(memories.iter().map(Memory::kind).collect::<Vec<_>>(), KINDS);
        assert_eq!(
            (device.default_memory()?, device.memory("pinned_host")?),
            (memories[0].clone(), memories[1].clone())
        );
        assert_eq!((memories[1].device(), memories[1].to_string()), (&device, format!("pinned_host of {device}")));
        let error = device.memory("drum").expect_err("no such memory");
        assert!(
            error.message().ends_with("kinds: device, pinned_host, unpinned_host. Got memory kind: drum"),
            "{error}"
        );
        assert_eq!(device.memory_stats().expect_err("the CPU keeps no figures").kind(), ErrorKind::NotImplemented);
    }
    Ok(())
}

#[test]
fn arrays_go_to_other_memory_and_back() -> Result<()> {
    let (split, whole) = shardings()?;
    assert_eq!((split.memory_kind(), split.to_string().contains("memory_kind")), (None, false));
    for kind in KINDS {
        for sharding in [&split, &whole] {
            let in_memory = sharding.with_memory_kind(kind);
            assert_eq!(in_memory.memory_kind(), Some(kind));
            assert!(in_memory.to_string().ends_with(&format!(", memory_kind={kind})")), "{in_memory}");
            // From the host, from the same parts elsewhere, and from other parts.
            for x in [arange(0..16), device_put(&arange(0..16), &split)?, device_put(&arange(0..16), &whole)?] {
                let y = device_put(&x, &in_memory)?;
                assert_eq!((y.sharding()?, y.committed()), (in_memory.clone().into(), true));
                assert_eq!(ints(&y), (0..16).collect::<Vec<_>>());
                // Results are in the default memory.
                let doubled = jit(|x: Array| x * 2).call(&y)?;
                assert_eq!((doubled.sharding()?.memory_kind(), ints(&doubled)[15]), (None, 30));
                assert_eq!((&y + 1).sharding()?.memory_kind(), None);
                let back = device_put(&y, sharding)?;
                assert_eq!((back.sharding()?, ints(&back)), (sharding.clone().into(), ints(&x)));
            }
        }
    }
    let single = SingleDeviceSharding::new(&local_devices()?[3]).with_memory_kind("pinned_host");
    assert_eq!(single.memory_kind(), Some("pinned_host"));
    assert_eq!(device_put(&arange(0..4), &single)?.sharding()?, single.into());
    Ok(())
}

#[test]
fn a_default_that_is_named_is_the_default() -> Result<()> {
    let (split, _) = shardings()?;
    let named = Sharding::from(split.with_memory_kind("device"));
    assert!(named.is_equivalent_to(&split.clone().into(), 1));
    assert!(!Sharding::from(split.with_memory_kind("pinned_host")).is_equivalent_to(&split.clone().into(), 1));
    let x = device_put(&arange(0..8), &split)?;
    assert_eq!(ints(&jit(|x: Array| x).in_shardings(&named).call(&x)?)[7], 7);
    Ok(())
}

#[test]
fn programs_put_values_into_other_memory() -> Result<()> {
    let (split, _) = shardings()?;
    put_into_other_memory(&split)?;
    put_into_other_memory(&NamedSharding::new(&split.mesh().explicit(), P!["x"]))
}

fn put_into_other_memory(split: &NamedSharding) -> Result<()> {
    let host = split.with_memory_kind("pinned_host");
    let x = device_put(&arange(0..8), split)?;
    let to_host = jit({
        let host = host.clone();
        move |x: Array| device_put(&(x * 2), &host)
    });
    let requested = jit(|x: Array| x * 2).out_shardings(&host);
    for y in [to_host.call(&x)?, requested.call(&x)?] {
        assert_eq!((y.sharding()?, ints(&y)[7]), (host.clone().into(), 14));
    }
    // A program reads the argument from the host, with and without `in_shardings`, and moves it back by `Space`.
    let y = to_host.call(&x)?;
    fn back(x: Array) -> Result<Array> {
        device_put(&x, Space::Device)
    }
    for z in [jit(back).call(&y)?, jit(back).in_shardings(&host).call(&y)?] {
        assert_eq!((z.sharding()?.memory_kind(), ints(&z)[7]), (None, 14));
    }
    // In `vmap`, `grad` and `shard_map`.
    let to_host = |x: Array| device_put(&x.sin(), Space::Host);
    let slope = grad(move |x: Array| Ok(to_host(x)?.sum(..))).call(zeros(4))?;
    assert_eq!(slope.to_vec::<f32>()?, [1.0; 4]);
    assert_eq!(jit(vmap(to_host)).call(zeros([2, 4]))?.sharding()?.memory_kind(), Some("pinned_host"));
    let mapped = shard_map(to_host, split.mesh()).in_specs(P!["x"]).out_specs(P!["x"]);
    assert_eq!(jit(mapped).call(zeros(8))?.to_vec::<f32>()?, [0.0; 8]);
    Ok(())
}

/// In JAX it is on the host, because the memory is part of the argument's type.
#[test]
fn the_gradient_of_an_argument_on_the_host_is_on_the_device() -> Result<()> {
    let (split, _) = shardings()?;
    let host = split.with_memory_kind("pinned_host");
    let x = device_put(&arange(0..8).astype(DType::F32), &host)?;
    fn loss(x: Array) -> Result<Array> {
        Ok(device_put(&x, Space::Device)?.square().sum(..))
    }
    let gradient = jit(grad(loss)).out_shardings(&host);
    for (slope, kind) in
        [(grad(loss).call(&x)?, None), (jit(grad(loss)).call(&x)?, None), (gradient.call(&x)?, Some("pinned_host"))]
    {
        assert_eq!(slope.sharding()?.memory_kind(), kind);
        assert_eq!(slope.to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    }
    Ok(())
}

#[test]
fn invalid_formats_are_errors() -> Result<()> {
    let (split, _) = shardings()?;
    let (drum, host) = (split.with_memory_kind("drum"), split.with_memory_kind("pinned_host"));
    let x = device_put(&arange(0..8), &split)?;
    let inside = jit({
        let drum = drum.clone();
        move |x: Array| device_put(&x, &drum)
    });
    // A memory that does not exist is reported in the same way by every function that accepts a memory kind.
    let errors = [
        device_put(&x, &drum).err(),
        device_put(&arange(0..8), &drum).err(),
        inside.call(&x).err(),
        jit(|x: Array| x).out_shardings(&drum).call(&x).err(),
        jit(|x: Array| x).in_shardings(&drum).call(&x).err(),
    ];
    for error in errors {
        let error = error.expect("there is no such memory");
        assert_eq!(error.kind(), ErrorKind::Value);
        let words = "Could not find memory addressable by device cpu. Device cpu can address the following memory kinds: device, pinned_host, unpinned_host. Got memory kind: drum";
        assert!(error.message().contains(words) && error.to_string().contains("memory.rs:"), "{error}");
    }
    let error = jit(|x: Array| x).in_shardings(&host).call(&x).err().expect("it lies elsewhere");
    let words = "Memory kinds passed to jit does not match memory kind on the respective arg. Got jit memory kind: pinned_host, arg memory kind: the default";
    assert!(error.message().contains(words), "{error}");
    let error = jit(|x: Array| x).out_shardings(Space::Host).call(&x).err().expect("no sharding");
    assert!(error.message().contains("takes a sharding, but got the memory space Host"), "{error}");
    Ok(())
}
