//! `call`, which applies a named program. A `jit` inside a traced function records it.

use std::cell::Cell;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::shared::SharedProgram;
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Aval, Flops, Program};
use crate::error::{Result, bail};
use crate::interpret::backward_logs::{self, Layout};
use crate::interpret::higher_order::{Residual, Split, bind_checked, marked_tangents, spread_marked};
use crate::interpret::thread_state::{thread_call, thread_state};
use crate::interpret::{ad, batching, memo};
use crate::local::{CellKey, Restore};
use crate::scope::{self, Part};
use crate::shape::AxisName;
use crate::sharding::{NamedSharding, Sharding};

/// Returns an error unless operands of these types match the program's inputs.
pub(crate) fn check_operands(name: &str, program: &Program, args: &[Aval]) -> Result<()> {
    if args.len() != program.inputs.len() {
        bail!(Type, "{name} takes {} operands, got {}", program.inputs.len(), args.len());
    }
    for (i, (arg, want)) in args.iter().zip(program.in_avals()).enumerate() {
        if (arg.dtype, &arg.shape) != (want.dtype, &want.shape) {
            bail!(Type, "operand {i} of {name} must have type {want}, got {arg}");
        }
    }
    Ok(())
}

/// The rules of a primitive that is equivalent to its `program`, with the same operands and results. The names of the
/// operations inside get an additional part.
macro_rules! in_place {
    ($this:ident => $part:expr) => {
        super::call::in_place!();

        fn equivalent_program(&self) -> Option<&crate::core::program::Program> {
            Some(&self.program)
        }

        fn lower(
            &self,
            cx: &mut crate::core::lower::Lowering,
            args: &[crate::core::lower::Value],
            _outs: &[Aval],
        ) -> Result<Vec<crate::core::lower::Value>> {
            let $this = self;
            cx.named($part, |cx| cx.program(&self.program, args))
        }
    };
    () => {
        fn output_count(&self) -> usize {
            self.program.outputs.len()
        }

        fn programs(&self) -> Vec<&crate::core::program::Program> {
            let program: &crate::core::program::Program = &self.program;
            vec![program]
        }

        fn casts_operands(&self) -> bool {
            false
        }

        fn infer(&self, args: &[Aval]) -> Result<smallvec::SmallVec<[Aval; 1]>> {
            super::call::check_operands(self.name(), &self.program, args)?;
            Ok(self.program.out_avals().into())
        }

        fn vary(&self, args: &[crate::shape::AxisSet]) -> Result<smallvec::SmallVec<[crate::shape::AxisSet; 1]>> {
            Ok(crate::interpret::vary::outputs(&self.program, args)?.into())
        }
    };
}
pub(crate) use in_place;

/// Threads a state through a primitive that is equivalent to its program. The first `before` operands are captured.
/// `bind` applies the primitive to the new program and its number of captures.
pub(crate) fn in_place_thread_state(
    program: &Program,
    thread: &dyn ThreadState,
    before: usize,
    args: &[Array],
    state: &mut Vec<Array>,
    bind: impl FnOnce(Program, usize, &[Array]) -> Result<Outputs>,
) -> Result<Outputs> {
    thread.cast_state(state)?;
    let Traced { program, captures } = thread_state(program, thread, before, state)?;
    let (own, rest) = args.split_at(before);
    let operands = [&captures, own, state, rest].concat();
    let outs = bind(program.simplified(), captures.len() + before, &operands)?;
    Ok(without_state(outs, state))
}

/// Threads a state through a call of a program whose rules are the rules of its equations. `bind` applies the primitive
/// to the new program.
pub(crate) fn call_thread_state(
    program: &Program,
    thread: &dyn ThreadState,
    args: &[Array],
    state: &mut [Array],
    bind: impl FnOnce(Program, &[Array]) -> Result<Outputs>,
) -> Result<Outputs> {
    let Traced { program, captures } = thread_call(program, thread, state)?;
    let outs = bind(program.simplified(), &[captures.as_slice(), state, args].concat())?;
    Ok(without_state(outs, state))
}

/// Returns `true` if a derived program captures nothing, so that other calls can share it.
fn has_closed_callee((callee, _): &(Callee, Vec<bool>)) -> bool {
    callee.is_closed()
}

/// Removes the new state, which comes first, from a program's results.
fn without_state(mut outs: Outputs, state: &mut [Array]) -> Outputs {
    let results = outs.drain(state.len()..).collect();
    state.clone_from_slice(&outs);
    results
}

/// A call of a program, with the program's operands and results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub name: String,
    pub program: SharedProgram,
}

impl Call {
    /// Returns the part that the names of the operations inside get: JAX's `jit(f)`.
    fn part(&self) -> Part {
        Part::Name(format!("jit({})", self.name).into())
    }

    fn named<R>(&self, f: impl FnOnce() -> R) -> R {
        scope::within([self.part()], f)
    }

    /// Returns `true` if a rule for operands of these types records calls of derived programs. Otherwise it writes the
    /// derived equations in place.
    fn stays_call(&self, types: impl FnOnce() -> Vec<Aval>) -> bool {
        self.program.repeats_equations()
            && !INLINING.get()
            && self.program.in_avals().zip(types()).all(|(want, arg)| *want == Aval { weak: want.weak, ..arg })
    }

    /// Calls another program with its captures and these operands.
    fn call(&self, callee: &Callee, args: &[Array]) -> Result<Outputs> {
        let call = Call { name: self.name.clone(), program: callee.program.clone() };
        bind_checked(call, &[&callee.captures, args].concat())
    }
}

/// A derived program that calls share, and the arrays that it captured.
#[derive(Clone)]
struct Callee {
    program: SharedProgram,
    captures: Vec<Array>,
}

impl From<Traced> for Callee {
    fn from(traced: Traced) -> Callee {
        Callee { program: traced.program.simplified().into(), captures: traced.captures }
    }
}

impl Callee {
    fn is_closed(&self) -> bool {
        self.captures.is_empty()
    }
}

/// A program that is split into calls of its non-linear part and of its linear part.
#[derive(Clone)]
struct SplitCall {
    known: Callee,
    linear: Callee,
    residuals: Vec<Residual>,
    nonzero_out: Vec<bool>,
}

impl SplitCall {
    fn of(program: &SharedProgram, nonzero: &[bool]) -> Result<SplitCall> {
        memo::derived_of_callee(
            "linearize",
            program,
            &nonzero,
            |split: &SplitCall| {
                split.known.is_closed()
                    && !split.residuals.iter().any(|residual| matches!(residual, Residual::Outer(_)))
            },
            || {
                let Split { known, linear, residuals, .. } = Split::of(program, nonzero, |_| true)?;
                let nonzero_out = linear.nonzero_out;
                let linear = Callee { program: linear.program.simplified().into(), captures: Vec::new() };
                Ok(SplitCall { known: known.into(), linear, residuals, nonzero_out })
            },
        )
    }
}

// The rules of primitives have fixed arguments, so the guard's state is a thread-local.
thread_local! {
    static INLINING: Cell<bool> = const { Cell::new(false) };
}

/// Makes the rules of calls write all programs in place until the guard is dropped.
pub(super) fn inline_calls() -> Restore<bool> {
    INLINING.guard(true)
}

// A rule interprets the program in place, so that only its equations remain. If this repeats equations, because the
// program calls others several times, the rule derives another program and calls it instead.
impl Primitive for Call {
    fn name(&self) -> &'static str {
        "jit"
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    in_place!();

    fn callee(&self) -> Option<&SharedProgram> {
        Some(&self.program)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        cx.named(Some(self.part()), |cx| match cx.call_function(&self.name, &self.program, args, outs)? {
            Some(values) => Ok(values),
            None => cx.program(&self.program, args),
        })
    }

    fn has_effects(&self) -> bool {
        self.program.has_effects()
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.program.uses_axis_once(name)
    }

    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        self.program.flops_once()
    }

    fn in_sharding(&self, operand: usize, _aval: &Aval) -> Option<Sharding> {
        self.program.in_shardings_once().get(operand)?.clone()
    }

    fn out_sharding(&self, result: usize, _aval: &Aval) -> Option<NamedSharding> {
        self.program.out_shardings_once().get(result)?.clone()
    }

    fn print_params(&self) -> String {
        format!("name={}", self.name)
    }

    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        call_thread_state(&self.program, thread, args, state, |program, operands| {
            bind_checked(Call { name: self.name.clone(), program: program.into() }, operands)
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        if !self.stays_call(|| args.iter().map(Array::aval).collect()) {
            let (outs, out_tangents) = self.named(|| ad::jvp_eval(&self.program, args, tangents, false))?;
            return Ok((outs.into(), out_tangents));
        }
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let count = self.output_count();
        let (callee, has) = memo::derived_of_callee("jvp", &self.program, &nonzero, has_closed_callee, || {
            let (derived, has) = ad::jvp_program(&self.program, &nonzero, &vec![false; count])?;
            Ok((Callee::from(derived), has))
        })?;
        let mut outs = self.call(&callee, &[args, &marked_tangents(tangents, args, &nonzero)].concat())?;
        let out_tangents: Vec<Array> = outs.drain(count..).collect();
        Ok((outs, spread_marked(out_tangents, &has)))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        if !self.stays_call(|| args.iter().map(Array::aval).collect()) {
            let (outs, out_tangents) = self.named(|| ad::jvp_eval(&self.program, args, tangents, true))?;
            return Ok((outs.into(), out_tangents));
        }
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let split = SplitCall::of(&self.program, &nonzero)?;
        let mut outs = self.call(&split.known, args)?;
        let stored: Vec<Array> = outs.drain(self.output_count()..).collect();
        let mut operands: Vec<Array> = split
            .residuals
            .iter()
            .map(|residual| match residual {
                Residual::Input(i) => args[*i].clone(),
                Residual::Outer(array) => array.clone(),
                Residual::Stored(k) => stored[*k].clone(),
            })
            .collect();
        operands.extend(marked_tangents(tangents, args, &nonzero));
        let out_tangents = self.call(&split.linear, &operands)?;
        Ok((outs, spread_marked(out_tangents, &split.nonzero_out)))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        if !self.stays_call(|| args.iter().map(Operand::aval).collect()) {
            return self.named(|| ad::backward(&self.program, args, cts));
        }
        let is_linear: Vec<bool> = args.iter().map(Operand::is_linear).collect();
        let has_ct: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let known_operands = args.iter().filter(|arg| !arg.is_linear()).map(|arg| arg.value().cloned());
        let mut operands: Vec<Array> = known_operands.collect::<Result<_>>()?;
        let known_count = operands.len();
        operands.extend(cts.iter().flatten().cloned());
        let types: Vec<Aval> = operands.iter().map(Array::aval).collect();
        // The transpose depends on which operands are linear, which cotangents are zero, and which values are logged.
        let marks = (&is_linear, &has_ct, &types, backward_logs::are_received());
        let (callee, has, layout) = memo::derived_of_callee(
            "transpose",
            &self.program,
            &marks,
            |(callee, _, _): &(Callee, Vec<bool>, Layout)| callee.is_closed(),
            || {
                let (mut has, mut layout) = (Vec::new(), Layout::default());
                let traced = trace(&types, |inputs| {
                    let (known, cts) = inputs.split_at(known_count);
                    let mut known_inputs = known.iter();
                    let operands: Vec<Operand> = args
                        .iter()
                        .map(|arg| match arg {
                            Operand::NonLinear(array) => {
                                Operand::NonLinear(known_inputs.next().unwrap_or(array).clone())
                            }
                            Operand::Linear(aval) => Operand::Linear(aval.clone()),
                        })
                        .collect();
                    let cts = spread_marked(cts.iter().cloned(), &has_ct);
                    let (in_cts, logged, values) =
                        backward_logs::nested(|| ad::backward(&self.program, &operands, &cts))?;
                    has = in_cts.iter().map(Option::is_some).collect();
                    layout = logged;
                    Ok(in_cts.into_iter().flatten().chain(values).collect())
                })?;
                Ok((Callee::from(traced), has, layout))
            },
        )?;
        let mut outs = self.call(&callee, &operands)?;
        let values: Vec<Array> = outs.drain(outs.len() - layout.count()..).collect();
        backward_logs::record(layout.entries(values))?;
        Ok(spread_marked(outs, &has))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.stays_call(|| {
            let types = args.iter().zip(dims).map(|(arg, dim)| match dim {
                Some(dim) => arg.aval().without_dim(*dim),
                None => arg.aval(),
            });
            types.collect()
        }) {
            let (outs, out_dims) = self.named(|| batching::batch_eval(&self.program, axis, args, dims))?;
            return Ok((outs.into(), out_dims));
        }
        let (callee, has) = memo::derived_of_callee("batch", &self.program, &(axis, dims), has_closed_callee, || {
            let (batched, has) = batching::batch_program(&self.program, axis, dims, &vec![false; self.output_count()])?;
            Ok((Callee::from(batched), has))
        })?;
        Ok((self.call(&callee, args)?, has.iter().map(|has| has.then_some(0)).collect()))
    }
}
