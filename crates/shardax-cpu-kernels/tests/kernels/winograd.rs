//! Convolutions by tiles compared with sums of products.

use super::{assert_error, for_any_threads, noise, view};
use shardax_cpu_kernels::{
    FilterWindow, View, convolution, filter_gradient, is_winograd, winograd_convolution, winograd_filter_gradient,
};

/// Windows of 3 × 3: same size, none and uneven padding, odd sizes, more tiles than are multiplied together, and more outputs.
const TILED: [([i64; 3], [usize; 5], [usize; 3], usize); 5] = [
    ([0, 1, 1], [2, 1, 8, 8, 16], [1, 8, 8], 32),
    ([0, 0, 0], [1, 1, 7, 10, 32], [1, 5, 8], 16),
    ([0, 2, -1], [3, 1, 5, 9, 16], [1, 7, 7], 48),
    ([0, 1, 1], [3, 1, 24, 24, 16], [1, 24, 24], 16),
    ([0, 1, 1], [1, 1, 2, 2, 1024], [1, 2, 2], 80),
];

fn tiled(low: [i64; 3]) -> FilterWindow {
    FilterWindow { stride: [1; 3], dilation: [1; 3], low, positions: [1, 3, 3] }
}

#[test]
fn convolutions_by_tiles_are_sums_of_products() {
    for (low, xs, size, outputs) in TILED {
        let window = tiled(low);
        assert!(is_winograd(&window, size, xs[4], outputs), "{size:?}");
        let (fs, ws) = ([1, 3, 3, xs[4], outputs], [xs[0], size[0], size[1], size[2], outputs]);
        let (x, filter) = (noise(super::size(&xs), 20), noise(super::size(&fs), 21));
        let mut want = vec![f32::NAN; super::size(&ws)];
        convolution(&window, [1; 3], view(&xs, &x), view(&fs, &filter), size, &mut want, 1).unwrap();
        let result = for_any_threads(3, |threads| {
            let mut out = vec![f32::NAN; want.len()];
            winograd_convolution(&window, view(&xs, &x), view(&fs, &filter), size, &mut out, threads).unwrap();
            out
        });
        assert!(is_near(&result, &want), "{size:?}");

        let mut gradient = vec![f32::NAN; filter.len()];
        filter_gradient(&window, view(&xs, &x), view(&ws, &want), &mut gradient, 1).unwrap();
        let result = for_any_threads(3, |threads| {
            let mut out = vec![f32::NAN; filter.len()];
            winograd_filter_gradient(&window, view(&xs, &x), view(&ws, &want), &mut out, threads).unwrap();
            out
        });
        assert!(is_near(&result, &gradient), "{size:?}");
    }
}

/// True if numbers differ by a few units in the last place of the largest one.
fn is_near(found: &[f32], want: &[f32]) -> bool {
    let largest = want.iter().fold(1.0f32, |a, x| a.max(x.abs()));
    found.iter().zip(want).all(|(a, b)| (a - b).abs() <= 2e-6 * largest)
}

/// Infinities and NaN of both results have the same bits, where NaN are equal; both results have finite numbers too.
#[track_caller]
fn assert_same_infinities(found: &[f32], want: &[f32]) {
    assert!(want.iter().any(|x| !x.is_finite()) && want.iter().any(|x| x.is_finite()));
    for (i, (found, want)) in found.iter().zip(want).enumerate() {
        let is_same = if want.is_finite() { (found - want).abs() < 1e-4 } else { found.to_bits() == want.to_bits() };
        assert!(is_same || found.is_nan() && want.is_nan(), "{i}: {found}, not {want}");
    }
}

#[test]
fn what_is_not_finite_reaches_no_other_outputs() {
    let (window, xs, fs) = (tiled([0, 1, 1]), [2, 1, 6, 6, 16], [1, 3, 3, 16, 16]);
    // The first feature of row 2 and column 3 of the second image.
    let element = ((6 + 2) * 6 + 3) * 16;
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX] {
        let (mut x, mut filter) = (noise(super::size(&xs), 22), noise(super::size(&fs), 23));
        // 2 and -2 make an infinity of the largest number.
        (filter[0], filter[1]) = (2.0, -2.0);
        x[element] = value;
        let [found, want] = both_convolutions(view(&xs, &x), view(&fs, &filter));
        assert_same_infinities(&found, &want);
        let (images, ws) = (view(&xs, &x), [2, 1, 6, 6, 16]);
        let ct: Vec<f32> = noise(super::size(&ws), 24).iter().map(|x| 4.0 * x).collect();
        let mut outs = [vec![0.0; filter.len()], vec![0.0; filter.len()]];
        winograd_filter_gradient(&window, images, view(&ws, &ct), &mut outs[0], 1).unwrap();
        filter_gradient(&window, images, view(&ws, &ct), &mut outs[1], 1).unwrap();
        assert_same_infinities(&outs[0], &outs[1]);
        // Of a filter: padding is multiplied with it.
        x[element] = 1.0;
        if value != f32::MAX {
            filter[5] = value;
            let [found, want] = both_convolutions(view(&xs, &x), view(&fs, &filter));
            assert_same_infinities(&found, &want);
        }
    }
}

/// The convolution of two images of 6 × 6 by tiles, and as sums of products.
fn both_convolutions(x: View<'_, f32>, filter: View<'_, f32>) -> [Vec<f32>; 2] {
    let (window, size) = (tiled([0, 1, 1]), [1, 6, 6]);
    let mut outs = [vec![0.0; 2 * 36 * 16], vec![0.0; 2 * 36 * 16]];
    winograd_convolution(&window, x, filter, size, &mut outs[0], 1).unwrap();
    convolution(&window, [1; 3], x, filter, size, &mut outs[1], 1).unwrap();
    outs
}

#[test]
fn other_windows_have_no_tiles() {
    let window = tiled([0, 1, 1]);
    assert!(is_winograd(&window, [1, 8, 8], 16, 16));
    for (features, outputs) in [(8, 16), (16, 24), (0, 16), (16, 0)] {
        assert!(!is_winograd(&window, [1, 8, 8], features, outputs));
    }
    // Tiles of 2 × 2 cover a line twice.
    assert!(!is_winograd(&window, [1, 1, 8], 16, 16) && !is_winograd(&window, [2, 8, 8], 16, 16));
    assert!(!is_winograd(&window, [1, 0, 8], 16, 16) && !is_winograd(&window, [1, usize::MAX, usize::MAX], 16, 16));
    for other in [
        FilterWindow { positions: [1, 3, 2], ..window },
        FilterWindow { stride: [1, 1, 2], ..window },
        FilterWindow { dilation: [1, 2, 1], ..window },
        FilterWindow { low: [1, 0, 0], ..window },
    ] {
        assert!(!is_winograd(&other, [1, 8, 8], 16, 16));
    }
    // Computed as sums of products.
    let (x, filter) = (noise(8 * 8 * 5, 25), noise(9 * 5 * 3, 26));
    let (x, filter) = (view(&[1, 1, 8, 8, 5], &x), view(&[1, 3, 3, 5, 3], &filter));
    let mut outs = [vec![0.0; 192], vec![1.0; 192]];
    winograd_convolution(&window, x, filter, [1, 8, 8], &mut outs[0], 1).unwrap();
    convolution(&window, [1; 3], x, filter, [1, 8, 8], &mut outs[1], 1).unwrap();
    assert_eq!(outs[0], outs[1]);
    // Without images or elements sums are 0.
    let mut out = [1.0; 9 * 256];
    winograd_filter_gradient(&window, view(&[0, 1, 8, 8, 16], &[]), view(&[0, 1, 8, 8, 16], &[]), &mut out, 1).unwrap();
    assert_eq!(out, [0.0; 9 * 256]);
    winograd_convolution(&window, view(&[0, 1, 8, 8, 16], &[]), view(&[1, 3, 3, 16, 16], &out), [1, 8, 8], &mut [], 2)
        .unwrap();
    assert_error(
        winograd_convolution(&window, x, filter, [1, 8, 8], &mut outs[0][1..], 1),
        "the elements of the result: 191, expected 192",
    );
}
