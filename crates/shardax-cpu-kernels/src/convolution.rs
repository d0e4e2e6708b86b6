//! Convolutions as matmuls: patches of the image times the filter.
//!
//! XLA (xla-cpu-pjrt 0.0.1) contracts patches too. It takes longer with AVX-512, and where much of an image is padding.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayViewMut2, Axis, Slice};

use crate::patches::{COLUMNS, Patches, ROWS};
use crate::product::{Before, product};
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{FilterWindow, Result, SPATIAL, View};

/// Computes a convolution.
///
/// The image `x` is `[images, depth, height, width, features]`, the filter is `[depth, height, width, features, outputs]`, and
/// the result is `[images, depth, height, width, outputs]`, of which `size` are the spatial dimensions.
///
/// `of` is the window of the filter's gradient: its `dilation` is the stride of the convolution, its `stride` the dilation of
/// the filter, and its `positions` are the filter's spatial dimensions. Padding is multiplied with the filter: an infinite
/// one gives NaN there. Sums over no elements are 0.
///
/// Each thread allocates 256 rows of at most 1,024 columns, or of one element's features.
///
/// ```
/// use shardax_cpu_kernels::{FilterWindow, View, convolution};
///
/// // Sums of two neighbours on a line.
/// let of = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
/// let x = View::new(&[1, 1, 1, 4, 1], &[1.0, 2.0, 3.0, 4.0])?;
/// let filter = View::new(&[1, 1, 2, 1, 1], &[1.0, 1.0])?;
/// let mut sums = [0.0; 3];
/// convolution(&of, x, filter, [1, 1, 3], &mut sums, 1)?;
/// assert_eq!(sums, [3.0, 5.0, 7.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// The shapes do not fit.
pub fn convolution(
    of: &FilterWindow,
    x: View<'_, f32>,
    filter: View<'_, f32>,
    size: [usize; SPATIAL],
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    let [a, b, c, features, outputs] = filter.dims("the filter")?;
    for (found, expected) in [a, b, c].into_iter().zip(of.positions) {
        check("the positions of the filter", found, expected)?;
    }
    let images = x.shape().first().copied().unwrap_or_default();
    let patches = of.patches(x, images, size)?;
    check("the features of the filter", features, patches.features)?;
    let rows = size.iter().fold(images, |n, &d| n.saturating_mul(d));
    check("the elements of the result", out.len(), rows.saturating_mul(outputs))?;
    if filter.data().is_empty() {
        out.fill(0.0);
    } else if !out.is_empty() {
        let filter = ArrayView2::from_shape((a * b * c * features, outputs), filter.data())?;
        Kernel { patches, filter }.run(out, threads.max(1));
    }
    Ok(())
}

struct Kernel<'a> {
    patches: Patches<'a>,
    /// `[positions and features, outputs]`.
    filter: ArrayView2<'a, f32>,
}

impl Kernel<'_> {
    fn run(&self, out: &mut [f32], threads: usize) {
        let (columns, outputs) = self.filter.dim();
        let rows = out.len() / outputs;
        let room = || vec![0.0; ROWS.min(rows) * columns.min(COLUMNS.max(self.patches.features))];
        let tasks = out.chunks_mut(ROWS * outputs).enumerate().collect();
        run_tasks(tasks, threads, room, |room, (block, out)| {
            let start = block * ROWS;
            self.add_up(room, start..start + out.len() / outputs, out);
        });
    }

    /// Computes some rows of the result, some positions of the filter at a time.
    fn add_up(&self, room: &mut [f32], rows: Range<usize>, out: &mut [f32]) {
        let (columns, outputs) = self.filter.dim();
        let features = self.patches.features;
        let (positions, each) = (columns / features, (COLUMNS / features).max(1));
        let Ok(mut out) = ArrayViewMut2::from_shape((rows.len(), outputs), out) else { return };
        for first in (0..positions).step_by(each) {
            let positions = first..(first + each).min(positions);
            let columns = positions.len() * features;
            let room = &mut room[..rows.len() * columns];
            self.patches.build(&rows, &positions, room);
            let Ok(a) = ArrayView2::from_shape((rows.len(), columns), &*room) else { return };
            let of_positions = Slice::from(positions.start * features..positions.end * features);
            let before = if first == 0 { Before::Ignored } else { Before::Added };
            product(&a, &self.filter.slice_axis(Axis(0), of_positions), before, &mut out);
        }
    }
}
