//! Reductions: sum, mean, extremes, and what is made of them.

use std::ops::RangeFull;

use smallvec::SmallVec;

use super::indexing::{IntoAxis, with_axis};
use super::{convert, to_inexact};
use crate::core::array::Array;
use crate::core::program::trace::bind1;
use crate::dtype::{Category, DType};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::Operand;
use crate::ops::primitive::reduce::{ArgMax, Reducer, accumulator};
use crate::shape::normalize_axis;
use crate::source;

/// Which axes: `..` for all, one number, or several. Negative axes count from the end.
pub trait IntoAxes {
    /// The axes as written; `None` for all.
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>>;
}

impl IntoAxes for RangeFull {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        None
    }
}

impl IntoAxes for i32 {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(smallvec::smallvec![self])
    }
}

impl<const N: usize> IntoAxes for [i32; N] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(self.into_iter().collect())
    }
}

impl IntoAxes for &[i32] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(self.into())
    }
}

/// The axes, counted from the front and sorted.
pub(crate) fn normalize_axes(axes: impl IntoAxes, rank: usize) -> Result<SmallVec<[usize; 4]>> {
    let Some(axes) = axes.into_axes() else { return Ok((0..rank).collect()) };
    let mut out: SmallVec<[usize; 4]> =
        axes.iter().map(|&a| normalize_axis(a as isize, rank)).collect::<Result<_>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        return Err(err!(Value, "axes {:?} name one axis twice", axes.as_slice())
            .help("name each axis once; negative axes count from the end"));
    }
    Ok(out)
}

impl Array {
    #[track_caller]
    fn reduced(&self, axes: impl IntoAxes, f: impl FnOnce(&Array, &[usize]) -> Array) -> Array {
        let _line = source::enter();
        match self.check().and_then(|()| normalize_axes(axes, self.ndim())) {
            Ok(axes) => f(self, &axes),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// The sum over `axes`. Booleans are counted; integers keep their dtype and wrap, small ones become 32 bits wide. Half
    /// precision is summed in float32 and rounded once.
    #[track_caller]
    pub fn sum(&self, axes: impl IntoAxes) -> Array {
        self.reduced(axes, |x, axes| lax::reduce(&widen(x), Reducer::Sum, axes))
    }

    /// The product over `axes`.
    #[track_caller]
    pub fn prod(&self, axes: impl IntoAxes) -> Array {
        self.reduced(axes, |x, axes| {
            // In half precision the gradient too, a product of all others, is rounded once.
            let x = widen(x);
            let product = lax::reduce(&convert(&x, accumulator(x.dtype()), false), Reducer::Prod, axes);
            convert(&product, x.dtype(), false)
        })
    }

    /// The mean over `axes`, floating point; of nothing NaN. Half precision is summed in float32.
    #[track_caller]
    pub fn mean(&self, axes: impl IntoAxes) -> Array {
        self.reduced(axes, |x, axes| {
            let count: usize = axes.iter().map(|&a| x.shape()[a]).product();
            let dtype = to_inexact(x.dtype());
            let sum = lax::reduce(&convert(x, accumulator(dtype), false), Reducer::Sum, axes);
            convert(&(sum / count as f64), dtype, false)
        })
    }

    /// The variance over `axes` (of the whole population), floating point.
    #[track_caller]
    pub fn var(&self, axes: impl IntoAxes) -> Array {
        self.var_ddof(axes, 0)
    }

    /// The sum of squared differences from the mean, divided by the number of elements less `ddof`: with 1, the variance
    /// of a population that the elements are a sample of. NaN where no more than `ddof` elements are.
    #[track_caller]
    pub fn var_ddof(&self, axes: impl IntoAxes, ddof: usize) -> Array {
        self.reduced(axes, |x, axes| {
            let dtype = to_inexact(x.dtype());
            let signed: SmallVec<[i32; 4]> = axes.iter().map(|&a| a as i32).collect();
            let wide = convert(x, accumulator(dtype), false);
            let centered = &wide - wide.mean_keepdims(signed.as_slice());
            let squares = match dtype.is_complex() {
                true => super::real(&(&centered * super::conj(&centered))),
                false => &centered * &centered,
            };
            let count: usize = axes.iter().map(|&a| x.shape()[a]).product();
            let sum = lax::reduce(&squares, Reducer::Sum, axes);
            let mean = sum / (count as f64 - ddof as f64);
            // The quotient that is not there has its part in gradients, as in JAX.
            let mean = if count > ddof { mean } else { super::where_(false, mean, f64::NAN) };
            convert(&mean, dtype.real(), false)
        })
    }

    /// The standard deviation over `axes` (of the whole population), floating point.
    #[track_caller]
    pub fn std(&self, axes: impl IntoAxes) -> Array {
        self.std_ddof(axes, 0)
    }

    /// The square root of [`var_ddof`](Self::var_ddof).
    #[track_caller]
    pub fn std_ddof(&self, axes: impl IntoAxes, ddof: usize) -> Array {
        self.var_ddof(axes, ddof).sqrt()
    }

    /// The largest element over `axes`; NaN if any is. Fails for no elements.
    #[track_caller]
    pub fn max(&self, axes: impl IntoAxes) -> Array {
        self.extreme(axes, Reducer::Max)
    }

    /// The smallest element over `axes`; NaN if any is. Fails for no elements.
    #[track_caller]
    pub fn min(&self, axes: impl IntoAxes) -> Array {
        self.extreme(axes, Reducer::Min)
    }

    #[track_caller]
    fn extreme(&self, axes: impl IntoAxes, reducer: Reducer) -> Array {
        self.reduced(axes, |x, axes| {
            if axes.iter().any(|&a| x.shape()[a] == 0) {
                let name = if reducer == Reducer::Max { "max" } else { "min" };
                let e = crate::error::err!(
                    Value,
                    "zero-size array to reduction operation {name} which has no identity: {} over axes {axes:?}",
                    x.type_name()
                )
                .help("leave empty arrays out, or join a first value to them with `concatenate`");
                return Array::from_result(Err(e), x);
            }
            lax::reduce(x, reducer, axes)
        })
    }

    /// Whether all elements over `axes` are true or nonzero.
    #[track_caller]
    pub fn all(&self, axes: impl IntoAxes) -> Array {
        self.reduced(axes, |x, axes| lax::reduce(&truth(x), Reducer::And, axes))
    }

    /// Whether any element over `axes` is true or nonzero.
    #[track_caller]
    pub fn any(&self, axes: impl IntoAxes) -> Array {
        self.reduced(axes, |x, axes| lax::reduce(&truth(x), Reducer::Or, axes))
    }

    /// The index, int32, of the first largest element along `axis`; `..` counts in the flat array. NaN is the largest.
    #[track_caller]
    pub fn argmax(&self, axis: impl IntoAxis) -> Array {
        self.arg_extreme(axis, false)
    }

    /// The index, int32, of the first smallest element along `axis`; `..` counts in the flat array. NaN is the smallest.
    #[track_caller]
    pub fn argmin(&self, axis: impl IntoAxis) -> Array {
        self.arg_extreme(axis, true)
    }

    #[track_caller]
    fn arg_extreme(&self, axis: impl IntoAxis, min: bool) -> Array {
        match with_axis(self, axis) {
            Ok((x, axis)) => bind1(ArgMax { min, axis, index_dtype: DType::I32 }, &[x]),
            Err(e) => Array::from_result(Err(e), self),
        }
    }

    /// `log(sum(exp(x)))` over `axes`, without overflow.
    #[track_caller]
    pub fn logsumexp(&self, axes: impl IntoAxes) -> Array {
        self.reduced(axes, |x, axes| {
            let x = convert(x, to_inexact(x.dtype()), false);
            let max = lax::reduce(&super::real(&x), Reducer::Max, axes);
            let max = crate::ops::primitive::stop_gradient::stop_gradient(super::where_(max.isfinite(), &max, 0));
            let dims: Vec<usize> = (0..x.ndim()).filter(|d| !axes.contains(d)).collect();
            let shifted = &x - max.broadcast_in_dim(x.shape(), &dims);
            lax::reduce(&shifted.exp(), Reducer::Sum, axes).log() + max
        })
    }

    #[track_caller]
    fn keepdims(&self, axes: impl IntoAxes, f: impl FnOnce(&Array, &[i32]) -> Array) -> Array {
        self.reduced(axes, |x, axes| {
            let signed: SmallVec<[i32; 4]> = axes.iter().map(|&a| a as i32).collect();
            let y = f(x, &signed);
            let mut shape = x.shape_owned();
            axes.iter().for_each(|&a| shape[a] = 1);
            if y.error().is_some() { y } else { lax::reshape(&y, &shape) }
        })
    }

    /// [`sum`](Self::sum) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn sum_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.sum(axes))
    }

    /// [`prod`](Self::prod) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn prod_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.prod(axes))
    }

    /// [`all`](Self::all) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn all_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.all(axes))
    }

    /// [`any`](Self::any) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn any_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.any(axes))
    }

    /// [`std`](Self::std) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn std_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.std(axes))
    }

    /// [`logsumexp`](Self::logsumexp) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn logsumexp_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.logsumexp(axes))
    }

    /// [`mean`](Self::mean) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn mean_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.mean(axes))
    }

    /// [`var`](Self::var) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn var_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.var(axes))
    }

    /// [`max`](Self::max) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn max_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.max(axes))
    }

    /// [`min`](Self::min) with the reduced axes kept, of size 1.
    #[track_caller]
    pub fn min_keepdims(&self, axes: impl IntoAxes) -> Array {
        self.keepdims(axes, |x, axes| x.min(axes))
    }
}

macro_rules! reduction_functions {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl Operand, axes: impl IntoAxes) -> Array {
            x.into_array().$name(axes)
        }
    )*};
}

reduction_functions! {
    /// See [`Array::sum`].
    sum;
    /// See [`Array::mean`].
    mean;
    /// See [`Array::prod`].
    prod;
    /// See [`Array::var`].
    var;
    /// See [`Array::std`].
    std;
    /// See [`Array::logsumexp`].
    logsumexp;
}

/// See [`Array::argmax`].
#[track_caller]
pub fn argmax(x: impl Operand, axis: impl IntoAxis) -> Array {
    x.into_array().argmax(axis)
}

/// See [`Array::argmin`].
#[track_caller]
pub fn argmin(x: impl Operand, axis: impl IntoAxis) -> Array {
    x.into_array().argmin(axis)
}

/// What sums are made in: booleans and small integers would overflow.
fn widen(x: &Array) -> Array {
    let dtype = match x.dtype() {
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 | DType::U16 => DType::U32,
        d => d,
    };
    convert(x, dtype, x.weak_type())
}

fn truth(x: &Array) -> Array {
    if x.dtype().category() == Category::Bool { x.clone() } else { x.not_equal(0) }
}
