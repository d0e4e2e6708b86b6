//! Sparse arrays and differential equations.

use shardax::experimental::ode::{OdeintOptions, odeint};
use shardax::experimental::sparse::{self, BCOO, BCSR, FromdenseOptions, bcoo_dot_general, bcoo_sum_duplicates};
use shardax::prelude::*;

use super::{Case, Fun, many};

fn sizes(case: &Case) -> Vec<usize> {
    case.ints("shape").into_iter().map(|n| n as usize).collect()
}

fn both(m: BCOO) -> Vec<Array> {
    vec![m.data, m.indices]
}

/// A function of a sparse array, whose data and indices are the first two arrays, and of the other arrays.
#[track_caller]
fn of_sparse(case: &Case, f: impl Fn(BCOO, &[Array]) -> Result<Vec<Array>> + 'static) -> Option<Fun> {
    let shape = sizes(case);
    many(move |xs| f(BCOO::new(&xs[0], &xs[1], &shape)?, &xs[2..]))
}

/// The options of a case.
fn options(case: &Case) -> OdeintOptions {
    fn number(name: &str, case: &Case) -> Option<f64> {
        case.param(name).as_f64()
    }
    let mut options = OdeintOptions::new().mxstep(number("mxstep", case).map(|n| n as usize));
    if let (Some(rtol), Some(atol)) = (number("rtol", case), number("atol", case)) {
        options = options.rtol(rtol).atol(atol);
    }
    match number("hmax", case) {
        Some(hmax) => options.hmax(hmax),
        None => options,
    }
}

/// Two populations, with rates that are captured.
fn lotka_volterra(xs: &[Array]) -> Result<Vec<Array>> {
    fn rate(i: i32, xs: &[Array]) -> Array {
        xs[3].get(i)
    }
    let slopes = |y: Vec<Array>, _t: Array, ()| -> Vec<Array> {
        let meetings = &y[0] * &y[1];
        vec![rate(0, xs) * &y[0] - rate(1, xs) * &meetings, rate(2, xs) * &meetings - rate(3, xs) * &y[1]]
    };
    OdeintOptions::new().rtol(1e-8).atol(1e-8).odeint(slopes, xs[..2].to_vec(), &xs[2], ())
}

/// The second derivative of the square of a solution's end.
fn curvature(y: &Array, t: &Array) -> Result<Array> {
    let end = |y: Array| -> Result<Array> { Ok(odeint(|y: Array, _t: Array, ()| -(&y * &y), y, t, ())?.get(-1)) };
    let energy = |y: Array| Ok(end(y)?.square().sum(..));
    grad(|y: Array| Ok(grad(energy).call(y)?.sum(..))).call(y)
}

pub fn function(case: &Case) -> Option<Fun> {
    // The number of stored elements, if the case fixes it.
    let nse = case.param("nse").as_u64().map(|n| n as usize);
    match case.op.as_str() {
        "fromdense" => {
            let options = FromdenseOptions::new().n_dense(case.int("n_dense") as usize);
            many(move |xs| Ok(both(options.fromdense(&xs[0], nse)?)))
        }
        "todense" => of_sparse(case, |m, _| Ok(vec![m.todense()])),
        "sort_indices" => of_sparse(case, |m, _| Ok(both(m.sort_indices()?))),
        "bcoo_sum_duplicates" => of_sparse(case, move |m, _| Ok(both(bcoo_sum_duplicates(&m, nse)?))),
        "sum_duplicates" => of_sparse(case, move |m, _| Ok(both(m.sum_duplicates(nse)?))),
        "transpose" => {
            let axes = case.axes("axes");
            of_sparse(case, move |m, _| Ok(both(m.transpose(&axes)?)))
        }
        "sum" => {
            let axes = case.axes("axes");
            of_sparse(case, move |m, _| Ok(vec![m.sum(&axes)?.todense()]))
        }
        "multiply" => of_sparse(case, |m, xs| Ok(vec![(m * &xs[0]).todense()])),
        "divide" => of_sparse(case, |m, xs| Ok(vec![(m / &xs[0]).todense()])),
        "negative" => of_sparse(case, |m, _| Ok(vec![(-m).todense()])),
        "add" | "subtract" => {
            let is_sum = case.op == "add";
            of_sparse(case, move |m, xs| {
                let sparse = BCOO::new(&xs[0], &xs[1], m.shape())?;
                Ok(vec![if is_sum { m + &sparse } else { m - &sparse }.todense()])
            })
        }
        "product" => of_sparse(case, |m, xs| Ok(vec![m.matmul(&xs[0])])),
        "product_right" => of_sparse(case, |m, xs| Ok(vec![sparse::matmul(&xs[0], m)])),
        "bcoo_dot_general" => {
            let [lhs, rhs] =
                ["lhs", "rhs"].map(|name| case.ints(name).into_iter().map(|d| d as usize).collect::<Vec<_>>());
            of_sparse(case, move |m, xs| Ok(vec![bcoo_dot_general(m, &xs[0], (&lhs, &rhs))]))
        }
        "sparse_grad" => of_sparse(case, |m, xs| {
            fn loss(m: BCOO, x: Array) -> Array {
                m.matmul(x).sin().sum(..)
            }
            Ok(both(sparse::grad(loss).call((m, &xs[0]))?))
        }),
        "bcsr" => many(move |xs| {
            let m = BCSR::fromdense(&xs[0], nse)?;
            let (dense, product) = (m.todense(), m.matmul(xs[0].sum(0)));
            Ok(vec![m.data, m.indices, m.indptr, dense, product])
        }),
        "odeint" => {
            let options = options(case);
            fn decay(y: Array, t: Array, rate: Array) -> Array {
                -(rate * y) + t.sin()
            }
            many(move |xs| Ok(vec![options.odeint(decay, xs[0].clone(), &xs[1], xs[2].clone())?]))
        }
        "odeint_tree" => many(lotka_volterra),
        "odeint_complex" => {
            let options = OdeintOptions::new().rtol(1e-6).atol(1e-6);
            fn wave(y: Array, t: Array, (): ()) -> Array {
                y * t * shardax::numpy::complex(0.0, 1.0)
            }
            many(move |xs| Ok(vec![options.odeint(wave, xs[0].clone(), &xs[1], ())?]))
        }
        "odeint_curvature" => many(|xs| Ok(vec![curvature(&xs[0], &xs[1])?])),
        _ => None,
    }
}
