//! Quantized weights: their formats in files, and models that keep them quantized in memory.

mod groups;
mod method;
mod packed;
mod scaled;
mod source;

pub(crate) use groups::{Groups, Integers};
pub(crate) use method::{Endings, Method};
pub use packed::Packed;
