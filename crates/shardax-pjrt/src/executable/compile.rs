//! Compiling and loading programs.

use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

use super::{CompiledProgram, CrossCompiledExecutable, Executable};
use crate::cache_entry;
use crate::client::Client;
use crate::error::{Code, Error, Result};
use crate::options::{CompileOptions, Signature};
use crate::raw::*;
use crate::topology::Topology;

/// The stack size of threads that compile. XLA and LLVM recurse deeply on large programs, but spawned threads have only
/// 2 MiB of stack by default. With this size, chains of 20,000 operations compile.
const COMPILE_STACK: usize = 64 << 20;

impl Client {
    /// Compiles a StableHLO program, given as MLIR text, including the `sdy` dialect.
    ///
    /// `signature` lists the arguments of each device. It is compared with the compiled program if the plugin shows it,
    /// and with the arguments of each execution.
    ///
    /// # Errors
    /// Returns an error if the program does not parse or compile, the options do not match the client, or the signature
    /// does not match the program.
    pub fn compile(&self, mlir: &str, options: &CompileOptions, signature: Signature) -> Result<Executable> {
        self.check_local_devices(options)?;
        let loaded = self.compile_program("mlir", mlir.as_bytes(), options)?;
        self.executable(loaded, signature, None)
    }

    /// Compiles a serialized `HloModuleProto`, such as the result of
    /// [`Partitioned::localize`](crate::Partitioned::localize).
    ///
    /// # Errors
    /// Returns the errors of [`Client::compile`].
    pub fn compile_hlo(&self, module: &[u8], options: &CompileOptions, signature: Signature) -> Result<Executable> {
        self.check_local_devices(options)?;
        let loaded = self.compile_program("hlo", module, options)?;
        self.executable(loaded, signature, None)
    }

    /// Compiles a program and discards it.
    pub(crate) fn compile_only(&self, mlir: &str, options: &CompileOptions) -> Result<()> {
        let loaded = self.compile_program("mlir", mlir.as_bytes(), options)?;
        self.executable(loaded, Signature::default(), None).map(drop)
    }

    fn compile_program(&self, format: &'static str, code: &[u8], options: &CompileOptions) -> Result<Loaded> {
        let encoded = options.encode(self.ids())?;
        with_large_stack(|| {
            let program = program(format, code);
            let mut args = ClientCompile {
                client: self.inner.raw,
                program: &raw const program,
                compile_options: encoded.as_ptr().cast(),
                compile_options_size: encoded.len(),
                ..Default::default()
            };
            // SAFETY: the program and the options outlive the call.
            unsafe { self.api().call(&mut args)? };
            Ok(Loaded(args.executable))
        })
    }

    /// Returns an error for devices of other processes, because a plugin that does not know them would run their part
    /// on this process.
    fn check_local_devices(&self, options: &CompileOptions) -> Result<()> {
        if !self.has_owners() {
            return Ok(());
        }
        let mut devices = options.device_ids.iter().filter_map(|&id| self.device_by_id(id));
        match devices.find(|device| !device.is_addressable()) {
            Some(device) => self.check_device(device),
            None => Ok(()),
        }
    }

    /// Loads the bytes of [`Executable::serialize`]. The options must be the same as when the program was compiled,
    /// except for the devices.
    ///
    /// The bytes contain machine code and must come from a trusted source. A digest detects accidental damage.
    ///
    /// # Errors
    /// Returns an error if the bytes come from another plugin version or processor, are damaged, or contain a program
    /// with another signature; otherwise the errors of [`Client::compile`].
    pub fn deserialize(&self, bytes: &[u8], options: &CompileOptions, signature: Signature) -> Result<Executable> {
        self.check_local_devices(options)?;
        let plugin_ids = [self.plugin_id()?, self.topology_plugin_id()];
        let stored = cache_entry::decode(bytes, &plugin_ids, &signature.parameters)?;
        let encoded = options.encode(self.ids())?;
        let loaded = with_large_stack(|| {
            let mut args = DeserializeAndLoad {
                client: self.inner.raw,
                bytes: stored.program.as_ptr().cast(),
                bytes_size: stored.program.len(),
                overridden_options: encoded.as_ptr().cast(),
                overridden_options_size: encoded.len(),
                ..Default::default()
            };
            // SAFETY: the bytes and the options outlive the call.
            unsafe { self.api().call(&mut args)? };
            Ok(Loaded(args.loaded))
        })?;
        let outline = (!stored.outline.is_empty()).then(|| stored.outline.to_vec());
        let mut executable = self.executable(loaded, signature, outline)?;
        executable.bytes = Some(bytes.into());
        Ok(executable)
    }

    fn executable(&self, loaded: Loaded, signature: Signature, outline: Option<Vec<u8>>) -> Result<Executable> {
        let loaded = NonNull::new(loaded.0).ok_or_else(no_executable)?;
        let mut get = LoadedGetExecutable { loaded: loaded.as_ptr(), ..Default::default() };
        // SAFETY: the loaded executable is live, and this function owns it.
        let result = unsafe { self.api().call(&mut get) };
        let raw = match result.and_then(|()| NonNull::new(get.executable).ok_or_else(no_executable)) {
            Ok(raw) => raw,
            Err(error) => {
                self.destroy(loaded);
                return Err(error);
            }
        };
        // SAFETY: the executable is live, and this function owns it.
        let program = unsafe { CompiledProgram::from_raw(self.plugin(), raw, signature, outline, self.inner.is_cpu) };
        let mut program = match program {
            Ok(program) => program,
            Err(error) => {
                self.destroy(loaded);
                return Err(error);
            }
        };
        // Host functions are only registered for host memory.
        program.calls_host &= self.inner.is_cpu;
        let donated = if program.parameters.iter().any(|p| p.donated) {
            program.parameters.iter().map(|p| p.donated).collect()
        } else {
            Vec::new()
        };
        // From here on, dropping `executable` releases the loaded program.
        let mut executable = Executable {
            program,
            loaded,
            donated,
            devices: Vec::new(),
            device_ids: Vec::new(),
            launched: AtomicBool::new(false),
            bytes: None,
            client: self.clone(),
        };
        executable.read_devices()?;
        Ok(executable)
    }

    fn destroy(&self, loaded: NonNull<RawLoaded>) {
        let mut args = LoadedDestroy { executable: loaded.as_ptr(), ..Default::default() };
        // SAFETY: this function owns the pointer, and does not use it again.
        let _ = unsafe { self.api().call(&mut args) };
    }
}

impl Topology {
    /// Compiles a StableHLO program, given as MLIR text including the `sdy` dialect, for these devices, attached or
    /// not. The [device ids](CompileOptions::device_ids) must be ids of [`Topology::devices`].
    ///
    /// `signature` lists the arguments of each device, and is compared with the compiled program.
    ///
    /// # Errors
    /// Returns an error if the program does not parse or compile; it exceeds the devices' memory and the platform
    /// detects that ([`Code::ResourceExhausted`]); the options do not match the topology, or the signature does not
    /// match the program.
    pub fn compile(
        &self,
        mlir: &str,
        options: &CompileOptions,
        signature: Signature,
    ) -> Result<CrossCompiledExecutable> {
        let ids: Vec<usize> = self.devices().iter().map(|device| device.id()).collect();
        let encoded = options.encode(&ids)?;
        let compiled = with_large_stack(|| {
            let program = program("mlir", mlir.as_bytes());
            let mut args = TopologyCompile {
                topology: self.raw(),
                program: &raw const program,
                compile_options: encoded.as_ptr().cast(),
                compile_options_size: encoded.len(),
                ..Default::default()
            };
            // SAFETY: the topology is live, and the program and the options outlive the call.
            unsafe { self.plugin().api().call(&mut args)? };
            Ok(CrossCompiled(args.executable))
        })?;
        let raw = NonNull::new(compiled.0).ok_or_else(no_executable)?;
        // SAFETY: the executable is live, and this function owns it.
        let program = unsafe { CompiledProgram::from_raw(self.plugin(), raw, signature, None, false)? };
        Ok(CrossCompiledExecutable::new(program, self.clone()))
    }
}

fn no_executable() -> Error {
    Error::new(Code::Internal, "the plugin returned no executable")
}

fn program(format: &'static str, code: &[u8]) -> Program {
    Program {
        struct_size: size_of::<Program>(),
        extension_start: std::ptr::null_mut(),
        code: code.as_ptr().cast_mut().cast(), // read only
        code_size: code.len(),
        format: format.as_ptr().cast(),
        format_size: format.len(),
    }
}

/// Wrappers that let a new executable cross threads.
struct Loaded(*mut RawLoaded);
struct CrossCompiled(*mut RawExecutable);
// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Loaded {}
unsafe impl Send for CrossCompiled {}

fn with_large_stack<R: Send>(f: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| match std::thread::Builder::new().stack_size(COMPILE_STACK).spawn_scoped(scope, f) {
        Ok(thread) => {
            thread.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "the compiling thread panicked")))
        }
        Err(error) => Err(Error::new(Code::ResourceExhausted, format!("cannot start a thread to compile on: {error}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_entry::Stored;
    use crate::element::ElementType;
    use crate::named_value::Value;
    use crate::options::ParameterSpec;
    use crate::plugin::Plugin;

    fn signature(len: i64) -> Signature {
        Signature { parameters: vec![ParameterSpec::new(ElementType::F32, [len, 4])] }
    }

    /// Does not ask the plugin for the program that it has loaded, because the outline of the entry contains everything
    /// that the checks need.
    #[test]
    fn a_program_is_loaded_by_its_outline() {
        let client = Client::new(&Plugin::cpu().unwrap(), &[("cpu_device_count", Value::Int(4))]).unwrap();
        let options = CompileOptions {
            num_partitions: 4,
            propagate_to_outputs: vec![true],
            use_shardy: true,
            ..Default::default()
        };
        let compile = |len: i64| {
            let total_bytes = len * 4;
            let text = format!(
                "sdy.mesh @mesh = <[\"x\"=4]>\n\
                 func.func @main(%a: tensor<{total_bytes}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"x\"}}, {{}}]>}}) \
                 -> tensor<{total_bytes}x4xf32> {{\n\
                 %0 = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] \
                 : (tensor<{total_bytes}x4xf32>, tensor<{total_bytes}x4xf32>) -> tensor<4x4xf32>\n\
                 %1 = stablehlo.dot_general %a, %0, contracting_dims = [1] x [0] \
                 : (tensor<{total_bytes}x4xf32>, tensor<4x4xf32>) -> tensor<{total_bytes}x4xf32>\n\
                 return %1 : tensor<{total_bytes}x4xf32>\n}}"
            );
            client.compile(&text, &options, signature(len)).unwrap()
        };
        let compiled = compile(2);
        let bytes = compiled.serialize().unwrap();
        let ids = [client.plugin_id().unwrap()];
        let stored = cache_entry::decode(&bytes, &ids, &signature(2).parameters).unwrap();
        assert!(4 * stored.outline.len() < compiled.optimized_hlo_proto().unwrap().len());

        let loaded = client.deserialize(&bytes, &options, signature(2)).unwrap();
        assert_eq!(loaded.has_collectives(), Some(true));
        assert_eq!(loaded.calls_host(), compiled.calls_host());
        assert_eq!(loaded.output_shardings().unwrap(), compiled.output_shardings().unwrap());
        assert_eq!(loaded.parameter_shardings().unwrap(), compiled.parameter_shardings().unwrap());
        assert!(loaded.output_shardings().unwrap().is_some());
        assert_eq!(loaded.parameter_layouts(), compiled.parameter_layouts());
        assert_eq!(loaded.output_layouts(), compiled.output_layouts());

        // An outline of another program is an error.
        let other = compile(3).serialize().unwrap();
        let other = cache_entry::decode(&other, &ids, &signature(3).parameters).unwrap();
        let entry = |outline| cache_entry::encode(ids[0], &signature(2).parameters, Stored { outline, ..stored });
        let error = client.deserialize(&entry(other.outline), &options, signature(2)).unwrap_err();
        assert!(error.message.contains("the compiled program takes f32[3,4]"), "{error}");
        // Without an outline, the checks ask the plugin.
        let loaded = client.deserialize(&entry(&[]), &options, signature(2)).unwrap();
        assert_eq!(loaded.has_collectives(), Some(true));
    }
}
