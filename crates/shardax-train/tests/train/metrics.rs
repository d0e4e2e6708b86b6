//! Metrics over batches, masks, devices and merges equal the metrics of all numbers together.

use shardax_nn::prelude::*;
use shardax_train::{Accuracy, AnyMetric, Average, LastValue, Metric, MultiMetric, Perplexity, Std};

use super::{fails, setup};

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{a} is not {b}");
}

/// Ragged batches, over devices and steps, are what all examples together are.
#[test]
fn windows_of_masked_batches_over_devices_are_the_whole() -> Result<()> {
    setup();
    let logits = random::normal(random::key(1), [3, 16, 5]);
    let labels = random::randint(random::key(2), [3, 16], 0, 5);
    // The last batch has five examples; what fills it up is NaN.
    let real = arange(0..48).reshape([3, 16]).less(37);
    let logits = where_(real.reshape([3, 16, 1]), &logits, f32::NAN);

    fn of(logits: &Array, labels: &Array, mask: &Array) -> MultiMetric {
        let losses = softmax_cross_entropy_with_integer_labels(logits, labels);
        MultiMetric::new()
            .with("loss", Average::masked(&losses, mask))
            .with("accuracy", Accuracy::masked(logits, labels, mask))
            .with("perplexity", Perplexity::masked(&losses, mask))
    }
    let step = pmap(move |logits: Array, labels: Array, mask: Array| psum(of(&logits, &labels, &mask), "batch"))
        .axis_name("batch")
        .out_axes(None);
    let mut window = MultiMetric::new();
    for i in 0..3 {
        fn split(x: &Array, i: i32) -> Array {
            let x = x.get(i);
            x.reshape([&[8, 2], &x.shape()[1..]].concat())
        }
        window = window.merge(&step.call((split(&logits, i), split(&labels, i), split(&real, i)))?);
    }
    let values = window.values()?;

    let (rows, labels) = (logits.reshape([48, 5]).get(0..37), labels.reshape([48]).get(0..37));
    let losses = softmax_cross_entropy_with_integer_labels(&rows, &labels).to_f64_vec()?;
    let mean = losses.iter().sum::<f64>() / 37.0;
    close(values["loss"], mean);
    close(values["perplexity"], mean.exp());
    close(values["accuracy"], accuracy(&rows, &labels).to_f64()?);
    assert!(values["accuracy"] > 0.0);
    Ok(())
}

#[test]
fn deviations_and_last_values() -> Result<()> {
    setup();
    let numbers = [[1.0f32, 2.0, 4.0], [8.0, 16.0, 32.0]];
    let std = Std::of(array(numbers[0])).merge(&Std::of(array(numbers[1])));
    let values: Vec<f64> = numbers.concat().into_iter().map(f64::from).collect();
    let mean = values.iter().sum::<f64>() / 6.0;
    close(std.value()?, (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 6.0).sqrt());
    assert_eq!(Std::of(array([3.0f32; 7])).value()?, 0.0);
    assert_eq!(LastValue::of(1.0).merge(&LastValue::of(2.0)).value()?, 2.0);
    assert!(Perplexity::new().value()?.is_nan() && Accuracy::new().value()?.is_nan());
    assert_eq!(Average::of(array([[1.0f32, 2.0], [3.0, 6.0]])).value()?, 3.0);
    Ok(())
}

#[test]
fn a_metric_that_only_some_steps_have_stays() -> Result<()> {
    setup();
    let a = MultiMetric::new().with("loss", Average::of(array([1.0f32])));
    let b = MultiMetric::new().with("loss", Average::of(array([3.0f32]))).with("rate", LastValue::of(0.5));
    let values = a.merge(&b).merge(&a).values()?;
    close(values["loss"], 5.0 / 3.0);
    assert_eq!((values["rate"], values.len()), (0.5, 2));
    Ok(())
}

#[test]
fn mismatched_metrics_are_errors() -> Result<()> {
    setup();
    fails(Average::from_sum(zeros([2]), 1).value(), &["an average accepts only scalars, got float32[2]"]);
    fails(Average::masked(zeros([2]), zeros([3])).value(), &["values are float32[2], but the mask is float32[3]"]);
    fails(Accuracy::of(zeros([2, 3]), zeros([2])).value(), &["logits are float32[2,3], but labels are float32[2]"]);
    let odd = AnyMetric::from(Average::new()).merge(&LastValue::of(1.0).into());
    fails(MultiMetric::new().with("x", odd).values(), &["metric \"x\"", "two kinds"]);
    Ok(())
}

/// Ten thousand batches in each dtype are what float64 says, for constants, zeros, large means and large ranges.
#[test]
fn metrics_of_many_steps_equal_float64() -> Result<()> {
    setup();
    const STEPS: usize = 10_000;
    type Metrics = (Average, Std);
    fn add(metrics: Metrics, x: Array) -> Result<((Average, Std), ())> {
        Ok(((metrics.0.merge(&Average::of(&x)), metrics.1.merge(&Std::of(&x))), ()))
    }
    let run = jit(move |start: Metrics, batches: Array| scan(add, start, batches).map(|(metrics, ())| metrics));
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
        for (name, value) in [
            ("constant", (|_: &Array| full(STEPS, 2.0f32)) as fn(&Array) -> Array),
            ("a tenth", |_| full(STEPS, 0.1f32)),
            ("zeros", |_| zeros(STEPS)),
            ("noise", |noise| noise.clone()),
            ("a large mean", |noise| 10_000.0 + noise),
            ("a large range", |noise| (noise * 3.0).exp() * 1e-3),
        ] {
            let noise = random::normal(random::key(3), [STEPS]);
            let values = value(&noise).astype(dtype);
            let (mean, std) = run.call((
                (Average::of(zeros_dtype(0, dtype)), Std::of(zeros_dtype(0, dtype))),
                values.reshape([STEPS, 1]),
            ))?;
            let values = values.to_f64_vec()?;
            let expected = values.iter().sum::<f64>() / STEPS as f64;
            let variance = values.iter().map(|x| (x - expected).powi(2)).sum::<f64>() / STEPS as f64;
            let near = |found: f64, expected: f64| {
                let message = format!("{name}, {dtype}: {found} is not {expected}");
                assert!((found - expected).abs() <= 1e-7 * expected.abs(), "{message}");
            };
            near(mean.value()?, expected);
            // Rounding makes the deviation of constants not exactly zero.
            if variance < 1e-20 {
                assert!(std.value()? < 1e-9 * expected.max(1e-9), "{name}, {dtype}: {}", std.value()?);
            } else {
                near(std.value()?, variance.sqrt());
            }
        }
    }
    Ok(())
}

#[test]
fn sums_and_counts_exceed_their_dtypes() -> Result<()> {
    setup();
    // 2³¹ − 1 examples, twice.
    let mut many = Average::from_sum(array(1.0f32), array(i32::MAX));
    many.add_sum(array(i32::MAX), array(i32::MAX));
    close(many.value()? * 2.0, 1.0);
    assert_eq!(Average::of(full(1000, 60000.0f32).astype(DType::F16)).value()?, 59_968.0 + 32.0);
    assert_eq!(Average::of(full([4], i32::MAX)).value()?, f64::from(i32::MAX as f32));
    assert_eq!(Average::masked(full([4], 100i32).astype(DType::I8), ones_dtype([4], DType::I8)).value()?, 100.0);
    assert_eq!(Average::of(array([f32::INFINITY, 1.0])).value()?, f64::INFINITY);
    assert!(Std::of(array([f32::NAN, 1.0])).value()?.is_nan());
    Ok(())
}

/// Devices add deviations around a large mean with `psum`.
#[test]
fn deviations_over_devices_keep_a_large_mean_apart() -> Result<()> {
    setup();
    let values = 10_000.0 + arange(0..64).astype(DType::F32).reshape([8, 8]) / 16.0;
    let step = pmap(|x: Array| psum(Std::of(x), "batch")).axis_name("batch").out_axes(None);
    let std = step.call(&values)?;
    let expected = Std::of(&values).value()?;
    close(std.value()?, expected);
    close(std.merge(&Std::of(&values)).value()?, expected);
    // The numbers 0 to 63 have the variance (64² − 1) / 12.
    close(expected, ((64.0f64 * 64.0 - 1.0) / 12.0).sqrt() / 16.0);
    Ok(())
}

/// Gradients in half precision, over many parts.
#[test]
fn gradients_of_many_parts_are_averaged_in_float32() -> Result<()> {
    setup();
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
        let mean = shardax_train::accumulate(512, |x: Array| Ok(x.mean(..)), ones_dtype([512], dtype))?;
        assert_eq!((mean.dtype(), mean.to_f64()?), (dtype, 1.0));
        let values = (1.0 + random::normal(random::key(1), [10_000]) * 0.1).astype(dtype);
        let mean = shardax_train::accumulate(10_000, |x: Array| Ok(x.mean(..)), values.clone())?;
        let expected = values.to_f64_vec()?.iter().sum::<f64>() / 10_000.0;
        let unit = if dtype == DType::Bf16 {
            4e-3
        } else if dtype == DType::F16 {
            5e-4
        } else {
            1e-6
        };
        assert!((mean.to_f64()? - expected).abs() <= unit, "{dtype}: {mean} is not {expected}");
    }
    Ok(())
}
