//! Weights of few bits: how files store them, and models that keep them so in memory.

mod groups;
mod packed;
mod source;

pub(crate) use groups::{Groups, Integers};
pub use packed::Packed;
pub(crate) use source::Method;
