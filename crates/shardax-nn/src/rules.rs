//! Sharding rules: from logical names of dimensions to mesh axes.

use std::sync::Arc;

use shardax::prelude::*;
use shardax::shape::{AxisName, AxisSet};
use shardax::sharding::{DimSpec, IntoDimSpec, Sharding, Typed};
use shardax::stages::LeafTree;
use shardax::tree::{AxisNames, TreeDef};

use crate::check::value_error;

/// The logical names of an array's dimensions: `["embed", "mlp"]`, or `[Some("embed"), None]`.
pub trait IntoAxisNames {
    /// Returns a name for each dimension that has one.
    fn into_axis_names(self) -> AxisNames;
}

impl<const N: usize> IntoAxisNames for [&'static str; N] {
    fn into_axis_names(self) -> AxisNames {
        self.into_iter().map(Some).collect()
    }
}

impl<const N: usize> IntoAxisNames for [Option<&'static str>; N] {
    fn into_axis_names(self) -> AxisNames {
        self.into()
    }
}

impl IntoAxisNames for &AxisNames {
    fn into_axis_names(self) -> AxisNames {
        self.clone()
    }
}

/// Sharding rules of a model's arrays: from logical names of dimensions to mesh axes.
///
/// Layers name the dimensions of their parameters (`kernel_axes`), and a model those of its activations
/// ([`constrain`](Rules::constrain)). The rules map the names to mesh axes. Data parallel, FSDP, tensor parallel and
/// their combinations are different rules for one model. [`Rules::default`] shards nothing.
///
/// Rules are tried in order. A rule applies to the first dimension of its name, and a mesh axis shards at most one
/// dimension of an array. So a later rule of the same name applies where the axes of the earlier one are taken.
/// Dimensions without a rule are not sharded. These are Flax's `logical_axis_rules`.
///
/// Some layers communicate explicitly where the rules shard them: [`Pipeline`](crate::Pipeline) along its layers,
/// [`MultiHeadAttention`](crate::MultiHeadAttention) along its
/// [sequence](crate::MultiHeadAttentionBuilder::sequence_axis), [`MixtureOfExperts`](crate::MixtureOfExperts) along
/// `expert`.
/// The rows of a batch are called `batch`.
///
/// ```
/// use shardax_nn::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// #[derive(Module, Clone)]
/// struct Mlp {
///     up: Linear,
///     down: Linear,
///     #[tree(static)]
///     rules: Rules,
/// }
///
/// impl Mlp {
///     fn new(rngs: &mut Rngs) -> Self {
///         Mlp {
///             up: Linear::builder(16, 64).kernel_axes(["embed", "mlp"]).build(rngs),
///             down: Linear::builder(64, 16).kernel_axes(["mlp", "embed"]).build(rngs),
///             rules: rngs.rules(),
///         }
///     }
///
///     fn forward(&self, x: Array) -> Array {
///         let hidden = self.rules.constrain(relu(self.up.forward(x)), ["batch", "mlp"]);
///         self.down.forward(hidden)
///     }
/// }
///
/// let mesh = make_mesh([("data", 2), ("model", 4)])?;
/// let tensor_parallel = Rules::new(&mesh, [("batch", "data"), ("mlp", "model")]);
/// let model = tensor_parallel.init(|| Mlp::new(&mut Rngs::new(0).with_rules(&tensor_parallel)))?;
/// assert_eq!(model.up.kernel.sharding()?.spec()?, &P![None, "model"]);
/// assert_eq!(model.up.kernel.addressable_data(0)?.shape(), [16, 16]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    mesh: Option<Mesh>,
    rules: Arc<[(&'static str, DimSpec)]>,
}

impl Rules {
    /// Creates rules over `mesh`: a logical name with a mesh axis, several as a tuple, or `None`.
    pub fn new<A: IntoDimSpec>(mesh: &Mesh, rules: impl IntoIterator<Item = (&'static str, A)>) -> Self {
        let rules = rules.into_iter().map(|(name, axes)| (name, axes.into_dim_spec())).collect();
        Rules { mesh: Some(mesh.clone()), rules }
    }

    /// Adds a rule.
    pub fn and(mut self, name: &'static str, axes: impl IntoDimSpec) -> Self {
        self.rules = self.rules.iter().cloned().chain([(name, axes.into_dim_spec())]).collect();
        self
    }

    /// Adds a rule: dimensions with this name are not split.
    pub fn replicated(self, name: &'static str) -> Self {
        self.and(name, DimSpec::None)
    }

    /// Returns the mesh; `None` if nothing is sharded.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_ref()
    }

    /// Returns the partition spec of an array with these names.
    pub fn spec(&self, names: impl IntoAxisNames) -> PartitionSpec {
        let names = names.into_axis_names();
        let mut dims = vec![DimSpec::None; names.len()];
        let mut done = vec![false; names.len()];
        for (name, spec) in self.rules.iter() {
            let free = |dims: &[DimSpec]| spec.axes().iter().all(|axis| dims.iter().all(|d| !d.axes().contains(axis)));
            if let Some(at) = names.iter().position(|n| n.as_ref() == Some(name))
                && !done[at]
                && free(&dims)
            {
                dims[at] = spec.clone();
                done[at] = true;
            }
        }
        PartitionSpec::new(dims)
    }

    /// Returns the mesh axis that shards dimensions of this name; `None` if no rule shards them, or over one device
    /// alone. Layers that communicate over it by name (a pipeline, a ring, experts) need one axis: several are an
    /// error, and so is an axis that is not in the mesh.
    #[track_caller]
    pub fn axis(&self, name: &str) -> Result<Option<AxisName>> {
        let Some(mesh) = &self.mesh else { return Ok(None) };
        let spec = self.rules.iter().find(|rule| rule.0 == name).map(|rule| rule.1.clone()).unwrap_or_default();
        if let Some(unknown) = spec.axes().iter().find(|axis| mesh.axis_size(**axis).is_none()) {
            return value_error(format!("Rules: {name:?} goes over the axis {unknown}, which {mesh:?} has not"));
        }
        let split: Vec<AxisName> =
            spec.axes().iter().copied().filter(|axis| mesh.axis_size(*axis).is_some_and(|size| size > 1)).collect();
        match split[..] {
            [] => Ok(None),
            [axis] => Ok(Some(axis)),
            _ => value_error(format!("Rules: {name:?} must be split over one axis of the mesh, got {split:?}")),
        }
    }

    /// Returns the mesh axes that shard rows alone: those of the dimension `batch` that no other rule uses, except axes
    /// that are manual already.
    pub(crate) fn row_axes(&self) -> Vec<AxisName> {
        let Some(mesh) = &self.mesh else { return Vec::new() };
        let others = || self.rules.iter().filter(|rule| rule.0 != BATCH).flat_map(|rule| rule.1.axes());
        let manual = manual_axes();
        let alone = |axis: &AxisName| {
            mesh.axis_size(*axis).is_some_and(|size| size > 1) && !manual.contains(axis) && others().all(|a| a != axis)
        };
        self.spec([BATCH]).axes(0).iter().copied().filter(alone).collect()
    }

    /// Returns the place of the devices that shard dimensions of this name.
    #[track_caller]
    pub(crate) fn place(&self, name: &str) -> Result<Place> {
        Ok(match (self.axis(name)?, &self.mesh) {
            (Some(axis), _) if manual_axes().contains(&axis) => Place::Manual(axis),
            (Some(axis), Some(mesh)) => Place::Auto(mesh.clone(), axis),
            _ => Place::Whole,
        })
    }

    /// Returns the sharding of an array with these names; `None` if there is no mesh.
    pub fn sharding(&self, names: impl IntoAxisNames) -> Option<NamedSharding> {
        Some(NamedSharding::new(self.mesh.as_ref()?, self.spec(names)))
    }

    /// Returns the sharding of each array of a model, an optimizer or any tree, by the names that layers gave. Arrays
    /// without names are replicated. `jit` takes the result as `in_shardings` and `out_shardings`, and so does
    /// `device_put`.
    pub fn shardings<T: Tree>(&self, tree: &T) -> Result<LeafTree<Option<Sharding>>> {
        self.of(&tree::structure(tree))
    }

    fn of(&self, def: &TreeDef) -> Result<LeafTree<Option<Sharding>>> {
        let sharding = |names: Option<AxisNames>| {
            let spec = names.map(|names| self.spec(&names)).unwrap_or_default();
            Some(Sharding::from(NamedSharding::new(self.mesh.as_ref()?, spec)))
        };
        LeafTree::try_new(def, def.leaf_infos().into_iter().map(|leaf| sharding(leaf.axis_names)).collect())
    }

    /// Runs `make` (for a model, or a whole training state) in one compiled program whose results are sharded by the
    /// rules. No device ever holds more than its shards.
    ///
    /// Fails if a dimension is not evenly divisible; the message has the key path.
    #[track_caller]
    pub fn init<M: Tree>(&self, make: impl Function<(), Output = M> + Clone) -> Result<M> {
        let shapes = eval_shape(make.clone(), ())?;
        jit(make).out_shardings(&self.shardings(&shapes)?).call(())
    }

    /// Moves the arrays of the tree to the devices given by the rules.
    #[track_caller]
    pub fn device_put<T: Tree>(&self, tree: &T) -> Result<T> {
        device_put(tree, &self.shardings(tree)?)
    }

    /// Constrains the sharding of `x` and of its gradient, in a compiled function; over mesh axes of type
    /// [`Explicit`](AxisType::Explicit) it is [`reshard`], which leaves a dimension whole that they do not divide, such as the
    /// batch of one prompt. In a `shard_map` over some axes the constraint applies to the others. Without a mesh, and where all axes are manual (as in `pmap`), `x` is returned.
    #[track_caller]
    pub fn constrain(&self, x: impl ArrayLike, names: impl IntoAxisNames) -> Array {
        let x = x.into_array();
        let Some(mesh) = &self.mesh else { return x };
        let manual = manual_axes();
        if get_mesh().is_some_and(|context| !manual.is_empty() && manual.len() == context.axes().len()) {
            return x;
        }
        let auto = |dim: &DimSpec| dim.axes().iter().filter(|axis| !manual.contains(axis)).copied().collect();
        let spec = PartitionSpec::new(self.spec(names).dims().iter().map(auto));
        let context = get_abstract_mesh().filter(|context| context.axes() == mesh.axes());
        let context = context.as_ref().unwrap_or_else(|| mesh.abstract_mesh());
        if context.axes_of_type(AxisType::Explicit).next().is_none() {
            return with_sharding_constraint(x, &NamedSharding::new(mesh, spec));
        }
        let of_type = |ty: AxisType| {
            let own = |dim: &DimSpec| {
                DimSpec::Axes(dim.axes().iter().filter(|a| context.axis_type(**a) == Some(ty)).copied().collect())
            };
            PartitionSpec::new(spec.dims().iter().map(own))
        };
        // More entries than dimensions are an error of `reshard`.
        let divided = |(dim, n): (&DimSpec, &usize)| {
            let parts = dim.axes().iter().filter_map(|axis| context.axis_size(*axis)).product();
            if n.is_multiple_of(parts) { dim.clone() } else { DimSpec::None }
        };
        let explicit = of_type(AxisType::Explicit);
        let explicit =
            PartitionSpec::new(explicit.dims().iter().zip(x.shape().iter().chain(std::iter::repeat(&0))).map(divided));
        let x = match manual.is_empty() || explicit.len() > x.ndim() {
            true => reshard(x, &NamedSharding::new(mesh, explicit)),
            false => {
                let to = Typed::of_spec(context, &explicit, x.ndim());
                reshard(x, to)
            }
        };
        match of_type(AxisType::Auto) {
            auto if auto.all_axes().next().is_some() => with_sharding_constraint(x, &NamedSharding::new(mesh, auto)),
            _ => x,
        }
    }
}

/// The logical name of the batch dimension.
const BATCH: &str = "batch";

/// The devices that something is sharded over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// No sharding.
    Whole,
    /// A manual axis: each device has its shard.
    Manual(AxisName),
    /// An axis managed by the compiler, until a `shard_map` makes it manual.
    Auto(Mesh, AxisName),
}

/// Returns the axes that one of the arrays varies over, and `axis`.
pub(crate) fn axes_of<T: Tree>(tree: &T, axis: AxisName) -> AxisSet {
    tree::leaves(tree).iter().map(Array::vma).fold(axis_index(axis).vma(), |all, vma| all.union(&vma))
}

/// Casts every array to vary over these axes. Gradients of a loop's operands are then summed over devices once, after
/// the loop, and not in each of its steps.
pub(crate) fn varying<T: Tree>(tree: T, axes: &AxisSet) -> Result<T> {
    let cast = |x: Array| match axes.minus(&x.vma()) {
        missing if missing.is_empty() => x,
        missing => pcast(x, &missing.iter().collect::<Vec<_>>()[..]),
    };
    tree::map(cast, tree)
}
