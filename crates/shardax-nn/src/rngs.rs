//! Streams of random keys, as Flax NNX's `Rngs` makes them.

use std::collections::BTreeMap;

use shardax::prelude::*;

use crate::{Policy, RngCount, RngKey, Rules};

/// One stream of random keys: a key, and how many keys were made of it. A tree.
///
/// [`Rngs::fork`] makes it; a layer that draws while a program runs, such as [`Dropout`](crate::Dropout), has one and takes
/// a key of it at each call.
#[derive(Tree, Clone, Debug)]
pub struct RngStream {
    key: RngKey,
    count: RngCount,
}

impl RngStream {
    /// The stream of this key.
    #[track_caller]
    pub fn new(key: Array) -> Self {
        RngStream { key: key.into(), count: zeros_dtype((), DType::U32).into() }
    }

    /// The next key: the stream's, folded with the count.
    #[track_caller]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Array {
        let key = random::fold_in(&*self.key, &*self.count);
        *self.count = &*self.count + 1;
        key
    }

    /// A stream of its own, from the next key.
    #[track_caller]
    pub fn fork(&mut self) -> Self {
        RngStream::new(self.next())
    }
}

/// Streams of random keys: each call gives a new one, the stream's key folded with a counter.
///
/// Layers draw from the stream `params`. A stream that was not given a seed of its own is the default one. Models made
/// with the same seed, layer by layer in the same order, have the same weights as in Flax NNX: each layer draws as many
/// keys as there, and [`fork`](Rngs::fork) draws what `nnx.Dropout(rate, rngs=rngs)` does.
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
    default: RngStream,
    named: BTreeMap<String, RngStream>,
    #[tree(static)]
    policy: Policy,
    #[tree(static)]
    rules: Rules,
}

impl Rngs {
    /// The default stream, from a seed.
    #[track_caller]
    pub fn new(seed: impl ArrayLike) -> Self {
        Rngs::from_key(random::key(seed))
    }

    /// The default stream, from a key.
    #[track_caller]
    pub fn from_key(key: Array) -> Self {
        Rngs {
            default: RngStream::new(key),
            named: BTreeMap::new(),
            policy: Policy::default(),
            rules: Rules::default(),
        }
    }

    /// The same, and a stream of its own, from a seed, under this name.
    #[track_caller]
    pub fn with(mut self, name: &str, seed: impl ArrayLike) -> Self {
        self.named.insert(name.to_owned(), RngStream::new(random::key(seed)));
        self
    }

    /// The same, for layers whose dtypes the policy says.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The same, for a model whose parts ask for these rules.
    pub fn with_rules(mut self, rules: &Rules) -> Self {
        self.rules = rules.clone();
        self
    }

    /// The dtypes of the layers that are made with it.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The rules that the model constrains its activations by.
    pub fn rules(&self) -> Rules {
        self.rules.clone()
    }

    /// The next key of the stream of this name, or of the default stream where there is none.
    #[track_caller]
    pub fn next(&mut self, name: &str) -> Array {
        self.stream(name).next()
    }

    /// Returns a stream of its own, from the next key of the stream of this name, as a layer that draws has one.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut stream = Rngs::new(0).fork("noise");
    /// assert_ne!(stream.next().to_vec::<u32>()?, stream.next().to_vec::<u32>()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn fork(&mut self, name: &str) -> RngStream {
        self.stream(name).fork()
    }

    /// Streams for `n` copies of a layer, along a new leading dimension of their keys: each stream's next key is split, as
    /// `nnx.split_rngs(splits=n)` does.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let make = |mut rngs: Rngs| Linear::new(2, 3, &mut rngs);
    /// let four = vmap(make).call(Rngs::new(0).split(4))?;
    /// assert_eq!(four.kernel.shape(), [4, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&mut self, n: usize) -> Self {
        let mut split = self.clone();
        let streams = self.named.values_mut().zip(split.named.values_mut());
        for (own, copies) in std::iter::once((&mut self.default, &mut split.default)).chain(streams) {
            *copies =
                RngStream { key: random::split(&own.next(), n).into(), count: zeros_dtype([n], DType::U32).into() };
        }
        split
    }

    fn stream(&mut self, name: &str) -> &mut RngStream {
        self.named.get_mut(name).unwrap_or(&mut self.default)
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
