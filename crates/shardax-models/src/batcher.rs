//! Continuous batching: texts are added to a batch and removed from it while others continue.

use std::collections::BTreeMap;

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::sampling::{self, Controls, Form, NOT_A_TOKEN, Text};
use crate::{Decoder, GenerateOptions, TextModel};

/// Continues many texts at a time (continuous batching).
///
/// You can add a text while others continue, and each text ends by itself, so that a server can compute one token for
/// all of its texts in each step.
///
/// All texts share one cache, and each text has a slot in it. The next tokens of all slots are written at the same
/// position, so each slot records the position at which its text starts. The prompt of a new text is computed alone,
/// and its keys and values are then inserted just before the shared position. When the shared position reaches the end of
/// the cache, all texts are moved to the start.
///
/// ```
/// use shardax_models::{Batcher, Decoder, DecoderConfig, GenerateOptions};
/// use shardax_nn::prelude::*;
/// let model = Decoder::new(&DecoderConfig::new(64, 1, 16, 4), &mut Rngs::new(0))?;
/// let mut batcher = Batcher::new(model, 2, 32)?;
/// let first = batcher.add(&[1, 2, 3], &GenerateOptions::new(4))?;
/// batcher.step()?;
/// // The second text starts while the first one continues.
/// let second = batcher.add(&[4], &GenerateOptions::new(4))?;
/// while batcher.active() > 0 {
///     for token in batcher.step()? {
///         println!("text {} continues with {}", if token.text == first.text { 1 } else { 2 }, token.token);
///     }
/// }
/// # let _ = second;
/// # Ok::<(), shardax::Error>(())
/// ```
pub struct Batcher<M: TextModel = Decoder> {
    model: M,
    /// The caches of all layers, `[slots, room, ...]`.
    cache: ModuleState,
    layout: CacheLayout,
    slots: Vec<Option<Slot>>,
    /// The position in the cache at which the next tokens are written.
    position: usize,
    /// The number of positions in the cache.
    room: usize,
    vocabulary: usize,
    /// The largest length of texts with the first frequencies of rotary positions.
    rope_limit: Option<usize>,
    next_text: u64,
}

/// A text in the cache.
struct Slot {
    /// The number of the text, see [`NextToken::text`].
    text: u64,
    prompt: Vec<i32>,
    new: Vec<i32>,
    options: GenerateOptions,
    /// The position in the cache of the text's first token.
    start: usize,
}

/// The next token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    /// The number of the text, which is unique in its batcher.
    pub text: u64,
    /// The token.
    pub token: i32,
    /// The reason why the text ends with this token, or `None` if it continues.
    pub end: Option<End>,
}

/// The reason why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The token is one of the stop tokens.
    Stop,
    /// The text has the maximal number of new tokens.
    Length,
}

/// Limits of the texts of a [`Batcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBounds {
    /// The number of tokens in the vocabulary of the model.
    pub vocabulary: usize,
    /// The maximal number of tokens of a text, including the prompt.
    pub room: usize,
}

impl TextBounds {
    /// Checks a prompt and its options against these limits.
    ///
    /// # Errors
    /// Returns an error if the prompt is empty or has a token that is not in the vocabulary, if an option is out of
    /// range, or if the prompt and its new tokens need more than `room` tokens.
    #[track_caller]
    pub fn check(&self, prompt: &[i32], options: &GenerateOptions) -> Result<()> {
        options.check()?;
        let TextBounds { vocabulary, room } = *self;
        let new = options.max_new_tokens;
        let message = if prompt.is_empty() {
            "the prompt is empty".to_owned()
        } else if prompt.len() >= room || new > room - prompt.len() {
            format!(
                "a prompt of {} tokens and {new} new tokens do not fit in a text of at most {room} tokens",
                prompt.len()
            )
        } else if new == 0 {
            "the maximal number of new tokens is 0".to_owned()
        } else if let Some(token) =
            prompt.iter().find(|token| !usize::try_from(**token).is_ok_and(|token| token < vocabulary))
        {
            format!("the prompt has the token {token}, but the vocabulary of the model has {vocabulary} tokens")
        } else {
            return Ok(());
        };
        let help =
            "encode the prompt with the model's own tokenizer, and pass a shorter prompt or ask for fewer tokens";
        Err(value_error(message, help))
    }
}

/// The smallest length that a prompt is padded to. Prompts are padded to powers of two, so that few programs are compiled.
const MIN_PROMPT_LENGTH: usize = 16;

impl<M: TextModel> Batcher<M> {
    /// Creates a batcher for `slots` texts of at most `room` tokens each, including the prompt.
    ///
    /// You must pass at least one slot and a room of at least two tokens, and the room must not exceed the number of
    /// positions of the model.
    #[track_caller]
    pub fn new(model: M, slots: usize, room: usize) -> Result<Self> {
        let location = std::panic::Location::caller();
        let (cache, vocabulary, rope_limit) = new_cache(&model, slots, room).map_err(|error| error.at(location))?;
        let layout = cache_layout(&model, slots, room).map_err(|error| error.at(location))?;
        let slots = (0..slots).map(|_| None).collect();
        Ok(Batcher { model, cache, layout, slots, position: 0, room, vocabulary, rope_limit, next_text: 0 })
    }

    /// Returns the number of texts that have not ended.
    pub fn active(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Returns `true` if all slots have a text.
    pub fn is_full(&self) -> bool {
        self.slots.iter().all(Option::is_some)
    }

    /// Adds a text and returns its first new token.
    ///
    /// # Errors
    /// Returns an error if all slots have a text, or if [`TextBounds::check`] rejects the prompt or its options.
    #[track_caller]
    pub fn add(&mut self, prompt: &[i32], options: &GenerateOptions) -> Result<NextToken> {
        let location = std::panic::Location::caller();
        self.begin(prompt, options).map_err(|error| error.at(location))
    }

    /// Computes the next token of every text. You should call it in a loop, and add texts in between. Returns an empty
    /// list if there are no texts.
    #[track_caller]
    pub fn step(&mut self) -> Result<Vec<NextToken>> {
        let location = std::panic::Location::caller();
        self.advance().map_err(|error| error.at(location))
    }

    /// Removes a text before it ends, for example when a client disconnects, so that another text can use its slot.
    pub fn remove(&mut self, text: u64) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|slot| slot.text == text) {
                *slot = None;
            }
        }
    }

    /// Returns the limits of texts.
    pub fn bounds(&self) -> TextBounds {
        TextBounds { vocabulary: self.vocabulary, room: self.room }
    }

    fn begin(&mut self, prompt: &[i32], options: &GenerateOptions) -> Result<NextToken> {
        self.bounds().check(prompt, options)?;
        let Some(free) = self.slots.iter().position(Option::is_none) else {
            let message = format!("all {} slots have a text", self.slots.len());
            return Err(value_error(message, "call `step` until a text ends, and then add this one"));
        };
        let token = self.write_text(free, Text { prompt, new: &[], options })?;
        let text = self.next_text;
        self.next_text += 1;
        let start = self.position - prompt.len();
        let slot = Slot { text, prompt: prompt.to_vec(), new: Vec::new(), options: options.clone(), start };
        self.slots[free] = Some(slot);
        self.push_token(free, token)
    }

    /// Computes the cache of a text from all its tokens, which end at the shared position. Returns the next token.
    fn write_text(&mut self, slot: usize, text: Text<'_>) -> Result<i32> {
        let length = text.prompt.len() + text.new.len();
        // The padded text must fit before the shared position.
        let width = length.next_power_of_two().max(MIN_PROMPT_LENGTH).min(self.room);
        if self.position < width {
            self.shift(width as i64 - self.position as i64)?;
        }
        let padding = width - length;
        let tokens = text.prompt.iter().chain(text.new).copied();
        let padded: Vec<i32> = std::iter::repeat_n(0, padding).chain(tokens).collect();
        let tokens = Array::from_vec(padded, &[1, width])?;
        let draws = Array::from_vec(vec![text.options.seed, text.new.len() as u32], &[1, 2])?;
        let (form, controls) = sampling::controls(&[text], self.vocabulary, width)?;
        let arguments = (&self.model, tokens, array([padding as i32]), draws, controls, Static(form));
        let (text_cache, next) = jit(first::<M>).call(arguments)?;
        let (slot_index, start) = (array(slot as i32), array((self.position - width) as i32));
        let cache = std::mem::take(&mut self.cache);
        let arguments = (cache, text_cache, slot_index, start, Static(self.layout.clone()));
        self.cache = jit(insert).donate_argnums([0]).call(arguments)?;
        Ok(next.to_vec::<i32>()?.first().copied().unwrap_or(NOT_A_TOKEN))
    }

    /// Computes the texts again that the last tokens made longer than the limit of the first frequencies of rotary positions, and
    /// replaces their next tokens.
    fn write_long_texts(&mut self, tokens: &mut [i32]) -> Result<()> {
        let Some(limit) = self.rope_limit else { return Ok(()) };
        for (index, token) in tokens.iter_mut().enumerate() {
            let Some(Slot { prompt, new, options, .. }) = &self.slots[index] else { continue };
            let length = prompt.len() + new.len();
            if length != limit + 1 || new.is_empty() {
                continue;
            }
            let (prompt, new, options) = (prompt.clone(), new.clone(), options.clone());
            *token = self.write_text(index, Text { prompt: &prompt, new: &new, options: &options })?;
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<Vec<NextToken>> {
        if self.active() == 0 {
            return Ok(Vec::new());
        }
        if self.position >= self.room {
            // At the end of the cache, move the earliest text to the start. It has not reached its limit of `room`
            // tokens, because it would have ended, so it does not start at position 0 and the move makes room.
            let earliest = self.slots.iter().flatten().map(|slot| slot.start).min().unwrap_or(0);
            self.shift(-(earliest as i64))?;
        }
        let idle = GenerateOptions::new(1);
        let mut texts = Vec::new();
        let (mut tokens, mut starts, mut draws) = (Vec::new(), Vec::new(), Vec::new());
        for slot in &self.slots {
            match slot {
                Some(Slot { prompt, new, options, start, .. }) => {
                    tokens.push(new.last().copied().unwrap_or(0));
                    starts.push(*start as i32);
                    draws.extend([options.seed, new.len() as u32]);
                    texts.push(Text { prompt, new, options });
                }
                // A free slot computes a token that is never read. It attends only to its own position.
                None => {
                    tokens.push(0);
                    starts.push(self.position as i32);
                    draws.extend([0, 0]);
                    texts.push(Text { prompt: &[], new: &[], options: &idle });
                }
            }
        }
        let count = self.slots.len();
        let (form, controls) = sampling::controls(&texts, self.vocabulary, self.room)?;
        let tokens = Array::from_vec(tokens, &[count, 1])?;
        let starts = Array::from_vec(starts, &[count])?;
        let draws = Array::from_vec(draws, &[count, 2])?;
        let position = array(self.position as i32);
        let cache = std::mem::take(&mut self.cache);
        let arguments = (&self.model, cache, tokens, starts, position, draws, controls, Static(form));
        let next;
        (self.cache, next) = jit(step::<M>).donate_argnums([1]).call(arguments)?;
        self.position += 1;
        let mut tokens = next.to_vec::<i32>()?;
        self.write_long_texts(&mut tokens)?;
        let active: Vec<usize> = (0..count).filter(|slot| self.slots[*slot].is_some()).collect();
        active.into_iter().map(|slot| self.push_token(slot, tokens[slot])).collect()
    }

    /// Appends a token to the text of a slot, and frees the slot if the text ends.
    fn push_token(&mut self, slot: usize, token: i32) -> Result<NextToken> {
        let entry = &mut self.slots[slot];
        let Some(Slot { text, new, options, .. }) = entry else {
            return Err(value_error("internal error: a free slot has a token", "please report this"));
        };
        if token == NOT_A_TOKEN {
            let error = sampling::no_token_error(*text);
            *entry = None;
            return Err(error);
        }
        new.push(token);
        let end = match () {
            _ if options.stop_tokens.contains(&token) => Some(End::Stop),
            _ if new.len() >= options.max_new_tokens => Some(End::Length),
            _ => None,
        };
        let next = NextToken { text: *text, token, end };
        if end.is_some() {
            *entry = None;
        }
        Ok(next)
    }

    /// Moves all texts by a number of positions.
    fn shift(&mut self, offset: i64) -> Result<()> {
        if self.active() > 0 && offset != 0 {
            let cache = std::mem::take(&mut self.cache);
            let arguments = (cache, array(offset as i32), Static(self.layout.clone()));
            self.cache = jit(shifted).donate_argnums([0]).call(arguments)?;
        }
        self.slots.iter_mut().flatten().for_each(|slot| slot.start = offset_position(slot.start, offset));
        self.position = offset_position(self.position, offset);
        Ok(())
    }
}

/// The suffix of the key paths of the numbers of cached tokens. The batcher counts the tokens itself.
const INDEX: &str = "cache_index";

/// The dimensions of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CacheAxes {
    /// The dimension of the slots.
    slot: usize,
    /// The dimension of the positions. Recurrent states have none.
    position: Option<usize>,
}

/// The dimensions of all caches of a model, by their paths. Numbers of cached tokens have no slots, and are left out.
type CacheLayout = BTreeMap<String, CacheAxes>;

/// Finds the dimensions of the caches: the dimension of the slots grows with the number of slots, and the dimension of the
/// positions with the room.
fn cache_layout<M: TextModel>(model: &M, slots: usize, room: usize) -> Result<CacheLayout> {
    let shapes = |slots: usize, room: usize| eval_shape(empty::<M>, (model, Static((slots, room))));
    let (cache, more_slots, more_room) = (shapes(slots, room)?, shapes(slots + 1, room)?, shapes(slots, room + 1)?);
    let axes = |path: &str, array: &Array| {
        let changed = |other: &ModuleState| {
            let other = other.get(path)?;
            array.shape().iter().zip(other.shape()).position(|(size, other)| size != other)
        };
        Some((path.to_owned(), CacheAxes { slot: changed(&more_slots)?, position: changed(&more_room) }))
    };
    Ok(cache.iter().filter_map(|(path, array)| axes(path, array)).collect())
}

/// Applies `change` to every cache of a layout.
fn map_cache(
    cache: &ModuleState,
    layout: &CacheLayout,
    change: impl Fn(&str, &Array, CacheAxes) -> Array,
) -> ModuleState {
    let mut result = ModuleState::new();
    for (path, array) in cache.iter() {
        let changed = layout.get(path).map_or_else(|| array.clone(), |axes| change(path, array, *axes));
        result.insert(path.to_owned(), changed);
    }
    result
}

/// Creates an empty cache for a number of slots and a number of positions.
fn empty<M: TextModel>(model: M, sizes: Static<(usize, usize)>) -> Result<ModuleState> {
    let mut model = model.decoder()?;
    model.init_cache(sizes.0.0, sizes.0.1);
    Ok(model.state_of(Filter::of::<Cache>()))
}

/// Samples Gumbel noise for each text. The key depends only on the text's seed and its number of tokens, so that the
/// sample does not depend on the other texts.
fn noise(draws: &Array, vocabulary: usize) -> Array {
    vmap(move |draw: Array| {
        random::gumbel_dtype(random::fold_in(random::key(draw.get(0)), draw.get(1)), [vocabulary], DType::F32)
    })
    .call(draws)
    .unwrap_or_else(|error| Array::from_error(error, draws))
}

/// Decodes the tokens and returns the logits after the last one. A text attends to the cache from its entry in
/// `starts` on, and its positions are counted from there.
fn last_logits(model: &mut Decoder, tokens: Array, starts: &Array, room: usize) -> Array {
    let length = tokens.shape()[1] as i32;
    let starts = starts.expand_dims(1);
    let cache_positions = model.cached() + arange(0..length);
    let positions = maximum(cache_positions - &starts, 0);
    let mask = arange(0..room as i32).greater_equal(starts).expand_dims(1).expand_dims(1);
    model.decode_last(tokens, &positions, &mask).astype(DType::F32)
}

/// Computes the cache of one prompt and the token after it.
fn first<M: TextModel>(
    model: M,
    tokens: Array,
    padding: Array,
    draws: Array,
    controls: Controls,
    form: Static<Form>,
) -> Result<(ModuleState, Array)> {
    let mut model = model.decoder()?;
    model.init_cache(1, form.0.room);
    let logits = last_logits(&mut model, tokens, &padding, form.0.room);
    let tokens = sampling::draw(&logits, &controls, form.0, || noise(&draws, logits.shape()[1]));
    Ok((model.state_of(Filter::of::<Cache>()), tokens))
}

/// Inserts the cache of one text into a slot, at a position.
fn insert(
    cache: ModuleState,
    text_cache: ModuleState,
    slot: Array,
    position: Array,
    layout: Static<CacheLayout>,
) -> ModuleState {
    map_cache(&cache, &layout.0, |path, all, axes| {
        let Some(new) = text_cache.get(path) else { return all.clone() };
        let zero = zeros_dtype((), DType::I32);
        let starts: Vec<Array> = (0..all.ndim())
            .map(|dim| match dim {
                _ if dim == axes.slot => slot.clone(),
                _ if Some(dim) == axes.position => position.clone(),
                _ => zero.clone(),
            })
            .collect();
        lax::dynamic_update_slice(all, &new.astype(all.dtype()), &starts)
    })
}

/// Rotates all positions of a cache by an offset.
fn shifted(cache: ModuleState, offset: Array, layout: Static<CacheLayout>) -> ModuleState {
    map_cache(&cache, &layout.0, |_, all, axes| {
        let Some(axis) = axes.position else { return all.clone() };
        let room = all.shape()[axis] as i32;
        let sources = (arange(0..room) - &offset + room) % room;
        take(all, sources, axis)
    })
}

/// Computes the next token of each slot.
#[allow(clippy::too_many_arguments)] // The arguments of a program.
fn step<M: TextModel>(
    model: M,
    cache: ModuleState,
    tokens: Array,
    starts: Array,
    position: Array,
    draws: Array,
    controls: Controls,
    form: Static<Form>,
) -> Result<(ModuleState, Array)> {
    let room = form.0.room;
    let mut model = model.decoder()?;
    model.init_cache(tokens.shape()[0], room);
    let mut state = ModuleState::new();
    for (path, array) in cache.iter() {
        let is_index = path.ends_with(INDEX);
        state.insert(path.to_owned(), if is_index { broadcast_to(&position, array.shape()) } else { array.clone() });
    }
    model.update(&state)?;
    let logits = last_logits(&mut model, tokens, &starts, room);
    let tokens = sampling::draw(&logits, &controls, form.0, || noise(&draws, logits.shape()[1]));
    Ok((model.state_of(Filter::of::<Cache>()), tokens))
}

/// Adds an offset to a position. Returns 0 if the sum is negative.
fn offset_position(position: usize, offset: i64) -> usize {
    (position as i64 + offset).max(0) as usize
}

/// Creates the cache of the slots. Also returns the size of the model's vocabulary, and the largest length of texts with the first
/// frequencies of rotary positions.
fn new_cache<M: TextModel>(model: &M, slots: usize, room: usize) -> Result<(ModuleState, usize, Option<usize>)> {
    let shapes = eval_shape(|model: M| model.decoder(), model)?;
    let positions = shapes.max_positions();
    if slots == 0 || room < 2 || i32::try_from(room).is_err() || positions.is_some_and(|positions| room > positions) {
        let limit = positions.unwrap_or(i32::MAX as usize);
        let message = format!(
            "a batcher needs at least 1 slot and a room of 2 to {limit} tokens, got {slots} slots and a room of {room}"
        );
        return Err(value_error(
            message,
            "change the number of slots or the room; each text needs a prompt and a new token",
        ));
    }
    let cache = jit(empty::<M>).call((model, Static((slots, room))))?;
    let vocabulary = shapes.embed.embedding.shape().first().copied().unwrap_or(0);
    Ok((cache, vocabulary, shapes.rope_limit))
}
