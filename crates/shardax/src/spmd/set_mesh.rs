//! `set_mesh`: the mesh that functions use when none is given.

use crate::core::program::trace::is_tracing;
use crate::error::{Result, err};
use crate::sharding::Mesh;
use crate::sharding::context::{self, MeshGuard};

/// Makes `mesh` the context mesh of this thread until the guard is dropped.
///
/// Fails while a function is traced, because its mesh would change.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let total = shard_map(|x: Array| psum(x, "i"), None).in_specs(P!["i"]).out_specs(P![]);
/// assert_eq!(total.call(arange(0..8))?.to_vec::<i32>()?, [28]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_mesh(mesh: &Mesh) -> Result<MeshGuard> {
    if is_tracing() {
        return Err(err!(Value, "`set_mesh` can only be used outside of a traced function")
            .help("set the mesh before the function is called"));
    }
    Ok(context::enter(mesh))
}
