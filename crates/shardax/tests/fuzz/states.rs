//! Operands in states that few programs have: split, over axes of size 1, reduced and unreduced over axes of type
//! `Explicit`,
//! and the same or varying inside of `shard_map`. The results equal the results of one device, or the program is
//! rejected for its
//! shardings.

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use super::relations::{Random, Way, split};

/// The mesh of all programs of a piece.
pub fn mesh(way: Way) -> Result<Mesh> {
    let axes = if way == Way::SizeOne { [("a", 1), ("b", 4)] } else { [("a", 2), ("b", 4)] };
    make_mesh(axes)?.with_axis_types([AxisType::Explicit; 2])
}

/// Puts an operand into the state of this way.
pub fn place(x: &Array, way: Way, mesh: &Mesh, random: &mut Random) -> Result<Array> {
    let on = |spec: PartitionSpec| device_put(x, &NamedSharding::new(mesh, spec));
    match way {
        Way::Explicit | Way::SizeOne => split(x, mesh, random),
        Way::Reduced => on(P![].reduced(["a"])),
        // Addends of half of the operands, because few operations accept them next to others.
        Way::Unreduced if x.dtype().is_float() && x.dtype().bits() > 8 && random.below(2) == 0 => {
            on(P![].unreduced(["a"]))
        }
        _ => on(P![]),
    }
}

/// Runs programs whose operands are in the state of this way. The mesh is the context mesh.
pub fn run(way: Way, f: &dyn Fn(Vec<Array>) -> Result<Vec<Array>>, xs: Vec<Array>) -> Result<Vec<Array>> {
    if !matches!(way, Way::Manual | Way::Varying) {
        return Ok(f(xs)?.into_iter().map(replicate).collect());
    }
    let body = |xs: Vec<Array>| -> Result<Vec<Array>> {
        let xs = if way == Way::Varying { pcast(xs, ["a", "b"]) } else { xs };
        Ok(f(xs)?.iter().map(|y| expand_dims(y, 0)).collect())
    };
    // Every device computes all; one of them is compared.
    let ys = shard_map(body, None).in_specs(P![]).out_specs(P![("a", "b")]).call(xs)?;
    Ok(ys.into_iter().map(|y| replicate(y).get(5)).collect())
}

fn replicate(y: Array) -> Array {
    if y.type_name().contains(['@', '{']) { reshard(y, P![]) } else { y }
}

/// Returns true if a program was rejected for its shardings.
fn is_about_shardings(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Sharding | ErrorKind::NotImplemented | ErrorKind::Indivisible => true,
        // The shardings of a loop's carry differ in their reduced axes.
        ErrorKind::Type => {
            let parts = ["carry input and carry output must have equal types", "the shardings do not match"];
            parts.iter().all(|part| error.message().contains(part))
        }
        ErrorKind::Value => ["shard", "should be replicated"].iter().any(|part| error.message().contains(part)),
        _ => false,
    }
}

/// Returns true unless the program is rejected for its shardings, which users see when it is traced.
pub fn accepts(way: Way, f: &dyn Fn(Vec<Array>) -> Result<Vec<Array>>, xs: Vec<Array>) -> bool {
    !eval_shape::<(Vec<Array>,), _, _>(|xs: Vec<Array>| run(way, f, xs), xs)
        .is_err_and(|error| is_about_shardings(&error))
}
