//! What users write where a sharding is wanted.

use super::prefix::{IntoPrefix, Prefix};
use crate::error::{Result, err};
use crate::sharding::{Device, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding, Space, get_mesh};

/// A sharding, or a spec over the context mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShardingLike {
    /// A sharding, or a device.
    Sharding(Sharding),
    /// A spec over the context mesh.
    Spec(PartitionSpec),
    /// The memory of the devices or the host's, whatever the sharding; for [`device_put`](crate::device_put).
    Space(Space),
}

impl ShardingLike {
    /// The sharding; `what` asks for it.
    ///
    /// Fails for a spec where no mesh is in context.
    pub fn resolve(&self, what: &str) -> Result<Sharding> {
        let spec = match self {
            ShardingLike::Sharding(sharding) => return Ok(sharding.clone()),
            ShardingLike::Spec(spec) => spec,
            ShardingLike::Space(space) => {
                return Err(err!(Type, "{what} takes a sharding, and got the memory space {space:?}")
                    .help("a sharding names its memory with `with_memory_kind(\"pinned_host\")`"));
            }
        };
        let mesh = get_mesh().ok_or_else(|| {
            err!(Value, "{what} requires a non-empty mesh in context if you are passing a PartitionSpec: {spec}")
                .help("set one with `set_mesh(&mesh)`, or pass `NamedSharding::new(&mesh, spec)`")
        })?;
        Ok(NamedSharding::try_new(&mesh, spec.clone())?.into())
    }
}

/// `None` alone says nothing of a sharding.
impl IntoPrefix<Option<ShardingLike>> for Option<ShardingLike> {
    fn into_prefix(self) -> Prefix<Option<ShardingLike>> {
        Prefix::Leaf(self)
    }
}

macro_rules! likes {
    ($($t:ty, |$v:ident| $like:expr;)*) => {$(
        impl From<$t> for ShardingLike {
            fn from($v: $t) -> Self {
                $like
            }
        }

        impl IntoPrefix<Option<ShardingLike>> for $t {
            fn into_prefix(self) -> Prefix<Option<ShardingLike>> {
                Prefix::Leaf(Some(self.into()))
            }
        }
    )*};
}

likes! {
    Sharding, |s| ShardingLike::Sharding(s);
    &Sharding, |s| ShardingLike::Sharding(s.clone());
    NamedSharding, |s| ShardingLike::Sharding(s.into());
    &NamedSharding, |s| ShardingLike::Sharding(s.into());
    SingleDeviceSharding, |s| ShardingLike::Sharding(s.into());
    &SingleDeviceSharding, |s| ShardingLike::Sharding(s.clone().into());
    Device, |d| ShardingLike::Sharding(d.into());
    &Device, |d| ShardingLike::Sharding(d.into());
    PartitionSpec, |spec| ShardingLike::Spec(spec);
    &PartitionSpec, |spec| ShardingLike::Spec(spec.clone());
    Space, |space| ShardingLike::Space(space);
}
