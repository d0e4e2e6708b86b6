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
    /// The bytes of donated arguments whose memory results reuse.
    pub aliased: f64,
}

impl Memory {
    /// Assigns the compiler's figures to purposes, by the arguments' key paths and shardings.
    pub(crate) fn from_facts(plan: &Plan, facts: &Facts, limit: Option<f64>) -> Memory {
        let m = &facts.memory;
        let arguments: f64 = facts.arguments.iter().map(|a| a.bytes).sum();
        let padding = (m.arguments as f64 - arguments).max(0.0);
        // The user can assign arguments to any purpose, so each one has arguments.
        let by = [
            (Holder::Parameters, 0.0),
            (Holder::OptimizerState, 0.0),
            (Holder::Batch, 0.0),
            (Holder::Results, (m.outputs - m.aliased) as f64),
            (Holder::ActivationsAndTemporaries, m.temporaries as f64),
            (Holder::ProgramAndPadding, padding + m.generated_code.max(0) as f64),
        ];
        let by = by.map(|(holder, bytes)| {
            let arguments = facts.arguments.iter().filter(|a| holder_of(plan, a) == holder);
            (holder, (arguments.map(|a| a.bytes).sum::<f64>() + bytes).max(0.0))
        });
        let donated = facts.arguments.iter().filter(|a| a.donated).map(|a| a.bytes).sum();
        let by = by.into_iter().filter(|(_, bytes)| *bytes > 0.0).collect();
        Memory { by, limit, donated, aliased: m.aliased as f64 }
    }

    /// Returns the bytes for all purposes together.
    pub fn total(&self) -> f64 {
        self.by.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the bytes for a purpose.
    pub fn bytes(&self, holder: Holder) -> f64 {
        self.by.iter().find(|(purpose, _)| *purpose == holder).map_or(0.0, |(_, bytes)| *bytes)
    }

    /// Returns true if the step fits on the device; `None` if the limit is unknown, so that you must compare
    /// [`total`](Self::total) with it yourself.
    pub fn fits(&self) -> Option<bool> {
        self.limit.map(|limit| self.total() <= limit)
    }
}

pub(crate) fn holder_of(plan: &Plan, argument: &Argument) -> Holder {
    let path = argument.path.as_str();
    match plan.holders.iter().find(|(_, prefix)| path.starts_with(prefix.as_str())) {
        Some((holder, _)) => *holder,
        None if path.contains("opt_state") => Holder::OptimizerState,
        None if path.contains("model") || path.contains("params") => Holder::Parameters,
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
    /// True if the compiler reported the figure, and false if it is an estimate, which you should check by compiling
    /// the changed setup.
    pub compiled: bool,
}

impl Memory {
    /// Estimated advice: state and gradients split over more devices; activations in proportion to the batch.
    pub(crate) fn advice(&self) -> Vec<Advice> {
        let (parameters, state) = (self.bytes(Holder::Parameters), self.bytes(Holder::OptimizerState));
        let temporaries = self.bytes(Holder::ActivationsAndTemporaries);
        // Gradients are as large as parameters, and exist only during the step.
        let gradients = parameters.min(temporaries);
        let savings = [
            (
                "parameters, optimizer state and gradients over twice as many devices (FSDP)",
                (parameters + state + gradients) / 2.0,
            ),
            (
                "half as many rows on each device (micro-batch)",
                (temporaries - gradients + self.bytes(Holder::Batch)) / 2.0,
            ),
        ];
        let advice =
            savings.map(|(what, saved)| Advice { what: what.to_owned(), needs: self.total() - saved, compiled: false });
        advice.into()
    }
}
