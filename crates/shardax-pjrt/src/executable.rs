//! Executables: compiling, loading, and what can be asked of a compiled program.

use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::api::{Api, slice, text};
use crate::buffer::Dims;
use crate::client::Client;
use crate::device::Device;
use crate::element::{ElementType, ShapeText};
use crate::error::{Code, Error, Result};
use crate::hlo::{self, HloInstruction, Shardings, Summary};
use crate::options::{CompileOptions, ParameterSpec, Signature};
use crate::raw::*;
use crate::sealed;
use crate::sharding::OpSharding;
use crate::value::{self, Value};

/// A compiled program, loaded on its devices.
pub struct Executable {
    pub(crate) client: Client,
    pub(crate) loaded: NonNull<RawLoaded>,
    raw: NonNull<RawExecutable>,
    pub(crate) parameters: Vec<ParameterSpec>,
    /// For each parameter whether it is donated; empty when none is.
    pub(crate) donated: Vec<bool>,
    pub(crate) outputs: Vec<(ElementType, Dims)>,
    /// In the order in which arguments are passed; empty for a portable executable.
    pub(crate) devices: Vec<Device>,
    device_ids: Vec<usize>,
    /// `None` when the plugin does not show its programs.
    pub(crate) has_collectives: Option<bool>,
    /// It can fail while it runs.
    pub(crate) calls_host: bool,
    /// Whether it has been launched before.
    pub(crate) launched: AtomicBool,
    shardings: OnceLock<Shardings>,
}

// SAFETY: PJRT executables may be used from any thread; the rest is immutable.
unsafe impl Send for Executable {}
unsafe impl Sync for Executable {}

/// Memory that one execution needs on each device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAnalysis {
    /// The program itself.
    pub generated_code: i64,
    /// Its arguments.
    pub arguments: i64,
    /// Its results.
    pub outputs: i64,
    /// Part of the arguments that outputs reuse.
    pub aliased: i64,
    /// What it needs between.
    pub temporaries: i64,
    /// The most at once.
    pub peak: i64,
    /// The program itself, in the host's memory.
    pub host_generated_code: i64,
    /// Its arguments, in the host's memory.
    pub host_arguments: i64,
    /// Its results, in the host's memory.
    pub host_outputs: i64,
    /// Part of those arguments that results reuse.
    pub host_aliased: i64,
    /// What it needs between, in the host's memory.
    pub host_temporaries: i64,
}

/// XLA and LLVM recurse deeply on large programs; spawned threads and tests have only 2 MiB otherwise.
const COMPILE_STACK: usize = 64 << 20;

impl Client {
    /// Compiles a StableHLO program, given as MLIR text or bytecode text form, `sdy` dialect included.
    ///
    /// `signature` says what each device is passed. It is compared with the compiled program where the plugin shows
    /// it, and with every execution's arguments.
    ///
    /// # Errors
    /// The program does not parse or compile, the options do not fit the client, or the signature does not fit the
    /// program.
    pub fn compile(&self, mlir: &str, options: &CompileOptions, signature: Signature) -> Result<Executable> {
        self.check_own(options)?;
        let loaded = self.compile_program("mlir", mlir.as_bytes(), options)?;
        self.executable(loaded, signature)
    }

    /// Compiles a serialized `HloModuleProto`, as [`Partitioned::localize`](crate::Partitioned::localize) makes it.
    ///
    /// # Errors
    /// As for [`Client::compile`].
    pub fn compile_hlo(&self, module: &[u8], options: &CompileOptions, signature: Signature) -> Result<Executable> {
        self.check_own(options)?;
        let loaded = self.compile_program("hlo", module, options)?;
        self.executable(loaded, signature)
    }

    /// Compiles a program to see whether that goes well.
    pub(crate) fn compile_only(&self, mlir: &str, options: &CompileOptions) -> Result<()> {
        let loaded = self.compile_program("mlir", mlir.as_bytes(), options)?;
        self.executable(loaded, Signature::default()).map(drop)
    }

    fn compile_program(&self, format: &str, code: &[u8], options: &CompileOptions) -> Result<Loaded> {
        let encoded = options.encode(self)?;
        with_large_stack(|| {
            let program = Program {
                struct_size: size_of::<Program>(),
                extension_start: std::ptr::null_mut(),
                code: code.as_ptr().cast_mut().cast(), // only read
                code_size: code.len(),
                format: format.as_ptr().cast(),
                format_size: format.len(),
            };
            let mut args = ClientCompile {
                client: self.inner.raw,
                program: &raw const program,
                compile_options: encoded.as_ptr().cast(),
                compile_options_size: encoded.len(),
                ..Default::default()
            };
            // SAFETY: program and options live through the call.
            unsafe { self.api().call(&mut args)? };
            Ok(Loaded(args.executable))
        })
    }

    /// Refuses devices of other processes: a plugin that does not know of those would run their parts here.
    fn check_own(&self, options: &CompileOptions) -> Result<()> {
        let other = |id: &&usize| self.device_by_id(**id).is_some_and(|d| self.has_owners() && !d.is_addressable());
        match options.device_ids.iter().find(other) {
            Some(&id) => self.check_device(self.device_by_id(id).unwrap_or(&self.devices()[0])),
            None => Ok(()),
        }
    }

    /// Loads what [`Executable::serialize`] wrote. The options must be those it was compiled with, but for the devices.
    ///
    /// What is loaded is run: the bytes must come from somebody trusted. Against accidents they carry a digest.
    ///
    /// # Errors
    /// The bytes are from another plugin version or processor, are damaged, or are a program of another signature; or as
    /// for [`Client::compile`].
    pub fn deserialize(&self, bytes: &[u8], options: &CompileOptions, signature: Signature) -> Result<Executable> {
        self.check_own(options)?;
        let bytes = sealed::open(bytes, self.engine()?, &signature.parameters)?;
        let encoded = options.encode(self)?;
        let loaded = with_large_stack(|| {
            let mut args = DeserializeAndLoad {
                client: self.inner.raw,
                bytes: bytes.as_ptr().cast(),
                bytes_size: bytes.len(),
                overridden_options: encoded.as_ptr().cast(),
                overridden_options_size: encoded.len(),
                ..Default::default()
            };
            // SAFETY: bytes and options live through the call.
            unsafe { self.api().call(&mut args)? };
            Ok(Loaded(args.loaded))
        })?;
        self.executable(loaded, signature)
    }

    fn executable(&self, loaded: Loaded, signature: Signature) -> Result<Executable> {
        let missing = || Error::new(Code::Internal, "the plugin gave no executable");
        let loaded = NonNull::new(loaded.0).ok_or_else(missing)?;
        let mut get = LoadedGetExecutable { loaded: loaded.as_ptr(), ..Default::default() };
        // SAFETY: the loaded executable is live and ours.
        let got = unsafe { self.api().call(&mut get) }.and_then(|()| NonNull::new(get.executable).ok_or_else(missing));
        let raw = match got {
            Ok(raw) => raw,
            Err(error) => {
                let mut args = LoadedDestroy { executable: loaded.as_ptr(), ..Default::default() };
                // SAFETY: it is ours and not used again.
                let _ = unsafe { self.api().call(&mut args) };
                return Err(error);
            }
        };
        // From here on, dropping it cleans up.
        let mut executable = Executable {
            client: self.clone(),
            loaded,
            raw,
            donated: Vec::new(),
            parameters: signature.parameters,
            outputs: Vec::new(),
            devices: Vec::new(),
            device_ids: Vec::new(),
            has_collectives: None,
            calls_host: false,
            launched: AtomicBool::new(false),
            shardings: OnceLock::new(),
        };
        executable.read_outputs()?;
        executable.read_devices()?;
        executable.check_signature()?;
        if executable.parameters.iter().any(|p| p.donated) {
            executable.donated = executable.parameters.iter().map(|p| p.donated).collect();
        }
        Ok(executable)
    }
}

/// Lets a new executable cross threads.
struct Loaded(*mut RawLoaded);
// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Loaded {}

fn with_large_stack<R: Send>(f: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| match std::thread::Builder::new().stack_size(COMPILE_STACK).spawn_scoped(scope, f) {
        Ok(thread) => {
            thread.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "the compiling thread panicked")))
        }
        Err(error) => Err(Error::new(Code::ResourceExhausted, format!("cannot start a thread to compile on: {error}"))),
    })
}

impl Executable {
    pub(crate) fn api(&self) -> &Api {
        self.client.api()
    }

    /// The client that it runs on.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The parameters, as each device sees them.
    pub fn parameters(&self) -> &[ParameterSpec] {
        &self.parameters
    }

    /// Number of results on each device.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Element type of each result.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = ElementType> {
        self.outputs.iter().map(|(ty, _)| *ty)
    }

    /// Shape of each result on one device.
    pub fn output_dims(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        self.outputs.iter().map(|(_, dims)| dims.as_slice())
    }

    /// This process's devices, in the order in which arguments are passed; empty for a portable executable.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Ids of [`Executable::devices`].
    pub fn device_ids(&self) -> &[usize] {
        &self.device_ids
    }

    /// Whether devices exchange data while it runs. Custom calls are not looked into. `None` when the plugin does
    /// not show its programs.
    pub fn has_collectives(&self) -> Option<bool> {
        self.has_collectives
    }

    /// The program's name.
    pub fn name(&self) -> Result<String> {
        let mut args = ExecutableName { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live, and so is the text.
        unsafe {
            self.api().call(&mut args)?;
            Ok(text(args.text, args.text_size).into_owned())
        }
    }

    /// Text that is the same for equal programs compiled the same way.
    ///
    /// # Errors
    /// [`Code::Unimplemented`] on platforms without it.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = ExecutableFingerprint { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live, and so is the text.
        unsafe {
            self.api().call(&mut args)?;
            // Not always text.
            let bytes = slice(args.text.cast::<u8>(), args.text_size);
            Ok(match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
            })
        }
    }

    /// The compiled program as bytes, for [`Client::deserialize`] by the same plugin version on a like processor.
    ///
    /// # Errors
    /// The platform cannot, or does not say what its processor is.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let engine = self.client.engine()?;
        let mut args = ExecutableSerialize { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live; the bytes are until they are freed below.
        unsafe {
            self.api().call(&mut args)?;
            let bytes = sealed::seal(engine, &self.parameters, slice(args.bytes.cast::<u8>(), args.bytes_size));
            if let Some(free) = args.deleter {
                free(args.serialized);
            }
            Ok(bytes)
        }
    }

    /// The program after optimization and partitioning, as a serialized `HloModuleProto`.
    ///
    /// # Errors
    /// The platform does not show it.
    pub fn optimized_hlo_proto(&self) -> Result<Vec<u8>> {
        let mut program = Program {
            struct_size: size_of::<Program>(),
            extension_start: std::ptr::null_mut(),
            code: std::ptr::null_mut(),
            code_size: 0,
            format: std::ptr::null(),
            format_size: 0,
        };
        let mut args = ExecutableOptimizedProgram {
            executable: self.raw.as_ptr(),
            program: &raw mut program,
            ..Default::default()
        };
        // SAFETY: the first call asks for the size, the second fills a buffer of that size.
        let (bytes, format) = unsafe {
            self.api().call(&mut args)?;
            let mut bytes = vec![0u8; (*args.program).code_size];
            (*args.program).code = bytes.as_mut_ptr().cast();
            self.api().call(&mut args)?;
            (bytes, text((*args.program).format, (*args.program).format_size).into_owned())
        };
        match format.as_str() {
            "hlo" => Ok(bytes),
            "hlo_with_config" => hlo::without_config(bytes),
            other => {
                Err(Error::new(Code::Unimplemented, format!("the plugin shows its program in the format {other:?}")))
            }
        }
    }

    /// The instructions of the optimized program, which show what fused and which collectives there are.
    ///
    /// # Errors
    /// The platform does not show its programs.
    pub fn instructions(&self) -> Result<Vec<HloInstruction>> {
        hlo::instructions(&self.optimized_hlo_proto()?)
    }

    /// The sharding of each result, given or chosen by the compiler; `None` when the program was not partitioned.
    ///
    /// # Errors
    /// The platform does not show its programs.
    pub fn output_shardings(&self) -> Result<Option<Vec<OpSharding>>> {
        Ok(self.shardings()?.outputs.clone())
    }

    /// The sharding of each parameter, given or chosen by the compiler; `None` when the program was not partitioned.
    ///
    /// # Errors
    /// The platform does not show its programs.
    pub fn parameter_shardings(&self) -> Result<Option<Vec<OpSharding>>> {
        Ok(self.shardings()?.parameters.clone())
    }

    fn shardings(&self) -> Result<&Shardings> {
        if let Some(shardings) = self.shardings.get() {
            return Ok(shardings);
        }
        let shardings = Shardings::decode(&self.optimized_hlo_proto()?, self.num_outputs())?;
        Ok(self.shardings.get_or_init(|| shardings))
    }

    /// The compiler's estimates, e.g. `flops`, `bytes accessed`.
    ///
    /// # Errors
    /// The platform has none.
    pub fn cost_analysis(&self) -> Result<Vec<(String, Value)>> {
        let mut args = ExecutableCostAnalysis { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live, and so are its properties.
        unsafe {
            self.api().call(&mut args)?;
            value::from_raw(args.properties, args.num_properties)
        }
    }

    /// Memory that an execution needs.
    ///
    /// # Errors
    /// The platform does not tell.
    pub fn memory_analysis(&self) -> Result<MemoryAnalysis> {
        let mut a = ExecutableMemoryStats { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live.
        unsafe { self.api().call(&mut a)? };
        Ok(MemoryAnalysis {
            generated_code: a.generated_code,
            arguments: a.argument,
            outputs: a.output,
            aliased: a.alias,
            temporaries: a.temp,
            peak: a.peak,
            host_generated_code: a.host_generated_code,
            host_arguments: a.host_argument,
            host_outputs: a.host_output,
            host_aliased: a.host_alias,
            host_temporaries: a.host_temp,
        })
    }

    fn read_outputs(&mut self) -> Result<()> {
        let executable = self.raw.as_ptr();
        let mut count = ExecutableNumOutputs { executable, ..Default::default() };
        let mut types = ExecutableOutputElementTypes { executable, ..Default::default() };
        let mut shapes = ExecutableOutputDimensions { executable, ..Default::default() };
        // SAFETY: the executable is live, and the lists live as long.
        let (types, sizes, mut dims) = unsafe {
            self.api().call(&mut count)?;
            self.api().call(&mut types)?;
            self.api().call(&mut shapes)?;
            let sizes = slice(shapes.dim_sizes, shapes.num_outputs);
            (slice(types.types, types.num_types), sizes, slice(shapes.dims, sizes.iter().sum()))
        };
        // The launch writes this many pointers: the lists must agree with it.
        if types.len() != count.num_outputs || sizes.len() != count.num_outputs {
            return Err(Error::new(Code::Internal, "the plugin contradicts itself on the number of outputs"));
        }
        let mut outputs = Vec::with_capacity(types.len());
        for (&ty, &rank) in types.iter().zip(sizes) {
            let ty = ElementType::from_raw(ty).ok_or_else(|| {
                Error::new(Code::Unimplemented, format!("a result has PJRT element type {ty}, which is no array type"))
            })?;
            let (these, rest) = dims.split_at(rank);
            dims = rest;
            outputs.push((ty, Dims::from_slice(these)));
        }
        self.outputs = outputs;
        Ok(())
    }

    fn read_devices(&mut self) -> Result<()> {
        let mut args = LoadedAddressableDevices { executable: self.loaded.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live, and so is the list.
        let raw = unsafe {
            self.api().call(&mut args)?;
            slice(args.devices, args.num_devices)
        };
        for &device in raw {
            let index = self.client.inner.index_of(device)?;
            self.devices.push(Device::new(self.client.inner.clone(), index));
        }
        self.device_ids = self.devices.iter().map(Device::id).collect();
        Ok(())
    }

    /// Compares the signature with the program, so that what is checked at every launch is what the plugin expects.
    fn check_signature(&mut self) -> Result<()> {
        let module = match self.optimized_hlo_proto() {
            Ok(module) => module,
            Err(error) if error.code == Code::Unimplemented => return Ok(()),
            Err(error) => return Err(error),
        };
        let summary = Summary::decode(&module)?;
        if summary.parameters.len() != self.parameters.len() {
            return Err(Error::invalid_argument(format!(
                "the signature has {} parameters, and the compiled program has {}",
                self.parameters.len(),
                summary.parameters.len()
            )));
        }
        for (i, (spec, (ty, dims))) in self.parameters.iter().zip(&summary.parameters).enumerate() {
            let Some(ty) = *ty else {
                return Err(Error::invalid_argument(format!("parameter {i} of the program is no array")));
            };
            if spec.ty != ty || spec.dims != *dims {
                return Err(Error::invalid_argument(format!(
                    "the signature has {} for parameter {i}, and on each device the compiled program takes {}",
                    ShapeText(spec.ty, &spec.dims),
                    ShapeText(ty, dims)
                )));
            }
        }
        for &i in &summary.donated {
            if self.parameters.get(i).is_some_and(|spec| !spec.donated) {
                return Err(Error::invalid_argument(format!(
                    "the program donates parameter {i} (tf.aliasing_output or jax.buffer_donor), and the signature \
                     says that it does not"
                )));
            }
        }
        if !summary.results_row_major {
            return Err(Error::new(
                Code::Unimplemented,
                "the program has a result whose layout in memory is not row-major",
            ));
        }
        self.has_collectives = Some(summary.has_collectives);
        // Functions are registered for host memory only.
        self.calls_host = summary.calls_host && self.client.inner.is_cpu;
        Ok(())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut executable = ExecutableDestroy { executable: self.raw.as_ptr(), ..Default::default() };
        let mut loaded = LoadedDestroy { executable: self.loaded.as_ptr(), ..Default::default() };
        // SAFETY: both are ours; runs under way keep what they need.
        unsafe {
            let _ = self.api().call(&mut executable);
            let _ = self.api().call(&mut loaded);
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable")
            .field("parameters", &self.parameters.len())
            .field("outputs", &self.outputs.len())
            .field("device_ids", &self.device_ids)
            .finish_non_exhaustive()
    }
}
