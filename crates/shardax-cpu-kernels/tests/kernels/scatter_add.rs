//! Sums at positions, compared with a loop in the same order.

use super::{assert_error, noise};
use shardax_cpu_kernels::scatter_add;

#[test]
fn sums_at_positions_in_order() {
    for (count, sums) in [(0, 3), (1, 1), (7, 0), (1001, 1), (1023, 1), (1001, 100), (50_000, 333)] {
        let indices: Vec<i32> = (0..count).map(|i| (i * 7919) % (sums + 3) - 1).collect();
        let updates = noise(count as usize, 3);
        let mut expected: Vec<f32> = noise(sums as usize, 4);
        let mut result = expected.clone();
        for (index, update) in indices.iter().zip(&updates) {
            if (0..sums).contains(index) {
                expected[*index as usize] += update;
            }
        }
        scatter_add(&indices, &updates, &mut result).unwrap();
        assert_eq!(result, expected, "{count} at {sums}");
    }
}

#[test]
fn sums_of_every_type() {
    let indices = [1, i32::MIN, 1, 2, i32::MAX, 0, -1];
    macro_rules! check {
        ($($t:ident)*) => { $(
            let mut sums = [$t::MAX, 0 as $t, 0 as $t];
            scatter_add(&indices, &[1 as $t, 2 as $t, 4 as $t, 8 as $t, 16 as $t, 0 as $t, 32 as $t], &mut sums).unwrap();
            assert_eq!(sums, [$t::MAX, 5 as $t, 8 as $t]);
        )* };
    }
    check!(f32 f64 i32 i64 u32 u64);
    let mut wrapped = [i32::MAX];
    scatter_add(&[0], &[1], &mut wrapped).unwrap();
    assert_eq!(wrapped, [i32::MIN]);
    let mut special = [0.0f64, f64::INFINITY, 0.0];
    scatter_add(&[0, 1, 2, 2], &[f64::NAN, f64::NEG_INFINITY, -0.0, f64::INFINITY], &mut special).unwrap();
    assert!(special[0].is_nan() && special[1].is_nan() && special[2] == f64::INFINITY);
    assert_error(scatter_add(&[0], &[], &mut [0.0f32]), "the updates: 0, expected 1");
}

/// Sums of f32 would stay at 2²⁴.
#[test]
fn long_sums_of_f32() {
    let count = (1 << 24) + 5;
    let mut sums = [0.0f32, 3.0];
    scatter_add(&vec![1; count], &vec![1.0; count], &mut sums).unwrap();
    assert_eq!(sums, [0.0, (count + 3) as f32]);
}

#[test]
fn one_update_at_all_positions() {
    let indices: Vec<i32> = (0..3000).map(|i| (i * 7919) % 14 - 2).collect();
    let (mut repeated, mut expected) = ([0.5f32; 10], [0.5f32; 10]);
    scatter_add(&indices, &[0.25], &mut repeated).unwrap();
    scatter_add(&indices, &[0.25; 3000], &mut expected).unwrap();
    assert_eq!(repeated, expected);
    // In f64, as updates of their own.
    let mut sums = [0.0f32];
    scatter_add(&vec![0; (1 << 24) + 5], &[1.0], &mut sums).unwrap();
    assert_eq!(sums, [((1 << 24) + 5) as f32]);
    let mut counts = [3i32, 0];
    scatter_add(&[1, 1, 0, -1, 2], &[1], &mut counts).unwrap();
    assert_eq!(counts, [4, 2]);
}
