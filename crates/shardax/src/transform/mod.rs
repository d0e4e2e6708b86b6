//! Transformations: each takes a function and returns a function, and they nest in any order.

mod by_reference;
pub(crate) mod check_grads;
mod checkify;
mod checkpoint;
mod derivative;
pub(crate) mod grad;
pub mod jacobian;
pub(crate) mod jit;
mod map;
mod max_traces;
mod named_call;
mod ravel;
pub(crate) mod saved_residuals;
pub(crate) mod vectorize;
pub(crate) mod vmap;

pub use crate::core::function::{Arg, Argnums};
pub use checkify::{Checkify, checkify};
pub use checkpoint::{Checkpoint, checkpoint, checkpoint_name};
pub use derivative::{LinearFn, VjpFn, jvp, linear_transpose, linearize, vjp, vjp_has_aux};
pub use grad::{Grad, GradAux, ValueAndGrad, ValueAndGradAux, grad, value_and_grad};
pub use jacobian::{Hessian, Jacobian, hessian, jacfwd, jacrev};
pub use jit::{Inline, IntoJit, Jit, jit};
pub use map::MapOptions;
pub use max_traces::{MaxTraces, assert_max_traces};
pub use named_call::{NamedCall, named_call};
pub use ravel::{Unravel, ravel_pytree};
pub use vmap::{Vmap, vmap};
