//! Primitives. Each primitive is one struct with all its rules.
//!
//! Rules are ordinary shardax code on [`Array`]s, so you can nest and differentiate them like your own functions.

use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::array::Array;
use super::lower::{Lowering, Value};
use super::program::shared::SharedProgram;
use super::program::trace;
use super::program::{Aval, Eqn, Flops, Program};
pub use super::sharding_rule::{PartialAxes, ShardingRule, TypedOuts};
use crate::error::{Result, err};
use crate::shape::{AxisName, AxisSet};
use crate::sharding::layout::KnownLayout;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{AbstractMesh, DimSpec, NamedSharding, Sharding, Typed, UnreducedKind};
use crate::stack::grow;

/// The types of an operation's results.
pub type Avals = SmallVec<[Aval; 1]>;
/// The results of an operation.
pub type Outputs = SmallVec<[Array; 1]>;
/// A tangent or cotangent for each value; `None` is a zero that is never computed.
pub type Tangents = Vec<Option<Array>>;
/// The batched axis of each value; `None` if it is not batched.
pub type Dims = Vec<Option<usize>>;

/// The size and name of a mapped axis, for batching rules.
#[derive(Clone, Debug)]
pub struct BatchAxis {
    /// The size of the batch.
    pub size: usize,
    /// The name that collectives use, if it has one.
    pub name: Option<AxisName>,
    /// The mesh axes over which the batch is sharded inside (`spmd_axis_name`).
    pub spmd_names: SmallVec<[AxisName; 2]>,
    /// The axes of type [`Explicit`](crate::AxisType::Explicit) over which the mapped dimensions are split.
    pub explicit: DimSpec,
    /// The mesh of the mapped arrays, for values that are repeated where no mesh is in context.
    pub mesh: Option<AbstractMesh>,
}

impl BatchAxis {
    /// Converts the sharding of one batch entry to the sharding of the entire batch, with the mapped dimension at `at`.
    ///
    /// Fails if the sharding uses an axis over which the batch is split.
    pub(crate) fn inserted(&self, typed: &Typed, at: usize) -> Result<Typed> {
        if let Some(name) = typed.split_axes().find(|name| self.explicit.axes().contains(name)) {
            return Err(err!(
                Value,
                "vmap maps over a dimension that is sharded over {name:?}, which cannot appear in the sharding {} inside",
                typed.spec()
            )
            .help("name a mesh axis that the mapped dimension leaves free"));
        }
        Ok(typed.inserted(at, self.explicit.clone()))
    }

    /// Converts the requested sharding of one entry's result to the sharding of the entire batch.
    pub(crate) fn out(&self, out: &Option<Arc<Typed>>, at: usize) -> Result<Option<Arc<Typed>>> {
        out.as_ref().map(|typed| self.inserted(typed, at).map(Arc::new)).transpose()
    }
}

/// A primitive of one operand that receives some of its parameters as a second operand, an array of int32.
#[doc(hidden)]
#[derive(Debug)]
pub struct EagerForm {
    pub primitive: Arc<dyn Primitive>,
    pub parameters: SmallVec<[i32; 4]>,
}

/// An operand of an equation being transposed.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A value that the linear function does not depend on.
    NonLinear(Array),
    /// A value in which the function is linear. Its cotangent is requested.
    Linear(Aval),
}

impl Operand {
    /// Returns `true` if the cotangent of the operand is requested.
    pub fn is_linear(&self) -> bool {
        matches!(self, Operand::Linear(_))
    }

    /// Returns the type of the operand.
    pub fn aval(&self) -> Aval {
        match self {
            Operand::NonLinear(a) => a.aval(),
            Operand::Linear(aval) => aval.clone(),
        }
    }

    /// Returns the value of the operand.
    ///
    /// # Errors
    /// Returns an error for a linear operand, because a product of two linear operands is not linear.
    pub fn value(&self) -> Result<&Array> {
        match self {
            Operand::NonLinear(a) => Ok(a),
            Operand::Linear(_) => Err(err!(NotImplemented, "transpose with respect to an operand that is not linear")
                .help("in `jvp`, multiply tangents only by values that do not depend on tangents")),
        }
    }
}

/// Applies a primitive at the caller's line. In a function being traced it becomes an equation. Otherwise it is
/// compiled for these operands and executed immediately.
///
/// Like all operations it does not fail immediately. Instead, the results of an invalid operation carry the error with
/// the user's line. This is the caller's line if the function that calls `bind` is `#[track_caller]`.
#[track_caller]
pub fn bind(primitive: impl Primitive + 'static, args: &[Array]) -> Outputs {
    trace::bind(Arc::new(primitive), args)
}

/// Like [`bind`], for a primitive with one result.
#[track_caller]
pub fn bind1(primitive: impl Primitive + 'static, args: &[Array]) -> Array {
    trace::bind1(primitive, args)
}

/// An operation of programs: a struct that holds its parameters, with all its rules.
///
/// The struct must derive `Clone, Debug, PartialEq, Eq, Hash`, because its parameters are part of the key of a compiled
/// program: two equal primitives must compute the same. `infer` and `lower` are enough for eager execution and `jit`.
/// You need the other rules only to differentiate, batch or partition the primitive.
///
/// [The module](crate::primitive) has an example.
pub trait Primitive: AnyPrimitive + Run + Debug + Send + Sync {
    /// The name in a printed program.
    fn name(&self) -> &'static str;

    /// The number of results.
    fn output_count(&self) -> usize {
        1
    }

    /// The result types for these operand types, or an error if the operands are invalid. The number of operands is
    /// whatever the caller passed to [`bind`]: check it before indexing, unless only your own function calls `bind`.
    ///
    /// [`vary`](Primitive::vary) sets the `vma` of the results.
    fn infer(&self, args: &[Aval]) -> Result<Avals>;

    /// Returns `true` if operands and results can be random keys, because the primitive moves or compares elements of
    /// any type. By default only primitives with sub-programs return `true`; the operations inside are checked
    /// separately.
    fn accepts_keys(&self) -> bool {
        !self.programs().is_empty()
    }

    /// Writes the operation as StableHLO, and returns its results: values of types `outs`.
    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>>;

    /// Computes the results and their tangents from the operands and their tangents. At least one operand has a
    /// tangent.
    ///
    /// You must compute tangents by linear operations on tangents, so that reverse mode can transpose them. These can
    /// be other primitives, or this one if it has a [`transpose`](Primitive::transpose).
    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Err(err!(NotImplemented, "Differentiation rule for '{}' not implemented", self.name())
            .help("implement `Primitive::jvp`; or wrap the function in `custom_jvp`, or its constant parts in `stop_gradient`"))
    }

    /// Like [`jvp`](Primitive::jvp), but separates the part that depends on the tangents from the part that does not.
    ///
    /// Only higher-order primitives implement it. For all others the tracer separates the two parts.
    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        self.jvp(args, tangents)
    }

    /// Computes the cotangents of the linear operands from the cotangents of the results. The entries of non-linear
    /// operands are `None`.
    fn transpose(&self, _cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Err(err!(
            NotImplemented,
            "Transpose rule (for reverse-mode differentiation) for '{}' not implemented",
            self.name()
        )
        .help("implement `Primitive::transpose`, or compute the gradient by forward mode (`jvp`, `jacfwd`)"))
    }

    /// Computes the results if some operands have a batch axis, and returns the batch axes of the results.
    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Err(err!(NotImplemented, "Batching rule for '{}' not implemented", self.name())
            .help("implement `Primitive::batch`, or call the function on each example with `map`"))
    }

    /// The manual axes over which the results vary. By default these are all axes of the operands.
    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let union = args.iter().fold(AxisSet::default(), |a, b| a.union(b));
        Ok(SmallVec::from_elem(union, self.output_count()))
    }

    /// The shardings in the types of the results. It is called if an operand or the context mesh has axes of type
    /// [`Explicit`](crate::AxisType::Explicit). By default it returns an error that names `auto_axes`.
    ///
    /// The methods of [`ShardingRule`] are the usual rules; for example, an elementwise operation returns
    /// `rule.join()`.
    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        Err(rule.reject())
    }

    /// The unreduced and reduced axes of the results. It is called if an operand has such axes. By default it returns
    /// an error.
    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Err(rule.reject_partial())
    }

    /// Returns `true` if the operation accepts operands that are unreduced maxima or minima, because it computes the
    /// same before and after they are combined. Sums are the business of [`partial_rule`](Self::partial_rule) alone.
    #[doc(hidden)]
    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        false
    }

    /// The mesh of the results, if operands can be on another mesh.
    #[doc(hidden)]
    fn enters_mesh(&self) -> Option<AbstractMesh> {
        None
    }

    /// The sharding that the parameters specify for the result. Its mesh is used if neither an operand nor the context
    /// has a mesh.
    #[doc(hidden)]
    fn requested_sharding(&self) -> Option<&Typed> {
        None
    }

    /// Returns `true` if the compiler fuses the operation into the loops that use its result, because it is elementwise
    /// or moves elements.
    #[doc(hidden)]
    fn is_fused(&self) -> bool {
        false
    }

    /// Returns `true` if operands must vary over the same axes. Operands that do not are cast.
    fn casts_operands(&self) -> bool {
        true
    }

    /// Returns `true` if the operation communicates over the named axis.
    fn uses_axis(&self, name: AxisName) -> bool {
        self.programs().iter().any(|p| grow(|| p.eqns.iter().any(|e| e.primitive.uses_axis(name))))
    }

    /// The sub-programs among the parameters.
    fn programs(&self) -> Vec<&Program> {
        Vec::new()
    }

    /// The program that the primitive is equivalent to, with the same operands and results, unless it is differentiated or
    /// batched.
    #[doc(hidden)]
    fn equivalent_program(&self) -> Option<&Program> {
        None
    }

    /// The form for eager execution with an operand of this type, if calls with different parameters can share a
    /// program.
    #[doc(hidden)]
    fn eager_form(&self, _operand: &Aval) -> Option<EagerForm> {
        None
    }

    /// The program that the primitive calls, if other equations can call the same one.
    #[doc(hidden)]
    fn callee(&self) -> Option<&SharedProgram> {
        None
    }

    /// The number of floating-point operations for operands and results of these types, summed over all devices
    /// ([`Program::flops`]). By default it counts the sub-programs once each, and is zero without sub-programs.
    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        self.programs().iter().map(|p| grow(|| p.flops())).fold(Flops::default(), std::ops::Add::add)
    }

    /// The parameters in a printed program, as `name=value` separated by spaces; sub-programs are printed separately.
    fn print_params(&self) -> String {
        String::new()
    }

    /// A sharding over devices that the primitive names. A program that contains the primitive runs on these devices.
    fn placed_on(&self) -> Option<Sharding> {
        None
    }

    /// A sharding over as many devices as the primitive needs. A program that contains the primitive runs on these
    /// devices if nothing else names devices.
    #[doc(hidden)]
    fn placed_by_default(&self) -> Option<Sharding> {
        None
    }

    /// The sharding required for an uncommitted operand; `None` if the primitive accepts any.
    fn in_sharding(&self, _operand: usize, _aval: &Aval) -> Option<Sharding> {
        None
    }

    /// The sharding of a result, if it is determined before compilation.
    fn out_sharding(&self, _result: usize, _aval: &Aval) -> Option<NamedSharding> {
        None
    }

    /// The memory kind of the results, if the primitive determines it.
    #[doc(hidden)]
    fn memory_kind(&self) -> Option<MemoryKind> {
        None
    }

    /// The layout of the result in memory, if the primitive determines it.
    #[doc(hidden)]
    fn layout(&self) -> Option<KnownLayout> {
        None
    }

    /// An object that must live as long as a program that contains it, such as a host function.
    fn retained(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Computes the results and threads a state through the sub-programs, which can change it.
    #[doc(hidden)]
    fn thread_state(&self, _thread: &dyn ThreadState, _args: &[Array], _state: &mut Vec<Array>) -> Result<Outputs> {
        Err(err!(
            NotImplemented,
            "checks, ordered effects, and refs from outside are not supported inside of '{}'",
            self.name()
        ))
    }

    /// Returns `true` if the operation must not be dropped when no result is used, nor merged with an equal one.
    fn has_effects(&self) -> bool {
        self.programs().iter().any(|p| grow(|| p.eqns.iter().any(|e| e.primitive.has_effects())))
    }
}

/// A state threaded through a program from equation to equation: a list of arrays.
#[doc(hidden)]
pub trait ThreadState {
    /// Returns `true` if an equation of this program can change the state.
    fn concerns(&self, program: &Program) -> bool;

    /// Applies an equation without sub-programs, and updates the state.
    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs>;

    /// Applies an equation, some of whose sub-programs concern the state, and updates the state.
    fn apply_nested(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs>;

    /// Casts the state to the types that it must have at every step, for example as part of a loop's carry.
    fn cast_state(&self, state: &mut Vec<Array>) -> Result<()>;

    /// Combines the stacked states of the devices of a `shard_map`.
    fn gather(&self, state: &mut Vec<Array>) -> Result<()>;
}

/// Eager execution of a primitive on concrete arrays. The runtime implements it for every primitive.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a primitive must compare and hash: its parameters are part of the key of a compiled program",
    note = "put `#[derive(Clone, Debug, PartialEq, Eq, Hash)]` on `{Self}`"
)]
pub trait Run {
    /// Returns the results for these operands, which are concrete arrays or plain numbers.
    fn run(self: Arc<Self>, args: &[Array]) -> Result<Outputs>;
}

/// The parts of a primitive that do not depend on its type. Implemented for every primitive.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a primitive must compare and hash: its parameters are part of the key of a compiled program",
    note = "put `#[derive(Clone, Debug, PartialEq, Eq, Hash)]` on `{Self}`"
)]
pub trait AnyPrimitive: Any {
    fn as_any(&self) -> &dyn Any;
    fn dyn_eq(&self, other: &dyn Primitive) -> bool;
    fn dyn_hash(&self, state: &mut dyn Hasher);
}

impl<P: Primitive + Eq + Hash + Any> AnyPrimitive for P {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn dyn_eq(&self, other: &dyn Primitive) -> bool {
        other.as_any().downcast_ref::<P>() == Some(self)
    }
    fn dyn_hash(&self, mut state: &mut dyn Hasher) {
        std::any::TypeId::of::<P>().hash(&mut state);
        self.hash(&mut state);
    }
}
