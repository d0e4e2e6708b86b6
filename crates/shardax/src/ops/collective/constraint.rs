//! `with_sharding_constraint`, which constrains the sharding of a value inside a program.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, is_tracing};
use crate::core::sharding_like::{RequestedSharding, ShardingLike};
use crate::core::tree::{Flat, IntoTree};
use crate::error::{Result, err};
use crate::ops::primitive::layout_constraint;
use crate::shape::AxisName;
use crate::sharding::axis_env;
use crate::sharding::context::explicit_mesh;
use crate::sharding::layout::RequestedLayout;
use crate::sharding::typed::entry;
use crate::sharding::{AbstractMesh, AxisType, DimSpec, NamedSharding, PartitionSpec, Sharding, Typed};
use crate::source;

/// Constrains a value to a sharding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShardingConstraint {
    pub sharding: Sharding,
    /// `true` if the value is the cotangent of a value that was moved to this sharding. The cotangent returns to the
    /// operand's devices, if they differ.
    pub is_transposed: bool,
}

impl ShardingConstraint {
    pub fn new(sharding: Sharding) -> Self {
        ShardingConstraint { sharding, is_transposed: false }
    }

    /// Returns the sharding of an array of `shape`, unless the compiler chooses a part of it.
    pub fn decided(&self, shape: &[usize]) -> Option<Sharding> {
        let named = self.sharding.as_named();
        let decided = named.is_none_or(|named| !named.spec().dims().contains(&DimSpec::Unconstrained));
        // An array that the mesh does not divide is padded during the computation, but cannot be returned padded.
        (decided && self.sharding.shard_shape(shape).is_ok()).then(|| self.sharding.clone())
    }

    #[track_caller]
    fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }
}

impl Primitive for ShardingConstraint {
    fn name(&self) -> &'static str {
        "sharding_constraint"
    }

    fn placed_on(&self) -> Option<Sharding> {
        Some(self.sharding.clone())
    }

    fn in_sharding(&self, _operand: usize, aval: &Aval) -> Option<Sharding> {
        self.decided(&aval.shape)
    }

    fn out_sharding(&self, _result: usize, aval: &Aval) -> Option<NamedSharding> {
        self.decided(&aval.shape)?.as_named().cloned()
    }

    fn print_params(&self) -> String {
        format!("sharding={}", self.sharding)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if let Sharding::Named(named) = &self.sharding {
            named.check_rank(args[0].rank()).map_err(|e| {
                e.context("One of with_sharding_constraint arguments is incompatible with its sharding annotation")
            })?;
        }
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let Some(named) = self.sharding.as_named().filter(|named| named.mesh().size() > 1) else {
            return Ok(args.to_vec());
        };
        let attrs = format!("sharding = {}", cx.sharding(named, outs[0].rank()));
        Ok(vec![cx.op("sdy.sharding_constraint", args, &attrs, &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let back = ShardingConstraint { sharding: self.sharding.clone(), is_transposed: !self.is_transposed };
        Ok(vec![cts[0].as_ref().map(|ct| back.apply(ct))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let (Sharding::Named(named), Some(d)) = (&self.sharding, dims[0]) else {
            return Ok((smallvec![self.apply(&args[0])], dims.to_vec()));
        };
        // The compiler chooses how the batch dimension is sharded, unless `spmd_axis_name` names its axes.
        let names = &axis.spmd_names;
        if let Some(name) = named.spec().all_axes().find(|n| names.contains(n)) {
            return Err(err!(
                Value,
                "vmap spmd_axis_name {name:?} cannot appear in with_sharding_constraint spec, but got spec {}",
                named.spec()
            )
            .help("name a mesh axis that the specs do not use"));
        }
        let entry =
            if names.is_empty() { DimSpec::Unconstrained } else { DimSpec::Axes(names.iter().copied().collect()) };
        let mut spec = named.spec().dims().to_vec();
        if spec.len() < d {
            spec.resize(d, DimSpec::None);
        }
        spec.insert(d, entry);
        let sharding = NamedSharding::try_new(named.mesh(), PartitionSpec::new(spec))?.into();
        Ok((smallvec![ShardingConstraint { sharding, ..*self }.apply(&args[0])], dims.to_vec()))
    }
}

/// Constrains the arrays of a tree to `shardings`, which is one sharding or a tree of shardings. With `None`, the
/// compiler chooses the sharding of a subtree; with `DimSpec::Unconstrained`, the sharding of a dimension.
///
/// Use it if the compiler's choice communicates more than necessary or stores too much on each device, for example on the
/// activations between layers. Over axes of type [`Explicit`](crate::AxisType::Explicit), use [`reshard`](crate::reshard)
/// to change a sharding; the constraint only checks it there.
///
/// A [`PartitionSpec`] without a mesh refers to the context mesh ([`set_mesh`](crate::set_mesh)). A
/// [`Format`](crate::Format) also sets the layout in memory, like
/// [`with_layout_constraint`](crate::with_layout_constraint). Outside of `jit`, the arrays are moved. You can use an
/// array with an unevenly split dimension inside a computation, but you cannot return it.
///
/// If a sharding has more dimensions than the array or names an axis that its mesh lacks, the resulting arrays carry
/// the error.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 8)])?;
/// let split = NamedSharding::new(&mesh, P!["i"]);
/// let f = jit(move |x: Array| with_sharding_constraint(x * 2, &split));
/// assert_eq!(f.call(arange(0..8))?.sharding()?.spec()?, &P!["i"]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn with_sharding_constraint<T: IntoTree>(x: T, shardings: impl IntoPrefix<Option<ShardingLike>>) -> T::Tree {
    let _line = source::enter();
    let x = x.into_tree();
    let flat = Flat::of(&x);
    let leaves = constrain(&flat, &shardings.into_prefix(), CONSTRAINT)
        .unwrap_or_else(|e| flat.leaves.iter().map(|leaf| Array::from_result(Err(e.clone()), leaf)).collect());
    Flat { leaves, def: flat.def }.build().unwrap_or(x)
}

const CONSTRAINT: &str = "with_sharding_constraint";

/// Constrains the leaves of a tree to shardings.
pub(crate) fn constrain(
    flat: &Flat,
    shardings: &Prefix<Option<ShardingLike>>,
    what: &str,
) -> Result<SmallVec<[Array; 8]>> {
    let targets = shardings.resolve(&flat.def, what)?;
    Ok(flat
        .leaves
        .iter()
        .zip(&targets)
        .map(|(leaf, like)| match like {
            Some(like) => Array::from_result(constrain_like(leaf, like, what), leaf),
            None => leaf.clone(),
        })
        .collect())
}

/// Constrains an array to the sharding of `like`. Only `with_sharding_constraint` applies the layout; a nested `jit`
/// ignores it.
fn constrain_like(x: &Array, like: &ShardingLike, what: &str) -> Result<Array> {
    let RequestedSharding { sharding, layout } = like.requested(what)?;
    let x = match sharding {
        Some(sharding) => constrain_leaf(x, sharding, what)?,
        None => x.clone(),
    };
    match layout {
        _ if what != CONSTRAINT => Ok(x),
        None => Ok(x),
        Some(RequestedLayout::As(known)) => Ok(layout_constraint::constrain(&x, known.get())),
        Some(RequestedLayout::Auto) => Err(err!(Value, "{what} needs a known layout or none, got `Layout::AUTO`")
            .help("leave the layout out, because the compiler chooses it inside a program")),
    }
}

/// Returns a replicated type for an array whose type has no sharding, if the context mesh has `Explicit` axes.
fn explicit_type(x: &Array) -> Option<Typed> {
    Some(Typed::replicated(&explicit_mesh()?, x.ndim()))
}

/// Constrains a value whose type has a sharding. Over `Explicit` axes the constraint is an assertion; over `Auto` axes
/// it adds to the sharding.
fn constrain_typed(x: &Array, typed: &Typed, sharding: &Sharding) -> Result<Array> {
    let mesh = typed.mesh();
    let Some(named) = sharding.as_named().filter(|named| named.mesh().abstract_mesh().axes() == mesh.axes()) else {
        return Err(err!(
            Value,
            "with_sharding_constraint takes a NamedSharding over the mesh of its operand of type {}, got {sharding}",
            x.type_name()
        )
            .help("move values to other devices with `device_put(x, sharding)`, and to other shardings with `reshard(x, spec)`"));
    };
    named.check_rank(x.ndim())?;
    // Without axes of type `Auto`, the compiler has nothing to choose, so the constraint can only be checked.
    if !mesh.axis_types().contains(&AxisType::Auto) {
        if named.spec().dims().contains(&DimSpec::Unconstrained) {
            return Err(err!(
                Value,
                "{} cannot contain UNCONSTRAINED when no mesh axes are of type Auto, in {mesh}",
                named.spec()
            )
            .help("say how each dimension is split: `reshard(x, spec)`"));
        }
        let want = Typed::from_spec(mesh, named.spec(), x.ndim());
        if want == *typed {
            return Ok(x.clone());
        }
        return Err(err!(
            Value,
            "`with_sharding_constraint` acts as an assert when all axes of mesh are of type `Explicit`. The array sharding: {} did not match the sharding provided: {}, for a value of type {} (AssertionError)",
            typed.spec(),
            want.spec(),
            x.type_name()
        )
        .help("use `reshard(x, spec)` to change the sharding"));
    }
    if let Some(name) = named.spec().all_axes().find(|name| !is_auto(mesh, *name)) {
        return Err(err!(
            Value,
            "PartitionSpec {} passed to with_sharding_constraint can only refer to axes of type Auto, and {name:?} is of type {:?} in {mesh}",
            named.spec(),
            mesh.axis_type(name).unwrap_or_default()
        )
        .help("change the sharding over Explicit axes with `reshard(x, spec)`"));
    }
    let dims = typed.dims().iter().enumerate().map(|(d, explicit)| match named.spec().dims().get(d) {
        Some(DimSpec::Unconstrained) => match explicit.axes() {
            [] => DimSpec::Unconstrained,
            _ => explicit.clone(),
        },
        _ => entry(explicit.axes().iter().chain(named.spec().axes(d)).copied()),
    });
    let sharding = NamedSharding::try_new(named.mesh(), PartitionSpec::new(dims))?;
    Ok(ShardingConstraint::new(Sharding::Named(sharding)).apply(x))
}

/// Applies the sharding of a nested `jit` to a value whose type has one: reshards it over the `Explicit` axes and
/// constrains it over the `Auto` axes.
fn resharded(x: &Array, typed: &Typed, sharding: &Sharding, what: &str) -> Result<Array> {
    let mesh = typed.mesh();
    let Some(named) = sharding.as_named().filter(|named| named.mesh().abstract_mesh().axes() == mesh.axes()) else {
        return Err(err!(Value, "{what} {sharding} is not over the mesh of a value of type {}", x.type_name())
            .help("pass shardings over one mesh to a jit and to those inside it"));
    };
    named.check_rank(x.ndim())?;
    let want = Typed::from_spec(mesh, named.spec(), x.ndim());
    want.check_divides(x.shape())?;
    let x = if want == *typed { x.clone() } else { x.sharded(&want) };
    if !named.spec().all_axes().any(|name| is_auto(mesh, name)) {
        return Ok(x);
    }
    let auto_dims = (0..named.spec().len())
        .map(|d| entry(named.spec().axes(d).iter().copied().filter(|name| is_auto(mesh, *name))));
    let auto_spec = PartitionSpec::new(auto_dims);
    constrain_typed(&x, &want, &Sharding::Named(NamedSharding::try_new(named.mesh(), auto_spec)?))
}

fn is_auto(mesh: &AbstractMesh, name: AxisName) -> bool {
    mesh.axis_type(name) == Some(AxisType::Auto)
}

fn constrain_leaf(x: &Array, sharding: Sharding, what: &str) -> Result<Array> {
    x.check()?;
    if let (Some((mesh, manual)), Sharding::Named(named)) = (axis_env::manual(), &sharding) {
        if let Some(name) = named.spec().all_axes().find(|n| manual.contains(*n)) {
            return Err(err!(
                Value,
                "Axis: {name} of {} is also found in manual_axes: {manual}: inside shard_map each device has its own shard",
                named.spec()
            )
            .help("use in_specs and out_specs to split over manual axes; constraints name the other axes"));
        }
        if *named.mesh() != mesh {
            return Err(err!(
                Value,
                "The context mesh {mesh} should match the mesh of the sharding {sharding} inside shard_map"
            )
            .help("pass a `PartitionSpec` instead of a sharding; it is combined with the context mesh"));
        }
        if mesh.axis_names().all(|n| manual.contains(n)) {
            return Ok(x.clone());
        }
    }
    if let Some(typed) = x.aval().sharding().or(explicit_type(x).as_ref()) {
        return match what {
            CONSTRAINT => constrain_typed(x, typed, &sharding),
            what => resharded(x, typed, &sharding, what),
        };
    }
    if !is_tracing() {
        // The result is a concrete array, which cannot be padded.
        sharding.shard_shape(x.shape())?;
    }
    // The constraint only shards the value, because `device_put` handles memory kinds.
    Ok(ShardingConstraint::new(sharding.in_memory(None)).apply(x))
}
