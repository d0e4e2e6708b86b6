//! Functions that programs on GPUs call with addresses in device memory and a stream on which they start work.
//!
//! The program's thread or one of the plugin's threads calls the function, while earlier work of the program may still
//! run on the stream. Work that the function starts on the stream runs after that, and before the next operation of the
//! program. The function should not wait for this work, and cannot read device memory from the host; use [`copies`] if
//! it must do either.

use std::ffi::c_void;

use smallvec::SmallVec;

use super::*;

/// A function of arrays in device memory, and the platform of the device, named as in XLA.
pub(super) struct OnDevice {
    platform: String,
    body: Box<dyn Fn(&DeviceCall<'_>) -> std::result::Result<(), String> + Send + Sync>,
}

/// Registers `handler` as `name` for programs of a platform, named as in XLA (`CUDA`, `ROCM`), for the rest of the
/// process.
///
/// An error or panic of the handler is the error of the execution. Programs that call it are not recorded as CUDA
/// graphs.
///
/// # Errors
/// Returns the errors of [`register`](super::register).
pub fn register<F>(plugin: &Plugin, platform: &str, name: &str, handler: F) -> Result<()>
where
    F: Fn(&DeviceCall<'_>) -> std::result::Result<(), String> + Send + Sync + 'static,
{
    let handler = OnDevice { platform: platform.to_owned(), body: Box::new(handler) };
    add(plugin, platform, name, Handler::Device(handler))
}

/// One call from a program on a device.
pub struct DeviceCall<'a> {
    args: SmallVec<[DeviceArray<'a>; 8]>,
    results: SmallVec<[DeviceArray<'a>; 4]>,
    frame: Frame<'a>,
    platform: &'a str,
}

/// A dense row-major array in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceArray<'a> {
    /// The element type.
    pub ty: ElementType,
    /// The dimensions.
    pub dims: &'a [i64],
    /// The address in device memory. Not null; dangling if the array has no elements.
    pub address: *mut c_void,
    /// The length in bytes.
    pub byte_len: usize,
}

impl<'a> DeviceCall<'a> {
    /// The arguments, which must not be written.
    pub fn args(&self) -> &[DeviceArray<'a>] {
        &self.args
    }

    /// The results. The function must write every byte; initially the contents are arbitrary.
    pub fn results(&self) -> &[DeviceArray<'a>] {
        &self.results
    }

    /// The platform that the function was [registered](register) for.
    pub fn platform(&self) -> &str {
        self.platform
    }

    /// The stream of the program: a `CUstream` or `hipStream_t`. `None` on the host.
    pub fn stream(&self) -> Option<*mut c_void> {
        self.frame.stream().map(|address| address as *mut c_void)
    }

    /// The attribute of this name.
    pub fn attr(&self, name: &str) -> Option<Attr<'a>> {
        self.attrs().into_iter().find(|(n, _)| *n == name).map(|(_, attr)| attr)
    }

    /// All attributes, by name.
    pub fn attrs(&self) -> Vec<(&'a str, Attr<'a>)> {
        self.frame.attrs()
    }

    /// The number of the device that runs the program; `None` if the plugin does not report it.
    pub fn device_ordinal(&self) -> Option<i32> {
        self.frame.device_ordinal()
    }
}

impl fmt::Debug for DeviceCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCall").field("args", &self.args).field("results", &self.results).finish()
    }
}

impl<'a> From<RawArray<'a>> for DeviceArray<'a> {
    fn from(array: RawArray<'a>) -> DeviceArray<'a> {
        let RawArray { ty, dims, data, len } = array;
        DeviceArray { ty, dims, address: data.cast(), byte_len: len }
    }
}

/// # Safety
/// Everything that the frame points to outlives the call.
pub(super) unsafe fn call(handler: &OnDevice, frame: &RawFrame) -> std::result::Result<(), String> {
    // SAFETY: promised by the caller.
    let (args, results) = unsafe { (arrays(&frame.args), arrays(&frame.results)) };
    let call = DeviceCall {
        args: args.map(|array| array.map(DeviceArray::from)).collect::<std::result::Result<_, _>>()?,
        results: results.map(|array| array.map(DeviceArray::from)).collect::<std::result::Result<_, _>>()?,
        frame: Frame(frame),
        platform: &handler.platform,
    };
    guarded(|| (handler.body)(&call))
}
