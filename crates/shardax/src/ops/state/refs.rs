//! The handles of refs.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::access::{Access, Get, Swap};
use super::cell::{Cell, copied};
use super::place::Place;
use super::ref_index::{IntoRefIndex, RefIndexItem};
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, is_linear, is_live, record_error, recording_trace, runs_now};
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::local::{Stack, StackKey};
use crate::ops::index::Ellipsis;
use crate::ops::operators::ArrayLike;
use crate::ops::promotion::convert;
use crate::sharding::Typed;
use crate::source;

// Scopes are numbered, so that a ref that leaves its function can be recognized.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The scopes of refs that are being traced, innermost last.
    static SCOPES: Stack<u64> = const { Stack::new() };
}

/// Runs `f`, which traces a function of refs of these types. It can use no other refs, and these refs cannot be used
/// elsewhere.
pub(crate) fn with_refs<R>(avals: &[Aval], f: impl FnOnce(&[Ref]) -> R) -> R {
    let scope = Some(NEXT.fetch_add(1, Ordering::Relaxed));
    let refs: Vec<Ref> = avals
        .iter()
        .enumerate()
        .map(|(number, aval)| Ref { number, aval: aval.clone(), scope, storage: Storage::Kernel })
        .collect();
    SCOPES.with_pushed(scope, || f(&refs))
}

/// The scope in effect: the kernel that is being traced.
fn current_scope() -> Option<u64> {
    SCOPES.with_borrow(|scopes| scopes.last().copied())
}

/// The storage of a ref's value.
#[derive(Clone)]
pub(super) enum Storage {
    Kernel,
    /// In the trace with this number, until the ref is frozen.
    Trace(u64, Frozen),
    /// In a cell, for a ref made outside of every trace.
    Cell(Cell, Frozen),
}

/// The line at which a ref was frozen.
pub(super) type Frozen = Arc<OnceLock<&'static Location<'static>>>;

/// An array that is read and written in place. [`new_ref`](crate::new_ref) makes refs, and kernels receive them.
///
/// [`get`](Ref::get) reads the entire ref, [`set`](Ref::set) writes it, and [`at`](Ref::at) names a part of it. Clones
/// refer to the same ref.
///
/// A ref made outside of every function prints its value, like JAX's: `Ref([0. 2. 0.])`. Other refs print their type.
#[derive(Clone)]
pub struct Ref {
    number: usize,
    aval: Aval,
    /// The kernel in which it can be used, if any.
    scope: Option<u64>,
    storage: Storage,
}

/// `Ref([0. 2. 0.])`, or `Ref<float32[3]>` while it has no value.
impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.storage {
            Storage::Cell(cell, _) => {
                f.write_str("Ref(")?;
                fmt::Display::fmt(&cell.get(), f)?;
                f.write_str(")")
            }
            Storage::Kernel | Storage::Trace(..) => write!(f, "Ref<{}>", self.aval),
        }
    }
}

/// `Ref([0. 2. 0.], dtype=float32)`, or `Ref<float32[3]>` while it has no value.
impl fmt::Debug for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.storage {
            Storage::Cell(cell, _) => write!(f, "Ref({}, dtype={})", cell.get(), self.dtype()),
            Storage::Kernel | Storage::Trace(..) => fmt::Display::fmt(self, f),
        }
    }
}

/// A part of a [`Ref`], to be read or written; see [`Ref::at`].
#[derive(Clone, Debug)]
#[must_use = "a part does nothing until it is read or written"]
pub struct RefPart {
    of: Ref,
    index: Vec<RefIndexItem>,
}

impl Ref {
    /// A ref with this number and type.
    pub(super) fn new(number: usize, aval: Aval, storage: Storage) -> Self {
        Ref { number, aval, scope: current_scope(), storage }
    }

    /// Returns the shape of the value; in a kernel, the shape of the block.
    pub fn shape(&self) -> &[usize] {
        &self.aval.shape
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.aval.dtype
    }

    /// Returns the number of dimensions.
    pub fn ndim(&self) -> usize {
        self.aval.rank()
    }

    /// Names a part of the ref to read or write: `x.at((ds(&i * 8, 8), 0))`.
    ///
    /// The index follows [`Array::get`], and can contain ranges with a computed start ([`ds`](super::ds)) and traced
    /// integer scalars. Computed indices are clamped to lie inside. The index is checked when the part is read or
    /// written.
    pub fn at(&self, index: impl IntoRefIndex) -> RefPart {
        RefPart { of: self.clone(), index: index.into_ref_index() }
    }

    /// Returns the current value.
    #[track_caller]
    pub fn get(&self) -> Array {
        self.at(Ellipsis).get()
    }

    /// Replaces the value. See [`RefPart::set`].
    ///
    /// # Errors
    /// Returns an error in the same cases as [`RefPart::set`].
    #[track_caller]
    pub fn set(&self, value: impl ArrayLike) -> Result<()> {
        self.at(Ellipsis).set(value)
    }

    /// Adds to the value.
    ///
    /// # Errors
    /// Returns an error if the sum has another dtype than the ref or does not broadcast to its shape, or if the
    /// function must not write the ref.
    #[track_caller]
    pub fn add(&self, value: impl ArrayLike) -> Result<()> {
        self.at(Ellipsis).add(value)
    }

    /// Replaces the value and returns the old one.
    #[track_caller]
    pub fn swap(&self, value: impl ArrayLike) -> Array {
        self.at(Ellipsis).swap(value)
    }

    /// Returns the last value and freezes the ref, so that you cannot use it afterwards (JAX's `freeze`).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let r = new_ref(zeros([2]))?;
    /// r.at(1).set(3.0)?;
    /// assert_eq!(r.freeze().to_vec::<f32>()?, [0.0, 3.0]);
    /// assert!(r.set(1.0).is_err());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// The result carries an error for a ref that is already frozen, that another function made, or that belongs to a
    /// kernel.
    #[track_caller]
    pub fn freeze(&self) -> Array {
        let location = Location::caller();
        let value = self.get();
        if value.error().is_some() {
            return value;
        }
        match self.mark_frozen(source::user_line(location).unwrap_or(location)) {
            Ok(()) => value,
            Err(error) => self.at(Ellipsis).failed(error, location),
        }
    }

    /// Marks the ref frozen. Fails outside of the function that created it.
    fn mark_frozen(&self, at: &'static Location<'static>) -> Result<()> {
        let frozen = match &self.storage {
            Storage::Kernel => {
                return Err(err!(Value, "a kernel's ref of type {} cannot be frozen", self.aval).help(
                    "read it with `get()`, and write values that should leave the kernel to the ref of an output",
                ));
            }
            Storage::Trace(trace, frozen) if recording_trace() == Some(*trace) => frozen,
            Storage::Cell(_, frozen) if recording_trace().is_none() => frozen,
            Storage::Trace(..) | Storage::Cell(..) => {
                return Err(err!(
                    Value,
                    "a ref of type {} was frozen inside of another function than the one that made it",
                    self.aval
                )
                .help("read it with `get()`, and freeze it where it was made"));
            }
        };
        frozen.set(at).map_err(|_| self.used_after(frozen))
    }

    fn used_after(&self, frozen: &Frozen) -> Error {
        let place = frozen.get().map_or_else(String::new, |line| format!(" at {}:{}", line.file(), line.line()));
        err!(Value, "a ref of type {} was used after it was frozen{place}", self.aval)
            .help("freeze a ref last, and compute with the array that `freeze()` returned")
    }

    fn check(&self) -> Result<()> {
        // A ref belongs to the kernel or function that created it, because its state exists only while that is traced.
        let foreign = current_scope() != self.scope;
        match &self.storage {
            Storage::Kernel if foreign => Err(err!(
                Leak,
                "a ref of type {} was used outside of the kernel that it was given to",
                self.aval
            )
            .help(
                "use it only inside that kernel, and write values that should leave the kernel to the ref of an output",
            )),
            Storage::Kernel => Ok(()),
            Storage::Trace(_, frozen) | Storage::Cell(_, frozen) if frozen.get().is_some() => {
                Err(self.used_after(frozen))
            }
            Storage::Trace(trace, _) if !is_live(*trace) => Err(err!(
                Leak,
                "a ref of type {} was used after the function that made it had returned, or on another thread",
                self.aval
            )
            .help("return its value from the function, `r.freeze()`, instead of storing the ref outside")),
            Storage::Trace(..) | Storage::Cell(..) if foreign => {
                Err(err!(Leak, "a ref of type {} from outside of a kernel was used in it", self.aval)
                    .help("make its value an operand of the kernel, or make the ref inside of the kernel"))
            }
            Storage::Trace(..) | Storage::Cell(..) => Ok(()),
        }
    }

    /// The cell of its value, if an operation on these operands runs now.
    fn cell(&self, operands: &[Array]) -> Option<&Cell> {
        match &self.storage {
            Storage::Cell(cell, _) if runs_now(operands) => Some(cell),
            _ => None,
        }
    }
}

impl RefPart {
    /// Returns the current value of the part.
    #[track_caller]
    pub fn get(&self) -> Array {
        self.read(None, false)
    }

    /// Returns the value where `mask` is true, and `other` elsewhere. Unlike [`get`](Self::get), it does not move a
    /// range that reaches beyond the end, so you must mask the elements beyond.
    #[track_caller]
    pub fn load(&self, mask: impl ArrayLike, other: impl ArrayLike) -> Array {
        self.read(Some((mask.into_array(), other.into_array())), true)
    }

    /// Replaces the part by `value`, broadcast to its shape.
    ///
    /// # Errors
    /// Returns an error for a value of another dtype. Plain numbers are converted instead.
    #[track_caller]
    pub fn set(&self, value: impl ArrayLike) -> Result<()> {
        self.swap(value).check()
    }

    /// Adds to the part.
    ///
    /// # Errors
    /// Returns an error if the sum has another dtype than the ref or does not broadcast to the shape of the part, or if
    /// the function must not write the ref.
    #[track_caller]
    pub fn add(&self, value: impl ArrayLike) -> Result<()> {
        let value = value.into_array();
        self.write(|| self.get() + value, None, false).check()
    }

    /// Replaces the part by `value` where `mask` is true. Unlike [`set`](Self::set), it does not move a range that
    /// reaches beyond the end, and does not write elements beyond.
    ///
    /// # Errors
    /// Returns an error if the value or the mask does not broadcast to the part, or for a value of another
    /// dtype. Plain numbers are converted instead.
    #[track_caller]
    pub fn store(&self, value: impl ArrayLike, mask: impl ArrayLike) -> Result<()> {
        self.write(|| value.into_array(), Some(mask.into_array()), true).check()
    }

    /// Replaces the part by `value` and returns the old value.
    #[track_caller]
    pub fn swap(&self, value: impl ArrayLike) -> Array {
        self.write(|| value.into_array(), None, false)
    }

    /// Returns the access and its operands, which are the operands of the place.
    fn access(&self, padded: bool, masked: bool) -> Result<(Access, Vec<Array>)> {
        self.of.check()?;
        let Ref { number, aval, storage, .. } = &self.of;
        let cell = if let Storage::Cell(cell, _) = storage { Some(cell.clone()) } else { None };
        let (place, operands) = Place::of(&aval.shape, self.index.clone(), padded)?;
        let padded = padded && place.is_block();
        let part = place.part(aval, &operands, padded)?;
        Ok((Access { number: *number, cell, of: aval.clone(), place, part, padded, masked }, operands))
    }

    /// Fails for operands of a write that a ref of its type cannot take.
    fn check_written(&self, access: &Access, operands: &[Array]) -> Result<()> {
        let Ref { aval, .. } = &self.of;
        if operands.iter().any(is_linear) {
            return Err(err!(Value, "a tangent was written to a ref of type {aval}")
                .help("make refs inside of the function that is differentiated, not in the rule of its derivative"));
        }
        if let Some(operand) = operands.iter().find(|operand| !operand.vma().is_subset(&aval.vma)) {
            return Err(err!(
                Type,
                "a value of type {} was written to a ref of type {aval}, which is the same on all devices",
                operand.type_name()
            )
            .help("make the ref of a value that varies over the axes too: `new_ref(&pcast(&x, axes))`"));
        }
        let (value, part) = (operands[0].aval(), &access.part);
        // A ref that was made without a mesh has no sharding. A replicated value is the same there.
        let is_replicated =
            value.sharding().is_none_or(|typed| *typed == Typed::replicated(typed.mesh(), value.rank()));
        if value.sharding() != part.sharding() && !(part.sharding().is_none() && is_replicated) {
            return Err(err!(Sharding, "a value of type {value} was written to a part of type {part} of a ref")
                .help("reshard the value to the sharding of the part with `reshard`"));
        }
        Ok(())
    }

    /// An array of the type of the part, for an error.
    fn failed(&self, error: Error, at: &'static Location<'static>) -> Array {
        let error = error.at(at);
        record_error(&error);
        Array::failed(error, self.of.aval.clone())
    }

    #[track_caller]
    fn read(&self, masked: Option<(Array, Array)>, padded: bool) -> Array {
        let location = Location::caller();
        let _line = source::enter_at(location);
        self.try_read(masked, padded).unwrap_or_else(|e| self.failed(e, location))
    }

    fn try_read(&self, masked: Option<(Array, Array)>, padded: bool) -> Result<Array> {
        let (access, mut operands) = self.access(padded, masked.is_some())?;
        let has_other = masked.is_some();
        if let Some((mask, other)) = masked {
            operands.push(fitted("load", &other, &access.part)?);
            operands.push(mask_of(&mask, &access.part)?);
        }
        let get = Get { access, other: has_other };
        match self.of.cell(&operands) {
            Some(cell) if get.access.is_whole() => Ok(get.read(&operands, &copied(&cell.get())?)),
            Some(cell) => Ok(get.read(&operands, &cell.get())),
            None => Ok(bind1(get, &operands)),
        }
    }

    /// Replaces the part by `value`, which can read the part, because no other thread can write the ref in between.
    #[track_caller]
    fn write(&self, value: impl FnOnce() -> Array, mask: Option<Array>, padded: bool) -> Array {
        let location = Location::caller();
        let _line = source::enter_at(location);
        self.try_write(value, mask, padded).unwrap_or_else(|e| self.failed(e, location))
    }

    fn try_write(&self, value: impl FnOnce() -> Array, mask: Option<Array>, padded: bool) -> Result<Array> {
        let (access, place) = self.access(padded, mask.is_some())?;
        // Takes the cell's turn before `value` runs, so that no other thread writes between its read and this write.
        let turn = self.of.cell(&[]).map(Cell::turn);
        let mut value = fitted("set", &value(), &access.part)?;
        if let Some(typed) = access.part.sharding().filter(|_| value.aval().sharding().is_none()) {
            value = value.sharded(typed);
        }
        let mut operands = vec![value];
        operands.extend(place);
        operands.extend(mask.map(|mask| mask_of(&mask, &access.part)).transpose()?);
        self.check_written(&access, &operands)?;
        let swap = Swap { access };
        match (self.of.cell(&operands), &turn) {
            (Some(cell), Some(turn)) => {
                if swap.access.is_whole() {
                    operands[0] = copied(&operands[0])?;
                }
                cell.update(turn, |value| swap.write(&operands, value))
            }
            _ => Ok(bind1(swap, &operands)),
        }
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
        _ => Err(err!(Type, "a mask must be boolean, got {}", mask.type_name())
            .help("create the mask with a comparison, such as `i.less(n)`")),
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
        )
        .help("pass a value whose dimensions equal the dimensions of the part, or are 1"));
    }
    Ok(value.broadcast_to(&part.shape))
}
