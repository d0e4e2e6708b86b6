//! The largest elements of rows.
//!
//! XLA (xla-cpu-pjrt 0.0.1) sorts the indices of a row until the first ones are in order, and reads an element for each
//! comparison. Here a row is read once. Nearly all elements are smaller than the `k` largest so far, and vector
//! instructions can reject them 32 at a time.

use crate::Result;
use crate::tasks::run_tasks;
use crate::view::{ShapeError, check};

/// The number of elements that are compared at once with the smallest of the `k` largest elements so far.
const CHUNK: usize = 32;

/// The number of candidates that are collected, in addition to the `k` largest elements, before the smallest of the `k`
/// must be computed again.
const WAITING: usize = 64;

/// The minimum number of elements of a task.
const MIN_ELEMENTS_PER_TASK: usize = 1 << 16;

/// Computes the `k` largest elements of each row of `n` elements in descending order, and their indices. Of equal elements, the
/// first comes first. The order is total: -NaN, negative numbers, -0, 0, positive numbers, NaN.
///
/// Allocates 16 bytes for each of the largest elements of a row, for each thread.
///
/// ```
/// let (mut values, mut indices) = ([0.0; 2], [0; 2]);
/// shardax_cpu_kernels::top_k(4, 2, &[1.0, 3.0, 2.0, 3.0], &mut values, &mut indices, 1)?;
/// assert_eq!((values, indices), ([3.0, 3.0], [1, 3]));
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if `k` is larger than `n`, a row has more than 2³¹ - 1 elements, or the numbers of elements do not fit.
pub fn top_k(n: usize, k: usize, x: &[f32], values: &mut [f32], indices: &mut [i32], threads: usize) -> Result<()> {
    if k > n || i32::try_from(n).is_err() {
        return Err(ShapeError(format!("the {k} largest of {n} elements")));
    }
    let rows = x.len() / n.max(1);
    check("the elements of rows", x.len(), rows * n)?;
    check("the largest elements", values.len(), rows * k)?;
    check("the indices of the largest elements", indices.len(), rows * k)?;
    if values.is_empty() {
        return Ok(());
    }
    let rows = MIN_ELEMENTS_PER_TASK.div_ceil(n);
    let results = values.chunks_mut(rows * k).zip(indices.chunks_mut(rows * k));
    let tasks = x.chunks(rows * n).zip(results).collect();
    run_tasks(tasks, threads.max(1), Vec::new, |best, (x, (values, indices)): (&[f32], (&mut [f32], &mut [i32]))| {
        let results = values.chunks_exact_mut(k).zip(indices.chunks_exact_mut(k));
        for (row, (values, indices)) in x.chunks_exact(n).zip(results) {
            find_largest(row, k, best);
            for ((value, index), best) in values.iter_mut().zip(indices).zip(&*best) {
                *index = !(*best as u32) as i32;
                *value = row[*index as usize];
            }
        }
    });
    Ok(())
}

/// An integer with the order of the numbers.
#[inline]
fn key(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// The key and the index of an element. Of equal elements, the first is the largest.
#[inline]
fn packed(x: f32, index: usize) -> i64 {
    (i64::from(key(x)) << 32) | i64::from(!(index as u32))
}

/// Replaces `best` by the `k` largest elements of a row, in descending order.
fn find_largest(row: &[f32], k: usize, best: &mut Vec<i64>) {
    best.clear();
    // All of the first elements are candidates, and then the elements above the smallest of the `k` largest ones. An equal element
    // comes later, so it is less.
    let capacity = 2 * k + WAITING;
    let (first, others) = row.split_at(capacity.min(row.len()));
    best.extend(first.iter().enumerate().map(|(index, x)| packed(*x, index)));
    let mut smallest = keep_largest(best, k);
    for (number, chunk) in others.chunks(CHUNK).enumerate() {
        let has_larger = chunk.iter().fold(false, |any, x| any | (key(*x) > smallest));
        if !has_larger {
            continue;
        }
        let start = first.len() + number * CHUNK;
        let larger = chunk.iter().enumerate().filter(|(_, x)| key(**x) > smallest);
        best.extend(larger.map(|(index, x)| packed(*x, start + index)));
        if best.len() >= capacity {
            smallest = keep_largest(best, k);
        }
    }
    keep_largest(best, k);
    best.sort_unstable_by(|a, b| b.cmp(a));
}

/// Keeps the `k` largest elements in any order, and returns the key of the smallest of them.
fn keep_largest(best: &mut Vec<i64>, k: usize) -> i32 {
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        best.truncate(k);
    }
    best.iter().min().map_or(i32::MIN, |smallest| (smallest >> 32) as i32)
}
