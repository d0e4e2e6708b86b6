//! Streams of random keys, like Flax NNX's `Rngs`.

use std::collections::BTreeMap;

use shardax::prelude::*;

use crate::{Policy, RngCount, RngKey, Rules};

/// One stream of random keys: a key, and the number of keys that were drawn from it. It is a tree.
///
/// [`Rngs::fork`] creates a stream. A layer that draws keys while a program runs, such as [`Dropout`](crate::Dropout), has
/// a stream and draws a key from it at each call.
#[derive(Tree, Clone, Debug)]
pub struct RngStream {
    key: RngKey,
    count: RngCount,
}

impl RngStream {
    /// Creates a stream from a key.
    #[track_caller]
    pub fn new(key: Array) -> Self {
        RngStream { key: key.into(), count: zeros_dtype((), DType::U32).into() }
    }

    /// Returns the next key: the stream's key, folded with the count.
    #[track_caller]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Array {
        let key = random::fold_in(&*self.key, &*self.count);
        *self.count = &*self.count + 1;
        key
    }

    /// Creates an independent stream from the next key.
    #[track_caller]
    pub fn fork(&mut self) -> Self {
        RngStream::new(self.next())
    }
}

/// Streams of random keys. Each call returns a new key: the stream's key, folded with a counter.
///
/// Layers draw from the stream `params`. A name without its own seed uses the default stream. If you build a model with
/// the same seed as in Flax NNX, and with its layers in the same order, it has the same weights: each layer draws the same
/// number of keys, and [`fork`](Rngs::fork) draws the key that `nnx.Dropout(rate, rngs=rngs)` draws.
///
/// It is a tree, so a compiled function can accept and return it.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0).with("dropout", 7);
/// let layer = Linear::new(4, 2, &mut rngs);
/// let key = rngs.dropout();
/// assert_eq!(key.type_name(), "key<fry>[]");
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

/// Returns the key of a seed. A typed key is returned as it is, as in Flax.
#[track_caller]
fn key_for(seed: impl ArrayLike) -> Array {
    let seed = seed.into_array();
    if seed.dtype().is_key() { seed } else { random::key(seed) }
}

impl Rngs {
    /// Creates the default stream from a seed, or from a typed key.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// // Four models with different weights.
    /// let init = |key: Array| Linear::new(2, 3, &mut Rngs::new(key));
    /// let models = vmap(init).call(random::split(random::key(0), 4))?;
    /// assert_eq!(models.kernel.shape(), [4, 2, 3]);
    ///
    /// let same = Rngs::new(random::key(7)).next("params").equal(Rngs::new(7).next("params"));
    /// assert!(same.item::<bool>()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn new(seed: impl ArrayLike) -> Self {
        Rngs::from_key(key_for(seed))
    }

    /// Creates the default stream from a key.
    #[track_caller]
    pub fn from_key(key: Array) -> Self {
        Rngs {
            default: RngStream::new(key),
            named: BTreeMap::new(),
            policy: Policy::default(),
            rules: Rules::default(),
        }
    }

    /// Adds a stream of this name, from a seed or from a typed key.
    #[track_caller]
    pub fn with(mut self, name: &str, seed: impl ArrayLike) -> Self {
        self.named.insert(name.to_owned(), RngStream::new(key_for(seed)));
        self
    }

    /// Sets the policy: the dtypes of the layers built with these streams.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the sharding rules of the model built with these streams.
    pub fn with_rules(mut self, rules: &Rules) -> Self {
        self.rules = rules.clone();
        self
    }

    /// Returns the policy: the dtypes of layers that are built with these streams.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the rules that shard the model's activations.
    pub fn rules(&self) -> Rules {
        self.rules.clone()
    }

    /// Returns the next key of the stream with this name, or of the default stream if there is no such stream.
    #[track_caller]
    pub fn next(&mut self, name: &str) -> Array {
        self.stream(name).next()
    }

    /// Creates an independent stream from the next key of the stream with this name, for a layer that draws keys.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut stream = Rngs::new(0).fork("noise");
    /// assert!(stream.next().not_equal(stream.next()).item::<bool>()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn fork(&mut self, name: &str) -> RngStream {
        self.stream(name).fork()
    }

    /// Creates streams for `n` copies of a layer, along a new leading dimension of their keys. The next key of each
    /// stream is split, as in `nnx.split_rngs(splits=n)`.
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
        for (stream, copies) in std::iter::once((&mut self.default, &mut split.default)).chain(streams) {
            *copies =
                RngStream { key: random::split(&stream.next(), n).into(), count: zeros_dtype([n], DType::U32).into() };
        }
        split
    }

    /// Returns the next key of the default stream (NNX's `rngs()`).
    #[track_caller]
    pub fn key(&mut self) -> Array {
        self.default.next()
    }

    /// Returns normal random numbers of the default stream; see [`random::normal`]. For another stream write
    /// `random::normal(rngs.params(), shape)`.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let x = rngs.normal(3); // Flax NNX computes the same numbers
    /// assert!(allclose(&x, array([1.0040143f32, -0.9063372, -0.7481722]), 1e-5, 0.0)?);
    /// assert_eq!(rngs.uniform((2, 4)).shape(), [2, 4]); // from the next key
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "the numbers have the default dtype of the program")]
    pub fn normal(&mut self, shape: impl IntoShape) -> Array {
        random::normal(self.key(), shape)
    }

    /// Returns uniform random numbers of the default stream, between 0 and 1; see [`random::uniform`].
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "the numbers have the default dtype of the program")]
    pub fn uniform(&mut self, shape: impl IntoShape) -> Array {
        random::uniform(self.key(), shape)
    }

    fn stream(&mut self, name: &str) -> &mut RngStream {
        self.named.get_mut(name).unwrap_or(&mut self.default)
    }

    /// Returns the next key for weights.
    #[track_caller]
    pub fn params(&mut self) -> Array {
        self.next("params")
    }

    /// Returns the next key for dropout.
    #[track_caller]
    pub fn dropout(&mut self) -> Array {
        self.next("dropout")
    }
}
