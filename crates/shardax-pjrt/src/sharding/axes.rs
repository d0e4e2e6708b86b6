//! Meshes of named axes and references to axes and sub-axes: the format of groups and shardings of newer plugins.

use prost::Message;

use super::transposed_iota;

/// A grid of devices (`xla.MeshProto`).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MeshProto {
    #[prost(message, repeated, tag = "1")]
    pub axes: Vec<MeshAxisProto>,
    /// Empty means 0, 1, 2, …, or the order of `iota`.
    #[prost(int64, repeated, tag = "2")]
    pub device_ids: Vec<i64>,
    #[prost(message, optional, tag = "3")]
    pub iota: Option<IotaTransformProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MeshAxisProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int64, tag = "2")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct IotaTransformProto {
    #[prost(int64, repeated, tag = "1")]
    pub reshape_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub transpose_perm: Vec<i64>,
}

/// A mesh axis or sub-axis.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AxisRefProto {
    #[prost(int64, tag = "1")]
    pub axis: i64,
    #[prost(message, optional, tag = "2")]
    pub part: Option<SubAxisProto>,
}

/// The middle of the dimensions that an axis is split into: `[pre_size, size, rest]`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SubAxisProto {
    #[prost(int64, tag = "1")]
    pub pre_size: i64,
    #[prost(int64, tag = "2")]
    pub size: i64,
}

/// A coordinate as a function of a position: `position / stride % size`.
#[derive(Clone, Copy)]
struct Digit {
    stride: usize,
    size: usize,
}

/// A decoded mesh.
pub(crate) struct Grid {
    axes: Vec<Digit>,
    devices: Vec<usize>,
}

/// Converts sizes; negative ones, which are invalid, become 0.
pub(crate) fn sizes(values: &[i64]) -> Vec<usize> {
    values.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect()
}

impl Grid {
    /// Decodes a mesh; `None` if its numbers are inconsistent.
    pub fn from_proto(mesh: &MeshProto) -> Option<Grid> {
        let sizes_of_axes = sizes(&mesh.axes.iter().map(|axis| axis.size).collect::<Vec<_>>());
        let total = sizes_of_axes.iter().try_fold(1usize, |n, &size| n.checked_mul(size))?;
        let devices = match (&mesh.iota, mesh.device_ids.is_empty()) {
            (_, false) => sizes(&mesh.device_ids),
            (Some(iota), true) if !iota.reshape_dims.is_empty() => {
                transposed_iota(&sizes(&iota.reshape_dims), &sizes(&iota.transpose_perm))
            }
            _ => (0..total).collect(),
        };
        if devices.len() != total || total == 0 {
            return None;
        }
        let mut stride = total;
        let mut axes = Vec::with_capacity(sizes_of_axes.len());
        for size in sizes_of_axes {
            stride /= size;
            axes.push(Digit { stride, size });
        }
        Some(Grid { axes, devices })
    }

    fn digit(&self, axis: &AxisRefProto) -> Option<Digit> {
        let digit = *self.axes.get(usize::try_from(axis.axis).ok()?)?;
        let Some(part) = &axis.part else { return Some(digit) };
        let (pre, size) = (usize::try_from(part.pre_size).ok()?, usize::try_from(part.size).ok()?);
        let major_size = pre.checked_mul(size).filter(|&n| n > 0 && digit.size.is_multiple_of(n))?;
        Some(Digit { stride: digit.stride * (digit.size / major_size), size })
    }

    fn digits(&self, axes: &[AxisRefProto]) -> Option<Vec<Digit>> {
        axes.iter().map(|axis| self.digit(axis)).collect()
    }

    /// The product of the sizes of these axes.
    pub fn size(&self, axes: &[AxisRefProto]) -> Option<usize> {
        Some(self.digits(axes)?.iter().map(|digit| digit.size).product())
    }

    /// For each position: its index along each of the `lists` of axes, with the first axis of a list major, and the
    /// remainder of the position without these axes.
    fn places(&self, lists: &[&[AxisRefProto]]) -> Option<Vec<(Vec<usize>, usize)>> {
        let digits = lists.iter().map(|list| self.digits(list)).collect::<Option<Vec<_>>>()?;
        let places = (0..self.devices.len()).map(|position| {
            let mut remainder = position;
            let indices = digits.iter().map(|list| {
                list.iter().fold(0, |index, digit| {
                    let coordinate = position / digit.stride % digit.size;
                    remainder -= (coordinate * digit.stride).min(remainder);
                    index * digit.size + coordinate
                })
            });
            let indices = indices.collect();
            (indices, remainder)
        });
        Some(places.collect())
    }

    /// Groups of devices that differ only along these axes.
    pub fn groups(&self, axes: &[AxisRefProto]) -> Option<Vec<Vec<i64>>> {
        let mut order: Vec<(usize, usize, usize)> = (0..)
            .zip(self.places(&[axes])?)
            .map(|(position, (along, rest))| (rest, along.first().copied().unwrap_or(0), position))
            .collect();
        order.sort_unstable();
        let groups = order.chunk_by(|a, b| a.0 == b.0);
        Some(groups.map(|group| group.iter().map(|&(.., position)| self.devices[position] as i64).collect()).collect())
    }

    /// The devices ordered by their indices along these lists, the first list major, and last by the remainder of their
    /// position.
    pub fn ordered(&self, lists: &[&[AxisRefProto]]) -> Option<Vec<usize>> {
        let places = self.places(lists)?;
        let mut order: Vec<usize> = (0..self.devices.len()).collect();
        order.sort_by(|&a, &b| places[a].cmp(&places[b]));
        Some(order.into_iter().map(|position| self.devices[position]).collect())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn mesh(axes: &[(&str, i64)], device_ids: &[i64]) -> MeshProto {
        let axes = axes.iter().map(|(name, size)| MeshAxisProto { name: (*name).to_owned(), size: *size }).collect();
        MeshProto { axes, device_ids: device_ids.to_vec(), iota: None }
    }

    pub(crate) fn axis(axis: i64) -> AxisRefProto {
        AxisRefProto { axis, part: None }
    }

    fn part(axis: i64, pre_size: i64, size: i64) -> AxisRefProto {
        AxisRefProto { axis, part: Some(SubAxisProto { pre_size, size }) }
    }

    #[test]
    fn groups_differ_along_their_axes_alone() {
        let grid = Grid::from_proto(&mesh(&[("x", 2), ("y", 4)], &[])).unwrap();
        assert_eq!(grid.groups(&[axis(0)]).unwrap(), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(grid.groups(&[axis(1)]).unwrap(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(grid.groups(&[axis(0), axis(1)]).unwrap(), [[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(grid.groups(&[axis(1), axis(0)]).unwrap(), [[0, 4, 1, 5, 2, 6, 3, 7]]);
        assert_eq!(grid.groups(&[]).unwrap().len(), 8);
        // Sub-axes: y as [2, 2].
        assert_eq!(grid.groups(&[part(1, 1, 2)]).unwrap(), [[0, 2], [1, 3], [4, 6], [5, 7]]);
        assert_eq!(grid.groups(&[part(1, 2, 2)]).unwrap(), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(grid.size(&[axis(0), part(1, 2, 2)]), Some(4));
        assert_eq!((grid.groups(&[axis(2)]), grid.groups(&[part(1, 3, 2)])), (None, None));
    }

    #[test]
    fn devices_are_listed_or_follow_from_an_iota() {
        let listed = Grid::from_proto(&mesh(&[("x", 2), ("y", 2)], &[3, 1, 2, 0])).unwrap();
        assert_eq!(listed.groups(&[axis(1)]).unwrap(), [[3, 1], [2, 0]]);
        let iota = IotaTransformProto { reshape_dims: vec![2, 2], transpose_perm: vec![1, 0] };
        let iota = Grid::from_proto(&MeshProto { iota: Some(iota), ..mesh(&[("x", 2), ("y", 2)], &[]) }).unwrap();
        assert_eq!(iota.groups(&[axis(1)]).unwrap(), [[0, 2], [1, 3]]);
        assert!(Grid::from_proto(&mesh(&[("x", 2)], &[0, 1, 2])).is_none());
        assert!(Grid::from_proto(&mesh(&[("x", 0)], &[])).is_none());
        assert!(Grid::from_proto(&mesh(&[("x", i64::MAX), ("y", i64::MAX)], &[])).is_none());
    }
}
