//! Gradients of convolutions with respect to the filter, as matmuls of patches: for each position of the window (an
//! element of the filter), the operand's elements that the window meets there, times the window (the cotangent).
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes them as convolutions with a window as large as the image, which takes up to five
//! times as long.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayViewMut2};

use crate::filter_window::Operands;
use crate::patches::{COLUMNS, PATCHES_PER_MATMUL};
use crate::product::{Before, product};
use crate::scratch::Scratch;
use crate::tasks::run_tasks;
use crate::{FilterWindow, Result, View};

/// The number of elements of the window, in all images, that are multiplied together. You should use another method for
/// fewer, because the kernel saves nothing then.
pub const MIN_PATCHES: usize = PATCHES_PER_MATMUL;

/// The minimum number of columns of a task, because a smaller one would take longer to start than to compute.
const MIN_COLUMNS: usize = 64;

/// Results of fewer elements are sums of [`PARTS`] parts, each of a share of the patches. Otherwise the result would be
/// too small to divide among threads.
const MIN_UNDIVIDED_ELEMENTS: usize = 1 << 16;
const PARTS: usize = 8;

/// A task: some rows of the result of one part.
struct Task<'a> {
    /// The patches it adds up: elements of the window in all images.
    patches: Range<usize>,
    /// The positions of the window that it is for.
    positions: Range<usize>,
    out: &'a mut [f32],
}

/// Computes the gradient of a convolution with respect to its filter.
///
/// The operand `x` is `[images, depth, height, width, features]`, the cotangent `window` is
/// `[images, depth, height, width, outputs]`, the result `[positions.., features, outputs]`. Padding is multiplied with
/// the cotangent, so that an infinite cotangent results in NaN there. If there are no images, the result is 0.
///
/// Each thread needs [`MIN_PATCHES`] rows of at most 1,024 columns, or of one position's features; for results of fewer
/// than 2¹⁶ elements the call needs up to seven more.
///
/// ```
/// use shardax_cpu_kernels::{FilterWindow, View, filter_gradient};
///
/// // A filter of two elements on a line of four; the loss is the sum of the three results.
/// let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
/// let x = View::new(&[1, 1, 1, 4, 1], &[1.0, 2.0, 3.0, 4.0])?;
/// let cotangent = View::new(&[1, 1, 1, 3, 1], &[1.0; 3])?;
/// let mut gradient = [0.0; 2];
/// filter_gradient(&window, x, cotangent, &mut gradient, 1)?;
/// assert_eq!(gradient, [6.0, 9.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not agree with this description.
pub fn filter_gradient(
    of: &FilterWindow,
    x: View<'_, f32>,
    window: View<'_, f32>,
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    if let Some(kernel) = Kernel::new(of, x, window, out)? {
        kernel.run(out, threads.max(1));
    }
    Ok(())
}

/// A gradient that has something to multiply.
pub(crate) struct Kernel<'a>(pub Operands<'a>);

impl<'a> Kernel<'a> {
    /// Checks the operands. Where there is nothing to multiply, the result is filled with 0.
    pub fn new(of: &FilterWindow, x: View<'a, f32>, window: View<'a, f32>, out: &mut [f32]) -> Result<Option<Self>> {
        let operands = of.operands(x, window)?;
        operands.check_out(out, operands.features.saturating_mul(operands.outputs))?;
        if out.is_empty() || window.data().is_empty() {
            out.fill(0.0);
            return Ok(None);
        }
        Ok(Some(Kernel(operands)))
    }

    pub fn run(&self, out: &mut [f32], threads: usize) {
        let patches = self.0.window.len() / self.0.outputs;
        let positions: usize = self.0.of.positions.iter().product();
        // The number of parts follows from the shapes only, so that the bits do not depend on the number of threads. How
        // positions are divided changes no sum.
        let count = if out.len() < MIN_UNDIVIDED_ELEMENTS { PARTS.min(patches.div_ceil(MIN_PATCHES)) } else { 1 };
        let block = patches.div_ceil(count).next_multiple_of(MIN_PATCHES);
        let many = (COLUMNS / self.0.features).max(1);
        let few = MIN_COLUMNS.div_ceil(self.0.features);
        let step = if threads == 1 { many } else { positions.div_ceil(4 * threads).clamp(few.min(many), many) };
        let mut parts = Scratch::new((count - 1) * out.len());
        // The first part is computed in the result itself, and the others are added to it in order.
        let outs = std::iter::once(&mut *out).chain(parts.chunks_mut(positions * self.0.features * self.0.outputs));
        let mut tasks = Vec::new();
        for (part, out) in outs.enumerate() {
            let patches = (part * block).min(patches)..((part + 1) * block).min(patches);
            for (i, out) in out.chunks_mut(step * self.0.features * self.0.outputs).enumerate() {
                let positions = i * step..((i + 1) * step).min(positions);
                tasks.push(Task { patches: patches.clone(), positions, out });
            }
        }
        let scratch_len = MIN_PATCHES.min(patches) * step.min(positions) * self.0.features;
        run_tasks(tasks, threads, || Scratch::new(scratch_len), |scratch, task| self.add_up(scratch, task));
        for part in parts.chunks(out.len()) {
            out.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Computes a task, some patches at a time.
    fn add_up(&self, room: &mut [f32], task: Task<'_>) {
        let columns = task.positions.len() * self.0.features;
        let Ok(mut out) = ArrayViewMut2::from_shape((columns, self.0.outputs), task.out) else { return };
        if task.patches.is_empty() {
            out.fill(0.0);
        }
        for start in task.patches.clone().step_by(MIN_PATCHES) {
            let patches = start..(start + MIN_PATCHES).min(task.patches.end);
            let room = &mut room[..patches.len() * columns];
            self.0.patches().build(&patches, &task.positions, room);
            let window = &self.0.window[patches.start * self.0.outputs..patches.end * self.0.outputs];
            let a = ArrayView2::from_shape((patches.len(), columns), &*room);
            let b = ArrayView2::from_shape((patches.len(), self.0.outputs), window);
            let (Ok(a), Ok(b)) = (a, b) else { return };
            let before = if start == task.patches.start { Before::Ignored } else { Before::Added };
            product(&a.t(), &b, before, &mut out);
        }
    }
}
