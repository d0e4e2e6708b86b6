//! Every collective on every dtype.

use shardax::prelude::*;

use crate::common::quick::{one_of, setup};
use crate::{ramp, same};

type Body = fn(Array) -> Array;

/// Collectives that move values and do not compute with them.
const MOVES: [(&str, Body); 9] = [
    ("all_gather", |x| all_gather(x, "i", 0)),
    ("all_gather_tiled", |x| all_gather_tiled(x, "i", -1)),
    ("all_to_all", |x| all_to_all(x, "i", 0, 0)),
    ("all_to_all_tiled", |x| all_to_all_tiled(x, "i", -2, -1)),
    ("ppermute", |x| ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)])),
    ("ppermute of some", |x| ppermute(x, "i", [(0, 1), (3, 0)])),
    ("pshuffle", |x| pshuffle(x, "i", [3, 1, 2, 0])),
    ("pswapaxes", |x| pswapaxes(x, "i", 0)),
    ("pbroadcast", |x| pbroadcast(x, "i", 2)),
];

const SUMS: [(&str, Body); 4] = [
    ("psum", |x| psum(x, "i")),
    ("pmean", |x| pmean(x, "i")),
    ("psum_scatter", |x| psum_scatter(x, "i", 0)),
    ("psum_scatter_tiled", |x| psum_scatter_tiled(x, "i", -2)),
];

const EXTREMES: [(&str, Body); 2] = [("pmax", |x| pmax(x, "i")), ("pmin", |x| pmin(x, "i"))];

/// Types of fewer than 16 bits that the collectives widen.
fn is_narrow(dtype: DType) -> bool {
    dtype.bits() < 8 || dtype.to_string().starts_with("float8")
}

/// All, but of the narrow ones three: `numbers/narrow` has the others.
fn dtypes() -> impl Iterator<Item = DType> {
    let chosen = [DType::F8E4M3Fn, DType::F8E5M2, DType::I4];
    DType::ALL.into_iter().filter(move |&dtype| !is_narrow(dtype) || chosen.contains(&dtype))
}

fn values(dtype: DType) -> Array {
    match dtype {
        DType::Bool => (ramp([4, 4, 4], DType::I32) % 3).equal(0),
        _ => (ramp([4, 4, 4], DType::I32) % 7).astype(dtype),
    }
}

/// Results of devices equal the results of `vmap` on one device.
#[test]
fn every_collective_on_every_dtype() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4)])?;
    for dtype in dtypes().step_by(one_of(4)) {
        let x = match dtype {
            DType::Complex64 | DType::Complex128 => complex(values(DType::F32), values(DType::F32) * 2).astype(dtype),
            _ => values(dtype),
        };
        // All in one program.
        let collectives = move |x: Array| -> Vec<Array> {
            let moves = MOVES.iter().map(|(_, f)| f);
            let sums =
                SUMS.iter().filter(|(name, _)| dtype != DType::Bool || !name.contains("scatter")).map(|(_, f)| f);
            let extremes = EXTREMES.iter().filter(|_| !dtype.is_complex()).map(|(_, f)| f);
            moves.chain(sums).chain(extremes).map(|f| f(x.clone())).collect()
        };
        let mapped = pmap(collectives).axis_name("i").call(&x)?;
        let by_vmap = vmap(collectives).axis_name("i").call(&x)?;
        mapped.iter().zip(&by_vmap).for_each(|(a, b)| same(a, b));
        let blocks =
            move |x: Array| collectives(x.squeeze(0)).into_iter().map(|y| y.expand_dims(0)).collect::<Vec<Array>>();
        let f = shard_map(blocks, &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
        f.call(&x)?.iter().zip(&by_vmap).for_each(|(a, b)| same(a, b));
    }
    Ok(())
}

#[test]
fn dtypes_of_sums_and_means() -> Result<()> {
    setup();
    for dtype in dtypes().skip(one_of(3) - 1).step_by(one_of(4)) {
        let x = values(dtype);
        let sum = pmap(|x: Array| psum(x, "i")).axis_name("i").call(&x)?;
        assert_eq!(sum.dtype(), if dtype == DType::Bool { DType::I32 } else { dtype });
        let mean = pmap(|x: Array| pmean(x, "i")).axis_name("i").call(&x)?;
        let inexact = dtype.is_float() || dtype.is_complex();
        let wide = matches!(dtype, DType::I64 | DType::U64);
        let want = if inexact { dtype } else { DType::F32 };
        assert!(mean.dtype() == want || wide && mean.dtype() == DType::F64, "{dtype}: {}", mean.dtype());
        // Of constants too.
        let f = move |x: Array| psum(array(1).astype(dtype), "i") + x.astype(DType::Bool).astype(dtype) * 0;
        if dtype != DType::Bool {
            assert_eq!(pmap(f).axis_name("i").call(&x)?.dtype(), dtype);
        }
    }
    // Integers wrap.
    let x = Array::from_vec(vec![100u8, 100, 100, 100], &[4])?;
    assert_eq!(pmap(|x: Array| psum(x, "i")).axis_name("i").call(&x)?.to_vec::<u8>()?, [144; 4]);
    Ok(())
}

/// NaN is never lost, and zeros of both signs come out as some zero.
#[test]
fn extremes_keep_nan() -> Result<()> {
    setup();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16].into_iter().step_by(one_of(3)) {
        for place in 0..4 {
            let mut host = [1.0f32, -2.0, 3.0, f32::NEG_INFINITY];
            host[place] = f32::NAN;
            let x = array(host).astype(dtype).reshape([4, 1]) * array([1.0f32, 2.0]).astype(dtype);
            for (name, body) in EXTREMES {
                for y in [pmap(body).axis_name("i").call(&x)?, vmap(body).axis_name("i").call(&x)?] {
                    assert_eq!(y.dtype(), dtype);
                    assert!(y.to_f64_vec()?.iter().all(|v| v.is_nan()), "{name} {dtype} {place}: {y}");
                }
                // With groups, only the group that has the NaN returns it.
                let groups = move |x: Array| match name {
                    "pmax" => pmax(x, axis_index_groups("i", [[0, 1], [2, 3]])),
                    _ => pmin(x, axis_index_groups("i", [[0, 1], [2, 3]])),
                };
                let y = pmap(groups).axis_name("i").call(&x)?.to_f64_vec()?;
                let nans: Vec<bool> = y.iter().map(|v| v.is_nan()).collect();
                let is_first = place < 2;
                assert_eq!(
                    nans,
                    [is_first, is_first, is_first, is_first, !is_first, !is_first, !is_first, !is_first],
                    "{name} {dtype}"
                );
            }
        }
    }
    Ok(())
}

/// A tree of several dtypes, and one with no leaves at all.
#[test]
fn trees() -> Result<()> {
    setup();
    type T = (Array, (Array, Array), ());
    let x: T = (ramp(8, DType::F32), (ramp(8, DType::I32), ramp(8, DType::I32).less(3)), ());
    let (a, (b, c), ()) = pmap(|x: T| psum(x, "i")).axis_name("i").call(&x)?;
    assert_eq!(a.to_vec::<f32>()?, [28.0; 8]);
    assert_eq!((b.to_vec::<i32>()?, c.to_vec::<i32>()?), (vec![28; 8], vec![3; 8]));
    pmap(|_: Array| psum((), "i")).axis_name("i").call(ramp(8, DType::F32))
}

/// Keys of random numbers are moved like other values.
#[test]
fn keys() -> Result<()> {
    setup();
    let keys = random::split(&random::key(3), 8);
    let gathered = pmap(|k: Array| all_gather(k, "i", 0)).axis_name("i").call(&keys)?;
    for device in 0..8 {
        same(&gathered.get(device), &keys);
    }
    let turned = pmap(|k: Array| ppermute(k, "i", [(0, 1), (1, 0)])).axis_name("i").call(&keys)?;
    same(&turned.get(0), &keys.get(1));
    Ok(())
}
