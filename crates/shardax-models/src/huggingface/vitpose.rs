//! ViTPose, which estimates where the joints of a person are.

use shardax_nn::prelude::*;

use super::depth::layers;
use super::encoder::{BlockSizes, EncoderBlock, VIT_NORMS, small_normal, vit_block_keys};
use super::fields::Fields;
use super::interpolation::{bilinear_weights, resized};
use super::vision::{FrozenNorm, classes_of, frozen_norm_keys};
use super::{Config, KeyMap, Layout, Pretrained, check_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`VitPose`].
#[derive(Clone, Debug, PartialEq)]
pub struct VitPoseConfig {
    /// The features of a patch.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// The rows and columns of an image.
    pub image_size: [usize; 2],
    /// The rows and columns of a patch.
    pub patch_size: [usize; 2],
    /// The number of color channels.
    pub num_channels: usize,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The factor by which rows and columns are interpolated. `None` if two transposed convolutions double them.
    pub scale: Option<usize>,
    /// The number of joints.
    pub joints: usize,
}

/// ViTPose ([Xu et al. 2022](https://arxiv.org/abs/2204.12484)). The model type is `vitpose`.
///
/// The input is an image of one person, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see
/// [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct VitPose {
    patches: Conv,
    /// `[1, 1 + patches, features]`. The first row is added to all patches.
    positions: Array,
    blocks: Vec<EncoderBlock>,
    norm: LayerNorm,
    doublings: Vec<Doubling>,
    head: Conv,
    scale: usize,
    #[tree(static)]
    image_size: [usize; 2],
}

/// A transposed convolution that doubles rows and columns, and a norm.
#[derive(Module, Clone, Debug)]
struct Doubling {
    conv: ConvTranspose,
    norm: FrozenNorm,
}

/// The number of zeros around an image.
const PADDING: usize = 2;
/// The features of transposed convolutions.
const DOUBLED_FEATURES: usize = 256;
/// Added to the variance in the norms after transposed convolutions.
const NORM_EPSILON: f64 = 1e-5;
/// The largest factor by which rows and columns grow.
const MAX_SCALE: usize = 64;

impl Pretrained for VitPose {
    type Architecture = VitPoseConfig;

    fn read(config: &Config) -> Result<(VitPoseConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "vitpose")?;
        let about = fields.object_opt("backbone_config")?;
        let about = about.ok_or_else(|| fields.error("missing field `backbone_config`"))?;
        check_type(&about, "vitpose_backbone")?;
        let (features, heads) = (about.size("hidden_size")?, about.size("num_attention_heads")?);
        about.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        let read = VitPoseConfig {
            hidden_size: features,
            intermediate_size: features.saturating_mul(about.size("mlp_ratio")?),
            num_hidden_layers: about.layers("num_hidden_layers")?,
            num_attention_heads: heads,
            image_size: pair(&about, "image_size")?,
            patch_size: pair(&about, "patch_size")?,
            num_channels: about.size("num_channels")?,
            qkv_bias: about.flag("qkv_bias")?,
            hidden_act: about.activation("hidden_act")?,
            layer_norm_eps: about.number("layer_norm_eps")?,
            scale: match fields.flag("use_simple_decoder")? {
                true => Some(fields.size("scale_factor")?),
                false => None,
            },
            joints: classes_of(&fields)?,
        };
        check(&about, &read)?;
        about.finish()?;
        if read.scale.is_some_and(|scale| scale > MAX_SCALE) {
            return Err(fields.error(format!("`scale_factor` must be at most {MAX_SCALE}")));
        }
        fields.skip(&["scale_factor"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &VitPoseConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.hidden_size;
        let around = PADDING as i64;
        let patches = Conv::builder(config.num_channels, features, config.patch_size).strides(config.patch_size);
        let sizes = [features, config.intermediate_size, config.num_attention_heads];
        let sizes = BlockSizes::new(sizes, config.hidden_act, config.layer_norm_eps, config.qkv_bias);
        let grid = config.grid();
        let doublings: Vec<Doubling> = match config.scale {
            Some(_) => Vec::new(),
            None => [features, DOUBLED_FEATURES].into_iter().map(|before| Doubling::new(before, rngs)).collect(),
        };
        let head = match config.scale {
            Some(_) => Conv::builder(features, config.joints, [3, 3]).padding(Padding::Explicit(vec![(1, 1); 2])),
            None => Conv::builder(DOUBLED_FEATURES, config.joints, [1, 1]),
        };
        Ok(VitPose {
            patches: patches.padding(Padding::Explicit(vec![(around, around); 2])).build(rngs),
            positions: small_normal(&[1, grid[0].saturating_mul(grid[1]).saturating_add(1), features], rngs),
            blocks: (0..config.num_hidden_layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect(),
            norm: LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs),
            doublings,
            head: head.build(rngs),
            scale: config.scale.unwrap_or(1),
            image_size: config.image_size,
        })
    }

    fn extents(config: &VitPoseConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, grid) = (config.hidden_size, config.grid());
        let patch = config.patch_size[0].saturating_mul(config.patch_size[1]);
        let matrices = vec![
            ("position table", grid[0].saturating_mul(grid[1]), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("patch", patch, config.num_channels.saturating_mul(features)),
            ("layer of the joints", config.joints, if config.scale.is_some() { features } else { DOUBLED_FEATURES }),
        ];
        (config.num_hidden_layers, matrices)
    }
}

impl VitPoseConfig {
    /// Returns the rows and columns of patches.
    fn grid(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.image_size[axis] / self.patch_size[axis].max(1))
    }
}

/// Reads two sizes, or one that both rows and columns have.
fn pair<'a>(fields: &Fields<'a>, name: &'a str) -> Result<[usize; 2]> {
    if fields.value(name).is_some_and(|value| value.is_number()) {
        return Ok([fields.size(name)?; 2]);
    }
    let sizes = fields.size_list(name)?;
    <[usize; 2]>::try_from(sizes).map_err(|_| fields.error(format!("field `{name}` must have two sizes")))
}

/// Returns an error for fields of the encoder that the model does not support.
fn check(about: &Fields, config: &VitPoseConfig) -> Result<()> {
    if about.size("num_experts")? != 1 {
        return Err(about.error("`num_experts` must be 1, because experts of data sets are not supported"));
    }
    let count = config.num_hidden_layers;
    if layers(about, count)?.last() != Some(&count) {
        return Err(
            about.error(format!("`out_indices` or `out_features` must end with the last of the {count} layers"))
        );
    }
    // The convolution must have as many patches as the position table, although it adds zeros around the image.
    for axis in [0, 1] {
        let (size, patch, count) = (config.image_size[axis], config.patch_size[axis], config.grid()[axis]);
        let padded = size.saturating_add(2 * PADDING);
        if count == 0 || padded < patch || (padded - patch) / patch + 1 != count {
            return Err(about.error(format!("`image_size` has {size}, which does not fit patches of {patch}")));
        }
    }
    about.skip(&["part_features", "stage_names"]);
    Ok(())
}

/// Returns the names of the arrays.
fn keys(config: &VitPoseConfig) -> KeyMap {
    let layer = "backbone.encoder.layer.*";
    let keys = vit_block_keys(layer, VIT_NORMS, ["mlp.fc1", "mlp.fc2"])
        .conv("patches", "backbone.embeddings.patch_embeddings.projection")
        .array("positions", "backbone.embeddings.position_embeddings", Layout::Same)
        .norm("norm", "backbone.layernorm")
        .conv("head", "head.conv");
    let doublings = if config.scale.is_some() { 0 } else { 2 };
    (0..doublings).fold(keys, |keys, index| {
        let (path, number) = (format!("doublings[{index}]"), index + 1);
        let keys = keys.conv(&format!("{path}.conv"), &format!("head.deconv{number}"));
        frozen_norm_keys(keys, &format!("{path}.norm"), &format!("head.batchnorm{number}"))
    })
}

impl Doubling {
    fn new(before: usize, rngs: &mut Rngs) -> Doubling {
        let conv = ConvTranspose::builder(before, DOUBLED_FEATURES, [4, 4]).strides([2, 2]).use_bias(false);
        Doubling {
            // The kernel of PyTorch's layer has its inputs first, and is applied backwards.
            conv: conv.transpose_kernel(true).build(rngs),
            norm: FrozenNorm::new(DOUBLED_FEATURES, NORM_EPSILON, rngs),
        }
    }
}

impl VitPose {
    /// Computes heat maps of the joints, `[batch, rows, columns, joints]`, from images `[batch, rows, columns, channels]` of the size in
    /// the configuration. A joint is where its map is largest. `transformers` has the joints before the rows instead.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_forward(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn try_forward(&self, images: &Array) -> Result<Array> {
        images.check()?;
        let ([rows, columns], channels) = (self.image_size, self.patches.kernel.shape()[2]);
        if images.ndim() != 4 || images.shape()[1..] != [rows, columns, channels] {
            let message =
                format!("VitPose: the shape {:?} is not [batch, {rows}, {columns}, {channels}]", images.shape());
            return Err(value_error(
                message,
                "cut out a person, and resize the image to the size of the configuration",
            ));
        }
        let x = self.patches.forward(images);
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let table = self.positions.reshape([-1, features as i32]).astype(x.dtype());
        let x = x.reshape([batch, rows * columns, features]) + (table.get(1..) + table.get(..1));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.norm.forward(x).reshape([batch, rows, columns, features]);
        let x = self.doublings.iter().fold(x, |x, layer| relu(layer.norm.forward(layer.conv.forward(x))));
        let x = if self.doublings.is_empty() { relu(x) } else { x };
        let size = [x.shape()[1] * self.scale, x.shape()[2] * self.scale];
        Ok(self.head.forward(resized(x, size, bilinear_weights)?))
    }
}
