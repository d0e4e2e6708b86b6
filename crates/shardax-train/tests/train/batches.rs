//! Batches, averages and plots: shapes, masks and errors.

use shardax::ErrorKind;
use shardax::prelude::*;
use shardax_train::*;

use super::setup;

/// 128 images over 8 devices. Every array of a tree is split.
#[test]
fn a_batch_is_split_over_devices() -> Result<()> {
    setup();
    let batch = (arange(0..128 * 3).reshape([128, 3]), vec![zeros(128)]);
    let (images, rest) = shard_batch(&batch, 8)?;
    assert_eq!(images.shape(), [8, 16, 3]);
    assert_eq!(rest[0].shape(), [8, 16]);
    assert_eq!(images.to_vec::<i32>()?, batch.0.to_vec::<i32>()?);
    assert_eq!(shard_batch(&zeros([128, 32, 32, 3]), 8)?.shape(), [8, 16, 32, 32, 3]);
    Ok(())
}

#[test]
fn a_batch_that_does_not_divide_is_an_error() {
    setup();
    let line = line!() + 1;
    let error = shard_batch(&(zeros([100, 4]), zeros(100)), 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indivisible);
    assert_eq!(error.message(), "Batch size 100 must be divisible by num_devices (8)");
    assert!(error.help_text().unwrap_or_default().contains("96 or 104"), "{error}");
    let location = error.location().expect("the caller's line");
    assert!(location.file().ends_with("batches.rs") && location.line() == line, "{error}");

    assert!(shard_batch(&zeros(3), 8).unwrap_err().help_text().unwrap_or_default().contains("batches of 8"));
    assert!(shard_batch(&zeros(3), 0).is_err());
    let error = shard_batch(&(zeros([8, 2]), zeros(())), 8).unwrap_err().to_string();
    assert!(error.contains("`[1]` is a scalar"), "{error}");
    // An operation that failed earlier determines the error.
    let error = shard_batch(&(zeros(3) + zeros(4)), 8).unwrap_err().to_string();
    assert!(error.contains("broadcasting"), "{error}");
}

#[test]
fn an_epoch_has_every_example_once() -> Result<()> {
    setup();
    let data = digits()?;
    let mut counts = [0; 10];
    let mut count = 0;
    let batches = data.batches(128).shuffle(3);
    assert_eq!(batches.len(), 15);
    for batch in batches {
        let batch = batch?;
        assert_eq!(batch.images.shape(), [128, 8, 8, 1]);
        let (labels, mask) = (batch.labels.to_vec::<i32>()?, batch.mask.to_vec::<bool>()?);
        for (label, _) in labels.iter().zip(mask).filter(|(_, real)| *real) {
            counts[*label as usize] += 1;
            count += 1;
        }
    }
    let mut expected_counts = [0; 10];
    data.labels().iter().for_each(|&label| expected_counts[label as usize] += 1);
    assert_eq!((count, counts), (1797, expected_counts));
    assert_eq!(data.batches(128).drop_last().count(), 14);
    Ok(())
}

#[test]
fn the_seed_alone_decides_the_order() -> Result<()> {
    setup();
    let data = digits()?;
    fn first(seed: u64, data: &Dataset) -> Result<Vec<i32>> {
        let mut batches = data.batches(64).shuffle(seed);
        batches.next().expect("a batch")?.labels.to_vec()
    }
    assert_eq!(first(1, &data)?, first(1, &data)?);
    assert_ne!(first(1, &data)?, first(2, &data)?);
    Ok(())
}

#[test]
fn sizes_without_batches_are_errors() -> Result<()> {
    setup();
    let (data, none) = digits()?.split(5000);
    assert!(none.is_empty() && none.batches(8).next().is_none());
    fn error(batches: Batches) -> String {
        batches.collect::<Result<Vec<_>>>().unwrap_err().to_string()
    }
    assert!(error(data.batches(0)).contains("batch size 0"));
    assert!(error(data.batches(2000).drop_last()).contains("larger than the data set (1797 examples)"));
    assert!(error(data.batches(usize::MAX)).contains("do not fit in memory"));
    assert!(error(data.batches(usize::MAX / 1000)).contains("do not fit in memory"));
    assert_eq!(data.batches(2000).count(), 1);
    Ok(())
}

#[test]
fn malformed_csv_lines_are_named() {
    fn read(text: &str) -> String {
        Dataset::from_csv(text.as_bytes(), &[1, 2, 1], 1.0).unwrap_err().to_string()
    }
    assert!(read("1,2,3\n1,2\n").contains("line 2 of the data: it has 2 numbers, not 3"));
    assert!(read("1,x,3\n").contains("\"x\" is not a number"));
}

#[test]
fn shapes_and_scales_of_data_that_cannot_be_are_errors() {
    let read =
        |shape: &[usize], scale: f32| Dataset::from_csv("1,2\n".as_bytes(), shape, scale).unwrap_err().to_string();
    assert!(read(&[usize::MAX, 2], 1.0).contains("has more pixels than there can be"));
    assert!(read(&[usize::MAX], 1.0).contains("has more pixels than there can be"));
    for scale in [0.0, f32::NAN, f32::INFINITY] {
        assert!(read(&[1], scale).contains("must be finite and not 0"), "{scale}");
    }
}

#[test]
fn an_image_past_the_end_is_none() -> Result<()> {
    let data = digits()?;
    assert_eq!(data.image(usize::MAX), None);
    assert_eq!(data.image(data.len()), None);
    let blank = Dataset::from_csv("7\n".as_bytes(), &[0], 1.0)?;
    assert_eq!((blank.image(0), blank.image(1)), (Some(&[][..]), None));
    Ok(())
}

#[test]
fn errors_of_data_and_batches_name_the_callers_line() -> Result<()> {
    setup();
    let line = line!() + 1;
    let error = Dataset::from_csv("1,x\n".as_bytes(), &[1], 1.0).unwrap_err();
    assert_eq!(
        error.location().map(|at| (at.file().ends_with("batches.rs"), at.line())),
        Some((true, line)),
        "{error}"
    );
    let data = digits()?;
    let line = line!() + 1;
    let error = data.batches(0).next().expect("an error in the place of the first batch").unwrap_err();
    assert_eq!(error.location().map(|at| at.line()), Some(line), "{error}");
    let error = data.batches(usize::MAX).next().expect("an error").unwrap_err();
    assert!(error.location().is_some(), "{error}");
    Ok(())
}

#[test]
fn averages_are_weighted_and_carry_errors() -> Result<()> {
    setup();
    let mut average = Average::new();
    assert!(average.value()?.is_nan());
    average.add(2.0);
    average.add_sum(array(9.0f32), 3);
    assert_eq!(average.value()?, 2.75);
    average.add(zeros(2));
    assert!(average.value().is_err());
    Ok(())
}

#[test]
fn a_plot_names_its_curves_and_takes_any_values() -> Result<()> {
    let odd =
        Panel::new("a < b", "step").line("one", [1.0]).line("none", []).line("odd", [f64::NAN, 1.0, f64::INFINITY]);
    let flat = Panel::new("flat", "step").line("zero", [0.0; 3]).line("many", (0..1000).map(|i| (i as f64).sin()));
    let svg = Plot::new().panel(odd).panel(flat).panel(Panel::new("empty", "")).to_svg()?;
    for text in ["a &lt; b", "one", "odd", "many"] {
        assert!(svg.contains(text), "{text}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    // Earlier versions hung on each of these, or drew an axis without an end.
    let hostile: [&[f64]; 9] = [
        &[1e308, -1e308],
        &[f64::MAX, f64::MIN, 1.0],
        &[5e-324, 1e-323],
        &[1e16, 1e16 + 2.0],
        &[-1e100, 1e100],
        &[1e-320, 0.0],
        &[1e99, 1e99],
        &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY],
        &[0.1, 0.1 + 1e-17, 0.1 + 3e-17],
    ];
    for values in hostile {
        let svg = Plot::new().panel(Panel::new("hostile", "x").line("y", values.iter().copied())).to_svg()?;
        assert!(svg.len() < 20_000, "{values:?}: {} bytes", svg.len());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}");
    }
    // Points are ordered by their steps, not by their positions in the log.
    for steps in [[100.0, 200.0], [5.0, 5.0], [1e16, 1e16 + 2.0], [f64::NAN, 1e300], [-1e100, 1e100]] {
        let points = steps.map(|x| (x, x / 3.0));
        let svg = Plot::new().panel(Panel::new("points", "step").points("loss", points)).to_svg()?;
        assert!(svg.len() < 20_000 && !svg.contains("NaN") && !svg.contains("inf"), "{steps:?}");
    }
    let error = Plot::new().save("/nowhere/at/all.svg").unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all.svg"), "{error}");
    Ok(())
}

/// An axis of fractions has the label of each tick, and an axis of steps the labels of steps alone.
#[test]
fn axes_have_labels_between_counts_only_for_fractions() -> Result<()> {
    let labels = |ends: [f64; 2]| -> Result<Vec<String>> {
        let panel = Panel::new("precision", "recall").points("test", ends.map(|x| (x, 0.0)));
        let svg = Plot::new().panel(panel).to_svg()?;
        let texts = svg.lines().map(str::trim).filter(|line| line.parse::<f64>().is_ok_and(|label| label > 0.1));
        Ok(texts.map(str::to_owned).collect())
    };
    assert_eq!(labels([0.125, 0.875])?, ["0.2", "0.4", "0.6", "0.8"]);
    assert_eq!(labels([1.0, 2.0])?, ["1", "2"]);
    Ok(())
}
