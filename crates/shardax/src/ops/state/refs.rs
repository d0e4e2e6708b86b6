//! The handles of refs that functions being traced receive.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use super::access::{Access, Get, Swap};
use super::place::Place;
use super::ref_index::{IntoRefIndex, RefIndexItem};
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, record_error};
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::local::{Stack, StackKey};
use crate::ops::index::Ellipsis;
use crate::ops::numpy::convert;
use crate::ops::operators::ArrayLike;
use crate::source;

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The scopes of refs that are being traced, innermost last.
    static SCOPES: Stack<u64> = const { Stack::new() };
}

/// Ends a scope, even if the traced function panics.
struct Scope(usize);

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.truncate(self.0));
    }
}

/// Runs `f`, which traces a function of refs of these types: no other refs may be used in it, and these nowhere else.
pub(crate) fn with_refs<R>(avals: &[Aval], f: impl FnOnce(&[Ref]) -> R) -> R {
    let scope = NEXT.fetch_add(1, Ordering::Relaxed);
    let refs: Vec<Ref> =
        avals.iter().enumerate().map(|(number, aval)| Ref { number, aval: aval.clone(), scope }).collect();
    let _scope = SCOPES.with_borrow_mut(|scopes| {
        scopes.push(scope);
        Scope(scopes.len() - 1)
    });
    f(&refs)
}

/// An array that a kernel reads and writes in place.
///
/// [`get`](Ref::get) reads all of it, [`set`](Ref::set) writes it, and [`at`](Ref::at) names a part of it.
#[derive(Clone, Debug)]
pub struct Ref {
    number: usize,
    aval: Aval,
    scope: u64,
}

/// A part of a [`Ref`], to be read or written; see [`Ref::at`].
#[derive(Clone, Debug)]
#[must_use = "a part does nothing until it is read or written"]
pub struct RefPart {
    of: Ref,
    index: Vec<RefIndexItem>,
}

impl Ref {
    /// The shape of the block that it holds.
    pub fn shape(&self) -> &[usize] {
        &self.aval.shape
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.aval.dtype
    }

    /// The number of dimensions.
    pub fn ndim(&self) -> usize {
        self.aval.rank()
    }

    /// A part of it, to be read or written: `x.at((ds(&i * 8, 8), 0))`.
    ///
    /// The index is as that of [`Array::get`], and may have ranges with a computed start ([`ds`](super::ds)) and integer
    /// scalars that are traced. Computed indices are clamped to lie inside. The index is checked when the part is read or
    /// written.
    pub fn at(&self, index: impl IntoRefIndex) -> RefPart {
        RefPart { of: self.clone(), index: index.into_ref_index() }
    }

    /// Its value now.
    #[track_caller]
    pub fn get(&self) -> Array {
        self.at(Ellipsis).get()
    }

    /// Replaces its value. See [`RefPart::set`].
    #[track_caller]
    pub fn set(&self, value: impl ArrayLike) -> Result<()> {
        self.at(Ellipsis).set(value)
    }

    /// Adds to its value.
    #[track_caller]
    pub fn add(&self, value: impl ArrayLike) -> Result<()> {
        self.at(Ellipsis).add(value)
    }

    /// Replaces its value, and returns what it was.
    #[track_caller]
    pub fn swap(&self, value: impl ArrayLike) -> Array {
        self.at(Ellipsis).swap(value)
    }

    fn check(&self) -> Result<()> {
        match SCOPES.with_borrow(|scopes| scopes.last() == Some(&self.scope)) {
            true => Ok(()),
            false => Err(err!(Leak, "a ref of type {} was used outside of the kernel that it was given to", self.aval)
                .help(
                    "use it inside of that kernel only: what is to leave a kernel is written to the ref of an output",
                )),
        }
    }
}

impl RefPart {
    /// Its value now.
    #[track_caller]
    pub fn get(&self) -> Array {
        self.read(None, false)
    }

    /// Its value where `mask` is true, and `other` elsewhere. Unlike [`get`](Self::get), a range that reaches beyond the
    /// end is not moved: mask what lies there.
    #[track_caller]
    pub fn load(&self, mask: impl ArrayLike, other: impl ArrayLike) -> Array {
        self.read(Some((mask.into_array(), other.into_array())), true)
    }

    /// Replaces it by `value`, broadcast to its shape.
    ///
    /// Fails for a value of another dtype, except plain numbers, which are converted.
    #[track_caller]
    pub fn set(&self, value: impl ArrayLike) -> Result<()> {
        self.swap(value).check()
    }

    /// Adds to it.
    #[track_caller]
    pub fn add(&self, value: impl ArrayLike) -> Result<()> {
        self.set(self.get() + value.into_array())
    }

    /// Replaces it by `value` where `mask` is true. Unlike [`set`](Self::set), a range that reaches beyond the end is not
    /// moved, and what lies there is not written.
    #[track_caller]
    pub fn store(&self, value: impl ArrayLike, mask: impl ArrayLike) -> Result<()> {
        self.write(value.into_array(), Some(mask.into_array()), true).check()
    }

    /// Replaces it by `value`, and returns what it was.
    #[track_caller]
    pub fn swap(&self, value: impl ArrayLike) -> Array {
        self.write(value.into_array(), None, false)
    }

    /// The access and its operands: those of the place.
    fn access(&self, padded: bool, masked: bool) -> Result<(Access, Vec<Array>)> {
        self.of.check()?;
        let Ref { number, aval, .. } = &self.of;
        let (place, operands) = Place::of(&aval.shape, self.index.clone(), padded)?;
        let padded = padded && place.is_block();
        let part = place.part(aval, &operands, padded)?;
        Ok((Access { number: *number, place, part, padded, masked }, operands))
    }

    /// An array of the type of the part, for an error.
    fn failed(&self, error: Error, at: &'static Location<'static>) -> Array {
        let error = error.at(at);
        record_error(&error);
        Array::failed(error, self.of.aval.clone())
    }

    #[track_caller]
    fn read(&self, masked: Option<(Array, Array)>, padded: bool) -> Array {
        let at = Location::caller();
        let _line = source::enter_at(at);
        let read = || {
            let (access, mut operands) = self.access(padded, masked.is_some())?;
            let other = masked.is_some();
            if let Some((mask, other)) = masked {
                operands.push(fitted("load", &other, &access.part)?);
                operands.push(mask_of(&mask, &access.part)?);
            }
            Ok(bind1(Get { access, other }, &operands))
        };
        read().unwrap_or_else(|e| self.failed(e, at))
    }

    #[track_caller]
    fn write(&self, value: Array, mask: Option<Array>, padded: bool) -> Array {
        let at = Location::caller();
        let _line = source::enter_at(at);
        let write = || {
            let (access, place) = self.access(padded, mask.is_some())?;
            let mut operands = vec![fitted("set", &value, &access.part)?];
            operands.extend(place);
            operands.extend(mask.map(|mask| mask_of(&mask, &access.part)).transpose()?);
            Ok(bind1(Swap { access }, &operands))
        };
        write().unwrap_or_else(|e| self.failed(e, at))
    }
}

/// A value as one of the type of a part.
fn fitted(function: &str, value: &Array, part: &Aval) -> Result<Array> {
    value.check()?;
    value.check_fits(part.dtype)?;
    let weak = value.weak_type() && (part.dtype.is_inexact() || value.dtype().is_integer());
    if value.dtype() != part.dtype && !weak {
        return Err(err!(
            Type,
            "{function} of a part of type {part} of a ref takes a value of its dtype, got {}",
            value.type_name()
        )
        .help(format!("convert the value with `.astype(DType::{:?})`", part.dtype)));
    }
    broadcast(function, &convert(value, part.dtype, false), part)
}

fn mask_of(mask: &Array, part: &Aval) -> Result<Array> {
    mask.check()?;
    match mask.dtype() {
        DType::Bool => broadcast("mask", mask, part),
        _ => Err(err!(Type, "a mask must be boolean, got {}", mask.type_name()).help("compare with `.less(..)`")),
    }
}

fn broadcast(what: &str, value: &Array, part: &Aval) -> Result<Array> {
    if value.shape() == part.shape.as_slice() {
        return Ok(value.clone());
    }
    let fits = value.ndim() <= part.rank()
        && value.shape().iter().rev().zip(part.shape.iter().rev()).all(|(v, p)| v == p || *v == 1);
    if !fits {
        return Err(err!(
            Value,
            "{what} of type {} does not broadcast to the part of shape {:?} of a ref",
            value.type_name(),
            part.shape.as_slice()
        ));
    }
    Ok(value.broadcast_to(&part.shape))
}
