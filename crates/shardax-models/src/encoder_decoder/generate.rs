//! Writing texts for encoded inputs.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::{EncodedInput, EncoderDecoder};
use crate::GenerateOptions;
use crate::error::value_error;
use crate::huggingface::BertOptions;
use crate::sampling::{self, Controls, Form, NOT_A_TOKEN, Text};

impl EncoderDecoder {
    /// Writes a text for each of these inputs (see [`encode`](EncoderDecoder::encode)) after the tokens of `prompt`, and
    /// returns the new tokens of each. T5's prompt is its padding token; Whisper's names the language and the task.
    ///
    /// The prompt must not be empty, options must be in range, and the text must fit in the table of positions.
    #[track_caller]
    pub fn generate(&self, inputs: impl ArrayLike, prompt: &[i32], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        written(self, (inputs.into_array(), None), prompt, options).map_err(|error| error.at(location))
    }

    /// Writes texts for inputs that are padded: `mask`, `[batch, length]`, is true for the tokens that are not padding.
    #[track_caller]
    pub fn generate_masked(
        &self,
        inputs: impl ArrayLike,
        mask: impl ArrayLike,
        prompt: &[i32],
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        let inputs = (inputs.into_array(), Some(mask.into_array()));
        written(self, inputs, prompt, options).map_err(|error| error.at(location))
    }
}

/// The new tokens of each text.
fn written(
    model: &EncoderDecoder,
    (inputs, mask): (Array, Option<Array>),
    prompt: &[i32],
    options: &GenerateOptions,
) -> Result<Vec<Vec<i32>>> {
    options.check()?;
    inputs.check()?;
    let batch = inputs.shape().first().copied().unwrap_or(0);
    let vocabulary = model.embed.embedding.shape().first().copied().unwrap_or(0);
    if prompt.is_empty() || !prompt.iter().all(|token| usize::try_from(*token).is_ok_and(|token| token < vocabulary)) {
        let message = format!("the prompt {prompt:?} is empty, or has a token beyond the {vocabulary} of the model");
        return Err(value_error(message, "give the tokens that start a text, such as `decoder_start_token_id`"));
    }
    let learned = model.decoder.positions.as_ref().map(|table| table.embedding.shape()[0]);
    let learned = learned.map(|length| length.saturating_sub(model.decoder.first_position));
    let positions = learned.or(model.decoder.sines.map(|sines| sines.length));
    let room = prompt.len().checked_add(options.max_new_tokens).filter(|room| i32::try_from(*room).is_ok());
    let Some(room) = room.filter(|room| positions.is_none_or(|most| *room <= most.saturating_add(1))) else {
        let message = format!("texts of {} and {} tokens are too long", prompt.len(), options.max_new_tokens);
        let most = positions.unwrap_or(i32::MAX as usize);
        return Err(value_error(message, format!("ask for fewer tokens: the model has {most} positions")));
    };
    let input = jit(encoded).call((model, &inputs, mask))?;
    let mut tokens = Array::from_vec(prompt.repeat(batch), &[batch, prompt.len()])?;
    let (mut cache, mut key) = (None, random::key(options.seed));
    // Texts as they are drawn, in which ended ones go on, and the lengths of those that have ended.
    let (mut texts, mut ends) = (vec![Vec::new(); batch], vec![None; batch]);
    for _ in 0..options.max_new_tokens {
        if ends.iter().all(Option::is_some) {
            break;
        }
        let controlled: Vec<Text<'_>> = texts.iter().map(|new| Text { prompt, new, options }).collect();
        let (form, controls) = sampling::controls(&controlled, vocabulary, room)?;
        let arguments = (model, cache.take(), &input, &tokens, &key, controls, Static(form));
        let next_cache;
        (next_cache, tokens, key) = jit(step).donate_argnums([1]).call(arguments)?;
        cache = Some(next_cache);
        for ((text, end), token) in texts.iter_mut().zip(&mut ends).zip(tokens.to_vec::<i32>()?) {
            if token == NOT_A_TOKEN && end.is_none() {
                return Err(value_error("the model's logits are NaN", "look for NaN in its weights and inputs"));
            }
            text.push(token);
            if options.stop_tokens.contains(&token) {
                end.get_or_insert(text.len());
            }
        }
    }
    Ok(texts
        .into_iter()
        .zip(ends)
        .map(|(mut text, end)| {
            text.truncate(end.unwrap_or(text.len()));
            text
        })
        .collect())
}

/// The keys and values of these inputs.
fn encoded(model: EncoderDecoder, inputs: Array, mask: Option<Array>) -> EncodedInput {
    let options = mask.into_iter().fold(BertOptions::new(), BertOptions::attention_mask);
    model.attend_to(model.encode(inputs, &options), &options)
}

/// The next token of each text, `[batch, 1]`, and the cache with the tokens before it.
fn step(
    mut model: EncoderDecoder,
    cache: Option<ModuleState>,
    input: EncodedInput,
    tokens: Array,
    key: Array,
    controls: Controls,
    form: Static<Form>,
) -> Result<(ModuleState, Array, Array)> {
    model.init_cache(tokens.shape()[0], form.0.room);
    if let Some(cache) = &cache {
        model.update(cache)?;
    }
    let logits = model.decode(tokens, &input).get((.., -1)).astype(DType::F32);
    let cache = model.state_of(Filter::of::<Cache>());
    let [now, key] = random::split_n(&key);
    let tokens = sampling::draw(&logits, &controls, form.0, || random::gumbel_dtype(now, logits.shape(), DType::F32));
    Ok((cache, tokens.expand_dims(1), key))
}
