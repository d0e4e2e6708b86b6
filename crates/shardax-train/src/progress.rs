//! A progress bar on a terminal, plain lines elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Display, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows how far a run is: on a terminal as a bar below what is printed, which disappears at the end; in a file or a
/// pipe not at all, so that only the lines remain.
///
/// ```
/// let progress = shardax_train::Progress::new(100);
/// for step in 0..100 {
///     progress.step();
///     if step % 50 == 49 {
///         progress.println(format!("step {}", step + 1));
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// The last losses.
    losses: Mutex<VecDeque<f64>>,
}

/// The losses of the small picture.
const PICTURE: usize = 24;

impl Progress {
    /// The progress of a run of so many steps.
    pub fn new(steps: usize) -> Self {
        Progress::from_step(steps, 0)
    }

    /// That of a run which goes on after `step`.
    pub fn from_step(steps: usize, step: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:40.cyan/238} {pos}/{len} steps, {eta} left {msg}");
        let style = style.map(|style| style.progress_chars("━╸━")).unwrap_or_else(|_| ProgressStyle::default_bar());
        // Draws on standard error, and only where that is a terminal.
        let bar = ProgressBar::new(steps as u64).with_style(style).with_position(step as u64);
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, losses: Mutex::default() }
    }

    /// One step is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// A few words beside the bar.
    pub fn message(&self, text: impl Display) {
        self.bar.set_message(text.to_string());
    }

    /// Prints a line on standard output, above the bar.
    pub fn println(&self, line: impl Display) {
        self.bar.suspend(|| println!("{line}"));
    }

    /// The numbers of a step: a line, and beside the bar how the loss went and how quick it is.
    pub fn report(&self, step: u64, values: &BTreeMap<String, f64>) {
        let mut line = format!("step {step}:");
        for (at, (name, x)) in values.iter().filter(|(name, _)| !name.starts_with("time/")).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(line, "{comma} {name} {}", short(*x));
        }
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        losses.extend(values.get("loss"));
        while losses.len() > PICTURE {
            losses.pop_front();
        }
        let rate = values.get("steps_per_second").map_or(String::new(), |rate| format!(" {} steps/s", short(*rate)));
        self.message(format!("{}{rate}", sparkline(losses.make_contiguous())));
        drop(losses);
        self.println(line);
    }
}

/// Four digits, in the form that shows them.
fn short(x: f64) -> String {
    match x.abs() {
        1000.0..1e6 => format!("{x:.0}"),
        100.0..1000.0 => format!("{x:.1}"),
        0.01..100.0 => format!("{x:.4}"),
        0.0 | f64::INFINITY => x.to_string(),
        nan if nan.is_nan() => x.to_string(),
        _ => format!("{x:.3e}"),
    }
}

/// Numbers as a row of bars, from the least to the largest of them.
///
/// ```
/// assert_eq!(shardax_train::progress::sparkline(&[4.0, 2.0, f64::NAN, 1.0]), "█▃ ▁");
/// ```
pub fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let bar = |x: f64| match x.is_finite() {
        false => ' ',
        // Halves, so that the distance of the largest numbers is one.
        true if high / 2.0 - low / 2.0 > 0.0 => {
            let share = (x / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
            BARS[((share * 7.0).round() as usize).min(7)]
        }
        true => BARS[0],
    };
    values.iter().map(|x| bar(*x)).collect()
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
