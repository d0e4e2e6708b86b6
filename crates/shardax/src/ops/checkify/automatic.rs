//! Automatic checks, as in JAX: the operations that may go wrong, and how that is detected.

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

/// The operations whose results are checked for NaN: those that can produce one from numbers.
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

/// The kinds of errors that an equation may have, among `checks`; `inexact` says whether a result is floating point.
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

/// A predicate that an equation with these operands and results went wrong in this way, its message, and the message's
/// values.
pub(super) fn failure(kind: &Kind, eqn: &Eqn, args: &[Array], outs: &[Array]) -> Option<(Array, What, Vec<Array>)> {
    let name = eqn.primitive.name();
    let any = |test: &dyn Fn(&Array) -> Array| {
        let found = outs.iter().filter(|out| out.dtype().is_inexact()).map(|out| test(out).any(..));
        found.reduce(|a, b| a | b)
    };
    match kind {
        Kind::Nan => Some((any(&Array::isnan)?, What::Nan(name), Vec::new())),
        Kind::Invalid(value) => {
            let test = if *value == "nan" { Array::isnan } else { Array::isinf };
            Some((any(&test)?, What::Invalid(value, name), Vec::new()))
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

/// An operation that reads or writes blocks at computed positions.
enum Positions<'a> {
    Slice(&'a DynamicSlice),
    Update,
    Gather(&'a Gather),
    Scatter(&'a Scatter),
}

impl Positions<'_> {
    fn of(primitive: &dyn Primitive) -> Option<Positions<'_>> {
        let any = primitive.as_any();
        let slice = any.downcast_ref().map(Positions::Slice);
        let update = || any.downcast_ref::<DynamicUpdateSlice>().map(|_| Positions::Update);
        let gather = || any.downcast_ref().map(Positions::Gather);
        slice.or_else(update).or_else(gather).or_else(|| any.downcast_ref().map(Positions::Scatter))
    }

    /// A predicate that a position is out of bounds for its block, and the first such index, its axis and that axis'
    /// size.
    fn out_of_bounds(&self, args: &[Array]) -> Option<(Array, Array)> {
        let shape: Shape = args[0].shape().into();
        // Positions along the last dimension, the axes that they index, and the sizes of a block there.
        let all: Vec<usize> = (0..shape.len()).collect();
        let (positions, axes, block): (Array, Vec<usize>, Vec<usize>) = match self {
            Positions::Slice(slice) => (stacked(&args[1..])?, all, slice.sizes.to_vec()),
            Positions::Update => (stacked(&args[2..])?, all, args[1].shape().to_vec()),
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
        let list = |values: Vec<usize>| {
            let row: Vec<i32> = values.into_iter().map(|v| v.min(i32::MAX as usize) as i32).collect();
            row
        };
        let positions = positions.whole();
        let last = positions.ndim() - 1;
        // Constants are built from plain numbers: a rule captures no arrays.
        let column = lax::iota(DType::I32, positions.shape(), last);
        let by_column = |values: Vec<i32>| {
            let first = crate::ops::constants::filled(&[], crate::dtype::Scalar::Int(values[0].into()), DType::I32);
            let start = first.broadcast_to(positions.shape());
            values.iter().enumerate().skip(1).fold(start, |so_far, (i, &v)| where_(column.equal(i as i32), v, so_far))
        };
        let room = axes.iter().zip(&block).map(|(&d, &b)| shape[d].saturating_sub(b)).collect();
        let sizes = by_column(list(axes.iter().map(|&d| shape[d]).collect()));
        let axis = by_column(list(axes));
        let room = by_column(list(room)).astype(positions.dtype());
        let outside = positions.less(0) | positions.greater(room);
        let first = outside.reshape([n]).astype(DType::I32).argmax(0);
        let pick = |of: &Array| lax::dynamic_index_in_dim(&of.reshape([n]), &first, 0).astype(DType::I32);
        let payload = lax::concatenate(&[pick(&positions), pick(&axis), pick(&sizes)], 0);
        Some((outside.any(..), payload))
    }
}

/// Stacks start indices, one scalar each.
fn stacked(starts: &[Array]) -> Option<Array> {
    let rows: Vec<Array> = starts.iter().map(|s| s.reshape([1])).collect();
    (!rows.is_empty()).then(|| lax::concatenate(&rows, 0))
}
