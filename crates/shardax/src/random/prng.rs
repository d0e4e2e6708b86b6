//! Keys of a given algorithm.

use super::keys::{Kind, check_data, wrapped};
use super::{or_failed, seeded};
use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
pub use crate::prng::PrngImpl;

impl PrngImpl {
    /// Creates a key of this algorithm: see [`random::key`](super::key()).
    #[track_caller]
    pub fn key(self, seed: impl ArrayLike) -> Array {
        let seed = seed.into_array();
        let kind = Kind::Typed(self);
        or_failed(|| kind.failed(), || seeded(&seed, kind))
    }

    /// Returns the words of a [`key`](Self::key) as uint32: two for Threefry, four for `rbg`. See
    /// [`random::PRNGKey`](super::PRNGKey).
    #[track_caller]
    pub fn raw_key(self, seed: impl ArrayLike) -> Array {
        let seed = seed.into_array();
        let kind = Kind::Raw(self);
        or_failed(|| kind.failed(), || seeded(&seed, kind))
    }

    /// Returns the keys with these words: see [`random::wrap_key_data`](super::wrap_key_data).
    ///
    /// # Errors
    /// The result carries an error for words of another dtype or shape, and for words of `rbg` whose last two differ
    /// from the first two. Keys that come from seeds, `split` and `fold_in` have equal pairs; you can use other words
    /// as raw keys. Words of `rbg` also fail in a traced function, because they have no values to compare there.
    #[track_caller]
    pub fn wrap_key_data(self, words: impl std::borrow::Borrow<Array>) -> Array {
        let words = words.borrow();
        or_failed(|| words.clone(), || check_data(self, words).and_then(|()| wrapped(self, words)))
    }
}
