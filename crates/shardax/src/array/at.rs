//! Updates at a place of an array: `x.at(index).set(v)`, `add`, `multiply`, `min`, `max`.

use super::index::IndexItem;
use super::index_plan::{self, Options};
use super::{Array, Operand};
use crate::error::Result;
use crate::primitive::gather::GatherScatterMode;
use crate::primitive::scatter::ScatterKind;
use crate::program::trace::at_caller;

/// A place in an array; see [`Array::at`].
#[derive(Clone, Debug)]
#[must_use = "a place does nothing until it is read or updated"]
pub struct At {
    array: Array,
    items: Vec<IndexItem>,
    options: Options,
}

impl At {
    pub(super) fn new(array: &Array, items: Vec<IndexItem>) -> Self {
        At { array: array.clone(), items, options: Options::default() }
    }

    /// What is done with places of integer arrays that are out of bounds: by default [`get`](Self::get) clamps them,
    /// and updates drop them.
    pub fn mode(mut self, mode: GatherScatterMode) -> Self {
        self.options.mode = Some(mode);
        self
    }

    /// Out of bounds, [`get`](Self::get) reads `value` (and the mode is [`GatherScatterMode::FillOrDrop`]).
    pub fn fill_value(mut self, value: impl Operand) -> Self {
        self.options.mode = Some(GatherScatterMode::FillOrDrop);
        self.options.fill = match value.into_array().0 {
            super::Repr::Literal(l) => Some(l.value),
            _ => None,
        };
        self
    }

    /// The caller vouches that no element is named twice: updates may then be made in any order, and
    /// [`multiply`](Self::multiply) can be differentiated with respect to them.
    pub fn unique_indices(mut self) -> Self {
        self.options.unique = true;
        self
    }

    /// The caller vouches that the places of integer arrays ascend.
    pub fn indices_are_sorted(mut self) -> Self {
        self.options.sorted = true;
        self
    }

    /// The part at the place, as [`Array::get`] with the options that were set.
    #[track_caller]
    pub fn get(&self) -> Array {
        Array::from_result(at_caller(|| index_plan::get(&self.array, &self.items, &self.options)), &self.array)
    }

    /// The array with `value` at the place, broadcast to it. Its dtype must not be wider than the array's.
    #[track_caller]
    pub fn set(&self, value: impl Operand) -> Array {
        Array::from_result(self.update(ScatterKind::Set, value.into_array()), &self.array)
    }

    /// The array with `value` added at the place; where a place is named twice, both are added.
    #[track_caller]
    pub fn add(&self, value: impl Operand) -> Array {
        Array::from_result(self.update(ScatterKind::Add, value.into_array()), &self.array)
    }

    /// The array with `value` subtracted at the place.
    #[track_caller]
    pub fn subtract(&self, value: impl Operand) -> Array {
        Array::from_result(self.update(ScatterKind::Add, -value.into_array()), &self.array)
    }

    /// The array multiplied by `value` at the place.
    #[track_caller]
    pub fn multiply(&self, value: impl Operand) -> Array {
        Array::from_result(self.update(ScatterKind::Mul, value.into_array()), &self.array)
    }

    /// The array with the smaller of itself and `value` at the place.
    #[track_caller]
    pub fn min(&self, value: impl Operand) -> Array {
        Array::from_result(self.update(ScatterKind::Min, value.into_array()), &self.array)
    }

    /// The array with the larger of itself and `value` at the place.
    #[track_caller]
    pub fn max(&self, value: impl Operand) -> Array {
        Array::from_result(self.update(ScatterKind::Max, value.into_array()), &self.array)
    }

    #[track_caller]
    fn update(&self, kind: ScatterKind, value: Array) -> Result<Array> {
        at_caller(|| index_plan::update(&self.array, &self.items, kind, &value, &self.options))
    }
}
