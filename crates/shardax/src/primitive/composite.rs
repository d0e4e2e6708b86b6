//! Composite operations: several primitives that, outside of a trace, compile and run as one program.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{BatchAxis, Dims, Outputs, Primitive};
use crate::array::Array;
use crate::error::{Result, err};
use crate::lower::{Lowering, Value};
use crate::program::Aval;
use crate::program::trace::{at_caller, bind, runs_now, trace};

/// A function of arrays and of parameters, which are part of the compiled program's key.
type Body<P> = fn(&P, &[Array]) -> Result<Vec<Array>>;

/// A function run at once. It stands in no traced program: there its parts are recorded instead.
#[derive(Clone, Debug)]
struct Composite<P> {
    name: &'static str,
    params: P,
    outputs: usize,
    body: Body<P>,
}

/// The name stands for the body.
impl<P: PartialEq> PartialEq for Composite<P> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.params == other.params
    }
}

impl<P: Eq> Eq for Composite<P> {}

impl<P: Hash> Hash for Composite<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.params.hash(state);
    }
}

/// Applies `body`, which has `outputs` results: as one compiled program, kept for these parameters and types, when the
/// operands are known and nothing is being traced; otherwise its operations are recorded one by one.
///
/// One name means one body. `body` may use nothing but its arguments and plain numbers.
#[track_caller]
pub(crate) fn composite<P>(
    name: &'static str,
    params: P,
    outputs: usize,
    args: &[Array],
    body: Body<P>,
) -> Result<Vec<Array>>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
{
    // What happens inside is the caller's doing.
    at_caller(|| {
        if !runs_now(args) {
            return body(&params, args);
        }
        args.iter().try_for_each(Array::check)?;
        Ok(bind(Arc::new(Composite { name, params, outputs, body }), args).into_vec())
    })
}

/// [`composite`] with one result.
#[track_caller]
pub(crate) fn composite1<P>(name: &'static str, params: P, args: &[Array], body: Body<P>) -> Result<Array>
where
    P: Debug + Clone + Eq + Hash + Send + Sync + 'static,
{
    composite(name, params, 1, args, body)?.pop().ok_or_else(|| err!(Runtime, "{name} gave no result"))
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

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(trace(args, |args| (self.body)(&self.params, args))?.program.out_avals().into())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| (self.body)(&self.params, args))
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Err(err!(NotImplemented, "'{}' is run at once and stands in no traced program", self.name))
    }
}
