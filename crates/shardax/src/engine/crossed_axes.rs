//! A warning where the compiler splits values over mesh axes that it is known to confuse.

use std::sync::Mutex;

use super::load::Request;
use super::placement::Place;
use crate::shape::AxisName;
use crate::sharding::{Mesh, NamedSharding, Sharding};
use crate::warning;

/// Two axes that values are split over, of which neither size is a multiple of the other.
fn crossed<'a>(mesh: &Mesh, shardings: impl Iterator<Item = &'a NamedSharding>) -> Option<[(AxisName, usize); 2]> {
    let used: Vec<AxisName> = shardings.flat_map(|s| s.spec().all_axes().collect::<Vec<_>>()).collect();
    let axes: Vec<_> = mesh.axes().iter().filter(|(name, _)| used.contains(name)).copied().collect();
    let fit = |(_, n): (AxisName, usize), (_, m): (AxisName, usize)| n % m == 0 || m % n == 0;
    axes.iter().enumerate().find_map(|(i, a)| axes[..i].iter().find(|b| !fit(*a, **b)).map(|b| [*b, *a]))
}

/// Moving a dimension from an axis of 3 to one of 2, XLA's partitioner takes its rows in the wrong order, in JAX as here
/// (`docs/engine.md`). Which programs it does so in is not known before; it is said once for each pair of sizes.
pub(super) fn warn(request: &Request) {
    static SAID: Mutex<Vec<[usize; 2]>> = Mutex::new(Vec::new());
    let Place::Mesh(mesh) = &request.place else { return };
    let ins = request.in_shardings.iter().filter_map(Sharding::as_named);
    let outs = request.out_shardings.iter().flatten();
    let Some([(a, n), (b, m)]) = crossed(mesh, ins.chain(outs)) else { return };
    // What runs inside of `shard_map` says itself what moves.
    if request.program.eqns.iter().all(|eqn| eqn.primitive.name() == "shard_map") {
        return;
    }
    let mut said = SAID.lock().unwrap_or_else(|e| e.into_inner());
    if said.contains(&[n, m]) {
        return;
    }
    said.push([n, m]);
    drop(said);
    warning::warn(
        &format!(
            "{} splits values over mesh axes '{a}' of size {n} and '{b}' of size {m}, of which neither is a multiple of the other: where a value moves from one to the other, XLA's partitioner is known to take rows in the wrong order in some programs",
            request.name
        ),
        "make one size a multiple of the other, as with powers of two; or split over one of them at a time; or write the program with `shard_map`, which this does not concern",
    );
}
