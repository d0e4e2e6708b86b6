//! Several processes: one job of each shape runs all cases, and each test looks at what its case did in every process.

mod arrays;
mod convert;
mod equal;
mod explicit;
#[path = "../../../shardax/tests/common/explicit_programs.rs"]
mod explicit_programs;
mod faults;
mod generated;
mod hosts;
#[path = "../../../shardax-mpi/tests/common/mod.rs"]
mod launch;
mod maps;
mod programs;
#[path = "../../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
mod values;

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::UnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};

use launch::{CASE, job, launchers, run};
use quick::QUICK;
use shardax::prelude::*;

/// Processes, and devices of each. A slice of the tests starts only the first job; the examples start one of four processes.
const JOBS: [(usize, usize); 3] = [(2, 2), (4, 1), (4, 2)];

/// The jobs that this run starts.
fn jobs() -> &'static [(usize, usize)] {
    if quick::is_complete() { &JOBS } else { &JOBS[..1] }
}

/// Tells this program that it is a process of a job.
const JOB: &str = "SHARDAX_TEST_JOB";
/// The folder in which the processes of a job write the outcomes of their cases.
const FOLDER: &str = "SHARDAX_TEST_FOLDER";

/// The reports of a job's processes about each case.
type Said = BTreeMap<String, Vec<String>>;

/// A test of which every process of every job does the same: here the jobs are started, and looked at; in their
/// processes, where this program runs the same tests one by one, it is done.
#[track_caller]
fn everywhere<F: FnOnce() -> Result<()> + UnwindSafe>(case: F) {
    let name = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    if std::env::var_os(JOB).is_none() {
        return passes(name);
    }
    static JOIN: Once = Once::new();
    JOIN.call_once(|| {
        assert!(shardax::distributed::initialize().unwrap());
        config::set_compiler_options(QUICK);
    });
    let text = match std::panic::catch_unwind(case) {
        Ok(Ok(())) => "ok".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
        }
    };
    // The launcher would end the others when this process failed.
    let report = folder().join(process_index().to_string());
    let mut file = std::fs::File::options().append(true).create(true).open(report).unwrap();
    writeln!(file, "{name}\t{}", text.replace('\n', "\\n")).unwrap();
}

#[track_caller]
fn passes(case: &str) {
    static RUNS: OnceLock<Vec<Vec<(PathBuf, Said)>>> = OnceLock::new();
    // The jobs run once for all tests, and concurrently, because each test needs all of them.
    let runs = RUNS.get_or_init(|| {
        let only = std::env::var("SHARDAX_TEST_JOB_CASE").ok();
        let only = only.as_deref();
        let runs = std::thread::scope(|scope| {
            let start_job = |&(processes, devices)| {
                scope.spawn(move || {
                    let run_with = |l: PathBuf| (l.clone(), start(&l, processes, devices, only));
                    launchers().into_iter().map(run_with).collect()
                })
            };
            // All jobs start before the first is joined.
            let running: Vec<_> = jobs().iter().map(start_job).collect();
            let join = |job: std::thread::ScopedJoinHandle<'_, _>| {
                job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        for folder in equal::made() {
            let _ = std::fs::remove_dir_all(folder);
        }
        runs
    });
    for (run, (processes, devices)) in runs.iter().zip(jobs()) {
        for (launcher, said) in run {
            let outputs = said.get(case).cloned().unwrap_or_default();
            let wrong: Vec<String> = (0..*processes)
                .filter(|&rank| outputs.get(rank).map(String::as_str) != Some("ok"))
                .map(|rank| {
                    format!("process {rank}: {}", outputs.get(rank).map_or("did not come so far", String::as_str))
                })
                .collect();
            assert!(
                wrong.is_empty(),
                "{case} in {processes} processes of {devices} devices under {}:\n{}\n{}",
                launcher.display(),
                wrong.join("\n"),
                OUTPUT.get().map_or("", String::as_str)
            );
        }
    }
}

static OUTPUT: OnceLock<String> = OnceLock::new();

/// Runs all cases in a job, or one alone. A job that ended early runs once more: what ended it, such as the machine's lack
/// of memory, may have nothing to do with the cases, and how it ended is printed.
fn start(launcher: &PathBuf, processes: usize, devices: usize, only: Option<&str>) -> Said {
    fn failed(text: String) -> BTreeMap<String, Vec<String>> {
        let _ = OUTPUT.set(text);
        Said::new()
    }
    let expected = match equal::expected(processes * devices) {
        Ok(folder) => folder,
        Err(text) => return failed(text.clone()),
    };
    let attempt = || try_start(launcher, processes, devices, expected, only);
    attempt().unwrap_or_else(|end| {
        // Not `eprintln!`, which is hidden where the tests pass.
        let text = format!("a job of {processes} processes of {devices} devices ended early and runs again: {end}\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
        attempt().unwrap_or_else(|again| failed(format!("it ended early twice: {end}\nand {again}")))
    })
}

/// One attempt of [`start`], or how it ended.
fn try_start(
    launcher: &PathBuf,
    processes: usize,
    devices: usize,
    expected: &Path,
    only: Option<&str>,
) -> std::result::Result<Said, String> {
    let folder = std::env::temp_dir().join(format!("shardax-processes-{}-{processes}x{devices}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let variables = [
        (JOB, "yes"),
        (FOLDER, folder.to_str().unwrap()),
        (equal::EXPECTED, expected.to_str().unwrap()),
        ("SHARDAX_NUM_CPU_DEVICES", &devices.to_string()),
        ("SHARDAX_COMPILATION_CACHE_DIR", folder.join("cache").to_str().unwrap()),
        ("SHARDAX_COLLECTIVE_TIMEOUT", "30"),
        ("SHARDAX_COLLECTIVE_PATIENCE", "10"),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut program = vec!["--test-threads=1", "--nocapture", "--skip", "faults::"];
    // A single case has as much time as it needs, because it can have many launches or programs.
    program.extend(only);
    let outcome = run(launcher, &format!("{processes}x{devices}"), &program, processes, &variables);
    let mut outputs = Said::new();
    for rank in 0..processes {
        for line in std::fs::read_to_string(folder.join(rank.to_string())).unwrap_or_default().lines() {
            let (case, what) = line.split_once('\t').unwrap_or((line, ""));
            let entry = outputs.entry(case.to_owned()).or_default();
            entry.resize(rank, "did not come so far".to_owned());
            entry.push(what.replace("\\n", "\n"));
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    if outcome.success { Ok(outputs) } else { Err(format!("{}\nits output:\n{}", outcome.end, outcome.text)) }
}

/// The program of a process whose job has a fault; nothing when the tests run.
#[test]
fn child() {
    if let Ok(case) = std::env::var(CASE)
        && let Some(fault) = case.strip_prefix("fault-")
        && let Err(error) = faults::child(fault)
    {
        eprintln!("{error}");
        std::process::exit(3);
    }
}

/// The folder of this process's job.
fn folder() -> PathBuf {
    Path::new(&std::env::var_os(FOLDER).unwrap()).to_owned()
}

/// Number of devices of each process.
fn each() -> usize {
    device_count() / process_count()
}

/// A mesh of one axis over all devices.
fn line() -> Result<Mesh> {
    make_mesh([("x", device_count())]).map(|mesh| mesh.auto())
}

/// A mesh of processes and the devices of each.
fn grid() -> Result<Mesh> {
    make_mesh([("p", process_count()), ("d", each())]).map(|mesh| mesh.auto())
}

/// `0, 1, 2, …` split over all devices.
fn counted(n: usize) -> Result<Array> {
    make_array_from_callback([n], DType::F32, &NamedSharding::new(&line()?, P!["x"]), |index| {
        Ok(arange(index[0].start as i32..index[0].end as i32).astype(DType::F32))
    })
}

/// The whole of an array, on this process.
fn read(array: &Array) -> Result<Vec<f32>> {
    shardax::multihost::process_allgather_tiled(array)?.to_vec()
}

#[track_caller]
fn fails<T>(result: Result<T>, with: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for text in with {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}
