//! Partition specs: the mesh axes over which each dimension of an array is split.

use std::fmt;

use smallvec::SmallVec;

use crate::error::{Result, err};
use crate::shape::{AxisName, AxisSet};

/// The way one dimension is split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum DimSpec {
    /// The dimension is not split: every device has all of it.
    #[default]
    None,
    /// The dimension is split over these axes, major first.
    Axes(SmallVec<[AxisName; 1]>),
    /// The compiler chooses how the dimension is split (in constraints).
    Unconstrained,
}

impl DimSpec {
    /// Returns the axes over which the dimension is split. Empty if it is not split, or if the compiler chooses.
    pub fn axes(&self) -> &[AxisName] {
        match self {
            DimSpec::Axes(names) => names,
            _ => &[],
        }
    }
}

/// Collects the axes over which a dimension is split, major first. Without axes it is not split.
///
/// ```
/// use shardax::sharding::DimSpec;
/// assert_eq!(DimSpec::from_iter(["data", "fsdp"]).axes().len(), 2);
/// assert_eq!(DimSpec::from_iter([""; 0]), DimSpec::None);
/// ```
impl<N: Into<AxisName>> FromIterator<N> for DimSpec {
    fn from_iter<I: IntoIterator<Item = N>>(axes: I) -> Self {
        let axes: SmallVec<_> = axes.into_iter().map(Into::into).collect();
        if axes.is_empty() { DimSpec::None } else { DimSpec::Axes(axes) }
    }
}

/// The operation that combines the values on the devices along unreduced axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnreducedKind {
    /// The value is the sum of the addends on the devices.
    #[default]
    Sum,
    /// The value is the largest of the values on the devices.
    Max,
    /// The value is the smallest of the values on the devices.
    Min,
}

impl UnreducedKind {
    /// The name in specs and types.
    pub(crate) fn name(self) -> &'static str {
        match self {
            UnreducedKind::Sum => "sum",
            UnreducedKind::Max => "max",
            UnreducedKind::Min => "min",
        }
    }
}

/// The mesh axes over which each dimension is split. Dimensions beyond the end are not split.
///
/// You can write it with the macro [`P!`](crate::P): `P!["i", None, ("j", "k")]`. `P![]` is replicated.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct PartitionSpec {
    dims: SmallVec<[DimSpec; 4]>,
    unreduced: AxisSet,
    reduced: AxisSet,
    kind: UnreducedKind,
}

impl PartialEq<DimSpec> for &DimSpec {
    fn eq(&self, other: &DimSpec) -> bool {
        *self == other
    }
}

impl PartitionSpec {
    /// Creates a spec with these dimensions; [`P!`](crate::P) is shorter.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(PartitionSpec::new(["data", "model"]), P!["data", "model"]);
    /// assert_eq!(PartitionSpec::new([Some("data"), None]), P!["data", None]);
    /// ```
    pub fn new(dims: impl IntoIterator<Item: IntoDimSpec>) -> Self {
        let dims = dims.into_iter().map(|dim| match dim.into_dim_spec() {
            DimSpec::Axes(a) if a.is_empty() => DimSpec::None,
            d => d,
        });
        PartitionSpec { dims: dims.collect(), ..PartitionSpec::default() }
    }

    /// Returns the spec of an unreduced value. Such a value is the sum of the addends on the devices along these axes,
    /// which must be of type `Explicit`.
    pub fn unreduced<N: Into<AxisName>>(mut self, axes: impl IntoIterator<Item = N>) -> Self {
        self.unreduced = axes.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the operation that combines the devices' values along the unreduced axes. By default it is a sum.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::sharding::UnreducedKind;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("x", 8)])?.explicit();
    /// let _mesh = set_mesh(&mesh)?;
    /// let x = reshard(arange(0..8), P!["x"]);
    /// // Each device keeps its own maximum; `reshard` computes the maximum of all.
    /// let largest = x.max(over(0).out_sharding(P![].unreduced(["x"]).unreduced_kind(UnreducedKind::Max)));
    /// assert_eq!(largest.type_name(), "int32[]{U_max:x}");
    /// assert_eq!(reshard(largest, P![]).item::<i32>()?, 7);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn unreduced_kind(mut self, kind: UnreducedKind) -> Self {
        self.kind = kind;
        self
    }

    /// Returns the spec of a reduced value. All devices along these axes have the entire value, and its cotangent is
    /// unreduced over them.
    pub fn reduced<N: Into<AxisName>>(mut self, axes: impl IntoIterator<Item = N>) -> Self {
        self.reduced = axes.into_iter().map(Into::into).collect();
        self
    }

    /// Returns the axes over which the value still has to be summed, or combined as [`kind`](Self::kind) says.
    pub fn unreduced_axes(&self) -> &AxisSet {
        &self.unreduced
    }

    /// Returns the operation that combines the devices' values along the unreduced axes.
    pub fn kind(&self) -> UnreducedKind {
        self.kind
    }

    /// Fails if the spec has a kind of unreduced values, but no unreduced axes.
    pub(crate) fn check_kind(&self) -> Result<()> {
        if self.unreduced.is_empty() && self.kind != UnreducedKind::Sum {
            Err(err!(Value, "{self} has the unreduced_kind {}, but no unreduced axes", self.kind.name())
                .help("name the axes with `unreduced`, or leave `unreduced_kind` out"))
        } else {
            Ok(())
        }
    }

    /// Returns the spec with the unreduced and reduced axes of `other`.
    pub(crate) fn with_partial_of(self, other: &PartitionSpec) -> PartitionSpec {
        PartitionSpec { dims: self.dims, ..other.clone() }
    }

    /// Returns the axes over which the cotangent still has to be summed.
    pub fn reduced_axes(&self) -> &AxisSet {
        &self.reduced
    }

    /// Returns the entries, one per dimension. Dimensions beyond the last entry are not split.
    pub fn dims(&self) -> &[DimSpec] {
        &self.dims
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.dims.len()
    }

    /// Returns `true` if there are no entries, so that nothing is split.
    pub fn is_empty(&self) -> bool {
        self.dims.is_empty() && self.unreduced.is_empty() && self.reduced.is_empty()
    }

    /// Returns the axes that split dimension `dim`.
    pub fn axes(&self, dim: usize) -> &[AxisName] {
        self.dims.get(dim).map(DimSpec::axes).unwrap_or(&[])
    }

    /// Returns every axis that splits a dimension, in order.
    pub fn all_axes(&self) -> impl Iterator<Item = AxisName> + '_ {
        self.dims.iter().flat_map(|d| d.axes().iter().copied())
    }

    /// The axes over which devices hold different parts of a dimension, different addends, or different addends of the
    /// cotangent.
    pub(crate) fn varying(&self) -> AxisSet {
        self.all_axes().chain(self.unreduced.iter()).chain(self.reduced.iter()).collect()
    }

    /// The spec of a cotangent: reduced axes become unreduced, and unreduced axes become reduced.
    pub(crate) fn cotangent(&self) -> PartitionSpec {
        PartitionSpec {
            dims: self.dims.clone(),
            unreduced: self.reduced.clone(),
            reduced: self.unreduced.clone(),
            kind: UnreducedKind::Sum,
        }
    }

    /// Returns the spec without trailing dimensions that are not split.
    pub fn trimmed(&self) -> PartitionSpec {
        let mut dims = self.dims.clone();
        while dims.last() == Some(&DimSpec::None) {
            dims.pop();
        }
        PartitionSpec { dims, ..self.clone() }
    }

    /// Returns the spec of an array with one more dimension, inserted at `at` and split over `axes`.
    pub fn insert(&self, at: usize, axes: &[AxisName]) -> PartitionSpec {
        let mut dims = self.dims.clone();
        if at > dims.len() {
            dims.resize(at, DimSpec::None);
        }
        dims.insert(at, axes.iter().copied().collect());
        PartitionSpec { dims, ..self.clone() }
    }
}

/// Types accepted as entries of [`P!`](crate::P): a name, several names, or `None`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how a dimension is split",
    label = "not the name of a mesh axis",
    note = "an entry is the name of a mesh axis, a tuple of names, or `None`: `P![\"data\", None]`, `P![(\"data\", \"model\")]`"
)]
pub trait IntoDimSpec {
    /// The entry.
    fn into_dim_spec(self) -> DimSpec;
}

impl IntoDimSpec for DimSpec {
    fn into_dim_spec(self) -> DimSpec {
        self
    }
}

impl IntoDimSpec for Option<&str> {
    fn into_dim_spec(self) -> DimSpec {
        self.map(IntoDimSpec::into_dim_spec).unwrap_or_default()
    }
}

macro_rules! names_into_dim_spec {
    ($([$($generics:tt)*] $t:ty: $self:ident => $names:expr;)*) => {$(
        impl $($generics)* IntoDimSpec for $t {
            fn into_dim_spec(self) -> DimSpec {
                let $self = self;
                DimSpec::from_iter($names)
            }
        }
    )*};
}

names_into_dim_spec! {
    [] &str: s => [AxisName::new(s)];
    [] &String: s => [AxisName::new(s)];
    [] AxisName: s => [s];
    [] (&str,): s => [AxisName::new(s.0)];
    [] (&str, &str): s => [AxisName::new(s.0), AxisName::new(s.1)];
    [] (&str, &str, &str): s => [AxisName::new(s.0), AxisName::new(s.1), AxisName::new(s.2)];
    [] &[AxisName]: s => s.iter().copied();
    [<const N: usize>] [&str; N]: s => s.into_iter().map(AxisName::new);
}

/// Writes a [`PartitionSpec`]: `P!["i", None, ("j", "k")]`.
#[macro_export]
macro_rules! P {
    () => {
        $crate::sharding::PartitionSpec::default()
    };
    ($($dim:expr),+ $(,)?) => {
        $crate::sharding::PartitionSpec::new([$($crate::sharding::IntoDimSpec::into_dim_spec($dim)),+])
    };
}

/// `P('i', None, ('j', 'k'))`, as JAX prints it.
impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P(")?;
        for (i, dim) in self.dims.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            match dim {
                DimSpec::None => f.write_str("None")?,
                DimSpec::Unconstrained => f.write_str("UNCONSTRAINED")?,
                DimSpec::Axes(names) if names.len() == 1 => write!(f, "{:?}", names[0])?,
                DimSpec::Axes(names) => {
                    f.write_str("(")?;
                    for (j, name) in names.iter().enumerate() {
                        write!(f, "{}{name:?}", if j == 0 { "" } else { ", " })?;
                    }
                    f.write_str(")")?;
                }
            }
        }
        let sets = [("unreduced", &self.unreduced), ("reduced", &self.reduced)];
        let mut sets: Vec<String> = sets
            .iter()
            .filter(|(_, axes)| !axes.is_empty())
            .map(|(name, axes)| {
                let axes: Vec<String> = axes.iter().map(|axis| format!("{axis:?}")).collect();
                format!("{name}={{{}}}", axes.join(", "))
            })
            .collect();
        if self.kind != UnreducedKind::Sum {
            sets.push(format!("unreduced_kind={}", self.kind.name()));
        }
        if !sets.is_empty() {
            return write!(f, "{}{})", if self.dims.is_empty() { "" } else { ", " }, sets.join(", "));
        }
        // A tuple with one element ends with a comma, as in Python.
        f.write_str(if self.dims.len() == 1 { ",)" } else { ")" })
    }
}

impl fmt::Debug for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
