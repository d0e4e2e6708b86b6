//! Comparing with the reference values: results, gradients, tangents and batches.
//!
//! Compiling costs more than running, so the checks of many cases are compiled as one program. Where that fails, it is
//! halved until the checks at fault are alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Instant;

use shardax::prelude::*;
use shardax::stages::CompilerOption;

use super::compare::{differ, is_blind};
use super::quick::{QUICK, is_on_cpu, mostly_quick};
use super::read::ints;
use super::{Case, Fun, Host, family, one_of};

/// Checks in one program: with more of them what the compiler does grows faster than their number.
const CHUNK: usize = 8;

/// Families whose programs take the compiler long, and by how much fewer of their checks are compared. `cargo test`
/// compares every fourth result and every 24th gradient, tangent and batch of the other families; with
/// `SHARDAX_TEST_SLICES=all` all results and every second of the others. `SHARDAX_TEST_GOLDEN_EVERY=1` compares everything.
const SLOW: [(&str, usize); 15] = [
    ("linalg", 3),
    ("special", 3),
    ("matrices", 3),
    ("distributions", 2),
    ("edges", 4),
    ("nn_train", 3),
    ("optimizers", 2),
    ("science", 2),
    ("random", 2),
    ("systematic", 3),
    ("nn_layers", 3),
    ("nn_half", 2),
    ("stats", 4),
    ("scipy", 4),
    ("numpy_options", 3),
];

/// The checks of a family that are compared.
fn slice<'a>(name: &str, checks: Vec<Check<'a>>) -> Vec<Check<'a>> {
    let slow = SLOW.iter().find(|(slow, _)| *slow == name).map(|(_, every)| *every);
    let (results, others) = match std::env::var("SHARDAX_TEST_GOLDEN_EVERY") {
        Ok(every) => (1, every.parse().expect("a number")),
        Err(_) => (one_of(4) * if slow.is_some() { 3 } else { 1 }, one_of(24).max(2) * slow.unwrap_or(1)),
    };
    // Each kind is counted separately, because most cases have the same kinds in the same order: of every fourth check in the
    // list, all would be of one kind.
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let is_chosen = |check: &Check<'a>| {
        let count = counts.entry(check.what.clone()).or_default();
        *count += 1;
        (*count - 1).is_multiple_of(if check.what == "out" { results } else { others })
    };
    checks.into_iter().filter(is_chosen).collect()
}

/// One thing to compute, and what JAX has for it.
#[derive(Clone)]
pub struct Check<'a> {
    pub case: &'a Case,
    pub what: String,
    pub inputs: Vec<Array>,
    pub wanted: Vec<(String, Host)>,
    pub tol: f64,
    pub run: Rc<dyn Fn(&[Array]) -> Result<Vec<Array>> + 'a>,
}

impl Check<'_> {
    pub fn path(&self) -> String {
        format!("{}/{}", self.case.path(), self.what)
    }
}

/// Compares all cases of a family, and fails with all differences.
///
/// `pending` lists paths, or beginnings of paths, `family/case` or `family/case/what`, that are known to fail or to
/// differ, each with the reason. One that passes, or that no case has, is a failure too.
pub fn check_family(name: &'static str, function: fn(&Case) -> Option<Fun>, pending: &[(&str, &str)]) {
    let start = Instant::now();
    if !is_on_cpu() {
        // As in JAX's tests: GPUs and TPUs round operands of float32 otherwise.
        shardax::config::set_default_matmul_precision(Some(shardax::lax::Precision::Highest));
    }
    let cases = family(name);
    let pending: Vec<&str> = pending.iter().map(|(path, _)| *path).filter(|p| belongs(p, name)).collect();
    fn is_pending(path: &str, pending: &Vec<&str>) -> bool {
        pending.iter().any(|p| path.starts_with(p))
    }
    let mut failures = Vec::new();
    let mut met: Vec<&str> = Vec::new();
    let mut passing_pending: Vec<String> = Vec::new();
    let functions: Vec<Option<Fun>> =
        cases.iter().map(|case| catch_unwind(AssertUnwindSafe(|| function(case))).ok().flatten()).collect();

    let mut checks = Vec::new();
    for (case, f) in cases.iter().zip(&functions) {
        match f {
            Some(f) => checks.extend(checks_of(case, f)),
            None if is_pending(&case.path(), &pending) => {
                met.extend(pending.iter().filter(|p| case.path().starts_with(**p)));
            }
            None => failures.push(format!(
                "{}: no function for {}{}: add one to the file {name}.rs of `golden_support`, or of `tests/families` in shardax-nn",
                case.path(),
                case.op,
                case.meta["params"]
            )),
        }
    }
    failures.extend(checks.iter().flat_map(blind));
    let (waiting, ready): (Vec<_>, Vec<_>) = checks.into_iter().partition(|c| is_pending(&c.path(), &pending));
    let ready = slice(name, ready);
    // The whole comparison is of programs as users have them. Without its fusion emitters XLA (xla-cpu-pjrt 0.0.1) rounds
    // conversions to narrow types otherwise; and with all quick options a CNN's losses leave JAX's at the third step, which they
    // do neither without the fusion emitters alone nor with the other two. They also decide where products and sums are joined,
    // and so whether a sum of huge products overflows.
    let whole = std::env::var_os("SHARDAX_TEST_GOLDEN_EVERY").is_some() || matches!(name, "narrow" | "edges");
    for (i, chunk) in ready.chunks(CHUNK).enumerate() {
        if whole {
            let (done, seconds) = (i * CHUNK, start.elapsed().as_secs_f64());
            eprintln!("{name}: {done} of {} checks in {seconds:.1} s, next {}", ready.len(), chunk[0].path());
        }
        let options = match name {
            _ if whole => Vec::new(),
            "nn_train" => QUICK[1..].to_vec(),
            _ => mostly_quick(i),
        };
        failures.extend(run(chunk, &options));
    }
    // Whether a difference is still there takes a program for each, so a slice has every sixteenth.
    let every = if std::env::var_os("SHARDAX_TEST_GOLDEN_EVERY").is_some() { 1 } else { one_of(16) };
    for (i, check) in waiting.iter().enumerate() {
        met.extend(pending.iter().filter(|p| check.path().starts_with(**p)));
        if i.is_multiple_of(every) && run(std::slice::from_ref(check), &[]).is_empty() {
            passing_pending.push(check.path());
        }
    }
    failures.extend(
        pending.iter().filter(|p| !met.contains(p)).map(|p| format!("{p}: pending, but there is no such case")),
    );
    failures.extend(passing_pending.iter().map(|p| format!("{p}: pending, but it passes")));
    eprintln!(
        "{name}: {} cases, {} checks, {} pending, {} failures, {:.1} s",
        cases.len(),
        ready.len(),
        cases.len() - functions.iter().flatten().count() + waiting.len(),
        failures.len(),
        start.elapsed().as_secs_f64()
    );
    assert!(failures.is_empty(), "{} failures in {name}:\n{}", failures.len(), failures.join("\n"));
}

fn belongs(path: &str, family: &str) -> bool {
    path.split('/').next() == Some(family)
}

/// All that a case has values for.
pub fn checks_of<'a>(case: &'a Case, f: &'a Fun) -> Vec<Check<'a>> {
    let tol = case.meta["tol"].as_f64().unwrap_or(0.0);
    let grad_tol = case.meta["grad_tol"].as_f64().unwrap_or(tol);
    let inputs: Vec<Array> = all(case, "in").into_iter().map(|(_, host)| host.array()).collect();
    let ins = inputs.len();
    let floats: Vec<usize> = ints(&case.meta["argnums_float"]).into_iter().map(|i| i as usize).collect();
    let results: Vec<usize> = ints(&case.meta["outs_float"]).into_iter().map(|i| i as usize).collect();

    let mut checks = vec![Check {
        case,
        what: "out".into(),
        inputs: inputs.clone(),
        wanted: all(case, "out"),
        tol,
        run: Rc::new(|xs| f(xs)),
    }];

    // As a function of the differentiated arguments alone, with the differentiated results alone.
    let partial = {
        let (floats, results) = (floats.clone(), results.clone());
        move |xs: &[Array], diff: Vec<Array>| -> Result<Vec<Array>> {
            let mut args = xs.to_vec();
            for (&i, x) in floats.iter().zip(diff) {
                args[i] = x;
            }
            let outs = f(&args)?;
            Ok(results.iter().map(|&i| outs[i].clone()).collect())
        }
    };
    fn pick(xs: &[Array], at: &[usize]) -> Vec<Array> {
        at.iter().map(|&i| xs[i].clone()).collect()
    }

    let cts = all(case, "ct");
    if !cts.is_empty() {
        let (partial, floats) = (partial.clone(), floats.clone());
        checks.push(Check {
            case,
            what: "vjp".into(),
            inputs: inputs.iter().cloned().chain(cts.into_iter().map(|(_, h)| h.array())).collect(),
            wanted: all(case, "vjp"),
            tol: grad_tol,
            run: Rc::new(move |xs| {
                let (xs, cts) = xs.split_at(ins);
                let (_, pull_back) = vjp::<(Vec<Array>,), _>(|d: Vec<Array>| partial(xs, d), pick(xs, &floats))?;
                Ok(pull_back.call(cts.to_vec())?.0)
            }),
        });
    }
    let tangents = all(case, "tan");
    if !tangents.is_empty() {
        let (partial, floats) = (partial.clone(), floats.clone());
        checks.push(Check {
            case,
            what: "jvp".into(),
            inputs: inputs.iter().cloned().chain(tangents.into_iter().map(|(_, h)| h.array())).collect(),
            // Once by `jvp`, once by `linearize`.
            wanted: [all(case, "jvp"), all(case, "jvp")].concat(),
            tol: grad_tol,
            run: Rc::new(move |xs| {
                let (xs, ts) = xs.split_at(ins);
                let of_floats = |d: Vec<Array>| partial(xs, d);
                let (_, tangents) = jvp::<(Vec<Array>,), _>(of_floats, pick(xs, &floats), ts.to_vec())?;
                let (_, linear) = linearize::<(Vec<Array>,), _>(of_floats, pick(xs, &floats))?;
                Ok([tangents, linear.call(ts.to_vec())?].concat())
            }),
        });
    }
    for n in 0.. {
        let prefix = if n == 0 { "batch".to_owned() } else { format!("batch{n}") };
        let axes = &case.meta[format!("{prefix}_in_axes")];
        let Some(axes) = axes.as_array() else { break };
        let axes: Vec<Option<i32>> = axes.iter().map(|a| a.as_i64().map(|a| a as i32)).collect();
        let inputs = (0..ins)
            .map(|i| case.host(&format!("{prefix}/in/{i}")).map_or_else(|| inputs[i].clone(), Host::array))
            .collect();
        checks.push(Check {
            case,
            wanted: all(case, &format!("{prefix}/out")),
            what: prefix,
            inputs,
            tol,
            run: Rc::new(move |xs| vmap(|xs: Vec<Array>| f(&xs)).in_axes((axes.clone(),)).call(xs.to_vec())),
        });
    }
    checks
}

/// The tensors `kind/0`, `kind/1`, … in order, with their keys; numbers may be missing.
fn all(case: &Case, kind: &str) -> Vec<(String, Host)> {
    let count = case.count("ins").max(case.count("outs"));
    (0..count)
        .filter_map(|i| {
            let key = format!("{kind}/{i}");
            case.host(&key).cloned().map(|host| (key, host))
        })
        .collect()
}

/// The parts of a check that cannot fail, because zeros would pass.
fn blind(check: &Check<'_>) -> Vec<String> {
    let blind = check.wanted.iter().filter(|(_, want)| is_blind(want, check.tol));
    blind.map(|(key, _)| format!("{}/{key}: zeros would pass", check.case.path())).collect()
}

/// The differences found by these checks, compiled as one program with these options of XLA.
pub fn run(checks: &[Check<'_>], options: &[(&'static str, CompilerOption)]) -> Vec<String> {
    let inputs: Vec<Array> = checks.iter().flat_map(|c| c.inputs.iter().cloned()).collect();
    let program = jit(|xs: Vec<Array>| -> Result<Vec<Array>> {
        let (mut outs, mut at) = (Vec::new(), 0);
        for check in checks {
            let found = (check.run)(&xs[at..at + check.inputs.len()])?;
            at += check.inputs.len();
            if found.len() != check.wanted.len() {
                panic!("{} results, but JAX has {}", found.len(), check.wanted.len());
            }
            outs.extend(found);
        }
        Ok(outs)
    })
    .compiler_options(options.iter().cloned());
    let results = catch_unwind(AssertUnwindSafe(|| program.call(inputs)));
    let failure = match results {
        Ok(Ok(outs)) => {
            let mut outs = outs.into_iter();
            let mut failures = Vec::new();
            for check in checks {
                for (key, want) in &check.wanted {
                    let found = outs.next().map_or(Err("no result".to_owned()), |out| differ(&out, want, check.tol));
                    failures.extend(found.err().map(|e| format!("{}/{key}: {e}", check.case.path())));
                }
            }
            return failures;
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("panic: {}", text_of(&*panic)),
    };
    match checks {
        [check] => vec![format!("{}: {failure}", check.path())],
        _ => {
            // One of the checks fails: halve the list until its error stands alone.
            let (a, b) = checks.split_at(checks.len() / 2);
            [run(a, options), run(b, options)].concat()
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
}
