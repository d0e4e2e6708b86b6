//! Text generation with an encoder-decoder model.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::{EncodedInput, EncoderDecoder};
use crate::GenerateOptions;
use crate::error::value_error;
use crate::huggingface::BertOptions;
use crate::sampling::{self, Controls, Form, NOT_A_TOKEN, Text};

impl EncoderDecoder {
    /// Generates a text for each input (see [`encode`](EncoderDecoder::encode)) and returns the new tokens.
    ///
    /// All texts start with the tokens of `prompt`. For T5, the prompt is the padding token; for Whisper, it contains the
    /// language and the task.
    ///
    /// # Errors
    /// Returns an error if the prompt is empty or has a token that is not in the vocabulary, if an option is out of
    /// range, or if a text would need more positions than the decoder has.
    #[track_caller]
    pub fn generate(&self, inputs: impl ArrayLike, prompt: &[i32], options: &GenerateOptions) -> Result<Vec<Vec<i32>>> {
        let location = std::panic::Location::caller();
        generate_all(self, (inputs.into_array(), None), prompt, options).map_err(|error| error.at(location))
    }

    /// Like [`generate`](EncoderDecoder::generate), for padded inputs. `mask`, `[batch, length]`, must be false for padding.
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
        generate_all(self, inputs, prompt, options).map_err(|error| error.at(location))
    }
}

/// Encodes the inputs and generates all texts. Returns the new tokens of each text.
fn generate_all(
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
        let message = format!("the prompt {prompt:?} is empty or has a token beyond the {vocabulary} of the model");
        let help = "pass the tokens that start a text, such as `decoder_start_token_id` of `config.json`";
        return Err(value_error(message, help));
    }
    let room = room_of(model, prompt, options)?;
    let input = jit(encoded).call((model, &inputs, mask))?;
    let mut tokens = Array::from_vec(prompt.repeat(batch), &[batch, prompt.len()])?;
    let (mut cache, mut key) = (None, random::key(options.seed));
    // All texts of the batch are continued until the last one ends. `ends` has the lengths at which texts ended.
    let (mut texts, mut ends) = (vec![Vec::new(); batch], vec![None; batch]);
    for _ in 0..options.max_new_tokens {
        if ends.iter().all(Option::is_some) {
            break;
        }
        let batch_texts: Vec<Text<'_>> = texts.iter().map(|new| Text { prompt, new, options }).collect();
        let (form, controls) = sampling::controls(&batch_texts, vocabulary, room)?;
        let arguments = (model, cache.take(), &input, &tokens, &key, controls, Static(form));
        let next_cache;
        (next_cache, tokens, key) = jit(step).donate_argnums([1]).call(arguments)?;
        cache = Some(next_cache);
        for (i, ((text, end), token)) in texts.iter_mut().zip(&mut ends).zip(tokens.to_vec::<i32>()?).enumerate() {
            if token == NOT_A_TOKEN && end.is_none() {
                return Err(sampling::no_token_error(i));
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

/// Returns the number of positions for the prompt and the new tokens. Returns an error if the model has fewer positions.
fn room_of(model: &EncoderDecoder, prompt: &[i32], options: &GenerateOptions) -> Result<usize> {
    let learned = model.decoder.positions.as_ref().map(|table| table.embedding.shape()[0]);
    let learned = learned.map(|length| length.saturating_sub(model.decoder.first_position));
    let positions = learned.or(model.decoder.sines.map(|sines| sines.length));
    let room = prompt.len().checked_add(options.max_new_tokens).filter(|room| i32::try_from(*room).is_ok());
    // The last token is never an input, so it needs no position.
    room.filter(|room| positions.is_none_or(|positions| *room <= positions.saturating_add(1))).ok_or_else(|| {
        let limit = positions.unwrap_or(i32::MAX as usize);
        let message = format!(
            "a prompt of {} tokens and {} new tokens do not fit in the model's {limit} positions",
            prompt.len(),
            options.max_new_tokens
        );
        value_error(message, "pass a shorter prompt or a smaller `max_new_tokens`")
    })
}

/// Encodes the inputs and computes their keys and values.
fn encoded(model: EncoderDecoder, inputs: Array, mask: Option<Array>) -> EncodedInput {
    let options = mask.into_iter().fold(BertOptions::new(), BertOptions::attention_mask);
    model.attend_to(model.encode(inputs, &options), &options)
}

/// Computes the next token of each text, `[batch, 1]`. Also returns the cache, extended by `tokens`, and the next random key.
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
    let [step_key, key] = random::split_n(&key);
    let tokens =
        sampling::draw(&logits, &controls, form.0, || random::gumbel_dtype(step_key, logits.shape(), DType::F32));
    Ok((cache, tokens.expand_dims(1), key))
}
