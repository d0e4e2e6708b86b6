//! Timing, by the rules of `bench/README.md`.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::{Call, Result};

const WARM_UP: usize = 3;
const MIN_RUNS: usize = 3;
const MAX_RUNS: usize = 3000;

/// The times of a row.
#[derive(Serialize)]
pub struct Timing {
    pub median_us: f64,
    pub min_us: f64,
    pub runs: usize,
    /// The loss of the first training step, to compare with the other libraries.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_loss: Option<f32>,
}

/// Warms up, then times `call` for `BENCH_SECONDS`, or 3 s.
pub fn measure(mut call: Call) -> Result<Timing> {
    let budget = match std::env::var("BENCH_SECONDS") {
        Ok(seconds) => Duration::try_from_secs_f64(seconds.parse()?)?,
        Err(_) => Duration::from_secs(3),
    };
    let clock = match std::env::var("BENCH_CLOCK").as_deref() {
        // The CPU time of all threads, which other processes hardly change.
        Ok("cpu") => ClockId::ProcessCPUTime,
        _ => ClockId::Monotonic,
    };
    let first_loss = call()?;
    for _ in 1..WARM_UP {
        call()?;
    }
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < MIN_RUNS || (begin.elapsed() < budget && times.len() < MAX_RUNS) {
        let start = microseconds(clock);
        call()?;
        times.push(microseconds(clock) - start);
    }
    times.sort_by(f64::total_cmp);
    let runs = times.len();
    let median_us = (times[(runs - 1) / 2] + times[runs / 2]) / 2.0;
    Ok(Timing { median_us, min_us: times[0], runs, first_loss })
}

fn microseconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
