//! Wav2Vec2 and related encoders of sound that read samples.

use shardax_nn::prelude::*;

use super::bert::EncoderLayer;
use super::fields::Fields;
use super::{BertOptions, Config, KeyMap, Layout, Pretrained, attention, known_type};
use crate::encoder_decoder::distance_bias;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::gather_last;
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
    /// The head.
    pub head: SoundHead,
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
/// The model type is `wav2vec2`, `hubert`, `wavlm`, `unispeech`, `unispeech-sat` or `data2vec-audio`; the field `architectures` chooses
/// the [head](SoundHead). Models with adapters of languages (MMS) have the adapter that `model.safetensors` contains.
///
/// The input is sound at 16 kHz, usually normalized to a mean of 0 and a variance of 1. Dimensions are named `embed`, `heads` and
/// `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct SoundEncoder {
    convolutions: Vec<SampleConv>,
    projection_norm: Option<LayerNorm>,
    projection: Linear,
    /// The entry that replaces frames in training. It is only stored because the files contain it.
    mask: Option<Array>,
    positions: Vec<PositionConv>,
    norm: LayerNorm,
    blocks: Vec<EncoderLayer>,
    /// `[groups of distances, heads]`: the biases that attention adds.
    distances: Option<Embed>,
    /// The gates of these biases, for each block.
    gates: Vec<DistanceGate>,
    /// The adapters after the blocks.
    adapters: Vec<BlockAdapter>,
    /// The distance from which on all distances are in the last group.
    max_distance: usize,
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

/// The supported model types.
pub(super) const KNOWN: [&str; 6] = ["wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio"];

/// Added to the variance in the norms of convolutions.
const EPSILON: f64 = 1e-5;

impl Pretrained for SoundEncoder {
    type Architecture = SoundEncoderConfig;

    fn read(config: &Config) -> Result<(SoundEncoderConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let is_data2vec = kind == "data2vec-audio";
        let features = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        let read = SoundEncoderConfig {
            hidden_size: features,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: heads,
            convolutions: convolutions(&fields)?,
            conv_bias: fields.flag("conv_bias")?,
            norms_layers: match fields
                .text_opt("feat_extract_norm")?
                .unwrap_or(if fields.is_null("feat_extract_norm") { "null" } else { "layer" })
            {
                "layer" => true,
                "group" => false,
                other => return Err(fields.error(format!("`feat_extract_norm` {other:?} is not supported"))),
            },
            conv_act: fields.activation("feat_extract_activation")?,
            norms_projection: kind != "hubert" || fields.flag("feat_proj_layer_norm")?,
            position_kernel: fields.size(if is_data2vec {
                "conv_pos_kernel_size"
            } else {
                "num_conv_pos_embeddings"
            })?,
            position_layers: if is_data2vec { Some(fields.layers("num_conv_pos_embeddings")?) } else { None },
            position_groups: fields.size("num_conv_pos_embedding_groups")?,
            pre_norms: !is_data2vec && fields.flag("do_stable_layer_norm")?,
            hidden_act: fields.activation("hidden_act")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            distances: if kind == "wavlm" { Some(distances(&fields)?) } else { None },
            adapter_size: if kind == "wav2vec2" { fields.size_opt("adapter_attn_dim")? } else { None },
            // The vector that replaces masked positions in training is in the files only if something was masked.
            has_mask: kind == "unispeech-sat"
                || fields.number("mask_time_prob")? > 0.0
                || fields.number("mask_feature_prob")? > 0.0,
            head: head(&fields)?,
        };
        if read.adapter_size.is_some() && !read.pre_norms {
            return Err(fields.error("`adapter_attn_dim` is set, but `do_stable_layer_norm` is false"));
        }
        fields.divides(("num_conv_pos_embedding_groups", read.position_groups), ("hidden_size", features))?;
        check_and_skip(&fields)?;
        fields.finish()?;
        let keys = keys(&fields, kind, &read)?;
        Ok((read, keys))
    }

    fn make(config: &SoundEncoderConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, heads) = (config.hidden_size, config.num_attention_heads);
        let last = config.convolutions.last().map_or(1, |convolution| convolution.features);
        let norm =
            |features: usize, rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let convolutions = (0..config.convolutions.len()).map(|index| SampleConv::new(config, index, rngs)).collect();
        let blocks = (0..config.num_hidden_layers).map(|_| EncoderLayer {
            attention: Some(attention(heads, features).build(rngs)),
            norm: norm(features, rngs),
            mlp: Mlp::new(features, config.intermediate_size, config.hidden_act, false, true, rngs),
            mlp_norm: norm(features, rngs),
            global: None,
        });
        // The classes project features to fewer ones before they classify; the letters do not.
        let blocks = blocks.collect();
        let (projector, head) = match config.head {
            SoundHead::None => (None, None),
            SoundHead::Letters(count) => (None, Some(Linear::new(features, count, rngs))),
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
        let positions = (0..config.position_layers.unwrap_or(1)).map(|_| PositionConv::new(config, rngs)).collect();
        Ok(SoundEncoder {
            convolutions,
            projection_norm: config.norms_projection.then(|| norm(last, rngs)),
            projection: Linear::new(last, features, rngs),
            mask: config.has_mask.then(|| zeros_dtype([features], dtype)),
            positions,
            norm: norm(features, rngs),
            blocks,
            distances: config.distances.map(|distances| Embed::new(distances.groups, heads, rngs)),
            gates,
            adapters: adapters.unwrap_or_default(),
            max_distance: config.distances.map_or(0, |distances| distances.max_distance),
            projector,
            head,
            pre_norms: config.pre_norms,
        })
    }

    fn extents(config: &SoundEncoderConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let mut matrices = vec![
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            (
                "convolution of positions",
                config.position_kernel.saturating_mul(features),
                features / config.position_groups.max(1),
            ),
            (
                "table of distances",
                config.distances.map_or(0, |distances| distances.groups),
                config.num_attention_heads,
            ),
            ("adapter", config.adapter_size.unwrap_or(0), features),
        ];
        // The first convolution reads samples, which have one feature. The product must not overflow, because sizes come
        // from a file.
        let mut before = 1;
        for convolution in &config.convolutions {
            let inputs = before * convolution.kernel.min(usize::MAX / before.max(1));
            matrices.push(("convolution", inputs, convolution.features));
            before = convolution.features;
        }
        match config.head {
            SoundHead::None => {}
            SoundHead::Letters(count) => matrices.push(("table of letters", count, features)),
            SoundHead::Classes { count, features: inner } => {
                matrices.push(("layer before classes", inner, features));
                matrices.push(("table of classes", count, inner));
            }
        }
        let positions = config.position_layers.unwrap_or(1);
        let layers = config.num_hidden_layers.saturating_add(config.convolutions.len()).saturating_add(positions);
        (layers, matrices)
    }
}

/// Reads the convolutions of samples.
fn convolutions(fields: &Fields) -> Result<Vec<SoundConvolution>> {
    let [features, kernels, strides] =
        [fields.size_list("conv_dim")?, fields.size_list("conv_kernel")?, fields.size_list("conv_stride")?];
    if kernels.len() != features.len() || strides.len() != features.len() {
        return Err(fields.error("`conv_dim`, `conv_kernel` and `conv_stride` have different lengths"));
    }
    let layers = features.into_iter().zip(kernels).zip(strides);
    Ok(layers.map(|((features, kernel), stride)| SoundConvolution { features, kernel, stride }).collect())
}

/// Reads the groups of distances. A quarter of the groups contain a single distance each, so that the other distances need more.
fn distances(fields: &Fields) -> Result<SoundDistances> {
    let (groups, max_distance) = (fields.size("num_buckets")?, fields.size("max_bucket_distance")?);
    if !groups.is_multiple_of(4) || max_distance <= groups / 4 {
        let message = format!("`num_buckets` is {groups} and `max_bucket_distance` is {max_distance}");
        return Err(fields.error(format!("{message}, but must be a multiple of 4 and more than a quarter of it")));
    }
    Ok(SoundDistances { groups, max_distance })
}

/// Returns the head that `architectures` names. The default is the head for letters.
fn head(fields: &Fields) -> Result<SoundHead> {
    let name = fields.class()?.unwrap_or("ForCTC");
    match name {
        // The files for pretraining have an encoder with other layers.
        name if name.ends_with("Model") || name.ends_with("ForPreTraining") => Ok(SoundHead::None),
        name if name.ends_with("ForCTC") => Ok(SoundHead::Letters(fields.size("vocab_size")?)),
        name if name.ends_with("ForSequenceClassification") => {
            if fields.flag("use_weighted_layer_sum")? {
                let message = "field `use_weighted_layer_sum` is true, but sums of all layers are not supported";
                return Err(fields.error(message));
            }
            let count = fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2);
            Ok(SoundHead::Classes { count, features: fields.size("classifier_proj_size")? })
        }
        other => Err(fields.error(format!("the class {other:?} of `architectures` is not supported"))),
    }
}

/// Checks fields that the configuration does not store, and marks fields as read that have no effect.
fn check_and_skip(fields: &Fields) -> Result<()> {
    for name in ["add_adapter", "conv_pos_batch_norm"] {
        if fields.flag(name)? {
            return Err(fields.error(format!("field `{name}` is true, which is not supported")));
        }
    }
    // Options of training: replaced frames, the loss, and the vectors that are predicted.
    fields.skip(&["apply_spec_augment", "mask_time_length", "mask_time_min_masks", "mask_feature_length"]);
    fields.skip(&["mask_feature_min_masks", "mask_channel_length", "mask_channel_min_space", "mask_channel_other"]);
    fields.skip(&["mask_channel_prob", "mask_channel_selection", "mask_time_min_space", "mask_time_other"]);
    fields.skip(&["mask_time_selection", "no_mask_channel_overlap", "no_mask_time_overlap"]);
    fields.skip(&["ctc_loss_reduction", "ctc_zero_infinity", "contrastive_logits_temperature", "num_negatives"]);
    fields.skip(&["num_codevectors_per_group", "num_codevector_groups", "codevector_dim", "proj_codevector_dim"]);
    fields.skip(&["mask_time_prob", "mask_feature_prob"]);
    fields.skip(&["diversity_loss_weight", "layerdrop", "num_clusters", "num_ctc_classes", "replace_prob"]);
    // Sizes of heads and adapters that the model does not have, and numbers that follow from other fields.
    fields.skip(&["classifier_proj_size", "use_weighted_layer_sum", "tdnn_dim", "tdnn_kernel", "tdnn_dilation"]);
    fields.skip(&["xvector_output_dim", "adapter_kernel_size", "adapter_stride", "num_adapter_layers"]);
    fields.skip(&["output_hidden_size", "vocab_size", "num_feat_extract_layers"]);
    Ok(())
}

/// Returns the names of the arrays.
fn keys(fields: &Fields, kind: &str, config: &SoundEncoderConfig) -> Result<KeyMap> {
    let name = fields.class()?.unwrap_or("ForCTC");
    let base = format!("{}.", kind.replace('-', "_"));
    let prefix = if name.ends_with("Model") { "" } else { base.as_str() };
    let layer = format!("{prefix}encoder.layers.*");
    let sample = format!("{prefix}feature_extractor.conv_layers.*");
    let keys = KeyMap::new()
        .conv("convolutions[*].conv", &format!("{sample}.conv"))
        .norm("convolutions[*].norm", &format!("{sample}.layer_norm"))
        .norm("convolutions[*].feature_norm", &format!("{sample}.layer_norm"))
        .norm("projection_norm", &format!("{prefix}feature_projection.layer_norm"))
        .linear("projection", &format!("{prefix}feature_projection.projection"))
        .array("mask", format!("{prefix}masked_spec_embed"), Layout::Same)
        // The names before PyTorch 2.
        .alias("conv.parametrizations.weight.original0", "conv.weight_g")
        .alias("conv.parametrizations.weight.original1", "conv.weight_v")
        .norm("norm", &format!("{prefix}encoder.layer_norm"))
        .array("distances.embedding", format!("{prefix}encoder.layers.0.attention.rel_attn_embed.weight"), Layout::Same)
        .array("gates[*].scale", format!("{layer}.attention.gru_rel_pos_const"), Layout::Same)
        .linear("gates[*].layer", &format!("{layer}.attention.gru_rel_pos_linear"))
        .norm("adapters[*].norm", &format!("{layer}.adapter_layer.norm"))
        .linear("adapters[*].down", &format!("{layer}.adapter_layer.linear_1"))
        .linear("adapters[*].up", &format!("{layer}.adapter_layer.linear_2"))
        .norm("blocks[*].norm", &format!("{layer}.layer_norm"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.final_layer_norm"))
        .linear("blocks[*].mlp.up", &format!("{layer}.feed_forward.intermediate_dense"))
        .linear("blocks[*].mlp.down", &format!("{layer}.feed_forward.output_dense"))
        .linear("projector", "projector");
    let parts = [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")];
    let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("blocks[*].attention.{part}"), &format!("{layer}.attention.{name}"))
    });
    let positions = format!("{prefix}encoder.pos_conv_embed");
    let keys = match config.position_layers {
        Some(_) => keys.conv("positions[*].conv", &format!("{positions}.layers.*.conv")),
        None => {
            let weight = format!("{positions}.conv.parametrizations.weight");
            keys.array("positions[0].lengths", format!("{weight}.original0"), Layout::Convolution)
                .array("positions[0].conv.kernel", format!("{weight}.original1"), Layout::Convolution)
                .array("positions[0].conv.bias", format!("{positions}.conv.bias"), Layout::Same)
        }
    };
    let keys = if config.has_mask { keys } else { keys.ignore(&format!("{prefix}masked_spec_embed")) };
    Ok(match config.head {
        SoundHead::Letters(_) => keys.linear("head", "lm_head"),
        SoundHead::Classes { .. } => keys.linear("head", "classifier"),
        // Layers of other heads, and of training.
        SoundHead::None => {
            let others = ["lm_head", "projector", "classifier", "quantizer", "project_hid", "project_q", "ctc_proj"];
            let others =
                others.into_iter().chain(["speaker_proj", "label_embeddings_concat", "layer_norm_for_extract"]);
            let keys = others.fold(keys, |keys, other| keys.ignore(&format!("{other}**")));
            if prefix.is_empty() { keys.prefix_alias("", &base) } else { keys }
        }
    })
}

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

impl SoundEncoder {
    /// Computes features of frames, `[batch, frames, features]`, from sound, `[batch, samples]`.
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
        let x = gather_last(sound).expand_dims(-1);
        let x = self.convolutions.iter().fold(x, |x, layer| layer.forward(x));
        let x = self.projection_norm.iter().fold(x, |x, norm| norm.forward(x));
        let x = self.projection.forward(x);
        let mask = options.mask().map(|mask| self.frame_mask(mask, x.shape()[1]));
        let x = match &mask {
            Some(mask) => where_(mask.expand_dims(-1), &x, zeros_like(&x)),
            None => x,
        };
        let x = &x + self.positions.iter().fold(x.clone(), |x, layer| layer.forward(x));
        let x = if self.pre_norms { x } else { self.norm.forward(x) };
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
        if self.pre_norms { self.norm.forward(x) } else { x }
    }

    /// Returns an error if the sound has another shape, or is shorter than a frame.
    fn check_sound(&self, sound: &Array) -> Result<()> {
        sound.check()?;
        let help = "pass sound at 16 kHz as [batch, samples], for example a second as [1, 16000]";
        let &[_, samples] = sound.shape() else {
            return Err(value_error(
                format!("SoundEncoder: the shape {:?} is not [batch, samples]", sound.shape()),
                help,
            ));
        };
        let frame = self
            .convolutions
            .iter()
            .rev()
            .fold(1usize, |frame, layer| (frame - 1).saturating_mul(layer.stride).saturating_add(layer.kernel));
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
