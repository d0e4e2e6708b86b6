//! Values accepted where a sharding is expected.

use super::prefix::{IntoPrefix, Prefix};
use crate::core::array::Array;
use crate::error::{Result, err};
use crate::sharding::layout::RequestedLayout;
use crate::sharding::{
    Device, Format, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding, Space, Typed,
    get_abstract_mesh, get_mesh,
};

/// A sharding, or a spec over the context mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShardingLike {
    /// A sharding, or a device.
    Sharding(Sharding),
    /// A spec over the context mesh.
    Spec(PartitionSpec),
    /// Device memory or host memory, with the current sharding; for [`device_put`](crate::device_put).
    Space(Space),
    /// A sharding and a layout in memory.
    Format(Format),
    /// The sharding in the type of another value: `x.aval().sharding()`.
    Typed(Typed),
}

/// No sharding: the compiler chooses the sharding of the argument or result. Use it instead of `None` if inference
/// cannot find the type of `None`.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let f = jit(|x: Array| (x.clone(), x.sum(..))).out_shardings((NamedSharding::new(&mesh, P!["x"]), UNSPECIFIED));
/// assert_eq!(f.call(ones([8]))?.1.item::<f32>()?, 8.0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub const UNSPECIFIED: Option<ShardingLike> = None;

/// The requested sharding and layout of an argument or a result, each if specified.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedSharding {
    pub sharding: Option<Sharding>,
    pub layout: Option<RequestedLayout>,
}

impl From<Option<Sharding>> for RequestedSharding {
    fn from(sharding: Option<Sharding>) -> Self {
        RequestedSharding { sharding, layout: None }
    }
}

impl ShardingLike {
    /// Returns the sharding. `what` names the caller in errors.
    ///
    /// # Errors
    /// Returns an error for a spec if no mesh is in context.
    pub fn resolve(&self, what: &str) -> Result<Sharding> {
        let spec = match self {
            ShardingLike::Sharding(sharding) => return Ok(sharding.clone()),
            ShardingLike::Spec(spec) => spec,
            ShardingLike::Typed(typed) => &typed.spec(),
            ShardingLike::Space(space) => {
                return Err(err!(Type, "{what} takes a sharding, but got the memory space {space:?}")
                    .help("a sharding names its memory with `with_memory_kind(\"pinned_host\")`"));
            }
            ShardingLike::Format(format) => {
                return match (format.sharding(), format.has_layout()) {
                    (Some(sharding), false) => Ok(sharding.clone()),
                    _ => Err(err!(Type, "{what} takes a sharding, but got {format}")
                        .help("pass its sharding, and put the array there with `device_put(x, format)`")),
                };
            }
        };
        let mesh = get_mesh().ok_or_else(|| {
            err!(Value, "{what} requires a non-empty mesh in context if you are passing a PartitionSpec: {spec}")
                .help("set one with `set_mesh(&mesh)`, or pass `NamedSharding::new(&mesh, spec)`")
        })?;
        Ok(NamedSharding::try_new(&mesh, spec.clone())?.into())
    }
}

impl ShardingLike {
    /// The sharding for the type of a value of this shape. Without a context mesh it also returns the sharding's mesh
    /// with its devices. `what` names the caller in errors.
    pub(crate) fn typed(&self, what: &str, shape: &[usize]) -> Result<(Typed, Option<Mesh>)> {
        let context = get_abstract_mesh();
        let (mesh, spec, devices) = match self {
            ShardingLike::Spec(spec) => (context.as_ref(), spec, None),
            ShardingLike::Typed(typed) => (Some(typed.mesh()), &typed.spec(), None),
            like => {
                let Sharding::Named(named) = like.resolve(what)? else {
                    return Err(err!(Type, "{what} takes a sharding over a mesh, but got {like:?}")
                        .help("move an array to one device with `device_put(x, device)`"));
                };
                let devices = named.mesh().clone();
                let typed = Typed::requested(devices.abstract_mesh(), named.spec(), shape, what)?;
                return Ok((typed, Some(devices).filter(|_| context.is_none())));
            }
        };
        let Some(mesh) = mesh else {
            return Err(err!(
                Value,
                "{what} requires a non-empty mesh in context if you are passing a PartitionSpec: {spec}"
            )
            .help("set one with `set_mesh(&mesh)`, or pass `NamedSharding::new(&mesh, spec)`"));
        };
        Ok((Typed::requested(mesh, spec, shape, what)?, devices))
    }

    /// Like [`typed`](Self::typed), over the mesh of the context or of the operands.
    pub(crate) fn out_sharding(&self, what: &str, shape: &[usize], args: &[&Array]) -> Result<Option<Typed>> {
        let operand_mesh = args.iter().find_map(|a| Some(a.aval_ref()?.sharding()?.mesh().clone()));
        let typed = match (self, get_abstract_mesh(), &operand_mesh) {
            (ShardingLike::Spec(spec), None, Some(mesh)) => Typed::requested(mesh, spec, shape, what)?,
            _ => self.typed(what, shape)?.0,
        };
        let mesh = get_abstract_mesh().or(operand_mesh);
        if let Some(mesh) = mesh.filter(|mesh| mesh != typed.mesh()) {
            return Err(err!(
                Value,
                "{what} of mesh {} does not match the mesh of the context or of the operands, {mesh}",
                typed.mesh()
            )
            .help("pass only the PartitionSpec, which is then over the context mesh"));
        }
        Ok(Some(typed).filter(|typed| typed.mesh().has_explicit()))
    }

    /// The requested placement of an argument or a result, including its layout.
    pub(crate) fn requested(&self, what: &str) -> Result<RequestedSharding> {
        match self {
            ShardingLike::Format(format) => {
                format.check()?;
                Ok(RequestedSharding { sharding: format.sharding().cloned(), layout: format.requested_layout() })
            }
            like => Ok(RequestedSharding { sharding: Some(like.resolve(what)?), layout: None }),
        }
    }
}

/// `None` lets the compiler choose the sharding.
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
    Typed, |typed| ShardingLike::Typed(typed);
    &Typed, |typed| ShardingLike::Typed(typed.clone());
    Format, |format| ShardingLike::Format(format);
    &Format, |format| ShardingLike::Format(format.clone());
}
