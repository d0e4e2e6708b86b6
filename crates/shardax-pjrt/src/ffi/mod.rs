//! Host functions that compiled programs call (XLA's FFI), with arrays in host memory or in a device's memory
//! ([`device`]).
//!
//! A program calls a registered function by name with `stablehlo.custom_call` and `api_version = 4`; the attributes are
//! its `backend_config`:
//!
//! ```mlir
//! %y = stablehlo.custom_call @scale(%x) {api_version = 4 : i32, backend_config = {by = 3.0 : f32}}
//!     : (tensor<4xf32>) -> tensor<4xf32>
//! ```
//!
//! The plugin calls it on its own threads, concurrently if several devices reach the call. It can block.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use raw::*;
use smallvec::SmallVec;

use crate::api::slice;
use crate::element::{ElementType, ShapeText, packed_byte_size};
use crate::error::{Code, Error, Result};
use crate::launch_failure;
use crate::plugin::Plugin;
use crate::raw::{RawError, RawExtension, RawVoidFn};

pub mod copies;
pub mod device;
mod inside;
mod raw;
pub mod rendezvous;

pub(crate) use inside::check_outside;
use inside::guarded;
pub use inside::in_function;

/// The number of functions that a process can register.
pub const MAX_HANDLERS: usize = 64;

/// A function of arrays in host memory.
type OnHost = Box<dyn Fn(&mut CallFrame<'_>) -> std::result::Result<(), String> + Send + Sync>;

enum Handler {
    Host(OnHost),
    Device(device::OnDevice),
}

/// The name of a function, and the function.
type Registered = (String, Handler);

/// Registers `handler` as `name` for programs on host memory, for the rest of the process.
///
/// If the handler returns `Err` or panics, its results are zeros and the program runs to its end, so that no other
/// device waits for this one. Waiting for or reading any result of that execution returns the error, and so do results
/// of executions that used them. A program should therefore not loop until such a result is nonzero. A handler that
/// returns `Ok` without asking for the data of a result ([`Ret::data`]), or after [writing](Ret::write) only part of
/// it, is an error.
///
/// # Errors
/// Returns an error if the plugin has no FFI, the name is already registered, or [`MAX_HANDLERS`] functions are
/// registered.
pub fn register<F>(plugin: &Plugin, name: &str, handler: F) -> Result<()>
where
    F: Fn(&mut CallFrame<'_>) -> std::result::Result<(), String> + Send + Sync + 'static,
{
    add(plugin, "Host", name, Handler::Host(Box::new(handler)))
}

/// Registers a function for programs of a platform, named as in XLA.
fn add(plugin: &Plugin, platform: &str, name: &str, handler: Handler) -> Result<()> {
    #[derive(Default)]
    struct Registry {
        slots: usize,
        names: HashSet<(PathBuf, String)>,
    }
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    const FFI_EXTENSION: i32 = 5;

    let extension = plugin
        .api()
        .extension(FFI_EXTENSION)
        .map(|extension| extension.cast::<RawFfiExtension>())
        // SAFETY: extensions are never freed, and this kind has this layout up to its stated size.
        .filter(|&extension| unsafe { (*extension).base.struct_size } >= size_of::<RawFfiExtension>())
        // SAFETY: as above.
        .and_then(|extension| unsafe { (*extension).register_handler });
    let Some(register) = extension else {
        return Err(Error::new(Code::Unimplemented, "this plugin has no FFI, so programs cannot call host functions"));
    };

    // The lock is held during registration, because the plugin probes the handler meanwhile.
    let mut registry = REGISTRY.get_or_init(Default::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = (plugin.path().to_owned(), name.to_owned());
    if registry.names.contains(&key) {
        return Err(Error::new(Code::AlreadyExists, format!("a function named {name:?} is already registered")));
    }
    let slot = registry.slots;
    if slot >= MAX_HANDLERS {
        return Err(Error::new(
            Code::ResourceExhausted,
            format!("{MAX_HANDLERS} functions are registered, which is the maximum"),
        ));
    }
    // A slot is used once, even if registration fails: the plugin may have stored the address.
    registry.slots += 1;
    let _ = HANDLERS[slot].set((name.to_owned(), handler));
    let mut args = RawRegister {
        struct_size: size_of::<RawRegister>(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        handler: TRAMPOLINES[slot] as *const c_void,
        platform: platform.as_ptr().cast(),
        platform_size: platform.len(),
        traits: 0,
    };
    // SAFETY: the texts outlive the call, and the trampoline is never unloaded.
    let error = unsafe { register(&raw mut args) };
    if !error.is_null() {
        return Err(plugin.api().take_error(error, "PJRT_FFI_Register_Handler"));
    }
    registry.names.insert(key);
    Ok(())
}

/// One call from a program: arguments, results and attributes.
pub struct CallFrame<'a> {
    args: SmallVec<[Arg<'a>; 8]>,
    results: SmallVec<[Ret<'a>; 4]>,
    frame: Frame<'a>,
}

/// The context of a call.
#[derive(Clone, Copy)]
struct Frame<'a>(&'a RawFrame);

/// An argument: a dense row-major array.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    /// The element type.
    pub ty: ElementType,
    /// The dimensions.
    pub dims: &'a [i64],
    /// The elements. Elements of fewer than 8 bits share bytes, the first one in the lowest bits.
    pub data: &'a [u8],
}

/// A result to write: a dense row-major array.
pub struct Ret<'a> {
    /// The element type.
    pub ty: ElementType,
    /// The dimensions.
    pub dims: &'a [i64],
    data: *mut u8,
    len: usize,
    /// The handler requested the data, which is initialized since then.
    requested: bool,
    /// Bytes written by [`Ret::write`].
    written: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: equivalent to `&mut [u8]`, which is `Send`.
unsafe impl Send for Ret<'_> {}

impl Ret<'_> {
    /// The length in bytes.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Writes `bytes` at offset `at`; every byte must be written once. Unlike [`Ret::data`] it does not zero the result
    /// first, which would take as long as writing it.
    ///
    /// # Panics
    /// The range is out of bounds.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at <= self.len && bytes.len() <= self.len - at,
            "a write out of bounds of a result of {} bytes",
            self.len
        );
        // SAFETY: the range is in bounds, and the memory belongs to this call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(at), bytes.len()) };
        self.written += bytes.len();
    }

    /// The memory of the result, to overwrite completely: its contents are arbitrary, and all of it counts as written.
    pub fn data_to_overwrite(&mut self) -> &mut [u8] {
        self.requested = true;
        // SAFETY: the memory has this length and belongs to this call. It comes from XLA, which may have used it
        // before: it contains arbitrary bytes, which are valid `u8`.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }

    /// The memory of the result, initialized to zeros regardless of what was [written](Ret::write). XLA's memory has
    /// arbitrary contents, and a handler that does not write everything must not expose them.
    pub fn data(&mut self) -> &mut [u8] {
        // SAFETY: the memory has this length, belongs to this call, and is initialized before it is returned.
        unsafe {
            if !std::mem::replace(&mut self.requested, true) {
                std::ptr::write_bytes(self.data, 0, self.len);
            }
            std::slice::from_raw_parts_mut(self.data, self.len)
        }
    }
}

impl fmt::Debug for Ret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ret({})", ShapeText(self.ty, self.dims))
    }
}

/// An attribute of the call.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr<'a> {
    /// A number: its type and bytes.
    Scalar(ElementType, &'a [u8]),
    /// Numbers of one type, as bytes.
    Array(ElementType, &'a [u8]),
    /// A string.
    String(&'a str),
    /// Attributes by name.
    Dictionary(Vec<(&'a str, Attr<'a>)>),
}

impl<'a> CallFrame<'a> {
    /// The arguments.
    pub fn args(&self) -> &[Arg<'a>] {
        &self.args
    }

    /// The results to write.
    pub fn rets(&mut self) -> &mut [Ret<'a>] {
        &mut self.results
    }

    /// Arguments and results at once.
    pub fn split(&mut self) -> (&[Arg<'a>], &mut [Ret<'a>]) {
        (&self.args, &mut self.results)
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

    /// The number of the launch, unique in this process while the launch runs.
    pub fn run_id(&self) -> Option<i64> {
        self.frame.run_id()
    }

    /// The [failure](failure_of_run) of this launch.
    pub fn failure(&self) -> Option<Error> {
        failure_of_run(self.run_id()?)
    }
}

/// The error of a host function that failed in the running launch with this [number](CallFrame::run_id), or in a launch
/// whose results it uses. After such an error, values can be computed from zeros, so you should not use them.
pub fn failure_of_run(run_id: i64) -> Option<Error> {
    launch_failure::failure(run_id)
}

impl<'a> Frame<'a> {
    fn attrs(self) -> Vec<(&'a str, Attr<'a>)> {
        // SAFETY: the frame and its attributes outlive the call.
        unsafe { read_attrs(&self.0.attrs) }
    }

    fn device_ordinal(self) -> Option<i32> {
        // SAFETY: this entry takes a context and writes an i32.
        unsafe { self.query::<i32>(|api| api.device_ordinal_get) }
    }

    fn run_id(self) -> Option<i64> {
        // SAFETY: this entry takes a context and writes an i64.
        unsafe { self.query::<i64>(|api| api.run_id_get) }
    }

    /// The device's stream; `None` on the host.
    fn stream(self) -> Option<usize> {
        // SAFETY: this entry takes a context and writes a pointer, which has the size of a usize.
        unsafe { self.query::<usize>(|api| api.stream_get) }
    }

    /// # Safety
    /// The entry takes a context and writes one `T`.
    unsafe fn query<T: Default>(self, entry: impl Fn(&RawFfiApi) -> Option<RawFfiFn>) -> Option<T> {
        #[repr(C)]
        struct Args<T> {
            struct_size: usize,
            extension: *mut c_void,
            context: *mut c_void,
            answer: T,
        }
        let mut args = Args {
            struct_size: std::mem::offset_of!(Args<T>, answer) + size_of::<T>(),
            extension: std::ptr::null_mut(),
            context: self.0.context,
            answer: T::default(),
        };
        // SAFETY: the API table is live and as long as it states; this function owns the error and destroys it.
        unsafe {
            let api = self.0.api.as_ref()?;
            if api.struct_size < size_of::<RawFfiApi>() {
                return None;
            }
            let error = entry(api)?((&raw mut args).cast());
            if error.is_null() {
                return Some(args.answer);
            }
            let mut destroyed =
                RawFfiError { struct_size: size_of::<RawFfiError>(), extension: std::ptr::null_mut(), error };
            api.error_destroy?((&raw mut destroyed).cast());
            None
        }
    }
}

impl fmt::Debug for CallFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFrame").field("args", &self.args.len()).field("rets", &self.results.len()).finish()
    }
}

impl Attr<'_> {
    /// An integer or boolean scalar.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Attr::Scalar(ty, bytes) => integer(ty, bytes),
            _ => None,
        }
    }

    /// An `f32` or `f64` scalar.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Attr::Scalar(ElementType::F32, bytes) => Some(f32::from_ne_bytes(bytes.try_into().ok()?).into()),
            Attr::Scalar(ElementType::F64, bytes) => Some(f64::from_ne_bytes(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// An array of integers or booleans.
    pub fn as_i64s(&self) -> Option<Vec<i64>> {
        match *self {
            Attr::Array(ty, bytes) => bytes.chunks_exact(ty.byte_size()).map(|b| integer(ty, b)).collect(),
            _ => None,
        }
    }

    /// The string of a string attribute.
    pub fn as_str(&self) -> Option<&str> {
        match *self {
            Attr::String(text) => Some(text),
            _ => None,
        }
    }
}

fn integer(ty: ElementType, bytes: &[u8]) -> Option<i64> {
    Some(match ty {
        ElementType::Pred | ElementType::U8 => (*bytes.first()?).into(),
        ElementType::S8 => i8::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::S16 => i16::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::U16 => u16::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::S32 => i32::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::U32 => u32::from_ne_bytes(bytes.try_into().ok()?).into(),
        ElementType::S64 => i64::from_ne_bytes(bytes.try_into().ok()?),
        ElementType::U64 => u64::from_ne_bytes(bytes.try_into().ok()?).try_into().ok()?,
        _ => return None,
    })
}

static HANDLERS: [OnceLock<Registered>; MAX_HANDLERS] = [const { OnceLock::new() }; MAX_HANDLERS];

type RawHandler = unsafe extern "C" fn(*mut RawFrame) -> *mut c_void;

/// The function that XLA calls for a slot. Each slot needs a separate function, because XLA passes a handler no data
/// that identifies it.
unsafe extern "C" fn trampoline<const SLOT: usize>(frame: *mut RawFrame) -> *mut c_void {
    // SAFETY: XLA passes a frame that outlives the call.
    unsafe { enter(SLOT, &*frame) }
}

macro_rules! trampolines {
    ($( $slot:literal )*) => { [$( trampoline::<$slot>, )*] };
}
#[rustfmt::skip]
static TRAMPOLINES: [RawHandler; MAX_HANDLERS] = trampolines![
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
];

/// # Safety
/// `frame` must come from XLA, and everything that it points to must outlive the call.
unsafe fn enter(slot: usize, frame: &RawFrame) -> *mut c_void {
    const EXECUTE: c_int = 3;
    // SAFETY: promised by the caller.
    unsafe {
        if answer_probe(frame) || frame.stage != EXECUTE {
            return std::ptr::null_mut();
        }
        let Some((name, handler)) = HANDLERS[slot].get() else {
            return make_error(frame, "the function is not registered".into());
        };
        let handler = match handler {
            Handler::Host(handler) => handler,
            Handler::Device(handler) => {
                return match device::call(handler, frame) {
                    Ok(()) => std::ptr::null_mut(),
                    Err(message) => make_error(frame, format!("function {name:?}: {message}")),
                };
            }
        };
        let mut call = match read_frame(frame) {
            Ok(call) => call,
            // There is no result to zero. This happens on every device alike, so no device waits for another.
            Err(message) => return make_error(frame, format!("function {name:?}: {message}")),
        };
        let message = match guarded(|| handler(&mut call)) {
            Ok(()) => match call.results.iter().position(|result| !result.requested && result.written < result.len) {
                None => return std::ptr::null_mut(),
                Some(i) => format!("returned Ok without writing result {i} ({:?})", call.results[i]),
            },
            Err(message) => message,
        };
        let message = format!("function {name:?}: {message}");
        if call.run_id().is_some_and(|id| launch_failure::fail(id, Error::new(Code::Internal, message.clone()))) {
            for result in call.rets() {
                result.data().fill(0);
            }
            return std::ptr::null_mut();
        }
        make_error(frame, message)
    }
}

/// Answers XLA's probe: at registration it calls a handler once to read the version of the FFI that it was built for.
unsafe fn answer_probe(frame: &RawFrame) -> bool {
    const METADATA: c_int = 1;
    let mut extension = frame.extension.cast_mut();
    while !extension.is_null() {
        // SAFETY: XLA's chain of extensions ends in null, and this kind has this layout.
        unsafe {
            if (*extension).base.kind == METADATA {
                if let Some(metadata) = (*extension).metadata.as_mut() {
                    // These layouts have not changed within major version 0, and XLA checks for its own minor version.
                    metadata.major = 0;
                    metadata.minor = frame.api.as_ref().map_or(2, |api| api.minor);
                    metadata.traits = 0;
                }
                return true;
            }
            extension = (*extension).base.next.cast_mut().cast();
        }
    }
    false
}

/// A dense row-major array of a call, in any memory.
struct RawArray<'a> {
    ty: ElementType,
    dims: &'a [i64],
    /// Not null; valid for the size of the array.
    data: *mut u8,
    len: usize,
}

/// The arrays of a list. Tokens, which order calls and carry no data, are skipped.
///
/// # Safety
/// The list has its stated length, and its buffers outlive the call.
unsafe fn arrays(list: &RawFfiList) -> impl Iterator<Item = std::result::Result<RawArray<'_>, String>> {
    const BUFFER: c_int = 1;
    const TOKEN: c_int = 17;
    let len = usize::try_from(list.len).unwrap_or(0);
    // SAFETY: promised by the caller.
    let (kinds, items) = unsafe { (slice(list.kinds, len), slice(list.items, len)) };
    // SAFETY: promised by the caller.
    let buffers = kinds.iter().zip(items).map(|(&kind, item)| (kind, unsafe { &*item.cast::<RawFfiBuffer>() }));
    buffers.filter(|(kind, buffer)| *kind != BUFFER || buffer.dtype != TOKEN).map(|(kind, buffer)| {
        let ty = ElementType::from_xla(buffer.dtype).filter(|_| kind == BUFFER);
        let ty = ty.ok_or_else(|| format!("XLA type {} cannot be passed to a handler", buffer.dtype))?;
        // SAFETY: promised by the caller.
        let dims = unsafe { slice(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)) };
        let len = packed_byte_size(ty, dims).ok_or("an array has an impossible shape")?;
        // Any non-null address is valid for zero bytes. This one is aligned for every element type, because handlers view the
        // bytes as elements.
        let data = if len == 0 { std::ptr::dangling_mut::<u128>().cast() } else { buffer.data.cast::<u8>() };
        Ok(RawArray { ty, dims, data, len })
    })
}

/// # Safety
/// Everything that the frame points to outlives the call, and its arrays are in host memory.
unsafe fn read_frame(frame: &RawFrame) -> std::result::Result<CallFrame<'_>, String> {
    let mut call = CallFrame { args: SmallVec::new(), results: SmallVec::new(), frame: Frame(frame) };
    let mut read: SmallVec<[Range<usize>; 8]> = SmallVec::new();
    let mut written: SmallVec<[Range<usize>; 4]> = SmallVec::new();
    // SAFETY: promised by the caller.
    unsafe {
        for array in arrays(&frame.args) {
            let RawArray { ty, dims, data, len } = array?;
            read.push(data as usize..data as usize + len);
            call.args.push(Arg { ty, dims, data: std::slice::from_raw_parts(data, len) });
        }
        for array in arrays(&frame.results) {
            let RawArray { ty, dims, data, len } = array?;
            written.push(data as usize..data as usize + len);
            call.results.push(Ret { ty, dims, data, len, requested: false, written: 0, memory: PhantomData });
        }
    }
    for (i, result) in written.iter().enumerate() {
        if read.iter().chain(&written[..i]).any(|other| other.start < result.end && result.start < other.end) {
            return Err("a result shares its memory with another array; remove output_operand_aliases".into());
        }
    }
    Ok(call)
}

unsafe fn read_attrs<'a>(attrs: &RawFfiAttrs) -> Vec<(&'a str, Attr<'a>)> {
    let len = usize::try_from(attrs.len).unwrap_or(0);
    // SAFETY: promised by the caller: the three lists have this length and outlive the call, and each attribute has the
    // layout of its kind.
    unsafe {
        let kinds = slice(attrs.kinds, len);
        let (names, values) = (slice(attrs.names, len), slice(attrs.values, len));
        let mut decoded = Vec::with_capacity(len);
        for i in 0..len {
            let attr = match kinds[i] {
                1 => {
                    let array = &*values[i].cast::<RawFfiArray>();
                    ElementType::from_xla(array.dtype)
                        .map(|ty| Attr::Array(ty, slice(array.data.cast(), array.len * ty.byte_size())))
                }
                2 => Some(Attr::Dictionary(read_attrs(&*values[i].cast::<RawFfiAttrs>()))),
                3 => {
                    let scalar = &*values[i].cast::<RawFfiScalar>();
                    ElementType::from_xla(scalar.dtype)
                        .map(|ty| Attr::Scalar(ty, slice(scalar.value.cast(), ty.byte_size())))
                }
                4 => Some(Attr::String(read_text(&*values[i].cast::<RawSpan>()))),
                _ => None,
            };
            if let Some(attr) = attr {
                decoded.push((read_text(&*names[i]), attr));
            }
        }
        decoded
    }
}

/// A text of an attribute; empty if it is not UTF-8.
///
/// # Safety
/// The span's bytes are valid for as long as the result is used.
unsafe fn read_text<'a>(span: &RawSpan) -> &'a str {
    // SAFETY: promised by the caller.
    std::str::from_utf8(unsafe { slice(span.data.cast::<u8>(), span.len) }).unwrap_or("")
}
