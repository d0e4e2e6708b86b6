//! Quantized weights: their formats in files, and models that keep them quantized in memory.

mod groups;
mod packed;
mod source;

pub(crate) use groups::{Groups, Integers};
pub use packed::Packed;
pub(crate) use source::Method;
