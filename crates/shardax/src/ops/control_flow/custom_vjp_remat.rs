//! `custom_vjp` functions with rules for rematerialization.

use std::marker::PhantomData;
use std::sync::Arc;

use super::custom_vjp::check_count;
use super::{CustomVjp, VjpRules};
use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, is_tracing};
use crate::core::tree::{self, Flat, Static, Tree};
use crate::error::Result;
use crate::interpret::higher_order::zeros;
use crate::ops::primitive::checkpoint::Name;
use crate::ops::primitive::checkpoint_policy::ALWAYS_SAVED;
use crate::ops::primitive::stop_gradient::stop_gradient;

/// A function with custom rules for reverse-mode differentiation and rematerialization; see [`CustomVjp::defremat`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct RematVjp<F, Fwd, Args, Res, Rules> {
    f: F,
    fwd: Fwd,
    rules: Arc<Rules>,
    types: PhantomData<fn(Args) -> Res>,
}

/// The rules that run after the forward pass: the recomputation and the backward pass. `Res` is the type of the
/// residuals that `rem` receives, `Again` of the residuals that `bwd` receives.
pub struct RematRules<Rem, Bwd, Res, Again> {
    rem: Rem,
    bwd: Bwd,
    types: PhantomData<fn(Res) -> Again>,
}

impl<F: Function<Args>, Args: Tree> CustomVjp<F, Args> {
    /// Sets the rules, including one for rematerialization (JAX's `defremat`). Under [`checkpoint`](crate::checkpoint()),
    /// only the residuals of `fwd` are saved, whatever the policy is.
    ///
    /// `fwd` receives the arguments and returns the result and these residuals. `rem` receives the residuals and the
    /// tuple of arguments, and returns the result again and the residuals of `bwd`. `bwd` receives these residuals and
    /// the cotangent of the result. Outside of `checkpoint`, `rem` runs after `fwd` in the forward pass. A function
    /// that is traced but not differentiated runs `fwd`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// // Saves a sum, and recomputes the normalized values.
    /// let normalize = custom_vjp(|x: Array| &x / x.sum(..)).defremat(
    ///     |x: Array| (&x / x.sum(..), x.sum(..)),
    ///     |sum: Array, (x,): (Array,)| (&x / &sum, (x / &sum, sum)),
    ///     |(y, sum): (Array, Array), ct: Array| ((&ct - (&ct * &y).sum(..)) / sum,),
    /// );
    /// let f = checkpoint(move |x: Array| -> Result<Array> { Ok(normalize.call(x)?.square().sum(..)) });
    /// let slope = grad(f).call(array([1.0f32, 3.0]))?;
    /// assert!(allclose(slope, array([-0.1875f32, 0.0625]), 1e-5, 1e-6)?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn defremat<Fwd, Rem, Bwd, Res, Again, Cts>(
        self,
        fwd: Fwd,
        rem: Rem,
        bwd: Bwd,
    ) -> RematVjp<F, Fwd, Args, Res, RematRules<Rem, Bwd, Res, Again>>
    where
        Fwd: Function<Args, Output = (F::Output, Res)>,
        Rem: Function<(Res, Args), Output = (F::Output, Again)> + Send + Sync + 'static,
        Bwd: Function<(Again, F::Output), Output = Cts> + Send + Sync + 'static,
        Res: Tree + 'static,
        Again: Tree + 'static,
        Cts: Tree,
    {
        let rules = Arc::new(RematRules { rem, bwd, types: PhantomData });
        RematVjp { f: self.f, fwd, rules, types: PhantomData }
    }
}

/// Names a value so that every policy of `checkpoint` saves it.
fn always_saved(x: Array) -> Array {
    if x.is_traced() { bind1(Name { name: ALWAYS_SAVED.to_owned() }, &[x]) } else { x }
}

fn first<Out: Tree, Res: Tree, Args: Tree>(out: Out, _residuals: Res, _args: Args) -> Out {
    out
}

impl<F, Fwd, Args, Res, Rem, Bwd, Again, Cts> Function<Args>
    for RematVjp<F, Fwd, Args, Res, RematRules<Rem, Bwd, Res, Again>>
where
    F: Function<Args>,
    Fwd: Function<Args, Output = (F::Output, Res)>,
    Rem: Function<(Res, Args), Output = (F::Output, Again)> + Send + Sync + 'static,
    Bwd: Function<(Again, F::Output), Output = Cts> + Send + Sync + 'static,
    Args: Tree,
    Res: Tree + 'static,
    Again: Tree + 'static,
    Cts: Tree,
{
    type Output = F::Output;

    /// The forward pass is not differentiated: its results are operands of a function whose rules recompute the result
    /// from the saved residuals. Therefore `checkpoint` finds that the recomputation needs no other value of the
    /// forward pass.
    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let (out, residuals) = self.fwd.apply(stop_gradient(args.clone()))?;
        // `map` rejects residuals that are Rust numbers only.
        let has_arrays = !tree::leaves(&residuals).is_empty();
        let residuals = if has_arrays { tree::map(always_saved, residuals)? } else { residuals };
        CustomVjp { f: first::<F::Output, Res, Args>, rules: self.rules.clone(), args: PhantomData }
            .apply((out, residuals, args))
    }
}

/// The types of the first two operands, which have zero cotangents, and the number of arrays in the arguments.
type Operands = (Vec<Aval>, usize);

impl<Rem, Bwd, Out, Res, Again, Args, Cts> VjpRules<(Out, Res, Args), Out> for RematRules<Rem, Bwd, Res, Again>
where
    Rem: Function<(Res, Args), Output = (Out, Again)> + Send + Sync + 'static,
    Bwd: Function<(Again, Out), Output = Cts> + Send + Sync + 'static,
    Out: Tree,
    Res: Tree + 'static,
    Again: Tree + 'static,
    Args: Tree,
    Cts: Tree,
{
    fn fwd(&self, (out, residuals, args): (Out, Res, Args), _perturbed: &[bool]) -> Result<(Out, Flat)> {
        let constants = [Flat::of(&out), Flat::of(&residuals)];
        let avals = constants.iter().flat_map(|flat| &flat.leaves).map(Array::aval).collect();
        let operands: Operands = (avals, Flat::of(&args).leaves.len());
        let (out, again) = self.rem.apply((residuals, args))?;
        Ok((out, Flat::of(&(Static(operands), again))))
    }

    fn bwd(&self, residuals: Flat, ct: Out, _zeros: &[bool]) -> Result<Flat> {
        let (Static((avals, count)), again): (Static<Operands>, Again) = residuals.build()?;
        let cts = Flat::of(&self.bwd.apply((again, ct))?);
        check_count(&cts, count)?;
        let operand_cts: Vec<Array> = avals.iter().map(zeros).chain(cts.leaves).collect();
        Ok(Flat::of(&operand_cts))
    }
}
