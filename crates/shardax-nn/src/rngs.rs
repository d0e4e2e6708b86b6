//! Streams of random keys, as Flax NNX's `Rngs` makes them.

use std::collections::BTreeMap;

use shardax::prelude::*;

/// A key, and how many keys were made of it.
#[derive(Tree, Clone, Debug)]
struct Stream {
    key: Array,
    count: Array,
}

impl Stream {
    #[track_caller]
    fn new(key: Array) -> Self {
        Stream { key, count: zeros_dtype((), DType::U32) }
    }

    #[track_caller]
    fn next(&mut self) -> Array {
        let key = random::fold_in(&self.key, &self.count);
        self.count = &self.count + 1;
        key
    }
}

/// Streams of random keys: each call gives a new one, the stream's key folded with a counter.
///
/// Layers draw from the stream `params`. A stream that was not given a seed of its own is the default one. Models made
/// with the same seed, layer by layer in the same order, have the same weights as in Flax NNX.
///
/// It is a tree, so a compiled function can take it and return it.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0).with("dropout", 7);
/// let layer = Linear::new(4, 2, &mut rngs);
/// let key = rngs.dropout();
/// assert_eq!(key.shape(), [2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct Rngs {
    default: Stream,
    named: BTreeMap<String, Stream>,
}

impl Rngs {
    /// The default stream, from a seed.
    #[track_caller]
    pub fn new(seed: impl Operand) -> Self {
        Rngs::from_key(random::key(seed))
    }

    /// The default stream, from a key.
    #[track_caller]
    pub fn from_key(key: Array) -> Self {
        Rngs { default: Stream::new(key), named: BTreeMap::new() }
    }

    /// The same, and a stream of its own, from a seed, under this name.
    #[track_caller]
    pub fn with(mut self, name: &str, seed: impl Operand) -> Self {
        self.named.insert(name.to_owned(), Stream::new(random::key(seed)));
        self
    }

    /// The next key of the stream of this name, or of the default stream where there is none.
    #[track_caller]
    pub fn next(&mut self, name: &str) -> Array {
        self.named.get_mut(name).unwrap_or(&mut self.default).next()
    }

    /// The next key for weights.
    #[track_caller]
    pub fn params(&mut self) -> Array {
        self.next("params")
    }

    /// The next key for dropout.
    #[track_caller]
    pub fn dropout(&mut self) -> Array {
        self.next("dropout")
    }
}
