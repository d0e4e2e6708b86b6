//! The folders of `sentence-transformers`: an encoder, pooling and normalization.

use std::path::Path;

use shardax_nn::prelude::*;

use super::{Bert, BertOptions, Config, LoadOptions, ModernBert, pretrained};
use crate::error::{read_small, value_error};
use crate::ranks::allow_any_ranks;

/// An encoder whose features of tokens are pooled to one vector of a text, as `sentence-transformers` saves it.
#[derive(Module, Clone, Debug)]
pub struct SentenceEncoder {
    /// The encoder of tokens.
    pub encoder: TokenEncoder,
    #[tree(static)]
    pooling: Pooling,
    normalizes: bool,
}

/// The encoder of a [`SentenceEncoder`].
#[derive(Module, Clone, Debug)]
// There is one of them in a model.
#[allow(clippy::large_enum_variant)]
pub enum TokenEncoder {
    /// BERT, or an encoder with its blocks.
    Bert(Bert),
    /// ModernBERT.
    ModernBert(ModernBert),
}

impl TokenEncoder {
    /// The encoding of each token of `[batch, length]`: `[batch, length, features]`.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        match self {
            TokenEncoder::Bert(encoder) => encoder.encode(tokens, options),
            TokenEncoder::ModernBert(encoder) => encoder.encode(tokens, options),
        }
    }
}

/// The vector of a text from the features of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pooling {
    First,
    Mean,
    Max,
}

/// The modes of a pooling module that are known.
const MODES: [(&str, Pooling); 3] = [
    ("pooling_mode_cls_token", Pooling::First),
    ("pooling_mode_mean_tokens", Pooling::Mean),
    ("pooling_mode_max_tokens", Pooling::Max),
];

impl SentenceEncoder {
    /// The encoder in a folder with a `modules.json`.
    ///
    /// Fails when a file is missing or damaged, and for modules and modes of pooling that are not known.
    #[track_caller]
    pub fn from_pretrained(folder: impl AsRef<Path>) -> Result<SentenceEncoder> {
        SentenceEncoder::from_pretrained_with(folder, &LoadOptions::new())
    }

    /// Loads the encoder in a folder with the given dtypes and shardings.
    #[track_caller]
    pub fn from_pretrained_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<SentenceEncoder> {
        let location = std::panic::Location::caller();
        read(folder.as_ref(), options).map_err(|error| error.at(location))
    }

    /// The vectors of texts, `[batch, features]`, of their tokens `[batch, length]`.
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
        let pooled = match self.pooling {
            Pooling::First => x.get((.., 0)),
            Pooling::Max => where_(&mask, &x, f64::NEG_INFINITY).max(1),
            Pooling::Mean => {
                let weights = mask.astype(x.dtype());
                (&x * &weights).sum(1) / weights.sum(1).maximum(1e-9)
            }
        };
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
        value_error(format!("{} is not a list of modules: {error}", path.display()), "save it again")
    })?;
    let (mut encoder, mut pooling, mut normalizes) = (None, None, false);
    for module in &modules {
        let text = |name: &str| module.get(name).and_then(|value| value.as_str()).unwrap_or_default();
        let inside = folder.join(text("path"));
        // Types are paths of Python classes, whose modules were renamed between versions.
        match text("type").rsplit('.').next().unwrap_or_default() {
            "Transformer" => encoder = Some(read_encoder(&inside, options)?),
            "Pooling" => pooling = Some(read_pooling(&inside)?),
            "Normalize" => normalizes = true,
            other => {
                let message = format!("{} has the module {other:?}, which is not known", path.display());
                return Err(value_error(message, "use a model of a Transformer, Pooling and Normalize"));
            }
        }
    }
    match (encoder, pooling) {
        (Some(encoder), Some(pooling)) => Ok(SentenceEncoder { encoder, pooling, normalizes }),
        _ => {
            let message = format!("{} has no Transformer, or no Pooling", path.display());
            Err(value_error(message, "load only the encoder: `Bert::from_pretrained` or `ModernBert::from_pretrained`"))
        }
    }
}

/// The encoder of the type that the folder's configuration names.
fn read_encoder(folder: &Path, options: &LoadOptions) -> Result<TokenEncoder> {
    match Config::open(folder)?.get("model_type").and_then(|kind| kind.as_str()) {
        Some("modernbert") => Ok(TokenEncoder::ModernBert(pretrained(folder, options)?)),
        _ => Ok(TokenEncoder::Bert(pretrained(folder, options)?)),
    }
}

/// The only mode of a pooling module.
fn read_pooling(folder: &Path) -> Result<Pooling> {
    let config = Config::open(folder)?;
    let fields = config.fields();
    let mut modes = Vec::new();
    for (name, mode) in MODES {
        if fields.flag(name)? {
            modes.push(mode);
        }
    }
    // The prompt counts as text, as by default.
    fields.skip(&["word_embedding_dimension", "embedding_dimension"]);
    if fields.flag_or("include_prompt", true)? {
        fields.finish_but_empty()?;
    }
    match modes[..] {
        [mode] => Ok(mode),
        _ => Err(fields.error(format!("{} modes of pooling that are known are set", modes.len()))),
    }
}
