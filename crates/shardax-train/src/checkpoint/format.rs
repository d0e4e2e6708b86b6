//! The files of a checkpoint: the manifest, and the names of dtypes and key paths in safetensors files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardax::dtype::Scalar;

pub(super) const FORMAT: &str = "shardax checkpoint";
/// The version of the format; raised when older readers cannot read the new files.
pub(super) const VERSION: u32 = 1;
pub(super) const MANIFEST: &str = "manifest.json";
/// Written last: the checksum of the manifest.
pub(super) const COMMIT: &str = "commit";
/// The number of bytes that share a checksum. A slice of an array is read, and checked, without the rest.
pub(super) const CHUNK: usize = 4 << 20;

/// The manifest of a checkpoint: everything but the arrays' values.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u32,
    /// The version of shardax.
    pub written_by: String,
    pub step: Option<u64>,
    pub processes: usize,
    /// The number of bytes that share a checksum.
    pub chunk: usize,
    /// Metrics that are not finite are null.
    pub metrics: BTreeMap<String, Option<f64>>,
    /// The user's metadata.
    pub metadata: Value,
    /// The plain numbers of the tree: key path and text.
    pub numbers: Vec<(String, String)>,
    pub arrays: Vec<Entry>,
    pub files: Vec<File>,
}

/// An array in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The key path, as `.params.conv1.kernel`.
    pub path: String,
    pub dtype: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weak: bool,
    pub shape: Vec<usize>,
    /// The sharding when it was saved, for people to read.
    pub sharding: String,
    pub parts: Vec<Part>,
}

/// A slice of an array, in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    /// The index of its file in the manifest's list.
    pub file: usize,
    /// The offset in that file, in bytes.
    pub offset: u64,
    /// The index of its first element, one number a dimension.
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    /// The checksum of each chunk.
    pub crc32: Vec<u32>,
}

/// A safetensors file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct File {
    pub name: String,
    pub bytes: u64,
    /// The size of the header in front of the values.
    pub header_bytes: u64,
    pub header_crc32: u32,
}

/// The files that one process wrote, or the reason it could not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Index {
    Written { files: Vec<File>, arrays: Vec<Entry>, host_local: Vec<(String, u32)>, numbers: Vec<(String, String)> },
    Failed(String),
}

/// The name of an array in a safetensors file: its key path, without the leading dot.
pub(super) fn tensor_name(path: &str) -> &str {
    match path.strip_prefix('.').unwrap_or(path) {
        "" => "value",
        name => name,
    }
}

/// A plain number as text that reads back as it was.
pub(super) fn number_text(number: &Scalar) -> String {
    format!("{number:?}")
}

/// Parses a number, of the kind of `like`.
pub(super) fn number_of(text: &str, like: &Scalar) -> Option<Scalar> {
    match like {
        Scalar::Bool(_) => text.parse().ok().map(Scalar::Bool),
        Scalar::Int(_) => text.parse().ok().map(Scalar::Int),
        Scalar::Float(_) => text.parse().ok().map(Scalar::float),
        Scalar::Complex(..) => None,
    }
}
