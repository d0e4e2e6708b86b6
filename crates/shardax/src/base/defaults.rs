//! The defaults on which a trace depends. A function that was traced under other defaults is traced again.

use crate::default_dtype;
use crate::forbidden_axes::Forbidden;
use crate::precision::{self, Precision};
use crate::prng::PrngImpl;
use crate::rank_promotion::RankPromotion;

/// The current defaults of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Defaults {
    /// The precision of matmuls.
    precision: Option<Precision>,
    /// The algorithm of random keys.
    prng: PrngImpl,
    /// The rule for operands of different ranks.
    rank_promotion: RankPromotion,
    /// `true` if floating point numbers without a dtype have 64 bits.
    x64: bool,
    /// The mesh axes over which communication is forbidden.
    forbidden: Forbidden,
}

impl Defaults {
    pub fn current() -> Defaults {
        Defaults {
            precision: precision::current(),
            prng: PrngImpl::default_of_process(),
            rank_promotion: RankPromotion::current(),
            x64: default_dtype::is_x64(),
            forbidden: Forbidden::current(),
        }
    }

    /// Describes the first difference between the current defaults and the defaults `before`.
    pub fn difference(self, before: Defaults) -> Option<String> {
        let told = |what: &str, now: String, before: String| Some(format!("{what}, now {now} and before {before}"));
        let precision = |p: Option<Precision>| p.map_or_else(|| "none".to_owned(), |p| format!("{p:?}"));
        if self.prng != before.prng {
            return told("the default PRNG", self.prng.to_string(), before.prng.to_string());
        }
        if self.rank_promotion != before.rank_promotion {
            return told("numpy_rank_promotion", self.rank_promotion.to_string(), before.rank_promotion.to_string());
        }
        if self.x64 != before.x64 {
            return told("enable_x64", self.x64.to_string(), before.x64.to_string());
        }
        if self.forbidden != before.forbidden {
            return told("the axes of no_collectives", self.forbidden.to_string(), before.forbidden.to_string());
        }
        if self.precision != before.precision {
            return told("the default matmul precision", precision(self.precision), precision(before.precision));
        }
        None
    }
}
