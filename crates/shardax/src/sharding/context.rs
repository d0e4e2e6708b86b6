//! The context mesh: the default mesh of a thread.

use std::cell::Cell;

use super::Mesh;
use super::abstract_mesh::{AbstractMesh, any_explicit};
use super::axis_env;
use super::mesh::AxisType;
use crate::dependence::{Dependence, depend_on};
use crate::error::{Result, err};
use crate::local::{CellKey, Guard, Guarded, GuardedKey, Stack, StackKey};
use crate::shape::{AxisName, AxisSet};

thread_local! {
    /// The meshes of the existing guards. `None` hides the meshes before it.
    static CONTEXT: Guarded<Option<Mesh>> = const { Guarded::new() };
}

/// Removes its mesh from the context when dropped. The context mesh is the mesh of the latest guard that still exists.
#[must_use = "the mesh is the context mesh only while the guard lives"]
pub struct MeshGuard {
    _guard: Guard<Option<Mesh>>,
}

/// Makes `mesh` the context mesh of this thread until the guard is dropped. `None` means that there is no context mesh.
pub(crate) fn enter(mesh: Option<Mesh>) -> MeshGuard {
    MeshGuard { _guard: CONTEXT.guard(mesh) }
}

/// Returns the context mesh: the mesh of the enclosing `shard_map`, otherwise the mesh that was set last.
pub fn get_mesh() -> Option<Mesh> {
    depend_on(Dependence { devices: true, ..Dependence::default() });
    mesh_for_key()
}

/// The context mesh as a part of a cache's key, without a record that the function being traced depends on it.
pub(crate) fn mesh_for_key() -> Option<Mesh> {
    axis_env::manual().map(|(mesh, _)| mesh).or_else(mesh_with_devices)
}

thread_local! {
    /// The abstract meshes that replace the context mesh while functions are traced.
    static ABSTRACT: Stack<Option<AbstractMesh>> = const { Stack::new() };
}

/// Returns the context mesh without its devices. Inside a `shard_map` it is the mesh of the `shard_map` with its axes
/// of type `Manual`, and under [`use_abstract_mesh`](crate::use_abstract_mesh) the mesh set there; otherwise it is the
/// mesh that was set last.
pub fn get_abstract_mesh() -> Option<AbstractMesh> {
    if let Some(mesh) = ABSTRACT.with_borrow(|all| all.last().cloned()) {
        return mesh;
    }
    CONTEXT.with_last(|mesh| Some(mesh?.as_ref()?.abstract_mesh().clone()))
}

/// Returns `true` if an axis of the context mesh is of type `Explicit`. It must be fast, because it is called for every
/// operation.
pub(crate) fn is_explicit() -> bool {
    any_explicit() && is_explicit_here()
}

fn is_explicit_here() -> bool {
    match ABSTRACT.with_borrow(|all| all.last().map(|mesh| mesh.as_ref().is_some_and(AbstractMesh::has_explicit))) {
        Some(explicit) => explicit,
        None => CONTEXT.with_last(|mesh| mesh.is_some_and(has_explicit)),
    }
}

/// Returns `true` if an axis of a mesh of the context is of type `Explicit`.
fn has_explicit(mesh: &Option<Mesh>) -> bool {
    mesh.as_ref().is_some_and(|mesh| mesh.abstract_mesh().has_explicit())
}

/// Returns the mesh with these axes of type `Manual`.
pub(crate) fn with_manual(mesh: &AbstractMesh, manual: &AxisSet) -> AbstractMesh {
    let types = mesh.axis_names().zip(mesh.axis_types());
    let types = types.map(|(name, ty)| if manual.contains(name) { AxisType::Manual } else { *ty }).collect();
    AbstractMesh::of(mesh.axes().to_vec(), types)
}

/// The context mesh if one of its axes is of type `Explicit`, so that types have shardings.
pub(crate) fn explicit_mesh() -> Option<AbstractMesh> {
    is_explicit().then(get_abstract_mesh).flatten()
}

/// Returns the context mesh to record on equations traced here, if it differs from the function's.
pub(crate) fn abstract_mesh_of_trace() -> Option<AbstractMesh> {
    if !any_explicit() {
        return None;
    }
    ABSTRACT.with_borrow(|all| {
        let innermost = all.last()?.clone()?;
        let is_any_explicit = all.iter().flatten().any(AbstractMesh::has_explicit)
            || CONTEXT.find_last(|mesh| has_explicit(mesh).then_some(())).is_some();
        is_any_explicit.then_some(innermost)
    })
}

// Set only while a function is traced, which happens on one thread.
thread_local! {
    static IS_ADOPTING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, which traces a function whose context mesh has no axes of type `Explicit`. Inside, the function can use
/// arrays whose types have such axes, and captured arrays have no sharding in their types.
pub(crate) fn adopting<R>(f: impl FnOnce() -> R) -> R {
    let _restore = IS_ADOPTING.guard(true);
    f()
}

/// Returns `true` if operands can be on another mesh than the context mesh; see [`adopting`].
pub(crate) fn adopts() -> bool {
    IS_ADOPTING.get()
}

/// The context mesh with its devices, even while a function is traced.
pub(crate) fn mesh_with_devices() -> Option<Mesh> {
    CONTEXT.with_last(|mesh| mesh?.clone())
}

/// Runs `f`, which traces a function, with this mesh as the context mesh. `None` means that there is no context mesh.
pub(crate) fn with_abstract_mesh<R>(mesh: Option<AbstractMesh>, f: impl FnOnce() -> R) -> R {
    ABSTRACT.with_pushed([mesh], f)
}

/// Returns the axes of [`get_mesh`] that are manual here. Each device has a separate shard along them, and collectives
/// can name them. Empty outside of `shard_map` and `pmap`.
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
    CONTEXT.with_last(|last| last.and_then(Option::as_ref) == mesh)
}

impl AbstractMesh {
    /// Finds the mesh with this shape among the meshes of the arguments of the function being traced.
    fn resolve(&self) -> Result<Mesh> {
        depend_on(Dependence { argument_meshes: true, ..Dependence::default() });
        let mesh = ARGUMENTS.with_borrow(|meshes| meshes.iter().rev().find(|m| m.axes() == self.axes()).cloned());
        mesh.ok_or_else(|| {
            err!(
                Value,
                "shard_map got an abstract mesh {:?}, but no argument has a NamedSharding over a mesh of this shape",
                self.axes()
            )
            .help("place an argument with `device_put(x, &NamedSharding::new(&mesh, …))`, or pass the mesh itself")
        })
    }
}

thread_local! {
    /// The meshes of the arguments of the functions being traced.
    static ARGUMENTS: Stack<Mesh> = const { Stack::new() };
}

/// Runs `f`, which traces a function with arguments on these meshes.
pub(crate) fn with_argument_meshes<R>(meshes: impl Iterator<Item = Mesh>, f: impl FnOnce() -> R) -> R {
    ARGUMENTS.with_pushed(meshes, f)
}

/// A mesh argument of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MeshArg {
    /// This mesh.
    Mesh(Mesh),
    /// The mesh of the arguments. It must have this shape.
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
                    .help("call `set_mesh(mesh)` first, or pass a mesh to `shard_map`")
            }),
        }
    }
}

/// A mesh, an abstract mesh, or `None` for the context mesh.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a mesh",
    label = "not a mesh",
    note = "pass the mesh by reference, or `None` for the context mesh: `shard_map(f).mesh(&mesh)`",
    note = "`make_mesh([(\"data\", 8)])?` returns one"
)]
pub trait IntoMesh {
    /// Returns the mesh argument.
    fn into_mesh(self) -> MeshArg;
}

impl IntoMesh for &Mesh {
    fn into_mesh(self) -> MeshArg {
        MeshArg::Mesh(self.clone())
    }
}

impl IntoMesh for &&Mesh {
    fn into_mesh(self) -> MeshArg {
        MeshArg::Mesh((*self).clone())
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
