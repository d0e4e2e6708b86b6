//! Broadcasting in layers and losses.

use shardax::{RankPromotion, RankPromotionGuard, numpy_rank_promotion};

/// Allows operands of different ranks until the guard is dropped, because the rule that a program sets is for the program's
/// own operands. The guard must not hold while functions of the user run.
pub(crate) fn allow_any_ranks() -> RankPromotionGuard {
    numpy_rank_promotion(RankPromotion::Allow)
}
