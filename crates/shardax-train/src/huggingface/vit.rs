//! ViT.

use serde::Deserialize;
use shardax_nn::prelude::*;
use std::collections::BTreeMap;

use super::{Activation, KeyMap, Layout, Mlp, Pretrained, attention, divides};

/// What `config.json` says of a ViT.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct VitConfig {
    /// Features of a patch.
    pub hidden_size: usize,
    /// Features inside of an MLP.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention, which divide the features.
    pub num_attention_heads: usize,
    /// Rows and columns of an image.
    pub image_size: usize,
    /// Rows and columns of a patch, which divide those of an image.
    pub patch_size: usize,
    /// Colours.
    #[serde(default = "channels")]
    pub num_channels: usize,
    /// Added to the variance in norms.
    #[serde(default = "epsilon")]
    pub layer_norm_eps: f64,
    /// Whether queries, keys and values have biases.
    #[serde(default = "yes")]
    pub qkv_bias: bool,
    /// The function in MLPs.
    #[serde(default = "activation")]
    pub hidden_act: String,
    /// The names of the classes; two if nothing is said.
    #[serde(default)]
    pub id2label: Option<BTreeMap<String, String>>,
}

fn channels() -> usize {
    3
}

fn epsilon() -> f64 {
    1e-12
}

fn yes() -> bool {
    true
}

fn activation() -> String {
    "gelu".to_owned()
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
    type Config = VitConfig;

    fn new(config: &VitConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, checked(config)?, rngs))
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
    }
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

fn checked(config: &VitConfig) -> Result<Activation> {
    divides(("num_attention_heads", config.num_attention_heads), ("hidden_size", config.hidden_size))?;
    divides(("patch_size", config.patch_size), ("image_size", config.image_size))?;
    Activation::named(&config.hidden_act)
}

fn make(config: &VitConfig, activation: Activation, rngs: &mut Rngs) -> Vit {
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
            mlp: Mlp::new(features, config.intermediate_size, activation, rngs),
        }
    });
    let blocks = blocks.collect();
    let classes = config.id2label.as_ref().map_or(2, BTreeMap::len);
    Vit { patches, class, positions, blocks, norm: norm(rngs), head: Linear::new(features, classes, rngs) }
}
