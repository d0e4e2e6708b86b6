//! ViT.

use shardax_nn::prelude::*;

use super::{Config, KeyMap, Layout, Pretrained, attention, mlp, of_type};
use crate::error::value_error;
use crate::{Activation, Mlp};

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
    /// The rows and columns of a patch, which divide those of an image.
    pub patch_size: usize,
    /// The colours of an image.
    pub num_channels: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// True if queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The function in MLPs.
    pub hidden_act: Activation,
    /// The number of classes.
    pub num_labels: usize,
}

/// ViT ([Dosovitskiy et al. 2020](https://arxiv.org/abs/2010.11929)), which names the class of an image:
/// `ViTForImageClassification`.
#[derive(Module, Clone, Debug)]
pub struct Vit {
    patches: Conv,
    /// `[1, 1, features]`: stands before the patches.
    class: Array,
    /// `[1, 1 + patches, features]`
    positions: Array,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    mlp: Mlp,
}

impl Pretrained for Vit {
    type Architecture = VitConfig;

    fn read(config: &Config) -> Result<(VitConfig, KeyMap)> {
        let fields = config.fields();
        of_type(&fields, "vit")?;
        let read = VitConfig {
            hidden_size: fields.size("hidden_size")?,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            image_size: fields.size("image_size")?,
            patch_size: fields.size("patch_size")?,
            num_channels: fields.size("num_channels")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            qkv_bias: fields.flag("qkv_bias")?,
            hidden_act: fields.activation("hidden_act")?,
            num_labels: fields.count_opt("id2label")?.unwrap_or(2),
        };
        let (heads, features) = (read.num_attention_heads, read.hidden_size);
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        fields.divides(("patch_size", read.patch_size), ("image_size", read.image_size))?;
        fields.finish()?;
        Ok((read, keys()))
    }

    fn make(config: &VitConfig, rngs: &mut Rngs) -> Result<Self> {
        let (patch, image) = (config.patch_size, config.image_size);
        if patch == 0 || !image.is_multiple_of(patch) {
            let what = format!("patch_size ({patch}) does not divide image_size ({image})");
            return Err(value_error(what, "give a positive patch_size that divides image_size"));
        }
        Ok(make(config, rngs))
    }

    fn extents(config: &VitConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, patches) = (config.hidden_size, config.image_size / config.patch_size.max(1));
        let matrices = vec![
            ("position table", patches.saturating_mul(patches), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            (
                "patch",
                config.patch_size.saturating_mul(config.patch_size),
                config.num_channels.saturating_mul(features),
            ),
            ("table of classes", config.num_labels, features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

fn keys() -> KeyMap {
    KeyMap::new()
        .array("class", "vit.embeddings.cls_token", Layout::Same)
        .array("positions", "vit.embeddings.position_embeddings", Layout::Same)
        .conv("patches", "vit.embeddings.patch_embeddings.projection")
        .norm("blocks[*].norm", "vit.encoder.layer.*.layernorm_before")
        .linear("blocks[*].attention.query", "vit.encoder.layer.*.attention.attention.query")
        .linear("blocks[*].attention.key", "vit.encoder.layer.*.attention.attention.key")
        .linear("blocks[*].attention.value", "vit.encoder.layer.*.attention.attention.value")
        .linear("blocks[*].attention.out", "vit.encoder.layer.*.attention.output.dense")
        .norm("blocks[*].mlp_norm", "vit.encoder.layer.*.layernorm_after")
        .linear("blocks[*].mlp.up", "vit.encoder.layer.*.intermediate.dense")
        .linear("blocks[*].mlp.down", "vit.encoder.layer.*.output.dense")
        .norm("norm", "vit.layernorm")
        .linear("head", "classifier")
        // The model that classifies images does not have it.
        .ignore("vit.pooler.**")
}

impl Vit {
    /// Logits `[batch, classes]` of images `[batch, rows, columns, channels]`, which `transformers` takes with the
    /// channels first.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.patches.forward(images);
        if x.check().is_err() || x.ndim() != 4 {
            return x;
        }
        let (batch, features) = (x.shape()[0], x.shape()[3]);
        let patches = x.reshape([batch as i32, -1, features as i32]);
        let class = self.class.astype(patches.dtype()).broadcast_to([batch, 1, features]);
        let mut x = concatenate(&[class, patches], 1);
        x = &x + self.positions.astype(x.dtype());
        for block in &self.blocks {
            x = &x + block.attention.forward(block.norm.forward(&x));
            x = &x + block.mlp.forward(block.mlp_norm.forward(&x));
        }
        self.head.forward(self.norm.forward(x).get((.., 0)))
    }
}

fn make(config: &VitConfig, rngs: &mut Rngs) -> Vit {
    let (features, patch) = (config.hidden_size, config.patch_size);
    let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
    let count = (config.image_size / patch).pow(2);
    let patches = Conv::builder(config.num_channels, features, [patch, patch]).strides([patch, patch]).build(rngs);
    let small = |shape: [usize; 3], rngs: &mut Rngs| {
        (random::normal(rngs.params(), shape) * 0.02).astype(rngs.policy().param_dtype)
    };
    let (class, positions) = (small([1, 1, features], rngs), small([1, 1 + count, features], rngs));
    let blocks = (0..config.num_hidden_layers).map(|_| {
        let mut attention = attention(config.num_attention_heads, features).build(rngs);
        if !config.qkv_bias {
            for layer in [&mut attention.query, &mut attention.key, &mut attention.value] {
                layer.bias = None;
            }
        }
        Block {
            norm: norm(rngs),
            attention,
            mlp_norm: norm(rngs),
            mlp: mlp(features, config.intermediate_size, config.hidden_act, rngs),
        }
    });
    let blocks = blocks.collect();
    let classes = config.num_labels;
    Vit { patches, class, positions, blocks, norm: norm(rngs), head: Linear::new(features, classes, rngs) }
}
