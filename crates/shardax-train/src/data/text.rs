//! Texts in windows of tokens.

use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use shardax::error::{Error, ErrorKind, Result};

use super::file::{read_up_to, unreadable, wrong};
use super::{Example, HostArray, Source};

/// Splits the bytes of a file into windows of `length`, read on demand. An example has `tokens`, int32 `[length]`, and
/// `targets`, the token that follows each.
///
/// ```
/// use shardax_train::data::{Source, text_windows};
/// # let path = std::env::temp_dir().join(format!("shardax-doc-text-{}", std::process::id()));
/// std::fs::write(&path, "to be or not").expect("a file");
/// let text = text_windows(&path, 5)?;
/// assert_eq!(text.len(), 2);
/// assert_eq!(text.get(1)?["tokens"].to_vec::<i32>()?, b" or n".iter().map(|b| i32::from(*b)).collect::<Vec<_>>()[..]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `length` is 0, or if the file cannot be read or has fewer than `length + 1` bytes.
#[track_caller]
pub fn text_windows(path: impl AsRef<Path>, length: usize) -> Result<TextWindows> {
    let location = std::panic::Location::caller();
    open(path.as_ref(), length).map_err(|error| error.at(location))
}

fn open(path: &Path, length: usize) -> Result<TextWindows> {
    let file = super::file::open(path).map_err(|error| unreadable(path, &error))?;
    let bytes = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    let windows = bytes.saturating_sub(1).checked_div(length as u64).unwrap_or(0);
    if windows == 0 {
        let message =
            format!("{} has {bytes} bytes, too few for a window of {length} and the byte after it", path.display());
        return Err(Error::new(ErrorKind::Value, message)
            .help("use a longer text, or a length of at least 1 and less than the number of bytes"));
    }
    Ok(TextWindows { path: path.to_owned(), file: Mutex::new(file), length, windows: windows as usize })
}

/// The source of [`text_windows()`].
#[derive(Debug)]
pub struct TextWindows {
    path: PathBuf,
    file: Mutex<fs::File>,
    length: usize,
    windows: usize,
}

impl Source for TextWindows {
    type Item = Example;

    fn len(&self) -> usize {
        self.windows
    }

    fn get(&self, i: usize) -> Result<Example> {
        if i >= self.windows {
            return Err(Error::new(ErrorKind::Index, format!("window {i} of {} was requested", self.windows))
                .help("use an index below that number; the first is 0"));
        }
        let offset = (i * self.length) as u64;
        let bytes = {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| read_up_to(&mut *file, self.length as u64 + 1))
                .and_then(|read| {
                    if read.len() == self.length + 1 { Ok(read) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
                })
                .map_err(|error| wrong(&self.path, offset, format!("a window could not be read: {error}")))?
        };
        let tokens: Vec<i32> = bytes.into_iter().map(i32::from).collect();
        window(&tokens)
    }
}

/// An example of consecutive tokens. The last token is only a target.
fn window(tokens: &[i32]) -> Result<Example> {
    let length = tokens.len().saturating_sub(1);
    let (tokens, targets) = (&tokens[..length], &tokens[tokens.len() - length..]);
    let (tokens, targets) = (HostArray::from_slice(tokens, &[length])?, HostArray::from_slice(targets, &[length])?);
    Ok(Example::from([("tokens".to_owned(), tokens), ("targets".to_owned(), targets)]))
}

/// Splits tokens, for example from a [`Tokenizer`](super::Tokenizer), into windows of `length`, like [`text_windows()`]
/// splits bytes. Clones share the tokens.
///
/// ```
/// use shardax_train::data::{Source, token_windows};
/// let windows = token_windows((0..10).collect(), 4)?;
/// assert_eq!(windows.len(), 2);
/// assert_eq!(windows.get(1)?["targets"].to_vec::<i32>()?, [5, 6, 7, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `length` is 0, or if there are fewer than `length + 1` tokens.
#[track_caller]
pub fn token_windows(tokens: Vec<i32>, length: usize) -> Result<TokenWindows> {
    if length == 0 || tokens.len() <= length {
        let message = format!("{} tokens are too few for a window of {length} and the token after it", tokens.len());
        return Err(Error::new(ErrorKind::Value, message)
            .help("use a longer text, or a length of at least 1 and less than the number of tokens")
            .at(std::panic::Location::caller()));
    }
    Ok(TokenWindows { tokens: tokens.into(), length })
}

/// The source of [`token_windows()`].
#[derive(Clone, Debug)]
pub struct TokenWindows {
    tokens: Arc<[i32]>,
    length: usize,
}

impl Source for TokenWindows {
    type Item = Example;

    fn len(&self) -> usize {
        (self.tokens.len() - 1) / self.length
    }

    fn get(&self, i: usize) -> Result<Example> {
        let begin = i.saturating_mul(self.length);
        let tokens = self.tokens.get(begin..begin.saturating_add(self.length + 1)).ok_or_else(|| {
            Error::new(ErrorKind::Index, format!("window {i} of {} was requested", self.len()))
                .help("use an index below that number; the first is 0")
        })?;
        window(tokens)
    }
}
