//! LeViT, an encoder of images whose attention halves the rows and columns of patches.

use shardax_nn::prelude::*;

use super::encoder::{scores_of, small_normal};
use super::fields::Fields;
use super::vision::{ConvNorm, ConvShape, FrozenNorm, check_channels, classes_of, conv_norm_keys, frozen_norm_keys};
use super::{Config, KeyMap, Layout, Pretrained, check_type};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::{gather_last, parts_of_last};

/// The architecture of a [`Levit`].
#[derive(Clone, Debug, PartialEq)]
pub struct LevitConfig {
    /// The rows and columns of patches in the first stage.
    pub grid: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The rows and columns of the kernels of the four convolutions at the start, their strides and their padding.
    pub conv: [usize; 3],
    /// The features of a patch in each stage.
    pub hidden_sizes: [usize; STAGES],
    /// The attention of each stage.
    pub attention: [LevitAttentionConfig; STAGES],
    /// The number of blocks of each stage.
    pub depths: [usize; STAGES],
    /// The features inside an MLP, as a multiple of the features of the stage.
    pub mlp_ratio: [usize; STAGES],
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
    /// True if the logits are the mean of two heads, of which one was trained by distillation.
    pub has_distillation: bool,
}

/// The sizes of attention in a [`Levit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevitAttentionConfig {
    /// The number of heads.
    pub heads: usize,
    /// The features of a query and of a key.
    pub key_dim: usize,
    /// The features of a value, as a multiple of `key_dim`.
    pub ratio: usize,
}

/// The number of stages of a [`Levit`].
const STAGES: usize = 3;

/// LeViT ([Graham et al. 2021](https://arxiv.org/abs/2104.01136)). The model type is `levit`, with the head for classes, with two heads
/// (`LevitForImageClassificationWithTeacher`), or without a head.
///
/// Images have the size of the configuration, `[batch, rows, columns, channels]`.
#[derive(Module, Clone, Debug)]
pub struct Levit {
    patches: Vec<ConvNorm>,
    stages: Vec<Stage>,
    head: Option<Head>,
    distilled_head: Option<Head>,
    #[tree(static)]
    grid: usize,
}

/// The layers of a stage. The last one but one halves the rows and columns, except in the last stage.
#[derive(Module, Clone, Debug)]
struct Stage {
    layers: Vec<Layer>,
}

/// Attention or an MLP.
#[derive(Module, Clone, Debug)]
struct Layer {
    attention: Option<Attention>,
    mlp: Option<LevitMlp>,
}

#[derive(Module, Clone, Debug)]
struct Attention {
    /// Computes queries, keys and values, or keys and values of attention that halves rows and columns.
    joined: LinearNorm,
    /// Computes queries of every second row and column.
    query: Option<LinearNorm>,
    out: LinearNorm,
    /// `[distances, heads]`: the scores of distances between patches.
    distances: Array,
    #[tree(static)]
    heads: usize,
    #[tree(static)]
    depth: usize,
    /// The rows and columns of patches.
    #[tree(static)]
    grid: usize,
}

#[derive(Module, Clone, Debug)]
struct LevitMlp {
    up: LinearNorm,
    down: LinearNorm,
}

/// A linear layer without a bias, and a norm.
#[derive(Module, Clone, Debug)]
struct LinearNorm {
    linear: Linear,
    norm: FrozenNorm,
}

#[derive(Module, Clone, Debug)]
struct Head {
    norm: FrozenNorm,
    linear: Linear,
}

/// Added to the variance in norms.
const NORM_EPSILON: f64 = 1e-5;

/// The rows and columns from one query to the next one, the multiple of `key_dim` in values, and the multiple of features inside the MLP
/// after attention that halves rows and columns.
const STRIDE: usize = 2;
const SUBSAMPLE_RATIO: usize = 4;
const SUBSAMPLE_MLP_RATIO: usize = 2;

/// The factors by which the features of the four convolutions at the start are less than the features of the first stage.
const SHARES: [usize; 4] = [8, 4, 2, 1];

impl Pretrained for Levit {
    type Architecture = LevitConfig;

    fn read(config: &Config) -> Result<(LevitConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "levit")?;
        let (classes, has_distillation) = match fields.class()?.unwrap_or("LevitForImageClassification") {
            "LevitForImageClassification" => (Some(classes_of(&fields)?), false),
            "LevitForImageClassificationWithTeacher" => (Some(classes_of(&fields)?), true),
            "LevitModel" => (None, false),
            other => return Err(fields.error(format!("the class {other:?} of `architectures` is not supported"))),
        };
        let (image, patch) = (fields.size("image_size")?, fields.size("patch_size")?);
        let [heads, key_dims, ratios] =
            [stages(&fields, "num_attention_heads")?, stages(&fields, "key_dim")?, stages(&fields, "attention_ratio")?];
        let read = LevitConfig {
            grid: image / patch,
            num_channels: fields.size("num_channels")?,
            conv: [fields.size("kernel_size")?, fields.size("stride")?, fields.natural("padding")?],
            hidden_sizes: stages(&fields, "hidden_sizes")?,
            attention: [0, 1, 2].map(|stage| LevitAttentionConfig {
                heads: heads[stage],
                key_dim: key_dims[stage],
                ratio: ratios[stage],
            }),
            depths: stages(&fields, "depths")?,
            mlp_ratio: stages(&fields, "mlp_ratio")?,
            classes,
            has_distillation,
        };
        if read.grid == 0 || read.grid > MAX_GRID {
            let message = format!("`image_size` is {image} and `patch_size` {patch}, which give {} patches", read.grid);
            return Err(fields.error(message));
        }
        if read.conv[2] > image {
            return Err(fields.error(format!("field `padding` is {}, which is more than an image", read.conv[2])));
        }
        fields.divides(("the features of convolutions", SHARES[0]), ("hidden_sizes", read.hidden_sizes[0]))?;
        if read.hidden_sizes[..STAGES - 1].iter().any(|features| features / key_dims[0] == 0) {
            return Err(fields.error("`key_dim` has a number that is more than the features of a stage"));
        }
        // A list that follows from the other fields, and a number for training.
        fields.skip(&["down_ops", "drop_path_rate"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &LevitConfig, rngs: &mut Rngs) -> Result<Self> {
        let [size, stride, padding] = config.conv;
        let around = Padding::Explicit(vec![(padding as i64, padding as i64); 2]);
        let shape = ConvShape { size, stride, padding: around, ..ConvShape::new(size, stride) };
        let mut before = config.num_channels;
        let patches = SHARES.map(|share| {
            let features = config.hidden_sizes[0] / share;
            ConvNorm::new([std::mem::replace(&mut before, features), features], shape.clone(), rngs)
        });
        let last = config.hidden_sizes[STAGES - 1];
        let stages = (0..STAGES).map(|stage| Stage::new(config, stage, rngs)).collect();
        Ok(Levit {
            patches: patches.into(),
            stages,
            head: config.classes.map(|classes| Head::new(last, classes, rngs)),
            distilled_head: config.classes.filter(|_| config.has_distillation).map(|n| Head::new(last, n, rngs)),
            grid: config.grid,
        })
    }

    fn extents(config: &LevitConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let [size, ..] = config.conv;
        let mut matrices = vec![
            ("convolution", size.saturating_mul(size), config.num_channels.saturating_mul(config.hidden_sizes[0] / 8)),
            ("table of classes", config.classes.unwrap_or(0), config.hidden_sizes[STAGES - 1]),
        ];
        for (stage, features) in config.hidden_sizes.into_iter().enumerate() {
            let attention = config.attention[stage];
            let grid = config.grid_of(stage);
            matrices.extend([
                ("kernel of attention", features, attention.joined(3)),
                ("MLP kernel", features, features.saturating_mul(config.mlp_ratio[stage])),
                ("table of distances", grid.saturating_mul(grid), attention.heads),
            ]);
        }
        (config.depths.iter().fold(0, |sum, depth| depth.saturating_add(sum)), matrices)
    }
}

/// The largest number of rows of patches. The scores of all pairs of patches are computed.
const MAX_GRID: usize = 256;

/// Reads a list with an entry for each stage.
fn stages<'a>(fields: &Fields<'a>, name: &'a str) -> Result<[usize; STAGES]> {
    let list = fields.size_list(name)?;
    let count = list.len();
    list.try_into().map_err(|_| fields.error(format!("`{name}` has {count} entries, but must have {STAGES}")))
}

impl LevitConfig {
    /// Returns the rows and columns of patches in a stage.
    fn grid_of(&self, stage: usize) -> usize {
        (0..stage).fold(self.grid, |grid, _| grid.div_ceil(STRIDE))
    }

    /// Returns the attention after a stage, which halves rows and columns.
    fn subsample(&self, stage: usize) -> LevitAttentionConfig {
        let key_dim = self.attention[0].key_dim;
        LevitAttentionConfig { heads: self.hidden_sizes[stage] / key_dim, key_dim, ratio: SUBSAMPLE_RATIO }
    }
}

impl LevitAttentionConfig {
    /// Returns the features of all values.
    fn values(&self) -> usize {
        self.heads.saturating_mul(self.key_dim).saturating_mul(self.ratio)
    }

    /// Returns the features of keys and values, and of queries if `parts` is 3.
    fn joined(&self, parts: usize) -> usize {
        self.heads.saturating_mul(self.key_dim).saturating_mul(parts - 1).saturating_add(self.values())
    }
}

/// Returns the names of the arrays.
fn keys(config: &LevitConfig) -> KeyMap {
    let prefix = if config.classes.is_some() { "levit." } else { "" };
    let linear_norm = |keys: KeyMap, path: &str, name: &str| {
        let keys = keys.linear(&format!("{path}.linear"), &format!("{name}.linear"));
        frozen_norm_keys(keys, &format!("{path}.norm"), &format!("{name}.batch_norm"))
    };
    let mut keys = (0..SHARES.len()).fold(KeyMap::new(), |keys, index| {
        let name = format!("{prefix}patch_embeddings.embedding_layer_{}", index + 1);
        conv_norm_keys(keys, &format!("patches[{index}]"), &name, ["convolution", "batch_norm"])
    });
    for (path, name) in [("head", "classifier"), ("distilled_head", "classifier_distill")] {
        keys = frozen_norm_keys(keys, &format!("{path}.norm"), &format!("{name}.batch_norm"))
            .linear(&format!("{path}.linear"), &format!("{name}.linear"));
    }
    for stage in 0..STAGES {
        // The layer that halves rows and columns is not added to its input, and its name has no `module`.
        let subsample = config.depths[stage].saturating_mul(2);
        let (path, name) = (format!("stages[{stage}].layers"), format!("{prefix}encoder.stages.{stage}.layers"));
        let layers = [(format!("[{subsample}]"), format!(".{subsample}")), ("[*]".to_owned(), ".*.module".to_owned())];
        for (index, number) in layers {
            let (attention, name) = (format!("{path}{index}.attention"), format!("{name}{number}"));
            let joined = if number.ends_with("module") { "queries_keys_values" } else { "keys_values" };
            keys = linear_norm(keys, &format!("{attention}.joined"), &format!("{name}.{joined}"));
            keys = linear_norm(keys, &format!("{attention}.query"), &format!("{name}.queries"));
            keys = linear_norm(keys, &format!("{attention}.out"), &format!("{name}.projection")).array(
                format!("{attention}.distances"),
                format!("{name}.attention_biases"),
                Layout::Transposed,
            );
            let mlp = format!("{path}{index}.mlp");
            keys = linear_norm(keys, &format!("{mlp}.up"), &format!("{name}.linear_up"));
            keys = linear_norm(keys, &format!("{mlp}.down"), &format!("{name}.linear_down"));
        }
    }
    // Indices that follow from the sizes, in files of early versions.
    if prefix.is_empty() {
        keys.prefix_alias("", "levit.").ignore("classifier.**").ignore("classifier_distill.**")
    } else {
        keys
    }
}

impl Stage {
    fn new(config: &LevitConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let (features, grid) = (config.hidden_sizes[stage], config.grid_of(stage));
        let hidden = features.saturating_mul(config.mlp_ratio[stage]);
        let mut layers = Vec::new();
        for _ in 0..config.depths[stage] {
            layers.push(Layer::attention(Attention::new([features; 2], config.attention[stage], grid, false, rngs)));
            layers.push(Layer::mlp(features, hidden, rngs));
        }
        if let Some(next) = config.hidden_sizes.get(stage + 1) {
            let attention = Attention::new([features, *next], config.subsample(stage), grid, true, rngs);
            layers.push(Layer::attention(attention));
            layers.push(Layer::mlp(*next, next.saturating_mul(SUBSAMPLE_MLP_RATIO), rngs));
        }
        Stage { layers }
    }
}

impl Layer {
    fn attention(attention: Attention) -> Layer {
        Layer { attention: Some(attention), mlp: None }
    }

    fn mlp(features: usize, hidden: usize, rngs: &mut Rngs) -> Layer {
        let mlp = LevitMlp {
            up: LinearNorm::new([features, hidden], ["embed", "mlp"], rngs),
            down: LinearNorm::new([hidden, features], ["mlp", "embed"], rngs),
        };
        Layer { attention: None, mlp: Some(mlp) }
    }

    /// Applies the layer to `[batch, patches, features]`, and adds its input unless rows and columns are halved.
    fn forward(&self, x: Array) -> Result<Array> {
        match (&self.attention, &self.mlp) {
            (Some(attention), _) => {
                let y = attention.forward(&x)?;
                Ok(if attention.query.is_some() { y } else { x + y })
            }
            (None, Some(mlp)) => Ok(&x + mlp.down.forward(hard_swish(mlp.up.forward(x.clone())))),
            (None, None) => Ok(x),
        }
    }
}

/// `x * relu6(x + 3) / 6`
fn hard_swish(x: Array) -> Array {
    &x * relu6(&x + 3.0) / 6.0
}

impl LinearNorm {
    fn new([inputs, outputs]: [usize; 2], axes: [&'static str; 2], rngs: &mut Rngs) -> LinearNorm {
        LinearNorm {
            linear: Linear::builder(inputs, outputs).use_bias(false).kernel_axes(axes).build(rngs),
            norm: FrozenNorm::new(outputs, NORM_EPSILON, rngs),
        }
    }

    fn forward(&self, x: Array) -> Array {
        self.norm.forward(self.linear.forward(x))
    }
}

impl Attention {
    fn new(
        [inputs, outputs]: [usize; 2],
        config: LevitAttentionConfig,
        grid: usize,
        halves: bool,
        rngs: &mut Rngs,
    ) -> Attention {
        let LevitAttentionConfig { heads, key_dim, .. } = config;
        let joined = config.joined(if halves { 2 } else { 3 });
        Attention {
            joined: LinearNorm::new([inputs, joined], ["embed", "heads"], rngs),
            query: halves.then(|| LinearNorm::new([inputs, heads.saturating_mul(key_dim)], ["embed", "heads"], rngs)),
            out: LinearNorm::new([config.values(), outputs], ["heads", "embed"], rngs),
            distances: small_normal(&[grid.saturating_mul(grid), heads], rngs),
            heads,
            depth: key_dim,
            grid,
        }
    }

    /// Computes the attention of `x`, `[batch, patches, features]`.
    fn forward(&self, x: &Array) -> Result<Array> {
        let &[batch, _, features] = x.shape() else { return Ok(x.clone()) };
        let (grid, heads, depth) = (self.grid, self.heads, self.depth);
        let joined = by_heads(self.joined.forward(x.clone()), heads);
        let (query, keys, stride) = match &self.query {
            Some(layer) => {
                let chosen = x.reshape([batch, grid, grid, features]).get(s![.., ..; 2, ..; 2]);
                let query = layer.forward(chosen.reshape([batch as i32, -1, features as i32]));
                (by_heads(query, heads), joined, STRIDE)
            }
            None => (joined.get((Ellipsis, ..depth)), joined.get((Ellipsis, depth..)), 1),
        };
        let (key, value) = (keys.get((Ellipsis, ..depth)), keys.get((Ellipsis, depth..)));
        let scores = scores_of(&self.distances, &distance_rows(grid, stride)?);
        let heads = AttentionOptions::new().bias(scores).dot_product_attention(query, key, value);
        let shape = [batch as i32, heads.shape()[1] as i32, -1];
        Ok(self.out.forward(hard_swish(heads.reshape(shape))))
    }
}

/// Divides features, `[batch, patches, features]`, into heads, `[batch, patches, heads, features of a head]`.
fn by_heads(x: Array, heads: usize) -> Array {
    let &[batch, patches, features] = x.shape() else { return x };
    // Devices cannot share a head, so features are gathered if the devices do not divide the heads.
    let x = if heads.is_multiple_of(parts_of_last(&x)) { x } else { gather_last(x) };
    x.reshape([batch, patches, heads, features / heads])
}

/// Returns the rows of the table of distances, `[queries, patches]`. Queries have every `stride`-th row and column of the grid.
fn distance_rows(grid: usize, stride: usize) -> Result<Array> {
    let queries = grid.div_ceil(stride);
    let row_of = |query: usize, key: usize| {
        let down = (query / queries * stride).abs_diff(key / grid);
        let right = (query % queries * stride).abs_diff(key % grid);
        (down * grid + right) as i32
    };
    let rows = (0..queries * queries).flat_map(|query| (0..grid * grid).map(move |key| row_of(query, key)));
    Array::from_vec(rows.collect::<Vec<i32>>(), &[queries * queries, grid * grid])
}

impl Head {
    fn new(features: usize, classes: usize, rngs: &mut Rngs) -> Head {
        Head { norm: FrozenNorm::new(features, NORM_EPSILON, rngs), linear: Linear::new(features, classes, rngs) }
    }

    fn forward(&self, x: Array) -> Array {
        self.linear.forward(self.norm.forward(x))
    }
}

impl Levit {
    /// Computes features, `[batch, patches, features]`, from images `[batch, rows, columns, channels]`.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_encode(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn try_encode(&self, images: &Array) -> Result<Array> {
        if let Some(first) = self.patches.first() {
            check_channels("Levit", images, &first.conv)?;
        }
        let last = self.patches.len().saturating_sub(1);
        let x = self.patches.iter().enumerate().fold(images.clone(), |x, (index, layer)| {
            let x = layer.forward(x);
            if index == last { x } else { hard_swish(x) }
        });
        x.check()?;
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let grid = self.grid;
        if [rows, columns] != [grid; 2] {
            let message = format!("Levit: images of {rows} by {columns} patches, but the model has {grid} by {grid}");
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        }
        let x = x.reshape([batch, rows * columns, features]);
        self.stages.iter().flat_map(|stage| &stage.layers).try_fold(x, |x, layer| layer.forward(x))
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results are features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.encode(images);
        let Some(head) = self.head.as_ref().filter(|_| x.check().is_ok()) else { return x };
        let x = x.mean(1);
        let logits = head.forward(x.clone());
        match &self.distilled_head {
            Some(other) => (logits + other.forward(x)) / 2.0,
            None => logits,
        }
    }
}
