//! What transformations share: tracing a function on flattened arguments, and running a transformation at once
//! when nothing is being traced.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::array::Array;
use crate::error::Result;
use crate::function::{Function, IntoArgs};
use crate::primitive::Primitive;
use crate::primitive::held::drop_unused_captures;
use crate::program::trace::{self, Known, Traced, bind_at, check_usable, is_tracing, trace};
use crate::program::{Aval, Program};
use crate::runtime::eager;
use crate::spmd::context::with_arguments;
use crate::tree::{Flat, Tree, TreeDef};

/// A function on flattened trees.
pub(crate) type FlatFn<'a> = &'a dyn Fn(&Flat) -> Result<Flat>;

/// `f` on the flattened tuple of its arguments.
pub(crate) fn flat_fn<Args: Tree, F: Function<Args>>(f: &F) -> impl Fn(&Flat) -> Result<Flat> + '_ {
    move |flat| Ok(Flat::of(&f.apply(flat.build::<Args>()?)?))
}

/// Traces `f` on inputs of these types; also returns the structure of its result.
pub(crate) fn trace_flat(def: &TreeDef, avals: &[Aval], f: FlatFn<'_>) -> Result<(Traced, TreeDef)> {
    let mut out_def = TreeDef::default();
    let traced = trace(avals, |args| {
        let out = f(&Flat { leaves: args.into(), def: def.clone() })?;
        out_def = out.def;
        Ok(out.leaves.into_vec())
    })?;
    Ok((traced, out_def))
}

/// The same, when these are the arguments: their values can be read while the function is traced.
pub(crate) fn trace_known(def: &TreeDef, avals: &[Aval], known: Known, f: FlatFn<'_>) -> Result<(Traced, TreeDef)> {
    let mut out_def = TreeDef::default();
    let traced = trace::trace_known(known, avals, |args| {
        let out = f(&Flat { leaves: args.into(), def: def.clone() })?;
        out_def = out.def;
        Ok(out.leaves.into_vec())
    })?;
    Ok((traced, out_def))
}

/// The program that `f` is traced to on arguments like these (JAX's `make_jaxpr`). Arrays that `f` captures come first
/// among its inputs.
///
/// ```
/// # use shardax::prelude::*;
/// let program = make_program(|x: Array| x.sin() * 2.0, array([1.0f32, 2.0]))?;
/// assert_eq!(program.eqns().len(), 2);
/// println!("{program}");
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn make_program<Args: Tree, F: Function<Args>>(f: F, args: impl IntoArgs<Args>) -> Result<Program> {
    let flat = Flat::of(&args.into_args());
    Ok(trace_flat(&flat.def, &types_of(&flat)?, &flat_fn(&f))?.0.program)
}

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

/// The types of the leaves, each checked to be usable.
pub(crate) fn avals_of(flat: &Flat) -> Result<Vec<Aval>> {
    avals_if(flat, Array::check)
}

/// The types of the leaves, which may stand for their types alone.
pub(crate) fn types_of(flat: &Flat) -> Result<Vec<Aval>> {
    avals_if(flat, |leaf| if leaf.is_only_type() { Ok(()) } else { leaf.check() })
}

fn avals_if(flat: &Flat, check: impl Fn(&Array) -> Result<()>) -> Result<Vec<Aval>> {
    let paths = || flat.def.paths();
    flat.leaves
        .iter()
        .enumerate()
        .map(|(i, leaf)| {
            check(leaf).map_err(|e| e.context(format!("argument{}", paths().get(i).cloned().unwrap_or_default())))?;
            Ok(leaf.aval())
        })
        .collect()
}

/// Runs `f`, which applies operations to arrays: in the trace in effect, or, where there is none, traced whole and
/// compiled as one program.
pub(crate) fn run(name: &str, flat: &Flat, f: FlatFn<'_>) -> Result<Flat> {
    if is_tracing() {
        return f(flat);
    }
    let avals = avals_of(flat)?;
    let known = Known::Whole(flat.leaves.to_vec());
    let (traced, def) = with_arguments(&flat.leaves, || trace_known(&flat.def, &avals, known, f))?;
    let leaves = eager::run_traced(name, &traced, &flat.leaves, &|| flat.def.paths())?.into();
    Ok(Flat { leaves, def })
}

/// Traces `f` into a program, and records the primitive made of it: of the program, of how many of its inputs were
/// captured (they come first), and of the structure of the result.
pub(crate) fn record(
    flat: &Flat,
    f: FlatFn<'_>,
    at: &'static Location<'static>,
    primitive: impl FnOnce(Program, usize, &TreeDef) -> Arc<dyn Primitive>,
) -> Result<Flat> {
    let (traced, def) = trace_flat(&flat.def, &avals_of(flat)?, f)?;
    let traced = drop_unused_captures(traced);
    let primitive = primitive(traced.program, traced.captures.len(), &def);
    let operands = [&traced.captures[..], &flat.leaves].concat();
    let outs = bind_at(primitive, &operands, at);
    outs.iter().try_for_each(check_usable)?;
    Ok(Flat { leaves: outs.into_iter().collect(), def })
}
