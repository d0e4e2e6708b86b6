//! Operations: the primitives, each with all its rules, and the functions that apply them.

pub(crate) mod auto_axes;
pub mod callback;
pub mod checkify;
pub(crate) mod collective;
pub(crate) mod constants;
pub mod control_flow;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod jax_names;
pub mod lax;
#[cfg(feature = "ndarray")]
mod ndarray;
pub mod numpy;
pub(crate) mod operators;
pub mod pallas;
pub mod platform_dependent;
pub(crate) mod primitive;
pub(crate) mod promotion;
pub(crate) mod select;
pub(crate) mod shard_map;
pub(crate) mod state;
