//! Functions in which mesh axes have other types: `auto_axes` and `explicit_axes`.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::function::{Function, identity_of};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::program::Aval;
use crate::core::program::trace::{Traced, trace};
use crate::core::sharding_like::ShardingLike;
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::error::{Result, err};
use crate::interpret::eval::eval;
use crate::interpret::flat::{FlatFn, flat_fn, record};
use crate::ops::primitive::call::Call;
use crate::ops::primitive::reshard::Reshard;
use crate::shape::{AxisName, IntoAxisNames};
use crate::sharding::context::{adopting, with_abstract_mesh};
use crate::sharding::{AbstractMesh, AxisType, Sharding, Typed, get_abstract_mesh};
use crate::source;

/// A function in which mesh axes are of type `Auto`; see [`auto_axes`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct AutoAxes<F, Args> {
    f: F,
    axes: Option<SmallVec<[AxisName; 2]>>,
    out_sharding: Prefix<Option<ShardingLike>>,
    args: PhantomData<fn(Args)>,
}

/// A function in which mesh axes are of type `Explicit`; see [`explicit_axes`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct ExplicitAxes<F, Args> {
    f: F,
    axes: Option<SmallVec<[AxisName; 2]>>,
    in_sharding: Prefix<Option<ShardingLike>>,
    args: PhantomData<fn(Args)>,
}

/// Lets the compiler choose how values inside of `f` are split over the mesh axes, which have type
/// [`Auto`](AxisType::Auto) there. [`out_sharding`](AutoAxes::out_sharding) sets the shardings in the types of the
/// results.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let x = reshard(ones([8, 4]), P!["x"]);
/// // Sorting has no sharding rule for a dimension that is split.
/// let sorted = auto_axes(|x: Array| sort(x, 0)).out_sharding(P!["x"]);
/// assert_eq!(sorted.call(x)?.type_name(), "float32[8@x,4]");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// You can use it for operations that have no sharding rule, or whose best sharding you do not know.
///
/// # Errors
/// Calling it returns an error inside of `shard_map`.
pub fn auto_axes<Args: Tree, F: Function<Args>>(f: F) -> AutoAxes<F, Args> {
    AutoAxes { f, axes: None, out_sharding: Prefix::Leaf(None), args: PhantomData }
}

/// Makes mesh axes [`Explicit`](AxisType::Explicit) inside of `f`, so that types contain shardings there.
/// [`in_sharding`](ExplicitAxes::in_sharding) sets the shardings of the arguments.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let _mesh = set_mesh(&make_mesh([("x", 8)])?.auto())?;
/// let f = explicit_axes(|x: Array| {
///     assert_eq!(x.type_name(), "float32[8@x]");
///     x * 2
/// });
/// let y = jit(f.in_sharding(P!["x"])).call(ones(8))?;
/// assert_eq!(y.type_name(), "float32[8]");
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn explicit_axes<Args: Tree, F: Function<Args>>(f: F) -> ExplicitAxes<F, Args> {
    ExplicitAxes { f, axes: None, in_sharding: Prefix::Leaf(None), args: PhantomData }
}

impl<F, Args> AutoAxes<F, Args> {
    /// Sets the axes. Default: all.
    pub fn axes(mut self, axes: impl IntoAxisNames) -> Self {
        self.axes = Some(axes.into_axis_names());
        self
    }

    /// Sets the shardings of the results outside of the function: one, or a tree of them.
    pub fn out_sharding(mut self, sharding: impl IntoPrefix<Option<ShardingLike>>) -> Self {
        self.out_sharding = sharding.into_prefix();
        self
    }
}

impl<F, Args> AutoAxes<F, Args> {
    /// Reshards the results of `f` from the inner mesh to the requested shardings over the outer one.
    fn reshard_results(&self, out: Flat, inner: &AbstractMesh, outer: &AbstractMesh) -> Result<Flat> {
        let to = self.out_sharding.resolve(&out.def, "auto_axes out_sharding")?;
        let leaves = out.leaves.iter().zip(&to).map(|(leaf, like)| {
            let Some(like) = like else {
                return Err(err!(Type, "`out_sharding` is missing for a result of type {}", leaf.type_name())
                    .help("say how results are sharded: `auto_axes(f).out_sharding(P![..])`"));
            };
            leaf.check()?;
            Ok(leaf.sharded_from(inner, &typed_over(like, outer, leaf)?))
        });
        Ok(Flat { leaves: leaves.collect::<Result<_>>()?, def: out.def })
    }
}

impl<F, Args> ExplicitAxes<F, Args> {
    /// Sets the axes. Default: all.
    pub fn axes(mut self, axes: impl IntoAxisNames) -> Self {
        self.axes = Some(axes.into_axis_names());
        self
    }

    /// Sets the shardings of the arguments inside of the function: one, or a tree of them.
    pub fn in_sharding(mut self, sharding: impl IntoPrefix<Option<ShardingLike>>) -> Self {
        self.in_sharding = sharding.into_prefix();
        self
    }
}

/// The mesh of the context; without one, the mesh of the arguments.
fn mesh_of(flat: &Flat) -> Option<AbstractMesh> {
    let mut leaves = flat.leaves.iter();
    get_abstract_mesh().or_else(|| leaves.find_map(|leaf| Some(leaf.aval_ref()?.sharding()?.mesh().clone())))
}

/// The mesh of a requested sharding, if it has one.
fn mesh_of_sharding(sharding: &ShardingLike) -> Option<AbstractMesh> {
    match sharding {
        ShardingLike::Typed(typed) => Some(typed.mesh().clone()),
        ShardingLike::Sharding(sharding) => Some(sharding.as_named()?.mesh().abstract_mesh().clone()),
        _ => None,
    }
}

/// The mesh with the named axes, or all, of this type.
fn changed(mesh: &AbstractMesh, axes: Option<&[AxisName]>, ty: AxisType, what: &str) -> Result<AbstractMesh> {
    let axes: Vec<AxisName> = axes.map_or_else(|| mesh.axis_names().collect(), <[_]>::to_vec);
    if let Some(name) = axes.iter().find(|name| mesh.axis_type(**name) == Some(AxisType::Manual)) {
        return Err(err!(
            NotImplemented,
            "{what} cannot change the type of axis {name:?}, which is Manual in the context mesh {mesh}"
        )
        .help("inside of `shard_map` leave manual axes out: `.axes([..])` names the others"));
    }
    mesh.update_axis_types(axes.into_iter().map(|name| (name, ty)))
}

impl<F: Function<Args>, Args: Tree> Function<Args> for AutoAxes<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((&self.axes, &self.out_sharding), self.f.identity())
    }

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let requested = match &self.out_sharding {
            Prefix::Leaf(Some(sharding)) => Some(sharding),
            _ => None,
        };
        let mesh = mesh_of(&flat).or_else(|| mesh_of_sharding(requested?));
        let Some(outer) = mesh else { return self.f.apply(args) };
        let inner = changed(&outer, self.axes.as_deref(), AxisType::Auto, "auto_axes")?;
        if inner == outer {
            return self.f.apply(args);
        }
        // Inside, the arguments keep the part of their sharding over axes that stay explicit. Outside, the results get
        // the requested shardings.
        let (enter, f) = (|x: &Array| over_mesh(x, &inner), flat_fn(&self.f));
        in_mesh("auto_axes", &flat, &inner, &enter, &f, &|out| self.reshard_results(out, &inner, &outer))?.build()
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for ExplicitAxes<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>((&self.axes, &self.in_sharding), self.f.identity())
    }

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let Some(outer) = mesh_of(&flat) else {
            return Err(err!(
                Value,
                "Context mesh cannot be empty. Please use `set_mesh` to set the mesh for explicit_axes"
            )
            .help("set a context mesh with `set_mesh(&mesh)`"));
        };
        let inner = changed(&outer, self.axes.as_deref(), AxisType::Explicit, "explicit_axes")?;
        if inner == outer {
            return self.f.apply(args);
        }
        let to = self.in_sharding.resolve(&flat.def, "explicit_axes in_sharding")?;
        flat.leaves.iter().try_for_each(Array::check)?;
        // The arguments enter the inner mesh and the results leave it within the recorded call, so that a transformation
        // of the call transforms the reshards too.
        let out = record_call("explicit_axes", &flat, &|args| {
            let leaves = args
                .leaves
                .iter()
                .enumerate()
                .map(|(i, x): (usize, &Array)| match &to[i] {
                    _ if x.is_number() => Ok(x.clone()),
                    Some(like) => Ok(x.sharded_from(&outer, &typed_over(like, &inner, x)?)),
                    None => Err(err!(Type, "`in_sharding` is missing for an argument of type {}", x.type_name())
                        .help("say how arguments are sharded: `explicit_axes(f).in_sharding(P![..])`")),
                })
                .collect::<Result<_>>()?;
            let args = Flat { leaves, def: args.def.clone() };
            let out = with_abstract_mesh(Some(inner.clone()), || flat_fn(&self.f)(&args))?;
            Ok(Flat { leaves: out.leaves.iter().map(|leaf| over_mesh(leaf, &outer)).collect(), def: out.def })
        })?;
        out.build()
    }
}

/// Applies `f` with all axes `Auto` inside, and shards the result like `like` outside. If types have no shardings, `f`
/// is called directly.
#[track_caller]
pub(crate) fn with_auto_axes(args: &[&Array], like: &Aval, f: impl Fn(&[Array]) -> Result<Array>) -> Result<Array> {
    let args: Vec<Array> = args.iter().map(|&x| x.clone()).collect();
    match like.sharding() {
        Some(typed) if typed.mesh().has_explicit() => {
            auto_axes(|args: Vec<Array>| f(&args)).out_sharding(typed.clone()).apply((args,))
        }
        _ => f(&args),
    }
}

/// The requested sharding over this mesh.
fn typed_over(like: &ShardingLike, mesh: &AbstractMesh, x: &Array) -> Result<Typed> {
    let spec = match like {
        ShardingLike::Spec(spec) => spec.clone(),
        ShardingLike::Typed(typed) => typed.spec(),
        like => like.resolve("out_sharding")?.spec()?.clone(),
    };
    Typed::requested(mesh, &spec, x.shape(), "out_sharding")
}

/// Reshards `x` to the part of its sharding over the explicit axes of this mesh.
fn over_mesh(x: &Array, mesh: &AbstractMesh) -> Array {
    match x.aval_ref().and_then(Aval::sharding) {
        Some(typed) => x.sharded(&Typed::from_spec(mesh, &typed.spec(), typed.rank())),
        None => x.clone(),
    }
}

/// Traces `f` with `inner` as the context mesh. `enter` and `leave` are applied outside of it.
fn in_mesh(
    name: &'static str,
    flat: &Flat,
    inner: &AbstractMesh,
    enter: &dyn Fn(&Array) -> Array,
    f: FlatFn<'_>,
    leave: &dyn Fn(Flat) -> Result<Flat>,
) -> Result<Flat> {
    record_call(name, flat, &|args| {
        let leaves = args.leaves.iter().map(enter).collect();
        let args = Flat { leaves, def: args.def.clone() };
        leave(with_abstract_mesh(Some(inner.clone()), || f(&args))?)
    })
}

#[track_caller]
fn record_call(name: &'static str, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    record(flat, f, Location::caller(), |program, _, _: &TreeDef| {
        Ok(Arc::new(Call { name: name.to_owned(), program: program.into() }))
    })
}

/// Shards the array that `f` creates, and records the sharding in its type: JAX's `out_sharding` argument of functions
/// that create arrays (random draws, [`arange`](crate::numpy::arange), [`one_hot`](crate::nn::one_hot), initializers).
/// Each device computes its part.
///
/// The values do not depend on the sharding. `f` can also use arrays whose types have shardings; inside of `f`, the
/// compiler chooses how values are split.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let w = out_sharding(P!["x", None], || random::normal(random::key(0), [16, 4]));
/// assert_eq!(w.type_name(), "float32[16@x,4]");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if there is no mesh, if the sharding names an axis that is not
/// [`Explicit`](AxisType::Explicit), or if it does not divide a dimension.
#[track_caller]
pub fn out_sharding(sharding: impl Into<ShardingLike>, f: impl FnOnce() -> Array) -> Array {
    let _line = source::enter();
    let out = sharding.into();
    let mut like = Array::from(0.0f32);
    let result = mesh_for(&Flat::default(), &out).and_then(|outer| {
        let inner = outer.without_explicit();
        // Traces `f` to find the arrays that it uses, because they must be arguments of the call.
        let Traced { program, captures } = with_abstract_mesh(Some(inner), || {
            adopting(|| {
                trace(&[], |_| {
                    like = f();
                    Ok(vec![like.clone()])
                })
            })
        })?;
        in_auto_axes(&captures, &out, |args| match eval(&program, args)?.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(err!(
                Runtime,
                "internal error: a computation with `out_sharding` has no result; please report this"
            )),
        })
    });
    Array::from_result(result, &like)
}

/// The mesh of the context, of the arrays, or of the requested sharding.
fn mesh_for(flat: &Flat, out: &ShardingLike) -> Result<AbstractMesh> {
    mesh_of(flat).or_else(|| mesh_of_sharding(out)).ok_or_else(|| {
        err!(Value, "out_sharding requires a non-empty mesh in context, got {out:?}")
            .help("set one with `set_mesh(&mesh)`, or pass `NamedSharding::new(&mesh, spec)`")
    })
}

/// Applies `f` with all axes of the mesh of type `Auto`, and reshards the result as requested.
#[track_caller]
pub(crate) fn in_auto_axes(args: &[Array], out: &ShardingLike, f: impl Fn(&[Array]) -> Result<Array>) -> Result<Array> {
    let flat = Flat::of(&args.to_vec());
    let outer = mesh_for(&flat, out)?;
    let inner = outer.without_explicit();
    // If the sharding's mesh is not in context, the result determines the devices that the program runs on.
    let mesh = match out {
        ShardingLike::Sharding(Sharding::Named(named)) if get_abstract_mesh().is_none() => Some(named.mesh().clone()),
        _ => None,
    };
    in_mesh(
        "out_sharding",
        &flat,
        &inner,
        &|x| over_mesh(x, &inner),
        &|args: &Flat| Ok(Flat::of(&f(&args.leaves)?)),
        &|results: Flat| {
            let leaves = results.leaves.iter().map(|y| {
                y.check()?;
                let to = typed_over(out, &outer, y)?;
                Ok(Reshard { to, mesh: mesh.clone(), from: Some(inner.clone()) }.apply(y))
            });
            Ok(Flat { leaves: leaves.collect::<Result<_>>()?, def: results.def })
        },
    )?
    .build()
}
