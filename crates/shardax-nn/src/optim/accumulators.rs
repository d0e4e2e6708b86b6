//! The dtypes of averages and sums over many steps.

use shardax::prelude::*;

use super::tree_utils::full_like;
use crate::shardings::reshard_like;

/// Returns the dtype in which numbers of `dtype` are added up over many steps: float32 for half precision, otherwise
/// `dtype`.
pub(super) fn wide_dtype(dtype: DType) -> DType {
    if dtype.is_inexact() && dtype.byte_size() < 4 { DType::F32 } else { dtype }
}

/// Converts the leaves to the dtypes in which they are added up.
pub(super) fn widened<P: Tree>(tree: P) -> Result<P> {
    tree::map(|x| x.astype(wide_dtype(x.dtype())), tree)
}

/// Computes updates in float32 if gradients or parameters have half precision, because their squares would overflow, and
/// because small numbers that are added to large ones would be lost. The updates have the dtypes of the gradients, even if a
/// number that is shared by all arrays of a tree has a wider dtype than some of them.
pub(super) fn in_wide_dtypes<P: Tree, S>(
    grads: P,
    params: &P,
    update: impl FnOnce(P, &P) -> Result<(P, S)>,
) -> Result<(P, S)> {
    let dtypes = dtypes(&grads);
    let (updates, state) = update(widened(grads)?, &widened(params.clone())?)?;
    Ok((with_dtypes(updates, dtypes)?, state))
}

/// Returns the dtypes of the leaves in order.
pub(super) fn dtypes<T: Tree>(tree: &T) -> Vec<DType> {
    tree::leaves(tree).iter().map(Array::dtype).collect()
}

/// Converts inexact leaves to these dtypes in order, if they are inexact too. A state whose dtypes change from step to step
/// could not be the carry of a loop.
pub(super) fn with_dtypes<T: Tree>(tree: T, dtypes: Vec<DType>) -> Result<T> {
    let mut dtypes = dtypes.into_iter();
    tree::map(
        |x| match dtypes.next() {
            Some(dtype) if dtype.is_inexact() && x.dtype().is_inexact() => x.astype(dtype),
            _ => x,
        },
        tree,
    )
}

/// Returns zeros like every array of `params`, in the dtype in which it is added up, or in the requested one.
pub(super) fn zeros_in<P: Tree>(params: &P, dtype: Option<DType>) -> Result<P> {
    tree::map(|p| reshard_like(zeros_dtype(p.shape(), dtype.unwrap_or(wide_dtype(p.dtype()))), &p), params.clone())
}

/// Returns `value` in the shape of every array of `params`, in the dtype in which it is added up.
pub(super) fn full_in<P: Tree>(params: &P, value: f64) -> Result<P> {
    full_like(&zeros_in(params, None)?, value)
}

/// Returns the dtype of a number that is used with all arrays of a tree: float64 if an array has it, otherwise float32.
pub(super) fn scalar_dtype<P: Tree>(tree: &P) -> DType {
    if tree::leaves(tree).iter().any(|x| matches!(x.dtype(), DType::F64 | DType::Complex128)) {
        DType::F64
    } else {
        DType::F32
    }
}

/// Returns `1 - decay^count`, accurate to the last digits even if the decay is near 1.
pub(super) fn one_minus_power(decay: f64, count: &Array, dtype: DType) -> Array {
    let count = count.astype(dtype);
    if decay > 0.0 { -expm1(count * decay.ln()) } else { 1 - power(decay, count) }
}
