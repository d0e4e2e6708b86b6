//! Loops, choices and functions with their own derivatives.

mod common;

use common::setup;
use shardax::prelude::*;

fn close(got: &Array, want: &[f64]) {
    let got = got.to_f64_vec().expect("values");
    assert_eq!(got.len(), want.len(), "{got:?} against {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-5 * (1.0 + w.abs()), "{got:?} against {want:?}");
    }
}

/// The gradient of a scalar function of one array, by central differences in f32.
fn finite_differences(f: impl Fn(Array) -> Result<Array>, x: &Array) -> Result<Vec<f64>> {
    let values = x.to_vec::<f32>()?;
    let eps = 1e-2f32;
    (0..values.len())
        .map(|i| {
            let at = |d: f32| -> Result<f64> {
                let mut v = values.clone();
                v[i] += d;
                f(Array::from_vec(v, x.shape())?)?.to_f64()
            };
            Ok((at(eps)? - at(-eps)?) / (2.0 * eps as f64))
        })
        .collect()
}

fn nearly(got: &Array, want: &[f64]) {
    let got = got.to_f64_vec().expect("values");
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 5e-3 * (1.0 + w.abs()), "{got:?} against {want:?}");
    }
}

#[test]
fn scan_eager_and_jit() -> Result<()> {
    setup();
    let xs = array([1.0f32, 2.0, 3.0]);
    let (c, ys) = scan(|c, x| (&c + &x, c * x), Array::from(1.0), xs.clone())?;
    close(&c, &[7.0]);
    close(&ys, &[1.0, 4.0, 12.0]);
    let f = jit(|c: Array, xs: Array| scan(|c, x| (&c + &x, c * x), c, xs));
    let (c, ys) = f.call((1.0, &xs))?;
    close(&c, &[7.0]);
    close(&ys, &[1.0, 4.0, 12.0]);
    Ok(())
}

fn rnn(w: &Array, h: Array, xs: Array) -> Result<(Array, Array)> {
    scan(
        |h, x| {
            let h = (w.dot(h) + x).tanh();
            (h.clone(), h)
        },
        h,
        xs,
    )
}

fn rnn_inputs() -> (Array, Array, Array) {
    let w = array([[0.5f32, -0.3, 0.2], [0.1, 0.4, -0.6], [-0.2, 0.7, 0.3]]);
    let h = array([0.1f32, -0.2, 0.3]);
    let xs = array([[0.3f32, 0.1, -0.5], [-0.7, 0.2, 0.4], [0.6, -0.1, 0.2], [0.05, 0.9, -0.3]]);
    (w, h, xs)
}

#[test]
fn scan_gradients_match_finite_differences() -> Result<()> {
    setup();
    let (w, h, xs) = rnn_inputs();
    let loss = |w: Array, h: Array, xs: Array| -> Result<Array> {
        let (h, ys) = rnn(&w, h, xs)?;
        Ok(h.sum(..) + (ys.square() * 0.5).sum(..))
    };
    let (gw, gh, gx) =
        grad(loss).argnums((shardax::Arg::<0>, shardax::Arg::<1>, shardax::Arg::<2>)).call((&w, &h, &xs))?;
    nearly(&gw, &finite_differences(|w| loss(w, h.clone(), xs.clone()), &w)?);
    nearly(&gh, &finite_differences(|h| loss(w.clone(), h, xs.clone()), &h)?);
    nearly(&gx, &finite_differences(|xs| loss(w.clone(), h.clone(), xs), &xs)?);
    Ok(())
}
