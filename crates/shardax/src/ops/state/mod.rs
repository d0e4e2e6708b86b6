//! Refs: arrays that are read and written in place while a function is traced.
//!
//! A ref is a numbered place of a state. Each read and write is an equation of its own, in order, with the ref's number
//! as a parameter, so that a ref can be used in loops and branches without being one of their operands.
//! [`Discharge`](discharge::Discharge) turns a program with refs into a function of their values.

mod access;
pub(crate) mod discharge;
mod place;
mod ref_index;
mod refs;

pub(crate) use access::{Access, Get, Swap};
pub(crate) use place::{Entries, number, uninitialized};
pub use ref_index::{Ds, IntoRefIndex, IntoRefIndexItem, RefIndexItem, ds};
pub(crate) use refs::with_refs;
pub use refs::{Ref, RefPart};
