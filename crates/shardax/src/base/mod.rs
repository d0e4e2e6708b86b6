//! The vocabulary of all layers: element types, shapes, errors and warnings, settings of the process and of threads.
//!
//! The crate's root re-exports these modules, so that other files write `crate::error` instead of `crate::base::error`.

pub mod choice;
pub(crate) mod client_options;
pub(crate) mod compiler_options;
pub mod config;
pub(crate) mod default_dtype;
pub(crate) mod defaults;
pub(crate) mod dependence;
pub mod dtype;
pub mod error;
pub(crate) mod fast_hash;
pub(crate) mod flag;
pub(crate) mod forbidden_axes;
pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod precision;
pub(crate) mod prng;
pub(crate) mod rank_promotion;
pub(crate) mod scope;
pub(crate) mod settings;
pub mod shape;
pub(crate) mod source;
pub(crate) mod stack;
pub(crate) mod timeline;
pub(crate) mod transfer_guard;
pub(crate) mod tuples;
pub(crate) mod warning;
