//! Calls of C functions: fills in the struct's size, checks that the function exists, converts the error.

use std::ffi::{c_char, c_void};
use std::mem::size_of;

use crate::error::{Code, Error, Result};
use crate::exit;
use crate::raw::*;

/// The supported major version of the C API.
pub(crate) const MAJOR: i32 = 0;

/// A plugin's function table. It is copied, so that entries that an older plugin lacks are `None`.
pub(crate) struct Api {
    table: [Option<RawFn>; TABLE_LEN],
    pub(crate) extensions: *const RawExtension,
    pub(crate) version: (i32, i32),
}

// SAFETY: the table is immutable after construction and PJRT functions may be called from any thread.
unsafe impl Send for Api {}
unsafe impl Sync for Api {}

impl Api {
    /// Reads the table that `GetPjrtApi` returned.
    ///
    /// # Safety
    /// `header` points to a `PJRT_Api` that is never freed and is as large as its first field says.
    pub(crate) unsafe fn read(header: *const RawApiHeader) -> Result<Api> {
        // SAFETY: promised by the caller.
        let head = unsafe { &*header };
        if head.major != MAJOR {
            return Err(Error::failed_precondition(format!(
                "it has PJRT C API {}.{}, but this program needs major version {MAJOR}",
                head.major, head.minor
            )));
        }
        if head.struct_size < size_of::<RawApiHeader>() {
            return Err(Error::failed_precondition("its PJRT_Api is shorter than its own header"));
        }
        let present = (head.struct_size - size_of::<RawApiHeader>()) / size_of::<RawFn>();
        let mut table = [None; TABLE_LEN];
        // SAFETY: the table directly follows the header and has at least `present` entries; a null entry reads as None.
        unsafe {
            let first_fn = header.add(1).cast::<Option<RawFn>>();
            std::ptr::copy_nonoverlapping(first_fn, table.as_mut_ptr(), present.min(TABLE_LEN));
        }
        Ok(Api { table, extensions: head.extension_start, version: (head.major, head.minor) })
    }

    /// Calls the function whose argument struct is `args`.
    ///
    /// # Safety
    /// Every input pointer in `args` is null or valid as the PJRT C API requires for that function.
    #[inline]
    pub(crate) unsafe fn call<C: Call>(&self, args: &mut C) -> Result<()> {
        exit::check_plugin()?;
        let Some(function) = self.table[C::INDEX] else {
            return Err(self.missing(C::NAME));
        };
        let args = std::ptr::from_mut(args);
        // SAFETY: `Call` promises that the struct starts with its size and is what the function takes.
        let error = unsafe {
            args.cast::<usize>().write(size_of::<C>());
            function(args.cast::<c_void>())
        };
        if error.is_null() { Ok(()) } else { Err(self.take_error(error, C::NAME)) }
    }

    #[cold]
    fn missing(&self, name: &str) -> Error {
        let (major, minor) = self.version;
        Error::new(Code::Unimplemented, format!("this plugin does not have {name} (its PJRT C API is {major}.{minor})"))
    }

    /// Converts an error object that this crate owns into an [`Error`], and frees it.
    #[cold]
    pub(crate) fn take_error(&self, error: *mut RawError, context: &str) -> Error {
        let mut code = ErrorGetCode { error, ..Default::default() };
        // SAFETY: `error` is a live error object.
        let code = match unsafe { self.call(&mut code) } {
            Ok(()) => Code::from_raw(code.code),
            Err(_) => Code::Unknown,
        };
        let mut message = ErrorMessage { struct_size: size_of::<ErrorMessage>(), error, ..Default::default() };
        // SAFETY: these two entries return nothing; the error object lives until it is destroyed below.
        let text = unsafe {
            if let Some(function) = self.void(ERROR_MESSAGE) {
                function((&raw mut message).cast());
            }
            text(message.message, message.message_size).into_owned()
        };
        let mut destroy = ErrorDestroy { struct_size: size_of::<ErrorDestroy>(), error, ..Default::default() };
        // SAFETY: the object is ours and is not used again.
        unsafe {
            if let Some(function) = self.void(ERROR_DESTROY) {
                function((&raw mut destroy).cast());
            }
        }
        Error::new(code, format!("{text} (in {context})"))
    }

    fn void(&self, index: usize) -> Option<RawVoidFn> {
        // SAFETY: only used for the two entries whose C type returns nothing.
        self.table[index].map(|f| unsafe { std::mem::transmute::<RawFn, RawVoidFn>(f) })
    }

    /// The extension of this kind, if the plugin has it.
    pub(crate) fn extension(&self, kind: i32) -> Option<*const RawExtension> {
        let mut extension = self.extensions;
        while !extension.is_null() {
            // SAFETY: the chain belongs to the plugin, is never changed and ends in null.
            let link = unsafe { &*extension };
            if link.kind == kind {
                return Some(extension);
            }
            extension = link.next;
        }
        None
    }
}

/// Text that belongs to the plugin.
///
/// # Safety
/// `data` is null or points to `size` readable bytes for as long as the result is used.
pub(crate) unsafe fn text<'a>(data: *const c_char, size: usize) -> std::borrow::Cow<'a, str> {
    // SAFETY: promised by the caller.
    String::from_utf8_lossy(unsafe { slice(data.cast::<u8>(), size) })
}

/// A slice that belongs to the plugin; empty if the pointer is null.
///
/// # Safety
/// `data` is null or points to `len` readable values for as long as the result is used.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(data, len) }
}
