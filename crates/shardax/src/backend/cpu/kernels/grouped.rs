//! Products of rows and a matrix of integers of 4 or 8 bits in groups, such as tokens and a decoder's weights in the formats of GGUF, GPTQ
//! and AWQ: `scale * integer - minimum`, with the scale and the minimum of each group. XLA (xla-cpu-pjrt 0.0.1) writes the matrix in f32
//! first, and reads integers of 4 bits one at a time.
//!
//! No primitive represents such a matrix. [`follow`] recognizes it by the operations that compute it: a conversion, a multiplication, a
//! subtraction, and operations that move the elements. The compiler removes these operations if only products use the matrix.

use half::f16;
use shardax_cpu_kernels::{self as kernels, GroupNumbers, GroupedIntegers, GroupedMatrix};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame};

use super::few_rows::rows_operand;
use super::matmul::contracted_dim;
use super::{
    call, convert, is_enabled, is_worth, limits, number, numbers, numbers_mut, reshape, size_of_dims, sizes, view,
};
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::binary::Convert;
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::ops::primitive::shape_ops::{BroadcastInDim, Reshape, Transpose};
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_grouped_rows";

/// The origin of a value that belongs to the computation of a matrix.
#[derive(Clone, Copy)]
enum Origin {
    /// These numbers, `[rows, groups]`, repeated along a last dimension.
    PerGroup(Value),
    /// The elements of a matrix, in any shape.
    Matrix(Matrix),
}

/// A matrix of integers in groups.
#[derive(Clone, Copy)]
struct Matrix {
    /// `[rows, groups, size]`
    integers: Value,
    /// `[rows, groups]`
    scales: Value,
    minima: Option<Value>,
    /// Its elements are in the order of the columns.
    is_transposed: bool,
}

/// Stores the origin of an operation's result if it belongs to the computation of a matrix.
pub(in crate::backend) fn follow(cx: &mut Lowering, primitive: &dyn Primitive, args: &[Value], values: &[Value]) {
    let &[value] = values else { return };
    let origin = match *args {
        [x] if x != value => moved(cx, primitive, x, value),
        [x, y] => match primitive.name() {
            "mul" => scaled(cx, x, y).or_else(|| scaled(cx, y, x)),
            "sub" => without_minima(cx, x, y),
            _ => None,
        },
        _ => None,
    };
    if let Some(origin) = origin {
        cx.set_origin(value, origin);
    }
}

/// Returns `true` for a matrix, which products do not read.
pub(in crate::backend) fn is_matrix(cx: &Lowering, v: Value) -> bool {
    matches!(cx.origin(v), Some(Origin::Matrix(_)))
}

/// The origin of elements of `x` that were moved or converted.
fn moved(cx: &Lowering, primitive: &dyn Primitive, x: Value, value: Value) -> Option<Origin> {
    let (any, shape) = (primitive.as_any(), cx.shape(x));
    if let Some(BroadcastInDim { dims, .. }) = any.downcast_ref() {
        let is_prefix = dims.iter().copied().eq(0..dims.len()) && cx.shape(value).len() == 3;
        return if is_prefix { per_group(cx, x) } else { None };
    }
    if any.is::<Reshape>() {
        return match cx.origin(x) {
            Some(Origin::Matrix(matrix)) => Some(Origin::Matrix(*matrix)),
            _ if cx.shape(value)[..] == [&shape[..], &[1]].concat() => per_group(cx, x),
            _ => None,
        };
    }
    let Some(Origin::Matrix(matrix)) = cx.origin(x) else { return None };
    if any.is::<Convert>() {
        // The kernel does not round elements to half precision.
        return matches!(cx.dtype(value), DType::Bf16 | DType::F16).then_some(Origin::Matrix(*matrix));
    }
    let Transpose { permutation } = any.downcast_ref()?;
    let [rows, groups, size] = cx.shape(matrix.integers)[..] else { return None };
    let outer = if matrix.is_transposed { groups * size } else { rows };
    // The first dimensions, which count the rows, come last.
    let split = (0..=shape.len()).find(|split| shape[..*split].iter().product::<usize>() == outer)?;
    let is_swap = permutation.iter().copied().eq((split..shape.len()).chain(0..split));
    is_swap.then_some(Origin::Matrix(Matrix { is_transposed: !matrix.is_transposed, ..*matrix }))
}

/// The origin of a value that repeats numbers of groups.
fn per_group(cx: &Lowering, x: Value) -> Option<Origin> {
    if let Some(origin @ Origin::PerGroup(_)) = cx.origin(x) {
        return Some(*origin);
    }
    let numbers = cx.converted_from(x).filter(|from| cx.dtype(*from) == DType::F16).unwrap_or(x);
    let is_known = matches!(cx.dtype(numbers), DType::F16 | DType::F32) && cx.shape(numbers).len() == 2;
    is_known.then_some(Origin::PerGroup(numbers))
}

/// The origin of the product of integers and their scales.
fn scaled(cx: &Lowering, wide: Value, scales: Value) -> Option<Origin> {
    let integers = cx.converted_from(wide).filter(|_| cx.dtype(wide) == DType::F32)?;
    let Some(Origin::PerGroup(scales)) = cx.origin(scales) else { return None };
    let is_known = matches!(cx.dtype(integers), DType::I4 | DType::U4 | DType::I8);
    let fits = cx.shape(integers).len() == 3 && cx.shape(integers)[..2] == cx.shape(*scales)[..];
    let matrix = Matrix { integers, scales: *scales, minima: None, is_transposed: false };
    (is_known && fits).then_some(Origin::Matrix(matrix))
}

/// The origin of a scaled matrix minus the minima of its groups.
fn without_minima(cx: &Lowering, matrix: Value, minima: Value) -> Option<Origin> {
    let (Some(Origin::Matrix(matrix)), Some(Origin::PerGroup(minima))) = (cx.origin(matrix), cx.origin(minima)) else {
        return None;
    };
    let fits = matrix.minima.is_none() && !matrix.is_transposed && cx.shape(*minima) == cx.shape(matrix.scales);
    fits.then_some(Origin::Matrix(Matrix { minima: Some(*minima), ..*matrix }))
}

/// Lowers the product to a kernel, if one operand is a matrix of integers in groups.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    if !dot.lhs_batch.is_empty() || !matches!(out.dtype, DType::F32 | DType::Bf16 | DType::F16) {
        return None;
    }
    let sides = [(args[0], &*dot.lhs_contract), (args[1], &*dot.rhs_contract)];
    let product_of_rows = product(cx, sides, usize::MAX, out);
    // With exchanged operands the result is transposed. A single row can be transposed without moving elements.
    product_of_rows.or_else(|| product(cx, [sides[1], sides[0]], 1, out))
}

/// Multiplies the rows of an operand with a matrix. Each side is an operand and its contracted dimensions.
fn product(cx: &mut Lowering, sides: [(Value, &[usize]); 2], max_rows: usize, out: &Aval) -> Option<Value> {
    let [(x, x_contract), (w, w_contract)] = sides;
    let Some(Origin::Matrix(matrix)) = cx.origin(w) else { return None };
    let Matrix { integers, scales, minima, is_transposed } = *matrix;
    let [columns, groups, size] = cx.shape(integers)[..] else { return None };
    let (x_free, w_free) = (free(cx.shape(x).len(), x_contract, &[]), free(cx.shape(w).len(), w_contract, &[]));
    let (rows, depth) = (size_of_dims(cx.shape(x), &x_free), size_of_dims(cx.shape(w), w_contract));
    let is_along_groups = depth == groups * size
        && contracted_dim([&[], &w_free, w_contract]).is_some_and(|dim| (dim == 1) == is_transposed);
    let empty = match cx.dtype(integers) {
        DType::I8 => GroupedIntegers::Signed8(&[]),
        _ => GroupedIntegers::Unsigned4(&[]),
    };
    let is_known = is_along_groups && empty.accepts_groups_of(size) && (1..=max_rows).contains(&rows);
    if !is_known || !is_worth(columns.saturating_mul(depth), limits::NARROW_FEW_ROWS) || !is_enabled(cx) {
        return None;
    }
    let x = rows_operand(cx, x, [&x_free, x_contract], [rows, depth]);
    let args: Vec<Value> = [x, integers, scales].into_iter().chain(minima).collect();
    let product = Aval::new(DType::F32, Shape::from_slice(&[rows, columns]));
    let product = call(cx, TARGET, &args, &[], &[product])[0];
    let product = convert(cx, product, out.dtype);
    Some(reshape(cx, product, &out.shape))
}

/// Handles a call: rows, integers, scales and possibly minima.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x, integers, scales, minima @ ..], [out]) = (args, results) else {
        return Err("not three or four operands and a result".into());
    };
    let (rows, shape) = (sizes(x.dims), sizes(integers.dims));
    let matrix = GroupedMatrix {
        shape: shape[..].try_into().map_err(|_| format!("integers of shape {shape:?}"))?,
        integers: match integers.ty {
            ElementType::S4 => GroupedIntegers::Signed4(integers.data),
            ElementType::U4 => GroupedIntegers::Unsigned4(integers.data),
            ElementType::S8 => GroupedIntegers::Signed8(numbers(integers)?),
            other => return Err(format!("a matrix of {other:?}")),
        },
        scales: group_numbers(scales)?,
        minima: minima.first().map(group_numbers).transpose()?,
    };
    Ok(kernels::grouped_rows(view(x, &rows)?, matrix, numbers_mut(out)?, threads)?)
}

fn group_numbers<'a>(arg: &Arg<'a>) -> Result<GroupNumbers<'a>, String> {
    match arg.ty {
        ElementType::F16 => Ok(GroupNumbers::F16(numbers::<f16>(arg)?)),
        ElementType::F32 => Ok(GroupNumbers::F32(numbers(arg)?)),
        other => Err(format!("scales of {other:?}")),
    }
}
