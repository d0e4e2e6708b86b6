//! Convolutions and padding.

use std::sync::Arc;

use smallvec::SmallVec;

use super::dot::DotOptions;
use crate::choice::{Choice, IntoOptionalChoice};
use crate::core::array::Array;
use crate::core::primitive::Primitive;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::DType;
use crate::error::{Result, bail, err};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::conv::{ConvGeneralDilated, Spec};
use crate::ops::primitive::window::WindowDim;
use crate::precision::{self, Precision};
use crate::shape::IntoSizes;

/// The padding of a convolution's or a pooling's operand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Padding {
    /// Pads such that the result's size is the operand's size divided by the stride, rounded up. If the padding is odd, the end has
    /// one element more.
    Same,
    /// Like [`Same`](Padding::Same), but if the padding is odd, the start has one element more.
    SameLower,
    /// No padding: the window stays inside the operand.
    #[default]
    Valid,
    /// The number of elements before and after each spatial dimension. Negative numbers remove elements.
    Explicit(Vec<(i64, i64)>),
    /// This number of elements before and after each spatial dimension.
    Around(i64),
    /// A text that names no padding. The function that receives it returns an error.
    #[doc(hidden)]
    Unknown(&'static str),
}

/// JAX's names: `"SAME"`, `"SAME_LOWER"` and `"VALID"`, in upper or lower case.
impl From<&'static str> for Padding {
    fn from(name: &'static str) -> Self {
        match name.to_ascii_uppercase().as_str() {
            "SAME" => Padding::Same,
            "SAME_LOWER" => Padding::SameLower,
            "VALID" => Padding::Valid,
            _ => Padding::Unknown(name),
        }
    }
}

/// A number is [`Padding::Around`].
impl From<i32> for Padding {
    fn from(count: i32) -> Self {
        Padding::Around(count.into())
    }
}

impl From<Vec<(i64, i64)>> for Padding {
    fn from(pairs: Vec<(i64, i64)>) -> Self {
        Padding::Explicit(pairs)
    }
}

impl<const N: usize> From<[(i64, i64); N]> for Padding {
    fn from(pairs: [(i64, i64); N]) -> Self {
        Padding::Explicit(pairs.into())
    }
}

impl Padding {
    /// The padding of dimensions of `sizes` elements, under windows with these extents and strides.
    pub(crate) fn resolve(
        &self,
        name: &str,
        sizes: &[usize],
        extents: &[usize],
        strides: &[usize],
    ) -> Result<Vec<(i64, i64)>> {
        match self {
            Padding::Same | Padding::SameLower => {
                let totals = sizes.iter().zip(extents).zip(strides).map(|((&n, &extent), &stride)| {
                    // An empty dimension stays empty: the last window would end before the first.
                    let steps = (n as i128 - 1).div_euclid(stride.max(1) as i128);
                    let covered = steps.saturating_mul(stride as i128).saturating_add(extent as i128);
                    i64::try_from((covered - n as i128).max(0)).unwrap_or(i64::MAX)
                });
                let larger_first = *self == Padding::SameLower;
                let pairs = totals.map(|total| {
                    let low = if larger_first { total - total / 2 } else { total / 2 };
                    (low, total - low)
                });
                Ok(pairs.collect())
            }
            Padding::Valid => Ok(vec![(0, 0); sizes.len()]),
            Padding::Around(count) => Ok(vec![(*count, *count); sizes.len()]),
            Padding::Unknown(text) => Err(err!(Value, "{name} got the unknown padding {text:?}")
                .help("the paddings are \"SAME\", \"SAME_LOWER\", \"VALID\", a number, and a pair (before, after) for each dimension")),
            Padding::Explicit(pairs) if pairs.len() == sizes.len() => Ok(pairs.clone()),
            Padding::Explicit(pairs) => {
                Err(err!(Value, "{name} got {} pairs of padding {pairs:?} for {} dimensions", pairs.len(), sizes.len())
                    .help("pass a pair (before, after) for each dimension along which the window moves"))
            }
        }
    }
}

/// The options of [`conv_general_dilated`], apart from strides and padding.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{self, ConvOptions, Padding};
/// // A depthwise convolution of channels-last images.
/// let x = ones([1, 8, 8, 3]);
/// let kernel = ones([3, 3, 1, 3]);
/// let options = ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHWC").feature_group_count(3);
/// let y = lax::conv_general_dilated(&x, &kernel, [1, 1], Padding::Same, options);
/// assert_eq!(y.shape(), [1, 8, 8, 3]);
/// assert_eq!(y.max(..).item::<f32>()?, 9.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConvOptions {
    lhs_dilation: Option<Vec<usize>>,
    rhs_dilation: Option<Vec<usize>>,
    layout: Option<[String; 3]>,
    feature_group_count: Option<usize>,
    batch_group_count: Option<usize>,
    preferred_element_type: Option<DType>,
    pub(super) precision: Option<Choice<Precision>>,
    out_sharding: Option<ShardingLike>,
}

impl ConvOptions {
    /// Creates options without dilation or groups.
    pub fn new() -> Self {
        ConvOptions::default()
    }

    /// Sets the distance between the input's elements in each spatial dimension, filled with zeros. Default 1.
    pub fn lhs_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.lhs_dilation = Some(dilation.into_sizes());
        self
    }

    /// Sets the distance between the kernel's elements in each spatial dimension. Default 1.
    pub fn rhs_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.rhs_dilation = Some(dilation.into_sizes());
        self
    }

    /// Sets the dimension numbers of the input, of the kernel and of the result. `N` is the batch, `C` the features,
    /// `I` and `O` the kernel's input and output features. Every other letter is a spatial dimension; the kernel
    /// determines their order. Default `"NCHW"`, `"OIHW"`, `"NCHW"`, and accordingly in other ranks.
    pub fn dimension_numbers(mut self, lhs: &str, rhs: &str, out: &str) -> Self {
        self.layout = Some([lhs.to_owned(), rhs.to_owned(), out.to_owned()]);
        self
    }

    /// Sets the dimension numbers `NHWC`, `HWIO`, `NHWC`, for any number of spatial dimensions.
    pub fn channels_last(mut self, spatial: usize) -> Self {
        // The letters must differ from each other and from N, C, I, O.
        let letters: String = ('a'..='z').take(spatial).collect();
        self.layout = Some([format!("N{letters}C"), format!("{letters}IO"), format!("N{letters}C")]);
        self
    }

    /// Sets the number of independent groups of features. Default 1.
    pub fn feature_group_count(mut self, count: usize) -> Self {
        self.feature_group_count = Some(count);
        self
    }

    /// Sets the number of groups of the batch. Each group computes a part of the output features. Default 1.
    pub fn batch_group_count(mut self, count: usize) -> Self {
        self.batch_group_count = Some(count);
        self
    }

    /// Sets the dtype to accumulate in and to return. The default is the dtype of the operands.
    pub fn preferred_element_type(mut self, dtype: DType) -> Self {
        self.preferred_element_type = Some(dtype);
        self
    }

    /// Sets the precision on accelerators, a [`Precision`] or JAX's text for one. Default:
    /// [`default_matmul_precision`](crate::default_matmul_precision).
    pub fn precision(mut self, precision: impl IntoOptionalChoice<Precision>) -> Self {
        self.precision = precision.into_optional_choice();
        self
    }

    /// Sets the sharding in the type of the result, over mesh axes of type [`Explicit`](crate::AxisType::Explicit).
    /// Default: the sharding of the input's batch and spatial dimensions. You must set it if the kernel or the input
    /// features are sharded, because they determine no sharding of the result.
    pub fn out_sharding(mut self, sharding: impl Into<ShardingLike>) -> Self {
        self.out_sharding = Some(sharding.into());
        self
    }

    /// Returns the options of a matmul with this precision.
    pub(crate) fn dot_options(&self) -> DotOptions {
        self.precision.into_iter().fold(DotOptions::new(), DotOptions::precision)
    }

    /// Sets a precision, unless one is set.
    pub(crate) fn precise(mut self, precision: Precision) -> Self {
        self.precision = self.precision.or(Some(Choice::Value(precision)));
        self
    }

    /// The positions of the dimensions of input, kernel and result.
    pub(crate) fn specs(&self, rank: usize) -> Result<[Spec; 3]> {
        let Some([lhs, rhs, out]) = &self.layout else {
            return Ok([(0..rank).collect(), (0..rank).collect(), (0..rank).collect()]);
        };
        let spatial = rhs.replace(['O', 'I'], "");
        let [lhs_spec, rhs_spec, out_spec] = [(lhs, "NC"), (rhs, "OI"), (out, "NC")].map(|(text, first)| {
            parse_spec(text, &format!("{first}{spatial}"), rank).map_err(|why| {
                err!(Value, "convolution dimension numbers ({lhs:?}, {rhs:?}, {out:?}): {text:?} {why}")
                    .help("for channels-last images use \"NHWC\", \"HWIO\", \"NHWC\"")
            })
        });
        Ok([lhs_spec?, rhs_spec?, out_spec?])
    }

    fn primitive(&self, lhs: &Array, rhs: &Array, strides: &[usize], padding: &Padding) -> Result<ConvGeneralDilated> {
        lhs.check()?;
        rhs.check()?;
        let name = "conv_general_dilated";
        let rank = lhs.ndim();
        if rank < 2 || rhs.ndim() != rank {
            return Err(err!(
                Value,
                "{name} needs operands of one rank, at least 2, got {} and {}",
                lhs.type_name(),
                rhs.type_name()
            )
            .help(
                "an input has a batch and a feature dimension in addition to the spatial dimensions, a kernel an input and an output feature dimension",
            ));
        }
        let [lhs_spec, rhs_spec, out_spec] = self.specs(rank)?;
        let requested = self.precision.map(|precision| precision.value(name)).transpose()?;
        if let Some(Precision::Algorithm(preset)) = requested {
            return Err(err!(Value, "convolutions have no algorithms, got the precision {}", preset.name())
                .help("pass `Precision::Default`, `High` or `Highest`"));
        }
        let default = precision::resolved(None, name)?.filter(|default| !matches!(default, Precision::Algorithm(_)));
        let precision = requested.or(default);
        let conv = ConvGeneralDilated {
            window: self.window(lhs, rhs, [&lhs_spec, &rhs_spec], strides, padding)?,
            lhs: lhs_spec,
            rhs: rhs_spec,
            out: out_spec,
            feature_group_count: self.feature_group_count.unwrap_or(1),
            batch_group_count: self.batch_group_count.unwrap_or(1),
            preferred: self.preferred_element_type.filter(|d| *d != lhs.dtype()),
            precision,
            // The shape of the result must be inferred before its sharding can be resolved.
            out_sharding: None,
        };
        let Some(like) = &self.out_sharding else { return Ok(conv) };
        let shape = conv.infer(&[lhs.aval(), rhs.aval()])?[0].shape.clone();
        Ok(ConvGeneralDilated {
            out_sharding: like.out_sharding("out_sharding", &shape, &[lhs, rhs])?.map(Arc::new),
            ..conv
        })
    }

    /// Returns the window along each spatial dimension.
    fn window(
        &self,
        lhs: &Array,
        rhs: &Array,
        [lhs_spec, rhs_spec]: [&Spec; 2],
        strides: &[usize],
        padding: &Padding,
    ) -> Result<SmallVec<[WindowDim; 2]>> {
        let (name, rank) = ("conv_general_dilated", lhs.ndim());
        let ones = vec![1; rank - 2];
        let lhs_dilation = self.lhs_dilation.as_ref().unwrap_or(&ones);
        let rhs_dilation = self.rhs_dilation.as_ref().unwrap_or(&ones);
        for (argument, values) in
            [("window_strides", strides), ("lhs_dilation", lhs_dilation), ("rhs_dilation", rhs_dilation)]
        {
            if values.len() != rank - 2 {
                bail!(
                    Value,
                    "{name} of {} and {} has {} spatial dimensions, but {argument} is {values:?}",
                    lhs.type_name(),
                    rhs.type_name(),
                    rank - 2
                );
            }
        }
        if matches!(padding, Padding::Same | Padding::SameLower) && lhs_dilation.iter().any(|&d| d != 1) {
            return Err(err!(Value, "{name} with lhs_dilation {lhs_dilation:?} does not define padding {padding:?}")
                .help("pass explicit padding, or use `conv_transpose`"));
        }
        // Padding such as `Same` depends on the sizes, and on the extents of the dilated kernel.
        let sizes: Vec<usize> = lhs_spec[2..].iter().map(|&d| lhs.shape()[d]).collect();
        let extents: Vec<usize> =
            rhs_spec[2..].iter().zip(rhs_dilation).map(|(&d, by)| extent(rhs.shape()[d], *by)).collect();
        let pads = padding.resolve(name, &sizes, &extents, strides)?;
        let window = (0..rank - 2).map(|i| WindowDim {
            stride: strides[i],
            low: pads[i].0,
            high: pads[i].1,
            base_dilation: lhs_dilation[i],
            window_dilation: rhs_dilation[i],
        });
        Ok(window.collect())
    }
}

/// The number of elements that `n` elements span if neighbors are `by` elements apart.
pub(crate) fn extent(n: usize, by: usize) -> usize {
    if n == 0 { 0 } else { (n - 1).saturating_mul(by).saturating_add(1) }
}

/// Returns the general convolution (as in neural networks: the kernel is not reversed).
///
/// `lhs` is the input and `rhs` the kernel; both have the same dtype. The dimensions are `NCHW` for the input, `OIHW`
/// for the kernel and `NCHW` for the result, unless `options` say otherwise. `window_strides` has one entry per spatial
/// dimension.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{self, ConvOptions, Padding};
/// let x = arange(0.0f32..16.0).reshape([1, 1, 4, 4]);
/// let kernel = ones([1, 1, 2, 2]);
/// let y = lax::conv_general_dilated(&x, &kernel, [2, 2], Padding::Valid, ConvOptions::new());
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 18.0, 42.0, 50.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if ranks, feature counts or groups do not fit; the message names both operands.
#[track_caller]
pub fn conv_general_dilated(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    window_strides: impl IntoSizes,
    padding: impl Into<Padding>,
    options: ConvOptions,
) -> Array {
    let (lhs, rhs) = (lhs.into_array(), rhs.into_array());
    let primitive = options.primitive(&lhs, &rhs, &window_strides.into_sizes(), &padding.into());
    match primitive {
        Ok(conv) => conv.apply(&lhs, &rhs),
        Err(error) => Array::from_result(Err(error), &lhs),
    }
}

/// Computes a convolution of `NCHW` inputs (in any rank: batch, features, spatial dimensions) with `OIHW` kernels.
///
/// ```
/// # use shardax::prelude::*;
/// // Two images of 3 × 8 × 8, sixteen kernels of 3 × 3 × 3.
/// let y = lax::conv(ones([2, 3, 8, 8]), ones([16, 3, 3, 3]), [1, 1], lax::Padding::Same);
/// assert_eq!(y.shape(), [2, 16, 8, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn conv(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    window_strides: impl IntoSizes,
    padding: impl Into<Padding>,
) -> Array {
    conv_general_dilated(lhs, rhs, window_strides, padding, ConvOptions::new())
}

/// The padding of the enlarged input of a transposed convolution, for a kernel of extent `k` and stride `s`.
fn transposed_padding(k: i64, s: i64, is_same: bool) -> (i64, i64) {
    let overlap = k.saturating_add(s) - 2;
    let total = if is_same { overlap } else { overlap.saturating_add((k - s).max(0)) };
    let low = if !is_same || s > k - 1 { k - 1 } else { (total + 1) / 2 };
    (low, total - low)
}

/// Returns the transposed convolution ("deconvolution"), which enlarges `lhs` by `strides`.
///
/// Dimensions are channels-last (`NHWC`, `HWIO`) unless `options` say otherwise. `Same` and `Valid` are the padding of the forward
/// convolution, whereas pairs and numbers are added to the enlarged input. `SameLower` is an error unless all strides are 1.
/// The kernel is not reversed. `options.lhs_dilation` is ignored.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{self, ConvOptions, Padding};
/// let x = ones([1, 4, 4, 2]);
/// let y = lax::conv_transpose(&x, ones([3, 3, 2, 5]), [2, 2], Padding::Same, ConvOptions::new());
/// assert_eq!(y.shape(), [1, 8, 8, 5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn conv_transpose(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    strides: impl IntoSizes,
    padding: impl Into<Padding>,
    mut options: ConvOptions,
) -> Array {
    let (lhs, rhs) = (lhs.into_array(), rhs.into_array());
    let strides = &strides.into_sizes();
    let spatial = lhs.ndim().saturating_sub(2);
    if options.layout.is_none() {
        options = options.channels_last(spatial);
    }
    let ones = vec![1; spatial];
    let padding = padding.into();
    let result = (|| {
        // `Same` and `Valid` refer to the convolution whose transpose this is.
        let [_, rhs_spec, _] = options.specs(spatial + 2)?;
        if rhs.ndim() != spatial + 2 || strides.len() != spatial {
            bail!(
                Value,
                "conv_transpose got {} and {} with strides {strides:?}: it needs operands of one rank, at least 2, and a stride for each spatial dimension",
                lhs.type_name(),
                rhs.type_name()
            );
        }
        let dilation = options.rhs_dilation.as_ref().unwrap_or(&ones);
        match &padding {
            Padding::Same | Padding::Valid => {}
            Padding::SameLower if strides.iter().any(|&stride| stride != 1) => {
                return Err(err!(Value, "conv_transpose with strides {strides:?} does not define padding {padding:?}")
                    .help("pass `Padding::Same`, or pairs (before, after) of the enlarged input"));
            }
            other => return Ok(other.clone()),
        }
        let pairs = (0..spatial).map(|i| {
            let k = extent(rhs.shape()[rhs_spec[i + 2]], dilation.get(i).copied().unwrap_or(1));
            transposed_padding(k as i64, strides[i] as i64, padding != Padding::Valid)
        });
        Ok(Padding::Explicit(pairs.collect()))
    })();
    match result {
        Ok(padding) => conv_general_dilated(&lhs, &rhs, &ones, padding, options.lhs_dilation(strides)),
        Err(error) => Array::from_result(Err(error), &lhs),
    }
}

/// Returns the dimension of each of `letters` in `text`; an error is only the reason.
fn parse_spec(text: &str, letters: &str, rank: usize) -> Result<Spec, String> {
    if text.chars().count() != rank {
        return Err(format!("must have a letter for each of {rank} dimensions"));
    }
    let mut spec = Spec::new();
    for c in letters.chars() {
        match text.chars().position(|letter| letter == c) {
            Some(d) if !spec.contains(&d) => spec.push(d),
            _ => return Err(format!("must name dimension {c:?} once")),
        }
    }
    Ok(spec)
}
