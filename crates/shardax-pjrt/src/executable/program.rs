//! A compiled program by itself, whether it is loaded or not: what can be asked of it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::api::{Api, slice, text};
use crate::buffer::Dims;
use crate::cache_entry;
use crate::element::{ElementType, ShapeText};
use crate::error::{Code, Error, Result};
use crate::hlo::{self, HloInstruction, Shardings, Summary};
use crate::layout::Layout;
use crate::named_value::{self, Value};
use crate::options::{ParameterSpec, Signature};
use crate::plugin::Plugin;
use crate::raw::*;
use crate::sharding::OpSharding;

/// What can be asked of a compiled program, be it [loaded](crate::Executable) or [not](crate::CrossCompiledExecutable).
pub struct CompiledProgram {
    plugin: Plugin,
    raw: NonNull<RawExecutable>,
    pub(crate) parameters: Vec<ParameterSpec>,
    pub(crate) outputs: Vec<(ElementType, Dims)>,
    /// `None` when the plugin does not show its programs.
    pub(crate) has_collectives: Option<bool>,
    /// It calls functions that may be registered by the host.
    pub(crate) calls_host: bool,
    shardings: OnceLock<Shardings>,
    /// How parameters and results lie in memory; `None` when the plugin does not show its programs.
    layouts: Option<(Vec<Layout>, Vec<Layout>)>,
    /// The order of each parameter's elements, where they are not row-major and are read in place. Empty when all are.
    pub(crate) in_orders: Vec<Option<Arc<Layout>>>,
    /// The same of each result.
    pub(crate) out_orders: Vec<Option<Arc<Layout>>>,
    /// Whether it is one of the CPU.
    reads_in_place: bool,
}

// SAFETY: PJRT executables may be used from any thread; the rest is immutable.
unsafe impl Send for CompiledProgram {}
unsafe impl Sync for CompiledProgram {}

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
    /// The most at once: arguments, results, and what is alive between. On the CPU, whose plugin leaves the temporaries
    /// out, all of them, as they are allocated together for a call. A TPU's plugin counts what is alive alone, and not
    /// the gaps between, so that it may be less than `temporaries`.
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
    /// The program and what it needs between, as the TPU's plugin counts it; the CUDA plugin says 0. `None` from plugins
    /// before C API 0.90.
    pub total_size: Option<i64>,
    /// What is allocated for it in all. `None` from plugins before C API 0.104.
    pub total_allocation: Option<i64>,
    /// Of that, what has no end. `None` from plugins before C API 0.104.
    pub indefinite_allocation: Option<i64>,
    /// The most of the heap at once, without what padding adds. `None` from plugins before C API 0.104.
    pub peak_unpadded_heap: Option<i64>,
}

impl CompiledProgram {
    /// Takes a compiled program over and compares it with the signature, so that what is checked at every launch is
    /// what the plugin expects. `reads_in_place` says whether results are read where they lie.
    ///
    /// # Safety
    /// `raw` is a live executable of this plugin that nobody else destroys.
    pub(crate) unsafe fn from_raw(
        plugin: &Plugin,
        raw: NonNull<RawExecutable>,
        signature: Signature,
        reads_in_place: bool,
    ) -> Result<CompiledProgram> {
        // From here on, dropping it cleans up.
        let mut program = CompiledProgram {
            plugin: plugin.clone(),
            raw,
            parameters: signature.parameters,
            outputs: Vec::new(),
            has_collectives: None,
            calls_host: false,
            shardings: OnceLock::new(),
            layouts: None,
            in_orders: Vec::new(),
            out_orders: Vec::new(),
            reads_in_place,
        };
        program.read_outputs()?;
        program.check_signature(reads_in_place)?;
        Ok(program)
    }

    fn api(&self) -> &Api {
        self.plugin.api()
    }

    /// The parameters, as each device sees them.
    pub fn parameters(&self) -> &[ParameterSpec] {
        &self.parameters
    }

    /// Whether devices exchange data while it runs. Custom calls are not looked into. `None` when the plugin does
    /// not show its programs.
    pub fn has_collectives(&self) -> Option<bool> {
        self.has_collectives
    }

    /// Whether it calls functions of this process.
    pub fn calls_host(&self) -> bool {
        self.calls_host
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

    /// How each parameter lies in memory, given or chosen by the compiler; `None` when the plugin does not show its
    /// programs.
    pub fn parameter_layouts(&self) -> Option<&[Layout]> {
        self.layouts.as_ref().map(|(parameters, _)| &parameters[..])
    }

    /// How each result lies in memory, given or chosen by the compiler; `None` when the plugin does not show its programs.
    pub fn output_layouts(&self) -> Option<&[Layout]> {
        self.layouts.as_ref().map(|(_, outputs)| &outputs[..])
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
            named_value::from_raw(args.properties, args.num_properties)
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
        let whole = a.argument.saturating_add(a.output).saturating_sub(a.alias).saturating_add(a.temp);
        let since = |minor: i32, value: i64| (self.plugin.api_version().1 >= minor).then_some(value);
        Ok(MemoryAnalysis {
            generated_code: a.generated_code,
            arguments: a.argument,
            outputs: a.output,
            aliased: a.alias,
            temporaries: a.temp,
            peak: if self.reads_in_place { a.peak.max(whole) } else { a.peak },
            host_generated_code: a.host_generated_code,
            host_arguments: a.host_argument,
            host_outputs: a.host_output,
            host_aliased: a.host_alias,
            host_temporaries: a.host_temp,
            total_size: since(90, a.total_size),
            total_allocation: since(104, a.total_allocation),
            indefinite_allocation: since(104, a.indefinite_allocation),
            peak_unpadded_heap: since(104, a.peak_unpadded_heap),
        })
    }

    /// The kind of memory that each result lies in: `device`, `pinned_host`, …
    ///
    /// # Errors
    /// The platform does not tell.
    pub fn output_memory_kinds(&self) -> Result<Vec<String>> {
        let mut args = ExecutableOutputMemoryKinds { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live, and so are the lists and the texts in them.
        unsafe {
            self.api().call(&mut args)?;
            let kinds = slice(args.kinds, args.num_outputs).iter().zip(slice(args.kind_sizes, args.num_outputs));
            Ok(kinds.map(|(&kind, &size)| text(kind, size).into_owned()).collect())
        }
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

    /// The plugin's bytes, sealed as this engine's.
    pub(super) fn cache_entry(&self, plugin_id: &str) -> Result<Vec<u8>> {
        let mut args = ExecutableSerialize { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live; the bytes are until they are freed below.
        unsafe {
            self.api().call(&mut args)?;
            let bytes =
                cache_entry::encode(plugin_id, &self.parameters, slice(args.bytes.cast::<u8>(), args.bytes_size));
            if let Some(free) = args.deleter {
                free(args.serialized);
            }
            Ok(bytes)
        }
    }

    fn check_signature(&mut self, reads_in_place: bool) -> Result<()> {
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
        if summary.output_layouts.len() != self.outputs.len() {
            return Err(Error::new(Code::Internal, "the plugin contradicts itself on the number of outputs"));
        }
        // Elsewhere the plugin is asked for row-major copies.
        if reads_in_place {
            self.in_orders = orders(&summary.parameter_layouts)?;
            self.out_orders = orders(&summary.output_layouts)?;
        }
        self.layouts = Some((summary.parameter_layouts, summary.output_layouts));
        self.has_collectives = Some(summary.has_collectives);
        self.calls_host = summary.calls_host;
        Ok(())
    }
}

/// Those that are not row-major; none where all are.
fn orders(layouts: &[Layout]) -> Result<Vec<Option<Arc<Layout>>>> {
    if layouts.iter().all(Layout::is_row_major) {
        return Ok(Vec::new());
    }
    if layouts.iter().any(|layout| !layout.tiles.is_empty()) {
        return Err(Error::new(
            Code::Unimplemented,
            "the program has a value that lies in tiles, which is not read in place",
        ));
    }
    Ok(layouts.iter().map(|layout| (!layout.is_row_major()).then(|| Arc::new(layout.clone()))).collect())
}

impl Drop for CompiledProgram {
    fn drop(&mut self) {
        let mut args = ExecutableDestroy { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: it is ours; runs under way keep what they need.
        let _ = unsafe { self.api().call(&mut args) };
    }
}

impl fmt::Debug for CompiledProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledProgram")
            .field("parameters", &self.parameters.len())
            .field("outputs", &self.outputs.len())
            .finish_non_exhaustive()
    }
}
