//! Gradients with respect to sparse arrays.

use super::bcoo::BCOO;
use crate::core::function::{Arg, Argnums, Function, identity_of};
use crate::core::tree::Tree;
use crate::error::Result;
use crate::transform;

macro_rules! gradients {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[must_use = "a transformed function does nothing until it is called"]
        pub struct $name<F, Args, N = Arg<0>>(transform::$name<F, Args, N>);

        impl<F, Args, N> $name<F, Args, N> {
            /// Differentiates with respect to this sparse argument instead of the first.
            pub fn argnums<M: Argnums<Args, Gradient = BCOO>>(self, argnums: M) -> $name<F, Args, M> {
                $name(self.0.argnums(argnums))
            }
        }
    )*};
}

gradients! {
    /// The gradient of a function with respect to a sparse array; see [`grad`].
    Grad
    /// The value and gradient of a function with respect to a sparse array; see [`value_and_grad`].
    ValueAndGrad
}

/// Returns the gradient function of a scalar function with respect to its first argument, which must be a sparse array. The
/// gradient is a sparse array with the argument's indices; its data are the gradient with respect to the argument's data, so
/// that only stored elements have a gradient.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{self, BCOO};
/// let m = BCOO::fromdense(array([[0.0f32, 2.0], [3.0, 0.0]]), None)?;
/// let slope = sparse::grad(|m: BCOO| m.todense().square().sum(..)).call(&m)?;
/// assert_eq!(slope.todense().to_vec::<f32>()?, [0.0, 4.0, 6.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The errors are the errors of [`grad`](crate::grad), which you should use for dense arguments.
pub fn grad<Args: Tree, F: Function<Args>>(f: F) -> Grad<F, Args> {
    Grad(transform::grad(f).allow_int())
}

/// Returns a function that computes a scalar function's value and its gradient with respect to its first argument, a
/// sparse array; see [`grad`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{self, BCOO};
/// let m = BCOO::fromdense(array([0.0f32, 3.0]), None)?;
/// let (value, slope) = sparse::value_and_grad(|m: BCOO| m.data.square().sum(..)).call(&m)?;
/// assert_eq!((value.item::<f32>()?, slope.data.to_vec::<f32>()?), (9.0, vec![6.0]));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn value_and_grad<Args: Tree, F: Function<Args>>(f: F) -> ValueAndGrad<F, Args> {
    ValueAndGrad(transform::value_and_grad(f).allow_int())
}

impl<F, Args, N> Function<Args> for Grad<F, Args, N>
where
    F: Function<Args>,
    Args: Tree,
    N: Argnums<Args, Gradient = BCOO>,
{
    type Output = BCOO;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((), self.0.identity())
    }

    fn apply(&self, args: Args) -> Result<BCOO> {
        let indices = self.0.argnums.of(&args)?.indices;
        Ok(BCOO { indices, ..self.0.apply(args)? })
    }
}

impl<F, Args, N> Function<Args> for ValueAndGrad<F, Args, N>
where
    F: Function<Args>,
    Args: Tree,
    N: Argnums<Args, Gradient = BCOO>,
{
    type Output = (F::Output, BCOO);

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((), self.0.identity())
    }

    fn apply(&self, args: Args) -> Result<Self::Output> {
        let indices = self.0.argnums.of(&args)?.indices;
        let (value, gradient) = self.0.apply(args)?;
        Ok((value, BCOO { indices, ..gradient }))
    }
}
