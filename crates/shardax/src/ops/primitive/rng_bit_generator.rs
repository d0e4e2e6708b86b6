//! Random bits of the platform's own generator, from a state.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::shape::Shape;

/// The generator of [`rng_bit_generator`](crate::lax::rng_bit_generator) (JAX's `RandomAlgorithm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RandomAlgorithm {
    /// The platform's own.
    #[default]
    Default,
    /// Threefry-2x32.
    ThreeFry,
    /// Philox-4x32.
    Philox,
}

impl RandomAlgorithm {
    fn mlir(self) -> &'static str {
        match self {
            RandomAlgorithm::Default => "DEFAULT",
            RandomAlgorithm::ThreeFry => "THREE_FRY",
            RandomAlgorithm::Philox => "PHILOX",
        }
    }
}

/// `rng_bit_generator(state)`: the next state, and bits as unsigned integers. States are uint64 of `[2]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RngBitGenerator {
    pub shape: Shape,
    pub dtype: DType,
    pub algorithm: RandomAlgorithm,
}

impl RngBitGenerator {
    #[track_caller]
    pub fn apply(self, state: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(state))
    }
}

impl Primitive for RngBitGenerator {
    fn name(&self) -> &'static str {
        "rng_bit_generator"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn print_params(&self) -> String {
        format!("shape={:?} dtype={} algorithm={}", self.shape.as_slice(), self.dtype, self.algorithm.mlir())
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if args[0].dtype != DType::U64 || args[0].shape.as_slice() != [2] {
            return Err(err!(Type, "rng_bit_generator takes a state of uint64[2], got {}", args[0])
                .help("pass two uint64 numbers, for example `array([1u64, 2])`"));
        }
        if !self.dtype.is_integer() || self.dtype.is_signed() || self.dtype.is_narrow() {
            return Err(err!(
                Type,
                "rng_bit_generator generates unsigned integers of 8 to 64 bits, got {}",
                self.dtype
            ));
        }
        Ok(smallvec![args[0].clone(), args[0].with_shape(self.shape.clone()).with_dtype(self.dtype)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.check_unsharded(0, 0..1)?;
        rule.replicated()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("rng_algorithm = #stablehlo<rng_algorithm {}>", self.algorithm.mlir());
        Ok(cx.op_with("stablehlo.rng_bit_generator", args, &attrs, Vec::new(), outs))
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((self.clone().apply(&args[0]), vec![None, None]))
    }

    /// Each state generates separate bits, in a loop. JAX uses the first state for the entire batch instead; a batched
    /// loop whose first entry has ended would then never end, because the state of an ended entry stays.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let states = axis.moved(&args[0], dims[0], 0);
        let (next, bits): (Array, Array) = lax::map(
            |state: Array| {
                let outs = self.clone().apply(&state);
                (outs[0].clone(), outs[1].clone())
            },
            states,
        )?;
        Ok((smallvec![next, bits], vec![Some(0), Some(0)]))
    }
}
