//! Traits for the rules of custom derivatives, and rules that receive symbolic zeros.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{CustomJvp, CustomVjp};
use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::tree::{Compose, Flat, Tree};
use crate::error::{Result, err};

/// The rule of a [`custom_jvp`](super::custom_jvp): a function of the arguments and their tangents. Symbolic zero
/// tangents are passed as `None` or as arrays of zeros.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the rule of a custom_jvp function of the arguments `{Args}`",
    note = "set one with `defjvp`: the rule receives the tuple of arguments and the tuple of their tangents, and returns the result and its tangent"
)]
pub trait JvpRule<Args: Tree, Out: Tree>: Send + Sync + 'static {
    /// Runs the rule. `zeros` marks the leaves of `tangents` that are symbolic zeros.
    fn run(&self, args: Args, tangents: Args, zeros: &[bool]) -> Result<(Out, Out)>;
}

impl<R, Args: Tree, Out: Tree> JvpRule<Args, Out> for R
where
    R: Function<(Args, Args), Output = (Out, Out)> + Send + Sync + 'static,
{
    fn run(&self, args: Args, tangents: Args, _zeros: &[bool]) -> Result<(Out, Out)> {
        self.apply((args, tangents))
    }
}

/// The rules of a [`custom_vjp`](super::custom_vjp): a pair of functions, with or without symbolic zeros.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are not the rules of a custom_vjp function of the arguments `{Args}`",
    note = "set them with `defvjp(fwd, bwd)`"
)]
pub trait VjpRules<Args: Tree, Out: Tree>: Send + Sync + 'static {
    /// Returns the result and the residuals. `perturbed` marks the leaves of `args` that are differentiated.
    fn fwd(&self, args: Args, perturbed: &[bool]) -> Result<(Out, Flat)>;
    /// Returns the cotangents of the arguments. `zeros` marks the leaves of `ct` that are symbolic zeros.
    fn bwd(&self, residuals: Flat, ct: Out, zeros: &[bool]) -> Result<Flat>;
}

impl<Fwd, Bwd, Args, Out, Res, Cts> VjpRules<Args, Out> for (Fwd, Bwd)
where
    Fwd: Function<Args, Output = (Out, Res)> + Send + Sync + 'static,
    Bwd: Function<(Res, Out), Output = Cts> + Send + Sync + 'static,
    Args: Tree,
    Out: Tree,
    Res: Tree,
    Cts: Tree,
{
    fn fwd(&self, args: Args, _perturbed: &[bool]) -> Result<(Out, Flat)> {
        let (out, residuals) = self.0.apply(args)?;
        Ok((out, Flat::of(&residuals)))
    }

    fn bwd(&self, residuals: Flat, ct: Out, _zeros: &[bool]) -> Result<Flat> {
        Ok(Flat::of(&self.1.apply((residuals.build()?, ct))?))
    }
}

/// Rules that receive symbolic zeros.
pub struct WithZeros<R>(R);

/// A function whose rule receives symbolic zero tangents as `None`; see [`CustomJvp::symbolic_zeros`].
#[must_use = "the rule is set with `defjvp`"]
pub struct SymbolicJvp<F, Args> {
    pub(super) f: F,
    pub(super) args: PhantomData<fn(Args)>,
}

impl<F: Function<Args>, Args: Compose<Option<Array>>> SymbolicJvp<F, Args> {
    /// Sets the rule, which receives the arguments and an `Option` for each array of their tangents.
    pub fn defjvp<R>(self, rule: R) -> CustomJvp<F, Args, WithZeros<R>>
    where
        R: Function<(Args, Args::Composed), Output = (F::Output, F::Output)> + Send + Sync + 'static,
    {
        CustomJvp { f: self.f, rule: Arc::new(WithZeros(rule)), args: self.args }
    }
}

impl<R, Args, Out> JvpRule<Args, Out> for WithZeros<R>
where
    R: Function<(Args, Args::Composed), Output = (Out, Out)> + Send + Sync + 'static,
    Args: Compose<Option<Array>>,
    Out: Tree,
{
    fn run(&self, args: Args, tangents: Args, zeros: &[bool]) -> Result<(Out, Out)> {
        self.0.apply((args, options(tangents, zeros)?))
    }
}

/// An argument of a forward rule, with a flag that says if it is differentiated; see [`CustomVjp::symbolic_zeros`].
#[derive(Clone, Debug, shardax_macros::Tree)]
pub struct CustomVjpPrimal {
    /// The argument.
    pub value: Array,
    /// `true` if the argument is differentiated; otherwise its cotangent is not used.
    pub perturbed: bool,
}

/// A function whose rules receive symbolic zeros; see [`CustomVjp::symbolic_zeros`].
#[must_use = "the rules are set with `defvjp`"]
pub struct SymbolicVjp<F, Args> {
    pub(super) f: F,
    pub(super) args: PhantomData<fn(Args)>,
}

impl<F: Function<Args>, Args: Compose<CustomVjpPrimal>> SymbolicVjp<F, Args> {
    /// Sets the rules. `fwd` receives a [`CustomVjpPrimal`] for each array of the arguments. `bwd` receives the
    /// residuals and an `Option` for each array of the cotangent.
    pub fn defvjp<Fwd, Bwd, Res, Cts>(self, fwd: Fwd, bwd: Bwd) -> CustomVjp<F, Args, WithZeros<(Fwd, Bwd)>>
    where
        F::Output: Compose<Option<Array>>,
        Fwd: Function<Args::Composed, Output = (F::Output, Res)> + Send + Sync + 'static,
        Bwd: Function<(Res, <F::Output as Compose<Option<Array>>>::Composed), Output = Cts> + Send + Sync + 'static,
        Res: Tree,
        Cts: Tree,
    {
        CustomVjp { f: self.f, rules: Arc::new(WithZeros((fwd, bwd))), args: self.args }
    }
}

impl<Fwd, Bwd, Args, Out, Res, Cts> VjpRules<Args, Out> for WithZeros<(Fwd, Bwd)>
where
    Fwd: Function<Args::Composed, Output = (Out, Res)> + Send + Sync + 'static,
    Bwd: Function<(Res, Out::Composed), Output = Cts> + Send + Sync + 'static,
    Args: Compose<CustomVjpPrimal>,
    Out: Compose<Option<Array>>,
    Res: Tree,
    Cts: Tree,
{
    fn fwd(&self, args: Args, perturbed: &[bool]) -> Result<(Out, Flat)> {
        let primals = composed(args, perturbed, |value, perturbed| CustomVjpPrimal { value, perturbed })?;
        let (out, residuals) = self.0.0.apply(primals)?;
        Ok((out, Flat::of(&residuals)))
    }

    fn bwd(&self, residuals: Flat, ct: Out, zeros: &[bool]) -> Result<Flat> {
        Ok(Flat::of(&self.0.1.apply((residuals.build()?, options(ct, zeros)?))?))
    }
}

/// Replaces the marked leaves of a tree by `None`.
fn options<T: Compose<Option<Array>>>(tree: T, zeros: &[bool]) -> Result<T::Composed> {
    composed(tree, zeros, |value, zero: bool| (!zero).then_some(value))
}

fn composed<X: Tree, T: Compose<X>>(tree: T, marks: &[bool], f: impl Fn(Array, bool) -> X) -> Result<T::Composed> {
    let mut parts = Flat::of(&tree).leaves.into_iter().zip(marks).map(|(leaf, &mark)| f(leaf, mark));
    tree.compose(&mut || {
        parts
            .next()
            .ok_or_else(|| err!(Runtime, "internal error: a tree has more leaves than zero marks; please report this"))
    })
}
