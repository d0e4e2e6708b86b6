//! Image folders with a subfolder for each class.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::file::{room, unreadable, wrong};
use super::{Example, HostArray, Source};

/// Reads the JPEG and PNG images of a folder with a subfolder for each class: `cat/1.jpg`, `dog/7.png`. Requires the
/// cargo feature `image`.
///
/// An example has `image`, uint8 `[rows, columns, 3]`, and `label`, int32: the index of its subfolder in the order of
/// names. Images are read and decoded when you take an example. If this is too slow, you can use
/// [`parallel_map`](super::Stream::parallel_map) over the numbers, which decodes on several threads.
///
/// ```no_run
/// use shardax_train::data::{Source, Stream, image_folder};
/// let flowers = image_folder("flowers/train")?.resize(64, 64);
/// println!("{:?}", flowers.classes());
/// let numbers = (flowers.len(), |i| Ok(i)).stream().shuffled(0);
/// let mut batches = numbers.parallel_map(4, move |i| flowers.get(i)).batch(32).prefetch(2);
/// # let _ = batches.next_item();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the folder cannot be read, or if no subfolder has an image.
#[track_caller]
pub fn image_folder(root: impl AsRef<Path>) -> Result<ImageFolder> {
    let location = std::panic::Location::caller();
    list(root.as_ref()).map_err(|error| error.at(location))
}

/// The source of [`image_folder`].
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    files: Vec<(PathBuf, i32)>,
    size: Option<(u32, u32)>,
}

impl ImageFolder {
    /// Resizes every image to `rows` rows and `columns` columns.
    pub fn resize(mut self, rows: u32, columns: u32) -> Self {
        self.size = Some((rows, columns));
        self
    }

    /// Returns the names of the classes; a label is an index into them.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Source for ImageFolder {
    type Item = Example;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, i: usize) -> Result<Example> {
        let Some((path, label)) = self.files.get(i) else {
            return Err(Error::new(ErrorKind::Index, format!("image {i} of {} was requested", self.files.len()))
                .help("use an index below that number; the first is 0"));
        };
        let bytes = super::file::read(path).map_err(|error| unreadable(path, &error))?;
        let image = unpack(&bytes, path, self.size)?;
        Ok(Example::from([("image".to_owned(), image), ("label".to_owned(), HostArray::from_slice(&[*label], &[])?)]))
    }
}

/// Decodes the bytes of a JPEG or PNG file, for example a member of a tar file, to uint8 `[rows, columns, 3]`. `name`
/// identifies the file in errors. Requires the cargo feature `image`.
///
/// # Errors
/// Returns an error if the file is damaged or has another format. The error says at which offset.
#[track_caller]
pub fn decode_image(bytes: &[u8], name: impl AsRef<Path>) -> Result<HostArray> {
    let location = std::panic::Location::caller();
    unpack(bytes, name.as_ref(), None).map_err(|error| error.at(location))
}

fn unpack(bytes: &[u8], name: &Path, size: Option<(u32, u32)>) -> Result<HostArray> {
    let mut read = Cursor::new(bytes);
    let unpacked = ImageReader::new(&mut read).with_guessed_format().map_err(image::ImageError::from);
    let image = unpacked.and_then(ImageReader::decode);
    let image =
        image.map_err(|error| wrong(name, read.position(), format!("the image cannot be unpacked: {error}")))?;
    if is_cut(bytes) {
        return Err(wrong(name, bytes.len() as u64, "the file ends before the image"));
    }
    let image = match size {
        None => image,
        // Resizes to exactly this size, without preserving the aspect ratio.
        Some((rows, columns)) => {
            if rows == 0 || columns == 0 {
                let message = format!("an image of {rows} × {columns} pixels was requested");
                return Err(
                    Error::new(ErrorKind::Value, message).help("pass at least one row and one column to `resize`")
                );
            }
            // At most four channels of float32.
            room((u64::from(rows) * u64::from(columns)).saturating_mul(16)).map_err(|error| {
                let message = format!("an image of {rows} × {columns} pixels was requested: {error}");
                Error::new(ErrorKind::Value, message).help("pass fewer rows and columns to `resize`")
            })?;
            image.resize_exact(columns, rows, FilterType::Triangle)
        }
    };
    let pixels = DynamicImage::into_rgb8(image);
    let shape = [pixels.height() as usize, pixels.width() as usize, 3];
    HostArray::from_bytes(pixels.into_raw(), DType::U8, &shape)
}

/// Returns true if a JPEG file ends before its image. The decoder would fill the missing part with grey.
fn is_cut(bytes: &[u8]) -> bool {
    let last_scan = bytes.windows(2).rposition(|pair| pair == [0xff, 0xda]);
    let end = bytes.windows(2).rposition(|pair| pair == [0xff, 0xd9]);
    // Neither marker occurs in compressed data; an end marker before the last scan may be a thumbnail's.
    bytes.starts_with(&[0xff, 0xd8]) && last_scan.is_some_and(|scan| end.is_none_or(|end| end < scan))
}

fn list(root: &Path) -> Result<ImageFolder> {
    let mut folders: Vec<PathBuf> = entries(root)?.into_iter().filter(|path| path.is_dir()).collect();
    folders.sort();
    let (mut classes, mut files) = (Vec::new(), Vec::new());
    for folder in folders {
        let mut images = entries(&folder)?;
        images.retain(|path| {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            matches!(ending.as_str(), "jpg" | "jpeg" | "png")
        });
        images.sort();
        if !images.is_empty() {
            files.extend(images.into_iter().map(|path| (path, classes.len() as i32)));
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    if files.is_empty() {
        let message = format!("{} has no folder with a JPEG or PNG file", root.display());
        return Err(Error::new(ErrorKind::Value, message)
            .help("put the images of each class in a subfolder with the name of the class"));
    }
    Ok(ImageFolder { classes, files, size: None })
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    read.map_err(|error| unreadable(folder, &error))
}
