//! `call`, which applies a named program. A `jit` inside a traced function records it.

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::shared::SharedProgram;
use crate::core::program::trace::Traced;
use crate::core::program::{Aval, Flops, Program};
use crate::error::{Result, bail};
use crate::interpret::higher_order::bind_checked;
use crate::interpret::thread_state::{thread_call, thread_state};
use crate::interpret::{ad, batching};
use crate::scope::{self, Part};
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

/// Removes the new state, which comes first, from a program's results.
fn without_state(mut outs: Outputs, state: &mut [Array]) -> Outputs {
    let rest = outs.drain(state.len()..).collect();
    state.clone_from_slice(&outs);
    rest
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
}

// Each rule interprets the program in place, so that only its equations remain.
impl Primitive for Call {
    fn name(&self) -> &'static str {
        "jit"
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.own()
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
        let (outs, out_tangents) = self.named(|| ad::jvp_eval(&self.program, args, tangents, false))?;
        Ok((outs.into(), out_tangents))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (outs, out_tangents) = self.named(|| ad::jvp_eval(&self.program, args, tangents, true))?;
        Ok((outs.into(), out_tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        self.named(|| ad::backward(&self.program, args, cts))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let (outs, out_dims) = self.named(|| batching::batch_eval(&self.program, axis, args, dims))?;
        Ok((outs.into(), out_dims))
    }
}
