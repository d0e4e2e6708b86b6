//! Sharding rules: from logical names of dimensions to mesh axes.

use std::sync::Arc;

use shardax::prelude::*;
use shardax::shape::{AxisName, AxisSet};
use shardax::sharding::{DimSpec, IntoDimSpec, Sharding, Typed};
use shardax::stages::LeafTree;
use shardax::tree::AxisNames;

use crate::check::value_error;

/// The logical names of an array's dimensions: `["embed", "mlp"]`, or `[Some("embed"), None]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name the dimensions of an array",
    label = "not names of dimensions",
    note = "a name for each dimension, or `Some` and `None`: `[\"embed\", \"mlp\"]`, `[Some(\"embed\"), None]`"
)]
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
/// Layers name the dimensions of their parameters (`kernel_axes`), and a model names the dimensions of its activations
/// ([`constrain`](Rules::constrain)). The rules map the names to mesh axes. Data parallel, FSDP, tensor parallel and
/// their combinations are different rules for the same model. [`Rules::default`] shards nothing.
///
/// Rules are tried in order. A rule applies to the first dimension with its name, and a mesh axis shards at most one
/// dimension of an array. Therefore a later rule with the same name applies if the axes of the earlier rule are already used.
/// Dimensions without a rule are not sharded. These are Flax's `logical_axis_rules`.
///
/// Some layers communicate explicitly if the rules shard them: [`Pipeline`](crate::Pipeline) along its layers,
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
    /// Creates rules over `mesh`: pairs of a logical name and a mesh axis, a tuple of axes, or `None`.
    pub fn new<A: IntoDimSpec>(mesh: &Mesh, rules: impl IntoIterator<Item = (&'static str, A)>) -> Self {
        let rules = rules.into_iter().map(|(name, axes)| (name, axes.into_dim_spec())).collect();
        Rules { mesh: Some(mesh.clone()), rules }
    }

    /// Adds a rule.
    pub fn and(mut self, name: &'static str, axes: impl IntoDimSpec) -> Self {
        self.rules = self.rules.iter().cloned().chain([(name, axes.into_dim_spec())]).collect();
        self
    }

    /// Adds a rule for dimensions that are not split.
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
        let mut has_rule = vec![false; names.len()];
        for (name, spec) in self.rules.iter() {
            // An axis can split only one dimension, so a later rule with the same axis does not apply.
            let uses_free_axes = spec.axes().iter().all(|axis| dims.iter().all(|d| !d.axes().contains(axis)));
            if let Some(index) = names.iter().position(|n| n.as_ref() == Some(name))
                && !has_rule[index]
                && uses_free_axes
            {
                dims[index] = spec.clone();
                has_rule[index] = true;
            }
        }
        PartitionSpec::new(dims)
    }

    /// Returns the mesh axis that shards dimensions of this name, or `None` if no rule shards them over several devices.
    /// Layers that communicate over this axis by name (a pipeline, a ring, experts) need a single axis.
    ///
    /// # Errors
    /// Returns an error if the rule has several axes, or one that the mesh does not have.
    #[track_caller]
    pub fn axis(&self, name: &str) -> Result<Option<AxisName>> {
        let Some(mesh) = &self.mesh else { return Ok(None) };
        let spec = self.rules.iter().find(|rule| rule.0 == name).map(|rule| rule.1.clone()).unwrap_or_default();
        if let Some(unknown) = spec.axes().iter().find(|axis| mesh.axis_size(**axis).is_none()) {
            return value_error(format!(
                "Rules: {name:?} is sharded over the axis {unknown}, which is not in {mesh:?}"
            ));
        }
        let split: Vec<AxisName> =
            spec.axes().iter().copied().filter(|axis| mesh.axis_size(*axis).is_some_and(|size| size > 1)).collect();
        match split[..] {
            [] => Ok(None),
            [axis] => Ok(Some(axis)),
            _ => value_error(format!("Rules: {name:?} must be split over one axis of the mesh, got {split:?}")),
        }
    }

    /// Returns the mesh axes that only shard rows: the axes of the dimension `batch` that no other rule uses, except for axes
    /// that are already manual.
    pub(crate) fn row_axes(&self) -> Vec<AxisName> {
        let Some(mesh) = &self.mesh else { return Vec::new() };
        let used: Vec<AxisName> =
            self.rules.iter().filter(|rule| rule.0 != BATCH).flat_map(|rule| rule.1.axes().iter().copied()).collect();
        let manual = manual_axes();
        let spec = self.spec([BATCH]);
        let axes = spec.axes(0).iter().copied().filter(|axis| mesh.axis_size(*axis).is_some_and(|size| size > 1));
        axes.filter(|axis| !manual.contains(axis) && !used.contains(axis)).collect()
    }

    /// Returns for each dimension of an array with these names whether the rules' axes divide its size.
    pub(crate) fn divides<const N: usize>(&self, names: impl IntoAxisNames, shape: [usize; N]) -> [bool; N] {
        let spec = self.spec(names);
        std::array::from_fn(|d| {
            let axes = spec.dims().get(d).map(DimSpec::axes).unwrap_or_default();
            let sizes = axes.iter().filter_map(|axis| self.mesh.as_ref()?.axis_size(*axis));
            shape[d].is_multiple_of(sizes.product())
        })
    }

    /// Returns how dimensions of this name are sharded.
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

    /// Returns the sharding of each array of a model, an optimizer or any other tree, from the names that layers chose. Arrays
    /// without names are replicated. You can pass the result to `in_shardings` and `out_shardings` of `jit`, and to
    /// `device_put`.
    ///
    /// # Errors
    /// This method fails only because of an internal error, because it creates one sharding for each array.
    pub fn shardings<T: Tree>(&self, tree: &T) -> Result<LeafTree<Option<Sharding>>> {
        let def = tree::structure(tree);
        let shardings = def.leaf_infos().into_iter().map(|leaf| {
            let spec = leaf.axis_names.map(|names| self.spec(&names)).unwrap_or_default();
            Some(Sharding::from(NamedSharding::new(self.mesh.as_ref()?, spec)))
        });
        LeafTree::try_new(&def, shardings.collect())
    }

    /// Runs `make`, which creates a model or a training state, in one compiled program whose results are sharded by the
    /// rules. No device ever stores more than its shards.
    ///
    /// # Errors
    /// Returns an error with the key path of an array whose dimensions are not evenly divisible.
    #[track_caller]
    pub fn init<M: Tree>(&self, make: impl Function<(), Output = M> + Clone) -> Result<M> {
        let shapes = eval_shape(make.clone(), ())?;
        jit(make).out_shardings(&self.shardings(&shapes)?).call(())
    }

    /// Moves the arrays of a tree to devices as the rules say.
    ///
    /// # Errors
    /// Returns an error if a dimension is not divisible by the mesh axes that split it, or if an array was deleted
    /// or carries an error.
    #[track_caller]
    pub fn device_put<T: Tree>(&self, tree: &T) -> Result<T> {
        device_put(tree, &self.shardings(tree)?)
    }

    /// Constrains the sharding of `x` and of its gradient in a compiled function. Over mesh axes of type
    /// [`Explicit`](AxisType::Explicit) this is a [`reshard`], but a dimension that the axes do not divide is not split (for
    /// example, the batch of a single prompt). In a `shard_map` over some axes, the constraint applies to the other axes. Without
    /// a mesh, or if all axes are manual (as in `pmap`), this returns `x`.
    #[track_caller]
    pub fn constrain(&self, x: impl ArrayLike, names: impl IntoAxisNames) -> Array {
        let x = x.into_array();
        let Some(mesh) = &self.mesh else { return x };
        let manual = manual_axes();
        if get_mesh().is_some_and(|context| !manual.is_empty() && manual.len() == context.axes().len()) {
            return x;
        }
        let spec = with_axes(&self.spec(names), |axis| !manual.contains(&axis));
        let context = get_abstract_mesh().filter(|context| context.axes() == mesh.axes());
        let context = context.as_ref().unwrap_or_else(|| mesh.abstract_mesh());
        if context.axes_of_type(AxisType::Explicit).next().is_none() {
            return with_sharding_constraint(x, &NamedSharding::new(mesh, spec));
        }
        // Axes of both types may split `x`: explicit axes by a reshard, and the others by a constraint.
        let explicit = with_axes(&spec, |axis| context.axis_type(axis) == Some(AxisType::Explicit));
        let auto = with_axes(&spec, |axis| context.axis_type(axis) == Some(AxisType::Auto));
        // If the spec has more entries than `x` has dimensions, `reshard` returns an error.
        let sizes = x.shape().iter().chain(std::iter::repeat(&0));
        let explicit = PartitionSpec::new(explicit.dims().iter().zip(sizes).map(|(dim, n)| {
            let parts = dim.axes().iter().filter_map(|axis| context.axis_size(*axis)).product();
            if n.is_multiple_of(parts) { dim.clone() } else { DimSpec::None }
        }));
        let x = if manual.is_empty() || explicit.len() > x.ndim() {
            reshard(x, &NamedSharding::new(mesh, explicit))
        } else {
            let target = Typed::from_spec(context, &explicit, x.ndim());
            reshard(x, target)
        };
        if auto.all_axes().next().is_none() {
            return x;
        }
        with_sharding_constraint(x, &NamedSharding::new(mesh, auto))
    }
}

/// Returns the spec with only the axes that `keep` accepts.
fn with_axes(spec: &PartitionSpec, keep: impl Fn(AxisName) -> bool) -> PartitionSpec {
    let dims = spec.dims().iter();
    PartitionSpec::new(dims.map(|dim| dim.axes().iter().copied().filter(|axis| keep(*axis)).collect::<DimSpec>()))
}

/// The logical name of the batch dimension.
const BATCH: &str = "batch";

/// The way in which a dimension is sharded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// It is not sharded.
    Whole,
    /// A manual axis: each device has its shard.
    Manual(AxisName),
    /// An axis that the compiler partitions, until a `shard_map` makes it manual.
    Auto(Mesh, AxisName),
}

/// Returns the axes over which at least one of the arrays varies, and `axis`.
pub(crate) fn axes_of<T: Tree>(tree: &T, axis: AxisName) -> AxisSet {
    tree::leaves(tree).iter().map(Array::vma).fold(axis_index(axis).vma(), |all, vma| all.union(&vma))
}

/// Casts every array to vary over these axes. Gradients of a loop's operands are then summed over devices only once, after
/// the loop, instead of in each of its steps.
pub(crate) fn varying<T: Tree>(tree: T, axes: &AxisSet) -> Result<T> {
    tree::map(
        |x: Array| match axes.minus(&x.vma()) {
            missing if missing.is_empty() => x,
            missing => pcast(x, &missing.iter().collect::<Vec<_>>()[..]),
        },
        tree,
    )
}
