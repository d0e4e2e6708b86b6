//! GGUF files, the format of llama.cpp.
//!
//! A GGUF file contains the configuration, the tokenizer and the weights of a model. Most weights are quantized in blocks.
//!
//! You can pass a GGUF file to every function that loads a folder of `transformers`, because
//! [`Config::open`](crate::Config::open) converts the metadata to the fields of `config.json`, and
//! [`Weights::open`](crate::huggingface::Weights::open) converts the names and the row order of the tensors:
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
//! A [`Decoder`](crate::Decoder) stores the weights as float32 arrays. If you need less memory, load a
//! [`Packed`](crate::Packed) decoder instead, which keeps the weights quantized and dequantizes them in the program.

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

/// An opened GGUF file: the metadata, and the names, shapes and offsets of the tensors.
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
    /// All files of the model. The first one is `path`.
    files: Vec<PathBuf>,
    metadata: BTreeMap<String, MetadataValue>,
    tensors: Vec<Tensor>,
}

/// A metadata value of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// An integer of any width.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A string. Bytes that are not UTF-8 are replaced.
    Text(String),
    /// A list of values of the same type.
    List(Vec<MetadataValue>),
}

/// The description of a tensor in a GGUF file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub name: String,
    /// The index of the tensor's file in [`Gguf::files`].
    pub file: usize,
    pub block: BlockType,
    /// The row-major shape, like in `transformers`. The file lists the dimensions in the opposite order.
    pub shape: Vec<usize>,
    /// The position of the first byte in the file.
    pub offset: u64,
    pub bytes: u64,
}

impl Gguf {
    /// Opens a file and reads its metadata and the descriptions of its tensors, but not the values of the tensors.
    ///
    /// If a model has several files, you must pass the first one (`model-00001-of-00003.gguf`). The other files in its
    /// folder are opened too.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, or if its version is neither 2 nor 3. The message contains the
    /// path and the byte offset.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let location = std::panic::Location::caller();
        parse::parse(path.as_ref()).and_then(Gguf::with_other_files).map_err(|error| error.at(location))
    }

    /// Returns `true` if a path ends with `.gguf`.
    pub(crate) fn is_named(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    }

    /// Returns the metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, MetadataValue> {
        &self.metadata
    }

    /// Returns the names and the row-major shapes of the tensors, in the order of the file.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
    }

    /// Returns the architecture, such as `llama` or `qwen3`.
    ///
    /// # Errors
    /// Returns an error if the metadata has no text `general.architecture`.
    #[track_caller]
    pub fn architecture(&self) -> Result<&str> {
        match self.metadata.get("general.architecture") {
            Some(MetadataValue::Text(name)) => Ok(name),
            _ => Err(self.error("its metadata has no string `general.architecture`")),
        }
    }

    /// Returns the paths of all files of the model. [`Tensor::file`] is an index into them.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    pub(crate) fn tensor_list(&self) -> &[Tensor] {
        &self.tensors
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }

    /// Returns the error for contents of the file that are not supported.
    fn error(&self, what: impl std::fmt::Display) -> Error {
        let message = format!("{} cannot be used: {what}", self.path.display());
        value_error(message, "use a file that llama.cpp's `convert_hf_to_gguf.py` or `llama-quantize` wrote")
    }
}

impl MetadataValue {
    /// Returns the value if it is an integer that fits in a `usize`.
    pub fn as_usize(&self) -> Option<usize> {
        match self {
            MetadataValue::Integer(value) => usize::try_from(*value).ok(),
            _ => None,
        }
    }

    /// Returns the value if it is an integer or a floating-point number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            MetadataValue::Integer(value) => Some(*value as f64),
            MetadataValue::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the value if it is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            MetadataValue::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the value if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            MetadataValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the values if it is a list.
    pub fn as_list(&self) -> Option<&[MetadataValue]> {
        match self {
            MetadataValue::List(values) => Some(values),
            _ => None,
        }
    }
}
