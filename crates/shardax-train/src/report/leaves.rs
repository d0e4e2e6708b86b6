//! Arrays for a report.

use shardax::prelude::*;

/// A tree of arrays, or a tuple of references to trees. `Kind` distinguishes the two, and is inferred.
pub trait Leaves<Kind> {
    /// The arrays, each with its key path.
    fn leaves(&self) -> Vec<(String, Array)>;
}

/// The kind of a tree.
#[derive(Debug)]
pub struct Owned;

/// The kind of a tuple of references.
#[derive(Debug)]
pub struct Borrowed;

impl<T: Tree> Leaves<Owned> for T {
    fn leaves(&self) -> Vec<(String, Array)> {
        tree::leaves_with_path(self)
    }
}

macro_rules! tuples_of_references {
    ($(($($at:tt $t:ident),*))*) => {$(
        impl<$($t: Tree),*> Leaves<Borrowed> for ($(&$t,)*) {
            fn leaves(&self) -> Vec<(String, Array)> {
                let mut leaves = Vec::new();
                $(
                    let part = tree::leaves_with_path(self.$at).into_iter();
                    leaves.extend(part.map(|(path, leaf)| (format!("[{}]{path}", $at), leaf)));
                )*
                leaves
            }
        }
    )*};
}

tuples_of_references! { (0 A) (0 A, 1 B) (0 A, 1 B, 2 C) (0 A, 1 B, 2 C, 3 D) (0 A, 1 B, 2 C, 3 D, 4 E) }
