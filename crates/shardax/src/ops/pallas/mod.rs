//! Kernels, as in [`jax.experimental.pallas`](https://docs.jax.dev/en/latest/pallas/index.html): functions of refs that run
//! once for each position of a grid, on blocks of the operands and of the results.
//!
//! ```
//! use shardax::experimental::pallas::{self as pl, BlockSpec};
//! use shardax::prelude::*;
//!
//! let tile = || BlockSpec::new([256], |[i]| [i]);
//! let add = pl::pallas_call(|[x, y, o]| o.set(x.get() + y.get()), shape_dtype_struct([1000], DType::F32))
//!     .grid([pl::cdiv(1000, 256)])
//!     .in_specs([tile(), tile()])
//!     .out_specs([tile()]);
//! let z = add.call([ones([1000]), ones([1000])])?;
//! assert_eq!(z.sum(..).item::<f32>()?, 2000.0);
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! [Fused kernels](https://github.com/shardax/shardax/blob/main/docs/kernels.md) explains how you write one, and what each
//! platform supports.

mod call;
mod grid;
pub(crate) mod kernel;
pub(crate) mod primitive;
pub(crate) mod spec;

pub use call::{CompilerParams, CostEstimate, PallasCall, pallas_call};
pub use kernel::{cdiv, dot, num_programs, program_id, when};
pub use spec::{BlockDim, BlockSpec, IntoBlockIndex, IntoBlockShape, SQUEEZED};

pub use crate::ops::state::{Ds, IntoRefIndex, IntoRefIndexItem, Ref, RefIndexItem, RefPart, ds};
