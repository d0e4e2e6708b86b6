//! Indices of refs: array indices, and ranges that start at a computed index.

use crate::core::array::Array;
use crate::ops::index::{IndexItem, IntoIndexItem};
use crate::ops::operators::ArrayLike;

/// `size` entries from a computed start; see [`ds`].
#[derive(Clone, Debug)]
pub struct Ds {
    pub(super) start: Array,
    pub(super) size: usize,
}

/// Selects `size` entries from `start`, a number or a traced integer scalar, in an index of a ref: `x.at((ds(&i * 8,
/// 8), ..))`.
///
/// A computed start is clamped so that the range lies inside, except in [`RefPart::load`](super::RefPart::load) and
/// [`RefPart::store`](super::RefPart::store).
pub fn ds(start: impl ArrayLike, size: usize) -> Ds {
    Ds { start: start.into_array(), size }
}

/// One entry of an index of a ref.
#[derive(Clone, Debug)]
pub enum RefIndexItem {
    /// As in an index of an array.
    Item(IndexItem),
    /// A range with a computed start.
    Ds(Ds),
}

/// Types accepted as an entry of an index of a ref.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index of a ref",
    label = "not an index",
    note = "an index is an integer, a range, an array of integers, or `ds(start, size)` for a range with a computed start"
)]
pub trait IntoRefIndexItem {
    /// Returns the entry.
    fn into_ref_index_item(self) -> RefIndexItem;
}

impl<T: IntoIndexItem> IntoRefIndexItem for T {
    fn into_ref_index_item(self) -> RefIndexItem {
        RefIndexItem::Item(self.into_index_item())
    }
}

impl IntoRefIndexItem for Ds {
    fn into_ref_index_item(self) -> RefIndexItem {
        RefIndexItem::Ds(self)
    }
}

/// An index of a ref: one entry, or a tuple of up to sixteen.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index of a ref",
    label = "not an index",
    note = "one entry, or a tuple with one for each dimension: `r.at(0)`, `r.at((.., 1..3))`, `r.at(ds(&i, 8))`"
)]
pub trait IntoRefIndex {
    /// Returns the entries, in order.
    fn into_ref_index(self) -> Vec<RefIndexItem>;
}

impl<T: IntoRefIndexItem> IntoRefIndex for T {
    fn into_ref_index(self) -> Vec<RefIndexItem> {
        vec![self.into_ref_index_item()]
    }
}

/// An index made with `s!`.
impl IntoRefIndex for Vec<IndexItem> {
    fn into_ref_index(self) -> Vec<RefIndexItem> {
        self.into_iter().map(RefIndexItem::Item).collect()
    }
}

macro_rules! tuple_indices {
    ($(($($t:ident $i:tt),*))*) => {$(
        impl<$($t: IntoRefIndexItem),*> IntoRefIndex for ($($t,)*) {
            fn into_ref_index(self) -> Vec<RefIndexItem> {
                vec![$(self.$i.into_ref_index_item()),*]
            }
        }
    )*};
}

tuple_indices!(());
crate::tuples::each!(tuple_indices);
