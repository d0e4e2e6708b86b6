//! Losses, each for every example: reduce them with `.mean(..)`. Names, formulas and checks are Optax's.
//!
//! Predictions and logits are of floating point; an integer array, or shapes that do not belong together, are an error
//! that the result carries, never a silent broadcast.

mod classification;
mod ctc;
mod divergence;
mod multiclass;
mod regression;
mod segmentation;
mod self_supervised;

pub use classification::*;
pub use ctc::{ctc_loss, ctc_loss_with_forward_probs};
pub use divergence::*;
pub use multiclass::*;
pub use regression::*;
pub use segmentation::*;
pub use self_supervised::ntxent;
