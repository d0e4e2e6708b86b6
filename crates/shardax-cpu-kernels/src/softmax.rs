//! Softmax of rows.
//!
//! XLA (xla-cpu-pjrt 0.0.1) reads the whole array for the maxima, the exponentials, the sums and the quotients. Here a row stays in
//! the processor's cache between these steps.

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::attention::exp::{exp, largest, sum};
use crate::tasks::run_tasks;
use crate::view::check;

/// The minimum number of elements of a task.
const TASK: usize = 1 << 14;

/// The number of exponentials that are computed together, of several rows if rows are short, because a loop over few elements
/// uses no vectors.
const BLOCK: usize = 1 << 12;

/// The number of exponentials that are added up in f32. The sums of such parts of a row are added up in f64.
const PART: usize = 1 << 12;

/// Computes `exp(x) / sum(exp(x))` of each row of `n` elements, without overflow. A row with NaN or infinity, or with negative
/// infinity alone, is NaN.
///
/// ```
/// let mut y = [0.0; 4];
/// shardax_cpu_kernels::softmax(2, &[1000.0, 1000.0, 0.0, f32::NEG_INFINITY], &mut y, 1)?;
/// assert_eq!(y, [0.5, 0.5, 1.0, 0.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements do not fit.
pub fn softmax(n: usize, x: &[f32], y: &mut [f32], threads: usize) -> Result<()> {
    check("the elements of rows", x.len(), x.len() / n.max(1) * n)?;
    check("the elements of the result", y.len(), x.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let rows = TASK.div_ceil(n) * n;
    let tasks = x.chunks(rows).zip(y.chunks_mut(rows)).collect();
    run_tasks(tasks, threads.max(1), || (), |(), (x, y)| Arch::new().dispatch(Rows { n, x, y }));
    Ok(())
}

struct Rows<'a> {
    n: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = self.n;
        let block = (BLOCK / n).max(1) * n;
        for (x, y) in self.x.chunks(block).zip(self.y.chunks_mut(block)) {
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                let max = largest(x);
                x.iter().zip(y).for_each(|(x, y)| *y = x - max);
            }
            y.iter_mut().for_each(|y| *y = exp(simd, *y));
            for y in y.chunks_exact_mut(n) {
                let total: f64 = y.chunks(PART).map(|part| f64::from(sum(part))).sum();
                let factor = (1.0 / total) as f32;
                y.iter_mut().for_each(|y| *y *= factor);
            }
        }
    }
}
