//! Functions on all leaves of trees: list, map, fold.

use super::{Flat, Tree, TreeDef, same_structure};
use crate::core::array::Array;
use crate::error::{AtCaller, Result, err};

/// Returns the leaves of `tree`, in order.
pub fn leaves<T: Tree>(tree: &T) -> Vec<Array> {
    Flat::of(tree).leaves.into_vec()
}

/// Returns the structure of `tree`.
pub fn structure<T: Tree>(tree: &T) -> TreeDef {
    Flat::of(tree).def
}

/// Returns the leaves of `tree` with their key paths.
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

/// Folds the leaves into one value, in order, beginning with `init`.
///
/// ```
/// # use shardax::prelude::*;
/// let count = tree::reduce(|n, x| n + x.size(), &(ones([2, 3]), vec![ones([4])]), 0);
/// assert_eq!(count, 10);
/// ```
pub fn reduce<T: Tree, A>(f: impl FnMut(A, Array) -> A, tree: &T, init: A) -> A {
    Flat::of(tree).leaves.into_iter().fold(init, f)
}

/// Returns `true` if every leaf is a scalar that is not zero. Waits for the values.
///
/// Fails for a leaf of more than one element.
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
