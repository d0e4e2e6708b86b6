//! DaViT, an encoder of images in which patches and features attend to each other.

use shardax_nn::prelude::*;

use super::encoder::remove_input_biases;
use super::fields::Fields;
use super::vision::check_channels;
use super::{KeyMap, Layout, attention};
use crate::error::value_error;
use crate::{Activation, Mlp};

/// The architecture of the encoder of images of a [`Florence`](crate::Florence).
#[derive(Clone, Debug, PartialEq)]
pub struct DaVitConfig {
    /// The number of color channels.
    pub num_channels: usize,
    /// The stages.
    pub stages: Vec<DaVitStage>,
    /// The rows and columns of a window.
    pub window_size: usize,
    /// The ratio of the features inside an MLP to the features of a block.
    pub mlp_ratio: f64,
    /// True if queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
}

/// A stage of a [`DaVitConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaVitStage {
    /// The features.
    pub features: usize,
    /// The number of pairs of blocks.
    pub depth: usize,
    /// The rows and columns, the stride and the padding of the convolution at the start.
    pub patch: [usize; 3],
    /// True if the norm of this convolution is before it.
    pub norm_first: bool,
    /// The heads of attention between the patches of a window.
    pub heads: usize,
    /// The groups of features that attend to each other.
    pub groups: usize,
}

impl DaVitConfig {
    /// Reads the fields, without the check of unknown fields.
    pub(crate) fn read(fields: &Fields) -> Result<DaVitConfig> {
        let features = fields.size_list("embed_dim")?;
        let count = features.len();
        let paddings = fields.numbers("patch_padding")?;
        let is_padding = |padding: &f64| padding.fract() == 0.0 && (0.0..=MAX_PATCH as f64).contains(padding);
        if !paddings.iter().all(is_padding) {
            return Err(fields.error(format!("`patch_padding` must be integers of at least 0, got {paddings:?}")));
        }
        let paddings: Vec<usize> = paddings.into_iter().map(|padding| padding as usize).collect();
        let norms = fields.list_opt("patch_prenorm")?.map_or(&[][..], Vec::as_slice);
        let norms: Option<Vec<bool>> = norms.iter().map(serde_json::Value::as_bool).collect();
        let norms = norms.ok_or_else(|| fields.error("`patch_prenorm` must be a list of true and false"))?;
        let names = ["depths", "num_heads", "num_groups", "patch_size", "patch_stride"];
        let lists = [
            fields.size_list(names[0])?,
            fields.size_list(names[1])?,
            fields.size_list(names[2])?,
            fields.size_list(names[3])?,
            fields.size_list(names[4])?,
        ];
        if lists.iter().chain([&paddings]).any(|list| list.len() != count) || norms.len() != count {
            return Err(fields.error(format!("the lists of stages must have {count} entries, as `embed_dim`")));
        }
        let stages: Vec<DaVitStage> = (0..count)
            .map(|stage| DaVitStage {
                features: features[stage],
                depth: lists[0][stage],
                patch: [lists[3][stage], lists[4][stage], paddings[stage]],
                norm_first: norms[stage],
                heads: lists[1][stage],
                groups: lists[2][stage],
            })
            .collect();
        let mlp_ratio = fields.number("mlp_ratio")?;
        for stage in &stages {
            fields.divides(("num_heads", stage.heads), ("embed_dim", stage.features))?;
            fields.divides(("num_groups", stage.groups), ("embed_dim", stage.features))?;
            if stage.patch.iter().any(|size| *size > MAX_PATCH) {
                return Err(fields.error(format!("a patch of {:?} is larger than {MAX_PATCH}", stage.patch)));
            }
            if (mlp_ratio * stage.features as f64) < 1.0 {
                return Err(fields.error(format!("`mlp_ratio` is {mlp_ratio}, with which there are no MLPs")));
            }
        }
        let window_size = fields.size("window_size")?;
        if window_size > MAX_PATCH {
            return Err(fields.error(format!("`window_size` is {window_size}, but can be at most {MAX_PATCH}")));
        }
        fields.skip(&["drop_path_rate"]);
        Ok(DaVitConfig {
            num_channels: fields.size("in_channels")?,
            stages,
            window_size,
            mlp_ratio,
            qkv_bias: fields.flag("qkv_bias")?,
            hidden_act: fields.activation("activation_function")?,
        })
    }

    /// Returns the features of the last stage.
    pub(crate) fn features(&self) -> usize {
        self.stages.last().map_or(0, |stage| stage.features)
    }

    /// Returns the number of blocks, and the names and sizes of the largest matrices.
    pub(crate) fn extents(&self) -> (usize, Vec<(&'static str, usize, usize)>) {
        let before = std::iter::once(self.num_channels).chain(self.stages.iter().map(|stage| stage.features));
        let matrices = self.stages.iter().zip(before).flat_map(|(stage, before)| {
            let inputs = before.saturating_mul(stage.patch[0].saturating_mul(stage.patch[0]));
            let hidden = (self.mlp_ratio * stage.features as f64) as usize;
            [
                ("convolution of a stage", inputs, stage.features),
                ("MLP kernel of a stage", stage.features, hidden.max(stage.features)),
            ]
        });
        let depth = self.stages.iter().fold(0usize, |sum, stage| sum.saturating_add(stage.depth.saturating_mul(2)));
        (depth, matrices.collect())
    }
}

/// The largest patches and windows. Published models have 7 and 12.
const MAX_PATCH: usize = 1 << 10;

/// Added to the variance in norms. The class does not read it from the configuration.
const EPSILON: f64 = 1e-5;

/// DaViT ([Ding et al. 2022](https://arxiv.org/abs/2204.03645)).
#[derive(Module, Clone, Debug)]
pub(crate) struct DaVit {
    stages: Vec<Stage>,
}

#[derive(Module, Clone, Debug)]
struct Stage {
    patches: Conv,
    norm: LayerNorm,
    norm_first: bool,
    blocks: Vec<Pair>,
}

/// A block whose patches attend to each other, and a block whose features do.
#[derive(Module, Clone, Debug)]
struct Pair {
    windows: Block,
    features: Block,
    window_size: usize,
}

#[derive(Module, Clone, Debug)]
struct Block {
    conv: Conv,
    norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_conv: Conv,
    mlp_norm: LayerNorm,
    mlp: Mlp,
}

impl DaVit {
    pub fn new(config: &DaVitConfig, rngs: &mut Rngs) -> DaVit {
        let mut before = config.num_channels;
        let stages = config.stages.iter().map(|stage| {
            let [size, stride, padding] = stage.patch;
            let padding = (padding as i64, padding as i64);
            let conv = Conv::builder(before, stage.features, [size, size]).strides([stride, stride]);
            let normed = if stage.norm_first { before } else { stage.features };
            before = stage.features;
            Stage {
                patches: conv.padding(Padding::Explicit(vec![padding; 2])).build(rngs),
                norm: LayerNorm::builder(normed).epsilon(EPSILON).build(rngs),
                norm_first: stage.norm_first,
                blocks: (0..stage.depth)
                    .map(|_| Pair {
                        windows: Block::new(config, stage, stage.heads, rngs),
                        features: Block::new(config, stage, stage.groups, rngs),
                        window_size: config.window_size,
                    })
                    .collect(),
            }
        });
        DaVit { stages: stages.collect() }
    }

    /// Computes features, `[batch, rows, columns, features]`, from images, `[batch, rows, columns, channels]`.
    #[track_caller]
    pub fn forward(&self, images: Array) -> Array {
        let checked = match self.stages.first() {
            Some(stage) => check_channels("Florence", &images, &stage.patches),
            None => {
                Err(value_error("Florence: the encoder of images has no stages", "use a configuration with stages"))
            }
        };
        if let Err(error) = checked {
            return Array::from_error(error, &images);
        }
        self.stages.iter().fold(images, |x, stage| {
            let x = if stage.norm_first { stage.norm.forward(x) } else { x };
            let x = stage.patches.forward(x);
            let x = if stage.norm_first { x } else { stage.norm.forward(x) };
            stage.blocks.iter().fold(x, |x, pair| {
                let x = pair.windows.forward(x, |attention, x| in_windows(attention, x, pair.window_size));
                pair.features.forward(x, between_features)
            })
        })
    }
}

impl Block {
    fn new(config: &DaVitConfig, stage: &DaVitStage, heads: usize, rngs: &mut Rngs) -> Block {
        let features = stage.features;
        let conv = |rngs: &mut Rngs| {
            Conv::builder(features, features, [3, 3])
                .feature_group_count(features)
                .padding(Padding::Explicit(vec![(1, 1); 2]))
                .build(rngs)
        };
        let mut attention = attention(heads, features).build(rngs);
        if !config.qkv_bias {
            remove_input_biases(&mut attention);
        }
        let hidden = (config.mlp_ratio * features as f64) as usize;
        Block {
            conv: conv(rngs),
            norm: LayerNorm::builder(features).epsilon(EPSILON).build(rngs),
            attention,
            mlp_conv: conv(rngs),
            mlp_norm: LayerNorm::builder(features).epsilon(EPSILON).build(rngs),
            mlp: Mlp::new(features, hidden, config.hidden_act, false, true, rngs),
        }
    }

    /// Applies the block to `[batch, rows, columns, features]`. Depthwise convolutions before both parts replace positions.
    fn forward(&self, x: Array, attend: impl FnOnce(&MultiHeadAttention, Array) -> Array) -> Array {
        let x = &x + self.conv.forward(&x);
        let x = &x + attend(&self.attention, self.norm.forward(&x));
        let x = &x + self.mlp_conv.forward(&x);
        &x + self.mlp.forward(self.mlp_norm.forward(&x))
    }
}

/// Attends between the patches of each window. Zeros fill the windows at the end of a dimension.
fn in_windows(attention: &MultiHeadAttention, x: Array, window: usize) -> Array {
    let &[batch, rows, columns, features] = x.shape() else { return x };
    let [more_rows, more_columns] = [rows, columns].map(|size| size.next_multiple_of(window) - size);
    let x = match [more_rows, more_columns] {
        [0, 0] => x,
        _ => pad(x, vec![(0, 0), (0, more_rows), (0, more_columns), (0, 0)], PadMode::Constant(0.0)),
    };
    let [down, right] = [rows, columns].map(|size| size.div_ceil(window));
    let x = x.reshape([batch, down, window, right, window, features]).transpose([0, 1, 3, 2, 4, 5]);
    let x = x.reshape([batch, down * right, window * window, features]);
    let y = attention.attend(&x, &x, &x, AttentionOptions::new());
    let y = y.reshape([batch, down, right, window, window, features]).transpose([0, 1, 3, 2, 4, 5]);
    y.reshape([batch, down * window, right * window, features]).get((.., ..rows, ..columns))
}

/// Attends between the features of each group. Their queries and keys have an entry for each patch.
fn between_features(attention: &MultiHeadAttention, x: Array) -> Array {
    let &[batch, rows, columns, features] = x.shape() else { return x };
    let (Some(key), Some(value)) = (&attention.key, &attention.value) else { return x };
    let flat = x.reshape([batch, rows * columns, features]);
    let [query, key, value] = [&attention.query, key, value].map(|layer| layer.forward(&flat));
    let scores = einsum("bngc,bngd->bgcd", &[&query, &key]) * ((rows * columns) as f64).sqrt().recip();
    let y = einsum("bgcd,bngd->bngc", &[&softmax(scores, -1), &value]);
    attention.out.forward(y).reshape([batch, rows, columns, features])
}

/// Returns the names of the arrays, which begin with `prefix`.
pub(crate) fn keys(config: &DaVitConfig, prefix: &str) -> KeyMap {
    config.stages.iter().enumerate().fold(KeyMap::new(), |keys, (index, stage)| {
        let (path, conv) = (format!("stages[{index}]"), format!("{prefix}convs.{index}"));
        let keys = keys
            .conv(&format!("{path}.patches"), &format!("{conv}.conv"))
            .norm(&format!("{path}.norm"), &format!("{conv}.norm"));
        let parts = [("windows", "spatial_block", "window_attn"), ("features", "channel_block", "channel_attn")];
        parts.into_iter().fold(keys, |keys, (part, block, attention)| {
            let path = format!("{path}.blocks[*].{part}");
            let block = format!("{prefix}blocks.{index}.*.{block}");
            let keys = ["query", "key", "value"].iter().enumerate().fold(keys, |keys, (index, layer)| {
                let rows = Layout::nth_rows(index, stage.features, 3);
                keys.weights(&format!("{path}.attention.{layer}"), &format!("{block}.{attention}.qkv"), rows)
            });
            keys.linear(&format!("{path}.attention.out"), &format!("{block}.{attention}.proj"))
                .conv(&format!("{path}.conv"), &format!("{block}.conv1"))
                .norm(&format!("{path}.norm"), &format!("{block}.norm1"))
                .conv(&format!("{path}.mlp_conv"), &format!("{block}.conv2"))
                .norm(&format!("{path}.mlp_norm"), &format!("{block}.norm2"))
                .linear(&format!("{path}.mlp.up"), &format!("{block}.ffn.fc1"))
                .linear(&format!("{path}.mlp.down"), &format!("{block}.ffn.fc2"))
        })
    })
}
