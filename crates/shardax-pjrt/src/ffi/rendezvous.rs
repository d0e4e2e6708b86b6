//! Rendezvous of host functions: calls from several devices of this process wait for each other. The last to arrive
//! does the work with the arguments and results of all of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Arg, Ret};

/// Checks before a waiting thread sleeps.
const EAGER_TRIES: usize = 200;
/// Interval at which a waiting thread checks for failures elsewhere.
const POLL: Duration = Duration::from_millis(50);

/// The error message, if the work failed.
type Outcome = Result<(), String>;

/// The arguments and results of one participant.
#[derive(Debug)]
pub struct Member<'m, 'a> {
    /// The arguments.
    pub args: &'m [Arg<'a>],
    /// The results.
    pub rets: &'m mut [Ret<'a>],
}

/// The rendezvous in progress, by key.
#[derive(Debug)]
pub struct Rendezvous<K>(Mutex<HashMap<K, Arc<Gathering>>>);

#[derive(Debug)]
struct Gathering {
    /// The number of the call in the program, which must be the same for all participants.
    number: i64,
    state: Mutex<State>,
    outcome: OnceLock<Outcome>,
    done: Condvar,
}

#[derive(Debug)]
struct State {
    lent: Vec<Option<LentMember>>,
    /// All participants have arrived, and their arguments are in use until there is an outcome.
    working: bool,
}

/// The pointers of a [`Member`]. Its thread waits until they are no longer used.
#[derive(Debug)]
struct LentMember {
    args: *const Arg<'static>,
    arg_count: usize,
    rets: *mut Ret<'static>,
    ret_count: usize,
}

// SAFETY: another thread may use the data while its own thread waits.
unsafe impl Send for LentMember {}

impl LentMember {
    fn new(member: Member<'_, '_>) -> LentMember {
        LentMember {
            args: member.args.as_ptr().cast(),
            arg_count: member.args.len(),
            rets: member.rets.as_mut_ptr().cast(),
            ret_count: member.rets.len(),
        }
    }

    /// # Safety
    /// The member's thread waits for as long as the returned value is used.
    unsafe fn member<'m, 'a>(&'m mut self) -> Member<'m, 'a> {
        // SAFETY: promised by the caller; the pointers come from slices of these lengths.
        unsafe {
            Member {
                args: std::slice::from_raw_parts(self.args.cast(), self.arg_count),
                rets: std::slice::from_raw_parts_mut(self.rets.cast(), self.ret_count),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K> Default for Rendezvous<K> {
    fn default() -> Self {
        Rendezvous(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Rendezvous<K> {
    /// Joins the rendezvous of a key as one of `members` participants, in the call `number` of the program. The last to
    /// arrive runs `work` once with the arguments and results of all, in the order of members. All return its outcome.
    ///
    /// A participant leaves if the others do not arrive in time, or soon after `failure` is set.
    ///
    /// # Errors
    /// Returns the error of `work`, and errors about members at different calls, members that did not arrive, and the
    /// failure of another member.
    pub fn join(
        &self,
        (key, number): (K, i64),
        (member, members): (usize, usize),
        arrays: Member<'_, '_>,
        (timeout, failure): (Duration, &OnceLock<String>),
        work: impl FnOnce(&mut [Member<'_, '_>]) -> Outcome,
    ) -> Outcome {
        if members == 1 {
            return work(&mut [arrays]);
        }
        let (gathering, lent) = {
            let mut rendezvous = lock(&self.0);
            let gathering =
                rendezvous.entry(key.clone()).or_insert_with(|| Arc::new(Gathering::new(number, members))).clone();
            if gathering.number != number {
                return Err(format!("another device is in call {}", gathering.number));
            }
            let mut state = lock(&gathering.state);
            match state.lent.get_mut(member) {
                None => return Err(format!("there is no member {member} of {members}")),
                Some(Some(_)) => return Err("the device joined twice".into()),
                Some(place) => *place = Some(LentMember::new(arrays)),
            }
            state.working = state.lent.iter().all(Option::is_some);
            let lent: Vec<LentMember> =
                if state.working { state.lent.iter_mut().filter_map(Option::take).collect() } else { Vec::new() };
            if state.working {
                // The next rendezvous of these devices is a new one.
                rendezvous.remove(&key);
            }
            drop(state);
            (gathering, lent)
        };
        if lent.is_empty() {
            return gathering.wait(member, timeout, failure);
        }
        let mut end = End { gathering: &gathering, outcome: Err("the work for all devices panicked".into()) };
        end.outcome = run_on_members(lent, work);
        end.outcome.clone()
    }
}

/// Runs the work on the members' data.
fn run_on_members(mut lent: Vec<LentMember>, work: impl FnOnce(&mut [Member<'_, '_>]) -> Outcome) -> Outcome {
    // SAFETY: all members wait until the outcome is set, after this function has returned or unwound. They leave
    // earlier only if no work is in progress. The data of this thread is borrowed by its call of `join`.
    let mut members: Vec<Member<'_, '_>> = lent.iter_mut().map(|lent| unsafe { lent.member() }).collect();
    work(&mut members)
}

/// Sets the outcome for all members, even if the work panics.
struct End<'m> {
    gathering: &'m Gathering,
    outcome: Outcome,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.gathering.outcome.set(self.outcome.clone());
        drop(lock(&self.gathering.state));
        self.gathering.done.notify_all();
    }
}

impl Gathering {
    fn new(number: i64, members: usize) -> Gathering {
        let state = State { lent: (0..members).map(|_| None).collect(), working: false };
        Gathering { number, state: Mutex::new(state), outcome: OnceLock::new(), done: Condvar::new() }
    }

    /// Waits for the outcome. When it returns, nobody uses this member's data.
    fn wait(&self, member: usize, timeout: Duration, failure: &OnceLock<String>) -> Outcome {
        for _ in 0..EAGER_TRIES {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            std::thread::yield_now();
        }
        // The working member has the deadline; this one is for members that never arrive.
        let deadline = Instant::now().checked_add(timeout.saturating_mul(2));
        let mut state = lock(&self.state);
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            if !state.working {
                let reason = match failure.get() {
                    Some(failure) => Some(failure.clone()),
                    None => deadline
                        .is_some_and(|deadline| Instant::now() >= deadline)
                        .then(|| "a device of this process did not join".into()),
                };
                if let Some(why) = reason {
                    state.lent[member] = None;
                    return Err(why);
                }
            }
            state = self.done.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::element::ElementType;

    fn arg(data: &[u8]) -> Arg<'_> {
        Arg { ty: ElementType::U8, dims: &[], data }
    }

    fn ret(data: &mut [u8]) -> Ret<'_> {
        let (len, data) = (data.len(), data.as_mut_ptr());
        Ret { ty: ElementType::U8, dims: &[], data, len, requested: false, written: 0, memory: PhantomData }
    }

    #[test]
    fn the_last_to_join_works_for_all() {
        let (rendezvous, failure) = (Rendezvous::default(), OnceLock::new());
        // Many rounds, so that the threads meet in many orders.
        let rounds = if cfg!(miri) { 5 } else { 200 };
        std::thread::scope(|scope| {
            for member in 0..4 {
                let (rendezvous, failure) = (&rendezvous, &failure);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let (argument, mut result) = ([round, member as u8], [0; 8]);
                        let (args, mut rets) = ([arg(&argument)], [ret(&mut result)]);
                        rendezvous
                            .join(
                                ("all", i64::from(round)),
                                (member, 4),
                                Member { args: &args, rets: &mut rets },
                                (Duration::from_secs(30), failure),
                                |members| {
                                    let bytes = members.iter().map(|m| m.args[0].data).collect::<Vec<_>>().concat();
                                    members.iter_mut().for_each(|m| m.rets[0].write(0, &bytes));
                                    Ok(())
                                },
                            )
                            .unwrap();
                        assert_eq!(result, [round, 0, round, 1, round, 2, round, 3]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_missing_member_and_a_failure_elsewhere_end_the_wait() {
        let failure = OnceLock::new();
        let timed_out = join_without_work(&Rendezvous::default(), 0, Duration::from_millis(10), &failure);
        assert_eq!(timed_out.unwrap_err(), "a device of this process did not join");
        failure.set("it broke".to_owned()).unwrap();
        let failed = join_without_work(&Rendezvous::default(), 0, Duration::from_secs(60), &failure);
        assert_eq!(failed.unwrap_err(), "it broke");
    }

    /// Joins as one of two members that never meet.
    fn join_without_work(
        rendezvous: &Rendezvous<i32>,
        member: usize,
        timeout: Duration,
        failure: &OnceLock<String>,
    ) -> Outcome {
        let arrays = Member { args: &[], rets: &mut [] };
        rendezvous.join((1, 0), (member, 2), arrays, (timeout, failure), |_| unreachable!())
    }

    #[test]
    fn a_member_that_timed_out_takes_no_part() {
        let (rendezvous, failure) = (Rendezvous::default(), OnceLock::new());
        let timeout = Duration::from_millis(1);
        assert!(join_without_work(&rendezvous, 0, timeout, &failure).is_err());
        // The other member now waits for one that has left.
        let second = join_without_work(&rendezvous, 1, timeout, &failure);
        assert_eq!(second.unwrap_err(), "a device of this process did not join");
    }

    #[test]
    fn work_that_panics_fails_for_all() {
        let (rendezvous, failure) = (Rendezvous::default(), OnceLock::new());
        let mut outcomes: Vec<String> = std::thread::scope(|scope| {
            let members = [0, 1].map(|member| {
                let (rendezvous, failure) = (&rendezvous, &failure);
                scope.spawn(move || {
                    let arrays = Member { args: &[], rets: &mut [] };
                    let limits = (Duration::from_secs(30), failure);
                    rendezvous.join((1, 0), (member, 2), arrays, limits, |_| panic!("at work"))
                })
            });
            let outcomes = members.into_iter().map(|member| member.join());
            outcomes.map(|outcome| outcome.map_or("a panic".to_owned(), Result::unwrap_err)).collect()
        });
        outcomes.sort();
        assert_eq!(outcomes, ["a panic", "the work for all devices panicked"]);
    }
}
