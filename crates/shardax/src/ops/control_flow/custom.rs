//! `custom_jvp` and `custom_vjp`: functions whose derivatives are given by rules.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::trace::is_tracing;
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
use crate::error::{Result, err};
use crate::interpret::flat::{flat_fn, record};
use crate::ops::primitive::custom_jvp as jvp;
use crate::ops::primitive::custom_jvp::RuleId;
use crate::ops::primitive::custom_vjp as vjp;

/// A function with its own forward-mode derivative; see [`custom_jvp`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct CustomJvp<F, Args, R = ()> {
    f: F,
    rule: Arc<R>,
    args: PhantomData<fn(Args)>,
}

/// A function whose derivative is given by a rule, in both modes: set the rule with [`defjvp`](CustomJvp::defjvp).
///
/// The rule takes the tuple of arguments and the tuple of their tangents, and returns the result and its tangent, in
/// which it must be linear. Tangents of integers are arrays of dtype `float0`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::custom_jvp;
/// // log(1 + exp(x)), whose derivative does not overflow.
/// let softplus = custom_jvp(|x: Array| (x.exp() + 1).log()).defjvp(|(x,): (Array,), (dx,): (Array,)| {
///     ((x.exp() + 1).log(), dx * (1 - 1 / (x.exp() + 1)))
/// });
/// let slope = grad(move |x: Array| softplus.call(x));
/// assert_eq!(slope.call(100.0f32)?.item::<f32>()?, 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The rule runs when the function is differentiated, which may be after the function that called it has returned: it
/// may capture concrete arrays, but values of the function being differentiated must be passed as arguments.
pub fn custom_jvp<Args: Tree, F: Function<Args>>(f: F) -> CustomJvp<F, Args> {
    CustomJvp { f, rule: Arc::new(()), args: PhantomData }
}

impl<F: Function<Args>, Args: Tree> CustomJvp<F, Args> {
    /// Sets the rule.
    pub fn defjvp<R>(self, rule: R) -> CustomJvp<F, Args, R>
    where
        R: Function<(Args, Args), Output = (F::Output, F::Output)> + Send + Sync + 'static,
    {
        CustomJvp { f: self.f, rule: Arc::new(rule), args: PhantomData }
    }
}

impl<F, Args, R> Function<Args> for CustomJvp<F, Args, R>
where
    F: Function<Args>,
    Args: Tree,
    R: Function<(Args, Args), Output = (F::Output, F::Output)> + Send + Sync + 'static,
{
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let flat = Flat::of_arguments(&args);
        let (rule, def) = (self.rule.clone(), flat.def.clone());
        let erased = move |primals: &[Array], tangents: &[Array]| {
            let tree = |leaves: &[Array]| Flat { leaves: leaves.into(), def: def.clone() }.build::<Args>();
            let (out, tangent) = rule.apply((tree(primals)?, tree(tangents)?))?;
            let (out, tangent) = (Flat::of(&out), Flat::of(&tangent));
            same_structure(&out.def, &tangent.def).map_err(|e| {
                e.context(
                    "Custom JVP rule must produce primal and tangent outputs with equal container (pytree) structures",
                )
            })?;
            Ok((out.leaves.into_vec(), tangent.leaves.into_vec()))
        };
        let id = RuleId::of(&self.rule, &flat.def);
        let out = record(&flat, &flat_fn(&self.f), Location::caller(), |program, num_consts, _| {
            Arc::new(jvp::CustomJvp { program, num_consts, id, rule: Arc::new(erased) })
        })?;
        out.build()
    }
}

/// A function with its own reverse-mode derivative; see [`custom_vjp`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct CustomVjp<F, Args, Rules = ()> {
    f: F,
    rules: Arc<Rules>,
    args: PhantomData<fn(Args)>,
}

/// A function whose reverse-mode derivative is given by two rules: set them with [`defvjp`](CustomVjp::defvjp).
///
/// `fwd` takes the arguments and returns the result and residuals, any tree; `bwd` takes the residuals and the
/// cotangent of the result, and returns a cotangent for each argument (of integers it is not looked at). Forward mode
/// through such a function is an error.
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
/// The rules run when the function is differentiated, which may be after the function that called it has returned:
/// they may capture concrete arrays, but values of the function being differentiated must be passed as arguments.
pub fn custom_vjp<Args: Tree, F: Function<Args>>(f: F) -> CustomVjp<F, Args> {
    CustomVjp { f, rules: Arc::new(()), args: PhantomData }
}

impl<F: Function<Args>, Args: Tree> CustomVjp<F, Args> {
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

impl<F, Args, Fwd, Bwd, Res, Cts> Function<Args> for CustomVjp<F, Args, (Fwd, Bwd)>
where
    F: Function<Args>,
    Args: Tree,
    Fwd: Function<Args, Output = (F::Output, Res)> + Send + Sync + 'static,
    Bwd: Function<(Res, F::Output), Output = Cts> + Send + Sync + 'static,
    Res: Tree,
    Cts: Tree,
{
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let flat = Flat::of_arguments(&args);
        let out = record(&flat, &flat_fn(&self.f), Location::caller(), |program, num_consts, out_def| {
            let rules = self.erased(&flat, out_def.clone());
            Arc::new(vjp::CustomVjp { program, num_consts, rules })
        })?;
        out.build()
    }
}

impl<F, Args, Fwd, Bwd, Res, Cts> CustomVjp<F, Args, (Fwd, Bwd)>
where
    F: Function<Args>,
    Args: Tree,
    Fwd: Function<Args, Output = (F::Output, Res)> + Send + Sync + 'static,
    Bwd: Function<(Res, F::Output), Output = Cts> + Send + Sync + 'static,
    Res: Tree,
    Cts: Tree,
{
    /// The rules on the leaves of trees, for arguments and a result of these structures.
    fn erased(&self, args: &Flat, out_def: TreeDef) -> vjp::VjpRules {
        let (rules, def, result) = (self.rules.clone(), args.def.clone(), out_def.clone());
        let fwd = move |args: &[Array]| {
            let args = Flat { leaves: args.into(), def: def.clone() }.build::<Args>()?;
            let (out, residuals) = rules.0.apply(args)?;
            let (out, residuals) = (Flat::of(&out), Flat::of(&residuals));
            same_structure(&result, &out.def).map_err(|e| {
                e.context("Custom VJP fwd rule must produce a pair whose first element is the primal function's output")
            })?;
            Ok((out.leaves.into_vec(), residuals.leaves.into_vec(), residuals.def))
        };
        let (rules, count) = (self.rules.clone(), args.leaves.len());
        let bwd = move |def: &TreeDef, residuals: &[Array], cts: &[Array]| {
            let residuals = Flat { leaves: residuals.into(), def: def.clone() }.build::<Res>()?;
            let cts = Flat { leaves: cts.into(), def: out_def.clone() }.build::<F::Output>()?;
            let in_cts = Flat::of(&rules.1.apply((residuals, cts))?);
            if in_cts.leaves.len() != count {
                return Err(err!(
                    Type,
                    "Custom VJP bwd rule must produce an output with the same container (pytree) structure as the args tuple \
                     of the primal function: it has {count} arrays, but the rule returned {}",
                    in_cts.leaves.len()
                )
                .help("return a tuple with a cotangent for each argument, of the argument's own structure"));
            }
            Ok(in_cts.leaves.into_vec())
        };
        vjp::VjpRules { id: RuleId::of(&self.rules, &args.def), fwd: Arc::new(fwd), bwd: Arc::new(bwd) }
    }
}
