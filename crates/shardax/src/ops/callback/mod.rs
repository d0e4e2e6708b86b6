//! Host functions in programs: `pure_callback`, `io_callback`, `ffi_call`, and debug printing.

pub mod debug;
pub mod ffi;
pub(crate) mod function;
mod ordered;
pub(crate) mod primitive;
pub(crate) mod text;
mod views;

use std::sync::Arc;

use function::HostFunction;
pub(crate) use ordered::{in_order, turn};
pub use primitive::VmapMethod;
use primitive::{HostCall, Kind};
pub use views::{DeviceArg, DeviceCall, HostArg, HostResult};

use crate::choice::IntoChoice;
use crate::core::array::Array;
use crate::core::primitive::Primitive;
use crate::core::program::trace::{check_keys, check_usable, runs_now};
use crate::core::tree::{Flat, Tree};
use crate::error::{AtCaller, Result, err};
use crate::memory::reserve_bytes;
use crate::ops::operators::ArrayLike;
use crate::sharding::device::client;
use crate::source;

/// A host function that arrays can be passed to; see [`pure_callback`].
#[derive(Clone, Debug)]
#[must_use = "a host function does nothing until it is called"]
pub struct HostCallback<T> {
    call: HostCall,
    results: Flat,
    types: std::marker::PhantomData<fn() -> T>,
}

/// Wraps a host function without side effects as a function of arrays. `results` are the types of the results: a tree
/// of [`shape_dtype_struct`](crate::shape_dtype_struct)s, or of arrays whose values are ignored.
///
/// A call can be omitted if its results are unused, and it can be repeated. The function is called on XLA's threads,
/// possibly from several devices at once: inside a `shard_map` by each device with the device's shard, otherwise with
/// entire arrays. It reads its arguments in place (on GPUs, copies on the host) and must write each result entirely. An
/// error or a panic becomes the error of the call, or of reading its results, and the program makes no further calls.
/// The function cannot run programs, and therefore cannot compute with arrays: this is an error, because all of XLA's
/// threads can be waiting for such functions.
///
/// Under `vmap` it needs a [`vmap_method`](HostCallback::vmap_method). It has no derivative unless you define one with
/// `custom_jvp` or `custom_vjp`.
///
/// ```
/// # use shardax::prelude::*;
/// let gamma = pure_callback(
///     |args, results| results[0].write(args[0].values::<f32>()?.map(|x| x.max(0.0).powf(1.5))),
///     shape_dtype_struct([3], DType::F32),
/// );
/// let f = jit(move |x: Array| Ok::<_, shardax::Error>(gamma.call(x * 2)? + 1));
/// assert_eq!(f.call(array([2.0f32, 8.0, -1.0]))?.to_vec::<f32>()?, [9.0, 65.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn pure_callback<T, F>(f: F, results: T) -> HostCallback<T>
where
    T: Tree,
    F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(f, &results, Kind::Pure)
}

/// Wraps a host function with side effects as a function of arrays. Otherwise like [`pure_callback`].
///
/// The function is called exactly as often as the program says, even if its results are unused: under `vmap` once for
/// each entry of the batch, and inside a `shard_map` by each device. Independent calls run in no particular order. A
/// program that the compiler partitions over several devices cannot call it. It has no derivative.
///
/// ```
/// # use shardax::effects_barrier;
/// # use shardax::prelude::*;
/// use std::sync::Mutex;
/// static SEEN: Mutex<Vec<f32>> = Mutex::new(Vec::new());
/// let record = io_callback(
///     |args, _results| {
///         SEEN.lock().unwrap().push(args[0].to_vec::<f32>()?[0]);
///         Ok(())
///     },
///     (),
/// );
/// let f = jit(move |x: Array| -> Result<Array> {
///     record.call(&x)?;
///     Ok(x * 2)
/// });
/// for x in [1.0f32, 2.0] {
///     let _ = f.call(array(x))?;
/// }
/// effects_barrier()?;
/// assert_eq!(*SEEN.lock().unwrap(), [1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn io_callback<T, F>(f: F, results: T) -> HostCallback<T>
where
    T: Tree,
    F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(f, &results, Kind::Io)
}

/// Wraps a function on XLA's memory, for example a function of a library in another language. Otherwise like
/// [`pure_callback`].
pub fn ffi_call<T, F>(f: F, results: T) -> HostCallback<T>
where
    T: Tree,
    F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(f, &results, Kind::Ffi)
}

impl<T: Tree> HostCallback<T> {
    fn new<F>(f: F, results: &T, kind: Kind) -> Self
    where
        F: Fn(&[HostArg<'_>], &mut [HostResult<'_>]) -> Result<()> + Send + Sync + 'static,
    {
        HostCallback::from_function(HostFunction::new(f), results, kind)
    }

    fn from_function(function: Arc<HostFunction>, results: &T, kind: Kind) -> Self {
        let results = Flat::of(results);
        let types = results.leaves.iter().map(|r| (r.dtype(), r.aval().shape)).collect();
        let call = HostCall { function, cuda: None, results: types, kind, vmap: None, ordered: false, token: false };
        HostCallback { call, results, types: std::marker::PhantomData }
    }

    /// Sets how `vmap` calls the function: a [`VmapMethod`], or its name, such as `"sequential"`. Without a method, `vmap` of
    /// it fails. A function with side effects is always
    /// called once per entry.
    pub fn vmap_method(mut self, method: impl IntoChoice<VmapMethod>) -> Self {
        self.call.vmap = Some(method.into_choice());
        self
    }

    /// Sets the GPU implementation of an [`ffi_call`]. `f` receives addresses in the device's memory and the program's
    /// stream, and must start its work on that stream without waiting for it (JAX's
    /// `register_ffi_target(platform="CUDA")`). It must write results entirely. Its error becomes the error of the
    /// call. If several devices compute together, an error can end the process, because the other devices wait for this
    /// one, and arrays donated to that call are lost. Other callbacks need no GPU implementation, because on GPUs they
    /// receive copies of their arguments on the host.
    ///
    /// The program refers to `f` by a number of this process, so it cannot be exported.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use std::ffi::c_void;
    ///
    /// /// A launcher of a kernel, in CUDA C++.
    /// fn scale_f32(_x: *mut c_void, _y: *mut c_void, _len: usize, _stream: *mut c_void) -> i32 {
    ///     0
    /// }
    ///
    /// let scale = ffi_call(
    ///     |args, results| results[0].write(args[0].values::<f32>()?.map(|x| 2.0 * x)),
    ///     shape_dtype_struct([3], DType::F32),
    /// )
    /// .cuda(|call| {
    ///     let (x, y) = (&call.args()[0], &call.results()[0]);
    ///     let len = x.shape().iter().product();
    ///     match scale_f32(x.address(), y.address(), len, call.stream()?) {
    ///         0 => Ok(()),
    ///         code => Err(shardax::Error::new(shardax::ErrorKind::Runtime, format!("CUDA error {code}"))),
    ///     }
    /// });
    /// // On the CPU the first function is called, on GPUs the second.
    /// assert_eq!(jit(move |x: Array| scale.call(x)).call(array([1.0f32, 2.0, 3.0]))?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn cuda<F>(mut self, f: F) -> Self
    where
        F: Fn(&DeviceCall) -> Result<()> + Send + Sync + 'static,
    {
        if self.call.kind == Kind::Ffi {
            self.call.cuda = Some(HostFunction::on_device(f));
        }
        self
    }

    /// Orders the calls of this function with the calls of all other ordered functions: inside a program, through its
    /// loops and branches, from program to program, and with calls outside of programs. A program with ordered calls
    /// starts after the previous one has ended.
    ///
    /// Only a function with side effects can be ordered. `vmap` of an ordered function fails, and inside a `shard_map`
    /// each device keeps a separate order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use std::sync::{Arc, Mutex};
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let note = seen.clone();
    /// let show = io_callback(
    ///     move |args, _| {
    ///         note.lock().expect("no panic").push(args[0].item::<i32>()?);
    ///         Ok(())
    ///     },
    ///     (),
    /// )
    /// .ordered();
    /// let f = jit(move |n: Array| fori_loop(0, 4, |i: Array, n: Array| show.call(i).map(|()| n), n));
    /// f.call(0i32)?.item::<i32>()?;
    /// assert_eq!(*seen.lock().expect("no panic"), [0, 1, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn ordered(mut self) -> Self {
        self.call.ordered = true;
        self
    }

    /// Calls the function, immediately if the operands are concrete and nothing is being traced. Operands are an array
    /// or a plain number, or a tuple or list of them; for another tree, pass its [`leaves`](crate::tree::leaves).
    ///
    /// # Errors
    /// Returns an error if an operand carries an error, or if the function fails while no program is traced. An
    /// error inside of a compiled program is returned when you read the program's results.
    #[track_caller]
    pub fn call(&self, operands: impl IntoOperands) -> Result<T> {
        let _line = source::enter();
        self.apply(&operands.into_operands()).at_caller()?.build()
    }

    #[track_caller]
    fn apply(&self, args: &[Array]) -> Result<Flat> {
        // A result type may itself carry an error.
        self.results.leaves.iter().filter_map(Array::error).try_for_each(|e| Err(e.clone()))?;
        args.iter().try_for_each(check_usable)?;
        self.call.vmap.map_or(Ok(()), |method| method.value(self.call.name()).map(drop))?;
        // A host function reads elements, but keys have no elements that it could read.
        check_keys(&self.call, &args.iter().chain(&self.results.leaves).map(Array::aval).collect::<Vec<_>>())?;
        if self.call.ordered && !self.call.has_effects() {
            return Err(err!(Value, "{} has no effects, so that its calls cannot be ordered", self.call.name())
                .help("use `io_callback` for functions with effects"));
        }
        let leaves = if runs_now(args) && (self.call.cuda.is_none() || client()?.platform_name == "cpu") {
            let _turn = self.call.ordered.then(turn);
            self.run(args)?.into()
        } else {
            let outs = self.call.clone().apply(args);
            outs.iter().try_for_each(check_usable)?;
            outs.into_iter().collect()
        };
        Ok(Flat { leaves, def: self.results.def.clone() })
    }

    /// Calls the function on this thread.
    fn run(&self, args: &[Array]) -> Result<Vec<Array>> {
        let bytes: Vec<Vec<u8>> = args.iter().map(Array::to_bytes).collect::<Result<_>>()?;
        let args: Vec<HostArg<'_>> = args
            .iter()
            .zip(bytes.iter().map(Vec::as_slice))
            .map(|(array, bytes)| HostArg { dtype: array.dtype(), shape: array.shape().into(), bytes })
            .collect();
        let mut result_bytes: Vec<Vec<u8>> = self.results.leaves.iter().map(room_for).collect::<Result<_>>()?;
        let types = self.call.results.iter().zip(&mut result_bytes);
        let room = types.map(|((dtype, shape), bytes)| HostResult {
            dtype: *dtype,
            shape: shape.clone(),
            bytes,
            written: false,
        });
        guarded(&self.call.function, &args, &mut room.collect::<Vec<_>>())?;
        let array =
            |((dtype, shape), bytes): (&(_, crate::shape::Shape), &Vec<u8>)| Array::from_bytes(bytes, *dtype, shape);
        self.call.results.iter().zip(&result_bytes).map(array).collect()
    }
}

/// Operands of a host function: an array or a plain number, or a tuple or list of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the operands of a host function",
    label = "neither an array nor arrays",
    note = "an array, a plain number, or a tuple or list of them: `call(&x)`, `call((&x, 2))`"
)]
pub trait IntoOperands {
    /// Returns the arrays, in order.
    fn into_operands(self) -> Vec<Array>;
}

impl<T: ArrayLike> IntoOperands for T {
    fn into_operands(self) -> Vec<Array> {
        vec![self.into_array()]
    }
}

impl<T: ArrayLike> IntoOperands for Vec<T> {
    fn into_operands(self) -> Vec<Array> {
        self.into_iter().map(ArrayLike::into_array).collect()
    }
}

impl<T: ArrayLike, const N: usize> IntoOperands for [T; N] {
    fn into_operands(self) -> Vec<Array> {
        self.into_iter().map(ArrayLike::into_array).collect()
    }
}

impl IntoOperands for &[Array] {
    fn into_operands(self) -> Vec<Array> {
        self.to_vec()
    }
}

macro_rules! tuples_of_operands {
    ($(($($t:ident $i:tt),*))*) => {$(
        impl<$($t: ArrayLike),*> IntoOperands for ($($t,)*) {
            fn into_operands(self) -> Vec<Array> {
                vec![$(self.$i.into_array()),*]
            }
        }
    )*};
}

tuples_of_operands!(());
crate::tuples::each!(tuples_of_operands);

/// Calls the function, adds its name to its error, and converts a panic to an error.
fn guarded(f: &Arc<HostFunction>, args: &[HostArg<'_>], results: &mut [HostResult<'_>]) -> Result<()> {
    let call = std::panic::AssertUnwindSafe(|| f.call(args, results));
    match std::panic::catch_unwind(call) {
        Ok(called) => called.map_err(|error| error.context(format!("the host function {f:?} failed"))),
        Err(panic) => Err(err!(Runtime, "the host function {f:?} panicked: {}", shardax_pjrt::panic_text(panic))),
    }
}

/// Allocates the memory of a result, filled with zeros.
fn room_for(result: &Array) -> Result<Vec<u8>> {
    let aval = result.aval();
    let (size, mut bytes) = (aval.byte_size()?, Vec::new());
    reserve_bytes(&mut bytes, size).map_err(|e| {
        err!(Runtime, "no memory for the result {aval} of a host function, of {size} bytes: {e}")
            .help("check the result types that the callback was given")
    })?;
    bytes.resize(size, 0);
    Ok(bytes)
}
