//! Collectives over several axes, of which `vmap`, `pmap` and `shard_map` map some each.

use shardax::prelude::*;

use crate::common::quick::{one_of, setup};
use crate::{ramp, same};

type Body = fn(Array) -> Array;

/// On blocks of shape (8, 16), over axes of sizes 4 and 2.
const BODIES: [(&str, Body); 18] = [
    ("psum", |x| psum(x, ("i", "j"))),
    ("pmean", |x| pmean(x, ("j", "i"))),
    ("pmax", |x| pmax(x, ("i", "j"))),
    ("all_gather", |x| all_gather(x, ("i", "j"), 1)),
    ("all_gather, other order", |x| all_gather(x, ("j", "i"), 0)),
    ("all_gather_tiled", |x| all_gather_tiled(x, ("i", "j"), 1)),
    ("psum_scatter", |x| psum_scatter(x, ("i", "j"), 0)),
    ("psum_scatter_tiled", |x| psum_scatter_tiled(x, ("i", "j"), 1)),
    ("psum_scatter_tiled, other order", |x| psum_scatter_tiled(x, ("j", "i"), 1)),
    ("all_to_all", |x| all_to_all(x, ("i", "j"), 0, 0)),
    ("all_to_all, moved", |x| all_to_all(x, ("i", "j"), 0, 1)),
    ("all_to_all_tiled", |x| all_to_all_tiled(x, ("i", "j"), 1, 0)),
    ("all_to_all_tiled, other order", |x| all_to_all_tiled(x, ("j", "i"), 0, 1)),
    ("ppermute", |x| ppermute(x, ("i", "j"), (0..8).map(|i| (i, (i + 3) % 8)).collect::<Vec<_>>())),
    ("ppermute of some", |x| ppermute(x, ("j", "i"), [(0, 5), (1, 2), (6, 7), (5, 1)])),
    ("pshuffle", |x| pshuffle(x, ("i", "j"), [1, 3, 5, 7, 0, 2, 4, 6])),
    ("pbroadcast", |x| pbroadcast(x, ("i", "j"), 5)),
    ("axis_index", |x| x * 0 + axis_index(("i", "j")) * 100 + axis_index(("j", "i"))),
];

/// All of them, in one program.
fn all(x: Array) -> Vec<Array> {
    BODIES.iter().map(|(_, body)| body(x.clone())).collect()
}

#[test]
fn nested_maps_equal_shard_map() -> Result<()> {
    setup();
    let x = ramp([4, 2, 8, 16], DType::I32);
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    fn blocks(x: Array) -> Vec<Array> {
        all(x.squeeze([0, 1])).iter().map(|y| y.expand_dims([0, 1])).collect::<Vec<Array>>()
    }
    let want = shard_map(blocks, &mesh).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]).call(&x)?;
    fn inner(x: Array) -> Result<Vec<Array>> {
        pmap(all).axis_name("i").call(x)
    }
    let nests = [
        vmap(vmap(all).axis_name("j")).axis_name("i").call(&x)?,
        pmap(vmap(all).axis_name("j")).axis_name("i").call(&x)?,
        vmap(pmap(all).axis_name("j")).axis_name("i").call(&x)?,
        vmap(inner).axis_name("j").in_axes(1).out_axes(1).call(&x)?,
    ];
    for (n, nest) in nests.iter().enumerate() {
        for (((name, _), got), want) in BODIES.iter().zip(nest).zip(&want) {
            println!("nest {n}: {name}");
            same(got, want);
        }
    }
    Ok(())
}

#[test]
fn gradients_in_nests() -> Result<()> {
    setup();
    let x = (ramp([4, 2, 8, 16], DType::F32) * 0.37).sin();
    fn weighted(y: &Array) -> Array {
        (y.ravel().sin() * (ramp(y.size() as i32, DType::F32) * 0.71).cos()).sum(..)
    }
    fn total(ys: Vec<Array>) -> Array {
        ys.iter().enumerate().map(|(i, y)| weighted(y) * (i + 1)).fold(zeros(()), |a: Array, b: Array| a + b)
    }
    fn by_vmap(x: Array) -> Result<Array> {
        Ok(total(vmap(vmap(all).axis_name("j")).axis_name("i").call(x)?))
    }
    fn mixed(x: Array) -> Result<Array> {
        Ok(total(pmap(vmap(all).axis_name("j")).axis_name("i").call(x)?))
    }
    let (a, b) = (grad(by_vmap).call(&x)?, grad(mixed).call(&x)?);
    assert!(allclose(&a, &b, 1e-3, 1e-2)?);
    Ok(())
}

/// A collective does not change a vmapped axis that it does not name.
#[test]
fn batched_over_another_axis() -> Result<()> {
    setup();
    let bodies: [(&str, Body); 9] = [
        ("psum", |x| psum(x, "i")),
        ("all_gather", |x| all_gather(x, "i", -1)),
        ("all_gather_tiled", |x| all_gather_tiled(x, "i", 1)),
        ("psum_scatter", |x| psum_scatter(x, "i", -1)),
        ("psum_scatter_tiled", |x| psum_scatter_tiled(x, "i", 0)),
        ("all_to_all", |x| all_to_all(x, "i", 0, -1)),
        ("all_to_all_tiled", |x| all_to_all_tiled(x, "i", -1, 0)),
        ("ppermute", |x| ppermute(x, "i", [(0, 1), (1, 2)])),
        ("pbroadcast", |x| pbroadcast(x, "i", 3)),
    ];
    let x = ramp([4, 3, 4, 4], DType::I32);
    for (i, (name, body)) in bodies.into_iter().enumerate() {
        // A slice has one of the axes for each.
        for axis in (0..3).skip(i % one_of(3)).step_by(one_of(3)) {
            println!("{name} {axis}");
            let x = x.moveaxis(1, axis + 1);
            // The batched axis is inside of the devices, outside of them, and a vmapped axis instead of the devices.
            let inner = move |x: Array| vmap(body).in_axes(axis).out_axes(-1).call(x);
            let devices = pmap(inner).axis_name("i").call(&x)?;
            same(&devices, &vmap(inner).axis_name("i").call(&x)?);
            let swapped = vmap(pmap(body).axis_name("i")).in_axes(axis + 1).out_axes(-1).call(&x)?;
            same(&devices, &swapped);
        }
    }
    Ok(())
}
