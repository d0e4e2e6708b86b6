//! Values in states that few programs have (unreduced, reduced, empty, axes of size 1, weak, uncommitted): every way to run an
//! operation computes what one device computes.

mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod constructors;
mod exported;
mod items;
mod large;
mod mixed;
mod nested;
mod sweep;
#[path = "../functions/table.rs"]
#[allow(dead_code)]
mod table;

use common::quick::setup;
use shardax::MeshGuard;
use shardax::prelude::*;
use shardax_alloc as _;

/// Returns a mesh of these axes, all of type `Explicit`, set as the context mesh.
fn mesh<const N: usize>(axes: [(&'static str, usize); N]) -> (Mesh, MeshGuard) {
    setup();
    let mesh = make_mesh(axes).and_then(|m| m.with_axis_types([AxisType::Explicit; N])).unwrap();
    let guard = set_mesh(&mesh).unwrap();
    (mesh, guard)
}

fn type_of(x: &Array) -> String {
    x.type_name()
}

fn host(x: &Array) -> Vec<f32> {
    x.to_vec::<f32>().unwrap()
}
