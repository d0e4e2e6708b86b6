//! References to transformed functions are functions too, so that a program can transform a function and continue to use
//! it.

use super::vectorize::Vectorize;
use super::*;
use crate::core::function::Function;
use crate::core::tree::Tree;
use crate::error::Result;
use crate::export::Exported;
use crate::ops::auto_axes::{AutoAxes, ExplicitAxes};
use crate::ops::control_flow::{CustomJvp, CustomVjp, CustomVmap, SequentialVmap};
use crate::runtime::aot::Compiled;
use crate::spmd::{Pmap, ShardMapped};

/// Implements [`Function`] for references to these types, whose parameter `Args` has the arguments. One implementation for
/// all references would overlap with the implementation for closures.
macro_rules! function_by_reference {
    ($($name:ident<$($t:ident),*>),* $(,)?) => {$(
        impl<$($t),*> Function<Args> for &$name<$($t),*>
        where
            Args: Tree,
            $name<$($t),*>: Function<Args>,
        {
            type Output = <$name<$($t),*> as Function<Args>>::Output;

            fn identity(&self) -> Option<u64> {
                (**self).identity()
            }

            #[track_caller]
            fn apply(&self, args: Args) -> Result<Self::Output> {
                (**self).apply(args)
            }
        }
    )*};
}

function_by_reference! {
    Vmap<F, Args>,
    Grad<F, Args, N>,
    ValueAndGrad<F, Args, N>,
    GradAux<F, Args, N>,
    ValueAndGradAux<F, Args, N>,
    Jacobian<F, Args, M, N, R>,
    Hessian<F, Args, N, R>,
    Checkpoint<F, Args>,
    Checkify<F, Args>,
    NamedCall<F, Args>,
    MaxTraces<F, Args>,
    Vectorize<F, Args>,
    CustomJvp<F, Args, R>,
    CustomVjp<F, Args, R>,
    CustomVmap<F, Args, R>,
    SequentialVmap<F, Args>,
    AutoAxes<F, Args>,
    ExplicitAxes<F, Args>,
    Pmap<F, Args>,
    ShardMapped<F, Args>,
    Compiled<Args, Out>,
    Exported<Args, Out>,
    LinearFn<Args, Out>,
}

/// The only argument of a [`VjpFn`] is the cotangent.
impl<Args: Tree, Out: Tree> Function<(Out,)> for &VjpFn<Args, Out> {
    type Output = Args;

    #[track_caller]
    fn apply(&self, ct: (Out,)) -> Result<Args> {
        (**self).apply(ct)
    }
}
