//! Sampling of the next token.

use std::fmt::Display;

use shardax::error::{Error, Result};
use shardax_nn::prelude::*;

use crate::GenerateOptions;
use crate::error::value_error;

/// The part of the options that is static in a compiled program. A different form compiles another program, so it only
/// says which steps are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub is_greedy: bool,
    /// The largest `top_k` of the texts, rounded up; `None` if a text can have any token of the vocabulary.
    pub top_k: Option<usize>,
    pub has_top_p: bool,
    pub has_min_p: bool,
    /// The number of positions in the cache.
    pub room: usize,
}

/// The part of the options that a compiled program receives as operands, with one row for each text: the numbers, a term
/// to add to the logits, and a mask of the tokens that the repetition penalty applies to.
pub(crate) type Controls = (Array, Option<Array>, Option<Array>);

// The columns of the numbers in `Controls`.
const TEMPERATURE: i32 = 0;
const TOP_P: i32 = 1;
const MIN_P: i32 = 2;
const REPETITION: i32 = 3;
const TOP_K: i32 = 4;

/// A text that needs a next token, and its options.
pub(crate) struct Text<'a> {
    pub prompt: &'a [i32],
    pub new: &'a [i32],
    pub options: &'a GenerateOptions,
}

/// Computes the operands for the next tokens of these texts, and the form of the program.
pub(crate) fn controls(texts: &[Text<'_>], vocabulary: usize, room: usize) -> Result<(Form, Controls)> {
    let options: Vec<&GenerateOptions> = texts.iter().map(|text| text.options).collect();
    let largest = options.iter().map(|options| options.top_k.unwrap_or(vocabulary)).max();
    let form = Form {
        is_greedy: options.iter().all(|options| options.temperature == 0.0),
        // Rounded up to a power of two, so that few programs are compiled.
        top_k: largest.map(usize::next_power_of_two).filter(|k| *k < vocabulary),
        has_top_p: options.iter().any(|options| options.top_p.is_some_and(|p| p < 1.0)),
        has_min_p: options.iter().any(|options| options.min_p.is_some_and(|p| p > 0.0)),
        room,
    };
    let numbers = options.iter().flat_map(|options| {
        let top_k = options.top_k.unwrap_or(vocabulary).min(vocabulary);
        [
            options.temperature as f32,
            options.top_p.unwrap_or(1.0) as f32,
            options.min_p.unwrap_or(0.0) as f32,
            options.repetition_penalty as f32,
            top_k as f32,
        ]
    });
    let numbers = Array::from_vec(numbers.collect::<Vec<f32>>(), &[texts.len(), 5])?;
    let shape = [texts.len(), vocabulary];
    let bias = if texts.iter().any(Text::has_bias) {
        Some(Array::from_vec(texts.iter().flat_map(|text| text.bias(vocabulary)).collect::<Vec<_>>(), &shape)?)
    } else {
        None
    };
    let repeated = if options.iter().any(|options| options.repetition_penalty != 1.0) {
        let rows = texts.iter().flat_map(|text| text.repeated(vocabulary));
        Some(Array::from_vec(rows.collect::<Vec<bool>>(), &shape)?)
    } else {
        None
    };
    Ok((form, (numbers, bias, repeated)))
}

impl Text<'_> {
    /// Returns `true` if an option changes the logits by adding a term.
    fn has_bias(&self) -> bool {
        let GenerateOptions { presence_penalty, frequency_penalty, logit_bias, .. } = self.options;
        let has_penalty = (*presence_penalty != 0.0 || *frequency_penalty != 0.0) && !self.new.is_empty();
        has_penalty || !logit_bias.is_empty() || self.is_too_short() || self.options.no_repeat_ngram.is_some()
    }

    /// Returns `true` while a stop token is excluded.
    fn is_too_short(&self) -> bool {
        self.new.len() < self.options.min_new_tokens
    }

    /// Computes the term to add to each logit.
    fn bias(&self, vocabulary: usize) -> Vec<f32> {
        let mut bias = vec![0.0; vocabulary];
        let mut counts = std::collections::BTreeMap::new();
        self.new.iter().for_each(|token| *counts.entry(*token).or_insert(0u32) += 1);
        for (token, count) in counts {
            let penalty = self.options.presence_penalty as f32 + self.options.frequency_penalty as f32 * count as f32;
            add_bias(&mut bias, token, -penalty);
        }
        self.options.logit_bias.iter().for_each(|(token, term)| add_bias(&mut bias, *token, *term));
        if self.is_too_short() {
            self.options.stop_tokens.iter().for_each(|token| add_bias(&mut bias, *token, f32::NEG_INFINITY));
        }
        if let Some(length) = self.options.no_repeat_ngram {
            self.endings_of_repeats(length).into_iter().for_each(|token| add_bias(&mut bias, token, f32::NEG_INFINITY));
        }
        bias
    }

    /// Returns the tokens that would repeat a sequence of `length` tokens.
    fn endings_of_repeats(&self, length: usize) -> Vec<i32> {
        let tokens = [self.prompt, self.new].concat();
        let Some(start) = (tokens.len() + 1).checked_sub(length) else { return Vec::new() };
        let last_tokens = &tokens[start..];
        tokens
            .windows(length)
            .filter(|window| window[..length - 1] == *last_tokens)
            .map(|window| window[length - 1])
            .collect()
    }

    /// Returns a mask of the tokens that occur in the text, for the repetition penalty.
    fn repeated(&self, vocabulary: usize) -> Vec<bool> {
        let mut is_repeated = vec![false; vocabulary];
        if self.options.repetition_penalty != 1.0 {
            for token in self.prompt.iter().chain(self.new) {
                if let Some(entry) = usize::try_from(*token).ok().and_then(|token| is_repeated.get_mut(token)) {
                    *entry = true;
                }
            }
        }
        is_repeated
    }
}

/// Returned instead of a token if there is none, because a compiled program cannot return an error.
pub(crate) const NOT_A_TOKEN: i32 = -1;

/// The error for a text without a next token.
pub(crate) fn no_token_error(text: impl Display) -> Error {
    value_error(
        format!(
            "text {text} has no next token: the model's logits are NaN or infinite, or the options exclude all tokens"
        ),
        "check that the weights of the model and its inputs contain no NaN, and that `logit_bias` and `no_repeat_ngram` leave a token",
    )
}

/// Chooses the next token of each text, `[batch]`, from logits `[batch, vocabulary]`. `noise` must return Gumbel noise of the
/// same shape; the most likely token after adding it is a sample of the softmax.
pub(crate) fn draw(
    logits: &Array,
    (numbers, bias, repeated): &Controls,
    form: Form,
    noise: impl FnOnce() -> Array,
) -> Array {
    let mut logits = logits.clone();
    if let Some(repeated) = repeated {
        let penalty = column(numbers, REPETITION);
        let penalized = where_(logits.less(0), &logits * &penalty, &logits / &penalty);
        logits = where_(repeated, penalized, &logits);
    }
    if let Some(bias) = bias {
        logits = logits + bias;
    }
    let largest = logits.max_keepdims(-1);
    let has_no_token = largest.isfinite().logical_not().squeeze(-1);
    let likeliest = logits.argmax(-1).astype(DType::I32);
    let token = if form.is_greedy {
        likeliest
    } else {
        let temperature = numbers.get((.., TEMPERATURE));
        // Rows with temperature 0 are greedy. They are divided by 1, so that no NaN is computed.
        let divisor = where_(temperature.equal(0), 1, &temperature).expand_dims(1);
        // Differences to the largest do not overflow, however low the temperature is.
        let filtered = filter_logits((&logits - &largest) / divisor, form, numbers);
        let sampled = (filtered + noise()).argmax(-1).astype(DType::I32);
        where_(temperature.equal(0), likeliest, sampled)
    };
    where_(has_no_token, NOT_A_TOKEN, token)
}

/// Sets the logits of tokens that `top_k`, `top_p` or `min_p` excludes to negative infinity.
fn filter_logits(logits: Array, form: Form, numbers: &Array) -> Array {
    let mut logits = logits;
    if let Some(k) = form.top_k {
        let (largest, _) = lax::top_k(&logits, k);
        let last = (column(numbers, TOP_K) - 1).clip(0, k as i32 - 1).astype(DType::I32);
        logits = hide_below(&logits, take_along_axis(&largest, &last, -1));
    }
    if form.has_top_p {
        // Tokens are compared by rank instead of by probability, so that among equally likely tokens only as many are
        // kept as the sum needs.
        let order = logits.argsort_descending(-1);
        let probabilities = softmax(take_along_axis(&logits, &order, -1), -1);
        let preceding_sum = probabilities.cumsum(-1) - probabilities;
        let is_kept = take_along_axis(preceding_sum.less(column(numbers, TOP_P)), &order.argsort(-1), -1);
        logits = where_(is_kept, logits, f64::NEG_INFINITY);
    }
    if form.has_min_p {
        let threshold = logits.max_keepdims(-1) + column(numbers, MIN_P).log();
        logits = hide_below(&logits, threshold);
    }
    logits
}

/// Adds a term to the bias of a token. Tokens that are not in the vocabulary are ignored.
fn add_bias(bias: &mut [f32], token: i32, term: f32) {
    if let Some(entry) = usize::try_from(token).ok().and_then(|token| bias.get_mut(token)) {
        *entry += term;
    }
}

/// Returns a column of the numbers, `[batch, 1]`.
fn column(numbers: &Array, column: i32) -> Array {
    numbers.get((.., column)).expand_dims(1)
}

/// Sets logits below a threshold to negative infinity.
fn hide_below(logits: &Array, threshold: Array) -> Array {
    where_(logits.less(threshold), f64::NEG_INFINITY, logits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Weights;

    /// Returns the controls of `rows` empty texts with these options.
    fn controls_for(options: &GenerateOptions, rows: usize, vocabulary: usize) -> Result<(Form, Controls)> {
        let texts: Vec<Text<'_>> = (0..rows).map(|_| Text { prompt: &[], new: &[], options }).collect();
        controls(&texts, vocabulary, 0)
    }

    /// The expected masks are from `TopKLogitsWarper(5)` and `TopPLogitsWarper(0.7)` of `transformers`.
    #[test]
    fn top_k_and_top_p_keep_the_tokens_of_transformers() -> Result<()> {
        config::set_compiler_options(crate::quick::QUICK);
        let case = Weights::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sampling.safetensors"))?;
        let options = GenerateOptions::new(1).temperature(1.0);
        for (name, options) in [("top_k", options.clone().top_k(5)), ("top_p", options.top_p(0.7))] {
            let logits = case.get("logits")?;
            let (form, (numbers, ..)) = controls_for(&options, logits.shape()[0], logits.shape()[1])?;
            let filtered = filter_logits(logits, form, &numbers);
            assert_eq!(isfinite(&filtered).to_vec::<bool>()?, case.get(name)?.to_vec::<bool>()?, "{name}");
        }
        Ok(())
    }

    /// With ten equally likely tokens, three are needed for a probability of 0.25.
    #[test]
    fn top_p_keeps_the_fewest_of_equally_likely_tokens() -> Result<()> {
        config::set_compiler_options(crate::quick::QUICK);
        let (form, (numbers, ..)) = controls_for(&GenerateOptions::new(1).temperature(1.0).top_p(0.25), 2, 10)?;
        let filtered = filter_logits(zeros([2, 10]), form, &numbers);
        assert_eq!(isfinite(&filtered).sum(-1).to_vec::<i32>()?, [3, 3]);
        Ok(())
    }

    /// Returns the next token after this text for the logits `[2.0, 1.9, -1.0, 0.5]`.
    fn next(options: GenerateOptions, prompt: &[i32], new: &[i32]) -> Result<i32> {
        let (form, controls) = controls(&[Text { prompt, new, options: &options }], 4, 0)?;
        Ok(draw(&array([[2.0f32, 1.9, -1.0, 0.5]]), &controls, form, || zeros([1, 4])).to_vec::<i32>()?[0])
    }

    fn greedy() -> GenerateOptions {
        GenerateOptions::new(5)
    }

    /// Each row has its own options. The formulas follow `transformers` and OpenAI's interface.
    #[test]
    fn penalties_change_the_likeliest_token() -> Result<()> {
        config::set_compiler_options(crate::quick::QUICK);
        assert_eq!(next(greedy(), &[0], &[0])?, 0);
        assert_eq!(next(greedy().repetition_penalty(1.5), &[0], &[])?, 1);
        assert_eq!(next(greedy().repetition_penalty(1.5), &[0, 1], &[])?, 0);
        assert_eq!(next(greedy().presence_penalty(0.2), &[0], &[])?, 0);
        assert_eq!(next(greedy().presence_penalty(0.2), &[], &[0])?, 1);
        assert_eq!(next(greedy().frequency_penalty(0.06), &[], &[0])?, 0);
        assert_eq!(next(greedy().frequency_penalty(0.06), &[], &[0, 0])?, 1);
        assert_eq!(next(greedy().logit_bias([(2, 5.0)]), &[], &[])?, 2);
        assert_eq!(next(greedy().stop_tokens([0]).min_new_tokens(1), &[], &[])?, 1);
        assert_eq!(next(greedy().stop_tokens([0]).min_new_tokens(1), &[], &[3])?, 0);
        assert_eq!(next(greedy().no_repeat_ngram(2), &[3, 0, 1, 3], &[])?, 1);
        assert_eq!(next(greedy().temperature(1.0).min_p(0.95), &[], &[])?, 0);
        Ok(())
    }
}
