//! Remainders compared with the standard library's, which are exact.

use shardax_cpu_kernels::remainder;

/// Pairs of numbers of all magnitudes and signs, close to multiples of each other, and special.
fn pairs() -> Vec<(f64, f64)> {
    let special =
        [0.0, -0.0, 1.0, -3.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-310, 1e-290, 1e300, 5e-45, 1e38];
    let mut pairs: Vec<(f64, f64)> = special.iter().flat_map(|x| special.map(|y| (*x, y))).collect();
    let mut state = 1u64;
    for i in 0..200_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let magnitude = 2f64.powi((state >> 58) as i32 - 32);
        let x = ((state >> 11) as f64 / 2f64.powi(52) - 1.0) * magnitude;
        let y = (state as u32 as f64 / 2f64.powi(31) - 1.0) * 2f64.powi((state >> 52 & 31) as i32 - 16);
        pairs.push(match i % 3 {
            0 => (x, y),
            1 => (y * (x * 100.0).round(), y),
            _ => (f64::from_bits((y * (x * 100.0).round()).to_bits().wrapping_sub(1)), y),
        });
    }
    pairs
}

#[test]
fn remainders_are_exact() {
    let (x, y): (Vec<f64>, Vec<f64>) = pairs().into_iter().unzip();
    let mut out = vec![0.0; x.len()];
    for threads in [1, 2] {
        remainder(&x, &y, &mut out, threads).unwrap();
        for ((x, y), out) in x.iter().zip(&y).zip(&out) {
            let expected = x % y;
            let is_equal = out.to_bits() == expected.to_bits() || (out.is_nan() && expected.is_nan());
            assert!(is_equal, "{x:e} % {y:e} is {expected:e}, not {out:e}");
        }
    }
    let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    let y: Vec<f32> = y.iter().map(|y| *y as f32).collect();
    let mut out = vec![0.0; x.len()];
    remainder(&x, &y, &mut out, 1).unwrap();
    for ((x, y), out) in x.iter().zip(&y).zip(&out) {
        let expected = x % y;
        let is_equal = out.to_bits() == expected.to_bits() || (out.is_nan() && expected.is_nan());
        assert!(is_equal, "{x:e} % {y:e} is {expected:e}, not {out:e}");
    }
    assert!(remainder(&[1.0f32], &[1.0, 2.0], &mut [0.0], 1).is_err());
}
