//! Decompositions of matrices that the CPU kernels compute for XLA: their products are the matrices.

use shardax::linalg;

use super::common::child;
use super::common::quick::one_of;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_KERNELS";

fn matrices(shape: &[usize], dtype: DType) -> Array {
    random::normal(random::key(0), shape).astype(dtype)
}

fn same(found: &Array, want: &Array, tolerance: f64) -> Result<()> {
    assert_eq!((found.dtype(), found.shape()), (want.dtype(), want.shape()));
    let worst = (found - want).astype(DType::F64).abs().max(over(..).initial(0)).item::<f64>()?;
    assert!(worst <= tolerance, "{} is {worst} off", found.type_name());
    Ok(())
}

/// The largest difference of two arrays of one type.
fn distance(found: &Array, want: &Array) -> Array {
    assert_eq!((found.dtype(), found.shape()), (want.dtype(), want.shape()));
    (found - want).astype(DType::F64).abs().max(over(..).initial(0))
}

/// The differences of products of factors from what was factored: of QR, of what is below the diagonal of R, and of
/// SVD, each
/// without and with full factors, of Cholesky and of the eigenvectors. In one program, because each compiles for a
/// while.
fn factors(a: &Array) -> Result<Vec<Array>> {
    let mut errors = Vec::new();
    for full in [false, true] {
        let (q, r) = if full { linalg::qr_complete(a) } else { linalg::qr(a) };
        errors.push(distance(&q.matmul(&r), a));
        errors.push(distance(&r, &r.triu(0)));
        let (u, s, vt) = if full { linalg::svd_full(a) } else { linalg::svd(a) };
        let k = s.shape()[s.ndim() - 1];
        let leading = lax::slice_in_dim(&u, 0, k, -1);
        let vt_part = lax::slice_in_dim(&vt, 0, k, -2);
        errors.push(distance(&(leading * s.expand_dims(-2)).matmul(vt_part), a));
    }
    let definite = a.matmul(a.mt()) + eye(a.shape()[a.ndim() - 2]).astype(a.dtype());
    let l = linalg::cholesky(&definite);
    errors.push(distance(&l.matmul(l.mt()), &definite));
    let (w, v) = linalg::eigh(&definite);
    errors.push(distance(&(&v * w.expand_dims(-2)).matmul(v.mt()), &definite));
    Ok(errors)
}

/// Run in a process of its own, where the CPU kernels compute them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    let text = jit(|a: Array| linalg::svd(a).1).lower(ones([2, 40, 50]))?.as_text().to_string();
    assert!(text.contains("\"shardax_svdvals\""), "{text}");
    let text = jit(|a: Array| linalg::svd(a).0).lower(ones([2, 40, 50]))?.as_text().to_string();
    assert!(text.contains("\"shardax_svd\""), "{text}");
    // Vectors are computed only if the program reads them.
    let symmetric = matrices(&[2, 30, 30], DType::F32);
    for (is_read, name) in [(false, "\"shardax_eigvalsh\""), (true, "\"shardax_eigh\"")] {
        let values = jit(move |a: Array| {
            let (w, v) = linalg::eigh(a);
            if is_read { w + v.sum(-1) * 0 } else { w }
        });
        let text = values.lower(&symmetric)?.as_text().to_string();
        assert!(text.contains(name), "{text}");
        for dtype in [DType::F32, DType::F64] {
            let exact = linalg::eigh(symmetric.astype(dtype).astype(DType::F64)).0;
            same(&values.call(symmetric.astype(dtype))?.astype(DType::F64), &exact, 1e-5)?;
        }
    }
    same(&linalg::eigvalsh(&symmetric), &linalg::eigh(&symmetric).0, 1e-5)?;
    same(&linalg::svdvals(&symmetric), &linalg::svd(&symmetric).1, 1e-5)?;
    let slopes = grad(|a: Array| linalg::eigvalsh(a).square().sum(..)).call(&symmetric)?;
    same(&slopes, &(&symmetric + symmetric.mt()), 1e-4)?;
    // Also batches of small matrices, which are computed together.
    let shapes: [&[usize]; 6] = [&[40, 40], &[2, 3, 33, 50], &[50, 33], &[3, 1, 1], &[0, 4, 4], &[20, 8, 8]];
    for (d, (dtype, tolerance)) in [(DType::F32, 1e-4), (DType::F64, 1e-12)].into_iter().enumerate() {
        // A slice has each shape in one of the dtypes.
        for shape in shapes.into_iter().skip(d % one_of(2)).step_by(one_of(2)) {
            let factored = jit(|a: Array| -> Result<Vec<Array>> { factors(&a) });
            // The products of factors of positive definite matrices are ten times as large.
            let tolerances = [[tolerance, 0.0, tolerance]; 2].concat().into_iter().chain([10.0 * tolerance; 2]);
            for (i, (error, most)) in factored.call(matrices(shape, dtype))?.iter().zip(tolerances).enumerate() {
                let error = error.item::<f64>()?;
                assert!(error <= most, "factors {i} of {dtype}{shape:?} are {error} off");
            }
        }
    }
    // Matrices that are not finite, or not positive definite.
    for (a, what) in [(array([[1.0f32, f32::NAN], [0.0, 1.0]]), "not finite"), (-eye(2), "negative")] {
        let (q, r) = linalg::qr(&a);
        let (u, s, vt) = linalg::svd(&a);
        let (w, v) = linalg::eigh(&a);
        let are_nan = [q, r, u, s, vt, w, v].map(|x| x.isnan().all(..));
        for x in are_nan {
            assert_eq!(x.item::<bool>()?, what == "not finite");
        }
        assert!(linalg::cholesky(&a).at(s![1]).get().isnan().any(..).item::<bool>()?, "{what}");
    }
    Ok(())
}

/// Run in a process of its own, like the one above.
#[test]
#[ignore = "the test below runs it"]
fn lu_in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    let text = jit(|a: Array| linalg::det(a)).lower(ones([2, 4, 4]))?.as_text().to_string();
    assert!(text.contains("shardax_lu"), "{text}");
    // Batches of small matrices, which are computed together, and single ones.
    for (d, (dtype, tolerance)) in [(DType::F32, 1e-3), (DType::F64, 1e-11)].into_iter().enumerate() {
        let shapes = [&[20, 8, 8][..], &[70, 70], &[2, 3, 5, 5]];
        for shape in shapes.into_iter().skip(d % one_of(2)).step_by(one_of(2)) {
            let x = matrices(shape, dtype);
            let unit = eye(shape[shape.len() - 1]).broadcast_to(shape).astype(dtype);
            let a = x.matmul(x.mt()) + &unit;
            let [inverse, slope, logarithm] = jit(|a: Array, unit: Array| -> Result<[Array; 3]> {
                // The gradient solves with the transposed matrix.
                let slope = grad(|b: Array, a: Array| linalg::solve(a, b).sum(..)).call((&unit, &a))?;
                Ok([linalg::inv(&a), slope, linalg::slogdet(&a).1])
            })
            .call((&a, &unit))?;
            same(&inverse.matmul(&a), &unit, tolerance)?;
            same(&a.mt().matmul(&slope), &shardax::numpy::ones_like(&unit), tolerance)?;
            // The eigenvalues' product is the determinant.
            let values = linalg::eigvalsh(a.astype(DType::F64));
            same(&logarithm.astype(DType::F64), &values.log().sum(-1), 100.0 * tolerance)?;
        }
    }
    let permuted = array([[0.0f32, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]);
    assert_eq!(linalg::det(&permuted).item::<f32>()?, 6.0);
    assert_eq!(floats(&linalg::solve(&permuted, array([4.0f32, 6.0, 7.0, 8.0]))), [2.0, 2.0, 8.0, 7.0]);
    Ok(())
}

#[test]
fn lu_by_cpu_kernels() {
    let mut command = child::command("decompositions::lu_in_a_process_with_cpu_kernels");
    child::run(command.env(VARIABLE, "all"));
}

#[test]
fn decompositions_by_cpu_kernels() {
    let mut command = child::command("decompositions::in_a_process_with_cpu_kernels");
    child::run(command.env(VARIABLE, "all"));
}

#[test]
fn complex_factors_that_do_not_exist_have_no_numbers() -> Result<()> {
    super::common::quick::setup();
    let hermitian = shardax::numpy::complex(array([[1.0f32, 2.0], [2.0, 1.0]]), array([[0.0f32, -1.0], [1.0, 0.0]]));
    for a in [hermitian.clone(), stack([&hermitian, &eye(2).astype(DType::Complex64)], 0).get(0)] {
        let l = lax::cholesky(&a);
        for part in [l.real(), l.imag()] {
            assert_eq!(part.isnan().to_vec::<bool>()?, [true, false, true, true], "{part}");
        }
    }
    let mixed = lax::cholesky(stack([&hermitian, &(eye(2) * 4).astype(DType::Complex64)], 0));
    assert_eq!(mixed.get(1).real().to_vec::<f32>()?, [2.0, 0.0, 0.0, 2.0]);
    Ok(())
}

/// As in JAX, all of the factor is NaN. XLA computes the columns before the first diagonal element that is zero.
#[test]
fn factors_of_singular_matrices_are_nan() -> Result<()> {
    super::common::quick::setup();
    let singular = array([[[4.0f32, 2.0], [2.0, 1.0]], [[4.0, 0.0], [0.0, 0.0]], [[4.0, 0.0], [0.0, 1.0]]]);
    for dtype in [DType::F32, DType::F64, DType::Complex64] {
        let factors = linalg::cholesky(singular.astype(dtype));
        let nan = factors.isnan().to_vec::<bool>()?;
        assert_eq!(nan, [true, false, true, true, true, false, true, true, false, false, false, false], "{dtype}");
    }
    let one = linalg::cholesky(array([[1.0f32, 1.0], [1.0, 1.0]])).to_vec::<f32>()?;
    assert!(one[0].is_nan() && one[2].is_nan() && one[3].is_nan() && one[1] == 0.0, "{one:?}");
    Ok(())
}

#[test]
fn decompositions_of_infinite_cotangents_and_complex_matrices() -> Result<()> {
    common::quick::setup();
    let slopes = jit(|cotangent: Array| -> Result<Array> {
        let (_, pull_back) = vjp(|a: Array| linalg::cholesky(a), eye(2))?;
        Ok(pull_back.call(cotangent)?.0)
    });
    // The factor is zero above the diagonal, whatever the matrix is.
    let slopes = slopes.call(array([[1.0f32, f32::INFINITY], [1.0, 1.0]]))?;
    assert_eq!(slopes.to_vec::<f32>()?, [0.5; 4]);
    let a = array([[0.0f32, 1.0], [2.0, 3.0]]).astype(DType::Complex64);
    let (permutation, lower, _) = shardax::scipy::linalg::lu(a);
    assert_eq!((permutation.dtype(), lower.dtype()), (DType::F32, DType::Complex64));
    assert_eq!(permutation.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
    Ok(())
}
