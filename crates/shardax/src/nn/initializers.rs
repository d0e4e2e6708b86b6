//! Weight initializers: random numbers scaled for the shape of a layer.
//!
//! An initializer is a function of a key, a shape and a dtype. Its numbers are the same as the numbers of
//! [`jax.nn.initializers`](https://docs.jax.dev/en/latest/jax.nn.initializers.html).
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::nn::initializers;
//! let w = initializers::he_normal().init(&random::key(0), &[784, 128], DType::F32);
//! assert_eq!(w.shape(), [784, 128]);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::random::{self, RandomKey};
use crate::shape::{IntoAxes, IntoShape, normalize_axis, shape_of};

/// The number of connections that the variance is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The number of inputs, so that activations keep their variance.
    In,
    /// The number of outputs, so that gradients keep their variance.
    Out,
    /// The mean of the number of inputs and the number of outputs.
    Avg,
    /// The geometric mean of the number of inputs and the number of outputs.
    GeoAvg,
}

/// JAX's names.
impl NamedOption for Fan {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] =
        &[("fan_in", Fan::In), ("fan_out", Fan::Out), ("fan_avg", Fan::Avg), ("fan_geo_avg", Fan::GeoAvg)];
}

/// The distribution that weights are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distribution {
    /// A normal distribution, truncated at two standard deviations and scaled to the requested variance.
    TruncatedNormal,
    /// A normal distribution.
    Normal,
    /// A uniform distribution around 0.
    Uniform,
}

/// JAX's names.
impl NamedOption for Distribution {
    const KIND: &'static str = "distribution";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("truncated_normal", Distribution::TruncatedNormal),
        ("normal", Distribution::Normal),
        ("uniform", Distribution::Uniform),
    ];
}

/// An initializer of the weights of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Initializer(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Constant(f64),
    Normal { stddev: f64 },
    TruncatedNormal { stddev: f64, lower: f64, upper: f64 },
    Uniform { scale: f64 },
    VarianceScaling { scale: f64, mode: Choice<Fan>, distribution: Choice<Distribution>, axes: FanAxes },
    Orthogonal { scale: f64, column_axis: i32 },
    DeltaOrthogonal { scale: f64 },
}

/// The axes of inputs, of outputs, and of independent kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FanAxes {
    inputs: AxisList,
    outputs: AxisList,
    batch: AxisList,
}

/// A short list of axes that is `Copy`, because [`Initializer`] is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AxisList {
    axes: [i32; AxisList::MAX],
    /// The number of axes. If it is larger than `MAX`, using the list is an error.
    count: usize,
}

impl AxisList {
    const MAX: usize = 6;

    fn new(axes: impl IntoAxes) -> Self {
        let axes = axes.into_axes().unwrap_or_default();
        let mut list = AxisList { axes: [0; AxisList::MAX], count: axes.len() };
        list.axes.iter_mut().zip(&axes).for_each(|(slot, axis)| *slot = *axis);
        list
    }

    /// Returns the product of the sizes of these axes.
    fn size(&self, shape: &[usize]) -> Result<f64> {
        let Some(axes) = self.axes.get(..self.count) else {
            return Err(err!(Value, "initializers take up to {} axes, got {}", AxisList::MAX, self.count)
                .help("reshape the weights after they are drawn"));
        };
        axes.iter().try_fold(1.0, |size, axis| Ok(size * shape[normalize_axis(*axis as isize, shape.len())?] as f64))
    }
}

/// Creates weights that are all zero.
pub fn zeros() -> Initializer {
    constant(0.0)
}

/// Creates weights that are all one.
pub fn ones() -> Initializer {
    constant(1.0)
}

/// Creates weights that are all equal to `value`.
pub fn constant(value: f64) -> Initializer {
    Initializer(Kind::Constant(value))
}

/// Draws weights from a normal distribution with mean 0 and standard deviation `stddev`.
pub fn normal(stddev: f64) -> Initializer {
    Initializer(Kind::Normal { stddev })
}

/// Draws weights from a normal distribution with mean 0, truncated at two standard deviations. Therefore the standard deviation
/// of the weights is slightly smaller than `stddev`.
pub fn truncated_normal(stddev: f64) -> Initializer {
    Initializer(Kind::TruncatedNormal { stddev, lower: -2.0, upper: 2.0 })
}

/// Draws weights from a uniform distribution in `[0, scale)`.
pub fn uniform(scale: f64) -> Initializer {
    Initializer(Kind::Uniform { scale })
}

/// Draws uniformly distributed orthogonal matrices, multiplied by `scale`. The columns are the last axis, or the axis
/// that you set with [`axes`](Initializer::axes); the rows are all other axes together. If there are more rows than
/// columns, the columns are orthonormal, otherwise the rows are.
pub fn orthogonal(scale: f64) -> Initializer {
    Initializer(Kind::Orthogonal { scale, column_axis: -1 })
}

/// Creates the kernel of a convolution with an [`orthogonal`] matrix, multiplied by `scale`, in the middle, and zeros
/// elsewhere. With `scale` 1 the convolution preserves lengths. The shape must be one to three spatial dimensions, then
/// the inputs, then the outputs. There must be at least as many outputs as inputs.
///
/// Source: [Xiao et al. 2018](https://arxiv.org/abs/1806.05393).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::initializers;
/// let w = initializers::delta_orthogonal(1.0).init(&random::key(0), &[3, 2, 2], DType::F32);
/// assert_eq!(w.get(0).to_vec::<f32>()?, [0.0; 4]);
/// assert!((w.square().sum(..).item::<f32>()? - 2.0).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn delta_orthogonal(scale: f64) -> Initializer {
    Initializer(Kind::DeltaOrthogonal { scale })
}

/// Draws random weights with variance `scale / n`, where `n` is the number of inputs or outputs of a unit. The last two
/// axes are inputs and outputs, and all axes before them are the receptive field of a convolution.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::nn::initializers::{Distribution, Fan, variance_scaling};
/// let weights = variance_scaling(2.0, Fan::In, Distribution::Normal).init(&random::key(0), &[100, 200], DType::F32);
/// assert!((weights.var(..).item::<f32>()? - 2.0 / 100.0).abs() < 1e-3);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn variance_scaling(
    scale: f64,
    mode: impl IntoChoice<Fan>,
    distribution: impl IntoChoice<Distribution>,
) -> Initializer {
    Initializer(Kind::VarianceScaling {
        scale,
        mode: mode.into_choice(),
        distribution: distribution.into_choice(),
        axes: FanAxes { inputs: AxisList::new(-2), outputs: AxisList::new(-1), batch: AxisList::new(()) },
    })
}

macro_rules! scalings {
    ($($(#[$doc:meta])* $name:ident: $scale:literal $mode:ident $distribution:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name() -> Initializer {
            variance_scaling($scale, Fan::$mode, Distribution::$distribution)
        }
    )*};
}

scalings! {
    /// [LeCun](http://yann.lecun.com/exdb/publis/pdf/lecun-98b.pdf): variance 1 / inputs, truncated normal.
    lecun_normal: 1.0 In TruncatedNormal;
    /// LeCun, uniform.
    lecun_uniform: 1.0 In Uniform;
    /// [He](https://arxiv.org/abs/1502.01852): variance 2 / inputs, truncated normal.
    he_normal: 2.0 In TruncatedNormal;
    /// He, uniform.
    he_uniform: 2.0 In Uniform;
    /// [Glorot](http://proceedings.mlr.press/v9/glorot10a.html): variance 2 / (inputs + outputs), truncated normal.
    glorot_normal: 1.0 Avg TruncatedNormal;
    /// Glorot, uniform.
    glorot_uniform: 1.0 Avg Uniform;
}

// JAX's aliases.
pub use self::{
    glorot_normal as xavier_normal, glorot_uniform as xavier_uniform, he_normal as kaiming_normal,
    he_uniform as kaiming_uniform,
};

impl Initializer {
    /// Sets the input and output axes, one or several each, for [`variance_scaling`] and the initializers based on it. The
    /// columns of [`orthogonal`] are along the first of `out_axis`. Other initializers ignore both.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::nn::initializers::he_normal;
    /// // 16 inputs for 4 heads of 8 outputs: the variance is 2 / 16.
    /// let w = he_normal().axes(0, (1, 2)).init(&random::key(0), &[16, 4, 8], DType::F32);
    /// assert!((w.var(..).item::<f32>()? - 2.0 / 16.0).abs() < 0.02);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn axes(self, in_axis: impl IntoAxes, out_axis: impl IntoAxes) -> Self {
        let outputs = AxisList::new(out_axis);
        match self.0 {
            Kind::VarianceScaling { scale, mode, distribution, axes } => {
                let axes = FanAxes { inputs: AxisList::new(in_axis), outputs, ..axes };
                Initializer(Kind::VarianceScaling { scale, mode, distribution, axes })
            }
            Kind::Orthogonal { scale, .. } => Initializer(Kind::Orthogonal { scale, column_axis: outputs.axes[0] }),
            _ => self,
        }
    }

    /// Sets the axes of independent kernels, for example the layers of a stack. They do not count as inputs of a unit. Only
    /// [`variance_scaling`] and the initializers based on it use them.
    pub fn batch_axis(self, batch_axis: impl IntoAxes) -> Self {
        match self.0 {
            Kind::VarianceScaling { scale, mode, distribution, axes } => {
                let axes = FanAxes { batch: AxisList::new(batch_axis), ..axes };
                Initializer(Kind::VarianceScaling { scale, mode, distribution, axes })
            }
            _ => self,
        }
    }

    /// Creates the weights.
    ///
    /// # Errors
    /// The result carries an error for a dtype that is not floating point (complex is accepted by [`normal`], [`orthogonal`],
    /// [`delta_orthogonal`] and [`variance_scaling`]), and for a shape without the axes that
    /// determine the variance.
    #[track_caller]
    pub fn init(&self, key: impl RandomKey, shape: impl IntoShape, dtype: DType) -> Array {
        let key = key.borrow();
        or_failed(key, || self.draw(key, &shape_of(shape)?, dtype))
    }

    fn draw(&self, key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
        let accepts_dtype = match self.0 {
            Kind::Constant(_) => true,
            Kind::Normal { .. }
            | Kind::Orthogonal { .. }
            | Kind::DeltaOrthogonal { .. }
            | Kind::VarianceScaling { .. } => dtype.is_inexact(),
            _ => dtype.is_float(),
        };
        if !accepts_dtype {
            return Err(err!(Type, "initializers make floating point weights, got dtype {dtype}")
                .help("choose a floating point dtype, for example `DType::F32`"));
        }
        Ok(match self.0 {
            Kind::Constant(value) => crate::ops::numpy::filled(shape, Scalar::float(value), dtype),
            Kind::Normal { stddev } => random::normal_dtype(key, shape, dtype) * literal(stddev, dtype),
            Kind::TruncatedNormal { stddev, lower, upper } => {
                random::truncated_normal_dtype(key, lower, upper, shape, dtype) * literal(stddev, dtype)
            }
            Kind::Uniform { scale } => random::uniform_dtype(key, shape, dtype, 0.0, 1.0) * literal(scale, dtype),
            Kind::Orthogonal { scale, column_axis } => {
                orthogonal_columns(key, shape, dtype, column_axis)? * literal(scale, dtype)
            }
            Kind::DeltaOrthogonal { scale } => delta(key, shape, dtype)? * literal(scale, dtype),
            Kind::VarianceScaling { scale, mode, distribution, axes } => {
                let (fan_in, fan_out) = fans(shape, &axes)?;
                let (mode, distribution) = (mode.value("variance_scaling")?, distribution.value("variance_scaling")?);
                let n = match mode {
                    Fan::In => fan_in,
                    Fan::Out => fan_out,
                    Fan::Avg => (fan_in + fan_out) / 2.0,
                    Fan::GeoAvg => (fan_in * fan_out).sqrt(),
                };
                // JAX computes the scale with arrays of the dtype, so each step is rounded to it.
                let (real, is_complex) = (dtype.real(), dtype.is_complex());
                let variance = round(scale / n, real);
                match distribution {
                    Distribution::TruncatedNormal if is_complex => {
                        // The standard deviation of a standard normal distribution on the plane, truncated at radius 2.
                        let truncated_stddev = round(0.953_111_643_804_912_1, real);
                        let stddev = round(round(variance.sqrt(), real) / truncated_stddev, real);
                        truncated_normal_on_plane(key, 2.0, shape, real)? * literal(stddev, real)
                    }
                    Distribution::Uniform if is_complex => {
                        uniform_on_disk(key, shape, real)? * literal(round(variance.sqrt(), real), real)
                    }
                    Distribution::TruncatedNormal => {
                        // The standard deviation of a standard normal distribution truncated at 2.
                        let truncated_stddev = round(0.879_625_661_034_239_8, real);
                        let stddev = round(round(variance.sqrt(), real) / truncated_stddev, real);
                        random::truncated_normal_dtype(key, -2, 2, shape, dtype) * literal(stddev, dtype)
                    }
                    Distribution::Normal => {
                        let stddev = round(variance.sqrt(), real);
                        random::normal_dtype(key, shape, dtype) * literal(stddev, dtype)
                    }
                    Distribution::Uniform => {
                        let bound = round(round(3.0 * variance, real).sqrt(), real);
                        random::uniform_dtype(key, shape, dtype, -1, 1) * literal(bound, dtype)
                    }
                }
            }
        })
    }
}

/// Draws complex numbers of mean 0 and variance 1 from a disk.
fn uniform_on_disk(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    let [key_radius, key_angle] = random::split_n::<2>(key);
    let radius = (random::uniform_dtype(key_radius, shape, dtype, 0, 1) * 2).sqrt();
    from_polar(&radius, &key_angle, shape, dtype)
}

/// Draws complex numbers from a normal distribution of mean 0, which has variance 1 before the radius is truncated.
fn truncated_normal_on_plane(key: &Array, max_radius: f64, shape: &[usize], dtype: DType) -> Result<Array> {
    let [key_radius, key_angle] = random::split_n::<2>(key);
    let mass = literal(round(-(-max_radius * max_radius).exp_m1(), dtype), dtype);
    let radius = (-(1 - mass * random::uniform_dtype(key_radius, shape, dtype, 0, 1)).log()).sqrt();
    from_polar(&radius, &key_angle, shape, dtype)
}

/// Returns complex numbers of this radius and of random angles.
fn from_polar(radius: &Array, key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    let angle = random::uniform_dtype(key, shape, dtype, 0, 1) * literal(std::f64::consts::TAU, dtype);
    let numbers = crate::ops::numpy::complex(radius * angle.cos(), radius * angle.sin());
    numbers.check().map(|()| numbers)
}

/// Returns a number as a scalar of this dtype.
fn literal(value: f64, dtype: DType) -> Array {
    Array::literal(Scalar::float(value), dtype, false)
}

/// Draws a matrix with orthonormal columns or rows, and moves its columns to `column_axis`.
fn orthogonal_columns(key: &Array, shape: &[usize], dtype: DType, column_axis: i32) -> Result<Array> {
    if shape.len() < 2 {
        return Err(err!(Value, "orthogonal initializer requires at least a 2D shape, got {shape:?}")
            .help("use `normal`, `uniform` or `zeros` for weights of one dimension"));
    }
    let axis = normalize_axis(column_axis as isize, shape.len())?;
    if shape.contains(&0) {
        return Ok(crate::ops::numpy::filled(shape, Scalar::Int(0), dtype));
    }
    let columns = shape[axis];
    let rows = crate::shape::size(shape) / columns;
    let q = random::orthogonal_matrices(key, [rows, columns], &[], dtype)?;
    let mut columns_last = shape.to_vec();
    columns_last.remove(axis);
    columns_last.push(columns);
    Ok(q.reshape(columns_last).moveaxis(-1, axis as i32))
}

/// Draws an orthogonal matrix and places it in the middle of a kernel.
fn delta(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    let rank = shape.len();
    if !(3..=5).contains(&rank) || shape[rank - 1] < shape[rank - 2] {
        return Err(err!(
            Value,
            "Delta orthogonal initializer requires a 3D, 4D or 5D shape, with as many outputs as inputs or more, got {shape:?}"
        )
        .help("initialize other weights with `orthogonal`"));
    }
    let matrix = orthogonal_columns(key, &shape[rank - 2..], dtype, -1)?;
    let mut widths = Vec::with_capacity(rank);
    for &size in &shape[..rank - 2] {
        let before = size.saturating_sub(1) / 2;
        widths.push((before, size - size.min(1) - before));
    }
    widths.extend([(0, 0); 2]);
    let kernel = matrix.reshape([vec![1; rank - 2], shape[rank - 2..].to_vec()].concat());
    if shape.contains(&0) {
        Ok(crate::ops::numpy::filled(shape, Scalar::Int(0), dtype))
    } else {
        Ok(crate::ops::numpy::pad(kernel, widths, crate::ops::numpy::PadMode::Constant(0.0)))
    }
}

/// Rounds to the nearest number of the dtype.
fn round(v: f64, dtype: DType) -> f64 {
    let mut bytes = Vec::with_capacity(8);
    Scalar::float(v).write(dtype, &mut bytes);
    Scalar::read(dtype, &bytes).to_f64()
}

/// Returns the numbers of inputs and outputs of a unit.
fn fans(shape: &[usize], axes: &FanAxes) -> Result<(f64, f64)> {
    let rank = shape.len();
    if rank < 2 {
        return Err(err!(
            Value,
            "Can't compute input and output sizes of a {rank}-dimensional weights tensor. Must be at least 2D."
        )
        .help("use `normal`, `uniform` or `zeros` for weights of one dimension"));
    }
    // JAX uses this formula also if inputs and outputs are the same axis, as in embeddings.
    let (inputs, outputs) = (axes.inputs.size(shape)?, axes.outputs.size(shape)?);
    let field = crate::shape::size(shape) as f64 / (inputs * outputs * axes.batch.size(shape)?);
    Ok((inputs * field, outputs * field))
}
