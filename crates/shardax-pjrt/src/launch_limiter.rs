//! Limits on the launches in flight, which the process also waits for at its end.
//!
//! The CPU plugin (xla-cpu-pjrt 0.0.1) allows 32 launches in flight on a device. A multi-device launch beyond that
//! blocks one of the threads that run programs, on each device. If the programs in flight have collectives, too few
//! threads remain for all participants of a collective, and everything waits until the process is aborted: 40 steps
//! without waiting are enough. So the calling thread waits here before the plugin's limit. Test:
//! `hazards::hundreds_of_launches_without_waiting`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::error::Result;
use crate::event::Event;
use crate::exit;

/// Limit of multi-device launches, which count on all of their devices.
const MULTI_LIMIT: usize = 12;
/// Limit of single-device launches on each device. The sum of both limits is below the plugin's 32.
const SINGLE_LIMIT: usize = 16;

/// Interval at which a waiting thread checks again.
const POLL: Duration = Duration::from_micros(20);

/// The completion events of a launch, one for each device.
pub(crate) type Completion = SmallVec<[Arc<Event>; 8]>;

/// The launches in flight of a client.
pub(crate) struct LaunchLimiter {
    multi: Mutex<Multi>,
    single: Vec<Single>,
    /// The last launch whose devices communicate with other processes.
    multi_process: Mutex<Completion>,
}

#[derive(Default)]
struct Multi {
    /// Launches that have passed the check and that the plugin has not accepted or rejected yet.
    starting: usize,
    in_flight: VecDeque<Completion>,
    /// Launches that a thread removed from the front of `in_flight` to wait for them.
    awaited: usize,
}

#[derive(Default)]
struct Single {
    count: AtomicUsize,
    in_flight: Mutex<VecDeque<Arc<Event>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Polls a condition until it is true or the deadline has passed.
fn poll(deadline: Instant, mut is_so: impl FnMut() -> bool) -> bool {
    let mut pause = POLL;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    true
}

impl LaunchLimiter {
    pub(crate) fn new(devices: usize) -> LaunchLimiter {
        LaunchLimiter {
            multi: Mutex::default(),
            single: (0..devices).map(|_| Single::default()).collect(),
            multi_process: Mutex::default(),
        }
    }

    /// Waits until the previous launch that communicates with other processes has completed, and excludes others
    /// meanwhile. Such launches must run in the same order in every process, and the plugin does not promise to run
    /// launches in order.
    pub(crate) fn enter_multi_process(&self) -> MutexGuard<'_, Completion> {
        let previous = lock(&self.multi_process);
        for event in previous.iter() {
            let _ = event.wait_ref(); // its results return the error
        }
        previous
    }

    /// Waits until a multi-device launch can start.
    ///
    /// # Errors
    /// Returns an error if the process is ending.
    pub(crate) fn enter_multi(&self) -> Result<()> {
        let mut multi = lock(&self.multi);
        while multi.starting + multi.in_flight.len() + multi.awaited >= MULTI_LIMIT {
            multi = self.wait_for_oldest(multi);
        }
        exit::check()?;
        multi.starting += 1;
        Ok(())
    }

    fn wait_for_oldest<'a>(&'a self, mut multi: MutexGuard<'a, Multi>) -> MutexGuard<'a, Multi> {
        let Some(oldest) = multi.in_flight.pop_front() else {
            drop(multi);
            std::thread::sleep(POLL); // other threads are starting launches or waiting for them
            return lock(&self.multi);
        };
        multi.awaited += 1;
        drop(multi);
        for event in &oldest {
            let _ = event.wait_ref(); // its results return the error
        }
        let mut multi = lock(&self.multi);
        multi.awaited -= 1;
        multi
    }

    /// Records that a launch has started, or, with an empty completion, that it has not.
    pub(crate) fn multi_started(&self, completion: Completion) {
        let mut multi = lock(&self.multi);
        multi.starting -= 1;
        if !completion.is_empty() {
            multi.in_flight.push_back(completion);
        }
    }

    /// Waits until a single-device launch can start.
    ///
    /// # Errors
    /// Returns an error if the process is ending.
    #[inline]
    pub(crate) fn enter_single(&self, device: usize) -> Result<()> {
        let single = &self.single[device];
        // Counts before it checks for the exit; `exit` sets its stage before it reads the count. One of them sees the
        // other.
        if single.count.fetch_add(1, Ordering::SeqCst) >= SINGLE_LIMIT {
            single.wait_for_place();
        }
        exit::check().inspect_err(|_| {
            single.count.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Like [`LaunchLimiter::multi_started`], for a single-device launch.
    #[inline]
    pub(crate) fn single_started(&self, device: usize, completion: Option<Arc<Event>>) {
        let single = &self.single[device];
        match completion {
            // A small program has usually finished by now, on this thread.
            None => {
                single.count.fetch_sub(1, Ordering::SeqCst);
            }
            Some(event) => lock(&single.in_flight).push_back(event),
        }
    }

    /// Waits for the launches that are in flight now, until the deadline.
    pub(crate) fn wait_for_launches_in_flight(&self, deadline: Instant) {
        let present: Vec<Completion> = lock(&self.multi).in_flight.iter().cloned().collect();
        let single = self.single.iter().flat_map(|single| lock(&single.in_flight).iter().cloned().collect::<Vec<_>>());
        for event in present.into_iter().flatten().chain(single) {
            poll(deadline, || event.is_ready());
        }
    }

    /// Waits for all launches, after new ones are rejected; returns false if some are in flight at the deadline.
    pub(crate) fn drain(&self, deadline: Instant) -> bool {
        poll(deadline, || {
            let mut multi = lock(&self.multi);
            multi.in_flight.retain(|completion| !completion.iter().all(|event| event.is_ready()));
            let idle = multi.starting + multi.in_flight.len() + multi.awaited == 0;
            self.single.iter().fold(idle, |idle, single| single.sweep() == 0 && idle)
        })
    }

    /// Drops the events, which must not outlive the client.
    pub(crate) fn clear(&self) {
        lock(&self.multi_process).clear();
        lock(&self.multi).in_flight.clear();
        for single in &self.single {
            lock(&single.in_flight).clear();
        }
    }
}

impl Single {
    /// Releases the place and waits for another one. Waiting threads are not counted, because more waiting threads than
    /// places would block each other forever.
    #[cold]
    fn wait_for_place(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        loop {
            let count = self.sweep();
            if count < SINGLE_LIMIT {
                match self.count.compare_exchange(count, count + 1, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return,
                    Err(_) => continue,
                }
            }
            let oldest = lock(&self.in_flight).pop_front();
            match oldest {
                Some(event) => {
                    let _ = event.wait_ref();
                    self.count.fetch_sub(1, Ordering::SeqCst);
                }
                None => std::thread::sleep(POLL), // other threads are starting launches
            }
        }
    }

    /// Drops completed launches and counts the others.
    fn sweep(&self) -> usize {
        let mut in_flight = lock(&self.in_flight);
        let before = in_flight.len();
        in_flight.retain(|event| !event.is_ready());
        let done = before - in_flight.len();
        self.count.fetch_sub(done, Ordering::SeqCst) - done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn more_threads_than_places_all_launch() {
        let limiter = Arc::new(LaunchLimiter::new(1));
        for _ in 0..SINGLE_LIMIT {
            limiter.enter_single(0).unwrap();
        }
        let (send, entered) = channel();
        for _ in 0..4 * SINGLE_LIMIT {
            let (limiter, send) = (limiter.clone(), send.clone());
            std::thread::spawn(move || {
                limiter.enter_single(0).unwrap();
                limiter.single_started(0, None);
                send.send(()).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(50)); // all threads are waiting
        assert!(entered.try_recv().is_err(), "more threads were admitted than there are places");
        for _ in 0..SINGLE_LIMIT {
            limiter.single_started(0, None);
        }
        for _ in 0..4 * SINGLE_LIMIT {
            entered.recv_timeout(Duration::from_secs(20)).expect("waiting threads block each other");
        }
    }
}
