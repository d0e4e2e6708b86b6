//! Pictures of arrays: samples, reconstructions, filters, as PNG files.

use std::path::Path;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use crate::data::file::room;

/// An RGB image, made from an array.
///
/// Floating-point values range from 0 (black) to 1 (white) and are clamped; NaN is red. uint8 values range from 0 to
/// 255; false is black.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::Picture;
/// let digits = shardax_train::digits()?;
/// let batch = digits.batches(12).next().expect("a batch")?;
/// let grid = Picture::grid(&batch.images, 4)?;
/// // Three rows of four images of 8 × 8 pixels, with two pixels between them.
/// assert_eq!((grid.width(), grid.height()), (38, 28));
/// assert!(grid.to_png()?.starts_with(b"\x89PNG"));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

/// Pixels between the images of a grid.
const GRID_GAP: usize = 2;

impl Picture {
    /// Creates a picture of one image, `[rows, columns]` or `[rows, columns, channels]` with 1, 3 or 4 channels. The
    /// fourth channel (opacity) is ignored.
    ///
    /// # Errors
    /// Returns an error for other shapes and dtypes.
    #[track_caller]
    pub fn of(image: &Array) -> Result<Picture> {
        image.check()?;
        Picture::grid(&image.expand_dims(0), 1)
    }

    /// Tiles images, `columns` a row: `[images, rows, columns]` or `[images, rows, columns, channels]`.
    ///
    /// # Errors
    /// Returns an error for other shapes and dtypes, and for 0 columns.
    #[track_caller]
    pub fn grid(images: &Array, columns: usize) -> Result<Picture> {
        let location = std::panic::Location::caller();
        images.check().and_then(|()| draw(images, columns)).map_err(|error| error.at(location))
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Encodes the picture as a PNG file.
    ///
    /// # Errors
    /// Returns an error if the picture is empty or too large for the format.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let width = u32::try_from(self.width).map_err(|error| self.not_png(&error))?;
        let height = u32::try_from(self.height).map_err(|error| self.not_png(&error))?;
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&self.rgb));
        written.map(|()| bytes).map_err(|error| self.not_png(&error))
    }

    fn not_png(&self, error: &dyn std::fmt::Display) -> Error {
        let message = format!("a picture of {} × {} pixels cannot be a PNG file: {error}", self.width, self.height);
        Error::new(ErrorKind::Value, message).help("draw at least one pixel, and fewer than 2³¹ per side")
    }

    /// Writes a PNG file.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_png()?).map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display()))
                .help("check that the path is correct and that this user may use it")
        })
    }
}

/// The error of an array or a number of columns that cannot be drawn.
fn not_drawable(images: &Array, columns: usize) -> Error {
    let message = format!("a picture of {} in {columns} columns was requested", images.type_name());
    Error::new(ErrorKind::Value, message).help(
        "pass a floating-point, uint8 or bool array [images, rows, columns] or [images, rows, columns, 1 | 3 | 4] \
         (without the first dimension for a single image), and at least one column",
    )
}

fn draw(images: &Array, columns: usize) -> Result<Picture> {
    let (count, rows, width, channels) = match *images.shape() {
        [n, h, w] => (n, h, w, 1),
        [n, h, w, c @ (1 | 3 | 4)] => (n, h, w, c),
        _ => return Err(not_drawable(images, columns)),
    };
    let columns = columns.min(count);
    if columns == 0 || rows == 0 || width == 0 {
        return Err(not_drawable(images, columns));
    }
    let values: Vec<Option<u8>> = match images.dtype() {
        DType::U8 => images.to_vec::<u8>()?.into_iter().map(Some).collect(),
        DType::Bool => images.to_vec::<bool>()?.into_iter().map(|x| Some(if x { 255 } else { 0 })).collect(),
        dtype if dtype.is_float() => {
            let values = images.astype(DType::F32).to_vec::<f32>()?;
            values.into_iter().map(|x| (!x.is_nan()).then(|| (x.clamp(0.0, 1.0) * 255.0).round() as u8)).collect()
        }
        _ => return Err(not_drawable(images, columns)),
    };
    // There are gaps between the images, but not around them.
    let full_width = columns * (width + GRID_GAP) - GRID_GAP;
    let full_height = count.div_ceil(columns) * (rows + GRID_GAP) - GRID_GAP;
    let bytes = full_width.saturating_mul(full_height).saturating_mul(3);
    room(bytes as u64).map_err(|error| {
        Error::new(ErrorKind::Value, format!("{}: {error}", not_drawable(images, columns).message()))
    })?;
    let mut rgb = vec![255; bytes];
    for (index, pixel) in values.chunks_exact(channels).enumerate() {
        let (image, y, x) = (index / (rows * width), index / width % rows, index % width);
        let (y, x) = (image / columns * (rows + GRID_GAP) + y, image % columns * (width + GRID_GAP) + x);
        let color = match pixel {
            [Some(r), Some(g), Some(b), ..] => [*r, *g, *b],
            [Some(grey)] => [*grey; 3],
            _ => [255, 0, 0],
        };
        rgb[(y * full_width + x) * 3..][..3].copy_from_slice(&color);
    }
    Ok(Picture { width: full_width, height: full_height, rgb })
}
