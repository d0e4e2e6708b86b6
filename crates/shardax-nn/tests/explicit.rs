//! Models over mesh axes of type `Explicit`: their layers have no constraints, and their losses, gradients and parameters
//! are those on one device and on a mesh of type `Auto`.

#[path = "explicit/layers.rs"]
mod layers;
#[path = "parallel/model.rs"]
#[allow(dead_code)]
mod model;
#[path = "explicit/optimizers.rs"]
mod optimizers;
#[path = "explicit/pipelines.rs"]
mod pipelines;
#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
#[path = "explicit/transformer.rs"]
mod transformer;

use quick::{QUICK, setup};
use shardax_alloc as _;
use shardax_nn::prelude::*;

/// The mesh data:2, model:4, of this type.
fn mesh(ty: AxisType) -> Mesh {
    setup();
    make_mesh([("data", 2), ("model", 4)]).and_then(|mesh| mesh.with_axis_types([ty; 2])).expect("a mesh")
}

#[track_caller]
fn equal(have: &Array, want: &Array, tolerance: f64, what: &str) {
    let (have, want) = (device_get(have).expect("values"), device_get(want).expect("values"));
    assert_eq!(have.shape(), want.shape(), "{what}");
    assert!(allclose(&have, &want, tolerance, tolerance).expect("numbers"), "{what}: {have} is not {want}");
}

/// The types of all leaves as text.
fn types<T: Tree>(tree: &T) -> Vec<String> {
    tree::leaves(tree).iter().map(|x| x.type_name().trim_end_matches('~').to_owned()).collect()
}
