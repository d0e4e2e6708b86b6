//! Meshes: devices in a grid with named axes.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::abstract_mesh::{AbstractMesh, MeshAxis, write_mesh};
use super::device::{Device, devices};
use super::mesh_utils::{MeshOptions, create_device_mesh};
use crate::error::{AtCaller, Result, err};
use crate::shape::AxisName;

/// The way arrays are partitioned over a mesh axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AxisType {
    /// The compiler partitions arrays.
    #[default]
    Auto,
    /// Types determine the partitioning: shardings are part of every value's type.
    Explicit,
    /// The program partitions arrays: inside `shard_map`, each device sees its own shard.
    Manual,
}

/// A grid of devices whose dimensions have names.
///
/// A [`NamedSharding`](crate::NamedSharding) splits arrays over the axes of a mesh, and collectives communicate along them. You
/// usually create one mesh for a program, with [`make_mesh`](crate::make_mesh), which orders the devices so that neighbors in the
/// grid are close to each other. [`Mesh::new`] uses the devices in the order that you pass.
///
/// Cloning only increments a reference count. Meshes with the same devices, names and axis types are equal.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 4), ("j", 2)])?;
/// assert_eq!(mesh.size(), 8);
/// assert_eq!(mesh.axis_size("i"), Some(4));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone)]
pub struct Mesh(Arc<Inner>);

struct Inner {
    devices: Vec<Device>,
    shape: AbstractMesh,
}

impl AbstractMesh {
    /// Creates the mesh of this shape on the first devices.
    ///
    /// Fails if there are too few devices.
    pub(crate) fn on_first_devices(&self) -> Result<Mesh> {
        let mut devices_of_process = devices()?;
        if devices_of_process.len() < self.size() {
            return Err(err!(
                Value,
                "{self} has {} devices, but this process knows {}",
                self.size(),
                devices_of_process.len()
            )
            .help("set a mesh of the devices of a `Topology` with `set_mesh`, and compile with `compile_for`"));
        }
        devices_of_process.truncate(self.size());
        Mesh::new(devices_of_process, self.axes().to_vec())?.typed(self.axis_types().to_vec())
    }
}

impl Mesh {
    /// Creates a mesh of these devices in row-major order. If you do not choose the devices, use [`make_mesh`] instead.
    ///
    /// # Errors
    /// Returns an error if an axis name occurs twice, a device occurs twice, or the sizes do not multiply to the number
    /// of devices.
    #[track_caller]
    pub fn new(devices: Vec<Device>, axes: impl IntoIterator<Item = impl MeshAxis>) -> Result<Self> {
        Mesh::of(devices, axes.into_iter().map(MeshAxis::into_axis).collect()).at_caller()
    }

    fn of(devices: Vec<Device>, axes: Vec<(AxisName, usize)>) -> Result<Self> {
        for (i, (name, size)) in axes.iter().enumerate() {
            if axes[..i].iter().any(|(n, _)| n == name) {
                return Err(err!(Value, "mesh axis names must be unique, got {name:?} twice in {axes:?}")
                    .help("use a different name for each axis"));
            }
            if *size == 0 {
                return Err(err!(Value, "mesh axis {name:?} has size 0: every axis needs at least one device")
                    .help("leave the empty axis out of the mesh"));
            }
        }
        // A product that overflows is a number of devices that nobody has.
        let count = axes.iter().fold(1, |n: usize, (_, s)| n.saturating_mul(*s));
        if count != devices.len() {
            return Err(err!(
                Value,
                "mesh axes {axes:?} hold {count} devices, but {} devices were given",
                devices.len()
            )
            .help("the product of the sizes must be the number of devices; `make_mesh` takes the first ones"));
        }
        #[allow(clippy::mutable_key_type)] // devices are compared and hashed by what never changes
        let mut distinct = HashSet::with_capacity(devices.len());
        for d in &devices {
            if !distinct.insert(d) {
                return Err(err!(Value, "device {d} occurs twice in the mesh").help("name each device only once"));
            }
        }
        Ok(Mesh(Arc::new(Inner { devices, shape: AbstractMesh::new(axes) })))
    }

    /// Returns the mesh with all axes of type [`Explicit`](AxisType::Explicit), so that the types of values over it
    /// have shardings.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = Mesh::new(devices()?, [("x", 8)])?.explicit();
    /// let x = device_put(&ones(16), &NamedSharding::new(&mesh, P!["x"]))?;
    /// assert_eq!((x * 2).type_name(), "float32[16@x]");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn explicit(&self) -> Self {
        Mesh(Arc::new(Inner { devices: self.0.devices.clone(), shape: self.0.shape.explicit() }))
    }

    /// Returns the mesh with all axes of type [`Auto`](AxisType::Auto). Types contain no shardings, and the compiler
    /// chooses them.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("x", 8)])?.auto();
    /// let x = device_put(&ones(16), &NamedSharding::new(&mesh, P!["x"]))?;
    /// assert_eq!((x * 2).type_name(), "float32[16]");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn auto(&self) -> Self {
        Mesh(Arc::new(Inner { devices: self.0.devices.clone(), shape: self.0.shape.auto() }))
    }

    /// Returns the mesh with these axis types.
    ///
    /// # Errors
    /// Returns an error if there is not one type for each axis.
    #[track_caller]
    pub fn with_axis_types(&self, types: impl IntoIterator<Item = AxisType>) -> Result<Self> {
        self.typed(types.into_iter().collect()).at_caller()
    }

    fn typed(&self, types: Vec<AxisType>) -> Result<Self> {
        let shape = self.0.shape.typed(types)?;
        Ok(Mesh(Arc::new(Inner { devices: self.0.devices.clone(), shape })))
    }

    /// Returns the mesh with the types of the named axes replaced.
    ///
    /// # Errors
    /// Returns an error if the mesh has no axis of a given name.
    #[track_caller]
    pub fn update_axis_types<N: Into<AxisName>>(&self, types: impl IntoIterator<Item = (N, AxisType)>) -> Result<Self> {
        let shape = self.0.shape.update_axis_types(types)?;
        Ok(Mesh(Arc::new(Inner { devices: self.0.devices.clone(), shape })))
    }

    /// Returns the mesh without its devices.
    pub fn abstract_mesh(&self) -> &AbstractMesh {
        &self.0.shape
    }

    /// Returns a mesh with these axes and the same devices in the same order. The product of the sizes must be equal.
    pub(crate) fn with_shape(&self, shape: &AbstractMesh) -> Mesh {
        if self.0.shape == *shape {
            self.clone()
        } else {
            Mesh(Arc::new(Inner { devices: self.0.devices.clone(), shape: shape.clone() }))
        }
    }

    /// Returns the devices in row-major order.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// Returns the devices that belong to this process.
    pub fn local_devices(&self) -> Vec<Device> {
        self.0.devices.iter().filter(|d| d.is_addressable()).cloned().collect()
    }

    /// Returns the mesh of this process's devices, with the same axes.
    ///
    /// # Errors
    /// Returns an error unless they are a contiguous part of the mesh. Also returns an error if there are none.
    #[track_caller]
    pub fn local_mesh(&self) -> Result<Mesh> {
        self.local().at_caller()
    }

    fn local(&self) -> Result<Mesh> {
        if !self.is_multi_process() {
            return Ok(self.clone());
        }
        let local: Vec<usize> = (0..self.size()).filter(|&i| self.0.devices[i].is_addressable()).collect();
        // The smallest box around this process's devices must not contain other devices.
        let mut axes: Vec<(AxisName, usize)> = Vec::new();
        for name in self.axis_names() {
            let coordinates = local.iter().map(|&i| self.coordinate(i, name));
            let extent = coordinates.clone().max().zip(coordinates.min()).map_or(0, |(last, first)| last + 1 - first);
            axes.push((name, extent));
        }
        if local.is_empty() || axes.iter().map(|(_, size)| size).product::<usize>() != local.len() {
            return Err(err!(
                Value,
                "When passing host local inputs to {self}, devices connected to a single host must form a contiguous subcube of the global device mesh; this process has those at {local:?}"
            )
            .help("order the devices of the mesh process by process, as `make_mesh` does"));
        }
        Mesh::of(local.iter().map(|&i| self.0.devices[i].clone()).collect(), axes)?.typed(self.axis_types().to_vec())
    }

    /// Returns `true` if the mesh has devices of other processes.
    pub fn is_multi_process(&self) -> bool {
        !self.0.devices.iter().all(Device::is_addressable)
    }

    /// Returns the axes, major first.
    pub fn axes(&self) -> &[(AxisName, usize)] {
        self.0.shape.axes()
    }

    /// Returns the names of the axes, in order.
    pub fn axis_names(&self) -> impl Iterator<Item = AxisName> + Clone + '_ {
        self.0.shape.axis_names()
    }

    /// Returns the type of each axis.
    pub fn axis_types(&self) -> &[AxisType] {
        self.0.shape.axis_types()
    }

    /// Returns the number of devices.
    pub fn size(&self) -> usize {
        self.0.devices.len()
    }

    /// Returns the size of the axis with this name.
    pub fn axis_size(&self, name: impl Into<AxisName>) -> Option<usize> {
        self.0.shape.axis_size(name)
    }

    /// The product of the sizes of these axes.
    pub(crate) fn axes_size(&self, names: &[AxisName]) -> Result<usize> {
        names
            .iter()
            .map(|n| {
                self.axis_size(*n).ok_or_else(|| {
                    err!(Value, "Resource axis: {n} is not found in mesh: {self}")
                        .help(format!("use an axis of the mesh: {:?}", self.axis_names().collect::<Vec<_>>()))
                })
            })
            .product()
    }

    /// The quoted name of an axis in a program's text.
    pub(crate) fn axis_text(&self, axis: AxisName) -> String {
        axis_text(self.axis_names(), axis)
    }

    /// The coordinate along `name` of the device at `position` in row-major order.
    pub(crate) fn coordinate(&self, position: usize, name: AxisName) -> usize {
        let mut stride = 1;
        for (n, size) in self.axes().iter().rev() {
            if *n == name {
                return position / stride % size;
            }
            stride *= size;
        }
        0
    }

    /// The index of a device in the product of the axes `names`, major first.
    pub(crate) fn linear_index(&self, position: usize, names: &[AxisName]) -> usize {
        names.iter().fold(0, |index, &n| index * self.axis_size(n).unwrap_or(1) + self.coordinate(position, n))
    }

    /// The groups of positions that differ only along `names`. Within a group, positions are ordered with the first
    /// name major.
    pub(crate) fn groups(&self, names: &[AxisName]) -> Vec<Vec<usize>> {
        let other_names: Vec<AxisName> = self.axis_names().filter(|n| !names.contains(n)).collect();
        let group_count: usize = other_names.iter().map(|n| self.axis_size(*n).unwrap_or(1)).product();
        let mut groups = vec![Vec::new(); group_count];
        for position in 0..self.size() {
            groups[self.linear_index(position, &other_names)].push(position);
        }
        for group in &mut groups {
            group.sort_by_key(|&p| self.linear_index(p, names));
        }
        groups
    }

    /// Returns `true` if both meshes have the same devices in the same grid.
    fn same(&self, other: &Mesh) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.shape == other.0.shape && self.0.devices == other.0.devices)
    }
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Self) -> bool {
        self.same(other)
    }
}

impl Eq for Mesh {}

impl Hash for Mesh {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Only the first and the last device are hashed, because there may be thousands of devices and every operation
        // that names the mesh computes the hash.
        self.axes().hash(state);
        self.0.devices.first().hash(state);
        self.0.devices.last().hash(state);
    }
}

/// `Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto))`
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_mesh(f, "Mesh", &self.0.shape)
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The quoted name of an axis in a program's text. It is the axis name if that consists of letters, digits and `_`.
/// Otherwise it is an alias with the axis's position, because parsers of programs differ in the characters that they
/// accept. The name has no other use in the text.
pub(crate) fn axis_text(axes: impl Iterator<Item = AxisName> + Clone, axis: AxisName) -> String {
    let name = axis.as_str();
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return format!("\"{axis}\"");
    }
    let position = axes.clone().position(|name| name == axis).unwrap_or(axes.clone().count());
    let mut alias = format!("axis_{position}");
    while axes.clone().any(|name| name.as_str() == alias) {
        alias.push('_');
    }
    format!("\"{alias}\"")
}

/// Creates a mesh of the first devices, as many as the axes need. Order the axes by increasing communication, for example
/// `data` before `model`, because neighbors along the last axis are closest in the network. If it uses all TPUs of a slice, they are put in an
/// order that suits their network ([`mesh_utils`](crate::mesh_utils)). Its axes are of type
/// [`Explicit`](AxisType::Explicit); use [`Mesh::auto`] to change that.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("data", 4), ("model", 2)])?;
/// let x = device_put(&ones([8, 6]), &NamedSharding::new(&mesh, P!["data", "model"]))?;
/// assert_eq!(x.type_name(), "float32[8@data,6@model]");
/// assert_eq!(x.addressable_shards()?[0].data.shape(), [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if there are fewer devices than the product of the sizes.
#[track_caller]
pub fn make_mesh(axes: impl IntoIterator<Item = impl MeshAxis>) -> Result<Mesh> {
    mesh_of_first_devices(axes.into_iter().map(MeshAxis::into_axis).collect()).at_caller()
}

fn mesh_of_first_devices(axes: Vec<(AxisName, usize)>) -> Result<Mesh> {
    let count = axes.iter().fold(1, |n: usize, (_, s)| n.saturating_mul(*s));
    let devices_of_process = devices()?;
    if devices_of_process.len() < count {
        let sizes: Vec<usize> = axes.iter().map(|(_, s)| *s).collect();
        return Err(err!(
            Value,
            "Number of devices {} must be >= the product of mesh_shape {sizes:?}",
            devices_of_process.len()
        )
        .help(format!(
            "on CPU, call `shardax::config::set_num_cpu_devices({count})` before anything uses a device, or set SHARDAX_NUM_CPU_DEVICES={count}"
        )));
    }
    // If the mesh uses all TPUs, they are ordered so that neighbours in the mesh are neighbours in the network.
    if count == devices_of_process.len() && devices_of_process.first().is_some_and(|device| device.platform() == "tpu")
    {
        let sizes: Vec<usize> = axes.iter().map(|(_, size)| *size).collect();
        let options = MeshOptions { allow_split_physical_axes: true };
        return Ok(Mesh::of(create_device_mesh(&sizes, &devices_of_process, options)?, axes)?.explicit());
    }
    Ok(Mesh::of(devices_of_process[..count].to_vec(), axes)?.explicit())
}
