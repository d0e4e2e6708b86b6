//! Functions that programs of GPUs call on the device's memory: they are given addresses and a stream, and start work
//! there.
//!
//! A call comes on the thread that runs the program, or on one of the plugin's, while the program's earlier work may still
//! run on the stream. What the function
//! starts on the same stream runs after that, and before what the program does next; it must not wait for it. Addresses are
//! those of the device's memory: this process cannot read there.

use std::ffi::c_void;

use smallvec::SmallVec;

use super::*;

/// A function that is given a device's memory.
pub(super) type OnDevice = Box<dyn Fn(&DeviceCall<'_>) -> std::result::Result<(), String> + Send + Sync>;

/// Makes `handler` callable as `name` from programs of this platform, by XLA's name of it (`CUDA`, `ROCM`), for the life
/// of the process.
///
/// Its error, or its panic, is the error of the execution. Programs that call it are not recorded as CUDA graphs.
///
/// # Errors
/// As for [`register`](super::register).
pub fn register<F>(plugin: &Plugin, platform: &str, name: &str, handler: F) -> Result<()>
where
    F: Fn(&DeviceCall<'_>) -> std::result::Result<(), String> + Send + Sync + 'static,
{
    add(plugin, platform, name, Handler::Device(Box::new(handler)))
}

/// One call from a program of a device.
pub struct DeviceCall<'a> {
    args: SmallVec<[DeviceArray<'a>; 8]>,
    results: SmallVec<[DeviceArray<'a>; 4]>,
    frame: Frame<'a>,
}

/// An array in a device's memory: dense, row-major.
#[derive(Clone, Copy, Debug)]
pub struct DeviceArray<'a> {
    /// The type of its elements.
    pub ty: ElementType,
    /// Its sizes.
    pub dims: &'a [i64],
    /// Where it begins, in the device's memory. Not null; of an array without elements it points nowhere.
    pub address: *mut c_void,
    /// Its length in bytes.
    pub byte_len: usize,
}

impl<'a> DeviceCall<'a> {
    /// The arguments, which are not to be written.
    pub fn args(&self) -> &[DeviceArray<'a>] {
        &self.args
    }

    /// The results, every byte of which is to be written: they hold what was there before.
    pub fn results(&self) -> &[DeviceArray<'a>] {
        &self.results
    }

    /// The stream that the program runs on: a `CUstream`, a `hipStream_t`. `None` on the host, which has none.
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

    /// Number of the device that the program runs on; `None` when the plugin does not tell.
    pub fn device_ordinal(&self) -> Option<i32> {
        self.frame.device_ordinal()
    }
}

impl fmt::Debug for DeviceCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCall").field("args", &self.args).field("results", &self.results).finish()
    }
}

/// # Safety
/// What the frame points to lives through the call.
pub(super) unsafe fn call(handler: &OnDevice, frame: &RawFrame) -> std::result::Result<(), String> {
    let on_device = |RawArray { ty, dims, data, len }| DeviceArray { ty, dims, address: data.cast(), byte_len: len };
    // SAFETY: promised by the caller.
    let (args, results) = unsafe { (arrays(&frame.args), arrays(&frame.results)) };
    let call = DeviceCall {
        args: args.map(|array| array.map(on_device)).collect::<std::result::Result<_, _>>()?,
        results: results.map(|array| array.map(on_device)).collect::<std::result::Result<_, _>>()?,
        frame: Frame(frame),
    };
    guarded(|| handler(&call))
}
