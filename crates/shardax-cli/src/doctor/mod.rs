//! Checks of a platform: its plugin, its devices, and programs on them.
//!
//! Each check runs in a separate process with a time limit, so that a plugin that crashes or hangs fails only that
//! check.

mod checks;
mod kernels;
mod reference;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use checks::CHECKS;

/// Loads a plugin, runs checks on its devices, and writes a report to attach to an issue.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "shardax-doctor", version)]
pub struct Options {
    /// The platform: `cpu`, `cuda` or `tpu`; by default the value of SHARDAX_PLATFORM, or `cpu`.
    pub platform: Option<String>,
    /// The file to write the report to.
    #[arg(long, value_name = "FILE", default_value = "shardax-doctor.md")]
    pub report: PathBuf,
    /// The time limit of a check, in seconds.
    #[arg(long, default_value_t = 180)]
    pub limit: u64,
    /// Runs only these checks, such as `--only arithmetic,collectives`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Runs this check in this process, and prints its findings.
    #[arg(long, value_name = "NAME", hide = true)]
    pub check: Option<String>,
}

/// A check's outcome.
struct Outcome {
    name: &'static str,
    passed: bool,
    /// The finding, or the reason of the failure.
    text: String,
    took: Duration,
}

/// Runs all checks and writes the report; returns `true` if all passed.
///
/// # Errors
/// Returns an error if the checks cannot be started or the report cannot be written.
pub fn examine(options: &Options) -> Result<bool, String> {
    if let Some(name) = &options.check {
        return checks::run(name).map(|findings| {
            println!("{findings}");
            true
        });
    }
    let platform = options.platform.clone().or_else(|| std::env::var("SHARDAX_PLATFORM").ok());
    let platform = platform.unwrap_or_else(|| "cpu".to_owned());
    println!("shardax {} on {platform}", env!("CARGO_PKG_VERSION"));
    let check_names: Vec<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = options.only.iter().find(|name| !check_names.contains(&name.as_str())) {
        return Err(format!("there is no check {unknown:?}; the checks are {}", check_names.join(", ")));
    }
    // Each check runs in a separate process, because a fault in a plugin ends the process.
    let mut outcomes = Vec::new();
    for name in
        check_names.into_iter().filter(|name| options.only.is_empty() || options.only.iter().any(|only| only == name))
    {
        let outcome = run_apart(name, &platform, options)?;
        let mark = if outcome.passed { "ok" } else { "FAILED" };
        println!("{:<12} {mark:<7} {}", outcome.name, outcome.text.replace('\n', "\n                     "));
        let is_fatal = !outcome.passed && matches!(outcome.name, "plugin" | "devices");
        outcomes.push(outcome);
        if is_fatal {
            // Without a plugin or devices, all other checks would fail for the same reason.
            println!("the remaining checks are skipped, because they need the check {name:?} to pass");
            break;
        }
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    std::fs::write(&options.report, report(&platform, &outcomes))
        .map_err(|error| format!("cannot write {}: {error}", options.report.display()))?;
    println!(
        "{} of {} checks passed; the report is in {}",
        outcomes.len() - failed,
        outcomes.len(),
        options.report.display()
    );
    Ok(failed == 0)
}

/// Runs a check in a separate process.
fn run_apart(name: &'static str, platform: &str, options: &Options) -> Result<Outcome, String> {
    let program = std::env::current_exe().map_err(|error| format!("the path of this program is unknown: {error}"))?;
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(["--check", name]).env("SHARDAX_PLATFORM", platform);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("a check cannot be started: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // The output is read while the check runs, because a full pipe would stop it.
    let (out, err) = (read_in_background(out), read_in_background(err));
    let limit = Duration::from_secs(options.limit);
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    let (passed, text) = match status {
        // A plugin that lacks something may pass with a warning.
        Some(status) if status.success() && err.contains("warning: ") => (true, format!("{out}\n{}", ends(&err))),
        Some(status) if status.success() => (true, out),
        Some(status) => (false, format!("{}\n({status})", ends(&err))),
        None => (false, format!("{}\n(it ran past {} s and was ended)", ends(&err), options.limit)),
    };
    Ok(Outcome { name, passed, text, took: start.elapsed() })
}

/// Reads a stream to its end on a thread, which returns the text without surrounding space.
fn read_in_background(stream: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let text = stream.map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default();
        text.trim().to_owned()
    })
}

/// The first and the last lines of a long text.
fn ends(text: &str) -> String {
    const SHOWN_LINES: usize = 16;
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > 2 * SHOWN_LINES {
        [&lines[..SHOWN_LINES], &["…"], &lines[lines.len() - SHOWN_LINES..]].concat().join("\n")
    } else {
        lines.join("\n")
    }
}

fn report(platform: &str, outcomes: &[Outcome]) -> String {
    let mut text = format!("# shardax-doctor: {platform}\n\n");
    let host = std::fs::read_to_string("/proc/version").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let _ = writeln!(text, "- shardax {}", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "- {}, {cores} cores", host.split(" (").next().unwrap_or_default().trim());
    for name in ["SHARDAX_CUDA_PLUGIN", "SHARDAX_TPU_PLUGIN", "SHARDAX_CPU_PLUGIN", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES"]
    {
        if let Ok(value) = std::env::var(name) {
            let _ = writeln!(text, "- {name}={value}");
        }
    }
    text.push_str("\n| check | result | found | s |\n|---|---|---|---|\n");
    for Outcome { name, passed, text: finding, took } in outcomes {
        let mark = if *passed { "ok" } else { "**failed**" };
        let _ = writeln!(text, "| {name} | {mark} | {} | {:.1} |", cell(finding), took.as_secs_f64());
    }
    let text_of =
        |name: &str| outcomes.iter().find(|outcome| outcome.name == name).map(|outcome| outcome.text.as_str());
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    // The plugin without its path and size.
    let plugin = text_of("plugin").and_then(|text| text.rsplit(", ").next()).unwrap_or("none");
    let devices = text_of("devices").and_then(|text| text.split(';').next()).unwrap_or("none");
    let _ = writeln!(
        text,
        "\nFor the table of docs/platforms.md:\n\n| {platform} | {} | {} | {passed} of {} | {} |",
        cell(devices),
        cell(plugin),
        outcomes.len(),
        cell(text_of("speed").unwrap_or("not measured"))
    );
    text
}

/// The text of a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', "<br>")
}
