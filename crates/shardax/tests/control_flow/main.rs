//! Loops, choices, functions with their own derivatives, and checkpoints: under each other, on several devices, and their errors.
//! (Their values, derivatives and batches are compared with JAX's in `golden.rs`.)

mod backward_logs;
mod carries;
mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod errors;
mod implicit;
mod nested;
mod platform_dependent;
mod products;
mod refs;
mod rule_per_argument;
mod spmd;
mod symbolic_zeros;

use shardax::prelude::*;
use shardax_alloc as _;

fn close_by(got: &Array, want: &[f64], tol: f64) {
    let got = got.to_f64_vec().expect("values");
    assert_eq!(got.len(), want.len(), "{got:?} against {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tol * (1.0 + w.abs()), "{got:?} against {want:?}");
    }
}

/// Compares values to about the precision of float32.
fn close(got: &Array, want: &[f64]) {
    close_by(got, want, 1e-5);
}

fn same(got: &Array, want: &Array) {
    assert_eq!(got.shape(), want.shape());
    close(got, &want.to_f64_vec().expect("values"));
}

/// Compares the gradient of a scalar function of one float32 array with central differences.
fn check_gradient(f: impl Fn(Array) -> Result<Array>, x: &Array) -> Result<()> {
    let values = x.to_vec::<f32>()?;
    let eps = 1e-2f32;
    let slopes: Vec<f64> = (0..values.len())
        .map(|i| {
            let loss_at = |d: f32| -> Result<f64> {
                let mut moved = values.clone();
                moved[i] += d;
                f(Array::from_vec(moved, x.shape())?)?.to_f64()
            };
            Ok((loss_at(eps)? - loss_at(-eps)?) / (2.0 * eps as f64))
        })
        .collect::<Result<_>>()?;
    close_by(&grad(|x: Array| f(x)).call(x)?, &slopes, 5e-3);
    Ok(())
}
