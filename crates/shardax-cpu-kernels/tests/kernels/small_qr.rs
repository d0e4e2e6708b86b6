//! QR decompositions of batches of small matrices, compared with the decompositions of each matrix.

use super::small_matrices::{distance, product, transposed, wide};
use super::{assert_error, for_any_threads, noise, view};
use shardax_cpu_kernels::qr;

const SIZES: [[usize; 2]; 9] = [[16, 8], [8, 16], [5, 5], [1, 4], [4, 1], [33, 20], [24, 24], [2, 3], [1, 1]];

fn decompose(a: &[f32], [batch, m, n]: [usize; 3], is_full: bool) -> [Vec<f32>; 2] {
    let k = if is_full { m } else { m.min(n) };
    for_any_threads(3, |threads| {
        let (mut q, mut r) = (vec![9.0; batch * m * k], vec![9.0; batch * k * n]);
        qr(view(&[batch, m, n], a), is_full, &mut q, &mut r, threads).unwrap();
        [q, r]
    })
}

#[test]
fn qr_of_batches() {
    for ([m, n], is_full) in SIZES.iter().flat_map(|sizes| [(*sizes, false), (*sizes, true)]) {
        let (batch, k) = (21, if is_full { m } else { m.min(n) });
        let mut a = noise(batch * m * n, 7);
        // A matrix of zeros, a triangular one, one with a column of zeros, and numbers whose squares overflow or vanish.
        a[..m * n].fill(0.0);
        (0..m * n).filter(|e| e % n < e / n).for_each(|e| a[m * n + e] = 0.0);
        a[2 * m * n..3 * m * n].chunks_exact_mut(n).for_each(|row| row[n / 2] = 0.0);
        a[3 * m * n..4 * m * n].iter_mut().for_each(|x| *x *= 1e30);
        a[4 * m * n..5 * m * n].iter_mut().for_each(|x| *x *= 1e-30);
        let [q, r] = decompose(&a, [batch, m, n], is_full);
        for i in 0..batch {
            let matrix = &a[i * m * n..(i + 1) * m * n];
            let (q, r) = (&q[i * m * k..(i + 1) * m * k], &r[i * k * n..(i + 1) * k * n]);
            let largest = matrix.iter().fold(1e-37f32, |largest, x| largest.max(x.abs()));
            let scaled = |x: &[f32]| wide(x).iter().map(|x| x / f64::from(largest)).collect::<Vec<_>>();
            let what = format!("matrix {i} of {m} x {n}");
            assert!(distance(&product(&wide(q), &scaled(r), [m, k, n]), &scaled(matrix)) < 1e-5, "{what}");
            let identity: Vec<f64> = (0..k * k).map(|e| f64::from(u8::from(e / k == e % k))).collect();
            assert!(distance(&product(&transposed(&wide(q), k), &wide(q), [k, m, k]), &identity) < 4e-6, "{what}");
            assert!(r.iter().enumerate().all(|(e, x)| e % n >= e / n || *x == 0.0), "{what}");
            // A single matrix is decomposed in another way; regular ones have the same factors, with LAPACK's signs.
            if i > 4 {
                let [_, one_r] = decompose(matrix, [1, m, n], is_full);
                assert!(distance(&wide(&one_r), &wide(r)) < 2e-4, "{what}: {r:?}, not {one_r:?}");
            }
        }
        // No matrix depends on the others of its batch.
        let [alone, _] = decompose(&a[5 * m * n..9 * m * n], [4, m, n], is_full);
        assert!(alone == q[5 * m * k..9 * m * k], "{m} x {n}");
        let exact = wide(&a);
        let (mut q, mut r) = (vec![9.0; batch * m * k], vec![9.0; batch * k * n]);
        qr(view(&[batch, m, n], &exact), is_full, &mut q, &mut r, 1).unwrap();
        let last = (batch - 1) * m * n;
        let products = product(&q[(batch - 1) * m * k..], &r[(batch - 1) * k * n..], [m, k, n]);
        assert!(distance(&products, &exact[last..]) < 1e-13);
    }
}

#[test]
fn qr_of_matrices_that_are_reduced_already() {
    // The elements of the diagonal keep their signs, as in LAPACK.
    let a = [2.0f32, 1.0, 0.0, -3.0].repeat(5);
    let [q, r] = decompose(&a, [5, 2, 2], false);
    assert_eq!((&q[..4], &r[..4]), (&[1.0, 0.0, 0.0, 1.0][..], &a[..4]));
}

#[test]
fn qr_of_batches_with_matrices_that_are_not_finite() {
    let mut a = noise(6 * 12, 3);
    (a[13], a[36]) = (f32::NAN, f32::INFINITY);
    let (mut q, mut r) = ([0.0; 72], [0.0; 54]);
    qr(view(&[6, 4, 3], &a), false, &mut q, &mut r, 2).unwrap();
    for i in 0..6 {
        let is_finite = i != 1 && i != 3;
        assert!(q[i * 12..(i + 1) * 12].iter().all(|x| x.is_finite() == is_finite), "{i}");
        assert!(r[i * 9..(i + 1) * 9].iter().all(|x| x.is_finite() == is_finite), "{i}");
    }
    assert_error(
        qr(view(&[6, 4, 3], &a), false, &mut [0.0; 71], &mut [0.0; 54], 1),
        "the elements of a result: 71, expected 72",
    );
}
