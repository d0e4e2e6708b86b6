//! Functions of the host in programs, name scopes, and checks.

#[path = "../common/mod.rs"]
mod common;

mod batching;
mod checks;
mod host;
mod limits;
mod nans;
mod ordered;
mod scopes;
mod transfers;
