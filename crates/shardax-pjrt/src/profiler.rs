//! The device profiler of a plugin. GPU and TPU plugins have one.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::api::text;
use crate::error::{Code, Error, Result};
use crate::exit;
use crate::plugin::Plugin;
use crate::raw::{RawExtension, RawVoidFn};

const PROFILER_EXTENSION: i32 = 1;

/// `tensorflow.ProfileOptions`, version 1: devices and programs, but not the host, which shardax records itself.
const OPTIONS: [u8; 6] = [0x18, 1, 0x28, 1, 0x38, 1];

/// A profile in progress, see [`Plugin::start_profiler`]. Dropping it discards the data.
pub struct Profiler {
    plugin: Plugin,
    table: NonNull<RawTable>,
    session: NonNull<c_void>,
}

// SAFETY: a session is not bound to a thread, and is used by one at a time, through `&mut` or by value.
unsafe impl Send for Profiler {}

impl Plugin {
    /// Starts recording the activity of devices, until [`Profiler::stop`]; `None` if the plugin has no profiler, such
    /// as the CPU plugin.
    ///
    /// # Errors
    /// Returns an error if the plugin cannot record, or is already recording.
    pub fn start_profiler(&self) -> Result<Option<Profiler>> {
        let Some(table) = table(self) else { return Ok(None) };
        let mut args = RawCreate {
            struct_size: size_of::<RawCreate>(),
            options: OPTIONS.as_ptr().cast(),
            options_size: OPTIONS.len(),
            session: std::ptr::null_mut(),
        };
        // SAFETY: the table is live and has this entry, which takes these arguments.
        unsafe { call(table, |table| table.create, &mut args)? };
        let session = NonNull::new(args.session)
            .ok_or_else(|| Error::new(Code::Internal, "the plugin's profiler returned no session"))?;
        // From here on, dropping `profiler` cleans up.
        let profiler = Profiler { plugin: self.clone(), table, session };
        profiler.ask(|table| table.start)?;
        Ok(Some(profiler))
    }
}

impl Profiler {
    /// Stops recording and returns the data: a serialized `XSpace` of tsl/profiler/protobuf/xplane.proto, which can be
    /// empty.
    ///
    /// # Errors
    /// Returns an error of the plugin.
    pub fn stop(self) -> Result<Vec<u8>> {
        self.ask(|table| table.stop)?;
        let mut args = RawCollect {
            struct_size: size_of::<RawCollect>(),
            session: self.session.as_ptr(),
            buffer: std::ptr::null_mut(),
            size: 0,
        };
        // SAFETY: the session is live. The plugin returns its own buffer with its length, which lives as long as the
        // session, or the length of the buffer that it needs.
        unsafe {
            call(self.table, |table| table.collect, &mut args)?;
            if args.size == 0 {
                return Ok(Vec::new());
            }
            if !args.buffer.is_null() {
                return Ok(messages(std::slice::from_raw_parts(args.buffer, args.size)).to_vec());
            }
            let mut bytes = vec![0u8; args.size];
            args.buffer = bytes.as_mut_ptr();
            call(self.table, |table| table.collect, &mut args)?;
            Ok(messages(&bytes[..args.size.min(bytes.len())]).to_vec())
        }
    }

    /// The plugin that is recording.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    fn ask(&self, entry: fn(&RawTable) -> Option<RawFn>) -> Result<()> {
        let mut args = RawSession { struct_size: size_of::<RawSession>(), session: self.session.as_ptr() };
        // SAFETY: the session is live, and these entries take no other inputs.
        unsafe { call(self.table, entry, &mut args) }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let _ = self.ask(|table| table.destroy);
    }
}

/// The prefix of `bytes` that consists of fields of a message: plugins append a zero byte.
fn messages(bytes: &[u8]) -> &[u8] {
    let mut complete = 0;
    while let Some(end) = field_end(bytes, complete) {
        complete = end;
    }
    &bytes[..complete]
}

/// The end of the field at `position`; `None` if it is not a complete field of an XSpace.
fn field_end(bytes: &[u8], mut position: usize) -> Option<usize> {
    let tag = read_varint(bytes, &mut position)?;
    // All fields are messages and strings, which have a length (wire type 2).
    if tag >> 3 == 0 || tag & 7 != 2 {
        return None;
    }
    let size = usize::try_from(read_varint(bytes, &mut position)?).ok()?;
    position.checked_add(size).filter(|&end| end <= bytes.len())
}

fn read_varint(bytes: &[u8], position: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*position)?;
        *position += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn table(plugin: &Plugin) -> Option<NonNull<RawTable>> {
    let extension = plugin.api().extension(PROFILER_EXTENSION)?.cast::<RawProfilerExtension>();
    // SAFETY: extensions are never freed, and this kind has this layout up to its stated size; so does its table.
    unsafe {
        if (*extension).base.struct_size < std::mem::offset_of!(RawProfilerExtension, context) {
            return None;
        }
        NonNull::new((*extension).table).filter(|table| table.as_ref().struct_size >= size_of::<RawTable>())
    }
}

/// # Safety
/// The table is live, and the entry takes `A`, whose input pointers are all valid.
unsafe fn call<A>(table: NonNull<RawTable>, entry: fn(&RawTable) -> Option<RawFn>, args: &mut A) -> Result<()> {
    exit::check_plugin()?;
    // SAFETY: promised by the caller; the plugin owns an error until it is destroyed.
    unsafe {
        let table = table.as_ref();
        let Some(function) = entry(table) else {
            return Err(Error::new(Code::Unimplemented, "the plugin's profiler lacks a function"));
        };
        let error = function(std::ptr::from_mut(args).cast());
        if error.is_null() {
            return Ok(());
        }
        let mut raw_message = RawMessage {
            struct_size: size_of::<RawMessage>(),
            private: std::ptr::null_mut(),
            error,
            message: std::ptr::null(),
            message_size: 0,
        };
        if let Some(message) = table.error_message {
            message((&raw mut raw_message).cast());
        }
        let message = format!("{} (in the plugin's profiler)", text(raw_message.message, raw_message.message_size));
        let mut code = RawCode {
            struct_size: size_of::<RawCode>(),
            private: std::ptr::null_mut(),
            error,
            code: Code::Unknown as c_int,
        };
        if let Some(get) = table.error_code {
            get((&raw mut code).cast());
        }
        let mut destroyed = RawError { struct_size: size_of::<RawError>(), private: std::ptr::null_mut(), error };
        if let Some(destroy) = table.error_destroy {
            destroy((&raw mut destroyed).cast());
        }
        Err(Error::new(Code::from_raw(code.code), message))
    }
}

/// Other entries take one struct and return null or an error.
type RawFn = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

#[repr(C)]
struct RawProfilerExtension {
    base: RawExtension,
    table: *mut RawTable,
    context: i64,
}

#[repr(C)]
struct RawTable {
    struct_size: usize,
    private: *mut c_void,
    error_destroy: Option<RawVoidFn>,
    error_message: Option<RawVoidFn>,
    error_code: Option<RawFn>,
    create: Option<RawFn>,
    destroy: Option<RawFn>,
    start: Option<RawFn>,
    stop: Option<RawFn>,
    collect: Option<RawFn>,
}

#[repr(C)]
struct RawCreate {
    struct_size: usize,
    options: *const c_char,
    options_size: usize,
    session: *mut c_void,
}

#[repr(C)]
struct RawSession {
    struct_size: usize,
    session: *mut c_void,
}

#[repr(C)]
struct RawCollect {
    struct_size: usize,
    session: *mut c_void,
    buffer: *mut u8,
    size: usize,
}

#[repr(C)]
struct RawError {
    struct_size: usize,
    private: *mut c_void,
    error: *mut c_void,
}

#[repr(C)]
struct RawMessage {
    struct_size: usize,
    private: *mut c_void,
    error: *mut c_void,
    message: *const c_char,
    message_size: usize,
}

#[repr(C)]
struct RawCode {
    struct_size: usize,
    private: *mut c_void,
    error: *mut c_void,
    code: c_int,
}

const _: () = {
    assert!(size_of::<RawTable>() == 80);
    assert!(size_of::<RawCreate>() == 32);
    assert!(size_of::<RawCollect>() == 32);
    assert!(std::mem::offset_of!(RawProfilerExtension, table) == 24);
};

#[cfg(test)]
mod tests {
    use super::messages;

    #[test]
    fn trailing_bytes_are_dropped() {
        let plane = [0x0a, 3, 0x12, 1, b'x'];
        let named = [0x22, 1, b'h'];
        let fields = [&plane[..], &named].concat();
        assert_eq!(messages(&[]), []);
        assert_eq!(messages(&[0]), []);
        assert_eq!(messages(&[&fields[..], &[0]].concat()), fields);
        // A truncated message.
        assert_eq!(messages(&[&fields[..], &plane[..4]].concat()), fields);
        assert_eq!(messages(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), []);
    }
}
