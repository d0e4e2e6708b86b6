//! Tridiagonal systems of equations, and reductions to tridiagonal form.

use shardax::prelude::*;

use super::common::quick::setup;

fn system() -> (Array, Array, Array, Array) {
    let dl = array([[9.0f32, 1.0, -1.0, 0.5], [0.0, 1.0, 2.0, 3.0]]);
    let d = array([[4.0f32, 5.0, 3.0, 4.0], [8.0, 9.0, 10.0, 7.0]]);
    let du = array([[1.0f32, 0.5, -1.0, 7.0], [1.0, 2.0, 3.0, 9.0]]);
    (dl, d, du, arange(0..16).astype(DType::F32).reshape([2, 4, 2]))
}

/// The numbers are from JAX 0.12.
#[test]
fn tridiagonal_solve_and_gradients_equal_jax() -> Result<()> {
    setup();
    let (dl, d, du, b) = system();
    let x = lax::linalg::tridiagonal_solve(&dl, &d, &du, &b);
    let expected = [
        -0.057_026_48f32,
        0.164_969_44,
        0.228_105_92,
        0.340_122_2,
        1.832_993_7,
        2.268_839,
        1.270_875_7,
        1.466_395_1,
        0.886_778_65,
        1.000_730_5,
        0.905_770_66,
        0.994_156_3,
        0.480_642_83,
        0.525_931_36,
        1.794_010_3,
        1.917_458,
    ];
    assert!(allclose(&x, array(expected).reshape([2, 4, 2]), 1e-5, 1e-6)?);
    let squares =
        |dl: Array, d: Array, du: Array, b: Array| lax::linalg::tridiagonal_solve(dl, d, du, b).square().sum(..);
    let arguments = (Arg::<0>, Arg::<1>, Arg::<2>, Arg::<3>);
    let slopes = jit(grad(squares).argnums(arguments)).call((&dl, &d, &du, &b))?;
    let of_dl = [0.0f32, -0.046_855_666, -0.665_393_6, -4.017_373, 0.0, -0.404_284_66, 0.220_758_17, -0.584_616_6];
    let of_d = [
        -0.003_519_551f32,
        -0.206_162_87,
        -4.756_447_3,
        -2.673_256_9,
        -0.396_423_9,
        -0.406_707_1,
        0.116_952_32,
        -2.154_791_8,
    ];
    let of_du = [0.029_989_872f32, -1.473_929_6, -3.162_148, 0.0, -0.398_686_77, -0.215_458_04, 0.431_101_68, 0.0];
    for (slope, expected) in [(&slopes.0, of_dl), (&slopes.1, of_d), (&slopes.2, of_du)] {
        assert!(allclose(slope, array(expected).reshape([2, 4]), 1e-4, 1e-5)?, "{slope} is not {expected:?}");
    }
    assert_eq!(slopes.3.shape(), [2, 4, 2]);
    // The mapped function solves the same systems.
    let mapped = vmap(|dl: Array, d: Array, du: Array, b: Array| lax::linalg::tridiagonal_solve(dl, d, du, b));
    assert!(allclose(mapped.call((&dl, &d, &du, &b))?, &x, 1e-6, 1e-6)?);
    let empty = lax::linalg::tridiagonal_solve(zeros(0), zeros(0), zeros(0), zeros([0, 3]));
    assert_eq!(empty.shape(), [0, 3]);
    Ok(())
}

#[test]
fn tridiagonal_solve_rejects_shapes_that_do_not_fit() {
    setup();
    let (dl, d, du, b) = system();
    for (x, words) in [
        (lax::linalg::tridiagonal_solve(dl.get((.., 1..)), &d, &du, &b), "three diagonals"),
        (lax::linalg::tridiagonal_solve(&dl, &d, &du, b.get((.., .., 0))), "a right side [..., n, k]"),
        (lax::linalg::tridiagonal_solve(&dl, &d, &du, b.astype(DType::F64)), "one floating point or complex dtype"),
        (lax::linalg::tridiagonal_solve(1, 2, 3, 4), "three diagonals"),
    ] {
        let text = x.to_vec::<f32>().expect_err("a system of equations that has no solution").to_string();
        assert!(text.contains(words) && text.contains("help:"), "{text}");
    }
}

/// Without an exchange of rows the first pivot is 0, and the third one has no digits. The numbers are from JAX 0.12.
#[test]
fn tridiagonal_solve_exchanges_rows() -> Result<()> {
    setup();
    let (dl, d) = (array([0.0f32, 1.0, 1.0, 3.0]), array([0.0f32, 2.0, 1e-6, 1.0]));
    let (du, b) = (array([1.0f32, 1.0, 2.0, 0.0]), arange(0..8).astype(DType::F32).reshape([4, 2]));
    let x = lax::linalg::tridiagonal_solve(&dl, &d, &du, &b);
    let expected = array([[2.0f32 / 3.0, -2.0 / 3.0], [0.0, 1.0], [4.0 / 3.0, 5.0 / 3.0], [2.0, 2.0]]);
    assert!(allclose(&x, expected, 1e-6, 1e-6)?, "{x}");
    let squares =
        |dl: Array, d: Array, du: Array, b: Array| lax::linalg::tridiagonal_solve(dl, d, du, b).square().sum(..);
    let arguments = (Arg::<0>, Arg::<1>, Arg::<2>, Arg::<3>);
    let slopes = jit(grad(squares).argnums(arguments)).call((&dl, &d, &du, &b))?;
    for (slope, expected) in [
        (slopes.0, [0.0f32, -1.777_778, -1.222_222, -3.185_185]),
        (slopes.1, [5.259_26, 1.333_334, -4.407_406, -3.999_998]),
        (slopes.2, [-3.444_446, 0.444_446, -5.999_996, 0.0]),
    ] {
        assert!(allclose(&slope, array(expected), 1e-5, 1e-5)?, "{slope} is not {expected:?}");
    }

    let complex = |real: [f32; 3], imag: [f32; 3]| shardax::numpy::complex(array(real), array(imag));
    let (dl, d) = (complex([0.0, 0.0, 1.0], [0.0, 1.0, 0.0]), complex([0.0, 2.0, 1.0], [0.0; 3]));
    let (du, b) = (complex([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]), complex([1.0, 0.0, 3.0], [0.0, 2.0, 0.0]));
    let x = lax::linalg::tridiagonal_solve(dl, d, du, b.expand_dims(1)).squeeze(1);
    assert!(allclose(x, complex([0.0, 1.0, 2.0], [2.0, 0.0, 0.0]), 1e-6, 1e-6)?);
    Ok(())
}

fn hermitian() -> (Array, Array) {
    let real = array([[2.0f32, 3.0, 4.0, 1.0], [3.0, 1.0, 0.0, -2.0], [4.0, 0.0, 5.0, 0.5], [1.0, -2.0, 0.5, -1.0]]);
    let parts = (
        array([[2.0f32, 1.0, 0.0], [1.0, -1.0, 0.5], [0.0, 0.5, 3.0]]),
        array([[0.0f32, 2.0, -1.0], [-2.0, 0.0, 1.0], [1.0, -1.0, 0.0]]),
    );
    (real, shardax::numpy::complex(parts.0, parts.1))
}

/// The numbers are LAPACK's, from JAX 0.12.
#[test]
fn tridiagonal_equals_jax() -> Result<()> {
    setup();
    let close = |x: &Array, expected: &[f32]| -> Result<()> {
        let expected = Array::from_slice(expected, x.shape())?;
        assert!(allclose(x, &expected, 1e-5, 1e-5)?, "{x} is not {expected}");
        Ok(())
    };
    let (real, complex) = hermitian();
    let lower = jit(|a: Array| lax::linalg::tridiagonal(a, true)).call(&real)?;
    close(
        &lower.0.get(2..).flatten(),
        &[0.493_887, 2.774_167_8, 0.029_948_235, 0.5, 0.123_471_74, -0.267_419_64, -1.878_256_7, 1.893_128_4],
    )?;
    // The other triangle is returned as it is.
    close(&lower.0.get(0), &[2.0, 3.0, 4.0, 1.0])?;
    close(&lower.1, &[2.0, 3.076_924_3, 0.029_948_235, 1.893_128_4])?;
    close(&lower.2, &[-5.099_019, 2.774_167_8, -1.878_256_7])?;
    close(&lower.3, &[1.588_348_5, 1.866_519_1, 0.0])?;
    let upper = lax::linalg::tridiagonal(&real, false);
    close(&upper.0.get(0), &[5.645_455_4, -3.457_760_8, -0.342_700_7, 0.358_257_5])?;
    close(&upper.1, &[5.645_455_4, 2.497_400_3, -0.142_856_6, -1.0])?;
    close(&upper.2, &[-3.457_760_8, 2.996_596_8, -2.291_288])?;
    close(&upper.3, &[0.0, 1.789_799_2, 1.218_217_8])?;

    let lower = lax::linalg::tridiagonal(&complex, true);
    let corner = lower.0.get((2, 0));
    close(&stack([corner.real(), corner.imag()], 0), &[-0.125_794_23, 0.216_963_35])?;
    close(&lower.1, &[2.0, -1.0, 3.0])?;
    close(&lower.2, &[-2.449_489_8, -1.118_033_9])?;
    close(&lower.3.real(), &[1.408_248_3, 1.554_044_2])?;
    close(&lower.3.imag(), &[-0.816_496_6, -0.832_487_2])?;
    let upper = lax::linalg::tridiagonal(&complex, false);
    close(&upper.1, &[2.444_444_7, -1.444_445_1, 3.0])?;
    close(&upper.2, &[-1.862_561_8, -1.5])?;
    close(&upper.3.imag(), &[0.811_307_97, 0.666_666_7])?;
    Ok(())
}

#[test]
fn tridiagonal_keeps_eigenvalues_of_batches_and_large_numbers() -> Result<()> {
    setup();
    let (real, _) = hermitian();
    let batch = stack([&real, &(&real * 1e30)], 0);
    let (_, d, e, _) = lax::linalg::tridiagonal(&batch, true);
    let eigenvalues = shardax::linalg::eigvalsh(&batch);
    let reduced = vmap(|d: Array, e: Array| shardax::scipy::linalg::eigh_tridiagonal(d, e)).call((&d, &e))?;
    let scale = array([[1.0f32], [1e-30]]);
    assert!(allclose(reduced * &scale, eigenvalues * scale, 1e-4, 1e-4)?);
    let single = lax::linalg::tridiagonal(array([[7.0f32]]), true);
    assert_eq!((single.1.to_vec::<f32>()?, single.2.shape(), single.3.shape()), (vec![7.0], &[0][..], &[0][..]));
    for (a, words) in [
        (zeros([0, 0]), "at least one row"),
        (zeros([2, 3]), "square"),
        (zeros([2, 2]).astype(DType::Bf16), "bfloat16"),
        (zeros([2, 2]).astype(DType::I32), "int32"),
    ] {
        let text =
            lax::linalg::tridiagonal(&a, true).2.to_vec::<f32>().expect_err("a matrix without this form").to_string();
        assert!(text.contains(words) && text.contains("help:"), "{text}");
    }
    Ok(())
}
