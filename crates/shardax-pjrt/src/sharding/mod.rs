//! Decoding of XLA's `OpSharding`.

pub(crate) mod axes;

use std::fmt;

use prost::Message;

use axes::{AxisRefProto, Grid, MeshProto, sizes};

/// The kind of an [`OpSharding`], or of one of the trailing dimensions of its tiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardingKind {
    /// Every device has the entire array.
    Replicated,
    /// One device has the entire array.
    Maximal,
    /// One sharding for each element of a tuple.
    Tuple,
    /// Tiled over the devices.
    Other,
    /// Partitioned by the program (manual mode).
    Manual,
    /// Not determined.
    Unknown,
    /// Each device has a partial sum.
    Unreduced,
}

/// The distribution of an array over devices (XLA's `OpSharding`), with the list of devices expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSharding {
    /// The kind of sharding.
    pub kind: ShardingKind,
    /// The number of tiles along each dimension of the array, followed by one number for each of `last_tile_dims` (or
    /// one for replication, with `replicate_on_last_tile_dim`). Empty unless `kind` is `Other`.
    pub tile_dims: Vec<usize>,
    /// The partition of each tile, row-major over `tile_dims`.
    pub devices: Vec<usize>,
    /// The last of `tile_dims` is the number of copies.
    pub replicate_on_last_tile_dim: bool,
    /// The kinds of the trailing `tile_dims`.
    pub last_tile_dims: Vec<ShardingKind>,
    /// The shardings of the elements, if `kind` is `Tuple`.
    pub tuple_shardings: Vec<OpSharding>,
}

impl OpSharding {
    fn replicated() -> OpSharding {
        OpSharding {
            kind: ShardingKind::Replicated,
            tile_dims: Vec::new(),
            devices: Vec::new(),
            replicate_on_last_tile_dim: false,
            last_tile_dims: Vec::new(),
            tuple_shardings: Vec::new(),
        }
    }

    /// The number of parts along each of an array's `rank` dimensions; all 1 if every device has the entire array.
    pub fn partitions(&self, rank: usize) -> Vec<usize> {
        match self.kind {
            ShardingKind::Other if self.tile_dims.len() >= rank => self.tile_dims[..rank].to_vec(),
            _ => vec![1; rank],
        }
    }

    /// Returns true if every device has the entire array.
    pub fn is_replicated(&self) -> bool {
        match self.kind {
            ShardingKind::Replicated => true,
            ShardingKind::Other => {
                let trailing = self.last_tile_dims.len().max(usize::from(self.replicate_on_last_tile_dim));
                let data = self.tile_dims.len().saturating_sub(trailing);
                self.tile_dims[..data].iter().all(|&n| n == 1)
                    && self.last_tile_dims.iter().all(|&kind| kind == ShardingKind::Replicated)
            }
            _ => false,
        }
    }
}

impl fmt::Display for OpSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ShardingKind::Replicated => f.write_str("{replicated}"),
            ShardingKind::Maximal => write!(f, "{{maximal device={}}}", self.devices.first().unwrap_or(&0)),
            ShardingKind::Manual => f.write_str("{manual}"),
            ShardingKind::Unknown => f.write_str("{unknown}"),
            ShardingKind::Unreduced => f.write_str("{unreduced}"),
            ShardingKind::Tuple => {
                f.write_str("{")?;
                for (i, element) in self.tuple_shardings.iter().enumerate() {
                    write!(f, "{}{element}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("}")
            }
            ShardingKind::Other => {
                write!(f, "{{devices=[{}]{}", join(&self.tile_dims), join(&self.devices))?;
                if self.replicate_on_last_tile_dim {
                    f.write_str(" last_tile_dim_replicate")?;
                }
                if !self.last_tile_dims.is_empty() {
                    write!(f, " last_tile_dims={:?}", self.last_tile_dims)?;
                }
                f.write_str("}")
            }
        }
    }
}

fn join(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OpShardingProto {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(int64, repeated, tag = "3")]
    tile_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    devices: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    tuple_shardings: Vec<OpShardingProto>,
    #[prost(bool, tag = "6")]
    replicate_on_last_tile_dim: bool,
    #[prost(int32, repeated, tag = "8")]
    last_tile_dims: Vec<i32>,
    #[prost(int64, repeated, tag = "9")]
    iota_reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "10")]
    iota_transpose_perm: Vec<i32>,
    /// The format of newer plugins, which replaces all other fields.
    #[prost(message, optional, tag = "14")]
    named: Option<NamedShardingProto>,
}

/// A sharding in terms of mesh axes (`xla.NamedShardingProto`).
#[derive(Clone, PartialEq, Message)]
struct NamedShardingProto {
    #[prost(message, optional, tag = "2")]
    mesh: Option<MeshProto>,
    #[prost(message, repeated, tag = "3")]
    dims: Vec<DimShardingProto>,
    #[prost(message, repeated, tag = "5")]
    unreduced_axes: Vec<AxisRefProto>,
    #[prost(message, repeated, tag = "7")]
    manual_axes: Vec<AxisRefProto>,
}

#[derive(Clone, PartialEq, Message)]
struct DimShardingProto {
    #[prost(message, repeated, tag = "1")]
    axes: Vec<AxisRefProto>,
}

impl NamedShardingProto {
    /// Converts it to tiles; `None` if the numbers are inconsistent.
    fn tiles(&self) -> Option<OpSharding> {
        let mesh = self.mesh.clone().unwrap_or_default();
        let grid = Grid::from_proto(&mesh)?;
        if mesh.axes.is_empty() {
            // A mesh without axes means one device, or no information.
            return Some(match mesh.device_ids.first().map(|&id| usize::try_from(id)) {
                Some(id) => {
                    OpSharding { kind: ShardingKind::Maximal, devices: vec![id.ok()?], ..OpSharding::replicated() }
                }
                None => OpSharding::replicated(),
            });
        }
        let trailing = [(ShardingKind::Manual, &self.manual_axes), (ShardingKind::Unreduced, &self.unreduced_axes)];
        let mut lists: Vec<&[AxisRefProto]> = self.dims.iter().map(|dim| dim.axes.as_slice()).collect();
        lists.extend(trailing.iter().map(|(_, axes)| axes.as_slice()));
        let devices = grid.ordered(&lists)?;
        let mut tile_dims = lists.iter().map(|list| grid.size(list)).collect::<Option<Vec<usize>>>()?;
        let split: usize = tile_dims.iter().product();
        if split == 1 {
            return Some(OpSharding::replicated());
        }
        // Trailing dimensions of size 1 are omitted, as in a sharding that is written as tiles.
        let trailing_sizes = tile_dims.split_off(self.dims.len());
        let trailing = trailing.iter().map(|(kind, _)| *kind).zip(trailing_sizes);
        let mut last_tile_dims = Vec::new();
        let copies = (ShardingKind::Replicated, devices.len() / split);
        for (kind, size) in trailing.chain([copies]).filter(|(_, size)| *size > 1) {
            tile_dims.push(size);
            last_tile_dims.push(kind);
        }
        let kind = ShardingKind::Other;
        Some(OpSharding { kind, devices, tile_dims, last_tile_dims, ..OpSharding::replicated() })
    }
}

fn kind_from_raw(raw: i32) -> ShardingKind {
    match raw {
        0 => ShardingKind::Replicated,
        1 => ShardingKind::Maximal,
        2 => ShardingKind::Tuple,
        3 => ShardingKind::Other,
        4 => ShardingKind::Manual,
        6 => ShardingKind::Unreduced,
        _ => ShardingKind::Unknown,
    }
}

impl From<&OpShardingProto> for OpSharding {
    fn from(proto: &OpShardingProto) -> OpSharding {
        if let Some(named) = &proto.named {
            return named
                .tiles()
                .unwrap_or_else(|| OpSharding { kind: ShardingKind::Unknown, ..OpSharding::replicated() });
        }
        let kind = kind_from_raw(proto.kind);
        let tile_dims = sizes(&proto.tile_dims);
        let devices = if !proto.devices.is_empty() || kind != ShardingKind::Other {
            sizes(&proto.devices)
        } else if proto.iota_reshape_dims.is_empty() {
            (0..tile_dims.iter().product()).collect()
        } else {
            let perm: Vec<usize> = proto.iota_transpose_perm.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
            transposed_iota(&sizes(&proto.iota_reshape_dims), &perm)
        };
        OpSharding {
            kind,
            tile_dims,
            devices,
            replicate_on_last_tile_dim: proto.replicate_on_last_tile_dim,
            last_tile_dims: proto.last_tile_dims.iter().map(|&raw| kind_from_raw(raw)).collect(),
            tuple_shardings: proto.tuple_shardings.iter().map(OpSharding::from).collect(),
        }
    }
}

/// The numbers 0, 1, 2, … shaped as `dims`, transposed by `perm`, and flattened.
pub(crate) fn transposed_iota(dims: &[usize], perm: &[usize]) -> Vec<usize> {
    let total: usize = dims.iter().product();
    if perm.len() != dims.len() || perm.iter().any(|&p| p >= dims.len()) {
        return (0..total).collect();
    }
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    (0..total)
        .map(|mut flat| {
            let mut source = 0;
            for &p in perm.iter().rev() {
                source += (flat % dims[p]) * strides[p];
                flat /= dims[p];
            }
            source
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iota_forms_expand() {
        assert_eq!(transposed_iota(&[4, 2], &[0, 1]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(transposed_iota(&[4, 2], &[1, 0]), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(transposed_iota(&[2, 2, 2], &[2, 0, 1]), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(transposed_iota(&[8], &[0]), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    /// Reads a sharding by mesh axes, which is encoded and decoded together with the kind that newer plugins write as well.
    fn sharding(dims: &[&[i64]], manual: &[i64], unreduced: &[i64]) -> OpSharding {
        use axes::tests::{axis, mesh};

        let [manual_axes, unreduced_axes] = [manual, unreduced].map(|axes| axes.iter().map(|&a| axis(a)).collect());
        let dims = dims.iter().map(|dim| DimShardingProto { axes: dim.iter().map(|&a| axis(a)).collect() });
        let named = NamedShardingProto {
            mesh: Some(mesh(&[("x", 2), ("y", 2), ("z", 2)], &[])),
            dims: dims.collect(),
            unreduced_axes,
            manual_axes,
        };
        let proto = OpShardingProto { named: Some(named), ..Default::default() };
        OpSharding::from(&OpShardingProto::decode(proto.encode_to_vec().as_slice()).unwrap())
    }

    #[test]
    fn a_sharding_by_axes_is_read_as_tiles() {
        use axes::tests::mesh;

        let split = sharding(&[&[2], &[], &[0, 1]], &[], &[]);
        assert_eq!((split.kind, split.tile_dims), (ShardingKind::Other, vec![2, 1, 4]));
        assert_eq!(split.devices, [0, 2, 4, 6, 1, 3, 5, 7]);
        let copied = sharding(&[&[1], &[]], &[], &[]);
        assert_eq!(copied.to_string(), "{devices=[2,1,4]0,1,4,5,2,3,6,7 last_tile_dims=[Replicated]}");
        let mixed = sharding(&[&[0]], &[1], &[2]);
        assert_eq!(mixed.to_string(), "{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dims=[Manual, Unreduced]}");
        assert!(sharding(&[&[], &[]], &[], &[]).is_replicated());
        assert_eq!(sharding(&[&[3]], &[], &[]).kind, ShardingKind::Unknown);
        let maximal = NamedShardingProto { mesh: Some(mesh(&[], &[5])), ..Default::default() };
        let maximal = OpSharding::from(&OpShardingProto { named: Some(maximal), ..Default::default() });
        assert_eq!(maximal.to_string(), "{maximal device=5}");
    }
}
