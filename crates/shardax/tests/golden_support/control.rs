//! Control flow.

use shardax::MapOptions;
use shardax::prelude::*;
use shardax::{control_flow, tree};

use super::{Case, Fun, many};

pub fn function(case: &Case) -> Option<Fun> {
    match case.name.as_str() {
        name if name.contains("scan") => scans(name),
        name if name.starts_with("cond") || name.starts_with("switch") || name.ends_with("_cond") => conditionals(name),
        name => loops(name),
    }
}

/// A tree's leaves.
fn leaves<T: Tree>(result: Result<T>) -> Result<Vec<Array>> {
    Ok(tree::leaves(&result?))
}

fn sum_step(c: Array, x: Array) -> (Array, Array) {
    let c = c + &x;
    (c.clone(), c * x)
}

fn rnn_step(a: &[Array]) -> impl Fn(Array, Array) -> (Array, Array) {
    let (w, u) = (a[0].clone(), a[1].clone());
    move |h, x| {
        let h = (w.matmul(h) + u.matmul(x)).tanh();
        (h.clone(), h)
    }
}

fn scans(name: &str) -> Option<Fun> {
    // The names are in the generator of the reference cases, with the same functions in JAX.
    match name {
        "scan_sum" | "scan_length_1" | "scan_length_0" | "scan_i32" => {
            many(|a| leaves(scan(sum_step, a[0].clone(), a[1].clone())))
        }
        "scan_rnn" => many(|a| leaves(scan(rnn_step(a), a[2].clone(), a[3].clone()))),
        "scan_checkpoint" => many(|a| {
            let step = checkpoint(rnn_step(a));
            leaves(scan(|h: Array, x: Array| step.call((h, x)), a[2].clone(), a[3].clone()))
        }),
        "scan_rnn_reverse" => {
            many(|a| leaves(ScanOptions::new().reverse(true).scan(rnn_step(a), a[2].clone(), a[3].clone())))
        }
        "scan_two_carries" => many(|a| {
            let step = |(a, b): (Array, Array), (x, y): (Array, Array)| {
                let next = (b.clone(), a.sin() * &x + y);
                (next, (a * &b, x - b))
            };
            leaves(scan(step, (a[0].clone(), a[1].clone()), (a[2].clone(), a[3].clone())))
        }),
        "scan_counter" => many(|a| {
            fn step((n, v): (Array, Array)) -> ((Array, Array), Array) {
                ((&n + 1, &v * (n + 1)), v)
            }
            leaves(scan_n(step, (array(0), a[0].clone()), 4))
        }),
        "scan_no_output" => many(|a| Ok(vec![scan(|c: Array, x| (c * x + 1, ()), a[0].clone(), a[1].clone())?.0])),
        "scan_unrolled" => many(|a| leaves(ScanOptions::new().unroll(2).scan(sum_step, a[0].clone(), a[1].clone()))),
        "scan_nested" => many(|a| {
            fn inner(c: Array, x: Array) -> (Array, Array) {
                let c = c.sin() + &x;
                (c.clone(), c * x)
            }
            leaves(scan(|c, row: Array| scan(inner, c, row), a[0].clone(), a[1].clone()))
        }),
        "scan_of_cond" => many(|a| {
            let step = |c: Array, x: Array| -> Result<(Array, Array)> {
                let c = cond(x.greater(0), |()| c.sin() * &x, |()| &c - &x, ())?;
                Ok((c.clone(), c))
            };
            leaves(scan(step, a[0].clone(), a[1].clone()))
        }),
        "associative_scan_add" => many(|a| leaves(associative_scan(|a: Array, b: Array| a + b, a[0].clone()))),
        "grad_of_grad_of_scan" => {
            fn f(x: Array) -> Result<Array> {
                Ok(scan(|c: Array, k: Array| (c.sin() * k, ()), x, array([1.0f32, 2.0, 3.0]))?.0)
            }
            many(|a| {
                let x = &a[0];
                Ok(vec![grad(f).call(x)?, grad(grad(f)).call(x)?, grad(grad(grad(f))).call(x)?])
            })
        }
        "hessian_of_scan" => {
            fn sum_of_squares(x: Array) -> Result<Array> {
                fn step(c: Array, v: Array) -> (Array, Array) {
                    let c = c * v + 1;
                    (c.clone(), c)
                }
                Ok(scan(step, x.get(0), x)?.1.square().sum(..))
            }
            many(|a| Ok(vec![hessian(sum_of_squares).call(&a[0])?]))
        }
        _ => None,
    }
}

fn loops(name: &str) -> Option<Fun> {
    // The names are in the generator of the reference cases, with the same functions in JAX.
    match name {
        "map_square" => many(|a| leaves(control_flow::map(|x: Array| &x * x.sum(..), a[0].clone()))),
        "while_double" => many(|a| {
            let limit = a[1].clone();
            leaves(while_loop(|x: Array| x.abs().max(..).less(&limit), |x| &x * 2 + 0.1 * &x * &x, a[0].clone()))
        }),
        "while_count" => many(|a| {
            let (n, x) = (&a[0], &a[1]);
            let body = |(i, v): (Array, Array)| (i + 1, v.sin() + x);
            leaves(while_loop(|(i, _)| i.less(n), body, (array(0), x.clone())))
        }),
        "while_collatz" => many(|a| {
            let body = |(n, k): (Array, Array)| {
                let even = remainder(&n, 2).equal(0);
                (where_(even, floor_divide(&n, 2), &n * 3 + 1), k + 1)
            };
            Ok(vec![while_loop(|(n, _)| n.greater(1), body, (a[0].clone(), array(0)))?.1])
        }),
        "while_never" => many(|a| leaves(while_loop(|_| Array::from(false), |x| x + 1, a[0].clone()))),
        "fori_static" => many(|a| {
            let x = &a[0];
            leaves(fori_loop(0, 5, |i, v| v * (i * 0.5).cos() + x, x.clone()))
        }),
        "fori_dynamic" => many(|a| leaves(fori_loop(&a[0], &a[1], |i, v| v * 1.5 + i, a[2].clone()))),
        "fori_update" => many(|a| {
            fn body(i: Array, v: Array) -> Array {
                let before = v.get(&i - 1);
                v.at(i).add(before)
            }
            leaves(fori_loop(1, 5, body, a[0].clone()))
        }),
        "map_batch_size_f32" => many(|a| {
            let sums: Array = MapOptions::new().batch_size(3).map(|x: Array| x.sin().sum(..), a[0].clone())?;
            Ok(vec![sums])
        }),
        "fori_unroll_f32" => {
            many(|a| leaves(ScanOptions::new().unroll(2).fori_loop(0, 5, |i, x: Array| x * 1.5 + i, a[0].clone())))
        }
        "fori_empty" => many(|a| leaves(fori_loop(3, 3, |_, v| v + 1, a[0].clone()))),
        _ => None,
    }
}

fn conditionals(name: &str) -> Option<Fun> {
    // The names are in the generator of the reference cases, with the same functions in JAX.
    match name {
        "cond_true" | "cond_false" | "cond_i32_predicate" => many(|a| {
            fn on_true((x, y): (Array, Array)) -> Array {
                x.sin() * y
            }
            leaves(cond(&a[0], on_true, |(x, y)| x - &y * &y, (a[1].clone(), a[2].clone())))
        }),
        "cond_closure_true" | "cond_closure_false" => many(|a| {
            let z = cond(&a[0], |()| &a[1] * 2, |()| a[2].clone(), ())?;
            Ok(vec![z.clone(), z.sum(..)])
        }),
        "cond_tree_true" | "cond_tree_false" => many(|a| {
            let (x, y) = (&a[1], &a[2]);
            leaves(cond(&a[0], |()| (x.clone(), y.clone()), |()| (y.clone(), x * y), ()))
        }),
        "cond_computed_predicate" => {
            many(|a| leaves(cond(a[0].sum(..).greater(0), |x: Array| x.cos(), |x| x.exp(), a[0].clone())))
        }
        "cond_nested" => many(|a| {
            let (q, x) = (&a[1], &a[2]);
            let on_true = |()| cond(q, |x: Array| x.sin(), |x| x.cos(), x.clone());
            leaves(cond(&a[0], on_true, |()| cond(q, |x: Array| x.exp(), |x| x, x.clone()), ()))
        }),
        "grad_of_grad_of_cond" => many(|a| {
            let p = a[0].clone();
            let f = move |x: Array| cond(&p, |x: Array| x.sin(), |x| &x * &x * &x, x);
            Ok(vec![grad(grad(f)).call(&a[1])?])
        }),
        name if name.starts_with("switch") => many(|a| {
            let branches = (|x: Array| x.sin(), |x: Array| &x * &x, |x: Array| -x);
            leaves(switch(&a[0], branches, a[1].clone()))
        }),
        _ => None,
    }
}
