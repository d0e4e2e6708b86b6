//! The key-value store through which the clients of a plugin in several processes find each other.
//!
//! Plugins for several processes (CUDA, TPU) receive three functions when a client is created, and call them on any of
//! their threads until the process ends: to connect, and later to distribute NCCL ids.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{slice, text};
use crate::error::{Code, Error, Result};
use crate::event::guard_callback;
use crate::raw::{ClientCreate, RawError, RawExtension};

/// A store that the processes of a job share.
pub trait KeyValueStore: Send + Sync {
    /// Waits until the key has a value, and returns it.
    ///
    /// # Errors
    /// Returns [`Code::DeadlineExceeded`] if it does not arrive in time.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Returns the value of a key without waiting, or `None` if there is none.
    ///
    /// # Errors
    /// Returns an error of the store.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Stores a value for all processes.
    ///
    /// # Errors
    /// Returns an error of the store, such as [`Code::AlreadyExists`].
    fn put(&self, key: &str, value: &[u8]) -> Result<()>;
}

/// Passes the store to a client that is about to be created. The store is never freed, because plugins do not report
/// when their threads stop using it.
pub(crate) fn pass(store: Arc<dyn KeyValueStore>, args: &mut ClientCreate) {
    let store: *mut c_void = Box::into_raw(Box::new(store)).cast();
    args.kv_get_callback = get as *mut c_void;
    args.kv_put_callback = put as *mut c_void;
    args.kv_try_get_callback = try_get as *mut c_void;
    args.kv_get_user_arg = store;
    args.kv_put_user_arg = store;
    args.kv_try_get_user_arg = store;
}

/// Creates an error of the plugin.
type MakeError = unsafe extern "C" fn(c_int, *const c_char, usize) -> *mut RawError;
type Delete = unsafe extern "C" fn(*mut c_char);

#[repr(C)]
struct Get {
    struct_size: usize,
    extension: *mut RawExtension,
    key: *const c_char,
    key_size: usize,
    timeout_in_ms: c_int,
    make_error: *const MakeError,
    store: *mut c_void,
    value: *mut c_char,
    value_size: usize,
    delete: Option<Delete>,
}

#[repr(C)]
struct TryGet {
    struct_size: usize,
    extension: *mut RawExtension,
    key: *const c_char,
    key_size: usize,
    make_error: *const MakeError,
    store: *mut c_void,
    value: *mut c_char,
    value_size: usize,
    delete: Option<Delete>,
}

#[repr(C)]
struct Put {
    struct_size: usize,
    extension: *mut RawExtension,
    key: *const c_char,
    key_size: usize,
    value: *const c_char,
    value_size: usize,
    make_error: *const MakeError,
    store: *mut c_void,
}

// Sizes in the C API, version 0.81.
const _: () = assert!(size_of::<Get>() == 80 && size_of::<TryGet>() == 72 && size_of::<Put>() == 64);

unsafe extern "C" fn get(args: *mut Get) -> *mut RawError {
    // SAFETY: the plugin passes a struct of this layout with the pointer from `pass`.
    unsafe {
        let args = &mut *args;
        // A negative timeout means no limit.
        let timeout = Duration::from_millis(u64::try_from(args.timeout_in_ms).unwrap_or(u64::from(u32::MAX)));
        let key = text(args.key, args.key_size);
        let value = answer(args.make_error, || store(args.store).get(&key, timeout));
        value.map_or_else(
            |error| error,
            |value| return_value(&value, &mut args.value, &mut args.value_size, &mut args.delete),
        )
    }
}

unsafe extern "C" fn try_get(args: *mut TryGet) -> *mut RawError {
    // SAFETY: as above.
    unsafe {
        let args = &mut *args;
        let key = text(args.key, args.key_size);
        let value = answer(args.make_error, || {
            store(args.store)
                .try_get(&key)?
                .ok_or_else(|| Error::new(Code::NotFound, format!("there is no value for the key {key:?}")))
        });
        value.map_or_else(
            |error| error,
            |value| return_value(&value, &mut args.value, &mut args.value_size, &mut args.delete),
        )
    }
}

unsafe extern "C" fn put(args: *mut Put) -> *mut RawError {
    // SAFETY: as above.
    unsafe {
        let args = &mut *args;
        let (key, value) = (text(args.key, args.key_size), slice(args.value.cast::<u8>(), args.value_size));
        answer(args.make_error, || store(args.store).put(&key, value))
            .map_or_else(|error| error, |()| std::ptr::null_mut())
    }
}

/// # Safety
/// `store` is from [`pass`].
unsafe fn store<'a>(store: *mut c_void) -> &'a Arc<dyn KeyValueStore> {
    // SAFETY: promised by the caller, and never freed.
    unsafe { &*store.cast::<Arc<dyn KeyValueStore>>() }
}

/// Converts the result of the store, and its errors to errors of the plugin.
///
/// # Safety
/// `make_error` points to the plugin's function.
unsafe fn answer<T>(
    make_error: *const MakeError,
    ask: impl FnOnce() -> Result<T>,
) -> std::result::Result<T, *mut RawError> {
    let result = guard_callback(ask);
    result.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the key-value store panicked"))).map_err(|error| {
        // SAFETY: promised by the caller; the function copies the message.
        unsafe { (*make_error)(error.code as c_int, error.message.as_ptr().cast(), error.message.len()) }
    })
}

/// The size of a header with the length of a value: the deleter does not receive the length.
const HEAD: usize = size_of::<usize>();

fn layout(len: usize) -> Layout {
    // A value is never as long as `isize::MAX`.
    Layout::from_size_align(HEAD + len, align_of::<usize>()).unwrap_or(Layout::new::<usize>())
}

fn return_value(value: &[u8], to: &mut *mut c_char, size: &mut usize, deleter: &mut Option<Delete>) -> *mut RawError {
    // SAFETY: the layout is not empty, and has space for the length and the value.
    unsafe {
        let memory = alloc(layout(value.len()));
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout(value.len()));
        }
        memory.cast::<usize>().write(value.len());
        std::ptr::copy_nonoverlapping(value.as_ptr(), memory.add(HEAD), value.len());
        (*to, *size, *deleter) = (memory.add(HEAD).cast(), value.len(), Some(delete as Delete));
    }
    std::ptr::null_mut()
}

unsafe extern "C" fn delete(value: *mut c_char) {
    // SAFETY: the plugin passes a pointer from `give`, once.
    unsafe {
        let memory = value.cast::<u8>().sub(HEAD);
        dealloc(memory, layout(memory.cast::<usize>().read()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Map(Mutex<HashMap<String, Vec<u8>>>);

    impl KeyValueStore for Map {
        fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
            self.try_get(key)?
                .ok_or_else(|| Error::new(Code::DeadlineExceeded, format!("{key} was not set within {timeout:?}")))
        }
        fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
            assert_ne!(key, "panic");
            Ok(self.0.lock().unwrap().get(key).cloned())
        }
        fn put(&self, key: &str, value: &[u8]) -> Result<()> {
            match self.0.lock().unwrap().insert(key.to_owned(), value.to_vec()) {
                None => Ok(()),
                Some(_) => Err(Error::new(Code::AlreadyExists, "it is there already")),
            }
        }
    }

    /// An error of a fake plugin.
    struct Fake(c_int, String);

    unsafe extern "C" fn make_error(code: c_int, message: *const c_char, size: usize) -> *mut RawError {
        // SAFETY: called with a text of this length.
        let message = unsafe { text(message, size) }.into_owned();
        Box::into_raw(Box::new(Fake(code, message))).cast()
    }

    fn error_of(error: *mut RawError) -> Option<(c_int, String)> {
        // SAFETY: null, or from `make_error`.
        (!error.is_null()).then(|| unsafe { *Box::from_raw(error.cast::<Fake>()) }).map(|fake| (fake.0, fake.1))
    }

    static MAKE: MakeError = make_error;

    /// A fake plugin, which calls the functions that it received.
    struct Plugin(ClientCreate);

    impl Plugin {
        fn put(&self, key: &str, value: &[u8]) -> Option<(c_int, String)> {
            let mut args = Put {
                struct_size: size_of::<Put>(),
                extension: std::ptr::null_mut(),
                key: key.as_ptr().cast(),
                key_size: key.len(),
                value: value.as_ptr().cast(),
                value_size: value.len(),
                make_error: &raw const MAKE,
                store: self.0.kv_put_user_arg,
            };
            // SAFETY: called as a plugin does.
            error_of(unsafe { put(&mut args) })
        }

        fn get(&self, key: &str) -> std::result::Result<Vec<u8>, (c_int, String)> {
            let mut args = Get {
                struct_size: size_of::<Get>(),
                extension: std::ptr::null_mut(),
                key: key.as_ptr().cast(),
                key_size: key.len(),
                timeout_in_ms: 20,
                make_error: &raw const MAKE,
                store: self.0.kv_get_user_arg,
                value: std::ptr::null_mut(),
                value_size: 0,
                delete: None,
            };
            // SAFETY: called as a plugin does, which deletes the value.
            unsafe {
                if let Some(error) = error_of(get(&mut args)) {
                    return Err(error);
                }
                let value = slice(args.value.cast::<u8>(), args.value_size).to_vec();
                args.delete.unwrap()(args.value);
                Ok(value)
            }
        }

        fn try_get(&self, key: &str) -> std::result::Result<Vec<u8>, (c_int, String)> {
            let mut args = TryGet {
                struct_size: size_of::<TryGet>(),
                extension: std::ptr::null_mut(),
                key: key.as_ptr().cast(),
                key_size: key.len(),
                make_error: &raw const MAKE,
                store: self.0.kv_try_get_user_arg,
                value: std::ptr::null_mut(),
                value_size: 0,
                delete: None,
            };
            // SAFETY: as above.
            unsafe {
                if let Some(error) = error_of(try_get(&mut args)) {
                    return Err(error);
                }
                let value = slice(args.value.cast::<u8>(), args.value_size).to_vec();
                args.delete.unwrap()(args.value);
                Ok(value)
            }
        }
    }

    #[test]
    fn a_plugin_reads_and_writes_the_store() {
        let mut create = ClientCreate::default();
        pass(Arc::new(Map::default()), &mut create);
        assert!(!create.kv_get_callback.is_null() && !create.kv_try_get_callback.is_null());
        let plugin = Plugin(create);
        let value: Vec<u8> = (0..=255).collect();
        assert_eq!(plugin.put("gpu/0", &value), None);
        assert_eq!((plugin.get("gpu/0"), plugin.try_get("gpu/0")), (Ok(value.clone()), Ok(value)));
        assert_eq!(plugin.put("empty", &[]), None);
        assert_eq!(plugin.get("empty"), Ok(vec![]));
        // Plugins check for these codes.
        assert_eq!(plugin.get("gpu/1"), Err((4, "gpu/1 was not set within 20ms".into())));
        assert_eq!(plugin.try_get("gpu/1"), Err((5, "there is no value for the key \"gpu/1\"".into())));
        assert_eq!(plugin.put("gpu/0", &[1]), Some((6, "it is there already".into())));
        assert_eq!(plugin.get("panic"), Err((13, "the key-value store panicked".into())));
        // SAFETY: the fake plugin no longer uses it.
        drop(unsafe { Box::from_raw(plugin.0.kv_get_user_arg.cast::<Arc<dyn KeyValueStore>>()) });
    }
}
