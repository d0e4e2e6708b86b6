//! Copies between host and device during a call, for functions that compute on the host.

use std::ffi::{CStr, c_char};

use super::device::{DeviceArray, DeviceCall};
use super::*;

/// `CUdeviceptr`.
type Address = u64;
/// `CUstream`.
type Stream = *mut c_void;

/// The functions that copy, with their types in the CUDA Driver API. Each returns a `CUresult`, 0 for success.
struct Driver {
    to_host: unsafe extern "C" fn(*mut c_void, Address, usize, Stream) -> c_int,
    to_device: unsafe extern "C" fn(Address, *const c_void, usize, Stream) -> c_int,
    synchronize: unsafe extern "C" fn(Stream) -> c_int,
    error_text: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

impl Driver {
    /// The driver of a platform, named as in XLA.
    fn for_platform(platform: &str) -> Result<&'static Driver> {
        match platform {
            "CUDA" => Driver::cuda(),
            "Host" => Ok(Driver::host()),
            _ => Err(Error::new(Code::Unimplemented, format!("no copies between the host and devices of {platform}"))),
        }
    }

    /// NVIDIA's driver library, which a plugin with GPUs has loaded.
    fn cuda() -> Result<&'static Driver> {
        static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
        let driver = DRIVER.get_or_init(|| Driver::load().map_err(|error| error.to_string()));
        driver.as_ref().map_err(|error| Error::new(Code::Unavailable, format!("no NVIDIA driver library: {error}")))
    }

    fn load() -> std::result::Result<Driver, libloading::Error> {
        // SAFETY: the functions have these types in every version of the library. It is never unloaded, so they may
        // outlive `library`.
        unsafe {
            let library = libloading::Library::new("libcuda.so.1")?;
            let driver = Driver {
                to_host: *library.get(b"cuMemcpyDtoHAsync_v2\0")?,
                to_device: *library.get(b"cuMemcpyHtoDAsync_v2\0")?,
                synchronize: *library.get(b"cuStreamSynchronize\0")?,
                error_text: *library.get(b"cuGetErrorString\0")?,
            };
            std::mem::forget(library);
            Ok(driver)
        }
    }

    /// Copies within host memory, for functions registered for the platform `Host`.
    fn host() -> &'static Driver {
        unsafe extern "C" fn to_host(to: *mut c_void, from: Address, len: usize, _: Stream) -> c_int {
            // SAFETY: promised by the caller.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.cast(), len) };
            0
        }
        unsafe extern "C" fn to_device(to: Address, from: *const c_void, len: usize, _: Stream) -> c_int {
            // SAFETY: promised by the caller.
            unsafe { std::ptr::copy_nonoverlapping(from.cast(), to as *mut u8, len) };
            0
        }
        unsafe extern "C" fn synchronize(_: Stream) -> c_int {
            0
        }
        unsafe extern "C" fn error_text(_: c_int, _: *mut *const c_char) -> c_int {
            0
        }
        &Driver { to_host, to_device, synchronize, error_text }
    }

    fn check(&self, doing: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: `text` is written, or stays null; texts are constants of the driver.
        let text = unsafe {
            (self.error_text)(code, &raw mut text);
            if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        Err(Error::new(Code::Internal, format!("{doing} failed with CUDA error {code}: {text}")))
    }
}

impl DeviceCall<'_> {
    /// The driver, and the stream on which it copies.
    fn driver(&self) -> Result<(&'static Driver, Stream)> {
        let stream = match self.stream() {
            Some(stream) => stream,
            None if self.platform() == "Host" => std::ptr::null_mut(),
            // On another stream, copies would not wait for the program.
            None => return Err(Error::new(Code::Internal, "the plugin passed no stream to this call")),
        };
        Ok((Driver::for_platform(self.platform())?, stream))
    }

    /// Copies the arguments to the host, after the program's earlier work.
    ///
    /// # Errors
    /// Returns an error if the driver fails or is not installed, or memory for the copies is exhausted.
    pub fn copy_args(&self) -> Result<Vec<Vec<u8>>> {
        let (driver, stream) = self.driver()?;
        let mut copies = Vec::new();
        for DeviceArray { address, byte_len, .. } in self.args() {
            let mut copy = zeroed(*byte_len)?;
            if *byte_len > 0 {
                // SAFETY: both have this length. The copy lives until the stream has been waited for, unless the driver
                // fails, which then copies nothing more.
                let code =
                    unsafe { (driver.to_host)(copy.as_mut_ptr().cast(), *address as Address, *byte_len, stream) };
                driver.check("copying an argument to the host", code)?;
            }
            copies.push(copy);
        }
        // SAFETY: the stream is the program's.
        driver.check("waiting for the device", unsafe { (driver.synchronize)(stream) })?;
        Ok(copies)
    }

    /// Copies the results to the device: the bytes of each, in order.
    ///
    /// # Errors
    /// Returns an error if the driver fails or is not installed.
    ///
    /// # Panics
    /// The bytes of a result do not have the length of the result.
    pub fn write_results(&self, bytes: &[Vec<u8>]) -> Result<()> {
        let (driver, stream) = self.driver()?;
        assert_eq!(bytes.len(), self.results().len(), "the number of results");
        for (DeviceArray { address, byte_len, .. }, bytes) in self.results().iter().zip(bytes) {
            assert_eq!(bytes.len(), *byte_len, "the length of a result");
            if *byte_len > 0 {
                // SAFETY: both have this length, and the bytes live until the stream has been waited for.
                let code = unsafe { (driver.to_device)(*address as Address, bytes.as_ptr().cast(), *byte_len, stream) };
                driver.check("copying a result to the device", code)?;
            }
        }
        // SAFETY: the stream is the program's.
        driver.check("waiting for the device", unsafe { (driver.synchronize)(stream) })
    }
}

/// Allocates zeroed bytes for a host function.
///
/// # Errors
/// Returns an error if memory is exhausted.
pub fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|error| {
        Error::new(Code::ResourceExhausted, format!("no memory for {len} bytes of a host function: {error}"))
    })?;
    bytes.resize(len, 0);
    Ok(bytes)
}
