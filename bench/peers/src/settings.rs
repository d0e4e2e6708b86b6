//! Numbers of the rows that are the same in all libraries.

/// The edge of the square matrices of `matmul_2048`.
pub const EDGE: usize = 2048;

/// The learning rate of the MLP.
pub const SGD_RATE: f64 = 0.1;

/// The learning rate of the CNN and the GPT.
pub const ADAM_RATE: f64 = 1e-3;

/// The epsilon of Adam and AdamW.
pub const ADAM_EPSILON: f64 = 1e-8;

/// The weight decay of the GPT's matrices.
pub const DECAY: f64 = 0.1;

/// The global norm to which the GPT's gradients are clipped.
pub const CLIP: f64 = 1.0;

pub const VOCABULARY: usize = 256;

/// Tokens per row.
pub const LENGTH: usize = 256;

pub const FEATURES: usize = 256;

pub const LAYERS: usize = 6;

pub const HEADS: usize = 8;

/// The epsilon of the GPT's layer normalization.
pub const NORM_EPSILON: f64 = 1e-6;
