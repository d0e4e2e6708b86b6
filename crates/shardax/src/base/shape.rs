//! Shapes and axes as arguments, axis names and sets of axis names.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::ops::RangeFull;
use std::sync::{Mutex, OnceLock};

use smallvec::{SmallVec, smallvec};

use crate::error::{Result, err};
use crate::local::CellKey;

/// The dimensions of an array; empty for a scalar.
pub type Shape = SmallVec<[usize; 4]>;

/// Returns the number of elements of `shape` (1 for a scalar); `usize::MAX` on overflow.
pub fn size(shape: &[usize]) -> usize {
    shape.iter().fold(1, |n: usize, &d| n.saturating_mul(d))
}

/// Counts `axis` from the front: negative axes count from the end, as in NumPy.
///
/// # Errors
/// Returns an error if `axis` is out of bounds for this rank.
pub fn normalize_axis(axis: isize, rank: usize) -> Result<usize> {
    let n = if axis < 0 { axis.saturating_add(rank as isize) } else { axis };
    if (0..rank as isize).contains(&n) {
        Ok(n as usize)
    } else {
        Err(err!(Index, "axis {axis} is out of bounds for an array of rank {rank}").help(match rank {
            0 => "a scalar has no axes".to_owned(),
            _ => format!("axes of a rank-{rank} array run from -{rank} to {}", rank - 1),
        }))
    }
}

/// Types accepted as a shape: `[2, 3]`, a slice, a `Vec`, a number, `()` for a scalar, or a tuple. The sizes in a tuple
/// can have different types: `(n, -1)` with `n: usize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    label = "not a shape",
    note = "sizes are integers: `[2, 3]`, `(n, -1)`, `n`, `x.shape()`, or `()` for a scalar"
)]
pub trait IntoShape {
    /// Returns the dimensions. The size -1 is computed from the other sizes.
    fn into_dims(self) -> SmallVec<[i64; 4]>;
}

/// Converts a size. A size that does not fit becomes larger than any array.
fn number<T: TryInto<i64>>(size: T) -> i64 {
    size.try_into().unwrap_or(i64::MAX)
}

macro_rules! into_shape {
    ($($t:ty),*) => {$(
        impl<const N: usize> IntoShape for [$t; N] {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl IntoShape for &[$t] {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl<const N: usize> IntoShape for &[$t; N] {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl IntoShape for &Vec<$t> {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                self.as_slice().into_dims()
            }
        }
        impl IntoShape for Vec<$t> {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                self.iter().map(|&d| number(d)).collect()
            }
        }
        impl IntoShape for $t {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                smallvec![number(self)]
            }
        }
    )*};
}

into_shape!(usize, i32, i64, isize);

/// The size of a dimension, as an element of a tuple that is a shape.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the size of a dimension",
    note = "sizes are integers: `usize`, `i32`, `i64` or `isize`"
)]
pub trait IntoSize {
    /// Returns the size. The size -1 is computed from the other sizes.
    fn into_size(self) -> i64;
}

macro_rules! into_size {
    ($($t:ty),*) => {$(
        impl IntoSize for $t {
            fn into_size(self) -> i64 {
                number(self)
            }
        }
    )*};
}

into_size!(usize, i32, i64, isize);

macro_rules! tuples_into_shape {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: IntoSize),+> IntoShape for ($($t,)+) {
            fn into_dims(self) -> SmallVec<[i64; 4]> {
                smallvec![$(self.$i.into_size()),+]
            }
        }
    )*};
}

crate::tuples::each!(tuples_into_shape);

// The shape of a scalar.
impl IntoShape for () {
    fn into_dims(self) -> SmallVec<[i64; 4]> {
        Default::default()
    }
}

impl IntoShape for &Shape {
    fn into_dims(self) -> SmallVec<[i64; 4]> {
        self.iter().map(|&d| number(d)).collect()
    }
}

impl IntoShape for Shape {
    fn into_dims(self) -> SmallVec<[i64; 4]> {
        (&self).into_dims()
    }
}

/// Converts a shape argument, which must not have negative sizes.
pub(crate) fn shape_of(shape: impl IntoShape) -> Result<Shape> {
    let dims = shape.into_dims();
    if let Some(d) = dims.iter().find(|d| **d < 0) {
        return Err(err!(Value, "a shape must not have negative sizes, got {d} in {:?}", dims.as_slice())
            .help("only `reshape` accepts -1, for the remaining size"));
    }
    Ok(dims.iter().map(|&d| d as usize).collect())
}

/// Sizes in each dimension, such as of a window, a kernel or its steps: `[3, 3]`, `(3, 3)`, a slice, a `Vec`, or a number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of sizes",
    label = "not sizes",
    note = "sizes are `usize`: `[3, 3]`, `(3, 3)`, `vec![3, 3]`, a slice, or `3` for one dimension"
)]
pub trait IntoSizes: Sized {
    /// Returns the sizes. A number is the size of one dimension.
    fn into_sizes(self) -> Vec<usize>;

    /// Returns the sizes of `rank` dimensions. A number is the size in each of them.
    fn into_sizes_of(self, _rank: usize) -> Vec<usize> {
        self.into_sizes()
    }

    /// Returns true for a number, which can be the size in each of several dimensions.
    fn is_number(&self) -> bool {
        false
    }
}

impl IntoSizes for usize {
    fn into_sizes(self) -> Vec<usize> {
        vec![self]
    }
    fn into_sizes_of(self, rank: usize) -> Vec<usize> {
        vec![self; rank]
    }
    fn is_number(&self) -> bool {
        true
    }
}

impl<const N: usize> IntoSizes for [usize; N] {
    fn into_sizes(self) -> Vec<usize> {
        self.into()
    }
}

impl<const N: usize> IntoSizes for &[usize; N] {
    fn into_sizes(self) -> Vec<usize> {
        self.into()
    }
}

macro_rules! lists_of_sizes {
    ($($t:ty),*) => {$(
        impl IntoSizes for $t {
            fn into_sizes(self) -> Vec<usize> {
                self.to_vec()
            }
        }
    )*};
}

lists_of_sizes!(Vec<usize>, &Vec<usize>, &[usize], Box<[usize]>, Shape, &Shape);

macro_rules! tuples_of_sizes {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl IntoSizes for ($($t,)+) {
            fn into_sizes(self) -> Vec<usize> {
                vec![$(self.$i),+]
            }
        }
    )*};
}

tuples_of_sizes! {
    (usize 0)
    (usize 0, usize 1)
    (usize 0, usize 1, usize 2)
    (usize 0, usize 1, usize 2, usize 3)
    (usize 0, usize 1, usize 2, usize 3, usize 4)
}

/// The number of an axis: `i32`, `i64`, `isize` or `usize`. Negative axes count from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the number of an axis",
    label = "not an axis",
    note = "an axis is an integer; negative ones count from the end: `-1` is the last"
)]
pub trait AxisNumber: Copy {
    /// Returns the axis. A number that does not fit becomes out of bounds for any array.
    fn axis_number(self) -> i32;
}

macro_rules! axis_numbers {
    ($($t:ty),*) => {$(
        impl AxisNumber for $t {
            fn axis_number(self) -> i32 {
                self.try_into().unwrap_or(i32::MAX)
            }
        }

        impl IntoAxes for $t {
            fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
                Some(smallvec![self.axis_number()])
            }
        }
    )*};
}

axis_numbers!(i32, i64, isize, usize);

/// Axis arguments: `..` for all, one number, or several as an array, a slice, a `Vec` or a tuple. Negative axes count from
/// the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name axes",
    label = "not axes",
    note = "write `..` for all axes, a number for one, such as `0` or `-1`, or several: `[0, 1]`"
)]
pub trait IntoAxes {
    /// The axes as written; `None` for all.
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>>;
}

impl IntoAxes for RangeFull {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        None
    }
}

impl IntoAxes for () {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(SmallVec::new())
    }
}

impl<A: AxisNumber, const N: usize> IntoAxes for [A; N] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        self.as_slice().into_axes()
    }
}

impl<A: AxisNumber, const N: usize> IntoAxes for &[A; N] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        self.as_slice().into_axes()
    }
}

impl<A: AxisNumber> IntoAxes for &[A] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(self.iter().map(|axis| axis.axis_number()).collect())
    }
}

impl<A: AxisNumber> IntoAxes for Vec<A> {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        self.as_slice().into_axes()
    }
}

impl<A: AxisNumber> IntoAxes for &Vec<A> {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        self.as_slice().into_axes()
    }
}

impl IntoAxes for Option<&[i32]> {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        self.map(Into::into)
    }
}

macro_rules! tuples_into_axes {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: AxisNumber),+> IntoAxes for ($($t,)+) {
            fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
                Some(smallvec![$(self.$i.axis_number()),+])
            }
        }
    )*};
}

crate::tuples::each!(tuples_into_axes);

/// The axes, counted from the front and sorted.
pub(crate) fn normalize_axes(axes: impl IntoAxes, rank: usize) -> Result<SmallVec<[usize; 4]>> {
    let Some(axes) = axes.into_axes() else { return Ok((0..rank).collect()) };
    let mut out: SmallVec<[usize; 4]> =
        axes.iter().map(|&a| normalize_axis(a as isize, rank)).collect::<Result<_>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        return Err(err!(Value, "axes {:?} name one axis twice", axes.as_slice())
            .help("name each axis only once; negative axes count from the end"));
    }
    Ok(out)
}

/// Broadcasts several shapes by NumPy's rules, or returns `None` if they are incompatible.
///
/// ```
/// use shardax::shape::broadcast_shapes;
/// let shape = broadcast_shapes(&[&[3, 1], &[4]]).expect("compatible shapes");
/// assert_eq!(shape[..], [3, 4]);
/// assert!(broadcast_shapes(&[&[3], &[4]]).is_none());
/// ```
pub fn broadcast_shapes(shapes: &[&[usize]]) -> Option<Shape> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out: Shape = smallvec![1; rank];
    for shape in shapes {
        for (o, &d) in out[rank - shape.len()..].iter_mut().zip(shape.iter()) {
            if *o == 1 {
                *o = d;
            } else if d != 1 && d != *o {
                return None;
            }
        }
    }
    Some(out)
}

// A function is traced on one thread, and its operations have no argument that could say this.
thread_local! {
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, which traces and lowers a function whose sizes are placeholders for others, so that no algorithm is chosen
/// by size.
pub(crate) fn with_open_sizes<R>(f: impl FnOnce() -> R) -> R {
    let _restore = OPEN.guard(true);
    f()
}

/// Returns `true` within [`with_open_sizes`].
pub(crate) fn sizes_are_open() -> bool {
    OPEN.get()
}

/// Interns a name for the life of the process.
pub(crate) fn interned(name: &str) -> &'static str {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    let mut names = NAMES.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
    if let Some(&known) = names.get(name) {
        return known;
    }
    // Leaked once per distinct name; programs have only a few axis names.
    let leaked: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(leaked);
    leaked
}

/// The name of a mapped axis. Names are interned, so copying and comparing one costs as much as for a pointer.
#[derive(Clone, Copy, Eq)]
pub struct AxisName(&'static str);

impl AxisName {
    /// Creates an axis name.
    pub fn new(name: &str) -> Self {
        AxisName(interned(name))
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &'static str {
        self.0
    }
}

impl PartialEq for AxisName {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Ord for AxisName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(other.0)
    }
}

impl PartialOrd for AxisName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl std::hash::Hash for AxisName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq<str> for AxisName {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl From<&str> for AxisName {
    fn from(name: &str) -> Self {
        AxisName::new(name)
    }
}

impl From<String> for AxisName {
    fn from(name: String) -> Self {
        AxisName::new(&name)
    }
}

impl fmt::Display for AxisName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for AxisName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0)
    }
}

/// Axis arguments of collectives: one axis name or several (major first), or an axis split into groups.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the name of an axis",
    label = "not the name of an axis",
    note = "the name of one axis, or several names in a tuple or a list: `psum(x, \"i\")`, `psum(x, (\"i\", \"j\"))`"
)]
pub trait IntoAxisNames {
    /// Returns the names, in order.
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]>;

    /// The groups of participants within which a collective works; see [`axis_index_groups`].
    fn groups(&self) -> Option<Vec<Vec<usize>>> {
        None
    }
}

/// An axis whose participants form groups; see [`axis_index_groups`].
#[derive(Clone, Debug)]
pub struct Grouped {
    axes: SmallVec<[AxisName; 2]>,
    groups: Vec<Vec<usize>>,
}

/// Splits the participants along an axis, or several, into groups, so that a collective works within each group.
///
/// The groups must contain every index exactly once. `psum(x, axis_index_groups("i", [[0, 2], [1, 3]]))` sums the even
/// and the odd participants separately.
pub fn axis_index_groups(axis: impl IntoAxisNames, groups: impl IntoIterator<Item = impl Into<Vec<usize>>>) -> Grouped {
    Grouped { axes: axis.into_axis_names(), groups: groups.into_iter().map(Into::into).collect() }
}

impl IntoAxisNames for Grouped {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        self.axes
    }
    fn groups(&self) -> Option<Vec<Vec<usize>>> {
        Some(self.groups.clone())
    }
}

/// No axis.
impl IntoAxisNames for () {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        SmallVec::new()
    }
}

impl IntoAxisNames for &str {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        smallvec![AxisName::new(self)]
    }
}

impl IntoAxisNames for &String {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        self.as_str().into_axis_names()
    }
}

impl IntoAxisNames for AxisName {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        smallvec![self]
    }
}

impl<T: Into<AxisName> + Copy> IntoAxisNames for &[T] {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        self.iter().map(|&n| n.into()).collect()
    }
}

impl<T: Into<AxisName>, const N: usize> IntoAxisNames for [T; N] {
    fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
        self.into_iter().map(Into::into).collect()
    }
}

macro_rules! tuples_into_axis_names {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: Into<AxisName>),+> IntoAxisNames for ($($t,)+) {
            fn into_axis_names(self) -> SmallVec<[AxisName; 2]> {
                smallvec![$(self.$i.into()),+]
            }
        }
    )*};
}

crate::tuples::each!(tuples_into_axis_names);

/// A set of axis names, kept sorted. For example, the manual axes over which a value varies (`vma`) are such a set.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct AxisSet(SmallVec<[AxisName; 2]>);

impl AxisSet {
    /// Creates a set of these names.
    pub fn new(names: impl IntoIterator<Item = AxisName>) -> Self {
        let mut set = AxisSet::default();
        for name in names {
            set.insert(name);
        }
        set
    }

    /// Adds a name.
    pub fn insert(&mut self, name: AxisName) {
        if let Err(at) = self.0.binary_search(&name) {
            self.0.insert(at, name);
        }
    }

    /// Returns `true` if the set has the name.
    pub fn contains(&self, name: AxisName) -> bool {
        self.0.contains(&name)
    }

    /// Returns `true` if the set has no names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names, each once, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = AxisName> + '_ {
        self.0.iter().copied()
    }

    /// Returns the names in either set.
    pub fn union(&self, other: &AxisSet) -> AxisSet {
        AxisSet::new(self.iter().chain(other.iter()))
    }

    /// Returns the names that are not in `other`.
    pub fn minus(&self, other: &AxisSet) -> AxisSet {
        AxisSet::new(self.iter().filter(|n| !other.contains(*n)))
    }

    /// Returns `true` if `other` contains all names of this set.
    pub fn is_subset(&self, other: &AxisSet) -> bool {
        self.iter().all(|n| other.contains(n))
    }
}

impl FromIterator<AxisName> for AxisSet {
    fn from_iter<I: IntoIterator<Item = AxisName>>(names: I) -> Self {
        AxisSet::new(names)
    }
}

impl fmt::Display for AxisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, name) in self.iter().enumerate() {
            write!(f, "{}{name}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for AxisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
