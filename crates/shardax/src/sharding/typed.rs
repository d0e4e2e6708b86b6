//! Shardings in types. They say how a value is split over the `Explicit` axes of a mesh without its devices.

use std::fmt;

use smallvec::SmallVec;

use super::abstract_mesh::AbstractMesh;
use super::mesh::AxisType;
use super::spec::{DimSpec, PartitionSpec, UnreducedKind};
use crate::error::{Result, err};
use crate::shape::{AxisName, AxisSet};

/// The sharding in a value's type. It has one entry per dimension, and only axes of type
/// [`Explicit`](AxisType::Explicit).
///
/// Values on a mesh without such axes, or on one device, have no sharding in their types.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Typed {
    mesh: AbstractMesh,
    dims: SmallVec<[DimSpec; 4]>,
    unreduced: AxisSet,
    reduced: AxisSet,
    kind: UnreducedKind,
}

impl Typed {
    /// Returns the sharding of a replicated value of this rank.
    pub fn replicated(mesh: &AbstractMesh, rank: usize) -> Self {
        Typed::from_dims(mesh, SmallVec::from_elem(DimSpec::None, rank))
    }

    pub(crate) fn from_dims(mesh: &AbstractMesh, dims: SmallVec<[DimSpec; 4]>) -> Self {
        Typed {
            mesh: mesh.clone(),
            dims,
            unreduced: AxisSet::default(),
            reduced: AxisSet::default(),
            kind: UnreducedKind::Sum,
        }
    }

    /// Returns the part of `spec` that is in the type of a value of this rank. It is padded to the rank, and contains
    /// only axes of type `Explicit`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::sharding::Typed;
    /// let mesh = AbstractMesh::new([("x", 2), ("y", 4)]).with_axis_types([AxisType::Explicit, AxisType::Auto])?;
    /// assert_eq!(Typed::from_spec(&mesh, &P!["x", "y"], 3).spec(), P!["x", None, None]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn from_spec(mesh: &AbstractMesh, spec: &PartitionSpec, rank: usize) -> Self {
        let dims = (0..rank).map(|d| entry(spec.axes(d).iter().copied().filter(|name| is_explicit(mesh, *name))));
        Typed::from_dims(mesh, dims.collect()).with_kind(spec.kind()).with_partial(
            spec.unreduced_axes().iter().filter(|name| is_explicit(mesh, *name)).collect(),
            spec.reduced_axes().iter().filter(|name| is_explicit(mesh, *name)).collect(),
        )
    }

    /// The sharding that `what` requests for a value of this shape. Its axes must be of type `Explicit`.
    pub(crate) fn requested(mesh: &AbstractMesh, spec: &PartitionSpec, shape: &[usize], what: &str) -> Result<Self> {
        spec.check_kind()?;
        let sets = spec.unreduced_axes().iter().chain(spec.reduced_axes().iter());
        for name in spec.all_axes().chain(sets) {
            match mesh.axis_type(name) {
                None => return Err(mesh.unknown(name)),
                Some(AxisType::Explicit) => {}
                Some(ty) => {
                    return Err(err!(
                        Value,
                        "{what} can only refer to axes that are Explicit, but got {spec}, whose axis {name:?} is of type {ty:?} in {mesh}"
                    )
                    .help(match ty {
                        AxisType::Auto => "leave the axis out: the compiler splits over it; `with_sharding_constraint` guides it",
                        _ => "leave the axis out: each device has its own block along it",
                    }));
                }
            }
        }
        if spec.dims().contains(&DimSpec::Unconstrained) {
            return Err(err!(Value, "{what} cannot contain UNCONSTRAINED, got {spec}")
                .help("say how each dimension is split, or `None`; Auto axes are left to the compiler"));
        }
        if spec.len() > shape.len() {
            return Err(err!(
                Value,
                "{what} {spec} is only valid for values of rank at least {}, and got one of rank {}",
                spec.len(),
                shape.len()
            )
            .help(format!("write a spec of at most {} entries", shape.len())));
        }
        // The remaining checks need the sharding, which is padded to the rank.
        let typed = Typed::from_spec(mesh, spec, shape.len());
        typed.check_distinct()?;
        typed.check_divides(shape)?;
        Ok(typed)
    }

    /// Returns the mesh, without its devices.
    pub fn mesh(&self) -> &AbstractMesh {
        &self.mesh
    }

    /// Returns the entry of each dimension.
    pub fn dims(&self) -> &[DimSpec] {
        &self.dims
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Returns the axes over which the value is unreduced, so that it is the sum of the devices' addends (or their
    /// maximum or minimum, if [`kind`](Self::kind) says so).
    pub fn unreduced(&self) -> &AxisSet {
        &self.unreduced
    }

    /// Returns the operation that combines the devices' values along the unreduced axes. A sum if there are none.
    pub fn kind(&self) -> UnreducedKind {
        self.kind
    }

    /// Sets the operation that combines the devices' values; set the axes afterwards with `with_partial`.
    pub(crate) fn with_kind(self, kind: UnreducedKind) -> Self {
        Typed { kind, ..self }
    }

    /// Returns the axes along which the value is replicated and its cotangent is unreduced.
    pub fn reduced(&self) -> &AxisSet {
        &self.reduced
    }

    /// Returns the spec, with one entry per dimension.
    pub fn spec(&self) -> PartitionSpec {
        PartitionSpec::new(self.dims.iter().cloned())
            .unreduced(self.unreduced.iter())
            .reduced(self.reduced.iter())
            .unreduced_kind(self.kind)
    }

    /// Returns `true` if every device has the entire value.
    pub fn is_replicated(&self) -> bool {
        self.unreduced.is_empty() && self.dims.iter().all(|d| *d == DimSpec::None)
    }

    /// Returns `true` if axes are unreduced or reduced.
    pub(crate) fn is_partial(&self) -> bool {
        !self.unreduced.is_empty() || !self.reduced.is_empty()
    }

    /// The axes that split a dimension.
    pub(crate) fn split_axes(&self) -> impl Iterator<Item = AxisName> + '_ {
        self.dims.iter().flat_map(|d| d.axes().iter().copied())
    }

    pub(crate) fn with_dims(&self, dims: impl IntoIterator<Item = DimSpec>) -> Self {
        Typed { dims: dims.into_iter().collect(), ..self.clone() }
    }

    pub(crate) fn with_partial(self, unreduced: AxisSet, reduced: AxisSet) -> Self {
        let kind = if unreduced.is_empty() { UnreducedKind::Sum } else { self.kind };
        Typed { unreduced, reduced, kind, ..self }
    }

    /// Returns the sharding without unreduced and reduced axes.
    pub(crate) fn without_partial(self) -> Self {
        self.with_partial(AxisSet::default(), AxisSet::default())
    }

    /// The sharding of the cotangent of a value with this sharding: reduced axes become unreduced, and unreduced axes
    /// become reduced.
    pub(crate) fn cotangent(&self) -> Self {
        self.clone().with_kind(UnreducedKind::Sum).with_partial(self.reduced.clone(), self.unreduced.clone())
    }

    /// The sharding of values with one more dimension at `at`, split as in `new`.
    pub(crate) fn inserted(&self, at: usize, new: DimSpec) -> Self {
        let new = entry(new.axes().iter().copied().filter(|name| is_explicit(&self.mesh, *name)));
        let mut dims = self.dims.clone();
        dims.insert(at.min(self.dims.len()), new);
        Typed { dims, ..self.clone() }
    }

    /// The sharding of values without dimension `at`.
    pub(crate) fn removed(&self, at: usize) -> Self {
        let dims = self.dims.iter().enumerate().filter(|(d, _)| *d != at).map(|(_, e)| e.clone());
        Typed { dims: dims.collect(), ..self.clone() }
    }

    /// The number of parts into which a dimension is split.
    pub(crate) fn parts(&self, dim: usize) -> usize {
        self.parts_of(&self.dims[dim])
    }

    pub(crate) fn parts_of(&self, entry: &DimSpec) -> usize {
        entry.axes().iter().map(|name| self.mesh.axis_size(*name).unwrap_or(1)).product()
    }

    /// Returns an axis that occurs twice, if any.
    pub(crate) fn repeats(&self) -> Option<AxisName> {
        let mut used: SmallVec<[AxisName; 4]> = SmallVec::new();
        let sets = self.unreduced.iter().chain(self.reduced.iter());
        for name in self.split_axes().chain(sets) {
            if used.contains(&name) {
                return Some(name);
            }
            used.push(name);
        }
        None
    }

    pub(crate) fn check_distinct(&self) -> Result<()> {
        match self.repeats() {
            None => Ok(()),
            Some(name) => Err(err!(
                Value,
                "A single {} cannot use the mesh axis {name:?} twice (DuplicateSpecError)",
                self.spec()
            )
            .help("each mesh axis can split one dimension, or be unreduced, or be reduced")),
        }
    }

    /// Fails if a dimension is not a multiple of its number of parts.
    pub(crate) fn check_divides(&self, shape: &[usize]) -> Result<()> {
        for (dim, (entry, size)) in self.dims.iter().zip(shape).enumerate() {
            let parts = self.parts_of(entry);
            if size % parts != 0 {
                return Err(err!(
                    Indivisible,
                    "Sharding spec {} implies that array axis {dim} is partitioned {parts} times, but does not evenly divide the dimension size {size}. Got shape: {shape:?} and axis sizes: {:?}",
                    self.spec(),
                    entry.axes().iter().map(|name| (*name, self.mesh.axis_size(*name).unwrap_or(1))).collect::<Vec<_>>()
                )
                .help(format!("make dimension {dim} a multiple of {parts}, or split it over other axes")));
            }
        }
        Ok(())
    }

    /// The unreduced and reduced axes in a printed type: `U:x, R:(y,z)`, in the order of the mesh. `U_max` and `U_min`
    /// are unreduced maxima and minima.
    pub(crate) fn sets_text(&self) -> Vec<String> {
        let unreduced = match self.kind {
            UnreducedKind::Sum => "U".to_owned(),
            kind => format!("U_{}", kind.name()),
        };
        let texts = [self.set_text(&unreduced, &self.unreduced), self.set_text("R", &self.reduced)];
        texts.into_iter().flatten().collect()
    }

    fn set_text(&self, name: &str, set: &AxisSet) -> Option<String> {
        let names: Vec<&str> = self.mesh.axis_names().filter(|n| set.contains(*n)).map(|n| n.as_str()).collect();
        match names.as_slice() {
            [] => None,
            [axis] => Some(format!("{name}:{axis}")),
            axes => Some(format!("{name}:({})", axes.join(","))),
        }
    }

    /// The constraint on a value as `sdy` text.
    pub(crate) fn sdy(&self, mesh_name: &str, axis_text: &dyn Fn(AxisName) -> String) -> String {
        let open = self.mesh.axis_types().contains(&AxisType::Auto);
        let mut text = format!("#sdy.sharding<@{mesh_name}, [");
        for (i, entry) in self.dims.iter().enumerate() {
            let names = entry.axes().iter().map(|n| axis_text(*n)).chain(open.then(|| "?".to_owned()));
            text.push_str(if i > 0 { ", {" } else { "{" });
            text.push_str(&names.collect::<Vec<_>>().join(", "));
            text.push('}');
        }
        text.push(']');
        // If there are `Auto` axes, the compiler may split dimensions further, but not over an axis that belongs to the
        // types.
        let used: AxisSet = self.split_axes().chain(self.unreduced.iter()).collect();
        let unused = self.mesh.axes_of_type(AxisType::Explicit).filter(|n| open && !used.contains(*n));
        let unused: Vec<String> = unused.map(axis_text).collect();
        if !unused.is_empty() {
            text.push_str(&format!(", replicated={{{}}}", unused.join(", ")));
        }
        if !self.unreduced.is_empty() {
            let unreduced = self.mesh.axis_names().filter(|n| self.unreduced.contains(*n));
            let unreduced: Vec<String> = unreduced.map(axis_text).collect();
            text.push_str(&format!(", unreduced={{{}}}", unreduced.join(", ")));
        }
        text.push('>');
        text
    }
}

fn is_explicit(mesh: &AbstractMesh, name: AxisName) -> bool {
    mesh.axis_type(name) == Some(AxisType::Explicit)
}

/// The entry with these axes.
pub(crate) fn entry(axes: impl IntoIterator<Item = AxisName>) -> DimSpec {
    axes.into_iter().collect()
}

/// The axes as printed after the size in a type: `x`, `(x,y)`, or nothing.
pub(crate) fn entry_text(entry: &DimSpec) -> String {
    match entry.axes() {
        [] => String::new(),
        [one] => format!("@{one}"),
        all => format!("@({})", all.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(",")),
    }
}

/// `NamedSharding(mesh=AbstractMesh(..), spec=P('x', None))`
impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedSharding(mesh={}, spec={})", self.mesh, self.spec())
    }
}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
