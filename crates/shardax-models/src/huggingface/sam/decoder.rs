//! SAM's decoder of masks.

use shardax_nn::prelude::*;

use super::{Sam, SamConfig, SamPrompts};
use crate::Mlp;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;

/// A block in which prompts attend to each other and to the image, and then the image to the prompts.
#[derive(Module, Clone, Debug)]
pub(super) struct TwoWay {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    to_image: MultiHeadAttention,
    to_image_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
    to_prompts: MultiHeadAttention,
    to_prompts_norm: LayerNorm,
}

/// Linear layers with ReLU between them.
#[derive(Module, Clone, Debug)]
pub(super) struct FeedForward {
    first: Linear,
    middle: Vec<Linear>,
    last: Linear,
}

impl FeedForward {
    pub(super) fn new([inputs, hidden, outputs]: [usize; 3], depth: usize, rngs: &mut Rngs) -> FeedForward {
        FeedForward {
            first: Linear::new(inputs, hidden, rngs),
            middle: (2..depth).map(|_| Linear::new(hidden, hidden, rngs)).collect(),
            last: Linear::new(hidden, outputs, rngs),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let x = relu(self.first.forward(x));
        self.last.forward(self.middle.iter().fold(x, |x, layer| relu(layer.forward(x))))
    }
}

impl TwoWay {
    pub(super) fn new(config: &SamConfig, rngs: &mut Rngs) -> TwoWay {
        let (features, decoder) = (config.output_channels, &config.decoder);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(decoder.layer_norm_eps).build(rngs);
        let rate = decoder.attention_downsample_rate;
        TwoWay {
            attention: config.prompt_attention(1, rngs),
            norm: norm(rngs),
            to_image: config.prompt_attention(rate, rngs),
            to_image_norm: norm(rngs),
            mlp: Mlp::new(features, decoder.mlp_dim, decoder.hidden_act, false, true, rngs),
            mlp_norm: norm(rngs),
            to_prompts: config.prompt_attention(rate, rngs),
            to_prompts_norm: norm(rngs),
        }
    }

    /// Applies the block to prompts, `[objects, prompts, features]`, and to images, `[objects, patches, features]`, with their
    /// positions. The first block replaces the prompts by the result of attention, because they are their own positions.
    fn forward(&self, is_first: bool, [x, places]: [Array; 2], [image, image_places]: [Array; 2]) -> [Array; 2] {
        let none = AttentionOptions::new;
        let x = if is_first {
            self.attention.attend(&x, &x, &x, none())
        } else {
            let placed = &x + &places;
            let y = self.attention.attend(&placed, &placed, &x, none());
            x + y
        };
        let x = self.norm.forward(x);
        let placed_image = &image + &image_places;
        let y = self.to_image.attend(&x + &places, &placed_image, &image, none());
        let x = self.to_image_norm.forward(x + y);
        let y = self.mlp.forward(&x);
        let x = self.mlp_norm.forward(x + y);
        let y = self.to_prompts.attend(&placed_image, &x + &places, &x, none());
        [x, self.to_prompts_norm.forward(image + y)]
    }
}

impl Sam {
    /// Segments objects in images `[batch, rows, columns, channels]`. See [`masks`](Sam::masks) for the results.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike, prompts: &SamPrompts) -> (Array, Array) {
        self.masks(self.encode(images), prompts)
    }

    /// Segments the objects that prompts select, for features of images. Returns logits of masks, `[batch, objects, masks, rows,
    /// columns]`, which have a quarter of the size of the image, and their scores, `[batch, objects, masks]`. Pixels of the object have
    /// positive logits.
    #[track_caller]
    pub fn masks(&self, features: impl ArrayLike, prompts: &SamPrompts) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let features = features.into_array();
        self.try_masks(&features, prompts).unwrap_or_else(|error| {
            let x = Array::from_error(error, &features);
            (x.clone(), x)
        })
    }

    fn try_masks(&self, image: &Array, prompts: &SamPrompts) -> Result<(Array, Array)> {
        image.check()?;
        let grid = self.image_size / self.patches.kernel.shape()[0];
        let width = self.mask_tokens.embedding.shape()[1];
        if image.ndim() != 4 || image.shape()[1..] != [grid, grid, width] {
            let message = format!("Sam: the shape {:?} is not [batch, {grid}, {grid}, {width}]", image.shape());
            return Err(value_error(message, "pass the features that `encode` computes"));
        }
        let batch = image.shape()[0];
        let entries = self.entries(prompts, batch)?;
        let objects = entries.as_ref().map_or(1, |entries| entries.shape()[1]);
        // Each object of an image has a separate copy of the image.
        let dense = match &prompts.masks {
            Some(masks) => self.mask_features(masks, [batch, grid, grid])?,
            None => self.no_mask.embedding.reshape([1, 1, 1, width]).astype(image.dtype()),
        };
        let copies = |x: Array, length: usize| {
            let shape = [batch, objects, length, width];
            x.expand_dims(1).broadcast_to(shape).reshape([batch * objects, length, width])
        };
        let places = self.image_places(grid).astype(image.dtype());
        let mut image = copies((image + dense).reshape([batch, grid * grid, width]), grid * grid);
        let tokens = concatenate(&[&self.score_token.embedding, &self.mask_tokens.embedding], 0).astype(image.dtype());
        let count = tokens.shape()[0];
        let tokens = reshard_like(tokens.broadcast_to([batch * objects, count, width]), &image);
        let start = match &entries {
            Some(entries) => {
                let count = entries.shape()[2];
                let entries = entries.astype(image.dtype()).reshape([batch * objects, count, width]);
                concatenate(&[tokens, entries], 1)
            }
            None => tokens,
        };
        let mut x = start.clone();
        for (index, block) in self.two_way.iter().enumerate() {
            [x, image] = block.forward(index == 0, [x, start.clone()], [image, places.clone()]);
        }
        let y = self.last_attention.attend(&x + &start, &image + &places, &image, AttentionOptions::new());
        let x = self.last_norm.forward(x + y);
        let image = image.reshape([batch * objects, grid, grid, width]);
        Ok(self.outputs(x, image, [batch, objects], prompts.is_single))
    }

    /// Computes masks and scores from the prompts and the image after the blocks.
    fn outputs(&self, x: Array, image: Array, [batch, objects]: [usize; 2], is_single: bool) -> (Array, Array) {
        let [first, second] = &self.upsample;
        let image = gelu_exact(self.upsample_norm.forward(first.forward(image)));
        let image = gelu_exact(second.forward(image));
        let count = self.mask_heads.len();
        let range = if is_single { 0..1 } else { 1..count };
        let heads = self.mask_heads[range.clone()].iter().zip(range.clone());
        let weights = heads.map(|(head, index)| head.forward(x.get((.., 1 + index)))).collect::<Vec<_>>();
        let masks = einsum("omf,orcf->omrc", &[&stack(&weights, 1), &image]);
        let &[_, number, rows, columns] = masks.shape() else { return (masks.clone(), masks) };
        let scores = self.score_head.forward(x.get((.., 0))).get((.., range));
        (masks.reshape([batch, objects, number, rows, columns]), scores.reshape([batch, objects, number]))
    }
}
