//! Meshes without devices: names, sizes and types of axes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mesh::AxisType;
use crate::error::{AtCaller, Result, err};
use crate::shape::AxisName;

/// The shape of a mesh without its devices: names, sizes and types of its axes.
///
/// The type of a value contains an abstract mesh if one of its axes is [`Explicit`](AxisType::Explicit).
///
/// ```
/// # use shardax::prelude::*;
/// let mesh = AbstractMesh::new([("x", 2), ("y", 4)]);
/// assert_eq!(mesh.axis_size("y"), Some(4));
/// let mesh = mesh.update_axis_types([("x", AxisType::Explicit)])?;
/// assert_eq!(mesh.to_string(), "AbstractMesh('x': 2, 'y': 4, axis_types=(Explicit, Auto))");
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AbstractMesh(Arc<Inner>);

/// Set when the first mesh with an axis of type `Explicit` is created. Until then no type has a sharding, so operations
/// do not have to look for one.
static EXPLICIT: AtomicBool = AtomicBool::new(false);

/// Returns `true` if this process has created a mesh with an axis of type `Explicit`.
pub(crate) fn any_explicit() -> bool {
    EXPLICIT.load(Ordering::Relaxed)
}

/// An axis of a mesh: its name and its size.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an axis of a mesh",
    label = "not a name with a size",
    note = "each axis is its name with its size, a `usize`: `make_mesh([(\"data\", 2), (\"model\", 4)])`"
)]
pub trait MeshAxis {
    /// Returns the name and the size.
    fn into_axis(self) -> (AxisName, usize);
}

impl<N: Into<AxisName>> MeshAxis for (N, usize) {
    fn into_axis(self) -> (AxisName, usize) {
        (self.0.into(), self.1)
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Inner {
    axes: Vec<(AxisName, usize)>,
    types: Vec<AxisType>,
    has_explicit: bool,
}

impl AbstractMesh {
    /// Creates a mesh with these axes, major first, all of type `Auto`.
    pub fn new(axes: impl IntoIterator<Item = impl MeshAxis>) -> Self {
        let axes: Vec<_> = axes.into_iter().map(MeshAxis::into_axis).collect();
        let types = vec![AxisType::Auto; axes.len()];
        AbstractMesh::of(axes, types)
    }

    pub(super) fn of(axes: Vec<(AxisName, usize)>, types: Vec<AxisType>) -> Self {
        let has_explicit = types.contains(&AxisType::Explicit);
        if has_explicit {
            EXPLICIT.store(true, Ordering::Relaxed);
        }
        AbstractMesh(Arc::new(Inner { axes, types, has_explicit }))
    }

    /// Returns the mesh with all axes of type [`Explicit`](AxisType::Explicit).
    pub fn explicit(&self) -> Self {
        AbstractMesh::of(self.0.axes.clone(), vec![AxisType::Explicit; self.0.axes.len()])
    }

    /// Returns the mesh with all axes of type [`Auto`](AxisType::Auto).
    pub fn auto(&self) -> Self {
        AbstractMesh::of(self.0.axes.clone(), vec![AxisType::Auto; self.0.axes.len()])
    }

    /// Returns the mesh with these axis types.
    ///
    /// # Errors
    /// Returns an error if there is not one type for each axis.
    #[track_caller]
    pub fn with_axis_types(&self, types: impl IntoIterator<Item = AxisType>) -> Result<Self> {
        self.typed(types.into_iter().collect()).at_caller()
    }

    pub(super) fn typed(&self, types: Vec<AxisType>) -> Result<Self> {
        if types.len() != self.axes().len() {
            return Err(err!(Value, "{} axis types given for the {} axes of {self}", types.len(), self.axes().len())
                .help("pass one type for each axis"));
        }
        Ok(AbstractMesh::of(self.0.axes.clone(), types))
    }

    /// Returns the mesh with the types of the named axes replaced.
    ///
    /// # Errors
    /// Returns an error if the mesh has no axis of a given name.
    #[track_caller]
    pub fn update_axis_types<N: Into<AxisName>>(&self, types: impl IntoIterator<Item = (N, AxisType)>) -> Result<Self> {
        let mut new_types = self.0.types.clone();
        for (name, ty) in types {
            let name = name.into();
            let index = self.position(name).ok_or_else(|| self.unknown(name)).at_caller()?;
            new_types[index] = ty;
        }
        Ok(AbstractMesh::of(self.0.axes.clone(), new_types))
    }

    /// Creates the error for an axis that is not in the mesh.
    pub(crate) fn unknown(&self, name: AxisName) -> crate::error::Error {
        err!(Value, "Resource axis: {name} is not found in mesh: {self}")
            .help(format!("use an axis of the mesh: {:?}", self.axis_names().collect::<Vec<_>>()))
    }

    /// Returns the axes, major first.
    pub fn axes(&self) -> &[(AxisName, usize)] {
        &self.0.axes
    }

    /// Returns the names of the axes, in order.
    pub fn axis_names(&self) -> impl Iterator<Item = AxisName> + Clone + '_ {
        self.0.axes.iter().map(|(n, _)| *n)
    }

    /// Returns the type of each axis.
    pub fn axis_types(&self) -> &[AxisType] {
        &self.0.types
    }

    fn position(&self, name: AxisName) -> Option<usize> {
        self.0.axes.iter().position(|(n, _)| *n == name)
    }

    /// Returns the type of the axis with this name.
    pub fn axis_type(&self, name: impl Into<AxisName>) -> Option<AxisType> {
        self.position(name.into()).map(|at| self.0.types[at])
    }

    /// Returns the size of the axis with this name.
    pub fn axis_size(&self, name: impl Into<AxisName>) -> Option<usize> {
        self.position(name.into()).map(|at| self.0.axes[at].1)
    }

    /// Returns the number of devices.
    pub fn size(&self) -> usize {
        self.0.axes.iter().map(|(_, size)| size).product()
    }

    /// Returns the names of the axes with this type, in order.
    pub fn axes_of_type(&self, ty: AxisType) -> impl Iterator<Item = AxisName> + '_ {
        self.0.axes.iter().zip(&self.0.types).filter(move |(_, t)| **t == ty).map(|((n, _), _)| *n)
    }

    /// Returns `true` if an axis is of type `Explicit`.
    pub(crate) fn has_explicit(&self) -> bool {
        self.0.has_explicit
    }

    /// The mesh with axes of type `Auto` instead of `Explicit`.
    pub(crate) fn without_explicit(&self) -> Self {
        if !self.has_explicit() {
            return self.clone();
        }
        let mut types = self.0.types.clone();
        types.iter_mut().filter(|ty| **ty == AxisType::Explicit).for_each(|ty| *ty = AxisType::Auto);
        AbstractMesh::of(self.0.axes.clone(), types)
    }

    /// Returns `true` if all axes have this type.
    pub(crate) fn is_all(&self, ty: AxisType) -> bool {
        self.0.types.iter().all(|t| *t == ty)
    }
}

/// `Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto))` for the name `Mesh`.
pub(super) fn write_mesh(f: &mut fmt::Formatter<'_>, name: &str, mesh: &AbstractMesh) -> fmt::Result {
    write!(f, "{name}(")?;
    for (name, size) in mesh.axes() {
        write!(f, "{name:?}: {size}, ")?;
    }
    let types: Vec<_> = mesh.axis_types().iter().map(|t| format!("{t:?}")).collect();
    write!(f, "axis_types=({}{}))", types.join(", "), if types.len() == 1 { "," } else { "" })
}

impl fmt::Display for AbstractMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_mesh(f, "AbstractMesh", self)
    }
}

impl fmt::Debug for AbstractMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
