//! What transformations share: tracing a function on flattened arguments, and running a transformation at once
//! when nothing is being traced.

use crate::error::Result;
use crate::function::Function;
use crate::program::Aval;
use crate::program::trace::{Traced, is_tracing, trace};
use crate::runtime::eager;
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

/// The types of the leaves, each checked to be usable.
pub(crate) fn avals_of(flat: &Flat) -> Result<Vec<Aval>> {
    let paths = || flat.def.paths();
    flat.leaves
        .iter()
        .enumerate()
        .map(|(i, leaf)| {
            leaf.check().map_err(|e| e.context(format!("argument {}", paths().get(i).cloned().unwrap_or_default())))?;
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
    let (traced, def) = trace_flat(&flat.def, &avals, f)?;
    let leaves = eager::run_traced(name, &traced, &flat.leaves)?.into();
    Ok(Flat { leaves, def })
}
