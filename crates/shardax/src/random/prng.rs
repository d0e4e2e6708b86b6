//! The algorithms of keys, and how a key of each is stored.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::keys::{Kind, check_data, wrapped};
use super::{made, seeded};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;

/// The algorithm of random keys (JAX's `impl`).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::random::PrngImpl;
/// let key = PrngImpl::Rbg.key(42);
/// assert_eq!(key.type_name(), "key<rbg>[]");
/// assert_eq!(random::bits(&key, [2]).to_vec::<u32>()?, [2620864722, 2991908441]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PrngImpl {
    /// Threefry-2x32, the default: equal bits on all platforms, however arrays are sharded.
    Threefry2x32,
    /// The device's own generator (JAX's `rbg`), which is faster on TPUs. Keys are split as those of Threefry are. Bits differ
    /// between platforms, may differ between versions of XLA, and devices that share an array each draw all of it.
    /// `vmap` over keys draws for one key after the other; JAX draws for all with the first key.
    Rbg,
}

/// `true` if keys are `rbg` unless their algorithm is named.
static RBG: AtomicBool = AtomicBool::new(false);

impl PrngImpl {
    /// The algorithm of [`random::key`](super::key()): the one that [`config::set_default_prng_impl`] set.
    ///
    /// [`config::set_default_prng_impl`]: crate::config::set_default_prng_impl
    pub fn default_of_process() -> PrngImpl {
        if RBG.load(Relaxed) { PrngImpl::Rbg } else { PrngImpl::Threefry2x32 }
    }

    /// Sets the algorithm of keys whose algorithm is not named; returns the one before.
    pub(crate) fn set_default(self) -> PrngImpl {
        if RBG.swap(self == PrngImpl::Rbg, Relaxed) { PrngImpl::Rbg } else { PrngImpl::Threefry2x32 }
    }

    /// JAX's name: `threefry2x32` or `rbg`.
    pub fn name(self) -> &'static str {
        match self {
            PrngImpl::Threefry2x32 => "threefry2x32",
            PrngImpl::Rbg => "rbg",
        }
    }

    /// The algorithm of this name.
    ///
    /// Fails for any other.
    pub fn from_name(name: &str) -> Result<PrngImpl> {
        [PrngImpl::Threefry2x32, PrngImpl::Rbg].into_iter().find(|prng| prng.name() == name).ok_or_else(|| {
            err!(Value, "the PRNG implementation must be threefry2x32 or rbg, got {name:?}")
                .help("JAX's unsafe_rbg has no counterpart: its keys are hashed less well than those of rbg")
        })
    }

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

    /// The dtype of keys.
    pub fn dtype(self) -> DType {
        match self {
            PrngImpl::Threefry2x32 => DType::Key,
            PrngImpl::Rbg => DType::KeyRbg,
        }
    }

    /// The algorithm of keys of this dtype.
    pub fn of(dtype: DType) -> Option<PrngImpl> {
        [PrngImpl::Threefry2x32, PrngImpl::Rbg].into_iter().find(|prng| prng.dtype() == dtype)
    }

    /// The number of words of a key.
    pub(super) fn words(self) -> usize {
        match self {
            PrngImpl::Threefry2x32 => 2,
            PrngImpl::Rbg => 4,
        }
    }
}

impl fmt::Display for PrngImpl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
