//! The shardings that arguments of `pmap` and `shard_map` can have, and which arguments are donated.

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, message, ramp};

fn mesh8() -> Result<Mesh> {
    setup();
    make_mesh([("x", 8)])
}

/// An argument without a mapped axis may be committed to one device; one with a mapped axis may not.
#[test]
fn single_device_arrays() -> Result<()> {
    let mesh = mesh8()?;
    let on_third = device_put(&ramp(3), &devices()?[2])?;
    let f = pmap(|x: Array, w: Array| x * w).in_axes((0, None));
    close(&f.call((ramp([8, 3]), &on_third))?, &(ramp([8, 3]) * ramp(3)));
    let replicated = device_put(&ramp(3), NamedSharding::new(&mesh, P![]))?;
    close(&f.call((ramp([8, 3]), &replicated))?, &(ramp([8, 3]) * ramp(3)));
    let split = device_put(&ramp(8), NamedSharding::new(&mesh, P!["x"]))?;
    assert!(message(f.call((ramp([8, 8]), &split))).contains("does not match the sharding on the respective arg"));
    Ok(())
}

/// Captured arrays are replicated, whatever their sharding.
#[test]
fn captured_arrays() -> Result<()> {
    let mesh = mesh8()?;
    let places = [
        ramp(8),
        device_put(&ramp(8), &devices()?[0])?,
        device_put(&ramp(8), NamedSharding::new(&mesh, P!["x"]))?,
        device_put(&ramp(8), NamedSharding::new(&mesh, P![]))?,
    ];
    for w in places {
        fn body(x: Array, w: &Array) -> Array {
            assert_eq!(w.shape(), [8]);
            x + w.sum(..)
        }
        close(&pmap(|x: Array| body(x, &w)).call(ramp([8, 2]))?, &(ramp([8, 2]) + 28));
        fn total(x: Array, w: &Array) -> Result<Array> {
            Ok(pmap(|x: Array| body(x, w)).call(x)?.sum(..))
        }
        match w.devices()?.len() {
            1 if w.committed() => {
                // Inside of another transformation all values are on the devices of the map.
                assert!(
                    message(grad(|x: Array| total(x, &w)).call(ramp([8, 2]))).contains("Received incompatible devices")
                );
            }
            _ => close(&grad(|x: Array| total(x, &w)).call(ramp([8, 2]))?, &ones([8, 2])),
        }
    }
    Ok(())
}

/// Over axes that are left to the compiler, another spec on the same devices only moves data.
#[test]
fn wrong_specs_are_resharded() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?.auto();
    for spec in [P!["j"], P![None, "i"], P![("j", "i")], P![]] {
        let x = device_put(&ramp([8, 8]), NamedSharding::new(&mesh, spec))?;
        let f = || shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i", "j"]).out_specs(P![None, "j"]);
        let want = ramp([4, 2, 8]).sum(0);
        close(&f().call(&x)?, &want);
        close(&jit(f()).call(&x)?, &want);
    }
    Ok(())
}

/// The context mesh is none of `pmap`'s business.
#[test]
fn pmap_under_a_context_mesh() -> Result<()> {
    setup();
    let f = pmap(|x: Array| psum(x, "i")).axis_name("i");
    let before = f.call(ramp(8))?;
    let _mesh = set_mesh(&make_mesh([("a", 4), ("b", 2)])?.auto())?;
    close(&f.call(ramp(8))?, &before);
    close(&jit(f).call(ramp(8))?, &before);
    Ok(())
}

/// A `pmap` that is compiled ahead of time accepts the arguments for which it was compiled.
///
/// JAX: `testLowerCompileArgTypeMismatch`.
#[test]
fn compiled_pmap_rejects_other_types() -> Result<()> {
    setup();
    let f = pmap(|x: Array| &x - psum(x.clone(), "i")).axis_name("i");
    let compiled = f.lower(ramp(8))?.compile()?;
    let error = compiled.call(arange(0..8)).err().expect("another dtype");
    assert_eq!(error.kind(), ErrorKind::Type);
    assert!(error.to_string().contains("Argument types differ from the types for which this computation was compiled"));
    let elsewhere = device_put(&ramp(8), &devices()?[1])?;
    let error = compiled.call(&elsewhere).err().expect("another device");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("Computation was compiled for input shardings that disagree"), "{error}");
    let two = pmap(|x: Array, y: Array| x + y).lower((ramp(8), ramp(8)))?.compile()?;
    close(&two.call((ramp(8), ramp(8)))?, &(ramp(8) * 2));
    assert!(two.as_text()?.contains("HloModule"));
    Ok(())
}

/// Positions of arguments count from the last too.
#[test]
fn negative_argnums() -> Result<()> {
    setup();
    fn place() -> Result<Array> {
        pmap(|x: Array| x).call(ramp([8, 2]))
    }
    let (x, y) = (place()?, place()?);
    let _ = pmap(|x: Array, y: Array| x + y).donate_argnums(-1).call((&x, &y))?;
    assert_eq!((x.is_deleted(), y.is_deleted()), (false, true));
    let (x, y) = (ramp(4) + 1, ramp(4) + 1);
    let _ = jit(|x: Array, y: Array| x + y).donate_argnums([-2]).call((&x, &y))?;
    assert_eq!((x.is_deleted(), y.is_deleted()), (true, false));
    let f = jit(|x: Array, n: i32| x * n).static_argnums(-1);
    close(&f.call((ramp(4), 3))?, &(ramp(4) * 3));
    Ok(())
}

/// An argument whose memory no result can take over survives.
#[test]
fn donation_that_is_of_no_use() -> Result<()> {
    setup();
    let x = pmap(|x: Array| x).call(ramp([8, 2]))?;
    let y = pmap(|x: Array| x.sum(..)).donate_argnums([0]).call(&x)?;
    assert_eq!(y.shape(), [8]);
    assert!(!x.is_deleted());
    close(&x, &ramp([8, 2]));
    Ok(())
}
