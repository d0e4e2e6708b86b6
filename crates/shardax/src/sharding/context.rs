//! The context mesh: the default mesh of a thread.

use std::cell::Cell;

use super::Mesh;
use super::axis_env;
use crate::error::{Result, err};
use crate::local::{Stack, StackKey};
use crate::shape::AxisName;

thread_local! {
    /// The meshes whose guards exist, with the number of each guard.
    static CONTEXT: Stack<(u64, Mesh)> = const { Stack::new() };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Removes its mesh when dropped: the context mesh is the one set last among those whose guards exist.
#[must_use = "the mesh is the context mesh only while the guard lives"]
pub struct MeshGuard {
    number: u64,
    // Guards belong to the thread that made them.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for MeshGuard {
    fn drop(&mut self) {
        CONTEXT.with_borrow_mut(|c| c.retain(|(number, _)| *number != self.number));
    }
}

/// Makes `mesh` the context mesh of this thread until the guard is dropped.
pub(crate) fn enter(mesh: &Mesh) -> MeshGuard {
    let number = NEXT.replace(NEXT.get() + 1);
    CONTEXT.with_borrow_mut(|c| c.push((number, mesh.clone())));
    MeshGuard { number, not_send: std::marker::PhantomData }
}

/// The context mesh: that of the enclosing `shard_map`, else the mesh set last.
pub fn get_mesh() -> Option<Mesh> {
    axis_env::manual().map(|(mesh, _)| mesh).or_else(|| CONTEXT.with_borrow(|c| c.last().map(|(_, mesh)| mesh.clone())))
}

/// The axes of [`get_mesh`] that are manual here: each device has its own shard along them, and collectives may name
/// them. Empty outside of `shard_map` and `pmap`.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 4), ("y", 2)])?;
/// // A sum over all devices where there are several, and the value itself where there are not.
/// let total = |x: Array| match manual_axes().contains(&"x".into()) {
///     true => psum(x.sum(..), "x"),
///     false => x.sum(..),
/// };
/// let parts = shard_map(total, &mesh).axis_names(["x"]).in_specs(P!["x"]).out_specs(P![]);
/// assert_eq!(jit(parts).call(ones(8))?.item::<f32>()?, total(ones(8)).item::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn manual_axes() -> Vec<AxisName> {
    let Some((mesh, manual)) = axis_env::manual() else { return Vec::new() };
    mesh.axis_names().filter(|name| manual.contains(*name)).collect()
}

/// Returns `true` if this is the context mesh outside of traced functions.
pub(crate) fn is_current(mesh: Option<&Mesh>) -> bool {
    CONTEXT.with_borrow(|c| c.last().map(|(_, mesh)| mesh) == mesh)
}

/// The shape of a mesh without its devices, which are those of the arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AbstractMesh {
    axes: Vec<(AxisName, usize)>,
}

impl AbstractMesh {
    /// Creates a mesh of these axes, major first.
    pub fn new<N: Into<AxisName>>(axes: impl IntoIterator<Item = (N, usize)>) -> Self {
        AbstractMesh { axes: axes.into_iter().map(|(n, s)| (n.into(), s)).collect() }
    }

    /// The mesh of this shape that an argument of the traced function is on.
    fn resolve(&self) -> Result<Mesh> {
        ASKED.set(ASKED.get() + 1);
        let found = ARGUMENTS.with_borrow(|all| all.iter().rev().find(|m| m.axes() == self.axes).cloned());
        found.ok_or_else(|| {
            err!(
                Value,
                "shard_map got an abstract mesh {:?}, but no argument has a NamedSharding over a mesh of this shape",
                self.axes
            )
            .help("place an argument with `device_put(x, &NamedSharding::new(&mesh, …))`, or pass the mesh itself")
        })
    }
}

thread_local! {
    /// The meshes of the arguments of the functions being traced.
    static ARGUMENTS: Stack<Mesh> = const { Stack::new() };
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// The number of queries for the arguments' mesh on this thread: a trace that asked depends on the answer.
pub(crate) fn argument_meshes_asked() -> u64 {
    ASKED.get()
}

/// Runs `f`, which traces a function with arguments on these meshes.
pub(crate) fn with_argument_meshes<R>(meshes: impl Iterator<Item = Mesh>, f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            ARGUMENTS.with_borrow_mut(|all| all.truncate(self.0));
        }
    }
    let _restore = Restore(ARGUMENTS.with_borrow_mut(|all| {
        let depth = all.len();
        all.extend(meshes);
        depth
    }));
    f()
}

/// A mesh argument of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MeshArg {
    /// This mesh.
    Mesh(Mesh),
    /// The mesh of the arguments, which must have this shape.
    Abstract(AbstractMesh),
    /// The context mesh.
    Context,
}

impl MeshArg {
    pub(crate) fn resolve(&self) -> Result<Mesh> {
        match self {
            MeshArg::Mesh(mesh) => Ok(mesh.clone()),
            MeshArg::Abstract(mesh) => mesh.resolve(),
            MeshArg::Context => get_mesh().ok_or_else(|| {
                err!(Value, "The context mesh cannot be empty. Use `set_mesh(mesh)` to enter into a mesh context")
                    .help("or pass a mesh to shard_map")
            }),
        }
    }
}

/// A mesh, the shape of one, or `None` for the context mesh.
pub trait IntoMesh {
    /// Returns the mesh argument.
    fn into_mesh(self) -> MeshArg;
}

impl IntoMesh for &Mesh {
    fn into_mesh(self) -> MeshArg {
        MeshArg::Mesh(self.clone())
    }
}

impl IntoMesh for Mesh {
    fn into_mesh(self) -> MeshArg {
        MeshArg::Mesh(self)
    }
}

impl IntoMesh for &AbstractMesh {
    fn into_mesh(self) -> MeshArg {
        MeshArg::Abstract(self.clone())
    }
}

impl IntoMesh for Option<&Mesh> {
    fn into_mesh(self) -> MeshArg {
        self.map_or(MeshArg::Context, IntoMesh::into_mesh)
    }
}
