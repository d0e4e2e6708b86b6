//! The order of devices in a mesh, so that neighbours in the mesh are neighbours in the network (JAX's
//! `mesh_utils`).

use std::collections::BTreeMap;

use super::device::Device;
use crate::error::{AtCaller, Result, err};

/// Options of [`create_device_mesh`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshOptions {
    /// Allows several axes of the mesh to split a dimension of the torus and share its links. By default axes that
    /// would have to do so are an error.
    pub allow_split_physical_axes: bool,
}

/// Returns the devices in row-major order of a mesh of this shape, so that axes that are near in the mesh are near in
/// the network. Pass the result to [`Mesh::new`](crate::Mesh::new).
///
/// Order the shape by increasing communication, as in `[replica, data, model]`, because the last axis gets entire
/// dimensions of a TPU's torus first, as many as fit. Small TPU slices are arranged in rings. GPUs are ordered by id;
/// other devices keep their order.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::mesh_utils::{MeshOptions, create_device_mesh};
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let order = create_device_mesh(&[2, 4], &devices()?, MeshOptions::default())?;
/// let mesh = Mesh::new(order, [("data", 2), ("model", 4)])?;
/// assert_eq!(mesh.size(), 8);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the product of the sizes is not the number of devices, if TPUs do not fill a box, and if a
/// dimension of the torus would have to be split and `options` do not allow that.
#[track_caller]
pub fn create_device_mesh(shape: &[usize], devices: &[Device], options: MeshOptions) -> Result<Vec<Device>> {
    let nodes: Vec<Node> = devices.iter().map(Node::of).collect();
    let order = order(shape, &nodes, options).at_caller()?;
    Ok(order.into_iter().map(|at| devices[at].clone()).collect())
}

/// Like [`create_device_mesh`] for several slices with a slower network between them. `dcn_shape` is the shape of the
/// mesh of slices, and `shape` is the shape of the mesh in each slice. The result is ordered for a mesh whose axis
/// sizes are the products of both shapes, with the slice major.
///
/// # Errors
/// Returns an error unless the number of slices is the product of `dcn_shape`. Also returns an error if
/// [`create_device_mesh`] fails for a slice.
#[track_caller]
pub fn create_hybrid_device_mesh(
    shape: &[usize],
    dcn_shape: &[usize],
    devices: &[Device],
    options: MeshOptions,
) -> Result<Vec<Device>> {
    hybrid(shape, dcn_shape, devices, options).at_caller()
}

/// The properties of a device that determine its position.
#[derive(Clone, Debug)]
struct Node {
    id: usize,
    is_tpu: bool,
    is_gpu: bool,
    kind: String,
    coords: [usize; 3],
    core: usize,
}

impl Node {
    fn of(device: &Device) -> Node {
        Node {
            id: device.id(),
            is_tpu: device.platform() == "tpu",
            is_gpu: matches!(device.platform(), "cuda" | "rocm"),
            kind: device.kind().to_owned(),
            coords: device.coords().unwrap_or_default(),
            core: device.core_on_chip().unwrap_or(0),
        }
    }
}

/// The positions of the devices of each slice. For GPUs of a topology, the slice is the first coordinate.
pub(crate) fn slices(devices: &[Device]) -> Vec<Vec<usize>> {
    let mut slices = BTreeMap::<usize, Vec<usize>>::new();
    for (at, device) in devices.iter().enumerate() {
        let slice = match (device.platform(), device.coords()) {
            ("cuda", Some([group, _, _])) => group,
            _ => device.slice_index().unwrap_or(0),
        };
        slices.entry(slice).or_default().push(at);
    }
    slices.into_values().collect()
}

fn hybrid(shape: &[usize], dcn_shape: &[usize], devices: &[Device], options: MeshOptions) -> Result<Vec<Device>> {
    if shape.len() != dcn_shape.len() {
        return Err(err!(
            Value,
            "mesh shape {shape:?} and dcn_mesh_shape {dcn_shape:?} differ in their number of axes"
        )
        .help("pass a size for each axis in both lists: 1 if the axis is not split over slices, or only over them"));
    }
    let slices = slices(devices);
    if slices.len() != dcn_shape.iter().product::<usize>() {
        return Err(err!(
            Value,
            "Number of slices {} must equal the product of dcn_mesh_shape {dcn_shape:?}",
            slices.len()
        )
        .help("say how the slices are laid out: one axis of their number, and ones"));
    }
    // Orders the devices inside of each slice, and then places the slices next to each other along each axis.
    let mut device_orders: Vec<Vec<usize>> = Vec::with_capacity(slices.len());
    for slice in &slices {
        let nodes: Vec<Node> = slice.iter().map(|&index| Node::of(&devices[index])).collect();
        let order = order(shape, &nodes, options)?;
        device_orders.push(order.into_iter().map(|index| slice[index]).collect());
    }
    let mesh_shape: Vec<usize> = shape.iter().zip(dcn_shape).map(|(n, m)| n * m).collect();
    let mut ordered = Vec::with_capacity(devices.len());
    for position in 0..mesh_shape.iter().product() {
        let (mut slice, mut within) = (0, 0);
        for ((coordinate, n), m) in coordinates(position, &mesh_shape).into_iter().zip(shape).zip(dcn_shape) {
            slice = slice * m + coordinate / n;
            within = within * n + coordinate % n;
        }
        ordered.push(devices[device_orders[slice][within]].clone());
    }
    Ok(ordered)
}

/// The coordinates of a position in a grid of this shape.
fn coordinates(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut coordinates = vec![0; shape.len()];
    for (coordinate, size) in coordinates.iter_mut().zip(shape).rev() {
        *coordinate = position % size;
        position /= size;
    }
    coordinates
}

/// Orders that arrange small slices in rings. They list the devices in the order of their ids, or of their coordinates
/// with the first one minor.
const RING_OF_8_CORES: [usize; 8] = [0, 1, 2, 3, 6, 7, 4, 5];
const RING_2X2: [usize; 4] = [0, 1, 3, 2];
const RING_4X2: [usize; 8] = [0, 1, 2, 3, 7, 6, 5, 4];
const RING_4X4: [usize; 16] = [0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4];
const BOX_2X2X2: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];
const RING_2X2X2: [usize; 8] = [0, 1, 3, 2, 6, 7, 5, 4];

/// The positions of the devices in row-major order of the mesh.
fn order(shape: &[usize], nodes: &[Node], options: MeshOptions) -> Result<Vec<usize>> {
    let count = shape.iter().fold(1, |n: usize, size| n.saturating_mul(*size));
    if count != nodes.len() || nodes.is_empty() {
        return Err(err!(Value, "Number of devices {} must equal the product of mesh_shape {shape:?}", nodes.len())
            .help("leave devices out, or make an axis larger"));
    }
    if nodes.iter().all(|node| node.is_gpu) {
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&at| nodes[at].id);
        return Ok(order);
    }
    if !nodes.iter().all(|node| node.is_tpu) {
        return Ok((0..nodes.len()).collect());
    }
    if let Some(ring) = ring(shape, nodes) {
        return Ok(ring);
    }
    let torus = Torus::of(nodes)?;
    let assignment = match torus.entire_axes(shape) {
        Ok(assignment) => assignment,
        Err(_) if options.allow_split_physical_axes => torus.split_axes(shape)?,
        Err(error) => return Err(error),
    };
    Ok(torus.read(shape, &assignment))
}

/// The order of devices in a slice that is small enough for one ring through all of them.
fn ring(shape: &[usize], nodes: &[Node]) -> Option<Vec<usize>> {
    let bounds = [0, 1, 2].map(|d| nodes.iter().map(|node| node.coords[d]).max().unwrap_or(0) + 1);
    match (nodes[nodes.len() - 1].kind.as_str(), nodes.len()) {
        ("TPU v2" | "TPU v3", 8) => Some(RING_OF_8_CORES.to_vec()),
        ("TPU v2" | "TPU v3", count) if shape.last() == Some(&8) => {
            Some((0..count).map(|at| at / 8 * 8 + RING_OF_8_CORES[at % 8]).collect())
        }
        ("TPU v2" | "TPU v3", count) => Some((0..count).collect()),
        ("TPU v4 lite", 4) => Some(RING_2X2.to_vec()),
        ("TPU v5 lite" | "TPU v6 lite", 4) if bounds == [2, 2, 1] => Some(by_coords(nodes, &RING_2X2)),
        ("TPU v5 lite" | "TPU v6 lite", 8) if bounds == [2, 2, 2] => Some(by_coords(nodes, &BOX_2X2X2)),
        ("TPU v5 lite" | "TPU v6 lite", 8) => Some(by_coords(nodes, &RING_4X2)),
        ("TPU v5 lite" | "TPU v6 lite", 16) if bounds == [4, 4, 1] && shape.contains(&16) => {
            Some(by_coords(nodes, &RING_4X4))
        }
        ("TPU v5p", 8) if bounds == [2, 2, 2] => Some(by_coords(nodes, &RING_2X2X2)),
        // Chips have two cores, so the ring goes through each layer of four chips.
        ("TPU7x", 8 | 16 | 24 | 32) if bounds[0] <= 2 && bounds[1] <= 2 => {
            Some((0..nodes.len()).map(|at| at / 8 * 8 + RING_OF_8_CORES[at % 8]).collect())
        }
        _ => None,
    }
}

/// TPUs in a grid with the shape of their network.
struct Torus {
    shape: Vec<usize>,
    /// The positions of the devices, row-major.
    devices: Vec<usize>,
}

/// For each dimension of the torus, the part of its size that each axis of the mesh uses.
type Assignment = Vec<Vec<usize>>;

impl Torus {
    fn of(nodes: &[Node]) -> Result<Torus> {
        let mut extents: Vec<(usize, usize)> =
            (0..3).map(|d| extent(nodes.iter().map(|node| node.coords[d]))).collect();
        let cores = extent(nodes.iter().map(|node| node.core));
        let old = matches!(nodes[0].kind.as_str(), "TPU v2" | "TPU v3");
        // The oldest TPUs have two dimensions of chips, and one dimension of cores.
        if old {
            extents.truncate(2);
        }
        if old || cores.1 > 1 {
            extents.push(cores);
        }
        let shape: Vec<usize> = extents.iter().map(|(_, size)| *size).collect();
        let mut devices = vec![None; shape.iter().product()];
        let mut doubled = false;
        for (i, node) in nodes.iter().enumerate() {
            let mut position = 0;
            for (d, (low, size)) in extents.iter().enumerate() {
                let is_core = d + 1 == extents.len() && (old || cores.1 > 1);
                position = position * size + if is_core { node.core } else { node.coords[d] } - low;
            }
            doubled |= devices[position].replace(i).is_some();
        }
        match devices.into_iter().collect::<Option<Vec<_>>>() {
            Some(devices) if !doubled => Ok(Torus { shape, devices }),
            _ => Err(err!(
                Value,
                "Constructed mesh contains a \"hole\": the coordinates of the {} devices do not fill a box of {shape:?}",
                nodes.len()
            )
            .help("choose devices that are neighbours in all dimensions, or make the mesh with `Mesh::new`")),
        }
    }

    /// Assigns entire dimensions to each axis of the mesh, as many as possible, starting with the last axis.
    fn entire_axes(&self, shape: &[usize]) -> Result<Assignment> {
        let rank = self.shape.len();
        let mut assignment = vec![vec![1; shape.len()]; rank];
        // The last axes come first, because neighbours along them communicate most.
        let mut assigned = vec![false; rank];
        for (axis, &size) in shape.iter().enumerate().rev() {
            let mut candidates = (1..=rank).rev().flat_map(|count| combinations(rank, count));
            let dims = candidates.find(|dims| {
                dims.iter().all(|&d| !assigned[d]) && dims.iter().map(|&d| self.shape[d]).product::<usize>() == size
            });
            match dims {
                Some(dims) => dims.into_iter().for_each(|d| {
                    assigned[d] = true;
                    assignment[d][axis] = self.shape[d];
                }),
                None if size == 1 => {}
                None => {
                    let remaining: Vec<usize> = (0..rank).filter(|&d| !assigned[d]).map(|d| self.shape[d]).collect();
                    return Err(err!(
                        NotImplemented,
                        "Failed to find assignment for logical_axis_index {axis} of size {size} with remaining assignable mesh {remaining:?}: the size of each axis must be the product of some dimensions of the torus {:?}",
                        self.shape
                    )
                    .help("let each axis be a product of entire dimensions, such as 4 and 16 for 4x4x4, or set `allow_split_physical_axes`"));
                }
            }
        }
        Ok(assignment)
    }

    /// Like [`entire_axes`](Self::entire_axes), but dimensions can be split.
    fn split_axes(&self, shape: &[usize]) -> Result<Assignment> {
        let mut assignment = vec![vec![1; shape.len()]; self.shape.len()];
        for (axis, &size) in shape.iter().enumerate().rev() {
            let assigned: Vec<usize> = assignment.iter().map(|parts| parts.iter().product()).collect();
            let remaining: Vec<usize> = self.shape.iter().zip(&assigned).map(|(n, part)| n / part).collect();
            let best = divisions(size, &remaining).into_iter().max_by_key(|parts| self.preference(parts, &assigned));
            let Some(best) = best else {
                return Err(err!(
                    Value,
                    "an axis of size {size} does not fit the remaining dimensions {remaining:?} of the torus {:?}",
                    self.shape
                )
                .help("make the axes products of factors of the torus' dimensions"));
            };
            assignment.iter_mut().zip(best).for_each(|(parts, part)| parts[axis] = part);
        }
        Ok(assignment)
    }

    /// The sort key of divisions. It prefers entire dimensions, then more of them, then, in JAX's order, dimensions
    /// that other axes already use, and finally the first dimensions.
    fn preference(&self, parts: &[usize], assigned: &[usize]) -> (usize, usize, usize, Vec<usize>) {
        let entire = parts.iter().zip(&self.shape).filter(|(part, size)| part == size).map(|(part, _)| *part);
        let count = entire.clone().filter(|part| *part > 1).count();
        let shared = parts.iter().zip(assigned).filter(|(_, assigned)| **assigned > 1).map(|(part, _)| part).product();
        (entire.product(), count, shared, parts.to_vec())
    }

    /// The devices in row-major order of the mesh. If a dimension is split, the last axes use its innermost part.
    fn read(&self, shape: &[usize], assignment: &Assignment) -> Vec<usize> {
        let mut devices = Vec::with_capacity(self.devices.len());
        for position in 0..self.devices.len() {
            // Convert each axis's coordinate to coordinates along the dimensions.
            let mut along = vec![vec![0; shape.len()]; self.shape.len()];
            for (axis, &coordinate) in coordinates(position, shape).iter().enumerate() {
                let parts: Vec<usize> = assignment.iter().map(|parts| parts[axis]).collect();
                for (d, x) in coordinates(coordinate, &parts).into_iter().enumerate() {
                    along[d][axis] = x;
                }
            }
            let torus_coordinates: Vec<usize> =
                along.iter().zip(assignment).map(|(xs, parts)| linear_index(xs, parts)).collect();
            devices.push(self.devices[linear_index(&torus_coordinates, &self.shape)]);
        }
        devices
    }
}

/// The position with these coordinates in a grid of this shape.
fn linear_index(coordinates: &[usize], shape: &[usize]) -> usize {
    coordinates.iter().zip(shape).fold(0, |position, (x, size)| position * size + x)
}

/// The devices of a ring, which is an order of the devices that are sorted by their coordinates.
fn by_coords(nodes: &[Node], order: &[usize]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..nodes.len()).collect();
    sorted.sort_by_key(|&i| (nodes[i].coords[2], nodes[i].coords[1], nodes[i].coords[0]));
    order.iter().map(|&i| sorted[i]).collect()
}

/// The lowest of these coordinates and the number of coordinates up to the highest one.
fn extent(coordinates: impl Iterator<Item = usize> + Clone) -> (usize, usize) {
    let low = coordinates.clone().min().unwrap_or(0);
    (low, coordinates.max().unwrap_or(0) - low + 1)
}

/// All `count`-element subsets of the first `n` numbers, in lexicographic order.
fn combinations(n: usize, count: usize) -> Vec<Vec<usize>> {
    fn extend(start: usize, n: usize, count: usize, chosen: &mut Vec<usize>, subsets: &mut Vec<Vec<usize>>) {
        if count == 0 {
            return subsets.push(chosen.clone());
        }
        for d in start..n {
            chosen.push(d);
            extend(d + 1, n, count - 1, chosen, subsets);
            chosen.pop();
        }
    }
    let mut subsets = Vec::new();
    extend(0, n, count, &mut Vec::new(), &mut subsets);
    subsets
}

/// All factorizations of `size` into one divisor of each of these numbers.
fn divisions(size: usize, numbers: &[usize]) -> Vec<Vec<usize>> {
    let Some((first, rest)) = numbers.split_first() else {
        return if size == 1 { vec![Vec::new()] } else { Vec::new() };
    };
    let divisors = (1..=*first).filter(|n| first.is_multiple_of(*n) && size.is_multiple_of(*n));
    divisors.flat_map(|n| divisions(size / n, rest).into_iter().map(move |parts| [vec![n], parts].concat())).collect()
}

#[cfg(test)]
mod tests;
