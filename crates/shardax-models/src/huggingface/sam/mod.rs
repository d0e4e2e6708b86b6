//! Segment Anything (SAM), which segments what points or boxes select in an image.

mod config;
mod decoder;
mod image;
mod keys;
mod prompts;

use shardax_nn::prelude::*;

use self::config::POINT_KINDS;
use self::decoder::{FeedForward, TwoWay};
use self::image::ImageBlock;
use super::vision::Upsample;
use super::{Config, KeyMap, Pretrained};
use crate::Activation;

pub use config::{SamConfig, SamDecoderConfig};
pub use prompts::SamPrompts;

/// SAM ([Kirillov et al. 2023](https://arxiv.org/abs/2304.02643)). The model type is `sam`.
///
/// Images have the size of the configuration, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see
/// [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct Sam {
    patches: Conv,
    /// `[1, rows, columns, features]`
    positions: Option<Array>,
    blocks: Vec<ImageBlock>,
    neck: [Conv; 2],
    neck_norms: [LayerNorm; 2],
    /// `[2, waves]`: the waves of positions.
    waves: Array,
    /// The entries of points outside and inside of an object, and of the corners of boxes.
    points: Vec<Embed>,
    no_point: Embed,
    no_mask: Embed,
    mask_convs: [Conv; 3],
    mask_norms: [LayerNorm; 2],
    score_token: Embed,
    mask_tokens: Embed,
    two_way: Vec<TwoWay>,
    last_attention: MultiHeadAttention,
    last_norm: LayerNorm,
    upsample: [Upsample; 2],
    upsample_norm: LayerNorm,
    mask_heads: Vec<FeedForward>,
    score_head: FeedForward,
    #[tree(static)]
    mask_act: Activation,
    image_size: usize,
}

/// Added to the variance in the norms of the neck and of larger features.
const EPSILON: f64 = 1e-6;
/// Added to the variance in the norm after the last attention.
const LAST_EPSILON: f64 = 1e-5;

impl Pretrained for Sam {
    type Architecture = SamConfig;

    fn read(config: &Config) -> Result<(SamConfig, KeyMap)> {
        let read = SamConfig::read(config)?;
        let keys = keys::keys(&read);
        Ok((read, keys))
    }

    fn make(config: &SamConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, outputs, dtype) = (config.hidden_size, config.output_channels, rngs.policy().param_dtype);
        let grid = config.image_size / config.patch_size;
        let patch = [config.patch_size; 2];
        let patches = Conv::builder(config.num_channels, features, patch).strides(patch).padding(Padding::Valid);
        let conv = |[before, after]: [usize; 2], size: usize, stride: usize, rngs: &mut Rngs| {
            let conv = Conv::builder(before, after, [size; 2]).strides([stride; 2]).padding(Padding::Valid);
            conv.build(rngs)
        };
        let around = Padding::Explicit(vec![(1, 1); 2]);
        let norm =
            |features: usize, epsilon: f64, rngs: &mut Rngs| LayerNorm::builder(features).epsilon(epsilon).build(rngs);
        let (masks, decoder) = (config.mask_input_channels, &config.decoder);
        let [quarter, eighth] = [outputs / 4, outputs / 8];
        let mask_count = decoder.num_multimask_outputs + 1;
        let head = |rngs: &mut Rngs| FeedForward::new([outputs, outputs, eighth], 3, rngs);
        Ok(Sam {
            patches: patches.build(rngs),
            positions: config.use_abs_pos.then(|| zeros_dtype([1, grid, grid, features], dtype)),
            blocks: config.windows.iter().map(|window| ImageBlock::new(config, *window, rngs)).collect(),
            neck: [
                Conv::builder(features, outputs, [1, 1]).use_bias(false).build(rngs),
                Conv::builder(outputs, outputs, [3, 3]).use_bias(false).padding(around).build(rngs),
            ],
            neck_norms: [norm(outputs, EPSILON, rngs), norm(outputs, EPSILON, rngs)],
            waves: zeros_dtype([2, config.num_pos_feats], dtype),
            points: (0..POINT_KINDS).map(|_| Embed::new(1, outputs, rngs)).collect(),
            no_point: Embed::new(1, outputs, rngs),
            no_mask: Embed::new(1, outputs, rngs),
            mask_convs: [
                conv([1, masks / 4], 2, 2, rngs),
                conv([masks / 4, masks], 2, 2, rngs),
                conv([masks, outputs], 1, 1, rngs),
            ],
            mask_norms: [norm(masks / 4, config.mask_norm_eps, rngs), norm(masks, config.mask_norm_eps, rngs)],
            score_token: Embed::new(1, outputs, rngs),
            mask_tokens: Embed::new(mask_count, outputs, rngs),
            two_way: (0..decoder.num_hidden_layers).map(|_| TwoWay::new(config, rngs)).collect(),
            last_attention: config.prompt_attention(decoder.attention_downsample_rate, rngs),
            last_norm: norm(outputs, LAST_EPSILON, rngs),
            upsample: [Upsample::new([outputs, quarter], 2, rngs), Upsample::new([quarter, eighth], 2, rngs)],
            upsample_norm: norm(quarter, EPSILON, rngs),
            mask_heads: (0..mask_count).map(|_| head(rngs)).collect(),
            score_head: FeedForward::new(
                [outputs, decoder.iou_head_hidden_dim, mask_count],
                decoder.iou_head_depth,
                rngs,
            ),
            mask_act: config.mask_act,
            image_size: config.image_size,
        })
    }

    fn extents(config: &SamConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, outputs, grid) =
            (config.hidden_size, config.output_channels, config.image_size / config.patch_size.max(1));
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let positions = if config.use_abs_pos { grid.saturating_mul(grid) } else { 0 };
        let largest = config.windows.iter().copied().max().unwrap_or(0);
        let distances = if config.use_rel_pos { largest.max(grid) } else { 0 };
        let decoder = &config.decoder;
        let matrices = vec![
            ("position table", positions, features),
            ("table of distances", distances, features / config.num_attention_heads.max(1)),
            ("query kernel", features, features),
            ("MLP kernel", features, config.mlp_dim),
            ("patch", patch, config.num_channels.saturating_mul(features)),
            ("convolution of the neck", outputs.saturating_mul(9), outputs),
            ("layer of the neck", features, outputs),
            ("MLP of the decoder", outputs, decoder.mlp_dim),
            ("layer of scores", outputs, decoder.iou_head_hidden_dim),
            ("convolution of masks", config.mask_input_channels, outputs),
            ("waves", 2, config.num_pos_feats),
        ];
        (config.windows.len().saturating_add(decoder.num_hidden_layers), matrices)
    }
}
