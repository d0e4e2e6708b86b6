//! Rotations where formulas divide by zero or angles are not unique, and arguments that are none.

use shardax::numpy::full_dtype;
use shardax::prelude::*;
use shardax::scipy::spatial::transform::{Rotation, Slerp};

use super::common::quick::setup;

#[test]
fn slopes_at_a_rotation_by_zero_are_finite() {
    setup();
    let turned = |v: Array| -> Result<Array> { Rotation::from_rotvec(v)?.apply(array([1.0f32, 0.0, 0.0])) };
    let slopes = jacobian_at(turned, zeros([3]));
    assert_eq!(slopes, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0]);
    let back = |v: Array| -> Result<Array> { Ok(Rotation::from_rotvec(v)?.as_rotvec()) };
    assert_eq!(jacobian_at(back, zeros([3])), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
}

/// The square of an angle has a second derivative at 0, and its root has none: the curvature was that of no rotation.
#[test]
fn curvatures_at_a_rotation_by_zero_are_of_matrices() -> Result<()> {
    setup();
    // The matrix is I + K + K² / 2 + …, for the matrix K of the vector's cross product.
    for at in [0.0, 1e-6] {
        let element = |v: Array| -> Result<Array> { Ok(Rotation::from_rotvec(v)?.as_matrix().get((0, 0))) };
        let curvature = hessian(element).call(full_dtype([3], at, DType::F64))?;
        let expected = array([[0.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]]);
        assert!(allclose(&curvature, expected, 0.0, 1e-5)?, "{at}: {curvature}");
    }
    // The third derivatives of a rotation vector that is read back are 0, next to 0 and away from it.
    for at in [0.0, 2e-4, 0.3] {
        let back = |v: Array| -> Result<Array> { Ok(Rotation::from_rotvec(v)?.as_rotvec().get(0)) };
        let curvature = move |v: Array| hessian(back).call(v);
        let third = jacfwd(curvature).call(full_dtype([3], at, DType::F64))?;
        assert!(allclose(&third, zeros([3, 3, 3]), 0.0, 1e-4)?, "{at}: {third}");
    }
    Ok(())
}

/// Squares of components left the range of the dtype.
#[test]
fn quaternions_and_vectors_of_any_length_are_rotations() -> Result<()> {
    setup();
    let expected = array([0.6f32, 0.0, 0.0, 0.8]);
    let sizes = [(DType::F16, 1e4), (DType::F16, 1e-4), (DType::F32, 1e30), (DType::F32, 1e-30), (DType::F64, 1e200)];
    for (dtype, size) in sizes {
        let quat = (array([3.0f64, 0.0, 0.0, 4.0]) * size).astype(dtype);
        let found = Rotation::from_quat(&quat)?.as_quat();
        assert!(found.dtype() == dtype && allclose(found.astype(DType::F32), &expected, 1e-3, 0.0)?, "{quat}: {found}");
    }
    let [quarter, turned] = [array([300.0f32, 0.0, 0.0]), array([1e-4f32, 0.0, 0.0])].map(|v| v.astype(DType::F16));
    assert!(Rotation::from_rotvec(&quarter)?.as_quat().isfinite().all(..).item::<bool>()?);
    assert!(Rotation::from_mrp(&quarter)?.as_quat().isfinite().all(..).item::<bool>()?);
    assert!(allclose(Rotation::from_rotvec(&turned)?.as_rotvec(), turned, 2e-3, 0.0)?);
    Ok(())
}

fn jacobian_at(f: impl Fn(Array) -> Result<Array>, at: Array) -> Vec<f32> {
    jacfwd(f).call(at).and_then(|slopes| slopes.to_vec::<f32>()).unwrap_or_else(|error| panic!("{error}"))
}

/// Every matrix of a rotation by a quarter turn about an axis, and their products, is read back.
#[test]
fn matrices_and_angles_of_half_turns_are_read_back() -> Result<()> {
    setup();
    let half = std::f32::consts::PI;
    for seq in ["xyz", "ZXZ"] {
        for angles in [[half, 0.0, 0.0], [0.0, half, 0.0], [0.0, 0.0, half], [half, half / 2.0, half]] {
            let matrix = Rotation::from_euler(seq, array(angles))?.as_matrix();
            let read = Rotation::from_matrix(&matrix)?;
            assert!(allclose(read.as_matrix(), &matrix, 0.0, 1e-5)?, "{seq} {angles:?}");
            let again = Rotation::from_euler(seq, read.as_euler(seq)?)?.as_matrix();
            assert!(allclose(again, &matrix, 0.0, 1e-3)?, "{seq} {angles:?}");
        }
    }
    Ok(())
}

#[test]
fn random_rotations_keep_lengths_and_have_inverses() -> Result<()> {
    setup();
    let rotations = Rotation::random(random::key(0), 100);
    let vectors = random::normal(random::key(1), [100, 3]);
    let turned = rotations.apply(&vectors)?;
    assert!(allclose(turned.square().sum(-1), vectors.square().sum(-1), 1e-5, 0.0)?);
    assert!(allclose(rotations.inv().apply(turned)?, vectors, 1e-5, 1e-6)?);
    assert!(allclose((&rotations * rotations.inv()).magnitude(), zeros([100]), 0.0, 1e-3)?);
    let [first, rest] = [rotations.get(..10)?, rotations.get(10..)?];
    assert!(allclose(Rotation::concatenate(&[first, rest])?.as_quat(), rotations.as_quat(), 0.0, 0.0)?);
    assert!(rotations.get(3)?.is_single());
    Ok(())
}

#[test]
fn arguments_that_are_no_rotations_are_errors() -> Result<()> {
    setup();
    let message = |result: Result<Rotation>| result.err().map(|error| error.message().to_owned()).unwrap_or_default();
    assert!(message(Rotation::from_quat(ones([3]))).contains("quaternions end with the dimensions [4]"));
    assert!(message(Rotation::from_matrix(ones([2, 3]))).contains("rotation matrices end with the dimensions [3, 3]"));
    for seq in ["", "xX", "xx", "w", "xyzx"] {
        let found = message(Rotation::from_euler(seq, ones([seq.len()])));
        assert!(found.contains("are not 1 to 3 of x, y, z or of X, Y, Z"), "{seq}: {found}");
    }
    assert!(message(Rotation::from_euler("xy", ones([3]))).contains("Euler angles end with the dimensions [2]"));
    assert!(Rotation::identity().as_euler("xy").is_err());
    assert!(Rotation::identity().get(0).is_err());
    assert!(Rotation::identity().mean(None).is_err());
    assert!(Rotation::concatenate(&[Rotation::identity()]).is_err());
    let two = Rotation::from_quat(array([[0.0f32, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]))?;
    assert!(Slerp::new(array([0.0f32]), &two).is_err());
    assert!(Slerp::new(array([0.0f32, 1.0]), &two)?.call(ones([2, 2])).is_err());
    Ok(())
}
