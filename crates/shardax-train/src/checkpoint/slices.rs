//! Boxes of elements in row-major memory, and the overlap of a file's slice and an array's slice.

/// A box: the index of its first element, and its shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    pub start: &'a [usize],
    pub shape: &'a [usize],
}

/// Bytes that are contiguous in both blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The offsets in the first and the second block.
    pub from: usize,
    pub to: usize,
    pub len: usize,
}

/// The runs that two blocks share, in order.
pub(super) struct Runs {
    /// The shape of the overlap, without the innermost dimensions, which are contiguous.
    shape: Vec<usize>,
    /// The strides, and the offset of the first element, in bytes, in both.
    strides: Vec<(usize, usize)>,
    first: (usize, usize),
    len: usize,
    at: Vec<usize>,
    done: bool,
}

impl Runs {
    /// The overlap of `from` and `to`, for elements of `element` bytes.
    pub fn between(from: Block<'_>, to: Block<'_>, element: usize) -> Runs {
        let rank = from.shape.len();
        let low: Vec<usize> = (0..rank).map(|d| from.start[d].max(to.start[d])).collect();
        let high = (0..rank).map(|d| (from.start[d] + from.shape[d]).min(to.start[d] + to.shape[d]));
        let common: Vec<usize> = high.zip(&low).map(|(high, low)| high.saturating_sub(*low)).collect();
        // Dimensions that are whole in both blocks are contiguous with the last one that is not.
        let mut inner = rank;
        let mut len = element;
        while inner > 0 {
            inner -= 1;
            len *= common[inner];
            if common[inner] != from.shape[inner] || common[inner] != to.shape[inner] {
                break;
            }
        }
        let stride = |shape: &[usize], d: usize| shape[d + 1..].iter().product::<usize>() * element;
        let all: Vec<(usize, usize)> = (0..rank).map(|d| (stride(from.shape, d), stride(to.shape, d))).collect();
        let done = common.contains(&0);
        let offset = |start: &[usize], of: &dyn Fn(&(usize, usize)) -> usize| {
            (0..rank).map(|d| low[d].saturating_sub(start[d]) * of(&all[d])).sum::<usize>()
        };
        let first = match done {
            true => (0, 0),
            false => (offset(from.start, &|s| s.0), offset(to.start, &|s| s.1)),
        };
        let shape = common[..inner].to_vec();
        Runs { at: vec![0; inner], shape, strides: all[..inner].to_vec(), first, len, done }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.done || self.len == 0 {
            return None;
        }
        let place = |of: &dyn Fn(&(usize, usize)) -> usize| -> usize {
            self.at.iter().zip(&self.strides).map(|(at, stride)| at * of(stride)).sum()
        };
        let run = Run { from: self.first.0 + place(&|s| s.0), to: self.first.1 + place(&|s| s.1), len: self.len };
        self.done = true;
        for d in (0..self.at.len()).rev() {
            self.at[d] += 1;
            if self.at[d] < self.shape[d] {
                self.done = false;
                break;
            }
            self.at[d] = 0;
        }
        Some(run)
    }
}
