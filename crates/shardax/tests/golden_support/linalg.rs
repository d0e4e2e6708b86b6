//! Linear algebra.

use shardax::lax::{self, Triangular};
use shardax::linalg::{self, NormOrder};
use shardax::nn::initializers;
use shardax::prelude::*;

use super::{Case, Fun, many, one, two};

/// A function with two results.
fn pair(f: impl Fn(&Array) -> (Array, Array) + 'static) -> Option<Fun> {
    many(move |xs| {
        let (a, b) = f(&xs[0]);
        Ok(vec![a, b])
    })
}

/// The gradient of the sum of sines of all results.
fn gradient(f: impl Fn(&Array) -> Vec<Array> + 'static) -> Option<Fun> {
    let total = move |x: Array| f(&x).iter().map(|y| y.sin().sum(..)).fold(zeros_dtype((), x.dtype()), |a, b| a + b);
    let slope = grad(total);
    many(move |xs| Ok(vec![slope.call(xs[0].clone())?]))
}

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "gradient_of_cholesky" => gradient(|x| vec![lax::cholesky(x)]),
        "gradient_of_inv" => gradient(|x| vec![linalg::inv(x)]),
        "gradient_of_det" => gradient(|x| vec![linalg::det(x)]),
        "gradient_of_qr" => gradient(|x| <[Array; 2]>::from(linalg::qr(x)).into()),
        "gradient_of_lu" => gradient(|x| vec![lax::linalg::lu(x).0]),
        "gradient_of_slogdet" => gradient(|x| vec![linalg::slogdet(x).1]),
        "gradient_of_eigvalsh" => gradient(|x| vec![linalg::eigvalsh(x)]),
        "cholesky" => one(|x| lax::cholesky(x)),
        "triangular_solve" => {
            let options = Triangular {
                left_side: case.flag("left_side"),
                lower: case.flag("lower"),
                transpose_a: case.flag("transpose_a"),
                conjugate_a: case.flag("conjugate_a"),
                unit_diagonal: case.flag("unit_diagonal"),
            };
            two(move |a, b| lax::triangular_solve(a, b, options))
        }
        "solve" => two(|a, b| linalg::solve(a, b)),
        "inv" => one(|x| linalg::inv(x)),
        "det" => one(|x| linalg::det(x)),
        "slogdet" => pair(|x| linalg::slogdet(x)),
        "lu" => many(|xs| {
            let (lu, pivots, permutation) = lax::linalg::lu(&xs[0]);
            Ok(vec![lu, pivots, permutation])
        }),
        "qr" if case.text("mode") == "complete" => pair(|x| linalg::qr_complete(x)),
        "qr" => pair(|x| linalg::qr(x)),
        "eigh_projections" => one(|x| {
            // Signs of eigenvectors are free.
            let (w, v) = linalg::eigh(x);
            let vh = conj(&v.mt());
            v.matmul((w.expand_dims(-1) * w.expand_dims(-1)).astype(x.dtype()) * vh)
        }),
        "eigvalsh" => one(|x| linalg::eigvalsh(x)),
        "matrix_power" => {
            let n = case.int("n") as i32;
            one(move |x| linalg::matrix_power(x, n))
        }
        "initializers.orthogonal" => {
            let scale = case.param("scale").as_f64()?;
            let shape: Vec<usize> = case.ints("shape").into_iter().map(|d| d as usize).collect();
            let (made, dtype) = (initializers::orthogonal(scale).axes(-2, case.axis("axis")), case.dtype("dtype")?);
            one(move |key| made.init(key, &shape, dtype))
        }
        "norm" => {
            let order = match case.text("ord") {
                "default" => NormOrder::Default,
                "fro" => NormOrder::Fro,
                "inf" => NormOrder::P(f64::INFINITY),
                "-inf" => NormOrder::P(f64::NEG_INFINITY),
                p => NormOrder::P(p.parse().ok()?),
            };
            let axes: Option<Vec<i32>> = match case.param("axis") {
                a if a.is_null() => None,
                a => Some(a.as_i64().map_or_else(|| case.axes("axis"), |a| vec![a as i32])),
            };
            let keepdims = case.flag("keepdims");
            one(move |x| match (&axes, keepdims) {
                (None, false) => linalg::norm(x, order, ..),
                (None, true) => linalg::norm_keepdims(x, order, ..),
                (Some(axes), false) => linalg::norm(x, order, axes.as_slice()),
                (Some(axes), true) => linalg::norm_keepdims(x, order, axes.as_slice()),
            })
        }
        _ => None,
    }
}
