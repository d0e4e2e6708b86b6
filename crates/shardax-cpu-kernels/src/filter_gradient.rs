//! Gradients of convolutions with respect to the filter, as matmuls of patches: for each position of the window (an
//! element of the filter), the operand's elements that the window meets there, times the window (the cotangent).
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes them as convolutions with a window as large as the image, which takes up to five
//! times as long.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayViewMut2};

use crate::filter_window::Operands;
use crate::product::{Before, product};
use crate::tasks::run_tasks;
use crate::{FilterWindow, Result, View};

/// The number of elements of the window, in all images, that are multiplied together: with fewer, the kernel saves nothing.
pub const MIN_PATCHES: usize = 256;

/// The number of columns of patches built together, at most, unless the features alone are more.
const COLUMNS: usize = 1024;

/// The number of columns that are worth a task of their own.
const MIN_COLUMNS: usize = 64;

/// Results of fewer elements are sums of [`PARTS`] parts, each with its own share of the patches, so that threads have
/// something to divide.
const SMALL: usize = 1 << 16;
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
/// the cotangent: an infinite one gives NaN there. Without images the result is 0.
///
/// Each thread allocates [`MIN_PATCHES`] rows of at most 1,024 columns, or of one position's features; for results of fewer
/// than 2¹⁶ elements the call allocates up to seven more.
///
/// # Errors
/// The shapes do not fit.
pub fn filter_gradient(
    of: &FilterWindow,
    x: View<'_, f32>,
    window: View<'_, f32>,
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    let kernel = Kernel(of.operands(x, window)?);
    kernel.0.check_out(out, kernel.0.features.saturating_mul(kernel.0.outputs))?;
    if window.data().is_empty() {
        out.fill(0.0);
    } else if !out.is_empty() {
        kernel.run(out, threads.max(1));
    }
    Ok(())
}

struct Kernel<'a>(Operands<'a>);

impl Kernel<'_> {
    fn run(&self, out: &mut [f32], threads: usize) {
        let patches = self.0.window.len() / self.0.outputs;
        let positions: usize = self.0.of.positions.iter().product();
        // The parts follow from the shapes, for equal bits whatever the number of threads. How positions are divided
        // changes no sum.
        let count = if out.len() < SMALL { PARTS.min(patches.div_ceil(MIN_PATCHES)) } else { 1 };
        let block = patches.div_ceil(count).next_multiple_of(MIN_PATCHES);
        let many = (COLUMNS / self.0.features).max(1);
        let few = MIN_COLUMNS.div_ceil(self.0.features);
        let each = if threads == 1 { many } else { positions.div_ceil(4 * threads).clamp(few.min(many), many) };
        let mut parts = vec![0.0; (count - 1) * out.len()];
        let all = std::iter::once(&mut *out).chain(parts.chunks_mut(positions * self.0.features * self.0.outputs));
        let mut tasks = Vec::new();
        for (part, out) in all.enumerate() {
            let patches = (part * block).min(patches)..((part + 1) * block).min(patches);
            for (i, out) in out.chunks_mut(each * self.0.features * self.0.outputs).enumerate() {
                let positions = i * each..((i + 1) * each).min(positions);
                tasks.push(Task { patches: patches.clone(), positions, out });
            }
        }
        let columns = each.min(positions) * self.0.features;
        let room = || vec![0.0; MIN_PATCHES.min(patches) * columns];
        run_tasks(tasks, threads, room, |room, task| self.add_up(room, task));
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
            self.build(&patches, &task.positions, room);
            let window = &self.0.window[patches.start * self.0.outputs..patches.end * self.0.outputs];
            let a = ArrayView2::from_shape((patches.len(), columns), &*room);
            let b = ArrayView2::from_shape((patches.len(), self.0.outputs), window);
            let (Ok(a), Ok(b)) = (a, b) else { return };
            let before = if start == task.patches.start { Before::Ignored } else { Before::Added };
            product(&a.t(), &b, before, &mut out);
        }
    }

    /// Writes patches as rows: for each position, the features of the operand's element there.
    fn build(&self, patches: &Range<usize>, positions: &Range<usize>, room: &mut [f32]) {
        let (of, features, columns) = (&self.0.of, self.0.features, positions.len() * self.0.features);
        let [_, height, width] = of.positions;
        let length = of.window[2];
        let mut patch = patches.start;
        while patch < patches.end {
            // The patches of one line of the window.
            let first = patch % length;
            let count = (length - first).min(patches.end - patch);
            let (image, element) = of.line(patch / length);
            let rows = &mut room[(patch - patches.start) * columns..][..count * columns];
            let mut position = positions.start;
            while position < positions.end {
                // The positions of one line of the result.
                let at = position % width;
                let together = (width - at).min(positions.end - position);
                let (depth, row) = (position / width / height, position / width % height);
                let line = of.meets(0, element[0], depth).zip(of.meets(1, element[1], row));
                let line = line.map(|(d, h)| {
                    let start = ((image * of.operand[0] + d) * of.operand[1] + h) * of.operand[2] * features;
                    &self.0.x[start..start + of.operand[2] * features]
                });
                let offset = (position - positions.start) * features;
                for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
                    let row = &mut row[offset..offset + together * features];
                    match line {
                        Some(line) => self.copy(line, first + i, at, row),
                        None => row.fill(0.0),
                    }
                }
                position += together;
            }
            patch += count;
        }
    }

    /// Copies what an element of the window meets at consecutive positions of a line, from `first`.
    fn copy(&self, line: &[f32], element: usize, first: usize, row: &mut [f32]) {
        let (of, features) = (&self.0.of, self.0.features);
        let count = row.len() / features;
        let start = (element * of.dilation[2] + first * of.stride[2]) as i64 - of.low[2];
        // Neighbours lie next to each other.
        if let (1, Ok(start)) = (of.stride[2], usize::try_from(start))
            && start + count <= of.operand[2]
        {
            return row.copy_from_slice(&line[start * features..(start + count) * features]);
        }
        for (position, to) in row.chunks_exact_mut(features).enumerate() {
            match of.meets(2, element, first + position) {
                Some(at) => to.copy_from_slice(&line[at * features..(at + 1) * features]),
                None => to.fill(0.0),
            }
        }
    }
}
