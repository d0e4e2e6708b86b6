//! Collectives of Rust numbers, which are equal on all devices.

use super::Axes;
use crate::core::tree::{Flat, Tree};
use crate::dtype::Scalar;
use crate::error::{Result, err};

/// Applies a collective to the Rust numbers of a tree that are outside of structs: a sum is a multiple, and maxima, means
/// and broadcasts are the number itself. Numbers in structs are configuration and stay.
///
/// # Errors
/// Returns an error for a collective whose result a Rust number cannot hold, because it differs between devices or has
/// another shape, or because its type would have to name mesh axes.
pub(super) fn with_numbers<T: Tree>(x: T, name: &str, axes: &Axes) -> Result<T> {
    let flat = Flat::of(&x);
    let Some(number) = flat.def.plain_number() else { return Ok(x) };
    let is_sum_of_bools = name == "psum" && matches!(number, Scalar::Bool(_));
    let is_equal_everywhere = matches!(name, "pmean" | "pmax" | "pmin" | "pshift" | "pshuffle" | "pbroadcast");
    // Next to arrays, a cast leaves numbers as they are. By itself a number, such as the start of a carry, would stay invariant.
    let is_cast_of_arrays = name == "pcast" && !flat.leaves.is_empty();
    if is_equal_everywhere || is_cast_of_arrays {
        return Ok(x);
    }
    // Groups of different sizes have no single sum.
    if name == "psum" && axes.size != 0 && !is_sum_of_bools {
        let def = flat.def.map_plain_numbers(|number| times(number, axes.size)).map_err(|e| {
            let context = format!("psum of the Rust number {number:?} over {} devices", axes.size);
            e.context(context).help("pass an array, or a number of a wider type")
        })?;
        return Flat { leaves: flat.leaves, def }.build();
    }
    Err(err!(Type, "{name} of the Rust number {number:?}, which is static and cannot hold the result")
        .help(format!("pass an array, `{name}(array({number:?}), …)`; the size of an axis is `axis_size(\"i\")?`")))
}

fn times(number: Scalar, size: usize) -> Scalar {
    match number {
        Scalar::Int(i) => Scalar::Int(i * size as i128),
        other => Scalar::float(other.to_f64() * size as f64),
    }
}
