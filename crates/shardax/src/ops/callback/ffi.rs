//! Functions of other languages by name (JAX's `jax.ffi`): you register a function once, and programs call it with
//! attributes.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::ffi::{ffi_call, register_ffi_target};
//! register_ffi_target("rms_norm", |args, results, attributes| {
//!     let eps = attributes.float("eps")?;
//!     let x: Vec<f32> = args[0].to_vec()?;
//!     let mean = x.iter().map(|v| f64::from(v * v)).sum::<f64>() / x.len() as f64;
//!     results[0].write(x.iter().map(|v| (f64::from(*v) / (mean + eps).sqrt()) as f32))
//! })?;
//! let norm = |x: Array| ffi_call("rms_norm", shape_dtype_struct(x.shape(), x.dtype())).attribute("eps", 1e-5).call(x);
//! let y = jit(norm).call(array([3.0f32, 4.0]))?;
//! assert!(allclose(y, array([0.8485f32, 1.1314]), 1e-4, 0.0)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::function::HostFunction;
use super::primitive::Kind;
use super::views::{DeviceCall, HostArg, HostResult};
use super::{HostCallback, IntoOperands, VmapMethod};
use crate::choice::{Choice, IntoChoice};
use crate::core::tree::Tree;
use crate::error::{AtCaller, Error, Result, err};
use crate::shape::interned;
use crate::source;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Attribute {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Integers.
    Ints(Vec<i64>),
    /// Floating point numbers.
    Floats(Vec<f64>),
    /// Attributes by name.
    Dictionary(Attributes),
}

macro_rules! attributes_from {
    ($($t:ty => $kind:ident |$v:ident| $value:expr;)*) => {$(
        impl From<$t> for Attribute {
            fn from($v: $t) -> Attribute {
                Attribute::$kind($value)
            }
        }
    )*};
}

attributes_from! {
    bool => Bool |v| v;
    i32 => Int |v| v.into();
    i64 => Int |v| v;
    f32 => Float |v| v.into();
    f64 => Float |v| v;
    &str => Text |v| v.to_owned();
    String => Text |v| v;
    Vec<i64> => Ints |v| v;
    Vec<f64> => Floats |v| v;
    Attributes => Dictionary |v| v;
}

/// The attributes of a call, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(BTreeMap<String, Attribute>);

impl Attributes {
    /// Creates an empty dictionary, to which [`with`](Self::with) adds attributes.
    pub fn new() -> Attributes {
        Attributes::default()
    }

    /// Adds an attribute, or replaces the attribute of the same name.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Attribute>) -> Attributes {
        self.0.insert(name.into(), value.into());
        self
    }

    /// Returns the attribute of this name.
    pub fn get(&self, name: &str) -> Option<&Attribute> {
        self.0.get(name)
    }

    /// Iterates over all attributes, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attribute)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the truth value of this name.
    ///
    /// # Errors
    /// Returns an error if the call has no attribute of this name and type.
    pub fn bool(&self, name: &str) -> Result<bool> {
        self.read(name, "a truth value", |value| if let Attribute::Bool(v) = value { Some(*v) } else { None })
    }

    /// Returns the integer of this name.
    ///
    /// # Errors
    /// Returns an error if the call has no attribute of this name and type.
    pub fn int(&self, name: &str) -> Result<i64> {
        self.read(name, "an integer", |value| if let Attribute::Int(v) = value { Some(*v) } else { None })
    }

    /// Returns the floating point number of this name.
    ///
    /// # Errors
    /// Returns an error if the call has no attribute of this name and type.
    pub fn float(&self, name: &str) -> Result<f64> {
        self.read(
            name,
            "a floating point number",
            |value| if let Attribute::Float(v) = value { Some(*v) } else { None },
        )
    }

    /// Returns the text of this name.
    ///
    /// # Errors
    /// Returns an error if the call has no attribute of this name and type.
    pub fn text(&self, name: &str) -> Result<&str> {
        self.read(name, "text", |value| if let Attribute::Text(v) = value { Some(v.as_str()) } else { None })
    }

    /// Returns the integers of this name.
    ///
    /// # Errors
    /// Returns an error if the call has no attribute of this name and type.
    pub fn ints(&self, name: &str) -> Result<&[i64]> {
        self.read(name, "integers", |value| if let Attribute::Ints(v) = value { Some(v.as_slice()) } else { None })
    }

    /// Returns the floating point numbers of this name.
    ///
    /// # Errors
    /// Returns an error if the call has no attribute of this name and type.
    pub fn floats(&self, name: &str) -> Result<&[f64]> {
        self.read(name, "floating point numbers", |value| {
            if let Attribute::Floats(v) = value { Some(v.as_slice()) } else { None }
        })
    }

    fn read<'a, T>(&'a self, name: &str, what: &str, found: impl FnOnce(&'a Attribute) -> Option<T>) -> Result<T> {
        let value = self.get(name);
        value.and_then(found).ok_or_else(|| {
            let attributes: Vec<String> = self.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
            let attributes = if attributes.is_empty() { "none".to_owned() } else { attributes.join(", ") };
            err!(Value, "the attribute {name:?} of an FFI call must be {what}; its attributes are {attributes}")
                .help(format!("set it where the function is called: `.attribute({name:?}, ..)`"))
        })
    }
}

type OnHost = dyn Fn(&[HostArg<'_>], &mut [HostResult<'_>], &Attributes) -> Result<()> + Send + Sync;
type OnDevice = dyn Fn(&DeviceCall, &Attributes) -> Result<()> + Send + Sync;

/// A registered function, with an implementation for each platform.
#[derive(Default)]
struct Target {
    host: Option<Arc<OnHost>>,
    cuda: Option<Arc<OnDevice>>,
    /// The functions of calls with these attributes, kept so that equal calls produce equal programs.
    calls: Vec<(Attributes, Weak<HostFunction>, Option<Arc<HostFunction>>)>,
}

fn targets() -> MutexGuard<'static, HashMap<String, Target>> {
    // Registered for the rest of the process, because compiled programs refer to the functions.
    static TARGETS: OnceLock<Mutex<HashMap<String, Target>>> = OnceLock::new();
    TARGETS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers `f` under a name for programs on CPU, for the rest of the process (JAX's function of this name). It
/// receives the arguments and results of a [`pure_callback`](crate::pure_callback) function, and the attributes of the
/// call. In the same way, it runs on XLA's threads, reads its arguments in place and must write every result entirely,
/// and its error or panic becomes the error of the call. To call a function of a C or C++ library, call it from `f`
/// with the addresses of [`HostArg::bytes`].
///
/// # Errors
/// Returns an error if the name is empty or already registered.
#[track_caller]
pub fn register_ffi_target<F>(name: &str, f: F) -> Result<()>
where
    F: Fn(&[HostArg<'_>], &mut [HostResult<'_>], &Attributes) -> Result<()> + Send + Sync + 'static,
{
    register(name, "cpu", |target| target.host.replace(Arc::new(f)).is_none()).at_caller()
}

/// Registers the implementation of a name for programs on NVIDIA GPUs, with or without an implementation for CPU (JAX's
/// `register_ffi_target(.., platform="CUDA")`). See [`HostCallback::cuda`](crate::HostCallback::cuda) for the
/// requirements on `f`.
///
/// # Errors
/// Returns an error if the name is empty or already registered.
#[track_caller]
pub fn register_ffi_target_cuda<F>(name: &str, f: F) -> Result<()>
where
    F: Fn(&DeviceCall, &Attributes) -> Result<()> + Send + Sync + 'static,
{
    register(name, "cuda", |target| target.cuda.replace(Arc::new(f)).is_none()).at_caller()
}

fn register(name: &str, platform: &str, put: impl FnOnce(&mut Target) -> bool) -> Result<()> {
    if name.is_empty() {
        return Err(
            err!(Value, "the name of an FFI target is empty").help("pass the name that calls of the target use")
        );
    }
    let mut registered = targets();
    let target = registered.entry(name.to_owned()).or_default();
    let is_registered = if platform == "cpu" { target.host.is_some() } else { target.cuda.is_some() };
    if is_registered {
        return Err(err!(Value, "the FFI target {name:?} is registered for {platform} already")
            .help("register each name once, at the start of the program"));
    }
    put(target);
    // Cached calls refer to the previous implementations, so new calls must not reuse them.
    target.calls.clear();
    Ok(())
}

/// A call of a registered function; see [`ffi_call`].
#[derive(Clone, Debug)]
#[must_use = "an FFI call does nothing until it is called"]
pub struct FfiCall<T> {
    name: &'static str,
    results: T,
    attributes: Attributes,
    vmap: Option<Choice<VmapMethod>>,
    has_side_effect: bool,
}

/// Creates a call of the function registered under `name`, with results of these types: a tree of
/// [`shape_dtype_struct`](crate::shape_dtype_struct)s. [`call`](FfiCall::call) receives the operands. The module has an
/// example.
///
/// Results never share memory with operands: there is no `input_output_aliases`. Layouts are row-major. The program
/// refers to the function by a number of this process, so it cannot be exported.
/// [`shardax::ffi_call`](crate::ffi_call()) receives the function itself instead of a name.
pub fn ffi_call<T: Tree>(name: &str, results: T) -> FfiCall<T> {
    let (name, attributes) = (interned(name), Attributes::default());
    FfiCall { name, results, attributes, vmap: None, has_side_effect: false }
}

impl<T: Tree> FfiCall<T> {
    /// Adds an attribute: a constant of the program that the function receives.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Attribute>) -> Self {
        self.attributes = self.attributes.with(name, value);
        self
    }

    /// Sets how `vmap` calls the function. Without a method, `vmap` of it fails.
    pub fn vmap_method(mut self, method: impl IntoChoice<VmapMethod>) -> Self {
        self.vmap = Some(method.into_choice());
        self
    }

    /// Keeps each call of the program, even if its results are unused. Programs that the compiler partitions over
    /// several devices cannot call such a function. The default is `false`.
    pub fn has_side_effect(mut self, has: bool) -> Self {
        self.has_side_effect = has;
        self
    }

    /// Calls the function, immediately if the operands are concrete and nothing is being traced. Operands are an array
    /// or a plain number, or a tuple or list of them.
    ///
    /// # Errors
    /// Returns an error, also while tracing, if no function is registered under the name.
    #[track_caller]
    pub fn call(&self, operands: impl IntoOperands) -> Result<T> {
        let _line = source::enter();
        self.callback().and_then(|callback| callback.call(operands)).at_caller()
    }

    fn callback(&self) -> Result<HostCallback<T>> {
        let (host, cuda) = self.functions()?;
        let kind = if self.has_side_effect { Kind::FfiWithEffect } else { Kind::Ffi };
        let mut callback = HostCallback::from_function(host, &self.results, kind);
        callback.call.vmap = self.vmap;
        callback.call.cuda = cuda;
        Ok(callback)
    }

    /// Returns the functions that this call refers to. Equal calls share them.
    fn functions(&self) -> Result<(Arc<HostFunction>, Option<Arc<HostFunction>>)> {
        let mut registered = targets();
        let Some(target) = registered.get_mut(self.name) else {
            let mut names: Vec<&String> = registered.keys().collect();
            names.sort();
            return Err(err!(
                Value,
                "no function is registered as the FFI target {:?}; registered are {names:?}",
                self.name
            )
            .help("call `ffi::register_ffi_target` before the function is traced"));
        };
        // Drops the functions that no program refers to anymore.
        target.calls.retain(|(_, host, _)| host.strong_count() > 0);
        let equal = target.calls.iter().find(|(attributes, ..)| *attributes == self.attributes);
        if let Some((host, cuda)) = equal.and_then(|(_, host, cuda)| Some((host.upgrade()?, cuda.clone()))) {
            return Ok((host, cuda));
        }
        let name = self.name;
        let attributes = Arc::new(self.attributes.clone());
        let on_host = match target.host.clone() {
            Some(f) => {
                let attributes = attributes.clone();
                HostFunction::named(name, move |args, results| f(args, results, &attributes))
            }
            None => HostFunction::named(name, move |_, _| Err(not_on_cpu(name))),
        };
        let on_cuda = target.cuda.clone().map(|f| HostFunction::on_device(move |call| f(call, &attributes)));
        target.calls.push((self.attributes.clone(), Arc::downgrade(&on_host), on_cuda.clone()));
        Ok((on_host, on_cuda))
    }
}

fn not_on_cpu(name: &str) -> Error {
    err!(NotImplemented, "the FFI target {name:?} is registered for cuda, not for cpu")
        .help("register it for CPU too, by `ffi::register_ffi_target`, or compute this part of the program on a GPU")
}
