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
    index: Vec<usize>,
    done: bool,
}

impl Runs {
    /// Returns the overlap of `from` and `to`, for elements of `element` bytes.
    pub fn between(from: Block<'_>, to: Block<'_>, element: usize) -> Runs {
        let rank = from.shape.len();
        let low: Vec<usize> = (0..rank).map(|d| from.start[d].max(to.start[d])).collect();
        let high = (0..rank).map(|d| (from.start[d] + from.shape[d]).min(to.start[d] + to.shape[d]));
        let common: Vec<usize> = high.zip(&low).map(|(high, low)| high.saturating_sub(*low)).collect();
        // Dimensions that both blocks contain completely are contiguous with the last one that they do not.
        let mut inner = rank;
        let mut len = element;
        while inner > 0 {
            inner -= 1;
            len *= common[inner];
            if common[inner] != from.shape[inner] || common[inner] != to.shape[inner] {
                break;
            }
        }
        let done = common.contains(&0);
        let first_offsets = if done { (0, 0) } else { (offset(from, &low, element), offset(to, &low, element)) };
        let strides = (0..inner).map(|d| (stride(from.shape, d, element), stride(to.shape, d, element))).collect();
        Runs { index: vec![0; inner], shape: common[..inner].to_vec(), strides, first: first_offsets, len, done }
    }
}

/// The distance in bytes between neighbours along dimension `d` of a row-major array.
fn stride(shape: &[usize], d: usize, element: usize) -> usize {
    shape[d + 1..].iter().product::<usize>() * element
}

/// The offset in bytes of the element at `index` in a block.
fn offset(block: Block<'_>, index: &[usize], element: usize) -> usize {
    (0..index.len()).map(|d| index[d].saturating_sub(block.start[d]) * stride(block.shape, d, element)).sum()
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.done || self.len == 0 {
            return None;
        }
        let mut run = Run { from: self.first.0, to: self.first.1, len: self.len };
        for (index, (from, to)) in self.index.iter().zip(&self.strides) {
            run.from += index * from;
            run.to += index * to;
        }
        // The next index in row-major order.
        self.done = true;
        for d in (0..self.index.len()).rev() {
            self.index[d] += 1;
            if self.index[d] < self.shape[d] {
                self.done = false;
                break;
            }
            self.index[d] = 0;
        }
        Some(run)
    }
}
