//! The time of steps, by cause.

use std::time::{Duration, Instant};

use super::Values;

/// The time since a step's numbers were last read, in parts.
pub(super) struct Timing {
    /// Amounts of work a step, by name.
    work: Vec<(&'static str, f64)>,
    /// The operations of a step, and the devices' peak operations per second.
    flops: Option<(f64, f64)>,
    /// The last step that was done at the start of the measurement.
    step: u64,
    /// The last step of the run.
    steps: u64,
    begin: Instant,
    input: Duration,
    dispatch: Duration,
    device: Duration,
}

impl Timing {
    /// Measures the steps after `step` of a run of `steps` steps.
    pub fn new((step, steps): (u64, u64), work: Vec<(&'static str, f64)>, flops: Option<(f64, f64)>) -> Self {
        let none = Duration::ZERO;
        Timing { work, flops, step, steps, begin: Instant::now(), input: none, dispatch: none, device: none }
    }

    /// Restarts the measurement: the steps after this one count.
    pub fn restart(&mut self, step: u64) {
        *self = Timing::new((step, self.steps), std::mem::take(&mut self.work), self.flops);
    }

    /// Measures waiting for data.
    pub fn input<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.input, f)
    }

    /// Measures starting a step.
    pub fn dispatch<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.dispatch, f)
    }

    /// Measures waiting for the devices.
    pub fn device<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.device, f)
    }

    /// Adds the times to the numbers of a step that is done now, and restarts. Steps that were started since are
    /// counted when they are done.
    pub fn finish(&mut self, step: u64, mut values: Values) -> Values {
        let seconds = self.begin.elapsed().as_secs_f64().max(1e-9);
        let rate = (step - self.step) as f64 / seconds;
        values.insert("steps_per_second".to_owned(), rate);
        if rate > 0.0 {
            values.insert("time/remaining_seconds".to_owned(), (self.steps - step) as f64 / rate);
        }
        if let Some(bytes) = resident() {
            values.insert("memory/host_bytes".to_owned(), bytes);
        }
        for (name, part) in [("input_wait", self.input), ("dispatch", self.dispatch), ("device_wait", self.device)] {
            values.insert(format!("time/{name}"), part.as_secs_f64() / seconds);
        }
        for (unit, per_step) in &self.work {
            values.insert(format!("{unit}_per_second"), rate * per_step);
        }
        if let Some((per_step, peak)) = self.flops {
            values.insert("mfu".to_owned(), rate * per_step / peak);
        }
        self.restart(step);
        values
    }
}

fn timed<T>(sum: &mut Duration, f: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = f();
    *sum += begin.elapsed();
    result
}

/// The memory of this process that is in use, in bytes.
fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.trim().parse::<f64>().ok()? * 1024.0)
}
