//! The devices of each equation of a program whose values move between sets of devices.

use std::ops::Range;

use super::placement::{Input, Place};
use crate::core::array::Array;
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Atom, Aval, Env, Eqn, Program, Var};
use crate::error::Result;
use crate::interpret::eval::at_eqn;
use crate::ops::collective::ShardingConstraint;
use crate::ops::primitive::optimization_barrier::OptimizationBarrier;
use crate::sharding::Sharding;

/// Consecutive equations on the same devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub eqns: Range<usize>,
    pub place: Place,
}

/// Splits the equations of a program into runs on the same devices. Returns `None` if all are on the same devices, and if
/// an equation has operands on different ones, because placing the program as a whole reports this error.
///
/// A value is on the devices of the equation that computes it, which are the devices of its operands. Only a
/// [`ShardingConstraint`] moves a value. Uncommitted arguments, literals and returned cotangents are on no particular
/// devices, so equations of only such operands run where their results are used.
pub(super) fn runs(program: &Program, inputs: &[Input]) -> Option<Vec<Run>> {
    let mut places = Places::default();
    let mut place_of: Vec<Option<usize>> = vec![None; program.avals.len()];
    for (var, input) in program.inputs.iter().zip(inputs) {
        place_of[var.0 as usize] = input.committed.as_ref().map(|sharding| places.index(sharding));
    }
    for eqn in &program.eqns {
        if let Some(to) = move_of(eqn) {
            places.index(&to.sharding);
        }
    }
    if places.0.len() < 2 {
        return None;
    }
    // Forward: operands decide.
    let mut of_eqns = Vec::with_capacity(program.eqns.len());
    for eqn in &program.eqns {
        let place = match move_of(eqn) {
            Some(to) => (!to.is_transposed).then(|| places.index(&to.sharding)),
            None => common_place(eqn, &place_of, &mut places)?,
        };
        of_eqns.push(place);
        eqn.outputs.iter().for_each(|var| place_of[var.0 as usize] = place);
    }
    // Backward: uses decide for the other equations.
    let mut used_at: Vec<Option<usize>> = vec![None; program.avals.len()];
    for (eqn, place) in program.eqns.iter().zip(&mut of_eqns).rev() {
        let place = place.get_or_insert_with(|| {
            let first_use = eqn.outputs.iter().find_map(|var| used_at[var.0 as usize]);
            first_use.unwrap_or(0)
        });
        if move_of(eqn).is_none() {
            variables(eqn).for_each(|var| used_at[var.0 as usize] = Some(*place));
        }
    }
    let of_eqns: Vec<usize> = of_eqns.into_iter().flatten().collect();
    Some(join(&of_eqns, &places))
}

/// Returns the program with equations whose operands can be on one set of devices: the equations of `checkpoint` and of
/// functions with custom rules in their place, if they move values, and a barrier for each operand. `None` if all values are
/// on the same devices.
pub(super) fn divided(program: &Program, inputs: &[Input]) -> Result<Option<Program>> {
    let mut places = Places::default();
    for sharding in inputs.iter().filter_map(|input| input.committed.as_ref()) {
        places.index(sharding);
    }
    for_each_move(program, &mut |to| {
        places.index(&to.sharding);
    });
    if places.0.len() < 2 {
        return Ok(None);
    }
    let avals: Vec<Aval> = program.in_avals().cloned().collect();
    let Traced { program, .. } = trace(&avals, |args| eval_divided(program, args))?;
    Ok(Some(program))
}

fn for_each_move(program: &Program, visit: &mut dyn FnMut(&ShardingConstraint)) {
    for eqn in &program.eqns {
        move_of(eqn).into_iter().for_each(&mut *visit);
        eqn.primitive.equivalent_program().into_iter().for_each(|inner| for_each_move(inner, visit));
    }
}

fn moves_values(program: &Program) -> bool {
    let mut moves = false;
    for_each_move(program, &mut |_| moves = true);
    moves
}

/// Computes the outputs of `program` by equations whose operands can be on one set of devices.
fn eval_divided(program: &Program, args: &[Array]) -> Result<Vec<Array>> {
    let mut env = Env::new(program);
    program.inputs.iter().zip(args).for_each(|(var, arg)| env.set(*var, arg.clone()));
    for eqn in &program.eqns {
        at_eqn(eqn, || {
            let is_barrier = eqn.primitive.as_any().is::<OptimizationBarrier>();
            let outs = match eqn.primitive.equivalent_program().filter(|inner| moves_values(inner)) {
                Some(inner) => eval_divided(inner, &env.arrays(&eqn.inputs)?)?,
                None if is_barrier => env.arrays(&eqn.inputs)?.chunks(1).flat_map(OptimizationBarrier::apply).collect(),
                None => return env.apply(eqn),
            };
            eqn.outputs.iter().zip(outs).for_each(|(var, out)| env.set(*var, out));
            Ok(())
        })?;
    }
    env.arrays(&program.outputs)
}

/// The constraint that an equation applies, which may move its operand.
pub(super) fn move_of(eqn: &Eqn) -> Option<&ShardingConstraint> {
    eqn.primitive.as_any().downcast_ref()
}

fn variables(eqn: &Eqn) -> impl Iterator<Item = Var> {
    eqn.inputs.iter().filter_map(|atom| match atom {
        Atom::Var(var) => Some(*var),
        Atom::Literal { .. } => None,
    })
}

/// The devices that the operands of an equation and its inner equations name: `Some(None)` if they name none, `None` if they
/// differ.
fn common_place(eqn: &Eqn, place_of: &[Option<usize>], places: &mut Places) -> Option<Option<usize>> {
    let mut named: Vec<usize> = variables(eqn).filter_map(|var| place_of[var.0 as usize]).collect();
    named.extend(eqn.primitive.placed_on().map(|sharding| places.index(&sharding)));
    for inner in eqn.primitive.programs() {
        inner.for_each_distinct_eqn(&mut |eqn| {
            named.extend(eqn.primitive.placed_on().map(|sharding| places.index(&sharding)));
        });
    }
    let first = named.first().copied();
    named.iter().all(|place| Some(*place) == first).then_some(first)
}

fn join(of_eqns: &[usize], places: &Places) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, place) in of_eqns.iter().enumerate() {
        let place = &places.0[*place];
        match runs.last_mut().filter(|run| run.place == *place) {
            Some(run) => run.eqns.end = i + 1,
            None => runs.push(Run { eqns: i..i + 1, place: place.clone() }),
        }
    }
    runs
}

/// Sets of devices, in the order in which they were found. The first is the default.
#[derive(Default)]
struct Places(Vec<Place>);

impl Places {
    fn index(&mut self, sharding: &Sharding) -> usize {
        let position = self.0.iter().position(|place| place.devices() == sharding.devices());
        position.unwrap_or_else(|| {
            self.0.push(Place::of(sharding));
            self.0.len() - 1
        })
    }
}
