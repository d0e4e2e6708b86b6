//! Ahead-of-time compilation: `lower` returns a [`Lowered`], whose `compile` returns a [`Compiled`].

mod collectives;
mod concurrent;
mod cross_compiled;
mod eval_shape;
mod formats;
mod leaves;
pub(crate) mod lower;
mod overlap;
mod report;
mod traced;
mod traffic;

pub use crate::compiler_options::CompilerOption;
pub use collectives::{Collective, CollectiveKind, Collectives};
pub use concurrent::compile_all;
pub use cross_compiled::CrossCompiled;
pub(crate) use eval_shape::abstract_array;
pub use eval_shape::{ShapeDtypeStruct, eval_shape, shape_dtype_struct, shape_dtype_struct_on};
pub use leaves::{ArgInfo, LeafTree};
pub use shardax_pjrt::MemoryAnalysis;
pub use traced::Traced;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;
use std::sync::Arc;

use super::callable::{CallConvention, Callable};
use super::execute::LoadedProgram;
use super::load::Request;
use super::placement::{Place, splits_alike};
use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::lower::Platform;
use crate::core::lower::module::Donation;
use crate::core::program::{Aval, Program};
use crate::core::tree::{self, Flat, Tree, TreeDef};
use crate::error::{AtCaller, Result, err};
use crate::ops::checkify::Errors;
use crate::sharding::{Mesh, Sharding, Topology};
use crate::warning;

/// A function that was traced for its arguments and placed. It contains everything that is needed to compile and call
/// it.
pub(crate) struct LoweredFn {
    pub request: Request,
    pub convention: CallConvention,
    pub in_def: TreeDef,
    /// The types of all arguments, including unused ones.
    pub in_avals: Vec<Aval>,
    /// Marks the donated arguments.
    pub donated: Vec<bool>,
}

impl LoweredFn {
    /// Compiles the function, for calls without further checks.
    pub fn load(self) -> Result<Callable> {
        self.warn_of_donations();
        let (loaded, convention) = (self.request.load()?, self.convention);
        Ok(Callable { loaded, stages: None, convention, errors: Errors::none(), reusable: true, aux: None })
    }

    /// Returns the donated arguments whose memory no result reuses, each with `true` if the program uses the argument.
    fn unused_donations(&self) -> Vec<(usize, bool)> {
        let used = self.request.donations();
        let CallConvention { captures, kept, .. } = &self.convention;
        let donated = (0..self.donated.len()).filter(|&i| self.donated[i]);
        let positions = donated.map(|i| (i, kept.iter().position(|k| *k == i)));
        let unused =
            positions.filter(|(_, position)| position.is_none_or(|k| used[captures.len() + k] == Donation::None));
        unused.map(|(i, position)| (i, position.is_some())).collect()
    }

    /// Warns of unusable donations, once per compilation. As in JAX, unused arguments are not reported.
    fn warn_of_donations(&self) {
        let unused: Vec<usize> =
            self.unused_donations().into_iter().filter(|(_, kept)| *kept).map(|(i, _)| i).collect();
        if unused.is_empty() {
            return;
        }
        let paths = self.in_def.paths();
        let types: Vec<String> = unused.iter().map(|&i| self.in_avals[i].to_string()).collect();
        let arguments: Vec<String> = unused.iter().map(|&i| format!("argument{}", paths[i])).collect();
        warning::warn(
            &format!(
                "Some donated buffers were not usable: {} ({} of {}).",
                types.join(", "),
                arguments.join(", "),
                self.request.name,
            ),
            "only a result of the same shape, dtype, sharding and layout in memory can reuse donated memory; if there is none, remove the argument from donate_argnums",
        );
    }

    /// Finds the sharding of an argument among `inputs`, the shardings of the program's inputs; `None` for an unused
    /// argument.
    fn in_sharding<'a>(&self, inputs: &'a [Sharding], argument: usize) -> Option<&'a Sharding> {
        let CallConvention { captures, kept, .. } = &self.convention;
        let position = kept.iter().position(|k| *k == argument)?;
        inputs.get(captures.len() + position)
    }

    fn out_info(&self) -> LeafTree<Aval> {
        LeafTree::new(&self.convention.out_def, self.request.program.out_avals())
    }

    fn args_info(&self) -> LeafTree<ArgInfo> {
        LeafTree::new(
            &self.in_def,
            self.in_avals
                .iter()
                .zip(&self.donated)
                .map(|(aval, donated)| ArgInfo { aval: aval.clone(), donated: *donated })
                .collect(),
        )
    }
}

/// A function lowered for arguments of certain types: the result of `lower` of a [`jit`](crate::jit()), a
/// [`pmap`](crate::pmap()) or a [`shard_map`](crate::shard_map).
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| x.sin() * 2);
/// let lowered = f.lower(array([1.0f32, 2.0]))?;
/// assert!(lowered.as_text().contains("stablehlo.sine"));
/// let compiled = lowered.compile()?;
/// assert_eq!(compiled.call(array([0.0f32, 0.0]))?.to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub struct Lowered<Args, Out> {
    lowered: Arc<LoweredFn>,
    text: Arc<str>,
    types: PhantomData<fn(Args) -> Out>,
}

impl<Args: Tree, Out: Tree> Lowered<Args, Out> {
    pub(crate) fn new(lowered: LoweredFn) -> Result<Self> {
        Lowered::of(Arc::new(lowered))
    }

    fn of(lowered: Arc<LoweredFn>) -> Result<Self> {
        if !lowered.convention.refs.is_empty() {
            return Err(err!(
                Value,
                "{} uses a ref that was made outside of it, and cannot be lowered ahead of time",
                lowered.request.name
            )
            .help("make the ref inside of the function, or pass its value as an argument and return the new one"));
        }
        let text = lowered.request.lower(false)?.into();
        lowered.warn_of_donations();
        Ok(Lowered { lowered, text, types: PhantomData })
    }

    /// The lowered function.
    pub(crate) fn lowered_fn(&self) -> &LoweredFn {
        &self.lowered
    }

    /// Returns the arrays that the function captured. They are the first arguments of the `main` of
    /// [`as_text`](Lowered::as_text), in the same order, so you must supply them if you run the text by other means.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let w = array([1.0f32, 2.0]);
    /// let lowered = jit(move |x: Array| x * &w).lower(ones([2]))?;
    /// assert!(lowered.as_text().contains("@main(%0: tensor<2xf32>, %1: tensor<2xf32>)"));
    /// assert_eq!(lowered.captures()[0].to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn captures(&self) -> Vec<Array> {
        self.lowered.convention.captures.iter().map(|c| Array::from_shared(c.clone())).collect()
    }

    /// Returns the name of the function, which is the name of the compiled program.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// fn double(x: Array) -> Array {
    ///     x * 2
    /// }
    /// assert_eq!(jit(double).lower(1.0)?.name(), "double");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.lowered.request.name
    }

    /// Returns the program as StableHLO text, with `sdy` shardings. The arguments of `main` are the [captured
    /// arrays](Lowered::captures), then the used arguments. The text can call functions of this process (on CPU also
    /// for matrix multiplications); use [`export`](crate::export::export) for portable text.
    pub fn as_text(&self) -> &str {
        &self.text
    }

    /// Like [`as_text`](Lowered::as_text) with the location of each operation and argument: its name, with the
    /// [scopes](crate::named_scope) around it, and the user's source line (JAX's `as_text(debug_info=True)`).
    ///
    /// # Errors
    /// Returns an error if a primitive has no rule for the platform.
    pub fn as_text_with_debug_info(&self) -> Result<String> {
        self.lowered.request.text(true)
    }

    /// Returns the text for as many devices of another platform (`cpu`, `cuda`, `tpu`, or one of these and `portable`).
    /// It needs no plugin, so tests can compare it.
    #[doc(hidden)]
    pub fn text_for(&self, platform: &str) -> Result<String> {
        let request = &self.lowered.request;
        match platform.strip_suffix(" portable") {
            Some(platform) => request.portable_text(Platform::named(platform), false),
            None => request.text_on(Platform::named(platform)),
        }
    }

    /// Returns the program before lowering. Its first inputs are captured arrays; unused arguments are missing.
    pub fn program(&self) -> &Program {
        &self.lowered.request.program
    }

    /// Returns the type of each argument, and its donation.
    pub fn args_info(&self) -> LeafTree<ArgInfo> {
        self.lowered.args_info()
    }

    /// Returns the type of each result.
    pub fn out_info(&self) -> LeafTree<Aval> {
        self.lowered.out_info()
    }

    /// Returns the sharding of each argument, as far as it is determined before compilation; `None` for unused
    /// arguments.
    pub fn input_shardings(&self) -> LeafTree<Option<Sharding>> {
        let lowered = &self.lowered;
        let arguments = 0..lowered.in_avals.len();
        let shardings =
            arguments.map(|i| lowered.in_sharding(&lowered.request.in_shardings, i).map(|s| s.in_layout(None)));
        LeafTree::new(&lowered.in_def, shardings.collect())
    }

    /// Returns the unused arguments: `main` lacks them, although [`args_info`](Lowered::args_info) lists them.
    /// [`keep_unused`](crate::Jit::keep_unused) keeps them.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = jit(|(x, _unused): (Array, Array)| x * 2);
    /// let lowered = f.lower((ones([2]), ones([3])))?;
    /// assert_eq!(lowered.dropped_arguments(), ["argument[0][1] of type float32[3]"]);
    /// assert!(lowered.as_text_with_debug_info()?.contains("\"argument[0][0]\""));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn dropped_arguments(&self) -> Vec<String> {
        let lowered = &self.lowered;
        let paths = lowered.in_def.paths();
        let mut dropped = vec![true; lowered.in_avals.len()];
        lowered.convention.kept.iter().for_each(|&i| dropped[i] = false);
        let dropped = (0..dropped.len()).filter(|&i| dropped[i]);
        dropped.map(|i| format!("argument{} of type {}", paths[i], lowered.in_avals[i])).collect()
    }

    /// Donated arguments whose memory no result can reuse, because none has their type and sharding. They stay alive.
    pub fn unused_donations(&self) -> Vec<String> {
        let lowered = &self.lowered;
        let paths = lowered.in_def.paths();
        lowered
            .unused_donations()
            .into_iter()
            .map(|(i, _)| format!("argument{} of type {}", paths[i], lowered.in_avals[i]))
            .collect()
    }

    /// Compiles the function for the devices of its arguments and shardings.
    ///
    /// # Errors
    /// Returns an error if XLA rejects the program, for example because it needs more memory than a device has.
    pub fn compile(&self) -> Result<Compiled<Args, Out>> {
        Ok(self.compiled(self.lowered.request.clone().load()?))
    }

    /// Compiles the function with XLA options, by name: `("xla_cpu_enable_fast_math", true.into())`.
    ///
    /// # Errors
    /// Returns an error if XLA rejects the program or does not know an option.
    pub fn compile_with_options(&self, options: &[(&str, CompilerOption)]) -> Result<Compiled<Args, Out>> {
        Ok(self.compiled(Arc::new(self.lowered.request.compile(options)?)))
    }

    /// Compiles the function for the devices of a topology, which need not be present: the platform's compiler reports
    /// the memory of each device and the communication. No client is started, and nothing runs.
    ///
    /// If the function was lowered for other devices, for CPUs or without placement, it is lowered again for the
    /// platform of the topology, and compiled for as many of the topology's devices.
    ///
    /// # Errors
    /// Returns an error if the topology has too few devices, if the platform does not support an operation, and, on
    /// TPU, when the program does not fit a device's memory.
    #[track_caller]
    pub fn compile_for(&self, topology: &Topology) -> Result<CrossCompiled<Args, Out>> {
        self.compile_for_with_options(topology, &[])
    }

    /// Like [`compile_for`](Lowered::compile_for) with XLA options, by name:
    /// `("xla_tpu_enable_latency_hiding_scheduler", true.into())`.
    ///
    /// # Errors
    /// Returns an error if the compiler for the topology cannot be found, or if it rejects the program or an
    /// option.
    #[track_caller]
    pub fn compile_for_with_options(
        &self,
        topology: &Topology,
        options: &[(&str, CompilerOption)],
    ) -> Result<CrossCompiled<Args, Out>> {
        let program = self.lowered.request.compile_for(topology, options).at_caller()?;
        Ok(CrossCompiled::new(self.lowered.clone(), program))
    }

    /// Returns the compiler's cost estimates of one call on a device, such as `flops` and `bytes accessed`.
    ///
    /// Compiles the program.
    ///
    /// # Errors
    /// Returns an error if the platform has no estimates.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        self.compile()?.cost_analysis()
    }

    fn compiled(&self, loaded: Arc<LoadedProgram>) -> Compiled<Args, Out> {
        Compiled { lowered: self.lowered.clone(), loaded, types: PhantomData }
    }
}

impl<Args, Out> Clone for Lowered<Args, Out> {
    fn clone(&self) -> Self {
        Lowered { lowered: self.lowered.clone(), text: self.text.clone(), types: PhantomData }
    }
}

/// `Lowered(step)`, with one line for each argument.
impl<Args, Out> fmt::Debug for Lowered<Args, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lowered({})\n{}", self.lowered.request.name, self.lowered.args_info())
    }
}

/// A function compiled for arguments of certain types and shardings; calling it with others is an error.
///
/// [`Lowered::compile`] returns it. You call it like the function.
pub struct Compiled<Args, Out> {
    lowered: Arc<LoweredFn>,
    loaded: Arc<LoadedProgram>,
    types: PhantomData<fn(Args) -> Out>,
}

impl<Args: Tree, Out: Tree> Function<Args> for Compiled<Args, Out> {
    type Output = Out;

    fn apply(&self, args: Args) -> Result<Out> {
        let flat = Flat::from_arguments(&args);
        self.check(&flat)?;
        let convention = &self.lowered.convention;
        tree::rebuild(&convention.out_def, convention.call(&self.loaded, None, &flat)?)
    }
}

impl<Args: Tree, Out: Tree> Compiled<Args, Out> {
    /// Loads a compiled program from the bytes of [`Compiled::serialize`] or [`CrossCompiled::serialize`], possibly in
    /// another process, so that a program which many processes run is compiled only once.
    ///
    /// The loaded code is executed, so the bytes must come from a trusted source. A digest protects against accidents
    /// only.
    ///
    /// # Errors
    /// Returns an error for damaged bytes, for another program (captured arrays can have other values, but constants in
    /// the text cannot), and for another plugin, processor or number of devices.
    #[track_caller]
    pub fn load(lowered: &Lowered<Args, Out>, bytes: &[u8]) -> Result<Self> {
        let loaded = lowered.lowered.request.load_bytes(bytes).at_caller()?;
        Ok(lowered.compiled(Arc::new(loaded)))
    }
}

impl<Args, Out> Compiled<Args, Out> {
    /// Returns the bytes of the compiled program, for [`Compiled::load`] on a machine like this one.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let double = jit(|x: Array| x * 2);
    /// let lowered = double.lower(shape_dtype_struct([4], DType::I32))?;
    /// let bytes = lowered.compile()?.serialize()?;
    /// let loaded = Compiled::load(&lowered, &bytes)?;
    /// assert_eq!(loaded.call(arange(0..4))?.to_vec::<i32>()?, [0, 2, 4, 6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for programs that call host functions or have devices of other processes, and on platforms
    /// without serialization.
    #[track_caller]
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.lowered.request.bytes_of(&self.loaded).at_caller()
    }

    fn check(&self, flat: &Flat) -> Result<()> {
        let lowered = &self.lowered;
        if flat.def != lowered.in_def {
            return Err(err!(
                Type,
                "Function compiled with input pytree does not match the input pytree it was called with: {}",
                lowered.in_def.difference(&flat.def)
            )
            .help("a compiled function accepts arguments of one structure only, including plain numbers and static values; lower it again for other arguments"));
        }
        // Structure, types, shardings and layouts are compared in this order, as in JAX.
        for (i, leaf) in flat.leaves.iter().enumerate() {
            leaf.check().map_err(|e| e.context(format!("argument{}", flat.def.paths()[i])))?;
            if leaf.is_traced() {
                return Err(err!(
                    Type,
                    "Cannot apply transformations to a function lowered and compiled for a particular signature: argument{} is a value of a function being traced",
                    flat.def.paths()[i]
                )
                .help("transform the function before it is lowered"));
            }
        }
        self.mismatches(flat, &|i, leaf| {
            let (have, want) = (leaf.aval(), &lowered.in_avals[i]);
            let same = (have.dtype, &have.shape) == (want.dtype, &want.shape);
            (!same).then(|| format!("compiled with {want} and called with {have}"))
        })
        .map_or(Ok(()), |list| {
            Err(err!(
                Type,
                "Argument types differ from the types for which this computation was compiled. The mismatches are:{list}"
            )
            .help(match self.loaded.partitioned {
                None => "convert them, or lower and compile the function for these types",
                Some(_) => "a function that is compiled ahead of time accepts and returns global arrays; convert with `multihost::host_local_array_to_global_array` and `global_array_to_host_local_array`",
            }))
        })?;
        self.mismatches(flat, &|i, leaf| {
            let have = leaf.concrete_ref().filter(|c| c.committed).map(|c| &c.sharding)?;
            let want = self.in_sharding(i)?;
            let same = have.devices() == want.devices() && splits_alike(have, want, leaf.ndim());
            (!same).then(|| format!("of type {}: passed sharding {have}, required sharding {want}", leaf.aval()))
        })
        .map_or(Ok(()), |list| {
            Err(err!(
                Value,
                "Computation was compiled for input shardings that disagree with the shardings of arguments passed to it. The mismatches are:{list}"
            )
            .help("move them with `device_put(x, sharding)`, or lower and compile the function for these shardings"))
        })?;
        self.check_layouts(flat)
    }

    /// One line for each argument with an error.
    fn mismatches(&self, flat: &Flat, wrong: &dyn Fn(usize, &Array) -> Option<String>) -> Option<String> {
        let mut list = String::new();
        for (i, leaf) in flat.leaves.iter().enumerate() {
            if let Some(what) = wrong(i, leaf) {
                let _ = write!(list, "\n  argument{} {what}", flat.def.paths()[i]);
            }
        }
        (!list.is_empty()).then_some(list)
    }

    /// The sharding of an argument; `None` for an unused one.
    fn in_sharding(&self, argument: usize) -> Option<&Sharding> {
        self.lowered.in_sharding(&self.loaded.in_shardings, argument)
    }

    /// Returns the mesh; `None` for a program on one device.
    pub fn mesh(&self) -> Option<&Mesh> {
        match &self.loaded.place {
            Place::Mesh(mesh) => Some(mesh),
            Place::Single(_) => None,
        }
    }

    /// Returns the optimized program, as HLO text: computation by computation, each instruction with its shape on one
    /// device.
    ///
    /// # Errors
    /// Returns an error if the platform does not expose its programs.
    pub fn as_text(&self) -> Result<String> {
        Ok(report::text(&self.loaded.name, &self.loaded.instructions()?))
    }

    /// Returns the communication of the compiled program: each kind of collective with its axes, bytes and count.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let total = pmap(|x: Array| psum(x, "i")).axis_name("i");
    /// let compiled = total.lower(arange(0..8))?.compile()?;
    /// println!("{}", compiled.collectives()?); // all-reduce over 'i', 4 bytes on each device, ×1
    /// assert_eq!(compiled.collectives()?.count(), 1);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the platform does not expose its programs.
    pub fn collectives(&self) -> Result<Collectives> {
        Ok(Collectives::of(&self.loaded.instructions()?, self.mesh()))
    }

    /// Returns the memory of one call on each device.
    ///
    /// # Errors
    /// Returns an error if the platform does not report it.
    pub fn memory_analysis(&self) -> Result<MemoryAnalysis> {
        Ok(self.loaded.executable.memory_analysis()?)
    }

    /// Returns the bytes that one call reads from a device's memory and writes to it, estimated from the optimized
    /// program: the operands and results of each instruction, once per execution. A fusion counts as one instruction.
    /// Caches are ignored. Loops with an unknown number of iterations count once.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let double = jit(|x: Array| x * 2.0).lower(shape_dtype_struct([1000], DType::F32))?.compile()?;
    /// assert_eq!(double.bytes_accessed()?, 8000);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the platform does not expose its programs.
    pub fn bytes_accessed(&self) -> Result<usize> {
        Ok(traffic::bytes_accessed(&self.loaded.instructions()?))
    }

    /// Returns the floating-point operations of one call on one device in matrix multiplications and convolutions, two
    /// for each multiply-add.
    ///
    /// They are counted in the optimized program. An operation in a loop counts once per iteration, or once if the
    /// number of iterations is unknown. Work that several devices repeat counts on each of them. Host functions, and
    /// small products that the compiler turned into sums, are not included.
    /// [`Program::flops`](crate::program::Program::flops) counts the operations of all devices together.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("data", 4), ("model", 2)])?;
    /// let x = shape_dtype_struct_on([64, 32], DType::F32, NamedSharding::new(&mesh, P!["data"]));
    /// let w = shape_dtype_struct_on([32, 16], DType::F32, NamedSharding::new(&mesh, P![]));
    /// let lowered = jit(|x: Array, w: Array| x.dot(w)).lower((x, w))?;
    /// assert_eq!(lowered.program().flops().matmuls, 2.0 * 64.0 * 32.0 * 16.0);
    /// // The devices along `model` repeat what the others do.
    /// assert_eq!(lowered.compile()?.matmul_flops()?, 2.0 * 16.0 * 32.0 * 16.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the platform does not expose its programs.
    pub fn matmul_flops(&self) -> Result<f64> {
        Ok(traffic::matmul_flops(&self.loaded.instructions()?))
    }

    /// Returns the compiler's cost estimates of one call on a device, such as `flops` and `bytes accessed`.
    ///
    /// # Errors
    /// Returns an error if the platform has no estimates.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        report::costs(&self.loaded.executable)
    }

    /// Returns the sharding of each argument; `None` for unused arguments.
    pub fn input_shardings(&self) -> LeafTree<Option<Sharding>> {
        let shardings = (0..self.lowered.in_avals.len()).map(|i| Some(self.in_sharding(i)?.in_layout(None))).collect();
        LeafTree::new(&self.lowered.in_def, shardings)
    }

    /// Returns the sharding of each result, as requested or as the compiler chose it.
    pub fn output_shardings(&self) -> LeafTree<Sharding> {
        let shardings = self.loaded.out_shardings.iter().map(|sharding| sharding.in_layout(None)).collect();
        LeafTree::new(&self.lowered.convention.out_def, shardings)
    }

    /// Returns the type of each argument, and its donation.
    pub fn args_info(&self) -> LeafTree<ArgInfo> {
        self.lowered.args_info()
    }
}

impl<Args, Out> Clone for Compiled<Args, Out> {
    fn clone(&self) -> Self {
        Compiled { lowered: self.lowered.clone(), loaded: self.loaded.clone(), types: PhantomData }
    }
}

/// `Compiled(step)`, with one line for each argument.
impl<Args, Out> fmt::Debug for Compiled<Args, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({})\n{}", self.lowered.request.name, self.lowered.args_info())
    }
}
