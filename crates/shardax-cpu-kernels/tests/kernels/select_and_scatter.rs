//! Sums at places of maxima and minima, compared with loops over windows.

use super::{assert_error, noise};
use shardax_cpu_kernels::{FilterWindow, Selection, View, select_and_scatter_add};

/// The operand's size, the windows and their sizes.
type Case = ([usize; 5], FilterWindow, [usize; 3]);

/// Adds each source at the place that comparisons of the elements, one after the other, select.
fn plain_sums(
    ([images, depth, height, width, features], of, window): Case,
    x: &[f32],
    source: &[f32],
    is_min: bool,
) -> Vec<f32> {
    let mut sums = vec![0.0; x.len()];
    let mut sources = source.iter();
    let [i, j, k] = of.positions;
    let operand = [depth, height, width];
    for image in 0..images {
        for position in (0..i * j * k).map(|p| [p / (j * k), p / k % j, p % k]) {
            for feature in 0..features {
                let mut best: Option<(f32, Option<usize>)> = None;
                for [a, b, c] in (0..window.iter().product::<usize>())
                    .map(|e| [e / (window[1] * window[2]), e / window[2] % window[1], e % window[2]])
                {
                    let at = [0, 1, 2]
                        .map(|d| (position[d] * of.stride[d] + [a, b, c][d] * of.dilation[d]) as i64 - of.low[d]);
                    let is_inside = (0..3).all(|d| (0..operand[d] as i64).contains(&at[d]));
                    let [p, q, r] = at.map(|at| at as usize);
                    let place =
                        is_inside.then(|| (((image * depth + p) * height + q) * width + r) * features + feature);
                    let worst = if is_min { f32::INFINITY } else { f32::NEG_INFINITY };
                    let element = place.map_or(worst, |place| x[place]);
                    let is_kept = best.is_some_and(|(best, _)| if is_min { best <= element } else { best >= element });
                    best = if is_kept { best } else { Some((element, place)) };
                }
                let source = sources.next().unwrap();
                if let Some(place) = best.and_then(|(_, place)| place) {
                    sums[place] += source;
                }
            }
        }
    }
    sums
}

/// Elements with ties, NaN and infinities.
fn elements(n: usize) -> Vec<f32> {
    let mut x: Vec<f32> = noise(n, 1).iter().map(|x| (x * 3.0).round()).collect();
    x.iter_mut().step_by(7).for_each(|x| *x = f32::NEG_INFINITY);
    x.iter_mut().skip(3).step_by(23).for_each(|x| *x = f32::NAN);
    x
}

fn check(case: Case) {
    let (shape, of, window) = case;
    let x = elements(shape.iter().product());
    let source_shape = [shape[0], of.positions[0], of.positions[1], of.positions[2], shape[4]];
    let source = noise(source_shape.iter().product(), 2);
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let (x_wide, source_wide) = (wide(&x), wide(&source));
    for (selection, is_min) in [(Selection::Max, false), (Selection::Min, true)] {
        let expected = plain_sums(case, &x, &source, is_min);
        for threads in [1, 2] {
            let (mut sums, mut sums_wide) = (vec![f32::NAN; x.len()], vec![f64::NAN; x.len()]);
            let operands = [View::new(&shape, &x).unwrap(), View::new(&source_shape, &source).unwrap()];
            select_and_scatter_add(&of, window, selection, operands, &mut sums, threads).unwrap();
            assert_eq!(sums, expected, "{case:?}");
            let operands = [View::new(&shape, &x_wide).unwrap(), View::new(&source_shape, &source_wide).unwrap()];
            select_and_scatter_add(&of, window, selection, operands, &mut sums_wide, threads).unwrap();
            let is_close = sums_wide.iter().zip(&expected).all(|(sum, expected)| (*sum as f32 - expected).abs() < 1e-5);
            assert!(is_close, "{case:?}");
        }
    }
}

fn windows(stride: [usize; 3], dilation: [usize; 3], low: [i64; 3], positions: [usize; 3]) -> FilterWindow {
    FilterWindow { stride, dilation, low, positions }
}

#[test]
fn select_and_scatter_add_of_all_windows() {
    // Strides below, at and above the size of the window; one feature and several; padding on either side, and negative padding.
    check(([2, 1, 9, 11, 1], windows([1; 3], [1; 3], [0; 3], [1, 7, 9]), [1, 3, 3]));
    check(([3, 1, 9, 11, 1], windows([1, 2, 2], [1; 3], [0; 3], [1, 4, 5]), [1, 3, 3]));
    check(([2, 1, 9, 11, 5], windows([1, 2, 2], [1; 3], [0, 1, 1], [1, 5, 6]), [1, 3, 3]));
    check(([2, 1, 9, 11, 5], windows([1, 1, 1], [1; 3], [0, 2, 2], [1, 9, 11]), [1, 5, 5]));
    check(([1, 1, 12, 13, 3], windows([1, 5, 4], [1; 3], [0, 0, 0], [1, 2, 3]), [1, 2, 3]));
    check(([2, 6, 7, 8, 2], windows([2, 1, 2], [1; 3], [1, 0, 1], [3, 5, 4]), [3, 3, 3]));
    check(([1, 7, 9, 11, 1], windows([1, 2, 3], [2, 3, 2], [1, 2, 0], [4, 3, 3]), [3, 3, 2]));
    check(([1, 1, 10, 12, 2], windows([1, 2, 2], [1; 3], [0, -2, -3], [1, 3, 4]), [1, 3, 3]));
    check(([1, 1, 10, 12, 2], windows([1, 2, 2], [1; 3], [0, -2, 1], [1, 3, 5]), [1, 3, 3]));
    check(([1, 1, 3, 4, 2], windows([1, 1, 1], [1; 3], [0, 4, 5], [1, 9, 12]), [1, 3, 3]));
    // Rows of more windows than are computed together.
    check(([1, 1, 3, 300, 4], windows([1, 1, 2], [1; 3], [0, 1, 1], [1, 3, 150]), [1, 3, 3]));
    check(([2, 1, 1, 3000, 1], windows([1, 1, 2], [1; 3], [0, 0, 3], [1, 1, 1500]), [1, 1, 7]));
}

#[test]
fn select_and_scatter_add_without_elements() {
    let of = windows([1; 3], [1; 3], [0; 3], [0, 1, 1]);
    let mut sums = [f32::NAN; 4];
    let (x, source) = ([1.0f32; 4], []);
    let operands = [View::new(&[1, 1, 2, 2, 1], &x).unwrap(), View::new(&[1, 0, 1, 1, 1], &source).unwrap()];
    select_and_scatter_add(&of, [2, 2, 2], Selection::Max, operands, &mut sums, 1).unwrap();
    assert_eq!(sums, [0.0; 4]);
}

#[test]
fn select_and_scatter_add_errors() {
    let of = windows([1; 3], [1; 3], [0; 3], [1, 1, 2]);
    let (x, source) = ([1.0f32; 4], [1.0f32; 2]);
    let x = View::new(&[1, 1, 1, 4, 1], &x).unwrap();
    let mut sums = [0.0; 4];
    let source_of = |shape| View::new(shape, &source).unwrap();
    let run = |source, sums: &mut [f32]| select_and_scatter_add(&of, [1, 1, 3], Selection::Max, [x, source], sums, 1);
    assert_error(run(source_of(&[2, 1, 1, 1, 1]), &mut sums), "the images of the sources: 2, expected 1");
    assert_error(run(source_of(&[1, 1, 1, 1, 2]), &mut sums), "the features of the sources: 2, expected 1");
    assert_error(run(source_of(&[1, 1, 2, 1, 1]), &mut sums), "the windows along a dimension: 2, expected 1");
    assert_error(run(source_of(&[1, 1, 1, 2, 1]), &mut sums[..3]), "the sums: 3, expected 4");
}
