//! Products of a vector with a vector or a matrix on CPU, if each result adds many products.
//!
//! XLA (xla-cpu-pjrt 0.0.1) adds the products of a result as one chain for each lane of a SIMD vector, and the products
//! of two vectors as one chain. Therefore the product of two float32 vectors of 2^24 elements between 0 and 1 is off by
//! 2 %. An elementwise product and its sum (`sums`) read the matrix only once too.

use super::sums;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::dtype::Category;
use crate::error::Result;
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::ops::primitive::reduce::{Reducer, accumulator};
use crate::shape::{Shape, sizes_are_open};

/// The shortest sum that is computed this way.
const MIN_ADDENDS: usize = 1 << 13;

/// One operand, its contracted dimensions and its batch dimensions.
#[derive(Clone, Copy)]
struct Operand<'a> {
    value: Value,
    contract: &'a [usize],
    batch: &'a [usize],
}

impl Operand<'_> {
    fn free(&self, cx: &Lowering) -> Vec<usize> {
        free(cx.shape(self.value).len(), self.contract, self.batch)
    }

    /// Returns `true` if each matrix of the batch has one row.
    fn is_vector(&self, cx: &Lowering) -> bool {
        self.free(cx).into_iter().all(|d| cx.shape(self.value)[d] == 1)
    }
}

/// Lowers `dot` to a product and a sum, if an operand is a vector and the sums are long.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Option<Value>> {
    let lhs = Operand { value: args[0], contract: &dot.lhs_contract, batch: &dot.lhs_batch };
    let rhs = Operand { value: args[1], contract: &dot.rhs_contract, batch: &dot.rhs_batch };
    let addends: usize = lhs.contract.iter().map(|&d| cx.shape(lhs.value)[d]).product();
    let is_inexact = matches!(out.dtype.category(), Category::Float | Category::Complex);
    if !cx.has_quirk("long-chains-of-additions") || !is_inexact || sizes_are_open() || addends < MIN_ADDENDS {
        return Ok(None);
    }
    // The compiler would partition the products of a matrix differently.
    let (vector, matrix) = match (lhs.is_vector(cx), rhs.is_vector(cx)) {
        (true, true) => (lhs, rhs),
        (true, false) if cx.is_local() => (lhs, rhs),
        (false, true) if cx.is_local() => (rhs, lhs),
        _ => return Ok(None),
    };
    let dtype = accumulator(out.dtype);
    let matrix_type = cx.aval(matrix.value).with_dtype(dtype);
    let [factors, elements] = [vector, matrix].map(|operand| convert(cx, operand.value, &matrix_type));
    // The dimensions of the vector that the matrix has too, in the vector's order.
    let pairs = vector.contract.iter().zip(matrix.contract).chain(vector.batch.iter().zip(matrix.batch));
    let mut shared: Vec<(usize, usize)> = pairs.map(|(&v, &m)| (v, m)).collect();
    shared.sort_unstable();
    let sizes: Shape = shared.iter().map(|&(_, m)| matrix_type.shape[m]).collect();
    let factors = cx.op("stablehlo.reshape", &[factors], "", &Aval::new(dtype, sizes));
    let dims: Vec<usize> = shared.iter().map(|&(_, m)| m).collect();
    let factors = cx.broadcast_in_dim(factors, &dims, &matrix_type);
    let products = cx.op("stablehlo.multiply", &[factors, elements], "", &matrix_type);

    let mut axes = matrix.contract.to_vec();
    axes.sort_unstable();
    let kept: Vec<usize> = (0..matrix_type.rank()).filter(|d| !axes.contains(d)).collect();
    let sums_type = Aval::new(dtype, kept.iter().map(|&d| matrix_type.shape[d]).collect::<Shape>());
    let value = sums::reduce(Reducer::Sum, &axes, cx, products, &sums_type)?;
    let order: Vec<usize> = matrix.batch.iter().copied().chain(matrix.free(cx)).collect();
    let permutation: Vec<usize> = order.iter().filter_map(|d| kept.iter().position(|k| k == d)).collect();
    let transposed = Aval::new(dtype, order.iter().map(|&d| matrix_type.shape[d]).collect::<Shape>());
    let value = cx.op("stablehlo.transpose", &[value], &format!("permutation = {}", ints(&permutation)), &transposed);
    let value = cx.op("stablehlo.reshape", &[value], "", &out.with_dtype(dtype));
    Ok(Some(convert(cx, value, out)))
}

/// Converts `value` to the dtype of `to`.
fn convert(cx: &mut Lowering, value: Value, to: &Aval) -> Value {
    let converted = cx.aval(value).with_dtype(to.dtype);
    if cx.dtype(value) == to.dtype { value } else { cx.op("stablehlo.convert", &[value], "", &converted) }
}
