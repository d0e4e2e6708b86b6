//! Timing: number of runs, and statistics.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use shardax::{Array, Result};

/// The total time of the runs of one row: `BENCH_SECONDS`, or 3 s.
static BUDGET: LazyLock<Duration> = LazyLock::new(|| {
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
});
const WARM_UP: usize = 3;
pub const MIN_RUNS: usize = 3;
const MAX_RUNS: usize = 3000;
/// Training steps of rows with several processes.
pub const STEPS: usize = 20;

/// The clock that rows are timed with.
static CLOCK: LazyLock<ClockId> = LazyLock::new(|| match std::env::var("BENCH_CLOCK").as_deref() {
    Ok("cpu") => ClockId::ProcessCPUTime,
    _ => ClockId::Monotonic,
});

/// The time on the clock that `BENCH_CLOCK` names. The default is the wall clock. With `cpu` it is the CPU time of all
/// threads, which you should use if other processes are running, because they hardly change it.
pub fn now() -> Duration {
    since_start(*CLOCK)
}

fn since_start(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Both are at least 0 on these clocks.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The times of a row.
#[derive(Serialize)]
pub struct Timing {
    pub median_us: f64,
    pub min_us: f64,
    pub runs: usize,
    /// The loss of the first training step, to compare with JAX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_loss: Option<f64>,
    /// The peak memory of a process that the row spawned.
    #[serde(skip)]
    pub spawned_mib: f64,
}

impl Timing {
    pub fn of(mut times: Vec<f64>) -> Timing {
        times.sort_by(f64::total_cmp);
        let runs = times.len();
        let median = (times[(runs - 1) / 2] + times[runs / 2]) / 2.0;
        Timing { median_us: median, min_us: times[0], runs, first_loss: None, spawned_mib: 0.0 }
    }
}

/// Times `call`, which waits for its results. They are dropped before the clock stops, as in Python.
pub fn measure<R>(call: impl FnMut() -> Result<R>) -> Result<Timing> {
    measure_warm(WARM_UP, call)
}

/// Times training steps that return their losses, and stores the first loss.
pub fn measure_steps(mut step: impl FnMut() -> Result<Array>) -> Result<Timing> {
    let first_result = step()?.to_vec::<f32>()?[0];
    Ok(Timing { first_loss: Some(first_result.into()), ..measure_warm(WARM_UP - 1, step)? })
}

fn measure_warm<R>(warm_up: usize, mut call: impl FnMut() -> Result<R>) -> Result<Timing> {
    // The first calls compile, fill caches and start threads.
    for _ in 0..warm_up {
        call()?;
    }
    measure_parts(MIN_RUNS, || {
        let start = now();
        drop(call()?);
        Ok(now() - start)
    })
}

/// Times calls for this many seconds, and at least three calls, unless they take two seconds.
pub fn measure_for<R>(seconds: f64, mut call: impl FnMut() -> Result<R>) -> Result<Timing> {
    let (begin, mut times) = (now(), Vec::new());
    while !is_enough(times.len(), (now() - begin).as_secs_f64(), seconds) {
        let start = now();
        drop(call()?);
        times.push((now() - start).as_secs_f64() * 1e6);
    }
    Ok(Timing::of(times))
}

/// Returns `true` if no further call is needed after this many runs, in `spent` of the `seconds` for them.
fn is_enough(runs: usize, spent: f64, seconds: f64) -> bool {
    if runs < MIN_RUNS { runs > 0 && spent > 2.0 } else { spent > seconds || runs >= MAX_RUNS }
}

/// Times a fixed number of calls, for several processes that must call equally often.
pub fn measure_times<R>(runs: usize, mut call: impl FnMut() -> Result<R>) -> Result<Timing> {
    for _ in 0..WARM_UP.min(runs) {
        call()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        drop(call()?);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Timing::of(times))
}

/// Calls `once`, which measures its own time, at least `least` times and until the budget is spent.
pub fn measure_parts(least: usize, mut once: impl FnMut() -> Result<Duration>) -> Result<Timing> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < least || (begin.elapsed() < *BUDGET && times.len() < MAX_RUNS) {
        times.push(once()?.as_secs_f64() * 1e6);
    }
    Ok(Timing::of(times))
}

/// The CPU time of the calling thread in µs. If there are more processes than cores, wall time would include other
/// processes.
pub fn thread_us() -> f64 {
    since_start(ClockId::ThreadCPUTime).as_secs_f64() * 1e6
}
