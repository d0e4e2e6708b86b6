//! Arguments of a function by position: the static, donated and differentiated arguments of `jit`, `pmap` and `grad`.

use super::tree::TreeDef;
use crate::error::{Result, err};

/// Checks the static and donated arguments, and marks the donated leaves.
pub(crate) fn check_argnums(def: &TreeDef, (fixed, what): (&[i32], &str), donated: &[i32]) -> Result<Vec<bool>> {
    let count = def.root_children().map_or(0, |c| c.len());
    let fixed = positions(fixed, count, what)?;
    let donated = positions(donated, count, "donate_argnums")?;
    check_static(def, &fixed, what)?;
    if let Some(both) = fixed.iter().find(|a| donated.contains(a)) {
        return Err(err!(
            Value,
            "{what} and donate_argnums cannot intersect. Argument {both} appears in both {what} and donate_argnums"
        )
        .help("static arguments hold no arrays: leave them out of donate_argnums"));
    }
    Ok(leaves_of(def, &donated))
}

/// Positions counted from the first of `count` arguments.
fn positions(argnums: &[i32], count: usize, what: &str) -> Result<Vec<usize>> {
    let positions = argnums.iter().map(|&a| {
        let place = if a < 0 { count as i64 + a as i64 } else { a as i64 };
        usize::try_from(place).ok().filter(|p| *p < count).ok_or_else(|| {
            err!(
                Value,
                "{what} names argument {a}, but the function only accepts {count} positional arguments, counted from 0"
            )
            .help("name arguments of the function, the first as 0 and the last as -1")
        })
    });
    positions.collect()
}

/// Marks the leaves of a tuple of arguments at these positions.
pub(crate) fn leaves_of(def: &TreeDef, argnums: &[usize]) -> Vec<bool> {
    let children = def.root_children().unwrap_or_default().into_iter().enumerate();
    children.flat_map(|(i, (_, def))| std::iter::repeat_n(argnums.contains(&i), def.leaf_count())).collect()
}

/// Fails if an argument declared static holds arrays.
fn check_static(def: &TreeDef, argnums: &[usize], what: &str) -> Result<()> {
    let children = def.root_children().unwrap_or_default();
    for &i in argnums {
        let (_, argument) = &children[i];
        if let Some(path) = argument.paths().first() {
            return Err(err!(
                Value,
                "Non-hashable static arguments are not supported: {what} names argument {i}, which holds an array (argument[{i}]{path})"
            )
            .help("the type of an argument decides whether it is static: pass a plain number, or wrap a value that compares and hashes in `Static`; arrays cannot be static"));
        }
    }
    Ok(())
}
