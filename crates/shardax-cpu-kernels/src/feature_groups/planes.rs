//! Planes: the elements of one feature that a window meets, in the order of the outputs.
//!
//! The lines of the outputs follow each other in one long line, with gaps between them as long as the filter reaches.
//! An element of the filter meets the same long line, shifted by a number of elements that is the same for all outputs.
//! Therefore vectors can continue from one line of the outputs to the next, and only the sums in gaps are wasted. With
//! a stride, the elements are divided over several planes, because the elements that a vector loads must be next to
//! each other.

use std::ops::Range;

use super::Image;
use crate::filter_window::Window;
use crate::{Result, SPATIAL, ShapeError};

/// The number of unused elements after the planes of a feature, so that a vector can begin at any output.
const SLACK: usize = 128;

/// The number of elements of planes that are computed together. They stay in the second cache.
pub(super) const ELEMENTS: usize = 1 << 15;

/// The layout of planes.
pub(super) struct Planes {
    of: Window,
    /// The remainders of the filter's elements by the stride, along each dimension.
    remainders: [Vec<usize>; SPATIAL],
    /// The dimensions of a plane: the outputs, and as many more as the filter reaches.
    lengths: [usize; SPATIAL],
    /// The place of each element of the filter in the planes of a feature.
    pub offsets: Vec<usize>,
    /// The distance between features.
    pub stride: usize,
}

impl Planes {
    /// # Errors
    /// Returns an error if the number of elements overflows.
    pub fn new(of: Window) -> Result<Self> {
        let mut remainders: [Vec<usize>; SPATIAL] = Default::default();
        for (d, remainders) in remainders.iter_mut().enumerate() {
            let mut all: Vec<usize> =
                (0..of.positions[d].min(of.dilation[d])).map(|k| k * of.stride[d] % of.dilation[d]).collect();
            all.sort_unstable();
            all.dedup();
            *remainders = all;
        }
        let lengths: [usize; SPATIAL] =
            std::array::from_fn(|d| of.window[d] + of.positions[d].saturating_sub(1) * of.stride[d] / of.dilation[d]);
        let plane = lengths.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count: usize = remainders.iter().map(Vec::len).product();
        let size = plane.and_then(|plane| plane.checked_mul(count)).filter(|size| *size <= isize::MAX as usize / 64);
        let (Some(plane), Some(size)) = (plane, size) else {
            return Err(ShapeError(format!("the window reaches over too many elements: {lengths:?}")));
        };
        let mut offsets = Vec::with_capacity(of.positions.iter().product());
        let [a, b, c] = of.positions;
        for k in (0..a * b * c).map(|i| [i / (b * c), i / c % b, i % c]) {
            let (mut number, mut shift) = (0, 0);
            for d in 0..SPATIAL {
                let element = k[d] * of.stride[d];
                let remainder = element % of.dilation[d];
                let index = remainders[d].iter().position(|r| *r == remainder).unwrap_or_default();
                (number, shift) = (number * remainders[d].len() + index, shift * lengths[d] + element / of.dilation[d]);
            }
            offsets.push(number * plane + shift);
        }
        // A distance of many kibibytes would place all features in the same set of the cache.
        let stride = (size + SLACK).next_multiple_of(16);
        let stride = if stride.is_multiple_of(512) { stride + 16 } else { stride };
        Ok(Planes { of, remainders, lengths, offsets, stride })
    }

    /// The number of elements of the long line, from the first output to the last.
    pub fn len(&self) -> usize {
        let last = (0..SPATIAL).fold(0, |place, d| place * self.lengths[d] + self.of.window[d] - 1);
        last + 1
    }

    /// The first output of each line, and its place in the long line.
    pub fn lines(&self) -> impl Iterator<Item = ([usize; SPATIAL], usize)> {
        let ([_, rows, columns], [depths, lines, _]) = (self.lengths, self.of.window);
        (0..depths).flat_map(move |a| (0..lines).map(move |b| ([a, b, 0], (a * rows + b) * columns)))
    }

    /// The number of outputs of a line.
    pub fn width(&self) -> usize {
        self.of.window[2]
    }

    /// Writes the planes of some channels of an image, with zeros for padding.
    pub fn read(&self, image: &Image<&[f32]>, number: usize, channels: &Range<usize>, planes: &mut [f32]) {
        let x = image.of(number);
        let size = self.lengths.iter().product::<usize>();
        let [first, second, third] = &self.remainders;
        // There is a plane for each remainder of positions by the stride. Its lines are contiguous, so that the kernel reads
        // neighbors for neighboring outputs.
        let all = first.iter().flat_map(|a| second.iter().flat_map(move |b| third.iter().map(move |c| [*a, *b, *c])));
        for (plane, remainder) in all.enumerate() {
            let columns = self.met(2, remainder[2]);
            for a in 0..self.lengths[0] {
                for b in 0..self.lengths[1] {
                    let start = plane * size + (a * self.lengths[1] + b) * self.lengths[2];
                    let line = self.index(0, a, remainder[0]).zip(self.index(1, b, remainder[1]));
                    let line = line.filter(|_| !columns.is_empty());
                    let first = line.zip(self.index(2, columns.start, remainder[2]));
                    for (feature, channel) in channels.clone().enumerate() {
                        let to = &mut planes[feature * self.stride + start..][..self.lengths[2]];
                        // The entire line is padding.
                        let Some(((a, b), first)) = first else {
                            to.fill(0.0);
                            continue;
                        };
                        to[..columns.start].fill(0.0);
                        to[columns.end..].fill(0.0);
                        let to = &mut to[columns.clone()];
                        let from = &x[image.place(channel, [a, b, first])..];
                        match image.step() * self.of.dilation[2] {
                            1 => to.copy_from_slice(&from[..to.len()]),
                            step => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from),
                        }
                    }
                }
            }
        }
        for feature in 0..channels.len() {
            planes[feature * self.stride..(feature + 1) * self.stride][size * self.planes()..].fill(0.0);
        }
    }

    fn planes(&self) -> usize {
        self.remainders.iter().map(Vec::len).product()
    }

    /// The operand's index at place `i` of a plane; `None` for padding.
    fn index(&self, d: usize, i: usize, remainder: usize) -> Option<usize> {
        let index = (i * self.of.dilation[d] + remainder) as i64 - self.of.low[d];
        usize::try_from(index).ok().filter(|&index| index < self.of.operand[d])
    }

    /// The places of a plane that are not padding.
    fn met(&self, d: usize, remainder: usize) -> Range<usize> {
        let (step, shift) = (self.of.dilation[d], self.of.low[d] - remainder as i64);
        let [start, end] = [0, self.of.operand[d] as i64]
            .map(|index| (index.saturating_add(shift).max(0) as usize).div_ceil(step).min(self.lengths[d]));
        start..end.max(start)
    }
}

/// Divides outputs along the divided dimension so that the planes of `features` features have about [`ELEMENTS`] elements.
pub(super) fn lines_per_block(of: &Window, d: usize, features: usize) -> usize {
    let mut line = features.max(1);
    for other in (0..SPATIAL).filter(|other| *other != d) {
        let reach =
            (of.positions[other].saturating_sub(1)).saturating_mul(of.stride[other]) / of.dilation[other].max(1);
        let planes = of.dilation[other].min(of.positions[other]).max(1);
        line = line.saturating_mul(of.window[other].saturating_add(reach)).saturating_mul(planes);
    }
    line = line.saturating_mul(of.dilation[d].min(of.positions[d]).max(1));
    let reach = (of.positions[d].saturating_sub(1)).saturating_mul(of.stride[d]) / of.dilation[d].max(1);
    // At least as many lines as the filter reaches beyond them, which are written for each block again.
    (ELEMENTS / line).saturating_sub(reach).max(reach).clamp(1, of.window[d].max(1))
}
