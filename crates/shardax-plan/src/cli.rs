//! The command line of a planner, which [`main!`](crate::main!) runs.

use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use shardax::prelude::*;

use crate::error::value;
use crate::memory::Advice;
use crate::{Plan, Remat, Report, Search, Setup, Target, target};

/// Plans a step for hardware you do not have.
#[derive(clap::Parser)]
struct Options {
    /// The devices: v5e:4x8, v5p:8x8x16, 2*v5p:4x4x4, h100:8, h100:128x8, h200, a100, b200, cpu:8, or FILE.json:4x8 for
    /// devices that a file describes.
    #[arg(long, value_name = "NAME", default_value = "cpu:8")]
    target: String,
    /// The mesh, as data=2,fsdp=16,model=4. By default all devices are along data.
    #[arg(long, value_name = "AXES", value_parser = target::parse_axes)]
    mesh: Option<target::Axes>,
    /// The residuals of layers that are stored: none, dots or full.
    #[arg(long, value_name = "WHAT", value_parser = remat, default_value = Remat::Full.name())]
    remat: Remat,
    /// Sequences, images or rows per step on all devices together. The step has a default.
    #[arg(long, value_name = "N", value_parser = positive)]
    micro_batch: Option<usize>,
    /// An option of the step.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<Assignment>,
    /// An option of XLA for GPUs or TPUs, or `training` for the options of `config::gpu_training`, `tpu_training` or
    /// `v5e_training`.
    #[arg(long, value_name = "NAME=VALUE|training")]
    xla: Vec<String>,
    /// Writes the report as JSON. For a search it contains all compiled setups, with meshes and rules.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the report as a picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Tries meshes of data, fsdp, model and expert, remat, and micro-batches (or the one given).
    #[arg(long)]
    search: bool,
    /// The number of fastest setups that a search compiles; it compiles half as many of the setups with the least
    /// memory.
    #[arg(long, value_name = "N", value_parser = positive, default_value = "4")]
    compile: usize,
    /// Compiles with the CPU's compiler, even if the platform's own is installed, for example to compare the two.
    #[arg(long)]
    cpu: bool,
}

fn positive(text: &str) -> std::result::Result<usize, &'static str> {
    text.parse().ok().filter(|n| *n > 0).ok_or("this is not a number above 0")
}

fn remat(text: &str) -> std::result::Result<Remat, &'static str> {
    Remat::ALL.into_iter().find(|remat| remat.name() == text).ok_or("choose none, dots or full")
}

/// A name and its value.
type Assignment = (String, String);

fn assignment(text: &str) -> std::result::Result<Assignment, &'static str> {
    let (name, to) = text.split_once('=').ok_or("write name=value")?;
    Ok((name.to_owned(), to.to_owned()))
}

/// Parses the command line, plans, and prints the report. [`main!`](crate::main!) calls this.
pub fn run(plan: &dyn Fn(&Setup) -> Result<Plan>) -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    // Arguments before the first option name the step; the binary reads them.
    let options = args.filter(|arg| arg != "--").skip_while(|arg| !arg.as_encoded_bytes().starts_with(b"-"));
    let options = match Options::try_parse_from(std::iter::once(program).chain(options)) {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match options.setup().and_then(|setup| report(plan, &options, &setup)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn setup(&self) -> Result<Setup> {
        let target = Target::new(&self.target)?;
        if self.xla.iter().any(|option| option == "training") {
            config::set_compiler_options(config::gpu_training());
            let is_v5e = self.target.split_once(':').is_some_and(|(kind, _)| kind.ends_with("v5e"));
            config::set_compiler_options(if is_v5e { config::v5e_training() } else { config::tpu_training() });
        }
        for option in self.xla.iter().filter(|option| *option != "training") {
            let assignment = option.split_once('=').filter(|(name, _)| name.starts_with("xla_"));
            let (name, setting) = assignment.ok_or_else(|| {
                value(format!("--xla {option:?} is not an option of XLA"), "write --xla xla_name=value")
            })?;
            config::update(name, setting)?;
        }
        let mut setup = Setup::new(if self.cpu { target.by_cpu() } else { target });
        setup.axes = self.mesh.clone().unwrap_or(setup.axes);
        Ok(Setup {
            remat: self.remat,
            micro_batch: self.micro_batch,
            options: self.set.iter().cloned().collect(),
            ..setup
        })
    }
}

/// Prints a line; a closed pipe is not an error.
fn print(line: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn report(plan: &dyn Fn(&Setup) -> Result<Plan>, options: &Options, setup: &Setup) -> Result<()> {
    let start = std::time::Instant::now();
    let (report, search) = if !options.search {
        (planned(plan, setup)?, None)
    } else {
        let result = Search { compile: options.compile, ..Search::default() }.run(plan, setup)?;
        print(&result);
        (result.best().clone(), Some(result))
    };
    print(format_args!("{report}\nplanned in {:.1} s", start.elapsed().as_secs_f64()));
    if let Some(file) = &options.json {
        write(file, search.map_or_else(|| report.to_json(), |search| search.to_json()))?;
    }
    if let Some(file) = &options.svg {
        write(file, report.to_svg())?;
    }
    Ok(())
}

fn write(file: &Path, text: String) -> Result<()> {
    std::fs::write(file, text).map_err(|error| {
        value(
            format!("{} cannot be written: {error}", file.display()),
            "choose another path, or make the folder writable",
        )
    })
}

/// The report for a setup. If the step does not fit, it includes changed setups that need less memory.
pub(crate) fn planned(plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Report> {
    setup.target.prepare()?;
    let (mut report, setup) = match report_for(plan, setup) {
        // The TPU compiler rejects a program that does not fit; the CPU compiler reports its size.
        Err(error) if does_not_fit(&error) => {
            let target = setup.target.clone().by_cpu_because("which rejected it");
            let setup = Setup { target, ..setup.clone() };
            if setup.target.prepare().is_err() {
                return Err(error);
            }
            let mut report = report_for(plan, &setup)?;
            let why = error.message().lines().next().unwrap_or_default();
            report.notes.insert(0, format!("it does not fit: the platform's own compiler rejected it ({why})"));
            (report, setup)
        }
        report => (report?, setup.clone()),
    };
    if report.memory.fits() == Some(false) {
        for (what, smaller) in smaller_setups(&setup) {
            // Setups that the step does not support do not help.
            let Ok(smaller) = report_for(plan, &smaller) else { continue };
            let needs = smaller.memory.total();
            if needs < report.memory.total() {
                report.helps.push(Advice { what, needs, compiled: true });
            }
        }
    }
    Ok(report)
}

/// Compiles the step for a setup and reports its figures.
fn report_for(plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Report> {
    plan(setup)?.report(&setup.target)
}

/// Changed setups that can need less memory, with their options: fewer residuals, parameters split over the axis
/// `data`, half the micro-batch.
fn smaller_setups(setup: &Setup) -> Vec<(String, Setup)> {
    let mut setups = Vec::new();
    for remat in Remat::ALL.into_iter().filter(|remat| *remat > setup.remat) {
        setups.push((format!("--remat {}", remat.name()), Setup { remat, ..setup.clone() }));
    }
    let data = setup.axis("data");
    if data > 1 {
        let other_axes = setup.axes.iter().filter(|(axis, _)| !["data", "fsdp"].contains(&&*axis.to_string()));
        let fsdp = ("fsdp".into(), data * setup.axis("fsdp"));
        let axes: Vec<_> = std::iter::once(fsdp).chain(other_axes.copied()).collect();
        let mesh = axes.iter().map(|(axis, size)| format!("{axis}={size}")).collect::<Vec<_>>().join(",");
        setups.push((format!("--mesh {mesh}"), Setup { axes, ..setup.clone() }));
    }
    if let Some(half) = setup.micro_batch.filter(|n| n.is_multiple_of(2)).map(|n| n / 2) {
        setups.push((format!("--micro-batch {half}"), Setup { micro_batch: Some(half), ..setup.clone() }));
    }
    setups
}

fn does_not_fit(error: &shardax::Error) -> bool {
    ["RESOURCE_EXHAUSTED", "ResourceExhausted", "Ran out of memory"].iter().any(|word| error.message().contains(word))
}
