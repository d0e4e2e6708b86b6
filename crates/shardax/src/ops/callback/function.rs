//! Functions of the host that programs call: kept by number, found by the one handler that the engine knows.

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use shardax_pjrt::ffi::{self, CallFrame};

use super::views::{HostArg, HostResult};
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::shape::Shape;
use crate::sharding::device::client;

/// The name by which programs call the handler.
pub(super) const TARGET: &str = "shardax.host_function";

/// What a host function is, whatever its Rust type.
pub(super) type Body = dyn Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync;

/// A function of the host. Its number is part of every program that calls it.
pub(crate) struct HostFunction {
    pub(super) number: i64,
    pub(super) name: &'static str,
    body: Box<Body>,
}

struct All {
    /// As long as something that calls them lives.
    by_number: HashMap<i64, Weak<HostFunction>>,
    /// Functions that capture nothing, so that their type says which they are: traced again, they are the same.
    by_type: HashMap<TypeId, Arc<HostFunction>>,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    let empty = || Mutex::new(All { by_number: HashMap::new(), by_type: HashMap::new() });
    ALL.get_or_init(empty).lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostFunction {
    pub(super) fn new<F>(f: F) -> Arc<HostFunction>
    where
        F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
    {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let make = |f| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            Arc::new(HostFunction { number, name: std::any::type_name::<F>(), body: Box::new(f) })
        };
        let mut all = all();
        let function = match size_of::<F>() {
            0 => all.by_type.entry(TypeId::of::<F>()).or_insert_with(|| make(f)).clone(),
            _ => make(f),
        };
        all.by_number.insert(function.number, Arc::downgrade(&function));
        function
    }

    /// Calls it. Every result must have been written.
    pub(super) fn call(&self, args: &[HostArg<'_>], results: &mut [HostResult<'_>]) -> Result<()> {
        (self.body)(args, results)?;
        match results.iter().position(|r| !r.written) {
            Some(i) => Err(err!(Runtime, "the host function {} left its result {i} unwritten", self.name)
                .help("call `write` on each result")),
            None => Ok(()),
        }
    }
}

impl Drop for HostFunction {
    fn drop(&mut self) {
        all().by_number.remove(&self.number);
    }
}

impl PartialEq for HostFunction {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for HostFunction {}

impl Hash for HostFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Tells the engine of the handler, once.
pub(super) fn register() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    REGISTERED
        .get_or_init(|| {
            let client = client()?;
            if client.platform_name != "cpu" {
                return Err(err!(NotImplemented, "functions of the host are called on CPU only")
                    .help("compute this part of the program on the CPU's devices"));
            }
            Ok(ffi::register(client.pjrt.plugin(), TARGET, |frame| handle(frame).map_err(|e| e.to_string()))?)
        })
        .clone()
}

/// A call from a program. No lock is held while the function runs.
fn handle(frame: &mut CallFrame<'_>) -> Result<()> {
    let number = frame.attr("function").and_then(|a| a.as_i64()).unwrap_or_default();
    let function = all().by_number.get(&number).and_then(Weak::upgrade);
    let Some(function) = function else {
        return Err(err!(Runtime, "the host function number {number} is gone"));
    };
    let shape = |dims: &[i64]| dims.iter().map(|&d| d as usize).collect::<Shape>();
    let token = frame.attr("token").and_then(|a| a.as_i64()).is_some_and(|n| n != 0);
    let (given, made) = frame.split();
    let args: Vec<HostArg<'_>> = given
        .iter()
        .map(|arg| Ok(HostArg { dtype: dtype(arg.ty)?, shape: shape(arg.dims), bytes: arg.data }))
        .collect::<Result<_>>()?;
    let mut results: Vec<HostResult<'_>> = made
        .iter_mut()
        .map(|ret| Ok(HostResult { dtype: dtype(ret.ty)?, shape: shape(ret.dims), bytes: ret.data(), written: false }))
        .collect::<Result<_>>()?;
    if token {
        results[0].write([0i32])?;
        return function.call(&args[1..], &mut results[1..]);
    }
    function.call(&args, &mut results)
}

fn dtype(ty: shardax_pjrt::ElementType) -> Result<DType> {
    DType::of_element(ty).ok_or_else(|| Error::from(shardax_pjrt::Error::invalid_argument(format!("no dtype {ty:?}"))))
}
