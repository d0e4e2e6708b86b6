//! Automatic checks, as in JAX: the operations that can go wrong, and the predicates that detect it.

use super::Checks;
use super::discharge::Kind;
use super::error::What;
use crate::core::array::Array;
use crate::core::primitive::Primitive;
use crate::core::program::Eqn;
use crate::dtype::DType;
use crate::ops::lax;
use crate::ops::primitive::dynamic_slice::{DynamicSlice, DynamicUpdateSlice};
use crate::ops::primitive::gather::Gather;
use crate::ops::primitive::scatter::Scatter;
use crate::ops::select::where_;
use crate::shape::Shape;

/// The operations whose results are checked for NaN, because they can produce one from numbers.
const NAN: &[&str] = &[
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "attention",
    "attention_gradient",
    "attention_tangent",
    "bessel_i0e",
    "bessel_i1e",
    "cbrt",
    "conv_general_dilated",
    "cos",
    "cosh",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "digamma",
    "div",
    "dot_general",
    "erf",
    "erf_inv",
    "erf_inv_of_xla",
    "erfc",
    "exp",
    "expm1",
    "fft",
    "igamma",
    "igammac",
    "integer_pow",
    "lgamma",
    "linear_solve",
    "log",
    "log1p",
    "logistic",
    "mul",
    "pad",
    "pow",
    "psum",
    "reduce_prod",
    "reduce_sum",
    "reduce_window",
    "reduce_window_sum",
    "rem",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
];

/// Returns the kinds of errors among `checks` that an equation can have. `inexact` is true if a result is floating point.
pub(super) fn kinds(eqn: &Eqn, inexact: bool, checks: Checks) -> Vec<Kind> {
    let name = eqn.primitive.name();
    let mut kinds = Vec::new();
    if checks.has(Checks::DIV) && name == "div" {
        kinds.push(Kind::Division);
    }
    if checks.has(Checks::INDEX) && Positions::of(&*eqn.primitive).is_some() {
        kinds.push(Kind::Index);
    }
    if inexact && checks.has(Checks::NAN) && NAN.contains(&name) {
        kinds.push(Kind::Nan);
    }
    for (check, value) in [(Checks::DEBUG_NANS, "nan"), (Checks::DEBUG_INFS, "inf")] {
        if inexact && checks.has(check) {
            kinds.push(Kind::Invalid(value));
        }
    }
    kinds
}

/// Returns a predicate that is true if an equation with these operands and results had an error of this kind, the message of
/// the error, and the values of the message.
pub(super) fn failure(kind: &Kind, eqn: &Eqn, args: &[Array], outs: &[Array]) -> Option<(Array, What, Vec<Array>)> {
    let name = eqn.primitive.name();
    match kind {
        Kind::Nan => Some((any_element(outs, Array::isnan)?, What::Nan(name), Vec::new())),
        Kind::Invalid(value) => {
            let test = if *value == "nan" { Array::isnan } else { Array::isinf };
            Some((any_element(outs, test)?, What::Invalid(value, name), Vec::new()))
        }
        Kind::Division => Some((args.get(1)?.equal(0).any(..), What::Division, Vec::new())),
        Kind::Index => {
            let positions = Positions::of(&*eqn.primitive)?;
            let (failed, payload) = positions.out_of_bounds(args)?;
            Some((failed, What::Index(args[0].shape().into()), vec![payload]))
        }
        Kind::Check(_) => None,
    }
}

/// Returns a predicate that is true if `test` is true for an element of a floating point result.
fn any_element(outs: &[Array], test: fn(&Array) -> Array) -> Option<Array> {
    let results = outs.iter().filter(|out| out.dtype().is_inexact()).map(|out| test(out).any(..));
    results.reduce(|a, b| a | b)
}

/// An operation that reads or writes blocks at computed positions.
enum Positions<'a> {
    Slice(&'a DynamicSlice),
    Update,
    Gather(&'a Gather),
    Scatter(&'a Scatter),
}

impl Positions<'_> {
    fn of(primitive: &dyn Primitive) -> Option<Positions<'_>> {
        let primitive = primitive.as_any();
        if let Some(slice) = primitive.downcast_ref() {
            return Some(Positions::Slice(slice));
        }
        if primitive.is::<DynamicUpdateSlice>() {
            return Some(Positions::Update);
        }
        if let Some(gather) = primitive.downcast_ref() {
            return Some(Positions::Gather(gather));
        }
        primitive.downcast_ref().map(Positions::Scatter)
    }

    /// Returns a predicate that is true if a position is out of bounds for its block, and three numbers for the message: the
    /// first such index, its axis, and the size of this axis.
    fn out_of_bounds(&self, args: &[Array]) -> Option<(Array, Array)> {
        let shape: Shape = args[0].shape().into();
        // Positions along the last dimension, the axes that they index, and the sizes of a block along these axes.
        let every_axis: Vec<usize> = (0..shape.len()).collect();
        let (positions, axes, block): (Array, Vec<usize>, Vec<usize>) = match self {
            Positions::Slice(slice) => (stack_scalars(&args[1..])?, every_axis, slice.sizes.to_vec()),
            Positions::Update => (stack_scalars(&args[2..])?, every_axis, args[1].shape().to_vec()),
            Positions::Gather(gather) => {
                let axes = gather.dims.start_index_map.clone();
                let block = axes.iter().map(|&d| gather.slice_sizes[d]).collect();
                (args[1].clone(), axes, block)
            }
            Positions::Scatter(scatter) => {
                let axes = scatter.dims.scatter_dims_to_operand_dims.clone();
                let window = scatter.window(shape.len(), args[2].shape());
                let block = axes.iter().map(|&d| window[d]).collect();
                (args[1].clone(), axes, block)
            }
        };
        if axes.is_empty() || positions.size() == 0 {
            return None;
        }
        let positions = positions.astype(if positions.dtype().byte_size() == 8 { DType::I64 } else { DType::I32 });
        let n = positions.size();
        let positions = positions.replicated();
        let column = lax::iota(DType::I32, positions.shape(), positions.ndim() - 1);
        let last_starts: Vec<usize> = axes.iter().zip(&block).map(|(&d, &b)| shape[d].saturating_sub(b)).collect();
        let axis_sizes: Vec<usize> = axes.iter().map(|&d| shape[d]).collect();
        let sizes = by_column(&column, &axis_sizes);
        let axis = by_column(&column, &axes);
        let last_start = by_column(&column, &last_starts).astype(positions.dtype());
        let is_outside = positions.less(0) | positions.greater(last_start);
        let first_outside = is_outside.reshape([n]).astype(DType::I32).argmax(0);
        let payload = [positions, axis, sizes]
            .map(|x| lax::dynamic_index_in_dim(&x.reshape([n]), &first_outside, 0).astype(DType::I32));
        let payload = lax::concatenate(&payload, 0);
        Some((is_outside.any(..), payload))
    }
}

/// Returns an int32 array with `values[i]` in column `i` of its last dimension, given the array of the column numbers. It is
/// built from plain numbers, because rules must not capture arrays.
fn by_column(column: &Array, values: &[usize]) -> Array {
    let mut values = values.iter().map(|&value| value.min(i32::MAX as usize) as i32);
    let first_value = values.next().unwrap_or_default();
    let initial = crate::ops::constants::filled(&[], crate::dtype::Scalar::Int(first_value.into()), DType::I32);
    let start = initial.broadcast_to(column.shape());
    values.enumerate().fold(start, |result, (i, value)| where_(column.equal(i as i32 + 1), value, result))
}

/// Stacks start indices, which are scalars, to a vector. Returns `None` if there are none.
fn stack_scalars(starts: &[Array]) -> Option<Array> {
    let rows: Vec<Array> = starts.iter().map(|s| s.reshape([1])).collect();
    (!rows.is_empty()).then(|| lax::concatenate(&rows, 0))
}
