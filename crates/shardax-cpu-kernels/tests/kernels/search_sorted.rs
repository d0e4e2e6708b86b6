//! Searches compared with counts of all elements.

use super::{assert_error, noise};
use shardax_cpu_kernels::{SearchKey, search_sorted};

/// Compares both kinds of counts with counts by comparisons, where `is_less` is the documented order.
fn assert_counts<T: SearchKey>(sorted: &[T], values: &[T], is_less: impl Fn(T, T) -> bool) {
    for threads in [1, 3] {
        let [mut less, mut at_most] = [vec![-1; values.len()], vec![-1; values.len()]];
        search_sorted(sorted, values, false, &mut less, threads).unwrap();
        search_sorted(sorted, values, true, &mut at_most, threads).unwrap();
        for (i, value) in values.iter().enumerate() {
            assert_eq!(less[i] as usize, sorted.iter().filter(|x| is_less(**x, *value)).count(), "value {i}");
            assert_eq!(at_most[i] as usize, sorted.iter().filter(|x| !is_less(*value, **x)).count(), "value {i}");
        }
    }
}

/// NaN is last, and subnormal numbers are 0.
fn is_less(a: f32, b: f32) -> bool {
    let [a, b] = [a, b].map(|x| if x.is_subnormal() { 0.0 } else { x });
    a < b || (b.is_nan() && !a.is_nan())
}

/// Converts to f64. Subnormal numbers of f32 become a subnormal number of f64.
fn widened(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| if x.is_subnormal() { 1e-310 } else { f64::from(*x) }).collect()
}

#[test]
fn counts_of_searches_for_all_sizes() {
    let special = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40, f32::MIN_POSITIVE];
    for (n, m) in [(0, 3), (1, 20), (2, 1), (3, 0), (37, 50), (256, 40), (1000, 17), (100, 9000)] {
        let mut sorted: Vec<f32> = noise(n, 5).iter().map(|x| (x * 20.0).round()).collect();
        sorted.iter_mut().zip(special).for_each(|(x, special)| *x = special);
        sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())));
        let values: Vec<f32> = noise(m, 6).iter().map(|x| (x * 23.0).round()).chain(special).collect();
        assert_counts(&sorted, &values, is_less);
        let (sorted, values) = (widened(&sorted), widened(&values));
        assert_counts(&sorted, &values, |a, b| is_less(a as f32, b as f32));
    }
}

/// Elements at about equal distances are found by a table of intervals.
#[test]
fn counts_of_searches_in_edges() {
    for n in [2, 3, 64, 257] {
        let edges: Vec<f32> = (0..n).map(|i| i as f32 * 0.037 - 1.0).collect();
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, 1e30];
        let mut values: Vec<f32> = noise(2500, 7).iter().map(|x| x * 5.0).chain(special).collect();
        values.extend(&edges);
        assert_counts(&edges, &values, is_less);
        assert_counts(&widened(&edges), &widened(&values), |a, b| a < b || (b.is_nan() && !a.is_nan()));
        let mut uneven: Vec<f32> = noise(n, 8);
        uneven.sort_by(f32::total_cmp);
        assert_counts(&uneven, &values, is_less);
        let integers: Vec<i32> = (0..n as i32).map(|i| i * 7 - 100).collect();
        assert_counts(&integers, &(-500..1500).collect::<Vec<i32>>(), |a, b| a < b);
    }
}

#[test]
fn counts_of_searches_for_integers() {
    let values = [i64::MIN, -1, 0, 7, i64::MAX];
    assert_counts(&values, &values, |a, b| a < b);
    assert_counts(&[i32::MIN, -3, 8, 8, i32::MAX], &[8, i32::MAX, i32::MIN, 0], |a, b| a < b);
    assert_counts(&[0, 3, u32::MAX], &[u32::MAX, 4, 0], |a, b| a < b);
    assert_counts(&[0, 3, u64::MAX], &[u64::MAX, 4, 0], |a, b| a < b);
}

#[test]
fn searches_that_do_not_fit_are_errors() {
    assert_error(search_sorted(&[1, 2], &[1, 2], true, &mut [0], 1), "the counts of a search: 1, expected 2");
}
