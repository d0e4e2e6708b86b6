//! The window of a convolution that computes the gradient of a filter.

use crate::patches::Patches;
use crate::view::check;
use crate::{Result, ShapeError, View};

/// The number of spatial dimensions: depth, height, width. Missing ones have size 1.
pub const SPATIAL: usize = 3;

/// The positions of the window. The cotangent of a convolution moves over the operand, and each position computes one
/// element of the filter's gradient.
///
/// Along a dimension, element `i` of the window at position `p` is multiplied with the operand's element
/// `i * dilation + p * stride - low`, or with padding if there is no such element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterWindow {
    /// The distance between neighbouring positions.
    pub stride: [usize; SPATIAL],
    /// The distance between neighbouring elements of the window.
    pub dilation: [usize; SPATIAL],
    /// The padding before the operand; negative if positions start inside.
    pub low: [i64; SPATIAL],
    /// The number of positions, which is the size of the filter.
    pub positions: [usize; SPATIAL],
}

/// A window, with its size and the size of its operand.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub stride: [usize; SPATIAL],
    pub dilation: [usize; SPATIAL],
    pub low: [i64; SPATIAL],
    pub operand: [usize; SPATIAL],
    pub window: [usize; SPATIAL],
    pub positions: [usize; SPATIAL],
}

/// Operands `[images, depth, height, width, features]` and `[images, depth, height, width, outputs]`.
pub(crate) struct Operands<'a> {
    pub of: Window,
    pub x: &'a [f32],
    pub window: &'a [f32],
    pub features: usize,
    pub outputs: usize,
}

impl FilterWindow {
    /// Checks the operands.
    pub(crate) fn operands<'a>(&self, x: View<'a, f32>, window: View<'a, f32>) -> Result<Operands<'a>> {
        let [images, d, e, f, outputs] = window.dims("the window")?;
        let patches = self.patches(x, images, [d, e, f])?;
        Ok(Operands { of: patches.of, x: patches.x, window: window.data(), features: patches.features, outputs })
    }

    /// Checks the operand of a window of this size in each image.
    pub(crate) fn patches<'a>(
        &self,
        x: View<'a, f32>,
        window_images: usize,
        window: [usize; SPATIAL],
    ) -> Result<Patches<'a>> {
        let [images, a, b, c, features] = x.dims("the operand")?;
        check("the images of the window", window_images, images)?;
        // Without elements everything is padding, whatever the other sizes.
        let operand = if x.data().is_empty() { [0; SPATIAL] } else { [a, b, c] };
        Ok(Patches { of: self.sized(operand, window)?, x: x.data(), features })
    }

    /// Checks a window of this size over an operand of this size.
    pub(crate) fn sized(&self, operand: [usize; SPATIAL], window: [usize; SPATIAL]) -> Result<Window> {
        let FilterWindow { stride, dilation, low, positions } = *self;
        let window = Window { stride, dilation, low, operand, window, positions };
        (0..SPATIAL).try_for_each(|d| window.check(d))?;
        Ok(window)
    }
}

impl<'a> Operands<'a> {
    /// The patches of the operand that the window meets.
    pub fn patches(&self) -> Patches<'a> {
        Patches { of: self.of, x: self.x, features: self.features }
    }

    /// Checks the number of elements of a result with this many for each position.
    pub fn check_out(&self, out: &[f32], each: usize) -> Result<()> {
        let size = self.of.positions.iter().fold(each, |n, &d| n.saturating_mul(d));
        check("the elements of the result", out.len(), size)
    }
}

/// The last of `n` indices that are `step` apart, or `None` if it overflows.
fn last_index(n: usize, step: usize) -> Option<usize> {
    n.saturating_sub(1).checked_mul(step)
}

impl Window {
    /// Checks that no index along a dimension overflows.
    fn check(&self, d: usize) -> Result<()> {
        let farthest = last_index(self.window[d], self.dilation[d])
            .zip(last_index(self.positions[d], self.stride[d]))
            .and_then(|(a, b)| i64::try_from(a.checked_add(b)?).ok()?.checked_sub(self.low[d]));
        let is_in_range = farthest.is_some() && self.low[d].checked_neg().is_some();
        is_in_range.then_some(()).ok_or_else(|| {
            ShapeError(format!(
                "the window reaches too far along dimension {d}: stride {}, dilation {}, low {}",
                self.stride[d], self.dilation[d], self.low[d]
            ))
        })
    }

    /// The operand's index that an element of the window meets at a position along a dimension; `None` for padding.
    pub fn meets(&self, d: usize, element: usize, position: usize) -> Option<usize> {
        let index = (element * self.dilation[d] + position * self.stride[d]) as i64 - self.low[d];
        usize::try_from(index).ok().filter(|&index| index < self.operand[d])
    }

    /// The first two indices of a line of the window, and what comes before them.
    pub fn line(&self, line: usize) -> (usize, [usize; 2]) {
        let [d, h, _] = self.window;
        (line / (d * h), [line / h % d, line % h])
    }
}
