//! Special functions, distributions, signals and matrices, as in [`jax.scipy`](https://docs.jax.dev/en/latest/jax.scipy.html).

pub mod cluster;
pub mod fft;
pub mod integrate;
pub mod interpolate;
pub mod linalg;
pub mod ndimage;
pub mod optimize;
pub mod signal;
pub mod sparse;
pub mod spatial;
pub mod special;
pub mod stats;
