//! DLPack: arrays that libraries exchange without a copy.
//!
//! A [`Tensor`] owns a managed tensor of DLPack's C ABI, with or without a version, and calls its deleter once. The
//! structs have the layouts of `dlpack.h` 1.1.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::buffer_reference::SharedMemory;
use crate::element::{ElementType, dense_byte_size};
use crate::error::{Error, Result};
use crate::host_bytes::HostBytes;
use crate::panics::panic_text;

/// `DLDevice`: a kind of device (1 is the CPU) and a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DlDevice {
    kind: i32,
    id: i32,
}

const CPU: i32 = 1;
/// Host memory, page-locked for a GPU.
const PINNED_HOST: [i32; 2] = [3, 11];

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    /// In elements; null if row-major.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`: a tensor with the function that frees it. Python capsules named `dltensor` contain one.
#[repr(C)]
pub struct ManagedTensor {
    tensor: DlTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// `DLManagedTensorVersioned`, since DLPack 1.0. Python capsules named `dltensor_versioned` contain one.
#[repr(C)]
pub struct ManagedTensorVersioned {
    major: u32,
    minor: u32,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

const VERSION: (u32, u32) = (1, 1);
const READ_ONLY: u64 = 1;

/// A tensor received from another library, or to be passed to one. Dropping it calls its deleter.
///
/// A Rust value can be moved only once, so no tensor is consumed twice. If you unpack a Python capsule, rename it to
/// `used_dltensor`, as DLPack requires.
pub struct Tensor(Raw);

enum Raw {
    Plain(NonNull<ManagedTensor>),
    Versioned(NonNull<ManagedTensorVersioned>),
}

// SAFETY: `from_raw` and `from_raw_versioned` require tensors that any thread may read and free.
unsafe impl Send for Tensor {}
unsafe impl Sync for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: this value owns the managed tensor; the deleter takes it and is called here only.
        unsafe {
            match self.0 {
                Raw::Plain(raw) => {
                    if let Some(delete) = raw.as_ref().deleter {
                        delete(raw.as_ptr());
                    }
                }
                Raw::Versioned(raw) => {
                    if let Some(delete) = raw.as_ref().deleter {
                        delete(raw.as_ptr());
                    }
                }
            }
        }
    }
}

impl Tensor {
    /// Takes ownership of a managed tensor, even if it returns an error.
    ///
    /// # Safety
    /// `raw` is null or a valid `DLManagedTensor` that nobody else frees. Its memory stays valid and unchanged until the
    /// deleter is called, which any thread can do.
    ///
    /// # Errors
    /// Returns an error if the pointer is null, or no array can have the tensor's shape or type.
    pub unsafe fn from_raw(raw: *mut ManagedTensor) -> Result<Tensor> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid_argument("the DLPack tensor is a null pointer"))?;
        Tensor(Raw::Plain(raw)).checked()
    }

    /// Like [`Tensor::from_raw`], for a tensor with a version.
    ///
    /// # Safety
    /// As for [`Tensor::from_raw`].
    ///
    /// # Errors
    /// Also returns an error if its major version is not 1.
    pub unsafe fn from_raw_versioned(raw: *mut ManagedTensorVersioned) -> Result<Tensor> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::invalid_argument("the DLPack tensor is a null pointer"))?;
        let tensor = Tensor(Raw::Versioned(raw));
        // SAFETY: version and deleter have their places in every version.
        let (major, minor) = unsafe { (raw.as_ref().major, raw.as_ref().minor) };
        if major != VERSION.0 {
            return Err(Error::invalid_argument(format!("DLPack {major}.{minor} is not supported, but 1.x is")));
        }
        tensor.checked()
    }

    fn checked(self) -> Result<Tensor> {
        let tensor = self.tensor();
        let dims = usize::try_from(tensor.ndim).ok().filter(|ndim| *ndim == 0 || !tensor.shape.is_null());
        if dims.is_none() {
            return invalid_tensor(format!("has {} dimensions and no shape", tensor.ndim));
        }
        let ty = self.element_type()?;
        if dense_byte_size(ty, self.shape()).is_none() {
            return invalid_tensor(format!("has the shape {:?}, which is not one of an array", self.shape()));
        }
        if tensor.data.is_null() && self.shape().iter().all(|&dim| dim != 0) {
            return invalid_tensor(format!("of shape {:?} has no data", self.shape()));
        }
        Ok(self)
    }

    /// Exports row-major host data as a tensor. Its consumer must not write to it.
    ///
    /// # Errors
    /// Returns an error if the data does not have the size of this shape, or DLPack has no such type.
    pub fn from_host(data: Arc<dyn HostBytes>, ty: ElementType, dims: &[i64]) -> Result<Tensor> {
        let bytes = data.bytes();
        if dense_byte_size(ty, dims) != Some(bytes.len()) {
            let message = format!("{} bytes are not the elements of an array of {ty:?} of {dims:?}", bytes.len());
            return Err(Error::invalid_argument(message));
        }
        let address = bytes.as_ptr().cast_mut().cast();
        Ok(export(Box::new(data), address, DlDevice { kind: CPU, id: 0 }, data_type(ty)?, dims))
    }

    /// Exports a buffer in host memory as a tensor. Waits for the data. As long as the tensor exists, the buffer cannot be
    /// donated, and its memory stays if it is deleted.
    ///
    /// # Errors
    /// Returns an error if the data is not in host memory, dense and row-major; the buffer was deleted or donated; or
    /// DLPack has no such type.
    pub fn from_buffer(buffer: &Arc<Buffer>) -> Result<Tensor> {
        let ty = data_type(buffer.element_type())?;
        let memory = SharedMemory::acquire(buffer)?;
        let Some(view) = buffer.view()? else {
            return Err(Error::invalid_argument(format!("{buffer:?} is not in host memory that can be shared")));
        };
        let address = view.as_ptr().cast_mut().cast();
        drop(view);
        Ok(export(Box::new(memory), address, DlDevice { kind: CPU, id: 0 }, ty, buffer.dims()))
    }

    fn tensor(&self) -> &DlTensor {
        // SAFETY: the managed tensor is valid as long as this value exists.
        unsafe {
            match &self.0 {
                Raw::Plain(raw) => &raw.as_ref().tensor,
                Raw::Versioned(raw) => &raw.as_ref().tensor,
            }
        }
    }

    /// Reads a list with an entry for each dimension; `None` if the pointer is null.
    fn list(&self, list: *const i64) -> Option<&[i64]> {
        let len = usize::try_from(self.tensor().ndim).unwrap_or(0);
        match len {
            0 => Some(&[]),
            // SAFETY: lists that are not null have an entry for each dimension.
            _ => (!list.is_null()).then(|| unsafe { std::slice::from_raw_parts(list, len) }),
        }
    }

    /// The dimensions.
    pub fn shape(&self) -> &[i64] {
        self.list(self.tensor().shape).unwrap_or(&[])
    }

    /// The distances between neighbours along each dimension, in elements.
    pub fn strides(&self) -> Vec<i64> {
        self.list(self.tensor().strides).map_or_else(|| row_major(self.shape()), <[i64]>::to_vec)
    }

    /// The element type.
    ///
    /// # Errors
    /// Returns an error if there is no such element type.
    pub fn element_type(&self) -> Result<ElementType> {
        let ty = self.tensor().dtype;
        let entry = TYPES.iter().find(|(_, code, bits)| (*code, *bits, 1) == (ty.code, ty.bits, ty.lanes));
        entry.map(|(ty, ..)| *ty).ok_or_else(|| {
            let DlDataType { code, bits, lanes } = ty;
            Error::invalid_argument(format!(
                "the DLPack tensor has elements of code {code}, {bits} bits and {lanes} lanes, which no array has"
            ))
        })
    }

    /// Returns true if the memory is the host's.
    pub fn is_on_host(&self) -> bool {
        let kind = self.tensor().device.kind;
        kind == CPU || PINNED_HOST.contains(&kind)
    }

    /// The device as text: `cuda:0`.
    pub fn device(&self) -> String {
        let DlDevice { kind, id } = self.tensor().device;
        match kind {
            CPU => "cpu".to_owned(),
            2 => format!("cuda:{id}"),
            3 => "cuda_host".to_owned(),
            7 => format!("vulkan:{id}"),
            8 => format!("metal:{id}"),
            10 => format!("rocm:{id}"),
            11 => "rocm_host".to_owned(),
            13 => format!("cuda_managed:{id}"),
            14 => format!("oneapi:{id}"),
            _ => format!("device {id} of kind {kind}"),
        }
    }

    /// Returns true if the consumer must not write to the memory. Tensors without a version do not state it, and return
    /// `false`.
    pub fn is_read_only(&self) -> bool {
        match &self.0 {
            Raw::Plain(_) => false,
            // SAFETY: the managed tensor is valid as long as this value exists.
            Raw::Versioned(raw) => unsafe { raw.as_ref().flags & READ_ONLY != 0 },
        }
    }

    /// The bytes of the elements in place; `None` if they are not dense and row-major, or not in host memory.
    pub fn bytes_in_place(&self) -> Option<&[u8]> {
        let len = dense_byte_size(self.element_type().ok()?, self.shape())?;
        if len == 0 {
            return self.is_on_host().then_some(&[]);
        }
        let dense = row_major(self.shape());
        let strides = self.strides();
        // The stride of a dimension with one entry is not used.
        let is_dense =
            self.shape().iter().zip(&strides).zip(&dense).all(|((dim, stride), dense)| *dim == 1 || stride == dense);
        let in_place = self.is_on_host() && is_dense;
        // SAFETY: the tensor's memory has all its elements, which are these bytes, and stays unchanged.
        in_place.then(|| unsafe { std::slice::from_raw_parts(self.first().cast_const(), len) })
    }

    /// Copies the elements in row-major order, regardless of their strides.
    ///
    /// # Errors
    /// Returns an error if they are not in host memory, or there is no memory for a copy.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if let Some(bytes) = self.bytes_in_place() {
            return Ok(bytes.to_vec());
        }
        if !self.is_on_host() {
            return Err(Error::invalid_argument(format!("a DLPack tensor on {} cannot be read here", self.device())));
        }
        let (shape, strides) = (self.shape(), self.strides());
        let width = self.element_type()?.byte_size();
        let len = dense_byte_size(self.element_type()?, shape).unwrap_or(0);
        let mut out = Vec::new();
        out.try_reserve_exact(len)
            .map_err(|e| Error::invalid_argument(format!("no memory to copy a DLPack tensor of {len} bytes: {e}")))?;
        let mut index = vec![0; shape.len()];
        while out.len() < len {
            let offset: i64 = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
            // SAFETY: strides lead to the tensor's own elements.
            out.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.first().offset(offset as isize * width as isize).cast_const(), width)
            });
            for d in (0..shape.len()).rev() {
                index[d] += 1;
                if index[d] < shape[d] {
                    break;
                }
                index[d] = 0;
            }
        }
        Ok(out)
    }

    /// The address of the element whose indices are all 0.
    fn first(&self) -> *mut u8 {
        let tensor = self.tensor();
        // Within the tensor's memory, so no address overflows.
        tensor.data.cast::<u8>().wrapping_add(usize::try_from(tensor.byte_offset).unwrap_or(0))
    }

    /// Converts the tensor to a `DLManagedTensor` for another library, which must call the deleter once, on any thread.
    pub fn into_raw(self) -> *mut ManagedTensor {
        match self.0 {
            Raw::Plain(raw) => {
                std::mem::forget(self);
                raw.as_ptr()
            }
            Raw::Versioned(_) => {
                let (at, device, ty, dims) = self.parts();
                plain(exported(Box::new(self), at, device, ty, &dims))
            }
        }
    }

    /// Like [`Tensor::into_raw`], as a `DLManagedTensorVersioned`.
    pub fn into_raw_versioned(self) -> *mut ManagedTensorVersioned {
        match self.0 {
            Raw::Versioned(raw) => {
                std::mem::forget(self);
                raw.as_ptr()
            }
            Raw::Plain(_) => {
                let (at, device, ty, dims) = self.parts();
                versioned(exported(Box::new(self), at, device, ty, &dims), 0)
            }
        }
    }

    /// The parts that both forms of a tensor have in common.
    fn parts(&self) -> (*mut c_void, DlDevice, DlDataType, Dims) {
        let tensor = self.tensor();
        let dims = Dims { shape: self.shape().to_vec(), strides: self.strides() };
        (self.first().cast(), tensor.device, tensor.dtype, dims)
    }
}

impl HostBytes for Tensor {
    fn bytes(&self) -> &[u8] {
        self.bytes_in_place().unwrap_or_default()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = self.element_type().map_or("unknown", ElementType::hlo_name);
        write!(f, "Tensor({ty}{:?} on {})", self.shape(), self.device())
    }
}

#[derive(Clone)]
struct Dims {
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// The memory of a tensor that this module exports.
struct Exported {
    dims: Dims,
    /// The owner of the memory, which the deleter drops.
    owner: Box<dyn Any + Send + Sync>,
}

fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = shape[d].saturating_mul(strides[d]);
    }
    strides
}

/// Returns an error about an invalid tensor.
fn invalid_tensor<T>(problem: String) -> Result<T> {
    Err(Error::invalid_argument(format!("the DLPack tensor {problem}")))
}

/// Exports memory that nobody writes to while `owner` exists.
fn export(
    owner: Box<dyn Any + Send + Sync>,
    at: *mut c_void,
    device: DlDevice,
    ty: DlDataType,
    shape: &[i64],
) -> Tensor {
    let dims = Dims { shape: shape.to_vec(), strides: row_major(shape) };
    let raw = versioned(exported(owner, at, device, ty, &dims), READ_ONLY);
    // SAFETY: a box is not null, and its deleter frees it.
    Tensor(Raw::Versioned(unsafe { NonNull::new_unchecked(raw) }))
}

/// The tensor, and the box that its manager owns.
fn exported(
    owner: Box<dyn Any + Send + Sync>,
    address: *mut c_void,
    device: DlDevice,
    dtype: DlDataType,
    dims: &Dims,
) -> (DlTensor, Box<Exported>) {
    let mut manager = Box::new(Exported { dims: dims.clone(), owner });
    let tensor = DlTensor {
        data: address,
        device,
        ndim: i32::try_from(dims.shape.len()).unwrap_or(i32::MAX),
        dtype,
        shape: manager.dims.shape.as_mut_ptr(),
        strides: manager.dims.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    (tensor, manager)
}

fn plain((tensor, manager): (DlTensor, Box<Exported>)) -> *mut ManagedTensor {
    unsafe extern "C" fn delete(raw: *mut ManagedTensor) {
        // SAFETY: the boxes were made below, and a deleter is called once.
        unsafe { free(Box::from_raw(raw).manager_ctx) }
    }
    let manager_ctx = Box::into_raw(manager).cast();
    Box::into_raw(Box::new(ManagedTensor { tensor, manager_ctx, deleter: Some(delete) }))
}

fn versioned((tensor, manager): (DlTensor, Box<Exported>), flags: u64) -> *mut ManagedTensorVersioned {
    unsafe extern "C" fn delete(raw: *mut ManagedTensorVersioned) {
        // SAFETY: the boxes were made below, and a deleter is called once.
        unsafe { free(Box::from_raw(raw).manager_ctx) }
    }
    let manager_ctx = Box::into_raw(manager).cast();
    let (major, minor) = VERSION;
    Box::into_raw(Box::new(ManagedTensorVersioned { major, minor, manager_ctx, deleter: Some(delete), flags, tensor }))
}

/// Frees what a manager owns.
///
/// # Safety
/// `manager` is a box of [`Exported`] that nobody else frees.
unsafe fn free(manager: *mut c_void) {
    // SAFETY: promised by the caller.
    let manager = unsafe { Box::from_raw(manager.cast::<Exported>()) };
    // A panic in the owner's destructor must not unwind into the other library.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(move || drop(manager.owner))) {
        panic_text(panic);
    }
}

/// DLPack's element types with their codes and bits. Types narrower than a byte are missing, because DLPack packs them,
/// while a buffer stores each in a byte.
const TYPES: [(ElementType, u8, u8); 21] = {
    use ElementType::*;
    [
        (S8, 0, 8),
        (S16, 0, 16),
        (S32, 0, 32),
        (S64, 0, 64),
        (U8, 1, 8),
        (U16, 1, 16),
        (U32, 1, 32),
        (U64, 1, 64),
        (F16, 2, 16),
        (F32, 2, 32),
        (F64, 2, 64),
        (Bf16, 4, 16),
        (C64, 5, 64),
        (C128, 5, 128),
        (Pred, 6, 8),
        (F8E4M3B11Fnuz, 9, 8),
        (F8E4M3Fn, 10, 8),
        (F8E4M3Fnuz, 11, 8),
        (F8E5M2, 12, 8),
        (F8E5M2Fnuz, 13, 8),
        (F8E8M0Fnu, 14, 8),
    ]
};

/// Returns true if DLPack has this type.
pub fn is_supported(ty: ElementType) -> bool {
    TYPES.iter().any(|(manager, ..)| *manager == ty)
}

fn data_type(ty: ElementType) -> Result<DlDataType> {
    let entry = TYPES.iter().find(|(supported, ..)| *supported == ty);
    let (_, code, bits) =
        entry.ok_or_else(|| Error::invalid_argument(format!("DLPack has no type for arrays of {}", ty.hlo_name())))?;
    Ok(DlDataType { code: *code, bits: *bits, lanes: 1 })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Data that counts how often it was dropped.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl HostBytes for Counted {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted(bytes: Vec<u8>, dims: &[i64]) -> (Tensor, Arc<AtomicUsize>) {
        let drops = Arc::new(AtomicUsize::new(0));
        let tensor = Tensor::from_host(Arc::new(Counted(bytes, drops.clone())), ElementType::U8, dims);
        (tensor.expect("the bytes fit"), drops)
    }

    #[test]
    fn a_tensor_is_freed_once_in_either_form() {
        let (tensor, drops) = counted((0..6).collect(), &[2, 3]);
        assert!(tensor.is_read_only());
        let plain = tensor.into_raw();
        // SAFETY: the pointers were made just before, and each is given back once.
        let tensor = unsafe {
            let versioned = Tensor::from_raw(plain).expect("a tensor").into_raw_versioned();
            Tensor::from_raw_versioned(versioned).expect("a tensor")
        };
        assert_eq!((tensor.shape(), tensor.strides()), (&[2, 3][..], vec![3, 1]));
        assert_eq!(tensor.bytes_in_place(), Some(&[0, 1, 2, 3, 4, 5][..]));
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(tensor);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    /// A tensor whose fields `change` has changed.
    fn changed(change: impl FnOnce(&mut ManagedTensorVersioned)) -> Result<Tensor> {
        let raw = counted((0..6).collect(), &[2, 3]).0.into_raw_versioned();
        // SAFETY: the pointer was made just before.
        unsafe {
            change(&mut *raw);
            Tensor::from_raw_versioned(raw)
        }
    }

    /// Returns whether the tensor's bytes are used in place, and its elements in row-major order.
    fn read_with_strides(mut shape: [i64; 2], mut strides: [i64; 2], offset: u64) -> (bool, Vec<u8>) {
        let tensor = changed(|raw| {
            (raw.tensor.shape, raw.tensor.strides) = (shape.as_mut_ptr(), strides.as_mut_ptr());
            raw.tensor.byte_offset = offset;
        });
        let tensor = tensor.expect("a tensor");
        (tensor.bytes_in_place().is_some(), tensor.to_bytes().expect("it is in host memory"))
    }

    fn message(tensor: Result<Tensor>) -> String {
        tensor.expect_err("it is no array").to_string()
    }

    #[test]
    fn other_strides_are_copied() {
        assert_eq!(read_with_strides([3, 2], [1, 3], 0), (false, vec![0, 3, 1, 4, 2, 5]));
        // The rows backwards, one row twice, and one row, whose stride does not count.
        assert_eq!(read_with_strides([2, 3], [-3, 1], 3), (false, vec![3, 4, 5, 0, 1, 2]));
        assert_eq!(read_with_strides([2, 3], [0, 1], 0), (false, vec![0, 1, 2, 0, 1, 2]));
        assert_eq!(read_with_strides([1, 3], [77, 1], 3), (true, vec![3, 4, 5]));
    }

    #[test]
    fn invalid_dlpack_tensors_are_errors() {
        // SAFETY: null is allowed.
        assert!(message(unsafe { Tensor::from_raw(std::ptr::null_mut()) }).contains("null pointer"));
        assert!(message(changed(|raw| raw.major = 2)).contains("DLPack 2.1 is not supported"));
        assert!(message(changed(|raw| raw.tensor.ndim = -1)).contains("has -1 dimensions and no shape"));
        assert!(message(changed(|raw| raw.tensor.dtype.lanes = 4)).contains("8 bits and 4 lanes"));
        assert!(message(changed(|raw| raw.tensor.data = std::ptr::null_mut())).contains("has no data"));
        let on_gpu = changed(|raw| raw.tensor.device = DlDevice { kind: 2, id: 1 }).expect("a tensor");
        assert!(on_gpu.bytes_in_place().is_none());
        assert!(on_gpu.to_bytes().expect_err("not here").to_string().contains("on cuda:1 cannot be read"));
        let short = Tensor::from_host(Arc::new(Counted(vec![0; 3], Arc::default())), ElementType::F32, &[1]);
        assert!(message(short).contains("3 bytes are not the elements"));
        let packed = Tensor::from_host(Arc::new(Counted(vec![0; 1], Arc::default())), ElementType::S4, &[1]);
        assert!(message(packed).contains("DLPack has no type for arrays of s4"));
    }
}
