//! Broadcasting of operands of different ranks: allowed, with a warning, or an error.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::error::{Result, err};
use crate::local::{Guard, Guarded, GuardedKey};
use crate::source;
use crate::warning;

/// The rule for operands of different ranks if none of them is a scalar, such as `float32[3]` next to `float32[2,3]`
/// (JAX's `jax_numpy_rank_promotion`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankPromotion {
    /// They are broadcast as in NumPy: leading dimensions are added. The default.
    #[default]
    Allow,
    /// They are broadcast, with a warning.
    Warn,
    /// They are an error.
    Raise,
}

/// The rule of the process, by its position in [`RankPromotion::ALL`].
static PROCESS: AtomicU8 = AtomicU8::new(0);

// A guard's rule has priority over the rule of the process, and holds on one thread only.
thread_local! {
    static THREAD: Guarded<Choice<RankPromotion>> = const { Guarded::new() };
}

impl NamedOption for RankPromotion {
    const KIND: &'static str = "rule";
    const NAMES: &'static [(&'static str, Self)] =
        &[("allow", RankPromotion::Allow), ("warn", RankPromotion::Warn), ("raise", RankPromotion::Raise)];
}

impl RankPromotion {
    const ALL: [RankPromotion; 3] = [RankPromotion::Allow, RankPromotion::Warn, RankPromotion::Raise];

    /// Returns JAX's name: `allow`, `warn` or `raise`.
    pub fn name(self) -> &'static str {
        match self {
            RankPromotion::Allow => "allow",
            RankPromotion::Warn => "warn",
            RankPromotion::Raise => "raise",
        }
    }

    /// Returns the rule with this name.
    ///
    /// # Errors
    /// Returns an error for any other name.
    pub fn from_name(name: &str) -> Result<RankPromotion> {
        RankPromotion::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
            err!(Value, "numpy_rank_promotion must be allow, warn or raise, got {name:?}")
                .help("write one of the three names, in lower case")
        })
    }

    /// The current rule of this thread, or the text of a guard that names none.
    pub(crate) fn current() -> Choice<RankPromotion> {
        THREAD.with_last(|rule| rule.copied()).unwrap_or_else(|| {
            let index = usize::from(PROCESS.load(Relaxed));
            Choice::Value(RankPromotion::ALL.get(index).copied().unwrap_or_default())
        })
    }

    /// Sets the rule of the process.
    pub(crate) fn set_of_process(self) {
        PROCESS.store(RankPromotion::ALL.iter().position(|rule| *rule == self).unwrap_or(0) as u8, Relaxed);
    }
}

impl fmt::Display for RankPromotion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Restores the previous rule when dropped.
#[must_use = "the rule holds only while the guard lives"]
pub struct RankPromotionGuard {
    _guard: Guard<Choice<RankPromotion>>,
}

/// Sets the rule for operands of different ranks on this thread until the guard is dropped (JAX's context manager of
/// that name). To set the rule of the process, use
/// [`config::set_numpy_rank_promotion`](crate::config::set_numpy_rank_promotion). A function that was traced under
/// another rule is traced again.
///
/// The rule applies to the operands of operators and of elementwise functions such as `maximum`, as in JAX. Other functions
/// and layers always broadcast as they need.
///
/// The rule is a [`RankPromotion`] or JAX's text for one. While the guard of an unknown text lives, operands of different
/// ranks are an error that lists the names.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy_rank_promotion;
/// let (x, y) = (ones([2, 3]), ones(3));
/// assert!((&x + &y).check().is_ok());
/// let _strict = numpy_rank_promotion("raise");
/// let error = (&x + &y).check().unwrap_err().to_string();
/// assert!(error.contains("Operands could not be broadcast together for add on shapes (2, 3) (3,)"), "{error}");
/// assert!((&x + y.expand_dims(0)).check().is_ok());
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn numpy_rank_promotion(rule: impl IntoChoice<RankPromotion>) -> RankPromotionGuard {
    RankPromotionGuard { _guard: THREAD.guard(rule.into_choice()) }
}

/// Allows operands of different ranks until the guard is dropped. A function of the library that broadcasts its own
/// arrays begins with it, because the rule is for the operands of the user's program. It must not hold while functions of
/// the user run.
#[must_use = "other ranks are allowed only while the guard lives"]
pub(crate) fn allow() -> Guard<Choice<RankPromotion>> {
    THREAD.guard(Choice::Value(RankPromotion::Allow))
}

/// Applies the rule to operands. If operands that are not scalars differ in rank, it fails or warns.
#[track_caller]
pub(crate) fn check<'a>(name: &str, shapes: impl Iterator<Item = &'a [usize]> + Clone) -> Result<()> {
    let mut ranks = shapes.clone().map(<[usize]>::len).filter(|rank| *rank > 0);
    let rank_of_first = ranks.next();
    if ranks.all(|rank| Some(rank) == rank_of_first) {
        return Ok(());
    }
    // The rule is read only for shapes of different ranks, because this function runs before every eager operation.
    let rule = RankPromotion::current().value("numpy_rank_promotion")?;
    if rule == RankPromotion::Allow {
        return Ok(());
    }
    let shapes: Vec<String> = shapes
        .map(|shape| match shape {
            [size] => format!("({size},)"),
            sizes => format!("({})", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        })
        .collect();
    let shapes = shapes.join(" ");
    const HELP: &str = "expand all operands to the same number of dimensions with `expand_dims` or `reshape`, or allow promotion: `config::set_numpy_rank_promotion(RankPromotion::Allow)`";
    if rule == RankPromotion::Raise {
        let config = "and with the config option numpy_rank_promotion='raise'";
        return Err(
            err!(Value, "Operands could not be broadcast together for {name} on shapes {shapes} {config}").help(HELP)
        );
    }
    let _line = source::enter();
    warning::warn(&format!("Following NumPy automatic rank promotion for {name} on shapes {shapes}."), HELP);
    Ok(())
}
