//! The reference values from JAX (`tools/golden/README.md` has the format): reading them, and comparing with them.

mod check;
mod read;

pub mod binary;
pub mod control;
pub mod conv;
pub mod convert;
pub mod dot;
pub mod index;
pub mod linalg;
pub mod nn;
pub mod promotion;
pub mod random;
pub mod reduce;
pub mod select;
pub mod shape;
pub mod sort;
pub mod transform;
pub mod unary;
pub mod window;

pub use check::check_family;
pub use read::{Case, Host, dtype, family, golden_dir};

use shardax::prelude::*;

/// The function of a case.
pub type Fun = Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>;

/// A function of one array.
pub fn one(f: impl Fn(&Array) -> Array + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![f(&xs[0])]))
}

/// A function of two arrays.
pub fn two(f: impl Fn(&Array, &Array) -> Array + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![f(&xs[0], &xs[1])]))
}

/// A function of three arrays.
pub fn three(f: impl Fn(&Array, &Array, &Array) -> Array + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![f(&xs[0], &xs[1], &xs[2])]))
}

/// Any function.
pub fn many(f: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static) -> Option<Fun> {
    Some(Box::new(f))
}
