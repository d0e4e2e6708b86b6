//! A registry of host functions. Programs call them by number, through a single handler that is registered with XLA.

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use shardax_pjrt::Plugin;
use shardax_pjrt::ffi::copies::zeroed;
use shardax_pjrt::ffi::{self, Attr, CallFrame};

use super::guarded;
use super::views::{DeviceCall, HostArg, HostResult};
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::shape::Shape;
use crate::sharding::device::client;

/// The name by which programs call the handler.
pub(super) const TARGET: &str = "shardax.host_function";

/// The function, with its Rust type erased.
enum Body {
    Host(Box<dyn Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync>),
    Device(Box<dyn Fn(&DeviceCall) -> Result<()> + Send + Sync>),
}

/// A host function that compiled programs call. Every program that calls it contains its number.
pub(crate) struct HostFunction {
    pub(super) number: i64,
    pub(super) name: &'static str,
    body: Body,
}

/// All host functions of this process.
struct Registry {
    /// The functions by number. The programs that call them keep them alive.
    by_number: HashMap<i64, Weak<HostFunction>>,
    /// Functions that capture nothing, identified by their type, so that a new trace reuses them.
    by_type: HashMap<TypeId, Arc<HostFunction>>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    let functions =
        REGISTRY.get_or_init(|| Mutex::new(Registry { by_number: HashMap::new(), by_type: HashMap::new() }));
    // The maps stay usable after a panic, because no user code runs while they are locked.
    functions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostFunction {
    pub(super) fn new<F>(f: F) -> Arc<HostFunction>
    where
        F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
    {
        HostFunction::register(std::any::type_name::<F>(), f, |f| Body::Host(Box::new(f)))
    }

    /// Like [`new`](Self::new), with a different name in errors.
    pub(super) fn named<F>(name: &'static str, f: F) -> Arc<HostFunction>
    where
        F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
    {
        HostFunction::register(name, f, |f| Body::Host(Box::new(f)))
    }

    /// Wraps a function on device memory.
    pub(super) fn on_device<F>(f: F) -> Arc<HostFunction>
    where
        F: Fn(&DeviceCall) -> Result<()> + Send + Sync + 'static,
    {
        HostFunction::register(std::any::type_name::<F>(), f, |f| Body::Device(Box::new(f)))
    }

    /// Gives a function a new number.
    fn numbered(name: &'static str, body: Body) -> Arc<HostFunction> {
        // Programs refer to functions by number. A number is never used again, so a stale program cannot call another
        // function.
        static NEXT: AtomicI64 = AtomicI64::new(1);
        Arc::new(HostFunction { number: NEXT.fetch_add(1, Ordering::Relaxed), name, body })
    }

    /// Adds a function to the registry, unless an equal function is there already.
    fn register<F: 'static>(name: &'static str, f: F, body: impl FnOnce(F) -> Body) -> Arc<HostFunction> {
        let mut functions = registry();
        // A function that captures nothing is identified by its type.
        let function = match size_of::<F>() {
            0 => functions
                .by_type
                .entry(TypeId::of::<F>())
                .or_insert_with(|| HostFunction::numbered(name, body(f)))
                .clone(),
            _ => HostFunction::numbered(name, body(f)),
        };
        functions.by_number.insert(function.number, Arc::downgrade(&function));
        function
    }

    /// Calls the function, which must write every result.
    pub(super) fn call(&self, args: &[HostArg<'_>], results: &mut [HostResult<'_>]) -> Result<()> {
        let Body::Host(body) = &self.body else { return Err(self.wrong_memory("the host's")) };
        body(args, results)?;
        match results.iter().position(|r| !r.written) {
            Some(i) => Err(err!(Runtime, "the host function {} left its result {i} unwritten", self.name)
                .help("call `write` on each result of the host function")),
            None => Ok(()),
        }
    }
}

impl HostFunction {
    fn wrong_memory(&self, memory: &str) -> Error {
        err!(Runtime, "the function {} does not work on {memory} memory", self.name)
            .help("register a function for the memory of the platform that you run on")
    }
}

impl Drop for HostFunction {
    fn drop(&mut self) {
        registry().by_number.remove(&self.number);
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

/// Registers the handler with XLA on the first call.
pub(crate) fn register() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    REGISTERED
        .get_or_init(|| {
            let client = client()?;
            if client.platform_name != "cpu" {
                return Err(err!(NotImplemented, "host functions are only supported on CPU")
                    .help("compute this part of the program on the CPU's devices"));
            }
            Ok(ffi::register(client.pjrt.plugin(), TARGET, |frame| handle(frame).map_err(|e| e.to_string()))?)
        })
        .clone()
}

/// Registers the handler for NVIDIA GPUs with XLA on the first call.
pub(crate) fn register_on_device() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    let registered = REGISTERED.get_or_init(|| {
        let plugin = Plugin::find("cuda").map_err(|e| err!(Plugin, "{e}"))?;
        Ok(ffi::device::register(&plugin, "CUDA", TARGET, |call| handle_on_device(call).map_err(|e| e.to_string()))?)
    });
    registered.clone()
}

/// Handles a call from a GPU program. Functions on host memory receive copies, as in JAX.
fn handle_on_device(call: &ffi::device::DeviceCall<'_>) -> Result<()> {
    let function = find(call.attr("function"))?;
    if let Body::Device(body) = &function.body {
        return body(&DeviceCall::new(call)?);
    }
    let arg_bytes = call.copy_args()?;
    let args = call.args().iter().zip(&arg_bytes);
    let args: Vec<HostArg<'_>> = args
        .map(|(arg, bytes)| Ok(HostArg { dtype: dtype(arg.ty)?, shape: shape(arg.dims), bytes }))
        .collect::<Result<_>>()?;
    let mut result_bytes: Vec<Vec<u8>> =
        call.results().iter().map(|result| zeroed(result.byte_len)).collect::<shardax_pjrt::Result<_>>()?;
    let results = call.results().iter().zip(&mut result_bytes);
    let mut results: Vec<HostResult<'_>> = results
        .map(|(to, bytes)| Ok(HostResult { dtype: dtype(to.ty)?, shape: shape(to.dims), bytes, written: false }))
        .collect::<Result<_>>()?;
    run(&function, call.attr("token"), &args, &mut results)?;
    Ok(call.write_results(&result_bytes)?)
}

/// Finds the function of a call by its number.
fn find(number: Option<Attr<'_>>) -> Result<Arc<HostFunction>> {
    let number = number.and_then(|a| a.as_i64()).unwrap_or_default();
    let function = registry().by_number.get(&number).and_then(Weak::upgrade);
    function.ok_or_else(|| {
        err!(Runtime, "internal error: host function {number} was freed before its program; please report this")
    })
}

/// Handles a call from a program. No lock is held while the user's function runs.
fn handle(frame: &mut CallFrame<'_>) -> Result<()> {
    if frame.failure().is_some() {
        // After a failure the inputs would be computed from zeros, so the function is not called; the results carry the
        // error.
        frame.rets().iter_mut().for_each(|ret| ret.data().fill(0));
        return Ok(());
    }
    let function = find(frame.attr("function"))?;
    let token = frame.attr("token");
    let (inputs, outputs) = frame.split();
    let args: Vec<HostArg<'_>> = inputs
        .iter()
        .map(|arg| Ok(HostArg { dtype: dtype(arg.ty)?, shape: shape(arg.dims), bytes: arg.data }))
        .collect::<Result<_>>()?;
    let mut results: Vec<HostResult<'_>> = outputs
        .iter_mut()
        .map(|ret| Ok(HostResult { dtype: dtype(ret.ty)?, shape: shape(ret.dims), bytes: ret.data(), written: false }))
        .collect::<Result<_>>()?;
    run(&function, token, &args, &mut results)
}

/// Calls the function. If the call is ordered, the token passes from the first argument to the first result.
fn run(
    function: &Arc<HostFunction>,
    token: Option<Attr<'_>>,
    args: &[HostArg<'_>],
    results: &mut [HostResult<'_>],
) -> Result<()> {
    if token.and_then(|token| token.as_i64()).is_some_and(|n| n != 0) {
        results[0].write([0i32])?;
        return guarded(function, &args[1..], &mut results[1..]);
    }
    guarded(function, args, results)
}

pub(super) fn shape(dims: &[i64]) -> Shape {
    dims.iter().map(|&d| d as usize).collect()
}

pub(super) fn dtype(ty: shardax_pjrt::ElementType) -> Result<DType> {
    DType::from_element_type(ty)
        .ok_or_else(|| Error::from(shardax_pjrt::Error::invalid_argument(format!("no dtype {ty:?}"))))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use shardax_pjrt::{Client, CompileOptions, ElementType, ParameterSpec, Signature};

    use super::*;

    /// Runs a program that calls the function with this number on a device, and returns the bytes of its result.
    fn run_function(client: &Client, number: i64) -> Result<Vec<u8>> {
        let text = format!(
            "func.func @main(%x: tensor<2x3xf32>) -> tensor<4xi32> {{
              %y = stablehlo.custom_call @test.device_function(%x) {{api_version = 4 : i32, backend_config = {{function = {number} : i64}}}}
                  : (tensor<2x3xf32>) -> tensor<4xi32>
              return %y : tensor<4xi32>
            }}"
        );
        let signature = Signature { parameters: vec![ParameterSpec::new(ElementType::F32, [2, 3])] };
        let program = client.compile(&text, &CompileOptions::default(), signature)?;
        let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_ne_bytes).concat();
        let x = client.buffer_from_host(&x, ElementType::F32, &[2, 3], &client.devices()[0])?;
        let mut bytes = vec![0; 16];
        program.execute(&[&x])?[0][0].to_host(&mut bytes)?;
        Ok(bytes)
    }

    fn assert_fails(client: &Client, number: i64, text: &str) {
        let error = run_function(client, number).expect_err("it fails").to_string();
        assert!(error.contains(text), "{error}");
    }

    /// Calls functions by their number, with the host as the device.
    #[test]
    fn a_call_on_a_device_finds_its_function() -> Result<()> {
        let client = &client()?.pjrt;
        ffi::device::register(
            client.plugin(),
            "Host",
            "test.device_function",
            |call: &ffi::device::DeviceCall<'_>| handle_on_device(call).map_err(|e| e.to_string()),
        )?;
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        let function = HostFunction::on_device(move |call| {
            counter.fetch_add(1, Ordering::Relaxed);
            let ([x], [y]) = (call.args(), call.results()) else { panic!("{call:?}") };
            assert_eq!((x.dtype(), x.shape(), y.dtype(), y.shape()), (DType::F32, &[2, 3][..], DType::I32, &[4][..]));
            assert!(!x.address().is_null() && x.address() != y.address());
            assert_eq!(call.device_ordinal(), Some(0));
            // The host has no stream.
            call.stream().map(drop)
        });
        assert_fails(client, function.number, "the plugin passed no stream to this call");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // A function on host memory receives copies.
        let host = HostFunction::new(|args, results| {
            let x: Vec<f32> = args[0].to_vec()?;
            results[0].write([x[0] as i32, x[5] as i32, 7, 8])
        });
        assert_eq!(run_function(client, host.number)?, [1i32, 6, 7, 8].map(i32::to_ne_bytes).concat());
        let lazy = HostFunction::new(|_, _| Ok(()));
        assert_fails(client, lazy.number, "left its result 0 unwritten");
        let dropped = function.number;
        drop(function);
        assert_fails(client, dropped, "was freed before its program");
        Ok(())
    }
}
