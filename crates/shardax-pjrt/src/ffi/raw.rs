//! The C structs of XLA's FFI.

use std::ffi::{c_char, c_int, c_void};

use super::*;

#[repr(C)]
pub(super) struct RawFfiExtension {
    pub(super) base: RawExtension,
    pub(super) type_register: *mut c_void,
    pub(super) user_data_add: *mut c_void,
    pub(super) register_handler: Option<unsafe extern "C" fn(*mut RawRegister) -> *mut RawError>,
}

#[repr(C)]
pub(super) struct RawRegister {
    pub(super) struct_size: usize,
    pub(super) name: *const c_char,
    pub(super) name_size: usize,
    pub(super) handler: *const c_void,
    pub(super) platform: *const c_char,
    pub(super) platform_size: usize,
    pub(super) traits: u32,
}

pub(super) type RawFfiFn = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// The API table of handlers; only the entries used here have names.
#[repr(C)]
pub(super) struct RawFfiApi {
    pub(super) struct_size: usize,
    pub(super) extension: *mut c_void,
    pub(super) version_size: usize,
    pub(super) version_extension: *mut c_void,
    pub(super) major: c_int,
    pub(super) minor: c_int,
    pub(super) internal: *mut c_void,
    pub(super) error_create: Option<RawFfiFn>,
    pub(super) error_message: Option<RawVoidFn>,
    pub(super) error_destroy: Option<RawVoidFn>,
    pub(super) handler_register: Option<RawFfiFn>,
    pub(super) stream_get: Option<RawFfiFn>,
    pub(super) between: [Option<RawFfiFn>; 11],
    pub(super) run_id_get: Option<RawFfiFn>,
    pub(super) device_ordinal_get: Option<RawFfiFn>,
}

#[repr(C)]
pub(super) struct RawFfiError {
    pub(super) struct_size: usize,
    pub(super) extension: *mut c_void,
    pub(super) error: *mut c_void,
}

#[repr(C)]
pub(super) struct RawFrame {
    pub(super) struct_size: usize,
    pub(super) extension: *const RawMetadataExtension,
    pub(super) api: *const RawFfiApi,
    pub(super) context: *mut c_void,
    pub(super) stage: c_int,
    pub(super) args: RawFfiList,
    pub(super) results: RawFfiList,
    pub(super) attrs: RawFfiAttrs,
    pub(super) future: *mut c_void,
}

#[repr(C)]
pub(super) struct RawMetadataExtension {
    pub(super) base: RawExtension,
    pub(super) metadata: *mut RawMetadata,
}

#[repr(C)]
pub(super) struct RawMetadata {
    pub(super) struct_size: usize,
    pub(super) version_size: usize,
    pub(super) version_extension: *mut c_void,
    pub(super) major: c_int,
    pub(super) minor: c_int,
    pub(super) traits: u32,
}

#[repr(C)]
pub(super) struct RawFfiList {
    pub(super) struct_size: usize,
    pub(super) extension: *mut c_void,
    pub(super) len: i64,
    pub(super) kinds: *const c_int,
    pub(super) items: *const *mut c_void,
}

#[repr(C)]
pub(super) struct RawFfiAttrs {
    pub(super) struct_size: usize,
    pub(super) extension: *mut c_void,
    pub(super) len: i64,
    pub(super) kinds: *const c_int,
    pub(super) names: *const *const RawSpan,
    pub(super) values: *const *mut c_void,
}

#[repr(C)]
pub(super) struct RawFfiBuffer {
    pub(super) struct_size: usize,
    pub(super) extension: *mut c_void,
    pub(super) dtype: c_int,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *const i64,
}

#[repr(C)]
pub(super) struct RawSpan {
    pub(super) data: *const c_char,
    pub(super) len: usize,
}

#[repr(C)]
pub(super) struct RawFfiArray {
    pub(super) dtype: c_int,
    pub(super) len: usize,
    pub(super) data: *const c_void,
}

#[repr(C)]
pub(super) struct RawFfiScalar {
    pub(super) dtype: c_int,
    pub(super) value: *const c_void,
}

// Sizes measured in xla-cpu-pjrt 0.0.1. A mistake in a definition above would otherwise crash.
const _: () = {
    assert!(size_of::<RawFrame>() == 176);
    assert!(std::mem::offset_of!(RawFrame, args) == 40);
    assert!(std::mem::offset_of!(RawFrame, results) == 80);
    assert!(std::mem::offset_of!(RawFrame, attrs) == 120);
    assert!(size_of::<RawFfiBuffer>() == 48);
    assert!(size_of::<RawRegister>() == 56);
    assert!(std::mem::offset_of!(RawFfiExtension, register_handler) == 40);
    assert!(std::mem::offset_of!(RawFfiApi, stream_get) == 80);
    assert!(std::mem::offset_of!(RawFfiApi, device_ordinal_get) == 184);
};

pub(super) unsafe fn make_error(frame: &RawFrame, message: String) -> *mut c_void {
    #[repr(C)]
    struct Args {
        struct_size: usize,
        extension: *mut c_void,
        message: *const c_char,
        code: c_int,
    }
    let message: Vec<u8> = message.into_bytes().into_iter().filter(|&b| b != 0).chain([0]).collect();
    let mut args = Args {
        struct_size: std::mem::offset_of!(Args, code) + size_of::<c_int>(),
        extension: std::ptr::null_mut(),
        message: message.as_ptr().cast(),
        code: Code::Internal as c_int,
    };
    // SAFETY: the table is live; this entry copies the message.
    unsafe {
        match frame.api.as_ref().and_then(|api| api.error_create) {
            Some(create) => create((&raw mut args).cast()),
            None => std::ptr::null_mut(),
        }
    }
}
