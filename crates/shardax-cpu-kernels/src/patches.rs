//! Patches: the elements in a window at each of its positions, as the rows of a matrix.

use std::ops::Range;

use crate::filter_window::Window;

/// The number of patches that are multiplied together.
pub(crate) const PATCHES_PER_MATMUL: usize = 256;

/// The maximal number of columns of patches that are built together, unless one position has more features.
pub(crate) const COLUMNS: usize = 1024;

/// The operand `[images, depth, height, width, features]` that the window meets.
#[derive(Clone, Copy)]
pub(crate) struct Patches<'a> {
    pub of: Window,
    pub x: &'a [f32],
    pub features: usize,
}

impl Patches<'_> {
    /// Writes patches (elements of the window in all images) as rows: for each position, the features of the operand's element
    /// there.
    pub fn build(&self, patches: &Range<usize>, positions: &Range<usize>, room: &mut [f32]) {
        let (of, features, columns) = (&self.of, self.features, positions.len() * self.features);
        let [_, height, width] = of.positions;
        let length = of.window[2];
        let mut patch = patches.start;
        while patch < patches.end {
            // The patches of one line of the window.
            let column = patch % length;
            let count = (length - column).min(patches.end - patch);
            let (image, element) = of.line(patch / length);
            let rows = &mut room[(patch - patches.start) * columns..][..count * columns];
            let mut position = positions.start;
            while position < positions.end {
                // The positions of one line of the result.
                let place = position % width;
                let together = (width - place).min(positions.end - position);
                let (depth, row) = (position / width / height, position / width % height);
                let line = of.meets(0, element[0], depth).zip(of.meets(1, element[1], row));
                let line = line.map(|(d, h)| {
                    let start = ((image * of.operand[0] + d) * of.operand[1] + h) * of.operand[2] * features;
                    &self.x[start..start + of.operand[2] * features]
                });
                let offset = (position - positions.start) * features;
                for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
                    let row = &mut row[offset..offset + together * features];
                    match line {
                        Some(line) => self.copy(line, column + i, place, row),
                        None => row.fill(0.0),
                    }
                }
                position += together;
            }
            patch += count;
        }
    }

    /// Copies the operand's elements for one element of the window, at consecutive positions of a line from `first` on.
    fn copy(&self, line: &[f32], element: usize, first: usize, row: &mut [f32]) {
        let (of, features) = (&self.of, self.features);
        let count = row.len() / features;
        let start = (element * of.dilation[2] + first * of.stride[2]) as i64 - of.low[2];
        // The elements are contiguous.
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
