//! Special functions, distributions and matrices, as in [`jax.scipy`](https://docs.jax.dev/en/latest/jax.scipy.html).

pub mod linalg;
pub mod special;
pub mod stats;
