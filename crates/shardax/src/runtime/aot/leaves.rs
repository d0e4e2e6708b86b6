//! Values for each leaf of a tree.

use std::fmt;

use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::program::Aval;
use crate::core::sharding_like::ShardingLike;
use crate::core::tree::TreeDef;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::sharding::{Format, Sharding};

/// One value for each leaf of a tree, in order, with the leaf's key path.
#[derive(Clone, Debug, PartialEq)]
pub struct LeafTree<T> {
    def: TreeDef,
    leaves: Vec<T>,
}

impl<T> LeafTree<T> {
    /// Creates the tree from a value for each leaf of `def`, in order.
    ///
    /// # Errors
    /// Returns an error unless there are as many values as leaves.
    pub fn try_new(def: &TreeDef, leaves: Vec<T>) -> Result<Self> {
        let (want, got) = (def.leaf_count(), leaves.len());
        if want != got {
            return Err(err!(Value, "LeafTree: the structure has {want} leaves, but there are {got} values")
                .help("pass one value for each leaf of the arguments"));
        }
        Ok(LeafTree::new(def, leaves))
    }

    pub(crate) fn new(def: &TreeDef, leaves: Vec<T>) -> Self {
        LeafTree { def: def.clone(), leaves }
    }

    /// Returns the structure of the tree.
    pub fn structure(&self) -> &TreeDef {
        &self.def
    }

    /// Returns the values in the order of the leaves.
    pub fn leaves(&self) -> &[T] {
        &self.leaves
    }

    /// Returns the value of the leaf at a key path, in the form used in errors: `[0].w`.
    pub fn get(&self, path: &str) -> Option<&T> {
        self.leaves.get(self.def.paths().iter().position(|p| p == path)?)
    }

    /// Iterates over key paths and values.
    pub fn iter(&self) -> impl Iterator<Item = (String, &T)> {
        self.def.paths().into_iter().zip(&self.leaves)
    }
}

/// One line for each leaf.
impl<T: fmt::Display> fmt::Display for LeafTree<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(path, value)| writeln!(f, "{path}: {value}"))
    }
}

/// A sharding for each leaf, for values of this structure: `device_put(&args, &compiled.input_shardings())`.
impl IntoPrefix<Option<ShardingLike>> for &LeafTree<Sharding> {
    fn into_prefix(self) -> Prefix<Option<ShardingLike>> {
        nest(&self.def, &mut self.leaves.iter().map(|s| Some(s.into())))
    }
}

/// A sharding for each leaf, for values of this structure; `None` leaves it open.
impl IntoPrefix<Option<ShardingLike>> for &LeafTree<Option<Sharding>> {
    fn into_prefix(self) -> Prefix<Option<ShardingLike>> {
        nest(&self.def, &mut self.leaves.iter().map(|s| s.as_ref().map(Into::into)))
    }
}

/// A format for each leaf: `device_put(&args, &compiled.input_formats())`.
impl IntoPrefix<Option<ShardingLike>> for &LeafTree<Format> {
    fn into_prefix(self) -> Prefix<Option<ShardingLike>> {
        nest(&self.def, &mut self.leaves.iter().map(|f| Some(f.into())))
    }
}

/// A format for each leaf; `None` leaves it open.
impl IntoPrefix<Option<ShardingLike>> for &LeafTree<Option<Format>> {
    fn into_prefix(self) -> Prefix<Option<ShardingLike>> {
        nest(&self.def, &mut self.leaves.iter().map(|f| f.as_ref().map(Into::into)))
    }
}

fn nest<T>(def: &TreeDef, leaves: &mut dyn Iterator<Item = Option<T>>) -> Prefix<Option<T>> {
    match def.root_children() {
        Some(children) => Prefix::Node(children.iter().map(|(_, child)| nest(child, leaves)).collect()),
        // A plain number has no leaf.
        None if def.leaf_count() == 0 => Prefix::Leaf(None),
        None => Prefix::Leaf(leaves.next().flatten()),
    }
}

/// The type of an argument, and its donation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// The type of the argument.
    pub aval: Aval,
    /// `true` if the program can reuse the memory of the argument.
    pub donated: bool,
}

impl ArgInfo {
    /// Returns the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.aval.shape
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.aval.dtype
    }
}

/// `float32[8,4] donated`
impl fmt::Display for ArgInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.aval, if self.donated { " donated" } else { "" })
    }
}
