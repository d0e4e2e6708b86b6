//! Collectives over the devices of a mesh axis, nested in loops, branches and transformations, compared with the same collectives over
//! the axis of a batch on one device: axes of 1 to 8 devices, parts without elements, and dtypes of few bits.
//!
//! `cargo test` runs a slice. `SHARDAX_TEST_COLLECTIVES_ONLY` selects the paths that contain a text, and all if it is empty.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::sweep::{close, values};
use super::*;
use crate::common::quick::one_of;

/// A function of the part of a device, of shape `[8, 3]` or `[8, 0]`, and of the number of devices.
type Body = fn(Array, usize) -> Result<Array>;

const BODIES: &[(&str, Body)] = &[
    ("psum", |x, _| Ok(psum(x, "x"))),
    ("pmean", |x, _| Ok(pmean(x, "x"))),
    ("pmax", |x, _| Ok(pmax(x, "x"))),
    ("pmin", |x, _| Ok(pmin(x, "x"))),
    ("all_gather", |x, _| Ok(all_gather(x, "x", 1))),
    ("all_gather_tiled", |x, _| Ok(all_gather_tiled(x, "x", 1))),
    ("psum_scatter", |x, n| Ok(psum_scatter(x.get(..n as i64), "x", 0))),
    ("psum_scatter_tiled", |x, _| Ok(psum_scatter_tiled(x, "x", 0))),
    ("all_to_all", |x, n| Ok(all_to_all(x.get(..n as i64), "x", 0, 1))),
    ("all_to_all_tiled", |x, _| Ok(all_to_all_tiled(x, "x", 0, 1))),
    ("ppermute", |x, n| Ok(ppermute(x, "x", [(0, n - 1)]))),
    ("pshift", |x, _| Ok(pshift(x, "x", 1))),
    ("pshuffle", |x, n| Ok(pshuffle(x, "x", (0..n).rev().collect::<Vec<_>>()))),
    ("pswapaxes", |x, n| Ok(pswapaxes(x.get(..n as i64), "x", 0))),
    ("pbroadcast", |x, n| Ok(pbroadcast(x, "x", n - 1))),
    ("axis_index", |x, _| Ok(x + axis_index("x").astype(DType::I8).with_weak_type(true))),
];

/// A transformation of a body.
type Nest = fn(Body, Array, usize) -> Result<Array>;

const NESTS: &[(&str, Nest)] = &[
    ("alone", |f, x, n| f(x, n)),
    ("jit", |f, x, n| jit(move |x: Array| f(x, n)).call(x)),
    ("scan", |f, x, n| shardax::scan_n(|c: Array| Ok((c.clone(), f(c, n)?)), x, 2).map(|(_, ys)| ys)),
    ("scan of parts", |f, x, n| {
        let xs = stack([&x, &(&x + &x)], 0);
        shardax::scan(|c: Array, x: Array| Ok((c + 1, f(x, n)?)), array(0), xs).map(|(_, ys)| ys)
    }),
    ("fori_loop", |f, x, n| {
        let start = zeros_like(f(x.clone(), n)?);
        fori_loop(0, 2, |_, _: Array| f(x.clone(), n), start)
    }),
    ("cond", |f, x, n| cond(array(true), |x: Array| f(x, n), |x: Array| Ok(zeros_like(f(x, n)?)), x)),
    ("vmap", |f, x, n| vmap(|x: Array| f(x, n)).call(stack([&x, &(&x + &x)], 0))),
    ("vmap in scan", |f, x, n| {
        let xs = stack([&x, &(&x + &x)], 0);
        shardax::scan_n(|c: Array| Ok((c.clone(), vmap(|x: Array| f(x, n)).call(c)?)), xs, 2).map(|(_, ys)| ys)
    }),
    ("checkpoint", |f, x, n| checkpoint(move |x: Array| f(x, n)).call(x)),
    ("jvp", |f, x, n| if x.dtype().is_float() { jvp(|x: Array| f(x, n), &x, &x).map(|(_, t)| t) } else { f(x, n) }),
    ("linearize", |f, x, n| {
        if x.dtype().is_float() {
            linearize(|x: Array| f(x, n), x.clone()).and_then(|(_, push)| push.call(x))
        } else {
            f(x, n)
        }
    }),
    ("custom_vjp", |f, x, n| {
        let g = custom_vjp(move |x: Array| f(x, n))
            .defvjp(move |x: Array| Ok::<_, shardax::Error>((f(x.clone(), n)?, x)), |x: Array, _: Array| (x,));
        g.call(x)
    }),
    ("a ref", |f, x, n| {
        let r = new_ref(&x)?;
        r.set(&x + &x)?;
        f(r.get(), n)
    }),
];

/// The parts of eight devices or fewer, on one device.
fn parts(n: usize, columns: usize, dtype: DType) -> Array {
    let size = n * 8 * columns;
    let numbers: Vec<f32> = (0..size).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
    let x = Array::from_slice(&numbers, &[n, 8, columns]).expect("an array");
    if dtype == DType::Bool { x.greater(0) } else { x.astype(dtype) }
}

#[test]
fn collectives_over_devices_equal_collectives_over_batches() {
    setup();
    let only = std::env::var("SHARDAX_TEST_COLLECTIVES_ONLY").ok();
    let (mut equal, mut rejected, mut failures, mut number) = (0, 0, Vec::new(), 0);
    for n in [1, 2, 4, 8] {
        let mesh = make_mesh([("x", n), ("y", 8 / n)]).expect("eight devices");
        for (columns, dtype) in
            [(3, DType::F32), (0, DType::F32), (3, DType::I8), (3, DType::Bool), (3, DType::F16), (3, DType::Complex64)]
        {
            let x = parts(n, columns, dtype);
            for ((name, f), (nest_name, nest)) in
                BODIES.iter().flat_map(|body| NESTS.iter().map(move |nest| (body, nest)))
            {
                let path = format!("{name}/{nest_name}/{dtype} [8, {columns}] of {n}");
                number += 1;
                let is_chosen = match &only {
                    Some(only) => path.contains(only),
                    None => usize::is_multiple_of(number, 23 * one_of(8)),
                };
                if !is_chosen {
                    continue;
                }
                // A batch axis on one device has the numbers to expect.
                let alone = AssertUnwindSafe(|| {
                    let y = vmap(|x: Array| nest(*f, x, n)).axis_name("x").call(&x)?;
                    values(&[y])
                });
                let expected = catch_unwind(alone).unwrap_or_else(|_| Err(panicked()));
                for compiled in [false, true] {
                    let over = AssertUnwindSafe(|| {
                        let _guard = set_mesh(&mesh)?;
                        let body = |x: Array| -> Result<Array> { Ok(expand_dims(nest(*f, x.get(0), n)?, 0)) };
                        let mapped = shard_map(body, None).axis_names(["x"]).in_specs(P!["x"]).out_specs(P!["x"]);
                        let placed = device_put(&x, P!["x"])?;
                        let y = if compiled {
                            jit(|x: Array| mapped.call(x)).call(&placed)?
                        } else {
                            mapped.call(&placed)?
                        };
                        values(&[y])
                    });
                    match (catch_unwind(over).unwrap_or_else(|_| Err(panicked())), &expected) {
                        (Ok(found), Ok(expected)) if close(&found, expected) => equal += 1,
                        (Err(error), Err(_)) if error.kind() != ErrorKind::Runtime => rejected += 1,
                        (found, expected) => {
                            let failure =
                                format!("{path}, compiled {compiled}: {found:?}, and in a batch {expected:?}");
                            eprintln!("failure {failure}");
                            failures.push(failure);
                        }
                    }
                }
            }
        }
    }
    eprintln!("collectives: {equal} equal, {rejected} rejected in both");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn panicked() -> shardax::Error {
    shardax::Error::new(ErrorKind::Runtime, "panicked")
}
