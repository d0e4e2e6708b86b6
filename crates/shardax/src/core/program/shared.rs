//! Programs that several equations call.
//!
//! If a function calls another one twice, and that function calls a third one twice, there are 2ⁿ calls at n levels but
//! only n programs. Therefore every pass looks once at each distinct program: properties are computed once and cached
//! here, [`Program::for_each_distinct_eqn`] visits each program once, and lowering writes one function.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Eqn, Flops, Program};
use crate::error::Result;
use crate::local::{Lasting, LastingKey};
use crate::shape::{AxisName, AxisSet};
use crate::sharding::{NamedSharding, Sharding};
use crate::stack::grow;

/// A program that several equations can call. Clones refer to the same program.
#[derive(Clone)]
pub struct SharedProgram(Arc<Inner>);

struct Inner {
    program: Program,
    hash: OnceLock<u64>,
    has_effects: OnceLock<bool>,
    equations: OnceLock<usize>,
    repeats: OnceLock<bool>,
    flops: OnceLock<Flops>,
    /// The axes over which the results vary, for the axes over which the operands vary.
    varying: Mutex<HashMap<Vec<AxisSet>, Vec<AxisSet>>>,
    uses_axis: Mutex<HashMap<AxisName, bool>>,
    in_shardings: OnceLock<Vec<Option<Sharding>>>,
    out_shardings: OnceLock<Vec<Option<NamedSharding>>>,
}

impl From<Program> for SharedProgram {
    fn from(program: Program) -> Self {
        SharedProgram(Arc::new(Inner {
            program,
            hash: OnceLock::new(),
            has_effects: OnceLock::new(),
            equations: OnceLock::new(),
            repeats: OnceLock::new(),
            flops: OnceLock::new(),
            varying: Mutex::default(),
            uses_axis: Mutex::default(),
            in_shardings: OnceLock::new(),
            out_shardings: OnceLock::new(),
        }))
    }
}

impl Deref for SharedProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0.program
    }
}

impl fmt::Debug for SharedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.program.fmt(f)
    }
}

impl SharedProgram {
    /// Identifies the program during its lifetime.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    fn hash_once(&self) -> u64 {
        *self.0.hash.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.0.program.hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Returns `true` if an equation has effects.
    pub(crate) fn has_effects(&self) -> bool {
        *self.0.has_effects.get_or_init(|| self.eqns.iter().any(|eqn| grow(|| eqn.primitive.has_effects())))
    }

    /// The number of equations, including equations of inner programs as often as these are called.
    fn equations_of_all_calls(&self) -> usize {
        *self.0.equations.get_or_init(|| self.0.program.equations_of_all_calls())
    }

    /// Returns `true` if the program has more than twice as many equations with all calls written in place. Rules then
    /// record calls of derived programs; otherwise they write the program in place, which other passes see through.
    pub(crate) fn repeats_equations(&self) -> bool {
        *self.0.repeats.get_or_init(|| {
            let mut distinct = 0usize;
            self.for_each_distinct_eqn(&mut |_| distinct += 1);
            self.equations_of_all_calls() > 2 * distinct
        })
    }

    /// The axes over which each output varies if the inputs vary over `inputs`, as `compute` finds them.
    pub(crate) fn varying_once(
        &self,
        inputs: &[AxisSet],
        compute: impl FnOnce() -> Result<Vec<AxisSet>>,
    ) -> Result<Vec<AxisSet>> {
        let cached = self.0.varying.lock().unwrap_or_else(PoisonError::into_inner).get(inputs).cloned();
        if let Some(cached) = cached {
            return Ok(cached);
        }
        // The lock is free here, because programs inside look up their own axes.
        let outputs = compute()?;
        self.0.varying.lock().unwrap_or_else(PoisonError::into_inner).insert(inputs.to_vec(), outputs.clone());
        Ok(outputs)
    }

    /// Returns `true` if an equation communicates over this axis.
    pub(crate) fn uses_axis_once(&self, name: AxisName) -> bool {
        let cached = self.0.uses_axis.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
        // Computed without the lock, because programs inside look up their own axes.
        cached.unwrap_or_else(|| {
            let uses = self.eqns.iter().any(|eqn| grow(|| eqn.primitive.uses_axis(name)));
            self.0.uses_axis.lock().unwrap_or_else(PoisonError::into_inner).insert(name, uses);
            uses
        })
    }

    pub(crate) fn flops_once(&self) -> Flops {
        *self.0.flops.get_or_init(|| self.0.program.flops())
    }

    pub(crate) fn in_shardings_once(&self) -> &[Option<Sharding>] {
        self.0.in_shardings.get_or_init(|| self.0.program.in_shardings())
    }

    pub(crate) fn out_shardings_once(&self) -> &[Option<NamedSharding>] {
        self.0.out_shardings.get_or_init(|| self.0.program.out_shardings())
    }
}

impl Hash for SharedProgram {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_once().hash(state);
    }
}

thread_local! {
    /// The pairs of programs that the current comparison has found equal or is comparing, and the number of nested
    /// comparisons.
    static COMPARED: Lasting<(HashSet<(usize, usize)>, usize)> = Lasting::default();
}

/// Ends a comparison when it is dropped. Its results are then cleared, because they hold only while both programs live.
struct Comparison;

impl Comparison {
    fn begin() -> Comparison {
        COMPARED.with_borrow_mut(|(_, depth)| *depth += 1);
        Comparison
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        COMPARED.with_borrow_mut(|(pairs, depth)| {
            *depth -= 1;
            if *depth == 0 {
                *pairs = HashSet::new();
            }
        });
    }
}

impl PartialEq for SharedProgram {
    fn eq(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return true;
        }
        if self.hash_once() != other.hash_once() {
            return false;
        }
        let _comparison = Comparison::begin();
        let pair = (self.id(), other.id());
        // A program does not contain itself. Therefore a known pair was compared before, and was equal because the
        // first difference ends the entire comparison.
        let is_new = COMPARED.with_borrow_mut(|(pairs, _)| pairs.insert(pair));
        let equal = !is_new || self.0.program == other.0.program;
        if !equal {
            COMPARED.with_borrow_mut(|(pairs, _)| pairs.remove(&pair));
        }
        equal
    }
}

impl Eq for SharedProgram {}

impl Program {
    fn equations_of_all_calls(&self) -> usize {
        self.eqns.iter().fold(0, |sum, eqn| {
            let inner = grow(|| match eqn.primitive.callee() {
                Some(callee) => callee.equations_of_all_calls(),
                None => eqn.primitive.programs().iter().map(|inner| inner.equations_of_all_calls()).sum(),
            });
            sum.saturating_add(1).saturating_add(inner)
        })
    }

    /// Calls `visit` with every equation, including equations of inner programs. The equations of a program that is
    /// called several times are visited once.
    pub(crate) fn for_each_distinct_eqn(&self, visit: &mut dyn FnMut(&Eqn)) {
        self.visit_distinct(&mut HashSet::new(), visit);
    }

    fn visit_distinct(&self, seen: &mut HashSet<usize>, visit: &mut dyn FnMut(&Eqn)) {
        for eqn in &self.eqns {
            visit(eqn);
            if eqn.primitive.callee().is_some_and(|callee| !seen.insert(callee.id())) {
                continue;
            }
            for inner in eqn.primitive.programs() {
                grow(|| inner.visit_distinct(seen, visit));
            }
        }
    }
}
