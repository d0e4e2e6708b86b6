//! Failures of host functions during a launch.
//!
//! A host function can fail on one device. If this is reported to the CPU plugin (xla-cpu-pjrt 0.0.1), the plugin stops
//! the program on that device, and collectives on the others, in this program or a later one that uses the result, wait
//! until the process is aborted. Therefore it is not reported: the results of the function are zeros, the program runs
//! to its end on every device, and the failure is recorded here. Results of the launch, and of launches that used them,
//! return it. Test: `ffi::a_failure_on_one_device_reaches_every_result_and_no_collective_waits`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// A launch whose program, or the program of one of its arguments, calls host functions.
pub(crate) struct Launch {
    id: i32,
    failure: OnceLock<Error>,
    /// Launches in flight whose results it uses.
    parents: Mutex<Vec<Arc<Launch>>>,
    /// The number of devices that have not finished it.
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
    /// Records a launch. Host functions find it by `id`.
    ///
    /// # Errors
    /// Returns an error if an argument is the result of a failed launch. A program of several processes runs
    /// nevertheless: other processes wait for it, and its host functions report the failure to them.
    pub(crate) fn begin(id: i32, args: &[&Buffer], devices: usize, multi_process: bool) -> Result<Arc<Launch>> {
        let failure = OnceLock::new();
        let mut parents: Vec<Arc<Launch>> = Vec::new();
        for origin in args.iter().filter_map(|arg| arg.origin.as_ref()) {
            if parents.last().is_some_and(|last| Arc::ptr_eq(last, origin)) {
                continue; // results of one launch are usually passed together
            }
            match origin.check_nearby() {
                Err(error) if multi_process => drop(failure.set(error)),
                checked => checked?,
            }
            if !origin.is_settled() && !parents.iter().any(|parent| Arc::ptr_eq(parent, origin)) {
                parents.push(origin.clone());
            }
        }
        let launch = Arc::new(Launch { id, failure, parents: Mutex::new(parents), pending: AtomicUsize::new(devices) });
        running().insert(id, launch.clone());
        Ok(launch)
    }

    /// Removes a launch that the plugin did not accept.
    pub(crate) fn abandon(&self) {
        running().remove(&self.id);
    }

    /// Records that a device has finished it.
    pub(crate) fn device_done(&self) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        running().remove(&self.id);
        let mut parents = lock(&self.parents);
        // Its arguments were ready before it ran, so the failures of the parents are final, and the parents can be
        // dropped.
        if let Some(error) = parents.iter().find_map(|parent| parent.check().err()) {
            let _ = self.failure.set(error);
        }
        parents.clear();
    }

    fn is_settled(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Returns the failure of this launch, or of a launch whose results it used, if it is known. The answer is final as
    /// soon as a result is ready.
    pub(crate) fn check(self: &Arc<Launch>) -> Result<()> {
        // Iterative: many launches may be in flight, each using the previous one.
        let mut to_check = vec![self.clone()];
        while let Some(launch) = to_check.pop() {
            // The parents are read first: they are dropped only after their failure was copied.
            let parents = lock(&launch.parents).clone();
            launch.own_failure()?;
            to_check.extend(parents);
        }
        Ok(())
    }

    fn own_failure(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns a known failure of this launch and its direct parents.
    fn check_nearby(&self) -> Result<()> {
        let parents = lock(&self.parents);
        self.own_failure()?;
        parents.iter().try_for_each(|parent| parent.own_failure())
    }
}

/// The failure of the launch with this id, or of a launch whose results it uses.
pub(crate) fn failure(id: i64) -> Option<Error> {
    let launch = i32::try_from(id).ok().and_then(|id| running().get(&id).cloned());
    launch?.check().err()
}

/// Records the failure of a host function in the launch with this id; returns false if there is no such launch.
pub(crate) fn fail(id: i64, error: Error) -> bool {
    let launch = i32::try_from(id).ok().and_then(|id| running().get(&id).cloned());
    launch.is_some_and(|launch| {
        let _ = launch.failure.set(error); // the first failure is the cause of the others
        true
    })
}
