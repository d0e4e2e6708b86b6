//! `custom_jvp`: a program with a user-defined derivative rule.

use std::any::TypeId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{in_place, in_place_thread_state};
use crate::core::array::Array;
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{Traced, check_usable, trace};
use crate::core::program::{Aval, Program};
use crate::core::sharding_rule::agrees;
use crate::core::tree::TreeDef;
use crate::error::{Error, ErrorKind, Result, err};
use crate::interpret::ad::{backward, jvp_eval, tangent_aval};
use crate::interpret::batching::{batch_eval, batch_program, bound};
use crate::interpret::higher_order::{bind_checked, spread_marked, tangent_or_zeros, trace_of, zeros};
use crate::shape::AxisName;
use crate::sharding::axis_env::with_axes;

/// The identity of a user's rule: functions cannot be compared, but their addresses can.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RuleId {
    /// A function of this type at this address (0 for one that captures nothing, which its type identifies), for
    /// arguments of this structure. The rule that it identifies keeps the function alive.
    Function(TypeId, usize, Box<TreeDef>),
    /// The rule of the function with `count` additional values, which it returns unchanged.
    Threaded { of: Box<RuleId>, count: usize },
    /// The derivative of that rule.
    Derived { of: Box<RuleId> },
    /// The rule, batched over an axis.
    Batched { of: Box<RuleId>, size: usize, name: Option<AxisName>, spmd_names: SmallVec<[AxisName; 2]>, dims: Dims },
}

impl RuleId {
    pub fn of<F: 'static>(function: &Arc<F>, args: &TreeDef) -> RuleId {
        let address = if size_of::<F>() == 0 { 0 } else { Arc::as_ptr(function) as usize };
        RuleId::Function(TypeId::of::<F>(), address, Box::new(args.clone()))
    }

    pub fn batched(&self, axis: &BatchAxis, dims: &[Option<usize>]) -> RuleId {
        RuleId::Batched {
            of: Box::new(self.clone()),
            size: axis.size,
            name: axis.name,
            spmd_names: axis.spmd_names.clone(),
            dims: dims.to_vec(),
        }
    }
}

/// Maps the arguments and their tangents to the results and the results' tangents. The marks are `true` for symbolic
/// zero tangents.
pub(crate) type JvpFn = dyn Fn(&[Array], &[Array], &[bool]) -> Result<(Vec<Array>, Vec<Array>)> + Send + Sync;

/// A program with a custom forward-mode rule. Operands are captured values, then the arguments.
#[derive(Clone)]
pub(crate) struct CustomJvp {
    pub program: Program,
    pub num_consts: usize,
    pub id: RuleId,
    pub rule: Arc<JvpFn>,
}

impl PartialEq for CustomJvp {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, self.num_consts, &self.program) == (&other.id, other.num_consts, &other.program)
    }
}

impl Eq for CustomJvp {}

impl Hash for CustomJvp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
        self.program.hash(state);
    }
}

impl fmt::Debug for CustomJvp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom_jvp {:?}", self.program)
    }
}

/// Fails for a tangent of a captured value, which a rule does not cover.
pub(crate) fn check_captured(name: &str, tangents: &[Option<Array>]) -> Result<()> {
    if tangents.iter().all(Option::is_none) {
        return Ok(());
    }
    let error = format!(
        "Detected differentiation of a {name} function with respect to a closed-over value, which its rule says nothing about"
    );
    Err(Error::new(ErrorKind::NotImplemented, error)
        .help("pass the value as an argument of the function, and return its tangent or cotangent from the rule"))
}

/// Runs a rule; adds advice to the error for a value of a finished trace.
pub(crate) fn in_rule<T>(name: &str, rule: impl FnOnce() -> Result<T>) -> Result<T> {
    rule().map_err(|error| match error.kind() {
        ErrorKind::Leak => error
            .context(format!("a rule of a {name} function captured a value of the function being differentiated"))
            .help(
                "pass the value as an argument of the function (for custom_vjp, return it among the residuals of fwd)",
            ),
        _ => error,
    })
}

/// Checks that arrays have these types; `what` begins the error.
pub(crate) fn check_types(what: &str, arrays: &[Array], avals: &[Aval]) -> Result<()> {
    if arrays.len() != avals.len() {
        return Err(err!(Type, "{what}: expected {} arrays but got {}", avals.len(), arrays.len())
            .help("return as many arrays as the function does"));
    }
    for (i, (array, aval)) in arrays.iter().zip(avals).enumerate() {
        if (array.dtype(), array.shape()) != (aval.dtype, aval.shape.as_slice()) {
            return Err(err!(Type, "{what}: expected {} but got {} (array {i})", aval, array.type_name())
                .help("return outputs with the shape and dtype of the values that they stand for"));
        }
        if !agrees(&array.aval(), aval) {
            return Err(err!(
                Value,
                "{what}: expected {aval} but got {}, of another sharding (array {i})",
                array.type_name()
            )
            .help("reshard every output of the rule to the sharding of the value that it replaces, with `reshard(x, spec)`"));
        }
    }
    Ok(())
}

/// Returns an error if `array`, which a rule returned, varies over more axes than its type (if `more` is set) or over
/// fewer axes, because a sum would then count it too often.
pub(crate) fn check_varying(what: &str, array: &Array, aval: &Aval, more: bool) -> Result<()> {
    let vma = array.vma();
    let (wrong, fix) = if more {
        (vma.minus(&aval.vma), "reduce it with `psum` or `pmean` over these axes")
    } else {
        (aval.vma.minus(&vma), "return each device's own: without `psum`, or as `pcast` makes it vary")
    };
    if !array.is_traced() || wrong.iter().next().is_none() {
        return Ok(());
    }
    let error =
        err!(Type, "{what}: expected {aval} but got {}, so the manual axes {wrong} do not match", array.type_name());
    Err(error.help(fix))
}

/// Traces a rule on entries of batched arrays, with the batched axis bound.
pub(crate) fn trace_entry(
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
    rule: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<Traced> {
    let avals: Vec<Aval> = args.iter().zip(dims).map(|(arg, dim)| entry(&arg.aval(), *dim)).collect();
    with_axes(bound(axis), || trace(&avals, rule))
}

/// Evaluates the program of [`trace_entry`] on the batched arrays; all results are batched at 0.
pub(crate) fn eval_batched(
    axis: &BatchAxis,
    traced: &Traced,
    args: &[Array],
    dims: &[Option<usize>],
) -> Result<Vec<Array>> {
    let captured = traced.captures.len();
    let operands: Vec<Array> = traced.captures.iter().chain(args).cloned().collect();
    let mut operand_dims: Dims = vec![None; captured];
    operand_dims.extend(dims);
    let (outs, out_dims) = batch_eval(&traced.program, axis, &operands, &operand_dims)?;
    Ok(outs.iter().zip(out_dims).map(|(out, dim)| axis.moved(out, dim, 0)).collect())
}

/// The type of one entry of a batched array.
fn entry(aval: &Aval, dim: Option<usize>) -> Aval {
    dim.map_or_else(|| aval.clone(), |d| aval.without_dim(d))
}

impl Primitive for CustomJvp {
    fn name(&self) -> &'static str {
        "custom_jvp"
    }

    /// The rule does not cover the state, which is passed through.
    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let (rule, count) = (self.rule.clone(), state.len());
        let id = RuleId::Threaded { of: Box::new(self.id.clone()), count };
        in_place_thread_state(&self.program, thread, self.num_consts, args, state, |program, num_consts, operands| {
            bind_checked(
                CustomJvp {
                    program,
                    num_consts,
                    id,
                    rule: Arc::new(move |primals: &[Array], tangents: &[Array], zeros: &[bool]| {
                        let (outs, out_tangents) = rule(&primals[count..], &tangents[count..], &zeros[count..])?;
                        Ok(([&primals[..count], &outs].concat(), [&tangents[..count], &out_tangents].concat()))
                    }),
                },
                operands,
            )
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    in_place!(_this => None);

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        check_captured("custom_jvp", &tangents[..self.num_consts])?;
        let primals = &args[self.num_consts..];
        let full_tangents: Vec<Array> = tangents[self.num_consts..]
            .iter()
            .zip(primals)
            .map(|(t, primal)| tangent_or_zeros(t, &primal.aval()))
            .collect();
        let zeros: Vec<bool> = tangents[self.num_consts..].iter().map(Option::is_none).collect();
        // The results of the user's rule are checked against the function's, because they can differ from it.
        let (outs, out_tangents) = in_rule("custom_jvp", || {
            let (outs, out_tangents) = (self.rule)(primals, &full_tangents, &zeros)?;
            outs.iter().chain(&out_tangents).try_for_each(check_usable)?;
            Ok((outs, out_tangents))
        })?;
        let requirement = "Custom JVP rule must produce primal and tangent outputs with equal shapes and dtypes";
        let avals = self.program.out_avals();
        check_types(&format!("{requirement} as the function's"), &outs, &avals)?;
        if out_tangents.len() != outs.len() {
            return Err(err!(
                Type,
                "{requirement}: got {} primal outputs and {} tangents",
                outs.len(),
                out_tangents.len()
            )
            .help("return one tangent for each output"));
        }
        let mut checked_tangents = Tangents::new();
        for (t, aval) in out_tangents.into_iter().zip(&avals) {
            let Some(aval) = tangent_aval(aval) else {
                checked_tangents.push(None);
                continue;
            };
            check_types(requirement, std::slice::from_ref(&t), std::slice::from_ref(&aval))?;
            check_varying(requirement, &t, &aval, true)?;
            checked_tangents.push(Some(t));
        }
        Ok((outs.into(), checked_tangents))
    }

    /// A rule may compute results and tangents together, for example in one loop or one compiled function. Then the linear
    /// trace records this operation, and the results would belong to it. Therefore such a rule is split into its non-linear
    /// and its linear part.
    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let linear_trace = tangents.iter().flatten().find_map(trace_of);
        let (outs, out_tangents) = self.jvp(args, tangents)?;
        if outs.iter().all(|out| linear_trace.is_none() || trace_of(out) != linear_trace) {
            return Ok((outs, out_tangents));
        }
        let marks: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let types = args.iter().chain(tangents.iter().flatten()).map(Array::aval).collect::<Vec<Aval>>();
        let mut has_tangent = Vec::new();
        let rule = trace(&types, |inputs| {
            let (primals, given) = inputs.split_at(args.len());
            let (outs, out_tangents) = self.jvp(primals, &spread_marked(given.iter().cloned(), &marks))?;
            has_tangent = out_tangents.iter().map(Option::is_some).collect();
            Ok(outs.into_iter().chain(out_tangents.into_iter().flatten()).collect())
        })?;
        // A rule is linear in the tangents, so that its derivative by them is the same at any point.
        let zeros = tangents.iter().flatten().map(|t| zeros(&t.aval()));
        let primals: Vec<Array> = rule.captures.iter().chain(args).cloned().chain(zeros).collect();
        let mut rule_tangents: Tangents = vec![None; rule.captures.len() + args.len()];
        rule_tangents.extend(tangents.iter().flatten().cloned().map(Some));
        let (mut outs, mut out_tangents) = jvp_eval(&rule.program, &primals, &rule_tangents, true)?;
        let mut out_tangents = out_tangents.split_off(has_tangent.len()).into_iter();
        outs.truncate(has_tangent.len());
        let spread = has_tangent.iter().map(|has| if *has { out_tangents.next().flatten() } else { None });
        Ok((outs.into(), spread.collect()))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        // Applied to tangents by another rule, it is its own program.
        backward(&self.program, args, cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let count = self.output_count();
        let (Traced { program, captures }, _) = batch_program(&self.program, axis, dims, &vec![true; count])?;
        let arg_dims = dims[self.num_consts..].to_vec();
        let (rule, batch_axis) = (self.rule.clone(), axis.clone());
        // Primals and tangents are batched alike, because the rule sees one entry of the batch.
        let batched = {
            let arg_dims = arg_dims.clone();
            move |primals: &[Array], tangents: &[Array], zeros: &[bool]| {
                let operands = [primals, tangents].concat();
                let dims = [&arg_dims[..], &arg_dims].concat();
                let traced = trace_entry(&batch_axis, &operands, &dims, |args| {
                    let (primals, tangents) = args.split_at(args.len() / 2);
                    let (outs, out_tangents) = rule(primals, tangents, zeros)?;
                    Ok([outs, out_tangents].concat())
                })?;
                let mut outs = eval_batched(&batch_axis, &traced, &operands, &dims)?;
                let tangents = outs.split_off(outs.len() / 2);
                Ok((outs, tangents))
            }
        };
        let this = CustomJvp {
            program,
            num_consts: captures.len() + self.num_consts,
            id: self.id.batched(axis, &arg_dims),
            rule: Arc::new(batched),
        };
        let outs = bind_checked(this, &[&captures, args].concat())?;
        Ok((outs, vec![Some(0); count]))
    }
}
