//! Parts of encoders of images whose stages have different sizes.

use shardax_nn::prelude::*;

use super::encoder::small_normal;
use super::fields::Fields;
use super::{KeyMap, Layout};
use crate::Activation;
use crate::error::value_error;

/// The sizes that encoders of images with stages share.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedConfig {
    /// The number of color channels.
    pub num_channels: usize,
    /// The number of blocks of each stage.
    pub depths: Vec<usize>,
    /// The activation inside of blocks, and of a ResNet after its first convolution and after blocks.
    pub hidden_act: Activation,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

impl StagedConfig {
    /// Reads the fields, and a list with an entry for each stage from the field `name`.
    pub(super) fn read<'a>(fields: &Fields<'a>, name: &'a str) -> Result<(StagedConfig, Vec<usize>)> {
        let (sizes, depths) = stages(fields, name)?;
        let read = StagedConfig {
            num_channels: fields.size("num_channels")?,
            depths,
            hidden_act: fields.activation("hidden_act")?,
            classes: classes(fields)?,
        };
        skip_features_of_stages(fields);
        Ok((read, sizes))
    }

    /// Returns the number of blocks, and adds the table of classes to the sizes of the largest matrices. `features` is the number
    /// of features of the last stage.
    pub(super) fn extents(
        &self,
        features: usize,
        mut matrices: Vec<(&'static str, usize, usize)>,
    ) -> (usize, Vec<(&'static str, usize, usize)>) {
        matrices.push(("table of classes", self.classes.unwrap_or(0), features));
        (self.depths.iter().fold(0, |sum, depth| depth.saturating_add(sum)), matrices)
    }

    /// Creates the layer for the classes, if there is one.
    pub(super) fn head(&self, features: usize, rngs: &mut Rngs) -> Option<Linear> {
        self.classes.map(|classes| Linear::new(features, classes, rngs))
    }
}

/// Returns the number of classes of images, or `None` if `architectures` names a class without a head.
pub(super) fn classes(fields: &Fields) -> Result<Option<usize>> {
    classes_of_head(fields, "ForImageClassification")
}

/// Returns the number of classes, or `None` if `architectures` names a class without a head. `head` is the end of the other class'
/// name, which is the default.
pub(super) fn classes_of_head(fields: &Fields, head: &str) -> Result<Option<usize>> {
    match fields.class()?.unwrap_or(head) {
        name if name.ends_with(head) => classes_of(fields).map(Some),
        name if name.ends_with("Model") => Ok(None),
        other => Err(fields.error(format!("the class {other:?} of `architectures` is not supported"))),
    }
}

/// Returns the number of classes that the labels name.
pub(super) fn classes_of(fields: &Fields) -> Result<usize> {
    Ok(fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2))
}

/// Returns the features and the numbers of blocks of all stages. `name` is the field of the features.
pub(super) fn stages<'a>(fields: &Fields<'a>, name: &'a str) -> Result<(Vec<usize>, Vec<usize>)> {
    let (sizes, depths) = (fields.size_list(name)?, fields.size_list("depths")?);
    if sizes.len() != depths.len() {
        return Err(fields.error(format!("`{name}` has {} stages, but `depths` has {}", sizes.len(), depths.len())));
    }
    Ok((sizes, depths))
}

/// Marks the fields as read that select features of several stages for other models, and fields for training.
pub(super) fn skip_features_of_stages(fields: &Fields) {
    fields.skip(&["out_features", "out_indices", "stage_names", "drop_path_rate"]);
}

/// Adds the names of each stage. The arguments of `add` are the names so far, the key path and the index of the stage.
pub(super) fn stage_keys(keys: KeyMap, stages: usize, add: impl Fn(KeyMap, &str, usize) -> KeyMap) -> KeyMap {
    (0..stages).fold(keys, |keys, stage| add(keys, &format!("stages[{stage}]"), stage))
}

/// Returns an error if images are not `[batch, rows, columns, channels]`.
pub(super) fn check_channels(model: &str, images: &Array, conv: &Conv) -> Result<()> {
    images.check()?;
    let channels = conv.kernel.shape().get(2).copied();
    if images.ndim() == 4 && images.shape().last().copied() == channels {
        return Ok(());
    }
    let message = format!(
        "{model}: images of the shape {:?} are not [batch, rows, columns, {}]",
        images.shape(),
        channels.unwrap_or(0)
    );
    Err(value_error(message, "transpose images whose channels come first with `transpose([0, 2, 3, 1])`"))
}

/// A norm of features with the means and variances of a data set (batch normalization after training).
#[derive(Module, Clone, Debug)]
pub(super) struct FrozenNorm {
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    epsilon: f64,
}

impl FrozenNorm {
    /// Creates a norm that adds `epsilon` to the variance.
    pub fn new(features: usize, epsilon: f64, rngs: &Rngs) -> FrozenNorm {
        let dtype = rngs.policy().param_dtype;
        let [zeros, ones] = [zeros_dtype([features], dtype), ones_dtype([features], dtype)];
        FrozenNorm { scale: ones.clone(), bias: zeros.clone(), mean: zeros, variance: ones, epsilon }
    }

    /// Returns the number of features.
    pub fn features(&self) -> usize {
        self.scale.size()
    }

    /// Normalizes the last dimension. The factor of each feature is computed in float32.
    #[track_caller]
    pub fn forward(&self, x: Array) -> Array {
        let [scale, bias, mean, variance] =
            [&self.scale, &self.bias, &self.mean, &self.variance].map(|x| x.astype(DType::F32));
        let factor = scale * (variance + self.epsilon).rsqrt();
        let shift = bias - mean * &factor;
        &x * factor.astype(x.dtype()) + shift.astype(x.dtype())
    }
}

/// A convolution and a norm.
#[derive(Module, Clone, Debug)]
pub(super) struct ConvNorm {
    pub conv: Conv,
    norm: FrozenNorm,
}

/// The kernel of a [`ConvNorm`].
#[derive(Clone, Debug)]
pub(super) struct ConvShape {
    /// The rows and columns.
    pub size: usize,
    pub stride: usize,
    pub groups: usize,
    /// The distance of neighboring entries.
    pub dilation: usize,
    pub padding: Padding,
    /// Added to the variance in the norm.
    pub epsilon: f64,
    /// True if the convolution has a bias.
    pub has_bias: bool,
}

impl ConvShape {
    /// Returns a kernel whose padding is half of the kernel at each end.
    pub fn new(size: usize, stride: usize) -> ConvShape {
        let around = (size / 2) as i64;
        let padding = Padding::Explicit(vec![(around, around); 2]);
        ConvShape { size, stride, groups: 1, dilation: 1, padding, epsilon: 1e-5, has_bias: false }
    }
}

impl ConvNorm {
    /// Creates a convolution from `before` features, and its norm.
    pub fn new([before, features]: [usize; 2], shape: ConvShape, rngs: &mut Rngs) -> ConvNorm {
        let conv = Conv::builder(before, features, [shape.size; 2]).strides([shape.stride; 2]).use_bias(shape.has_bias);
        let conv = conv.feature_group_count(shape.groups).kernel_dilation([shape.dilation; 2]);
        let conv = conv.padding(shape.padding).build(rngs);
        ConvNorm { conv, norm: FrozenNorm::new(features, shape.epsilon, rngs) }
    }

    pub fn forward(&self, x: Array) -> Array {
        self.norm.forward(self.conv.forward(x))
    }
}

/// Computes factors of features from their means over the image.
#[derive(Module, Clone, Debug)]
pub(super) struct Squeeze {
    down: Conv,
    up: Conv,
    #[tree(static)]
    activation: Activation,
}

impl Squeeze {
    pub fn new(features: usize, reduced: usize, activation: Activation, rngs: &mut Rngs) -> Squeeze {
        Squeeze {
            down: Conv::builder(features, reduced, [1, 1]).build(rngs),
            up: Conv::builder(reduced, features, [1, 1]).build(rngs),
            activation,
        }
    }

    pub fn forward(&self, x: Array) -> Array {
        let means = x.mean_keepdims([1, 2]);
        &x * sigmoid(self.up.forward(self.activation.apply(self.down.forward(means))))
    }
}

/// Adds the names of a [`FrozenNorm`].
pub(super) fn frozen_norm_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    let parts = [("scale", "weight"), ("bias", "bias"), ("mean", "running_mean"), ("variance", "running_var")];
    let keys = parts.into_iter().fold(keys, |keys, (part, array)| {
        keys.array(format!("{path}.{part}"), format!("{name}.{array}"), Layout::Same)
    });
    // The number of training steps.
    keys.ignore(&format!("{name}.num_batches_tracked"))
}

/// Adds the names of a [`ConvNorm`]. `parts` are the names of the convolution and of the norm inside of `name`.
pub(super) fn conv_norm_keys(keys: KeyMap, path: &str, name: &str, parts: [&str; 2]) -> KeyMap {
    let [conv, norm] = parts.map(|part| format!("{name}.{part}"));
    frozen_norm_keys(keys.conv(&format!("{path}.conv"), &conv), &format!("{path}.norm"), &norm)
}

/// Adds the names of a [`ConvNorm`] whose parts have the names of most classes.
pub(super) fn convolution_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    conv_norm_keys(keys, path, name, ["convolution", "normalization"])
}

/// A transposed convolution whose kernel is as large as its stride.
#[derive(Module, Clone, Debug)]
pub(super) struct Upsample {
    /// `[features before, features, rows, columns]`
    kernel: Array,
    bias: Array,
}

impl Upsample {
    /// Creates a layer that makes rows and columns larger by this factor.
    pub fn new([before, features]: [usize; 2], factor: usize, rngs: &mut Rngs) -> Upsample {
        Upsample {
            kernel: small_normal(&[before, features, factor, factor], rngs),
            bias: zeros_dtype([features], rngs.policy().param_dtype),
        }
    }

    pub fn forward(&self, x: Array) -> Array {
        let (&[batch, rows, columns, _], &[_, features, factor, _]) = (x.shape(), self.kernel.shape()) else {
            return x;
        };
        let squares = einsum("bijc,coyx->biyjxo", &[&x, &self.kernel.astype(x.dtype())]);
        let y = squares.reshape([batch, rows * factor, columns * factor, features]);
        &y + self.bias.astype(y.dtype())
    }
}
