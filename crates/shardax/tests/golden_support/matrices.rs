//! Singular values and the functions that use them; matrices of `scipy::linalg`.

use shardax::prelude::*;
use shardax::scipy::linalg as sl;

use super::{Case, Fun, many, one, two};

fn adjoint(x: &Array) -> Array {
    conj(&x.mt())
}

pub fn function(case: &Case) -> Option<Fun> {
    // Factors are unique only up to signs, so products or absolute values are compared.
    match case.op.as_str() {
        "svdvals" => one(|x| linalg::svdvals(x)),
        "svd_weighted" => one(|x| {
            let (u, s, vh) = linalg::svd(x);
            (u * (arange(0..s.shape()[s.ndim() - 1] as i32) + 1).astype(x.dtype())).matmul(vh)
        }),
        "svd_full" => many(|xs| {
            let (u, s, vh) = linalg::svd_full(&xs[0]);
            let k = s.shape()[0] as i64;
            let product = (u.get((.., ..k)) * s.expand_dims(-2)).matmul(vh.get(..k));
            Ok(vec![u.matmul(adjoint(&u)).abs(), vh.matmul(adjoint(&vh)).abs(), product])
        }),
        "pinv" => one(|x| linalg::pinv(x)),
        "matrix_rank" => one(|x| linalg::matrix_rank(x)),
        "lstsq" => many(|xs| {
            let (x, residuals, rank, _) = linalg::lstsq(&xs[0], &xs[1]);
            Ok(vec![x, residuals, rank])
        }),
        "cho_solve" => two(|l, b| sl::cho_solve(l, b)),
        "block_diag" => many(|xs| Ok(vec![sl::block_diag(xs)])),
        "toeplitz" => two(|c, r| sl::toeplitz(c, r)),
        "toeplitz_symmetric" => one(|c| sl::toeplitz_symmetric(c)),
        "expm" => one(|x| sl::expm(x)),
        "tridiagonal_solve" => many(|xs| Ok(vec![lax::linalg::tridiagonal_solve(&xs[0], &xs[1], &xs[2], &xs[3])])),
        "tridiagonal" => {
            let lower = case.flag("lower");
            many(move |xs| {
                let (a, d, e, taus) = lax::linalg::tridiagonal(&xs[0] + adjoint(&xs[0]), lower);
                Ok(vec![a, d, e, taus])
            })
        }
        _ => None,
    }
}
