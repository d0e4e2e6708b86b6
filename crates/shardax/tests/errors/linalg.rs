//! Mistakes in linear algebra: shapes, dtypes and orders.

use shardax::ErrorKind::{Index, NotImplemented, Type, Value};
use shardax::lax::Triangular;
use shardax::linalg::{self, NormOrder};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    shapes(t);
    solves(t);
    norms(t);
    derivatives(t);
}

fn shapes(t: &mut Table) {
    // Functions of square matrices, with matrices that are not.
    t.row("cholesky: square", Value, &["cholesky needs square matrices", "float32[2,3]"], || {
        at!(linalg::cholesky(ones([2, 3])))
    });
    t.row("cholesky: rank", Value, &["at least two dimensions", "float32[3]"], || at!(lax::cholesky(&ones(3))));
    t.row("cholesky: integers", Type, &["cholesky does not accept dtype int32"], || {
        at!(lax::cholesky(&array([[1, 0], [0, 1]])))
    });
    t.row("inv: square", Value, &["inv needs square matrices", "float32[4,2,3]"], || at!(linalg::inv(ones([4, 2, 3]))));
    t.row("inv: scalar", Value, &["inv needs an array of at least two dimensions"], || at!(linalg::inv(2.0)));
    t.row("det: square", Value, &["det needs square matrices", "2 is not 3"], || at!(linalg::det(ones([2, 3]))));
    t.row("slogdet: rank", Value, &["slogdet", "float32[3]"], || at!(linalg::slogdet(ones(3))).1);
    t.row("eigh: square", Value, &["eigh needs square matrices"], || at!(linalg::eigh(ones([2, 3]))).0);
    t.row("eigvalsh: rank", Value, &["eigvalsh", "float32[3]"], || at!(linalg::eigvalsh(ones(3))));
    t.row("qr: rank", Value, &["qr needs an array of at least two dimensions"], || at!(linalg::qr(ones(3))).1);
    t.row("qr_complete: rank", Value, &["qr", "float32[3]"], || at!(linalg::qr_complete(ones(3))).0);
    t.row("lax::linalg::qr: integers", Type, &["qr does not accept dtype int32"], || {
        at!(lax::linalg::qr(&array([[1, 2]]), lax::linalg::QrMode::Reduced)).0
    });
    t.row("lu: rank", Value, &["lu needs an array of at least two dimensions"], || at!(lax::linalg::lu(&ones(3))).2);
    t.row("lu: integers", Type, &["lu does not accept dtype int32"], || at!(lax::linalg::lu(&array([[1, 2]]))).0);
    t.row("matrix_power: square", Value, &["matrix_power needs square matrices"], || {
        at!(linalg::matrix_power(ones([2, 3]), 2))
    });
    t.row("matrix_power: rank", Value, &["matrix_power", "int32[3]"], || {
        at!(linalg::matrix_power(array([1, 2, 3]), 2))
    });
    t.row("orthogonal: dtype", Type, &["orthogonal", "int32"], || {
        at!(random::orthogonal_dtype(&random::key(0), [2, 2], (), DType::I32))
    });
    t.row("orthogonal: rank", Value, &["at least a 2D shape", "[3]"], || {
        at!(shardax::nn::initializers::orthogonal(1.0).init(&random::key(0), &[3], DType::F32))
    });
}

fn solves(t: &mut Table) {
    // Right sides whose sizes do not fit the matrix.
    t.row("solve: square", Value, &["solve needs square matrices"], || at!(linalg::solve(ones([2, 3]), ones(2))));
    t.row("solve: vector", Value, &["float32[2,2]", "float32[3]", "right-hand sides"], || {
        at!(linalg::solve(ones([2, 2]), ones(3)))
    });
    t.row("solve: rows", Value, &["float32[2,2]", "float32[3,2]"], || at!(linalg::solve(eye(2), ones([3, 2]))));
    t.row("solve: leading dimensions", Value, &["float32[5,2,2]", "float32[4,2,1]"], || {
        at!(linalg::solve(ones([5, 2, 2]), ones([4, 2, 1])))
    });
    t.row("solve: scalar", Value, &["incompatible right-hand sides"], || at!(linalg::solve(eye(2), 1.0)));
    t.row("triangular_solve: square", Value, &["triangular_solve needs square matrices"], || {
        at!(lax::triangular_solve(&ones([2, 3]), &ones([2, 2]), Triangular::default()))
    });
    t.row("triangular_solve: dtypes", Type, &["same dtypes", "float32[2,2]", "float64[2,2]"], || {
        at!(lax::triangular_solve(&eye(2), &zeros_dtype([2, 2], DType::F64), Triangular::default()))
    });
    t.row("triangular_solve: rows", Type, &["incompatible right-hand sides", "float32[3,2]"], || {
        let options = Triangular { left_side: true, ..Default::default() };
        at!(lax::triangular_solve(&eye(2), &ones([3, 2]), options))
    });
    t.row("triangular_solve: leading dimensions", Type, &["incompatible right-hand sides", "[4,1,2]"], || {
        at!(lax::triangular_solve(&ones([3, 2, 2]), &ones([4, 1, 2]), Triangular::default()))
    });
    t.row("triangular_solve: integers", Type, &["triangular_solve does not accept dtype int32"], || {
        at!(lax::triangular_solve(&array([[1]]), &array([[1]]), Triangular::default()))
    });
}

fn norms(t: &mut Table) {
    t.row("norm: axis", Index, &["axis 2 is out of bounds"], || at!(linalg::norm(ones([2, 3]), 2, 2)));
    t.row("norm: three axes", Value, &["improper number of axes", "float32[2,3,4]"], || {
        at!(linalg::norm(ones([2, 3, 4]), 2, ..))
    });
    t.row("norm: axis twice", Value, &["name one axis twice"], || at!(linalg::norm(ones([2, 3]), 1, [1, -1])));
    t.row("norm: order of matrices", Value, &["invalid order P(3.0)"], || at!(linalg::norm(ones([2, 3]), 3, ..)));
    t.row("norm: order of vectors", Value, &["invalid order Fro"], || at!(linalg::norm(ones(3), NormOrder::Fro, 0)));
    t.row("norm: NaN", Value, &["invalid order P(NaN)"], || at!(linalg::norm(ones(3), f64::NAN, 0)));
    t.row("norm: smallest of nothing", Value, &["zero-size array"], || {
        at!(linalg::norm(ones(0), f64::NEG_INFINITY, 0))
    });
}

fn derivatives(t: &mut Table) {
    t.row("qr_complete: gradient of a tall one", NotImplemented, &["cannot be differentiated", "float32[3,2]"], || {
        fn f(x: Array) -> Array {
            at!(linalg::qr_complete(x)).0.sum(..)
        }
        grad(f).call(ones([3, 2]))
    });
}
