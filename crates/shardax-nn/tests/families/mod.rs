//! The functions of the cases.

pub mod nn;
pub mod optim;
