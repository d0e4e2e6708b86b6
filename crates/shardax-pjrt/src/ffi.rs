//! Functions of this program that compiled programs call (XLA's FFI), on host memory, or on a device's ([`device`]).
//!
//! A registered function is named in a program by `stablehlo.custom_call` with `api_version = 4`; the attributes are
//! its `backend_config`:
//!
//! ```mlir
//! %y = stablehlo.custom_call @scale(%x) {api_version = 4 : i32, backend_config = {by = 3.0 : f32}}
//!     : (tensor<4xf32>) -> tensor<4xf32>
//! ```
//!
//! It is called on a thread of the plugin, on several at once when several devices come to it, and may block.

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
use crate::element::{ElementType, ShapeText, dense_byte_size};
use crate::error::{Code, Error, Result};
use crate::launch_failure;
use crate::plugin::Plugin;
use crate::raw::{RawError, RawExtension, RawVoidFn};

pub mod device;
mod inside;
mod raw;
pub mod rendezvous;

pub(crate) use inside::check_outside;
use inside::guarded;
pub use inside::in_function;

/// How many functions one process can register.
pub const MAX_HANDLERS: usize = 64;

/// A function that is given host memory.
type OnHost = Box<dyn Fn(&mut CallFrame<'_>) -> std::result::Result<(), String> + Send + Sync>;

enum Handler {
    Host(OnHost),
    Device(device::OnDevice),
}

/// A registered function and its name.
type Registered = (String, Handler);

/// Makes `handler` callable as `name` from programs that run on host memory, for the life of the process.
///
/// After an `Err` or a panic of the handler its results are zeros, the program goes on to its end, so that no other
/// device waits for this one in vain, and waiting for or reading any result of the execution gives the error, as it
/// does for results of executions that used them. A program should therefore not loop until such a result is something
/// other than zero. A handler that returns `Ok` and never asked for the data of one of its results ([`Ret::data`]) has
/// forgotten it, and one that [wrote](Ret::write) less than all of it has, too: that is an error.
///
/// # Errors
/// The plugin has no FFI, the name is taken, or [`MAX_HANDLERS`] functions are registered already.
pub fn register<F>(plugin: &Plugin, name: &str, handler: F) -> Result<()>
where
    F: Fn(&mut CallFrame<'_>) -> std::result::Result<(), String> + Send + Sync + 'static,
{
    add(plugin, "Host", name, Handler::Host(Box::new(handler)))
}

/// Registers a function for programs of this platform, by XLA's name of it.
fn add(plugin: &Plugin, platform: &str, name: &str, handler: Handler) -> Result<()> {
    #[derive(Default)]
    struct All {
        slots: usize,
        names: HashSet<(PathBuf, String)>,
    }
    static REGISTERED: OnceLock<Mutex<All>> = OnceLock::new();
    const FFI_EXTENSION: i32 = 5;

    let extension = plugin
        .api()
        .extension(FFI_EXTENSION)
        .map(|extension| extension.cast::<RawFfiExtension>())
        // SAFETY: extensions live for ever and this kind has this layout, as far as its size says.
        .filter(|&extension| unsafe { (*extension).base.struct_size } >= size_of::<RawFfiExtension>())
        // SAFETY: as above.
        .and_then(|extension| unsafe { (*extension).register_handler });
    let Some(register) = extension else {
        return Err(Error::new(Code::Unimplemented, "this plugin has no FFI, so programs cannot call back"));
    };

    // Held throughout: the plugin probes the handler during registration.
    let mut all = REGISTERED.get_or_init(Default::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = (plugin.path().to_owned(), name.to_owned());
    if all.names.contains(&key) {
        return Err(Error::new(Code::AlreadyExists, format!("a function named {name:?} is registered already")));
    }
    let slot = all.slots;
    if slot >= MAX_HANDLERS {
        return Err(Error::new(
            Code::ResourceExhausted,
            format!("{MAX_HANDLERS} functions are registered, and there is room for no more"),
        ));
    }
    // A slot is used once, also when the registration fails: the plugin may have kept the address.
    all.slots += 1;
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
    // SAFETY: the texts live through the call, the trampoline for ever.
    let error = unsafe { register(&raw mut args) };
    if !error.is_null() {
        return Err(plugin.api().take_error(error, "PJRT_FFI_Register_Handler"));
    }
    all.names.insert(key);
    Ok(())
}

/// One call from a program: what it was given, where results go, the call's attributes.
pub struct CallFrame<'a> {
    args: SmallVec<[Arg<'a>; 8]>,
    results: SmallVec<[Ret<'a>; 4]>,
    frame: Frame<'a>,
}

/// What a call says beside its arrays.
#[derive(Clone, Copy)]
struct Frame<'a>(&'a RawFrame);

/// An argument: dense, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    /// The type of its elements.
    pub ty: ElementType,
    /// Its sizes.
    pub dims: &'a [i64],
    /// Its elements.
    pub data: &'a [u8],
}

/// A result to write: dense, row-major.
pub struct Ret<'a> {
    /// The type of its elements.
    pub ty: ElementType,
    /// Its sizes.
    pub dims: &'a [i64],
    data: *mut u8,
    len: usize,
    /// Whether it was asked for, and is initialized since.
    asked: bool,
    /// Bytes that were written without being asked for.
    written: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: what `&mut [u8]` may do, it may.
unsafe impl Send for Ret<'_> {}

impl Ret<'_> {
    /// Its length in bytes.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Writes a part of it, from this byte on, each part once. Unlike [`Ret::data`] it does not clear it first, which
    /// takes as long again.
    ///
    /// # Panics
    /// The part lies outside.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "a part outside of a result of {} bytes", self.len);
        // SAFETY: the memory is as long and belongs to this call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(at), bytes.len()) };
        self.written += bytes.len();
    }

    /// Where to write all of it: it holds any bytes at first, and who asked is taken to have written every one.
    pub fn overwritten(&mut self) -> &mut [u8] {
        self.asked = true;
        // SAFETY: the memory is as long and belongs to this call. It comes from XLA, which may have used it for
        // anything: bytes of any value, which a `u8` may have.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }

    /// Where to write it. Zeros at first, whatever was [written](Ret::write): XLA's memory holds what was there
    /// before.
    pub fn data(&mut self) -> &mut [u8] {
        // SAFETY: the memory is as long, belongs to this call, and is initialized before anybody sees it.
        unsafe {
            if !std::mem::replace(&mut self.asked, true) {
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
    /// A number: its type and its bytes.
    Scalar(ElementType, &'a [u8]),
    /// Numbers of one type: their bytes.
    Array(ElementType, &'a [u8]),
    /// A text.
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

    /// Number of the device that the program runs on; `None` when the plugin does not tell.
    pub fn device_ordinal(&self) -> Option<i32> {
        self.frame.device_ordinal()
    }

    /// Number of the launch, which no other launch of this process has meanwhile.
    pub fn run_id(&self) -> Option<i64> {
        self.frame.run_id()
    }

    /// Whether a function has failed already in this launch, or in one whose results it was given: what is computed
    /// with now are zeros.
    pub fn has_failed(&self) -> bool {
        self.run_id().is_some_and(launch_failure::has_failed)
    }
}

impl<'a> Frame<'a> {
    fn attrs(self) -> Vec<(&'a str, Attr<'a>)> {
        // SAFETY: the frame lives through the call, and with it its attributes.
        unsafe { read_attrs(&self.0.attrs) }
    }

    fn device_ordinal(self) -> Option<i32> {
        // SAFETY: this entry takes a context and writes an i32.
        unsafe { self.ask::<i32>(|api| api.device_ordinal_get) }
    }

    fn run_id(self) -> Option<i64> {
        // SAFETY: this entry takes a context and writes an i64.
        unsafe { self.ask::<i64>(|api| api.run_id_get) }
    }

    /// The device's stream, which there is none of on the host.
    fn stream(self) -> Option<usize> {
        // SAFETY: this entry takes a context and writes a pointer, which is as long as a usize.
        unsafe { self.ask::<usize>(|api| api.stream_get) }
    }

    /// # Safety
    /// The entry takes a context and writes one `T`.
    unsafe fn ask<T: Default>(self, entry: impl Fn(&RawFfiApi) -> Option<RawFfiFn>) -> Option<T> {
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
        // SAFETY: the API table is live and as long as it says; an error is ours to destroy.
        unsafe {
            let api = self.0.api.as_ref()?;
            if api.struct_size < size_of::<RawFfiApi>() {
                return None;
            }
            let error = entry(api)?((&raw mut args).cast());
            if error.is_null() {
                return Some(args.answer);
            }
            let mut gone =
                RawFfiError { struct_size: size_of::<RawFfiError>(), extension: std::ptr::null_mut(), error };
            api.error_destroy?((&raw mut gone).cast());
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

    /// The text, where it is one.
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

/// XLA passes a handler nothing by which to know itself, so each has a function of its own.
unsafe extern "C" fn trampoline<const SLOT: usize>(frame: *mut RawFrame) -> *mut c_void {
    // SAFETY: XLA passes a frame that lives through the call.
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
/// `frame` is a frame that XLA made, and what it points to lives through the call.
unsafe fn enter(slot: usize, frame: &RawFrame) -> *mut c_void {
    const EXECUTE: c_int = 3;
    // SAFETY: promised by the caller.
    unsafe {
        if answer_probe(frame) || frame.stage != EXECUTE {
            return std::ptr::null_mut();
        }
        let Some((name, handler)) = HANDLERS[slot].get() else {
            return make_error(frame, "the function is not there".into());
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
            // For want of a result to clear. It happens on every device alike, so that none waits for another.
            Err(message) => return make_error(frame, format!("function {name:?}: {message}")),
        };
        let message = match guarded(|| handler(&mut call)) {
            Ok(()) => match call.results.iter().position(|result| !result.asked && result.written < result.len) {
                None => return std::ptr::null_mut(),
                Some(i) => format!("returned Ok and has not written result {i} ({:?})", call.results[i]),
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

/// At registration XLA calls a handler once to learn which version of the FFI it was made for.
unsafe fn answer_probe(frame: &RawFrame) -> bool {
    const METADATA: c_int = 1;
    let mut next = frame.extension.cast_mut();
    while !next.is_null() {
        // SAFETY: XLA's chain of extensions ends in null; this kind has this layout.
        unsafe {
            if (*next).base.kind == METADATA {
                if let Some(metadata) = (*next).metadata.as_mut() {
                    // The layouts used here have not changed within major version 0, and XLA asks for its own minor.
                    metadata.major = 0;
                    metadata.minor = frame.api.as_ref().map_or(2, |api| api.minor);
                    metadata.traits = 0;
                }
                return true;
            }
            next = (*next).base.next.cast_mut().cast();
        }
    }
    false
}

/// An array of a call, wherever it lies: dense, row-major.
struct RawArray<'a> {
    ty: ElementType,
    dims: &'a [i64],
    /// Valid for as many bytes; not null.
    data: *mut u8,
    len: usize,
}

/// The arrays of a list. What orders calls and carries nothing is left out.
///
/// # Safety
/// The list is as long as it says, and its buffers live through the call.
unsafe fn arrays(list: &RawFfiList) -> impl Iterator<Item = std::result::Result<RawArray<'_>, String>> {
    const BUFFER: c_int = 1;
    const TOKEN: c_int = 17;
    let len = usize::try_from(list.len).unwrap_or(0);
    // SAFETY: promised by the caller.
    let (kinds, items) = unsafe { (slice(list.kinds, len), slice(list.items, len)) };
    // SAFETY: promised by the caller.
    let buffers = kinds.iter().zip(items).map(|(&kind, item)| (kind, unsafe { &*item.cast::<RawFfiBuffer>() }));
    buffers.filter(|(kind, buffer)| *kind != BUFFER || buffer.dtype != TOKEN).map(|(kind, buffer)| {
        let ty = ElementType::from_xla(buffer.dtype).filter(|ty| kind == BUFFER && !ty.is_sub_byte());
        let ty = ty.ok_or_else(|| format!("XLA type {} cannot be passed to a handler", buffer.dtype))?;
        // SAFETY: promised by the caller.
        let dims = unsafe { slice(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)) };
        let len = dense_byte_size(ty, dims).ok_or("an array has an impossible shape")?;
        // An address that is valid for no bytes at all.
        let data = if len == 0 { std::ptr::dangling_mut() } else { buffer.data.cast::<u8>() };
        Ok(RawArray { ty, dims, data, len })
    })
}

/// # Safety
/// What the frame points to lives through the call, and its arrays lie in the host's memory.
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
            call.results.push(Ret { ty, dims, data, len, asked: false, written: 0, memory: PhantomData });
        }
    }
    for (i, to) in written.iter().enumerate() {
        let overlaps = |other: &Range<usize>| other.start < to.end && to.start < other.end;
        if read.iter().any(overlaps) || written[..i].iter().any(overlaps) {
            return Err("a result shares its memory with another array; remove output_operand_aliases".into());
        }
    }
    Ok(call)
}

unsafe fn read_attrs<'a>(attrs: &RawFfiAttrs) -> Vec<(&'a str, Attr<'a>)> {
    let len = usize::try_from(attrs.len).unwrap_or(0);
    // SAFETY: promised by the caller: the three lists have this length and live through the call, and each attribute
    // has the layout of its kind.
    unsafe {
        let span = |span: &RawSpan| std::str::from_utf8(slice(span.data.cast::<u8>(), span.len)).unwrap_or("");
        let kinds = slice(attrs.kinds, len);
        let (names, values) = (slice(attrs.names, len), slice(attrs.values, len));
        let mut all = Vec::with_capacity(len);
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
                4 => Some(Attr::String(span(&*values[i].cast::<RawSpan>()))),
                _ => None,
            };
            if let Some(attr) = attr {
                all.push((span(&*names[i]), attr));
            }
        }
        all
    }
}
