//! The core: programs and the arrays that they are traced from, trees of arrays, what a primitive is, and its lowering.
//!
//! Tracing, arrays and lowering know each other: an array may be a value of a trace, and a trace ends as text. Nothing
//! here knows a primitive by name.

pub mod array;
pub mod function;
pub mod lower;
pub mod prefix;
pub mod primitive;
pub mod program;
pub(crate) mod sharding_like;
pub(crate) mod sharding_rule;
pub mod tree;
