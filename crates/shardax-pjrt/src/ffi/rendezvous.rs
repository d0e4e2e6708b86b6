//! Meetings: calls of several devices of this process come together, and the last to come does the work for all, with
//! the arguments and results of all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Arg, Ret};

/// Looks before a waiting thread sleeps.
const EAGER_TRIES: usize = 200;
/// Between looks whether something has failed elsewhere.
const PATIENCE: Duration = Duration::from_millis(50);

/// What went wrong, for people.
type Outcome = Result<(), String>;

/// What one call brings to a meeting.
#[derive(Debug)]
pub struct Member<'m, 'a> {
    /// Its arguments.
    pub args: &'m [Arg<'a>],
    /// Its results.
    pub rets: &'m mut [Ret<'a>],
}

/// The meetings under way, by what tells them apart.
#[derive(Debug)]
pub struct Rendezvous<K>(Mutex<HashMap<K, Arc<Gathering>>>);

#[derive(Debug)]
struct Gathering {
    /// The call's number in the program, which all members must agree on.
    number: i64,
    state: Mutex<State>,
    outcome: OnceLock<Outcome>,
    done: Condvar,
}

#[derive(Debug)]
struct State {
    lent: Vec<Option<Lent>>,
    /// All have come, and what they lent is in use until there is an outcome.
    working: bool,
}

/// The pointers of a [`Member`], whose thread waits until nobody has them any more.
#[derive(Debug)]
struct Lent {
    args: *const Arg<'static>,
    arg_count: usize,
    rets: *mut Ret<'static>,
    ret_count: usize,
}

// SAFETY: what they point to may be used by another thread while its own waits.
unsafe impl Send for Lent {}

impl Lent {
    fn new(member: Member<'_, '_>) -> Lent {
        Lent {
            args: member.args.as_ptr().cast(),
            arg_count: member.args.len(),
            rets: member.rets.as_mut_ptr().cast(),
            ret_count: member.rets.len(),
        }
    }

    /// # Safety
    /// The member's thread waits for as long as this lives.
    unsafe fn member<'m, 'a>(&'m mut self) -> Member<'m, 'a> {
        // SAFETY: promised by the caller; made from slices of these lengths.
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
    /// Comes to the meeting of this key, as one of so many members, in the call of this number; `work` is done once, by
    /// the last to come, with what all bring, in the order of members. All return when it is done, with its outcome.
    ///
    /// A member for whom the others do not come leaves after this time, or soon after there is a `failure`.
    ///
    /// # Errors
    /// Those of `work`; that the members are not all at the same call; that others did not come; the failure.
    pub fn meet(
        &self,
        (key, number): (K, i64),
        (member, members): (usize, usize),
        brought: Member<'_, '_>,
        (timeout, failure): (Duration, &OnceLock<String>),
        work: impl FnOnce(&mut [Member<'_, '_>]) -> Outcome,
    ) -> Outcome {
        if members == 1 {
            return work(&mut [brought]);
        }
        let (meeting, lent) = {
            let mut meetings = lock(&self.0);
            let meeting =
                meetings.entry(key.clone()).or_insert_with(|| Arc::new(Gathering::new(number, members))).clone();
            if meeting.number != number {
                return Err(format!("another device is at call {}", meeting.number));
            }
            let mut state = lock(&meeting.state);
            match state.lent.get_mut(member) {
                None => return Err(format!("there is no member {member} of {members}")),
                Some(Some(_)) => return Err("the device came twice".into()),
                Some(place) => *place = Some(Lent::new(brought)),
            }
            state.working = state.lent.iter().all(Option::is_some);
            let lent: Vec<Lent> = match state.working {
                true => state.lent.iter_mut().filter_map(Option::take).collect(),
                false => Vec::new(),
            };
            if state.working {
                // The next meeting of the same devices is another one.
                meetings.remove(&key);
            }
            drop(state);
            (meeting, lent)
        };
        if lent.is_empty() {
            return meeting.wait(member, timeout, failure);
        }
        let mut end = End { meeting: &meeting, outcome: Err("the work for all devices panicked".into()) };
        end.outcome = done_with(lent, work);
        end.outcome.clone()
    }
}

/// Does the work with what was lent.
fn done_with(mut lent: Vec<Lent>, work: impl FnOnce(&mut [Member<'_, '_>]) -> Outcome) -> Outcome {
    // SAFETY: all members wait for the outcome, which is set after this has returned or unwound, and leave before it
    // only while nobody works; this thread's own is borrowed by its call of `meet`.
    let mut members: Vec<Member<'_, '_>> = lent.iter_mut().map(|lent| unsafe { lent.member() }).collect();
    work(&mut members)
}

/// Tells the members the outcome, also when the work panics.
struct End<'m> {
    meeting: &'m Gathering,
    outcome: Outcome,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.meeting.outcome.set(self.outcome.clone());
        drop(lock(&self.meeting.state));
        self.meeting.done.notify_all();
    }
}

impl Gathering {
    fn new(number: i64, members: usize) -> Gathering {
        let state = State { lent: (0..members).map(|_| None).collect(), working: false };
        Gathering { number, state: Mutex::new(state), outcome: OnceLock::new(), done: Condvar::new() }
    }

    /// Waits for the outcome. What this member has lent is nobody's when it returns.
    fn wait(&self, member: usize, timeout: Duration, failure: &OnceLock<String>) -> Outcome {
        for _ in 0..EAGER_TRIES {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            std::thread::yield_now();
        }
        // The one that works has the deadline; this is for members that never come.
        let deadline = Instant::now().checked_add(timeout.saturating_mul(2));
        let mut state = lock(&self.state);
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            if !state.working {
                let gone = match failure.get() {
                    Some(failure) => Some(failure.clone()),
                    None => deadline
                        .is_some_and(|deadline| Instant::now() >= deadline)
                        .then(|| "a device of this process did not come".into()),
                };
                if let Some(why) = gone {
                    state.lent[member] = None;
                    return Err(why);
                }
            }
            state = self.done.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
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
        Ret { ty: ElementType::U8, dims: &[], data, len, asked: false, written: 0, memory: PhantomData }
    }

    #[test]
    fn the_last_to_come_works_for_all_again_and_again() {
        let (meetings, failure) = (Rendezvous::default(), OnceLock::new());
        let rounds = if cfg!(miri) { 5 } else { 200 };
        std::thread::scope(|scope| {
            for member in 0..4 {
                let (meetings, failure) = (&meetings, &failure);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let (brought, mut got) = ([round, member as u8], [0; 8]);
                        let (args, mut rets) = ([arg(&brought)], [ret(&mut got)]);
                        meetings
                            .meet(
                                ("all", i64::from(round)),
                                (member, 4),
                                Member { args: &args, rets: &mut rets },
                                (Duration::from_secs(30), failure),
                                |members| {
                                    let all = members.iter().map(|m| m.args[0].data).collect::<Vec<_>>().concat();
                                    members.iter_mut().for_each(|m| m.rets[0].write(0, &all));
                                    Ok(())
                                },
                            )
                            .unwrap();
                        assert_eq!(got, [round, 0, round, 1, round, 2, round, 3]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_member_that_does_not_come_and_a_failure_elsewhere_end_the_wait() {
        let failure = OnceLock::new();
        let wait = |meetings: &Rendezvous<i32>, timeout| {
            let brought = Member { args: &[], rets: &mut [] };
            meetings.meet((1, 0), (0, 2), brought, (timeout, &failure), |_| unreachable!()).unwrap_err()
        };
        let meetings = Rendezvous::default();
        assert_eq!(wait(&meetings, Duration::from_millis(10)), "a device of this process did not come");
        failure.set("it broke".to_owned()).unwrap();
        assert_eq!(wait(&Rendezvous::default(), Duration::from_secs(60)), "it broke");
    }

    #[test]
    fn who_left_may_not_be_met_any_more() {
        let (meetings, failure) = (Rendezvous::default(), OnceLock::new());
        let come = |member, timeout| {
            let brought = Member { args: &[], rets: &mut [] };
            meetings.meet((1, 0), (member, 2), brought, (timeout, &failure), |_| unreachable!())
        };
        assert!(come(0, Duration::from_millis(1)).is_err());
        // The other one waits in vain in turn.
        assert_eq!(come(1, Duration::from_millis(1)).unwrap_err(), "a device of this process did not come");
    }

    #[test]
    fn work_that_panics_fails_for_all() {
        let (meetings, failure) = (Rendezvous::default(), OnceLock::new());
        let come = |member| {
            let brought = Member { args: &[], rets: &mut [] };
            let limits = (Duration::from_secs(30), &failure);
            meetings.meet((1, 0), (member, 2), brought, limits, |_| panic!("at work"))
        };
        let come = &come;
        let mut outcomes: Vec<String> = std::thread::scope(|scope| {
            let members = [0, 1].map(|member| scope.spawn(move || come(member)));
            let said = |outcome: Result<Outcome, _>| outcome.map_or("a panic".to_owned(), Result::unwrap_err);
            members.into_iter().map(|member| said(member.join())).collect()
        });
        outcomes.sort();
        assert_eq!(outcomes, ["a panic", "the work for all devices panicked"]);
    }
}
