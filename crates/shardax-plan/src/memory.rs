//! The memory of one device, by what holds it.

use std::fmt;

use crate::plan::{Argument, Facts, Plan};

/// What memory is held by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// The model's parameters.
    Parameters,
    /// What the optimizer keeps, and other state that is given back changed.
    OptimizerState,
    /// The data of one step.
    Batch,
    /// Results that take over no argument's memory.
    Results,
    /// What lives within a step: activations, gradients, and what operations need besides.
    ActivationsAndTemporaries,
    /// The program, and what the compiler adds to arguments by its layouts.
    ProgramAndPadding,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Holder::Parameters => "parameters",
            Holder::OptimizerState => "optimizer state",
            Holder::Batch => "batch",
            Holder::Results => "results",
            Holder::ActivationsAndTemporaries => "activations, temporaries",
            Holder::ProgramAndPadding => "program, padding",
        })
    }
}

/// The memory of one device in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Each holder with its bytes, those that hold none left out.
    pub by: Vec<(Holder, f64)>,
    /// What the device has for programs; `None` where nobody says.
    pub limit: Option<f64>,
}

impl Memory {
    /// By the compiler's figures, and the arguments' shardings.
    pub(crate) fn of_facts(plan: &Plan, facts: &Facts, limit: Option<f64>) -> Memory {
        let m = &facts.memory;
        let of = |holder: Holder| -> f64 {
            facts.arguments.iter().filter(|a| holder_of(plan, a) == holder).map(|a| a.bytes).sum()
        };
        let arguments: f64 = facts.arguments.iter().map(|a| a.bytes).sum();
        let rest = (m.arguments as f64 - arguments).max(0.0) + m.generated_code.max(0) as f64;
        let by = [
            (Holder::Parameters, of(Holder::Parameters)),
            (Holder::OptimizerState, of(Holder::OptimizerState)),
            (Holder::Batch, of(Holder::Batch)),
            (Holder::Results, (of(Holder::Results) + (m.outputs - m.aliased) as f64).max(0.0)),
            (Holder::ActivationsAndTemporaries, of(Holder::ActivationsAndTemporaries) + m.temporaries as f64),
            (Holder::ProgramAndPadding, of(Holder::ProgramAndPadding) + rest),
        ];
        Memory { by: by.into_iter().filter(|(_, bytes)| *bytes > 0.0).collect(), limit }
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.by.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What this holds.
    pub fn of(&self, holder: Holder) -> f64 {
        self.by.iter().find(|(of, _)| *of == holder).map_or(0.0, |(_, bytes)| *bytes)
    }

    /// Whether it fits the device; `None` where nobody says what that has.
    pub fn fits(&self) -> Option<bool> {
        self.limit.map(|limit| self.total() <= limit)
    }
}

pub(crate) fn holder_of(plan: &Plan, argument: &Argument) -> Holder {
    let said = plan.holders.iter().find(|(_, path)| argument.path.starts_with(path.as_str()));
    let has = |word: &str| argument.path.contains(word);
    match said {
        Some((holder, _)) => *holder,
        None if has("opt_state") => Holder::OptimizerState,
        None if has("model") || has("params") => Holder::Parameters,
        None if argument.donated => Holder::OptimizerState,
        None => Holder::Batch,
    }
}

/// Something that would need less memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// What to do.
    pub what: String,
    /// What one device would need then, in bytes.
    pub needs: f64,
    /// Whether it was compiled so; else it is by theory.
    pub compiled: bool,
}

impl Memory {
    /// What would help, by theory: state and gradients are split over more devices, activations are in proportion to
    /// the batch.
    pub(crate) fn advice(&self) -> Vec<Advice> {
        let (parameters, state) = (self.of(Holder::Parameters), self.of(Holder::OptimizerState));
        let within = self.of(Holder::ActivationsAndTemporaries);
        // Gradients are as large as parameters, and live within the step.
        let gradients = parameters.min(within);
        let theory =
            |what: &str, less: f64| Advice { what: what.to_owned(), needs: self.total() - less, compiled: false };
        vec![
            theory(
                "parameters, optimizer state and gradients over twice as many devices (FSDP)",
                (parameters + state + gradients) / 2.0,
            ),
            theory(
                "half as many rows on each device (micro-batch)",
                (within - gradients + self.of(Holder::Batch)) / 2.0,
            ),
        ]
    }
}
