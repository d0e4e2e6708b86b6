//! `reshard`: another sharding in the type of a value.

use smallvec::{SmallVec, smallvec};

use super::reduce::Reducer;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, trace};
use crate::core::sharding_like::ShardingLike;
use crate::core::sharding_rule::joined;
use crate::core::tree::{Flat, IntoTree};
use crate::error::{Result, err};
use crate::ops::collective::axes::Axes;
use crate::ops::collective::axis_index;
use crate::ops::collective::reduce::AllReduce;
use crate::ops::lax;
use crate::ops::select::where_;
use crate::ops::shard_map::ShardMap;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::typed::entry;
use crate::sharding::{AbstractMesh, AxisType, DimSpec, Mesh, NamedSharding, Sharding, Typed, UnreducedKind};
use crate::source;

/// The identity, with a sharding in the type of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reshard {
    pub to: Typed,
    /// The mesh with its devices, if the context has none.
    pub mesh: Option<Mesh>,
    /// The mesh of the operand, if all its axes are of type `Auto`, because its type does not contain such a mesh.
    pub from: Option<AbstractMesh>,
}

impl Reshard {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }

    /// Lowers a reshard to a value whose addends are spread over the axes `added`, device by device. The partitioner
    /// cannot do it: it treats a value that should become unreduced as an addend on every device, ends the process if
    /// axes are exchanged, and returns wrong values if several axes of unequal sizes are added at once.
    fn lower_unreduced(
        &self,
        cx: &mut Lowering,
        x: Value,
        from: &Typed,
        added: &AxisSet,
        out: &Aval,
    ) -> Result<Vec<Value>> {
        let mesh = concrete_mesh(cx, &self.to)?;
        let unreduced_before: AxisSet = self.to.unreduced().minus(added);
        // Axes that are not unreduced afterwards are summed first.
        let from = from.clone().with_partial(unreduced_before.clone(), AxisSet::default());
        // If the added axes are the last of their dimensions, each device keeps its part. Otherwise the value is first
        // replicated over them.
        let stays = from.dims().iter().zip(self.to.dims()).all(|(have, want)| {
            let are_last = have.axes().iter().skip_while(|n| !added.contains(**n)).all(|n| added.contains(*n));
            are_last && entry(have.axes().iter().copied().filter(|n| !added.contains(*n))) == *want
        });
        let start = if stays { from } else { self.to.clone().with_partial(unreduced_before, AxisSet::default()) };
        let x = cx.constrain(x, &start);
        let out_part_shape = NamedSharding::new(&mesh, self.to.spec()).shard_shape(&out.shape)?;
        let y = on_parts(cx, &[x], std::slice::from_ref(&start), (out, &self.to), |args| {
            let split = start.split_axes().collect::<AxisSet>();
            let replicated: Vec<AxisName> = added.iter().filter(|n| !split.contains(*n)).collect();
            let zero = Array::zeros_of(&Aval::scalar(out.dtype));
            // Along axes over which the value was replicated, only the first device keeps it; along other axes each
            // device has its part.
            let mut y = args[0].clone();
            if !replicated.is_empty() {
                y = where_(device_index(&mesh, &replicated).equal(0), &y, zero.broadcast_to(y.shape()));
            }
            for d in 0..y.ndim() {
                let axes: Vec<AxisName> =
                    start.dims()[d].axes().iter().copied().filter(|n| added.contains(*n)).collect();
                if axes.is_empty() {
                    continue;
                }
                let mut shape = y.shape_owned();
                let part = shape[d];
                shape[d] = out_part_shape[d];
                let zeros = zero.broadcast_to(&shape);
                let start = device_index(&mesh, &axes) * part;
                y = lax::dynamic_update_slice_in_dim(&zeros, &y, &start, d as i32);
            }
            Ok(y)
        })?;
        Ok(vec![y])
    }

    /// Fails if the result would be an unreduced maximum or minimum that the operand is not. A sum cannot become a
    /// maximum, and a reduced value cannot become unreduced.
    fn check_kind(&self, rule: &ShardingRule<'_>) -> Result<()> {
        let from = rule.arg(0);
        if self.to.unreduced().is_empty() || (from.kind() == UnreducedKind::Sum && self.to.kind() == UnreducedKind::Sum)
        {
            return Ok(());
        }
        let help = "use `reshard(x, P![..])` to combine the values, and reduce with `over(axes).out_sharding(spec)`";
        if !from.unreduced().is_empty() && from.kind() != self.to.kind() {
            return Err(rule.error(
                format_args!(
                    "the unreduced_kind of the operand {} and of the result {} must be the same",
                    from.spec(),
                    self.to.spec()
                ),
                help,
            ));
        }
        if self.to.unreduced().is_subset(from.unreduced()) {
            Ok(())
        } else {
            Err(rule.error(
                format_args!("the result {} cannot be more unreduced than the operand {}", self.to.spec(), from.spec()),
                help,
            ))
        }
    }

    fn named(&self) -> Option<NamedSharding> {
        self.mesh.as_ref().map(|mesh| NamedSharding::new(&mesh.with_shape(self.to.mesh()), self.to.spec()))
    }
}

/// The index of a device among the devices along these axes, in row-major order.
fn device_index(mesh: &Mesh, axes: &[AxisName]) -> Array {
    let indices = axes.iter().map(|n| (axis_index(*n), mesh.axis_size(*n).unwrap_or(1)));
    indices.fold(Array::from(0), |index, (axis, size)| index * size + axis)
}

fn has_addends(typed: &Typed) -> bool {
    !typed.unreduced().is_empty()
}

/// The mesh of this sharding with its devices, outside of every `shard_map`.
fn concrete_mesh(cx: &Lowering, typed: &Typed) -> Result<Mesh> {
    match (&cx.auto_mesh, cx.manual_axes.is_empty()) {
        (Some(mesh), true) => Ok(mesh.with_shape(typed.mesh())),
        _ => Err(err!(
            NotImplemented,
            "reshard to {} is not supported inside of a shard_map over part of the axes",
            typed.spec()
        )
        .help("call `reshard` outside of the shard_map")),
    }
}

/// Writes an operation that each device applies to its parts of the operands, which are sharded like `from`. The result
/// on a device is its part of a value of type `out`, which is sharded like `to`.
pub(crate) fn on_parts(
    cx: &mut Lowering,
    args: &[Value],
    from: &[Typed],
    (out, to): (&Aval, &Typed),
    f: impl FnOnce(&[Array]) -> Result<Array>,
) -> Result<Value> {
    let mesh = concrete_mesh(cx, to)?;
    // The operation becomes the body of a `shard_map` over all axes, traced with the types of the parts. It is not checked,
    // because the callers state how the result varies.
    let parts = args.iter().zip(from).map(|(v, typed)| {
        let aval = cx.aval(*v);
        Ok(aval.with_shape(NamedSharding::new(&mesh, typed.spec()).shard_shape(&aval.shape)?))
    });
    let parts: Vec<Aval> = parts.collect::<Result<_>>()?;
    let manual: Vec<AxisName> = mesh.axis_names().collect();
    let body = ShardMap::bind_axes(&mesh, &manual, false, || trace(&parts, |args| Ok(vec![f(args)?])))?;
    let map = ShardMap {
        mesh,
        manual,
        in_specs: from.iter().map(Typed::spec).collect(),
        out_specs: vec![to.spec()],
        checked: false,
        body: body.program,
    };
    let y = map.lower(cx, args, std::slice::from_ref(out))?[0];
    Ok(cx.constrain(y, to))
}

/// Writes an operation whose operands or result are addends. The partitioner preserves addends only through some
/// operations, and otherwise treats a sum as one of the addends on each device. Therefore addends are summed before the
/// operation and spread after it.
pub(crate) fn with_addends(
    cx: &mut Lowering,
    args: &[Value],
    out: &Aval,
    write: impl FnOnce(&mut Lowering, &[Value]) -> Result<Value>,
) -> Result<Vec<Value>> {
    let to = out.sharding().filter(|typed| has_addends(typed));
    let takes = args.iter().any(|v| cx.typed(*v).is_some_and(|typed| has_addends(&typed)));
    // Sums the operands, writes the operation, and spreads its result again.
    if cx.is_local() || (to.is_none() && !takes) || !cx.has_quirk("addends-in-partitions") {
        return Ok(vec![write(cx, args)?]);
    }
    let mut sums = args.to_vec();
    for v in &mut sums {
        if let Some(typed) = cx.typed(*v).filter(|typed| has_addends(typed)) {
            let x = match typed.kind() {
                UnreducedKind::Sum => *v,
                _ => combined(cx, *v, &typed, &AxisSet::default())?,
            };
            *v = cx.constrain(x, &(*typed).clone().without_partial());
        }
    }
    let y = write(cx, &sums)?;
    let Some(to) = to else { return Ok(vec![y]) };
    if to.kind() != UnreducedKind::Sum {
        return Ok(vec![declared(cx, y, to)?]);
    }
    let y = cx.constrain(y, &to.clone().without_partial());
    Reshard { to: to.clone(), mesh: None, from: None }.lower(cx, &[y], std::slice::from_ref(out))
}

/// Combines unreduced maxima or minima along the axes that `kept` does not contain. The partitioner would add them.
fn combined(cx: &mut Lowering, x: Value, from: &Typed, kept: &AxisSet) -> Result<Value> {
    let over = from.unreduced().minus(kept);
    if over.is_empty() {
        return Ok(x);
    }
    let to = from.clone().with_partial(kept.clone(), from.reduced().clone());
    let reducer = Reducer::for_kind(from.kind());
    let aval = cx.aval(x).with_sharding(Some(to.clone()));
    let axes = Axes::summed(over.iter().collect(), false);
    on_parts(cx, &[x], std::slice::from_ref(from), (&aval, &to), |args| Ok(AllReduce { reducer, axes }.apply(&args[0])))
}

/// Declares a replicated value the unreduced maximum or minimum of equal values on all devices.
fn declared(cx: &mut Lowering, x: Value, to: &Typed) -> Result<Value> {
    let from = to.clone().without_partial();
    let x = cx.constrain(x, &from);
    let aval = cx.aval(x).with_sharding(Some(to.clone()));
    on_parts(cx, &[x], &[from], (&aval, to), |args| Ok(args[0].clone()))
}

/// Casts between shardings for the interpreters.
impl Array {
    /// Reshards to the sharding of `like`, if both have one and they differ.
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

    /// Reshards to this sharding.
    #[track_caller]
    pub(crate) fn sharded(&self, to: &Typed) -> Array {
        Reshard { to: to.clone(), mesh: None, from: None }.apply(self)
    }

    /// Gathers the array if its type says that it is sharded, so that every device holds all of it.
    #[track_caller]
    pub(crate) fn replicated(&self) -> Array {
        let aval = self.aval_ref();
        match aval.and_then(Aval::sharding).filter(|typed| !typed.is_replicated()) {
            Some(typed) => self.sharded(&Typed::replicated(typed.mesh(), self.ndim())),
            None => self.clone(),
        }
    }

    /// Reshards an array made while `from` was the context mesh.
    #[track_caller]
    pub(crate) fn sharded_from(&self, from: &AbstractMesh, to: &Typed) -> Array {
        let from = Some(from.clone()).filter(|_| !from.has_explicit());
        Reshard { to: to.clone(), mesh: None, from }.apply(self)
    }
}

/// Reshards operands of one shape to the sharding that an elementwise operation on them would have, because `select`
/// accepts no other. Operands without such a sharding are unchanged.
#[track_caller]
pub(crate) fn sharded_alike(args: &[Array]) -> Vec<Array> {
    let rank = args.iter().map(Array::ndim).max().unwrap_or(0);
    let shardings: Vec<Typed> = args.iter().filter_map(|x| sharding_of_rank(x, rank)).collect();
    let Some(first) = shardings.first() else { return args.to_vec() };
    match joined(first.mesh(), rank, shardings.iter()) {
        Some(joined) if shardings.iter().all(|t| t.unreduced().is_empty() && t.reduced().is_empty()) => {
            let aligned = args.iter().map(|x| {
                if sharding_of_rank(x, rank).is_some_and(|typed| typed != joined) {
                    x.sharded(&joined)
                } else {
                    x.clone()
                }
            });
            aligned.collect()
        }
        _ => args.to_vec(),
    }
}

/// Returns an update of a part of `x`. Its dimensions that cover `x`'s are split as `x`'s are, unless the update is split
/// already, because scatters accept such updates too. No data moves, since each device has all of a dimension that is not
/// split.
#[track_caller]
pub(crate) fn covering_like(update: &Array, x: &Array) -> Array {
    let (x_aval, update_aval) = (x.aval(), update.aval());
    let Some(of_array) = x_aval.sharding() else { return update.clone() };
    let of_update =
        update_aval.sharding().cloned().unwrap_or_else(|| Typed::replicated(of_array.mesh(), update.ndim()));
    let dims = of_update.dims().iter().enumerate().map(|(d, entry)| match entry {
        DimSpec::None if update.shape()[d] == x.shape()[d] => of_array.dims()[d].clone(),
        entry => entry.clone(),
    });
    let aligned = of_update.with_dims(dims);
    // The operation reports axes that split another dimension of the update, and updates of another mesh.
    let is_accepted = aligned.mesh() == of_array.mesh() && aligned.check_distinct().is_ok();
    if is_accepted && aligned != of_update { update.sharded(&aligned) } else { update.clone() }
}

/// The sharding in the type of an array, if it has this rank.
fn sharding_of_rank(x: &Array, rank: usize) -> Option<Typed> {
    x.aval_ref().and_then(Aval::sharding).filter(|typed| typed.rank() == rank).cloned()
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

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        self.check_kind(rule)?;
        Ok(smallvec![self.to.clone()])
    }

    fn enters_mesh(&self) -> Option<AbstractMesh> {
        Some(self.to.mesh().clone())
    }

    /// The lowering writes the sharding of every result from its type, so a reshard needs no operation of its own.
    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let from =
            cx.typed(args[0]).map_or_else(|| Typed::replicated(self.to.mesh(), outs[0].rank()), |t| (*t).clone());
        let added = self.to.unreduced().minus(from.unreduced());
        if cx.is_local() {
            return Ok(args.to_vec());
        }
        if from.kind() != UnreducedKind::Sum {
            return Ok(vec![combined(cx, args[0], &from, self.to.unreduced())?]);
        }
        if added.is_empty() || !cx.has_quirk("addends-in-partitions") {
            Ok(args.to_vec())
        } else {
            self.lower_unreduced(cx, args[0], &from, &added, &outs[0])
        }
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    /// Reshards the cotangent to the sharding of the operand's type.
    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let operand = args[0].aval().cotangent();
        let in_ct = cts[0].as_ref().map(|ct| match (operand.sharding(), &self.from) {
            _ if ct.is_number() => ct.clone(),
            (Some(want), _) => ct.sharded_from(self.to.mesh(), want),
            (None, Some(mesh)) => ct.sharded(&Typed::replicated(mesh, ct.ndim())),
            (None, None) => ct.clone(),
        });
        Ok(vec![in_ct])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let to = dims[0].map_or(Ok(self.to.clone()), |d| axis.inserted(&self.to, d))?;
        Ok((smallvec![Reshard { to, ..self.clone() }.apply(&args[0])], dims.to_vec()))
    }
}

/// Reshards the arrays of a tree. `to` is one sharding or a tree of shardings, where `None` leaves a part unchanged.
///
/// A [`PartitionSpec`](crate::PartitionSpec) without a mesh refers to the context mesh ([`set_mesh`](crate::set_mesh))
/// and names axes of type [`Explicit`](crate::AxisType::Explicit). Data is moved between the devices as needed. The
/// gradient is sharded like the argument.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 2), ("y", 4)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let x = reshard(ones([8, 8]), P!["x", "y"]);
/// assert_eq!(x.type_name(), "float32[8@x,8@y]");
/// let f = jit(|x: Array| reshard(x.sum(1), P![("x", "y")]));
/// assert_eq!(f.call(x)?.type_name(), "float32[8@(x,y)]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn reshard<T: IntoTree>(x: T, to: impl IntoPrefix<Option<ShardingLike>>) -> T::Tree {
    let _line = source::enter();
    let x = x.into_tree();
    let flat = Flat::of(&x);
    let leaves = resharded(&flat, &to.into_prefix())
        .unwrap_or_else(|e| flat.leaves.iter().map(|leaf| Array::from_result(Err(e.clone()), leaf)).collect());
    Flat { leaves, def: flat.def }.build().unwrap_or(x)
}

fn resharded(flat: &Flat, to: &Prefix<Option<ShardingLike>>) -> Result<SmallVec<[Array; 8]>> {
    let targets = to.resolve(&flat.def, "reshard")?;
    let leaves = flat.leaves.iter().zip(&targets).map(|(leaf, like)| match like {
        Some(like) => Array::from_result(leaf.check().and_then(|()| reshard_leaf(leaf, like)), leaf),
        None => leaf.clone(),
    });
    Ok(leaves.collect())
}

fn reshard_leaf(x: &Array, like: &ShardingLike) -> Result<Array> {
    let (to, mesh) = like.typed("reshard", x.shape())?;
    let aval = x.aval();
    if aval.sharding().is_some_and(|typed| typed.mesh().is_all(AxisType::Manual)) {
        return Err(err!(Value, "reshard cannot move a value of type {aval} inside of a shard_map over all axes")
            .help("sum unreduced values with `psum`, and cast the others with `pcast_to`"));
    }
    // Without explicit axes on either side, types contain no sharding that could change.
    if !to.mesh().has_explicit() && aval.sharding().is_none() {
        return Ok(x.clone());
    }
    Ok(Reshard { to, mesh, from: None }.apply(x))
}
