//! Where the time of steps goes.

use std::time::{Duration, Instant};

use super::Values;

/// The time since the numbers were last read, in parts.
pub(super) struct Timing {
    begin: Instant,
    steps: u64,
    input: Duration,
    dispatch: Duration,
    device: Duration,
}

impl Timing {
    pub fn new() -> Self {
        let none = Duration::ZERO;
        Timing { begin: Instant::now(), steps: 0, input: none, dispatch: none, device: none }
    }

    /// What is done from here on counts.
    pub fn restart(&mut self) {
        *self = Timing::new();
    }

    /// Waiting for data.
    pub fn input<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.input, f)
    }

    /// Starting a step.
    pub fn dispatch<T>(&mut self, f: impl FnOnce() -> T) -> T {
        self.steps += 1;
        timed(&mut self.dispatch, f)
    }

    /// Waiting for the devices.
    pub fn device<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.device, f)
    }

    /// These numbers, with those of the time; then it begins anew. `work` is what a step takes, by name; `flops` are those
    /// of a step, and of a second.
    pub fn finish(&mut self, mut values: Values, work: &[(&str, f64)], flops: Option<(f64, f64)>) -> Values {
        let seconds = self.begin.elapsed().as_secs_f64().max(1e-9);
        let rate = self.steps as f64 / seconds;
        let share = |part: Duration| part.as_secs_f64() / seconds;
        let mut add = |name: &str, x: f64| {
            values.insert(name.to_owned(), x);
        };
        add("steps_per_second", rate);
        add("time/input_wait", share(self.input));
        add("time/dispatch", share(self.dispatch));
        add("time/device_wait", share(self.device));
        for (what, of_a_step) in work {
            add(&format!("{what}_per_second"), rate * of_a_step);
        }
        if let Some((of_a_step, peak)) = flops {
            add("mfu", rate * of_a_step / peak);
        }
        self.restart();
        values
    }
}

fn timed<T>(sum: &mut Duration, f: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = f();
    *sum += begin.elapsed();
    result
}
