//! Activation functions, softmax and one-hot encoding, with JAX's definitions and gradients.

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{Category, DType};
use crate::ops::lax;
use crate::ops::numpy::{
    IntoAxes, convert, erfc, expm1, logaddexp, maximum, minimum, normalize_axes, tanh, to_inexact, to_strong_type,
    where_,
};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::expanded::RELU;
use crate::ops::primitive::softmax::{Softmax, shifted};
use crate::shape::normalize_axis;
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

activations! {
    /// The rectifier, `max(x, 0)`, with gradient 0 at 0 and at NaN.
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
    /// `min(max(x, 0), 6)`.
    relu6 => |x| lax::clamp(0, &float_if_exact(x), 6);
    /// The Gaussian error linear unit in its tanh approximation, JAX's default.
    ///
    /// Source: [Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415). [`gelu_exact`] is the exact form.
    gelu => |x| {
        let x = floating(&x);
        let inner = (&x + integer_cube(&x) * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
        x * ((tanh(&inner) + 1) * 0.5)
    };
    /// The Gaussian error linear unit, `x Φ(x)`: JAX's `gelu(approximate=False)`.
    gelu_exact => |x| {
        let x = floating(&x);
        0.5 * &x * erfc(&(-&x * std::f64::consts::FRAC_1_SQRT_2))
    };
    /// The sigmoid linear unit (swish), `x * sigmoid(x)`.
    silu => |x| &x * x.logistic();
    /// The logistic function, `1 / (1 + exp(-x))`.
    sigmoid => |x| x.logistic();
    /// `log(sigmoid(x))`, without overflow.
    log_sigmoid => |x| -softplus(-x);
    /// `log(1 + exp(x))`, without overflow.
    softplus => |x| logaddexp(x, 0);
    /// `x / (1 + |x|)`.
    soft_sign => |x| &x / (x.abs() + 1);
    /// `x` clamped to `[-1, 1]`.
    hard_tanh => |x| {
        // Unsigned numbers have no -1, and are never below it.
        let low = if x.dtype().category() <= Category::Unsigned { x.clone() } else { where_(x.less(-1), -1, &x) };
        where_(x.greater(1), 1, low)
    };
    /// `relu6(x + 3) / 6`.
    hard_sigmoid => |x| relu6(x + 3) / 6;
    /// The scaled exponential linear unit, of self-normalizing networks.
    ///
    /// Source: [Klambauer et al. 2017](https://arxiv.org/abs/1706.02515).
    selu => |x| elu_of(x, 1.6732632423543772) * 1.0507009873554805;
    /// `x * tanh(softplus(x))`.
    mish => |x| &x * softplus(&x).tanh();
}

/// The array in floating point, with a strong type.
#[track_caller]
fn floating(x: &Array) -> Array {
    to_strong_type(x, to_inexact(x.dtype()))
}

/// Converts integers and booleans to the default float; other arrays are unchanged.
#[track_caller]
fn float_if_exact(x: Array) -> Array {
    if x.dtype().is_inexact() { x } else { convert(&x, DType::F32, true) }
}

#[track_caller]
fn integer_cube(x: &Array) -> Array {
    crate::ops::numpy::integer_pow(x, 3)
}

#[track_caller]
fn elu_of(x: Array, alpha: f64) -> Array {
    // For large x the exponential is unused, and would overflow in the gradient.
    let small = where_(x.greater(0), 0.0, &x);
    where_(x.greater(0), &x, expm1(&small) * alpha)
}

/// The exponential linear unit: `x` where positive, `alpha * (exp(x) - 1)` elsewhere. JAX's default `alpha` is 1.
#[track_caller]
pub fn elu(x: impl ArrayLike, alpha: f64) -> Array {
    elu_of(x.into_array(), alpha)
}

/// The continuously differentiable exponential linear unit, `max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)`.
/// JAX's default `alpha` is 1.
#[track_caller]
pub fn celu(x: impl ArrayLike, alpha: f64) -> Array {
    let x = x.into_array();
    maximum(&x, 0) + expm1(&(minimum(&x, 0) / alpha)) * alpha
}

/// `x` where it is not negative, `slope * x` elsewhere. JAX's default `slope` is 0.01.
#[track_caller]
pub fn leaky_relu(x: impl ArrayLike, slope: f64) -> Array {
    let x = x.into_array();
    where_(x.greater_equal(0), &x, &x * slope)
}

/// The gated linear unit: the first half of `axis` times the sigmoid of the second.
#[track_caller]
pub fn glu(x: impl ArrayLike, axis: i32) -> Array {
    let x = x.into_array();
    match x.split(2, axis) {
        Ok(halves) => &halves[0] * halves[1].logistic(),
        Err(error) => Array::from_result(Err(error), &x),
    }
}

/// `exp(x) / sum(exp(x))` over `axes`, without overflow.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::softmax;
/// let p = softmax(array([0.0f32, 0.0, 1000.0]), -1);
/// assert_eq!(p.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn softmax(x: impl ArrayLike, axes: impl IntoAxes + Copy) -> Array {
    let _line = source::enter();
    let x = x.into_array();
    let x = match x.dtype().category() {
        Category::Signed | Category::Unsigned => floating(&x),
        _ => x,
    };
    match normalize_axes(axes, x.ndim()) {
        Ok(axes) => Softmax { axes }.apply(&x),
        Err(error) => Array::from_result(Err(error.context("softmax")), &x),
    }
}

/// `log(softmax(x))` over `axes`, without overflow.
#[track_caller]
pub fn log_softmax(x: impl ArrayLike, axes: impl IntoAxes + Copy) -> Array {
    let _line = source::enter();
    let x = x.into_array();
    match normalize_axes(axes, x.ndim()) {
        Ok(axes) => {
            let axes: SmallVec<[i32; 4]> = axes.iter().map(|&axis| axis as i32).collect();
            let shifted = shifted(&x, &axes);
            &shifted - shifted.exp().sum_keepdims(&axes[..]).log()
        }
        Err(error) => Array::from_result(Err(error.context("log_softmax")), &x),
    }
}

/// One-hot rows of `num_classes` numbers: 1 at the label, 0 elsewhere. Labels out of range give zeros.
///
/// `labels` are integers of any shape; the result has one more dimension, the last, and is float32. For
/// another dtype, convert it with `astype`.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneHotOptions {
    dtype: DType,
    axis: i32,
}

impl Default for OneHotOptions {
    fn default() -> Self {
        OneHotOptions { dtype: DType::F32, axis: -1 }
    }
}

impl OneHotOptions {
    /// Creates options: float32, the classes in the last axis.
    pub fn new() -> Self {
        OneHotOptions::default()
    }

    /// The dtype of the result. Default float32.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The axis of the classes in the result; negative from the last. Default the last.
    pub fn axis(mut self, axis: i32) -> Self {
        self.axis = axis;
        self
    }

    /// See [`one_hot`](one_hot()). Fails for an axis that is out of bounds.
    #[track_caller]
    pub fn one_hot(&self, labels: impl ArrayLike, num_classes: usize) -> Array {
        let labels = labels.into_array();
        let made = at_caller(|| {
            labels.check()?;
            let axis = normalize_axis(self.axis as isize, labels.ndim() + 1)?;
            let mut shape = vec![1; labels.ndim() + 1];
            shape[axis] = num_classes;
            let classes = lax::iota(DType::I32, &shape, axis);
            Ok(labels.expand_dims(axis as i32).equal(classes).astype(self.dtype))
        });
        Array::from_result(made, &labels)
    }
}
