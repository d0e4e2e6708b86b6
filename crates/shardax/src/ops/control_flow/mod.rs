//! Control flow inside traced functions: loops, conditionals, and custom derivatives.
//!
//! A Rust `for` or `if` runs while a function is traced, so it repeats or omits recorded operations. The functions in
//! this module record the loop or the conditional itself. Their closures can capture arrays, concrete or traced.

mod conditionals;
mod custom_jvp;
mod custom_vjp;
mod custom_vjp_logs;
mod custom_vjp_remat;
mod custom_vmap;
mod linear_solve;
mod loops;
mod rule_per_argument;
mod scan;
mod symbolic_zeros;

pub use super::platform_dependent::platform_dependent;
pub(crate) use conditionals::choose;
pub use conditionals::{Branches, cond, switch};
pub use custom_jvp::{CustomJvp, custom_jvp};
pub use custom_vjp::{CustomVjp, NondiffBwd, NondiffFwd, NondiffVjp, custom_vjp};
pub use custom_vjp_logs::LoggingBwd;
pub use custom_vjp_remat::{RematRules, RematVjp};
pub use custom_vmap::{CustomVmap, IntoBatched, SequentialVmap, custom_vmap, sequential_vmap};
pub use linear_solve::{MatVec, TransposeSolve, custom_linear_solve, custom_root};
pub use loops::{IntoPredicate, fori_loop, while_loop};
pub use rule_per_argument::{ArgumentRule, FunctionWithRules, PerArgument, RulePerArgument};
pub(crate) use scan::each;
pub use scan::{AssociativeScanOptions, ScanOptions, associative_scan, map, scan, scan_n};
pub use symbolic_zeros::{CustomVjpPrimal, JvpRule, SymbolicJvp, SymbolicVjp, VjpRules, WithZeros};

use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::sharding_rule::agrees;
use crate::core::tree::{Flat, TreeDef, same_structure};
use crate::dtype::promote;
use crate::error::{Result, err};
use crate::interpret::higher_order::cast_up;
use crate::ops::promotion::convert;
use crate::shape::AxisSet;

/// Describes a loop's carry in errors.
struct Carry<'a> {
    /// The name of the loop function: `scan`, `while_loop`, …
    function: &'a str,
    def: &'a TreeDef,
    /// The key path of each leaf.
    paths: Vec<String>,
}

impl<'a> Carry<'a> {
    fn new(function: &'a str, def: &'a TreeDef) -> Self {
        let paths = def.paths().iter().map(|path| format!("carry{path}")).collect();
        Carry { function, def, paths }
    }

    /// Checks the structure of the body's result, and casts each leaf to vary over the axes of the leaf that it
    /// replaces.
    fn returned(&self, before: &[Array], after: &mut Flat) -> Result<()> {
        same_structure(self.def, &after.def).map_err(|e| {
            e.context(format!(
                "{} body function carry input and carry output must have the same pytree structure, but they differ",
                self.function
            ))
            .help("return a carry of the structure that the body was given")
        })?;
        for (old, new) in before.iter().zip(&mut after.leaves) {
            *new = cast_up(new, &old.vma());
            if new.aval_ref().is_some_and(|aval| aval.sharding.is_none()) {
                *new = new.sharded_as(&old.aval());
            }
        }
        Ok(())
    }

    /// Compares the types of the carry before and after a step.
    ///
    /// If the carry starts from a plain number and the body returns another dtype, returns the types to start from
    /// instead.
    fn check(&self, before: &[Aval], after: &[Aval]) -> Result<Option<Vec<Aval>>> {
        let mut start = before.to_vec();
        let mut changed = false;
        for (old, new) in start.iter_mut().zip(after) {
            if old.weak && old.dtype != new.dtype {
                let (dtype, weak) = promote((old.dtype, true), (new.dtype, new.weak))?;
                changed |= dtype != old.dtype;
                *old = Aval { weak, ..old.with_dtype(dtype) };
            }
            // A carry that starts from host data adopts the sharding that the body returns.
            if old.sharding.is_none() && old.shape == new.shape && new.sharding().is_some_and(|t| !t.is_replicated()) {
                old.sharding = new.sharding.clone();
                changed = true;
            }
        }
        if changed {
            return Ok(Some(start));
        }
        for ((old, new), path) in before.iter().zip(after).zip(&self.paths) {
            if old.dtype == new.dtype && old.shape == new.shape && new.vma.is_subset(&old.vma) && agrees(old, new) {
                continue;
            }
            let (what, help) = if old.dtype != new.dtype {
                ("dtypes", "convert the output with `astype`, or start from a carry of the output's type".to_owned())
            } else if old.shape != new.shape {
                ("shapes", "return a carry of the shape that the body was given".to_owned())
            } else if !agrees(old, new) {
                (
                    "shardings",
                    format!("reshard the output to the sharding of the input: `reshard(.., {})`", spec_text(old)),
                )
            } else {
                let hint = cast_hint(&new.vma.minus(&old.vma), &format!("the initial value of {path}"));
                ("manual axis types", format!("start from a value that varies over the same axes: {hint}"))
            };
            return Err(err!(
                Type,
                "{} body function carry input and carry output must have equal types (body_fun output and input must have \
                 identical types), but they differ: the input {path} has type {old} but the corresponding output has type \
                 {new}, so the {what} do not match",
                self.function
            )
            .help(help));
        }
        Ok(None)
    }
}

/// Formats the spec of a type.
fn spec_text(aval: &Aval) -> String {
    aval.sharding().map_or_else(|| "P![]".to_owned(), |typed| typed.spec().to_string())
}

/// Formats a help that says how to make a value vary over these axes.
fn cast_hint(missing: &AxisSet, what: &str) -> String {
    let names: Vec<&str> = missing.iter().map(|name| name.as_str()).collect();
    let jax = format!("('{}',)", names.join("', '"));
    let axes = format!("\"{}\"", names.join("\", \""));
    let axes = if names.len() == 1 { axes } else { format!("({axes})") };
    format!("apply `pcast(.., {axes})` to {what} (in JAX `pcast(..., {jax}, to='varying')`)")
}

/// Converts arrays to these types if their dtypes differ.
fn converted(arrays: &[Array], avals: &[Aval]) -> Vec<Array> {
    arrays
        .iter()
        .zip(avals)
        .map(|(array, aval)| {
            if array.dtype() == aval.dtype {
                array.sharded_as(aval)
            } else {
                convert(array, aval.dtype, aval.weak).sharded_as(aval)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret::flat::{flat_fn, trace_flat};
    use crate::prelude::*;

    #[test]
    fn loops_and_branches_in_print() -> Result<()> {
        fn nested(x: Array, y: Array) -> Result<Array> {
            let (c, _) = scan_n(|c: Array| (c * &y, ()), x, 3)?;
            cond(c.greater(&y), |c| while_loop(|v: Array| v.greater(1), |v| v - &y, c), |c| -c, c.clone())
        }
        // The captured `y` becomes a constant of the scan and of the loop.
        let flat = Flat::of(&(array(1.0f32), array(2.0f32)));
        let avals: Vec<Aval> = flat.leaves.iter().map(Array::aval).collect();
        let program = trace_flat(&flat.def, &avals, &flat_fn(&nested))?.0.program.simplified();
        let text = "
{ lambda a:f32[] b:f32[].
  c:f32[] = scan[length=3 reverse=false num_consts=1 num_carry=1 unroll=1
    { lambda a:f32[] b:f32[].
      c:f32[] = mul b a
      in (c) }] b a
  d:bool[] = gt c b
  e:i32[] = convert[dtype=int32] d
  f:f32[] = cond[
    { lambda a:f32[] b:f32[].
      c:f32[] = neg b
      in (c) }
    { lambda a:f32[] b:f32[].
      c:f32[] = while[cond_consts=0 body_consts=1
        { lambda a:f32[].
          b:bool[] = gt a 1.0:f32[]
          in (b) }
        { lambda a:f32[] b:f32[].
          c:f32[] = sub b a
          in (c) }] a b
      in (c) }] e b c
  in (f) }";
        assert_eq!(format!("\n{program}"), text);
        Ok(())
    }
}
