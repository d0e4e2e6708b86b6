//! Composite operations: several primitives that, outside of a trace, compile and run as one program.

use std::any::TypeId;
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
use crate::ops::promotion::convert;
use crate::rank_promotion;

/// A function executed eagerly. It is never an equation: a trace records its parts instead.
#[derive(Clone)]
struct Composite<P: 'static> {
    name: &'static str,
    params: P,
    outputs: usize,
    body: &'static Body<P>,
    /// The operands that are weakly typed, which decides the dtypes inside. Values of a text have no weak types.
    weak: SmallVec<[bool; 4]>,
    /// The type of the body, which identifies it: every closure has its own, and this one captures nothing.
    identity: TypeId,
}

/// A function of parameters and operands. Not a type parameter of [`Composite`], whose code would be compiled for each.
type Body<P> = dyn Fn(&P, &[Array]) -> Result<Vec<Array>> + Send + Sync;

impl<P> Composite<P> {
    fn call(&self, args: &[Array]) -> Result<Vec<Array>> {
        // The body captures nothing, so it calls no function of the user.
        let _ranks = rank_promotion::allow();
        (self.body)(&self.params, args)
    }
}

impl<P: PartialEq> PartialEq for Composite<P> {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && self.params == other.params && self.weak == other.weak
    }
}

impl<P: Eq> Eq for Composite<P> {}

impl<P: Hash> Hash for Composite<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
        self.params.hash(state);
        self.weak.hash(state);
    }
}

impl<P: Debug> Debug for Composite<P> {
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
    F: Fn(&P, &[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
{
    const { assert!(size_of::<F>() == 0, "what a composite's body captures would be no part of its key") };
    // Without a size, it takes no memory.
    let weak = args.iter().map(Array::weak_type).collect();
    run(Composite { name, params, outputs, body: Box::leak(Box::new(body)), weak, identity: TypeId::of::<F>() }, args)
}

#[track_caller]
fn run<P>(composite: Composite<P>, args: &[Array]) -> Result<Vec<Array>>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
{
    // The operations inside are attributed to the caller.
    at_caller(|| {
        if !runs_now(args) {
            return composite.call(args);
        }
        args.iter().try_for_each(Array::check)?;
        Ok(bind(Arc::new(composite), args).into_vec())
    })
}

/// Like [`composite`], with one result.
#[track_caller]
pub(crate) fn composite1<P, F>(name: &'static str, params: P, args: &[Array], body: F) -> Result<Array>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
    F: Fn(&P, &[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
{
    composite(name, params, 1, args, body)?
        .pop()
        .ok_or_else(|| err!(Runtime, "internal error: {name} has no result; please report this"))
}

impl<P> Primitive for Composite<P>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
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
        Ok(trace(args, |args| self.call(args))?.program.out_avals().into())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| {
            let weak = self.weak.iter().copied().chain(std::iter::repeat(false));
            let args: Vec<Array> = args.iter().zip(weak).map(|(x, weak)| convert(x, x.dtype(), weak)).collect();
            self.call(&args)
        })
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Err(err!(NotImplemented, "'{}' runs immediately and cannot be part of a traced program", self.name)
            .help("call it on concrete arrays, outside of `jit`, `grad` and `vmap`"))
    }
}
