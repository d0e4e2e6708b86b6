//! Metrics as trees: over batches, masks, devices and merges, what the numbers together give.

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

    let of = |logits: &Array, labels: &Array, mask: &Array| {
        let losses = softmax_cross_entropy_with_integer_labels(logits, labels);
        MultiMetric::new()
            .with("loss", Average::masked(&losses, mask))
            .with("accuracy", Accuracy::masked(logits, labels, mask))
            .with("perplexity", Perplexity::masked(&losses, mask))
    };
    let step = pmap(move |logits: Array, labels: Array, mask: Array| psum(of(&logits, &labels, &mask), "batch"))
        .axis_name("batch")
        .out_axes(None);
    let mut window = MultiMetric::new();
    for i in 0..3 {
        let split = |x: &Array| {
            let x = x.get(i);
            x.reshape([&[8, 2], &x.shape()[1..]].concat())
        };
        window = window.merge(&step.call((split(&logits), split(&labels), split(&real)))?);
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
    let all: Vec<f64> = numbers.concat().into_iter().map(f64::from).collect();
    let mean = all.iter().sum::<f64>() / 6.0;
    close(std.value()?, (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 6.0).sqrt());
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
fn what_does_not_belong_together_is_an_error() -> Result<()> {
    setup();
    fails(Average::of_sum(zeros([2]), 1).value(), &["an average is of scalars, got float32[2]"]);
    fails(Average::masked(zeros([2]), zeros([3])).value(), &["values are float32[2] and the mask is float32[3]"]);
    fails(Accuracy::of(zeros([2, 3]), zeros([2])).value(), &["logits are float32[2,3] and labels float32[2]"]);
    let odd = AnyMetric::from(Average::new()).merge(&LastValue::of(1.0).into());
    fails(MultiMetric::new().with("x", odd).values(), &["metric \"x\"", "two kinds"]);
    Ok(())
}
