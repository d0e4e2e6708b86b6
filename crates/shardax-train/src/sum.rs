//! Sums that stay accurate over many steps and over devices.

use shardax::error::Error;
use shardax::prelude::*;

/// A sum of scalars in three numbers, which add up to it. They carry 56 bits together, so that a million losses in half
/// precision, or counts beyond 2³², are added without rounding; float64 would do, but not every device adds it across
/// devices.
///
/// The first two numbers have 16 significant bits each, so that [`psum`] adds them exactly over up to 256 devices.
#[derive(Tree, Clone, Debug)]
pub(crate) struct Sum {
    high: Array,
    middle: Array,
    low: Array,
}

impl Sum {
    /// Returns the sum so far: a scalar of any dtype of real numbers. It is kept in float64 if it has that dtype,
    /// otherwise in float32.
    #[track_caller]
    pub fn of(sum: &Array) -> Self {
        Sum::in_dtype(sum, if sum.dtype() == DType::F64 { DType::F64 } else { DType::F32 })
    }

    /// Returns the sum of all elements of `values`, which is added up in float32 at least, or in int64.
    #[track_caller]
    pub fn from_values(values: &Array) -> Self {
        Sum::of(&widened(values).sum(..))
    }

    /// Returns the sum in three numbers of this dtype.
    #[track_caller]
    pub fn in_dtype(sum: &Array, dtype: DType) -> Self {
        let exponent_bits = if dtype == DType::F64 { 11 } else { 8 };
        let sum = sum.astype(DType::F64);
        let high = lax::reduce_precision(&sum.astype(dtype), exponent_bits, 15);
        // An infinity minus itself would be NaN.
        let finite = high.isfinite();
        let remainder = where_(&finite, &sum - high.astype(DType::F64), 0.0);
        let middle = lax::reduce_precision(&remainder.astype(dtype), exponent_bits, 15);
        let low = (remainder - middle.astype(DType::F64)).astype(dtype);
        Sum { high, middle, low }
    }

    /// A sum whose computation failed.
    pub fn failed(error: Error) -> Self {
        let sum = Array::from_error(error, &zeros_dtype((), DType::F32));
        Sum { high: sum.clone(), middle: sum.clone(), low: sum }
    }

    /// Returns the dtype that the sum is kept in.
    pub fn dtype(&self) -> DType {
        self.high.dtype()
    }

    /// Returns the sum as one number, float64.
    #[track_caller]
    pub fn value(&self) -> Array {
        self.high.astype(DType::F64) + self.middle.astype(DType::F64) + self.low.astype(DType::F64)
    }

    /// Returns the sum of both.
    #[track_caller]
    pub fn merge(&self, other: &Sum) -> Sum {
        let dtype = if other.dtype() == DType::F64 { DType::F64 } else { self.dtype() };
        Sum::in_dtype(&(self.value() + other.value()), dtype)
    }
}

/// `values` in a dtype in which they can be added up: int64 for integers and booleans, otherwise float32 or float64.
#[track_caller]
pub(crate) fn widened(values: &Array) -> Array {
    match values.dtype() {
        dtype if dtype == DType::Bool || dtype.is_integer() => values.astype(DType::I64),
        dtype if dtype.byte_size() < 4 => values.astype(DType::F32),
        _ => values.clone(),
    }
}
