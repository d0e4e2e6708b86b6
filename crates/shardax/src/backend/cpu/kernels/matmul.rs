//! Matmuls of f32 and f64 by the crates `gemm-f32` and `gemm-f64`, and matmuls of bf16 and f16 in f32. XLA's matmuls
//! (xla-cpu-pjrt 0.0.1) take up to three times as long for f64, with a transposed operand (as in gradients), with few
//! rows, and in batches (`docs/plugin.md`).

use shardax_cpu_kernels::{self as kernels, Float, MAX_SMALL_SIDE};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    call, convert, is_always_used, is_enabled, is_worth, limits, number, numbers_mut, reshape, size_of_dims, sizes,
    transpose, view, widened,
};
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::binary::Binary;
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::ops::primitive::shape_ops::{BroadcastInDim, Transpose};
use crate::ops::primitive::unary::Unary;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_dot";

/// The sizes of a matmul.
struct Sizes {
    batch: usize,
    rows: usize,
    columns: usize,
    depth: usize,
}

impl Sizes {
    fn of(dot: &DotGeneral, lhs: &Aval, rhs: &Aval) -> Sizes {
        Sizes {
            batch: size_of_dims(&lhs.shape, &dot.lhs_batch),
            rows: size_of_dims(&lhs.shape, &free(lhs.rank(), &dot.lhs_contract, &dot.lhs_batch)),
            columns: size_of_dims(&rhs.shape, &free(rhs.rank(), &dot.rhs_contract, &dot.rhs_batch)),
            depth: size_of_dims(&lhs.shape, &dot.lhs_contract),
        }
    }

    fn sides(&self) -> [usize; 3] {
        [self.rows, self.columns, self.depth]
    }

    fn work(&self) -> usize {
        self.sides().into_iter().fold(self.batch, usize::saturating_mul)
    }

    /// Returns `true` if the matrices are large enough for a call.
    fn are_large(&self) -> bool {
        let is_wide = is_always_used() || self.sides().iter().all(|side| *side >= limits::MATMUL_SIDE);
        is_wide && is_worth(self.work(), limits::MATMUL)
    }

    /// Returns `true` for a batch of small matrices. XLA starts a task for each of them, whatever its size.
    fn are_small_batch(&self) -> bool {
        self.batch >= limits::SMALL_PRODUCTS_BATCH
            && self.sides().iter().all(|side| (2..=MAX_SMALL_SIDE).contains(side))
            && is_worth(self.work(), limits::SMALL_PRODUCTS)
    }

    /// Returns `true` for few rows and a matrix that does not fit into a cache. XLA reads this matrix faster, because it
    /// does not pack it (`docs/benchmarks.md`).
    fn are_streamed(&self) -> bool {
        self.rows <= limits::FEW_ROWS && self.columns.saturating_mul(self.depth) >= limits::LARGE_MATRIX
    }
}

/// Lowers a matmul of complex numbers to four matmuls of real and imaginary parts, if kernels compute these. XLA's own loop
/// takes longer.
pub(crate) fn lower_complex(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Option<Value>> {
    let [lhs, rhs] = [cx.aval(args[0]), cx.aval(args[1])];
    let sizes = Sizes::of(dot, &lhs, &rhs);
    let is_complex = out.dtype.is_complex() && [&lhs, &rhs].iter().all(|aval| aval.dtype == out.dtype);
    if !is_complex || !sizes.are_large() || sizes.are_streamed() || !is_enabled(cx) {
        return Ok(None);
    }
    let dot = DotGeneral { preferred: None, ..dot.clone() };
    let part = out.with_dtype(out.dtype.real());
    let [a_real, a_imag] = parts(cx, args[0]);
    let [b_real, b_imag] = parts(cx, args[1]);
    let mut products = Vec::with_capacity(4);
    for (a, b) in [(a_real, b_real), (a_imag, b_imag), (a_real, b_imag), (a_imag, b_real)] {
        products.extend(cx.apply(&dot, &[a, b], std::slice::from_ref(&part))?);
    }
    let real = cx.op("stablehlo.subtract", &products[..2], "", &part);
    let imag = cx.op("stablehlo.add", &products[2..], "", &part);
    Ok(Some(cx.op("stablehlo.complex", &[real, imag], "", out)))
}

/// The real and the imaginary part of complex numbers.
fn parts(cx: &mut Lowering, v: Value) -> [Value; 2] {
    let aval = cx.aval(v);
    let part = aval.with_dtype(aval.dtype.real());
    ["stablehlo.real", "stablehlo.imag"].map(|op| cx.op(op, &[v], "", &part))
}

/// Lowers the matmul to a kernel, if it is worthwhile.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let [lhs, rhs] = [cx.aval(args[0]), cx.aval(args[1])];
    if [&lhs, &rhs].iter().any(|aval| aval.dtype != out.dtype) {
        return None;
    }
    let lhs_free = free(lhs.rank(), &dot.lhs_contract, &dot.lhs_batch);
    let rhs_free = free(rhs.rank(), &dot.rhs_contract, &dot.rhs_batch);
    let sizes = Sizes::of(dot, &lhs, &rhs);
    let Sizes { batch, rows, columns, depth } = sizes;
    let dtype = widened(out.dtype);
    let is_small_batch = dtype == out.dtype && sizes.are_small_batch();
    if !matches!(dtype, DType::F32 | DType::F64) || !(sizes.are_large() || is_small_batch) || !is_enabled(cx) {
        return None;
    }
    let parts = [[&*dot.lhs_batch, &*lhs_free, &*dot.lhs_contract], [&*dot.rhs_batch, &*rhs_free, &*dot.rhs_contract]];
    // In other cases XLA is as fast in half precision, because it widens too.
    let is_transposed = matches!(parts.map(contracted_dim), [Some(1), Some(_)] | [Some(_), Some(2)]);
    if (dtype != out.dtype || sizes.are_streamed()) && !is_transposed && !is_always_used() {
        return None;
    }
    let [a, b] = [args[0], args[1]].map(|v| convert(cx, v, dtype));
    let (a, a_dim) = matrices(cx, a, parts[0], [batch, rows, depth]);
    let (b, b_dim) = matrices(cx, b, parts[1], [batch, columns, depth]);
    let is_packed_again = b_dim == 2 && rows <= limits::ROWS_OF_STEP && cx.is_invariant(args[1]);
    let is_transposed_again = rows <= limits::ROWS_OF_STEP && cx.origin::<InvariantTranspose>(args[1]).is_some();
    let (b, b_dim) = match (is_packed_again, is_transposed_again) {
        (true, _) => (transposed_before_loop(cx, b), 1),
        (false, true) => (cx.materialize(b), b_dim),
        (false, false) => (b, b_dim),
    };
    let product = Aval::new(dtype, Shape::from_slice(&[batch, rows, columns]));
    let numbers = [("lhs", a_dim as i64), ("rhs", b_dim as i64)];
    let product = call(cx, TARGET, &[a, b], &numbers, &[product])[0];
    let product = convert(cx, product, out.dtype);
    Some(reshape(cx, product, &out.shape))
}

/// Marks the transpose of a value that is the same in all iterations of a loop, such as the weights of a recurrent layer.
struct InvariantTranspose;

/// The origin of the transpose of another value.
struct TransposeOf {
    operand: Value,
    permutation: SmallVec<[usize; 4]>,
}

/// The origin of a value that is computed element by element from transposes of other values, so that their elements are read in
/// another order than the value's.
struct ElementsOfTransposes {
    permutation: SmallVec<[usize; 4]>,
}

/// The origin of a value that repeats a smaller one, and is read in any order.
pub(super) struct Broadcast {
    pub(super) operand: Value,
}

/// Stores the origin of an operation's result if it is a transpose, or computed element by element from transposes.
pub(in crate::backend) fn follow(cx: &mut Lowering, primitive: &dyn Primitive, args: &[Value], values: &[Value]) {
    let &[value] = values else { return };
    let primitive = primitive.as_any();
    match (primitive.downcast_ref::<Transpose>(), args) {
        (Some(_), [x]) if cx.is_invariant(*x) => cx.set_origin(value, InvariantTranspose),
        (Some(transpose), [x]) if *x != value => {
            cx.set_origin(value, TransposeOf { operand: *x, permutation: transpose.permutation.clone() });
        }
        (_, [operand]) if primitive.is::<BroadcastInDim>() && *operand != value => {
            cx.set_origin(value, Broadcast { operand: *operand });
        }
        _ if (primitive.is::<Binary>() || primitive.is::<Unary>()) && !args.contains(&value) => {
            if let Some(permutation) = common_permutation(cx, args) {
                cx.set_origin(value, ElementsOfTransposes { permutation });
            }
        }
        _ => {}
    }
}

/// The order in which all operands are read that are not read in any order. `None` if it is their own, or if they differ.
fn common_permutation(cx: &Lowering, args: &[Value]) -> Option<SmallVec<[usize; 4]>> {
    let mut ordered = args.iter().filter(|v| !cx.shape(**v).is_empty() && cx.origin::<Broadcast>(**v).is_none());
    let permutation = permutation_of(cx, *ordered.next()?)?.clone();
    ordered.all(|v| permutation_of(cx, *v) == Some(&permutation)).then_some(permutation)
}

fn permutation_of(cx: &Lowering, value: Value) -> Option<&SmallVec<[usize; 4]>> {
    let of_transpose = cx.origin::<TransposeOf>(value).map(|origin| &origin.permutation);
    of_transpose.or_else(|| cx.origin::<ElementsOfTransposes>(value).map(|origin| &origin.permutation))
}

/// Returns the same product of operands that are not transposed, because the kernels read both layouts in place, but a call's
/// operands are written to memory. `None` if no operand is such a transpose, or computed from one element by element.
pub(crate) fn without_transposes(
    dot: &DotGeneral,
    cx: &mut Lowering,
    args: &[Value],
) -> Option<(DotGeneral, [Value; 2])> {
    let (mut dot, mut args, mut is_changed) = (dot.clone(), [args[0], args[1]], false);
    let sides = [(&mut dot.lhs_batch, &mut dot.lhs_contract), (&mut dot.rhs_batch, &mut dot.rhs_contract)];
    for (arg, (batch, contract)) in args.iter_mut().zip(sides) {
        if let Some(operand) = operand_of_transpose(cx, *arg, batch, contract) {
            (*arg, *batch, *contract) = operand;
            is_changed = true;
        }
        if let Some(operand) = in_order_of_elements(cx, *arg, batch, contract) {
            (*arg, *batch, *contract) = operand;
            is_changed = true;
        }
    }
    is_changed.then_some((dot, args))
}

/// Transposes a value that is computed from transposes, so that XLA reads their elements in order and writes them in the same order. Returns
/// its batch and contracted dimensions too. `None` if the result is no batch of matrices in memory.
fn in_order_of_elements(
    cx: &mut Lowering,
    value: Value,
    batch: &[usize],
    contract: &[usize],
) -> Option<(Value, SmallVec<[usize; 4]>, SmallVec<[usize; 4]>)> {
    let permutation = cx.origin::<ElementsOfTransposes>(value)?.permutation.clone();
    let (batch, contract) = moved_dims(&permutation, batch, contract)?;
    Some((transpose(cx, value, &inverse(&permutation)), batch, contract))
}

/// Returns a value that is computed from transposes before the transposition, with the places of these axes, so that a reduction over them
/// reads elements in order. `None` if the other dimensions have another order then.
pub(in crate::backend::cpu) fn before_transposes(
    cx: &mut Lowering,
    value: Value,
    axes: &[usize],
) -> Option<(Value, SmallVec<[usize; 4]>)> {
    let permutation = permutation_of(cx, value)?.clone();
    let kept = (0..permutation.len()).filter(|d| !axes.contains(d)).map(|d| permutation[d]);
    if !kept.is_sorted() {
        return None;
    }
    let mut axes: SmallVec<[usize; 4]> = axes.iter().map(|d| permutation[*d]).collect();
    axes.sort_unstable();
    Some((transpose(cx, value, &inverse(&permutation)), axes))
}

/// The permutation that undoes another one.
fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut order = vec![0; permutation.len()];
    permutation.iter().enumerate().for_each(|(dim, place)| order[*place] = dim);
    order
}

/// The batch and contracted dimensions after dimension `d` has become `permutation[d]`. `None` if the dimensions are no batch of matrices in
/// memory then.
fn moved_dims(
    permutation: &[usize],
    batch: &[usize],
    contract: &[usize],
) -> Option<(SmallVec<[usize; 4]>, SmallVec<[usize; 4]>)> {
    let free = free(permutation.len(), contract, batch);
    let [free, batch, contract] =
        [&free, batch, contract].map(|dims| dims.iter().map(|&d| permutation[d]).collect::<SmallVec<[usize; 4]>>());
    contracted_dim([&batch, &free, &contract]).map(|_| (batch, contract))
}

/// Returns the operand of a transpose, with its batch and contracted dimensions, if it is a batch of matrices in memory. The other
/// dimensions must have the same order in both, since they determine the dimensions of the product.
fn operand_of_transpose(
    cx: &Lowering,
    value: Value,
    batch: &[usize],
    contract: &[usize],
) -> Option<(Value, SmallVec<[usize; 4]>, SmallVec<[usize; 4]>)> {
    let TransposeOf { operand, permutation } = cx.origin(value)?;
    moved_dims(permutation, batch, contract).map(|(batch, contract)| (*operand, batch, contract))
}

/// Returns the operand of a transpose that moves one dimension and keeps the order of the others, with this dimension's place before it.
pub(super) fn before_move(cx: &Lowering, value: Value, dim: usize) -> Option<(Value, usize)> {
    let TransposeOf { operand, permutation } = cx.origin(value)?;
    let others = (0..permutation.len()).filter(|d| *d != dim).map(|d| permutation[d]);
    others.is_sorted().then(|| (*operand, permutation[dim]))
}

/// Transposes matrices that are the same in all iterations of a loop. XLA (xla-cpu-pjrt 0.0.1) moves computations of such values out of
/// the loop, calls of functions and of kernels too. It moves a transpose only as an operand of what it moves, here of the call that
/// [`materialize`](Lowering::materialize) adds.
fn transposed_before_loop(cx: &mut Lowering, matrices: Value) -> Value {
    let transposed = transpose(cx, matrices, &[0, 2, 1]);
    cx.materialize(transposed)
}

/// The contracted dimension, 1 or 2, of an operand that is a batch of matrices in memory. `parts` are the batch, free
/// and contracted dimensions. `None` if they are in another order.
pub(super) fn contracted_dim([b, f, c]: [&[usize]; 3]) -> Option<usize> {
    if is_ascending([b, c, f]) {
        Some(1)
    } else if is_ascending([b, f, c]) {
        Some(2)
    } else {
        None
    }
}

/// Views `v` as a batch of matrices, and returns the contracted dimension: the one that needs no transposition if there
/// is one, otherwise the last.
pub(super) fn matrices(
    cx: &mut Lowering,
    v: Value,
    parts: [&[usize]; 3],
    [batch, free, depth]: [usize; 3],
) -> (Value, usize) {
    let v = if contracted_dim(parts).is_some() { v } else { transpose(cx, v, &parts.concat()) };
    let dim = contracted_dim(parts).unwrap_or(2);
    let dims = if dim == 1 { [batch, depth, free] } else { [batch, free, depth] };
    (reshape(cx, v, &dims), dim)
}

/// Handles a call. `lhs` and `rhs` are the contracted dimensions of the operands.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> std::result::Result<(), String> {
    let dims = [number(frame, "lhs")?, number(frame, "rhs")?];
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([a, b], [c]) = (args, results) else { return Err("not two operands and a result".into()) };
    match c.ty {
        ElementType::F64 => multiply::<f64>([a, b], dims, c, threads),
        _ => multiply::<f32>([a, b], dims, c, threads),
    }
}

fn multiply<T: Float + FromBytes + IntoBytes + Immutable>(
    [a, b]: [&Arg<'_>; 2],
    dims: [usize; 2],
    c: &mut Ret<'_>,
    threads: usize,
) -> std::result::Result<(), String> {
    let (lhs, rhs) = (sizes(a.dims), sizes(b.dims));
    Ok(kernels::matmul::<T>(view(a, &lhs)?, view(b, &rhs)?, dims, numbers_mut(c)?, threads)?)
}

/// Returns `true` if the dimensions are numbered in this order.
fn is_ascending(order: [&[usize]; 3]) -> bool {
    order.concat().into_iter().enumerate().all(|(i, d)| i == d)
}
