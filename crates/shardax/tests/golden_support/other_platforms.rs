//! The cases once more, compiled for TPUs and GPUs that are not there: whether their compilers take every operation.
//! Nothing runs, so results are not compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use shardax::prelude::*;

use super::check::{Check, checks_of};
use super::{Case, Fun, family};

/// Checks in one program, and checks for one line of the table's file: a run that is ended early loses only these. Programs of
/// some families take the compilers long, and memory that grows faster than their number.
fn sizes(family: &str) -> (usize, usize) {
    match family {
        // A check of many functions.
        "half" => (2, 8),
        "linalg" | "special" | "matrices" | "random" | "distributions" => (8, 32),
        // Layers, and steps of optimizers.
        name if name.starts_with("nn_") || name.starts_with("optim") => (8, 32),
        _ => (64, 128),
    }
}

/// The platforms of the table: one slice of small TPUs, one of large ones, and a host of GPUs.
const TOPOLOGIES: [&str; 3] = ["v5e:2x4", "v5p:2x2x2", "h100"];

fn topology(name: &str) -> Result<Topology> {
    if name == "h100" { Topology::gpu(GpuSpec::H100) } else { Topology::tpu(name) }
}

/// The targets of a run, from variables that `cargo xtask platforms` sets.
struct Wanted {
    /// One check in so many.
    every: usize,
    only: Option<String>,
    on: Vec<String>,
    /// Of the processes that share the parts, which this is, and how many there are.
    share: (usize, usize),
    /// The file that receives a line for each part.
    out: PathBuf,
}

/// A variable of the tests of platforms.
fn variable(name: &str) -> Option<String> {
    std::env::var(format!("SHARDAX_TEST_PLATFORMS_{name}")).ok()
}

impl Wanted {
    fn read() -> Wanted {
        let share = variable("SHARE").and_then(|share| {
            let (mine, of) = share.split_once('/')?;
            Some((mine.parse().ok()?, of.parse().ok()?))
        });
        Wanted {
            every: variable("EVERY").and_then(|n| n.parse().ok()).unwrap_or(1),
            only: variable("FAMILY"),
            on: variable("ON")
                .map_or(TOPOLOGIES.map(str::to_owned).to_vec(), |on| on.split(',').map(str::to_owned).collect()),
            share: share.unwrap_or((0, 1)),
            out: variable("OUT").expect("SHARDAX_TEST_PLATFORMS_OUT names a file").into(),
        }
    }
}

/// Compiles the families' checks, part by part, and adds to the file a line for each part and topology, and one for each
/// reason why some do not compile. `of` goes before their names. A part that the file has is left out: a run that was ended goes on.
pub fn table(of: &str, families: &[(&'static str, fn(&Case) -> Option<Fun>)]) -> Result<()> {
    let request = Wanted::read();
    let previous = std::fs::read_to_string(&request.out).unwrap_or_default();
    let topologies = request.on.iter().map(|name| topology(name)).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let mut number = 0;
    for (family_name, function) in families {
        if request.only.as_ref().is_some_and(|only| only != family_name) {
            continue;
        }
        let cases = family(family_name);
        let functions: Vec<Option<Fun>> =
            cases.iter().map(|case| catch_unwind(AssertUnwindSafe(|| function(case))).ok().flatten()).collect();
        let runnable = cases.iter().zip(&functions).filter_map(|(case, f)| Some((case, f.as_ref()?)));
        let checks: Vec<Check<'_>> = runnable.flat_map(|(case, f)| checks_of(case, f)).step_by(request.every).collect();
        for ((part, checks), topology) in checks
            .chunks(sizes(family_name).1)
            .enumerate()
            .flat_map(|part| topologies.iter().map(move |topology| (part, topology)))
        {
            number += 1;
            let head = format!("golden|{of}{family_name}|{}|{}|{part}|", topology.name(), request.every);
            if number % request.share.1 != request.share.0 || previous.lines().any(|line| line.starts_with(&head)) {
                continue;
            }
            let mut rejected = BTreeMap::<String, Vec<String>>::new();
            for (path, why) in checks.chunks(sizes(family_name).0).flat_map(|chunk| compile_chunk(chunk, topology)) {
                let why = why.lines().next().unwrap_or_default().replace('|', "/");
                rejected.entry(why).or_default().push(path);
            }
            let count: usize = rejected.values().map(Vec::len).sum();
            let mut lines = String::new();
            for (why, paths) in &rejected {
                let platform = topology.name();
                let _ = writeln!(
                    lines,
                    "rejected|{of}{family_name}|{platform}|{}|{why}|{}|{}",
                    request.every,
                    paths.len(),
                    paths[0]
                );
            }
            // Last, as it says that the part is done.
            let _ = writeln!(lines, "{head}{}|{}", checks.len() - count, checks.len());
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&request.out).expect("a file");
            file.write_all(lines.as_bytes()).expect("the lines can be written");
            eprintln!(
                "{:>5.0} s  {family_name} {part} for {topology}: {} checks, {count} rejected",
                begun.elapsed().as_secs_f64(),
                checks.len()
            );
        }
    }
    Ok(())
}

/// The paths of programs that do not compile, each with its reason.
fn compile_chunk(checks: &[Check<'_>], topology: &Topology) -> Vec<(String, String)> {
    let types: Vec<Array> =
        checks.iter().flat_map(|c| &c.inputs).map(|x| shape_dtype_struct(x.shape(), x.dtype())).collect();
    let program = jit(|xs: Vec<Array>| -> Result<Vec<Array>> {
        let (mut outs, mut at) = (Vec::new(), 0);
        for check in checks {
            outs.extend((check.run)(&xs[at..at + check.inputs.len()])?);
            at += check.inputs.len();
        }
        Ok(outs)
    });
    let compiled = catch_unwind(AssertUnwindSafe(|| program.lower(types)?.compile_for(topology).map(drop)));
    let why = match compiled {
        Ok(Ok(())) => return Vec::new(),
        Ok(Err(error)) => error.message().to_owned(),
        Err(_) => "a panic".to_owned(),
    };
    match checks {
        [check] => vec![(check.path(), why)],
        _ => {
            let (a, b) = checks.split_at(checks.len() / 2);
            [compile_chunk(a, topology), compile_chunk(b, topology)].concat()
        }
    }
}
