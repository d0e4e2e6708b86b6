//! TensorBoard event files: records with checksums, each a Protocol Buffers message.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use shardax::error::{Error, ErrorKind, Result};

use super::Logger;
use crate::picture::Picture;

/// A logger for TensorBoard. You can view its files with `tensorboard --logdir FOLDER`, which draws a curve for each
/// name.
///
/// ```
/// use shardax_train::log::{EventFile, Logger};
/// # let folder = std::env::temp_dir().join(format!("shardax-doc-events-{}", std::process::id()));
/// let mut log = EventFile::new(&folder)?;
/// log.begin(0)?;
/// log.log(100, &[("loss".to_owned(), 0.25)].into())?;
/// log.flush()?;
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: BufWriter<fs::File>,
    /// A fixed time in seconds since 1970, for tests that compare bytes.
    time: Option<f64>,
}

impl EventFile {
    /// Creates a new event file in this folder, and the folder if necessary. TensorBoard shows the files of a folder as
    /// one run.
    ///
    /// # Errors
    /// Returns an error if the folder or the file cannot be created.
    #[track_caller]
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        let time = seconds();
        // A program can create several files within a second.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("events.out.tfevents.{:010}.{}.{}.{count}", time as u64, host(), std::process::id());
        EventFile::create(&folder.as_ref().join(name), None).map_err(|error| error.at(std::panic::Location::caller()))
    }

    /// Creates a file of this name, in which all events have this time, in seconds since 1970.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    #[doc(hidden)]
    pub fn at_time(path: impl AsRef<Path>, time: f64) -> Result<Self> {
        EventFile::create(path.as_ref(), Some(time))
    }

    fn create(path: &Path, time: Option<f64>) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = fs::create_dir_all(folder).and_then(|()| fs::File::create(path));
        let file = BufWriter::new(file.map_err(|error| failed(path, &error))?);
        let mut log = EventFile { path: path.to_owned(), file, time };
        log.event(|event| event.bytes(3, b"brain.Event:2"))?;
        Ok(log)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a picture of a step under a name: TensorBoard shows it under IMAGES.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax_train::{Picture, log::EventFile};
    /// # let folder = std::env::temp_dir().join(format!("shardax-doc-pictures-{}", std::process::id()));
    /// let mut log = EventFile::new(&folder)?;
    /// log.picture(100, "samples", &Picture::grid(&zeros([8, 28, 28, 1]), 4)?)?;
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the picture cannot be compressed, or if the file cannot be written.
    #[track_caller]
    pub fn picture(&mut self, step: u64, name: &str, picture: &Picture) -> Result<()> {
        let location = std::panic::Location::caller();
        let mut image = Message::default();
        image.varint(1, picture.height() as u64);
        image.varint(2, picture.width() as u64);
        // The colour space: RGB.
        image.varint(3, 3);
        image.bytes(4, &picture.to_png().map_err(|error| error.at(location))?);
        self.event(|event| {
            event.varint(2, step);
            let (mut summary, mut value) = (Message::default(), Message::default());
            value.bytes(1, name.as_bytes());
            value.bytes(4, &image.0);
            summary.bytes(1, &value.0);
            event.bytes(5, &summary.0);
        })
        .map_err(|error| error.at(location))
    }

    fn event(&mut self, fill: impl FnOnce(&mut Message)) -> Result<()> {
        let mut event = Message::default();
        event.double(1, self.time.unwrap_or_else(seconds));
        fill(&mut event);
        let length = (event.0.len() as u64).to_le_bytes();
        let parts: [&[u8]; 4] =
            [&length, &masked_crc32c(&length).to_le_bytes(), &event.0, &masked_crc32c(&event.0).to_le_bytes()];
        let written = parts.iter().try_for_each(|part| self.file.write_all(part));
        written.map_err(|error| failed(&self.path, &error))
    }
}

impl Logger for EventFile {
    /// Writes an event that makes TensorBoard drop the later steps of earlier files.
    fn begin(&mut self, step: u64) -> Result<()> {
        self.event(|event| {
            event.varint(2, step + 1);
            // A session-start event.
            let mut session = Message::default();
            session.varint(1, 1);
            event.bytes(7, &session.0);
        })
    }

    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()> {
        self.event(|event| {
            event.varint(2, step);
            let mut summary = Message::default();
            for (name, x) in values {
                let mut value = Message::default();
                value.bytes(1, name.as_bytes());
                value.float(2, *x as f32);
                summary.bytes(1, &value.0);
            }
            event.bytes(5, &summary.0);
        })
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display()))
        .help("check that the path is correct and that the disk has space")
}

fn seconds() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64())
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "host".to_owned() } else { name.trim().to_owned() }
}

/// A Protocol Buffers message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn raw_varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    fn varint(&mut self, field: u64, x: u64) {
        self.raw_varint(field << 3);
        self.raw_varint(x);
    }

    fn double(&mut self, field: u64, x: f64) {
        self.raw_varint(field << 3 | 1);
        self.0.extend(x.to_le_bytes());
    }

    fn float(&mut self, field: u64, x: f32) {
        self.raw_varint(field << 3 | 5);
        self.0.extend(x.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.raw_varint(field << 3 | 2);
        self.raw_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// TFRecord's masked CRC-32C.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: a step writes only a few records, so a faster implementation is not needed.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    /// The check values of RFC 3720, appendix B.4.
    #[test]
    fn crc32c_is_the_standards() {
        assert_eq!(super::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(super::crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
