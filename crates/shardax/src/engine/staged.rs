//! Running a transformation at once when nothing is being traced.

use std::cell::Cell;
use std::hash::Hash;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::dispatch::{self, Built};
use super::execute::LoadedProgram;
use super::known::Whole;
use super::load::Request;
use super::{counts, eager};
use crate::core::program::trace::{is_tracing, values_read};
use crate::core::tree::Flat;
use crate::error::Result;
use crate::interpret::flat::with_arguments;
use crate::interpret::flat::{FlatFn, avals_of, trace_known};
use crate::ops::checkify::{Checks, Errors, discharge};

thread_local! {
    static JIT_DISABLED: Cell<usize> = const { Cell::new(0) };
}

/// Lets `jit` compile again, when dropped.
#[must_use = "jit is disabled only while the guard lives"]
pub struct DisableJit(PhantomData<*const ()>);

impl Drop for DisableJit {
    fn drop(&mut self) {
        JIT_DISABLED.set(JIT_DISABLED.get() - 1);
    }
}

/// Makes `jit` call its function operation by operation on this thread while the guard lives, and `pmap` show what each
/// device has, so that values can be read and printed inside.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| -> Result<Array> {
///     let y = x * 2;
///     println!("{y}");
///     Ok(if y.item::<i32>()? > 5 { y } else { -y })
/// });
/// let _values = disable_jit();
/// assert_eq!(f.call(array(3))?.item::<i32>()?, 6);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn disable_jit() -> DisableJit {
    JIT_DISABLED.set(JIT_DISABLED.get() + 1);
    DisableJit(PhantomData)
}

pub(crate) fn is_jit_disabled() -> bool {
    JIT_DISABLED.get() > 0
}

/// Runs `f`, which applies operations to arrays: in the trace in effect, or, where there is none, traced whole and
/// compiled as one program.
pub(crate) fn run(name: &str, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    if is_tracing() {
        return f(flat);
    }
    let Built { loaded, captures, kept, out_def, committed, errors, .. } = build(name, flat, f, Request::load_at_once)?;
    let leaves = loaded.call(&captures, &kept, &flat.leaves, committed)?;
    Ok(Flat { leaves: errors.throw(leaves)?, def: out_def })
}

/// The same for `f` made of a function of type `F` with these options. Of one that captures nothing the program is kept,
/// and found again by the arguments' types, unless their values were read while it was traced.
pub(crate) fn run_known<F>(name: &str, options: impl Hash, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    if size_of::<F>() != 0 || is_tracing() || is_jit_disabled() {
        return run(name, flat, f);
    }
    let cache = dispatch::shared::<F>((name, options));
    let (entry, leaves) = cache.run(name, flat, &|flat| build(name, flat, f, Request::load))?;
    Ok(Flat { leaves: entry.errors.throw(leaves)?, def: entry.out_def.clone() })
}

fn build(
    name: &str,
    flat: &Flat,
    f: FlatFn<'_>,
    load: impl FnOnce(Request) -> Result<Arc<LoadedProgram>>,
) -> Result<Built> {
    let (begun, read) = (Instant::now(), values_read());
    let avals = avals_of(flat)?;
    let known = Rc::new(Whole(flat.leaves.to_vec()));
    let (traced, out_def) = with_arguments(&flat.leaves, || trace_known(known, &flat.def, &avals, f))?;
    counts::traced(name, begun);
    // What is run at once can fail at once.
    let (traced, errors) = match discharge(&traced, Checks::USER)? {
        Some(checked) => (checked.traced, checked.errors),
        None => (traced, Errors::none()),
    };
    let (request, committed) = eager::request_traced(name, &traced, &flat.leaves, &|| flat.def.paths())?;
    let captures = traced.captures.iter().map(|capture| capture.concrete()).collect::<Result<_>>()?;
    let kept = (0..flat.leaves.len()).collect();
    let reusable = values_read() == read;
    Ok(Built { loaded: load(request)?, captures, kept, out_def, committed, errors, reusable })
}
