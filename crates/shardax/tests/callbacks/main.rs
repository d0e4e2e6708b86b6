//! Functions of the host in programs, name scopes, and checks.

use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// A lock of the tests whose host functions fail and of the tests that call `effects_barrier`, which reports the failures of
/// all threads.
fn failures() -> MutexGuard<'static, ()> {
    static FAILURES: Mutex<()> = Mutex::new(());
    let guard = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    // What has failed before is no longer reported.
    let _ = shardax::effects_barrier();
    guard
}
