//! Compilation of programs, and the cache of loaded ones.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use shardax_exchange::Shared;
use shardax_pjrt as pjrt;
use smallvec::SmallVec;

use super::execute::LoadedProgram;
use super::input_names::InputNames;
use super::op_sharding;
use super::placement::Place;
use super::program_cache::{Table, hash_of, register};
use super::{compile_also_for, counts, disk_cache, multi_process};
use crate::backend::options::{Effort, compiler_options, forget_option};
use crate::compiler_options::CompilerOptions;
use crate::config;
use crate::core::lower::module::{Donation, Module};
use crate::core::lower::{Platform, without_locations};
use crate::core::program::{Atom, Aval, Program};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::callback::in_order;
use crate::shape::Shape;
use crate::sharding::device::{check_current, client};
use crate::sharding::layout::RequestedLayout;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{AxisType, NamedSharding, Sharding};
use crate::timeline;

/// Everything that a compiled program depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub name: String,
    pub program: Program,
    pub input_names: InputNames,
    pub place: Place,
    /// The sharding of each input.
    pub in_shardings: Vec<Sharding>,
    /// The sharding of each output; `None` leaves it to the compiler.
    pub out_shardings: Vec<Option<NamedSharding>>,
    /// The memory kind that the user requested for each output; empty if there are none.
    pub out_kinds: Vec<Option<MemoryKind>>,
    /// The inputs whose layout the compiler chooses, in order.
    pub auto_inputs: Vec<usize>,
    /// The layout that the user requested for each output; empty if there are none.
    pub out_layouts: Vec<Option<RequestedLayout>>,
    /// Marks the donated inputs.
    pub donated: Vec<bool>,
    pub effort: Effort,
    /// Additional XLA options.
    pub compiler_options: CompilerOptions,
}

/// Every loaded program, by the hash of its request, so that an equal request does not compile again. The references
/// are weak, so that the table keeps no program alive.
static ALIVE: Mutex<BTreeMap<u64, SmallVec<[Weak<LoadedProgram>; 1]>>> = Mutex::new(BTreeMap::new());

/// The programs of transformations called outside of `jit`, which no function owns.
fn eager_programs() -> &'static Table<Arc<LoadedProgram>> {
    static TABLE: OnceLock<Arc<Table<Arc<LoadedProgram>>>> = OnceLock::new();
    TABLE.get_or_init(|| register(Table::new(4)))
}

/// The loaded program for a request; compared outside of the lock.
fn alive(hash: u64, request: &Request) -> Option<Arc<LoadedProgram>> {
    // Comparing requests can take long, because programs are large.
    let candidates: SmallVec<[Arc<LoadedProgram>; 1]> = {
        let programs = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
        programs.get(&hash)?.iter().filter_map(Weak::upgrade).collect()
    };
    candidates.into_iter().find(|program| program.request.as_ref() == Some(request))
}

/// All loaded programs that something holds.
pub(super) fn all_alive() -> Vec<Arc<LoadedProgram>> {
    let programs = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    programs.values().flatten().filter_map(Weak::upgrade).collect()
}

fn keep_alive(hash: u64, program: &Arc<LoadedProgram>) {
    /// The number of entries after dead ones were last removed.
    static SWEPT_LEN: AtomicUsize = AtomicUsize::new(0);
    let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    // Removes dead entries when their number may have doubled, so that the cost per insertion is constant.
    if alive.len() > 2 * SWEPT_LEN.load(Ordering::Relaxed) + 64 {
        alive.retain(|_, programs| programs.iter().any(|program| program.strong_count() > 0));
        SWEPT_LEN.store(alive.len(), Ordering::Relaxed);
    }
    let programs = alive.entry(hash).or_default();
    programs.retain(|program| program.strong_count() > 0);
    programs.push(Arc::downgrade(program));
}

/// The hashes of the programs being compiled, each with the lock that other threads wait on.
///
/// Lock order: a thread that holds a program's lock can take the lock of this map, of [`ALIVE`] and of the tables. A
/// thread that holds one of these locks must never wait for a program's lock.
static COMPILING: Mutex<BTreeMap<u64, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// The lock of a thread that requests a program; threads that request the same program share it.
struct CompileLock {
    hash: u64,
    lock: Arc<Mutex<()>>,
}

impl CompileLock {
    fn of(hash: u64) -> CompileLock {
        let mut locks = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        CompileLock { hash, lock: locks.entry(hash).or_default().clone() }
    }
}

impl Drop for CompileLock {
    fn drop(&mut self) {
        let mut locks = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the map and this entry refer to the lock, so no thread waits.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.hash);
        }
    }
}

/// Adds advice to the error for an option that XLA does not know.
pub(super) fn with_known_options(rejection: crate::error::Error, error: &pjrt::Error) -> crate::error::Error {
    if !error.message.contains("No such compile option") {
        return rejection;
    }
    rejection.help("the option comes from `compiler_options`, `config::set_compiler_options` or `compile_with_options`; its name must be a flag of this version of XLA, as in XLA_FLAGS without the dashes")
}

/// An estimate of a compiled program's memory: its code, and the compiler's data about its operations.
fn size_of_program(executable: &pjrt::Executable, text: usize) -> usize {
    let code = executable.memory_analysis().map_or(0, |memory| memory.generated_code.max(0) as usize);
    code + BYTES_OF_TEXT * text
}

/// The estimated memory per character of a program's text, and per program.
const BYTES_OF_TEXT: usize = 64;

/// An executable. If it runs over several processes, also the program of one device, and the processes.
type CompiledText = (pjrt::Executable, Option<(pjrt::Partitioned, Arc<Shared>)>);

impl Request {
    /// Returns the StableHLO text for its devices, with locations or without.
    pub fn lower(&self, locations: bool) -> Result<String> {
        let begun = Instant::now();
        let text = self.text(locations)?;
        counts::lowered(&self.name, begun);
        Ok(text)
    }

    pub fn text(&self, locations: bool) -> Result<String> {
        self.written(self.place.platform(), locations, false)
    }

    /// Returns the text for as many devices of this platform.
    pub fn text_on(&self, platform: Platform) -> Result<String> {
        self.written(platform, false, false)
    }

    /// Returns the portable text, for as many devices of this platform.
    pub fn portable_text(&self, platform: Platform, locations: bool) -> Result<String> {
        self.written(platform, locations, true)
    }

    fn written(&self, platform: Platform, locations: bool, portable: bool) -> Result<String> {
        if let Some(ordered) = self.in_order()? {
            return ordered.written(platform, locations, portable);
        }
        let named: Vec<Option<NamedSharding>> = match &self.place {
            Place::Single(_) => Vec::new(),
            Place::Mesh(_) => self.in_shardings.iter().map(|s| s.as_named().cloned()).collect(),
        };
        Module {
            name: &self.name,
            program: &self.program,
            in_shardings: &named,
            out_shardings: &self.out_shardings,
            memory: &self.memory(),
            layouts: &self.layouts(platform),
            donations: &self.donations(),
            num_partitions: self.place.devices().len(),
            platform,
            locations: locations.then(|| self.input_names.all()),
            portable,
        }
        .text()
    }

    /// Returns the request with a token threaded through its ordered calls; the token becomes the last result. `None`
    /// if there are no such calls.
    pub fn in_order(&self) -> Result<Option<Request>> {
        let Some(program) = in_order(&self.program)? else { return Ok(None) };
        let mut out_shardings = self.out_shardings.clone();
        out_shardings.push(self.place.replicated().as_named().cloned());
        Ok(Some(Request { program, out_shardings, ..self.clone() }))
    }

    /// Returns the donation of each input's memory: the first output of the same type and sharding that is still free
    /// reuses it.
    pub fn donations(&self) -> Vec<Donation> {
        let outs = self.program.out_avals();
        let kinds = self.result_kinds();
        let same_layout = self.same_layouts();
        // The outputs of each type that no input has been donated to yet.
        let mut free: HashMap<(DType, Shape), BTreeSet<usize>> = HashMap::new();
        for (o, out) in outs.iter().enumerate() {
            free.entry((out.dtype, out.shape.clone())).or_default().insert(o);
        }
        let mut donations = vec![Donation::None; self.program.inputs.len()];
        for (i, aval) in self.program.in_avals().enumerate().filter(|(i, _)| self.donated[*i]) {
            let Some(free) = free.get_mut(&(aval.dtype, aval.shape.clone())) else { continue };
            // The layouts must be equal if they are known before compilation.
            let candidates = free
                .iter()
                .copied()
                .filter(|&o| self.is_same_memory(i, kinds.get(o).copied().flatten()) && same_layout(i, o))
                .map(|o| (o, self.has_equal_sharding(i, o, aval.rank())));
            let candidates: Vec<(usize, Option<bool>)> = candidates.collect();
            // Prefers an output whose sharding is known to be equal to one whose sharding the compiler chooses.
            let equal = candidates.iter().find(|(_, is_equal)| *is_equal == Some(true));
            if let Some(&(o, is_equal)) = equal.or_else(|| candidates.iter().find(|(_, is_equal)| is_equal.is_none())) {
                free.remove(&o);
                donations[i] = if is_equal == Some(true) { Donation::To(o) } else { Donation::ToAny };
            }
        }
        donations
    }

    /// Returns `true` if a result in memory of this kind can reuse the memory of input `i`.
    fn is_same_memory(&self, i: usize, kind: Option<MemoryKind>) -> bool {
        let sharding = &self.in_shardings[i];
        kind == sharding.kind() || sharding.devices().iter().any(|device| device.is_same_memory(kind, sharding.kind()))
    }

    /// Returns `true` if input `i` and output `o` have equal shardings, or `None` if the compiler chooses the output's.
    fn has_equal_sharding(&self, i: usize, o: usize, rank: usize) -> Option<bool> {
        match (&self.place, &self.out_shardings[o]) {
            (Place::Single(_), _) => Some(true),
            (_, Some(s)) => {
                let s = Sharding::Named(s.in_memory(self.in_shardings[i].kind()));
                Some(self.in_shardings[i].is_equivalent_to(&s, rank))
            }
            (_, None) => None,
        }
    }

    /// Loads the program. Returns an equal one that is already loaded, if there is one.
    pub fn load(self) -> Result<Arc<LoadedProgram>> {
        let hash = hash_of(&self);
        // Errors for debugging contain the source lines of this program, so an equal program with other lines cannot
        // replace it.
        if config::debugs_values().is_some() {
            return self.compile_new(hash);
        }
        alive(hash, &self).map_or_else(|| self.load_new(hash), Ok)
    }

    /// Compiles the program. If several threads request the same program, the first thread compiles it and the others
    /// wait.
    fn load_new(self, hash: u64) -> Result<Arc<LoadedProgram>> {
        let turn = CompileLock::of(hash);
        let _mine = turn.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have compiled the program while this one waited.
        if let Some(program) = alive(hash, &self) {
            return Ok(program);
        }
        self.compile_new(hash)
    }

    fn compile_new(self, hash: u64) -> Result<Arc<LoadedProgram>> {
        let program = self.compile(&[])?;
        compile_also_for::compile(&self);
        let program = Arc::new(LoadedProgram { request: Some(self), ..program });
        keep_alive(hash, &program);
        Ok(program)
    }

    /// Like [`load`](Self::load), for a program without an owner: the global table caches it.
    pub fn load_cached(self) -> Result<Arc<LoadedProgram>> {
        let hash = hash_of(&self);
        if let Some(found) = eager_programs().find(hash, |program| program.request.as_ref() == Some(&self)) {
            return Ok(found);
        }
        let program = alive(hash, &self).map_or_else(|| self.load_new(hash), Ok)?;
        eager_programs().insert(hash, program.clone());
        Ok(program)
    }

    /// Lowers and compiles, with XLA options.
    pub fn compile(&self, xla_options: &[(&str, pjrt::Value)]) -> Result<LoadedProgram> {
        if let Some(ordered) = self.in_order()? {
            let mut loaded = ordered.compile(xla_options)?;
            loaded.out_avals.pop();
            loaded.out_shardings.pop();
            return Ok(LoadedProgram { ordered: true, ..loaded });
        }
        let _span = timeline::span(|| format!("compile {}", self.name).into());
        let _traced = tracing::info_span!("compile", name = self.name).entered();
        self.check_layouts()?;
        let text = match self.text_of_other_devices() {
            Some(text) => String::from(&*text),
            None => self.lower(true)?,
        };
        let plain = without_locations(&text);
        counts::compiling(&self.name, self.program.in_avals());
        let begun = Instant::now();
        self.place.devices().first().map_or(Ok(()), check_current)?;
        let compiled = self.compile_text(&text, &plain, &self.options_here(xla_options)?)?;
        let (executable, of_processes) = match compiled {
            Ok(compiled) => compiled,
            Err(error) => {
                // Another version of the plugin may not know an option that shardax sets. Compile again without it.
                if let Some(option) = self.unknown_option(&error, xla_options) {
                    forget_option(option);
                    return self.compile(xla_options);
                }
                let rejection = err!(Runtime, "XLA could not compile {}: {error}", self.name);
                return Err(self.explained(with_known_options(rejection, &error), self.place.platform()));
            }
        };
        counts::compiled(&self.name, begun);
        let (partitioned, shared) = of_processes.unzip();
        // Only the executable knows the shardings that the compiler has chosen. If it does not report one of them, a second
        // compilation replicates this result.
        let out_shardings = self.result_shardings(&executable, partitioned.as_ref())?;
        if let Some(replicated) = self.with_replicated(&out_shardings) {
            return replicated.compile(xla_options);
        }
        let loaded = self.loaded(executable, partitioned, out_shardings, plain.len())?;
        Ok(LoadedProgram { shared, text: self.kept_text(text), ..loaded })
    }

    /// Compiles the text of the program, together with the other processes whose devices it uses, or with the disk cache. `plain` is
    /// the text without locations. The outer error is an error between processes, the inner error comes from the compiler.
    fn compile_text(
        &self,
        text: &str,
        plain: &str,
        options: &pjrt::CompileOptions,
    ) -> Result<pjrt::Result<CompiledText>> {
        let client = &client()?.pjrt;
        let devices = self.place.devices();
        let signature = self.signature(&self.donations())?;
        // Host functions have numbers that are valid only in this process, so such a program is not stored on disk.
        let calls_host = !self.retained().is_empty();
        let Some(processes) = multi_process::processes_of(devices) else {
            let executable = if calls_host {
                client.compile(text, options, signature)
            } else {
                disk_cache::load_or_compile(client, text, plain, options, signature)
            };
            return Ok(executable.map(|executable| (executable, None)));
        };
        let types = self.program.in_avals().map(Aval::to_string).collect::<Vec<_>>().join(", ");
        let job = multi_process::Job {
            client,
            name: &self.name,
            types: &types,
            // Partitioning reads only the text, which must end with the function.
            text: plain,
            options,
            signature: &signature,
            own: calls_host,
        };
        let compiled = job.compile(processes, devices)?;
        Ok(compiled.map(|compiled| (compiled.executable, Some((compiled.partitioned, compiled.shared)))))
    }

    /// Returns the option that the error rejects, unless it is the user's: the plugin is of another version and does
    /// not know it.
    fn unknown_option(&self, error: &pjrt::Error, xla_options: &[(&str, pjrt::Value)]) -> Option<&'static str> {
        let users: Vec<&str> = xla_options.iter().map(|(name, _)| *name).chain(self.compiler_options.names()).collect();
        let ours = compiler_options(self.place.platform(), &self.program, self.effort);
        let mut names = ours.into_iter().map(|(name, _)| name);
        names.find(|name| error.message.contains(name) && !users.contains(name))
    }

    /// Wraps a compiled program. `out_shardings` are the shardings of its results, and `text` is the length of its text.
    pub fn loaded(
        &self,
        executable: pjrt::Executable,
        partitioned: Option<pjrt::Partitioned>,
        out_shardings: Vec<Option<Sharding>>,
        text: usize,
    ) -> Result<LoadedProgram> {
        // `request` and `ordered` are set by callers that know them.
        Ok(LoadedProgram {
            moved: self.results_to_move(&out_shardings),
            per_device: LoadedProgram::runs_per_device(&executable),
            warned: Default::default(),
            request: None,
            ordered: false,
            text: None,
            bytes: size_of_program(&executable, text),
            last_use: Default::default(),
            calling_thread: Default::default(),
            name: self.name.clone(),
            in_shardings: self.canonical_inputs(&executable)?,
            executable,
            partitioned,
            shared: None,
            place: self.place.clone(),
            out_avals: self.result_types(&out_shardings),
            out_shardings: out_shardings.into_iter().flatten().collect(),
            retained: self.retained(),
            donated: self.donations().iter().map(|d| *d != Donation::None).collect(),
        })
    }

    /// The types of the results with these shardings. If a type's mesh has axes of type `Auto`, the type is kept,
    /// because the program knows the sharding better than the compiler.
    fn result_types(&self, shardings: &[Option<Sharding>]) -> Vec<Aval> {
        let types = self.program.out_avals().into_iter().zip(shardings).map(|(aval, sharding)| {
            let aval = Aval { vma: Default::default(), ..aval };
            match (sharding, aval.sharding()) {
                (Some(_), Some(typed)) if typed.mesh().axis_types().contains(&AxisType::Auto) => aval,
                (Some(sharding), _) => aval.placed_as(sharding),
                (None, _) => aval,
            }
        });
        types.collect()
    }

    /// Returns the functions of this process that it calls.
    pub fn retained(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        let mut retained = Vec::new();
        self.program.for_each_distinct_eqn(&mut |eqn| retained.extend(eqn.primitive.retained()));
        retained
    }

    /// Returns the types of each device's arguments.
    pub fn signature(&self, donations: &[Donation]) -> Result<pjrt::Signature> {
        let parameters = self
            .program
            .in_avals()
            .enumerate()
            .map(|(i, aval)| {
                let dims = self.in_shardings[i].shard_shape(&aval.shape)?;
                Ok(pjrt::ParameterSpec {
                    ty: aval.dtype.element_type(),
                    dims: dims.iter().map(|&d| d as i64).collect(),
                    donated: donations[i] != Donation::None,
                })
            })
            .collect::<Result<_>>()?;
        Ok(pjrt::Signature { parameters })
    }

    /// Returns the compile options for its devices, which must be present.
    pub fn options_here(&self, xla_options: &[(&str, pjrt::Value)]) -> Result<pjrt::CompileOptions> {
        let overrides = self.overrides(&client()?.platform_name, xla_options);
        Ok(pjrt::CompileOptions { overrides, ..self.options(self.place.devices().iter().map(|d| d.id()).collect()) })
    }

    /// Returns the XLA options: first the library's, then the process's, the function's, and the options of this
    /// compilation. Later options override earlier ones.
    pub fn overrides(&self, platform: &str, xla_options: &[(&str, pjrt::Value)]) -> Vec<(String, pjrt::Value)> {
        let ours = compiler_options(Platform::named(platform), &self.program, self.effort);
        let mut options: BTreeMap<&str, &pjrt::Value> = ours.iter().map(|(name, value)| (*name, value)).collect();
        options.extend(self.compiler_options.on(platform));
        options.extend(xla_options.iter().map(|(name, value)| (*name, value)));
        options.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }

    /// Returns the compile options for the devices with these ids.
    pub fn options(&self, device_ids: Vec<usize>) -> pjrt::CompileOptions {
        let spmd = device_ids.len() > 1;
        pjrt::CompileOptions {
            num_replicas: 1,
            num_partitions: device_ids.len(),
            device_ids,
            use_shardy: spmd,
            propagate_to_outputs: if spmd {
                self.out_shardings.iter().map(Option::is_none).collect()
            } else {
                Vec::new()
            },
            ..Default::default()
        }
    }

    /// Returns the sharding of each result. `None` if the compiler split the result in a way that no spec expresses, or
    /// if some shards are padded.
    pub fn result_shardings(
        &self,
        executable: &pjrt::CompiledProgram,
        partitioned: Option<&pjrt::Partitioned>,
    ) -> Result<Vec<Option<Sharding>>> {
        let kinds = self.result_kinds();
        let Place::Mesh(mesh) = &self.place else {
            let replicated = self.place.replicated();
            let shardings =
                (0..self.program.outputs.len()).map(|i| Some(Self::with_kind(replicated.clone(), &kinds, i)));
            return self.with_layouts(shardings.collect(), executable);
        };
        let chosen = match (self.out_shardings.iter().any(Option::is_none), partitioned) {
            (true, Some(partitioned)) => partitioned.output_shardings().map(<[_]>::to_vec),
            (true, None) => executable.output_shardings()?,
            (false, _) => None,
        };
        let sharding_of = |(i, (aval, part)): (usize, (&Aval, &[i64]))| {
            if let Some(requested) = &self.out_shardings[i] {
                return Some(Self::with_kind(Sharding::Named(requested.clone()), &kinds, i));
            }
            // The mesh of the result's type.
            let type_mesh = match (aval.sharding(), &self.program.outputs[i]) {
                (Some(typed), _) => mesh.with_shape(typed.mesh()),
                // The value was computed where all axes are of type Auto.
                (None, Atom::Var(_)) => mesh.with_shape(&mesh.abstract_mesh().without_explicit()),
                (None, Atom::Literal { .. }) => mesh.clone(),
            };
            let mesh = &type_mesh;
            let named = match chosen.as_ref().and_then(|c| c.get(i)) {
                Some(op) => op_sharding::to_named(op, mesh, aval.rank())?,
                None => NamedSharding::new(mesh, Default::default()),
            };
            let shape = named.shard_shape(&aval.shape).ok()?;
            shape
                .iter()
                .map(|&d| d as i64)
                .eq(part.iter().copied())
                .then(|| Self::with_kind(Sharding::Named(named), &kinds, i))
        };
        let results = self.program.out_avals();
        let results = results.iter().zip(executable.output_dims()).enumerate();
        self.with_layouts(results.map(sharding_of).collect(), executable)
    }
}
