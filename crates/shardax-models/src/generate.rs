//! Continuing texts with a decoder.

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::sampling::{self, Controls, Form, NOT_A_TOKEN, Text};
use crate::{Decoder, Packed};

/// Options for continuing texts. By default the next token is the likeliest one; with a temperature it is a sample.
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
    /// Greedy decoding of at most this many tokens.
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

    /// Samples from the softmax of the logits divided by `temperature`; 0 takes the likeliest token.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Samples from the `k` likeliest tokens alone.
    pub fn top_k(mut self, k: usize) -> Self {
        self.top_k = Some(k);
        self
    }

    /// Samples from the likeliest tokens alone: the fewest whose probabilities sum to `p`.
    pub fn top_p(mut self, p: f64) -> Self {
        self.top_p = Some(p);
        self
    }

    /// Samples only from tokens that are at least `p` times as likely as the likeliest one.
    pub fn min_p(mut self, p: f64) -> Self {
        self.min_p = Some(p);
        self
    }

    /// Divides the positive logits of tokens that the prompt or the text has by `penalty`, and multiplies the negative ones. Default 1.
    pub fn repetition_penalty(mut self, penalty: f64) -> Self {
        self.repetition_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logits of tokens that the new text has. Default 0.
    pub fn presence_penalty(mut self, penalty: f64) -> Self {
        self.presence_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of a token for each time that the new text has it. Default 0.
    pub fn frequency_penalty(mut self, penalty: f64) -> Self {
        self.frequency_penalty = penalty;
        self
    }

    /// Never writes the same `length` tokens in a row twice.
    pub fn no_repeat_ngram(mut self, length: usize) -> Self {
        self.no_repeat_ngram = Some(length);
        self
    }

    /// Adds terms to the logits of tokens; negative infinity excludes one.
    pub fn logit_bias(mut self, terms: impl IntoIterator<Item = (i32, f32)>) -> Self {
        self.logit_bias.extend(terms);
        self
    }

    /// Writes at least this many tokens before a stop token. Default 0.
    pub fn min_new_tokens(mut self, min_new_tokens: usize) -> Self {
        self.min_new_tokens = min_new_tokens;
        self
    }

    /// Writes at most this many tokens.
    pub fn max_new_tokens(mut self, max_new_tokens: usize) -> Self {
        self.max_new_tokens = max_new_tokens;
        self
    }

    /// Ends a text after any of these tokens, which is its last one.
    pub fn stop_tokens(mut self, tokens: impl IntoIterator<Item = i32>) -> Self {
        self.stop_tokens = tokens.into_iter().collect();
        self
    }

    /// The seed of sampling. Default 0.
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = seed;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        // These numbers become operands of a compiled program, where they could only give NaN.
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(value_error(
                format!("the temperature is {}", self.temperature),
                "pass a finite number of at least 0",
            ));
        }
        if self.top_k == Some(0) {
            return Err(value_error("top_k is 0, which leaves no token".to_owned(), "pass at least 1"));
        }
        if self.no_repeat_ngram == Some(0) {
            return Err(value_error("no_repeat_ngram is 0, which leaves no token".to_owned(), "pass at least 1"));
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return Err(value_error(
                format!("the repetition penalty is {}", self.repetition_penalty),
                "pass a positive number",
            ));
        }
        if let Some(penalty) =
            [self.presence_penalty, self.frequency_penalty].iter().find(|penalty| !penalty.is_finite())
        {
            return Err(value_error(format!("a penalty is {penalty}"), "pass a finite number"));
        }
        if let Some(p) = self.min_p.filter(|p| !(0.0..=1.0).contains(p)) {
            return Err(value_error(format!("min_p is {p}"), "pass a probability from 0 to 1"));
        }
        if let Some(p) = self.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return Err(value_error(format!("top_p is {p}"), "pass a probability above 0, at most 1"));
        }
        Ok(())
    }
}

/// The texts of a batch as they grow: an iterator over their next tokens, `None` for a text that has ended.
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
    /// The keys and values of the tokens so far, placed as the first step places them.
    cache: Option<ModuleState>,
    /// The tokens that the model has not seen, `[batch, length]`.
    tokens: Array,
    /// The places before each prompt, `[batch]`: shorter prompts begin later.
    padding: Array,
    key: Array,
    prompts: Vec<Vec<i32>>,
    /// The new tokens of each text.
    texts: Vec<Vec<i32>>,
    options: GenerateOptions,
    vocabulary: usize,
    /// Tokens that the cache has room for.
    room: usize,
    ended: Vec<bool>,
    left: usize,
}

/// A model that continues texts: a [`Decoder`], or one whose weights are in few bits.
pub trait TextModel: Module {
    /// Returns the decoder, within a program.
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
    /// Continues each of these texts, as [`Decoder::generate`] does.
    #[track_caller]
    pub fn generate(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        all(self, prompts, options).map_err(|error| error.at(location))
    }

    /// Continues each of these texts, as an iterator over their next tokens.
    #[track_caller]
    pub fn stream(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Generation<'_, Packed<Decoder>>> {
        let location = std::panic::Location::caller();
        start(self, prompts, options).map_err(|error| error.at(location))
    }
}

/// The new tokens of each text.
fn all<M: TextModel>(model: &M, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
    let mut texts = vec![Vec::new(); prompts.len()];
    for tokens in start(model, prompts, options)? {
        texts.iter_mut().zip(tokens?).for_each(|(text, token)| text.extend(token));
    }
    Ok(texts)
}

impl Decoder {
    /// Continues each of these texts as if it were alone, and returns the new tokens of each.
    ///
    /// The prompt must not be empty, options must be in range, and the text must fit in a table of positions.
    #[track_caller]
    pub fn generate(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        all(self, prompts, options).map_err(|error| error.at(location))
    }

    /// Continues each of these texts, as an iterator over their next tokens.
    #[track_caller]
    pub fn stream(&self, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Generation<'_>> {
        let location = std::panic::Location::caller();
        start(self, prompts, options).map_err(|error| error.at(location))
    }
}

fn start<'a, M: TextModel>(model: &'a M, prompts: &[Vec<i32>], options: &GenerateOptions) -> Result<Generation<'a, M>> {
    options.check()?;
    let shapes = eval_shape(|model: M| model.decoder(), model)?;
    if let Some(at) = prompts.iter().position(Vec::is_empty) {
        return Err(value_error(format!("prompt {at} is empty"), "begin with the token that starts texts"));
    }
    let vocabulary = shapes.embed.embedding.shape().first().copied().unwrap_or(0);
    let mut tokens = prompts.iter().flatten();
    if let Some(token) = tokens.find(|token| !usize::try_from(**token).is_ok_and(|token| token < vocabulary)) {
        let message = format!("a prompt has the token {token}, and the model knows {vocabulary} tokens");
        return Err(value_error(message, "encode the prompt with the model's own tokenizer"));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = longest.checked_add(options.max_new_tokens).filter(|room| i32::try_from(*room).is_ok());
    let positions = shapes.max_positions();
    let Some(room) = room.filter(|room| positions.is_none_or(|positions| *room <= positions.saturating_add(1))) else {
        let message = format!("texts of {longest} and {} tokens are too long", options.max_new_tokens);
        let most = positions.map_or(i32::MAX as usize, |positions| positions);
        return Err(value_error(message, format!("ask for fewer tokens: the model has {most} positions")));
    };
    // Prompts are padded on the left, so that all texts continue at the same position of the cache.
    let batch = prompts.len();
    let padded = prompts.iter().flat_map(|prompt| std::iter::repeat_n(&0, longest - prompt.len()).chain(prompt));
    let tokens = Array::from_vec(padded.copied().collect(), &[batch, longest])?;
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
        ended: vec![false; batch],
        left: if batch == 0 { 0 } else { options.max_new_tokens },
    })
}

impl<M: TextModel> Iterator for Generation<'_, M> {
    type Item = Result<Vec<Option<i32>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 || self.ended.iter().all(|ended| *ended) {
            return None;
        }
        self.left -= 1;
        let token = self.advance();
        if token.is_err() {
            self.left = 0;
        }
        Some(token)
    }
}

impl<M: TextModel> Generation<'_, M> {
    fn advance(&mut self) -> Result<Vec<Option<i32>>> {
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
            let message = format!("the model's logits for text {text} are NaN");
            return Err(value_error(message, "look for NaN in the model's weights"));
        }
        let mut tokens = Vec::with_capacity(drawn.len());
        for ((token, ended), text) in drawn.into_iter().zip(&mut self.ended).zip(&mut self.texts) {
            tokens.push((!*ended).then_some(token));
            text.push(token);
            *ended |= self.options.stop_tokens.contains(&token);
        }
        Ok(tokens)
    }
}

/// The next token of each text, `[batch, 1]`, and the cache with the given ones; without a cache they are the first.
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
    let places = model.cached() + arange(0..length as i32);
    let positions = maximum(places - &padding, 0);
    // `[batch, heads, queries, keys]`
    let mask = arange(0..room as i32).greater_equal(padding).expand_dims(1).expand_dims(1);
    let logits = model.decode_last(tokens, &positions, &mask).astype(DType::F32);
    let cache = model.state_of(Filter::of::<Cache>());
    let [now, key] = random::split_n(&key);
    let tokens = sampling::draw(&logits, &controls, form.0, || random::gumbel_dtype(now, logits.shape(), DType::F32));
    Ok((cache, tokens.expand_dims(1), key))
}
