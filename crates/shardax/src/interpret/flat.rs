//! Tracing functions on flattened trees, for transformations and control flow.

use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use super::higher_order::drop_unused_captures;
use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs};
use crate::core::primitive::Primitive;
use crate::core::program::trace::{ConcreteInputs, Traced, bind_at, check_usable, trace_with_concrete};
use crate::core::program::{Aval, Program};
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::error::Result;
use crate::sharding::Mesh;
use crate::sharding::context::with_argument_meshes;

/// A function on flattened trees.
pub(crate) type FlatFn<'a> = &'a dyn Fn(&Flat) -> Result<Flat>;

/// Converts `f` to a function on the flattened tuple of its arguments.
pub(crate) fn flat_fn<Args: Tree, F: Function<Args>>(f: &F) -> impl Fn(&Flat) -> Result<Flat> + '_ {
    move |flat| Ok(Flat::of(&f.apply(flat.build::<Args>()?)?))
}

/// Traces `f` on inputs of these types. Also returns the structure of its result.
pub(crate) fn trace_flat(def: &TreeDef, avals: &[Aval], f: FlatFn<'_>) -> Result<(Traced, TreeDef)> {
    trace_with(None, def, avals, f)
}

/// Like [`trace_flat`], with concrete arguments whose values can be read during tracing.
pub(crate) fn trace_concrete(
    concrete: Rc<dyn ConcreteInputs>,
    def: &TreeDef,
    avals: &[Aval],
    f: FlatFn<'_>,
) -> Result<(Traced, TreeDef)> {
    trace_with(Some(concrete), def, avals, f)
}

fn trace_with(
    concrete: Option<Rc<dyn ConcreteInputs>>,
    def: &TreeDef,
    avals: &[Aval],
    f: FlatFn<'_>,
) -> Result<(Traced, TreeDef)> {
    let mut out_def = TreeDef::default();
    let traced = trace_with_concrete(concrete, avals, |args| {
        let out = f(&Flat { leaves: args.into(), def: def.clone() })?;
        out_def = out.def;
        Ok(out.leaves.into_vec())
    })?;
    Ok((traced, out_def))
}

/// Traces `f` on arguments like these and returns the program (JAX's `make_jaxpr`). The first inputs are the arrays
/// that `f` captures.
///
/// ```
/// # use shardax::prelude::*;
/// let program = make_program(|x: Array| x.sin() * 2.0, array([1.0f32, 2.0]))?;
/// assert_eq!(program.eqns().len(), 2);
/// println!("{program}");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails while it is traced.
pub fn make_program<Args: Tree, F: Function<Args>>(f: F, args: impl IntoArgs<Args>) -> Result<Program> {
    let flat = Flat::from_arguments(&args.into_args());
    Ok(trace_flat(&flat.def, &types_of(&flat)?, &flat_fn(&f))?.0.program)
}

/// The types of the leaves. Fails if a leaf cannot be used.
pub(crate) fn avals_of(flat: &Flat) -> Result<Vec<Aval>> {
    avals_if(flat, Array::check)
}

/// The types of the leaves. Leaves can be arrays without values.
pub(crate) fn types_of(flat: &Flat) -> Result<Vec<Aval>> {
    avals_if(flat, |leaf| if leaf.is_only_type() { Ok(()) } else { leaf.check() })
}

fn avals_if(flat: &Flat, check: impl Fn(&Array) -> Result<()>) -> Result<Vec<Aval>> {
    flat.leaves
        .iter()
        .enumerate()
        .map(|(i, leaf)| {
            check(leaf).map_err(|e| {
                let path = flat.def.paths().get(i).cloned().unwrap_or_default();
                e.context(format!("argument{path}"))
            })?;
            Ok(leaf.aval())
        })
        .collect()
}

/// Traces `f` into a program, and records the primitive that `primitive` creates from the program, the number of
/// captured inputs (they come first), and the structure of the result.
pub(crate) fn record(
    flat: &Flat,
    f: FlatFn<'_>,
    at: &'static Location<'static>,
    primitive: impl FnOnce(Program, usize, &TreeDef) -> Result<Arc<dyn Primitive>>,
) -> Result<Flat> {
    let (traced, def) = trace_flat(&flat.def, &avals_of(flat)?, f)?;
    let traced = drop_unused_captures(traced);
    let primitive = primitive(traced.program, traced.captures.len(), &def)?;
    let operands = [&traced.captures[..], &flat.leaves].concat();
    let outs = bind_at(primitive, &operands, at);
    outs.iter().try_for_each(check_usable)?;
    Ok(Flat { leaves: outs.into_iter().collect(), def })
}

/// Runs `f`, which traces a function on these arguments. Abstract meshes are resolved to the meshes of the arguments.
pub(crate) fn with_arguments<R>(arguments: &[Array], f: impl FnOnce() -> R) -> R {
    with_argument_meshes(arguments.iter().filter_map(argument_mesh), f)
}

fn argument_mesh(argument: &Array) -> Option<Mesh> {
    let mesh = match argument.concrete_ref() {
        Some(c) => c.sharding.as_named()?.mesh().clone(),
        None => argument.committed_sharding()?.as_named()?.mesh().clone(),
    };
    Some(mesh)
}
