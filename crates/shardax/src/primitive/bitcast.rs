//! Reading the bits of an element as another dtype of the same width.

use smallvec::{SmallVec, smallvec};

use super::elementwise;
use super::{BatchAxis, Dims, Outputs, Primitive, Tangents};
use crate::array::Array;
use crate::dtype::{Category, DType};
use crate::error::{Result, err};
use crate::lower::{Lowering, Value};
use crate::program::Aval;
use crate::program::trace::bind1;

/// The same bits as elements of `dtype`. It has no derivative.
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

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let from = args[0].dtype;
        let casts = |d: DType| !d.is_complex() && d.category() != Category::Bool;
        if from != self.dtype && (!casts(from) || !casts(self.dtype) || from.bits() != self.dtype.bits()) {
            return Err(err!(Type, "bitcast_convert_type cannot read {from} as {}", self.dtype)
                .help("both must be numbers of one width, not complex"));
        }
        Ok(smallvec![args[0].with_dtype(self.dtype)])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.bitcast_convert", args, "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise::batch(axis, args, dims, |args| self.apply(&args[0]))
    }
}
