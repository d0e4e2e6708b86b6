//! `defjvps`: the rule of a `custom_jvp` function as one function for each argument.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{CustomJvp, JvpRule};
use crate::core::function::Function;
use crate::core::tree::{self, Flat, Tree};
use crate::error::Result;
use crate::interpret::higher_order::tangent_or_zeros;

impl<F: Function<Args>, Args: Tree> CustomJvp<F, Args> {
    /// Sets a rule for each argument, in a tuple, instead of one for all (JAX's `defjvps`). A rule receives the tangent
    /// of its argument, the result, and all arguments. It returns its part of the result's tangent, and the parts are
    /// added. `None` stands for an argument that does not change the result's tangent.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = custom_jvp(|x: Array, y: Array| x.square() * y).defjvps((
    ///     |dx: Array, _result: Array, x: Array, y: Array| 2 * x * y * dx,
    ///     |dy: Array, _result: Array, x: Array, _y: Array| x.square() * dy,
    /// ));
    /// assert_eq!(grad(&f).argnums((0, 1)).call((2.0f32, 3.0f32))?.1.item::<f32>()?, 4.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn defjvps<R>(self, rules: R) -> CustomJvp<FunctionWithRules<F, R>, Args, PerArgument<F, R>>
    where
        F: Send + Sync + 'static,
        R: RulePerArgument<Args, F::Output>,
    {
        with_rules(&Arc::new((self.f, rules)))
    }
}

/// A function that its rules call too; see [`CustomJvp::defjvps`].
pub struct FunctionWithRules<F, R>(Arc<(F, R)>);

/// The rules of a function, one for each argument; see [`CustomJvp::defjvps`].
pub struct PerArgument<F, R>(Arc<(F, R)>);

fn with_rules<F, R, Args>(shared: &Arc<(F, R)>) -> CustomJvp<FunctionWithRules<F, R>, Args, PerArgument<F, R>> {
    CustomJvp { f: FunctionWithRules(shared.clone()), rule: Arc::new(PerArgument(shared.clone())), args: PhantomData }
}

impl<F: Function<Args>, R, Args: Tree> Function<Args> for FunctionWithRules<F, R> {
    type Output = F::Output;

    fn apply(&self, args: Args) -> Result<F::Output> {
        self.0.0.apply(args)
    }
}

impl<F, R, Args, Out> JvpRule<Args, Out> for PerArgument<F, R>
where
    F: Function<Args, Output = Out> + Send + Sync + 'static,
    R: RulePerArgument<Args, Out>,
    Args: Tree,
    Out: Tree,
{
    fn run(&self, args: Args, tangents: Args, zeros: &[bool]) -> Result<(Out, Out)> {
        // The rule calls the function with its rules, so that derivatives of higher order use them too.
        let result = with_rules(&self.0).apply(args.clone())?;
        let tangent = match self.0.1.tangent(&args, tangents, &result, zeros)? {
            Some(tangent) => tangent,
            None => zero_tangent(&result)?,
        };
        Ok((result, tangent))
    }
}

fn zero_tangent<Out: Tree>(result: &Out) -> Result<Out> {
    let flat = Flat::of(result);
    let leaves = flat.leaves.iter().map(|leaf| tangent_or_zeros(&None, &leaf.aval())).collect();
    Flat { leaves, def: flat.def }.build()
}

/// The rules of [`CustomJvp::defjvps`]: a tuple of functions, one for each argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of rules for the arguments `{Args}`",
    label = "not one rule for each argument",
    note = "a rule receives the tangent of its argument, the result, and all arguments: `|dx: Array, result: Array, x: Array, y: Array| …`",
    note = "the rules are a tuple, `(f, g)` or `(f, None)`, also of one argument: `(f,)`"
)]
pub trait RulePerArgument<Args: Tree, Out: Tree>: Send + Sync + 'static {
    /// Computes the tangent of the result, or `None` if it is zero. `zeros` marks the leaves of `tangents` that are
    /// symbolic zeros.
    #[doc(hidden)]
    fn tangent(&self, args: &Args, tangents: Args, result: &Out, zeros: &[bool]) -> Result<Option<Out>>;
}

/// The rule for one argument of type `A`, or `None`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rule for an argument of type `{A}`",
    note = "a rule receives the tangent of its argument, the result, and all arguments: `|dx: Array, result: Array, x: Array, y: Array| …`"
)]
pub trait ArgumentRule<A, Args, Out>: Send + Sync + 'static {
    /// Computes this argument's part of the result's tangent.
    #[doc(hidden)]
    fn part(&self, tangent: A, result: &Out, args: &Args) -> Result<Option<Out>>;
}

impl<A, Args, Out> ArgumentRule<A, Args, Out> for Option<Infallible> {
    fn part(&self, _tangent: A, _result: &Out, _args: &Args) -> Result<Option<Out>> {
        Ok(None)
    }
}

fn add<Out: Tree>(sum: Option<Out>, part: Option<Out>) -> Result<Option<Out>> {
    match (sum, part) {
        (Some(sum), Some(part)) => tree::map2(|a, b| a + b, sum, part).map(Some),
        (sum, part) => Ok(sum.or(part)),
    }
}

macro_rules! rules {
    ($($args:tt: $($rule:ident $arg:ident $value:ident $position:tt),+;)*) => {$(
        impl<Rule, A: Tree, $($arg: Tree,)+ Out: Tree> ArgumentRule<A, $args, Out> for Rule
        where
            Rule: Function<(A, Out, $($arg),+), Output = Out> + Send + Sync + 'static,
        {
            fn part(&self, tangent: A, result: &Out, args: &$args) -> Result<Option<Out>> {
                let ($($value,)+) = args.clone();
                self.apply((tangent, result.clone(), $($value),+)).map(Some)
            }
        }

        impl<$($rule, $arg: Tree,)+ Out: Tree> RulePerArgument<$args, Out> for ($($rule,)+)
        where
            $($rule: ArgumentRule<$arg, $args, Out>,)+
        {
            fn tangent(
                &self,
                args: &$args,
                tangents: $args,
                result: &Out,
                zeros: &[bool],
            ) -> Result<Option<Out>> {
                let (mut sum, mut zeros) = (None, zeros.iter());
                $(
                    let count = tree::leaves(&args.$position).len();
                    // Rules are linear in the tangent, so that the part of a zero tangent is zero.
                    if zeros.by_ref().take(count).filter(|zero| **zero).count() < count {
                        sum = add(sum, self.$position.part(tangents.$position, result, args)?)?;
                    }
                )+
                Ok(sum)
            }
        }
    )*};
}

rules! {
    (A0,): R0 A0 a0 0;
    (A0, A1,): R0 A0 a0 0, R1 A1 a1 1;
    (A0, A1, A2,): R0 A0 a0 0, R1 A1 a1 1, R2 A2 a2 2;
    (A0, A1, A2, A3,): R0 A0 a0 0, R1 A1 a1 1, R2 A2 a2 2, R3 A3 a3 3;
    (A0, A1, A2, A3, A4,): R0 A0 a0 0, R1 A1 a1 1, R2 A2 a2 2, R3 A3 a3 3, R4 A4 a4 4;
    (A0, A1, A2, A3, A4, A5,): R0 A0 a0 0, R1 A1 a1 1, R2 A2 a2 2, R3 A3 a3 3, R4 A4 a4 4, R5 A5 a5 5;
}
