//! Sparse linear algebra, as in [`jax.scipy.sparse`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.sparse.linalg).

pub mod linalg;
