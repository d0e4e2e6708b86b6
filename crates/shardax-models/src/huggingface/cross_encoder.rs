//! Cross-encoders of `sentence-transformers`, which score pairs of texts.

use std::path::Path;

use shardax_nn::prelude::*;

use super::sentence::{Pooling, TokenEncoder, read_encoder};
use super::{BertOptions, Config, KeyMap, Layout, LoadOptions, Weights, load};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// A model that scores a pair of texts, such as a question and an answer (a reranker).
///
/// The tokens of a pair are one text, which the tokenizer of the model makes. The model is an encoder, or a decoder whose
/// `architectures` names a class for sequences (`Qwen3ForSequenceClassification`), with any number of labels.
#[derive(Module, Clone, Debug)]
pub struct CrossEncoder {
    /// The encoder, with its head for classes of texts unless it is a decoder.
    pub encoder: TokenEncoder,
    /// The last layer of a decoder.
    pub score: Option<Linear>,
    #[tree(static)]
    activation: ScoreActivation,
}

/// The function of the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ScoreActivation {
    Identity,
    Sigmoid,
    Tanh,
}

impl CrossEncoder {
    /// Loads the model from a folder.
    ///
    /// Returns an error if a file is missing or damaged, if the model has no head for classes of texts, and for unknown
    /// activation functions.
    #[track_caller]
    pub fn from_pretrained(folder: impl AsRef<Path>) -> Result<CrossEncoder> {
        CrossEncoder::from_pretrained_with(folder, &LoadOptions::new())
    }

    /// Loads the model from a folder, with options for dtypes and shardings.
    #[track_caller]
    pub fn from_pretrained_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<CrossEncoder> {
        let location = std::panic::Location::caller();
        read(folder.as_ref(), options).map_err(|error| error.at(location))
    }

    /// Computes the scores of pairs, `[batch, labels]`, from their tokens `[batch, length]`. A model with one label returns the
    /// sigmoid of its logit, unless the configuration names another activation function.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let logits = self.logits(tokens, options);
        match self.activation {
            ScoreActivation::Identity => logits,
            ScoreActivation::Sigmoid => sigmoid(logits),
            ScoreActivation::Tanh => logits.tanh(),
        }
    }

    /// Computes the logits of pairs, `[batch, labels]`.
    #[track_caller]
    pub fn logits(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let Some(score) = &self.score else { return self.encoder.forward(tokens, options) };
        let x = self.encoder.encode(tokens, options);
        if x.check().is_err() {
            return x;
        }
        let mask =
            options.mask().map_or_else(|| ones_dtype(&x.shape()[..2], DType::Bool), |mask| mask.astype(DType::Bool));
        score.forward(Pooling::Last.pool(&x, &mask.expand_dims(-1)))
    }
}

fn read(folder: &Path, options: &LoadOptions) -> Result<CrossEncoder> {
    let config = options.config(folder)?;
    let fields = config.fields();
    let class = fields.class()?.unwrap_or_default();
    if !class.ends_with("ForSequenceClassification") {
        return Err(value_error(
            format!("{} is no cross-encoder: `architectures` names {class:?}", folder.display()),
            "use a model whose class ends with ForSequenceClassification",
        ));
    }
    let labels = fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2);
    let activation = activation(&config, labels)?;
    let encoder = read_encoder(folder, options)?;
    let score = match &encoder {
        TokenEncoder::Decoder(_) => Some(read_score(folder, fields.size("hidden_size")?, labels, options)?),
        _ => None,
    };
    Ok(CrossEncoder { encoder, score, activation })
}

/// Loads the last layer of a decoder for sequences.
fn read_score(folder: &Path, features: usize, labels: usize, options: &LoadOptions) -> Result<Linear> {
    let weights = Weights::open(folder)?;
    if weights.shape("score.weight") != Some(&[labels, features]) {
        let shape = weights.shape("score.weight");
        return Err(value_error(
            format!("the array \"score.weight\" has the shape {shape:?}, but should have {labels} rows of {features}"),
            "check that `config.json` belongs to the files",
        ));
    }
    let mut rngs = Rngs::new(0).with_policy(options.policy);
    let like = Linear::builder(features, labels).use_bias(false).build(&mut rngs);
    load(&weights, &like, &KeyMap::new().array("kernel", "score.weight", Layout::Transposed), &options.rules)
}

/// Reads the function of the scores. Versions of `sentence-transformers` store the path of a PyTorch class in different fields.
fn activation(config: &Config, labels: usize) -> Result<ScoreActivation> {
    let fields = config.fields();
    let object = fields.object_opt("sentence_transformers")?;
    let newer = object.as_ref().map(|object| object.text_opt("activation_fn")).transpose()?.flatten();
    let name = match newer {
        Some(name) => Some(name),
        None => fields.text_opt("sbert_ce_default_activation_function")?,
    };
    Ok(match name.map(|name| name.rsplit('.').next().unwrap_or_default()) {
        None if labels == 1 => ScoreActivation::Sigmoid,
        None | Some("Identity") => ScoreActivation::Identity,
        Some("Sigmoid") => ScoreActivation::Sigmoid,
        Some("Tanh") => ScoreActivation::Tanh,
        Some(other) => return Err(fields.error(format!("the activation function {other:?} is not supported"))),
    })
}
