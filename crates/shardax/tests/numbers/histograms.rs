//! Histograms of points in several dimensions.

use shardax::numpy::{HistogramOptions, histogram2d, histogramdd};
use shardax::prelude::*;

use super::common::quick::setup;
use super::edges::same;

fn points() -> Array {
    array([[0.1f32, 2.0], [0.5, 0.0], [0.9, 1.0], [1.0, 2.0], [-1.0, 1.5], [0.4, 1.9]])
}

/// The numbers are from JAX 0.12.
#[test]
fn histogramdd_counts_points_like_jax() -> Result<()> {
    setup();
    let (counts, edges) = histogramdd(points(), [3, 2]);
    assert_eq!(counts.to_vec::<i32>()?, [0, 1, 0, 1, 1, 3]);
    assert_eq!(edges[0].to_vec::<f32>()?, [-1.0, -0.333_333_28, 0.333_333_37, 1.0]);
    assert_eq!(edges[1].to_vec::<f32>()?, [0.0, 1.0, 2.0]);
    let bins = [array([0.0f32, 0.5, 1.0]), array([0.0f32, 1.0, 1.5, 2.0])];
    let options = HistogramOptions::new().weights(array([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]));
    same(&options.histogramdd(points(), &bins).0, &[0.0, 0.0, 7.0, 2.0, 3.0, 4.0]);
    let densities = jit(move |x: Array| options.clone().density(true).histogramdd(x, &bins).0).call(points())?;
    same(&densities, &[0.0, 0.0, 1.75, 0.25, 0.75, 1.0]);
    let (x, y) = (points().get((.., 0)), points().get((.., 1)));
    let (densities, x_edges, y_edges) = HistogramOptions::new().density(true).histogram2d(&x, &y, [2, 2]);
    assert!(allclose(densities, array([[0.0f32, 1.0 / 6.0], [1.0 / 6.0, 2.0 / 3.0]]), 1e-6, 1e-7)?);
    assert_eq!(x_edges.to_vec::<f32>()?, [-1.0, 0.0, 1.0]);
    assert_eq!(y_edges.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
    Ok(())
}

#[test]
fn histogramdd_rejects_what_it_cannot_count() {
    setup();
    let weights = HistogramOptions::new().weights(ones(2));
    for (counts, words) in [
        (histogramdd(ones(6), [2]).0, "a column for each of the 1 dimensions"),
        (histogramdd(ones([6, 3]), [2, 2]).0, "float32[6,3]"),
        (histogramdd::<usize>(ones([6, 0]), []).0, "the 0 dimensions"),
        (weights.histogramdd(points(), [2, 2]).0, "one number for each row"),
        (histogram2d(ones([2, 2]), ones([2, 2]), [2, 2]).0, "two vectors of coordinates"),
        (HistogramOptions::new().range(0, 1).histogramdd(points(), [2, 2]).0, "the options `range`"),
    ] {
        let text = counts.to_vec::<i32>().expect_err("counts of nothing").to_string();
        assert!(text.contains(words) && text.contains("help:"), "{text}");
    }
}
