//! The kernels compared with plain sums in f64.

#[cfg(feature = "decompositions")]
mod accuracy;
mod cumulative;
mod few_rows;
mod grouped;
mod remainder;
#[cfg(feature = "decompositions")]
mod small_matrices;
mod sort;

use crate::{
    Attention, Backward, FilterWindow, MIN_PATCHES, SPATIAL, ShapeError, View, Window, convolution,
    depthwise_filter_gradient, filter_gradient, is_winograd, matmul, winograd_convolution, winograd_filter_gradient,
};

/// Numbers from -1 to 1, from a linear congruential generator.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// The results on one thread, which must be the same bits on several threads.
#[track_caller]
fn for_any_threads<T: PartialEq>(threads: usize, run: impl Fn(usize) -> T) -> T {
    let result = run(1);
    assert!(result == run(threads), "{threads} threads change no bits");
    result
}

fn view<'a, T>(shape: &'a [usize], data: &'a [T]) -> View<'a, T> {
    View::new(shape, data).unwrap()
}

fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}

#[track_caller]
fn assert_close(found: &[f32], want: &[f64]) {
    assert_eq!(found.len(), want.len());
    for (i, (found, want)) in found.iter().zip(want).enumerate() {
        assert!((f64::from(*found) - want).abs() <= 2e-5 * want.abs().max(1.0), "{i}: {found}, not {want}");
    }
}

#[track_caller]
fn assert_error<T>(found: Result<T, ShapeError>, text: &str) {
    assert_eq!(found.err().expect("an error").to_string(), text);
}

#[test]
fn matmuls_with_either_operand_transposed() {
    // Also a sum that is divided, rows that are divided among threads unevenly, and batches of small matrices.
    let sizes = [[3, 70, 40, 33], [1, 67, 9, 1100], [1, 2049, 3, 5], [9, 7, 5, 16], [5, 16, 16, 3], [3, 1, 9, 1]];
    let dims = [[2, 1], [1, 1], [2, 2], [1, 2]];
    for ([batch, rows, columns, depth], dims) in sizes.iter().flat_map(|s| dims.map(|dims| (*s, dims))) {
        let a_shape = if dims[0] == 2 { [batch, rows, depth] } else { [batch, depth, rows] };
        let b_shape = if dims[1] == 1 { [batch, depth, columns] } else { [batch, columns, depth] };
        let (a, b) = (noise(size(&a_shape), 1), noise(size(&b_shape), 2));
        let want: Vec<f64> = (0..batch * rows * columns)
            .map(|e| {
                let (i, r, c) = (e / (rows * columns), e / columns % rows, e % columns);
                (0..depth)
                    .map(|d| factor(&a, a_shape, dims[0], [i, r, d]) * factor(&b, b_shape, dims[1], [i, c, d]))
                    .sum()
            })
            .collect();
        let mut one_thread = vec![f32::NAN; want.len()];
        matmul(view(&a_shape, &a), view(&b_shape, &b), dims, &mut one_thread, 1).unwrap();
        assert_close(&one_thread, &want);
        let mut four = vec![f32::NAN; want.len()];
        matmul(view(&a_shape, &a), view(&b_shape, &b), dims, &mut four, 4).unwrap();
        let different = one_thread.iter().zip(&four).position(|(x, y)| x.to_bits() != y.to_bits());
        assert_eq!(different, None, "threads change no bits: {dims:?} of {batch} × {rows} × {columns} × {depth}");
        let [a, b] = [a, b].map(|x| x.into_iter().map(f64::from).collect::<Vec<_>>());
        let mut wide = vec![f64::NAN; want.len()];
        matmul(view(&a_shape, &a), view(&b_shape, &b), dims, &mut wide, 2).unwrap();
        assert!(wide.iter().zip(&want).all(|(x, want)| (x - want).abs() < 1e-12));
    }
}

/// The element of an operand that is multiplied for row or column `side` at position `d` of the contracted dimension.
fn factor(x: &[f32], shape: [usize; 3], contracted: usize, [batch, side, d]: [usize; 3]) -> f64 {
    let (row, column) = if contracted == 2 { (side, d) } else { (d, side) };
    f64::from(x[(batch * shape[1] + row) * shape[2] + column])
}

#[test]
fn threads_change_no_bits_of_large_matmuls() {
    // Enough for several threads: rows that are divided, and columns of a transposed operand, into uneven parts.
    for [rows, columns, depth] in [[260, 300, 440], [1031, 67, 515], [67, 1031, 515]] {
        for dims in [[2, 1], [1, 1], [2, 2], [1, 2]] {
            let a_shape = if dims[0] == 2 { [1, rows, depth] } else { [1, depth, rows] };
            let b_shape = if dims[1] == 1 { [1, depth, columns] } else { [1, columns, depth] };
            let (a, b) = (noise(size(&a_shape), 1), noise(size(&b_shape), 2));
            for_any_threads(4, |threads| {
                let mut out = vec![f32::NAN; rows * columns];
                matmul(view(&a_shape, &a), view(&b_shape, &b), dims, &mut out, threads).unwrap();
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
        }
    }
}

#[test]
fn matmuls_of_infinities_and_nan() {
    matmuls_of_what_is_not_finite(20);
    // As a small matrix, whose columns are padded.
    matmuls_of_what_is_not_finite(11);
}

fn matmuls_of_what_is_not_finite(side: usize) {
    let (shape, [rows, columns, depth]) = ([1, side, side], [side; 3]);
    let (mut a, mut b) = (noise(side * side, 1), noise(side * side, 2));
    (a[side + 5], a[2 * side + 7], b[3]) = (f32::INFINITY, f32::NAN, f32::NEG_INFINITY);
    // What 0 meets.
    (a[3 * side], b[5 * side + 5]) = (0.0, 0.0);
    let mut out = vec![0.0; side * side];
    matmul(view(&shape, &a), view(&shape, &b), [2, 1], &mut out, 2).unwrap();
    for (i, found) in out.iter().enumerate() {
        let (r, c) = (i / columns, i % columns);
        let want: f32 = (0..depth).map(|d| a[r * depth + d] * b[d * columns + c]).sum();
        let is_same = if want.is_finite() { (found - want).abs() < 1e-5 } else { found.to_bits() == want.to_bits() };
        assert!(is_same || found.is_nan() && want.is_nan(), "{r}, {c} of {rows}: {found}, not {want}");
    }
    assert!(out.contains(&f32::INFINITY) && out[3 * side].is_finite());
    assert!(out[3 * side + 3].is_nan() && out[side + 5].is_nan());
}

#[test]
fn matmuls_without_elements() {
    let mut out = [f32::NAN; 4];
    matmul(view(&[1, 2, 0], &[]), view(&[1, 0, 2], &[]), [2, 1], &mut out, 3).unwrap();
    assert_eq!(out, [0.0; 4], "sums over nothing");
    matmul::<f32>(view(&[0, 2, 3], &[]), view(&[0, 3, 2], &[]), [2, 1], &mut [], 3).unwrap();
    matmul::<f32>(view(&[2, 0, 3], &[]), view(&[2, 3, 1], &[0.0; 6]), [2, 1], &mut [], 0).unwrap();
}

/// An element of a five-dimensional array; 0 outside of its spatial dimensions.
fn element(x: &[f32], shape: [usize; 5], image: usize, location: [i64; SPATIAL], last: usize) -> f64 {
    if !(0..SPATIAL).all(|d| (0..shape[d + 1] as i64).contains(&location[d])) {
        return 0.0;
    }
    let position = (0..SPATIAL).fold(image, |position, d| position * shape[d + 1] + location[d] as usize);
    f64::from(x[position * shape[4] + last])
}

fn indices(sizes: [usize; SPATIAL]) -> impl Iterator<Item = [usize; SPATIAL]> {
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

/// Where position `p` of the filter meets the operand for position `e` of the window.
fn location(window: &FilterWindow, e: [usize; SPATIAL], p: [usize; SPATIAL]) -> [i64; SPATIAL] {
    [0, 1, 2].map(|d| (e[d] * window.dilation[d] + p[d] * window.stride[d]) as i64 - window.low[d])
}

/// Padding, strides, dilations and three dimensions; more patches than are multiplied together.
const WINDOWS: [(FilterWindow, [usize; 5], [usize; 3]); 3] = [
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

/// Convolutions over images whose elements lie apart: gradients of strided convolutions with more outputs than are multiplied
/// together, one of which meets a single element of the filter; strides and dilations that share a divisor with the distance.
const BASE_DILATED: [(FilterWindow, [usize; 3], [usize; 5], [usize; 3]); 4] = [
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
    let cases = cases.map(|(window, xs, spatial)| (window, [1; 3], xs, spatial));
    for (window, base, xs, spatial) in cases.chain(BASE_DILATED) {
        let [a, b, c] = window.positions;
        let (fs, outs) = ([a, b, c, xs[4], 7], [xs[0], spatial[0], spatial[1], spatial[2], 7]);
        let (x, filter) = (noise(size(&xs), 12), noise(size(&fs), 13));
        let mut want = Vec::new();
        for (image, e, output) in
            (0..xs[0]).flat_map(|i| indices(spatial).flat_map(move |e| (0..7).map(move |o| (i, e, o))))
        {
            let terms = indices(window.positions).enumerate().flat_map(|(n, p)| {
                let dilated = location(&window, e, p);
                // Between the elements of a dilated image are zeros.
                let is_element = (0..SPATIAL).all(|d| dilated[d] % base[d] as i64 == 0);
                let location = [0, 1, 2].map(|d| dilated[d] / base[d] as i64);
                let (x, filter) = (&x, &filter);
                (0..xs[4])
                    .filter(move |_| is_element)
                    .map(move |f| element(x, xs, image, location, f) * f64::from(filter[(n * xs[4] + f) * 7 + output]))
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
    // Outputs between the elements of the image meet nothing, not even an infinite filter; padding is multiplied with it.
    let infinite = view(&[1, 1, 1, 1, 1], &[f32::INFINITY]);
    let window = FilterWindow { positions: [1; 3], ..window };
    convolution(&window, [1, 1, 5], x, infinite, [1, 1, 3], &mut out, 2).unwrap();
    assert_eq!(out, [f32::INFINITY, 0.0, 0.0]);
    convolution(&FilterWindow { low: [0, 0, 2], ..window }, [1, 1, 2], x, infinite, [1, 1, 3], &mut out, 2).unwrap();
    assert!(out[0].is_nan() && out[1..] == [0.0, f32::INFINITY]);
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

/// Sizes of an example: queries, keys, heads, heads of keys, depth, features.
struct Sizes([usize; 6]);

/// Output, and gradients, of two examples as sums over all keys.
fn attention_sums(operands: &Attention<'_>, ct: &[f32], s: &Sizes) -> [Vec<f64>; 4] {
    let Sizes([queries, keys, heads, key_heads, depth, features]) = *s;
    let [q, k, v] = [operands.q, operands.k, operands.v].map(|x| x.data());
    let mut out = [vec![0.0; ct.len()], vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    for (i, h, query) in (0..2 * heads * queries).map(|n| (n / (heads * queries), n / queries % heads, n % queries)) {
        let row = ((i * queries + query) * heads + h) * depth;
        let out_row = row / depth * features;
        let key_rows: Vec<usize> =
            (0..keys).map(|key| (i * keys + key) * key_heads + h / (heads / key_heads)).collect();
        let is_visible: Vec<bool> = (0..keys).map(|key| sees(operands, query, key, keys)).collect();
        // A query without visible keys has equal weights, which do not depend on any operand, so its gradients are 0.
        let sees_nothing = !is_visible.contains(&true);
        let weights: Vec<f64> = (0..keys)
            .map(|key| match (sees_nothing, is_visible[key]) {
                (true, _) => 1.0,
                (_, false) => 0.0,
                _ => dot(&q[row..row + depth], &k[key_rows[key] * depth..][..depth]).exp(),
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        let slopes: Vec<f64> =
            key_rows.iter().map(|row| dot(&ct[out_row..][..features], &v[row * features..][..features])).collect();
        let mean: f64 = weights.iter().zip(&slopes).map(|(w, x)| w / sum * x).sum();
        for key in 0..keys {
            let weight = weights[key] / sum;
            for f in 0..features {
                out[0][out_row + f] += weight * f64::from(v[key_rows[key] * features + f]);
                out[3][key_rows[key] * features + f] += weight * f64::from(ct[out_row + f]);
            }
            for d in (0..depth).filter(|_| !sees_nothing) {
                let slope = weight * (slopes[key] - mean);
                out[1][row + d] += slope * f64::from(k[key_rows[key] * depth + d]);
                out[2][key_rows[key] * depth + d] += slope * f64::from(q[row + d]);
            }
        }
    }
    out
}

/// True if a key is in the window of a query and not masked. The mask of these tests is `[queries, keys]`.
fn sees(operands: &Attention<'_>, query: usize, key: usize, keys: usize) -> bool {
    let Window { before, after } = operands.window;
    let is_near = key.saturating_add(before) >= query && key <= query.saturating_add(after);
    is_near && operands.mask.is_none_or(|mask| mask.data()[query * keys + key] != 0)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Output and gradients by the kernel.
fn attention(operands: &Attention<'_>, ct: &[f32], s: &Sizes, threads: usize) -> [Vec<f32>; 4] {
    let Sizes([queries, _, heads, _, _, features]) = *s;
    let mut y = vec![f32::NAN; ct.len()];
    let [mut max, mut sum] = [(); 2].map(|()| vec![f32::NAN; 2 * heads * queries]);
    operands.forward(&mut y, &mut max, &mut sum, threads).unwrap();
    let mut mean = vec![0.0; max.len()];
    for (row, (y, ct)) in y.chunks(features).zip(ct.chunks(features)).enumerate() {
        let (i, query, h) = (row / (queries * heads), row / heads % queries, row % heads);
        mean[(i * heads + h) * queries + query] = y.iter().zip(ct).map(|(y, ct)| y * ct).sum();
    }
    let [mut dq, mut dk, mut dv] = [operands.q, operands.k, operands.v].map(|x| vec![f32::NAN; x.data().len()]);
    let backward = Backward { max: &max, sum: &sum, ct, mean: &mean };
    operands.gradient(&backward, [&mut dq, &mut dk, &mut dv], threads).unwrap();
    [y, dq, dk, dv]
}

#[test]
fn attention_and_its_gradient() {
    let unlimited = Window { before: usize::MAX, after: usize::MAX };
    // Shared heads of keys, causal, a narrow window, queries that see no key, a mask; few queries.
    let cases = [
        (Sizes([1, 37, 4, 2, 33, 70]), unlimited, true),
        (Sizes([3, 20, 2, 2, 8, 4]), Window { before: 1, after: 0 }, false),
        (Sizes([4, 130, 2, 1, 64, 32]), Window { after: 0, ..unlimited }, true),
        (Sizes([70, 70, 4, 2, 8, 6]), Window { after: 0, ..unlimited }, false),
        (Sizes([90, 20, 2, 2, 4, 4]), Window { before: 3, after: 2 }, false),
        (Sizes([65, 33, 2, 1, 3, 5]), unlimited, true),
    ];
    for (s, window, masked) in cases {
        let Sizes([queries, keys, heads, key_heads, depth, features]) = s;
        let shapes = [[2, queries, heads, depth], [2, keys, key_heads, depth], [2, keys, key_heads, features]];
        let [q, k, v] = [0, 1, 2].map(|i| noise(size(&shapes[i]), 7 + i as u64));
        let mask: Vec<u8> = noise(queries * keys, 10).iter().map(|x| u8::from(*x > 0.0)).collect();
        let mask_shape = [queries, keys];
        let operands = Attention {
            q: view(&shapes[0], &q),
            k: view(&shapes[1], &k),
            v: view(&shapes[2], &v),
            mask: masked.then(|| view(&mask_shape, &mask)),
            window,
        };
        let ct = noise(2 * queries * heads * features, 11);
        let results = for_any_threads(3, |threads| attention(&operands, &ct, &s, threads));
        for (results, want) in results.iter().zip(attention_sums(&operands, &ct, &s)) {
            assert_close(results, &want);
        }
    }
}

#[test]
fn attention_without_elements() {
    let window = Window { before: 0, after: 0 };
    let (q, empty) = ([1.0; 2], []);
    let operands = Attention {
        q: view(&[2, 1, 1], &q),
        k: view(&[0, 1, 1], &empty),
        v: view(&[0, 1, 1], &empty),
        mask: None,
        window,
    };
    let (mut y, mut max, mut sum) = ([f32::NAN; 2], [0.0; 2], [0.0; 2]);
    operands.forward(&mut y, &mut max, &mut sum, 2).unwrap();
    assert_eq!(y, [0.0; 2]);
    let backward = Backward { max: &max, sum: &sum, ct: &q, mean: &q };
    operands.gradient(&backward, [&mut y, &mut [], &mut []], 2).unwrap();
    assert_eq!(y, [0.0; 2]);
    let none = view(&[1 << 40, 0, 1, 1], &empty);
    let operands = Attention { q: none, k: none, v: none, mask: None, window };
    operands.forward(&mut [], &mut [], &mut [], 2).unwrap();
    let backward = Backward { max: &[], sum: &[], ct: &[], mean: &[] };
    operands.gradient(&backward, [&mut [], &mut [], &mut []], 2).unwrap();
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    // Views, products, gradients of filters, and attention, in this order.
    assert_error(View::new(&[2, 3], &[0.0; 5]), "5 elements for the shape [2, 3]");
    assert_error(View::new(&[usize::MAX, 2], &[0.0; 5]), &format!("5 elements for the shape [{}, 2]", usize::MAX));
    let x = [0.0f32; 12];
    let (a, b) = (view(&[1, 3, 4], &x), view(&[3, 4], &x));
    assert_error(matmul(a, b, [2, 1], &mut [], 1), "the right operand has 2 dimensions, not 3: [3, 4]");
    assert_error(matmul(a, a, [2, 1], &mut [], 1), "the contracted dimension of the right operand: 3, expected 4");
    assert_error(matmul(a, a, [0, 1], &mut [], 1), "the left operand is contracted over dimension 0: 1 or 2 expected");
    assert_error(matmul(a, a, [2, 2], &mut [], 1), "the elements of the result: 0, expected 9");

    let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1; 3] };
    let x5 = view(&[1, 1, 2, 2, 3], &x);
    for gradient in [filter_gradient, depthwise_filter_gradient] {
        assert_error(gradient(&window, a, x5, &mut [], 1), "the operand has 3 dimensions, not 5: [1, 3, 4]");
        let two = view(&[2, 1, 2, 1, 3], &x);
        assert_error(gradient(&window, x5, two, &mut [], 1), "the images of the window: 2, expected 1");
        let far = FilterWindow { dilation: [1, 1, usize::MAX], low: [0, 0, i64::MIN], ..window };
        let text = format!(
            "the window reaches too far along dimension 2: stride 1, dilation {}, low {}",
            usize::MAX,
            i64::MIN
        );
        assert_error(gradient(&far, x5, x5, &mut [], 1), &text);
    }
    assert_error(filter_gradient(&window, x5, x5, &mut [], 1), "the elements of the result: 0, expected 9");
    assert_error(depthwise_filter_gradient(&window, x5, x5, &mut [], 1), "the elements of the result: 0, expected 3");
    let one_feature = view(&[1, 1, 2, 2, 1], &x[..4]);
    let text = "the features of the window: 1, expected 3";
    assert_error(depthwise_filter_gradient(&window, x5, one_feature, &mut [], 1), text);

    let window = Window { before: 0, after: 0 };
    let operands = Attention { q: a, k: a, v: a, mask: None, window };
    let (mut y, mut rows) = ([0.0; 12], [0.0; 3]);
    let two_heads = [0.0; 8];
    let keys = view(&[1, 2, 4], &two_heads);
    let mask = Some(view(&[2, 1, 1], &[1, 1]));
    let different_batches = "queries [1, 3, 4], keys [1, 3, 4] and values [1, 1, 3, 4] have different batches";
    for (operands, text) in [
        (operands, "the elements of the sums: 0, expected 3"),
        (Attention { q: b, ..operands }, "the queries have too few dimensions: [3, 4]"),
        (Attention { v: view(&[1, 1, 3, 4], &x), ..operands }, different_batches),
        (Attention { k: keys, v: keys, ..operands }, "3 heads of queries cannot share 2 heads of keys"),
        (Attention { mask, ..operands }, "a mask of [2, 1, 1] for scores of [3, 1, 1]"),
    ] {
        assert_error(operands.forward(&mut y, &mut rows, &mut [], 1), text);
    }
    let backward = Backward { max: &x[..3], sum: &x[..3], ct: &x, mean: &x };
    let result = operands.gradient(&backward, [&mut [0.0; 12], &mut [0.0; 12], &mut [0.0; 12]], 1);
    assert_error(result, "the elements of the products: 12, expected 3");
}

#[cfg(feature = "decompositions")]
#[test]
fn decompositions_multiply_to_the_matrices() {
    use crate::{cholesky, eigh, qr, svd};
    let [batch, m, n] = [3, 9, 6];
    let (a, shape) = (noise(batch * m * n, 5), [batch, m, n]);
    for threads in [1, 2] {
        for k in [n, m] {
            let (mut q, mut r) = (vec![0.0; batch * m * k], vec![0.0; batch * k * n]);
            qr(view(&shape, &a), k == m, &mut q, &mut r, threads).unwrap();
            assert_close(&a, &product(&q, &r, [m, k, n]));
        }
        let (mut u, mut s, mut vt) = (vec![0.0; batch * m * n], vec![0.0; batch * n], vec![0.0; batch * n * n]);
        svd(view(&shape, &a), false, &mut u, &mut s, &mut vt, threads).unwrap();
        assert_close(&a, &product(&scaled(&u, &s, [m, n]), &vt, [m, n, n]));
        assert!(s.chunks(n).all(|s| s.is_sorted_by(|a, b| a >= b)));

        let square: Vec<f32> = product(&transposed(&a, [m, n]), &a, [n, m, n]).iter().map(|x| *x as f32).collect();
        let (shape, mut l) = ([batch, n, n], vec![0.0; batch * n * n]);
        cholesky(view(&shape, &square), &mut l, threads).unwrap();
        assert_close(&square, &product(&l, &transposed(&l, [n, n]), [n, n, n]));
        let (mut v, mut w) = (vec![0.0; batch * n * n], vec![0.0; batch * n]);
        eigh(view(&shape, &square), &mut v, &mut w, threads).unwrap();
        // Columns of `v` are eigenvectors, so they are scaled.
        assert_close(&square, &product(&scaled(&v, &w, [n, n]), &transposed(&v, [n, n]), [n, n, n]));
    }
    let negative = [-1.0f32, f32::NAN, 0.0, -1.0];
    let mut l = [0.0; 4];
    cholesky(view(&[1, 2, 2], &negative), &mut l, 1).unwrap();
    assert!(l[0].is_nan() && l[1] == 0.0);
    assert_error(cholesky(view(&[1, 1, 4], &negative), &mut l, 1), "the columns of a square matrix: 4, expected 1");
    assert_error(cholesky(view(&[1, 2, 2], &negative), &mut l[..3], 1), "the elements of a result: 3, expected 4");
}

/// `l r` of each pair of matrices.
#[cfg(feature = "decompositions")]
fn product(l: &[f32], r: &[f32], [m, k, n]: [usize; 3]) -> Vec<f64> {
    (0..l.len() / k * n)
        .map(|e| {
            let (b, i, j) = (e / (m * n), e / n % m, e % n);
            (0..k).map(|d| f64::from(l[(b * m + i) * k + d]) * f64::from(r[(b * k + d) * n + j])).sum()
        })
        .collect()
}

/// Matrices of this many rows, whose columns are multiplied by the numbers of `s`, which has one for each column.
#[cfg(feature = "decompositions")]
fn scaled(x: &[f32], s: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    x.iter().enumerate().map(|(e, x)| x * s[e / (rows * columns) * columns + e % columns]).collect()
}

#[cfg(feature = "decompositions")]
fn transposed(x: &[f32], [m, n]: [usize; 2]) -> Vec<f32> {
    (0..x.len()).map(|e| x[e / (m * n) * m * n + e % m * n + e / m % n]).collect()
}

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
        let (x, filter) = (noise(self::size(&xs), 20), noise(self::size(&fs), 21));
        let mut want = vec![f32::NAN; self::size(&ws)];
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
        let (mut x, mut filter) = (noise(self::size(&xs), 22), noise(self::size(&fs), 23));
        // 2 and -2 make an infinity of the largest number.
        (filter[0], filter[1]) = (2.0, -2.0);
        x[element] = value;
        let [found, want] = both_convolutions(view(&xs, &x), view(&fs, &filter));
        assert_same_infinities(&found, &want);
        let (images, ws) = (view(&xs, &x), [2, 1, 6, 6, 16]);
        let ct: Vec<f32> = noise(self::size(&ws), 24).iter().map(|x| 4.0 * x).collect();
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

#[test]
fn all_threads_of_rayon_may_wait_for_kernels() {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // As programs do whose launches XLA's threads compute.
        rayon_core::scope(|scope| {
            for _ in 0..2 * rayon_core::current_num_threads() {
                scope.spawn(|_| std::thread::scope(|threads| drop(threads.spawn(product_on_several_threads))));
            }
        });
        done.send(()).unwrap();
    });
    finished.recv_timeout(std::time::Duration::from_secs(60)).expect("it ends");
}

fn product_on_several_threads() {
    let (a, mut out) = (vec![1.0f32; 512 * 256], vec![0.0; 512 * 512]);
    matmul(view(&[1, 512, 256], &a), view(&[1, 512, 256], &a), [2, 2], &mut out, 4).unwrap();
    assert!(out.iter().all(|x| *x == 256.0));
}
