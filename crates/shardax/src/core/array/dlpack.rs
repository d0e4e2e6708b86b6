//! DLPack: exchange of arrays with other libraries in this process, without a copy (JAX's `jax.dlpack`).
//!
//! A [`Tensor`] is an array in transit: it owns a `DLManagedTensor` of DLPack's C ABI, and frees it once.
//! [`Tensor::into_raw`] returns the pointer that PyTorch, NumPy, CuPy or a C++ library expects, for example in a Python
//! capsule; [`Tensor::from_raw`] accepts such a pointer.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::dlpack::{Tensor, from_dlpack, to_dlpack};
//! let x = arange(0..6).reshape([2, 3]);
//! let pointer = to_dlpack(&x)?.into_raw(); // for a library that takes a `DLManagedTensor *`
//! // SAFETY: the pointer is one that a library gave up, and it is taken once.
//! let tensor = unsafe { Tensor::from_raw(pointer)? };
//! assert_eq!((tensor.shape(), tensor.strides()), (&[2i64, 3][..], vec![3, 1]));
//! let y = from_dlpack(tensor)?;
//! assert_eq!(y.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5]);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::sync::Arc;

use shardax_pjrt as pjrt;
pub use shardax_pjrt::dlpack::{ManagedTensor, ManagedTensorVersioned, Tensor};
pub use shardax_pjrt::{ElementType, HostBytes};
use smallvec::SmallVec;

use super::{Array, host, transfer};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{AtCaller, Error, Result, err};
use crate::shape::Shape;
use crate::sharding::device;
use crate::source;
use crate::transfer_guard::{self, Direction};

/// Creates an array on the default device from another library's tensor. The tensor's dtype is kept: integers of 8 to
/// 64 bits, floating point numbers of 16 to 64, bfloat16, the kinds of float8, complex numbers and booleans.
///
/// On CPU the array uses the tensor's memory in place if that is dense, row-major and begins at a multiple of 64 bytes.
/// Then the tensor is freed with the array, and nobody can write to it before. Otherwise the elements are copied, and
/// the tensor is freed as soon as the copy is complete. The tensor is moved into this function, so using it twice does
/// not compile.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::dlpack::{ElementType, HostBytes, Tensor, from_dlpack};
/// /// Data of another library: whatever keeps it alive.
/// struct Image(Vec<u8>);
///
/// impl HostBytes for Image {
///     fn bytes(&self) -> &[u8] {
///         &self.0
///     }
/// }
///
/// let image = std::sync::Arc::new(Image(vec![0, 64, 128, 255]));
/// let x = from_dlpack(Tensor::from_host(image, ElementType::U8, &[2, 2])?)?;
/// assert_eq!(x.type_name(), "uint8[2,2]");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for a tensor on another device than the host (copy it there first), and for booleans other than 0
/// and 1.
#[track_caller]
pub fn from_dlpack(tensor: Tensor) -> Result<Array> {
    let _line = source::enter();
    import_tensor(tensor).at_caller()
}

fn import_tensor(tensor: Tensor) -> Result<Array> {
    let element = tensor.element_type()?;
    let dtype = DType::from_element_type(element).ok_or_else(|| {
        err!(Type, "a DLPack tensor of {} has no dtype", element.hlo_name())
            .help("convert the tensor to a type with a dtype, such as float32, before you pass it")
    })?;
    let shape: Shape = tensor.shape().iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).collect();
    let aval = Aval::new(dtype, shape);
    if !tensor.is_on_host() {
        return Err(err!(NotImplemented, "a DLPack tensor {aval} on {} cannot be taken over", tensor.device())
            .help("copy it to host memory first, such as by PyTorch's `tensor.cpu()`; `device_put` moves the array to a device"));
    }
    let device = device::uncommitted_device()?;
    transfer_guard::check(Direction::HostToDevice, true, &aval)?;
    match tensor.bytes_in_place() {
        Some(bytes) => host::check_bytes(bytes, &aval)?,
        None => return host::place(&tensor.to_bytes()?, aval),
    }
    transfer::array_of_shared(Arc::new(tensor), aval, device, false)
}

/// Creates a tensor for another library from an array, and waits for its values. On CPU the tensor shares the array's
/// memory and keeps it alive: you can use and delete the array while the tensor exists, but not donate it. On other
/// devices, and if the memory is not row-major, the tensor is a copy on the host. Arrays never change, so the consumer
/// must not write to the tensor; versioned tensors are flagged read-only.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::dlpack::to_dlpack;
/// let tensor = to_dlpack(&ones([2, 3]).astype(DType::Bf16))?;
/// assert_eq!(format!("{tensor:?}"), "Tensor(bf16[2, 3] on cpu)");
/// assert!(tensor.is_read_only());
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for a traced, deleted or unreduced array, for an array that this process does not hold completely,
/// for random keys (see [`random::key_data`](crate::random::key_data)) and for types of less than a byte (convert them
/// with `astype`).
#[track_caller]
pub fn to_dlpack(array: &Array) -> Result<Tensor> {
    export_tensor(array).at_caller()
}

fn export_tensor(array: &Array) -> Result<Tensor> {
    let c = array.concrete()?;
    c.check_values()?;
    if c.aval.dtype.is_key() {
        return Err(err!(Type, "random keys {} have no counterpart in DLPack", c.aval).help(
            "`random::key_data` has their words, as uint32 of [..., 2]; `random::wrap_key_data` makes keys of them",
        ));
    }
    let in_place =
        |buffer: &&Arc<pjrt::Buffer>| c.sharding.is_fully_replicated() && buffer.view().is_ok_and(|v| v.is_some());
    if let Some(buffer) = c.buffers.first().filter(in_place) {
        return Ok(Tensor::from_buffer(buffer)?);
    }
    let dims: SmallVec<[i64; 4]> = c.aval.shape.iter().map(|&dim| dim as i64).collect();
    let bytes = array.bytes(false)?;
    Tensor::from_host(Arc::new(Copied(bytes)), c.aval.dtype.element_type(), &dims).map_err(Error::from)
}

/// Returns `true` if arrays of this dtype can be exchanged with other libraries.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::dlpack::is_supported_dtype;
/// assert!(is_supported_dtype(DType::Bf16) && !is_supported_dtype(DType::I4));
/// ```
pub fn is_supported_dtype(dtype: DType) -> bool {
    !dtype.is_key() && pjrt::dlpack::is_supported(dtype.element_type())
}

/// The copied bytes of an array.
struct Copied(Vec<u8>);

impl HostBytes for Copied {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
