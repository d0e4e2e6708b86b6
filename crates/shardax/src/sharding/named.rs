//! Shardings: the distribution of arrays over devices.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::device::Device;
use super::layout::KnownLayout;
use super::memory::MemoryKind;
use super::spec::{DimSpec, PartitionSpec, UnreducedKind};
use super::{AxisType, Index, Mesh, Typed};
use crate::error::{AtCaller, Result, err};
use crate::shape::{AxisName, AxisSet, Shape};

/// The sharding of an array that is split over a mesh by a [`PartitionSpec`].
///
/// Use it to place arrays with [`device_put`](crate::device_put), and to tell [`jit`](crate::jit()) how arguments and results are
/// split. For a single device, use [`SingleDeviceSharding`] or pass the device itself.
///
/// Creating and cloning a sharding costs almost nothing, because it moves no data. It is also not checked yet: `device_put`
/// returns an error if the spec names an unknown axis, or if an array does not divide evenly over the axes.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("data", 4), ("model", 2)])?;
/// // The rows are split over four devices, and each part has a copy on two.
/// let rows = NamedSharding::new(&mesh, P!["data"]);
/// let x = device_put(&ones([8, 6]), &rows)?;
/// assert_eq!(x.addressable_data(0)?.shape(), [2, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NamedSharding(Arc<Named>);

#[derive(PartialEq, Eq, Hash)]
struct Named {
    mesh: Mesh,
    spec: PartitionSpec,
    memory_kind: Option<MemoryKind>,
    /// The layout in memory of an array with this sharding; `None` for the device's default. Shardings that users
    /// create and receive have no layout; only a `Format` sets it.
    layout: Option<KnownLayout>,
}

/// The sharding of an entire array on one device.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SingleDeviceSharding {
    device: Device,
    memory_kind: Option<MemoryKind>,
    layout: Option<KnownLayout>,
}

impl SingleDeviceSharding {
    /// Creates a sharding on this device.
    pub fn new(device: impl Borrow<Device>) -> Self {
        SingleDeviceSharding { device: device.borrow().clone(), memory_kind: None, layout: None }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the sharding with another memory kind; see [`NamedSharding::with_memory_kind`].
    pub fn with_memory_kind(&self, kind: &str) -> Self {
        SingleDeviceSharding { memory_kind: Some(MemoryKind::new(kind)), ..self.clone() }
    }

    /// Returns the memory kind; `None` if it is unspecified, which means the device's
    /// [`default_memory`](Device::default_memory).
    pub fn memory_kind(&self) -> Option<&'static str> {
        self.memory_kind.map(MemoryKind::as_str)
    }
}

/// The distribution of an array over devices.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// The entire array is on one device.
    Single(SingleDeviceSharding),
    /// The array is split over a mesh.
    Named(NamedSharding),
}

impl NamedSharding {
    /// Creates a sharding over `mesh`. If the spec names an axis that the mesh does not have, or one axis twice, the
    /// error is reported when the sharding is first used; [`try_new`](Self::try_new) reports it immediately.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("x", 4), ("y", 2)])?;
    /// let sharding = NamedSharding::new(&mesh, P!["x"]); // rows over `x`, copies along `y`
    /// let x = device_put(&ones([8, 3]), &sharding)?;
    /// assert_eq!(x.addressable_shards()?[0].data.shape(), [2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn new(mesh: &Mesh, spec: PartitionSpec) -> Self {
        NamedSharding(Arc::new(Named { mesh: mesh.clone(), spec, memory_kind: None, layout: None }))
    }

    /// Creates a sharding over `mesh`, and checks the spec.
    ///
    /// # Errors
    /// Returns an error if the spec names an axis that the mesh does not have, or names an axis twice.
    #[track_caller]
    pub fn try_new(mesh: &Mesh, spec: PartitionSpec) -> Result<Self> {
        let sharding = Self::new(mesh, spec);
        sharding.check_axes().at_caller()?;
        Ok(sharding)
    }

    /// Returns the mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.0.mesh
    }

    /// Returns the spec.
    pub fn spec(&self) -> &PartitionSpec {
        &self.0.spec
    }

    /// Returns the sharding with another memory kind. For example, `pinned_host` is host memory that devices read and
    /// write directly. [`Device::addressable_memories`] lists the kinds. A kind that the devices do not have is
    /// reported when data moves there.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let split = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    /// assert_eq!(split.memory_kind(), None);
    /// let on_host = split.with_memory_kind("pinned_host");
    /// assert_eq!(on_host.memory_kind(), Some("pinned_host"));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn with_memory_kind(&self, kind: &str) -> Self {
        self.in_memory(Some(MemoryKind::new(kind)))
    }

    /// Returns the memory kind; `None` if it is unspecified, which means the devices'
    /// [`default_memory`](Device::default_memory).
    pub fn memory_kind(&self) -> Option<&'static str> {
        self.0.memory_kind.map(MemoryKind::as_str)
    }

    /// Returns this sharding over the devices of `mesh`, in their order.
    pub(crate) fn on_devices_of(&self, mesh: &Mesh) -> Self {
        if self.0.mesh.devices() == mesh.devices() {
            return self.clone();
        }
        let Named { mesh: own, spec, memory_kind, layout } = &*self.0;
        NamedSharding(Arc::new(Named {
            mesh: mesh.with_shape(own.abstract_mesh()),
            spec: spec.clone(),
            memory_kind: *memory_kind,
            layout: *layout,
        }))
    }

    pub(crate) fn in_memory(&self, memory_kind: Option<MemoryKind>) -> Self {
        if self.0.memory_kind == memory_kind {
            return self.clone();
        }
        let Named { mesh, spec, layout, .. } = &*self.0;
        NamedSharding(Arc::new(Named { mesh: mesh.clone(), spec: spec.clone(), memory_kind, layout: *layout }))
    }

    fn in_layout(&self, layout: Option<KnownLayout>) -> Self {
        if self.0.layout == layout {
            return self.clone();
        }
        let Named { mesh, spec, memory_kind, .. } = &*self.0;
        NamedSharding(Arc::new(Named { mesh: mesh.clone(), spec: spec.clone(), memory_kind: *memory_kind, layout }))
    }

    /// The part of this sharding that is in the type of an array; `None` if no axis of the mesh is of type `Explicit`.
    pub(crate) fn typed(&self, rank: usize) -> Option<Typed> {
        let mesh = self.0.mesh.abstract_mesh();
        mesh.has_explicit().then(|| Typed::from_spec(mesh, &self.0.spec, rank))
    }

    fn check_axes(&self) -> Result<()> {
        let mut used: Vec<AxisName> = Vec::new();
        for name in self.0.spec.all_axes() {
            if self.0.mesh.axis_size(name).is_none() {
                let error =
                    err!(Value, "Resource axis: {name} of {} is not found in mesh: {}", self.0.spec, self.0.mesh);
                let axis_names: Vec<_> = self.0.mesh.axis_names().collect();
                return Err(error.help(format!("use an axis of the mesh: {axis_names:?}")));
            }
            if used.contains(&name) {
                return Err(err!(
                    Value,
                    "A single {} cannot use the mesh axis {name:?} twice (DuplicateSpecError)",
                    self.0.spec
                )
                .help("each mesh axis can split at most one dimension"));
            }
            used.push(name);
        }
        self.check_sets(&used)
    }

    /// Fails if the spec has unreduced or reduced axes that the mesh does not have, that are not of type `Explicit`, or
    /// that occur twice.
    fn check_sets(&self, split: &[AxisName]) -> Result<()> {
        let (spec, mesh) = (&self.0.spec, self.0.mesh.abstract_mesh());
        spec.check_kind()?;
        // These axes are part of a type, which only axes of type Explicit have.
        for name in spec.unreduced_axes().iter().chain(spec.reduced_axes().iter()) {
            match mesh.axis_type(name) {
                None => return Err(mesh.unknown(name)),
                Some(AxisType::Explicit) => {}
                Some(ty) => {
                    return Err(err!(
                        Value,
                        "unreduced and reduced axes must be of type Explicit, and {name:?} of {spec} is of type {ty:?} in {mesh}"
                    )
                    .help("make the axes Explicit: `mesh.explicit()`"));
                }
            }
            let twice = spec.unreduced_axes().contains(name) && spec.reduced_axes().contains(name);
            if twice || split.contains(&name) {
                return Err(err!(
                    Value,
                    "A single {spec} cannot use the mesh axis {name:?} twice (DuplicateSpecError)"
                )
                .help("an axis can split one dimension, or be unreduced, or be reduced"));
            }
        }
        Ok(())
    }

    /// Fails if the spec is longer than `rank`, names an axis that the mesh does not have, or names one axis twice.
    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        self.check_axes()?;
        let len = self.0.spec.len();
        if len <= rank {
            return Ok(());
        }
        Err(err!(
            Value,
            "Sharding {self} is only valid for values of rank at least {len}, but was applied to a value of rank {rank}"
        )
        .help(match rank {
            0 => "a scalar can only have the spec P![]".to_owned(),
            n => format!("write a spec of at most {n} entries, or add dimensions to the value"),
        }))
    }

    /// Returns the shape of each device's shard of an array of `shape`.
    ///
    /// # Errors
    /// Returns an error if the spec is longer than the shape, names unknown axes, or does not divide a dimension.
    #[track_caller]
    pub fn shard_shape(&self, shape: &[usize]) -> Result<Shape> {
        self.divided(shape).at_caller()
    }

    fn divided(&self, shape: &[usize]) -> Result<Shape> {
        self.check_rank(shape.len())?;
        let spec = &self.0.spec;
        let mut out: Shape = shape.into();
        for (dim, d) in out.iter_mut().enumerate() {
            let parts = self.0.mesh.axes_size(spec.axes(dim))?;
            if *d % parts != 0 {
                let factors: Result<Vec<usize>> =
                    (0..shape.len()).map(|dim| self.0.mesh.axes_size(spec.axes(dim))).collect();
                return Err(err!(
                    Indivisible,
                    "Sharding {self} implies that array axis {dim} is partitioned {parts} times, but the dimension size is {d} (full shape: {shape:?}, per-dimension tiling factors: {:?})",
                    factors?
                )
                .help(format!("make dimension {dim} a multiple of {parts}, or split it over fewer devices")));
            }
            *d /= parts;
        }
        Ok(out)
    }

    /// Returns `true` if every device has the entire array.
    pub fn is_fully_replicated(&self) -> bool {
        self.0.spec.unreduced_axes().is_empty() && self.0.spec.all_axes().all(|n| self.0.mesh.axis_size(n) == Some(1))
    }

    /// The index of the shard on the device at `position` of the mesh. The shape must be divisible.
    pub(crate) fn index_at(&self, position: usize, shape: &[usize]) -> Index {
        shape
            .iter()
            .enumerate()
            .map(|(dim, &d)| {
                let axes = self.0.spec.axes(dim);
                let parts: usize = axes.iter().map(|n| self.0.mesh.axis_size(*n).unwrap_or(1)).product();
                let part = self.0.mesh.linear_index(position, axes);
                let len = d / parts;
                part * len..(part + 1) * len
            })
            .collect()
    }

    /// The `sdy` text: `#sdy.sharding<@mesh, [{"i"}, {}]>` for a value of this rank.
    pub(crate) fn sdy(&self, mesh_name: &str, rank: usize) -> String {
        self.sdy_text(mesh_name, rank, false)
    }

    /// The `sdy` text that lets the compiler split each dimension further: `#sdy.sharding<@mesh, [{"i", ?}, {?}]>`.
    /// Without `?`, a dimension of a `manual_computation` is replicated over the axes that are not manual.
    pub(crate) fn sdy_open(&self, mesh_name: &str, rank: usize) -> String {
        self.sdy_text(mesh_name, rank, true)
    }

    fn sdy_text(&self, mesh_name: &str, rank: usize, open: bool) -> String {
        let mut text = format!("#sdy.sharding<@{mesh_name}, [");
        for dim in 0..rank {
            if dim > 0 {
                text.push_str(", ");
            }
            match self.0.spec.dims().get(dim) {
                Some(DimSpec::Unconstrained) => text.push_str("{?}"),
                _ => {
                    let axes = self.0.spec.axes(dim).iter().map(|n| self.0.mesh.axis_text(*n));
                    let names: Vec<String> = axes.chain(open.then(|| "?".to_owned())).collect();
                    text.push_str(&format!("{{{}}}", names.join(", ")));
                }
            }
        }
        text.push(']');
        let unreduced = self.0.spec.unreduced_axes();
        if !unreduced.is_empty() {
            let names = self.0.mesh.axis_names().filter(|n| unreduced.contains(*n)).map(|n| self.0.mesh.axis_text(n));
            text.push_str(&format!(", unreduced={{{}}}", names.collect::<Vec<_>>().join(", ")));
        }
        text.push('>');
        text
    }
}

impl Sharding {
    /// Returns the devices, in the order of the shards.
    pub fn devices(&self) -> &[Device] {
        match self {
            Sharding::Single(s) => std::slice::from_ref(&s.device),
            Sharding::Named(s) => s.mesh().devices(),
        }
    }

    /// Returns the memory kind; `None` if it is unspecified.
    pub fn memory_kind(&self) -> Option<&'static str> {
        self.kind().map(MemoryKind::as_str)
    }

    /// Returns the sharding with another memory kind; see [`NamedSharding::with_memory_kind`].
    pub fn with_memory_kind(&self, kind: &str) -> Self {
        self.in_memory(Some(MemoryKind::new(kind)))
    }

    pub(crate) fn kind(&self) -> Option<MemoryKind> {
        match self {
            Sharding::Single(s) => s.memory_kind,
            Sharding::Named(s) => s.0.memory_kind,
        }
    }

    pub(crate) fn in_memory(&self, memory_kind: Option<MemoryKind>) -> Self {
        match self {
            Sharding::Single(s) => Sharding::Single(SingleDeviceSharding { memory_kind, ..s.clone() }),
            Sharding::Named(s) => Sharding::Named(s.in_memory(memory_kind)),
        }
    }

    /// The layout of the array's elements in memory; `None` for the device's default.
    pub(crate) fn layout(&self) -> Option<KnownLayout> {
        match self {
            Sharding::Single(s) => s.layout,
            Sharding::Named(s) => s.0.layout,
        }
    }

    /// Returns the sharding with this layout.
    pub(crate) fn in_layout(&self, layout: Option<KnownLayout>) -> Self {
        match self {
            Sharding::Single(s) => Sharding::Single(SingleDeviceSharding { layout, ..s.clone() }),
            Sharding::Named(s) => Sharding::Named(s.in_layout(layout)),
        }
    }

    /// Fails if the devices have no memory of the sharding's kind.
    pub(crate) fn check_memory(&self) -> Result<()> {
        let (Some(kind), Some(device)) = (self.memory_kind(), self.devices().first()) else { return Ok(()) };
        if device.is_addressable() || device.topology().is_some() { device.memory(kind).map(drop) } else { Ok(()) }
    }

    /// Returns `true` if both use the same memory.
    pub(crate) fn is_same_memory(&self, other: &Sharding) -> bool {
        let (a, b) = (self.kind(), other.kind());
        a == b || self.devices().iter().find(|d| d.is_addressable()).is_some_and(|device| device.is_same_memory(a, b))
    }

    /// Returns the number of devices, including devices of other processes.
    pub fn num_devices(&self) -> usize {
        self.devices().len()
    }

    /// Returns the devices of this process, in the order of the shards.
    pub fn addressable_devices(&self) -> Vec<Device> {
        self.devices().iter().filter(|d| d.is_addressable()).cloned().collect()
    }

    /// Returns `true` if all devices belong to this process. Always `true` with one process.
    pub fn is_fully_addressable(&self) -> bool {
        self.devices().iter().all(Device::is_addressable)
    }

    /// Fails if the compiler chooses how a dimension is split, because `what` needs the position of every shard.
    pub(crate) fn check_constrained(&self, what: &str) -> Result<()> {
        match self {
            Sharding::Named(s) if s.spec().dims().contains(&DimSpec::Unconstrained) => Err(err!(
                Value,
                "Unconstrained dims are not allowed when passed to {what}: {self}"
            )
            .help(
                "say how each dimension is split, or `None`; only `with_sharding_constraint` leaves it to the compiler",
            )),
            _ => Ok(()),
        }
    }

    /// Fails if the devices belong to a topology, because they cannot hold data.
    pub(crate) fn check_attached(&self) -> Result<()> {
        self.devices().first().map_or(Ok(()), |device| device.attached().map(drop))
    }

    /// Returns the shape of each device's shard.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`NamedSharding::shard_shape`].
    #[track_caller]
    pub fn shard_shape(&self, shape: &[usize]) -> Result<Shape> {
        match self {
            Sharding::Single(_) => Ok(shape.into()),
            Sharding::Named(s) => s.shard_shape(shape),
        }
    }

    /// Returns `true` if every device holds the entire array.
    pub fn is_fully_replicated(&self) -> bool {
        match self {
            Sharding::Single(_) => true,
            Sharding::Named(s) => s.is_fully_replicated(),
        }
    }

    /// Returns the index of each device's shard of an array of `shape`.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`shard_shape`](Self::shard_shape).
    #[track_caller]
    pub fn devices_indices_map(&self, shape: &[usize]) -> Result<Vec<(Device, Index)>> {
        self.shard_shape(shape)?;
        Ok(self.devices().iter().enumerate().map(|(i, d)| (d.clone(), self.index_at(i, shape))).collect())
    }

    pub(crate) fn index_at(&self, position: usize, shape: &[usize]) -> Index {
        match self {
            Sharding::Single(_) => shape.iter().map(|&d| Range { start: 0, end: d }).collect(),
            Sharding::Named(s) => s.index_at(position, shape),
        }
    }

    /// Returns `true` if both shardings put the same shards of an array of this rank into the same memory of the same
    /// devices.
    pub fn is_equivalent_to(&self, other: &Sharding, rank: usize) -> bool {
        if self == other {
            return true;
        }
        if self.devices() != other.devices() || !self.is_same_memory(other) {
            return false;
        }
        if let (Sharding::Named(a), Sharding::Named(b)) = (self, other)
            && splits_by_the_same_axes(a, b, rank)
        {
            return true;
        }
        // If the shards are equal for a shape whose dimensions are divisible by every product of axes, they are equal
        // for every shape.
        let count = self.devices().len();
        let shape: Shape = smallvec::smallvec![count * count; rank];
        match (self.shard_shape(&shape), other.shard_shape(&shape)) {
            (Ok(a), Ok(b)) => {
                a == b
                    && self.unreduced() == other.unreduced()
                    && (0..count).all(|i| self.index_at(i, &shape) == other.index_at(i, &shape))
            }
            _ => false,
        }
    }

    /// The number of the addend on the device at `position`. Devices that differ along unreduced axes have different
    /// addends.
    pub(crate) fn addend_at(&self, position: usize) -> usize {
        let Some(named) = self.as_named().filter(|_| self.unreduced().is_some()) else { return 0 };
        let mesh = named.mesh();
        let axes: Vec<AxisName> = mesh.axis_names().filter(|n| named.spec().unreduced_axes().contains(*n)).collect();
        mesh.linear_index(position, &axes)
    }

    /// The axes over which the array still has to be summed, or combined by another operation.
    pub(crate) fn unreduced(&self) -> Option<(&AxisSet, UnreducedKind)> {
        let spec = self.as_named()?.spec();
        (!spec.unreduced_axes().is_empty()).then(|| (spec.unreduced_axes(), spec.kind()))
    }

    /// Returns the named sharding, if it is one.
    pub fn as_named(&self) -> Option<&NamedSharding> {
        match self {
            Sharding::Named(s) => Some(s),
            Sharding::Single(_) => None,
        }
    }

    /// Returns the spec.
    ///
    /// # Errors
    /// Returns an error for an entire array on one device, which has no spec.
    #[track_caller]
    pub fn spec(&self) -> Result<&PartitionSpec> {
        match self {
            Sharding::Named(s) => Ok(s.spec()),
            Sharding::Single(s) => Err(err!(Value, "{s} has no PartitionSpec: it is not a NamedSharding")
                .help("an array on one device has no spec; `as_named()` returns `None` for its sharding"))
            .at_caller(),
        }
    }
}

impl From<NamedSharding> for Sharding {
    fn from(s: NamedSharding) -> Self {
        Sharding::Named(s)
    }
}

impl From<&NamedSharding> for Sharding {
    fn from(s: &NamedSharding) -> Self {
        Sharding::Named(s.clone())
    }
}

impl From<SingleDeviceSharding> for Sharding {
    fn from(s: SingleDeviceSharding) -> Self {
        Sharding::Single(s)
    }
}

impl From<&Sharding> for Sharding {
    fn from(s: &Sharding) -> Self {
        s.clone()
    }
}

impl From<Device> for Sharding {
    fn from(d: Device) -> Self {
        Sharding::Single(SingleDeviceSharding::new(d))
    }
}

impl From<&Device> for Sharding {
    fn from(d: &Device) -> Self {
        Sharding::Single(SingleDeviceSharding::new(d))
    }
}

fn memory_text(kind: Option<MemoryKind>, layout: Option<KnownLayout>) -> String {
    let layout = layout.map_or(String::new(), |known| format!(", layout={}", known.get()));
    kind.map_or(String::new(), |kind| format!(", memory_kind={kind}")) + &layout
}

impl fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Named { mesh, spec, memory_kind, layout } = &*self.0;
        write!(f, "NamedSharding(mesh={mesh}, spec={spec}{})", memory_text(*memory_kind, *layout))
    }
}

impl fmt::Display for SingleDeviceSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SingleDeviceSharding(device={}{})", self.device, memory_text(self.memory_kind, self.layout))
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sharding::Single(s) => s.fmt(f),
            Sharding::Named(s) => s.fmt(f),
        }
    }
}

impl fmt::Debug for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SingleDeviceSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns `true` if two meshes of the same devices have equal axes, apart from names and types, and each dimension is
/// split over the same axes. It does not look at the devices. If it returns `false`, you must compare the shards.
fn splits_by_the_same_axes(a: &NamedSharding, b: &NamedSharding, rank: usize) -> bool {
    // Axes of size 1 split nothing.
    let [axes_a, axes_b] = [a, b].map(|sharding| {
        let axes = sharding.mesh().axes().iter().copied();
        axes.filter(|(_, size)| *size > 1).collect::<SmallVec<[(AxisName, usize); 4]>>()
    });
    let is_partial = [a, b].iter().any(|sharding| !sharding.spec().unreduced_axes().is_empty());
    if is_partial || !axes_a.iter().map(|(_, size)| size).eq(axes_b.iter().map(|(_, size)| size)) {
        return false;
    }
    (0..rank).all(|dim| axis_positions(a, &axes_a, dim) == axis_positions(b, &axes_b, dim))
}

/// The positions in `axes` of the axes that split this dimension.
fn axis_positions(sharding: &NamedSharding, axes: &[(AxisName, usize)], dim: usize) -> SmallVec<[usize; 2]> {
    let names = sharding.spec().dims().get(dim).map_or(&[][..], DimSpec::axes);
    names.iter().filter_map(|name| axes.iter().position(|(axis, _)| axis == name)).collect()
}
