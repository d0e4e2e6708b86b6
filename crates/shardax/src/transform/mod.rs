//! Transformations: each takes a function and gives a function, and they nest in any order.

pub(crate) mod ad;
pub(crate) mod batching;
mod checkpoint;
mod derivative;
pub(crate) mod dispatch;
pub(crate) mod grad;
pub(crate) mod jit;
pub(crate) mod staged;
mod vmap;

pub use checkpoint::{Checkpoint, CheckpointPolicy, checkpoint, checkpoint_name};
pub use derivative::{LinearFn, VjpFn, hessian, jacfwd, jacrev, jvp, linear_transpose, linearize, vjp};
pub use grad::{Arg, Argnums, Grad, GradAux, ValueAndGrad, ValueAndGradAux, grad, value_and_grad};
pub use jit::{Jit, jit};
pub use staged::{DisableJit, disable_jit, make_program};
pub use vmap::{Vmap, vmap};

use crate::array::Array;
use crate::error::Result;
use crate::lower::{Lowering, Value};
use crate::primitive::{BatchAxis, Dims, Outputs, Primitive, Tangents};
use crate::program::Aval;
use crate::program::trace::bind1;
use crate::tree::{self, Tree};
use smallvec::{SmallVec, smallvec};

/// The same values, through which no gradient flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StopGradient;

impl Primitive for StopGradient {
    fn name(&self) -> &'static str {
        "stop_gradient"
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![args[0].clone()], vec![None]))
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(*self, args)], dims.to_vec()))
    }
}

/// The same tree; gradients do not flow through it.
#[track_caller]
pub fn stop_gradient<T: Tree>(x: T) -> T {
    let _line = crate::source::enter();
    let kept = x.clone();
    tree::map(
        |a| {
            if a.is_traced() && a.dtype().is_inexact() { bind1(StopGradient, &[a]) } else { a }
        },
        x,
    )
    .unwrap_or(kept)
}
