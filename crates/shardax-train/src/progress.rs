//! A progress bar on a terminal, plain lines elsewhere.

use std::fmt::Display;

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
}

impl Progress {
    /// The progress of a run of so many steps.
    pub fn new(steps: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:40.cyan/238} {pos}/{len} steps, {eta} left {msg}");
        let style = style.map(|style| style.progress_chars("━╸━")).unwrap_or_else(|_| ProgressStyle::default_bar());
        // Draws on standard error, and only where that is a terminal.
        Progress { bar: ProgressBar::new(steps as u64).with_style(style) }
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
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
