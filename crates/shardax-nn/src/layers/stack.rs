//! A stack of equal layers.

use shardax::function::IntoOutput;
use shardax::prelude::*;
use shardax::tree::{Flat, Metadata, Node, Unflatten};

use super::Layer;
use crate::check::value_error;
use crate::shardings::{for_loop_over_layers, reshard_like};
use crate::variable::{Kind, kind};
use crate::{Module, Rngs};

/// Several layers of the same type and shape as one layer: each array contains the arrays of all layers, along a new
/// first dimension. You should use a stack for deep models, because a program runs the layers in one loop, so that
/// compile time does not depend on their number.
///
/// In Flax, this is `nnx.vmap` of a constructor and `nnx.scan` of a layer, with the same first weights.
///
/// ```
/// use shardax_nn::prelude::*;
/// let blocks = Stack::new(12, &mut Rngs::new(0), |rngs| Sequential((Linear::new(8, 8, rngs), Apply(relu))))?;
/// let mut blocks = blocks.checkpoint(CheckpointPolicy::NothingSaveable);
/// let y = blocks.forward(ones([2, 8]));
/// assert_eq!(y.shape(), [2, 8]);
/// assert_eq!(blocks.layers.0.0.kernel.shape(), [12, 8, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stack<L> {
    /// All layers: each array has an additional first dimension.
    pub layers: L,
    options: Options,
}

/// The options of the loop over the layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Options {
    checkpoint: Option<CheckpointPolicy>,
    unroll: usize,
    axis_name: Option<&'static str>,
}

impl<L: Module> Stack<L> {
    /// Creates `depth` layers. The streams of `rngs` are split, so that each layer has different streams.
    ///
    /// # Errors
    /// Returns an error if `depth` is 0, or if `make` fails.
    #[track_caller]
    pub fn new(depth: usize, rngs: &mut Rngs, make: impl Fn(&mut Rngs) -> L) -> Result<Self> {
        if depth == 0 {
            return value_error("Stack: there must be at least one layer, got 0");
        }
        let layers = vmap(|mut rngs: Rngs| make(&mut rngs)).call(rngs.split(depth))?;
        Ok(Stack::around(layers))
    }

    /// Stacks the arrays of these layers along a new first dimension.
    ///
    /// # Errors
    /// Returns an error if there are no layers, or if they differ in structure or shapes.
    #[track_caller]
    pub fn from_layers(layers: &[L]) -> Result<Self> {
        let flats: Vec<Flat> = layers.iter().map(Flat::of).collect();
        let Some(first) = flats.first() else { return value_error("Stack: there must be at least one layer, got 0") };
        if let Some(index) = flats.iter().position(|flat| flat.def != first.def) {
            return value_error(format!("Stack: layer {index} has another structure than the first"));
        }
        let leaves: Vec<Array> = (0..first.leaves.len())
            .map(|i| stack(&flats.iter().map(|flat| flat.leaves[i].clone()).collect::<Vec<_>>(), 0))
            .collect();
        leaves.iter().try_for_each(Array::check)?;
        Ok(Stack::around(tree::unflatten(&first.def, &leaves)?))
    }

    fn around(layers: L) -> Self {
        Stack { layers, options: Options { checkpoint: None, unroll: 1, axis_name: None } }
    }

    /// Checkpoints each layer. Only the values between layers, and the residuals that the policy selects inside them,
    /// are stored, and everything else is recomputed for the gradient. You can use this if the residuals of all layers,
    /// which are stored by default, do not fit in memory.
    pub fn checkpoint(mut self, policy: CheckpointPolicy) -> Self {
        self.options.checkpoint = Some(policy);
        self
    }

    /// Sets the number of layers in each iteration of the compiled loop. A larger number can be faster, but takes
    /// longer to compile. Default 1.
    pub fn unroll(mut self, layers: usize) -> Self {
        self.options.unroll = layers;
        self
    }

    /// Sets the logical name of the dimension of layers, so that [`Rules`](crate::Rules) can shard it.
    pub fn axis_name(mut self, name: &'static str) -> Self {
        self.options.axis_name = Some(name);
        self
    }

    /// Returns the number of layers; 0 if they have no arrays.
    pub fn depth(&self) -> usize {
        tree::leaves(&self.layers).first().and_then(|x| x.shape().first().copied()).unwrap_or(0)
    }

    /// Returns one of the layers.
    ///
    /// # Errors
    /// Returns an error if the index is not less than the depth.
    #[track_caller]
    pub fn layer(&self, index: usize) -> Result<L> {
        if index >= self.depth() {
            return value_error(format!("Stack: there is no layer {index} of {}", self.depth()));
        }
        tree::map(|x| x.get(index), for_loop_over_layers(self.layers.clone())?)
    }

    /// Scans over the layers: `f` receives each layer and the previous carry, and returns the next carry and an output.
    /// Returns the last carry, and the outputs along a new first dimension. If mesh axes split the layers, like the stages of a
    /// [`Pipeline`](crate::Pipeline), they are gathered.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let blocks = Stack::new(4, &mut Rngs::new(0), |rngs| Linear::new(8, 8, rngs))?;
    /// let (y, norms): (Array, Array) = blocks.scan(|layer, x: Array| {
    ///     let y = layer.forward(&x) + x;
    ///     (y.clone(), y.square().sum(..))
    /// }, ones([2, 8]))?;
    /// assert_eq!((y.shape(), norms.shape()), (&[2, 8][..], &[4][..]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `f` fails, or if it changes the structure, a dtype or a shape of the carry.
    #[track_caller]
    pub fn scan<C, Y, R>(&self, f: impl Fn(&L, C) -> R, carry: C) -> Result<(C, Y)>
    where
        C: Tree,
        Y: Tree,
        R: IntoOutput<Output = (C, Y)>,
    {
        let layers = for_loop_over_layers(self.layers.clone())?;
        let options = ScanOptions::new().unroll(self.options.unroll);
        let Some(policy) = &self.options.checkpoint else {
            return options.scan(|carry: C, layer: L| f(&layer, carry), carry, layers);
        };
        // XLA never merges the body of a loop with the body of the gradient's loop. Therefore the recomputation needs no
        // protection against common subexpression elimination.
        let apply =
            checkpoint(|layer: L, carry: C| f(&layer, carry).into_output()).policy(policy.clone()).prevent_cse(false);
        options.scan(|carry: C, layer: L| Function::<(L, C)>::apply(&apply, (layer, carry)), carry, layers)
    }

    /// Scans over layers with state, such as running statistics or caches. Instead of a copy, `f` receives a mutable
    /// reference to each layer.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut norms = Stack::new(3, &mut Rngs::new(0), |rngs| BatchNorm::new(8, rngs))?;
    /// let y = norms.update_each(|norm, x: Array| norm.forward(x), random::normal(random::key(0), [4, 8]))?;
    /// assert_eq!((y.shape(), norms.layers.mean.shape()), (&[4, 8][..], &[3, 8][..]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `f` fails, or if it changes the structure, a dtype or a shape of the carry or of a layer.
    #[track_caller]
    pub fn update_each<C, R>(&mut self, f: impl Fn(&mut L, C) -> R, carry: C) -> Result<C>
    where
        C: Tree,
        R: IntoOutput<Output = C>,
    {
        let (carry, layers) = self.scan(
            |layer: &L, carry: C| -> Result<(C, L)> {
                let mut layer = layer.clone();
                let carry = f(&mut layer, carry).into_output()?;
                Ok((carry, layer))
            },
            carry,
        )?;
        self.layers = layers;
        Ok(carry)
    }

    /// Applies all layers at once, each layer to one slice of `xs` along the first dimension.
    ///
    /// # Errors
    /// Returns an error if the first dimension of `xs` is not the depth, or if `f` fails.
    #[track_caller]
    pub fn map<X, Y, R>(&self, f: impl Fn(&L, X) -> R, xs: X) -> Result<Y>
    where
        X: Tree,
        Y: Tree,
        R: IntoOutput<Output = Y>,
    {
        Function::<(L, X)>::apply(&vmap(|layer: L, x: X| f(&layer, x).into_output()), (self.layers.clone(), xs))
    }
}

impl<L: Layer> Stack<L> {
    /// Applies the layers in sequence. Changes of a layer's state are stored in the stack.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        // Only layers with state are outputs of the loop, because each iteration copies its outputs.
        let y = if has_state(&self.layers) {
            self.update_each(|layer, x: Array| reshard_like(layer.forward(x.clone()), &x), x.clone())
        } else {
            self.scan(|layer: &L, x: Array| (reshard_like(layer.clone().forward(x.clone()), &x), ()), x.clone())
                .map(|(y, ())| y)
        };
        y.unwrap_or_else(|error| Array::from_error(error, &x))
    }
}

impl<L: Layer> Layer for Stack<L> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Stack::forward(self, x)
    }
}

/// Returns true if a module has state that calls change: running statistics, keys, caches.
pub(super) fn has_state(module: &impl Module) -> bool {
    tree::structure(module).leaf_infos().iter().any(|leaf| {
        leaf.kind.is_some_and(|kind| ![kind::Param::NAME, kind::Frozen::NAME, kind::LoRAParam::NAME].contains(&kind))
    })
}

impl<L: Tree> Tree for Stack<L> {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::Struct { name: "Stack", fields: &["layers", "options"] });
        out.node(Node::Metadata(Metadata::Stacked(self.options.axis_name)));
        self.layers.flatten(out);
        Static(self.options.clone()).flatten(out);
    }

    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        from.expect(Node::Struct { name: "Stack", fields: &["layers", "options"] })?;
        from.node()?;
        let layers = L::unflatten(from)?;
        Ok(Stack { layers, options: Static::unflatten(from)?.0 })
    }
}

impl<L: Module> Module for Stack<L> {}
