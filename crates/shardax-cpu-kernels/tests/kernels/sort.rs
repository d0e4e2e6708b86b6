//! Sorts compared with the stable sort of the standard library.

use super::{assert_error, noise};
use shardax_cpu_kernels::{KeyOrder, SortOperand, sort, sort_keys};

const F32: KeyOrder = KeyOrder::Float { infinity: 0x7f80_0000 };

fn bytes<T: Copy, const W: usize>(x: &[T], to_bytes: fn(T) -> [u8; W]) -> Vec<u8> {
    x.iter().flat_map(|x| to_bytes(*x)).collect()
}

/// Floats with ties, both zeros, infinities and several NaNs.
fn odd(n: usize, seed: u64) -> Vec<f32> {
    let special =
        [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7fc0_0123), 1e-40];
    noise(n, seed)
        .into_iter()
        .map(|x| if x > 0.5 { special[(x * 1e6) as usize % 8] } else { (x * 8.0).round() })
        .collect()
}

/// The documented order of floats.
fn compared(a: f32, b: f32) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[test]
fn sorts_by_floats_are_stable_and_keep_bits() {
    for (rows, n) in [(5, 1), (300, 2), (70, 33), (9, 4099), (1, 70_000)] {
        let keys = odd(rows * n, 7);
        let indices: Vec<u32> = (0..(rows * n) as u32).collect();
        let mut want: Vec<(f32, u32)> = keys.iter().copied().zip(indices.iter().copied()).collect();
        want.chunks_mut(n).for_each(|row| row.sort_by(|a, b| compared(a.0, b.0)));
        let want_keys = bytes(&want.iter().map(|w| w.0).collect::<Vec<_>>(), f32::to_ne_bytes);
        let want_indices = bytes(&want.iter().map(|w| w.1).collect::<Vec<_>>(), u32::to_ne_bytes);
        let (keys, indices) = (bytes(&keys, f32::to_ne_bytes), bytes(&indices, u32::to_ne_bytes));
        let operands = [SortOperand { data: &keys, width: 4 }, SortOperand { data: &indices, width: 4 }];
        for threads in [1, 3] {
            let (mut a, mut b) = (vec![0; keys.len()], vec![0; indices.len()]);
            sort(n, &operands, &[F32], &mut [&mut a, &mut b], threads).unwrap();
            assert!(a == want_keys && b == want_indices, "{rows} rows of {n}");
        }
    }
}

/// Compares a sort of long rows of keys and their indices with the stable sort of the standard library.
fn assert_pairs_sorted<T: Copy, K: Ord>(keys: &[T], to_bytes: fn(T) -> [u8; 4], order: KeyOrder, key: fn(T) -> K) {
    let n = keys.len();
    let mut want: Vec<u32> = (0..n as u32).collect();
    want.sort_by_key(|i| key(keys[*i as usize]));
    let want_keys: Vec<T> = want.iter().map(|i| keys[*i as usize]).collect();
    let (data, indices) = (bytes(keys, to_bytes), bytes(&(0..n as u32).collect::<Vec<_>>(), u32::to_ne_bytes));
    let operands = [SortOperand { data: &data, width: 4 }, SortOperand { data: &indices, width: 4 }];
    let (mut a, mut b) = (vec![0; 4 * n], vec![0; 4 * n]);
    sort(n, &operands, &[order], &mut [&mut a, &mut b], 1).unwrap();
    assert!(a == bytes(&want_keys, to_bytes) && b == bytes(&want, u32::to_ne_bytes), "{n} pairs");
}

#[test]
fn sorts_of_long_rows_of_pairs_are_stable() {
    for n in [1024, 2048, 5000, 70_000] {
        let x = noise(n, 5);
        let integers: Vec<i32> = x.iter().map(|x| (x * 2e9) as i32).collect();
        let ties: Vec<i32> = x.iter().map(|x| (x * 20.0) as i32).collect();
        // Almost all keys are in one part of the first division.
        let skewed: Vec<u32> = x.iter().map(|x| (x.abs().powi(20) * 4e9) as u32).collect();
        assert_pairs_sorted(&integers, i32::to_ne_bytes, KeyOrder::Signed, |x| x);
        assert_pairs_sorted(&ties, i32::to_ne_bytes, KeyOrder::Signed, |x| x);
        assert_pairs_sorted(&skewed, u32::to_ne_bytes, KeyOrder::Unsigned, |x| x);
        assert_pairs_sorted(&vec![7; n], u32::to_ne_bytes, KeyOrder::Unsigned, |x| x);
        // Positive zeros, subnormal numbers and infinities, without numbers whose bits do not follow from their order.
        let odd: Vec<f32> = odd(n, 6).into_iter().map(|x| if x.is_nan() || x == 0.0 { 0.0 } else { x }).collect();
        let key =
            |x: f32| x.to_bits().cast_signed() ^ ((x.to_bits().cast_signed() >> 31).cast_unsigned() >> 1).cast_signed();
        assert_pairs_sorted(&odd, f32::to_ne_bytes, F32, key);
        assert_pairs_sorted(&x.iter().map(|x| x + 0.0).collect::<Vec<f32>>(), f32::to_ne_bytes, F32, key);
    }
}

/// Sorts by all operands but the last one, and returns the last one.
fn sorted_payload(n: usize, operands: &[SortOperand<'_>], orders: &[KeyOrder]) -> Vec<u8> {
    let mut results: Vec<Vec<u8>> = operands.iter().map(|operand| vec![0; operand.data.len()]).collect();
    let mut slices: Vec<&mut [u8]> = results.iter_mut().map(|result| &mut result[..]).collect();
    sort(n, operands, orders, &mut slices, 2).unwrap();
    results.pop().unwrap()
}

/// The bytes of the payload in this order.
fn permuted(payload: &[u128], order: &[usize]) -> Vec<u8> {
    bytes(&order.iter().map(|i| payload[*i]).collect::<Vec<_>>(), u128::to_ne_bytes)
}

#[test]
fn sorts_by_several_keys_of_all_widths() {
    // Keys of 1, 2 and 8 bytes with many ties, and a payload of 16 bytes that shows the order.
    let n = 5000;
    let x = noise(n, 1);
    let small: Vec<i8> = x.iter().map(|x| (x * 3.0) as i8).collect();
    let middle: Vec<u16> = noise(n, 2).iter().map(|x| (x * 2.0 + 2.0) as u16).collect();
    let wide: Vec<i64> = noise(n, 3).iter().map(|x| (x * 4.0) as i64 * (1 << 40)).collect();
    let payload: Vec<u128> = (0..n as u128).map(|i| i << 70).collect();
    let mut order: Vec<usize> = (0..n).collect();
    let data = [
        bytes(&small, i8::to_ne_bytes),
        bytes(&middle, u16::to_ne_bytes),
        bytes(&wide, i64::to_ne_bytes),
        bytes(&payload, u128::to_ne_bytes),
    ];
    let [small_key, middle_key, wide_key, last] =
        [(0, 1), (1, 2), (2, 8), (3, 16)].map(|(i, width)| SortOperand { data: &data[i], width });
    let orders = [KeyOrder::Signed, KeyOrder::Unsigned];

    order.sort_by_key(|i| (small[*i], middle[*i]));
    assert!(sorted_payload(n, &[small_key, middle_key, last], &orders) == permuted(&payload, &order));

    order.sort_unstable();
    order.sort_by_key(|i| (wide[*i], middle[*i]));
    assert!(sorted_payload(n, &[wide_key, middle_key, last], &orders) == permuted(&payload, &order));
}

#[test]
fn sorts_by_half_precision_and_f64() {
    let half: Vec<u16> = vec![0x3c00, 0x8000, 0x0000, 0x7e00, 0xfc00, 0xfe00, 0x7c00, 0xbc00];
    let indices: Vec<u8> = (0..8).collect();
    let data = bytes(&half, u16::to_ne_bytes);
    let (mut a, mut b) = (vec![0; 16], vec![0; 8]);
    let operands = [SortOperand { data: &data, width: 2 }, SortOperand { data: &indices, width: 1 }];
    sort(8, &operands, &[KeyOrder::Float { infinity: 0x7c00 }], &mut [&mut a, &mut b], 1).unwrap();
    assert_eq!(b, [4, 7, 1, 2, 0, 6, 3, 5]);
    let wide = bytes(&[1.0, f64::NAN, -2.0, -0.0, 0.0, f64::MIN_POSITIVE], f64::to_ne_bytes);
    let (mut a, mut b) = (vec![0; 48], vec![0; 6]);
    let operands = [SortOperand { data: &wide, width: 8 }, SortOperand { data: &indices[..6], width: 1 }];
    sort(6, &operands, &[KeyOrder::Float { infinity: f64::INFINITY.to_bits() }], &mut [&mut a, &mut b], 1).unwrap();
    assert_eq!(b, [2, 3, 4, 5, 0, 1]);
}

#[test]
fn sorts_of_integers() {
    let x = [3i32, -1, 2, i32::MIN, 7, 7];
    let mut out = [0; 6];
    sort_keys(3, &x, &mut out, 2).unwrap();
    assert_eq!(out, [-1, 2, 3, i32::MIN, 7, 7]);
    sort_keys::<u8>(0, &[], &mut [], 1).unwrap();
    assert_error(sort_keys(4, &x, &mut out, 1), "6 elements in rows of 4");
}

#[test]
fn sorts_that_do_not_fit_are_errors() {
    let data = [0u8; 12];
    let [two, three, four] = [2, 3, 4].map(|width| SortOperand { data: &data, width });
    let result = sort(3, &[four, two], &[KeyOrder::Signed], &mut [&mut [0; 12], &mut [0; 12]], 1);
    assert_error(result, "the bytes of an operand: 12, expected 6");
    let result = sort(2, &[four], &[KeyOrder::Signed], &mut [&mut [0; 12]], 1);
    assert_error(result, "3 elements in rows of 2");
    assert_error(sort(2, &[four], &[], &mut [&mut [0; 12]], 1), "1 operands for 0 keys");
    assert_error(sort(4, &[three], &[KeyOrder::Signed], &mut [&mut [0; 12]], 1), "an element of 3 bytes");
    sort(3, &[SortOperand { data: &[], width: 4 }], &[KeyOrder::Signed], &mut [&mut []], 1).unwrap();
}

/// Compares rows with the sort of the standard library.
fn assert_sorted<T: shardax_cpu_kernels::SortKey + std::fmt::Debug>(x: Vec<T>, n: usize) {
    let mut want = x.clone();
    want.chunks_mut(n).for_each(<[T]>::sort_unstable);
    for threads in [1, 3] {
        let mut out = x.clone();
        out.reverse();
        sort_keys(n, &x, &mut out, threads).unwrap();
        assert!(out == want, "rows of {n}");
    }
}

#[test]
fn sorts_of_long_rows_of_integers() {
    for (rows, n) in [(2, 1023), (3, 1024), (1, 5000)] {
        let x = noise(rows * n, 4);
        assert_sorted(x.iter().map(|x| (x * 128.0) as i8).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 128.0 + 128.0) as u8).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 3e4) as i16).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 3e4 + 3e4) as u16).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 2e9) as i32).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 2e9 + 2e9) as u32).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 9e18) as i64).collect(), n);
        assert_sorted(x.iter().map(|x| (x * 9e18 + 9e18) as u64).collect(), n);
        // Keys whose digits are all equal, but for one.
        assert_sorted(x.iter().map(|x| ((x * 1000.0) as i32) << 13).collect(), n);
        assert_sorted(vec![7i32; rows * n], n);
    }
}

/// Keys of 64 bits whose highest bits differ, agree in runs of all lengths, or agree in all keys.
#[test]
fn sorts_of_long_rows_of_long_keys_are_stable() {
    for n in [1024, 5000, 40_000] {
        let x = noise(n, 8);
        let high: Vec<i64> = x.iter().map(|x| (f64::from(*x) * 9e18) as i64).collect();
        let low: Vec<i64> = x.iter().map(|x| (x * 1e6) as i64).collect();
        let runs: Vec<i64> = x.iter().map(|x| ((x.powi(3) * 50.0) as i64) << 40 | ((x * 1e5) as i64 & 0xff)).collect();
        for keys in [high, low, runs, vec![-3; n]] {
            let mut expected: Vec<u32> = (0..n as u32).collect();
            expected.sort_by_key(|i| keys[*i as usize]);
            let sorted: Vec<i64> = expected.iter().map(|i| keys[*i as usize]).collect();
            let (data, indices) =
                (bytes(&keys, i64::to_ne_bytes), bytes(&(0..n as u32).collect::<Vec<_>>(), u32::to_ne_bytes));
            let operands = [SortOperand { data: &data, width: 8 }, SortOperand { data: &indices, width: 4 }];
            let (mut a, mut b) = (vec![0; 8 * n], vec![0; 4 * n]);
            sort(n, &operands, &[KeyOrder::Signed], &mut [&mut a, &mut b], 1).unwrap();
            assert!(a == bytes(&sorted, i64::to_ne_bytes) && b == bytes(&expected, u32::to_ne_bytes), "{n} keys");
            let mut alone = vec![0; n];
            sort_keys(n, &keys, &mut alone, 1).unwrap();
            assert!(alone == sorted, "{n} keys alone");
        }
    }
}
