//! Distributions, as in [`jax.scipy.stats`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.stats).

pub mod norm;
