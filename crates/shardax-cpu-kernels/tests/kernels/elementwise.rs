//! Sines, cosines, tangents and logarithms compared with the library, in f64 for results in f32.

use half::{bf16, f16};

use super::assert_error;
use shardax_cpu_kernels::{cos, log, sin, tan};

/// Angles of all sizes: multiples of π / 2, numbers next to them, numbers that are left to the library, and no numbers.
fn angles() -> Vec<f64> {
    let odd = [0.0, -0.0, f64::NAN, f64::INFINITY, -f64::INFINITY, 1e300, -1.7e6, 1e-30, -3e5, 1_599_999.0];
    let multiples = (-400..400).flat_map(|i| {
        let angle = f64::from(i) * std::f64::consts::FRAC_PI_2;
        [angle, angle + 1e-9, angle - 1e-7, f64::from(i) * 0.37, f64::from(i) * 1234.567]
    });
    odd.into_iter().chain(multiples).collect()
}

fn assert_near(found: f64, want: f64, units: f64, epsilon: f64, what: &str) {
    let is_near = (found - want).abs() <= units * epsilon * want.abs().max(f64::from(f32::MIN_POSITIVE));
    assert!(is_near || found == want || found.is_nan() && want.is_nan(), "{what}: {found}, not {want}");
}

#[test]
fn circular_functions_of_f32() {
    let x: Vec<f32> = angles().into_iter().map(|x| x as f32).collect();
    for threads in [1, 3] {
        let [mut sines, mut cosines, mut tangents] = [0, 1, 2].map(|_| vec![0.0; x.len()]);
        sin(&x, &mut sines, threads).unwrap();
        cos(&x, &mut cosines, threads).unwrap();
        tan(&x, &mut tangents, threads).unwrap();
        for (i, x) in x.iter().enumerate() {
            let (wide, epsilon) = (f64::from(*x), f64::from(f32::EPSILON));
            assert_near(sines[i].into(), wide.sin(), 0.51, epsilon, &format!("sin {x}"));
            assert_near(cosines[i].into(), wide.cos(), 0.51, epsilon, &format!("cos {x}"));
            assert_near(tangents[i].into(), wide.tan(), 0.51, epsilon, &format!("tan {x}"));
        }
        assert_eq!([sines[0], sines[1], tangents[1]].map(f32::to_bits), [0.0f32, -0.0, -0.0].map(f32::to_bits));
    }
}

/// Elements of 16 bits are computed as f32.
#[test]
fn circular_functions_of_all_numbers_of_16_bits() {
    let halves = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32());
    let x: Vec<f32> = halves.chain((0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32())).collect();
    let [mut sines, mut cosines, mut tangents] = [0, 1, 2].map(|_| vec![0.0; x.len()]);
    sin(&x, &mut sines, 2).unwrap();
    cos(&x, &mut cosines, 2).unwrap();
    tan(&x, &mut tangents, 2).unwrap();
    for (i, x) in x.iter().enumerate() {
        let (wide, epsilon) = (f64::from(*x), f64::from(f32::EPSILON));
        // The library, which computes the functions of larger angles, is less accurate.
        let units = if wide.abs() < 1.6e6 { 0.51 } else { 1.0 };
        assert_near(sines[i].into(), wide.sin(), units, epsilon, &format!("sin {x}"));
        assert_near(cosines[i].into(), wide.cos(), units, epsilon, &format!("cos {x}"));
        assert_near(tangents[i].into(), wide.tan(), units, epsilon, &format!("tan {x}"));
    }
}

#[test]
fn circular_functions_of_f64() {
    let x = angles();
    let [mut sines, mut cosines] = [0, 1].map(|_| vec![0.0; x.len()]);
    sin(&x, &mut sines, 1).unwrap();
    cos(&x, &mut cosines, 2).unwrap();
    for (i, x) in x.iter().enumerate() {
        assert_near(sines[i], x.sin(), 1.0, f64::EPSILON, &format!("sin {x}"));
        assert_near(cosines[i], x.cos(), 1.0, f64::EPSILON, &format!("cos {x}"));
    }
    assert_eq!(sines[1].to_bits(), (-0.0f64).to_bits());
}

#[test]
fn logarithms_of_f64() {
    let odd = [1.0, 0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, 5e-324, f64::MAX, 1.0 + f64::EPSILON];
    let numbers = (0..3000)
        .flat_map(|i| [1.0 + f64::from(i) * 1e-4, 2f64.powi(i % 2000 - 1000) * 1.234, 0.9 + f64::from(i) * 1e-9]);
    let x: Vec<f64> = odd.into_iter().chain(numbers).collect();
    let mut logarithms = vec![0.0; x.len()];
    log(&x, &mut logarithms, 2).unwrap();
    for (x, found) in x.iter().zip(&logarithms) {
        assert_near(*found, x.ln(), 1.0, f64::EPSILON, &format!("log {x}"));
    }
    // Elements have the same bits among others.
    let mut single = [0.0];
    log(&x[11..12], &mut single, 1).unwrap();
    assert_eq!(single[0].to_bits(), logarithms[11].to_bits());
    assert_error(log(&[1.0], &mut [], 1), "the elements of the result: 0, expected 1");
}
