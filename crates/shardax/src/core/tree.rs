//! Trees: any Rust value that holds arrays, taken apart into leaves and put together again.
//!
//! [`Tree`] is implemented for [`Array`], tuples of up to sixteen, `Vec`, arrays, `BTreeMap`, `HashMap`, `Option`, `Box`,
//! plain Rust numbers and [`Static`], and derived for structs and enums with `#[derive(Tree)]`. A plain number or
//! a `Static` is no leaf: it is part of the structure, so a compiled function is made anew for each value.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::array::{Array, Repr};
use crate::dtype::{DType, Element, Scalar};
use crate::error::{AtCaller, Result, bail, err};
use crate::stack::grow;

/// A value made of arrays: flattened into leaves and a [`TreeDef`], and rebuilt from them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    label = "neither an array nor made of arrays",
    note = "functions take and return trees by value: `Array`, not `&Array`",
    note = "a struct or an enum becomes a tree by `#[derive(Tree)]` or `#[derive(Module)]`; a field that is configuration, such as a `String`, is marked `#[tree(static)]`, and an argument is wrapped in `Static`"
)]
pub trait Tree: Clone {
    /// Appends the leaves and the structure of `self` to `out`.
    fn flatten(&self, out: &mut Flat);

    /// Rebuilds a value, reading as many nodes and leaves as [`flatten`](Tree::flatten) wrote.
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self>;
}

/// A tree taken apart: its leaves in order, and its structure.
#[derive(Clone, Debug, Default)]
pub struct Flat {
    pub leaves: SmallVec<[Array; 8]>,
    pub def: TreeDef,
}

/// The structure of a tree without its leaves. Cheap to compare and to hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TreeDef(SmallVec<[Token; 8]>);

/// One step of a structure, in pre-order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Token {
    Leaf,
    Node(Node),
    /// A plain Rust number.
    Number(Scalar, &'static str),
    Static(StaticValue),
}

/// A node of a tree and what its children are called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Node {
    /// A tuple, of so many children.
    Tuple(usize),
    /// A `Vec` or an array, of so many children.
    List(usize),
    /// A map; the keys in order.
    Map(Arc<[String]>),
    /// A struct or an enum's variant; the names of its fields in order.
    Struct { name: &'static str, fields: &'static [&'static str] },
    /// `Option::Some`: one child, which has no key of its own.
    Some,
    /// `Option::None`: no children.
    None,
    /// What is said of the leaves below: one child, which has no key of its own.
    Metadata(Metadata),
}

/// What is said of leaves, beside their place in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Metadata {
    /// The kind of variable, such as `BatchStat`.
    Kind(&'static str),
    /// The logical name of each dimension.
    AxisNames(AxisNames),
}

/// A logical name, such as `embed`, for each dimension of an array that has one.
pub type AxisNames = Arc<[Option<&'static str>]>;

/// A leaf's place in a tree, and what is said of it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafInfo {
    /// The key path, as `.conv1.kernel`.
    pub path: String,
    /// The kind that the outermost node around it tells.
    pub kind: Option<&'static str>,
    /// The names of its dimensions, by the innermost node around it that tells them.
    pub axis_names: Option<AxisNames>,
}

impl Node {
    fn arity(&self) -> usize {
        match self {
            Node::Tuple(n) | Node::List(n) => *n,
            Node::Map(keys) => keys.len(),
            Node::Struct { fields, .. } => fields.len(),
            Node::Some | Node::Metadata(_) => 1,
            Node::None => 0,
        }
    }

    fn child_key(&self, i: usize) -> String {
        match self {
            Node::Tuple(_) | Node::List(_) | Node::None => format!("[{i}]"),
            Node::Some | Node::Metadata(_) => String::new(),
            Node::Map(keys) => format!("[{:?}]", keys[i]),
            Node::Struct { fields, .. } => format!(".{}", fields[i]),
        }
    }
}

/// A value of any type that takes part in the structure.
#[derive(Clone)]
struct StaticValue {
    value: Arc<dyn Any + Send + Sync>,
    hash: u64,
    equal: fn(&dyn Any, &dyn Any) -> bool,
    text: fn(&dyn Any, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl PartialEq for StaticValue {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (self.equal)(&*self.value, &*other.value)
    }
}

impl Eq for StaticValue {}

impl Hash for StaticValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl fmt::Debug for StaticValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.text)(&*self.value, f)
    }
}

impl Flat {
    /// Takes `tree` apart.
    pub fn of<T: Tree>(tree: &T) -> Self {
        let mut flat = Flat::default();
        tree.flatten(&mut flat);
        flat
    }

    /// Takes the arguments of a call apart. A plain number that stands among arrays of 64 bits keeps its own 64, because
    /// it may meet them inside.
    pub(crate) fn of_arguments<T: Tree>(tree: &T) -> Self {
        let mut flat = Flat::of(tree);
        if flat.leaves.iter().any(Array::is_number) {
            flat.widen_numbers();
        }
        flat
    }

    fn widen_numbers(&mut self) {
        let any = |wide: &[DType]| self.leaves.iter().any(|leaf| !leaf.is_number() && wide.contains(&leaf.dtype()));
        let float = any(&[DType::F64, DType::Complex128]);
        let integer = [DType::I64, DType::U64].map(|dtype| any(&[dtype]));
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
        self.def.0.push(Token::Node(node));
    }

    pub fn leaf(&mut self, array: Array) {
        self.def.0.push(Token::Leaf);
        self.leaves.push(array);
    }

    /// Writes another flattened tree, as the next child.
    pub(crate) fn append(&mut self, other: &Flat) {
        self.def.0.extend(other.def.0.iter().cloned());
        self.leaves.extend(other.leaves.iter().cloned());
    }

    /// The two halves of a flattened pair.
    pub(crate) fn halves(&self) -> Result<(Flat, Flat)> {
        let children = self.def.root_children().unwrap_or_default();
        let [(_, a), (_, b)] = children.as_slice() else { bail!(Type, "expected a pair, found {:?}", self.def) };
        let (first, second) = self.leaves.split_at(a.leaf_count());
        Ok((Flat { leaves: first.into(), def: a.clone() }, Flat { leaves: second.into(), def: b.clone() }))
    }

    /// Puts the tree together again.
    #[track_caller]
    pub fn build<T: Tree>(&self) -> Result<T> {
        unflatten(&self.def, &self.leaves)
    }
}

impl TreeDef {
    pub fn leaf_count(&self) -> usize {
        self.0.iter().filter(|t| matches!(t, Token::Leaf)).count()
    }

    /// The key path of each leaf, as `.conv1.kernel`, `[0]` or `["image"]`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.walk(&mut |path, token| {
            if matches!(token, Token::Leaf) {
                paths.push(path.to_owned());
            }
        });
        paths
    }

    /// The place of each leaf, and what is said of it.
    pub fn leaf_infos(&self) -> Vec<LeafInfo> {
        let mut infos = Vec::new();
        // The nodes above: how many children of each are to come, and what is said there.
        let mut above: Vec<(usize, Option<&'static str>, Option<AxisNames>)> = Vec::new();
        self.walk(&mut |path, token| {
            let (mut kind, mut axis_names) = (None, None);
            if let Some((left, of, names)) = above.last_mut() {
                *left -= 1;
                (kind, axis_names) = (*of, names.clone());
            }
            match token {
                Token::Leaf => infos.push(LeafInfo { path: path.to_owned(), kind, axis_names }),
                Token::Node(node) => {
                    match node {
                        Node::Metadata(Metadata::Kind(own)) => kind = kind.or(Some(own)),
                        Node::Metadata(Metadata::AxisNames(own)) => axis_names = Some(own.clone()),
                        _ => {}
                    }
                    above.push((node.arity(), kind, axis_names));
                }
                _ => {}
            }
            while above.last().is_some_and(|(left, ..)| *left == 0) {
                above.pop();
            }
        });
        infos
    }

    /// Whether plain numbers are part of it.
    pub(crate) fn has_numbers(&self) -> bool {
        self.0.iter().any(|token| matches!(token, Token::Number(..)))
    }

    /// Hashes all but the values of plain numbers.
    pub(crate) fn hash_without_numbers<H: Hasher>(&self, state: &mut H) {
        for token in &self.0 {
            match token {
                Token::Number(_, of) => of.hash(state),
                token => token.hash(state),
            }
        }
    }

    /// Where a structure that differs in plain numbers alone does so: the key path and the two numbers.
    pub(crate) fn different_numbers(&self, other: &TreeDef) -> Vec<(String, Scalar, Scalar)> {
        let mut found = Vec::new();
        let mut others = other.0.iter();
        self.walk(&mut |path, token| {
            if let (Token::Number(a, _), Some(Token::Number(b, _))) = (token, others.next())
                && a != b
            {
                found.push((path.to_owned(), *a, *b));
            }
        });
        found
    }

    /// The key path of one leaf; empty where there is none.
    pub(crate) fn path(&self, leaf: usize) -> String {
        let (mut at, mut found) = (0, String::new());
        self.walk(&mut |path, token| {
            if matches!(token, Token::Leaf) {
                if at == leaf {
                    found = path.to_owned();
                }
                at += 1;
            }
        });
        found
    }

    /// The leaves below each child of the root node: how many, in order. `None` where the root has no children.
    pub(crate) fn root_children(&self) -> Option<Vec<(String, TreeDef)>> {
        let Some(Token::Node(node)) = self.0.first() else { return None };
        let mut at = 1;
        Some(
            (0..node.arity())
                .map(|i| {
                    let start = at;
                    self.skip(&mut at);
                    (node.child_key(i), TreeDef(self.0[start..at].iter().cloned().collect()))
                })
                .collect(),
        )
    }

    /// Goes to the end of the subtree that begins here.
    fn skip(&self, at: &mut usize) {
        let mut left = 1;
        while left > 0 {
            left -= 1;
            if let Token::Node(node) = &self.0[*at] {
                left += node.arity();
            }
            *at += 1;
        }
    }

    /// Visits every step with its key path.
    fn walk(&self, visit: &mut dyn FnMut(&str, &Token)) {
        let mut path = String::new();
        // The nodes above: how many children of each were visited, and how much of the path is its own.
        let mut above: Vec<(&Node, usize, usize)> = Vec::new();
        for token in &self.0 {
            if let Some((node, visited, own)) = above.last_mut() {
                path.truncate(*own);
                path.push_str(&node.child_key(*visited));
                *visited += 1;
            }
            visit(&path, token);
            if let Token::Node(node) = token {
                above.push((node, 0, path.len()));
            }
            while above.last().is_some_and(|(node, visited, _)| *visited == node.arity()) {
                above.pop();
            }
        }
    }

    /// Where two structures first differ: the key path and the two sides.
    pub(crate) fn difference(&self, other: &TreeDef) -> String {
        let list = |def: &TreeDef| {
            let mut out = Vec::new();
            def.walk(&mut |path, token| {
                let what = match token {
                    Token::Leaf => "an array".to_owned(),
                    Token::Node(Node::Tuple(n)) => format!("a tuple of {n}"),
                    Token::Node(Node::List(n)) => format!("a list of {n}"),
                    Token::Node(Node::Map(keys)) => format!("a map with keys {keys:?}"),
                    Token::Node(Node::Struct { name, .. }) => format!("a {name}"),
                    Token::Node(Node::Some) => "Some".to_owned(),
                    Token::Node(Node::None) => "None".to_owned(),
                    Token::Node(Node::Metadata(Metadata::Kind(kind))) => format!("a {kind}"),
                    Token::Node(Node::Metadata(Metadata::AxisNames(names))) => format!("axes named {names:?}"),
                    Token::Number(value, _) => format!("the number {value:?}"),
                    Token::Static(value) => format!("the static value {value:?}"),
                };
                out.push((path.to_owned(), what));
            });
            out
        };
        for (a, b) in list(self).into_iter().zip(list(other)) {
            if a != b {
                let path = if a.0.is_empty() { "the root".to_owned() } else { format!("`{}`", a.0) };
                return format!("at {path} one has {}, the other {}", a.1, b.1);
            }
        }
        "one has more children than the other".to_owned()
    }
}

/// Reads a flattened tree from its start.
pub struct Unflatten<'a> {
    tokens: std::slice::Iter<'a, Token>,
    leaves: smallvec::IntoIter<[Array; 8]>,
}

impl Unflatten<'_> {
    pub fn leaf(&mut self) -> Result<Array> {
        match (self.tokens.next(), self.leaves.next()) {
            (Some(Token::Leaf), Some(array)) => Ok(array),
            (token, _) => Err(mismatch("an array", token)),
        }
    }

    /// The next node, which must be a struct or variant of this type.
    pub fn node(&mut self) -> Result<Node> {
        match self.tokens.next() {
            Some(Token::Node(node)) => Ok(node.clone()),
            token => Err(mismatch("a node", token)),
        }
    }

    /// The next node, checked to be `node`.
    pub fn expect(&mut self, node: Node) -> Result<()> {
        let found = self.node()?;
        if found == node {
            Ok(())
        } else {
            Err(err!(Type, "tree structure mismatch: expected {node:?}, found {found:?}"))
        }
    }
}

/// Writes a field whose dimensions may have names; for derived code.
#[doc(hidden)]
pub fn flatten_named<T: Tree>(value: &T, names: &Option<AxisNames>, out: &mut Flat) {
    if let Some(names) = names {
        out.node(Node::Metadata(Metadata::AxisNames(names.clone())));
    }
    value.flatten(out);
}

/// Reads what [`flatten_named`] wrote; for derived code.
#[doc(hidden)]
pub fn unflatten_named<T: Tree>(from: &mut Unflatten<'_>) -> Result<T> {
    let mut ahead = from.tokens.clone();
    if let Some(Token::Node(Node::Metadata(Metadata::AxisNames(_)))) = ahead.next() {
        from.tokens = ahead;
    }
    T::unflatten(from)
}

/// The error of a node that no variant of an enum has; for derived code.
#[doc(hidden)]
pub fn unexpected(name: &str, node: &Node) -> crate::error::Error {
    err!(Type, "tree structure mismatch: {node:?} is no variant of {name}")
}

fn mismatch(expected: &str, found: Option<&Token>) -> crate::error::Error {
    err!(Type, "tree structure mismatch: expected {expected}, found {found:?}")
        .help("give the structure and all leaves of one tree of this type")
}

/// Rebuilds a tree of type `T`.
#[track_caller]
pub fn unflatten<T: Tree>(def: &TreeDef, leaves: &[Array]) -> Result<T> {
    rebuild(def, leaves.iter().cloned().collect()).at_caller()
}

/// Rebuilds a tree of leaves that are not needed any more.
pub(crate) fn rebuild<T: Tree>(def: &TreeDef, leaves: SmallVec<[Array; 8]>) -> Result<T> {
    let mut from = Unflatten { tokens: def.0.iter(), leaves: leaves.into_iter() };
    let tree = T::unflatten(&mut from)?;
    if from.tokens.next().is_some() || from.leaves.next().is_some() {
        return Err(err!(Type, "tree structure mismatch: the structure has more nodes or leaves than the type takes")
            .help("give the leaves of one tree of this type, as `tree::leaves` does"));
    }
    Ok(tree)
}

/// The leaves of `tree`, in order.
pub fn leaves<T: Tree>(tree: &T) -> Vec<Array> {
    Flat::of(tree).leaves.into_vec()
}

/// The structure of `tree`.
pub fn structure<T: Tree>(tree: &T) -> TreeDef {
    Flat::of(tree).def
}

/// The leaves of `tree` with their key paths.
pub fn leaves_with_path<T: Tree>(tree: &T) -> Vec<(String, Array)> {
    let flat = Flat::of(tree);
    flat.def.paths().into_iter().zip(flat.leaves).collect()
}

/// Applies `f` to every leaf.
///
/// ```
/// # use shardax::prelude::*;
/// let doubled = tree::map(|x| x * 2, (array([1, 2]), vec![array([3])]))?;
/// assert_eq!(doubled.0.to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn map<T: Tree>(mut f: impl FnMut(Array) -> Array, tree: T) -> Result<T> {
    let mut flat = Flat::of(&tree);
    for leaf in &mut flat.leaves {
        *leaf = f(leaf.clone());
    }
    flat.build()
}

/// Applies `f` to every leaf and its key path: `.conv1.kernel`, `[0]` or `["image"]`.
///
/// ```
/// # use shardax::prelude::*;
/// let decayed = tree::map_with_path(|path, x| if path == "[1]" { x } else { x * 0.5 }, (ones([2]), ones([2])))?;
/// assert_eq!((decayed.0.to_vec::<f32>()?, decayed.1.to_vec::<f32>()?), (vec![0.5; 2], vec![1.0; 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn map_with_path<T: Tree>(mut f: impl FnMut(&str, Array) -> Array, tree: T) -> Result<T> {
    let mut flat = Flat::of(&tree);
    let paths = flat.def.paths();
    for (leaf, path) in flat.leaves.iter_mut().zip(&paths) {
        *leaf = f(path, leaf.clone());
    }
    flat.build()
}

/// The leaves folded into one value, in order, beginning with `init`.
///
/// ```
/// # use shardax::prelude::*;
/// let count = tree::reduce(|n, x| n + x.size(), &(ones([2, 3]), vec![ones([4])]), 0);
/// assert_eq!(count, 10);
/// ```
pub fn reduce<T: Tree, A>(f: impl FnMut(A, Array) -> A, tree: &T, init: A) -> A {
    Flat::of(tree).leaves.into_iter().fold(init, f)
}

/// Whether every leaf, a single value each, is true: not zero. Waits for the values.
///
/// Fails for a leaf of more elements than one.
///
/// ```
/// # use shardax::prelude::*;
/// let finite = tree::map(|x| x.isfinite().all(..), (ones([2]), zeros([3])))?;
/// assert!(tree::all(&finite)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn all<T: Tree>(tree: &T) -> Result<bool> {
    let mut all = true;
    for (path, leaf) in leaves_with_path(tree) {
        match leaf.to_scalars().at_caller()?.as_slice() {
            [value] => all &= !value.is_zero(),
            values => {
                return Err(err!(
                    Value,
                    "The truth value of an array with {} elements is ambiguous: leaf{path}, of type {}",
                    values.len(),
                    leaf.type_name()
                )
                .help("reduce each leaf first: `tree::map(|x| x.all(..), tree)`"))
                .at_caller();
            }
        }
    }
    Ok(all)
}

/// Applies `f` to the leaves of two trees of one structure, pairwise.
///
/// An error names the first key path at which the structures differ.
#[track_caller]
pub fn map2<T: Tree>(mut f: impl FnMut(Array, Array) -> Array, a: T, b: T) -> Result<T> {
    let (mut a, b) = (Flat::of(&a), Flat::of(&b));
    same_structure(&a.def, &b.def).at_caller()?;
    for (x, y) in a.leaves.iter_mut().zip(b.leaves) {
        *x = f(x.clone(), y);
    }
    a.build()
}

/// Applies `f` to the leaves of three trees of one structure.
#[track_caller]
pub fn map3<T: Tree>(mut f: impl FnMut(Array, Array, Array) -> Array, a: T, b: T, c: T) -> Result<T> {
    let (mut a, b, c) = (Flat::of(&a), Flat::of(&b), Flat::of(&c));
    same_structure(&a.def, &b.def).at_caller()?;
    same_structure(&a.def, &c.def).at_caller()?;
    for ((x, y), z) in a.leaves.iter_mut().zip(b.leaves).zip(c.leaves) {
        *x = f(x.clone(), y, z);
    }
    a.build()
}

pub(crate) fn same_structure(a: &TreeDef, b: &TreeDef) -> Result<()> {
    if a == b {
        return Ok(());
    }
    Err(err!(Type, "trees of different structure: {}", a.difference(b))
        .help("both must have the same keys, lengths, options and static values at every node"))
}

impl Tree for Array {
    fn flatten(&self, out: &mut Flat) {
        out.leaf(self.clone());
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        from.leaf()
    }
}

// A type that holds itself does so behind a `Vec`, a map or a `Box`: there the stack grows.

impl<T: Tree> Tree for Vec<T> {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::List(self.len()));
        grow(|| self.iter().for_each(|x| x.flatten(out)));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.node()? {
            Node::List(n) => grow(|| (0..n).map(|_| T::unflatten(from)).collect()),
            other => Err(err!(Type, "tree structure mismatch: expected a list, found {other:?}")
                .help("rebuild the type that was taken apart")),
        }
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::List(N));
        self.iter().for_each(|x| x.flatten(out));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        from.expect(Node::List(N))?;
        let items: Vec<T> = (0..N).map(|_| T::unflatten(from)).collect::<Result<_>>()?;
        items.try_into().map_err(|_| err!(Type, "tree structure mismatch: expected a list of {N}"))
    }
}

impl<K, T> Tree for BTreeMap<K, T>
where
    K: Ord + Clone + fmt::Display + std::str::FromStr,
    T: Tree,
{
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::Map(self.keys().map(|k| k.to_string()).collect()));
        grow(|| self.values().for_each(|x| x.flatten(out)));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        let Node::Map(keys) = from.node()? else { bail!(Type, "tree structure mismatch: expected a map") };
        let mut entry = |key: &String| {
            let parsed = key.parse().map_err(|_| err!(Type, "map key {key:?} does not read back as its type"))?;
            Ok((parsed, T::unflatten(from)?))
        };
        grow(|| keys.iter().map(&mut entry).collect())
    }
}

/// The leaves come in the order of the keys, as in a `BTreeMap`.
impl<K, T, S> Tree for HashMap<K, T, S>
where
    K: Ord + Hash + Clone + fmt::Display + std::str::FromStr,
    T: Tree,
    S: BuildHasher + Default + Clone,
{
    fn flatten(&self, out: &mut Flat) {
        let mut items: Vec<(&K, &T)> = self.iter().collect();
        items.sort_unstable_by_key(|(key, _)| *key);
        out.node(Node::Map(items.iter().map(|(key, _)| key.to_string()).collect()));
        items.iter().for_each(|(_, x)| x.flatten(out));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        Ok(BTreeMap::<K, T>::unflatten(from)?.into_iter().collect())
    }
}

impl<T: Tree> Tree for Option<T> {
    fn flatten(&self, out: &mut Flat) {
        match self {
            // `Some` is a node, so that `Some(None)` and `None` differ.
            Some(x) => {
                out.node(Node::Some);
                x.flatten(out);
            }
            None => out.node(Node::None),
        }
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.node()? {
            Node::None => Ok(None),
            _ => T::unflatten(from).map(Some),
        }
    }
}

impl<T: Tree> Tree for Box<T> {
    fn flatten(&self, out: &mut Flat) {
        grow(|| (**self).flatten(out));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        grow(|| T::unflatten(from).map(Box::new))
    }
}

macro_rules! tuple_trees {
    ($(($n:literal $($t:ident $i:tt),*))*) => {$(
        impl<$($t: Tree),*> Tree for ($($t,)*) {
            fn flatten(&self, out: &mut Flat) {
                out.node(Node::Tuple($n));
                $(self.$i.flatten(out);)*
            }
            fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
                from.expect(Node::Tuple($n))?;
                Ok(($($t::unflatten(from)?,)*))
            }
        }
    )*};
}

tuple_trees! {
    (0)
    (1 A 0)
    (2 A 0, B 1)
    (3 A 0, B 1, C 2)
    (4 A 0, B 1, C 2, D 3)
    (5 A 0, B 1, C 2, D 3, E 4)
    (6 A 0, B 1, C 2, D 3, E 4, F 5)
    (7 A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (8 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
    (9 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8)
    (10 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9)
    (11 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10)
    (12 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11)
    (13 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12)
    (14 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13)
    (15 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14)
    (16 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15)
}

macro_rules! number_trees {
    ($($t:ty, |$v:ident| $back:expr;)*) => {$(
        impl Tree for $t {
            fn flatten(&self, out: &mut Flat) {
                out.def.0.push(Token::Number(Element::to_scalar(*self), stringify!($t)));
            }
            fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
                match from.tokens.next() {
                    Some(Token::Number($v, stringify!($t))) => Ok($back),
                    token => Err(mismatch(concat!("a number of type ", stringify!($t)), token)),
                }
            }
        }
    )*};
}

number_trees! {
    bool, |v| !v.is_zero();
    i8, |v| v.to_i128() as i8;
    i16, |v| v.to_i128() as i16;
    i32, |v| v.to_i128() as i32;
    i64, |v| v.to_i128() as i64;
    u8, |v| v.to_i128() as u8;
    u16, |v| v.to_i128() as u16;
    u32, |v| v.to_i128() as u32;
    u64, |v| v.to_i128() as u64;
    f32, |v| v.to_f64() as f32;
    f64, |v| v.to_f64();
}

impl Tree for usize {
    fn flatten(&self, out: &mut Flat) {
        out.def.0.push(Token::Number(Scalar::Int(*self as i128), "usize"));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.tokens.next() {
            Some(Token::Number(v, "usize")) => Ok(v.to_i128() as usize),
            token => Err(mismatch("a number of type usize", token)),
        }
    }
}

/// A value that is part of a function's structure rather than its data: configuration, a flag, a name.
///
/// A compiled function is made anew for each value. The type must compare and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Static<T>(pub T);

impl<T> Deref for Static<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Tree for Static<T>
where
    T: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static,
{
    fn flatten(&self, out: &mut Flat) {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        out.def.0.push(Token::Static(StaticValue {
            value: Arc::new(self.0.clone()),
            hash: hasher.finish(),
            equal: |a, b| matches!((a.downcast_ref::<T>(), b.downcast_ref::<T>()), (Some(a), Some(b)) if a == b),
            text: |v, f| match v.downcast_ref::<T>() {
                Some(v) => v.fmt(f),
                None => f.write_str("?"),
            },
        }));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.tokens.next() {
            Some(Token::Static(v)) => match v.value.downcast_ref::<T>() {
                Some(v) => Ok(Static(v.clone())),
                None => Err(err!(Type, "static value {v:?} is not a {}", std::any::type_name::<T>())),
            },
            token => Err(mismatch("a static value", token)),
        }
    }
}
