//! The command line of a planner.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use shardax::prelude::*;

use crate::error::value;
use crate::memory::Advice;
use crate::{Plan, Remat, Report, Search, Setup, Target, target};

const HELP: &str = "\
plans a step for devices that are not there

  --target NAME       v5e:4x8, v5p:8x8x16, 2*v5p:4x4x4, h100:8, h100:128x8, h200, a100, b200, cpu:8   (cpu:8),
                      or FILE.json:4x8: so many of a device that a file describes
  --mesh AXES         data=2,fsdp=16,model=4   (all devices along data)
  --remat WHAT        none, dots or full: what layers keep for their gradients   (full)
  --micro-batch N     how many sequences, images or rows all devices take at once   (the step's own)
  --set NAME=VALUE    an option of the step's own
  --json FILE         writes the report for machines; of a search all that were compiled, with meshes and rules
  --svg FILE          writes it as a picture
  --search            tries meshes of data, fsdp, model and expert, what layers keep, and micro-batches (or the one given)
  --compile N         how many of the fastest a search compiles, and half as many of the smallest   (4)
  --cpu               compiles by the CPU's compiler, though the platform's own be installed
";

/// What the command line asks for.
struct Request {
    setup: Setup,
    json: Option<String>,
    svg: Option<String>,
    search: Option<Search>,
}

/// Reads the command line, plans, and prints the report: what [`main!`](crate::main!) calls.
pub fn run(plan: &dyn Fn(&Setup) -> Result<Plan>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        say(HELP.trim_end());
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
    let (mut name, mut axes, mut by_cpu, mut searches) = ("cpu:8".to_owned(), None, false, false);
    let mut search = Search::default();
    let (mut remat, mut micro_batch, mut json, mut svg) = (Remat::Full, None, None, None);
    let mut options = std::collections::BTreeMap::new();
    // What is no option names the step, which the binary reads.
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
            "--json" => json = Some(given.clone()),
            "--svg" => svg = Some(given.clone()),
            _ => return Err(value(format!("there is no option {option}"), "`--help` lists the options")),
        }
    }
    let target = Target::new(&name)?;
    let target = if by_cpu { target.by_cpu() } else { target };
    let mut setup = Setup { remat, micro_batch, options, ..Setup::new(target) };
    if let Some(axes) = axes {
        setup.axes = axes;
    }
    let search = searches.then_some(search);
    Ok(Request { setup, json, svg, search })
}

/// Prints a line, to whoever still reads.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn report(plan: &dyn Fn(&Setup) -> Result<Plan>, request: &Request) -> Result<()> {
    let begun = std::time::Instant::now();
    let (report, found) = match &request.search {
        None => (planned(plan, &request.setup)?, None),
        Some(search) => {
            let found = search.run(plan, &request.setup)?;
            say(&found);
            (found.best().clone(), Some(found))
        }
    };
    say(format_args!("{report}\nplanned in {:.1} s", begun.elapsed().as_secs_f64()));
    let write = |file: &Option<String>, text: &dyn Fn() -> String| match file {
        None => Ok(()),
        Some(file) => std::fs::write(file, text())
            .map_err(|e| value(format!("{file} cannot be written: {e}"), "choose another place")),
    };
    write(&request.json, &|| found.as_ref().map_or_else(|| report.to_json(), |found| found.to_json()))?;
    write(&request.svg, &|| report.to_svg())
}

/// The report for a setup; where the step does not fit, with what it would need otherwise set up.
pub(crate) fn planned(plan: &dyn Fn(&Setup) -> Result<Plan>, setup: &Setup) -> Result<Report> {
    setup.target.prepare()?;
    let one = |setup: &Setup| plan(setup)?.report(&setup.target);
    let (mut report, setup) = match one(setup) {
        // The TPU's compiler refuses what does not fit; the CPU's tells what is too much.
        Err(error) if does_not_fit(&error) => {
            let target = setup.target.clone().by_cpu_because("which refused it");
            let setup = Setup { target, ..setup.clone() };
            if setup.target.prepare().is_err() {
                return Err(error);
            }
            let mut report = one(&setup)?;
            let why = error.message().lines().next().unwrap_or_default();
            report.notes.insert(0, format!("it does not fit: the platform's own compiler refused it ({why})"));
            (report, setup)
        }
        other => (other?, setup.clone()),
    };
    if report.memory.fits() == Some(false) {
        for (what, other) in others(&setup) {
            // What the step cannot be set up for is no help.
            let Ok(other) = one(&other) else { continue };
            let needs = other.memory.total();
            if needs < report.memory.total() {
                report.helps.push(Advice { what, needs, compiled: true });
            }
        }
    }
    Ok(report)
}

/// What a setup could be changed to that may need less memory, as options: layers that keep less, parameters split
/// along what is `data` alone, half the micro-batch.
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
        let said = axes.iter().map(|(axis, size)| format!("{axis}={size}")).collect::<Vec<_>>().join(",");
        all.push((format!("--mesh {said}"), Setup { axes, ..setup.clone() }));
    }
    if let Some(half) = setup.micro_batch.filter(|n| n.is_multiple_of(2)).map(|n| n / 2) {
        all.push((format!("--micro-batch {half}"), Setup { micro_batch: Some(half), ..setup.clone() }));
    }
    all
}

fn does_not_fit(error: &shardax::Error) -> bool {
    ["RESOURCE_EXHAUSTED", "ResourceExhausted", "Ran out of memory"].iter().any(|word| error.message().contains(word))
}
