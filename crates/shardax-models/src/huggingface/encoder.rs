//! Parts that several encoders share: a transformer block that normalizes its inputs, and the patches of images.

use shardax_nn::prelude::*;

use super::{KeyMap, attention};
use crate::{Activation, Mlp};

/// The sizes of an [`EncoderBlock`].
#[derive(Clone, Debug)]
pub(super) struct BlockSizes {
    pub features: usize,
    pub hidden: usize,
    pub heads: usize,
    pub epsilon: f64,
    pub activation: Activation,
    pub is_gated: bool,
    pub is_causal: bool,
    pub qkv_bias: bool,
    /// True if learned factors scale the outputs of attention and MLP.
    pub has_scales: bool,
}

impl BlockSizes {
    /// Returns the sizes of a block without gates, causal attention and factors of outputs, from the numbers of features, of
    /// features inside the MLP, and of heads.
    pub fn new(
        [features, hidden, heads]: [usize; 3],
        activation: Activation,
        epsilon: f64,
        qkv_bias: bool,
    ) -> BlockSizes {
        let [is_gated, is_causal, has_scales] = [false; 3];
        BlockSizes { features, hidden, heads, epsilon, activation, is_gated, is_causal, qkv_bias, has_scales }
    }
}

/// A transformer block that normalizes its inputs.
#[derive(Module, Clone, Debug)]
pub(super) struct EncoderBlock {
    norm: LayerNorm,
    pub attention: MultiHeadAttention,
    /// `[features]`: the factors for the output of attention.
    attention_scale: Option<Array>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    /// `[features]`: the factors for the output of the MLP.
    mlp_scale: Option<Array>,
    /// `[distances, heads]`: the scores of distances between patches, if each block has them.
    pub distances: Option<Array>,
}

/// The places of patches, which attention of an [`EncoderBlock`] depends on.
#[derive(Clone, Copy, Default)]
pub(super) struct Places<'a> {
    /// `[length, depth]`: the angles that rotate queries and keys.
    pub angles: Option<&'a Array>,
    /// `[length, length]`: the rows of tables of distances.
    pub distances: Option<&'a Array>,
    /// `[heads, length, length]`: numbers that all blocks add to their scores.
    pub bias: Option<&'a Array>,
}

impl EncoderBlock {
    #[track_caller]
    pub fn new(sizes: &BlockSizes, rngs: &mut Rngs) -> EncoderBlock {
        let BlockSizes { features, hidden, heads, epsilon, activation, is_gated, .. } = *sizes;
        let mut attention = attention(heads, features).is_causal(sizes.is_causal).build(rngs);
        if !sizes.qkv_bias {
            remove_input_biases(&mut attention);
        }
        EncoderBlock {
            norm: LayerNorm::builder(features).epsilon(epsilon).build(rngs),
            attention,
            attention_scale: first_scale(sizes, rngs),
            mlp_norm: LayerNorm::builder(features).epsilon(epsilon).build(rngs),
            mlp: Mlp::new(features, hidden, activation, is_gated, true, rngs),
            mlp_scale: first_scale(sizes, rngs),
            distances: None,
        }
    }

    /// Applies the block to `x`, `[batch, length, features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: Array) -> Array {
        self.forward_at(x, Places::default())
    }

    /// Applies the block to patches at these places.
    #[track_caller]
    pub fn forward_at(&self, x: Array, places: Places<'_>) -> Array {
        let normed = self.norm.forward(&x);
        let own_bias = self.distances.as_ref().zip(places.distances).map(|(table, rows)| scores_of(table, rows));
        let bias = own_bias.into_iter().chain(places.bias.cloned()).reduce(|sum, bias| sum + bias);
        let attended = match (places.angles, &self.attention.key, &self.attention.value) {
            (Some(angles), Some(key), Some(value)) => {
                let [query, key] = [&self.attention.query, key].map(|layer| rotated(layer.forward(&normed), angles));
                self.attention.out.forward(dot_product_attention(query, key, value.forward(&normed)))
            }
            _ => {
                let options = bias.into_iter().fold(AttentionOptions::new(), AttentionOptions::bias);
                self.attention.attend(&normed, &normed, &normed, options)
            }
        };
        let x = &x + scale_if_present(&self.attention_scale, attended);
        &x + scale_if_present(&self.mlp_scale, self.mlp.forward(self.mlp_norm.forward(&x)))
    }
}

/// Returns the scores of a table `[distances, heads]` for its rows `[length, length]`: `[heads, length, length]`.
pub(super) fn scores_of(table: &Array, rows: &Array) -> Array {
    table.take(rows, 0).transpose([2, 0, 1])
}

/// Returns the number of distances of patches in a grid with one learned entry.
pub(super) fn distance_count(grid: usize) -> usize {
    let span = grid.saturating_mul(2).saturating_sub(1);
    span.saturating_mul(span).saturating_add(3)
}

/// Returns the rows of a table of distances, `[1 + patches, 1 + patches]`, for a grid of patches after one learned entry. The
/// table has all distances of rows and columns, and then the distances from the entry, to the entry, and of the entry to itself.
pub(super) fn grid_distances(grid: usize) -> Result<Array> {
    let (patches, span, count) = (grid * grid, 2 * grid - 1, distance_count(grid));
    let mut rows = vec![count - 3; patches + 1];
    rows[0] = count - 1;
    for query in 0..patches {
        rows.push(count - 2);
        rows.extend((0..patches).map(|key| {
            let down = query / grid + grid - 1 - key / grid;
            let right = query % grid + grid - 1 - key % grid;
            down * span + right
        }));
    }
    let rows = rows.into_iter().map(|row| row as i32).collect::<Vec<i32>>();
    Array::from_vec(rows, &[patches + 1, patches + 1])
}

/// Rotates pairs of features, one from each half of a head, by angles `[length, depth]`.
pub(super) fn rotated(x: Array, angles: &Array) -> Array {
    let half = x.shape()[x.ndim() - 1] / 2;
    let swapped = concatenate(&[-x.get((Ellipsis, half..)), x.get((Ellipsis, ..half))], -1);
    let angles = angles.expand_dims(-2);
    let (cos, sin) = (angles.cos().astype(x.dtype()), angles.sin().astype(x.dtype()));
    x * cos + swapped * sin
}

/// Returns the angles of patches in a grid, `[entries + patches, depth]`. A quarter of a head's features rotates by the row and
/// another one by the column, both between -1 and 1, and the other half has the same angles. The entries before the patches do
/// not rotate.
pub(super) fn grid_angles(grid: [usize; 2], entries: usize, depth: usize, base: f64) -> Result<Array> {
    let speed_exponents = (0..depth / 4).map(|index| -4.0 * index as f64 / depth as f64);
    let speeds: Vec<f64> = speed_exponents.map(|exponent| std::f64::consts::TAU * base.powf(exponent)).collect();
    let mut angles = vec![0.0f32; entries * depth];
    for patch in 0..grid[0] * grid[1] {
        let centers = [center(patch / grid[1], grid[0]), center(patch % grid[1], grid[1])];
        let half = centers.iter().flat_map(|center| speeds.iter().map(move |speed| (center * speed) as f32));
        let half: Vec<f32> = half.collect();
        angles.extend(half.repeat(2));
    }
    Array::from_vec(angles, &[entries + grid[0] * grid[1], depth])
}

/// Returns the center of an interval, of `count` equal intervals from -1 to 1.
fn center(index: usize, count: usize) -> f64 {
    (2 * index + 1) as f64 / count as f64 - 1.0
}

/// Returns the names of blocks at a key path: queries, keys, values and outputs of attention, the norms, and the MLP.
pub(super) fn block_keys(path: &str, attention: &[String; 4], norms: &[String; 2], mlp: &[String; 2]) -> KeyMap {
    let layers = ["query", "key", "value", "out"].iter().zip(attention);
    let keys =
        layers.fold(KeyMap::new(), |keys, (layer, name)| keys.linear(&format!("{path}.attention.{layer}"), name));
    keys.norm(&format!("{path}.norm"), &norms[0])
        .norm(&format!("{path}.mlp_norm"), &norms[1])
        .linear(&format!("{path}.mlp.up"), &mlp[0])
        .linear(&format!("{path}.mlp.down"), &mlp[1])
}

/// The norms of a ViT's block.
pub(super) const VIT_NORMS: [&str; 2] = ["layernorm_before", "layernorm_after"];

/// Returns the names of a ViT's blocks, `blocks[*]`, which begin with `layer`.
pub(super) fn vit_block_keys(layer: &str, norms: [&str; 2], mlp: [&str; 2]) -> KeyMap {
    let attention = ["attention.query", "attention.key", "attention.value", "output.dense"];
    let attention = attention.map(|part| format!("{layer}.attention.{part}"));
    let [norms, mlp] = [norms, mlp].map(|parts| parts.map(|part| format!("{layer}.{part}")));
    block_keys("blocks[*]", &attention, &norms, &mlp)
}

/// The initial value of the learned factors of a block.
fn first_scale(sizes: &BlockSizes, rngs: &Rngs) -> Option<Array> {
    sizes.has_scales.then(|| ones_dtype([sizes.features], rngs.policy().param_dtype))
}

fn scale_if_present(scale: &Option<Array>, y: Array) -> Array {
    match scale {
        Some(scale) => &y * scale.astype(y.dtype()),
        None => y,
    }
}

pub(super) fn small_normal(shape: &[usize], rngs: &mut Rngs) -> Array {
    (random::normal_dtype(rngs.params(), shape, DType::F32) * 0.02).astype(rngs.policy().param_dtype)
}

/// Removes the biases of queries, keys and values.
pub(crate) fn remove_input_biases(attention: &mut MultiHeadAttention) {
    let layers = std::iter::once(&mut attention.query).chain(&mut attention.key).chain(&mut attention.value);
    layers.for_each(|layer| layer.bias = None);
}
