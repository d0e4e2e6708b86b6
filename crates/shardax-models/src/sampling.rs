//! The choice of the next token.

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::GenerateOptions;

/// The part of the options that a compiled program depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub is_greedy: bool,
    /// The most tokens that any text is drawn from.
    pub top_k: Option<usize>,
    pub has_top_p: bool,
    pub has_min_p: bool,
    /// Tokens that the cache has room for.
    pub room: usize,
}

/// Inputs of the choice of a token, with one row for each text: the options' numbers, a term that is added to the logits,
/// and the tokens that the repetition penalty applies to.
pub(crate) type Controls = (Array, Option<Array>, Option<Array>);

/// Columns of the numbers.
const TEMPERATURE: i32 = 0;
const TOP_P: i32 = 1;
const MIN_P: i32 = 2;
const REPETITION: i32 = 3;
const TOP_K: i32 = 4;

/// A text and its options.
pub(crate) struct Text<'a> {
    pub prompt: &'a [i32],
    pub new: &'a [i32],
    pub options: &'a GenerateOptions,
}

/// The controls of the next tokens of these texts, and the form of the program.
pub(crate) fn controls(texts: &[Text<'_>], vocabulary: usize, room: usize) -> Result<(Form, Controls)> {
    let options: Vec<&GenerateOptions> = texts.iter().map(|text| text.options).collect();
    let largest = options.iter().map(|options| options.top_k.unwrap_or(vocabulary)).max();
    let form = Form {
        is_greedy: options.iter().all(|options| options.temperature == 0.0),
        // A power of two, so that few programs are compiled.
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
    let bias = match texts.iter().any(Text::has_bias) {
        true => Some(Array::from_vec(texts.iter().flat_map(|text| text.bias(vocabulary)).collect::<Vec<_>>(), &shape)?),
        false => None,
    };
    let repeated = match options.iter().any(|options| options.repetition_penalty != 1.0) {
        true => {
            let rows = texts.iter().flat_map(|text| text.repeated(vocabulary));
            Some(Array::from_vec(rows.collect::<Vec<bool>>(), &shape)?)
        }
        false => None,
    };
    Ok((form, (numbers, bias, repeated)))
}

impl Text<'_> {
    fn has_bias(&self) -> bool {
        let GenerateOptions { presence_penalty, frequency_penalty, logit_bias, .. } = self.options;
        let has_penalty = (*presence_penalty != 0.0 || *frequency_penalty != 0.0) && !self.new.is_empty();
        has_penalty || !logit_bias.is_empty() || self.is_too_short() || self.options.no_repeat_ngram.is_some()
    }

    /// True while the text must not end.
    fn is_too_short(&self) -> bool {
        self.new.len() < self.options.min_new_tokens
    }

    /// The term that is added to each logit.
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

    /// The tokens that would make the last `length` tokens a sequence that the text already has.
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

    /// The tokens that the text has.
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

/// Stands for the next token where the logits are NaN.
pub(crate) const NOT_A_TOKEN: i32 = -1;

/// The next token of each text, `[batch]`, from logits `[batch, vocabulary]` and noise of Gumbel's distribution.
pub(crate) fn draw(
    logits: &Array,
    (numbers, bias, repeated): &Controls,
    form: Form,
    noise: impl FnOnce() -> Array,
) -> Array {
    let is_nan = logits.isnan().any(-1);
    let mut logits = logits.clone();
    if let Some(repeated) = repeated {
        let penalty = column(numbers, REPETITION);
        let less = where_(logits.less(0), &logits * &penalty, &logits / &penalty);
        logits = where_(repeated, less, &logits);
    }
    if let Some(bias) = bias {
        logits = logits + bias;
    }
    let likeliest = logits.argmax(-1).astype(DType::I32);
    let token = if form.is_greedy {
        likeliest
    } else {
        let temperature = numbers.get((.., TEMPERATURE));
        // Rows of temperature 0 are not drawn.
        let divisor = where_(temperature.equal(0), 1, &temperature).expand_dims(1);
        let visible = hide_undrawn(logits / divisor, form, numbers);
        let drawn = (visible + noise()).argmax(-1).astype(DType::I32);
        where_(temperature.equal(0), likeliest, drawn)
    };
    where_(is_nan, NOT_A_TOKEN, token)
}

/// The logits, negative infinity for tokens that are not drawn.
fn hide_undrawn(logits: Array, form: Form, numbers: &Array) -> Array {
    let mut logits = logits;
    if let Some(k) = form.top_k {
        let (largest, _) = lax::top_k(&logits, k);
        let last = (column(numbers, TOP_K) - 1).clip(0, k as i32 - 1).astype(DType::I32);
        logits = hide_below(&logits, take_along_axis(&largest, &last, -1));
    }
    if form.has_top_p {
        // By rank, so that among equally likely tokens only as many are kept as are needed.
        let order = logits.argsort_descending(-1);
        let share = softmax(take_along_axis(&logits, &order, -1), -1);
        let before = share.cumsum(-1) - share;
        let is_kept = take_along_axis(before.less(column(numbers, TOP_P)), &order.argsort(-1), -1);
        logits = where_(is_kept, logits, f64::NEG_INFINITY);
    }
    if form.has_min_p {
        let least = logits.max_keepdims(-1) + column(numbers, MIN_P).log();
        logits = hide_below(&logits, least);
    }
    logits
}

/// Adds a term to the bias of a token, if the vocabulary has it.
fn add_bias(bias: &mut [f32], token: i32, term: f32) {
    if let Some(entry) = usize::try_from(token).ok().and_then(|token| bias.get_mut(token)) {
        *entry += term;
    }
}

fn column(numbers: &Array, column: i32) -> Array {
    numbers.get((.., column)).expand_dims(1)
}

fn hide_below(logits: &Array, least: Array) -> Array {
    where_(logits.less(least), f64::NEG_INFINITY, logits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Weights;

    fn controlled(options: &GenerateOptions, rows: usize, vocabulary: usize) -> Result<(Form, Controls)> {
        let texts: Vec<Text<'_>> = (0..rows).map(|_| Text { prompt: &[], new: &[], options }).collect();
        controls(&texts, vocabulary, 0)
    }

    /// `transformers`' `TopKLogitsWarper(5)` and `TopPLogitsWarper(0.7)`.
    #[test]
    fn top_k_and_top_p_keep_the_tokens_of_transformers() -> Result<()> {
        let case = Weights::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sampling.safetensors"))?;
        let options = GenerateOptions::new(1).temperature(1.0);
        for (name, options) in [("top_k", options.clone().top_k(5)), ("top_p", options.top_p(0.7))] {
            let logits = case.get("logits")?;
            let (form, (numbers, ..)) = controlled(&options, logits.shape()[0], logits.shape()[1])?;
            let visible = hide_undrawn(logits, form, &numbers);
            assert_eq!(isfinite(&visible).to_vec::<bool>()?, case.get(name)?.to_vec::<bool>()?, "{name}");
        }
        Ok(())
    }

    /// Ten tokens that are equally likely: three of them have a probability of 0.25 together.
    #[test]
    fn top_p_keeps_as_few_equal_tokens_as_it_needs() -> Result<()> {
        let (form, (numbers, ..)) = controlled(&GenerateOptions::new(1).temperature(1.0).top_p(0.25), 2, 10)?;
        let visible = hide_undrawn(zeros([2, 10]), form, &numbers);
        assert_eq!(isfinite(&visible).sum(-1).to_vec::<i32>()?, [3, 3]);
        Ok(())
    }

    /// The token that a model with the logits `[2.0, 1.9, -1.0, 0.5]` draws after this text.
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
