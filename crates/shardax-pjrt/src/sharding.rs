//! XLA's description of how an array is laid over devices, decoded.

use std::fmt;

use prost::Message;

/// What an [`OpSharding`], or one of the trailing dimensions of its tiling, means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardingKind {
    /// Every device has the whole array.
    Replicated,
    /// One device has the whole array.
    Maximal,
    /// One sharding for each element of a tuple.
    Tuple,
    /// Tiled over the devices.
    Other,
    /// Partitioned by the program itself.
    Manual,
    /// Not decided.
    Unknown,
    /// Each device has a term of a sum.
    Unreduced,
}

/// How an array is laid over devices (XLA's `OpSharding`), with the device list written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSharding {
    /// What is said of it.
    pub kind: ShardingKind,
    /// Number of tiles along each dimension of the array, followed by one number for each of `last_tile_dims`
    /// (or one for replication, with `replicate_on_last_tile_dim`). Empty unless `kind` is `Other`.
    pub tile_dims: Vec<usize>,
    /// Index of the partition that has each tile, row-major over `tile_dims`.
    pub devices: Vec<usize>,
    /// The last of `tile_dims` counts copies.
    pub replicate_on_last_tile_dim: bool,
    /// What the trailing `tile_dims` mean.
    pub last_tile_dims: Vec<ShardingKind>,
    /// The elements' shardings, when `kind` is `Tuple`.
    pub tuple_shardings: Vec<OpSharding>,
}

impl OpSharding {
    /// Number of parts along each of an array's `rank` dimensions; all 1 when the array is whole everywhere.
    pub fn partitions(&self, rank: usize) -> Vec<usize> {
        match self.kind {
            ShardingKind::Other if self.tile_dims.len() >= rank => self.tile_dims[..rank].to_vec(),
            _ => vec![1; rank],
        }
    }

    /// Whether every device has the whole array.
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
                let join = |n: &[usize]| n.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
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
}

fn kind(raw: i32) -> ShardingKind {
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
        let kind_of = kind;
        let kind = kind(proto.kind);
        let sizes = |dims: &[i64]| dims.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect::<Vec<_>>();
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
            last_tile_dims: proto.last_tile_dims.iter().map(|&raw| kind_of(raw)).collect(),
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
}
