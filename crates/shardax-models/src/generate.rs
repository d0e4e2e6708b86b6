//! Continuing texts with a decoder.

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
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
    max_new_tokens: usize,
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    stop_tokens: Vec<i32>,
    seed: u32,
}

impl GenerateOptions {
    /// Greedy decoding of at most this many tokens.
    pub fn new(max_new_tokens: usize) -> Self {
        GenerateOptions { max_new_tokens, temperature: 0.0, top_k: None, top_p: None, stop_tokens: Vec::new(), seed: 0 }
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

    fn check(&self) -> Result<()> {
        let fail = |what: String, help: &str| Err(value_error(what, help));
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return fail(format!("the temperature is {}", self.temperature), "give a finite number of at least 0");
        }
        if self.top_k == Some(0) {
            return fail("top_k is 0, which leaves no token".to_owned(), "give at least 1");
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => fail(format!("top_p is {p}"), "give a probability above 0, at most 1"),
            _ => Ok(()),
        }
    }
}

/// The part of the options that a compiled program depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    is_greedy: bool,
    top_k: Option<usize>,
    has_top_p: bool,
    /// Tokens that the cache has room for.
    room: usize,
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
    numbers: Array,
    form: Form,
    stop_tokens: Vec<i32>,
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
    /// Fails for an empty prompt, options out of range, and texts longer than a table of positions.
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
    let is_known = |token: &i32| usize::try_from(*token).is_ok_and(|token| token < vocabulary);
    if let Some(token) = prompts.iter().flatten().find(|token| !is_known(token)) {
        let what = format!("a prompt has the token {token}, and the model knows {vocabulary} tokens");
        return Err(value_error(what, "encode the prompt with the model's own tokenizer"));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = longest.checked_add(options.max_new_tokens).filter(|room| i32::try_from(*room).is_ok());
    let positions = shapes.positions.as_ref().map(|table| table.embedding.shape().first().copied().unwrap_or(0));
    let fits = |room: &usize| positions.is_none_or(|positions| *room <= positions.saturating_add(1));
    let Some(room) = room.filter(fits) else {
        let what = format!("texts of {longest} and {} tokens are too long", options.max_new_tokens);
        let most = positions.map_or(i32::MAX as usize, |positions| positions);
        return Err(value_error(what, format!("ask for fewer tokens: the model has {most} positions")));
    };
    let batch = prompts.len();
    let padded = prompts.iter().flat_map(|prompt| std::iter::repeat_n(&0, longest - prompt.len()).chain(prompt));
    let tokens = Array::from_vec(padded.copied().collect(), &[batch, longest])?;
    let padding = Array::from_vec(prompts.iter().map(|prompt| (longest - prompt.len()) as i32).collect(), &[batch])?;
    let numbers =
        array([options.temperature.max(f64::from(f32::MIN_POSITIVE)) as f32, options.top_p.unwrap_or(1.0) as f32]);
    let form = Form {
        is_greedy: options.temperature == 0.0,
        top_k: options.top_k.filter(|k| *k < vocabulary),
        has_top_p: options.top_p.is_some_and(|p| p < 1.0),
        room,
    };
    Ok(Generation {
        model,
        cache: None,
        tokens,
        padding,
        key: random::key(options.seed),
        numbers,
        form,
        stop_tokens: options.stop_tokens.clone(),
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
        let next = self.advance();
        if next.is_err() {
            self.left = 0;
        }
        Some(next)
    }
}

impl<M: TextModel> Generation<'_, M> {
    fn advance(&mut self) -> Result<Vec<Option<i32>>> {
        let given =
            (self.model, self.cache.take(), &self.tokens, &self.padding, &self.key, &self.numbers, Static(self.form));
        let cache;
        (cache, self.tokens, self.key) = jit(step::<M>).donate_argnums([1]).call(given)?;
        self.cache = Some(cache);
        let drawn: Vec<i32> = self.tokens.to_vec()?;
        if let Some(text) = drawn.iter().zip(&self.ended).position(|(token, ended)| *token == NOT_A_TOKEN && !*ended) {
            let what = format!("the model's logits for text {text} are NaN");
            return Err(value_error(what, "look for NaN in the model's weights"));
        }
        let mut next = Vec::with_capacity(drawn.len());
        for (token, ended) in drawn.into_iter().zip(&mut self.ended) {
            next.push((!*ended).then_some(token));
            *ended |= self.stop_tokens.contains(&token);
        }
        Ok(next)
    }
}

/// Stands for the next token where the logits are NaN.
const NOT_A_TOKEN: i32 = -1;

/// The next token of each text, `[batch, 1]`, and the cache with the given ones; without a cache they are the first.
fn step<M: TextModel>(
    model: M,
    cache: Option<ModuleState>,
    tokens: Array,
    padding: Array,
    key: Array,
    numbers: Array,
    form: Static<Form>,
) -> Result<(ModuleState, Array, Array)> {
    let Form { room, is_greedy, .. } = form.0;
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
    let seen = arange(0..room as i32).greater_equal(padding).expand_dims(1).expand_dims(1);
    let logits = model.decode_at(tokens, Some(&positions), Some(&seen));
    let logits = logits.get((.., -1)).astype(DType::F32);
    let cache = model.state_of(Filter::of::<Cache>());
    let [now, key] = random::split_n(&key);
    let next = match is_greedy {
        true => logits.argmax(-1),
        false => random::categorical(now, &kept(&logits / numbers.get(0), form.0, &numbers.get(1)), -1),
    };
    let next = where_(logits.isnan().any(-1), NOT_A_TOKEN, next.astype(DType::I32));
    Ok((cache, next.expand_dims(1), key))
}

/// The logits, negative infinity for tokens that are not drawn.
fn kept(logits: Array, form: Form, top_p: &Array) -> Array {
    let at_least = |logits: Array, least: Array| where_(logits.less(least), f64::NEG_INFINITY, &logits);
    let logits = match form.top_k {
        Some(k) => {
            let (largest, _) = lax::top_k(&logits, k);
            at_least(logits, largest.get((.., -1)).expand_dims(1))
        }
        None => logits,
    };
    if !form.has_top_p {
        return logits;
    }
    // By rank, so that of tokens that are equally likely only as many are kept as are needed.
    let order = logits.argsort_descending(-1);
    let share = softmax(take_along_axis(&logits, &order, -1), -1);
    let before = share.cumsum(-1) - share;
    let is_kept = take_along_axis(before.less(top_p), &order.argsort(-1), -1);
    where_(is_kept, logits, f64::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Weights;

    /// `transformers`' `TopKLogitsWarper(5)` and `TopPLogitsWarper(0.7)`.
    #[test]
    fn top_k_and_top_p_keep_the_tokens_of_transformers() -> Result<()> {
        let case = Weights::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sampling.safetensors"))?;
        let form = Form { is_greedy: false, top_k: None, has_top_p: false, room: 0 };
        for (name, form) in [("top_k", Form { top_k: Some(5), ..form }), ("top_p", Form { has_top_p: true, ..form })] {
            let kept = kept(case.get("logits")?, form, &array(0.7f32));
            assert_eq!(isfinite(&kept).to_vec::<bool>()?, case.get(name)?.to_vec::<bool>()?, "{name}");
        }
        Ok(())
    }

    /// Ten tokens that are equally likely: three of them have a probability of 0.25 together.
    #[test]
    fn top_p_keeps_as_few_equal_tokens_as_it_needs() -> Result<()> {
        let form = Form { is_greedy: false, top_k: None, has_top_p: true, room: 0 };
        let kept = kept(zeros([2, 10]), form, &array(0.25f32));
        assert_eq!(isfinite(&kept).astype(DType::I32).sum(-1).to_vec::<i32>()?, [3, 3]);
        Ok(())
    }

    #[test]
    fn generate_with_weights_that_are_nan_is_an_error() -> Result<()> {
        let mut model = Decoder::new(&crate::DecoderConfig::new(64, 1, 16, 4), &mut Rngs::new(0))?;
        model.embed.embedding = full([64, 16], f32::NAN);
        for options in [GenerateOptions::new(3), GenerateOptions::new(3).temperature(1.0)] {
            let error = model.generate(&[vec![1, 2]], &options).unwrap_err().to_string();
            assert!(error.contains("the model's logits for text 0 are NaN"), "{error}");
        }
        Ok(())
    }
}
