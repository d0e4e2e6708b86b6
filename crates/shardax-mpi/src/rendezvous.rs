//! Rendezvous of processes in a shared store, which may contain values of earlier jobs.
//!
//! Each process except the first writes a unique number, and the first answers with the name of the job. Therefore no
//! process accepts an answer of an earlier job, and a restarted job can use the same store. The keys of a job begin
//! with its name.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Kind, Result};
use crate::key_value::KeyValue;

const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The time for which a store may still show the value from before this process's own.
const MAX_STALENESS: Duration = Duration::from_secs(2);
/// The key that says that all processes of a job have entered.
const ALL_ENTERED_KEY: &str = "all are here";

/// A text that no other process has.
pub(crate) fn unique() -> String {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{:016x}{:x}", RandomState::new().hash_one((time, std::process::id())), time & 0xffff_ffff)
}

/// The values of one job in a store.
struct OfJob {
    values: Arc<dyn KeyValue>,
    job: String,
}

impl OfJob {
    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.job)
    }
}

impl KeyValue for OfJob {
    fn set(&self, key: &str, value: &[u8], readers: &[usize]) -> Result<()> {
        self.values.set(&self.key(key), value, readers)
    }

    fn set_new(&self, key: &str, value: &[u8], readers: &[usize]) -> Result<bool> {
        self.values.set_new(&self.key(key), value, readers)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.values.get(&self.key(key))
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.values.remove(&self.key(key))
    }

    fn remove_all(&self, prefix: &str) -> Result<()> {
        self.values.remove_all(&self.key(prefix))
    }

    fn is_shared(&self) -> bool {
        self.values.is_shared()
    }

    fn interval(&self) -> Duration {
        self.values.interval()
    }
}

/// Waits until all processes of a job are in the store; returns its values, and the host of each process.
pub(crate) fn meet(
    values: Arc<dyn KeyValue>,
    (rank, size): (usize, usize),
    host: &str,
    timeout: Duration,
) -> Result<(Arc<dyn KeyValue>, Vec<String>)> {
    let end = crate::deadline(timeout);
    let job = match rank {
        0 => invite(&*values, size, (end, timeout))?,
        _ => enter(&*values, (rank, size), host, (end, timeout))?,
    };
    let values: Arc<dyn KeyValue> = Arc::new(OfJob { values, job });
    if rank == 0 {
        values.set(&entered_key(0), host.as_bytes(), &[])?;
        values.set(ALL_ENTERED_KEY, &[], &[])?;
    }
    let mut hosts = Vec::with_capacity(size);
    for rank in 0..size {
        let host = values.get(&entered_key(rank))?.unwrap_or_default();
        hosts.push(String::from_utf8_lossy(&host).into_owned());
    }
    Ok((values, hosts))
}

fn entered_key(rank: usize) -> String {
    format!("here/{rank}")
}

fn request_key(rank: usize) -> String {
    format!("asks/{rank}")
}

fn answered(rank: usize) -> String {
    format!("answer/{rank}")
}

/// Answers the other processes until all of them are here; returns the name of the job.
fn invite(values: &dyn KeyValue, size: usize, (end, timeout): (Instant, Duration)) -> Result<String> {
    const CURRENT: &str = "job";
    let job = unique();
    // A folder may contain keys of an earlier job that was killed.
    if let Some(earlier) = values.get(CURRENT)? {
        values.remove_all(&format!("{}/", String::from_utf8_lossy(&earlier)))?;
    }
    values.set(CURRENT, job.as_bytes(), &[])?;
    let mut answers: HashMap<usize, Vec<u8>> = HashMap::new();
    loop {
        let mut missing = Vec::new();
        for rank in 1..size {
            if let Some(number) = values.get(&request_key(rank))?
                && answers.get(&rank) != Some(&number)
            {
                // The answer repeats the number of the question, so that a process that restarts ignores older answers.
                let answer = format!("{} {job} {size}", String::from_utf8_lossy(&number));
                values.set(&answered(rank), answer.as_bytes(), &[])?;
                answers.insert(rank, number);
            }
            if values.get(&format!("{job}/{}", entered_key(rank)))?.is_none() {
                missing.push(rank);
            }
        }
        if missing.is_empty() {
            return Ok(job);
        }
        if values.get(CURRENT)?.is_some_and(|current| current != job.as_bytes()) {
            return Err(Error::new(
                Kind::FailedPrecondition,
                "another process 0 uses this store: each job needs a store or a folder of its own",
            ));
        }
        if Instant::now() >= end {
            return Err(Error::new(
                Kind::DeadlineExceeded,
                format!("processes {missing:?} of {size} did not join within {timeout:?}"),
            ));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn two_processes(rank: usize) -> Error {
    let message = format!("there are two processes {rank}: each needs a number of its own");
    Error::new(Kind::FailedPrecondition, message)
}

/// Asks the first process for the name of the job, and waits until all are here.
fn enter(
    values: &dyn KeyValue,
    (rank, size): (usize, usize),
    host: &str,
    (end, timeout): (Instant, Duration),
) -> Result<String> {
    let number = unique();
    values.set(&request_key(rank), number.as_bytes(), &[])?;
    let mut entered: Option<String> = None;
    let mut replaced: Option<Instant> = None;
    loop {
        // Another process with this number has asked after this one, which process 0 then never answers.
        let is_replaced =
            entered.is_none() && values.get(&request_key(rank))?.is_some_and(|asks| asks != number.as_bytes());
        replaced = if is_replaced { replaced.or_else(|| Some(Instant::now())) } else { None };
        if replaced.is_some_and(|since| since.elapsed() >= MAX_STALENESS) {
            return Err(two_processes(rank));
        }
        // A first process that was started again has another job.
        let answer = values.get(&answered(rank))?.unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if let [to, job, count] = answer.split(' ').collect::<Vec<_>>()[..]
            && to == number
            && entered.as_deref() != Some(job)
        {
            if count != size.to_string() {
                return Err(Error::new(
                    Kind::InvalidArgument,
                    format!("process {rank} is one of {size} processes, and process 0 one of {count}"),
                ));
            }
            if !values.set_new(&format!("{job}/{}", entered_key(rank)), host.as_bytes(), &[])? {
                return Err(two_processes(rank));
            }
            entered = Some(job.to_owned());
        }
        if let Some(job) = &entered
            && values.get(&format!("{job}/{ALL_ENTERED_KEY}"))?.is_some()
        {
            return Ok(job.clone());
        }
        if Instant::now() >= end {
            let progress = match entered {
                None => "process 0 did not answer",
                Some(_) => "other processes did not join",
            };
            return Err(Error::new(
                Kind::DeadlineExceeded,
                format!("process {rank} of {size} waited for {timeout:?}, and {progress}"),
            ));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}
