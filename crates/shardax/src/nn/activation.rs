//! Activation functions, softmax and one-hot encoding, with JAX's definitions and gradients.

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::ops::auto_axes::out_sharding;
use crate::ops::lax;
use crate::ops::numpy::options::options;
use crate::ops::numpy::{
    IntoReduction, Options, Over, Reduction, broadcast_args, convert, erfc, expm1, logaddexp, maximum, minimum, over,
    promote_dtypes, to_inexact, to_strong_type, where_,
};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::expanded::RELU;
use crate::ops::primitive::reduce::in_accumulator;
use crate::ops::primitive::reshard::sharded_alike;
use crate::ops::primitive::softmax::{Softmax, shifted};
use crate::ops::primitive::special::slopes::{ROOT_OF_SUM, SOFT_SIGN};
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::rank_promotion;
use crate::shape::{AxisNumber, normalize_axis};
use crate::sharding::{DimSpec, Typed};
use crate::source;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike) -> Array {
            let $x = x.into_array();
            $body
        }
    )*};
}

/// Activation functions of several operations, which are one program outside of `jit`.
macro_rules! compiled_activations {
    ($($(#[$doc:meta])* $name:ident => |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(x: impl ArrayLike) -> Array {
            let x = x.into_array();
            let result = composite1(stringify!($name), (), std::slice::from_ref(&x), |(), args| {
                let $x = args[0].clone();
                Ok(vec![$body])
            });
            Array::from_result(result, &x)
        }
    )*};
}

activations! {
    /// The rectifier, `max(x, 0)`. Its gradient is 0 at 0 and at NaN.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::nn::relu;
    /// let x = array([-1.0f32, 0.0, 2.0]);
    /// assert_eq!(relu(&x).to_vec::<f32>()?, [0.0, 0.0, 2.0]);
    /// let slope = grad(|x: Array| relu(x).sum(..)).call(&x)?;
    /// assert_eq!(slope.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    relu => |x| RELU.apply(&[if x.dtype() == DType::Bool { convert(&x, DType::I32, true) } else { x }]);
    /// The logistic function, `1 / (1 + exp(-x))`.
    sigmoid => |x| x.logistic();
}

compiled_activations! {
    /// `min(max(x, 0), 6)`.
    relu6 => |x| lax::clamp(0, &float_if_exact(x), 6);
    /// `log(1 + exp(x))`, without overflow.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(shardax::nn::softplus(array([0.0f32, 1000.0])).to_vec::<f32>()?, [2f32.ln(), 1000.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    softplus => |x| logaddexp(x, 0);
    /// The Gaussian error linear unit in its tanh approximation, JAX's default.
    ///
    /// Source: [Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415). [`gelu_exact`] is the exact form.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::nn::{gelu, gelu_exact};
    /// let x = array([-1.0f32, 0.0, 1.0]);
    /// assert!(allclose(gelu(&x), array([-0.158808f32, 0.0, 0.841192]), 1e-4, 1e-5)?);
    /// assert!(allclose(gelu_exact(&x), array([-0.158655f32, 0.0, 0.841345]), 1e-4, 1e-5)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    gelu => |x| {
        let x = floating(&x);
        // Outside of this range the result is `x` or 0, but the cube would overflow.
        let clipped = if x.dtype().is_complex() { x.clone() } else { x.clip(-30, 30) };
        let inner = (&clipped + integer_cube(&clipped) * 0.044715) * (8.0 / std::f64::consts::PI).sqrt();
        // (1 + tanh(z)) / 2 is sigmoid(2 z), which is also accurate where it is small.
        x * inner.logistic()
    };
    /// The Gaussian error linear unit, `x Φ(x)`: JAX's `gelu(approximate=False)`.
    gelu_exact => |x| {
        let x = floating(&x);
        0.5 * &x * erfc(&(-&x * std::f64::consts::FRAC_1_SQRT_2))
    };
    /// The sigmoid linear unit (swish), `x * sigmoid(x)`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert!(allclose(shardax::nn::silu(array([0.0f32, 1.0])), array([0.0f32, 0.731059]), 1e-5, 0.0)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    silu => |x| &x * x.logistic();
    /// `log(sigmoid(x))`, without overflow.
    log_sigmoid => |x| -softplus(-float_if_integer(x));
    /// `x / (1 + |x|)`.
    soft_sign => |x| {
        // Adding 1 to a boolean promotes it to a weakly typed number, as in JAX.
        let is_weak = x.weak_type() || x.dtype() == DType::Bool;
        let x = if x.dtype().is_inexact() { x } else { convert(&x, to_inexact(x.dtype()), is_weak) };
        SOFT_SIGN.apply(&[x])
    };
    /// `x` clamped to `[-1, 1]`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(shardax::nn::hard_tanh(array([-3.0f32, 0.5, 3.0])).to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    hard_tanh => |x| {
        // -1 is not an unsigned number, and no unsigned number is below it.
        let low = if x.dtype().category() <= Category::Unsigned { x.clone() } else { where_(x.less(-1), -1, &x) };
        where_(x.greater(1), 1, low)
    };
    /// `relu6(x + 3) / 6`.
    hard_sigmoid => |x| relu6(float_if_exact(x) + 3) / 6;
    /// The scaled exponential linear unit of self-normalizing networks.
    ///
    /// Source: [Klambauer et al. 2017](https://arxiv.org/abs/1706.02515).
    selu => |x| elu_of_array(x, 1.6732632423543772) * 1.0507009873554805;
    /// `x * hard_sigmoid(x)`.
    hard_silu => |x| &x * hard_sigmoid(&x);
    /// `(x + 1)² / 4` between -1 and 1, 0 below -1, and `x` above 1.
    sparse_plus => |x| {
        let x = floating(&x);
        where_(x.less_equal(-1), 0, where_(x.greater_equal(1), &x, (&x + 1).square() * 0.25))
    };
    /// `(x + 1) / 2`, clamped to `[0, 1]`.
    sparse_sigmoid => |x| (float_if_exact(x) + 1).clip(0, 2) * 0.5;
    /// `log(1 - exp(-x))` for positive `x`. It is accurate for small and for large `x`.
    ///
    /// Source: [Mächler 2012](https://cran.r-project.org/web/packages/Rmpfr/vignettes/log1mexp-note.pdf).
    log1mexp => |x| {
        let x = floating(&x);
        // Each branch gets a harmless operand where the other one is used. Otherwise its gradient could be infinite there,
        // and infinity times 0 is NaN.
        let is_small = x.less_equal(std::f64::consts::LN_2);
        let (small, large) = (where_(&is_small, &x, 0.5), where_(&is_small, 1, &x));
        where_(is_small, (-expm1(&-small)).log(), (-(-large).exp()).log1p())
    };
    /// `x * tanh(softplus(x))`.
    mish => |x| &x * softplus(&x).tanh();
}

// JAX's other names.
pub use hard_silu as hard_swish;
pub use silu as swish;

/// Applies a smooth rectifier, `(x + sqrt(x² + b)) / 2`. JAX's default `b` is 4.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::nn::squareplus(array([0.0f32, 1.5]), 4.0).to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn squareplus(x: impl ArrayLike, b: impl ArrayLike) -> Array {
    let (x, b) = (x.into_array(), b.into_array());
    or_failed(&x, || {
        let args = sharded_alike(&broadcast_args("squareplus", &promote_dtypes(&[&x, &b], to_inexact)?)?);
        let root = ROOT_OF_SUM.apply(&args);
        // For a negative number, x + root would cancel. It equals b / (root - x), which does not.
        let is_negative = args[0].less(0);
        let sum = &root + where_(&is_negative, -&args[0], &args[0]);
        let is_divisor = is_negative & sum.not_equal(0);
        Ok(where_(&is_divisor, &args[1] / where_(&is_divisor, &sum, 1), sum) / 2)
    })
}

/// Converts to floating point, with a strong type.
#[track_caller]
fn floating(x: &Array) -> Array {
    to_strong_type(x, to_inexact(x.dtype()))
}

/// Converts integers and booleans to the default float; other arrays are unchanged.
#[track_caller]
fn float_if_exact(x: Array) -> Array {
    if x.dtype().is_inexact() { x } else { convert(&x, DType::F32, true) }
}

/// Converts integers to the float that they promote to, because their negative can overflow. Booleans are unchanged: they have no
/// negative, as in JAX.
#[track_caller]
fn float_if_integer(x: Array) -> Array {
    if !x.dtype().is_integer() {
        return x;
    }
    if x.weak_type() { float_if_exact(x) } else { floating(&x) }
}

#[track_caller]
fn integer_cube(x: &Array) -> Array {
    crate::ops::numpy::integer_pow(x, 3)
}

#[track_caller]
fn elu_of_array(x: Array, alpha: f64) -> Array {
    // The exponential of a positive number is not used, but it would overflow in the gradient.
    let negative = where_(x.greater(0), 0.0, &x);
    where_(x.greater(0), &x, expm1(&negative) * alpha)
}

/// Returns the exponential linear unit: `x` if it is positive, and `alpha * (exp(x) - 1)` otherwise. JAX's default
/// `alpha` is 1.
///
/// ```
/// # use shardax::prelude::*;
/// let y = shardax::nn::elu(array([-1.0f32, 2.0]), 1.0);
/// assert!(allclose(y, array([-0.632121f32, 2.0]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn elu(x: impl ArrayLike, alpha: f64) -> Array {
    let x = x.into_array();
    let result = composite1("elu", alpha.to_bits(), std::slice::from_ref(&x), |alpha, args| {
        Ok(vec![elu_of_array(args[0].clone(), f64::from_bits(*alpha))])
    });
    Array::from_result(result, &x)
}

/// Returns the continuously differentiable exponential linear unit, `max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)`.
/// JAX's default `alpha` is 1.
#[track_caller]
pub fn celu(x: impl ArrayLike, alpha: f64) -> Array {
    let x = x.into_array();
    let result = composite1("celu", alpha.to_bits(), std::slice::from_ref(&x), |alpha, args| {
        let (x, alpha) = (&args[0], f64::from_bits(*alpha));
        Ok(vec![maximum(x, 0) + expm1(&(minimum(x, 0) / alpha)) * alpha])
    });
    Array::from_result(result, &x)
}

/// Returns the leaky rectifier: `x` if it is not negative, and `slope * x` otherwise. JAX's default `slope` is 0.01.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::nn::leaky_relu(array([-2.0f32, 3.0]), 0.5).to_vec::<f32>()?, [-1.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn leaky_relu(x: impl ArrayLike, slope: f64) -> Array {
    let x = x.into_array();
    let result = composite1("leaky_relu", slope.to_bits(), std::slice::from_ref(&x), |slope, args| {
        let x = &args[0];
        Ok(vec![where_(x.greater_equal(0), x, x * f64::from_bits(*slope))])
    });
    Array::from_result(result, &x)
}

/// Returns the gated linear unit: the first half along `axis` times the sigmoid of the second half.
///
/// ```
/// # use shardax::prelude::*;
/// let y = shardax::nn::glu(array([[2.0f32, 4.0, 0.0, 0.0]]), -1);
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn glu(x: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let x = x.into_array();
    match x.split(2, axis) {
        Ok(halves) => &halves[0] * halves[1].logistic(),
        Err(error) => Array::from_result(Err(error), &x),
    }
}

/// Computes the softmax, `exp(x) / sum(exp(x))` over `axes`, without overflow. With a mask, only the selected elements
/// take part; the others are 0.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::softmax;
/// let x = array([0.0f32, 0.0, 1000.0]);
/// assert_eq!(softmax(&x, -1).to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// assert_eq!(softmax(&x, over(-1).mask(x.less(9))).to_vec::<f32>()?, [0.5, 0.5, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn softmax(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let _line = source::enter();
    let x = x.into_array();
    let x = match x.dtype().category() {
        Category::Signed | Category::Unsigned => floating(&x),
        _ => x,
    };
    let reduction = Reduction::new("softmax", &x, axes.into_reduction(), Options::None);
    let result = reduction.map(|over| match over.mask(&x) {
        None => Softmax { axes: over.axes.clone() }.apply(&x),
        Some(mask) => in_accumulator(&x, |x| {
            let exponentials = subtract_masked_max(x, &mask, &over).exp();
            let sum = exponentials.sum(over.inner());
            where_(mask, exponentials / where_(sum.equal(0), 1, &sum), 0)
        }),
    });
    Array::from_result(result.map_err(|error| error.context("softmax")), &x)
}

/// Subtracts the maximum of the selected elements from them, and replaces all others by negative infinity. If no element of a
/// reduction is selected, 0 is subtracted, so that the difference is not NaN and its gradient is 0.
#[track_caller]
fn subtract_masked_max(x: &Array, mask: &Array, over: &Reduction) -> Array {
    let x = where_(mask, x, f64::NEG_INFINITY);
    let max = stop_gradient(x.max(over.inner().initial(f64::NEG_INFINITY)));
    &x - where_(mask.any(over.inner()), max, 0)
}

/// Computes `log(softmax(x))` over `axes`, without overflow. With a mask, only the selected elements take part; the
/// others are negative infinity.
///
/// ```
/// # use shardax::prelude::*;
/// let y = shardax::nn::log_softmax(array([1000.0f32, 1000.0]), -1);
/// assert!(allclose(y, array([-0.693147f32, -0.693147]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn log_softmax(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let _line = source::enter();
    let x = x.into_array();
    let reduction = Reduction::new("log_softmax", &x, axes.into_reduction(), Options::None);
    let result = reduction.and_then(|over| match over.mask(&x) {
        None => composite1("log_softmax", over.signed(), std::slice::from_ref(&x), |axes, args| {
            Ok(vec![in_accumulator(&args[0], |x| {
                let shifted = shifted(x, axes);
                &shifted - shifted.exp().sum_keepdims(&axes[..]).log()
            })])
        }),
        Some(mask) => Ok(in_accumulator(&x, |x| {
            let shifted = subtract_masked_max(x, &mask, &over);
            let sum = shifted.exp().sum(over.inner());
            let log = where_(sum.equal(0), 1, &sum).log();
            where_(&mask, where_(&mask, shifted, 0) - log, f64::NEG_INFINITY)
        })),
    });
    Array::from_result(result.map_err(|error| error.context("log_softmax")), &x)
}

options! {
    /// Options of [`standardize`](standardize()).
    StandardizeOptions {
        /// The mean to subtract. Default: the mean of the elements.
        mean: Option<Array> = None, |mean: impl ArrayLike| Some(mean.into_array());
        /// The variance to divide by. Default: the variance of the elements.
        variance: Option<Array> = None, |variance: impl ArrayLike| Some(variance.into_array());
        /// A number added to the variance. Default `1e-5`.
        epsilon: Array = Array::literal(Scalar::float(1e-5), DType::F32, true), |epsilon: impl ArrayLike| epsilon.into_array();
    }
}

impl StandardizeOptions {
    /// See [`standardize`](standardize()).
    #[track_caller]
    pub fn standardize(&self, x: impl ArrayLike, axes: impl IntoReduction) -> Array {
        let x = x.into_array();
        or_failed(&x, || {
            let x = convert(&x, to_inexact(x.dtype()), x.weak_type());
            let reduction = Reduction::new("standardize", &x, axes.into_reduction(), Options::None)?;
            if self.mean.is_none() && self.variance.is_none() && !reduction.is_masked() {
                return composite1("standardize", reduction.signed(), &[x, self.epsilon.clone()], |axes, args| {
                    Ok(vec![in_accumulator(&args[0], |x| {
                        let centred = centre(x - x.mean_keepdims(&axes[..]), over(&axes[..]).keepdims(true));
                        let variance = centred.square().mean_keepdims(&axes[..]);
                        centred * (variance + &args[1]).rsqrt()
                    })])
                });
            }
            let _ranks = rank_promotion::allow();
            let over = reduction.inner();
            let standardized = |x: &Array| {
                let mean = self.mean.clone().unwrap_or_else(|| x.mean(over.clone()));
                let centred = x - mean;
                let centred = if self.mean.is_none() { centre(centred, over.clone()) } else { centred };
                let variance = match (&self.variance, &self.mean) {
                    (Some(variance), _) => variance.clone(),
                    (None, None) => centred.square().mean(over),
                    // JAX's formula with a mean that you pass, whose result can be negative.
                    (None, Some(mean)) => maximum(x.square().mean(over) - mean.square(), 0),
                };
                centred * (variance + &self.epsilon).rsqrt()
            };
            // A mean or a variance that you pass takes part in promotion, so its dtype decides the dtype of the result.
            let passes_statistics = self.mean.is_some() || self.variance.is_some();
            Ok(if passes_statistics { standardized(&x) } else { in_accumulator(&x, standardized) })
        })
    }
}

/// Subtracts the mean of differences from a mean. The first mean is rounded. If it is large, the differences still have a mean that
/// matters.
#[track_caller]
fn centre(differences: Array, over: Over) -> Array {
    &differences - differences.mean(over)
}

/// Subtracts the mean over `axes` from the elements, and divides by their standard deviation. With [`StandardizeOptions`] you
/// can pass another mean, another variance, and the number that is added to the variance.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::standardize;
/// assert!(allclose(standardize(array([1.0f32, 3.0]), -1), array([-1.0f32, 1.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn standardize(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    StandardizeOptions::new().standardize(x, axes)
}

/// Computes `log(mean(exp(x)))` over `axes`, without overflow.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::nn::logmeanexp(array([1000.0f32, 1000.0]), ..).item::<f32>()?, 1000.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logmeanexp(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let x = floating(&x);
        let axes = axes.into_reduction();
        let over = Reduction::new("logmeanexp", &x, axes.clone(), Options::None)?;
        let count = over.count(&x).log().astype(x.dtype());
        let count = if over.is_masked() { over.shaped(&x, count) } else { count };
        Ok(x.logsumexp(axes) - count)
    })
}

/// Returns the one-hot encoding: a row of `num_classes` numbers for each label, 1 at the label and 0 elsewhere. The row
/// of a label that is out of range is all zeros.
///
/// `labels` are integers of any shape. The result is float32 and has one more dimension, the last; use [`OneHotOptions`] for
/// another dtype or axis.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::one_hot;
/// let y = one_hot(array([1, 0]), 3);
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn one_hot(labels: impl ArrayLike, num_classes: usize) -> Array {
    OneHotOptions::new().one_hot(labels, num_classes)
}

/// Options of [`one_hot`](one_hot()).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::nn::OneHotOptions;
/// let x = OneHotOptions::new().dtype(DType::Bf16).axis(0).one_hot(array([1, 0]), 3);
/// assert_eq!((x.shape(), x.dtype()), (&[3, 2][..], DType::Bf16));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OneHotOptions {
    dtype: DType,
    axis: i32,
    out_sharding: Option<ShardingLike>,
}

impl Default for OneHotOptions {
    fn default() -> Self {
        OneHotOptions { dtype: DType::F32, axis: -1, out_sharding: None }
    }
}

impl OneHotOptions {
    /// Creates options with the dtype float32 and the classes in the last axis.
    pub fn new() -> Self {
        OneHotOptions::default()
    }

    /// Sets the dtype of the result. Default float32.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets the axis of the classes in the result; negative numbers count from the last axis. Default: the last axis.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// Sets the sharding in the type of the result, over mesh axes of type [`Explicit`](crate::AxisType::Explicit). It
    /// splits the dimensions of the labels as the labels are split; you choose how the classes are split.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::nn::OneHotOptions;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let _mesh = set_mesh(&make_mesh([("x", 2), ("y", 4)])?)?;
    /// let labels = reshard(array([0, 3, 1, 2]), P!["x"]);
    /// let rows = OneHotOptions::new().out_sharding(P!["x", "y"]).one_hot(labels, 4);
    /// assert_eq!(rows.type_name(), "float32[4@x,4@y]");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn out_sharding(mut self, sharding: impl Into<ShardingLike>) -> Self {
        self.out_sharding = Some(sharding.into());
        self
    }

    /// See [`one_hot`](one_hot()).
    ///
    /// # Errors
    /// The result carries an error for an axis that is out of bounds, and for an [`out_sharding`](Self::out_sharding)
    /// that splits the labels in another way.
    #[track_caller]
    pub fn one_hot(&self, labels: impl ArrayLike, num_classes: usize) -> Array {
        let labels = labels.into_array();
        or_failed(&labels, || {
            labels.check()?;
            let axis = normalize_axis(self.axis as isize, labels.ndim() + 1)?;
            let mut shape = vec![1; labels.ndim() + 1];
            shape[axis] = num_classes;
            let classes = match self.sharding_of_classes(&labels, num_classes, axis)? {
                Some(typed) => out_sharding(typed, || lax::iota(DType::I32, &shape, axis)),
                None => lax::iota(DType::I32, &shape, axis),
            };
            Ok(labels.expand_dims(axis as i32).equal(classes).astype(self.dtype))
        })
    }

    /// The sharding of the row of class numbers, which has the rank of the result. Fails if the requested sharding splits
    /// the labels in another way than they are split.
    fn sharding_of_classes(&self, labels: &Array, num_classes: usize, axis: usize) -> Result<Option<Typed>> {
        let Some(like) = &self.out_sharding else { return Ok(None) };
        let mut shape = labels.shape().to_vec();
        shape.insert(axis, num_classes);
        let Some(requested) = like.out_sharding("one_hot out_sharding", &shape, &[labels])? else { return Ok(None) };
        let mut dims = vec![DimSpec::None; shape.len()];
        dims[axis] = requested.dims()[axis].clone();
        let classes = Typed::from_dims(requested.mesh(), dims.into());
        let mut of_labels = requested.dims().to_vec();
        of_labels.remove(axis);
        let labels_dims = match labels.aval().sharding() {
            Some(typed) => typed.dims().to_vec(),
            None => vec![DimSpec::None; labels.ndim()],
        };
        if of_labels != labels_dims {
            return Err(err!(
                Sharding,
                "the input part of the spec in out_sharding should match the spec of the labels, {}, but got {}",
                labels.type_name(),
                requested.spec()
            )
            .help("split the labels first with `reshard(labels, spec)`, or split the classes only"));
        }
        Ok(Some(classes))
    }
}
