//! Convolutions and the gradients of their filters compared with sums of products.

use super::{assert_close, assert_error, for_any_threads, noise, size, view};
use shardax_cpu_kernels::{
    FeatureGroups, FilterWindow, MIN_PATCHES, SPATIAL, convolution, depthwise_filter_gradient, filter_gradient,
};

/// An element of a five-dimensional array; 0 outside of its spatial dimensions.
pub(super) fn element(x: &[f32], shape: [usize; 5], image: usize, location: [i64; SPATIAL], last: usize) -> f64 {
    if !(0..SPATIAL).all(|d| (0..shape[d + 1] as i64).contains(&location[d])) {
        return 0.0;
    }
    let position = (0..SPATIAL).fold(image, |position, d| position * shape[d + 1] + location[d] as usize);
    f64::from(x[position * shape[4] + last])
}

pub(super) fn indices(sizes: [usize; SPATIAL]) -> impl Iterator<Item = [usize; SPATIAL]> {
    let [_, height, width] = sizes;
    (0..size(&sizes)).map(move |i| [i / (height * width), i / width % height, i % width])
}

/// A gradient as sums; `outputs` is `None` for one filter for each feature.
fn sums(window: &FilterWindow, [x, w]: [&[f32]; 2], [xs, ws]: [[usize; 5]; 2], outputs: Option<usize>) -> Vec<f64> {
    let mut out = Vec::new();
    for p in indices(window.positions) {
        for feature in 0..xs[4] {
            for output in 0..outputs.unwrap_or(1) {
                let output = if outputs.is_some() { output } else { feature };
                let pairs = (0..xs[0]).flat_map(|image| indices([ws[1], ws[2], ws[3]]).map(move |e| (image, e)));
                out.push(
                    pairs
                        .map(|(image, e)| {
                            element(x, xs, image, location(window, e, p), feature)
                                * element(w, ws, image, e.map(|i| i as i64), output)
                        })
                        .sum(),
                );
            }
        }
    }
    out
}

/// Returns the index of the operand that position `p` of the filter meets for position `e` of the window.
pub(super) fn location(window: &FilterWindow, e: [usize; SPATIAL], p: [usize; SPATIAL]) -> [i64; SPATIAL] {
    [0, 1, 2].map(|d| (e[d] * window.dilation[d] + p[d] * window.stride[d]) as i64 - window.low[d])
}

/// Padding, strides, dilations and three dimensions; more patches than are multiplied together.
pub(super) const WINDOWS: [(FilterWindow, [usize; 5], [usize; 3]); 3] = [
    (
        FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0, 1, 1], positions: [1, 3, 3] },
        [2, 1, 16, 17, 5],
        [1, 16, 17],
    ),
    (
        FilterWindow { stride: [1, 2, 1], dilation: [1, 1, 2], low: [0, -1, 2], positions: [1, 2, 4] },
        [3, 1, 9, 12, 18],
        [1, 7, 6],
    ),
    (
        FilterWindow { stride: [1; 3], dilation: [2, 1, 1], low: [1, 0, 0], positions: [2, 2, 1] },
        [1, 4, 3, 5, 2],
        [2, 3, 5],
    ),
];

/// Convolutions over images with zeros between their elements: gradients of strided convolutions with more outputs than are
/// multiplied together, an output that uses a single element of the filter, and strides and dilations that share a divisor
/// with the base dilation.
pub(super) const BASE_DILATED: [(FilterWindow, [usize; 3], [usize; 5], [usize; 3]); 4] = [
    (
        FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0, 2, 1], positions: [1, 3, 3] },
        [1, 2, 2],
        [2, 1, 18, 17, 3],
        [1, 36, 34],
    ),
    (
        FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1; 3] },
        [1, 2, 3],
        [3, 1, 4, 5, 2],
        [1, 8, 14],
    ),
    (
        FilterWindow { stride: [1, 2, 4], dilation: [2, 1, 3], low: [1, -3, 5], positions: [3, 2, 4] },
        [2, 4, 6],
        [2, 3, 4, 2, 2],
        [2, 9, 5],
    ),
    (
        FilterWindow { stride: [1, 1, 2], dilation: [1, 1, 4], low: [0, 0, 1], positions: [1, 1, 3] },
        [1, 1, 4],
        [1, 1, 1, 3, 2],
        [1, 1, 3],
    ),
];

#[test]
fn filter_gradients_are_sums_of_products() {
    for (window, xs, spatial) in WINDOWS {
        let ws = [xs[0], spatial[0], spatial[1], spatial[2], 3];
        let (x, w) = (noise(size(&xs), 3), noise(size(&ws), 4));
        let want = sums(&window, [&x, &w], [xs, ws], Some(3));
        let result = for_any_threads(5, |threads| {
            let mut out = vec![f32::NAN; want.len()];
            filter_gradient(&window, view(&xs, &x), view(&ws, &w), &mut out, threads).unwrap();
            out
        });
        assert_close(&result, &want);
    }
    let [(_, xs, spatial), ..] = WINDOWS;
    assert!(xs[0] * size(&spatial) > 2 * MIN_PATCHES);
}

#[test]
fn convolutions_are_sums_of_products() {
    // Also a filter whose positions are contracted in several parts, with more features than columns of one part.
    let wide = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0, 1, 1], positions: [1, 3, 2] };
    let cases = WINDOWS.into_iter().chain([(wide, [1, 1, 3, 3, 500], [1, 3, 4])]);
    let cases = cases.map(|(window, xs, spatial)| (window, [1; 3], xs, spatial)).chain(BASE_DILATED);
    let cases = cases.map(|(window, base, xs, spatial)| (window, base, xs, spatial, 7));
    // Few positions with many outputs, which the threads divide.
    for (window, base, xs, spatial, outputs) in cases.chain([(wide, [1; 3], [2, 1, 3, 3, 5], [1, 3, 4], 200)]) {
        let [a, b, c] = window.positions;
        let (fs, outs) = ([a, b, c, xs[4], outputs], [xs[0], spatial[0], spatial[1], spatial[2], outputs]);
        let (x, filter) = (noise(size(&xs), 12), noise(size(&fs), 13));
        let mut want = Vec::new();
        for (image, e, output) in
            (0..xs[0]).flat_map(|i| indices(spatial).flat_map(move |e| (0..outputs).map(move |o| (i, e, o))))
        {
            let terms = indices(window.positions).enumerate().flat_map(|(n, p)| {
                let dilated = location(&window, e, p);
                // Between the elements of a dilated image are zeros.
                let is_element = (0..SPATIAL).all(|d| dilated[d] % base[d] as i64 == 0);
                let location = [0, 1, 2].map(|d| dilated[d] / base[d] as i64);
                let (x, filter) = (&x, &filter);
                (0..xs[4]).filter(move |_| is_element).map(move |f| {
                    element(x, xs, image, location, f) * f64::from(filter[(n * xs[4] + f) * outputs + output])
                })
            });
            want.push(terms.sum());
        }
        let result = for_any_threads(5, |threads| {
            let mut out = vec![f32::NAN; size(&outs)];
            convolution(&window, base, view(&xs, &x), view(&fs, &filter), spatial, &mut out, threads).unwrap();
            out
        });
        assert_close(&result, &want);
    }
}

#[test]
fn convolutions_without_elements() {
    let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
    let mut out = [f32::NAN; 3];
    convolution(&window, [1; 3], view(&[1, 1, 1, 4, 0], &[]), view(&[1, 1, 2, 0, 1], &[]), [1, 1, 3], &mut out, 2)
        .unwrap();
    assert_eq!(out, [0.0; 3], "no features");
    out = [f32::NAN; 3];
    convolution(
        &window,
        [1; 3],
        view(&[1, 1, 0, 4, 1], &[]),
        view(&[1, 1, 2, 1, 1], &[1.0; 2]),
        [1, 1, 3],
        &mut out,
        2,
    )
    .unwrap();
    assert_eq!(out, [0.0; 3], "padding alone");
    convolution(&window, [1; 3], view(&[0, 1, 1, 4, 1], &[]), view(&[1, 1, 2, 1, 1], &[1.0; 2]), [1, 1, 3], &mut [], 0)
        .unwrap();
    let x = view(&[1, 1, 1, 4, 1], &[1.0; 4]);
    let result = convolution(&window, [1; 3], x, view(&[1, 1, 1, 2, 1], &[1.0; 2]), [1, 1, 3], &mut out, 2);
    assert_error(result, "the positions of the filter: 1, expected 2");
    let result = convolution(&window, [1; 3], x, view(&[1, 1, 2, 1, 1], &[1.0; 2]), [1, 1, 4], &mut out, 2);
    assert_error(result, "the elements of the result: 3, expected 4");
    let result = convolution(&window, [1, 0, 1], x, view(&[1, 1, 2, 1, 1], &[1.0; 2]), [1, 1, 3], &mut out, 2);
    assert_error(result, "the base dilation along dimension 1 is 0");
    // The zeros between the elements of the image and of padding are multiplied with an infinite filter.
    let infinite = view(&[1, 1, 1, 1, 1], &[f32::INFINITY]);
    let window = FilterWindow { positions: [1; 3], ..window };
    convolution(&window, [1, 1, 5], x, infinite, [1, 1, 3], &mut out, 2).unwrap();
    assert!(out[0] == f32::INFINITY && out[1].is_nan() && out[2].is_nan());
    convolution(&FilterWindow { low: [0, 0, 2], ..window }, [1, 1, 2], x, infinite, [1, 1, 3], &mut out, 2).unwrap();
    assert!(out[0].is_nan() && out[1].is_nan() && out[2] == f32::INFINITY);
}

#[test]
fn depthwise_filter_gradients_are_sums_of_products() {
    for (window, xs, spatial) in WINDOWS {
        let ws = [xs[0], spatial[0], spatial[1], spatial[2], xs[4]];
        let (x, w) = (noise(size(&xs), 5), noise(size(&ws), 6));
        let want = sums(&window, [&x, &w], [xs, ws], None);
        let result = for_any_threads(5, |threads| {
            let mut out = vec![f32::NAN; want.len()];
            depthwise_filter_gradient(&window, view(&xs, &x), view(&ws, &w), &mut out, threads).unwrap();
            out
        });
        assert_close(&result, &want);
    }
}

#[test]
fn filter_gradients_without_elements() {
    let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
    let gradients = [filter_gradient, depthwise_filter_gradient];
    for gradient in gradients {
        let mut out = [f32::NAN; 2];
        gradient(&window, view(&[0, 1, 1, 4, 1], &[]), view(&[0, 1, 1, 3, 1], &[]), &mut out, 2).unwrap();
        assert_eq!(out, [0.0; 2], "no images");
        out = [f32::NAN; 2];
        gradient(&window, view(&[1, 0, 1, 1 << 40, 1], &[]), view(&[1, 1, 1, 3, 1], &[1.0; 3]), &mut out, 2).unwrap();
        assert_eq!(out, [0.0; 2], "padding alone");
        gradient(&window, view(&[1, 1, 1, 4, 0], &[]), view(&[1, 1, 1, 3, 0], &[]), &mut [], 0).unwrap();
    }
}

/// Zeros between the elements of an image, of which an infinite element of the filter makes NaN.
#[test]
fn gaps_of_images_are_multiplied_with_infinities() {
    let (x, filter) = ([1.0, 2.0, 3.0], [1.0, f32::INFINITY, 1.0]);
    let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 3] };
    let mut out = [0.0; 3];
    let x = view(&[1, 1, 1, 3, 1], &x);
    convolution(&window, [1, 1, 2], x, view(&[1, 1, 3, 1, 1], &filter), [1, 1, 3], &mut out, 1).unwrap();
    assert_eq!(out.map(|y| y.to_string()), ["NaN", "inf", "NaN"]);
    for is_channels_first in [false, true] {
        let groups = FeatureGroups { window, base: [1, 1, 2], groups: 2, is_channels_first };
        let shape = if is_channels_first { [1, 2, 1, 1, 3] } else { [1, 1, 1, 3, 2] };
        // The filter of the second feature is finite.
        let x = view(&shape, &[1.0; 6]);
        let filter = [1.0, 1.0, f32::INFINITY, 1.0, 1.0, 1.0];
        let mut out = [0.0; 6];
        groups.convolution(x, view(&[1, 1, 3, 1, 2], &filter), [1, 1, 3], &mut out, 1).unwrap();
        let position = |feature: usize, i: usize| if is_channels_first { feature * 3 + i } else { i * 2 + feature };
        let texts = [0, 1].map(|feature| [0, 1, 2].map(|i| out[position(feature, i)].to_string()));
        assert_eq!(texts, [["NaN", "inf", "NaN"], ["2", "1", "2"]]);
    }
    // No memory holds the zeros.
    let base = [1, 1 << 40, 1 << 40];
    let x = view(&[1, 1, 3, 3, 1], &[1.0; 9]);
    let filter = view(&[1, 1, 3, 1, 1], &filter);
    let message = "memory does not hold an image of the dimensions [1, 1, 2199023255553, 2199023255553, 1]";
    assert_error(convolution(&window, base, x, filter, [1, 1, 1], &mut [0.0], 1), message);
}
