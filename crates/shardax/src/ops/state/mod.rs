//! Refs: arrays that are read and written in place while a function is traced.
//!
//! A ref is a numbered part of a state. Each read and write is a separate equation, in order, with the ref's number as
//! a parameter, so that loops and branches can use a ref that is not one of their operands.
//! [`Discharge`](discharge::Discharge) converts a kernel with refs to a function of their values.
//! [`Threaded`](threaded::Threaded) does the same for the refs that a function makes itself ([`new_ref`]) when its
//! trace ends, so that transformations, lowering and export see no refs. A ref made outside of every trace stores its
//! value in a cell; a compiled function receives the cell's value as a captured array and returns the new value
//! ([`lift`](lift::lift)).

mod access;
mod cell;
pub(crate) mod discharge;
pub(crate) mod lift;
mod new_ref;
mod place;
mod ref_index;
mod refs;
mod threaded;

/// The first number of refs that `new_ref` creates. Refs of a kernel are numbered from 0.
const FIRST_REF_NUMBER: usize = usize::MAX / 2;

pub(crate) use access::{Access, Get, Swap};
pub use new_ref::new_ref;
pub(crate) use place::{Entries, number, uninitialized};
pub use ref_index::{Ds, IntoRefIndex, IntoRefIndexItem, RefIndexItem, ds};
pub(crate) use refs::with_refs;
pub use refs::{Ref, RefPart};
pub(crate) use threaded::check_unwritten;
