//! `custom_vjp`: a program with user-defined rules for reverse mode.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{in_place, in_place_thread_state};
use super::custom_jvp::{RuleId, check_captured, check_types, check_varying, eval_batched, in_rule, trace_entry};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{Traced, check_usable};
use crate::core::program::{Aval, Program};
use crate::core::tree::TreeDef;
use crate::error::{Result, err};
use crate::interpret::ad::{backward, tangent_aval};
use crate::interpret::backward_logs::{self, Layout};
use crate::interpret::batching::batch_program;
use crate::interpret::higher_order::{bind_checked, marked_tangents, tangent_or_zeros};
use crate::shape::AxisSet;

/// The results of the forward rule, its residuals, and the residuals' structure. The marks say which arguments are
/// differentiated.
pub(crate) type FwdFn = dyn Fn(&[Array], &[bool]) -> Result<(Vec<Array>, Vec<Array>, TreeDef)> + Send + Sync;
/// Maps the residuals and the cotangents of the results to a cotangent for each argument. The marks say which cotangents
/// are zero whatever the values are.
pub(crate) type BwdFn = dyn Fn(&TreeDef, &[Array], &[Array], &[bool]) -> Result<Vec<Array>> + Send + Sync;

/// The two rules of a function.
#[derive(Clone)]
pub(crate) struct VjpRules {
    pub id: RuleId,
    pub fwd: Arc<FwdFn>,
    pub bwd: Arc<BwdFn>,
}

impl PartialEq for VjpRules {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for VjpRules {}

impl Hash for VjpRules {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for VjpRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}

impl VjpRules {
    /// The rules for arguments batched at `dims`. Results, residuals and cotangents are batched at 0.
    fn batched(&self, axis: &BatchAxis, dims: &[Option<usize>]) -> VjpRules {
        let fwd = {
            let (axis, dims, fwd) = (axis.clone(), dims.to_vec(), self.fwd.clone());
            move |args: &[Array], perturbed: &[bool]| {
                let mut structure = None;
                let traced = trace_entry(&axis, args, &dims, |args| {
                    let (outs, residuals, def) = fwd(args, perturbed)?;
                    structure = Some((outs.len(), def));
                    Ok([outs, residuals].concat())
                })?;
                let (count, def) = structure
                    .ok_or_else(|| err!(Runtime, "internal error: the fwd rule was not traced; please report this"))?;
                let mut outs = eval_batched(&axis, &traced, args, &dims)?;
                let residuals = outs.split_off(count);
                Ok((outs, residuals, def))
            }
        };
        let bwd = {
            let (axis, dims, bwd) = (axis.clone(), dims.to_vec(), self.bwd.clone());
            move |def: &TreeDef, residuals: &[Array], cts: &[Array], zeros: &[bool]| {
                let operands = [residuals, cts].concat();
                let operand_dims = vec![Some(0); operands.len()];
                let (mut count, mut layout) = (0, Layout::default());
                let traced = trace_entry(&axis, &operands, &operand_dims, |args| {
                    let (residuals, cts) = args.split_at(residuals.len());
                    let (cts, logged, values) = backward_logs::nested(|| bwd(def, residuals, cts, zeros))?;
                    (count, layout) = (cts.len(), logged);
                    Ok([cts, values].concat())
                })?;
                let mut cts = eval_batched(&axis, &traced, &operands, &operand_dims)?;
                let values: Vec<Array> = cts.drain(count..).collect();
                backward_logs::record(layout.entries(values))?;
                // An argument shared by all entries gets the sum of their cotangents.
                Ok(cts
                    .iter()
                    .zip(&dims)
                    .map(|(ct, dim)| match dim {
                        Some(d) => axis.moved(ct, Some(0), *d),
                        None if ct.dtype().is_inexact() => ct.sum(0),
                        None => ct.clone(),
                    })
                    .collect())
            }
        };
        VjpRules { id: self.id.batched(axis, dims), fwd: Arc::new(fwd), bwd: Arc::new(bwd) }
    }

    /// The rules with `count` additional values, which are passed through.
    fn passing_through(&self, count: usize) -> VjpRules {
        let (fwd, bwd) = (self.fwd.clone(), self.bwd.clone());
        VjpRules {
            id: RuleId::Threaded { of: Box::new(self.id.clone()), count },
            fwd: Arc::new(move |args, perturbed| {
                let (outs, residuals, def) = fwd(&args[count..], &perturbed[count..])?;
                Ok(([&args[..count], &outs].concat(), residuals, def))
            }),
            bwd: Arc::new(move |def, residuals, cts, zeros| {
                Ok([&cts[..count], &bwd(def, residuals, &cts[count..], &zeros[count..])?].concat())
            }),
        }
    }
}

/// A program with custom reverse-mode rules. Operands are captured values, then the arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CustomVjp {
    pub program: Program,
    pub num_consts: usize,
    pub rules: VjpRules,
}

impl Primitive for CustomVjp {
    fn name(&self) -> &'static str {
        "custom_vjp"
    }

    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let rules = self.rules.passing_through(state.len());
        in_place_thread_state(&self.program, thread, self.num_consts, args, state, |program, num_consts, operands| {
            bind_checked(CustomVjp { program, num_consts, rules }, operands)
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    in_place!(_this => None);

    /// Tangents that nothing uses are never computed, so that only a program that needs them is rejected, when it is
    /// lowered.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        self.linearize(args, tangents)
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (captured, tangents) = tangents.split_at(self.num_consts);
        check_captured("custom_vjp", captured)?;
        let primals = &args[self.num_consts..];
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let (outs, residuals, def) = in_rule("custom_vjp", || {
            let (outs, residuals, def) = (self.rules.fwd)(primals, &nonzero)?;
            outs.iter().chain(&residuals).try_for_each(check_usable)?;
            Ok((outs, residuals, def))
        })?;
        let out_avals = self.program.out_avals();
        check_types("Custom VJP fwd rule must produce the primal function's output and residuals", &outs, &out_avals)?;
        let pullback = Pullback {
            rules: self.rules.clone(),
            structure: def,
            num_residuals: residuals.len(),
            args: primals.iter().map(|x| x.aval().strip_weak_type()).collect(),
            outs: out_avals.clone(),
            nonzero,
        };
        let operands = [residuals, marked_tangents(tangents, primals, &pullback.nonzero)].concat();
        let mut linear_outs = bind_checked(pullback, &operands)?.into_iter();
        let out_tangents = out_avals.iter().map(|a| tangent_aval(a).and_then(|_| linear_outs.next())).collect();
        Ok((outs.into(), out_tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        // Applied to tangents by another rule, it is its own program.
        backward(&self.program, args, cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let count = self.output_count();
        let (Traced { program, captures }, _) = batch_program(&self.program, axis, dims, &vec![true; count])?;
        let this = CustomVjp {
            program,
            num_consts: captures.len() + self.num_consts,
            rules: self.rules.batched(axis, &dims[self.num_consts..]),
        };
        let outs = bind_checked(this, &[&captures, args].concat())?;
        Ok((outs, vec![Some(0); count]))
    }
}

fn forward_mode() -> crate::error::Error {
    err!(Type, "can't apply forward-mode differentiation (jvp) to a custom_vjp function.")
        .help("differentiate in reverse mode (`grad`, `vjp`), or give the function a rule with `custom_jvp`, which serves both modes")
}

/// The linear map of tangents of a custom_vjp function. Only its transpose, the bwd rule, is known. Operands are the
/// residuals and the nonzero tangents of the arguments; results are the tangents of the results that have one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pullback {
    rules: VjpRules,
    structure: TreeDef,
    num_residuals: usize,
    /// The types of all arguments, and of all results.
    args: Vec<Aval>,
    outs: Vec<Aval>,
    /// Marks the arguments that have a tangent.
    nonzero: Vec<bool>,
}

impl Pullback {
    fn tangent_avals(&self) -> SmallVec<[Aval; 1]> {
        self.outs.iter().filter_map(tangent_aval).collect()
    }
}

impl Primitive for Pullback {
    fn name(&self) -> &'static str {
        "custom_vjp_pullback"
    }

    fn output_count(&self) -> usize {
        self.outs.iter().filter(|a| a.dtype.is_inexact()).count()
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn infer(&self, _args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(self.tangent_avals())
    }

    fn vary(&self, _args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(self.tangent_avals().into_iter().map(|a| a.vma).collect())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(forward_mode())
    }

    /// The tangents are rejected when they are lowered, like the results.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let outs = bind_checked(self.clone(), args)?;
        let (residuals, linear) = args.split_at(self.num_residuals);
        let tangents = linear.iter().zip(&tangents[self.num_residuals..]).map(|(x, t)| tangent_or_zeros(t, &x.aval()));
        let operands: Vec<Array> = residuals.iter().cloned().chain(tangents).collect();
        let out_tangents = bind_checked(self.clone(), &operands)?.into_iter().map(Some).collect();
        Ok((outs, out_tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let residuals: Vec<Array> =
            args[..self.num_residuals].iter().map(|a| a.value().cloned()).collect::<Result<_>>()?;
        let mut out_ct = cts.iter();
        let (out_cts, zeros): (Vec<Array>, Vec<bool>) = self
            .outs
            .iter()
            .map(|aval| {
                let ct = if aval.dtype.is_inexact() { out_ct.next().cloned().flatten() } else { None };
                (tangent_or_zeros(&ct, &aval.cotangent()), ct.is_none())
            })
            .unzip();
        // The user's rule can return anything, so its cotangents are checked before they are added to others.
        let in_cts = in_rule("custom_vjp", || {
            let cts = (self.rules.bwd)(&self.structure, &residuals, &out_cts, &zeros)?;
            cts.iter().try_for_each(check_usable)?;
            Ok(cts)
        })?;
        let requirement = "Custom VJP bwd rule must produce an output with the same structure and types as the args tuple of the primal function";
        if in_cts.len() != self.args.len() {
            return Err(err!(Type, "{requirement}: got {} cotangents for {} arguments", in_cts.len(), self.args.len())
                .help("return one cotangent for each argument"));
        }
        let mut operand_cts: Tangents = vec![None; self.num_residuals];
        for ((ct, aval), nonzero) in in_cts.into_iter().zip(&self.args).zip(&self.nonzero) {
            if *nonzero {
                check_types(requirement, std::slice::from_ref(&ct), &[aval.cotangent()])?;
                check_varying(requirement, &ct, aval, false)?;
                operand_cts.push(Some(ct));
            }
        }
        Ok(operand_cts)
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        // A program is transposed immediately after linearization, unless tangents are pushed through it, which is an
        // error.
        Err(forward_mode())
    }
}
