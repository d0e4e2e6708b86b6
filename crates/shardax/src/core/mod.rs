//! The core layer: programs and their tracer, arrays, trees, the `Primitive` trait, and lowering.
//!
//! Tracing, arrays and lowering refer to each other, because an array can be a value of a trace, and a trace is lowered
//! to text. Nothing here names a particular primitive.

pub(crate) mod argnums;
pub mod array;
pub mod function;
pub mod lower;
pub mod prefix;
pub mod primitive;
pub mod program;
pub(crate) mod sharding_like;
pub(crate) mod sharding_rule;
pub mod tree;
mod tuple_arg;
