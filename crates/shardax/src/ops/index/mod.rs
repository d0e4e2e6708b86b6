//! Indexing by NumPy's rules, with numbers, ranges with steps, new axes and integer arrays.
//!
//! Numbers and ranges are constants, so they lower to a slice and a reshape, never to a gather. A number out of range
//! is an error; ranges are clamped, as in NumPy. Integer arrays lower to gathers, with indices clamped to the bounds.

mod at;
mod index_plan;

use std::convert::Infallible;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

pub use at::At;
use index_plan::Options;
pub(crate) use index_plan::from_front;

use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::{at_caller, or_failed, with_source};
use crate::dtype::{Element, Scalar};
use crate::error::{Result, err};
use crate::sharding::DimSpec;

/// A new axis of size 1 in an index: `x.get((.., NewAxis))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NewAxis;

/// Full ranges for all remaining dimensions in an index: `x.get((Ellipsis, 0))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ellipsis;

/// `start..stop` by `step`, like Python's `start:stop:step`. Negative bounds count from the end, bounds out of range
/// are clamped, and a negative step goes backwards. A bound of `None` is the end of the dimension at which the step
/// starts or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The first index; negative numbers count from the end.
    pub start: Option<i64>,
    /// The index after the last one.
    pub stop: Option<i64>,
    /// The step; not 0.
    pub step: i64,
}

impl Slice {
    /// Creates a slice with all three parts.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(arange(0..6).get(Slice::new(None, None, -2)).to_vec::<i32>()?, [5, 3, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn new(start: impl Into<Option<i64>>, stop: impl Into<Option<i64>>, step: i64) -> Self {
        Slice { start: start.into(), stop: stop.into(), step }
    }

    /// All elements of a dimension.
    pub const FULL: Slice = Slice { start: None, stop: None, step: 1 };

    /// Returns the first index, the number of elements and the step in a dimension of size `n`, or `None` if the step
    /// is 0.
    pub(crate) fn resolve(self, n: usize) -> Option<Strided> {
        let (n, step) = (n as i64, self.step);
        if step == 0 {
            return None;
        }
        // For negative steps the bounds are lower by one: the last element, and the position before the first.
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let (first, last) = if step > 0 { (low, high) } else { (high, low) };
        let [start, stop] = [(self.start, first), (self.stop, last)].map(|(bound, default)| match bound {
            Some(bound) => (if bound < 0 { bound.saturating_add(n) } else { bound }).clamp(low, high),
            None => default,
        });
        let distance = if step > 0 { stop - start } else { start - stop };
        let len = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) as usize };
        // A step beyond the dimension selects only one element.
        let step = if len > 1 { step } else { 1 };
        Some(Strided { start: if len == 0 { 0 } else { start as usize }, len, step })
    }
}

/// The `len` elements `start`, `start + step`, … of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Strided {
    pub start: usize,
    pub len: usize,
    pub step: i64,
}

/// One entry of an index.
#[derive(Clone, Debug)]
pub enum IndexItem {
    /// One element, which removes the dimension. Negative numbers count from the end.
    At(i64),
    /// A part of the dimension.
    Slice(Slice),
    /// A new dimension of size 1.
    NewAxis,
    /// Full ranges for the remaining dimensions.
    Ellipsis,
    /// The elements at these indices.
    Array(Array),
}

/// Types accepted as an entry of an index.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index",
    label = "not an index",
    note = "an index is an integer, a range such as `1..3`, `..`, an array of integers or booleans, a list of integers, `NewAxis` or `Ellipsis`; with steps `s![1..10; 2]`"
)]
pub trait IntoIndexItem {
    /// Returns the entry.
    fn into_index_item(self) -> IndexItem;
}

/// An index: one entry or a tuple of up to sixteen entries. Use `Vec<IndexItem>` for an index that is built at run
/// time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index of an array",
    label = "not an index",
    note = "one entry, or a tuple with one for each dimension: `x.get(0)`, `x.get((.., 1..3))`, `x.get(vec![0, 2])`, `x.get(s![..; 2])`",
    note = "a new dimension is `NewAxis` or `None`: `x.get((.., NewAxis))`; steps are `s![0..4; 2]`, and `s![..; -1]` reverses; an index with a step is one `s!` of all entries: `s![..; 2, 3..]`"
)]
pub trait IntoIndex {
    /// Returns the entries, in order.
    fn into_index(self) -> Vec<IndexItem>;
}

impl<T: IntoIndexItem> IntoIndex for T {
    fn into_index(self) -> Vec<IndexItem> {
        vec![self.into_index_item()]
    }
}

impl IntoIndex for Vec<IndexItem> {
    fn into_index(self) -> Vec<IndexItem> {
        self
    }
}

impl IntoIndex for &[IndexItem] {
    fn into_index(self) -> Vec<IndexItem> {
        self.to_vec()
    }
}

macro_rules! tuple_indices {
    ($(($($t:ident $i:tt),*))*) => {$(
        impl<$($t: IntoIndexItem),*> IntoIndex for ($($t,)*) {
            fn into_index(self) -> Vec<IndexItem> {
                vec![$(self.$i.into_index_item()),*]
            }
        }
    )*};
}

tuple_indices!(());
crate::tuples::each!(tuple_indices);

fn slice(start: Option<i64>, stop: Option<i64>) -> IndexItem {
    IndexItem::Slice(Slice { start, stop, step: 1 })
}

/// Returns the bound after an inclusive last element; -1 becomes the end.
fn after(last: i64) -> Option<i64> {
    if last == -1 { None } else { Some(last.saturating_add(1)) }
}

macro_rules! number_items {
    ($($t:ty),*) => {$(
        impl IntoIndexItem for $t {
            fn into_index_item(self) -> IndexItem {
                IndexItem::At(number(self))
            }
        }
        impl IntoIndexItem for Range<$t> {
            fn into_index_item(self) -> IndexItem {
                slice(Some(number(self.start)), Some(number(self.end)))
            }
        }
        impl IntoIndexItem for RangeFrom<$t> {
            fn into_index_item(self) -> IndexItem {
                slice(Some(number(self.start)), None)
            }
        }
        impl IntoIndexItem for RangeTo<$t> {
            fn into_index_item(self) -> IndexItem {
                slice(None, Some(number(self.end)))
            }
        }
        impl IntoIndexItem for RangeInclusive<$t> {
            fn into_index_item(self) -> IndexItem {
                slice(Some(number(*self.start())), after(number(*self.end())))
            }
        }
        impl IntoIndexItem for RangeToInclusive<$t> {
            fn into_index_item(self) -> IndexItem {
                slice(None, after(number(self.end)))
            }
        }
    )*};
}

number_items!(i32, i64, isize, u8, u32, u64, usize);

/// Converts a number. A number that does not fit is out of range in any case.
fn number<T: TryInto<i64>>(n: T) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}

impl IntoIndexItem for RangeFull {
    fn into_index_item(self) -> IndexItem {
        IndexItem::Slice(Slice::FULL)
    }
}

impl IntoIndexItem for Slice {
    fn into_index_item(self) -> IndexItem {
        IndexItem::Slice(self)
    }
}

impl IntoIndexItem for NewAxis {
    fn into_index_item(self) -> IndexItem {
        IndexItem::NewAxis
    }
}

/// `None` is a new dimension, as in NumPy: this type has no other value.
impl IntoIndexItem for Option<Infallible> {
    fn into_index_item(self) -> IndexItem {
        IndexItem::NewAxis
    }
}

impl IntoIndexItem for Ellipsis {
    fn into_index_item(self) -> IndexItem {
        IndexItem::Ellipsis
    }
}

impl IntoIndexItem for IndexItem {
    fn into_index_item(self) -> IndexItem {
        self
    }
}

impl IntoIndexItem for Array {
    fn into_index_item(self) -> IndexItem {
        IndexItem::Array(self)
    }
}

impl IntoIndexItem for &Array {
    fn into_index_item(self) -> IndexItem {
        IndexItem::Array(self.clone())
    }
}

macro_rules! list_items {
    ($($t:ty),*) => {$(
        impl<const N: usize> IntoIndexItem for [$t; N] {
            #[track_caller]
            fn into_index_item(self) -> IndexItem {
                self.as_slice().into_index_item()
            }
        }
        impl IntoIndexItem for Vec<$t> {
            #[track_caller]
            fn into_index_item(self) -> IndexItem {
                self.as_slice().into_index_item()
            }
        }
        impl IntoIndexItem for &[$t] {
            #[track_caller]
            fn into_index_item(self) -> IndexItem {
                let like = Array::literal(Scalar::Int(0), <$t as Element>::DTYPE, false);
                IndexItem::Array(Array::from_result(Array::from_slice(self, &[self.len()]), &like))
            }
        }
    )*};
}

list_items!(i32, i64, bool);

/// Positions counted by the host. A position that does not fit is out of bounds for any dimension.
impl IntoIndexItem for &[usize] {
    #[track_caller]
    fn into_index_item(self) -> IndexItem {
        let positions: Vec<i64> = self.iter().map(|&position| position.try_into().unwrap_or(i64::MAX)).collect();
        positions.into_index_item()
    }
}

impl<const N: usize> IntoIndexItem for [usize; N] {
    #[track_caller]
    fn into_index_item(self) -> IndexItem {
        self.as_slice().into_index_item()
    }
}

impl IntoIndexItem for Vec<usize> {
    #[track_caller]
    fn into_index_item(self) -> IndexItem {
        self.as_slice().into_index_item()
    }
}

impl<T> IntoIndexItem for &Vec<T>
where
    for<'a> &'a [T]: IntoIndexItem,
{
    #[track_caller]
    fn into_index_item(self) -> IndexItem {
        self.as_slice().into_index_item()
    }
}

/// Builds an index with steps: `s![1..10; 2, .., ..; -1]` is Python's `[1:10:2, :, ::-1]`. Entries without a step
/// follow [`Array::get`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = arange(0..12).reshape([3, 4]);
/// assert_eq!(x.get(s![..;-1, 1..;2]).get(0).to_vec::<i32>()?, [9, 11]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[macro_export]
macro_rules! s {
    (@items [$($done:expr,)*]) => { ::std::vec![$($done),*] };
    (@items [$($done:expr,)*] ... $(, $($rest:tt)*)?) => {
        $crate::s!(@items [$($done,)* $crate::IndexItem::Ellipsis,] $($($rest)*)?)
    };
    (@items [$($done:expr,)*] $range:expr; $step:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@items [$($done,)* $crate::IndexItem::with_step($range, $step),] $($($rest)*)?)
    };
    (@items [$($done:expr,)*] $item:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@items [$($done,)* $crate::IntoIndexItem::into_index_item($item),] $($($rest)*)?)
    };
    (@items $($other:tt)*) => {
        ::core::compile_error!(
            "an entry of `s!` is an index or a range: `s![.., 1]` for Python's `[:, 1]`, `s![0..4; 2]` for `[0:4:2]`, and `s![..; -1]` for `[::-1]`"
        )
    };
    ($($items:tt)*) => {{
        let items: ::std::vec::Vec<$crate::IndexItem> = $crate::s!(@items [] $($items)*);
        items
    }};
}

impl IndexItem {
    /// Sets the step of a range. Other entries are unchanged.
    pub fn with_step(range: impl IntoIndexItem, step: i64) -> IndexItem {
        match range.into_index_item() {
            IndexItem::Slice(s) => IndexItem::Slice(Slice { step, ..s }),
            other => other,
        }
    }
}

impl Array {
    /// Returns the indexed part of the array, by NumPy's rules.
    ///
    /// An index is one entry or a tuple of entries, one for each dimension from the first. An entry is a number (the
    /// dimension is removed; negative numbers count from the end), a range (clamped; see [`s!`](crate::s) for steps),
    /// `..` for an entire dimension, [`NewAxis`], [`Ellipsis`], or an integer array, whose indices are clamped to the
    /// bounds. Several arrays are broadcast together; their dimensions come first if another entry is between them.
    ///
    /// A boolean array selects the places where it is true, and indexes as many dimensions as it has. It must be
    /// concrete, because inside of `jit` the shape of the result would depend on values; use
    /// [`where_`](crate::numpy::where_) there instead.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = arange(0..12).reshape([3, 4]);
    /// assert_eq!(x.get(-1).to_vec::<i32>()?, [8, 9, 10, 11]);
    /// assert_eq!(x.get((.., 1..3)).shape(), [3, 2]);
    /// assert_eq!(x.get((.., NewAxis, 0)).shape(), [3, 1]);
    /// assert_eq!(x.get((&array([0, 2]), &array([1, 3]))).to_vec::<i32>()?, [1, 11]);
    /// assert_eq!(x.get(x.greater(8)).to_vec::<i32>()?, [9, 10, 11]);
    /// assert!(x.get(3).check().is_err());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// The result carries an error for a number out of range, too many entries, or a mask whose sizes do not match.
    #[track_caller]
    pub fn get(&self, index: impl IntoIndex) -> Array {
        let items = index.into_index();
        or_failed(self, || index_plan::get(self, &items, &Options::default()))
    }

    /// Selects a part of the array for an update: `x.at((0, ..)).set(1.0)` is `x` with its first row replaced.
    ///
    /// The index follows [`get`](Self::get). Updates with integer-array indices out of bounds are dropped.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = zeros([3]);
    /// assert_eq!(x.at(1).set(5.0).to_vec::<f32>()?, [0.0, 5.0, 0.0]);
    /// assert_eq!(x.at(&array([0, 0, 2])).add(1.0).to_vec::<f32>()?, [2.0, 0.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[must_use = "`at` names a place; call `set`, `add`, … on it"]
    #[track_caller]
    pub fn at(&self, index: impl IntoIndex) -> At {
        At::new(self, index.into_index())
    }

    /// Iterates over the entries along the first dimension. A scalar has no entries, so it yields one entry that
    /// carries the error.
    ///
    /// Each entry is a constant slice, so a loop over rows needs no gather.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let sums: Vec<Array> = arange(0..4).reshape([2, 2]).iter().map(|row| row.sum(..)).collect();
    /// assert_eq!(sums[1].item::<i32>()?, 5);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn iter(&self) -> Rows {
        let count = if self.error().is_some() { 1 } else { self.shape().first().copied().unwrap_or(1) };
        Rows { array: self.clone(), next: 0, count, location: std::panic::Location::caller() }
    }

    /// Destructures the entries along the first dimension.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let [w_key, b_key] = random::split(&random::key(0), 2).unstack()?;
    /// let (w, b) = (random::normal(&w_key, [3, 4]), random::normal(&b_key, 4));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error unless there are exactly `N` entries.
    #[track_caller]
    pub fn unstack<const N: usize>(&self) -> Result<[Array; N]> {
        let parts = at_caller(|| {
            self.check()?;
            if self.shape().first() != Some(&N) {
                let error =
                    err!(Value, "unstack into {N} parts needs a first dimension of {N}, got {}", self.type_name());
                return Err(error.help("use `iter` where the number of parts is not known beforehand"));
            }
            if self.aval_ref().and_then(Aval::sharding).is_some_and(|typed| typed.dims()[0] != DimSpec::None) {
                return Err(err!(
                    Sharding,
                    "unstack: the operand cannot be sharded on the unstacking axis 0, and is of type {}",
                    self.type_name()
                )
                .help("gather the dimension first with `reshard(x, spec)`"));
            }
            let parts: [Array; N] = std::array::from_fn(|i| self.get(i));
            parts.iter().try_for_each(Array::check)?;
            Ok(parts)
        });
        let location = std::panic::Location::caller();
        parts.map_err(|e| e.at(location))
    }
}

/// An iterator over the entries of an array along its first dimension; see [`Array::iter`].
#[derive(Clone, Debug)]
pub struct Rows {
    array: Array,
    next: usize,
    count: usize,
    location: &'static std::panic::Location<'static>,
}

impl Iterator for Rows {
    type Item = Array;

    fn next(&mut self) -> Option<Array> {
        if self.next == self.count {
            return None;
        }
        self.next += 1;
        let row = match self.array.ndim() {
            0 => self.array.check().and_then(|()| {
                Err(err!(Type, "iteration over a 0-d array (TypeError)")
                    .help("iterate over an array of one dimension or more"))
            }),
            _ => with_source(self.location, || {
                index_plan::get(&self.array, &[IndexItem::At(self.next as i64 - 1)], &Options::default())
            }),
        };
        Some(Array::from_result(row.map_err(|e| e.at(self.location)), &self.array))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl ExactSizeIterator for Rows {}

impl IntoIterator for Array {
    type Item = Array;
    type IntoIter = Rows;
    #[track_caller]
    fn into_iter(self) -> Rows {
        self.iter()
    }
}

impl IntoIterator for &Array {
    type Item = Array;
    type IntoIter = Rows;
    #[track_caller]
    fn into_iter(self) -> Rows {
        self.iter()
    }
}
