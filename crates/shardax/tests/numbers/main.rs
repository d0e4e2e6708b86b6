//! Numbers for which a simple implementation is wrong: half precision, the limits of dtypes, ties and arrays without elements.
//! `golden.rs` compares the values of each function with JAX's.

mod accuracy;
mod arcsines;
mod arctangents;
mod attention;
#[path = "../common/mod.rs"]
mod common;
mod complex;
mod convolutions;
mod cumulatives;
mod decompositions;
mod edges;
mod empty;
mod extremes;
mod factors;
mod groups;
mod half;
mod histograms;
mod indices;
mod integers;
mod keys;
mod limits;
mod local;
mod logarithms;
mod mulhi;
mod narrow;
mod over;
mod padding;
mod positions;
mod precision;
mod products;
mod quantiles;
mod resizing;
mod rotations;
mod science;
mod sets;
mod sharded;
mod softmax;
mod sorts;
mod sums;
mod tall_matrices;
mod texts;
mod transposes;
mod tridiagonal;
mod trimming;
mod vectors;
mod weak;
mod windows;

use shardax::prelude::*;
use shardax_alloc as _;

fn floats(x: &Array) -> Vec<f64> {
    x.to_f64_vec().expect("values")
}
