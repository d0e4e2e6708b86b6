//! Lowering of an index to primitives: slices for constants, gathers and scatters for integer arrays.
//!
//! In a trace, numbers and ranges are constants of the program. Outside of a trace, on a single device, the start of a
//! block is an operand, so that a loop over batches or rows compiles only once.

mod host_copy;
mod update;

use smallvec::{SmallVec, smallvec};

use super::{IndexItem, Strided};
use crate::core::array::{Array, Repr, array_of};
use crate::core::program::trace::{bind1, runs_now};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::primitive::binary::{ADD, Compare, MIN, Select};
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::dynamic_slice::DynamicSlice;
use crate::ops::primitive::gather::{Gather, GatherDimensionNumbers, GatherScatterMode};
use crate::shape::{Shape, broadcast_shapes};
use crate::sharding::Sharding;

pub(crate) use update::update;

/// Promises and modes for integer-array indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Options {
    pub mode: Option<GatherScatterMode>,
    pub fill: Option<Scalar>,
    pub unique: bool,
    pub sorted: bool,
}

/// The effect of one entry of an index. Ellipses are expanded, and entries are in the order of the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Part {
        axis: usize,
        part: Strided,
    },
    New,
    Fixed {
        axis: usize,
        at: usize,
    },
    /// An axis indexed by the next integer array of the index.
    Places {
        axis: usize,
    },
}

impl Entry {
    fn entire(axis: usize, shape: &[usize]) -> Entry {
        Entry::Part { axis, part: Strided { start: 0, len: shape[axis], step: 1 } }
    }

    /// For an entry whose axis remains: the axis, or `None` for a new one.
    fn remaining_axis(&self) -> Option<Option<usize>> {
        match *self {
            Entry::Part { axis, .. } | Entry::Places { axis } => Some(Some(axis)),
            Entry::New => Some(None),
            Entry::Fixed { .. } => None,
        }
    }
}

/// An index into arrays of one shape, without the values of its integer arrays.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Plan {
    entries: Vec<Entry>,
    /// The shape that the integer arrays broadcast to.
    block: Shape,
    /// The position of the block's dimensions among the entries, if there is a block.
    block_at: usize,
}

fn entries(shape: &[usize], items: &[IndexItem]) -> Result<(Vec<Entry>, Vec<Array>)> {
    let rank = shape.len();
    let indexed: usize = items.iter().map(axis_count).sum();
    if indexed > rank {
        return Err(err!(
            Index,
            "too many indices for array: array is {rank}-dimensional, but {indexed} were indexed (shape {shape:?})"
        )
        .help("an index has at most one entry for each dimension, besides NewAxis and Ellipsis"));
    }
    if items.iter().filter(|i| matches!(i, IndexItem::Ellipsis)).count() > 1 {
        return Err(err!(Index, "an index can only have a single Ellipsis")
            .help("write `..` for each dimension whose elements are all selected"));
    }
    // Each item indexes the axes from `axis` on.
    let mut out = Vec::with_capacity(rank);
    let mut places = Vec::new();
    let mut axis = 0;
    for item in items {
        match item {
            IndexItem::NewAxis => out.push(Entry::New),
            IndexItem::Ellipsis => {
                let end = axis + rank - indexed;
                out.extend((axis..end).map(|axis| Entry::entire(axis, shape)));
                axis = end;
            }
            IndexItem::At(i) => {
                out.push(Entry::Fixed { axis, at: fixed_position(*i, shape, axis)? });
                axis += 1;
            }
            IndexItem::Slice(slice) => {
                let part = slice.resolve(shape[axis]).ok_or_else(|| {
                    err!(Value, "slice step cannot be zero (axis {axis} of an array of shape {shape:?})")
                        .help("use a step of at least 1, or a negative one to go backwards")
                })?;
                out.push(Entry::Part { axis, part });
                axis += 1;
            }
            IndexItem::Array(mask) if mask.dtype() == DType::Bool => {
                let numbers = true_places(mask, shape, axis)?;
                out.extend((axis..axis + mask.ndim()).map(|axis| Entry::Places { axis }));
                places.extend(numbers);
                axis += mask.ndim();
            }
            IndexItem::Array(a) => {
                check_places(a)?;
                out.push(Entry::Places { axis });
                places.push(a.clone());
                axis += 1;
            }
        }
    }
    out.extend((axis..rank).map(|axis| Entry::entire(axis, shape)));
    Ok((out, places))
}

/// The position on an axis that a number selects; negative numbers count from the end.
fn fixed_position(i: i64, shape: &[usize], axis: usize) -> Result<usize> {
    let n = shape[axis];
    let position = if i < 0 { i.saturating_add(n as i64) } else { i };
    if (0..n as i64).contains(&position) {
        return Ok(position as usize);
    }
    let help = match n {
        0 => format!("the axis is empty (shape {shape:?})"),
        _ => format!("indices of this axis run from -{n} to {}", n - 1),
    };
    Err(err!(Index, "index {i} is out of bounds for axis {axis} with size {n}").help(help))
}

/// The number of axes that an item indexes.
pub(super) fn axis_count(item: &IndexItem) -> usize {
    match item {
        IndexItem::NewAxis | IndexItem::Ellipsis => 0,
        IndexItem::Array(a) if a.dtype() == DType::Bool => a.ndim(),
        _ => 1,
    }
}

/// Returns the places where a mask over the axes from `axis` on is true, as one array of positions for each axis.
fn true_places(mask: &Array, shape: &[usize], axis: usize) -> Result<Vec<Array>> {
    mask.check()?;
    if mask.ndim() == 0 {
        return Err(err!(Type, "Array boolean scalar indices are not supported, got {}", mask.type_name())
            .help("select values with `where_(condition, x, other)` instead"));
    }
    let sizes = &shape[axis..axis + mask.ndim()];
    if sizes != mask.shape() {
        return Err(err!(
            Index,
            "boolean index did not match shape of indexed array: axes {axis} to {} of shape {shape:?} have sizes {sizes:?}, and the mask {:?}",
            axis + mask.ndim() - 1,
            mask.shape()
        )
        .help("a mask must have the sizes of the axes that it selects from"));
    }
    let chosen = mask.to_vec::<bool>().map_err(|error| if !mask.is_traced() { error } else { err!(
            Index,
            "Array boolean indices must be concrete: a mask ({}) cannot index, because the shape of the result would depend on its values",
            mask.type_name()
        )
        .help("use `where_(mask, x, other)` to choose elements, or read the mask outside of the program and index with the positions at which it is true") })?;
    // The positions of the true elements in the flattened mask, then along each axis.
    let flat: Vec<usize> = (0..chosen.len()).filter(|&i| chosen[i]).collect();
    let columns = (0..sizes.len()).map(|d| {
        let (size, stride) = (sizes[d], sizes[d + 1..].iter().product::<usize>().max(1));
        let column: Vec<i64> = flat.iter().map(|i| (i / stride % size) as i64).collect();
        array_of(column, DType::for_indices(&[size]))
    });
    Ok(columns.collect())
}

fn check_places(a: &Array) -> Result<()> {
    a.check()?;
    if !a.dtype().is_integer() {
        return Err(err!(Type, "Indexer must have integer or boolean type, got indexer with type {}", a.type_name())
            .help("convert it with `astype(DType::I32)`"));
    }
    Ok(())
}

/// Makes indices non-negative. Negative indices count from the end of a dimension of size `n`.
pub(crate) fn from_front(places: &Array, n: usize) -> Array {
    let wide = matches!(places.dtype(), DType::U32 | DType::U64 | DType::I64);
    let dtype = if wide { DType::I64 } else { DType::for_indices(&[n]) };
    let unsigned = !places.dtype().is_signed();
    let places = match places.dtype() {
        // An index too large for a signed type is beyond the end in any case.
        DType::U64 => MIN.apply(places, &Array::literal(Scalar::Int(i64::MAX as i128), DType::U64, false)),
        _ => places.clone(),
    };
    let places = places.astype(dtype);
    if unsigned {
        return places;
    }
    let negative = Compare::Lt.apply(&places, &number(0, dtype));
    Select.apply(&negative, &places, &ADD.apply(&places, &number(n as i64, dtype)))
}

impl Plan {
    /// Builds the plan of an index, and returns its integer arrays.
    fn new(x: &Array, items: &[IndexItem]) -> Result<(Plan, Vec<Array>)> {
        x.check()?;
        let (entries, places) = entries(x.shape(), items)?;
        let shapes: Vec<&[usize]> = places.iter().map(|p| p.shape()).collect();
        let Some(block) = broadcast_shapes(&shapes) else {
            let types: Vec<String> = places.iter().map(|p| p.type_name()).collect();
            return Err(err!(
                Index,
                "shape mismatch: indexing arrays could not be broadcast together with shapes {}",
                types.join(" and ")
            )
            .help("arrays pair up elementwise; for all combinations give one of them a new axis with `expand_dims`"));
        };
        // Numbers count as arrays if the index contains arrays.
        let advanced: Vec<usize> = (0..entries.len())
            .filter(|&i| !places.is_empty() && matches!(entries[i], Entry::Fixed { .. } | Entry::Places { .. }))
            .collect();
        let together = advanced.windows(2).all(|w| w[1] == w[0] + 1);
        let block_at = if together { advanced.first().copied().unwrap_or(0) } else { 0 };
        Ok((Plan { entries, block, block_at }, places))
    }

    fn has_places(&self) -> bool {
        self.entries.iter().any(|e| matches!(e, Entry::Places { .. }))
    }

    /// Returns the start and sizes of the block that contains all elements that numbers and plain ranges select.
    fn bounds(&self, shape: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut start = vec![0; shape.len()];
        let mut sizes = shape.to_vec();
        for entry in &self.entries {
            match *entry {
                Entry::Part { axis, part } if part.step == 1 => (start[axis], sizes[axis]) = (part.start, part.len),
                Entry::Fixed { axis, at } => (start[axis], sizes[axis]) = (at, 1),
                _ => {}
            }
        }
        (start, sizes)
    }

    /// Returns this index relative to the block of [`bounds`](Self::bounds).
    fn within_bounds(mut self) -> Self {
        for entry in &mut self.entries {
            match entry {
                Entry::Part { part, .. } if part.step == 1 => part.start = 0,
                Entry::Fixed { at, .. } => *at = 0,
                _ => {}
            }
        }
        self
    }

    /// Builds the result's dimensions: one for each kept part and new axis, with the block at its position.
    fn layout<T>(&self, block: impl Fn() -> Vec<T>, each: impl Fn(&Entry) -> Option<T>) -> Vec<T> {
        let mut out = Vec::new();
        for (i, entry) in self.entries.iter().enumerate() {
            if i == self.block_at {
                out.extend(block());
            }
            out.extend(each(entry));
        }
        if self.block_at >= self.entries.len() {
            out.extend(block());
        }
        out
    }

    fn result_shape(&self) -> Vec<usize> {
        self.layout(
            || self.block.to_vec(),
            |e| match e {
                Entry::Part { part, .. } => Some(part.len),
                Entry::New => Some(1),
                _ => None,
            },
        )
    }

    /// Returns the dimensions of the result, without new axes, that are kept parts. The other dimensions belong to the
    /// block.
    fn kept_dims(&self) -> Vec<usize> {
        let is_part =
            self.layout(|| vec![false; self.block.len()], |e| matches!(e, Entry::Part { .. }).then_some(true));
        (0..is_part.len()).filter(|&i| is_part[i]).collect()
    }

    /// Returns an indexed axis of size 0, which has no entries to take.
    fn empty_axis(&self, shape: &[usize]) -> Option<usize> {
        self.entries.iter().find_map(|e| match e {
            Entry::Places { axis } if shape[*axis] == 0 => Some(*axis),
            _ => None,
        })
    }

    /// Returns the indices of each integer array, non-negative and in one dtype.
    fn places(&self, shape: &[usize], raw: &[Array]) -> Vec<Array> {
        let axes = self.entries.iter().filter_map(|e| match e {
            Entry::Places { axis } => Some(*axis),
            _ => None,
        });
        let mut places: Vec<Array> = axes.zip(raw).map(|(axis, p)| from_front(p, shape[axis])).collect();
        if DType::for_indices(shape) == DType::I64 || places.iter().any(|p| p.dtype() == DType::I64) {
            places.iter_mut().for_each(|p| *p = p.astype(DType::I64));
        }
        places
    }

    /// Cuts `x` to the parts and numbers. Axes indexed by numbers are removed; axes indexed by integer arrays stay
    /// entire.
    fn cut(&self, x: &Array) -> Array {
        let rank = x.ndim();
        let mut start: SmallVec<[usize; 4]> = smallvec![0; rank];
        let mut limit: SmallVec<[usize; 4]> = x.shape().into();
        let mut strides: SmallVec<[usize; 4]> = smallvec![1; rank];
        let mut backwards: SmallVec<[usize; 4]> = SmallVec::new();
        // A slice has positive strides, so a part with a negative step is sliced forwards and reversed.
        for entry in &self.entries {
            match *entry {
                Entry::Part { axis, part } => {
                    let stride = part.step.unsigned_abs() as usize;
                    let span = part.len.saturating_sub(1) * stride;
                    start[axis] = if part.step < 0 { part.start - span } else { part.start };
                    limit[axis] = if part.len == 0 { start[axis] } else { start[axis] + span + 1 };
                    strides[axis] = stride;
                    if part.step < 0 && part.len > 1 {
                        backwards.push(axis);
                    }
                }
                Entry::Fixed { axis, at } => (start[axis], limit[axis]) = (at, at + 1),
                Entry::Places { .. } | Entry::New => {}
            }
        }
        let is_entire =
            start.iter().all(|s| *s == 0) && limit.as_slice() == x.shape() && strides.iter().all(|s| *s == 1);
        let mut out = if is_entire { x.clone() } else { lax::slice(x, &start, &limit, Some(&strides)) };
        if !backwards.is_empty() {
            out = lax::rev(&out, &backwards);
        }
        if !self.has_places() {
            return out;
        }
        let axes = self.entries.iter().filter_map(|entry| entry.remaining_axis().filter(Option::is_some));
        lax::with_dims(&out, &axes.collect::<Vec<_>>())
    }
}

/// A constant position.
fn number(v: i64, dtype: DType) -> Array {
    Array::literal(Scalar::Int(v.into()), dtype, false)
}

/// Returns start scalars for the axes that are cut to a block.
fn cut_starts(shape: &[usize], start: &[usize], sizes: &[usize]) -> Vec<Array> {
    let cut = (0..shape.len()).filter(|&d| sizes[d] < shape[d]);
    let dtype = DType::for_indices(shape);
    cut.map(|d| number(start[d] as i64, dtype)).collect()
}

/// Returns a start for every axis, from the starts of the axes that are cut, and the remaining operands.
fn starts_of<'a>(shape: &[usize], sizes: &[usize], args: &'a [Array]) -> (Vec<Array>, &'a [Array]) {
    let mut operands = args.iter();
    let zero = number(0, DType::for_indices(shape));
    let starts = (0..shape.len()).map(|d| {
        if sizes[d] < shape[d] { operands.next().cloned().unwrap_or_else(|| zero.clone()) } else { zero.clone() }
    });
    (starts.collect(), operands.as_slice())
}

/// Returns `true` if a block's start can be an operand: in eager execution on one device, because partitioning does not
/// depend on it there.
fn is_movable(x: &Array, args: &[Array]) -> bool {
    let single = matches!(&x.0, Repr::Concrete(c) if matches!(c.sharding, Sharding::Single(_)));
    single && runs_now(args)
}

/// Returns the indexed part of `x`.
pub(crate) fn get(x: &Array, items: &[IndexItem], options: &Options) -> Result<Array> {
    let (plan, places) = Plan::new(x, items)?;
    let shape = plan.result_shape();
    if let Some(axis) = plan.empty_axis(x.shape()).filter(|_| plan.block.iter().all(|d| *d > 0)) {
        return Err(err!(
            Index,
            "cannot index axis {axis} with size 0 of an array of shape {:?} with an integer array",
            x.shape()
        )
        .help("check the size of the axis first, because an empty axis has no entries"));
    }
    if plan.has_places() && shape.contains(&0) {
        // Nothing is selected, so no element gets a gradient.
        return Ok(crate::ops::constants::filled(&shape, Scalar::Int(0), x.dtype()));
    }
    let shape = x.shape();
    let mut entries = plan.entries.iter();
    if entries.all(|e| matches!(e, Entry::Part { axis, part } if part.step == 1 && part.len == shape[*axis])) {
        return Ok(x.clone());
    }
    if let Some(copy) = plan.copied_by_host(x) {
        return Ok(copy);
    }
    let mut args = vec![x.clone()];
    args.extend(places);
    if !is_movable(x, &args) {
        return composite1("getitem", (plan, *options), &args, |(plan, options), args| {
            plan.get(&args[0], &args[1..], options).map(|x| vec![x])
        });
    }
    // Reads the block that contains the selection from an operand's start, so that one program serves all starts.
    let (start, sizes) = plan.bounds(x.shape());
    args.splice(1..1, cut_starts(x.shape(), &start, &sizes));
    composite1("getitem_block", (plan.within_bounds(), sizes, *options), &args, |(plan, sizes, options), args| {
        let (starts, places) = starts_of(args[0].shape(), sizes, &args[1..]);
        plan.get(&read_block(&args[0], &starts, sizes), places, options).map(|x| vec![x])
    })
}

/// Reads a block of these sizes that begins at `starts`.
fn read_block(x: &Array, starts: &[Array], sizes: &[usize]) -> Array {
    if sizes == x.shape() {
        return x.clone();
    }
    let operands: Vec<Array> = std::iter::once(x).chain(starts).cloned().collect();
    bind1(DynamicSlice { sizes: sizes.into() }, &operands)
}

impl Plan {
    /// Returns the part of `x` indexed with these arrays.
    fn get(&self, x: &Array, raw: &[Array], options: &Options) -> Result<Array> {
        let cut = self.cut(x);
        if raw.is_empty() {
            let dims: Vec<Option<usize>> = self.entries.iter().filter_map(Entry::remaining_axis).collect();
            return Ok(lax::with_dims(&cut, &dims));
        }
        let places = self.places(x.shape(), raw);
        // Out of bounds, the nearest entry is read but gets no gradient.
        let mode = options.mode.unwrap_or(GatherScatterMode::PromiseInBounds);
        // The axes of `cut` in the order of the entries: kept parts, and indexed axes.
        let indexed: Vec<bool> = self
            .entries
            .iter()
            .filter_map(|e| match e {
                Entry::Part { .. } => Some(false),
                Entry::Places { .. } => Some(true),
                _ => None,
            })
            .collect();
        let sizes: Vec<usize> = cut.shape().iter().zip(&indexed).map(|(&n, &i)| if i { 1 } else { n }).collect();
        let out = if self.block.is_empty() && mode != GatherScatterMode::FillOrDrop {
            single_block(&cut, &places, &indexed, &sizes)
        } else {
            let axes: Vec<usize> = (0..indexed.len()).filter(|&d| indexed[d]).collect();
            let block_dims: Vec<usize> = (0..self.block.len()).collect();
            let columns: Vec<Array> = places.iter().map(|p| column(p, &self.block, &block_dims)).collect();
            let gather = Gather {
                dims: GatherDimensionNumbers {
                    offset_dims: self.kept_dims(),
                    collapsed_slice_dims: axes.clone(),
                    start_index_map: axes,
                    ..GatherDimensionNumbers::default()
                },
                slice_sizes: sizes,
                mode,
                fill_value: options.fill,
                unique_indices: options.unique,
                indices_are_sorted: options.sorted,
            };
            gather.apply(&cut, &lax::concatenate(&columns, self.block.len()))
        };
        // If the index is a single position, its block still has the indexed axes.
        let has_indexed_axes = out.ndim() == indexed.len() && self.block.is_empty();
        let mut remaining = (0..out.ndim()).filter(|&d| !(has_indexed_axes && indexed[d]));
        let is_new = self.layout(
            || vec![false; self.block.len()],
            |e| match e {
                Entry::Part { .. } => Some(false),
                Entry::New => Some(true),
                _ => None,
            },
        );
        let dims: Vec<Option<usize>> = is_new.iter().map(|new| if *new { None } else { remaining.next() }).collect();
        Ok(lax::with_dims(&out, &dims))
    }
}

/// Reads the block that a single index selects: the index is its start along the indexed axes.
fn single_block(x: &Array, places: &[Array], indexed: &[bool], sizes: &[usize]) -> Array {
    let mut positions = places.iter();
    let starts = indexed.iter().map(|is_indexed| {
        let position = if *is_indexed { positions.next().cloned() } else { None };
        position.unwrap_or_else(|| number(0, places[0].dtype()))
    });
    // This includes axes of size 1, so that `checkify` sees the position.
    let operands: Vec<Array> = std::iter::once(x.clone()).chain(starts).collect();
    bind1(DynamicSlice { sizes: sizes.into() }, &operands)
}

/// Returns one column of an index matrix whose rows have shape `rows`. `dims` ends with the dimensions of `places`.
fn column(places: &Array, rows: &[usize], dims: &[usize]) -> Array {
    let mut shape: Shape = rows.into();
    shape.push(1);
    let first_dim = dims.len() - places.ndim();
    places.broadcast_in_dim(&shape, &dims[first_dim..])
}

#[cfg(test)]
mod tests {
    use crate::core::program::Aval;
    use crate::core::program::trace::trace;
    use crate::prelude::*;

    fn program(f: impl Fn(&Array) -> Vec<Array>) -> String {
        let traced = trace(&[Aval::new(DType::F32, vec![8, 3, 4])], |args| Ok(f(&args[0])));
        traced.expect("a program").program.to_string()
    }

    /// Constant indices lower to slices in a program, also in loops over rows.
    #[test]
    fn constant_indices_need_no_gather() {
        let text = program(|x| vec![x.get((0, 1..3)), x.get(s![.., -1, ..;-2])]);
        let want = "{ lambda a:f32[8,3,4].
  b:f32[1,2,4] = slice[start=(0,1,0) limit=(1,3,4) strides=(1,1,1)] a
  c:f32[2,4] = reshape[shape=(2,4)] b
  d:f32[8,1,2] = slice[start=(0,2,1) limit=(8,3,4) strides=(1,1,2)] a
  e:f32[8,1,2] = rev[dimensions=(2,)] d
  f:f32[8,2] = reshape[shape=(8,2)] e
  in (c, f) }";
        assert_eq!(text, want);
        let text = program(|x| x.iter().map(|row| row.at((0, ..)).set(1)).collect());
        assert!(!text.contains("gather") && !text.contains("scatter"), "{text}");
    }

    #[test]
    fn one_place_is_a_block_and_several_are_gathered() {
        let text = program(|x| {
            let i = x.get((0, 0, 0)).astype(DType::I32);
            vec![x.get(&i), x.get((.., i.broadcast_to([2])))]
        });
        assert!(text.contains("dynamic_slice[slice_sizes=(1,3,4)]") && text.matches(" gather[").count() == 1, "{text}");
    }
}
