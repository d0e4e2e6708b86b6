//! Sparse arrays.

use shardax::experimental::sparse::{self, BCOO, BCSR, FromdenseOptions, bcoo_dot_general, bcoo_sum_duplicates};
use shardax::prelude::*;

use super::{Case, Fun, many};

fn sizes(case: &Case) -> Vec<usize> {
    case.ints("shape").into_iter().map(|n| n as usize).collect()
}

fn both(m: BCOO) -> Vec<Array> {
    vec![m.data, m.indices]
}

/// A function of a sparse array, of which the first two arrays are the data and the indices, and of the others.
#[track_caller]
fn of_sparse(case: &Case, f: impl Fn(BCOO, &[Array]) -> Result<Vec<Array>> + 'static) -> Option<Fun> {
    let shape = sizes(case);
    many(move |xs| f(BCOO::new(&xs[0], &xs[1], &shape)?, &xs[2..]))
}

pub fn function(case: &Case) -> Option<Fun> {
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
                let other = BCOO::new(&xs[0], &xs[1], m.shape())?;
                Ok(vec![if is_sum { m + &other } else { m - &other }.todense()])
            })
        }
        "product" => of_sparse(case, |m, xs| Ok(vec![m.matmul(&xs[0])])),
        "product_right" => of_sparse(case, |m, xs| Ok(vec![sparse::matmul(&xs[0], m)])),
        "bcoo_dot_general" => {
            let [lhs, rhs] = ["lhs", "rhs"].map(|name| case.ints(name).into_iter().map(|d| d as usize).collect::<Vec<_>>());
            of_sparse(case, move |m, xs| Ok(vec![bcoo_dot_general(m, &xs[0], (&lhs, &rhs))]))
        }
        "sparse_grad" => of_sparse(case, |m, xs| {
            let of = |m: BCOO, x: Array| m.matmul(x).sin().sum(..);
            Ok(both(sparse::grad(of).call((m, &xs[0]))?))
        }),
        "bcsr" => many(move |xs| {
            let m = BCSR::fromdense(&xs[0], nse)?;
            let (dense, product) = (m.todense(), m.matmul(xs[0].sum(0)));
            Ok(vec![m.data, m.indices, m.indptr, dense, product])
        }),
        _ => None,
    }
}
