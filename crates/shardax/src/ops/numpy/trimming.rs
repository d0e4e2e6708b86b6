//! Zeros at the ends of arrays. The size of the result depends on values, so these functions run outside of `jit`.

use super::{IntoAxes, checked_or_failed, normalize_axes};
use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::error::err;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;

/// The ends from which [`trim_zeros`] removes zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trim {
    /// The first elements (`"f"`).
    Front,
    /// The last elements (`"b"`).
    Back,
    /// Both (`"fb"`).
    #[default]
    Both,
}

/// JAX's names.
impl NamedOption for Trim {
    const KIND: &'static str = "side";
    const NAMES: &'static [(&'static str, Self)] = &[("f", Trim::Front), ("b", Trim::Back), ("fb", Trim::Both)];
}

/// Removes zeros from the ends of an array. Along each of the axes (with `..`, along all), the entries at the ends are removed that
/// contain only zeros. Nothing is left of an array of zeros.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::numpy::{Trim, trim_zeros};
/// let x = array([0, 0, 2, 0, 3, 0]);
/// assert_eq!(trim_zeros(&x, Trim::Both, ..).to_vec::<i32>()?, [2, 0, 3]);
/// assert_eq!(trim_zeros(&x, Trim::Back, ..).to_vec::<i32>()?, [0, 0, 2, 0, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error inside of `jit`, `vmap` and `grad`, because the values determine its size, and for axes that are out
/// of bounds.
#[track_caller]
pub fn trim_zeros(x: impl ArrayLike, trim: impl IntoChoice<Trim>, axes: impl IntoAxes) -> Array {
    let (x, trim) = (&x.into_array(), trim.into_choice());
    checked_or_failed(x, || {
        let trim = trim.value("trim_zeros")?;
        let axes = normalize_axes(axes, x.ndim())?;
        if x.is_traced() {
            return Err(err!(
                Type,
                "trim_zeros of {} needs the values, which are not known in a traced function",
                x.type_name()
            )
            .help("trim the array before the call, or mask the zeros with `where_`"));
        }
        let is_nonzero = x.not_equal(0);
        let (mut start, mut end) = (vec![0; x.ndim()], x.shape().to_vec());
        for &axis in &axes {
            let other: Vec<i32> = (0..x.ndim()).filter(|d| *d != axis).map(|d| d as i32).collect();
            let (first, last) = span(&is_nonzero.any(&other[..]).to_vec::<bool>()?);
            if trim != Trim::Back {
                start[axis] = first;
            }
            if trim != Trim::Front {
                end[axis] = last;
            }
        }
        // Without a nonzero element, all elements are before the first one.
        let end: Vec<usize> = start.iter().zip(end).map(|(start, end)| end.max(*start)).collect();
        Ok(lax::slice(x, &start, &end, None))
    })
}

/// Returns the positions of the first marked entry and after the last one. If none is marked, both are at the end for the first, and
/// at the start for the last.
fn span(is_marked: &[bool]) -> (usize, usize) {
    let first = is_marked.iter().position(|marked| *marked).unwrap_or(is_marked.len());
    let last = is_marked.iter().rposition(|marked| *marked).map_or(0, |last| last + 1);
    (first, last)
}
