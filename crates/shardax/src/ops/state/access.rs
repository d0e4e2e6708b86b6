//! The primitives that read and write refs.

use smallvec::{SmallVec, smallvec};

use super::cell::Cell;
use super::place::Place;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, trace};
use crate::error::{Error, Result, bail, err};
use crate::interpret::batching::batch_eval;
use crate::ops::lax;
use crate::ops::select::where_;
use crate::shape::AxisSet;

/// A part of a ref.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    /// The number of the ref: its position for a ref of a kernel; from [`FIRST_REF_NUMBER`](super::FIRST_REF_NUMBER) on for a ref made by
    /// `new_ref`.
    pub number: usize,
    /// The value of a ref that was made outside of every trace.
    pub cell: Option<Cell>,
    pub place: Place,
    /// The type of the ref.
    pub of: Aval,
    /// The type of the part.
    pub part: Aval,
    /// `true` if ranges that reach beyond the end are not moved to lie inside.
    pub padded: bool,
    /// The last operand is a mask.
    pub masked: bool,
}

/// Reads a part of a ref. Operands are the operands of the place, then optionally the value where the mask is false,
/// and the mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Get {
    pub access: Access,
    pub other: bool,
}

/// Replaces a part of a ref and returns the old part. Operands are the new part, the operands of the place, and the
/// mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Swap {
    pub access: Access,
}

impl Access {
    /// Returns all of a ref of this type.
    pub fn entire(number: usize, of: &Aval) -> Access {
        let place = Place::entire(&of.shape);
        Access { number, cell: None, place, of: of.clone(), part: of.clone(), padded: false, masked: false }
    }

    fn print(&self) -> String {
        let masked = if self.masked { " masked" } else { "" };
        format!("ref={} place={:?}{masked}", self.number, self.place)
    }

    /// Returns true if the part is the value of the ref itself.
    pub fn is_whole(&self) -> bool {
        self.place == Place::entire(&self.of.shape)
    }

    /// All of the ref.
    fn entire_ref(&self) -> Access {
        Access { cell: self.cell.clone(), ..Access::entire(self.number, &self.of) }
    }

    /// Returns the value of the ref, with additional entries after the end if ranges can reach there.
    fn padded_to_block(&self, value: &Array) -> Array {
        if self.padded { self.place.padded(value) } else { value.clone() }
    }
}

impl Get {
    /// Returns the part of the ref's value that it reads.
    pub fn read(&self, args: &[Array], value: &Array) -> Array {
        let (place, rest) = args.split_at(self.access.place.operand_count());
        let part = self.access.place.read(&self.access.padded_to_block(value), place);
        match rest {
            [other, mask] => where_(mask, &part, other),
            _ => part,
        }
    }
}

impl Swap {
    /// Replaces a part of the ref's value and returns the old part.
    pub fn write(&self, args: &[Array], value: &mut Array) -> Result<Array> {
        let Access { place, padded, masked, .. } = &self.access;
        let roomy = self.access.padded_to_block(value);
        let (new, operands) = args.split_first().ok_or_else(|| err!(Type, "swap needs a value to store"))?;
        let (positions, mask) = operands.split_at(place.operand_count());
        // Masked elements keep their previous value.
        let old = place.read(&roomy, positions);
        let new = if *masked { where_(&mask[0], new, &old) } else { new.clone() };
        let mut written = place.write(&roomy, positions, &new);
        // The padding took the writes that are out of bounds.
        if *padded {
            written = lax::slice(&written, &vec![0; value.ndim()], value.shape(), None);
        }
        *value = written;
        Ok(old)
    }
}

fn outside() -> Error {
    err!(Leak, "a ref was read or written outside of the function or kernel that it belongs to")
        .help("make the ref where it is used, or give the function its value and return the new one")
}

/// Returns the error of a write that every entry of a batch, or every device, would execute at once.
pub(super) fn written_inside(function: &str, access: &Access) -> Error {
    err!(Value, "a ref of type {} from outside of {function} is written inside of it", access.of)
        .help("make the ref inside of the function, or return the value from the function and write it outside")
}

impl Primitive for Get {
    fn name(&self) -> &'static str {
        "get"
    }

    fn print_params(&self) -> String {
        self.access.print()
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, _args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![self.access.part.clone()])
    }

    /// The part varies over the axes of its ref and of the position.
    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args.iter().fold(self.access.part.vma.clone(), |a, b| a.union(b))])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    /// Each entry of the batch reads the same ref at a separate position.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let value = bind1(Get { access: self.access.entire_ref(), other: false }, &[]);
        let entries = args.iter().zip(dims).map(|(arg, dim)| dim.map_or(arg.aval(), |d| arg.aval().without_dim(d)));
        let types: Vec<Aval> = [value.aval()].into_iter().chain(entries).collect();
        // The ref itself is not batched, so a batched index reads its entire value.
        let read = trace(&types, |args| Ok(vec![self.read(&args[1..], &args[0])]))?;
        let args = [&[value], args].concat();
        let (outs, dims) = batch_eval(&read.program, axis, &args, &[&[None], dims].concat())?;
        Ok((outs.into(), dims))
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(outside())
    }

    fn has_effects(&self) -> bool {
        true
    }
}

impl Primitive for Swap {
    fn name(&self) -> &'static str {
        "swap"
    }

    fn print_params(&self) -> String {
        self.access.print()
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let part = &self.access.part;
        match args.first() {
            Some(new) if (new.dtype, &new.shape) == (part.dtype, &part.shape) => Ok(smallvec![part.clone()]),
            new => bail!(Type, "swap of a part of type {part} takes a value of its type, got {new:?}"),
        }
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args.iter().fold(self.access.part.vma.clone(), |a, b| a.union(b))])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Err(err!(Value, "a value that is differentiated was written to a ref of type {} from outside of the differentiated function", self.access.of)
            .help("make the ref inside of the function, or write `stop_gradient(value)`"))
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Err(written_inside("vmap", &self.access))
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(outside())
    }

    fn has_effects(&self) -> bool {
        true
    }
}
