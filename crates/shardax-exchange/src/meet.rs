//! Meetings: the devices of one process that take part in a call come together, and the last does the work for all.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::Outcome;

/// Looks before a waiting thread sleeps.
const EAGER_TRIES: usize = 200;
/// Between looks whether the exchange has failed elsewhere.
const PATIENCE: Duration = Duration::from_millis(50);

/// Which meeting: the launch, and the devices that take part in this process and elsewhere.
pub(crate) type Key = (i64, Vec<usize>);

/// What the work gives: bytes that are everybody's, or each member's own.
pub(crate) enum Results {
    Same(Vec<u8>),
    Each(Vec<Vec<u8>>),
}

impl Results {
    pub(crate) fn of(&self, member: usize) -> &[u8] {
        match self {
            Results::Same(bytes) => bytes,
            Results::Each(list) => &list[member],
        }
    }
}

/// The meetings under way.
#[derive(Default)]
pub(crate) struct Meetings(Mutex<HashMap<Key, Arc<Meeting>>>);

struct Meeting {
    /// The call's number in the program, which all members must agree on.
    number: i64,
    brought: Mutex<Vec<Option<Vec<u8>>>>,
    results: OnceLock<Outcome<Arc<Results>>>,
    done: (Mutex<()>, Condvar),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meetings {
    /// Brings a member's data to a meeting of `members`; `work` is done once, by the last to come, with the data of all.
    pub(crate) fn meet(
        &self,
        (key, number): (Key, i64),
        (member, members): (usize, usize),
        data: Vec<u8>,
        limits: (Duration, &OnceLock<String>),
        work: impl FnOnce(Vec<Vec<u8>>) -> Outcome<Results>,
    ) -> Outcome<Arc<Results>> {
        if members == 1 {
            return work(vec![data]).map(Arc::new);
        }
        let (meeting, all) = {
            let mut meetings = lock(&self.0);
            let meeting =
                meetings.entry(key.clone()).or_insert_with(|| Arc::new(Meeting::new(number, members))).clone();
            if meeting.number != number {
                return Err(format!("another device is at call {}", meeting.number));
            }
            let mut brought = lock(&meeting.brought);
            if brought[member].replace(data).is_some() {
                return Err("the device came twice".into());
            }
            let all = brought.iter().all(Option::is_some);
            if all {
                // The next meeting of the same devices is another one.
                meetings.remove(&key);
            }
            drop(brought);
            (meeting, all)
        };
        if all {
            let data = lock(&meeting.brought).iter_mut().filter_map(Option::take).collect();
            let results = work(data).map(Arc::new);
            let _ = meeting.results.set(results.clone());
            drop(lock(&meeting.done.0));
            meeting.done.1.notify_all();
            return results;
        }
        meeting.wait(limits)
    }
}

impl Meeting {
    fn new(number: i64, members: usize) -> Meeting {
        Meeting {
            number,
            brought: Mutex::new(vec![None; members]),
            results: OnceLock::new(),
            done: (Mutex::new(()), Condvar::new()),
        }
    }

    fn wait(&self, (timeout, failure): (Duration, &OnceLock<String>)) -> Outcome<Arc<Results>> {
        for _ in 0..EAGER_TRIES {
            if let Some(results) = self.results.get() {
                return results.clone();
            }
            std::thread::yield_now();
        }
        // The one that works has the deadline; this is for members that never come.
        let deadline = Instant::now() + timeout * 2;
        let mut guard = lock(&self.done.0);
        loop {
            if let Some(results) = self.results.get() {
                return results.clone();
            }
            if let Some(failure) = failure.get() {
                return Err(failure.clone());
            }
            if Instant::now() >= deadline {
                return Err("a device of this process did not come".into());
            }
            guard = self.done.1.wait_timeout(guard, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_come_works_for_all_again_and_again() {
        let (meetings, failure) = (Meetings::default(), OnceLock::new());
        std::thread::scope(|scope| {
            for member in 0..4 {
                let (meetings, failure) = (&meetings, &failure);
                scope.spawn(move || {
                    for round in 0..200u8 {
                        let limits = (Duration::from_secs(30), failure);
                        let at = ((7, vec![0, 1, 2, 3]), round.into());
                        let results = meetings
                            .meet(at, (member, 4), vec![round, member as u8], limits, |data| {
                                Ok(Results::Same(data.concat()))
                            })
                            .unwrap();
                        assert_eq!(results.of(member), [round, 0, round, 1, round, 2, round, 3]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_member_that_does_not_come_and_a_failure_elsewhere_end_the_wait() {
        let (meetings, failure) = (Meetings::default(), OnceLock::new());
        let wait = |timeout| {
            let at = ((1, vec![0, 1]), 0);
            meetings.meet(at, (0, 2), vec![], (timeout, &failure), |_| unreachable!()).err().unwrap()
        };
        assert_eq!(wait(Duration::from_millis(10)), "a device of this process did not come");
        failure.set("it broke".to_owned()).unwrap();
        let other = Meetings::default();
        let at = ((1, vec![0, 1]), 0);
        let limits = (Duration::from_secs(60), &failure);
        assert_eq!(other.meet(at, (0, 2), vec![], limits, |_| unreachable!()).err().unwrap(), "it broke");
    }
}
