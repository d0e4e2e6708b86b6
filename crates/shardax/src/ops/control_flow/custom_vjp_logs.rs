//! `custom_vjp` functions whose backward rules log values.

use super::custom_vjp::{NondiffBwd, NondiffFwd};
use super::{CustomVjp, CustomVjpPrimal, NondiffVjp, RematRules, RematVjp, SymbolicVjp, WithZeros};
use crate::core::array::Array;
use crate::core::function::{Argnums, Function};
use crate::core::tree::{Compose, Tree};
use crate::error::Result;
use crate::interpret::backward_logs;

/// A backward rule that returns its cotangents and the entries that it logs; see [`CustomVjp::defvjp_with_logs`].
pub struct LoggingBwd<Bwd>(Bwd);

impl<Bwd, Args, Cts, Logs> Function<Args> for LoggingBwd<Bwd>
where
    Bwd: Function<Args, Output = (Cts, Logs)>,
    Args: Tree,
    Cts: Tree,
    Logs: Tree,
{
    type Output = Cts;

    fn apply(&self, args: Args) -> Result<Cts> {
        let (cts, logs) = self.0.apply(args)?;
        backward_logs::record(backward_logs::entries_of(&logs)?)?;
        Ok(cts)
    }
}

impl<F: Function<Args>, Args: Tree> CustomVjp<F, Args> {
    /// Sets rules whose `bwd` also logs values (JAX's `defvjp_with_logs`): it returns a pair, the cotangents and a map
    /// or a struct of the values, or `()`. [`VjpFn::with_logs`](crate::VjpFn::with_logs) returns the values by key. Other
    /// derivatives, such as `grad`, drop the values, and a compiled program does not compute them.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// #[derive(Tree, Clone)]
    /// struct Log { norm: Array }
    ///
    /// // The identity, which logs the norm of its cotangent.
    /// let probe = custom_vjp(|x: Array| x).defvjp_with_logs(
    ///     |x: Array| (x, ()),
    ///     |(), ct: Array| ((ct.clone(),), Log { norm: ct.square().sum(..).sqrt() }),
    /// );
    /// let (_, pull_back) = vjp(move |x: Array| probe.call(x), array([1.0f32, 2.0]))?;
    /// let (_, logs) = pull_back.with_logs(array([3.0f32, 4.0]))?;
    /// assert_eq!(logs["norm"].build::<Array>()?.item::<f32>()?, 5.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// The backward pass fails if two of its rules log the same key, even if the values are dropped.
    pub fn defvjp_with_logs<Fwd, Bwd, Res, Cts, Logs>(
        self,
        fwd: Fwd,
        bwd: Bwd,
    ) -> CustomVjp<F, Args, (Fwd, LoggingBwd<Bwd>)>
    where
        Fwd: Function<Args, Output = (F::Output, Res)> + Send + Sync + 'static,
        Bwd: Function<(Res, F::Output), Output = (Cts, Logs)> + Send + Sync + 'static,
        Res: Tree,
        Cts: Tree,
        Logs: Tree,
    {
        self.defvjp(fwd, LoggingBwd(bwd))
    }

    /// Like [`defremat`](Self::defremat), with a `bwd` that also logs values, as in
    /// [`defvjp_with_logs`](Self::defvjp_with_logs) (JAX's `defremat_with_logs`).
    pub fn defremat_with_logs<Fwd, Rem, Bwd, Res, Again, Cts, Logs>(
        self,
        fwd: Fwd,
        rem: Rem,
        bwd: Bwd,
    ) -> RematVjp<F, Fwd, Args, Res, RematRules<Rem, LoggingBwd<Bwd>, Res, Again>>
    where
        Fwd: Function<Args, Output = (F::Output, Res)>,
        Rem: Function<(Res, Args), Output = (F::Output, Again)> + Send + Sync + 'static,
        Bwd: Function<(Again, F::Output), Output = (Cts, Logs)> + Send + Sync + 'static,
        Res: Tree + 'static,
        Again: Tree + 'static,
        Cts: Tree,
        Logs: Tree,
    {
        self.defremat(fwd, rem, LoggingBwd(bwd))
    }
}

impl<F: Function<Args>, Args: Tree, N: Argnums<Args>> NondiffVjp<F, Args, N> {
    /// Sets rules whose `bwd` also logs values; see [`CustomVjp::defvjp_with_logs`].
    pub fn defvjp_with_logs<Fwd, Bwd, Res, Cts, Logs>(
        self,
        fwd: Fwd,
        bwd: Bwd,
    ) -> CustomVjp<F, Args, (NondiffFwd<Fwd, Args, N>, NondiffBwd<LoggingBwd<Bwd>, Args, N>)>
    where
        Fwd: Function<Args, Output = (F::Output, Res)> + Send + Sync + 'static,
        Bwd: Function<(N::Gradient, Res, F::Output), Output = (Cts, Logs)> + Send + Sync + 'static,
        Res: Tree,
        Cts: Tree,
        Logs: Tree,
    {
        self.defvjp(fwd, LoggingBwd(bwd))
    }
}

impl<F: Function<Args>, Args: Compose<CustomVjpPrimal>> SymbolicVjp<F, Args> {
    /// Sets rules whose `bwd` also logs values; see [`CustomVjp::defvjp_with_logs`].
    pub fn defvjp_with_logs<Fwd, Bwd, Res, Cts, Logs>(
        self,
        fwd: Fwd,
        bwd: Bwd,
    ) -> CustomVjp<F, Args, WithZeros<(Fwd, LoggingBwd<Bwd>)>>
    where
        F::Output: Compose<Option<Array>>,
        Fwd: Function<Args::Composed, Output = (F::Output, Res)> + Send + Sync + 'static,
        Bwd: Function<(Res, <F::Output as Compose<Option<Array>>>::Composed), Output = (Cts, Logs)>
            + Send
            + Sync
            + 'static,
        Res: Tree,
        Cts: Tree,
        Logs: Tree,
    {
        self.defvjp(fwd, LoggingBwd(bwd))
    }
}
