//! Wav2Vec2 and related encoders of sound that read samples.

use shardax_nn::prelude::*;

use super::bert::EncoderLayer;
use super::conformer::{ConformerBlock, FrameAdapter};
use super::{BertOptions, attention};
use crate::encoder_decoder::distance_bias;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::{gather_last, gather_positions};
use crate::{Activation, Mlp};

/// The architecture of a [`SoundEncoder`].
#[derive(Clone, Debug, PartialEq)]
pub struct SoundEncoderConfig {
    /// The features of a frame.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The convolutions that compute frames from samples.
    pub convolutions: Vec<SoundConvolution>,
    /// True if these convolutions have biases.
    pub conv_bias: bool,
    /// True if each of these convolutions is followed by a norm of its features. Otherwise only the first one is followed by a norm,
    /// whose means and variances are of all frames.
    pub norms_layers: bool,
    /// The activation after convolutions.
    pub conv_act: Activation,
    /// True if the features of the last convolution are normalized.
    pub norms_projection: bool,
    /// The number of frames in the kernels of the convolutions that replace positions.
    pub position_kernel: usize,
    /// The number of convolutions without learned lengths that replace positions, as in data2vec. `None` if a single convolution
    /// replaces positions, and the entries of its kernel have learned lengths.
    pub position_layers: Option<usize>,
    /// The number of groups of these convolutions.
    pub position_groups: usize,
    /// True if blocks normalize their inputs. Otherwise they normalize sums.
    pub pre_norms: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// Added to the variance in the norms of frames.
    pub layer_norm_eps: f64,
    /// The groups of distances between frames, if attention adds biases to its scores that depend on distances and queries, as in
    /// WavLM.
    pub distances: Option<SoundDistances>,
    /// The features inside of the adapter of a language after each block, if there are adapters.
    pub adapter_size: Option<usize>,
    /// True if the files contain the entry that replaces frames in training.
    pub has_mask: bool,
    /// The features of a frame in the input, if the model reads frames instead of samples, as in Wav2Vec2-BERT.
    pub input_features: Option<usize>,
    /// The blocks, if they are Conformer's.
    pub conformer: Option<ConformerConfig>,
    /// The layers after the blocks that make the sound shorter, if there are any.
    pub frame_adapter: Option<FrameAdapterConfig>,
    /// True if frames are normalized before or after the blocks.
    pub norms_frames: bool,
    /// The number of frames that the blocks read as one, as in SEW; 1 in other models.
    pub squeeze_factor: usize,
    /// The head.
    pub head: SoundHead,
}

/// The blocks of a Conformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ConformerConfig {
    /// The positions of frames.
    pub positions: ConformerPositions,
    /// The number of frames in the kernel of the convolution of each block.
    pub kernel: usize,
    /// True if this convolution reads only earlier frames and no padding, and the norm after it is of each frame. Otherwise the
    /// norm has the means and variances of training.
    pub is_causal: bool,
}

/// The layers after the blocks of a Conformer. Each layer makes the sound shorter.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameAdapterConfig {
    /// The number of layers.
    pub layers: usize,
    /// The number of frames in the kernels of convolutions.
    pub kernel: usize,
    /// The stride of convolutions.
    pub stride: usize,
    /// The features of the result.
    pub features: usize,
    /// The activation of the MLPs.
    pub activation: Activation,
}

/// The positions of frames in a Conformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConformerPositions {
    /// None.
    None,
    /// The inputs of queries and keys are rotated; this is the base of their frequencies.
    Rotary(f64),
    /// Queries are compared with features of sines and cosines of distances.
    Sines,
    /// Queries are compared with learned features of distances.
    Learned {
        /// The largest distance to earlier frames that has its own features.
        left: usize,
        /// The largest distance to later frames that has its own features.
        right: usize,
    },
}

/// A convolution of a [`SoundEncoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundConvolution {
    /// The features after the convolution.
    pub features: usize,
    /// The size of the kernel.
    pub kernel: usize,
    /// The stride.
    pub stride: usize,
}

/// The groups of distances between frames that share a bias of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundDistances {
    /// The number of groups.
    pub groups: usize,
    /// The distance from which on all distances are in the last group.
    pub max_distance: usize,
}

/// The head of a [`SoundEncoder`]. The field `architectures` chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundHead {
    /// No head: the results are features of frames.
    None,
    /// Logits for the letters of each frame (`Wav2Vec2ForCTC`).
    Letters(usize),
    /// Logits for the classes of the sound (`Wav2Vec2ForSequenceClassification`).
    Classes {
        /// The number of classes.
        count: usize,
        /// The features between the two layers of the head.
        features: usize,
    },
}

/// Wav2Vec2 ([Baevski et al. 2020](https://arxiv.org/abs/2006.11477)), HuBERT ([Hsu et al.
/// 2021](https://arxiv.org/abs/2106.07447)), WavLM ([Chen et al. 2021](https://arxiv.org/abs/2110.13900)) and related encoders.
///
/// The model type is `wav2vec2`, `hubert`, `wavlm`, `unispeech`, `unispeech-sat`, `data2vec-audio`, `wav2vec2-conformer`,
/// `wav2vec2-bert` or `sew`; the field `architectures` chooses
/// the [head](SoundHead). Models with adapters of languages (MMS) have the adapter that `model.safetensors` contains.
///
/// The input is sound at 16 kHz, usually normalized to a mean of 0 and a variance of 1. Dimensions are named `embed`, `heads` and
/// `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct SoundEncoder {
    convolutions: Vec<SampleConv>,
    projection_norm: Option<LayerNorm>,
    /// The layer after the convolutions. SEW has none if its size would not change.
    projection: Option<Linear>,
    /// The entry that replaces frames in training. It is only stored because the files contain it.
    mask: Option<Array>,
    positions: Vec<PositionConv>,
    norm: Option<LayerNorm>,
    blocks: Vec<EncoderLayer>,
    /// The blocks of a Conformer.
    conformers: Vec<ConformerBlock>,
    /// The layers after the blocks of a Conformer.
    frame_adapter: Option<FrameAdapter>,
    /// `[groups of distances, heads]`: the biases that attention adds.
    distances: Option<Embed>,
    /// The gates of these biases, for each block.
    gates: Vec<DistanceGate>,
    /// The adapters after the blocks.
    adapters: Vec<BlockAdapter>,
    /// The distance from which on all distances are in the last group.
    max_distance: usize,
    /// Computes the features of several frames from one, after blocks that read several frames as one.
    expansion: Option<Linear>,
    #[tree(static)]
    expansion_act: Activation,
    squeeze_factor: usize,
    projector: Option<Linear>,
    head: Option<Linear>,
    pre_norms: bool,
}

#[derive(Module, Clone, Debug)]
struct SampleConv {
    conv: Conv,
    /// The norm of each frame.
    norm: Option<LayerNorm>,
    /// The norm of each feature over all frames.
    feature_norm: Option<GroupNorm>,
    #[tree(static)]
    activation: Activation,
    kernel: usize,
    stride: usize,
}

/// A convolution of neighboring frames. The result of the last one is added to the frames.
#[derive(Module, Clone, Debug)]
struct PositionConv {
    /// The kernel, before it is divided by its lengths if these are learned.
    conv: Conv,
    /// `[kernel, 1, 1]`: the learned lengths of the entries of the kernel.
    lengths: Option<Array>,
    /// The norm of convolutions without learned lengths. It has no parameters.
    norm: Option<LayerNorm>,
    #[tree(static)]
    activation: Activation,
}

/// The gate of the biases that depend on distances.
#[derive(Module, Clone, Debug)]
struct DistanceGate {
    /// Computes two gates from the features of a head. Each is a sum of four.
    layer: Linear,
    /// `[1, heads, 1, 1]`: the factor of the second gate.
    scale: Array,
}

impl DistanceGate {
    /// Returns the factors of the biases, `[batch, heads, queries, 1]`, for the features that attention reads.
    fn forward(&self, x: &Array) -> Array {
        let (heads, shape) = (self.scale.shape()[1] as i32, x.shape());
        let x = x.reshape([shape[0] as i32, shape[1] as i32, heads, -1]).transpose([0, 2, 1, 3]);
        let gates = self.layer.forward(x);
        let [first, second] = [0, 4].map(|start| sigmoid(gates.get((Ellipsis, start..start + 4)).sum_keepdims(-1)));
        first * (second * self.scale.astype(gates.dtype()) - 1.0) + 2.0
    }
}

/// The adapter of a language after a block (MMS).
#[derive(Module, Clone, Debug)]
struct BlockAdapter {
    norm: LayerNorm,
    down: Linear,
    up: Linear,
}

impl BlockAdapter {
    fn new(features: usize, size: usize, rngs: &mut Rngs) -> BlockAdapter {
        BlockAdapter {
            norm: LayerNorm::builder(features).epsilon(EPSILON).build(rngs),
            down: Linear::new(features, size, rngs),
            up: Linear::new(size, features, rngs),
        }
    }

    fn forward(&self, x: Array) -> Array {
        &x + self.up.forward(relu(self.down.forward(self.norm.forward(&x))))
    }
}

/// Added to the variance in the norms of convolutions.
const EPSILON: f64 = 1e-5;

impl SampleConv {
    fn new(config: &SoundEncoderConfig, index: usize, rngs: &mut Rngs) -> SampleConv {
        let SoundConvolution { features, kernel, stride } = config.convolutions[index];
        let before = index.checked_sub(1).map_or(1, |before| config.convolutions[before].features);
        let conv = Conv::builder(before, features, [kernel]).strides([stride]).padding(Padding::Valid);
        SampleConv {
            conv: conv.use_bias(config.conv_bias).build(rngs),
            norm: config.norms_layers.then(|| LayerNorm::builder(features).epsilon(EPSILON).build(rngs)),
            feature_norm: (!config.norms_layers && index == 0)
                .then(|| GroupNorm::builder(features, features).epsilon(EPSILON).build(rngs)),
            activation: config.conv_act,
            kernel,
            stride,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let x = self.conv.forward(x);
        let x = self.norm.iter().fold(x, |x, norm| norm.forward(x));
        self.activation.apply(self.feature_norm.iter().fold(x, |x, norm| norm.forward(x)))
    }

    /// Returns the number of frames for numbers of samples or frames before this layer.
    fn frames(&self, count: &Array) -> Array {
        floor_divide(count - self.kernel as i32, self.stride as i32) + 1
    }
}

impl PositionConv {
    fn new(config: &SoundEncoderConfig, rngs: &mut Rngs) -> PositionConv {
        let (features, kernel) = (config.hidden_size, config.position_kernel);
        // A kernel of an even number of frames has one frame less after the center.
        let (before, after) = (kernel / 2, (kernel - 1) / 2);
        let conv = Conv::builder(features, features, [kernel]).feature_group_count(config.position_groups);
        let conv = conv.strides([config.squeeze_factor]);
        PositionConv {
            conv: conv.padding(Padding::Explicit(vec![(before as i64, after as i64)])).build(rngs),
            lengths: config.position_layers.is_none().then(|| ones_dtype([kernel, 1, 1], rngs.policy().param_dtype)),
            norm: config
                .position_layers
                .map(|_| LayerNorm::builder(features).epsilon(EPSILON).use_scale(false).use_bias(false).build(rngs)),
            activation: config.conv_act,
        }
    }

    fn forward(&self, x: Array) -> Array {
        let mut conv = self.conv.clone();
        if let Some(lengths) = &self.lengths {
            let kernel = conv.kernel.astype(DType::F32);
            let lengths = lengths.astype(DType::F32) / kernel.square().sum_keepdims([1, 2]).sqrt();
            conv.kernel = (kernel * lengths).astype(conv.kernel.dtype());
        }
        let x = conv.forward(x);
        self.activation.apply(self.norm.iter().fold(x, |x, norm| norm.forward(x)))
    }
}

impl SoundEncoderConfig {
    /// Returns `true` if the blocks read several frames as one, and another layer computes all frames again, as in SEW.
    fn has_expansion(&self) -> bool {
        self.squeeze_factor > 1
    }
}

impl SoundEncoder {
    /// Creates an encoder with random weights.
    pub(super) fn new(config: &SoundEncoderConfig, rngs: &mut Rngs) -> SoundEncoder {
        let (features, heads) = (config.hidden_size, config.num_attention_heads);
        let last = match (config.convolutions.last(), config.input_features) {
            (Some(convolution), _) => convolution.features,
            (None, inputs) => inputs.unwrap_or(1),
        };
        let norm =
            |features: usize, rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let convolutions = (0..config.convolutions.len()).map(|index| SampleConv::new(config, index, rngs)).collect();
        let layers = config.num_hidden_layers;
        let (block_count, conformer_count) = if config.conformer.is_some() { (0, layers) } else { (layers, 0) };
        let blocks = (0..block_count).map(|_| EncoderLayer {
            attention: Some(attention(heads, features).build(rngs)),
            norm: norm(features, rngs),
            mlp: Mlp::new(features, config.intermediate_size, config.hidden_act, false, true, rngs),
            mlp_norm: norm(features, rngs),
            global: None,
            conv: None,
        });
        // The classes project features to fewer ones before they classify; the letters do not.
        let blocks = blocks.collect();
        let outputs = config.frame_adapter.as_ref().map_or(features, |adapter| adapter.features);
        let (projector, head) = match config.head {
            SoundHead::None => (None, None),
            SoundHead::Letters(count) => (None, Some(Linear::new(outputs, count, rngs))),
            SoundHead::Classes { count, features: inner } => {
                (Some(Linear::new(features, inner, rngs)), Some(Linear::new(inner, count, rngs)))
            }
        };
        let dtype = rngs.policy().param_dtype;
        let gate_count = config.distances.map_or(0, |_| config.num_hidden_layers);
        let gates = (0..gate_count).map(|_| DistanceGate {
            layer: Linear::new(features / heads, 8, rngs),
            scale: ones_dtype([1, heads, 1, 1], dtype),
        });
        let gates = gates.collect();
        let adapters = config
            .adapter_size
            .map(|size| (0..config.num_hidden_layers).map(|_| BlockAdapter::new(features, size, rngs)).collect());
        let position_count = if config.conformer.is_some() { 0 } else { config.position_layers.unwrap_or(1) };
        let conformers = (0..conformer_count)
            .filter_map(|_| config.conformer.as_ref().map(|about| ConformerBlock::new(config, about, rngs)));
        let conformers = conformers.collect();
        let positions = (0..position_count).map(|_| PositionConv::new(config, rngs)).collect();
        SoundEncoder {
            convolutions,
            projection_norm: config.norms_projection.then(|| norm(last, rngs)),
            projection: (config.squeeze_factor == 1 || last != features).then(|| Linear::new(last, features, rngs)),
            mask: config.has_mask.then(|| zeros_dtype([features], dtype)),
            positions,
            norm: config.norms_frames.then(|| norm(features, rngs)),
            blocks,
            distances: config.distances.map(|distances| Embed::new(distances.groups, heads, rngs)),
            gates,
            adapters: adapters.unwrap_or_default(),
            max_distance: config.distances.map_or(0, |distances| distances.max_distance),
            expansion: config
                .has_expansion()
                .then(|| Linear::new(features, features.saturating_mul(config.squeeze_factor), rngs)),
            expansion_act: config.conv_act,
            squeeze_factor: config.squeeze_factor,
            projector,
            head,
            pre_norms: config.pre_norms,
            conformers,
            frame_adapter: config.frame_adapter.as_ref().map(|about| FrameAdapter::new(config, about, rngs)),
        }
    }

    /// Computes features of frames, `[batch, frames, features]`, from sound, `[batch, samples]`. For `wav2vec2-bert` the input is
    /// `[batch, frames, bands]`, and the mask is of frames.
    ///
    /// If sounds have different lengths, pass a mask `[batch, samples]` of the samples that are no padding. You do not need it for
    /// models that were trained without it, such as `wav2vec2-base-960h`.
    #[track_caller]
    pub fn encode(&self, sound: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let sound = sound.into_array();
        if let Err(error) = self.check_sound(&sound) {
            return Array::from_error(error, &sound);
        }
        // Convolutions over split samples would need the neighbors of each device.
        let x = match self.convolutions.is_empty() {
            true => gather_positions(gather_last(sound)),
            false => gather_last(sound).expand_dims(-1),
        };
        let x = self.convolutions.iter().fold(x, |x, layer| layer.forward(x));
        let x = self.projection_norm.iter().fold(x, |x, norm| norm.forward(x));
        let x = self.projection.iter().fold(x, |x, layer| layer.forward(x));
        let mask = options.mask().map(|mask| self.frame_mask(mask, x.shape()[1]));
        let x = match &mask {
            Some(mask) => where_(mask.expand_dims(-1), &x, zeros_like(&x)),
            None => x,
        };
        if !self.conformers.is_empty() {
            let x = self.conformers.iter().fold(x, |x, block| block.forward(x, mask.as_ref()));
            let x = self.norm.iter().fold(x, |x, norm| norm.forward(x));
            return self.frame_adapter.iter().fold(x, |x, adapter| adapter.forward(x, mask.as_ref()));
        }
        let normed = |x: Array| self.norm.iter().fold(x, |x, norm| norm.forward(x));
        let frames = x.shape()[1];
        let positions = self.positions.iter().fold(x.clone(), |x, layer| layer.forward(x));
        let (x, mask) = self.squeezed(x, mask);
        let x = &x + positions.get((.., ..x.shape()[1]));
        let x = if self.pre_norms { x } else { normed(x) };
        let attention = mask
            .iter()
            .fold(AttentionOptions::new(), |attention, mask| attention.mask(mask.expand_dims(1).expand_dims(1)));
        let biases = self.distances.as_ref().map(|table| {
            let frames = x.shape()[1];
            let places = arange(0..frames as i32);
            distance_bias(table, &places, &places, (true, self.max_distance), frames)
        });
        let x = self.blocks.iter().enumerate().fold(x, |x, (index, block)| {
            let gate = biases.as_ref().zip(self.gates.get(index));
            let bias = gate.map(|(biases, gate)| {
                let inputs = if self.pre_norms { block.norm.forward(&x) } else { x.clone() };
                gate.forward(&inputs) * biases
            });
            let x = block.forward(x, bias.into_iter().fold(attention.clone(), AttentionOptions::bias), self.pre_norms);
            self.adapters.get(index).into_iter().fold(x, |x, adapter| adapter.forward(x))
        });
        let x = if self.pre_norms { normed(x) } else { x };
        self.expansion.iter().fold(x, |x, layer| self.expanded(layer, &x, frames))
    }

    /// Replaces groups of neighboring frames by their means, and the mask by the masks of groups that have a frame without padding.
    /// A group at the end that is not full has no effect.
    fn squeezed(&self, x: Array, mask: Option<Array>) -> (Array, Option<Array>) {
        let (&[batch, frames, features], size) = (x.shape(), self.squeeze_factor) else { return (x, mask) };
        if size == 1 {
            return (x, mask);
        }
        let groups = frames / size;
        let means = x.get((.., ..groups * size)).reshape([batch, groups, size, features]).mean(2);
        let mask = mask.map(|mask| mask.get((.., ..groups * size)).reshape([batch, groups, size]).any(2));
        (means, mask)
    }

    /// Computes the features of all frames from the features of groups. Frames that belong to no group have zeros.
    fn expanded(&self, layer: &Linear, x: &Array, frames: usize) -> Array {
        let x = self.expansion_act.apply(layer.forward(x));
        let (batch, features) = (x.shape()[0], x.shape()[2] / self.squeeze_factor);
        let x = x.reshape([batch, x.shape()[1] * self.squeeze_factor, features]);
        let missing = frames.saturating_sub(x.shape()[1]);
        pad(x, vec![(0, 0), (0, missing), (0, 0)], PadMode::Constant(0.0))
    }

    /// Returns an error if the sound has another shape, or is shorter than a frame.
    fn check_sound(&self, sound: &Array) -> Result<()> {
        sound.check()?;
        if self.convolutions.is_empty() {
            let features = self.projection.as_ref().map_or(0, |layer| layer.kernel.shape()[0]);
            if sound.ndim() == 3 && sound.shape()[2] == features && sound.shape()[1] > 0 {
                return self.frame_adapter.iter().try_for_each(|adapter| adapter.check(sound.shape()[1]));
            }
            let message = format!("SoundEncoder: the shape {:?} is not [batch, frames, {features}]", sound.shape());
            return Err(value_error(message, "pass the features of sound that the model was trained with"));
        }
        let help = "pass sound at 16 kHz as [batch, samples], for example a second as [1, 16000]";
        let &[_, samples] = sound.shape() else {
            return Err(value_error(
                format!("SoundEncoder: the shape {:?} is not [batch, samples]", sound.shape()),
                help,
            ));
        };
        let frame = self.convolutions.iter().rev().fold(self.squeeze_factor, |frame, layer| {
            (frame - 1).saturating_mul(layer.stride).saturating_add(layer.kernel)
        });
        if samples >= frame {
            Ok(())
        } else {
            Err(value_error(format!("SoundEncoder: {samples} samples are less than a frame of {frame}"), help))
        }
    }

    /// Returns the mask of frames, `[batch, frames]`, for a mask of samples.
    fn frame_mask(&self, mask: &Array, frames: usize) -> Array {
        let samples = gather_last(mask.astype(DType::I32)).sum(-1);
        let count = self.convolutions.iter().fold(samples, |count, layer| layer.frames(&count));
        arange(0..frames as i32).less(count.expand_dims(-1))
    }

    /// Applies the [head](SoundHead). The result has logits for each frame, `[batch, frames, letters]`, or for each sound,
    /// `[batch, classes]`. Without a head, it has the features.
    #[track_caller]
    pub fn forward(&self, sound: impl ArrayLike, options: &BertOptions) -> Array {
        let x = self.encode(sound, options);
        if x.check().is_err() {
            return x;
        }
        let Some(head) = &self.head else { return x };
        let Some(projector) = &self.projector else { return head.forward(x) };
        let x = projector.forward(x);
        let mean = match options.mask() {
            Some(mask) => {
                let mask = self.frame_mask(mask, x.shape()[1]).astype(x.dtype()).expand_dims(-1);
                (&x * &mask).sum(1) / mask.sum(1)
            }
            None => x.mean(1),
        };
        head.forward(mean)
    }
}
