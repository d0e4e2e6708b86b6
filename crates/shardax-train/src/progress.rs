//! A progress bar on a terminal, plain lines elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Display, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar. On a terminal it is drawn below the printed lines and disappears at the end; in a file or a pipe
/// only the lines are written.
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
    /// The most recent losses.
    losses: Mutex<VecDeque<f64>>,
}

/// The number of losses in the sparkline.
const PICTURE: usize = 24;

impl Progress {
    /// Creates a progress bar for `steps` steps.
    pub fn new(steps: usize) -> Self {
        Progress::from_step(steps, 0)
    }

    /// Creates the progress bar of a run that resumes after `step`. The bar starts there, so that the estimated time
    /// counts only the remaining steps.
    pub fn from_step(steps: usize, step: usize) -> Self {
        // Draws on standard error, and only if that is a terminal.
        Progress::on(ProgressDrawTarget::stderr(), steps, step)
    }

    fn on(target: ProgressDrawTarget, steps: usize, step: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:40.cyan/238} {pos}/{len} steps, {eta} left {msg}");
        let style = style.map(|style| style.progress_chars("━╸━")).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let bar = bar.with_style(style).with_position(step as u64);
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, losses: Mutex::default() }
    }

    /// Advances by one step.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Sets the text next to the bar.
    pub fn message(&self, text: impl Display) {
        self.bar.set_message(text.to_string());
    }

    /// Prints a line on standard output, above the bar.
    pub fn println(&self, line: impl Display) {
        self.bar.suspend(|| println!("{line}"));
    }

    /// Prints the numbers of a step, and shows the loss' sparkline and the speed next to the bar.
    pub fn report(&self, step: u64, values: &BTreeMap<String, f64>) {
        let mut line = format!("step {step}:");
        for (at, (name, x)) in values.iter().filter(|(name, _)| !is_of_machine(name)).enumerate() {
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

/// Returns true for numbers about the program's time and memory. They are in logs, but not in lines and curves.
pub(crate) fn is_of_machine(name: &str) -> bool {
    name.starts_with("time/") || name.starts_with("memory/")
}

/// Formats a number with four digits, in the shortest form.
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

/// Draws numbers as a row of bars, from the smallest to the largest of them.
///
/// ```
/// assert_eq!(shardax_train::progress::sparkline(&[4.0, 2.0, f64::NAN, 1.0]), "█▃ ▁");
/// ```
pub fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let finite = values.iter().copied().filter(|x| x.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    // Halves, because the difference of the largest finite numbers would overflow.
    let range = high / 2.0 - low / 2.0;
    let bars = values.iter().map(|x| match x.is_finite() {
        false => ' ',
        true if range > 0.0 => {
            let share = (x / 2.0 - low / 2.0) / range;
            BARS[((share * 7.0).round() as usize).min(7)]
        }
        true => BARS[0],
    });
    bars.collect()
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use indicatif::TermLike;

    use super::*;

    /// A terminal that records what is drawn.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<Vec<String>>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A terminal shows the bar, the steps, the remaining time, the sparkline of the loss and the speed.
    #[test]
    fn a_terminal_shows_the_loss_and_the_remaining_time() {
        let screen = Screen::default();
        let progress = Progress::on(ProgressDrawTarget::term_like_with_hz(Box::new(screen.clone()), 100), 40, 10);
        for (step, loss) in [(11, 3.0), (12, 2.0), (13, 1.0)] {
            progress.step();
            progress.report(step, &[("loss".to_owned(), loss), ("steps_per_second".to_owned(), 12.5)].into());
        }
        progress.bar.tick();
        let drawn = screen.0.lock().expect("no panic").clone();
        let line = drawn.iter().rev().find(|text| text.contains("steps")).expect("a bar");
        for text in ["━", "13/40 steps", " left ", "█▅▁", "12.5000 steps/s"] {
            assert!(line.contains(text), "{text} is not in {line:?}");
        }
    }
}
