//! Reinterpretation of the bits of elements as another dtype.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{Category, DType};
use crate::error::{Result, err};
use crate::sharding::DimSpec;

/// Reinterprets the bits as elements of `dtype`. A narrower dtype adds a last dimension, a wider dtype removes it. It
/// has no derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BitcastConvert {
    pub dtype: DType,
}

impl BitcastConvert {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }
}

impl Primitive for BitcastConvert {
    fn name(&self) -> &'static str {
        "bitcast_convert_type"
    }

    fn print_params(&self) -> String {
        format!("dtype={}", self.dtype)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let from = args[0].dtype;
        let mut dtypes = [from, self.dtype].into_iter();
        if from != self.dtype && dtypes.any(|d| d.is_complex() || d.category() == Category::Bool) {
            return Err(err!(Type, "bitcast_convert_type cannot read {from} as {}", self.dtype)
                .help("bitcast between real dtypes; view the real and imaginary parts separately"));
        }
        let (old, new) = (from.bits(), self.dtype.bits());
        let mut shape = args[0].shape.clone();
        if new < old {
            shape.push(old / new);
        } else if new > old && shape.pop() != Some(new / old) {
            return Err(err!(
                Type,
                "bitcast_convert_type of {} to {} needs a last dimension of size {}",
                args[0],
                self.dtype,
                new / old
            )
            .help("it holds the parts of each wider element: make it with `reshape`"));
        }
        Ok(smallvec![args[0].with_shape(shape).with_dtype(self.dtype)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        let (from, to) = (rule.args()[0].rank(), rule.outs()[0].rank());
        rule.check_unsharded(0, to..from)?;
        rule.dims((0..to).map(|d| if d < from { rule.entry(0, d) } else { DimSpec::None }))
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.bitcast_convert", args, "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        // The batch moves to the front, where the width of the elements does not matter.
        Ok((smallvec![self.apply(&axis.moved(&args[0], dims[0], 0))], vec![Some(0)]))
    }
}
