//! Explicit sharding: shardings in types. The cases are named after the cases of JAX's `ShardingInTypesTest` that they follow;
//! types and numbers in them are what JAX 0.10.2 gives. `cases.txt` lists 100 of them with the file that has each.

#[path = "../common/mod.rs"]
mod common;
mod contexts;
mod creation;
mod elementwise;
#[path = "../common/explicit_programs.rs"]
#[allow(dead_code)]
mod explicit_programs;
mod export;
mod indexing;
mod manual_states;
mod modes;
mod no_collectives;
mod products;
mod programs;
mod reduced;
mod reductions;
mod rejected;
mod rejections;
mod shapes;
mod shard_maps;
mod split_edges;
mod stages;
mod transforms;
mod types;
mod unreduced;
mod unreduced_kinds;
mod vmap;

use common::quick::{one_of, setup};
use shardax::prelude::*;
use shardax::{MeshGuard, Typed};
use shardax_alloc as _;

/// The mesh x:2, y:n with both axes of type `Explicit`, set as the context mesh.
fn mesh(y: usize) -> (Mesh, MeshGuard) {
    setup();
    let mesh = make_mesh([("x", 2), ("y", y)]).and_then(|m| m.with_axis_types([AxisType::Explicit; 2])).unwrap();
    let guard = set_mesh(&mesh).unwrap();
    (mesh, guard)
}

/// `0..n` as float32 of this shape, put to this spec over the context mesh.
fn ramp(shape: &[usize], spec: PartitionSpec) -> Array {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    device_put(&array(values).reshape(shape), spec).unwrap()
}

/// `sin(i * a + b)` of this shape, put to this spec.
fn num(shape: &[usize], a: f32, b: f32, spec: PartitionSpec) -> Array {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * a + b).sin()).collect();
    device_put(&array(values).reshape(shape), spec).unwrap()
}

fn host(x: &Array) -> Vec<f32> {
    x.to_vec::<f32>().unwrap()
}

fn total(x: &Array) -> f64 {
    host(x).iter().map(|v| f64::from(*v)).sum()
}

fn absolute(x: &Array) -> f64 {
    host(x).iter().map(|v| f64::from(v.abs())).sum()
}

/// The array on one device, without a mesh in its type.
fn whole(x: &Array) -> Array {
    device_put(x, &devices().unwrap()[0]).unwrap()
}

#[track_caller]
fn near(have: f64, want: f64, tolerance: f64) {
    assert!((have - want).abs() <= tolerance * want.abs().max(1.0), "{have} is not {want}");
}

#[track_caller]
fn same(a: &Array, b: &[f32]) {
    let a = host(a);
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "element {i}: {x} is not {y}");
    }
}

/// Returns the type as text, after checking that the array is sharded as its type says.
#[track_caller]
fn typed(x: &Array) -> String {
    let aval = x.check().map(|()| x.aval()).unwrap_or_else(|e| panic!("{e}"));
    if let (Ok(sharding), Some(typed)) = (x.sharding(), aval.sharding()) {
        let want = sharding.as_named().unwrap().mesh();
        assert_eq!(want.abstract_mesh(), typed.mesh());
    }
    aval.to_string()
}

/// The message of the error that an array or a result carries.
#[track_caller]
fn rejected(x: &Array) -> String {
    x.error().unwrap_or_else(|| panic!("{} carries no error", x.type_name())).to_string()
}

fn text_of(lowered: &str, what: &str) -> usize {
    lowered.matches(what).count()
}

fn spec_of(x: &Array) -> PartitionSpec {
    x.aval().sharding().map(Typed::spec).unwrap()
}

#[test]
fn every_listed_case_has_a_test() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/explicit");
    let cases: Vec<&str> = include_str!("cases.txt").lines().collect();
    assert_eq!(cases.len(), 100);
    for case in cases {
        let (name, file) = case.split_once(' ').expect("a name and a file");
        let source = std::fs::read_to_string(format!("{folder}/{}", file.trim())).unwrap_or_default();
        assert!(source.contains(&format!("#[test]\nfn {name}(")), "{case}");
    }
}
