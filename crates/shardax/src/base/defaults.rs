//! The defaults on which a trace depends. A function that was traced under other defaults is traced again.

use crate::choice::Choice;
use crate::default_dtype;
use crate::forbidden_axes::Forbidden;
use crate::precision::{self, Precision};
use crate::prng::PrngImpl;
use crate::rank_promotion::RankPromotion;

/// The current defaults of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Defaults {
    /// The precision of matmuls.
    precision: Option<Choice<Precision>>,
    /// The algorithm of random keys.
    prng: PrngImpl,
    /// The rule for operands of different ranks.
    rank_promotion: Choice<RankPromotion>,
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
        let pairs = self.described().into_iter().zip(before.described());
        let mut differences = pairs.filter(|((_, pairs), (_, before))| pairs != before);
        differences.next().map(|((name, pairs), (_, before))| format!("{name}, now {pairs} and before {before}"))
    }

    /// The name and the value of each default, for errors.
    fn described(self) -> [(&'static str, String); 5] {
        [
            ("the default PRNG", self.prng.to_string()),
            ("numpy_rank_promotion", self.rank_promotion.described().to_lowercase()),
            ("enable_x64", self.x64.to_string()),
            ("the axes of no_collectives", self.forbidden.to_string()),
            ("the default matmul precision", self.precision.map_or_else(|| "none".to_owned(), Choice::described)),
        ]
    }
}
