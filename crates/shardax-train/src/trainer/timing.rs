//! Where the time of steps goes.

use std::time::{Duration, Instant};

use super::Values;

/// The time since the numbers of a step were read, in parts.
pub(super) struct Timing {
    /// What a step takes, by name.
    work: Vec<(&'static str, f64)>,
    /// The operations of a step, and those that the devices could do in a second.
    flops: Option<(f64, f64)>,
    /// The step that was done when it began.
    step: u64,
    begin: Instant,
    input: Duration,
    dispatch: Duration,
    device: Duration,
}

impl Timing {
    pub fn new(step: u64, work: Vec<(&'static str, f64)>, flops: Option<(f64, f64)>) -> Self {
        let none = Duration::ZERO;
        Timing { work, flops, step, begin: Instant::now(), input: none, dispatch: none, device: none }
    }

    /// What is done from here on counts: the steps after this one.
    pub fn restart(&mut self, step: u64) {
        *self = Timing::new(step, std::mem::take(&mut self.work), self.flops);
    }

    /// Waiting for data.
    pub fn input<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.input, f)
    }

    /// Starting a step.
    pub fn dispatch<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.dispatch, f)
    }

    /// Waiting for the devices.
    pub fn device<T>(&mut self, f: impl FnOnce() -> T) -> T {
        timed(&mut self.device, f)
    }

    /// These numbers of a step that is done now, with those of the time; then it begins anew. Steps that were started
    /// since are counted when they are done.
    pub fn finish(&mut self, step: u64, mut values: Values) -> Values {
        let seconds = self.begin.elapsed().as_secs_f64().max(1e-9);
        let rate = (step - self.step) as f64 / seconds;
        let share = |part: Duration| part.as_secs_f64() / seconds;
        let mut add = |name: &str, x: f64| {
            values.insert(name.to_owned(), x);
        };
        add("steps_per_second", rate);
        add("time/input_wait", share(self.input));
        add("time/dispatch", share(self.dispatch));
        add("time/device_wait", share(self.device));
        for (what, of_a_step) in &self.work {
            add(&format!("{what}_per_second"), rate * of_a_step);
        }
        if let Some((of_a_step, peak)) = self.flops {
            add("mfu", rate * of_a_step / peak);
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
