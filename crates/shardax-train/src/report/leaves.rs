//! Arrays for a report.

use shardax::prelude::*;

/// A tree of arrays, or a tuple of references to trees. `Kind` distinguishes the two, and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    label = "neither an array nor made of arrays",
    note = "pass a tree, or a tuple of references to trees; a struct of arrays derives `Tree` and `Clone`"
)]
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
    ($(($($t:ident $i:tt),*))*) => {$(
        impl<$($t: Tree),*> Leaves<Borrowed> for ($(&$t,)*) {
            fn leaves(&self) -> Vec<(String, Array)> {
                let mut leaves = Vec::new();
                $(
                    let part = tree::leaves_with_path(self.$i).into_iter();
                    leaves.extend(part.map(|(path, leaf)| (format!("[{}]{path}", $i), leaf)));
                )*
                leaves
            }
        }
    )*};
}

shardax::__each_tuple!(tuples_of_references);
