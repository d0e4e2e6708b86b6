//! The primitives that read and write refs.

use smallvec::smallvec;

use super::place::Place;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, Primitive};
use crate::core::program::Aval;
use crate::error::{Error, Result, bail, err};
use crate::ops::lax;
use crate::ops::numpy::where_;

/// A part of a ref.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    /// The number of the ref in the state.
    pub number: usize,
    pub place: Place,
    /// The type of the part.
    pub part: Aval,
    /// Ranges that reach beyond the end are not moved to lie inside.
    pub padded: bool,
    /// The last operand is a mask.
    pub masked: bool,
}

/// Reads a part of a ref. Operands are those of the place, the value where the mask is false, if there is one, and the
/// mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Get {
    pub access: Access,
    pub other: bool,
}

/// Replaces a part of a ref, and returns what it was. Operands are the new part, those of the place, and the mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Swap {
    pub access: Access,
}

impl Access {
    /// All of a ref of this type.
    pub fn whole(number: usize, of: &Aval) -> Access {
        Access { number, place: Place::whole(&of.shape), part: of.clone(), padded: false, masked: false }
    }

    fn print(&self) -> String {
        let masked = if self.masked { " masked" } else { "" };
        format!("ref={} place={:?}{masked}", self.number, self.place)
    }

    /// The value in a state, with room after the end where ranges may reach there.
    fn value(&self, state: &[Array]) -> Result<Array> {
        let value = state
            .get(self.number)
            .ok_or_else(|| err!(Runtime, "ref {} is none of the {} of the state", self.number, state.len()))?;
        Ok(if self.padded { self.place.padded(value) } else { value.clone() })
    }
}

impl Get {
    /// The part that it reads of the refs' values.
    pub fn discharge(&self, args: &[Array], state: &[Array]) -> Result<Array> {
        let (place, rest) = args.split_at(self.access.place.operand_count());
        let part = self.access.place.read(&self.access.value(state)?, place);
        Ok(match rest {
            [other, mask] => where_(mask, &part, other),
            _ => part,
        })
    }
}

impl Swap {
    /// The part that it replaces in the refs' values.
    pub(super) fn discharge(&self, args: &[Array], state: &mut [Array]) -> Result<Array> {
        let Access { place, padded, masked, .. } = &self.access;
        let value = self.access.value(state)?;
        let (new, operands) = args.split_first().ok_or_else(|| err!(Type, "swap takes a value"))?;
        let (positions, mask) = operands.split_at(place.operand_count());
        let old = place.read(&value, positions);
        let new = if *masked { where_(&mask[0], new, &old) } else { new.clone() };
        let mut value = place.write(&value, positions, &new);
        let slot = &mut state[self.access.number];
        if *padded {
            value = lax::slice(&value, &vec![0; slot.ndim()], slot.shape(), None);
        }
        *slot = value;
        Ok(old)
    }
}

fn outside() -> Error {
    err!(Leak, "a ref is read or written outside of its kernel")
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

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(outside())
    }

    fn has_effects(&self) -> bool {
        true
    }
}
