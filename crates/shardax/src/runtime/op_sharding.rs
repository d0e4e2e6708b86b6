//! Conversion of the compiler's shardings to partition specs.

use shardax_pjrt as pjrt;
use smallvec::SmallVec;

use crate::shape::AxisName;
use crate::sharding::{DimSpec, Mesh, NamedSharding, PartitionSpec};

/// The spec over `mesh` that splits an array of this rank like `op`; `None` if there is none.
pub(crate) fn to_named(op: &pjrt::OpSharding, mesh: &Mesh, rank: usize) -> Option<NamedSharding> {
    if op.is_replicated() || op.kind != pjrt::ShardingKind::Other {
        // Replicated.
        return Some(NamedSharding::new(mesh, PartitionSpec::default()));
    }
    let (tiles, assignment) = (&op.tile_dims, &op.devices);
    if assignment.len() != mesh.size() || tiles.len() < rank {
        return None;
    }
    // The coordinates of each device in the grid of tiles.
    let mut coordinates = vec![SmallVec::<[usize; 4]>::new(); mesh.size()];
    for (tile, &device) in assignment.iter().enumerate() {
        let mut quotient = tile;
        let mut c: SmallVec<[usize; 4]> = smallvec::smallvec![0; tiles.len()];
        for d in (0..tiles.len()).rev() {
            c[d] = quotient % tiles[d];
            quotient /= tiles[d];
        }
        *coordinates.get_mut(device)? = c;
    }
    let dims = (0..rank)
        .map(|d| {
            if tiles[d] == 1 {
                return Some(DimSpec::None);
            }
            let axes = find_axes(mesh, tiles[d], &|position| coordinates[position][d])?;
            Some(DimSpec::from_iter(axes))
        })
        .collect::<Option<Vec<_>>>()?;
    Some(NamedSharding::new(mesh, PartitionSpec::new(dims).trimmed()))
}

/// The axes (major first) whose linear index is `part` on every device.
fn find_axes(mesh: &Mesh, parts: usize, part: &dyn Fn(usize) -> usize) -> Option<Vec<AxisName>> {
    fn search(mesh: &Mesh, parts: usize, part: &dyn Fn(usize) -> usize, chosen: &mut Vec<AxisName>) -> bool {
        let size: usize = chosen.iter().map(|n| mesh.axis_size(*n).unwrap_or(1)).product();
        if size == parts {
            return (0..mesh.size()).all(|p| mesh.linear_index(p, chosen) == part(p));
        }
        for name in mesh.axis_names().collect::<Vec<_>>() {
            if chosen.contains(&name) || mesh.axis_size(name) == Some(1) {
                continue;
            }
            chosen.push(name);
            if search(mesh, parts, part, chosen) {
                return true;
            }
            chosen.pop();
        }
        false
    }
    let mut chosen = Vec::new();
    search(mesh, parts, part, &mut chosen).then_some(chosen)
}
