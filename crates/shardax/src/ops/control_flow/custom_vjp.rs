//! `custom_vjp`, which defines a function with custom rules for reverse-mode differentiation.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::array::hints::Operator;
use crate::core::function::{Argnums, Function};
use crate::core::program::trace::is_tracing;
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
use crate::error::{Result, err};
use crate::interpret::flat::{flat_fn, record};
use crate::interpret::higher_order::zeros;
use crate::ops::primitive::custom_jvp::RuleId;
use crate::ops::primitive::custom_vjp as vjp;
use crate::ops::state::check_unwritten;

use super::symbolic_zeros::{SymbolicVjp, VjpRules};

/// A function with a custom reverse-mode derivative; see [`custom_vjp`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct CustomVjp<F, Args, Rules = ()> {
    pub(super) f: F,
    pub(super) rules: Arc<Rules>,
    pub(super) args: PhantomData<fn(Args)>,
}

/// Defines a custom reverse-mode derivative. Set its two rules with [`defvjp`](CustomVjp::defvjp).
///
/// Use it if the derivative of the operations is inaccurate or slow, or if the function calls something that has no
/// derivative, such as a kernel. If you also need forward mode, use [`custom_jvp`](super::custom_jvp), which defines both.
///
/// `fwd` receives the arguments and returns the result and residuals (any tree). `bwd` receives the residuals and the
/// cotangent of the result, and returns a cotangent for each argument (ignored for integers). Forward mode fails for
/// such a function, unless nothing uses the tangents of its result.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::custom_vjp;
/// // The identity, with gradients clipped to [-1, 1].
/// let clip = custom_vjp(|x: Array| x).defvjp(|x: Array| (x, ()), |(), ct: Array| (ct.clip(-1, 1),));
/// let slope = grad(move |x: Array| -> Result<Array> { Ok(clip.call(x)? * 5.0) });
/// assert_eq!(slope.call(2.0f32)?.item::<f32>()?, 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The rules run when the function is differentiated, possibly after the calling function has returned. They may
/// capture concrete arrays, but you must pass values of the differentiated function as arguments.
pub fn custom_vjp<Args: Tree, F: Function<Args>>(f: F) -> CustomVjp<F, Args> {
    CustomVjp { f, rules: Arc::new(()), args: PhantomData }
}

/// A call before the rules are set does not compile. No type implements this trait, so that its message is the error.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a function with a custom derivative cannot be called before its rules are set",
    label = "no rules yet",
    note = "reverse mode: `custom_vjp(f).defvjp(|x: Array| (x.exp(), x.exp()), |exp: Array, cotangent: Array| (cotangent * exp,))`",
    note = "forward mode: `custom_jvp(f).defjvp(|(x,): (Array,), (tangent,): (Array,)| (x.exp(), tangent * x.exp()))`"
)]
pub trait HasRules {}

impl<F: Function<Args>, Args: Tree> CustomVjp<F, Args> {
    #[doc(hidden)]
    pub fn call<T>(&self, _args: T) -> Result<Array>
    where
        for<'a> &'a Operator: HasRules,
    {
        Err(err!(Value, "the rules of the derivative are not set"))
    }

    /// Marks arguments as non-differentiable. `bwd` receives them first, and returns a cotangent for each of the other
    /// arguments. The gradients of the marked arguments are zero.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// // The identity, with gradients clipped to a bound that is an argument.
    /// let clip = custom_vjp(|_bound: f32, x: Array| x)
    ///     .nondiff_argnums(Arg::<0>)
    ///     .defvjp(|_bound: f32, x: Array| (x, ()), |bound: f32, (), ct: Array| (ct.clip(-bound, bound),));
    /// let slope = grad(move |x: Array| -> Result<Array> { Ok(clip.call((2.0f32, x))? * 5.0) });
    /// assert_eq!(slope.call(2.0f32)?.item::<f32>()?, 2.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn nondiff_argnums<N: Argnums<Args>>(self, argnums: N) -> NondiffVjp<F, Args, N> {
        NondiffVjp { f: self.f, argnums, args: PhantomData }
    }

    /// Reports symbolic zeros to the rules (JAX's `symbolic_zeros=True`). `fwd` receives a
    /// [`CustomVjpPrimal`](crate::control_flow::CustomVjpPrimal) instead of each array, which says if the array is
    /// differentiated. `bwd` receives an `Option` instead of each cotangent, which is `None` if nothing depends on that
    /// result. If the arguments are a struct, you look them up by key path; see [`Composed`](crate::tree::Composed).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::control_flow::CustomVjpPrimal as Primal;
    /// let product = custom_vjp(|x: Array, y: Array| x * y).symbolic_zeros().defvjp(
    ///     |x: Primal, y: Primal| {
    ///         let kept = (y.perturbed.then(|| x.value.clone()), x.perturbed.then(|| y.value.clone()));
    ///         (x.value * y.value, kept)
    ///     },
    ///     |(x, y): (Option<Array>, Option<Array>), ct: Option<Array>| {
    ///         let ct = ct.unwrap_or(zeros(()));
    ///         let by = |factor: Option<Array>| factor.map_or(zeros(()), |factor| factor * &ct);
    ///         (by(y), by(x))
    ///     },
    /// );
    /// let slope = grad(move |x: Array| product.call((x, 3.0))); // keeps only `y` for the backward pass
    /// assert_eq!(slope.call(2.0f32)?.item::<f32>()?, 3.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn symbolic_zeros(self) -> SymbolicVjp<F, Args> {
        SymbolicVjp { f: self.f, args: self.args }
    }

    /// Sets the rules.
    pub fn defvjp<Fwd, Bwd, Res, Cts>(self, fwd: Fwd, bwd: Bwd) -> CustomVjp<F, Args, (Fwd, Bwd)>
    where
        Fwd: Function<Args, Output = (F::Output, Res)> + Send + Sync + 'static,
        Bwd: Function<(Res, F::Output), Output = Cts> + Send + Sync + 'static,
        Res: Tree,
        Cts: Tree,
    {
        CustomVjp { f: self.f, rules: Arc::new((fwd, bwd)), args: PhantomData }
    }
}

impl<F, Args, R> Function<Args> for CustomVjp<F, Args, R>
where
    F: Function<Args>,
    Args: Tree,
    R: VjpRules<Args, F::Output>,
{
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let flat = Flat::from_arguments(&args);
        let out = record(&flat, &flat_fn(&self.f), Location::caller(), |program, num_consts, out_def| {
            let rules = self.erased(&flat, out_def.clone());
            check_unwritten(&program, "custom_vjp")?;
            Ok(Arc::new(vjp::CustomVjp { program, num_consts, rules }))
        })?;
        out.build()
    }
}

impl<F, Args, R> CustomVjp<F, Args, R>
where
    F: Function<Args>,
    Args: Tree,
    R: VjpRules<Args, F::Output>,
{
    /// Returns the rules on flattened trees, for arguments and a result of these structures.
    fn erased(&self, args: &Flat, out_def: TreeDef) -> vjp::VjpRules {
        let (rules, def, result) = (self.rules.clone(), args.def.clone(), out_def.clone());
        let fwd = Arc::new(move |args: &[Array], perturbed: &[bool]| {
            let args = Flat { leaves: args.into(), def: def.clone() }.build::<Args>()?;
            let (out, residuals) = rules.fwd(args, perturbed)?;
            let out = Flat::of(&out);
            same_structure(&result, &out.def).map_err(|e| {
                e.context("Custom VJP fwd rule must produce a pair whose first element is the primal function's output")
            })?;
            Ok((out.leaves.into_vec(), residuals.leaves.into_vec(), residuals.def))
        });
        let (rules, count) = (self.rules.clone(), args.leaves.len());
        let bwd = Arc::new(move |def: &TreeDef, residuals: &[Array], cts: &[Array], zeros: &[bool]| {
            let residuals = Flat { leaves: residuals.into(), def: def.clone() };
            let cts = Flat { leaves: cts.into(), def: out_def.clone() }.build::<F::Output>()?;
            let in_cts = rules.bwd(residuals, cts, zeros)?;
            check_count(&in_cts, count)?;
            Ok(in_cts.leaves.into_vec())
        });
        vjp::VjpRules { id: RuleId::of(&self.rules, &args.def), fwd, bwd }
    }
}

/// Returns an error unless a backward rule returned `count` cotangents, one for each array of the arguments.
pub(super) fn check_count(cts: &Flat, count: usize) -> Result<()> {
    if cts.leaves.len() != count {
        return Err(err!(
            Type,
            "Custom VJP bwd rule must produce an output with the same container (pytree) structure as the args tuple \
             of the primal function: it has {count} arrays, but the rule returned {}",
            cts.leaves.len()
        )
        .help("return a tuple with a cotangent for each argument, of the argument's own structure; JAX's `None` is `zeros_like(&x)`"));
    }
    Ok(())
}

/// A function with non-differentiable arguments; see [`CustomVjp::nondiff_argnums`].
#[must_use = "the rules are set with `defvjp`"]
pub struct NondiffVjp<F, Args, N> {
    f: F,
    argnums: N,
    args: PhantomData<fn(Args)>,
}

/// The forward rule of a function with non-differentiable arguments.
pub struct NondiffFwd<Rule, Args, N> {
    rule: Rule,
    argnums: N,
    args: PhantomData<fn(Args)>,
}

/// The backward rule of a function with non-differentiable arguments.
pub struct NondiffBwd<Rule, Args, N> {
    rule: Rule,
    argnums: N,
    args: PhantomData<fn(Args)>,
}

impl<F: Function<Args>, Args: Tree, N: Argnums<Args>> NondiffVjp<F, Args, N> {
    /// Sets the rules. `fwd` receives all arguments. `bwd` receives the non-differentiable arguments (one value or a
    /// tuple), the residuals and the cotangent.
    pub fn defvjp<Fwd, Bwd, Res, Cts>(
        self,
        fwd: Fwd,
        bwd: Bwd,
    ) -> CustomVjp<F, Args, (NondiffFwd<Fwd, Args, N>, NondiffBwd<Bwd, Args, N>)>
    where
        Fwd: Function<Args, Output = (F::Output, Res)> + Send + Sync + 'static,
        Bwd: Function<(N::Gradient, Res, F::Output), Output = Cts> + Send + Sync + 'static,
        Res: Tree,
        Cts: Tree,
    {
        let argnums = self.argnums;
        let rules = (
            NondiffFwd { rule: fwd, argnums, args: PhantomData },
            NondiffBwd { rule: bwd, argnums, args: PhantomData },
        );
        CustomVjp { f: self.f, rules: Arc::new(rules), args: PhantomData }
    }
}

/// Runs the forward rule and saves the non-differentiable arguments together with its residuals.
impl<Fwd, Args, N, Out, Res> Function<Args> for NondiffFwd<Fwd, Args, N>
where
    Fwd: Function<Args, Output = (Out, Res)>,
    Args: Tree,
    N: Argnums<Args>,
    Out: Tree,
    Res: Tree,
{
    type Output = (Out, (N::Gradient, Res));
    fn apply(&self, args: Args) -> Result<Self::Output> {
        let nondiff_args = self.argnums.of(&args)?;
        let (out, residuals) = self.rule.apply(args)?;
        Ok((out, (nondiff_args, residuals)))
    }
}

/// Runs the backward rule and adds zeros for the non-differentiable arguments.
impl<Bwd, Args, N, Res, Ct, Cts> Function<((N::Gradient, Res), Ct)> for NondiffBwd<Bwd, Args, N>
where
    Bwd: Function<(N::Gradient, Res, Ct), Output = Cts>,
    Args: Tree,
    N: Argnums<Args>,
    Res: Tree,
    Ct: Tree,
    Cts: Tree,
{
    type Output = Vec<Array>;
    fn apply(&self, ((nondiff_args, residuals), ct): ((N::Gradient, Res), Ct)) -> Result<Vec<Array>> {
        let (positions, nondiff) = (self.argnums.positions()?, Flat::of(&nondiff_args));
        let cts = Flat::of(&self.rule.apply((nondiff_args, residuals, ct))?);
        // One non-differentiable argument is not wrapped in a tuple, so its children are not arguments.
        let nondiff_counts = if positions.len() == 1 { vec![nondiff.leaves.len()] } else { child_counts(&nondiff) };
        let (mut ct_counts, mut leaves) = (child_counts(&cts).into_iter(), cts.leaves.iter().cloned());
        let mut arg_cts = Vec::new();
        for position in 0.. {
            match positions.iter().position(|&p| p == position) {
                Some(index) => {
                    let start: usize = nondiff_counts[..index].iter().sum();
                    let primals = &nondiff.leaves[start..start + nondiff_counts[index]];
                    arg_cts.extend(primals.iter().map(|x| zeros(&x.aval())));
                }
                None => match ct_counts.next() {
                    Some(count) => arg_cts.extend(leaves.by_ref().take(count)),
                    None if positions.iter().all(|&p| p < position) => break,
                    None => {}
                },
            }
        }
        Ok(arg_cts)
    }
}

/// Returns the number of leaves in each child of the root.
fn child_counts(flat: &Flat) -> Vec<usize> {
    flat.def.root_children().unwrap_or_default().iter().map(|(_, def)| def.leaf_count()).collect()
}
