//! The reference values from JAX (`tools/golden/README.md` has the format): reading them, and comparing with them.

mod check;
pub mod compare;
pub mod other_platforms;
#[path = "../common/quick.rs"]
pub mod quick;
pub mod read;

pub mod binary;
pub mod control;
pub mod conv;
pub mod convert;
pub mod distributions;
pub mod dot;
pub mod edges;
pub mod experimental;
pub mod fft;
pub mod half;
pub mod image;
pub mod index;
pub mod larger;
pub mod linalg;
pub mod matrices;
pub mod narrow;
pub mod nn;
pub mod numpy;
pub mod numpy_options;
pub mod pallas;
pub mod promotion;
pub mod random;
pub mod ranks;
pub mod reduce;
pub mod science;
pub mod scipy;
pub mod select;
pub mod shape;
pub mod sort;
pub mod special;
pub mod split;
pub mod stats;
pub mod systematic;
pub mod texts;
pub mod transform;
pub mod unary;
pub mod ways;
pub mod window;

pub use check::check_family;
pub use quick::one_of;
pub use read::{Case, Host, dtype, family, golden_dir};

use std::cell::Cell;
use std::panic::Location;

use shardax::prelude::*;

/// The function of a case.
pub type Fun = Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>;

thread_local! {
    static MADE_AT: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Where the function that was made last, by [`one`] to [`many`], is written.
pub fn made_at() -> Option<&'static Location<'static>> {
    MADE_AT.get()
}

/// A function of one array.
#[track_caller]
pub fn one(f: impl Fn(&Array) -> Array + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![f(&xs[0])]))
}

/// A function of two arrays.
#[track_caller]
pub fn two(f: impl Fn(&Array, &Array) -> Array + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![f(&xs[0], &xs[1])]))
}

/// A function of three arrays.
#[track_caller]
pub fn three(f: impl Fn(&Array, &Array, &Array) -> Array + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![f(&xs[0], &xs[1], &xs[2])]))
}

/// Any function.
#[track_caller]
pub fn many(f: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static) -> Option<Fun> {
    MADE_AT.set(Some(Location::caller()));
    Some(Box::new(f))
}
