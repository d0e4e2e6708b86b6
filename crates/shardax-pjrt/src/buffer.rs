//! Buffers: arrays on a device. Transfers, copies and deletion.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::api::Api;
use crate::buffer_reference::{BufferState, ReadGuard};
use crate::device::Device;
use crate::element::{ElementType, ShapeText, dense_byte_size};
use crate::error::{Code, Error, Result};
use crate::event::{Event, no_event};
use crate::host_copy::HostCopy;
use crate::launch_failure::Launch;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::raw::*;

pub(crate) type Dims = SmallVec<[i64; 4]>;

/// An array on a device. Dropping, deleting or donating it frees its memory.
pub struct Buffer {
    raw: NonNull<RawBuffer>,
    pub(crate) state: BufferState,
    ty: ElementType,
    dims: Dims,
    device: Device,
    /// The data is known to be available, so that no event has to be awaited.
    pub(crate) ready: AtomicBool,
    /// The launch that computes it, if that launch can fail while it runs.
    pub(crate) origin: Option<Arc<Launch>>,
    /// The order of the elements in memory, if they are read in place and are not row-major.
    pub(crate) order: Option<Arc<Layout>>,
    /// The copy that [`Buffer::copy_to_host_async`] began, until it is read.
    copy: Mutex<Option<HostCopy>>,
}

// SAFETY: PJRT buffers may be used from any thread; the rest is immutable or atomic.
unsafe impl Send for Buffer {}
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes ownership of a buffer that the plugin created.
    ///
    /// # Safety
    /// `raw` is null or a live buffer of this type and shape on this device, and nobody else destroys it.
    #[inline]
    pub(crate) unsafe fn from_raw(
        raw: *mut RawBuffer,
        device: Device,
        ty: ElementType,
        dims: &[i64],
    ) -> Result<Buffer> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::new(Code::Internal, "the plugin returned no buffer"));
        };
        let ready = AtomicBool::new(false);
        Ok(Buffer {
            raw,
            state: BufferState::new(),
            ty,
            dims: Dims::from_slice(dims),
            device,
            ready,
            origin: None,
            order: None,
            copy: Mutex::new(None),
        })
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.raw.as_ptr()
    }

    fn api(&self) -> &Api {
        self.device.client().plugin.api()
    }

    /// The element type.
    #[inline]
    pub fn element_type(&self) -> ElementType {
        self.ty
    }

    /// The dimensions.
    #[inline]
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// The device that stores it.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Size in bytes of the data in host memory, dense and row-major.
    pub fn byte_size(&self) -> usize {
        // The shape was checked when the buffer was made.
        dense_byte_size(self.ty, &self.dims).unwrap_or(0)
    }

    pub(crate) fn shape_text(&self) -> ShapeText<'_> {
        ShapeText(self.ty, &self.dims)
    }

    /// Returns true if it was deleted or donated.
    pub fn is_deleted(&self) -> bool {
        self.state.is_gone()
    }

    pub(crate) fn plugin_says_deleted(&self) -> bool {
        let mut args = BufferIsDeleted { buffer: self.raw(), ..Default::default() };
        // SAFETY: the buffer is live.
        unsafe { self.api().call(&mut args) }.is_err() || args.is_deleted
    }

    /// Frees the memory as soon as no work uses it. Deleting a deleted or donated buffer does nothing. Memory that another
    /// library shares ([`dlpack`](crate::dlpack)) is freed with its last tensor.
    ///
    /// # Errors
    /// Returns an error if this thread is inside [`Buffer::with_bytes`] of this buffer, or another thread has been for
    /// ten seconds.
    pub fn delete(&self) -> Result<()> {
        if self.state.delete(self)? { self.free() } else { Ok(()) }
    }

    /// Frees the memory of a buffer that is marked as deleted and that nobody reads.
    pub(crate) fn free(&self) -> Result<()> {
        let mut args = BufferDelete { buffer: self.raw(), ..Default::default() };
        // SAFETY: the buffer is live, and its state excludes launches that use it.
        unsafe { self.api().call(&mut args) }
    }

    /// Returns an event that completes when the data is available.
    ///
    /// # Errors
    /// Returns an error if it was deleted or donated.
    pub fn ready(&self) -> Result<Event> {
        self.state.check(|| format!("the buffer ({})", self.shape_text()))?;
        let mut args = BufferReadyEvent { buffer: self.raw(), ..Default::default() };
        // SAFETY: the buffer is live; this crate owns the event.
        unsafe {
            self.api().call(&mut args)?;
            Event::from_raw(&self.device.client().plugin, args.event)
                .map(|event| event.with_launch(self.origin.clone()).with_client(self.device.client()))
                .ok_or_else(|| no_event("PJRT_Buffer_ReadyEvent"))
        }
    }

    /// Waits until the data is available.
    ///
    /// # Errors
    /// Returns an error if the execution that computes it failed, or it was deleted or donated.
    pub fn block_until_ready(&self) -> Result<()> {
        if self.ready.load(Ordering::Acquire) {
            return self.state.check(|| format!("the buffer ({})", self.shape_text()));
        }
        self.ready()?.wait()?;
        self.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for the data and copies it to `out`, dense and row-major.
    ///
    /// # Errors
    /// Returns an error if `out` does not have [`Buffer::byte_size`] bytes, the execution that computes the data
    /// failed, or the buffer was deleted or donated.
    pub fn to_host(&self, out: &mut [u8]) -> Result<()> {
        if out.len() != self.byte_size() {
            return Err(Error::invalid_argument(format!(
                "{} has {} bytes, but a slice of {} bytes was passed",
                self.shape_text(),
                self.byte_size(),
                out.len()
            )));
        }
        if self.is_host_readable() {
            // The plugin would copy on another thread, which adds 20 µs.
            return self.with_bytes(|bytes| out.copy_from_slice(bytes));
        }
        self.state.check(|| format!("the buffer to read ({})", self.shape_text()))?;
        let begun = self.begun_copy().take();
        match begun {
            Some(copy) => copy.wait().map(|bytes| out.copy_from_slice(&bytes)),
            None => self.copy_out(out),
        }
    }

    /// Begins to copy the data to the host, without waiting. The next read waits for this copy instead of starting its
    /// own. Does nothing if host and device share memory, or if a copy has begun already.
    ///
    /// # Errors
    /// Returns an error if it was deleted or donated.
    pub fn copy_to_host_async(&self) -> Result<()> {
        self.state.check(|| format!("the buffer to copy ({})", self.shape_text()))?;
        let len = self.byte_size();
        if self.is_host_readable() || self.order.is_some() || len == 0 {
            return Ok(());
        }
        let mut copy = self.begun_copy();
        if copy.is_none() {
            let order = self.row_major();
            // SAFETY: the plugin writes to the memory until the event completes.
            *copy = Some(unsafe { HostCopy::begin(len, |out| self.begin_copy(&order, out))? });
        }
        Ok(())
    }

    pub(crate) fn begun_copy(&self) -> MutexGuard<'_, Option<HostCopy>> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the data. Finishes the copy that has begun, or starts one.
    fn copied(&self) -> Result<Vec<u8>> {
        let begun = self.begun_copy().take();
        if let Some(copy) = begun {
            return copy.wait();
        }
        let mut bytes = vec![0; self.byte_size()];
        self.copy_out(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns true if host and device share the memory and the data has the host's format.
    fn is_host_readable(&self) -> bool {
        // Types narrower than a byte may be packed on the device.
        self.device.client().is_cpu && !self.ty.is_sub_byte() && self.order.is_none()
    }

    #[inline]
    pub(crate) fn order(&self) -> Option<&Arc<Layout>> {
        self.order.as_ref()
    }

    /// The layout of the elements in the device's memory.
    ///
    /// # Errors
    /// Returns an error if the platform does not report layouts, or the buffer was deleted or donated.
    pub fn memory_layout(&self) -> Result<Layout> {
        self.state.check(|| format!("the buffer ({})", self.shape_text()))?;
        let mut args = BufferMemoryLayout { buffer: self.raw(), ..Default::default() };
        // SAFETY: the buffer is live and owns the memory that its layout points to.
        unsafe {
            self.api().call(&mut args)?;
            match args.layout.kind {
                TILED => Ok(Layout::from_raw(&args.layout.tiled)),
                kind => Err(Error::new(Code::Unimplemented, format!("a layout of kind {kind}"))),
            }
        }
    }

    fn copy_out(&self, out: &mut [u8]) -> Result<()> {
        let Some(order) = &self.order else { return self.copy_out_in(&self.row_major(), out) };
        // The CPU plugin copies elements in the order in which they are stored.
        let mut data = vec![0; out.len()];
        self.copy_out_in(&order.minor_to_major, &mut data)?;
        let count: usize = self.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product();
        order.to_rows(&self.dims, out.len().checked_div(count).unwrap_or(1), &data, out)
    }

    fn row_major(&self) -> SmallVec<[i64; 8]> {
        (0..self.dims.len() as i64).rev().collect()
    }

    fn copy_out_in(&self, minor_to_major: &[i64], out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return self.block_until_ready();
        }
        // SAFETY: `out` outlives the copy, which is awaited.
        unsafe { self.begin_copy(minor_to_major, out)? }.wait()
    }

    /// Begins to copy the data in the order of these dimensions.
    ///
    /// # Safety
    /// `out` has the data's size, and stays valid and unused until the event completes.
    unsafe fn begin_copy(&self, minor_to_major: &[i64], out: &mut [u8]) -> Result<Event> {
        // Without a layout, the plugin copies in the device's own order.
        let mut layout = MemoryLayout {
            struct_size: size_of::<MemoryLayout>(),
            extension_start: std::ptr::null_mut(),
            tiled: TiledLayout {
                struct_size: size_of::<TiledLayout>(),
                extension_start: std::ptr::null_mut(),
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: minor_to_major.len(),
                tile_dims: std::ptr::null(),
                tile_dim_sizes: std::ptr::null(),
                num_tiles: 0,
            },
            kind: 0,
        };
        let mut args = BufferToHostBuffer {
            buffer: self.raw(),
            host_layout: if self.dims.len() > 1 { &raw mut layout } else { std::ptr::null_mut() },
            dst: out.as_mut_ptr().cast(),
            dst_size: out.len(),
            ..Default::default()
        };
        // SAFETY: the buffer is live, the layout is read during the call, and the caller keeps `out`.
        unsafe {
            self.api().call(&mut args)?;
            Event::from_raw(&self.device.client().plugin, args.event)
                .map(|event| event.with_launch(self.origin.clone()).with_client(self.device.client()))
                .ok_or_else(|| no_event("PJRT_Buffer_ToHostBuffer"))
        }
    }

    /// Waits for the data and passes it to `f`, dense and row-major: in place if host and device share memory,
    /// otherwise as a copy. Meanwhile the buffer can be used, but not donated or deleted.
    ///
    /// # Errors
    /// Returns an error if the execution that computes the data failed, or the buffer was deleted or donated.
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let view = ReadGuard::acquire(self)?;
        if !self.is_host_readable() {
            let copy = self.copied()?;
            drop(view);
            return Ok(f(&copy));
        }
        self.block_until_ready()?;
        let len = self.byte_size();
        if len == 0 {
            return Ok(f(&[]));
        }
        let data = self.unsafe_pointer()? as *const u8;
        // SAFETY: on CPU the pointer is host memory of at least this length. Only a donation writes to a buffer, and
        // the view excludes donation and deletion.
        Ok(f(unsafe { std::slice::from_raw_parts(data, len) }))
    }

    /// Waits for the data and returns it in place, dense and row-major; `None` if host and device share no memory.
    /// While the view is alive, the buffer can be used, but not donated or deleted.
    ///
    /// # Errors
    /// Returns an error if the execution that computes the data failed, or the buffer was deleted or donated.
    pub fn view(&self) -> Result<Option<BufferView<'_>>> {
        if !self.is_host_readable() {
            return Ok(None);
        }
        let guard = ReadGuard::acquire(self)?;
        self.block_until_ready()?;
        let len = self.byte_size();
        let bytes = match len {
            0 => &[],
            // SAFETY: as in `with_bytes`; the slice does not outlive the view.
            _ => unsafe { std::slice::from_raw_parts(self.unsafe_pointer()? as *const u8, len) },
        };
        Ok(Some(BufferView { bytes, _guard: guard, _thread: PhantomData }))
    }

    /// Copies it to another device of the same client. Does not wait.
    ///
    /// # Errors
    /// Returns an error if the device belongs to another client or process, the buffer was deleted or donated, or it is
    /// on CPU and not row-major.
    pub fn copy_to_device(&self, device: &Device) -> Result<Buffer> {
        if !Arc::ptr_eq(self.device.client(), device.client()) || !device.is_addressable() {
            return Err(Error::invalid_argument(format!(
                "a buffer on {} cannot be copied to {device}, which is not an addressable device of its client",
                self.device
            )));
        }
        self.check_copy()?;
        let mut args = BufferCopyToDevice { buffer: self.raw(), device: device.raw(), ..Default::default() };
        // SAFETY: buffer and device are live; this crate owns the copy.
        unsafe {
            self.api().call(&mut args)?;
            let mut copy = Buffer::from_raw(args.copy, device.clone(), self.ty, &self.dims)?;
            copy.origin = self.origin.clone();
            Ok(copy)
        }
    }

    /// Rejects buffers that are not row-major, because the CPU plugin (xla-cpu-pjrt 0.0.1) copies the bytes unchanged
    /// and reports the copy as row-major. Test: `layouts::arrays_are_read_row_major`.
    fn check_copy(&self) -> Result<()> {
        self.state.check(|| format!("the buffer to copy ({})", self.shape_text()))?;
        match &self.order {
            None => Ok(()),
            Some(order) => Err(Error::new(
                Code::Unimplemented,
                format!(
                    "a buffer ({}) with dimensions in the order {:?}, from minor to major, cannot be copied",
                    self.shape_text(),
                    order.minor_to_major
                ),
            )),
        }
    }

    /// Copies it to another memory of the same client. Does not wait.
    ///
    /// # Errors
    /// Returns an error if the memory belongs to another client, the platform cannot copy there, the buffer was deleted
    /// or donated, or it is on CPU and not row-major.
    pub fn copy_to_memory(&self, memory: &Memory) -> Result<Buffer> {
        let device = memory.device();
        if !Arc::ptr_eq(self.device.client(), device.client()) {
            return Err(Error::invalid_argument(format!(
                "a buffer on {} cannot be copied to {memory:?}, which belongs to another client",
                self.device
            )));
        }
        self.check_copy()?;
        let mut args = BufferCopyToMemory { buffer: self.raw(), memory: memory.raw(), ..Default::default() };
        // SAFETY: buffer and memory are live; this crate owns the copy.
        unsafe {
            self.api().call(&mut args)?;
            let mut copy = Buffer::from_raw(args.copy, device.clone(), self.ty, &self.dims)?;
            copy.origin = self.origin.clone();
            Ok(copy)
        }
    }

    /// Address of the data on the device. It is valid until the buffer is dropped, deleted or donated, which the
    /// pointer does not prevent.
    ///
    /// # Errors
    /// Returns an error if the platform does not report addresses, or the buffer was deleted or donated.
    pub fn unsafe_pointer(&self) -> Result<usize> {
        self.state.check(|| format!("the buffer ({})", self.shape_text()))?;
        let mut args = BufferUnsafePointer { buffer: self.raw(), ..Default::default() };
        // SAFETY: the buffer is live.
        unsafe { self.api().call(&mut args)? };
        Ok(args.pointer)
    }
}

/// The data of a buffer in place, see [`Buffer::view`]. It is not `Send`, because a thread that deletes a buffer which
/// it is reading would wait for itself; that is detected by thread.
pub struct BufferView<'a> {
    bytes: &'a [u8],
    _guard: ReadGuard<'a>,
    _thread: PhantomData<*const ()>,
}

impl std::ops::Deref for BufferView<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl fmt::Debug for BufferView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferView").field("len", &self.len()).finish()
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let mut args = BufferDestroy { buffer: self.raw(), ..Default::default() };
        // SAFETY: this crate owns the buffer. Launches and views borrow it, so none is left.
        let _ = unsafe { self.api().call(&mut args) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer({} on {}{})",
            self.shape_text(),
            self.device,
            if self.is_deleted() { ", deleted" } else { "" }
        )
    }
}
