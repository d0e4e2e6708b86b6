//! Functions for kernels: the position in the grid, conditionals, products.

use smallvec::smallvec;

use crate::core::array::Array;
use crate::core::function::IntoOutput;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, Primitive};
use crate::core::program::Aval;
use crate::core::program::trace::{at_caller, bind1};
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::local::{Stack, StackKey};
use crate::ops::control_flow::cond;
use crate::ops::lax::DotOptions;
use crate::ops::operators::ArrayLike;
use crate::source;

thread_local! {
    /// The grids of the kernels that are being traced, innermost last. They are a thread-local because `program_id` and
    /// `num_programs` are free functions, and a kernel is always traced on one thread.
    static GRIDS: Stack<Vec<usize>> = const { Stack::new() };
}

/// Runs `f`, which traces a kernel with this grid.
pub(super) fn on_grid<R>(grid: &[usize], f: impl FnOnce() -> R) -> R {
    GRIDS.with_pushed([grid.to_vec()], f)
}

/// Returns `true` if a kernel is being traced on this thread.
pub(super) fn is_in_kernel() -> bool {
    GRIDS.with_borrow(|grids| !grids.is_empty())
}

/// Returns the size of an axis of the current kernel's grid. `function` names the caller in errors.
fn grid_size(function: &str, axis: usize) -> Result<usize> {
    GRIDS.with_borrow(|grids| {
        let grid = grids.last().ok_or_else(|| {
            err!(Value, "{function}({axis}) was called outside of a kernel")
                .help("call it in the function that you pass to `pallas_call`")
        })?;
        let size = grid.get(axis).copied();
        size.ok_or_else(|| {
            err!(Value, "{function}({axis}): axis {axis} is out of bounds for the grid {grid:?}")
                .help("pass the number of an axis of the grid, which counts from 0")
        })
    })
}

/// Turns an error into an int32 scalar that carries it.
fn int32_or_error(result: Result<Array>) -> Array {
    at_caller(|| Array::from_result(result, &Array::literal(Scalar::Int(0), DType::I32, false)))
}

/// Returns the kernel's position along a grid axis, as an int32 scalar.
///
/// You can call it only in a kernel. It fails for an axis that the grid does not have.
#[track_caller]
pub fn program_id(axis: usize) -> Array {
    let _line = source::enter();
    int32_or_error(grid_size("program_id", axis).map(|_| bind1(ProgramId { axis }, &[])))
}

/// Returns the size of the grid along an axis.
///
/// You can call it only in a kernel. It fails for an axis that the grid does not have.
#[track_caller]
pub fn num_programs(axis: usize) -> Array {
    let _line = source::enter();
    int32_or_error(grid_size("num_programs", axis).map(ArrayLike::into_array))
}

/// Runs `f` if `condition`, a boolean scalar, is true: `when(k.equal(0), || acc.set(0.0))?`.
///
/// # Errors
/// Returns an error if `condition` is not a scalar, or if `f` fails.
#[track_caller]
pub fn when<R: IntoOutput<Output = ()>>(condition: impl ArrayLike, f: impl Fn() -> R) -> Result<()> {
    let _line = source::enter();
    cond(condition, |()| f(), |()| (), ()).at_caller()
}

/// Returns the number of blocks of `block` entries that cover `size` entries: the quotient, rounded up.
///
/// ```
/// # use shardax::experimental::pallas::cdiv;
/// assert_eq!(cdiv(1000, 256), 4);
/// ```
pub const fn cdiv(size: usize, block: usize) -> usize {
    if block == 0 { 0 } else { size.div_ceil(block) }
}

/// Multiplies two matrices. The accumulator and the result are int32 for integers, float64 if an operand is float64, and
/// float32 otherwise.
///
/// For transposed operands, use [`DotOptions::dot_general`] with `preferred_element_type` instead.
#[track_caller]
pub fn dot(a: &Array, b: &Array) -> Array {
    let checked = a.check().and_then(|()| b.check()).and_then(|()| match (a.ndim(), b.ndim()) {
        (2, 2) => Ok(()),
        _ => Err(err!(Value, "dot takes two matrices, got {} and {}", a.type_name(), b.type_name())
            .help("reshape the blocks to two dimensions, or use `DotOptions::dot_general`")),
    });
    let accumulator = match (a.dtype(), b.dtype()) {
        (a, b) if a.is_integer() && b.is_integer() => DType::I32,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        _ => DType::F32,
    };
    let options = DotOptions::new().preferred_element_type(accumulator);
    at_caller(|| Array::from_result(checked.map(|()| options.dot_general(a, b, (&[1], &[0]), (&[], &[]))), a))
}

/// The primitive of [`program_id`]. It is never lowered: the loop over the grid, or the kernel compiler, replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProgramId {
    pub axis: usize,
}

impl Primitive for ProgramId {
    fn name(&self) -> &'static str {
        "program_id"
    }

    fn print_params(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, _args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![Aval::scalar(DType::I32)])
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(err!(Value, "program_id({}) has a value only inside of a kernel", self.axis)
            .help("call `program_id` in the function that you pass to `pallas_call`"))
    }
}
