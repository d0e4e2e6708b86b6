//! Convolutions of planes.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::planes::{Planes, lines_per_block};
use super::{FeatureGroups, Image, divided_dim, part_of};
use crate::filter_window::Window;
use crate::phases::{Phase, count};
use crate::tasks::run_tasks;
use crate::{Result, SPATIAL};

/// The number of outputs that are computed together: each vector that is loaded is multiplied for all of them.
const OUTPUTS: usize = 4;

/// A convolution that has something to multiply.
pub(super) struct Kernel<'a> {
    groups: usize,
    image: Image<&'a [f32]>,
    /// The result of one image.
    result: Image<()>,
    phases: Vec<PackedPhase>,
    /// The dimension along which the result is divided, and the number of outputs of a block along it.
    divided: usize,
    lines: usize,
}

/// A phase, and its filter in the order in which it is read: for each group, for each block of outputs, all elements.
struct PackedPhase {
    of: Window,
    filter: Vec<f32>,
    steps: [[usize; 2]; SPATIAL],
}

/// The memory of a thread.
struct Room {
    planes: Vec<f32>,
    sums: Vec<f32>,
}

impl<'a> Kernel<'a> {
    pub fn new(of: &FeatureGroups, image: Image<&'a [f32]>, result: Image<()>, phases: Vec<Phase<'_>>) -> Result<Self> {
        let (depth, outputs) = (image.channels / of.groups, result.channels / of.groups);
        let mut packed = Vec::with_capacity(phases.len());
        for phase in phases {
            let filter = pack(&phase.filter, of.groups, outputs);
            packed.push(PackedPhase { of: phase.patches.of, filter, steps: phase.steps() });
        }
        let phases = packed;
        // The planes of an entire image must have sizes that can be counted; then the planes of its parts have such sizes, too.
        for phase in phases.iter().filter(|phase| !phase.filter.is_empty()) {
            Planes::new(phase.of)?;
        }
        let divided = divided_dim(result.size);
        let lines =
            phases.iter().map(|phase| lines_per_block(&phase.of, divided, depth) * phase.steps[divided][1]).min();
        Ok(Kernel { groups: of.groups, image, result, phases, divided, lines: lines.unwrap_or(1) })
    }

    pub fn run(&self, out: &mut [f32], threads: usize) {
        let Image { channels, size, is_channels_first, .. } = self.result;
        let positions = self.result.positions();
        let lines: Vec<Range<usize>> = (0..size[self.divided])
            .step_by(self.lines)
            .map(|start| start..(start + self.lines).min(size[self.divided]))
            .collect();
        let line = positions / size[self.divided];
        let mut tasks = Vec::new();
        if is_channels_first {
            // A task is a group of an image, whose results lie next to each other.
            let group_channels = channels / self.groups;
            for (i, out) in out.chunks_mut(group_channels * positions).enumerate() {
                let result = Image { channels: group_channels, ..self.result };
                tasks.push((i / self.groups, i % self.groups..i % self.groups + 1, &lines[..], 0, result, out));
            }
        } else {
            // A task is some lines of an image, with the results of all groups.
            for (image, mut out) in out.chunks_mut(channels * positions).enumerate() {
                for part_lines in &lines {
                    let (part, following) = out.split_at_mut(part_lines.len() * line * channels);
                    let mut result = self.result;
                    result.size[self.divided] = part_lines.len();
                    let part_lines = std::slice::from_ref(part_lines);
                    tasks.push((image, 0..self.groups, part_lines, part_lines[0].start, result, part));
                    out = following;
                }
            }
        }
        run_tasks(
            tasks,
            threads,
            || Room { planes: Vec::new(), sums: Vec::new() },
            |room, (image, groups, lines, start, result, out)| {
                for lines in lines {
                    for phase in &self.phases {
                        self.compute(phase, room, image, &groups, lines, start, &result, out);
                    }
                }
            },
        );
    }

    /// Computes the outputs of a phase along these lines. `out` is laid out as `result`, and begins with line `start`.
    #[expect(clippy::too_many_arguments, reason = "a task")]
    fn compute(
        &self,
        phase: &PackedPhase,
        room: &mut Room,
        image: usize,
        groups: &Range<usize>,
        lines: &Range<usize>,
        start: usize,
        result: &Image<()>,
        out: &mut [f32],
    ) {
        // The phase's outputs among these lines.
        let [first, step] = phase.steps[self.divided];
        let lines = count(first, step, lines.start)..count(first, step, lines.end);
        if lines.is_empty() {
            return;
        }
        let Ok(planes) = Planes::new(part_of(&phase.of, self.divided, &lines)) else { return };
        let (depth, outputs) = (self.image.channels / self.groups, self.result.channels / self.groups);
        let len = planes.len();
        let sums_stride = len + MAX_WIDTH;
        room.planes.resize(depth * planes.stride, 0.0);
        room.sums.resize(outputs * sums_stride, 0.0);
        for group in groups.clone() {
            if phase.filter.is_empty() {
                room.sums.fill(0.0);
            } else {
                planes.read(&self.image, image, &(group * depth..(group + 1) * depth), &mut room.planes);
                let size = phase.filter.len() / self.groups;
                Arch::new().dispatch(Sums {
                    planes: &planes,
                    x: &room.planes,
                    depth,
                    filter: &phase.filter[group * size..(group + 1) * size],
                    len,
                    out: &mut room.sums,
                    stride: sums_stride,
                });
            }
            // The channels of the task's results begin with its first group.
            let first_channel = (group - groups.start) * outputs;
            for (place, at) in planes.lines() {
                // The place of the line's first output in the result.
                let mut place = std::array::from_fn(|d| phase.steps[d][0] + place[d] * phase.steps[d][1]);
                place[self.divided] += lines.start * step;
                place[self.divided] -= start;
                for output in 0..outputs {
                    let sums = &room.sums[output * sums_stride + at..][..planes.width()];
                    let out = &mut out[result.place(first_channel + output, place)..];
                    match result.step() * phase.steps[2][1] {
                        1 => out[..sums.len()].copy_from_slice(sums),
                        step => out.iter_mut().step_by(step).zip(sums).for_each(|(out, sum)| *out = *sum),
                    }
                }
            }
        }
    }
}

/// Orders a filter `[positions, features, outputs]`, which may be empty.
fn pack(filter: &[f32], groups: usize, outputs: usize) -> Vec<f32> {
    let mut packed = Vec::with_capacity(filter.len());
    for group in 0..groups {
        for start in (0..outputs).step_by(OUTPUTS) {
            let block = group * outputs + start..group * outputs + (start + OUTPUTS).min(outputs);
            filter.chunks_exact(groups * outputs).for_each(|row| packed.extend_from_slice(&row[block.clone()]));
        }
    }
    packed
}

/// The largest number of sums of an output that are computed together: eight vectors of AVX-512.
const MAX_WIDTH: usize = 128;

/// The sums of a group.
struct Sums<'a> {
    planes: &'a Planes,
    x: &'a [f32],
    depth: usize,
    filter: &'a [f32],
    len: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let elements = self.planes.offsets.len() * self.depth;
        let outputs = self.filter.len() / elements;
        for start in (0..outputs).step_by(OUTPUTS) {
            // Enough sums that none waits for its previous addition, and no more than there are registers.
            match outputs - start {
                1 => self.add_up::<S, 1, 8>(simd, start, elements),
                2 => self.add_up::<S, 2, 4>(simd, start, elements),
                3 => self.add_up::<S, 3, 4>(simd, start, elements),
                _ => self.add_up::<S, OUTPUTS, 3>(simd, start, elements),
            }
        }
    }
}

impl Sums<'_> {
    /// Computes some outputs, some vectors of each at a time.
    #[inline(always)]
    fn add_up<S: Simd, const N: usize, const VECTORS: usize>(&mut self, simd: S, first: usize, elements: usize) {
        let filter = &self.filter[first * elements..][..N * elements];
        let width = VECTORS * S::F32_LANES;
        for start in (0..self.len).step_by(width) {
            let mut sums = [[simd.splat_f32s(0.0); VECTORS]; N];
            let mut weights = filter.as_chunks::<N>().0.iter();
            for offset in &self.planes.offsets {
                let features = self.x[offset + start..].chunks(self.planes.stride).take(self.depth);
                for (x, weights) in features.zip(&mut weights) {
                    let Some(x) = S::as_simd_f32s(&x[..width]).0.first_chunk::<VECTORS>() else { return };
                    for (sums, weight) in sums.iter_mut().zip(weights) {
                        let weight = simd.splat_f32s(*weight);
                        for (sum, x) in sums.iter_mut().zip(x) {
                            *sum = simd.mul_add_e_f32s(weight, *x, *sum);
                        }
                    }
                }
            }
            for (output, sums) in sums.iter().enumerate() {
                let out = &mut self.out[(first + output) * self.stride + start..][..width];
                S::as_mut_simd_f32s(out).0.copy_from_slice(sums);
            }
        }
    }
}
