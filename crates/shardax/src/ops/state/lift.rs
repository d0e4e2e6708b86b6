//! Support for refs that a compiled function uses but did not make.

use std::cell::RefCell;

use super::FIRST_REF_NUMBER;
use super::access::Access;
use super::cell::{Cell, Turn};
use super::threaded::{Threaded, for_each_access};
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::{Traced, trace};
use crate::error::{Result, err};
use crate::interpret::thread_state::thread_eval;

/// The refs that a compiled function reads and writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lifted {
    /// The refs. Their values are the last captures.
    cells: Vec<Cell>,
    /// Marks the written refs. Their new values are the last results.
    written: Vec<bool>,
}

/// Returns the function with the values of its outer refs as captured arrays and their new values as additional
/// results, or `None` if it uses no outer refs.
pub(crate) fn lift(traced: &Traced) -> Result<Option<(Traced, Lifted)>> {
    let mut accesses: Vec<(Access, bool)> = Vec::new();
    for_each_access(&traced.program, &mut |access, written| match accesses
        .iter_mut()
        .find(|(known, _)| known.number == access.number)
    {
        Some(known) => known.1 |= written,
        None => accesses.push((access.clone(), written)),
    });
    accesses.retain(|(access, _)| access.number >= FIRST_REF_NUMBER);
    if accesses.is_empty() {
        return Ok(None);
    }
    let cells: Vec<Cell> = accesses
        .iter()
        .map(|(access, _)| access.cell.clone().ok_or_else(|| gone(&access.of)))
        .collect::<Result<_>>()?;
    let values: Vec<Array> = cells.iter().map(Cell::get).collect();
    let written: Vec<bool> = accesses.iter().map(|(_, written)| *written).collect();
    let refs = Threaded {
        numbers: RefCell::new(accesses.iter().map(|(access, _)| (access.number, access.of.clone())).collect()),
        fixed: Vec::new(),
    };
    // The state comes after the captures. Refs that are written are results too.
    let start = traced.captures.len();
    let mut avals: Vec<Aval> = traced.program.in_avals().cloned().collect();
    avals.splice(start..start, values.iter().map(Array::aval));
    let inner = trace(&avals, |args| {
        let mut args = args.to_vec();
        let mut state: Vec<Array> = args.drain(start..start + values.len()).collect();
        let mut outs = thread_eval(&traced.program, &refs, &args, &mut state)?;
        outs.extend(state.into_iter().zip(&written).filter(|(_, written)| **written).map(|(value, _)| value));
        Ok(outs)
    })?;
    let captures = [&traced.captures[..], &values].concat();
    Ok(Some((Traced { program: inner.program, captures }, Lifted { cells, written })))
}

fn gone(aval: &Aval) -> crate::error::Error {
    err!(Leak, "a ref of type {aval} was used after the function that made it had returned")
        .help("return its value from the function, `r.freeze()`, instead of storing the ref outside")
}

impl Lifted {
    /// Returns the number of refs.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns the number of results that are new values.
    pub fn results(&self) -> usize {
        self.written.iter().filter(|written| **written).count()
    }

    /// Waits for the turns to write the refs. The caller keeps them from reading the values until it has stored the new
    /// ones. A function with host callbacks takes no turns, because a callback can write the refs itself.
    pub fn turns(&self, has_callbacks: bool) -> Vec<Turn<'_>> {
        let written = self.cells.iter().zip(&self.written).filter(|(_, written)| **written && !has_callbacks);
        // Every thread locks cells in the same order, so that two threads cannot wait for each other.
        let mut cells: Vec<&Cell> = written.map(|(cell, _)| cell).collect();
        cells.sort_by_key(|cell| cell.address());
        cells.into_iter().map(Cell::turn).collect()
    }

    /// Returns the current values.
    pub fn values(&self) -> impl Iterator<Item = Array> + '_ {
        self.cells.iter().map(Cell::get)
    }

    /// Stores the new values, in the order of the results.
    pub fn store(&self, new: impl IntoIterator<Item = Array>) {
        let written = self.cells.iter().zip(&self.written).filter(|(_, written)| **written);
        written.zip(new).for_each(|((cell, _), value)| cell.set(value));
    }
}
