//! `custom_jvp`, which defines a function with a custom derivative rule for both modes.

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
use crate::ops::primitive::custom_jvp as jvp;
use crate::ops::primitive::custom_jvp::RuleId;
use crate::ops::state::check_unwritten;

use super::custom_vjp::HasRules;
use super::symbolic_zeros::{JvpRule, SymbolicJvp};

/// A function with a custom forward-mode derivative; see [`custom_jvp`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct CustomJvp<F, Args, R = ()> {
    pub(super) f: F,
    pub(super) rule: Arc<R>,
    pub(super) args: PhantomData<fn(Args)>,
}

/// Defines a custom derivative for both modes. Set the rule with [`defjvp`](CustomJvp::defjvp).
///
/// The rule receives the tuple of arguments and the tuple of their tangents. It returns the result and the result's
/// tangent, which must be linear in the tangents. Tangents of integers are arrays of dtype `float0`.
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
/// The rule runs when the function is differentiated, possibly after the calling function has returned. It can capture
/// concrete arrays, but you must pass values of the differentiated function as arguments.
pub fn custom_jvp<Args: Tree, F: Function<Args>>(f: F) -> CustomJvp<F, Args> {
    CustomJvp { f, rule: Arc::new(()), args: PhantomData }
}

impl<F: Function<Args>, Args: Tree> CustomJvp<F, Args> {
    #[doc(hidden)]
    pub fn call<T>(&self, _args: T) -> Result<Array>
    where
        for<'a> &'a Operator: HasRules,
    {
        Err(err!(Value, "the rules of the derivative are not set"))
    }

    /// Marks arguments as non-differentiable. The rule receives them first (one value or a tuple), then all primals, then all
    /// tangents. The tangents of these arguments are zero.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// // The power n, whose slope is computed from n - 1.
    /// let power = custom_jvp(|n: i32, x: Array| integer_pow(x, n)).nondiff_argnums(Arg::<0>).defjvp(
    ///     |n: i32, (_, x): (i32, Array), (_, dx): (i32, Array)| {
    ///         (integer_pow(&x, n), dx * integer_pow(&x, n - 1) * n)
    ///     },
    /// );
    /// let slope = grad(move |x: Array| power.call((3, x)));
    /// assert_eq!(slope.call(2.0f32)?.item::<f32>()?, 12.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn nondiff_argnums<N: Argnums<Args>>(self, argnums: N) -> NondiffJvp<F, Args, N> {
        NondiffJvp { f: self.f, argnums, args: PhantomData }
    }

    /// Passes an `Option` of each tangent to the rule. It is `None` if the tangent is zero for all values of the
    /// arguments, so that the rule can skip terms that it would multiply by zero (JAX's `symbolic_zeros=True`). If the
    /// tangents are a struct, you look them up by key path; see [`Composed`](crate::tree::Composed).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let product = custom_jvp(|x: Array, y: Array| x * y).symbolic_zeros().defjvp(
    ///     |(x, y): (Array, Array), (dx, dy): (Option<Array>, Option<Array>)| {
    ///         let terms = [dx.map(|dx| dx * &y), dy.map(|dy| dy * &x)];
    ///         let tangent = terms.into_iter().flatten().reduce(|a, b| a + b);
    ///         (x.clone() * y, tangent.unwrap_or(zeros_like(x)))
    ///     },
    /// );
    /// let slope = grad(move |x: Array| product.call((x, 3.0))); // only the first term
    /// assert_eq!(slope.call(2.0f32)?.item::<f32>()?, 3.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn symbolic_zeros(self) -> SymbolicJvp<F, Args> {
        SymbolicJvp { f: self.f, args: self.args }
    }

    /// Sets the rule.
    pub fn defjvp<R>(self, rule: R) -> CustomJvp<F, Args, R>
    where
        R: Function<(Args, Args), Output = (F::Output, F::Output)> + Send + Sync + 'static,
    {
        CustomJvp { f: self.f, rule: Arc::new(rule), args: PhantomData }
    }
}

/// A function with non-differentiable arguments; see [`CustomJvp::nondiff_argnums`].
#[must_use = "the rule is set with `defjvp`"]
pub struct NondiffJvp<F, Args, N> {
    f: F,
    argnums: N,
    args: PhantomData<fn(Args)>,
}

/// The rule of a function with non-differentiable arguments.
pub struct NondiffRule<Rule, Args, N> {
    rule: Rule,
    argnums: N,
    args: PhantomData<fn(Args)>,
}

impl<F: Function<Args>, Args: Tree, N: Argnums<Args>> NondiffJvp<F, Args, N> {
    /// Sets the rule, which receives the non-differentiable arguments, all arguments, and all tangents.
    pub fn defjvp<R>(self, rule: R) -> CustomJvp<F, Args, NondiffRule<R, Args, N>>
    where
        R: Function<(N::Gradient, Args, Args), Output = (F::Output, F::Output)> + Send + Sync + 'static,
    {
        CustomJvp {
            f: self.f,
            rule: Arc::new(NondiffRule { rule, argnums: self.argnums, args: PhantomData }),
            args: PhantomData,
        }
    }
}

impl<R, Args, N, Out> Function<(Args, Args)> for NondiffRule<R, Args, N>
where
    R: Function<(N::Gradient, Args, Args), Output = (Out, Out)>,
    Args: Tree,
    N: Argnums<Args>,
    Out: Tree,
{
    type Output = (Out, Out);
    fn apply(&self, (args, tangents): (Args, Args)) -> Result<(Out, Out)> {
        let positions = self.argnums.positions()?;
        let nondiff_args = self.argnums.of(&args)?;
        // The function must not use the tangents of non-differentiable arguments, so they become zero.
        let flat = Flat::of(&tangents);
        let children = flat.def.root_children().unwrap_or_default();
        let mut leaves = flat.leaves.clone();
        let mut start = 0;
        for (i, (_, def)) in children.iter().enumerate() {
            let end = start + def.leaf_count();
            if positions.contains(&i) {
                leaves[start..end].iter_mut().for_each(|t| *t = zeros(&t.aval()));
            }
            start = end;
        }
        self.rule.apply((nondiff_args, args, Flat { leaves, def: flat.def }.build()?))
    }
}

impl<F, Args, R> Function<Args> for CustomJvp<F, Args, R>
where
    F: Function<Args>,
    Args: Tree,
    R: JvpRule<Args, F::Output>,
{
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let flat = Flat::from_arguments(&args);
        let (rule, def) = (self.rule.clone(), flat.def.clone());
        let id = RuleId::of(&self.rule, &flat.def);
        let out = record(&flat, &flat_fn(&self.f), Location::caller(), |program, num_consts, _| {
            check_unwritten(&program, "custom_jvp")?;
            let rule = Arc::new(move |primals: &[Array], tangents: &[Array], zeros: &[bool]| {
                run_flat(&*rule, &def, primals, tangents, zeros)
            });
            Ok(Arc::new(jvp::CustomJvp { program, num_consts, id, rule }))
        })?;
        out.build()
    }
}

/// Runs a rule on flattened arguments of this structure.
fn run_flat<Args: Tree, Out: Tree>(
    rule: &impl JvpRule<Args, Out>,
    def: &TreeDef,
    primals: &[Array],
    tangents: &[Array],
    zeros: &[bool],
) -> Result<(Vec<Array>, Vec<Array>)> {
    let primals = Flat { leaves: primals.into(), def: def.clone() };
    let tangents = Flat { leaves: tangents.into(), def: def.clone() };
    let (out, out_tangent) = rule.run(primals.build()?, tangents.build()?, zeros)?;
    let (out, out_tangent) = (Flat::of(&out), Flat::of(&out_tangent));
    same_structure(&out.def, &out_tangent.def).map_err(|e| {
        e.context("Custom JVP rule must produce primal and tangent outputs with equal container (pytree) structures")
    })?;
    Ok((out.leaves.into_vec(), out_tangent.leaves.into_vec()))
}
