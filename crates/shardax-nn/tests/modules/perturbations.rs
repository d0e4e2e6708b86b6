//! Functions with random perturbations, compared with Optax 0.2.8 by the same keys.

use shardax_nn::optim::perturbations::{Noise, PerturbationOptions, make_perturbed_fun};
use shardax_nn::prelude::*;

use super::setup;

fn close(found: &Array, expected: &[f32]) -> Result<()> {
    let found = found.to_vec::<f32>()?;
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 2e-4 * y.abs().max(1.0)), "{found:?} {expected:?}");
    Ok(())
}

#[test]
fn values_and_derivatives_are_those_of_optax() -> Result<()> {
    setup();
    let f = |x: Array| (maximum(x, 0.0) * array([1.0f32, 2.0, 3.0])).sum(..);
    let x = array([0.1f32, -0.2, 0.3]);
    let (gumbel, normal) = (Noise::Gumbel, Noise::Normal);
    for (noise, use_baseline, value, slopes, second) in [
        (gumbel, true, 2.873653, [0.9130305, 0.6219267, 3.0786157], [-0.5381063, -1.5269461, 0.2067562, -1.5269462]),
        (gumbel, false, 2.873653, [1.0673065, 0.32157093, 2.966906], [-1.677126, -2.3244321, 0.56687725, -2.3244324]),
        (
            normal,
            true,
            1.6432446,
            [0.39875287, 0.4714212, 2.91262],
            [-0.95685625, -0.93018943, -0.27102342, -0.93018943],
        ),
        (
            normal,
            false,
            1.6432446,
            [0.4409963, 0.10395047, 2.9564428],
            [-1.7558502, -1.7992654, -0.17924857, -1.7992654],
        ),
    ] {
        let options = PerturbationOptions { num_samples: 50, sigma: 0.5, noise, use_baseline };
        let smooth = |x: Array| make_perturbed_fun(f, options)(random::key(3), x);
        close(&smooth(x.clone())?, &[value])?;
        close(&jit(grad(smooth)).call(&x)?, &slopes)?;
        close(&jit(hessian(smooth)).call(&x)?.ravel().get(..4), &second)?;
    }
    Ok(())
}

#[test]
fn trees_are_perturbed() -> Result<()> {
    setup();
    let options = PerturbationOptions { num_samples: 20, sigma: 1.0, ..Default::default() };
    let f = |(a, b): (Array, Array)| a.argsort(0).astype(DType::F32) * b;
    let ranks = make_perturbed_fun(f, options);
    let arguments = (array([0.1f32, -0.2, 0.3]), array(2.0f32));
    close(&ranks(random::key(1), arguments.clone())?, &[2.2646844, 3.0883052, 3.152353])?;
    let (_, slopes) = jacrev(|t: (Array, Array)| ranks(random::key(1), t)).call(arguments)?;
    close(&slopes, &[0.7415937, 1.578809, 1.5529444])?;
    Ok(())
}

/// The mean of no samples and noise divided by 0 would be NaN.
#[test]
fn options_out_of_range_are_errors() -> Result<()> {
    setup();
    for (options, want) in [
        (PerturbationOptions { num_samples: 0, ..Default::default() }, "num_samples must be at least 1"),
        (PerturbationOptions { sigma: 0.0, ..Default::default() }, "sigma must be above 0 and finite"),
        (PerturbationOptions { sigma: f64::NAN, ..Default::default() }, "sigma must be above 0 and finite"),
    ] {
        let smooth = make_perturbed_fun(|x: Array| x.sum(..), options);
        let message = smooth(random::key(0), ones(2)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(want), "{message}");
    }
    Ok(())
}
