//! The context mesh: the mesh that functions use when none is given.

use std::cell::RefCell;

use crate::error::{Result, err};
use crate::program::axis_env;
use crate::sharding::Mesh;

thread_local! {
    static CONTEXT: RefCell<Vec<Mesh>> = const { RefCell::new(Vec::new()) };
}

/// Restores the context mesh that was in effect before, when dropped.
#[must_use = "the mesh is the context mesh only while the guard lives"]
pub struct MeshGuard {
    // Guards belong to the thread that made them.
    depth: usize,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for MeshGuard {
    fn drop(&mut self) {
        CONTEXT.with_borrow_mut(|c| c.truncate(self.depth));
    }
}

/// Makes `mesh` the context mesh of this thread while the guard lives.
///
/// Fails while a function is traced: the mesh would change under it.
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
    if crate::program::trace::is_tracing() {
        return Err(err!(Value, "`set_mesh` can only be used outside of a traced function")
            .help("set the mesh before the function is called"));
    }
    let depth = CONTEXT.with_borrow_mut(|c| {
        c.push(mesh.clone());
        c.len() - 1
    });
    Ok(MeshGuard { depth, not_send: std::marker::PhantomData })
}

/// The context mesh: that of the enclosing `shard_map`, else the one that was set last.
pub fn get_mesh() -> Option<Mesh> {
    axis_env::manual().map(|(mesh, _)| mesh).or_else(|| CONTEXT.with_borrow(|c| c.last().cloned()))
}

/// A mesh, or `None` for the context mesh.
pub trait IntoMesh {
    fn into_mesh(self) -> Option<Mesh>;
}

impl IntoMesh for &Mesh {
    fn into_mesh(self) -> Option<Mesh> {
        Some(self.clone())
    }
}

impl IntoMesh for Mesh {
    fn into_mesh(self) -> Option<Mesh> {
        Some(self)
    }
}

impl IntoMesh for Option<&Mesh> {
    fn into_mesh(self) -> Option<Mesh> {
        self.cloned()
    }
}
