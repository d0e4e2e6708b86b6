//! The default dtype applies to calls of programs, also by way of the standard library, and not to arrays that the
//! library makes. The setting belongs to the process, so the test must be in a separate file.

use shardax::ravel_pytree;
use shardax_nn::optim::{constant_schedule, tree_utils};
use shardax_nn::prelude::*;

#[test]
fn default_dtype_differs_between_program_and_library() -> Result<()> {
    shardax::config::enable_x64(true);
    let direct = [zeros(2), ones(2), eye(2), linspace(0.0, 1.0, 2), shardax::fft::fftfreq(4, 1.0)];
    let passed = [2].map(zeros).into_iter().chain([[2, 2]].map(ones)).chain([2].map(eye));
    let drawn = [random::normal(random::key(0), 2), random::gumbel(random::key(0), 2)];
    for x in direct.into_iter().chain(passed).chain(drawn) {
        assert_eq!(x.dtype(), DType::F64, "{x}");
    }

    // Literals of integers, which have 32 bits in Rust, are computed with in float64 like Python's.
    let numbers = [1 / array(3), array([0, 1, 0]).mean(..), array(3).reciprocal(), array([0, 0, 1]).var(..) * 1.5];
    for x in numbers {
        assert_eq!(x.dtype(), DType::F64, "{x}");
        assert!((x.item::<f64>()? - 1.0 / 3.0).abs() < 1e-16, "{x}");
    }

    // No integer type holds both, so the result is a plain number's.
    let sum = array([1i16]) + array([u64::MAX]);
    assert_eq!(sum.dtype(), DType::F64, "{sum}");
    assert_eq!((sum * ones(1).astype(DType::F32)).dtype(), DType::F32);

    let rngs = &mut Rngs::new(0);
    let layers = tree::leaves(&(
        Linear::new(2, 3, rngs),
        BatchNorm::builder(3).build(rngs),
        WeightNorm::new(Linear::new(3, 4, rngs))?,
        Fp8DotGeneral::new(4),
    ));
    let numbers = [
        tri(2, 2, 0),
        ravel_pytree(&Vec::<Array>::new())?.0,
        tree_utils::sum(&Vec::<Array>::new()),
        constant_schedule(0.1).at(0),
        ctc_loss(zeros([1, 2, 3]).astype(DType::F32), array([[0.0f32; 2]]), array([[1]]), array([[0.0f32]]), 0, -1e5),
    ];
    for x in layers.into_iter().chain(numbers) {
        assert_eq!(x.dtype(), DType::F32, "{x}");
    }
    Ok(())
}
