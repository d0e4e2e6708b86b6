//! `set_mesh`, which sets the mesh that functions use if you pass none.

use crate::core::program::trace::is_tracing;
use crate::error::{AtCaller, Result, err};
use crate::sharding::context::{self, IntoMesh, MeshArg, MeshGuard};
use crate::sharding::{AbstractMesh, get_abstract_mesh};

/// Runs `f` with a mesh without devices as the context mesh. The mesh can have other axis names and types than the previous
/// context mesh, but must have the same size. Use [`reshard`](crate::reshard) to move values from one mesh to the other.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let other = AbstractMesh::new([("a", 2), ("b", 4)]).explicit();
/// let f = jit(move |x: Array| use_abstract_mesh(&other, || reshard(x, P!["a", "b"]).sin()));
/// assert_eq!(f.call(ones([8, 8]))?.type_name(), "float32[8@a,8@b]");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the sizes of the meshes differ.
#[track_caller]
pub fn use_abstract_mesh<R>(mesh: &AbstractMesh, f: impl FnOnce() -> R) -> Result<R> {
    match get_abstract_mesh().filter(|outer| outer.size() != mesh.size()) {
        Some(outer) => Err(err!(
            Value,
            "use_abstract_mesh cannot change the size of the mesh: {mesh} has {} devices, and the context mesh {outer} has {}",
            mesh.size(),
            outer.size()
        )
        .help("choose axes whose sizes multiply to the size of the context mesh"))
        .at_caller(),
        None => Ok(context::with_abstract_mesh(Some(mesh.clone()), f)),
    }
}

/// Makes `mesh` the context mesh of this thread until the guard is dropped. Pass `None` to have no context mesh until
/// then.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let total = shard_map(|x: Array| psum(x, "i"), None).in_specs(P!["i"]).out_specs(P![]);
/// let x = device_put(&arange(0..8), P!["i"])?;
/// assert_eq!(total.call(x)?.to_vec::<i32>()?, [28]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a function is being traced, because the function's mesh would change, or if the mesh has no devices.
pub fn set_mesh(mesh: impl IntoMesh) -> Result<MeshGuard> {
    if is_tracing() {
        return Err(err!(Value, "`set_mesh` can only be used outside of a traced function")
            .help("set the mesh before the function is called"));
    }
    match mesh.into_mesh() {
        MeshArg::Mesh(mesh) => Ok(context::enter(Some(mesh))),
        MeshArg::Context => Ok(context::enter(None)),
        MeshArg::Abstract(mesh) => Err(err!(Value, "set_mesh takes a mesh with devices, got {mesh}")
            .help("make one with `make_mesh`, or trace with `use_abstract_mesh(&mesh, f)`")),
    }
}
