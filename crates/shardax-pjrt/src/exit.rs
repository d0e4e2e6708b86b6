//! The end of the process: it waits for the programs that still run.
//!
//! When `main` returns, or something calls `exit`, the C library destroys the plugin's statics, compiled kernels among
//! them, while the plugin's threads go on running programs that nobody waited for: the process would die of a signal.
//! C's `exit` first runs the destructors of the calling thread's locals, then what was registered with `atexit` and the
//! destructors of statics, the latest first. Both are used:
//!
//! - a thread that has launched something waits, at its end, for what is under way; and with the main thread's end
//!   nothing can be launched any more;
//! - a function registered with `atexit` does the same, for an `exit` elsewhere. The plugin makes some of its statics
//!   only when a program first runs, so it is registered anew after the first run of every program.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::client::ClientInner;
use crate::event::{self, Event};

static ENDING: AtomicBool = AtomicBool::new(false);
static CLIENTS: Mutex<Vec<Weak<ClientInner>>> = Mutex::new(Vec::new());

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Whether the process is about to end, so that nothing may be launched any more.
#[inline]
pub(crate) fn is_near() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Has the process wait, at its end, for what this client runs.
pub(crate) fn watch(client: &Arc<ClientInner>) {
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
    drop(clients);
    register();
}

/// To be called after the first launch of a program.
#[cold]
pub(crate) fn after_first_launch(completion: &[Arc<Event>]) {
    for event in completion {
        Event::call_when_ready(event.clone(), |_| register());
    }
    if completion.is_empty() {
        register();
    }
}

/// Has this thread wait, at its end, for what is under way by then.
#[inline]
pub(crate) fn thread_launched() {
    struct Thread {
        is_main: bool,
    }
    impl Drop for Thread {
        fn drop(&mut self) {
            if self.is_main {
                end();
            } else {
                clients().for_each(|client| client.gate.wait_for_present());
            }
        }
    }
    thread_local! {
        static THREAD: Thread = Thread { is_main: std::thread::current().name() == Some("main") };
    }
    let _ = THREAD.try_with(|_| ());
}

fn register() {
    // SAFETY: the function takes nothing, and lives as long as the process.
    unsafe { atexit(end) };
}

extern "C" fn end() {
    ENDING.store(true, Ordering::SeqCst);
    clients().for_each(|client| client.gate.drain());
}

fn clients() -> impl Iterator<Item = Arc<ClientInner>> {
    let clients = match event::in_callback() {
        true => Vec::new(), // a program waits for this very thread
        false => CLIENTS.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    };
    clients.into_iter().filter_map(|client| client.upgrade())
}
