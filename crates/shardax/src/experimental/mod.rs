//! Functions as in [`jax.experimental`](https://docs.jax.dev/en/latest/jax.experimental.html): sparse arrays.

pub mod sparse;
