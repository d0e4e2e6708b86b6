//! Entries of a tree, such as the state of an optimizer, by their names.

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

/// Returns `true` if a part of a key path, `.mu["kernel"][0]`, is this name.
fn names(path: &str, key: &str) -> bool {
    path.split(['.', '[', ']']).any(|part| part.trim_matches('"') == key && !part.is_empty())
}

/// Returns the arrays of a tree that lie at or below an entry of this name, with their key paths.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax_nn::optim::tree_utils;
/// # use std::collections::BTreeMap;
/// let state = (array(3), BTreeMap::from([("mu".to_owned(), array(1.0f32))]));
/// let found = tree_utils::get_all_with_path(&state, "mu");
/// assert_eq!(found[0].0, r#"[1]["mu"]"#);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn get_all_with_path<T: Tree>(tree: &T, key: &str) -> Vec<(String, Array)> {
    tree::leaves_with_path(tree).into_iter().filter(|(path, _)| names(path, key)).collect()
}

/// Returns the array of a tree at or below an entry of this name, for example a step count or a learning rate.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_nn::optim::{GradientTransformation, adam, tree_utils};
/// let state = adam(1e-3).init(&zeros(2))?;
/// assert_eq!(tree_utils::get(&state, "count")?.item::<i32>()?, 0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error unless exactly one array matches. If several can match, use [`get_all_with_path`] instead.
#[track_caller]
pub fn get<T: Tree>(tree: &T, key: &str) -> Result<Array> {
    let mut found = get_all_with_path(tree, key);
    match found.len() {
        1 => Ok(found.swap_remove(0).1),
        0 => Err(missing(tree, key)),
        _ => {
            let paths: Vec<String> = found.into_iter().map(|(path, _)| path).collect();
            let message = format!("found multiple values for {key:?} in the tree: {}", paths.join(", "));
            Err(Error::new(ErrorKind::Value, message)
                .help("call `get_all_with_path` for all values, or read the field of the state for one"))
        }
    }
}

fn missing<T: Tree>(tree: &T, key: &str) -> Error {
    let paths: Vec<String> = tree::leaves_with_path(tree).into_iter().map(|(path, _)| path).collect();
    let message = format!("no entry of the tree is named {key:?}: its arrays are {}", paths.join(", "));
    Error::new(ErrorKind::Value, message).help("use a name of a field, a key of a map or an index, as in these paths")
}

/// Replaces each array at or below an entry of this name by `value`, and returns the new tree.
///
/// The value must have the type of the array that it replaces. Plain numbers are converted.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_nn::optim::{GradientTransformation, adam, tree_utils};
/// let state = adam(1e-3).init(&zeros(2))?;
/// let state = tree_utils::set(&state, "count", 5)?;
/// assert_eq!(tree_utils::get(&state, "count")?.item::<i32>()?, 5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if no array matches, or if the value has another dtype or shape than an array that it replaces.
#[track_caller]
pub fn set<T: Tree>(tree: &T, key: &str, value: impl ArrayLike) -> Result<T> {
    let value = value.into_array();
    if get_all_with_path(tree, key).is_empty() {
        return Err(missing(tree, key));
    }
    tree::map_with_path(
        |path: &str, old: Array| -> Result<Array> {
            if !names(path, key) {
                return Ok(old);
            }
            // Plain numbers adopt the dtype of the value that they replace.
            let new = if value.weak_type() { value.astype(old.dtype()) } else { value.clone() };
            if (new.dtype(), new.shape()) == (old.dtype(), old.shape()) {
                return Ok(new);
            }
            let (want, got) = (old.type_name(), value.type_name());
            let message = format!("the value for {path} of the tree must have type {want}, got {got}");
            Err(Error::new(ErrorKind::Type, message).help("convert the value with `astype` and `broadcast_to`"))
        },
        tree.clone(),
    )
}
