//! Convolutions of features in groups, and gradients of their filters, compared with sums of products.

use super::convolution::{BASE_DILATED, WINDOWS, element, indices, location};
use super::{assert_close, assert_error, for_any_threads, noise, size, view};
use shardax_cpu_kernels::{FeatureGroups, FilterWindow, SPATIAL};

/// The numbers of groups, of features of a group, and of outputs of a group.
const GROUPS: [[usize; 3]; 5] = [[3, 1, 1], [2, 3, 5], [4, 2, 2], [1, 4, 3], [2, 8, 8]];

/// An image with the channels before or after the other dimensions, from one with the channels last.
fn laid_out(x: &[f32], shape: [usize; 5], is_channels_first: bool) -> ([usize; 5], Vec<f32>) {
    let [images, a, b, c, channels] = shape;
    if !is_channels_first {
        return (shape, x.to_vec());
    }
    let positions = a * b * c;
    let moved = (0..x.len()).map(|i| {
        let (image, channel, position) = (i / (channels * positions), i / positions % channels, i % positions);
        x[(image * positions + position) * channels + channel]
    });
    ([images, channels, a, b, c], moved.collect())
}

/// A convolution as sums in f64, with the channels last.
fn convolved(
    of: &FeatureGroups,
    x: &[f32],
    xs: [usize; 5],
    filter: &[f32],
    fs: [usize; 5],
    spatial: [usize; 3],
) -> Vec<f64> {
    let [.., depth, outputs] = fs;
    let mut sums = Vec::new();
    for (image, e) in (0..xs[0]).flat_map(|image| indices(spatial).map(move |e| (image, e))) {
        for output in 0..outputs {
            let first = output / (outputs / of.groups) * depth;
            let terms = indices(of.window.positions).enumerate().map(|(n, p)| {
                let dilated = location(&of.window, e, p);
                // Between the elements of a dilated image are zeros.
                if (0..SPATIAL).any(|d| dilated[d] % of.base[d] as i64 != 0) {
                    return 0.0;
                }
                let location = [0, 1, 2].map(|d| dilated[d] / of.base[d] as i64);
                let product = |f| {
                    element(x, xs, image, location, first + f) * f64::from(filter[(n * depth + f) * outputs + output])
                };
                (0..depth).map(product).sum::<f64>()
            });
            sums.push(terms.sum());
        }
    }
    sums
}

/// A gradient of a filter as sums in f64.
fn gradient(of: &FeatureGroups, x: &[f32], xs: [usize; 5], w: &[f32], ws: [usize; 5]) -> Vec<f64> {
    let [depth, outputs] = [xs[4] / of.groups, ws[4] / of.groups];
    let mut sums = Vec::new();
    for p in indices(of.window.positions) {
        for (feature, output) in (0..depth).flat_map(|f| (0..ws[4]).map(move |o| (f, o))) {
            let terms = (0..xs[0]).flat_map(|image| indices([ws[1], ws[2], ws[3]]).map(move |e| (image, e)));
            let product = |(image, e): (usize, [usize; 3])| {
                let x = element(x, xs, image, location(&of.window, e, p), output / outputs * depth + feature);
                x * element(w, ws, image, e.map(|i| i as i64), output)
            };
            sums.push(terms.map(product).sum());
        }
    }
    sums
}

#[test]
fn grouped_convolutions_are_sums_of_products() {
    let wide = FilterWindow { stride: [1; 3], dilation: [1, 3, 2], low: [0, 1, 1], positions: [1, 3, 3] };
    let large = ([1, 1, 70, 90, 0], [1, 23, 45]);
    // Both layouts of the images alternate.
    let not_dilated =
        WINDOWS.into_iter().chain([(wide, large.0, large.1)]).map(|(w, xs, spatial)| (w, [1; 3], xs, spatial));
    for (case, (window, base, mut xs, spatial)) in not_dilated.chain(BASE_DILATED).enumerate() {
        for (groups, is_channels_first) in GROUPS.into_iter().zip([false, true].into_iter().cycle().skip(case)) {
            let [groups, depth, outputs] = groups;
            xs[4] = groups * depth;
            let [a, b, c] = window.positions;
            let fs = [a, b, c, depth, groups * outputs];
            let (x, filter) = (noise(size(&xs), 12), noise(size(&fs), 13));
            let grouped = FeatureGroups { window, base, groups, is_channels_first };
            let want = convolved(&grouped, &x, xs, &filter, fs, spatial);
            let want: Vec<f32> = want.into_iter().map(|x| x as f32).collect();
            let outs = [xs[0], spatial[0], spatial[1], spatial[2], groups * outputs];
            let (xs, x) = laid_out(&x, xs, is_channels_first);
            let (_, want) = laid_out(&want, outs, is_channels_first);
            let result = for_any_threads(5, |threads| {
                let mut out = vec![f32::NAN; want.len()];
                grouped.convolution(view(&xs, &x), view(&fs, &filter), spatial, &mut out, threads).unwrap();
                out
            });
            assert_close(&result, &want.into_iter().map(f64::from).collect::<Vec<_>>());
        }
    }
}

#[test]
fn grouped_filter_gradients_are_sums_of_products() {
    for (case, (window, mut xs, spatial)) in WINDOWS.into_iter().enumerate() {
        for (groups, is_channels_first) in GROUPS.into_iter().zip([false, true].into_iter().cycle().skip(case)) {
            let [groups, depth, outputs] = groups;
            xs[4] = groups * depth;
            let ws = [xs[0], spatial[0], spatial[1], spatial[2], groups * outputs];
            let (x, w) = (noise(size(&xs), 3), noise(size(&ws), 4));
            let grouped = FeatureGroups { window, base: [1; 3], groups, is_channels_first };
            let want = gradient(&grouped, &x, xs, &w, ws);
            let ((xs, x), (ws, w)) = (laid_out(&x, xs, is_channels_first), laid_out(&w, ws, is_channels_first));
            let result = for_any_threads(5, |threads| {
                let mut out = vec![f32::NAN; want.len()];
                grouped.filter_gradient(view(&xs, &x), view(&ws, &w), &mut out, threads).unwrap();
                out
            });
            assert_close(&result, &want);
        }
    }
}

#[test]
fn grouped_convolutions_of_infinities_and_nan() {
    // The last element of the second line is met by no element of the cotangent for the first position.
    let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
    let grouped = FeatureGroups { window, base: [1; 3], groups: 1, is_channels_first: false };
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, f32::INFINITY];
    let mut out = [f32::NAN; 2];
    grouped
        .filter_gradient(view(&[1, 1, 2, 3, 1], &x), view(&[1, 1, 2, 2, 1], &[1.0, 1.0, 1.0, -1.0]), &mut out, 1)
        .unwrap();
    assert_eq!(out, [1.0 + 2.0 + 4.0 - 5.0, f32::NEG_INFINITY]);
    let mut sums = [0.0; 4];
    grouped
        .convolution(view(&[1, 1, 2, 3, 1], &x), view(&[1, 1, 2, 1, 1], &[1.0, f32::NAN]), [1, 2, 2], &mut sums, 1)
        .unwrap();
    assert!(sums.iter().all(|x| x.is_nan()));
    grouped
        .convolution(view(&[1, 1, 2, 3, 1], &x), view(&[1, 1, 2, 1, 1], &[1.0; 2]), [1, 2, 2], &mut sums, 1)
        .unwrap();
    assert_eq!(sums, [3.0, 5.0, 9.0, f32::INFINITY]);
    // Padding and gaps of the image are multiplied with an infinite filter.
    let padded = FilterWindow { low: [0, 0, 1], positions: [1; 3], ..window };
    let infinite = view(&[1, 1, 1, 1, 1], &[f32::INFINITY]);
    let line = view(&[1, 1, 1, 2, 1], &[1.0; 2]);
    FeatureGroups { window: padded, base: [1, 1, 2], ..grouped }
        .convolution(line, infinite, [1, 1, 4], &mut sums, 1)
        .unwrap();
    assert!(sums[0].is_nan() && sums[2].is_nan() && [sums[1], sums[3]] == [f32::INFINITY; 2]);
    FeatureGroups { window: padded, ..grouped }.convolution(line, infinite, [1, 1, 4], &mut sums, 1).unwrap();
    assert!(sums[0].is_nan() && sums[1..3] == [f32::INFINITY; 2] && sums[3].is_nan());
}

#[test]
fn grouped_convolutions_without_elements_and_of_wrong_shapes() {
    let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
    let grouped = FeatureGroups { window, base: [1; 3], groups: 2, is_channels_first: false };
    let (x, filter) = (view(&[1, 1, 1, 4, 2], &[1.0; 8]), view(&[1, 1, 2, 1, 2], &[1.0; 4]));
    // Without elements, the results are zeros instead of the memory's earlier values.
    let mut out = [f32::NAN; 6];
    grouped.convolution(view(&[1, 1, 0, 4, 2], &[]), filter, [1, 1, 3], &mut out, 2).unwrap();
    assert_eq!(out, [0.0; 6], "padding alone");
    grouped.convolution(view(&[0, 1, 1, 4, 2], &[]), filter, [1, 1, 3], &mut [], 0).unwrap();
    let mut gradient = [f32::NAN; 4];
    grouped.filter_gradient(view(&[0, 1, 1, 4, 2], &[]), view(&[0, 1, 1, 3, 2], &[]), &mut gradient, 2).unwrap();
    assert_eq!(gradient, [0.0; 4], "no images");
    grouped.filter_gradient(view(&[1, 1, 0, 4, 2], &[]), view(&[1, 1, 1, 3, 2], &[1.0; 6]), &mut gradient, 2).unwrap();
    assert_eq!(gradient, [0.0; 4], "padding alone");
    // Wrong shapes are errors.
    let three = FeatureGroups { groups: 3, ..grouped };
    assert_error(three.convolution(x, filter, [1, 1, 3], &mut out, 1), "the features of the filter: 3, expected 2");
    assert_error(three.filter_gradient(x, x, &mut out, 1), "2 features in 3 groups");
    assert_error(grouped.convolution(x, filter, [1, 1, 4], &mut out, 1), "the elements of the result: 6, expected 8");
    let gaps = FeatureGroups { base: [1, 0, 1], ..grouped };
    assert_error(gaps.convolution(x, filter, [1, 1, 3], &mut out, 1), "the base dilation along dimension 1 is 0");
    let far = FilterWindow { stride: [1, 1, 1 << 60], ..window };
    assert_error(
        FeatureGroups { window: far, ..grouped }.convolution(x, filter, [1, 1, 3], &mut out, 1),
        "the window reaches over too many elements: [1, 1, 1152921504606846979]",
    );
    let still = FilterWindow { dilation: [1, 1, 0], ..window };
    assert_error(
        FeatureGroups { window: still, ..grouped }.convolution(x, filter, [1, 1, 3], &mut out, 1),
        "the stride along dimension 2 is 0",
    );
}
