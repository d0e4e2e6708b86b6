//! Gradients of depthwise convolutions with respect to the filter: sums of products of the image and the cotangent, for
//! each feature and each element of the filter.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes them element by element, which takes fourteen times as long.

use std::ops::Range;

use crate::filter_window::Operands;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{FilterWindow, Result, View};

/// The maximum number of parts of the work. Each part adds up the products of some lines of the cotangent.
const MAX_PARTS: usize = 16;

/// The number of features processed together, for vectorization.
const CHUNK_FEATURES: usize = 16;

/// Computes the gradient of a depthwise convolution with respect to its filter.
///
/// The operand `x` is `[images, depth, height, width, features]`, and the cotangent, `window`, has the same numbers of
/// images and features. The result is `[positions.., features]`, and 0 if there are no images. Padding is multiplied
/// with the cotangent too, so that an infinite cotangent results in NaN, as in XLA. The call allocates up to 16 times
/// the size of the result, and a line of the operand for each of these parts.
///
/// ```
/// use shardax_cpu_kernels::{FilterWindow, View, depthwise_filter_gradient};
///
/// // Two features on a line of two; the filter has as many elements, so that there is one result for each feature.
/// let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
/// let x = View::new(&[1, 1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0])?;
/// let cotangent = View::new(&[1, 1, 1, 1, 2], &[10.0, 100.0])?;
/// let mut gradient = [0.0; 4];
/// depthwise_filter_gradient(&window, x, cotangent, &mut gradient, 1)?;
/// assert_eq!(gradient, [10.0, 200.0, 30.0, 400.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not agree with this description.
pub fn depthwise_filter_gradient(
    of: &FilterWindow,
    x: View<'_, f32>,
    window: View<'_, f32>,
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    let kernel = Kernel(of.operands(x, window)?);
    check("the features of the window", kernel.0.outputs, kernel.0.features)?;
    kernel.0.check_out(out, kernel.0.features)?;
    if window.data().is_empty() {
        out.fill(0.0);
    } else if !out.is_empty() {
        kernel.run(out, threads);
    }
    Ok(())
}

struct Kernel<'a>(Operands<'a>);

impl Kernel<'_> {
    fn run(&self, out: &mut [f32], threads: usize) {
        let Operands { of, window, features, .. } = self.0;
        let lines = window.len() / (of.window[2] * features);
        // The parts depend on shapes only, so that the result has the same bits for any number of threads.
        let block = lines.div_ceil(MAX_PARTS);
        let mut parts = vec![0.0; lines.div_ceil(block) * out.len()];
        let tasks = parts.chunks_mut(out.len()).enumerate();
        let tasks = tasks.map(|(i, sums)| (i * block..((i + 1) * block).min(lines), sums)).collect();
        run_tasks(tasks, threads, || (), |(), (lines, sums)| self.add_up(lines, sums));
        out.fill(0.0);
        for part in parts.chunks(out.len()) {
            out.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Adds the products of some lines of the window.
    fn add_up(&self, lines: Range<usize>, sums: &mut [f32]) {
        let Operands { of, x, window: all, features, .. } = &self.0;
        let features = *features;
        // Padding is multiplied too, because an infinite cotangent there must result in NaN.
        let padding = vec![0.0; of.operand[2] * features];
        for line in lines {
            let (image, element) = of.line(line);
            let length = of.window[2] * features;
            let window = &all[line * length..(line + 1) * length];
            let [depths, rows, _] = of.positions;
            for (depth, row) in (0..depths).flat_map(|depth| (0..rows).map(move |row| (depth, row))) {
                let met = of.meets(0, element[0], depth).zip(of.meets(1, element[1], row));
                let met = met.map_or(&padding[..], |(d, h)| {
                    let start = ((image * of.operand[0] + d) * of.operand[1] + h) * of.operand[2] * features;
                    &x[start..start + of.operand[2] * features]
                });
                for position in 0..of.positions[2] {
                    let start = ((depth * rows + row) * of.positions[2] + position) * features;
                    self.add_line(met, window, position, &mut sums[start..start + features]);
                }
            }
        }
    }

    /// Adds the products of a line of the window at a position.
    fn add_line(&self, x: &[f32], window: &[f32], position: usize, sums: &mut [f32]) {
        let (of, features) = (&self.0.of, self.0.features);
        for first in (0..features).step_by(CHUNK_FEATURES) {
            let count = CHUNK_FEATURES.min(features - first);
            let mut products = [0.0f32; CHUNK_FEATURES];
            for element in 0..of.window[2] {
                let w = &window[element * features + first..][..count];
                let x = of.meets(2, element, position).map(|at| &x[at * features + first..][..count]);
                match (x.and_then(|x| x.first_chunk::<CHUNK_FEATURES>()), w.first_chunk::<CHUNK_FEATURES>(), x) {
                    (Some(x), Some(w), _) => (0..CHUNK_FEATURES).for_each(|i| products[i] += x[i] * w[i]),
                    (_, _, Some(x)) => products.iter_mut().zip(x).zip(w).for_each(|((sum, x), w)| *sum += x * w),
                    (_, _, None) => products.iter_mut().zip(w).for_each(|(sum, w)| *sum += 0.0 * w),
                }
            }
            sums[first..first + count].iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
        }
    }
}
