//! A terminal view of a run's folder: its log of JSON lines and its checkpoints.

mod run;
mod view;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

pub use run::Run;
pub use view::draw;

/// Shows a run: loss, steps a second, memory, waits, checkpoints and the time left.
///
/// The folder or its subfolders must contain a log of JSON lines (`JsonLines`), and can contain checkpoints
/// (`CheckpointManager`). Press `q` to quit.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "shardax-top", version)]
pub struct Options {
    /// The run's folder, or its log.
    pub folder: PathBuf,
    /// The number to draw.
    #[arg(long, default_value = "loss")]
    pub curve: String,
    /// Seconds between updates.
    #[arg(long, default_value_t = 1.0)]
    pub every: f64,
    /// Prints the view once, as text.
    #[arg(long)]
    pub once: bool,
}

/// Shows the run until `q` is pressed.
///
/// # Errors
/// Returns an error if the folder has no log, or there is no terminal.
pub fn show(options: &Options) -> Result<(), String> {
    let run = Run::read(&options.folder)?;
    if options.once {
        return print(&run, options);
    }
    let mut terminal = ratatui::try_init().map_err(|error| format!("there is no terminal ({error}): use --once"))?;
    let shown = watch(&mut terminal, run, options);
    ratatui::restore();
    shown
}

fn watch(terminal: &mut ratatui::DefaultTerminal, mut run: Run, options: &Options) -> Result<(), String> {
    let every = Duration::try_from_secs_f64(options.every.max(0.05)).unwrap_or(Duration::from_secs(1));
    loop {
        terminal.draw(|frame| draw(frame, &run, &options.curve)).map_err(|error| error.to_string())?;
        if event::poll(every).map_err(|error| error.to_string())?
            && let Event::Key(key) = event::read().map_err(|error| error.to_string())?
        {
            let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
        }
        // A log that is being replaced exists again at the next update.
        if let Ok(now) = Run::read(&options.folder) {
            run = now;
        }
    }
}

fn print(run: &Run, options: &Options) -> Result<(), String> {
    let text = text(run, &options.curve, 100, 28)?;
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Renders the view as text of this size.
///
/// # Errors
/// Returns the error of the terminal library.
pub fn text(run: &Run, curve: &str, width: u16, height: u16) -> Result<String, String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(|error| error.to_string())?;
    terminal.draw(|frame| draw(frame, run, curve)).map_err(|error| error.to_string())?;
    let buffer = terminal.backend().buffer();
    let rows = (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>());
    Ok(rows.map(|row| format!("{}\n", row.trim_end())).collect())
}
