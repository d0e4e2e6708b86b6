//! The primitives, one file per family.

pub(crate) mod attention;
pub(crate) mod binary;
pub(crate) mod bitcast;
pub(crate) mod call;
pub(crate) mod checkpoint;
pub(crate) mod checkpoint_policy;
pub(crate) mod cholesky;
pub(crate) mod clamp;
pub(crate) mod composite;
pub(crate) mod cond;
pub(crate) mod conv;
pub(crate) mod cumulative;
pub(crate) mod custom_jvp;
pub(crate) mod custom_vjp;
pub(crate) mod custom_vmap;
pub(crate) mod det;
pub(crate) mod device_put;
pub(crate) mod dot;
pub(crate) mod dot_algorithm;
pub(crate) mod dynamic_slice;
mod eager_forms;
pub(crate) mod eigh;
pub(crate) mod elementwise_rules;
pub(crate) mod expanded;
pub(crate) mod fft;
pub(crate) mod gather;
pub(crate) mod layout_constraint;
pub(crate) mod linear_solve;
pub(crate) mod lu;
pub(crate) mod matrix;
pub(crate) mod optimization_barrier;
pub(crate) mod qr;
pub(crate) mod random_gamma;
pub(crate) mod random_key;
pub(crate) mod reduce;
pub(crate) mod reduce_precision;
pub(crate) mod reduce_window;
pub(crate) mod reshard;
pub(crate) mod rng_bit_generator;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod search_sorted;
pub(crate) mod select_and_gather;
pub(crate) mod shape_ops;
pub(crate) mod slices;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod special;
pub(crate) mod stop_gradient;
pub(crate) mod svd;
pub(crate) mod threefry;
pub(crate) mod top_k;
pub(crate) mod triangular_solve;
pub(crate) mod unary;
pub(crate) mod while_loop;
pub(crate) mod window;

use crate::core::array::Array;

/// The sum of two tangents. A missing one is zero.
pub(crate) fn add_tangents(a: Option<Array>, b: Option<Array>) -> Option<Array> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}
