//! Files of llama.cpp: one GGUF file with the configuration, the tokenizer and the weights, most of them in blocks of few bits.
//!
//! [`Config::open`](crate::Config::open) and [`Weights::open`](crate::huggingface::Weights::open) read such a file as if it were a
//! folder of `transformers`: the configuration has the fields of `config.json`, and the arrays have the names and the order of rows that
//! `transformers` gives them. So every function that loads a folder loads a GGUF file too:
//!
//! ```no_run
//! use shardax_models::{Decoder, GenerateOptions, Pretrained};
//! use shardax_nn::prelude::*;
//!
//! let model = Decoder::from_pretrained("Qwen3-0.6B-Q8_0.gguf")?;
//! let written = model.generate(&[vec![464, 3290]], &GenerateOptions::new(20))?;
//! # let _ = written;
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! This makes float32 arrays of the weights. [`Packed`](crate::Packed) keeps the blocks in memory and widens them in the program.

mod blocks;
mod config;
mod names;
mod parse;
mod split;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use shardax::error::{Error, Result};

pub(crate) use blocks::{BlockType, doubled_e2m1, half_of_power};
pub(crate) use names::{Change, Translated};

use crate::error::value_error;

/// A GGUF file: its metadata, and where its tensors are.
///
/// ```no_run
/// use shardax_models::gguf::Gguf;
/// let file = Gguf::open("Qwen3-0.6B-Q8_0.gguf")?;
/// println!("{} with {} tensors", file.architecture()?, file.tensors().count());
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    path: PathBuf,
    /// The files of the tensors, of which `path` is the first one.
    files: Vec<PathBuf>,
    metadata: BTreeMap<String, MetadataValue>,
    tensors: Vec<Tensor>,
}

/// A value of a GGUF file's metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// An integer of any width.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Values of one type.
    List(Vec<MetadataValue>),
}

/// A tensor's name, type, shape and place.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub name: String,
    /// The index of the tensor's file.
    pub file: usize,
    pub block: BlockType,
    /// Row-major, as `transformers` has it: the file lists the dimensions in the opposite order.
    pub shape: Vec<usize>,
    pub offset: u64,
    pub bytes: u64,
}

impl Gguf {
    /// Opens a file and reads everything but its tensors' values. If it is the first one of several
    /// (`model-00001-of-00003.gguf`), the others next to it are opened too.
    ///
    /// Fails, with the file and the position in it, if a file is damaged or of another version than 2 and 3, and if a file
    /// of several is missing.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let location = std::panic::Location::caller();
        parse::parse(path.as_ref()).and_then(Gguf::with_other_files).map_err(|error| error.at(location))
    }

    /// Returns `true` if a path ends with `.gguf`.
    pub(crate) fn is_named(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    }

    /// The metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, MetadataValue> {
        &self.metadata
    }

    /// The names and shapes of the tensors, row-major, in the file's order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
    }

    /// The architecture, such as `llama` or `qwen3`.
    #[track_caller]
    pub fn architecture(&self) -> Result<&str> {
        match self.metadata.get("general.architecture") {
            Some(MetadataValue::Text(name)) => Ok(name),
            _ => Err(self.error("it has no text `general.architecture`")),
        }
    }

    /// The files that the tensors' `file` counts.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    pub(crate) fn tensor_list(&self) -> &[Tensor] {
        &self.tensors
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }

    /// An error of the file's contents.
    fn error(&self, what: impl std::fmt::Display) -> Error {
        let message = format!("{} cannot be used: {what}", self.path.display());
        value_error(message, "use a file that llama.cpp's `convert_hf_to_gguf.py` or `llama-quantize` wrote")
    }
}

impl MetadataValue {
    /// The integer, if it is one that fits `usize`.
    pub fn as_usize(&self) -> Option<usize> {
        match self {
            MetadataValue::Integer(value) => usize::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            MetadataValue::Integer(value) => Some(*value as f64),
            MetadataValue::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The flag.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            MetadataValue::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            MetadataValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The values of a list.
    pub fn as_list(&self) -> Option<&[MetadataValue]> {
        match self {
            MetadataValue::List(values) => Some(values),
            _ => None,
        }
    }
}
