//! Data sets on the host: images with labels, shuffled and split.

use std::io::Read;
use std::panic::Location;

use shardax::error::{Error, ErrorKind, Result};

use super::file::Lines;

/// Images of one shape, each with a class label, in host memory.
///
/// [`batches`](Dataset::batches) turns them into arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    pub(crate) images: Vec<f32>,
    pub(crate) image_shape: Vec<usize>,
    pub(crate) labels: Vec<i32>,
}

/// Returns the digits data set: 1,797 handwritten digits of 8 × 8 pixels between 0 and 1, of shape `[8, 8, 1]`, in file
/// order.
///
/// Source: [E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
/// 1998](https://doi.org/10.24432/C50P49), CC BY 4.0. The file is embedded in the program.
///
/// ```
/// let digits = shardax_train::digits()?;
/// assert_eq!((digits.len(), digits.image_shape()), (1797, &[8, 8, 1][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// This function never fails, unless the program is damaged, because the file is part of it.
pub fn digits() -> Result<Dataset> {
    let packed: &[u8] = include_bytes!("../../../../data/digits.csv.gz");
    Dataset::from_csv(flate2::read::GzDecoder::new(packed), &[8, 8, 1], 16.0)
}

impl Dataset {
    /// Reads lines of comma-separated numbers: an image's pixels in row-major order, then its label. Pixels are divided
    /// by `scale`.
    ///
    /// ```
    /// use shardax_train::Dataset;
    ///
    /// let data = Dataset::from_csv("0,8,16,4,7\n16,0,0,0,1\n".as_bytes(), &[2, 2, 1], 16.0)?;
    /// assert_eq!(data.labels(), [7, 1]);
    /// assert_eq!(data.image(0), Some(&[0.0, 0.5, 1.0, 0.25][..]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error, with the line number, if a line is not an image of `image_shape` with a label. Also returns an
    /// error if the scale is 0 or not finite, or an image has too many pixels.
    #[track_caller]
    pub fn from_csv(reader: impl Read, image_shape: &[usize], scale: f32) -> Result<Dataset> {
        let location = Location::caller();
        Dataset::read_csv(reader, image_shape, scale).map_err(|error| error.at(location))
    }

    fn read_csv(reader: impl Read, image_shape: &[usize], scale: f32) -> Result<Dataset> {
        // Checked before any line is read, so that wrong arguments are not reported as damaged data.
        if !scale.is_normal() {
            let message = format!("pixels are divided by `scale`, which must be finite and not 0, got {scale}");
            return Err(Error::new(ErrorKind::Value, message));
        }
        let numbers = image_shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).and_then(|n| n.checked_add(1));
        let Some(numbers) = numbers else {
            let message = format!("an image of shape {image_shape:?} has more pixels than there can be");
            return Err(Error::new(ErrorKind::Value, message));
        };
        let mut data = Dataset { images: Vec::new(), image_shape: image_shape.to_vec(), labels: Vec::new() };
        let pixels = numbers - 1;
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Lines::new(reader));
        for (line, record) in reader.records().enumerate() {
            let record = record.map_err(|e| wrong_line(line, image_shape, &e.to_string()))?;
            if record.len() != numbers {
                return Err(wrong_line(line, image_shape, &format!("it has {} numbers, not {numbers}", record.len())));
            }
            for field in record.iter().take(pixels) {
                let pixel: f32 = field.trim().parse().map_err(|_| not_a_number(line, image_shape, field))?;
                data.images.push(pixel / scale);
            }
            for field in record.iter().skip(pixels) {
                data.labels.push(field.trim().parse().map_err(|_| not_a_number(line, image_shape, field))?);
            }
        }
        Ok(data)
    }

    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the shape of one image.
    pub fn image_shape(&self) -> &[usize] {
        &self.image_shape
    }

    /// Returns the labels in order.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// Returns the pixels of image `i` in row-major order; `None` past the end.
    pub fn image(&self, i: usize) -> Option<&[f32]> {
        // An image without pixels has an empty slice; an index past the end has none.
        let (pixels, i) = (self.pixels(), (i < self.len()).then_some(i)?);
        self.images.get(i * pixels..(i + 1) * pixels)
    }

    pub(crate) fn pixels(&self) -> usize {
        self.image_shape.iter().product()
    }

    /// Shuffles the examples in an order that follows from `seed`.
    ///
    /// ```
    /// let digits = shardax_train::digits()?;
    /// let shuffled = digits.clone().shuffle(7);
    /// assert_eq!(shuffled, digits.clone().shuffle(7));
    /// assert_ne!(shuffled.labels(), digits.labels());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn shuffle(self, seed: u64) -> Dataset {
        self.select(&shuffled(self.len(), seed))
    }

    /// Splits off the first `n` examples: a training and a test set.
    ///
    /// ```
    /// let (train, test) = shardax_train::digits()?.shuffle(0).split(1500);
    /// assert_eq!((train.len(), test.len()), (1500, 297));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn split(mut self, n: usize) -> (Dataset, Dataset) {
        let n = n.min(self.len());
        let images = self.images.split_off(n * self.pixels());
        let labels = self.labels.split_off(n);
        let remainder = Dataset { images, image_shape: self.image_shape.clone(), labels };
        (self, remainder)
    }

    fn select(&self, order: &[usize]) -> Dataset {
        Dataset {
            images: order.iter().filter_map(|&i| self.image(i)).flatten().copied().collect(),
            image_shape: self.image_shape.clone(),
            labels: order.iter().filter_map(|&i| self.labels.get(i)).copied().collect(),
        }
    }
}

/// Returns the numbers below `n` in an order that follows from `seed`.
pub(crate) fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

fn wrong_line(line: usize, image_shape: &[usize], problem: &str) -> Error {
    let pixels: usize = image_shape.iter().product();
    Error::new(ErrorKind::Value, format!("line {} of the data: {problem}", line + 1))
        .help(format!("a line must have the {pixels} pixels of an image of shape {image_shape:?}, then its label"))
}

fn not_a_number(line: usize, image_shape: &[usize], field: &str) -> Error {
    wrong_line(line, image_shape, &format!("{field:?} is not a number"))
}
