//! Text generation with a decoder.

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::sampling::{self, Controls, Form, NOT_A_TOKEN, Text};
use crate::{Decoder, Packed};

/// Options for text generation. By default, the next token is the most likely one. If you set a
/// [`temperature`](GenerateOptions::temperature), it is sampled.
///
/// ```
/// use shardax_models::GenerateOptions;
/// let options = GenerateOptions::new(100).temperature(0.8).top_k(50).top_p(0.95).seed(1).stop_tokens([2]);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    pub(crate) max_new_tokens: usize,
    pub(crate) min_new_tokens: usize,
    pub(crate) temperature: f64,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: f64,
    pub(crate) presence_penalty: f64,
    pub(crate) frequency_penalty: f64,
    pub(crate) no_repeat_ngram: Option<usize>,
    pub(crate) logit_bias: Vec<(i32, f32)>,
    pub(crate) stop_tokens: Vec<i32>,
    pub(crate) seed: u32,
}

impl GenerateOptions {
    /// Options for greedy decoding of at most `max_new_tokens` tokens.
    pub fn new(max_new_tokens: usize) -> Self {
        GenerateOptions {
            max_new_tokens,
            min_new_tokens: 0,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            no_repeat_ngram: None,
            logit_bias: Vec::new(),
            stop_tokens: Vec::new(),
            seed: 0,
        }
    }

    /// Samples from the softmax of the logits divided by `temperature`. With a temperature of 0, the default, the most
    /// likely token is chosen.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Samples only from the `k` most likely tokens.
    pub fn top_k(mut self, k: usize) -> Self {
        self.top_k = Some(k);
        self
    }

    /// Samples only from the smallest set of most likely tokens whose probabilities sum to at least `p` (nucleus
    /// sampling).
    pub fn top_p(mut self, p: f64) -> Self {
        self.top_p = Some(p);
        self
    }

    /// Samples only from tokens that are at least `p` times as likely as the most likely token.
    pub fn min_p(mut self, p: f64) -> Self {
        self.min_p = Some(p);
        self
    }

    /// Makes tokens that occur in the prompt or the new text less likely: positive logits are divided by `penalty`,
    /// negative logits are multiplied by it. Default 1.
    pub fn repetition_penalty(mut self, penalty: f64) -> Self {
        self.repetition_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of each token that occurs in the new text. Default 0.
    pub fn presence_penalty(mut self, penalty: f64) -> Self {
        self.presence_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of a token once for each occurrence in the new text. Default 0.
    pub fn frequency_penalty(mut self, penalty: f64) -> Self {
        self.frequency_penalty = penalty;
        self
    }

    /// Prevents any sequence of `length` tokens from occurring twice.
    pub fn no_repeat_ngram(mut self, length: usize) -> Self {
        self.no_repeat_ngram = Some(length);
        self
    }

    /// Adds a term to the logit of each of these tokens. Negative infinity excludes a token.
    pub fn logit_bias(mut self, terms: impl IntoIterator<Item = (i32, f32)>) -> Self {
        self.logit_bias.extend(terms);
        self
    }

    /// Excludes the stop tokens until the text has this many new tokens. Default 0.
    pub fn min_new_tokens(mut self, min_new_tokens: usize) -> Self {
        self.min_new_tokens = min_new_tokens;
        self
    }

    /// Sets the maximal number of new tokens.
    pub fn max_new_tokens(mut self, max_new_tokens: usize) -> Self {
        self.max_new_tokens = max_new_tokens;
        self
    }

    /// Ends a text after any of these tokens. The stop token is part of the result.
    pub fn stop_tokens(mut self, tokens: impl IntoIterator<Item = i32>) -> Self {
        self.stop_tokens = tokens.into_iter().collect();
        self
    }

    /// Sets the seed for sampling. Default 0.
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = seed;
        self
    }

    /// Returns an error if an option is out of range. The options are operands of a compiled program, which could not
    /// report an invalid value and would compute NaN instead.
    pub(crate) fn check(&self) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(value_error(
                format!("the temperature is {}", self.temperature),
                "pass a finite temperature of at least 0",
            ));
        }
        // A filter that excludes every token would leave nothing to sample from.
        if self.top_k == Some(0) {
            return Err(value_error("top_k is 0, which excludes every token", "pass a top_k of at least 1"));
        }
        if self.no_repeat_ngram == Some(0) {
            return Err(value_error(
                "no_repeat_ngram is 0, which excludes every token",
                "pass a no_repeat_ngram of at least 1",
            ));
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return Err(value_error(
                format!("the repetition penalty is {}", self.repetition_penalty),
                "pass a finite, positive penalty; a penalty of 1 has no effect",
            ));
        }
        for (name, penalty) in [("presence", self.presence_penalty), ("frequency", self.frequency_penalty)] {
            if !penalty.is_finite() {
                let help = "pass a finite penalty; a penalty of 0 has no effect";
                return Err(value_error(format!("the {name} penalty is {penalty}"), help));
            }
        }
        if let Some((token, term)) = self.logit_bias.iter().find(|(_, term)| term.is_nan() || *term == f32::INFINITY) {
            let message = format!("the logit bias of token {token} is {term}");
            return Err(value_error(message, "pass a finite term, or negative infinity to exclude the token"));
        }
        if let Some(p) = self.min_p.filter(|p| !(0.0..=1.0).contains(p)) {
            return Err(value_error(format!("min_p is {p}"), "pass a probability from 0 to 1"));
        }
        if let Some(p) = self.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return Err(value_error(format!("top_p is {p}"), "pass a probability above 0 and at most 1"));
        }
        Ok(())
    }
}

/// An iterator over the next tokens of a batch of texts. The token of a text that has ended is `None`.
///
/// ```
/// use shardax_models::{Decoder, DecoderConfig, GenerateOptions};
/// use shardax_nn::prelude::*;
/// let model = Decoder::new(&DecoderConfig::new(64, 1, 16, 4), &mut Rngs::new(0))?;
/// for tokens in model.stream(&[vec![1, 2, 3], vec![4]], &GenerateOptions::new(3))? {
///     for (text, token) in tokens?.into_iter().enumerate() {
///         println!("text {text} continues with {token:?}");
///     }
/// }
/// # Ok::<(), shardax::Error>(())
/// ```
pub struct Generation<'a, M = Decoder> {
    model: &'a M,
    /// The keys and values of the tokens that the model has processed; `None` before the first step.
    cache: Option<ModuleState>,
    /// The tokens that the model has not processed yet, `[batch, length]`.
    tokens: Array,
    /// The number of padding tokens before each prompt, `[batch]`.
    padding: Array,
    key: Array,
    prompts: Vec<Vec<i32>>,
    /// The new tokens of each text.
    texts: Vec<Vec<i32>>,
    options: GenerateOptions,
    vocabulary: usize,
    /// The number of positions in the cache.
    room: usize,
    /// The largest length of texts with the first frequencies of rotary positions.
    rope_limit: Option<usize>,
    ended: Vec<bool>,
    /// The number of steps until every text has the maximal number of new tokens.
    remaining: usize,
}

/// A model that can generate text: a [`Decoder`], or a [`Packed`] decoder with quantized weights.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model that generates text",
    label = "not a decoder",
    note = "`Decoder` and `Packed` generate text"
)]
pub trait TextModel: Module {
    /// Converts the model to a decoder. This is called while a program is traced, so a quantized model should unpack
    /// its weights here.
    fn decoder(self) -> Result<Decoder>;
}

impl TextModel for Decoder {
    fn decoder(self) -> Result<Decoder> {
        Ok(self)
    }
}

impl TextModel for Packed<Decoder> {
    fn decoder(self) -> Result<Decoder> {
        self.unpack()
    }
}

impl Packed<Decoder> {
    /// Continues each prompt and returns its new tokens, like [`Decoder::generate`].
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Decoder::generate`].
    #[track_caller]
    pub fn generate(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        generate_all(self, prompts, options).map_err(|error| error.at(location))
    }

    /// Continues each prompt. Returns an iterator over the next tokens of all texts.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Decoder::generate`]. An error of a later token ends the iterator.
    #[track_caller]
    pub fn stream(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Generation<'_, Packed<Decoder>>> {
        let location = std::panic::Location::caller();
        start(self, prompts, options).map_err(|error| error.at(location))
    }
}

/// Runs a generation to its end and collects the new tokens of each text.
fn generate_all<M: TextModel>(model: &M, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
    let mut texts = vec![Vec::new(); prompts.len()];
    for tokens in start(model, prompts, options)? {
        texts.iter_mut().zip(tokens?).for_each(|(text, token)| text.extend(token));
    }
    Ok(texts)
}

impl Decoder {
    /// Continues each prompt and returns its new tokens. You can pass prompts of different lengths; the result for a
    /// prompt does not depend on the other prompts.
    ///
    /// # Errors
    /// Returns an error if a prompt is empty or has a token that is not in the vocabulary, if an option is out of
    /// range, or if a text would need more positions than the model has.
    #[track_caller]
    pub fn generate(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        generate_all(self, prompts, options).map_err(|error| error.at(location))
    }

    /// Continues each prompt. Returns an iterator over the next tokens of all texts.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`generate`](Decoder::generate). An error of a later token ends the
    /// iterator.
    #[track_caller]
    pub fn stream(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Generation<'_>> {
        let location = std::panic::Location::caller();
        start(self, prompts, options).map_err(|error| error.at(location))
    }
}

fn start<'a, M: TextModel>(model: &'a M, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Generation<'a, M>> {
    options.check()?;
    let shapes = eval_shape(|model: M| model.decoder(), model)?;
    if shapes.is_bidirectional {
        let message = "positions of this model attend to later positions, so it cannot continue a text";
        return Err(value_error(
            message,
            "load a model that generates text, or compute features with `SentenceEncoder`",
        ));
    }
    if let Some(index) = prompts.iter().position(Vec::is_empty) {
        let help = "pass at least one token, for example the model's start-of-text token";
        return Err(value_error(format!("prompt {index} is empty"), help));
    }
    let vocabulary = shapes.embed.embedding.shape().first().copied().unwrap_or(0);
    let mut tokens = prompts.iter().flatten();
    if let Some(token) = tokens.find(|token| !usize::try_from(**token).is_ok_and(|token| token < vocabulary)) {
        let message =
            format!("a prompt has the token {token}, but the vocabulary of the model has {vocabulary} tokens");
        return Err(value_error(message, "encode the prompt with the model's own tokenizer"));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = longest.checked_add(options.max_new_tokens).filter(|room| i32::try_from(*room).is_ok());
    let positions = shapes.max_positions();
    let Some(room) = room.filter(|room| positions.is_none_or(|positions| *room <= positions.saturating_add(1))) else {
        let limit = positions.unwrap_or(i32::MAX as usize);
        let message = format!(
            "a prompt of {longest} tokens and {} new tokens do not fit in the model's {limit} positions",
            options.max_new_tokens
        );
        return Err(value_error(message, "pass a shorter prompt or a smaller `max_new_tokens`"));
    };
    // Prompts are padded on the left, so that all texts continue at the same position of the cache.
    let batch = prompts.len();
    let tokens = padded(prompts, &vec![Vec::new(); batch])?;
    let padding = Array::from_vec(prompts.iter().map(|prompt| (longest - prompt.len()) as i32).collect(), &[batch])?;
    Ok(Generation {
        model,
        cache: None,
        tokens,
        padding,
        key: random::key(options.seed),
        prompts: prompts.to_vec(),
        texts: vec![Vec::new(); batch],
        options: options.clone(),
        vocabulary,
        room,
        rope_limit: shapes.rope_limit,
        ended: vec![false; batch],
        remaining: if batch == 0 { 0 } else { options.max_new_tokens },
    })
}

/// Returns the tokens of all texts, `[batch, length]`. Each prompt is padded on the left, and each text has as many new tokens.
fn padded(prompts: &[Vec<i32>], texts: &[Vec<i32>]) -> Result<Array> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let length = longest + texts.first().map_or(0, Vec::len);
    let rows = prompts.iter().zip(texts).flat_map(|(prompt, new)| {
        let padding = std::iter::repeat_n(0, longest - prompt.len());
        padding.chain(prompt.iter().chain(new).copied())
    });
    Array::from_vec(rows.collect(), &[prompts.len(), length])
}

impl<M: TextModel> Iterator for Generation<'_, M> {
    type Item = Result<Vec<Option<i32>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 || self.ended.iter().all(|ended| *ended) {
            return None;
        }
        self.remaining -= 1;
        let token = self.advance();
        if token.is_err() {
            self.remaining = 0;
        }
        Some(token)
    }
}

impl<M: TextModel> Generation<'_, M> {
    fn advance(&mut self) -> Result<Vec<Option<i32>>> {
        if self.cache.is_some() && self.exceeds_rope_limit() {
            // The cached keys have other frequencies than the next ones. transformers starts again for Phi-3 too.
            self.cache = None;
            self.tokens = padded(&self.prompts, &self.texts)?;
        }
        let texts: Vec<Text<'_>> = (self.prompts.iter().zip(&self.texts))
            .map(|(prompt, new)| Text { prompt, new, options: &self.options })
            .collect();
        let (form, controls) = sampling::controls(&texts, self.vocabulary, self.room)?;
        let arguments = (self.model, self.cache.take(), &self.tokens, &self.padding, &self.key, controls, Static(form));
        let cache;
        (cache, self.tokens, self.key) = jit(step::<M>).donate_argnums([1]).call(arguments)?;
        self.cache = Some(cache);
        let drawn: Vec<i32> = self.tokens.to_vec()?;
        if let Some(text) = drawn.iter().zip(&self.ended).position(|(token, ended)| *token == NOT_A_TOKEN && !*ended) {
            return Err(sampling::no_token_error(text));
        }
        let mut tokens = Vec::with_capacity(drawn.len());
        for ((token, ended), text) in drawn.into_iter().zip(&mut self.ended).zip(&mut self.texts) {
            tokens.push((!*ended).then_some(token));
            text.push(token);
            *ended |= self.options.stop_tokens.contains(&token);
        }
        Ok(tokens)
    }

    /// Returns `true` if the last token made a text longer than the limit of the first frequencies.
    fn exceeds_rope_limit(&self) -> bool {
        let Some(limit) = self.rope_limit else { return false };
        let mut texts = self.prompts.iter().zip(&self.texts).zip(&self.ended);
        texts.any(|((prompt, new), ended)| !ended && prompt.len() + new.len() == limit + 1)
    }
}

/// Computes the next token of each text, `[batch, 1]`. Also returns the cache, extended by `tokens`, and the next random key.
/// Without a cache, the tokens are the prompts.
fn step<M: TextModel>(
    model: M,
    cache: Option<ModuleState>,
    tokens: Array,
    padding: Array,
    key: Array,
    controls: Controls,
    form: Static<Form>,
) -> Result<(ModuleState, Array, Array)> {
    let room = form.0.room;
    let mut model = model.decoder()?;
    let (batch, length) = (tokens.shape()[0], tokens.shape()[1]);
    model.init_cache(batch, room);
    if let Some(cache) = &cache {
        model.update(cache)?;
    }
    let padding = padding.expand_dims(1);
    let cache_positions = model.cached() + arange(0..length as i32);
    let positions = maximum(cache_positions - &padding, 0);
    // The mask excludes the padding; its shape is `[batch, heads, queries, keys]`.
    let mask = arange(0..room as i32).greater_equal(padding).expand_dims(1).expand_dims(1);
    let logits = model.decode_last(tokens, &positions, &mask).astype(DType::F32);
    let cache = model.state_of(Filter::of::<Cache>());
    let [step_key, key] = random::split_n(&key);
    let tokens =
        sampling::draw(&logits, &controls, form.0, || random::gumbel_dtype(step_key, logits.shape(), DType::F32));
    Ok((cache, tokens.expand_dims(1), key))
}
