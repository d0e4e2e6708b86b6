//! The device groups of collectives, in the four formats that plugins have used.

use prost::Message;

use super::InstructionProto;
use crate::sharding::axes::{AxisRefProto, Grid, MeshProto};
use crate::sharding::transposed_iota;

#[derive(Clone, PartialEq, Message)]
pub(super) struct GroupProto {
    #[prost(int64, repeated, tag = "1")]
    ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeviceListProto {
    #[prost(message, repeated, tag = "1")]
    groups: Vec<GroupProto>,
    /// The field that preceded `iota_groups` of the instruction.
    #[prost(message, optional, tag = "2")]
    iota: Option<IotaGroupsProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IotaGroupsProto {
    #[prost(int64, tag = "2")]
    devices_per_group: i64,
    #[prost(int64, repeated, tag = "3")]
    reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "4")]
    transpose_perm: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MeshGroupsProto {
    #[prost(message, optional, tag = "1")]
    mesh: Option<MeshProto>,
    #[prost(message, repeated, tag = "2")]
    axes: Vec<AxisRefProto>,
}

impl IotaGroupsProto {
    fn groups(&self) -> Vec<Vec<i64>> {
        let dims: Vec<usize> = self.reshape_dims.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
        let perm: Vec<usize> = self.transpose_perm.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
        let flat = transposed_iota(&dims, &perm);
        let size = usize::try_from(self.devices_per_group).unwrap_or(0).max(1);
        flat.chunks(size).map(|group| group.iter().map(|&id| id as i64).collect()).collect()
    }
}

impl InstructionProto {
    /// The groups; empty means one group of all devices.
    pub(super) fn groups(&self) -> Vec<Vec<i64>> {
        if let Some(by_axes) = &self.mesh_groups {
            let grid = Grid::from_proto(&by_axes.mesh.clone().unwrap_or_default());
            return grid.and_then(|grid| grid.groups(&by_axes.axes)).unwrap_or_default();
        }
        let list = self.device_list.as_ref();
        if let Some(iota) = self.iota_groups.as_ref().or_else(|| list?.iota.as_ref()) {
            return iota.groups();
        }
        match list {
            Some(list) if !list.groups.is_empty() => list.groups.iter().map(|group| group.ids.clone()).collect(),
            _ => self.replica_groups.iter().map(|group| group.ids.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding::axes::tests::{axis, mesh};

    fn groups(of: InstructionProto) -> Vec<Vec<i64>> {
        InstructionProto::decode(of.encode_to_vec().as_slice()).unwrap().groups()
    }

    #[test]
    fn every_form_of_groups_is_read_the_same() {
        let lists = [GroupProto { ids: vec![0, 2] }, GroupProto { ids: vec![1, 3] }];
        let iota = IotaGroupsProto { devices_per_group: 2, reshape_dims: vec![2, 2], transpose_perm: vec![1, 0] };
        let by_axes = MeshGroupsProto { mesh: Some(mesh(&[("x", 2), ("y", 2)], &[])), axes: vec![axis(0)] };

        let none = InstructionProto::default();
        for form in [
            InstructionProto { replica_groups: lists.to_vec(), ..none.clone() },
            InstructionProto {
                device_list: Some(DeviceListProto { groups: lists.to_vec(), iota: None }),
                ..none.clone()
            },
            InstructionProto {
                device_list: Some(DeviceListProto { groups: Vec::new(), iota: Some(iota.clone()) }),
                ..none.clone()
            },
            InstructionProto { iota_groups: Some(iota.clone()), ..none.clone() },
            InstructionProto { mesh_groups: Some(by_axes), ..none.clone() },
        ] {
            assert_eq!(groups(form), [[0, 2], [1, 3]]);
        }
        assert!(groups(none).is_empty());
    }

    /// Uses bytes as plugins write them, so that the test does not depend on the field numbers in this file.
    #[test]
    fn the_fields_of_newer_plugins_are_read() {
        // 92 {1: 2, 2: 2, 3: [2, 2], 4: [1, 0]}
        let iota = [0xe2, 0x05, 12, 8, 2, 16, 2, 26, 2, 2, 2, 34, 2, 1, 0];
        assert_eq!(InstructionProto::decode(&iota[..]).unwrap().groups(), [[0, 2], [1, 3]]);
        // 93 {1: {1: {1: "x", 2: 2}, 1: {1: "y", 2: 2}}, 2: {1: 1}}, an axis of the mesh; protobuf omits a 0.
        let axes = [0xea, 0x05, 20, 10, 14, 10, 5, 10, 1, b'x', 16, 2, 10, 5, 10, 1, b'y', 16, 2, 18, 2, 8, 1];
        assert_eq!(InstructionProto::decode(&axes[..]).unwrap().groups(), [[0, 1], [2, 3]]);
        // 93 … 2: {1: 0, 2: {1: 1, 2: 2}}: a sub-axis of the one axis of 4.
        let part = [0xea, 0x05, 17, 10, 7, 10, 5, 10, 1, b'x', 16, 4, 18, 6, 18, 4, 8, 1, 16, 2];
        assert_eq!(InstructionProto::decode(&part[..]).unwrap().groups(), [[0, 2], [1, 3]]);
    }
}
