//! ViT, and the encoders of images with its blocks.

use shardax_nn::prelude::*;

use super::config::Fields;
use super::encoder::{BlockSizes, EncoderBlock, PatchSizes, Patches, block_keys, patch_keys};
use super::{Config, KeyMap, Layout, Pretrained};
use crate::Activation;
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
    /// The heads of attention, which divide the features.
    pub num_attention_heads: usize,
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The colours of an image.
    pub num_channels: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// True if queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The function in MLPs.
    pub hidden_act: Activation,
    /// True if MLPs have a gate.
    pub is_gated: bool,
    /// True if the outputs of attention and MLPs have learned factors.
    pub has_scales: bool,
    /// True if the files have an entry for masked patches.
    pub has_mask: bool,
    /// True if there is an entry before the patches that stands for the image.
    pub has_class: bool,
    /// True if there is a second entry with a position, as in DeiT.
    pub has_distillation: bool,
    /// The number of entries without positions between the first entry and the patches.
    pub registers: usize,
    /// True if positions are interpolated for images of other sizes, which are errors otherwise.
    pub interpolates: bool,
    /// The last layer.
    pub head: VitHead,
}

/// The last layer of a [`Vit`], which the field `architectures` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VitHead {
    /// None: the results are features, `[batch, entries and patches, features]`.
    None,
    /// Logits of this many classes, from the features of the entry before the patches.
    Classes(usize),
    /// Logits of this many classes, from those features and the mean of the patches'.
    ClassesWithMean(usize),
    /// The mean of the logits of this many classes, from the features of the first two entries.
    ClassesOfTwo(usize),
}

/// An encoder of images: ViT ([Dosovitskiy et al. 2020](https://arxiv.org/abs/2010.11929)), DINOv2
/// ([Oquab et al. 2023](https://arxiv.org/abs/2304.07193)), and others with their blocks.
///
/// The model type is `vit`, `deit`, `vit_msn`, `ijepa`, `dinov2` or `dinov2_with_registers`; the field `architectures` chooses the [head](VitHead).
#[derive(Module, Clone, Debug)]
pub struct Vit {
    patches: Patches,
    blocks: Vec<EncoderBlock>,
    norm: LayerNorm,
    head: Option<Linear>,
    /// The last layer of the second entry.
    second_head: Option<Linear>,
    joins_mean: bool,
    /// The number of entries before the patches.
    entries: usize,
}

/// The model types that have ViT's blocks.
pub(super) const KNOWN: [&str; 6] = ["vit", "deit", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers"];

impl Pretrained for Vit {
    type Architecture = VitConfig;

    fn read(config: &Config) -> Result<(VitConfig, KeyMap)> {
        let fields = config.fields();
        let kind = fields.text("model_type")?;
        if !KNOWN.contains(&kind) {
            return Err(fields.error(format!("the model_type {kind:?} is none of {}", KNOWN.join(", "))));
        }
        let is_dino = matches!(kind, "dinov2" | "dinov2_with_registers");
        let is_gated = is_dino && fields.flag("use_swiglu_ffn")?;
        let features = fields.size("hidden_size")?;
        let read = VitConfig {
            hidden_size: features,
            intermediate_size: match is_dino {
                true => dino_hidden(features.saturating_mul(fields.size("mlp_ratio")?), is_gated),
                false => fields.size("intermediate_size")?,
            },
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            image_size: fields.size("image_size")?,
            patch_size: fields.size("patch_size")?,
            num_channels: fields.size("num_channels")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            qkv_bias: fields.flag("qkv_bias")?,
            hidden_act: if is_gated { Activation::Silu } else { fields.activation("hidden_act")? },
            is_gated,
            has_scales: is_dino,
            has_mask: kind == "dinov2_with_registers" || (is_dino && fields.flag("use_mask_token")?),
            has_class: kind != "ijepa",
            has_distillation: kind == "deit",
            registers: match kind {
                "dinov2_with_registers" => fields.number("num_register_tokens")? as usize,
                _ => 0,
            },
            interpolates: is_dino,
            head: head(&fields, kind)?,
        };
        fields.divides(("num_attention_heads", read.num_attention_heads), ("hidden_size", features))?;
        fields.divides(("patch_size", read.patch_size), ("image_size", read.image_size))?;
        if is_dino {
            // How training starts and drops layers, and options of a class that returns the features of several layers.
            fields.skip(&["apply_layernorm", "drop_path_rate", "hidden_act", "layerscale_value"]);
            fields.skip(&["out_features", "out_indices", "reshape_hidden_states", "stage_names"]);
        }
        fields.finish()?;
        let keys = keys(kind, &read);
        Ok((read, keys))
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
            interpolates: config.interpolates,
            filters: config.registers > 0,
        };
        let sizes = BlockSizes {
            features,
            hidden: config.intermediate_size,
            heads: config.num_attention_heads,
            epsilon: config.layer_norm_eps,
            activation: config.hidden_act,
            is_gated: config.is_gated,
            is_causal: false,
            qkv_bias: config.qkv_bias,
            has_scales: config.has_scales,
        };
        let patches = Patches::new(&patches, rngs)?;
        let blocks = (0..config.num_hidden_layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect();
        let norm = LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let head = match config.head {
            VitHead::None => None,
            VitHead::Classes(count) | VitHead::ClassesOfTwo(count) => Some(Linear::new(features, count, rngs)),
            // DINOv2 classifies the class token and the mean of the patches, next to each other.
            VitHead::ClassesWithMean(count) => Some(Linear::new(features.saturating_mul(2), count, rngs)),
        };
        let second_head = match config.head {
            VitHead::ClassesOfTwo(count) => Some(Linear::new(features, count, rngs)),
            _ => None,
        };
        let joins_mean = matches!(config.head, VitHead::ClassesWithMean(_));
        Ok(Vit { patches, blocks, norm, head, second_head, joins_mean, entries: 1 + config.registers })
    }

    fn extents(config: &VitConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, patches) = (config.hidden_size, config.image_size / config.patch_size.max(1));
        let labels = match config.head {
            VitHead::None => 0,
            VitHead::Classes(count) | VitHead::ClassesWithMean(count) | VitHead::ClassesOfTwo(count) => count,
        };
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let matrices = vec![
            ("position table", patches.saturating_mul(patches), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("patch", patch, config.num_channels.saturating_mul(features)),
            ("table of classes", labels, features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

/// The features inside DINOv2's MLP: with a gate two thirds of them, rounded up to a multiple of 8.
fn dino_hidden(hidden: usize, is_gated: bool) -> usize {
    if is_gated { (hidden.saturating_mul(2) / 3).div_ceil(8).saturating_mul(8) } else { hidden }
}

/// The head that `architectures` names; without it, the one for classes.
fn head(fields: &Fields, kind: &str) -> Result<VitHead> {
    let list = fields.list_opt("architectures")?;
    let name = list.and_then(|list| list.first()).and_then(|name| name.as_str()).unwrap_or("ForImageClassification");
    let count = fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2);
    Ok(match name.rsplit_once("For").map_or(name, |(_, head)| head) {
        "ImageClassification" if kind.starts_with("dinov2") => VitHead::ClassesWithMean(count),
        // Its class takes the mean of all patches.
        other if kind == "ijepa" && !name.ends_with("Model") => {
            return Err(fields.error(format!("the head {other:?} of `architectures` is not known")));
        }
        "ImageClassificationWithTeacher" if kind == "deit" => VitHead::ClassesOfTwo(count),
        "ImageClassification" => VitHead::Classes(count),
        name if name.ends_with("Model") => VitHead::None,
        other => return Err(fields.error(format!("the head {other:?} of `architectures` is not known"))),
    })
}

/// The names of arrays. A model without a head has no prefix in files, and others can lack it.
fn keys(kind: &str, config: &VitConfig) -> KeyMap {
    let base = match kind {
        "vit_msn" => "vit.".to_owned(),
        kind => format!("{kind}."),
    };
    let prefix = if config.head == VitHead::None { "" } else { base.as_str() };
    let layer = format!("{prefix}encoder.layer.*");
    let attention = ["attention.query", "attention.key", "attention.value", "output.dense"];
    let attention = attention.map(|part| format!("{layer}.attention.{part}"));
    let (norms, mlp) = match kind {
        "dinov2" | "dinov2_with_registers" => (["norm1", "norm2"], ["mlp.fc1", "mlp.fc2"]),
        _ => (["layernorm_before", "layernorm_after"], ["intermediate.dense", "output.dense"]),
    };
    let (norms, mlp) = (norms.map(|part| format!("{layer}.{part}")), mlp.map(|part| format!("{layer}.{part}")));
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
    let blocks = block_keys("blocks[*]", &attention, &norms, &mlp);
    let keys = keys
        .and(blocks)
        .array("patches.mask", format!("{prefix}embeddings.mask_token"), Layout::Same)
        .array("patches.distillation", format!("{prefix}embeddings.distillation_token"), Layout::Same)
        .array("patches.registers", format!("{prefix}embeddings.register_tokens"), Layout::Same)
        .array("blocks[*].attention_scale", format!("{layer}.layer_scale1.lambda1"), Layout::Same)
        .array("blocks[*].mlp_scale", format!("{layer}.layer_scale2.lambda1"), Layout::Same)
        .norm("norm", &format!("{prefix}layernorm"))
        .linear("head", if matches!(config.head, VitHead::ClassesOfTwo(_)) { "cls_classifier" } else { "classifier" })
        .linear("second_head", "distillation_classifier")
        // A layer of the class without a head, which the results do not go through.
        .ignore(&format!("{prefix}pooler.**"));
    match config.head {
        // transformers writes the blocks of this model without the prefix.
        _ if kind == "vit_msn" => keys.prefix_alias("vit.encoder.", "encoder."),
        VitHead::None => keys.prefix_alias("", &base).ignore(&format!("{base}pooler.**")).ignore("classifier.**"),
        _ => keys,
    }
}

impl Vit {
    /// The features of images `[batch, rows, columns, channels]`, which `transformers` takes with the channels first:
    /// `[batch, entries and patches, features]`. The first entry stands for the image, except for `ijepa`, which has no entries.
    ///
    /// Images of another size than the configuration's are an error except for DINOv2.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.patches.forward(images);
        if x.check().is_err() {
            return x;
        }
        self.norm.forward(self.blocks.iter().fold(x, |x, block| block.forward(x)))
    }

    /// Logits `[batch, classes]` of images `[batch, rows, columns, channels]`, or without a head the features.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        let Some(head) = self.head.as_ref().filter(|_| x.check().is_ok()) else { return x };
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
