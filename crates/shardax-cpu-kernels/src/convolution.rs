//! Convolutions as matmuls: patches of the image times the filter.
//!
//! XLA (xla-cpu-pjrt 0.0.1) also multiplies patches, but it takes longer with AVX-512, and if much of an image is
//! padding.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayViewMut2, Axis, Slice, s};

use crate::gaps;
use crate::patches::{COLUMNS, PATCHES_PER_MATMUL, Patches};
use crate::phases::Phase;
use crate::product::{Before, product};
use crate::scratch::Scratch;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{FilterWindow, Result, SPATIAL, ShapeError, View};

/// The minimum number of rows in a task. Each task packs the filter, which would otherwise take most of the time.
const MIN_ROWS: usize = 32;

/// The minimum number of outputs in a task that computes all rows.
const MIN_OUTPUTS: usize = 64;

/// Computes a convolution.
///
/// The image `x` is `[images, depth, height, width, features]`, the filter is `[depth, height, width, features, outputs]`, and
/// the result is `[images, depth, height, width, outputs]`, and `size` is its spatial dimensions.
///
/// `of` is the window of the filter's gradient: its `dilation` is the stride of the convolution, its `stride` is the
/// dilation of the filter, and its `positions` are the filter's spatial dimensions. `base` is the distance between the
/// elements of the image, which is not 1 in gradients of strided convolutions. The gaps between elements are left out
/// of sums, because they are zeros, unless the filter has infinities or NaN. Padding is multiplied with the filter. An
/// infinite filter element therefore results in NaN in gaps and in padding, as in XLA. Sums over no elements are 0.
///
/// Each thread needs memory for 256 rows of at most 1,024 columns (or of the features of one element). With a base dilation it
/// also needs 256 rows of the result, and the call allocates a copy of the filter, or an image with zeros in its gaps if the
/// filter is not finite.
///
/// ```
/// use shardax_cpu_kernels::{FilterWindow, View, convolution};
///
/// // Sums of two neighbours on a line.
/// let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
/// let x = View::new(&[1, 1, 1, 4, 1], &[1.0, 2.0, 3.0, 4.0])?;
/// let filter = View::new(&[1, 1, 2, 1, 1], &[1.0, 1.0])?;
/// let mut sums = [0.0; 3];
/// convolution(&window, [1; 3], x, filter, [1, 1, 3], &mut sums, 1)?;
/// assert_eq!(sums, [3.0, 5.0, 7.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not agree with this description, or a base dilation is 0.
pub fn convolution(
    of: &FilterWindow,
    base: [usize; SPATIAL],
    x: View<'_, f32>,
    filter: View<'_, f32>,
    size: [usize; SPATIAL],
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    if gaps::are_needed(base, filter.data()) {
        let (shape, spread) = gaps::with_gaps(x, 1, base)?;
        return convolution(of, [1; SPATIAL], View::new(&shape, &spread)?, filter, size, out, threads);
    }
    if let Some(kernel) = Kernel::new(of, base, x, filter, size, out)? {
        kernel.run(out, threads.max(1));
    }
    Ok(())
}

/// A convolution that has something to multiply.
pub(crate) struct Kernel<'a> {
    phases: Vec<Phase<'a>>,
    /// `true` if the image has no gaps: there is one phase, the convolution itself.
    is_whole: bool,
    features: usize,
    pub outputs: usize,
    /// The number of outputs in a line.
    width: usize,
}

/// The memory of a thread: patches, and outputs of a phase.
struct Room {
    patches: Scratch,
    outputs: Scratch,
}

impl<'a> Kernel<'a> {
    /// Checks the operands. Where there is nothing to multiply, the result is filled with 0.
    pub fn new(
        of: &FilterWindow,
        base: [usize; SPATIAL],
        x: View<'a, f32>,
        filter: View<'a, f32>,
        size: [usize; SPATIAL],
        out: &mut [f32],
    ) -> Result<Option<Self>> {
        let [a, b, c, features, outputs] = filter.dims("the filter")?;
        for (found, expected) in [a, b, c].into_iter().zip(of.positions) {
            check("the positions of the filter", found, expected)?;
        }
        let images = x.shape().first().copied().unwrap_or_default();
        let patches = of.patches(x, images, size)?;
        check("the features of the filter", features, patches.features)?;
        let rows = size.iter().fold(images, |n, &d| n.saturating_mul(d));
        check("the elements of the result", out.len(), rows.saturating_mul(outputs))?;
        // Phases compute with signed indices, and divide by the base dilation.
        if let Some(d) = base.iter().position(|n| i64::try_from(*n).is_err() || *n == 0) {
            return Err(ShapeError(format!("the base dilation along dimension {d} is {}", base[d])));
        }
        if out.is_empty() || filter.data().is_empty() {
            out.fill(0.0);
            return Ok(None);
        }
        let phases = Phase::all(&patches, base, filter.data());
        Ok(Some(Kernel { phases, is_whole: base == [1; SPATIAL], features, outputs, width: size[2] }))
    }

    /// The patches that the outputs meet, if the image has no gaps.
    pub fn patches(&self) -> Option<&Patches<'a>> {
        self.phases.first().filter(|_| self.is_whole).map(|phase| &phase.patches)
    }

    /// Computes some rows of the result, of an image without gaps.
    pub fn compute_rows(&self, rows: Range<usize>, out: &mut [f32]) {
        let [phase] = &self.phases[..] else { return };
        let mut room = Scratch::new(PATCHES_PER_MATMUL.min(rows.len()) * self.columns());
        for (start, out) in rows.step_by(PATCHES_PER_MATMUL).zip(out.chunks_mut(PATCHES_PER_MATMUL * self.outputs)) {
            self.add_up_all(phase, &mut room, start..start + out.len() / self.outputs, out);
        }
    }

    /// The number of columns of patches built together.
    fn columns(&self) -> usize {
        let columns = self.phases.iter().map(|phase| phase.filter.len() / self.outputs).max().unwrap_or_default();
        columns.min(COLUMNS.max(self.features))
    }

    pub fn run(&self, out: &mut [f32], threads: usize) {
        let outputs = self.outputs;
        let columns = self.columns();
        let rows = PATCHES_PER_MATMUL.min(out.len() / outputs);
        if let ([phase], true) = (&self.phases[..], self.is_whole && threads > 1)
            && out.len() <= PATCHES_PER_MATMUL * outputs
            && outputs >= 2 * MIN_OUTPUTS.max(rows)
        {
            return self.run_by_outputs(phase, out, threads);
        }
        // Each thread gets at least one part. With several phases a part consists of entire lines, enough of them that each
        // phase has about as many rows as are multiplied together. How rows are divided changes no sum.
        let most = (out.len() / outputs).div_ceil(threads).max(MIN_ROWS);
        let lines = ((PATCHES_PER_MATMUL * self.phases.len()).min(most) / self.width).max(1);
        let block = if self.is_whole { PATCHES_PER_MATMUL.min(most) } else { lines * self.width };
        let tasks = out.chunks_mut(block * outputs).enumerate().collect();
        run_tasks(
            tasks,
            threads,
            || Room {
                patches: Scratch::new(rows * columns),
                outputs: Scratch::new(if self.is_whole { 0 } else { rows * outputs }),
            },
            |room, (task, out)| {
                let start = task * block;
                let rows = start..start + out.len() / outputs;
                match &self.phases[..] {
                    [phase] if self.is_whole => self.add_up_all(phase, &mut room.patches, rows, out),
                    phases => phases.iter().for_each(|phase| self.compute(phase, room, &rows, out)),
                }
            },
        );
    }

    /// Computes few rows of an image without gaps. Each task computes a part of the outputs, because building the patches again takes less
    /// time than packing the filter again. How outputs are divided changes no sum.
    fn run_by_outputs(&self, phase: &Phase<'_>, out: &mut [f32], threads: usize) {
        let rows = out.len() / self.outputs;
        let width = self.outputs.div_ceil(threads).max(MIN_OUTPUTS);
        let Ok(mut unassigned) = ArrayViewMut2::from_shape((rows, self.outputs), out) else { return };
        let mut tasks = Vec::new();
        for first in (0..self.outputs).step_by(width) {
            let (part, following) = unassigned.split_at(Axis(1), width.min(self.outputs - first));
            unassigned = following;
            tasks.push((first, part));
        }
        run_tasks(
            tasks,
            threads,
            || Scratch::new(rows * self.columns()),
            |room, (first, mut part)| self.add_up(phase, room, 0..rows, first, &mut part),
        );
    }

    /// Computes the outputs of a phase among these rows of the result.
    fn compute(&self, phase: &Phase<'_>, room: &mut Room, rows: &Range<usize>, out: &mut [f32]) {
        let patches = phase.patches_in(&(rows.start / self.width..rows.end / self.width));
        for start in patches.clone().step_by(PATCHES_PER_MATMUL) {
            let patches = start..(start + PATCHES_PER_MATMUL).min(patches.end);
            let computed = &mut room.outputs[..patches.len() * self.outputs];
            if phase.filter.is_empty() {
                computed.fill(0.0);
            } else {
                self.add_up_all(phase, &mut room.patches, patches.clone(), computed);
            }
            for (patch, computed) in patches.zip(computed.chunks_exact(self.outputs)) {
                let start = (phase.place(patch) - rows.start) * self.outputs;
                out[start..start + self.outputs].copy_from_slice(computed);
            }
        }
    }

    /// Computes all outputs of some rows of a phase.
    fn add_up_all(&self, phase: &Phase<'_>, room: &mut [f32], rows: Range<usize>, out: &mut [f32]) {
        let Ok(mut out) = ArrayViewMut2::from_shape((rows.len(), self.outputs), out) else { return };
        self.add_up(phase, room, rows, 0, &mut out);
    }

    /// Computes some rows of a phase, and the outputs from `first_output` on, some positions of the filter at a time.
    fn add_up(
        &self,
        phase: &Phase<'_>,
        room: &mut [f32],
        rows: Range<usize>,
        first_output: usize,
        out: &mut ArrayViewMut2<'_, f32>,
    ) {
        let (features, outputs) = (self.features, self.outputs);
        let columns = phase.filter.len() / outputs;
        let (positions, each) = (columns / features, (COLUMNS / features).max(1));
        let Ok(filter) = ArrayView2::from_shape((columns, outputs), &phase.filter) else { return };
        let filter = filter.slice_move(s![.., first_output..first_output + out.ncols()]);
        for first in (0..positions).step_by(each) {
            let positions = first..(first + each).min(positions);
            let columns = positions.len() * features;
            let room = &mut room[..rows.len() * columns];
            phase.patches.build(&rows, &positions, room);
            let Ok(a) = ArrayView2::from_shape((rows.len(), columns), &*room) else { return };
            let of_positions = Slice::from(positions.start * features..positions.end * features);
            let before = if first == 0 { Before::Ignored } else { Before::Added };
            product(&a, &filter.slice_axis(Axis(0), of_positions), before, out);
        }
    }
}
