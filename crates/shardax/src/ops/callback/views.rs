//! Arguments and results of host functions and of functions on device memory.

use std::ffi::c_void;

use shardax_pjrt::ffi::device::{DeviceArray, DeviceCall as Call};

use super::function;
use crate::core::array::print;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result, err};
use crate::shape::Shape;

/// An argument of a host function: dense, row-major, in XLA's memory.
#[derive(Clone, Debug)]
pub struct HostArg<'a> {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) bytes: &'a [u8],
}

impl<'a> HostArg<'a> {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the dimensions; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the bytes of the elements, in the machine's byte order.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Iterates over the elements in row-major order.
    ///
    /// # Errors
    /// Returns an error if `T` is not the argument's dtype.
    pub fn values<T: Element>(&self) -> Result<impl ExactSizeIterator<Item = T> + 'a> {
        check::<T>("an argument", "read", self.dtype, &self.shape)?;
        Ok(self.bytes.chunks_exact(size_of::<T>()).map(T::read))
    }

    /// Returns the elements in row-major order.
    ///
    /// # Errors
    /// Returns an error if `T` is not the argument's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.values()?.collect())
    }

    /// Returns the only element.
    ///
    /// # Errors
    /// Returns an error if there is not exactly one, or if `T` is not the argument's dtype.
    pub fn item<T: Element>(&self) -> Result<T> {
        let mut values = self.values()?;
        match (values.next(), values.len()) {
            (Some(value), 0) => Ok(value),
            (_, more) => Err(err!(Value, "an argument of {} elements has no single element", more + 1)
                .help("read the argument with `values` or `to_vec`")),
        }
    }
}

/// Formatted as by NumPy.
impl std::fmt::Display for HostArg<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print::text_of_bytes(self.bytes, self.dtype, &self.shape))
    }
}

/// A result of a host function. You must write all of it, and you cannot read it because its previous contents are
/// undefined.
#[derive(Debug)]
pub struct HostResult<'a> {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) bytes: &'a mut [u8],
    pub(super) written: bool,
}

impl HostResult<'_> {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the dimensions; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Writes all elements, in row-major order.
    ///
    /// # Errors
    /// Returns an error if `T` is not the result's dtype, or if the number of elements is wrong.
    pub fn write<T: Element>(&mut self, values: impl IntoIterator<Item = T>) -> Result<()> {
        check::<T>("a result", "written", self.dtype, &self.shape)?;
        let size = crate::shape::size(&self.shape);
        let mut element = Vec::with_capacity(size_of::<T>());
        let mut count = 0;
        let mut room = self.bytes.chunks_exact_mut(size_of::<T>());
        for value in values {
            let Some(to) = room.next() else { return Err(wrong_count(&self.shape, "more")) };
            element.clear();
            value.write(&mut element);
            to.copy_from_slice(&element);
            count += 1;
        }
        if count < size {
            return Err(wrong_count(&self.shape, count));
        }
        self.written = true;
        Ok(())
    }

    /// Writes the bytes of all elements, in the machine's byte order.
    ///
    /// # Errors
    /// Returns an error if the number of bytes is wrong.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.bytes.len() {
            return Err(err!(Value, "a result has {} bytes, but {} were written", self.bytes.len(), bytes.len())
                .help("write all elements of the result at once, in its dtype"));
        }
        self.bytes.copy_from_slice(bytes);
        self.written = true;
        Ok(())
    }
}

/// An array in device memory, dense and row-major, for a function that runs there. This process cannot read it.
#[derive(Clone, Debug)]
pub struct DeviceArg {
    dtype: DType,
    shape: Shape,
    address: *mut c_void,
}

impl DeviceArg {
    fn new(array: &DeviceArray<'_>) -> Result<Self> {
        let (dtype, shape) = (function::dtype(array.ty)?, function::shape(array.dims));
        Ok(DeviceArg { dtype, shape, address: array.address })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the dimensions; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the device address (a `CUdeviceptr`).
    pub fn address(&self) -> *mut c_void {
        self.address
    }
}

/// A call of a function on device memory; see [`HostCallback::cuda`](super::HostCallback::cuda).
#[derive(Debug)]
pub struct DeviceCall {
    args: Vec<DeviceArg>,
    results: Vec<DeviceArg>,
    stream: Option<*mut c_void>,
    device_ordinal: Option<usize>,
}

impl DeviceCall {
    pub(super) fn new(call: &Call<'_>) -> Result<Self> {
        Ok(DeviceCall {
            args: call.args().iter().map(DeviceArg::new).collect::<Result<_>>()?,
            results: call.results().iter().map(DeviceArg::new).collect::<Result<_>>()?,
            stream: call.stream(),
            device_ordinal: call.device_ordinal().and_then(|ordinal| usize::try_from(ordinal).ok()),
        })
    }

    /// Returns the arguments. You must not write to them.
    pub fn args(&self) -> &[DeviceArg] {
        &self.args
    }

    /// Returns the results. You must write every byte, because their previous contents are undefined.
    pub fn results(&self) -> &[DeviceArg] {
        &self.results
    }

    /// Returns the program's stream, a `CUstream`. Work started on it runs after the program's earlier work and before
    /// its later work.
    ///
    /// # Errors
    /// Returns an error if there is no stream.
    pub fn stream(&self) -> Result<*mut c_void> {
        self.stream.ok_or_else(|| err!(Runtime, "the plugin passed no stream to this call"))
    }

    /// Returns the index of the device among this process's devices, as the plugin counts them, or `None` if the plugin
    /// does not report it.
    pub fn device_ordinal(&self) -> Option<usize> {
        self.device_ordinal
    }
}

fn check<T: Element>(what: &str, done: &str, dtype: DType, shape: &[usize]) -> Result<()> {
    if T::DTYPE == dtype {
        return Ok(());
    }
    Err(err!(Type, "{what} of a host function, of type {dtype}{shape:?}, cannot be {done} as {}", T::DTYPE)
        .help("use the Rust type of its dtype, or convert the array with `astype` before the call"))
}

fn wrong_count(shape: &[usize], written: impl std::fmt::Display) -> Error {
    let size = crate::shape::size(shape);
    err!(Value, "a result of shape {shape:?} has {size} elements, but {written} were written")
        .help("write as many elements as the result types that you pass to the callback have")
}
