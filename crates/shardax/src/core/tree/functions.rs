//! Functions on all leaves of trees: listing, folding, and mapping two or three trees.

use super::{Flat, Tree, TreeDef, same_structure};
use crate::core::array::Array;
use crate::error::{AtCaller, Result, err};

/// Returns the leaves of `tree`, in order.
///
/// ```
/// # use shardax::prelude::*;
/// let arrays = tree::leaves(&(ones([2]), vec![zeros([3])]));
/// assert_eq!((arrays.len(), arrays[1].shape()), (2, &[3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn leaves<T: Tree>(tree: &T) -> Vec<Array> {
    Flat::of(tree).leaves.into_vec()
}

/// Returns the structure of `tree`.
pub fn structure<T: Tree>(tree: &T) -> TreeDef {
    Flat::of(tree).def
}

/// Returns the leaves and the structure of `tree`, from which [`unflatten`](super::unflatten) rebuilds it.
///
/// ```
/// # use shardax::prelude::*;
/// let pair = (ones([2]), zeros([2]));
/// let (leaves, structure) = tree::flatten(&pair);
/// let (x, _): (Array, Array) = tree::unflatten(&structure, leaves.iter().map(|x| x * 3).collect::<Vec<_>>())?;
/// assert_eq!(x.to_vec::<f32>()?, [3.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn flatten<T: Tree>(tree: &T) -> (Vec<Array>, TreeDef) {
    let flat = Flat::of(tree);
    (flat.leaves.into_vec(), flat.def)
}

/// Returns the leaves of `tree` with their key paths.
///
/// ```
/// # use shardax::prelude::*;
/// let leaves = tree::leaves_with_path(&(ones([2]), vec![zeros([3])]));
/// assert_eq!((leaves[0].0.as_str(), leaves[1].0.as_str()), ("[0]", "[1][0]"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn leaves_with_path<T: Tree>(tree: &T) -> Vec<(String, Array)> {
    let flat = Flat::of(tree);
    flat.def.paths().into_iter().zip(flat.leaves).collect()
}

/// Folds the leaves into one value, in order, starting with `init`.
///
/// ```
/// # use shardax::prelude::*;
/// let count = tree::reduce(|n, x| n + x.size(), &(ones([2, 3]), vec![ones([4])]), 0);
/// assert_eq!(count, 10);
/// ```
pub fn reduce<T: Tree, A>(f: impl FnMut(A, Array) -> A, tree: &T, init: A) -> A {
    Flat::of(tree).leaves.into_iter().fold(init, f)
}

/// Returns `true` if every leaf is a nonzero scalar. Waits for the values.
///
/// ```
/// # use shardax::prelude::*;
/// let finite = tree::map(|x| x.isfinite().all(..), (ones([2]), zeros([3])))?;
/// assert!(tree::all(&finite)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for a leaf with more than one element.
#[track_caller]
pub fn all<T: Tree>(tree: &T) -> Result<bool> {
    let mut all_true = true;
    for (path, leaf) in leaves_with_path(tree) {
        match leaf.to_scalars().at_caller()?.as_slice() {
            [value] => all_true &= !value.is_zero(),
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
    Ok(all_true)
}

/// Applies `f` to the leaves of two trees with equal structures, pairwise.
///
/// ```
/// # use shardax::prelude::*;
/// let (w, b) = tree::map2(|p, g| p - g * 0.5, (ones(2), ones(())), (ones(2), ones(())))?;
/// assert_eq!((w.to_vec::<f32>()?, b.item::<f32>()?), (vec![0.5; 2], 0.5));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the structures differ; it names the first key path at which they do. Also returns an error if
/// the results do not fit the types of the tree.
#[track_caller]
pub fn map2<T: Tree>(mut f: impl FnMut(Array, Array) -> Array, a: T, b: T) -> Result<T> {
    let (mut a, b) = (Flat::of(&a), Flat::of(&b));
    same_structure(&a.def, &b.def).at_caller()?;
    for (x, y) in a.leaves.iter_mut().zip(b.leaves) {
        *x = f(x.clone(), y);
    }
    a.build()
}

/// Applies `f` to the leaves of three trees with equal structures.
///
/// # Errors
/// Returns an error if the trees have different structures, or if a result of `f` carries an error.
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
