//! Compiled execution of a transformation outside of any trace.

use std::any::Any;
use std::cell::RefCell;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::callable::{CallConvention, Callable};
use super::concrete_inputs::WholeArrays;
use super::dispatch::{self, Cache};
use super::eager::LoadedTrace;
use super::execute::LoadedProgram;
use super::load::Request;
use super::{counts, eager};
use crate::core::program::trace::is_tracing;
use crate::core::tree::Flat;
use crate::dependence::recorded;
use crate::error::{Result, err};
use crate::interpret::flat::with_arguments;
use crate::interpret::flat::{FlatFn, avals_of, trace_concrete};
use crate::local::{Guard, Guarded, GuardedKey};
use crate::ops::checkify::{Checks, Errors, discharge};
use crate::ops::state::lift::{Lifted, lift};

// `disable_jit` is for debugging one function, so it applies to one thread.
thread_local! {
    static JIT_DISABLED: Guarded<()> = const { Guarded::new() };
}

/// Enables `jit` again when dropped.
#[must_use = "jit is disabled only while the guard lives"]
pub struct DisableJit {
    _guard: Guard<()>,
}

/// Makes `jit` execute its function operation by operation on this thread until the guard is dropped, and makes `pmap`
/// pass the values of each device, so that you can read and print values inside.
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
    DisableJit { _guard: JIT_DISABLED.guard(()) }
}

pub(crate) fn is_jit_disabled() -> bool {
    JIT_DISABLED.with_last(|guard| guard.is_some())
}

/// Runs `f`, which applies operations to arrays. If a trace is in effect, `f` runs in it; otherwise `f` is traced and
/// compiled as one program.
pub(crate) fn run(name: &str, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    if is_tracing() {
        return f(flat);
    }
    let callable = build(name, flat, &|flat| Ok((f(flat)?, None)), Request::load_cached)?;
    Ok(Flat { leaves: callable.call(flat)?, def: callable.convention.out_def })
}

/// Like [`run`], for an `f` that is derived from a function of this identity with these options. If the function
/// captures nothing, its program is cached and found again by the types of the arguments, unless tracing read their
/// values.
pub(crate) fn run_shared(
    name: &str,
    (identity, options): (Option<u64>, impl Hash),
    flat: &Flat,
    f: FlatFn<'_>,
) -> Result<Flat> {
    if identity.is_none() || is_tracing() || is_jit_disabled() {
        return run(name, flat, f);
    }
    let cache = dispatch::shared(identity, (name, options));
    let entry = cache.find(name, flat, &|flat| build(name, flat, &|flat| Ok((f(flat)?, None)), Request::load))?;
    Ok(Flat { leaves: entry.callable.call(flat)?, def: entry.callable.convention.out_def.clone() })
}

/// Like [`run`], with this cache, which can be dropped with the next call: the programs are cached in the same way as
/// by [`run`].
pub(crate) fn run_in(cache: &Cache, name: &str, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    if is_tracing() || is_jit_disabled() {
        return run(name, flat, f);
    }
    let entry =
        cache.find(name, flat, &|flat| build(name, flat, &|flat| Ok((f(flat)?, None)), Request::load_cached))?;
    Ok(Flat { leaves: entry.callable.call(flat)?, def: entry.callable.convention.out_def.clone() })
}

/// Auxiliary data of a trace.
type Aux = Option<Arc<dyn Any + Send + Sync>>;
type FlatFnAux<'a> = &'a dyn Fn(&Flat) -> Result<(Flat, Aux)>;

/// Like [`run_shared`], for a function with auxiliary data, which must not depend on the arguments' values.
pub(crate) fn run_shared_with_aux<S: Send + Sync + 'static>(
    name: &str,
    (identity, options): (Option<u64>, impl Hash),
    flat: &Flat,
    f: &dyn Fn(&Flat) -> Result<(Flat, Arc<S>)>,
) -> Result<(Flat, Arc<S>)> {
    if is_tracing() {
        return f(flat);
    }
    let erased = |flat: &Flat| -> Result<(Flat, Aux)> { f(flat).map(|(out, aux)| (out, Some(aux as _))) };
    // Both variables extend the lifetime of the callable beyond the match.
    let private;
    let cached;
    let callable = if identity.is_none() || is_jit_disabled() {
        private = build(name, flat, &erased, Request::load_cached)?;
        &private
    } else {
        let cache = dispatch::shared(identity, (name, options));
        cached = cache.find(name, flat, &|flat| build(name, flat, &erased, Request::load))?;
        &cached.callable
    };
    let out = Flat { leaves: callable.call(flat)?, def: callable.convention.out_def.clone() };
    let aux = callable.aux.clone().and_then(|aux| aux.downcast().ok());
    let aux = aux.ok_or_else(|| err!(Runtime, "internal error: {name} has no auxiliary data; please report this"))?;
    Ok((out, aux))
}

/// Traces `f` with the values of its arguments, compiles the program, in stages if it is long, and records what the trace read.
fn build(
    name: &str,
    flat: &Flat,
    f: FlatFnAux<'_>,
    load: impl Fn(Request) -> Result<Arc<LoadedProgram>>,
) -> Result<Callable> {
    let begun = Instant::now();
    let avals = avals_of(flat)?;
    let inputs = Rc::new(WholeArrays(flat.leaves.to_vec()));
    let aux_slot = RefCell::new(None);
    let traced = &|flat: &Flat| {
        let (out, aux) = f(flat)?;
        aux_slot.replace(aux);
        Ok(out)
    };
    let (result, dependence) =
        recorded(|| with_arguments(&flat.leaves, || trace_concrete(inputs, &flat.def, &avals, traced)));
    let (traced, out_def) = result?;
    counts::traced(name, begun);
    let (traced, refs) = lift(&traced)?.unwrap_or_else(|| (traced, Lifted::default()));
    // In eager execution, checks fail immediately.
    let (traced, errors) = match discharge(&traced, Checks::USER)? {
        Some(checked) => (checked.traced, checked.errors),
        None => (traced, Errors::none()),
    };
    let LoadedTrace { loaded, stages, committed } =
        eager::load_traced(name, &traced, &flat.leaves, &|| flat.def.paths(), load)?;
    let captures = traced.captures.iter().map(|capture| capture.concrete()).collect::<Result<_>>()?;
    let convention = CallConvention { captures, refs, kept: (0..flat.leaves.len()).collect(), out_def, committed };
    let reusable = !dependence.values;
    Ok(Callable { loaded, stages, convention, errors, reusable, aux: aux_slot.into_inner() })
}
