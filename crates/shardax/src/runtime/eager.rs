//! Eager execution of one primitive, or one traced function, on concrete arrays.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::execute::LoadedProgram;
use super::input_names::InputNames;
use super::load::Request;
use super::number_operands::operand;
use super::placement::{Input, Place, Placed, Placing};
use super::program_cache::{CachedProgram, Table, register};
use super::stages::Stages;
use crate::backend::options::Effort;
use crate::compiler_options::CompilerOptions;
use crate::core::array::{Array, Concrete, transfer};
use crate::core::primitive::{EagerForm, Outputs, Primitive, Run};
use crate::core::program::trace::{Traced, bind, infer, trace};
use crate::core::program::{Atom, Aval, Eqn, Program, Var};
use crate::defaults::Defaults;
use crate::dtype::DType;
use crate::error::Result;
use crate::fast_hash::FastHasher;
use crate::ops::checkify::{Checks, Errors, discharge};
use crate::ops::primitive::call::Call;
use crate::ops::state::lift::lift;
use crate::scope::Scope;
use crate::sharding::abstract_mesh::any_explicit;
use crate::sharding::context;
use crate::sharding::device::{Device, chosen_device, is_chosen};
use crate::sharding::{AbstractMesh, Mesh, Sharding, get_abstract_mesh};

/// Up to this number of elements, an operation runs in microseconds however it is compiled, and compilation dominates.
const MAX_QUICK_ELEMENTS: usize = 4096;

/// A primitive compiled for the types and shardings of its operands.
struct Single {
    primitive: Arc<dyn Primitive>,
    args: SmallVec<[(Aval, Sharding, bool); 3]>,
    /// The defaults that the primitive's rules can read while they are traced.
    defaults: Defaults,
    /// The default device of uncommitted operands.
    device: Option<Device>,
    /// The context mesh, if types have shardings.
    mesh: Option<ContextMesh>,
    loaded: Arc<LoadedProgram>,
}

impl Single {
    fn matches(&self, primitive: &dyn Primitive, args: &[Arc<Concrete>]) -> bool {
        self.args.len() == args.len()
            && self.args.iter().zip(args).all(|((aval, sharding, committed), arg)| {
                *committed == arg.committed && *sharding == arg.sharding && *aval == arg.aval
            })
            && self.defaults == Defaults::current()
            && is_chosen(self.device.as_ref())
            && self.mesh == context_mesh(args)
            && self.primitive.dyn_eq(primitive)
    }
}

type ContextMesh = (Option<AbstractMesh>, Option<Mesh>);

/// The context mesh, if types have shardings.
fn context_mesh(args: &[Arc<Concrete>]) -> Option<ContextMesh> {
    let is_typed = any_explicit() && (context::is_explicit() || args.iter().any(|a| a.aval.sharding.is_some()));
    is_typed.then(|| (get_abstract_mesh(), context::mesh_with_devices()))
}

fn hash(primitive: &dyn Primitive, args: &[Arc<Concrete>]) -> u64 {
    let mut state = FastHasher::default();
    primitive.dyn_hash(&mut state);
    args.iter().for_each(|a| (&a.aval, &a.sharding, a.committed).hash(&mut state));
    (Defaults::current(), chosen_device()).hash(&mut state);
    context_mesh(args).hash(&mut state);
    state.finish()
}

impl CachedProgram for Arc<Single> {
    fn program(&self) -> &LoadedProgram {
        &self.loaded
    }
}

/// The table is sharded by hash, and lookups take read locks, so that threads do not wait for each other unless one
/// inserts.
fn singles() -> &'static Table<Arc<Single>> {
    static TABLE: OnceLock<Arc<Table<Arc<Single>>>> = OnceLock::new();
    TABLE.get_or_init(|| register(Table::new(64)))
}

impl<P: Primitive + Hash + Eq + 'static> Run for P {
    fn run(self: Arc<Self>, args: &[Array]) -> Result<Outputs> {
        run(self, args)
    }
}

/// Applies a primitive to concrete arrays.
fn run(primitive: Arc<dyn Primitive>, args: &[Array]) -> Result<Outputs> {
    if !primitive.programs().is_empty()
        && primitive.has_effects()
        && let Some(outs) = run_with_refs(&primitive, args)?
    {
        return Ok(outs);
    }
    let mut args: SmallVec<[Arc<Concrete>; 4]> = args.iter().map(operand).collect::<Result<_>>()?;
    let mut primitive = primitive;
    if let Some((form, parameters)) = eager_form(&*primitive, &args)? {
        primitive = form;
        args.push(parameters);
    }
    // Operations on small arrays are compiled quickly, because compilation takes longer than many calls.
    let committed = args.iter().any(|a| a.committed);
    let hash = hash(primitive.as_ref(), &args);
    let single = match singles().find(hash, |single| single.matches(primitive.as_ref(), &args)) {
        Some(single) => single,
        None => {
            let program = program_of(primitive.clone(), &args)?;
            // With these options, XLA rounds numbers that are too large for float8_e4m3fn to -0.
            let small = primitive.programs().is_empty()
                && program.avals.iter().all(|a| a.size() <= MAX_QUICK_ELEMENTS && !is_narrow_float(a.dtype));
            let inputs: Vec<Input> = args.iter().map(|arg| input(Some(&**arg))).collect();
            let request = request(primitive.name().to_owned(), program, &inputs, &|i| format!("argument[{i}]"))?;
            let effort = if small { Effort::Quick } else { Effort::Full };
            let loaded = Request { effort, ..request }.load()?;
            let keys = args.iter().map(|a| (a.aval.clone(), a.sharding.clone(), a.committed)).collect();
            let (defaults, device, mesh) = (Defaults::current(), chosen_device(), context_mesh(&args));
            let compiled = Arc::new(Single { primitive, args: keys, defaults, device, mesh, loaded });
            singles().insert(hash, compiled.clone());
            compiled
        }
    };
    let loaded = &single.loaded;
    loaded.run(&args, committed || matches!(loaded.place, Place::Mesh(_)))
}

/// The form of the primitive that is shared by calls with other parameters, and an operand with the parameters on the
/// device of the operand. `None` if there is no such form, or if several devices hold the operand.
fn eager_form(
    primitive: &dyn Primitive,
    args: &[Arc<Concrete>],
) -> Result<Option<(Arc<dyn Primitive>, Arc<Concrete>)>> {
    let [operand] = args else { return Ok(None) };
    let is_on_one_device = matches!(operand.sharding, Sharding::Single(_)) && operand.sharding.kind().is_none();
    if !is_on_one_device || context::is_explicit() {
        return Ok(None);
    }
    let Some(EagerForm { primitive: form, parameters }) = primitive.eager_form(&operand.aval) else { return Ok(None) };
    // The form cannot check the parameters, because it receives them as values.
    infer(primitive, std::slice::from_ref(&operand.aval))?;
    let aval = Aval::new(DType::I32, [parameters.len()].as_slice());
    let bytes: Vec<u8> = parameters.iter().flat_map(|parameter| parameter.to_ne_bytes()).collect();
    let parameters = transfer::array_from_host(&bytes, aval, operand.sharding.clone(), operand.committed)?;
    Ok(Some((form, parameters.concrete()?)))
}

/// Applies a primitive whose sub-programs use refs from outside. Returns `None` if they use no refs.
fn run_with_refs(primitive: &Arc<dyn Primitive>, args: &[Array]) -> Result<Option<Outputs>> {
    let types: Vec<Aval> = args.iter().map(Array::aval).collect();
    let traced = trace(&types, |args| Ok(bind(primitive.clone(), args).into_vec()))?;
    let Some((Traced { program, mut captures }, refs)) = lift(&traced)? else { return Ok(None) };
    let mut has_callbacks = false;
    program.for_each_distinct_eqn(&mut |eqn| has_callbacks |= eqn.primitive.retained().is_some());
    let _turns = refs.turns(has_callbacks);
    captures.truncate(captures.len() - refs.len());
    captures.extend(refs.values());
    let call = Call { name: primitive.name().to_owned(), program: program.into() };
    let mut outs = run(Arc::new(call), &[&captures, args].concat())?;
    let result_count = outs.len() - refs.results();
    refs.store(outs.drain(result_count..));
    Ok(Some(outs))
}

/// A program of one equation, which applies the primitive.
fn program_of(primitive: Arc<dyn Primitive>, args: &[Arc<Concrete>]) -> Result<Program> {
    let mut avals: Vec<Aval> = args.iter().map(|a| a.aval.clone()).collect();
    let outs = infer(primitive.as_ref(), &avals)?;
    let inputs: Vec<Var> = (0..avals.len() as u32).map(Var).collect();
    let outputs: SmallVec<[Var; 1]> = (0..outs.len()).map(|i| Var((avals.len() + i) as u32)).collect();
    avals.extend(outs);
    let eqn = Eqn {
        primitive,
        inputs: inputs.iter().map(|v| Atom::Var(*v)).collect(),
        outputs: outputs.clone(),
        source: std::panic::Location::caller(),
        scope: Scope::default(),
        mesh: None,
    };
    Ok(Program { avals, inputs, eqns: vec![eqn], outputs: outputs.into_iter().map(Atom::Var).collect() })
}

fn is_narrow_float(dtype: DType) -> bool {
    dtype.is_float() && dtype.is_narrow()
}

/// The placement of an argument; `None` is a plain number, which has no placement.
fn input(arg: Option<&Concrete>) -> Input {
    Input { committed: arg.filter(|arg| arg.committed).map(|arg| arg.sharding.clone()), requested: None }
}

/// Creates the compilation request of a program on these arguments, without requested shardings.
pub(crate) fn request(
    name: String,
    program: Program,
    inputs: &[Input],
    input_name: &dyn Fn(usize) -> String,
) -> Result<Request> {
    let placed = Placing {
        program: &program,
        function: &name,
        inputs,
        input_name,
        outputs: &[],
        output_name: &|i| format!("output[{i}]"),
    }
    .place()?;
    // Eager operations never donate, because the caller keeps its arrays.
    let donated = vec![false; program.inputs.len()];
    let Placed { place, in_shardings, out_shardings, .. } = placed;
    Ok(Request {
        name,
        program,
        place,
        in_shardings,
        out_shardings,
        out_kinds: Vec::new(),
        auto_inputs: Vec::new(),
        out_layouts: Vec::new(),
        donated,
        effort: Effort::Full,
        compiler_options: CompilerOptions::process_defaults(),
        input_names: InputNames::default(),
    })
}

/// A traced function, compiled for its captures and arguments.
pub(crate) struct LoadedTrace {
    /// The program, or the last of its stages.
    pub loaded: Arc<LoadedProgram>,
    pub stages: Option<Stages>,
    /// `true` if the results are committed.
    pub committed: bool,
}

/// Compiles a traced function for its captures and arguments: as one program, or in stages if it is long or its values move
/// between sets of devices. `paths` returns the key paths of the arguments.
pub(crate) fn load_traced(
    name: &str,
    traced: &Traced,
    args: &[Array],
    paths: &dyn Fn() -> Vec<String>,
    load: impl Fn(Request) -> Result<Arc<LoadedProgram>>,
) -> Result<LoadedTrace> {
    let count = traced.captures.len();
    let inputs: Vec<Input> = traced.captures.iter().chain(args).map(|arg| input(arg.concrete_ref())).collect();
    let input_name = |i: usize| input_name(i.checked_sub(count), paths);
    let program = traced.program.simplified();
    let stages = Stages::between_devices(name, &program, &inputs, &load)?;
    if let Some((loaded, stages)) = stages.and_then(Stages::with_last) {
        return Ok(LoadedTrace { loaded, stages: Some(stages), committed: true });
    }
    let request = request(name.to_owned(), program, &inputs, &input_name)?;
    let committed = inputs.iter().any(|input| input.committed.is_some()) || matches!(request.place, Place::Mesh(_));
    if let Some((loaded, stages)) = Stages::load(&request, &load)?.and_then(Stages::with_last) {
        return Ok(LoadedTrace { loaded, stages: Some(stages), committed });
    }
    Ok(LoadedTrace { loaded: load(request)?, stages: None, committed })
}

/// Compiles and runs a traced function on its captures and arguments.
pub(crate) fn run_traced(
    name: &str,
    traced: &Traced,
    args: &[Array],
    paths: &dyn Fn() -> Vec<String>,
) -> Result<Vec<Array>> {
    // In eager execution, checks fail immediately.
    let checked = discharge(traced, Checks::USER)?;
    let traced = checked.as_ref().map_or(traced, |checked| &checked.traced);
    let program = load_traced(name, traced, args, paths, Request::load_cached)?;
    let args: Vec<Arc<Concrete>> = traced.captures.iter().chain(args).map(|a| a.concrete()).collect::<Result<_>>()?;
    let outs = match &program.stages {
        Some(stages) => stages.run(&args.iter().map(Arc::as_ref).collect::<Vec<_>>(), program.committed)?,
        None => program.loaded.run(&args, program.committed)?,
    };
    checked.map_or(Errors::none(), |checked| checked.errors).throw(outs).map(SmallVec::into_vec)
}

/// The name of a program's input in errors: an argument, or a captured array.
pub(crate) fn input_name(argument: Option<usize>, paths: &dyn Fn() -> Vec<String>) -> String {
    match argument {
        Some(i) => format!("argument{}", paths().get(i).map(String::as_str).unwrap_or_default()),
        None => "a captured array".to_owned(),
    }
}
