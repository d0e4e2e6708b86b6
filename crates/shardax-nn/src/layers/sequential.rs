//! Layers one after the other.

use shardax::prelude::*;

use super::{
    Conv, ConvTranspose, Einsum, Embed, GroupNorm, InstanceNorm, LayerNorm, Linear, LinearGeneral, MultiHeadAttention,
    PReLU, RmsNorm,
};
use crate::Module;

/// A module that maps one array to another.
///
/// A call can change the layer: for example, a [`Dropout`](super::Dropout) uses its next key, and a
/// [`BatchNorm`](super::BatchNorm) updates its running statistics. Layers without such state also have a method `forward`
/// that borrows them immutably.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer, or not one that maps one array to another",
    label = "not a layer",
    note = "wrap a function: `Sequential((Linear::new(4, 8, &mut rngs), Apply(relu)))`",
    note = "a layer of your own: `#[derive(Module, Clone)]`, and `impl Layer` with `fn forward(&mut self, x: Array) -> Array`"
)]
pub trait Layer: Module {
    /// Applies the layer to `x`.
    fn forward(&mut self, x: Array) -> Array;

    /// Applies a copy of the layer to `x`, so that you can share the layer: in a closure that is differentiated, or as a
    /// model that another model is trained against. Running statistics and keys of the layer do not advance.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let critic = Sequential((Linear::new(2, 8, &mut rngs), Apply(relu), Linear::new(8, 1, &mut rngs)));
    /// let slope = grad(|x: Array| critic.apply(x).mean(..)).call(ones([4, 2]))?;
    /// assert_eq!(slope.shape(), [4, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    fn apply(&self, x: impl ArrayLike) -> Array
    where
        Self: Sized,
    {
        self.clone().forward(x.into_array())
    }
}

macro_rules! layers {
    ($($layer:ident)*) => {$(
        impl Layer for $layer {
            #[track_caller]
            fn forward(&mut self, x: Array) -> Array {
                $layer::forward(self, x)
            }
        }
    )*};
}

layers!(Conv ConvTranspose Einsum Embed GroupNorm InstanceNorm LayerNorm Linear LinearGeneral MultiHeadAttention PReLU RmsNorm);

/// Layers one after the other: a tuple of any layers, or an array or a `Vec` of layers of one type. Wrap a function, such as an
/// activation, in [`Apply`].
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let mut mlp = Sequential((Linear::new(4, 8, &mut rngs), Apply(relu), Linear::new(8, 2, &mut rngs)));
/// assert_eq!(mlp.forward(ones([3, 4])).shape(), [3, 2]);
/// assert_eq!(mlp.parameter_count(), 58);
///
/// let block = |rngs: &mut Rngs| (Linear::new(4, 4, rngs), Apply(relu));
/// let mut deep = Sequential((0..3).map(|_| block(&mut rngs)).collect::<Vec<_>>());
/// assert_eq!(deep.forward(ones([3, 4])).shape(), [3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Sequential<L>(pub L);

/// A function as a layer without parameters.
#[derive(Module, Clone, Copy, Debug)]
pub struct Apply(#[tree(static)] pub fn(Array) -> Array);

impl Layer for Apply {
    fn forward(&mut self, x: Array) -> Array {
        (self.0)(x)
    }
}

// The bounds are on the methods instead of the block, so that the compiler prints the message of `Layer`.
impl<L> Sequential<L> {
    /// Joins layers: a tuple, an array or a `Vec`. `Sequential(layers)` is the same.
    pub fn new(layers: L) -> Self
    where
        L: Layer,
    {
        Sequential(layers)
    }

    /// Applies the layers to `x`, one after the other.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array
    where
        L: Layer,
    {
        self.0.forward(x.into_array())
    }

    /// Applies copies of the layers to `x`; see [`Layer::apply`].
    #[track_caller]
    pub fn apply(&self, x: impl ArrayLike) -> Array
    where
        L: Layer,
    {
        Layer::apply(self, x)
    }
}

impl<L: Layer> Layer for Sequential<L> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        self.0.forward(x)
    }
}

impl<M: Module> Module for Vec<M> {}

impl<M: Module, const N: usize> Module for [M; N] {}

impl<L: Layer, const N: usize> Layer for [L; N] {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        self.iter_mut().fold(x, |x, layer| layer.forward(x))
    }
}

impl<L: Layer> Layer for Vec<L> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        self.iter_mut().fold(x, |x, layer| layer.forward(x))
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: Module),+> Module for ($($t,)+) {}

        impl<$($t: Layer),+> Layer for ($($t,)+) {
            #[track_caller]
            fn forward(&mut self, x: Array) -> Array {
                $(let x = self.$i.forward(x);)+
                x
            }
        }
    )*};
}

shardax::__each_tuple!(tuples);
