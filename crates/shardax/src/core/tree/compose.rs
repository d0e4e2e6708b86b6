//! Trees of trees: trees with another tree at each leaf, such as a Jacobian.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

use super::{Flat, Static, Tree, TreeDef, Unflatten};
use crate::core::array::Array;
use crate::error::{Result, err};

/// A tree whose leaves can be replaced by trees of type `X`.
///
/// An `Array` becomes an `X`; tuples, lists, maps and options keep their form. A struct or an enum becomes a
/// [`Composed`], in which you look up the parts by key path.
#[diagnostic::on_unimplemented(
    message = "the leaves of `{Self}` cannot be replaced by trees",
    note = "it is implemented for `Array`, tuples, lists, maps and options of what has it, and derived with `#[derive(Tree)]`"
)]
pub trait Compose<X: Tree>: Tree {
    /// The type of the composed tree.
    type Composed: Tree;
    /// Builds the composed tree. `part` is called for each leaf in order.
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed>;
}

/// A tree with the structure of a `T` and an `X` at each leaf.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::jacrev;
/// #[derive(Tree, Clone)]
/// struct Stats { mean: Array, spread: Array }
/// let f = |x: Array| Stats { mean: x.mean(..), spread: x.var(..) };
/// let slopes = jacrev(f).call(array([1.0f32, 3.0]))?;
/// assert_eq!(slopes.get(".mean")?.to_vec::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub struct Composed<T, X> {
    structure: Static<TreeDef>,
    parts: Vec<X>,
    of: PhantomData<fn() -> T>,
}

impl<T: Tree, X> Composed<T, X> {
    /// Builds the composed tree. `part` is called for each leaf of `of` in order.
    pub fn new(of: &T, part: &mut dyn FnMut() -> Result<X>) -> Result<Self> {
        let structure = Flat::of(of).def;
        let parts = (0..structure.leaf_count()).map(|_| part()).collect::<Result<_>>()?;
        Ok(Composed { structure: Static(structure), parts, of: PhantomData })
    }
}

impl<T, X> Composed<T, X> {
    /// Returns the part at the leaf with this key path: `.mean`, `[0]`, `["image"]`.
    ///
    /// # Errors
    /// Returns an error if there is no such leaf.
    pub fn get(&self, path: &str) -> Result<&X> {
        let paths = self.structure.paths();
        let index = paths.iter().position(|known| known == path);
        index.and_then(|index| self.parts.get(index)).ok_or_else(|| {
            err!(Value, "a tree has no leaf at the key path {path:?}: its leaves are {paths:?}")
                .help("pass one of these key paths, exactly as it is listed")
        })
    }

    /// Iterates over the key paths and the parts, in the order of the leaves.
    pub fn iter(&self) -> impl Iterator<Item = (String, &X)> {
        self.structure.paths().into_iter().zip(&self.parts)
    }
}

impl<T, X: Clone> Clone for Composed<T, X> {
    fn clone(&self) -> Self {
        Composed { structure: self.structure.clone(), parts: self.parts.clone(), of: PhantomData }
    }
}

impl<T, X: fmt::Debug> fmt::Debug for Composed<T, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T, X: Tree> Tree for Composed<T, X> {
    fn flatten(&self, out: &mut Flat) {
        self.structure.flatten(out);
        self.parts.flatten(out);
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        Ok(Composed { structure: Static::unflatten(from)?, parts: Vec::unflatten(from)?, of: PhantomData })
    }
}

impl<T: Tree, X: Tree, Y: Tree> Compose<X> for Composed<T, Y> {
    type Composed = Composed<Self, X>;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        Composed::new(&self, part)
    }
}

impl<X: Tree> Compose<X> for Array {
    type Composed = X;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<X> {
        part()
    }
}

impl<X: Tree, T: Compose<X>> Compose<X> for Vec<T> {
    type Composed = Vec<T::Composed>;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        self.into_iter().map(|x| x.compose(part)).collect()
    }
}

impl<X: Tree, T: Compose<X>, const N: usize> Compose<X> for [T; N] {
    type Composed = [T::Composed; N];
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        let items: Vec<T::Composed> = self.into_iter().map(|x| x.compose(part)).collect::<Result<_>>()?;
        items.try_into().map_err(|_| {
            err!(Type, "tree structure mismatch: expected a list of {N}")
                .help("pass trees with the structure of the first tree")
        })
    }
}

impl<X: Tree, T: Compose<X>> Compose<X> for Option<T> {
    type Composed = Option<T::Composed>;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        self.map(|x| x.compose(part)).transpose()
    }
}

impl<X: Tree, T: Compose<X>> Compose<X> for Box<T> {
    type Composed = Box<T::Composed>;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        Ok(Box::new((*self).compose(part)?))
    }
}

impl<X: Tree, K, T: Compose<X>> Compose<X> for BTreeMap<K, T>
where
    K: Ord + Clone + fmt::Display + std::str::FromStr,
{
    type Composed = BTreeMap<K, T::Composed>;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        self.into_iter().map(|(key, x)| Ok((key, x.compose(part)?))).collect()
    }
}

/// The leaves are in the order of the keys.
impl<X: Tree, K, T: Compose<X>, S> Compose<X> for HashMap<K, T, S>
where
    K: Ord + Hash + Clone + fmt::Display + std::str::FromStr,
    S: BuildHasher + Default + Clone,
{
    type Composed = HashMap<K, T::Composed, S>;
    fn compose(self, part: &mut dyn FnMut() -> Result<X>) -> Result<Self::Composed> {
        let mut items: Vec<(K, T)> = self.into_iter().collect();
        items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        items.into_iter().map(|(key, x)| Ok((key, x.compose(part)?))).collect()
    }
}

macro_rules! no_leaves {
    ($($t:ty),*) => {$(
        impl<X: Tree> Compose<X> for $t {
            type Composed = $t;
            fn compose(self, _part: &mut dyn FnMut() -> Result<X>) -> Result<$t> {
                Ok(self)
            }
        }
    )*};
}

no_leaves!((), bool, i8, i16, i32, i64, u8, u16, u32, u64, usize, f32, f64);

impl<X: Tree, T> Compose<X> for Static<T>
where
    T: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static,
{
    type Composed = Static<T>;
    fn compose(self, _part: &mut dyn FnMut() -> Result<X>) -> Result<Static<T>> {
        Ok(self)
    }
}

macro_rules! composed_tuples {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<Part: Tree, $($t: Compose<Part>),+> Compose<Part> for ($($t,)+) {
            type Composed = ($($t::Composed,)+);
            fn compose(self, part: &mut dyn FnMut() -> Result<Part>) -> Result<Self::Composed> {
                Ok(($(self.$i.compose(part)?,)+))
            }
        }
    )*};
}

crate::tuples::each!(composed_tuples);
