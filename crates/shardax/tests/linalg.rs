//! Linear algebra over devices, at once and in half precision; reference values are in `golden.rs`.

mod common;

use common::quick::{one_of, setup};
use shardax::lax::Triangular;
use shardax::linalg::NormOrder;
use shardax::prelude::*;
use shardax_alloc as _;

type Fun = fn(Array, Array, Array) -> Array;

/// Functions of matrices, of positive definite ones, and of right-hand sides.
const FUNCTIONS: [(&str, Fun); 11] = [
    ("cholesky", |_, s, _| linalg::cholesky(s)),
    ("triangular_solve", |x, _, b| {
        lax::triangular_solve(&x, &b, Triangular { left_side: true, lower: true, ..Default::default() })
    }),
    ("qr", |x, _, _| linalg::qr(x).0),
    ("solve", |x, _, b| linalg::solve(x, b)),
    ("inv", |x, _, _| linalg::inv(x)),
    ("lu", |x, _, _| lax::linalg::lu(&x).0),
    ("det", |x, _, _| linalg::det(x)),
    ("slogdet", |x, _, _| linalg::slogdet(x).1),
    ("eigvalsh", |_, s, _| linalg::eigvalsh(s)),
    ("matrix_power", |x, _, _| linalg::matrix_power(x, -2)),
    ("norm", |x, _, _| linalg::norm(x, 2, [-2, -1])),
];

fn operands() -> [Array; 3] {
    let x = random::normal(&random::key(0), [8, 5, 5]) + eye(5) * 4;
    let s = x.matmul(x.mt());
    [x, s, random::normal(&random::key(1), [8, 5, 2])]
}

fn close(a: &Array, b: &Array) -> Result<bool> {
    allclose(a, b, 2e-3, 2e-3)
}

#[test]
fn one_matrix_a_device_as_all_on_one() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let [x, s, b] = operands();
    for (name, f) in FUNCTIONS.into_iter().step_by(one_of(5)) {
        // The same batch of matrices on one device, split by the compiler, in `shard_map` and in `pmap`.
        let want = f(x.clone(), s.clone(), b.clone());
        fn place(a: &Array, mesh: &Mesh) -> Result<Array> {
            device_put(a, NamedSharding::new(mesh, P!["i"]))
        }
        let got = jit(f).call((place(&x, &mesh)?, place(&s, &mesh)?, place(&b, &mesh)?))?;
        assert!(close(&got, &want)?, "{name}, jit");
        let specs = (P!["i"], P!["i"], P!["i"]);
        let mapped = shard_map(f, &mesh).in_specs(specs.clone()).out_specs(P!["i"]);
        assert!(close(&mapped.call((x.clone(), s.clone(), b.clone()))?, &want)?, "{name}, shard_map");
        let got = pmap(f).call((x.clone(), s.clone(), b.clone()))?;
        assert!(close(&got, &want)?, "{name}, pmap");

        let slopes = |x: Array, s: Array, b: Array| {
            grad(move |(x, s, b): (Array, Array, Array)| f(x, s, b).sum(..)).call((x, s, b))
        };
        let want = slopes(x.clone(), s.clone(), b.clone())?;
        let mapped = shard_map(slopes, &mesh).in_specs(specs.clone()).out_specs(specs);
        let got = mapped.call((x.clone(), s.clone(), b.clone()))?;
        for (got, want) in [(&got.0, &want.0), (&got.1, &want.1), (&got.2, &want.2)] {
            assert!(close(got, want)?, "{name}, gradient in shard_map");
        }
    }
    Ok(())
}

#[test]
fn a_stack_is_its_matrices() -> Result<()> {
    setup();
    let [x, s, b] = operands();
    // A slice has other functions than that of the test above.
    for (name, f) in FUNCTIONS.into_iter().skip(one_of(2) - 1).step_by(one_of(3)) {
        let batched = f(x.clone(), s.clone(), b.clone());
        let mapped = vmap(f).call((x.clone(), s.clone(), b.clone()))?;
        assert!(close(&batched, &mapped)?, "{name}");
        assert!(close(&batched.get(3), &f(x.get(3), s.get(3), b.get(3)))?, "{name}");
    }
    Ok(())
}

/// As in JAX from 0.12 on: the rounding of 8 or 11 binary digits is too coarse for decompositions.
#[test]
fn half_precision_is_rejected_while_tracing() -> Result<()> {
    setup();
    let types = shape_dtype_struct([4, 4], DType::Bf16);
    type Function = fn(Array) -> Result<Array>;
    let functions: [(&str, Function); 12] = [
        ("cholesky", |a| Ok(linalg::cholesky(a))),
        ("eigh", |a| Ok(linalg::eigh(a).0)),
        ("inv", |a| Ok(linalg::inv(a))),
        ("qr", |a| Ok(linalg::qr(a).1)),
        ("solve", |a| Ok(linalg::solve(&a, &a))),
        ("svd", |a| Ok(linalg::svdvals(a))),
        ("det", |a| Ok(linalg::det(a))),
        ("slogdet", |a| Ok(linalg::slogdet(a).1)),
        ("pinv", |a| Ok(linalg::pinv(a))),
        ("lu", |a| Ok(lax::linalg::lu(&a).0)),
        ("eigvals", |a| linalg::eigvals(a)),
        ("expm", |a| Ok(shardax::scipy::linalg::expm(a))),
    ];
    for (name, f) in functions {
        let error = eval_shape(f, types.clone()).err().unwrap_or_else(|| panic!("{name} of bfloat16")).to_string();
        assert!(error.contains(&format!("{name} does not accept dtype bfloat16")), "{name}: {error}");
        assert!(error.contains("float32, float64, complex64 and complex128") && error.contains("astype"), "{error}");
    }
    // Triangular systems, small determinants and square roots of matrices have half precision in JAX too.
    let a = array([[2.0f32, 0.0], [1.0, 4.0]]).astype(DType::F16);
    let solved = shardax::scipy::linalg::solve_triangular(&a, &a, shardax::scipy::linalg::Trans::No, true, false);
    assert_eq!((solved.dtype(), linalg::det(&a).to_f64_vec()?), (DType::F16, vec![8.0]));
    assert_eq!(shardax::scipy::linalg::sqrtm(&a).dtype(), DType::Complex64);
    Ok(())
}

#[test]
fn large_matrices_are_decomposed_by_blocks() -> Result<()> {
    setup();
    for shape in [[300, 140], [300, 300], [140, 300]].into_iter().step_by(one_of(3)) {
        let x = random::normal_dtype(&random::key(2), shape, DType::F64);
        let (lu, pivots, permutation) = lax::linalg::lu(&x);
        let k = shape[0].min(shape[1]);
        assert_eq!(pivots.shape(), [k]);
        let l = lax::slice_in_dim(&lu, 0, k, 1).tril(-1) + eye_offset(shape[0], k, 0).astype(DType::F64);
        let u = lax::slice_in_dim(&lu, 0, k, 0).triu(0);
        assert!(allclose(l.matmul(u), x.take(&permutation, 0), 1e-11, 1e-11)?, "{shape:?}");
        assert!(l.abs().max(..).item::<f64>()? <= 1.0, "{shape:?}");
    }
    Ok(())
}

#[test]
fn eigenvectors_are_as_accurate_as_the_dtype() -> Result<()> {
    setup();
    let dtypes = [(DType::F32, 1e-4), (DType::F64, 1e-11), (DType::Complex64, 1e-4), (DType::Complex128, 1e-11)];
    for (dtype, tol) in dtypes.into_iter().step_by(one_of(3)) {
        let x = random::normal_dtype(&random::key(3), [2, 60, 60], dtype);
        let s = &x + conj(&x.mt());
        let (w, v) = linalg::eigh(&s);
        assert!((w.get(s![.., 1..]) - w.get(s![.., ..59])).greater_equal(0).all(..).item::<bool>()?, "{dtype}");
        let vh = conj(&v.mt());
        assert!(allclose(v.matmul(w.astype(dtype).expand_dims(-1) * &vh), &s, tol, tol)?, "{dtype}");
        assert!(allclose(vh.matmul(&v), eye(60).astype(dtype), tol, tol)?, "{dtype}");
    }
    Ok(())
}

#[test]
fn singular_matrices_give_no_panic() -> Result<()> {
    setup();
    let x = zeros([3, 3]);
    assert!(!linalg::inv(&x).isfinite().any(..).item::<bool>()?);
    assert_eq!(linalg::det(zeros([5, 5])).item::<f32>()?, 0.0);
    let (sign, size) = linalg::slogdet(&x);
    assert_eq!((sign.item::<f32>()?, size.item::<f32>()?), (0.0, f32::NEG_INFINITY));
    assert!(linalg::det(full_like(&zeros([4, 4]), f32::NAN)).isnan().item::<bool>()?);
    assert_eq!(linalg::solve(zeros([0, 0]), zeros([0, 2])).shape(), [0, 2]);
    assert_eq!(linalg::solve(zeros([3, 0, 0]), zeros(0)).shape(), [3, 0]);
    assert_eq!(linalg::inv(zeros([0, 2, 2])).shape(), [0, 2, 2]);
    assert_eq!(linalg::qr(zeros([0, 4, 2])).0.shape(), [0, 4, 2]);
    assert_eq!(linalg::eigh(zeros([0, 2, 2])).1.shape(), [0, 2, 2]);
    assert_eq!(lax::linalg::lu(&zeros([0, 4, 2])).2.shape(), [0, 4]);
    Ok(())
}

/// JAX has no derivative of eigenvectors of general matrices, so differences tell.
#[test]
fn eigenvectors_are_differentiated() -> Result<()> {
    setup();
    let a = array_of([[1.0, 2.0, -0.5], [-1.5, 0.3, 0.7], [0.2, -0.4, 2.1]], DType::F64);
    let e = array_of([[0.3, -1.0, 0.2], [0.5, 0.1, -0.6], [-0.7, 0.4, 0.9]], DType::F64);
    let (_, (dw, dv)) = jvp(|a: Array| linalg::eig(a), &a, &e)?;
    let h = 1e-6;
    let [(w1, v1), (w0, v0)] = [linalg::eig(&a + &e * h)?, linalg::eig(&a - &e * h)?];
    assert!(allclose(dw, (w1 - w0) / (2.0 * h), 1e-6, 1e-6)?);
    assert!(allclose(dv, (v1 - v0) / (2.0 * h), 1e-6, 1e-6)?);
    // The first of a conjugate pair has the positive imaginary part.
    let w = linalg::eigvals(array([[0.0f32, -1.0], [1.0, 0.0]]))?;
    assert!(allclose(w.imag(), array([1.0f32, -1.0]), 1e-6, 1e-6)?);
    Ok(())
}

/// JAX 0.12 returns these numbers in float64.
/// JAX 0.12's gradients by a matrix that is not assumed to stay symmetric.
#[test]
fn solutions_of_positive_definite_equations_are_differentiated_implicitly() -> Result<()> {
    use shardax::scipy::linalg::{AssumeA, solve};
    let (a, b) = (array([[4.0f32, 1.0], [1.0, 3.0]]), array([1.0f32, 2.0]));
    let squares = |a: Array, b: Array| solve(a, b, AssumeA::Pos).square().sum(..);
    let (by_a, by_b) = grad(squares).argnums((0, 1)).call((&a, &b))?;
    assert!(allclose(by_a, array([[0.00601052f32, 0.04207364], [-0.040571, -0.28399706]]), 1e-5, 1e-6)?);
    assert!(allclose(by_b, array([-0.06611572f32, 0.44628105]), 1e-5, 1e-6)?);
    let direction = array([[0.0f32, 1.0], [0.0, 0.0]]);
    let (_, tangent) = jvp(|a: Array| solve(a, array([1.0f32, 2.0]), AssumeA::Pos), &a, direction)?;
    assert!(allclose(tangent, array([-0.17355374f32, 0.05785124]), 1e-5, 1e-6)?);
    let second = hessian(move |a: Array| squares(a, b.clone())).call(&a)?;
    assert!(allclose(
        second.get((0, 1)),
        array([[-0.0013660319f32, 0.14821394], [-0.005_054_298, -0.08797215]]),
        1e-4,
        1e-6
    )?);
    // Batches, each with several right sides.
    let batch = stack([&a, &(&a * 2)], 0);
    let solutions = vmap(|a: Array, b: Array| solve(a, b, AssumeA::Pos)).call((&batch, ones([2, 2, 3])))?;
    assert!(allclose(solve(&batch, ones([2, 2, 3]), AssumeA::Pos), solutions, 1e-5, 1e-6)?);
    Ok(())
}

#[test]
fn norms_by_singular_values_and_their_gradients() -> Result<()> {
    setup();
    let x = array([[1.0f64, 2.0, 3.0], [4.0, 5.0, 6.5]]);
    let nuclear = [
        [-0.6392617016065721, 0.17587260482914843, 0.7486075765911535],
        [0.7062994603750745, 0.5192753234582702, 0.481138452756779],
    ];
    let smallest = [
        [-0.7949023622829182, -0.02940027644259042, 0.47603440137719627],
        [0.32159655138366994, 0.011894577198776065, -0.1925909760580238],
    ];
    let cases = [(NormOrder::Nuc, 10.507280639535896, nuclear), (NormOrder::P(-2.0), 0.6684180361148957, smallest)];
    for (order, value, gradient) in cases {
        let f = jit(value_and_grad(move |x: Array| linalg::norm(x, order, ..)));
        let (norm, slopes) = f.call(&x)?;
        assert!(allclose(norm, value, 1e-12, 0.0)?, "{order:?}");
        assert!(allclose(slopes, array(gradient), 1e-11, 1e-11)?, "{order:?}");
    }
    // Batches, half precision and empty matrices.
    let stack = array([[[1.0f32, 2.0], [3.0, 4.0]], [[2.0, 0.0], [0.0, 3.0]]]);
    let nuclear = linalg::norm(&stack, NormOrder::Nuc, [0, 2]);
    assert!(allclose(nuclear, array([4.1231056f32, 7.2111025]), 1e-6, 0.0)?);
    let smallest = linalg::norm_keepdims(stack.astype(DType::Bf16), -2, [1, 2]);
    assert_eq!((smallest.shape(), smallest.dtype()), (&[2, 1, 1][..], DType::Bf16));
    assert!(allclose(smallest.astype(DType::F32).ravel(), array([0.3659662f32, 2.0]), 4e-3, 0.0)?);
    assert_eq!(linalg::norm(zeros([0, 3]), NormOrder::Nuc, ..).item::<f32>()?, 0.0);
    Ok(())
}

/// The determinants of `x` without one row and one column, with their signs: the gradient of the determinant.
fn cofactors(x: &[[f64; 4]; 4]) -> Vec<f64> {
    let minor = |row: usize, column: usize| {
        let rows: Vec<Vec<f64>> =
            (0..4).filter(|i| *i != row).map(|i| (0..4).filter(|j| *j != column).map(|j| x[i][j]).collect()).collect();
        let term = |a: usize, b: usize, c: usize| rows[0][a] * (rows[1][b] * rows[2][c] - rows[1][c] * rows[2][b]);
        term(0, 1, 2) - term(1, 0, 2) + term(2, 0, 1)
    };
    (0..16).map(|i| if (i / 4 + i % 4) % 2 == 0 { 1.0 } else { -1.0 } * minor(i / 4, i % 4)).collect()
}

/// JAX returns zeros if a pivot before the last one is 0, which is right only if the rank is less than 3.
#[test]
fn gradients_of_determinants_of_singular_matrices() -> Result<()> {
    setup();
    let matrices = [
        [[1.0; 4]; 4],
        [[0.0; 4]; 4],
        [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0; 4]],
        [[0.0, 1.0, 2.0, 0.5], [0.0, 3.0, 1.0, -1.0], [0.0, -2.0, 4.0, 1.0], [0.0, 1.0, 1.0, 3.0]],
        [[1.0, 1.0, 2.0, 0.5], [2.0, 2.0, 1.0, -1.0], [3.0, 3.0, 4.0, 1.0], [4.0, 4.0, 1.0, 3.0]],
        [[1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0], [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]],
        [[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, 2.0], [3.0, 0.0, 1.0, 1.0], [1.0, 2.0, 0.0, 1.0]],
        [[2.0, 1.0, 0.0, 1.0], [1.0, 3.0, 1.0, 2.0], [3.0, 0.0, 1.0, 1.0], [1.0, 2.0, 0.0, 4.0]],
    ];
    let gradient = grad(|x: Array| linalg::det(x));
    for (dtype, tol) in [(DType::F32, 2e-5), (DType::F64, 1e-13)] {
        for matrix in &matrices {
            let want = cofactors(matrix);
            let x = array_of(*matrix, dtype);
            let z = complex(&x, &x * 2);
            let scaled = array_of(want.clone(), dtype).reshape([4, 4]);
            // The cofactors of `(1 + 2i) x` are those of `x` times `(1 + 2i)³`.
            let complex_want = complex(&scaled * -11, &scaled * -2);
            let close = |got: &Array, want: &Array| -> Result<()> {
                assert!(allclose(got, want, tol, tol * 20.0)?, "{matrix:?}: {got} is not {want}");
                Ok(())
            };
            close(&gradient.call(&x)?, &scaled)?;
            close(&jit(&gradient).call(&x)?, &scaled)?;
            close(&grad(|z: Array| real(linalg::det(z))).call(&z)?, &complex_want)?;
            let pair = vmap(&gradient).call(stack([&x, &eye(4).astype(dtype)], 0))?;
            close(&pair.get(0), &scaled)?;
            close(&pair.get(1), &eye(4))?;
        }
    }
    let nan = gradient.call(array([[f32::NAN; 4]; 4]))?;
    assert!(nan.to_vec::<f32>()?.iter().all(|x| x.is_nan()));
    Ok(())
}

/// The values are JAX's.
#[test]
fn norms_of_vectors_over_several_axes() -> Result<()> {
    setup();
    let x = arange(24).astype(DType::F32).reshape((2, 3, 4)) - 7;
    for (order, all, over_two) in [
        (2.0, 40.447498, [17.320509, 21.447611, 29.597298]),
        (1.0, 164.0, [48.0, 48.0, 68.0]),
        (3.0, 26.81446, [12.480504, 16.896723, 23.21537]),
        (0.0, 23.0, [8.0, 7.0, 8.0]),
        (f64::INFINITY, 16.0, [8.0, 12.0, 16.0]),
        (f64::NEG_INFINITY, 0.0, [4.0, 0.0, 1.0]),
    ] {
        assert!(allclose(linalg::vector_norm(&x, order, ..), array_of(all, DType::F32), 1e-6, 0.0)?, "{order}");
        for axes in [[0, 2], [2, 0], [-1, -3]] {
            assert!(allclose(linalg::vector_norm(&x, order, axes), array(over_two), 1e-6, 0.0)?, "{order} {axes:?}");
        }
    }
    assert_eq!(linalg::vector_norm(&x, None, over((0, 2)).keepdims(true)).shape(), [1, 3, 1]);
    assert_eq!(linalg::vector_norm(-3.0f32, None, ..).item::<f32>()?, 3.0);
    assert_eq!(linalg::vector_norm(zeros((2, 0)), 2, -1).to_vec::<f32>()?, [0.0, 0.0]);
    let error = linalg::vector_norm(&x, NormOrder::Nuc, ..).check().expect_err("an order of matrices").to_string();
    assert!(error.contains("invalid order Nuc for the norms of vectors of float32[2,3,4]"), "{error}");
    assert!(allclose(linalg::matrix_norm(&x, NormOrder::Nuc), array([16.051033f32, 39.416187]), 1e-5, 0.0)?);
    Ok(())
}

#[test]
fn factors_in_the_form_of_scipy() -> Result<()> {
    setup();
    let key = random::key(5);
    for shape in [vec![4, 3], vec![3, 4], vec![2, 3, 3], vec![0, 3], vec![2, 3, 0], vec![1, 1]] {
        for dtype in [DType::F32, DType::F64, DType::Complex64] {
            let a = random::normal_dtype(&key, shape.clone(), dtype);
            // The product, and whether the factors are triangular.
            let factors = jit(|a: Array| {
                let (p, l, u) = shardax::scipy::linalg::lu(a);
                (p.matmul(&l).matmul(&u), array_equal(&l, l.tril(0)) & array_equal(&u, u.triu(0)))
            });
            let (product, are_triangular) = factors.call(&a)?;
            assert_eq!((product.shape(), product.dtype()), (a.shape(), dtype));
            assert!(allclose(&product, &a, 1e-5, 1e-5)?, "{shape:?} {dtype}");
            assert!(are_triangular.item::<bool>()?, "{shape:?} {dtype}");
        }
    }
    let a = random::normal(&key, [3, 4]);
    let traced = jit(|a: Array| shardax::scipy::linalg::lu(a)).call(&a)?;
    assert!(allclose(&traced.2, shardax::scipy::linalg::lu(&a).2, 1e-6, 1e-6)?);

    let a = complex(array([[4.0f32, 1.0], [1.0, 3.0]]), array([[0.0f32, 2.0], [-2.0, 0.0]]));
    let (lower, upper) = (shardax::scipy::linalg::cholesky(&a, true), shardax::scipy::linalg::cholesky(&a, false));
    assert!(array_equal(&upper, conj(&lower).t()).item::<bool>()?);
    assert!(allclose(conj(&upper).t().matmul(&upper), &a, 1e-6, 1e-6)?);
    let error = shardax::scipy::linalg::lu(ones(3)).0.check().expect_err("a vector").to_string();
    assert!(error.contains("float32[3]"), "{error}");
    Ok(())
}
