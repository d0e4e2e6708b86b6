//! The functions of the cases.

pub mod attention;
pub mod contrib;
pub mod losses;
pub mod nn;
pub mod nn_half;
pub mod nn_layers;
pub mod nn_train;
pub mod optim;
pub mod optim_wrappers;
pub mod optimizers;

use shardax_nn::prelude::*;

/// The layer with these arrays.
fn given<const N: usize, M: Module>(layer: M, arrays: [(&str, &Array); N]) -> M {
    let state = arrays.into_iter().map(|(key, array)| (key, array.clone())).collect();
    layer.with_state(&state).expect("the layer's arrays")
}
