//! Interpreters of programs: evaluation, differentiation, batching, and what values vary over. Each walks the equations
//! and asks the primitives for their rules.

pub(crate) mod ad;
pub(crate) mod batching;
pub(crate) mod eval;
pub(crate) mod flat;
pub(crate) mod higher_order;
pub(crate) mod thread_state;
pub(crate) mod vary;
