//! `Array`: a logical array, concrete on any number of devices or traced. User code does not distinguish the two.

pub mod dlpack;
pub(crate) mod hints;
pub(crate) mod host;
mod host_buffer;
pub(crate) mod live;
pub(crate) mod print;
mod shards;
pub(crate) mod transfer;
mod view;

use std::sync::{Arc, OnceLock};

use shardax_pjrt as pjrt;
use smallvec::SmallVec;

pub use host::{HostNumber, IntoHostArray, array, array_of};
pub use host_buffer::HostBuffer;
pub use live::live_arrays;
pub use shards::{
    ByRef, ByRefs, ByValue, GlobalShard, Shard, TreeOrRef, block_until_ready, device_get, visualize_array_sharding,
};
pub use view::{HostView, Ready, Retained};

use super::program::concretize;
use super::program::trace::check_usable;
use super::program::{Aval, Var};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Error, Result, err};
use crate::shape::{AxisSet, Shape};
use crate::sharding::device;
use crate::sharding::{Sharding, SingleDeviceSharding, UnreducedKind};
use crate::source::{self, Line};
use crate::transfer_guard::{self, Direction};

/// The buffers of a concrete array, one for each device of its sharding.
pub(crate) type Buffers = SmallVec<[Arc<pjrt::Buffer>; 1]>;

/// A multi-dimensional array of one dtype, on one device or split over many.
///
/// You create arrays with functions such as [`array`](array()), [`zeros`](crate::numpy::zeros) and
/// [`Array::from_slice`], compute with operators, methods and the functions of [`numpy`](crate::numpy), and read the elements with
/// [`to_vec`](Array::to_vec) or [`item`](Array::item). Inside of a function that is traced, for example by
/// [`jit`](crate::jit()), an array has a type but no values, so you can compute with it but not read it.
///
/// **Cost.** Cloning only increments a reference count. An operation returns before the device has computed the result, and reading
/// waits for it. Outside of [`jit`](crate::jit()), each operation is a program of its own, so you should compile functions of
/// several operations.
///
/// **Failures.** Operations never panic: an invalid one returns an array that carries the error. The enclosing call returns that
/// error, and so does reading the array. If you want to know at once, call [`check`](Array::check).
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// let y = (&x * 2.0 + 1.0).sum(0);
/// assert_eq!(y.shape(), [2]);
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 14.0]);
///
/// let wrong = &x + ones([3]);
/// assert!(wrong.check().is_err());
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "arrays are immutable: an operation returns a new array; use it, or write `let _ =`"]
pub struct Array(pub(crate) Repr);

#[derive(Clone)]
pub(crate) enum Repr {
    Concrete(Arc<Concrete>),
    /// A plain number: a scalar that has not been sent to a device.
    Literal(Literal),
    Traced(Arc<Tracer>),
    /// A failed operation. The type is a guess, so that code can still read a shape.
    Error(Arc<(Error, Aval)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Literal {
    pub value: Scalar,
    pub dtype: DType,
    pub weak: bool,
}

impl Literal {
    /// Checks that a plain number fits `dtype`.
    ///
    /// # Errors
    /// Returns an error for a plain number that does not fit `dtype`, instead of wrapping it.
    pub fn check_fits(&self, dtype: DType) -> Result<()> {
        match self.value {
            _ if dtype.is_key() && !self.dtype.is_key() => {
                Err(err!(Type, "the number {:?} is not a random key", self.value)
                    .help("make keys with `random::key` or `random::split`"))
            }
            Scalar::Int(value) if dtype.is_integer() && self.value.converted(dtype) != self.value => {
                Err(err!(Value, "integer {value} is out of bounds for {dtype} (OverflowError)")
                    .help("convert the array to a wider type first, or the number to a floating point one"))
            }
            _ => Ok(()),
        }
    }
}

/// A value of a function being traced.
pub(crate) struct Tracer {
    pub trace: u64,
    pub var: Var,
    pub aval: Aval,
    /// The requested sharding of a tracer that is only a type.
    pub sharding: Option<Arc<Sharding>>,
}

/// An array whose values exist or are being computed.
pub(crate) struct Concrete {
    pub aval: Aval,
    pub sharding: Sharding,
    /// `true` if the array must stay on its devices.
    pub committed: bool,
    pub buffers: Buffers,
    /// The user's line that created the array, if it is known.
    pub made_at: Option<Line>,
    /// The operation that deleted the array or took its memory.
    taken: OnceLock<String>,
}

impl Concrete {
    /// An array of this type. The sharding in its type is derived from `sharding`.
    pub fn new(aval: Aval, sharding: Sharding, committed: bool, buffers: Buffers) -> Self {
        let aval = aval.placed_as(&sharding);
        Concrete::with_type(aval, sharding, committed, buffers)
    }

    /// An array of exactly this type.
    pub fn with_type(aval: Aval, sharding: Sharding, committed: bool, buffers: Buffers) -> Self {
        Concrete { aval, sharding, committed, buffers, made_at: source::line(), taken: OnceLock::new() }
    }

    /// Records the operation that took the memory.
    pub fn mark_taken(&self, by: &str) {
        let _ = self.taken.set(by.to_owned());
    }

    /// Returns `true` if the array was deleted or donated. Another array may still share its memory.
    pub fn is_taken(&self) -> bool {
        self.taken.get().is_some()
    }

    /// Frees the buffers of a donated array, except buffers that another array shares.
    pub fn free_own_memory(&self) -> Result<()> {
        let mut unshared = self.buffers.iter().filter(|buffer| Arc::strong_count(buffer) == 1);
        Ok(unshared.try_for_each(|buffer| buffer.delete())?)
    }

    pub fn check_alive(&self) -> Result<()> {
        let by = match self.taken.get() {
            Some(by) if by == "delete" => "by a call of `delete`".to_owned(),
            Some(by) => format!("when it was donated to `{by}`"),
            None if self.buffers.iter().any(|b| b.is_deleted()) => {
                "because another array that shared its memory was deleted or donated".to_owned()
            }
            None => return Ok(()),
        };
        Err(err!(Deleted, "Array has been deleted with shape={}. It was deleted {by}.", self.aval)
            .help("use the result of that call instead, or do not donate the argument"))
    }

    /// Checks that the buffers hold the array's values.
    ///
    /// # Errors
    /// Returns an error if the buffers do not hold the array's values, because the array was deleted, donated or is
    /// unreduced.
    pub fn check_values(&self) -> Result<()> {
        self.check_alive()?;
        const COMBINE_HELP: &str =
            "combine the devices' values with `reshard(x, P![..])`; `addressable_shards` are these";
        let (operation, help) = match self.sharding.unreduced() {
            None => return Ok(()),
            Some((_, UnreducedKind::Sum)) => {
                ("sums", "sum it with `reshard(x, P![..])`; `addressable_shards` are the addends")
            }
            Some((_, UnreducedKind::Max)) => ("the largest", COMBINE_HELP),
            Some((_, UnreducedKind::Min)) => ("the smallest", COMBINE_HELP),
        };
        let reason = format_args!("they are {operation} of what the devices along its unreduced axes have");
        Err(err!(Value, "an array of type {} has no values yet: {reason}", self.aval).help(help))
    }
}

impl Array {
    pub(crate) fn from_concrete(c: Concrete) -> Self {
        let c = Arc::new(c);
        live::enter(&c);
        Array(Repr::Concrete(c))
    }

    pub(crate) fn from_shared(c: Arc<Concrete>) -> Self {
        Array(Repr::Concrete(c))
    }

    pub(crate) fn literal(value: Scalar, dtype: DType, weak: bool) -> Self {
        Array(Repr::Literal(Literal { value, dtype, weak }))
    }

    /// Creates an array that carries an error instead of values.
    pub(crate) fn failed(error: Error, aval: Aval) -> Self {
        Array(Repr::Error(Arc::new((error, aval))))
    }

    /// Returns the result, or an array that carries the error with the caller's line.
    #[track_caller]
    pub(crate) fn from_result(result: Result<Array>, like: &Array) -> Self {
        let location = std::panic::Location::caller();
        result.unwrap_or_else(|e| super::program::trace::fail(e.at(location), like.aval()))
    }

    /// Creates an array that carries `error` with the caller's line, and has the type of `like`. Functions can return
    /// it instead of panicking on invalid arguments.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::{Error, ErrorKind};
    /// fn half(x: Array) -> Array {
    ///     if x.dtype().is_integer() {
    ///         return Array::from_error(Error::new(ErrorKind::Type, "half of an integer"), &x);
    ///     }
    ///     x / 2
    /// }
    /// assert!(half(array([1, 2])).to_vec::<i32>().is_err());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn from_error(error: Error, like: &Array) -> Self {
        Array::from_result(Err(error), like)
    }

    /// Returns the error that the array carries, if an operation that it depends on failed.
    pub fn error(&self) -> Option<&Error> {
        match &self.0 {
            Repr::Error(e) => {
                e.0.mark_read();
                Some(&e.0)
            }
            _ => None,
        }
    }

    /// Checks that the array is valid. Use it inside a function that should end at the first failed operation.
    ///
    /// # Errors
    /// Returns an error if an operation that the array depends on failed, if the array was deleted, or if its trace has
    /// ended.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        check_usable(self).at_caller()
    }

    /// An error for a plain number that does not fit `dtype`.
    pub(crate) fn check_fits(&self, dtype: DType) -> Result<()> {
        match &self.0 {
            Repr::Literal(l) => l.check_fits(dtype),
            _ => Ok(()),
        }
    }

    /// Returns the type of the array: shape, dtype, weak type, and the manual axes it varies over.
    pub fn aval(&self) -> Aval {
        match &self.0 {
            Repr::Concrete(c) => c.aval.clone(),
            Repr::Literal(l) => Aval { weak: l.weak, ..Aval::scalar(l.dtype) },
            Repr::Traced(t) => t.aval.clone(),
            Repr::Error(e) => e.1.clone(),
        }
    }

    pub(crate) fn aval_ref(&self) -> Option<&Aval> {
        match &self.0 {
            Repr::Concrete(c) => Some(&c.aval),
            Repr::Literal(_) => None,
            Repr::Traced(t) => Some(&t.aval),
            Repr::Error(e) => Some(&e.1),
        }
    }

    /// Returns the manual mesh axes over which the value can differ from device to device, inside a `shard_map`.
    pub fn vma(&self) -> AxisSet {
        self.aval_ref().map(|a| a.vma.clone()).unwrap_or_default()
    }

    /// Returns the dimensions; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.aval_ref().map(|a| a.shape.as_slice()).unwrap_or(&[])
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Literal(l) => l.dtype,
            _ => self.aval_ref().map(|a| a.dtype).unwrap_or(DType::F32),
        }
    }

    /// Returns `true` if the array is weakly typed, like a plain number: it adopts the dtype of other operands.
    pub fn weak_type(&self) -> bool {
        match &self.0 {
            Repr::Literal(l) => l.weak,
            _ => self.aval_ref().is_some_and(|a| a.weak),
        }
    }

    /// Returns the number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// Returns the number of elements.
    pub fn size(&self) -> usize {
        crate::shape::size(self.shape())
    }

    /// Returns the size of all elements in bytes; a replicated array counts once.
    pub fn nbytes(&self) -> usize {
        self.size().saturating_mul(self.dtype().byte_size())
    }

    /// Returns the type as text: `float32[8,128]`.
    pub fn type_name(&self) -> String {
        self.aval().to_string()
    }

    /// Returns `true` if the array is a value of a function being traced.
    pub fn is_traced(&self) -> bool {
        matches!(&self.0, Repr::Traced(t) if !t.is_only_type())
    }

    /// Returns `true` if the array is a plain number.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self.0, Repr::Literal(_))
    }

    pub(crate) fn concrete_ref(&self) -> Option<&Concrete> {
        match &self.0 {
            Repr::Concrete(c) => Some(c),
            _ => None,
        }
    }

    /// Returns the concrete array; sends a plain number to the default device.
    pub(crate) fn concrete(&self) -> Result<Arc<Concrete>> {
        self.concrete_as(false)
    }

    /// Like [`concrete`](Self::concrete), but the transfer of a plain number counts as requested by the user.
    pub(crate) fn concrete_explicitly(&self) -> Result<Arc<Concrete>> {
        self.concrete_as(true)
    }

    fn concrete_as(&self, is_explicit: bool) -> Result<Arc<Concrete>> {
        match &self.0 {
            Repr::Concrete(c) => {
                c.check_alive()?;
                Ok(c.clone())
            }
            Repr::Error(e) => {
                e.0.mark_read();
                Err(e.0.clone())
            }
            Repr::Traced(t) => check_usable(self).and_then(|()| concretize::value(t))?.ok_or_else(|| err!(
                Type,
                "the value of a traced array of type {} is not known while its function is traced (ConcretizationTypeError)",
                t.aval
            )
            .help("read values outside of the transformed function; use `cond`, `where_` or `while_loop` to act on them inside; an argument that decides a shape, an axis or a branch can be a Rust number, `|x: Array, n: usize|`, which is static; to debug, call it while a `disable_jit()` lives")),
            // A number becomes an array of its own, without a committed device, each time it is needed.
            Repr::Literal(l) => {
                l.check_fits(l.dtype)?;
                let mut bytes = Vec::with_capacity(16);
                l.value.write(l.dtype, &mut bytes);
                let device = device::uncommitted_device()?;
                let sharding = Sharding::Single(SingleDeviceSharding::new(device));
                let aval = self.aval();
                transfer_guard::check(Direction::HostToDevice, is_explicit, &aval)?;
                let buffers = transfer::buffers_from_host(&bytes, &aval, &sharding)?;
                Ok(Arc::new(Concrete::new(aval, sharding, false, buffers)))
            }
        }
    }

    pub(crate) fn shape_owned(&self) -> Shape {
        self.shape().into()
    }
}
