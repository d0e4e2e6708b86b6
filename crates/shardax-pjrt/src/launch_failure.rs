//! Launches that can fail while they run, and what becomes of their results.
//!
//! A function of the host that a program calls may fail on one device. Told so, the plugin stops the program there,
//! and its collectives, in this program or in a later one that is given the result, wait for that device until the
//! process is aborted. So the plugin is never told: the function's results are zeros, the program runs to its end on
//! every device, and the failure is kept here, where every result of the launch, and of launches that used those
//! results, finds it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// A launch whose program, or whose arguments' program, calls functions of the host.
pub(crate) struct Launch {
    id: i32,
    failure: OnceLock<Error>,
    /// Launches under way whose results it was given.
    parents: Mutex<Vec<Arc<Launch>>>,
    /// Devices that have not finished it.
    pending: AtomicUsize,
}

static RUNNING: OnceLock<Mutex<HashMap<i32, Arc<Launch>>>> = OnceLock::new();

fn running() -> MutexGuard<'static, HashMap<i32, Arc<Launch>>> {
    lock(RUNNING.get_or_init(Default::default))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Launch {
    /// Starts the record of a launch. Functions of the host find it by `id`.
    ///
    /// # Errors
    /// An argument comes from a launch that failed.
    pub(crate) fn begin(id: i32, args: &[&Buffer], devices: usize) -> Result<Arc<Launch>> {
        let mut parents: Vec<Arc<Launch>> = Vec::new();
        for origin in args.iter().filter_map(|arg| arg.origin.as_ref()) {
            if parents.last().is_some_and(|last| Arc::ptr_eq(last, origin)) {
                continue; // results of one launch mostly come together
            }
            origin.check_nearby()?;
            if !origin.is_settled() && !parents.iter().any(|parent| Arc::ptr_eq(parent, origin)) {
                parents.push(origin.clone());
            }
        }
        let launch = Arc::new(Launch {
            id,
            failure: OnceLock::new(),
            parents: Mutex::new(parents),
            pending: AtomicUsize::new(devices),
        });
        running().insert(id, launch.clone());
        Ok(launch)
    }

    /// The plugin did not start it.
    pub(crate) fn abandon(&self) {
        running().remove(&self.id);
    }

    /// A device has finished it.
    pub(crate) fn device_done(&self) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        running().remove(&self.id);
        let mut parents = lock(&self.parents);
        // What it was given has been there since before it ran, so the parents are as settled as they will be. From
        // here on they need not be kept.
        if let Some(error) = parents.iter().find_map(|parent| parent.check().err()) {
            let _ = self.failure.set(error);
        }
        parents.clear();
    }

    fn is_settled(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// The failure of it or of a launch whose results it used, as known so far. Complete for a result that is ready.
    pub(crate) fn check(self: &Arc<Launch>) -> Result<()> {
        // Not by recursion: many launches may be under way, each using the one before.
        let mut to_check = vec![self.clone()];
        while let Some(launch) = to_check.pop() {
            // Parents first: they are let go only after the failure was taken over from them.
            let parents = lock(&launch.parents).clone();
            launch.own_failure()?;
            to_check.extend(parents);
        }
        Ok(())
    }

    fn own_failure(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// A failure that is known without going far.
    fn check_nearby(&self) -> Result<()> {
        let parents = lock(&self.parents);
        self.own_failure()?;
        parents.iter().try_for_each(|parent| parent.own_failure())
    }
}

/// Whether the launch with this id has failed, or one whose results it was given.
pub(crate) fn has_failed(id: i64) -> bool {
    let launch = i32::try_from(id).ok().and_then(|id| running().get(&id).cloned());
    launch.is_some_and(|launch| launch.check().is_err())
}

/// Notes that a function of the host failed in the launch with this id; false when no such launch is known.
pub(crate) fn fail(id: i64, error: Error) -> bool {
    let launch = i32::try_from(id).ok().and_then(|id| running().get(&id).cloned());
    launch.is_some_and(|launch| {
        let _ = launch.failure.set(error); // the first failure is the cause of the others
        true
    })
}
