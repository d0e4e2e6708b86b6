//! The context mesh: the mesh that functions use when none is given.

use std::cell::RefCell;

use crate::array::Array;
use crate::error::{Result, err};
use crate::program::axis_env;
use crate::shape::AxisName;
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

/// Whether this is the context mesh outside of any traced function.
pub(crate) fn is_current(mesh: Option<&Mesh>) -> bool {
    CONTEXT.with_borrow(|c| c.last() == mesh)
}

/// The shape of a mesh without its devices: which devices they are is known from the arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AbstractMesh {
    axes: Vec<(AxisName, usize)>,
}

impl AbstractMesh {
    /// A mesh of these axes, major first.
    pub fn new<N: Into<AxisName>>(axes: impl IntoIterator<Item = (N, usize)>) -> Self {
        AbstractMesh { axes: axes.into_iter().map(|(n, s)| (n.into(), s)).collect() }
    }

    /// The mesh of this shape that an argument of the function being traced lies on.
    fn resolve(&self) -> Result<Mesh> {
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
    /// The meshes that arguments lie on, of the functions being traced.
    static ARGUMENTS: RefCell<Vec<Mesh>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, which traces a function on these arguments.
pub(crate) fn with_arguments<R>(arguments: &[Array], f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            ARGUMENTS.with_borrow_mut(|all| all.truncate(self.0));
        }
    }
    let meshes = arguments.iter().filter_map(|a| Some(a.concrete_ref()?.sharding.as_named()?.mesh().clone()));
    let _restore = Restore(ARGUMENTS.with_borrow_mut(|all| {
        let depth = all.len();
        all.extend(meshes);
        depth
    }));
    f()
}

/// A mesh, as a function is given it.
#[derive(Clone, Debug)]
pub enum MeshArg {
    Mesh(Mesh),
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
