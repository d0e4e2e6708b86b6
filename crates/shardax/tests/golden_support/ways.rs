//! The cases once more inside of other programs: from a file, in a loop, and recomputed. What comes out is what JAX has.

use std::rc::Rc;
use std::time::Instant;

use shardax::control_flow::map;
use shardax::export::{Exported, export};
use shardax::prelude::*;

use super::check::{Check, checks_of, run};
use super::quick::QUICK;
use super::read::{cases, golden_dir};
use super::{Case, Fun};

/// Checks in one program.
const CHUNK: usize = 16;

type Family = (&'static str, fn(&Case) -> Option<Fun>);
type Run<'a> = Rc<dyn Fn(&[Array]) -> Result<Vec<Array>> + 'a>;

const WAYS: [(&str, fn(Run, &[Array]) -> Result<Vec<Array>>); 3] =
    [("exported", exported), ("looped", looped), ("recomputed", recomputed)];

fn exported(f: Run, xs: &[Array]) -> Result<Vec<Array>> {
    fn types(x: &Array) -> Array {
        shape_dtype_struct(x.shape(), x.dtype())
    }
    let exported = export(|xs: Vec<Array>| f(&xs), xs.iter().map(types).collect::<Vec<_>>())?;
    Exported::<(Vec<Array>,), Vec<Array>>::deserialize(&exported.serialize()?)?.call(xs.to_vec())
}

/// The last of three rounds with the same values.
fn looped(f: Run, xs: &[Array]) -> Result<Vec<Array>> {
    let rounds = xs.iter().map(|x| stack([x, x, x], 0)).collect::<Vec<_>>();
    Ok(map(|xs: Vec<Array>| f(&xs), rounds)?.iter().map(|y| y.get(2)).collect())
}

fn recomputed(f: Run, xs: &[Array]) -> Result<Vec<Array>> {
    checkpoint(|xs: Vec<Array>| f(&xs)).call(xs.to_vec())
}

/// Compares one check in `every` of these families. `known` are beginnings of paths `way/family/case/what` that are known to
/// differ, each with the reason; one that passes fails.
pub fn check_ways(families: &[Family], every: usize, pending: &[(&str, &str)], known: &[(&str, &str)]) {
    let begin = Instant::now();
    let (mut count, mut differ) = (0, Vec::new());
    // Each way runs another part of the checks, unless all are chosen.
    for (name, function) in families {
        let cases = cases(&golden_dir().join(format!("{name}.safetensors")), name);
        let functions: Vec<_> = cases.iter().map(|case| (case, function(case))).collect();
        let checks = functions.iter().filter_map(|(case, f)| Some(checks_of(case, f.as_ref()?))).flatten();
        let checks = checks.filter(|check| !pending.iter().any(|(path, _)| check.path().starts_with(path)));
        let checks: Vec<Check> = checks.filter(|check| !check.inputs.is_empty()).collect();
        for (w, (label, way)) in WAYS.iter().enumerate() {
            let chosen = checks.iter().enumerate().filter(|(i, _)| (i + w).is_multiple_of(every));
            let chosen: Vec<Check> = chosen
                .map(|(_, check)| {
                    let inner = check.run.clone();
                    Check { run: Rc::new(move |xs| way(inner.clone(), xs)), ..check.clone() }
                })
                .collect();
            count += chosen.len();
            for chunk in chosen.chunks(CHUNK) {
                differ.extend(run(chunk, &QUICK).into_iter().map(|failure| format!("{label}/{failure}")));
            }
        }
    }
    eprintln!("other ways: {count} checks, {} differ, {:.1} s", differ.len(), begin.elapsed().as_secs_f64());
    differ.retain(|failure| !known.iter().any(|(path, _)| failure.starts_with(path)));
    assert!(differ.is_empty(), "{} failures:\n{}", differ.len(), differ.join("\n"));
}
