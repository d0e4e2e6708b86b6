//! Linear functions made of nested transformations, with operands in every state: `jit` in loops, derivatives in loops, custom rules
//! over refs, results of several parts. The numbers must equal the numbers of one device.
//!
//! `cargo test` runs a slice. `SHARDAX_TEST_STATES_ONLY` selects the paths that contain a text, such as `varying/scan`, and all if it is
//! empty.

use shardax::export::export;

use super::sweep::{Run, STATES, WAYS, Way, close, is_rejection, operands, replicate, run_on_each_device, values};
use super::*;
use crate::common::quick::one_of;

/// A function that is linear, so that it has a result for addends too.
type Linear = fn(Array) -> Result<Vec<Array>>;

fn twice(x: Array) -> Array {
    &x + &x
}

fn inner() -> impl Fn(Array) -> Result<Array> {
    |x: Array| jit(twice).call(x)
}

const NESTED: &[(&str, Linear)] = &[
    ("parts", |x| {
        jit(|x: Array| (x.clone(), vec![twice(x.clone()), x.sum(0)], x.t()))
            .call(x)
            .map(|(a, b, c)| vec![a, b[0].clone(), b[1].clone(), c])
    }),
    ("one part twice", |x| {
        jit(|x: Array| {
            let y = twice(x);
            (y.clone(), y)
        })
        .call(x)
        .map(|(a, b)| vec![a, b])
    }),
    ("arguments returned", |x| jit(|x: Array, y: Array| (y, x)).call((x.clone(), x)).map(|(a, b)| vec![a, b])),
    ("jit in scan", |x| {
        let f = inner();
        let (c, ys) = shardax::scan_n(
            move |c: Array| {
                let y = f(c)?;
                Ok((y.clone(), y.sum(1)))
            },
            x,
            3,
        )?;
        Ok(vec![c, ys])
    }),
    ("scan in jit in scan", |x| {
        fn step(c: Array) -> Result<(Array, Array)> {
            let c = jit(|c: Array| shardax::scan_n(|c: Array| Ok((&c + &c, ())), c, 2).map(|(c, ())| c)).call(c)?;
            Ok((c.clone(), c.get(0)))
        }
        shardax::scan_n(step, x, 2).map(|(c, ys)| vec![c, ys])
    }),
    ("fori_loop", |x| Ok(vec![fori_loop(0, 3, |_, c: Array| Ok(twice(c)), x)?])),
    ("fori_loop of a traced bound", |x| {
        jit(|x: Array, n: Array| fori_loop(0, n, |_, c: Array| Ok(twice(c)), x)).call((x, array(3))).map(|y| vec![y])
    }),
    ("switch", |x| {
        let branches = (|x: Array| Ok(x), |x: Array| Ok(twice(x)), |x: Array| Ok(-x));
        Ok(vec![switch(array(1), branches, x)?])
    }),
    ("cond of parts", |x| {
        let (a, b) =
            cond(array(false), |x: Array| Ok((x.clone(), x.sum(0))), |x: Array| Ok((twice(x.clone()), x.get(1))), x)?;
        Ok(vec![a, b])
    }),
    ("map", |x| Ok(vec![shardax::lax::map(|row: Array| Ok(twice(row)), x)?])),
    ("associative_scan", |x| Ok(vec![associative_scan(|a: Array, b: Array| a + b, x)?])),
    ("jvp", |x| jvp(|x: Array| twice(x), x.clone(), x).map(|(y, t)| vec![y, t])),
    ("jvp in scan", |x| {
        let step = |c: Array| -> Result<(Array, Array)> {
            let (y, t) = jvp(|x: Array| twice(x), &c, &c)?;
            Ok((y, t))
        };
        shardax::scan_n(step, x, 3).map(|(c, ys)| vec![c, ys])
    }),
    ("linearize", |x| {
        let (y, push) = linearize(|x: Array| (twice(x.clone()), x.sum(0)), x.clone())?;
        let t = push.call(x)?;
        Ok(vec![y.0, y.1, t.0, t.1])
    }),
    ("vmap of jit", |x| Ok(vec![vmap(|row: Array| jit(|row: Array| twice(row)).call(row)).call(x)?])),
    ("vmap of parts", |x| vmap(|row: Array| (row.sum(..), row)).call(x).map(|(a, b)| vec![a, b])),
    ("checkpoint in scan", |x| {
        let step = |c: Array| -> Result<(Array, Array)> {
            let y = checkpoint(|x: Array| twice(x)).call(c)?;
            Ok((y.clone(), y))
        };
        shardax::scan_n(step, x, 2).map(|(c, ys)| vec![c, ys])
    }),
    ("custom_vjp", |x| {
        let f = custom_vjp(|x: Array| twice(x)).defvjp(|x: Array| (twice(x), ()), |(), ct: Array| (twice(ct),));
        Ok(vec![f.call(x)?])
    }),
    ("custom_jvp in cond", |x| {
        let f = |x: Array| {
            custom_jvp(|x: Array| twice(x)).defjvp(|(x,): (Array,), (t,): (Array,)| (twice(x), twice(t))).call(x)
        };
        Ok(vec![cond(array(true), f, f, x)?])
    }),
    ("custom_vjp, a part unused", |x| {
        let f = custom_vjp(|x: Array| (twice(x.clone()), x.sum(0)));
        let f = f.defvjp(|x: Array| ((twice(x.clone()), x.sum(0)), ()), |(), (ct, _): (Array, Array)| (twice(ct),));
        Ok(vec![f.call(x)?.0])
    }),
    ("jit, a part unused", |x| jit(|x: Array| (twice(x.clone()), x.sum(0))).call(x).map(|(a, _)| vec![a])),
    ("checkpoint, a part unused", |x| {
        checkpoint(|x: Array| (twice(x.clone()), x.sum(0))).call(x).map(|(_, b)| vec![b])
    }),
    ("cond, a part unused", |x| {
        let parts = |x: Array| Ok((twice(x.clone()), x.sum(0)));
        Ok(vec![cond(array(true), parts, parts, x)?.1])
    }),
    ("scan, the carry unused", |x| Ok(vec![shardax::scan_n(|c: Array| Ok((twice(c.clone()), c)), x, 3)?.1])),
    ("scan, a part unused", |x| {
        let step = |c: Array| Ok((twice(c.clone()), (c.clone(), c.sum(0))));
        Ok(vec![shardax::scan_n(step, x, 3)?.1.1])
    }),
    ("scan of what it captures", |x| {
        let step = |c: Array| -> Result<(Array, Array)> { Ok((&c + &x, x.get(1))) };
        shardax::scan_n(step, x.clone(), 3).map(|(c, ys)| vec![c, ys])
    }),
    ("scan in reverse, unrolled", |x| {
        let xs = if x.type_name().contains("4@") { reshard(x, P![]) } else { x };
        let options = ScanOptions::new().reverse(true).unroll(3);
        fn step(c: Array, row: Array) -> Result<(Array, Array)> {
            Ok((&c + &row, c))
        }
        options.scan(step, xs.get(0), xs).map(|(c, ys)| vec![c, ys])
    }),
    ("fori_loop of what it captures", |x| Ok(vec![fori_loop(0, 3, |_, c: Array| Ok(&c + &x), x.clone())?])),
    ("a ref that is added to", |x| {
        fn f(x: Array) -> Result<Array> {
            let sum = new_ref(&x)?;
            shardax::scan_n(
                |()| -> Result<((), ())> {
                    sum.add(&x)?;
                    Ok(((), ()))
                },
                (),
                2,
            )?;
            Ok(sum.get())
        }
        Ok(vec![f(x.clone())?, jit(f).call(x)?])
    }),
    ("a ref in custom_vjp", |x| {
        let f = custom_vjp(|x: Array| -> Result<Array> {
            let r = new_ref(&x)?;
            r.add(&x)?;
            Ok(r.get())
        });
        let f = f.defvjp(|x: Array| (twice(x), ()), |(), ct: Array| (twice(ct),));
        Ok(vec![jit(move |x: Array| f.call(x)).call(x)?])
    }),
    ("a ref of rows", |x| {
        fn f(x: Array) -> Result<Array> {
            let r = new_ref(&(&x - &x))?;
            let step = |i: Array| -> Result<(Array, ())> {
                r.at(&i).set(x.get(&i))?;
                Ok((i + 1, ()))
            };
            let _ = shardax::scan_n(step, array(0), 4)?;
            Ok(r.get())
        }
        Ok(vec![jit(f).call(x)?])
    }),
];

/// Gradients of weighted sums of linear functions are the same everywhere.
fn gradient(f: Linear, x: &Array) -> Result<Vec<Array>> {
    let total = |x: Array| -> Result<Array> {
        let sums = f(x)?.into_iter().map(|y| replicate(&y).sum(..));
        Ok(sums.reduce(|a, b| a + b).unwrap_or_else(|| array(0.0f32)))
    };
    Ok(vec![grad(total).call(x)?])
}

#[test]
fn nested_transformations_of_values_in_every_state() {
    setup();
    let only = std::env::var("SHARDAX_TEST_STATES_ONLY").ok();
    let ways = || WAYS.iter().filter(|(way, _)| ["eager", "jit", "disable_jit", "cond", "grad"].contains(way));
    let (mut equal, mut rejected, mut failures) = (0, Vec::new(), Vec::new());
    for (s, state) in STATES.iter().filter(|state| state.shape == [4, 8]).enumerate() {
        let mesh = make_mesh(state.axes.iter().copied()).unwrap();
        let plain = &operands(state.shape, DType::F32)[..1];
        for (n, (name, f)) in NESTED.iter().enumerate() {
            for (w, (way, run)) in ways().enumerate() {
                let path = format!("{}/{way}/{name}", state.name);
                let is_chosen = match &only {
                    Some(only) => path.contains(only),
                    // A slice has every function, every state and every way.
                    None => (7 * n + 5 * s + w).is_multiple_of(one_of(40)),
                };
                if !is_chosen {
                    continue;
                }
                let plainly = || if *way == "grad" { gradient(*f, &plain[0]) } else { f(plain[0].clone()) };
                let want = plainly().and_then(|ys| values(&ys));
                let guard = set_mesh(&mesh).unwrap();
                let placed = [(state.put)(&plain[0]).unwrap()];
                let body: Run = &|xs: &[Array]| f(xs[0].clone());
                let have = match state.name {
                    "manual" | "varying" if *way == "grad" => continue,
                    "manual" | "varying" => run_on_each_device(*run, body, &placed, state.name == "varying"),
                    _ if *way == "grad" => gradient(*f, &placed[0]),
                    _ => run(body, &placed),
                };
                let have = have.and_then(|ys| values(&ys));
                drop(guard);
                match (have, want) {
                    (Ok(have), Ok(want)) if close(&have, &want) => equal += 1,
                    (Err(error), _) if is_rejection(&error, state.name) => rejected.push(format!("{path}: {error}")),
                    // A gradient that needs every step of a loop.
                    (Err(_), Err(_)) => {}
                    (have, want) => failures.push(format!("{path}: {have:?}, and on one device {want:?}")),
                }
            }
        }
    }
    eprintln!("nested transformations: {equal} equal, {} rejected:\n{}", rejected.len(), rejected.join("\n"));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// A one that varies as `x` does.
fn one(x: &Array) -> Array {
    replicate(x).get((0, 0)) * 0 + 1
}

/// Functions that are not linear, so they have no results for addends. `x` is a matrix of rows of 8 numbers.
const CURVED: &[(&str, Linear)] = &[
    ("grad in scan", |x| {
        fn step(c: Array) -> Result<(Array, Array)> {
            let slope = grad(|c: Array| Ok(replicate(&c.sin()).sum(..))).call(&c)?;
            Ok((c * 0.5, slope))
        }
        shardax::scan_n(step, x, 3).map(|(c, ys)| vec![c, ys])
    }),
    ("grad of a scan of rows", |x| {
        fn f(x: Array) -> Result<Array> {
            let (sum, ys) =
                shardax::scan(|c: Array, row: Array| Ok(((&c * row.cos()).sum(..), row.sin())), one(&x), x)?;
            Ok(sum + replicate(&ys).sum(..))
        }
        Ok(vec![grad(f).call(x)?])
    }),
    ("grad of vmap of scan", |x| {
        fn row(row: Array) -> Result<Array> {
            shardax::scan_n(|c: Array| Ok((c.sin(), ())), row, 3).map(|(c, ())| c.sum(..))
        }
        Ok(vec![grad(|x: Array| vmap(row).call(x).map(|y| replicate(&y).sum(..))).call(x)?])
    }),
    ("hessian of rows", |x| Ok(vec![vmap(hessian(|row: Array| replicate(&row.sin()).square().sum(..))).call(x)?])),
    ("jacrev of a row", |x| Ok(vec![jacrev(|row: Array| row.square() * row.sum(..)).call(x.get(0))?])),
    ("jacfwd of a row", |x| Ok(vec![jacfwd(|row: Array| row.square() * row.sum(..)).call(x.get(0))?])),
    ("jvp of grad", |x| {
        fn slope(x: Array) -> Result<Array> {
            grad(|x: Array| Ok(replicate(&x.sin()).square().sum(..))).call(x)
        }
        jvp(slope, &x, &x).map(|(y, t)| vec![y, t])
    }),
    ("vjp in cond", |x| {
        fn f(x: Array) -> Result<Array> {
            let (y, back) = vjp(|x: Array| replicate(&x.sin()).sum(..), &x)?;
            Ok(back.call(y)?.0)
        }
        Ok(vec![cond(array(true), f, f, x)?])
    }),
    ("cond of a row in scan", |x| {
        fn step(c: Array, row: Array) -> Result<(Array, Array)> {
            let y = cond(row.get(0).greater(0), |row: Array| Ok(row.sin()), |row: Array| Ok(row * 2), row)?;
            Ok((c + y.sum(..), y))
        }
        shardax::scan(step, one(&x), x).map(|(c, ys)| vec![c, ys])
    }),
    ("while of a norm", |x| {
        fn more(c: Array) -> Result<Array> {
            Ok(replicate(&c.square()).sum(..).greater(1.0))
        }
        Ok(vec![while_loop(more, |c: Array| Ok(c * 0.5), x)?])
    }),
    ("vmap of while", |x| {
        fn row(row: Array) -> Result<Array> {
            while_loop(|c: Array| Ok(c.square().sum(..).greater(1.0)), |c: Array| Ok(c * 0.5), row)
        }
        Ok(vec![vmap(row).call(x)?])
    }),
    ("custom_vjp in scan", |x| {
        let f = custom_vjp(|x: Array| x.sin()).defvjp(|x: Array| (x.sin(), x), |x: Array, ct: Array| (ct * x.cos(),));
        let total = |x: Array| {
            shardax::scan_n(|c: Array| f.call(c).map(|c| (c, ())), x, 2).map(|(c, ())| replicate(&c).sum(..))
        };
        Ok(vec![grad(total).call(x)?])
    }),
    ("custom_jvp in vmap in scan", |x| {
        let f = custom_jvp(|x: Array| x.sin()).defjvp(|(x,): (Array,), (t,): (Array,)| (x.sin(), t * x.cos()));
        let step = |c: Array| vmap(|row: Array| f.call(row)).call(c).map(|c| (c, ()));
        let total = |x: Array| shardax::scan_n(step, x, 2).map(|(c, ())| replicate(&c).sum(..));
        Ok(vec![grad(total).call(x)?])
    }),
    ("checkpoint of scan of checkpoint", |x| {
        let step = |c: Array| checkpoint(|c: Array| c.sin()).call(c).map(|c| (c.clone(), c.sum(1)));
        let f = checkpoint(|x: Array| shardax::scan_n(step, x, 2));
        Ok(vec![grad(|x: Array| f.call(x).map(|(c, ys)| replicate(&c).sum(..) + replicate(&ys).sum(..))).call(x)?])
    }),
    ("exported in scan", |x| {
        let f = export(|x: Array| x.sin(), &x)?;
        shardax::scan_n(|c: Array| f.call(c).map(|c| (c.clone(), c.sum(1))), x, 2).map(|(c, ys)| vec![c, ys])
    }),
    ("exported in vmap in cond", |x| {
        let f = export(|row: Array| row.sin(), &x.get(0))?;
        let rows = |x: Array| vmap(|row: Array| f.call(row)).call(x);
        Ok(vec![cond(array(true), rows, |x: Array| Ok(x), x)?])
    }),
    ("exported in checkpoint", |x| {
        let f = shardax::export::ExportOptions::new().vjp_order(1).export(|x: Array| x.sin(), &x)?;
        let g = checkpoint(|x: Array| f.call(x));
        Ok(vec![grad(|x: Array| g.call(x).map(|y| replicate(&y).sum(..))).call(x)?])
    }),
    ("exported in a rule", |x| {
        let f = export(|x: Array| x.cos(), &x)?;
        let g = custom_vjp(|x: Array| x.sin()).defvjp(
            move |x: Array| Ok::<_, shardax::Error>((x.sin(), f.call(x)?)),
            |slope: Array, ct: Array| Ok::<_, shardax::Error>((ct * slope,)),
        );
        Ok(vec![grad(|x: Array| g.call(x).map(|y| replicate(&y).sum(..))).call(x)?])
    }),
    ("rows set in fori_loop", |x| {
        let start = zeros_like(&x);
        Ok(vec![fori_loop(0, 4, |i: Array, y: Array| Ok(y.at(&i).set(x.get(&i).sin())), start)?])
    }),
    ("a slice by an index of the data", |x| {
        let place = x.get(0).argmax(0);
        Ok(vec![lax::dynamic_slice(&x.sin(), &[array(0), place], &[4, 1]), x.get((.., &x.get(1).argmin(0)))])
    }),
    ("sorted rows", |x| Ok(vec![vmap(|row: Array| sort(&row, 0)).call(x.clone())?, x.argsort(0), lax::top_k(&x, 2).0])),
    ("random numbers in scan", |x| {
        fn step(c: Array, key: Array) -> Result<(Array, Array)> {
            Ok((&c + random::normal(&key, [8]), random::uniform(&key, [2])))
        }
        let (c, ys) = shardax::scan(step, x, random::split(random::key(3), 3))?;
        Ok(vec![c, ys])
    }),
    ("random permutation", |x| Ok(vec![random::permutation(&random::key(1), &x)])),
    ("softmax and products", |x| {
        let p = shardax::nn::softmax(&x, -1);
        Ok(vec![p.matmul(x.t()), einsum("ij,kj->ik", &[&x, &p])])
    }),
    ("associative_scan of products", |x| Ok(vec![associative_scan(|a: Array, b: Array| a * b, x)?])),
    ("map of jit", |x| {
        Ok(vec![shardax::lax::map(|row: Array| jit(|row: Array| row.sin() * row.sum(..)).call(row), x)?])
    }),
    ("switch in vmap", |x| {
        let row =
            |i: Array, row: Array| switch(i, (|r: Array| Ok(r), |r: Array| Ok(r.sin()), |r: Array| Ok(r.cos())), row);
        Ok(vec![vmap(row).call((array([0, 1, 2, 5]), x))?])
    }),
    ("a ref swapped in scan", |x| {
        fn f(x: Array) -> Result<Vec<Array>> {
            let r = new_ref(&x)?;
            let step = |c: Array| -> Result<(Array, Array)> {
                let old = r.swap(&c.sin());
                Ok((c * 0.5, old.sum(1)))
            };
            let (c, ys) = shardax::scan_n(step, x, 2)?;
            Ok(vec![c, ys, r.freeze()])
        }
        jit(f).call(x)
    }),
    ("refs of a function that is called twice", |x| {
        fn f(x: Array) -> Result<Array> {
            let r = new_ref(zeros_like(&x))?;
            let add = jit(|x: Array| -> Result<Array> {
                r.add(x.sin())?;
                Ok(r.get())
            });
            Ok(add.call(&x)? + add.call(&x)? * 2)
        }
        Ok(vec![f(x.clone())?, jit(f).call(x)?])
    }),
    ("steps of zero", |x| {
        let (c, ys) = shardax::scan_n(|c: Array| Ok((c.sin(), c.sum(1))), x.clone(), 0)?;
        let rows = shardax::scan(|c: Array, row: Array| Ok((c + row.sum(..), row)), one(&x), x.get(0..0))?;
        Ok(vec![c, ys, rows.0, rows.1, fori_loop(3, 0, |_, c: Array| Ok(c.sin()), x)?])
    }),
    ("empty rows", |x| {
        let e = x.get((.., 0..0));
        Ok(vec![
            e.sin().sum(1),
            concatenate(&[e.clone(), x.clone()], 1),
            e.matmul(e.t()),
            vmap(|r: Array| r.sum(..)).call(e)?,
        ])
    }),
];

#[test]
fn nested_derivatives_of_values_in_every_state() {
    setup();
    let only = std::env::var("SHARDAX_TEST_STATES_ONLY").ok();
    let (mut equal, mut rejected, mut failures) = (0, Vec::new(), Vec::new());
    for state in STATES.iter().filter(|state| state.shape == [4, 8] && state.name != "unreduced") {
        let mesh = make_mesh(state.axes.iter().copied()).unwrap();
        let plain = &operands(state.shape, DType::F32)[..1];
        for (n, (name, f)) in CURVED.iter().enumerate() {
            let path_of = |way: &str| format!("{}/{way}/{name}", state.name);
            let is_chosen = |w: usize, way: &str| match &only {
                Some(only) => path_of(way).contains(only),
                None => (5 * n + w).is_multiple_of(8 * one_of(12)),
            };
            let ways: Vec<&Way> = (WAYS.iter().enumerate())
                .filter(|(w, (way, _))| *way != "grad" && is_chosen(*w, way))
                .map(|(_, way)| way)
                .collect();
            if ways.is_empty() {
                continue;
            }
            let want = f(plain[0].clone()).and_then(|ys| values(&ys)).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (way, run) in ways {
                let path = path_of(way);
                let guard = set_mesh(&mesh).unwrap();
                let placed = [(state.put)(&plain[0]).unwrap()];
                let body: Run = &|xs: &[Array]| f(xs[0].clone());
                let have = match state.name {
                    "manual" | "varying" => run_on_each_device(*run, body, &placed, state.name == "varying"),
                    _ => run(body, &placed),
                };
                let have = have.and_then(|ys| values(&ys));
                drop(guard);
                match have {
                    Ok(have) if close(&have, &want) => equal += 1,
                    Err(error) if is_rejection(&error, state.name) => rejected.push(format!("{path}: {error}")),
                    // A way that one device does not have either.
                    Err(error) if run(body, plain).is_err_and(|plain| plain.kind() == error.kind()) => {}
                    have => {
                        eprintln!("failure {path}: {have:?}, and on one device {want:?}");
                        failures.push(path);
                    }
                }
            }
        }
    }
    eprintln!("nested derivatives: {equal} equal, {} rejected:\n{}", rejected.len(), rejected.join("\n"));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
