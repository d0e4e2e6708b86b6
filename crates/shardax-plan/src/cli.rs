//! The command line of a planner.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use shardax::prelude::*;

use crate::error::value;
use crate::memory::Advice;
use crate::{Plan, Remat, Report, Search, Setup, Target, target};

const HELP: &str = "\
plans a step for hardware you do not have

  --target NAME       v5e:4x8, v5p:8x8x16, 2*v5p:4x4x4, h100:8, h100:128x8, h200, a100, b200, cpu:8   (cpu:8),
                                            or FILE.json:4x8: devices that a file describes
  --mesh AXES         data=2,fsdp=16,model=4   (all devices along data)
    --remat WHAT        none, dots or full: which residuals of layers are stored   (full)
    --micro-batch N     sequences, images or rows per step on all devices together   (the step's own)
  --set NAME=VALUE    an option of the step's own
    --xla NAME=VALUE    an option of XLA, for GPUs or TPUs
    --xla training      those of `config::gpu_training`, `tpu_training` or `v5e_training`
    --json FILE         writes the report as JSON; of a search all compiled setups, with meshes and rules
    --svg FILE          writes the report as a picture
    --search            tries meshes of data, fsdp, model and expert, remat, and micro-batches (or the one given)
    --compile N         compiles the N fastest setups of a search, and half as many of the smallest   (4)
    --cpu               compiles with the CPU's compiler, even if the platform's own is installed
";

/// A parsed command line.
struct Request {
    setup: Setup,
    json: Option<String>,
    svg: Option<String>,
    search: Option<Search>,
}

/// Parses the command line, plans, and prints the report. [`main!`](crate::main!) calls this.
pub fn run(plan: &dyn Fn(&Setup) -> Result<Plan>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print(HELP.trim_end());
        return ExitCode::SUCCESS;
    }
    match parse(&args).and_then(|request| report(plan, &request)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Request> {
    let (mut name, mut axes, mut by_cpu, mut searches, mut trains) = ("cpu:8".to_owned(), None, false, false, false);
    let mut search = Search::default();
    let (mut remat, mut micro_batch, mut json, mut svg) = (Remat::Full, None, None, None);
    let mut options = std::collections::BTreeMap::new();
    let mut xla = Vec::new();
    // Arguments before the first option name the step; the binary reads them.
    let mut rest = args.iter().filter(|arg| *arg != "--").skip_while(|arg| !arg.starts_with('-'));
    while let Some(option) = rest.next() {
        if option == "--cpu" {
            by_cpu = true;
            continue;
        }
        if option == "--search" {
            searches = true;
            continue;
        }
        let wanted = || value(format!("{option} needs a value"), "`--help` lists the options");
        let given = rest.next().ok_or_else(wanted)?;
        match option.as_str() {
            "--target" => name = given.clone(),
            "--mesh" => axes = Some(target::parse_axes(given)?),
            "--remat" => {
                let known = Remat::ALL.into_iter().find(|r| r.name() == given);
                remat = known
                    .ok_or_else(|| value(format!("--remat {given:?} is none of none, dots, full"), "choose one"))?;
            }
            "--micro-batch" => {
                let count = given.parse().ok().filter(|n| *n > 0);
                let refused =
                    || value(format!("--micro-batch {given:?} is no number above 0"), "write --micro-batch 64");
                micro_batch = Some(count.ok_or_else(refused)?);
            }
            "--compile" => {
                let count = given.parse().ok().filter(|n| *n > 0);
                let refused = || value(format!("--compile {given:?} is no number above 0"), "write --compile 4");
                search.compile = count.ok_or_else(refused)?;
            }
            "--set" => {
                let refused = || value(format!("--set {given:?} is no option"), "write --set name=value");
                let (key, to) = given.split_once('=').ok_or_else(refused)?;
                options.insert(key.to_owned(), to.to_owned());
            }
            "--xla" if given == "training" => trains = true,
            "--xla" => {
                let (name, to) =
                    given.split_once('=').filter(|(name, _)| name.starts_with("xla_")).ok_or_else(|| {
                        value(format!("--xla {given:?} is no option of XLA"), "write --xla xla_name=value")
                    })?;
                xla.push((name, to));
            }
            "--json" => json = Some(given.clone()),
            "--svg" => svg = Some(given.clone()),
            _ => return Err(value(format!("there is no option {option}"), "`--help` lists the options")),
        }
    }
    let target = Target::new(&name)?;
    if trains {
        config::set_compiler_options(config::gpu_training());
        let is_v5e = name.split_once(':').is_some_and(|(kind, _)| kind.ends_with("v5e"));
        config::set_compiler_options(if is_v5e { config::v5e_training() } else { config::tpu_training() });
    }
    xla.into_iter().try_for_each(|(name, to)| config::update(name, to))?;
    let target = if by_cpu { target.by_cpu() } else { target };
    let mut setup = Setup { remat, micro_batch, options, ..Setup::new(target) };
    if let Some(axes) = axes {
        setup.axes = axes;
    }
    let search = searches.then_some(search);
    Ok(Request { setup, json, svg, search })
}

/// Prints a line; a closed pipe is not an error.
fn print(line: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn report(plan: &dyn Fn(&Setup) -> Result<Plan>, request: &Request) -> Result<()> {
    let begun = std::time::Instant::now();
    let (report, found) = match &request.search {
        None => (planned(plan, &request.setup)?, None),
        Some(search) => {
            let found = search.run(plan, &request.setup)?;
            print(&found);
            (found.best().clone(), Some(found))
        }
    };
    print(format_args!("{report}\nplanned in {:.1} s", begun.elapsed().as_secs_f64()));
    let write = |file: &Option<String>, text: &dyn Fn() -> String| match file {
        None => Ok(()),
        Some(file) => std::fs::write(file, text())
            .map_err(|e| value(format!("{file} cannot be written: {e}"), "choose another place")),
    };
    write(&request.json, &|| found.as_ref().map_or_else(|| report.to_json(), |found| found.to_json()))?;
    write(&request.svg, &|| report.to_svg())
}

/// The report for a setup. If the step does not fit, it includes changed setups that need less memory.
pub(crate) fn planned(plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Report> {
    setup.target.prepare()?;
    let one = |setup: &Setup| plan(setup)?.report(&setup.target);
    let (mut report, setup) = match one(setup) {
        // The TPU compiler rejects a program that does not fit; the CPU compiler reports its size.
        Err(error) if does_not_fit(&error) => {
            let target = setup.target.clone().by_cpu_because("which rejected it");
            let setup = Setup { target, ..setup.clone() };
            if setup.target.prepare().is_err() {
                return Err(error);
            }
            let mut report = one(&setup)?;
            let why = error.message().lines().next().unwrap_or_default();
            report.notes.insert(0, format!("it does not fit: the platform's own compiler rejected it ({why})"));
            (report, setup)
        }
        other => (other?, setup.clone()),
    };
    if report.memory.fits() == Some(false) {
        for (what, other) in others(&setup) {
            // Setups that the step does not support are no help.
            let Ok(other) = one(&other) else { continue };
            let needs = other.memory.total();
            if needs < report.memory.total() {
                report.helps.push(Advice { what, needs, compiled: true });
            }
        }
    }
    Ok(report)
}

/// Changed setups that may need less memory, with their options: fewer residuals, parameters split over the axis
/// `data`, half the micro-batch.
fn others(setup: &Setup) -> Vec<(String, Setup)> {
    let mut all = Vec::new();
    for remat in Remat::ALL.into_iter().filter(|remat| *remat > setup.remat) {
        all.push((format!("--remat {}", remat.name()), Setup { remat, ..setup.clone() }));
    }
    let data = setup.axis("data");
    if data > 1 {
        let others = setup.axes.iter().filter(|(axis, _)| !["data", "fsdp"].contains(&&*axis.to_string()));
        let fsdp = ("fsdp".into(), data * setup.axis("fsdp"));
        let axes: Vec<_> = std::iter::once(fsdp).chain(others.copied()).collect();
        let mesh = axes.iter().map(|(axis, size)| format!("{axis}={size}")).collect::<Vec<_>>().join(",");
        all.push((format!("--mesh {mesh}"), Setup { axes, ..setup.clone() }));
    }
    if let Some(half) = setup.micro_batch.filter(|n| n.is_multiple_of(2)).map(|n| n / 2) {
        all.push((format!("--micro-batch {half}"), Setup { micro_batch: Some(half), ..setup.clone() }));
    }
    all
}

fn does_not_fit(error: &shardax::Error) -> bool {
    ["RESOURCE_EXHAUSTED", "ResourceExhausted", "Ran out of memory"].iter().any(|word| error.message().contains(word))
}
