//! Losses. Each function returns one loss for every example, so that you can mask or weight examples before you reduce
//! them with `.mean(..)`. Names, formulas and checks are Optax's.
//!
//! Predictions and logits must have a floating-point dtype. If an array has integers instead, or if shapes do not
//! match, the result carries an error. Shapes are never broadcast silently, because a loss of `[batch, batch]` would
//! otherwise go unnoticed.

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
