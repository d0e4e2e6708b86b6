//! Collectives in groups of participants.

use shardax::prelude::*;

use crate::common::quick::{one_of, setup};
use crate::{ramp, same};

const EVEN: [[usize; 4]; 2] = [[0, 2, 4, 6], [7, 1, 3, 5]];

fn halves() -> shardax::Grouped {
    axis_index_groups("i", EVEN)
}

fn uneven() -> shardax::Grouped {
    axis_index_groups("i", [vec![0, 1], vec![2, 7, 4, 5, 6, 3]])
}

type Body = fn(Array) -> Array;

const BODIES: [(&str, Body); 13] = [
    ("psum", |x| psum(x, halves())),
    ("psum, uneven", |x| psum(x, uneven())),
    ("pmean", |x| pmean(x, halves())),
    ("pmean, uneven", |x| pmean(x, uneven())),
    ("pmax", |x| pmax(x, halves())),
    ("pmin, uneven", |x| pmin(x, uneven())),
    ("all_gather", |x| all_gather(x, halves(), 1)),
    ("all_gather_tiled", |x| all_gather_tiled(x, halves(), -1)),
    ("psum_scatter", |x| psum_scatter(x, halves(), 0)),
    ("psum_scatter_tiled", |x| psum_scatter_tiled(x, halves(), -1)),
    ("all_to_all", |x| all_to_all(x, halves(), 0, 1)),
    ("all_to_all_tiled", |x| all_to_all_tiled(x, halves(), 1, 0)),
    ("pbroadcast", |x| pbroadcast(x, halves(), 1)),
];

fn rows(x: &Array) -> Vec<Array> {
    (0..x.shape()[0] as i32).map(|i| x.get(i)).collect()
}

/// Members of a group get the results of a whole axis of these members.
#[test]
fn a_group_is_an_axis() -> Result<()> {
    setup();
    let x = (ramp([8, 4, 8], DType::F32) * 0.37).sin();
    for (name, body) in BODIES.into_iter().step_by(one_of(3)) {
        println!("{name}");
        let y = pmap(body).axis_name("i").call(&x)?;
        same(&y, &vmap(body).axis_name("i").call(&x)?);
        same(&y, &vmap(body).in_axes(1).out_axes(-1).axis_name("i").call(x.moveaxis(0, 1))?.moveaxis(-1, 0));
        // The same on one group, whose members are an axis of their own.
        let full_group: Option<Body> = match name {
            "psum" => Some(|x| psum(x, "i")),
            "pmean" => Some(|x| pmean(x, "i")),
            "pmax" => Some(|x| pmax(x, "i")),
            "all_gather" => Some(|x| all_gather(x, "i", 1)),
            "all_gather_tiled" => Some(|x| all_gather_tiled(x, "i", -1)),
            "psum_scatter" => Some(|x| psum_scatter(x, "i", 0)),
            "psum_scatter_tiled" => Some(|x| psum_scatter_tiled(x, "i", -1)),
            "all_to_all" => Some(|x| all_to_all(x, "i", 0, 1)),
            "all_to_all_tiled" => Some(|x| all_to_all_tiled(x, "i", 1, 0)),
            "pbroadcast" => Some(|x| pbroadcast(x, "i", 1)),
            _ => None,
        };
        let Some(full_group) = full_group else { continue };
        let (x, y) = (rows(&x), device_get(&y)?);
        for group in EVEN {
            let members: Vec<Array> = group.iter().map(|&m| x[m].clone()).collect();
            let want = pmap(full_group).axis_name("i").call(stack(&members, 0))?;
            for (place, &member) in group.iter().enumerate() {
                assert!(
                    allclose(&y.get(member as i32), device_get(&want)?.get(place as i32), 1e-6, 1e-6)?,
                    "{name} {member}"
                );
            }
        }
    }
    Ok(())
}

/// The only participant of a group keeps its value.
#[test]
fn groups_of_one() -> Result<()> {
    setup();
    let x = ramp([8, 3], DType::F32);
    fn groups() -> Grouped {
        axis_index_groups("i", (0..8usize).map(|i| [i]))
    }
    same(&pmap(move |x: Array| psum(x, groups())).axis_name("i").call(&x)?, &x);
    same(&pmap(move |x: Array| pmax(x, groups())).axis_name("i").call(&x)?, &x);
    same(&pmap(move |x: Array| all_gather(x, groups(), 0)).axis_name("i").call(&x)?, &x.expand_dims(1));
    same(&vmap(move |x: Array| all_gather(x, groups(), 0)).axis_name("i").call(&x)?, &x.expand_dims(1));
    Ok(())
}

/// Every collective in one program, each result weighted in its own way.
fn total(map: impl Fn(Array) -> Result<Vec<Array>>, x: Array) -> Result<Array> {
    fn weighted(y: &Array) -> Array {
        (y.ravel().sin() * (ramp(y.size() as i32, DType::F32) * 0.71).cos()).sum(..)
    }
    Ok(map(x)?.iter().enumerate().map(|(i, y)| weighted(y) * (i + 1)).fold(zeros(()), |a, b| a + b))
}

#[test]
fn gradients_in_groups() -> Result<()> {
    setup();
    let x = (ramp([8, 4, 8], DType::F32) * 0.37).sin();
    fn collectives(x: Array) -> Vec<Array> {
        BODIES.iter().map(|(_, body)| body(x.clone())).collect::<Vec<Array>>()
    }
    fn devices(x: Array) -> Result<Array> {
        total(|x| pmap(collectives).axis_name("i").call(x), x)
    }
    fn by_vmap(x: Array) -> Result<Array> {
        total(|x| vmap(collectives).axis_name("i").call(x), x)
    }
    let (a, b) = (grad(devices).call(&x)?, grad(by_vmap).call(&x)?);
    assert!(allclose(&a, &b, 1e-4, 1e-3)?, "{a}\nis not\n{b}");
    Ok(())
}
