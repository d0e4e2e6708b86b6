//! The kernels compared with plain sums in f64.

#[cfg(feature = "decompositions")]
mod accuracy;
mod attention;
mod convolution;
mod cumulative;
mod elementwise;
mod erf_inv;
mod exponential;
mod feature_groups;
mod few_rows;
mod grouped;
mod power;
mod random_gamma;
mod remainder;
mod scatter_add;
mod search_sorted;
mod select_and_scatter;
#[cfg(feature = "decompositions")]
mod small_matrices;
#[cfg(feature = "decompositions")]
mod small_qr;
mod softmax;
mod sort;
#[cfg(feature = "decompositions")]
mod tall_matrices;
mod tall_matrix;
mod top_k;
mod transpose;
mod weighted_sums;
mod winograd;

use shardax_cpu_kernels::{
    Attention, Backward, FilterWindow, ShapeError, View, Window, depthwise_filter_gradient, filter_gradient, matmul,
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
    for ([rows, columns, depth], dims) in
        [([260, 300, 440], [2, 1]), ([260, 300, 440], [1, 2]), ([1031, 67, 515], [1, 1]), ([67, 1031, 515], [2, 2])]
    {
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
    use shardax_cpu_kernels::{cholesky, eigh, qr, svd};
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
