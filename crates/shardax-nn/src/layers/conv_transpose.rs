//! The transposed convolution layer.

use shardax::lax::{ConvOptions, Padding, conv_transpose};
use shardax::prelude::*;
use shardax::shape::IntoSizes;

use super::ConvPadding;
use super::conv::in_batches;
use super::kernel::{Kernel, KernelBuilder, KernelLayer, KernelOptions, KernelShape, with_bias};
use crate::Rngs;
use crate::check::{require, value_error};
use crate::shardings::sharding_for_convolution;

/// A transposed convolution of channels-last inputs, `[batch, spatial dimensions, features]`. It upsamples the inputs by its
/// strides.
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = ConvTranspose::builder(8, 3, [4, 4]).strides([2, 2]).build(&mut Rngs::new(0));
/// assert_eq!(layer.forward(ones([1, 16, 16, 8])).shape(), [1, 32, 32, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct ConvTranspose {
    /// `[spatial dimensions, in, out]`, or `[spatial dimensions, out, in]` if the kernel is transposed.
    #[tree(axis_names = options.kernel_axes)]
    pub kernel: Array,
    /// `[out]`
    #[tree(axis_names = options.bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    own: ConvTransposeOwn,
    #[tree(static)]
    options: KernelOptions,
}

/// The options that only a transposed convolution has.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvTransposeOwn {
    features: [usize; 2],
    kernel_size: Vec<usize>,
    strides: Vec<usize>,
    padding: ConvPadding,
    kernel_dilation: Vec<usize>,
    transpose_kernel: bool,
}

/// The options of a [`ConvTranspose`].
pub type ConvTransposeBuilder = KernelBuilder<ConvTranspose>;

impl KernelLayer for ConvTranspose {
    type Own = ConvTransposeOwn;

    fn shape(own: &ConvTransposeOwn) -> Result<KernelShape> {
        let ([features, out], spatial) = (own.features, own.kernel_size.len());
        let (last, bias) = if own.transpose_kernel { ([out, features], spatial) } else { (own.features, spatial + 1) };
        let kernel = [own.kernel_size.as_slice(), &last].concat();
        Ok(KernelShape { kernel, drawn: None, bias: vec![bias] })
    }

    fn make(kernel: Kernel, own: ConvTransposeOwn) -> Self {
        let Kernel { kernel, bias, options } = kernel;
        ConvTranspose { kernel, bias, own, options }
    }
}

impl ConvTransposeBuilder {
    /// Sets the upsampling factor of each spatial dimension. Default 1.
    pub fn strides(mut self, strides: impl IntoSizes) -> Self {
        self.own.strides = strides.into_sizes_of(self.own.kernel_size.len());
        self
    }

    /// Sets the padding of the underlying convolution: zeros, or [`ConvPadding::Circular`]. Default [`Padding::Same`].
    pub fn padding(mut self, padding: impl Into<ConvPadding>) -> Self {
        self.own.padding = padding.into();
        self
    }

    /// Sets the distance between the kernel's elements in each spatial dimension. Default 1.
    pub fn kernel_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.own.kernel_dilation = dilation.into_sizes_of(self.own.kernel_size.len());
        self
    }

    /// Sets whether the kernel is transposed: stored like the kernel of the underlying convolution, reversed and with inputs
    /// and outputs exchanged. Default false.
    pub fn transpose_kernel(mut self, transpose: bool) -> Self {
        self.own.transpose_kernel = transpose;
        self
    }
}

impl ConvTranspose {
    /// Creates a layer from `in_features` to `out_features` with a kernel of this size, stride 1 and padding SAME. The kernel
    /// is LeCun normal, the bias zero.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, kernel_size: impl IntoSizes, rngs: &mut Rngs) -> Self {
        ConvTranspose::builder(in_features, out_features, kernel_size).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(in_features: usize, out_features: usize, kernel_size: impl IntoSizes) -> ConvTransposeBuilder {
        let kernel_size = kernel_size.into_sizes();
        let ones = vec![1; kernel_size.len()];
        KernelBuilder::new(ConvTransposeOwn {
            features: [in_features, out_features],
            kernel_size,
            strides: ones.clone(),
            padding: Padding::Same.into(),
            kernel_dilation: ones,
            transpose_kernel: false,
        })
    }

    /// Applies the layer. `x` is `[batch, spatial dimensions, features]`, with any number of batch dimensions, or none.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, self.kernel.check());
        let (x, kernel, bias) = self.options.in_dtype(x, &self.kernel, &self.bias);
        let spatial = kernel.ndim().saturating_sub(2);
        let kernel = if self.own.transpose_kernel {
            kernel.flip((0..spatial as i32).collect::<Vec<_>>().as_slice()).swapaxes(-1, -2)
        } else {
            kernel
        };
        match in_batches(&x, kernel.ndim(), |x| self.upsampled(x, &kernel)) {
            Ok(y) => with_bias(y, bias),
            Err(error) => Array::from_error(error, &x),
        }
    }

    /// Returns the transposed convolution of `x`, which has one batch dimension.
    #[track_caller]
    fn upsampled(&self, x: &Array, kernel: &Array) -> Result<Array> {
        let layer = &self.own;
        let padding = match &layer.padding {
            ConvPadding::Zeros(padding) => padding.clone(),
            ConvPadding::Circular => Padding::Valid,
            other => return value_error(format!("ConvTranspose: padding must be zeros or circular, got {other:?}")),
        };
        let options = self.options.with_precision(ConvOptions::new().rhs_dilation(&layer.kernel_dilation));
        let options = sharding_for_convolution(x, kernel).into_iter().fold(options, ConvOptions::out_sharding);
        let y = conv_transpose(x, kernel, &layer.strides, padding, options);
        y.check()?;
        match layer.padding {
            ConvPadding::Circular => Ok(self.wrapped(x, y)),
            _ => Ok(y),
        }
    }

    /// Adds the elements beyond the upsampled input at the positions that they wrap around to.
    fn wrapped(&self, x: &Array, y: Array) -> Array {
        (1..x.ndim() - 1).fold(y, |y, d| {
            let period = x.shape()[d] * self.own.strides[d - 1];
            // `y` is padded to an odd number of periods. As in Flax, the padding is on both sides.
            let two_periods = 2 * period as i64;
            let missing = (period as i64 - y.shape()[d] as i64).rem_euclid(two_periods.max(1)) as usize;
            let odd_first = if self.own.transpose_kernel { 0 } else { missing % 2 };
            let low = missing / 2 + odd_first;
            let mut widths = vec![(0, 0); y.ndim()];
            widths[d] = (low, missing - low);
            let y = pad(&y, &widths, PadMode::Constant(0.0));
            let periods = y.shape()[d].checked_div(period).unwrap_or(0);
            let (before, after) = (&y.shape()[..d], &y.shape()[d + 1..]);
            y.reshape([before, &[periods, period], after].concat()).sum(d as i32)
        })
    }
}
