//! Kinds of variables, distinguished by type.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use shardax::prelude::*;
use shardax::tree::{Flat, Metadata, Node, Unflatten};

use crate::Module;

/// The kind of an array of a model. A field of type [`Array`] is a [`Param`]. Other kinds are types, either predefined or your
/// own:
///
/// ```
/// use shardax_nn::prelude::*;
///
/// struct MemoryKind;
/// impl Kind for MemoryKind {
///     const NAME: &'static str = "Memory";
/// }
/// type Memory = Variable<MemoryKind>;
///
/// #[derive(Module, Clone)]
/// struct Recurrent { cell: Linear, last: Memory }
///
/// let model = Recurrent { cell: Linear::new(2, 2, &mut Rngs::new(0)), last: Memory::new(zeros([2])) };
/// assert_eq!(model.state_of(Filter::of::<Memory>()).keys().collect::<Vec<_>>(), ["last"]);
/// assert_eq!(model.state_of(Filter::of::<Param>()).len(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of variable",
    label = "not a kind",
    note = "kinds are types of the module `kind`, such as `kind::Param`, or your own: `enum Memory {{}}`, with `impl Kind for Memory`"
)]
pub trait Kind: 'static {
    /// The kind's name in errors and tables. Kinds with the same name are the same kind.
    const NAME: &'static str;
}

/// The kinds of variables that layers have.
pub mod kind {
    use super::Kind;

    macro_rules! kinds {
        ($($(#[$doc:meta])* $kind:ident;)*) => {$(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $kind;

            impl Kind for $kind {
                const NAME: &'static str = stringify!($kind);
            }
        )*};
    }

    kinds! {
        /// Trainable parameters.
        Param;
        /// Running statistics, such as the mean and variance of [`BatchNorm`](crate::BatchNorm).
        BatchStat;
        /// State between calls, such as the keys and values of attention.
        Cache;
        /// Frozen weights, which no optimizer updates.
        Frozen;
        /// The small matrices of a low-rank adaptation.
        LoRAParam;
        /// State whose gradient is its next value, such as the scales of [`Fp8DotGeneral`](crate::Fp8DotGeneral).
        OverwriteWithGradient;
        /// Values that a call stores for inspection: see [`capture`](crate::capture).
        Intermediate;
        /// The key of a stream of random keys.
        RngKey;
        /// The number of keys drawn from a stream.
        RngCount;
    }
}

/// An array, or any tree of arrays, that is a variable of the kind `K`. It dereferences to its value.
pub struct Variable<K, T = Array> {
    value: T,
    kind: PhantomData<fn() -> K>,
}

/// A trainable parameter. A field that is a plain [`Array`] is one too.
pub type Param<T = Array> = Variable<kind::Param, T>;
/// Running statistics, which have no gradient and which no optimizer updates.
pub type BatchStat<T = Array> = Variable<kind::BatchStat, T>;
/// State between calls.
pub type Cache<T = Array> = Variable<kind::Cache, T>;
/// Frozen weights, an entire module or one array: `Frozen<Encoder>`.
pub type Frozen<T = Array> = Variable<kind::Frozen, T>;
/// A matrix of a low-rank adaptation.
pub type LoRAParam<T = Array> = Variable<kind::LoRAParam, T>;
/// State whose gradient is its next value: an [`Optimizer`](crate::optim::Optimizer) stores it.
pub type OverwriteWithGradient<T = Array> = Variable<kind::OverwriteWithGradient, T>;
/// Values that calls store, in order: see [`sow`](Intermediate::sow).
pub type Intermediate<T = Vec<Array>> = Variable<kind::Intermediate, T>;
/// The key of a stream of random keys.
pub type RngKey<T = Array> = Variable<kind::RngKey, T>;
/// The number of keys drawn from a stream.
pub type RngCount<T = Array> = Variable<kind::RngCount, T>;

impl<K, T> Variable<K, T> {
    /// Creates a variable with this value.
    pub fn new(value: T) -> Self {
        Variable { value, kind: PhantomData }
    }

    /// Returns a reference to the value, like `*variable` (`variable.value` in Flax).
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value
    }
}

/// You can use the type of a variable as its kind: `Filter::of::<BatchStat>()`.
impl<K: Kind, T: 'static> Kind for Variable<K, T> {
    const NAME: &'static str = K::NAME;
}

impl<K> Variable<K, Vec<Array>> {
    /// Appends a value (`nnx.Module.sow`). [`Module::pop`] removes them from the model.
    ///
    /// ```
    /// use shardax_nn::prelude::*;
    /// #[derive(Module, Clone)]
    /// struct Mlp { hidden: Linear, out: Linear, seen: Intermediate }
    /// impl Mlp {
    ///     fn forward(&mut self, x: Array) -> Array {
    ///         let h = relu(self.hidden.forward(x));
    ///         self.seen.sow(&h);
    ///         self.out.forward(h)
    ///     }
    /// }
    /// let mut rngs = Rngs::new(0);
    /// let (hidden, out) = (Linear::new(2, 4, &mut rngs), Linear::new(4, 1, &mut rngs));
    /// let mut model = Mlp { hidden, out, seen: Intermediate::default() };
    /// let (y, seen) = capture(&mut model, |model| model.forward(ones([3, 2])))?;
    /// assert_eq!((y.shape(), seen["seen[0]"].shape()), (&[3, 1][..], &[3, 4][..]));
    /// assert!(model.seen.is_empty());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn sow(&mut self, value: impl ArrayLike) {
        self.value.push(value.into_array());
    }
}

impl<K, T: Default> Default for Variable<K, T> {
    fn default() -> Self {
        Variable::new(T::default())
    }
}

impl<K, T> Deref for Variable<K, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<K, T> DerefMut for Variable<K, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<K, T> From<T> for Variable<K, T> {
    fn from(value: T) -> Self {
        Variable::new(value)
    }
}

impl<K, T: Clone> Clone for Variable<K, T> {
    fn clone(&self) -> Self {
        Variable::new(self.value.clone())
    }
}

impl<K: Kind, T: fmt::Debug> fmt::Debug for Variable<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(K::NAME).field(&self.value).finish()
    }
}

impl<K> ArrayLike for Variable<K> {
    fn into_array(self) -> Array {
        self.value
    }
}

impl<K> ArrayLike for &Variable<K> {
    fn into_array(self) -> Array {
        self.value.clone()
    }
}

impl<K: Kind, T: Tree> Tree for Variable<K, T> {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::Metadata(Metadata::Kind(K::NAME)));
        self.value.flatten(out);
    }

    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        from.expect(Node::Metadata(Metadata::Kind(K::NAME)))?;
        T::unflatten(from).map(Variable::new)
    }
}

impl<K: Kind, T: Tree> Module for Variable<K, T> {}
