//! Eigenvalues of symmetric matrices without vectors, in f64: Householder's reduction to a tridiagonal matrix, and the QL method of Pal,
//! Walker and Kahan, which needs no square roots of the off-diagonal elements.
//!
//! `faer` takes two to ten times as long. Each step of the reduction subtracts two products from the rest of the matrix, and multiplies the
//! rest with the vector of the next step. Here one pass over the rows of the lower triangle does both.

use pulp::{Arch, Simd, WithSimd};

/// The partial sums of a product of two rows.
const SUMS: usize = 8;

/// The maximum number of iterations for each eigenvalue. A few are enough for any matrix.
const MAX_ITERATIONS: usize = 30;

/// Writes the eigenvalues of the symmetric matrix with this lower triangle, in ascending order. The matrix is in row order and is overwritten;
/// elements above the diagonal are not read. Squares of the elements must be normal numbers. Returns `false` if the iteration does not end.
pub(crate) fn eigenvalues(a: &mut [f64], values: &mut [f64]) -> bool {
    let mut squares = vec![0.0; values.len()];
    Arch::new().dispatch(Reduction { a, diagonal: values, squares: &mut squares });
    let is_found = iterate(values, &mut squares);
    values.sort_unstable_by(f64::total_cmp);
    is_found
}

/// Reduces a matrix to its diagonal and the squares of the elements next to it: `squares[i]` belongs to rows `i` and `i + 1`.
struct Reduction<'a> {
    a: &'a mut [f64],
    diagonal: &'a mut [f64],
    squares: &'a mut [f64],
}

impl WithSimd for Reduction<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Reduction { a, diagonal, squares } = self;
        let n = diagonal.len();
        // The matrix is `a - v wᵀ - w vᵀ` with the vectors of the last step, which are zero at first.
        let mut memory = vec![0.0; 4 * n];
        let (old, new) = memory.split_at_mut(2 * n);
        let (mut v, mut w) = old.split_at_mut(n);
        let (mut next_v, mut next_w) = new.split_at_mut(n);
        for i in (1..n).rev() {
            let row = &mut a[i * n..][..=i];
            for ((x, v_k), w_k) in row.iter_mut().zip(&*v).zip(&*w) {
                *x -= v[i] * w_k + w[i] * v_k;
            }
            diagonal[i] = row[i];
            let (tail, alpha) = (&row[..i - 1], row[i - 1]);
            let sum = dot(tail, tail);
            squares[i - 1] = sum + alpha * alpha;
            next_v[..i].fill(0.0);
            next_w[..i].fill(0.0);
            if sum > 0.0 {
                let length = squares[i - 1].sqrt();
                next_v[..i - 1].copy_from_slice(tail);
                next_v[i - 1] = alpha + length.copysign(alpha);
                // The reflection is `1 - scale v vᵀ`.
                let scale = 1.0 / (length * next_v[i - 1].abs());
                multiply_updated(a, n, [&v[..i], &w[..i]], &next_v[..i], &mut next_w[..i]);
                next_w[..i].iter_mut().for_each(|w| *w *= scale);
                let half = dot(&next_w[..i], &next_v[..i]) * scale / 2.0;
                next_w[..i].iter_mut().zip(&next_v[..i]).for_each(|(w, v)| *w -= half * v);
            } else {
                // The row is reduced already, but the rows before it are not updated yet.
                multiply_updated(a, n, [&v[..i], &w[..i]], &next_v[..i], &mut next_w[..i]);
            }
            (v, next_v) = (next_v, v);
            (w, next_w) = (next_w, w);
        }
        if n > 0 {
            diagonal[0] = a[0] - 2.0 * v[0] * w[0];
        }
    }
}

/// Subtracts `v wᵀ + w vᵀ` from the lower triangle of the first rows, and adds the product of the result with `x` to `product`.
#[inline(always)]
fn multiply_updated(a: &mut [f64], n: usize, [v, w]: [&[f64]; 2], x: &[f64], product: &mut [f64]) {
    for (j, row) in a.chunks_exact_mut(n).take(x.len()).enumerate() {
        let (v_j, w_j, x_j) = (v[j], w[j], x[j]);
        let (row, diagonal) = row.split_at_mut(j);
        let (before, product_j) = product.split_at_mut(j);
        diagonal[0] -= 2.0 * v_j * w_j;
        let mut sums = [0.0; SUMS];
        let (rows, row) = row.as_chunks_mut::<SUMS>();
        let (products, product) = before.as_chunks_mut::<SUMS>();
        let [(vs, v), (ws, w), (xs, x)] = [&v[..j], &w[..j], &x[..j]].map(|slice| slice.as_chunks::<SUMS>());
        for ((((row, product), v), w), x) in rows.iter_mut().zip(products).zip(vs).zip(ws).zip(xs) {
            for k in 0..SUMS {
                row[k] -= v_j * w[k] + w_j * v[k];
                sums[k] += row[k] * x[k];
                product[k] += row[k] * x_j;
            }
        }
        let mut sum = diagonal[0] * x_j + sums.iter().sum::<f64>();
        for ((((row, product), v), w), x) in row.iter_mut().zip(product).zip(v).zip(w).zip(x) {
            *row -= v_j * w + w_j * v;
            sum += *row * x;
            *product += *row * x_j;
        }
        product_j[0] += sum;
    }
}

#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; SUMS];
    let ((parts, a), (others, b)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    for (a, b) in parts.iter().zip(others) {
        for k in 0..SUMS {
            sums[k] += a[k] * b[k];
        }
    }
    a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() + sums.iter().sum::<f64>()
}

/// Replaces the diagonal of a tridiagonal matrix by its eigenvalues, in any order. Returns `false` if the iteration does not end.
fn iterate(diagonal: &mut [f64], squares: &mut [f64]) -> bool {
    let n = diagonal.len();
    let largest = diagonal.iter().map(|x| x.abs()).chain(squares.iter().map(|x| x.sqrt())).fold(0.0, f64::max);
    let epsilon = f64::EPSILON / 2.0;
    // Elements that change no eigenvalue by more than rounding does.
    let negligible = (epsilon * largest / 16.0) * (epsilon * largest / 16.0);
    let mut start = 0;
    let mut iterations = 0;
    while start < n {
        let is_small = |i: usize| {
            let neighbours = (diagonal[i] * diagonal[i + 1]).abs();
            squares[i] <= epsilon * epsilon * neighbours + negligible
        };
        let end = (start..n - 1).find(|i| is_small(*i)).unwrap_or(n - 1);
        if end == start {
            (start, iterations) = (start + 1, 0);
            continue;
        }
        iterations += 1;
        if iterations > MAX_ITERATIONS {
            return false;
        }
        let (first, square) = (diagonal[start], squares[start]);
        let root = square.sqrt();
        let ratio = (diagonal[start + 1] - first) / (2.0 * root);
        let shift = first - root / (ratio + ratio.hypot(1.0).copysign(ratio));
        // A sweep of rotations from the end of the block to its start. Instead of the rotated elements, it keeps the squares of the
        // rotations' cosines and sines.
        let (mut cosine, mut sine) = (1.0f64, 0.0f64);
        let mut gamma = diagonal[end] - shift;
        let mut p = gamma * gamma;
        for i in (start..end).rev() {
            let square = squares[i];
            let r = p + square;
            if i + 1 < end {
                squares[i + 1] = sine * r;
            }
            let old_cosine = cosine;
            (cosine, sine) = if r > 0.0 { (p / r, square / r) } else { (1.0, 0.0) };
            let old_gamma = gamma;
            gamma = cosine * (diagonal[i] - shift) - sine * old_gamma;
            diagonal[i + 1] = old_gamma + (diagonal[i] - gamma);
            p = if cosine > 0.0 { gamma * gamma / cosine } else { old_cosine * square };
        }
        squares[start] = sine * p;
        diagonal[start] = shift + gamma;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::eigenvalues;

    fn assert_eigenvalues(n: usize, element: impl Fn(usize, usize) -> f64, expected: &[f64]) {
        let mut a: Vec<f64> = (0..n * n).map(|i| element(i / n, i % n)).collect();
        let mut values = vec![f64::NAN; n];
        assert!(eigenvalues(&mut a, &mut values));
        let largest = expected.iter().fold(1e-300, |largest: f64, x| largest.max(x.abs()));
        for (found, want) in values.iter().zip(expected) {
            assert!((found - want).abs() <= 1e-14 * largest, "{values:?}, not {expected:?}");
        }
    }

    #[test]
    fn eigenvalues_that_are_known() {
        assert_eigenvalues(0, |_, _| 0.0, &[]);
        assert_eigenvalues(1, |_, _| -3.0, &[-3.0]);
        assert_eigenvalues(2, |i, j| if i == j { 0.0 } else { 1.0 }, &[-1.0, 1.0]);
        assert_eigenvalues(5, |_, _| 0.0, &[0.0; 5]);
        assert_eigenvalues(4, |_, _| 2.0, &[0.0, 0.0, 0.0, 8.0]);
        assert_eigenvalues(
            40,
            |i, j| if i == j { i as f64 * 1e-80 } else { 0.0 },
            &(0..40).map(|i| f64::from(i) * 1e-80).collect::<Vec<_>>(),
        );
        // Second differences, and the same with a zero diagonal.
        let angles = (1..=33).map(|k| (std::f64::consts::PI * f64::from(k) / 34.0).cos());
        let expected: Vec<f64> = angles.clone().map(|cos| 2.0 - 2.0 * cos).collect();
        assert_eigenvalues(
            33,
            |i, j| {
                if i == j {
                    2.0
                } else if i.abs_diff(j) == 1 {
                    -1.0
                } else {
                    0.0
                }
            },
            &expected,
        );
        let expected: Vec<f64> = angles.map(|cos| -2.0 * cos).collect();
        assert_eigenvalues(33, |i, j| if i.abs_diff(j) == 1 { 1.0 } else { 0.0 }, &expected);
        // Rows that are reduced already between others, and a matrix of rank one.
        let values: Vec<f64> = (0..17).map(|i| f64::from(i) - 8.0).collect();
        assert_eigenvalues(17, |i, j| if i == j { i as f64 - 8.0 } else { 0.0 }, &values);
        let mut expected = vec![0.0; 20];
        expected[19] = (0..20).map(|i| f64::from(i * i)).sum();
        assert_eigenvalues(20, |i, j| (i * j) as f64, &expected);
    }
}
