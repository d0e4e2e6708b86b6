//! Broadcasting in models.

use shardax::{RankPromotion, RankPromotionGuard, numpy_rank_promotion};

/// Allows operands of different ranks until the guard is dropped, because the setting of a program is meant for the
/// operands in that program. Drop the guard before you call a function of the user.
pub(crate) fn allow_any_ranks() -> RankPromotionGuard {
    numpy_rank_promotion(RankPromotion::Allow)
}
