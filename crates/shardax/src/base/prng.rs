//! The algorithms of random keys, and the default one.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::dtype::DType;
use crate::error::{Result, err};

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
    /// The device's own generator (JAX's `rbg`). Keys are split like Threefry keys. Bits differ between platforms, and
    /// can differ between versions of XLA; on CPU they do not depend on how arrays are sharded. `vmap` over keys draws
    /// for one key after the other, while JAX draws for all keys with the first one.
    Rbg,
}

/// `true` if keys that do not name an algorithm are `rbg`.
static RBG: AtomicBool = AtomicBool::new(false);

impl PrngImpl {
    const ALL: [PrngImpl; 2] = [PrngImpl::Threefry2x32, PrngImpl::Rbg];

    /// Returns the algorithm of [`random::key`](crate::random::key()), as set by
    /// [`config::set_default_prng_impl`](crate::config::set_default_prng_impl).
    pub fn default_of_process() -> PrngImpl {
        if RBG.load(Relaxed) { PrngImpl::Rbg } else { PrngImpl::Threefry2x32 }
    }

    /// Sets the algorithm of keys that do not name one.
    pub(crate) fn set_default(self) {
        RBG.store(self == PrngImpl::Rbg, Relaxed);
    }

    /// Returns JAX's name: `threefry2x32` or `rbg`.
    pub fn name(self) -> &'static str {
        match self {
            PrngImpl::Threefry2x32 => "threefry2x32",
            PrngImpl::Rbg => "rbg",
        }
    }

    /// Returns the algorithm with this name.
    ///
    /// # Errors
    /// Returns an error for any other name.
    pub fn from_name(name: &str) -> Result<PrngImpl> {
        PrngImpl::ALL.into_iter().find(|prng| prng.name() == name).ok_or_else(|| {
            err!(Value, "the PRNG implementation must be threefry2x32 or rbg, got {name:?}")
                .help("JAX's unsafe_rbg has no counterpart: its keys are hashed less well than the keys of rbg")
        })
    }

    /// Returns the dtype of keys of this algorithm.
    pub fn dtype(self) -> DType {
        match self {
            PrngImpl::Threefry2x32 => DType::Key,
            PrngImpl::Rbg => DType::KeyRbg,
        }
    }

    /// Returns the algorithm of keys of this dtype.
    pub fn of(dtype: DType) -> Option<PrngImpl> {
        PrngImpl::ALL.into_iter().find(|prng| prng.dtype() == dtype)
    }

    /// The number of words of a key.
    pub(crate) fn words(self) -> usize {
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
