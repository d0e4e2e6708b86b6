//! Swin Transformer, an encoder of images whose attention has windows.

use shardax_nn::prelude::*;

use super::encoder::{scores_of, small_normal};
use super::fields::Fields;
use super::vision::{StagedConfig, check_channels, stage_keys};
use super::{Config, KeyMap, Layout, Pretrained, attention, known_type, remove_input_biases};
use crate::Mlp;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Swin`].
#[derive(Clone, Debug, PartialEq)]
pub struct SwinConfig {
    /// The rows and columns of an image. Only learned positions depend on them.
    pub image_size: usize,
    /// The rows and columns of a patch.
    pub patch_size: usize,
    /// The channels, blocks, activation and classes.
    pub stages: StagedConfig,
    /// The features of a patch in the first stage. Each later stage has twice as many.
    pub embed_dim: usize,
    /// The number of attention heads of each stage.
    pub num_heads: Vec<usize>,
    /// The rows and columns of patches in a window.
    pub window_size: usize,
    /// The features inside an MLP, as a multiple of the features of the stage.
    pub mlp_ratio: f64,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// True if learned positions are added to the patches.
    pub use_absolute_embeddings: bool,
    /// Added to the variance in the norms of blocks and in the last one.
    pub layer_norm_eps: f64,
    /// True if the features of the last stage are normalized.
    pub final_norm: bool,
    /// The version of the blocks.
    pub version: SwinVersion,
}

/// The version of the blocks of a [`Swin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwinVersion {
    /// Blocks normalize their inputs, and a table has the scores of distances.
    First,
    /// Blocks normalize their outputs, the scores are cosines, and an MLP computes the scores of distances.
    Second {
        /// The rows and columns of windows in the training of each stage; 0 if they are the same.
        pretrained_windows: Vec<u64>,
    },
}

/// Swin Transformer ([Liu et al. 2021](https://arxiv.org/abs/2103.14030)), and its second version
/// ([Liu et al. 2022](https://arxiv.org/abs/2111.09883)). The model type is `swin`, `swinv2`, or `donut-swin`, which is `swin` without the
/// last norm.
///
/// Patches attend to the patches of their window. Every second block moves the windows by half of their size.
#[derive(Module, Clone, Debug)]
pub struct Swin {
    patches: Conv,
    patch_norm: LayerNorm,
    /// `[1, patches, features]`
    positions: Option<Array>,
    stages: Vec<Stage>,
    norm: Option<LayerNorm>,
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
    /// True if the norm follows the layer.
    normalizes_output: bool,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    /// `[distances, heads]`: the scores of distances between the patches of a window, in the first version.
    distances: Option<Array>,
    cosines: Option<Cosines>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    #[tree(static)]
    window: usize,
    #[tree(static)]
    shift: usize,
}

/// The scores of the second version: cosines of queries and keys, and an MLP of the distances between patches.
#[derive(Module, Clone, Debug)]
struct Cosines {
    /// `[heads, 1, 1]`: the logarithms of the factors of cosines.
    scale: Array,
    first: Linear,
    last: Linear,
    #[tree(static)]
    pretrained_window: usize,
}

/// The features inside of the MLP of distances.
const DISTANCE_FEATURES: usize = 512;

/// The largest factor of cosines.
const MAX_FACTOR: f64 = 100.0;

/// Added to the variance in the norm of patches and in the norms before stages.
const EPSILON: f64 = 1e-5;

impl Pretrained for Swin {
    type Architecture = SwinConfig;

    fn read(config: &Config) -> Result<(SwinConfig, KeyMap)> {
        let fields = config.fields();
        let read = read_fields(&fields)?;
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &SwinConfig, rngs: &mut Rngs) -> Result<Self> {
        let (first, patch, grid) = (config.embed_dim, [config.patch_size; 2], config.image_size / config.patch_size);
        let last = config.features(config.stages.depths.len() - 1);
        let patches = Conv::builder(config.stages.num_channels, first, patch).strides(patch).padding(Padding::Valid);
        let stages = (0..config.stages.depths.len()).map(|stage| Stage::new(config, stage, rngs)).collect();
        Ok(Swin {
            patches: patches.build(rngs),
            patch_norm: LayerNorm::builder(first).epsilon(EPSILON).build(rngs),
            positions: config
                .use_absolute_embeddings
                .then(|| small_normal(&[1, grid.saturating_mul(grid), first], rngs)),
            stages,
            norm: config.final_norm.then(|| LayerNorm::builder(last).epsilon(config.layer_norm_eps).build(rngs)),
            head: config.stages.head(last, rngs),
            patch_size: config.patch_size,
        })
    }

    fn extents(config: &SwinConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let last = config.features(config.stages.depths.len().saturating_sub(1));
        let grid = if config.use_absolute_embeddings { config.image_size / config.patch_size.max(1) } else { 0 };
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let heads = config.num_heads.iter().copied().max().unwrap_or(0);
        let matrices = vec![
            ("position table", grid.saturating_mul(grid), config.embed_dim),
            match config.version {
                SwinVersion::First => ("table of distances", distance_count(config.window_size), heads),
                SwinVersion::Second { .. } => ("layer of distances", DISTANCE_FEATURES, heads),
            },
            ("query kernel", last, last),
            ("MLP kernel", last, config.hidden(last)),
            ("patch", patch, config.stages.num_channels.saturating_mul(config.embed_dim)),
        ];
        config.stages.extents(last, matrices)
    }
}

/// The supported model types.
pub(super) const KNOWN: [&str; 3] = ["swin", "swinv2", "donut-swin"];

/// The type of the encoder of Donut.
pub(crate) const DONUT: &str = "donut-swin";

/// Reads the fields of a model or of the encoder in another model, without the check of unknown fields.
pub(super) fn read_fields(fields: &Fields) -> Result<SwinConfig> {
    read_fields_of(fields, known_type(fields, &KNOWN)?)
}

/// Reads the fields of a model of this type.
pub(super) fn read_fields_of(fields: &Fields, kind: &str) -> Result<SwinConfig> {
    let (stages, num_heads) = StagedConfig::read(fields, "num_heads")?;
    let read = SwinConfig {
        image_size: if kind == DONUT { donut_size(fields)? } else { fields.size("image_size")? },
        patch_size: fields.size("patch_size")?,
        stages,
        embed_dim: fields.size("embed_dim")?,
        num_heads,
        window_size: fields.size("window_size")?,
        mlp_ratio: fields.number("mlp_ratio")?,
        qkv_bias: fields.flag("qkv_bias")?,
        use_absolute_embeddings: fields.flag("use_absolute_embeddings")?,
        layer_norm_eps: fields.number("layer_norm_eps")?,
        final_norm: kind != DONUT,
        version: match kind {
            "swinv2" => SwinVersion::Second { pretrained_windows: pretrained_windows(fields)? },
            _ => SwinVersion::First,
        },
    };
    check_blocks(fields, "num_heads", &read)?;
    if let SwinVersion::Second { pretrained_windows } = &read.version {
        if read.use_absolute_embeddings {
            let message =
                "field `use_absolute_embeddings` is true, but no `swinv2` of transformers can have learned positions";
            return Err(fields.error(message));
        }
        if pretrained_windows.len() < read.num_heads.len() {
            return Err(fields.error("`pretrained_window_sizes` must have an entry for each stage"));
        }
        let smallest = (read.image_size / read.patch_size) >> (read.num_heads.len() - 1).min(63);
        if smallest == 0 {
            return Err(fields.error("`image_size` is too small for this number of stages"));
        }
    }
    // Numbers that follow from other fields.
    fields.skip(&["hidden_size", "num_layers", "path_norm"]);
    Ok(read)
}

/// Returns an error if the sizes of blocks do not fit each other. `heads_name` is the field of the numbers of heads.
pub(super) fn check_blocks(fields: &Fields, heads_name: &str, config: &SwinConfig) -> Result<()> {
    for (stage, heads) in config.num_heads.iter().enumerate() {
        fields.divides((heads_name, *heads), ("the features of a stage", config.features(stage)))?;
    }
    if !(config.mlp_ratio > 0.0 && config.mlp_ratio < 1e6) {
        return Err(fields.error(format!("field `mlp_ratio` is {}", config.mlp_ratio)));
    }
    Ok(())
}

/// Returns the number of rows of Donut's images, which are no squares. Nothing depends on it without learned positions.
fn donut_size(fields: &Fields) -> Result<usize> {
    if fields.flag("use_absolute_embeddings")? {
        return Err(fields.error("field `use_absolute_embeddings` is true, which is not supported"));
    }
    match fields.value("image_size").is_some_and(|value| value.is_array()) {
        true => Ok(fields.size_list("image_size")?[0]),
        false => fields.size("image_size"),
    }
}

/// Reads the rows and columns of windows in training, which can be zero.
fn pretrained_windows(fields: &Fields) -> Result<Vec<u64>> {
    let list = fields.list_opt("pretrained_window_sizes")?.map_or(&[][..], Vec::as_slice);
    let sizes = list.iter().map(|size| size.as_u64().filter(|size| *size != 1 && *size < 1 << 20));
    let message = "field `pretrained_window_sizes` must be a list of integers, which are 0 or more than 1";
    sizes.collect::<Option<_>>().ok_or_else(|| fields.error(message))
}

impl SwinConfig {
    /// Returns the rows and columns of a window of a stage, and the distance by which every second block moves its windows.
    ///
    /// In the second version they depend on the image size in the configuration, because a window is not larger than the
    /// stage of such an image.
    fn window(&self, stage: usize) -> (usize, usize) {
        let grid = (self.image_size / self.patch_size).checked_shr(stage as u32).unwrap_or(0);
        match self.version {
            SwinVersion::Second { .. } if grid <= self.window_size => (grid, 0),
            _ => (self.window_size, self.window_size / 2),
        }
    }

    /// Returns the features of a stage.
    pub(crate) fn features(&self, stage: usize) -> usize {
        self.embed_dim.saturating_mul(1usize.checked_shl(stage as u32).unwrap_or(usize::MAX))
    }

    /// Returns the features inside of the MLPs of a stage with this number of features.
    fn hidden(&self, features: usize) -> usize {
        (self.mlp_ratio * features as f64) as usize
    }
}

/// Returns the names of the arrays.
pub(super) fn keys(config: &SwinConfig) -> KeyMap {
    let prefix = match (&config.stages.classes, &config.version) {
        (None, _) => "",
        (Some(_), SwinVersion::First) if config.final_norm => "swin.",
        (Some(_), SwinVersion::First) => "donut.",
        (Some(_), SwinVersion::Second { .. }) => "swinv2.",
    };
    let keys = KeyMap::new()
        .conv("patches", &format!("{prefix}embeddings.patch_embeddings.projection"))
        .norm("patch_norm", &format!("{prefix}embeddings.norm"))
        .array("positions", format!("{prefix}embeddings.position_embeddings"), Layout::Same)
        .norm("norm", &format!("{prefix}layernorm"))
        .linear("head", "classifier");
    stage_keys(keys, config.stages.depths.len(), |keys, path, stage| {
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
            .array(format!("{path_of_block}.cosines.scale"), format!("{attention}.logit_scale"), Layout::Same)
            .linear(&format!("{path_of_block}.cosines.first"), &format!("{attention}.continuous_position_bias_mlp.0"))
            .linear(&format!("{path_of_block}.cosines.last"), &format!("{attention}.continuous_position_bias_mlp.2"))
            .norm(&format!("{path_of_block}.norm"), &format!("{block}.layernorm_before"))
            .norm(&format!("{path_of_block}.mlp_norm"), &format!("{block}.layernorm_after"))
            .linear(&format!("{path_of_block}.mlp.up"), &format!("{block}.intermediate.dense"))
            .linear(&format!("{path_of_block}.mlp.down"), &format!("{block}.output.dense"))
            .norm(&format!("{path}.merge.norm"), &format!("{layer}.downsample.norm"))
            .linear(&format!("{path}.merge.reduction"), &format!("{layer}.downsample.reduction"))
            // Rows of the table of distances, and distances, which follow from the size of windows.
            .ignore(&format!("{attention}.relative_coords_table"))
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
fn scores_apart(grid: [usize; 2], window: usize, shift: usize, apart: f32) -> Result<Array> {
    let region = |place: usize, size: usize| usize::from(place >= size - window) + usize::from(place >= size - shift);
    let [rows, columns] = grid.map(|size| size / window);
    let patches = window * window;
    let mut scores = Vec::with_capacity(rows * columns * patches * patches);
    for first in (0..rows).flat_map(|row| (0..columns).map(move |column| [row * window, column * window])) {
        let region_of =
            |patch: usize| [region(first[0] + patch / window, grid[0]), region(first[1] + patch % window, grid[1])];
        let regions: Vec<[usize; 2]> = (0..patches).map(region_of).collect();
        for query in &regions {
            scores.extend(regions.iter().map(|key| if key == query { 0.0 } else { apart }));
        }
    }
    Array::from_vec(scores, &[rows * columns, 1, patches, patches])
}

impl Stage {
    fn new(config: &SwinConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let features = config.features(stage);
        let blocks = (0..config.stages.depths[stage]).map(|index| Block::new(config, stage, index, rngs)).collect();
        let normalizes_output = config.version != SwinVersion::First;
        let merge = (stage + 1 < config.stages.depths.len()).then(|| Merge {
            norm: LayerNorm::builder(features.saturating_mul(if normalizes_output { 2 } else { 4 }))
                .epsilon(EPSILON)
                .build(rngs),
            normalizes_output,
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
        let parts = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(row, column)| x.get(s![.., row..; 2, column..; 2]));
        let x = concatenate(&parts, -1);
        if self.normalizes_output {
            self.norm.forward(self.reduction.forward(x))
        } else {
            self.reduction.forward(self.norm.forward(x))
        }
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
        let [norm, mlp_norm] =
            [(); 2].map(|()| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs));
        let mut attention = attention(heads, features).build(rngs);
        if !config.qkv_bias {
            remove_input_biases(&mut attention);
        }
        let (window, shift) = config.window(stage);
        let cosines = match &config.version {
            SwinVersion::First => None,
            // Keys have no bias in the second version, whatever `qkv_bias` is.
            SwinVersion::Second { pretrained_windows } => {
                attention.key.iter_mut().for_each(|key| key.bias = None);
                Some(Cosines::new(heads, pretrained_windows[stage] as usize, rngs))
            }
        };
        let has_table = cosines.is_none();
        Block {
            norm,
            attention,
            distances: has_table.then(|| small_normal(&[distance_count(config.window_size), heads], rngs)),
            cosines,
            mlp_norm,
            mlp: Mlp::new(features, config.hidden(features), config.stages.hidden_act, false, true, rngs),
            window,
            shift: if index.is_multiple_of(2) { 0 } else { shift },
        }
    }

    /// Applies the block to `[batch, rows, columns, features]`.
    fn forward(&self, x: Array) -> Result<Array> {
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let window = self.window;
        let smallest = rows.min(columns);
        let is_first = self.cosines.is_none();
        if is_first && smallest < window {
            let message = format!(
                "Swin: a stage has {rows} by {columns} patches, which is less than a window of {window} by {window}"
            );
            return Err(value_error(message, "use larger images"));
        }
        // A window that is as large as the image does not move.
        let shift = if is_first && smallest == window { 0 } else { self.shift as i32 };
        let y = padded(if is_first { self.norm.forward(&x) } else { x.clone() }, window);
        let grid = [y.shape()[1], y.shape()[2]];
        let y = if shift > 0 { y.roll([-shift, -shift], [1, 2]) } else { y };
        let [down, right] = grid.map(|size| size / window);
        let windows = y.reshape([batch, down, window, right, window, features]).transpose([0, 1, 3, 2, 4, 5]);
        let windows = windows.reshape([batch, down * right, window * window, features]);
        let table = match (&self.distances, &self.cosines) {
            (Some(table), _) => table.clone(),
            (None, Some(cosines)) => cosines.table(window)?,
            (None, None) => return Ok(x),
        };
        let scores = scores_of(&table, &distance_rows(window)?);
        // The second version adds these scores twice.
        let apart = if is_first { APART } else { 2.0 * APART };
        let scores = match shift {
            0 => scores,
            shift => scores_apart(grid, window, shift as usize, apart)?.astype(scores.dtype()) + scores,
        };
        let options = AttentionOptions::new().bias(scores);
        let y = match &self.cosines {
            Some(cosines) => cosines.attend(&self.attention, &windows, options),
            None => self.attention.attend(&windows, &windows, &windows, options),
        };
        let y = y.reshape([batch, down, right, window, window, features]).transpose([0, 1, 3, 2, 4, 5]);
        let y = y.reshape([batch, grid[0], grid[1], features]);
        let y = if shift > 0 { y.roll([shift, shift], [1, 2]) } else { y };
        let y = y.get((.., ..rows, ..columns));
        if is_first {
            let x = x + y;
            let y = self.mlp.forward(self.mlp_norm.forward(&x));
            return Ok(x + y);
        }
        let x = x + self.norm.forward(y);
        let y = self.mlp_norm.forward(self.mlp.forward(&x));
        Ok(x + y)
    }
}

impl Cosines {
    fn new(heads: usize, pretrained_window: usize, rngs: &mut Rngs) -> Cosines {
        Cosines {
            scale: full_dtype([heads, 1, 1], 10f64.ln(), rngs.policy().param_dtype),
            first: Linear::new(2, DISTANCE_FEATURES, rngs),
            last: Linear::builder(DISTANCE_FEATURES, heads).use_bias(false).build(rngs),
            pretrained_window,
        }
    }

    /// Computes the scores of all distances between the patches of a window, `[distances, heads]`.
    ///
    /// The MLP reads logarithms of distances, relative to the largest distance in training.
    fn table(&self, window: usize) -> Result<Array> {
        let largest = match self.pretrained_window {
            0 => window,
            pretrained => pretrained,
        };
        let largest = largest.saturating_sub(1).max(1) as f32;
        let span = 2 * window - 1;
        let distances = (0..span * span).flat_map(|place| [place / span, place % span]).map(|place| {
            let distance = (place as f32 - (window - 1) as f32) / largest * 8.0;
            distance.signum() * (distance.abs() + 1.0).log2() / 8f32.log2()
        });
        let distances = Array::from_vec(distances.collect::<Vec<f32>>(), &[span * span, 2])?;
        let distances = distances.astype(self.first.kernel.dtype());
        Ok(sigmoid(self.last.forward(relu(self.first.forward(distances)))) * 16.0)
    }

    /// Attention whose scores are cosines, each with the factor of its head.
    fn attend(&self, attention: &MultiHeadAttention, x: &Array, options: AttentionOptions) -> Array {
        let (Some(key), Some(value)) = (&attention.key, &attention.value) else { return x.clone() };
        let [query, key] = [&attention.query, key].map(|layer| with_unit_length(layer.forward(x)));
        let factors = self.scale.minimum(MAX_FACTOR.ln()).exp().reshape([-1, 1]);
        let query = &query * factors.astype(query.dtype());
        attention.out.forward(options.scale(1.0).dot_product_attention(query, key, value.forward(x)))
    }
}

/// Divides vectors by their lengths, except for lengths near zero.
fn with_unit_length(x: Array) -> Array {
    &x / x.square().sum_keepdims(-1).sqrt().maximum(1e-12)
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
        self.encode_patches(self.projected(images))
    }

    /// Computes the patches of images, `[batch, rows, columns, features]`, before their norm.
    pub(super) fn projected(&self, images: &Array) -> Array {
        self.patches.forward(padded(images.clone(), self.patch_size))
    }

    /// Computes features from the results of [`projected`](Self::projected).
    #[track_caller]
    pub(super) fn encode_patches(&self, x: Array) -> Result<Array> {
        let mut outputs = self.outputs_of_patches(x)?;
        let x =
            outputs.pop().ok_or_else(|| value_error("Swin: the model has no stages", "create it by `Swin::make`"))?;
        Ok(self.norm.iter().fold(x, |x, norm| norm.forward(x)))
    }

    /// Computes the features of patches and of all stages, which are not normalized, before patches are joined for the next stage.
    pub(super) fn outputs(&self, images: &Array) -> Result<Vec<Array>> {
        check_channels("Swin", images, &self.patches)?;
        self.outputs_of_patches(self.projected(images))
    }

    fn outputs_of_patches(&self, x: Array) -> Result<Vec<Array>> {
        x.check()?;
        let x = self.patch_norm.forward(x);
        let mut x = match &self.positions {
            Some(table) => self.add_positions(x, table)?,
            None => x,
        };
        let mut outputs = vec![x.clone()];
        for stage in &self.stages {
            for block in &stage.blocks {
                x = block.forward(x)?;
            }
            outputs.push(x.clone());
            x = stage.merge.iter().fold(x, |x, merge| merge.forward(x));
        }
        Ok(outputs)
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
