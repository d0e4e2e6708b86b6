//! `reshard`: another sharding in the type of a value.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::core::sharding_like::ShardingLike;
use crate::core::tree::{Flat, Tree};
use crate::error::Result;
use crate::sharding::{AbstractMesh, Mesh, NamedSharding, Sharding, Typed};
use crate::source;

/// The same value, whose type has this sharding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reshard {
    pub to: Typed,
    /// The mesh with its devices, where the context has none.
    pub mesh: Option<Mesh>,
    /// The mesh of the operand, where its axes are all of type `Auto`: its type does not say it.
    pub from: Option<AbstractMesh>,
}

impl Reshard {
    #[track_caller]
    fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }

    fn named(&self) -> Option<NamedSharding> {
        self.mesh.as_ref().map(|mesh| NamedSharding::new(&mesh.with_shape(self.to.mesh()), self.to.spec()))
    }
}

/// What the interpreters need of `reshard`, to keep types right.
impl Array {
    /// The same with the sharding of `like`, where both have one and they differ.
    #[track_caller]
    pub(crate) fn sharded_as(&self, like: &Aval) -> Array {
        match (self.aval_ref().and_then(Aval::sharding), like.sharding()) {
            (Some(have), Some(want)) if have != want && have.rank() == want.rank() => self.sharded(want),
            (None, Some(want)) if !self.is_number() && !want.is_replicated() && self.ndim() == want.rank() => {
                self.sharded(want)
            }
            _ => self.clone(),
        }
    }

    /// The same with this sharding.
    #[track_caller]
    pub(crate) fn sharded(&self, to: &Typed) -> Array {
        Reshard { to: to.clone(), mesh: None, from: None }.apply(self)
    }

    /// The same with this sharding, of an array made where `from` is the context mesh.
    #[track_caller]
    pub(crate) fn sharded_from(&self, from: &AbstractMesh, to: &Typed) -> Array {
        let from = Some(from.clone()).filter(|_| !from.has_explicit());
        Reshard { to: to.clone(), mesh: None, from }.apply(self)
    }
}

impl Primitive for Reshard {
    fn name(&self) -> &'static str {
        "reshard"
    }

    fn print_params(&self) -> String {
        format!("dst_sharding={}", self.to.spec())
    }

    fn placed_on(&self) -> Option<Sharding> {
        self.named().map(Sharding::Named)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, _rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        Ok(smallvec![self.to.clone()])
    }

    fn enters_mesh(&self) -> Option<AbstractMesh> {
        Some(self.to.mesh().clone())
    }

    /// The type of the result has the sharding, which is written as that of every result is.
    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    /// Where a cotangent lies is known from the operand's type: the interpreter brings it there.
    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let operand = args[0].aval().cotangent();
        let back = |ct: &Array| match (operand.sharding(), &self.from) {
            _ if ct.is_number() => ct.clone(),
            (Some(want), _) => ct.sharded_from(self.to.mesh(), want),
            (None, Some(mesh)) => ct.sharded(&Typed::replicated(mesh, ct.ndim())),
            (None, None) => ct.clone(),
        };
        Ok(vec![cts[0].as_ref().map(back)])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let to = dims[0].map_or(Ok(self.to.clone()), |d| axis.inserted(&self.to, d))?;
        Ok((smallvec![Reshard { to, ..self.clone() }.apply(&args[0])], dims.to_vec()))
    }
}

/// The same tree, whose arrays have these shardings in their types: one, or a tree of them; `None` leaves a part as it is.
///
/// A [`PartitionSpec`](crate::PartitionSpec) alone is over the context mesh ([`set_mesh`](crate::set_mesh)), and names axes
/// of type [`Explicit`](crate::AxisType::Explicit). Data is moved between the devices as needed. The gradient has the
/// sharding of the argument.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit; 2])?;
/// let _mesh = set_mesh(&mesh)?;
/// let x = reshard(ones([8, 8]), P!["x", "y"]);
/// assert_eq!(x.type_name(), "float32[8@x,8@y]");
/// let f = jit(|x: Array| reshard(x.sum(1), P![("x", "y")]));
/// assert_eq!(f.call(x)?.type_name(), "float32[8@(x,y)]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reshard<T: Tree>(x: T, to: impl IntoPrefix<Option<ShardingLike>>) -> T {
    let _line = source::enter();
    let flat = Flat::of(&x);
    let leaves = resharded(&flat, &to.into_prefix())
        .unwrap_or_else(|e| flat.leaves.iter().map(|leaf| Array::from_result(Err(e.clone()), leaf)).collect());
    Flat { leaves, def: flat.def }.build().unwrap_or(x)
}

fn resharded(flat: &Flat, to: &Prefix<Option<ShardingLike>>) -> Result<SmallVec<[Array; 8]>> {
    let all = to.resolve(&flat.def, "reshard")?;
    let one = |(leaf, like): (&Array, &Option<ShardingLike>)| match like {
        Some(like) => Array::from_result(leaf.check().and_then(|()| reshard_leaf(leaf, like)), leaf),
        None => leaf.clone(),
    };
    Ok(flat.leaves.iter().zip(&all).map(one).collect())
}

fn reshard_leaf(x: &Array, like: &ShardingLike) -> Result<Array> {
    let (to, mesh) = like.typed("reshard", x.shape())?;
    if !to.mesh().has_explicit() {
        return Ok(x.clone());
    }
    Ok(Reshard { to, mesh, from: None }.apply(x))
}
