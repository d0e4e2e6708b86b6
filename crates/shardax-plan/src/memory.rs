//! The memory of one device by purpose.

use std::fmt;

use crate::plan::{Argument, Facts, Plan};

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// The model's parameters.
    Parameters,
    /// State of the optimizer, and other state that the step returns.
    OptimizerState,
    /// The data of one step.
    Batch,
    /// Results that do not reuse the memory of an argument.
    Results,
    /// Memory during a step: activations, gradients, and temporaries of operations.
    ActivationsAndTemporaries,
    /// Machine code, and padding of arguments by the compiler's layouts.
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
    /// Bytes by purpose, without zeros.
    pub by: Vec<(Holder, f64)>,
    /// The memory of the device for programs; `None` if unknown.
    pub limit: Option<f64>,
    /// The bytes of arguments that the step donates.
    pub donated: f64,
    /// The bytes of those that results take over.
    pub aliased: f64,
}

impl Memory {
    /// From the compiler's figures and the arguments' shardings.
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
        let donated = facts.arguments.iter().filter(|a| a.donated).map(|a| a.bytes).sum();
        let by = by.into_iter().filter(|(_, bytes)| *bytes > 0.0).collect();
        Memory { by, limit, donated, aliased: m.aliased as f64 }
    }

    /// The sum.
    pub fn total(&self) -> f64 {
        self.by.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The bytes for a purpose.
    pub fn of(&self, holder: Holder) -> f64 {
        self.by.iter().find(|(of, _)| *of == holder).map_or(0.0, |(_, bytes)| *bytes)
    }

    /// True if it fits on the device; `None` if the limit is unknown.
    pub fn fits(&self) -> Option<bool> {
        self.limit.map(|limit| self.total() <= limit)
    }
}

pub(crate) fn holder_of(plan: &Plan, argument: &Argument) -> Holder {
    let given = plan.holders.iter().find(|(_, path)| argument.path.starts_with(path.as_str()));
    let has = |word: &str| argument.path.contains(word);
    match given {
        Some((holder, _)) => *holder,
        None if has("opt_state") => Holder::OptimizerState,
        None if has("model") || has("params") => Holder::Parameters,
        None if argument.donated => Holder::OptimizerState,
        None => Holder::Batch,
    }
}

/// A change that would need less memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The change.
    pub what: String,
    /// The memory of one device after it, in bytes.
    pub needs: f64,
    /// The figure is the compiler's; otherwise it is an estimate.
    pub compiled: bool,
}

impl Memory {
    /// Estimated advice: state and gradients split over more devices; activations in proportion to the batch.
    pub(crate) fn advice(&self) -> Vec<Advice> {
        let (parameters, state) = (self.of(Holder::Parameters), self.of(Holder::OptimizerState));
        let within = self.of(Holder::ActivationsAndTemporaries);
        // Gradients are as large as parameters and live within the step.
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
