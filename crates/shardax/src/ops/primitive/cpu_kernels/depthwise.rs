//! Gradients of depthwise convolutions with respect to the filter: sums of products of the image and the cotangent, for
//! each feature and each element of the filter.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes them element by element, which takes fourteen times as long.

use std::ops::Range;

use shardax_pjrt::ffi::CallFrame;

use super::filter_window::Window;
use super::{number, numbers, numbers_mut, run_tasks};

pub(super) const TARGET: &str = "shardax_depthwise_filter_gradient";

/// The maximum number of parts: each adds up some lines of the cotangent.
const PARTS: usize = 16;

/// The number of features processed together, for vectorization.
const TOGETHER: usize = 16;

/// Handles a call: the operand and the window are `[images, spatial.., features]`, the result `[positions.., 1,
/// features]`.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?.max(1);
    let of = Window::read(frame)?;
    let (args, results) = frame.split();
    let ([x, window], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    let features = x.dims.last().map_or(0, |&n| n as usize);
    let kernel = Kernel { of, x: numbers(x)?, window: numbers(window)?, features };
    kernel.run(numbers_mut(out)?, threads);
    Ok(())
}

struct Kernel<'a> {
    of: Window,
    x: &'a [f32],
    window: &'a [f32],
    features: usize,
}

impl Kernel<'_> {
    fn run(&self, out: &mut [f32], threads: usize) {
        let lines = self.window.len() / (self.of.window[2] * self.features);
        // The parts follow from the shapes, for equal bits whatever the number of threads.
        let block = lines.div_ceil(PARTS);
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
        let (of, features) = (&self.of, self.features);
        // Padding is multiplied too: an infinite cotangent there gives NaN.
        let padding = vec![0.0; of.operand[2] * features];
        for line in lines {
            let (image, element) = of.line(line);
            let length = of.window[2] * features;
            let window = &self.window[line * length..(line + 1) * length];
            let [depths, rows, _] = of.positions;
            for (depth, row) in (0..depths).flat_map(|depth| (0..rows).map(move |row| (depth, row))) {
                let met = of.meets(0, element[0], depth).zip(of.meets(1, element[1], row));
                let x = met.map_or(&padding[..], |(d, h)| {
                    let start = ((image * of.operand[0] + d) * of.operand[1] + h) * of.operand[2] * features;
                    &self.x[start..start + of.operand[2] * features]
                });
                for position in 0..of.positions[2] {
                    let at = ((depth * rows + row) * of.positions[2] + position) * features;
                    self.add_line(x, window, position, &mut sums[at..at + features]);
                }
            }
        }
    }

    /// Adds the products of a line of the window at a position.
    fn add_line(&self, x: &[f32], window: &[f32], position: usize, sums: &mut [f32]) {
        let (of, features) = (&self.of, self.features);
        let mut first = 0;
        while first < features {
            let count = TOGETHER.min(features - first);
            let mut products = [0.0f32; TOGETHER];
            for element in 0..of.window[2] {
                let w = &window[element * features + first..][..count];
                let x = of.meets(2, element, position).map(|at| &x[at * features + first..][..count]);
                match (x.and_then(|x| x.first_chunk::<TOGETHER>()), w.first_chunk::<TOGETHER>(), x) {
                    (Some(x), Some(w), _) => (0..TOGETHER).for_each(|i| products[i] += x[i] * w[i]),
                    (_, _, Some(x)) => products.iter_mut().zip(x).zip(w).for_each(|((sum, x), w)| *sum += x * w),
                    (_, _, None) => products.iter_mut().zip(w).for_each(|(sum, w)| *sum += 0.0 * w),
                }
            }
            sums[first..first + count].iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
            first += count;
        }
    }
}
