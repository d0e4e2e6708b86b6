//! Models of `sentence-transformers`: an encoder, pooling, linear layers and normalization.

use std::path::Path;

use shardax_nn::prelude::*;

use super::{
    Bert, BertOptions, Config, Deberta, KeyMap, Layout, LoadOptions, ModernBert, Pretrained, Weights, filled, load,
    pretrained,
};
use crate::Decoder;
use crate::error::{read_small, value_error};
use crate::ranks::allow_any_ranks;
use crate::shardings::first_token;

/// An encoder and a pooling of its features to one vector for each text, as saved by `sentence-transformers`.
#[derive(Module, Clone, Debug)]
pub struct SentenceEncoder {
    /// The encoder of tokens.
    pub encoder: TokenEncoder,
    /// The linear layers after pooling.
    pub layers: Vec<Linear>,
    #[tree(static)]
    activations: Vec<DenseActivation>,
    #[tree(static)]
    pooling: Vec<Pooling>,
    normalizes: bool,
}

/// The encoder of a [`SentenceEncoder`].
#[derive(Module, Clone, Debug)]
// A model has only one encoder, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum TokenEncoder {
    /// BERT, or an encoder with its blocks.
    Bert(Bert),
    /// ModernBERT.
    ModernBert(ModernBert),
    /// DeBERTa.
    Deberta(Deberta),
    /// A decoder without the last layer, such as Qwen3-Embedding. You must pad texts at the end.
    Decoder(Decoder),
}

impl TokenEncoder {
    /// Computes features, `[batch, length, features]`, for each token of `[batch, length]`.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        match self {
            TokenEncoder::Bert(encoder) => encoder.encode(tokens, options),
            TokenEncoder::ModernBert(encoder) => encoder.encode(tokens, options),
            TokenEncoder::Deberta(encoder) => encoder.encode(tokens, options),
            TokenEncoder::Decoder(decoder) if decoder.is_bidirectional => decoder.encode(tokens, options.mask()),
            TokenEncoder::Decoder(decoder) => match check_padding(options) {
                // Causal attention hides the padding at the end.
                Ok(()) => decoder.encode(tokens, None),
                Err(error) => Array::from_error(error, &tokens.into_array()),
            },
        }
    }

    /// Computes the results of the encoder's head. A decoder has none, so the results are features.
    #[track_caller]
    pub(super) fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        match self {
            TokenEncoder::Bert(encoder) => encoder.forward(tokens, options),
            TokenEncoder::ModernBert(encoder) => encoder.forward(tokens, options),
            TokenEncoder::Deberta(encoder) => encoder.forward(tokens, options),
            TokenEncoder::Decoder(_) => self.encode(tokens, options),
        }
    }
}

/// Returns an error if a text starts with padding and the values of the mask are known.
#[track_caller]
fn check_padding(options: &BertOptions) -> Result<()> {
    let Some(mask) = options.mask() else { return Ok(()) };
    mask.check()?;
    if mask.is_traced() || !mask.is_fully_addressable() {
        return Ok(());
    }
    let length = mask.shape().last().copied().unwrap_or(1).max(1);
    let values = mask.astype(DType::F32).to_f64_vec()?;
    if values.chunks(length).all(|row| row.first() != Some(&0.0)) {
        return Ok(());
    }
    Err(value_error(
        "a text begins with padding, to which a decoder would attend",
        "put the padding at the end of each text",
    ))
}

/// A way to compute the vector of a text from the features of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pooling {
    First,
    Max,
    Mean,
    /// The sum divided by the square root of the number of tokens.
    MeanOfRoot,
    /// The weighted mean, where the weight of a token is its position, counted from 1.
    WeightedMean,
    Last,
}

/// The names of the pooling modes in configurations, in the order in which their results are joined.
const MODES: [(&str, &str, Pooling); 6] = [
    ("pooling_mode_cls_token", "cls", Pooling::First),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanOfRoot),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

impl Pooling {
    /// Computes the vector of each text, `[batch, features]`, from the features and a mask `[batch, length, 1]`.
    pub(super) fn pool(self, x: &Array, mask: &Array) -> Array {
        let weights = mask.astype(x.dtype());
        match self {
            Pooling::First => first_token(x.clone()),
            Pooling::Max => where_(mask, x, f64::NEG_INFINITY).max(1),
            Pooling::Mean => weighted_mean(x, weights),
            Pooling::MeanOfRoot => (x * &weights).sum(1) / weights.sum(1).maximum(1e-9).sqrt(),
            Pooling::WeightedMean => {
                let places = arange(1..x.shape()[1] as i32 + 1).astype(x.dtype());
                weighted_mean(x, &weights * places.reshape([1, -1, 1]))
            }
            Pooling::Last => {
                let length = x.shape()[1];
                let places = arange(0..length as i32).reshape([1, -1]);
                let last_token = where_(mask.squeeze(-1), places, 0).argmax(-1);
                (x * one_hot(last_token, length).astype(x.dtype()).expand_dims(-1)).sum(1)
            }
        }
    }
}

/// Computes the mean over positions with the given weights. The mean of a text whose weights are all zero is zero.
fn weighted_mean(x: &Array, weights: Array) -> Array {
    (x * &weights).sum(1) / weights.sum(1).maximum(1e-9)
}

/// The activation after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DenseActivation {
    Identity,
    Tanh,
    Relu,
    Gelu,
}

impl SentenceEncoder {
    /// Loads the encoder from a folder with a `modules.json`.
    ///
    /// Returns an error if a file is missing or damaged, and for unknown modules and pooling modes.
    #[track_caller]
    pub fn from_pretrained(folder: impl AsRef<Path>) -> Result<SentenceEncoder> {
        SentenceEncoder::from_pretrained_with(folder, &LoadOptions::new())
    }

    /// Loads the encoder from a folder, with options for dtypes and shardings.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, or if the configuration has a field that you cannot load
    /// here; the message names it.
    #[track_caller]
    pub fn from_pretrained_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<SentenceEncoder> {
        let location = std::panic::Location::caller();
        read(folder.as_ref(), options).map_err(|error| error.at(location))
    }

    /// Computes the vectors of texts, `[batch, features]`, from their tokens `[batch, length]`.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.encoder.encode(tokens, options);
        if x.check().is_err() {
            return x;
        }
        let mask =
            options.mask().map_or_else(|| ones_dtype(&x.shape()[..2], DType::Bool), |mask| mask.astype(DType::Bool));
        let mask = mask.expand_dims(-1);
        let pooled: Vec<Array> = self.pooling.iter().map(|pooling| pooling.pool(&x, &mask)).collect();
        let pooled = concatenate(&pooled, -1);
        let pooled = self.layers.iter().zip(&self.activations).fold(pooled, |x, (layer, activation)| {
            let y = layer.forward(x);
            match activation {
                DenseActivation::Identity => y,
                DenseActivation::Tanh => y.tanh(),
                DenseActivation::Relu => relu(y),
                DenseActivation::Gelu => gelu_exact(y),
            }
        });
        if !self.normalizes {
            return pooled;
        }
        let length = pooled.square().sum_keepdims(-1).sqrt();
        pooled / length.maximum(1e-12)
    }
}

fn read(folder: &Path, options: &LoadOptions) -> Result<SentenceEncoder> {
    let path = folder.join("modules.json");
    let modules: Vec<serde_json::Value> = serde_json::from_slice(&read_small(&path)?).map_err(|error| {
        value_error(
            format!("{} is not a list of modules: {error}", path.display()),
            "save the model again with `sentence-transformers`",
        )
    })?;
    let (mut encoder, mut pooling, mut normalizes) = (None, None, false);
    let (mut layers, mut activations) = (Vec::new(), Vec::new());
    for module in &modules {
        let [path_of_module, class] =
            ["path", "type"].map(|name| module.get(name).and_then(|value| value.as_str()).unwrap_or_default());
        let inside = folder.join(path_of_module);
        // The types are paths of Python classes, whose modules have been renamed between versions.
        match class.rsplit('.').next().unwrap_or_default() {
            "Transformer" => encoder = Some(read_encoder(&inside, options)?),
            "Pooling" => pooling = Some(read_pooling(&inside)?),
            "Dense" if pooling.is_some() && !normalizes => {
                let (layer, activation) = read_dense(&inside, options)?;
                layers.push(layer);
                activations.push(activation);
            }
            "Normalize" => normalizes = true,
            other => {
                let message =
                    format!("{} has the module {other:?}, which is not supported at this place", path.display());
                return Err(value_error(
                    message,
                    "use a model that consists of the modules Transformer, Pooling, Dense and Normalize",
                ));
            }
        }
    }
    match (encoder, pooling) {
        (Some(encoder), Some(pooling)) => Ok(SentenceEncoder { encoder, layers, activations, pooling, normalizes }),
        _ => {
            let message = format!("{} has no Transformer, or no Pooling", path.display());
            Err(value_error(message, "load only the encoder: `Bert::from_pretrained` or `ModernBert::from_pretrained`"))
        }
    }
}

/// Loads the encoder of the model type in the folder's configuration.
pub(super) fn read_encoder(folder: &Path, options: &LoadOptions) -> Result<TokenEncoder> {
    let config = options.config(folder)?;
    match config.get("model_type").and_then(|kind| kind.as_str()) {
        Some("modernbert") => Ok(TokenEncoder::ModernBert(pretrained(folder, options)?)),
        Some("deberta" | "deberta-v2") => Ok(TokenEncoder::Deberta(pretrained(folder, options)?)),
        Some(kind) if !super::bert_files::KNOWN.contains(&kind) && super::decoders::is_known(kind) => {
            // The encoder only computes features, so the files may omit the last layer.
            let config = config.with_flag("tie_word_embeddings", true);
            let (architecture, keys) = Decoder::read(&config)?;
            let keys = keys.without_copies("lm_head.weight").ignore("score.weight").prefix_alias("model.", "");
            Ok(TokenEncoder::Decoder(filled::<Decoder>(folder, &config, (architecture, &keys), options)?))
        }
        _ => Ok(TokenEncoder::Bert(pretrained(folder, options)?)),
    }
}

/// Loads a linear layer and the activation after it.
fn read_dense(folder: &Path, options: &LoadOptions) -> Result<(Linear, DenseActivation)> {
    let config = Config::open(folder)?;
    let fields = config.fields();
    let (from, to) = (fields.size("in_features")?, fields.size("out_features")?);
    let has_bias = fields.flag_or("bias", true)?;
    // The field contains the path of a PyTorch class.
    let name = fields.text_opt("activation_function")?.unwrap_or("Tanh");
    let activation = match name.rsplit('.').next().unwrap_or_default() {
        "Tanh" => DenseActivation::Tanh,
        "Identity" => DenseActivation::Identity,
        "ReLU" => DenseActivation::Relu,
        "GELU" => DenseActivation::Gelu,
        _ => return Err(fields.error(format!("the activation function {name:?} is not supported"))),
    };
    fields.finish_but_empty()?;
    let weights = Weights::open(folder)?;
    if weights.elements() < from as u128 * to as u128 {
        return Err(fields.error(format!("a layer of {from} by {to} does not fit in its file")));
    }
    let mut rngs = Rngs::new(0).with_policy(options.policy);
    let like = Linear::builder(from, to).use_bias(has_bias).build(&mut rngs);
    let keys = KeyMap::new().array("kernel", "linear.weight", Layout::Transposed);
    let layer = load(&weights, &like, &keys.array("bias", "linear.bias", Layout::Same), &options.rules)?;
    Ok((layer, activation))
}

/// Reads the modes of a pooling module.
fn read_pooling(folder: &Path) -> Result<Vec<Pooling>> {
    let config = Config::open(folder)?;
    let fields = config.fields();
    // New files list the names of the modes, and old files have a flag for each mode.
    let named: Vec<&str> = match fields.value("pooling_mode") {
        Some(serde_json::Value::String(name)) => vec![name],
        Some(serde_json::Value::Array(names)) => names.iter().filter_map(|name| name.as_str()).collect(),
        _ => Vec::new(),
    };
    if let Some(other) = named.iter().find(|name| !MODES.iter().any(|(_, mode, _)| mode == *name)) {
        return Err(fields.error(format!("the pooling mode {other:?} is not supported")));
    }
    let mut modes = Vec::new();
    for (flag, name, mode) in MODES {
        if fields.flag(flag)? || named.contains(&name) {
            modes.push(mode);
        }
    }
    // By default, the tokens of the prompt are pooled too.
    fields.skip(&["word_embedding_dimension", "embedding_dimension"]);
    if fields.flag_or("include_prompt", true)? {
        fields.finish_but_empty()?;
    }
    if modes.is_empty() { Err(fields.error("no supported pooling mode is set")) } else { Ok(modes) }
}
