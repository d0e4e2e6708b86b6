//! Matrix-vector products on CPU, in forms that XLA computes fast (`docs/plugin.md`).

use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::precision::Precision;
use crate::shape::{Shape, sizes_are_open};

/// Smaller matrices cost less than a separate loop.
const MIN_ELEMENTS: usize = 4096;

/// An operand, its contracted dimensions, and its batch dimensions.
type Side<'a> = (Value, &'a [usize], &'a [usize]);

/// Lowers `dot` to another form, if one operand has a single row and there is a better form.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    if !cx.is_local() || sizes_are_open() || !matches!(out.dtype, DType::F32 | DType::F64 | DType::Bf16 | DType::F16) {
        return None;
    }
    let (lhs, rhs) = ((args[0], &*dot.lhs_contract, &*dot.lhs_batch), (args[1], &*dot.rhs_contract, &*dot.rhs_batch));
    let (vector, matrix) = match (is_vector(cx, lhs), is_vector(cx, rhs)) {
        (true, _) => (lhs, rhs),
        (_, true) => (rhs, lhs),
        _ => return None,
    };
    if cx.dtype(vector.0) != out.dtype || cx.aval(matrix.0).size() < MIN_ELEMENTS {
        return None;
    }
    if vector.2.is_empty() {
        flat(dot.precision, cx, vector, matrix, out)
    } else {
        rows(dot.precision, cx, vector, matrix, out)
    }
}

/// Returns `true` if each matrix of the batch has one row.
fn is_vector(cx: &Lowering, (v, contract, batch): Side) -> bool {
    let shape = cx.shape(v);
    free(shape.len(), contract, batch).into_iter().all(|d| shape[d] == 1)
}

fn reshaped(cx: &mut Lowering, v: Value, dims: &[usize]) -> Value {
    let to = Aval::new(cx.dtype(v), Shape::from_slice(dims));
    cx.op("stablehlo.reshape", &[v], "", &to)
}

fn converted(cx: &mut Lowering, v: Value, dtype: DType) -> Value {
    let to = Aval::new(dtype, cx.shape(v).clone());
    if cx.dtype(v) == dtype { v } else { cx.op("stablehlo.convert", &[v], "", &to) }
}

/// Materializes the matrix in two dimensions; otherwise XLA (xla-cpu-pjrt 0.0.1) fuses the computation of the matrix,
/// even a reshape, into the product's loop. This loop traverses the matrix in column order, and is 20 times as slow as
/// a product with a matrix in memory. Checked by `a_matrix_that_is_computed_is_kept_for_a_vector`.
fn flat(precision: Option<Precision>, cx: &mut Lowering, vector: Side, matrix: Side, out: &Aval) -> Option<Value> {
    let shape = cx.shape(matrix.0).clone();
    let (rank, depth) = (shape.len(), matrix.1.len());
    // The contracted dimensions of the matrix are adjacent, and the vector has them in the same order, so a reshape of
    // both is enough.
    let first = matrix.1.first() == Some(&0);
    let together = matrix.1.iter().copied().eq(if first { 0..depth } else { rank - depth..rank });
    let is_in_memory = rank <= 2 && matches!(out.dtype, DType::F32 | DType::F64);
    if is_in_memory || !together || vector.1.windows(2).any(|w| w[0] > w[1]) {
        return None;
    }
    let contracted: usize = matrix.1.iter().map(|&d| shape[d]).product();
    let free = cx.aval(matrix.0).size() / contracted;
    let matrix = reshaped(cx, matrix.0, &if first { [contracted, free] } else { [free, contracted] });
    let vector = reshaped(cx, vector.0, &[1, contracted]);
    // Half precision is multiplied in float32 in any case.
    let wide = if out.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let [vector, matrix] = [vector, matrix].map(|v| converted(cx, v, wide));
    let operands = [vector, cx.materialize(matrix)];
    let product = product(precision, cx, operands, if first { 0 } else { 1 }, free);
    let product = converted(cx, product, out.dtype);
    Some(cx.op("stablehlo.reshape", &[product], "", out))
}

/// Multiplies each row with the vector elementwise, then multiplies these rows with ones. Used if the batch does not
/// come first in the matrix, as for the keys of attention, because the matrix would have to be transposed otherwise.
fn rows(precision: Option<Precision>, cx: &mut Lowering, vector: Side, matrix: Side, out: &Aval) -> Option<Value> {
    let aval = cx.aval(matrix.0);
    let last = aval.rank() - 1;
    if aval.dtype.byte_size() < 4 || matrix.1 != [last] || matrix.2.iter().copied().eq(0..matrix.2.len()) {
        return None;
    }
    // The dimension of the matrix for each of the vector's dimensions, except the dimension of the single row.
    let shape = cx.shape(vector.0).clone();
    let places: Vec<usize> = (0..shape.len())
        .filter_map(|d: usize| match vector.2.iter().position(|&b| b == d) {
            Some(i) => Some(matrix.2[i]),
            None => vector.1.contains(&d).then_some(last),
        })
        .collect();
    if places.windows(2).any(|w| w[0] > w[1]) {
        return None;
    }
    let products = scaled(cx, matrix.0, vector.0, &places);
    let (depth, count) = (aval.shape[last], aval.size() / aval.shape[last]);
    let products = reshaped(cx, products, &[count, depth]);
    let products = cx.materialize(products);
    let ones = cx.constant(Scalar::float(1.0), &Aval::new(out.dtype, Shape::from_slice(&[1, depth])));
    let sums = product(precision, cx, [ones, products], 1, count);
    // The result has the batch first, as the operands name it.
    let sums = reshaped(cx, sums, &aval.shape[..last]);
    let order: Vec<usize> = matrix.2.iter().copied().chain(free(last, &[], matrix.2)).collect();
    let ordered = Aval::new(out.dtype, order.iter().map(|&d| aval.shape[d]).collect::<Vec<_>>());
    let sums = cx.op("stablehlo.transpose", &[sums], &format!("permutation = {}", ints(&order)), &ordered);
    Some(cx.op("stablehlo.reshape", &[sums], "", out))
}

/// Computes the elementwise product of `matrix` and `vector`, whose dimensions are these dimensions of the matrix, in
/// as few dimensions as possible, because XLA's loops over few dimensions are several times as fast.
fn scaled(cx: &mut Lowering, matrix: Value, vector: Value, places: &[usize]) -> Value {
    let aval = cx.aval(matrix);
    // Merges neighbouring dimensions if the vector has both of them, or neither.
    let mut sizes: Vec<(bool, usize)> = Vec::new();
    for (d, &size) in aval.shape.iter().enumerate().filter(|(_, size)| **size != 1) {
        match (places.contains(&d), sizes.last_mut()) {
            (has, Some((had, merged))) if has == *had => *merged *= size,
            (has, _) => sizes.push((has, size)),
        }
    }
    let merged = Aval::new(aval.dtype, sizes.iter().map(|s| s.1).collect::<Vec<_>>());
    let (dims, vector_sizes): (Vec<usize>, Vec<usize>) =
        sizes.iter().enumerate().filter(|(_, s)| s.0).map(|(d, s)| (d, s.1)).unzip();
    let (matrix, vector) = (reshaped(cx, matrix, &merged.shape), reshaped(cx, vector, &vector_sizes));
    let vector = cx.broadcast_in_dim(vector, &dims, &merged);
    cx.op("stablehlo.multiply", &[matrix, vector], "", &merged)
}

/// `[1, n] × [n, free]`, or its other orientation: contracts dimension 1 and `dim`.
pub(crate) fn product(
    precision: Option<Precision>,
    cx: &mut Lowering,
    operands: [Value; 2],
    dim: usize,
    free: usize,
) -> Value {
    let dtype = cx.dtype(operands[0]);
    let dims = format!(
        "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [{dim}]>, {}",
        Precision::config(precision)
    );
    cx.op("stablehlo.dot_general", &operands, &dims, &Aval::new(dtype, Shape::from_slice(&[1, free])))
}
