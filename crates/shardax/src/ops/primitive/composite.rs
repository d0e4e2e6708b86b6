//! Composite operations: several primitives that, outside of a trace, compile and run as one program.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{at_caller, bind, runs_now, trace};
use crate::error::{Result, err};

/// A function executed eagerly. It is never an equation: a trace records its parts instead.
#[derive(Clone)]
struct Composite<P, F> {
    name: &'static str,
    params: P,
    outputs: usize,
    body: F,
}

/// Every closure has its own type and this one captures nothing, so the type identifies the body.
impl<P: PartialEq, F> PartialEq for Composite<P, F> {
    fn eq(&self, other: &Self) -> bool {
        self.params == other.params
    }
}

impl<P: Eq, F> Eq for Composite<P, F> {}

impl<P: Hash, F> Hash for Composite<P, F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.params.hash(state);
    }
}

impl<P: Debug, F> Debug for Composite<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name).field("params", &self.params).finish()
    }
}

/// Applies `body`, which has `outputs` results: as one compiled program, cached by these parameters and types, if the
/// operands are concrete and nothing is being traced; otherwise its operations are recorded one by one.
///
/// `body` must capture nothing, and only use its arguments and plain numbers.
#[track_caller]
pub(crate) fn composite<P, F>(
    name: &'static str,
    params: P,
    outputs: usize,
    args: &[Array],
    body: F,
) -> Result<Vec<Array>>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
    F: Fn(&P, &[Array]) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
{
    const { assert!(size_of::<F>() == 0, "what a composite's body captures would be no part of its key") };
    // The operations inside are attributed to the caller.
    at_caller(|| {
        if !runs_now(args) {
            return body(&params, args);
        }
        args.iter().try_for_each(Array::check)?;
        Ok(bind(Arc::new(Composite { name, params, outputs, body }), args).into_vec())
    })
}

/// Like [`composite`], with one result.
#[track_caller]
pub(crate) fn composite1<P, F>(name: &'static str, params: P, args: &[Array], body: F) -> Result<Array>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
    F: Fn(&P, &[Array]) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
{
    composite(name, params, 1, args, body)?.pop().ok_or_else(|| err!(Runtime, "{name} gave no result"))
}

impl<P, F> Primitive for Composite<P, F>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
    F: Fn(&P, &[Array]) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_count(&self) -> usize {
        self.outputs
    }

    fn print_params(&self) -> String {
        format!("{:?}", self.params)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(trace(args, |args| (self.body)(&self.params, args))?.program.out_avals().into())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.own()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| (self.body)(&self.params, args))
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Err(err!(NotImplemented, "'{}' is run at once and stands in no traced program", self.name))
    }
}
