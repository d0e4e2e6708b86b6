//! Optimizers of trees of several dtypes and of complex parameters.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;

use quick::setup;
use shardax::ErrorKind;
use shardax_alloc as _;
use shardax_nn::optim::contrib::*;
use shardax_nn::optim::{clip, *};
use shardax_nn::prelude::*;

fn dtypes<T: Tree>(tree: &T) -> Vec<DType> {
    tree::leaves(tree).iter().map(Array::dtype).collect()
}

/// Two steps on a tree of these dtypes: updates have the dtypes of the gradients, and the state keeps its own.
#[track_caller]
fn keeps_dtypes<T: GradientTransformation<Vec<Array>>>(optimizer: T, leaves: &[DType]) -> Result<()> {
    let params: Vec<Array> = leaves.iter().map(|&dtype| array([1.5f32, -0.5]).astype(dtype)).collect();
    let grads: Vec<Array> = params.iter().map(|p| p * 0.5 + 1).collect();
    assert_eq!(dtypes(&grads), leaves);
    let mut state = optimizer.init(&params)?;
    for _ in 0..2 {
        let before = dtypes(&state);
        let (updates, next) = optimizer.update(grads.clone(), state, &params)?;
        assert_eq!(dtypes(&updates), leaves);
        assert_eq!(dtypes(&next), before);
        state = next;
    }
    Ok(())
}

#[test]
fn optimizers_keep_the_dtypes_of_mixed_trees() -> Result<()> {
    setup();
    for leaves in
        [[DType::F32, DType::F64], [DType::Bf16, DType::F64], [DType::Complex128, DType::F32]].map(|pair| pair.to_vec())
    {
        keeps_dtypes(ademamix(0.1), &leaves)?;
        keeps_dtypes(simplified_ademamix(0.1), &leaves)?;
        keeps_dtypes(dadapt_adamw(1.0), &leaves)?;
        keeps_dtypes(prodigy(1.0), &leaves)?;
        keeps_dtypes(dog(1.0), &leaves)?;
        keeps_dtypes(dowg(1.0), &leaves)?;
        keeps_dtypes(acprop(0.1), &leaves)?;
        keeps_dtypes(radam(0.1), &leaves)?;
    }
    Ok(())
}

/// Complex numbers have no order: the error names the optimizer and the parameter.
#[test]
fn optimizers_that_compare_gradients_reject_complex_parameters() {
    setup();
    fn message<T: GradientTransformation<(Array, Array)>>(optimizer: T) -> String {
        let params = (zeros([2]), lax::complex(zeros([3]), ones([3])));
        let error = optimizer.init(&params).map(|_| ()).expect_err("complex parameters");
        assert_eq!(error.kind(), ErrorKind::Type);
        error.to_string()
    }
    for (name, message) in [
        ("scale_by_sm3", message(sm3(0.1))),
        ("scale_by_rprop", message(rprop(0.1))),
        ("scale_by_cocob", message(cocob(1.0))),
        ("scale_by_madgrad", message(madgrad(0.1))),
        ("scale_by_adopt", message(adopt(0.1))),
        ("clip", message(clip(1.0))),
        ("keep_params_nonnegative", message(keep_params_nonnegative())),
    ] {
        let expected = format!("{name} is for real parameters, but `[1]` is complex64[3]");
        assert!(message.contains(&expected) && message.contains("split_real_and_imaginary"), "{message}");
        assert!(message.contains("optimizers.rs"), "{message}");
    }
}

/// Optax multiplies by the transpose without its conjugate, and returns NaN.
#[test]
fn muon_makes_complex_matrices_orthogonal() -> Result<()> {
    setup();
    for shape in [[3, 5], [5, 3]] {
        let noise = |seed| random::normal(random::key(seed), shape);
        let params = lax::complex(noise(0), noise(1));
        let optimizer = scale_by_muon();
        let (updates, _) = optimizer.update(params.clone(), optimizer.init(&params)?, &params)?;
        // The iteration leads all singular values to between 0.6 and 1.3.
        let values = linalg::svdvals(&updates).to_vec::<f32>()?;
        assert!(values.iter().all(|value| (0.6..1.3).contains(value)), "{values:?}");

        // A real matrix times i has the updates of the real matrix, times i.
        let unit = lax::complex(array(0.0f32), array(1.0f32));
        let real = optimizer.update(noise(0), optimizer.init(&noise(0))?, &noise(0))?.0;
        let turned = noise(0) * &unit;
        let imaginary = optimizer.update(turned.clone(), optimizer.init(&turned)?, &turned)?.0;
        assert!(allclose(imaginary, real * unit, 1e-5, 1e-5)?);
    }
    Ok(())
}

/// The rectification is the root of a negative number in the first steps; Optax returns NaN.
#[test]
fn radam_of_low_thresholds_is_not_nan() -> Result<()> {
    setup();
    for (b2, threshold) in [(0.5, 1.5), (0.6, 1.0), (0.9, 2.5), (0.0, 0.0)] {
        let mut state = TrainState::create(array([1.0f32, -2.0]), radam(0.1).b2(b2).threshold(threshold))?;
        for _ in 0..5 {
            state = state.apply_gradients(array([0.5f32, -0.25]))?;
        }
        let params = state.params.to_vec::<f32>()?;
        assert!(
            params.iter().all(|p| p.is_finite()) && params[0] < 1.0 && params[1] > -2.0,
            "{b2} {threshold}: {params:?}"
        );
    }
    Ok(())
}

#[test]
fn traces_without_decay_keep_no_infinite_updates() -> Result<()> {
    setup();
    fn two_steps(optimizer: impl GradientTransformation<Array>) -> Result<Vec<f32>> {
        let params = zeros(2);
        let state = optimizer.init(&params)?;
        let (_, state) = optimizer.update(array([f32::INFINITY, 1.0]), state, &params)?;
        optimizer.update(array([1.0f32, 2.0]), state, &params)?.0.to_vec::<f32>()
    }
    assert_eq!(two_steps(sgd(1.0).nesterov(true))?, [-1.0, -2.0]);
    assert_eq!(two_steps(sgd(1.0).momentum(0.0))?, [-1.0, -2.0]);
    Ok(())
}
