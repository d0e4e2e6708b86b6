//! What looks into programs: functions of the host, names, checks.

#[path = "../common/mod.rs"]
mod common;

mod host;
mod scopes;
