//! Mapping over one or several trees, of equal or different types, by leaf or by subtree.

use std::marker::PhantomData;
use std::ops::Range;

use super::structure::Token;
use super::{Compose, Flat, Node, Tree, TreeDef, rebuild};
use crate::core::array::Array;
use crate::core::function::IntoOutput;
use crate::error::{AtCaller, Error, Result, err};

/// Trees that [`map`], [`map_into`] and [`map_with_path`] accept: a tree, several trees with equal structures
/// ([`zip`]), or a tree whose leaves are subtrees ([`is_leaf`]).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    note = "several trees are given as `tree::zip((a, b))`, whose function takes a tuple: `|(x, y)| x + y`"
)]
pub trait Trees {
    /// The argument of the mapped function: an array, or a tuple with one leaf from each tree.
    type Leaf;
    /// The leaf type of the first tree. The function of [`map`] returns it.
    type First: Tree;
    /// The type of the first tree, which is also the type of the result.
    type Tree: Tree;
    /// Splits the trees into their leaves and the structure around them.
    fn places(self) -> Result<Places<Self::Leaf>>;
}

/// The structure of the first of several trees, and the leaves to which the function is applied.
#[derive(Debug)]
pub struct Places<L> {
    def: TreeDef,
    /// For each leaf, the range of tokens of the structure that it replaces.
    spans: Vec<Range<usize>>,
    leaves: Vec<L>,
    /// The arrays outside of the leaves.
    outside: Vec<Array>,
}

impl<L> Places<L> {
    fn paths(&self) -> Vec<String> {
        self.spans.iter().map(|span| self.def.path_of_token(span.start)).collect()
    }

    /// The first tree's structure with these subtrees instead of its leaves.
    fn replaced(&self, parts: &[Flat]) -> Flat {
        let (mut out, mut position) = (Flat::default(), 0);
        let mut outside = self.outside.iter();
        for (span, part) in self.spans.iter().zip(parts) {
            append_between(&mut out, &self.def.part(position..span.start), &mut outside);
            out.append(part);
            position = span.end;
        }
        append_between(&mut out, &self.def.part(position..self.def.tokens().len()), &mut outside);
        out
    }
}

/// Appends the part of a structure between two subtrees, with its leaves from `outside`.
fn append_between<'a>(out: &mut Flat, def: &TreeDef, outside: &mut impl Iterator<Item = &'a Array>) {
    out.leaves.extend(outside.take(def.leaf_count()).cloned());
    out.def.extend(def);
}

/// The leaves of a tree, where each array is one leaf.
fn arrays(flat: Flat) -> Places<Array> {
    let tokens = flat.def.tokens().enumerate();
    let spans = tokens.filter_map(|(i, token)| matches!(token, Token::Leaf).then_some(i..i + 1)).collect();
    Places { def: flat.def, spans, leaves: flat.leaves.into_vec(), outside: Vec::new() }
}

impl<T: Tree> Trees for T {
    type Leaf = Array;
    type First = Array;
    type Tree = T;
    fn places(self) -> Result<Places<Array>> {
        Ok(arrays(Flat::of(&self)))
    }
}

/// A tree whose leaves are its subtrees of type `L`; see [`is_leaf`].
#[derive(Clone, Debug)]
pub struct IsLeaf<T, L> {
    tree: T,
    leaf: PhantomData<fn(L)>,
}

/// A tree whose leaves are its outermost subtrees of type `L`: JAX's `is_leaf=lambda x: isinstance(x, L)`. The
/// parameter of the mapped function determines the type. Arrays outside of such subtrees are unchanged.
///
/// ```
/// # use shardax::prelude::*;
/// // `None` is a leaf too.
/// let biases = vec![Some(array([1.0f32])), None];
/// let filled = tree::map(|b: Option<Array>| Some(b.unwrap_or_else(|| zeros([1]))), tree::is_leaf(biases))?;
/// assert_eq!(filled[1].as_ref().unwrap().to_vec::<f32>()?, [0.0]);
///
/// #[derive(Tree, Clone)]
/// struct Lora { a: Array, b: Array }
/// let layers = (ones([2]), vec![Lora { a: ones([2, 1]), b: ones([1, 2]) }]);
/// let swapped = tree::map(|pair: Lora| Lora { a: pair.b, b: pair.a }, tree::is_leaf(layers))?;
/// assert_eq!(swapped.1[0].a.shape(), [1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn is_leaf<L: Tree, T: Tree>(tree: T) -> IsLeaf<T, L> {
    IsLeaf { tree, leaf: PhantomData }
}

impl<T: Tree, L: Tree> Trees for IsLeaf<T, L> {
    type Leaf = L;
    type First = L;
    type Tree = T;
    fn places(self) -> Result<Places<L>> {
        let flat = Flat::of(&self.tree);
        let (spans, before) = (subtrees::<L>(&flat), leaves_before(&flat.def));
        let leaves = spans.iter().map(|span| subtree(&flat, &before, span).build()).collect::<Result<_>>()?;
        let outside = outside(&flat, &before, &spans);
        Ok(Places { def: flat.def, spans, leaves, outside })
    }
}

/// The arrays outside of these subtrees.
fn outside(flat: &Flat, before: &[usize], spans: &[Range<usize>]) -> Vec<Array> {
    let mut gone = spans.iter().flat_map(|span| before[span.start]..before[span.end]).peekable();
    let leaves = flat.leaves.iter().enumerate();
    leaves.filter(|(i, _)| gone.next_if_eq(i).is_none()).map(|(_, leaf)| leaf.clone()).collect()
}

/// The token ranges of the outermost subtrees of type `L`.
fn subtrees<L: Tree>(flat: &Flat) -> Vec<Range<usize>> {
    let before = leaves_before(&flat.def);
    let (mut spans, mut at) = (Vec::new(), 0);
    while at + 1 < before.len() {
        let span = at..flat.def.end_of(at);
        if subtree(flat, &before, &span).build::<L>().is_ok() {
            at = span.end;
            spans.push(span);
        } else {
            at += 1
        }
    }
    spans
}

/// The number of leaves before each token, and before the end.
fn leaves_before(def: &TreeDef) -> Vec<usize> {
    let mut count = 0;
    let mut before = vec![0];
    before.extend(def.tokens().map(|token| {
        count += usize::from(matches!(token, Token::Leaf));
        count
    }));
    before
}

/// The subtree with these tokens.
fn subtree(flat: &Flat, before: &[usize], span: &Range<usize>) -> Flat {
    Flat { leaves: flat.leaves[before[span.start]..before[span.end]].into(), def: flat.def.part(span.clone()) }
}

/// Several trees, mapped together; see [`zip`].
#[derive(Clone, Debug)]
pub struct Zip<T, L> {
    trees: T,
    leaves: PhantomData<fn(L)>,
}

/// Trees that [`zip`] accepts: a tuple, or a `Vec` of trees of one type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple or a list of trees",
    label = "not several trees",
    note = "`tree::zip` takes a tuple of two or more trees of one structure, `tree::zip((params, gradients))`, or a `Vec` of them, `tree::zip(models)`"
)]
pub trait Zipped {
    /// A tuple or a `Vec` with one array per tree.
    type Arrays;
}

/// A tuple or a `Vec` of subtrees, one from each tree at the same place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of subtrees of these trees",
    label = "not one subtree for each tree",
    note = "the mapped function takes a tuple with one subtree for each tree: `|(p, (mu, nu)): (Array, (Array, Array))| p - mu`"
)]
pub trait ZippedLeaves<T> {
    /// The leaf of the first tree.
    type First: Tree;
    /// The type of the first tree.
    type Tree: Tree;
    /// Splits the trees into their leaves and the structure around them.
    fn places(trees: T) -> Result<Places<Self>>
    where
        Self: Sized;
}

/// Two to eight trees with equal structures to map together. The mapped function receives a tuple. Their types may
/// differ, for example a struct and a map with the same names. The mapped function of a `Vec` of trees receives a `Vec`,
/// for example of the arrays to stack.
///
/// If the structures differ, the error names the first key path at which they do.
///
/// ```
/// # use shardax::prelude::*;
/// let (params, grads) = ((ones([2]), ones([3])), (ones([2]), ones([3])));
/// let next = tree::map(|(p, g)| p - 0.5 * g, tree::zip((params, grads)))?;
/// assert_eq!(next.0.to_vec::<f32>()?, [0.5, 0.5]);
///
/// let models = vec![(ones([2]), ones([3])), (zeros([2]), zeros([3]))];
/// let stacked = tree::map(|arrays| stack(arrays, 0), tree::zip(models))?;
/// assert_eq!(stacked.1.shape(), [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn zip<T: Zipped>(trees: T) -> Zip<T, T::Arrays> {
    Zip { trees, leaves: PhantomData }
}

impl<T, A> Zip<T, A> {
    /// The parameter of the mapped function determines the types of the leaves: subtrees of the first tree, and the
    /// subtrees of the other trees at the same places. If the leaves of the first tree are arrays, it is a prefix of
    /// the others.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let (params, moments) = (vec![ones([2]), ones([2])], vec![(ones([2]), zeros([2])), (ones([2]), ones([2]))]);
    /// let f = |(p, (mu, nu)): (Array, (Array, Array))| p - mu / (nu + 1);
    /// let next = tree::map(f, tree::zip((params, moments)).is_leaf())?;
    /// assert_eq!(next[1].to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn is_leaf<L: ZippedLeaves<T>>(self) -> Zip<T, L> {
        Zip { trees: self.trees, leaves: PhantomData }
    }
}

impl<T, L: ZippedLeaves<T>> Trees for Zip<T, L> {
    type Leaf = L;
    type First = L::First;
    type Tree = L::Tree;
    fn places(self) -> Result<Places<L>> {
        L::places(self.trees)
    }
}

macro_rules! zipped {
    ($((A $LA:ident $(, $T:ident $L:ident $i:tt)+))*) => {$(
        impl<A: Tree $(, $T: Tree)+> Zipped for (A, $($T),+) {
            type Arrays = (Array, $(zipped!(@array $T)),+);
        }

        impl<A: Tree, $LA: Tree $(, $T: Tree, $L: Tree)+> ZippedLeaves<(A, $($T),+)> for ($LA, $($L),+) {
            type First = $LA;
            type Tree = A;
            fn places(trees: (A, $($T),+)) -> Result<Places<Self>> {
                let first = Flat::of(&trees.0);
                let (spans, before) = (subtrees::<$LA>(&first), leaves_before(&first.def));
                let aligned = [$(align_with(&first, &spans, &Flat::of(&trees.$i))?),+];
                let mut leaves = Vec::with_capacity(spans.len());
                for (leaf, span) in spans.iter().enumerate() {
                    let first_leaf = subtree(&first, &before, span).build()?;
                    leaves.push((first_leaf, $(leaf_of::<$L>(&first, span, &aligned[$i - 1][leaf])?),+));
                }
                let outside = outside(&first, &before, &spans);
                Ok(Places { def: first.def, spans, leaves, outside })
            }
        }
    )*};
    (@array $T:ident) => { Array };
}

impl<A: Tree> Zipped for Vec<A> {
    type Arrays = Vec<Array>;
}

impl<A: Tree, L: Tree> ZippedLeaves<Vec<A>> for Vec<L> {
    type First = L;
    type Tree = A;
    fn places(trees: Vec<A>) -> Result<Places<Self>> {
        let flats: Vec<Flat> = trees.iter().map(Flat::of).collect();
        let Some((first, others)) = flats.split_first() else {
            return Err(err!(Value, "tree::zip of an empty list, whose result would have no structure")
                .help("pass at least one tree"));
        };
        let (spans, before) = (subtrees::<L>(first), leaves_before(&first.def));
        let aligned = others.iter().map(|other| align_with(first, &spans, other)).collect::<Result<Vec<_>>>()?;
        let mut leaves = Vec::with_capacity(spans.len());
        for (leaf, span) in spans.iter().enumerate() {
            let mut parts = vec![subtree(first, &before, span).build()?];
            for other in &aligned {
                parts.push(leaf_of::<L>(first, span, &other[leaf])?);
            }
            leaves.push(parts);
        }
        let outside = outside(first, &before, &spans);
        Ok(Places { def: first.def.clone(), spans, leaves, outside })
    }
}

zipped! {
    (A LA, B LB 1)
    (A LA, B LB 1, C LC 2)
    (A LA, B LB 1, C LC 2, D LD 3)
    (A LA, B LB 1, C LC 2, D LD 3, E LE 4)
    (A LA, B LB 1, C LC 2, D LD 3, E LE 4, F LF 5)
    (A LA, B LB 1, C LC 2, D LD 3, E LE 4, F LF 5, G LG 6)
    (A LA, B LB 1, C LC 2, D LD 3, E LE 4, F LF 5, G LG 6, H LH 7)
}

/// Builds a leaf of type `L` from the subtree of another tree.
fn leaf_of<L: Tree>(first: &Flat, span: &Range<usize>, part: &Flat) -> Result<L> {
    part.build().map_err(|e| {
        let path = first.def.path_of_token(span.start);
        err!(
            Type,
            "trees of different structure: at leaf{path} of the first, another is not a {}: {e}",
            std::any::type_name::<L>()
        )
        .help("leaves are arrays, or of the types of the function's parameter: `tree::zip((x, y)).is_leaf()`")
    })
}

/// The parts of another tree at the places of these subtrees. Nodes around them must be equal, with two exceptions: a
/// map can have a struct's fields as keys, and only one side can have metadata of leaves.
fn align_with(first: &Flat, spans: &[Range<usize>], other: &Flat) -> Result<Vec<Flat>> {
    let (ours, theirs): (Vec<&Token>, Vec<&Token>) = (first.def.tokens().collect(), other.def.tokens().collect());
    let (mut parts, mut spans) = (Vec::with_capacity(spans.len()), spans.iter().peekable());
    let before = leaves_before(&other.def);
    let (mut i, mut j) = (0, 0);
    while i < ours.len() {
        if let Some(span) = spans.next_if(|span| span.start == i) {
            if j >= theirs.len() {
                return Err(different_structure(first, other));
            }
            let end = other.def.end_of(j);
            let mut start = j;
            // An array matches an array with metadata.
            while is_metadata(theirs[start]) && matches!(ours[i], Token::Leaf) {
                start += 1;
            }
            parts.push(subtree(other, &before, &(start..end)));
            (i, j) = (span.end, end);
            continue;
        }
        match (ours[i], theirs.get(j).copied()) {
            (a, Some(b)) if a == b => j += 1,
            (Token::Node(a), Some(Token::Node(b))) if a.names().is_some() && a.names() == b.names() => j += 1,
            (a, _) if is_metadata(a) => {}
            (_, Some(b)) if is_metadata(b) => {
                j += 1;
                continue;
            }
            _ => return Err(different_structure(first, other)),
        }
        i += 1;
    }
    if j == theirs.len() { Ok(parts) } else { Err(different_structure(first, other)) }
}

fn is_metadata(token: &Token) -> bool {
    matches!(token, Token::Node(Node::Metadata(_)))
}

fn different_structure(first: &Flat, other: &Flat) -> Error {
    err!(Type, "trees of different structure: {}", first.def.difference(&other.def))
        .help("all must have the same keys, lengths, options and static values at every node above the leaves")
}

/// Applies `f` to every leaf. `f` can return a leaf or a `Result`.
///
/// Use [`zip`] to map over several trees, [`is_leaf`] to map over subtrees, and [`map_into`] to map to leaves of
/// another type.
///
/// ```
/// # use shardax::prelude::*;
/// let doubled = tree::map(|x| x * 2, (array([1, 2]), vec![array([3])]))?;
/// assert_eq!(doubled.0.to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the first error of `f`, or an error if the trees differ in structure or a result does not fit the type of
/// the tree. A tree of Rust numbers without an array is an error too, because numbers are part of the structure, so that
/// `f` would not be called.
#[track_caller]
pub fn map<T: Trees, R: IntoOutput<Output = T::First>>(mut f: impl FnMut(T::Leaf) -> R, trees: T) -> Result<T::Tree> {
    mapped(trees, |_| Vec::new(), |_, leaf| f(leaf)).at_caller()
}

/// Applies `f` to every leaf and its key path: `.conv1.kernel`, `[0]` or `["image"]`. Accepts the same trees as
/// [`map`].
///
/// ```
/// # use shardax::prelude::*;
/// let decayed = tree::map_with_path(|path, x| if path == "[1]" { x } else { x * 0.5 }, (ones([2]), ones([2])))?;
/// assert_eq!((decayed.0.to_vec::<f32>()?, decayed.1.to_vec::<f32>()?), (vec![0.5; 2], vec![1.0; 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the first error of `f`, or an error if the trees differ in structure or a result does not fit the type of
/// the tree.
#[track_caller]
pub fn map_with_path<T: Trees, R: IntoOutput<Output = T::First>>(
    mut f: impl FnMut(&str, T::Leaf) -> R,
    trees: T,
) -> Result<T::Tree> {
    mapped(trees, Places::paths, |path, leaf| f(path, leaf)).at_caller()
}

fn mapped<T: Trees, R: IntoOutput<Output = T::First>>(
    trees: T,
    paths: impl FnOnce(&Places<T::Leaf>) -> Vec<String>,
    mut f: impl FnMut(&str, T::Leaf) -> R,
) -> Result<T::Tree> {
    let mut places = trees.places()?;
    if let (true, Some(number)) = (places.leaves.is_empty(), places.def.plain_number()) {
        return Err(err!(
            Type,
            "tree::map of the Rust number {number:?}, which is part of the structure and is no leaf"
        )
        .help(format!("map arrays, `array({number:?})`, or iterate over the numbers")));
    }
    let paths = paths(&places);
    let mut parts = Vec::with_capacity(places.leaves.len());
    for (i, leaf) in std::mem::take(&mut places.leaves).into_iter().enumerate() {
        let path = paths.get(i).map_or("", String::as_str);
        parts.push(Flat::of(&f(path, leaf).into_output()?));
    }
    let flat = places.replaced(&parts);
    rebuild(&flat.def, flat.leaves)
}

/// Applies `f`, which returns a tree of any type, to every array. The result has the structure of `tree` with the
/// returned trees instead of its arrays. Tuples, lists and maps keep their form; a struct becomes a
/// [`Composed`](super::Composed), and a value that is not an array becomes a [`Static`](super::Static).
///
/// ```
/// # use shardax::prelude::*;
/// let shapes = tree::map_into(|x| Static(x.shape().to_vec()), (ones([2]), vec![ones([3, 1])]))?;
/// assert_eq!((&*shapes.0, &*shapes.1[0]), (&vec![2], &vec![3, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the first error of `f`, or an error if the trees differ in structure.
#[track_caller]
pub fn map_into<T, R>(mut f: impl FnMut(T::Leaf) -> R, trees: T) -> Result<<T::Tree as Compose<R::Output>>::Composed>
where
    T: Trees<First = Array>,
    T::Tree: Compose<R::Output>,
    R: IntoOutput,
{
    compose_leaves(|leaf| f(leaf).into_output(), trees).at_caller()
}

fn compose_leaves<T, X>(mut f: impl FnMut(T::Leaf) -> Result<X>, trees: T) -> Result<<T::Tree as Compose<X>>::Composed>
where
    T: Trees<First = Array>,
    T::Tree: Compose<X>,
    X: Tree,
{
    let places = trees.places()?;
    let tree: T::Tree = Flat { leaves: first_arrays(&places), def: places.def.clone() }.build()?;
    let mut leaves = places.leaves.into_iter();
    tree.compose(&mut || match leaves.next() {
        Some(leaf) => f(leaf),
        None => Err(err!(Type, "the trees have fewer leaves than the first")
            .help("pass trees with the structure of the first tree")),
    })
}

/// Placeholder arrays, one per leaf, to build a tree that is split into its leaves again.
fn first_arrays<L>(places: &Places<L>) -> smallvec::SmallVec<[Array; 8]> {
    let number = Array::literal(crate::dtype::Scalar::Int(0), crate::dtype::DType::F32, true);
    smallvec::SmallVec::from_elem(number, places.leaves.len())
}

/// Exchanges the outer and the inner structure; for example, a list of pairs becomes a pair of lists. In `tree`, each
/// leaf of the structure `outer` must be a tree of structure `inner`.
///
/// ```
/// # use shardax::prelude::*;
/// let pairs = vec![(array(1), array(2)), (array(3), array(4))];
/// let (outer, inner) = (tree::structure(&vec![array(0), array(0)]), tree::structure(&(array(0), array(0))));
/// let lists: (Vec<Array>, Vec<Array>) = tree::transpose(&outer, &inner, pairs)?;
/// assert_eq!((lists.0[1].item::<i32>()?, lists.1[0].item::<i32>()?), (3, 2));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error unless `tree` has that structure and `Out` has the exchanged one.
#[track_caller]
pub fn transpose<Out: Tree, T: Tree>(outer: &TreeDef, inner: &TreeDef, tree: T) -> Result<Out> {
    let flat = Flat::of(&tree);
    if flat.def != compose(outer, inner) {
        return Err(err!(Type, "trees of different structure: {}", compose(outer, inner).difference(&flat.def))
            .help("pass the outer structure, and the structure of the trees in place of its leaves"))
        .at_caller();
    }
    let (n, m) = (outer.leaf_count(), inner.leaf_count());
    let leaves = (0..m).flat_map(|j| (0..n).map(move |i| i * m + j)).map(|at| flat.leaves[at].clone()).collect();
    rebuild(&compose(inner, outer), leaves).at_caller()
}

/// The structure `outer` with `inner` instead of each leaf.
fn compose(outer: &TreeDef, inner: &TreeDef) -> TreeDef {
    let mut out = TreeDef::default();
    for token in outer.tokens() {
        match token {
            Token::Leaf => out.extend(inner),
            token => out.push(token.clone()),
        }
    }
    out
}

/// Repeats each leaf of `prefix` for all leaves of `tree` below it. The result has the type of `tree`.
///
/// ```
/// # use shardax::prelude::*;
/// let rates = tree::broadcast((array(0.1f32), array(0.2f32)), &(ones([2]), vec![ones([3]), ones([4])]));
/// # let rates: (Array, Vec<Array>) = rates?;
/// assert_eq!(rates.1.len(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `prefix` is not a prefix of `tree`.
#[track_caller]
pub fn broadcast<P: Tree, T: Tree>(prefix: P, tree: &T) -> Result<T> {
    let full = Flat::of(tree);
    repeat_leaves(Flat::of(&prefix), &full).and_then(|leaves| rebuild(&full.def, leaves)).at_caller()
}

/// Repeats each leaf of `prefix` for all leaves of `full` below it.
fn repeat_leaves(prefix: Flat, full: &Flat) -> Result<smallvec::SmallVec<[Array; 8]>> {
    let prefix = arrays(prefix);
    let flat_prefix = Flat { leaves: prefix.leaves.iter().cloned().collect(), def: prefix.def };
    let below = align_with(&flat_prefix, &prefix.spans, full)?;
    Ok(prefix.leaves.iter().zip(below).flat_map(|(leaf, part)| vec![leaf.clone(); part.leaves.len()]).collect())
}

/// Combines all leaves with an associative function, pairwise in a balanced order. Returns `None` if there are no
/// leaves.
///
/// ```
/// # use shardax::prelude::*;
/// let sum = tree::reduce_associative(|x, y| x + y, &(array(1), vec![array(2), array(3)]));
/// assert_eq!(sum.unwrap().item::<i32>()?, 6);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn reduce_associative<T: Tree>(mut f: impl FnMut(Array, Array) -> Array, tree: &T) -> Option<Array> {
    let mut leaves = Flat::of(tree).leaves.into_vec();
    while leaves.len() > 1 {
        let mut pairs = leaves.into_iter();
        leaves = std::iter::from_fn(|| {
            let x = pairs.next()?;
            Some(match pairs.next() {
                Some(y) => f(x, y),
                None => x,
            })
        })
        .collect();
    }
    leaves.pop()
}

/// Returns the outermost subtrees of type `L` with their key paths.
///
/// ```
/// # use shardax::prelude::*;
/// let tree = (vec![Some(ones([2])), None], ones([3]));
/// let found = tree::subtrees_with_path::<Option<Array>, _>(&tree)?;
/// assert_eq!((found.len(), found[1].0.as_str()), (2, "[0][1]"));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a subtree cannot be built from its leaves.
#[track_caller]
pub fn subtrees_with_path<L: Tree, T: Tree>(tree: &T) -> Result<Vec<(String, L)>> {
    let places = is_leaf::<L, T>(tree.clone()).places().at_caller()?;
    Ok(places.paths().into_iter().zip(places.leaves).collect())
}
