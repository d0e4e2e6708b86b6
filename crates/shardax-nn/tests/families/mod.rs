//! The functions of the cases.

pub mod nn;
pub mod nn_half;
pub mod nn_more;
pub mod optim;
pub mod optim_more;
pub mod optim_ten;
