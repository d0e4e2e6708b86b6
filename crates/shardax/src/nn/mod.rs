//! Functions for neural networks.

pub mod initializers;
