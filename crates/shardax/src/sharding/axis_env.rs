//! The axis environment: the axis names that are bound while a function is traced. An axis is bound by `vmap`, which maps over
//! it, or by `shard_map` and `pmap`, for which it is a manual axis of a mesh.

use super::{AbstractMesh, Mesh, context};
use crate::error::{Result, err};
use crate::local::{Stack, StackKey};
use crate::shape::{AxisName, AxisSet};

/// A bound axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BoundAxis {
    pub name: AxisName,
    pub size: usize,
    pub kind: AxisKind,
}

/// The kind of a bound axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AxisKind {
    /// An axis mapped by `vmap`. Collectives over it become ordinary operations.
    Mapped,
    /// A manual axis of a mesh. `checked` is `true` if the types of values record whether they vary over it.
    Manual { checked: bool, mesh: Mesh },
}

// Collectives refer to axes by name, and have no argument for the enclosing `vmap`s and `shard_map`s.
thread_local! {
    static BOUND: Stack<BoundAxis> = const { Stack::new() };
    /// The mesh axes over which the enclosing `vmap`s shard their batch entries.
    static SPMD: Stack<AxisName> = const { Stack::new() };
}

/// The bound axes, as a value that you can compare.
#[derive(PartialEq)]
pub(crate) struct Environment {
    bound: Vec<BoundAxis>,
    spmd: Vec<AxisName>,
}

impl Environment {
    pub fn current() -> Self {
        Environment { bound: BOUND.with_borrow(|b| b.to_vec()), spmd: SPMD.with_borrow(|s| s.to_vec()) }
    }
}

/// Runs `f`, which traces one entry of a batch that will be sharded over these mesh axes.
pub(crate) fn with_spmd<R>(names: &[AxisName], f: impl FnOnce() -> R) -> R {
    SPMD.with_pushed(names.iter().copied(), f)
}

/// Returns `true` if devices along this mesh axis hold different entries of a batch.
pub(crate) fn is_spmd(name: AxisName) -> bool {
    SPMD.with_borrow(|s| s.contains(&name))
}

/// Runs `f` with `axes` bound in addition to the axes that are already bound.
pub(crate) fn with_axes<R>(axes: Vec<BoundAxis>, f: impl FnOnce() -> R) -> R {
    BOUND.with_pushed(axes, || match manual_mesh() {
        Some(mesh) => context::with_abstract_mesh(Some(mesh), f),
        None => f(),
    })
}

/// Returns the mesh of the current manual axes, with `Manual` as the type of these axes, or `None` if there are no manual axes.
fn manual_mesh() -> Option<AbstractMesh> {
    let (mesh, axes) = manual()?;
    let outer = context::get_abstract_mesh().filter(|outer| outer.axes() == mesh.axes());
    Some(context::with_manual(outer.as_ref().unwrap_or(mesh.abstract_mesh()), &axes))
}

/// Returns the innermost axis with this name.
pub(crate) fn lookup(name: AxisName, operation: &str) -> Result<BoundAxis> {
    BOUND.with_borrow(|bound| bound.iter().rev().find(|a| a.name == name).cloned()).ok_or_else(|| {
        let bound_names: Vec<_> = BOUND.with_borrow(|b| b.iter().map(|a| a.name.to_string()).collect());
        let bound_names = if bound_names.is_empty() { "no axis is bound here".to_owned() } else { format!("bound here: {}", bound_names.join(", ")) };
        err!(
            Name,
            "unbound axis name: {name}. Found an unbound axis name: {name}. To fix this, please call {operation} under `shard_map` ({bound_names})"
        )
        .help(match manual() {
            Some((mesh, _)) if mesh.axis_names().any(|axis| axis == name) => {
                format!("`shard_map` leaves the axis {name:?} of its mesh to the compiler: add it to `axis_names`")
            }
            _ => format!(
                "call it inside `pmap(..).axis_name(\"{name}\")`, `vmap(..).axis_name(\"{name}\")` or `shard_map` over a mesh with an axis {name:?}"
            ),
        })
    })
}

/// Returns `true` if the types of values record whether they vary over a bound axis.
pub(crate) fn any_checked() -> bool {
    BOUND.with_borrow(|b| b.iter().any(|a| matches!(a.kind, AxisKind::Manual { checked: true, .. })))
}

/// Returns the current manual axes and their mesh.
pub(crate) fn manual() -> Option<(Mesh, AxisSet)> {
    BOUND.with_borrow(|b| {
        let mesh = b.iter().rev().find_map(|a| match &a.kind {
            AxisKind::Manual { mesh, .. } => Some(mesh.clone()),
            AxisKind::Mapped => None,
        })?;
        let names = b.iter().filter(|a| a.kind != AxisKind::Mapped).map(|a| a.name).collect();
        Some((mesh, names))
    })
}
