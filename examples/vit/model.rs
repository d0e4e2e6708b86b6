//! A vision transformer ([Dosovitskiy et al. 2020](https://arxiv.org/abs/2010.11929)): images as sequences of patches.

use shardax_nn::prelude::*;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Rows, columns and channels of an image.
    pub image: [usize; 3],
    /// Side of a patch in pixels; must divide rows and columns.
    pub patch: usize,
    pub layers: usize,
    pub features: usize,
    pub heads: usize,
    pub classes: usize,
}

#[derive(Module, Clone)]
pub struct Vit {
    patches: Conv,
    /// `[patches, features]`
    positions: Array,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Clone)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl Vit {
    pub fn new(sizes: Sizes, dropout: f64, rngs: &mut Rngs) -> Self {
        let Sizes { image: [rows, columns, channels], patch, layers, features, heads, classes } = sizes;
        let patches = Conv::builder(channels, features, [patch, patch]).strides([patch, patch]).build(rngs);
        let count = (rows / patch) * (columns / patch);
        let positions = random::normal(rngs.params(), [count, features]) * 0.02;
        let blocks = (0..layers).map(|_| Block {
            norm: LayerNorm::new(features, rngs),
            attention: MultiHeadAttention::new(heads, features, rngs),
            mlp_norm: LayerNorm::new(features, rngs),
            up: Linear::new(features, 4 * features, rngs),
            down: Linear::new(4 * features, features, rngs),
            dropout: Dropout::new(dropout, rngs),
        });
        let blocks = blocks.collect();
        let head = Linear::new(features, classes, rngs);
        Vit { patches, positions, blocks, norm: LayerNorm::new(features, rngs), head }
    }

    /// Logits `[B, classes]` for images `[B, rows, columns, channels]`.
    pub fn forward(&mut self, images: &Array) -> Array {
        let x = self.patches.forward(images);
        let (batch, features) = (x.shape()[0] as i32, x.shape()[3] as i32);
        let mut x = x.reshape([batch, -1, features]) + &self.positions;
        for block in &mut self.blocks {
            let y = block.attention.forward(block.norm.forward(&x));
            x = x + block.dropout.forward(y);
            let y = block.down.forward(gelu(block.up.forward(block.mlp_norm.forward(&x))));
            x = x + block.dropout.forward(y);
        }
        self.head.forward(self.norm.forward(x).mean(1)).astype(DType::F32)
    }
}
