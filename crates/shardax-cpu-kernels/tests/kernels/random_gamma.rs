//! Accepted candidates of gamma numbers, compared with draws of one element after the other.

use super::{assert_error, for_any_threads};
use shardax_cpu_kernels::{erf_inv, random_gamma_factors};

/// The cipher Threefry-2x32.
fn encrypt(key: [u32; 2], block: u32) -> [u32; 2] {
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let (mut high, mut low) = (keys[0], block.wrapping_add(keys[1]));
    for round in 0..20 {
        high = high.wrapping_add(low);
        low = low.rotate_left([13, 15, 26, 6, 17, 29, 16, 24][round % 8]) ^ high;
        if round % 4 == 3 {
            let group = round / 4 + 1;
            high = high.wrapping_add(keys[group % 3]);
            low = low.wrapping_add(keys[(group + 1) % 3]).wrapping_add(group as u32);
        }
    }
    [high, low]
}

fn uniform([high, low]: [u32; 2]) -> f32 {
    f32::from_bits((high ^ low) >> 9 | 0x3F80_0000) - 1.0
}

/// A factor, the number of rejected candidates, and the number of candidates below 0.
fn factor(mut key: [u32; 2], d: f32) -> (f32, [usize; 2]) {
    let mut counts = [0, 0];
    loop {
        let mut normal_key = encrypt(key, 1);
        let (normal, root) = loop {
            let (x, mut normal) = (2.0 * uniform(encrypt(encrypt(normal_key, 1), 0)) - 1.0 + f32::EPSILON / 2.0, [0.0]);
            erf_inv(&[x], &mut normal, 1).unwrap();
            let normal = std::f32::consts::SQRT_2 * normal[0];
            let root = 1.0 + normal * ((1.0 / 3.0) / d.sqrt());
            if !(root <= 0.0) {
                break (normal, root);
            }
            counts[1] += 1;
            normal_key = encrypt(normal_key, 0);
        };
        let (v, square, u) = (root * root * root, normal * normal, uniform(encrypt(encrypt(key, 2), 0)));
        let bound = f64::from(square) * 0.5 + f64::from(d) * (1.0 - f64::from(v) + f64::from(v).ln());
        if u < 1.0 - 0.0331 * square * square || !(f64::from(u).ln() >= bound) {
            return (v, counts);
        }
        counts[0] += 1;
        key = encrypt(key, 0);
    }
}

#[test]
fn random_gamma_factors_of_elements_that_leave_in_any_order() {
    for n in [0, 1, 31, 5_000] {
        let keys =
            [0x9E37_79B9, 0x85EB_CA6B].map(|step| (0..n as u32).map(|i| i.wrapping_mul(step)).collect::<Vec<_>>());
        let d: Vec<f32> = (0..n).map(|i| [0.67, 1.5, 30.0][i % 3]).collect();
        let factors = for_any_threads(3, |threads| {
            let mut v = vec![f32::NAN; n];
            random_gamma_factors([&keys[0], &keys[1]], &d, &mut v, threads).unwrap();
            v
        });
        let expected = (0..n).map(|i| factor([keys[0][i], keys[1][i]], d[i])).collect::<Vec<_>>();
        for (i, (found, (expected, _))) in factors.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 2e-6 * expected, "{i}: {found}, not {expected}");
        }
        let counts = expected.iter().fold([0, 0], |sum, (_, counts)| [sum[0] + counts[0], sum[1] + counts[1]]);
        assert!(n < 5_000 || counts[0] > 50 && counts[1] > 5, "rejected candidates: {counts:?}");
    }
}

#[test]
fn random_gamma_factors_of_parameters_that_are_not_finite() {
    let d = [f32::INFINITY, f32::NAN, -1.0, 0.0, 1e-30, 1e30];
    let mut v = [0.0; 6];
    random_gamma_factors([&[1; 6], &[2; 6]], &d, &mut v, 1).unwrap();
    assert_eq!((v[0], v[5]), (1.0, 1.0));
    assert!(v[1].is_nan() && v[2].is_nan(), "{v:?}");
    assert_error(random_gamma_factors([&[], &[1]], &[1.0], &mut [0.0], 1), "the words of keys: 0, expected 1");
    assert_error(random_gamma_factors([&[1], &[1]], &[1.0], &mut [], 1), "the elements of the result: 0, expected 1");
}
