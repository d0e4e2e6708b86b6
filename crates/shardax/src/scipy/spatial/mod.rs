//! Geometry, as in [`jax.scipy.spatial`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.spatial.transform).

pub mod transform;
