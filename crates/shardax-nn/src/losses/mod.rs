//! Losses. Each function returns one loss for every example, so that you can mask or weight examples before you reduce
//! them with `.mean(..)`. Names, formulas and checks are Optax's.
//!
//! Predictions and logits must have a floating-point dtype. If an array has integers instead, or if shapes do not
//! match, the result carries an error. Shapes are never broadcast silently, because a loss of `[batch, batch]` would
//! otherwise go unnoticed.

use shardax::prelude::*;

mod classification;
mod ctc;
mod divergence;
mod fenchel_young;
mod multiclass;
mod regression;
mod segmentation;
mod self_supervised;

pub use classification::*;
pub use ctc::{ctc_loss, ctc_loss_with_forward_probs};
pub use divergence::*;
pub use fenchel_young::make_fenchel_young_loss;
pub use multiclass::*;
pub use regression::*;
pub use segmentation::*;
pub use self_supervised::ntxent;

/// Converts half precision to float32, which has the squares of all numbers of float16, and the digits of sums of them.
fn in_float32(x: &Array) -> Array {
    if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() }
}
