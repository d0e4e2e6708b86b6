//! Tridiagonal systems of equations.

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
