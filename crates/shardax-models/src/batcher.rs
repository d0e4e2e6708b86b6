//! Many texts at a time, which begin and end at different times.

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::sampling::{self, Controls, Form, NOT_A_TOKEN, Text};
use crate::{Decoder, GenerateOptions, TextModel};

/// Continues many texts at a time. Texts are added and end while others continue, so that a server computes one token for all of them in
/// each step (continuous batching).
///
/// Each text has a slot of one cache. All slots share the place where the next tokens are written, and each has a place of its own where
/// its text begins. A new text is computed alone, and put before that place; where the cache ends, all texts move to its begin.
///
/// ```
/// use shardax_models::{Batcher, Decoder, DecoderConfig, GenerateOptions};
/// use shardax_nn::prelude::*;
/// let model = Decoder::new(&DecoderConfig::new(64, 1, 16, 4), &mut Rngs::new(0))?;
/// let mut batcher = Batcher::new(model, 2, 32)?;
/// let first = batcher.add(&[1, 2, 3], &GenerateOptions::new(4))?;
/// batcher.step()?;
/// // It begins while the first one continues.
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
    /// `[slots, room, ...]` of each layer.
    cache: ModuleState,
    slots: Vec<Option<Slot>>,
    /// The place of the next tokens.
    position: usize,
    room: usize,
    vocabulary: usize,
    next_text: u64,
}

/// A text in the cache.
struct Slot {
    text: u64,
    prompt: Vec<i32>,
    new: Vec<i32>,
    options: GenerateOptions,
    /// The place of its first token.
    start: usize,
}

/// The next token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    /// The text's number, which no other text of the batcher has.
    pub text: u64,
    /// The token.
    pub token: i32,
    /// Why the text ends with this token, if it does.
    pub end: Option<End>,
}

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The token is one of the stop tokens.
    Stop,
    /// The text has as many tokens as its options allow.
    Length,
}

/// Limits of the texts of a [`Batcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBounds {
    /// The number of tokens that the model knows.
    pub vocabulary: usize,
    /// The number of tokens of a text, with its prompt.
    pub room: usize,
}

impl TextBounds {
    /// The prompt must not be empty, its tokens must be known, options must be in range, and the text must fit in the room.
    #[track_caller]
    pub fn check(&self, prompt: &[i32], options: &GenerateOptions) -> Result<()> {
        options.check()?;
        let TextBounds { vocabulary, room } = *self;
        let new = options.max_new_tokens;
        let message = if prompt.is_empty() {
            "the prompt is empty".to_owned()
        } else if prompt.len() >= room || new > room - prompt.len() {
            format!("{} tokens and {new} new ones, and texts have at most {room}", prompt.len())
        } else if new == 0 {
            "a text of no new tokens".to_owned()
        } else if let Some(token) =
            prompt.iter().find(|token| !usize::try_from(**token).is_ok_and(|token| token < vocabulary))
        {
            format!("the prompt has the token {token}, and the model knows {vocabulary} tokens")
        } else {
            return Ok(());
        };
        Err(value_error(message, "give a shorter prompt of the model's tokenizer, and ask for fewer tokens"))
    }
}

/// Prompts are computed in lengths of powers of two from this one on, so that few programs are compiled.
const MIN_PROMPT: usize = 16;

impl<M: TextModel> Batcher<M> {
    /// Makes an empty cache for `slots` texts of at most `room` tokens, prompts included.
    ///
    /// You must pass at least one slot and some room, and the room must not exceed the model's positions.
    #[track_caller]
    pub fn new(model: M, slots: usize, room: usize) -> Result<Self> {
        let location = std::panic::Location::caller();
        let (cache, vocabulary) = new_cache(&model, slots, room).map_err(|error| error.at(location))?;
        let slots = (0..slots).map(|_| None).collect();
        Ok(Batcher { model, cache, slots, position: 0, room, vocabulary, next_text: 0 })
    }

    /// The number of texts that continue.
    pub fn active(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// True if no further text fits.
    pub fn is_full(&self) -> bool {
        self.slots.iter().all(Option::is_some)
    }

    /// Begins a text and returns its first token.
    ///
    /// One slot must be free. The prompt must not be empty, its tokens must be known, options must be in range, and the text must fit in the room.
    #[track_caller]
    pub fn add(&mut self, prompt: &[i32], options: &GenerateOptions) -> Result<NextToken> {
        let location = std::panic::Location::caller();
        self.begin(prompt, options).map_err(|error| error.at(location))
    }

    /// Computes the next token of each text.
    #[track_caller]
    pub fn step(&mut self) -> Result<Vec<NextToken>> {
        let location = std::panic::Location::caller();
        self.advance().map_err(|error| error.at(location))
    }

    /// Ends a text before its time.
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
            return Err(value_error("every slot has a text", "add it when another text has ended"));
        };
        let width = prompt.len().next_power_of_two().max(MIN_PROMPT).min(self.room);
        if self.position < width {
            self.shift(width as i64 - self.position as i64)?;
        }
        // Lengths are powers of two, so that few programs are compiled.
        let padding = width - prompt.len();
        let padded: Vec<i32> = std::iter::repeat_n(0, padding).chain(prompt.iter().copied()).collect();
        let tokens = Array::from_vec(padded, &[1, width])?;
        let text = Text { prompt, new: &[], options };
        let (form, controls) = sampling::controls(&[text], self.vocabulary, width)?;
        let draws = Array::from_vec(vec![options.seed, 0], &[1, 2])?;
        let arguments = (&self.model, tokens, array([padding as i32]), draws, controls, Static(form));
        let (one, next) = jit(first::<M>).call(arguments)?;
        let place = (array(free as i32), array((self.position - width) as i32));
        self.cache = jit(insert).donate_argnums([0]).call((std::mem::take(&mut self.cache), one, place.0, place.1))?;
        let token = next.to_vec::<i32>()?.first().copied().unwrap_or(NOT_A_TOKEN);
        let text = self.next_text;
        self.next_text += 1;
        let start = self.position - prompt.len();
        let slot = Slot { text, prompt: prompt.to_vec(), new: Vec::new(), options: options.clone(), start };
        self.slots[free] = Some(slot);
        self.written(free, token)
    }

    fn advance(&mut self) -> Result<Vec<NextToken>> {
        if self.active() == 0 {
            return Ok(Vec::new());
        }
        if self.position >= self.room {
            // The text that begins first has a token left to write: it does not begin at the first place.
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
                // A free slot computes a token that nobody reads, from itself alone.
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
        let tokens = next.to_vec::<i32>()?;
        let active: Vec<usize> = (0..count).filter(|slot| self.slots[*slot].is_some()).collect();
        active.into_iter().map(|slot| self.written(slot, tokens[slot])).collect()
    }

    /// Adds a token to a slot's text, and frees the slot if the text ends.
    fn written(&mut self, slot: usize, token: i32) -> Result<NextToken> {
        let entry = &mut self.slots[slot];
        let Some(Slot { text, new, options, .. }) = entry else {
            return Err(value_error("internal error: a free slot has a token", "please report this"));
        };
        if token == NOT_A_TOKEN {
            let message = format!("the model's logits for text {text} are NaN");
            *entry = None;
            return Err(value_error(message, "look for NaN in the model's weights"));
        }
        new.push(token);
        let end = match () {
            _ if options.stop_tokens.contains(&token) => Some(End::Stop),
            _ if new.len() >= options.max_new_tokens => Some(End::Length),
            _ => None,
        };
        let token_of_text = NextToken { text: *text, token, end };
        if end.is_some() {
            *entry = None;
        }
        Ok(token_of_text)
    }

    /// Moves all texts by a number of places.
    fn shift(&mut self, places: i64) -> Result<()> {
        if self.active() > 0 && places != 0 {
            let cache = std::mem::take(&mut self.cache);
            self.cache = jit(shifted).donate_argnums([0]).call((cache, array(places as i32)))?;
        }
        self.slots.iter_mut().flatten().for_each(|slot| slot.start = moved(slot.start, places));
        self.position = moved(self.position, places);
        Ok(())
    }
}

/// The key paths of caches end with this for the number of tokens, which the batcher counts itself.
const INDEX: &str = "cache_index";

/// The dimension of slots: keys and values end with places, heads and features, latents and values of convolutions with places and
/// features. Stacked layers come first.
fn slot_axis(path: &str, cache: &Array) -> i32 {
    let is_flat = ["latent.cached", "conv.cached", "delta.recent"].iter().any(|end| path.ends_with(end));
    cache.ndim() as i32 - if is_flat { 3 } else { 4 }
}

/// True for caches that have an entry for each place. States of linear attention have none.
fn has_places(path: &str) -> bool {
    !path.ends_with("delta.recent") && !path.ends_with("delta.state")
}

/// The cache with other arrays in the place of keys and values.
fn changed(cache: &ModuleState, change: impl Fn(&str, &Array) -> Array) -> ModuleState {
    let mut result = ModuleState::new();
    for (path, array) in cache.iter() {
        let array = if path.ends_with(INDEX) { array.clone() } else { change(path, array) };
        result.insert(path.to_owned(), array);
    }
    result
}

fn empty<M: TextModel>(model: M, sizes: Static<(usize, usize)>) -> Result<ModuleState> {
    let mut model = model.decoder()?;
    model.init_cache(sizes.0.0, sizes.0.1);
    Ok(model.state_of(Filter::of::<Cache>()))
}

/// Noise of Gumbel's distribution for each text, by its seed and its number of tokens.
fn noise(draws: &Array, vocabulary: usize) -> Array {
    vmap(move |draw: Array| {
        random::gumbel_dtype(random::fold_in(random::key(draw.get(0)), draw.get(1)), [vocabulary], DType::F32)
    })
    .call(draws)
    .unwrap_or_else(|error| Array::from_error(error, draws))
}

/// The logits of the last tokens, which are at these positions and see the places from `starts` on.
fn last_logits(model: &mut Decoder, tokens: Array, starts: &Array, room: usize) -> Array {
    let length = tokens.shape()[1] as i32;
    let starts = starts.expand_dims(1);
    let places = model.cached() + arange(0..length);
    let positions = maximum(places - &starts, 0);
    let mask = arange(0..room as i32).greater_equal(starts).expand_dims(1).expand_dims(1);
    model.decode_last(tokens, &positions, &mask).astype(DType::F32)
}

/// The cache of one prompt, and the token after it.
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

/// Puts the cache of one text into a slot.
fn insert(cache: ModuleState, one: ModuleState, slot: Array, place: Array) -> ModuleState {
    changed(&cache, |path, all| {
        let Some(new) = one.get(path) else { return all.clone() };
        let axis = slot_axis(path, all) as usize;
        let zero = zeros_dtype((), DType::I32);
        let starts: Vec<Array> = (0..all.ndim())
            .map(|dim| match dim {
                _ if dim == axis => slot.clone(),
                _ if dim == axis + 1 && has_places(path) => place.clone(),
                _ => zero.clone(),
            })
            .collect();
        lax::dynamic_update_slice(all, &new.astype(all.dtype()), &starts)
    })
}

/// Moves all places by a number, around the end.
fn shifted(cache: ModuleState, places: Array) -> ModuleState {
    changed(&cache, |path, all| {
        if !has_places(path) {
            return all.clone();
        }
        let axis = slot_axis(path, all) + 1;
        let room = all.shape()[axis as usize] as i32;
        let from = (arange(0..room) - &places + room) % room;
        take(all, from, axis)
    })
}

/// The next token of each slot.
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

fn moved(place: usize, places: i64) -> usize {
    (place as i64 + places).max(0) as usize
}

/// Creates the cache of the slots. Also returns the number of tokens that the model knows.
fn new_cache<M: TextModel>(model: &M, slots: usize, room: usize) -> Result<(ModuleState, usize)> {
    let shapes = eval_shape(|model: M| model.decoder(), model)?;
    let positions = shapes.max_positions();
    if slots == 0 || room < 2 || i32::try_from(room).is_err() || positions.is_some_and(|most| room > most) {
        let message = format!("{slots} slots of {room} tokens, and the model has {positions:?} positions");
        return Err(value_error(message, "pass at least one slot, and room for a prompt and a token"));
    }
    let cache = jit(empty::<M>).call((model, Static((slots, room))))?;
    Ok((cache, shapes.embed.embedding.shape().first().copied().unwrap_or(0)))
}
