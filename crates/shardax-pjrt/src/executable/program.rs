//! Properties of a compiled program, loaded or not.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::api::{Api, slice, text};
use crate::buffer::Dims;
use crate::cache_entry::{self, Stored};
use crate::element::{ElementType, ShapeText};
use crate::error::{Code, Error, Result};
use crate::hlo::{self, HloInstruction, Shardings, Summary};
use crate::layout::Layout;
use crate::named_value::{self, Value};
use crate::options::{ParameterSpec, Signature};
use crate::plugin::Plugin;
use crate::raw::*;
use crate::sharding::OpSharding;

/// Properties of a compiled program, [loaded](crate::Executable) or [cross-compiled](crate::CrossCompiledExecutable).
pub struct CompiledProgram {
    plugin: Plugin,
    raw: NonNull<RawExecutable>,
    pub(crate) parameters: Vec<ParameterSpec>,
    pub(crate) outputs: Vec<(ElementType, Dims)>,
    /// `None` if the plugin does not show its programs.
    pub(crate) has_collectives: Option<bool>,
    /// The program calls functions that the host may have registered.
    pub(crate) calls_host: bool,
    /// The part of the program that is needed to load it again ([`hlo::outline`]); `None` if the plugin does not show
    /// its programs.
    outline: Option<Vec<u8>>,
    shardings: OnceLock<Shardings>,
    /// Layouts of parameters and results; `None` if the plugin does not show its programs.
    layouts: Option<(Vec<Layout>, Vec<Layout>)>,
    /// For each parameter, the order of its elements if it is read in place and not row-major. Empty if all are
    /// row-major.
    pub(crate) in_orders: Vec<Option<Arc<Layout>>>,
    /// The orders of the results, as for the parameters.
    pub(crate) out_orders: Vec<Option<Arc<Layout>>>,
    /// True for CPU programs.
    reads_in_place: bool,
}

// SAFETY: PJRT executables may be used from any thread; the rest is immutable.
unsafe impl Send for CompiledProgram {}
unsafe impl Sync for CompiledProgram {}

/// Memory that an execution needs on each device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAnalysis {
    /// The machine code.
    pub generated_code: i64,
    /// The arguments.
    pub arguments: i64,
    /// The results.
    pub outputs: i64,
    /// The part of the arguments that results reuse.
    pub aliased: i64,
    /// The temporaries.
    pub temporaries: i64,
    /// The peak: arguments, results and live temporaries. The CPU plugin omits temporaries, so all of them are added,
    /// because a call allocates them together. The TPU plugin counts live values without the gaps between them, so its
    /// peak may be less than `temporaries`.
    pub peak: i64,
    /// The machine code in host memory.
    pub host_generated_code: i64,
    /// The arguments in host memory.
    pub host_arguments: i64,
    /// The results in host memory.
    pub host_outputs: i64,
    /// The part of the host arguments that results reuse.
    pub host_aliased: i64,
    /// The temporaries in host memory.
    pub host_temporaries: i64,
    /// Machine code and temporaries as the TPU plugin counts them; the CUDA plugin reports 0. `None` from plugins
    /// before C API 0.90.
    pub total_size: Option<i64>,
    /// All memory that is allocated. `None` from plugins before C API 0.104.
    pub total_allocation: Option<i64>,
    /// The part of `total_allocation` with indefinite lifetime. `None` from plugins before C API 0.104.
    pub indefinite_allocation: Option<i64>,
    /// The peak of the heap without padding. `None` from plugins before C API 0.104.
    pub peak_unpadded_heap: Option<i64>,
}

impl CompiledProgram {
    /// Takes ownership of a compiled program and compares it with the signature, so that the checks at a launch match
    /// the plugin's. `reads_in_place` states that results are read without a copy. If the `outline` is not known, it is
    /// computed from the program that the plugin returns.
    ///
    /// # Safety
    /// `raw` is a live executable of this plugin that nobody else destroys.
    pub(crate) unsafe fn from_raw(
        plugin: &Plugin,
        raw: NonNull<RawExecutable>,
        signature: Signature,
        outline: Option<Vec<u8>>,
        reads_in_place: bool,
    ) -> Result<CompiledProgram> {
        // From here on, dropping `program` cleans up.
        let mut program = CompiledProgram {
            plugin: plugin.clone(),
            raw,
            parameters: signature.parameters,
            outputs: Vec::new(),
            has_collectives: None,
            calls_host: false,
            outline,
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

    /// The parameters on each device.
    pub fn parameters(&self) -> &[ParameterSpec] {
        &self.parameters
    }

    /// Returns true if devices exchange data while the program runs, not counting custom calls. `None` if the plugin
    /// does not show its programs.
    pub fn has_collectives(&self) -> Option<bool> {
        self.has_collectives
    }

    /// Returns true if the program calls functions of this process.
    pub fn calls_host(&self) -> bool {
        self.calls_host
    }

    /// The number of results on each device.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The element type of each result.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = ElementType> {
        self.outputs.iter().map(|(ty, _)| *ty)
    }

    /// The shape of each result on one device.
    pub fn output_dims(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        self.outputs.iter().map(|(_, dims)| dims.as_slice())
    }

    /// Returns the program's name.
    ///
    /// # Errors
    /// Returns an error if the plugin fails.
    pub fn name(&self) -> Result<String> {
        let mut args = ExecutableName { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live and owns the text.
        unsafe {
            self.api().call(&mut args)?;
            Ok(text(args.text, args.text_size).into_owned())
        }
    }

    /// A text that is equal for equal programs compiled in the same way.
    ///
    /// # Errors
    /// Returns [`Code::Unimplemented`] on platforms without fingerprints.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = ExecutableFingerprint { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live and owns the text.
        unsafe {
            self.api().call(&mut args)?;
            // Some plugins return bytes that are not UTF-8.
            let bytes = slice(args.text.cast::<u8>(), args.text_size);
            Ok(match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
            })
        }
    }

    /// The optimized and partitioned program as a serialized `HloModuleProto`.
    ///
    /// # Errors
    /// Returns an error if the platform does not show its programs.
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
        // SAFETY: the first call returns the size, the second fills a buffer of that size.
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
                Err(Error::new(Code::Unimplemented, format!("the plugin returns its program in the format {other:?}")))
            }
        }
    }

    /// The instructions of the optimized program, including its fusions and collectives.
    ///
    /// # Errors
    /// Returns an error if the platform does not show its programs.
    pub fn instructions(&self) -> Result<Vec<HloInstruction>> {
        hlo::instructions(&self.optimized_hlo_proto()?)
    }

    /// The sharding of each result, specified or chosen by the compiler; `None` if the program was not partitioned.
    ///
    /// # Errors
    /// Returns an error if the platform does not show its programs.
    pub fn output_shardings(&self) -> Result<Option<Vec<OpSharding>>> {
        Ok(self.shardings()?.outputs.clone())
    }

    /// The sharding of each parameter, specified or chosen by the compiler; `None` if the program was not partitioned.
    ///
    /// # Errors
    /// Returns an error if the platform does not show its programs.
    pub fn parameter_shardings(&self) -> Result<Option<Vec<OpSharding>>> {
        Ok(self.shardings()?.parameters.clone())
    }

    fn shardings(&self) -> Result<&Shardings> {
        if let Some(shardings) = self.shardings.get() {
            return Ok(shardings);
        }
        let shardings = match &self.outline {
            Some(outline) => Shardings::decode(outline, self.num_outputs())?,
            None => Shardings::decode(&self.optimized_hlo_proto()?, self.num_outputs())?,
        };
        Ok(self.shardings.get_or_init(|| shardings))
    }

    /// The layout of each parameter, specified or chosen by the compiler; `None` if the plugin does not show its
    /// programs.
    pub fn parameter_layouts(&self) -> Option<&[Layout]> {
        self.layouts.as_ref().map(|(parameters, _)| &parameters[..])
    }

    /// The layout of each result, specified or chosen by the compiler; `None` if the plugin does not show its programs.
    pub fn output_layouts(&self) -> Option<&[Layout]> {
        self.layouts.as_ref().map(|(_, outputs)| &outputs[..])
    }

    /// The compiler's estimates, such as `flops` and `bytes accessed`.
    ///
    /// # Errors
    /// Returns an error if the platform has no estimates.
    pub fn cost_analysis(&self) -> Result<Vec<(String, Value)>> {
        let mut args = ExecutableCostAnalysis { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live and owns its properties.
        unsafe {
            self.api().call(&mut args)?;
            named_value::from_raw(args.properties, args.num_properties)
        }
    }

    /// The memory that an execution needs.
    ///
    /// # Errors
    /// Returns an error if the platform does not report it.
    pub fn memory_analysis(&self) -> Result<MemoryAnalysis> {
        let mut a = ExecutableMemoryStats { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live.
        unsafe { self.api().call(&mut a)? };
        let sum = a.argument.saturating_add(a.output).saturating_sub(a.alias).saturating_add(a.temp);
        // Fields that the plugin's version of the C API does not have are not filled in.
        let minor = self.plugin.api_version().1;
        Ok(MemoryAnalysis {
            generated_code: a.generated_code,
            arguments: a.argument,
            outputs: a.output,
            aliased: a.alias,
            temporaries: a.temp,
            peak: if self.reads_in_place { a.peak.max(sum) } else { a.peak },
            host_generated_code: a.host_generated_code,
            host_arguments: a.host_argument,
            host_outputs: a.host_output,
            host_aliased: a.host_alias,
            host_temporaries: a.host_temp,
            total_size: (minor >= 90).then_some(a.total_size),
            total_allocation: (minor >= 104).then_some(a.total_allocation),
            indefinite_allocation: (minor >= 104).then_some(a.indefinite_allocation),
            peak_unpadded_heap: (minor >= 104).then_some(a.peak_unpadded_heap),
        })
    }

    /// The kind of memory of each result: `device`, `pinned_host`, …
    ///
    /// # Errors
    /// Returns an error if the platform does not report it.
    pub fn output_memory_kinds(&self) -> Result<Vec<String>> {
        let mut args = ExecutableOutputMemoryKinds { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live and owns the lists and their texts.
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
        // SAFETY: the executable is live and owns the lists.
        let (types, sizes, mut dims) = unsafe {
            self.api().call(&mut count)?;
            self.api().call(&mut types)?;
            self.api().call(&mut shapes)?;
            let sizes = slice(shapes.dim_sizes, shapes.num_outputs);
            (slice(types.types, types.num_types), sizes, slice(shapes.dims, sizes.iter().sum()))
        };
        // A launch writes `num_outputs` pointers, so the lists must have that length.
        if types.len() != count.num_outputs || sizes.len() != count.num_outputs {
            return Err(Error::new(Code::Internal, "the plugin reports two different numbers of outputs"));
        }
        let mut outputs = Vec::with_capacity(types.len());
        for (&ty, &rank) in types.iter().zip(sizes) {
            let ty = ElementType::from_raw(ty).ok_or_else(|| {
                Error::new(
                    Code::Unimplemented,
                    format!("a result has PJRT element type {ty}, which is not an array type"),
                )
            })?;
            let (these, rest) = dims.split_at(rank);
            dims = rest;
            outputs.push((ty, Dims::from_slice(these)));
        }
        self.outputs = outputs;
        Ok(())
    }

    /// Writes the plugin's bytes as a cache entry of this plugin.
    pub(super) fn cache_entry(&self, plugin_id: &str) -> Result<Vec<u8>> {
        let mut args = ExecutableSerialize { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: the executable is live; the bytes are valid until they are freed below.
        unsafe {
            self.api().call(&mut args)?;
            let stored = Stored {
                outline: self.outline.as_deref().unwrap_or_default(),
                program: slice(args.bytes.cast::<u8>(), args.bytes_size),
            };
            let bytes = cache_entry::encode(plugin_id, &self.parameters, stored);
            if let Some(free) = args.deleter {
                free(args.serialized);
            }
            Ok(bytes)
        }
    }

    fn check_signature(&mut self, reads_in_place: bool) -> Result<()> {
        let outline = match self.outline.take() {
            Some(outline) => outline,
            None => match self.optimized_hlo_proto() {
                Ok(module) => hlo::outline(&module)?,
                Err(error) if error.code == Code::Unimplemented => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        let summary = Summary::decode(&outline)?;
        self.outline = Some(outline);
        if summary.parameters.len() != self.parameters.len() {
            return Err(Error::invalid_argument(format!(
                "the signature has {} parameters, but the compiled program has {}",
                self.parameters.len(),
                summary.parameters.len()
            )));
        }
        for (i, (spec, (ty, dims))) in self.parameters.iter().zip(&summary.parameters).enumerate() {
            let Some(ty) = *ty else {
                return Err(Error::invalid_argument(format!("parameter {i} of the program is not an array")));
            };
            if spec.ty != ty || spec.dims != *dims {
                return Err(Error::invalid_argument(format!(
                    "parameter {i} is {} in the signature, but on each device the compiled program takes {}",
                    ShapeText(spec.ty, &spec.dims),
                    ShapeText(ty, dims)
                )));
            }
        }
        for &i in &summary.donated {
            if self.parameters.get(i).is_some_and(|spec| !spec.donated) {
                return Err(Error::invalid_argument(format!(
                    "the program donates parameter {i} (tf.aliasing_output or jax.buffer_donor), and the signature \
                     does not",
                )));
            }
        }
        if summary.output_layouts.len() != self.outputs.len() {
            return Err(Error::new(Code::Internal, "the plugin reports two different numbers of outputs"));
        }
        // On other platforms, reading asks the plugin for row-major copies.
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

/// The layouts that are not row-major; empty if all are.
fn orders(layouts: &[Layout]) -> Result<Vec<Option<Arc<Layout>>>> {
    if layouts.iter().all(Layout::is_row_major) {
        return Ok(Vec::new());
    }
    if layouts.iter().any(|layout| !layout.tiles.is_empty()) {
        return Err(Error::new(
            Code::Unimplemented,
            "the program has a value with a tiled layout, which cannot be read in place",
        ));
    }
    Ok(layouts.iter().map(|layout| (!layout.is_row_major()).then(|| Arc::new(layout.clone()))).collect())
}

impl Drop for CompiledProgram {
    fn drop(&mut self) {
        let mut args = ExecutableDestroy { executable: self.raw.as_ptr(), ..Default::default() };
        // SAFETY: this crate owns it; running executions keep what they need.
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
