//! Sparse arrays, as in [`jax.experimental.sparse`](https://docs.jax.dev/en/latest/jax.experimental.sparse.html): stored
//! elements with their indices, conversions, products and gradients.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::experimental::sparse::{self, BCOO};
//! let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
//! assert_eq!(m.nse(), 3);
//! assert_eq!(m.matmul(array([1.0f32, 1.0, 1.0])).to_vec::<f32>()?, [2.0, 5.0]);
//! // A sparse array is a tree: an argument and a result of `jit`, `vmap` and `grad`.
//! let energy = |m: BCOO, x: Array| m.matmul(x).square().sum(..);
//! let slope = jit(sparse::grad(energy)).call((m, ones([3])))?;
//! assert_eq!(slope.todense().to_vec::<f32>()?, [0.0, 4.0, 0.0, 10.0, 0.0, 10.0]);
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! The number of stored elements, `nse`, is part of the type of a program, so you must pass it inside of `jit`. Elements
//! whose indices are out of range are padding: products and [`BCOO::todense`] drop them. There are no batch dimensions; use
//! [`vmap`](crate::vmap()) instead.

mod bcoo;
mod bcsr;
mod canonical;
mod elementwise;
mod gradient;
mod product;

pub use bcoo::{BCOO, FromdenseOptions};
pub use bcsr::BCSR;
pub use canonical::{bcoo_eliminate_zeros, bcoo_sum_duplicates};
pub use gradient::{Grad, ValueAndGrad, grad, value_and_grad};
pub use product::{Operand, bcoo_dot_general, matmul};
