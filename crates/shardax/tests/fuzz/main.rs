//! Random programs against JAX: `tools/fuzz` makes them with JAX's answers, from the operations of the golden tests;
//! here
//! they run in their modes, and differences are reported by operation and mode, and as Rust source.
//!
//! The committed programs run in `cargo test`, one of twenty; `cargo xtask fuzz` makes and runs more
//! (`SHARDAX_TEST_FUZZ_FILE`).

#[path = "../golden_support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod golden_support;

mod collectives;
mod nests;
mod program;
mod relations;
mod source;
mod states;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use golden_support::compare::{differ, is_blind};
use golden_support::quick::{eight_devices as setup, mostly_quick};
use golden_support::read::cases;
use golden_support::{Case, one_of};
use program::Program;
use shardax::prelude::*;
use shardax::stages::CompilerOption;
use shardax_alloc as _;

/// Programs compiled as one: compilation costs more than all else. Of several devices, fewer.
const TOGETHER: usize = 24;
const TOGETHER_ON_DEVICES: usize = 6;

/// A program that is not what JAX computes.
struct Failure<'a> {
    program: &'a Case,
    /// The operations that may be to blame.
    operations: String,
    what: String,
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/programs.safetensors")
}

/// Committed programs whose results are known to differ, and why. One that passes fails the test.
fn known() -> Vec<(String, String)> {
    golden_support::read::known(&committed().with_file_name("known.txt"))
}

#[test]
fn random_programs_equal_jax() {
    setup();
    let other = std::env::var_os("SHARDAX_TEST_FUZZ_FILE").map(PathBuf::from);
    let (mut known, every) = if other.is_some() { (Vec::new(), 1) } else { (known(), one_of(40)) };
    let cases: Vec<Case> = cases(&other.unwrap_or_else(committed), "fuzz").into_iter().step_by(every).collect();
    known.retain(|(name, _)| every == 1 || cases.iter().any(|case| case.name == *name));
    let start = Instant::now();
    let failures = run_all(&cases);
    let mut wrong: Vec<String> = Vec::new();
    for (name, why) in &known {
        if !failures.iter().any(|f| f.program.name == *name) {
            wrong.push(format!("{name} is known to differ ({why}), but it passes, or there is none"));
        }
    }
    let failures: Vec<Failure> =
        failures.into_iter().filter(|f| !known.iter().any(|(name, _)| f.program.name == *name)).collect();
    report(&cases, &failures, start.elapsed().as_secs_f64());
    // Of a program's reductions, the smallest; of each operation one.
    let mut shown = BTreeMap::new();
    for failure in minimal(&failures) {
        shown.entry((failure.program.op.clone(), failure.operations.clone())).or_insert(failure);
    }
    wrong.extend(shown.values().take(40).map(|f| {
        format!("{} ({}): {}\n\n{}", f.program.name, f.operations, f.what, source::rust(&Program::new(f.program)))
    }));
    assert!(wrong.is_empty(), "{} programs differ from JAX:\n{}", failures.len(), wrong.join("\n\n"));
}

/// Over axes of type `Explicit`: the types of all results are JAX's, and the values those on one device.
#[test]
fn random_programs_of_explicit_types_equal_jax() {
    setup();
    let mut cases = cases(&committed().with_file_name("explicit.safetensors"), "fuzz");
    assert!(cases.len() >= 200 && cases.iter().all(|case| case.op == "explicit"));
    cases = cases.into_iter().step_by(one_of(16)).collect();
    let failures = run_all(&cases);
    let known = golden_support::read::known(&committed().with_file_name("known_explicit.txt"));
    let known: Vec<_> = known.into_iter().filter(|(name, _)| cases.iter().any(|case| case.name == *name)).collect();
    let wrong: Vec<String> = failures
        .iter()
        .filter(|f| !known.iter().any(|(name, _)| f.program.name == *name))
        .map(|f| {
            format!("{} ({}): {}\n\n{}", f.program.name, f.operations, f.what, source::rust(&Program::new(f.program)))
        })
        .collect();
    let passes = known.iter().find(|(name, _)| failures.iter().all(|f| f.program.name != *name));
    assert!(passes.is_none(), "{passes:?} is known to differ, and does not");
    assert!(wrong.is_empty(), "{} programs differ from JAX:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Programs with derivatives, loops, branches, batches and custom rules of smaller programs.
#[test]
fn random_programs_of_nested_transformations_equal_jax() {
    setup();
    let cases = cases(&committed().with_file_name("nested.safetensors"), "fuzz");
    let cases: Vec<Case> = cases.into_iter().step_by(one_of(3)).collect();
    let wrong: Vec<String> = run_all(&cases)
        .iter()
        .map(|f| {
            format!("{} ({}): {}\n\n{}", f.program.name, f.operations, f.what, source::rust(&Program::new(f.program)))
        })
        .collect();
    assert!(wrong.is_empty(), "{} programs differ from JAX:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// `cargo xtask texts` runs it: see `golden_support::texts`.
#[test]
#[ignore = "hashes that a command of its own compares"]
fn texts_of_random_programs() {
    setup();
    let mut texts = golden_support::texts::Texts::new();
    for name in ["programs", "explicit"] {
        for case in &cases(&committed().with_file_name(format!("{name}.safetensors")), "fuzz") {
            let program = Program::new(case);
            let mesh = program.explicit_mesh();
            let _mesh = mesh.as_ref().map(|mesh| set_mesh(mesh).expect("no trace"));
            let arguments = program.placed().expect("arguments");
            texts.add(&format!("fuzz/{name}/{}", case.name), &arguments, &|xs| program.run(xs));
        }
    }
    texts.write();
}

/// One piece of each way; `SHARDAX_TEST_FUZZ_PIECES=0..70` runs these, and `cargo xtask sweep` one after the other.
#[test]
fn programs_compute_the_same_in_every_form() {
    setup();
    let pieces = std::env::var("SHARDAX_TEST_FUZZ_PIECES").ok();
    let pieces = pieces.as_deref().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let cases = relations::programs();
    let sweep = pieces.is_some();
    let (counts, failures) = relations::check(&cases, pieces.unwrap_or(0..relations::WAYS.len()), sweep);
    let blamed: Vec<String> = failures.iter().map(|(way, f)| format!("{way:?} of {}", f.operations)).collect();
    write_report(&counts, &count(blamed), failures.iter().map(|(_, f)| f));
    let wrong: Vec<String> = failures
        .iter()
        .map(|(way, f)| {
            let source = source::rust(&Program::new(f.program));
            format!("{} {way:?} ({}): {}\n\n{source}", f.program.name, f.operations, f.what)
        })
        .collect();
    assert!(wrong.is_empty(), "{} programs differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_wrong_answer_is_found() {
    setup();
    let mut cases = cases(&committed(), "fuzz");
    cases.retain(|case| {
        case.op == "jit" && case.count("ins") == 1 && case.host("out/0").is_some_and(|h| h.bytes.len() > 4)
    });
    cases.truncate(2);
    let bytes = &mut cases[1].tensors.get_mut("out/0").expect("a result").bytes;
    bytes[3] ^= 0x55;
    let failures = run_all(&cases);
    let [failure] = failures.as_slice() else { panic!("{} failures", failures.len()) };
    assert_eq!(failure.program.name, cases[1].name);
    let program = Program::new(failure.program);
    assert_eq!(failure.operations, program.owner(program.results[0]).expect("its step").name());
    let text = source::rust(&program);
    assert!(text.contains("fn main() -> Result<()>") && text.contains("jit(f)"), "{text}");
}

/// Runs the programs on all cores; returns what differs from JAX.
fn run_all(cases: &[Case]) -> Vec<Failure<'_>> {
    let programs: Vec<Program> = cases.iter().map(Program::new).collect();
    let mut groups: Vec<Vec<&Program>> = Vec::new();
    let (alone, together): (Vec<_>, Vec<_>) = programs.iter().partition(|p| p.alone());
    fn several(p: &&Program) -> bool {
        matches!(p.mode, "shard_map" | "explicit")
    }
    let (devices, one): (Vec<_>, Vec<_>) = together.into_iter().partition(several);
    let (explicit, devices): (Vec<_>, Vec<_>) = devices.into_iter().partition(|p| p.mode == "explicit");
    // Programs with the same mesh are compiled together, because compiling one large program takes less time.
    groups.extend(one.chunks(TOGETHER).map(<[_]>::to_vec));
    groups.extend(devices.chunks(TOGETHER_ON_DEVICES).map(<[_]>::to_vec));
    groups.extend(explicit.chunks(TOGETHER_ON_DEVICES).map(<[_]>::to_vec));
    groups.extend(alone.into_iter().map(|p| vec![p]));
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(group) = groups.get(i) else { break };
                    let failures = run(i, group);
                    found.lock().unwrap_or_else(|e| e.into_inner()).extend(failures);
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    found.sort_by(|a, b| a.program.name.cmp(&b.program.name));
    found
}

/// Runs the programs of a group as one, most groups with quick options. Of these about two of 1,000 programs are
/// rounded
/// otherwise: what differs runs once more as users compile it.
fn run<'a>(i: usize, group: &[&Program<'a>]) -> Vec<Failure<'a>> {
    let options = mostly_quick(i);
    let failures = run_with(group, &|group| results(group, &options));
    if options.is_empty() {
        return failures;
    }
    let again = |f: Failure<'a>| run_with(&[&Program::new(f.program)], &|group| results(group, &[]));
    failures.into_iter().flat_map(again).collect()
}

/// The results of programs that run as one.
fn results(group: &[&Program], options: &[(&str, CompilerOption)]) -> Result<Vec<Array>> {
    let mesh = group[0].explicit_mesh();
    let _mesh = mesh.as_ref().map(|mesh| set_mesh(mesh).expect("no trace"));
    let arguments: Vec<Vec<Array>> = group.iter().map(|p| p.placed().expect("arguments")).collect();
    fn all(xs: Vec<Array>, arguments: &Vec<Vec<Array>>, group: &[&Program<'_>]) -> Result<Vec<Array>> {
        let (mut outs, mut at) = (Vec::new(), 0);
        for (program, args) in group.iter().zip(arguments) {
            let made = program.run(&xs[at..at + args.len()])?;
            program.check_types(&made)?;
            at += args.len();
            for (k, ..) in program.wanted() {
                outs.push(made.get(k).cloned().unwrap_or_else(|| panic!("{} results, want {}", made.len(), k + 1)));
            }
        }
        Ok(outs)
    }
    let inputs = arguments.concat();
    let eager = matches!(group, [p] if p.alone());
    if eager {
        all(inputs, &arguments, group)
    } else {
        jit(|xs: Vec<Array>| all(xs, &arguments, group)).compiler_options(options.to_vec()).call(inputs)
    }
}

/// Runs several programs as one. If that fails, the list is halved until only the failing programs remain.
fn run_with<'a>(group: &[&Program<'a>], results: &dyn Fn(&[&Program]) -> Result<Vec<Array>>) -> Vec<Failure<'a>> {
    let failure = match catch_unwind(AssertUnwindSafe(|| results(group))) {
        Ok(Ok(outs)) => {
            let mut outs = outs.into_iter();
            return group.iter().filter_map(|p| compare(p, &mut outs)).collect();
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    match group {
        [] => Vec::new(),
        [program] => {
            let operations = program.steps.iter().map(|s| s.name()).collect::<Vec<_>>().join(" ");
            vec![Failure { program: program.case, operations, what: failure }]
        }
        // Halves the group until only the failing program remains.
        _ => {
            let (a, b) = group.split_at(group.len() / 2);
            let mut found = run_with(a, results);
            found.extend(run_with(b, results));
            found
        }
    }
}

/// The first result that differs.
fn compare<'a>(program: &Program<'a>, outs: &mut impl Iterator<Item = Array>) -> Option<Failure<'a>> {
    let mut first = None;
    for (k, want, tol) in program.wanted() {
        let got = outs.next().expect("a result for each answer");
        let wrong = if is_blind(want, tol) { Err("zeros would pass".to_owned()) } else { differ(&got, want, tol) };
        if let (Err(what), None) = (wrong, &first) {
            let what = format!("result {k}: {what}");
            first = Some(Failure { program: program.case, operations: program.blamed(k), what });
        }
    }
    first
}

/// Of the failures that are reductions of one program, the smallest.
fn minimal<'a, 'b>(failures: &'b [Failure<'a>]) -> Vec<&'b Failure<'a>> {
    let mut smallest: BTreeMap<String, &Failure> = BTreeMap::new();
    fn size(f: &Failure) -> u64 {
        f.program.meta["size"].as_u64().unwrap_or(0)
    }
    for failure in failures {
        let of = failure.program.meta["of"].as_str().unwrap_or(&failure.program.name).to_owned();
        let kept = smallest.entry(of).or_insert(failure);
        if size(failure) < size(kept) {
            *kept = failure;
        }
    }
    smallest.into_values().collect()
}

/// Prints counts by mode, and failures by mode and operation; for `cargo xtask fuzz` also a file
/// (`SHARDAX_TEST_FUZZ_REPORT`).
fn report(cases: &[Case], failures: &[Failure], seconds: f64) {
    let modes = count(cases.iter().map(|c| c.op.clone()));
    let blamed = count(minimal(failures).iter().map(|f| format!("{} of {}", f.program.op, f.operations)));
    eprintln!("{} programs in {seconds:.1} s: {modes:?}", cases.len());
    eprintln!("{} differ from JAX: {blamed:#?}", failures.len());
    write_report(&modes, &blamed, failures.iter());
}

fn count(names: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    names.into_iter().for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// Writes the counts and the names of the failures for `cargo xtask`.
fn write_report<'a, 'b: 'a>(
    modes: &BTreeMap<String, usize>,
    blamed: &BTreeMap<String, usize>,
    failures: impl Iterator<Item = &'a Failure<'b>>,
) {
    if let Some(path) = std::env::var_os("SHARDAX_TEST_FUZZ_REPORT") {
        let lines = modes.iter().map(|(name, n)| format!("mode\t{n}\t{name}\n"));
        let lines = lines.chain(blamed.iter().map(|(name, n)| format!("blamed\t{n}\t{name}\n")));
        let lines = lines.chain(failures.map(|f| format!("failure\t{}\n", f.program.name)));
        std::fs::write(path, lines.collect::<String>()).expect("a report");
    }
}
