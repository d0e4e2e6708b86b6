//! Powers and cube roots compared with the library, in f64 for results in f32.

use half::bf16;

use super::assert_error;
use shardax_cpu_kernels::{cbrt, pow, pow_f64};

/// Numbers of f32 with rules of their own: signs, zeros, infinities, subnormal numbers, and odd, even and large integers.
const SPECIAL: [f32; 30] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
    3.0,
    -3.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e10,
    16_777_215.0,
    -16_777_217.0,
    2_147_483_600.0,
    0.1,
    1.0 + f32::EPSILON,
    1.0 - f32::EPSILON,
    8_388_607.5,
    -4_194_303.0,
    1e-30,
];

/// Asserts that a result in f32 is next to a number, or of the same kind if it is none.
fn assert_near(found: f32, want: f64, units: f64, what: &str) {
    let unit = f64::from(f32::EPSILON) * 2f64.powf(want.abs().log2().floor()).max(f64::from(f32::MIN_POSITIVE));
    let is_same = found.is_nan() && want.is_nan() || found == want as f32;
    let is_near = (f64::from(found) - want).abs() <= units * unit;
    assert!(is_same || is_near, "{what}: {found}, not {want}");
    assert!(found.is_nan() || found.is_sign_negative() == want.is_sign_negative(), "{what}: the sign of {found}");
}

#[test]
fn powers_of_special_numbers() {
    let (x, y): (Vec<f32>, Vec<f32>) = SPECIAL.iter().flat_map(|x| SPECIAL.map(|y| (*x, y))).unzip();
    for threads in [1, 3] {
        let mut powers = vec![0.0; x.len()];
        pow(&x, &y, &mut powers, threads).unwrap();
        for ((x, y), power) in x.iter().zip(&y).zip(&powers) {
            assert_near(*power, f64::from(*x).powf((*y).into()), 0.51, &format!("{x} to the power {y}"));
        }
    }
}

/// Returns number `i` of a sequence that fills the interval from -1 to 1 evenly, if `step` is irrational.
fn fraction(i: usize, step: f64) -> f64 {
    (i as f64 * step).fract() * 2.0 - 1.0
}

#[test]
fn powers_of_f64() {
    let special =
        SPECIAL.map(f64::from).into_iter().chain([5e-324, f64::MAX, f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0]);
    let special: Vec<f64> = special.collect();
    let pairs = special.iter().flat_map(|x| special.iter().map(move |y| (*x, *y)));
    let all_sizes = (0..60_000).map(|i| {
        let x = (708.0 * fraction(i, 0.618_033_988_7)).exp();
        (x, fraction(i, 0.414_213_562_3) * 750.0 / x.ln().abs().max(1e-3))
    });
    // Next to 1, where the logarithm cancels.
    let near_one =
        (0..20_000).map(|i| (1.0 + 0.3 * fraction(i, 0.732_050_807_6), 300.0 * fraction(i, 0.236_067_977_5)));
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.chain(all_sizes).chain(near_one).unzip();
    for threads in [1, 3] {
        let mut powers = vec![0.0; x.len()];
        pow_f64(&x, &y, &mut powers, threads).unwrap();
        for ((x, y), found) in x.iter().zip(&y).zip(&powers) {
            let want = x.powf(*y);
            let is_near = (found - want).abs() <= f64::EPSILON * want.abs();
            let is_same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
            assert!(is_near || is_same, "{x} to the power {y}: {found}, not {want}");
        }
    }
    assert_error(pow_f64(&[1.0], &[1.0; 2], &mut [1.0], 1), "the elements of the exponent: 2, expected 1");
    assert_error(pow_f64(&[1.0], &[1.0], &mut [], 1), "the elements of the result: 0, expected 1");
}

#[test]
fn powers_of_all_sizes() {
    let count = 100_001;
    let x: Vec<f32> = (0..count).map(|i| (88.0 * fraction(i, 0.618_033_988_7)).exp() as f32).collect();
    let exponents = x.iter().enumerate().map(|(i, x)| {
        // Results from 0 to infinity, including subnormal ones.
        let largest = 105.0 / f64::from(*x).ln().abs().max(1e-3);
        (fraction(i, 0.414_213_562_3) * largest) as f32
    });
    let y: Vec<f32> = exponents.collect();
    let mut powers = vec![0.0; count];
    pow(&x, &y, &mut powers, 2).unwrap();
    for i in 0..count {
        assert_near(powers[i], f64::from(x[i]).powf(y[i].into()), 0.51, &format!("{} to the power {}", x[i], y[i]));
    }
    // Elements have the same bits among others, and in arrays of any size.
    for range in [0..0, 5..6, 17..52, 3..40_000] {
        let mut part = vec![0.0; range.len()];
        pow(&x[range.clone()], &y[range.clone()], &mut part, 1).unwrap();
        assert_eq!(part, powers[range]);
    }
    assert_error(pow(&[1.0], &[], &mut [0.0], 1), "the elements of the exponent: 0, expected 1");
    assert_error(pow(&[1.0], &[1.0], &mut [], 1), "the elements of the result: 0, expected 1");
}

#[test]
fn cube_roots_of_f32() {
    let all_of_16_bits = (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32());
    let cubes = (-256..256).map(|i| (i * i * i) as f32);
    let others = (0..50_000).map(|i| f32::from_bits(i * 42_953));
    let x: Vec<f32> = SPECIAL.into_iter().chain(all_of_16_bits).chain(cubes).chain(others).collect();
    let mut roots = vec![0.0; x.len()];
    cbrt(&x, &mut roots, 2).unwrap();
    for (x, root) in x.iter().zip(&roots) {
        assert_near(*root, f64::from(*x).cbrt(), 0.51, &format!("the cube root of {x}"));
    }
}

/// The roots by mpmath 1.4.1, rounded to f64.
const ROOTS_BY_MPMATH: &[(f64, f64)] = &[
    (2.0, 1.2599210498948732),
    (3.0, 1.4422495703074083),
    (0.1, 0.4641588833612779),
    (1e-310, 4.641588833612774e-104),
    (5e-324, 1.7031839360032603e-108),
    (1.7976931348623157e+308, 5.643803094122362e+102),
    (2.2250738585072014e-308, 2.812644285236262e-103),
    (1e+100, 2.1544346900318838e+33),
    (7.999999999999999, 2.0),
    (8.000000000000002, 2.0),
    (2.7852229394252066e+156, 1.4069758869663206e+52),
    (5.747635256702397e+124, 3.859192126181177e+41),
    (2.0835200254676147e+155, 5.928332580594885e+51),
    (6.390988073689086e+25, 399812163.34247154),
    (7.311521900160861e-15, 1.9408974750816522e-05),
    (5.555650977513509e-148, 8.2207539803224065e-50),
    (3.868657564983178e+254, 7.286518914428175e+84),
    (1.3095092895857069e-72, 1.0940475415087891e-24),
    (7.180659927298352e-150, 1.9292482711675423e-50),
    (5.301038717320197e-239, 3.756531129328509e-80),
    (9.857634779251362e-294, 2.1441618994184317e-98),
    (3.70163739591543e-50, 3.332713325681155e-17),
    (6.446299902421867e+263, 8.638470121649626e+87),
    (1.4526533093021037e-61, 5.2567903781907135e-21),
    (2.066650530792229e+190, 2.7442416281379447e+63),
    (6.355006218149155e+79, 3.990604242664176e+26),
    (1.3983141550584076e-223, 5.190409040911466e-75),
    (2.3695426185573564e+298, 2.8722451720505416e+99),
    (1.2106265844089753e-172, 4.9469410538491985e-58),
    (1.1061905641373698e+291, 1.0342129777826089e+97),
];

#[test]
fn cube_roots_of_f64() {
    for (x, expected) in ROOTS_BY_MPMATH {
        let mut root = [0.0; 2];
        cbrt(&[*x, -x], &mut root, 1).unwrap();
        let error = root[0].to_bits().abs_diff(expected.to_bits());
        assert!(error <= 1, "the cube root of {x}: {}, not {expected}", root[0]);
        assert_eq!(root[1], -root[0]);
    }
    let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let mut roots = [1.0; 5];
    cbrt(&special, &mut roots, 1).unwrap();
    assert_eq!(roots.map(f64::to_bits), special.map(f64::to_bits));
    let cubes: Vec<f64> = (-1000..1000).map(|i| f64::from(i * i * i)).collect();
    let mut roots = vec![0.0; cubes.len()];
    cbrt(&cubes, &mut roots, 2).unwrap();
    assert!(roots.iter().copied().eq((-1000..1000).map(f64::from)));
    assert_error(cbrt(&[1.0], &mut [], 1), "the elements of the result: 0, expected 1");
}
