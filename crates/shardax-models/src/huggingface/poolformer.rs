//! PoolFormer, an encoder of images whose blocks mix patches by pooling.

use shardax_nn::prelude::*;

use super::vision::{StagedConfig, check_channels, stage_keys};
use super::{Config, KeyMap, Layout, Pretrained, check_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`PoolFormer`].
#[derive(Clone, Debug, PartialEq)]
pub struct PoolFormerConfig {
    /// The channels, blocks, activation and classes.
    pub stages: StagedConfig,
    /// The features of each stage.
    pub hidden_sizes: Vec<usize>,
    /// The rows and columns, the stride and the padding of the convolution at the start of each stage.
    pub patches: Vec<[usize; 3]>,
    /// The rows and columns of the pooled patches, which is odd.
    pub pool_size: usize,
    /// The ratio of the features inside an MLP to the features of a block.
    pub mlp_ratio: f64,
    /// True if learned factors scale the outputs of pooling and MLPs.
    pub has_scales: bool,
}

/// PoolFormer ([Yu et al. 2022](https://arxiv.org/abs/2111.11418)). The model type is `poolformer`. Images can have any size.
#[derive(Module, Clone, Debug)]
pub struct PoolFormer {
    stages: Vec<Stage>,
    /// The norm before the head.
    norm: Option<GroupNorm>,
    head: Option<Linear>,
    pool_size: usize,
}

/// Blocks with the same number of features, after a convolution that makes the image smaller.
#[derive(Module, Clone, Debug)]
struct Stage {
    patches: Conv,
    blocks: Vec<Block>,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: GroupNorm,
    /// `[features]`: the factors of pooled patches.
    scale: Option<Array>,
    mlp_norm: GroupNorm,
    up: Conv,
    down: Conv,
    /// `[features]`: the factors of the MLP's output.
    mlp_scale: Option<Array>,
    #[tree(static)]
    activation: Activation,
}

impl Pretrained for PoolFormer {
    type Architecture = PoolFormerConfig;

    fn read(config: &Config) -> Result<(PoolFormerConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "poolformer")?;
        let (stages, hidden_sizes) = StagedConfig::read(&fields, "hidden_sizes")?;
        let count = hidden_sizes.len();
        fields.check_size("num_encoder_blocks", count)?;
        let lists = [fields.size_list("patch_sizes")?, fields.size_list("strides")?, paddings(&fields)?];
        if let Some(list) = lists.iter().find(|list| list.len() != count) {
            let message = format!(
                "`patch_sizes`, `strides` and `padding` must have {count} entries, as `hidden_sizes`, got {list:?}"
            );
            return Err(fields.error(message));
        }
        let read = PoolFormerConfig {
            stages,
            patches: (0..count).map(|stage| [0, 1, 2].map(|part| lists[part][stage])).collect(),
            hidden_sizes,
            pool_size: fields.size("pool_size")?,
            mlp_ratio: fields.number("mlp_ratio")?,
            has_scales: fields.flag("use_layer_scale")?,
        };
        if read.pool_size.is_multiple_of(2) || read.pool_size > MAX_POOL_SIZE {
            let message = format!("`pool_size` is {}, but must be odd and at most {MAX_POOL_SIZE}", read.pool_size);
            return Err(fields.error(message));
        }
        if let Some(features) = read.hidden_sizes.iter().find(|features| read.hidden(**features) == 0) {
            let message = format!("`mlp_ratio` is {}, with which {features} features have no MLP", read.mlp_ratio);
            return Err(fields.error(message));
        }
        // Fields that no class reads, and initial values.
        fields.skip(&["patch_size", "stride", "layer_scale_init_value"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &PoolFormerConfig, rngs: &mut Rngs) -> Result<Self> {
        let stages = (0..config.hidden_sizes.len()).map(|stage| Stage::new(config, stage, rngs)).collect();
        let last = config.hidden_sizes.last().copied().unwrap_or(1);
        Ok(PoolFormer {
            stages,
            norm: config.stages.classes.map(|_| GroupNorm::builder(last, 1).epsilon(EPSILON).build(rngs)),
            head: config.stages.head(last, rngs),
            pool_size: config.pool_size,
        })
    }

    fn extents(config: &PoolFormerConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let largest = config.hidden_sizes.iter().copied().max().unwrap_or(0);
        let mut matrices = vec![("MLP kernel", largest, config.hidden(largest))];
        let inputs = std::iter::once(&config.stages.num_channels).chain(&config.hidden_sizes);
        matrices.extend(inputs.zip(&config.hidden_sizes).zip(&config.patches).map(
            |((before, features), [size, ..])| ("patch", size.saturating_mul(*size), before.saturating_mul(*features)),
        ));
        config.stages.extents(largest, matrices)
    }
}

/// The largest supported number of rows and columns of pooled patches. Published models have 3.
const MAX_POOL_SIZE: usize = 255;

/// Added to the variance in all norms.
const EPSILON: f64 = 1e-5;

/// Reads the padding of each stage, which can be 0.
fn paddings(fields: &super::Fields) -> Result<Vec<usize>> {
    let numbers = fields.numbers("padding")?;
    let is_valid = |number: &f64| number.fract() == 0.0 && (0.0..1e4).contains(number);
    match numbers.iter().find(|number| !is_valid(number)) {
        Some(number) => Err(fields.error(format!("field `padding` has {number}, but must have integers below 10,000"))),
        None => Ok(numbers.into_iter().map(|number| number as usize).collect()),
    }
}

impl PoolFormerConfig {
    /// Returns the features inside an MLP.
    fn hidden(&self, features: usize) -> usize {
        (features as f64 * self.mlp_ratio) as usize
    }
}

/// Returns the names of the arrays.
fn keys(config: &PoolFormerConfig) -> KeyMap {
    let prefix = if config.stages.classes.is_some() { "poolformer." } else { "" };
    let keys = KeyMap::new().norm("norm", "norm").linear("head", "classifier");
    let keys = stage_keys(keys, config.hidden_sizes.len(), |keys, path, stage| {
        let block = format!("{prefix}encoder.block.{stage}.*");
        keys.conv(&format!("{path}.patches"), &format!("{prefix}encoder.patch_embeddings.{stage}.projection"))
            .norm(&format!("{path}.blocks[*].norm"), &format!("{block}.before_norm"))
            .norm(&format!("{path}.blocks[*].mlp_norm"), &format!("{block}.after_norm"))
            .conv(&format!("{path}.blocks[*].up"), &format!("{block}.output.conv1"))
            .conv(&format!("{path}.blocks[*].down"), &format!("{block}.output.conv2"))
            .array(format!("{path}.blocks[*].scale"), format!("{block}.layer_scale_1"), Layout::Same)
            .array(format!("{path}.blocks[*].mlp_scale"), format!("{block}.layer_scale_2"), Layout::Same)
    });
    if prefix.is_empty() {
        keys.prefix_alias("", "poolformer.").ignore("norm.**").ignore("classifier.**")
    } else {
        keys
    }
}

impl Stage {
    fn new(config: &PoolFormerConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let features = config.hidden_sizes[stage];
        let before = stage.checked_sub(1).map_or(config.stages.num_channels, |before| config.hidden_sizes[before]);
        let [size, stride, padding] = config.patches[stage];
        let around = Padding::Explicit(vec![(padding as i64, padding as i64); 2]);
        Stage {
            patches: Conv::builder(before, features, [size; 2]).strides([stride; 2]).padding(around).build(rngs),
            blocks: (0..config.stages.depths[stage]).map(|_| Block::new(config, features, rngs)).collect(),
        }
    }
}

impl Block {
    fn new(config: &PoolFormerConfig, features: usize, rngs: &mut Rngs) -> Block {
        let (hidden, dtype) = (config.hidden(features), rngs.policy().param_dtype);
        let scale = || config.has_scales.then(|| ones_dtype([features], dtype));
        Block {
            norm: GroupNorm::builder(features, 1).epsilon(EPSILON).build(rngs),
            scale: scale(),
            mlp_norm: GroupNorm::builder(features, 1).epsilon(EPSILON).build(rngs),
            up: Conv::builder(features, hidden, [1, 1]).build(rngs),
            down: Conv::builder(hidden, features, [1, 1]).build(rngs),
            mlp_scale: scale(),
            activation: config.stages.hidden_act,
        }
    }

    fn forward(&self, x: Array, pool_size: usize) -> Array {
        let normed = self.norm.forward(&x);
        let around = (pool_size / 2) as i64;
        let pool = Pool::new([pool_size, pool_size]).padding(Padding::Explicit(vec![(around, around); 2]));
        let pooled = pool.count_include_pad(false).avg(&normed) - normed;
        let x = x + scaled(&self.scale, pooled);
        let hidden = self.activation.apply(self.up.forward(self.mlp_norm.forward(&x)));
        x + scaled(&self.mlp_scale, self.down.forward(hidden))
    }
}

/// Multiplies features by learned factors, if there are any.
fn scaled(scale: &Option<Array>, x: Array) -> Array {
    match scale {
        Some(scale) => &x * scale.astype(x.dtype()),
        None => x,
    }
}

impl PoolFormer {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        let Some(first) = self.stages.first() else { return images };
        if let Err(error) = check_channels("PoolFormer", &images, &first.patches) {
            return Array::from_error(error, &images);
        }
        self.stages.iter().fold(images, |x, stage| {
            let x = stage.patches.forward(x);
            if x.check().is_ok() && x.shape().contains(&0) {
                let message = format!("PoolFormer: the images are too small, a stage has the shape {:?}", x.shape());
                return Array::from_error(value_error(message, "pass larger images"), &x);
            }
            stage.blocks.iter().fold(x, |x, block| block.forward(x, self.pool_size))
        })
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results are
    /// features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        match (&self.head, &self.norm) {
            (Some(head), Some(norm)) if x.check().is_ok() => head.forward(norm.forward(x).mean([1, 2])),
            _ => x,
        }
    }
}
