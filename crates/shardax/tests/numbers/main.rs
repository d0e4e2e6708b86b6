//! Numbers where the easy way is wrong: half precision, the edges of dtypes, ties and emptiness. (Each function's values
//! there are compared with JAX's in `golden.rs`.)

mod accuracy;
mod arcsines;
mod arctangents;
mod attention;
#[path = "../common/mod.rs"]
mod common;
mod convolutions;
mod cumulatives;
mod decompositions;
mod edges;
mod extremes;
mod half;
mod keys;
mod limits;
mod logarithms;
mod narrow;
mod over;
mod positions;
mod precision;
mod products;
mod quantiles;
mod science;
mod sets;
mod sharded;
mod softmax;
mod sorts;
mod sums;
mod vectors;
mod weak;

use shardax::prelude::*;

fn floats(x: &Array) -> Vec<f64> {
    x.to_f64_vec().expect("values")
}
