//! NumPy's functions with JAX's promotion, as functions and as methods of `Array`.

mod array_methods;
mod arrays;
pub(crate) mod axes;
mod contraction_order;
mod coordinates;
mod creation;
mod cumulative;
mod einsum;
mod grids;
mod histograms;
mod indexing;
mod limits;
mod linalg;
mod logic;
mod matrices;
mod nonzero;
pub(crate) mod options;
mod ordering;
mod padding;
mod polynomials;
mod quantiles;
mod reductions;
mod repeats;
mod segments;
mod sequences;
mod sets;
mod shapes;
mod stacking;
mod statistics;
mod trimming;
mod ufuncs;
mod wide_padding;
mod windows;

pub use arrays::*;
pub use axes::{AxisNumber, IntoAxes, IntoReduction, Over, over};
pub(crate) use axes::{Options, Reduction, normalize_axes};
pub use coordinates::*;
pub use creation::*;
pub use cumulative::*;
pub use einsum::*;
pub use grids::*;
pub use histograms::*;
pub use indexing::*;
pub use limits::*;
pub use linalg::*;
pub use logic::*;
// Other names of the same functions, in NumPy 2, the array API and older versions of NumPy.
pub use matrices::{TraceOptions, diag, diagonal, trace, tril, triu};
pub(crate) use nonzero::size_or_count;
pub use nonzero::*;
pub use ordering::*;
pub use padding::*;
pub use polynomials::*;
pub use quantiles::*;
pub use reductions::*;
pub use repeats::*;
pub use segments::*;
pub use sequences::*;
pub use sets::*;
pub use shapes::*;
pub use stacking::*;
pub use statistics::*;
pub use trimming::*;
pub use ufuncs::*;
pub use windows::*;

// More names of the same functions, in NumPy 2, the array API and older versions of NumPy.
pub use super::elementwise::*;
pub use super::elementwise::{
    abs as absolute, arccos as acos, arccosh as acosh, arcsin as asin, arcsinh as asinh, arctan as atan,
    arctan2 as atan2, divide as true_divide, left_shift as bitwise_left_shift, power as pow, remainder as mod_,
    right_shift as bitwise_right_shift,
};
pub use super::select::where_;
pub use crate::shape::IntoShape;
pub(crate) use crate::shape::shape_of;
pub use shapes::{concatenate as concat, transpose as permute_dims};
pub use ufuncs::{degrees as rad2deg, radians as deg2rad};

pub(crate) use super::promotion::{
    broadcast_any_ranks, broadcast_args, convert, promote_args, promote_args_of, promote_dtypes, promote_factors,
    to_inexact, to_strong_type,
};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::Result;

/// Checks `like` and runs `f` with the caller's source line. An error becomes an array of the type of `like` that carries it.
#[track_caller]
fn checked_or_failed(like: &Array, f: impl FnOnce() -> Result<Array>) -> Array {
    at_caller(|| Array::from_result(like.check().and_then(|()| f()), like))
}
