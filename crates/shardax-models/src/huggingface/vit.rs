//! ViT and related encoders of images.

use shardax_nn::prelude::*;

use super::encoder::{
    BlockSizes, EncoderBlock, Places, VIT_NORMS, block_keys, distance_count, grid_angles, grid_distances, scores_of,
    small_normal, vit_block_keys,
};
use super::fields::Fields;
use super::interpolation::Interpolation;
use super::patches::{PatchSizes, Patches, patch_keys};
use super::{Config, KeyMap, Layout, Pretrained, known_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Vit`].
#[derive(Clone, Debug, PartialEq)]
pub struct VitConfig {
    /// The features of a patch.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// True if the projections to queries and values have biases.
    pub qkv_bias: bool,
    /// True if the projections to keys have biases too.
    pub key_bias: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// True if MLPs have a gate.
    pub is_gated: bool,
    /// True if learned factors scale the outputs of attention and MLPs.
    pub has_scales: bool,
    /// True if the files contain the entry for masked patches.
    pub has_mask: bool,
    /// True if a learned entry before the patches represents the image.
    pub has_class: bool,
    /// True if there is a second learned entry with a position, as in DeiT.
    pub has_distillation: bool,
    /// The number of learned entries without positions between the first entry and the patches.
    pub registers: usize,
    /// True if positions are interpolated for images of other sizes. Otherwise such images are errors.
    pub interpolates: bool,
    /// True if this interpolation is linear, as in DPT. Otherwise it is cubic.
    pub interpolates_linearly: bool,
    /// The base of frequencies, if attention rotates queries and keys by the places of patches instead of adding learned
    /// positions.
    pub rope_base: Option<f64>,
    /// True if learned positions are added to the patches.
    pub has_positions: bool,
    /// True if each block adds learned numbers for distances of patches to its scores.
    pub has_distances: bool,
    /// True if all blocks add the same learned numbers for distances of patches to their scores.
    pub shares_distances: bool,
    /// True if the output of the blocks is normalized.
    pub final_norm: bool,
    /// The head, which is applied to the output of the blocks.
    pub head: VitHead,
}

/// The head of a [`Vit`]. The field `architectures` chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VitHead {
    /// No head: the results are features, `[batch, entries and patches, features]`.
    None,
    /// Logits for the classes, computed from the features of the first entry.
    Classes(usize),
    /// Logits for the classes, computed from the features of the first entry and the mean over the patches.
    ClassesWithMean(usize),
    /// Logits for the classes, computed from the normalized mean over the patches, as in BEiT.
    ClassesOfMean(usize),
    /// The mean of two heads' logits, computed from the features of the first two entries.
    ClassesOfTwo(usize),
}

/// ViT ([Dosovitskiy et al. 2020](https://arxiv.org/abs/2010.11929)), DINOv2 ([Oquab et al.
/// 2023](https://arxiv.org/abs/2304.07193)), DINOv3 ([Siméoni et al. 2025](https://arxiv.org/abs/2508.10104)), BEiT ([Bao et al.
/// 2021](https://arxiv.org/abs/2106.08254)) and related encoders of images.
///
/// The model type is `vit`, `deit`, `vit_msn`, `vit_mae` (all patches are visible), `ijepa`, `beit`, `data2vec-vision`, `dinov2`, `dinov2_with_registers` or
/// `dinov3_vit`. The field `architectures` chooses the [head](VitHead).
#[derive(Module, Clone, Debug)]
pub struct Vit {
    patches: Patches,
    blocks: Vec<EncoderBlock>,
    norm: Option<LayerNorm>,
    /// Normalizes the mean over the patches, before the head.
    mean_norm: Option<LayerNorm>,
    /// `[distances, heads]`: the scores of distances between patches, if all blocks share them.
    distances: Option<Array>,
    head: Option<Linear>,
    /// The last layer for the second entry.
    second_head: Option<Linear>,
    joins_mean: bool,
    /// The number of learned entries before the patches.
    entries: usize,
    /// The base of the frequencies that rotate queries and keys.
    rope_base: Option<f64>,
    patch_size: usize,
    /// The rows and columns of patches in an image of the configuration.
    #[tree(static)]
    grid: usize,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 10] = [
    "vit",
    "deit",
    "vit_msn",
    "vit_mae",
    "ijepa",
    "beit",
    "data2vec-vision",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
];

/// The type of a model of depths whose fields describe a ViT too.
pub(super) const DPT: &str = "dpt";

impl Pretrained for Vit {
    type Architecture = VitConfig;

    fn read(config: &Config) -> Result<(VitConfig, KeyMap)> {
        let fields = config.fields();
        let read = read_fields(&fields, None)?;
        fields.finish()?;
        Ok(read)
    }

    fn make(config: &VitConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.hidden_size;
        let patches = PatchSizes {
            channels: config.num_channels,
            features,
            image: config.image_size,
            patch: config.patch_size,
            conv_bias: true,
            has_class: config.has_class,
            has_distillation: config.has_distillation,
            registers: config.registers,
            is_flat: false,
            has_mask: config.has_mask,
            // DINOv3 and BEiT; the latter has biases except for keys.
            has_mask_dims: config.rope_base.is_some() || (config.qkv_bias && !config.key_bias),
            has_positions: config.has_positions,
            interpolation: config.interpolates.then_some(match config.registers {
                _ if config.interpolates_linearly => Interpolation::Linear,
                0 => Interpolation::Bicubic,
                _ => Interpolation::FilteredBicubic,
            }),
        };
        let sizes = [features, config.intermediate_size, config.num_attention_heads];
        let sizes = BlockSizes {
            is_gated: config.is_gated,
            has_scales: config.has_scales,
            ..BlockSizes::new(sizes, config.hidden_act, config.layer_norm_eps, config.qkv_bias)
        };
        let patches = Patches::new(&patches, rngs)?;
        let mut blocks: Vec<EncoderBlock> =
            (0..config.num_hidden_layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect();
        if !config.key_bias {
            blocks.iter_mut().filter_map(|block| block.attention.key.as_mut()).for_each(|key| key.bias = None);
        }
        let grid = config.image_size / config.patch_size;
        let table_shape = [distance_count(grid), config.num_attention_heads];
        if config.has_distances {
            blocks.iter_mut().for_each(|block| block.distances = Some(small_normal(&table_shape, rngs)));
        }
        let distances = config.shares_distances.then(|| small_normal(&table_shape, rngs));
        let norm = LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let mean_norm = matches!(config.head, VitHead::ClassesOfMean(_)).then(|| norm.clone());
        let norm = Some(norm).filter(|_| config.final_norm);
        let head = match config.head {
            VitHead::None => None,
            VitHead::Classes(count) | VitHead::ClassesOfTwo(count) | VitHead::ClassesOfMean(count) => {
                Some(Linear::new(features, count, rngs))
            }
            // DINOv2 classifies the first entry and the mean of the patches, concatenated.
            VitHead::ClassesWithMean(count) => Some(Linear::new(features.saturating_mul(2), count, rngs)),
        };
        let second_head = match config.head {
            VitHead::ClassesOfTwo(count) => Some(Linear::new(features, count, rngs)),
            _ => None,
        };
        let joins_mean = matches!(config.head, VitHead::ClassesWithMean(_));
        let (entries, rope_base, patch_size) = (1 + config.registers, config.rope_base, config.patch_size);
        Ok(Vit {
            patches,
            blocks,
            norm,
            mean_norm,
            distances,
            head,
            second_head,
            joins_mean,
            entries,
            rope_base,
            patch_size,
            grid,
        })
    }

    fn extents(config: &VitConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, patches) = (config.hidden_size, config.image_size / config.patch_size.max(1));
        let labels = match config.head {
            VitHead::None => 0,
            VitHead::Classes(count)
            | VitHead::ClassesWithMean(count)
            | VitHead::ClassesOfMean(count)
            | VitHead::ClassesOfTwo(count) => count,
        };
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let matrices = vec![
            ("position table", patches.saturating_mul(patches), features),
            (
                "table of distances",
                if config.has_distances || config.shares_distances { distance_count(patches) } else { 0 },
                config.num_attention_heads,
            ),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("patch", patch, config.num_channels.saturating_mul(features)),
            ("table of classes", labels, features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

/// Reads the fields of a model or of the encoder in another model, without the check of unknown fields. Without a head, `architectures`
/// chooses it.
pub(super) fn read_fields(fields: &Fields, head: Option<VitHead>) -> Result<(VitConfig, KeyMap)> {
    let kind = if head.is_some() && fields.has_type(DPT) { DPT } else { known_type(fields, &KNOWN)? };
    let is_third = kind == "dinov3_vit";
    let is_second = matches!(kind, "dinov2" | "dinov2_with_registers");
    let is_gated = match kind {
        "dinov3_vit" => fields.flag("use_gated_mlp")?,
        _ => is_second && fields.flag("use_swiglu_ffn")?,
    };
    let features = fields.size("hidden_size")?;
    let is_beit = matches!(kind, "beit" | "data2vec-vision");
    let qkv_bias = match kind {
        "dinov3_vit" => dino_biases(fields)?,
        _ => is_beit || fields.flag("qkv_bias")?,
    };
    let read = VitConfig {
        hidden_size: features,
        intermediate_size: if is_second {
            dino_hidden(features.saturating_mul(fields.size("mlp_ratio")?), is_gated)
        } else {
            fields.size("intermediate_size")?
        },
        num_hidden_layers: fields.layers("num_hidden_layers")?,
        num_attention_heads: fields.size("num_attention_heads")?,
        image_size: fields.size("image_size")?,
        patch_size: fields.size("patch_size")?,
        num_channels: fields.size("num_channels")?,
        layer_norm_eps: fields.number("layer_norm_eps")?,
        qkv_bias,
        key_bias: if is_third { fields.flag("key_bias")? } else { qkv_bias && !is_beit },
        hidden_act: if is_gated && is_second { Activation::Silu } else { fields.activation("hidden_act")? },
        is_gated,
        has_scales: is_second || is_third || (is_beit && fields.number("layer_scale_init_value")? > 0.0),
        has_mask: is_third
            || kind == "dinov2_with_registers"
            || ((is_second || is_beit) && fields.flag("use_mask_token")?),
        has_class: kind != "ijepa",
        has_distillation: kind == "deit",
        registers: match kind {
            "dinov2_with_registers" | "dinov3_vit" => fields.natural("num_register_tokens")?,
            _ => 0,
        },
        interpolates: is_second || kind == DPT,
        interpolates_linearly: kind == DPT,
        rope_base: if is_third { Some(fields.number("rope_theta")?) } else { None },
        has_positions: !is_third && (!is_beit || fields.flag("use_absolute_position_embeddings")?),
        has_distances: is_beit && fields.flag("use_relative_position_bias")?,
        shares_distances: is_beit && fields.flag("use_shared_relative_position_bias")?,
        final_norm: !is_beit || !fields.flag("use_mean_pooling")?,
        head: match head {
            Some(head) => head,
            None => head_of(fields, kind)?,
        },
    };
    fields.divides(("num_attention_heads", read.num_attention_heads), ("hidden_size", features))?;
    fields.divides(("patch_size", read.patch_size), ("image_size", read.image_size))?;
    if is_third && !(features / read.num_attention_heads).is_multiple_of(4) {
        return Err(fields.error(format!("{features} features of {} heads are not quarters", read.num_attention_heads)));
    }
    if is_second || is_third {
        // Options for initialization and for dropped layers, and options of a class that returns the features of
        // several layers.
        fields.skip(&["apply_layernorm", "drop_path_rate", "hidden_act", "layerscale_value"]);
        fields.skip(&["out_features", "out_indices", "reshape_hidden_states", "stage_names"]);
        // Random changes of positions in training.
        fields.skip(&["pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"]);
    }
    if is_beit {
        skip_unread_by_beit(fields);
    }
    if kind == "vit_mae" {
        // The decoder that predicts pixels, and the patches that training hides.
        fields.skip(&["decoder_hidden_size", "decoder_intermediate_size", "decoder_num_attention_heads"]);
        fields.skip(&["decoder_num_hidden_layers", "mask_ratio", "norm_pix_loss"]);
    }
    let keys = keys(kind, &read);
    Ok((read, keys))
}

/// Marks the fields of BEiT as read that have no effect on features and on classes of images.
fn skip_unread_by_beit(fields: &Fields) {
    // The vocabulary of masked patches, options of segmentation and of features of several layers, and dropped layers.
    fields.skip(&["vocab_size", "pool_scales", "use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels"]);
    fields.skip(&["auxiliary_num_convs", "auxiliary_concat_input", "semantic_loss_ignore_index", "drop_path_rate"]);
    fields.skip(&["out_features", "out_indices", "segmentation_indices", "stage_names", "add_fpn"]);
    fields.skip(&["reshape_hidden_states", "layer_scale_init_value"]);
}

/// Returns the size of DINOv2's MLP. With a gate it is two thirds of the usual size, rounded up to a multiple of 8.
fn dino_hidden(hidden: usize, is_gated: bool) -> usize {
    if is_gated { (hidden.saturating_mul(2) / 3).div_ceil(8).saturating_mul(8) } else { hidden }
}

/// Returns whether the queries and values of DINOv3 have biases. The other layers must have biases.
fn dino_biases(fields: &Fields) -> Result<bool> {
    let [query, value] = [fields.flag("query_bias")?, fields.flag("value_bias")?];
    if query != value || (!query && fields.flag("key_bias")?) {
        return Err(
            fields.error(format!("`query_bias` is {query} and `value_bias` is {value}, but both must be equal"))
        );
    }
    match ["proj_bias", "mlp_bias"].into_iter().map(|name| fields.flag(name)).collect::<Result<Vec<_>>>()?[..] {
        [true, true] => Ok(query),
        _ => Err(fields.error("`proj_bias` and `mlp_bias` must be true")),
    }
}

/// Returns the head that `architectures` names. The default is the head for classes, except for DINOv3, which has no such
/// class.
fn head_of(fields: &Fields, kind: &str) -> Result<VitHead> {
    let default = if matches!(kind, "dinov3_vit" | "vit_mae") { "Model" } else { "ForImageClassification" };
    let name = fields.class()?.unwrap_or(default);
    let count = fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2);
    Ok(match name.rsplit_once("For").map_or(name, |(_, head)| head) {
        "ImageClassification" if matches!(kind, "beit" | "data2vec-vision") && fields.flag("use_mean_pooling")? => {
            VitHead::ClassesOfMean(count)
        }
        "ImageClassification" if kind.starts_with("dinov2") => VitHead::ClassesWithMean(count),
        // The class of I-JEPA uses the mean over all patches, because the model has no learned entries.
        other if kind == "ijepa" && !name.ends_with("Model") => {
            return Err(fields.error(format!("the head {other:?} of `architectures` is not supported")));
        }
        other if (kind == "dinov3_vit" || kind == "vit_mae" && other != "PreTraining") && !name.ends_with("Model") => {
            return Err(fields.error(format!("the head {other:?} of `architectures` is not supported")));
        }
        // The files for pretraining have a decoder too.
        "PreTraining" if kind == "vit_mae" => VitHead::None,
        "ImageClassificationWithTeacher" if kind == "deit" => VitHead::ClassesOfTwo(count),
        "ImageClassification" => VitHead::Classes(count),
        name if name.ends_with("Model") => VitHead::None,
        other => return Err(fields.error(format!("the head {other:?} of `architectures` is not supported"))),
    })
}

/// Returns the names of DINOv3's arrays.
fn dino_keys() -> KeyMap {
    let attention = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("layer.*.attention.{part}"));
    let [norms, mlp] =
        [["norm1", "norm2"], ["mlp.up_proj", "mlp.down_proj"]].map(|parts| parts.map(|part| format!("layer.*.{part}")));
    let embeddings = ["patch_embeddings", "cls_token", "position_embeddings"].map(|part| format!("embeddings.{part}"));
    patch_keys("patches", &embeddings)
        .and(block_keys("blocks[*]", &attention, &norms, &mlp))
        .linear("blocks[*].mlp.gate", "layer.*.mlp.gate_proj")
        .array("patches.mask", "embeddings.mask_token", Layout::Same)
        .array("patches.registers", "embeddings.register_tokens", Layout::Same)
        .array("blocks[*].attention_scale", "layer.*.layer_scale1.lambda1", Layout::Same)
        .array("blocks[*].mlp_scale", "layer.*.layer_scale2.lambda1", Layout::Same)
        .norm("norm", "norm")
        .prefix_alias("layer.", "model.layer.")
}

/// Returns the names of the arrays. Files of a model without a head have no prefix, and other files may omit it.
fn keys(kind: &str, config: &VitConfig) -> KeyMap {
    if kind == "dinov3_vit" {
        let keys = dino_keys();
        // Files without such entries contain an empty array.
        return if config.registers == 0 { keys.ignore("embeddings.register_tokens") } else { keys };
    }
    let base = match kind {
        "vit_msn" => "vit.".to_owned(),
        "data2vec-vision" => "data2vec_vision.".to_owned(),
        "vit_mae" => "vit.".to_owned(),
        kind => format!("{kind}."),
    };
    let prefix = if config.head == VitHead::None && kind != DPT { "" } else { base.as_str() };
    let layer = format!("{prefix}encoder.layer.*");
    // BEiT has ViT's names and these.
    let (table, scales) = ("relative_position_bias.relative_position_bias_table", ["lambda_1", "lambda_2"]);
    let is_beit = matches!(kind, "beit" | "data2vec-vision");
    let scales = if is_beit { scales } else { ["layer_scale1.lambda1", "layer_scale2.lambda1"] };
    let (norms, mlp) = match kind {
        "dinov2" | "dinov2_with_registers" => (["norm1", "norm2"], ["mlp.fc1", "mlp.fc2"]),
        _ => (VIT_NORMS, ["intermediate.dense", "output.dense"]),
    };
    let embeddings = ["patch_embeddings.projection", "cls_token", "position_embeddings"];
    let embeddings = embeddings.map(|part| format!("{prefix}embeddings.{part}"));
    let mut keys = patch_keys("patches", &embeddings);
    if config.is_gated {
        let (hidden, both) = (config.intermediate_size, config.intermediate_size.saturating_mul(2));
        let joined = format!("{layer}.mlp.weights_in");
        keys = keys
            .weights("blocks[*].mlp.gate", &joined, Layout::Rows { start: 0, end: hidden, of: both })
            .weights("blocks[*].mlp.up", &joined, Layout::Rows { start: hidden, end: both, of: both })
            .linear("blocks[*].mlp.down", &format!("{layer}.mlp.weights_out"));
    }
    let blocks = vit_block_keys(&layer, norms, mlp);
    let keys = keys
        .and(blocks)
        .array("patches.mask", format!("{prefix}embeddings.mask_token"), Layout::Same)
        .array("patches.distillation", format!("{prefix}embeddings.distillation_token"), Layout::Same)
        .array("patches.registers", format!("{prefix}embeddings.register_tokens"), Layout::Same)
        .array("blocks[*].attention_scale", format!("{layer}.{}", scales[0]), Layout::Same)
        .array("blocks[*].mlp_scale", format!("{layer}.{}", scales[1]), Layout::Same)
        .array("blocks[*].distances", format!("{layer}.attention.attention.{table}"), Layout::Same)
        .array("distances", format!("{prefix}encoder.{table}"), Layout::Same)
        .norm("norm", &format!("{prefix}layernorm"))
        .norm("mean_norm", &format!("{prefix}pooler.layernorm"))
        .linear("head", if matches!(config.head, VitHead::ClassesOfTwo(_)) { "cls_classifier" } else { "classifier" })
        .linear("second_head", "distillation_classifier")
        // The class without a head has a pooling layer that does not contribute to the features.
        .ignore(&format!("{prefix}pooler.**"));
    match config.head {
        // transformers writes the names of this model's blocks without the prefix.
        _ if kind == "vit_msn" => keys.prefix_alias("vit.encoder.", "encoder."),
        _ if kind == DPT => keys,
        VitHead::None if kind == "vit_mae" => keys.prefix_alias("", &base).ignore("decoder.**"),
        VitHead::None => keys.prefix_alias("", &base).ignore(&format!("{base}pooler.**")).ignore("classifier.**"),
        _ => keys,
    }
}

impl Vit {
    /// Computes features, `[batch, entries and patches, features]`, from images `[batch, rows, columns, channels]`.
    /// `transformers` expects the channels first instead. The first entry represents the image, except for `ijepa`,
    /// which has no entries.
    ///
    /// You can pass images of another size than in the configuration only to models without learned positions, to DINOv2 and to DINOv3. Otherwise they are an error.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        let x = self.patches.forward(&images);
        if x.check().is_err() {
            return x;
        }
        let angles_and_distances =
            self.angles(&images).transpose().and_then(|angles| Ok((angles, self.distances_of(&images)?)));
        let (angles, distances) = match angles_and_distances {
            Ok(both) => both,
            Err(error) => return Array::from_error(error, &x),
        };
        // All blocks share these scores, so they are computed once.
        let bias = self.distances.as_ref().zip(distances.as_ref()).map(|(table, rows)| scores_of(table, rows));
        let places = Places { angles: angles.as_ref(), distances: distances.as_ref(), bias: bias.as_ref() };
        let x = self.blocks.iter().fold(x, |x, block| block.forward_at(x, places));
        self.norm.iter().fold(x, |x, norm| norm.forward(x))
    }

    /// Returns an error if the rows or columns of images are not multiples of the size of a patch.
    pub(crate) fn check_images(&self, images: &Array) -> Result<()> {
        if images.ndim() != 4 {
            let message = format!("images of the shape {:?} are not [batch, rows, columns, channels]", images.shape());
            return Err(value_error(message, "add a dimension for the batch with `expand_dims(0)`"));
        }
        self.patches.check_size(images)
    }

    /// Returns the outputs of these blocks, counted from 1, for a model without places of patches in attention. The first block's input
    /// is output 0.
    pub(super) fn outputs(&self, images: &Array, layers: &[usize], normalizes: bool) -> Vec<Array> {
        let mut x = self.patches.forward(images);
        let mut outputs = Vec::new();
        for number in 0..=self.blocks.len() {
            if let Some(block) = number.checked_sub(1).and_then(|index| self.blocks.get(index)) {
                x = block.forward(x);
            }
            if layers.contains(&number) {
                let norm = self.norm.iter().filter(|_| normalizes);
                outputs.push(norm.fold(x.clone(), |x, norm| norm.forward(x)));
            }
        }
        outputs
    }

    /// Returns the rows of tables of distances, if the model has such tables. They have the size of the configuration's images.
    fn distances_of(&self, images: &Array) -> Result<Option<Array>> {
        if self.distances.is_none() && self.blocks.first().is_none_or(|block| block.distances.is_none()) {
            return Ok(None);
        }
        let grid = [1, 2].map(|axis| images.shape()[axis] / self.patch_size);
        if grid != [self.grid; 2] {
            let message =
                format!("images of {grid:?} patches do not fit the model, which has {0} by {0} patches", self.grid);
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        }
        grid_distances(self.grid).map(Some)
    }

    /// Returns the angles of queries and keys for these images, if attention rotates them.
    fn angles(&self, images: &Array) -> Option<Result<Array>> {
        let (base, attention) = (self.rope_base?, &self.blocks.first()?.attention);
        let grid = [1, 2].map(|axis| images.shape()[axis] / self.patch_size);
        Some(grid_angles(grid, self.entries, *attention.query.kernel.shape().last()?, base))
    }

    /// Computes logits `[batch, classes]` from images `[batch, rows, columns, channels]`. Without a head, the results
    /// are features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        let Some(head) = self.head.as_ref().filter(|_| x.check().is_ok()) else { return x };
        if let Some(norm) = &self.mean_norm {
            return head.forward(norm.forward(x.get((.., self.entries..)).mean(1)));
        }
        let class_token = x.get((.., 0));
        if self.joins_mean {
            return head.forward(concatenate(&[class_token, x.get((.., self.entries..)).mean(1)], -1));
        }
        let logits = head.forward(class_token);
        match &self.second_head {
            Some(second) => (logits + second.forward(x.get((.., 1)))) * 0.5,
            None => logits,
        }
    }
}
