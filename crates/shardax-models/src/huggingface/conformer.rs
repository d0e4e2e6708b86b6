//! The blocks of a Conformer ([Gulati et al. 2020](https://arxiv.org/abs/2005.08100)).

use shardax_nn::prelude::*;

use super::attention;
use super::encoder::{rotated, small_normal};
use super::vision::FrozenNorm;
use super::wav2vec::{ConformerConfig, ConformerPositions, FrameAdapterConfig, SoundEncoderConfig};
use crate::error::value_error;
use crate::{Activation, Mlp};

/// A block: half of an MLP, attention, a convolution of frames, and half of another MLP.
#[derive(Module, Clone, Debug)]
pub(super) struct ConformerBlock {
    first_norm: LayerNorm,
    first_mlp: Mlp,
    attention_norm: LayerNorm,
    attention: MultiHeadAttention,
    /// `[distances, features of a head]`: the learned features of distances, from the earliest frame on.
    distances: Option<Array>,
    sines: Option<DistanceSines>,
    conv: FrameConv,
    second_norm: LayerNorm,
    second_mlp: Mlp,
    norm: LayerNorm,
    rotary_base: Option<f64>,
    /// The largest distances to earlier and to later frames that have their own features.
    #[tree(static)]
    bounds: [usize; 2],
}

/// The comparison of queries with sines and cosines of distances.
#[derive(Module, Clone, Debug)]
struct DistanceSines {
    /// Computes features of distances for each head.
    layer: Linear,
    /// `[heads, features of a head]`: added to queries before they are compared with keys.
    content_bias: Array,
    /// `[heads, features of a head]`: added to queries before they are compared with distances.
    distance_bias: Array,
}

/// The convolution of a block.
#[derive(Module, Clone, Debug)]
struct FrameConv {
    norm: LayerNorm,
    /// Computes the frames, and then their gates.
    input: Conv,
    frames: Conv,
    frame_norm: Option<LayerNorm>,
    batch_norm: Option<FrozenNorm>,
    output: Conv,
    #[tree(static)]
    activation: Activation,
}

/// Added to the variance in norms whose class ignores the configuration.
const EPSILON: f64 = 1e-5;

impl ConformerBlock {
    pub fn new(config: &SoundEncoderConfig, about: &ConformerConfig, rngs: &mut Rngs) -> ConformerBlock {
        let (features, heads) = (config.hidden_size, config.num_attention_heads);
        let epsilon = if about.is_causal { config.layer_norm_eps } else { EPSILON };
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(epsilon).build(rngs);
        let mlp = |rngs: &mut Rngs| Mlp::new(features, config.intermediate_size, config.hidden_act, false, true, rngs);
        let depth = features / heads;
        let bounds = match about.positions {
            ConformerPositions::Learned { left, right } => [left, right],
            _ => [0; 2],
        };
        let is_learned = matches!(about.positions, ConformerPositions::Learned { .. });
        let dtype = rngs.policy().param_dtype;
        ConformerBlock {
            first_norm: norm(rngs),
            first_mlp: mlp(rngs),
            attention_norm: norm(rngs),
            attention: attention(heads, features).build(rngs),
            distances: is_learned.then(|| small_normal(&[bounds[0] + bounds[1] + 1, depth], rngs)),
            sines: (about.positions == ConformerPositions::Sines).then(|| DistanceSines {
                layer: Linear::builder(features, features).use_bias(false).build(rngs),
                content_bias: zeros_dtype([heads, depth], dtype),
                distance_bias: zeros_dtype([heads, depth], dtype),
            }),
            conv: FrameConv::new(config, about, epsilon, rngs),
            second_norm: norm(rngs),
            second_mlp: mlp(rngs),
            norm: norm(rngs),
            rotary_base: match about.positions {
                ConformerPositions::Rotary(base) => Some(base),
                _ => None,
            },
            bounds,
        }
    }

    /// Applies the block to frames, `[batch, length, features]`. The mask, `[batch, length]`, is of frames that are no padding.
    pub fn forward(&self, x: Array, mask: Option<&Array>) -> Array {
        let x = &x + self.first_mlp.forward(self.first_norm.forward(&x)) * 0.5;
        let x = &x + self.attend(&self.attention_norm.forward(&x), mask);
        let x = &x + self.conv.forward(&x, mask);
        let x = &x + self.second_mlp.forward(self.second_norm.forward(&x)) * 0.5;
        self.norm.forward(x)
    }

    fn attend(&self, x: &Array, mask: Option<&Array>) -> Array {
        let (Some(key), Some(value)) = (&self.attention.key, &self.attention.value) else { return x.clone() };
        let rotated = self.rotary_base.map_or_else(|| x.clone(), |base| self.rotated(x, base));
        let [query, key] = [&self.attention.query, key].map(|layer| layer.forward(&rotated));
        let value = value.forward(x);
        let scale = (query.shape()[3] as f64).sqrt().recip();
        let bias = self.distance_scores(&query).map(|scores| scores * scale);
        let query = match &self.sines {
            Some(sines) => &query + sines.content_bias.astype(query.dtype()),
            None => query,
        };
        let options = bias.iter().fold(AttentionOptions::new(), |options, bias| options.bias(bias));
        let options = mask.iter().fold(options, |options, mask| options.mask(mask.expand_dims(1).expand_dims(1)));
        self.attention.out.forward(options.dot_product_attention(query, key, value))
    }

    /// Rotates pairs of the input's features, one from each half of a head.
    fn rotated(&self, x: &Array, base: f64) -> Array {
        let (shape, heads) = (x.shape(), self.attention.query.kernel.shape()[1]);
        let depth = shape[2] / heads;
        let speeds: Vec<f32> = (0..depth / 2).map(|pair| base.powf(-2.0 * pair as f64 / depth as f64) as f32).collect();
        let angles = arange(0..shape[1] as i32).astype(DType::F32).expand_dims(-1) * array(speeds.repeat(2));
        rotated(x.reshape([shape[0], shape[1], heads, depth]), &angles).reshape(shape)
    }

    /// Compares queries, `[batch, length, heads, features]`, with distances. Returns `[batch, heads, queries, keys]`.
    fn distance_scores(&self, query: &Array) -> Option<Array> {
        let length = query.shape()[1] as i32;
        let distances = arange(0..length).expand_dims(0) - arange(0..length).expand_dims(-1);
        let (scores, rows) = match (&self.distances, &self.sines) {
            (Some(table), _) => {
                let [left, right] = self.bounds.map(|bound| bound as i32);
                let scores = einsum("blhd,rd->bhlr", &[query, &table.astype(query.dtype())]);
                (scores, distances.clip(-left, right) + left)
            }
            (None, Some(sines)) => {
                let features = sines.layer.kernel.shape()[0];
                let table = sines.layer.forward(distance_table(length, features).astype(query.dtype()));
                let shape = [-1, query.shape()[2] as i32, query.shape()[3] as i32];
                let query = query + sines.distance_bias.astype(query.dtype());
                (einsum("blhd,rhd->bhlr", &[&query, &table.reshape(shape)]), distances + (length - 1))
            }
            (None, None) => return None,
        };
        let shape = [&scores.shape()[..3], &[length as usize]].concat();
        Some(scores.take_along_axis(rows.broadcast_to(shape), -1))
    }
}

/// Returns sines and cosines of the distances from queries back to keys, `[2 * length - 1, features]`, from the earliest key on.
/// Sines have the even features.
fn distance_table(length: i32, features: usize) -> Array {
    let distances = -arange(1 - length..length).astype(DType::F32);
    let speeds: Vec<f32> =
        (0..features.div_ceil(2)).map(|pair| 10_000f64.powf(-2.0 * pair as f64 / features as f64) as f32).collect();
    let angles = distances.expand_dims(-1) * array(speeds);
    let pairs = stack(&[angles.sin(), angles.cos()], -1);
    pairs.reshape([2 * length - 1, -1]).get((.., ..features))
}

impl FrameConv {
    fn new(config: &SoundEncoderConfig, about: &ConformerConfig, epsilon: f64, rngs: &mut Rngs) -> FrameConv {
        let (features, kernel) = (config.hidden_size, about.kernel);
        let (before, after) = if about.is_causal { (kernel - 1, 0) } else { (kernel / 2, kernel / 2) };
        let frames = Conv::builder(features, features, [kernel]).feature_group_count(features);
        let point = |outputs: usize| Conv::builder(features, outputs, [1]).use_bias(false);
        FrameConv {
            norm: LayerNorm::builder(features).epsilon(epsilon).build(rngs),
            input: point(2 * features).build(rngs),
            frames: frames.padding(Padding::Explicit(vec![(before as i64, after as i64)])).use_bias(false).build(rngs),
            frame_norm: about.is_causal.then(|| LayerNorm::builder(features).epsilon(epsilon).build(rngs)),
            batch_norm: (!about.is_causal).then(|| FrozenNorm::new(features, EPSILON, rngs)),
            output: point(features).build(rngs),
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: &Array, mask: Option<&Array>) -> Array {
        let x = self.norm.forward(x);
        // Frames of padding must not reach other frames.
        let x = match mask.filter(|_| self.frame_norm.is_some()) {
            Some(mask) => where_(mask.astype(DType::Bool).expand_dims(-1), &x, 0.0),
            None => x,
        };
        let y = gated(self.input.forward(&x));
        let y = self.frames.forward(y);
        let y = self.frame_norm.iter().fold(y, |y, norm| norm.forward(y));
        let y = self.batch_norm.iter().fold(y, |y, norm| norm.forward(y));
        self.output.forward(self.activation.apply(y))
    }
}

/// The layers after the blocks. Each layer makes the sound shorter.
#[derive(Module, Clone, Debug)]
pub(super) struct FrameAdapter {
    /// Computes the features of the result, if the blocks have another number.
    projection: Option<Linear>,
    projection_norm: Option<LayerNorm>,
    layers: Vec<AdapterLayer>,
    kernel: usize,
    stride: usize,
}

#[derive(Module, Clone, Debug)]
struct AdapterLayer {
    residual_norm: LayerNorm,
    residual: Conv,
    norm: LayerNorm,
    input: Conv,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    mlp: Mlp,
}

impl FrameAdapter {
    pub fn new(config: &SoundEncoderConfig, about: &FrameAdapterConfig, rngs: &mut Rngs) -> FrameAdapter {
        let features = about.features;
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let around = (about.stride / 2) as i64;
        let conv = |rngs: &mut Rngs| {
            let conv = Conv::builder(features, features.saturating_mul(2), [about.kernel]).strides([about.stride]);
            conv.padding(Padding::Explicit(vec![(around, around)])).build(rngs)
        };
        let is_projected = features != config.hidden_size;
        FrameAdapter {
            projection: is_projected.then(|| Linear::new(config.hidden_size, features, rngs)),
            projection_norm: is_projected.then(|| norm(rngs)),
            layers: (0..about.layers)
                .map(|_| AdapterLayer {
                    residual_norm: norm(rngs),
                    residual: conv(rngs),
                    norm: norm(rngs),
                    input: conv(rngs),
                    attention: attention(config.num_attention_heads, features).build(rngs),
                    mlp_norm: norm(rngs),
                    mlp: Mlp::new(features, config.intermediate_size, about.activation, false, true, rngs),
                })
                .collect(),
            kernel: about.kernel,
            stride: about.stride,
        }
    }

    /// Returns an error if a sound has so few frames that none remain.
    pub fn check(&self, frames: usize) -> Result<()> {
        let left = self.layers.iter().try_fold(frames, |frames, _| {
            (frames + 2 * (self.stride / 2)).checked_sub(self.kernel).map(|left| left / self.stride + 1)
        });
        match left {
            Some(_) => Ok(()),
            None => {
                let message = format!("SoundEncoder: {frames} frames are too few for convolutions of {}", self.kernel);
                Err(value_error(message, "pass longer sounds"))
            }
        }
    }

    /// Makes frames, `[batch, length, features]`, shorter. The mask, `[batch, length]`, is of frames that are no padding.
    pub fn forward(&self, x: Array, mask: Option<&Array>) -> Array {
        let x = self.projection.iter().fold(x, |x, layer| layer.forward(x));
        let mut x = self.projection_norm.iter().fold(x, |x, norm| norm.forward(x));
        let mut counts = mask.map(|mask| mask.astype(DType::I32).sum(-1));
        for layer in &self.layers {
            // The class counts the padding of a kernel of odd size at each end.
            counts = counts.map(|count| {
                floor_divide(count + (2 * (self.kernel / 2)) as i32 - self.kernel as i32, self.stride as i32) + 1
            });
            let residual = gated(layer.residual.forward(layer.residual_norm.forward(&x)));
            let y = gated(layer.input.forward(layer.norm.forward(&x)));
            let places = arange(0..y.shape()[1] as i32);
            let options = counts.iter().fold(AttentionOptions::new(), |options, count| {
                options.mask(places.less(count.expand_dims(-1)).expand_dims(1).expand_dims(1))
            });
            x = residual + layer.attention.attend(&y, &y, &y, options);
            x = &x + layer.mlp.forward(layer.mlp_norm.forward(&x));
        }
        x
    }
}

/// Multiplies the first half of the features by the sigmoid of the second half.
fn gated(x: Array) -> Array {
    let half = (x.shape()[2] / 2) as i32;
    x.get((Ellipsis, ..half)) * sigmoid(x.get((Ellipsis, half..)))
}
