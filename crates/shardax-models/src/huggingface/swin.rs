//! Swin Transformer, an encoder of images whose attention has windows.

use shardax_nn::prelude::*;

use super::encoder::{scores_of, small_normal};
use super::vision::{check_channels, classes, skip_features_of_stages, stage_keys, stages};
use super::{Config, KeyMap, Layout, Pretrained, attention, check_type, remove_input_biases};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::{Activation, Mlp};

/// The architecture of a [`Swin`].
#[derive(Clone, Debug, PartialEq)]
pub struct SwinConfig {
    /// The rows and columns of an image. Only learned positions depend on them.
    pub image_size: usize,
    /// The rows and columns of a patch.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The features of a patch in the first stage. Each later stage has twice as many.
    pub embed_dim: usize,
    /// The number of blocks of each stage.
    pub depths: Vec<usize>,
    /// The number of attention heads of each stage.
    pub num_heads: Vec<usize>,
    /// The rows and columns of patches in a window.
    pub window_size: usize,
    /// The features inside an MLP, as a multiple of the features of the stage.
    pub mlp_ratio: f64,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// True if learned positions are added to the patches.
    pub use_absolute_embeddings: bool,
    /// Added to the variance in the norms of blocks and in the last one.
    pub layer_norm_eps: f64,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

/// Swin Transformer ([Liu et al. 2021](https://arxiv.org/abs/2103.14030)).
///
/// Patches attend to the patches of their window. Every second block moves the windows by half of their size.
#[derive(Module, Clone, Debug)]
pub struct Swin {
    patches: Conv,
    patch_norm: LayerNorm,
    /// `[1, patches, features]`
    positions: Option<Array>,
    stages: Vec<Stage>,
    norm: LayerNorm,
    head: Option<Linear>,
    patch_size: usize,
}

#[derive(Module, Clone, Debug)]
struct Stage {
    blocks: Vec<Block>,
    /// The norm and the layer that join squares of four patches, except in the last stage.
    merge: Option<Merge>,
}

#[derive(Module, Clone, Debug)]
struct Merge {
    norm: LayerNorm,
    reduction: Linear,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    /// `[distances, heads]`: the scores of distances between the patches of a window.
    distances: Array,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    #[tree(static)]
    window: usize,
    #[tree(static)]
    shift: usize,
}

/// Added to the variance in the norm of patches and in the norms before stages.
const EPSILON: f64 = 1e-5;

impl Pretrained for Swin {
    type Architecture = SwinConfig;

    fn read(config: &Config) -> Result<(SwinConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "swin")?;
        let (num_heads, depths) = stages(&fields, "num_heads")?;
        let read = SwinConfig {
            image_size: fields.size("image_size")?,
            patch_size: fields.size("patch_size")?,
            num_channels: fields.size("num_channels")?,
            embed_dim: fields.size("embed_dim")?,
            depths,
            num_heads,
            window_size: fields.size("window_size")?,
            mlp_ratio: fields.number("mlp_ratio")?,
            qkv_bias: fields.flag("qkv_bias")?,
            hidden_act: fields.activation("hidden_act")?,
            use_absolute_embeddings: fields.flag("use_absolute_embeddings")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            classes: classes(&fields)?,
        };
        for (stage, heads) in read.num_heads.iter().enumerate() {
            fields.divides(("num_heads", *heads), ("the features of a stage", read.features(stage)))?;
        }
        if !(read.mlp_ratio > 0.0 && read.mlp_ratio < 1e6) {
            return Err(fields.error(format!("field `mlp_ratio` is {}", read.mlp_ratio)));
        }
        skip_features_of_stages(&fields);
        // Numbers that follow from other fields.
        fields.skip(&["hidden_size", "num_layers", "path_norm"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &SwinConfig, rngs: &mut Rngs) -> Result<Self> {
        let (first, patch, grid) = (config.embed_dim, [config.patch_size; 2], config.image_size / config.patch_size);
        let last = config.features(config.depths.len() - 1);
        let patches = Conv::builder(config.num_channels, first, patch).strides(patch).padding(Padding::Valid);
        let stages = (0..config.depths.len()).map(|stage| Stage::new(config, stage, rngs)).collect();
        Ok(Swin {
            patches: patches.build(rngs),
            patch_norm: LayerNorm::builder(first).epsilon(EPSILON).build(rngs),
            positions: config
                .use_absolute_embeddings
                .then(|| small_normal(&[1, grid.saturating_mul(grid), first], rngs)),
            stages,
            norm: LayerNorm::builder(last).epsilon(config.layer_norm_eps).build(rngs),
            head: config.classes.map(|classes| Linear::new(last, classes, rngs)),
            patch_size: config.patch_size,
        })
    }

    fn extents(config: &SwinConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let last = config.features(config.depths.len().saturating_sub(1));
        let grid = if config.use_absolute_embeddings { config.image_size / config.patch_size.max(1) } else { 0 };
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let heads = config.num_heads.iter().copied().max().unwrap_or(0);
        let matrices = vec![
            ("position table", grid.saturating_mul(grid), config.embed_dim),
            ("table of distances", distance_count(config.window_size), heads),
            ("query kernel", last, last),
            ("MLP kernel", last, config.hidden(last)),
            ("patch", patch, config.num_channels.saturating_mul(config.embed_dim)),
            ("table of classes", config.classes.unwrap_or(0), last),
        ];
        (config.depths.iter().fold(0, |sum, depth| depth.saturating_add(sum)), matrices)
    }
}

impl SwinConfig {
    /// Returns the features of a stage.
    fn features(&self, stage: usize) -> usize {
        self.embed_dim.saturating_mul(1usize.checked_shl(stage as u32).unwrap_or(usize::MAX))
    }

    /// Returns the features inside of the MLPs of a stage with this number of features.
    fn hidden(&self, features: usize) -> usize {
        (self.mlp_ratio * features as f64) as usize
    }
}

/// Returns the names of the arrays.
fn keys(config: &SwinConfig) -> KeyMap {
    let prefix = if config.classes.is_some() { "swin." } else { "" };
    let keys = KeyMap::new()
        .conv("patches", &format!("{prefix}embeddings.patch_embeddings.projection"))
        .norm("patch_norm", &format!("{prefix}embeddings.norm"))
        .array("positions", format!("{prefix}embeddings.position_embeddings"), Layout::Same)
        .norm("norm", &format!("{prefix}layernorm"))
        .linear("head", "classifier");
    stage_keys(keys, config.depths.len(), |keys, path, stage| {
        let layer = format!("{prefix}encoder.layers.{stage}");
        let (path_of_block, block) = (format!("{path}.blocks[*]"), format!("{layer}.blocks.*"));
        let attention = format!("{block}.attention.self");
        let keys = ["query", "key", "value"].iter().fold(keys, |keys, part| {
            keys.linear(&format!("{path_of_block}.attention.{part}"), &format!("{attention}.{part}"))
        });
        keys.linear(&format!("{path_of_block}.attention.out"), &format!("{block}.attention.output.dense"))
            .array(
                format!("{path_of_block}.distances"),
                format!("{attention}.relative_position_bias_table"),
                Layout::Same,
            )
            .norm(&format!("{path_of_block}.norm"), &format!("{block}.layernorm_before"))
            .norm(&format!("{path_of_block}.mlp_norm"), &format!("{block}.layernorm_after"))
            .linear(&format!("{path_of_block}.mlp.up"), &format!("{block}.intermediate.dense"))
            .linear(&format!("{path_of_block}.mlp.down"), &format!("{block}.output.dense"))
            .norm(&format!("{path}.merge.norm"), &format!("{layer}.downsample.norm"))
            .linear(&format!("{path}.merge.reduction"), &format!("{layer}.downsample.reduction"))
            // Rows of the table of distances, which follow from the size of windows.
            .ignore(&format!("{attention}.relative_position_index"))
    })
}

/// Returns the number of distances of patches in a window.
fn distance_count(window: usize) -> usize {
    let span = window.saturating_mul(2).saturating_sub(1);
    span.saturating_mul(span)
}

/// Returns the rows of the table of distances for the patches of a window, `[patches, patches]`.
fn distance_rows(window: usize) -> Result<Array> {
    let (patches, span) = (window * window, 2 * window - 1);
    let row_of = |query: usize, key: usize| {
        let down = query / window + window - 1 - key / window;
        let right = query % window + window - 1 - key % window;
        (down * span + right) as i32
    };
    let rows = (0..patches).flat_map(|query| (0..patches).map(move |key| row_of(query, key)));
    Array::from_vec(rows.collect::<Vec<i32>>(), &[patches, patches])
}

/// The score that is added for patches which are neighbors only because windows are moved around the edges of the image.
const APART: f32 = -100.0;

/// Returns the scores of moved windows, `[windows, 1, patches, patches]`, for a grid of patches. Windows at the end of a dimension
/// contain patches from both ends, which do not attend to each other.
fn scores_apart(grid: [usize; 2], window: usize, shift: usize) -> Result<Array> {
    let region = |place: usize, size: usize| usize::from(place >= size - window) + usize::from(place >= size - shift);
    let [rows, columns] = grid.map(|size| size / window);
    let patches = window * window;
    let mut scores = Vec::with_capacity(rows * columns * patches * patches);
    for first in (0..rows).flat_map(|row| (0..columns).map(move |column| [row * window, column * window])) {
        let region_of =
            |patch: usize| [region(first[0] + patch / window, grid[0]), region(first[1] + patch % window, grid[1])];
        let regions: Vec<[usize; 2]> = (0..patches).map(region_of).collect();
        for query in &regions {
            scores.extend(regions.iter().map(|key| if key == query { 0.0 } else { APART }));
        }
    }
    Array::from_vec(scores, &[rows * columns, 1, patches, patches])
}

impl Stage {
    fn new(config: &SwinConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let features = config.features(stage);
        let blocks = (0..config.depths[stage]).map(|index| Block::new(config, stage, index, rngs)).collect();
        let merge = (stage + 1 < config.depths.len()).then(|| Merge {
            norm: LayerNorm::builder(features.saturating_mul(4)).epsilon(EPSILON).build(rngs),
            reduction: Linear::builder(features.saturating_mul(4), features.saturating_mul(2))
                .use_bias(false)
                .build(rngs),
        });
        Stage { blocks, merge }
    }
}

impl Merge {
    /// Joins squares of four patches of `[batch, rows, columns, features]`. Rows and columns of odd numbers get zeros at the end.
    fn forward(&self, x: Array) -> Array {
        let x = padded(x, 2);
        let quarter = |row: usize, column: usize| x.get(s![.., row..; 2, column..; 2]);
        let parts = [quarter(0, 0), quarter(1, 0), quarter(0, 1), quarter(1, 1)];
        self.reduction.forward(self.norm.forward(concatenate(&parts, -1)))
    }
}

/// Adds zeros after the rows and columns of `[batch, rows, columns, features]`, so that `size` divides them.
fn padded(x: Array, size: usize) -> Array {
    let [rows, columns] = [1, 2].map(|axis| x.shape()[axis].next_multiple_of(size) - x.shape()[axis]);
    if [rows, columns] == [0, 0] {
        return x;
    }
    pad(x, vec![(0, 0), (0, rows), (0, columns), (0, 0)], PadMode::Constant(0.0))
}

impl Block {
    fn new(config: &SwinConfig, stage: usize, index: usize, rngs: &mut Rngs) -> Block {
        let (features, heads) = (config.features(stage), config.num_heads[stage]);
        let mut norm = || LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let (norm, mlp_norm) = (norm(), norm());
        let mut attention = attention(heads, features).build(rngs);
        if !config.qkv_bias {
            remove_input_biases(&mut attention);
        }
        Block {
            norm,
            attention,
            distances: small_normal(&[distance_count(config.window_size), heads], rngs),
            mlp_norm,
            mlp: Mlp::new(features, config.hidden(features), config.hidden_act, false, true, rngs),
            window: config.window_size,
            shift: if index.is_multiple_of(2) { 0 } else { config.window_size / 2 },
        }
    }

    /// Applies the block to `[batch, rows, columns, features]`.
    fn forward(&self, x: Array) -> Result<Array> {
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let window = self.window;
        let smallest = rows.min(columns);
        if smallest < window {
            let message = format!(
                "Swin: a stage has {rows} by {columns} patches, which is less than a window of {window} by {window}"
            );
            return Err(value_error(message, "use larger images"));
        }
        // A window that is as large as the image does not move.
        let shift = if smallest == window { 0 } else { self.shift as i32 };
        let y = padded(self.norm.forward(&x), window);
        let grid = [y.shape()[1], y.shape()[2]];
        let y = if shift > 0 { y.roll([-shift, -shift], [1, 2]) } else { y };
        let [down, right] = grid.map(|size| size / window);
        let windows = y.reshape([batch, down, window, right, window, features]).transpose([0, 1, 3, 2, 4, 5]);
        let windows = windows.reshape([batch, down * right, window * window, features]);
        let scores = scores_of(&self.distances, &distance_rows(window)?);
        let scores = match shift {
            0 => scores,
            shift => scores_apart(grid, window, shift as usize)?.astype(scores.dtype()) + scores,
        };
        let y = self.attention.attend(&windows, &windows, &windows, AttentionOptions::new().bias(scores));
        let y = y.reshape([batch, down, right, window, window, features]).transpose([0, 1, 3, 2, 4, 5]);
        let y = y.reshape([batch, grid[0], grid[1], features]);
        let y = if shift > 0 { y.roll([shift, shift], [1, 2]) } else { y };
        let x = x + y.get((.., ..rows, ..columns));
        let y = self.mlp.forward(self.mlp_norm.forward(&x));
        Ok(x + y)
    }
}

impl Swin {
    /// Computes features, `[batch, rows, columns, features]`, from images `[batch, rows, columns, channels]`. `transformers`
    /// expects the channels first instead, and joins the rows and columns of features.
    ///
    /// Only models without learned positions accept images of another size than in the configuration.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_encode(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    #[track_caller]
    fn try_encode(&self, images: &Array) -> Result<Array> {
        check_channels("Swin", images, &self.patches)?;
        let x = self.patch_norm.forward(self.patches.forward(padded(images.clone(), self.patch_size)));
        x.check()?;
        let mut x = match &self.positions {
            Some(table) => self.add_positions(x, table)?,
            None => x,
        };
        for stage in &self.stages {
            for block in &stage.blocks {
                x = block.forward(x)?;
            }
            x = stage.merge.iter().fold(x, |x, merge| merge.forward(x));
        }
        Ok(self.norm.forward(x))
    }

    fn add_positions(&self, x: Array, table: &Array) -> Result<Array> {
        let (shape, learned) = (x.shape().to_vec(), table.shape()[1].isqrt());
        if shape[1..3] != [learned; 2] {
            let grid = &shape[1..3];
            let message = format!(
                "Swin: images of {grid:?} patches do not fit the model, which has {learned} by {learned} patches"
            );
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        }
        Ok(&x + table.reshape([1, learned, learned, shape[3]]).astype(x.dtype()))
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results are
    /// features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        match &self.head {
            Some(head) if x.check().is_ok() => head.forward(x.mean([1, 2])),
            _ => x,
        }
    }
}
