//! Special functions, distributions, signals and matrices, as in [`jax.scipy`](https://docs.jax.dev/en/latest/jax.scipy.html).

pub mod fft;
pub mod integrate;
pub mod linalg;
pub mod signal;
pub mod sparse;
pub mod special;
pub mod stats;
