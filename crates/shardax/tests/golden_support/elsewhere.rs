//! The cases once more, compiled for TPUs and GPUs that are not there: whether their compilers take every operation.
//! What comes out is not known, as nothing runs.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::prelude::*;

use super::check::{Check, checks_of};
use super::{Case, Fun, family};

/// Checks in one program.
const CHUNK: usize = 64;

/// Those of the table: one slice of small TPUs, one of large ones, and a host of GPUs.
pub fn topologies() -> Result<[Topology; 3]> {
    Ok([Topology::tpu("v5e:2x4")?, Topology::tpu("v5p:2x2x2")?, Topology::gpu(GpuSpec::H100)?])
}

/// What came of a family.
pub struct Found {
    pub checks: usize,
    /// The paths of those that do not compile, by the reason.
    pub refused: BTreeMap<String, Vec<String>>,
}

/// Compiles one check in `every` of a family for the first device of a topology.
pub fn compile(name: &'static str, function: fn(&Case) -> Option<Fun>, topology: &Topology, every: usize) -> Found {
    let cases = family(name);
    let functions: Vec<Option<Fun>> =
        cases.iter().map(|case| catch_unwind(AssertUnwindSafe(|| function(case))).ok().flatten()).collect();
    let all = cases.iter().zip(&functions).filter_map(|(case, f)| Some((case, f.as_ref()?)));
    let checks: Vec<Check<'_>> = all.flat_map(|(case, f)| checks_of(case, f)).step_by(every).collect();
    let mut refused = BTreeMap::<String, Vec<String>>::new();
    for chunk in checks.chunks(CHUNK) {
        for (path, why) in compile_chunk(chunk, topology) {
            refused.entry(why).or_default().push(path);
        }
    }
    Found { checks: checks.len(), refused }
}

/// The paths of those that do not compile, each with its reason.
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
