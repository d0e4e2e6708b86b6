//! Eigenvalues and Schur forms, minimization, interpolation, polynomials and Taylor series.

use shardax::experimental::jet::jet;
use shardax::numpy::{self as np, BitOrder};
use shardax::prelude::*;
use shardax::scipy::cluster::vq;
use shardax::scipy::interpolate::{GridMethod, RegularGridInterpolator};
use shardax::scipy::linalg::{self as la, SchurOutput};
use shardax::scipy::ndimage::{Boundary, map_coordinates};
use shardax::scipy::optimize::MinimizeOptions;
use shardax::scipy::spatial::transform::{Rotation, Slerp};

use super::{Case, Fun, many, one, three, two};

/// Sorted by `real + 0.37 imag`.
fn order(w: &Array) -> Array {
    (w.real() + w.imag() * 0.37).argsort(-1)
}

fn ordered(w: &Array) -> Array {
    w.take(&order(w), 0)
}

fn adjoint(x: &Array) -> Array {
    x.conj().t()
}

fn eig(a: &Array) -> Result<Vec<Array>> {
    let (w, v) = linalg::eig(a)?;
    let largest = v.take_along_axis(v.abs().argmax(0).expand_dims(0), 0);
    let phase = largest.conj() / largest.abs().astype(v.dtype());
    Ok(vec![ordered(&w), (v * phase).take(&order(&w), 1)])
}

fn schur(a: &Array, output: SchurOutput) -> Result<Vec<Array>> {
    let (t, z) = la::schur(a, output)?;
    let (w, below) = match output {
        SchurOutput::Complex => (t.diagonal(0, 0, 1), -1),
        SchurOutput::Real => (linalg::eigvals(&t)?, -2),
    };
    let (back, unit) = (z.matmul(&t).matmul(adjoint(&z)), z.matmul(adjoint(&z)));
    Ok(vec![back, unit, tril(&t, below), ordered(&w)])
}

fn rosenbrock(x: Array) -> Array {
    let n = x.size();
    let (a, b) = (lax::slice_in_dim(&x, 1, n, 0), lax::slice_in_dim(&x, 0, n - 1, 0));
    ((a - b.square()).square() * 100 + (1 - b).square()).sum(..)
}

fn boundary(case: &Case) -> Boundary {
    match case.text("mode") {
        "constant" => Boundary::Constant(2.5),
        "nearest" => Boundary::Nearest,
        "mirror" => Boundary::Mirror,
        "reflect" => Boundary::Reflect,
        _ => Boundary::Wrap,
    }
}

pub fn function(case: &Case) -> Option<Fun> {
    // Eigenvalues are sorted, because their order is not defined.
    match case.op.as_str() {
        "eigvals" => many(|xs| Ok(vec![ordered(&linalg::eigvals(&xs[0])?)])),
        "eig" => many(|xs| eig(&xs[0])),
        "schur" => {
            let output = if case.text("output") == "real" { SchurOutput::Real } else { SchurOutput::Complex };
            many(move |xs| schur(&xs[0], output))
        }
        "hessenberg" => many(|xs| {
            let (h, q) = la::hessenberg(&xs[0])?;
            Ok(vec![q.matmul(&h).matmul(q.t()), q.matmul(q.t()), tril(&h, -2)])
        }),
        "rsf2csf" => many(|xs| {
            let (t, z) = la::schur(&xs[0], SchurOutput::Real)?;
            let (t, z) = la::rsf2csf(t, z)?;
            Ok(vec![z.matmul(&t).matmul(adjoint(&z)), tril(&t, -1)])
        }),
        "sqrtm_general" => one(|a| la::sqrtm(a)),
        "funm" => one(|a| la::funm(a, |x| x.exp())),
        "solve_sylvester" => three(|a, b, q| la::solve_sylvester(a, b, q)),
        "expm_frechet" => many(|xs| la::expm_frechet(&xs[0], &xs[1]).map(|(y, dy)| vec![y, dy])),
        "qr_multiply" => two(|a, c| {
            let (cq, r) = la::qr_multiply(a, c);
            cq.matmul(r)
        }),
        "minimize" => many(|xs| {
            let result = MinimizeOptions::new().gtol(1e-6).minimize(rosenbrock, &xs[0])?;
            Ok(vec![result.x, result.fun, result.success])
        }),
        "minimize_bowl" => many(|xs| {
            let (a, b) = (xs[0].matmul(xs[0].t()) + eye(4), &xs[1]);
            let bowl = |x: Array| 0.5 * (&x * a.matmul(&x)).sum(..) - (b * &x).sum(..);
            Ok(vec![shardax::scipy::optimize::minimize(bowl, zeros(4))?.x])
        }),
        "map_coordinates" => {
            let (mode, order) = (boundary(case), case.int("order") as usize);
            three(move |x, i, j| map_coordinates(x, [i, j], order, mode))
        }
        "map_coordinates_int" => two(|x, i| map_coordinates(x, [i], 1, Boundary::Nearest)),
        "grid" => {
            let method = if case.text("method") == "linear" { GridMethod::Linear } else { GridMethod::Nearest };
            let fill =
                if case.flag("extrapolate") { None } else { Some(case.param("fill").as_f64().unwrap_or(f64::NAN)) };
            let grid = [array([0.0f32, 1.0, 2.5, 4.0]), array([-1.0f32, 0.0, 3.0])];
            many(move |xs| {
                let f = RegularGridInterpolator::new(grid.clone(), &xs[0])?.method(method).fill_value(fill);
                Ok(vec![f.call(&xs[1])])
            })
        }
        "rotation_matrix" => many(|xs| Ok(vec![Rotation::from_quat(&xs[0])?.as_matrix()])),
        "rotation_from_matrix" => many(|xs| {
            let matrix = Rotation::from_quat(&xs[0])?.as_matrix();
            Ok(vec![Rotation::from_matrix(matrix)?.canonical().as_quat()])
        }),
        "rotation_vector" => many(|xs| Ok(vec![Rotation::from_quat(&xs[0])?.as_rotvec()])),
        "rotation_of_vector" => many(|xs| Ok(vec![Rotation::from_rotvec(&xs[0])?.as_quat()])),
        "rotation_mrp" => many(|xs| Ok(vec![Rotation::from_mrp(Rotation::from_quat(&xs[0])?.as_mrp())?.as_quat()])),
        "rotation_product" => {
            many(|xs| Ok(vec![(Rotation::from_quat(&xs[0])? * Rotation::from_quat(&xs[1])?.inv()).as_quat()]))
        }
        "rotation_apply" => many(|xs| Ok(vec![Rotation::from_quat(&xs[0])?.apply(&xs[1])?])),
        "rotation_magnitude" => many(|xs| Ok(vec![Rotation::from_quat(&xs[0])?.magnitude()])),
        "rotation_mean" => many(|xs| Ok(vec![Rotation::from_quat(&xs[0])?.mean(&xs[1])?.as_matrix()])),
        "rotation_euler" => {
            let seq = case.text("seq").to_owned();
            many(move |xs| {
                let rotation = Rotation::from_euler(&seq, &xs[0])?;
                Ok(vec![rotation.as_quat(), rotation.as_euler(&seq)?])
            })
        }
        "rotation_locked" => {
            let seq = case.text("seq").to_owned();
            many(move |xs| {
                let angles = Rotation::from_euler(&seq, &xs[0])?.as_euler(&seq)?;
                Ok(vec![Rotation::from_euler(&seq, angles)?.as_matrix()])
            })
        }
        "slerp" => many(|xs| {
            let slerp = Slerp::new(array([0.0f32, 1.0, 2.5, 4.0]), &Rotation::from_quat(&xs[0])?)?;
            Ok(vec![slerp.call(&xs[1])?.as_matrix()])
        }),
        "vq" => many(|xs| {
            let (codes, distances) = vq(&xs[0], &xs[1]);
            Ok(vec![codes, distances])
        }),
        "polyfit" => two(|x, y| polyfit(x, y, 2, None)),
        "polyfit3" => two(|x, y| polyfit(x, y, 3, None)),
        "polyfit_w" => three(|x, y, w| polyfit(x, y, 2, w)),
        "roots" => one(|p| ordered(&roots(p))),
        "poly" => one(|x| poly(x)),
        "jet" => many(|xs| {
            fn f(x: Array, y: Array) -> Array {
                (&x * y).sin() + x.exp()
            }
            let (x, y, dx, dy) = (&xs[0], &xs[1], &xs[2], &xs[3]);
            let zero = zeros_like(x);
            let (value, series) = jet(f, (x, y), [(dx, dy), (dy, dx), (&zero, &zero)])?;
            Ok(std::iter::once(value).chain(series).collect())
        }),
        "nanquantile" => one(|x| np::nanquantile(x, array([0.0f32, 0.3, 1.0]), 1)),
        "nanquantile_slopes" => one(|x| np::nanquantile(x, 0.4, 0)),
        "nanmedian" => one(|x| np::nanmedian(x, ..)),
        "nanpercentile" => one(|x| np::nanpercentile(x, 25.0, 1)),
        "partition" => many(|xs| {
            let y = np::partition(&xs[0], 3, 1);
            Ok(vec![lax::index_in_dim(&y, 3, 1, false), lax::slice_in_dim(&y, 0, 3, 1)])
        }),
        "argpartition" => one(|x| np::argpartition(x, 2, -1).get(2)),
        "sort_complex" => one(|x| np::sort_complex(x)),
        "piecewise" => one(|x| np::piecewise(x, [x.less(0), x.greater(-0.5)], &[&|x| -x, &|x| x.sin(), &|x| x * 2])),
        "piecewise_zero" => one(|x| np::piecewise(x, [x.less(0)], &[&|x| x.exp()])),
        "packbits" | "unpackbits" => {
            let order = if case.text("order") == "big" { BitOrder::Big } else { BitOrder::Little };
            match case.op.as_str() {
                "packbits" => one(move |x| np::packbits(x, order)),
                _ => one(move |x| np::unpackbits(x, order)),
            }
        }
        "multi_dot" => many(|xs| Ok(vec![linalg::multi_dot(xs)])),
        "cond" => many(|xs| {
            fn condition(p: linalg::NormOrder, xs: &[Array]) -> Array {
                linalg::cond(&xs[0], p)
            }
            Ok(vec![linalg::cond(&xs[0], None), condition(linalg::NormOrder::Fro, xs), condition(1.into(), xs)])
        }),
        "tensorinv" => one(|x| linalg::tensorinv(x, 2)),
        "tensorsolve" => two(|a, b| linalg::tensorsolve(a, b)),
        _ => None,
    }
}
