//! Random augmentation of images.

use std::ops::Range;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::{Example, HostArray};

/// Random augmentation of images, uint8 `[rows, columns, channels]`, on the host: flips, crops, colours, cutouts, in
/// this order.
///
/// The changes of an image depend only on the seed and on its number in the stream, so that a resumed run sees the same
/// images for any number of threads.
///
/// ```
/// use shardax_train::data::{Augment, Example, HostArray, Source, Stream};
/// let image = |i: usize| Ok(Example::from([("image".to_owned(), HostArray::from_slice(&[i as u8; 8 * 8 * 3], &[8, 8, 3])?)]));
/// let augment = Augment::new(0).random_flip().random_crop(1).color_jitter(0.2).cutout(3);
/// let mut batches =
///     (100usize, image).stream().enumerate().parallel_map(2, move |item| augment.example(item)).batch(16).prefetch(2);
/// assert_eq!(batches.next_item().expect("a batch")?["image"].shape(), [16, 8, 8, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augment {
    seed: u64,
    flip: bool,
    padding: usize,
    color: f32,
    cutout: usize,
}

/// A bound on the side of an image, in pixels.
const MAX_SIDE_PIXELS: usize = 1 << 30;

/// The sizes of an image.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    columns: usize,
    channels: usize,
}

impl Augment {
    /// Creates an augmentation without changes.
    pub fn new(seed: u64) -> Self {
        Augment { seed, flip: false, padding: 0, color: 0.0, cutout: 0 }
    }

    /// Mirrors half of the images, left to right.
    pub fn random_flip(mut self) -> Self {
        self.flip = true;
        self
    }

    /// Adds `padding` black pixels on each side, and crops a random part of the original size.
    pub fn random_crop(mut self, padding: usize) -> Self {
        self.padding = padding.min(MAX_SIDE_PIXELS);
        self
    }

    /// Multiplies brightness, contrast and saturation each by a number between `1 - strength` and `1 + strength`.
    /// Negative factors become 0.
    pub fn color_jitter(mut self, strength: f32) -> Self {
        self.color = strength;
        self
    }

    /// Fills a random square of `size` pixels on a side with the image's mean colour.
    ///
    /// Source: [DeVries and Taylor 2017](https://arxiv.org/abs/1708.04552).
    pub fn cutout(mut self, size: usize) -> Self {
        self.cutout = size.min(MAX_SIDE_PIXELS);
        self
    }

    /// Changes the `image` of a numbered example: the function for [`parallel_map`](super::Stream::parallel_map) after
    /// [`enumerate`](super::Stream::enumerate).
    ///
    /// # Errors
    /// Returns an error if the example has no image, and the errors of [`image`](Augment::image).
    pub fn example(&self, (number, mut example): (u64, Example)) -> Result<Example> {
        let Some(image) = example.get_mut("image") else {
            let names: Vec<&String> = example.keys().collect();
            let message = format!("an example without `image` cannot be augmented; it has {names:?}");
            return Err(Error::new(ErrorKind::Value, message).help("rename the array of the image to `image`"));
        };
        *image = self.image(number, image)?;
        Ok(example)
    }

    /// Returns the `number`th variant of an image.
    ///
    /// # Errors
    /// Returns an error if the image is not uint8 `[rows, columns, channels]`, or if the strength of
    /// [`color_jitter`](Self::color_jitter) is not finite.
    #[track_caller]
    pub fn image(&self, number: u64, image: &HostArray) -> Result<HostArray> {
        let location = std::panic::Location::caller();
        let sizes = match image.shape() {
            &[rows, columns, channels] if image.dtype() == DType::U8 => Sizes { rows, columns, channels },
            shape => {
                let message =
                    format!("Augment: an image is uint8 [rows, columns, channels], got {}{shape:?}", image.dtype());
                return Err(Error::new(ErrorKind::Value, message)
                    .help("augment before numbers are scaled")
                    .at(location));
            }
        };
        if !self.color.is_finite() {
            let message = format!("Augment: the strength of color_jitter must be finite, got {}", self.color);
            return Err(Error::new(ErrorKind::Value, message).help("use a strength from 0 to 1").at(location));
        }
        // The multiplication makes neighbouring numbers independent.
        let mut random = fastrand::Rng::with_seed(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut pixels = self.moved(image.bytes(), sizes, &mut random);
        if self.color > 0.0 {
            self.colored(&mut pixels, sizes.channels, &mut random);
        }
        if self.cutout > 0 {
            self.cut(&mut pixels, sizes, &mut random);
        }
        HostArray::from_bytes(pixels, DType::U8, image.shape())
    }

    /// Flips and crops an image.
    fn moved(&self, pixels: &[u8], sizes: Sizes, random: &mut fastrand::Rng) -> Vec<u8> {
        let Sizes { rows, columns, channels } = sizes;
        let flip = self.flip && random.bool();
        let (down, right) = (self.random_shift(random), self.random_shift(random));
        if !flip && (down, right) == (self.padding, self.padding) {
            return pixels.to_vec();
        }
        let mut out = vec![0; pixels.len()];
        for (row, line) in out.chunks_exact_mut((columns * channels).max(1)).enumerate() {
            let Some(row) = self.source_index(row, down, rows) else { continue };
            for (column, pixel) in line.chunks_exact_mut(channels.max(1)).enumerate() {
                let Some(column) = self.source_index(column, right, columns) else { continue };
                let column = if flip { columns - 1 - column } else { column };
                let start = (row * columns + column) * channels;
                pixel.copy_from_slice(&pixels[start..start + channels]);
            }
        }
        out
    }

    fn random_shift(&self, random: &mut fastrand::Rng) -> usize {
        if self.padding > 0 { random.usize(0..=self.padding.saturating_mul(2)) } else { 0 }
    }

    /// The source row or column of a pixel; `None` if it is in the padding.
    fn source_index(&self, index: usize, shift: usize, size: usize) -> Option<usize> {
        (index + shift).checked_sub(self.padding).filter(|index| *index < size)
    }

    /// A random factor of brightness, contrast or saturation.
    fn random_factor(&self, random: &mut fastrand::Rng) -> f32 {
        (1.0 + self.color * (2.0 * random.f32() - 1.0)).max(0.0)
    }

    /// Changes brightness, contrast and saturation.
    fn colored(&self, pixels: &mut [u8], channels: usize, random: &mut fastrand::Rng) {
        let (brightness, contrast, saturation) =
            (self.random_factor(random), self.random_factor(random), self.random_factor(random));
        let channels = channels.max(1);
        let count = (pixels.len() / channels).max(1) as f32;
        let mean = pixels.chunks_exact(channels).map(grey).sum::<f32>() / count;
        for pixel in pixels.chunks_exact_mut(channels) {
            let grey = grey(pixel);
            for value in pixel {
                let saturated = grey + saturation * (f32::from(*value) - grey);
                let contrasted = mean + contrast * (saturated - mean);
                // The cast rounds, and saturates at 0 and 255.
                *value = (brightness * contrasted + 0.5) as u8;
            }
        }
    }

    /// Fills a random square with one colour.
    fn cut(&self, pixels: &mut [u8], sizes: Sizes, random: &mut fastrand::Rng) {
        let Sizes { rows, columns, channels } = sizes;
        if pixels.is_empty() {
            return;
        }
        let count = rows * columns;
        let mean: Vec<u8> = (0..channels)
            .map(|c| (pixels.iter().skip(c).step_by(channels).map(|v| u64::from(*v)).sum::<u64>() / count as u64) as u8)
            .collect();
        let (down, across) = (self.random_span(rows, random), self.random_span(columns, random));
        for row in down {
            for column in across.clone() {
                let start = (row * columns + column) * channels;
                pixels[start..start + channels].copy_from_slice(&mean);
            }
        }
    }

    /// The rows or columns of a square around a random pixel. The square can extend beyond the image.
    fn random_span(&self, size: usize, random: &mut fastrand::Rng) -> Range<usize> {
        let begin = random.usize(0..size) as i64 - (self.cutout / 2) as i64;
        let end = begin.saturating_add(self.cutout as i64).min(size as i64);
        begin.max(0) as usize..end.max(0) as usize
    }
}

/// The brightness of a pixel.
fn grey(pixel: &[u8]) -> f32 {
    match *pixel {
        // The weights of ITU-R BT.601.
        [r, g, b] => 0.299 * f32::from(r) + 0.587 * f32::from(g) + 0.114 * f32::from(b),
        _ => pixel.iter().map(|v| f32::from(*v)).sum::<f32>() / pixel.len() as f32,
    }
}
