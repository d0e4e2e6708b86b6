//! Programs of very many equations, and programs on several sets of devices, compiled in stages.
//!
//! XLA's compile time grows with the square of the length of a differentiated chain (`docs/plugin.md`). A
//! transformation outside of `jit` may compile a program for only one call, so the program is cut into stages of
//! limited length, which are compiled and run sequentially. The shorter compile time saves more than the missing fusion
//! costs. Within `jit`, a program is compiled as one, because the user asked for this.
//!
//! A program has one set of devices. If the values of a transformation outside of `jit` move between sets of devices
//! (`device_put`), each set has its own stages.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::execute::LoadedProgram;
use super::input_names::InputNames;
use super::load::Request;
use super::placement::{Input, Place};
use super::places::{Run, divided, move_of, runs};
use super::{eager, reshard};
use crate::core::array::{Array, Concrete};
use crate::core::program::{Atom, Eqn, Program, Var};
use crate::error::{Result, err};
use crate::ops::collective::ShardingConstraint;
use crate::sharding::Sharding;
use crate::transfer_guard::{self, Direction};

/// The number of equations of a stage, including the equations of inner programs.
const STAGE_LENGTH: usize = 1000;

/// A program that runs in stages.
pub(crate) struct Stages {
    stages: Vec<Stage<Arc<LoadedProgram>>>,
    /// The slot of each result.
    outputs: Vec<usize>,
    /// The number of slots: one for each variable, and one for each result that needs a copy.
    slots: usize,
}

/// A stage, as a program `P`: the slots of its inputs and results.
struct Stage<P> {
    program: P,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// The slots that no later stage reads.
    last_read: Vec<usize>,
}

impl Stage<Arc<LoadedProgram>> {
    /// Moves the inputs to the devices of the stage, and runs it.
    fn run(&self, slots: &[Slot<'_>], committed: bool) -> Result<SmallVec<[Array; 8]>> {
        let inputs: SmallVec<[&Concrete; 32]> =
            self.inputs.iter().map(|&slot| slots[slot].concrete()).collect::<Result<_>>()?;
        let moved = move_to_devices_of(&self.program, &inputs)?;
        let inputs: SmallVec<[&Concrete; 32]> =
            inputs.iter().zip(&moved).map(|(input, moved)| moved.as_ref().unwrap_or(input)).collect();
        self.program.run(&inputs, committed)
    }
}

/// A value in a slot.
enum Slot<'a> {
    Empty,
    Argument(&'a Concrete),
    Computed(Array),
}

impl Slot<'_> {
    fn concrete(&self) -> Result<&Concrete> {
        match self {
            Slot::Argument(concrete) => Ok(concrete),
            Slot::Computed(array) => array
                .concrete_ref()
                .ok_or_else(|| err!(Runtime, "internal error: a stage has no concrete result; please report this")),
            Slot::Empty => {
                Err(err!(Runtime, "internal error: a stage reads a value that no stage computed; please report this"))
            }
        }
    }
}

impl Stages {
    /// Loads the program in stages. `None` if it is short, or is not for one device.
    pub fn load(request: &Request, load: impl Fn(Request) -> Result<Arc<LoadedProgram>>) -> Result<Option<Stages>> {
        let lengths: Vec<usize> = request.program.eqns().iter().map(length).collect();
        let is_short = lengths.iter().sum::<usize>() < 2 * STAGE_LENGTH;
        if is_short || !matches!(request.place, Place::Single(_)) || request.uses_other_memory() {
            return Ok(None);
        }
        let ranges = ranges(&lengths);
        let last = ranges.len() - 1;
        let (stages, outputs, slots) = cut(&request.program, &ranges, |_| last);
        // Copies of the request for the stages must not contain the entire program, because the time would then grow
        // with the square of the program's length.
        let settings = Request { program: Program::default(), input_names: InputNames::default(), ..request.clone() };
        let load_stage = |stage: Stage<Program>| -> Result<Stage<Arc<LoadedProgram>>> {
            let Stage { program, inputs, outputs, last_read } = stage;
            let on_device = request.place.replicated();
            let program = load(Request {
                in_shardings: vec![on_device; program.inputs.len()],
                out_shardings: vec![None; program.outputs.len()],
                donated: vec![false; program.inputs.len()],
                program,
                ..settings.clone()
            })?;
            Ok(Stage { program, inputs, outputs, last_read })
        };
        let stages = stages.into_iter().map(load_stage).collect::<Result<_>>()?;
        Ok(Some(Stages { stages, outputs, slots }))
    }

    /// Loads a program whose values move between sets of devices. `None` if it has one set, or if operands of an equation
    /// are on different ones.
    pub fn between_devices(
        name: &str,
        program: &Program,
        inputs: &[Input],
        load: impl Fn(Request) -> Result<Arc<LoadedProgram>>,
    ) -> Result<Option<Stages>> {
        let Some(program) = &divided(program, inputs)? else { return Ok(None) };
        let Some(mut runs) = runs(program, inputs) else { return Ok(None) };
        let copy_stages = copy_stages(program, inputs, &mut runs);
        let ranges: Vec<Range<usize>> = runs.iter().map(|run| run.eqns.clone()).collect();
        let (stages, outputs, slots) = cut(program, &ranges, |atom| copy_stages[atom]);
        // The shardings of the slots. The shardings of computed values are known when their stage is loaded.
        let mut shardings: Vec<Option<Sharding>> = inputs.iter().map(|input| input.committed.clone()).collect();
        shardings.resize(slots, None);
        let mut loaded = Vec::with_capacity(stages.len());
        for (stage, run) in stages.into_iter().zip(&runs) {
            let Stage { program, inputs, outputs, last_read } = stage;
            let placed_inputs: Vec<Input> = inputs
                .iter()
                .zip(&program.inputs)
                .map(|(slot, var)| Input {
                    committed: Some(sharding_in_stage(&program, *var, shardings[*slot].as_ref(), &run.place)),
                    requested: None,
                })
                .collect();
            // A cotangent that returned from other devices is an input of this stage, which was moved here.
            let program = program.without(|eqn| move_of(eqn).is_some_and(|to| returns_to(to, &run.place)));
            let request =
                eager::request(name.to_owned(), program, &placed_inputs, &|i| format!("input {i} of a stage"))?;
            let program = load(request)?;
            for (slot, sharding) in outputs.iter().zip(&program.out_shardings) {
                shardings[*slot] = Some(sharding.clone());
            }
            loaded.push(Stage { program, inputs, outputs, last_read });
        }
        Ok(Some(Stages { stages: loaded, outputs, slots }))
    }

    /// Returns `true` if a stage calls host functions.
    pub fn has_callbacks(&self) -> bool {
        self.stages.iter().any(|stage| !stage.program.retained.is_empty())
    }

    /// Returns the program of the last stage too.
    pub fn with_last(self) -> Option<(Arc<LoadedProgram>, Stages)> {
        let last = self.stages.last()?.program.clone();
        Some((last, self))
    }

    /// Runs all stages. Returns immediately, with arrays whose values are still being computed.
    pub fn run(&self, args: &[&Concrete], committed: bool) -> Result<SmallVec<[Array; 8]>> {
        let mut slots: Vec<Slot<'_>> = args.iter().map(|arg| Slot::Argument(arg)).collect();
        slots.resize_with(self.slots, || Slot::Empty);
        for stage in &self.stages {
            let results = stage.run(&slots, committed)?;
            for (&slot, result) in stage.outputs.iter().zip(results) {
                slots[slot] = Slot::Computed(result);
            }
            stage.last_read.iter().for_each(|&slot| slots[slot] = Slot::Empty);
        }
        self.outputs
            .iter()
            .map(|&slot| match &slots[slot] {
                Slot::Computed(array) => Ok(array.clone()),
                _ => Err(err!(Runtime, "internal error: no stage computed a result; please report this")),
            })
            .collect()
    }
}

/// Moves the inputs of a stage that are on other devices; `None` for the others.
fn move_to_devices_of(program: &LoadedProgram, inputs: &[&Concrete]) -> Result<SmallVec<[Option<Concrete>; 32]>> {
    let moved = inputs.iter().zip(&program.in_shardings).map(|(input, want)| {
        if input.sharding.devices() == want.devices() {
            return Ok(None);
        }
        transfer_guard::check(Direction::DeviceToDevice, true, &input.aval)?;
        let buffers = reshard::reshard(input, want)?;
        Ok(Some(Concrete::new(input.aval.clone(), want.clone(), true, buffers)))
    });
    moved.collect()
}

/// The sharding in which a stage at `place` takes one of its inputs: its own sharding if it is there, otherwise the sharding that
/// the program moves it to.
fn sharding_in_stage(program: &Program, input: Var, have: Option<&Sharding>, place: &Place) -> Sharding {
    if let Some(have) = have.filter(|have| have.devices() == place.devices()) {
        return have.clone();
    }
    let moves = program.eqns.iter().filter(|eqn| eqn.inputs.first() == Some(&Atom::Var(input))).filter_map(move_of);
    let target = moves.map(|to| &to.sharding).find(|to| to.devices() == place.devices());
    target.cloned().unwrap_or_else(|| place.replicated())
}

/// Returns `true` if the constraint represents the return from other devices to `place`.
fn returns_to(constraint: &ShardingConstraint, place: &Place) -> bool {
    constraint.is_transposed && constraint.sharding.devices() != place.devices()
}

/// The stage that copies each result that no equation computes: the last on its devices. Adds a stage without equations for
/// devices that have none.
fn copy_stages(program: &Program, inputs: &[Input], runs: &mut Vec<Run>) -> HashMap<Atom, usize> {
    // The devices of a value: of the committed argument, or of the stage that computes it.
    let mut place_of: HashMap<Var, Place> = HashMap::new();
    for (var, input) in program.inputs.iter().zip(inputs) {
        place_of.extend(input.committed.as_ref().map(|sharding| (*var, Place::of(sharding))));
    }
    for run in runs.iter() {
        let computed = program.eqns[run.eqns.clone()].iter().flat_map(|eqn| &eqn.outputs);
        place_of.extend(computed.map(|var| (*var, run.place.clone())));
    }
    let end = program.eqns.len();
    let mut stages = HashMap::new();
    for atom in &program.outputs {
        let place = if let Atom::Var(var) = atom { place_of.get(var) } else { None };
        let stage = match place {
            // An uncommitted value can be copied by any stage.
            None => runs.len() - 1,
            Some(place) => match runs.iter().rposition(|run| run.place.devices() == place.devices()) {
                Some(stage) => stage,
                None => {
                    runs.push(Run { eqns: end..end, place: place.clone() });
                    runs.len() - 1
                }
            },
        };
        stages.insert(*atom, stage);
    }
    stages
}

/// The equations that XLA compiles for an equation.
fn length(eqn: &Eqn) -> usize {
    let mut inner = 0;
    for program in eqn.primitive.programs() {
        program.for_each_distinct_eqn(&mut |_| inner += 1);
    }
    1 + inner
}

/// Splits equations into ranges; each range except the last has at least [`STAGE_LENGTH`] equations.
fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut length) = (Vec::new(), 0, 0);
    for (i, eqn) in lengths.iter().enumerate() {
        length += eqn;
        if length >= STAGE_LENGTH {
            ranges.push(start..i + 1);
            (start, length) = (i + 1, 0);
        }
    }
    if start < lengths.len() {
        ranges.push(start..lengths.len());
    }
    ranges
}

/// Cuts a program into a program for each range of its equations. Returns the stages, the slots of the results, and the
/// number of slots. Results that are literals, arguments, or duplicates of another result are copied in the stage that
/// `copy_stage` returns, so that no two results share memory.
///
/// The slot of an input is its position, so that arguments are the first slots.
fn cut(
    program: &Program,
    ranges: &[Range<usize>],
    copy_stage: impl Fn(&Atom) -> usize,
) -> (Vec<Stage<Program>>, Vec<usize>, usize) {
    let mut slot_of: HashMap<Var, usize> = program.inputs.iter().enumerate().map(|(i, var)| (*var, i)).collect();
    let mut stage_of_slot: Vec<Option<usize>> = vec![None; program.inputs.len()];
    for (number, range) in ranges.iter().enumerate() {
        for var in program.eqns[range.clone()].iter().flat_map(|eqn| &eqn.outputs) {
            slot_of.insert(*var, stage_of_slot.len());
            stage_of_slot.push(Some(number));
        }
    }
    // Each result has a slot of its own. The slots of copies follow the slots of variables.
    let variables = stage_of_slot.len();
    let (mut outputs, mut copied, mut is_output) = (Vec::new(), Vec::new(), HashSet::new());
    for output in &program.outputs {
        let computed = match output {
            Atom::Var(var) => slot_of.get(var).copied().filter(|slot| stage_of_slot[*slot].is_some()),
            Atom::Literal { .. } => None,
        };
        outputs.push(match computed.filter(|slot| is_output.insert(*slot)) {
            Some(slot) => slot,
            None => {
                copied.push((*output, copy_stage(output)));
                variables + copied.len() - 1
            }
        });
    }

    let slots = variables + copied.len();
    let mut cut =
        Cut { program, ranges, slot_of, stage_of_slot, is_output, copied, last_reader: vec![None; variables] };
    for number in 0..ranges.len() {
        for var in cut.variables_read(number) {
            cut.last_reader[cut.slot_of[&var]] = Some(number);
        }
    }
    ((0..ranges.len()).map(|number| cut.stage(number)).collect(), outputs, slots)
}

/// A program, and the slots in which its values are stored between its stages.
struct Cut<'a> {
    program: &'a Program,
    /// The equations of each stage.
    ranges: &'a [Range<usize>],
    slot_of: HashMap<Var, usize>,
    /// The stage that computes each slot; `None` for the program's inputs.
    stage_of_slot: Vec<Option<usize>>,
    /// The slots of results, which are never dropped.
    is_output: HashSet<usize>,
    /// Results that are copies of values, and the stages that copy them.
    copied: Vec<(Atom, usize)>,
    /// The last stage that reads each slot.
    last_reader: Vec<Option<usize>>,
}

impl Cut<'_> {
    fn eqns(&self, number: usize) -> &[Eqn] {
        &self.program.eqns[self.ranges[number].clone()]
    }

    /// The values that a stage copies, and the slots of the copies.
    fn copied_in(&self, number: usize) -> impl Iterator<Item = (usize, Atom)> {
        let first = self.stage_of_slot.len();
        let copied = self.copied.iter().enumerate().filter(move |(_, (_, stage))| *stage == number);
        copied.map(move |(i, (atom, _))| (first + i, *atom))
    }

    /// The variables that the equations and copies of a stage read, in order, with repetitions.
    fn variables_read(&self, number: usize) -> Vec<Var> {
        let atoms = self.eqns(number).iter().flat_map(|eqn| eqn.inputs.iter().copied());
        let atoms = atoms.chain(self.copied_in(number).map(|(_, atom)| atom));
        atoms.filter_map(|atom| if let Atom::Var(var) = atom { Some(var) } else { None }).collect()
    }

    /// The program of a stage: its inputs are the values of other stages that it reads, and its outputs are the values
    /// that later stages read, the results that it computes, and copies.
    fn stage(&self, number: usize) -> Stage<Program> {
        let mut stage = Program::default();
        let mut renamed: HashMap<Var, Var> = HashMap::new();
        let mut inputs = Vec::new();
        for var in self.variables_read(number) {
            let slot = self.slot_of[&var];
            if self.stage_of_slot[slot] != Some(number) && !renamed.contains_key(&var) {
                let new = self.define(var, &mut stage, &mut renamed);
                stage.inputs.push(new);
                inputs.push(slot);
            }
        }
        let mut outputs = Vec::new();
        for &var in self.eqns(number).iter().flat_map(|eqn| &eqn.outputs) {
            let new = self.define(var, &mut stage, &mut renamed);
            let slot = self.slot_of[&var];
            if self.is_output.contains(&slot) || self.last_reader[slot].is_some_and(|reader| reader > number) {
                stage.outputs.push(Atom::Var(new));
                outputs.push(slot);
            }
        }
        stage.eqns = self.eqns(number).iter().map(|eqn| renamed_eqn(eqn, &renamed)).collect();
        for (slot, atom) in self.copied_in(number) {
            stage.outputs.push(renamed_atom(&atom, &renamed));
            outputs.push(slot);
        }
        // A stage can free a value of another stage after the last read, unless the caller receives the value.
        let last_read = inputs
            .iter()
            .copied()
            .filter(|slot| {
                self.last_reader[*slot] == Some(number)
                    && !self.is_output.contains(slot)
                    && self.stage_of_slot[*slot].is_some()
            })
            .collect();
        Stage { program: stage, inputs, outputs, last_read }
    }

    /// Adds a variable of the program to a stage.
    fn define(&self, var: Var, stage: &mut Program, renamed: &mut HashMap<Var, Var>) -> Var {
        stage.avals.push(self.program.aval_of(var).clone());
        let new = Var(stage.avals.len() as u32 - 1);
        renamed.insert(var, new);
        new
    }
}

fn renamed_atom(atom: &Atom, renamed: &HashMap<Var, Var>) -> Atom {
    match atom {
        Atom::Var(var) => Atom::Var(renamed[var]),
        literal => *literal,
    }
}

fn renamed_eqn(eqn: &Eqn, renamed: &HashMap<Var, Var>) -> Eqn {
    Eqn {
        inputs: eqn.inputs.iter().map(|atom| renamed_atom(atom, renamed)).collect(),
        outputs: eqn.outputs.iter().map(|var| renamed[var]).collect(),
        ..eqn.clone()
    }
}
