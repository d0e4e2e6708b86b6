//! A part of a ref: the entries of each dimension, with computed positions as operands.

use super::ref_index::{Ds, RefIndexItem};
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::trace;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::ops::constants::filled;
use crate::ops::index::{IndexItem, Slice};
use crate::ops::lax;
use crate::shape::Shape;

/// The entries of one dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Entries {
    /// The entry at an operand, which removes the dimension.
    Single,
    /// This many entries from an operand on.
    Window(usize),
    /// This many entries from a constant on.
    Range(usize, usize),
    Strided(Slice),
    /// The entries at an operand, which is an integer array.
    Gather,
}

/// A part of a ref. The positions of `Single`, `Window` and `Gather` are operands, in the order of the dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(Vec<Entries>);

/// The contiguous block of a value that has a part of it, and the rest of the index.
struct Block {
    starts: Vec<Array>,
    sizes: Shape,
    items: Vec<IndexItem>,
}

impl Place {
    /// Returns the place in a value of this shape, and its operands. Ranges can reach beyond the end only if the
    /// dimension is `open`.
    pub fn of(shape: &[usize], index: Vec<RefIndexItem>, open: bool) -> Result<(Place, Vec<Array>)> {
        let mut items = index;
        let count = items.iter().filter(|item| !is_ellipsis(item)).count();
        if count > shape.len() {
            return Err(err!(Index, "too many indices: {count} for a ref of shape {shape:?}")
                .help("pass at most one index for each dimension"));
        }
        // An ellipsis, or the end of the index, stands for the dimensions that are not indexed.
        let ellipsis = items.iter().position(is_ellipsis).unwrap_or(items.len());
        let full = std::iter::repeat_with(|| RefIndexItem::Item(IndexItem::Slice(Slice::FULL)));
        items.splice(ellipsis..(ellipsis + 1).min(items.len()), full.take(shape.len() - count));
        if items.iter().any(is_ellipsis) {
            return Err(err!(Index, "an index can only have a single ellipsis")
                .help("write `..` for each dimension that the second ellipsis replaces"));
        }
        let (mut entries, mut operands) = (Vec::new(), Vec::new());
        for (item, &size) in items.into_iter().zip(shape) {
            let (entry, operand) = entry(item, size, open)?;
            entries.push(entry);
            operands.extend(operand);
        }
        Ok((Place(entries), operands))
    }

    /// Returns all entries of each dimension.
    pub fn entire(shape: &[usize]) -> Place {
        Place(shape.iter().map(|&size| Entries::Range(0, size)).collect())
    }

    /// Returns the entries of each dimension.
    pub fn entries(&self) -> &[Entries] {
        &self.0
    }

    /// Returns the number of operands.
    pub fn operand_count(&self) -> usize {
        self.0.iter().filter(|entry| matches!(entry, Entries::Single | Entries::Window(_) | Entries::Gather)).count()
    }

    /// Returns `true` if it consists of ranges and single entries.
    pub fn is_block(&self) -> bool {
        !self.0.contains(&Entries::Gather)
    }

    /// Returns the type of the part of a value of type `of`, for operands of these types.
    pub fn part(&self, of: &Aval, operands: &[Array], padded: bool) -> Result<Aval> {
        let types: Vec<Aval> = std::iter::once(of.clone()).chain(operands.iter().map(Array::aval)).collect();
        let traced = trace(&types, |args| {
            let value = if padded { self.padded(&args[0]) } else { args[0].clone() };
            Ok(vec![self.read(&value, &args[1..])])
        })?;
        Ok(Aval { weak: false, ..traced.program.out_avals().swap_remove(0) })
    }

    fn block(&self, shape: &[usize], operands: &[Array]) -> Block {
        let mut operands = operands.iter();
        let mut next_operand = || operands.next().cloned().unwrap_or_else(|| number(0));
        let mut block = Block { starts: Vec::new(), sizes: Shape::new(), items: Vec::new() };
        for (entries, &size) in self.0.iter().zip(shape) {
            let full = IndexItem::Slice(Slice::FULL);
            let (start, size, item) = match entries {
                Entries::Single => (next_operand(), 1, IndexItem::At(0)),
                Entries::Window(n) => (next_operand(), *n, full),
                Entries::Range(start, n) => (number(*start), *n, full),
                Entries::Strided(slice) => (number(0), size, IndexItem::Slice(*slice)),
                Entries::Gather => (number(0), size, IndexItem::Array(next_operand())),
            };
            block.starts.push(start);
            block.sizes.push(size);
            block.items.push(item);
        }
        block
    }

    /// Returns the part of `value`.
    pub fn read(&self, value: &Array, operands: &[Array]) -> Array {
        let block = self.block(value.shape(), operands);
        block.rest_of(&block.cut(value))
    }

    /// Returns `value` with the part replaced.
    pub fn write(&self, value: &Array, operands: &[Array], part: &Array) -> Array {
        let block = self.block(value.shape(), operands);
        let new = match block.items.iter().all(|item| matches!(item, IndexItem::At(_)) || is_full(item)) {
            true => part.reshape(&block.sizes),
            false => block.cut(value).at(block.items.clone()).set(part),
        };
        // A write to the entire value needs no slice, so that compilers see that the previous value is unused.
        match block.sizes.as_slice() == value.shape() {
            true => new,
            false => lax::dynamic_update_slice(value, &new, &block.starts),
        }
    }

    /// Pads the end of each dimension of `value` with more entries than any range of this place has, so that no range is
    /// clamped.
    pub fn padded(&self, value: &Array) -> Array {
        let widths = self.block(value.shape(), &[]).sizes.iter().map(|&n| (0, n as i64, 0)).collect::<Vec<_>>();
        lax::pad(value, &uninitialized(&Aval::scalar(value.dtype())), &widths)
    }
}

impl Block {
    fn cut(&self, value: &Array) -> Array {
        if self.sizes.as_slice() == value.shape() {
            value.clone()
        } else {
            lax::dynamic_slice(value, &self.starts, &self.sizes)
        }
    }

    fn rest_of(&self, block: &Array) -> Array {
        if self.items.iter().all(is_full) { block.clone() } else { block.get(self.items.clone()) }
    }
}

fn is_full(item: &IndexItem) -> bool {
    matches!(item, IndexItem::Slice(slice) if *slice == Slice::FULL)
}

/// A constant index.
pub(crate) fn number(n: usize) -> Array {
    Array::literal(Scalar::Int(n as i128), DType::for_indices(&[n]), false)
}

/// Returns the entries of a dimension of this size, and the operand.
fn entry(item: RefIndexItem, size: usize, open: bool) -> Result<(Entries, Option<Array>)> {
    // The start of a `ds` is checked only if it is known now.
    match item {
        RefIndexItem::Ds(Ds { start, size: n }) => {
            start.check()?;
            if start.ndim() != 0 || !start.dtype().is_integer() {
                return Err(err!(Type, "the start of ds must be an integer scalar, got {}", start.type_name())
                    .help("pass a number, or a scalar that you convert with `astype(DType::I32)`"));
            }
            let scalars = start.is_number().then(|| start.to_scalars()).transpose()?;
            let begin = scalars.and_then(|scalars| scalars.first().map(|n| n.to_i128())).unwrap_or(0);
            if !open && (n > size || begin < 0 || begin as usize > size - n) {
                return Err(err!(Index, "ds({begin}, {n}) reaches beyond a dimension of size {size} of a ref")
                    .help("use a larger block, or `load` with a mask"));
            }
            Ok((Entries::Window(n), Some(start)))
        }
        RefIndexItem::Item(IndexItem::At(i)) => {
            let n = size as i64;
            if i < -n || i >= n {
                return Err(err!(Index, "index {i} is out of bounds for a dimension of size {size} of a ref")
                    .help("use an index below the size; negative ones count from the end"));
            }
            Ok((Entries::Single, Some(number(i.rem_euclid(n) as usize))))
        }
        RefIndexItem::Item(IndexItem::Slice(slice)) => match slice.resolve(size) {
            None => Err(err!(Value, "slice step cannot be zero").help("use a step of at least 1, or leave it out")),
            Some(range) if range.step == 1 => Ok((Entries::Range(range.start, range.len), None)),
            Some(_) => Ok((Entries::Strided(slice), None)),
        },
        RefIndexItem::Item(IndexItem::Array(array)) => {
            array.check()?;
            if !array.dtype().is_integer() {
                return Err(err!(Type, "a ref is indexed by integers, got an index of type {}", array.type_name())
                    .help("pass the mask to `load` or `store` instead"));
            }
            let entries = if array.ndim() == 0 { Entries::Single } else { Entries::Gather };
            Ok((entries, Some(array)))
        }
        RefIndexItem::Item(IndexItem::NewAxis | IndexItem::Ellipsis) => {
            Err(err!(Index, "an index of a ref cannot have new axes")
                .help("read the ref without new axes, and reshape the value"))
        }
    }
}

fn is_ellipsis(item: &RefIndexItem) -> bool {
    matches!(item, RefIndexItem::Item(IndexItem::Ellipsis))
}

/// Returns the value of memory that was never written: NaN, the lowest integer, or `false`, as in JAX.
pub(crate) fn uninitialized(aval: &Aval) -> Array {
    // Reading memory before writing it is a mistake, which NaN and extreme integers make visible.
    let value = match aval.dtype.category() {
        Category::Float | Category::Complex => Scalar::Float(f64::NAN.to_bits()),
        Category::Signed | Category::Unsigned => Scalar::Int(aval.dtype.integer_range().map_or(0, |(low, _)| low)),
        Category::Bool | Category::Key => Scalar::Int(0),
    };
    filled(&aval.shape, value.converted(aval.dtype), aval.dtype)
}
