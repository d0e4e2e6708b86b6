//! The einsum layer.

use shardax::lax::DotOptions;
use shardax::prelude::*;
use shardax::shape::IntoSizes;

use super::kernel::{Kernel, KernelBuilder, KernelLayer, KernelOptions, KernelShape, with_bias};
use crate::Rngs;
use crate::check::{require, value_error};
use crate::shardings::sharding_for_product;

/// An [`einsum`] of the input and a kernel. The string has the letters of the input, the kernel and the result.
///
/// A bias has the dimensions that the kernel and the result share, in the result's order. By default there is no bias.
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = Einsum::builder("nta,hab->nthb", [8, 2, 4]).use_bias(true).build(&mut Rngs::new(0));
/// assert_eq!(layer.bias.as_ref().map(Array::shape), Some(&[8, 4][..]));
/// assert_eq!(layer.forward(ones([16, 11, 2])).shape(), [16, 11, 8, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Einsum {
    /// The kernel.
    #[tree(axis_names = options.kernel_axes)]
    pub kernel: Array,
    /// The bias, with the dimensions that kernel and result share.
    #[tree(axis_names = options.bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    spec: String,
    #[tree(static)]
    options: KernelOptions,
}

/// The letters, and the shape of the kernel.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct EinsumOptions {
    spec: String,
    kernel_shape: Vec<usize>,
}

/// The options of an [`Einsum`].
pub type EinsumBuilder = KernelBuilder<Einsum>;

/// Returns the letters of the kernel and of the result.
fn letters(spec: &str) -> Result<(&str, &str)> {
    let Some((operands, result)) = spec.split_once("->") else {
        return value_error(format!("Einsum: {spec:?} must be explicit and include \"->\""));
    };
    match operands.split(',').collect::<Vec<_>>().as_slice() {
        [_, kernel] => Ok((kernel, result)),
        other => value_error(format!("Einsum: {spec:?} must have exactly two operands, got {}", other.len())),
    }
}

impl KernelLayer for Einsum {
    type Own = EinsumOptions;

    fn shape(own: &EinsumOptions) -> Result<KernelShape> {
        let (kernel, result) = letters(&own.spec)?;
        if kernel.chars().count() != own.kernel_shape.len() || !kernel.chars().all(char::is_alphabetic) {
            let shape = &own.kernel_shape;
            return value_error(format!("Einsum: {kernel:?} must have a letter for each dimension of {shape:?}"));
        }
        let bias = result.chars().filter_map(|c| kernel.chars().position(|k| k == c)).collect();
        Ok(KernelShape { kernel: own.kernel_shape.clone(), drawn: None, bias })
    }

    fn make(kernel: Kernel, own: EinsumOptions) -> Self {
        let Kernel { kernel, bias, options } = kernel;
        Einsum { kernel, bias, spec: own.spec, options }
    }
}

impl Einsum {
    /// Creates a layer without a bias. Its kernel has this shape, and is LeCun normal.
    #[track_caller]
    pub fn new(einsum_str: &str, kernel_shape: impl IntoSizes, rngs: &mut Rngs) -> Self {
        Einsum::builder(einsum_str, kernel_shape).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(einsum_str: &str, kernel_shape: impl IntoSizes) -> EinsumBuilder {
        let spec = einsum_str.replace(' ', "");
        KernelBuilder::new(EinsumOptions { spec, kernel_shape: kernel_shape.into_sizes() }).use_bias(false)
    }

    /// Returns the einsum of `x` and the kernel, plus the bias.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let (x, kernel, bias) = self.options.in_dtype(x.into_array(), &self.kernel, &self.bias);
        require!(&x, kernel.check());
        let y = self.dot_options(&x, &kernel).einsum(&self.spec, &[&x, &kernel]);
        let bias = bias.map(|bias| bias.reshape(self.bias_shape(&y)));
        with_bias(y, bias)
    }

    /// Returns the options of the product.
    fn dot_options(&self, x: &Array, kernel: &Array) -> DotOptions {
        let options = self.options.dot_options();
        let Some((operands, result)) = self.spec.split_once("->") else { return options };
        let Some((x_spec, kernel_spec)) = operands.split_once(',') else { return options };
        let (x_ellipsis, kernel_ellipsis) =
            (ellipsis_rank(x_spec, x.ndim()), ellipsis_rank(kernel_spec, kernel.ndim()));
        let result_ellipsis = if result.contains("...") { x_ellipsis.max(kernel_ellipsis) } else { 0 };
        let (x_labels, kernel_labels) = (labels(x_spec, x_ellipsis), labels(kernel_spec, kernel_ellipsis));
        sharding_for_product(options, (x, &x_labels), (kernel, &kernel_labels), &labels(result, result_ellipsis))
    }

    /// Returns the shape with which the bias broadcasts to the result: the kernel's size for each letter that the kernel has,
    /// and 1 for the others.
    fn bias_shape(&self, y: &Array) -> Vec<usize> {
        let (kernel, result) = letters(&self.spec).unwrap_or_default();
        let (before, after) = result.split_once("...").unwrap_or(("", result));
        let ellipsis = y.ndim().saturating_sub(before.chars().count() + after.chars().count());
        let letters =
            before.chars().map(Some).chain(std::iter::repeat_n(None, ellipsis)).chain(after.chars().map(Some));
        let dims = letters.map(|letter| kernel.chars().position(|k| Some(k) == letter));
        dims.map(|dim| dim.map_or(1, |d| self.kernel.shape()[d])).collect()
    }
}

/// Returns the number of dimensions that the `...` of an operand of this rank stands for.
fn ellipsis_rank(operand: &str, rank: usize) -> usize {
    if operand.contains("...") { rank.saturating_sub(operand.chars().filter(|c| c.is_alphabetic()).count()) } else { 0 }
}

/// Labels the dimensions of an operand: by their letters, and the dimensions of `...` by their distance from its end, because
/// these are aligned at the end when they are broadcast.
fn labels(operand: &str, ellipsis_rank: usize) -> Vec<(Option<char>, usize)> {
    let (before, after) = operand.split_once("...").unwrap_or((operand, ""));
    let ellipsis = (0..ellipsis_rank).rev().map(|i| (None, i));
    let (before, after) = (before.chars().map(|c| (Some(c), 0)), after.chars().map(|c| (Some(c), 0)));
    before.chain(ellipsis).chain(after).collect()
}
