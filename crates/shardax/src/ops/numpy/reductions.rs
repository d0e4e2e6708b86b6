//! Reductions: sum, mean, extremes, and functions based on them.

use std::fmt::Debug;
use std::hash::Hash;

use super::axes::{IntoAxes, IntoReduction, Options, Over, Reduction, over};
use super::indexing::{IntoAxis, with_axis};
use super::options::options;
use super::{convert, maximum, minimum, to_inexact, to_strong_type, where_};
use crate::core::array::Array;
use crate::core::program::trace::bind1;
use crate::dtype::{Category, DType};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::reduce::{ArgMax, Reduce, Reducer, accumulator, in_accumulator};
use crate::source;

impl Array {
    #[track_caller]
    fn reduced(
        &self,
        name: &str,
        options: Options,
        axes: impl IntoReduction,
        f: impl FnOnce(&Array, &Reduction) -> Result<Array>,
    ) -> Array {
        let _line = source::enter();
        let result = Reduction::new(name, self, axes.into_reduction(), options).and_then(|over| {
            let x = over.typed(self);
            Ok(over.shaped(&x, f(&x, &over)?))
        });
        Array::from_result(result, self)
    }

    /// Like [`reduced`](Self::reduced), as one program outside of `jit`. The function captures nothing.
    #[track_caller]
    fn reduced_at_once<P, F>(
        &self,
        name: &'static str,
        options: Options,
        axes: impl IntoReduction,
        params: P,
        f: F,
    ) -> Array
    where
        P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
        F: Fn(&P, &Array, &Reduction) -> Result<Array> + Send + Sync + 'static,
    {
        self.reduced(name, options, axes, |x, over| {
            if over.is_masked() {
                return f(&params, x, over);
            }
            composite1(name, (params, over.axes.clone()), std::slice::from_ref(x), move |(params, axes), args| {
                Ok(vec![f(params, &args[0], &Reduction::over_axes(axes))?])
            })
        })
    }

    /// Returns the sum over `axes`. Booleans are counted. Integers keep their dtype and wrap, but small integers are
    /// converted to 32 bits. Half precision is summed in float32 and rounded once.
    ///
    /// Like all reductions, it accepts axes (`..` for all), or [`over`] axes with options.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([[1, 2, 3], [4, 5, 6]]);
    /// assert_eq!(x.sum(..).item::<i32>()?, 21);
    /// assert_eq!(x.sum(0).to_vec::<i32>()?, [5, 7, 9]);
    /// assert_eq!(x.sum([0, 1]).item::<i32>()?, 21);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn sum(&self, axes: impl IntoReduction) -> Array {
        let reduction = axes.into_reduction();
        let widens = !reduction.has_dtype();
        self.reduced("sum", Options::InitialAndDType, reduction, |x, over| {
            let count = over.axes.iter().map(|&d| x.shape()[d]).product();
            let x = if widens { widen(x, count) } else { x.clone() };
            let sum = Reduce { reducer: Reducer::Sum, axes: over.axes.clone(), out: over.out(&x)? };
            let sum = sum.apply(&over.masked(&x, 0));
            Ok(match over.initial(&sum) {
                Some(initial) => sum + initial,
                None => sum,
            })
        })
    }

    /// Returns the product over `axes`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2], [3, 4]]).prod(0).to_vec::<i32>()?, [3, 8]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn prod(&self, axes: impl IntoReduction) -> Array {
        let reduction = axes.into_reduction();
        let widens = !reduction.has_dtype();
        self.reduced("prod", Options::InitialAndDType, reduction, |x, over| {
            // In half precision the gradient, a product of all other elements, is also rounded only once.
            let x = if widens { widen(x, 1) } else { x.clone() };
            let wide = to_strong_type(&over.masked(&x, 1), accumulator(x.dtype()));
            let product = to_strong_type(&lax::reduce_with(&wide, Reducer::Prod, &over.axes), x.dtype());
            Ok(match over.initial(&product) {
                Some(initial) => product * initial,
                None => product,
            })
        })
    }

    /// Returns the mean over `axes`, floating point, or NaN without elements. Half precision is summed in float32. With
    /// an integer dtype requested, the elements and their mean are truncated.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 2], [3, 4]]).mean(0).to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn mean(&self, axes: impl IntoReduction) -> Array {
        let reduction = axes.into_reduction();
        let is_requested = reduction.has_dtype();
        self.reduced("mean", Options::DType, reduction, |x, over| {
            let dtype = to_inexact(x.dtype());
            let sum =
                lax::reduce_with(&over.masked(&to_strong_type(x, accumulator(dtype)), 0), Reducer::Sum, &over.axes);
            Ok(to_strong_type(&(sum / over.count(x)), if is_requested { x.dtype() } else { dtype }))
        })
    }

    /// Returns the variance of the entire population over `axes`, floating point.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1.0f32, 3.0]).var(..).item::<f32>()?, 1.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn var(&self, axes: impl IntoReduction) -> Array {
        self.var_ddof(axes, 0)
    }

    /// Returns the sum of squared differences from the mean, divided by the number of elements minus `ddof`. With 1, it
    /// estimates the variance of the population from which the elements were drawn. NaN unless there are more than
    /// `ddof` elements.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1.0f32, 3.0]).var_ddof(.., 1).item::<f32>()?, 2.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn var_ddof(&self, axes: impl IntoReduction, ddof: usize) -> Array {
        self.reduced_at_once("var", Options::DType, axes, ddof, |&ddof, x, over| {
            Ok(round_statistic(x, &variance(x, over, ddof)))
        })
    }

    /// Returns the standard deviation of the entire population over `axes`, floating point.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1.0f32, 5.0]).std(..).item::<f32>()?, 2.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn std(&self, axes: impl IntoReduction) -> Array {
        self.std_ddof(axes, 0)
    }

    /// Returns the square root of [`var_ddof`](Self::var_ddof).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1.0f32, 3.0]).std_ddof(.., 1).item::<f32>()?, 2f32.sqrt());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn std_ddof(&self, axes: impl IntoReduction, ddof: usize) -> Array {
        self.reduced_at_once("var", Options::DType, axes, ddof, |&ddof, x, over| {
            Ok(round_statistic(x, &variance(x, over, ddof).sqrt()))
        })
    }

    /// Returns the largest element over `axes`, or NaN if any element is NaN. Without elements, it fails unless there
    /// is an initial value.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 5], [3, 4]]).max(0).to_vec::<i32>()?, [3, 5]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn max(&self, axes: impl IntoReduction) -> Array {
        self.extreme("max", axes, Reducer::Max, maximum)
    }

    /// Returns the smallest element over `axes`, or NaN if any element is NaN. Without elements, it fails unless there
    /// is an initial value.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 5], [3, 4]]).min(0).to_vec::<i32>()?, [1, 4]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn min(&self, axes: impl IntoReduction) -> Array {
        self.extreme("min", axes, Reducer::Min, minimum)
    }

    #[track_caller]
    fn extreme(
        &self,
        name: &str,
        axes: impl IntoReduction,
        reducer: Reducer,
        combine: fn(Array, Array) -> Array,
    ) -> Array {
        self.reduced(name, Options::Initial, axes, |x, over| {
            let Some(initial) = over.initial(x) else {
                if over.is_masked() {
                    return Err(err!(
                        Value,
                        "reduction operation {name} does not have an identity, so to use a where mask one has to specify 'initial'"
                    )
                    .help("pass an initial value with `over(axes).mask(mask).initial(value)`"));
                }
                if over.axes.iter().any(|&a| x.shape()[a] == 0) {
                    return Err(err!(
                        Value,
                        "zero-size array to reduction operation {name} which has no identity: {} over axes {:?}",
                        x.type_name(),
                        over.axes
                    )
                    .help("pass an array with elements, or an initial value with `over(axes).initial(value)`"));
                }
                return Ok(Reduce { reducer, axes: over.axes.clone(), out: over.out(x)? }.apply(x));
            };
            // The initial value also replaces masked elements, so that it decides for empty and masked reductions.
            let reduce = Reduce { reducer, axes: over.axes.clone(), out: over.out(x)? };
            Ok(combine(reduce.apply(&over.masked(x, &initial)), initial))
        })
    }

    /// Computes the logical "and" over `axes`: `true` if all elements are true or nonzero.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 0], [3, 4]]).all(1).to_vec::<bool>()?, [false, true]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn all(&self, axes: impl IntoReduction) -> Array {
        self.reduced("all", Options::None, axes, |x, over| {
            Ok(lax::reduce_with(&over.masked(&truth(x), true), Reducer::And, &over.axes))
        })
    }

    /// Computes the logical "or" over `axes`: `true` if any element is true or nonzero.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[0, 0], [3, 0]]).any(1).to_vec::<bool>()?, [false, true]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn any(&self, axes: impl IntoReduction) -> Array {
        self.reduced("any", Options::None, axes, |x, over| {
            Ok(lax::reduce_with(&over.masked(&truth(x), false), Reducer::Or, &over.axes))
        })
    }

    /// Returns the index, int32, of the first maximum along `axis`; `..` is for the flat array. NaN is the largest.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([[1, 9], [7, 4]]);
    /// assert_eq!(x.argmax(1).to_vec::<i32>()?, [1, 0]);
    /// assert_eq!(x.argmax(..).item::<i32>()?, 1);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn argmax(&self, axis: impl IntoAxis) -> Array {
        self.arg_extreme(axis, false)
    }

    /// Returns the index, int32, of the first minimum along `axis`; `..` is for the flat array. NaN is the smallest.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([[1, 9], [7, 4]]).argmin(1).to_vec::<i32>()?, [0, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn argmin(&self, axis: impl IntoAxis) -> Array {
        self.arg_extreme(axis, true)
    }

    #[track_caller]
    fn arg_extreme(&self, axis: impl IntoAxis, min: bool) -> Array {
        match with_axis(self, axis) {
            Ok((x, axis)) => {
                let index_dtype = DType::for_indices(&x.shape()[axis..=axis]);
                bind1(ArgMax { min, axis, index_dtype }, &[x])
            }
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// Computes `log(sum(exp(x)))` over `axes`, without overflow.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1000.0f32, 1000.0]).logsumexp(..).item::<f32>()?, 1000.0 + 2f32.ln());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, axes: impl IntoReduction) -> Array {
        self.reduced_at_once("logsumexp", Options::None, axes, (), |(), x, over| {
            let x = over.masked(&to_strong_type(x, to_inexact(x.dtype())), f64::NEG_INFINITY);
            Ok(in_accumulator(&x, |x| {
                let max = lax::reduce_with(&super::real(x), Reducer::Max, &over.axes);
                let max = crate::ops::primitive::stop_gradient::stop_gradient(where_(max.isfinite(), &max, 0));
                let dims: Vec<usize> = (0..x.ndim()).filter(|d| !over.axes.contains(d)).collect();
                let shifted = x - max.broadcast_in_dim(x.shape(), &dims);
                lax::reduce_with(&shifted.exp(), Reducer::Sum, &over.axes).log() + max
            }))
        })
    }

    /// Like [`sum`](Self::sum), but keeps the reduced axes with size 1.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(ones([2, 3]).sum_keepdims(1).shape(), [2, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn sum_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.sum(over(axes).keepdims(true))
    }

    /// Like [`prod`](Self::prod), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn prod_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.prod(over(axes).keepdims(true))
    }

    /// Like [`all`](Self::all), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn all_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.all(over(axes).keepdims(true))
    }

    /// Like [`any`](Self::any), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn any_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.any(over(axes).keepdims(true))
    }

    /// Like [`std`](Self::std), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn std_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.std(over(axes).keepdims(true))
    }

    /// Like [`logsumexp`](Self::logsumexp), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn logsumexp_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.logsumexp(over(axes).keepdims(true))
    }

    /// Like [`mean`](Self::mean), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn mean_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.mean(over(axes).keepdims(true))
    }

    /// Like [`var`](Self::var), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn var_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.var(over(axes).keepdims(true))
    }

    /// Like [`max`](Self::max), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn max_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.max(over(axes).keepdims(true))
    }

    /// Like [`min`](Self::min), but keeps the reduced axes with size 1.
    #[track_caller]
    pub fn min_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.min(over(axes).keepdims(true))
    }
}

/// Rounds a variance or a standard deviation of `x` to the real dtype of `x`, or to float32 for integers.
#[track_caller]
fn round_statistic(x: &Array, statistic: &Array) -> Array {
    to_strong_type(statistic, to_inexact(x.dtype()).real())
}

/// See [`Array::var_ddof`]. The result has the accumulation dtype, because the variance of numbers of half precision may exceed
/// their range where the standard deviation does not.
#[track_caller]
fn variance(x: &Array, over: &Reduction, ddof: usize) -> Array {
    let dtype = to_inexact(x.dtype());
    let wide = to_strong_type(x, accumulator(dtype));
    let centered = &wide - wide.mean(over.inner());
    let squares =
        if dtype.is_complex() { super::real(&(&centered * super::conj(&centered))) } else { &centered * &centered };
    let sum = lax::reduce_with(&over.masked(&squares, 0), Reducer::Sum, &over.axes);
    if over.is_masked() {
        let divisor = over.count(x) - ddof as f64;
        return where_(divisor.greater(0), sum / &divisor, f64::NAN);
    }
    let count: usize = over.axes.iter().map(|&a| x.shape()[a]).product();
    let mean = sum / (count as f64 - ddof as f64);
    // As in JAX, the undefined quotient is part of the program, so that gradients are NaN too.
    if count > ddof { mean } else { where_(false, mean, f64::NAN) }
}

/// Returns the smallest and the largest element over `axes`: [`Array::min`] and [`Array::max`].
///
/// ```
/// # use shardax::prelude::*;
/// let (least, most) = shardax::numpy::minmax(array([[1, 5], [3, 4]]), 0);
/// assert_eq!((least.to_vec::<i32>()?, most.to_vec::<i32>()?), (vec![1, 4], vec![3, 5]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Without elements, it fails unless there is an initial value.
#[track_caller]
pub fn minmax(x: impl ArrayLike, axes: impl IntoReduction) -> (Array, Array) {
    let (x, over) = (x.into_array(), axes.into_reduction());
    (x.min(over.clone()), x.max(over))
}

macro_rules! reduction_functions {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
            x.into_array().$name(axes)
        }
    )*};
}

reduction_functions! {
    /// Sums elements; see [`Array::sum`].
    sum;
    /// Returns the mean of elements; see [`Array::mean`].
    mean;
    /// Multiplies elements; see [`Array::prod`].
    prod;
    /// Returns the variance of elements; see [`Array::var`].
    var;
    /// Returns the standard deviation of elements; see [`Array::std`].
    std;
    /// Returns the logarithm of the sum of exponentials; see [`Array::logsumexp`].
    logsumexp;
    /// Returns the largest elements; see [`Array::max`].
    max;
    /// Returns the smallest elements; see [`Array::min`].
    min;
    /// Returns `true` if all elements are true; see [`Array::all`].
    all;
    /// Returns `true` if any element is true; see [`Array::any`].
    any;
}

// NumPy's older names.
pub use max as amax;
pub use min as amin;

options! {
    /// Options of [`logsumexp`](logsumexp()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::LogsumexpOptions;
    /// let x = array([0.0f32, 0.0]);
    /// let (log, sign) = LogsumexpOptions::new().b(array([1.0f32, -3.0])).return_sign(&x, ..);
    /// assert_eq!((log.item::<f32>()?, sign.item::<f32>()?), (2f32.ln(), -1.0));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    LogsumexpOptions {
        /// Factors of the exponentials, which broadcast with the array.
        b: Option<Array> = None, |b: impl ArrayLike| Some(b.into_array());
    }
}

impl LogsumexpOptions {
    /// See [`logsumexp`](logsumexp()). NaN where a sum is negative.
    #[track_caller]
    pub fn logsumexp(&self, x: impl ArrayLike, axes: impl IntoReduction) -> Array {
        let (x, axes) = (x.into_array(), axes.into_reduction());
        if self.b.is_none() {
            return x.logsumexp(axes);
        }
        // The logarithm of a negative number is NaN, and a complex number has one.
        self.reduced(&x, axes, |sum, max| sum.log() + max)
    }

    /// Returns the logarithm of the absolute value of the sum, and its sign.
    #[track_caller]
    pub fn return_sign(&self, x: impl ArrayLike, axes: impl IntoReduction) -> (Array, Array) {
        let (x, axes) = (x.into_array(), axes.into_reduction());
        let log = self.reduced(&x, axes.clone(), |sum, max| sum.abs().log() + max);
        (log, self.reduced(&x, axes, |sum, _| sum.sign()))
    }

    /// Computes the sum of the exponentials divided by `exp(max)`, and returns `finish(sum, max)`.
    #[track_caller]
    fn reduced(&self, x: &Array, axes: Over, finish: fn(Array, Array) -> Array) -> Array {
        let b = self.b.clone().unwrap_or_else(|| 1.into_array());
        let args =
            super::promote_dtypes(&[x, &b], to_inexact).and_then(|args| super::broadcast_args("logsumexp", &args));
        let args = match args {
            Ok(args) => args,
            Err(e) => return Array::from_result(Err(e), x),
        };
        let shape = if args[0].ndim() >= args[1].ndim() { args[0].shape_owned() } else { args[1].shape_owned() };
        let x = args[0].broadcast_to(&shape);
        x.reduced("logsumexp", Options::None, axes, |x, over| {
            let b = over.masked(&args[1].broadcast_to(x.shape()), 0);
            let x = where_(b.not_equal(0), x, f64::NEG_INFINITY);
            // The maximum only prevents overflow, so it has no gradient.
            let max = lax::reduce_with(&super::real(&x), Reducer::Max, &over.axes);
            let max = crate::ops::primitive::stop_gradient::stop_gradient(where_(max.isfinite(), &max, 0));
            let dims: Vec<usize> = (0..x.ndim()).filter(|d| !over.axes.contains(d)).collect();
            Ok(in_accumulator(&x, |x| {
                let shifted = x - max.broadcast_in_dim(x.shape(), &dims);
                let sum = lax::reduce_with(&(shifted.exp() * b), Reducer::Sum, &over.axes);
                finish(sum, max)
            }))
        })
    }
}

/// Returns the indices of the largest elements; see [`Array::argmax`].
#[track_caller]
pub fn argmax(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    x.into_array().argmax(axis)
}

/// Returns the indices of the smallest elements; see [`Array::argmin`].
#[track_caller]
pub fn argmin(x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    x.into_array().argmin(axis)
}

/// Converts to the dtype for sums of `count` elements, because booleans and small integers would overflow.
pub(super) fn widen(x: &Array, count: usize) -> Array {
    let dtype = match x.dtype() {
        DType::Bool => DType::for_indices(&[count]),
        DType::I2 | DType::I4 | DType::I8 | DType::I16 => DType::I32,
        DType::U2 | DType::U4 | DType::U8 | DType::U16 => DType::U32,
        d => d,
    };
    convert(x, dtype, x.weak_type())
}

fn truth(x: &Array) -> Array {
    if x.dtype().category() == Category::Bool { x.clone() } else { x.not_equal(0) }
}
