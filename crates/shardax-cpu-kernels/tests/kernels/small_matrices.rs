//! Batches of small matrices, and LU decompositions of any size, compared with sums in f64.

use super::{assert_error, for_any_threads, noise, view};
use shardax_cpu_kernels::{Triangle, cholesky, eigh, lu, svd, triangular_solve};

/// `a b` of matrices in row order, in f64.
pub fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    (0..m * n).map(|e| (0..k).map(|d| a[e / n * k + d] * b[d * n + e % n]).sum()).collect()
}

pub fn transposed(a: &[f64], n: usize) -> Vec<f64> {
    let m = a.len() / n;
    (0..a.len()).map(|e| a[e % m * n + e / m]).collect()
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// The largest difference.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    // NaN is farther away than everything.
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |most, x| if x <= most { most } else { x })
}

/// `p a - l u` with the factors of `a`.
fn lu_residual(a: &[f64], factors: &[f64], permutation: &[i32], [m, n]: [usize; 2]) -> f64 {
    let k = m.min(n);
    let l: Vec<f64> = (0..m * k)
        .map(|e| match (e / k, e % k) {
            (i, j) if j < i => factors[i * n + j],
            (i, j) => f64::from(u8::from(i == j)),
        })
        .collect();
    let u: Vec<f64> = (0..k * n).map(|e| if e % n < e / n { 0.0 } else { factors[e] }).collect();
    let permuted: Vec<f64> = permutation.iter().flat_map(|i| a[*i as usize * n..][..n].to_vec()).collect();
    distance(&product(&l, &u, [m, k, n]), &permuted)
}

#[test]
fn lu_decompositions_multiply_to_the_matrices() {
    let sizes = [
        [20, 8, 8],
        [5, 3, 7],
        [17, 32, 32],
        [4, 9, 2],
        [1, 5, 5],
        [2, 33, 70],
        [1, 130, 97],
        [1, 64, 200],
        [3, 1, 1],
        [3, 37, 37],
        [1, 131, 131],
        [1, 40, 67],
    ];
    for [batch, m, n] in sizes {
        let (a, shape, k) = (noise(batch * m * n, 5), [batch, m, n], m.min(n));
        let (factors, pivots, order) = for_any_threads(3, |threads| {
            let (mut factors, mut pivots, mut order) = (vec![0.0; a.len()], vec![0; batch * k], vec![0; batch * m]);
            lu(view(&shape, &a), &mut factors, &mut pivots, &mut order, threads).unwrap();
            (factors, pivots, order)
        });
        for i in 0..batch {
            let [matrix, factors] = [&a, &factors].map(|x| wide(&x[i * m * n..(i + 1) * m * n]));
            let order = &order[i * m..(i + 1) * m];
            assert!(lu_residual(&matrix, &factors, order, [m, n]) < 1e-5, "{shape:?}");
            let mut exchanged: Vec<i32> = (0..m as i32).collect();
            (0..k).for_each(|row| exchanged.swap(row, pivots[i * k + row] as usize));
            assert_eq!(exchanged, order);
        }
        // No factor is larger than its pivot.
        assert!(factors.iter().enumerate().all(|(e, x)| e % n >= e / n % m || x.abs() <= 1.0));
        let exact = wide(&a);
        let (mut factors, mut pivots, mut order) = (vec![0.0; a.len()], vec![0; batch * k], vec![0; batch * m]);
        lu(view(&shape, &exact), &mut factors, &mut pivots, &mut order, 2).unwrap();
        assert!(lu_residual(&exact[..m * n], &factors[..m * n], &order[..m], [m, n]) < 1e-13, "{shape:?}");
    }
}

#[test]
fn lu_decompositions_of_zeros_and_nan() {
    // By lanes, and one matrix: ties take the first row, zeros need no elimination, and the first NaN is the pivot.
    for batch in [1, 5] {
        let matrix = [0.0f32, 1.0, 2.0, 0.0, -1.0, 3.0, 0.0, 1.0, 1.0];
        let a = matrix.repeat(batch);
        let (mut factors, mut pivots, mut order) = (vec![0.0; a.len()], vec![9; 3 * batch], vec![9; 3 * batch]);
        lu(view(&[batch, 3, 3], &a), &mut factors, &mut pivots, &mut order, 1).unwrap();
        assert_eq!(pivots[..3], [0, 1, 2]);
        assert_eq!(factors[..9], [0.0, 1.0, 2.0, 0.0, -1.0, 3.0, 0.0, -1.0, 4.0]);
        let a = [1.0f32, 2.0, f32::NAN, 1.0].repeat(batch);
        let (mut factors, mut pivots, mut order) = (vec![0.0; a.len()], vec![9; 2 * batch], vec![9; 2 * batch]);
        lu(view(&[batch, 2, 2], &a), &mut factors, &mut pivots, &mut order, 1).unwrap();
        assert_eq!((pivots[0], &order[..2]), (1, &[1, 0][..]));
        assert!(factors[0].is_nan() && factors[1] == 1.0 && factors[2].is_nan());
    }
    let mut order = [9; 6];
    lu::<f32>(view(&[2, 3, 0], &[]), &mut [], &mut [], &mut order, 1).unwrap();
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    assert_error(lu(view(&[1, 1, 1], &[1.0f32]), &mut [0.0], &mut [], &mut [0], 1), "the pivots: 0, expected 1");
}

#[test]
fn triangular_systems_are_solved() {
    // In lanes; as vectors and by blocks; one group of equations, several, and a last one of one equation.
    let sizes = [
        [20, 8, 3],
        [5, 1, 1],
        [6, 32, 1],
        [4, 7, 6],
        [1, 9, 4],
        [2, 70, 1],
        [1, 100, 65],
        [3, 37, 17],
        [1, 64, 2],
        [1, 65, 3],
        [1, 129, 5],
        [1, 131, 1],
        [1, 2, 31],
    ];
    for [batch, n, k] in sizes {
        for flags in 0..16 {
            let [is_left, is_lower, transposes, has_unit_diagonal] = [0, 1, 2, 3].map(|bit| flags >> bit & 1 == 1);
            let triangle = Triangle { is_left, is_lower, transposes, has_unit_diagonal };
            // Small elements and a large diagonal: well conditioned.
            let a: Vec<f32> = noise(batch * n * n, 3)
                .into_iter()
                .enumerate()
                .map(|(e, x)| if e % n == e / n % n { 2.0 + x } else { x / n as f32 })
                .collect();
            let b_shape = if triangle.is_left { [batch, n, k] } else { [batch, k, n] };
            let b = noise(batch * n * k, 4);
            let mut x = vec![f32::NAN; b.len()];
            triangular_solve(view(&[batch, n, n], &a), view(&b_shape, &b), triangle, &mut x, 2).unwrap();
            for i in 0..batch {
                let read = wide(&a[i * n * n..(i + 1) * n * n]);
                let read: Vec<f64> = read
                    .iter()
                    .enumerate()
                    .map(|(e, x)| match (e / n).cmp(&(e % n)) {
                        std::cmp::Ordering::Equal if triangle.has_unit_diagonal => 1.0,
                        std::cmp::Ordering::Equal => *x,
                        order => f64::from(u8::from(triangle.is_lower == order.is_gt())) * x,
                    })
                    .collect();
                let read = if triangle.transposes { transposed(&read, n) } else { read };
                let [x, b] = [&x, &b].map(|x| wide(&x[i * n * k..(i + 1) * n * k]));
                let products =
                    if triangle.is_left { product(&read, &x, [n, n, k]) } else { product(&x, &read, [k, n, n]) };
                assert!(distance(&products, &b) < 1e-5, "{batch} × {n} × {k}, {triangle:?}");
            }
        }
    }
    // A zero on the diagonal and a NaN change only what depends on them.
    let lower = Triangle { is_left: true, is_lower: true, transposes: false, has_unit_diagonal: false };
    for batch in [1, 4] {
        let a = [1.0f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0].repeat(batch);
        let b = [f32::NAN, 1.0, 4.0].repeat(batch);
        let mut x = vec![0.0; b.len()];
        triangular_solve(view(&[batch, 3, 3], &a), view(&[batch, 3, 1], &b), lower, &mut x, 1).unwrap();
        assert!(x[0].is_nan());
    }
    assert_error(
        triangular_solve(view(&[1, 2, 2], &[1.0f32; 4]), view(&[1, 3, 1], &[0.0; 3]), lower, &mut [0.0; 3], 1),
        "the equations: 3, expected 2",
    );
}

/// The pivots of a matrix, by the textbook's loops. The pivot is the largest element or the first NaN.
fn textbook_pivots(a: &[f64], n: usize) -> Vec<i32> {
    let mut a = a.to_vec();
    let mut pivots = Vec::new();
    for k in 0..n {
        let mut pivot = k;
        for i in k + 1..n {
            let (size, largest) = (a[i * n + k].abs(), a[pivot * n + k].abs());
            pivot = if largest.is_nan() || size <= largest { pivot } else { i };
        }
        pivots.push(pivot as i32);
        (0..n).for_each(|j| a.swap(k * n + j, pivot * n + j));
        for i in k + 1..n {
            let factor = a[i * n + k] / if a[k * n + k] == 0.0 { 1.0 } else { a[k * n + k] };
            (k + 1..n).for_each(|j| a[i * n + j] -= factor * a[k * n + j]);
        }
    }
    pivots
}

#[test]
fn lu_pivots_of_textbook() {
    for (n, bad) in [(7, 1.0), (67, 1.0), (67, f64::NAN), (67, f64::INFINITY), (70, 0.0), (33, f64::NAN)] {
        let mut a: Vec<f64> = wide(&noise(n * n, 9));
        // An element of a later panel, or a column of zeros.
        a[(n - 3) * n + n / 2] = bad;
        if bad == 0.0 {
            (0..n).for_each(|i| a[i * n + n / 2] = 0.0);
        }
        let (mut factors, mut pivots, mut order) = (vec![0.0; n * n], vec![0; n], vec![0; n]);
        lu(view(&[1, n, n], &a), &mut factors, &mut pivots, &mut order, 1).unwrap();
        // Nothing is certain after a pivot that is not finite.
        let end = if bad.is_finite() { n } else { n / 2 + 1 };
        assert_eq!(pivots[..end], textbook_pivots(&a, n)[..end], "{n} with {bad}");
        assert_eq!(factors.iter().all(|x| x.is_finite()), bad.is_finite());
    }
}

#[test]
fn triangular_systems_keep_nan_in_its_place() {
    for [n, k] in [[3, 1], [70, 1], [67, 3], [131, 17]] {
        for flags in 0..8 {
            let [is_left, is_lower, transposes] = [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
            let triangle = Triangle { is_left, is_lower, transposes, has_unit_diagonal: false };
            let mut a: Vec<f64> = wide(&noise(n * n, 3)).iter().map(|x| x / n as f64).collect();
            (0..n).for_each(|i| a[i * n + i] = 2.0);
            // The triangle that is not read.
            (0..n * n).filter(|e| if is_lower { e % n > e / n } else { e % n < e / n }).for_each(|e| a[e] = f64::NAN);
            let mut b = wide(&noise(n * k, 4));
            let (equation, column) = (n / 2, k / 2);
            b[if is_left { equation * k + column } else { column * n + equation }] = f64::NAN;
            let mut x = vec![0.0; n * k];
            let b_shape = if is_left { [1, n, k] } else { [1, k, n] };
            triangular_solve(view(&[1, n, n], &a), view(&b_shape, &b), triangle, &mut x, 1).unwrap();
            let is_forward = is_lower == (is_left != transposes);
            for (e, x) in x.iter().enumerate() {
                let [i, j] = if is_left { [e / k, e % k] } else { [e % n, e / n] };
                let is_dependent = if is_forward { i >= equation } else { i <= equation };
                assert_eq!(x.is_nan(), is_dependent && j == column, "{n} × {k}, {triangle:?}: {i}, {j}");
            }
        }
    }
}

#[test]
fn triangular_systems_of_f64() {
    for [n, k] in [[1, 1], [5, 9], [67, 1], [67, 4], [67, 5], [130, 13]] {
        for flags in 0..8 {
            let [is_left, is_lower, transposes] = [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
            let triangle = Triangle { is_left, is_lower, transposes, has_unit_diagonal: false };
            let mut a: Vec<f64> = wide(&noise(n * n, 3)).iter().map(|x| x / n as f64).collect();
            (0..n).for_each(|i| a[i * n + i] = 2.0);
            (0..n * n).filter(|e| if is_lower { e % n > e / n } else { e % n < e / n }).for_each(|e| a[e] = 0.0);
            let (b, mut x) = (wide(&noise(n * k, 4)), vec![0.0; n * k]);
            let b_shape = if is_left { [1, n, k] } else { [1, k, n] };
            triangular_solve(view(&[1, n, n], &a), view(&b_shape, &b), triangle, &mut x, 1).unwrap();
            let a = if transposes { transposed(&a, n) } else { a };
            let products = if is_left { product(&a, &x, [n, n, k]) } else { product(&x, &a, [k, n, n]) };
            assert!(distance(&products, &b) < 1e-14, "{n} × {k}, {triangle:?}");
        }
    }
}

/// Symmetric matrices: positive definite, indefinite, singular, of equal eigenvalues, and of very different sizes.
fn symmetric(batch: usize, n: usize) -> Vec<f64> {
    let x: Vec<f64> = wide(&noise(batch * n * n, 9));
    (0..batch)
        .flat_map(|i| {
            let x = &x[i * n * n..(i + 1) * n * n];
            let square = product(&transposed(x, n), x, [n, n, n]);
            match i % 5 {
                0 => square,
                1 => (0..n * n).map(|e| x[e] + x[e % n * n + e / n]).collect(),
                2 => (0..n * n).map(|e| x[e / n] * x[e % n]).collect(),
                3 => (0..n * n).map(|e| f64::from(u8::from(e / n == e % n)) * 3.0).collect(),
                _ => square.iter().map(|x| x * 1e-30).collect(),
            }
        })
        .collect()
}

#[test]
fn eigenvectors_of_small_matrices() {
    for [batch, n] in [[40, 8], [21, 1], [33, 2], [16, 3], [7, 16], [10, 5]] {
        let exact = symmetric(batch, n);
        // What is above the diagonal is not read.
        let a: Vec<f32> =
            exact.iter().enumerate().map(|(e, x)| if e % n > e / n % n { 77.0 } else { *x as f32 }).collect();
        let (mut vectors, mut values) = (vec![0.0f32; a.len()], vec![0.0f32; batch * n]);
        eigh(view(&[batch, n, n], &a), &mut vectors, &mut values, 2).unwrap();
        let (mut wide_vectors, mut wide_values) = (vec![0.0f64; a.len()], vec![0.0f64; batch * n]);
        eigh(view(&[batch, n, n], &exact), &mut wide_vectors, &mut wide_values, 1).unwrap();
        for i in 0..batch {
            let (matrix, row) = (i * n * n..(i + 1) * n * n, i * n..(i + 1) * n);
            let (narrow_vectors, narrow_values) = (wide(&vectors[matrix.clone()]), wide(&values[row.clone()]));
            assert_eigenvectors(&exact[matrix.clone()], &narrow_vectors, &narrow_values, 1e-6);
            assert_eigenvectors(&exact[matrix.clone()], &wide_vectors[matrix], &wide_values[row], 2e-15);
        }
    }
}

/// Eigenvectors are orthogonal, in the order of their values, and multiply to the matrix.
#[track_caller]
fn assert_eigenvectors(exact: &[f64], v: &[f64], w: &[f64], tolerance: f64) {
    let n = w.len();
    let scaled: Vec<f64> = v.iter().enumerate().map(|(e, x)| x * w[e % n]).collect();
    let products = product(&scaled, &transposed(v, n), [n, n, n]);
    assert!(distance(&products, exact) <= tolerance * largest(exact) * n as f64, "{exact:?} {w:?}");
    assert!(distance(&product(&transposed(v, n), v, [n, n, n]), &identity(n)) <= tolerance * n as f64);
    assert!(w.is_sorted());
}

/// The largest absolute value, for relative errors.
fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()))
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|e| f64::from(u8::from(e / n == e % n))).collect()
}

#[test]
fn singular_values_of_small_matrices() {
    for [batch, m, n] in [[40, 8, 8], [21, 1, 1], [33, 5, 2], [16, 3, 3], [7, 16, 16], [9, 16, 4]] {
        let mut exact = wide(&noise(batch * m * n, 11));
        // A matrix of zeros, one of rank 1, and one of tiny numbers.
        exact[..m * n].fill(0.0);
        (0..m * n).for_each(|e| exact[m * n + e] = (1 + e / n) as f64 * (1 + e % n) as f64);
        exact[2 * m * n..3 * m * n].iter_mut().for_each(|x| *x *= 1e-30);
        let a: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
        let exact = wide(&a);
        let (mut u, mut s, mut vt) = (vec![0.0f32; a.len()], vec![0.0f32; batch * n], vec![0.0f32; batch * n * n]);
        svd(view(&[batch, m, n], &a), m == n, &mut u, &mut s, &mut vt, 2).unwrap();
        let (mut wide_u, mut wide_s, mut wide_vt) =
            (vec![0.0; a.len()], vec![0.0; batch * n], vec![0.0; batch * n * n]);
        svd(view(&[batch, m, n], &exact), m == n, &mut wide_u, &mut wide_s, &mut wide_vt, 1).unwrap();
        for i in 0..batch {
            let (of_u, of_s, of_vt) = (i * m * n..(i + 1) * m * n, i * n..(i + 1) * n, i * n * n..(i + 1) * n * n);
            let narrow = [wide(&u[of_u.clone()]), wide(&s[of_s.clone()]), wide(&vt[of_vt.clone()])];
            assert_singular_values(&exact[of_u.clone()], [&narrow[0], &narrow[1], &narrow[2]], 1e-6);
            assert_singular_values(&exact[of_u.clone()], [&wide_u[of_u], &wide_s[of_s], &wide_vt[of_vt]], 2e-15);
        }
    }
}

/// Singular vectors are orthogonal, in the order of their values, and multiply to the matrix.
#[track_caller]
fn assert_singular_values(exact: &[f64], [u, s, vt]: [&[f64]; 3], tolerance: f64) {
    let (n, m) = (s.len(), u.len() / s.len());
    let scaled: Vec<f64> = u.iter().enumerate().map(|(e, x)| x * s[e % n]).collect();
    assert!(distance(&product(&scaled, vt, [m, n, n]), exact) <= tolerance * largest(exact) * n as f64, "{s:?}");
    for (left, right) in [(transposed(u, n), u.to_vec()), (vt.to_vec(), transposed(vt, n))] {
        let rows = left.len() / n;
        assert!(distance(&product(&left, &right, [n, rows, n]), &identity(n)) <= tolerance * m as f64);
    }
    assert!(s.is_sorted_by(|a, b| a >= b));
}

#[test]
fn small_matrices_do_not_depend_on_their_batch() {
    let n = 6;
    let a: Vec<f32> = symmetric(40, n).iter().map(|x| *x as f32).collect();
    let batched = decomposition_bits(&a, n);
    for i in [0, 8, 30] {
        let part = decomposition_bits(&a[i * n * n..(i + 5) * n * n], n);
        for (batched, part) in batched.iter().zip(&part) {
            let size = batched.len() / 40;
            assert!(batched[i * size..(i + 5) * size] == part[..]);
        }
    }
}

/// The bits of all results of Cholesky decompositions, eigenvectors and singular values.
fn decomposition_bits(a: &[f32], n: usize) -> [Vec<u32>; 6] {
    let batch = a.len() / (n * n);
    let (mut l, mut v, mut w) = (vec![0.0; a.len()], vec![0.0; a.len()], vec![0.0; batch * n]);
    cholesky(view(&[batch, n, n], a), &mut l, 2).unwrap();
    eigh(view(&[batch, n, n], a), &mut v, &mut w, 2).unwrap();
    let (mut u, mut s, mut vt) = (vec![0.0; a.len()], vec![0.0; batch * n], vec![0.0; a.len()]);
    svd(view(&[batch, n, n], a), true, &mut u, &mut s, &mut vt, 2).unwrap();
    [l, v, w, u, s, vt].map(|x| x.into_iter().map(f32::to_bits).collect::<Vec<_>>())
}

#[test]
fn cholesky_decompositions_multiply_to_the_matrices() {
    // In lanes, and by blocks: one block, several, and a last one of one row.
    for [batch, n] in [[20, 8], [5, 1], [17, 32], [4, 3], [1, 1], [2, 40], [1, 129], [1, 150]] {
        let exact: Vec<f64> = wide(&noise(batch * n * n, 2));
        let definite: Vec<f64> = (0..batch)
            .flat_map(|i| {
                let x = &exact[i * n * n..(i + 1) * n * n];
                let mut square = product(&transposed(x, n), x, [n, n, n]);
                (0..n).for_each(|d| square[d * n + d] += 1.0);
                square
            })
            .collect();
        // The upper triangles are not read.
        let lower: Vec<f64> =
            definite.iter().enumerate().map(|(e, x)| if e % n > e / n % n { f64::NAN } else { *x }).collect();
        let mut l = vec![0.0; definite.len()];
        cholesky(view(&[batch, n, n], &lower), &mut l, 2).unwrap();
        for (l, a) in l.chunks(n * n).zip(definite.chunks(n * n)) {
            assert!(distance(&product(l, &transposed(l, n), [n, n, n]), a) < 1e-12);
            assert!((0..n * n).all(|e| e % n <= e / n || l[e] == 0.0));
        }
    }
    // A pivot of a later block is negative, or a product is not finite.
    for bad in [-1.0f32, 0.0, f32::NAN, f32::INFINITY] {
        let n = 70;
        let mut a: Vec<f32> = (0..n * n).map(|e| f32::from(u8::from(e % n == e / n))).collect();
        a[69 * n + 69] = bad;
        let mut l = vec![9.0; n * n];
        cholesky(view(&[1, n, n], &a), &mut l, 1).unwrap();
        assert!(l.iter().enumerate().all(|(e, x)| if e % n > e / n { *x == 0.0 } else { x.is_nan() }));
    }
    // Negative, not finite, and definite matrices, side by side.
    let a = [4.0f32, 0.0, 2.0, 2.0, -1.0, 0.0, 0.0, 1.0, 1.0, 0.0, f32::NAN, 1.0, f32::INFINITY, 0.0, 0.0, 1.0];
    let mut l = [9.0; 16];
    cholesky(view(&[4, 2, 2], &a), &mut l, 1).unwrap();
    assert_eq!(l[..4], [2.0, 0.0, 1.0, 1.0]);
    for bad in l[4..].chunks(4) {
        assert!(bad[0].is_nan() && bad[1] == 0.0 && bad[2].is_nan() && bad[3].is_nan());
    }
}

#[test]
fn small_matrices_that_are_not_finite_are_nan() {
    let mut a = noise(5 * 9, 3);
    a[9] = f32::INFINITY;
    let (mut v, mut w) = ([0.0; 45], [0.0; 15]);
    eigh(view(&[5, 3, 3], &a), &mut v, &mut w, 1).unwrap();
    assert!(
        v.chunks(9).zip(w.chunks(3)).enumerate().all(|(i, (v, w))| v.iter().chain(w).all(|x| x.is_nan() == (i == 1)))
    );
    let (mut u, mut s, mut vt) = ([0.0; 45], [0.0; 15], [0.0; 45]);
    svd(view(&[5, 3, 3], &a), true, &mut u, &mut s, &mut vt, 1).unwrap();
    assert!(
        u.chunks(9).zip(vt.chunks(9)).enumerate().all(|(i, (u, v))| u.iter().chain(v).all(|x| x.is_nan() == (i == 1)))
    );
}
