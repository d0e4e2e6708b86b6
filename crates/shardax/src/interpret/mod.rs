//! Interpreters of programs: evaluation, differentiation, batching, and varying axes. Each interpreter visits the
//! equations and calls the primitives' rules.

pub(crate) mod ad;
pub(crate) mod backward_logs;
pub(crate) mod batching;
pub(crate) mod eval;
pub(crate) mod flat;
pub(crate) mod higher_order;
pub(crate) mod memo;
pub(crate) mod thread_state;
pub(crate) mod vary;
