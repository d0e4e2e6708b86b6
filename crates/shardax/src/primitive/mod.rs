//! Primitives: each is one struct with all its rules side by side.
//!
//! To add one, write a struct with its parameters, derive `Clone, Debug, PartialEq, Eq, Hash`, and
//! implement [`Primitive`]: the result type, the lowering, and the rules of differentiation and batching
//! it has. Rules are ordinary shardax code on [`Array`]s, so they nest and differentiate like a user's.

pub(crate) mod binary;
pub(crate) mod bitcast;
pub(crate) mod call;
pub(crate) mod checkpoint;
pub(crate) mod cholesky;
pub(crate) mod clamp;
pub(crate) mod composite;
pub(crate) mod cond;
pub(crate) mod conv;
mod conv_dot;
pub(crate) mod cumulative;
pub(crate) mod custom_jvp;
pub(crate) mod custom_vjp;
pub(crate) mod det;
pub(crate) mod dot;
pub(crate) mod dynamic_slice;
pub(crate) mod eigh;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod held;
pub(crate) mod lu;
pub(crate) mod matrix;
pub(crate) mod optimization_barrier;
pub(crate) mod qr;
pub(crate) mod reduce;
pub(crate) mod reduce_window;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod select_and_gather;
pub(crate) mod shape_ops;
pub(crate) mod sort;
pub(crate) mod threefry;
pub(crate) mod top_k;
pub(crate) mod triangular_solve;
pub(crate) mod unary;
pub(crate) mod while_loop;
pub(crate) mod window;

use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use crate::array::Array;
use crate::error::{Result, err};
use crate::lower::{Lowering, Value};
use crate::program::{Aval, Program};
use crate::shape::{AxisName, AxisSet};

pub type Outputs = SmallVec<[Array; 1]>;
/// A tangent or cotangent for each value; `None` is a zero that is never computed.
pub type Tangents = Vec<Option<Array>>;
/// The batched axis of each value; `None` where it is not batched.
pub type Dims = Vec<Option<usize>>;

/// What a mapped axis is called and how long it is, for batching rules.
#[derive(Clone, Debug)]
pub struct BatchAxis {
    pub size: usize,
    pub name: Option<AxisName>,
    /// The mesh axes that the batch is sharded over inside (`spmd_axis_name`).
    pub spmd_names: SmallVec<[AxisName; 2]>,
}

/// An operand of an equation being transposed.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A value that the linear function does not vary with.
    Known(Array),
    /// A value that it is linear in: its cotangent is wanted.
    Linear(Aval),
}

impl Operand {
    pub fn is_linear(&self) -> bool {
        matches!(self, Operand::Linear(_))
    }

    pub fn aval(&self) -> Aval {
        match self {
            Operand::Known(a) => a.aval(),
            Operand::Linear(aval) => aval.clone(),
        }
    }

    pub fn known(&self) -> Result<&Array> {
        match self {
            Operand::Known(a) => Ok(a),
            Operand::Linear(_) => Err(err!(NotImplemented, "transpose with respect to an operand that is not linear")),
        }
    }
}

/// An operation that programs are made of.
pub trait Primitive: AnyPrimitive + Debug + Send + Sync {
    /// The name in a printed program.
    fn name(&self) -> &'static str;

    /// How many results it has.
    fn output_count(&self) -> usize {
        1
    }

    /// The result types for these operand types, or what is wrong with the operands.
    /// The `vma` of the results is set by [`vary`](Primitive::vary).
    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>>;

    /// Writes its StableHLO.
    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>>;

    /// The results and their tangents, from the operands and theirs.
    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Err(err!(NotImplemented, "Differentiation rule for '{}' not implemented", self.name()))
    }

    /// As [`jvp`](Primitive::jvp), with the part that depends on the tangents kept apart from the part that does not.
    ///
    /// Only primitives that hold programs write their own: for all others the tracer keeps the two apart.
    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        self.jvp(args, tangents)
    }

    /// The cotangents of the linear operands, from those of the results.
    fn transpose(&self, _cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Err(err!(
            NotImplemented,
            "Transpose rule (for reverse-mode differentiation) for '{}' not implemented",
            self.name()
        ))
    }

    /// The results for operands of which some have a batch axis.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)>;

    /// The manual axes that the results vary over. By default all that an operand varies over.
    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let union = args.iter().fold(AxisSet::default(), |a, b| a.union(b));
        Ok(SmallVec::from_elem(union, self.output_count()))
    }

    /// Whether operands must vary over the same axes (and are cast to when they do not).
    fn casts_operands(&self) -> bool {
        true
    }

    /// Whether it communicates over the named axis.
    fn uses_axis(&self, name: AxisName) -> bool {
        self.programs().iter().any(|p| p.eqns.iter().any(|e| e.primitive.uses_axis(name)))
    }

    /// The programs among its parameters.
    fn programs(&self) -> Vec<&Program> {
        Vec::new()
    }

    /// The parameters in a printed program, as `name=value` separated by spaces; programs are printed apart.
    fn print_params(&self) -> String {
        String::new()
    }

    /// Whether it must be kept though no result is used, or may not be merged with its equal.
    fn has_effects(&self) -> bool {
        self.programs().iter().any(|p| p.eqns.iter().any(|e| e.primitive.has_effects()))
    }
}

/// The parts of a primitive that do not depend on what it computes; implemented for every primitive.
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
