//! Gradients of filters as sums of products of planes.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::planes::{Planes, lines_per_block};
use super::{FeatureGroups, Image, divided_dim, part_of};
use crate::Result;
use crate::few_rows::sum_of_products;
use crate::filter_window::Window;
use crate::scratch::Scratch;
use crate::tasks::run_tasks;

/// The maximum number of parts into which images are divided. The shapes determine the number, so that the bits do not depend on the
/// number of threads.
const MAX_PARTS: usize = 8;

/// The numbers of features and of outputs whose products are added together.
const FEATURES: usize = 2;
const OUTPUTS: usize = 4;

/// A gradient that has something to multiply.
pub(super) struct Kernel<'a> {
    of: Window,
    groups: usize,
    image: Image<&'a [f32]>,
    cotangent: Image<&'a [f32]>,
    /// The dimension along which the cotangent is divided, and the number of its elements in a block along it.
    divided: usize,
    lines: usize,
}

impl<'a> Kernel<'a> {
    pub fn new(
        of: &FeatureGroups,
        window: Window,
        image: Image<&'a [f32]>,
        cotangent: Image<&'a [f32]>,
    ) -> Result<Self> {
        Planes::new(window)?;
        let divided = divided_dim(cotangent.size);
        let lines = lines_per_block(&window, divided, (image.channels + cotangent.channels) / of.groups);
        Ok(Kernel { of: window, groups: of.groups, image, cotangent, divided, lines })
    }

    /// The features and the outputs of a group.
    fn sizes(&self) -> [usize; 2] {
        [self.image.channels / self.groups, self.cotangent.channels / self.groups]
    }

    pub fn run(&self, out: &mut [f32], threads: usize) {
        let [_, outputs] = self.sizes();
        let count = self.image.count;
        let images_per_part = count.div_ceil(MAX_PARTS);
        let part_len = out.len();
        let size = part_len / self.groups;
        let mut parts = Scratch::new(count.div_ceil(images_per_part) * part_len);
        parts.fill(0.0);
        let mut tasks = Vec::with_capacity(parts.len() / size);
        for (i, sums) in parts.chunks_mut(size).enumerate() {
            let first = i / self.groups * images_per_part;
            tasks.push((first..(first + images_per_part).min(count), i % self.groups, sums));
        }
        run_tasks(
            tasks,
            threads,
            || [Vec::new(), Vec::new()],
            |room, (images, group, sums)| {
                for image in images {
                    self.add_image(image, group, room, sums);
                }
            },
        );
        // The outputs of a group are a part of each row of the result.
        for (row, out) in out.chunks_mut(self.groups * outputs).enumerate() {
            for (group, out) in out.chunks_mut(outputs).enumerate() {
                out.fill(0.0);
                for part in parts.chunks(part_len) {
                    let sums = &part[group * size + row * outputs..][..outputs];
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out += *sum);
                }
            }
        }
    }

    /// Adds the products of an image, some lines at a time.
    fn add_image(&self, image: usize, group: usize, [x, cotangent]: &mut [Vec<f32>; 2], sums: &mut [f32]) {
        let [depth, outputs] = self.sizes();
        let end = self.cotangent.size[self.divided];
        for start in (0..end).step_by(self.lines) {
            let lines = start..(start + self.lines).min(end);
            let Ok(planes) = Planes::new(part_of(&self.of, self.divided, &lines)) else { return };
            let len = planes.len().next_multiple_of(64);
            x.resize(depth * planes.stride, 0.0);
            planes.read(&self.image, image, &(group * depth..(group + 1) * depth), x);
            // The gaps between lines are zeros, so that their products add nothing.
            cotangent.clear();
            cotangent.resize(outputs * len, 0.0);
            let from = self.cotangent.of(image);
            for (mut place, at) in planes.lines() {
                place[self.divided] += start;
                for output in 0..outputs {
                    let to = &mut cotangent[output * len + at..][..planes.width()];
                    let from = &from[self.cotangent.place(group * outputs + output, place)..];
                    to.iter_mut().zip(from.iter().step_by(self.cotangent.step())).for_each(|(to, from)| *to = *from);
                }
            }
            Arch::new().dispatch(Products { planes: &planes, x, depth, cotangent, len, sums });
        }
    }
}

/// Sums of products of the planes of a group: `sums` is `[positions, depth, outputs]`.
struct Products<'a> {
    planes: &'a Planes,
    x: &'a [f32],
    depth: usize,
    cotangent: &'a [f32],
    len: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // In gaps a number that is not finite would be multiplied with zero, although no element of the cotangent meets it.
        if self.x.iter().any(|x| !x.is_finite()) {
            return self.add_lines(simd);
        }
        let outputs = self.cotangent.len() / self.len;
        for tap in 0..self.planes.offsets.len() {
            for feature in (0..self.depth).step_by(FEATURES) {
                for output in (0..outputs).step_by(OUTPUTS) {
                    match (self.depth - feature, outputs - output) {
                        (1, 1) => self.add::<S, 1, 1>(simd, tap, feature, output),
                        (1, 2) => self.add::<S, 1, 2>(simd, tap, feature, output),
                        (1, 3) => self.add::<S, 1, 3>(simd, tap, feature, output),
                        (1, _) => self.add::<S, 1, OUTPUTS>(simd, tap, feature, output),
                        (_, 1) => self.add::<S, FEATURES, 1>(simd, tap, feature, output),
                        (_, 2) => self.add::<S, FEATURES, 2>(simd, tap, feature, output),
                        (_, 3) => self.add::<S, FEATURES, 3>(simd, tap, feature, output),
                        _ => self.add::<S, FEATURES, OUTPUTS>(simd, tap, feature, output),
                    }
                }
            }
        }
    }
}

impl Products<'_> {
    /// Adds the products of some features and some outputs for one element of the filter.
    #[inline(always)]
    fn add<S: Simd, const F: usize, const O: usize>(&mut self, simd: S, tap: usize, feature: usize, output: usize) {
        // Two sums of each product, so that few of them do not wait for their previous additions.
        let mut sums = [[[simd.splat_f32s(0.0); 2]; O]; F];
        let x: [&[S::f32s]; F] =
            std::array::from_fn(|f| S::as_simd_f32s(self.features(tap, feature + f, 0..self.len)).0);
        let cotangent: [&[S::f32s]; O] =
            std::array::from_fn(|o| S::as_simd_f32s(&self.cotangent[(output + o) * self.len..][..self.len]).0);
        if F * O >= 8 {
            for i in 0..self.len / S::F32_LANES {
                for f in 0..F {
                    for o in 0..O {
                        sums[f][o][0] = simd.mul_add_e_f32s(x[f][i], cotangent[o][i], sums[f][o][0]);
                    }
                }
            }
        } else {
            for i in (0..self.len / S::F32_LANES).step_by(2) {
                for f in 0..F {
                    for o in 0..O {
                        sums[f][o][0] = simd.mul_add_e_f32s(x[f][i], cotangent[o][i], sums[f][o][0]);
                        sums[f][o][1] = simd.mul_add_e_f32s(x[f][i + 1], cotangent[o][i + 1], sums[f][o][1]);
                    }
                }
            }
        }
        let outputs = self.cotangent.len() / self.len;
        for (f, sums) in sums.iter().enumerate() {
            let first = (tap * self.depth + feature + f) * outputs + output;
            for ([a, b], total) in sums.iter().zip(&mut self.sums[first..first + O]) {
                *total += simd.reduce_sum_f32s(simd.add_f32s(*a, *b));
            }
        }
    }

    /// Adds the products line by line.
    #[inline(always)]
    fn add_lines<S: Simd>(&mut self, simd: S) {
        let (width, outputs) = (self.planes.width(), self.cotangent.len() / self.len);
        for (_, at) in self.planes.lines() {
            for (element, sum) in self.sums.iter_mut().enumerate() {
                let (output, feature, tap) =
                    (element % outputs, element / outputs % self.depth, element / outputs / self.depth);
                let start = feature * self.planes.stride + self.planes.offsets[tap] + at;
                let cotangent = &self.cotangent[output * self.len + at..][..width];
                *sum += sum_of_products(simd, &self.x[start..start + width], cotangent);
            }
        }
    }

    fn features(&self, tap: usize, feature: usize, range: Range<usize>) -> &[f32] {
        &self.x[feature * self.planes.stride + self.planes.offsets[tap]..][range]
    }
}
