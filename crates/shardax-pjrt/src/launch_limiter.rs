//! The launches under way: fewer than the CPU plugin can take without hanging, and waited for at the end.
//!
//! The plugin lets 32 launches be under way on a device. A launch on several devices beyond that blocks, on each device,
//! one of the threads that run programs. When the programs under way have collectives, too few threads are left for all
//! participants of one to come together, and everything waits until the process is aborted: a loop that launches 40
//! steps without waiting is enough. So the calling thread waits here instead, before the plugin's limit is reached.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::error::Result;
use crate::event::Event;
use crate::exit;

/// Launches on several devices; each counts on all of its devices.
const MULTI_LIMIT: usize = 12;
/// Launches on one device, on each device. With the above less than the plugin's 32.
const SINGLE_LIMIT: usize = 16;

/// Between looks at what other threads do.
const POLL: Duration = Duration::from_micros(20);

/// Completion of a launch on each of its devices.
pub(crate) type Completion = SmallVec<[Arc<Event>; 8]>;

/// Counts of a client.
pub(crate) struct LaunchLimiter {
    multi: Mutex<Multi>,
    single: Vec<Single>,
    /// The last launch in which devices of several processes meet.
    crossing: Mutex<Completion>,
}

#[derive(Default)]
struct Multi {
    /// Between the check and the plugin's answer.
    starting: usize,
    under_way: VecDeque<Completion>,
    /// Taken from the front of `under_way` by a thread that waits for them.
    awaited: usize,
}

#[derive(Default)]
struct Single {
    count: AtomicUsize,
    under_way: Mutex<VecDeque<Arc<Event>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks until it is so, or until the deadline.
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
            crossing: Mutex::default(),
        }
    }

    /// Waits until the launch before has ended in which devices of several processes met, and keeps others out meanwhile:
    /// in every process such launches must come to their meetings in one order, which the plugin does not promise.
    pub(crate) fn enter_crossing(&self) -> MutexGuard<'_, Completion> {
        let last = lock(&self.crossing);
        for event in last.iter() {
            let _ = event.wait_ref(); // its error is its results' affair
        }
        last
    }

    /// Waits until a launch on several devices may start.
    ///
    /// # Errors
    /// The process is ending.
    pub(crate) fn enter_multi(&self) -> Result<()> {
        let mut multi = lock(&self.multi);
        while multi.starting + multi.under_way.len() + multi.awaited >= MULTI_LIMIT {
            multi = self.wait_for_oldest(multi);
        }
        exit::check()?;
        multi.starting += 1;
        Ok(())
    }

    fn wait_for_oldest<'a>(&'a self, mut multi: MutexGuard<'a, Multi>) -> MutexGuard<'a, Multi> {
        let Some(oldest) = multi.under_way.pop_front() else {
            drop(multi);
            std::thread::sleep(POLL); // others start theirs, or wait for them
            return lock(&self.multi);
        };
        multi.awaited += 1;
        drop(multi);
        for event in &oldest {
            let _ = event.wait_ref(); // its error is its results' affair
        }
        let mut multi = lock(&self.multi);
        multi.awaited -= 1;
        multi
    }

    /// The launch has started, or, with no completion to wait for, it has not.
    pub(crate) fn multi_started(&self, completion: Completion) {
        let mut multi = lock(&self.multi);
        multi.starting -= 1;
        if !completion.is_empty() {
            multi.under_way.push_back(completion);
        }
    }

    /// Waits until a launch on one device may start.
    ///
    /// # Errors
    /// The process is ending.
    #[inline]
    pub(crate) fn enter_single(&self, device: usize) -> Result<()> {
        let single = &self.single[device];
        // Counted before the look at the exit, which sets its stage before it looks at the count.
        if single.count.fetch_add(1, Ordering::SeqCst) >= SINGLE_LIMIT {
            single.wait_for_place();
        }
        exit::check().inspect_err(|_| {
            single.count.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// As [`LaunchLimiter::multi_started`].
    #[inline]
    pub(crate) fn single_started(&self, device: usize, completion: Option<Arc<Event>>) {
        let single = &self.single[device];
        match completion {
            // Mostly it has run by now, on this thread.
            None => {
                single.count.fetch_sub(1, Ordering::SeqCst);
            }
            Some(event) => lock(&single.under_way).push_back(event),
        }
    }

    /// Waits for the launches of this moment, until the deadline.
    pub(crate) fn wait_for_present(&self, deadline: Instant) {
        let present: Vec<Completion> = lock(&self.multi).under_way.iter().cloned().collect();
        let single = self.single.iter().flat_map(|single| lock(&single.under_way).iter().cloned().collect::<Vec<_>>());
        for event in present.into_iter().flatten().chain(single) {
            poll(deadline, || event.is_ready());
        }
    }

    /// Waits for all launches, once no more are let in; false when some are still under way at the deadline.
    pub(crate) fn drain(&self, deadline: Instant) -> bool {
        poll(deadline, || {
            let mut multi = lock(&self.multi);
            multi.under_way.retain(|completion| !completion.iter().all(|event| event.is_ready()));
            let idle = multi.starting + multi.under_way.len() + multi.awaited == 0;
            self.single.iter().fold(idle, |idle, single| single.sweep() == 0 && idle)
        })
    }

    /// Forgets the events, which must not outlive the client.
    pub(crate) fn clear(&self) {
        lock(&self.crossing).clear();
        lock(&self.multi).under_way.clear();
        for single in &self.single {
            lock(&single.under_way).clear();
        }
    }
}

impl Single {
    /// Gives the place back and waits for one. Those who wait are not counted: more of them than there are places would
    /// keep each other out for ever.
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
            let oldest = lock(&self.under_way).pop_front();
            match oldest {
                Some(event) => {
                    let _ = event.wait_ref();
                    self.count.fetch_sub(1, Ordering::SeqCst);
                }
                None => std::thread::sleep(POLL), // others are starting theirs
            }
        }
    }

    /// Forgets those that have ended, and counts the others.
    fn sweep(&self) -> usize {
        let mut under_way = lock(&self.under_way);
        let before = under_way.len();
        under_way.retain(|event| !event.is_ready());
        let done = before - under_way.len();
        self.count.fetch_sub(done, Ordering::SeqCst) - done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn more_threads_than_places_all_get_in() {
        let gate = Arc::new(LaunchLimiter::new(1));
        for _ in 0..SINGLE_LIMIT {
            gate.enter_single(0).unwrap();
        }
        let (send, entered) = channel();
        for _ in 0..4 * SINGLE_LIMIT {
            let (gate, send) = (gate.clone(), send.clone());
            std::thread::spawn(move || {
                gate.enter_single(0).unwrap();
                gate.single_started(0, None);
                send.send(()).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(50)); // all of them wait
        assert!(entered.try_recv().is_err(), "more are let in than there are places");
        for _ in 0..SINGLE_LIMIT {
            gate.single_started(0, None);
        }
        for _ in 0..4 * SINGLE_LIMIT {
            entered.recv_timeout(Duration::from_secs(20)).expect("those who wait keep each other out");
        }
    }
}
