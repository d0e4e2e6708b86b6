//! Reductions with an arbitrary function.

use super::reduce_window::Window;
use crate::core::array::Array;
use crate::core::primitive::Primitive;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::{IntoAxes, normalize_axes, size};

/// Checks `init`: a scalar of the dtype of `x`.
fn start(name: &str, x: &Array, init: &Array) -> Result<Array> {
    x.check()?;
    init.check()?;
    let init = if init.weak_type() { init.astype(x.dtype()) } else { init.clone() };
    if init.ndim() == 0 && init.dtype() == x.dtype() {
        return Ok(init);
    }
    Err(err!(
        Type,
        "{name} of {} needs an initial value of its dtype, a scalar, got {}",
        x.type_name(),
        init.type_name()
    )
    .help("convert it with `astype`"))
}

/// Applies `f` to two arrays; the result must have their type.
fn step(name: &str, f: &impl Fn(Array, Array) -> Array, a: Array, b: Array) -> Result<Array> {
    let (shape, dtype) = (a.shape_owned(), a.dtype());
    let made = f(a, b);
    made.check()?;
    if made.shape() == shape.as_slice() && made.dtype() == dtype {
        return Ok(made);
    }
    Err(err!(Type, "{name}: the function of two arrays {dtype}{:?} returned {}", shape.as_slice(), made.type_name())
        .help("it works element by element, and keeps the dtype"))
}

/// Reduces all elements along `axes` (`..` for all) with `f`, in any order, starting from `init`, a neutral
/// scalar.
///
/// `f` takes two arrays of one shape and works elementwise; it must be associative and commutative. It is called
/// `log₂` of the number of elements times, and may be differentiated; sums, products, maxima, minima and
/// logical functions have dedicated operations, which are faster.
///
/// Fails if the result of `f` or `init` has another dtype.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[0.5f32, 1.0], [2.0, 0.25]]);
/// // The length of a vector, without the squares' overflow.
/// let length = lax::reduce(&x, 0.0, |a, b| hypot(&a, &b), 1);
/// assert!(allclose(length, array([1.118034f32, 2.015564]), 1e-5, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reduce(
    x: impl ArrayLike,
    init: impl ArrayLike,
    f: impl Fn(Array, Array) -> Array,
    axes: impl IntoAxes,
) -> Array {
    let (x, init) = (x.into_array(), init.into_array());
    let made = at_caller(|| {
        let init = start("reduce", &x, &init)?;
        let axes = normalize_axes(axes, x.ndim())?;
        let rest: Vec<usize> = (0..x.ndim()).filter(|d| !axes.contains(d)).collect();
        let kept: Vec<usize> = rest.iter().map(|&d| x.shape()[d]).collect();
        let count = size(&axes.iter().map(|&d| x.shape()[d]).collect::<Vec<_>>());
        let order: Vec<usize> = axes.iter().copied().chain(rest).collect();
        let mut left = lax::reshape(&lax::transpose(&x, &order), &[&[count], kept.as_slice()].concat());
        let init = init.broadcast_to(kept.as_slice());
        if count == 0 {
            return Ok(init);
        }
        while left.shape()[0] > 1 {
            let n = left.shape()[0];
            let part = |from: usize, to: usize| lax::slice_in_dim(&left, from, to, 0usize);
            let halves = step("reduce", &f, part(0, n / 2), part(n / 2, n / 2 * 2))?;
            left = if n.is_multiple_of(2) { halves } else { lax::concatenate(&[halves, part(n - 1, n)], 0usize) };
        }
        step("reduce", &f, init, lax::reshape(&left, &kept))
    });
    Array::from_result(made, &x)
}

/// Larger windows would need too many operations.
const MOST_ELEMENTS: usize = 4096;

/// Reduces the elements under a window with `f` at each position, as by [`reduce`]; padding is `init`.
///
/// Fails for windows of more than 4096 elements.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::Window;
/// let y = lax::reduce_window(array([1, 2, 3, 4]), 1, |a, b| a * b, Window::new([2]));
/// assert_eq!(y.to_vec::<i32>()?, [2, 6, 12]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reduce_window(
    x: impl ArrayLike,
    init: impl ArrayLike,
    f: impl Fn(Array, Array) -> Array,
    window: impl Into<Window>,
) -> Array {
    let (x, init) = (x.into_array(), init.into_array());
    let made = at_caller(|| {
        let init = start("reduce_window", &x, &init)?;
        let window = window.into().primitive("reduce_window", &x, Reducer::Sum)?;
        let numbers = x.aval().with_dtype(crate::dtype::DType::F32);
        let out = window.infer(std::slice::from_ref(&numbers))?[0].shape.clone();
        let elements = window.window.iter().fold(1usize, |n, &w| n.saturating_mul(w));
        if elements > MOST_ELEMENTS {
            return Err(err!(
                Value,
                "reduce_window with a window of {:?} combines {elements} elements at each place",
                window.window.as_slice()
            )
            .help("`reduce_window_sum`, `_max` and `_min` take larger windows"));
        }
        let filled = init.broadcast_to(out.as_slice());
        if out.contains(&0) || elements == 0 {
            return Ok(filled);
        }
        let padded = lax::pad(&x, &init, &window.pad_config());
        padded.check()?;
        window.slices(&padded, &out).into_iter().try_fold(filled, |sum, part| step("reduce_window", &f, sum, part))
    });
    Array::from_result(made, &x)
}
