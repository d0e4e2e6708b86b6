//! Trees as arguments of functions that return a tree of the same type: by value or by reference.

use super::{Flat, Tree};
use crate::core::array::Array;

/// Types accepted by functions that return a tree like their argument, such as `psum` and `stop_gradient`: a tree, or a
/// reference to an array, a list, a tuple or a type that derives [`Tree`]. References are cloned, and clones share the memory.
///
/// ```
/// # use shardax::prelude::*;
/// #[derive(Tree, Clone)]
/// struct Params {
///     w: Array,
/// }
/// let params = Params { w: ones(3) };
/// assert_eq!(stop_gradient(&params).w.shape(), stop_gradient(&params.w).shape());
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    label = "neither a tree nor a reference to one",
    note = "put `#[derive(Tree, Clone)]`, or `#[derive(Module, Clone)]` of `shardax-nn`, on a struct or an enum of arrays, or pass a tree by value: `params.clone()`"
)]
pub trait IntoTree {
    /// The tree.
    type Tree: Tree;

    /// The tree, cloned if `self` is a reference.
    fn into_tree(self) -> Self::Tree;
}

impl<T: Tree> IntoTree for T {
    type Tree = T;

    fn into_tree(self) -> T {
        self
    }
}

macro_rules! references {
    ($($type:ty $(, $parameter:ident)*;)*) => {$(
        impl<$($parameter: Tree),*> IntoTree for &$type {
            type Tree = $type;

            fn into_tree(self) -> $type {
                self.clone()
            }
        }
    )*};
}

references! {
    Array;
    Flat;
    Vec<A>, A;
    Option<A>, A;
    (A,), A;
    (A, B), A, B;
    (A, B, C), A, B, C;
    (A, B, C, D), A, B, C, D;
}
