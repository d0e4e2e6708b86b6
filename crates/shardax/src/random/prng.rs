//! Making keys of an algorithm.

use super::keys::{Kind, check_data, wrapped};
use super::{made, seeded};
use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
pub use crate::prng::PrngImpl;

impl PrngImpl {
    /// A key of this algorithm: see [`random::key`](super::key()).
    #[track_caller]
    pub fn key(self, seed: impl ArrayLike) -> Array {
        let seed = seed.into_array();
        let kind = Kind::Typed(self);
        made(|| seeded(&seed, kind), || kind.failed())
    }

    /// The words of a [`key`](Self::key), uint32: two of Threefry, four of `rbg`. See
    /// [`random::PRNGKey`](super::PRNGKey).
    #[track_caller]
    pub fn raw_key(self, seed: impl ArrayLike) -> Array {
        let seed = seed.into_array();
        let kind = Kind::Raw(self);
        made(|| seeded(&seed, kind), || kind.failed())
    }

    /// The keys with these words: see [`random::wrap_key_data`](super::wrap_key_data).
    ///
    /// Fails for words of another dtype or shape, and for words of `rbg` whose last two differ from the first two. All keys
    /// that are made of seeds, by splitting and by folding in have equal ones; use others as raw keys. In a traced
    /// function words of `rbg` have no values to compare, and fail too.
    #[track_caller]
    pub fn wrap_key_data(self, words: impl std::borrow::Borrow<Array>) -> Array {
        let words = words.borrow();
        made(|| check_data(self, words).and_then(|()| wrapped(self, words)), || words.clone())
    }
}
