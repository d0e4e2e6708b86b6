//! Running one primitive, or one traced function, at once on concrete arrays.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock};

use smallvec::SmallVec;

use super::execute::LoadedProgram;
use super::load::{Effort, Request};
use super::placement::{Input, Place, Placed, Placing};
use crate::array::{Array, Concrete};
use crate::error::Result;
use crate::primitive::{Outputs, Primitive};
use crate::program::trace::{Traced, infer};
use crate::program::{Atom, Aval, Eqn, Program, Var};
use crate::sharding::Sharding;

/// Up to so many elements, an operation runs in microseconds however it is compiled, and compiling it takes longest.
const SMALL: usize = 4096;

/// A primitive with the types and places of its operands.
#[derive(Clone)]
struct Key {
    primitive: Arc<dyn Primitive>,
    args: SmallVec<[(Aval, Sharding, bool); 3]>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.args == other.args && self.primitive.dyn_eq(other.primitive.as_ref())
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.primitive.dyn_hash(state);
        self.args.hash(state);
    }
}

fn cache() -> &'static Mutex<HashMap<Key, Arc<LoadedProgram>>> {
    static CACHE: OnceLock<Mutex<HashMap<Key, Arc<LoadedProgram>>>> = OnceLock::new();
    CACHE.get_or_init(Default::default)
}

pub(super) fn clear() {
    cache().lock().unwrap_or_else(|e| e.into_inner()).clear();
}

/// Applies a primitive to concrete arrays.
pub(crate) fn run(primitive: Arc<dyn Primitive>, args: &[Array]) -> Result<Outputs> {
    let args: SmallVec<[Arc<Concrete>; 4]> = args.iter().map(|a| a.concrete()).collect::<Result<_>>()?;
    let committed = args.iter().any(|a| a.committed);
    let key = Key { primitive, args: args.iter().map(|a| (a.aval.clone(), a.sharding.clone(), a.committed)).collect() };
    let found = cache().lock().unwrap_or_else(|e| e.into_inner()).get(&key).cloned();
    let loaded = match found {
        Some(loaded) => loaded,
        None => {
            let program = single(key.primitive.clone(), &args)?;
            let small = key.primitive.programs().is_empty() && program.avals.iter().all(|a| a.size() <= SMALL);
            let request = request(key.primitive.name().to_owned(), program, &args, &|i| format!("argument[{i}]"))?;
            let effort = if small { Effort::Quick } else { Effort::Full };
            let loaded = Request { effort, ..request }.load()?;
            cache().lock().unwrap_or_else(|e| e.into_inner()).insert(key, loaded.clone());
            loaded
        }
    };
    loaded.run(&args, committed || matches!(loaded.place, Place::Mesh(_)))
}

/// A program of one equation.
fn single(primitive: Arc<dyn Primitive>, args: &[Arc<Concrete>]) -> Result<Program> {
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
    };
    Ok(Program { avals, inputs, eqns: vec![eqn], outputs: outputs.into_iter().map(Atom::Var).collect() })
}

/// What to compile for a program on these arguments, when nothing is said about shardings.
pub(crate) fn request(
    name: String,
    program: Program,
    args: &[Arc<Concrete>],
    input_name: &dyn Fn(usize) -> String,
) -> Result<Request> {
    let input = |arg: &Arc<Concrete>| Input { committed: arg.committed.then(|| arg.sharding.clone()), given: None };
    let placed = Placing {
        program: &program,
        function: &name,
        inputs: &args.iter().map(input).collect::<Vec<_>>(),
        input_name,
        outputs: &[],
        output_name: &|i| format!("output[{i}]"),
    }
    .place()?;
    let donated = vec![false; program.inputs.len()];
    let Placed { place, in_shardings, out_shardings, .. } = placed;
    Ok(Request { name, program, place, in_shardings, out_shardings, donated, effort: Effort::Full })
}

/// Compiles and runs a traced function on its captures and arguments; `paths` gives the arguments' key paths.
pub(crate) fn run_traced(
    name: &str,
    traced: &Traced,
    args: &[Array],
    paths: &dyn Fn() -> Vec<String>,
) -> Result<Vec<Array>> {
    let count = traced.captures.len();
    let args: Vec<Arc<Concrete>> = traced.captures.iter().chain(args).map(|a| a.concrete()).collect::<Result<_>>()?;
    let committed = args.iter().any(|a| a.committed);
    let input_name = |i: usize| input_name(i.checked_sub(count), paths);
    let loaded = request(name.to_owned(), traced.program.simplified(), &args, &input_name)?.load()?;
    let committed = committed || matches!(loaded.place, Place::Mesh(_));
    loaded.run(&args, committed)
}

/// What an input of a program is called in errors: an argument, or an array that its function captured.
pub(crate) fn input_name(argument: Option<usize>, paths: &dyn Fn() -> Vec<String>) -> String {
    match argument {
        Some(i) => format!("argument{}", paths().get(i).map(String::as_str).unwrap_or_default()),
        None => "a captured array".to_owned(),
    }
}
