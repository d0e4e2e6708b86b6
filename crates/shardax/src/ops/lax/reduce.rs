//! Reductions with an arbitrary function.

use super::reduce_window::Window;
use crate::core::array::Array;
use crate::core::primitive::Primitive;
use crate::core::program::trace::or_failed;
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
    let result = f(a, b);
    result.check()?;
    if result.shape() == shape.as_slice() && result.dtype() == dtype {
        return Ok(result);
    }
    Err(err!(Type, "{name}: the function of two arrays {dtype}{:?} returned {}", shape.as_slice(), result.type_name())
        .help("the function must work elementwise and return the shape and dtype of its arguments"))
}

/// Reduces the elements along `axes` (`..` for all) with `f`, in any order. The scalar `init` must be neutral with
/// respect to `f`.
///
/// `f` receives two arrays of the same shape and must work elementwise; it must be associative and commutative. It is
/// called `log₂` of the number of elements times, and can be differentiated. For sums, products, maxima, minima and
/// logical functions, you should use the dedicated operations, because they are faster.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[0.5f32, 1.0], [2.0, 0.25]]);
/// // The length of a vector, without the squares' overflow.
/// let length = lax::reduce(&x, 0.0, |a, b| hypot(&a, &b), 1);
/// assert!(allclose(length, array([1.118034f32, 2.015564]), 1e-5, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the result of `f` or `init` has another dtype.
#[track_caller]
pub fn reduce(
    x: impl ArrayLike,
    init: impl ArrayLike,
    f: impl Fn(Array, Array) -> Array,
    axes: impl IntoAxes,
) -> Array {
    let (x, init) = (x.into_array(), init.into_array());
    or_failed(&x, || {
        let init = start("reduce", &x, &init)?;
        let axes = normalize_axes(axes, x.ndim())?;
        let other_axes: Vec<usize> = (0..x.ndim()).filter(|d| !axes.contains(d)).collect();
        let out_shape: Vec<usize> = other_axes.iter().map(|&d| x.shape()[d]).collect();
        let count = size(&axes.iter().map(|&d| x.shape()[d]).collect::<Vec<_>>());
        let order: Vec<usize> = axes.iter().copied().chain(other_axes).collect();
        let mut partial = lax::reshape(&lax::transpose(&x, &order), &[&[count], out_shape.as_slice()].concat());
        let init = init.broadcast_to(out_shape.as_slice());
        if count == 0 {
            return Ok(init);
        }
        // Combines the two halves until one element is left.
        while partial.shape()[0] > 1 {
            let n = partial.shape()[0];
            let [first, second] = [0, n / 2].map(|start| lax::slice_in_dim(&partial, start, start + n / 2, 0usize));
            let halves = step("reduce", &f, first, second)?;
            partial = if n.is_multiple_of(2) {
                halves
            } else {
                lax::concatenate(&[halves, lax::slice_in_dim(&partial, n - 1, n, 0usize)], 0usize)
            };
        }
        step("reduce", &f, init, lax::reshape(&partial, &out_shape))
    })
}

/// The largest number of window elements. It is limited because each element is an operation of the program.
const MAX_ELEMENTS: usize = 4096;

/// Reduces the elements under a window at each position with `f`, like [`reduce`]. The padding is `init`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::Window;
/// let y = lax::reduce_window(array([1, 2, 3, 4]), 1, |a, b| a * b, Window::new([2]));
/// assert_eq!(y.to_vec::<i32>()?, [2, 6, 12]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for windows of more than 4096 elements.
#[track_caller]
pub fn reduce_window(
    x: impl ArrayLike,
    init: impl ArrayLike,
    f: impl Fn(Array, Array) -> Array,
    window: impl Into<Window>,
) -> Array {
    let (x, init) = (x.into_array(), init.into_array());
    or_failed(&x, || {
        let init = start("reduce_window", &x, &init)?;
        let window = window.into().primitive("reduce_window", &x, Reducer::Sum)?;
        let numbers = x.aval().with_dtype(crate::dtype::DType::F32);
        let out = window.infer(std::slice::from_ref(&numbers))?[0].shape.clone();
        let elements = window.window.iter().fold(1usize, |n, &w| n.saturating_mul(w));
        if elements > MAX_ELEMENTS {
            return Err(err!(
                Value,
                "reduce_window with a window of {:?} combines {elements} elements at each place",
                window.window.as_slice()
            )
            .help("use `reduce_window_sum`, `reduce_window_max` or `reduce_window_min`, which accept larger windows"));
        }
        // Combines whole slices, one for each position in the window, instead of windows.
        let filled = init.broadcast_to(out.as_slice());
        if out.contains(&0) || elements == 0 {
            return Ok(filled);
        }
        let padded = lax::pad(&x, &init, &window.pad_config());
        padded.check()?;
        window.slices(&padded, &out).into_iter().try_fold(filled, |sum, part| step("reduce_window", &f, sum, part))
    })
}
