//! The values that a gradient keeps between its forward and backward pass.

use std::collections::HashSet;
use std::fmt;
use std::panic::Location;

use crate::core::function::{Function, IntoArgs};
use crate::core::program::trace::trace;
use crate::core::program::{Atom, Aval, Program, Var};
use crate::core::tree::{Flat, Tree};
use crate::error::{AtCaller, Result};
use crate::interpret::ad;
use crate::interpret::flat::{FlatFn, flat_fn, trace_flat, types_of};
use crate::ops::primitive::checkpoint::Name;
use crate::source;

/// A value that the gradient of a function keeps; see [`saved_residuals`].
///
/// It displays as a line such as `float32[5] output of sin from src/main.rs:12:15`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SavedResidual {
    /// Its type. [`Aval::byte_size`] is the memory that it takes.
    pub aval: Aval,
    /// Where it comes from.
    pub origin: ResidualOrigin,
}

/// The origin of a [`SavedResidual`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResidualOrigin {
    /// An argument, with its path in the tuple of arguments: `[0]` or `[1].kernel`.
    Argument(String),
    /// An array that the function captures.
    Captured,
    /// A number in the program.
    Constant,
    /// A value that [`checkpoint_name`](crate::checkpoint_name) names, and the line that names it.
    Named(String, &'static Location<'static>),
    /// The result of an operation, and the line that calls it.
    Output(&'static str, &'static Location<'static>),
}

impl fmt::Display for SavedResidual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.aval)?;
        match &self.origin {
            ResidualOrigin::Argument(path) => write!(f, "from the argument {path}"),
            ResidualOrigin::Captured => write!(f, "from a captured array"),
            ResidualOrigin::Constant => write!(f, "from a constant"),
            ResidualOrigin::Named(name, line) => write!(f, "named {name:?} from {line}"),
            ResidualOrigin::Output(operation, line) => write!(f, "output of {operation} from {line}"),
        }
    }
}

/// Lists the values that the gradient of `f` keeps in memory between its forward and backward pass, each once (JAX's
/// `ad_checkpoint.saved_residuals`). Nothing is computed, so the arguments can be [`shape_dtype_struct`](crate::shape_dtype_struct)s.
///
/// Use it to see the effect of [`checkpoint`](crate::checkpoint()) and its policies before you run a large model. XLA can keep fewer values,
/// because it computes cheap ones again.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::ad_checkpoint::saved_residuals;
/// fn layer(w: Array, x: Array) -> Array {
///     x.matmul(&w).tanh()
/// }
/// let (w, x) = (eye(4), ones([3, 4]));
/// let saved = saved_residuals(layer, (&w, &x))?;
/// let lines: Vec<String> = saved.iter().map(ToString::to_string).collect();
/// assert!(lines.contains(&"float32[4,4] from the argument [0]".to_owned()));
/// assert_eq!(saved.len(), 3);
/// // With `checkpoint`, only the arguments are kept.
/// assert_eq!(saved_residuals(checkpoint(layer), (&w, &x))?.len(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails while it is traced, or if it calls an operation that has no derivative.
#[track_caller]
pub fn saved_residuals<Args: Tree, F: Function<Args>>(f: F, args: impl IntoArgs<Args>) -> Result<Vec<SavedResidual>> {
    let _line = source::enter();
    residuals_of(&Flat::from_arguments(&args.into_args()), &flat_fn(&f)).at_caller()
}

/// Prints the result of [`saved_residuals`], a line for each value (JAX's `ad_checkpoint.print_saved_residuals`).
///
/// ```
/// # use shardax::prelude::*;
/// // float32[3] output of cos from src/main.rs:2:65
/// shardax::ad_checkpoint::print_saved_residuals(|x: Array| x.sin(), ones(3))?;
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for the same reasons as [`saved_residuals`].
#[track_caller]
pub fn print_saved_residuals<Args: Tree, F: Function<Args>>(f: F, args: impl IntoArgs<Args>) -> Result<()> {
    for residual in saved_residuals(f, args)? {
        println!("{residual}");
    }
    Ok(())
}

fn residuals_of(flat: &Flat, f: FlatFn<'_>) -> Result<Vec<SavedResidual>> {
    let avals = types_of(flat)?;
    let (function, _) = trace_flat(&flat.def, &avals, f)?;
    let capture_count = function.captures.len();
    let is_differentiable = |aval: &Aval| aval.dtype.is_inexact();
    let nonzero: Vec<bool> = function
        .program
        .in_avals()
        .enumerate()
        .map(|(i, aval)| i >= capture_count && is_differentiable(aval))
        .collect();
    let in_avals: Vec<Aval> = function.program.in_avals().cloned().collect();
    let program = ad::merged_if_nested(function.program);
    let forward = trace(&in_avals, |primals| Ok(ad::linearize(&program, primals, &nonzero)?.1.residuals))?;
    // Arrays that the forward pass itself captures come before the inputs of the function.
    let constant_count = forward.captures.len();
    let forward = forward.program.simplified();
    let paths = flat.def.paths();
    let origin_of_input = |position: usize| match position.checked_sub(constant_count + capture_count) {
        Some(argument) => ResidualOrigin::Argument(paths.get(argument).cloned().unwrap_or_default()),
        None if position < constant_count => ResidualOrigin::Constant,
        None => ResidualOrigin::Captured,
    };
    let mut listed = HashSet::new();
    let residuals = forward.outputs.iter().filter_map(|output| match output {
        Atom::Literal { .. } => None,
        Atom::Var(var) if !listed.insert(var.0) => None,
        Atom::Var(var) => {
            let aval = forward.avals.get(var.0 as usize)?.clone();
            let origin = match forward.inputs.iter().position(|input| input.0 == var.0) {
                Some(position) => origin_of_input(position),
                None => origin_of_result(&forward, *var)?,
            };
            Some(SavedResidual { aval, origin })
        }
    });
    Ok(residuals.collect())
}

/// The origin of a value that an equation defines.
fn origin_of_result(program: &Program, var: Var) -> Option<ResidualOrigin> {
    let eqn = program.eqns.iter().find(|eqn| eqn.outputs.iter().any(|output| output.0 == var.0))?;
    Some(match eqn.primitive.as_any().downcast_ref::<Name>() {
        Some(named) => ResidualOrigin::Named(named.name.clone(), eqn.source),
        None => ResidualOrigin::Output(eqn.primitive.name(), eqn.source),
    })
}
