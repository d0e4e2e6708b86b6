//! Functions as in [`jax.experimental`](https://docs.jax.dev/en/latest/jax.experimental.html): kernels, sparse arrays,
//! Taylor series and differential equations.

pub mod jet;
pub mod ode;
pub mod sparse;

pub use crate::ops::pallas;
