//! Trees: Rust values that hold arrays, flattened into leaves and rebuilt from them.
//!
//! [`Tree`] is implemented for [`Array`], tuples of up to sixteen, `Vec`, arrays, `BTreeMap`, `HashMap`, `Option`,
//! `Box`, plain Rust numbers and [`Static`]. You can derive it for structs and enums with `#[derive(Tree)]`. A plain
//! number or a `Static` is not a leaf but part of the structure, so a compiled function is traced again for each value.

mod by_reference;
mod compose;
mod functions;
mod mapping;
mod plain_numbers;
mod print;
mod saved;
mod structure;
mod types;

pub use by_reference::IntoTree;
pub use compose::{Compose, Composed};
pub use functions::{all, flatten, leaves, leaves_with_path, map2, map3, reduce, structure};
// JAX also has this name.
pub use functions::leaves_with_path as flatten_with_path;
pub use mapping::{
    IsLeaf, Places, Trees, Zip, Zipped, ZippedLeaves, broadcast, is_leaf, map, map_into, map_with_path,
    reduce_associative, subtrees_with_path, transpose, zip,
};
use smallvec::SmallVec;
use structure::Token;
pub(crate) use structure::same_structure;
pub use structure::{AxisNames, LeafInfo, Metadata, Node, TreeDef};
pub use types::Static;

use super::array::{Array, Repr};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, bail, err};

/// A value that consists of arrays. It can be flattened into leaves and a [`TreeDef`], and rebuilt from them.
///
/// `Array`, numbers, tuples, `Vec`, `[T; N]`, `Option`, `Box` and maps are trees. Derive the trait for structs
/// and enums:
///
/// ```
/// # use shardax::prelude::*;
/// #[derive(Tree, Clone)]
/// struct Layer {
///     kernel: Array,
///     bias: Option<Array>,
///     #[tree(static)] // part of the structure, not a leaf
///     name: String,
/// }
///
/// let layer = Layer { kernel: ones([2, 3]), bias: Some(zeros(3)), name: "first".into() };
/// let doubled = tree::map(|leaf: Array| leaf * 2, layer)?;
/// assert_eq!(doubled.kernel.sum(..).item::<f32>()?, 12.0);
/// assert_eq!(doubled.name, "first");
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    label = "neither an array nor made of arrays",
    note = "put `#[derive(Tree, Clone)]`, or `#[derive(Module, Clone)]` of `shardax-nn`, on a struct or an enum of arrays",
    note = "mark a field that is configuration, such as a `String` or a `fn(Array) -> Array`, with `#[tree(static)]`, and wrap such an argument in `Static`",
    note = "pass and return arrays by value: `Array`, not `&Array`; and trees: `params.clone()`, not `&params`, because a clone shares the memory",
    note = "`!` stands for a type that rustc cannot infer: state it, such as `grad(|x: Array| tanh(x))` for `grad(tanh)`, or `let params: Params = …`"
)]
pub trait Tree: Clone {
    /// Appends the leaves and the structure of `self` to `out`.
    fn flatten(&self, out: &mut Flat);

    /// Rebuilds a value. It must read exactly the nodes and leaves that [`flatten`](Tree::flatten) wrote.
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self>;
}

/// A flattened tree: its leaves in order, and its structure.
///
/// It is also a tree with the same leaves and structure, so you can use it for a field that holds a tree of any type:
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::tree::Flat;
/// let any = Flat::of(&vec![ones([2]), zeros([3])]);
/// let doubled = tree::map(|x| x * 2, any)?;
/// assert_eq!(doubled.build::<Vec<Array>>()?[0].to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Flat {
    /// The arrays, in order.
    pub leaves: SmallVec<[Array; 8]>,
    /// The structure of the tree.
    pub def: TreeDef,
}

impl Flat {
    /// Flattens `tree`.
    pub fn of<T: Tree>(tree: &T) -> Self {
        let mut flat = Flat::default();
        tree.flatten(&mut flat);
        flat
    }

    /// Flattens the arguments of a call. A plain number next to arrays of 64 bits keeps its 64 bits, because the
    /// function can combine it with them.
    pub(crate) fn from_arguments<T: Tree>(tree: &T) -> Self {
        let mut flat = Flat::of(tree);
        if flat.leaves.iter().any(Array::is_number) {
            flat.widen_numbers();
        }
        flat
    }

    fn has_array_of(&self, dtypes: &[DType]) -> bool {
        self.leaves.iter().any(|leaf| !leaf.is_number() && dtypes.contains(&leaf.dtype()))
    }

    fn widen_numbers(&mut self) {
        let float = self.has_array_of(&[DType::F64, DType::Complex128]);
        let integer = [DType::I64, DType::U64].map(|dtype| self.has_array_of(&[dtype]));
        for leaf in &mut self.leaves {
            let Repr::Literal(number) = &mut leaf.0 else { continue };
            number.dtype = match (number.dtype, number.value) {
                _ if !number.weak => continue,
                (DType::F32, _) if float => DType::F64,
                (DType::Complex64, _) if float => DType::Complex128,
                (DType::I32, Scalar::Int(v)) if i32::try_from(v).is_err() => match integer {
                    [true, _] if i64::try_from(v).is_ok() => DType::I64,
                    [_, true] => DType::U64,
                    _ => continue,
                },
                _ => continue,
            };
        }
    }

    /// Writes a node; its children must follow.
    pub fn node(&mut self, node: Node) {
        self.def.push(Token::Node(node));
    }

    /// Adds a leaf.
    pub fn leaf(&mut self, array: Array) {
        self.def.push(Token::Leaf);
        self.leaves.push(array);
    }

    /// Writes another flattened tree, as the next child.
    pub(crate) fn append(&mut self, other: &Flat) {
        self.def.extend(&other.def);
        self.leaves.extend(other.leaves.iter().cloned());
    }

    /// The two halves of a flattened pair.
    pub(crate) fn halves(&self) -> Result<(Flat, Flat)> {
        let children = self.def.root_children().unwrap_or_default();
        let [(_, a), (_, b)] = children.as_slice() else { bail!(Type, "expected a pair, found {:?}", self.def) };
        let (first, second) = self.leaves.split_at(a.leaf_count());
        Ok((Flat { leaves: first.into(), def: a.clone() }, Flat { leaves: second.into(), def: b.clone() }))
    }

    /// Rebuilds the tree.
    ///
    /// # Errors
    /// Returns an error if the structure does not belong to a `T`, or if the number of leaves differs from the
    /// structure's.
    #[track_caller]
    pub fn build<T: Tree>(&self) -> Result<T> {
        unflatten(&self.def, &self.leaves)
    }
}

impl Tree for Flat {
    fn flatten(&self, out: &mut Flat) {
        out.append(self);
    }

    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        let def = from.subtree()?;
        let leaves = (0..def.leaf_count()).map(|_| from.leaves.next()).collect::<Option<_>>();
        let leaves = leaves.ok_or_else(|| mismatch("an array", None))?;
        Ok(Flat { leaves, def })
    }
}

/// Reads a flattened tree from its start.
pub struct Unflatten<'a> {
    tokens: std::slice::Iter<'a, Token>,
    leaves: smallvec::IntoIter<[Array; 8]>,
}

impl Unflatten<'_> {
    /// Reads the next leaf.
    ///
    /// # Errors
    /// Returns an error if the structure has a node instead.
    pub fn leaf(&mut self) -> Result<Array> {
        match (self.tokens.next(), self.leaves.next()) {
            (Some(Token::Leaf), Some(array)) => Ok(array),
            (token, _) => Err(mismatch("an array", token)),
        }
    }

    /// Reads the next node: a struct or a variant.
    ///
    /// # Errors
    /// Returns an error if the next entry is not a node, because the tree has another structure than the type.
    pub fn node(&mut self) -> Result<Node> {
        match self.tokens.next() {
            Some(Token::Node(node)) => Ok(node.clone()),
            token => Err(mismatch("a node", token)),
        }
    }

    /// Reads the structure of the next child, but not its leaves.
    fn subtree(&mut self) -> Result<TreeDef> {
        let (mut def, mut open) = (TreeDef::default(), 1);
        while open > 0 {
            let token = self.tokens.next().ok_or_else(|| mismatch("a tree", None))?;
            open = open - 1 + token.arity();
            def.push(token.clone());
        }
        Ok(def)
    }

    /// Returns the metadata of the next node, if it is a metadata node.
    pub fn peek_metadata(&self) -> Option<&Metadata> {
        match self.tokens.as_slice().first() {
            Some(Token::Node(Node::Metadata(metadata))) => Some(metadata),
            _ => None,
        }
    }

    /// Reads the next node.
    ///
    /// # Errors
    /// Returns an error unless it is `node`; for a struct it also accepts a map whose keys are the fields in their
    /// order.
    pub fn expect(&mut self, node: Node) -> Result<()> {
        let actual = self.node()?;
        let is_map = matches!((&actual, &node), (Node::Map(_), Node::Struct { .. }));
        if actual == node || (is_map && actual.names() == node.names()) {
            Ok(())
        } else {
            Err(err!(Type, "tree structure mismatch: expected {node:?}, found {actual:?}")
                .help("pass the structure and all leaves of one tree of this type"))
        }
    }
}

/// Writes a field whose dimensions can have names; for derived code.
#[doc(hidden)]
pub fn flatten_named<T: Tree>(value: &T, names: &Option<AxisNames>, out: &mut Flat) {
    if let Some(names) = names {
        out.node(Node::Metadata(Metadata::AxisNames(names.clone())));
    }
    value.flatten(out);
}

/// Reads the output of [`flatten_named`]; for derived code.
#[doc(hidden)]
pub fn unflatten_named<T: Tree>(from: &mut Unflatten<'_>) -> Result<T> {
    if let Some(Metadata::AxisNames(_)) = from.peek_metadata() {
        from.node()?;
    }
    T::unflatten(from)
}

/// Creates the error for a node that is no variant of an enum; for derived code.
#[doc(hidden)]
pub fn unexpected(name: &str, node: &Node) -> crate::error::Error {
    err!(Type, "tree structure mismatch: {node:?} is not a variant of {name}")
        .help("pass the structure and all leaves of one tree of this type")
}

fn mismatch(expected: &str, found: Option<&Token>) -> crate::error::Error {
    err!(Type, "tree structure mismatch: expected {expected}, found {found:?}")
        .help("pass the structure and all leaves of one tree of this type")
}

/// Rebuilds a tree of type `T` from its leaves, in a list or a `Vec`; see [`flatten`].
///
/// # Errors
/// Returns an error if the structure does not belong to a `T`, or if the number of leaves differs from the
/// structure's.
#[track_caller]
pub fn unflatten<T: Tree>(def: &TreeDef, leaves: impl AsRef<[Array]>) -> Result<T> {
    rebuild(def, leaves.as_ref().iter().cloned().collect()).at_caller()
}

/// Rebuilds a tree and consumes the leaves.
pub(crate) fn rebuild<T: Tree>(def: &TreeDef, leaves: SmallVec<[Array; 8]>) -> Result<T> {
    let mut from = Unflatten { tokens: def.tokens(), leaves: leaves.into_iter() };
    let tree = T::unflatten(&mut from)?;
    if from.tokens.next().is_some() || from.leaves.next().is_some() {
        return Err(err!(Type, "tree structure mismatch: the structure has more nodes or leaves than the type takes")
            .help("pass the leaves of one tree of this type, as `tree::leaves` returns them"));
    }
    Ok(tree)
}
