//! The locally connected layer.

use shardax::lax::{ConvOptions, Padding, conv_general_dilated_local};
use shardax::prelude::*;
use shardax::shape::IntoSizes;

use super::ConvPadding;
use super::conv::{extents, in_batches};
use super::kernel::{Kernel, KernelBuilder, KernelLayer, KernelOptions, KernelShape, with_bias};
use crate::Rngs;
use crate::check::{require, value_error};

/// A convolution of channels-last inputs with a kernel and a bias of its own at each position of the result, which is
/// called a locally connected layer.
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = ConvLocal::builder(3, 4, [3], [8]).padding(lax::Padding::Valid).build(&mut Rngs::new(0));
/// assert_eq!(layer.kernel.shape(), [6, 9, 4]);
/// assert_eq!(layer.forward(ones([5, 8, 3])).shape(), [5, 6, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct ConvLocal {
    /// `[positions of the result, in · elements of the kernel, out]`
    #[tree(axis_names = options.kernel_axes)]
    pub kernel: Array,
    /// `[positions of the result, out]`
    #[tree(axis_names = options.bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    own: ConvLocalOwn,
    #[tree(static)]
    options: KernelOptions,
}

/// The options that only a locally connected layer has.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvLocalOwn {
    features: [usize; 2],
    input_size: Vec<usize>,
    kernel_size: Vec<usize>,
    strides: Vec<usize>,
    padding: ConvPadding,
    kernel_dilation: Vec<usize>,
}

/// The options of a [`ConvLocal`].
pub type ConvLocalBuilder = KernelBuilder<ConvLocal>;

impl KernelLayer for ConvLocal {
    type Own = ConvLocalOwn;

    fn shape(own: &ConvLocalOwn) -> Result<KernelShape> {
        let [features, out] = own.features;
        let positions = own.positions()?;
        let elements = own.kernel_size.iter().product::<usize>() * features;
        // Each position has a bias.
        let bias = (0..positions.len()).chain([positions.len() + 1]).collect();
        Ok(KernelShape { kernel: [positions, vec![elements, out]].concat(), drawn: None, bias })
    }

    fn make(kernel: Kernel, own: ConvLocalOwn) -> Self {
        let Kernel { kernel, bias, options } = kernel;
        ConvLocal { kernel, bias, own, options }
    }
}

impl ConvLocalOwn {
    /// Returns the sizes of the result: the sizes of a sum over the windows of an input.
    fn positions(&self) -> Result<Vec<usize>> {
        let spatial = self.kernel_size.len();
        if self.input_size.len() != spatial {
            return value_error(format!(
                "ConvLocal: the input's size {:?} and the kernel's size {:?} need the same number of dimensions",
                self.input_size, self.kernel_size
            ));
        }
        let types = [
            shape_dtype_struct([&[1], self.input_size.as_slice(), &[1]].concat(), DType::F32),
            shape_dtype_struct([self.kernel_size.as_slice(), &[1, 1]].concat(), DType::F32),
        ];
        let windows = |[x, kernel]: [Array; 2]| -> Result<Array> {
            let (x, padding) = self.padding.apply(&x, &extents(&kernel, &self.kernel_dilation))?;
            Ok(lax::conv_general_dilated(x, kernel, &self.strides, padding, self.conv_options()))
        };
        Ok(eval_shape(windows, types)?.shape()[1..=spatial].to_vec())
    }

    fn conv_options(&self) -> ConvOptions {
        ConvOptions::new().channels_last(self.kernel_size.len()).rhs_dilation(&self.kernel_dilation)
    }
}

impl ConvLocalBuilder {
    /// Sets the step of the kernel in each spatial dimension. Default 1.
    pub fn strides(mut self, strides: impl IntoSizes) -> Self {
        self.own.strides = strides.into_sizes_of(self.own.kernel_size.len());
        self
    }

    /// Sets the padding of the spatial dimensions. Default [`Padding::Same`].
    pub fn padding(mut self, padding: impl Into<ConvPadding>) -> Self {
        self.own.padding = padding.into();
        self
    }

    /// Sets the distance between the kernel's elements in each spatial dimension. Default 1.
    pub fn kernel_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.own.kernel_dilation = dilation.into_sizes_of(self.own.kernel_size.len());
        self
    }
}

impl ConvLocal {
    /// Creates a layer from `in_features` to `out_features` with kernels of this size, for inputs of the spatial size
    /// `input_size`, stride 1 and padding SAME. The kernels are LeCun normal, the bias zero.
    #[track_caller]
    pub fn new(
        in_features: usize,
        out_features: usize,
        kernel_size: impl IntoSizes,
        input_size: impl IntoSizes,
        rngs: &mut Rngs,
    ) -> Self {
        ConvLocal::builder(in_features, out_features, kernel_size, input_size).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(
        in_features: usize,
        out_features: usize,
        kernel_size: impl IntoSizes,
        input_size: impl IntoSizes,
    ) -> ConvLocalBuilder {
        let kernel_size = kernel_size.into_sizes();
        let ones = vec![1; kernel_size.len()];
        let input_size = input_size.into_sizes_of(kernel_size.len());
        KernelBuilder::new(ConvLocalOwn {
            features: [in_features, out_features],
            input_size,
            kernel_size,
            strides: ones.clone(),
            padding: Padding::Same.into(),
            kernel_dilation: ones,
        })
    }

    /// Applies the layer. `x` is `[batch, spatial dimensions, features]`, with any number of batch dimensions, or none.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, self.kernel.check(), self.check_size(&x));
        let layer = &self.own;
        let (x, kernel, bias) = self.options.in_dtype(x, &self.kernel, &self.bias);
        let convolved = in_batches(&x, kernel.ndim(), |x| {
            let extents: Vec<usize> = layer
                .kernel_size
                .iter()
                .zip(&layer.kernel_dilation)
                .map(|(&size, &dilation)| size.saturating_sub(1).saturating_mul(dilation).saturating_add(size.min(1)))
                .collect();
            let (x, padding) = layer.padding.apply(x, &extents)?;
            let options = self.options.with_precision(layer.conv_options());
            Ok(conv_general_dilated_local(x, &kernel, &layer.strides, padding, &layer.kernel_size, options))
        });
        match convolved {
            Ok(y) => with_bias(y, bias),
            Err(error) => Array::from_error(error, &x),
        }
    }

    /// Checks that `x` has the sizes that the layer was created for.
    fn check_size(&self, x: &Array) -> Result<()> {
        x.check()?;
        let layer = &self.own;
        let expected = [layer.input_size.as_slice(), &layer.features[..1]].concat();
        if x.shape().ends_with(&expected) {
            return Ok(());
        }
        value_error(format!(
            "ConvLocal: the last dimensions of the input {} must have the sizes {expected:?} that the layer has kernels for",
            x.type_name()
        ))
    }
}
