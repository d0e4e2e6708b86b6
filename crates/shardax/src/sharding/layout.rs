//! Layouts: the order of an array's elements in memory.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, OnceLock};

use shardax_pjrt as pjrt;

use super::device::Device;
use super::named::{NamedSharding, Sharding, SingleDeviceSharding};
use crate::error::{Result, err};

/// The layout of an array's elements in the memory of a device: the order of the dimensions, and the tiles if the
/// device has them.
///
/// You can pass it as a part of a [`Format`], or set it for a value inside a program with
/// [`with_layout_constraint`](crate::with_layout_constraint).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::{Format, Layout};
/// // Column by column: the first dimension is the one whose elements are neighbours.
/// let columns = Layout::new([1, 0]);
/// let device = &local_devices()?[0];
/// let x = device_put(&array([[1.0f32, 2.0], [3.0, 4.0]]), Format::new(&columns, device))?;
/// assert_eq!(x.format()?.layout(), Some(&columns));
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    major_to_minor: Vec<usize>,
    tiling: Vec<Vec<usize>>,
    sub_byte_element_size_in_bits: usize,
}

/// A layout that the compiler chooses: [`Layout::AUTO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AutoLayout;

impl Layout {
    /// The layout that the compiler chooses for an argument or a result.
    pub const AUTO: AutoLayout = AutoLayout;

    /// Creates a layout with the dimensions in this order. Elements along the last one are adjacent in memory, so `[0,
    /// 1, 2]` is row-major. An invalid order is reported when the layout is used.
    pub fn new(major_to_minor: impl Into<Vec<usize>>) -> Layout {
        Layout { major_to_minor: major_to_minor.into(), tiling: Vec::new(), sub_byte_element_size_in_bits: 0 }
    }

    /// Splits the layout into tiles, and these into smaller tiles. Each list has the sizes of the last dimensions, in
    /// the order of memory. TPUs use tiles, for example `[vec![8, 128], vec![2, 1]]`.
    pub fn with_tiling(mut self, tiling: impl IntoIterator<Item = impl Into<Vec<usize>>>) -> Layout {
        self.tiling = tiling.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the number of bits of elements that are smaller than a byte.
    pub fn with_sub_byte_element_size_in_bits(mut self, bits: usize) -> Layout {
        self.sub_byte_element_size_in_bits = bits;
        self
    }

    /// Returns the order of the dimensions. Elements along the last one are adjacent in memory.
    pub fn major_to_minor(&self) -> &[usize] {
        &self.major_to_minor
    }

    /// Returns the tiles; empty if there are none.
    pub fn tiling(&self) -> &[Vec<usize>] {
        &self.tiling
    }

    /// Returns the number of bits of an element that is smaller than a byte; otherwise 0.
    pub fn sub_byte_element_size_in_bits(&self) -> usize {
        self.sub_byte_element_size_in_bits
    }

    /// The row-major layout of an array of this rank.
    pub(crate) fn row_major(rank: usize) -> Layout {
        Layout::new((0..rank).collect::<Vec<_>>())
    }

    pub(crate) fn is_row_major(&self) -> bool {
        self.tiling.is_empty() && self.major_to_minor.iter().copied().eq(0..self.major_to_minor.len())
    }

    pub(crate) fn from_pjrt(layout: &pjrt::Layout) -> Layout {
        let major_to_minor: Vec<usize> = layout.minor_to_major.iter().rev().map(|&dim| dim as usize).collect();
        let tiles = layout.tiles.iter();
        Layout::new(major_to_minor)
            .with_tiling(tiles.map(|tile| tile.iter().map(|&size| size as usize).collect::<Vec<_>>()))
            .with_sub_byte_element_size_in_bits(layout.element_bits as usize)
    }

    /// The dimensions from minor to major, as in the text of programs: `1, 0`.
    pub(crate) fn minor_to_major(&self) -> String {
        let order: Vec<String> = self.major_to_minor.iter().rev().map(usize::to_string).collect();
        order.join(", ")
    }

    /// The layout in the compiler's notation: `{1,0:T(8,128)(2,1)}`.
    pub(crate) fn mode(&self) -> String {
        let order: Vec<String> = self.major_to_minor.iter().rev().map(usize::to_string).collect();
        let mut text = format!("{{{}", order.join(","));
        if !self.tiling.is_empty() {
            text.push_str(":T");
            for tile in &self.tiling {
                let sizes: Vec<String> = tile.iter().map(usize::to_string).collect();
                text.push_str(&format!("({})", sizes.join(",")));
            }
            if self.sub_byte_element_size_in_bits != 0 {
                text.push_str(&format!("E({})", self.sub_byte_element_size_in_bits));
            }
        }
        text.push('}');
        text
    }

    /// Fails unless the layout orders the dimensions of an array of this shape.
    pub(crate) fn check(&self, shape: &[usize]) -> Result<()> {
        if self.major_to_minor.len() != shape.len() {
            return Err(err!(
                Value,
                "Length of major_to_minor and the rank of the value should match. Got major_to_minor={} and shape={}",
                tuple(&self.major_to_minor),
                tuple(shape)
            )
            .help(format!(
                "name each of the {} dimensions once, as `Layout::new({:?})` does",
                shape.len(),
                Layout::row_major(shape.len()).major_to_minor
            )));
        }
        // A sorted permutation is the list of all dimensions.
        let mut sorted = self.major_to_minor.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..shape.len()) {
            return Err(err!(
                Value,
                "major_to_minor must be a permutation of the dimensions of the value. Got major_to_minor={} and shape={}",
                tuple(&self.major_to_minor),
                tuple(shape)
            )
            .help(format!("name each of the {} dimensions once, counted from 0", shape.len())));
        }
        let largest = shape.len();
        match self.tiling.iter().find(|tile| tile.is_empty() || tile.contains(&0)) {
            Some(tile) => {
                Err(err!(Value, "a tile has at least one dimension, of at least one element. Got {}", tuple(tile))
                    .help(format!("use sizes of up to {largest} dimensions, with the minor dimension last")))
            }
            None => Ok(()),
        }
    }
}

/// The items as a Python tuple, as JAX prints it.
fn tuple<T: fmt::Display>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(T::to_string).collect();
    match &texts[..] {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tiles: Vec<String> = self.tiling.iter().map(|tile| tuple(tile)).collect();
        write!(
            f,
            "Layout(major_to_minor={}, tiling={}, sub_byte_element_size_in_bits={})",
            tuple(&self.major_to_minor),
            tuple(&tiles),
            self.sub_byte_element_size_in_bits
        )
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The layout part of a [`Format`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayoutOptions {
    /// The device's default, or the layout of the array that is passed.
    #[default]
    Unspecified,
    /// A layout that the compiler chooses.
    Auto,
    /// This layout.
    Layout(Layout),
}

impl From<AutoLayout> for LayoutOptions {
    fn from(_: AutoLayout) -> Self {
        LayoutOptions::Auto
    }
}

impl From<Layout> for LayoutOptions {
    fn from(layout: Layout) -> Self {
        LayoutOptions::Layout(layout)
    }
}

impl From<&Layout> for LayoutOptions {
    fn from(layout: &Layout) -> Self {
        LayoutOptions::Layout(layout.clone())
    }
}

impl From<Option<Layout>> for LayoutOptions {
    fn from(layout: Option<Layout>) -> Self {
        layout.map_or(LayoutOptions::Unspecified, LayoutOptions::Layout)
    }
}

/// A [`Layout`] and a [`Sharding`] of an array. You can pass it wherever a sharding is accepted: to
/// [`device_put`](crate::device_put), and to [`in_shardings`](crate::Jit::in_shardings) and
/// [`out_shardings`](crate::Jit::out_shardings) of [`jit`](crate::jit()). These two also accept [`Layout::AUTO`], with or
/// without a sharding, so that the compiler chooses the layout.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::{Format, Layout};
/// let device = &local_devices()?[0];
/// let transposed = jit(|x: Array| x.t()).out_shardings(Format::new(Layout::AUTO, device));
/// let compiled = transposed.lower(shape_dtype_struct([2, 3], DType::F32))?.compile()?;
/// // What the compiler chose: not to move anything.
/// let formats = compiled.output_formats();
/// assert_eq!(formats.leaves()[0].layout(), Some(&Layout::new([1, 0])));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Format {
    layout: LayoutOptions,
    sharding: Option<Sharding>,
}

impl Format {
    /// Creates a format from a layout, or [`Layout::AUTO`], and a sharding or a device. A layout needs a sharding; if
    /// it is missing, the error is reported when the format is used.
    pub fn new(layout: impl Into<LayoutOptions>, sharding: impl Into<Option<Sharding>>) -> Format {
        Format { layout: layout.into(), sharding: sharding.into() }
    }

    /// Returns the layout; `None` if it is unspecified or chosen by the compiler.
    pub fn layout(&self) -> Option<&Layout> {
        match &self.layout {
            LayoutOptions::Layout(layout) => Some(layout),
            LayoutOptions::Unspecified | LayoutOptions::Auto => None,
        }
    }

    /// Returns `true` if the compiler chooses the layout.
    pub fn is_auto(&self) -> bool {
        self.layout == LayoutOptions::Auto
    }

    /// Returns the sharding; `None` if it is unspecified.
    pub fn sharding(&self) -> Option<&Sharding> {
        self.sharding.as_ref()
    }

    pub(crate) fn has_layout(&self) -> bool {
        self.layout != LayoutOptions::Unspecified
    }

    /// Fails for a layout without a sharding.
    pub(crate) fn check(&self) -> Result<()> {
        match (&self.layout, &self.sharding) {
            (LayoutOptions::Layout(layout), None) => {
                Err(err!(Value, "Sharding has to be concrete when layout is given. Got {layout} and sharding None")
                    .help("pass a sharding or a device with the layout: `Format::new(layout, &sharding)`"))
            }
            _ => Ok(()),
        }
    }

    /// The requested layout.
    pub(crate) fn requested_layout(&self) -> Option<RequestedLayout> {
        match &self.layout {
            LayoutOptions::Unspecified => None,
            LayoutOptions::Auto => Some(RequestedLayout::Auto),
            LayoutOptions::Layout(layout) => Some(RequestedLayout::As(KnownLayout::new(layout))),
        }
    }

    /// The sharding with this layout.
    ///
    /// Fails if the compiler chooses the layout, because `what` needs a concrete one.
    pub(crate) fn placed(&self, what: &str) -> Result<Option<Sharding>> {
        self.check()?;
        match self.requested_layout() {
            Some(RequestedLayout::Auto) => Err(err!(
                Value,
                "sharding and layout in `Format` instance should be concrete. Got layout: {self} for {what}"
            )
            .help("`Layout::AUTO` is for `in_shardings` and `out_shardings` of jit, where the compiler chooses; pass a layout here, for example one of `compiled.input_formats()`")),
            Some(RequestedLayout::As(known)) => Ok(self.sharding.as_ref().map(|sharding| sharding.in_layout(Some(known)))),
            None => Ok(self.sharding.clone()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.layout {
            LayoutOptions::Unspecified => write!(f, "Format(layout=None")?,
            LayoutOptions::Auto => write!(f, "Format(layout=AUTO")?,
            LayoutOptions::Layout(layout) => write!(f, "Format(layout={layout}")?,
        }
        match &self.sharding {
            Some(sharding) => write!(f, ", sharding={sharding})"),
            None => write!(f, ", sharding=None)"),
        }
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A layout that the compiler chooses, with any sharding.
impl From<AutoLayout> for Format {
    fn from(layout: AutoLayout) -> Self {
        Format::new(layout, None)
    }
}

macro_rules! shardings {
    ($($t:ty)*) => {$(
        /// Conversion for the sharding of a [`Format`].
        impl From<$t> for Option<Sharding> {
            fn from(sharding: $t) -> Self {
                Some(Sharding::from(sharding))
            }
        }
    )*};
}
shardings! { &Sharding NamedSharding &NamedSharding SingleDeviceSharding Device &Device }

/// Conversion for the sharding of a [`Format`].
impl From<&SingleDeviceSharding> for Option<Sharding> {
    fn from(sharding: &SingleDeviceSharding) -> Self {
        Some(Sharding::from(sharding.clone()))
    }
}

/// An interned layout. Copying, comparing and hashing one costs as much as for a pointer.
#[derive(Clone, Copy, Eq)]
pub struct KnownLayout(&'static Layout);

impl KnownLayout {
    /// Interns a layout for the life of the process. This is affordable because programs use only a few layouts.
    pub fn new(layout: &Layout) -> KnownLayout {
        static KNOWN: OnceLock<Mutex<HashSet<&'static Layout>>> = OnceLock::new();
        let mut interned = KNOWN.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner());
        if let Some(&layout_in_set) = interned.get(layout) {
            return KnownLayout(layout_in_set);
        }
        // Leaked once per distinct layout.
        let leaked: &'static Layout = Box::leak(Box::new(layout.clone()));
        interned.insert(leaked);
        KnownLayout(leaked)
    }

    pub fn get(self) -> &'static Layout {
        self.0
    }
}

impl PartialEq for KnownLayout {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Hash for KnownLayout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

impl fmt::Debug for KnownLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)
    }
}

/// The layout requested for an argument or a result of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestedLayout {
    Auto,
    As(KnownLayout),
}

impl RequestedLayout {
    /// Returns the layout, unless the compiler chooses it.
    pub fn known(self) -> Option<KnownLayout> {
        match self {
            RequestedLayout::As(known) => Some(known),
            RequestedLayout::Auto => None,
        }
    }
}
