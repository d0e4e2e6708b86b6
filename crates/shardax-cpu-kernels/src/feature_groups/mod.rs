//! Convolutions of features in groups, and gradients of their filters.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes them element by element. A matmul of patches would be narrow, because a group
//! often has four or eight features. Instead, each feature of a group becomes a separate plane, so that the lanes of a
//! vector are neighbouring positions and all of them can be used for any number of features ([`planes`]).

mod forward;
mod gradient;
mod planes;

use crate::filter_window::Window;
use crate::gaps;
use crate::phases::Phase;
use crate::view::check;
use crate::{FilterWindow, Result, SPATIAL, ShapeError, View};

/// A convolution whose features are divided into groups: each group of outputs is computed from one group of features.
///
/// The window and the base dilation have the same meaning as in [`convolution`](crate::convolution).
///
/// ```
/// use shardax_cpu_kernels::{FeatureGroups, FilterWindow, View};
///
/// // Two features on a line of two, each with its own filter.
/// let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 2] };
/// let groups = FeatureGroups { window, base: [1; 3], groups: 2, is_channels_first: false };
/// let x = View::new(&[1, 1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0])?;
/// let filter = View::new(&[1, 1, 2, 1, 2], &[1.0, 10.0, 1.0, 10.0])?;
/// let mut sums = [0.0; 2];
/// groups.convolution(x, filter, [1, 1, 1], &mut sums, 1)?;
/// assert_eq!(sums, [4.0, 60.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGroups {
    /// The window of the filter's gradient.
    pub window: FilterWindow,
    /// The distance between the elements of the image. Gradients of filters ignore it.
    pub base: [usize; SPATIAL],
    /// The number of groups.
    pub groups: usize,
    /// Images and results are `[images, features, depth, height, width]`, otherwise `[images, depth, height, width, features]`.
    pub is_channels_first: bool,
}

impl FeatureGroups {
    /// Computes the convolution. The filter is `[depth, height, width, features / groups, outputs]`, and `size` is the spatial
    /// dimensions of the result.
    ///
    /// Each thread needs memory for the features of a group at some lines of the image, and for its outputs there. The call
    /// allocates a copy of the filter, or an image with zeros in its gaps if the filter has infinities or NaN.
    ///
    /// # Errors
    /// Returns an error if the shapes do not agree with this description, if a base dilation is 0, or if the window is
    /// so large that its elements cannot be counted.
    pub fn convolution(
        &self,
        x: View<'_, f32>,
        filter: View<'_, f32>,
        size: [usize; SPATIAL],
        out: &mut [f32],
        threads: usize,
    ) -> Result<()> {
        if gaps::are_needed(self.base, filter.data()) {
            let (shape, spread) = gaps::with_gaps(x, if self.is_channels_first { 2 } else { 1 }, self.base)?;
            let dense = FeatureGroups { base: [1; SPATIAL], ..*self };
            return dense.convolution(View::new(&shape, &spread)?, filter, size, out, threads);
        }
        // Check all shapes first, because the kernel computes positions from them.
        let image = self.image(x)?;
        let [a, b, c, depth, outputs] = filter.dims("the filter")?;
        for (found, expected) in [a, b, c].into_iter().zip(self.window.positions) {
            check("the positions of the filter", found, expected)?;
        }
        check("the features of the filter", depth.saturating_mul(self.groups), image.channels)?;
        self.check_groups("outputs", outputs)?;
        let rows = size.iter().fold(image.count, |n, &d| n.saturating_mul(d));
        check("the elements of the result", out.len(), rows.saturating_mul(outputs))?;
        if let Some(d) = self.base.iter().position(|n| i64::try_from(*n).is_err() || *n == 0) {
            return Err(ShapeError(format!("the base dilation along dimension {d} is {}", self.base[d])));
        }
        let window = self.sized(image.operand(), size)?;
        if out.is_empty() || filter.data().is_empty() {
            out.fill(0.0);
            return Ok(());
        }
        let result = Image { data: (), size, channels: outputs, ..image.without_data() };
        forward::Kernel::new(self, image, result, Phase::of_window(window, self.base, filter.data()))?
            .run(out, threads.max(1));
        Ok(())
    }

    /// Computes the gradient with respect to the filter: the operand `x` and the cotangent `window` are laid out like images, and
    /// the result is `[positions.., features / groups, outputs]`.
    ///
    /// Padding is multiplied with the cotangent, so that an infinite cotangent results in NaN there. If there are no
    /// images, the result is 0. Each thread needs as much memory as a convolution, and the call needs up to eight
    /// results.
    ///
    /// # Errors
    /// Returns an error if the shapes do not agree with this description, or if the window is so large that its
    /// elements cannot be counted.
    pub fn filter_gradient(
        &self,
        x: View<'_, f32>,
        window: View<'_, f32>,
        out: &mut [f32],
        threads: usize,
    ) -> Result<()> {
        let (image, cotangent) = (self.image(x)?, self.image(window)?);
        check("the images of the window", cotangent.count, image.count)?;
        self.check_groups("features", image.channels)?;
        self.check_groups("outputs", cotangent.channels)?;
        let depth = image.channels / self.groups.max(1);
        let size =
            self.window.positions.iter().fold(depth.saturating_mul(cotangent.channels), |n, &d| n.saturating_mul(d));
        check("the elements of the result", out.len(), size)?;
        let window = self.sized(image.operand(), cotangent.size)?;
        if out.is_empty() || cotangent.data.is_empty() {
            out.fill(0.0);
            return Ok(());
        }
        gradient::Kernel::new(self, window, image, cotangent)?.run(out, threads.max(1));
        Ok(())
    }

    /// Checks the window; its `dilation` is the stride of the convolution.
    fn sized(&self, operand: [usize; SPATIAL], size: [usize; SPATIAL]) -> Result<Window> {
        match self.window.dilation.iter().position(|n| *n == 0) {
            Some(d) => Err(ShapeError(format!("the stride along dimension {d} is 0"))),
            None => self.window.sized(operand, size),
        }
    }

    fn check_groups(&self, what: &str, channels: usize) -> Result<()> {
        if self.groups > 0 && channels.is_multiple_of(self.groups) {
            Ok(())
        } else {
            Err(ShapeError(format!("{channels} {what} in {} groups", self.groups)))
        }
    }

    /// Reads the dimensions of an image.
    fn image<'a>(&self, x: View<'a, f32>) -> Result<Image<&'a [f32]>> {
        let dims: [usize; 5] = x.dims("the image")?;
        let (channels, size) = if self.is_channels_first {
            (dims[1], [dims[2], dims[3], dims[4]])
        } else {
            (dims[4], [dims[1], dims[2], dims[3]])
        };
        Ok(Image { data: x.data(), count: dims[0], channels, size, is_channels_first: self.is_channels_first })
    }
}

/// Images: their elements, and how these are laid out.
#[derive(Clone, Copy)]
struct Image<D> {
    data: D,
    count: usize,
    channels: usize,
    size: [usize; SPATIAL],
    is_channels_first: bool,
}

impl<D> Image<D> {
    /// The number of positions of an image.
    fn positions(&self) -> usize {
        self.size.iter().product()
    }

    /// The distance between neighbouring positions of a channel.
    fn step(&self) -> usize {
        if self.is_channels_first { 1 } else { self.channels }
    }

    /// The place of an element in its image.
    fn place(&self, channel: usize, [a, b, c]: [usize; SPATIAL]) -> usize {
        let position = (a * self.size[1] + b) * self.size[2] + c;
        if self.is_channels_first { channel * self.positions() + position } else { position * self.channels + channel }
    }

    fn without_data(&self) -> Image<()> {
        let Image { count, channels, size, is_channels_first, .. } = *self;
        Image { data: (), count, channels, size, is_channels_first }
    }
}

impl<'a> Image<&'a [f32]> {
    /// The spatial dimensions for a window. Without elements everything is padding, whatever the other sizes.
    fn operand(&self) -> [usize; SPATIAL] {
        if self.data.is_empty() { [0; SPATIAL] } else { self.size }
    }

    /// The elements of an image.
    fn of(&self, image: usize) -> &'a [f32] {
        let size = self.channels * self.positions();
        &self.data[image * size..(image + 1) * size]
    }
}

/// The dimension along which images are divided into blocks of lines: the first one with several outputs.
fn divided_dim(size: [usize; SPATIAL]) -> usize {
    size.iter().position(|n| *n > 1).unwrap_or(SPATIAL - 1)
}

/// The part of a window with these outputs along dimension `d`.
fn part_of(window: &Window, d: usize, outputs: &std::ops::Range<usize>) -> Window {
    let mut part = *window;
    part.window[d] = outputs.len();
    // `Window::check` has checked the index of the last output.
    part.low[d] -= (outputs.start * window.dilation[d]) as i64;
    part
}
