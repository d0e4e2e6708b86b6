//! SAM's encoder of images.

use shardax_nn::prelude::*;

use super::{Sam, SamConfig};
use crate::Mlp;
use crate::error::value_error;
use crate::huggingface::{attention, remove_input_biases};
use crate::ranks::allow_any_ranks;

/// A block of the encoder.
#[derive(Module, Clone, Debug)]
pub(super) struct ImageBlock {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    /// `[distances, features of a head]`: tables for rows and columns.
    distances: Option<[Array; 2]>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    #[tree(static)]
    window: usize,
}

impl ImageBlock {
    pub(super) fn new(config: &SamConfig, window: usize, rngs: &mut Rngs) -> ImageBlock {
        let (features, heads) = (config.hidden_size, config.num_attention_heads);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let mut attention = attention(heads, features).build(rngs);
        if !config.qkv_bias {
            remove_input_biases(&mut attention);
        }
        let side = if window == 0 { config.image_size / config.patch_size } else { window };
        let table =
            |rngs: &Rngs| zeros_dtype([(2 * side).saturating_sub(1), features / heads], rngs.policy().param_dtype);
        ImageBlock {
            norm: norm(rngs),
            attention,
            distances: config.use_rel_pos.then(|| [table(rngs), table(rngs)]),
            mlp_norm: norm(rngs),
            mlp: Mlp::new(features, config.mlp_dim, config.hidden_act, false, true, rngs),
            window,
        }
    }

    /// Applies the block to `x`, `[batch, rows, columns, features]`.
    fn forward(&self, x: Array) -> Result<Array> {
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let y = self.norm.forward(&x);
        let y = if self.window == 0 {
            let y = self.attend(y.reshape([batch, 1, rows * columns, features]), [rows, columns])?;
            y.reshape([batch, rows, columns, features])
        } else {
            // Patches at the end are padded with zeros, which other patches attend to.
            let side = self.window;
            let [down, right] = [rows, columns].map(|size| size.div_ceil(side));
            let missing = |size: usize, count: usize| (0, count * side - size);
            let pads = vec![(0, 0), missing(rows, down), missing(columns, right), (0, 0)];
            let y = pad(&y, pads, PadMode::Constant(0.0));
            let y = y.reshape([batch, down, side, right, side, features]).transpose([0, 1, 3, 2, 4, 5]);
            let y = self.attend(y.reshape([batch, down * right, side * side, features]), [side; 2])?;
            let y = y.reshape([batch, down, right, side, side, features]).transpose([0, 1, 3, 2, 4, 5]);
            y.reshape([batch, down * side, right * side, features]).get((.., ..rows, ..columns))
        };
        let x = x + y;
        let y = self.mlp.forward(self.mlp_norm.forward(&x));
        Ok(x + y)
    }

    /// Attends to the patches of each window, `[batch, windows, patches, features]`.
    fn attend(&self, x: Array, [rows, columns]: [usize; 2]) -> Result<Array> {
        let (Some(key), Some(value)) = (&self.attention.key, &self.attention.value) else { return Ok(x) };
        let query = self.attention.query.forward(&x);
        let mut options = AttentionOptions::new();
        if let (Some(tables), &[batch, windows, length, heads, depth]) = (&self.distances, query.shape()) {
            let [down, right] = tables;
            let grid = query.reshape([batch, windows, rows, columns, heads, depth]);
            let down = down.take(distances(rows)?, 0).astype(grid.dtype());
            let right = right.take(distances(columns)?, 0).astype(grid.dtype());
            let down = einsum("bwrcnd,rkd->bwnrck", &[&grid, &down]).expand_dims(-1);
            let right = einsum("bwrcnd,ckd->bwnrck", &[&grid, &right]).expand_dims(-2);
            options = options.bias((down + right).reshape([batch, windows, heads, length, length]));
        }
        Ok(self.attention.out.forward(options.dot_product_attention(query, key.forward(&x), value.forward(&x))))
    }
}

/// Returns the rows of a table of distances for places in a line, `[places, places]`.
fn distances(count: usize) -> Result<Array> {
    let rows = (0..count * count).map(|index| (index / count + count - 1 - index % count) as i32);
    Array::from_vec(rows.collect::<Vec<i32>>(), &[count, count])
}

impl Sam {
    /// Computes features of images, `[batch, rows of patches, columns of patches, features]`. You need to call this only once for an
    /// image, although you segment several objects.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_encode(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn try_encode(&self, images: &Array) -> Result<Array> {
        images.check()?;
        let (size, channels) = (self.image_size, self.patches.kernel.shape()[2]);
        if images.ndim() != 4 || images.shape()[1..] != [size, size, channels] {
            let message = format!("Sam: the shape {:?} is not [batch, {size}, {size}, {channels}]", images.shape());
            return Err(value_error(message, "resize images so that their longer side fits, and pad the other one"));
        }
        let mut x = self.patches.forward(images);
        if let Some(positions) = &self.positions {
            x = &x + positions.astype(x.dtype());
        }
        for block in &self.blocks {
            x = block.forward(x)?;
        }
        let layers = self.neck.iter().zip(&self.neck_norms);
        Ok(layers.fold(x, |x, (conv, norm)| norm.forward(conv.forward(x))))
    }
}
