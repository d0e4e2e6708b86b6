//! Files of Hugging Face's `transformers`: a folder with `config.json` and `model.safetensors`, or several such files
//! with an index.
//!
//! You can load and save [`Decoder`], [`Vit`], [`Clip`], [`Bert`], [`ModernBert`] and other models ([`Pretrained`]). Loading
//! returns an error if the configuration or the files have something that the model does not support. You can also load
//! weights into your own models with [`load`]: [`Weights`] reads the files, and a [`KeyMap`] maps key paths to array names.
//!
//! ```no_run
//! use shardax_models::{Config, Decoder, GenerateOptions, LoadOptions, Pretrained};
//! use shardax_nn::prelude::*;
//!
//! let model = Decoder::from_pretrained("Llama-3.2-1B")?;
//! let logits = jit(|model: Decoder, tokens: Array| model.forward(tokens)).call((&model, array([[464, 3290]])))?;
//! let written = model.generate(&[vec![464, 3290]], &GenerateOptions::new(20).temperature(0.8).top_p(0.95))?;
//!
//! // Shard the model over devices while it is read, and compute in bfloat16.
//! let mesh = make_mesh([("model", 4)])?;
//! let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model"), ("vocab", "model")]);
//! let options = LoadOptions::new().policy(Policy::bf16_compute()).rules(&rules);
//! let model = Decoder::from_pretrained_with("Llama-3.2-1B", &options)?;
//! model.save_pretrained(&Config::open("Llama-3.2-1B")?, "copy")?;
//! # let _ = (logits, written);
//! # Ok::<(), shardax::Error>(())
//! ```

mod adapter;
mod adapter_experts;
mod adapter_joined;
mod adapter_names;
mod adapter_save;
mod bert;
mod bert_files;
mod bert_keys;
mod bit;
mod chinese_clip;
mod clap;
mod clip;
mod clipseg;
mod conditional_detr;
mod config;
mod conformer;
mod convnext;
mod cross_encoder;
mod davit;
mod deberta;
mod decoders;
mod deformable_detr;
mod depth;
mod detr;
mod encoder;
mod fields;
mod global_attention;
mod glpn;
mod grounding_dino;
mod harmless;
mod interpolation;
mod keys;
mod kinds;
mod languages;
mod layout;
mod levit;
mod load;
mod mobilebert;
mod mobilenet;
mod mobilevit;
mod modernbert;
mod owl;
mod patches;
mod poolformer;
mod resnet;
mod rope;
mod rt_detr;
mod sam;
mod save;
mod segformer;
mod sentence;
mod siglip;
mod spectrogram;
mod swin;
mod token_conv;
mod vision;
mod vit;
mod vitpose;
mod wav2vec;
mod wav2vec_files;
mod weights;
mod yolos;

use std::path::Path;
use std::sync::Arc;

use shardax::tree::TreeDef;
use shardax_nn::prelude::*;

pub(crate) use self::config::MAX_LAYERS;
pub(crate) use self::fields::Fields;
use crate::error::value_error;
use crate::{Decoder, DecoderConfig};

pub use bert::{Bert, BertConfig, BertHead, BertOptions};
pub(crate) use bert_files::windows;
pub use bit::{Bit, BitConfig};
pub use chinese_clip::{ChineseClip, ChineseClipConfig};
pub use clap::{Clap, ClapConfig};
pub use clip::{Clip, ClipConfig, ClipTower};
pub use clipseg::{ClipSeg, ClipSegConfig};
pub use conditional_detr::ConditionalDetr;
pub use config::Config;
pub use convnext::{ConvNext, ConvNextConfig};
pub use cross_encoder::CrossEncoder;
pub(crate) use davit::{DaVit, keys as davit_keys};
pub use davit::{DaVitConfig, DaVitStage};
pub use deberta::{Deberta, DebertaConfig, Distances};
pub use deformable_detr::{DeformableDetr, DeformableDetrConfig};
pub use depth::{DepthEstimator, DepthEstimatorConfig, DepthScale};
pub use detr::{Detr, DetrConfig};
pub(crate) use encoder::remove_input_biases;
pub(crate) use global_attention::{GlobalAttention, Scope};
pub use glpn::{Glpn, GlpnConfig};
pub use grounding_dino::{GroundingDino, GroundingDinoConfig};
pub use keys::KeyMap;
pub use layout::Layout;
pub(crate) use layout::Raw;
pub use levit::{Levit, LevitAttentionConfig, LevitConfig};
pub(crate) use load::Place;
pub use load::load;
pub use mobilebert::{MobileBert, MobileBertConfig};
pub use mobilenet::{MobileNet, MobileNetBlock, MobileNetConfig, MobileNetPadding};
pub use mobilevit::{MobileVit, MobileVitConfig};
pub use modernbert::{ModernBert, ModernBertConfig};
pub use owl::{Owl, OwlConfig};
pub use poolformer::{PoolFormer, PoolFormerConfig};
pub use resnet::{RegnetBlocks, Resnet, ResnetConfig};
pub(crate) use rope::rope as rotary_positions;
pub use rt_detr::{RtDetr, RtDetrBackbone, RtDetrConfig};
pub use sam::{Sam, SamConfig, SamDecoderConfig, SamPrompts};
pub(crate) use save::input_dims;
pub use segformer::{Segformer, SegformerConfig, SegformerHead};
pub use sentence::{SentenceEncoder, TokenEncoder};
pub use siglip::{Siglip, SiglipConfig};
pub use spectrogram::{SpectrogramConfig, SpectrogramEncoder};
pub(crate) use swin::DONUT;
pub use swin::{Swin, SwinConfig, SwinVersion};
pub use vision::StagedConfig;
pub use vit::{Vit, VitConfig, VitHead};
pub use vitpose::{VitPose, VitPoseConfig};
pub use wav2vec::{
    ConformerConfig, ConformerPositions, FrameAdapterConfig, SoundConvolution, SoundDistances, SoundEncoder,
    SoundEncoderConfig, SoundHead,
};
pub use weights::Weights;
pub use yolos::{Yolos, YolosConfig};

/// Options for loading weights.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    policy: Policy,
    rules: Rules,
    ignored: Vec<String>,
}

impl LoadOptions {
    /// Creates the default options: float32, on the default device.
    pub fn new() -> Self {
        LoadOptions::default()
    }

    /// Sets the dtype to which parameters are converted, and the dtype of computation.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Ignores a field of `config.json` that would be rejected. Only ignore fields that have no effect in this checkpoint. The
    /// name of a field of an object contains the name of the object, for example `text_config.sliding_window`.
    pub fn ignore_field(mut self, name: &str) -> Self {
        self.ignored.push(name.to_owned());
        self
    }

    /// Opens the configuration of a folder, without the ignored fields.
    fn config(&self, folder: &Path) -> Result<Config> {
        Ok(self.ignored.iter().fold(Config::open(folder)?, |config, name| config.without(name)))
    }

    /// Sets the rules that shard arrays. Models name their dimensions `vocab`, `embed`, `heads`, `mlp` and `expert`, the rows of
    /// texts `batch`, and the positions of decoders `length`.
    pub fn rules(mut self, rules: &Rules) -> Self {
        self.rules = rules.clone();
        self
    }
}

/// A model that you can load from the files of `transformers`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model that is loaded from files of `transformers`",
    label = "not a pretrained model",
    note = "load one of this crate's models, such as `Decoder`, `Bert` or `Vit`"
)]
pub trait Pretrained: Module {
    /// The type that describes the architecture of the model.
    type Architecture: Send + Sync + 'static;

    /// Reads the architecture from a configuration. Also returns the names of the model's arrays in files.
    ///
    /// # Errors
    /// Returns an error if the configuration has an unknown field that could change the results of the model.
    fn read(config: &Config) -> Result<(Self::Architecture, KeyMap)>;

    /// Creates a model with random weights from an architecture.
    fn make(architecture: &Self::Architecture, rngs: &mut Rngs) -> Result<Self>;

    /// Returns `true` if the model is only a part of the model that the configuration describes.
    #[doc(hidden)]
    fn is_part_of(_: &Config) -> bool {
        false
    }

    /// Returns the number of layers and the sizes of the largest matrices, which are compared with the files.
    #[doc(hidden)]
    fn extents(architecture: &Self::Architecture) -> (usize, Vec<(&'static str, usize, usize)>);

    /// Creates a model with random weights from a configuration.
    ///
    /// # Errors
    /// Returns an error if sizes in the configuration do not divide each other, or if it has an unknown field that could
    /// change the results of the model.
    #[track_caller]
    fn from_config(config: &Config, rngs: &mut Rngs) -> Result<Self> {
        let location = std::panic::Location::caller();
        let (architecture, _) = Self::read(config).map_err(|error| error.at(location))?;
        Self::make(&architecture, rngs).map_err(|error| error.at(location))
    }

    /// Loads a model from a folder of `transformers`.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, if the configuration has an unknown field that could change the
    /// results of the model, or if the files have an array that the model does not have.
    #[track_caller]
    fn from_pretrained(folder: impl AsRef<Path>) -> Result<Self> {
        Self::from_pretrained_with(folder, &LoadOptions::new())
    }

    /// Loads a model from a folder, with options for dtypes and shardings.
    #[track_caller]
    fn from_pretrained_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let location = std::panic::Location::caller();
        pretrained(folder.as_ref(), options).map_err(|error| error.at(location))
    }

    /// Saves the model to a folder as `config.json` and `model.safetensors`, which `transformers` can load. This needs
    /// enough memory on the host for the entire model.
    ///
    /// # Errors
    /// Returns an error if the configuration belongs to another model, or if a file cannot be written.
    #[track_caller]
    fn save_pretrained(&self, config: &Config, folder: impl AsRef<Path>) -> Result<()> {
        let location = std::panic::Location::caller();
        saved(self, config, folder.as_ref()).map_err(|error| error.at(location))
    }
}

/// Loads a model from a folder. Initial weights are never computed.
fn pretrained<M: Pretrained>(folder: &Path, options: &LoadOptions) -> Result<M> {
    let config = options.config(folder)?;
    let (architecture, keys) = M::read(&config)?;
    filled::<M>(folder, &config, (architecture, &keys), options)
}

/// Creates a model with this architecture and the weights in a folder.
fn filled<M: Pretrained>(
    folder: &Path,
    config: &Config,
    (architecture, keys): (M::Architecture, &KeyMap),
    options: &LoadOptions,
) -> Result<M> {
    from_weights::<M>(&opened(folder, config)?, (architecture, keys), options)
}

/// Creates a model with this architecture and these weights.
fn from_weights<M: Pretrained>(
    weights: &Weights,
    (architecture, keys): (M::Architecture, &KeyMap),
    options: &LoadOptions,
) -> Result<M> {
    bounded::<M>(&architecture, weights)?;
    let like = shapes::<M>(architecture, options.policy, &options.rules)?;
    load::all_of(weights, &like, keys, &options.rules)
}

/// Reads each array of a model with `read`, for models that keep their weights quantized.
pub(crate) fn read_each<M: Pretrained, T>(
    folder: &Path,
    options: &LoadOptions,
    read: impl Fn(&Place<'_>) -> Result<T>,
) -> Result<(Vec<T>, TreeDef)> {
    let config = options.config(folder)?;
    let (architecture, keys) = M::read(&config)?;
    let weights = opened(folder, &config)?;
    bounded::<M>(&architecture, &weights)?;
    let like = shapes::<M>(architecture, options.policy, &options.rules)?;
    let places = load::located(&weights, &like, &keys, &options.rules)?;
    load::check_left(&weights, &keys, &places)?;
    Ok((places.iter().map(read).collect::<Result<_>>()?, tree::structure(&like)))
}

/// Opens the files of a folder and combines the parts of quantized kernels.
fn opened(folder: &Path, config: &Config) -> Result<Weights> {
    Weights::open(folder)?.quantized(config)
}

/// Computes the types of the model's arrays, without values.
fn shapes<M: Pretrained>(architecture: M::Architecture, policy: Policy, rules: &Rules) -> Result<M> {
    let (architecture, rules) = (Arc::new(architecture), rules.clone());
    eval_shape(move || M::make(&architecture, &mut Rngs::new(0).with_policy(policy).with_rules(&rules)), ())
}

/// Returns an error if a configuration describes more layers or larger matrices than the files contain. Otherwise a
/// damaged configuration could require any amount of memory.
fn bounded<M: Pretrained>(architecture: &M::Architecture, weights: &Weights) -> Result<()> {
    let (layers, matrices) = M::extents(architecture);
    let (arrays, elements) = (weights.names().count(), weights.elements());
    let largest_matrix = matrices.into_iter().find(|(_, a, b)| *a as u128 * *b as u128 > elements);
    let (excess, size) = match largest_matrix {
        _ if layers > arrays => (format!("{layers} layers"), layers),
        Some((name, a, b)) => (format!("a {name} of {a} by {b}"), a.max(b)),
        None => return Ok(()),
    };
    let (path, config) = (weights.path().display(), weights.config());
    let name = config.map_or("config.json", Config::name);
    let field = config.map(|config| config.source_of(size)).unwrap_or_default();
    let message = format!("{name} has {excess}{field}, but {path} has only {arrays} arrays with {elements} elements");
    Err(value_error(message, "check that `config.json` belongs to the files"))
}

fn saved<M: Pretrained>(model: &M, config: &Config, folder: &Path) -> Result<()> {
    if M::is_part_of(config) {
        let message = "the configuration describes a model of text and images, but this model is only its text decoder";
        return Err(value_error(message, "save the model with a `Config` that has the fields of `text_config`"));
    }
    let (architecture, keys) = M::read(config)?;
    // The shapes are compared first, because files with another configuration could not be loaded again.
    let expected = leaf_shapes(&shapes::<M>(architecture, Policy::default(), &Rules::default())?);
    let shapes = leaf_shapes(model);
    let help = "pass the `Config` from which you created the model, and a model without caches";
    if let Some(((path, expected), _)) = expected.iter().zip(&shapes).find(|(expected, shapes)| expected != shapes) {
        let path = path.trim_start_matches('.');
        let message = format!("the configuration does not describe this model: `{path}` would be {expected:?}");
        return Err(value_error(message, help));
    }
    if expected.len() != shapes.len() {
        let (expected, shapes) = (expected.len(), shapes.len());
        let message = format!("the configuration describes {expected} arrays, but the model has {shapes}");
        return Err(value_error(message, help));
    }
    save::write(
        folder,
        &save::arrays(model, &keys)?,
        "model.safetensors",
        ("config.json", &config.without_quantization().to_json()),
    )
}

/// Returns the key path and the shape of each array of a model.
fn leaf_shapes<M: Pretrained>(model: &M) -> Vec<(String, Vec<usize>)> {
    tree::leaves_with_path(model).into_iter().map(|(path, leaf)| (path, leaf.shape().to_vec())).collect()
}

/// Reads the fields of a ViT without a head, which is the encoder of another model.
pub(crate) fn vit_fields(fields: &Fields) -> Result<(VitConfig, KeyMap)> {
    vit::read_fields(fields, Some(VitHead::None))
}

/// Reads the fields of a Swin without a head, which is the encoder of another model.
pub(crate) fn swin_fields(fields: &Fields) -> Result<(SwinConfig, KeyMap)> {
    let read = swin::read_fields(fields)?;
    let config = SwinConfig { stages: StagedConfig { classes: None, ..read.stages }, ..read };
    let keys = swin::keys(&config);
    Ok((config, keys))
}

/// Returns the model type, which must be one of these.
pub(crate) fn known_type<'a>(fields: &Fields<'a>, known: &[&str]) -> Result<&'a str> {
    match fields.text("model_type")? {
        kind if known.contains(&kind) => Ok(kind),
        other => Err(unknown_type(fields, other, known)),
    }
}

/// The number of types that a message lists.
const MAX_LISTED_TYPES: usize = 25;

/// Returns the error for a model type that is not one of these. The message lists the most similar types of a long list.
pub(crate) fn unknown_type(fields: &Fields, kind: &str, known: &[&str]) -> Error {
    if known.len() <= MAX_LISTED_TYPES {
        return fields.error(format!("the model_type {kind:?} is not one of {}", known.join(", ")));
    }
    let other_letters = |name: &&str| kind.len() + name.len() - 2 * common_letters(kind.as_bytes(), name.as_bytes());
    let mut similar: Vec<&str> = known.iter().copied().filter(|name| 2 * other_letters(name) <= kind.len()).collect();
    similar.sort_by_key(other_letters);
    similar.truncate(4);
    let names = if similar.is_empty() { String::new() } else { format!(", but {} are similar", similar.join(", ")) };
    let message =
        format!("the model_type {kind:?} is not one of the {} types that this model reads{names}", known.len());
    fields.error(message).help(
        "the page docs/models.md lists all types; you can load the weights of others into your own model with `KeyMap` and `load`",
    )
}

/// Returns the length of the longest common subsequence.
fn common_letters(a: &[u8], b: &[u8]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (index, y) in b.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if x == y { diagonal + 1 } else { above.max(row[index]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

/// Returns an error if the configuration has another model type.
pub(crate) fn check_type(fields: &Fields, expected: &str) -> Result<()> {
    match fields.text("model_type")? {
        kind if kind == expected => Ok(()),
        other => Err(fields.error(format!("the model_type is {other:?}, but should be {expected:?}"))),
    }
}

impl Pretrained for Decoder {
    type Architecture = DecoderConfig;

    fn read(config: &Config) -> Result<(DecoderConfig, KeyMap)> {
        let fields = config.fields();
        let (decoder, keys) = decoders::read(&fields)?;
        fields.finish()?;
        checked(config, decoder.extents(), decoder.check())?;
        Ok((decoder, keys))
    }

    fn is_part_of(config: &Config) -> bool {
        ["text_config", "vision_config", "thinker_config"].iter().any(|name| config.get(name).is_some())
    }

    fn make(architecture: &DecoderConfig, rngs: &mut Rngs) -> Result<Self> {
        Decoder::new(architecture, rngs)
    }

    fn extents(architecture: &DecoderConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        (architecture.layers, architecture.extents())
    }
}

/// Adds to the error of a check the file of the configuration and, if a matrix is too large, the field.
pub(crate) fn checked(config: &Config, matrices: Vec<(&'static str, usize, usize)>, check: Result<()>) -> Result<()> {
    let excess = matrices.into_iter().find(|(_, a, b)| a.saturating_mul(*b) > isize::MAX as usize / 8);
    let field = excess.map(|(_, a, b)| config.source_of(a.max(b))).unwrap_or_default();
    check.map_err(|error| error.context(format_args!("{}{field}", config.name())))
}

/// Returns a builder for attention with named dimensions, so that sharding rules apply to them.
pub(crate) fn attention(heads: usize, features: usize) -> MultiHeadAttentionBuilder {
    let builder = MultiHeadAttention::builder(heads, features);
    builder.kernel_axes([Some("embed"), Some("heads"), None]).out_kernel_axes([Some("heads"), None, Some("embed")])
}
